"""Programs of one device (`transforms.partition`) whose collectives go from process to process.

    d:f32[8,4] = psum[axes=('x',)] c             in the program of one device of a mesh
    d:f32[8,4] = exchange[kind=add groups=...] c   in that of one process, which has this device

Sums, gathers, exchanges of parts and shifts are messages of their own kind; of what else there is, all processes of a
group get all operands, do what batching does with their stack, and take their own results.

Small sums of one kind, none of which needs another's result, are one message, as each message takes microseconds:

    c = psum[axes=('x',)] a                       e = concatenate[dimension=0] a b
    d = psum[axes=('x',)] b                       f = exchange[kind=add groups=...] e
                                                  c, d = split[sizes=(4, 2)] f
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Literal, Var, subjaxprs
from anima.core.mesh import Mesh
from anima.core.processes import Groups
from anima.core.stage import eval_jaxpr, literal_array, trace_to_jaxpr
from anima.core.state import current
from anima.core.trace import EVAL, aval_of, under
from anima.ops.broadcast import broadcast
from anima.ops.collective import PExtreme, PSum, PVary, pmax_p
from anima.ops.elementwise import bitcast_convert_type, convert, lt, ne, select, xor
from anima.ops.exchange import AllGather, AllToAll, AxisIndex, Collective, PPermute, ReduceScatter, divided, joined
from anima.ops.family import constant
from anima.ops.index import dynamic_index_in_dim
from anima.ops.messages import exchange_p, group_index_p
from anima.ops.shape import concatenate, moveaxis, reshape, split


def exchanging(closed: ClosedJaxpr, mesh: Mesh) -> ClosedJaxpr:
    """The program of one process of a mesh that has one device of each; the same in all processes."""
    return _Exchanging(mesh).program(closed)


SMALL = 1 << 18  # bytes of an array, at most, for which one message less is worth copying it


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
            for eqns in _together(closed.jaxpr.eqns):
                current.source = eqns[0].source or before
                rule = self.joint if len(eqns) > 1 else self.equation
                try:
                    found = rule(eqns[0], [read(a) for e in eqns for a in e.invars])
                finally:
                    current.source = before
                env.update(zip([v for e in eqns for v in e.outvars], found, strict=True))
            return [read(a) for a in closed.jaxpr.outvars]

        return ClosedJaxpr(*under(EVAL, trace_to_jaxpr, fun, closed.in_avals))

    def equation(self, eqn: Eqn, args: Sequence[Any]) -> Sequence[Any]:
        """The results of an equation."""
        primitive, params = eqn.primitive, eqn.params
        names = primitive.axis_names(params) if primitive.axis_names is not None else ()
        if names and isinstance(primitive, Collective):
            return [self.collective(primitive, self.groups(names), *args, **params)]
        if names and primitive.body is not None:
            program = self.program(primitive.body(params, list(map(aval_of, args))))
            return eval_jaxpr(program.jaxpr, program.consts, *args)
        if any(True for _ in subjaxprs(params)):
            params = {k: self._parameter(v) for k, v in params.items()}
        out = primitive.bind(*args, **params)
        return out if primitive.multiple_results else [out]

    def joint(self, eqn: Eqn, args: Sequence[Any]) -> Sequence[Any]:
        """The results of equations like this one, each of one of these operands, by one message."""
        avals = list(map(aval_of, args))
        sizes = [a.size for a in avals]
        row = concatenate([reshape(x, (n,)) for x, n in zip(args, sizes, strict=True)], 0)
        (found,) = self.equation(eqn, [row])
        return [reshape(x, a.shape) for x, a in zip(split(found, sizes), avals, strict=True)]

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


def _together(eqns: Sequence[Eqn]) -> Iterator[list[Eqn]]:
    """The equations in an order in which they can run, those together that are to be one message: each waits until
    something large, or another message, needs its result, and so does what is small and needs it."""
    waiting: dict[Any, list[Eqn]] = {}
    later: list[Eqn] = []
    unknown: set[Var] = set()  # the results of both
    for eqn in eqns:
        kind = _kind(eqn)
        needs = any(isinstance(a, Var) and a in unknown for a in eqn.invars)
        if needs and (kind is not None or eqn.effects or not all(_is_small(v) for v in eqn.outvars)):
            yield from (*waiting.values(), *([e] for e in later))
            waiting, later, unknown, needs = {}, [], set(), False
        if kind is None and not needs:
            yield [eqn]
            continue
        unknown.update(eqn.outvars)
        if needs:
            later.append(eqn)
        else:
            waiting.setdefault(kind, []).append(eqn)
    yield from (*waiting.values(), *([e] for e in later))


def _kind(eqn: Eqn) -> Any:
    """What small sums and extremes have in common that can be one message; None for other equations."""
    if not isinstance(eqn.primitive, PSum | PExtreme) or eqn.params.get("axis_index_groups") is not None:
        return None
    axes = eqn.params["axes"]
    if not _is_small(eqn.outvars[0]) or any(isinstance(a, int) for a in axes):
        return None
    return eqn.primitive, axes, eqn.outvars[0].aval.dtype


def _is_small(variable: Var) -> bool:
    aval = variable.aval
    return aval.size * aval.dtype.itemsize <= SMALL


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
    if wide.kind == "c":  # which MPI has no order for
        return _of_stack(x, groups, primitive, params)
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
