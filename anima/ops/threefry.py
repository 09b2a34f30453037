"""Threefry-2x32: the counter-based random bits that all random numbers here are made of.

A block cipher with 20 rounds of additions, rotations and exclusive ors, which turns a key of two words and
a counter of two words into two random words (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
easy as 1, 2, 3", SC 2011; Random123). Exact for every bit: its known answers are tests.

    >>> zero = jnp.zeros(1, "uint32")
    >>> threefry2x32_p.bind(zero, zero, zero, zero)      # key and counter, two words each
    [Array([1797259609], dtype=uint32), Array([2579123966], dtype=uint32)]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.core import dtypes
from anima.core.avals import ShapedArray, tangent_aval
from anima.core.primitive import Primitive, ShardingRule, Work, Zero
from anima.core.sharding_rules import each_alike
from anima.core.trace import aval_of
from anima.ops.broadcast import expand_dims, full, shape_of
from anima.ops.shape import concatenate, moveaxis, reshape, slice_in_dim, unstack

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
_UINT32 = np.dtype("uint32")


class Threefry2x32(Primitive):
    """`(k1, k2, x1, x2) -> (y1, y2)`, element by element; scalars and axes of size 1 repeat."""

    multiple_results = True
    cost = 100.0

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             **params: Any) -> Work:
        return Work(100.0 * outs[0].size)  # twenty rounds: addition, rotation (two shifts and an or), exclusive or

    def infer(self, *avals: ShapedArray) -> list[ShapedArray]:
        if len(avals) != 4 or any(a.dtype != _UINT32 for a in avals):
            raise TypeError("Arguments to threefry2x32 must be four arrays of uint32, got "
                            f"{', '.join(a.str_short() for a in avals)}")
        shapes = [a.shape for a in avals if a.shape]
        if len({len(s) for s in shapes}) > 1 or any(len(set(sizes) - {1}) > 1 for sizes in zip(*shapes, strict=False)):
            raise TypeError("threefry2x32 got incompatible shapes for broadcasting: "
                            f"{', '.join(str(a.shape) for a in avals)}.")
        shape = tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*shapes, strict=True))
        return [ShapedArray(shape, _UINT32)] * 2

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], **params: Any) -> ShardingRule:
        return each_alike(outs[0].shape, avals, outs)

    def eval(self, k1: np.ndarray, k2: np.ndarray, x1: np.ndarray, x2: np.ndarray) -> list[np.ndarray]:
        shape = np.broadcast_shapes(k1.shape, k2.shape, x1.shape, x2.shape)
        k1, k2, x1, x2 = map(np.atleast_1d, (k1, k2, x1, x2))  # NumPy warns of scalars that wrap around
        keys = (k1, k2, k1 ^ k2 ^ np.uint32(PARITY))
        a, b = (np.array(np.broadcast_to(x + k, shape or (1,))) for x, k in ((x1, k1), (x2, k2)))
        for group in range(5):
            for distance in ROTATIONS[group % 2]:
                a += b
                b = (b << np.uint32(distance)) | (b >> np.uint32(32 - distance))
                b ^= a
            a += keys[(group + 1) % 3]
            b += keys[(group + 2) % 3] + np.uint32(group + 1)
        return [a.reshape(shape), b.reshape(shape)]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        outs = self.bind(*primals)
        return outs, [Zero(tangent_aval(aval_of(y))) for y in outs]

    def transpose(self, ct: Any, *args: Any) -> Sequence[Any]:
        raise TypeError("threefry2x32 is not differentiable: it has no linear arguments")

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[Any]) -> tuple[Any, Any]:
        rank = max(len(shape_of(x)) - (d is not None) for x, d in zip(args, dims, strict=True))
        outs = self.bind(*(_align(x, d, rank) for x, d in zip(args, dims, strict=True)))
        return outs, [0, 0]


def _align(x: Any, dim: int | None, rank: int) -> Any:
    """An operand of a batched call with a batch axis in front (of size 1 if it had none) and `rank` others."""
    if dim is None:
        return expand_dims(x, (0,)) if shape_of(x) else x
    x = moveaxis(x, dim, 0)
    return expand_dims(x, range(1, rank + 1)) if len(shape_of(x)) == 1 else x


threefry2x32_p = Threefry2x32("threefry2x32")


def threefry_2x32(keypair: Any, count: Any) -> Any:
    """Random words for the counters `count`: an array of uint32 of the same shape.

    `keypair` is two uint32 scalars, or an array of two. The flat counters are cut into two halves (after an
    extra 0 if they are odd in number), which are the two words of the blocks, as are those of the result.
    """
    k1, k2 = unstack(keypair) if hasattr(keypair, "shape") else keypair
    kinds = [aval_of(x).dtype for x in (k1, k2, count)]
    if any(k != _UINT32 for k in kinds):
        raise TypeError(f"threefry_2x32 requires uint32 arguments, got {', '.join(map(dtypes.name, kinds))}")
    shape = shape_of(count)
    flat = reshape(count, (aval_of(count).size,))
    size = shape_of(flat)[0]
    half = (size + 1) // 2
    if size % 2:
        flat = concatenate([flat, full((1,), 0, _UINT32)], 0)
    words = threefry2x32_p.bind(k1, k2, slice_in_dim(flat, 0, half), slice_in_dim(flat, half, 2 * half))
    return reshape(slice_in_dim(concatenate(words, 0), 0, size), shape)
