"""Programs read, made and interpreted from outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import core as public, lax
from anima.extend import core, source_info_util
from anima.extend.core import primitives

INVERSES = {primitives.exp_p: jnp.log, primitives.tanh_p: jnp.arctanh}


def inverse(fun: Any) -> Any:
    """The inverse of a chain of operations, found from its program, last equation first."""
    def inverted(*args: Any) -> Any:
        jaxpr = anima.make_jaxpr(fun)(*args).jaxpr
        env = dict(zip(jaxpr.outvars, args, strict=True))
        for eqn in reversed(jaxpr.eqns):
            if eqn.primitive not in INVERSES:
                raise NotImplementedError(f"{eqn.primitive} has no registered inverse.")
            env[eqn.invars[0]] = INVERSES[eqn.primitive](env[eqn.outvars[0]])
        return env[jaxpr.invars[0]]

    return inverted


def chain(x: Any) -> Any:
    return jnp.exp(jnp.tanh(x))


def test_an_interpreter_that_inverts() -> None:
    x = np.float32([0.1, 0.5])
    for mode in (lambda f: f, anima.jit):
        np.testing.assert_allclose(mode(anima.vmap(inverse(chain)))(chain(x)), x, rtol=1e-5)
        slopes = mode(anima.vmap(anima.grad(inverse(chain))))(chain(x))
        np.testing.assert_allclose(slopes, 1 / anima.vmap(anima.grad(chain))(x), rtol=1e-5)
    with pytest.raises(NotImplementedError, match="sin has no registered inverse"):
        inverse(jnp.sin)(1.0)


def interpret(jaxpr: Any, consts: Any, *args: Any) -> list[Any]:
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    for eqn in jaxpr.eqns:
        values = [a.val if isinstance(a, core.Literal) else env[a] for a in eqn.invars]
        with source_info_util.user_context(eqn.source_info.traceback), eqn.ctx.manager:
            out = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
        env.update(zip(eqn.outvars, out if eqn.primitive.multiple_results else [out], strict=True))
    return [a.val if isinstance(a, core.Literal) else env[a] for a in jaxpr.outvars]


@anima.custom_jvp
def own(x: Any) -> Any:
    return x * x


own.defjvp(lambda primals, tangents: (own(*primals), 3 * tangents[0]))


def program(x: Any) -> Any:
    y = lax.scan(lambda c, _: (jnp.sin(c) * x, c), x, None, length=3)[0]
    return lax.cond(y > 0, lambda y: y * 2, jnp.exp, y) + anima.jit(jnp.cos)(x) + own(x) + jnp.ones(2).sum()


def test_an_interpreter_that_evaluates() -> None:
    closed = anima.make_jaxpr(program)(1.0)

    def again(x: Any) -> Any:
        return interpret(closed.jaxpr, closed.consts, x)[0]

    for mode in (lambda f: f, anima.jit):
        for of in (lambda f: f, anima.grad):
            np.testing.assert_allclose(mode(of(again))(0.7), of(program)(0.7), rtol=1e-6)
    twice = anima.make_jaxpr(again)(1.0)
    assert [e.source_info.traceback for e in twice.eqns] == [e.source_info.traceback for e in closed.eqns]


def test_programs_are_made_as_they_are_read() -> None:
    closed = anima.make_jaxpr(lambda x, y: jnp.sin(x) + y)(1.0, 2.0)
    old = closed.jaxpr
    last = old.eqns[-1]
    fresh = core.gensym()(last.outvars[0].aval)
    product = core.new_jaxpr_eqn(last.invars, [fresh], primitives.mul_p, {}, core.no_effects, last.source_info)
    new = core.Jaxpr(old.constvars, old.invars, [fresh], [*old.eqns[:-1], product], old.effects, old.debug_info)
    core.check_jaxpr(new)
    np.testing.assert_allclose(core.jaxpr_as_fun(core.ClosedJaxpr(new, closed.consts))(1.0, 3.0), [3 * np.sin(1.0)],
                               rtol=1e-6)
    assert product.source_info == last.source_info
    assert product.replace(primitive=primitives.sub_p, outvars=last.outvars).primitive is primitives.sub_p
    wrong = new.replace(outvars=last.outvars)
    with pytest.raises(core.JaxprTypeError):
        core.check_jaxpr(wrong)
    np.testing.assert_allclose(core.jaxpr_as_fun(closed, 1.0)(2.0), [np.sin(1.0) + 2], rtol=1e-6)


def test_what_is_known_of_a_program() -> None:
    closed = anima.make_jaxpr(program)(1.0)
    info = closed.debug_info
    assert (info.func_src_info.split(" at ")[0], info.arg_names) == ("program", ("x",))
    assert not closed.is_high and closed.jaxpr.in_aval_qdds == closed.in_avals == closed.in_aval_qdds
    inner = list(core.subjaxprs(closed.jaxpr))
    assert len(inner) >= 4 and all(type(j) is core.Jaxpr for j in inner)
    scan = next(e for e in closed.eqns if e.primitive is primitives.scan_p)
    assert list(core.jaxprs_in_params(scan.params)) == [scan.params["jaxpr"].jaxpr]
    var = closed.jaxpr.invars[0]
    assert (var.initial_qdd, var.final_qdd, var.pretty_print(None)) == (None, None, repr(var))
    assert repr(core.DropVar(var.aval)) == "_"
    assert core.Literal(2.0, None).val == 2 and core.Literal(2.0, None).aval is None
    literal = core.Literal(2.0, core.ShapedArray((), np.dtype(np.float32)))
    assert (literal.hash, literal.pretty_print(None, print_dtype=False)) == (hash(2.0), "2.0")
    assert literal.pretty_print(None) == f"2.0:{literal.aval.str_short()}"


def test_every_name_of_a_primitive_is_its_own() -> None:
    named = {name: p for name, p in vars(primitives).items() if name.endswith("_p") and name[0] != "_"}
    assert len(named) > 160
    assert len(set(map(id, named.values()))) == len(named)
    assert (primitives.sin_p, primitives.scan_p) == (lax.sin_p, lax.scan_p)
    assert anima.make_jaxpr(anima.jit(jnp.sin))(1.0).eqns[0].primitive is primitives.jit_p


@pytest.mark.parametrize("call", [primitives.call_p, primitives.closed_call_p])
def test_programs_as_one_operation(call: Any) -> None:
    closed = anima.make_jaxpr(lambda x, y: (jnp.sin(x) * y, y))(1.0, 2.0)

    def f(x: Any) -> Any:
        return call.bind(x, 2 * x, call_jaxpr=closed)[0]

    assert call.call_primitive
    assert anima.make_jaxpr(f)(1.0).eqns[-1].primitive is call
    for mode in (lambda f: f, anima.jit):
        np.testing.assert_allclose(mode(f)(1.0), 2 * np.sin(1.0), rtol=1e-6)
        np.testing.assert_allclose(mode(anima.grad(f))(1.0), 2 * np.sin(1.0) + 2 * np.cos(1.0), rtol=1e-6)
        np.testing.assert_allclose(mode(anima.vmap(f))(np.float32([1, 2])), [2 * np.sin(1.0), 4 * np.sin(2.0)],
                                   rtol=1e-6)
    assert core.call_impl(lambda x: x + 1, 2) == 3


def test_types_of_stacks_and_elements() -> None:
    aval = core.ShapedArray((3, 2), np.dtype(np.float32))
    assert core.mapped_aval(3, 0, aval).shape == core.mapped_aval(3, -2, aval).shape == (2,)
    assert core.unmapped_aval(4, 1, aval).shape == (3, 4, 2)
    assert core.unmapped_aval(4, -1, aval).shape == (3, 2, 4)
    assert core.mapped_aval(5, None, aval) is core.unmapped_aval(5, None, aval) is aval
    with pytest.raises(ValueError, match="size 4"):
        core.mapped_aval(4, 0, aval)
    assert core.primal_dtype_to_tangent_dtype(np.int32) == anima.float0
    assert core.primal_dtype_to_tangent_dtype(np.complex64) == np.complex64


@pytest.mark.parametrize(("x", "valid"), [(1, True), (jnp.ones(2), True), (np.float16(1), True), ("a", False),
                                          (None, False), ([1.0], False)])
def test_values_that_operations_accept(x: Any, valid: bool) -> None:
    assert core.valid_jaxtype(x) is valid


def test_concrete_values() -> None:
    assert core.concrete_or_error(int, 3.0) == core.concrete_or_error(None, 3) == 3
    with pytest.raises(anima.errors.ConcretizationTypeError, match="in the size of the loop"):
        anima.jit(lambda n: core.concrete_or_error(int, n, "in the size of the loop"))(3)


def test_traces() -> None:
    outside = core.get_opaque_trace_state()
    assert outside == core.get_opaque_trace_state() and hash(outside) == hash(core.get_opaque_trace_state())
    seen: dict[str, Any] = {}

    def f(x: Any) -> Any:
        seen.update(state=core.get_opaque_trace_state(), jit=core.unsafe_am_i_under_a_jit_DO_NOT_USE(),
                    vmap=core.unsafe_am_i_under_a_vmap_DO_NOT_USE(), names=core.unsafe_get_axis_names_DO_NOT_USE())
        trace = core.find_top_trace([x])
        with core.take_current_trace() as taken:
            assert taken is trace
            seen["done"] = jnp.sin(1.0)
        with core.set_current_trace(trace):
            y = x * 2
        with core.set_current_trace(None), public.eval_context():
            assert float(jnp.cos(0.0)) == 1.0
        return y

    assert float(anima.jit(f)(1.0)) == 2.0
    assert (seen["jit"], seen["vmap"], seen["names"]) == (True, False, [])
    assert seen["state"] != outside
    np.testing.assert_allclose(seen["done"], np.sin(1.0), rtol=1e-6)
    anima.vmap(f, axis_name="i")(np.ones(2))
    assert (seen["jit"], seen["vmap"], seen["names"]) == (False, True, ["i"])
    assert not core.nonempty_axis_env_DO_NOT_USE()


def test_public_names_of_core() -> None:
    closed = anima.make_jaxpr(lambda x: x * 2)(1.0)
    assert public.eval_jaxpr(closed.jaxpr, closed.consts, 3.0) == [6.0]
    assert (public.max_dim(2, 3), public.min_dim(2, 3)) == (3, 2)
    assert isinstance(closed.in_avals[0], public.AbstractValue)
    kept = anima.make_jaxpr(lambda x: public.eval_jaxpr(closed.jaxpr, (), x))(1.0)
    here = anima.make_jaxpr(lambda x: public.eval_jaxpr(closed.jaxpr, (), x, propagate_source_info=False))(1.0)
    assert kept.eqns[0].source_info == closed.eqns[0].source_info != here.eqns[0].source_info
