"""Images: every method against its definition pixel by pixel, with and without antialiasing, and its derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import image
from anima.image import ResizeMethod
from anima.test_util import check_grads

IMAGE = np.random.default_rng(0).normal(size=(7, 5, 3)).astype(np.float32)
NAMES = ["linear", "cubic", "lanczos3", "lanczos5", "cubic-pytorch", "area"]
RADIUS = {"linear": 1, "cubic": 2, "lanczos3": 3, "lanczos5": 5}


def kernel(name: str, x: float) -> float:
    x = abs(x)
    if name == "linear":
        return max(0.0, 1 - x)
    if name.startswith("lanczos"):
        return float(np.sinc(x) * np.sinc(x / RADIUS[name])) if x <= RADIUS[name] else 0.0
    a = -0.75 if name == "cubic-pytorch" else -0.5
    if x < 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


def weights(old: int, new: int, name: str, antialias: bool) -> np.ndarray:
    """The definition, one pixel at a time."""
    out = np.zeros((old, new))
    step = old / new
    for k in range(new):
        centre = (k + 0.5) * step
        for i in range(old):
            if name == "area":
                out[i, k] = max(0.0, min(i + 1, centre + step / 2) - max(i, centre - step / 2))
            elif name == "cubic-pytorch" and not antialias:
                out[i, k] = sum(kernel(name, j + 0.5 - centre) for j in range(-2, old + 2)
                                if min(max(j, 0), old - 1) == i)
            else:
                width = max(step, 1.0) if antialias else 1.0
                out[i, k] = kernel("cubic" if name == "cubic-pytorch" else name, (i + 0.5 - centre) / width)
    return out / out.sum(0)


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(7, 5, 3), (3, 5, 3), (14, 9, 3), (1, 1, 3), (20, 2, 3), (8, 5, 4), (0, 5, 3)])
def test_resize(shape: tuple[int, ...], name: str, antialias: bool) -> None:
    want = IMAGE.astype(np.float64)
    for axis, new in enumerate(shape):
        if new != want.shape[axis]:
            matrix = weights(want.shape[axis], new, name, antialias) if new else np.zeros((want.shape[axis], 0))
            want = np.moveaxis(np.tensordot(want, matrix, (axis, 0)), -1, axis)
    got = image.resize(IMAGE, shape, name, antialias)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(anima.jit(lambda v: image.resize(v, shape, name, antialias))(IMAGE), want, rtol=2e-5,
                               atol=2e-5)


@pytest.mark.parametrize("shape", [(7, 5, 3), (3, 5, 3), (14, 9, 3), (1, 1, 1), (20, 2, 4), (0, 5, 3)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "bool", "complex64"])
def test_nearest(shape: tuple[int, ...], dtype: str) -> None:
    x = jnp.asarray(IMAGE * 4).astype(dtype)
    places = [(np.arange(n) * 2 + 1) * old // (2 * n) if n else np.zeros(0, int)
              for n, old in zip(shape, x.shape, strict=True)]
    got = image.resize(x, shape, "nearest")
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, np.asarray(x)[np.ix_(*places)])


@pytest.mark.parametrize("dtype, result", [("bfloat16", "bfloat16"), ("float16", "float16"), ("int32", "float32"),
                                           ("bool", "float32"), ("complex64", "complex64")])
def test_dtypes(dtype: str, result: str) -> None:
    x = jnp.asarray(IMAGE * 4).astype(dtype)
    got = image.resize(x, (4, 8, 3), "cubic")
    assert got.dtype == result
    exact = image.resize(x.astype("complex64"), (4, 8, 3), "cubic")
    np.testing.assert_allclose(np.asarray(got.astype("complex64")), exact, atol=0.1 if "16" in dtype else 1e-5)
    with anima.enable_x64(True), anima.numpy_dtype_promotion("strict"):
        wide = image.resize(jnp.asarray(np.asarray(exact.real), "float64"), (9, 5, 3), "lanczos3")
        assert wide.dtype == np.float64


@pytest.mark.parametrize("name", NAMES)
def test_translation(name: str) -> None:
    """Moved by whole pixels, an image is itself, with zeros (or, repeated, its edge) where it does not reach."""
    got = image.scale_and_translate(IMAGE, (9, 5, 3), (0,), jnp.ones(1), jnp.array([1.0]), name)
    np.testing.assert_allclose(got, np.pad(IMAGE, ((1, 1), (0, 0), (0, 0))), atol=1e-6)
    both = image.scale_and_translate(IMAGE, (8, 6, 3), (-3, 1), np.array([1.0, 1.0]), np.array([-1.0, 2.0]), name)
    np.testing.assert_allclose(both[:6, 2:], IMAGE[1:, :4], atol=1e-6)
    if name == "cubic-pytorch":
        edge = image.scale_and_translate(IMAGE, (9, 5, 3), (0,), jnp.ones(1), jnp.array([1.0]), name, antialias=False)
        np.testing.assert_allclose(edge, np.pad(IMAGE, ((1, 1), (0, 0), (0, 0)), mode="edge"), atol=1e-6)


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_resize_is_a_scale(name: str, antialias: bool) -> None:
    scale = np.array([4 / 7, 9 / 5], np.float32)
    got = image.scale_and_translate(IMAGE, (4, 9, 3), (0, 1), scale, np.zeros(2, np.float32), name, antialias)
    np.testing.assert_allclose(got, image.resize(IMAGE, (4, 9, 3), name, antialias), atol=1e-5)


@pytest.mark.parametrize("name", ["linear", "cubic", "lanczos3", "area"])
def test_derivatives(name: str, x64: None) -> None:
    x = IMAGE.astype(np.float64)[:4, :3, 0]
    check_grads(lambda v: image.resize(v, (3, 5), name), (x,), 1)
    check_grads(lambda v, s, t: image.scale_and_translate(v, (5, 3), (0,), s, t, name), (
        x, np.array([1.37]), np.array([0.21])), 2, atol=1e-3, rtol=1e-3)


def test_batches() -> None:
    stack = np.stack([IMAGE, 2 * IMAGE])
    got = anima.vmap(lambda v: image.resize(v, (3, 8, 3), "lanczos3"))(stack)
    np.testing.assert_allclose(got, np.stack([image.resize(v, (3, 8, 3), "lanczos3") for v in stack]), atol=1e-5)


def test_names() -> None:
    assert image.ResizeMethod.from_string("bilinear") is image.ResizeMethod.from_string("triangle")
    assert image.ResizeMethod.from_string("tricubic") is ResizeMethod.CUBIC
    np.testing.assert_array_equal(image.resize(IMAGE, (2, 2, 3), ResizeMethod.AREA), image.resize(IMAGE, (2, 2, 3),
                                                                                                   "area"))


@pytest.mark.parametrize("call, text", [
    (lambda: image.resize(IMAGE, (2, 2), "linear"), "number of dimensions"),
    (lambda: image.resize(IMAGE, (2, 2, 3), "soft"), "Unknown resize method"),
    (lambda: image.resize(IMAGE[:0], (2, 5, 3), "cubic"), "no pixels"),
    (lambda: image.resize(IMAGE[:0], (2, 5, 3), "nearest"), "no pixels"),
    (lambda: image.scale_and_translate(IMAGE, IMAGE.shape, (0,), np.ones(2), np.ones(1), "linear"), "scale must have"),
    (lambda: image.scale_and_translate(IMAGE, IMAGE.shape, (0, 1), np.ones(2), np.ones(1), "linear"), "translation"),
    (lambda: image.scale_and_translate(IMAGE, IMAGE.shape, (0,), np.ones(1), np.ones(1), "nearest"), "Nearest"),
    (lambda: image.scale_and_translate(IMAGE, (4, 4), (0,), np.ones(1), np.ones(1), "linear"), "number of dimensions"),
    (lambda: image.scale_and_translate(IMAGE, IMAGE.shape, (3,), np.ones(1), np.ones(1), "linear"), "out of bounds"),
])
def test_errors(call: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call()


def test_dimensions_without_pixels() -> None:
    """Those that stay as they are may have none; there is nothing to resample those that change from."""
    for method in ("linear", "cubic", "lanczos3", "area"):
        for shape in ((0, 3), (2, 0), (0, 0)):
            image = jnp.zeros(shape)
            assert anima.image.resize(image, shape, method).shape == shape
            assert anima.image.scale_and_translate(image, shape, (), jnp.ones(0), jnp.ones(0), method).shape == shape
            for axes in ((0,), (1,), (0, 1)):
                one = jnp.ones(len(axes))
                if all(shape[d] for d in axes):
                    assert anima.image.scale_and_translate(image, shape, axes, one, one, method).shape == shape
                    continue
                with pytest.raises(ValueError, match="no pixels"):
                    anima.image.scale_and_translate(image, shape, axes, one, one, method)
                with pytest.raises(ValueError, match="no pixels"):
                    anima.image.resize(image, tuple(4 if d in axes else n for d, n in enumerate(shape)), method)


@pytest.mark.parametrize("method", ["linear", "cubic"])
@pytest.mark.parametrize("scale, translation", [(1.0, 1.5), (2.0, 3.0), (2.0, -1.25), (3.5, -2.0), (1.25, 0.6)])
def test_pixels_are_scaled_and_then_moved(scale: float, translation: float, method: str) -> None:
    """A ramp stays one: what was at x is at scale * x + translation."""
    ramp = jnp.arange(20.0)
    for antialias in (False, True):
        out = anima.image.scale_and_translate(ramp, (40,), (0,), jnp.array([scale]), jnp.array([translation]), method,
                                              antialias)
        places = (np.arange(40) + 0.5 - translation) / scale - 0.5
        inner = (places > 2) & (places < 17)
        assert inner.sum() > 9
        np.testing.assert_allclose(np.asarray(out)[inner], places[inner], atol=2e-5)
        assert not np.asarray(out)[(places < -0.51) | (places > 19.51)].any()
