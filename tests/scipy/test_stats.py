"""Distributions against SciPy and mpmath, at the ends of their supports and in their tails; derivatives; samples."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import mpmath
import numpy as np
import pytest
import scipy.stats as reference

import anima
import anima.numpy as jnp
from anima.scipy import stats

INF, NAN = np.inf, np.nan
LINE = np.array([-INF, -300.0, -40.0, -2.0, -0.5, 0.0, 1e-9, 0.3, 0.7, 1.0, 1.5, 3.0, 12.0, 60.0, 700.0, INF, NAN])
UNIT = np.array([0.0, 1e-12, 0.01, 0.3, 0.5, 0.8, 1 - 1e-9, 1.0, -0.5, 1.5, NAN])
COUNTS = np.array([-1.0, 0.0, 0.5, 1.0, 2.0, 5.0, 17.0, 40.0, NAN])

# Of each distribution: where it is evaluated, and parameters, of which one tuple is invalid.
CASES: dict[str, tuple[np.ndarray, list[tuple[float, ...]]]] = {
    **dict.fromkeys(("norm", "cauchy", "laplace", "logistic", "expon", "uniform", "gumbel_l", "gumbel_r"),
                    (LINE, [()])),
    "gamma": (LINE, [(2.5,), (1.0,), (0.3,), (40.0,), (-1.0,)]),
    "chi2": (LINE, [(3.0,), (2.0,), (150.0,), (-1.0,)]),
    "pareto": (LINE, [(2.0,), (0.5,), (-1.0,)]),
    "t": (LINE, [(3.0,), (0.7,), (1e6,), (-1.0,)]),
    "gennorm": (LINE, [(1.5,), (0.8,), (-1.0,)]),
    "vonmises": (LINE[2:-3], [(2.0,), (0.0,), (500.0,), (-1.0,)]),
    "wrapcauchy": (np.array([-0.5, 0.0, 1.0, np.pi, 6.0, 7.0]), [(0.5,), (0.999,), (1.5,)]),
    "beta": (UNIT, [(2.0, 3.0), (1.0, 1.0), (0.4, 0.6), (30.0, 50.0), (-1.0, 2.0)]),
    "truncnorm": (LINE, [(-1.0, 2.0), (3.0, 8.0), (-9.0, -4.0), (-INF, 1.0), (2.0, 1.0)]),
    "bernoulli": (COUNTS, [(0.3,), (0.0,), (1.0,), (1.5,)]),
    "binom": (COUNTS, [(20, 0.3), (20, 0.0), (20, 1.0), (5, -0.1), (-3, 0.5)]),
    "nbinom": (COUNTS, [(5, 0.3), (2.5, 0.9), (5, 0.0), (-1, 0.5)]),
    "betabinom": (COUNTS, [(20, 2.0, 3.0), (20, 30.0, 0.5), (20, -1.0, 3.0)]),
    "geom": (COUNTS, [(0.3,), (1.0,), (1.5,)]),
    "poisson": (COUNTS, [(2.0,), (0.0,), (30.0,), (-1.0,)]),
}
FUNCTIONS = [(d, f) for d in CASES for f, value in vars(getattr(stats, d)).items()
             if f in ("logpdf", "pdf", "logpmf", "pmf", "cdf", "sf", "logcdf", "logsf", "ppf", "isf")]


@pytest.fixture(autouse=True)
def wide() -> Any:
    with anima.enable_x64(True):
        yield


def points(distribution: str, function: str) -> np.ndarray:
    return UNIT if function in ("ppf", "isf") else CASES[distribution][0]


def expected(distribution: str, function: str, x: np.ndarray, args: tuple[float, ...]) -> np.ndarray:
    with np.errstate(all="ignore"):
        out = np.array(getattr(getattr(reference, distribution), function)(x, *args), float)
    return out


@pytest.mark.parametrize("distribution,function", FUNCTIONS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_as_scipy(distribution: str, function: str) -> None:
    """Values, NaN for parameters that are none and for NaN, also compiled, and moved and stretched."""
    fun = getattr(getattr(stats, distribution), function)
    x = points(distribution, function)
    for args in CASES[distribution][1]:
        want = expected(distribution, function, x, args)
        got = np.asarray(fun(x, *args))
        # SciPy has NaN at some infinities and -inf far in some tails, and the value below 0 or 1 where that is certain.
        worse = np.isinf(x) & np.isnan(want) & ~np.isnan(got) | np.isneginf(want) & (got < -700)
        if (distribution, function) == ("bernoulli", "ppf"):
            worse = (x == 0) | (x == 1)
        np.testing.assert_allclose(got[~worse], want[~worse], rtol=3e-10, atol=1e-300, err_msg=f"{args}")
    args = CASES[distribution][1][0]
    np.testing.assert_allclose(anima.jit(fun)(x, *args), fun(x, *args), rtol=1e-12, atol=1e-300)
    names = inspect.signature(fun).parameters
    for k, name in enumerate(names):  # nothing hides that an argument is no number
        given = dict(zip(names, (x, *args), strict=False)) | {name: NAN}
        assert np.isnan(np.asarray(fun(**given))).all(), f"{name} (argument {k})"
    if "scale" in names:
        inner = x[np.isfinite(x)]
        want = getattr(getattr(reference, distribution), function)(inner, *args, loc=0.25, scale=2.0)
        np.testing.assert_allclose(fun(inner, *args, loc=0.25, scale=2.0), want, rtol=3e-10, atol=1e-300)
        assert np.isnan(np.asarray(fun(x, *args, scale=-1.0))).all()
    elif "loc" in names:
        np.testing.assert_allclose(fun(x + 2, *args, loc=2), fun(x, *args), rtol=1e-12)


def exact(distribution: str, function: str) -> Callable[..., Any]:
    m = mpmath

    def norm(x: Any) -> Any:
        return m.erfc(-x / m.sqrt(2)) / 2

    table: dict[tuple[str, str], Callable[..., Any]] = {
        ("norm", "logsf"): lambda x: m.log(norm(-x)),
        ("norm", "ppf"): lambda q: -m.sqrt(2) * m.erfinv(1 - 2 * q),
        ("logistic", "logpdf"): lambda x: -abs(x) - 2 * m.log1p(m.exp(-abs(x))),
        ("gamma", "logcdf"): lambda x, a: m.log(m.gammainc(a, 0, x, regularized=True)),
        ("gamma", "logsf"): lambda x, a: m.log(m.gammainc(a, x, m.inf, regularized=True)),
        ("beta", "logcdf"): lambda x, a, b: m.log(m.betainc(a, b, 0, x, regularized=True)),
        ("beta", "logpdf"): lambda x, a, b: (a - 1) * m.log(x) + (b - 1) * m.log(1 - x) - m.log(m.beta(a, b)),
        ("truncnorm", "logpdf"): lambda x, a, b: -x * x / 2 - m.log(2 * m.pi) / 2 - m.log(norm(-a) - norm(-b)),
        ("poisson", "logpmf"): lambda k, mu: k * m.log(mu) - mu - m.loggamma(k + 1),
        ("binom", "logpmf"): lambda k, n, p: (m.loggamma(n + 1) - m.loggamma(k + 1) - m.loggamma(n - k + 1)
                                              + k * m.log(p) + (n - k) * m.log(1 - p)),
        ("t", "logpdf"): lambda x, v: (m.loggamma((v + 1) / 2) - m.loggamma(v / 2) - m.log(v * m.pi) / 2
                                       - (v + 1) / 2 * m.log1p(x * x / v)),
        ("gumbel_r", "logsf"): lambda x: m.log(-m.expm1(-m.exp(-x))),
        ("vonmises", "logpdf"): lambda x, k: k * m.cos(x) - m.log(2 * m.pi * m.besseli(0, k)),
    }
    return table[distribution, function]


@pytest.mark.parametrize("distribution,function,args", [
    ("norm", "logsf", (5.0,)), ("norm", "logsf", (40.0,)), ("norm", "logsf", (1e4,)), ("norm", "logsf", (-8.0,)),
    ("norm", "ppf", (1e-30,)), ("norm", "ppf", (0.02,)), ("logistic", "logpdf", (900.0,)),
    ("gamma", "logcdf", (1e-3, 200.0)), ("gamma", "logcdf", (50.0, 900.0)), ("gamma", "logcdf", (30.0, 2.0)),
    ("gamma", "logsf", (2e3, 3.0)), ("gamma", "logsf", (9e3, 4e3)), ("gamma", "logsf", (1e-9, 2.0)),
    ("beta", "logcdf", (1e-5, 80.0, 3.0)), ("beta", "logpdf", (0.5, 4e5, 4e5)), ("beta", "logpdf", (1e-200, 1.5, 2.0)),
    ("truncnorm", "logpdf", (41.0, 40.0, 45.0)), ("poisson", "logpmf", (1e9, 1e9 + 5)),
    ("poisson", "logpmf", (0.0, 3.0)),
    ("binom", "logpmf", (5e8, 1e9, 0.5)), ("binom", "logpmf", (3.0, 1e9, 1e-9)), ("t", "logpdf", (3.0, 1e8)),
    ("t", "logpdf", (1e180, 2.0)), ("gumbel_r", "logsf", (800.0,)), ("vonmises", "logpdf", (1e-3, 1e3))])
def test_no_digits_are_lost(distribution: str, function: str, args: tuple[float, ...]) -> None:
    """Far in the tails, and for large parameters where sums of logarithms of gamma functions would cancel."""
    with mpmath.workdps(80 if args[0] < 1e3 else 60):
        want = float(exact(distribution, function)(*map(mpmath.mpf, args)))
    got = float(getattr(getattr(stats, distribution), function)(*args))
    assert got == pytest.approx(want, rel=3e-14, abs=3e-14)


def test_the_mode_of_a_number() -> None:
    for axis in (None, 0, -1):
        for keep in (False, True):
            found = stats.mode(jnp.float32(3), axis=axis, keepdims=keep)
            assert found.mode.shape == found.count.shape == () and (float(found.mode), int(found.count)) == (3.0, 1)


# ---------------------------------------------------------------- derivatives

SMOOTH = [c for c in FUNCTIONS if c[1] in ("logpdf", "logpmf", "logcdf", "cdf", "ppf") and c[0] != "bernoulli"]


@pytest.mark.parametrize("distribution,function", SMOOTH)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_derivatives(distribution: str, function: str) -> None:
    """First and second ones in all continuous arguments are differences; no NaN comes from what is not taken."""
    fun = getattr(getattr(stats, distribution), function)
    args = CASES[distribution][1][0]
    discrete = function == "logpmf" or distribution == "poisson"
    inner = {"pareto": 1.7, "truncnorm": 0.4, "gamma": 1.9, "chi2": 1.9, "wrapcauchy": 1.0}
    x = 2.0 if discrete else 0.35 if function in ("ppf", "isf") else inner.get(distribution, 0.35)
    # The incomplete functions have no second derivatives in their orders, that of beta not even a first one.
    no_order = distribution in ("gamma", "chi2", "gennorm", "beta", "poisson") and function in ("cdf", "logcdf")
    every = [i for i in range(len(args) + 1) if not (i == 0 and discrete) and not (no_order and i > 0)
             and not (i == 1 and distribution in ("binom", "betabinom"))]  # whose n is whole
    if distribution == "poisson" and function == "cdf":
        every = [1]
    values = np.array([x, *map(float, args)])
    start = np.array([values[k] for k in every])

    def at(chosen: Any) -> Any:
        given = list(values)
        for k, value in zip(every, chosen, strict=True):
            given[k] = value
        return fun(*given)

    step, m = 1e-5, len(every)
    around = np.concatenate([start + step * np.eye(m), start - step * np.eye(m)])
    near, slopes = anima.vmap(anima.value_and_grad(at))(around)
    slope, curve = anima.grad(at)(start), anima.jacfwd(anima.grad(at))(start)
    np.testing.assert_allclose(slope, (near[:m] - near[m:]) / (2 * step), rtol=1e-5)
    np.testing.assert_allclose(curve, (slopes[:m] - slopes[m:]) / (2 * step), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("distribution,function", [c for c in SMOOTH if c[1].startswith("log")])
def test_gradients_outside_of_the_support(distribution: str, function: str) -> None:
    """A point outside, or far away, has no NaN gradient, nor gives one to parameters that others share."""
    fun = getattr(getattr(stats, distribution), function)
    args = tuple(float(a) for a in CASES[distribution][1][0])
    x = np.array([-3.0, 2.0, 30.0]) if function == "logpmf" else np.array([-30.0, -1.0, 0.5, 1.0, 2.0, 30.0])

    def total(x: Any, *args: Any) -> Any:
        values = fun(x, *args)
        return jnp.sum(jnp.where(jnp.isfinite(values), values, 0.0))

    beta = distribution == "beta" and function != "logpdf"
    for k in range(1 if beta else len(args) + 1):
        assert np.isfinite(np.asarray(anima.grad(total, k)(x, *args))).all(), k


def test_gradients_at_the_ends() -> None:
    assert float(anima.grad(stats.binom.logpmf, 2)(0.0, 5.0, 0.0)) == -5.0
    assert float(anima.grad(stats.poisson.logpmf, 1)(0.0, 0.0)) == -1.0
    assert float(anima.grad(stats.bernoulli.logpmf, 1)(0.0, 0.0)) == -1.0
    assert float(anima.grad(stats.gamma.logpdf)(1.0, 1.0)) == -1.0
    assert float(anima.grad(stats.norm.logcdf)(-1e5)) == pytest.approx(1e5)
    assert [float(anima.grad(stats.laplace.cdf)(x)) for x in (0.0, -0.0)] == [0.5, 0.5]
    assert float(anima.grad(stats.poisson.logpmf, 1)(3.0, 1e-20)) == pytest.approx(3e20)
    assert float(anima.grad(stats.poisson.logpmf, 1)(3.0, 1e20)) == -1.0
    assert float(stats.binom.logpmf(3.0, 5.0, -0.0)) == -np.inf


# The slopes in every argument, and the second one in the first.
@pytest.mark.parametrize("function,args,slopes,curvature", [
    ("binom", (5.0, 5.0, 0.3), [-3.13063, 1.92666, 16.66667], -1.82626),
    ("binom", (0.0, 5.0, 0.3), [1.43604, -0.35667, -7.14286], -1.82626),
    ("binom", (0.0, 0.0, 0.3), [-0.84730, -0.35667, 0.0], -3.28987),
    ("binom", (20.0, 20.0, 0.3), [-4.44504, 3.24107, 66.66667], -1.69371),
    ("poisson", (0.0, 3.0), [1.67583, -1.0], -1.64493),
    ("nbinom", (0.0, 3.0, 0.4), [0.98917, -0.91629, 7.5], -1.25),
    ("nbinom", (0.0, 3.0, 1.0), [-INF, 0.0, 3.0], NAN),
    ("bernoulli", (1.0, 0.3), [-0.84730, 3.33333], 0.0),
    ("bernoulli", (0.0, 0.3), [-0.84730, -1.42857], 0.0)])
def test_slopes_of_counts_at_the_ends(function: str, args: tuple[float, ...], slopes: list[float],
                                      curvature: float) -> None:
    logpmf = getattr(stats, function).logpmf
    np.testing.assert_allclose([float(anima.grad(logpmf, i)(*args)) for i in range(len(args))], slopes, atol=1e-5)
    np.testing.assert_allclose(float(anima.grad(anima.grad(logpmf))(*args)), curvature, atol=1e-5)


# ---------------------------------------------------------------- types and shapes


@pytest.mark.parametrize("distribution,function", [c for c in FUNCTIONS if c[1] in ("logpdf", "pmf", "sf", "ppf")])
@pytest.mark.parametrize("dtype", ["float32", "float16", ml_dtypes.bfloat16])
def test_small_types(distribution: str, function: str, dtype: Any) -> None:
    """Results have the arguments' dtype, rounded once from float32; float32 is close to float64."""
    fun = getattr(getattr(stats, distribution), function)
    x = np.array([0.25, 0.5, 1.0, 2.0] if function not in ("ppf", "isf") else [0.125, 0.5, 0.75])
    args = tuple(np.asarray(a, dtype) for a in CASES[distribution][1][0])
    got = fun(x.astype(dtype), *args)
    assert got.dtype == dtype and not got.weak_type
    narrow = np.asarray(fun(x.astype(np.float32), *(a.astype(np.float32) for a in args)))
    if dtype != "float32":
        np.testing.assert_array_equal(np.asarray(got), narrow.astype(dtype))
    else:
        wide = np.asarray(fun(x, *(a.astype(float) for a in args)))
        np.testing.assert_allclose(narrow, wide, rtol=2e-5, atol=2e-6)


# When results are weakly typed: never; if the common type is and the first argument is, too; if the common type is.
WEAK = {
    "never": "norm.cdf norm.ppf norm.isf norm.sf norm.logcdf truncnorm.pdf truncnorm.cdf poisson.entropy uniform.cdf",
    "first": "bernoulli.cdf bernoulli.pmf bernoulli.ppf beta.cdf beta.logpdf beta.sf cauchy.cdf cauchy.isf "
             "cauchy.logcdf "
             "cauchy.logpdf cauchy.logsf cauchy.pdf cauchy.ppf cauchy.sf chi2.cdf chi2.pdf gamma.cdf gamma.logpdf "
             "geom.pmf gumbel_r.sf laplace.cdf laplace.logpdf laplace.pdf logistic.isf logistic.ppf nbinom.pmf "
             "norm.pdf norm.logpdf pareto.cdf pareto.ppf poisson.cdf t.pdf",
    "common": "binom.pmf expon.pdf expon.ppf gamma.sf gennorm.pdf gumbel_l.cdf gumbel_r.cdf logistic.cdf "
              "logistic.sf "
              "pareto.logcdf uniform.pdf uniform.ppf vonmises.pdf wrapcauchy.pdf"}


@pytest.mark.parametrize("rule,name", [(rule, n) for rule, names in WEAK.items() for n in names.split()])
def test_weak_types(rule: str, name: str) -> None:
    """As JAX's."""
    fun = functools.reduce(getattr, name.split("."), stats)
    kinds = {"weak": 0.5, "strong": jnp.array([0.5], "float32"), "whole": jnp.array([1], "int32")}
    required = sum(p.default is p.empty for p in inspect.signature(fun).parameters.values())
    count = required if name == "poisson.entropy" else max(2, required)
    with anima.enable_x64(False):
        for given in itertools.product(kinds, repeat=count):
            want = {"never": False, "common": "strong" not in given and "weak" in given}.get(
                rule, "strong" not in given and given[0] == "weak")
            assert fun(*(kinds[k] for k in given)).weak_type == want, given


def test_integers_scalars_and_shapes() -> None:
    with anima.enable_x64(False):
        assert stats.poisson.logpmf(np.array([1, 2]), 2).dtype == np.float32
        assert stats.laplace.logpdf(0).weak_type and not stats.norm.cdf(0).weak_type
    assert stats.gamma.logpdf(np.ones((3, 1)), np.ones(4)).shape == (3, 4)
    assert stats.beta.logpdf(np.zeros((0, 2)), 1.0, 2.0).shape == (0, 2)
    with pytest.raises(TypeError):
        stats.norm.logpdf([1.0, 2.0])
    x = np.linspace(0.1, 0.9, 7)
    mapped = anima.vmap(stats.beta.logpdf, (0, None, 0))(x, 2.0, x + 1)
    np.testing.assert_allclose(mapped, [float(stats.beta.logpdf(v, 2.0, v + 1)) for v in x], rtol=1e-12)


@pytest.mark.parametrize("mode", [anima.numpy_dtype_promotion("strict"), anima.numpy_rank_promotion("raise")])
def test_nothing_is_promoted(mode: Any) -> None:
    """Arguments of one type are enough under the strictest rules."""
    x = np.array([0.25, 0.5, 2.0], np.float32)
    with mode:
        for distribution, function in FUNCTIONS:
            args = CASES[distribution][1][0]
            out = getattr(getattr(stats, distribution), function)(x, *(np.full(3, a, np.float32) for a in args))
            assert out.dtype == np.float32 and out.shape == (3,)
        square = np.eye(3, dtype=np.float32) + 1
        assert stats.multivariate_normal.logpdf(square, x, square).dtype == np.float32
        assert stats.poisson.entropy(x).dtype == np.float32
        assert stats.gaussian_kde(square).logpdf(square).dtype == np.float32


# ---------------------------------------------------------------- vectors


def test_dirichlet() -> None:
    alpha = np.array([1.0, 2.0, 3.5])
    x = np.random.default_rng(0).dirichlet(alpha, 4).T
    want = [reference.dirichlet.logpdf(v, alpha) for v in x.T]
    for given in (x, x[:2]):
        np.testing.assert_allclose(stats.dirichlet.logpdf(given, alpha), want, rtol=1e-12)
    np.testing.assert_allclose(stats.dirichlet.pdf(x, alpha), np.exp(want), rtol=1e-12)
    assert float(stats.dirichlet.logpdf(np.array([0.3, 0.3, 0.3]), alpha)) == -INF
    assert np.isnan(stats.dirichlet.logpdf(x[:, 0], -alpha))
    grad = anima.grad(lambda a: stats.dirichlet.logpdf(x, a).sum())(alpha)
    np.testing.assert_allclose(grad, anima.jacfwd(lambda a: stats.dirichlet.logpdf(x, a).sum())(alpha))
    for bad in (np.ones((3, 2)), np.ones(6)):
        with pytest.raises(ValueError, match="alpha"):
            stats.dirichlet.logpdf(np.ones(3) / 3, bad)


def test_multinomial() -> None:
    x, p = np.array([[1, 2, 3], [0, 6, 0], [2, 2, 1], [-1, 4, 3]]), np.array([0.2, 0.3, 0.5])
    want = [reference.multinomial.logpmf(v, 6, p) for v in x]
    np.testing.assert_allclose(stats.multinomial.logpmf(x, 6, p), want, rtol=1e-12)
    assert np.isnan(stats.multinomial.logpmf(x[0], 6, np.array([-0.5, 1.0, 0.5])))
    with pytest.raises(ValueError, match="integer"):
        stats.multinomial.logpmf(x * 1.0, 6, p)


def test_multivariate_normal() -> None:
    rng = np.random.default_rng(1)
    a, mean, x = rng.normal(size=(4, 4)), rng.normal(size=4), rng.normal(size=(5, 4))
    cov = a @ a.T + np.eye(4)
    want = reference.multivariate_normal.logpdf(x, mean, cov)
    np.testing.assert_allclose(stats.multivariate_normal.logpdf(x, mean, cov), want, rtol=1e-12)
    np.testing.assert_allclose(anima.jit(stats.multivariate_normal.pdf)(x, mean, cov), np.exp(want), rtol=1e-11)
    np.testing.assert_allclose(stats.multivariate_normal.logpdf(x, mean, 2.0),
                               reference.multivariate_normal.logpdf(x, mean, 2 * np.eye(4)), rtol=1e-12)
    stacked = np.stack([cov, 2 * cov, 3 * cov])
    np.testing.assert_allclose(stats.multivariate_normal.logpdf(x[:3], mean, stacked), [
        reference.multivariate_normal.logpdf(v, mean, c) for v, c in zip(x, stacked, strict=False)], rtol=1e-12)
    slope = anima.grad(lambda c: stats.multivariate_normal.logpdf(x[0], mean, c))(cov)
    inverse, rest = np.linalg.inv(cov), x[0] - mean
    np.testing.assert_allclose(slope, 0.5 * (np.outer(inverse @ rest, inverse @ rest) - inverse), rtol=1e-10)
    assert np.isnan(stats.multivariate_normal.logpdf(x[0], mean, -cov))
    with pytest.raises(ValueError, match="shapes"):
        stats.multivariate_normal.logpdf(x, mean, np.eye(3))
    with pytest.raises(NotImplementedError):
        stats.multivariate_normal.logpdf(x, mean, cov, allow_singular=True)


@pytest.mark.parametrize("mu", [0.0, 0.1, 3.0, 150.0, 199.0, 201.0, 1e4])
def test_poisson_entropy(mu: float) -> None:
    k = np.arange(max(0, int(mu - 60 * np.sqrt(mu))), int(mu + 60 * np.sqrt(mu) + 60))
    logs = reference.poisson.logpmf(k, mu)
    kept = np.isfinite(logs)
    want = -np.sum(np.exp(logs[kept]) * logs[kept])
    assert float(stats.poisson.entropy(mu)) == pytest.approx(want, rel=1e-9, abs=1e-14)


# ---------------------------------------------------------------- samples

SAMPLES = [np.array([[3.0, 1, 2, 2, 5, 1], [0, 0, 0, 1, 1, 2]]), np.array([[2, 2, 1], [7, 1, 1]]), np.ones((3, 1)),
           np.zeros((0,))]


@pytest.mark.parametrize("method", ["average", "min", "max", "dense", "ordinal"])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_rankdata(method: str, axis: int | None) -> None:
    for x in SAMPLES:
        if x.ndim > 1 or axis is None:
            got = anima.jit(lambda x: stats.rankdata(x, method, axis=axis))(x)
            np.testing.assert_array_equal(got, reference.rankdata(x, method, axis=axis))
    assert np.isnan(np.asarray(stats.rankdata(np.array([1.0, NAN, 3.0]), method))).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_mode_and_sem(axis: int | None, keepdims: bool) -> None:
    for x in SAMPLES[:2]:
        got, want = stats.mode(x, axis, keepdims=keepdims), reference.mode(x, axis, keepdims=keepdims)
        np.testing.assert_array_equal(got.mode, want.mode)
        np.testing.assert_array_equal(got.count, want.count)
        np.testing.assert_allclose(stats.sem(x, axis, keepdims=keepdims), reference.sem(x, axis, keepdims=keepdims))
    x = np.concatenate([SAMPLES[0], SAMPLES[0] + 1])
    x[0, 1] = NAN
    np.testing.assert_allclose(stats.sem(x, axis, 0, "omit", keepdims=keepdims), np.asarray(
        reference.sem(x, axis, 0, "omit", keepdims=keepdims)))


def test_policies() -> None:
    for fun, error in ((stats.mode, NotImplementedError), (stats.rankdata, NotImplementedError),
                       (stats.sem, ValueError)):
        with pytest.raises(error):
            fun(SAMPLES[0], nan_policy="raise")
        with pytest.raises(ValueError):
            fun(SAMPLES[0], nan_policy="unknown")


@pytest.mark.parametrize("method", [None, "scott", "silverman", 0.4, lambda kde: kde.neff ** -0.25])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("d", [1, 2])
def test_gaussian_kde(d: int, weighted: bool, method: Any) -> None:
    rng = np.random.default_rng(0)
    data, points = rng.normal(size=(d, 30)), rng.normal(size=(d, 7))
    weights = rng.uniform(size=30) if weighted else None
    got, want = stats.gaussian_kde(data, method, weights), reference.gaussian_kde(data, method, weights)
    np.testing.assert_allclose(got.evaluate(points), want.evaluate(points), rtol=1e-10)
    np.testing.assert_allclose(got.logpdf(points), want.logpdf(points), rtol=1e-10)
    np.testing.assert_allclose(anima.jit(lambda k, x: k(x))(got, points), want(points), rtol=1e-10)
    mean, cov = np.zeros(d), np.eye(d)
    np.testing.assert_allclose(got.integrate_gaussian(mean, cov), want.integrate_gaussian(mean, cov), rtol=1e-10)
    np.testing.assert_allclose(got.integrate_kde(got), want.integrate_kde(want), rtol=1e-10)
    assert (got.n, got.d) == (want.n, want.d) and got == got
    np.testing.assert_allclose(got.neff, want.neff)
    if d == 1:
        np.testing.assert_allclose(got.integrate_box_1d(-0.5, 1), want.integrate_box_1d(-0.5, 1), rtol=1e-10)
    sample = np.asarray(got.resample(anima.random.key(0), (20_000,)))
    assert sample.shape == (d, 20_000)
    np.testing.assert_allclose(sample.mean(1), np.average(data, axis=1, weights=weights), atol=0.05)


def test_gaussian_kde_refuses() -> None:
    data = np.ones((2, 5))
    for error, call in (
            (ValueError, lambda: stats.gaussian_kde(1.0)), (NotImplementedError, lambda: stats.gaussian_kde(data * 1j)),
            (ValueError, lambda: stats.gaussian_kde(data, "unknown")),
            (ValueError, lambda: stats.gaussian_kde(data).pdf(1.0)),
            (ValueError, lambda: stats.gaussian_kde(data, weights=np.ones(4))),
            (ValueError, lambda: stats.gaussian_kde(data).integrate_box_1d(0, 1)),
            (NotImplementedError, lambda: stats.gaussian_kde(data).integrate_box(0, 1)),
            (NotImplementedError, lambda: stats.gaussian_kde(data).set_bandwidth())):
        with pytest.raises(error):
            call()


DOMAINS: list[tuple[str, str, tuple[float, ...]]] = [
    ("nbinom", "logpmf", (3.0, 0.4)), ("binom", "logpmf", (5.0, 0.4)), ("poisson", "logpmf", (2.0,)),
    ("geom", "logpmf", (0.4,)), ("bernoulli", "logpmf", (0.4,)), ("betabinom", "logpmf", (5.0, 1.5, 2.0)),
    ("gamma", "logpdf", (1.5,)), ("beta", "logpdf", (1.5, 2.0)), ("t", "logpdf", (3.0,)), ("chi2", "logpdf", (3.0,)),
    ("pareto", "logpdf", (2.0,)), ("gennorm", "logpdf", (1.5,))]


@pytest.mark.parametrize("name, method, shapes", DOMAINS, ids=[d[0] for d in DOMAINS])
def test_shape_parameters_on_both_sides_of_their_ends(name: str, method: str, shapes: tuple[float, ...],
                                                      x64: None) -> None:
    """NaN where SciPy's are, one parameter after the other, and the same number elsewhere."""
    ours, theirs = getattr(getattr(stats, name), method), getattr(getattr(reference, name), method)
    for k in range(len(shapes)):
        for value in (-1.0, 0.0, 1e-3, 1.0, 1.001, np.nan):
            given = [*shapes[:k], value, *shapes[k + 1:]]
            with np.errstate(all="ignore"):
                want = theirs(1.0, *given)
            np.testing.assert_allclose(ours(1.0, *given), want, rtol=1e-9, err_msg=str(given))
