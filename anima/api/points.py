"""Sizes that are not known, by a few values of them.

    traced at (a, b) = (11, 13):  a result of shape (24, 143)
    traced at (17, 19):           a result of shape (36, 323)      so that it is (a + b, a*b)

A function is traced at three points, and at more: for each comparison of sizes on either side of it. A number that
differs between them must be one of the sizes that were computed while it was traced or the larger or smaller one of
what was compared, a product, sum or difference of two, or linear in one; otherwise `Fit` refuses it. What is the same
at all of these may still depend on sizes, in ways that nothing here sees, as by NumPy's functions of them: so it is
looked at much smaller and much larger sizes, too.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from anima import tree
from anima.api.stages import ShapeDtypeStruct
from anima.core.dims import Point, Size, SymbolicDim, here
from anima.errors import InconclusiveDimensionOperation

_PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107)
POINTS = 3
_MOST_POINTS = 12
_MOST_SIZE = 1 << 22  # that a comparison is looked at for, in arguments of at most ...
_MOST_GIVEN = 1 << 24  # ... so many elements: functions of NumPy may make as many
_TRIES = 4000
_FURTHER = ((1, 4), (200, 400), (3000, 3300))  # where else a function is looked at: sizes, of each variable, ...
_MOST_ELEMENTS = 1 << 21                         # ... whose product is at most this one
_FEW = (2, 2)  # values of some variables, where the others are larger
Number = Callable[[Mapping[str, int]], Any]  # a number for values of the variables


def is_symbolic(x: Any) -> bool:
    """Whether an argument is a type with sizes that are not known."""
    return isinstance(x, ShapeDtypeStruct) and any(isinstance(n, SymbolicDim) for n in x.shape)


def symbolic_sizes(shapes: Iterable[Sequence[Size]]) -> list[SymbolicDim]:
    """Those that are not known. ValueError if their scopes are several."""
    found = list(dict.fromkeys(n for shape in shapes for n in shape if isinstance(n, SymbolicDim)))
    for size in found:
        if size.scope is not found[0].scope:
            raise ValueError(
                f"Invalid mixing of symbolic scopes: '{found[0]}' is of {found[0].scope}, and '{size}' of "
                f"{size.scope}. Make all shapes with one scope."
            )
    return found


def points_of(sizes: Sequence[SymbolicDim], seen: Sequence[SymbolicDim] = ()) -> list[Point]:
    """Points at which all sizes, and what the constraints of their scope say, are as they may be; of many, those that
    tell the most of the sizes that were `seen` from each other and from numbers.

    ValueError if there is none.
    """
    scope = sizes[0].scope
    names = sorted(set().union(*(s.names() for s in [*sizes, *scope.limits])))
    found: list[dict[str, int]] = []
    best, most = found, -1
    for values in _guesses(names, _TRIES // 8 if seen else _TRIES):
        if _may_be(values, sizes) and values not in found[-POINTS:]:
            found.append(values)
            last = found[-POINTS:]
            told = _told_apart(last, seen)
            if len(last) == POINTS and told > most:
                best, most = last, told
                if told == len(seen):
                    break
    if not found:
        raise ValueError(
            f"There are no sizes {', '.join(names)} with the constraints {', '.join(scope.constraints)} "
            "(none was found, at least)."
        )
    return list(map(Point, best[:POINTS]))


def _told_apart(points: Sequence[Mapping[str, int]], seen: Sequence[SymbolicDim]) -> int:
    """How many sizes differ from each other, and from numbers, at some of the points; -1 if one has no value."""
    try:
        return len({row for size in seen if len(set(row := tuple(size.at(p) for p in points))) > 1})
    except ZeroDivisionError:
        return -1


def _guesses(names: Sequence[str], tries: int) -> Iterator[dict[str, int]]:
    """Numbers that are nothing by chance first, odd and even; then more and more of the values from 1 on."""
    for k, times in enumerate((1, 2, 3)):
        row = [times * _PRIMES[(k * len(names) + n) % len(_PRIMES)] for n in range(len(names))]
        yield dict(zip(names, row, strict=True))
    rng = random.Random(0)
    for low, high in ((2, 12), (5, 60), (2, 400), (1, 12), (100, 100_000)):
        for _ in range(tries):
            yield {name: rng.randint(low, high) for name in names}


def at_point(x: Any, point: Point) -> Any:
    """A type with the sizes that it has at a point; anything else as it is."""
    return x.update(shape=point.shape(x.shape)) if is_symbolic(x) else x


class Fit:
    """What numbers at a few points are at others: sizes out of `seen`, or linear in one of them."""

    def __init__(self, points: Sequence[Mapping[str, int]], seen: Iterable[SymbolicDim]) -> None:
        self.points = points
        self.sizes: dict[tuple[int, ...], SymbolicDim] = {}
        known = list(dict.fromkeys(seen))
        pairs = [p * q for p, q in itertools.combinations_with_replacement(known[:32], 2)]
        wholes = [p for p in [*known, *pairs] if isinstance(p, SymbolicDim)]
        halves = [half for p in wholes for half in (p // 2, (p + 1) // 2) if isinstance(half, SymbolicDim)]
        for size in (*wholes, *halves):
            try:
                self.sizes.setdefault(tuple(int(size.at(p)) for p in points), size)
            except ZeroDivisionError:
                continue

    def size(self, values: Sequence[int]) -> Size | None:
        """The size that has these values; None for none."""
        if len(set(values)) == 1:
            return values[0]
        found = self.sizes.get(tuple(values))
        if found is not None:
            return found
        for at, size in self.sizes.items():
            line = _line(at, values)
            if line is not None and line[0].denominator == line[1].denominator == 1:
                return size * int(line[0]) + int(line[1])
        return self._of_two(values)

    def _of_two(self, values: Sequence[int]) -> Size | None:
        """The sum or difference of two sizes, and a number, that has these values."""
        if len(values) <= POINTS:  # of which there are some for any values
            return None
        for (one, x), (two, y) in itertools.combinations([*self.sizes.items()][:64], 2):
            for sign in (1, -1):
                rest = [v - a - sign * b for v, a, b in zip(values, one, two, strict=True)]
                if len(set(rest)) == 1:
                    return x + sign * y + rest[0]
                rest = [v + a - sign * b for v, a, b in zip(values, one, two, strict=True)]
                if len(set(rest)) == 1:
                    return sign * y - x + rest[0]
        return None

    def number(self, values: Sequence[Any], dtype: np.dtype) -> Number | None:
        """What has these values of an element type; None for what is none of: a size, linear in one, its inverse."""
        if np.issubdtype(dtype, np.integer):
            size = self.size([int(v) for v in values])
            return None if size is None else lambda p: _at(size, p)
        if dtype.kind not in "fV":
            return None
        exact = [float(v) for v in values]
        if not np.all(np.isfinite(exact)):
            return None
        for at, size in self.sizes.items():
            for power in (1, -1):
                for scale in _scales(exact[0], at[0], power):
                    number = partial(_power, size, power, scale)
                    if self._is_at_points(number, values, dtype):
                        return number
        for at, size in self.sizes.items():
            line = _line(at, exact)
            if line is not None:
                return partial(_on_line, size, *line)
        return None

    def _is_at_points(self, number: Number, values: Sequence[Any], dtype: np.dtype) -> bool:
        try:
            return all(np.asarray(number(p)).astype(dtype) == v for p, v in zip(self.points, values, strict=True))
        except ZeroDivisionError:
            return False


def _scales(value: float, at: int, power: int) -> tuple[float, ...]:
    """What `at ** power` may have been multiplied by: simple numbers first, as `value` is rounded."""
    scale = value / float(at) ** power if at else 0.0
    simple = float(Fraction(scale).limit_denominator(64))
    return tuple(s for s in (simple, scale) if s)


def _power(size: Size, power: int, scale: float, values: Mapping[str, int]) -> float:
    return scale * float(_at(size, values)) ** power


def _on_line(size: Size, slope: Fraction, height: Fraction, values: Mapping[str, int]) -> float:
    return float(slope * _at(size, values) + height)


def _at(size: Size, values: Mapping[str, int]) -> int:
    return size.at(values) if isinstance(size, SymbolicDim) else size


def _line(xs: Sequence[int], ys: Sequence[Any]) -> tuple[Fraction, Fraction] | None:
    """Slope and height of the line through all points, of which there are three or more; None if there is none."""
    other = next((k for k, x in enumerate(xs) if x != xs[0]), None)
    if len(xs) < POINTS or other is None:
        return None
    slope = Fraction(Fraction(ys[other]) - Fraction(ys[0])) / (xs[other] - xs[0])
    height = Fraction(ys[0]) - slope * xs[0]
    return (slope, height) if all(slope * x + height == Fraction(y) for x, y in zip(xs, ys, strict=True)) else None


class Tried(NamedTuple):
    """What a function gives where it was traced, the points where it raised an error instead, and others with what it
    gives there, or its error."""

    points: list[Point]
    found: list[Any]
    failed: list[tuple[Point, Exception]]
    further: list[tuple[Point, Any]]

    @property
    def seen(self) -> list[SymbolicDim]:
        """Sizes that were computed anywhere, and then extremes of what was compared."""
        return list(dict.fromkeys([*itertools.chain(*(p.seen for p in self.points)),
                                   *itertools.chain(*(p.extremes for p in self.points))]))

    def asked(self) -> dict[SymbolicDim, None]:
        """Sizes that decide something by being more than 0, or not."""
        met = [*self.points, *(point for point, _ in self.failed)]
        return dict.fromkeys(itertools.chain(*(p.asked for p in met), *(s.choices() for p in met for s in p.seen)))

    def add(self, point: Point, at: Callable[[Point], Any]) -> None:
        """Tries the function at another point."""
        try:
            self.found.append(at(point))
            self.points.append(point)
        except Exception as error:
            self.failed.append((point, error))


def at_points(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
              check: Callable[[Tried], None] = lambda tried: None) -> Tried:
    """What `fun` gives at points for the sizes of the arguments that are not known: three, that `check` may refuse, and
    as many as it takes for every comparison of sizes to have all of its results (up to a dozen).

    Raises:
      ValueError: for sizes of several scopes, or that cannot be.
    """
    leaves, structure = tree.flatten((args, kwargs))
    sizes = symbolic_sizes(x.shape for x in leaves if is_symbolic(x))
    counts = [n for x in leaves if is_symbolic(x) and isinstance(n := math.prod(x.shape), SymbolicDim)]

    def at(point: Point) -> Any:
        given, named = structure.unflatten([at_point(x, point) for x in leaves])
        with here(point):
            return fun(*given, **named)

    points = points_of(sizes)
    tried = Tried(points, [at(point) for point in points], [], [])
    while True:
        seen = [*points[0].seen]
        told = _told_apart([p.values for p in points], seen)
        others = points if told == len(seen) else points_of(sizes, seen)
        if _told_apart([p.values for p in others], seen) <= told:  # what is left is the same everywhere
            break
        points = others
        try:
            tried = Tried(points, [at(point) for point in points], [], [])
        except Exception:  # the function is none of such sizes
            break
    check(tried)
    if len(tried.points) == POINTS and (len(points[0].values) > 1 or tried.asked()):
        tried.add(_another(sizes, [p.values for p in tried.points], seen), at)
    while len(tried.points) + len(tried.failed) < _MOST_POINTS and (point := _undecided(tried, sizes, counts)):
        tried.add(point, at)
    for values in _further(sizes, [p.values for p in tried.points]):
        try:
            tried.further.append((point := Point(values), at(point)))
        except Exception as error:
            tried.further.append((point, error))
    return tried


def _further(sizes: Sequence[SymbolicDim], points: Sequence[Mapping[str, int]]) -> Iterator[dict[str, int]]:
    """Values that are much smaller and much larger than those of most points, and of several variables, than others."""
    rng, most = random.Random(1), int(_MOST_ELEMENTS ** (1 / len(points[0])))
    mixed = [(_FEW, _FURTHER[1]), (_FURTHER[1], _FEW)] if len(points[0]) > 1 else []
    for ranges in dict.fromkeys(
            tuple((max(min(low, most // 2), 1), min(high, most)) for low, high in ranges)
            for ranges in [*zip(_FURTHER, strict=True), *mixed]):
        turns = list(zip(points[0], itertools.cycle(ranges), strict=False))
        guesses = ({name: rng.randint(*ends) for name, ends in turns} for _ in range(_TRIES // 20))
        values = next((g for g in guesses if _may_be(g, sizes) and g not in points), None)
        if values is not None:
            yield values


def _another(sizes: Sequence[SymbolicDim], points: Sequence[Mapping[str, int]], seen: Sequence[SymbolicDim]) -> Point:
    """A further point, at which sizes differ that are related at the first ones, as by being odd and even together."""
    names = [*points[0]]

    def told(values: Mapping[str, int]) -> int:
        rows = [tuple(p[name] % 2 for p in (*points, values)) for name in names]
        return len(set(rows)) + _told_apart([*points, values], seen)

    guesses = [dict(p) for p in points[:1]] + [g for g in _guesses(names, 40) if _may_be(g, sizes) and g not in points]
    return Point(max(guesses, key=told))


def _undecided(tried: Tried, sizes: Sequence[SymbolicDim], counts: Sequence[SymbolicDim]) -> Point | None:
    """A point where comparisons have results that they had at one other at most, as many as possible; None for none.
    `counts` are the numbers of elements of arguments."""
    met = [*tried.points, *(point for point, _ in tried.failed)]
    asked = tried.asked()
    wanted = []
    for more in asked:
        results = [_is_more(more, p.values) for p in met]
        wanted += [(more, result) for result in (True, False) if results.count(result) < 2]
    if not wanted:
        return None
    best, most = None, 0
    for values in _near(wanted, _candidates(sizes, asked), sizes):
        count = sum(_is_more(more, values) is result for more, result in wanted)
        if (count > most and all(values.items() - p.values.items() for p in met)
                and all(n.at(values) <= _MOST_GIVEN for n in counts)):
            best, most = values, count
            if count == len(wanted):
                break
    return None if best is None else Point(best)


def _is_more(size: SymbolicDim, values: Mapping[str, int]) -> bool | None:
    """Whether a size is more than 0; None where it has no value."""
    try:
        return bool(size.at(values) > 0)
    except ZeroDivisionError:
        return None


def _candidates(sizes: Sequence[SymbolicDim], asked: Iterable[SymbolicDim]) -> Iterator[dict[str, int]]:
    names = sorted(set().union(*(s.names() for s in [*sizes, *sizes[0].scope.limits, *asked])))
    return _guesses(names, _TRIES // 20)


def _near(wanted: Sequence[tuple[SymbolicDim, bool]], guesses: Iterable[dict[str, int]],
          sizes: Sequence[SymbolicDim]) -> Iterator[dict[str, int]]:
    """Values that may be: guesses, then such with one of them moved to where a comparison has another result."""
    kept = []
    for values in guesses:
        if _may_be(values, sizes):
            kept.append(values)
            yield values
    for values in kept[:8]:
        for more, _ in wanted:
            for name in sorted(more.names()):
                for n in _roots(more, name, values):
                    if 0 < n <= _MOST_SIZE and _may_be(moved := {**values, name: n}, sizes):
                        yield moved


def _roots(size: SymbolicDim, name: str, values: Mapping[str, int]) -> list[int]:
    """Values of one variable around the one for which a size would be 0 if it were linear in it."""
    try:
        low, high = (size.at({**values, name: n}) for n in (1000, 2000))
    except ZeroDivisionError:
        return []
    if low == high:
        return []
    root = 1000 - low * 1000 // (high - low)
    return [root + far for far in (0, 1, -1, 7, -7, 40, -40)]


def _may_be(values: Mapping[str, int], sizes: Sequence[SymbolicDim]) -> bool:
    try:
        return all(s.at(values) >= 0 for s in (*sizes[0].scope.limits, *sizes))
    except ZeroDivisionError:
        return False


def symbolic_results(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The types of `fun`'s results, `fun` giving those for arguments of known sizes, for sizes that are not known.

    Raises:
      InconclusiveDimensionOperation: where results are of sizes that are none of the arguments'.
    """
    tried = at_points(fun, args, kwargs)
    found, fit = tried.found, Fit([p.values for p in tried.points], tried.seen)
    outs, out_tree = tree.flatten(found[0])
    others = [tree.leaves(f) for f in found]
    shapes = [fit_shape(fit, [x[k].shape for x in others]) for k in range(len(outs))]
    for point, result in tried.further:
        if isinstance(result, Exception):
            continue
        if [[*map(int, x.shape)] for x in tree.leaves(result)] != [[*map(int, point.shape(s))] for s in shapes]:
            raise InconclusiveDimensionOperation(
                f"The sizes of results depend on the values of sizes that are not known: what they are for "
                f"{fit.points} is wrong for {point.values}.")
    return out_tree.unflatten([o.update(shape=shape) for o, shape in zip(outs, shapes, strict=True)])


def fit_shape(fit: Fit, shapes: Sequence[Sequence[int]]) -> tuple[Size, ...]:
    """The shape that is this one at each point; InconclusiveDimensionOperation if there is none."""
    if len({len(s) for s in shapes}) > 1:
        raise InconclusiveDimensionOperation(
            f"The rank of a result depends on sizes that are not known: it has the shapes {shapes}.")
    out = []
    for sizes in zip(*shapes, strict=True):
        size = fit.size([int(n) for n in sizes])
        if size is None:
            raise InconclusiveDimensionOperation(
                f"The size of a result is not found: it is {sizes} where the variables are {fit.points}. "
                "Compute it from the sizes of the arguments by +, -, *, //, % alone."
            )
        out.append(size)
    return tuple(out)
