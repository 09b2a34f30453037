"""Index arithmetic: integer expressions over loop indices, kept in a normal form with known bounds.

An `Index` is `const + sum(coefficient * atom)`; an atom is a loop index, or something not linear (a
quotient, a remainder, a loaded integer). The normal form is what makes reshapes disappear:

    i < 4096, j < 1024:   (i*1024 + j) / 1024  ->  i        (i*1024 + j) % 1024  ->  j
    m < 4194304:          (m/1024)*1024 + m%1024  ->  m

Within one `Indexer` equal indices are one object, so that they can be compared and hashed by identity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from anima.compiler.ir.loops import INDEX, Const, Expr, NamedValue, Op, affine, normal

TRUE, FALSE = Const(True, "bool"), Const(False, "bool")


class IndexAtom:
    """A loop index or another integer expression, with bounds `lo <= atom <= hi`.

    `level` is the number of loops that it depends on; `source` is ("div" or "rem", index, divisor) or None.
    """

    __slots__ = ("expr", "hi", "level", "lo", "number", "source", "twin")

    def __init__(self, number: int, expr: Expr, lo: int, hi: int, level: int, source: Any = None):
        self.number = number
        self.expr = expr
        self.lo = lo
        self.hi = hi
        self.level = level
        self.source = source
        self.twin = False  # whether there is another for this expression, of which less or more was known


class Index:
    """`const + sum(coefficient * atom)`, made by an `Indexer`."""

    __slots__ = ("_expr", "const", "hi", "level", "lo", "nonlinear", "terms")

    def __init__(self, const: int, terms: tuple[tuple[IndexAtom, int], ...]):
        self.const = const
        self.terms = terms
        self.lo = const
        self.hi = const
        self.level = 0
        self.nonlinear = False
        for atom, coefficient in terms:
            low, high = atom.lo * coefficient, atom.hi * coefficient
            self.lo += low if coefficient > 0 else high
            self.hi += high if coefficient > 0 else low
            if atom.level > self.level:
                self.level = atom.level
            if atom.source is not None:
                self.nonlinear = True
        self._expr: Expr | None = None

    def coefficient(self, atom: IndexAtom) -> int:
        """What `atom` is multiplied by."""
        for a, c in self.terms:
            if a is atom:
                return c
        return 0

    def mentions(self, atom: IndexAtom) -> bool:
        """Whether `atom` occurs, be it inside of a quotient."""
        return any(a is atom or (a.source is not None and a.source[1].mentions(atom)) for a, _ in self.terms)

    def expr(self) -> Expr:
        """The index as an expression of the loop IR."""
        if self._expr is None:
            if any(a.twin for a, _ in self.terms):
                self._expr = affine(self.const, *((a.expr, c) for a, c in self.terms))
            else:
                self._expr = normal([a.expr for a, _ in self.terms], [c for _, c in self.terms], self.const)
        return self._expr


class Indexer:
    """Makes and simplifies indices. `used` records those that went into code, for `KernelBuilder` to study."""

    def __init__(self) -> None:
        self._known: dict[Any, Index] = {}
        self._atoms: dict[Any, IndexAtom] = {}
        self._first: dict[Expr, IndexAtom] = {}
        self._count = 0
        self.zero = self.const(0)

    def _make(self, const: int, terms: tuple[tuple[IndexAtom, int], ...]) -> Index:
        key = (const, terms)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Index(const, terms)
        return found

    def const(self, value: int) -> Index:
        return self._make(value, ())

    def atom(self, expr: Expr, lo: int, hi: int, level: int, source: Any = None) -> IndexAtom:
        """The atom for an expression."""
        key = (expr, lo, hi) if source is None else source  # in a branch, more may be known of it
        found = self._atoms.get(key)
        if found is None:
            self._count += 1
            found = self._atoms[key] = IndexAtom(self._count, expr, lo, hi, level, source)
            first = self._first.setdefault(expr, found)
            if first is not found:
                first.twin = found.twin = True
        return found

    def var(self, name: str, extent: int, level: int) -> Index:
        """A loop index `0 <= name < extent`, `level` loops deep."""
        return self.opaque(NamedValue(name, INDEX), 0, extent - 1, level)

    def opaque(self, expr: Expr, lo: int, hi: int, level: int) -> Index:
        """An index from any expression of type index with these bounds."""
        return self._make(0, ((self.atom(expr, lo, hi, level), 1),))

    def add(self, a: Index, b: Index) -> Index:
        if not b.terms:
            return a if not b.const else self._make(a.const + b.const, a.terms)
        if not a.terms:
            return self._make(a.const + b.const, b.terms)
        total = dict(a.terms)
        for atom, coefficient in b.terms:
            total[atom] = total.get(atom, 0) + coefficient
        result = self._from_dict(a.const + b.const, total)
        return self._recombine(result) if result.nonlinear else result

    def _from_dict(self, const: int, total: dict[IndexAtom, int]) -> Index:
        terms = [(a, c) for a, c in total.items() if c]
        terms.sort(key=_by_number)
        return self._make(const, tuple(terms))

    def _recombine(self, index: Index) -> Index:
        """`c*d*(r/d) + c*(r%d)  ->  c*r`."""
        coefficients = dict(index.terms)
        for atom, c in index.terms:
            if atom.source is None or atom.source[0] != "rem":
                continue
            _, inner, divisor = atom.source
            quotient = self.div(inner, divisor)
            if len(quotient.terms) != 1 or quotient.const or quotient.terms[0][1] != 1:
                continue
            other = quotient.terms[0][0]
            if coefficients.get(other) == c * divisor:
                rest = {a: k for a, k in coefficients.items() if a is not atom and a is not other}
                return self.add(self._from_dict(index.const, rest), self.scale(inner, c))
        return index

    def offset(self, a: Index, c: int) -> Index:
        return self._make(a.const + c, a.terms) if c else a

    def scale(self, a: Index, c: int) -> Index:
        if c == 1:
            return a
        if c == 0:
            return self.zero
        return self._make(a.const * c, tuple((atom, k * c) for atom, k in a.terms))

    def sub(self, a: Index, b: Index) -> Index:
        return self.add(a, self.scale(b, -1))

    def _split(self, a: Index, c: int) -> tuple[Index, Index]:
        """(q, r) with `a == q*c + r`, where r holds what is not a multiple of c and its constant is in [0, c)."""
        multiples = tuple((atom, k // c) for atom, k in a.terms if k % c == 0)
        others = tuple((atom, k) for atom, k in a.terms if k % c)
        return self._make(a.const // c, multiples), self._make(a.const % c, others)

    def divmod(self, a: Index, c: int) -> tuple[Index, Index]:
        """Quotient and remainder of a non-negative index by a positive constant."""
        if c == 1:
            return a, self.zero
        q, r = self._split(a, c)
        if r.lo >= 0 and r.hi < c:
            return q, r
        if r.lo < 0:
            q, r = self.zero, a
        big, small, common = self._factor(r, c)
        if common > 1:  # (g*x + y) / (g*c)  with y < g
            inner = self._make(0, tuple((atom, k // common) for atom, k in big.terms))
            deep_q, deep_r = self.divmod(inner, c // common)
            return self.add(q, deep_q), self.add(self.scale(deep_r, common), small)
        divisor = Const(c, INDEX)
        quotient = self.atom(Op("div", (r.expr(), divisor), INDEX), r.lo // c, r.hi // c, r.level, ("div", r, c))
        remainder = self.atom(Op("rem", (r.expr(), divisor), INDEX), 0, min(c - 1, r.hi), r.level, ("rem", r, c))
        return self.add(q, self._make(0, ((quotient, 1),))), self._make(0, ((remainder, 1),))

    def near(self, a: Index, c: int) -> tuple[Index, Index] | None:
        """(q, r) with `a == q*c + r` and -c < r < c, if that is so without a division: where r is 0, and only there, is
        `a` a multiple of c."""
        parts = [(k - (rest := (k + c // 2) % c - c // 2), rest) for k in (a.const, *(k for _, k in a.terms))]
        (const, left), *others = parts
        q, r = (self._from_dict(first, dict(zip((atom for atom, _ in a.terms), rest, strict=True)))
                for first, rest in ((const // c, [whole // c for whole, _ in others]), (left, [k for _, k in others])))
        return (q, r) if -c < r.lo and r.hi < c else None

    def _factor(self, r: Index, c: int) -> tuple[Index, Index, int]:
        """(x, y, g): `r == x + y`, x a multiple of g, a divisor of c, and 0 <= y < g; g = 1 if there is none."""
        terms = sorted(r.terms, key=lambda term: -abs(term[1]))
        for count in range(len(terms), 0, -1):
            common = math.gcd(c, *(k for _, k in terms[:count]))
            if common == 1:
                continue
            chosen = {atom for atom, _ in terms[:count]}
            small = self._make(r.const, tuple(t for t in r.terms if t[0] not in chosen))
            big = self._make(0, tuple(t for t in r.terms if t[0] in chosen))
            if small.lo >= 0 and small.hi < common and big.lo >= 0:
                return big, small, common
        return r, self.zero, 1

    def div(self, a: Index, c: int) -> Index:
        return self.divmod(a, c)[0]

    def rem(self, a: Index, c: int) -> Index:
        return self.divmod(a, c)[1]

    def clamp(self, a: Index, lo: int, hi: int) -> Index:
        """`a` brought into `lo .. hi`."""
        expr, low, high = a.expr(), a.lo, a.hi
        if high <= lo or low >= hi:
            return self.const(lo if high <= lo else hi)
        if low < lo:
            expr, low, high = Op("max", (expr, Const(lo, INDEX)), INDEX), lo, max(high, lo)
        if high > hi:
            expr, low, high = Op("min", (expr, Const(hi, INDEX)), INDEX), min(low, hi), hi
        return a if expr is a.expr() else self.opaque(expr, low, high, a.level)

    def less(self, a: Index, c: int) -> Expr:
        """`a < c`, decided at once where the bounds say so."""
        if a.hi < c:
            return TRUE
        if a.lo >= c:
            return FALSE
        return Op("lt", (a.expr(), Const(c, INDEX)), "bool")

    def at_least(self, a: Index, c: int) -> Expr:
        """`a >= c`, decided at once where the bounds say so."""
        if a.lo >= c:
            return TRUE
        if a.hi < c:
            return FALSE
        return Op("ge", (a.expr(), Const(c, INDEX)), "bool")

    def is_zero(self, a: Index) -> Expr:
        """`a == 0`, decided at once where the bounds say so."""
        if a.lo > 0 or a.hi < 0:
            return FALSE
        return Op("eq", (a.expr(), Const(0, INDEX)), "bool") if a.terms else TRUE

    def in_row(self, row: Index, k: Index, n: int, inner: int) -> Index:
        """The number of element `k` of a row along an axis of `n`, with `inner` elements in the axes after it."""
        before, after = self.divmod(row, inner)
        return self.add(self.scale(self.add(self.scale(before, n), k), inner), after)

    def flatten(self, indices: Sequence[Index], shape: Sequence[int]) -> Index:
        """The element number of `indices` in a row-major array of this shape."""
        total = self.zero
        stride = 1
        for index, size in zip(reversed(indices), reversed(shape), strict=True):
            if size != 1:
                total = self.add(total, self.scale(index, stride))
            stride *= size
        return total

    def unflatten(self, flat: Index, shape: Sequence[int]) -> tuple[Index, ...]:
        """The indices of an element of a row-major array of this shape."""
        out = [self.zero] * len(shape)
        real = [place for place, size in enumerate(shape) if size != 1]
        stride = math.prod(shape)
        for place in real[:-1]:
            stride //= shape[place]
            out[place], flat = self.divmod(flat, stride)
        if real:
            out[real[-1]] = flat
        return tuple(out)


def _by_number(term: tuple[IndexAtom, int]) -> int:
    return term[0].number


def conjunction(conditions: Sequence[Expr]) -> Expr:
    """All of the conditions, without those that are always true."""
    result: Expr = TRUE
    for condition in conditions:
        if condition is FALSE:
            return FALSE
        if condition is not TRUE:
            result = condition if result is TRUE else Op("and", (result, condition), "bool")
    return result
