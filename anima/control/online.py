"""Online checkpointing: reversing a loop of unknown length with a fixed number of stored states.

    slots = Placement(c);  for each step: slots.advance()        forward: which states are kept
    for start, stop, free in slots.segments(): revolve(...)      back: each segment by the binomial schedule

Going forward, while k < (c + 1)(c + 2)/2 - 1 every step is stored and the leftmost segments are merged that
may be (Stumm and Walther, New algorithms for optimal online checkpointing, 2010, algorithm I): each step is
then evaluated once more at most, which is optimal. After that the state is dropped whose loss costs least.
(The levels of Wang, Moin and Iaccarino, 2009, cost up to 1.25 times the optimum with 16 slots and 1.304 with
64, this less than 1.04.) Going back, Griewank and Walther's revolve (2000) reverses each segment with the
slots that are free by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from math import comb
from typing import Any, TypeVar

State = TypeVar("State")


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

    def segments(self) -> Iterator[tuple[int, int, int]]:
        """(first step, end, slots free with that of the first step) of each segment, from the last to the first."""
        end = self.length
        for j in range(len(self.steps) - 1, -1, -1):
            yield self.steps[j], end, self.slots - j
            end = self.steps[j]

    def evaluations(self) -> int:
        """Steps evaluated in all, the way forward included; the last is differentiated as it is first taken."""
        total, last = self.length, self.length
        for start, end, free in self.segments():
            count = end - start - (end == last)
            total += count + extra_steps(count, free)
        return total


def reverse(state: State, running: Callable[[State], bool], step: Callable[[State], State],
            taped: Callable[[State], tuple[State, Any]], back: Callable[[Any], None], slots: int) -> State:
    """Runs a loop forward, then its adjoint from the last step to the first; gives the final state.

    Args:
      state: the first state. running: whether another step is to be taken. step: the next state.
      taped: the next state, and what `back` needs to go back over that step.
      slots: how many states may be stored at the same time.
    """
    placement = Placement(slots)
    stored: list[State] = []
    last: Any = None
    while running(state):
        store, dropped = placement.advance()
        if dropped is not None:
            del stored[dropped]
        if store:
            stored.append(state)
        state, last = taped(state)
    for start, end, free in placement.segments():
        first = stored.pop()
        if end == placement.length:
            back(last)
            end -= 1
        _revolve(first, end - start, free, step, taped, back)
    return state


def _revolve(first: State, count: int, slots: int, step: Callable[[State], State],
             taped: Callable[[State], tuple[State, Any]], back: Callable[[Any], None]) -> None:
    """Goes back over `count` steps from the stored state `first`, one of `slots`."""
    while count > 0:
        ahead = split(count, slots) if count > 1 else 0
        state = first
        for _ in range(ahead):
            state = step(state)
        if count - ahead == 1:
            back(taped(state)[1])
        else:
            _revolve(state, count - ahead, slots - 1, step, taped, back)
        count = ahead
