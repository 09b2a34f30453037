"""Random words from Threefry-2x32, the default generator.

Two ways of numbering the counters exist (`config.threefry_partitionable`):

    original        counters 0 .. n-1 are cut into halves; block i encrypts (i, n/2 + i) and gives the words
                    i and n/2 + i. No word is wasted; each number depends on how many are drawn.
    partitionable   block i encrypts (0, i): number i is made of both of its words, whatever the total

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. The blocks are computed inside of the
loop that uses them, both words of a block at once.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from anima.config import config
from anima.core.avals import Shape
from anima.ops import elementwise as el, shape as sh
from anima.ops.threefry import threefry2x32_p
from anima.random.implementation import Implementation, register

UINT32 = np.dtype(np.uint32)


def _word(words: Any, index: int, extra: int = 0) -> Any:
    """One word of each key: `words[..., index]`, with `extra` dimensions of size 1 behind."""
    shape = words.shape
    part = sh.slice_in_dim(words, index, index + 1, axis=len(shape) - 1)
    return sh.reshape(part, shape[:-1] + (1,) * extra)


def _counters(keys_ndim: int, shape: Shape) -> Any:
    """0, 1, ... in an array of this shape, behind `keys_ndim` dimensions of size 1."""
    return sh.reshape(sh.iota(UINT32, math.prod(shape)), (1,) * keys_ndim + tuple(shape))


def _encrypt(words: Any, high: Any, low: Any) -> list[Any]:
    """Threefry of the counters (high, low), for each key along new trailing dimensions."""
    extra = len(low.shape) - (len(words.shape) - 1)
    return threefry2x32_p.bind(_word(words, 0, extra), _word(words, 1, extra), high, low)


def check_count(count: int) -> None:
    if int(count) >= 2**32:
        raise NotImplementedError(f"Drawing {count} blocks of random bits from one key: split the key, and draw "
                                  "fewer than 2**32 from each.")


def original_words(words: Any, shape: Shape) -> Any:
    """An array of random words for each key: the counters are cut into halves, which are encrypted in pairs."""
    count, rank = math.prod(shape), len(words.shape) - 1
    check_count(count)
    axis = next((d for d, n in enumerate(shape) if n != 1), 0)
    if count % 2 == 0 and shape[axis] % 2 == 0:  # the halves are those of the array along its first axis
        high = _counters(rank, (*shape[:axis], shape[axis] // 2, *shape[axis + 1:]))
        return sh.concatenate(_encrypt(words, high, el.add(high, np.uint32(count // 2))), rank + axis)
    half = -(-count // 2)
    high = _counters(rank, (half,))
    low = el.add(high, np.uint32(half))
    if count % 2:
        low = el.select(el.eq(high, np.uint32(half - 1)), sh.full(high.shape, np.uint32(0)), low)
    first, second = _encrypt(words, high, low)
    flat = sh.concatenate([first, sh.slice_in_dim(second, 0, count - half, axis=rank)], rank)
    return sh.reshape(flat, tuple(words.shape[:-1]) + tuple(shape))


def partitionable_words(words: Any, shape: Shape) -> list[Any]:
    """Two random words for each key and each 64-bit counter, as two arrays."""
    check_count(math.prod(shape))
    low = _counters(len(words.shape) - 1, shape)
    return _encrypt(words, sh.full(low.shape, np.uint32(0)), low)


def original_bits(words: Any, bit_width: int, shape: Shape) -> Any:
    """Unsigned integers for each key, one behind the other in a stream of words."""
    rank, count, out = len(words.shape) - 1, math.prod(shape), tuple(words.shape[:-1]) + tuple(shape)
    if bit_width == 32:
        return original_words(words, shape)
    if bit_width == 64:
        check_count(2 * count)
        high = _counters(rank, shape)
        return join(*_encrypt(words, high, el.add(high, np.uint32(count))))
    lanes = 32 // bit_width
    number = -(-count // lanes)
    drawn = original_words(words, (number,))
    wide = sh.broadcast_in_dim(drawn, drawn.shape + (lanes,), tuple(range(rank + 1)))
    offsets = el.mul(sh.broadcasted_iota(UINT32, wide.shape, rank + 1), np.uint32(bit_width))
    parts = el.convert_element_type(el.and_(el.shift_right_logical(wide, offsets), np.uint32(2**bit_width - 1)),
                                    np.dtype(f"uint{bit_width}"))
    flat = sh.reshape(parts, drawn.shape[:rank] + (number * lanes,))
    return sh.reshape(sh.slice_in_dim(flat, 0, count, axis=rank), out)


def partitionable_bits(words: Any, bit_width: int, shape: Shape) -> Any:
    """Unsigned integers for each key, each from its own counter."""
    high, low = partitionable_words(words, shape)
    if bit_width == 64:
        return join(high, low)
    mixed = el.xor(high, low)
    return mixed if bit_width == 32 else el.convert_element_type(mixed, np.dtype(f"uint{bit_width}"))


def join(high: Any, low: Any) -> Any:
    """64-bit integers from two words each."""
    wide = np.dtype(np.uint64)
    return el.or_(el.shift_left(el.convert_element_type(high, wide), np.uint64(32)), el.convert_element_type(low, wide))


def threefry_seed(seeds: Any) -> Any:
    """The key for each seed: its high word, its low word."""
    low = el.convert_element_type(seeds, UINT32)
    if seeds.dtype.itemsize == 8:
        high = el.convert_element_type(el.shift_right_logical(seeds, seeds.dtype.type(32)), UINT32)
    else:
        high = sh.full(low.shape, np.uint32(0))
    return _pair(high, low)


def _pair(high: Any, low: Any) -> Any:
    """The words of keys, side by side in a new last dimension."""
    shape = tuple(low.shape)
    return sh.concatenate([sh.reshape(high, shape + (1,)), sh.reshape(low, shape + (1,))], len(shape))


def threefry_bits(words: Any, bit_width: int, shape: Shape) -> Any:
    """Unsigned integers for each key."""
    draw = partitionable_bits if config.threefry_partitionable else original_bits
    return draw(words, bit_width, tuple(shape))


def threefry_split(words: Any, shape: Shape) -> Any:
    """New keys for each key."""
    if config.threefry_partitionable:
        return _pair(*partitionable_words(words, tuple(shape)))
    return original_words(words, (*shape, 2))


def threefry_fold_in(words: Any, data: Any) -> Any:
    """A new key for each key and integer."""
    return _pair(*_encrypt(words, sh.full(data.shape, np.uint32(0)), data))


THREEFRY = register(Implementation("threefry2x32", "fry", (2,), threefry_seed, threefry_split, threefry_bits,
                                   threefry_fold_in))
