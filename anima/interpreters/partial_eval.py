"""Programs from functions, parts of them known, and programs without what is not needed.

    jaxpr, out_avals, consts = trace_to_jaxpr_dynamic(linear_util.wrap_init(f), [aval])
    smaller, used_inputs = dce_jaxpr(jaxpr, [True, False])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from anima.core.avals import ShapedArray
from anima.core.jaxpr import Eqn, Jaxpr, Literal, Var
from anima.core.stage import StageTrace, StageTracer as DynamicJaxprTracer, Traced, trace_to_jaxpr
from anima.core.state import current
from anima.core.trace import aval_of, check_leaks, under
from anima.interpreters.rules import Rule, RuleTable
from anima.names import access
from anima.transforms.dce import dce_jaxpr as _dce
from anima.transforms.linearize import PartialTrace

__all__ = ["DynamicJaxprTracer", "JaxprTracer", "PartialVal", "custom_partial_eval_rules", "dce_jaxpr",
           "dce_jaxpr_call_rule", "dce_jaxpr_closed_call_rule", "dce_jaxpr_consts", "dce_rules",
           "partial_eval_jaxpr_custom_rules", "trace_to_jaxpr_dynamic", "trace_to_jaxpr_nounits"]

JaxprTracer = DynamicJaxprTracer  # a value that waits, whoever records it

# An operation some of whose operands wait, waits as a whole, and the programs in it are not cut in two: these rules,
# which would say how, are never needed.
custom_partial_eval_rules: dict[Any, Rule] = {}
partial_eval_jaxpr_custom_rules: dict[Any, Rule] = {}


class PartialVal(tuple[ShapedArray | None, Any]):
    """What is known of a value: (None, the value), or (its type, None)."""

    __slots__ = ()

    def __new__(cls, xs: Sequence[Any]) -> PartialVal:
        aval, value = xs
        if aval is not None and value is not None:
            raise TypeError("A value is known, or its type alone is: PartialVal.known(x), PartialVal.unknown(aval).")
        return super().__new__(cls, (aval, value))

    @classmethod
    def known(cls, const: Any) -> PartialVal:
        """A value that is there."""
        return cls((None, const))

    @classmethod
    def unknown(cls, aval: ShapedArray) -> PartialVal:
        """A value of which the type alone is known."""
        return cls((aval, None))

    def is_known(self) -> bool:
        return self[0] is None

    def get_known(self) -> Any:
        """The value, or None."""
        return self[1] if self.is_known() else None

    def get_aval(self) -> ShapedArray:
        """The type."""
        return aval_of(self[1]) if self[0] is None else self[0]


def _called(fun: Callable[..., Any]) -> Callable[..., Any]:
    return getattr(fun, "call_wrapped", fun)


def _traced(fun: Any) -> Traced:
    info = getattr(fun, "debug_info", None)
    if info is None:
        return Traced()
    name, _, place = info.func_src_info.partition(" at ")
    return Traced(name, place, info.traced_for, tuple(info.arg_names or ()))


def trace_to_jaxpr_dynamic(fun: Callable[..., Any], in_avals: Sequence[ShapedArray], *,
                           keep_inputs: Sequence[bool] | None = None, lower: bool = False,
                           auto_dce: bool = False) -> tuple[Jaxpr, list[ShapedArray], list[Any]]:
    """The program that `fun`, a function of flat arguments to a sequence, is for arguments of these types.

    Args:
      keep_inputs: which arguments the program has; the others must not be used.
      auto_dce: drop what no result depends on.

    Returns:
      (program, types of its results, values of its constvars)
    """
    jaxpr, consts = trace_to_jaxpr(lambda *xs: list(_called(fun)(*xs)), in_avals, _traced(fun))
    if keep_inputs is not None:
        jaxpr = jaxpr.replace(invars=[v for v, keep in zip(jaxpr.invars, keep_inputs, strict=True) if keep])
    if auto_dce:
        kept, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
        values = dict(zip(jaxpr.constvars, consts, strict=True))
        jaxpr, consts = kept, [values[v] for v in kept.constvars]
    return jaxpr, jaxpr.out_avals, consts


def trace_to_jaxpr_nounits(fun: Callable[..., Any], pvals: Sequence[PartialVal],
                           instantiate: bool | Sequence[bool] = False) -> tuple[Jaxpr, list[PartialVal], tuple]:
    """Runs `fun` on what is known, and records what waits for the arguments that are not.

    Args:
      pvals: for each argument, `PartialVal.known(value)` or `PartialVal.unknown(type)`.
      instantiate: results that are known are results of the program, too (all, or those that are marked).

    Returns:
      (the program from unknown arguments to unknown results, what is known of all results, values of its constvars)
    """
    parent = current.trace
    recorder = StageTrace(parent, _traced(fun))
    trace = PartialTrace(parent, recorder)
    try:
        args = [p.get_known() if p.is_known() else recorder.new_arg(p.get_aval()) for p in map(PartialVal, pvals)]
        outs = list(under(trace, _called(fun), *args))
        wanted = [instantiate] * len(outs) if isinstance(instantiate, bool) else list(instantiate)
        waits = [w or (isinstance(o, DynamicJaxprTracer) and o.owner is recorder)
                 for o, w in zip(outs, wanted, strict=True)]
        jaxpr, consts = recorder.finish([o for o, w in zip(outs, waits, strict=True) if w])
    finally:
        trace.alive = recorder.alive = False
    found = [PartialVal.unknown(aval_of(o)) if w else PartialVal.known(o) for o, w in zip(outs, waits, strict=True)]
    del args, outs
    check_leaks(trace)
    return jaxpr, found, tuple(consts)


def dce_jaxpr(jaxpr: Jaxpr, used_outputs: Sequence[bool],
              instantiate: bool | Sequence[bool] = False) -> tuple[Jaxpr, list[bool]]:
    """The program of the used results alone, and which arguments it has: those that it needs, and those that
    `instantiate` marks (True: all)."""
    new, used = _dce(jaxpr, used_outputs)
    wanted = [instantiate] * len(used) if isinstance(instantiate, bool) else instantiate
    used = [u or w for u, w in zip(used, wanted, strict=True)]
    return new.replace(invars=[v for v, u in zip(jaxpr.invars, used, strict=True) if u]), used


def dce_jaxpr_consts(jaxpr: Jaxpr, used_outputs: Sequence[bool],
                     instantiate: bool | Sequence[bool] = False) -> tuple[Jaxpr, list[bool], list[bool]]:
    """As `dce_jaxpr`; between program and arguments stands which constvars are left."""
    new, used = dce_jaxpr(jaxpr, used_outputs, instantiate)
    left = set(new.constvars)
    return new, [v in left for v in jaxpr.constvars], used


def _cut(used_outputs: Sequence[bool], eqn: Eqn, new: Any, used: Sequence[bool], name: str) -> Eqn:
    return eqn.replace(invars=[v for v, u in zip(eqn.invars, used, strict=True) if u], params={**eqn.params, name: new},
                       outvars=[v for v, u in zip(eqn.outvars, used_outputs, strict=True) if u])


def dce_jaxpr_call_rule(used_outputs: list[bool], eqn: Eqn) -> tuple[list[bool], Eqn | None]:
    """The rule for an equation whose parameter `call_jaxpr` is a Jaxpr: (which operands are used, the smaller one)."""
    if not any(used_outputs) and not eqn.effects:
        return [False] * len(eqn.invars), None
    new, used = dce_jaxpr(eqn.params["call_jaxpr"], used_outputs)
    return used, _cut(used_outputs, eqn, new, used, "call_jaxpr")


def dce_jaxpr_closed_call_rule(used_outputs: list[bool], eqn: Eqn) -> tuple[list[bool], Eqn | None]:
    """The rule for an equation whose parameter `call_jaxpr` is a ClosedJaxpr."""
    if not any(used_outputs) and not eqn.effects:
        return [False] * len(eqn.invars), None
    closed = eqn.params["call_jaxpr"]
    new, consts, used = dce_jaxpr_consts(closed.jaxpr, used_outputs)
    kept = [c for c, u in zip(closed.consts, consts, strict=True) if u]
    return used, _cut(used_outputs, eqn, closed.replace(jaxpr=new, consts=kept), used, "call_jaxpr")


def _as_method(primitive: Any, rule: Rule) -> Rule:
    def dce(eqn: Eqn, used: Sequence[bool]) -> Eqn | None:
        return rule(list(used), eqn)[1]

    return dce


def _as_rule(primitive: Any, dce: Rule) -> Rule:
    def rule(used_outputs: list[bool], eqn: Eqn) -> tuple[list[bool], Eqn | None]:
        new = dce(eqn, used_outputs)
        left: list[Any] = [v for v in new.invars if isinstance(v, Var)]
        return [isinstance(v, Literal) or v in left for v in eqn.invars], new

    return rule


dce_rules = RuleTable("dce", _as_method, _as_rule)

globals().update(access(__name__, globals()))
