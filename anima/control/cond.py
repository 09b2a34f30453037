"""`cond` and `switch`: one of several programs, chosen by a value, as one equation.

    switch(index, branches, *operands)     index is clamped to 0 .. len(branches) - 1

Residuals of the branches share slots: a residual of one branch and one of another with the same type are
the same operand of the tangent equation. A batched choice maps the whole equation over its lanes, each of
which takes its own branch alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima import tree
from anima.control.common import trace_function
from anima.control.scan import scan_p
from anima.core import dtypes
from anima.core.avals import ShapedArray, tangent_aval
from anima.core.jaxpr import ClosedJaxpr, Eqn, Var
from anima.core.primitive import Linear, Primitive, Zero
from anima.core.stage import StageTrace, eval_jaxpr, eval_numpy, trace_to_jaxpr
from anima.core.trace import Trace, aval_of, under
from anima.ops.broadcast import instantiate
from anima.ops.elementwise import clamp, convert
from anima.transforms.dce import dce_jaxpr
from anima.transforms.forward import jvp_jaxpr
from anima.transforms.linearize import linearize_jaxpr
from anima.transforms.transpose import backward
from anima.transforms.vmap import batch_jaxpr, move_to
from anima.util import fun_name, weak_cache

Branches = tuple[ClosedJaxpr, ...]


class Cond(Primitive):
    """Operands: an int32 scalar index in range, then those of every branch."""

    multiple_results = True

    def call(self, branches: Sequence[ClosedJaxpr], index: Any, operands: Sequence[Any]) -> list[Any]:
        """Binds with the parameters that follow from the operands."""
        return self.bind(index, *operands, branches=tuple(branches), linear=(False,) * len(operands))

    def infer(self, index: ShapedArray, *avals: ShapedArray, branches: Branches, **params: Any) -> list[ShapedArray]:
        return [a.update(weak_type=all(b.out_avals[k].weak_type for b in branches))
                for k, a in enumerate(branches[0].out_avals)]

    def eval(self, index: np.ndarray, *args: np.ndarray, branches: Branches, **params: Any) -> list[np.ndarray]:
        return eval_numpy(branches[min(max(int(index), 0), len(branches) - 1)], args)

    def eval_extended(self, avals: Sequence[ShapedArray], args: Sequence[Any], params: dict[str, Any]) -> Any:
        return self.eval(*args, **params)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, branches: Branches,
            linear: Any) -> tuple[list[Any], list[Any]]:
        nonzero = tuple(not isinstance(t, Zero) for t in tangents[1:])
        force = _union(jvp_jaxpr(b, nonzero)[1] for b in branches)
        bodies = [jvp_jaxpr(b, nonzero, force)[0] for b in branches]
        given = [t for t in tangents[1:] if not isinstance(t, Zero)]
        outs = self.call(bodies, primals[0], [*primals[1:], *given])
        count = len(force)
        found = iter(outs[count:])
        return outs[:count], [next(found) if f else Zero(tangent_aval(aval_of(o)))
                              for f, o in zip(force, outs[:count], strict=True)]

    def linearize(self, parent: Trace, recorder: StageTrace, primals: Sequence[Any], tangents: Sequence[Any], *,
                  branches: Branches, linear: Any) -> tuple[list[Any], list[Any]]:
        """Runs the branch that is taken, keeping its residuals; records the choice between the linear parts."""
        nonzero = tuple(not isinstance(t, Zero) for t in tangents[1:])
        force = _union(linearize_jaxpr(b, nonzero)[2] for b in branches)
        parts = [linearize_jaxpr(b, nonzero, force) for b in branches]
        count = len(force)
        slots, places = _share([p.out_avals[count:] for p, _, _ in parts])
        given = [t for t in tangents[1:] if not isinstance(t, Zero)]
        forward = [_with_slots(p, count, slots, place) for (p, _, _), place in zip(parts, places, strict=True)]
        outs = under(parent, self.call, forward, primals[0], primals[1:])
        if not any(force):
            return outs[:count], [Zero(tangent_aval(aval_of(o))) for o in outs[:count]]
        backs = [_from_slots(t, slots, place) for (_, t, _), place in zip(parts, places, strict=True)]
        found = iter(under(recorder, self.call, backs, primals[0], [*outs[count:], *given]))
        return outs[:count], [next(found) if f else Zero(tangent_aval(aval_of(o)))
                              for f, o in zip(force, outs[:count], strict=True)]

    def transpose(self, cts: Sequence[Any], index: Any, *args: Any, branches: Branches, linear: Any) -> list[Any]:
        lin = tuple(isinstance(a, Linear) for a in args)
        nonzero = tuple(not isinstance(ct, Zero) for ct in cts)
        bodies = [_transposed(b, lin, nonzero) for b in branches]
        known = [a for a in args if not isinstance(a, Linear)]
        outs = iter(self.call(bodies, index, [*known, *(ct for ct in cts if not isinstance(ct, Zero))]))
        return [None, *(next(outs) if is_lin else None for is_lin in lin)]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, branches: Branches,
              linear: Any) -> tuple[Any, Any]:
        if dims[0] is not None:
            return batch_lanes(self, size, args, dims, {"branches": branches, "linear": linear})
        in_dims = tuple(dims[1:])
        mapped = _union([d is not None for d in batch_jaxpr(b, size, in_dims)[1]] for b in branches)
        force = tuple(0 if m else None for m in mapped)
        bodies = [batch_jaxpr(b, size, in_dims, force)[0] for b in branches]
        return self.call(bodies, args[0], args[1:]), list(force)

    def dce(self, eqn: Eqn, used: Sequence[bool]) -> Eqn:
        """The equation with the results and operands that are used."""
        index, *operands = eqn.invars
        shrunk = [dce_jaxpr(b.jaxpr, used) for b in eqn.params["branches"]]
        keep = _union(u for _, u in shrunk)
        branches = []
        for b, (jaxpr, _) in zip(eqn.params["branches"], shrunk, strict=True):
            values = dict(zip(b.jaxpr.constvars, b.consts, strict=True))
            jaxpr = jaxpr.replace(invars=[v for v, k in zip(b.jaxpr.invars, keep, strict=True) if k])
            branches.append(ClosedJaxpr(jaxpr, [values[v] for v in jaxpr.constvars]))
        return eqn.replace(params={"branches": tuple(branches), "linear": (False,) * sum(keep)},
                           invars=[index, *(v for v, k in zip(operands, keep, strict=True) if k)],
                           outvars=[v for v, u in zip(eqn.outvars, used, strict=True) if u])


cond_p = Cond("cond")


def batch_lanes(primitive: Primitive, size: int, args: Sequence[Any], dims: Sequence[int | None],
                params: dict[str, Any]) -> tuple[Any, Any]:
    """A primitive applied to each lane on its own: a loop over lanes without a carry."""
    mapped = [d is not None for d in dims]
    xs = [move_to(a, d, 0, size) for a, d in zip(args, dims, strict=True) if d is not None]
    consts = [a for a, d in zip(args, dims, strict=True) if d is None]

    def lane(*operands: Any) -> list[Any]:
        shared, own = iter(operands[: len(consts)]), iter(operands[len(consts):])
        return primitive.bind(*(next(own) if m else next(shared) for m in mapped), **params)

    avals = [aval_of(c) for c in consts] + [(a := aval_of(x)).update(shape=a.shape[1:]) for x in xs]
    jaxpr, closed_over = trace_to_jaxpr(lane, avals)
    outs = scan_p.call(ClosedJaxpr(jaxpr, closed_over), consts, [], xs, length=size, reverse=False, unroll=1)
    return outs, [0] * len(outs)


def _union(masks: Any) -> tuple[bool, ...]:
    return tuple(any(column) for column in zip(*masks, strict=True))


def _share(residuals: Sequence[Sequence[ShapedArray]]) -> tuple[list[ShapedArray], list[list[int]]]:
    """Slots that hold the residuals of any one branch, and the slot of each residual of each branch."""
    slots: list[ShapedArray] = []
    places: list[list[int]] = []
    for avals in residuals:
        free = list(range(len(slots)))
        place = []
        for aval in avals:
            match = next((k for k in free if (slots[k].shape, slots[k].dtype) == (aval.shape, aval.dtype)), None)
            if match is None:
                match = len(slots)
                slots.append(aval.strip_weak_type())
            else:
                free.remove(match)
            place.append(match)
        places.append(place)
    return slots, places


def _with_slots(closed: ClosedJaxpr, count: int, slots: Sequence[ShapedArray], place: Sequence[int]) -> ClosedJaxpr:
    def fun(*args: Any) -> list[Any]:
        outs = eval_jaxpr(closed.jaxpr, closed.consts, *args)
        own = dict(zip(place, outs[count:], strict=True))
        return [*outs[:count], *(own[k] if k in own else instantiate(Zero(a)) for k, a in enumerate(slots))]

    return ClosedJaxpr(*trace_to_jaxpr(fun, closed.in_avals))


def _from_slots(closed: ClosedJaxpr, slots: Sequence[ShapedArray], place: Sequence[int]) -> ClosedJaxpr:
    invars = closed.jaxpr.invars
    taken: list[Var] = [Var(a) for a in slots]
    for k, var in zip(place, invars, strict=False):
        taken[k] = var
    return closed.replace(jaxpr=closed.jaxpr.replace(invars=[*taken, *invars[len(place):]]))


@weak_cache
def _transposed(closed: ClosedJaxpr, lin: tuple[bool, ...], nonzero: tuple[bool, ...]) -> ClosedJaxpr:
    known = [a for a, is_lin in zip(closed.in_avals, lin, strict=True) if not is_lin]
    ct_avals = [a for a, nz in zip(closed.out_avals, nonzero, strict=True) if nz]

    def fun(*args: Any) -> list[Any]:
        values, given = iter(args[: len(known)]), iter(args[len(known):])
        operands = [Linear(a) if is_lin else next(values) for a, is_lin in zip(closed.in_avals, lin, strict=True)]
        cts = [next(given) if nz else Zero(a) for a, nz in zip(closed.out_avals, nonzero, strict=True)]
        found = backward(closed.jaxpr, closed.consts, operands, cts)
        return [instantiate(ct) for ct, is_lin in zip(found, lin, strict=True) if is_lin]

    return ClosedJaxpr(*trace_to_jaxpr(fun, [*known, *ct_avals]))


def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any, operand: Any = None) -> Any:
    """Calls one of `branches` on the operands: number `index`, clamped into range.

    Raises:
      TypeError: for an index that is not a scalar integer, or branches whose outputs differ in type.
      ValueError: for no branches.
    """
    if not all(map(callable, branches)):
        raise TypeError("lax.switch: branches argument should be a sequence of callables.")
    if operand is not None:
        operands = (operand,)
    if len(branches) == 0:
        raise ValueError("Empty branch sequence")
    aval = aval_of(index)
    if aval.shape:
        raise TypeError(f"Branch index must be scalar, got {index} of shape {aval.shape}.")
    if not dtypes.issubdtype(aval.dtype, np.integer):
        raise TypeError(f"Index type must be an integer, got {index} as {dtypes.name(aval.dtype)}")
    if len(branches) == 1:
        return branches[0](*operands)
    index = convert(index, np.dtype(np.int32))
    last = np.int32(len(branches) - 1)
    return _choose(clamp(np.int32(0), index, last), branches, operands, [f"branch {k}" for k in range(len(branches))],
                   "switch")


def cond(pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any,
         operand: Any = None, linear: Any = None) -> Any:
    """`true_fun(*operands)` if `pred` else `false_fun(*operands)`; only the one taken runs.

    Args:
      pred: a scalar (a bool, or a number that counts as true unless it is 0).
      true_fun, false_fun: functions of the operands with outputs of equal structure and types.

    Raises:
      TypeError: for a predicate that is not a scalar, or branches whose outputs differ in type.
    """
    if not (callable(true_fun) and callable(false_fun)):
        raise TypeError("lax.cond: true_fun and false_fun arguments should be callable.")
    if operand is not None:
        operands = (operand,)
    aval = aval_of(pred)
    if aval.shape:
        raise TypeError(f"Pred must be a scalar, got {pred} of shape {aval.shape}.")
    if dtypes.issubdtype(aval.dtype, np.complexfloating) or isinstance(aval.dtype, dtypes.ExtendedDType):
        raise TypeError(f"Pred type must be either boolean or number, got {aval.str_short()}.")
    if aval.dtype != np.dtype(bool):
        pred = convert(pred, np.dtype(bool))
    index = convert(pred, np.dtype(np.int32))
    return _choose(index, (false_fun, true_fun), operands, ["false_fun", "true_fun"], "cond")


def _choose(index: Any, functions: Sequence[Callable[..., Any]], operands: tuple[Any, ...], names: Sequence[str],
            what: str) -> Any:
    leaves, in_tree = tree.flatten(operands)
    avals = [aval_of(x) for x in leaves]
    traced = [trace_function(f, in_tree, avals, what) for f in functions]
    (first, _, out_tree), *others = traced
    for k, (other, _, other_tree) in enumerate(others, 1):
        about = (f"\n\n{names[0]} is {fun_name(functions[0])}\n{names[k]} is {fun_name(functions[k])}\n\n")
        if other_tree != out_tree:
            raise TypeError(f"{what} branch outputs must have the same pytree structure, but they differ:{about}"
                            f"{names[0]} output has structure {out_tree} but {names[k]} output has structure "
                            f"{other_tree}."
                            f"\n\nRevise {names[0]} and/or {names[k]} so that they have the same pytree structure.")
        _check_types(first, other, out_tree, names[0], names[k], about, what)
    consts = [c for _, cs, _ in traced for c in cs]
    branches, start = [], 0
    for closed, cs, _ in traced:
        branches.append(_spread(closed, [aval_of(c) for c in consts], start, len(cs)))
        start += len(cs)
    return tree.unflatten(out_tree, cond_p.call(branches, index, [*consts, *leaves]))


def _check_types(first: ClosedJaxpr, other: ClosedJaxpr, out_tree: Any, name: str, other_name: str, about: str,
                 what: str) -> None:
    lines = []
    paths = tree.leaves_with_path(tree.unflatten(out_tree, range(len(first.out_avals))))
    for (path, _), a, b in zip(paths, first.out_avals, other.out_avals, strict=True):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            kinds = [k for k, differ in (("shapes", a.shape != b.shape), ("dtypes", a.dtype != b.dtype)) if differ]
            lines.append(f"The output of {name}{tree.keystr(path)} has type {a.str_short()} but the corresponding "
                         "output of "
                         f"{other_name} has type {b.str_short()}, so the {' and '.join(kinds)} do not match.")
    if lines:
        raise TypeError(f"{what} branches must have equal output types but they differ.{about}" + "\n".join(lines)
                        + f"\n\nRevise {name} and/or {other_name} so that all output types match.")


def _spread(closed: ClosedJaxpr, const_avals: Sequence[ShapedArray], start: int, count: int) -> ClosedJaxpr:
    """A branch as a function of the constants of all branches."""
    consts: list[Var] = [Var(a) for a in const_avals]
    consts[start: start + count] = closed.jaxpr.invars[:count]
    return closed.replace(jaxpr=closed.jaxpr.replace(invars=[*consts, *closed.jaxpr.invars[count:]]))
