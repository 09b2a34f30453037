"""What follows of linear facts: the least value of a form where none of some others is negative.

    least({"a": 2, (): -5}, [{"a": 1, (): -4}]) == 3        2 a - 5, where a - 4 >= 0

A form maps names to their factors, `()` to its number. Names may have any real values.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction

Form = Mapping[Hashable, int]
Rows = list[list[Fraction]]
NUMBER: tuple[()] = ()


def least(goal: Form, facts: Sequence[Form]) -> Fraction | float:
    """The least value of `goal` where each of `facts` is 0 or more: -inf if it has none that these tell, inf if they
    contradict each other.

    It is the largest number t for which goal - t is a sum of facts, each times a number that is not negative: the
    simplex method (Bland's rule, exact fractions) looks for these numbers.
    """
    names = dict.fromkeys(name for form in (goal, *facts) for name in form if name != NUMBER)
    rows: Rows = []
    for name in names:
        row = [Fraction(f.get(name, 0)) for f in (*facts, goal)]
        rows.append([-x for x in row] if row[-1] < 0 else row)
    cost = [Fraction(f.get(NUMBER, 0)) for f in facts] + [Fraction(0)]
    missing = [-sum(column, Fraction(0)) for column in zip(*rows, strict=True)] or [Fraction(0)] * (len(facts) + 1)
    basis = [len(facts) + k for k in range(len(rows))]  # what no fact explains yet
    rows.append(cost)
    _improve(rows, missing, basis)
    if missing[-1]:
        return -math.inf
    for k in range(len(basis)):  # names that no fact is needed for any more, though it stands for one
        if basis[k] >= len(facts):
            column = next((j for j in range(len(facts)) if rows[k][j]), None)
            if column is not None:
                _pivot(rows, missing, basis, k, column)
    if not _improve(rows[:-1], cost, basis):
        return math.inf
    return goal.get(NUMBER, 0) + cost[-1]


def _improve(rows: Rows, cost: list[Fraction], basis: list[int]) -> bool:
    """Pivots until no factor of `cost` is negative; False where it has no least value."""
    while (column := next((j for j, c in enumerate(cost[:-1]) if c < 0), None)) is not None:
        ratios = [(rows[k][-1] / rows[k][column], b, k) for k, b in enumerate(basis) if rows[k][column] > 0]
        if not ratios:
            return False
        _pivot(rows, cost, basis, min(ratios)[2], column)
    return True


def _pivot(rows: Rows, cost: list[Fraction], basis: list[int], at: int, column: int) -> None:
    pivot = rows[at]
    scale = pivot[column]
    pivot[:] = [x / scale for x in pivot]
    for row in (*rows, cost):
        if row is not pivot and (factor := row[column]):
            row[:] = [x - factor * y for x, y in zip(row, pivot, strict=True)]
    basis[at] = column
