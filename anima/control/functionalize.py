"""Checks as results: a program whose checks fail silently, and which tells the first failure beside its results.

    { lambda ; a. let b = gt a 0; c = select_n b 0 -1; check c a; d = log a in (d,) }
    { lambda ; a. let b = gt a 0; c = select_n b 0 -1; d = log a in (c, a, d) }

Each program that an equation holds becomes one whose results begin with an error state of its own, and where programs
meet, states are merged: whichever failed first stays. Loops carry their state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from anima.control.automatic import (
    Kinds,
    check_frontier,
    check_number,
    check_operands,
    check_results,
    kept_carries,
)
from anima.control.checks import CHECK, SOME, Check, ErrorLayout, ErrorState, FailedCheckError, NaNError, SomeError
from anima.control.cond import Cond, cond_p
from anima.control.scan import Scan
from anima.control.while_loop import WhileLoop
from anima.core.avals import ShapedArray, tangent_aval
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Literal, Var
from anima.core.primitive import Zero
from anima.core.stage import bind_eqn, close, eval_jaxpr, literal_array, trace_to_jaxpr
from anima.core.state import current
from anima.core.trace import aval_of
from anima.errors import line_of
from anima.ops.broadcast import scalar
from anima.ops.elementwise import convert, eq, or_, select_n, stop_gradient
from anima.transforms.call import ProgramCall, dce_closed
from anima.transforms.custom_calls import CustomJVPCall, CustomVJPCall, refuse_closed_over
from anima.transforms.custom_vmap import CustomVmapCall
from anima.transforms.linearize import fill
from anima.transforms.vmap import batch_jaxpr
from anima.util import deeper, split_list, weak_cache

Rule = Callable[[ErrorState, Eqn, Sequence[Any], frozenset[Any]], Sequence[Any]]


def run(closed: ClosedJaxpr, args: Sequence[Any], kinds: Kinds,
        later: Sequence[int] = ()) -> tuple[ErrorState, list[Any]]:
    """Applies a program under the current trace: what failed, of these kinds of checks, and the results.

    With `SomeError` among the kinds, results at `later` are not looked at for NaNs.
    """
    state = ErrorState(brief=SomeError in kinds)
    return state, _run(state, closed, args, frozenset(kinds), later)


def _run(state: ErrorState, closed: ClosedJaxpr, args: Sequence[Any], kinds: frozenset[Any],
         later: Sequence[int] = ()) -> list[Any]:
    env: dict[Var, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    env.update(zip(closed.jaxpr.invars, args, strict=True))

    def read(atom: Atom) -> Any:
        return literal_array(atom) if isinstance(atom, Literal) else env[atom]

    before = current.source
    try:
        for eqn in closed.eqns:
            current.source = eqn.source
            outs = _rule(eqn)(state, eqn, list(map(read, eqn.invars)), kinds)
            env.update(zip(eqn.outvars, outs, strict=True))
        if state.brief and NaNError in kinds:
            outvars = [closed.jaxpr.outvars[k] for k in later]
            check_frontier(state, closed.jaxpr, lambda eqn: _rule(eqn) is _operation, outvars, read)
    finally:
        current.source = before
    return [read(a) for a in closed.jaxpr.outvars]


@weak_cache
def functionalized(closed: ClosedJaxpr, kinds: frozenset[Any],
                   later: tuple[int, ...] = ()) -> tuple[ClosedJaxpr | None, ErrorLayout]:
    """The program whose results begin with an error state, and what that holds; None if there is nothing to check."""
    found: list[ErrorLayout] = []

    def fun(*args: Any) -> list[Any]:
        state, outs = run(closed, args, kinds, later)
        found.append(state.layout)
        return [*state.values, *outs]

    with deeper():
        new = ClosedJaxpr(*trace_to_jaxpr(fun, closed.in_avals))
    return (new if found[0].sites or CHECK in closed.effects else None), found[0]


def _checked(closed: ClosedJaxpr, kinds: frozenset[Any],
             later: tuple[int, ...] = ()) -> tuple[ClosedJaxpr, ErrorLayout]:
    new, layout = functionalized(closed, kinds, later)
    return new or closed, layout


def _later(state: ErrorState, body: ClosedJaxpr, first: int, count: int, kinds: frozenset[Any]) -> tuple[int, ...]:
    """The carries of a loop in which a NaN is to be looked for after the loop."""
    return kept_carries(body.jaxpr, first, count) if state.brief and NaNError in kinds else ()


def _traced(fun: Callable[..., Sequence[Any]], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
    return ClosedJaxpr(*trace_to_jaxpr(fun, avals))


def first_failure(closed: ClosedJaxpr, args: Sequence[Any], kinds: frozenset[Any],
                  later: Callable[[ClosedJaxpr, Sequence[Any]], list[Any]]) -> tuple[ErrorLayout, list[Any]]:
    """The error state of a program and its results, for one that is compiled.

    Where that costs less, the program tells only whether something may have failed, and in case runs once more to tell
    what: always if there are loops or NaNs to look for, but not if it has effects. `later` applies that second program.
    """
    new, layout = functionalized(closed, kinds)
    loops = any(e.primitive.inner(e.params) for e in closed.eqns)
    twice = loops or any(site.kind is NaNError for site in layout.sites)
    if not layout.sites or closed.effects - {CHECK} or not twice:
        state, outs = run(closed, args, kinds)
        return state.layout, [*state.values, *outs]
    assert new is not None
    state, outs = run(closed, args, kinds | {SomeError})
    if not state.values:  # of arrays without elements
        return layout, [*layout.no_error(), *outs]
    part, used = dce_closed(new, tuple(k < layout.size for k in range(len(new.out_avals))))
    needed = [x for x, u in zip(args, used, strict=True) if u]
    nothing = _traced(lambda *xs: layout.no_error(), part.in_avals)
    told = _traced(lambda *xs: later(part, xs), part.in_avals)
    index = convert(state.values[0], np.dtype(np.int32))
    known = cond_p.call([nothing, told], index, stop_gradient(needed))
    return layout, [*known, *outs]


# ---------------------------------------------------------------- operations

def _rule(eqn: Eqn) -> Rule:
    primitive = eqn.primitive
    for kind, rule in _RULES:
        if isinstance(primitive, kind):
            return rule
    if primitive.body is None:
        return _operation
    return _inlined if CHECK in eqn.effects else _opened if primitive.binds(eqn.params) else _operation


def _operation(state: ErrorState, eqn: Eqn, values: Sequence[Any], kinds: frozenset[Any]) -> Sequence[Any]:
    check_operands(state, eqn, values, kinds)
    outs = bind_eqn(eqn, values)
    if not state.brief:
        check_results(state, eqn, values, outs, kinds)
    return outs


def _check(state: ErrorState, eqn: Eqn, values: Sequence[Any], kinds: frozenset[Any]) -> Sequence[Any]:
    """The user's; those of kinds that are not asked for never fail."""
    layout: ErrorLayout = eqn.params["layout"]
    code, *slots = values
    wanted = [k for k, site in enumerate(layout.sites) if site.kind in kinds]
    if not wanted:
        return []
    if len(wanted) < len(layout.sites):
        holds = [eq(code, scalar(k, aval_of(code).dtype)) for k in wanted]
        some = holds[0]
        for other in holds[1:]:
            some = or_(some, other)
        code = select_n(some, scalar(-1, aval_of(code).dtype), code)
    state.merge(layout, [code, *slots])
    return []


def _inlined(state: ErrorState, eqn: Eqn, values: Sequence[Any], kinds: frozenset[Any]) -> Sequence[Any]:
    """An operation that stands for a program with checks of the user's."""
    assert eqn.primitive.body is not None
    return _run(state, eqn.primitive.body(eqn.params, [v.aval for v in eqn.invars]), values, kinds)


def _opened(state: ErrorState, eqn: Eqn, values: Sequence[Any], kinds: frozenset[Any]) -> Sequence[Any]:
    """A program for the parts of arrays: as `_inlined`, if there is something in it to check."""
    assert eqn.primitive.body is not None
    body = eqn.primitive.body(eqn.params, [v.aval for v in eqn.invars])
    rule = _operation if functionalized(body, kinds)[0] is None else _inlined
    return rule(state, eqn, values, kinds)


def _call(state: ErrorState, eqn: Eqn, values: Sequence[Any], kinds: frozenset[Any]) -> Sequence[Any]:
    new, layout = _checked(eqn.params["jaxpr"], kinds)
    return state.take(layout, eqn.primitive.bind(*values, **{**eqn.params, "jaxpr": new}))


# ---------------------------------------------------------------- branches and loops

def _cond(state: ErrorState, eqn: Eqn, values: Sequence[Any], kinds: frozenset[Any]) -> Sequence[Any]:
    total, branches = ErrorLayout(), []
    for branch in eqn.params["branches"]:
        new, layout = _checked(branch, kinds)
        branches.append((new, layout, len(total.sites)))
        total = total.plus(layout)

    def widened(new: ClosedJaxpr, layout: ErrorLayout, offset: int, *args: Any) -> list[Any]:
        outs = eval_jaxpr(new.jaxpr, new.consts, *args)
        return [*total.widened(layout, offset, outs[:layout.size]), *outs[layout.size:]]

    if total.sites:
        programs = [_traced(partial(widened, *branch), branch[0].in_avals) for branch in branches]
    else:
        programs = [new for new, *_ in branches]
    return state.take(total, eqn.primitive.call(programs, values[0], values[1:]))  # type: ignore[attr-defined]


def _scan(state: ErrorState, eqn: Eqn, values: Sequence[Any], kinds: frozenset[Any]) -> Sequence[Any]:
    p = eqn.params
    sizes = [p["num_consts"], p["num_carry"]]
    later = _later(state, p["jaxpr"], *sizes, kinds)
    checked, layout = _checked(p["jaxpr"], kinds, later)
    consts, carry, xs = split_list(values, sizes)
    options = {"length": p["length"], "reverse": p["reverse"], "unroll": p["unroll"]}
    call = eqn.primitive.call  # type: ignore[attr-defined]

    def step(*args: Any) -> list[Any]:
        own, carried, rest = split_list(args, [len(consts), layout.size])
        inner = ErrorState(layout, carried)
        outs = eval_jaxpr(checked.jaxpr, checked.consts, *own, *rest)
        inner.merge(layout, outs[:layout.size], 0)
        return [*inner.values, *outs[layout.size:]]

    if layout.sites:
        start, avals = layout.no_error(), p["jaxpr"].in_avals
        body = _traced(step, [*avals[:len(consts)], *map(aval_of, start), *avals[len(consts):]])
        carry = [*start, *carry]
    else:
        body = checked
    outs = state.take(layout, call(body, consts, carry, xs, **options))
    for k in later:
        check_number(state, outs[k])
    return outs


def _while(state: ErrorState, eqn: Eqn, values: Sequence[Any], kinds: frozenset[Any]) -> Sequence[Any]:
    """Where the condition has checks, it runs at the end of each step, and the loop carries its result."""
    p = eqn.params
    cond, cond_layout = _checked(p["cond_jaxpr"], kinds)
    sizes = [p["cond_nconsts"], p["body_nconsts"]]
    cond_consts, body_consts, carry = split_list(values, sizes)
    later = _later(state, p["body_jaxpr"], sizes[1], len(carry), kinds)
    body, body_layout = _checked(p["body_jaxpr"], kinds, later)
    offset, total = len(body_layout.sites), body_layout.plus(cond_layout)
    begin = list(total.no_error()) if total.sites else []
    leads = bool(cond_layout.sites)  # the carry begins with the condition
    if leads:
        outs = eval_jaxpr(cond.jaxpr, cond.consts, *cond_consts, *carry)
        begin = [outs[-1], *total.widened(cond_layout, offset, outs[:-1])]

    def step(*args: Any) -> list[Any]:
        of_cond, of_body, carried, xs = split_list(args, [sizes[0] * leads, sizes[1], len(begin)])
        inner = ErrorState(total, carried[leads:])
        outs = eval_jaxpr(body.jaxpr, body.consts, *of_body, *xs)
        inner.merge(body_layout, outs[:body_layout.size], 0)
        outs = outs[body_layout.size:]
        if not leads:
            return [*inner.values, *outs]
        found = eval_jaxpr(cond.jaxpr, cond.consts, *of_cond, *outs[:len(carry)])
        inner.merge(cond_layout, found[:-1], offset)
        return [found[-1], *inner.values, *outs]

    def going(*args: Any) -> list[Any]:
        own, carried, xs = split_list(args, [0 if leads else sizes[0], len(begin)])
        return carried[:1] if leads else eval_jaxpr(cond.jaxpr, cond.consts, *own, *xs)

    consts = [*cond_consts, *body_consts] if leads else body_consts
    whole = [*begin, *carry]
    avals = [*map(aval_of, begin), *p["body_jaxpr"].in_avals[sizes[1]:]]
    params = {**p, "cond_nconsts": 0 if leads else sizes[0], "body_nconsts": len(consts),
              "cond_jaxpr": _traced(going, [*([] if leads else map(aval_of, cond_consts)), *avals]),
              "body_jaxpr": _traced(step, [*map(aval_of, consts), *avals])}
    outs = eqn.primitive.bind(*([] if leads else cond_consts), *consts, *whole, **params)
    carries, steps, ys = eqn.primitive.outputs(outs, len(whole))  # type: ignore[attr-defined]
    finals = state.take(total, carries[leads:])
    for k in later:
        check_number(state, finals[k])
    return [*finals, *steps, *ys]


# ---------------------------------------------------------------- functions with rules of their own

def _custom_jvp(state: ErrorState, eqn: Eqn, values: Sequence[Any], kinds: frozenset[Any]) -> Sequence[Any]:
    p = eqn.params
    new, layout = functionalized(p["call_jaxpr"], kinds)
    if new is None:
        return bind_eqn(eqn, values)
    n, size = p["num_consts"], layout.size

    def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        refuse_closed_over(p["name"], tangents[:n], "custom_jvp")
        known = _state_of(new, size, primals)
        nonzero = [not isinstance(t, Zero) for t in tangents[n:]]
        mask: list[bool] = []

        def flat(*xs: Any) -> list[Any]:
            own, given = xs[:len(nonzero)], iter(xs[len(nonzero):])
            outs, moved = p["jvp"](own, [next(given) if nz else t for nz, t in zip(nonzero, tangents[n:], strict=True)])
            mask[:] = [not isinstance(t, Zero) for t in moved]
            return [*outs, *(t for t in moved if not isinstance(t, Zero))]

        found = _silent(flat, [*primals[n:], *(t for t in tangents[n:] if not isinstance(t, Zero))], layout, p["name"])
        outs = [*known, *found[:len(mask)]]
        return outs, fill([False] * size + mask, found[len(mask):], outs)

    return state.take(layout, eqn.primitive.bind(*values, **{**p, "call_jaxpr": new, "jvp": rule, "num_consts": 0}))


def _custom_vjp(state: ErrorState, eqn: Eqn, values: Sequence[Any], kinds: frozenset[Any]) -> Sequence[Any]:
    p = eqn.params
    new, layout = functionalized(p["call_jaxpr"], kinds)
    if new is None:
        return bind_eqn(eqn, values)
    n, size = p["num_consts"], layout.size

    def fwd(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any], Callable[..., Any]]:
        refuse_closed_over(p["name"], tangents[:n], "custom_vjp")
        known = _state_of(new, size, primals)
        made: list[Any] = []

        def flat(*xs: Any) -> list[Any]:
            outs, residuals, bwd = p["fwd"](xs, tangents[n:])
            made[:] = [len(outs), bwd]
            return [*outs, *residuals]

        found = _silent(flat, primals[n:], layout, p["name"])
        count, bwd = made

        def whole_bwd(residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
            return [*(Zero(tangent_aval(a)) for a in new.in_avals[:n]), *bwd(residuals, cts[size:])]

        return [*known, *found[:count]], found[count:], whole_bwd

    return state.take(layout, eqn.primitive.bind(*values, **{**p, "call_jaxpr": new, "fwd": fwd, "num_consts": 0}))


def _custom_vmap(state: ErrorState, eqn: Eqn, values: Sequence[Any], kinds: frozenset[Any]) -> Sequence[Any]:
    new, layout = functionalized(eqn.params["call"], kinds)
    if new is None:
        return bind_eqn(eqn, values)
    size = layout.size

    def rule(lanes: int, batched: Sequence[bool], *args: Any) -> tuple[list[Any], list[bool]]:
        stacked, _ = batch_jaxpr(new, lanes, tuple(0 if b else None for b in batched), (0,) * len(new.out_avals))
        known = _state_of(stacked, size, args)
        mask: list[bool] = []

        def flat(*xs: Any) -> Sequence[Any]:
            outs, mask[:] = eqn.params["rule"](lanes, batched, *xs)
            return outs

        found = _silent(flat, args, layout, "with custom_vmap")
        return [*known, *found], [True] * size + mask

    return state.take(layout, eqn.primitive.bind(*values, call=new, rule=rule))


def _state_of(program: ClosedJaxpr, size: int, args: Sequence[Any]) -> list[Any]:
    """What a function's own program says of failures, where a rule gives its results."""
    return eval_jaxpr(program.jaxpr, program.consts, *args)[:size]


def _silent(rule: Callable[..., Sequence[Any]], args: Sequence[Any], layout: ErrorLayout, name: str) -> Sequence[Any]:
    """Results of a rule that may call its function again: checks that are those of the function do nothing.

    Raises NotImplementedError for others: results have no place for their failures.
    """
    if all(site.kind not in (FailedCheckError, SomeError) for site in layout.sites):
        return rule(*args)
    jaxpr, consts = trace_to_jaxpr(rule, list(map(aval_of, args)))
    closed, outer = close(jaxpr, consts)
    new, found = functionalized(closed, frozenset((FailedCheckError,)))
    for site in found.sites:
        if layout is not SOME and site not in layout.sites:
            raise NotImplementedError(
                f"A check in a rule of the function {name} cannot tell of its failure where the function was "
                "transformed by checkify before. Fix: checkify(grad(f)) in place of grad(checkify(f)).\n  "
                f"{line_of(site.source) if site.source else ''}")
    program = new or closed
    return eval_jaxpr(program.jaxpr, program.consts, *outer, *args)[found.size:]


_RULES: list[tuple[type, Rule]] = [
    (Check, _check), (ProgramCall, _call), (Cond, _cond), (Scan, _scan), (WhileLoop, _while),
    (CustomJVPCall, _custom_jvp), (CustomVJPCall, _custom_vjp), (CustomVmapCall, _custom_vmap)]
