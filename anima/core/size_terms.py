"""What sizes that are not known consist of, and what the parts tell of their values.

A size is a sum of products of variables and of operations that are no polynomials, each with a whole number: its terms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from anima.core.simplex import NUMBER, Form

Bounds = tuple[float, float]
_MOST_MONOMIALS = 24  # that facts are looked for of
_MOST_REWRITES = 50   # of one size


class Indeterminate(NamedTuple):
    """A variable (`parts` are empty) or an operation of two sizes that is no polynomial."""

    name: str
    parts: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.parts))})" if self.parts else self.name


Monomial = tuple[tuple[Indeterminate, int], ...]  # atoms with their powers, by name


Rule = tuple[Monomial, Mapping[Monomial, int]]  # a product, and the terms of what stands for it


def rewritten(terms: Mapping[Monomial, int], rules: list[Rule]) -> Mapping[Monomial, int]:
    """Terms with what stands for products in their places."""
    for _ in range(_MOST_REWRITES):
        found = next(((monomial, rest, new) for monomial in terms for old, new in rules
                      if (rest := without(monomial, old)) is not None), None)
        if found is None:
            break
        monomial, rest, new = found
        terms = dict(terms)
        c = terms.pop(monomial)
        for m, d in new.items():
            product = times(rest, m)
            terms[product] = terms.get(product, 0) + c * d
    return terms


def times(x: Monomial, y: Monomial) -> Monomial:
    """A product of two products."""
    powers = dict(x)
    for atom, power in y:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=lambda pair: key((pair,))))


def key(monomial: Monomial) -> Any:
    return [(bool(a.parts), str(a), power) for a, power in monomial]


def without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """A quotient of two products; None if it is no product."""
    powers = dict(monomial)
    for atom, power in divisor:
        powers[atom] = powers.get(atom, 0) - power
    return None if min(powers.values(), default=0) < 0 else tuple((a, p) for a, p in powers.items() if p)


def rounded(towards: Callable[[Any], int], x: Any) -> float:
    return x if math.isinf(x) else towards(x)


def facts_of(dim: Any) -> list[Form]:
    """What is never negative, and has to do with a size: constraints, and what holds of the products in it."""
    facts: list[Any] = [dict(limit.terms) for limit in dim.scope.limits]
    waiting: list[Any] = [m for form in [dict(dim.terms), *facts] for m in form]
    met: set[Any] = {NUMBER}
    while waiting and len(met) <= _MOST_MONOMIALS:
        monomial = waiting.pop(0)
        if monomial in met:
            continue
        met.add(monomial)
        low, high = interval(type(dim)({monomial: 1}, dim.scope))
        found: list[Form] = [{monomial: 1, NUMBER: -int(low)}] if low > -math.inf else []
        found += [{monomial: -1, NUMBER: int(high)}] if high < math.inf else []
        for atom, _ in monomial:
            found += [dict(s.terms) for s in _facts_of_atom(atom, dim) if not isinstance(s, int)]
        facts += found
        waiting += [m for form in found for m in form]
    return facts


def _facts_of_atom(atom: Indeterminate, dim: Any) -> list[Any]:
    """Sizes that are never negative, by what an operation is."""
    if not atom.parts:
        return []
    own = type(dim)({((atom, 1),): 1}, dim.scope)
    x, y = atom.parts
    if atom.name == "max":
        return [own - x, own - y]
    if atom.name == "min":
        return [x - own, y - own]
    quotient = type(dim)({((Indeterminate("floordiv", atom.parts), 1),): 1}, dim.scope)
    rest = x - y * quotient
    found = [rest - own, own - rest] if atom.name == "mod" else []
    low_x, low_y = [interval(p)[0] if not isinstance(p, int) else p for p in (x, y)]
    if low_y > 0:
        found += [rest, y - 1 - rest]
        found += [x - own] if low_x >= 0 else []
    return found


def _times(x: float, y: float) -> float:
    return x * y if x and y else 0


def interval(dim: Any, of_parts: Callable[[Any], Bounds] | None = None) -> Bounds:
    """The sum of the bounds of the terms; `of_parts` gives those of what operations are of."""
    low = high = 0.0
    for monomial, c in dim.terms:
        a, b = 1.0, 1.0
        for atom, power in monomial:
            lo, hi = _atom_bounds(atom, of_parts or interval)
            for _ in range(power):
                ends = [_times(x, y) for x in (a, b) for y in (lo, hi)]
                a, b = min(ends), max(ends)
            if power % 2 == 0:
                a = max(a, 0) if len(monomial) == 1 else a
        low, high = low + min(_times(a, c), _times(b, c)), high + max(_times(a, c), _times(b, c))
    return low, high


def _atom_bounds(atom: Indeterminate, of_parts: Callable[[Any], Bounds]) -> Bounds:
    if not atom.parts:
        return 1, math.inf
    (a, b), (c, d) = [of_parts(p) if not isinstance(p, int) else (p, p) for p in atom.parts]
    if atom.name == "max":
        return max(a, c), max(b, d)
    if atom.name == "min":
        return min(a, c), min(b, d)
    if c <= 0:
        return -math.inf, math.inf
    if atom.name == "mod":
        return 0, d - 1
    ends = [
        -1.0 if x < 0 and y == math.inf else 0.0 if y == math.inf else x if math.isinf(x) else x // y
        for x in (a, b)
        for y in (c, d)
    ]
    return min(ends), max(ends)
