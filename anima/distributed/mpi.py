"""Messages between processes, by mpi4py: what `core.processes.here` is in a program that mpirun started.

The memory of arrays goes to MPI as it is (see `messages`). In the background, each process tells its neighbour twice a
second which calls it has begun, and at once when it begins with a program for the first time, so that processes that
call different programs, or have ended while others wait for them, end the job with an error that names the ranks and
the lines: see `watch`.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
import traceback
from functools import cache, partial
from typing import Any

from mpi4py import MPI

from anima.core.processes import KEPT, Alone, Log
from anima.distributed.messages import Message

TOLD = 64       # calls that the neighbour is told of
PERIOD = 0.5    # seconds between two looks at the neighbour
_DIGEST = 32    # bytes at the start of a record that tell programs apart; the rest is text
_LAST = 1       # tag of the last message of the watch


class Processes(Alone):
    """The processes of MPI's world."""

    def __init__(self) -> None:
        world = MPI.COMM_WORLD
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise RuntimeError("anima.distributed needs an MPI that was initialized for several threads "
                               "(MPI_THREAD_MULTIPLE), and this one was not.")
        self.index, self.count = world.Get_rank(), world.Get_size()
        self.world, self.control = world.Dup(), world.Dup()  # messages of programs; of the watch
        self.world.Set_errhandler(MPI.ERRORS_RETURN)  # and of groups, which have it from there
        self.log = Log()
        self.ended = False    # this program
        self.over = False     # all programs
        self.last: State = 0, False, False, {}  # what the neighbour has told
        self.hurry, self.news = threading.Event(), threading.Condition()
        self.waiting = False  # for the neighbour to tell of the call that has begun
        self.group = cache(self._group)  # made by all of a group, when they first exchange something
        self.watching = threading.Thread(target=self.watch, name="anima-distributed", daemon=True)

    def _group(self, ranks: tuple[int, ...]) -> MPI.Comm:
        if ranks == tuple(range(self.count)):
            return self.world
        return self.world.Create_group(self.world.Get_group().Incl(ranks))

    def exchange(self, kind: str, group: tuple[int, ...], perm: Any) -> Message:
        # If others run another program, the watch finds it before an error is raised, and tells
        return Message(kind, partial(self.group, group), perm, 8 * PERIOD)

    def barrier(self) -> None:
        self.world.Barrier()

    def calls(self, record: bytes) -> None:
        new = not self.log.known(record)
        self.log.begin(record)
        if new:
            self.compare()

    def compare(self) -> None:
        """Waits until the neighbour has told of the call that has begun: messages of different programs may not fit.

        A neighbour that knows the program does not hurry, and tells when it is time.
        """
        with self.news:
            self.waiting = True
            self.hurry.set()
            self.news.wait_for(lambda: self.last[0] >= self.log.begun and not self.hurry.is_set(), 2 * PERIOD)
            self.waiting = False

    def returns(self) -> None:
        self.log.end()

    # ------------------------------------------------------------ beginning and end

    def start(self) -> None:
        """Begins to watch, and has errors that nobody catches end the job."""
        hook = sys.excepthook

        def fail(kind: type[BaseException], error: BaseException, trace: Any) -> None:
            if self.ended:
                hook(kind, error, trace)
            else:
                self.abort("".join(traceback.format_exception(kind, error, trace)))

        sys.excepthook = fail
        atexit.register(self.finish)
        self.watching.start()

    def abort(self, text: str) -> None:
        """Ends the job with a text."""
        sys.stdout.flush()
        print(f"anima.distributed: process {self.index} of {self.count} ends the job.\n{text}", file=sys.stderr,
              flush=True)
        time.sleep(PERIOD)  # what launches programs may drop what it has not read by then
        MPI.COMM_WORLD.Abort(1)

    def finish(self) -> None:
        """Waits until all programs have ended."""
        if self.over:
            return
        self.ended = True
        request = self.world.Ibarrier()
        while not request.Test():
            time.sleep(0.002)
        self.over = True
        self.hurry.set()
        self.watching.join()

    # ------------------------------------------------------------ the watch

    def watch(self) -> None:
        """Tells the next process what this one does, and compares what the one before tells, until all have ended."""
        after, before = (self.index + 1) % self.count, (self.index - 1) % self.count
        while not self.over:
            self.hurry.wait(PERIOD)
            self.hurry.clear()
            sent = self.control.isend(self.state(), after)
            self.look(before, self.last)  # told earlier, of what this process did not do yet
            while self.waiting and not self.over and not self.hurry.is_set():
                self.hear(before)
                time.sleep(0.001)
            while not sent.Test():
                time.sleep(0.01)
                self.hear(before)
            self.hear(before)
        sent = self.control.isend(self.state(), after, _LAST)
        self.hear(before, _LAST)
        sent.wait()

    def state(self) -> State:
        """What the neighbour is told."""
        return self.log.begun, self.log.inside, self.ended, self.log.last(TOLD)

    def hear(self, other: int, until: int | None = None) -> None:
        """Looks at what the neighbour has told so far, or at all `until` a message with this tag."""
        status, tag = MPI.Status(), None
        while (until is not None and tag != until) or self.control.iprobe(other, 0):
            self.look(other, self.control.recv(None, other, MPI.ANY_TAG, status))
            tag = status.Get_tag()

    def look(self, other: int, state: State) -> None:
        """Ends the job if what the neighbour tells is something else than what this process does."""
        text = self.disagreement(other, state)
        if text:
            self.abort(text)
        with self.news:
            self.last = state
            self.news.notify_all()

    def disagreement(self, other: int, state: State) -> str:
        """What is wrong between this process and another, if anything is."""
        begun, inside, ended, told = state
        mine = self.log.last(KEPT)
        for k in sorted(told.keys() & mine.keys()):
            if told[k][0] != mine[k][0]:
                same = "" if told[k][1][:_DIGEST] != mine[k][1][:_DIGEST] else " (one before it was another)"
                if not same and mine[k][1][_DIGEST:] == told[k][1][_DIGEST:]:
                    same = " (of other types, shardings, or devices)"
                return (f"The processes run different programs{same}: their call number {k + 1} is\n"
                        f"  {_text(mine[k][1])} in process {self.index},\n  {_text(told[k][1])} in process {other}.\n"
                        "All processes have to call the same functions on arrays over several processes, in the same "
                        "order.")
        own = self.log.begun
        for waits, count, calls, gone, reached in ((ended and self.log.inside, own, mine, other, begun),
                                                   (self.ended and inside, begun, told, self.index, own)):
            if waits and count > reached:
                waiting = self.index if gone == other else other
                return (f"Process {gone} has ended, while process {waiting} waits for it in its call number {count}:\n"
                        f"  {_text(calls[count - 1][1])}")
        return ""


State = tuple[int, bool, bool, dict[int, tuple[int, bytes]]]


def _text(record: bytes) -> str:
    return record[_DIGEST:].rstrip(b"\0").decode(errors="replace")
