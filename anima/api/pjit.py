"""The primitive of a jitted call: a program applied as one operation, and compiled as one.

What the rules make of the program is remembered, so that a function jitted once is differentiated,
batched and compiled once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from anima.config import config
from anima.core.array import ConcreteArray
from anima.core.explicit import erased
from anima.core.jaxpr import ClosedJaxpr, Jaxpr, subjaxprs
from anima.core.placement import pins
from anima.core.primitive import Zero
from anima.core.refs import EagerCell
from anima.core.stage import StageTrace, or_one_by_one
from anima.core.trace import EVAL, Trace, aval_of, numpy_value, under
from anima.transforms.call import ProgramCall
from anima.transforms.discharge import discharge_jaxpr, discharged
from anima.transforms.linearize import fill, linearize_apart
from anima.util import lazy_module, weak_cache

# Programs that compile nothing need not wait for the compiler to load.
driver = lazy_module("anima.compiler.driver")
programs = lazy_module("anima.runtime.programs")


def executable_of(closed: ClosedJaxpr, name: str, donated: tuple[int, ...] = ()) -> Any:
    """The compiled form of a program, which may write over the arguments at `donated`; compiled at the first call.

    References are arguments by what they hold, and written over if the program writes to them: see `discharged`.
    """
    closed, changed = discharged(erased(closed))
    donated = (*donated, *changed)
    return programs.executable_of(closed, name, donated)


def run_on_refs(closed: ClosedJaxpr, changed: tuple[int, ...], name: str, args: Sequence[Any]) -> list[Any]:
    """Runs a program made by `discharge_jaxpr` on arrays, and on references that it changes at `changed`: in place,
    unless others may see their memory."""
    executable = executable_of(closed, name, changed)
    with ExitStack() as turns:
        for k in sorted(changed, key=lambda k: id(args[k])):  # in one order, or threads may wait for each other
            turns.enter_context(args[k].turn)
        return _run_on_refs(executable, closed, changed, name, args)


def _run_on_refs(executable: Any, closed: ClosedJaxpr, changed: tuple[int, ...], name: str,
                 args: Sequence[Any]) -> list[Any]:
    checking = config.debug_nans or config.debug_infs
    values = []
    for k, x in enumerate(args):
        if not isinstance(x, EagerCell):
            values.append(numpy_value(x, aval_of(x)))
        elif k not in executable.donors:
            values.append(x.elements())
        else:
            values.append(x.elements().copy() if checking else x.exclusive())
    if not checking:
        outs = executable(values)
    else:
        outs = or_one_by_one(name, closed, values, executable([v.copy() for v in values]))
    count = len(outs) - len(changed)
    for k, out in zip(changed, outs[count:], strict=True):
        seen = any(np.may_share_memory(out, x) for x in (*outs[:count], *(v for i, v in enumerate(values) if i != k)))
        args[k].take_over(out.copy() if seen else out)
    return [ConcreteArray(out, aval) for out, aval in zip(outs[:count], closed.out_avals, strict=False)]


@weak_cache
def _is_of_users(program: ClosedJaxpr | Jaxpr) -> bool:
    return any(e.primitive.of_users or any(map(_is_of_users, subjaxprs(e.params))) for e in program.eqns)


class PJit(ProgramCall):
    """`jaxpr(*args)`; `name` is the user's function."""

    def in_tangents(self, params: dict[str, Any]) -> ClosedJaxpr | None:
        """The program, where operations in it have rules that may call it: these would be asked without end."""
        return params["jaxpr"] if _is_of_users(params["jaxpr"]) else None

    def pins(self, params: dict[str, Any]) -> Sequence[tuple[str, Any]]:
        return pins(params["jaxpr"])

    def eval(self, *args: np.ndarray, jaxpr: ClosedJaxpr, name: str, **params: Any) -> list[np.ndarray]:
        values = [np.asarray(a) for a in args]  # NumPy makes scalars of 0-d results
        return or_one_by_one(name, jaxpr, values, executable_of(jaxpr, name)(values))

    def bind_discharged(self, trace: Trace, args: Sequence[Any], own: tuple[bool, ...], params: dict[str, Any]) -> Any:
        if trace is not EVAL or not any(own):
            return super().bind_discharged(trace, args, own, params)
        self.check_refs(args, params)
        return run_on_refs(*discharge_jaxpr(params["jaxpr"], own), params["name"], args)

    def linearize(self, parent: Trace, recorder: StageTrace, primals: Sequence[Any], tangents: Sequence[Any], *,
                  jaxpr: ClosedJaxpr, **params: Any) -> tuple[list[Any], list[Any]]:
        """Runs the program under `parent`, keeping residuals, and records the linear part with `recorder`."""
        nonzero = tuple(not isinstance(t, Zero) for t in tangents)
        primal, tangent, mask, handed_on = linearize_apart(jaxpr, nonzero)
        outs = under(parent, self.bind, *primals, jaxpr=primal, **params)
        count = len(mask)
        made = iter(outs[count:])
        residuals = [next(made) if k is None else primals[k] for k in handed_on]
        given = [t for t in tangents if not isinstance(t, Zero)]
        found = under(recorder, self.bind, *residuals, *given, jaxpr=tangent, **params) if any(mask) else []
        return outs[:count], fill(mask, found, outs)


pjit_p = PJit("pjit")
