"""The schedule of online checkpointing: against the formula, and run for real."""

from __future__ import annotations

from functools import cache
from math import comb

import pytest

from anima.control.online import Budget, Checkpoints, Placement, extra_steps


@cache
def least(n: int, slots: int) -> int:
    """Evaluations besides the differentiated ones, by trying every place of the second stored state."""
    if n <= 1:
        return 0
    if slots == 1:
        return n * (n - 1) // 2
    return min(m + least(n - m, slots - 1) + least(m, slots) for m in range(1, n))


def optimum(n: int, slots: int) -> int:
    """Evaluations of steps in all, if their number is known beforehand: n + r*n - C(s + r, r - 1)."""
    r = next(r for r in range(99) if comb(slots + r, slots) >= n)
    return n + (r * n - comb(slots + r, r - 1) if r else 0)


def evaluations(placement: Placement) -> int:
    """Steps evaluated in all, the way forward included; the last is differentiated as it is first taken."""
    total = last = end = placement.length
    for j in range(len(placement.steps) - 1, -1, -1):
        count = end - placement.steps[j] - (end == last)
        total += count + extra_steps(count, placement.slots - j)
        end = placement.steps[j]
    return total


class Loop:
    """A loop of `n` steps whose state is their number; it is reversed with `room` bytes."""

    def __init__(self, n: int, room: int, state_bytes: int = 1, step_bytes: int = 1, taped: int = 0):
        self.n, self.evaluations, self.taped = n, min(n, taped), min(n, taped)
        self.plan = Budget(room, state_bytes, step_bytes, self.taped)
        self.kept = Checkpoints(self.advance, 0, self.plan.chunk, self.plan.slots(), self.plan.prefix)
        self.visited: list[int] = []

    def advance(self, state: int, steps: int) -> tuple[int, int]:
        taken = min(steps, self.n - state)
        self.evaluations += taken
        return state + taken, taken

    def more_slots(self) -> int:
        self.plan.halve()
        self.kept.prefix = self.plan.prefix
        return self.plan.slots()

    def run(self) -> None:
        if self.n > self.taped:
            assert self.kept.run(self.taped, self.taped, self.more_slots) == self.n == self.kept.length

    def back(self) -> None:
        step = self.n - 1
        while step >= self.plan.prefix:
            first, end, state = self.kept.chunk_with(step, reverse=True)
            assert state == first <= step == end - 1 and len(self.kept.stored) <= self.plan.slots()
            self.evaluations += end - first
            self.visited += range(end - 1, first - 1, -1)
            step = first - 1
        self.visited += range(step, -1, -1)


def test_formula_is_the_optimum() -> None:
    for slots in range(1, 7):
        for n in range(50):
            assert extra_steps(n, slots) == least(n, slots)


@pytest.mark.parametrize("slots", range(1, 9))
def test_every_length_for_real(slots: int) -> None:
    for n in range(1, max(3 * slots, 12) + 1):
        loop = Loop(n, slots + 1)
        assert loop.plan.chunk == 1 and loop.plan.slots() == slots
        loop.run()
        for _ in range(2):  # the second time, with the first state alone
            loop.visited.clear()
            loop.back()
            assert loop.visited == list(range(n))[::-1]


@pytest.mark.parametrize("slots", range(1, 9))
def test_the_second_way_back_is_optimal(slots: int) -> None:
    for n in range(1, 60):
        loop = Loop(n, slots + 1)
        loop.run()
        loop.back()
        loop.evaluations = 0
        loop.back()
        assert loop.evaluations == n + extra_steps(n, slots)


@pytest.mark.parametrize("slots", range(2, 9))
@pytest.mark.parametrize("taped", [4, 30])
def test_ways_back_with_a_prefix_keep_within_the_slots(taped: int, slots: int) -> None:
    for n in (taped + 1, taped + 7, 3 * taped + 50):
        loop = Loop(n, 0, taped=taped)
        loop.plan.chunk, loop.plan.prefix, loop.plan.room = 1, taped // 2, 1 + taped // 2 + slots
        loop.kept = Checkpoints(loop.advance, 0, 1, slots, taped // 2)
        assert loop.kept.run(taped, taped, loop.plan.slots) == n
        for _ in range(3):  # after the first time, with the first states alone
            loop.visited.clear()
            loop.back()
            assert loop.visited == list(range(n))[::-1]


@pytest.mark.parametrize("n", [1000, 1001, 1004])
@pytest.mark.parametrize("reverse", [False, True])
def test_forward_after_anything(reverse: bool, n: int) -> None:
    loop = Loop(n, 40, taped=40)
    loop.run()
    if reverse:
        loop.back()
    loop.evaluations = step = 0
    while step < n:
        first, end, state = loop.kept.chunk_with(step, reverse=False)
        assert state == first <= step < end <= n
        loop.evaluations += end - first
        loop.kept.recorded(end, end)
        step = end
    assert loop.evaluations == n


def test_fewer_slots_afterwards() -> None:
    loop = Loop(500, 33)
    loop.run()
    loop.plan = Budget(9, 1, 1, 0)
    loop.kept.shrink(loop.plan.slots())
    loop.back()
    assert loop.visited == list(range(500))[::-1]


@pytest.mark.parametrize("slots", range(1, 40))
def test_optimal_while_no_step_is_evaluated_a_third_time(slots: int) -> None:
    placement = Placement(slots)
    for n in range(1, (slots + 1) * (slots + 2) // 2):
        placement.advance()
        # Not knowing that a step is the last costs one evaluation: of the step before it.
        assert evaluations(placement) <= n + extra_steps(n, slots) + 1


@pytest.mark.parametrize("slots", [16, 17, 24, 32, 64, 128])
def test_within_1_3_of_the_offline_optimum(slots: int) -> None:
    placement = Placement(slots)
    for n in range(1, 6000):
        placement.advance()
        if n % 7 == 1 or n < 200:
            assert evaluations(placement) <= 1.3 * optimum(n, slots)


@pytest.mark.parametrize("state_bytes", [1, 3, 10])
@pytest.mark.parametrize("step_bytes", [1, 2, 10])
@pytest.mark.parametrize("slots", [16, 17, 31, 64, 500])
def test_loops_that_begin_on_tapes_stay_within_1_3(slots: int, step_bytes: int, state_bytes: int) -> None:
    budget = next(b for b in range(1 << 20) if Budget(b * 7 // 8, state_bytes, step_bytes, 0).slots() >= slots)
    taped = budget // step_bytes
    for n in [*range(taped + 1, taped + 60), *range(taped + 60, 6 * taped, taped // 4 + 1), 20 * taped]:
        loop = Loop(n, budget * 7 // 8, state_bytes, step_bytes, taped)
        loop.run()
        loop.back()
        assert loop.visited == list(range(n))[::-1]
        assert loop.evaluations <= 1.3 * optimum(n, slots)


def test_no_slots() -> None:
    with pytest.raises(ValueError, match="at least one slot"):
        Placement(0)
