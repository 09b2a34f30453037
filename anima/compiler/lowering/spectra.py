"""Eigenvalues and eigenvectors of small Hermitian matrices, as loops of the program: many run one in each lane.

    vector b < 10000:
      ...                                      reflections make the matrix tridiagonal
      for l < n:  while e[l] is not negligible in some lane:
        for i = n - 2, ..., l:  ...            a QL step of the rows from l to where the lane's block ends
        for x < n:  for i = n - 2, ..., l:     turns rows i and i + 1 of the vectors

Method: that of LAPACK's syevd for small matrices, decision by decision, so that signs of vectors are LAPACK's: Golub
and Van Loan, "Matrix computations" (2013), algorithms 8.3.1 and 8.3.3; QL runs where QR were better on the rows in
reverse. Matrices are brought to a size of about 1 by a power of two: nothing overflows, what underflows is negligible.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from anima.compiler.ir.index_math import Index
from anima.compiler.ir.loops import PARTS, Const, Expr
from anima.compiler.lowering.array import scalar_type
from anima.compiler.lowering.calls import ProgramBuilder, call
from anima.compiler.lowering.lanes import MatrixWriter, Number, Room, Submatrix, Term
from anima.compiler.lowering.matrices import Element, matrices, product_of_reflections, reader, reflection
from anima.core.jaxpr import Eqn

_WRITTEN_OUT = 3  # rows: more take longer to compile than they save
_TRIES = 30  # steps for each eigenvalue, as in LAPACK


@call("eigh", inline="all")
def _eigh(builder: ProgramBuilder, eqn: Eqn) -> None:
    operand, (vectors, values) = eqn.invars[0], eqn.outvars
    n, dtype = operand.aval.shape[-1], scalar_type(operand.aval)
    to_vectors, to_values = builder.result(vectors), builder.result(values)
    scope = builder.scope()
    ix = scope.ix
    with matrices(scope, values.aval.size // n, n, dtype, _WRITTEN_OUT) as (work, b):
        a, unit, bad = _scaled(work, n, reader(scope, operand, b), eqn.params["lower"])
        d, e, q = _tridiagonal(work, a, n)
        problem = _Iteration(work, n, d, e, q, eqn.params["lower"])
        failed = bad | problem.run()
        nan = Const(math.nan, work.real)
        for i in work.steps(0, n):
            place = scope.as_index(problem.rank(i).expr, 0, n - 1)
            value = failed.where(nan, problem.d[i] * unit)
            scope.store(to_values, ix.add(ix.scale(b, n), place), value.expr)
            for x in work.row(work.zero, ix.const(n), n):
                parts = [failed.where(nan, problem.vector(i, x, part)).expr for part in range(1 + (dtype in PARTS))]
                element = parts[0] if len(parts) == 1 else work.op("complex", *parts)
                row = x if problem.lower else ix.offset(ix.scale(x, -1), n - 1)
                scope.store(to_vectors, ix.add(ix.scale(b, n * n), ix.add(ix.scale(row, n), place)), element)
    builder.kernel("eigh", scope, eqn.source)


def _scaled(work: MatrixWriter, n: int, read: Element, lower: bool) -> tuple[Room, Term, Term]:
    """The whole matrix that one triangle gives, divided by a power of two, that, and whether some element of it is not
    finite: all are 0 then. Rows and columns stand in reverse, if it is the upper triangle."""
    ix, a = work.scope.ix, work.room(n, n)

    def element(i: Index, j: Index) -> Expr:
        return read(i, j) if lower else read(*(ix.offset(ix.scale(k, -1), n - 1) for k in (i, j)))

    largest = Number(work, Const(0.0, work.real))
    for i in work.steps(0, n):
        for j in work.steps(0, ix.offset(i, 1)):
            for name in ("real", "imag") if work.dtype in PARTS else ("real",):
                size = work.op("abs", work.part(name, element(i, j)), to=work.real)
                largest.set(work.op("max", largest.value, size, to=work.real))
    bad = ~(Term(work, largest.value) < math.inf)
    unit = bad.where(1.0, work.power_of_two(largest.value))
    inverse = work.whole((1.0 / unit).expr)

    def known(x: Expr) -> Expr:
        return bad.where(work.const(0.0), Term(work, work.op("mul", x, inverse))).expr

    for i in work.steps(0, n):
        for j, choose in work.columns(i, n):
            a.put(i, j, known(choose(partial(element, i, j), lambda i=i: work.whole(work.part("real", element(i, i))),
                                     lambda i=i, j=j: work.conj(element(j, i)))))
    return a, unit, bad


def _tridiagonal(work: MatrixWriter, a: Room, n: int) -> tuple[Room, Room, Room]:
    """The diagonal, what is below it, both real, and the product of the reflections that lead there."""
    steps = n - 1 if work.dtype in PARTS else max(n - 2, 0)  # of complex ones the last makes a number real
    column, weights = work.room(n), work.room(n)
    rest, below = Submatrix(a, 1, 0), work.room(n)
    packed = rest if work.written_out or work.lanes else work.room(n, n)  # rows of `a` are written as vectors only
    factors = work.room(n)
    for k in work.steps(0, steps):
        factor = reflection(work, rest, packed, below, k, n - 1)
        factors.put(k, None, factor)
        _turn(work, a, packed, factor, column, weights, k, n)
    d, e = (work.room(n, dtype=work.real) for _ in range(2))
    for i in work.steps(0, n):
        d.put(i, None, work.part("real", a.get(i, i)))
    for i in work.steps(0, steps):
        e.put(i, None, work.part("real", below.get(i)))
    for i in work.steps(steps, n - 1):
        e.put(i, None, work.part("real", a.get(work.scope.ix.offset(i, 1), i)))
    return d, e, _whole_product(work, packed, factors, steps, n)


def _turn(work: MatrixWriter, a: Room, packed: Room | Submatrix, factor: Expr, v: Room, w: Room, k: Index,
          n: int) -> None:
    """H^H A H for the rows and columns after k: A - v w^H - w v^H, where v is the vector of H."""
    ix = work.scope.ix
    first = ix.offset(k, 1)
    v.put(first, None, work.const(1.0))
    for i in work.after(first, n):
        v.put(i, None, packed.get(ix.offset(i, -1), k))
    along = Number(work, work.const(0.0))
    for i in work.after(k, n):
        total = Number(work, work.const(0.0))
        for j in work.after(k, n):
            total.set(work.op("add", total.value, work.op("mul", a.get(i, j), v.get(j))))
        value = work.op("mul", factor, total.value)
        w.put(i, None, value)
        along.set(work.op("add", along.value, work.op("mul", work.conj(value), v.get(i))))
    half = work.op("mul", work.op("mul", work.const(-0.5), factor), along.value)
    for i in work.after(k, n):
        w.put(i, None, work.op("add", w.get(i), work.op("mul", half, v.get(i))))
    for i in work.after(k, n):
        vi, wi = v.get(i), w.get(i)
        for j in work.row(first, ix.const(n), n):
            x = work.op("sub", a.get(i, j), work.op("mul", vi, work.conj(w.get(j))))
            a.put(i, j, work.op("sub", x, work.op("mul", wi, work.conj(v.get(j)))))


def _whole_product(work: MatrixWriter, packed: Room | Submatrix, factors: Room, steps: int, n: int) -> Room:
    """The product of the reflections of all rows but the first."""
    q, ix = work.room(n, n), work.scope.ix
    for i in work.steps(0, n):
        for j, choose in work.columns(i, n):
            q.put(i, j, choose(*(partial(work.const, x) for x in (0.0, 1.0, 0.0))))
    if n > 1:
        product_of_reflections(work, Submatrix(q, 1, 1), packed, factors, steps, ix.const(n - 1))
    return q


def rotation(work: MatrixWriter, f: Term, g: Term) -> tuple[Term, Term, Term]:
    """c, s and r with c f + s g = r and s f = c g, as LAPACK's lartg chooses them. What is so small that its square is
    no normal number is made larger first."""
    high = 2.0 ** (-work.limits.exponent // 2 - 1)
    low = abs(f).max(abs(g)) < 1 / high
    up, down = low.where(high, 1.0), low.where(1 / high, 1.0)
    f, g = f * up, g * up
    length = (f * f + g * g).sqrt()
    none = (g == 0.0) | (length == 0.0)
    r = none.where(f, (f < 0.0).where(-length, length))
    return none.where(1.0, abs(f) / length), none.where(0.0, g / r), r * down


class _Iteration:
    """QL steps with implicit shifts on a tridiagonal matrix; the vectors are in rows."""

    def __init__(self, work: MatrixWriter, n: int, d: Room, e: Room, q: Room, lower: bool) -> None:
        self.work, self.n, self.lower = work, n, lower
        self.eps, self.tiny = work.limits.eps / 2, work.limits.tiny
        ix, real = work.scope.ix, work.real
        self.d, self.e = work.room(n, dtype=real), work.room(n, dtype=real)
        parts = ("real", "imag") if work.dtype in PARTS else ("real",)
        self.z = work.room(n, len(parts) * n, real)
        self.c, self.s = work.room(n, dtype=real), work.room(n, dtype=real)
        first, last = (abs(Term(work, d.get(ix.const(k)))) for k in (0, n - 1))
        turned = last < first if lower else last <= first
        self.reverse = turned if lower else ~turned  # whether rows are in reverse to the matrix's own
        for i in work.steps(0, n):
            other = ix.offset(ix.scale(i, -1), n - 1)
            self.d[i] = turned.where(d.get(other), d.get(i))
            for x in work.row(work.zero, ix.const(n), n):
                for k, part in enumerate(parts):
                    value = turned.where(work.part(part, q.get(x, other)), work.part(part, q.get(x, i)))
                    self.z[i, ix.offset(x, k * n)] = value
        for i in work.steps(0, n - 1):
            self.e[i] = turned.where(e.get(ix.offset(ix.scale(i, -1), n - 2)), e.get(i))
        self.e.put(ix.const(n - 1), None, Const(0.0, real))
        self.tries = Number(work, Const(0, "i32"))
        self.block = Number(work, Const(0, "i32"))                        # the last row of the block that is at work
        self.corner = Number(work, Const(0.0, real))                      # the matrix's element there
        self.going = Number(work, Const(False, "bool"))

    def run(self) -> Term:
        """Finds all values, one after the other; whether one was not found."""
        work, n = self.work, self.n
        failed = Number(work, Const(False, "bool"))
        for row in work.steps(0, n - 1):
            self._look(row)
            with work.repeat(self.going, self.tries, self.block, self.corner, self.d, self.e, self.z):
                self._step(row)
                self.tries.set((Term(work, self.tries.value) + 1).expr)
                self._look(row)
            late = Term(work, self.tries.value) >= _TRIES * n
            failed.set((Term(work, failed.value) | late).expr)
        return Term(work, failed.value)

    def rank(self, i: Index) -> Term:
        """The place of value i in ascending order; equal ones stay in the order of the matrix's rows."""
        work, mine = self.work, self.d[i]
        total = Number(work, Const(0, "i32"))
        for j in work.steps(0, self.n):
            other = self.d[j]
            earlier, later = (Term(work, work.index("lt", *pair)) for pair in ((j, i), (i, j)))
            before = (other < mine) | ((other == mine) & self.reverse.where(later, earlier))
            total.set((Term(work, total.value) + before.where(Const(1, "i32"), Const(0, "i32"))).expr)
        return Term(work, total.value)

    def vector(self, i: Index, x: Index, part: int) -> Term:
        """Component x of vector i, its real or imaginary part."""
        return self.z[i, self.work.scope.ix.offset(x, part * self.n)]

    def _number(self, i: Index) -> Term:
        return Term(self.work, self.work.scope.index_value(i, "i32"))

    def _down(self, row: Index) -> Iterator[Index]:
        """Rows from the last but one to `row`."""
        work, ix = self.work, self.work.scope.ix
        for step in work.steps(0, ix.offset(ix.scale(row, -1), self.n - 1)):
            yield ix.offset(ix.scale(step, -1), self.n - 2)

    def _look(self, row: Index) -> None:
        """Finds where the block that begins at `row` ends, and whether that is there."""
        work, ix = self.work, self.work.scope.ix
        self.block.set(Const(self.n - 1, "i32"))
        self.corner.set(self.d[ix.const(self.n - 1)].expr)
        for i in self._down(row):
            e, d = self.e[i], self.d[i]
            small = e * e <= abs(d) * abs(self.d[ix.offset(i, 1)]) * self.eps**2 + self.tiny
            self.e[i] = small.where(0.0, e)
            self.block.set(small.where(self._number(i), self.block.value).expr)
            self.corner.set(small.where(d, self.corner.value).expr)
        more = Term(work, self.block.value) > self._number(row)
        self.going.set((more & (Term(work, self.tries.value) < _TRIES * self.n)).expr)

    def _step(self, row: Index) -> None:
        """One step: what turns the rows, and the turns."""
        work, ix = self.work, self.work.scope.ix
        d, e, block = self.d, self.e, Term(work, self.block.value)
        after = ix.offset(row, 1)
        top, beside, next_ = d[row], e[row], d[after]
        shift = (next_ - top) / (beside + beside)
        root = (shift * shift + 1.0).sqrt()
        g = Number(work, (Term(work, self.corner.value) - top
                          + beside / (shift + (shift < 0.0).where(-root, root))).expr)
        c, s, p = (Number(work, Const(x, work.real)) for x in (1.0, 1.0, 0.0))
        for i in self._down(row):
            self._turns(i, block, g, c, s, p)
        pair = block == self._number(after)
        values, turns = self._pair(top, beside, next_)
        d[row] = pair.where(values[0], d[row] - Term(work, p.value))
        d[after] = pair.where(values[1], d[after])
        e[row] = pair.where(0.0, Term(work, g.value))
        self.c[row], self.s[row] = (pair.where(x, y) for x, y in zip(turns, (self.c[row], self.s[row]), strict=True))
        for x in work.row(work.zero, ix.const(self.z.columns), self.z.columns):
            moved = Number(work, self.z[ix.const(self.n - 1), x].expr)
            for i in self._down(row):
                here, held, c_, s_ = self.z[i, x], Term(work, moved.value), self.c[i], self.s[i]
                self.z[ix.offset(i, 1), x] = c_ * held + s_ * here
                moved.set((c_ * here - s_ * held).expr)
            self.z[row, x] = Term(work, moved.value)

    def _turns(self, i: Index, block: Term, g: Number, c: Number, s: Number, p: Number) -> None:
        """Rows i and i + 1, if they are in the block: their turn, and what it makes of the matrix."""
        work, after = self.work, self.work.scope.ix.offset(i, 1)
        active, first = self._number(i) < block, self._number(after) == block
        old_c, old_s, old_p, old_g = (Term(work, x.value) for x in (c, s, p, g))
        e, d, below = self.e[i], self.d[i], self.d[after]
        f, b = old_s * e, old_c * e
        new_c, new_s, r = rotation(work, old_g, f)
        self.e[after] = (active & ~first).where(r, self.e[after])
        base = below - old_p
        r = (d - base) * new_s + new_c * (b + b)
        new_p = new_s * r
        self.d[after] = active.where(base + new_p, below)
        for number, new, old in ((c, new_c, old_c), (s, new_s, old_s), (p, new_p, old_p), (g, new_c * r - b, old_g)):
            number.set(active.where(new, old).expr)
        self.c[i], self.s[i] = active.where(new_c, 1.0), active.where(new_s, 0.0)

    def _pair(self, top: Term, beside: Term, below: Term) -> tuple[tuple[Term, Term], tuple[Term, Term]]:
        """The values of a block of two rows, and what turns it, as LAPACK's laev2 finds them: of the rows in their own
        order, if they are in reverse."""
        turned = self.reverse
        a, c = turned.where(below, top), turned.where(top, below)
        total, apart, twice = a + c, a - c, beside + beside
        size, other = abs(apart), abs(twice)
        large, small = size.max(other), size.min(other)
        ratio = (large > 0.0).where(small / large, 0.0)
        root = large * (ratio * ratio + 1.0).sqrt()
        first = abs(a) > abs(c)
        low = total < 0.0
        one = (total + low.where(-root, root)) * 0.5
        two = (first.where(a, c) / one) * first.where(c, a) - (beside / one) * beside
        two = (total == 0.0).where(root * -0.5, two)
        negative = apart < 0.0
        cs = apart + negative.where(-root, root)
        wide = abs(cs) > other
        tangent = wide.where(-twice / cs, (other == 0.0).where(0.0, -cs / twice))
        length = 1.0 / (tangent * tangent + 1.0).sqrt()
        cosine, sine = wide.where(tangent * length, length), wide.where(length, tangent * length)
        same = ~(low ^ negative)
        cosine, sine = same.where(-sine, cosine), same.where(cosine, sine)
        values = turned.where(two, one), turned.where(one, two)
        return values, (cosine, turned.where(sine, -sine))
