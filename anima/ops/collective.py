"""Collectives: operations between the elements of a mapped axis, which `vmap` turns into operations on the stack.

    >>> vmap(lambda x: psum_p.bind(x, axes=("i",), axis_index_groups=None), axis_name="i")(jnp.arange(3.0))
    Array([3., 3., 3.], dtype=float32)

A rule for batching sees stacks: those of the axis that the collective is about (`name_of(size)` is its name), which is
then gone, or those of any other. Sums and extremes may be about positional axes (ints) too, and are ordinary reductions
when only such are left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima.core.avals import Shape, ShapedArray, reduced_shape, tangent_aval
from anima.core.axes import name_of, size_of
from anima.core.jaxpr import ClosedJaxpr
from anima.core.primitive import Primitive, Zero
from anima.core.stage import trace_to_jaxpr
from anima.core.trace import aval_of
from anima.ops.broadcast import (
    broadcast,
    broadcast_in_dim,
    expand_dims,
    iota,
    reduce_sum,
    reduce_sum_p,
    zeros_like,
)
from anima.ops.elementwise import convert, div, eq, mul, select
from anima.ops.family import constant
from anima.ops.gather import GatherDimensionNumbers, GatherScatterMode, gather
from anima.ops.reduce import reduce_max_p, reduce_min_p
from anima.ops.shape import batch_at_front, index_in_dim, moveaxis, reshape

Names = tuple[Any, ...]


def _positions(axes: Names) -> Shape:
    return tuple(a for a in axes if isinstance(a, int))


def _times(x: Any, count: int) -> Any:
    return mul(x, constant(count, aval_of(x).dtype))


class Collective(Primitive):
    """What happens between elements of the axes in the parameter `axis_name`."""

    linear = True
    cost = 1.0

    def axis_names(self, params: dict[str, Any]) -> Names:
        """The named axes that an application is about."""
        names = params["axis_name"]
        return names if isinstance(names, tuple) else (names,)

    def eval(self, *args: np.ndarray, **params: Any) -> Any:
        for name in self.axis_names(params):
            size_of(name, self.name)
        raise NotImplementedError(f"{self.name} over the axis {self.axis_names(params)} outside of vmap")

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out, t = self.bind(*primals, **params), tangents[0]
        return out, Zero(tangent_aval(aval_of(out))) if isinstance(t, Zero) else self.bind(t, **params)

    def transpose(self, ct: Any, *args: Any, **params: Any) -> Sequence[Any]:
        x = args[0]
        return [Zero(x.aval) if isinstance(ct, Zero) else self.adjoint(ct, x.aval, **params)]

    def adjoint(self, ct: Any, aval: ShapedArray, **params: Any) -> Any:
        """The cotangent of the operand."""
        raise self._missing("Transposition (reverse-mode differentiation)")

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        if name_of(size) is not None and name_of(size) in self.axis_names(params):
            aval, dim = aval_of(args[0]), dims[0]
            self.infer(aval if dim is None else aval.update(shape=aval.shape[:dim] + aval.shape[dim + 1:]), **params)
            if params.get("axis_index_groups") is not None:
                raise NotImplementedError(f"{self.name}: axis_index_groups are not supported under vmap.")
            return self.within(size, args[0], dim, **params)
        return self.beside(args[0], dims[0], **params)  # type: ignore[arg-type]

    def within(self, size: int, x: Any, dim: int | None, **params: Any) -> tuple[Any, int | None]:
        """The collective on the elements of the stack `x`, or on equal ones (`dim` is None)."""
        raise self._missing("Batching (vmap)")

    def beside(self, x: Any, dim: int, **params: Any) -> tuple[Any, int]:
        """The same on stacks of another axis."""
        raise self._missing("Batching (vmap)")


# ---------------------------------------------------------------- reductions

class AxesReduce(Collective):
    """Combines the elements of named axes and along positional ones, as `reduce` does; `same`: so many equal ones."""

    def __init__(self, name: str, reduce: Primitive, same: Callable[[Any, int], Any]):
        super().__init__(name)
        self.reduce, self.same = reduce, same

    def axis_names(self, params: dict[str, Any]) -> Names:
        return tuple(a for a in params["axes"] if not isinstance(a, int))

    def infer(self, x: ShapedArray, *, axes: Names, axis_index_groups: Any) -> ShapedArray:
        positions = _positions(axes)
        return ShapedArray(reduced_shape(x, positions), x.dtype)

    def eval(self, x: np.ndarray, *, axes: Names, axis_index_groups: Any) -> Any:
        if self.axis_names({"axes": axes}):
            return super().eval(x, axes=axes)
        return self.reduce.eval(x, axes=axes)

    def body(self, params: dict[str, Any], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
        """The reduction that it is where no named axis is left."""
        if self.axis_names(params):
            raise NotImplementedError(f"Compiling '{self.name}' over a named axis outside of vmap is not implemented.")
        return ClosedJaxpr(*trace_to_jaxpr(lambda x: [self.reduce.bind(x, axes=params["axes"])], avals))

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, axes: Names,
              axis_index_groups: Any) -> tuple[Any, Any]:
        x, dim, name = args[0], dims[0], name_of(size)
        about = name is not None and name in axes
        if about and axis_index_groups is not None:
            raise NotImplementedError(f"{self.name}: axis_index_groups are not supported under vmap.")
        if dim is None:
            axes = tuple(a for a in axes if a != name)
            out = self.same(x, size)
            return (self.bind(out, axes=axes, axis_index_groups=axis_index_groups) if axes else out), None
        moved = tuple(dim if about and a == name else a + (a >= dim) if isinstance(a, int) else a for a in axes)
        out = self.bind(x, axes=moved, axis_index_groups=axis_index_groups)
        return out, None if about else dim - sum(a < dim for a in _positions(moved))


class PSum(AxesReduce):
    """The sum."""

    def adjoint(self, ct: Any, aval: ShapedArray, *, axes: Names, axis_index_groups: Any) -> Any:
        positions = _positions(axes)
        kept = [d for d in range(aval.ndim) if d not in positions]
        ct = broadcast_in_dim(ct, aval.shape, kept) if positions else ct
        named = self.axis_names({"axes": axes})
        return self.bind(ct, axes=named, axis_index_groups=axis_index_groups) if named else ct


class PExtreme(AxesReduce):
    """The greatest or the least element; equal ones share its derivative."""

    linear = False

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        x, t = primals[0], tangents[0]
        out = self.bind(x, **params)
        if isinstance(t, Zero):
            return out, Zero(tangent_aval(aval_of(out)))
        at = convert(eq(x, expand_dims(out, _positions(params["axes"]))), aval_of(x).dtype)
        return out, div(psum_p.bind(mul(t, at), **params), psum_p.bind(at, **params))


psum_p = PSum("psum", reduce_sum_p, _times)
pmax_p = PExtreme("pmax", reduce_max_p, lambda x, size: x)
pmin_p = PExtreme("pmin", reduce_min_p, lambda x, size: x)


# ---------------------------------------------------------------- where an element stands

class AxisIndex(Collective):
    """The number of an element in the mapped axis."""

    def infer(self, *, axis_name: Any) -> ShapedArray:
        return ShapedArray((), np.dtype(np.int32))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = self.bind(**params)
        return out, Zero(tangent_aval(aval_of(out)))

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, axis_name: Any) -> tuple[Any, Any]:
        return iota(np.int32, int(size)), 0


axis_index_p = AxisIndex("axis_index")


# ---------------------------------------------------------------- moving elements

class PPermute(Collective):
    """Element `b` gets what element `a` holds, for the pairs (a, b) of `perm`; zeros where there is none."""

    def infer(self, x: ShapedArray, *, axis_name: Any, perm: Any) -> ShapedArray:
        return x

    def adjoint(self, ct: Any, aval: ShapedArray, *, axis_name: Any, perm: Any) -> Any:
        return self.bind(ct, axis_name=axis_name, perm=tuple((b, a) for a, b in perm))

    def within(self, size: int, x: Any, dim: int | None, *, perm: Any, **params: Any) -> tuple[Any, int | None]:
        stack = batch_at_front(x, dim, int(size))
        source = np.full((int(size), 1), size, np.int32)  # of nothing: fill
        for a, b in perm:
            source[b] = a
        numbers = GatherDimensionNumbers(tuple(range(1, stack.ndim)), (0,), (0,))
        return gather(stack, source, numbers, (1, *stack.shape[1:]), mode=GatherScatterMode.FILL_OR_DROP,
                      fill_value=0), 0

    def beside(self, x: Any, dim: int, **params: Any) -> tuple[Any, int]:
        return self.bind(x, **params), dim


class PBroadcast(Collective):
    """Every element gets what element `source` holds."""

    def infer(self, x: ShapedArray, *, axis_name: Any, source: int) -> ShapedArray:
        return x

    def adjoint(self, ct: Any, aval: ShapedArray, *, axis_name: Any, source: int) -> Any:
        total = psum_p.bind(ct, axes=(axis_name,), axis_index_groups=None)
        here = eq(axis_index_p.bind(axis_name=axis_name), np.int32(source))
        return select(broadcast(here, aval.shape), total, zeros_like(total))

    def within(self, size: int, x: Any, dim: int | None, *, source: int, **params: Any) -> tuple[Any, int | None]:
        return (x if dim is None else index_in_dim(x, source, dim, keepdims=False)), None

    def beside(self, x: Any, dim: int, **params: Any) -> tuple[Any, int]:
        return self.bind(x, **params), dim


class AllGather(Collective):
    """Every element gets all of them, side by side along a new axis, or (`tiled`) end to end along one."""

    def infer(self, x: ShapedArray, *, all_gather_dimension: int, axis_size: int, tiled: bool,
              **params: Any) -> ShapedArray:
        shape = list(x.shape)
        if tiled:
            shape[all_gather_dimension] *= axis_size
        else:
            shape.insert(all_gather_dimension, axis_size)
        return ShapedArray(tuple(shape), x.dtype)

    def adjoint(self, ct: Any, aval: ShapedArray, *, all_gather_dimension: int, **params: Any) -> Any:
        return reduce_scatter_p.bind(ct, scatter_dimension=all_gather_dimension, **params)

    def within(self, size: int, x: Any, dim: int | None, *, all_gather_dimension: int, tiled: bool,
               **params: Any) -> tuple[Any, int | None]:
        at = all_gather_dimension
        out = moveaxis(batch_at_front(x, dim, int(size)), 0, at)
        if tiled:
            out = reshape(out, (*out.shape[:at], out.shape[at] * out.shape[at + 1], *out.shape[at + 2:]))
        return out, None

    def beside(self, x: Any, dim: int, *, all_gather_dimension: int, tiled: bool, **params: Any) -> tuple[Any, int]:
        before = dim <= all_gather_dimension
        out = self.bind(x, all_gather_dimension=all_gather_dimension + before, tiled=tiled, **params)
        return out, dim if before or tiled else dim + 1


class ReduceScatter(Collective):
    """The sum of all elements, of which each gets its own part along an axis."""

    def infer(self, x: ShapedArray, *, scatter_dimension: int, axis_size: int, tiled: bool,
              **params: Any) -> ShapedArray:
        n, shape = x.shape[scatter_dimension], list(x.shape)
        if tiled:
            if n % axis_size:
                raise ValueError(f"tiled reduce_scatter operand scatter dimension size {n} must be divisible by "
                                 f"the size {axis_size} of the axis.")
            shape[scatter_dimension] = n // axis_size
        else:
            if n != axis_size:
                raise ValueError(f"reduce_scatter operand scatter dimension size {n} must match the size {axis_size} "
                                 "of the axis.")
            del shape[scatter_dimension]
        return ShapedArray(tuple(shape), x.dtype)

    def adjoint(self, ct: Any, aval: ShapedArray, *, scatter_dimension: int, **params: Any) -> Any:
        return all_gather_p.bind(ct, all_gather_dimension=scatter_dimension, **params)

    def within(self, size: int, x: Any, dim: int | None, *, scatter_dimension: int, tiled: bool,
               **params: Any) -> tuple[Any, int | None]:
        at = scatter_dimension
        out = _times(x, size) if dim is None else reduce_sum(x, (dim,))
        if tiled:
            out = reshape(out, (*out.shape[:at], int(size), out.shape[at] // size, *out.shape[at + 1:]))
        return out, at

    def beside(self, x: Any, dim: int, *, scatter_dimension: int, tiled: bool, **params: Any) -> tuple[Any, int]:
        at = scatter_dimension + (dim <= scatter_dimension)
        out = self.bind(x, scatter_dimension=at, tiled=tiled, **params)
        return out, dim if tiled or dim < at else dim - 1


class AllToAll(Collective):
    """Every element cuts `split_axis` into parts, one for each element, and joins what it gets along `concat_axis`."""

    def infer(self, x: ShapedArray, *, axis_name: Any, split_axis: int, concat_axis: int,
              **params: Any) -> ShapedArray:
        size, shape = size_of(axis_name, self.name), list(x.shape)
        if shape[split_axis] % size:
            raise ValueError(f"The size of all_to_all split_axis ({shape[split_axis]}) has to be divisible by the size "
                             f"of the named axis {axis_name} ({size}).")
        shape[split_axis] //= size
        shape[concat_axis] *= size
        return ShapedArray(tuple(shape), x.dtype)

    def adjoint(self, ct: Any, aval: ShapedArray, *, split_axis: int, concat_axis: int, **params: Any) -> Any:
        return self.bind(ct, split_axis=concat_axis, concat_axis=split_axis, **params)

    def within(self, size: int, x: Any, dim: int | None, *, split_axis: int, concat_axis: int,
               **params: Any) -> tuple[Any, int | None]:
        stack = batch_at_front(x, dim, int(size))                              # sender, ...
        shape, s, c = stack.shape, split_axis + 1, concat_axis + 1
        parts = reshape(stack, (*shape[:s], int(size), shape[s] // size, *shape[s + 1:]))
        parts = moveaxis(moveaxis(parts, s, 0), 1, c)                          # receiver, ..., sender, joined, ...
        return reshape(parts, (*parts.shape[:c], parts.shape[c] * parts.shape[c + 1], *parts.shape[c + 2:])), 0

    def beside(self, x: Any, dim: int, *, split_axis: int, concat_axis: int, **params: Any) -> tuple[Any, int]:
        return self.bind(x, split_axis=split_axis + (dim <= split_axis), concat_axis=concat_axis + (dim <= concat_axis),
                         **params), dim


ppermute_p = PPermute("ppermute")
pbroadcast_p = PBroadcast("pbroadcast")
all_gather_p = AllGather("all_gather")
reduce_scatter_p = ReduceScatter("reduce_scatter")
all_to_all_p = AllToAll("all_to_all")
