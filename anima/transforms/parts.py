"""Programs on parts of arrays as one program on the whole arrays, for devices that share memory.

    { lambda ; c:f32[2]{V:x}. let d = reduce_sum c; e = psum_invariant[axes=('x',)] d in (e,) }     on 4 devices
    { lambda ; a:f32[8]. let b:f32[4,2] = reshape a; c:f32[4] = reduce_sum b; d:f32[] = reduce_sum c in (d,) }

An array that is cut along an axis of the mesh gets a dimension for it, over which the program is batched; collectives
become operations along it, and what no device has of its own is computed once. The dimensions stay where they are:
where leading ones are cut, no element moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anima.core.avals import ShapedArray
from anima.core.axes import Axis, typing
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Var, subjaxprs
from anima.core.partition import PartitionSpec, axes_of, used_axes
from anima.core.stage import eval_jaxpr, trace_to_jaxpr
from anima.core.trace import EVAL, aval_of, under
from anima.ops.collective import pvary_p
from anima.ops.shape import index_in_dim, reshape, transpose
from anima.transforms.dce import without_dead_code
from anima.transforms.vmap import batch_flat, move_to
from anima.util import weak_cache

Axes = tuple[tuple[Any, int], ...]
Specs = tuple[PartitionSpec, ...]


@weak_cache
def expanded(closed: ClosedJaxpr, axes: Axes, in_specs: Specs, out_specs: Specs) -> ClosedJaxpr:
    """The program on whole arrays; `axes` are the names and sizes of the mesh's."""
    program, sizes = untyped(closed), dict(axes)
    program = without_dead_code(program)  # so that nothing is batched in vain

    def fun(*arrays: Any) -> list[Any]:
        cut, places = zip(*map(_cut, arrays, in_specs, [sizes] * len(arrays)), strict=True) if arrays else ((), ())
        outs = _on_all(program, axes, cut, places, out_specs)
        return [_put_together(x, spec, sizes) for x, spec in zip(outs, out_specs, strict=True)]

    wholes = [a.update(shape=whole_shape(a.shape, s, sizes), vma=frozenset())
              for a, s in zip(closed.in_avals, in_specs, strict=True)]
    with typing(None):
        return ClosedJaxpr(*under(EVAL, trace_to_jaxpr, fun, wholes))


def whole_shape(shape: tuple[int, ...], spec: PartitionSpec, sizes: Mapping[Any, int]) -> tuple[int, ...]:
    """The shape of the array of which each device has a part of this one."""
    out = list(shape)
    for d, entry in enumerate(spec):
        for name in axes_of(entry):
            out[d] *= sizes[name]
    return tuple(out)


def _cut(x: Any, spec: PartitionSpec, sizes: dict[Any, int]) -> tuple[Any, dict[Any, int]]:
    """The array with a dimension for each axis of the mesh that cuts it, before what is left of the one that it cuts;
    and where these are."""
    shape: list[int] = []
    places: dict[Any, int] = {}
    for n, entry in zip(aval_of(x).shape, spec.padded(aval_of(x).ndim), strict=True):
        for name in axes_of(entry):
            places[name] = len(shape)
            shape.append(sizes[name])
            n //= sizes[name]
        shape.append(n)
    return (reshape(x, shape) if places else x), places


def _on_all(program: ClosedJaxpr, axes: Axes, args: Sequence[Any], places: Sequence[dict[Any, int]],
            out_specs: Specs) -> list[Any]:
    """Results on all devices, with a leading dimension for each axis that their spec names, in the order of `axes`."""
    if not axes:
        return eval_jaxpr(program.jaxpr, program.consts, *args)
    (name, size), *rest = axes
    dims = [at.get(name) for at in places]
    left = [{n: k - (d is not None and k > d) for n, k in at.items() if n != name}
            for at, d in zip(places, dims, strict=True)]
    outs, out_dims = batch_flat(lambda *xs: _on_all(program, tuple(rest), xs, left, out_specs),
                                Axis(size, name, of_devices=True), args, dims)
    return [move_to(x, d, 0, size) if name in used_axes(spec) else x if d is None else
            index_in_dim(x, 0, d, keepdims=False)  # all devices have the same, or so the caller says
            for x, d, spec in zip(outs, out_dims, out_specs, strict=True)]


def _put_together(x: Any, spec: PartitionSpec, sizes: dict[Any, int]) -> Any:
    """The array of which the parts lie along leading dimensions, one for each axis that the spec names."""
    named = [n for n in sizes if n in used_axes(spec)]
    shape = aval_of(x).shape
    order: list[int] = []
    for d, entry in enumerate(spec.padded(len(shape) - len(named))):
        order += [*(named.index(n) for n in axes_of(entry)), len(named) + d]
    return reshape(transpose(x, order), whole_shape(shape[len(named):], spec, sizes)) if named else x


@weak_cache
def untyped(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program without what types say of manual axes, and without the operations that declare that."""
    return closed.replace(jaxpr=_untyped(closed.jaxpr)) if _tells(closed.jaxpr) else closed


def _tells(jaxpr: Jaxpr) -> bool:
    return any(v.aval.vma for v in (*jaxpr.invars, *jaxpr.constvars) if isinstance(v.aval, ShapedArray)) or any(
        any(getattr(v.aval, "vma", ()) for v in e.outvars) or any(_tells(getattr(p, "jaxpr", p))
                                                                  for p in subjaxprs(e.params))
        for e in jaxpr.eqns)


def _untyped(jaxpr: Jaxpr) -> Jaxpr:
    env: dict[Var, Atom] = {}

    def new(var: Var) -> Var:
        plain = Var(var.aval.update(vma=frozenset())) if getattr(var.aval, "vma", None) else var
        env[var] = plain
        return plain

    def read(atom: Atom) -> Atom:
        return env.get(atom, atom) if isinstance(atom, Var) else atom

    constvars, invars = list(map(new, jaxpr.constvars)), list(map(new, jaxpr.invars))
    eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        if eqn.primitive is pvary_p:
            env[eqn.outvars[0]] = read(eqn.invars[0])
            continue
        params = {k: _untyped_param(v) for k, v in eqn.params.items()}
        if "check_vma" in params:
            params["check_vma"] = False
        eqns.append(eqn.replace(invars=list(map(read, eqn.invars)), outvars=list(map(new, eqn.outvars)),
                                params=params))
    return jaxpr.replace(constvars=constvars, invars=invars, outvars=list(map(read, jaxpr.outvars)), eqns=eqns)


def _untyped_param(value: Any) -> Any:
    if isinstance(value, ClosedJaxpr):
        return untyped(value)
    if isinstance(value, Jaxpr):
        return _untyped(value)
    return tuple(map(_untyped_param, value)) if type(value) is tuple else value  # a named one holds no programs
