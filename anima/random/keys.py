"""Keys: making them, taking them apart, splitting them, folding integers in.

A key is the whole state of the generator; functions read it and never change it, so each draw needs a
key of its own, from `split` or `fold_in`.

    >>> key, subkey = split(anima.random.key(0))
    >>> key
    Array((), dtype=key<fry>) overlaying:
    [4146024105  967050713]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np

from anima import errors
from anima.api.eager import repeated
from anima.config import config
from anima.control.key_reuse import use
from anima.core import dtypes
from anima.core.array import Array, ConcreteArray
from anima.core.avals import ShapedArray
from anima.core.dims import index_of
from anima.core.dtypes import KeyDType
from anima.core.state import warn
from anima.core.trace import aval_of
from anima.numpy.promote import is_for_numpy
from anima.ops import elementwise as el
from anima.random import philox, threefry
from anima.random.implementation import Implementation, named, of_dtype
from anima.random.primitives import (
    UINT32,
    random_clone_p,
    random_fold_in_p,
    random_seed_p,
    random_split_p,
    random_unwrap_p,
    random_wrap_p,
)

_WORD = ShapedArray((), UINT32)

GENERATORS = (threefry.THREEFRY, philox.RBG, philox.UNSAFE_RBG)  # known from the start


def _implementation(spec: Any) -> Implementation:
    """The generator that a name, a key dtype or None (the default) stands for."""
    if spec is None:
        spec = config.default_prng_impl
    if isinstance(spec, Implementation):
        return spec
    if isinstance(spec, KeyDType):
        return of_dtype(spec)
    if isinstance(spec, str):
        return named(spec)
    raise TypeError(f"unrecognized type {type(spec)} for specifying a PRNG implementation.")


def _chosen(impl: Any, dtype: Any) -> Implementation:
    if dtype is None:
        return _implementation(impl)
    if impl is not None:
        raise ValueError("The arguments dtype and impl say the same: give one of them.")
    if not isinstance(dtype, KeyDType):
        raise TypeError(f"dtype must be a key dtype such as anima.random.key_dtype(), got {dtype}")
    return _implementation(dtype)


def is_key(x: Any) -> bool:
    """Whether `x` is an array of typed keys."""
    return isinstance(x, Array) and isinstance(x.aval.dtype, KeyDType)


def _seeded(seed: Any, impl: Implementation, name: str) -> Any:
    if is_key(seed):
        raise TypeError(f"{name} accepts an integer seed, but was given a PRNG key.")
    offset = config.random_seed_offset
    if type(seed) is int:
        seed, offset = seed + offset, 0
        # Python ints are taken as 64-bit numbers; while these are off, the high word is dropped.
        seed = np.int64(seed)
        seed = seed if config.enable_x64 else seed.astype(np.int32)
    aval = aval_of(seed)
    if not dtypes.issubdtype(aval.dtype, np.integer) and aval.dtype != dtypes.bool_:
        raise TypeError(f"PRNG key seed must be an integer; got {aval}")
    if aval.shape:
        raise TypeError(f"{name} accepts a scalar seed, but was given an array of shape {aval.shape} != (). "
                        "Use anima.vmap for batching")
    if offset:
        seed = el.add(el.convert_element_type(seed, aval.dtype), np.asarray(offset).astype(aval.dtype))
    return random_seed_p.bind(seed, impl=impl)


def key(seed: Any, *, impl: Any = None, dtype: Any = None) -> Any:
    """A typed key from an integer seed; the same seed gives the same key.

    `impl` names the generator ("threefry2x32", the default, "rbg" or "unsafe_rbg"). TypeError if the seed is not
    one integer.

    >>> anima.random.key(0)
    Array((), dtype=key<fry>) overlaying:
    [0 0]
    """
    return _seeded(seed, _chosen(impl, dtype), "key")


def PRNGKey(seed: Any, *, impl: Any = None) -> Any:
    """A raw key from an integer seed: a uint32 array of the key's words, shape (2,)."""
    typed = _seeded(seed, _implementation(impl), "PRNGKey")
    return typed if config.enable_custom_prng else random_unwrap_p.bind(typed)


def key_data(keys: Any) -> Any:
    """The words of keys: a uint32 array of shape `keys.shape + (2,)`."""
    return random_unwrap_p.bind(_typed(keys)[0])


def wrap_key_data(key_bits_array: Any, *, impl: Any = None, dtype: Any = None) -> Any:
    """Keys from their words, a uint32 array of shape `(..., 2)`; the inverse of `key_data`."""
    return random_wrap_p.bind(key_bits_array, impl=_chosen(impl, dtype))


def key_impl(keys: Any) -> str:
    """The name of the generator of some keys.

    >>> anima.random.key_impl(anima.random.key(0))
    'threefry2x32'
    """
    typed, _ = _typed(keys)
    return of_dtype(typed.dtype).name


def key_dtype(impl_spec: Any = None) -> KeyDType:
    """The dtype of the keys of a generator (the default one if not named)."""
    return _implementation(impl_spec).dtype


def clone(key: Any) -> Any:
    """The same key, to be used again on purpose."""
    typed, raw = _typed(key, quiet=True)
    out = random_clone_p.bind(typed)
    return random_unwrap_p.bind(out) if raw else out


def split(key: Any, num: int | Iterable[int] = 2) -> Any:
    """`num` new keys (an int, or a shape), independent of each other and of `key`, which is used up.

    >>> anima.random.split(anima.random.key(0)).shape
    (2,)
    """
    typed, raw = check_key("split", key)
    sizes = tuple(num) if isinstance(num, Sequence) else (num,)
    for n in sizes:
        if isinstance(n, Array) and not isinstance(n, ConcreteArray):
            raise errors.ConcretizationTypeError(
                n, "The number of keys that split makes is part of the shape of its result, and has to be known while "
                "tracing. Make it a static argument (static_argnums), or derive keys one by one: fold_in(key, i).", "")
    shape = tuple(map(index_of, sizes))
    if any(n < 0 for n in shape):
        raise ValueError(f"split takes numbers of keys that are not negative, got {num}")
    use(typed, "split")
    return _split(typed, shape, raw)


@repeated
def _split(key: Any, shape: tuple[int, ...], raw: bool) -> Any:
    out = random_split_p.bind(key, shape=shape)
    return random_unwrap_p.bind(out) if raw else out


def draw_keys(key: Any, num: int = 2) -> Any:
    """`split` of one typed key inside a sampler, whose own use of the key is already on record."""
    return random_split_p.bind(key, shape=(num,))


def fold_in(key: Any, data: Any) -> Any:
    """A new key determined by a key and an integer (taken modulo 2**32), such as the number of a step."""
    typed, raw = check_key("fold_in", key)
    if type(data) is int:
        if not 0 <= data < 2**32:
            raise OverflowError(f"Python integer {data} out of bounds for uint32 in fold_in")
        data = _word(data)
    aval = aval_of(data)
    if aval.shape:
        raise TypeError(f"fold_in accepts a scalar, but was given an array of shape {aval.shape} != (). "
                        "Use anima.vmap for batching.")
    if aval.dtype != UINT32:
        data = el.convert_element_type(data, UINT32)
    return _folded(typed, data, raw)


def _word(number: int) -> ConcreteArray:
    return ConcreteArray(np.array(number, np.uint32), _WORD)


@repeated
def _folded(key: Any, data: Any, raw: bool) -> Any:
    out = random_fold_in_p.bind(key, data)
    return random_unwrap_p.bind(out) if raw else out


def _tell_of_raw_key() -> None:
    """Warns of a raw key, or raises ValueError, as the option `legacy_prng_key` says."""
    text = ("Legacy uint32 key array passed as key to a random function. Fix: create keys with anima.random.key(); "
            'if a raw key was intended, set anima_legacy_prng_key="allow".')
    if config.legacy_prng_key == "error":
        raise ValueError(text)
    warn(text)


@cache
def _single(impl: Implementation) -> ShapedArray:
    return ShapedArray((), impl.dtype)


_MAKE = "a key, as anima.random.key(seed) makes one of a number, and split and fold_in make others of it."


def _typed(keys: Any, quiet: bool = False) -> tuple[Any, bool]:
    """(typed keys, whether they were given raw); TypeError for what cannot be a key. `quiet`: raw ones are welcome."""
    if is_key(keys):
        return keys, False
    if (keys.__class__ is ConcreteArray and keys.aval.shape == (2,) and is_for_numpy(keys)
            and config.legacy_prng_key == "allow"):
        impl = _implementation(None)
        if keys.aval.dtype == UINT32 and impl.key_shape == (2,):
            return ConcreteArray(keys.elements(), _single(impl)), True
    if isinstance(keys, (tuple, list, dict, set)) or keys is None:
        raise TypeError(f"unexpected PRNG key type {type(keys)}. Fix: {_MAKE}")
    if not all(hasattr(keys, name) for name in ("ndim", "shape", "dtype")):
        raise TypeError("Anima encountered invalid PRNG key data: expected key_data to have ndim, shape, and dtype "
                        f"attributes. Got {keys}. Fix: {_MAKE}")
    if not quiet and config.legacy_prng_key != "allow":
        _tell_of_raw_key()
    return random_wrap_p.bind(keys, impl=_implementation(None)), True


def check_key(name: str, key: Any) -> tuple[Any, bool]:
    """`key` as one typed key, and whether it was given raw; ValueError for an array of several."""
    typed, raw = _typed(key)
    if typed.aval.shape:
        shape = tuple(key.shape) if raw else typed.aval.shape
        raise ValueError(f"{name} accepts a single key, but was given a key array of shape {shape} != (). "
                         "Use anima.vmap for batching.")
    return typed, raw
