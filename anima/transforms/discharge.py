"""Programs without references: what a reference holds goes in as an argument and comes out as a result.

    { lambda ; a:Ref{f32[3]} b:f32[]. let c:f32[] <- a[0]; a[1] <- b in (c,) }
    { lambda ; a:f32[3] b:f32[]. let c:f32[] = ... a; d:f32[3] = scatter[...] a ... b in (c, d) }

The program is run again on cells (`core/refs.py`), which hold variables of the program that is being recorded. Loops,
branches and calls say in `discharge` how what their references hold gets in and out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anima.core.jaxpr import ClosedJaxpr, subjaxprs
from anima.core.placement import CONSTANT, pins
from anima.core.primitive import Primitive
from anima.core.refs import STATE, AbstractRef, Cell, Ref, check_alive, check_given_once
from anima.core.stage import eval_jaxpr, trace_to_jaxpr
from anima.core.state import current
from anima.core.trace import EVAL, Trace, under
from anima.util import weak_cache

Discharged = tuple[Sequence[Any], dict[str, Any], dict[int, int]]


class DischargeTrace(Trace):
    """Applies primitives under its parent; references made under it are cells."""

    label = "DischargeTrace"

    def __init__(self, parent: Trace, last: bool, known_as: dict[int, Any] | None = None):
        super().__init__(parent)
        self.last = last                # nothing will be transformed any more
        self.known_as = known_as or {}  # by their identity, references that have become arguments

    def process(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        return under(self.parent, primitive.bind, *(self.known_as.get(id(x), x) for x in args), **params)


def is_last(trace: Trace) -> bool:
    """Whether what is applied under a trace runs as it is: rules of custom derivatives have no use any more."""
    return trace is EVAL or (isinstance(trace, DischargeTrace) and trace.last)


def discharge_jaxpr(closed: ClosedJaxpr, refs: tuple[bool, ...]) -> tuple[ClosedJaxpr, tuple[int, ...]]:
    """The program that takes what references hold in place of those that `refs` marks, and gives what those that it
    writes to hold in the end, after its results. Second, which arguments these are. References that it makes are gone.
    """
    return _discharge(closed, refs, is_last(current.trace))


def without_refs(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program without the references that it makes itself."""
    return _discharge(closed, (False,) * len(closed.in_avals), False)[0] if STATE in closed.effects else closed


@weak_cache
def _discharge(closed: ClosedJaxpr, refs: tuple[bool, ...], last: bool) -> tuple[ClosedJaxpr, tuple[int, ...]]:
    changed: list[int] = []

    def fun(*args: Any) -> list[Any]:
        trace = DischargeTrace(current.trace, last)
        cells = [Cell(trace, x, aval) if r else x  # type: ignore[arg-type]
                 for x, aval, r in zip(args, closed.in_avals, refs, strict=True)]
        try:
            outs = under(trace, eval_jaxpr, closed.jaxpr, closed.consts, *cells)
        finally:
            trace.alive = False
        changed.extend(k for k, c in enumerate(cells) if refs[k] and c.changed)
        return [*outs, *(cells[k].whole() for k in changed)]

    avals = [a.inner_aval if r else a  # type: ignore[attr-defined]
             for a, r in zip(closed.in_avals, refs, strict=True)]
    jaxpr, consts = trace_to_jaxpr(fun, avals)
    return ClosedJaxpr(jaxpr, consts), tuple(changed)


@weak_cache
def refs_within(closed: ClosedJaxpr) -> tuple[Ref, ...]:
    """The references that a program closes over, programs in it too: rules of custom derivatives can do that."""
    found = {id(c): c for c in closed.consts if isinstance(c, Ref)}
    for eqn in closed.eqns if STATE in closed.effects else ():
        for inner in subjaxprs(eqn.params):
            if isinstance(inner, ClosedJaxpr):
                found |= {id(c): c for c in refs_within(inner)}
    return tuple(found.values())


def open_jaxpr(closed: ClosedJaxpr, refs: tuple[Ref, ...]) -> ClosedJaxpr:
    """The program with these references, which it closes over, as its first arguments."""
    return _open(closed, refs) if refs else closed  # what is remembered of a program must not refer to it


@weak_cache
def _open(closed: ClosedJaxpr, refs: tuple[Ref, ...]) -> ClosedJaxpr:
    def fun(*args: Any) -> list[Any]:
        trace = DischargeTrace(current.trace, False, {id(r): x for r, x in zip(refs, args, strict=False)})
        try:
            return under(trace, eval_jaxpr, closed.jaxpr, closed.consts, *args[len(refs):])
        finally:
            trace.alive = False

    return ClosedJaxpr(*trace_to_jaxpr(fun, [*(r.aval for r in refs), *closed.in_avals]))  # type: ignore[list-item]


def is_stateful(closed: Any) -> bool:
    """Whether a program takes references, or uses some."""
    return STATE in closed.effects or any(isinstance(a, AbstractRef) for a in closed.in_avals)


def discharged(closed: ClosedJaxpr) -> tuple[ClosedJaxpr, tuple[int, ...]]:
    """`discharge_jaxpr` of all references, for a program that is to run; itself where there are none."""
    if not is_stateful(closed):
        return closed, ()
    return _discharge(closed, tuple(isinstance(a, AbstractRef) for a in closed.in_avals), True)


class Stateful(Primitive):
    """An operation that runs programs, which may take references and use them."""

    takes_refs = True

    def pins(self, params: dict[str, Any]) -> Sequence[tuple[str, Any]]:
        return [(text, s) for program in subjaxprs(params) if isinstance(program, ClosedJaxpr)
                for text, s in pins(program) if text != CONSTANT]

    def bind(self, *args: Any, **params: Any) -> Any:
        trace = current.trace
        stateful = [p for p in subjaxprs(params) if STATE in p.effects]
        hidden = {id(r): r for p in stateful for r in refs_within(p)}
        if hidden:
            args, params = self.with_operands(args, params, tuple(hidden.values()))
        if trace.holds_refs:
            own = tuple([isinstance(a, Cell) and a.trace is trace for a in args])
            if stateful or any(own):
                return self.bind_discharged(trace, args, own, params)
        return trace.process(self, args, params)

    def bind_discharged(self, trace: Trace, args: Sequence[Any], own: tuple[bool, ...], params: dict[str, Any]) -> Any:
        """Applies the operation to what those references hold that are cells of `trace`, and puts back what it makes
        of that. Its programs use no others but those that belong to traces below."""
        self.check_refs(args, params)
        values = [a.whole() if o else a for a, o in zip(args, own, strict=True)]
        given, new, places = self.discharge(args, values, own, params)
        outs = trace.process(self, given, new)
        for k, place in places.items():
            if k >= 0:
                args[k].replace(outs[place])
        taken = set(places.values())
        return [out for k, out in enumerate(outs) if k not in taken]

    def with_operands(self, args: Sequence[Any], params: dict[str, Any],
                      refs: tuple[Ref, ...]) -> tuple[Sequence[Any], dict[str, Any]]:
        """The operation with these references, which its programs close over, as operands."""
        raise self._missing("Closing over references", "Pass them as arguments.")

    def check_refs(self, args: Sequence[Any], params: dict[str, Any]) -> None:
        """Errors for references that may not be given, or not twice."""
        for a in args:
            if isinstance(a, Ref):
                check_alive(a, self.name)
        check_given_once(args, lambda k: f"operand {k}", f"in the operands of {self.name}")

    def discharge(self, args: Sequence[Any], values: Sequence[Any], own: tuple[bool, ...],
                  params: dict[str, Any]) -> Discharged:
        """(operands, parameters, which result is what the reference at which operand holds in the end), where `values`
        has what references hold in place of those operands that `own` marks. A result for operand -1 is nobody's."""
        raise self._missing("The use of references", "Read them before, and write to them after it.")
