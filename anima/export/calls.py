"""What loops, branches and calls take must be what the programs in them take: rules beyond types of results.

While a program is traced this holds by construction; in one that comes from bytes, it is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima.control.tape import STEPS, TapeDType
from anima.core.avals import ShapedArray
from anima.core.jaxpr import ClosedJaxpr, Eqn
from anima.errors import JaxprTypeError
from anima.export.primitives import name_in_file
from anima.util import split_list

Avals = Sequence[ShapedArray]


def check_call(eqn: Eqn) -> None:
    """JaxprTypeError unless the operands of an equation are those of the programs that it runs."""
    rule = _RULES.get(name_in_file(eqn.primitive))
    if rule is not None:
        rule([a.aval for a in eqn.invars], **eqn.params)


def _same(given: Avals, wanted: Avals, what: str) -> None:
    if [(a.shape, a.dtype) for a in given] != [(a.shape, a.dtype) for a in wanted]:
        raise JaxprTypeError(f"{what} are of types {[a.str_short() for a in given]}, not "
                             f"{[a.str_short() for a in wanted]}")


def _parts(avals: Avals, *sizes: int) -> list[Avals]:
    if min(sizes) < 0 or sum(sizes) > len(avals):
        raise JaxprTypeError(f"{len(avals)} operands have no parts of {sizes}")
    return split_list(avals, list(sizes))


def _call(avals: Avals, jaxpr: ClosedJaxpr, **params: Any) -> None:
    _same(avals, jaxpr.in_avals, "The operands of a call")


def _cond(avals: Avals, branches: Sequence[ClosedJaxpr], **params: Any) -> None:
    (index,), operands = _parts(avals, 1)
    if index.shape or index.dtype not in (np.bool_, np.int32):
        raise JaxprTypeError(f"What chooses a branch is of type {index.str_short()}")
    for branch in branches:
        _same(operands, branch.in_avals, "The operands of a branch")
        _same(branch.out_avals, branches[0].out_avals, "The results of branches")


def _scan(avals: Avals, jaxpr: ClosedJaxpr, length: int, num_carry: int, num_consts: int, unroll: int,
          **params: Any) -> None:
    consts, carry, xs = _parts(avals, num_consts, num_carry)
    if length < 0 or unroll < 1 or any(x.shape[:1] != (length,) for x in xs):
        raise JaxprTypeError(f"A loop has {length} steps, not those of its operands")
    _same([*consts, *carry, *(x.update(shape=x.shape[1:]) for x in xs)], jaxpr.in_avals, "The operands of a loop")
    _same(jaxpr.out_avals[:num_carry], carry, "What a loop carries")


def _while(avals: Avals, cond_jaxpr: ClosedJaxpr, body_jaxpr: ClosedJaxpr, cond_nconsts: int, body_nconsts: int,
           taped: bool = False) -> None:
    cond_consts, body_consts, carry = _parts(avals, cond_nconsts, body_nconsts)
    _same([*cond_consts, *carry], cond_jaxpr.in_avals, "The operands of a loop's condition")
    _same([*body_consts, *carry], body_jaxpr.in_avals, "The operands of a loop")
    _same(cond_jaxpr.out_avals, [ShapedArray((), np.dtype(np.bool_))], "The results of a loop's condition")
    _same(body_jaxpr.out_avals[:len(carry)] if taped else body_jaxpr.out_avals, carry, "What a loop carries")


def _tape_while(avals: Avals, **params: Any) -> None:
    _while(avals, **params, taped=True)


def _tape_scan(avals: Avals, jaxpr: ClosedJaxpr, length: Sequence[bool], num_carry: int, num_consts: int,
               **params: Any) -> None:
    consts, carry, tapes = _parts(avals, num_consts, num_carry)
    if len(length) != len(tapes) or any(t.shape or not isinstance(t.dtype, TapeDType) for t in tapes):
        raise JaxprTypeError("A loop over tapes is given others than tapes")
    if not any(length) or any((t.dtype == STEPS) != counts for t, counts in zip(tapes, length, strict=True)):
        raise JaxprTypeError("A loop over tapes does not know its length")
    _same([*consts, *carry, *(t.dtype.element for t in tapes)], jaxpr.in_avals, "The operands of a loop over tapes")
    _same(jaxpr.out_avals[:num_carry], carry, "What a loop over tapes carries")


_RULES: dict[str, Callable[..., None]] = {
    "pjit": _call, "cond": _cond, "scan": _scan, "while": _while, "tape_while": _tape_while, "tape_scan": _tape_scan}
