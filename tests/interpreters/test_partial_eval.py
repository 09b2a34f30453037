"""Programs from flat functions, partly known ones, and without what is not needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import api_util
from anima.core import ShapedArray
from anima.extend import core, linear_util as lu
from anima.interpreters import partial_eval as pe

SCALAR = ShapedArray((), np.dtype(np.float32))


def run(jaxpr: Any, consts: Any, *args: Any) -> list[float]:
    return [float(x) for x in core.eval_jaxpr(jaxpr, consts, *args)]


def f(x: Any, y: Any) -> list[Any]:
    return [jnp.sin(x) * y, y * 2, 3.0]


def test_what_is_known_is_computed_and_the_rest_recorded() -> None:
    known, unknown = pe.PartialVal.known(2.0), pe.PartialVal.unknown(SCALAR)
    jaxpr, pvals, consts = pe.trace_to_jaxpr_nounits(lu.wrap_init(f), [unknown, known])
    assert [p.is_known() for p in pvals] == [False, True, True]
    assert (pvals[0].get_aval(), float(pvals[1].get_known()), pvals[2].get_known()) == (SCALAR, 4.0, 3.0)
    np.testing.assert_allclose(run(jaxpr, consts, 1.0), [2 * np.sin(1.0)], rtol=1e-6)
    for instantiate, count in ((True, 3), ([False, True, False], 2)):
        jaxpr, pvals, consts = pe.trace_to_jaxpr_nounits(f, [unknown, known], instantiate)
        assert len(jaxpr.outvars) == count == sum(not p.is_known() for p in pvals)
        np.testing.assert_allclose(run(jaxpr, consts, 1.0), [2 * np.sin(1.0), 4.0, 3.0][:count], rtol=1e-6)
    jaxpr, pvals, consts = pe.trace_to_jaxpr_nounits(f, [known, known])
    assert (jaxpr.eqns, jaxpr.outvars, consts) == ([], [], ())


def test_partial_evaluation_within_other_transformations() -> None:
    @anima.jit
    def program(x: Any) -> Any:
        jaxpr, pvals, consts = pe.trace_to_jaxpr_nounits(f, [pe.PartialVal.unknown(SCALAR), pe.PartialVal.known(x)])
        return core.eval_jaxpr(jaxpr, consts, jnp.float32(1.0))[0] + pvals[1].get_known()

    np.testing.assert_allclose(anima.grad(program)(2.0), np.sin(1.0) + 2, rtol=1e-6)


def test_partial_values() -> None:
    assert pe.PartialVal.known(1.0).get_aval() == ShapedArray((), np.dtype(np.float32), True)
    assert pe.PartialVal.unknown(SCALAR).get_known() is None
    with pytest.raises(TypeError, match="known"):
        pe.PartialVal((SCALAR, 1.0))


def test_programs_of_flat_functions() -> None:
    jaxpr, avals, consts = pe.trace_to_jaxpr_dynamic(lu.wrap_init(f), [SCALAR, SCALAR])
    assert [a.shape for a in avals] == [(), (), ()]
    np.testing.assert_allclose(run(jaxpr, consts, 1.0, 2.0), [2 * np.sin(1.0), 4.0, 3.0], rtol=1e-6)
    big = jnp.ones(3)
    full, _, consts = pe.trace_to_jaxpr_dynamic(lambda x, y: (x, jnp.sin(big) * y)[:1], [SCALAR, SCALAR])
    less, _, left = pe.trace_to_jaxpr_dynamic(lambda x, y: (x, jnp.sin(big) * y)[:1], [SCALAR, SCALAR], auto_dce=True)
    assert (len(full.eqns), len(consts), len(less.eqns), left, len(less.invars)) == (2, 1, 0, [], 2)
    kept, _, _ = pe.trace_to_jaxpr_dynamic(lambda x, y: [x], [SCALAR, SCALAR], keep_inputs=[True, False])
    assert len(kept.invars) == 1


def test_dead_code() -> None:
    jaxpr = anima.make_jaxpr(lambda x, y, z: (x * 2, y * z))(1.0, 2.0, 3.0).jaxpr
    for instantiate, expected in ((False, [True, False, False]), (True, [True] * 3),
                                  ([False, False, True], [True, False, True])):
        new, used = pe.dce_jaxpr(jaxpr, [True, False], instantiate)
        assert (used, len(new.invars), len(new.eqns)) == (expected, sum(expected), 1)
    big = jnp.ones(3)
    closed = anima.make_jaxpr(lambda x, y: (x * big, y))(1.0, 2.0)
    new, consts, used = pe.dce_jaxpr_consts(closed.jaxpr, [False, True])
    assert (consts, used, new.eqns) == ([False], [False, True], [])


def test_rules_for_dead_code() -> None:
    inner = anima.make_jaxpr(lambda x, y: (x * 2, y * 3))(1.0, 1.0)
    p = core.Primitive("pair")
    p.multiple_results = True
    p.def_abstract_eval(lambda *xs, call_jaxpr: call_jaxpr.out_avals)
    p.def_lowering(lambda *xs, call_jaxpr: core.jaxpr_as_fun(call_jaxpr)(*xs))
    assert p not in pe.dce_rules
    pe.dce_rules[p] = pe.dce_jaxpr_closed_call_rule

    def f(x: Any, y: Any) -> Any:
        return p.bind(x, y, call_jaxpr=inner)[1]

    new, used = pe.dce_jaxpr(anima.make_jaxpr(f)(1.0, 1.0).jaxpr, [True])
    assert (used, len(new.eqns[0].invars), len(new.eqns[0].params["call_jaxpr"].eqns)) == ([False, True], 1, 1)
    assert float(anima.jit(f)(1.0, 2.0)) == 6.0
    rule = pe.dce_rules[core.primitives.scan_p]
    loop = anima.make_jaxpr(lambda x, y: anima.lax.scan(lambda c, _: ((c[0] + 1, c[1] * 2), None), (x, y), None, 2))
    eqn = loop(1.0, 1.0).eqns[0]
    used, small = rule([True, False], eqn)
    assert (used, len(small.outvars)) == ([True, False], 1)
    assert pe.dce_jaxpr_call_rule([False, False], eqn) == ([False, False], None)
    pe.dce_rules[p] = lambda used, eqn: ([False] * 2, None)
    assert pe.dce_jaxpr(anima.make_jaxpr(f)(1.0, 1.0).jaxpr, [True])[0].eqns == []


def test_rules_for_calls_of_programs() -> None:
    """Where a result is used, the call has what it needs; where none is, there is no call, unless it has effects."""
    open_p, closed_p = core.Primitive("open_call"), core.Primitive("closed_call")
    closed = anima.make_jaxpr(lambda x, y: (x * 2, y * 3, x * y))(1.0, 1.0)
    for p, program, rule in ((open_p, closed.jaxpr, pe.dce_jaxpr_call_rule),
                             (closed_p, closed, pe.dce_jaxpr_closed_call_rule)):
        p.multiple_results = True
        p.def_abstract_eval(lambda *xs, call_jaxpr: [xs[0]] * 3)
        (eqn,) = anima.make_jaxpr(lambda x, y, p=p, program=program: p.bind(x, y, call_jaxpr=program))(1.0, 1.0).eqns
        for wanted, operands in (([True, False, False], [True, False]), ([False, True, False], [False, True]),
                                 ([True, True, False], [True, True]), ([False, False, True], [True, True])):
            used, small = rule(wanted, eqn)
            left = small.params["call_jaxpr"]
            assert used == operands and len(small.invars) == sum(operands) == len(getattr(left, "jaxpr", left).invars)
            assert [v for v, w in zip(eqn.outvars, wanted, strict=True) if w] == list(small.outvars)
            assert len(left.eqns) == sum(wanted)
        assert rule([False] * 3, eqn) == ([False, False], None)


def test_names_of_functions_that_are_told_of() -> None:
    info = api_util.debug_info("grad", f, (1.0, 2.0), {})
    with pytest.raises(anima.errors.TracerBoolConversionError, match=r"function f for grad|for grad") as caught:
        pe.trace_to_jaxpr_dynamic(lu.wrap_init(lambda x, y: [x if x > y else y], debug_info=info), [SCALAR, SCALAR])
    assert "The error occurred while tracing the function f at" in str(caught.value)
