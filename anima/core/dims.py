"""Sizes that are not known: polynomials with integer coefficients over variables, quotients, remainders, maxima.

    a, b = variables of a scope;  (a + 1) * (a - 1) // 1 == a ** 2 - 1          str(b + 2 * a) == 'b + 2*a'

Every variable is at least 1, and keeps the constraints of its scope. A comparison is True or False if it is so for all
such values, otherwise it raises InconclusiveDimensionOperation; sizes are equal if they always are. While a function is
traced for one value of each variable, its sizes are of type `Dim`: numbers that know what they are the value of.
"""

from __future__ import annotations

import math
import operator
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from anima.config import make_user_context
from anima.core.simplex import least
from anima.core.size_terms import (
    Bounds,
    Indeterminate,
    Monomial,
    facts_of,
    interval,
    key,
    rewritten,
    rounded,
    times,
    without,
)
from anima.errors import InconclusiveDimensionOperation, UnexpectedDimVar

_INSIDE = ("anima", "numpy", "opt_einsum", "ml_dtypes")  # whose own questions an example answers
_MOST_DIVISIONS = 32


Size = Any  # an int or a SymbolicDim


here = make_user_context(None)  # the point that functions are traced for: what is traced there is used there alone


class SymbolicDim:
    """A size that is not known."""

    __slots__ = ("scope", "terms")

    def __init__(self, terms: Mapping[Monomial, int], scope: Any) -> None:
        self.terms = tuple(sorted(terms.items(), key=lambda pair: key(pair[0]), reverse=True))
        self.scope = scope

    @staticmethod
    def variable(name: str, scope: Any) -> SymbolicDim:
        return SymbolicDim({((Indeterminate(name), 1),): 1}, scope)

    def _of(self, terms: Mapping[Monomial, int]) -> Size:
        """The size with these terms: an int, if it is known."""
        left = {m: c for m, c in rewritten(terms, self.scope.rules).items() if c}
        return SymbolicDim(left, self.scope) if any(left) else left.get((), 0)

    def _terms_of(self, other: Any) -> dict[Monomial, int] | None:
        """The terms of another operand; None for what is no size. ValueError for one of another scope."""
        if isinstance(other, SymbolicDim):
            if other.scope is not self.scope:
                raise ValueError(
                    f"Invalid mixing of symbolic scopes: '{self}' is of {self.scope}, and '{other}' of "
                    f"{other.scope}. Make all shapes with one scope."
                )
            return dict(other.terms)
        return {(): int(other)} if isinstance(other, int) else None

    # ---------------------------------------------------------------- arithmetic

    def __add__(self, other: Any) -> Size:
        given = self._terms_of(other)
        if given is None:
            return NotImplemented
        total = dict(self.terms)
        for monomial, c in given.items():
            total[monomial] = total.get(monomial, 0) + c
        return self._of(total)

    def __mul__(self, other: Any) -> Size:
        given = self._terms_of(other)
        if given is None:
            return NotImplemented
        total: dict[Monomial, int] = {}
        for m, c in self.terms:
            for n, d in given.items():
                both = times(m, n)
                total[both] = total.get(both, 0) + c * d
        return self._of(total)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Size:
        return self * -1

    def __pos__(self) -> Size:
        return self

    def __abs__(self) -> Size:
        return max_size(self, -self)

    def __sub__(self, other: Any) -> Size:
        return NotImplemented if self._terms_of(other) is None else self + -1 * other

    def __rsub__(self, other: Any) -> Size:
        return NotImplemented if self._terms_of(other) is None else -1 * self + other

    def __pow__(self, power: Any, modulo: None = None) -> Size:
        if not isinstance(power, int):
            return NotImplemented
        if power < 0:
            raise ValueError(f"Symbolic dimension cannot be raised to negative powers: '{self}' ** '{power}'")
        return math.prod([self] * power)

    def __divmod__(self, other: Any) -> tuple[Size, Size]:
        given = self._terms_of(other)
        if given is None:
            return NotImplemented
        if not any(given.values()):
            raise ZeroDivisionError("integer division or modulo by zero")
        quotient, rest = _divided(self, given)
        if isinstance(rest, int) and (isinstance(other, int) or rest == 0):
            q, r = divmod(rest, other) if rest else (0, 0)
            return quotient + q, r
        q, r = [_known(self._of({((Indeterminate(name, (rest, other)), 1),): 1})) for name in ("floordiv", "mod")]
        return quotient + q, r

    def __rdivmod__(self, other: Any) -> tuple[Size, Size]:
        given = self._terms_of(other)
        if given is None:
            return NotImplemented
        return divmod(SymbolicDim(given, self.scope), self)

    def __floordiv__(self, other: Any) -> Size:
        return NotImplemented if self._terms_of(other) is None else divmod(self, other)[0]

    def __mod__(self, other: Any) -> Size:
        return NotImplemented if self._terms_of(other) is None else divmod(self, other)[1]

    def __rfloordiv__(self, other: Any) -> Size:
        return NotImplemented if self._terms_of(other) is None else divmod(other, self)[0]

    def __rmod__(self, other: Any) -> Size:
        return NotImplemented if self._terms_of(other) is None else divmod(other, self)[1]

    # ---------------------------------------------------------------- what is known

    def bounds(self) -> Bounds:
        """The least and the greatest value that it may have, as far as linear facts tell.

        ValueError if the constraints of its scope contradict each other.
        """
        known = self.scope.bounds.get(self.terms)
        if known is None:
            known = interval(self, SymbolicDim.bounds)
            if self.scope.limits or any(atom.parts for monomial, _ in self.terms for atom, _ in monomial):
                facts = facts_of(self)
                low, high = least(dict(self.terms), facts), -least(dict((-self).terms), facts)
                if low == math.inf or high == -math.inf:
                    raise ValueError(f"Unsatisfiable constraints: {', '.join(self.scope.constraints)}")
                known = max(known[0], rounded(math.ceil, low)), min(known[1], rounded(math.floor, high))
            self.scope.bounds[self.terms] = known
        return known

    def _compare(self, other: Any, sign: str, decide: Callable[[Bounds], bool | None]) -> Any:
        if self._terms_of(other) is None:
            return NotImplemented
        rest = self - other
        known = decide((rest, rest) if isinstance(rest, int) else rest.bounds())
        if known is None:
            raise InconclusiveDimensionOperation(
                f"Symbolic dimension comparison '{self}' {sign} '{other}' is inconclusive.\nIt is true for some values "
                "of the sizes, and false for others. Write it with lax.cond or jnp.where, or say what holds as "
                "constraints of the symbolic shape."
            )
        return known

    def __ge__(self, other: Any) -> bool:
        return self._compare(other, ">=", lambda b: True if b[0] >= 0 else False if b[1] < 0 else None)

    def __gt__(self, other: Any) -> bool:
        return self._compare(other, ">", lambda b: True if b[0] > 0 else False if b[1] <= 0 else None)

    def __le__(self, other: Any) -> bool:
        return self._compare(other, "<=", lambda b: True if b[1] <= 0 else False if b[0] > 0 else None)

    def __lt__(self, other: Any) -> bool:
        return self._compare(other, "<", lambda b: True if b[1] < 0 else False if b[0] >= 0 else None)

    def __eq__(self, other: Any) -> bool:
        if isinstance(other, SymbolicDim) and (self.scope is not other.scope or self.terms == other.terms):
            return self.scope is other.scope
        if self._terms_of(other) is None:
            return NotImplemented
        rest = self - other
        return (rest if isinstance(rest, int) else rest.bounds()) in (0, (0, 0))

    def __hash__(self) -> int:
        return hash(self.terms)

    def __bool__(self) -> bool:
        return True

    def __int__(self) -> int:
        raise InconclusiveDimensionOperation(
            f"Symbolic dimension '{self}' used in a context that requires a constant: it is not known."
        )

    __index__ = __int__

    def __jax_array__(self) -> int:
        return index_of(self)

    def __repr__(self) -> str:
        text = ""
        for monomial, c in self.terms:
            factors = [f"{a}^{power}" if power > 1 else str(a) for a, power in monomial]
            if abs(c) != 1 or not factors:
                factors.insert(0, str(abs(c)))
            text += (" - " if c < 0 else " + ") + "*".join(factors)
        return text.removeprefix(" + ").removeprefix(" ")

    # ---------------------------------------------------------------- values

    def choices(self) -> Iterator[SymbolicDim]:
        """Differences of what it has the larger or the smaller of: which one depends on whether they are above 0."""
        for monomial, _ in self.terms:
            for atom, _ in monomial:
                if atom.name in ("max", "min"):
                    yield atom.parts[0] - atom.parts[1]
                for part in atom.parts:
                    if isinstance(part, SymbolicDim):
                        yield from part.choices()

    def names(self) -> set[str]:
        """The variables in it."""
        return {name for monomial, _ in self.terms for a, _ in monomial for name in _names(a)}

    def at(self, values: Mapping[str, Size]) -> Size:
        """Its value, for values (sizes) of its variables. ZeroDivisionError where it has none."""
        return sum(c * math.prod(_value(a, values) ** power for a, power in m) for m, c in self.terms)


def _divided(dim: SymbolicDim, by: Mapping[Monomial, int]) -> tuple[Size, Size]:
    """The part of a quotient by these terms that is a polynomial, and what is left to be divided."""
    if len(by) > 1:
        exact = _exact_quotient(dim, by)
        return (0, dim) if exact is None else (exact, 0)
    ((divisor, d),) = by.items()
    out: dict[Monomial, int] = {}
    left: dict[Monomial, int] = {}
    for monomial, c in dim.terms:
        found = without(monomial, divisor)
        whole = found is not None
        q, r = divmod(c, d) if whole and not divisor else (c // d, 0) if whole and c % d == 0 else (0, c)
        if q:
            out[found or ()] = q
        if r:
            left[monomial] = r
    return dim._of(out), dim._of(left)


def _exact_quotient(dim: SymbolicDim, by: Mapping[Monomial, int]) -> Size | None:
    """The polynomial that is the quotient; None if it is none: the leading terms are divided, one after the other."""
    atoms = sorted({a for m in (*dict(dim.terms), *by) for a, _ in m}, key=str)

    def order(monomial: Monomial) -> Any:
        powers = dict(monomial)
        return sum(powers.values()), [powers.get(a, 0) for a in atoms]

    lead = max(by, key=order)
    divisor = SymbolicDim(by, dim.scope)
    quotient, rest = 0, dim
    for _ in range(_MOST_DIVISIONS):
        if isinstance(rest, int):
            return None if rest else quotient
        top = max(dict(rest.terms), key=order)
        factor, left = without(top, lead), dict(rest.terms)[top] % by[lead]
        if factor is None or left:
            return None
        term = dim._of({factor: dict(rest.terms)[top] // by[lead]})
        quotient, rest = term + quotient, rest - divisor * term
    return None


def _known(size: Size) -> Size:
    """A number, for a size that can be that one alone, as by a constraint."""
    if not isinstance(size, SymbolicDim):
        return size
    low, high = size.bounds() if size.scope.limits else interval(size)
    return int(low) if low == high else size


def _names(atom: Indeterminate) -> Iterator[str]:
    if not atom.parts:
        yield atom.name
    for part in atom.parts:
        if isinstance(part, SymbolicDim):
            yield from part.names()


def _value(atom: Indeterminate, values: Mapping[str, Size]) -> Size:
    if not atom.parts:
        return values[atom.name]
    x, y = [p.at(values) if isinstance(p, SymbolicDim) else p for p in atom.parts]
    return OPERATIONS[atom.name](x, y)


def _extreme(name: str, x: Size, y: Size) -> Size:
    """The maximum or minimum of two sizes."""
    if isinstance(x, Dim) or isinstance(y, Dim):
        point = x.point if isinstance(x, Dim) else y.point
        return point.dim(_extreme(name, _symbolic(x), _symbolic(y)))
    rest = x - y
    low, high = rest.bounds() if isinstance(rest, SymbolicDim) else (rest, rest)
    if low >= 0:
        return x if name == "max" else y
    if high <= 0:
        return y if name == "max" else x
    one = x if isinstance(x, SymbolicDim) else y
    return one._of({((Indeterminate(name, (x, y)), 1),): 1})


def max_size(x: Size, y: Size) -> Size:
    """The larger of two sizes."""
    return _extreme("max", x, y)


def min_size(x: Size, y: Size) -> Size:
    """The smaller of two sizes."""
    return _extreme("min", x, y)


OPERATIONS: dict[str, Callable[[Size, Size], Size]] = {
    "floordiv": lambda x, y: x // y,
    "mod": lambda x, y: x % y,
    "max": max_size,
    "min": min_size,
}


# ---------------------------------------------------------------- one value of each variable


class Point:
    """A value for each variable; `seen` are sizes that were computed of them, `asked` those of which it was asked
    whether they are more than 0, where sizes decide that, and `extremes` the larger and the smaller of what was
    compared."""

    def __init__(self, values: Mapping[str, int]) -> None:
        self.values = dict(values)
        self.seen: dict[SymbolicDim, None] = {}
        self.asked: dict[SymbolicDim, None] = {}
        self.extremes: dict[SymbolicDim, None] = {}

    def dim(self, size: Size) -> int:
        """A size here."""
        if not isinstance(size, SymbolicDim):
            return size
        self.seen[size] = None
        out = Dim(size.at(self.values))
        out.size, out.point = size, self
        return out

    def shape(self, shape: Iterable[Size]) -> tuple[int, ...]:
        return tuple(map(self.dim, shape))

    def compared(self, name: str, x: Size, y: Size) -> None:
        """Keeps a comparison whose result is not the same for all sizes."""
        more = {"__gt__": x - y, "__ge__": x - y + 1, "__lt__": y - x, "__le__": y - x + 1}[name]
        if isinstance(more, int) or more in self.asked:
            return
        low, high = more.bounds()
        if low <= 0 < high:
            self.asked[more] = None
            self.extremes |= {s: None for s in (max_size(x, y), min_size(x, y)) if isinstance(s, SymbolicDim)}


def _symbolic(x: int) -> Size:
    return x.size if isinstance(x, Dim) else int(x)


class Dim(int):
    """The value at a point of a size that is not known.

    What is computed of it by whole numbers is one, too. Anima's own comparisons are those of the value; the user's are
    those of the size, which may be inconclusive.
    """

    size: SymbolicDim
    point: Point

    def __str__(self) -> str:
        return str(self.size)

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __reduce__(self) -> Any:
        return int, (int(self),)


def index_of(x: Any) -> int:
    """`operator.index(x)`, which of a size keeps what it is the value of; of a size that the function closes over, that
    is its value at the point that the function is traced for."""
    if isinstance(x, SymbolicDim) and here.value is not None:
        if unknown := sorted(x.names() - here.value.values.keys()):
            raise UnexpectedDimVar(f"The size {x} has the dimension variables {', '.join(unknown)}, which are in no "
                                   "shape of the arguments.")
        return here.value.dim(x)
    return x if isinstance(x, Dim) else operator.index(x)


def least_size(size: int) -> float:
    """The least number that a size may be."""
    return size.size.bounds()[0] if isinstance(size, Dim) else size


def point_of(*given: Any) -> Point | None:
    """The point of the sizes in types or parameters; None if they are plain numbers, which sizes there are equal to."""
    for x in given:
        if isinstance(x, Dim):
            return x.point
        parts = x if isinstance(x, (tuple, list)) else getattr(x, "shape", ())
        if isinstance(parts, (tuple, list)) and (found := point_of(*parts)) is not None:  # a class has no sizes
            return found
    return None


def _add_arithmetic(name: str) -> None:
    plain = getattr(int, name)

    def operation(self: Dim, *others: Any) -> Any:
        value = plain(self, *others)
        if value is NotImplemented:
            return value
        found = getattr(self.size, name)(*map(_symbolic, others))
        return tuple(map(self.point.dim, found)) if isinstance(found, tuple) else self.point.dim(found)

    setattr(Dim, name, operation)


def _add_comparison(name: str) -> None:
    plain = getattr(int, name)

    def comparison(self: Dim, other: Any) -> Any:
        value = plain(self, other)
        if value is NotImplemented:
            return value
        if _asks_inside():
            self.point.compared(name, self.size, _symbolic(other))
            return value
        return getattr(self.size, name)(_symbolic(other))

    setattr(Dim, name, comparison)


def _same(x: SymbolicDim, y: SymbolicDim) -> bool:
    """Whether two sizes are equal wherever they were looked at, if not for reasons that are known."""
    if x == y:
        return True
    limits = x.scope.limits
    names = sorted(set().union(*(size.names() for size in (x, y, *limits))))
    rng = random.Random(0)
    for high in (9, 40, 200) * (20 if limits else 5):
        values = {name: rng.randint(1, high) for name in names}
        try:
            if x.at(values) != y.at(values) and all(limit.at(values) >= 0 for limit in limits):
                return False
        except ZeroDivisionError:
            continue
    return True


def _equal(self: Dim, other: Any) -> Any:
    equal = int.__eq__(self, other)
    return _same(self.size, other.size) if equal is True and isinstance(other, Dim) else equal


def _unequal(self: Dim, other: Any) -> Any:
    equal = _equal(self, other)
    return equal if equal is NotImplemented else not equal


def _is_not_zero(self: Dim) -> bool:
    """To Anima always, as of a `SymbolicDim`: what is left out of a program where a size is 0 does nothing there."""
    if _asks_inside():
        return True
    self.point.compared("__gt__", self.size, 0)
    return int(self) != 0


def _asks_inside() -> bool:
    """Whether a question about a size is Anima's own."""
    return sys._getframe(2).f_globals.get("__name__", "").partition(".")[0] in _INSIDE


Dim.__bool__ = _is_not_zero  # type: ignore[assignment]
Dim.__eq__, Dim.__ne__ = _equal, _unequal  # type: ignore[method-assign, assignment]  # the hash stays the number's
for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "rfloordiv", "mod", "rmod", "divmod", "rdivmod",
              "neg", "pos", "abs", "pow"):
    _add_arithmetic(f"__{_name}__")
for _name in ("ge", "gt", "le", "lt"):
    _add_comparison(f"__{_name}__")
