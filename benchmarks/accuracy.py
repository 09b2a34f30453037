"""The largest errors of elementwise functions, in units in the last place, eager and compiled.

    python -m benchmarks.accuracy [NAME ...] [--points 20000]

Arguments are of all magnitudes and signs, and next to zeros. Results are compared with NumPy's long doubles where
those have the function and enough digits, and with mpmath (a tenth to a fiftieth of the points) elsewhere.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import mpmath
import numpy as np

import anima
from anima import lax
from anima.scipy import special

Arrays = tuple[np.ndarray, ...]
Sampler = Callable[[np.random.Generator, int, Any], Arrays]
WIDE = np.longdouble
HAVE_WIDE = np.finfo(WIDE).nmant >= 63
LIKE = {np.float32: (np.uint32, 24, -149), np.float64: (np.uint64, 53, -1074)}


@dataclass(frozen=True)
class Function:
    """A function, its exact values, where to look, and the share of the points that mpmath has time for."""

    name: str
    exact: Callable[..., Any]
    sample: Sampler
    wide: Callable[..., Any] | None = None
    share: float = 0.1
    call: Callable[..., Any] | None = None  # where its name is none of `lax` or `scipy.special`


# ---------------------------------------------------------------- arguments

def anywhere(low: float = -np.inf, high: float = np.inf, *centres: float) -> Sampler:
    """All bit patterns between two numbers, ordinary sizes, and the neighbours of some numbers."""
    def sample(random: np.random.Generator, count: int, dtype: Any) -> Arrays:
        bits, digits, _ = LIKE[dtype]
        any_bits = random.integers(0, np.iinfo(bits).max, count, dtype=bits).view(dtype)
        ordinary = (10.0 ** random.uniform(-6, 3, count) * random.choice([-1, 1], count)).astype(dtype)
        small = random.uniform(-20, 20, count).astype(dtype)
        near = [np.asarray(c * (1 + random.choice([-1, 1], 200) * 2.0 ** -random.uniform(1, digits + 1, 200)), dtype)
                for c in centres]
        x = np.concatenate([any_bits, ordinary, small, *near])
        with np.errstate(invalid="ignore"):
                inside = np.isfinite(x) & (x >= low) & (x <= high) & (x != 0) & ((x > 0) | (x != np.floor(x)))
        return (x[inside],)  # no poles

    return sample


def powers(*ranges: tuple[float, float]) -> Sampler:
    """Each argument ten to a power from its range."""
    return lambda random, count, dtype: tuple((10.0 ** random.uniform(*r, count)).astype(dtype) for r in ranges)


def around(largest: float) -> Sampler:
    """Orders and arguments of the incomplete gamma functions: apart, and close to each other."""
    def sample(random: np.random.Generator, count: int, dtype: Any) -> Arrays:
        a = 10.0 ** random.uniform(-3, largest, 2 * count)
        apart = 10.0 ** random.uniform(-3, largest, count)
        close = np.abs(a[count:] + random.normal(size=count) * 3 * np.sqrt(a[count:] + 0.1))
        return a.astype(dtype), np.concatenate([apart, close]).astype(dtype)

    return sample


def orders(random: np.random.Generator, count: int, dtype: Any) -> Arrays:
    """An order and an argument of polygamma."""
    return random.integers(0, 12, count).astype(dtype), (10.0 ** random.uniform(-3, 4, count)).astype(dtype)


def shares(random: np.random.Generator, count: int, dtype: Any) -> Arrays:
    """Arguments of the incomplete beta function, x anywhere and near the mean."""
    a, b = (10.0 ** random.uniform(-2, 3, 2 * count) for _ in range(2))
    spread = np.sqrt(a * b / (a + b) ** 2 / (a + b + 1))
    close = np.clip(a / (a + b) + random.normal(size=2 * count) * 3 * spread, 1e-9, 1 - 1e-9)
    x = np.where(np.arange(2 * count) < count, random.uniform(0, 1, 2 * count), close)
    x = np.minimum(x.astype(dtype), np.nextafter(dtype(1), dtype(0)))
    return a.astype(dtype), b.astype(dtype), x


# ---------------------------------------------------------------- exact values

def _lgamma(x: Any) -> Any:
    if x > 0:
        return mpmath.loggamma(x)
    with mpmath.workprec(mpmath.mp.prec + 60):
        return mpmath.log(mpmath.pi / abs(mpmath.sinpi(x))) - mpmath.loggamma(1 - x)


def _digamma(x: Any) -> Any:
    with mpmath.workprec(mpmath.mp.prec + 60):
        return mpmath.digamma(1 - x) - mpmath.pi * mpmath.cospi(x) / mpmath.sinpi(x) if x < 0 else mpmath.digamma(x)


def _sums(a: Any, x: Any) -> tuple[Any, Any]:
    """x**a e**-x / Gamma(a + 1) times the sums of x**n / (a + 1)_n, and of that times 1/(a + 1) + ... + 1/(a + n)."""
    term = total = mpmath.mpf(1)
    harmonic = slope = mpmath.mpf(0)
    n = 0
    while term * (1 + harmonic) > mpmath.eps * min(total, slope or total) or n < x - a:
        n += 1
        term *= x / (a + n)
        harmonic += 1 / (a + n)
        total += term
        slope += term * harmonic
    scale = mpmath.exp(a * mpmath.log(x) - x - mpmath.loggamma(a + 1))
    return scale * total, scale * slope


def _precise(function: Callable[..., Any]) -> Callable[..., Any]:
    """With the digits that differences from 1 as small as e**-x cost."""
    def exact(a: Any, x: Any) -> Any:
        with mpmath.workprec(200 + int(min(1.5 * max(x - a, 0), 1200))):
            return function(a, x)

    return exact


def _in_order(a: Any, x: Any) -> Any:
    total, slope = _sums(a, x)
    return total * (mpmath.log(x) - mpmath.digamma(a + 1)) - slope


def _of_sample(a: Any, x: Any) -> Any:
    return -_in_order(a, x) / mpmath.exp((a - 1) * mpmath.log(x) - x - mpmath.loggamma(a))


def _tail(a: Any, b: Any, x: Any) -> Any:
    """The incomplete beta function over x**a (1 - x)**b, by its series of positive terms (8.17.8)."""
    term = total = 1 / a
    n = 0
    while term > mpmath.eps * total:
        term *= (a + b + n) / (a + 1 + n) * x
        n += 1
        total += term
    return total


def _beta(a: Any, b: Any, x: Any) -> Any:
    with mpmath.workprec(300):
        log_beta = mpmath.loggamma(a) + mpmath.loggamma(b) - mpmath.loggamma(a + b)
        swap = x > (a + 1) / (a + b + 2)
        p, q, y = (b, a, 1 - x) if swap else (a, b, x)
        tail = mpmath.exp(p * mpmath.log(y) + q * mpmath.log(1 - y) - log_beta) * _tail(p, q, y)
        return 1 - tail if swap else tail


def _zeta(x: Any, q: Any) -> Any:
    """Forty terms, and Euler and Maclaurin's formula: mpmath's is exact relative to 1."""
    w = q + 40
    total, term = sum((q + k) ** -x for k in range(40)) + w ** (1 - x) / (x - 1) + w ** -x / 2, x * w ** (-x - 1)
    for j in range(1, 40):
        total += mpmath.bernoulli(2 * j) / mpmath.factorial(2 * j) * term
        term *= (x + 2 * j - 1) * (x + 2 * j) / w ** 2
    return total


def _polygamma(m: Any, x: Any) -> Any:
    return _digamma(x) if m == 0 else (-1) ** (int(m) + 1) * mpmath.factorial(int(m)) * _zeta(m + 1, x)


def _bessel(order: int) -> Callable[[Any], Any]:
    def exact(x: Any) -> Any:
        with mpmath.workprec(120):
            return mpmath.besseli(order, x) * mpmath.exp(-abs(x))

    return exact


def _owens_t(h: Any, a: Any) -> Any:
    end = min(a, 20 / h)
    pieces = [end * k / 8 for k in range(9)]
    whole = mpmath.quad(lambda x: mpmath.exp(-h * h * x * x / 2) / (1 + x * x), pieces)
    return mpmath.exp(-h * h / 2) * whole / (2 * mpmath.pi)


def _log_ndtr(x: Any) -> Any:
    with mpmath.workprec(400):
        return mpmath.log1p(-mpmath.erfc(x / mpmath.sqrt(2)) / 2) if x > 0 else mpmath.log(mpmath.erfc(
            -x / mpmath.sqrt(2)) / 2)


def _ndtri(p: Any) -> Any:
    """By Newton's method on the logarithm of the smaller tail."""
    if p == 0.5:
        return mpmath.mpf(0)
    with mpmath.workprec(200):
        tail = min(p, 1 - p)
        y = -mpmath.sqrt(-2 * mpmath.log(tail)) if tail < 0.1 else mpmath.mpf(-0.5)
        for _ in range(60):
            value = mpmath.erfc(-y / mpmath.sqrt(2)) / 2
            slope = mpmath.exp(-y * y / 2) / mpmath.sqrt(2 * mpmath.pi) / value
            y -= (mpmath.log(value) - mpmath.log(tail)) / slope
        return y if p < 0.5 else -y


def _erfcx(x: Any) -> Any:
    with mpmath.workprec(300):
        return mpmath.exp(x * x) * mpmath.erfc(x) if x < 1e4 else (1 - 1 / (2 * x * x)) / x / mpmath.sqrt(mpmath.pi)


def _dawsn(x: Any) -> Any:
    with mpmath.workprec(300):
        if abs(x) > 1e3:
            return 1 / (2 * x) + 1 / (4 * x**3) + 3 / (8 * x**5)
        return mpmath.sqrt(mpmath.pi) / 2 * mpmath.exp(-x * x) * mpmath.erfi(x)


mp = mpmath
FUNCTIONS = (
    Function("exp", mp.exp, anywhere(-750, 710), np.exp),
    Function("exp2", lambda x: mp.mpf(2) ** x, anywhere(-1080, 1024), np.exp2),
    Function("expm1", mp.expm1, anywhere(-50, 710), np.expm1),
    Function("log", mp.log, anywhere(0, np.inf, 1), np.log),
    Function("log1p", mp.log1p, anywhere(-1, np.inf), np.log1p),
    Function("sin", mp.sin, anywhere(-np.inf, np.inf, np.pi, 2 * np.pi, 11 * np.pi), None),
    Function("cos", mp.cos, anywhere(-np.inf, np.inf, np.pi / 2, 3.5 * np.pi), None),
    Function("tan", mp.tan, anywhere(-np.inf, np.inf, np.pi / 2, np.pi), None),
    Function("asin", mp.asin, anywhere(-1, 1, 1, 0.5), np.arcsin),
    Function("acos", mp.acos, anywhere(-1, 1, 1, 0.5), np.arccos),
    Function("atan", mp.atan, anywhere(), np.arctan),
    Function("sinh", mp.sinh, anywhere(-710, 710), np.sinh),
    Function("cosh", mp.cosh, anywhere(-710, 710), np.cosh),
    Function("tanh", mp.tanh, anywhere(), np.tanh),
    Function("asinh", mp.asinh, anywhere(), np.arcsinh),
    Function("acosh", mp.acosh, anywhere(1, np.inf, 1), np.arccosh),
    Function("atanh", mp.atanh, anywhere(-1, 1, 1), np.arctanh),
    Function("cbrt", lambda x: mp.sign(x) * mp.cbrt(abs(x)), anywhere(), np.cbrt),
    Function("rsqrt", lambda x: 1 / mp.sqrt(x), anywhere(0), lambda x: 1 / np.sqrt(x)),
    Function("logistic", lambda x: 1 / (1 + mp.exp(-x)), anywhere(-745), lambda x: 1 / (1 + np.exp(-x))),
    Function("erf", mp.erf, anywhere(-10, 10)),
    Function("erfc", mp.erfc, anywhere(-10, 27.3)),
    Function("erf_inv", mp.erfinv, anywhere(-0.9999999, 0.9999999, 0.9999), share=0.03),
    Function("lgamma", _lgamma, anywhere(-1e8, np.inf, 1, 2, -2.4570247382208, -2.747682646727, -3.14358088834998,
                                         -3.955294284858598, -4.039361839740536, -9.702672540001863)),
    Function("digamma", _digamma, anywhere(-1e8, np.inf, 1.4616321449683622, -0.504083008264455, -1.573498473162391,
                                           -2.610720868444145, -3.635293366436901, -9.70267254000186)),
    Function("bessel_i0e", _bessel(0), anywhere(-1e4, 1e4), share=0.03),
    Function("bessel_i1e", _bessel(1), anywhere(-1e4, 1e4), share=0.03),
    Function("atan2", mp.atan2, powers((-30, 30), (-30, 30)), np.arctan2),
    Function("pow", mp.power, powers((-30, 30), (-3, 0.1)), np.power),
    Function("polygamma", _polygamma, orders, share=0.03),
    Function("zeta", _zeta, powers((0.01, 1.3), (-3, 4)), share=0.03),
    Function("igamma", _precise(lambda a, x: _sums(a, x)[0]), around(3.5), share=0.02),
    Function("igammac", _precise(lambda a, x: 1 - _sums(a, x)[0]), around(2.8), share=0.02),
    Function("igamma_grad_a", _precise(_in_order), around(2.8), share=0.02),
    Function("random_gamma_grad", _precise(_of_sample), around(2.8), share=0.02),
    Function("betainc", _beta, shares, share=0.02),
    Function("gamma", mp.gamma, anywhere(-170, 171.6), share=0.03),
    Function("beta", mp.beta, powers((-3, 2), (-3, 2)), share=0.03),
    Function("betaln", lambda a, b: mp.loggamma(a) + mp.loggamma(b) - mp.loggamma(a + b), powers((-3, 6), (-3, 6)),
             share=0.03),
    Function("poch", mp.rf, powers((-3, 2), (-3, 1.5)), share=0.03),
    Function("erfcx", _erfcx, anywhere(-26, 1e30), share=0.03),
    Function("dawsn", _dawsn, anywhere(-1e30, 1e30), share=0.03),
    Function("ndtr", lambda x: mp.erfc(-x / mp.sqrt(2)) / 2, anywhere(-37, 1e3), share=0.03),
    Function("log_ndtr", _log_ndtr, anywhere(-1e3, 13), share=0.03),
    Function("ndtri", _ndtri, anywhere(0, 1, 0.5), share=0.01),
    Function("owens_t", _owens_t, powers((-3, 1), (-3, 2)), share=0.003),
    Function("exp1", mp.e1, anywhere(0, 700), share=0.03),
    Function("expi", mp.ei, anywhere(-700, 700, 0.37250741078136663), share=0.03),
    Function("expn", lambda n, x: mp.expint(int(n), x), lambda random, count, dtype: (
        random.integers(2, 30, count).astype(dtype), (10.0 ** random.uniform(-4, 2, count)).astype(dtype)), share=0.02),
    Function("Si", mp.si, anywhere(-1e6, 1e6), share=0.03, call=lambda x: special.sici(x)[0]),
    Function("Ci", mp.ci, anywhere(0, 3), share=0.03, call=lambda x: special.sici(x)[1]),
    Function("fresnel S", mp.fresnels, anywhere(-1e4, 1e4), share=0.02, call=lambda x: special.fresnel(x)[0]),
    Function("fresnel C", mp.fresnelc, anywhere(-1e4, 1e4), share=0.02, call=lambda x: special.fresnel(x)[1]),
    Function("spence", lambda x: mp.polylog(2, 1 - x), anywhere(0, np.inf, 1), share=0.02),
    Function("hyp1f1", mp.hyp1f1, powers((-1, 1), (-1, 1), (-3, 2)), share=0.01),
    Function("hyp2f1", mp.hyp2f1, powers((-1, 0.5), (-1, 0.5), (-1, 0.5), (-3, -0.05)), share=0.01),
)


# ---------------------------------------------------------------- errors

def exact_values(function: Function, args: Arrays, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Exact results as pairs: a long double, or a float64 and the rest."""
    if function.wide is not None and HAVE_WIDE:
        out = function.wide(*(a.astype(WIDE) for a in args))
        return out, np.zeros_like(out)
    high, low = np.empty(args[0].size), np.empty(args[0].size)
    with mpmath.workprec(140):
        for i in range(high.size):
            value = mpmath.re(function.exact(*(mpmath.mpf(float(a[i])) for a in args)))
            high[i] = float(value)
            low[i] = float(value - mpmath.mpf(high[i])) if np.isfinite(high[i]) else 0.0
    return high, low


def units(got: np.ndarray, exact: tuple[np.ndarray, np.ndarray], dtype: Any) -> np.ndarray:
    """Errors in units in the last place of the exact results; 0 where both overflow, or what is not normal became 0."""
    _, digits, least = LIKE[dtype]
    high, low = exact
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(high)
        unit = np.ldexp(np.ones_like(high), np.maximum(exponent - digits, least))
        error = np.abs((got.astype(high.dtype) - high) - low) / unit
        over = np.abs(high) >= float(np.finfo(dtype).max)
        under = (got == 0) & (np.abs(high) < float(np.finfo(dtype).tiny))
        return np.where(over | under, 0.0, np.where(np.isnan(error), np.inf, error))


def rows(function: Function, points: int) -> Iterator[tuple[str, str, int, float, tuple[float, ...]]]:
    """(type, way, number of points, largest error, where) of one function."""
    f = function.call or getattr(lax, function.name, None) or getattr(special, function.name)
    for dtype in LIKE:
        count = points if function.wide is not None and HAVE_WIDE else max(50, int(points * function.share))
        args = function.sample(np.random.default_rng(1), count, dtype)
        exact = exact_values(function, args, dtype)
        with np.errstate(all="ignore"):
            for way, g in (("eager", partial(few_at_once, f)), ("compiled", anima.jit(f))):
                errors = units(np.asarray(g(*args)), exact, dtype)
                k = int(np.argmax(errors))
                yield dtype.__name__, way, errors.size, float(errors[k]), tuple(float(a[k]) for a in args)


def few_at_once(f: Callable[..., Any], *args: Any) -> np.ndarray:
    """Small arrays, which eager operations leave to NumPy."""
    size = 1000
    return np.concatenate([f(*(x[at:at + size] for x in args)) for at in range(0, len(args[0]), size)])


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--points", type=int, default=20_000)
    given = parser.parse_args(argv or [])
    with anima.enable_x64(True):
        for function in FUNCTIONS:
            if not given.names or function.name in given.names:
                for dtype, way, count, error, where in rows(function, given.points):
                    at = ", ".join(f"{w!r}" for w in where)
                    print(f"{function.name:18s} {dtype} {way:9s} {count:8d} points {error:10.3g} ulp at {at}",
                          flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
