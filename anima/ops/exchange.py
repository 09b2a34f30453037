"""Collectives that move elements of a mapped axis, which `vmap` turns into operations on the stack.

    >>> vmap(lambda x: ppermute_p.bind(x, axis_name=("i",), perm=((0, 1),)), axis_name="i")(jnp.array([5, 6, 7]))
    Array([0, 5, 0], dtype=int32)

A rule for batching sees stacks: those of an axis that the collective is about (`name_of(size)` is its name), or those
of any other. What a collective does with the stack of all elements is its method `lanes`; several names, whose elements
are numbered in row-major order, and groups of elements follow from that (`over_all`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.core.avals import ShapedArray, tangent_aval
from anima.core.axes import name_of, size_of
from anima.core.primitive import Primitive, ShardingRule, Zero
from anima.core.sharding_rules import dimensions, dims
from anima.core.trace import aval_of
from anima.ops.broadcast import iota, reduce_sum
from anima.ops.elementwise import mul
from anima.ops.family import constant
from anima.ops.gather import GatherDimensionNumbers, GatherScatterMode, gather
from anima.ops.index import dynamic_index_in_dim
from anima.ops.shape import batch_at_front, concatenate, moveaxis, reshape

Names = tuple[Any, ...]


def times(x: Any, count: int) -> Any:
    """The sum of so many equal ones."""
    return mul(x, constant(count, aval_of(x).dtype))


class Collective(Primitive):
    """What happens between elements of the axes in the parameter `axis_name`."""

    linear = True
    cost = 1.0

    def axis_names(self, params: dict[str, Any]) -> Names:
        """The named axes that an application is about."""
        names = params["axis_name"]
        return names if isinstance(names, tuple) else (names,)

    def manual(self, vma: frozenset[Any], names: frozenset[Any],
               params: dict[str, Any]) -> tuple[frozenset[Any], frozenset[Any]]:
        about = names.intersection(self.axis_names(params))
        return vma | about, vma | about

    def eval(self, *args: np.ndarray, **params: Any) -> Any:
        for name in self.axis_names(params):
            size_of(name, self.name)
        raise NotImplementedError(f"{self.name} over the axis {self.axis_names(params)} outside of a mapped function")

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], **params: Any) -> ShardingRule:
        return dimensions(avals, outs)

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
        x, dim, name = args[0], dims[0], name_of(size)
        if name is None or name not in self.axis_names(params):
            return self.beside(x, dim, **params)  # type: ignore[arg-type]
        aval = aval_of(x)
        self.infer(aval if dim is None else aval.update(shape=aval.shape[:dim] + aval.shape[dim + 1:]), **params)
        if len(self.axis_names(params)) == 1 and params.get("axis_index_groups") is None:
            return self.lanes(int(size), x, dim, **params)
        return self.over_all(size, x, dim, **params)

    def over_all(self, size: int, x: Any, dim: int | None, **params: Any) -> tuple[Any, int | None]:
        """The collective on stacks of one of its axes, `size`: all elements are brought together, and of the results
        each takes its own."""
        names, name = self.axis_names(params), name_of(size)
        sizes = [int(size) if n == name else size_of(n, self.name) for n in names]
        at, others = names.index(name), tuple(n for n in names if n != name)
        stack = batch_at_front(x, dim, int(size))
        local = stack.shape[1:]
        if others:
            wide = math.prod(sizes) // sizes[at]
            stack = all_gather_p.bind(stack, all_gather_dimension=0, axis_index_groups=None, axis_name=others,
                                      axis_size=wide, tiled=False)
            stack = reshape(stack, (*sizes[:at], *sizes[at + 1:], sizes[at], *local))
            stack = moveaxis(stack, len(others), at)
        outs, out_dim = self._grouped(reshape(stack, (math.prod(sizes), *local)), **params)
        if out_dim is None:
            return outs, None
        outs = moveaxis(outs, out_dim, 0)
        outs = moveaxis(reshape(outs, (*sizes, *aval_of(outs).shape[1:])), at, len(others))
        for other in others:
            outs = dynamic_index_in_dim(outs, axis_index_p.bind(axis_name=other), 0, keepdims=False)
        return outs, 0

    def _grouped(self, stack: Any, *, axis_index_groups: Any = None, **params: Any) -> tuple[Any, int | None]:
        """The collective within each group of elements of a stack along axis 0."""
        count = stack.shape[0]
        if axis_index_groups is None:
            return self.lanes(count, stack, 0, **params)
        outs = []
        for group in axis_index_groups:
            out, dim = self.lanes(len(group), rows(stack, group), 0, **params)
            outs.append(batch_at_front(out, dim, len(group)))
        places = [i for group in axis_index_groups for i in group]
        return rows(concatenate(outs, 0), [places.index(i) for i in range(count)]), 0

    def lanes(self, size: int, x: Any, dim: int | None, **params: Any) -> tuple[Any, int | None]:
        """The collective on the elements of the stack `x`, or on equal ones (`dim` is None)."""
        raise self._missing("Batching (vmap)")

    def beside(self, x: Any, dim: int, **params: Any) -> tuple[Any, int]:
        """The same on stacks of another axis."""
        return self.bind(x, **params), dim


def rows(stack: Any, places: Sequence[int]) -> Any:
    """The elements along axis 0 at known places; zeros for places past its end."""
    shape = aval_of(stack).shape
    if list(places) == list(range(shape[0])):
        return stack
    numbers = GatherDimensionNumbers(tuple(range(1, len(shape))), (0,), (0,))
    return gather(stack, np.asarray(places, np.int32)[:, None], numbers, (1, *shape[1:]),
                  mode=GatherScatterMode.FILL_OR_DROP, fill_value=0)


class AxisIndex(Collective):
    """The number of an element in the mapped axis."""

    def infer(self, *, axis_name: Any) -> ShapedArray:
        return ShapedArray((), np.dtype(np.int32))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = self.bind(**params)
        return out, Zero(tangent_aval(aval_of(out)))

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, axis_name: Any) -> tuple[Any, Any]:
        return iota(np.int32, int(size)), 0


class PPermute(Collective):
    """Element `b` gets what element `a` holds, for the pairs (a, b) of `perm`; zeros where there is none."""

    def sent(self, size: float, count: int) -> float:
        return size

    def infer(self, x: ShapedArray, *, axis_name: Any, perm: Any) -> ShapedArray:
        return x

    def adjoint(self, ct: Any, aval: ShapedArray, *, axis_name: Any, perm: Any) -> Any:
        return self.bind(ct, axis_name=axis_name, perm=tuple((b, a) for a, b in perm))

    def lanes(self, size: int, x: Any, dim: int | None, *, perm: Any, **params: Any) -> tuple[Any, int | None]:
        source = {b: a for a, b in perm}
        return rows(batch_at_front(x, dim, size), [source.get(k, size) for k in range(size)]), 0


class AllGather(Collective):
    """Every element gets all of them, side by side along a new axis, or (`tiled`) end to end along one."""

    def sent(self, size: float, count: int) -> float:
        return size * (count - 1)

    def infer(self, x: ShapedArray, *, all_gather_dimension: int, axis_size: int, tiled: bool,
              **params: Any) -> ShapedArray:
        shape = list(x.shape)
        if tiled:
            shape[all_gather_dimension] *= axis_size
        else:
            shape.insert(all_gather_dimension, axis_size)
        return ShapedArray(tuple(shape), x.dtype)

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], *, all_gather_dimension: int,
                      tiled: bool, **params: Any) -> ShardingRule:
        return _grown(avals[0], all_gather_dimension, tiled)

    def adjoint(self, ct: Any, aval: ShapedArray, *, all_gather_dimension: int, **params: Any) -> Any:
        return reduce_scatter_p.bind(ct, scatter_dimension=all_gather_dimension, **params)

    def lanes(self, size: int, x: Any, dim: int | None, *, all_gather_dimension: int, tiled: bool,
              **params: Any) -> tuple[Any, int | None]:
        at = all_gather_dimension
        out = moveaxis(batch_at_front(x, dim, size), 0, at)
        return joined(out, at) if tiled else out, None

    def beside(self, x: Any, dim: int, *, all_gather_dimension: int, tiled: bool, **params: Any) -> tuple[Any, int]:
        before = dim <= all_gather_dimension
        out = self.bind(x, all_gather_dimension=all_gather_dimension + before, tiled=tiled, **params)
        return out, dim if before or tiled else dim + 1


class AllGatherInvariant(AllGather):
    """The same, where types tell that all elements get the same."""

    def manual(self, vma: frozenset[Any], names: frozenset[Any],
               params: dict[str, Any]) -> tuple[frozenset[Any], frozenset[Any]]:
        about = names.intersection(self.axis_names(params))
        return vma | about, vma - about

    def adjoint(self, ct: Any, aval: ShapedArray, *, all_gather_dimension: int, axis_name: Any, axis_size: int,
                tiled: bool) -> Any:
        """Of one and the same cotangent each takes its own part."""
        ct = divided(ct, all_gather_dimension, axis_size) if tiled else ct
        return dynamic_index_in_dim(ct, flat_index(axis_name), all_gather_dimension, keepdims=False)


class ReduceScatter(Collective):
    """The sum of all elements, of which each gets its own part along an axis."""

    def sent(self, size: float, count: int) -> float:
        return size * (count - 1) / count

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

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], *, scatter_dimension: int,
                      tiled: bool, **params: Any) -> ShardingRule:
        small, large, whole, *_ = _grown(outs[0], scatter_dimension, tiled)
        return ShardingRule(large, small, whole)

    def adjoint(self, ct: Any, aval: ShapedArray, *, scatter_dimension: int, **params: Any) -> Any:
        return all_gather_p.bind(ct, all_gather_dimension=scatter_dimension, **params)

    def lanes(self, size: int, x: Any, dim: int | None, *, scatter_dimension: int, tiled: bool,
              **params: Any) -> tuple[Any, int | None]:
        out = times(x, size) if dim is None else reduce_sum(x, (dim,))
        return divided(out, scatter_dimension, size) if tiled else out, scatter_dimension

    def beside(self, x: Any, dim: int, *, scatter_dimension: int, tiled: bool, **params: Any) -> tuple[Any, int]:
        at = scatter_dimension + (dim <= scatter_dimension)
        out = self.bind(x, scatter_dimension=at, tiled=tiled, **params)
        return out, dim if tiled or dim < at else dim - 1


class AllToAll(Collective):
    """Every element cuts `split_axis` into parts, one for each element, and joins what it gets along `concat_axis`."""

    def sent(self, size: float, count: int) -> float:
        return size * (count - 1) / count

    def infer(self, x: ShapedArray, *, axis_name: Any, split_axis: int, concat_axis: int, axis_index_groups: Any,
              tiled: bool) -> ShapedArray:
        names, shape = self.axis_names({"axis_name": axis_name}), list(x.shape)
        size = (len(axis_index_groups[0]) if axis_index_groups else
                math.prod(size_of(n, self.name) for n in names))
        if shape[split_axis] % size:
            raise ValueError(f"The size of all_to_all split_axis ({shape[split_axis]}) has to be divisible by the size "
                             f"of the named axis {axis_name} ({size}).")
        shape[split_axis] //= size
        shape[concat_axis] *= size
        return ShapedArray(tuple(shape), x.dtype)

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], *, split_axis: int,
                      concat_axis: int, **params: Any) -> ShardingRule:
        return dimensions(avals, outs)._replace(whole=frozenset((split_axis, concat_axis)))

    def adjoint(self, ct: Any, aval: ShapedArray, *, split_axis: int, concat_axis: int, **params: Any) -> Any:
        return self.bind(ct, split_axis=concat_axis, concat_axis=split_axis, **params)

    def lanes(self, size: int, x: Any, dim: int | None, *, split_axis: int, concat_axis: int,
              **params: Any) -> tuple[Any, int | None]:
        stack = batch_at_front(x, dim, size)                                   # sender, ...
        s, c = split_axis + 1, concat_axis + 1
        parts = divided(stack, s, size)
        parts = moveaxis(moveaxis(parts, s, 0), 1, c)                          # receiver, ..., sender, joined, ...
        return joined(parts, c), 0

    def beside(self, x: Any, dim: int, *, split_axis: int, concat_axis: int, **params: Any) -> tuple[Any, int]:
        return self.bind(x, split_axis=split_axis + (dim <= split_axis), concat_axis=concat_axis + (dim <= concat_axis),
                         **params), dim


def _grown(x: ShapedArray, axis: int, tiled: bool) -> ShardingRule:
    """The rule where `axis` of the result is a longer one than that of `x`, or (not `tiled`) a new one."""
    own = [*range(len(x.shape))]
    return ShardingRule([dims(*own)], [dims(*(own if tiled else (*own[:axis], None, *own[axis:])))],
                        frozenset((axis,) if tiled else ()))


def joined(x: Any, axis: int) -> Any:
    """The elements of `axis` end to end along the next one, which takes its place."""
    shape = aval_of(x).shape
    return reshape(x, (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2:]))


def divided(x: Any, axis: int, count: int) -> Any:
    """The inverse of `joined`: so many parts of `axis`, along a new one before it."""
    shape = aval_of(x).shape
    return reshape(x, (*shape[:axis], count, shape[axis] // count, *shape[axis + 1:]))


def flat_index(names: Any) -> Any:
    """The number of an element among those of several axes, in row-major order."""
    total: Any = None
    for name in names if isinstance(names, tuple) else (names,):
        here = axis_index_p.bind(axis_name=name)
        total = here if total is None else total * size_of(name, "axis_index") + here
    return total


axis_index_p = AxisIndex("axis_index")
ppermute_p = PPermute("ppermute")
all_gather_p = AllGather("all_gather")
all_gather_invariant_p = AllGatherInvariant("all_gather_invariant")
reduce_scatter_p = ReduceScatter("reduce_scatter")
all_to_all_p = AllToAll("all_to_all")
