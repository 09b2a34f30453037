"""The primitive of a jitted call: a program applied as one operation, and compiled as one.

What the rules make of the program is remembered, so that a function jitted once is differentiated,
batched and compiled once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anima import errors
from anima.config import config
from anima.core.jaxpr import ClosedJaxpr
from anima.core.primitive import Zero
from anima.core.stage import StageTrace, eval_numpy
from anima.core.trace import Trace, under
from anima.transforms.call import CallPrimitive
from anima.transforms.linearize import fill, linearize_apart
from anima.util import lazy_module

# Programs that compile nothing need not wait for the compiler to load.
driver = lazy_module("anima.compiler.driver")
recording = lazy_module("anima.runtime.tapes.recording")


def executable_of(closed: ClosedJaxpr, name: str, donated: tuple[int, ...] = ()) -> Any:
    """The compiled form of a program, which may write over the arguments at `donated`; compiled at the first call."""
    return recording.executable_of(closed, name, donated)


def all_finite(name: str, outs: Sequence[np.ndarray]) -> bool:
    """Whether no result is invalid, under debug_nans and debug_infs; says so if one is."""
    if not (config.debug_nans or config.debug_infs):
        return True
    try:
        errors.check_finite(name, outs)
        return True
    except FloatingPointError:
        print("Invalid value encountered in the output of a jit function. Calling the de-optimized version.")
        return False


class PJit(CallPrimitive):
    """`jaxpr(*args)`; `name` is the user's function."""

    def eval(self, *args: np.ndarray, jaxpr: ClosedJaxpr, name: str, **params: Any) -> list[np.ndarray]:
        values = [np.asarray(a) for a in args]  # NumPy makes scalars of 0-d results
        outs = executable_of(jaxpr, name)(values)
        return outs if all_finite(name, outs) else eval_numpy(jaxpr, values)

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
