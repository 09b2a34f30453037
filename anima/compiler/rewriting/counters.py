"""Loops that count: comparisons of a counter with numbers, decided once for all steps.

    scan[length=10] 0 c:  k: i32, c   ->   k' = add k 1;  a = lt k 0;  b = add k 5;  i = select_n a k b;  ...
                                           k' = add k 1;  ... i is k

A loop's index is never negative, and below the loop's length, whatever is looked up or checked with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from anima.core import dtypes
from anima.core.avals import ShapedArray
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var

Range = tuple[int, int]
_BOOL = np.dtype(bool)
# Of two ranges: whether a comparison always holds, and whether it never does.
_DECIDED: dict[str, tuple[Callable[[Range, Range], bool], Callable[[Range, Range], bool]]] = {
    "lt": (lambda a, b: a[1] < b[0], lambda a, b: a[0] >= b[1]),
    "le": (lambda a, b: a[1] <= b[0], lambda a, b: a[0] > b[1]),
    "gt": (lambda a, b: a[0] > b[1], lambda a, b: a[1] <= b[0]),
    "ge": (lambda a, b: a[0] >= b[1], lambda a, b: a[1] < b[0])}


def counted(eqn: Eqn) -> Eqn:
    """A scan whose body has no comparisons of its counters that the number of steps decides; others as they are."""
    if eqn.primitive.name != "scan" or not eqn.params["length"]:
        return eqn
    closed: ClosedJaxpr = eqn.params["jaxpr"]
    ranges = _counters(eqn, closed.jaxpr)
    body = _decided(closed.jaxpr, ranges) if ranges else closed.jaxpr
    return eqn if body is closed.jaxpr else eqn.replace(params={**eqn.params, "jaxpr": closed.replace(jaxpr=body)})


def _counters(eqn: Eqn, jaxpr: Jaxpr) -> dict[Atom, Range]:
    """The numbers that carries go through which begin at a number and to which each step adds another."""
    first, steps = eqn.params["num_consts"], eqn.params["length"]
    makers = {e.outvars[0]: e for e in jaxpr.eqns if e.primitive.name == "add"}
    found: dict[Atom, Range] = {}
    for k in range(eqn.params["num_carry"]):
        start, var, out = eqn.invars[first + k], jaxpr.invars[first + k], jaxpr.outvars[k]
        maker = makers.get(out) if isinstance(out, Var) else None
        if maker is None or not isinstance(start, Literal) or not _is_integer(var.aval):
            continue
        a, b = maker.invars
        step = b if a is var else a
        if (a is var or b is var) and isinstance(step, Literal):
            begin = int(start.val)
            last = begin + int(step.val) * (steps - 1)
            if _fits((begin, last), var.aval):
                found[var] = min(begin, last), max(begin, last)
    return found


def _decided(jaxpr: Jaxpr, ranges: dict[Atom, Range]) -> Jaxpr:
    """A program on arguments in these ranges; itself, if they decide nothing."""
    env: dict[Atom, Atom] = {}
    eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        invars = [env.get(a, a) for a in eqn.invars]
        out = eqn.outvars[0] if len(eqn.outvars) == 1 else None
        better = _instead(eqn, invars, ranges) if out is not None and not out.aval.shape else None
        if better is not None and out is not None:
            env[out] = better
            continue
        if out is not None and not out.aval.shape and _is_integer(out.aval):
            known = _range(eqn, invars, ranges)
            if known is not None:
                ranges[out] = known
        eqns.append(eqn.replace(invars=invars))
    return jaxpr.replace(eqns=eqns, outvars=[env.get(a, a) for a in jaxpr.outvars]) if env else jaxpr


def _instead(eqn: Eqn, invars: list[Atom], ranges: dict[Atom, Range]) -> Atom | None:
    """What a comparison comes to, or what is selected by one."""
    name = eqn.primitive.name
    if name in _DECIDED:
        a, b = (_known(x, ranges) for x in invars)
        if a is not None and b is not None:
            always, never = (test(a, b) for test in _DECIDED[name])
            if always or never:
                return Literal(np.asarray(always), ShapedArray((), _BOOL))
    if name == "select_n" and isinstance(invars[0], Literal):
        chosen = invars[1 + int(invars[0].val)]
        return chosen if chosen.aval.dtype == eqn.outvars[0].aval.dtype and not chosen.aval.shape else None
    return None


def _range(eqn: Eqn, invars: list[Atom], ranges: dict[Atom, Range]) -> Range | None:
    """The range of a sum, or of another type's same number."""
    aval = eqn.outvars[0].aval
    known = [_known(a, ranges) for a in invars]
    if any(r is None for r in known):
        return None
    total: Any = None
    if eqn.primitive.name == "add":
        total = tuple(a + b for a, b in zip(*known, strict=True))  # type: ignore[arg-type]
    elif eqn.primitive.name == "convert_element_type":
        (total,) = known
    return total if total is not None and _fits(total, aval) else None


def _known(atom: Atom, ranges: dict[Atom, Range]) -> Range | None:
    if isinstance(atom, Literal):
        return (int(atom.val), int(atom.val)) if _is_integer(atom.aval) and not atom.aval.shape else None
    return ranges.get(atom)


def _is_integer(aval: Any) -> bool:
    return not aval.shape and isinstance(aval.dtype, np.dtype) and aval.dtype.kind in "iu"


def _fits(numbers: Range, aval: Any) -> bool:
    info = dtypes.iinfo(aval.dtype)
    return all(info.min <= n <= info.max for n in numbers)
