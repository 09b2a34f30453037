"""What must hold of every sampler, whatever it draws from: shapes of parameters, bounds in any order and at the ends of
types, options that arguments overrule, and the random words at which formulas have their poles.
"""

from __future__ import annotations

import gc
import math
from typing import Any

import numpy as np
import pytest
import scipy.special

import anima
import anima.numpy as jnp
from anima import random as R
from anima.config import config
from anima.control import key_reuse
from anima.extend.random import define_prng_impl
from anima.random import counts

KEY = R.key(3)
INF = np.inf
FLOATS = ("float16", "bfloat16", "float32", "float64")

# ---------------------------------------------------------------- shapes

PARAMETERS: dict[str, tuple[float, ...]] = {
    "gamma": (1.5,), "loggamma": (1.5,), "beta": (1.0, 2.0), "chisquare": (2.0,), "t": (3.0,), "f": (3.0, 4.0),
    "pareto": (2.0,), "rayleigh": (1.0,), "lognormal": (1.0,), "wald": (1.0,), "triangular": (0.0, 0.5, 1.0),
    "truncated_normal": (-1.0, 1.0), "bernoulli": (0.5,), "poisson": (3.0,), "geometric": (0.5,),
    "binomial": (9.0, 0.5), "double_sided_maxwell": (0.0, 1.0)}


@pytest.mark.parametrize("name", PARAMETERS)
def test_shapes_have_room_for_the_parameters(name: str) -> None:
    values = PARAMETERS[name]
    shapes = ((2, 3),) if len(values) == 1 else ((2, 1), (3,), ())
    params = [jnp.full(shape, x) for shape, x in zip(shapes, values, strict=False)]
    joint = np.broadcast_shapes(*(p.shape for p in params))
    sampler = getattr(R, name)
    assert sampler(KEY, *params).shape == joint
    if name == "double_sided_maxwell":  # the shape of what is drawn for each
        assert sampler(KEY, *params, shape=(4, 5)).shape == (4, 5, *joint)
        return
    assert sampler(KEY, *params, shape=(4, *joint)).shape == (4, *joint)
    for shape in ((), joint[1:], (*joint, 4), (*joint[:-1], joint[-1] + 1)):
        with pytest.raises(ValueError, match="incompatible shapes"):
            sampler(KEY, *params, shape=shape)


@pytest.mark.parametrize("name", [*PARAMETERS, "normal", "laplace", "maxwell", "bits", "uniform"])
def test_shapes_may_be_arrays(name: str) -> None:
    sampler, params = getattr(R, name), PARAMETERS.get(name, ())
    want = sampler(KEY, *params, shape=(3, 2))
    for shape in (np.array([3, 2]), jnp.array([3, 2])):
        np.testing.assert_array_equal(sampler(KEY, *params, shape=shape), want)
        np.testing.assert_array_equal(sampler(KEY, *params, shape), want)
        with pytest.raises(TypeError):
            sampler(KEY, *params, shape=shape * 1.0)


def test_weibull_numbers_broadcast() -> None:
    scale, power = jnp.array([0.5, 3.0]), jnp.array([[1.0], [2.0]])
    one = R.weibull_min(KEY, 1.0, 1.0)
    for run in (lambda f: f, anima.jit):
        np.testing.assert_allclose(run(lambda s, p: R.weibull_min(KEY, s, p))(scale, power), one ** (1 / power) * scale,
                                   rtol=1e-6)
    assert R.weibull_min(KEY, scale, 2.0, (3, 2)).shape == (3, 2)


@pytest.mark.parametrize("shape", [(), (3,), (2, 1, 5)])
def test_bounds_broadcast_to_the_shape(shape: tuple[int, ...]) -> None:
    low, high = np.float32([[1], [5]]), np.float32([2, 6, 9])
    for draw in (lambda shape: R.uniform(KEY, shape, minval=low, maxval=high),
                 lambda shape: R.randint(KEY, shape, low.astype(int), high.astype(int))):
        assert draw((4, 2, 3)).shape == (4, 2, 3)
        with pytest.raises(ValueError, match="incompatible shapes"):
            draw(shape)


# ---------------------------------------------------------------- bounds

def test_a_uniform_number_between_arrays_of_one_element() -> None:
    one = R.uniform(KEY, (), minval=2.0, maxval=5.0)
    for low, high, shape in (([2.0], [5.0], (1,)), ([2.0], 5.0, (1,)), ([[2.0]], [[5.0]], (1, 1)), (2.0, [5.0], ())):
        for run in (lambda f: f, anima.jit):
            got = run(lambda low, high: R.uniform(KEY, (), "float32", low, high))(jnp.array(low), jnp.array(high))
            assert got.shape == shape
            np.testing.assert_array_equal(got.reshape(()), one)
    with pytest.raises(ValueError, match="incompatible shapes"):
        R.uniform(KEY, (), minval=jnp.zeros(2))


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_numbers_of_no_interval_are_the_lower_bound(dtype: str, x64: None) -> None:
    for low, high in ((2.0, 1.0), (1.0, 1.0), (-1.5, -3.0), (0.0, -0.0), (1.0, -INF)):
        for wrap in (float, np.asarray(0, dtype).dtype.type if dtype != "bfloat16" else float, jnp.asarray):
            out = np.asarray(R.uniform(KEY, (50,), dtype, wrap(low), wrap(high)), "float64")
            assert (out == low).all(), (low, high)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_integers_between_any_bounds(dtype: str) -> None:
    """Bounds beyond the type are its ends: the upper one is then included."""
    info = jnp.iinfo(dtype)
    least, most = int(info.min), int(info.max)
    ends = [least - 9, least - 1, least, least + 1, 0, 2, most - 1, most, most + 1, most + 2, 2 * most]
    for low in ends:
        for high in ends:
            given = np.int32(low), np.int32(high)
            first, last = max(min(low, most), least), min(high - 1, most)
            for a, b in ((low, high), given, map(jnp.asarray, given)):
                out = np.asarray(R.randint(KEY, (30,), a, b, dtype), "int64")
                assert out.min() >= first and out.max() <= max(first, last), (low, high)
                assert last <= first or len(set(out.tolist())) > 1


# ---------------------------------------------------------------- options and seeds

def test_a_mode_that_is_given_counts_more_than_the_option() -> None:
    def draws(**mode: Any) -> list[float]:
        return [*R.gumbel(KEY, (20,), **mode).tolist(), *R.categorical(KEY, jnp.zeros(9), shape=(20,), **mode).tolist()]

    low, high = draws(mode="low"), draws(mode="high")
    assert draws() == low != high
    with config.option("high_dynamic_range_gumbel")(True):
        assert draws() == high == draws(mode="high") and draws(mode="low") == low


@pytest.mark.parametrize("offset", [0, 5])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_seeds_of_every_type(dtype: str, offset: int, x64: None) -> None:
    """The words of a key are those of its seed, and of the option's offset."""
    top = int(jnp.iinfo(dtype).max) - offset
    with config.option("random_seed_offset")(offset):
        for seed in (0, 7, top, *([-3] if dtype[0] == "i" else [])):
            whole = (seed + offset) % 2**64
            want = [whole >> 32 if dtype.endswith("64") else 0, whole % 2**32]
            for given in (np.asarray(seed, dtype), jnp.asarray(seed, dtype)):
                assert R.key_data(R.key(given)).tolist() == want, seed
                assert R.key_data(anima.jit(R.key)(given)).tolist() == want, seed
            if -2**63 <= seed + offset < 2**63:
                assert R.key_data(R.key(seed)).tolist() == [whole >> 32, whole % 2**32]


def test_the_checker_of_reuse_forgets_keys_that_are_gone() -> None:
    with config.option("debug_key_reuse")(True):
        before = len(key_reuse._known)
        for key in R.split(KEY, 20):
            R.normal(key)
        del key
        gc.collect()
        assert len(key_reuse._known) <= before + 1  # that of the split


# ---------------------------------------------------------------- extreme words

def constant(name: str, word: Any) -> None:
    """A generator whose random words are all the same: `word(bits)`; of two rows, each has its own."""
    def bits(words: Any, width: int, shape: tuple[int, ...]) -> Any:
        dtype = np.dtype(f"uint{width}")
        first, second = (jnp.full(shape, np.array(w, dtype)) for w in word(width))
        row = jnp.arange(shape[0]).reshape(-1, *(1 for _ in shape[1:])) if shape else 0
        return jnp.where(row == 0, first, second)

    define_prng_impl(key_shape=(1,), seed=lambda s: jnp.full(1, s, np.uint32), fold_in=lambda words, data: words,
                     split=lambda words, shape: jnp.broadcast_to(words, (*shape, 1)), random_bits=bits, name=name,
                     tag=name)


constant("zeros", lambda width: (0, 0))
constant("ones", lambda width: (2**width - 1, 2**width - 1))
constant("half", lambda width: (0, 1 << width - 1))
# What is not drawn by rejection, and its support.
SUPPORT: dict[str, tuple[tuple[Any, ...], float, float]] = {
    "uniform": ((), 0, 1), "normal": ((), -40, 40), "exponential": ((), 0, 800), "laplace": ((), -800, 800),
    "logistic": ((), -800, 800), "gumbel": ((), -800, 800), "cauchy": ((), -1e17, 1e17), "maxwell": ((), 0, 60),
    "rayleigh": ((1.0,), 0, 60), "pareto": ((200.0,), 1, 60), "lognormal": ((1.0,), 0, 1e17),
    "triangular": ((0.0, 0.5, 1.0), 0, 1), "truncated_normal": ((-1.0, 1.0), -1, 1), "weibull_min": ((1.0, 2.0), 0, 60),
    "double_sided_maxwell": ((0.0, 1.0), -60, 60), "wald": ((1.0,), 0, 4000)}


@pytest.mark.parametrize("words", ["zeros", "ones"])
@pytest.mark.parametrize("name", SUPPORT)
def test_extreme_words(name: str, words: str, x64: None) -> None:
    key, (params, low, high) = R.key(0, impl=words), SUPPORT[name]
    for dtype in FLOATS:
        out = np.asarray(getattr(R, name)(key, *params, shape=(3,), dtype=dtype), "float64")
        assert np.isfinite(out).all() and (out >= low).all() and (out <= high).all(), (dtype, out)
        if name in ("uniform", "truncated_normal"):
            assert (out < high).all()


@pytest.mark.parametrize("words", ["zeros", "ones"])
def test_extreme_words_of_counts_and_choices(words: str, x64: None) -> None:
    key = R.key(0, impl=words)
    for p in (0.3, 0.999, 1.0):
        assert 1 <= int(R.geometric(key, p)) <= 2000
    assert R.choice(key, 4, (3,), p=jnp.array([0.0, 0.5, 0.5, 0.0])).tolist() == [2 if words == "zeros" else 1] * 3
    assert R.randint(key, (3,), -5, 9).tolist() == [-5 + (0 if words == "zeros" else (2**128 - 1) % 14)] * 3
    assert R.bernoulli(key, jnp.float32([0, 2.0**-30, 0.5, 1])).tolist() == [
        False, words == "zeros", words == "zeros", True]


@pytest.mark.parametrize("dtype", FLOATS)
def test_rare_events_have_the_digits_of_their_type(dtype: str, x64: None) -> None:
    """Below a coarse number of 0, the fine one of 1/2 stands for half of the least step."""
    key, step = R.key(0, impl="half"), 2.0 ** -jnp.finfo(dtype).nmant
    p = jnp.array([0.25 * step, 0.49 * step, 0.51 * step, step]).astype(dtype)
    assert [bool(R.bernoulli(key, x, mode="high")) for x in p] == [False, False, True, True]


# ---------------------------------------------------------------- numbers that formulas stand on

def test_factorials_less_stirlings_formula(x64: None) -> None:
    k = np.arange(60.0)
    want = [math.lgamma(n + 1) - ((n + 0.5) * math.log(n + 1) - (n + 1) + 0.5 * math.log(2 * math.pi)) for n in k]
    np.testing.assert_allclose(counts._stirling_tail(jnp.asarray(k)), want, rtol=2e-6)


@pytest.mark.parametrize("a", [1e-5, 1e-4, 1e-3])
def test_logarithms_of_gamma_numbers_are_differentiable_in_their_tail(a: float, x64: None) -> None:
    """Where log x = (log u + log Gamma(a + 1)) / a, of a uniform number u that stays."""
    out, slope = anima.jvp(lambda a: R.loggamma(KEY, a, (8,), "float64"), (a,), (1.0,))
    np.testing.assert_allclose(slope, (scipy.special.digamma(1 + a) - out) / a, rtol=2e-3)


def test_shuffles_of_many_elements_are_those_of_jax() -> None:
    """More than 1,625 elements are sorted twice, however they lie."""
    out = R.permutation(R.key(0), jnp.arange(2000).reshape(2, 1000), axis=1, independent=True)
    assert out[:, :6].tolist() == [[482, 935, 750, 921, 766, 805], [1184, 1820, 1102, 1374, 1768, 1235]]


@pytest.mark.parametrize("shape", [0, (0,), (0, 3), (2, 0), (), 1, (1, 1)])
def test_any_number_of_keys(shape: Any) -> None:
    want = (shape,) if isinstance(shape, int) else shape
    assert R.split(KEY, shape).shape == anima.jit(lambda key: R.split(key, shape))(KEY).shape == want


def test_raw_keys_are_told_of_as_the_option_says() -> None:
    raw = R.PRNGKey(3)
    want = R.normal(raw, (4,)).tolist()
    with config.option("legacy_prng_key")("warn"), pytest.warns(UserWarning, match="Legacy uint32 key array"):
        assert R.normal(raw, (4,)).tolist() == want == R.normal(KEY, (4,)).tolist()
    with config.option("legacy_prng_key")("error"):
        with pytest.raises(ValueError, match="Legacy uint32 key array"):
            R.normal(raw, (4,))
        assert R.normal(KEY, (4,)).tolist() == want
        assert R.clone(raw).tolist() == raw.tolist()


def test_logits_and_bounds_of_other_types() -> None:
    whole, real = jnp.array([0, 3, 1]), jnp.array([0.0, 3.0, 1.0])
    assert R.categorical(KEY, whole, shape=(9,)).tolist() == R.categorical(KEY, real, shape=(9,)).tolist()
    assert R.randint(KEY, (9,), 2.0, jnp.float32(7)).tolist() == R.randint(KEY, (9,), 2, 7).tolist()
    assert R.key(7, dtype=R.key_dtype("rbg")).dtype == R.key(7, impl="rbg").dtype != KEY.dtype
    assert R.key(7, impl=KEY.dtype).dtype == KEY.dtype


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_lanes_of_keys_are_keys_one_by_one(axis: int) -> None:
    """Along any axis of an array of keys, also beside parameters that have axes of their own."""
    many = R.split(KEY, (2, 3, 4))
    a = jnp.linspace(0.5, 4.0, 24).reshape(2, 3, 4)
    for draw in (lambda k, a: R.normal(k, (2,)) * a, lambda k, a: R.gamma(k, a), lambda k, a: R.gamma(k, a, (3,)),
                 lambda k, a: R.key_data(R.fold_in(k, 7)), lambda k, a: R.key_data(R.split(k, 2))):
        mapped = anima.vmap(anima.vmap(anima.vmap(draw)))(many, a)
        moved = anima.vmap(anima.vmap(anima.vmap(draw)), in_axes=axis, out_axes=axis)(many, a)
        one = np.stack([np.stack([np.stack([np.asarray(draw(many[i, j, k], a[i, j, k])) for k in range(4)])
                                  for j in range(3)]) for i in range(2)])
        np.testing.assert_allclose(mapped, one, rtol=1e-6)
        np.testing.assert_allclose(moved, one, rtol=1e-6)


def test_keys_are_typed_where_the_option_says_so() -> None:
    for seed in (0, 7):
        assert R.PRNGKey(seed).dtype == np.uint32
        with config.option("enable_custom_prng")(True):
            typed = R.PRNGKey(seed)
        assert typed.dtype == R.key(seed).dtype and typed.shape == ()
        assert R.key_data(typed).tolist() == R.PRNGKey(seed).tolist()
