"""Arrays cut up, put side by side, repeated, subtracted from in places: one operation each of recorded programs.

    >>> anima.make_jaxpr(lambda x: lax.tile(x, (2,)))(jnp.ones(2))
    { lambda ; a:f32[2]. let b:f32[4] = tile[reps=(2,)] a in (b,) }
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any

from anima.core.avals import broadcast_shapes as _broadcast_shapes, canonicalize_axis
from anima.core.trace import is_tracing
from anima.ops import elementwise as ew, index as ix, shape as sh
from anima.transforms.composed import Composed

scatter_sub_p = Composed("scatter-sub", lambda x, indices, updates, **params: ix.scatter_add_p.bind(
    x, indices, ew.neg(updates), **params))
split_p = Composed("split", lambda x, *, sizes, axis: sh.split(x, sizes, axis), multiple_results=True)
stack_p = Composed("stack", lambda *xs, axis: sh.stack(xs, axis))
tile_p = Composed("tile", lambda x, *, reps: sh.tile(x, reps))
unstack_p = Composed("unstack", lambda x, *, axis: sh.unstack(x, axis), multiple_results=True)


def scatter_sub(operand: Any, scatter_indices: Any, updates: Any, dimension_numbers: ix.ScatterDimensionNumbers, *,
                indices_are_sorted: bool = False, unique_indices: bool = False,
                mode: str | ix.GatherScatterMode | None = None) -> Any:
    """`operand` with `updates` subtracted from windows, all of them where several meet; see `scatter_add`."""
    return ix.scattered(scatter_sub_p, operand, scatter_indices, updates, dimension_numbers, mode=mode,
                        indices_are_sorted=indices_are_sorted, unique_indices=unique_indices)


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape that arrays of these shapes broadcast to; ValueError if there is none."""
    if not shapes:
        return ()
    given = [sh.as_shape(s, "broadcast_shapes") for s in shapes]
    try:
        return _broadcast_shapes(*given)
    except TypeError:
        raise ValueError("Incompatible shapes for broadcasting: shapes=" + str(given)) from None


@wraps(sh.broadcast_in_dim)
def broadcast_in_dim(operand: Any, shape: Any, broadcast_dimensions: Sequence[int], *, out_sharding: Any = None) -> Any:
    dims = sh.as_shape(broadcast_dimensions, "broadcast_in_dim broadcast_dimensions")
    order = sorted(range(len(dims)), key=dims.__getitem__)
    if len(dims) == len(sh.shape_of(operand)):  # axes may come in another order
        operand, dims = sh.transpose(operand, order), tuple(sorted(dims))
    return sh.broadcast_in_dim(operand, shape, dims, out_sharding=out_sharding)


@wraps(sh.split)
def split(operand: Any, sizes: Sequence[int], axis: int = 0) -> list[Any]:
    if not is_tracing():
        return sh.split(operand, sizes, axis)
    axis = canonicalize_axis(axis, len(sh.shape_of(operand)))
    return split_p.bind(operand, sizes=sh.as_shape(sizes, "split sizes"), axis=axis)


@wraps(sh.stack)
def stack(operands: Sequence[Any], axis: int = 0) -> Any:
    if not is_tracing() or not len(operands):
        return sh.stack(operands, axis)
    return stack_p.bind(*operands, axis=canonicalize_axis(axis, len(sh.shape_of(operands[0])) + 1))


@wraps(sh.tile)
def tile(operand: Any, reps: Sequence[int]) -> Any:
    if not is_tracing():
        return sh.tile(operand, reps)
    return tile_p.bind(operand, reps=sh.as_shape(reps, "tile reps"))


@wraps(sh.unstack)
def unstack(x: Any, axis: int = 0) -> tuple[Any, ...]:
    if not is_tracing():
        return sh.unstack(x, axis)
    return tuple(unstack_p.bind(x, axis=canonicalize_axis(axis, len(sh.shape_of(x)))))
