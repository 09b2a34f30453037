"""Transposition: a linear program run backwards, from cotangents of results to those of arguments.

Equations that no linear variable reaches are evaluated first; then each linear equation, last to first,
turns the cotangent of its result into cotangents of its operands by its primitive's `transpose` rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anima.core.avals import ShapedArray, ShardedArray
from anima.core.dtypes import ExtendedDType
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from anima.core.primitive import Linear, Zero
from anima.core.stage import bind_eqn, literal_array, trace_to_jaxpr
from anima.core.state import current
from anima.core.trace import aval_of
from anima.ops.elementwise import add_any
from anima.ops.placing import typed_as
from anima.transforms.discharge import without_refs
from anima.util import weak_cache


def add_cotangents(a: Any, b: Any) -> Any:
    """The sum of two cotangents, either of which may be Zero."""
    if isinstance(a, Zero):
        return b
    if isinstance(b, Zero):
        return a
    dtype = aval_of(a).dtype
    return dtype.add(a, b) if isinstance(dtype, ExtendedDType) else add_any(a, b)


def backward(jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
    """Cotangents of the arguments given as `Linear` (None for the others), for cotangents of the results: if these are
    all zeros, they are asked about as such; otherwise zeros are of results that nothing depends on."""
    values: dict[Var, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    linear: set[Var] = set()
    for var, arg in zip(jaxpr.invars, args, strict=True):
        if isinstance(arg, Linear):
            linear.add(var)
        else:
            values[var] = arg

    def is_linear(atom: Atom) -> bool:
        return isinstance(atom, Var) and atom in linear

    def read(atom: Atom) -> Any:
        if isinstance(atom, Literal):
            return literal_array(atom)
        return Linear(atom.aval) if atom in linear else values[atom]

    todo: list[Eqn] = []
    for eqn in jaxpr.eqns:
        if any(map(is_linear, eqn.invars)):
            linear.update(eqn.outvars)
            todo.append(eqn)
        else:
            values.update(zip(eqn.outvars, bind_eqn(eqn, list(map(read, eqn.invars))), strict=True))

    found: dict[Var, Any] = {}

    def give(atom: Atom, ct: Any) -> None:
        if ct is not None and is_linear(atom):
            if type(atom.aval) is ShardedArray and not isinstance(ct, Zero):
                ct = typed_as(ct, atom.aval.to_ct_aval())
            found[atom] = add_cotangents(found[atom], ct) if atom in found else ct

    given = [not isinstance(ct, Zero) for ct in cts]
    for atom, ct, nonzero in zip(jaxpr.outvars, cts, given, strict=True):
        if nonzero or not any(given):
            give(atom, ct)
    for eqn in reversed(todo):
        out_cts = [found.pop(v, None) for v in eqn.outvars]
        if all(ct is None for ct in out_cts):  # nothing that the result depends on
            continue
        out_cts = [Zero(v.aval) if ct is None else ct for v, ct in zip(eqn.outvars, out_cts, strict=True)]
        if all(isinstance(ct, Zero) for ct in out_cts) and not eqn.primitive.transposes_zeros(eqn.params):
            for atom in eqn.invars:
                give(atom, Zero(atom.aval))
            continue
        all_cts = out_cts if eqn.primitive.multiple_results else out_cts[0]
        before, current.source = current.source, eqn.source
        try:
            in_cts = eqn.primitive.transpose(all_cts, *map(read, eqn.invars), **eqn.params)
        finally:
            current.source = before
        for atom, ct in zip(eqn.invars, in_cts, strict=True):
            give(atom, ct)
    return [found.get(v, Zero(v.aval)) if v in linear else None for v in jaxpr.invars]


@weak_cache
def transpose_jaxpr(closed: ClosedJaxpr, linear: tuple[bool, ...],
                    nonzero_cts: tuple[bool, ...]) -> tuple[ClosedJaxpr, list[bool]]:
    """The program (non-linear arguments, nonzero cotangents) -> nonzero cotangents of linear arguments.

    The mask returned tells which linear arguments get a nonzero cotangent.
    """
    closed = without_refs(closed)
    mask: list[bool] = []
    known = sum(not lin for lin in linear)

    def fun(*given: Any) -> list[Any]:
        values, cts = iter(given[:known]), iter(given[known:])
        args = [Linear(a) if lin else next(values) for lin, a in zip(linear, closed.in_avals, strict=True)]
        out_cts = [next(cts) if nz else Zero(a) for nz, a in zip(nonzero_cts, closed.out_avals, strict=True)]
        found = backward(closed.jaxpr, closed.consts, args, out_cts)
        outs = [ct for lin, ct in zip(linear, found, strict=True) if lin]
        mask.extend(not isinstance(ct, Zero) for ct in outs)
        return [ct for ct in outs if not isinstance(ct, Zero)]

    avals: list[ShapedArray] = [a for lin, a in zip(linear, closed.in_avals, strict=True) if not lin]
    avals += [a for nz, a in zip(nonzero_cts, closed.out_avals, strict=True) if nz]
    jaxpr, consts = trace_to_jaxpr(fun, avals)
    return ClosedJaxpr(jaxpr, consts), mask
