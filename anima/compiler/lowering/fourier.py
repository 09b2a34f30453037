"""Fourier transforms of moderate lengths as loops: Stockham's passes over scratch rows.

    pass of r: for p < m, q < s:    y[q + s (r p + j)] = w^(p j) sum of x[q + s (p + m k)] v^(j k)   over k < r

w and v are roots of unity of order r m and r; s is the product of the lengths of the passes before, so results come out
in order, and the loop over q is along memory. Several rows or columns may run in lanes: s begins with their number. An
inverse transform is one of numbers whose parts changed places; a real one of even length a complex one of half of it;
one of a length with large prime factors a convolution. Methods: Cochran et al., "What is the fast Fourier transform?"
(1967); real numbers: Cooley, Lewis and Welch, "The fast Fourier transform algorithm" (1970); primes: Bluestein, "A
linear filtering approach to the computation of discrete Fourier transform" (1970).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from anima.compiler.ir.index_math import Index
from anima.compiler.ir.loops import INDEX, PARTS, Const, Expr, Load, Op, affine
from anima.compiler.lowering.array import Scope, scalar_type
from anima.compiler.lowering.butterfly import Butterfly, Complex, cost_of, factors, longer, roots, smooth
from anima.compiler.lowering.callback import call_in_place
from anima.compiler.lowering.calls import ProgramBuilder, call
from anima.core.jaxpr import Eqn
from anima.ops.fft import FftType
from anima.util import record

# Measured: up to these lengths loops take a half to an eighth of pocketfft's time. Tables of constants grow with them.
LONGEST = 1 << 18        # elements of an axis that is transformed here, if it has small prime factors alone,
LONGEST_PRIME = 1 << 16  # and if not
_GATHER = 24     # instructions that one that gathers numbers is worth
_GATHERED = 256  # elements of rows whose transforms may run in lanes: longer ones would displace each other in caches
_LONG = 4096     # elements from which as many columns run in lanes as a line of the cache has, not twice as many
_FAR = 1 << 22   # bytes of an array that is not in caches near a core
Read = Callable[[Index, Index], Complex]  # the element of a line and a lane
Write = Callable[[Index, Index, Complex], None]


@call("fft")
def _fft(builder: ProgramBuilder, eqn: Eqn) -> None:
    out, lengths, kind = eqn.outvars[0].aval, eqn.params["fft_lengths"], eqn.params["fft_type"]
    if not out.size:
        return
    if any(n > (LONGEST if smooth(n) else LONGEST_PRIME) for n in lengths):
        call_in_place(builder, eqn)
        return
    operand, rank = eqn.invars[0].aval, len(lengths)
    source, target = builder.memory(eqn.invars[0]), builder.result(eqn.outvars[0])
    inverse = kind in (FftType.IFFT, FftType.IRFFT)
    scale = 1 / math.prod(lengths) if inverse else 1.0
    whole = operand if kind == FftType.IRFFT else out  # the complex one
    shape, dtype = whole.shape, scalar_type(whole)

    def lines(axis: int, source: str, target: str, scale: float = 1.0) -> Lines:
        axis += whole.ndim - rank
        sizes = lengths[axis + rank - whole.ndim], math.prod(shape[:axis]), math.prod(shape[axis + 1:])
        return Lines(builder, eqn, dtype, sizes, inverse, scale, source, target)

    others = [axis for axis in range(rank - 1) if lengths[axis] > 1]
    if kind == FftType.IRFFT:
        place = builder.temp(dtype, operand.size) if others else source
        for axis in others:
            lines(axis, source, place).complex_to_complex()
            source = place
        lines(rank - 1, place, target, scale).complex_to_real()
        return
    last = lines(rank - 1, source, target, scale)
    if kind == FftType.RFFT:
        last.real_to_complex()
    else:
        last.complex_to_complex()
    for axis in reversed(others):
        lines(axis, target, target).complex_to_complex()


@record
class ComplexLine:
    """Scratch memory for the complex elements of a line, in `lanes` lanes."""

    scope: Scope
    re: str
    im: str
    dtype: str
    lanes: int

    def at(self, k: Index, lane: Index) -> Index:
        ix = self.scope.ix
        return ix.add(ix.scale(k, self.lanes), lane)

    def load(self, k: Index, lane: Index) -> Complex:
        return self.load_flat(self.at(k, lane))

    def load_swapped(self, k: Index, lane: Index) -> Complex:
        return self.load(k, lane)[::-1]

    def store(self, k: Index, lane: Index, x: Complex) -> None:
        self.store_flat(self.at(k, lane), x)

    def load_flat(self, place: Index) -> Complex:
        scope = self.scope
        re, im = (scope.let(Load(part, place.expr(), self.dtype), scope.depth, "x") for part in (self.re, self.im))
        return re, im

    def store_flat(self, place: Index, x: Complex) -> None:
        self.scope.store(self.re, place, x[0])
        self.scope.store(self.im, place, x[1])


class Lines:
    """Transforms along one axis: `sizes` are its length, and those of all before and after it together."""

    def __init__(self, builder: ProgramBuilder, eqn: Eqn, whole: str, sizes: tuple[int, int, int], inverse: bool,
                 scale: float, source: str, target: str) -> None:
        self.builder, self.eqn = builder, eqn
        self.whole, self.dtype = whole, PARTS[whole]  # types of complex numbers, and of their parts
        self.n, self.outer, self.inner = sizes
        self.inverse, self.scale = inverse, scale
        self.source, self.target = source, target
        self.width = 16 if whole == "c64" else 8  # numbers in a vector, of the widest machines
        self.scope = builder.scope()
        self.ix = self.scope.ix
        self.butterfly = Butterfly(self.scope, self.dtype)
        self.zero = Const(0.0, self.dtype)

    # ---------------------------------------------------------------- kinds

    def complex_to_complex(self) -> None:
        """The complex transform."""
        n = self.n
        with self.each(n, 4 * n):
            read = self.near(n, lambda k, lane: self._given(n, k, lane))
            self.run(n, read, lambda k, lane, x: self._result(n, k, lane, x))

    def real_to_complex(self) -> None:
        """The first half of the transform of real numbers."""
        n, half = self.n, self.n // 2 + 1
        h = n if n % 2 else n // 2
        with self.each(h, 2 * n):
            row = self.row(h)
            if n % 2:
                read = self.near(h, lambda k, lane: (self._number(self.place(n, k, lane)), self.zero))
                self.run(h, read, row.store)
                with self.elements(half) as (k, lane):
                    self._result(half, k, lane, row.load(k, lane))
            else:
                read = self.near(h, lambda k, lane: self._pair(self.place(n, self.ix.scale(k, 2), lane)))
                self.run(h, read, row.store)
                self._parted(row, half)

    def complex_to_real(self) -> None:
        """The real numbers whose transform has a given first half."""
        n, half = self.n, self.n // 2 + 1
        h = n if n % 2 else n // 2
        with self.each(h, 2 * n):
            row = self.row(h)
            if n % 2:
                self._mirrored(row, half)
                self.run(h, row.load_swapped, lambda k, lane, x: self._put(self.place(n, k, lane), x[1]))
            else:
                self._joined(row, half)
                self.run(h, row.load_swapped,
                         lambda k, lane, x: self._put_pair(self.place(n, self.ix.scale(k, 2), lane), x[::-1]))

    # ---------------------------------------------------------------- loops

    @contextmanager
    def each(self, length: int, moves: int) -> Iterator[None]:
        """A kernel for all lines, with transforms of `length` and `moves` numbers to read and write in each; so many in
        lanes as is best."""
        ix, scope, width = self.ix, self.scope, self.width
        self.lanes = 1
        if self.inner > 1:
            self.lanes = min(self.inner, width if length <= _LONG else width // 2)
        elif self.outer >= width and length <= _GATHERED:
            alone, together = cost_of(length, 1, width), cost_of(length, width, width)
            if (together + moves * _GATHER) / width < alone:
                self.lanes = width
        total = self.outer if self.inner == 1 else self.inner
        blocks = -(-total // self.lanes)
        with scope.loop(blocks if self.inner == 1 else self.outer * blocks, "each") as number:
            before, block = ix.zero, number
            if self.inner > 1:
                before, block = (self._named(part) for part in ix.divmod(number, blocks))
            self.before, self.first = before, ix.scale(block, self.lanes)
            self.count: int | Expr = self.lanes
            if total % self.lanes:
                self.count = scope.let(Op("min", (Const(self.lanes, INDEX), affine(total, (self.first.expr(), -1))),
                                          INDEX), self.first.level, "n")
            yield
        self.builder.kernel("fft", scope, self.eqn.source)

    def _named(self, index: Index) -> Index:
        if not index.terms:
            return index
        return self.ix.opaque(self.scope.let(index.expr(), index.level, "n"), index.lo, index.hi, index.level)

    @contextmanager
    def lane(self) -> Iterator[Index]:
        """A loop over lines in lanes."""
        with self.scope.loop(self.count, "each", self.lanes) as lane:
            yield lane

    @contextmanager
    def elements(self, count: int) -> Iterator[tuple[Index, Index]]:
        """A loop over elements of lines, and lanes."""
        with self.scope.loop(count, "each") as k, self.lane() as lane:
            yield k, lane

    def row(self, length: int) -> ComplexLine:
        """Scratch memory for lines of `length` elements."""
        re, im = (self.scope.local(self.dtype, length * self.lanes) for _ in range(2))
        return ComplexLine(self.scope, re, im, self.dtype, self.lanes)

    def place(self, n: int, k: Index, lane: Index) -> Index:
        """Where element `k` of a line is in an array with `n` of them."""
        ix = self.ix
        line = ix.add(self.first, lane)
        if self.inner == 1:
            return ix.add(ix.scale(line, n), k)
        return ix.add(ix.scale(ix.add(ix.scale(self.before, n), k), self.inner), line)

    def near(self, n: int, read: Read) -> Read:
        """How the elements of lines are read: memory far away in order, if the first pass would read it in many places
        at once that vectors do not fill (which takes up to twice as long)."""
        nbytes = self.outer * self.n * (8 if self.whole == "c64" else 16)
        if self.lanes > 1 or n <= _GATHERED or nbytes < _FAR or not smooth(n):
            return read
        if n // factors(n, 1, self.width)[0][0] % self.width == 0:
            return read
        row = self.row(n)
        with self.elements(n) as (k, lane):
            row.store(k, lane, read(k, lane))
        return row.load

    # ---------------------------------------------------------------- passes

    def run(self, n: int, read: Read, write: Write) -> None:
        """The transform of all lines of `n` elements."""
        if smooth(n):
            self._passes(n, read, write, [self.row(n) for _ in factors(n, self.lanes, self.width)[0][1:3]])
        else:
            self._chirped(n, read, write)

    def _passes(self, n: int, read: Read, write: Write, rows: Sequence[ComplexLine]) -> None:
        radices = factors(n, self.lanes, self.width)[0]
        done = 1
        for number, r in enumerate(radices):
            last = number == len(radices) - 1
            self._pass(r, n // done // r, done, read if not number else rows[(number - 1) % 2],
                       write if last else rows[number % 2])
            done *= r

    def _pass(self, r: int, m: int, done: int, source: Read | ComplexLine, target: Write | ComplexLine) -> None:
        scope, ix, s = self.scope, self.ix, self.lanes * done
        # Lanes, some of which may have no line.
        apart = not isinstance(source, ComplexLine) or not isinstance(target, ComplexLine)
        with scope.loop(m, "each") as p, scope.loop(done if apart else s, "each") as q, self._lane_if(apart) as lane:
            if apart:
                element, q = q, ix.add(ix.scale(q, self.lanes), lane)
            xs = [source.load_flat(ix.add(q, ix.scale(ix.add(p, ix.const(m * k)), s)))
                  if isinstance(source, ComplexLine) else source(ix.add(p, ix.const(m * k)), lane) for k in range(r)]
            ys = self.butterfly.dft(xs)
            if m > 1:
                ys[1:] = map(self.butterfly.times, ys[1:], self._twiddles(r, m, p, s == 1))
            if isinstance(target, ComplexLine):
                places = [ix.add(q, ix.scale(ix.add(ix.scale(p, r), ix.const(j)), s)) for j in range(r)]
                for part, buffer in enumerate((target.re, target.im)):
                    for place, y in zip(places, ys, strict=True):
                        scope.store(buffer, place, y[part])
            else:
                for j, y in enumerate(ys):
                    target(ix.add(element, ix.const(done * j)), lane, y)

    def _chirped(self, n: int, read: Read, write: Write) -> None:
        """A transform as a convolution, by way of longer ones: sum of x[j] c[j] / c[k - j], times c[k], where c[k] is
        exp(-pi i k^2 / n). The second one is inverse, so that the parts change places before it and after it: two
        rounds of a transform, a product, and the exchange, the last product with conj c."""
        ix, times, long = self.ix, self.butterfly.times, longer(n, self.lanes, self.width)
        squares = np.arange(n) ** 2 % (2 * n)
        chirp = roots(squares, 2 * n, self.dtype)
        re, im = roots(-squares, 2 * n)
        inverse = np.zeros(long, np.clongdouble)
        inverse[:n] = re + 1j * im
        inverse[:long - n:-1] = inverse[1:n]
        spectrum = np.fft.fft(inverse) / long
        beyond = np.zeros(long - n)
        weights = self._table(np.concatenate((spectrum.real, chirp[0], beyond)),
                              np.concatenate((spectrum.imag, -chirp[1], beyond)))
        first = self._table(*chirp)
        row, *rows = (self.row(long) for _ in range(3))
        with self.elements(n) as (k, lane):
            row.store(k, lane, times(read(k, lane), first(k)))
        with self.elements(long - n) as (k, lane):
            row.store(ix.offset(k, n), lane, (self.zero, self.zero))
        with self.scope.serial(2) as number:
            begin = ix.scale(ix.opaque(number, 0, 1, self.scope.depth), long)

            def multiplied(k: Index, lane: Index, x: Complex) -> None:
                row.store(k, lane, times(x, weights(ix.add(begin, k)))[::-1])

            self._passes(long, row.load, multiplied, rows)
        with self.elements(n) as (k, lane):
            write(k, lane, row.load(k, lane))

    def _table(self, re: np.ndarray, im: np.ndarray) -> Callable[[Index], Complex]:
        """Constant complex numbers, by place."""
        buffer, load, ix = self.builder.constant(np.concatenate((re, im)).astype(self._numpy)), self.scope.load, self.ix
        return lambda k: (load(buffer, k, self.dtype), load(buffer, ix.offset(k, len(re)), self.dtype))

    @contextmanager
    def _lane_if(self, apart: bool) -> Iterator[Index]:
        if not apart:
            yield self.ix.zero
            return
        with self.lane() as lane:
            yield lane

    def _twiddles(self, r: int, m: int, p: Index, lanes: bool) -> list[Complex]:
        """exp(-2 pi i p j / (r m)) for 0 < j < r, from a table that has those of all p together if p is in lanes."""
        ix = self.ix
        table = np.stack(roots(np.arange(m)[:, None] * np.arange(1, r), r * m, self.dtype), -1)  # by p, j, and part
        table = np.ascontiguousarray(table.transpose(1, 2, 0) if lanes else table).astype(self._numpy)
        buffer = self.builder.constant(table.reshape(-1))

        def at(number: int) -> Expr:
            place = ix.offset(p, number * m) if lanes else ix.offset(ix.scale(p, 2 * (r - 1)), number)
            return self.scope.load(buffer, place, self.dtype)

        return [(at(2 * j), at(2 * j + 1)) for j in range(r - 1)]

    @property
    def _numpy(self) -> str:
        return "float32" if self.dtype == "f32" else "float64"

    # ---------------------------------------------------------------- memory

    def _number(self, place: Index) -> Expr:
        return self.scope.let(Load(self.source, place.expr(), self.dtype), self.scope.depth, "x")

    def _pair(self, place: Index) -> Complex:
        return self._number(place), self._number(self.ix.offset(place, 1))

    def _whole(self, n: int, k: Index, lane: Index) -> Complex:
        """A complex element of the operand."""
        scope = self.scope
        both = scope.let(Load(self.source, self.place(n, k, lane).expr(), self.whole), scope.depth, "x")
        return scope.op("real", (both,), self.dtype), scope.op("imag", (both,), self.dtype)

    def _given(self, n: int, k: Index, lane: Index) -> Complex:
        x = self._whole(n, k, lane)
        return x[::-1] if self.inverse else x

    def _result(self, n: int, k: Index, lane: Index, x: Complex) -> None:
        if self.inverse:
            x = x[::-1]
        both = self.scope.op("complex", [self.butterfly.scaled(part, self.scale) for part in x], self.whole)
        self.scope.store(self.target, self.place(n, k, lane), both)

    def _put(self, place: Index, x: Expr) -> None:
        self.scope.store(self.target, place, self.butterfly.scaled(x, self.scale))

    def _put_pair(self, place: Index, x: Complex) -> None:
        re, im = (self.butterfly.scaled(part, self.scale) for part in x)
        self.scope.store(self.target, place, re)
        self.scope.store(self.target, self.ix.offset(place, 1), im)

    # ---------------------------------------------------------------- transforms of real numbers

    def _parted(self, row: ComplexLine, half: int) -> None:
        """From the transform Z of x[2j] + i x[2j + 1], h elements, that of x: half the sum of Z[k] and conj Z[h - k],
        and -i/2 times w^k their difference."""
        h, ix, b, op = half - 1, self.ix, self.butterfly, self.butterfly.op
        with self.lane() as lane:
            re, im = row.load(ix.zero, lane)
            self._result(half, ix.zero, lane, (op("add", re, im), self.zero))
            self._result(half, ix.const(h), lane, (op("sub", re, im), self.zero))
        if h == 1:
            return
        weights = self._table(*(0.5 * part for part in roots(np.arange(1, h), 2 * h, self.dtype)))
        with self.elements(h - 1) as (k, lane):
            w = weights(k)
            k = ix.offset(k, 1)
            x, y = row.load(k, lane), row.load(ix.sub(ix.const(h), k), lane)
            even = op("add", x[0], y[0]), op("sub", x[1], y[1])
            odd = op("add", x[1], y[1]), op("sub", y[0], x[0])
            even = b.scaled(even[0], 0.5), b.scaled(even[1], 0.5)
            self._result(half, k, lane, b.add(even, b.times(odd, w)))

    def _joined(self, row: ComplexLine, half: int) -> None:
        """The inverse of `_parted`, times 2: the sum of X[k] and conj X[h - k], and i / w^k times their difference."""
        h, ix, b, op = half - 1, self.ix, self.butterfly, self.butterfly.op
        with self.lane() as lane:
            first, last = self._whole(half, ix.zero, lane)[0], self._whole(half, ix.const(h), lane)[0]
            row.store(ix.zero, lane, (op("add", first, last), op("sub", first, last)))
        if h == 1:
            return
        weights = self._table(*roots(np.arange(1, h), 2 * h, self.dtype))
        with self.elements(h - 1) as (k, lane):
            w = weights(k)
            k = ix.offset(k, 1)
            x, y = self._whole(half, k, lane), self._whole(half, ix.sub(ix.const(h), k), lane)
            even = op("add", x[0], y[0]), op("sub", x[1], y[1])
            odd = op("sub", x[0], y[0]), op("add", x[1], y[1])
            odd = b.times(odd, (w[0], op("neg", w[1])))
            row.store(k, lane, (op("sub", even[0], odd[1]), op("add", even[1], odd[0])))

    def _mirrored(self, row: ComplexLine, half: int) -> None:
        """All elements of a transform of an odd number of real ones."""
        ix = self.ix
        with self.lane() as lane:
            row.store(ix.zero, lane, (self._whole(half, ix.zero, lane)[0], self.zero))
        if half == 1:
            return
        with self.elements(half - 1) as (k, lane):
            k = ix.offset(k, 1)
            re, im = self._whole(half, k, lane)
            row.store(k, lane, (re, im))
            row.store(ix.sub(ix.const(self.n), k), lane, (re, self.butterfly.op("neg", im)))
