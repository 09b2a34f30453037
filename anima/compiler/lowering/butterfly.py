"""Short Fourier transforms in registers, and the passes that a longer one is made of.

    dft of (x0, x1)                   x0 + x1, x0 - x1
    factors(64, 1, 16)                (8, 8): each a transform of 8, and between them 49 products by powers of a root

Lengths 2 and 4 and odd primes have formulas of their own, all others are products of these. Methods: Cooley and Tukey
(1965); for odd primes, terms in pairs: Singleton, "An algorithm for computing the mixed radix FFT" (1969).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from anima.compiler.ir.loops import Const, Expr
from anima.compiler.lowering.nest import KernelBuilder

Complex = tuple[Expr, Expr]  # the real and the imaginary part

PRIMES = (2, 3, 5, 7, 11, 13)
_MOST = 8  # elements of a transform in registers, or a prime


def smooth(n: int) -> bool:
    """Whether a length has no other prime factors than those of `PRIMES`."""
    for prime in PRIMES:
        while n % prime == 0:
            n //= prime
    return n == 1


def root(number: int, n: int) -> complex:
    """exp(-2 pi i number / n), to the last digit."""
    re, im = roots(np.array([number]), n)
    return complex(float(re[0]), float(im[0]))


def roots(numbers: np.ndarray, n: int, dtype: str = "f64") -> tuple[np.ndarray, np.ndarray]:
    """The real and the imaginary parts of exp(-2 pi i number / n), computed in a longer float than `dtype`."""
    wide = np.float64 if dtype == "f32" else np.longdouble
    eighths, rest = np.divmod(8 * (numbers % n), n)
    turn = np.arctan(wide(1)) * rest / n  # the angle above so many eighths, below pi / 4
    cos, sin = np.cos(turn), np.sin(turn)
    half = np.sqrt(wide(0.5))
    odd = eighths % 2 == 1
    cos, sin = np.where(odd, (cos - sin) * half, cos), np.where(odd, (cos + sin) * half, sin)
    quarter = eighths // 2
    re = np.choose(quarter, [cos, -sin, -cos, sin])
    im = np.choose(quarter, [-sin, -cos, sin, cos])
    return re, im


class Butterfly:
    """Arithmetic of complex numbers as pairs of named values of a kernel."""

    def __init__(self, scope: KernelBuilder, dtype: str) -> None:
        self.scope = scope
        self.dtype = dtype

    def op(self, name: str, *args: Expr) -> Expr:
        return self.scope.op(name, args, self.dtype)

    def scaled(self, x: Expr, factor: float) -> Expr:
        return x if factor == 1 else self.op("mul", x, Const(factor, self.dtype))

    def add(self, a: Complex, b: Complex) -> Complex:
        return self.op("add", a[0], b[0]), self.op("add", a[1], b[1])

    def sub(self, a: Complex, b: Complex) -> Complex:
        return self.op("sub", a[0], b[0]), self.op("sub", a[1], b[1])

    def times(self, a: Complex, b: Complex) -> Complex:
        """The product."""
        op = self.op
        return (op("sub", op("mul", a[0], b[0]), op("mul", a[1], b[1])),
                op("add", op("mul", a[0], b[1]), op("mul", a[1], b[0])))

    def turned(self, x: Complex, number: int, n: int) -> Complex:
        """`x` times `root(number, n)`."""
        number %= n
        if n % 2 == 0 and 2 * number >= n:
            x, number = (self.op("neg", x[0]), self.op("neg", x[1])), number - n // 2
        if 4 * number == n:
            return x[1], self.op("neg", x[0])
        half = math.sqrt(0.5)
        if 8 * number == n:
            return self.scaled(self.op("add", *x), half), self.scaled(self.op("sub", x[1], x[0]), half)
        if 8 * number == 3 * n:
            return self.scaled(self.op("sub", x[1], x[0]), half), self.scaled(self.op("add", *x), -half)
        w = root(number, n)
        return x if not number else self.times(x, (Const(w.real, self.dtype), Const(w.imag, self.dtype)))

    def dft(self, xs: Sequence[Complex]) -> list[Complex]:
        """The transform of a few elements."""
        n = len(xs)
        if n == 1:
            return list(xs)
        if n == 2:
            return [self.add(*xs), self.sub(*xs)]
        if n == 4:
            (a, c), (b, d) = self.dft(xs[::2]), self.dft(xs[1::2])
            d = d[1], self.op("neg", d[0])
            return [self.add(a, b), self.add(c, d), self.sub(a, b), self.sub(c, d)]
        rows = 4 if n % 4 == 0 else next(p for p in range(2, n + 1) if n % p == 0)
        columns = n // rows
        if columns == 1:
            return self._prime(xs)
        inner = [[self.turned(x, j * k, n) if j * k else x for k, x in enumerate(self.dft(xs[j::columns]))]
                 for j in range(columns)]
        outer = [self.dft([column[k] for column in inner]) for k in range(rows)]
        return [outer[k % rows][k // rows] for k in range(n)]

    def _prime(self, xs: Sequence[Complex]) -> list[Complex]:
        """The transform of an odd number of elements, by the sums and differences of those that mirror each other."""
        n, first = len(xs), xs[0]
        pairs = [(self.add(a, b), self.sub(a, b)) for a, b in zip(xs[1:], xs[:n // 2:-1], strict=False)][:n // 2]
        outs = [first] * n
        for total, _ in pairs:
            outs[0] = self.add(outs[0], total)
        for j in range(1, n // 2 + 1):
            even, odd = first, None
            for k, (total, difference) in enumerate(pairs, 1):
                w = root(j * k, n)
                even = self.add(even, (self.scaled(total[0], w.real), self.scaled(total[1], w.real)))
                term = self.scaled(difference[0], -w.imag), self.scaled(difference[1], -w.imag)
                odd = term if odd is None else self.add(odd, term)
            assert odd is not None
            outs[j] = self.op("add", even[0], odd[1]), self.op("sub", even[1], odd[0])
            outs[n - j] = self.op("sub", even[0], odd[1]), self.op("add", even[1], odd[0])
        return outs


@functools.cache
def operations(n: int) -> int:
    """How many additions and multiplications `dft` of `n` elements takes."""
    nest = KernelBuilder()
    Butterfly(nest, "f64").dft([(Const(0.0, "f64"), Const(0.0, "f64"))] * n)
    return nest.count


@functools.cache
def factors(n: int, stride: int, lanes: int) -> tuple[tuple[int, ...], float]:
    """The lengths of the passes of a transform of `n` elements `stride` apart; what it costs in vector instructions.

    Between elements of one transform there are those of others, in `stride` lanes; if that is 1, the lanes of the first
    pass are along the transform.
    """
    @functools.cache
    def best(done: int) -> tuple[float, tuple[int, ...]]:
        if done == n:
            return 0.0, ()
        found = []
        for r in range(2, max(_MOST, PRIMES[-1]) + 1):
            if n // done % r == 0 and (r <= _MOST or r in PRIMES):
                rest, after = best(done * r)
                found.append((_cost(r, n // done // r, stride * done, lanes) + rest, (r, *after)))
        return min(found)

    cost, passes = best(1)
    return passes or (1,), cost


def cost_of(n: int, stride: int, lanes: int) -> float:
    """What a transform costs in vector instructions, of a length that `factors` may have to lengthen."""
    return factors(n, stride, lanes)[1] if smooth(n) else 2 * factors(longer(n, stride, lanes), stride, lanes)[1]


@functools.cache
def longer(n: int, stride: int, lanes: int) -> int:
    """The best length of convolutions that make a transform of `n` elements."""
    least = 2 * n - 1
    found = (odd << max(0, (-(-least // odd) - 1).bit_length()) for odd in (1, 3, 5, 7, 9, 15))
    return min(found, key=lambda m: factors(m, stride, lanes)[1])


def _cost(r: int, m: int, stride: int, lanes: int) -> float:
    """Vector instructions of a pass: of `m * stride` transforms of `r` elements."""
    along, times = (m, 1) if stride == 1 else (stride, m)
    width = lanes
    while width // 2 >= along:
        width //= 2
    turns = 6 * (r - 1) if m > 1 else 0
    shuffles = 0.0 if stride > 1 else 2 * r * (math.log2(r) if r % 2 == 0 else r - 1)
    partly = 1.5 if along % width else 1.0  # masks in all instructions that touch memory
    return times * -(-along // width) * (operations(r) + turns + 4 * r + shuffles + 4) * partly
