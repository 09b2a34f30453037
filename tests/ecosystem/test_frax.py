"""frax: kinematics and dynamics of robots. The numbers are JAX's."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

with warnings.catch_warnings():     # it says which options make JAX fast
    warnings.simplefilter("ignore")
    import frax

CONTROL = [5.3076048, 0.54954344, 20.355389, 2.0554545, 13.839662, 8.5012026, 0.0046972027, 0.01555828,
    2.6691284, 0.42950436, 1.7920964, 0.51845044]
INVERSE = [0.033074062, 0.012491154, 0.0056373575, 0.0031386521, 0.0020903377, 0.0015581826,
    0.0012298676, 0.0009961105, 0.00081574789, 0.00067117083]
SIMULATED = [-0.027283041, -0.93181926, 0.17677622, -3.0485477, 0.21116294, 0.16954473, 0.66833806]
POSE = [0.0, -0.6, 0.1, -2.0, 0.0, 1.6, 0.7]


def test_the_matrices_of_a_controller() -> None:
    robot, q = frax.load_panda(), jnp.array(POSE)
    n = robot.num_joints
    q = jnp.resize(q, n)
    found = jax.jit(robot.torque_control_matrices)(q, 0.1 * jnp.ones(n))
    np.testing.assert_allclose([f(x) for x in found for f in (jnp.sum, jnp.std)], CONTROL, rtol=1e-3, atol=1e-4)


def test_inverse_kinematics_by_gradients() -> None:
    """Ten steps of descent on the distance of the hand from a point."""
    robot = frax.load_panda()
    goal = jnp.array([0.4, 0.2, 0.5])

    def distance(q: Any) -> Any:
        return jnp.sum((robot.ee_transform(q)[:3, 3] - goal) ** 2)

    def step(q: Any, _: Any) -> Any:
        value, slope = jax.value_and_grad(distance)(q)
        return q - 0.5 * slope, value

    _, values = jax.jit(lambda q: jax.lax.scan(step, q, length=10))(jnp.resize(jnp.array(POSE), robot.num_joints))
    np.testing.assert_allclose(values, INVERSE, rtol=1e-3, atol=1e-6)


def test_a_fall_under_gravity() -> None:
    """Fifty steps of the arm without torques: mass matrix and gravity at each."""
    robot = frax.load_iiwa()

    def step(state: Any, _: Any) -> Any:
        q, v = state
        v = v - 0.005 * jnp.linalg.solve(robot.mass_matrix(q), robot.gravity_vector(q))
        return (q + 0.005 * v, v), q

    start = jnp.resize(jnp.array(POSE), robot.num_joints)
    (q, _), _ = jax.jit(lambda s: jax.lax.scan(step, s, length=50))((start, jnp.zeros_like(start)))
    np.testing.assert_allclose(q, SIMULATED, rtol=2e-3, atol=1e-3)
