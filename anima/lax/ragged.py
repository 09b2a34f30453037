"""Products of matrices in groups of rows of their own, and of numbers with scales for blocks of them.

    >>> lax.ragged_dot(jnp.ones((3, 2)), jnp.arange(8.).reshape(2, 2, 2), jnp.array([1, 2]))
    Array([[ 2.,  4.],
           [10., 12.],
           [10., 12.]], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import Shape
from anima.core.trace import aval_of
from anima.ops import elementwise as ew, shape as sh
from anima.ops.contract import canonicalize_precision, dot_general, other_axes
from anima.ops.placing import as_asked
from anima.ops.reduce import cumsum
from anima.transforms.composed import Composed

Numbers = tuple[tuple[Shape, Shape], tuple[Shape, Shape]]


@dataclass(frozen=True)
class RaggedDotDimensionNumbers:
    """Which axes of the operands of `ragged_dot_general` belong together.

    `dot_dimension_numbers` are those of `dot_general`; `lhs_ragged_dimensions` is the one axis of lhs that the groups
    divide; `rhs_group_dimensions` the axis of rhs with an entry for each group, if the ragged axis is neither
    contracted nor a batch axis.
    """

    dot_dimension_numbers: Any
    lhs_ragged_dimensions: Sequence[int]
    rhs_group_dimensions: Sequence[int]

    def __post_init__(self) -> None:
        (lc, rc), (lb, rb) = self.dot_dimension_numbers
        object.__setattr__(self, "dot_dimension_numbers",
                           ((tuple(lc), tuple(rc)), (tuple(lb), tuple(rb))))
        object.__setattr__(self, "lhs_ragged_dimensions", tuple(self.lhs_ragged_dimensions))
        object.__setattr__(self, "rhs_group_dimensions", tuple(self.rhs_group_dimensions))


def _outer_axes(numbers: RaggedDotDimensionNumbers, rank: int) -> tuple[int, ...]:
    """The axes of `lhs` along which group sizes may differ: those of batches, and those of the ragged one's kind that
    come before it."""
    ((lc, _), (lb, _)), (ragged,) = numbers.dot_dimension_numbers, numbers.lhs_ragged_dimensions
    if ragged in lb:
        return tuple(lb[:lb.index(ragged)])
    kind = tuple(lc) if ragged in lc else other_axes(rank, tuple(lc), tuple(lb))
    return (*lb, *kind[:kind.index(ragged)])


def _members(group_sizes: Any, outer: Shape, shape: Shape, axis: int) -> Array:
    """For each group, whether a place along `axis` belongs to it: bools of the shape (groups, *shape). Sizes may differ
    along the axes `outer`."""
    sizes = ew.convert(group_sizes, np.dtype(np.int32))
    used = sorted((*outer, axis))
    sizes = sh.transpose(sizes, (len(outer), *(outer.index(a) for a in used if a != axis)))
    ends = cumsum(sizes, 0)
    starts = ew.sub(ends, sizes)
    small = (sizes.shape[0], *(shape[a] for a in used))
    places = sh.broadcasted_iota(np.int32, small, 1 + used.index(axis))
    kept = (0, *(1 + i for i, a in enumerate(used) if a != axis))
    ends, starts = (sh.broadcast_in_dim(v, small, kept) for v in (ends, starts))
    inside = ew.and_(ew.ge(places, starts), ew.lt(places, ends))
    return sh.broadcast_in_dim(inside, (sizes.shape[0], *shape), (0, *(1 + a for a in used)))


def _ragged(lhs: Any, rhs: Any, group_sizes: Any, *, ragged_dot_dimension_numbers: RaggedDotDimensionNumbers,
            precision: Any, preferred_element_type: Any) -> Array:
    ((lc, rc), (lb, rb)) = ragged_dot_dimension_numbers.dot_dimension_numbers
    (ragged,) = ragged_dot_dimension_numbers.lhs_ragged_dimensions
    if ragged in lb:  # every element of the batch is a product of its own anyway
        return dot_general(lhs, rhs, ((lc, rc), (lb, rb)), precision, preferred_element_type)
    outer = _outer_axes(ragged_dot_dimension_numbers, lhs.ndim) if group_sizes.ndim > 1 else ()
    inside = _members(group_sizes, outer, lhs.shape, ragged)
    parts = sh.broadcast(lhs, group_sizes.shape[-1:])
    parts = ew.select_n(inside, sh.zeros_like(parts), parts)
    first, batch = [a + 1 for a in lc], [a + 1 for a in lb]
    if ragged in lc:
        out = dot_general(parts, rhs, ((first, rc), (batch, rb)), precision, preferred_element_type)
        return sh.moveaxis(out, len(lb), 0)
    (group,) = ragged_dot_dimension_numbers.rhs_group_dimensions
    return dot_general(parts, rhs, (([0, *first], [group, *rc]), (batch, rb)), precision, preferred_element_type)


ragged_dot_general_p = Composed("ragged_dot_general", _ragged)


def ragged_dot_general(lhs: Any, rhs: Any, group_sizes: Any, ragged_dot_dimension_numbers: RaggedDotDimensionNumbers,
                       precision: Any = None, preferred_element_type: Any = None, group_offset: Any = None,
                       out_sharding: Any = None) -> Array:
    """`dot_general` by groups: `group_sizes` divide one axis of `lhs`, from its start on.

    What the ragged axis is, decides: if it is neither contracted nor a batch axis, each of its places is multiplied
    with its group's part of `rhs` (places of no group give zeros); if it is contracted, each group gives a result of
    its own, along a new first axis; along a batch axis groups make no difference.

    Args:
      lhs, rhs, precision, preferred_element_type: as of `dot_general`.
      group_sizes: [groups], integers; or [*axes, groups] where sizes differ along batch axes and, before the ragged
        one, along axes of its kind: contracted or not.
      ragged_dot_dimension_numbers: a `RaggedDotDimensionNumbers`.
      group_offset: None.

    Raises:
      NotImplementedError: for a group_offset.
      TypeError: for group sizes that are no integers or of another shape, numbers of axes that do not fit.
    """
    if out_sharding is not None:
        return as_asked("ragged_dot_general", None, out_sharding, ragged_dot_general, lhs, rhs, group_sizes,
                        ragged_dot_dimension_numbers, precision, preferred_element_type, group_offset)
    if group_offset is not None:
        raise NotImplementedError("ragged_dot_general: group_offset is not supported.")
    numbers, sizes = ragged_dot_dimension_numbers, aval_of(group_sizes)
    if not dtypes.issubdtype(sizes.dtype, np.integer) or not sizes.ndim:
        raise TypeError(f"ragged_dot_general: group_sizes must be a vector of integers, got {sizes.str_short()}.")
    if len(numbers.lhs_ragged_dimensions) != 1:
        raise TypeError("ragged_dot_general expects exactly one lhs ragged dimension.")
    ((lc, rc), (lb, rb)) = numbers.dot_dimension_numbers
    shape, ranks = aval_of(lhs).shape, (aval_of(lhs).ndim, aval_of(rhs).ndim)
    for what, axes, rank in (("lhs ragged", numbers.lhs_ragged_dimensions, ranks[0]),
                             ("rhs group", numbers.rhs_group_dimensions, ranks[1])):
        if not all(0 <= a < rank for a in axes):
            raise TypeError(f"ragged_dot_general requires {what} dimension numbers to be nonnegative and less than the "
                            f"rank of the operand, {rank}; got {axes}.")
    needed = int(numbers.lhs_ragged_dimensions[0] not in (*lc, *lb))
    if len(numbers.rhs_group_dimensions) != needed:
        raise TypeError(f"ragged_dot_general expects {needed} rhs group dimensions for this ragged dimension, got "
                        f"{numbers.rhs_group_dimensions}.")
    if set(numbers.rhs_group_dimensions) & {*rc, *rb}:
        raise TypeError("ragged_dot_general requires rhs group dimension numbers to be distinct from contracting and "
                        f"batch dimensions, got {numbers.rhs_group_dimensions}.")
    outer = tuple(shape[a] for a in _outer_axes(numbers, len(shape)))
    if sizes.shape[:-1] not in ((), outer):
        raise TypeError(f"ragged_dot_general expected group_sizes to have shape {(*outer, sizes.shape[-1])} or "
                        f"{sizes.shape[-1:]}, got {sizes.shape}.")
    for axis in numbers.rhs_group_dimensions:
        if aval_of(rhs).shape[axis] != sizes.shape[-1]:
            raise TypeError(f"ragged_dot_general expects rhs to have an entry for each of {sizes.shape[-1]} groups, "
                            f"got {aval_of(rhs).shape[axis]}.")
    preferred = None if preferred_element_type is None else dtypes.canonicalize_dtype(preferred_element_type)
    return ragged_dot_general_p.bind(lhs, rhs, group_sizes, ragged_dot_dimension_numbers=numbers,
                                     precision=canonicalize_precision(precision), preferred_element_type=preferred)


def ragged_dot(lhs: Any, rhs: Any, group_sizes: Any, precision: Any = None, preferred_element_type: Any = None,
               group_offset: Any = None, out_sharding: Any = None) -> Array:
    """[m, k] times [groups, k, n]: rows of `lhs`, in groups of these sizes, times the matrix of their group: [m, n].

    Rows beyond the last group give zeros; other arguments and errors as of `ragged_dot_general`.
    """
    numbers = RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))
    return ragged_dot_general(lhs, rhs, group_sizes, numbers, precision, preferred_element_type, group_offset,
                              out_sharding)


# ---------------------------------------------------------------- numbers with scales

def spread(x: Any, scale: Any, dtype: Any) -> Array:
    """`x`, of small floats, times the scale of the block that each element is in, in `dtype`."""
    factors = ew.convert(scale, dtype)
    for axis, (size, blocks) in enumerate(zip(x.shape, factors.shape, strict=True)):
        shape = factors.shape[: axis + 1] + (size // blocks,) + factors.shape[axis + 1:]
        wide = sh.broadcast_in_dim(factors, shape, [d for d in range(len(shape)) if d != axis + 1])
        factors = sh.collapse(wide, axis, axis + 2)
    return ew.mul(ew.convert(x, dtype), factors)


def _scaled(lhs: Any, rhs: Any, lhs_scale: Any, rhs_scale: Any, *, dimension_numbers: Numbers,
            preferred_element_type: Any) -> Array:
    work = np.dtype(np.float64 if preferred_element_type == np.float64 else np.float32)
    out = dot_general(spread(lhs, lhs_scale, work), spread(rhs, rhs_scale, work), dimension_numbers)
    return ew.convert(out, preferred_element_type)


scaled_dot_p = Composed("scaled_dot", _scaled)


def scaled_dot(lhs: Any, rhs: Any, *, lhs_scale: Any = None, rhs_scale: Any = None, dimension_numbers: Any = None,
               preferred_element_type: Any = None) -> Array:
    """`dot_general` of numbers in blocks with a scale for each (microscaling formats), summed in float32 at least.

    Args:
      lhs, rhs: arrays of floats, as a rule of 8 or 4 bits.
      lhs_scale, rhs_scale: arrays of the rank of their operand, whose sizes divide the operand's: one number for each
        block; None: 1.
      dimension_numbers: as of `dot_general`; by default those of a matrix product.
      preferred_element_type: of the result; bfloat16 by default.

    Raises:
      TypeError: for scales of shapes that do not fit.
    """
    if dimension_numbers is None:
        dimension_numbers = (((aval_of(lhs).ndim - 1,), (0,)), ((), ()))
    (lc, rc), (lb, rb) = dimension_numbers
    numbers = ((tuple(lc), tuple(rc)), (tuple(lb), tuple(rb)))
    scales = []
    for name, x, scale in (("lhs", lhs, lhs_scale), ("rhs", rhs, rhs_scale)):
        shape = aval_of(x).shape
        if scale is None:
            scale = sh.full((1,) * len(shape), 1, np.float32)
        given = aval_of(scale).shape
        if len(given) != len(shape) or any(n == 0 or size % n for size, n in zip(shape, given, strict=False)):
            raise TypeError(f"scaled_dot: {name}_scale of shape {given} does not divide {name} of shape {shape} into "
                            "blocks.")
        scales.append(scale)
    dtype = dtypes.bfloat16 if preferred_element_type is None else dtypes.canonicalize_dtype(preferred_element_type)
    return scaled_dot_p.bind(lhs, rhs, *scales, dimension_numbers=numbers, preferred_element_type=dtype)
