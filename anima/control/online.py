"""Online checkpointing: reversing a loop of unknown length with a fixed number of stored states.

    kept = Checkpoints(advance, initial, chunk, slots)
    last = kept.run(0, initial, ...)                             forward: `Placement` says which states are kept
    first, end, state = kept.chunk_with(step, reverse=True)      back: steps to record again, and where from

Going forward, while k < (c + 1)(c + 2)/2 - 1 every step is stored and the leftmost segments are merged that
may be (Stumm and Walther, New algorithms for optimal online checkpointing, 2010, algorithm I): each step is
then evaluated once more at most, which is optimal. After that the state is dropped whose loss costs least.
(The levels of Wang, Moin and Iaccarino, 2009, cost up to 1.25 times the optimum with 16 slots and 1.304 with
64, this less than 1.04.) Going back, Griewank and Walther's revolve (2000) reverses each segment with the
slots that are free by then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import comb
from typing import Generic, TypeVar

State = TypeVar("State")
_MOST_STATES = 1024     # that are stored; where to put the next one takes time in proportion
_MOST_STEPS = 1 << 24   # that are recorded at once


@lru_cache(maxsize=1 << 16)
def extra_steps(n: int, slots: int) -> int:
    """Least number of steps to evaluate, without the `n` that are differentiated, to reverse `n` steps with `slots`
    stored states, the first included: r*n - C(slots + r, r - 1), r the smallest with C(slots + r, slots) >= n.

    >>> extra_steps(10, 3)
    15
    """
    if n <= 1:
        return 0
    r = 0
    while comb(slots + r, slots) < n:
        r += 1
    return r * n - comb(slots + r, r - 1)


def split(n: int, slots: int) -> int:
    """How many of `n` steps to advance before the next state is stored, so that the total is least."""
    if slots == 1 or n <= 2:
        return n - 1
    r = 0
    while comb(slots + r, slots) < n:
        r += 1
    # The first part is to be reversed with all slots in r - 1 repetitions, the rest with one slot less in r.
    return max(1, min(comb(slots + r - 1, slots), n - comb(slots + r - 2, slots - 1)))


class Placement:
    """Which steps' states are stored while a loop runs forward; step 0 always is.

    `steps` are the steps from whose states one can start again, in order; `length` is the number of steps taken.
    """

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"checkpointing needs at least one slot, got {slots}")
        self.slots = slots
        self.steps: list[int] = []
        self.length = 0

    def advance(self) -> tuple[bool, int | None]:
        """One step is about to be taken from the present state: (is that state to be stored, the position among
        the stored ones of the one to drop first)."""
        step, c = self.length, self.slots
        self.length += 1
        if len(self.steps) < c:
            self.steps.append(step)
            return True, None
        dropped = self._mergeable() if self.length <= (c + 1) * (c + 2) // 2 - 1 else self._cheapest()
        if dropped is None:
            return False, None
        del self.steps[dropped]
        self.steps.append(step)
        return True, dropped

    def _mergeable(self) -> int | None:
        """The first state whose segment may be joined to the one before it: of length c - j + 1 at most, counted
        from j = 0, so that it is reversed by evaluating each of its steps once."""
        ends = [*self.steps[1:], self.length - 1]
        for j in range(self.slots - 1):
            if ends[j + 1] - self.steps[j] <= self.slots - j + 1:
                return j + 1
        return None

    def _cheapest(self) -> int | None:
        """The state but the first whose loss makes the fewest more evaluations; those after it have one more slot."""
        c, ends = self.slots, [*self.steps, self.length - 1]
        best: tuple[int, int] | None = None
        gain = 0
        for j in range(c - 1, 0, -1):
            here, before = extra_steps(ends[j + 1] - ends[j], c - j), extra_steps(ends[j] - ends[j - 1], c - j + 1)
            found = extra_steps(ends[j + 1] - ends[j - 1], c - j + 1) - before - here - gain, j
            best = found if best is None else min(best, found)
            gain += here - extra_steps(ends[j + 1] - ends[j], c - j + 1)
        return None if best is None else best[1]


class Budget:
    """How the room of a loop is used, in bytes: `chunk` steps are recorded at once, `prefix` of the steps that were
    taped stay so as long as the rest of the room, for `slots()` states, is enough."""

    def __init__(self, room: int, state_bytes: int, step_bytes: int, taped: int):
        self.room, self.state_bytes, self.step_bytes = room, max(state_bytes, 1), max(step_bytes, 1)
        self.chunk = min(max(room // 8 // self.step_bytes, 1), _MOST_STEPS)
        self.prefix = taped
        self.halve()
        if self.slots() < 2:
            self.prefix = 0

    def halve(self) -> None:
        """Gives up half of the prefix."""
        self.prefix = self.prefix // 2 // self.chunk * self.chunk

    def slots(self) -> int:
        left = self.room - (self.chunk + self.prefix) * self.step_bytes
        return min(left // self.state_bytes, _MOST_STATES)


class Checkpoints(Generic[State]):
    """What is kept of a loop that is too long for its tapes: states to start from again, chunks of steps apart.

    Args:
      advance: (state, steps) -> (state so many steps later, steps taken: fewer where the loop ends).
      initial: the first state.
      chunk: how many steps are advanced, and recorded, at once.
      slots: how many states may be stored at the same time, the first included.
      prefix: how many of the first steps need not be recorded again.
    """

    def __init__(self, advance: Callable[[State, int], tuple[State, int]], initial: State, chunk: int, slots: int,
                 prefix: int = 0):
        self.advance, self.chunk, self.slots, self.prefix = advance, chunk, slots, prefix
        self.stored: list[tuple[int, State]] = [(0, initial)]
        self.length = 0
        self._end: tuple[int, State] | None = None  # where the chunk that was found last ends

    def run(self, length: int, state: State, more_slots: Callable[[], int]) -> State:
        """Goes on, from the state after `length` steps, to the end of the loop; gives the last state.

        `more_slots()` is asked, whenever all slots are taken, how many there may be.
        """
        self.length, first = length, min(length, 1)  # the first state is stored already, or is this one
        del self.stored[first:]
        placement = Placement(self.slots - first) if self.slots > first else None
        while True:
            if placement is not None:
                if len(placement.steps) == placement.slots:
                    self.slots = more_slots()
                    placement.slots = self.slots - first
                store, dropped = placement.advance()
                if dropped is not None:
                    del self.stored[dropped + first]
                if store:
                    self.stored.append((self.length, state))
            state, taken = self.advance(state, self.chunk)
            self.length += taken
            if taken < self.chunk:
                return state

    def shrink(self, slots: int) -> None:
        """Keeps no more than `slots` states."""
        self.slots = slots
        while len(self.stored) > slots:
            self.stored[1:] = self.stored[2::2]

    def chunk_with(self, step: int, reverse: bool) -> tuple[int, int, State]:
        """Steps to record, from the first up to the second, so that they contain `step`; and the state at the first.

        Going back (`reverse`), `step` is the last of them, and states after it are given up.
        """
        first, state = self._before(step) if reverse else self._after(step)
        return first, step + 1 if reverse else min(first + self.chunk, self.length), state

    def recorded(self, step: int, state: State) -> None:
        """Tells the state after the steps that were recorded last."""
        self._end = step, state

    def _before(self, step: int) -> tuple[int, State]:
        self._end = None
        while self.stored[-1][0] > step:
            self.stored.pop()
        first, state = self.stored[-1]
        free = self.slots - len(self.stored) + 1
        if first < self.prefix and free > 1:
            state, _ = self.advance(state, self.prefix - first)
            first, free = self.prefix, free - 1
            self.stored.append((first, state))
        left = (step - first) // self.chunk
        while left:
            ahead = split(left + 1, free)
            state, _ = self.advance(state, ahead * self.chunk)
            first, left, free = first + ahead * self.chunk, left - ahead, free - 1
            if left:
                self.stored.append((first, state))
        return first, state

    def _after(self, step: int) -> tuple[int, State]:
        known = [*self.stored, *([self._end] if self._end is not None else [])]
        first, state = max((k for k in known if k[0] <= step), key=lambda k: k[0])
        ahead = (step - first) // self.chunk * self.chunk
        return first + ahead, self.advance(state, ahead)[0] if ahead else state
