"""The generators `rbg` and `unsafe_rbg`: random words from Philox-4x32, with keys of four words.

The words (k0, k1, c0, c1) of a key are Philox's key k0, k1 and the start c0, c1, k0, k1 of its 128-bit counter;
each block gives four words. The two differ in how keys come from keys:

    rbg          as Threefry does, for each half of the words
    unsafe_rbg   split: every tenth block of the key; fold_in: xor with the tenth block of the integer as a seed

Bits, keys and splits are those of JAX on a CPU. Differs from JAX: under vmap each key gives its own bits, those
that it gives alone. `unsafe_rbg` keys have no proof of independence behind them. Method: Salmon et al., "Parallel
random numbers: as easy as 1, 2, 3", SC 2011 (Philox-4x32 with 10 rounds).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from anima.core.avals import Shape
from anima.ops import elementwise as el, shape as sh
from anima.random.implementation import Implementation, each, register
from anima.random.threefry import UINT32, check_count, join, threefry_fold_in, threefry_seed, threefry_split

_KEY = (4,)
_MULTIPLIERS = np.uint32(0xD2511F53), np.uint32(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85
_HASH = 10  # blocks that unsafe_rbg takes for a hash function


def philox4x32(key: list[Any], counter: list[Any]) -> list[Any]:
    """Four random words for each counter of four words, under a key of two."""
    c0, c1, c2, c3 = counter
    for number in range(10):
        k0, k1 = (el.add(k, np.uint32(number * step & 0xFFFFFFFF)) for k, step in zip(key, _WEYL, strict=True))
        (a, b), (m0, m1) = (c0, c2), _MULTIPLIERS
        c0, c1, c2, c3 = (el.xor(el.xor(el.mulhi(b, m1), c1), k0), el.mul(b, m1),
                          el.xor(el.xor(el.mulhi(a, m0), c3), k1), el.mul(a, m0))
    return [c0, c1, c2, c3]


def blocks(words: Any, count: int, step: int = 1) -> Any:
    """The blocks 0, step, ... of a key: an array of words of shape (count, 4)."""
    check_count(count * step)
    k0, k1, c0, c1 = (sh.reshape(sh.slice_in_dim(words, i, i + 1), ()) for i in range(4))
    numbers = el.mul(sh.iota(UINT32, count), np.uint32(step))

    def plus_carry(word: Any, below: Any, before: Any) -> Any:
        """`word`, one more where the word below it has wrapped around."""
        return el.add(word, el.convert_element_type(el.lt(below, before), UINT32))

    low = el.add(numbers, c0)
    second = plus_carry(c1, low, c0)
    third = plus_carry(k0, second, c1)
    fourth = plus_carry(k1, third, k0)
    parts = philox4x32([k0, k1], [low, second, third, fourth])
    return sh.concatenate([sh.reshape(x, (count, 1)) for x in parts], 1)


def _stream(words: Any, count: int) -> Any:
    """The first `count` words of a key."""
    number = -(-count // 4)
    return sh.slice_in_dim(sh.reshape(blocks(words, number), (4 * number,)), 0, count)


def _bits(words: Any, bit_width: int, shape: Shape) -> Any:
    """Unsigned integers: two words each for 64 bits, the lower one first; the low bits of a word for 8 and 16."""
    count = math.prod(shape)
    if bit_width == 64:
        pairs = sh.reshape(_stream(words, 2 * count), (count, 2))
        low, high = (sh.reshape(sh.slice_in_dim(pairs, i, i + 1, axis=1), shape) for i in range(2))
        return join(high, low)
    drawn = sh.reshape(_stream(words, count), shape)
    return drawn if bit_width == 32 else el.convert_element_type(drawn, np.dtype(f"uint{bit_width}"))


def _seed(seeds: Any) -> Any:
    """Threefry's key, twice."""
    half = threefry_seed(seeds)
    return sh.concatenate([half, half], len(half.shape) - 1)


def _halves(words: Any) -> list[Any]:
    """The words of keys as the words of two Threefry keys."""
    last = len(words.shape) - 1
    return [sh.slice_in_dim(words, 2 * i, 2 * i + 2, axis=last) for i in range(2)]


def _split(words: Any, shape: Shape) -> Any:
    parts = [threefry_split(half, shape) for half in _halves(words)]
    return sh.concatenate(parts, len(parts[0].shape) - 1)


def _fold_in(words: Any, data: Any) -> Any:
    return sh.concatenate([threefry_fold_in(half, data) for half in _halves(words)], len(words.shape) - 1)


def _unsafe_split(words: Any, shape: Shape) -> Any:
    return sh.reshape(blocks(words, math.prod(shape), _HASH), (*shape, 4))


def _unsafe_fold_in(words: Any, data: Any) -> Any:
    hashed = sh.slice_in_dim(blocks(_seed(data), _HASH), _HASH - 1, _HASH)
    return el.xor(words, sh.reshape(hashed, _KEY))


_on_arrays = each(_bits, _KEY)
RBG = register(Implementation("rbg", "rbg", _KEY, _seed, _split, _on_arrays, _fold_in))
UNSAFE_RBG = register(Implementation("unsafe_rbg", "urbg", _KEY, _seed, each(_unsafe_split, _KEY), _on_arrays,
                                     each(_unsafe_fold_in, _KEY, mapped=2)))
