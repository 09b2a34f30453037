"""Programs applied as one operation: what a jitted call and a checkpoint have in common.

The rules transform the program that the equation holds (`jaxpr`); results are remembered per program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anima.core.avals import ShapedArray
from anima.core.jaxpr import ClosedJaxpr, Eqn, asks_for_zeros
from anima.core.primitive import Linear, Zero
from anima.core.refs import Ref
from anima.transforms.dce import dce_jaxpr
from anima.transforms.discharge import Discharged, Stateful, discharge_jaxpr, open_jaxpr
from anima.transforms.forward import jvp_jaxpr
from anima.transforms.linearize import fill
from anima.transforms.taylor import Term, flat, grouped, taylor_jaxpr
from anima.transforms.transpose import transpose_jaxpr
from anima.transforms.vmap import batch_jaxpr
from anima.util import weak_cache


class ProgramCall(Stateful):
    """`jaxpr(*args)`. Subclasses say how it is evaluated and linearised."""

    multiple_results = True

    def infer(self, *avals: ShapedArray, jaxpr: ClosedJaxpr, **params: Any) -> list[ShapedArray]:
        return jaxpr.out_avals

    def eval_extended(self, avals: Sequence[ShapedArray], args: Sequence[Any], params: dict[str, Any]) -> Any:
        return self.eval(*args, **params)

    def body(self, params: dict[str, Any], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
        """The program that an equation stands for."""
        return params["jaxpr"]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr,
            **params: Any) -> tuple[list[Any], list[Any]]:
        nonzero = tuple(not isinstance(t, Zero) for t in tangents)
        new, mask = jvp_jaxpr(jaxpr, nonzero)
        outs = self.bind(*primals, *(t for t in tangents if not isinstance(t, Zero)), jaxpr=new, **params)
        return outs[: len(mask)], fill(mask, outs[len(mask):], outs)

    def taylor(self, order: int, terms: Sequence[Term], *, jaxpr: ClosedJaxpr, **params: Any) -> list[Term]:
        new, mask = taylor_jaxpr(jaxpr, order, tuple(len(t) > 1 for t in terms))
        return grouped(self.bind(*flat(terms), jaxpr=new, **params), mask, order)

    def transposes_zeros(self, params: dict[str, Any]) -> bool:
        return asks_for_zeros(params)

    def transpose(self, cts: Sequence[Any], *args: Any, jaxpr: ClosedJaxpr, **params: Any) -> list[Any]:
        linear = tuple(isinstance(a, Linear) for a in args)
        new, mask = transpose_jaxpr(jaxpr, linear, tuple(not isinstance(ct, Zero) for ct in cts))
        known = [a for a in args if not isinstance(a, Linear)]
        outs = iter(self.bind(*known, *(ct for ct in cts if not isinstance(ct, Zero)), jaxpr=new, **params))
        wanted = iter(mask)
        return [(next(outs) if next(wanted) else Zero(a.aval)) if lin else None
                for lin, a in zip(linear, args, strict=True)]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, jaxpr: ClosedJaxpr,
              **params: Any) -> tuple[list[Any], list[int | None]]:
        new, out_dims = batch_jaxpr(jaxpr, size, tuple(dims))
        return self.bind(*args, jaxpr=new, **params), out_dims

    def with_operands(self, args: Sequence[Any], params: dict[str, Any],
                      refs: tuple[Ref, ...]) -> tuple[Sequence[Any], dict[str, Any]]:
        return [*refs, *args], {**params, "jaxpr": open_jaxpr(params["jaxpr"], refs)}

    def discharge(self, args: Sequence[Any], values: Sequence[Any], own: tuple[bool, ...],
                  params: dict[str, Any]) -> Discharged:
        closed = params["jaxpr"]
        jaxpr, changed = discharge_jaxpr(closed, own)
        first = len(closed.out_avals)
        return values, {**params, "jaxpr": jaxpr}, {k: first + i for i, k in enumerate(changed)}

    def dce(self, eqn: Eqn, used: Sequence[bool]) -> Eqn:
        """The equation with the used results only."""
        new, used_inputs = dce_closed(eqn.params["jaxpr"], tuple(used))
        return eqn.replace(params={**eqn.params, "jaxpr": new},
                           invars=[v for v, u in zip(eqn.invars, used_inputs, strict=True) if u],
                           outvars=[v for v, u in zip(eqn.outvars, used, strict=True) if u])


@weak_cache
def dce_closed(closed: ClosedJaxpr, used: tuple[bool, ...]) -> tuple[ClosedJaxpr, list[bool]]:
    jaxpr, used_inputs = dce_jaxpr(closed.jaxpr, used)
    return closed.part(jaxpr), used_inputs
