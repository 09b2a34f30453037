"""Convolutions and correlations of arrays of any number of dimensions."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

import anima.numpy as jnp
from anima.api.eager import compiled
from anima.core.avals import canonicalize_axis
from anima.numpy.promote import promote_dtypes_inexact
from anima.ops.convolution import conv_general_dilated


def _check_mode(mode: str) -> None:
    if mode not in ("full", "same", "valid"):
        raise ValueError("mode must be one of ['full', 'same', 'valid']")


def _direct(a: Any, b: Any, mode: str, precision: Any) -> Any:
    _check_mode(mode)
    if a.ndim != b.ndim:
        raise ValueError("in1 and in2 must have the same number of dimensions")
    if not a.size or not b.size:
        raise ValueError(f"zero-size arrays not supported in convolutions, got shapes {a.shape} and {b.shape}.")
    a, b = promote_dtypes_inexact("convolve", a, b)
    if not a.ndim:
        return a * b
    wanted = b.shape
    if all(n <= m for n, m in zip(a.shape, b.shape, strict=True)):
        a, b = b, a
    elif not all(n >= m for n, m in zip(a.shape, b.shape, strict=True)):
        raise ValueError("One input must be smaller than the other in every dimension.")
    if mode == "valid":
        padding = [(0, 0)] * a.ndim
    elif mode == "full":
        padding = [(m - 1, m - 1) for m in b.shape]
    else:
        padding = [(m - 1 - (k - 1) // 2, m - k + (k - 1) // 2) for m, k in zip(b.shape, wanted, strict=True)]
    starts = [max(-low, 0) for low, _ in padding]  # of the sizes of the first, where the second is larger
    stops = [n - max(-high, 0) for n, (_, high) in zip(a.shape, padding, strict=True)]
    a = a[tuple(map(slice, starts, stops))]
    a = jnp.pad(a, [(max(low, 0), max(high, 0)) for low, high in padding])
    a, b = a[None, None], jnp.flip(b)[None, None]
    return conv_general_dilated(a, b, (1,) * (a.ndim - 2), "VALID", precision=precision)[0, 0]


@compiled
def convolve(in1: Any, in2: Any, mode: str = "full", method: str = "auto", precision: Any = None) -> Any:
    """The convolution of two arrays of one rank, of which one is not larger than the other along any axis.

    `mode` is "full", "same" (the size of `in1`) or "valid" (without what sticks out); `method` "direct", "fft" or
    "auto", which is direct. ValueError for arrays without elements, other ranks, sizes, modes or methods.

    >>> anima.scipy.signal.convolve(jnp.array([1., 2., 3.]), jnp.array([1., 1.]))
    Array([1., 3., 5., 3.], dtype=float32)
    """
    a, b = promote_dtypes_inexact("convolve", in1, in2)
    if method == "fft":
        return fftconvolve(a, b, mode)
    if method not in ("direct", "auto"):
        raise ValueError(f"Got {method=}; expected 'auto', 'fft', or 'direct'.")
    return _direct(a, b, mode, precision)


@compiled
def correlate(in1: Any, in2: Any, mode: str = "full", method: str = "auto", precision: Any = None) -> Any:
    """The cross-correlation of two arrays, the second conjugated; arguments as those of `convolve`."""
    a, b = promote_dtypes_inexact("correlate", in1, in2)
    return convolve(a, jnp.flip(jnp.conj(b)), mode, method, precision)


def _check_2d(name: str, in1: Any, in2: Any, boundary: str, fillvalue: Any) -> None:
    if boundary != "fill" or fillvalue != 0:
        raise NotImplementedError(f"{name}() only supports boundary='fill', fillvalue=0")
    if np.ndim(in1) != 2 or np.ndim(in2) != 2:
        raise ValueError(f"{name}() only supports 2-dimensional inputs.")


@compiled
def convolve2d(in1: Any, in2: Any, mode: str = "full", boundary: str = "fill", fillvalue: float = 0,
               precision: Any = None) -> Any:
    """The convolution of two matrices; `mode` as in `convolve`. NotImplementedError for another boundary than zeros."""
    _check_2d("convolve2d", in1, in2, boundary, fillvalue)
    return _direct(*promote_dtypes_inexact("convolve2d", in1, in2), mode, precision)


@compiled
def correlate2d(in1: Any, in2: Any, mode: str = "full", boundary: str = "fill", fillvalue: float = 0,
                precision: Any = None) -> Any:
    """The cross-correlation of two matrices, the second conjugated; arguments as those of `convolve2d`."""
    _check_2d("correlate2d", in1, in2, boundary, fillvalue)
    a, b = promote_dtypes_inexact("correlate2d", in1, in2)
    # Flipped twice: "same" begins, for even sizes, where SciPy's does.
    return jnp.flip(_direct(jnp.flip(a), jnp.conj(b), mode, precision))


@functools.partial(compiled, static=("axes",))
def fftconvolve(in1: Any, in2: Any, mode: str = "full", axes: int | Sequence[int] | None = None) -> Any:
    """The convolution along `axes` (default: all) by Fourier transforms; the other axes have one size, or 1.

    `mode` as in `convolve`. ValueError for other ranks, sizes, axes or modes.
    """
    a, b = promote_dtypes_inexact("fftconvolve", in1, in2)
    _check_mode(mode)
    if a.ndim != b.ndim:
        raise ValueError("in1 and in2 should have the same dimensionality")
    if not a.size or not b.size:
        return jnp.zeros(0, a.dtype)
    given = range(a.ndim) if axes is None else (axes,) if isinstance(axes, int) else axes
    places = [canonicalize_axis(d, a.ndim) for d in given]
    if len(set(places)) != len(places):
        raise ValueError("all axes must be unique")
    others = [d for d in range(a.ndim) if d not in places]
    if any(a.shape[d] != b.shape[d] and 1 not in (a.shape[d], b.shape[d]) for d in others):
        raise ValueError(f"incompatible shapes for in1 and in2: {a.shape} and {b.shape}")
    larger = all(a.shape[d] >= b.shape[d] for d in places)
    if mode == "valid" and not larger and not all(a.shape[d] <= b.shape[d] for d in places):
        raise ValueError("For 'valid' mode, one must be at least as large as the other in every dimension")
    full = [a.shape[d] + b.shape[d] - 1 for d in places]
    if not places:
        return a * b
    if jnp.iscomplexobj(a):
        out = jnp.fft.ifftn(jnp.fft.fftn(a, full, places) * jnp.fft.fftn(b, full, places), full, places)
    else:
        out = jnp.fft.irfftn(jnp.fft.rfftn(a, full, places) * jnp.fft.rfftn(b, full, places), full, places)
    if mode == "full":
        return out
    window = [slice(None)] * a.ndim
    for d, n in zip(places, full, strict=True):
        size = a.shape[d] if mode == "same" else abs(a.shape[d] - b.shape[d]) + 1
        start = (n - size) // 2
        window[d] = slice(start, start + size)
    return out[tuple(window)]
