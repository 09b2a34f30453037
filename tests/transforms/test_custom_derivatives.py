"""`custom_gradient`, `closure_convert`, `ravel_pytree`, and checkpointing's policies."""

from __future__ import annotations

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.ad_checkpoint import checkpoint_name, print_saved_residuals
from anima.flatten_util import ravel_pytree


@pytest.mark.parametrize("wrap", [lambda f: f, anima.jit], ids=["eager", "jit"])
def test_custom_gradient(wrap):
    @anima.custom_gradient
    def f(x):
        return x**2, lambda ct: (ct * 10.0 * x,)

    assert f(3.0) == 9.0
    assert wrap(anima.grad(f))(3.0) == 30.0
    assert wrap(anima.vmap(anima.grad(f)))(jnp.arange(3.0)).tolist() == [0.0, 10.0, 20.0]


def test_closure_convert_gives_gradients_by_what_is_closed_over():
    def apply(f, x, *consts):
        return f(x, *consts)

    apply = anima.custom_vjp(apply, nondiff_argnums=(0,))
    apply.defvjp(lambda f, x, *consts: (f(x, *consts), (x, consts)),
                 lambda f, res, ct: anima.vjp(f, res[0], *res[1])[1](ct))

    def loss(w):
        converted, consts = anima.closure_convert(lambda x: jnp.sin(w * x), 2.0)
        return apply(converted, 2.0, *consts)

    np.testing.assert_allclose(anima.grad(loss)(0.5), 2.0 * np.cos(1.0), rtol=1e-6)


def test_ravel_pytree():
    tree = {"a": jnp.arange(3), "b": [jnp.ones((2, 2)), 2.0]}
    flat, unravel = ravel_pytree(tree)
    assert flat.tolist() == [0, 1, 2, 1, 1, 1, 1, 2] and flat.dtype == np.dtype("float32")
    back = unravel(flat)
    assert back["a"].dtype == np.dtype("int32") and back["b"][0].shape == (2, 2)
    with pytest.raises(ValueError, match="Sum of sizes 8 must be equal to dimension 0 of the operand shape"):
        unravel(jnp.ones(3))
    assert ravel_pytree(())[0].shape == (0,)


def deep(x):
    return jnp.sin(checkpoint_name(jnp.sin(x), "inner") * x)


POLICIES = [None, anima.checkpoint_policies.everything_saveable, anima.checkpoint_policies.nothing_saveable,
            anima.checkpoint_policies.dots_saveable, anima.checkpoint_policies.save_only_these_names("inner"),
            anima.checkpoint_policies.save_any_names_but_these("inner")]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("wrap", [lambda f: f, anima.jit], ids=["eager", "jit"])
def test_checkpoint_changes_no_derivative(policy, wrap):
    f = anima.checkpoint(deep, policy=policy)
    np.testing.assert_allclose(wrap(anima.grad(f))(0.7), anima.grad(deep)(0.7), rtol=1e-6)
    np.testing.assert_allclose(wrap(anima.grad(anima.grad(f)))(0.7), anima.grad(anima.grad(deep))(0.7), rtol=1e-5)
    np.testing.assert_allclose(wrap(anima.vmap(anima.grad(f)))(jnp.arange(3.0)),
                               anima.vmap(anima.grad(deep))(jnp.arange(3.0)), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(anima.jvp(f, (0.7,), (1.0,))[1], anima.grad(deep)(0.7), rtol=1e-6)


def test_what_is_saved(capsys):
    print_saved_residuals(deep, 1.0)
    assert len(capsys.readouterr().out.splitlines()) == 4
    print_saved_residuals(anima.checkpoint(deep), 1.0)
    assert len(capsys.readouterr().out.splitlines()) == 1
    names = anima.checkpoint(deep, policy=anima.checkpoint_policies.save_only_these_names("inner"))
    print_saved_residuals(names, 1.0)
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_checkpoint_of_a_scan_body_keeps_carries_only():
    def loss(x, wrap):
        def body(c, _):
            return jnp.sin(jnp.cos(c) * c) * x, None

        return anima.lax.scan(wrap(body), x, None, length=7)[0]

    expected = anima.grad(lambda x: loss(x, lambda f: f))(0.5)
    for wrap in (lambda f: f, anima.jit):
        np.testing.assert_allclose(wrap(anima.grad(lambda x: loss(x, anima.checkpoint)))(0.5), expected, rtol=1e-5)


def test_static_arguments_of_checkpoint():
    @anima.checkpoint
    def plain(x, flag=True):
        return x * 2.0

    @anima.remat(static_argnums=(1,))
    def with_flag(x, flag):
        return jnp.sin(x) if flag else x

    assert anima.grad(plain)(1.0) == 2.0
    np.testing.assert_allclose(anima.grad(with_flag)(1.0, True), np.cos(1.0), rtol=1e-6)
    assert anima.grad(with_flag)(1.0, False) == 1.0
