"""Haiku: functions with parameters and state, made pure.

Constants are those of the same program on JAX.
"""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax

LOSSES = [1.19047952, 0.91587961, 0.89611501]
RECURRENT = [0.29641363, 0.6759304, -0.5138023, 0.23336108, 18.324196]


def network(x, training):
    """A small convolutional network with batch normalisation."""
    x = hk.Conv2D(8, 3, stride=2)(x)
    x = jax.nn.relu(hk.BatchNorm(True, True, 0.9)(x, training))
    return hk.nets.MLP([16, 3])(x.mean((1, 2)))


def train(steps=15):
    """The losses of a classifier of 8 x 8 images, its parameters and its state."""
    net = hk.transform_with_state(network)
    images = jax.random.normal(jax.random.key(0), (24, 8, 8, 1))
    labels = (images.mean((1, 2, 3)) * 20).astype(int) % 3
    params, state = net.init(jax.random.key(1), images, True)
    optimizer = optax.sgd(0.1, momentum=0.9)
    memory = optimizer.init(params)

    @jax.jit
    def step(params, state, memory):
        def loss(params):
            logits, new = net.apply(params, state, None, images, True)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), new

        (value, state_), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        updates, memory_ = optimizer.update(gradient, memory)
        return optax.apply_updates(params, updates), state_, memory_, value

    losses = []
    for _ in range(steps):
        params, state, memory, value = step(params, state, memory)
        losses.append(float(value))
    return losses, params, state


def test_training_with_state_is_that_of_jax():
    losses, params, state = train()
    np.testing.assert_allclose(losses[::5], LOSSES, rtol=2e-3)
    assert set(params) == {"conv2_d", "batch_norm", "mlp/~/linear_0", "mlp/~/linear_1"}
    assert state["batch_norm/~/mean_ema"]["counter"] == 15


def recurrent():
    """The results of a GRU unrolled over time, and the norm of the gradient of their sum."""
    def unroll(xs):
        core = hk.GRU(4)
        return hk.dynamic_unroll(core, xs, core.initial_state(xs.shape[1]))[0]

    net = hk.without_apply_rng(hk.transform(unroll))
    xs = jax.random.normal(jax.random.key(2), (6, 2, 3))
    params = net.init(jax.random.key(3), xs)
    gradient = jax.jit(jax.grad(lambda p: net.apply(p, xs).sum()))(params)
    return net.apply(params, xs), optax.global_norm(gradient)


def test_a_recurrent_network_is_that_of_jax():
    ys, norm = recurrent()
    assert ys.shape == (6, 2, 4)
    np.testing.assert_allclose([*ys[-1, 0], norm], RECURRENT, rtol=1e-4, atol=1e-6)


def test_layers_of_a_stack_are_scanned():
    def stack(x):
        @hk.experimental.layer_stack(3)
        def layers(x):
            return jnp.tanh(hk.Linear(5)(x))

        return layers(x)

    net = hk.without_apply_rng(hk.transform(stack))
    x = jnp.linspace(-1, 1, 10).reshape(2, 5)
    params = net.init(jax.random.key(4), x)
    (linear,) = params.values()
    assert linear["w"].shape == (3, 5, 5)
    wanted = x
    for w, b in zip(linear["w"], linear["b"], strict=True):
        wanted = jnp.tanh(wanted @ w + b)
    np.testing.assert_allclose(jax.jit(net.apply)(params, x), wanted, rtol=1e-5, atol=1e-6)


def test_dropout_draws_its_keys_in_order():
    net = hk.transform(lambda x: hk.dropout(hk.next_rng_key(), 0.5, x) + hk.dropout(hk.next_rng_key(), 0.5, x))
    x = jnp.ones(1000)
    a, b = (net.apply({}, jax.random.key(n), x) for n in (0, 0))
    np.testing.assert_array_equal(a, b)
    assert {0.0, 2.0, 4.0} == set(np.unique(a).tolist())
    assert abs((a == 2).mean() - 0.5) < 0.06
