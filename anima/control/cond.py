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
from anima.control.common import all_varying, differences, share_consts, structure_difference, trace_function
from anima.control.scan import batch_lanes
from anima.core import dtypes
from anima.core.avals import ShapedArray
from anima.core.axes import joins_lanes, manual_names, name_of, varying
from anima.core.jaxpr import ClosedJaxpr, Eqn, Var
from anima.core.primitive import Inner, Linear, Work, Zero
from anima.core.refs import Ref
from anima.core.stage import StageTrace, eval_jaxpr, eval_numpy, trace_to_jaxpr
from anima.core.trace import Trace, aval_of, under
from anima.ops.broadcast import broadcast_in_dim, instantiate, shape_of
from anima.ops.elementwise import clamp, convert, select_n
from anima.ops.index import index_operand, narrow_index
from anima.ops.shape import batch_at_front
from anima.transforms.checkpoint import Policy, kept_apart
from anima.transforms.dce import dce_jaxpr
from anima.transforms.discharge import Discharged, Stateful, discharge_jaxpr, open_jaxpr
from anima.transforms.forward import jvp_jaxpr
from anima.transforms.linearize import fill, linearize_apart, linearize_jaxpr
from anima.transforms.partition import Left, Partition
from anima.transforms.reshard import Cut
from anima.transforms.taylor import Term, flat, grouped, taylor_jaxpr
from anima.transforms.transpose import backward
from anima.transforms.vmap import batch_jaxpr
from anima.util import name_and_place, weak_cache, wraps

Branches = tuple[ClosedJaxpr, ...]


class Cond(Stateful):
    """Operands: an int32 scalar index in range, then those of every branch."""

    multiple_results = True

    def call(self, branches: Sequence[ClosedJaxpr], index: Any, operands: Sequence[Any]) -> list[Any]:
        """Binds with the parameters that follow from the operands."""
        if manual_names():  # where devices choose differently, all that depends on it differs
            names = aval_of(index).vma
            outs = [a.update(vma=a.vma.union(*(b.out_avals[k].vma for b in branches)))
                    for k, a in enumerate(branches[0].out_avals)]
            if names or any(a.vma != b.out_avals[k].vma for b in branches for k, a in enumerate(outs)):
                branches = [all_varying(b, names, outs) for b in branches]
                operands = [x if isinstance(x, Ref) else varying(x, names) for x in operands]
        return self.bind(index, *operands, branches=tuple(branches), linear=(False,) * len(operands))

    def infer(self, index: ShapedArray, *avals: ShapedArray, branches: Branches, **params: Any) -> list[ShapedArray]:
        return list(branches[0].out_avals)  # also where others say that a result is weakly typed, or is not

    def inner(self, params: dict[str, Any]) -> Sequence[Inner]:
        return tuple(Inner(branch, given=1) for branch in params["branches"])

    def distribute(self, partition: Partition, operands: Sequence[Cut], results: Sequence[Cut], *, branches: Branches,
                   **params: Any) -> tuple[dict[str, Any], list[Left], list[Left]]:
        """All devices choose the same branch, since scalars are whole."""
        new = {"branches": tuple(partition.program(b, operands[1:], results) for b in branches), **params}
        return new, list(map(Left, operands)), list(map(Left, results))

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             **params: Any) -> Work:
        return max(programs, key=sum)

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
        return outs[:count], fill(force, outs[count:], outs[:count])

    def taylor(self, order: int, terms: Sequence[Term], *, branches: Branches, linear: Any) -> list[Term]:
        """The choice between branches on operands with their Taylor coefficients."""
        given = tuple(len(t) > 1 for t in terms[1:])
        force = _union(taylor_jaxpr(b, order, given)[1] for b in branches)
        bodies = [taylor_jaxpr(b, order, given, force)[0] for b in branches]
        return grouped(self.call(bodies, terms[0][0], flat(terms[1:])), force, order)

    def linearize(self, parent: Trace, recorder: StageTrace, primals: Sequence[Any], tangents: Sequence[Any], *,
                  branches: Branches, linear: Any) -> tuple[list[Any], list[Any]]:
        """Runs the branch that is taken, keeping its residuals; records the choice between the linear parts."""
        nonzero = tuple(not isinstance(t, Zero) for t in tangents[1:])
        force = _union(linearize_jaxpr(b, nonzero)[2] for b in branches)
        parts = [linearize_apart(b, nonzero, force) for b in branches]
        count = len(force)
        slots, places = _share([p.out_avals[count:] for p, *_ in parts])
        given = [t for t in tangents[1:] if not isinstance(t, Zero)]
        forward = [_with_slots(p, count, slots, place) for (p, *_), place in zip(parts, places, strict=True)]
        outs = under(parent, self.call, forward, primals[0], primals[1:])
        if not any(force):
            return outs[:count], fill(force, (), outs[:count])
        reads = sorted({k for *_, handed_on in parts for k in handed_on if k is not None})
        read = {k: branches[0].in_avals[k] for k in reads}
        backs = [_from_slots(t, slots, place, read, handed_on)
                 for (_, t, _, handed_on), place in zip(parts, places, strict=True)]
        found = under(recorder, self.call, backs, primals[0],
                      [*outs[count:], *(primals[1 + k] for k in reads), *given])
        return outs[:count], fill(force, found, outs[:count])

    def transpose(self, cts: Sequence[Any], index: Any, *args: Any, branches: Branches, linear: Any) -> list[Any]:
        lin = tuple(isinstance(a, Linear) for a in args)
        nonzero = tuple(not isinstance(ct, Zero) for ct in cts)
        bodies = [_transposed(b, lin, nonzero) for b in branches]
        known = [a for a in args if not isinstance(a, Linear)]
        outs = iter(self.call(bodies, index, [*known, *(ct for ct in cts if not isinstance(ct, Zero))]))
        return [None, *(next(outs) if is_lin else None for is_lin in lin)]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, branches: Branches,
              linear: Any) -> tuple[Any, Any]:
        in_dims = tuple(dims[1:])
        if dims[0] is not None and any(handed := _handed_on(branches, in_dims)):
            return self._batch_rest(size, args, dims, branches, handed)
        if dims[0] is not None and joins_lanes(self, {"branches": branches}, name_of(size)):
            return _select_lanes(size, batch_at_front(args[0], dims[0], size), args[1:], in_dims, branches)
        if dims[0] is not None:
            return batch_lanes(self, size, args, dims, {"branches": branches, "linear": linear})
        mapped = _union([d is not None for d in batch_jaxpr(b, size, in_dims)[1]] for b in branches)
        force = tuple(0 if m else None for m in mapped)
        bodies = [batch_jaxpr(b, size, in_dims, force)[0] for b in branches]
        return self.call(bodies, args[0], args[1:]), list(force)

    def _batch_rest(self, size: int, args: Sequence[Any], dims: Sequence[int | None], branches: Branches,
                    handed: Sequence[int | None]) -> tuple[list[Any], list[int | None]]:
        """`batch` of the results that are not operands which all lanes, and branches, hand on."""
        chosen = tuple(b.replace(jaxpr=b.jaxpr.replace(outvars=[
            v for v, place in zip(b.jaxpr.outvars, handed, strict=True) if place is None])) for b in branches)
        outs, out_dims = self.batch(size, args, dims, branches=chosen, linear=(False,) * (len(args) - 1))
        found = iter(zip(outs, out_dims, strict=True))
        pairs = [next(found) if place is None else (args[place], None) for place in handed]
        return [out for out, _ in pairs], [dim for _, dim in pairs]

    def with_operands(self, args: Sequence[Any], params: dict[str, Any],
                      refs: tuple[Ref, ...]) -> tuple[Sequence[Any], dict[str, Any]]:
        new = {"branches": tuple(open_jaxpr(b, refs) for b in params["branches"]),
               "linear": (False,) * (len(refs) + len(args) - 1)}
        return [args[0], *refs, *args[1:]], {**params, **new}

    def discharge(self, args: Sequence[Any], values: Sequence[Any], own: tuple[bool, ...],
                  params: dict[str, Any]) -> Discharged:
        """What some branch writes to is a result of all."""
        parts = [discharge_jaxpr(b, own[1:]) for b in params["branches"]]
        changed = sorted(set().union(*(c for _, c in parts)))
        count = len(params["branches"][0].out_avals)
        branches = []
        for closed, own_changes in parts:
            jaxpr = closed.jaxpr
            ends = {k: jaxpr.outvars[count + i] for i, k in enumerate(own_changes)}
            branches.append(closed.replace(jaxpr=jaxpr.replace(
                outvars=[*jaxpr.outvars[:count], *(ends.get(k, jaxpr.invars[k]) for k in changed)])))
        return values, {**params, "branches": tuple(branches)}, {1 + k: count + i for i, k in enumerate(changed)}

    def dce(self, eqn: Eqn, used: Sequence[bool]) -> Eqn:
        """The equation with the results and operands that are used."""
        index, *operands = eqn.invars
        shrunk = [dce_jaxpr(b.jaxpr, used) for b in eqn.params["branches"]]
        keep = _union(u for _, u in shrunk)
        branches = []
        for b, (jaxpr, _) in zip(eqn.params["branches"], shrunk, strict=True):
            branches.append(b.part(jaxpr.replace(invars=[v for v, k in zip(b.jaxpr.invars, keep, strict=True) if k])))
        return eqn.replace(params={"branches": tuple(branches), "linear": (False,) * sum(keep)},
                           invars=[index, *(v for v, k in zip(operands, keep, strict=True) if k)],
                           outvars=[v for v, u in zip(eqn.outvars, used, strict=True) if u])

    def keep(self, eqn: Eqn, policy: Policy) -> tuple[Eqn, Eqn, list[Var]]:
        """The choice that also gives what a checkpoint's policy keeps of the branch taken, the choice that reads that
        instead of computing it, and what is kept."""
        branches, count = eqn.params["branches"], len(eqn.outvars)
        parts = [kept_apart(b, policy) for b in branches]
        slots, places = _share([[v.aval for v in kept] for *_, kept in parts])
        new = [Var(a) for a in slots]
        cuts = []
        for (_, cut, kept), place in zip(parts, places, strict=True):
            taken = [Var(a) for a in slots]
            for k, v in zip(place, kept, strict=True):
                taken[k] = v
            operands = cut.jaxpr.invars[: len(cut.jaxpr.invars) - len(kept)]
            cuts.append(cut.replace(jaxpr=cut.jaxpr.replace(invars=[*operands, *taken])))
        stays = [any(cut.jaxpr.outvars[k] in kept for _, cut, kept in parts) for k in range(count)]
        whole = tuple(_with_slots(w, count, slots, place) for (w, *_), place in zip(parts, places, strict=True))
        invars = [*eqn.invars, *new]
        again = eqn.replace(invars=invars, params={"branches": tuple(cuts), "linear": (False,) * (len(invars) - 1)})
        values = [v for v, stay in zip(eqn.outvars, stays, strict=True) if stay]
        return (eqn.replace(params={**eqn.params, "branches": whole}, outvars=[*eqn.outvars, *new]),
                self.dce(again, [not stay for stay in stays]), [*values, *new])


cond_p = Cond("cond")


def _handed_on(branches: Branches, dims: Sequence[int | None]) -> list[int | None]:
    """For each result, which operand it is, if it is one that is not mapped, and the same in all branches."""
    places: list[int | None] = []
    for results in zip(*(b.jaxpr.outvars for b in branches), strict=True):
        found = {b.jaxpr.invars.index(v) if v in b.jaxpr.invars else None
                 for b, v in zip(branches, results, strict=True)}
        place = found.pop()
        places.append(None if found or place is None or dims[place] is not None else 1 + place)
    return places


def _select_lanes(size: int, index: Any, operands: Sequence[Any], dims: tuple[int | None, ...],
                  branches: Branches) -> tuple[list[Any], list[int]]:
    """All branches on all lanes, which exchange values in them, and for each lane the results of its own."""
    all_outs = []
    for b in branches:
        stacked, _ = batch_jaxpr(b, size, dims, (0,) * len(b.out_avals))
        all_outs.append(eval_jaxpr(stacked.jaxpr, stacked.consts, *operands))
    outs = [select_n(broadcast_in_dim(index, shape_of(cases[0]), (0,)), *cases) if len(cases) > 1 else cases[0]
            for cases in zip(*all_outs, strict=True)]
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


def _from_slots(closed: ClosedJaxpr, slots: Sequence[ShapedArray], place: Sequence[int],
                read: dict[int, ShapedArray], handed_on: Sequence[int | None]) -> ClosedJaxpr:
    """A linear part as a function of all slots and all operands that are `read` in place of its own residuals."""
    invars, own = closed.jaxpr.invars, iter(place)
    taken: list[Var] = [Var(a) for a in slots]
    operands = {k: Var(a) for k, a in read.items()}
    for k, var in zip(handed_on, invars, strict=False):
        if k is None:
            taken[next(own)] = var
        else:
            operands[k] = var
    return closed.replace(jaxpr=closed.jaxpr.replace(
        invars=[*taken, *operands.values(), *invars[len(handed_on):]]))


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


NO_OPERAND: Any = object()  # None is an operand like any other


def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any, operand: Any = NO_OPERAND) -> Any:
    """Calls one of `branches` on the operands: number `index`, clamped into range.

    Raises:
      TypeError: for an index that is not a scalar integer, or branches whose outputs differ in type.
      ValueError: for no branches.
    """
    return choose(*switch_arguments(index, branches, operands, operand), "switch")


def cond(pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any,
         operand: Any = NO_OPERAND, linear: Any = None) -> Any:
    """`true_fun(*operands)` if `pred` else `false_fun(*operands)`; only the one taken runs.

    Args:
      pred: a scalar (a bool, or a number that counts as true unless it is 0).
      true_fun, false_fun: functions of the operands with outputs of equal structure and types.
      operand: a single operand, by name.

    The old form `cond(pred, true_operand, true_fun, false_operand, false_fun)` is understood too.

    Raises:
      TypeError: for a predicate that is not a scalar, or branches whose outputs differ in type.
    """
    return choose(*cond_arguments(pred, true_fun, false_fun, operands, operand), "cond")


def cond_arguments(pred: Any, true_fun: Any, false_fun: Any, operands: tuple[Any, ...],
                   operand: Any) -> tuple[Any, Sequence[Callable[..., Any]], tuple[Any, ...]]:
    """The index, branches and operands that a call of `cond` stands for, checked."""
    if len(operands) == 2 and callable(operands[1]) and callable(false_fun) and not callable(true_fun):
        on_true, on_false = false_fun, operands[1]  # the old form: each function with its own operand
        operands = ((true_fun, operands[0]),)
        true_fun, false_fun = wraps(on_true)(lambda x: on_true(x[0])), wraps(on_false)(lambda x: on_false(x[1]))
    if not (callable(true_fun) and callable(false_fun)):
        raise TypeError("lax.cond: true_fun and false_fun arguments should be callable.")
    operands = _with_operand(operands, operand)
    if pred is None:
        raise TypeError("cond predicate is None")
    aval = aval_of(pred)
    if aval.shape:
        raise TypeError(f"Pred must be a scalar, got {pred} of shape {aval.shape}. Fix: pred.any() or pred.all(); or "
                        "anima.numpy.where, which chooses element by element.")
    if dtypes.issubdtype(aval.dtype, np.complexfloating) or isinstance(aval.dtype, dtypes.ExtendedDType):
        raise TypeError(f"Pred type must be either boolean or number, got {aval.str_short()}.")
    return convert(convert(pred, np.dtype(bool)), np.dtype(np.int32)), (false_fun, true_fun), operands


def switch_arguments(index: Any, branches: Sequence[Callable[..., Any]], operands: tuple[Any, ...],
                     operand: Any) -> tuple[Any, Sequence[Callable[..., Any]], tuple[Any, ...]]:
    """The index in range, branches and operands of a call of `switch`, checked."""
    if not all(map(callable, branches)):
        raise TypeError("lax.switch: branches argument should be a sequence of callables.")
    operands = _with_operand(operands, operand)
    if len(branches) == 0:
        raise ValueError("Empty branch sequence")
    aval = aval_of(index)
    if aval.shape:
        raise TypeError(f"Branch index must be scalar, got {index} of shape {aval.shape}.")
    if not dtypes.issubdtype(aval.dtype, np.integer):
        raise TypeError(f"Index type must be an integer, got {index} as {dtypes.name(aval.dtype)}")
    if len(branches) > 1:
        index = clamp(np.int32(0), narrow_index(index_operand(index)), np.int32(len(branches) - 1))
    return index, tuple(branches), operands


def _with_operand(operands: tuple[Any, ...], operand: Any) -> tuple[Any, ...]:
    if operand is NO_OPERAND:
        return operands
    if operands:
        raise TypeError("if 'operand' keyword is passed then no positional operands can be passed, got "
                        f"operand={operand} and positional operands {operands}")
    return (operand,)


def choose(index: Any, functions: Sequence[Callable[..., Any]], operands: tuple[Any, ...], what: str) -> Any:
    """Records, or runs, a choice between functions; `what` is who asks, for errors."""
    if len(functions) == 1:
        return functions[0](*operands)
    branches, args, out_tree = branch_programs(functions, operands, what)
    return tree.unflatten(out_tree, cond_p.call(branches, index, args))


def branch_programs(functions: Sequence[Callable[..., Any]], operands: tuple[Any, ...],
                    what: str) -> tuple[list[ClosedJaxpr], list[Any], Any]:
    """The functions as programs of the same flat operands, these operands, and the structure of the results."""
    names = ["false_fun", "true_fun"] if what == "cond" else [f"branch {k}" for k in range(len(functions))]
    leaves, in_tree = tree.flatten(operands)
    avals = [aval_of(x) for x in leaves]
    order = (1, 0) if what == "cond" else range(len(functions))  # true_fun is the first to be traced, and to be named
    once = {}  # a function that stands for several branches is called for one of them
    for k in order:
        f = functions[k]
        if id(f) not in once:
            once[id(f)] = trace_function(f, in_tree, avals, what)
    traced = [once[id(f)] for f in functions]
    first, *others = (traced[k] for k in order)
    for k, other in zip(order[1:], others, strict=True):
        _check_same(what, (first, other), [names[order[0]], names[k]], [functions[order[0]], functions[k]])
    branches, consts = share_consts([(closed, cs) for closed, cs, _ in traced])
    return branches, [*consts, *leaves], first[2]


def _check_same(what: str, traced: Sequence[tuple[ClosedJaxpr, Any, Any]], names: Sequence[str],
                functions: Sequence[Callable[..., Any]]) -> None:
    """TypeError unless two branches give the same structure and types."""
    (one, _, one_tree), (two, _, two_tree) = traced
    about = "".join(f"\n{name} is {name_and_place(f)}" for name, f in zip(names, functions, strict=True))
    revise = f"Revise {names[0]} and/or {names[1]} so that"
    if one_tree != two_tree:
        path, first, second = structure_difference(one_tree, two_tree)
        raise TypeError(f"{what} branch outputs must have the same pytree structure, but they differ:\n{about}\n\n"
                        f"{names[0]} output{path} is {first} but {names[1]} output{path} is {second}.\n\n{revise} they "
                        "have the same pytree structure.")
    lines = differences(one_tree, one.out_avals, two.out_avals, f"output of {names[0]}",
                        f"the corresponding output of {names[1]}")
    if lines:
        raise TypeError(f"{what} branches must have equal output types but they differ.\n{about}\n\n" + "\n".join(lines)
                        + f"\n\n{revise} all output types match.")
