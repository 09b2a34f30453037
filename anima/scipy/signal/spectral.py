"""Spectra of signals: segments that overlap, windowed, transformed, and averaged (P. D. Welch, 1967) or put together.

Times and frequencies come in units of `1/fs` and `fs`.
"""

from __future__ import annotations

import functools
import itertools
import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import anima.numpy as jnp
from anima import errors
from anima.api.eager import compiled, repeated
from anima.core import dtypes
from anima.core.avals import canonicalize_axis
from anima.numpy.creation import of_sequences
from anima.numpy.promote import as_array, operand, promote_dtypes_inexact
from anima.ops.elementwise import complex as make_complex
from anima.scipy.shapes import along_last
from anima.util import record


@of_sequences
@repeated
def detrend(data: Any, axis: int = -1, type: str = "linear", bp: Any = 0, overwrite_data: None = None) -> Any:
    """`data` less its mean (type="constant"), or a line fitted to each piece between the break points `bp`.

    ValueError for another type, or break points outside of the data; NotImplementedError for `overwrite_data`.

    >>> anima.scipy.signal.detrend(jnp.array([1., 2., 4.]), type="constant").round(3)
    Array([-1.333, -0.333,  1.667], dtype=float32)
    """
    if overwrite_data is not None:
        raise NotImplementedError("overwrite_data argument not implemented.")
    if type not in ("constant", "linear"):
        raise ValueError("Trend type must be 'linear' or 'constant'.")
    (data,) = promote_dtypes_inexact("detrend", data)
    if type == "constant":
        return data - jnp.mean(data, axis, keepdims=True)
    n = data.shape[axis]
    ends = np.unique(np.concatenate([[0], np.atleast_1d(bp), [n]]).astype(int))
    if np.any(ends > n) or np.any(ends < 0):
        raise ValueError("Breakpoints must be non-negative and less than length of data along given axis.")
    x = jnp.moveaxis(data, axis, -1)
    pieces = []
    for start, stop in itertools.pairwise(ends):
        piece = x[..., start:stop]
        t = np.arange(stop - start) - (stop - start - 1) / 2
        slope = jnp.sum(piece * along_last(t / (np.sum(t * t) or 1.0), piece), -1, keepdims=True)
        pieces.append(piece - jnp.mean(piece, -1, keepdims=True) - slope * along_last(t, piece))
    return jnp.moveaxis(jnp.concatenate(pieces, -1) if pieces else x, -1, axis)


# ---------------------------------------------------------------- segments


# Windows that are sums of cosines: the weights of cos(0 t), cos(t), ... (F. J. Harris, "On the use of windows", 1978).
_COSINES = {"boxcar": [1.0], "hann": [0.5, 0.5], "hamming": [0.54, 0.46], "blackman": [0.42, 0.5, 0.08]}


def _window(window: Any, nperseg: int) -> np.ndarray:
    """The values of a window that SciPy knows by name (or a tuple of a name and parameters), as one period."""
    weights = _COSINES.get(window) if isinstance(window, str) else None
    if weights is None or nperseg < 2:
        import scipy.signal  # takes a second to load: what most people ask for does without

        return scipy.signal.get_window(window, nperseg)
    angles = np.linspace(-np.pi, np.pi, nperseg, endpoint=False)
    return sum(w * np.cos(k * angles) for k, w in enumerate(weights))


def _triage(window: Any, nperseg: int | None, length: int) -> tuple[Any, int]:
    """The window's values and its size for a signal of this length."""
    if isinstance(window, (str, tuple)):
        size = 256 if nperseg is None else nperseg
        if size > length:
            warnings.warn(f"nperseg = {size} is greater than input length {length}, using nperseg = {length}",
                          stacklevel=errors.user_stacklevel())
            size = length
        return _window(window, size), size
    values = jnp.asarray(window)
    if values.ndim != 1:
        raise ValueError("window must be 1-D")
    if length < values.shape[-1]:
        raise ValueError("window is longer than input signal")
    if nperseg is not None and nperseg != values.shape[0]:
        raise ValueError("value specified for nperseg is different from length of window")
    return values, values.shape[0]


@record
class Segments:
    """How a signal is cut: segments of `size` elements `step` apart, transformed to `nfft` of them."""

    window: Any
    size: int
    step: int
    nfft: int


def _segments(window: Any, nperseg: int | None, noverlap: int | None, nfft: int | None, length: int) -> Segments:
    if nperseg is not None:
        nperseg = operator.index(nperseg) if not isinstance(nperseg, float) else int(nperseg)
        if nperseg < 1:
            raise ValueError("nperseg must be a positive integer")
    values, size = _triage(window, nperseg, length)
    count = size if nfft is None else int(nfft)
    if count < size:
        raise ValueError("nfft must be greater than or equal to nperseg.")
    overlap = size // 2 if noverlap is None else int(noverlap)
    if overlap >= size:
        raise ValueError("noverlap must be less than nperseg.")
    return Segments(values, size, size - overlap, count)


_BOUNDARIES = {"even": {"mode": "reflect"}, "odd": {"mode": "reflect", "reflect_type": "odd"},
               "constant": {"mode": "edge"}, "zeros": {"mode": "constant"}, None: {}}


def _spectra(name: str, x: Any, y: Any, fs: Any, window: Any, nperseg: int | None, noverlap: int | None,
             nfft: int | None, detrend_type: Any, onesided: bool, scaling: str, axis: int, density: bool,
             boundary: str | None, padded: bool) -> tuple[Any, Any, Any]:
    """Frequencies, times, and the spectra of segments, or products of those of `x` and `y` (None: `x`) if `density`."""
    if boundary not in _BOUNDARIES:
        raise ValueError(f"Unknown boundary option '{boundary}', must be one of: {list(_BOUNDARIES)}")
    signals = promote_dtypes_inexact(name, x) if y is None else promote_dtypes_inexact(name, x, y)
    signals = [jnp.moveaxis(s, canonicalize_axis(operator.index(axis), s.ndim), -1) for s in signals]
    try:
        outer = np.broadcast_shapes(*(s.shape[:-1] for s in signals))
    except ValueError:
        raise ValueError("x and y cannot be broadcast together.") from None
    if any(not s.size for s in signals):
        empty = jnp.moveaxis(jnp.zeros((*outer, 0), signals[0].dtype), -1, axis)
        return empty, empty, empty
    length = max(s.shape[-1] for s in signals)
    signals = [_extended(s, 0, length - s.shape[-1], None) for s in signals]
    cut = _segments(window, nperseg, noverlap, nfft, length)
    if boundary is not None:
        signals = [_extended(s, cut.size // 2, cut.size // 2, boundary) for s in signals]
    if padded:
        missing = (-(signals[0].shape[-1] - cut.size) % cut.step) % cut.size
        signals = [_extended(s, 0, missing, None) for s in signals]
    whole = any(map(jnp.iscomplexobj, signals)) or jnp.iscomplexobj(cut.window)
    if onesided and whole:
        warnings.warn("Input data is complex, switching to return_onesided=False",
                      stacklevel=errors.user_stacklevel())
    onesided = onesided and not whole
    trend = _trend(detrend_type)
    found = [_transformed(s, cut, trend, onesided) for s in signals]
    total = jnp.sum(jnp.asarray(cut.window) ** 2) * fs if scaling == "density" else jnp.sum(cut.window) ** 2
    if scaling not in ("density", "spectrum"):
        raise ValueError(f"Unknown scaling: {scaling}")
    scale = jnp.asarray(1 / total, dtypes.to_real(found[0].dtype))
    if density:
        result = jnp.conj(found[0]) * found[-1]
        result = result * scale.astype(result.dtype)
        if onesided:
            doubled = np.full(result.shape[-1], 2.0)
            doubled[0] = 1
            if cut.nfft % 2 == 0:
                doubled[-1] = 1
            result = result * along_last(doubled, result)
    else:
        result = found[0] * jnp.sqrt(scale).astype(found[0].dtype)
    frequencies = (jnp.fft.rfftfreq if onesided else jnp.fft.fftfreq)(cut.nfft, 1 / fs, dtype=scale.dtype)
    n, half = signals[0].shape[-1], cut.size / 2
    times = np.arange(half, n - half + 1, cut.step) - (half if boundary is not None else 0)
    times = jnp.asarray(times, scale.dtype) / fs
    result = result.real if density and y is None else result
    return frequencies, times, jnp.moveaxis(result, -1, axis if axis >= 0 else axis - 1)


def _extended(x: Any, before: int, after: int, boundary: str | None) -> Any:
    options = _BOUNDARIES[boundary] or _BOUNDARIES["zeros"]
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(before, after)], **options) if before or after else x


def _trend(given: Any) -> Callable[[Any], Any]:
    if not given:
        return lambda x: x
    return given if callable(given) else lambda x: detrend(x, -1, given)


def _transformed(x: Any, cut: Segments, trend: Callable[[Any], Any], onesided: bool) -> Any:
    """The transforms of the segments, along a new last axis."""
    count = (x.shape[-1] - cut.size) // cut.step + 1
    places = np.arange(count)[:, None] * cut.step + np.arange(cut.size)
    pieces = trend(jnp.take(x, places, axis=-1, mode="clip"))
    pieces = pieces.astype(dtypes.to_complex(pieces.dtype)) if jnp.iscomplexobj(cut.window) else pieces
    pieces = pieces * along_last(cut.window, pieces)
    return (jnp.fft.rfft if onesided else jnp.fft.fft)(pieces, cut.nfft)


# ---------------------------------------------------------------- public

_compiled = functools.partial(compiled, static=("fs", "nperseg", "noverlap", "nfft", "axis", "time_axis", "freq_axis"))


@_compiled
def stft(x: Any, fs: Any = 1.0, window: Any = "hann", nperseg: int | None = 256, noverlap: int | None = None,
         nfft: int | None = None, detrend: Any = False, return_onesided: bool = True, boundary: str | None = "zeros",
         padded: bool = True, axis: int = -1) -> tuple[Any, Any, Any]:
    """The short-time Fourier transform: frequencies, times, and the spectra of segments (times along the last axis).

    Segments have `nperseg` elements, of which `noverlap` (default: half) are those of the one before; `boundary`
    ("even", "odd", "constant", "zeros" or None) extends the signal, `padded` fills it up with zeros. ValueError for
    sizes or names that do not fit.
    """
    return _spectra("stft", x, None, fs, window, nperseg, noverlap, nfft, detrend, return_onesided, "spectrum", axis,
                    False, boundary, padded)


def _median_bias(n: int) -> float:
    """The mean of the median of n exponentially distributed numbers of mean 1."""
    even = 2 * np.arange(1.0, (n - 1) // 2 + 1)
    return float(1 + np.sum(1 / (even + 1) - 1 / even))


@_compiled
def csd(x: Any, y: Any, fs: Any = 1.0, window: Any = "hann", nperseg: int | None = None, noverlap: int | None = None,
        nfft: int | None = None, detrend: Any = "constant", return_onesided: bool = True, scaling: str = "density",
        axis: int = -1, average: str = "mean") -> tuple[Any, Any]:
    """Frequencies and the cross spectral density of `x` and `y` (None: the power of `x`).

    `scaling` is "density" or "spectrum", `average` (over segments) "mean" or "median"; the rest as in `stft`.
    """
    frequencies, _, spectra = _spectra("csd", x, y, fs, window, nperseg, noverlap, nfft, detrend,
                                       return_onesided, scaling, axis, True, None, False)
    if spectra.ndim >= 2 and spectra.size > 0:
        if spectra.shape[-1] == 1:
            spectra = spectra[..., 0]
        elif average == "median":
            middle = jnp.median(spectra.real, -1)
            if jnp.iscomplexobj(spectra):
                middle = make_complex(middle, jnp.median(spectra.imag, -1))
            spectra = middle / _median_bias(spectra.shape[-1])
        elif average == "mean":
            spectra = jnp.mean(spectra, -1)
        else:
            raise ValueError(f'average must be "median" or "mean", got {average}')
    return frequencies, spectra


@_compiled
def welch(x: Any, fs: Any = 1.0, window: Any = "hann", nperseg: int | None = None, noverlap: int | None = None,
          nfft: int | None = None, detrend: Any = "constant", return_onesided: bool = True, scaling: str = "density",
          axis: int = -1, average: str = "mean") -> tuple[Any, Any]:
    """Frequencies and the power spectral density of `x` by Welch's method; arguments as those of `csd`."""
    frequencies, spectra = csd(x, None, fs, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling, axis,
                               average)
    return frequencies, spectra.real


@_compiled
def istft(Zxx: Any, fs: Any = 1.0, window: Any = "hann", nperseg: int | None = None, noverlap: int | None = None,
          nfft: int | None = None, input_onesided: bool = True, boundary: bool = True, time_axis: int = -1,
          freq_axis: int = -2) -> tuple[Any, Any]:
    """Times and the signal that has the short-time Fourier transform `Zxx`, with the arguments it was made with.

    As in SciPy, there are as many times as elements along the first axis of the signal.
    """
    spectra = as_array(operand("istft", Zxx))
    if spectra.ndim < 2:
        raise ValueError("Input stft must be at least 2d!")
    freq, time = (canonicalize_axis(operator.index(a), spectra.ndim) for a in (freq_axis, time_axis))
    if freq == time:
        raise ValueError("Must specify differing time and frequency axes!")
    spectra = jnp.moveaxis(spectra.astype(dtypes.to_complex(spectra.dtype)), (freq, time), (-2, -1))
    full = spectra.shape[-2]
    even = 2 * (full - 1) if input_onesided else full
    size = even if nperseg is None else int(nperseg)
    if size < 1:
        raise ValueError("nperseg must be a positive integer")
    if nfft is None:
        nfft = size if input_onesided and size == even + 1 else even
    elif nfft < size:
        raise ValueError(f"nfft must be greater than or equal to nperseg ({size})")
    overlap = size // 2 if noverlap is None else int(noverlap)
    if overlap >= size:
        raise ValueError("noverlap must be less than nperseg.")
    values = _window(window, size) if isinstance(window, (str, tuple)) else jnp.asarray(window)
    if values.ndim != 1:
        raise ValueError("window must be 1-D")
    if values.shape[0] != size:
        raise ValueError(f"window must have length of {size}")
    signal = _overlapped(spectra, jnp.asarray(values, dtypes.to_real(spectra.dtype)), size, size - overlap, int(nfft),
                         input_onesided, boundary)
    signal = jnp.moveaxis(signal, -1, time - (freq < time))
    return jnp.arange(signal.shape[0], dtype=dtypes.to_real(signal.dtype)) / fs, signal


def _overlapped(spectra: Any, window: Any, size: int, step: int, nfft: int, onesided: bool, boundary: bool) -> Any:
    """The sum of the segments, times the window, over the sum of its squares."""
    pieces = (jnp.fft.irfft if onesided else jnp.fft.ifft)(spectra, nfft, -2)[..., :size, :]
    pieces = jnp.moveaxis(pieces, -2, -1)
    pieces = pieces * along_last(window * jnp.sum(window), pieces)
    count = pieces.shape[-2]
    places = np.arange(count)[:, None] * step + np.arange(size)
    length = size + (count - 1) * step
    signal = jnp.zeros((*pieces.shape[:-2], length), pieces.dtype).at[..., places].add(pieces)
    norm = jnp.zeros(length, window.dtype).at[places].add(window * window)
    if boundary:
        signal, norm = signal[..., size // 2:length - size // 2], norm[size // 2:length - size // 2]
    return signal / along_last(jnp.where(norm > 1e-10, norm, 1), signal)
