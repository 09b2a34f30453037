"""Keys: what they are, what may be done with them, and what is said when they are misused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import random
from anima.random import primitives

MODES = pytest.mark.parametrize("partitionable", [False, True])


def words(key: Any) -> list[Any]:
    return np.asarray(random.key_data(key)).tolist()


# Known answers of Threefry-2x32 with 20 rounds, from the authors' kat_vectors (Random123).
@pytest.mark.parametrize(("key", "counter", "want"), [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
])
def test_threefry(key: tuple[int, int], counter: tuple[int, int], want: tuple[int, int]) -> None:
    args = [np.asarray([w], np.uint32) for w in (*key, *counter)]
    got = primitives.threefry2x32_p.bind(*args)
    assert tuple(int(x[0]) for x in got) == want


def test_types() -> None:
    key = random.key(3)
    assert str(key.dtype) == "key<fry>"
    assert key.shape == () and key.ndim == 0 and key.size == 1
    assert jnp.issubdtype(key.dtype, anima.dtypes.prng_key)
    assert random.key_impl(key) == random.key_impl(random.PRNGKey(3)) == "threefry2x32"
    assert random.key_dtype() == key.dtype
    raw = random.PRNGKey(3)
    assert raw.dtype == np.uint32 and raw.shape == (2,)
    assert words(random.wrap_key_data(raw)) == words(key)


def test_keys_are_arrays() -> None:
    keys = random.split(random.key(0), 6)
    assert keys.reshape(2, 3).shape == (2, 3)
    assert words(keys.reshape(2, 3)[1]) == words(keys)[3:]
    assert words(keys[4]) == words(keys)[4]
    assert words(jnp.concatenate([keys[:2], keys[2:]])) == words(keys)
    assert words(jnp.stack([keys[0], keys[1]])) == words(keys)[:2]
    assert [words(k) for k in keys] == words(keys)


@MODES
@pytest.mark.parametrize("raw", [False, True])
def test_raw_keys_are_the_same(partitionable: bool, raw: bool) -> None:
    with anima.threefry_partitionable(partitionable):
        key = random.PRNGKey(5) if raw else random.key(5)
        typed = random.key(5)
        assert np.asarray(random.normal(key, (3,))).tolist() == np.asarray(random.normal(typed, (3,))).tolist()
        for fun in (lambda k: random.split(k, 3), lambda k: random.fold_in(k, 7), random.clone):
            assert words(fun(key)) == words(fun(typed))
            assert (fun(key).dtype == np.uint32) == raw


@MODES
def test_vmap_is_a_loop(partitionable: bool) -> None:
    with anima.threefry_partitionable(partitionable):
        keys = random.split(random.key(1), 4)
        for fun in (lambda k: random.key_data(random.split(k, 3)), lambda k: random.bits(k, (3, 5)),
                    lambda k: random.bits(k, (3,), jnp.uint8), lambda k: random.key_data(random.fold_in(k, 2)),
                    random.key_data, random.normal):
            together, alone = anima.vmap(fun)(keys), [fun(k) for k in keys]
            np.testing.assert_array_equal(np.asarray(together), np.stack([np.asarray(x) for x in alone]))
        steps = jnp.arange(4)
        pairs = anima.vmap(lambda k, i: random.key_data(random.fold_in(k, i)))(keys, steps)
        np.testing.assert_array_equal(pairs, [words(random.fold_in(k, i)) for i, k in enumerate(keys)])


@MODES
@pytest.mark.tiny
def test_jit_is_eager(partitionable: bool) -> None:
    with anima.threefry_partitionable(partitionable):
        def draws(seed: Any) -> Any:
            key = random.key(seed)
            a, b = random.split(random.fold_in(key, seed + 1))
            return (random.key_data(a), random.bits(b, (7,)), random.bits(b, (3, 2), jnp.uint16),
                    random.uniform(a, (5,)), random.randint(b, (5,), 0, 100))

        for got, want in zip(anima.jit(draws)(9), draws(9), strict=True):
            np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def test_keys_pass_through_jit() -> None:
    keys = random.split(random.key(0), 3)
    out = anima.jit(lambda ks: ks[1])(keys)
    assert out.dtype == keys.dtype
    assert words(out) == words(keys)[1]


def test_jaxpr() -> None:
    jaxpr = anima.make_jaxpr(lambda k: random.key_data(random.fold_in(k, 3)))(random.key(0))
    assert str(jaxpr) == ("{ lambda ; a:key<fry>[]. let\n    b:key<fry>[] = random_fold_in a 3\n"
                          "    c:u32[2] = random_unwrap b\n  in (c,) }")
    jaxpr = anima.make_jaxpr(random.key)(3)
    assert str(jaxpr) == "{ lambda ; a:i32[]. let b:key<fry>[] = random_seed[impl=fry] a in (b,) }"
    jaxpr = anima.make_jaxpr(lambda k: random.bits(k, (2,)))(random.PRNGKey(0))
    assert "b:key<fry>[] = random_wrap[impl=fry] a" in str(jaxpr)
    assert "c:u32[2] = random_bits[bit_width=32 shape=(2,)] b" in str(jaxpr)


def test_gradients_of_draws_are_zero() -> None:
    value, slope = anima.jvp(lambda x: x * random.normal(random.key(0), ()), (2.0,), (1.0,))
    assert float(value) == 2 * float(slope)
    grad = anima.grad(lambda x: random.uniform(random.fold_in(random.key(0), jnp.int32(x)), ()) + x)(3.0)
    assert float(grad) == 1.0


ERRORS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: random.normal(0, (3,)), TypeError,
     "expected key_data to have ndim, shape, and dtype attributes. Got 0"),
    (lambda: random.normal((3,)), TypeError, "unexpected PRNG key type <class 'tuple'>"),
    (lambda: random.normal(jnp.ones(2), (3,)), TypeError, "expected key_data.dtype = uint32; got dtype=float32"),
    (lambda: random.normal(jnp.zeros(3, jnp.uint32)), TypeError, r"expected key_data.shape to end with \(2,\)"),
    (lambda: random.normal(random.split(random.key(0)), (3,)), ValueError,
     r"normal accepts a single key, but was given a key array of shape \(2,\) != \(\)"),
    (lambda: random.key(0) + 1, TypeError, "key<fry>"),
    (lambda: np.asarray(random.key(0)), TypeError, "cannot be converted to a NumPy array.*key_data"),
    (lambda: random.key(1.5), TypeError, "PRNG key seed must be an integer; got"),
    (lambda: random.key(jnp.arange(2)), TypeError, r"key accepts a scalar seed, .* array of shape \(2,\)"),
    (lambda: random.key("a"), TypeError, "not a valid Anima"),
    (lambda: random.key(2**63), OverflowError, "too large"),
    (lambda: random.key(0, impl="nope"), ValueError, 'unrecognized PRNG implementation "nope". Did you mean one of'),
    (lambda: random.key(0, impl="rbg"), NotImplementedError, "rbg"),
    (lambda: random.split(random.key(0), 2.5), TypeError, "'float' object cannot be interpreted as an integer"),
    (lambda: random.fold_in(random.key(0), jnp.arange(2)), TypeError, "fold_in accepts a scalar"),
    (lambda: random.fold_in(random.key(0), -1), OverflowError, "out of bounds for uint32"),
]


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_errors(number: int) -> None:
    call, error, message = ERRORS[number]
    with pytest.raises(error, match=message):
        call()


def test_reuse_is_found() -> None:
    key, other = random.key(0), random.key(0)
    random.normal(key)
    random.normal(key)
    with anima.debug_key_reuse(True):
        random.normal(key)
        twice_used = r"uniform was given a key that has been used before, by normal at test_keys.py:\d+, in test_reuse"
        with pytest.raises(anima.errors.KeyReuseError, match=twice_used):
            random.uniform(key)
        random.normal(random.clone(key))
        a, b = random.split(other)
        random.poisson(a, 20.0)
        random.binomial(b, 20.0, 0.3)
        with pytest.raises(anima.errors.KeyReuseError, match=r"normal was given a key .* used before, by split"):
            random.normal(other)
        folded = [random.fold_in(b, i) for i in range(2)]
        random.permutation(folded[0], 5)
        random.choice(folded[1], 5)

        def twice(k: Any) -> Any:
            return random.normal(k) + random.normal(k)

        with pytest.raises(anima.errors.KeyReuseError):
            anima.jit(twice)(random.key(1))
