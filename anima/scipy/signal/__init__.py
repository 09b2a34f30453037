"""Convolutions, trends and spectra of signals, as `scipy.signal`.

    >>> anima.scipy.signal.correlate(jnp.array([1., 2., 3.]), jnp.array([1., 1.]), mode="valid")
    Array([3., 5.], dtype=float32)
"""

from anima import errors as _errors
from anima.scipy.signal.convolution import convolve, convolve2d, correlate, correlate2d, fftconvolve
from anima.scipy.signal.spectral import csd, detrend, istft, stft, welch

globals().update(_errors.public_face(__name__, globals()))  # errors show the user's frames only

__all__ = ["convolve", "convolve2d", "correlate", "correlate2d", "csd", "detrend", "fftconvolve", "istft", "stft",
           "welch"]
