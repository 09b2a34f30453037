"""Discrete cosine transforms, as `scipy.fft`, of type II and their inverses.

    >>> anima.scipy.fft.dct(jnp.array([1., 1.]))
    Array([4., 0.], dtype=float32)

One real Fourier transform of as many elements, the even ones in order and the odd ones in reverse (J. Makhoul,
"A fast cosine transform in one and two dimensions", IEEE Trans. ASSP 28, 1980).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

import anima.numpy as jnp
from anima import errors as _errors
from anima.api.eager import repeated
from anima.core.avals import canonicalize_axis
from anima.numpy.promote import promote_dtypes_inexact
from anima.ops.elementwise import complex as make_complex
from anima.ops.fft import fft as _fft
from anima.scipy.shapes import along_last


def _check(name: str, type: int, norm: str | None) -> None:
    if type != 2:
        raise NotImplementedError("Only DCT type 2 is implemented.")
    if norm not in (None, "backward", "ortho"):
        raise ValueError(f"anima.scipy.fft.{name}: norm={norm!r} is not implemented")


def _along(name: str, x: Any, type: int, sizes: Sequence[int] | None, axes: Sequence[int], norm: str | None) -> Any:
    """The transform along each of `axes`, cut off or filled up with zeros to `sizes`."""
    _check(name, type, norm)
    (x,) = promote_dtypes_inexact(name, x)
    if x.dtype.itemsize == 2:
        x = x.astype(np.float32)
    axes = [canonicalize_axis(a, x.ndim) for a in axes]
    if len(set(axes)) != len(axes):
        raise ValueError(f"repeated axis: {tuple(axes)}")
    for axis, n in zip(axes, sizes or [x.shape[a] for a in axes], strict=True):
        if n < 1:
            raise ValueError(f"anima.scipy.fft.{name}: invalid number of data points ({n}) specified")
        x = jnp.moveaxis(x, axis, -1)
        x = jnp.pad(x[..., :n], [(0, 0)] * (x.ndim - 1) + [(0, max(n - x.shape[-1], 0))])
        transform = _forward if name.startswith("dct") else _inverse
        if jnp.iscomplexobj(x):
            x = make_complex(transform(x.real, norm == "ortho"), transform(x.imag, norm == "ortho"))
        else:
            x = transform(x, norm == "ortho")
        x = jnp.moveaxis(x, -1, axis)
    return x


def _turns(n: int, x: Any) -> Any:
    """exp(-i pi k / 2n), for the frequencies k of a real transform of x."""
    angles = -0.5 * np.pi / n * np.arange(n // 2 + 1)
    return make_complex(along_last(np.cos(angles), x), along_last(np.sin(angles), x))


def _weights(n: int, x: Any) -> Any:
    """What makes the transform of `n` elements orthogonal."""
    weights = np.full(n, math.sqrt(0.5 / n))
    weights[0] = math.sqrt(0.25 / n)
    return along_last(weights, x)


def _forward(x: Any, orthogonal: bool) -> Any:
    n = x.shape[-1]
    v = jnp.concatenate([x[..., ::2], x[..., 1::2][..., ::-1]], -1)
    spectrum = 2 * _fft(v, "RFFT", (n,)) * _turns(n, v)
    out = jnp.concatenate([spectrum.real, -spectrum.imag[..., (n - 1) // 2:0:-1]], -1)
    return out * _weights(n, out) if orthogonal else out


def _inverse(x: Any, orthogonal: bool) -> Any:
    n = x.shape[-1]
    if orthogonal:
        x = x / _weights(n, x)
    mirrored = jnp.concatenate([jnp.zeros_like(x[..., :1]), x[..., :(n - 1) // 2:-1]], -1)
    spectrum = make_complex(x[..., :n // 2 + 1], -mirrored) * jnp.conj(_turns(n, x)) * 0.5
    v = _fft(spectrum, "IRFFT", (n,))
    half = (n + 1) // 2
    even, odd = v[..., :half], v[..., half:][..., ::-1]
    pairs = jnp.stack([even, jnp.pad(odd, [(0, 0)] * (x.ndim - 1) + [(0, n % 2)])], -1)
    return pairs.reshape(*x.shape[:-1], 2 * half)[..., :n]


def _sizes(n: int | None) -> tuple[int, ...] | None:
    return None if n is None else (operator.index(n),)


@repeated
def dct(x: Any, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The discrete cosine transform (II) along `axis`: 2 times the sum of x[m] cos(pi k (2m + 1) / 2n).

    `n` cuts `x` off or fills it up with zeros; norm="ortho" makes the transform orthogonal. NotImplementedError for
    another `type` than 2, ValueError for another `norm`.
    """
    return _along("dct", x, type, _sizes(n), (axis,), norm)


@repeated
def idct(x: Any, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The inverse of `dct`."""
    return _along("idct", x, type, _sizes(n), (axis,), norm)


@repeated
def dctn(x: Any, type: int = 2, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
         norm: str | None = None) -> Any:
    """`dct` along each of `axes` (default: all, or the last len(s)), of sizes `s`."""
    return _along("dctn", x, type, *_places(x, s, axes), norm)


@repeated
def idctn(x: Any, type: int = 2, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
          norm: str | None = None) -> Any:
    """The inverse of `dctn`."""
    return _along("idctn", x, type, *_places(x, s, axes), norm)


def _places(x: Any, s: Any, axes: Any) -> tuple[tuple[int, ...] | None, tuple[int, ...]]:
    sizes = None if s is None else tuple(map(operator.index, np.atleast_1d(s)))
    if axes is None:
        places = tuple(range(-(np.ndim(x) if sizes is None else len(sizes)), 0))
    else:
        places = tuple(map(operator.index, np.atleast_1d(axes)))
    if sizes is not None and len(sizes) != len(places):
        raise ValueError("when given, axes and shape arguments have to be of the same length")
    return sizes, places


globals().update(_errors.public_face(__name__, globals()))  # errors show the user's frames only

__all__ = ["dct", "dctn", "idct", "idctn"]
