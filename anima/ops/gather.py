"""Gather and scatter: reading and writing windows of an array at computed places.

An index array of shape `(*batch, k)` names one window for each element of `batch`: entry `j` of the last axis is where
the window starts along operand axis `start_index_map[j]`. A gather's result, like a scatter's updates, has the batch
axes in order and, at positions `offset_dims`, the window's axes in order, without those of size 1 in
`collapsed_slice_dims` and the axes in `operand_batching_dims`, along which the operand runs in step with an axis of the
indices. The two are each other's transpose. No mode ever reads or writes outside of the operand.

    >>> dims = GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))
    >>> gather(jnp.eye(3), jnp.array([[2], [0]]), dims, slice_sizes=(1, 3))      # rows 2 and 0
    Array([[0., 0., 1.],
           [1., 0., 0.]], dtype=float32)
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from anima.core import dtypes
from anima.core.avals import Shape, ShapedArray, check_countable, tangent_aval
from anima.core.dims import index_of
from anima.core.primitive import LARGE, Linear, Primitive, ShardingRule, Work, Zero
from anima.core.sharding_rules import looked_up
from anima.core.trace import aval_of
from anima.ops import elementwise as el, reference, window_places
from anima.ops.broadcast import (
    Movement,
    as_shape,
    broadcasted_iota,
    element_shape,
    full,
    instantiate,
    same_dtype,
    shape_of,
    zeros,
    zeros_like,
)
from anima.ops.index_types import index_operand, narrow_index
from anima.ops.shape import batch_at_front, concatenate, expand_dims, moveaxis, reshape, shape_of_arg


class GatherDimensionNumbers(NamedTuple):
    """Which axes of a gather's operand, indices and result belong together; see the module."""

    offset_dims: Shape
    collapsed_slice_dims: Shape
    start_index_map: Shape
    operand_batching_dims: Shape = ()
    start_indices_batching_dims: Shape = ()


class ScatterDimensionNumbers(NamedTuple):
    """Which axes of a scatter's operand, indices and updates belong together; see the module."""

    update_window_dims: Shape
    inserted_window_dims: Shape
    scatter_dims_to_operand_dims: Shape
    operand_batching_dims: Shape = ()
    scatter_indices_batching_dims: Shape = ()


class GatherScatterMode(enum.Enum):
    """What happens to windows that are not wholly inside of the operand.

    CLIP moves them inside; FILL_OR_DROP reads a fill value and does not write; PROMISE_IN_BOUNDS says that there are
    none (should there be, reading clips them, in tangents too, and writing drops them, so no cotangent flows back
    through them); ONE_HOT reads zeros and does not write.
    """

    CLIP = 1
    FILL_OR_DROP = 2
    PROMISE_IN_BOUNDS = 3
    ONE_HOT = 4

    @staticmethod
    def from_any(mode: str | GatherScatterMode | None) -> GatherScatterMode:
        """A mode by its name ("clip", "fill", "drop", "promise_in_bounds", "one_hot"); None is FILL_OR_DROP."""
        if isinstance(mode, GatherScatterMode):
            return mode
        if mode is None or mode in ("fill", "drop"):
            return GatherScatterMode.FILL_OR_DROP
        if mode in ("clip", "promise_in_bounds", "one_hot"):
            return GatherScatterMode[mode.upper()]
        raise ValueError(f'Unknown gather mode "{mode}"')

    def __str__(self) -> str:
        return f"GatherScatterMode.{self.name}"

    @property
    def clips(self) -> bool:
        """Whether reading moves windows inside, rather than leaving them out."""
        return self in (GatherScatterMode.CLIP, GatherScatterMode.PROMISE_IN_BOUNDS)

    @property
    def exact(self) -> GatherScatterMode:
        """The mode of writing, and of reading what is written: it leaves out what PROMISE_IN_BOUNDS is wrong of."""
        return GatherScatterMode.FILL_OR_DROP if self is GatherScatterMode.PROMISE_IN_BOUNDS else self


def default_fill(dtype: Any) -> Any:
    """What is read outside: NaN, the smallest signed or the largest unsigned integer, True."""
    if dtypes.is_extended(dtype):
        return default_fill(dtype.base)
    if dtypes.issubdtype(dtype, np.inexact):
        return math.nan
    if dtype == dtypes.bool_:
        return True
    info = dtypes.iinfo(dtype)
    return int(info.min if dtypes.issubdtype(dtype, np.signedinteger) else info.max)


# ---------------------------------------------------------------- checks

def _check_sorted(name: str, what: str, dims: Shape, bound: int) -> None:
    if any(a > b for a, b in itertools.pairwise(dims)):
        raise TypeError(f"{what} in {name} op must be sorted; got {dims}")
    if len(set(dims)) != len(dims):
        raise TypeError(f"{what} in {name} op must not repeat; got: {dims}.")
    if any(not 0 <= d < bound for d in dims):
        raise TypeError(f"Invalid {what} set in {name} op; valid range is [0, {bound}); got: {dims}.")


def _check_common(name: str, shape: Shape, indices: ShapedArray, dims: GatherDimensionNumbers,
                  words: Sequence[str]) -> None:
    """What gather and scatter demand alike of their dimension numbers."""
    _, collapsed, index_map, batching, indices_batching = dims
    if not dtypes.issubdtype(indices.dtype, np.integer):
        raise ValueError("indices must have an integer type")
    if indices.ndim == 0:
        raise TypeError(f"{name} indices must have at least one dimension, the last for the parts of an index")
    _check_sorted(name, words[0], collapsed, len(shape))
    _check_sorted(name, "operand_batching_dims", batching, len(shape))
    if set(collapsed) & set(batching) or set(index_map) & set(batching):
        raise TypeError(f"{name} op: operand_batching_dims {batching} overlap with {words[0]} {collapsed} or with "
                        f"{words[1]} {index_map}.")
    if len(index_map) != indices.shape[-1]:
        raise TypeError(f"{name.capitalize()} op has {len(index_map)} elements in {words[1]} and the bound of "
                        f"dimension index_vector_dim={indices.ndim - 1} of indices is {indices.shape[-1]}. "
                        "These two numbers must be equal.")
    for j, d in enumerate(index_map):
        if not 0 <= d < len(shape):
            raise TypeError(f"Invalid {words[1]}; domain is [0, {len(shape)}), got: {j}->{d}.")
        check_countable(name, shape[d])
    if len(set(index_map)) != len(index_map):
        raise TypeError(f"{words[1]} in {name} op must not repeat; got: {index_map}.")
    if len(batching) != len(indices_batching):
        raise TypeError(f"{name} op requires equally many operand_batching_dims and indices batching dims, "
                        f"got {batching} and {indices_batching}.")
    for d, b in zip(batching, indices_batching, strict=True):
        if not 0 <= b < indices.ndim - 1 or indices.shape[b] != shape[d]:
            raise TypeError(f"{name} op requires batching dimensions of operand and indices to have the same size; "
                            f"axis {d} of shape {shape} goes with axis {b} of shape {indices.shape}.")


# ---------------------------------------------------------------- gather

class Gather(Movement):
    """The windows of the operand that the indices name. Linear in the operand."""

    cost = 3.0
    moved = 1

    def infer(self, x: ShapedArray, indices: ShapedArray, *, dimension_numbers: GatherDimensionNumbers,
              slice_sizes: Shape, mode: GatherScatterMode, fill_value: Any = None, unique_indices: bool = False,
              indices_are_sorted: bool = False) -> ShapedArray:
        dims = dimension_numbers
        _check_common("gather", x.shape, indices, dims, ("collapsed_slice_dims", "start_index_map"))
        rank = len(dims.offset_dims) + indices.ndim - 1
        for i, d in enumerate(dims.offset_dims):
            if not 0 <= d < rank:
                raise TypeError(f"Offset dimension {i} in gather op is out of bounds; got {d}, but should have been "
                                f"in [0, {rank})")
        _check_sorted("gather", "offset_dims", dims.offset_dims, rank)
        if len(slice_sizes) != x.ndim:
            raise TypeError("Gather op must have one slice size for every input dimension; got: "
                            f"len(slice_sizes)={len(slice_sizes)}, input_shape.rank={x.ndim}")
        single = (*dims.collapsed_slice_dims, *dims.operand_batching_dims)
        if len(slice_sizes) != len(dims.offset_dims) + len(single):
            raise TypeError("All components of the offset index in a gather op must either be a offset dimension or "
                            f"explicitly collapsed/batching; got len(slice_sizes)={len(slice_sizes)}, "
                            f"output_slice_sizes={dims.offset_dims}, collapsed_slice_dims="
                            f"{dims.collapsed_slice_dims}, operand_batching_dims={dims.operand_batching_dims}.")
        for i, (size, n) in enumerate(zip(slice_sizes, x.shape, strict=True)):
            # Without places that slices start at, they may be of any size.
            fits = size >= 0 and (size <= n or 0 in indices.shape[:-1])
            if not fits and i not in dims.operand_batching_dims:
                raise TypeError(f"Slice size at index {i} in gather op is out of range, must be within [0, {n} + 1), "
                                f"got {size}.")
            if i in single and size != 1:
                raise TypeError(f"Gather op can only collapse slice dims with bound 1, but bound is {size} for "
                                f"index {i} at position {single.index(i)}.")
        window = iter([n for i, n in enumerate(slice_sizes) if i not in single])
        batch = iter(indices.shape[:-1])
        return x.update(shape=tuple(next(window) if i in dims.offset_dims else next(batch) for i in range(rank)))

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray],
                      *, dimension_numbers: GatherDimensionNumbers, slice_sizes: Shape, **params: Any) -> ShardingRule:
        return looked_up(avals[0], avals[1], outs[0], dimension_numbers, slice_sizes)

    def on_parts(self, params: dict[str, Any], avals: Sequence[ShapedArray], outs: Any) -> dict[str, Any]:
        single = params["dimension_numbers"].operand_batching_dims  # of one element each, where there is none, too
        sizes = enumerate(zip(params["slice_sizes"], avals[0].shape, strict=True))
        return {**params, "slice_sizes": tuple(size if k in single else min(size, n) for k, (size, n) in sizes)}

    def eval(self, x: np.ndarray, indices: np.ndarray, *, dimension_numbers: GatherDimensionNumbers,
             slice_sizes: Shape, mode: GatherScatterMode, fill_value: Any = None, **hints: Any) -> np.ndarray:
        fill = 0 if mode is GatherScatterMode.ONE_HOT else default_fill(x.dtype) if fill_value is None else fill_value
        return window_places.gather(x, indices, dimension_numbers, slice_sizes, mode.clips, fill)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = self.bind(*primals, **params)
        if isinstance(tangents[0], Zero):
            return out, Zero(tangent_aval(aval_of(out)))
        if not params["mode"].clips:  # what is read outside does not depend on the operand
            params = {**params, "fill_value": 0}
        return out, self.bind(tangents[0], primals[1], **params)

    def adjoint(self, ct: Any, x: Linear, indices: Any, *, dimension_numbers: GatherDimensionNumbers,
                slice_sizes: Shape, mode: GatherScatterMode, fill_value: Any = None, **hints: Any) -> Sequence[Any]:
        into = ScatterDimensionNumbers(*dimension_numbers)
        x0 = zeros(x.aval.update(dtype=ct.dtype))  # a rule of a user's may give cotangents of another type
        return [scatter_add_p.bind(x0, indices, ct, dimension_numbers=into, mode=mode, **hints), None]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[Any], *,
              dimension_numbers: GatherDimensionNumbers, slice_sizes: Shape, **params: Any) -> tuple[Any, int]:
        (x, indices), (x_dim, indices_dim) = args, dims
        if x_dim is None:  # what is distinct or sorted in each is not so in all together, which read one operand
            params |= {"unique_indices": False, "indices_are_sorted": False}
        else:
            x, slice_sizes = moveaxis(x, x_dim, 0), (index_of(size) if indices_dim is None else 1, *slice_sizes)
        indices = indices if indices_dim is None else moveaxis(indices, indices_dim, 0)
        numbers = batched_numbers(dimension_numbers, x_dim is not None, indices_dim is not None)
        return self.bind(x, indices, dimension_numbers=numbers, slice_sizes=slice_sizes, **params), 0

    def physical(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> dict[str, Any]:
        dims, inner = params["dimension_numbers"], element_shape(avals[0])
        rank = len(dims.offset_dims) + avals[1].ndim - 1
        offset_dims = dims.offset_dims + tuple(range(rank, rank + len(inner)))
        return {**params, "dimension_numbers": dims._replace(offset_dims=offset_dims),
                "slice_sizes": params["slice_sizes"] + inner}


def batched_numbers(dims: GatherDimensionNumbers, operand: bool, indices: bool) -> GatherDimensionNumbers:
    """Dimension numbers when operand, indices or both, and the result, have a new leading batch axis."""
    window, collapsed, index_map, batching, indices_batching = dims
    window = tuple(d + 1 for d in window)
    if operand:
        collapsed, index_map, batching = (tuple(d + 1 for d in ds) for ds in (collapsed, index_map, batching))
    if indices:
        indices_batching = tuple(d + 1 for d in indices_batching)
    if operand and indices:
        batching, indices_batching = (0, *batching), (0, *indices_batching)
    elif operand:
        window = (0, *window)
    return GatherDimensionNumbers(window, collapsed, index_map, batching, indices_batching)


# ---------------------------------------------------------------- scatter

class Scatter(Primitive):
    """The operand with updates combined into the windows that the indices name.

    Updates of one element are combined in the order of the index array; `scatter` itself keeps the last.
    """

    cost = 3.0
    updates = True

    def __init__(self, name: str, combine: np.ufunc | reference.Extreme | None = None, kinds: type = np.generic):
        super().__init__(name)
        self.combine, self.kinds, self.exact = combine, kinds, combine is None

    def is_large(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> bool:
        return self.combine is not None and avals[2].size >= LARGE >> 2  # NumPy takes long where updates may meet

    def infer(self, x: ShapedArray, indices: ShapedArray, updates: ShapedArray, *,
              dimension_numbers: ScatterDimensionNumbers, mode: GatherScatterMode, unique_indices: bool = False,
              indices_are_sorted: bool = False) -> ShapedArray:
        dims = dimension_numbers
        same_dtype("scatter", (x, updates))
        if self.combine and not dtypes.issubdtype(x.dtype, self.kinds):
            raise TypeError(f"{self.name} does not accept dtype {dtypes.name(x.dtype)}.")
        window, inserted, _, batching, _ = dims
        _check_common("scatter", x.shape, indices, GatherDimensionNumbers(*dims),
                      ("inserted_window_dims", "scatter_dims_to_operand_dims"))
        rank = indices.ndim - 1 + len(window)
        if updates.ndim != rank:
            raise TypeError(f"Updates tensor must be of rank {rank}; got {updates.ndim}.")
        _check_sorted("scatter", "update_window_dims", window, rank)
        if len(window) + len(inserted) + len(batching) != x.ndim:
            raise TypeError(f"Scatter op has window of size {len(window) + len(inserted) + len(batching)}; doesn't "
                            f"match operand of rank {x.ndim}.")
        kept = [d for d in range(x.ndim) if d not in inserted and d not in batching]
        for u, d in zip(window, kept, strict=True):
            if updates.shape[u] > x.shape[d]:
                raise TypeError("Bounds of the window dimensions of updates must not exceed the bounds of the "
                                f"corresponding dimensions of operand. For dimension {u}, updates bound is "
                                f"{updates.shape[u]}, operand bound is {x.shape[d]}.")
        batch = [u for u in range(rank) if u not in window]
        for i, (u, n) in enumerate(zip(batch, indices.shape[:-1], strict=True)):
            if updates.shape[u] != n:
                raise TypeError("Bounds of the scatter dimensions of updates must be the same as the bounds of the "
                                f"corresponding dimensions of scatter indices. For scatter dimension {i}, updates "
                                f"bound is {updates.shape[u]}, indices bound is {n}.")
        return x

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray],
                      *, dimension_numbers: ScatterDimensionNumbers, **params: Any) -> ShardingRule:
        operand, indices, updates = avals
        sizes = window_sizes(operand.ndim, updates.shape, dimension_numbers)
        read = looked_up(operand, indices, updates, GatherDimensionNumbers(*dimension_numbers), sizes)
        return ShardingRule([*read.operands, *read.results], read.operands[:1], read.whole)

    def eval(self, x: np.ndarray, indices: np.ndarray, updates: np.ndarray, *,
             dimension_numbers: ScatterDimensionNumbers, mode: GatherScatterMode, **hints: Any) -> np.ndarray:
        sizes = window_sizes(x.ndim, updates.shape, dimension_numbers)
        if not updates.size or not x.size:
            return x
        # Small floats add up in float32 and are rounded once.
        small = self.combine and dtypes.issubdtype(x.dtype, np.floating) and x.dtype.itemsize < 4
        return window_places.scatter(x, indices, updates, dimension_numbers, sizes, mode.exact.clips, self.combine,
                                     np.dtype("float32") if small else x.dtype)

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             **params: Any) -> Work:
        return Work(float(avals[2].size if self.combine else 0))

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[Any], *,
              dimension_numbers: ScatterDimensionNumbers, **params: Any) -> tuple[Any, int]:
        x, indices, updates = args
        x, updates = batch_at_front(x, dims[0], size), batch_at_front(updates, dims[2], size)
        if dims[1] is not None:
            indices = moveaxis(indices, dims[1], 0)
        numbers = batched_numbers(GatherDimensionNumbers(*dimension_numbers), True, dims[1] is not None)
        return self.bind(x, indices, updates, dimension_numbers=ScatterDimensionNumbers(*numbers), **params), 0

    def physical(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> dict[str, Any]:
        dims, rank, inner = params["dimension_numbers"], avals[2].ndim, element_shape(avals[0])
        window = dims.update_window_dims + tuple(range(rank, rank + len(inner)))
        return {**params, "dimension_numbers": dims._replace(update_window_dims=window)}


class LinearScatter(Scatter):
    """`scatter` and `scatter-add`: jointly linear in operand and updates, hence their own derivative."""

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        x, indices, updates = primals
        out = self.bind(x, indices, updates, **params)
        if isinstance(tangents[0], Zero) and isinstance(tangents[2], Zero):
            return out, Zero(tangent_aval(aval_of(out)))
        return out, self.bind(instantiate(tangents[0]), indices, instantiate(tangents[2]), **params)

    def transpose(self, ct: Any, x: Any, indices: Any, updates: Any, **params: Any) -> Sequence[Any]:
        if isinstance(ct, Zero):
            return [Zero(a.aval) if isinstance(a, Linear) else None for a in (x, indices, updates)]
        shape, ct_x, ct_updates = shape_of_arg(updates), ct, None
        if self.combine is None and isinstance(x, Linear):
            ct_x = self.bind(ct, indices, zeros(aval_of(ct).update(shape=shape)), **params)
        if isinstance(updates, Linear):
            ct_updates = read_back(ct, indices, shape, **params)
            if self.combine is None and not params["unique_indices"]:
                # Of several updates of one element only the last was kept: number them, and see which stayed.
                numbers = reshape(el.add(broadcasted_iota(np.dtype("int32"), (math.prod(shape),), 0), 1), shape)
                stayed = self.bind(full(shape_of(ct), 0, np.int32), indices, numbers, **params)
                kept = el.eq(read_back(stayed, indices, shape, **params), numbers)
                ct_updates = el.select(kept, ct_updates, zeros_like(ct_updates))
        return [ct_x if isinstance(x, Linear) else None, None, ct_updates]


class ScatterMul(Scatter):
    """`scatter-mul`: linear in the operand; in the updates where no element is updated twice."""

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        (x, indices, updates), (t_x, _, t_updates) = primals, tangents
        out = self.bind(x, indices, updates, **params)
        parts = []
        if not isinstance(t_x, Zero):
            parts.append(self.bind(t_x, indices, updates, **params))
        if not isinstance(t_updates, Zero):
            if not params["unique_indices"]:
                raise NotImplementedError("scatter_mul gradients are only implemented if `unique_indices=True`")
            here = el.mul(read_back(x, indices, shape_of(updates), **params), t_updates)
            parts.append(scatter_add_p.bind(zeros_like(out), indices, here, **params))
        if not parts:
            return out, Zero(tangent_aval(aval_of(out)))
        return out, parts[0] if len(parts) == 1 else el.add_any(*parts)

    def transpose(self, ct: Any, x: Any, indices: Any, updates: Any, **params: Any) -> Sequence[Any]:
        if not isinstance(x, Linear) or isinstance(updates, Linear):
            raise self._missing("Transposition with respect to the updates")
        return [Zero(x.aval) if isinstance(ct, Zero) else self.bind(ct, indices, updates, **params), None, None]


class ScatterExtremum(Scatter):
    """`scatter-min` and `scatter-max`: all values equal to the result share its derivative evenly."""

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        (x, indices, updates), (t_x, _, t_updates) = primals, tangents
        out = self.bind(x, indices, updates, **params)
        if isinstance(t_x, Zero) and isinstance(t_updates, Zero):
            return out, Zero(tangent_aval(aval_of(out)))
        aval = aval_of(out)
        won = el.convert(el.eq(x, out), aval.dtype)
        updates_won = el.eq(updates, read_back(out, indices, shape_of(updates), **params))
        updates_won = el.convert(updates_won, aval.dtype)
        winners = scatter_add_p.bind(won, indices, updates_won, **params)
        won_tangents = scatter_add_p.bind(el.mul(instantiate(t_x), won), indices,
                                          el.mul(instantiate(t_updates), updates_won), **params)
        return out, el.div(won_tangents, winners)


def window_sizes(rank: int, updates_shape: Shape, dims: ScatterDimensionNumbers) -> Shape:
    """The slice sizes of the gather that reads what a scatter writes."""
    window = iter(dims.update_window_dims)
    single = {*dims.inserted_window_dims, *dims.operand_batching_dims}
    return tuple(1 if d in single else updates_shape[next(window)] for d in range(rank))


def read_back(x: Any, indices: Any, updates_shape: Shape, *, dimension_numbers: ScatterDimensionNumbers,
              mode: GatherScatterMode, **hints: Any) -> Any:
    """The elements of `x` that a scatter of `updates_shape` writes to; 0 for what it drops."""
    if 0 in shape_of(x):
        return zeros(aval_of(x).update(shape=updates_shape))
    sizes, mode = window_sizes(len(shape_of(x)), updates_shape, dimension_numbers), mode.exact
    return gather_p.bind(x, indices, dimension_numbers=GatherDimensionNumbers(*dimension_numbers), slice_sizes=sizes,
                         mode=mode, fill_value=None if mode.clips else 0, **hints)


gather_p = Gather("gather")
scatter_p = LinearScatter("scatter")
scatter_add_p = LinearScatter("scatter-add", np.add, np.number)
scatter_mul_p = ScatterMul("scatter-mul", np.multiply, np.number)
scatter_min_p = ScatterExtremum("scatter-min", reference.minimum)
scatter_max_p = ScatterExtremum("scatter-max", reference.maximum)


def gather(operand: Any, start_indices: Any, dimension_numbers: GatherDimensionNumbers, slice_sizes: Sequence[int], *,
           unique_indices: bool = False, indices_are_sorted: bool = False,
           mode: str | GatherScatterMode | None = None, fill_value: Any = None) -> Any:
    """Windows of `slice_sizes` of `operand`, one for each index in `start_indices` (its last axis).

    `mode` says what is read outside of the operand (None: windows are clipped to lie inside), `fill_value`
    what "fill" reads there (None: NaN, the least signed or greatest unsigned integer, True).
    """
    kind = GatherScatterMode.PROMISE_IN_BOUNDS if mode is None else GatherScatterMode.from_any(mode)
    if kind is not GatherScatterMode.FILL_OR_DROP:
        fill_value = None
    elif fill_value is None:
        fill_value = default_fill(aval_of(operand).dtype)
    dims = GatherDimensionNumbers(*map(as_shape, dimension_numbers))
    return gather_p.bind(operand, index_operand(start_indices), dimension_numbers=dims,
                         slice_sizes=as_shape(slice_sizes), mode=kind,
                         fill_value=fill_value, unique_indices=bool(unique_indices),
                         indices_are_sorted=bool(indices_are_sorted))


def scattered(primitive: Primitive, operand: Any, scatter_indices: Any, updates: Any,
              dimension_numbers: ScatterDimensionNumbers, *, indices_are_sorted: bool = False,
              unique_indices: bool = False, mode: str | GatherScatterMode | None = None) -> Any:
    """A scattering primitive applied to what users give."""
    return primitive.bind(
        operand, index_operand(scatter_indices), updates, mode=GatherScatterMode.from_any(mode),
        dimension_numbers=ScatterDimensionNumbers(*map(as_shape, dimension_numbers)),
        unique_indices=bool(unique_indices), indices_are_sorted=bool(indices_are_sorted))


def _scatter_function(primitive: Scatter, name: str, doc: str) -> Callable[..., Any]:
    def apply(operand: Any, scatter_indices: Any, updates: Any, dimension_numbers: ScatterDimensionNumbers, *,
              indices_are_sorted: bool = False, unique_indices: bool = False,
              mode: str | GatherScatterMode | None = None) -> Any:
        return scattered(primitive, operand, scatter_indices, updates, dimension_numbers, mode=mode,
                         indices_are_sorted=indices_are_sorted, unique_indices=unique_indices)

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"""{doc} Windows that are not wholly inside are dropped, unless `mode` says otherwise."""
    return apply


scatter = _scatter_function(
    scatter_p, "scatter", "`operand` with windows replaced by `updates`, the last one where several meet.")
scatter_add = _scatter_function(
    scatter_add_p, "scatter_add", "`operand` with `updates` added to windows, all of them where several meet.")
scatter_mul = _scatter_function(
    scatter_mul_p, "scatter_mul", "`operand` with windows multiplied by `updates`; differentiable in the updates if "
    "`unique_indices` (NotImplementedError otherwise).")
scatter_min = _scatter_function(
    scatter_min_p, "scatter_min", "`operand` with windows replaced by the least of themselves and their updates.")
scatter_max = _scatter_function(
    scatter_max_p, "scatter_max", "`operand` with windows replaced by the greatest of themselves and their updates.")


def scatter_apply(operand: Any, scatter_indices: Any, func: Any, dimension_numbers: ScatterDimensionNumbers, *,
                  update_shape: Shape = (), indices_are_sorted: bool = False, unique_indices: bool = False,
                  mode: str | GatherScatterMode | None = None) -> Any:
    """`operand` with the elementwise `func` applied to windows of `update_shape` at `scatter_indices`.

    Differs from JAX: an element that several indices name has `func` applied to it once.
    """
    params: dict[str, Any] = {
        "dimension_numbers": ScatterDimensionNumbers(*map(as_shape, dimension_numbers)),
        "mode": GatherScatterMode.from_any(mode), "unique_indices": bool(unique_indices),
        "indices_are_sorted": bool(indices_are_sorted)}
    aval, scatter_indices = aval_of(operand), index_operand(scatter_indices)
    scatter_p.infer(aval, aval_of(scatter_indices), aval.update(shape=as_shape(update_shape)), **params)
    there = read_back(operand, scatter_indices, as_shape(update_shape), **params)
    return scatter_p.bind(operand, scatter_indices, el.convert(func(there), aval.dtype), **params)


def index_take(src: Any, idxs: Sequence[Any], axes: Sequence[int]) -> Any:
    """Slices of `src` at the indices `idxs` (vectors of one length, one for each of `axes`), stacked."""
    shape = shape_of(src)
    axes = as_shape(axes)
    narrow = [narrow_index(index_operand(i)) for i in idxs]
    parts = [expand_dims(el.select(el.lt(i, 0), el.add(i, shape[a]), i), (1,))
             for i, a in zip(narrow, axes, strict=True)]
    sizes = tuple(1 if d in axes else n for d, n in enumerate(shape))
    dims = GatherDimensionNumbers(tuple(range(1, len(shape) - len(axes) + 1)), tuple(sorted(axes)), axes)
    return gather(src, concatenate(parts, 1), dims, sizes)
