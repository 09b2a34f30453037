"""Singular values and vectors of small real matrices, as loops of the program: many matrices run one in each lane.

    vector b < 10000:
      ...                                      reflections from both sides leave two diagonals, d and e
      for m = k - 1, ..., 1:  while e[m - 1] is not negligible in some lane:
        for i < m:  ...                        a QR step of the rows from where the lane's block begins to m
        for x < n:  for i < m:                 turns rows i and i + 1 of the vectors, left and right

Method: that of LAPACK's gesdd for small matrices, so that signs of vectors are LAPACK's: Golub and Van Loan, "Matrix
computations" (2013), algorithms 5.4.2, 8.6.1 and 8.6.2; Demmel and Kahan, "Accurate singular values of bidiagonal
matrices" (1990), for what is negligible. Rows stand in reverse, and the sides change places, where d is larger at its
end. Matrices are brought to a size of about 1 by a power of two.
"""

from __future__ import annotations

import math

from anima.compiler.ir.index_math import Index
from anima.compiler.ir.loops import Const
from anima.compiler.lowering.array import scalar_type
from anima.compiler.lowering.calls import ProgramBuilder, call
from anima.compiler.lowering.lanes import MatrixWriter, Number, Room, Submatrix, Term
from anima.compiler.lowering.matrices import Element, matrices, reader, reflect, reflection
from anima.compiler.lowering.spectra import rotation
from anima.core.jaxpr import Eqn

_WRITTEN_OUT = 3  # rows and columns: more take longer to compile than they save
_TRIES = 60       # steps for each value


@call("svd", inline="all")
def _svd(builder: ProgramBuilder, eqn: Eqn) -> None:
    operand, (values, *vectors) = eqn.invars[0], eqn.outvars
    (m, n), dtype = operand.aval.shape[-2:], scalar_type(operand.aval)
    size = min(m, n)
    buffers = [builder.result(v) for v in (values, *vectors)]
    columns, rows = (vectors[0].aval.shape[-1], vectors[1].aval.shape[-2]) if vectors else (0, 0)
    scope = builder.scope()
    ix = scope.ix
    with matrices(scope, values.aval.size // size, max(m, n), dtype, _WRITTEN_OUT) as (work, b):
        unit, bad, d, e, u, v = _two_diagonals(work, m, n, reader(scope, operand, b), columns, rows)
        steps = _Steps(work, size, d, e, u, v)
        failed, nan = bad | steps.run(), Const(math.nan, dtype)

        def store(number: int, i: Index, j: Index, shape: tuple[int, int], value: Term) -> None:
            place = ix.add(ix.scale(b, shape[0] * shape[1]), ix.add(ix.scale(i, shape[1]), j))
            scope.store(buffers[number], place, failed.where(nan, value).expr)

        for i in work.steps(0, size):
            value, place = d[i], scope.as_index(steps.rank(i).expr, 0, size - 1)
            store(0, work.zero, place, (1, size), abs(value) * unit)
            signed = value < 0.0
            for x in work.steps(0, m if vectors else 0):
                store(1, x, place, (m, columns), signed.where(-u[i, x], u[i, x]) if size == 1 else u[i, x])
            for x in work.steps(0, n if vectors else 0):
                store(2, place, x, (rows, n), v[i, x] if size == 1 else signed.where(-v[i, x], v[i, x]))
        for i in work.steps(size, columns):
            for x in work.steps(0, m):
                store(1, x, i, (m, columns), u[i, x])
        for i in work.steps(size, rows):
            for x in work.steps(0, n):
                store(2, i, x, (rows, n), v[i, x])
    builder.kernel("svd", scope, eqn.source)


# ---------------------------------------------------------------- to two diagonals


def _two_diagonals(work: MatrixWriter, m: int, n: int, read: Element, columns: int, rows: int
                   ) -> tuple[Term, Term, Room, Room, Room, Room]:
    """A power of two, whether a number is not finite, the two diagonals of the matrix divided by that power, and the
    vectors, in rows, that lead there: as many as there are to be in the end, `columns` left and `rows` right ones."""
    wide, size, long = m < n, min(m, n), max(m, n)
    a = work.room(long, size)
    unit, bad = _scaled(work, a, (lambda i, j: read(j, i)) if wide else read)
    factored = long > size and long >= size * 11 // 6  # such matrices LAPACK brings to a triangle first
    first = _triangle(work, a, wide) if factored else None
    square = a if first is None else first[0]
    d, e, left, right = _reflected(work, square)
    turned = wide and not factored  # then it is the transpose whose diagonals these are
    lower = _raised(work, d, e, size) if turned else None
    above = work.room(size + 1)  # number i stands between rows i - 1 and i
    for i in work.steps(0, size - 1):
        above.put(work.scope.ix.offset(i, 1), None, e.get(i))
    for k in (0, size):
        above.put(work.scope.ix.const(k), None, work.const(0.0))
    if not columns:
        return unit, bad, d, above, a, a
    sides = (rows, columns) if wide else (columns, rows)  # on the long side and on the other
    after = None if first is None else (a, first[1])
    below = Submatrix(square, 0, 1, turned=True)
    if wide and factored:
        u = _product(work, square, left, size, size, size, 0, None)
        v = _product(work, below, right, size, long, sides[0], 1, after)
    else:
        u = _product(work, square, left, size, long, sides[0], 0, after)
        v = _product(work, below, right, size, size, size, 1, None)
    if lower is not None:
        u, v = v, u
        _turn_rows(work, u, *lower, work.scope.ix.const(size - 1))
    return unit, bad, d, above, u, v


def _scaled(work: MatrixWriter, a: Room, read: Element) -> tuple[Term, Term]:
    """Fills `a` with the matrix divided by a power of two: that, and whether some number is not finite: all are 0."""
    largest = Number(work, work.const(0.0))
    for i in work.steps(0, a.rows):
        for j in work.steps(0, a.columns):
            value = read(i, j)
            a.put(i, j, value)
            largest.set(work.op("max", largest.value, work.op("abs", value)))
    bad = ~(Term(work, largest.value) < math.inf)
    unit = bad.where(1.0, work.power_of_two(largest.value))
    inverse = 1.0 / unit
    for i in work.steps(0, a.rows):
        for j in work.steps(0, a.columns):
            a[i, j] = bad.where(0.0, a[i, j] * inverse)
    return unit, bad


def _triangle(work: MatrixWriter, a: Room, transposed: bool) -> tuple[Room, Room]:
    """R of QR, or its transpose, and the factors of the reflections, whose vectors are in `a` then."""
    size = a.columns
    diagonal, factors, square = work.room(size), work.room(size), work.room(size, size)
    for k in work.steps(0, size):
        factor = reflection(work, a, a, diagonal, k, a.rows)
        factors.put(k, None, factor)
        for j in work.after(k, size):
            reflect(work, a, a, factor, k, j)
    for i in work.steps(0, size):
        square.put(i, i, diagonal.get(i))
        for j in work.after(i, size):
            square.put(*((j, i) if transposed else (i, j)), a.get(i, j))
            square.put(*((i, j) if transposed else (j, i)), work.const(0.0))
    return square, factors


def _reflected(work: MatrixWriter, a: Room) -> tuple[Room, Room, Room, Room]:
    """The two diagonals, and the factors of the reflections from the left and from the right; their vectors replace the
    matrix."""
    size = a.columns
    d, e, left, right = (work.room(size) for _ in range(4))
    beside = Submatrix(a, 0, 1, turned=True)

    def from_left(k: Index) -> None:
        factor = reflection(work, a, a, d, k, a.rows)
        left.put(k, None, factor)
        for j in work.after(k, size):
            reflect(work, a, a, factor, k, j)

    for k in work.steps(0, size - 1):
        from_left(k)
        factor = reflection(work, beside, beside, e, k, size - 1)
        right.put(k, None, factor)
        for j in work.after(k, a.rows):
            reflect(work, beside, beside, factor, k, j)
    from_left(work.scope.ix.const(size - 1))
    return d, e, left, right


def _raised(work: MatrixWriter, d: Room, e: Room, size: int) -> tuple[Room, Room]:
    """Turns of rows that bring the second diagonal from below the first one to above it."""
    c, s, ix = work.room(size), work.room(size), work.scope.ix
    for i in work.steps(0, size - 1):
        after = ix.offset(i, 1)
        c[i], s[i], d[i] = rotation(work, d[i], e[i])
        e[i], d[after] = s[i] * d[after], c[i] * d[after]
    return c, s


def _product(work: MatrixWriter, vectors: Room | Submatrix, factors: Room, size: int, length: int, count: int,
             first: int, more: tuple[Room, Room] | None) -> Room:
    """The first `count` columns, as rows, of the product of reflections of rows from `first` to `size` (to `length`
    without `more`) and, before these, of `more`: vectors and factors."""
    ix, out = work.scope.ix, work.room(length, count)
    for i in work.steps(0, length):
        for j in work.steps(0, count):
            out.put(i, j, work.select(work.index("eq", i, j), work.const(1.0), work.const(0.0)))
    within = Submatrix(out, first, first, rows=(length if more is None else size) - first)
    for step in work.steps(0, size - first):
        k = ix.offset(ix.scale(step, -1), size - first - 1)
        factor = factors.get(k)
        for j in work.steps(k, (count if more is None else size) - first):
            reflect(work, within, vectors, factor, k, j)
    if more is not None:
        for step in work.steps(0, size):
            k = ix.offset(ix.scale(step, -1), size - 1)
            factor = more[1].get(k)
            for j in work.steps(0, count):
                reflect(work, out, more[0], factor, k, j)
    turned = work.room(count, length)
    for i in work.steps(0, count):
        for j in work.steps(0, length):
            turned.put(i, j, out.get(j, i))
    return turned


def _turn_rows(work: MatrixWriter, z: Room, c: Room, s: Room, last: Index) -> None:
    """Turns rows i and i + 1, one pair after the other, up to `last`."""
    ix = work.scope.ix
    for x in work.row(work.zero, ix.const(z.columns), z.columns):
        moved = Number(work, z.get(work.zero, x))
        for i in work.steps(0, last):
            held, next_ = Term(work, moved.value), z[ix.offset(i, 1), x]
            z[i, x] = c[i] * held + s[i] * next_
            moved.set((c[i] * next_ - s[i] * held).expr)
        z.put(last, x, moved.value)


# ---------------------------------------------------------------- to one


class _Steps:
    """QR steps with implicit shifts on two diagonals, from the top to the bottom."""

    def __init__(self, work: MatrixWriter, size: int, d: Room, e: Room, u: Room, v: Room) -> None:
        self.work, self.size, self.d, self.e, self.u, self.v = work, size, d, e, u, v
        self.vectors = u is not v
        self.eps = work.limits.eps / 2
        self.close = self.eps * max(10.0, min(100.0, self.eps ** -0.125))  # as in LAPACK's bdsqr
        ix = work.scope.ix
        self.reverse = abs(d[work.zero]) < abs(d[ix.const(size - 1)])
        self._reversed(d, 0, size)
        self._reversed(e, 1, size - 1)
        for z in (u, v) if self.vectors else ():
            for x in work.row(work.zero, ix.const(z.columns), z.columns):
                self._reversed(z, 0, size, x)
        self.turns = [work.room(size) for _ in range(4)]
        real = work.real
        self.tries, self.begin = (Number(work, Const(0, "i32")) for _ in range(2))
        self.top, self.least, self.most = (Number(work, Const(0.0, real)) for _ in range(3))
        self.going = Number(work, Const(False, "bool"))

    def _reversed(self, room: Room, first: int, count: int, x: Index | None = None) -> None:
        """Puts rows, or numbers, from the first on in reverse, if all are."""
        work, ix = self.work, self.work.scope.ix
        for step in work.steps(0, count // 2):
            i, other = ix.offset(step, first), ix.offset(ix.scale(step, -1), first + count - 1)
            one, two = (Term(work, room.get(k, x)) for k in (i, other))
            room.put(i, x, self.reverse.where(two, one).expr)
            room.put(other, x, self.reverse.where(one, two).expr)

    def run(self) -> Term:
        """Makes the second diagonal zero, from its end on; whether that failed."""
        work, rooms = self.work, [self.d, self.e, *([self.u, self.v] if self.vectors else [])]
        numbers = (self.tries, self.begin, self.top, self.least, self.most)
        limit, ix = _TRIES * self.size, work.scope.ix
        failed = Number(work, Const(False, "bool"))
        for step in work.steps(0, self.size - 1):
            last = ix.offset(ix.scale(step, -1), self.size - 1)
            self._look(last, limit)
            with work.repeat(self.going, *numbers, *rooms):
                self._step(last)
                self.tries.set((Term(work, self.tries.value) + 1).expr)
                self._look(last, limit)
            failed.set((Term(work, failed.value) | (Term(work, self.tries.value) >= limit)).expr)
        return Term(work, failed.value)

    def rank(self, i: Index) -> Term:
        """The place of value i in descending order; equal ones stay in the order of the rows."""
        work, mine = self.work, abs(self.d[i])
        total = Number(work, Const(0, "i32"))
        for j in work.steps(0, self.size):
            other = abs(self.d[j])
            earlier, later = (Term(work, work.index("lt", *pair)) for pair in ((j, i), (i, j)))
            before = (other > mine) | ((other == mine) & self.reverse.where(later, earlier))
            total.set((Term(work, total.value) + before.where(Const(1, "i32"), Const(0, "i32"))).expr)
        return Term(work, total.value)

    def _number(self, i: Index) -> Term:
        return Term(self.work, self.work.scope.index_value(i, "i32"))

    def _look(self, last: Index, limit: int) -> None:
        """Finds where the block that ends at `last` begins, and the sizes in it; makes zero what is negligible: beside
        the values next to it, or beside all of the matrix."""
        work, ix, d, e = self.work, self.work.scope.ix, self.d, self.e
        first = abs(d[work.zero])
        least_here = Number(work, first.expr)
        self.begin.set(Const(0, "i32"))
        self.top.set(d.get(work.zero))
        self.least.set(first.expr)
        self.most.set(first.expr)
        for i in work.steps(0, last):
            after = ix.offset(i, 1)
            beside, value, mu = abs(e[after]), abs(d[after]), Term(work, least_here.value)
            bound = (mu * self.close).max(self.eps)
            bound = (self._number(after) == self._number(last)).where(bound.max(value * self.close), bound)
            split = beside <= bound
            e[after] = split.where(0.0, e[after])
            mu = split.where(value, value * (mu / split.where(1.0, mu + beside)))
            least_here.set(mu.expr)
            self.begin.set(split.where(self._number(after), self.begin.value).expr)
            self.top.set(split.where(d[after], self.top.value).expr)
            self.least.set(split.where(value, Term(work, self.least.value).min(mu)).expr)
            self.most.set(split.where(value, Term(work, self.most.value).max(beside.max(value))).expr)
        more = Term(work, self.begin.value) < self._number(last)
        self.going.set((more & (Term(work, self.tries.value) < limit)).expr)

    def _shift(self, last: Index) -> Term:
        """The smaller singular value of the last two rows; 0, where it would cost accuracy or changes nothing."""
        work, d, e = self.work, self.d, self.e
        before = work.scope.ix.offset(last, -1)
        f, h = abs(d[before]), abs(d[last])
        large, small, top = f.max(h), f.min(h), abs(Term(work, self.top.value))
        ratio, beside = small / large, abs(e[last]) / large
        sums, differences, beside = ratio + 1.0, (large - small) / large, beside * beside
        found = small * 2.0 / ((sums * sums + beside).sqrt() + (differences * differences + beside).sqrt())
        part = found / top
        least, most = Term(work, self.least.value), Term(work, self.most.value)
        none = ((small == 0.0) | (top == 0.0) | (part * part < self.eps)
                | (least * (self.size * self.close) <= most * max(self.eps, 0.01 * self.close)))
        return none.where(0.0, found)

    def _step(self, last: Index) -> None:
        """One step on the block: its diagonals, what turns the rows, and the turns."""
        work, ix = self.work, self.work.scope.ix
        d, e, before = self.d, self.e, ix.offset(last, -1)
        top, shift = Term(work, self.top.value), self._shift(last)
        down = top < 0.0
        start = (shift == 0.0).where(top, (abs(top) - shift) * (down.where(-1.0, 1.0) + shift / top))
        pair = Term(work, self.begin.value) == self._number(before)
        values, turns = self._pair(d[before], e[last], d[last])
        f = Number(work, start.expr)
        g = Number(work, Const(0.0, work.real))
        for i in work.steps(0, last):
            self._turns(i, last, f, g)
        e[last] = pair.where(0.0, Term(work, f.value))
        d[before], d[last] = pair.where(values[0], d[before]), pair.where(values[1], d[last])
        for room, turn in zip(self.turns, turns, strict=True):
            room[before] = pair.where(turn, room[before])
        for k, z in enumerate((self.u, self.v) if self.vectors else ()):
            _turn_rows(work, z, self.turns[2 * k], self.turns[2 * k + 1], last)

    def _turns(self, i: Index, last: Index, f: Number, g: Number) -> None:
        """Turns columns and then rows i and i + 1, if they are in the block."""
        work, ix, d, e = self.work, self.work.scope.ix, self.d, self.e
        after, next_ = ix.offset(i, 1), ix.offset(i, 2)
        begin, here = Term(work, self.begin.value), self._number(i)
        active, first = begin <= here, begin == here
        more = active & (self._number(after) < self._number(last))
        old_f, old_g = Term(work, f.value), first.where(e[after], Term(work, g.value))
        cr, sr, r = rotation(work, old_f, old_g)
        e[i] = (active & ~first).where(r, e[i])
        new_f = cr * d[i] + sr * e[after]
        beside = cr * e[after] - sr * d[i]
        new_g, below = sr * d[after], cr * d[after]
        cl, sl, r = rotation(work, new_f, new_g)
        d[i] = active.where(r, d[i])
        f.set(active.where(cl * beside + sl * below, old_f).expr)
        d[after] = active.where(cl * below - sl * beside, d[after])
        g.set(more.where(sl * e[next_], old_g).expr)
        e[next_] = more.where(cl * e[next_], e[next_])
        turns = (self.reverse.where(cr, cl), self.reverse.where(sr, sl), self.reverse.where(cl, cr),
                 self.reverse.where(sl, sr))
        for room, turn, nothing in zip(self.turns, turns, (1.0, 0.0, 1.0, 0.0), strict=True):
            room[i] = active.where(turn, nothing)

    def _pair(self, top: Term, beside: Term, below: Term) -> tuple[tuple[Term, Term], list[Term]]:
        """The values of a block of two rows, and what turns the left and right vectors, as LAPACK's lasv2 finds them:
        those of rows and columns in their own order, if they are in reverse."""
        reverse = self.reverse
        f, h, g = reverse.where(below, top), reverse.where(top, below), beside
        swap = abs(h) > abs(f)
        ft, ht = swap.where(h, f), swap.where(f, h)
        fa, ha, ga = abs(ft), abs(ht), abs(g)
        diagonal, huge = ga == 0.0, fa < ga * self.eps
        plain = diagonal | huge
        whole = plain.where(1.0, fa)
        apart, m = (whole - ha) / whole, g / plain.where(1.0, ft)
        t = -apart + 2.0
        mm = m * m
        s, r = (t * t + mm).sqrt(), (apart * apart + mm).sqrt()
        a = (s + r) * 0.5
        signed = _sign(ft) * _sign(g)
        tiny = (apart == 0.0).where(signed * 2.0, g / (_sign(ft) * (fa - ha)) + m / t)
        t = (mm == 0.0).where(tiny, (m / (s + t) + m / (r + apart)) * (a + 1.0))
        length = (t * t + 4.0).sqrt()
        crt, srt = 2.0 / length, t / length
        clt, slt = (crt + srt * m) / a, (ht / plain.where(1.0, ft)) * srt / a
        least, most = diagonal.where(ha, huge.where(fa / ga * ha, ha / a)), diagonal.where(fa, huge.where(ga, fa * a))
        clt, slt = plain.where(1.0, clt), diagonal.where(0.0, huge.where(ht / g, slt))
        crt, srt = diagonal.where(1.0, huge.where(ft / g, crt)), diagonal.where(0.0, huge.where(1.0, srt))
        cl, sl, cr, sr = (swap.where(x, y) for x, y in ((srt, clt), (crt, slt), (slt, crt), (clt, srt)))
        middle = ga > fa
        sign = middle.where(_sign(sr) * _sign(cl) * _sign(g), swap.where(_sign(sr) * _sign(sl) * _sign(h),
                                                                         _sign(cr) * _sign(cl) * _sign(f)))
        most, least = most * sign, least * sign * _sign(f) * _sign(h)
        values = reverse.where(least, most), reverse.where(most, least)
        return values, [cl, reverse.where(-sl, sl), cr, reverse.where(-sr, sr)]


def _sign(x: Term) -> Term:
    return (x < 0.0).where(-1.0, 1.0)
