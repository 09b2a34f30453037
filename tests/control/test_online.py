"""The schedule of online checkpointing: against the formula, and run for real."""

from __future__ import annotations

from functools import cache
from math import comb

import pytest

from anima.control.online import Placement, extra_steps, reverse


@cache
def least(n: int, slots: int) -> int:
    """Evaluations besides the differentiated ones, by trying every place of the second stored state."""
    if n <= 1:
        return 0
    if slots == 1:
        return n * (n - 1) // 2
    return min(m + least(n - m, slots - 1) + least(m, slots) for m in range(1, n))


def test_formula_is_the_optimum() -> None:
    for slots in range(1, 7):
        for n in range(50):
            assert extra_steps(n, slots) == least(n, slots)


@pytest.mark.parametrize("slots", range(1, 9))
def test_every_length_for_real(slots: int) -> None:
    for n in range(1, max(3 * slots, 12) + 1):
        evaluations, went_back = 0, []

        def step(x: int) -> int:
            nonlocal evaluations
            evaluations += 1
            return x + 1

        final = reverse(0, lambda x, n=n: x < n, step, lambda x: (step(x), x), went_back.append, slots)
        assert final == n and went_back == list(range(n))[::-1]
        placement = Placement(slots)
        for _ in range(n):
            placement.advance()
            assert len(placement.steps) <= slots and placement.steps[0] == 0
        assert evaluations == placement.evaluations()


@pytest.mark.parametrize("slots", range(1, 40))
def test_optimal_while_no_step_is_evaluated_a_third_time(slots: int) -> None:
    placement = Placement(slots)
    for n in range(1, (slots + 1) * (slots + 2) // 2):
        placement.advance()
        # Not knowing that a step is the last costs one evaluation: of the step before it.
        assert placement.evaluations() <= n + extra_steps(n, slots) + 1


@pytest.mark.parametrize("slots", [16, 17, 24, 32, 64, 128])
def test_within_1_3_of_the_offline_optimum(slots: int) -> None:
    placement = Placement(slots)
    for n in range(1, 6000):
        placement.advance()
        if n % 7 == 1 or n < 200:
            r = next(r for r in range(99) if comb(slots + r, slots) >= n)
            optimum = n + (r * n - comb(slots + r, r - 1) if r else 0)
            assert placement.evaluations() <= 1.3 * optimum


def test_no_slots() -> None:
    with pytest.raises(ValueError, match="at least one slot"):
        Placement(0)
