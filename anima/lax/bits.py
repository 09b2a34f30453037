"""Random numbers of the machine's own generators: bits from a key that the caller keeps, and uniform ones.

    >>> key, bits = lax.rng_bit_generator(jnp.arange(4, dtype="uint32"), (2,))
    >>> bits
    Array([ 895509795, 3230209149], dtype=uint32)
"""

from __future__ import annotations

import enum
import math
import operator
from typing import Any

import numpy as np

from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import Shape
from anima.core.trace import aval_of
from anima.ops import elementwise as ew, shape as sh
from anima.ops.placing import as_asked
from anima.ops.threefry import threefry2x32_p
from anima.random.philox import blocks as philox_blocks
from anima.transforms.composed import Composed

_UINT32 = np.dtype(np.uint32)


class RandomAlgorithm(enum.IntEnum):
    """A generator of bits; the default is Philox."""

    RNG_DEFAULT = 0
    RNG_THREE_FRY = 1
    RNG_PHILOX = 2

    def __str__(self) -> str:
        return self.name


def _counted(words: Any, first: int, count: int) -> tuple[Any, Any, Any]:
    """A 64-bit counter, in two words from `first` on: its next `count` values (low, high), and what comes after."""
    low, high = (sh.reshape(sh.slice_in_dim(words, k, k + 1), ()) for k in (first, first + 1))

    def plus(n: Any) -> tuple[Any, Any]:
        total = ew.add(low, n)
        return total, ew.add(high, ew.convert(ew.lt(total, low), _UINT32))

    lows, highs = plus(sh.iota(_UINT32, count))
    after = [sh.reshape(x, (1,)) for x in plus(np.uint32(count))]
    return lows, highs, after


def _philox(key: Any, shape: Shape, axis: int) -> tuple[Any, Any]:
    """(words of a shape, the key after them): a counter in the last two words counts blocks of four."""
    count = math.prod(shape)
    blocks = -(-count // 4)
    _, _, after = _counted(key, 2, blocks)
    words = sh.reshape(philox_blocks(key, blocks), (4 * blocks,))
    return sh.reshape(sh.slice_in_dim(words, 0, count), shape), sh.concatenate([sh.slice_in_dim(key, 0, 2), *after], 0)


def _threefry(key: Any, shape: Shape, axis: int) -> tuple[Any, Any]:
    """As `_philox`, by blocks of two words, which are neighbours along `axis`."""
    before, size, behind = shape[:axis], -(-shape[axis] // 2), shape[axis + 1:]
    k0, k1 = (sh.slice_in_dim(key, k, k + 1) for k in range(2))
    low, high, after = _counted(key, 2, math.prod((*before, size, *behind)))
    pairs = [sh.reshape(x, (*before, size, 1, *behind)) for x in threefry2x32_p.bind(k0, k1, low, high)]
    words = sh.reshape(sh.concatenate(pairs, axis + 1), (*before, 2 * size, *behind))
    return sh.slice_in_dim(words, 0, shape[axis], axis=axis), sh.concatenate([sh.slice_in_dim(key, 0, 2), *after], 0)


def _along(shape: Shape) -> int:
    """Where the words of a block are neighbours: the first dimension of even size, or else the first of the longest."""
    return next((axis for axis, n in enumerate(shape) if n % 2 == 0), shape.index(max(shape)))


def _generated(key: Any, *, shape: Shape, dtype: Any, algorithm: RandomAlgorithm) -> list[Any]:
    words = key
    if key.dtype == np.uint64:
        words = sh.reshape(ew.bitcast_convert_type(key, _UINT32), (4,))
    draw = _threefry if algorithm is RandomAlgorithm.RNG_THREE_FRY else _philox
    if dtype.itemsize == 8:
        bits, after = draw(words, (*shape, 2), len(shape))
        bits = ew.bitcast_convert_type(bits, dtype)
    else:
        bits, after = draw(words, shape or (1,), _along(shape or (1,)))
        bits = ew.convert(sh.reshape(bits, shape), dtype)
    if key.dtype == np.uint64:
        after = ew.bitcast_convert_type(sh.reshape(after, (2, 2)), key.dtype)
    return [after, bits]


rng_bit_generator_p = Composed("rng_bit_generator", _generated, multiple_results=True)


def rng_bit_generator(key: Any, shape: Any, dtype: Any = np.uint32,
                      algorithm: RandomAlgorithm | int = RandomAlgorithm.RNG_DEFAULT, *,
                      out_sharding: Any = None) -> tuple[Array, Array]:
    """(the key for the next call, random bits of a shape).

    Args:
      key: uint32[4], or uint64[2] where there are 64-bit types: two words of key, and two that count blocks.
      dtype: uint8, uint16, uint32 or uint64.
      algorithm: Philox-4x32 (the default) or Threefry-2x32, with the bits that JAX gives on a CPU.

    Raises:
      TypeError: for another key or dtype.

    Differs from JAX: under `vmap` each key gives the bits that it gives alone, and goes on; in JAX all of them come
    from the first key.

    For keys that split, see `anima.random`. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    if out_sharding is not None:
        following, bits = rng_bit_generator(key, shape, dtype, algorithm)
        return following, as_asked("rng_bit_generator", None, out_sharding, lambda: bits)
    dtype, aval = dtypes.canonicalize_dtype(dtype), aval_of(key)
    if dtype not in (np.uint8, np.uint16, np.uint32, np.uint64):
        raise TypeError(f"rng_bit_generator: unsupported dtype {dtypes.name(dtype)}")
    if (aval.shape, dtypes.name(aval.dtype)) not in (((4,), "uint32"), ((2,), "uint64")):
        raise TypeError(f"rng_bit_generator: the key must be uint32[4] or uint64[2], got {aval.str_short()}.")
    key, bits = rng_bit_generator_p.bind(key, shape=sh.as_shape(shape), dtype=dtype,
                                         algorithm=RandomAlgorithm(operator.index(algorithm)))
    return key, bits
