"""Programs of one device (`transforms.partition`) whose collectives go from process to process.

    d:f32[8,4] = psum[axes=('x',)] c             in the program of one device of a mesh
    d:f32[8,4] = exchange[kind=add groups=...] c   in that of one process, which has this device

Sums, gathers, exchanges of parts and shifts are messages of their own kind; of what else there is, all processes of a
group get all operands, do what batching does with their stack, and take their own results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Literal, Var, subjaxprs
from anima.core.mesh import Mesh
from anima.core.processes import Groups
from anima.core.stage import literal_array, trace_to_jaxpr
from anima.core.state import current
from anima.core.trace import EVAL, aval_of, under
from anima.ops.broadcast import broadcast
from anima.ops.collective import PExtreme, PSum, PVary, pmax_p
from anima.ops.elementwise import bitcast_convert_type, convert, lt, ne, select, xor
from anima.ops.exchange import AllGather, AllToAll, AxisIndex, Collective, PPermute, ReduceScatter, divided, joined
from anima.ops.family import constant
from anima.ops.index import dynamic_index_in_dim
from anima.ops.messages import exchange_p, group_index_p
from anima.ops.shape import moveaxis


def exchanging(closed: ClosedJaxpr, mesh: Mesh) -> ClosedJaxpr:
    """The program of one process of a mesh that has one device of each; the same in all processes."""
    return _Exchanging(mesh).program(closed)


class _Exchanging:
    """Programs on one mesh."""

    def __init__(self, mesh: Mesh):
        self.names, self.sizes = tuple(mesh.axis_names), mesh.axis_sizes
        self.numbers = np.array([d.process_index for d in mesh.device_list]).reshape(self.sizes)

    def groups(self, names: Sequence[Any]) -> Groups:
        """The processes that differ along these axes alone, in row-major order of the names."""
        at = [self.names.index(n) for n in names]
        others = [k for k in range(len(self.names)) if k not in at]
        rows = self.numbers.transpose([*others, *at]).reshape(-1, math.prod(self.sizes[k] for k in at))
        return tuple(tuple(map(int, row)) for row in rows)

    def program(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        """The program with messages in place of collectives."""
        def fun(*args: Any) -> list[Any]:
            env: dict[Var, Any] = dict(zip(closed.jaxpr.invars, args, strict=True))
            env.update(zip(closed.jaxpr.constvars, closed.consts, strict=True))

            def read(atom: Atom) -> Any:
                return literal_array(atom) if isinstance(atom, Literal) else env[atom]

            before = current.source
            for eqn in closed.eqns:
                current.source = eqn.source or before
                try:
                    env.update(zip(eqn.outvars, self.equation(eqn, list(map(read, eqn.invars))), strict=True))
                finally:
                    current.source = before
            return [read(a) for a in closed.jaxpr.outvars]

        return ClosedJaxpr(*under(EVAL, trace_to_jaxpr, fun, closed.in_avals))

    def equation(self, eqn: Eqn, args: Sequence[Any]) -> Sequence[Any]:
        """The results of an equation."""
        primitive, params = eqn.primitive, eqn.params
        names = primitive.axis_names(params) if primitive.axis_names is not None else ()
        if names and isinstance(primitive, Collective):
            return [self.collective(primitive, self.groups(names), *args, **params)]
        if any(True for _ in subjaxprs(params)):
            params = {k: self._parameter(v) for k, v in params.items()}
        out = primitive.bind(*args, **params)
        return out if primitive.multiple_results else [out]

    def _parameter(self, value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            return self.program(value)
        if isinstance(value, tuple) and any(isinstance(v, ClosedJaxpr) for v in value):
            return tuple(map(self._parameter, value))
        return value

    def collective(self, primitive: Collective, groups: Groups, *args: Any, **params: Any) -> Any:
        """What a collective over the axes of these groups gives each process."""
        if isinstance(primitive, AxisIndex):
            return group_index_p.bind(groups=groups)
        (x,) = args
        if isinstance(primitive, PVary):
            return x
        positional = any(isinstance(a, int) for a in params.get("axes", ()))
        if params.get("axis_index_groups") is None and not positional:
            for kind, rule in _RULES:
                if isinstance(primitive, kind):
                    return rule(x, groups, primitive, params)
        return _of_stack(x, groups, primitive, params)


def _of_stack(x: Any, groups: Groups, primitive: Collective, params: dict[str, Any]) -> Any:
    """Any collective: of the stack of all operands, as `vmap` does it."""
    out, dim = primitive._grouped(exchange_p.bind(x, kind="gather", groups=groups), **params)
    return out if dim is None else dynamic_index_in_dim(out, group_index_p.bind(groups=groups), dim, keepdims=False)


def _added(x: Any, groups: Groups, kind: str) -> Any:
    """A sum of all, in a type that messages can be added up in."""
    dtype = aval_of(x).dtype
    wide = _wide(dtype)
    return convert(exchange_p.bind(convert(x, wide), kind=kind, groups=groups), dtype)


def _wide(dtype: Any) -> Any:
    if dtype.kind in "fV" and dtype not in (np.float32, np.float64):
        return np.dtype(np.float32)
    return np.dtype(np.int32) if dtype.kind not in "iufc" or dtype.itemsize == 1 else dtype


def _sum(x: Any, groups: Groups, primitive: Collective, params: dict[str, Any]) -> Any:
    return _added(x, groups, "add")


def _extreme(x: Any, groups: Groups, primitive: Collective, params: dict[str, Any]) -> Any:
    """The extreme of all; floating-point numbers as integers in the same order, as NaN, if there is one, is it."""
    dtype, kind = aval_of(x).dtype, "max" if primitive is pmax_p else "min"
    wide = _wide(dtype)
    x = convert(x, wide)
    if wide.kind != "f":
        return convert(exchange_p.bind(x, kind=kind, groups=groups), dtype)
    number = np.dtype(f"i{wide.itemsize}")
    limits = np.iinfo(number)
    nan = constant(limits.max if kind == "max" else limits.min, number)  # bits of NaNs, in this order, too
    bits = _ordered(bitcast_convert_type(x, number))
    key = select(ne(x, x), _like(nan, bits), bits)
    found = _ordered(exchange_p.bind(key, kind=kind, groups=groups))
    return convert(bitcast_convert_type(found, wide), dtype)


def _ordered(bits: Any) -> Any:
    """The bits of floating-point numbers as integers of the same order; its own inverse."""
    number = aval_of(bits).dtype
    flip = constant(np.iinfo(number).max, number)
    return select(lt(bits, _like(constant(0, number), bits)), xor(bits, _like(flip, bits)), bits)


def _like(value: Any, x: Any) -> Any:
    return broadcast(value, aval_of(x).shape)


def _gathered(x: Any, groups: Groups, primitive: Collective, params: dict[str, Any]) -> Any:
    out = moveaxis(exchange_p.bind(x, kind="gather", groups=groups), 0, params["all_gather_dimension"])
    return joined(out, params["all_gather_dimension"]) if params["tiled"] else out


def _scattered(x: Any, groups: Groups, primitive: Collective, params: dict[str, Any]) -> Any:
    at = params["scatter_dimension"]
    parts = divided(x, at, len(groups[0])) if params["tiled"] else x
    return _added(moveaxis(parts, at, 0), groups, "scatter")


def _to_all(x: Any, groups: Groups, primitive: Collective, params: dict[str, Any]) -> Any:
    parts = moveaxis(divided(x, params["split_axis"], len(groups[0])), params["split_axis"], 0)
    found = exchange_p.bind(parts, kind="all_to_all", groups=groups)
    return joined(moveaxis(found, 0, params["concat_axis"]), params["concat_axis"])


def _permuted(x: Any, groups: Groups, primitive: Collective, params: dict[str, Any]) -> Any:
    return exchange_p.bind(x, kind="permute", groups=groups, perm=tuple(map(tuple, params["perm"])))


_RULES: Sequence[tuple[type[Collective], Callable[..., Any]]] = (
    (PSum, _sum), (PExtreme, _extreme), (AllGather, _gathered), (ReduceScatter, _scattered), (AllToAll, _to_all),
    (PPermute, _permuted))
