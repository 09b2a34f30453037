"""jnkepler: orbits of planets that pull at each other, and when they pass in front of their star. In 64 bits; the
numbers are JAX's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jnkepler.jaxttv import JaxTTV
from jnkepler.jaxttv.information import information

jax.config.update("jax_enable_x64", False)  # jnkepler set it, for all

PERIODS = [45.155305, 85.31646]
PLANETS = {"period": PERIODS, "ecosw": [0.02, -0.01], "esinw": [0.01, 0.03], "cosi": [0.0, 0.0],
           "lnode": [0.0, 0.0], "tic": [159.11, 295.32], "pmass": [2e-5, 3e-5], "smass": 1.0}
TIMES = [159.11036, 204.26534, 249.41827, 294.5711, 339.72197, 384.87329, 430.02497, 475.17628,
    520.33182, 565.48466, 610.6428, 295.32041, 380.64189, 465.96425, 551.28309, 636.59956, 1.34e-09]
SLOPES = [0.079043737, 55.133212, 0.02191183, -0.02125618, 0.0010309106, -0.00043404104]
FISHER = [1346160400000.0, 2710939600000.0, 3036730.1, 423840.47, 353852.09, 104542.99]


@pytest.fixture(autouse=True)
def in_64_bits() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def timing() -> Any:
    """A model of the transits of two planets in 500 days, and its parameters."""
    observed = [np.arange(159.11, 640, PERIODS[0]), np.arange(295.32, 640, PERIODS[1])]
    model = JaxTTV(140.0, 650.0, 1.0, observed, PERIODS, errorobs=[np.full(len(t), 1e-3) for t in observed],
                   print_info=False)
    return model, {name: jnp.array(value) for name, value in PLANETS.items()}


def test_transit_times() -> None:
    model, planets = timing()
    times, energy = jax.jit(model.get_transit_times_obs)(planets)
    np.testing.assert_allclose([*times, energy], TIMES, rtol=1e-6, atol=1e-9)


def test_what_the_times_owe_to_masses_and_shapes() -> None:
    model, planets = timing()
    slopes = jax.jit(jax.grad(lambda p: jnp.std(jnp.diff(model.get_transit_times_obs(p)[0][:9]))))(planets)
    np.testing.assert_allclose([*slopes["pmass"], *slopes["ecosw"], *slopes["period"]], SLOPES, rtol=1e-4)


def test_information_of_the_times() -> None:
    """The matrix of Fisher's information, by forward derivatives of all transit times."""
    model, planets = timing()
    matrix = information(model, planets, ["pmass", "ecosw", "esinw"])
    np.testing.assert_allclose(np.diag(matrix), FISHER, rtol=1e-4)
