"""NumPyro: models, their samplers, variational inference, and what it reads of programs.

Constants are those of the same program on JAX.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, autoguide, log_likelihood
from numpyro.infer.inspect import get_dependencies
from numpyro.infer.util import initialize_model

X = jnp.linspace(-1, 1, 12)
Y = jnp.array([-1.9, -1.2, -1.3, -0.4, -0.2, 0.3, 0.9, 1.0, 1.8, 1.9, 2.5, 3.1])


def line(x, y=None):
    """A line with normal noise of scale 0.5."""
    slope = numpyro.sample("slope", dist.Normal(0, 10))
    offset = numpyro.sample("offset", dist.Normal(0, 10))
    with numpyro.plate("data", len(x)):
        return numpyro.sample("y", dist.Normal(slope * x + offset, 0.5), obs=y)


def schools(scale, effects=None):
    """Hierarchical: the effects of several schools, with a scale that has to be positive."""
    mean = numpyro.sample("mean", dist.Normal(0, 5))
    spread = numpyro.sample("spread", dist.HalfCauchy(5))
    with numpyro.plate("school", len(scale)):
        each = numpyro.sample("each", dist.Normal(mean, spread))
        numpyro.sample("effects", dist.Normal(each, scale), obs=effects)


SCALE = jnp.array([15.0, 10, 16, 11, 9, 11, 10, 18])
EFFECTS = jnp.array([28.0, 8, -3, 7, -1, 1, 18, 12])
POTENTIAL = 53.745186
GRADIENT = [0.3152936, 7.1985545]
FIRST_LOSSES = [87.14159, 83.94636, 72.66832, 73.117584, 80.73101]


def potential():
    """The potential energy of the hierarchical model and its gradient, where unconstrained values start."""
    info = initialize_model(jax.random.key(1), schools, model_args=(SCALE, EFFECTS))
    value, gradient = jax.jit(jax.value_and_grad(info.potential_fn))(info.param_info.z)
    return value, gradient


def test_potential_energy_and_gradient_are_those_of_jax():
    value, gradient = potential()
    np.testing.assert_allclose(value, POTENTIAL, rtol=1e-5)
    np.testing.assert_allclose([gradient["mean"], gradient["spread"]], GRADIENT, rtol=1e-4)


def test_nuts_finds_the_least_squares_line():
    sampler = MCMC(NUTS(line), num_warmup=150, num_samples=600, progress_bar=False)
    sampler.run(jax.random.key(0), X, Y)
    draws = sampler.get_samples()
    slope, offset = np.polyfit(np.asarray(X), np.asarray(Y), 1)
    np.testing.assert_allclose(draws["slope"].mean(), slope, atol=0.06)
    np.testing.assert_allclose(draws["offset"].mean(), offset, atol=0.04)
    np.testing.assert_allclose(draws["slope"].std(), 0.5 / np.sqrt(float(X @ X)), rtol=0.15)
    again = Predictive(line, draws)(jax.random.key(1), X)["y"]
    assert again.shape == (600, 12)
    np.testing.assert_allclose(again.mean(0), slope * X + offset, atol=0.12)
    each = log_likelihood(line, draws, X, Y)["y"]
    np.testing.assert_allclose(each.sum(1).max(), dist.Normal(slope * X + offset, 0.5).log_prob(Y).sum(), atol=0.1)


def test_chains_of_a_hierarchical_model_agree():
    sampler = MCMC(NUTS(schools), num_warmup=200, num_samples=200, num_chains=2, chain_method="vectorized",
                   progress_bar=False)
    sampler.run(jax.random.key(2), SCALE, EFFECTS)
    draws = sampler.get_samples(group_by_chain=True)
    assert numpyro.diagnostics.gelman_rubin(np.asarray(draws["mean"])) < 1.1
    np.testing.assert_allclose(draws["mean"].mean(), 4.4, atol=1.2)


def losses():
    """Those of variational inference with a normal guide."""
    method = SVI(line, autoguide.AutoNormal(line), numpyro.optim.Adam(0.05), Trace_ELBO())
    result = method.run(jax.random.key(3), 600, X, Y, progress_bar=False)
    return result.losses, result.params


def test_variational_inference_is_that_of_jax():
    found, params = losses()
    np.testing.assert_allclose(found[:5], FIRST_LOSSES, rtol=1e-4)
    slope, offset = np.polyfit(np.asarray(X), np.asarray(Y), 1)
    np.testing.assert_allclose(params["slope_auto_loc"], slope, atol=0.15)
    np.testing.assert_allclose(params["offset_auto_loc"], offset, atol=0.15)


def test_dependencies_are_read_from_programs():
    found = get_dependencies(schools, (SCALE, EFFECTS))
    assert found["prior_dependencies"]["each"].keys() == {"mean", "spread", "each"}
    assert found["posterior_dependencies"]["mean"].keys() == {"mean", "spread", "each"}


def test_chains_of_parameters_of_several_sizes_in_float64():
    """Momenta of 5 and 3 parameters are joined in registers, in parts of programs that several threads run."""
    with jax.enable_x64(True):
        rows = np.random.default_rng(0).normal(size=(200, 3))

        def potential(params):
            return 0.5 * jnp.sum(params[0] ** 2) + 0.5 * jnp.sum((rows @ params[1]) ** 2) / 200

        kernel = numpyro.infer.NUTS(potential_fn=potential)
        mcmc = numpyro.infer.MCMC(kernel, num_warmup=100, num_samples=400, num_chains=2, chain_method="vectorized",
                                  progress_bar=False)
        mcmc.run(jax.random.key(0), init_params=[jnp.ones((2, 5)) * 0.3, jnp.ones((2, 3)) * 0.1])
        for drawn in mcmc.get_samples():
            assert drawn.dtype == np.float64
            np.testing.assert_allclose(drawn.mean(0), 0, atol=0.25)
            np.testing.assert_allclose(drawn.var(0), 1, atol=0.35)
