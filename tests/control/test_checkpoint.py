"""What a checkpoint's policy keeps inside of loops and branches is not computed again on the way back."""

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.ad_checkpoint import checkpoint_name, saved_residuals
from anima.core.jaxpr import subjaxprs

policies = anima.checkpoint_policies
NAMED = policies.save_only_these_names("y")
random = np.random.default_rng(0)
W = jnp.asarray(random.normal(size=(4, 4)), np.float32) / 2
C = jnp.asarray(random.normal(size=4), np.float32)
XS = jnp.asarray(random.normal(size=(10, 4)), np.float32)


def step(w, c, x):
    y = checkpoint_name(c @ w + x, "y")
    return jnp.tanh(y), y[0]


def loop(w, c, xs):
    c, ys = lax.scan(lambda c, x: step(w, c, x), c, xs)
    return jnp.sum(ys) + jnp.sum(c)


def layers(w, c, xs):
    """Inside of a step: a jitted function, another loop, and a choice."""
    @anima.jit
    def inner(c, x):
        c, y = lax.scan(lambda c, k: step(w * k, c, x), c, jnp.arange(3.0))
        return lax.cond(c[0] > 0, lambda c: step(w, c, x)[0], lambda c: jnp.sin(c), c), y[0]

    c, ys = lax.scan(inner, c, xs)
    return jnp.sum(ys) + jnp.sum(c)


def choice(w, c, xs):
    def on_true(c):
        return jnp.tanh(checkpoint_name(jnp.sin(c) @ w, "y"))

    return jnp.sum(lax.cond(xs[0, 0] > 0, on_true, lambda c: checkpoint_name(jnp.exp(c), "no"), c) ** 2)


def count(jaxpr, name, times=1):
    """How often an operation is done, steps of loops counted."""
    total = 0
    for e in jaxpr.eqns:
        steps = times * (e.params["length"] if e.primitive.name == "scan" else 1)
        total += times * (e.primitive.name == name) + sum(count(j, name, steps) for j in subjaxprs(e.params))
    return total


def test_prevent_cse_has_it_computed_again():
    """Compiled, too: what goes back does not read what went forward, unless it may."""
    def sines(prevent_cse):
        f = anima.checkpoint(lambda x: jnp.sin(jnp.sin(x)), prevent_cse=prevent_cse)
        return str(anima.jit(anima.value_and_grad(f)).lower(1.0).fused).count(" = sin ")

    assert (sines(True), sines(False)) == (3, 2)


@pytest.mark.parametrize("policy", [policies.dots_saveable, NAMED, policies.everything_saveable,
                                    policies.nothing_saveable, policies.save_anything_except_these_names("y")])
@pytest.mark.parametrize("fun", [loop, layers, choice])
def test_gradients_are_the_same_with_every_policy(fun, policy):
    want = anima.grad(fun, (0, 1, 2))(W, C, XS)
    kept = anima.grad(anima.checkpoint(fun, policy=policy), (0, 1, 2))
    cs = jnp.stack([C, -C])
    lanes = anima.jit(anima.vmap(kept, (None, 0, None)))(W, cs, XS)
    negative = anima.grad(fun, (0, 1, 2))(W, -C, XS)
    for a, b, many, other in zip(want, anima.jit(kept)(W, C, XS), lanes, negative, strict=True):
        np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-6)
        np.testing.assert_allclose(many, jnp.stack([a, other]), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("fun, policy, dots, tanhs", [
    (loop, None, 40, 20), (loop, policies.nothing_saveable, 40, 20), (loop, policies.dots_saveable, 30, 20),
    (loop, NAMED, 30, 20), (loop, policies.everything_saveable, 30, 10),
    (layers, None, 160, 80), (layers, NAMED, 120, 80), (layers, policies.dots_saveable, 120, 80),
    (choice, None, 4, 2), (choice, NAMED, 3, 2), (choice, policies.everything_saveable, 3, 1)])
def test_what_is_kept_is_not_computed_again(fun, policy, dots, tanhs):
    jaxpr = anima.make_jaxpr(anima.grad(anima.checkpoint(fun, policy=policy), (0, 1)))(W, C, XS)
    assert (count(jaxpr, "dot_general"), count(jaxpr, "tanh")) == (dots, tanhs)


@pytest.mark.parametrize("fun, shape", [(loop, (10, 4)), (layers, (10, 3, 4)), (choice, (4,))])
def test_what_is_kept_is_stacked_and_shown(fun, shape):
    kept = saved_residuals(anima.checkpoint(fun, policy=NAMED), W, C, XS)
    named = [aval.shape for aval, origin in kept if origin.startswith("named 'y' from ")]
    assert shape in named
    assert all("argument" in origin or "named 'y'" in origin for _, origin in kept)


def test_policies_reach_into_loops_in_higher_derivatives():
    def second(policy):
        fun = anima.checkpoint(loop, policy=policy)
        return anima.grad(lambda c: jnp.sum(anima.grad(fun, 1)(W, c, XS) ** 2))

    want = anima.grad(lambda c: jnp.sum(anima.grad(loop, 1)(W, c, XS) ** 2))(C)
    for policy in (policies.dots_saveable, NAMED):
        np.testing.assert_allclose(second(policy)(C), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("inner, more", [
    (lambda f: f, 0), (anima.jit, 0), (anima.checkpoint, 1), (lambda f: anima.jit(anima.checkpoint(f)), 1),
    (lambda f: anima.checkpoint(anima.jit(f)), 1), (lambda f: anima.checkpoint(f, policy=policies.dots_saveable), 1),
    (lambda f: anima.checkpoint(f, policy=policies.everything_saveable), 0)])
@pytest.mark.parametrize("policy, computed", [
    (None, 2), (policies.nothing_saveable, 2), (policies.everything_saveable, 1), (policies.dots_saveable, 2)])
def test_a_checkpoint_in_a_checkpoint_is_one_of_its_own(policy, computed, inner, more):
    """What the inner one does not keep, the outer one's policy does not, either: it is done once more on the way back,
    and not seen as a part of the outer function, as jitted functions are."""
    part = inner(lambda x: jnp.exp(jnp.tanh(jnp.exp2(x))))
    fun = anima.checkpoint(lambda x: jnp.sinh(part(x)), policy=policy)
    slope = anima.grad(fun)
    found = anima.make_jaxpr(slope)(0.3)
    assert [count(found, name) for name in ("exp2", "tanh")] == [computed + more] * 2
    want = anima.grad(lambda x: jnp.sinh(jnp.exp(jnp.tanh(jnp.exp2(x)))))(0.3)
    np.testing.assert_allclose(slope(0.3), want, rtol=1e-5)


@pytest.mark.parametrize("gives", [lambda y: y, lambda y: (y, y), lambda y: (y, jnp.sin(y)), lambda y: None])
def test_what_a_loop_stacks_already_is_not_stacked_again(gives):
    def fun(w, c, xs):
        def body(c, x):
            y = checkpoint_name(c @ w + x, "y")
            return jnp.tanh(y), gives(y)

        c, ys = lax.scan(body, c, xs)
        return jnp.sum(c) + sum(jnp.sum(y * y) for y in anima.tree.leaves(ys))

    slope = anima.grad(anima.checkpoint(fun, policy=NAMED), (0, 1))

    def scans(jaxpr):
        for e in jaxpr.eqns:
            if e.primitive.name == "scan":
                yield [v.aval.shape for v in e.outvars]
            for inner in subjaxprs(e.params):
                yield from scans(inner)

    forward = next(scans(anima.make_jaxpr(slope)(W, C, XS)))
    assert forward.count((10, 4)) == max(len(anima.tree.leaves(gives(1.0))), 1)
    for got, want in zip(slope(W, C, XS), anima.grad(fun, (0, 1))(W, C, XS), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5)  # sums of terms of 10


@pytest.mark.parametrize("names", [(), (0,), (1,), (0, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("index", [0, 1, 2])
def test_results_that_some_branches_keep(names, index):
    """Are kept whichever is taken: no branch is run again for them."""
    branches = [(lambda c, k=k: checkpoint_name((c + k) @ W, "y" if k in names else "no")) for k in range(3)]

    def fun(c):
        return jnp.sum(jnp.sin(lax.switch(index * jnp.int32(c[0] < 9), branches, c)))

    slope = anima.grad(anima.checkpoint(fun, policy=NAMED))
    assert count(anima.make_jaxpr(slope)(C), "dot_general") == (6 if names else 9)
    np.testing.assert_allclose(slope(C), anima.grad(fun)(C), rtol=1e-5)
    np.testing.assert_allclose(anima.jit(slope)(C), anima.grad(fun)(C), rtol=1e-5)


@pytest.mark.parametrize("policy", [NAMED, policies.everything_saveable])
def test_while_loops_have_the_same_derivatives(policy):
    def fun(c):
        return jnp.sum(lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, step(W, s[1], XS[0])[0]), (0, c))[1])

    def second(f):
        return anima.grad(lambda c: jnp.sum(anima.grad(f)(c) ** 2))

    kept = anima.checkpoint(fun, policy=policy)
    np.testing.assert_allclose(anima.grad(kept)(C), anima.grad(fun)(C), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(second(kept)(C), second(fun)(C), rtol=1e-4, atol=1e-6)
