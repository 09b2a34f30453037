"""Between which numbers integers lie, as far as the operations that made them tell.

    i < 64:   (i + 1) & 63  in 0 .. 63        select(x < 0, x, x + 64), where 0 <= it < 64  ->  x in -64 .. 63

An index whose range is inside of the array needs no clamp and no check. In a branch, what its condition says holds,
also of what the values in the condition were made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from anima.compiler.ir.loops import INDEX, Affine, Const, Expr, Load, NamedValue, Op

Range = tuple[int, int]  # the least number and the largest

INTEGERS: dict[str, Range] = {
    **{f"i{bits}": (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for bits in (8, 16, 32, 64)},
    **{f"u{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
    INDEX: (-(1 << 63), (1 << 63) - 1)}
_ALL = {**INTEGERS, "bool": (0, 1)}
_OTHERWISE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}


class Ranges:
    """What is known of named values, where they are used."""

    def __init__(self) -> None:
        self._known: dict[str, Range] = {}
        self._made: dict[str, Expr] = {}
        self._supposed: dict[str, Range] = {}  # for a moment, see `_under`

    def copy(self) -> Ranges:
        """For a branch, in which more is known."""
        new = Ranges()
        new._known, new._made = dict(self._known), dict(self._made)
        return new

    def define(self, name: str, value: Expr) -> None:
        """Takes note of what a name stands for."""
        self._made[name] = value
        found = self._made_from(value)
        if found is not None:
            self._known[name] = found

    def set(self, value: Expr, lo: int, hi: int) -> bool:
        """Takes note of what is known otherwise of a value, if it is an integer that can have it; whether it is."""
        if type(value) is NamedValue and value.dtype in INTEGERS and _within((lo, hi), value.dtype):
            self._known[value.name] = lo, hi
            return True
        return False

    def of(self, value: Expr) -> Range:
        """The range of an integer value or condition."""
        if type(value) is Const:
            return int(value.value), int(value.value)
        if type(value) is NamedValue:
            found = self._supposed.get(value.name) or self._known.get(value.name)
            return found or _ALL[value.dtype]
        return self._made_from(value) or _ALL[value.dtype]

    def decided(self, name: str, args: tuple[Expr, ...]) -> bool | None:
        """What a comparison is, if ranges tell."""
        if name not in _OTHERWISE or args[0].dtype not in INTEGERS:
            return None
        (a, b), (c, d) = self.of(args[0]), self.of(args[1])
        if name in ("gt", "le"):
            (a, b), (c, d) = (c, d), (a, b)
        always, never = b < c, a >= d  # that the first is less than the second
        if not always and not never:
            return None
        return always == (name in ("lt", "gt"))

    # ---------------------------------------------------------------- conditions

    def suppose(self, condition: Expr, holds: bool = True) -> None:
        """From here on, the condition holds, or does not."""
        self._suppose(condition, holds, self._known)

    def _suppose(self, condition: Expr, holds: bool, into: dict[str, Range]) -> None:
        made = self._made.get(condition.name) if type(condition) is NamedValue else condition
        if type(made) is not Op:
            return
        if made.name == "not":
            self._suppose(made.args[0], not holds, into)
        elif made.name == ("and" if holds else "or") and made.dtype == "bool":
            for part in made.args:
                self._suppose(part, holds, into)
        elif made.name in _OTHERWISE and made.args[0].dtype in INTEGERS:
            name = made.name if holds else _OTHERWISE[made.name]
            x, y = made.args
            (a, b), (c, d) = self.of(x), self.of(y)
            less = int(name in ("lt", "gt"))
            if name in ("gt", "ge"):
                self._narrow(x, c + less, b, into)
                self._narrow(y, c, b - less, into)
            else:
                self._narrow(x, a, d - less, into)
                self._narrow(y, a + less, d, into)

    def _narrow(self, value: Expr, lo: int, hi: int, into: dict[str, Range]) -> None:
        """A value is in this range, and what it was made of is where it makes that."""
        if type(value) is not NamedValue:
            return
        least, most = self.of(value)
        lo, hi = max(lo, least), min(hi, most)
        if lo > hi or (lo, hi) == (least, most):  # nothing comes here, or nothing is new
            return
        into[value.name] = lo, hi
        made = self._made.get(value.name)
        if type(made) is not Op:
            return
        if made.name == "cast" and made.args[0].dtype in INTEGERS:
            if _within(self.of(made.args[0]), made.dtype):
                self._narrow(made.args[0], lo, hi, into)
            return
        counted = from_the_end(made, self._made)
        if counted is not None:
            self._narrow(counted[0], lo - counted[1], hi, into)

    # ---------------------------------------------------------------- operations

    def _made_from(self, value: Expr) -> Range | None:
        """The range of a value from those of what it is made of; None where the type says it all."""
        if value.dtype not in INTEGERS:
            return None
        if type(value) is Affine:
            found = value.const, value.const
            for term, by in value.terms:
                a, b = self.of(term)
                found = (found[0] + (a if by > 0 else b) * by, found[1] + (b if by > 0 else a) * by)
        elif type(value) is Op:
            if any(a.dtype not in _ALL for a in value.args):
                return None
            rule = _RULES.get(value.name)
            if value.name == "select_n":
                ranges = self._arms(value)
            elif rule is None:
                return None
            else:
                ranges = rule(*[self.of(a) for a in value.args])
            if ranges is None:
                return None
            found = ranges
        else:
            return None if type(value) is Load else self.of(value)
        return found if _within(found, value.dtype) else None

    def _arms(self, value: Op) -> Range | None:
        which, *arms = value.args
        if which.dtype != "bool":
            ranges = [self.of(a) for a in arms]
        else:
            ranges = []
            for arm, holds in zip(arms, (False, True), strict=True):
                with self._under(which, holds):
                    made = self._made.get(arm.name) if type(arm) is NamedValue else None
                    a, b = self.of(arm)
                    c, d = (self._made_from(made) if type(made) is Op and made.name != "select_n" else None) or (a, b)
                    ranges.append((max(a, c), min(b, d)))
        return min(a for a, _ in ranges), max(b for _, b in ranges)

    @contextmanager
    def _under(self, condition: Expr, holds: bool) -> Iterator[None]:
        before = self._supposed
        supposed = dict(before)
        self._suppose(condition, holds, supposed)
        self._supposed = supposed
        yield
        self._supposed = before


def from_the_end(value: Op, made: Mapping[str, Expr]) -> tuple[Expr, int] | None:
    """x and c > 0 if a value is `select(x < 0, x, x + c)`; `made` has what names stand for."""
    if value.name != "select_n" or len(value.args) != 3:
        return None
    which, x, more = value.args
    negative, above = (made.get(v.name) if type(v) is NamedValue else None for v in (which, more))
    if (type(negative) is Op and negative.name == "lt" and negative.args == (x, Const(0, x.dtype))
            and type(above) is Op and above.name == "add" and above.args[0] == x):
        number = above.args[1]
        if type(number) is Const and number.value > 0:
            return x, int(number.value)
    return None


def brought_inside(value: Expr, made: Mapping[str, Expr]) -> tuple[NamedValue, int, Expr] | None:
    """Of an index that is `min(max(x, 0), size - 1)`: an integer that it is if that is in 0 .. size - 1 (x, or what x
    was before it was counted from the end), the size, and the index, made of that integer alone. `made` as above."""
    match value:
        case Op(name="min", args=(Op(name="max", args=(NamedValue() as x, Const(value=0) as least)), Const() as most)):
            pass
        case _:
            return None
    match made.get(x.name):
        case Op(name="cast", args=(NamedValue() as either,)) as cast if type(chosen := made.get(either.name)) is Op:
            counted = from_the_end(chosen, made)
            if counted is not None and type(raw := counted[0]) is NamedValue and raw.name in made:
                above = counted[1]
                below, over = Op("lt", (raw, Const(0, raw.dtype)), "bool"), Const(above, raw.dtype)
                wrapped = Op("select_n", (below, raw, Op("add", (raw, over), raw.dtype)), raw.dtype)
                inside = Op("max", (Op("cast", (wrapped,), cast.dtype), least), value.dtype)
                return raw, int(most.value) + 1, Op("min", (inside, most), value.dtype)
    return x, int(most.value) + 1, value


def _within(found: Range, dtype: str) -> bool:
    """Whether values of a range are values of the type: otherwise they wrap."""
    least, most = _ALL[dtype]
    return least <= found[0] and found[1] <= most


def _products(x: Range, y: Range) -> Range:
    ends = [a * b for a in x for b in y]
    return min(ends), max(ends)


def _rest(x: Range, y: Range) -> Range | None:
    """Of a division that rounds to zero; of one by zero there is no telling."""
    if y[0] <= 0:
        return None
    most = y[1] - 1
    return max(-most, min(x[0], 0)), min(most, max(x[1], 0))


def _common_bits(x: Range, y: Range) -> Range | None:
    most = [b for a, b in (x, y) if a >= 0]
    return (0, min(most)) if most else None


def _any_bits(x: Range, y: Range) -> Range | None:
    """Of numbers that are not negative: as many bits as the longer has."""
    return (0, (1 << max(x[1], y[1]).bit_length()) - 1) if min(x[0], y[0]) >= 0 else None


def _quotients(x: Range, y: Range) -> Range | None:
    """Of a division by positive numbers, which rounds down, or to zero."""
    if y[0] <= 0:
        return None
    ends = [a // b for a in x for b in y]
    return min(ends), max(ends) if x[1] >= 0 else 0


_RULES: dict[str, Callable[..., Range | None]] = {
    "cast": lambda x: x,
    "add": lambda x, y: (x[0] + y[0], x[1] + y[1]), "sub": lambda x, y: (x[0] - y[1], x[1] - y[0]),
    "mul": _products, "neg": lambda x: (-x[1], -x[0]), "div": _quotients, "rem": _rest,
    "and": _common_bits, "or": _any_bits, "xor": _any_bits,
    "min": lambda x, y: (min(x[0], y[0]), min(x[1], y[1])), "max": lambda x, y: (max(x[0], y[0]), max(x[1], y[1])),
    "shift_right_logical": lambda x, y: (x[0] >> y[0], x[1] >> y[0]) if x[0] >= 0 and y[0] == y[1] < 64 else None,
}
