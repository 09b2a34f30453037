from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anima.core.avals import ShapedArray
from anima.core.check import check_jaxpr
from anima.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from anima.core.primitive import Primitive
from anima.core.source import Source
from anima.errors import JaxprTypeError

F32, I32 = np.dtype("float32"), np.dtype("int32")
VECTOR, SCALAR = ShapedArray((3,), F32), ShapedArray((), F32)


class Twice(Primitive):
    """Takes a vector of floats."""

    def infer(self, *avals: ShapedArray, **params: Any) -> ShapedArray:
        if avals[0].dtype != F32:
            raise TypeError(f"twice does not accept dtype {avals[0].dtype}.")
        return avals[0]


class Call(Primitive):
    multiple_results = True

    def infer(self, *avals: ShapedArray, jaxpr: ClosedJaxpr) -> list[ShapedArray]:
        return jaxpr.out_avals


twice = Twice("twice")
call = Call("call")
PLACE = Source("folder/model.py", 12, "loss")


def program(*, out: ShapedArray = VECTOR, arg: ShapedArray = VECTOR, **changes: Any) -> Jaxpr:
    x, y = Var(arg), Var(out)
    return Jaxpr([], [x], [y], [Eqn(twice, [x], [y], {}, PLACE)]).replace(**changes)


def complaint(jaxpr: Jaxpr | ClosedJaxpr) -> str:
    with pytest.raises(JaxprTypeError) as info:
        check_jaxpr(jaxpr)
    return str(info.value)


def test_good_programs_pass() -> None:
    good = program()
    check_jaxpr(good)
    x, const, y = Var(VECTOR), Var(SCALAR), Var(VECTOR)
    outer = Jaxpr([const], [x], [y, const, Literal(1, SCALAR), x], [Eqn(call, [x], [y], {"jaxpr": ClosedJaxpr(good)})])
    check_jaxpr(ClosedJaxpr(outer, [np.float32(2)]))
    check_jaxpr(program(out=ShapedArray((3,), F32, weak_type=True)))  # weak types are no matter


def test_wrong_result_type_names_equation_and_source() -> None:
    text = complaint(program(out=SCALAR))
    assert "Result 0 of twice is said to be float32[], but is float32[3]" in text
    assert "in equation 0: b:f32[] = twice a" in text and "asked for at model.py:12, in loss" in text


def test_operands_that_the_primitive_refuses() -> None:
    text = complaint(program(arg=ShapedArray((3,), I32)))
    assert "The operands are not what twice takes: twice does not accept dtype int32." in text


def test_scope() -> None:
    good = program()
    stray = Var(VECTOR)
    used = good.replace(eqns=[good.eqns[0].replace(invars=[stray])])
    assert "Operand 0 is a variable of type float32[3] that is not bound" in complaint(used)
    assert "The program's result is a variable" in complaint(good.replace(outvars=[stray]))
    late = good.replace(eqns=[Eqn(twice, good.eqns[0].outvars, [stray], {}), *good.eqns])
    assert "that is not bound" in complaint(late)
    # a variable of the outer program is out of reach of an inner one
    inner = ClosedJaxpr(Jaxpr([], [], [good.invars[0]], []))
    outer = good.replace(eqns=[Eqn(call, [], [Var(VECTOR)], {"jaxpr": inner})], outvars=[])
    assert "The program's result is a variable" in complaint(outer)


def test_variables_are_bound_once() -> None:
    good = program()
    assert "is bound twice" in complaint(good.replace(eqns=[*good.eqns, *good.eqns]))
    assert "is bound twice" in complaint(good.replace(invars=[good.invars[0]] * 2))
    over = good.replace(eqns=[good.eqns[0].replace(outvars=good.invars)])
    assert "is bound twice" in complaint(over)


def test_nested_programs_are_checked() -> None:
    x, y = Var(VECTOR), Var(SCALAR)
    outer = Jaxpr([], [x], [y], [Eqn(call, [x], [y], {"jaxpr": ClosedJaxpr(program(out=SCALAR))}, PLACE)])
    text = complaint(outer)
    assert "Result 0 of twice is said to be float32[], but is float32[3]" in text
    assert "equation 0: b:f32[] = call[" in text
    eqn = outer.eqns[0].replace(params={"jaxpr": ClosedJaxpr(program())}, outvars=[y, Var(SCALAR)])
    assert "call has 1 results, the equation 2" in complaint(outer.replace(eqns=[eqn]))


def test_constants_and_literals() -> None:
    const = Var(SCALAR)
    jaxpr = Jaxpr([const], [], [const], [])
    assert "A program with 1 constvars has 0 constants" in complaint(ClosedJaxpr(jaxpr))
    assert "is said to be float32[], but is float32[2]" in complaint(ClosedJaxpr(jaxpr, [np.zeros(2, np.float32)]))
    wrong = Literal(1, SCALAR)
    wrong.val = np.int32(1)
    assert "which is no float32[]" in complaint(jaxpr.replace(outvars=[wrong]))
    assert "neither a variable nor a literal: 1.0" in complaint(jaxpr.replace(outvars=[1.0]))


def test_effects_are_owned_up_to() -> None:
    good = program()
    loud = good.replace(eqns=[good.eqns[0].replace(effects=frozenset({"io"}))])
    assert "does not own up to the effects ['io']" in complaint(loud)
    check_jaxpr(loud.replace(effects=frozenset({"io"})))
