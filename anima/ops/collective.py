"""Collectives that combine the elements of mapped axes; which of their values vary along axes of a mesh.

    >>> vmap(lambda x: psum_p.bind(x, axes=("i",), axis_index_groups=None), axis_name="i")(jnp.arange(3.0))
    Array([3., 3., 3.], dtype=float32)

Sums and extremes may be about positional axes (ints) too, and are ordinary reductions when only such are left. Where
types tell which values vary along an axis (`core.axes.Manual`), there are two operations, each the other's adjoint:
`psum_invariant`, whose result does not vary, and `pvary`, which declares that one does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima.core.avals import Shape, ShapedArray, reduced_shape, tangent_aval
from anima.core.axes import manual_names, name_of, ordered, varying
from anima.core.jaxpr import ClosedJaxpr
from anima.core.primitive import Primitive, ShardingRule, Zero
from anima.core.stage import trace_to_jaxpr
from anima.core.trace import aval_of
from anima.ops.broadcast import broadcast, broadcast_in_dim, expand_dims, reduce_sum_p, zeros_like
from anima.ops.elementwise import convert, div, eq, mul, select
from anima.ops.exchange import Collective, Names, flat_index, times
from anima.ops.reduce import reduce_max_p, reduce_min_p
from anima.ops.shape import index_in_dim


def _positions(axes: Names) -> Shape:
    return tuple(a for a in axes if isinstance(a, int))


class AxesReduce(Collective):
    """Combines the elements of named axes and along positional ones, as `reduce` does; `same`: so many equal ones."""

    def __init__(self, name: str, reduce: Primitive, same: Callable[[Any, int], Any]):
        super().__init__(name)
        self.reduce, self.same = reduce, same

    def axis_names(self, params: dict[str, Any]) -> Names:
        return tuple(a for a in params["axes"] if not isinstance(a, int))

    def manual(self, vma: frozenset[Any], names: frozenset[Any],
               params: dict[str, Any]) -> tuple[frozenset[Any], frozenset[Any]]:
        about = names.intersection(self.axis_names(params))
        grouped = params.get("axis_index_groups") is not None  # each group has its own
        return vma | about, vma | about if grouped else vma - about

    def sent(self, size: float, count: int) -> float:
        return 2 * size * (count - 1) / count

    def infer(self, x: ShapedArray, *, axes: Names, axis_index_groups: Any = None) -> ShapedArray:
        positions = _positions(axes)
        return ShapedArray(reduced_shape(x, positions), x.dtype)

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], *, axes: Names,
                      **params: Any) -> ShardingRule:
        return self.reduce.sharding_rule(avals, outs, axes=_positions(axes))  # type: ignore[return-value]

    def eval(self, x: np.ndarray, *, axes: Names, axis_index_groups: Any = None) -> Any:
        if self.axis_names({"axes": axes}):
            return super().eval(x, axes=axes)
        return self.reduce.eval(x, axes=axes)

    def body(self, params: dict[str, Any], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
        """The reduction that it is where no named axis is left."""
        if self.axis_names(params):
            raise NotImplementedError(f"Compiling '{self.name}' over a named axis outside of a mapped function is not "
                                      "implemented.")
        return ClosedJaxpr(*trace_to_jaxpr(lambda x: [self.reduce.bind(x, axes=params["axes"])], avals))

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, axes: Names,
              **params: Any) -> tuple[Any, Any]:
        x, dim, name = args[0], dims[0], name_of(size)
        about = name is not None and name in axes
        if about and params.get("axis_index_groups") is not None:
            return self.over_all(size, x, dim, axes=axes, **params)
        if dim is None:
            axes = tuple(a for a in axes if a != name)
            out = self.same(x, size)
            return (self.bind(out, axes=axes, **params) if axes else out), None
        moved = tuple(dim if about and a == name else a + (a >= dim) if isinstance(a, int) else a for a in axes)
        out = self.bind(x, axes=moved, **params)
        return out, None if about else dim - sum(a < dim for a in _positions(moved))

    def lanes(self, size: int, x: Any, dim: int | None, **params: Any) -> tuple[Any, int | None]:
        return (self.same(x, size) if dim is None else self.reduce.bind(x, axes=(dim,))), None


class PSum(AxesReduce):
    """The sum."""

    def adjoint(self, ct: Any, aval: ShapedArray, *, axes: Names, **params: Any) -> Any:
        positions = _positions(axes)
        kept = [d for d in range(aval.ndim) if d not in positions]
        ct = broadcast_in_dim(ct, aval.shape, kept) if positions else ct
        named = self.axis_names({"axes": axes})
        return self._named_adjoint(ct, named, **params) if named else ct

    def _named_adjoint(self, ct: Any, names: Names, **params: Any) -> Any:
        return self.bind(ct, axes=names, **params)


class PSumInvariant(PSum):
    """The sum, where types tell that all elements get the same."""

    def _named_adjoint(self, ct: Any, names: Names, **params: Any) -> Any:
        return pvary_p.bind(ct, axes=names)


class PVary(Collective):
    """The same value, declared to vary along axes of a mesh."""

    moves = True

    def axis_names(self, params: dict[str, Any]) -> Names:
        return params["axes"]

    def manual(self, vma: frozenset[Any], names: frozenset[Any],
               params: dict[str, Any]) -> tuple[frozenset[Any], frozenset[Any]]:
        return frozenset(), vma | names.intersection(params["axes"])

    def infer(self, x: ShapedArray, *, axes: Names) -> ShapedArray:
        return x

    def adjoint(self, ct: Any, aval: ShapedArray, *, axes: Names) -> Any:
        return psum_invariant_p.bind(ct, axes=axes)

    def bind(self, x: Any, *, axes: Names) -> Any:  # type: ignore[override]
        missing = tuple(a for a in axes if a not in aval_of(x).vma)
        return super().bind(x, axes=missing) if missing else x

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, axes: Names) -> tuple[Any, Any]:
        axes = tuple(a for a in axes if a != name_of(size))
        return (self.bind(args[0], axes=axes) if axes else args[0]), dims[0]


class PExtreme(AxesReduce):
    """The greatest or the least element; equal ones share its derivative."""

    linear = False

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        x, t = primals[0], tangents[0]
        out = self.bind(x, **params)
        if isinstance(t, Zero):
            return out, Zero(tangent_aval(aval_of(out)))
        at = convert(eq(x, expand_dims(out, _positions(params["axes"]))), aval_of(x).dtype)
        return out, div(reduce_named(psum_p, mul(t, at), **params), reduce_named(psum_p, at, **params))


class PBroadcast(Collective):
    """Every element gets what element `source` holds."""

    def sent(self, size: float, count: int) -> float:
        return size

    def infer(self, x: ShapedArray, *, axis_name: Any, source: int) -> ShapedArray:
        return x

    def adjoint(self, ct: Any, aval: ShapedArray, *, axis_name: Any, source: int) -> Any:
        names = self.axis_names({"axis_name": axis_name})
        total = reduce_named(psum_p, ct, names)
        here = eq(flat_index(names), np.int32(source))
        return select(broadcast(here, aval.shape), total, zeros_like(total))

    def lanes(self, size: int, x: Any, dim: int | None, *, source: int, **params: Any) -> tuple[Any, int | None]:
        return (x if dim is None else index_in_dim(x, source, dim, keepdims=False)), None


psum_p = PSum("psum", reduce_sum_p, times)
psum_invariant_p = PSumInvariant("psum_invariant", reduce_sum_p, times)
pmax_p = PExtreme("pmax", reduce_max_p, lambda x, size: x)
pmin_p = PExtreme("pmin", reduce_min_p, lambda x, size: x)
pvary_p = PVary("pvary")
pbroadcast_p = PBroadcast("pbroadcast")


def reduce_named(primitive: AxesReduce, x: Any, axes: Names, axis_index_groups: Any = None) -> Any:
    """A sum or an extreme over axes, some of which may be those that types tell of.

    Raises:
      ValueError: for a sum, where `x` varies along some of these and not along others.
      NotImplementedError: for groups of elements of these.
    """
    about = manual_names().intersection(axes)
    if not about:
        return primitive.bind(x, axes=axes, axis_index_groups=axis_index_groups)
    aval = aval_of(x)
    if primitive is psum_p and about & aval.vma and about - aval.vma:
        raise ValueError(f"{primitive.name} over {axes} of a {aval.str_short()}, which varies along "
                         f"{', '.join(sorted(map(str, about & aval.vma)))} and not along "
                         f"{', '.join(sorted(map(str, about - aval.vma)))}. Fix: sum along the axes that it varies "
                         "along, or declare that it varies along all: anima.lax.pcast(x, names, to='varying').")
    if axis_index_groups is not None and primitive is psum_p:
        raise NotImplementedError(f"{primitive.name}: axis_index_groups say nothing of what varies along {axes}: use "
                                  "shard_map(..., check_vma=False).")
    if primitive is not psum_p:
        return primitive.bind(x, axes=axes, axis_index_groups=axis_index_groups)
    rest = tuple(a for a in axes if a not in about)
    out = psum_p.bind(x, axes=rest, axis_index_groups=None) if rest else x
    return psum_invariant_p.bind(out, axes=tuple(a for a in axes if a in about))


def cotangent_of(ct: Any, aval: ShapedArray) -> Any:
    """A cotangent of a value of this type, which varies along the same axes of a mesh: of what is the same on all
    devices, it is the sum of theirs."""
    if isinstance(ct, Zero):
        return ct
    more = (aval_of(ct).vma - aval.vma) & manual_names()
    return varying(psum_invariant_p.bind(ct, axes=ordered(more)) if more else ct, aval.vma)
