"""Discrete Fourier transforms, as `numpy.fft`: differentiated, batched and compiled; float32 gives complex64.

    >>> jnp.fft.fft(jnp.array([1., 0., 0., 0.]))
    Array([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j], dtype=complex64)

`n` or `s` cut the input off, or extend it by zeros; `norm` says which direction divides by the number of
elements: "backward" (the default) the inverse, "forward" the other, "ortho" both by its root.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from anima import errors as _errors
from anima.api.eager import compiled, repeated
from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import canonicalize_axis
from anima.core.dims import Dim
from anima.core.trace import Tracer
from anima.numpy.creation import asarray, of_sequences
from anima.numpy.manipulation import moveaxis, roll
from anima.numpy.promote import as_array, convert_operand, operand, static_value
from anima.numpy.spaces import whole_range
from anima.ops import elementwise as ew, shape as sh
from anima.ops.fft import FftType, fft as _transform

ArrayLike = Any
_OPPOSITE = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}


def _scale(norm: Any, kind: FftType, count: int) -> float:
    """What a transform of `count` elements is multiplied by, beyond the 1/count of the inverse ones."""
    inverse = kind in (FftType.IFFT, FftType.IRFFT)
    if norm not in ("backward", "ortho", "forward", None):
        raise ValueError(f'Invalid norm value {norm}; should be "backward","ortho" or "forward".')
    if norm in (None, "backward"):
        return 1.0
    size = math.sqrt(count) if norm == "ortho" else float(count)
    return size if inverse else 1 / size


def _fit(x: Array, sizes: Sequence[int]) -> Array:
    """`x` with its last axes cut off at these sizes, or filled up with zeros."""
    before = x.ndim - len(sizes)
    if x.shape[before:] == tuple(sizes):
        return x
    kept = [*x.shape[:before], *map(min, sizes, x.shape[before:])]
    x = sh.slice(x, (0,) * x.ndim, kept)
    config = [(0, 0, 0)] * before + [(0, n - k, 0) for n, k in zip(sizes, kept[before:], strict=True)]
    return sh.pad(x, sh.scalar(0, x.dtype), config)


def _fftn(name: str, kind: FftType, a: Any, s: Sequence[int] | None, axes: Sequence[int] | None, norm: Any) -> Array:
    """The transform of any number of axes: sizes `s` (those of the result for IRFFT) along `axes`."""
    x = as_array(operand(f"anima.numpy.fft.{name}", a))
    _scale(norm, kind, 1)
    if s is not None:
        s = tuple(map(operator.index, s))
        if axes is not None and len(s) != len(axes):
            raise ValueError("Shape and axes have different lengths.")
        if len(s) > x.ndim:
            raise ValueError(f"FFT input shape {x.shape} must have at least as many input dimensions as "
                             f"fft_lengths {s}.")
        if any(n < 1 for n in s):
            raise ValueError("Shape should be positive.")
    if axes is None:
        axes = range(x.ndim - (x.ndim if s is None else len(s)), x.ndim)
    places = [canonicalize_axis(d, x.ndim) for d in axes]
    if len(set(places)) != len(places):
        raise ValueError(f"anima.numpy.fft.{name} does not support repeated axes. Got axes {tuple(axes)}.")
    if not places:
        return _transform(x, kind, ())
    last = list(range(x.ndim - len(places), x.ndim))
    x = x if places == last else moveaxis(x, places, last)
    sizes = list(s or x.shape[x.ndim - len(places):])
    if s is not None:
        x = _fit(x, [*sizes[:-1], sizes[-1] // 2 + 1] if kind == FftType.IRFFT else sizes)
    elif kind == FftType.IRFFT:
        sizes[-1] = max(2 * (sizes[-1] - 1), 0)
    out = _transform(x, kind, sizes)
    scale = _scale(norm, kind, math.prod(sizes)) if out.size else 1.0
    if scale != 1:
        out = ew.mul(out, out.dtype.type(scale))
    return out if places == last else moveaxis(out, last, places)


def _fft(name: str, kind: FftType, a: Any, n: int | None, axis: Any, norm: Any) -> Array:
    if isinstance(axis, (tuple, list)):
        raise ValueError(f"anima.numpy.fft.{name} does not support multiple axes. Please use anima.numpy.fft.{name}n. "
                         f"Got axis = {axis!r}.")
    return _fftn(name, kind, a, None if n is None else (operator.index(n),), None if axis is None else (axis,), norm)


def _fft2(name: str, kind: FftType, a: Any, s: Any, axes: Any, norm: Any) -> Array:
    if len(axes) != 2:
        raise ValueError(f"anima.numpy.fft.{name} only supports 2 axes. Got axes = {axes!r}.")
    return _fftn(name, kind, a, s, axes, norm)


@repeated
def fft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The discrete Fourier transform of `a` along `axis`, of `n` elements (default: all): complex.

    ValueError for an unknown `norm`, an `n` that is not positive, or a wrong axis.

    >>> jnp.fft.fft(jnp.array([1., 2.]))
    Array([ 3.+0.j, -1.+0.j], dtype=complex64)
    """
    return _fft("fft", FftType.FFT, a, n, axis, norm)


@repeated
def ifft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The inverse of `fft`."""
    return _fft("ifft", FftType.IFFT, a, n, axis, norm)


@repeated
def rfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The frequencies 0 to n//2 of the Fourier transform of real numbers: the others are their conjugates.

    ValueError if `a` is complex.
    """
    return _fft("rfft", FftType.RFFT, a, n, axis, norm)


@repeated
def irfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The inverse of `rfft`: `n` real numbers (default: the even number that fits)."""
    return _fft("irfft", FftType.IRFFT, a, n, axis, norm)


@repeated
def hfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The real Fourier transform of a Hermitian signal, of which `a` is the first half."""
    x = as_array(operand("anima.numpy.fft.hfft", a))
    _scale(norm, FftType.FFT, 1)
    conjugate = ew.conj(x) if dtypes.issubdtype(x.dtype, np.complexfloating) else x
    return _fft("hfft", FftType.IRFFT, conjugate, n, axis, _OPPOSITE[norm])


@repeated
@of_sequences
def ihfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The inverse of `hfft`, of real numbers."""
    _scale(norm, FftType.FFT, 1)
    return ew.conj(_fft("ihfft", FftType.RFFT, a, n, axis, _OPPOSITE[norm]))


@repeated
def fft2(a: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1),
         norm: str | None = None) -> Array:
    """`fftn` over two axes."""
    return _fft2("fft2", FftType.FFT, a, s, axes, norm)


@repeated
def ifft2(a: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1),
          norm: str | None = None) -> Array:
    """The inverse of `fft2`."""
    return _fft2("ifft2", FftType.IFFT, a, s, axes, norm)


@repeated
def rfft2(a: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1),
          norm: str | None = None) -> Array:
    """`rfftn` over two axes."""
    return _fft2("rfft2", FftType.RFFT, a, s, axes, norm)


@repeated
def irfft2(a: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1),
           norm: str | None = None) -> Array:
    """The inverse of `rfft2`; `s` are the sizes of the result."""
    return _fft2("irfft2", FftType.IRFFT, a, s, axes, norm)


@repeated
def fftn(a: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
         norm: str | None = None) -> Array:
    """The discrete Fourier transform of `a` over `axes` (default: all, or the last len(s)), of sizes `s`: complex.

    ValueError for an unknown `norm`, repeated axes, or sizes that are not positive or do not go with the axes.
    """
    return _fftn("fftn", FftType.FFT, a, s, axes, norm)


@repeated
def ifftn(a: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
          norm: str | None = None) -> Array:
    """The inverse of `fftn`."""
    return _fftn("ifftn", FftType.IFFT, a, s, axes, norm)


@repeated
def rfftn(a: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
          norm: str | None = None) -> Array:
    """`fftn` of real numbers, of which the last axis keeps the frequencies 0 to n//2. ValueError if `a` is complex."""
    return _fftn("rfftn", FftType.RFFT, a, s, axes, norm)


@repeated
def irfftn(a: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
           norm: str | None = None) -> Array:
    """The inverse of `rfftn`; `s` are the sizes of the result (default: even along the last axis)."""
    return _fftn("irfftn", FftType.IRFFT, a, s, axes, norm)


# ---------------------------------------------------------------- frequencies

def _frequencies(name: str, n: Any, d: Any, dtype: Any, device: Any, first: int, last: int) -> Array:
    """The integers from `first` to `last`, then those below 0 up to -1, divided by n d."""
    dtype = dtypes.check_user_dtype(dtype, name) if dtype is not None else dtypes.default_float()
    step = as_array(convert_operand(ew.mul(as_array(operand(name, d)), int(n)), dtypes.to_inexact(dtype), False))
    if isinstance(n, Dim):
        places = ew.convert(sh.concatenate([whole_range(0, last), whole_range(first, 0)], 0), step.dtype, False)
    else:
        places = as_array(np.concatenate([np.arange(0, last), np.arange(first, 0)]).astype(step.dtype))
    out = ew.div(places, sh.broadcast(step, places.shape))
    return asarray(ew.convert(out, dtype), device=device)


def _count(name: str, n: Any, d: Any) -> int:
    if isinstance(n, (list, tuple)):
        raise ValueError(f"The n argument of anima.numpy.fft.{name} only takes an int. Got n = {list(n)}.")
    if np.ndim(d):
        raise ValueError(f"The d argument of anima.numpy.fft.{name} only takes a single value. Got d = {d}.")
    if isinstance(n, Dim):
        return n
    return int(static_value(n, f"It arose in the argument 'n' of {name}.") if isinstance(n, Tracer) else n)


@functools.partial(compiled, static=("n",))
def fftfreq(n: int, d: ArrayLike = 1.0, *, dtype: Any = None, device: Any = None) -> Array:
    """The frequencies of the elements of an `fft` of `n` samples at distance `d`: 0, 1, ..., -2, -1 over n d.

    >>> jnp.fft.fftfreq(4)
    Array([ 0.  ,  0.25, -0.5 , -0.25], dtype=float32)
    """
    n = _count("fftfreq", n, d)
    return _frequencies("fftfreq", n, d, dtype, device, -(n // 2), (n + 1) // 2)


@functools.partial(compiled, static=("n",))
def rfftfreq(n: int, d: ArrayLike = 1.0, *, dtype: Any = None, device: Any = None) -> Array:
    """The frequencies of the elements of an `rfft` of `n` samples at distance `d`: 0, 1, ..., n//2 over n d.

    An integer `dtype` is taken as that of floats of its size; TypeError for bools.
    """
    n = _count("rfftfreq", n, d)
    if dtype is not None:
        dtype = dtypes.check_user_dtype(dtype, "rfftfreq")
        if dtype.kind == "b":
            raise TypeError("rfftfreq: frequencies cannot be of dtype bool.")
        dtype = dtypes.to_inexact(dtype)
    return _frequencies("rfftfreq", n, d, dtype, device, 0, n // 2 + 1)


@repeated
def fftshift(x: ArrayLike, axes: Any = None) -> Array:
    """`x` with frequency 0 moved to the middle of `axes` (default: all)."""
    return _shifted("fftshift", x, axes, lambda n: n // 2)


@repeated
def ifftshift(x: ArrayLike, axes: Any = None) -> Array:
    """The inverse of `fftshift`."""
    return _shifted("ifftshift", x, axes, lambda n: -(n // 2))


def _shifted(name: str, x: Any, axes: Any, shift: Any) -> Array:
    x = as_array(operand(name, x))
    axes = range(x.ndim) if axes is None else (axes,) if hasattr(axes, "__index__") else tuple(axes)
    return roll(x, [shift(x.shape[d]) for d in axes], tuple(axes)) if len(axes) else x


globals().update(_errors.public_face(__name__, globals()))  # errors show the user's frames only

__all__ = ["fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft",
           "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn"]
