"""linearize, and the programs it leaves behind: what is computed once, what is recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.core.stage import trace_to_jaxpr
from anima.core.trace import aval_of
from anima.transforms.linearize import linearize_flat, linearize_jaxpr


def equal(actual: Any, expected: Any, rtol: float = 1e-6) -> None:
    leaves, structure = anima.tree.flatten(actual)
    wanted, expected_structure = anima.tree.flatten(expected)
    assert structure == expected_structure
    for a, e in zip(leaves, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(e), rtol=rtol, atol=1e-7)


def test_linearize() -> None:
    y, f = anima.linearize(lambda x: x**2, 3.0)
    equal((y, f(2.0), f(-1.0)), (9.0, 12.0, -6.0))
    y, f = anima.linearize(lambda x, d: {"p": x * d["k"], "q": jnp.sin(d["k"])}, 2.0, {"k": 3.0})
    equal((y, f(1.0, {"k": 10.0})), ({"p": 6.0, "q": np.sin(3.0)}, {"p": 23.0, "q": 10 * np.cos(3.0)}))
    y, f, aux = anima.linearize(lambda x: (x**2, {"x": x}), 3.0, has_aux=True)
    equal((y, f(1.0), aux), (9.0, 6.0, {"x": 3.0}))
    _, f = anima.linearize(lambda x: (x, 5.0, jnp.arange(2)), 1.0)
    out = f(4.0)
    equal(out[:2], (4.0, 0.0))
    assert out[2].dtype == anima.float0 and out[2].shape == (2,)


def test_the_function_runs_once() -> None:
    calls = []

    def f(x: Any) -> Any:
        calls.append(1)
        return jnp.sin(x) * x

    _, f_jvp = anima.linearize(f, 0.5)
    for t in (1.0, 2.0, 3.0):
        f_jvp(t)
    assert len(calls) == 1


def test_composes() -> None:
    x = np.float32([0.1, 0.2, 0.3])
    _, f = anima.linearize(jnp.sin, x)
    equal(anima.vmap(f)(np.eye(3, dtype=np.float32)), np.diag(np.cos(x)))
    equal(anima.jit(f)(x), np.cos(x) * x)
    equal(anima.linear_transpose(f, x)(x), (np.cos(x) * x,))
    equal(anima.grad(lambda t: f(t).sum())(x), np.cos(x))
    equal(anima.jit(lambda x, t: anima.linearize(jnp.tanh, x)[1](t))(x, x), (1 - np.tanh(x) ** 2) * x)
    equal(anima.vmap(lambda x: anima.linearize(jnp.tanh, x)[1](2.0))(x), 2 * (1 - np.tanh(x) ** 2))
    equal(anima.grad(lambda x: anima.linearize(jnp.exp, x)[1](1.0))(0.3), np.exp(0.3))
    _, through_jit = anima.linearize(anima.jit(lambda v: jnp.exp(v) * 2), x)
    equal(through_jit(np.ones(3, np.float32)), 2 * np.exp(x))


def test_integers_have_no_tangents() -> None:
    _, f = anima.linearize(lambda x, n: x * n, 2.0, 3)
    equal(f(1.0, np.zeros((), anima.float0)), 3.0)


def test_errors() -> None:
    _, f = anima.linearize(lambda x: x * 2, jnp.ones(3))
    with pytest.raises(ValueError, match="tangent"):
        f(jnp.ones(4))
    with pytest.raises(ValueError, match="tangent"):
        f(jnp.ones(3, jnp.int32))
    with pytest.raises(TypeError, match="structure"):
        f((jnp.ones(3),))
    with pytest.raises(TypeError, match="structure"):
        f(jnp.ones(3), jnp.ones(3))


# ---------------------------------------------------------------- the recorded program

def recorded(fun: Any, *args: Any) -> list[str]:
    """Names of the equations that linearisation leaves to the tangent."""
    flat = [np.float32(a) for a in args]
    return [e.primitive.name for e in linearize_flat(lambda *xs: [fun(*xs)], flat, [True] * len(flat))[2].eqns]


def test_only_the_linear_part_is_recorded() -> None:
    assert recorded(jnp.sin, 0.5) == ["mul"]
    assert recorded(lambda x: jnp.sin(jnp.cos(x)), 0.5).count("mul") == 2
    assert set(recorded(lambda x: jnp.exp(x) + jnp.tanh(x) * 3.0, 0.5)) <= {"mul", "add_any", "add", "sub"}
    assert recorded(lambda x: x, 0.5) == []
    assert not {"sin", "cos", "exp"} & set(recorded(lambda x, y: jnp.sin(x) * jnp.exp(y), 0.5, 0.2))


def test_residuals_of_a_jitted_function_are_computed_in_it() -> None:
    def f(x: Any) -> list[Any]:
        return [jnp.sin(jnp.cos(x)), jnp.sum(x)]

    jaxpr, consts = trace_to_jaxpr(f, [aval_of(np.float32([1.0, 2.0]))])
    closed = anima.make_jaxpr(f)(np.float32([1.0, 2.0]))
    assert not consts and len(jaxpr.eqns) == len(closed.eqns)
    primal, tangent, mask = linearize_jaxpr(closed, (True,))
    assert mask == [True, True]
    names = [e.primitive.name for e in tangent.eqns]
    assert "sin" not in names and "cos" not in names and "sin" in [e.primitive.name for e in primal.eqns]
    assert len(tangent.in_avals) == len(primal.out_avals) - 2 + 1  # residuals, then the tangent
    again = linearize_jaxpr(closed, (True,))
    assert again[0] is primal, "the same program is split once"


def test_what_has_no_tangent_is_not_recorded() -> None:
    closed = anima.make_jaxpr(lambda x, y: (jnp.sin(x), jnp.cos(y), jnp.arange(3)))(1.0, 2.0)
    _, tangent, mask = linearize_jaxpr(closed, (True, False))
    assert mask == [True, False, False] and len(tangent.out_avals) == 1
    _, tangent, mask = linearize_jaxpr(closed, (True, False), (True, True, False))
    assert mask == [True, True, False] and len(tangent.out_avals) == 2


# ---------------------------------------------------------------- what a loop keeps

LAYERS = {
    "plain": lambda w: lambda c: jnp.sin(c @ w),
    "jit": lambda w: anima.jit(lambda c: jnp.sin(c @ w)),
    "jit of jit": lambda w: anima.jit(anima.jit(lambda c: jnp.sin(c @ w))),
    "argument": lambda w: lambda c: anima.jit(lambda c, w: jnp.sin(c @ w))(c, w),
    "checkpoint": lambda w: anima.checkpoint(lambda c: jnp.sin(c @ w)),
    "cond": lambda w: lambda c: lax.cond(c.sum() > 0, lambda c: jnp.sin(c @ w), lambda c: jnp.cos(c @ w), c),
    "switch": lambda w: lambda c: lax.switch(
        jnp.argmax(c), [lambda c: jnp.sin(c @ w), lambda c: c * w[0], jnp.tanh], c),
    "jit of cond": lambda w: anima.jit(
        lambda c: lax.cond(c.sum() > 0, lambda c: jnp.sin(c @ w), lambda c: jnp.cos(c @ w), c)),
    "vmap": lambda w: lambda c: anima.vmap(lambda row: jnp.sin(row @ w))(c),
    "scan": lambda w: lambda c: lax.scan(lambda c, _: (jnp.sin(c @ w), None), c, None, length=2)[0],
}


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_a_loop_does_not_keep_what_it_closes_over_for_each_step(layer):
    w = jnp.linspace(-1.0, 1.0, 25).reshape(5, 5)
    x = jnp.linspace(-0.5, 1.0, 10).reshape(2, 5)

    def loss(x, w):
        return jnp.sum(lax.scan(lambda c, _: (layer(w)(c), None), x, None, length=7)[0])

    def unrolled(x, w):
        for _ in range(7):
            x = layer(w)(x)
        return jnp.sum(x)

    gradient = anima.grad(loss, (0, 1))
    assert "[7,5,5]" not in str(anima.make_jaxpr(gradient)(x, w))
    for run in (gradient, anima.jit(gradient)):
        for a, b in zip(run(x, w), anima.grad(unrolled, (0, 1))(x, w), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


@anima.custom_vjp
def _backward_only(x: Any) -> Any:
    return 2 * x


_backward_only.defvjp(lambda x: (2 * x, None), lambda _, ct: (3 * ct,))


@pytest.mark.parametrize("fun, want", [
    (lambda x: (_backward_only(x), x)[1], 1.0), (anima.grad(lambda x: x * x + 0 * _backward_only(x)), 2.0),
    (lambda x: anima.jit(lambda x: (_backward_only(x), 5 * x))(x)[1], 5.0),
    (lambda x: lax.scan(lambda c, _: ((2 * c[0], _backward_only(c[1])), None), (x, x), None, 3)[0][0], 8.0)])
def test_tangents_that_no_result_has_are_not_asked_for(fun: Any, want: float) -> None:
    _, push = anima.linearize(fun, 1.5)
    assert push(1.0) == want and (anima.vmap(push)(jnp.ones(2)) == want).all()
    assert anima.jit(lambda x: anima.linearize(fun, x)[1](1.0))(1.5) == want


def test_tangents_that_results_have_are_asked_for() -> None:
    with pytest.raises(TypeError, match="can't apply forward-mode differentiation"):
        anima.linearize(lambda x: (_backward_only(x), x), 1.5)[1](1.0)
