"""celerite2: Gaussian processes in linear time, by handlers of XLA's convention. The numbers are JAX's."""

from __future__ import annotations

from typing import Any

import celerite2.jax as celerite2
import jax
import jax.numpy as jnp
import numpy as np
from celerite2.jax import terms


def likelihood(params: Any) -> Any:
    rng = np.random.default_rng(1)
    t = np.sort(rng.uniform(0, 10, 50))
    kernel = terms.SHOTerm(S0=params["S0"], w0=params["w0"], Q=0.7) + terms.Matern32Term(sigma=0.3, rho=2.0)
    process = celerite2.GaussianProcess(kernel, mean=0.1)
    process.compute(t, diag=0.01 * jnp.ones(50))
    return process.log_likelihood(np.sin(t) + 0.1 * rng.standard_normal(50))


def test_gaussian_processes_in_linear_time() -> None:
    params = {"S0": 1.0, "w0": 2.0}
    for run in (lambda f: f, jax.jit):
        with jax.enable_x64(True):
            value, slopes = run(jax.value_and_grad(likelihood))(params)
        np.testing.assert_allclose([value, slopes["S0"], slopes["w0"]], [2.727821, -11.544605, -18.192667], rtol=1e-6)
