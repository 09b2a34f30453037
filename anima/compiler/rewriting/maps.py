"""Loops over lanes that only compute numbers, each from those of its own lane, become operations on arrays.

    c = scan[jaxpr={ k x . c = cond[branches=({ x . y = mul x 0.1 }, { x . x })] k x }] b a
                                                                  ->     y = mul a 0.1;  c = select_n b y a

So, mapped choices between values that cost little are fused with what comes before and after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anima.compiler.machine.target import Target
from anima.compiler.rewriting.rewrites import rewrite
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Literal
from anima.core.stage import bind_eqn, eval_jaxpr, literal_array, trace_to_jaxpr
from anima.ops.broadcast import broadcast_in_dim_p
from anima.ops.elementwise import select_n
from anima.ops.family import Elementwise
from anima.ops.shape import reshape_p, slice_p, squeeze_p
from anima.transforms.vmap import batch_jaxpr
from anima.util import weak_cache

_BOTH = 100.0  # instructions, of one lane, that all branches may take together
_VIEWS = (broadcast_in_dim_p, reshape_p, slice_p, squeeze_p)


def _is_map(eqn: Eqn, target: Target) -> bool:
    return _is_loop(eqn) and _branches(eqn.params["jaxpr"]) is not None


def _is_loop(eqn: Eqn) -> bool:
    """Whether an equation is a loop over lanes."""
    params = eqn.params
    return not params["num_carry"] and params["length"] > 0 and not eqn.effects


@weak_cache
def _branches(body: ClosedJaxpr) -> float | None:
    """What the branches in a program cost together; None if that is too much, or the program does more than compute."""
    total = 0.0
    for eqn in body.eqns:
        if eqn.primitive.name == "cond":
            for branch in eqn.params["branches"]:
                inside = _branches(branch)
                if inside is None:
                    return None
                total += inside + sum(e.primitive.cost * e.outvars[0].aval.size for e in branch.eqns
                                      if isinstance(e.primitive, Elementwise))
        elif eqn.primitive.name == "scan":
            inside = _branches(eqn.params["jaxpr"]) if _is_loop(eqn) else None
            if inside is None:
                return None
            total += inside
        elif not isinstance(eqn.primitive, Elementwise) and eqn.primitive not in _VIEWS:
            return None
        if eqn.effects or total > _BOTH:
            return None
    return total


@rewrite("scan", where=_is_map)
def _map(eqn: Eqn, target: Target, *args: Any) -> list[Any]:
    return _mapped(eqn, args)


def _mapped(eqn: Eqn, args: Sequence[Any]) -> list[Any]:
    """The results of a loop over lanes, of all of them at once."""
    params = eqn.params
    body, count = params["jaxpr"], params["num_consts"]
    one = ClosedJaxpr(*trace_to_jaxpr(lambda *xs: _chosen(body, xs), body.in_avals))
    dims = (*(None,) * count, *(0,) * (len(args) - count))
    every, _ = batch_jaxpr(one, params["length"], dims, (0,) * len(eqn.outvars))
    return eval_jaxpr(every.jaxpr, every.consts, *args)


def _chosen(body: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
    """The results of a program that computes all branches, and then chooses."""
    env: dict[Any, Any] = dict(zip((*body.jaxpr.constvars, *body.jaxpr.invars), (*body.consts, *args), strict=True))

    def read(atom: Atom) -> Any:
        return literal_array(atom) if isinstance(atom, Literal) else env[atom]

    for eqn in body.eqns:
        xs = list(map(read, eqn.invars))
        if eqn.primitive.name == "cond":
            results = [_chosen(branch, xs[1:]) for branch in eqn.params["branches"]]
            outs = [select_n(xs[0], *cases) for cases in zip(*results, strict=True)]
        else:
            outs = _mapped(eqn, xs) if eqn.primitive.name == "scan" else list(bind_eqn(eqn, xs))
        env.update(zip(eqn.outvars, outs, strict=True))
    return list(map(read, body.jaxpr.outvars))
