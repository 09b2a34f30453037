"""Samplers: distributions by Kolmogorov-Smirnov tests, supports, shapes, dtypes, and errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats as stats

import anima
import anima.numpy as jnp
from anima import random

N = 4000
KEY = random.key(20240229)

CONTINUOUS: list[tuple[str, Callable[[Any, Any], Any], Any]] = [
    ("uniform", random.uniform, stats.uniform()),
    ("uniform between", lambda k, s: random.uniform(k, s, minval=-2.0, maxval=3.0), stats.uniform(-2, 5)),
    ("normal", random.normal, stats.norm()),
    ("exponential", random.exponential, stats.expon()),
    ("gumbel", random.gumbel, stats.gumbel_r()),
    ("gumbel high", lambda k, s: random.gumbel(k, s, mode="high"), stats.gumbel_r()),
    ("laplace", random.laplace, stats.laplace()),
    ("logistic", random.logistic, stats.logistic()),
    ("cauchy", random.cauchy, stats.cauchy()),
    ("truncated_normal", lambda k, s: random.truncated_normal(k, -1.0, 2.0, s), stats.truncnorm(-1, 2)),
    ("maxwell", random.maxwell, stats.maxwell()),
    ("rayleigh", lambda k, s: random.rayleigh(k, 2.0, s), stats.rayleigh(scale=2)),
    ("pareto", lambda k, s: random.pareto(k, 3.0, s), stats.pareto(3)),
    ("lognormal", lambda k, s: random.lognormal(k, 0.5, s), stats.lognorm(0.5)),
    ("weibull_min", lambda k, s: random.weibull_min(k, 2.0, 1.5, s), stats.weibull_min(1.5, scale=2)),
    ("triangular", lambda k, s: random.triangular(k, 0.0, 0.3, 1.0, s), stats.triang(0.3)),
    ("wald", lambda k, s: random.wald(k, 2.0, s), stats.invgauss(2.0)),
    ("gamma", lambda k, s: random.gamma(k, 2.5, s), stats.gamma(2.5)),
    ("gamma below 1", lambda k, s: random.gamma(k, 0.3, s), stats.gamma(0.3)),
    ("loggamma", lambda k, s: random.loggamma(k, 0.5, s), stats.loggamma(0.5)),
    ("beta", lambda k, s: random.beta(k, 2.0, 3.0, s), stats.beta(2, 3)),
    ("chisquare", lambda k, s: random.chisquare(k, 3.0, s), stats.chi2(3)),
    ("f", lambda k, s: random.f(k, 3.0, 5.0, s), stats.f(3, 5)),
    ("t", lambda k, s: random.t(k, 3.0, s), stats.t(3)),
    ("generalized_normal", lambda k, s: random.generalized_normal(k, 1.5, s), stats.gennorm(1.5)),
    ("dirichlet", lambda k, s: random.dirichlet(k, np.array([1.0, 2.0, 3.0]), s)[:, 1], stats.beta(2, 4)),
    ("ball", lambda k, s: (random.ball(k, 3, 2, s)**2).sum(-1)**1.5, stats.uniform()),
]


@pytest.mark.parametrize("case", CONTINUOUS, ids=lambda c: c[0])
def test_distribution(case: Any) -> None:
    _, draw, want = case
    sample = np.asarray(draw(KEY, (N,)), np.float64)
    assert sample.shape == (N,)
    assert stats.kstest(sample, want.cdf).pvalue > 1e-4


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_uniform_support(dtype: str) -> None:
    sample = np.asarray(random.uniform(KEY, (N,), dtype), np.float64)
    assert sample.min() >= 0 and sample.max() < 1
    assert abs(sample.mean() - 0.5) < 5 / np.sqrt(12 * N)
    normal = random.normal(KEY, (N,), dtype)
    assert normal.dtype == jnp.dtype(dtype)
    assert np.isfinite(np.asarray(normal, np.float64)).all()


def test_moments_of_complex_normal() -> None:
    z = np.asarray(random.normal(KEY, (N,), jnp.complex64))
    assert z.dtype == np.complex64
    assert abs(np.mean(np.abs(z)**2) - 1) < 5 / np.sqrt(N)
    assert abs(np.mean(z**2)) < 5 / np.sqrt(N)


@pytest.mark.parametrize(("low", "high", "dtype"), [
    (0, 10, "int32"), (-5, 3, "int8"), (0, 256, "uint8"), (-128, 128, "int8"), (250, 300, "uint8")])
def test_randint(low: int, high: int, dtype: str) -> None:
    sample = np.asarray(random.randint(KEY, (N,), low, high, dtype))
    assert sample.dtype == np.dtype(dtype)
    high = min(high, int(np.iinfo(dtype).max) + 1)
    counts = np.bincount(sample.astype(np.int64) - low, minlength=high - low)
    assert len(counts) == high - low
    assert stats.chisquare(counts).pvalue > 1e-4


def test_randint_bounds() -> None:
    assert np.asarray(random.randint(KEY, (3,), 5, 5)).tolist() == [5, 5, 5]
    wide = np.asarray(random.randint(KEY, (N,), -2**31, 2**31 - 1), np.float64)
    assert stats.kstest((wide + 2.0**31) / 2.0**32, "uniform").pvalue > 1e-4
    each = np.asarray(random.randint(KEY, (100, 3), jnp.array([0, 10, 20]), jnp.array([2, 12, 22])))
    assert np.array_equal(each.min(0), [0, 10, 20]) and np.array_equal(each.max(0), [1, 11, 21])


@pytest.mark.parametrize("mode", ["low", "high"])
def test_bernoulli(mode: str) -> None:
    p = np.array([0.0, 0.1, 0.5, 1.0], np.float32)
    heads = np.asarray(random.bernoulli(KEY, p, (N, 4), mode=mode))
    assert heads.dtype == bool
    assert np.all(np.abs(heads.mean(0) - p) <= 5 * np.sqrt(p * (1 - p) / N))
    signs = np.asarray(random.rademacher(KEY, (N,)))
    assert set(signs.tolist()) == {-1, 1}


def test_permutation() -> None:
    x = np.arange(12).reshape(4, 3)
    assert sorted(np.asarray(random.permutation(KEY, 50)).tolist()) == list(range(50))
    rows = np.asarray(random.permutation(KEY, x))
    assert sorted(rows.tolist()) == x.tolist()
    free = np.asarray(random.permutation(KEY, x, axis=1, independent=True))
    assert np.sort(free, axis=1).tolist() == x.tolist()
    first = [int(random.permutation(random.fold_in(KEY, i), 4)[0]) for i in range(400)]
    assert stats.chisquare(np.bincount(first, minlength=4)).pvalue > 1e-4


def test_choice() -> None:
    p = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    drawn = np.asarray(random.choice(KEY, 4, (N,), p=p))
    assert stats.chisquare(np.bincount(drawn, minlength=4), p.astype(float) * N / p.astype(float).sum()).pvalue > 1e-4
    distinct = np.asarray(random.choice(KEY, 10, (10,), replace=False))
    assert sorted(distinct.tolist()) == list(range(10))
    weighted = np.asarray(random.choice(KEY, 4, (4,), replace=False, p=p))
    assert sorted(weighted.tolist()) == [0, 1, 2, 3]
    rows = random.choice(KEY, jnp.arange(12).reshape(4, 3), (2,), axis=1)
    assert rows.shape == (4, 2)


def test_categorical() -> None:
    p = np.array([0.1, 0.2, 0.7], np.float32)
    drawn = np.asarray(random.categorical(KEY, jnp.log(p), shape=(N,)))
    assert stats.chisquare(np.bincount(drawn, minlength=3), p.astype(float) * N / p.astype(float).sum()).pvalue > 1e-4
    assert random.categorical(KEY, jnp.zeros((3, 4)), axis=0, shape=(5, 4)).shape == (5, 4)
    distinct = np.asarray(random.categorical(KEY, jnp.zeros((2, 5)), shape=(5, 2), replace=False))
    assert np.sort(distinct, axis=0).T.tolist() == [list(range(5))] * 2


DISCRETE: list[tuple[str, Callable[[Any, Any], Any], Any]] = [
    ("geometric", lambda k, s: random.geometric(k, 0.3, s), stats.geom(0.3)),
    ("poisson", lambda k, s: random.poisson(k, 3.0, s), stats.poisson(3)),
    ("poisson large", lambda k, s: random.poisson(k, 50.0, s), stats.poisson(50)),
    ("binomial", lambda k, s: random.binomial(k, 10.0, 0.3, s), stats.binom(10, 0.3)),
    ("binomial large", lambda k, s: random.binomial(k, 100.0, 0.6, s), stats.binom(100, 0.6)),
    ("multinomial", lambda k, s: random.multinomial(k, 12.0, np.array([0.2, 0.3, 0.5]), shape=(*s, 3))[:, 2],
     stats.binom(12, 0.5)),
]


@pytest.mark.parametrize("case", DISCRETE, ids=lambda c: c[0])
def test_counts(case: Any) -> None:
    _, draw, want = case
    drawn = np.asarray(draw(KEY, (N,)), np.float64)
    low, high = int(want.ppf(0.02)), int(want.ppf(0.98))  # tails together, so that no bin is nearly empty
    counts = np.bincount(np.clip(drawn, low, high).astype(int) - low, minlength=high - low + 1)
    chances = want.pmf(np.arange(low, high + 1))
    chances[0], chances[-1] = want.cdf(low), want.sf(high - 1)
    assert stats.chisquare(counts, chances / chances.sum() * N).pvalue > 1e-4


def test_edges_of_counts() -> None:
    assert np.asarray(random.poisson(KEY, np.array([0.0, -1.0, np.nan], np.float32))).tolist() == [0, -1, -1]
    n = np.array([-1.0, 10, 10, np.nan, 10, 10, np.inf], np.float32)
    p = np.array([0.5, -0.1, 1.1, 0.5, 0.0, 1.0, 0.5], np.float32)
    want = [np.nan, np.nan, np.nan, np.nan, 0, 10, np.inf]
    np.testing.assert_array_equal(random.binomial(KEY, n, p), np.array(want, np.float32))
    rows = np.asarray(random.multinomial(KEY, np.array([5.0, 7.0]), np.array([0.2, 0.0, 0.8])))
    assert rows.shape == (2, 3) and rows.sum(-1).tolist() == [5, 7] and rows[:, 1].tolist() == [0, 0]


@pytest.mark.parametrize("a", [0.3, 2.5])
@pytest.mark.parametrize("name", ["gamma", "loggamma"])
def test_gamma_is_differentiable(name: str, a: float, x64: None) -> None:
    def sample(a: Any) -> Any:
        return getattr(random, name)(KEY, a, (8,))

    # The sample moves along a curve of constant probability: dx/da = -(dP/da) / density.
    x = np.asarray(sample(a))
    x = np.exp(x) if name == "loggamma" else x
    step = 1e-5
    gamma = stats.gamma
    want = -(gamma(a + step).cdf(x) - gamma(a - step).cdf(x)) / (2 * step) / gamma(a).pdf(x)
    got = anima.jvp(sample, (a,), (1.0,))[1]
    np.testing.assert_allclose(got, want / x if name == "loggamma" else want, rtol=1e-5)


def test_truncated_normal_is_differentiable() -> None:
    def f(upper: Any) -> Any:
        return random.truncated_normal(KEY, -1.0, upper, ())

    step = 1e-3
    slope = (float(f(1.0 + step)) - float(f(1.0 - step))) / (2 * step)
    assert abs(float(anima.grad(f)(1.0)) - slope) < 1e-2


def test_empty_and_scalar() -> None:
    for draw in (random.uniform, random.normal, random.bits, random.exponential):
        assert draw(KEY, (0, 3)).shape == (0, 3)
        assert draw(KEY).shape == ()
        assert draw(KEY, 3).shape == (3,)


ERRORS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: random.normal(KEY, (3,), jnp.int32), ValueError,
     "dtype argument to `normal` must be a float or complex dtype, got int32"),
    (lambda: random.uniform(KEY, (3,), jnp.int32), ValueError, "must be a float dtype, got int32"),
    (lambda: random.bits(KEY, (3,), jnp.int32), ValueError, "must be an unsigned int dtype, got int32"),
    (lambda: random.randint(KEY, (3,), 0, 10, jnp.float32), TypeError,
     "randint only accepts integer dtypes, got float32"),
    (lambda: random.normal(KEY, (2.5,)), TypeError, "integer"),
    (lambda: random.choice(KEY, 3, (5,), replace=False), ValueError,
     r"Cannot take a larger sample \(size 5\) than population \(size 3\) when 'replace=False'"),
    (lambda: random.choice(KEY, 3, (2,), p=jnp.ones(4)), ValueError,
     r"p has shape \(4,\) and a.shape\[axis\] is 3"),
    (lambda: random.choice(KEY, [1, 2, 3]), TypeError, "choice requires ndarray or scalar arguments, got <class"),
    (lambda: random.choice(KEY, 0, (2,)), ValueError, "a must be greater than 0 unless no samples are taken"),
    (lambda: random.bernoulli(KEY, 1), TypeError, "must have a floating dtype, got int32"),
    (lambda: random.bernoulli(KEY, 0.5, mode="x"), ValueError, "expected 'high' or 'low'"),
    (lambda: random.bernoulli(KEY, jnp.zeros(3), (2,)), ValueError, "incompatible shapes for broadcasting"),
    (lambda: random.permutation(KEY, 2.5), TypeError, "x must be an integer or at least 1-dimensional"),
    (lambda: random.categorical(KEY, jnp.zeros((3, 4)), shape=(2,)), ValueError, "incompatible shapes"),
    (lambda: random.categorical(KEY, jnp.zeros(3), shape=(5,), replace=False), ValueError,
     r"Number of samples without replacement \(5\) cannot exceed number of categories \(3\)"),
    (lambda: random.poisson(KEY, 3.0, (2,), jnp.float32), ValueError, "integer"),
    (lambda: random.normal(KEY, (2,), out_sharding=object()), NotImplementedError, "out_sharding"),
]


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_errors(number: int) -> None:
    call, error, message = ERRORS[number]
    with warnings.catch_warnings(), pytest.raises(error, match=message):
        call()
