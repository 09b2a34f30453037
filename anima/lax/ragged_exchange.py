"""Rows that every element of a mapped axis sends to every other, as many as it says.

    ragged_all_to_all[axis_name=('i',) axis_index_groups=None] operand output starts sizes places arriving

By its program, each element takes its rows from what all have: collectives of equal parts, and a gather.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.core import dtypes
from anima.core.avals import ShapedArray
from anima.core.jaxpr import ClosedJaxpr
from anima.core.trace import aval_of
from anima.lax.parallel import Groups, all_gather, axis_index, bound, grouped
from anima.ops.broadcast import broadcast_in_dim, expand_dims
from anima.ops.elementwise import add, and_, convert, ge, lt, select, sub
from anima.ops.index import GatherDimensionNumbers, GatherScatterMode, dynamic_index_in_dim, gather
from anima.ops.reduce import argmax
from anima.ops.shape import broadcasted_iota, concatenate
from anima.transforms.composed import Composed


class _RaggedAllToAll(Composed):
    """Its program is made where the axes are bound: their sizes are no parameters."""

    typed = False

    def axis_names(self, params: dict[str, Any]) -> tuple[Any, ...]:
        names: tuple[Any, ...] = params["axis_name"]
        return names

    def body(self, params: dict[str, Any], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
        return self.trace(params, avals)


def _exchanged(operand: Any, output: Any, input_offsets: Any, send_sizes: Any, output_offsets: Any, recv_sizes: Any, *,
               axis_name: tuple[Any, ...], axis_index_groups: Groups) -> Any:
    me = axis_index(axis_name)
    if axis_index_groups is not None:
        places_in_groups = np.empty(sum(map(len, axis_index_groups)), np.int32)
        for group in axis_index_groups:
            places_in_groups[list(group)] = range(len(group))
        me = dynamic_index_in_dim(places_in_groups, me, 0, keepdims=False)

    def of_all(x: Any) -> Any:
        return all_gather(x, axis_name, axis_index_groups=axis_index_groups)

    def from_senders(x: Any) -> Any:  # of each sender, what it says of this receiver: a column
        everything = of_all(convert(x, np.dtype(np.int32)))
        return expand_dims(dynamic_index_in_dim(everything, me, 1, keepdims=False), (1,))

    size, rows, places = aval_of(input_offsets).shape[0], aval_of(operand).shape[0], aval_of(output).shape[0]
    sources, starts, counts = from_senders(input_offsets), from_senders(output_offsets), from_senders(send_sizes)
    place = sub(broadcasted_iota(np.int32, (size, places), 1), _wide(starts, places))
    arrives = and_(ge(place, np.int32(0)), lt(place, _wide(counts, places)))
    sender = argmax(arrives, 0, np.int32)
    row = add(place, _wide(sources, places))
    source = concatenate([expand_dims(sender, (1,)), expand_dims(_taken(row, sender), (1,))], 1)
    numbers = GatherDimensionNumbers(tuple(range(1, aval_of(operand).ndim)), (0, 1), (0, 1))
    found = gather(of_all(operand), source, numbers, (1, 1, *aval_of(operand).shape[1:]),
                   mode=GatherScatterMode.FILL_OR_DROP, fill_value=0) if rows else output
    some = _taken(convert(arrives, np.dtype(np.int32)), sender)
    return select(broadcast_in_dim(ge(some, np.int32(1)), aval_of(output).shape, (0,)), found, output)


def _wide(column: Any, width: int) -> Any:
    return broadcast_in_dim(column, (column.shape[0], width), (0, 1))


def _taken(x: Any, rows: Any) -> Any:
    """`x[rows[k], k]` for each k."""
    index = concatenate([expand_dims(rows, (1,)), expand_dims(broadcasted_iota(np.int32, rows.shape, 0), (1,))], 1)
    return gather(x, index, GatherDimensionNumbers((), (0, 1), (0, 1)), (1, 1))


ragged_all_to_all_p = _RaggedAllToAll("ragged_all_to_all", _exchanged)


def ragged_all_to_all(operand: Any, output: Any, input_offsets: Any, send_sizes: Any, output_offsets: Any,
                      recv_sizes: Any, *, axis_name: Any, axis_index_groups: Groups = None) -> Any:
    """Every element sends rows to every other, to places that the sender says: as MPI's Alltoallv.

    Args:
      operand: the rows to send, along axis 0.
      output: what is returned where nothing arrives; its rows have the shape of those of `operand`.
      input_offsets, send_sizes: for each receiver, where its rows start in `operand`, and how many there are.
      output_offsets: for each receiver, where they go in its `output`.
      recv_sizes: for each sender, how many rows arrive.
      axis_index_groups: exchange within groups of elements only, each a sequence of their numbers.

    >>> def swap(x, k): return lax.ragged_all_to_all(x, jnp.zeros(2, int), jnp.array([0, 1]), jnp.array([1, 1]),
    ...                                              jnp.stack([k, k]), jnp.array([1, 1]), axis_name="i")
    >>> vmap(swap, axis_name="i")(jnp.array([[1, 2], [3, 4]]), jnp.array([0, 1]))
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    names, size = bound(axis_name, "ragged_all_to_all")
    groups = grouped(axis_index_groups, names, "ragged_all_to_all")
    size = len(groups[0]) if groups else size
    told = ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")
    for what, x in zip(told, (input_offsets, send_sizes, output_offsets, recv_sizes), strict=True):
        aval = aval_of(x)
        if aval.shape != (size,) or not dtypes.issubdtype(aval.dtype, np.integer):
            raise ValueError(f"ragged_all_to_all: {what} must have one integer for each of {size} elements, got "
                             f"{aval.str_short()}.")
    return ragged_all_to_all_p.bind(operand, output, input_offsets, send_sizes, output_offsets, recv_sizes,
                                    axis_name=names, axis_index_groups=groups)
