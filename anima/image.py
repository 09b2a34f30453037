"""Resizing images, of any number of dimensions: each is resampled by itself, as a product with a matrix of weights.

    >>> resize(jnp.array([[0., 4.]]), (1, 4), "linear")
    Array([[0., 1., 3., 4.]], dtype=float32)

Row k of the weights is a kernel around the place of output pixel k in the input, normalised to sum 1. Pixels are
intervals of length 1: the centre of the first is at 0.5. With `antialias`, kernels widen where the image shrinks.

Kernels: Keys (1981), "Cubic convolution interpolation for digital image processing"; Duchon (1979), "Lanczos filtering
in one and two dimensions".
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import anima.numpy as jnp
from anima import errors as _errors
from anima.api.eager import repeated
from anima.core import dtypes
from anima.core.avals import canonicalize_axis
from anima.core.dims import point_of
from anima.core.trace import aval_of
from anima.ops.broadcast import as_shape
from anima.ops.contract import Precision, dot_general
from anima.ops.elementwise import div
from anima.ops.shape import moveaxis

__all__ = ["ResizeMethod", "resize", "scale_and_translate"]


class ResizeMethod(enum.Enum):
    """How pixels between pixels are computed.

    NEAREST takes the nearest pixel; LINEAR, CUBIC (Keys, a = -1/2), LANCZOS3 and LANCZOS5 are kernels of radius 1, 2, 3
    and 5; CUBIC_PYTORCH has a = -3/4 without antialiasing, and repeats the pixels at the edges, as PyTorch does; AREA
    averages what an output pixel covers.
    """

    NEAREST = 0
    LINEAR = 1
    LANCZOS3 = 2
    LANCZOS5 = 3
    CUBIC = 4
    CUBIC_PYTORCH = 5
    AREA = 6

    @staticmethod
    def from_string(s: str) -> ResizeMethod:
        """The method of a name, such as "bilinear"; ValueError for an unknown one."""
        if s not in _METHODS:
            raise ValueError(f'Unknown resize method "{s}"; there are {", ".join(_METHODS)}.')
        return _METHODS[s]


_METHODS = {
    "nearest": ResizeMethod.NEAREST, "linear": ResizeMethod.LINEAR, "bilinear": ResizeMethod.LINEAR,
    "trilinear": ResizeMethod.LINEAR, "triangle": ResizeMethod.LINEAR, "lanczos3": ResizeMethod.LANCZOS3,
    "lanczos5": ResizeMethod.LANCZOS5, "cubic": ResizeMethod.CUBIC, "bicubic": ResizeMethod.CUBIC,
    "tricubic": ResizeMethod.CUBIC, "cubic-pytorch": ResizeMethod.CUBIC_PYTORCH, "area": ResizeMethod.AREA}


# ---------------------------------------------------------------- kernels: functions of a distance

def _triangle(x: Any) -> Any:
    return jnp.maximum(0, 1 - x)


def _keys(a: float) -> Callable[[Any], Any]:
    """Keys' cubic convolution; its slope at distance 1 is `a`."""
    def kernel(x: Any) -> Any:
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return jnp.where(x < 1, near, jnp.where(x < 2, far, 0))
    return kernel


def _lanczos(radius: int) -> Callable[[Any], Any]:
    """A sinc under the main lobe of a wider one."""
    def kernel(x: Any) -> Any:
        return jnp.where(x <= radius, jnp.sinc(x) * jnp.sinc(x / radius), 0)
    return kernel


_KERNELS: dict[ResizeMethod, Callable[[Any], Any]] = {
    ResizeMethod.LINEAR: _triangle, ResizeMethod.CUBIC: _keys(-0.5), ResizeMethod.CUBIC_PYTORCH: _keys(-0.5),
    ResizeMethod.LANCZOS3: _lanczos(3), ResizeMethod.LANCZOS5: _lanczos(5)}


# ---------------------------------------------------------------- weights

def _weights(size: int, new_size: int, scale: Any, translation: Any, method: ResizeMethod, antialias: bool) -> Any:
    """The matrix (size, new_size) of one dimension; zero for output pixels whose centre is outside of the image.

    But for repeated edges, which go on as far as the kernel reaches them.
    """
    dtype = scale.dtype
    inverse = 1 / scale
    centre = (jnp.arange(new_size, dtype=dtype) + 0.5) * inverse - translation * inverse - 0.5
    places = jnp.arange(size, dtype=dtype)[:, None]
    repeats = method is ResizeMethod.CUBIC_PYTORCH and not antialias
    if method is ResizeMethod.AREA:
        half = 0.5 * inverse
        ends = jnp.minimum(places + 0.5, (centre + half)[None, :]), jnp.maximum(places - 0.5, (centre - half)[None, :])
        weights = jnp.maximum(ends[0] - ends[1], 0)
    elif repeats:
        weights = _keys(-0.75)(jnp.abs(places - centre[None, :]))
        for beyond in (-2, -1, size, size + 1):  # two more pixels on each side, as the one at the edge
            edge = 0 if beyond < 0 else size - 1
            weights = weights + jnp.where(places == edge, _keys(-0.75)(jnp.abs(beyond - centre))[None, :], 0)
    else:
        width = jnp.maximum(inverse, 1) if antialias else 1
        weights = _KERNELS[method](jnp.abs(places - centre[None, :]) / width)
    total = jnp.sum(weights, axis=0, keepdims=True)
    known = jnp.abs(total) > 1000 * float(np.finfo(np.float32).eps)
    weights = jnp.where(known, weights / jnp.where(known, total, 1), 0)
    return weights if repeats else jnp.where(((centre >= -0.5) & (centre <= size - 0.5))[None, :], weights, 0)


def _resampled(image: Any, axes: Sequence[int], sizes: Sequence[int], scale: Sequence[Any], translation: Sequence[Any],
               method: ResizeMethod, antialias: bool, precision: Any) -> Any:
    for axis, size, s, t in zip(axes, sizes, scale, translation, strict=True):
        weights = _weights(image.shape[axis], size, s, t, method, antialias).astype(image.dtype)
        image = moveaxis(dot_general(image, weights, (((axis,), (0,)), ((), ())), precision), image.ndim - 1, axis)
    return image


def _nearest(image: Any, axes: Sequence[int], sizes: Sequence[int]) -> Any:
    for axis, new in zip(axes, sizes, strict=True):
        old = image.shape[axis]
        xp: Any = np if point_of(old, new) is None else jnp  # sizes that are not known are the program's
        places = xp.floor((xp.arange(new, dtype=np.float32) + np.float32(0.5)) * xp.asarray(old, np.float32)
                          / xp.asarray(new, np.float32))
        image = jnp.take(image, places.astype(np.int32), axis=axis)
    return image


def _method(method: str | ResizeMethod) -> ResizeMethod:
    return ResizeMethod.from_string(method) if isinstance(method, str) else ResizeMethod(method)


def _floating(image: Any) -> Any:
    return image if dtypes.issubdtype(image.dtype, np.inexact) else image.astype(dtypes.to_inexact(image.dtype))


def _weight_dtype(image: Any) -> Any:
    """Weights are computed in float32 at least, and in the image's precision if that is double."""
    return np.dtype(np.float64) if image.dtype in (np.float64, np.complex128) else np.dtype(np.float32)


@repeated
def resize(image: Any, shape: Sequence[int], method: str | ResizeMethod, antialias: bool = True,
           precision: Any = Precision.HIGHEST) -> Any:
    """An image stretched or shrunk to a shape.

    Args:
      image: an array of any rank; integers become floats, but for "nearest".
      shape: a size for each dimension; those that stay as they are are not resampled.
      method: a `ResizeMethod`, or the name of one: "nearest", "linear", "cubic", "cubic-pytorch", "lanczos3",
        "lanczos5", "area".
      antialias: widen kernels where the image shrinks, so that every pixel counts.
      precision: of the products of pixels and weights, as of `lax.dot_general`.

    Raises:
      ValueError: for an unknown method, a shape of another rank, or a dimension without pixels that is to have some.

    >>> resize(jnp.arange(4.).reshape(2, 2), (4, 2), "nearest")
    Array([[0., 1.],
           [0., 1.],
           [2., 3.],
           [2., 3.]], dtype=float32)
    """
    image, sizes, how = jnp.asarray(image), as_shape(shape), _method(method)
    if len(sizes) != image.ndim:
        raise ValueError("shape must have length equal to the number of dimensions of x; "
                         f" {sizes} vs {image.shape}")
    axes = [d for d in range(image.ndim) if sizes[d] != image.shape[d]]
    if any(image.shape[d] == 0 for d in axes):
        raise ValueError(f"resize: there are no pixels to take values from in an image of shape {image.shape}.")
    if how is ResizeMethod.NEAREST:
        return _nearest(image, axes, [sizes[d] for d in axes])
    image = _floating(image)
    dtype = _weight_dtype(image)
    scale = [dtype.type(sizes[d] / image.shape[d] if sizes[d] else 1.0) if point_of(sizes[d], image.shape[d]) is None
             else div(jnp.asarray(sizes[d], dtype), jnp.asarray(image.shape[d], dtype)) for d in axes]
    zero = dtype.type(0)
    return _resampled(image, axes, [sizes[d] for d in axes], scale, [zero] * len(axes), how, antialias, precision)


@repeated
def scale_and_translate(image: Any, shape: Sequence[int], spatial_dims: Sequence[int], scale: Any, translation: Any,
                        method: str | ResizeMethod, antialias: bool = True, precision: Any = Precision.HIGHEST) -> Any:
    """An image scaled, and then moved, along some of its dimensions.

    Args:
      image: an array of any rank; integers become floats.
      shape: the shape of the result; the size of dimensions that are not in `spatial_dims` stays.
      spatial_dims: the dimensions to resample, one number of `scale` and `translation` for each.
      scale, translation: pixel (i + 1/2) of the image is at scale * (i + 1/2) + translation in the result. Both may be
        traced, and differentiated.
      method, antialias, precision: as of `resize`, without "nearest".

    Returns:
      An array of the shape, zero where the image does not reach.

    Raises:
      ValueError: for an unknown method or "nearest", and for shapes, scales or translations of other lengths.

    >>> scale_and_translate(jnp.array([1., 2., 3.]), (4,), (0,), jnp.array([1.]), jnp.array([2.]), "linear")
    Array([0., 0., 1., 2.], dtype=float32)
    """
    image, sizes, how = jnp.asarray(image), as_shape(shape), _method(method)
    if len(sizes) != image.ndim:
        raise ValueError("shape must have length equal to the number of dimensions of x; "
                         f" {sizes} vs {image.shape}")
    if how is ResizeMethod.NEAREST:
        raise ValueError("Nearest neighbor resampling is not currently supported for scale_and_translate.")
    axes = [canonicalize_axis(d, image.ndim) for d in spatial_dims]
    for name, x in (("scale", scale), ("translation", translation)):
        if aval_of(x).shape != (len(axes),):
            raise ValueError(f"scale_and_translate: {name} must have one number for each of the {len(axes)} spatial "
                             f"dimensions, got shape {aval_of(x).shape}.")
    if any(image.shape[d] == 0 for d in axes):
        raise ValueError(f"scale_and_translate: there are no pixels in an image of shape {image.shape}.")
    image = _floating(image)
    dtype = _weight_dtype(image)
    scales, shifts = jnp.asarray(scale).astype(dtype), jnp.asarray(translation).astype(dtype)
    indices = range(len(axes))
    return _resampled(image, axes, [sizes[d] for d in axes], [scales[i] for i in indices], [shifts[i] for i in indices],
                      how, antialias, precision)


globals().update(_errors.public_face(__name__, globals()))  # errors show the user's frames only
