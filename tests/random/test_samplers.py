"""Samplers: supports, shapes, dtypes, derivatives and errors; their distributions are in test_distributions.py."""

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


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32"])
@pytest.mark.parametrize("kind", [int, np.int64, np.asarray, jnp.asarray], ids=["int", "int64", "NumPy", "array"])
def test_randint_reaches_the_ends_of_its_type(kind: Callable[[int], Any], dtype: str, x64: None) -> None:
    """Bounds beside, at and beyond them, of any type."""
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    for run in (random.randint, anima.jit(random.randint, static_argnums=(1, 4))):
        for low, high in ((most - 2, most + 1), (most - 2, most + 9), (most - 2, most), (least, least + 3),
                          (least - 5, least + 3)):
            drawn = np.asarray(run(KEY, (200,), kind(low), kind(high), dtype))
            assert set(drawn.tolist()) == set(range(max(low, least), min(high, most + 1)))


@pytest.mark.parametrize(("name", "at", "beside"), [
    ("poisson", (10.0,), (np.nextafter(np.float32(10), np.float32(11)),)),
    ("binomial", (40.0, 0.25), (40.0, np.nextafter(np.float32(0.25), np.float32(0)))),
    ("binomial", (40.0, 0.75), (40.0, np.nextafter(np.float32(0.75), np.float32(1))))])
def test_methods_change_where_they_should(name: str, at: tuple[Any, ...], beside: tuple[Any, ...]) -> None:
    """At a mean of 10: of two parameters that are nearly the same, one method makes the same numbers."""
    draw = getattr(random, name)
    same = np.asarray(draw(KEY, *map(np.float32, at), (200,))) == np.asarray(draw(KEY, *beside, (200,)))
    assert same.mean() > 0.95


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


@pytest.mark.parametrize(("size", "first", "sum_of_products"), [
    (1625, [1099, 1006, 896, 295, 321], 1074967924), (1626, [1567, 666, 1067, 890, 1545], 1073011936)])
def test_long_permutations_take_more_rounds(size: int, first: list[int], sum_of_products: int) -> None:
    """Numbers of JAX on both sides of the size from which words are drawn twice."""
    out = np.asarray(random.permutation(random.key(7), size), np.int64)
    assert out[:5].tolist() == first and out @ np.arange(size) == sum_of_products
    same = random.permutation(random.key(7), jnp.arange(size) + 2)
    np.testing.assert_array_equal(same, out + 2)


@pytest.mark.parametrize("p", [0.02, 0.3, 0.5, 0.6, 0.98, 1.0])
@pytest.mark.parametrize("n", [0.4, 1.0, 7.9, 30.7, 5000.5])
def test_counts_are_whole(n: float, p: float) -> None:
    """Of trials whose number is not whole, those below it count."""
    out = np.asarray(random.binomial(random.key(1), n, p, (200,)))
    assert (out == np.round(out)).all() and out.min() >= 0 and out.max() <= np.floor(n)
    np.testing.assert_allclose(out.mean(), np.floor(n) * p, atol=5 * np.sqrt(np.floor(n) * p * (1 - p) / 200) + 1e-6)
    counts = np.asarray(random.multinomial(random.key(2), np.floor(n), jnp.array([p / 2, 1 - p, p / 2])))
    assert (counts == np.round(counts)).all() and counts.min() >= 0 and counts.sum() == np.floor(n)


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


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (2, 2), (1, 2, 2)], ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2, -2])
def test_choices_of_any_shape_stand_in_the_place_of_the_axis(axis: int, shape: tuple[int, ...]) -> None:
    a = np.arange(4 * 5 * 6).reshape(4, 5, 6)
    place, total = axis % 3, a.shape[axis]
    for options in ({}, {"replace": False}, {"p": np.ones(total, "f") / total},
                    {"p": np.ones(total, "f") / total, "replace": False}):
        drawn = np.asarray(random.choice(KEY, a, shape, axis=axis, **options))
        assert drawn.shape == (*a.shape[:place], *shape, *a.shape[place + 1:])
        lines = np.moveaxis(drawn.reshape(*a.shape[:place], -1, *a.shape[place + 1:]), place, 0)
        known = np.moveaxis(a, axis, 0).tolist()
        found = [known.index(line) for line in lines.tolist()]
        assert options.get("replace", True) or len(set(found)) == len(found)


def test_categorical() -> None:
    p = np.array([0.1, 0.2, 0.7], np.float32)
    drawn = np.asarray(random.categorical(KEY, jnp.log(p), shape=(N,)))
    assert stats.chisquare(np.bincount(drawn, minlength=3), p.astype(float) * N / p.astype(float).sum()).pvalue > 1e-4
    assert random.categorical(KEY, jnp.zeros((3, 4)), axis=0, shape=(5, 4)).shape == (5, 4)
    column = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 1)), jnp.float32)
    wide = jnp.broadcast_to(column, (2, 3, 5))  # dimensions of size 1 broadcast, too
    for shape in (2, 5), (6, 2, 5):
        np.testing.assert_array_equal(random.categorical(KEY, column, axis=1, shape=shape),
                                      random.categorical(KEY, wide, axis=1, shape=shape))
    np.testing.assert_array_equal(random.categorical(KEY, column, 1, (3, 2, 5), replace=False),
                                  random.categorical(KEY, wide, 1, (3, 2, 5), replace=False))
    for shape in (5, 2), (5,), (3, 1, 5):
        with pytest.raises(ValueError, match="incompatible shapes"):
            random.categorical(KEY, column, axis=1, shape=shape)
    distinct = np.asarray(random.categorical(KEY, jnp.zeros((2, 5)), shape=(5, 2), replace=False))
    assert np.sort(distinct, axis=0).T.tolist() == [list(range(5))] * 2


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
    (lambda: random.normal(KEY, (2,), out_sharding=object()), TypeError, "out_sharding"),
]


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_errors(number: int) -> None:
    call, error, message = ERRORS[number]
    with warnings.catch_warnings(), pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("method", ["cholesky", "eigh", "svd"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_normal_vectors_of_16_bits(dtype: str, method: str) -> None:
    mean, cov = jnp.array([3.0, -1.0], dtype), jnp.array([[2.0, 0.5], [0.5, 1.0]], dtype)
    drawn = anima.jit(lambda k: random.multivariate_normal(k, mean, cov, (4000,), dtype, method))(random.key(1))
    assert drawn.dtype == dtype
    assert random.multivariate_normal(random.key(1), mean.astype("f4"), cov, (), dtype, method).dtype == np.float32
    values = np.asarray(drawn, np.float64)
    np.testing.assert_allclose(values.mean(0), np.asarray(mean, np.float64), atol=0.1)
    np.testing.assert_allclose(np.cov(values.T), np.asarray(cov, np.float64), atol=0.15)
