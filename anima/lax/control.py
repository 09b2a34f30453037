"""Loops for users: where nothing is being traced, a loop is compiled as a whole before it runs.

Elsewhere it is recorded, or transformed, as one equation (see `anima/control`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from anima import errors, tree
from anima.api.pjit import pjit_p
from anima.config import config
from anima.control import scan as scans, while_loop as whiles
from anima.core.jaxpr import ClosedJaxpr
from anima.core.stage import Traced, trace_to_jaxpr
from anima.core.trace import aval_of, is_tracing


def _compiled(name: str, operands: Any, loop: Callable[[Any], Any]) -> Any:
    """`loop(operands)`, compiled where it would run. What the loop's functions close over is an operand too."""
    if is_tracing() or config.disable_jit:
        return loop(operands)
    leaves, in_tree = tree.flatten(operands)
    found: list[Any] = []

    def flat(*xs: Any) -> list[Any]:
        outs, out_tree = tree.flatten(loop(tree.unflatten(in_tree, xs)))
        found.append(out_tree)
        return outs

    jaxpr, consts = trace_to_jaxpr(flat, list(map(aval_of, leaves)), Traced(name, by=name))
    closed = ClosedJaxpr(jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars]))
    return tree.unflatten(found[0], pjit_p.bind(*consts, *leaves, jaxpr=closed, name=name, inline=False))


@wraps(scans.scan)
@errors.api_boundary
def scan(f: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any = None, length: int | None = None,
         reverse: bool = False, unroll: int | bool = 1, _split_transpose: bool = False) -> tuple[Any, Any]:
    length = scans.scan_length(tree.leaves(xs), length)
    return _compiled("scan", (init, xs), lambda args: scans.scan(f, *args, length, reverse, unroll))


@wraps(whiles.while_loop)
@errors.api_boundary
def while_loop(cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init_val: Any) -> Any:
    return _compiled("while_loop", init_val, lambda value: whiles.while_loop(cond_fun, body_fun, value))


@wraps(whiles.fori_loop)
@errors.api_boundary
def fori_loop(lower: Any = None, upper: Any = None, body_fun: Any = None, init_val: Any = None, *,
              unroll: int | bool | None = None, start: Any = None, stop: Any = None) -> Any:
    return _compiled("fori_loop", init_val, lambda value: whiles.fori_loop(
        lower, upper, body_fun, value, unroll=unroll, start=start, stop=stop))
