"""Unevaluated sums of two numbers, of twice the precision: over NumPy arrays and over compiled numbers alike.

    two_sum(1.0, 1e-20)        # Pair(hi=1.0, lo=1e-20)

Dekker (1971), Knuth (TAOCP 2, 4.2.2); compiled products are exact by fma, NumPy's by Veltkamp's splitting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.util import record

Number = Any  # a NumPy array of float64, or a value of generated code: both have Python's operators


@record
class Pair:
    """The exact sum `hi + lo`, |lo| at most half a unit in the last place of `hi`."""

    hi: Number
    lo: Number

    def __add__(self, other: Pair) -> Pair:
        """The sum, for |self| >= |other| or like signs."""
        s = two_sum(self.hi, other.hi)
        return quick_two_sum(s.hi, s.lo + (self.lo + other.lo))

    def __mul__(self, other: Pair) -> Pair:
        p = two_product(self.hi, other.hi)
        return quick_two_sum(p.hi, fused(self.lo, other.hi, fused(self.hi, other.lo, p.lo)))

    def __neg__(self) -> Pair:
        return Pair(-self.hi, -self.lo)

    def plus(self, x: Number) -> Pair:
        """The sum with one number."""
        s = two_sum(self.hi, x)
        return quick_two_sum(s.hi, s.lo + self.lo)

    def times(self, x: Number) -> Pair:
        """The product with one number."""
        p = two_product(self.hi, x)
        return quick_two_sum(p.hi, fused(self.lo, x, p.lo))

    def value(self) -> Number:
        """The sum, rounded."""
        return self.hi + self.lo


def fused(x: Number, factor: Number, term: Number) -> Number:
    """x * factor + term, rounded once where the machine does so."""
    return x * factor + term if isinstance(x, np.ndarray) else x.fma(factor, term)


def two_sum(a: Number, b: Number) -> Pair:
    """a + b exactly."""
    s = a + b
    t = s - a
    return Pair(s, (a - (s - t)) + (b - t))


def quick_two_sum(a: Number, b: Number) -> Pair:
    """a + b exactly, for |a| >= |b|."""
    s = a + b
    return Pair(s, b - (s - a))


def two_product(a: Number, b: Number) -> Pair:
    """a * b exactly."""
    p = a * b
    if not isinstance(a, np.ndarray):
        return Pair(p, a.fma(b, -p))
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    return Pair(p, ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2)


def _halves(x: Number) -> tuple[Number, Number]:
    """A float64 as a sum of two of 26 digits each."""
    c = x * 134217729.0
    high = c - (c - x)
    return high, x - high


def two_quotient(a: Pair, b: Pair) -> Pair:
    """a / b to about twice the precision."""
    q = a.hi / b.hi
    p = two_product(q, b.hi)
    r = ((a.hi - p.hi) - p.lo) + (a.lo - q * b.lo)
    return quick_two_sum(q, r / b.hi)


def polynomial(x: Pair, coefficients: Sequence[float], low: Sequence[float]) -> Pair:
    """`c[0] + c[1]*x + ...` with `low` the rest of the first coefficients; those that follow need no more digits."""
    split = len(low)
    tail = x.hi * 0.0 + coefficients[-1]
    for c in coefficients[-2:split - 1:-1]:
        tail = fused(x.hi, tail, c)
    result = Pair(tail, tail * 0.0)
    for c, d in zip(coefficients[split - 1::-1], low[::-1], strict=True):
        product = result * x
        s = two_sum(product.hi, c)
        result = quick_two_sum(s.hi, s.lo + (product.lo + d))
    return result
