"""Keys: what they are, what may be done with them, and what is said when they are misused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import random
from anima.core.avals import ShapedArray
from anima.extend import random as extend_random
from anima.ops.threefry import threefry2x32_p
from anima.random import philox, primitives, threefry
from anima.random.implementation import of_dtype

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
    got = threefry2x32_p.bind(*args)
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
@pytest.mark.parametrize("draw", [lambda k: random.bits(k, (4,)), lambda k: random.key_data(random.split(k, 3)),
                                  random.normal],
                         ids=["bits", "split", "normal"])
def test_the_numbering_is_that_of_where_keys_are_used(partitionable: bool, draw: Any) -> None:
    def both(key: Any) -> Any:
        with anima.threefry_partitionable(partitionable):
            first = draw(key)
        with anima.threefry_partitionable(not partitionable):
            return first, draw(key)

    key = random.key(3)
    wanted = both(key)
    assert (np.asarray(wanted[0]) != np.asarray(wanted[1])).any()
    for fun in (anima.jit(both), anima.checkpoint(both), lambda k: anima.lax.map(both, k[None]),
                lambda k: anima.vmap(both)(k[None])):
        for want, found in zip(wanted, fun(key), strict=True):
            np.testing.assert_array_equal(np.reshape(found, want.shape), want)
    assert "partitionable" not in str(anima.make_jaxpr(both)(key))


@MODES
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


MOVES: list[Callable[[Any], Any]] = [
    lambda k: k[2], lambda k: k[1:3], lambda k: k[::-1], lambda k: k[None], lambda k: k[jnp.array([2, 0])],
    lambda k: k[jnp.int32(3)], lambda k: tuple(k), lambda k: jnp.stack([k[0], k[1]]), lambda k: k.reshape(2, 2).T,
    lambda k: jnp.concatenate([k[:1], k]), lambda k: jnp.where(jnp.arange(4) > 1, k, k[0]),
    lambda k: jnp.where(True, k, k[::-1]), lambda k: anima.lax.select(jnp.arange(4) > 2, k, k[::-1]),
    lambda k: jnp.broadcast_to(k, (2, 4)), lambda k: jnp.tile(k, 2), lambda k: jnp.repeat(k, 2), jnp.ravel,
    lambda k: jnp.roll(k, 1), lambda k: jnp.take(k, jnp.array([1, 1]), axis=0), lambda k: k.at[1].set(k[0]),
    lambda k: k.at[jnp.int32(2)].set(k[0]), lambda k: jnp.squeeze(k.reshape(1, 4)), lambda k: jnp.split(k, 2),
    lambda k: anima.lax.dynamic_slice(k, (jnp.int32(3),), (2,)), jnp.array, jnp.empty_like, lambda k: k == k[1],
    lambda k: anima.lax.dynamic_update_slice(k, k[:2], (jnp.int32(1),)), lambda k: k != k[::-1],
    lambda k: anima.tree.map(lambda x: x[0], {"a": k, "b": [k]}), lambda k: random.permutation(k[0], k),
    lambda k: random.choice(k[0], k, (2,)), lambda k: anima.vmap(random.split)(k),
    lambda k: anima.vmap(anima.vmap(random.bits))(k.reshape(2, 2)),
    lambda k: anima.vmap(lambda p, a: jnp.where(p, a, k[0]))(jnp.arange(4) > 1, k),
    lambda k: anima.lax.scan(lambda c, x: (random.split(c)[0], (c, random.bits(x))), k[0], k),
    lambda k: anima.lax.while_loop(lambda s: s[1] < 3, lambda s: (random.split(s[0])[0], s[1] + 1), (k[0], 0)),
    lambda k: anima.lax.fori_loop(0, 3, lambda i, s: random.fold_in(s, i), k[0]),
    lambda k: anima.lax.cond(jnp.arange(3)[1] > 0, lambda k: random.split(k)[0], lambda k: k, k[0]),
    lambda k: anima.lax.map(lambda x: random.uniform(x, (2,)), k),
]


@pytest.mark.parametrize("number", range(len(MOVES)))
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_moved_keys(number: int, impl: str) -> None:
    """Moving keys moves their words, and compiled programs do with keys what eager ones do."""
    keys = random.split(random.key(7, impl=impl), 4)
    eager, jitted = MOVES[number](keys), anima.jit(MOVES[number])(keys)

    def values(x: Any) -> list[Any]:
        leaves = anima.tree.leaves(x)
        return [words(y) if jnp.issubdtype(y.dtype, anima.dtypes.prng_key) else np.asarray(y).tolist() for y in leaves]

    assert values(eager) == values(jitted)
    assert anima.tree.structure(eager) == anima.tree.structure(jitted)
    assert [x.dtype for x in anima.tree.leaves(eager)] == [x.dtype for x in anima.tree.leaves(jitted)]


def test_donated_keys() -> None:
    keys, want = random.split(random.key(5), 3), words(random.split(random.split(random.key(5), 3)[0], 3))
    assert words(anima.jit(lambda ks: random.split(ks[0], 3), donate_argnums=0)(keys)) == want
    assert keys.is_deleted()


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_rbg(impl: str) -> None:
    key = random.key(3, impl=impl)
    assert random.key_impl(key) == impl and key.dtype == random.key_dtype(impl)
    assert str(key.dtype) == {"rbg": "key<rbg>", "unsafe_rbg": "key<urbg>"}[impl]
    assert repr(key) == f"Array((), dtype={key.dtype}) overlaying:\n[0 3 0 3]"
    assert random.PRNGKey(3, impl=impl).shape == (4,)
    keys = random.split(key, 5)
    together = anima.vmap(lambda k: random.bits(k, (3,)))(keys)
    assert np.asarray(together).tolist() == [np.asarray(random.bits(k, (3,))).tolist() for k in keys]
    for draw in (lambda k: random.gamma(k, 2.0, (3,)), lambda k: random.poisson(k, 20.0, (3,)),
                 lambda k: random.multinomial(k, 9.0, jnp.array([0.2, 0.8]))):
        np.testing.assert_array_equal(draw(key).shape, anima.jit(draw)(key).shape)


# Known answers of Philox-4x32 with 10 rounds (Random123's kat_vectors).
@pytest.mark.parametrize(("counter", "key", "want"), [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0],
     [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
])
def test_philox(counter: list[int], key: list[int], want: list[int]) -> None:
    got = philox.philox4x32([jnp.uint32(k) for k in key], [jnp.uint32(c) for c in counter])
    assert [int(x) for x in got] == want


def test_counters_of_128_bits_carry() -> None:
    key = random.wrap_key_data(jnp.array([1, 2, 0xFFFFFFFE, 0xFFFFFFFF], jnp.uint32), impl="rbg")
    assert np.asarray(random.bits(key, (16,)))[::4].tolist() == [2440199171, 875035680, 67759320, 2818318232]


ENDS = [0, 1, 0xFFFFFFFD, 0xFFFFFFFF]  # what wraps in a few steps, and what does not


@pytest.mark.parametrize("words", [*itertools.product(ENDS, repeat=4)], ids=str)
def test_counters_are_numbers_of_128_bits(words: tuple[int, ...]) -> None:
    """Words carry into the next where they wrap, and only there."""
    k0, k1, c0, c1 = words
    start = c0 | c1 << 32 | k0 << 64 | k1 << 96
    counters = [(start + 3 * step) % 2**128 for step in range(4)]
    parts = [np.array([c >> 32 * i & 0xFFFFFFFF for c in counters], np.uint32) for i in range(4)]
    want = np.stack(philox.philox4x32([np.uint32(k0), np.uint32(k1)], [jnp.asarray(x) for x in parts]), -1)
    np.testing.assert_array_equal(philox.blocks(jnp.array(words, jnp.uint32), 4, 3), want)


def test_own_generator() -> None:
    """A generator whose bits are a hash of its one word and a counter."""
    def mixed(x: Any) -> Any:
        x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
        return x ^ (x >> 15)

    def draw(word: Any, bit_width: int, shape: tuple[int, ...]) -> Any:
        count = int(np.prod(shape))
        return mixed(word[0] + jnp.arange(count, dtype=jnp.uint32)).reshape(shape).astype(f"uint{bit_width}")

    impl = extend_random.define_prng_impl(
        key_shape=(1,), seed=lambda s: s.astype(jnp.uint32).reshape(1), random_bits=draw, name="mixed", tag="mix",
        split=lambda word, shape: draw(word, 32, (*shape, 1)), fold_in=lambda word, data: mixed(word ^ data))
    key = random.key(4, impl="mixed")
    assert repr(key) == "Array((), dtype=key<mix>) overlaying:\n[4]"
    assert random.key_impl(key) == "mixed" and words(extend_random.seed_with_impl(impl, 4)) == [4]
    keys = random.split(key, 3)
    assert keys.shape == (3,) and random.normal(keys[0], (2, 3)).shape == (2, 3)
    want = [np.asarray(random.uniform(random.fold_in(k, 1), (2,))).tolist() for k in keys]
    got = anima.jit(anima.vmap(lambda k: random.uniform(random.fold_in(k, 1), (2,))))(keys)
    assert np.asarray(got).tolist() == want
    with pytest.raises(ValueError, match="exists already"):
        extend_random.define_prng_impl(key_shape=(1,), seed=mixed, random_bits=draw, split=draw, fold_in=draw,
                                       name="other", tag="mix")


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
    *((lambda p=p: p.bind(jnp.ones(2), **({"shape": (2,)} if p is primitives.random_split_p else {})), TypeError,
       f"{p.name} takes PRNG keys, got float32") for p in
      (primitives.random_clone_p, primitives.random_unwrap_p, primitives.random_split_p)),
    (lambda: random.key(0) + 1, TypeError, "key<fry>"),
    (lambda: np.asarray(random.key(0)), TypeError, "cannot be converted to a NumPy array.*key_data"),
    (lambda: random.key(1.5), TypeError, "PRNG key seed must be an integer; got"),
    (lambda: random.key(jnp.arange(2)), TypeError, r"key accepts a scalar seed, .* array of shape \(2,\)"),
    (lambda: random.key("a"), TypeError, "not a valid Anima"),
    (lambda: random.key(2**63), OverflowError, "too large"),
    (lambda: random.key(0, impl="nope"), ValueError, 'unrecognized PRNG implementation "nope". Did you mean one of'),
    (lambda: jnp.stack([random.key(0), random.key(0, impl="rbg")]), TypeError,
     "dtype key<fry> does not promote: it combines only with itself"),
    (lambda: random.normal(random.PRNGKey(0, impl="rbg")), TypeError, r"expected key_data.shape to end with \(2,\)"),
    (lambda: random.wrap_key_data(random.key_data(random.key(0)), impl="rbg"), TypeError,
     r"expected key_data.shape to end with \(4,\); got shape=\(2,\) for impl=rbg"),
    (lambda: jnp.sum(random.split(random.key(0))), TypeError, "reduce_sum does not accept dtype key<fry>"),
    (lambda: jnp.sort(random.split(random.key(0))), TypeError, "sort does not accept dtypes key<fry>"),
    (lambda: anima.lax.convert_element_type(random.key(0), "float32"), TypeError, "Cannot convert dtype key<fry>"),
    (lambda: jnp.arange(3)[random.key(0)], TypeError, "integer or boolean type, got indexer with type key<fry>"),
    (lambda: anima.grad(random.normal)(random.key(0)), TypeError, "grad requires .* got key<fry>"),
    (lambda: anima.jit(random.split)(random.key(0), 3), TypeError,
     "number of keys that split makes is part of the shape of its result"),
    (lambda: random.split(random.key(0), 2.5), TypeError, "'float' object cannot be interpreted as an integer"),
    (lambda: random.fold_in(random.key(0), jnp.arange(2)), TypeError, "fold_in accepts a scalar"),
    (lambda: random.fold_in(random.key(0), -1), OverflowError, "out of bounds for uint32"),
]


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40 + 7, 2**63 - 1, -1, -2**33])
@pytest.mark.parametrize("kind", [int, np.int64, jnp.asarray])
def test_both_halves_of_a_seed_of_64_bits_count(seed: int, kind: Any) -> None:
    with anima.enable_x64(True):
        words = [(seed >> 32) % 2**32, seed % 2**32]
        for make in (random.key, anima.jit(random.key)):
            assert random.key_data(make(kind(seed))).tolist() == words


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
        with pytest.raises(anima.errors.KeyReuseError, match=r"choice was given a key .* used before, by choice"):
            random.choice(folded[1], 5)

        def twice(k: Any) -> Any:
            return random.normal(k) + random.normal(k)

        with pytest.raises(anima.errors.KeyReuseError):
            anima.jit(twice)(random.key(1))


@pytest.mark.parametrize("misuse", [
    jnp.sin, jnp.exp, jnp.isnan, jnp.sqrt, jnp.sum, jnp.mean, jnp.argmax, jnp.sort, jnp.cumsum, jnp.logical_not,
    anima.nn.relu, anima.nn.sigmoid, lambda k: k + 1, lambda k: k * 2.0, lambda k: k < k, lambda k: -k, lambda k: k @ k,
    lambda k: k.astype("float32"), np.asarray, float])
@pytest.mark.parametrize("wrap", [lambda f: f, anima.jit], ids=["eager", "jit"])
def test_keys_are_not_numbers(misuse, wrap):
    with pytest.raises(TypeError):
        wrap(lambda k: misuse(k))(anima.random.split(anima.random.key(0)))


def test_keys_tell_of_their_generator() -> None:
    text = random.split(random.key(0, impl="rbg"), 3).pprint()
    assert "shape = (3,)" in text and "rbg" in text and "key_shape = (4,)" in text and "fold_in = anima." in text
    assert not hasattr(jnp.ones(3), "pprint") and not hasattr(random.key_data(random.key(0)), "pprint")


def test_types_that_operations_on_keys_refuse() -> None:
    keys, aval = anima.typeof(random.split(random.key(0), 3)), ShapedArray((3,), np.dtype("uint32"))
    assert primitives.random_fold_in_p.infer(keys, aval) == keys
    assert primitives.random_bits_p.infer(keys, bit_width=8, shape=(2,)) == ShapedArray((3, 2), np.dtype("uint8"))
    for data in (aval.update(shape=(2,)), aval.update(dtype=np.dtype("int32"))):
        with pytest.raises(TypeError, match="random_fold_in requires keys and uint32 data of equal shapes"):
            primitives.random_fold_in_p.infer(keys, data)
    for width in (7, 0, 128):
        with pytest.raises(TypeError, match=f"16-, 32- or 64-bit field width, got {width}"):
            primitives.random_bits_p.infer(keys, bit_width=width, shape=())
    with pytest.raises(TypeError, match="PRNG key seed must be an integer; got float32"):
        primitives.random_seed_p.infer(aval.update(dtype=np.dtype("float32")), impl=None)
    for impl in ("threefry2x32", "rbg"):
        found = extend_random.random_seed(np.array([1, 7]), of_dtype(random.key(0, impl=impl).dtype))
        want = [random.key_data(random.key(seed, impl=impl)) for seed in (1, 7)]
        np.testing.assert_array_equal(random.key_data(found), want)
    threefry.check_count(2**32 - 1)
    with pytest.raises(NotImplementedError, match="Drawing 4294967296 blocks of random bits from one key"):
        threefry.check_count(2**32)
