"""Generators of random bits of your own, beside those that there are.

    mine = define_prng_impl(key_shape=(1,), seed=..., split=..., random_bits=..., fold_in=..., name="mine", tag="mine")
    key = anima.random.key(0, impl="mine")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anima.core.avals import Shape
from anima.names import access
from anima.ops.threefry import threefry2x32_p as threefry2x32_p, threefry_2x32 as threefry_2x32
from anima.random.implementation import Implementation, each, register
from anima.random.keys import key
from anima.random.philox import RBG as rbg_prng_impl, UNSAFE_RBG as unsafe_rbg_prng_impl
from anima.random.primitives import random_seed_p
from anima.random.threefry import THREEFRY as threefry_prng_impl

__all__ = ["define_prng_impl", "random_seed", "rbg_prng_impl", "seed_with_impl", "threefry2x32_p", "threefry_2x32",
           "threefry_prng_impl", "unsafe_rbg_prng_impl"]


def define_prng_impl(*, key_shape: Shape, seed: Callable[[Any], Any], split: Callable[[Any, Shape], Any],
                     random_bits: Callable[[Any, int, Shape], Any], fold_in: Callable[[Any, Any], Any],
                     name: str = "<unnamed>", tag: str = "?") -> Implementation:
    """A generator made of four functions, each of a single key: an array of uint32 of shape `key_shape`.

    Args:
      seed: a scalar integer -> the words of a key.
      split: (words, shape) -> an array of new keys, of shape `shape + key_shape`.
      random_bits: (words, 8 | 16 | 32 | 64, shape) -> unsigned integers of that many bits.
      fold_in: (words, uint32 scalar) -> the words of a new key.
      name, tag: what `random.key(0, impl=name)` calls it, and what stands in `key<tag>`.

    Returns:
      The generator, which is also known by its name from now on.

    Raises:
      ValueError: if the name or the tag is taken.
    """
    shape = tuple(key_shape)
    return register(Implementation(name, tag, shape, each(seed, ()), each(split, shape), each(random_bits, shape),
                                   each(fold_in, shape, mapped=2)))


def seed_with_impl(impl: Any, seed: Any) -> Any:
    """A typed key of a generator from an integer seed."""
    return key(seed, impl=impl)


def random_seed(seeds: Any, impl: Implementation) -> Any:
    """Typed keys of a generator from an array of integer seeds."""
    return random_seed_p.bind(seeds, impl=impl)

globals().update(access(__name__, globals()))
