"""Every distribution, against its distribution function: 1e6 numbers from compiled samplers with fixed seeds.

Continuous numbers are counted between 400 quantiles: a chi-square test, and the greatest distance between
the empirical distribution function and the true one at the quantiles (Kolmogorov-Smirnov).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats as stats

import anima
import anima.numpy as jnp
from anima import random

N = 1_000_000
KEY = random.key(20240229)
BINS = 400
LEAST = 1e-4  # p-value
P = (0.1, 0.2, 0.3, 0.4)
FINITE = stats.rv_discrete(values=(range(4), P))

CONTINUOUS: list[tuple[str, Callable[[Any, Any], Any], Any]] = [
    ("uniform", random.uniform, stats.uniform()),
    ("uniform between", lambda k, s: random.uniform(k, s, minval=-2.0, maxval=3.0), stats.uniform(-2, 5)),
    ("normal", random.normal, stats.norm()),
    ("double_sided_maxwell", lambda k, s: jnp.abs(random.double_sided_maxwell(k, 1.0, 2.0, s) - 1) / 2,
     stats.maxwell()),
    ("complex normal", lambda k, s: jnp.abs(random.normal(k, s, jnp.complex64))**2, stats.expon()),
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
    # A projection of a multivariate normal is normal: variance 1*2 + 4*1 + 2*2*0.5 = 8 along (1, 2).
    ("multivariate_normal", lambda k, s: (random.multivariate_normal(
        k, np.array([1.0, -1.0], np.float32), np.array([[2.0, 0.5], [0.5, 1.0]], np.float32), s)
        @ np.array([1.0, 2.0], np.float32)), stats.norm(-1.0, 8**0.5)),
    # Entries of a uniformly random rotation in 3 dimensions are uniform (Archimedes' hat-box theorem).
    ("orthogonal", lambda k, s: random.orthogonal(k, 3, s)[..., 0, 1], stats.uniform(-1, 2)),
    ("ball", lambda k, s: (random.ball(k, 3, 2, s)**2).sum(-1)**1.5, stats.uniform()),
]



@pytest.mark.parametrize(("case", "partitionable"), [(c, False) for c in CONTINUOUS] + [
    (c, True) for c in CONTINUOUS if c[0] in ("uniform", "normal", "gumbel", "gamma")],
    ids=lambda v: v[0] if isinstance(v, tuple) else "new" if v else "old")
def test_continuous(case: Any, partitionable: bool) -> None:
    _, draw, want = case
    with anima.threefry_partitionable(partitionable):
        sample = np.asarray(anima.jit(lambda k: draw(k, (N,)))(KEY))
    assert sample.shape == (N,) and np.isfinite(sample).all()
    edges = want.ppf(np.arange(1, BINS) / BINS)
    counts = np.bincount(np.searchsorted(edges, sample), minlength=BINS)
    assert stats.chisquare(counts).pvalue > LEAST
    distance = np.abs(counts.cumsum() / N - np.arange(1, BINS + 1) / BINS).max()
    assert stats.kstwobign.sf(distance * np.sqrt(N)) > LEAST


DISCRETE: list[tuple[str, Callable[[Any, Any], Any], Any]] = [
    ("bits", lambda k, s: random.bits(k, s, jnp.uint8), stats.randint(0, 256)),
    ("randint", lambda k, s: random.randint(k, s, -5, 90), stats.randint(-5, 90)),
    ("bernoulli", lambda k, s: random.bernoulli(k, 0.3, s), stats.bernoulli(0.3)),
    ("bernoulli high", lambda k, s: random.bernoulli(k, 0.3, s, mode="high"), stats.bernoulli(0.3)),
    ("rademacher", lambda k, s: (random.rademacher(k, s) + 1) // 2, stats.bernoulli(0.5)),
    ("categorical", lambda k, s: random.categorical(k, jnp.log(jnp.array(P)), shape=s), FINITE),
    ("choice", lambda k, s: random.choice(k, 4, s, p=jnp.array(P)), FINITE),
    ("choice of few", lambda k, s: random.choice(k, 50, s), stats.randint(0, 50)),
    ("permutation", lambda k, s: random.permutation(k, jnp.arange(s[0], dtype=jnp.int32) % 10)[:s[0] // 2],
     stats.randint(0, 10)),
    ("geometric", lambda k, s: random.geometric(k, 0.3, s), stats.geom(0.3)),
    ("poisson", lambda k, s: random.poisson(k, 3.0, s), stats.poisson(3)),
    ("poisson large", lambda k, s: random.poisson(k, 50.0, s), stats.poisson(50)),
    ("binomial", lambda k, s: random.binomial(k, 10.0, 0.3, s), stats.binom(10, 0.3)),
    ("binomial large", lambda k, s: random.binomial(k, 100.0, 0.6, s), stats.binom(100, 0.6)),
    ("multinomial", lambda k, s: random.multinomial(k, 12.0, np.array([0.2, 0.3, 0.5]), shape=(*s, 3))[:, 2],
     stats.binom(12, 0.5)),
]



@pytest.mark.parametrize("case", DISCRETE, ids=lambda c: c[0])
def test_discrete(case: Any) -> None:
    _, draw, want = case
    drawn = np.asarray(anima.jit(lambda k: draw(k, (N,)))(KEY)).astype(int)
    low, high = int(want.ppf(1e-4)), int(want.ppf(1 - 1e-4))  # tails together, so that no bin is nearly empty
    counts = np.bincount(np.clip(drawn, low, high) - low, minlength=high - low + 1)
    chances = want.pmf(np.arange(low, high + 1))
    chances[0], chances[-1] = want.cdf(low), want.sf(high - 1)
    assert stats.chisquare(counts, chances / chances.sum() * len(drawn)).pvalue > LEAST


@pytest.mark.parametrize("partitionable", [False, True])
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
@pytest.mark.parametrize("derive", [lambda k, n: random.split(k, n),
                                    lambda k, n: anima.vmap(lambda i: random.fold_in(k, i))(jnp.arange(n)),
                                    lambda k, n: anima.vmap(random.split)(random.split(k, n // 2)).ravel()],
                         ids=["split", "fold_in", "split twice"])
def test_streams_are_independent(derive: Any, impl: str, partitionable: bool) -> None:
    """Pairwise correlations of the streams of 24 keys, and of each with its neighbours shifted by one."""
    with anima.threefry_partitionable(partitionable):
        keys = derive(random.key(1, impl=impl), 24)
        numbers = np.asarray(anima.jit(anima.vmap(lambda k: random.uniform(k, (50_000,))))(keys), np.float64)
    for others in (numbers, np.roll(numbers, 1, axis=1)):
        both = np.corrcoef(numbers, others)[:24, 24:]
        if others is numbers:
            np.fill_diagonal(both, 0)
        assert np.abs(both).max() < 5.5 / np.sqrt(numbers.shape[1])


RANGES: list[tuple[str, Callable[[Any, Any], Any], float, float]] = [
    ("uniform", random.uniform, 0.0, np.nextafter(np.float32(1), np.float32(0))),
    ("uniform, bfloat16", lambda k, s: random.uniform(k, s, jnp.bfloat16), 0.0, 1 - 2.0**-8),
    ("uniform, float16", lambda k, s: random.uniform(k, s, jnp.float16), 0.0, 1 - 2.0**-11),
    ("uniform between", lambda k, s: random.uniform(k, s, minval=-2.0, maxval=3.0), -2.0,
     np.nextafter(np.float32(3), np.float32(0))),
    ("uniform, few floats", lambda k, s: random.uniform(k, s, minval=1e6, maxval=1e6 + 1), 1e6, 1e6 + 0.9375),
    ("normal", random.normal, -6.0, 6.0),
    ("exponential", random.exponential, 0.0, 17.0),
    ("gumbel", random.gumbel, -4.5, 17.0),
    ("gumbel high", lambda k, s: random.gumbel(k, s, mode="high"), -4.6, 40.0),
    ("laplace", random.laplace, -17.0, 17.0),
    ("logistic", random.logistic, -90.0, 17.0),
    ("cauchy", random.cauchy, -2.0**24, 2.0**24),
    ("truncated_normal", lambda k, s: random.truncated_normal(k, -1.0, 2.0, s),
     np.nextafter(np.float32(-1), np.float32(0)), np.nextafter(np.float32(2), np.float32(0))),
    ("pareto", lambda k, s: random.pareto(k, 3.0, s), 1.0, 300.0),
    ("randint", lambda k, s: random.randint(k, s, -5, 90), -5, 89),
]


def test_uniform_never_returns_maxval() -> None:
    for dtype in (jnp.float32, jnp.float16, jnp.bfloat16):
        next_to_1 = float(jnp.nextafter(jnp.ones((), dtype), jnp.array(2, dtype)))
        for low, high in ((100.0, 101.0), (-3.0, -2.0), (1.0, next_to_1)):
            drawn = random.uniform(KEY, (5000,), dtype, low, high).astype(jnp.float32)
            assert low <= float(drawn.min()) and float(drawn.max()) < high


def extremes(draw: Callable[[Any, Any], Any], rounds: int, size: int) -> tuple[float, float, bool]:
    """The least and the greatest of `rounds * size` numbers, and whether there is a NaN."""
    @anima.jit
    def some(k: Any) -> Any:
        x = draw(k, (size,))
        return x.min(), x.max(), jnp.any(x != x)

    found = [some(k) for k in random.split(KEY, rounds)]
    return (min(float(a) for a, _, _ in found), max(float(b) for _, b, _ in found), any(bool(c) for _, _, c in found))


@pytest.mark.parametrize("case", RANGES, ids=lambda c: c[0])
def test_range(case: Any) -> None:
    _, draw, least, most = case
    low, high, nan = extremes(draw, 1, N)
    assert least <= low and high <= most and not nan


@pytest.mark.slow
@pytest.mark.parametrize("case", RANGES, ids=lambda c: c[0])
def test_range_of_1e8(case: Any) -> None:
    _, draw, least, most = case
    low, high, nan = extremes(draw, 50, 2_000_000)
    assert least <= low and high <= most and not nan
