"""pyhgf: beliefs that follow what is observed, through networks of Gaussian filters. The numbers are JAX's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from pyhgf import load_data
from pyhgf.model import HGF

MEANS = [1.0377859, 1.0656734, 1.0516937, 0.97476828, 0.94761503, 0.88386416, 0.79021174]


def binary() -> Any:
    return HGF(n_levels=2, model_type="binary", initial_mean={"1": 0.0, "2": 0.5},
               initial_precision={"1": 0.0, "2": 1e4}, tonic_volatility={"2": -3.0})


def test_two_levels_of_choices() -> None:
    model = binary()
    model.input_data(input_data=load_data("binary")[0])
    np.testing.assert_allclose(model.surprise().sum(), 203.63953, rtol=1e-5)


def test_three_nodes_of_a_series() -> None:
    model = HGF(n_levels=2, model_type="continuous", initial_mean={"1": 1.04, "2": 1.0},
                initial_precision={"1": 1e4, "2": 1e1}, tonic_volatility={"1": -13.0, "2": -2.0},
                tonic_drift={"1": 0.0, "2": 0.0}, volatility_coupling={"1": 1.0})
    model.input_data(input_data=load_data("continuous"))
    np.testing.assert_allclose(model.surprise().sum(), -1007.5485, rtol=1e-4)
    np.testing.assert_allclose(model.node_trajectories[1]["mean"][::100], MEANS, rtol=1e-5)


def test_what_surprise_owes_to_volatility() -> None:
    """The derivative through all observations, of the filter's own steps."""
    observed = load_data("binary")[0]

    def surprise(volatility: Any) -> Any:
        model = binary()
        model.attributes[1]["tonic_volatility"] = volatility
        model.input_data(input_data=observed)
        return jnp.asarray(model.surprise().sum())

    np.testing.assert_allclose(jax.grad(surprise)(-3.0), -2.5078464, rtol=1e-3)
