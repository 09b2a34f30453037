"""Distrax, on TensorFlow Probability's substrate: distributions, bijectors, inverses read from programs.

Constants are those of the same program on JAX.
"""

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import tensorflow_probability.substrates.jax as tfp
from distrax._src.utils import transformations

FLOW_LOSSES = [4.40663147, 3.82215405, 3.46962118, 3.37547731]
SMOOTHED = [0.05753968, 0.07564974, 0.57288057, 0.8726286, 0.8559847, 0.6334438]


def test_inverses_are_read_from_programs():
    inverse = transformations.inv(lambda x: 3 * jnp.exp(x) / 2 + 1)
    np.testing.assert_allclose(inverse(4.0), jnp.log(2.0), rtol=1e-6)
    jitted = transformations.inv(jax.jit(lambda x: jnp.tanh(x) * 2))
    np.testing.assert_allclose(jitted(1.0), jnp.arctanh(0.5), rtol=1e-6)
    assert transformations.is_constant_jacobian(lambda x: 2 * x + 1)
    assert not transformations.is_constant_jacobian(jnp.sinh)
    bijector = distrax.Lambda(lambda x: 2 * x + 1)
    x, log_det = bijector.inverse_and_log_det(jnp.array([3.0, 5.0]))
    np.testing.assert_allclose(x, [1, 2])
    np.testing.assert_allclose(log_det, -np.log(2) * np.ones(2), rtol=1e-6)


def flow_losses(steps=10):
    """The losses of a flow of masked couplings that learns to sample a curved density."""
    def conditioner(params, x):
        return (jnp.tanh(x @ params["in"]) @ params["out"]).reshape(2, 2)

    def flow(params):
        layers = []
        for n, layer in enumerate(params):
            layers.append(distrax.MaskedCoupling(
                mask=jnp.arange(2) % 2 == n % 2,
                bijector=lambda p: distrax.ScalarAffine(p[..., 0], log_scale=jnp.tanh(p[..., 1])),
                conditioner=lambda x, layer=layer: conditioner(layer, x)))
        base = distrax.Independent(distrax.Normal(jnp.zeros(2), jnp.ones(2)), 1)
        return distrax.Transformed(base, distrax.Inverse(distrax.Chain(layers)))

    def loss(params):
        x = jax.random.normal(jax.random.key(9), (64, 2))
        x = x.at[:, 1].add(x[:, 0] ** 2)
        return -jax.vmap(flow(params).log_prob)(x).mean()

    params = [{"in": 0.5 * jax.random.normal(k, (2, 8)), "out": 0.1 * jax.random.normal(k, (8, 4))}
              for k in jax.random.split(jax.random.key(0), 4)]
    optimizer = optax.adam(0.03)
    memory = optimizer.init(params)

    @jax.jit
    def step(params, memory):
        value, gradient = jax.value_and_grad(loss)(params)
        updates, memory_ = optimizer.update(gradient, memory)
        return optax.apply_updates(params, updates), memory_, value

    losses = []
    for _ in range(steps):
        params, memory, value = step(params, memory)
        losses.append(float(value))
    return losses


def test_a_flow_learns_as_on_jax():
    np.testing.assert_allclose(flow_losses()[::3], FLOW_LOSSES, rtol=1e-3)


def smoothed():
    """Probabilities of the states of a hidden Markov model, given what was observed."""
    model = distrax.HMM(
        init_dist=distrax.Categorical(probs=jnp.array([0.6, 0.4])),
        trans_dist=distrax.Categorical(probs=jnp.array([[0.9, 0.1], [0.2, 0.8]])),
        obs_dist=distrax.Normal(jnp.array([-1.0, 1.0]), 1.0))
    observed = jnp.array([-0.9, -1.2, 0.3, 1.1, 0.8, -0.2])
    return jax.jit(lambda o: model.forward_backward(o))(observed)[2], model.viterbi(observed)


def test_hidden_markov_models_are_those_of_jax():
    probabilities, path = smoothed()
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(probabilities[:, 1], SMOOTHED, rtol=1e-4)
    assert path.tolist() == [0, 0, 1, 1, 1, 1]


def test_distributions_of_the_substrate():
    mixture = tfp.distributions.MixtureSameFamily(
        tfp.distributions.Categorical(probs=jnp.array([0.3, 0.7])),
        tfp.distributions.Normal(jnp.array([-1.0, 2.0]), jnp.array([0.5, 1.0])))
    x = jnp.linspace(-6, 9, 3001)
    np.testing.assert_allclose(jnp.trapezoid(mixture.prob(x), x), 1, rtol=1e-4)
    draws = distrax.as_distribution(mixture).sample(seed=jax.random.key(3), sample_shape=(4000,))
    np.testing.assert_allclose(draws.mean(), mixture.mean(), atol=0.08)
    beta = tfp.distributions.Beta(2.0, jnp.array([1.0, 3.0]))
    np.testing.assert_allclose(beta.mean(), [2 / 3, 2 / 5], rtol=1e-6)
    np.testing.assert_allclose(distrax.Normal(0.0, 1.0).kl_divergence(distrax.Normal(1.0, 2.0)),
                               np.log(2) + 2 / 8 - 0.5, rtol=1e-5)


def test_gradients_through_samples():
    def expected(scale):
        return (distrax.MultivariateNormalDiag(jnp.zeros(2), scale).sample(seed=jax.random.key(4),
                                                                           sample_shape=(5000,)) ** 2).mean()

    np.testing.assert_allclose(jax.grad(expected)(jnp.array([1.0, 2.0])), [1, 2], rtol=0.1)
