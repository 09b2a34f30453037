"""The primitive of a jitted call: a program applied as one operation, and its rules.

Its rules transform the program it holds; the results are remembered per program, so that a function
jitted once is differentiated, batched and compiled once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.core.avals import ShapedArray, tangent_aval
from anima.core.jaxpr import ClosedJaxpr, Eqn
from anima.core.primitive import Linear, Primitive, Zero
from anima.core.stage import StageTrace
from anima.core.trace import Trace, under
from anima.transforms.dce import dce_jaxpr
from anima.transforms.forward import jvp_jaxpr
from anima.transforms.linearize import linearize_jaxpr
from anima.transforms.transpose import transpose_jaxpr
from anima.transforms.vmap import batch_jaxpr
from anima.util import lazy_module, weak_cache

# Programs that compile nothing need not wait for the compiler to load.
pipeline = lazy_module("anima.compiler.pipeline")
executables = lazy_module("anima.runtime.executable")


@weak_cache
def executable_of(closed: ClosedJaxpr, name: str) -> Any:
    """The compiled form of a program; compiled at the first call."""
    shapes = [(*a.shape, *getattr(a.dtype, "element_shape", ())) for a in closed.out_avals]
    return executables.compile_program(pipeline.lower(closed, name).loops, shapes)


@weak_cache
def _dce(closed: ClosedJaxpr, used: tuple[bool, ...]) -> tuple[ClosedJaxpr, list[bool]]:
    jaxpr, used_inputs = dce_jaxpr(closed.jaxpr, used)
    values = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    return ClosedJaxpr(jaxpr, [values[v] for v in jaxpr.constvars]), used_inputs


class PJit(Primitive):
    """`jaxpr(*args)`; `name` is the user's function."""

    multiple_results = True

    def infer(self, *avals: ShapedArray, jaxpr: ClosedJaxpr, **params: Any) -> list[ShapedArray]:
        return jaxpr.out_avals

    def eval(self, *args: np.ndarray, jaxpr: ClosedJaxpr, name: str, **params: Any) -> list[np.ndarray]:
        return executable_of(jaxpr, name)([np.asarray(a) for a in args])     # NumPy makes scalars of 0-d results

    def eval_extended(self, avals: Sequence[ShapedArray], args: Sequence[Any], params: dict[str, Any]) -> Any:
        return self.eval(*args, **params)

    def body(self, params: dict[str, Any]) -> ClosedJaxpr:
        """The program that a call stands for."""
        return params["jaxpr"]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr,
            **params: Any) -> tuple[list[Any], list[Any]]:
        nonzero = tuple(not isinstance(t, Zero) for t in tangents)
        new, mask = jvp_jaxpr(jaxpr, nonzero)
        outs = self.bind(*primals, *(t for t in tangents if not isinstance(t, Zero)), jaxpr=new, **params)
        count = len(jaxpr.out_avals)
        return outs[:count], _fill(mask, outs[count:], jaxpr.out_avals)

    def linearize(self, parent: Trace, recorder: StageTrace, primals: Sequence[Any], tangents: Sequence[Any], *,
                  jaxpr: ClosedJaxpr, **params: Any) -> tuple[list[Any], list[Any]]:
        """Runs the program under `parent`, keeping residuals, and records the linear part with `recorder`."""
        nonzero = tuple(not isinstance(t, Zero) for t in tangents)
        primal, tangent, mask = linearize_jaxpr(jaxpr, nonzero)
        outs = under(parent, self.bind, *primals, jaxpr=primal, **params)
        count = len(jaxpr.out_avals)
        given = [t for t in tangents if not isinstance(t, Zero)]
        out_tangents = under(recorder, self.bind, *outs[count:], *given, jaxpr=tangent, **params) if any(mask) else []
        return outs[:count], _fill(mask, out_tangents, jaxpr.out_avals)

    def transpose(self, cts: Sequence[Any], *args: Any, jaxpr: ClosedJaxpr, **params: Any) -> list[Any]:
        linear = tuple(isinstance(a, Linear) for a in args)
        nonzero = tuple(not isinstance(ct, Zero) for ct in cts)
        new, mask = transpose_jaxpr(jaxpr, linear, nonzero)
        known = [a for a in args if not isinstance(a, Linear)]
        outs = iter(self.bind(*known, *(ct for ct in cts if not isinstance(ct, Zero)), jaxpr=new, **params))
        wanted = iter(mask)
        return [(next(outs) if next(wanted) else Zero(a.aval)) if lin else None
                for lin, a in zip(linear, args, strict=True)]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, jaxpr: ClosedJaxpr,
              **params: Any) -> tuple[list[Any], list[int | None]]:
        new, out_dims = batch_jaxpr(jaxpr, size, tuple(dims))
        return self.bind(*args, jaxpr=new, **params), out_dims

    def dce(self, eqn: Eqn, used: Sequence[bool]) -> Eqn:
        """The equation with the used results only."""
        new, used_inputs = _dce(eqn.params["jaxpr"], tuple(used))
        return eqn.replace(params={**eqn.params, "jaxpr": new},
                           invars=[v for v, u in zip(eqn.invars, used_inputs, strict=True) if u],
                           outvars=[v for v, u in zip(eqn.outvars, used, strict=True) if u])


def _fill(mask: Sequence[bool], tangents: Sequence[Any], avals: Sequence[ShapedArray]) -> list[Any]:
    given = iter(tangents)
    return [next(given) if m else Zero(tangent_aval(a)) for m, a in zip(mask, avals, strict=True)]


pjit_p = PJit("pjit")

