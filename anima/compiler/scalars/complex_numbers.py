"""Functions of complex numbers, each a pair (real part, imaginary part) of f32 or f64.

Formulas are Kahan's ("Branch cuts for complex elementary functions", 1987): branch cuts respect signed
zeros. Quotients are scaled by powers of two, so that they overflow only if the result does. At infinities
and NaNs results are those of C's Annex G (as of C17); so are the signs of zeros.

    sqrt(z) = (t, y / 2t),   t = sqrt((|x| + |z|) / 2),   for x >= 0
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, log as log_of_number, nan, pi
from typing import Any

from anima.compiler.scalars.base import Num, select
from anima.compiler.scalars.exponential import (
    asinh as asinh_real,
    cosh as cosh_real,
    exp as exp_real,
    exp2 as exp2_real,
    expm1 as expm1_real,
    log as log_real,
    log1p as log1p_real,
    sinh as sinh_real,
)
from anima.compiler.scalars.trigonometric import atan2, cos as cos_real, sin as sin_real, tan as tan_real
from anima.ops.pairs import two_product, two_sum

Complex = tuple[Num, Num]


def _units(x: Num) -> tuple[Num, Num]:
    """2**-e and 2**e, e the exponent of |x|, kept within what both can be."""
    kind = x.kind
    field = x.abs().pattern().shift_right(kind.mantissa)
    field = select(field < 1, 1, field)
    top = 2 * kind.bias - 1
    field = select(field > top, top, field)
    return ((2 * kind.bias - field) << kind.mantissa).number(), (field << kind.mantissa).number()


def _larger(x: Num, y: Num) -> Num:
    return select(x > y, x, y)


def _choose(condition: Num, x: Complex, y: Complex) -> Complex:
    return select(condition, x[0], y[0]), select(condition, x[1], y[1])


def _infinite(z: Complex) -> Num:
    """Whether either part is infinite."""
    return (z[0].abs() == inf) | (z[1].abs() == inf)


def _endless(x: Num) -> Num:
    """Whether x is infinite or NaN."""
    return x.abs().compare("uge", inf)


def _signs(z: Complex) -> Complex:
    """The direction of an infinite number: 1 for parts that are infinite, 0 for others, with their signs."""
    return tuple(select(p.abs() == inf, p.const(1.0), 0.0).copysign(p) for p in z)  # type: ignore[return-value]


def _times_i(z: Complex) -> Complex:
    return -z[1], z[0]


# Arithmetic ----------------------------------------------------------------------------------------


def add(z: Complex, w: Complex) -> Complex:
    return z[0] + w[0], z[1] + w[1]


def sub(z: Complex, w: Complex) -> Complex:
    return z[0] - w[0], z[1] - w[1]


def neg(z: Complex) -> Complex:
    return -z[0], -z[1]


def conj(z: Complex) -> Complex:
    return z[0], -z[1]


def mul(z: Complex, w: Complex) -> Complex:
    # No fma: z * conj(z) must be real.
    return z[0] * w[0] - z[1] * w[1], z[0] * w[1] + z[1] * w[0]


def div(z: Complex, w: Complex) -> Complex:
    """z * conj(w) / |w|**2, both scaled near 1; by zero, each part is divided by zero."""
    down, _ = _units(_larger(w[0].abs(), w[1].abs()))
    shrink, grow = _units(_larger(z[0].abs(), z[1].abs()))
    large, endless = _infinite(z), _infinite(w)
    a, b = _choose(large, _signs(z), (z[0] * shrink, z[1] * shrink))
    c, d = _choose(endless, _signs(w), (w[0] * down, w[1] * down))
    size = c.fma(c, d * d)
    down, grow = select(endless, 0.0, down), select(large, inf, grow)
    result = ((a * c + b * d) / size) * down * grow, ((b * c - a * d) / size) * down * grow
    zero = (w[0] == 0.0) & (w[1] == 0.0)
    return _choose(zero, (z[0] / w[0], z[1] / w[0]), result)


def absolute(z: Complex) -> Num:
    """sqrt(x*x + y*y) without overflow; infinite if either part is."""
    down, up = _units(_larger(z[0].abs(), z[1].abs()))
    x, y = z[0] * down, z[1] * down
    size = x.fma(x, y * y).sqrt() * up
    return select((z[0].abs() == inf) | (z[1].abs() == inf), inf, size)


def sign(z: Complex) -> Complex:
    """z / |z|; the zero itself for zeros, the direction of infinite numbers."""
    down, _ = _units(_larger(z[0].abs(), z[1].abs()))
    x, y = _choose(_infinite(z), _signs(z), (z[0] * down, z[1] * down))
    x, y = _choose(_is_nan(z), (x.const(nan), x.const(nan)), (x, y))
    size = x.fma(x, y * y).sqrt()
    zero = (z[0] == 0.0) & (z[1] == 0.0)
    return _choose(zero, z, (x / size, y / size))


def square(z: Complex) -> Complex:
    return (z[0] - z[1]) * (z[0] + z[1]) + 0.0, z[0] * z[1] * 2.0  # never -0: as of the difference of squares


def reciprocal(z: Complex) -> Complex:
    return div((z[0].const(1.0), z[0].const(0.0)), z)


def integer_pow(z: Complex, y: int) -> Complex:
    """z**y by repeated squaring."""
    if y < 0:
        return reciprocal(integer_pow(z, -y))
    result, power = None, z
    while y:
        if y & 1:
            result = power if result is None else mul(result, power)
        y >>= 1
        if y:
            power = square(power)
    return (z[0].const(1.0), z[0].const(0.0)) if result is None else result


# Exponential, logarithm, powers --------------------------------------------------------------------


def _circle(z: Complex, angle: Num) -> tuple[Num, Num]:
    """cos and sin of the angle; 1 and NaN (0 on the left) where z is infinite and the angle is no number."""
    lost = (z[0].abs() == inf) & _endless(angle)
    return select(lost, 1.0, cos_real(angle)), select(lost & (z[0] < 0.0), 0.0, sin_real(angle))


def exp(z: Complex) -> Complex:
    """e**x * (cos y, sin y); half of e**x is taken first, so that it overflows only if the result does."""
    size = exp_real(z[0], halvings=1)
    cosine, sine = _circle(z, z[1])
    return size * cosine * 2.0, select(z[1] == 0.0, z[1], size * sine * 2.0)


def exp2(z: Complex) -> Complex:
    """2**x * (cos(y log 2), sin(y log 2))."""
    size = exp2_real(z[0])
    cosine, sine = _circle(z, z[1] * log_of_number(2))
    return size * cosine, select(z[1] == 0.0, z[1], size * sine)


def expm1(z: Complex) -> Complex:
    """The real part is expm1(x) cos y - 2 sin(y/2)**2."""
    lost = (z[0].abs() == inf) & _endless(z[1])
    half = sin_real(z[1] * 0.5)
    size = expm1_real(z[0])
    return select(lost, size, size * cos_real(z[1]) - half * half * 2.0), exp(z)[1]


def _log_size(x: Num, y: Num) -> Num:
    """log|z|: log1p(|z|**2 - 1)/2, the difference to twice the precision, where |z| is near 1."""
    large, small = _larger(x.abs(), y.abs()), select(x.abs() > y.abs(), y.abs(), x.abs())
    down, up = _units(large)
    a, b = large * down, small * down
    far = log_real(a.fma(a, b * b)) * 0.5 + log_real(up)
    p, q = two_product(large, large), two_product(small, small)
    s = two_sum(p.hi - 1.0, q.hi)
    near = log1p_real(s.hi + (s.lo + (p.lo + q.lo))) * 0.5
    result = select((large > 0.5) & (large < 2.0), near, far)
    result = select((x == 0.0) & (y == 0.0), -inf, result)  # not `large`, which is y where x is NaN
    return select((x.abs() == inf) | (y.abs() == inf), inf, result)


def log(z: Complex) -> Complex:
    return _log_size(*z), atan2(z[1], z[0])


def log1p(z: Complex) -> Complex:
    """As log(1 + z), with |1 + z|**2 - 1 = x(2 + x) + y*y to twice the precision."""
    x, y = z
    p, q = two_product(x, x), two_product(y, y)
    s = two_sum(x * 2.0, p.hi)
    t = two_sum(s.hi, q.hi)
    near = log1p_real(t.hi + (t.lo + s.lo + p.lo + q.lo)) * 0.5
    small = (x.abs() < 0.5) & (y.abs() < 1.0)
    return select(small, near, _log_size(x + 1.0, y)), atan2(y, x + 1.0)


def sqrt(z: Complex) -> Complex:
    """t = sqrt((|x| + |z|)/2) and y/2t, or the other way round on the left."""
    x, y = z
    down, up = _units(_larger(x.abs(), y.abs()))
    # An even power of two, whose root is exact.
    odd = (up.pattern().shift_right(x.kind.mantissa) & 1) == (1 - x.kind.bias % 2)
    down, up = select(odd, down * 0.5, down), select(odd, up * 2.0, up)
    a, b = x.abs() * down, y.abs() * down
    t = ((a + a.fma(a, b * b).sqrt()) * 0.5).sqrt()
    other = select(t == 0.0, 0.0, b / (t * 2.0))
    root = up.sqrt()
    t, other = t * root, other * root
    left = x < 0.0
    real, imag = select(left, other, t), select(left, t, other)
    infinite, rest = x.abs() == inf, y.abs() * 0.0  # the rest is NaN if y is
    real = select(infinite, select(left, rest, inf), real)
    imag = select(infinite, select(left, rest.const(inf), rest), imag)
    endless = y.abs() == inf
    return select(endless, inf, real), select(endless, inf, imag).copysign(y)


def rsqrt(z: Complex) -> Complex:
    return reciprocal(sqrt(z))


def power(z: Complex, w: Complex) -> Complex:
    """exp(w log z); 1 for w = 0, else 0 for z = 0 (NaN unless the real part of w is positive)."""
    logarithm = log(z)
    # A real exponent multiplies each part: 0 times infinity would be NaN.
    product = _choose(w[1] == 0.0, (w[0] * logarithm[0], w[0] * logarithm[1]), mul(w, logarithm))
    result = exp(product)
    zero = z[0].const(0.0)
    at_zero = select(w[0] > 0.0, zero, nan), select(w[0] > 0.0, zero, nan)
    result = _choose((z[0] == 0.0) & (z[1] == 0.0), at_zero, result)
    return _choose((w[0] == 0.0) & (w[1] == 0.0), (z[0].const(1.0), zero), result)


def logistic(z: Complex) -> Complex:
    """1 / (1 + e**-z) on the right, e**z / (1 + e**z) on the left."""
    left = z[0] < 0.0
    e = exp(_choose(left, z, neg(z)))
    numerator = _choose(left, e, (e[0].const(1.0), e[0].const(0.0)))
    real, imag = div(numerator, (e[0] + 1.0, e[1] + 0.0))
    return real, select(z[1] == 0.0, z[1], imag)


# Trigonometric and hyperbolic ----------------------------------------------------------------------


def sinh(z: Complex) -> Complex:
    real = sinh_real(z[0]) * cos_real(z[1])
    lost = ((z[0] == 0.0) | (z[0].abs() == inf)) & _endless(z[1])
    return select(lost, z[0], real), select(z[1] == 0.0, z[1], cosh_real(z[0]) * sin_real(z[1]))


def cosh(z: Complex) -> Complex:
    real = cosh_real(z[0]) * cos_real(z[1])
    real = select((z[0].abs() == inf) & _endless(z[1]), inf, real)
    imag = sinh_real(z[0]) * sin_real(z[1])
    zero = z[0].const(1.0).copysign(z[0]) * z[0].const(0.0).copysign(z[1])
    return real, select((z[1] == 0.0) | ((z[0] == 0.0) & _endless(z[1])), zero, imag)


def tanh(z: Complex) -> Complex:
    """(c s (1 + t*t) + i t) / (1 + s*s (1 + t*t)), t = tan y, s = sinh x, c = cosh x."""
    limit = 40.0 if z[0].kind.name == "f32" else 350.0
    x = z[0].at_most(limit).at_least(-limit)
    t, s, c = tan_real(z[1]), sinh_real(x), cosh_real(x)
    beta = t.fma(t, 1.0)
    bottom = (beta * s).fma(s, 1.0)
    real, imag = select(x == 0.0, x, beta * c * s / bottom), t / bottom
    far = (z[0].abs() > limit) & (~_endless(z[1]) | (z[0].abs() == inf))
    real, imag = select(far, x.const(1.0).copysign(x), real), select(far, x.const(0.0).copysign(t), imag)
    return real, select(z[1] == 0.0, z[1], imag)


def sin(z: Complex) -> Complex:
    real, imag = sinh(_times_i(z))
    return imag, -real


def cos(z: Complex) -> Complex:
    return cosh(_times_i(z))


def tan(z: Complex) -> Complex:
    real, imag = tanh(_times_i(z))
    return imag, -real


def _roots(z: Complex) -> tuple[Complex, Complex]:
    """sqrt(1 - z) and sqrt(1 + z)."""
    return sqrt((1.0 - z[0], -z[1])), sqrt((z[0] + 1.0, z[1]))


def asin(z: Complex) -> Complex:
    real, imag = asinh(_times_i(z))
    return imag, -real


def acos(z: Complex) -> Complex:
    minus, plus = _roots(z)
    real, imag = atan2(minus[0], plus[0]) * 2.0, asinh_real(plus[0] * minus[1] - plus[1] * minus[0])
    real = select((z[0] == 0.0) & z[1].compare("uno", z[1]), pi / 2, real)
    return _choose(_infinite(z), (atan2(z[1].abs(), z[0]), -z[1].const(inf).copysign(z[1])), (real, imag))


def asinh(z: Complex) -> Complex:
    """Of -i z: Re = asinh(Im(sqrt(1 + i z) conj(sqrt(1 - i z)))), Im = atan2(y, Re(sqrt(1 - i z) sqrt(1 + i z)))."""
    minus, plus = _roots((-z[1], z[0]))
    real = asinh_real(minus[0] * plus[1] - minus[1] * plus[0])
    imag = -atan2(-z[1], minus[0] * plus[0] - minus[1] * plus[1])
    imag = select(z[1] == 0.0, z[1], imag)
    return _choose(_infinite(z), (z[0].const(inf).copysign(z[0]), atan2(z[1], z[0].abs())), (real, imag))


def acosh(z: Complex) -> Complex:
    minus, plus = sqrt((z[0] - 1.0, z[1])), sqrt((z[0] + 1.0, z[1]))
    real, imag = asinh_real(minus[0] * plus[0] + minus[1] * plus[1]), atan2(minus[1], plus[0]) * 2.0
    imag = select((z[0] == 0.0) & z[1].compare("uno", z[1]), pi / 2, imag)
    return _choose(_infinite(z), (z[0].const(inf), atan2(z[1], z[0])), (real, imag))


def atanh(z: Complex) -> Complex:
    """Re = log1p(4x / ((1 - x)**2 + y*y)) / 4, Im = atan2(2y, (1 - x)(1 + x) - y*y) / 2; 1/z + i pi/2 for large z."""
    (x, y), bound = z, 2.0 ** (z[0].kind.mantissa + 6)
    away = 1.0 - x.abs()
    # At 1 the square of a small y would vanish; 1 + 2/y is the root of 1 + 4/y**2 there.
    close = (away == 0.0) & (y.abs() < 1.0 / bound)
    ratio = select(close, 2.0 / y.abs(), x.abs() * 4.0 / away.fma(away, y * y))
    real = log1p_real(ratio) * select(close, x.const(0.5), 0.25)
    imag = atan2(y * 2.0, away * (x.abs() + 1.0) - y * y) * 0.5
    size = _larger(x.abs(), y.abs())
    down, _ = _units(size)
    a, b = x.abs() * down, y * down
    far = (x.abs() > bound) | (y.abs() > bound)
    real = select(far, a / a.fma(a, b * b) * down, real)
    real = select((x == 0.0) | _infinite(z), 0.0, real)
    steep = (far & x.compare("ord", y)) | (y.abs() == inf)
    return real.copysign(x), select(steep, y.const(pi / 2).copysign(y), imag)


def atan(z: Complex) -> Complex:
    real, imag = atanh(_times_i(z))
    return imag, -real


def atan2_of(z: Complex, w: Complex) -> Complex:
    """-i log((w + i z) / sqrt(z*z + w*w))."""
    real, imag = log(div(add(w, _times_i(z)), sqrt(add(mul(z, z), mul(w, w)))))
    return imag, -real


def _is_nan(z: Complex) -> Num:
    return z[0].compare("uno", z[1])


def maximum(z: Complex, w: Complex) -> Complex:
    """The later in the order of real, then imaginary parts; the first with a NaN if there is one."""
    first = (z[0] > w[0]) | ((z[0] == w[0]) & (z[1] >= w[1]))
    return _choose(_is_nan(z), z, _choose(_is_nan(w), w, _choose(first, z, w)))


def minimum(z: Complex, w: Complex) -> Complex:
    """The earlier in the order of real, then imaginary parts; the first with a NaN if there is one."""
    first = (z[0] < w[0]) | ((z[0] == w[0]) & (z[1] <= w[1]))
    return _choose(_is_nan(z), z, _choose(_is_nan(w), w, _choose(first, z, w)))


def eq(z: Complex, w: Complex) -> Num:
    return (z[0] == w[0]) & (z[1] == w[1])


def ne(z: Complex, w: Complex) -> Num:
    return (z[0] != w[0]) | (z[1] != w[1])


def is_finite(z: Complex) -> Num:
    return (z[0].abs() < inf) & (z[1].abs() < inf)


COMPLEX: dict[str, Callable[..., Any]] = {
    "abs": absolute, "acos": acos, "acosh": acosh, "add": add, "add_any": add, "asin": asin, "asinh": asinh,
    "atan": atan, "atan2": atan2_of, "atanh": atanh, "clamp": lambda low, z, high: minimum(maximum(z, low), high),
    "conj": conj, "cos": cos, "cosh": cosh, "div": div, "eq": eq,
    "exp": exp, "exp2": exp2, "expm1": expm1, "imag": lambda z: z[1], "integer_pow": integer_pow,
    "is_finite": is_finite, "log": log, "log1p": log1p, "logistic": logistic, "max": maximum, "min": minimum,
    "mul": mul, "ne": ne, "neg": neg, "pow": power, "real": lambda z: z[0], "rsqrt": rsqrt, "sign": sign, "sin": sin,
    "sinh": sinh, "sqrt": sqrt, "square": square, "sub": sub, "tan": tan, "tanh": tanh,
}
