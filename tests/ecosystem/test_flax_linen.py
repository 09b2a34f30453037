"""Flax's linen: modules trained, scanned over time, of several collections, and summarised.

Constants are those of the same program on JAX.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import serialization
from flax.training import train_state

LOSSES = [1.35996902, 0.90863693, 0.65017581, 0.42630631]
CARRY = [-0.07515016, -0.06038744, -0.403915, -0.22633545, -0.33201978]
GRADIENT = 77.558784


class Net(nn.Module):
    """Two layers with batch normalisation and dropout between them."""

    @nn.compact
    def __call__(self, x, train):
        x = nn.Dense(16)(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        x = nn.Dropout(0.1, deterministic=not train)(nn.relu(x))
        return nn.Dense(3)(x)


class State(train_state.TrainState):
    batch_stats: dict


def train(steps=20):
    """The losses of a classifier trained with dropout, and its state."""
    x = jax.random.normal(jax.random.key(0), (32, 4))
    y = jnp.argmax(x[:, :3], 1)
    variables = Net().init(jax.random.key(1), x, train=False)
    state = State.create(apply_fn=Net().apply, params=variables["params"], tx=optax.adam(0.02),
                         batch_stats=variables["batch_stats"])

    @jax.jit
    def step(state, key):
        def loss(params):
            logits, updates = state.apply_fn({"params": params, "batch_stats": state.batch_stats}, x, train=True,
                                             rngs={"dropout": key}, mutable=["batch_stats"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), updates

        (value, updates), gradient = jax.value_and_grad(loss, has_aux=True)(state.params)
        return state.apply_gradients(grads=gradient).replace(batch_stats=updates["batch_stats"]), value

    losses = []
    for n in range(steps):
        state, value = step(state, jax.random.fold_in(jax.random.key(2), n))
        losses.append(float(value))
    return losses, state, (x, y)


def test_training_with_dropout_and_batch_norm_is_that_of_jax():
    losses, state, (x, y) = train()
    np.testing.assert_allclose(losses[::5], LOSSES, rtol=1e-3)
    logits = Net().apply({"params": state.params, "batch_stats": state.batch_stats}, x, train=False)
    assert (jnp.argmax(logits, 1) == y).mean() > 0.8


def test_states_are_restored_from_bytes():
    _, state, _ = train(2)
    _, fresh, _ = train(0)
    restored = serialization.from_bytes(fresh, serialization.to_bytes(state))
    assert restored.step == 2
    for a, b in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(a, b)


class Recurrent(nn.Module):
    """An LSTM scanned over time, as a lifted transformation; its parameters are the same at each step."""

    @nn.compact
    def __call__(self, carry, xs):
        cell = nn.scan(nn.OptimizedLSTMCell, variable_broadcast="params", split_rngs={"params": False}, in_axes=1,
                       out_axes=1)
        return cell(5)(carry, xs)


def scanned():
    """The carry at the end, the results, and the gradient of their sum with respect to the parameters."""
    xs = jax.random.normal(jax.random.key(3), (2, 7, 4))
    carry = nn.OptimizedLSTMCell(5).initialize_carry(jax.random.key(4), (2, 4))
    model = Recurrent()
    params = model.init(jax.random.key(5), carry, xs)
    (c, _), ys = model.apply(params, carry, xs)
    gradient = jax.jit(jax.grad(lambda p: model.apply(p, carry, xs)[1].sum()))(params)
    return c, ys, jax.tree.map(lambda g: jnp.abs(g).sum(), gradient)


def test_a_scanned_cell_is_that_of_jax():
    c, ys, gradient = scanned()
    assert ys.shape == (2, 7, 5)
    np.testing.assert_allclose(c[0], CARRY, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(sum(jax.tree.leaves(gradient)), GRADIENT, rtol=1e-4)


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    @nn.compact
    def __call__(self, x, _):
        x = x + nn.MultiHeadDotProductAttention(2)(nn.LayerNorm()(x))
        return x + nn.Dense(8)(nn.gelu(nn.Dense(16)(nn.LayerNorm()(x)))), None


class Stack(nn.Module):
    """Blocks one after the other, each computed again in reverse mode."""

    @nn.compact
    def __call__(self, x):
        blocks = nn.scan(nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
        return blocks()(x, None)[0]


def test_stacked_blocks_with_remat_are_the_blocks_one_by_one():
    x = jax.random.normal(jax.random.key(6), (2, 5, 8))
    params = Stack().init(jax.random.key(7), x)["params"]
    (name, stacked), = params.items()
    assert {leaf.shape[0] for leaf in jax.tree.leaves(stacked)} == {3}

    def one_by_one(params, x):
        for n in range(3):
            x, _ = Block().apply({"params": jax.tree.map(lambda leaf, n=n: leaf[n], params[name])}, x, None)
        return (x**2).sum()

    def all_at_once(params, x):
        return (Stack().apply({"params": params}, x) ** 2).sum()

    for got, wanted in zip(jax.tree.leaves(jax.jit(jax.value_and_grad(all_at_once))(params, x)),
                           jax.tree.leaves(jax.jit(jax.value_and_grad(one_by_one))(params, x)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=1e-4)


def test_lazy_init_and_tables():
    shapes = Net().lazy_init(jax.random.key(0), jax.ShapeDtypeStruct((1, 4), jnp.float32), train=False)
    assert shapes["params"]["Dense_0"]["kernel"].shape == (4, 16)
    table = Net().tabulate(jax.random.key(0), jnp.ones((1, 4)), train=False, console_kwargs={"width": 120})
    assert "Total Parameters: 195" in table
