"""Messages between processes, by mpi4py: what `core.processes.here` is in a program that mpirun started.

NumPy's memory goes to MPI as it is. In the background, each process tells its neighbour twice a second which calls it
has begun, and at once when it begins with a program for the first time, so that processes that call different programs,
or have ended while others wait for them, end the job with an error that names the ranks and the lines: see `watch`.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from mpi4py import MPI

from anima.core.processes import Alone

KEPT = 1024     # calls of which it is known what they were
TOLD = 64       # of these, how many the neighbour is told of
PERIOD = 0.5    # seconds between two looks at the neighbour
_DIGEST = 32    # bytes at the start of a record that tell programs apart; the rest is text
_FACTOR, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1  # of the hash of all calls so far
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
        self.records: list[tuple[int, bytes]] = [(0, b"")] * KEPT  # of the calls, each with a hash of all up to it
        self.begun = 0        # calls
        self.chain = 0        # the hash of all
        self.known: dict[bytes, int] = {}  # records of calls that there have been, and the numbers that hash them
        self.inside = False   # of a call
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

    def exchange(self, kind: str, group: tuple[int, ...], perm: Any) -> Callable[[np.ndarray, np.ndarray], None]:
        known: list[Callable[..., None]] = []  # made at the first exchange, as all of the group make it together

        def run(x: np.ndarray, out: np.ndarray) -> None:
            if not known:
                known.append(_RULES[kind](self.group(group), perm))
            try:
                known[0](x, out)
            except MPI.Exception:
                time.sleep(8 * PERIOD)  # if others run another program, the watch finds it by then, and tells
                raise

        return run

    def barrier(self) -> None:
        self.world.Barrier()

    def calls(self, record: bytes) -> None:
        number = self.known.get(record)
        new = number is None
        if number is None:
            number = self.known[record] = int.from_bytes(record[:8], "little")
        self.chain = (self.chain * _FACTOR + number) & _MASK
        self.records[self.begun % KEPT] = self.chain, record
        self.begun += 1
        self.inside = True
        if new:
            self.compare()

    def compare(self) -> None:
        """Waits until the neighbour has told of the call that has begun: messages of different programs may not fit.

        A neighbour that knows the program does not hurry, and tells when it is time.
        """
        with self.news:
            self.waiting = True
            self.hurry.set()
            self.news.wait_for(lambda: self.last[0] >= self.begun and not self.hurry.is_set(), 2 * PERIOD)
            self.waiting = False

    def returns(self) -> None:
        self.inside = False

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
        begun, inside, ended = self.begun, self.inside, self.ended
        told = {k: self.records[k % KEPT] for k in range(max(0, begun - TOLD), begun)}
        return begun, inside, ended, told

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
        mine = {k: self.records[k % KEPT] for k in range(max(0, self.begun - KEPT), self.begun)}
        for k in sorted(told.keys() & mine.keys()):
            if told[k][0] != mine[k][0]:
                same = "" if told[k][1][:_DIGEST] != mine[k][1][:_DIGEST] else " (one before it was another)"
                if not same and mine[k][1][_DIGEST:] == told[k][1][_DIGEST:]:
                    same = " (of other types, shardings, or devices)"
                return (f"The processes run different programs{same}: their call number {k + 1} is\n"
                        f"  {_text(mine[k][1])} in process {self.index},\n  {_text(told[k][1])} in process {other}.\n"
                        "All processes have to call the same functions on arrays over several processes, in the same "
                        "order.")
        for waits, count, calls, gone, reached in ((ended and self.inside, self.begun, mine, other, begun),
                                                   (self.ended and inside, begun, told, self.index, self.begun)):
            if waits and count > reached:
                waiting = self.index if gone == other else other
                return (f"Process {gone} has ended, while process {waiting} waits for it in its call number {count}:\n"
                        f"  {_text(calls[count - 1][1])}")
        return ""


State = tuple[int, bool, bool, dict[int, tuple[int, bytes]]]


def _text(record: bytes) -> str:
    return record[_DIGEST:].rstrip(b"\0").decode(errors="replace")


_NAMED = "bBhHiIlLqQfdFD"  # types that MPI has names for


def _bytes(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1).view(np.uint8)


def _permute(comm: MPI.Comm, perm: Sequence[tuple[int, int]]) -> Callable[[np.ndarray, np.ndarray], None]:
    me = comm.Get_rank()
    sources, targets = [a for a, b in perm if b == me], [b for a, b in perm if a == me]

    def run(x: np.ndarray, out: np.ndarray) -> None:
        requests = [comm.Irecv(_bytes(out), a) for a in sources]
        if not sources:
            out[...] = 0
        requests += [comm.Isend(_bytes(x), b) for b in targets]
        MPI.Request.Waitall(requests)

    return run


def _reduced(op: MPI.Op) -> Callable[..., Callable[[np.ndarray, np.ndarray], None]]:
    """All operands added up, say."""
    def rule(comm: MPI.Comm, perm: Any) -> Callable[[np.ndarray, np.ndarray], None]:
        send = comm.Allreduce
        return lambda x, out: send(x, out, op)

    return rule


def _of_bytes(name: str) -> Callable[..., Callable[[np.ndarray, np.ndarray], None]]:
    """A collective that only moves data, of any type."""
    def rule(comm: MPI.Comm, perm: Any) -> Callable[[np.ndarray, np.ndarray], None]:
        send = getattr(comm, name)
        return lambda x, out: send(x, out) if x.dtype.char in _NAMED else send(_bytes(x), _bytes(out))

    return rule


_RULES: dict[str, Callable[[MPI.Comm, Any], Callable[[np.ndarray, np.ndarray], None]]] = {
    "add": _reduced(MPI.SUM), "max": _reduced(MPI.MAX), "min": _reduced(MPI.MIN), "gather": _of_bytes("Allgather"),
    "scatter": lambda comm, perm: lambda x, out: comm.Reduce_scatter_block(x, out, MPI.SUM),
    "all_to_all": _of_bytes("Alltoall"), "permute": _permute}
