"""Shardings in types: how the type of a result says that it is cut, from the operands' types.

    add of f32[8@x,2] and f32[8,2]   ->   f32[8@x,2]

Along mesh axes of type Explicit nothing is left to propagation: a primitive's `sharding_rule` gives the one answer, or
there is a ShardingTypeError, and the program has to say what it wants (`out_sharding=`, `reshard`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from anima.core.avals import ShapedArray, ShardedArray, sharded
from anima.core.jaxpr import Atom, ClosedJaxpr, Jaxpr, Literal, Var, subjaxprs
from anima.core.mesh import AbstractMesh
from anima.core.partition import PartitionSpec, axes_of
from anima.core.primitive import Primitive, ShardingRule
from anima.core.sharding_rules import Factor
from anima.core.shardings import NamedSharding
from anima.errors import ShardingTypeError
from anima.util import deeper, weak_cache

Axes = tuple[Any, ...]


def typed(primitive: Primitive, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray],
          params: dict[str, Any]) -> list[ShapedArray]:
    """The types of the results with how they are cut.

    Raises:
      ValueError: for operands on several meshes.
      ShardingTypeError: where there is no one answer.
    """
    mesh = _mesh(avals)
    if primitive.places(params) or primitive.inner(params) or not primitive.typed or mesh is None:
        return list(outs)
    rule = primitive.sharding_rule(avals, outs, **params)
    if rule is None:
        if primitive.body is None and not primitive.gathers and any(axes for a in avals for axes in cut_of(a)):
            raise ShardingTypeError(
                f"{primitive.name} has no rule for operands that are cut along Explicit axes: {_texts(avals)}. Fix: "
                "anima.sharding.reshard them so that they are whole, or use anima.sharding.auto_axes.")
        return list(outs)
    sizes = dict(mesh.shape_tuple)
    factors = _factors(primitive, avals, rule, sizes)
    return [_typed(primitive, avals, out, dims, factors, mesh) for out, dims in zip(outs, rule.results, strict=True)]


def _mesh(avals: Sequence[ShapedArray]) -> AbstractMesh | None:
    mesh: Any = None
    for aval in avals:
        if type(aval) is ShardedArray:
            if mesh is not None and aval.sharding.mesh != mesh:
                raise ValueError(f"Mesh for all inputs should be equal. Got one mesh: {mesh} and another mesh: "
                                 f"{aval.sharding.mesh}")
            mesh = aval.sharding.mesh
    return mesh


def cut_of(aval: ShapedArray) -> list[Axes]:
    """Along which axes each dimension is cut."""
    if type(aval) is not ShardedArray:
        return [()] * len(aval.shape)
    return [axes_of(p) for p in aval.sharding.spec]


def _texts(avals: Sequence[ShapedArray]) -> str:
    return ", ".join(a.str_short(short_dtypes=True) for a in avals)


def _factors(primitive: Primitive, avals: Sequence[ShapedArray], rule: ShardingRule,
             sizes: dict[Any, int]) -> dict[Any, Axes]:
    """Along which axes each factor is cut."""
    name = primitive.name
    known: dict[Any, Axes] = {}
    for aval, dims in zip(avals, rule.operands, strict=True):
        for axes, dim in zip(cut_of(aval), dims, strict=True):
            if not axes:
                continue
            shares = _shares(dim, axes, sizes)
            if shares is None:
                raise ShardingTypeError(f"This {name} is not supported. Please specify the sharding of the output via "
                                        f"the `out_sharding` argument of {name}. Got operand type: {_texts([aval])}")
            for factor, share in shares:
                _learn(name, avals, rule, known, factor, share)
    return known


def _shares(dim: tuple[Any, ...], axes: Axes, sizes: dict[Any, int]) -> list[tuple[Any, Axes]] | None:
    """Which of the axes that cut a dimension cut which of its factors, the first ones first: 64@(x,y) as 2 times 32 is
    2@x, 32@y. None if they do not divide so."""
    if not (dim and isinstance(dim[0], Factor)):
        return [(dim[0], axes)] if dim else None
    left, shares = list(axes), []
    for factor in dim:
        size, share = factor.size, []
        while left and size % sizes[left[0]] == 0:
            share.append(left.pop(0))
            size //= sizes[share[-1]]
        shares.append((factor, tuple(share)))
        if size > 1 or not left:
            break
    return None if left else shares


def _learn(name: str, avals: Sequence[ShapedArray], rule: ShardingRule, known: dict[Any, Axes], factor: Any,
           axes: Axes) -> None:
    """Writes down that a factor is cut along these axes."""
    if factor in rule.whole:
        raise ShardingTypeError(
            f"{name}: operands must be unsharded over the dimensions that it goes along, as the sharding of "
            f"the output could not be resolved unambiguously. Got {_texts(avals)}. Fix: anima.reshard, or "
            "`out_sharding=` (`.at[...].get(out_sharding=...)` for an index).")
    if factor in known and factor in rule.summed:
        raise ShardingTypeError(
            "Contracting dimensions are sharded and it is ambiguous how the output should be sharded. Please "
            f"specify the output sharding via the `out_sharding` parameter. Got {_texts(avals)}")
    if known.setdefault(factor, axes) != axes:
        raise ShardingTypeError(f"{name} got incompatible shardings for broadcasting: {_texts(avals)}.")


def _typed(primitive: Primitive, avals: Sequence[ShapedArray], out: ShapedArray, dims: Sequence[tuple[Any, ...]],
           factors: dict[Any, Axes], mesh: AbstractMesh) -> ShapedArray:
    sizes = dict(mesh.shape_tuple)
    cut = []
    for dim in dims:
        parts = [factors.get(factor, ()) for factor in dim]
        first = list(takewhile(bool, parts))  # 8@x times 8@y is 64@(x,y)
        if any(parts[len(first):]):
            raise ShardingTypeError(f"This {primitive.name} is not supported. Please specify the sharding of the "
                                    f"output via the `out_sharding` argument of {primitive.name}. Got operand type: "
                                    f"{_texts(avals)}, result shape: {out.shape}")
        cut.append(tuple(name for axes in first for name in axes))
    names = [name for axes in cut for name in axes]
    spec = ",".join(f"{n}{'@' if axes else ''}{','.join(map(str, axes))}"
                    for n, axes in zip(out.shape, cut, strict=True))
    if len(set(names)) < len(names):
        raise ShardingTypeError(f"{primitive.name} operation with inputs: {_texts(avals)} produces an illegally "
                                f"sharded result: [{spec}]")
    for n, axes in zip(out.shape, cut, strict=True):
        if n % math.prod(sizes[a] for a in axes):
            raise ShardingTypeError(f"{primitive.name} on sharded dimensions where the result's dimension ({n}) is not "
                                    f"divisible by the mesh axes {axes} is not implemented. Got {_texts(avals)}; the "
                                    f"result would be [{spec}]")
    return sharded(out, NamedSharding(mesh, PartitionSpec(*cut)))


def erased(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program without what is said of places, in types and by equations: as it is compiled."""
    found = _without_places(closed)
    return closed if found is None else found


@weak_cache
def _without_places(closed: ClosedJaxpr) -> ClosedJaxpr | None:
    """`erased`, or None for a program that says nothing of places: what a program is remembered by must not hold it."""
    return ClosedJaxpr(_erased(closed.jaxpr), closed.consts) if _says_places(closed.jaxpr, set()) else None


def _says_places(jaxpr: Jaxpr, seen: set[Jaxpr]) -> bool:
    if jaxpr in seen:  # one program may be called from many places
        return False
    seen.add(jaxpr)
    if any(type(v.aval) is ShardedArray for v in (*jaxpr.invars, *jaxpr.constvars)):
        return True
    for eqn in jaxpr.eqns:
        for v in eqn.outvars:
            if type(v.aval) is ShardedArray:
                return True
        if eqn.params and any(s is not None for s in eqn.primitive.places(eqn.params)):
            return True
    with deeper():
        return any(_says_places(inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner, seen)
                   for eqn in jaxpr.eqns if eqn.params for inner in subjaxprs(eqn.params))


def _erased(jaxpr: Jaxpr) -> Jaxpr:
    new: dict[Var, Atom] = {}

    def bare(aval: ShapedArray) -> ShapedArray:
        return ShapedArray(aval.shape, aval.dtype, aval.weak_type, aval.vma) if type(aval) is ShardedArray else aval

    def made(var: Var) -> Var:
        new[var] = var if type(var.aval) is not ShardedArray else Var(bare(var.aval))
        return new[var]  # type: ignore[return-value]

    def read(atom: Atom) -> Atom:
        return Literal(atom.val, bare(atom.aval)) if isinstance(atom, Literal) else new[atom]

    def inside(value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            return erased(value)
        if isinstance(value, Jaxpr):
            return _erased(value)
        return type(value)(map(inside, value)) if type(value) in (tuple, list) else value

    invars, constvars, eqns = list(map(made, jaxpr.invars)), list(map(made, jaxpr.constvars)), []
    for eqn in jaxpr.eqns:
        if eqn.primitive.places(eqn.params) and not any(subjaxprs(eqn.params)):  # the identity
            new.update(zip(eqn.outvars, map(read, eqn.invars), strict=True))
        else:
            eqns.append(eqn.replace(invars=list(map(read, eqn.invars)), outvars=list(map(made, eqn.outvars)),
                                    params={k: inside(v) for k, v in eqn.params.items()}))
    return jaxpr.replace(invars=invars, constvars=constvars, eqns=eqns, outvars=list(map(read, jaxpr.outvars)))
