"""Draws at edges: intervals of a few floats, integers at and beyond the ends of types, probabilities that are 0 or do
not sum to 1, tiny shapes. What is drawn depends on the values of parameters, not on how they are given."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import random as R
from anima.config import config

KEY = R.key(11)
FLOATS: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32,
                          "float64": np.float64}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("start", [0.0, 1.0, -1.0, 3.0, 1024.0, -1e-3])
@pytest.mark.usefixtures("x64")
def test_uniform_in_intervals_of_a_few_floats(dtype: str, start: float) -> None:
    """The upper bound is never drawn, the lower one is."""
    kind = FLOATS[dtype]
    low = high = kind(start)
    for _ in range(4):
        high = np.nextafter(high, kind(np.inf))
        for bounds in ((low, high), (float(low), float(high)), (jnp.asarray(low), jnp.asarray(high)),
                       (np.full(3, low), np.full(3, high))):
            drawn = np.asarray(R.uniform(KEY, (60, 3), dtype, *bounds))
            assert (drawn >= low).all() and (drawn < high).all() and drawn.dtype == kind
        assert drawn.min() == low
    assert len(np.unique(drawn)) > 1


INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
ENDS = [-(2**63), -(2**31), -129, -128, -1, 0, 1, 126, 127, 128, 254, 255, 256, 2**15, 2**31 - 1, 2**31, 2**32 - 1,
        2**32, 2**63 - 1]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.usefixtures("x64")
def test_integers_between_all_ends(dtype: str) -> None:
    """Bounds outside of the type are its ends (the upper one, one more), whatever types hold them."""
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    pairs = [(a, b) for a, b in itertools.product(ENDS, ENDS)
             if (a + b) % 3 != 1 or abs(a - b) < 3 or a in (least, most) or b in (least, most, most + 1)]
    lows, highs = (np.array(side, np.int64) for side in zip(*pairs, strict=True))
    drawn = np.asarray(R.randint(KEY, (40, len(pairs)), lows, highs, dtype))
    assert drawn.dtype == dtype
    for (low, high), column in zip(pairs, drawn.T.tolist(), strict=True):
        first, last = min(max(low, least), most), min(high, most + 1) - 1
        if last <= first:
            assert set(column) == {first}, (low, high)
        else:
            assert min(column) >= first and max(column) <= last, (low, high)
            assert len(set(column)) > 1, (low, high)


@pytest.mark.parametrize("dtype", ["int8", "uint32"])
@pytest.mark.usefixtures("x64")
def test_integers_from_bounds_of_all_types(dtype: str) -> None:
    for low, high in ((-5, 127), (0, 255), (-1000, 5), (200, 2**40)):
        want = np.asarray(R.randint(KEY, (50,), low, high, dtype))
        for kinds in ((a, b) for k, a in enumerate(INTEGERS) for b in INTEGERS[k % 3::3]):
            if all(np.iinfo(k).min <= x <= np.iinfo(k).max for k, x in zip(kinds, (low, high), strict=True)):
                a, b = (np.array(x, k) for k, x in zip(kinds, (low, high), strict=True))
                np.testing.assert_array_equal(R.randint(KEY, (50,), a, b, dtype), want, str((low, high, kinds)))


@pytest.mark.parametrize("total", [0.25, 1.0, 8.0])
@pytest.mark.parametrize("replace", [True, False])
def test_probabilities_of_any_sum(total: float, replace: bool) -> None:
    p = np.array([0.0, 0.5, 0.125, 0.25, 0.0, 0.125, 0.0], np.float32)
    want = R.choice(KEY, 7, (4,), replace, p)
    np.testing.assert_array_equal(R.choice(KEY, 7, (4,), replace, p * np.float32(total)), want)
    np.testing.assert_array_equal(R.choice(KEY, jnp.arange(7) * 3, (2, 2), replace, p).reshape(-1), want * 3)
    drawn = np.asarray(R.choice(KEY, 7, (500,), True, p * np.float32(total)))
    assert set(drawn.tolist()) == {1, 2, 3, 5}


def test_uniform_in_intervals_wider_than_the_largest_float() -> None:
    for low, high in ((0.0, np.inf), (-3e38, 3e38)):
        assert np.asarray(R.uniform(KEY, (3,), minval=low, maxval=high)).tolist() == [np.inf] * 3
    assert np.isnan(R.uniform(KEY, minval=-np.inf, maxval=0.0))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "int32", "bool"])
def test_multinomials_are_drawn_before_they_are_converted(dtype: str) -> None:
    share = jnp.array([0.2, 0.3, 0.5])
    drawn = R.multinomial(R.key(0), 10, share, dtype=dtype)
    assert drawn.dtype == dtype and np.array_equal(drawn, np.array([2, 3, 5]).astype(drawn.dtype))
    small = R.multinomial(R.key(0), 10, share.astype(jnp.float16))
    assert small.dtype == np.float32 and np.asarray(small).tolist() == [0, 3, 7]


def test_choices_of_none_some_and_all() -> None:
    assert R.choice(KEY, 0, (0, 2), p=jnp.ones(0)).shape == (0, 2)
    x = jnp.asarray(np.arange(12).reshape(3, 4))
    for count in range(5):
        for shape in ((count,), (count, 1)):
            drawn = np.asarray(R.choice(KEY, 4, shape, False))
            assert drawn.shape == shape and len({*drawn.ravel().tolist()}) == count
            columns = np.asarray(R.choice(KEY, x, shape, False, axis=1))
            assert columns.shape == (3, *shape)
            np.testing.assert_array_equal(columns, np.asarray(x)[:, drawn])
    for p in (None, np.ones(4, np.float32) / 4):
        assert sorted(np.asarray(R.choice(KEY, 4, (2, 2), False, p)).ravel().tolist()) == [0, 1, 2, 3]
        with pytest.raises(ValueError, match="larger sample"):
            R.choice(KEY, 4, (5, 1), False, p)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (3, 1, 2)], ids=str)
def test_categories_along_every_axis(shape: tuple[int, ...]) -> None:
    """Certain ones, other for each place, with further dimensions in front."""
    rng = np.random.default_rng(0)
    for axis in range(-len(shape), len(shape)):
        rest = np.delete(shape, axis).tolist()
        wanted = rng.integers(0, shape[axis], rest)
        logits = np.full((*rest, shape[axis]), -np.inf, np.float32)
        np.put_along_axis(logits, wanted[..., None], 0, -1)
        logits = np.moveaxis(logits, -1, axis)
        for lead in ((), (1,), (4,), (2, 5)):
            drawn = R.categorical(KEY, logits, axis, (*lead, *rest))
            np.testing.assert_array_equal(drawn, np.broadcast_to(wanted, (*lead, *rest)))
        everything = R.categorical(KEY, jnp.zeros(shape), axis, (shape[axis], *rest), replace=False)
        np.testing.assert_array_equal(np.sort(everything, 0).reshape(shape[axis], -1).T[0], np.arange(shape[axis]))


def test_multinomials_with_what_never_happens() -> None:
    """Zeros in all places; the last of those that happen takes the rest."""
    for pattern in itertools.product((0.0, 0.3, 1.0), repeat=3):
        if not any(pattern):
            continue
        p = np.array(pattern, np.float32) / np.float32(sum(pattern))
        for n in (1.0, 500.0):
            counts = np.asarray(R.multinomial(KEY, n, p))
            assert counts.sum() == n and (counts >= 0).all() and (counts[p == 0] == 0).all(), (pattern, n)
    assert np.isnan(np.asarray(R.multinomial(KEY, -1.0, np.array([0.5, 0.5], np.float32)))).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_small_binomials_are_those_of_32_bits(dtype: str) -> None:
    """Of the values of n and p that float32 has, not of theirs."""
    got = R.binomial(KEY, 300.0, 0.3337, (400,), dtype)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, R.binomial(KEY, 300.0, 0.3337, (400,), np.float32).astype(dtype))


@pytest.mark.parametrize("n", [1.0, 9.0, 40.0, 1e6, np.inf])
def test_binomials_and_their_complements(n: float) -> None:
    """Where p is 1 - q: n less what has q; all between 0 and n."""
    for p in (0.0, 1e-7, 0.4999999, 0.5, 0.8, 1.0):
        drawn = np.asarray(R.binomial(KEY, n, np.float32(p), (200,)))
        if np.isinf(n):
            assert (drawn == (np.inf if p else 0)).all()
            continue
        assert (drawn >= 0).all() and (drawn <= n).all() and (drawn == np.floor(drawn)).all()
        spread = np.sqrt(n * p * (1 - p) / 200)
        assert abs(drawn.mean() - n * p) <= 5 * spread + 1e-3 * (n > 1e5) * n, (n, p)


@pytest.mark.parametrize("mean", [0.0, 1e-3, 1.0, 9.5, 10.0, 11.0, 100.0, 1e4])
def test_means_and_spreads_of_counts(mean: float) -> None:
    """On both sides of where the method changes."""
    drawn = np.asarray(R.poisson(KEY, mean, (4000,))).astype(float)
    assert abs(drawn.mean() - mean) <= 5 * np.sqrt(mean / 4000)
    assert abs(drawn.var() - mean) <= 5 * np.sqrt((mean + 2 * mean**2) / 4000)
    if mean:
        p = 1 / (1 + mean)
        trials = np.asarray(R.geometric(KEY, p, (4000,))).astype(float)
        assert abs(trials.mean() - 1 / p) <= 5 * np.sqrt((1 - p) / p**2 / 4000) + 1e-3 / p and trials.min() >= 1


@pytest.mark.parametrize("a", [1e-5, 1e-3, 0.1, 0.9, 1.0, 1.1, 20.0, 1e4])
def test_gamma_and_its_logarithm(a: float) -> None:
    """The one is that of the other where it can be held; derivatives too. For tiny ones, log x is about log(u) / a."""
    value, log = (np.asarray(draw(KEY, np.float32(a), (300,))) for draw in (R.gamma, R.loggamma))
    assert not np.isnan(log).any() and (value >= 0).all() and np.isfinite(value).all()
    assert np.isfinite(log).all()
    if a >= 0.1:
        assert abs(value.mean() - a) <= 5 * np.sqrt(a / 300)
    slope, log_slope = (np.asarray(anima.jacfwd(lambda a, draw=draw: draw(KEY, a, (300,)))(np.float32(a)))
                        for draw in (R.gamma, R.loggamma))
    assert not np.isnan(slope).any() and np.isfinite(log_slope).all()
    if a <= 1e-3:
        tiny = np.isfinite(log) & (log < -90)
        assert tiny.any()
        np.testing.assert_allclose(log_slope[tiny], -log[tiny] / np.float32(a), rtol=1e-3)
    ratios = np.asarray(R.beta(KEY, np.float32(a), np.float32(a), (300,)))
    assert ((ratios >= 0) & (ratios <= 1)).all()


def test_bernoulli_resolves_what_its_mode_says() -> None:
    p = np.float32(2.0**-30)
    assert not np.asarray(R.bernoulli(KEY, 0.0, (2000,), mode="high")).any()
    assert np.asarray(R.bernoulli(KEY, 1.0, (2000,), mode="high")).all()
    for mode in ("low", "high"):
        for q in (0.25, 0.5, 0.75):
            drawn = np.asarray(R.bernoulli(KEY, q, (4000,), mode=mode))
            assert abs(drawn.mean() - q) < 5 * np.sqrt(q * (1 - q) / 4000)
    coarse, fine = np.asarray(R.uniform(KEY, (2, 1 << 16)))
    want = fine * np.float32(2.0**-23) < p - coarse
    np.testing.assert_array_equal(R.bernoulli(KEY, p, (1 << 16,), mode="high"), want)


@pytest.mark.parametrize("offset", [0, 3, -2, 2**31 - 1])
def test_seeds_of_every_kind_with_an_offset(offset: int) -> None:
    with config.option("random_seed_offset")(offset):
        found = {tuple(np.asarray(R.key_data(make(seed))).tolist()) for seed in (
            7, np.int32(7), np.array(7), jnp.asarray(7), np.uint32(7)) for make in (R.key, anima.jit(R.key))}
    with config.option("random_seed_offset")(0):
        want = tuple(np.asarray(R.key_data(R.key(np.int32(np.int64(7 + offset).astype(np.int32))))).tolist())
    assert {words[-1] for words in found} == {want[-1]} == {(7 + offset) % 2**32}


@pytest.mark.parametrize("data", [0, 1, 2**31 - 1, 2**31, 2**32 - 1])
def test_all_words_are_folded_in(data: int) -> None:
    want = np.asarray(R.key_data(R.fold_in(KEY, np.uint32(data))))
    for given in (data, jnp.asarray(np.uint32(data)), np.array(data, np.uint32)):
        np.testing.assert_array_equal(R.key_data(R.fold_in(KEY, given)), want)
        np.testing.assert_array_equal(R.key_data(anima.jit(R.fold_in)(KEY, np.uint32(data))), want)
    for beyond in (-1, 2**32, 2**32 + data):
        with pytest.raises(OverflowError, match="uint32"):
            R.fold_in(KEY, beyond)


@pytest.mark.parametrize("low, high", [(-1, 1), (-np.inf, 0), (0, np.inf), (1, 1.0001), (-0.5, 30), (2.5, np.inf)])
def test_truncated_normals_stay_within(low: float, high: float) -> None:
    """And not at the bounds; below the mean as above it."""
    drawn = np.asarray(R.truncated_normal(KEY, np.float32(low), np.float32(high), (2000,)))
    assert (drawn > low).all() and (drawn < high).all() and len(np.unique(drawn)) > 50
    mirrored = np.asarray(R.truncated_normal(KEY, np.float32(-high), np.float32(-low), (2000,)))
    assert (mirrored > -high).all() and (mirrored < -low).all()
    assert abs(drawn.mean() + mirrored.mean()) < 6 * (drawn.std() / np.sqrt(1000) + 1e-6)
