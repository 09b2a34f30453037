"""Functions with rules of their own, as libraries use them: numbers among residuals, transposition, readers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.extend.core import get_opaque_trace_state, jaxpr_as_fun


@anima.custom_jvp
def double(x: Any) -> Any:
    return 2 * x


double.defjvp(lambda primals, tangents: (double(*primals), double(*tangents)))


@pytest.mark.parametrize("transform", [lambda g: g, anima.jit, lambda g: anima.jit(anima.vmap(g))],
                         ids=["eager", "jit", "vmap"])
def test_python_numbers_among_residuals_stay_numbers(transform: Callable[..., Any]) -> None:
    seen = []

    @anima.custom_vjp
    def f(x: Any) -> Any:
        return x * 2

    def bwd(residuals: Any, ct: Any) -> Any:
        flag, count, x, factor = residuals
        seen.append((flag, count, factor))
        return (factor * ct * x,)

    f.defvjp(lambda x: (x * 2, (True, 3, x, 0.5)), bwd)
    x = jnp.array([2.0, 4.0])
    np.testing.assert_array_equal(transform(anima.grad(lambda x: f(x).sum()))(x), 0.5 * x)
    assert seen == [(True, 3, 0.5)] and [type(r) for r in seen[0]] == [bool, int, float]


@pytest.mark.parametrize("wrap", [lambda f: f, anima.jit], ids=["eager", "jit"])
def test_custom_jvp_functions_are_transposed(wrap: Callable[..., Any]) -> None:
    x = jnp.array([1.0, -3.0])
    transposed = wrap(lambda ct: anima.linear_transpose(lambda x: double(x)[::-1] + x, x)(ct)[0])
    np.testing.assert_array_equal(transposed(x), 2 * x[::-1] + x)


@pytest.mark.parametrize("wrap", [lambda f: f, anima.jit], ids=["eager", "jit"])
def test_rules_are_asked_though_what_depends_on_their_results_has_no_cotangent(wrap: Callable[..., Any]) -> None:
    """They may give what is none: scales of numbers of 8 bits are carried on as cotangents."""
    @anima.custom_vjp
    def scaled(x: Any, scale: Any) -> Any:
        return x * scale, scale

    @anima.custom_vjp
    def known(x: Any) -> Any:
        return x

    scaled.defvjp(lambda x, scale: (scaled(x, scale), x), lambda x, cts: (cts[0], 7 * x))
    known.defvjp(lambda x: (x, None), lambda _, ct: (None,))
    for f in (lambda x, s: known(scaled(x, s)[0]) + x, lambda x, s: known(jnp.sin(scaled(x, s)[0]) * 2) + x,
              lambda x, s: known(anima.vmap(lambda x: scaled(x, s)[0])(jnp.stack([x]))).sum() + x):
        assert [*map(float, wrap(anima.grad(f, (0, 1)))(3.0, 2.0))] == [1, 21]
    for f in (lambda x, s: (scaled(x, s), x)[1], lambda x, s: anima.lax.stop_gradient(scaled(x, s)[0]) + x):
        assert [*map(float, wrap(anima.grad(f, (0, 1)))(3.0, 2.0))] == [1, 0]


@pytest.mark.parametrize("wrap", [lambda f: f, anima.jit], ids=["eager", "jit"])
def test_rules_in_loops_and_calls_are_asked_as_those_outside(wrap: Callable[..., Any]) -> None:
    @anima.custom_vjp
    def hundred(x: Any) -> Any:
        return x

    @anima.custom_vjp
    def known(x: Any) -> Any:
        return x

    hundred.defvjp(lambda x: (x, None), lambda _, ct: (jnp.full_like(ct, 100),))
    known.defvjp(lambda x: (x, None), lambda _, ct: (None,))
    scan, fori = anima.lax.scan, anima.lax.fori_loop
    for f in (lambda x: scan(lambda c, _: (hundred(c), None), x, None, length=3)[0],
              lambda x: fori(0, 3, lambda _, c: hundred(c), x), anima.jit(hundred),
              anima.jit(lambda x: scan(lambda c, _: (anima.jit(hundred)(c), None), x, None, length=3)[0])):
        assert wrap(anima.grad(lambda x, f=f: known(f(x)) + x))(3.0) == 101
    for f in (lambda x: scan(lambda c, _: (c, hundred(c)), x, None, length=3)[1].sum(),
              lambda x: scan(lambda c, _: (jnp.sin(c), None), x, None, length=3)[0]):
        assert wrap(anima.grad(lambda x, f=f: known(f(x)) + x))(3.0) == 1


@pytest.mark.parametrize("wrap", [lambda f: f, anima.jit], ids=["eager", "jit"])
def test_linear_programs_with_branches_and_loops_of_rules_are_transposed(wrap: Callable[..., Any]) -> None:
    @anima.custom_vjp
    def five(x: Any) -> Any:
        return x

    five.defvjp(lambda x: (x, None), lambda _, ct: (5 * ct,))
    for f, expected in ((lambda x: anima.lax.cond(x > 0, lambda x: five(x * x), lambda x: x, x), 60),
                        (lambda x: anima.lax.scan(lambda c, _: (five(c) * x, None), x, None, length=1)[0], 36)):
        lin = anima.linearize(f, 3.0)[1]
        transposed = wrap(lambda ct, lin=lin: anima.linear_transpose(lambda t: 2 * lin(t), 3.0)(ct)[0])
        assert transposed(1.0) == expected


def test_calls_in_calls_are_asked_once_each() -> None:
    """Or the time would double with every one."""
    @anima.custom_vjp
    def known(x: Any) -> Any:
        return x

    known.defvjp(lambda x: (x, None), lambda _, ct: (None,))
    f = jnp.sin
    for _ in range(40):
        f = anima.jit(lambda x, f=f: f(x) * 2)
    assert anima.grad(lambda x: known(f(x)) + x)(1.0) == 1
    assert anima.jit(anima.grad(lambda x: known(f(x)) + x))(1.0) == 1


def test_results_of_functions_with_rules_belong_to_the_trace_that_called_them() -> None:
    class Box:
        def __init__(self, x: Any) -> None:
            self.x, self.state = x, get_opaque_trace_state()

    anima.tree_util.register_pytree_node(Box, lambda box: ((box.x,), None), lambda _, children: Box(*children))

    @anima.custom_vjp
    def f(box: Any) -> Any:
        return Box(box.x * 2)

    def fwd(box: Any) -> Any:
        out = f(box)
        assert out.state == get_opaque_trace_state()
        return out, None

    f.defvjp(fwd, lambda _, ct: (Box(ct.x * 2),))
    assert float(anima.grad(lambda x: f(Box(x)).x)(1.0)) == 2


def test_readers_get_bodies_to_be_called() -> None:
    @anima.custom_vjp
    def triple(x: Any) -> Any:
        return 3 * x

    triple.defvjp(lambda x: (3 * x, None), lambda _, ct: (3 * ct,))
    for f, factor in ((double, 2.0), (triple, 3.0)):
        closed = anima.make_jaxpr(f)(1.0)
        (eqn,) = closed.jaxpr.eqns
        params = eqn.primitive.get_bind_params(eqn.params)
        assert [float(y) for y in params["subfuns"][0].call_wrapped(5.0)] == [5 * factor]
        assert [float(y) for y in eqn.primitive.bind(jnp.float32(5.0), **params)] == [5 * factor]
        assert float(jaxpr_as_fun(closed)(5.0)[0]) == 5 * factor
        np.testing.assert_array_equal(anima.grad(lambda x, c=closed: jaxpr_as_fun(c)(x)[0])(1.0), factor)


def test_wide_cotangents_of_floats_of_8_bits() -> None:
    @anima.custom_vjp
    def widen(x: Any) -> Any:
        return x.astype(jnp.bfloat16)

    widen.defvjp(lambda x: (widen(x), None), lambda _, ct: (ct,))
    x = jnp.ones(4, jnp.float8_e4m3fn)
    for fun in (lambda x: widen(x[jnp.array([1, 0])]).astype("float32").sum(), lambda x: widen(x)[:2].sum()):
        grad = anima.grad(fun)(x)
        assert grad.dtype == jnp.bfloat16
        np.testing.assert_array_equal(grad.astype("float32"), [1, 1, 0, 0])
