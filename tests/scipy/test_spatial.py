"""Rotations against SciPy, their derivatives, also at the identity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.spatial.transform import Rotation as Reference, Slerp as ReferenceSlerp

import anima
import anima.numpy as jnp
from anima.scipy.spatial.transform import Rotation, Slerp

RNG = np.random.default_rng(0)
ORDERS = ("xyz", "zyx", "XYZ", "ZXZ", "zxz", "YXZ", "xyx", "XZX", "yzx")


def pair(shape: tuple[int, ...] = (6, 4)) -> tuple[Rotation, Reference]:
    quat = RNG.standard_normal(shape)
    return Rotation.from_quat(quat), Reference.from_quat(quat)


@pytest.mark.parametrize("shape", [(4,), (6, 4)])
def test_forms(shape: tuple[int, ...], x64: None) -> None:
    ours, theirs = pair(shape)
    assert ours.single == theirs.single and bool(ours)
    for call in ("as_matrix", "as_rotvec", "as_mrp", "magnitude", "as_quat"):
        np.testing.assert_allclose(getattr(ours, call)(), getattr(theirs, call)(), atol=1e-14)
    np.testing.assert_allclose(ours.as_quat(canonical=True), theirs.as_quat(canonical=True))
    np.testing.assert_allclose(ours.as_quat(scalar_first=True), theirs.as_quat(scalar_first=True))
    np.testing.assert_allclose(ours.as_rotvec(degrees=True), theirs.as_rotvec(degrees=True))
    np.testing.assert_allclose(ours.inv().as_quat(), theirs.inv().as_quat())
    for back in (Rotation.from_matrix(ours.as_matrix()), Rotation.from_rotvec(ours.as_rotvec()),
                 Rotation.from_mrp(ours.as_mrp()), Rotation.from_rotvec(ours.as_rotvec(True), True)):
        np.testing.assert_allclose(back.as_matrix(), theirs.as_matrix(), atol=1e-13)


@pytest.mark.parametrize("order", ORDERS)
def test_euler_angles(order: str, x64: None) -> None:
    ours, theirs = pair()
    np.testing.assert_allclose(ours.as_euler(order), theirs.as_euler(order), atol=1e-12)
    angles = RNG.uniform(-180, 180, (5, 3))
    for given in (angles, angles[0]):
        got = Rotation.from_euler(order, given, degrees=True)
        np.testing.assert_allclose(got.as_matrix(), Reference.from_euler(order, given, True).as_matrix(), atol=1e-13)
    for count in (1, 2):
        got = Rotation.from_euler(order[:count], angles[:, :count])
        np.testing.assert_allclose(got.as_matrix(), Reference.from_euler(order[:count], angles[:, :count]).as_matrix(),
                                   atol=1e-13)
    # where only a sum of two angles matters
    middle = 0.0 if order[0] == order[2] else np.pi / 2
    locked = Rotation.from_euler(order, jnp.array([0.3, middle, 0.4]))
    np.testing.assert_allclose(Rotation.from_euler(order, locked.as_euler(order)).as_matrix(), locked.as_matrix(),
                               atol=1e-7)
    assert abs(locked.as_euler(order)[2]) < 1e-7


def test_rotations_act_and_compose(x64: None) -> None:
    (a, a_ref), (b, b_ref), (one, one_ref) = pair(), pair(), pair((4,))
    v = RNG.standard_normal((6, 3))
    np.testing.assert_allclose((a * b).as_matrix(), (a_ref * b_ref).as_matrix(), atol=1e-14)
    np.testing.assert_allclose((one * b).as_matrix(), (one_ref * b_ref).as_matrix(), atol=1e-14)
    for inverse in (False, True):
        np.testing.assert_allclose(a.apply(v, inverse), a_ref.apply(v, inverse), atol=1e-14)
        np.testing.assert_allclose(one.apply(v, inverse), one_ref.apply(v, inverse), atol=1e-14)
    np.testing.assert_allclose(one.apply(v[0]), one_ref.apply(v[0]), atol=1e-14)
    weights = RNG.uniform(1, 2, 6)
    for given in (None, weights):
        np.testing.assert_allclose(a.mean(given).as_matrix(), a_ref.mean(given).as_matrix(), atol=1e-12)
    assert len(a) == 6 and a[2].single and len(Rotation.concatenate([a, one])) == 7
    np.testing.assert_allclose(anima.jit(lambda r, v: (r * r.inv()).apply(v))(a, v), v, atol=1e-13)
    np.testing.assert_allclose(anima.vmap(lambda r, v: r.apply(v))(a, v), a.apply(v), atol=1e-13)


def test_identity_and_random_ones() -> None:
    assert Rotation.identity().quat.tolist() == [0, 0, 0, 1]
    assert Rotation.identity(2, jnp.float16).quat.dtype == np.float16
    drawn = Rotation.random(anima.random.key(0), 1000)
    np.testing.assert_allclose(jnp.sum(drawn.quat**2, -1), 1, rtol=1e-5)
    assert np.abs(np.mean(np.asarray(drawn.as_matrix()), 0)).max() < 0.08
    assert Rotation.random(anima.random.key(0)).single


def test_derivatives_at_the_identity(x64: None) -> None:
    """exp of the matrix of v is 1 + K + K^2/2 + ..."""
    def matrix(v: Any) -> Any:
        return Rotation.from_rotvec(v).as_matrix()

    def cross(v: Any) -> np.ndarray:
        return np.cross(np.eye(3), np.asarray(v))

    zero, u, w = jnp.zeros(3), np.array([0.3, -0.2, 0.5]), np.array([0.1, 0.7, -0.4])
    np.testing.assert_allclose(anima.jvp(matrix, (zero,), (u,))[1], cross(u), atol=1e-14)
    second = anima.jvp(lambda v: anima.jvp(matrix, (v,), (u,))[1], (zero,), (w,))[1]
    np.testing.assert_allclose(second, (cross(u) @ cross(w) + cross(w) @ cross(u)) / 2, atol=1e-14)
    for at in (zero, u, 0.01 * u, 5 * u):
        there_and_back = anima.jacrev(lambda v: Rotation.from_rotvec(v).as_rotvec())(at)
        np.testing.assert_allclose(there_and_back, np.eye(3), atol=1e-11)
        curved = anima.hessian(lambda v: jnp.sum(Rotation.from_rotvec(v).as_rotvec() ** 2))(at)
        np.testing.assert_allclose(curved, 2 * np.eye(3), atol=1e-9)


def test_curves(x64: None) -> None:
    ours, theirs = pair((4, 4))
    knots, at = np.array([0.0, 1.0, 2.5, 4.0]), np.array([0.0, 0.3, 1.0, 2.0, 4.0])
    curve, reference = Slerp.init(knots, ours), ReferenceSlerp(knots, theirs)
    np.testing.assert_allclose(curve(at).as_matrix(), reference(at).as_matrix(), atol=1e-13)
    compiled = anima.jit(lambda c, t: c(t).as_matrix())(curve, 1.7)
    np.testing.assert_allclose(compiled, reference(1.7).as_matrix(), atol=1e-13)


ONE, MANY = Rotation.identity(), Rotation.identity(3)
ERRORS: list[tuple[Callable[[], Any], type[Exception]]] = [
    (lambda: ONE.as_euler("xy"), ValueError), (lambda: ONE.as_euler("xxy"), ValueError),
    (lambda: ONE.as_euler("xYz"), ValueError),
    (lambda: ONE.as_euler("abc"), ValueError), (lambda: Rotation.from_euler("xyz", jnp.ones(2)), ValueError),
    (lambda: Rotation.from_euler("", jnp.ones(1)), ValueError), (lambda: len(ONE), TypeError),
    (lambda: ONE[0], TypeError),
    (lambda: MANY.mean(jnp.ones(2)), ValueError), (lambda: MANY.mean(jnp.ones((3, 1))), ValueError),
    (lambda: Slerp.init(jnp.arange(2.0), MANY), ValueError), (lambda: Slerp.init(jnp.arange(3.0), ONE), ValueError),
    (lambda: Slerp.init(jnp.ones((3, 1)), MANY), ValueError),
    (lambda: Slerp.init(jnp.arange(3.0), jnp.ones(4)), TypeError),
    (lambda: Slerp.init(jnp.arange(3.0), MANY)(jnp.ones((1, 1))), ValueError)]


@pytest.mark.parametrize("call, error", ERRORS)
def test_errors(call: Callable[[], Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


@pytest.mark.parametrize("axis", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, -2, 3), (-3, 1, 0.01)], ids=str)
def test_all_angles_keep_their_digits(axis: Any) -> None:
    """Half turns, and no turn at all, as well as others; in every form, in float32."""
    unit = np.asarray(axis) / np.linalg.norm(axis)
    for angle in (0.0, 1e-6, 1e-3, 0.5, 2.0, np.pi - 1e-3, np.pi - 1e-6, np.pi):
        want = Reference.from_rotvec(unit * angle)
        turned = Rotation.from_rotvec(jnp.asarray(unit * angle, "float32"))
        for found in (turned, Rotation.from_matrix(jnp.asarray(want.as_matrix(), "float32")),
                      Rotation.from_quat(jnp.asarray(want.as_quat(), "float32")), Rotation.from_mrp(turned.as_mrp())):
            np.testing.assert_allclose(found.as_matrix(), want.as_matrix(), atol=2e-6)
            np.testing.assert_allclose(found.magnitude(), angle, atol=2e-6)
