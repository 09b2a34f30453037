"""Blackjax: Hamiltonian Monte Carlo, adaptation of its steps, variational inference and tempering.

Constants are those of the same program on JAX; the others check posteriors that are known.
"""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.stats import norm

OBSERVED = jnp.array([1.3, 0.2, 2.1, 1.7, 0.4, 1.1, 0.9, 1.6])


def log_density(mean):
    """Of the mean of normal observations of scale 1, itself standard normal: a normal posterior."""
    return norm.logpdf(mean) + jnp.sum(norm.logpdf(OBSERVED, mean))


POSTERIOR = float(OBSERVED.sum() / 9), 1 / 3  # mean, scale
LAST_POSITION = [-0.7118276, 0.3280286]
RATES = [1.0, 0.98100597, 1.0, 0.98589694, 1.0, 0.9911898, 0.9610392, 1.0, 1.0, 0.99068147]
TEMPERATURES = [[0.2735901, -0.042487368, 0.9873609], [0.53668314, 0.81322926, 0.5758924],
                [1.0, 0.93291295, 0.4247858]]


def hmc_positions():
    """Ten states of a chain that starts at (1, -1), of a correlated normal density."""
    precision = jnp.array([[2.0, 0.6], [0.6, 1.0]])
    sampler = blackjax.hmc(lambda x: -0.5 * x @ precision @ x, step_size=0.3, inverse_mass_matrix=jnp.ones(2),
                           num_integration_steps=5)

    def step(state, key):
        state, info = sampler.step(key, state)
        return state, (state.position, info.acceptance_rate)

    state = sampler.init(jnp.array([1.0, -1.0]))
    return jax.jit(lambda s, k: jax.lax.scan(step, s, k))(state, jax.random.split(jax.random.key(3), 10))[1]


def test_a_chain_of_hmc_is_that_of_jax():
    positions, rates = hmc_positions()
    np.testing.assert_allclose(positions[-1], LAST_POSITION, rtol=1e-4)
    np.testing.assert_allclose(rates, RATES, rtol=1e-4)


def test_nuts_with_adapted_steps_finds_the_posterior():
    warmup = blackjax.window_adaptation(blackjax.nuts, log_density)
    (state, parameters), _ = warmup.run(jax.random.key(0), jnp.array(0.0), num_steps=200)
    sampler = blackjax.nuts(log_density, **parameters)

    def step(state, key):
        state, info = sampler.step(key, state)
        return state, (state.position, info.is_divergent)

    keys = jax.random.split(jax.random.key(1), 1500)
    draws, divergent = jax.jit(lambda s: jax.lax.scan(step, s, keys))(state)[1]
    assert not divergent.any()
    mean, scale = POSTERIOR
    np.testing.assert_allclose(draws.mean(), mean, atol=0.05)
    np.testing.assert_allclose(draws.std(), scale, rtol=0.1)
    assert blackjax.diagnostics.effective_sample_size(draws[None]) > 300


def test_variational_inference_finds_the_posterior():
    method = blackjax.meanfield_vi(log_density, optax.adam(0.05), 20)
    state = method.init(jnp.array(0.0))
    step = jax.jit(method.step)
    for key in jax.random.split(jax.random.key(2), 300):
        state, info = step(key, state)
    mean, scale = POSTERIOR
    np.testing.assert_allclose(state.mu, mean, atol=0.05)
    np.testing.assert_allclose(jnp.exp(state.rho), scale, rtol=0.15)
    assert jnp.isfinite(info.elbo)


def smc_temperatures():
    """Temperature, mean and scale of the particles, step by step."""
    kernel = blackjax.hmc.build_kernel()
    smc = blackjax.adaptive_tempered_smc(
        norm.logpdf, lambda mean: jnp.sum(norm.logpdf(OBSERVED, mean)), kernel, blackjax.hmc.init,
        {"step_size": jnp.full((1,), 0.2), "inverse_mass_matrix": jnp.ones((1, 1)),
         "num_integration_steps": jnp.full((1,), 5)},
        blackjax.smc.resampling.systematic, 0.5, num_mcmc_steps=5)
    state = smc.init(jax.random.normal(jax.random.key(4), (500,)))
    step = jax.jit(smc.step)
    found = []
    for key in jax.random.split(jax.random.key(5), 3):
        state, _ = step(key, state)
        found.append([state.tempering_param, state.particles.mean(), state.particles.std()])
    return found


def test_particles_of_tempered_smc_are_those_of_jax():
    np.testing.assert_allclose(smc_temperatures(), TEMPERATURES, rtol=1e-4)
