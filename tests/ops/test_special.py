"""Special functions to four units in the last place, eager and compiled, against mpmath; zeros keep their signs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

import anima
import anima.numpy as jnp
import anima.scipy.special
from anima import lax
from anima.config import config
from tests.compiler.test_scalars import units

Ranges = tuple[tuple[float, float], ...]


def _lgamma(x: Any) -> Any:
    return mpmath.loggamma(x) if x > 0 else mpmath.log(mpmath.pi / abs(mpmath.sinpi(x))) - mpmath.loggamma(1 - x)


def _digamma(x: Any) -> Any:
    return mpmath.digamma(x) if x > 0 else mpmath.digamma(1 - x) - mpmath.pi * mpmath.cospi(x) / mpmath.sinpi(x)


def _scaled_bessel(order: int) -> Callable[[Any], Any]:
    return lambda x: mpmath.besseli(order, x) * mpmath.exp(-abs(x))


# The function, its exact counterpart, and ranges on both sides of every constant at which its formula changes.
SPECIAL: dict[str, tuple[Callable[[Any], Any], Ranges]] = {
    "erf": (mpmath.erf, ((-1.1, 1.1), (-6, 6), (-1e-3, 1e-3), (3.9, 4), (5.8, 6))),
    "erfc": (mpmath.erfc, ((-1, 1), (0.4, 0.6), (-6, 10), (0, 27), (9, 10.1), (26, 27.3))),
    "ndtr": (mpmath.ncdf, ((-1, 1), (-0.6, 0.6), (-6, 6), (-12.9, 0), (-36, -14))),
    "erf_inv": (mpmath.erfinv, ((-1, 1), (0.99, 1), (0.999999, 1))),
    "lgamma": (_lgamma, ((0.3, 3.2), (0.7, 0.8), (0.999, 1.001), (1.999, 2.001), (2.9, 8.1), (0, 20), (0, 1e5),
                         (-1, 0), (-4, 0), (-20, 0), (-101, -99), (-1e4, 0))),
    "digamma": (_digamma, ((0.3, 3.2), (1.4616, 1.4617), (2.9, 8.1), (0, 20), (0, 1e5), (-1, 0), (-17, 0), (-1e3, 0))),
    "bessel_i0e": (_scaled_bessel(0), ((-9, 9), (7.9, 8.1), (-100, 100), (-1e-3, 1e-3), (0, 1e5))),
    "bessel_i1e": (_scaled_bessel(1), ((-9, 9), (7.9, 8.1), (-100, 100), (-1e-3, 1e-3), (0, 1e5))),
    "i0": (lambda x: mpmath.besseli(0, x), ((-9, 9), (60, 68), (85, 91.9), (-91.9, -85), (500, 520), (700, 713.9))),
}
ROOTS = {"lgamma": (1.0, 2.0), "digamma": (1.4616321449683622,)}


def neighbours(x: float, dtype: Any) -> list[Any]:
    """A number and those next to it, at growing distances."""
    around = [dtype(x)]
    for direction in (-np.inf, np.inf):
        step = dtype(x)
        for _ in range(3):
            step = np.nextafter(step, dtype(direction))
            around.append(step)
    return around + [dtype(x * (1 + sign * 2.0**-k)) for sign in (-1, 1) for k in range(4, 50, 3)]


def compiled(f: Callable[[Any], Any], x: np.ndarray) -> np.ndarray:
    """All results that IEEE 754 has; where values decay, the subnormal ones are 0 unless they are asked for."""
    with config.option("flush_subnormals")(False):
        out = np.asarray(anima.jit(f)(x))
    flushed = np.asarray(anima.jit(f)(x))
    kept = (np.abs(out) >= np.finfo(out.dtype).tiny) | (flushed != 0) | np.isnan(out)
    np.testing.assert_array_equal(flushed, np.where(kept, out, 0))
    return out


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", SPECIAL)
def test_four_units(name: str, dtype: Any, x64: None) -> None:
    exact, ranges = SPECIAL[name]
    random = np.random.default_rng(11)
    x = np.concatenate([*[random.uniform(low, high, 60).astype(dtype) for low, high in ranges],
                        *[np.array(neighbours(r, dtype)) for r in ROOTS.get(name, ())]])
    x = x[np.abs(x) < 1] if name == "erf_inv" else x[(x > 0) | (x != np.rint(x))] if "gamma" in name else x
    if name == "i0" and dtype == np.float32:
        x = x[np.abs(x) < 92]
    if name == "ndtr" and dtype == np.float32:
        x = x[x > -13]  # what is left of it is subnormal
    f = getattr(lax, name, None) or getattr(jnp, name, None) or getattr(anima.scipy.special, name)
    with np.errstate(all="ignore"):
        results = {"eager": np.asarray(f(x)), "compiled": compiled(f, x)}
    short = "f32" if dtype == np.float32 else "f64"
    with mpmath.workprec(160):
        wanted = [exact(mpmath.mpf(float(v))) for v in x]
        for way, got in results.items():
            errors = [units(float(g), w, short) for g, w in zip(got, wanted, strict=True)]
            k = int(np.argmax(errors))
            assert errors[k] <= 4, f"{name} {short} {way}: {errors[k]} units at {x[k]!r}"


def _between(function: Callable[[Any], Any], low: Any, high: Any) -> Any:
    """The root of a function between two numbers, by halving."""
    below = function(low) > 0
    for _ in range(110):
        middle = (low + high) / 2
        low, high = (middle, high) if (function(middle) > 0) == below else (low, middle)
    return low


def roots_between_poles(name: str, n: int) -> list[float]:
    """The roots in (-n - 1, -n): one of digamma, where lgamma has its least value, and two of lgamma around it."""
    least, close = -n - 1 + mpmath.mpf(2) ** -90, -n - mpmath.mpf(2) ** -90
    turn = _between(_digamma, least, close)
    found = [turn] if name == "digamma" else [_between(_lgamma, least, turn), _between(_lgamma, turn, close)]
    return [float(r) for r in found]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name, intervals", [("lgamma", (2, 3, 4, 6, 9, 14, 17, 20)),
                                             ("digamma", (0, 1, 2, 5, 9, 15, 16, 40, 1000, 10**6, 2**40))])
def test_roots_between_poles(name: str, intervals: tuple[int, ...], dtype: Any, x64: None) -> None:
    short, f = "f32" if dtype == np.float32 else "f64", getattr(lax, name)
    with mpmath.workprec(260):
        x = np.array([v for n in intervals for r in roots_between_poles(name, n) for v in neighbours(r, dtype)[:7]])
        x = x[x != np.rint(x)]
        wanted = [{"lgamma": _lgamma, "digamma": _digamma}[name](mpmath.mpf(float(v))) for v in x]
        for got in (np.asarray(f(x)), np.asarray(anima.jit(f)(x))):
            for v, g, w in zip(x, got, wanted, strict=True):
                assert units(float(g), w, short) <= 4, (v, g)


# (a, x) and (a, b, x) where terms of the exponent, or a result and 1, nearly cancel: compiled code to 40 units.
CLOSE = {"igamma": ((130.65, 0.218), (75.4, 0.003), (1000.0, 990.0), (3e-3, 0.5), (1.03, 1.14)),
         "igammac": ((121.3, 431.8), (0.003, 0.8357), (0.0016, 0.57), (99.0, 234.7), (0.0045, 1.379), (0.5, 0.9))}


@pytest.mark.parametrize("name", CLOSE)
def test_incomplete_gamma_functions_where_terms_cancel(name: str, x64: None) -> None:
    f = anima.jit(getattr(lax, name))
    with mpmath.workprec(400):
        for a, x in CLOSE[name]:
            ends = (0, x) if name == "igamma" else (x, mpmath.inf)
            exact = mpmath.gammainc(mpmath.mpf(a), *map(mpmath.mpf, ends), regularized=True)
            assert units(float(f(np.float64(a), np.float64(x))), exact, "f64") <= 40, (a, x)


def test_incomplete_beta_function_of_large_orders(x64: None) -> None:
    f = anima.jit(lax.betainc)
    with mpmath.workprec(400):
        for a, b, x in ((681.258567402244, 0.016766849538723892, 0.9989978131229531), (136.2, 0.0435, 0.99),
                        (553.7, 0.67, 0.999), (300.0, 400.0, 0.43)):
            exact = mpmath.betainc(mpmath.mpf(a), mpmath.mpf(b), 0, mpmath.mpf(x), regularized=True)
            assert units(float(f(*map(np.float64, (a, b, x)))), exact, "f64") <= 400, (a, b, x)


# Where results overflow or vanish: the function, its exact counterpart, the arguments in float32 and float64.
THRESHOLDS: list[tuple[str, Callable[[Any], Any], tuple[float, float]]] = [
    ("exp", mpmath.exp, (88.7228, 709.7827)), ("exp", mpmath.exp, (-87.3, -708.4)),
    ("exp", mpmath.exp, (-103.9, -745.1)),
    ("exp2", lambda x: mpmath.mpf(2) ** x, (128, 1024)), ("exp2", lambda x: mpmath.mpf(2) ** x, (-149, -1074)),
    ("expm1", mpmath.expm1, (88.7228, 709.7827)), ("sinh", mpmath.sinh, (89.4159, 710.4758)),
    ("cosh", mpmath.cosh, (89.4159, 710.4758)), ("i0", lambda x: mpmath.besseli(0, x), (91.9, 713.98)),
    ("erfc", mpmath.erfc, (9.19, 26.54)), ("erfc", mpmath.erfc, (10.05, 27.22)),
    ("logistic", lambda x: 1 / (1 + mpmath.exp(-x)), (-88.0, -709.0)),
    ("lgamma", mpmath.loggamma, (4.085e36, 2.556e305))]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name, exact, at", THRESHOLDS, ids=[f"{t[0]} {t[2][1]}" for t in THRESHOLDS])
def test_results_reach_the_ends_of_the_range(name: str, exact: Callable[[Any], Any], at: tuple[float, float],
                                             dtype: Any, x64: None) -> None:
    x = np.linspace(at[dtype == np.float64] * 0.99, at[dtype == np.float64] * 1.01, 41).astype(dtype)
    f = getattr(lax, name, None) or getattr(jnp, name)
    short = "f32" if dtype == np.float32 else "f64"
    with np.errstate(all="ignore"), mpmath.workprec(1200):
        for got in (np.asarray(f(x)), compiled(f, x)):
            for g, v in zip(got, x, strict=True):
                error = units(float(g), exact(mpmath.mpf(float(v))), short)
                assert error <= 4, (name, v, g, error)


ODD = ("sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "cbrt", "erf", "erf_inv", "bessel_i1e", "sign",
       "expm1", "log1p", "floor", "ceil", "round")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", ODD)
def test_zeros_keep_their_signs(name: str, dtype: str, x64: None) -> None:
    f = getattr(lax, name)
    for count in (1, 33):
        for zero in (0.0, -0.0):
            x = jnp.full((count,), zero, dtype)
            for got in (np.asarray(f(x)), np.asarray(anima.jit(f)(x))):
                wide = got.astype(np.float64)
                assert (wide == 0).all() and (np.signbit(wide) == np.signbit(zero)).all(), (name, zero)
