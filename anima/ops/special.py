"""Special functions: the table, and the derivatives that close among them.

    >>> erf.jvp([jnp.zeros(1)], [jnp.ones(1)])        # (erf(x), 2/sqrt(pi) * t * exp(-x^2))
    (Array([0.], dtype=float32), Array([1.1283792], dtype=float32))

Values come from `scipy.special`, loaded when one is first computed (it takes longer to import than all of
this package), and from `series` where it loses digits. The derivative of the incomplete gamma function in
its order, which SciPy lacks, is the derivative of its power series below `x = a + 1` and of its continued
fraction above (DLMF 8.7.1, 8.9.2).
"""

# Rules name operations that are defined further down.
# mypy: disable-error-code="has-type"

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from anima.core import dtypes
from anima.ops import gamma, incomplete, series
from anima.ops.elementwise import (
    abs,
    add,
    div,
    eq,
    exp,
    log,
    log1p,
    lt,
    min,
    mul,
    neg,
    or_,
    pow,
    select_n_p,
    sign,
    square,
    sub,
)
from anima.ops.family import REAL, Elementwise, constant, no_derivative


@functools.cache
def _scipy() -> Any:
    import scipy.special

    return scipy.special


def _named(name: str) -> Callable[..., Any]:
    """SciPy's function of that name."""
    return lambda *args: getattr(_scipy(), name)(*args)


class SciPyBacked(Elementwise):
    """An operation whose values on NumPy arrays are SciPy's."""

    loads = True


# ---------------------------------------------------------------- values

def _erfc(x: np.ndarray) -> Any:
    out = _scipy().erfc(x)
    large = (x > 0.5) & (x < 28)
    return out if x.dtype != np.float64 else np.where(large, series.erfc_tail(np.where(large, x, 1.0)), out)


def _lgamma(x: np.ndarray) -> Any:
    out = np.where(x == -np.inf, -x, _scipy().gammaln(x))  # SciPy has -inf at -inf
    out = _left(out, x, (x < 0) & (x > gamma.PRODUCT_ENDS) & (x != np.rint(x)), gamma.lgamma_left)
    if x.dtype != np.float64:
        return out
    out = np.where((x < 1e-300) & (x > 0), -np.log(np.abs(x)), out)  # and infinity for subnormals
    huge, near = x > 1e300, (x > 1e-300) & (x <= 3)
    large = np.where(huge, x, 1.0)
    out = np.where(huge, large * (np.log(large) - 1), out)  # and too early an infinity
    return np.where(near, series.lgamma_near(np.where(near, x, 1.0)), out)


def _digamma(x: np.ndarray) -> Any:
    whole = x == np.rint(x)
    out = np.where((x <= 0) & whole, np.full_like(x, np.nan), _scipy().psi(x))
    return _left(out, x, (x < 0) & ~whole, gamma.digamma_left)


def _left(out: np.ndarray, x: np.ndarray, here: np.ndarray, function: Callable[..., Any]) -> np.ndarray:
    """`out` with the values of a function of gamma.py where `here`."""
    if np.any(here):
        wide = x[here].astype(np.float64)
        n = -np.rint(wide)
        out[here] = function(n, wide + n, gamma.NUMPY)
    return out


def _polygamma(m: np.ndarray, x: np.ndarray) -> Any:
    """psi^(m)(x) = (-1)^(m+1) m! zeta(m + 1, x) for m >= 1."""
    order = np.maximum(m, 1).astype(np.float64)
    sign_of = np.where(np.mod(order, 2) == 1, 1.0, -1.0)
    higher = sign_of * _scipy().gamma(order + 1) * _scipy().zeta(order + 1, x.astype(np.float64))
    out = np.where(m == 0, _digamma(x), higher)
    return np.where((m < 0) | (m != np.floor(m)), np.nan, out).astype(x.dtype)


def _improved(name: str, function: Callable[..., Any], here: Callable[..., Any]) -> Callable[..., Any]:
    """SciPy's function of that name in float64, and one of incomplete.py where SciPy's loses digits of float64."""
    def values(*args: np.ndarray) -> Any:
        wide = np.broadcast_arrays(*(v.astype(np.float64) for v in args))
        out = np.array(getattr(_scipy(), name)(*wide))
        if args[0].dtype == np.float64:
            with np.errstate(all="ignore"):
                mask = here(*wide)
                if np.any(mask):
                    out[mask] = function(*(v[mask] for v in wide), gamma.NUMPY)
        return out.astype(args[0].dtype)

    return values


def _apart(a: np.ndarray, x: np.ndarray) -> Any:
    """Where the expansions end soon: for large a near x SciPy's, in a, is accurate."""
    return (a > 0) & (x > 0) & (a < 1e9) & (x < 1e9) & ((a < 20) | (np.abs(x - a) > 0.3 * a))


def _within(a: np.ndarray, b: np.ndarray, x: np.ndarray) -> Any:
    return (a > 0) & (b > 0) & (x > 0) & (x < 1) & (a < 1e4) & (b < 1e4)


def _order_slope(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """dP/da divided by dP/dx, of the regularized lower incomplete gamma function P(a, x), in float64."""
    with np.errstate(all="ignore"):
        a, x = np.broadcast_arrays(a.astype(np.float64), x.astype(np.float64))
        low = x < a + 1
        safe = np.where((a > 0) & (x > 0), a, 1.0), np.where((a > 0) & (x > 0), x, 1.0)
        out = np.where(low, _series_slope(safe[0], np.where(low, safe[1], 0.5)),
                       _fraction_slope(safe[0], np.where(low, safe[0] + 2, safe[1])))
        out = np.where(x == 0, 0.0, out)
        return np.where((a > 0) & (x >= 0), out, np.nan)


def _terms(a: np.ndarray) -> int:
    """Enough terms of either expansion for float64, where they converge slowest: near x = a."""
    return 60 + int(12 * math.sqrt(min(float(np.max(a, initial=1.0)), 1e6)))


def _series_slope(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The sum over n of x^(n+1) Gamma(a) / Gamma(a+n+1) (log x - psi(a+n+1))."""
    term, psi, log_x = x / a, _scipy().psi(a + 1), np.log(x)
    total = term * (log_x - psi)
    for n in range(1, _terms(a)):
        psi = psi + 1 / (a + n)
        term = term * (x / (a + n))
        step = term * (log_x - psi)
        total = total + step
        if np.all(np.abs(step) <= 1e-17 * np.abs(total)):
            break
    return total


def _fraction_slope(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """-x (F (log x - psi(a)) + dF/da), with F the continued fraction of Gamma(a, x) e^x / x^a."""
    n = _terms(a)
    value, slope = x + 2 * n + 1 - a, np.full_like(x, -1.0)
    for k in range(n, 0, -1):
        top = k * (a - k)
        slope = -1.0 + k / value - top / value ** 2 * slope
        value = x + 2 * k - 1 - a + top / value
    return -x * ((np.log(x) - _scipy().psi(a)) / value - slope / value ** 2)


def _igamma_grad_a(a: np.ndarray, x: np.ndarray) -> Any:
    dtype = x.dtype
    with np.errstate(all="ignore"):
        slope = _order_slope(a, x)
        a, x = (v.astype(np.float64).ravel() for v in np.broadcast_arrays(a, x))
        density = incomplete.scale(a, x, gamma.NUMPY) * a / x
        return np.where(slope == 0, 0.0, slope * density.reshape(slope.shape)).astype(dtype)


_ERF_INV_CENTRE = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
                   -0.00417768164, 0.246640727, 1.50140941)
_ERF_INV_TAIL = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
                 0.00943887047, 1.00167406, 2.83297682)


def _erf_inv(x: np.ndarray) -> Any:
    """In float32 Giles' polynomials (3.8 ulp), which fix the last digits of all normal random numbers.

    M. Giles, "Approximating the erfinv function", GPU Computing Gems 2, 2011. Near -1 and 1 his 1 - x^2 is
    taken as (1 - x)(1 + x), which loses no digits there.
    """
    if x.dtype != np.float32:
        return np.copysign(_scipy().erfinv(x), x)  # SciPy loses the sign of zero
    f32 = np.float32
    with np.errstate(all="ignore"):
        w = np.where(np.abs(x) < f32(0.9), -np.log1p(-x * x), -np.log((f32(1) - x) * (f32(1) + x)))
        centre = w < f32(5)
        w = np.where(centre, w - f32(2.5), np.sqrt(w) - f32(3))
        p = np.where(centre, f32(_ERF_INV_CENTRE[0]), f32(_ERF_INV_TAIL[0]))
        for a, b in zip(_ERF_INV_CENTRE[1:], _ERF_INV_TAIL[1:], strict=True):
            p = np.where(centre, f32(a), f32(b)) + p * w
        return np.where(np.abs(x) == 1, x * f32(np.inf), p * x)


# ---------------------------------------------------------------- derivatives

def near_zero(x: Any, bound: float, series: Callable[[Any], Any], elsewhere: Callable[[Any], Any]) -> Any:
    """`series(x)` where |x| < bound, `elsewhere(x)` where it is not, each on numbers that it is meant for."""
    near = lt(abs(x), bound)
    one = constant(1, x.dtype)
    return select_n_p.bind(near, elsewhere(select_n_p.bind(near, x, one)), series(select_n_p.bind(near, one, x)))


def power_series(coefficients: list[float]) -> Callable[[Any], Any]:
    def series(x: Any) -> Any:
        total = constant(coefficients[-1], x.dtype)
        for c in coefficients[-2::-1]:
            total = add(mul(total, x), c)
        return total

    return series


_I1_OVER_X = power_series([0.5 / 4**k / (math.factorial(k) * math.factorial(k + 1)) for k in range(10)])  # of x**2


def bessel_i1_over_x(x: Any, y: Any, scale: Callable[[Any], Any]) -> Any:
    """y / x for y = scale(x) I1(x), by a series near 0, where derivatives of the quotient would cancel."""
    return near_zero(x, 1.0, lambda v: mul(scale(v), _I1_OVER_X(square(v))), lambda v: div(y, v))


def _i1e_slope(t: Any, y: Any, x: Any) -> Any:
    quotient = bessel_i1_over_x(x, y, lambda v: exp(neg(mul(v, sign(v)))))  # abs has a slope at 0
    return mul(t, sub(bessel_i0e(x), add(mul(y, sign(x)), quotient)))


def _igamma_slope(a: Any, x: Any) -> Any:
    """x^(a-1) e^-x / Gamma(a), as a power at 0 and by logarithms elsewhere, where the power may overflow."""
    x, power, size = min(x, constant(dtypes.finfo(x.dtype).max, x.dtype)), sub(a, 1.0), lgamma(a)
    end = eq(x, 0)
    inner = select_n_p.bind(end, x, constant(1, x.dtype))
    inside = exp(sub(sub(mul(power, log(inner)), inner), size))
    x = select_n_p.bind(end, constant(1, x.dtype), x)
    return select_n_p.bind(end, inside, mul(pow(x, power), exp(neg(add(x, size)))))


def _log_excess(a: Any, x: Any) -> Any:
    """The derivative in a of log(x^(a-1) e^-x / Gamma(a)), where x is positive."""
    return sub(log(select_n_p.bind(eq(x, 0), x, constant(1, x.dtype))), digamma(a))


def _betainc_slope(t: Any, y: Any, a: Any, b: Any, x: Any) -> Any:
    """x^(a-1) (1-x)^(b-1) / B(a, b), as powers at 0 and 1 and by logarithms between them."""
    log_beta = sub(add(lgamma(a), lgamma(b)), lgamma(add(a, b)))
    p, q = sub(a, 1.0), sub(b, 1.0)
    end = or_(eq(x, 0), eq(x, 1))
    inner = select_n_p.bind(end, x, constant(0.5, x.dtype))
    inside = exp(sub(add(mul(q, log1p(neg(inner))), mul(p, log(inner))), log_beta))
    x = select_n_p.bind(end, constant(0.5, x.dtype), x)
    return mul(t, select_n_p.bind(end, inside, mul(mul(pow(x, p), pow(sub(1.0, x), q)), exp(neg(log_beta)))))


def _zeta_slope(t: Any, y: Any, x: Any, q: Any) -> Any:
    """The sum of -log(k + q) (k + q)^-x: ten terms, and for the others the derivative of Euler and Maclaurin's
    formula (DLMF 25.11.5)."""
    one = constant(1, x.dtype)
    terms = [neg(mul(log(base), pow(base, neg(x)))) for base in (add(q, float(k)) for k in range(10))]
    base = add(q, 10.0)
    size, above = log(base), sub(x, 1.0)
    power = pow(base, neg(x))
    near = select_n_p.bind(eq(power, 0), x, one)  # beyond, what follows is nothing, but may overflow
    inverse = div(one, square(base))
    factor, slope = div(near, base), div(one, near)
    tail = constant(0, x.dtype)
    for j, c in enumerate(series.BERNOULLI):
        tail = add(tail, mul(mul(c, factor), sub(slope, size)))
        a, b = add(near, float(2 * j + 1)), add(near, float(2 * j + 2))
        factor, slope = mul(mul(factor, inverse), mul(a, b)), add(slope, add(div(one, a), div(one, b)))
    rest = add(mul(div(base, above), add(size, div(one, above))), mul(0.5, size))
    total = functools.reduce(add, terms, mul(power, sub(tail, rest)))
    return mul(t, select_n_p.bind(eq(y, y), y, total))


erf = SciPyBacked("erf", _named("erf"), REAL, "The error function.",
                  cost=10, jvp=(lambda t, y, x: mul(2 / math.sqrt(math.pi), mul(t, exp(neg(square(x))))),))
erfc = SciPyBacked("erfc", _erfc, REAL, "1 - erf(x), accurate for large x.",
                   cost=40, jvp=(lambda t, y, x: mul(-2 / math.sqrt(math.pi), mul(t, exp(neg(square(x))))),))
erf_inv = SciPyBacked("erf_inv", _erf_inv, REAL, "The inverse of erf.",
                      cost=15, jvp=(lambda t, y, x: mul(math.sqrt(math.pi) / 2, mul(t, exp(square(y)))),))
lgamma = SciPyBacked("lgamma", _lgamma, REAL, "log |Gamma(x)|.",
                     cost=50, jvp=(lambda t, y, x: mul(t, digamma(x)),))
digamma = SciPyBacked("digamma", _digamma, REAL, "The derivative of lgamma; NaN at its poles.",
                      cost=30, jvp=(lambda t, y, x: mul(t, polygamma(1.0, x)),))
polygamma = SciPyBacked("polygamma", _polygamma, REAL, "The m-th derivative of digamma at x.",
                        operands="m x", cost=400,
                        jvp=(no_derivative("polygamma", "m", ValueError),
                             lambda t, y, m, x: mul(t, polygamma(add(m, 1.0), x))))
zeta = SciPyBacked("zeta", _named("zeta"), REAL, "Hurwitz's zeta function, the sum of (k + q)^-x.",
                   operands="x q", cost=90,
                   jvp=(_zeta_slope, lambda t, y, x, q: mul(t, neg(mul(x, zeta(add(x, 1.0), q))))))
bessel_i0e = Elementwise("bessel_i0e", series.bessel_i0e, REAL, "exp(-|x|) I_0(x), a modified Bessel function.",
                         cost=15, jvp=(lambda t, y, x: mul(t, sub(bessel_i1e(x), mul(sign(x), y))),))
bessel_i1e = Elementwise("bessel_i1e", series.bessel_i1e, REAL, "exp(-|x|) I_1(x), a modified Bessel function.",
                         cost=15, jvp=(_i1e_slope,))
igamma = SciPyBacked("igamma", _improved("gammainc", incomplete.igamma, _apart), REAL,
                     "Regularized lower incomplete gamma function.",
                     operands="a x", cost=140,
                     jvp=(lambda t, y, a, x: mul(t, igamma_grad_a(a, x)),
                          lambda t, y, a, x: mul(t, _igamma_slope(a, x))))
igammac = SciPyBacked("igammac", _improved("gammaincc", incomplete.igammac, _apart), REAL,
                      "Regularized upper incomplete gamma function.",
                      operands="a x", cost=140,
                      jvp=(lambda t, y, a, x: mul(t, neg(igamma_grad_a(a, x))),
                           lambda t, y, a, x: mul(t, neg(_igamma_slope(a, x)))))
igamma_grad_a = SciPyBacked("igamma_grad_a", _igamma_grad_a, REAL, "The derivative of igamma in a.",
                            operands="a x",
                            cost=180, jvp=(no_derivative("igamma_grad_a", "a"),
                                            lambda t, y, a, x: mul(mul(t, _igamma_slope(a, x)), _log_excess(a, x))))
random_gamma_grad_p = SciPyBacked(
    "random_gamma_grad", lambda a, x: (-_order_slope(a, x)).astype(x.dtype), REAL,
    "The derivative in a of a sample x of the gamma distribution of order a.", operands="a x",
    cost=100, jvp=(no_derivative("random_gamma_grad", "a"),
                   lambda t, y, a, x: neg(mul(t, add(_log_excess(a, x), mul(y, sub(div(sub(a, 1.0), x), 1.0)))))))
betainc = SciPyBacked("regularized_incomplete_beta", _improved("betainc", incomplete.betainc, _within), REAL,
                      "Regularized incomplete beta function I_x(a, b).", operands="a b x",
                      cost=260,
                      jvp=(no_derivative("betainc", "a", ValueError), no_derivative("betainc", "b", ValueError),
                           _betainc_slope))
