"""Values between samples, and what is summed over them: interpolation, images, nearest codes, integrals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.cluster.vq
import scipy.interpolate
import scipy.ndimage

import anima
import anima.numpy as jnp
from anima.scipy.cluster.vq import vq
from anima.scipy.integrate import trapezoid
from anima.scipy.interpolate import RegularGridInterpolator
from anima.scipy.ndimage import map_coordinates

RNG = np.random.default_rng(0)


# What SciPy's modes are called where elements, not the points between them, are continued.
NAMES = {"constant": "constant", "nearest": "nearest", "wrap": "grid-wrap", "mirror": "mirror", "reflect": "reflect"}


@pytest.mark.parametrize("mode", NAMES)
def test_images(mode: str, x64: None) -> None:
    for shape in ((5,), (5, 6), (1, 4), (3, 4, 2)):
        x = RNG.standard_normal(shape)
        points = np.stack([RNG.uniform(-2 * n, 3 * n, 40) for n in shape])
        inside = np.stack([RNG.uniform(0, n - 1, 40) for n in shape])
        for order in (0, 1):
            for at in (points, inside):
                if mode == "constant" and at is points and order == 1:
                    name = "grid-constant"
                else:
                    name = NAMES[mode]
                want = scipy.ndimage.map_coordinates(x, at, order=order, mode=name, cval=2.5)
                if mode == "constant" and order == 0:  # SciPy rounds after it has looked
                    rounded = np.floor(at + 0.5).astype(int)
                    fits = np.all((rounded >= 0) & (rounded < np.array(shape)[:, None]), 0)
                    nearest = tuple(np.clip(r, 0, n - 1) for r, n in zip(rounded, shape, strict=True))
                    want = np.where(fits, x[nearest], 2.5)
                np.testing.assert_allclose(map_coordinates(x, at, order, mode, 2.5), want, atol=1e-13)
    compiled = anima.jit(lambda x, p: map_coordinates(x, p, 1, mode))(x, points)
    np.testing.assert_allclose(compiled, map_coordinates(x, points, 1, mode), atol=1e-14)
    slope = anima.jacfwd(lambda p: map_coordinates(x, p, 1, mode))(inside[:, :3] + 0.01)
    assert slope.shape == (3, 3, 3) and np.isfinite(slope).all()


@pytest.mark.parametrize("mode,want", [
    ("constant", [-1, -1, -1, -1, 11]), ("nearest", [10, 10, 10, 10, 11]), ("wrap", [13, 14, 15, 16, 11]),
    ("mirror", [14, 13, 12, 11, 11]), ("reflect", [13, 12, 11, 10, 11])])
def test_places_between_two_elements_are_rounded_away_from_0(mode: str, want: list[float]) -> None:
    at = jnp.array([-3.5, -2.5, -1.5, -0.5, 0.5])
    assert map_coordinates(jnp.arange(10.0, 17.0), [at], 0, mode, -1.0).tolist() == want


def test_images_of_integers_are_rounded() -> None:
    x = jnp.array([0, 5, -5])
    assert map_coordinates(x, [jnp.array([0.5, 0.1, 1.95])], 1).tolist() == [3, 1, -5]
    assert map_coordinates(x, [jnp.array([0, 2, 7])], 0).tolist() == [0, -5, 0]
    assert map_coordinates(x, [jnp.array([0.5])], 1).dtype == x.dtype


def test_grids(x64: None) -> None:
    axes = [np.sort(RNG.uniform(0, 5, n)) for n in (4, 3, 2)]
    for rank in (1, 2, 3):
        for extra in ((), (2,)):
            values = RNG.standard_normal([a.size for a in axes[:rank]] + list(extra))
            at = RNG.uniform(-1, 6, (7, rank))
            for method in ("linear", "nearest"):
                for fill in (np.nan, None, 1.5):
                    ours = RegularGridInterpolator(axes[:rank], values, method, fill_value=fill)
                    theirs = scipy.interpolate.RegularGridInterpolator(axes[:rank], values, method, False, fill)
                    np.testing.assert_allclose(ours(at), theirs(at), atol=1e-12)
                    np.testing.assert_allclose(ours(tuple(at.T)), theirs(tuple(at.T)), atol=1e-12)
                    # On nodes, half-way between them (exactly, on this grid), and at the ends.
                    even = [np.arange(a.size) * 2.0 for a in axes[:rank]]
                    nodes = np.stack(np.meshgrid(*(np.arange(2 * a.size - 1.0) for a in axes[:rank])), -1)
                    np.testing.assert_allclose(
                        RegularGridInterpolator(even, values, method, fill_value=fill)(nodes),
                        scipy.interpolate.RegularGridInterpolator(even, values, method, False, fill)(nodes), atol=1e-12)
            if rank > 1:  # one point
                np.testing.assert_allclose(ours(at[0]), ours(at[:1])[0], equal_nan=True)
            compiled = anima.jit(lambda f, x: f(x, "linear"))(ours, at)
            np.testing.assert_allclose(compiled, theirs(at, "linear"), atol=1e-12)
    def value(values: Any, x: Any) -> Any:
        return jnp.sum(RegularGridInterpolator(axes[:2], values)(x) ** 2)

    v, x = RNG.standard_normal((4, 3)), np.array([[(a[0] + a[1]) / 2 for a in axes[:2]]])
    weights = np.zeros((4, 3))
    weights[:2, :2] = 0.25
    np.testing.assert_allclose(anima.hessian(value)(v, x).reshape(12, 12), 2 * np.outer(weights, weights), atol=1e-14)


@pytest.mark.parametrize("method", ["linear", "nearest"])
def test_grids_of_one_point_along_an_axis(method: str) -> None:
    for shape in ((1,), (1, 3), (3, 1), (1, 1)):
        axes, values = [jnp.arange(float(n)) + 2 for n in shape], jnp.arange(float(np.prod(shape))).reshape(shape)
        nodes = jnp.stack(jnp.meshgrid(*axes, indexing="ij"), -1)
        for fill in (None, np.nan):
            f = RegularGridInterpolator(axes, values, method, fill_value=fill)
            assert f(nodes).tolist() == values.tolist()
        assert np.isfinite(RegularGridInterpolator(axes, values, method, fill_value=None)(nodes + 0.25)).all()


def test_nearest_codes(x64: None) -> None:
    points, line = RNG.standard_normal((24, 3)), RNG.standard_normal(9)
    for obs, codes in ((points[:20], points[20:]), (line, np.arange(3.0))):
        got, want = vq(obs, codes), scipy.cluster.vq.vq(obs, codes)
        assert got[0].dtype == np.int64 and np.array_equal(got[0], want[0])  # as argmin's
        np.testing.assert_allclose(got[1], want[1])
    obs = codes = np.eye(2)
    assert np.isfinite(anima.grad(lambda o: vq(o, codes)[1].sum())(obs)).all() and vq(obs, codes)[1].tolist() == [0, 0]


def test_integrals() -> None:
    x = np.sort(RNG.uniform(0, 1, 9)).astype("f4")
    np.testing.assert_allclose(trapezoid(x**2, x), np.trapezoid(x**2, x), rtol=1e-5)
    np.testing.assert_allclose(trapezoid(jnp.ones((3, 4)), dx=0.5, axis=0), 1.0)
    assert trapezoid(jnp.ones(1)) == 0


GRID = (jnp.array([0.0, 1.0]),)
ERRORS: list[tuple[Callable[[], Any], type[Exception]]] = [
    (lambda: map_coordinates(jnp.ones(3), [jnp.ones(2)], 2), NotImplementedError),
    (lambda: map_coordinates(jnp.ones(3), [jnp.ones(2)], 1, "x"), NotImplementedError),
    (lambda: map_coordinates(jnp.ones(3), [jnp.ones(2)] * 2, 1), ValueError),
    (lambda: RegularGridInterpolator(GRID, jnp.ones(2), "cubic"), ValueError),
    (lambda: RegularGridInterpolator(GRID, jnp.ones(2), bounds_error=True), NotImplementedError),
    (lambda: RegularGridInterpolator(GRID, jnp.ones(3)), ValueError),
    (lambda: RegularGridInterpolator(GRID * 2, jnp.ones(2)), ValueError),
    (lambda: RegularGridInterpolator((jnp.ones((1, 2)),), jnp.ones(2)), ValueError),
    (lambda: RegularGridInterpolator(GRID, jnp.ones(2), fill_value=1j), ValueError),
    (lambda: RegularGridInterpolator(GRID, jnp.ones(2))(jnp.ones((3, 2))), ValueError),
    (lambda: vq(jnp.ones((2, 2)), jnp.ones(2)), ValueError),
    (lambda: vq(jnp.ones((2, 2)), jnp.ones((2, 3))), ValueError),
    (lambda: vq(jnp.ones((1, 1, 1)), jnp.ones((1, 1, 1))), ValueError)]


@pytest.mark.parametrize("call, error", ERRORS)
def test_errors(call: Callable[[], Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        call()
