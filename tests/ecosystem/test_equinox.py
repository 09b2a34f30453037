"""Equinox: modules, filtered transformations, loops that are differentiated through checkpoints, errors at run time."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.extend.core
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

RECURRENT = [0.706270278, 0.702198982, 0.695259154, 0.627858162]  # losses of the first three steps, and of the tenth
LAYERS = [0.059922561, -0.148177385, 0.002095357, 83.364028931, 0.241812661, -0.158588469, 0.237455234]


class Recurrent(eqx.Module):
    """A GRU that reads a sequence, and a linear layer on its last state."""

    cell: eqx.nn.GRUCell
    head: eqx.nn.Linear
    size: int = eqx.field(static=True)

    def __init__(self, size: int, key: Any) -> None:
        one, two = jr.split(key)
        self.cell, self.head, self.size = eqx.nn.GRUCell(2, size, key=one), eqx.nn.Linear(size, 1, key=two), size

    def __call__(self, xs: Any) -> Any:
        last, _ = jax.lax.scan(lambda h, x: (self.cell(x, h), None), jnp.zeros(self.size), xs)
        return self.head(last)[0]


def test_training_a_recurrent_network() -> None:
    """Which way a spiral turns, by stochastic gradient descent with momentum, written by hand."""
    t = jnp.linspace(0, 6, 12)
    way = jnp.where(jnp.arange(16) % 2 == 0, 1.0, -1.0)
    start = jr.uniform(jr.key(1), (16, 1)) * 6
    xs = jnp.stack([jnp.cos(start + t), jnp.sin(start + t) * way[:, None]], axis=-1)
    model = Recurrent(8, jr.key(0))

    def loss(model: Any) -> Any:
        return jnp.mean(jnp.logaddexp(0.0, -way * jax.vmap(model)(xs)))

    @eqx.filter_jit
    def step(model: Any, momentum: Any) -> Any:
        value, grads = eqx.filter_value_and_grad(loss)(model)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        return eqx.apply_updates(model, jax.tree.map(lambda m: -0.2 * m, momentum)), momentum, value

    momentum = jax.tree.map(jnp.zeros_like, eqx.filter(model, eqx.is_inexact_array))
    losses = []
    for _ in range(40):
        model, momentum, value = step(model, momentum)
        losses.append(float(value))
    np.testing.assert_allclose(losses[:3] + losses[9:10], RECURRENT[:4], rtol=1e-3)
    assert losses[-1] < 0.1


def test_layers() -> None:
    """A small image network with batch statistics and dropout: their states are threaded through `vmap`."""

    class Net(eqx.Module):
        conv: eqx.nn.Conv2d
        norm: eqx.nn.BatchNorm
        attend: eqx.nn.MultiheadAttention
        drop: eqx.nn.Dropout
        out: eqx.nn.Linear

        def __init__(self, key: Any) -> None:
            a, b, c = jr.split(key, 3)
            self.conv = eqx.nn.Conv2d(1, 4, 3, padding=1, key=a)
            self.norm = eqx.nn.BatchNorm(4, axis_name="batch", mode="ema")
            self.attend = eqx.nn.MultiheadAttention(2, 4, key=b)
            self.drop, self.out = eqx.nn.Dropout(0.25), eqx.nn.Linear(4, 3, key=c)

        def __call__(self, x: Any, state: Any, key: Any) -> Any:
            x = eqx.nn.AvgPool2d(2, 2)(jax.nn.relu(self.conv(x)))
            x, state = self.norm(x, state)
            tokens = x.reshape(4, -1).T
            return self.out(self.drop(self.attend(tokens, tokens, tokens), key=key).mean(0)), state

    net, state = eqx.nn.make_with_state(Net)(jr.key(0))

    @eqx.filter_jit
    def run(net: Any, state: Any, x: Any, keys: Any) -> Any:
        def loss(net: Any) -> Any:
            values, new = jax.vmap(net, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))(x, state, keys)
            return values.sum(), (values, new)

        grads, (values, new) = eqx.filter_grad(loss, has_aux=True)(net)
        return values, new, grads

    x = jr.normal(jr.key(1), (5, 1, 8, 8))
    values, state, grads = run(net, state, x, jr.split(jr.key(2), 5))
    values, state, grads = run(net, state, x + 1, jr.split(jr.key(3), 5))
    np.testing.assert_allclose(values[0], LAYERS[:3], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(jnp.abs(grads.conv.weight).sum(), LAYERS[3], rtol=1e-3)
    frozen = eqx.nn.inference_mode(net)
    np.testing.assert_allclose(frozen(x[0], state, None)[0], LAYERS[4:], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ["checkpointed", "bounded"])
def test_reverse_mode_through_while_loops(kind: str) -> None:
    """The square root by Newton's iteration, its derivative through each step, of many numbers at once."""

    def root(a: Any) -> Any:
        def more(c: Any) -> Any:
            return jnp.abs(c[1] ** 2 - a) > 1e-5 * a

        _, x = eqxi.while_loop(more, lambda c: (c[0] + 1, 0.5 * (c[1] + a / c[1])), (0, a), max_steps=16, kind=kind,
                               checkpoints=3 if kind == "checkpointed" else None)
        return x

    a = jnp.array([0.5, 2.0, 9.0, 100.0])
    value, slope = jax.jit(jax.vmap(jax.value_and_grad(root)))(a)
    np.testing.assert_allclose(value, np.sqrt(a), rtol=1e-4)
    np.testing.assert_allclose(slope, 0.5 / np.sqrt(a), rtol=1e-3)


def test_custom_rules_and_closures() -> None:
    """Residuals of every kind, arguments that are no arrays, and a function made a pytree of what it closes over."""

    @eqx.filter_custom_vjp
    def scale(x: Any, how: str) -> Any:
        return 2 * x["a"]

    @scale.def_fwd
    def _(perturbed: Any, x: Any, how: str) -> Any:
        assert perturbed == {"a": True, "b": False}
        return 2 * x["a"], (True, 3, how, jnp.sin(x["a"]))

    @scale.def_bwd
    def _(residuals: Any, ct: Any, perturbed: Any, x: Any, how: str) -> Any:
        flag, number, text, sine = residuals
        assert flag is True and number == 3 and type(number) is int and text == how == "twice"
        return {"a": number * ct * sine, "b": None}

    def f(a: Any) -> Any:
        return scale({"a": a, "b": jnp.ones(2)}, "twice").sum()

    a = jnp.array([0.5, 1.0])
    np.testing.assert_allclose(eqx.filter_jit(eqx.filter_grad(f))(a), 3 * np.sin(a), rtol=1e-6)

    def outer(w: Any) -> Any:
        g = eqx.filter_closure_convert(lambda x: jnp.tanh(w * x), a)
        assert len(g.consts) == 1
        return jax.lax.fori_loop(0, 3, lambda _, x: g(x), a)

    w, step = jnp.array([1.5, 0.8]), 1e-2
    slopes = (outer(w + step) - outer(w - step)) / (2 * step)
    np.testing.assert_allclose(jnp.diag(jax.jit(jax.jacfwd(outer))(w)), slopes, rtol=1e-3)
    hessian = eqx.filter_hessian(lambda x: jnp.sum(jnp.sin(x) ** 3))(a)
    np.testing.assert_allclose(np.diag(hessian), 6 * np.sin(a) * np.cos(a) ** 2 - 3 * np.sin(a) ** 3, rtol=1e-4)


def test_errors_of_running_programs() -> None:
    """`error_if` ends the program, with its message; in a loop and under `vmap`, too."""

    @eqx.filter_jit
    def settle(x: Any) -> Any:
        def body(c: Any) -> Any:
            return c[0] + 1, eqx.error_if(c[1] - 1, c[1] < 0, "went below zero")

        return jax.lax.while_loop(lambda c: c[0] < 4, body, (0, x))[1]

    np.testing.assert_allclose(settle(jnp.array(5.0)), 1.0)
    for call in (settle, eqx.filter_vmap(settle)):
        with pytest.raises(eqx.EquinoxRuntimeError, match="went below zero"):
            call(jnp.array(1.0) if call is settle else jnp.array([9.0, 1.0]))
    with pytest.raises(jax.errors.JaxRuntimeError, match="went below zero"):
        jax.jit(lambda x: eqx.error_if(x, x < 0, "went below zero"))(-1.0)


def test_functions_that_stay_calls() -> None:
    """`noinline` compiles a function by itself, and calls it: with derivatives and under `vmap`."""
    net = eqx.nn.MLP(2, 2, 16, 2, key=jr.key(5))
    call = eqxi.noinline(net)
    x = jr.normal(jr.key(6), (3, 2))

    def both(f: Any) -> Any:
        return eqx.filter_jit(jax.vmap(jax.value_and_grad(lambda x: jnp.sum(f(f(x)) ** 2))))(x)

    for inlined, called in zip(both(net), both(call), strict=True):
        np.testing.assert_allclose(called, inlined, rtol=1e-5, atol=1e-6)


def test_writing_and_reading(tmp_path: Any) -> None:
    model = eqx.nn.MLP(3, 1, 4, 1, key=jr.key(0))
    eqx.tree_serialise_leaves(tmp_path / "model.eqx", model)
    read = eqx.tree_deserialise_leaves(tmp_path / "model.eqx", eqx.filter_eval_shape(eqx.nn.MLP, 3, 1, 4, 1,
                                                                                    key=jr.key(1)))
    assert eqx.tree_equal(read, model)
    jaxpr, _, _ = eqx.filter_make_jaxpr(model)(jnp.ones(3))
    again = eqxi.finalise_jaxpr(jaxpr)
    (value,) = jax.extend.core.jaxpr_as_fun(again)(jnp.ones(3))
    np.testing.assert_allclose(value, model(jnp.ones(3)), rtol=1e-6)
