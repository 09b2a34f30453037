"""Jaxley: neurons of Hodgkin and Huxley's channels, their compartments coupled implicitly. The numbers are JAX's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jaxley as jx
import numpy as np
from jaxley.channels import HH
from jaxley.connect import connect
from jaxley.synapses import IonotropicSynapse

CELL = [-70.0, -62.555466, 35.742149, -32.749180, -75.754539, -75.200180, -74.171463, -72.897598]
NET = [[-70.0, 32.292156, -75.549210, -75.050316, -73.217873, -70.962639],
       [-70.0, 26.350769, -58.607376, -57.205528, -51.855221, -46.511627]]
SLOPE = [-56.320374, 34.287262]


def cell() -> Any:
    """Three branches of two compartments, a current of 1 ms into the first, the voltage at the end of the last."""
    made = jx.Cell(jx.Branch(jx.Compartment(), ncomp=2), parents=[-1, 0, 0])
    made.insert(HH())
    made.branch(0).loc(0.0).stimulate(jx.step_current(1.0, 2.0, 0.1, 0.025, 10.0))
    made.branch(2).loc(1.0).record()
    return made


def test_a_spike_runs_through_a_cell() -> None:
    np.testing.assert_allclose(jx.integrate(cell(), delta_t=0.025)[0, ::50][:8], CELL, rtol=1e-4)


def test_what_the_voltage_owes_to_a_conductance() -> None:
    """The derivative of the mean voltage through 400 steps."""
    neuron = cell()
    neuron.make_trainable("HH_gNa")
    mean = jax.value_and_grad(lambda p: jnp.mean(jx.integrate(neuron, params=p, delta_t=0.025)))
    value, slopes = jax.jit(mean)(neuron.get_parameters())
    np.testing.assert_allclose([value, slopes[0]["HH_gNa"][0]], SLOPE, rtol=1e-3)


def test_a_synapse_between_two_cells() -> None:
    net = jx.Network([jx.Cell(jx.Branch(jx.Compartment(), ncomp=1), parents=[-1]) for _ in range(2)])
    net.insert(HH())
    connect(net.cell(0).branch(0).comp(0), net.cell(1).branch(0).comp(0), IonotropicSynapse())
    net.set("IonotropicSynapse_gS", 1e-3)
    net.cell(0).branch(0).comp(0).stimulate(jx.step_current(1.0, 2.0, 0.1, 0.025, 10.0))
    net.cell("all").branch(0).comp(0).record()
    np.testing.assert_allclose(jx.integrate(net, delta_t=0.025)[:, ::80], NET, rtol=1e-3)
