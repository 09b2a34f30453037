"""Control flow for users: where nothing is being traced, loops and choices are compiled before they run.

Elsewhere they are recorded, or transformed, as one equation (see `anima/control`). Under `disable_jit` they are
Python's own: functions are called with the values themselves, at each step, so that `print` and `pdb` work.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import wraps
from types import MethodType
from typing import Any

import numpy as np

from anima import tree
from anima.api.pjit import pjit_p, run_on_refs
from anima.config import config
from anima.control import cond as conds, scan as scans, while_loop as whiles
from anima.control.key_reuse import use_all, used_up
from anima.core import kept
from anima.core.intern import interned
from anima.core.jaxpr import ClosedJaxpr, Jaxpr, subjaxprs
from anima.core.refs import Ref, check_given_once
from anima.core.stage import Traced, hoisted, trace_pytrees
from anima.core.state import current
from anima.core.trace import EVAL, Tracer, aval_of, inside, is_array_like, is_tracing
from anima.ops import elementwise as ew, shape as sh
from anima.ops.broadcast import as_array
from anima.transforms.discharge import discharged, is_stateful
from anima.util import exact_type, weak_cache

_loops = kept.ByFunction()


def _compiled(name: str, operands: Any, run: Callable[[Any], Any], functions: Sequence[Any] = (),
              options: tuple[Any, ...] = ()) -> Any:
    """`run(operands)`, compiled where it would run. What the user's functions close over is an operand too.

    In JAX's place (`core/kept.py`), the user's `functions` are called once for arguments of the same types and the same
    `options`, for as long as they live, as those of jit are: what they read besides may then be of that time.
    """
    leaves, in_tree = tree.flatten((operands,))
    check_given_once(leaves, lambda k: f"operand {k}", f"in the operands of {name}")
    if is_tracing() or config.disable_jit:
        return run(operands)
    known, key = _known_of(functions), None
    if known is not None:
        key = (name, in_tree, *map(aval_of, leaves), *map(weakref.ref, functions), options, exact_type(options),
               config.trace_key())
        if key in known:
            closed, consts, out_tree = known[key]
            return tree.unflatten(out_tree, pjit_p.bind(*consts, *leaves, jaxpr=closed, name=name, inline=False))
    with config.held(config.trace_key()):
        jaxpr, consts, out_tree = trace_pytrees(run, in_tree, list(map(aval_of, leaves)), Traced(name, by=name))
        closed = hoisted(jaxpr)
        args = [*consts, *leaves]
        if config.debug_key_reuse:
            use_all(args, name, used_up(closed, name))
        if is_stateful(closed) and current.trace is EVAL:
            check_given_once(args, lambda k: f"operand {k}", f"in the operands of {name}")
            pure, changed = discharged(closed)
            return tree.unflatten(out_tree, run_on_refs(interned(pure), changed, name, args))
        closed = interned(closed)
    if known is not None and not closed.effects and not any(isinstance(c, (Tracer, Ref)) for c in consts):
        known[key] = closed, consts, out_tree
    return tree.unflatten(out_tree, pjit_p.bind(*args, jaxpr=closed, name=name, inline=False))


def _known_of(functions: Sequence[Any]) -> dict[Any, Any] | None:
    """What is remembered of loops of these functions; None where nothing is: of transformed ones, which may close over
    anything, and of functions that cannot be told apart, or are made anew at each use, as methods are."""
    if not kept.remembers or not functions or current.trace is not EVAL or config.debug_key_reuse:
        return None
    if any(isinstance(f, MethodType) for f in functions):
        return None
    try:
        hash(tuple(functions))
    except TypeError:
        return None
    return _loops.of(functions[-1])


@weak_cache
def _has_loops(program: ClosedJaxpr | Jaxpr) -> bool:
    return any(e.primitive in (scans.scan_p, whiles.while_p) or any(map(_has_loops, subjaxprs(e.params)))
               for e in program.eqns)


def _value(x: Any, dtype: type) -> Any:
    """The Python value of a scalar of this dtype under `disable_jit`, if it is known; None otherwise."""
    known = x.concrete() if isinstance(x, Tracer) else x
    if not config.disable_jit or isinstance(known, Tracer) or not is_array_like(known):
        return None
    aval = aval_of(known)
    return None if aval.shape or aval.dtype != np.dtype(dtype) else np.asarray(known).item()


def _arrays(value: Any) -> Any:
    return tree.map(as_array, value)


@wraps(conds.cond)
def cond(pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any,
         operand: Any = conds.NO_OPERAND, linear: Any = None) -> Any:
    return _choose("cond", *conds.cond_arguments(pred, true_fun, false_fun, operands, operand))


@wraps(conds.switch)
def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any,
           operand: Any = conds.NO_OPERAND) -> Any:
    return _choose("switch", *conds.switch_arguments(index, branches, operands, operand))


def _choose(what: str, index: Any, branches: Sequence[Callable[..., Any]], operands: tuple[Any, ...]) -> Any:
    known = 0 if len(branches) == 1 else _value(index, np.int32)
    if known is not None:
        out = branches[known](*operands)
        return _arrays(out) if config.disable_jit else out
    programs, args, out_tree = conds.branch_programs(branches, operands, what)

    def run(operands: Any) -> list[Any]:
        return conds.cond_p.call(programs, *operands)

    # One branch, without loops and not mapped over lanes, runs sooner than it is compiled.
    once = not inside("BatchTrace") and not any(map(_has_loops, programs))
    return tree.unflatten(out_tree, run((index, args)) if once else _compiled(what, (index, args), run))


@wraps(scans.scan)
def scan(f: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any = None, length: int | None = None,
         reverse: bool = False, unroll: int | bool = 1, _split_transpose: bool = False) -> tuple[Any, Any]:
    length = scans.scan_length(xs, length)
    if not config.disable_jit or length == 0 or not callable(f):
        return _compiled("scan", (init, xs), lambda args: scans.scan(f, *args, length, reverse, unroll), (f,),
                         (length, bool(reverse), unroll))
    ys = []
    for k in range(length - 1, -1, -1) if reverse else range(length):
        init, y = f(init, tree.map(lambda x, k=k: sh.index_in_dim(x, k, keepdims=False), xs))
        ys.append(y)
    parts = ys[::-1] if reverse else ys
    return _arrays(init), tree.map(lambda *each: sh.concatenate([sh.expand_dims(y, (0,)) for y in each], 0), *parts)


@wraps(whiles.while_loop)
def while_loop(cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init_val: Any) -> Any:
    if config.disable_jit and callable(cond_fun) and callable(body_fun):
        while (running := _value(cond_fun(init_val), bool)) is not None:
            if not running:
                return _arrays(init_val)
            init_val = body_fun(init_val)
    return _compiled("while_loop", init_val, lambda value: whiles.while_loop(cond_fun, body_fun, value),
                     (cond_fun, body_fun))


@wraps(whiles.fori_loop)
def fori_loop(lower: Any = None, upper: Any = None, body_fun: Any = None, init_val: Any = None, *,
              unroll: int | bool | None = None, start: Any = None, stop: Any = None) -> Any:
    lower, upper = (start if lower is None else lower), (stop if upper is None else upper)
    if config.disable_jit and callable(body_fun):
        lower, upper = whiles.loop_bounds(lower, upper)
        return while_loop(lambda c: ew.lt(c[0], upper), lambda c: (ew.add(c[0], 1), body_fun(*c)),
                          (as_array(lower), init_val))[1]
    fixed = all(type(n) is int for n in (lower, upper))
    return _compiled("fori_loop", init_val, lambda value: whiles.fori_loop(
        lower, upper, body_fun, value, unroll=unroll), (body_fun,) if fixed else (), (lower, upper, unroll))
