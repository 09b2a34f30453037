"""Reductions by a user's function, for users: long ones are compiled before they run where nothing is being traced."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from anima import errors, tree
from anima.control import reduce as reductions
from anima.core.trace import aval_of
from anima.lax.control import _compiled
from anima.lax.mapping import mul
from anima.ops import elementwise as ew

STEPS = 64  # elements that are combined one after the other on NumPy sooner than by a program that is compiled first


@wraps(reductions.reduce)
@errors.api_boundary
def reduce(operands: Any, init_values: Any, computation: Callable[[Any, Any], Any], dimensions: Sequence[int],
           out_sharding: Any = None) -> Any:
    computation = _as_primitive(computation)
    known, leaves = _is_known(computation, operands, init_values), tree.leaves(operands)
    shape = aval_of(leaves[0]).shape if leaves else ()
    steps = 0 if known else math.prod(shape[d] for d in dimensions if -len(shape) <= d < len(shape))
    return _run("reduce", steps, known, operands, init_values,
                lambda xs, inits: reductions.reduce(xs, inits, computation, dimensions, out_sharding))


@wraps(reductions.reduce_window)
@errors.api_boundary
def reduce_window(operand: Any, init_value: Any, computation: Callable[[Any, Any], Any],
                  window_dimensions: Sequence[int], window_strides: Sequence[int] | None = None,
                  padding: str | Sequence[tuple[int, int]] = "VALID", base_dilation: Sequence[int] | None = None,
                  window_dilation: Sequence[int] | None = None) -> Any:
    computation = _as_primitive(computation)
    known = _is_known(computation, operand, init_value)
    return _run("reduce_window", (sum if known else math.prod)(window_dimensions), known, operand, init_value,
                lambda xs, inits: reductions.reduce_window(
                    xs, inits, computation, window_dimensions, window_strides, padding, base_dilation, window_dilation))


def _as_primitive(computation: Any) -> Any:
    return ew.mul if errors.behind_face(computation) is mul else computation


def _is_known(computation: Any, operands: Any, init_values: Any) -> bool:
    leaves, inits = tree.leaves(operands), tree.leaves(init_values)
    return (len(leaves) == len(inits) == 1
            and reductions.is_known(computation, inits[0], aval_of(leaves[0]).dtype))


def _run(name: str, steps: int, known: bool, operands: Any, init_values: Any, run: Callable[[Any, Any], Any]) -> Any:
    if steps <= STEPS:
        return run(operands, init_values)
    if known:  # with the initial value that the computation leaves alone
        return _compiled(name, operands, lambda xs: run(xs, init_values))
    return _compiled(name, (operands, init_values), lambda args: run(*args))
