"""The invariants of a program: what every pass and transformation may rely on, and must keep.

Every variable is bound once, before it is used; every equation's results have the types that its
primitive infers from its operands; literals and constants have the types they say. Programs held in
parameters are closed, and checked in turn.

    check_jaxpr(jaxpr)      # None, or JaxprTypeError naming the equation and the user's line
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Iterable
from functools import partial
from typing import Any

from anima.core.avals import ShapedArray
from anima.core.axes import current, naming
from anima.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Literal, Var, subjaxprs
from anima.core.trace import aval_of
from anima.errors import JaxprTypeError


def check_jaxpr(jaxpr: Jaxpr | ClosedJaxpr, right: Container[int] = ()) -> None:
    """Checks a program and all programs in it; JaxprTypeError says which equation is wrong, and where.

    Those whose identity is in `right` are known to be right, and those that were found to be, where no axes have names.
    """
    program = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
    if id(program) in right:
        return
    if isinstance(jaxpr, ClosedJaxpr):
        _check_consts(jaxpr)
    alone = not current.axes and current.manual is None
    if alone and program in _right:
        return
    bound: set[Var] = set()
    _bind(bound, (*program.constvars, *program.invars), lambda: "an argument of the program", program)
    for number, eqn in enumerate(program.eqns):
        try:
            _check_eqn(eqn, bound, right)
        except JaxprTypeError as error:
            raise JaxprTypeError(f"{error}\n{_place(number, eqn)}") from None
        missing = eqn.effects and eqn.effects - program.effects
        if missing:
            raise JaxprTypeError(f"The program does not own up to the effects {sorted(map(str, missing))} of\n"
                                 f"{_place(number, eqn)}")
        _bind(bound, eqn.outvars, partial(_place, number, eqn), program)
    for atom in program.outvars:
        _check_atom(atom, bound, "The program's result")
    if alone:
        _right.add(program)


_right: weakref.WeakSet[Jaxpr] = weakref.WeakSet()


def _place(number: int, eqn: Eqn) -> str:
    source = f"\n  asked for at {eqn.source}" if eqn.source else ""
    return f"  in equation {number}: {eqn}{source}"


def _bind(bound: set[Var], variables: Iterable[Var], where: Callable[[], str], program: Jaxpr) -> None:
    for var in variables:
        if not isinstance(var, Var):
            raise JaxprTypeError(f"Only variables can be bound, got {var!r}:\n{where()}")
        if var in bound:
            raise JaxprTypeError(f"A variable of type {var.aval.str_short()} is bound twice, the second time as\n"
                                 f"{where()}\nof the program\n{program}")
        bound.add(var)


def _check_consts(closed: ClosedJaxpr) -> None:
    if len(closed.consts) != len(closed.jaxpr.constvars):
        raise JaxprTypeError(f"A program with {len(closed.jaxpr.constvars)} constvars has {len(closed.consts)} "
                             "constants")
    for var, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        _check_same(var.aval, aval_of(value), "A constant of the program")


def _check_atom(atom: Any, bound: set[Var], what: str) -> None:
    if isinstance(atom, Literal):
        if atom.aval.shape or getattr(atom.val, "dtype", None) != atom.aval.dtype:
            raise JaxprTypeError(f"{what} is the literal {atom!r}, which is no {atom.aval.str_short()}")
    elif not isinstance(atom, Var):
        raise JaxprTypeError(f"{what} is neither a variable nor a literal: {atom!r}")
    elif atom not in bound:
        raise JaxprTypeError(f"{what} is a variable of type {atom.aval.str_short()} that is not bound")


def _check_eqn(eqn: Eqn, bound: set[Var], right: Container[int]) -> None:
    for i, atom in enumerate(eqn.invars):
        if not (type(atom) is Var and atom in bound):
            _check_atom(atom, bound, f"Operand {i}")
    programs = list(subjaxprs(eqn.params))
    if programs:
        with naming(eqn.primitive.binds(eqn.params)):
            for inner in programs:
                check_jaxpr(inner, right)
    try:
        inferred = eqn.primitive.abstract_out([atom.aval for atom in eqn.invars], eqn.params)
    except (TypeError, ValueError) as error:
        raise JaxprTypeError(f"The operands are not what {eqn.primitive.name} takes: {error}") from error
    if len(inferred) != len(eqn.outvars):
        raise JaxprTypeError(f"{eqn.primitive.name} has {len(inferred)} results, the equation {len(eqn.outvars)}")
    for i, (var, aval) in enumerate(zip(eqn.outvars, inferred, strict=True)):
        if var.aval is not aval:
            _check_same(var.aval, aval, f"Result {i} of {eqn.primitive.name}")


def _check_same(stated: ShapedArray, real: ShapedArray, what: str) -> None:
    """Types agree in shape and dtype; weak types are a matter of promotion, which is over."""
    if stated.shape != real.shape or stated.dtype != real.dtype:
        raise JaxprTypeError(f"{what} is said to be {stated.str_short()}, but is {real.str_short()}")
