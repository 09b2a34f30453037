"""MuJoCo MJX: the mechanics of rigid bodies, steps of which are compiled and differentiated. The numbers are JAX's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from mujoco import mjx

SWING = [1.5551263, 0.3473649, 0.14272124, -0.15929544]     # both angles, at the end and after eleven steps
SLOPES = [-0.00366888, -0.00353611, -0.00340153, -0.00326479]   # of the end by the first torques
FALLS = [-4.5226918e-07, 4.5226918e-07, 0.099631146, 0.34278145, -1.62e-08, 0.099631578]
PENDULUM = """
<mujoco>
  <option timestep="0.01" iterations="4" ls_iterations="6"/>
  <worldbody>
    <body pos="0 0 1"><joint name="hinge" type="hinge" axis="0 1 0" damping="0.05"/>
      <geom type="capsule" fromto="0 0 0 0.5 0 0" size="0.04" contype="0" conaffinity="0"/>
      <body pos="0.5 0 0"><joint name="second" type="hinge" axis="0 1 0" damping="0.05"/>
        <geom type="capsule" fromto="0 0 0 0.5 0 0" size="0.04" contype="0" conaffinity="0"/></body></body>
  </worldbody>
  <actuator><motor joint="hinge" gear="1"/></actuator>
</mujoco>"""
BALL = """
<mujoco>
  <option timestep="0.005" iterations="2" ls_iterations="4"/>
  <worldbody>
    <geom type="plane" size="5 5 0.1"/>
    <body pos="0 0 0.3"><freejoint/><geom type="sphere" size="0.1"/></body>
  </worldbody>
</mujoco>"""


def swing(torques: Any) -> Any:
    """Both angles of a double pendulum after each step, under torques at the first hinge."""
    model = mjx.put_model(mujoco.MjModel.from_xml_string(PENDULUM))

    def step(data: Any, torque: Any) -> Any:
        data = mjx.step(model, data.replace(ctrl=torque[None]))
        return data, data.qpos

    return jax.lax.scan(step, mjx.make_data(model), torques)[1]


def test_a_double_pendulum() -> None:
    angles = jax.jit(swing)(jnp.linspace(-1, 1, 50))
    np.testing.assert_allclose([*angles[-1], *angles[10]], SWING, rtol=1e-4)


def test_the_gradient_through_twenty_steps() -> None:
    slopes = jax.jit(jax.grad(lambda torques: swing(torques)[-1].sum()))(jnp.linspace(-1, 1, 20))
    np.testing.assert_allclose(slopes[:4], SLOPES, rtol=1e-3)


def test_balls_that_meet_the_floor() -> None:
    """Contacts, for a stack of worlds that differ in how fast the ball is thrown."""
    model = mjx.put_model(mujoco.MjModel.from_xml_string(BALL))
    start = mjx.make_data(model)

    def fall(speed: Any) -> Any:
        data = start.replace(qvel=start.qvel.at[0].set(speed))
        return jax.lax.fori_loop(0, 80, lambda _, d: mjx.step(model, d), data).qpos[:3]

    ends = jax.jit(jax.vmap(fall))(jnp.array([0.0, 1.0]))
    np.testing.assert_allclose(ends.ravel(), FALLS, rtol=1e-3, atol=1e-4)
