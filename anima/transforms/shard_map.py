"""`shard_map`: a program that each device of a mesh runs on its own part of arrays, as one operation.

    shard_map[jaxpr={ lambda ; c:f32[2]{V:x}. let d = reduce_sum c; e:f32[] = psum_invariant[axes=('x',)] d in (e,) }
              in_specs=(P('x',),) out_specs=(P(),) mesh=Mesh('x': 4) ...] a

Derivatives, transposes and stacks of it are shard_maps of those of its program. Where `check_vma` holds, the types in
the program say along which axes of the mesh values vary; a value that does not is one and the same on all devices, and
its cotangent the sum of theirs. The devices of a process share its memory: there, the program is batched over the
mesh's axes (`expanded`), and is then one program on the whole arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from anima.core.avals import ShapedArray, ShardedArray, sharded
from anima.core.axes import Axis, Manual, manual_names, mentions, name_of, naming, typing, varying
from anima.core.explicit import cut_of
from anima.core.jaxpr import ClosedJaxpr, Eqn
from anima.core.mesh import AbstractMesh, AxisType, Mesh, current_mesh, get_abstract_mesh, use_abstract_mesh
from anima.core.partition import PartitionSpec, axes_of, used_axes
from anima.core.primitive import Linear, Primitive, Work, Zero
from anima.core.shardings import NamedSharding
from anima.core.stage import StageTrace, eval_jaxpr, trace_to_jaxpr
from anima.core.state import current
from anima.core.trace import Trace, aval_of, under
from anima.ops.broadcast import expand_dims
from anima.ops.collective import psum_p, pvary_p
from anima.ops.elementwise import div
from anima.ops.family import constant
from anima.ops.placing import typed_axes
from anima.ops.shape import squeeze
from anima.transforms.call import dce_closed
from anima.transforms.forward import jvp_jaxpr
from anima.transforms.linearize import fill, linearize_apart
from anima.transforms.parts import expanded, whole_shape
from anima.transforms.taylor import Term, flat, grouped, taylor_jaxpr
from anima.transforms.transpose import transpose_jaxpr
from anima.transforms.vmap import batch_jaxpr
from anima.util import weak_cache

Specs = tuple[PartitionSpec, ...]


@contextmanager
def on_devices(mesh: Mesh | AbstractMesh, manual: frozenset[Any], check_vma: bool) -> Iterator[None]:
    """Within, programs are those of one device: the axes `manual` of the mesh have names, and types tell of them."""
    around, names = get_abstract_mesh(), manual | manual_names()
    inside = around if around.shape_tuple == mesh.shape_tuple else mesh.abstract_mesh
    inside = inside.update_axis_types(dict.fromkeys(manual, AxisType.Manual))
    with naming([(n, mesh.shape[n]) for n in mesh.axis_names if n in manual]), use_abstract_mesh(inside), \
            typing(Manual(names, pvary_p) if check_vma else None):
        yield


def seen_inside(aval: ShapedArray, spec: PartitionSpec, sizes: dict[Any, int], check_vma: bool) -> ShapedArray:
    """As `part_of`, in the function of a device: the type tells how parts are cut along Explicit axes of the mesh over
    which it is not mapped."""
    part = part_of(aval, spec, sizes, check_vma)
    if type(aval) is not ShardedArray:
        return part
    seen = sharded(part, aval.sharding.seen_on(get_abstract_mesh()))
    for n, axes in zip(seen.shape, cut_of(seen), strict=True):
        if n % math.prod(sizes[name] for name in axes):
            raise ValueError(f"A part of {aval.str_short()} under {spec} has a dimension of size {n}, which does not "
                             f"divide into the parts along the axes {axes}, by which its type is cut. Fix: "
                             "anima.reshard it first, or map over these axes, too.")
    return seen


def part_of(aval: ShapedArray, spec: PartitionSpec, sizes: dict[Any, int], check_vma: bool) -> ShapedArray:
    """The type of what one device has of an array."""
    cut = [math.prod(sizes[n] for n in axes_of(p)) for p in spec]
    shape = tuple(n // c for n, c in zip(aval.shape, cut, strict=False)) + aval.shape[len(cut):]
    vma = aval.vma | frozenset(used_axes(spec)) if check_vma else frozenset()
    return ShapedArray(shape, aval.dtype, aval.weak_type, vma)


class ShardMap(Primitive):
    """Operands and results are whole arrays, cut as `in_specs` and `out_specs` say; `jaxpr` is about parts.

    Subclasses say how it is evaluated."""

    multiple_results = True

    def infer(self, *avals: ShapedArray, jaxpr: ClosedJaxpr, mesh: Any, out_specs: Specs, check_vma: bool,
              newly_manual_axes: frozenset[Any], **params: Any) -> list[ShapedArray]:
        around = frozenset().union(*(a.vma for a in avals))
        specs = _whole_specs(out_specs, jaxpr.out_avals, mesh, newly_manual_axes)
        return [a.update(shape=whole_shape(a.shape, s, mesh.shape), sharding=NamedSharding(mesh, cut),
                         vma=a.vma - newly_manual_axes if check_vma else around)
                for a, s, cut in zip(jaxpr.out_avals, out_specs, specs, strict=True)]

    def binds(self, params: dict[str, Any]) -> Sequence[tuple[Any, int]]:
        return [(n, size) for n, size in params["mesh"].shape_tuple if n in params["newly_manual_axes"]]

    def places(self, params: dict[str, Any]) -> Sequence[Any]:
        """Shardings of the results."""
        return self._on_mesh(params, params["out_specs"], params["jaxpr"].out_avals)

    def pins(self, params: dict[str, Any]) -> Sequence[tuple[str, Any]]:
        return super().pins(params) if concrete(params["mesh"]) is not None else []

    def takes(self, params: dict[str, Any]) -> Sequence[Any]:
        """Shardings of the operands that the program needs, likewise."""
        jaxpr = params["jaxpr"]
        _, used = dce_closed(jaxpr, (True,) * len(params["out_specs"]))
        given = self._on_mesh(params, params["in_specs"], jaxpr.in_avals)
        return [s if u else None for s, u in zip(given, used, strict=True)]

    def apart(self, params: dict[str, Any], mesh: Mesh | AbstractMesh) -> frozenset[Any]:
        mine, manual = params["mesh"], params["newly_manual_axes"]
        same = concrete(mine) is not None and mine.shape_tuple == mesh.shape_tuple
        return manual if same and len(manual) < len(mesh.axis_names) else frozenset()

    def _on_mesh(self, params: dict[str, Any], specs: Specs, avals: Sequence[ShapedArray]) -> list[NamedSharding]:
        mesh = params["mesh"]
        return [NamedSharding(concrete(mesh) or mesh, s)
                for s in _whole_specs(specs, avals, mesh, params["newly_manual_axes"])]

    def body(self, params: dict[str, Any], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
        """The program on whole arrays that it stands for."""
        return expanded(params["jaxpr"], tuple(self.binds(params)), params["in_specs"], params["out_specs"])

    def eval_extended(self, avals: Sequence[ShapedArray], args: Sequence[Any], params: dict[str, Any]) -> Any:
        return self.eval(*args, **params)

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work], *, mesh: Any,
             newly_manual_axes: frozenset[Any], **params: Any) -> Work:
        return programs[0].times(math.prod(mesh.shape[n] for n in newly_manual_axes))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr, in_specs: Specs,
            out_specs: Specs, **params: Any) -> tuple[list[Any], list[Any]]:
        nonzero = [not isinstance(t, Zero) for t in tangents]
        with _inside(params):
            new, mask = jvp_jaxpr(jaxpr, tuple(nonzero))
        outs = self.bind(*primals, *_chosen(tangents, nonzero), jaxpr=new,
                         in_specs=(*in_specs, *_chosen(in_specs, nonzero)),
                         out_specs=(*out_specs, *_chosen(out_specs, mask)), **params)
        return outs[: len(mask)], fill(mask, outs[len(mask):], outs)

    def taylor(self, order: int, terms: Sequence[Term], *, jaxpr: ClosedJaxpr, in_specs: Specs, out_specs: Specs,
               **params: Any) -> list[Term]:
        given = tuple(len(t) > 1 for t in terms)
        with _inside(params):
            new, mask = taylor_jaxpr(jaxpr, order, given)
        specs, outs = (tuple(s for s, m in zip(each, some, strict=True) for _ in range(order + 1 if m else 1))
                       for each, some in ((in_specs, given), (out_specs, mask)))
        return grouped(self.bind(*flat(terms), jaxpr=new, in_specs=specs, out_specs=outs, **params), mask, order)

    def linearize(self, parent: Trace, recorder: StageTrace, primals: Sequence[Any], tangents: Sequence[Any], *,
                  jaxpr: ClosedJaxpr, in_specs: Specs, out_specs: Specs,
                  **params: Any) -> tuple[list[Any], list[Any]]:
        """Runs the program under `parent`, each device keeping its residuals, and records the linear part."""
        nonzero = [not isinstance(t, Zero) for t in tangents]
        with _inside(params):
            primal, tangent, mask, handed_on = linearize_apart(jaxpr, tuple(nonzero))
            count = len(mask)
            spread = _spread_over(parent)  # along these, lanes of a vmap will lie
            axes = tuple(n for n, _ in self.binds(params) if n not in spread)
            primal, tangent, specs = _with_axes(primal, tangent, count, tuple(handed_on), axes, params["check_vma"])
        outs = under(parent, self.bind, *primals, jaxpr=primal, in_specs=in_specs, out_specs=(*out_specs, *specs),
                     **params)
        made, made_specs = iter(outs[count:]), iter(specs)
        residuals = [next(made) if k is None else primals[k] for k in handed_on]
        res_specs = [next(made_specs) if k is None else in_specs[k] for k in handed_on]
        found = under(recorder, self.bind, *residuals, *_chosen(tangents, nonzero), jaxpr=tangent,
                      in_specs=(*res_specs, *_chosen(in_specs, nonzero)), out_specs=_chosen(out_specs, mask),
                      **params) if any(mask) else []
        return outs[:count], fill(mask, found, outs)

    def transpose(self, cts: Sequence[Any], *args: Any, jaxpr: ClosedJaxpr, in_specs: Specs, out_specs: Specs,
                  **params: Any) -> list[Any]:
        linear = [isinstance(a, Linear) for a in args]
        given = [not isinstance(ct, Zero) for ct in cts]
        known = [not lin for lin in linear]
        specs = _chosen(in_specs, linear)
        with _inside(params):
            new, mask = transpose_jaxpr(jaxpr, tuple(linear), tuple(given))
            avals = _chosen(_chosen(jaxpr.in_avals, linear), mask)
            new = _of_all(new, avals, tuple(_unnamed(s, params) for s in _chosen(specs, mask)), params["check_vma"])
        if not params["check_vma"]:  # what all devices have alike is one value, of which each has a part
            cts = [ct if isinstance(ct, Zero) else _divided(ct, _unnamed(s, params), params["mesh"])
                   for ct, s in zip(cts, out_specs, strict=True)]
        outs = iter(self.bind(*_chosen(args, known), *_chosen(cts, given), jaxpr=new,
                              in_specs=(*_chosen(in_specs, known), *_chosen(out_specs, given)),
                              out_specs=_chosen(specs, mask), **params))
        wanted = iter(mask)
        return [(next(outs) if next(wanted) else Zero(a.aval)) if lin else None
                for lin, a in zip(linear, args, strict=True)]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, jaxpr: ClosedJaxpr,
              in_specs: Specs, out_specs: Specs, **params: Any) -> tuple[list[Any], list[int | None]]:
        manual, mesh = params["newly_manual_axes"], params["mesh"]
        spmd = tuple(n for n in (getattr(size, "spmd", ()) or typed_axes(size, mesh)) if n in manual)
        for what, specs in (("in_specs", in_specs), ("out_specs", out_specs)):
            if named := [s for s in specs if set(spmd).intersection(used_axes(s))]:
                raise ValueError(f"vmap spmd_axis_name {spmd} cannot appear in shard_map {what}, got {named[0]}: along "
                                 "that axis lie the elements that vmap maps over.")
        if not params["check_vma"] and any(mentions(e.primitive, e.params, n) for e in jaxpr.eqns for n in spmd):
            raise NotImplementedError(f"vmap with spmd_axis_name={spmd} of a shard_map that exchanges values along it: "
                                      "differentiate within vmap and outside of jit, or use check_vma=True.")
        if name_of(size) in manual:
            size = int(size)  # within, that name is the mesh's
        with _inside(params):
            parts = math.prod(mesh.shape[n] for n in spmd)
            if int(size) % parts:
                raise ValueError(f"vmap of shard_map: {int(size)} elements do not divide into {parts} parts along the "
                                 f"axes {spmd} of {mesh}.")
            inner = size if parts == 1 else Axis(int(size) // parts, name_of(size))
            new, out_dims = batch_jaxpr(jaxpr, inner, tuple(dims), (0,) * len(out_specs) if spmd else None)
            if spmd and params["check_vma"]:
                new = _retyped(new, tuple(a if d is None else a.update(vma=a.vma | set(spmd))
                                          for a, d in zip(new.in_avals, dims, strict=True)))
        entry = spmd or None
        outs = self.bind(*args, jaxpr=new, in_specs=tuple(_stacked(s, d, entry) for s, d in
                                                          zip(in_specs, dims, strict=True)),
                         out_specs=tuple(_stacked(s, d, entry) for s, d in zip(out_specs, out_dims, strict=True)),
                         **params)
        return outs, out_dims

    def dce(self, eqn: Eqn, used: Sequence[bool]) -> Eqn:
        """The equation with the used results only."""
        p = eqn.params
        new, used_inputs = dce_closed(p["jaxpr"], tuple(used))
        return eqn.replace(params={**p, "jaxpr": new, "in_specs": _chosen(p["in_specs"], used_inputs),
                                   "out_specs": _chosen(p["out_specs"], used)},
                           invars=_chosen(eqn.invars, used_inputs), outvars=_chosen(eqn.outvars, used))


def _whole_specs(specs: Specs, parts: Sequence[ShapedArray], mesh: Mesh | AbstractMesh,
                 manual: frozenset[Any]) -> Specs:
    """How arrays are cut of which devices have parts of these types: first into them, then as these are."""
    if not set(mesh.explicit_axes) - manual:
        return specs
    return tuple(PartitionSpec(*((*axes_of(p), *cut) for p, cut in zip(s.padded(a.ndim), cut_of(a), strict=True)))
                 for s, a in zip(specs, parts, strict=True))


def concrete(mesh: Mesh | AbstractMesh) -> Mesh | None:
    """The mesh with its devices: itself, or the current one if that has the same axes."""
    if isinstance(mesh, Mesh):
        return mesh
    current_one = current_mesh()
    return current_one if current_one.shape_tuple == mesh.shape_tuple else None


def _spread_over(trace: Trace | None) -> set[Any]:
    """The axes of meshes that elements of the mapped functions around are spread over."""
    found: set[Any] = set()
    while trace is not None:
        found.update(getattr(getattr(trace, "size", None), "spmd", ()))
        trace = trace.parent
    return found


def _inside(params: dict[str, Any]) -> Any:
    return on_devices(params["mesh"], params["newly_manual_axes"], params["check_vma"])


def _chosen(items: Sequence[Any], mask: Sequence[bool]) -> tuple[Any, ...]:
    return tuple(x for x, m in zip(items, mask, strict=True) if m)


def _unnamed(spec: PartitionSpec, params: dict[str, Any]) -> tuple[Any, ...]:
    """The axes of the mesh that a spec does not name, in their order, without those that lanes of a vmap will lie
    along."""
    left = params["newly_manual_axes"] - set(used_axes(spec)) - _spread_over(current.trace)
    return tuple(n for n in params["mesh"].axis_names if n in left)


def _divided(ct: Any, names: Sequence[Any], mesh: Any) -> Any:
    count = math.prod(mesh.shape[n] for n in names)
    return div(ct, constant(count, aval_of(ct).dtype)) if count > 1 else ct


@weak_cache
def _of_all(closed: ClosedJaxpr, avals: tuple[ShapedArray, ...], unnamed: tuple[tuple[Any, ...], ...],
            check_vma: bool) -> ClosedJaxpr:
    """The program whose results, cotangents of arguments of these types, are those of all devices that have one."""
    def fun(*args: Any) -> list[Any]:
        outs = eval_jaxpr(closed.jaxpr, closed.consts, *args)
        if check_vma:
            return [varying(ct, a.vma) for ct, a in zip(outs, avals, strict=True)]
        return [psum_p.bind(ct, axes=tuple(names), axis_index_groups=None) if names else ct
                for ct, names in zip(outs, unnamed, strict=True)]

    return ClosedJaxpr(*trace_to_jaxpr(fun, closed.in_avals))


@weak_cache
def _retyped(closed: ClosedJaxpr, avals: tuple[ShapedArray, ...]) -> ClosedJaxpr:
    """The program on arguments that vary along other axes."""
    return ClosedJaxpr(*trace_to_jaxpr(lambda *xs: eval_jaxpr(closed.jaxpr, closed.consts, *xs), avals))


@weak_cache
def _with_axes(primal: ClosedJaxpr, tangent: ClosedJaxpr, count: int, handed_on: tuple[int | None, ...],
               axes: tuple[Any, ...], check_vma: bool) -> tuple[ClosedJaxpr, ClosedJaxpr, Specs]:
    """The programs of `linearize_apart` where scalar residuals have one dimension, and how residuals are put together:
    along the first dimension, by all axes along which they may vary."""
    residuals = primal.out_avals[count:]
    scalar = [not a.shape for a in residuals]

    def forward(*args: Any) -> list[Any]:
        outs = eval_jaxpr(primal.jaxpr, primal.consts, *args)
        return [*outs[:count], *(expand_dims(x, (0,)) if s else x for x, s in zip(outs[count:], scalar, strict=True))]

    made = iter(scalar)
    grown = [k is None and next(made) for k in handed_on]

    def linear(*args: Any) -> list[Any]:
        args = tuple(squeeze(x, (0,)) if g else x for x, g in zip(args, grown, strict=False)) + args[len(grown):]
        return eval_jaxpr(tangent.jaxpr, tangent.consts, *args)

    avals = [a.update(shape=(1,)) if g else a for a, g in zip(tangent.in_avals, grown, strict=False)]
    if any(scalar):
        primal = ClosedJaxpr(*trace_to_jaxpr(forward, primal.in_avals))
        tangent = ClosedJaxpr(*trace_to_jaxpr(linear, [*avals, *tangent.in_avals[len(grown):]]))
    return primal, tangent, tuple(PartitionSpec(tuple(n for n in axes if n in a.vma or not check_vma))
                                  for a in residuals)


def _stacked(spec: PartitionSpec, dim: int | None, entry: Any) -> PartitionSpec:
    """The spec of a stack along `dim`, which is cut along the axes `entry`."""
    if dim is None:
        return spec
    parts = list(spec.padded(dim))
    return spec.update((*parts[:dim], entry, *parts[dim:]) if entry or parts[dim:] else parts[:dim])
