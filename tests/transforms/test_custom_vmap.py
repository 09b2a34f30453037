"""custom_vmap, sequential_vmap: which rule runs, under which transformation, with which arguments; errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.custom_batching import custom_vmap, sequential_vmap
from anima.experimental.jet import jet

X = np.float32([0.1, 0.7, -0.4])


def equal(actual: Any, expected: Any, rtol: float = 1e-5) -> None:
    leaves, structure = anima.tree.flatten(actual)
    wanted, expected_structure = anima.tree.flatten(expected)
    assert structure == expected_structure
    for a, e in zip(leaves, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(e), rtol=rtol, atol=1e-6)


def same(fun: Callable[..., Any]) -> Callable[..., Any]:
    return fun


MODES = [same, anima.jit]

# A wrong rule on purpose (times 10), so that a test sees that it ran.
seen: list[Any] = []


@custom_vmap
def tagged(x: Any, y: Any) -> Any:
    """sin(x) y; batched, 10 sin(x) y."""
    return jnp.sin(x) * y


@tagged.def_vmap
def _tagged_rule(axis_size: int, in_batched: list[bool], x: Any, y: Any) -> Any:
    seen.append((axis_size, in_batched, x.shape, y.shape))
    return 10 * jnp.sin(x) * y, True


@pytest.mark.parametrize("mode", MODES)
def test_rule_runs_where_batched(mode: Callable[..., Any]) -> None:
    f = mode(tagged)
    equal(f(0.5, 2.0), 2 * np.sin(0.5))
    equal(mode(anima.vmap(f))(X, X), 10 * np.sin(X) * X)
    equal(mode(anima.vmap(f, (None, 0)))(2.0, X), 10 * np.sin(2.0) * X)
    equal(anima.vmap(f, (1, None), out_axes=1)(np.stack([X, X], 1), X), np.stack([10 * np.sin(X) * X] * 2, 1))
    assert anima.eval_shape(anima.vmap(f), X, X).shape == (3,)


def test_what_the_rule_sees() -> None:
    seen.clear()
    anima.vmap(tagged, (1, None))(np.ones((3, 2), np.float32), 4.0)
    assert seen == [(2, [True, False], (2, 3), ())]
    seen.clear()
    anima.vmap(anima.vmap(tagged))(np.ones((3, 2), np.float32), np.ones((3, 2), np.float32))
    assert seen == [(2, [True, True], (2,), (2,))]  # once; the other vmap maps the rule


@pytest.mark.parametrize("mode", MODES)
def test_derivatives(mode: Callable[..., Any]) -> None:
    f = mode(tagged)
    c, s = np.cos(X), np.sin(X)
    equal(mode(anima.grad(f, (0, 1)))(0.5, 2.0), (2 * np.cos(0.5), np.sin(0.5)))
    equal(mode(lambda x: anima.jvp(f, (x, 2.0), (1.0, 3.0)))(0.5),
          (2 * np.sin(0.5), 2 * np.cos(0.5) + 3 * np.sin(0.5)))
    equal(mode(lambda x: anima.linearize(f, x, 2.0)[1](1.0, 3.0))(0.5), 2 * np.cos(0.5) + 3 * np.sin(0.5))
    equal(mode(anima.grad(anima.grad(f)))(0.5, 2.0), -2 * np.sin(0.5))
    # In any order of vmap and derivative, the rule is differentiated.
    equal(mode(anima.vmap(anima.grad(f, (0, 1)), (0, None)))(X, 2.0), (20 * c, 10 * s))
    equal(mode(anima.vmap(anima.grad(f, (0, 1)), (None, 0)))(0.5, X),
          (10 * np.cos(0.5) * X, np.full(3, 10 * np.sin(.5))))
    equal(mode(anima.grad(lambda x: anima.vmap(f, (0, None))(x, 2.0).sum()))(X), 20 * c)
    equal(mode(anima.grad(lambda y: anima.vmap(f, (0, None))(X, y).sum()))(2.0), 10 * s.sum())
    equal(mode(anima.vmap(lambda x, t: anima.jvp(f, (x, x), (t, 0.0))))(X, X), (10 * s * X, 10 * c * X * X))
    equal(mode(anima.vmap(lambda t: anima.jvp(f, (0.5, 2.0), (t, t))))(X),
          (np.full(3, 2 * np.sin(0.5)), (2 * np.cos(0.5) + np.sin(0.5)) * X))
    equal(mode(anima.vmap(anima.grad(anima.grad(f)), (0, None)))(X, 2.0), -20 * s)
    equal(mode(anima.vmap(anima.jacfwd(anima.grad(f)), (0, None)))(X, 2.0), -20 * s)
    equal(mode(anima.grad(lambda x: anima.vmap(anima.grad(f), (0, None))(x, 2.0).sum()))(X), -20 * s)
    # Jacobians map tangents and cotangents, not the function.
    equal(mode(anima.jacrev(f))(0.5, 2.0), 2 * np.cos(0.5))
    equal(mode(anima.jacfwd(f))(0.5, 2.0), 2 * np.cos(0.5))
    equal(mode(anima.jacrev(f))(X, 2.0), np.diag(2 * c))
    equal(mode(anima.jacfwd(f))(X, 2.0), np.diag(2 * c))
    equal(mode(anima.hessian(lambda x: f(x, 2.0).sum()))(X), np.diag(-2 * s))
    equal(mode(anima.vmap(anima.jacfwd(f), (0, None)))(X, 2.0), 20 * c)
    equal(mode(anima.vmap(anima.jacrev(f), (0, None)))(X, 2.0), 20 * c)
    equal(mode(anima.vmap(anima.hessian(f), (0, None)))(X, 2.0), -20 * s)
    equal(mode(anima.vmap(anima.vmap(anima.grad(f), (0, None)), (None, 0)))(X, X), 10 * c * X[:, None])


@pytest.mark.parametrize("mode", MODES)
def test_inside_control_flow_and_checkpoint(mode: Callable[..., Any]) -> None:
    def twice(x: Any) -> Any:
        return lax.scan(lambda c, _: (tagged(c, 1.0), None), x, None, length=2)[0]

    equal(mode(twice)(0.5), np.sin(np.sin(0.5)))
    equal(mode(anima.vmap(twice))(X), 10 * np.sin(10 * np.sin(X)), 1e-4)
    equal(mode(anima.vmap(anima.grad(twice)))(X), 100 * np.cos(10 * np.sin(X)) * np.cos(X), 1e-4)
    equal(mode(anima.vmap(lambda x: lax.while_loop(lambda c: c[1] < 2, lambda c: (tagged(c[0], 1.0), c[1] + 1),
                                                   (x, 0))[0]))(X), 10 * np.sin(10 * np.sin(X)), 1e-4)
    equal(mode(anima.vmap(lambda x: lax.cond(True, lambda x: tagged(x, 1.0), lambda x: x, x)))(X), 10 * np.sin(X))
    equal(mode(anima.vmap(anima.grad(anima.checkpoint(lambda x: tagged(x, 2.0)))))(X), 20 * np.cos(X))


@pytest.mark.parametrize("mode", MODES)
def test_pytrees_and_outputs_that_are_not_batched(mode: Callable[..., Any]) -> None:
    @custom_vmap
    def f(d: Any, n: Any) -> Any:
        return {"a": d["x"] * n, "n": n, "shared": (d["y"] ** 2,)}

    @f.def_vmap
    def rule(axis_size: int, in_batched: Any, d: Any, n: Any) -> Any:
        assert in_batched == [{"x": True, "y": False}, True] and axis_size == 3
        return ({"a": 10 * d["x"] * n, "n": n, "shared": (5 * d["y"] ** 2,)},
                {"a": True, "n": True, "shared": (False,)})

    n = np.arange(3)
    axes = ({"x": 0, "y": None}, 0)
    out = mode(anima.vmap(f, axes, {"a": 0, "n": 0, "shared": (None,)}))({"x": X, "y": 2.0}, n)
    equal(out, {"a": 10 * X * n, "n": n, "shared": (np.float32(20.0),)})

    def loss(d: Any, n: Any) -> Any:
        out = f(d, n)
        return out["a"] + out["shared"][0]

    equal(mode(anima.grad(loss))({"x": 3.0, "y": 2.0}, 4), {"x": 4.0, "y": 4.0})
    equal(mode(anima.grad(lambda d: anima.vmap(loss, axes)(d, n).sum()))({"x": X, "y": 2.0}),
          {"x": 10 * n.astype(np.float32), "y": 3 * 20.0})


@pytest.mark.parametrize("mode", MODES)
def test_vmap_of_grad_with_a_result_that_is_not_batched(mode: Callable[..., Any]) -> None:
    """Lanes share the result, so each lane's argument gets the sum of the lanes' cotangents: what the rule says."""
    f = custom_vmap(lambda x: x * x)
    f.def_vmap(lambda size, batched, x: (jnp.sum(x * x), False))
    equal(mode(anima.grad(lambda x: anima.vmap(f)(x).sum()))(X), 3 * 2 * X)
    equal(mode(anima.vmap(anima.grad(f)))(X), 3 * 2 * X)


def test_keyword_and_default_arguments() -> None:
    f = custom_vmap(lambda x, y=2.0: x * y)
    f.def_vmap(lambda size, batched, x, y: (10 * x * y, True))
    equal(f(3.0), 6.0)
    equal(anima.vmap(f)(X), 20 * X)
    equal(anima.vmap(lambda x: f(y=5.0, x=x))(X), 50 * X)


def test_a_rule_may_use_the_function_and_custom_derivatives() -> None:
    @custom_vmap
    def f(x: Any) -> Any:
        return jnp.sin(x)

    @f.def_vmap
    def rule(size: int, batched: Any, xs: Any) -> Any:
        return jnp.stack([f(xs[k]) for k in range(size)]), True

    equal(anima.vmap(f)(X), np.sin(X))
    equal(anima.vmap(anima.grad(f))(X), np.cos(X))

    outer = anima.custom_vjp(tagged)
    outer.defvjp(lambda x, y: (tagged(x, y), y), lambda y, ct: (ct * y * 7, None))
    equal(anima.vmap(outer)(X, X), 10 * np.sin(X) * X)
    equal(anima.grad(outer)(0.5, 2.0), 14.0)


def test_the_equation_and_the_name() -> None:
    (eqn,) = anima.make_jaxpr(tagged)(1.0, 2.0).eqns
    assert eqn.primitive.name == "custom_vmap_call" and eqn.params["call"].eqns[0].primitive.name == "sin"
    assert tagged.__name__ == "tagged" and "10 sin" in (tagged.__doc__ or "")


def test_sequential_vmap() -> None:
    calls = []

    @sequential_vmap
    def f(x: Any, d: Any) -> Any:
        calls.append(x.shape)
        return x * d["k"], {"k": d["k"]}

    equal(anima.vmap(f, (0, None))(X, {"k": 2.0}), (2 * X, {"k": np.full(3, 2.0)}))
    assert all(shape == () for shape in calls)
    equal(anima.jit(anima.vmap(f))(X, {"k": X}), (X * X, {"k": X}))
    square = sequential_vmap(lambda x: x * x)
    jaxpr = anima.make_jaxpr(anima.vmap(square))(X)
    assert [e.primitive.name for e in jaxpr.eqns] == ["scan"]
    grid = np.stack([X, 2 * X])
    equal(anima.vmap(anima.vmap(square))(grid), grid * grid)
    equal(anima.vmap(anima.grad(square))(X), 2 * X)
    equal(anima.grad(lambda x: anima.vmap(square)(x).sum())(X), 2 * X)


def _ruled(rule: Callable[..., Any], fun: Callable[..., Any] = lambda x: x) -> Callable[[], Any]:
    f = custom_vmap(fun)
    f.def_vmap(rule)
    return lambda: anima.vmap(f)(jnp.ones(3))


def _closing_over() -> Any:
    def inner(y: Any) -> Any:
        f = custom_vmap(lambda x: x * y)
        f.def_vmap(lambda size, batched, x: (x, True))
        return f(2.0)

    return anima.vmap(inner)(X)


@pytest.mark.parametrize("kind, phrase, fun", [
    (AttributeError, "No batching rule defined for custom_vmap function <lambda> using def_vmap",
     lambda: custom_vmap(lambda x: x)(1.0)),
    (ValueError, "must return a pair", _ruled(lambda s, b, x: x)),
    (ValueError, r"(?s)specification returned by custom vmap rule \(<lambda>\) do not match.*\(\*, \*\)",
     _ruled(lambda s, b, x: ((x, x), True), lambda x: (x, x))),
    (ValueError, r"does not match that of original custom-vmapped function",
     _ruled(lambda s, b, x: ((x, x), (True, True)))),
    (ValueError, r"float32\[4\] that it says is batched; for an axis of size 3.*must be float32\[3\]",
     _ruled(lambda s, b, x: (jnp.ones(4), True))),
    (ValueError, r"float32\[3\] that it says is not batched.*must be float32\[\]", _ruled(lambda s, b, x: (x, False))),
    (ValueError, r"int32\[3\]", _ruled(lambda s, b, x: (x.astype(int), True))),
    (TypeError, "could not be resolved to positions: y", lambda: tagged_keyword(1.0, y=2.0)),
    (anima.errors.UnexpectedTracerError, "closes over", _closing_over),
])
def test_errors(kind: type[Exception], phrase: str, fun: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=phrase):
        fun()


@custom_vmap
def tagged_keyword(x: Any, *, y: Any) -> Any:
    return x * y


tagged_keyword.def_vmap(lambda size, batched, x: (x, True))


def test_jets_go_through_the_function() -> None:
    @custom_vmap
    def f(x: Any) -> Any:
        return jnp.sin(x) * x

    @f.def_vmap
    def rule(size: int, batched: Any, x: Any) -> Any:
        return jnp.sin(x) * x, True

    value, terms = jet(f, (0.3,), ([1.0, 0.0, 0.0, 0.0],))
    want, others = jet(lambda x: jnp.sin(x) * x, (0.3,), ([1.0, 0.0, 0.0, 0.0],))
    np.testing.assert_allclose([value, *terms], [want, *others], rtol=1e-6)


@pytest.mark.parametrize("inner", [
    lambda x: jnp.minimum(x, 1.0) * jnp.where(x > 0, x, 2 * x),     # these are calls of jitted functions
    lambda x: anima.jit(lambda y: jnp.sin(y) * y)(x),
    lambda x: anima.checkpoint(lambda y: jnp.exp(y) * y)(x),
    lambda x: anima.lax.cond(x[0] > 0, lambda y: y * y, jnp.cos, x),
    lambda x: anima.lax.scan(lambda c, _: (jnp.tanh(c) * x, None), x, None, length=3)[0],
    lambda x: anima.nn.relu(x) * anima.nn.softplus(x),
])
def test_reverse_mode_through_calls_inside(inner: Any) -> None:
    f = custom_vmap(inner)
    f.def_vmap(lambda size, batched, x: (anima.vmap(inner)(x), True))
    x = jnp.array([0.5, -0.25, 1.5])
    second = lambda g: anima.grad(lambda x: anima.grad(g)(x).sum())
    for change in (anima.grad, second, lambda g: anima.jit(anima.grad(g))):
        np.testing.assert_allclose(change(lambda x: f(x).sum())(x), change(lambda x: inner(x).sum())(x), rtol=1e-5)
    xs = jnp.stack([x, 2 * x])
    np.testing.assert_allclose(anima.vmap(anima.grad(lambda x: f(x).sum()))(xs),
                               anima.vmap(anima.grad(lambda x: inner(x).sum()))(xs), rtol=1e-5)
    np.testing.assert_allclose(anima.grad(lambda xs: anima.vmap(f)(xs).sum())(xs),
                               anima.grad(lambda xs: anima.vmap(inner)(xs).sum())(xs), rtol=1e-5)


def test_rules_of_both_kinds_through_one_name() -> None:
    @anima.custom_vjp
    @custom_vmap
    def f(x: Any, y: Any) -> Any:
        return jnp.sin(x) * y

    @f.def_vmap
    def rule(size: int, mapped: Any, x: Any, y: Any) -> Any:
        return jnp.cos(x) * y, True

    f.defvjp(lambda x, y: (f(x, y), (x, y)), lambda saved, ct: (5 * ct, 7 * ct))
    equal(anima.vmap(f)(X, X), jnp.cos(X) * X)
    equal(anima.grad(f, (0, 1))(jnp.float32(0.3), jnp.float32(2)), (jnp.float32(5), jnp.float32(7)))
    with pytest.raises(AttributeError, match="'custom_vjp' object has no attribute 'defjvp'"):
        anima.custom_vjp(lambda x: x).defjvp(None)


def test_results_are_arrays_whatever_is_given() -> None:
    f = custom_vmap(lambda x, y: x * y)
    f.def_vmap(lambda size, batched, x, y: (x * y, True))
    for args in ((2.0, 3.0), (np.float32(2), np.float32(3)), (jnp.float32(2), 3.0)):
        out = f(*args)
        assert isinstance(out, anima.Array) and out.dtype == np.float32 and float(out) == 6.0
