"""Flax's nnx: modules that hold their variables, in jit, grad, vmap and scan.

Constants are those of the same program on JAX.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

LOSSES = [1.27012897, 0.664024, 0.4276489, 0.26902515]
GENERATED = [0.5451485, 0.32355443, 0.87322515, -1.6924751]


class Net(nnx.Module):
    """Two layers with batch normalisation and dropout, which counts its calls."""

    def __init__(self, size, rngs):
        self.first = nnx.Linear(4, size, rngs=rngs)
        self.norm = nnx.BatchNorm(size, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.last = nnx.Linear(size, 3, rngs=rngs)
        self.calls = nnx.Variable(jnp.array(0))

    def __call__(self, x):
        self.calls[...] += 1
        return self.last(self.drop(nnx.relu(self.norm(self.first(x)))))


def train(steps=20):
    """The losses of a classifier, and the module, which `jit` updates in place."""
    x = jax.random.normal(jax.random.key(0), (32, 4))
    y = jnp.argmax(x[:, :3], 1)
    model = Net(16, nnx.Rngs(1, dropout=2))
    optimizer = nnx.Optimizer(model, optax.adam(0.02), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        def loss(model):
            return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

        value, gradient = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradient)
        return value

    return [float(step(model, optimizer)) for _ in range(steps)], model, (x, y)


def test_training_in_place_is_that_of_jax():
    losses, model, (x, y) = train()
    np.testing.assert_allclose(losses[::5], LOSSES, rtol=1e-3)
    assert model.calls[...] == 20
    model.eval()
    assert (jnp.argmax(model(x), 1) == y).mean() > 0.8


def test_modules_split_into_graph_and_state():
    _, model, (x, _) = train(1)
    model.eval()
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 4 * 16 + 16 + 2 * 16 + 16 * 3 + 3
    doubled = nnx.merge(graph, jax.tree.map(lambda p: 2 * p, params), rest)
    np.testing.assert_allclose(doubled.last.kernel[...], 2 * model.last.kernel[...])
    copy = nnx.clone(model)
    nnx.update(copy, params)
    found = jax.jit(lambda s, r, x: nnx.merge(graph, s, r)(x))(params, rest, x)
    np.testing.assert_allclose(found, copy(x), rtol=1e-5, atol=1e-6)  # terms of size 1 that cancel


def test_layers_made_by_vmap_run_by_scan():
    @nnx.split_rngs(splits=4)
    @nnx.vmap(in_axes=(0,), out_axes=0)
    def layers(rngs):
        return nnx.Linear(3, 3, rngs=rngs)

    stack = layers(nnx.Rngs(0))
    assert stack.kernel.shape == (4, 3, 3)

    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
    def run(x, layer):
        return nnx.tanh(layer(x))

    x = jnp.linspace(-1, 1, 6).reshape(2, 3)
    wanted = x
    for n in range(4):
        wanted = jnp.tanh(wanted @ stack.kernel[n] + stack.bias[n])
    np.testing.assert_allclose(run(x, stack), wanted, rtol=1e-5, atol=1e-6)

    def loss(stack):
        return (run(x, stack) ** 2).sum()

    gradient = nnx.jit(nnx.grad(loss))(stack)
    step = 1e-2
    moved = nnx.clone(stack)
    moved.kernel[...] = moved.kernel[...].at[1, 0, 2].add(step)
    back = nnx.clone(stack)
    back.kernel[...] = back.kernel[...].at[1, 0, 2].add(-step)
    np.testing.assert_allclose(gradient.kernel[1, 0, 2], (loss(moved) - loss(back)) / (2 * step), rtol=0.02, atol=1e-4)


class Language(nnx.Module):
    """A small model of sequences of tokens: attention that sees the past."""

    def __init__(self, rngs):
        self.embed = nnx.Embed(11, 8, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens)
        x = x + self.attention(self.norm(x), mask=nnx.make_causal_mask(tokens))
        return self.embed.attend(x)


def logits():
    """Those of the last of six tokens, and of a sequence whose last token is another."""
    model = Language(nnx.Rngs(3))
    tokens = jnp.array([[1, 5, 3, 0, 9, 2], [1, 5, 3, 0, 9, 7]])
    return nnx.jit(lambda m, t: m(t))(model, tokens)


def test_attention_sees_the_past_alone():
    found = logits()
    np.testing.assert_allclose(found[0, :5], found[1, :5], rtol=1e-5)
    np.testing.assert_allclose(found[0, 5, :4], GENERATED, rtol=1e-3, atol=1e-5)


def test_what_was_dropped_is_computed_with():
    dropout, x = nnx.Dropout(0.5, rngs=nnx.Rngs(dropout=1)), jnp.ones((4, 8))
    first, second = dropout(x), dropout(x)
    assert set(np.unique(first)) == {0, 2} and not np.array_equal(first, second)
    np.testing.assert_array_equal(first + second, np.asarray(first) + np.asarray(second))
