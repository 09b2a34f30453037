"""What the control flow operators share: tracing their functions, checking types leaf by leaf."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from anima import tree
from anima.core import dtypes
from anima.core.avals import ShapedArray
from anima.core.jaxpr import ClosedJaxpr
from anima.core.stage import Traced, trace_to_jaxpr
from anima.core.trace import aval_of
from anima.ops.elementwise import convert
from anima.util import fun_name


def trace_function(fun: Callable[..., Any], in_tree: Any, avals: Sequence[ShapedArray],
                   by: str) -> tuple[ClosedJaxpr, list[Any], Any]:
    """Traces `fun(*args)`: (program with what it closes over as leading arguments, those values, output tree)."""
    found: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        outs, out_tree = tree.flatten(fun(*tree.unflatten(in_tree, leaves)))
        found.append(out_tree)
        return outs

    jaxpr, consts = trace_to_jaxpr(flat, avals, Traced(fun_name(fun), _place(fun), by))
    closed = ClosedJaxpr(jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars]))
    return closed, consts, found[0]


def _place(fun: Callable[..., Any]) -> str:
    code = getattr(fun, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


def reorder(closed: ClosedJaxpr, invars: Sequence[int], outvars: Sequence[int] | None = None) -> ClosedJaxpr:
    """The same program with its arguments, and its results, in another order."""
    jaxpr = closed.jaxpr
    outs = jaxpr.outvars if outvars is None else [jaxpr.outvars[k] for k in outvars]
    return ClosedJaxpr(jaxpr.replace(invars=[jaxpr.invars[k] for k in invars], outvars=outs), closed.consts)


def strong_like(values: Sequence[Any], avals: Sequence[ShapedArray]) -> list[Any]:
    """Weakly typed values converted to the types given, where promotion allows it; others as they are."""
    out = []
    for value, target in zip(values, avals, strict=True):
        aval = aval_of(value)
        if aval.weak_type and (aval.dtype, True) != (target.dtype, target.weak_type):
            dtype, weak = dtypes.lattice_result_type((aval.dtype, True), (target.dtype, target.weak_type))
            value = convert(value, dtype, weak)
        out.append(value)
    return out


def differences(in_tree: Any, expected: Sequence[ShapedArray], got: Sequence[ShapedArray], what: str) -> list[str]:
    """A line for each leaf whose type differs, with the path to it."""
    paths = [tree.keystr(path) for path, _ in tree.leaves_with_path(tree.unflatten(in_tree, range(len(expected))))]
    lines = []
    for path, a, b in zip(paths, expected, got, strict=True):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            kinds = [k for k, differ in (("shapes", a.shape != b.shape), ("dtypes", a.dtype != b.dtype)) if differ]
            lines.append(f"  * the input {what}{path} has type {a.str_short()} but the corresponding output "
                         f"has type {b.str_short()}, so the {' and '.join(kinds)} do not match")
    return lines
