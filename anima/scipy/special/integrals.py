"""Functions defined by integrals: error functions, the normal distribution, exponential and Fresnel integrals."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

import anima.numpy as jnp
from anima.api.eager import compiled
from anima.numpy.creation import of_sequences
from anima.numpy.promote import as_array, is_complex, operand
from anima.ops import formula, special
from anima.ops.elementwise import convert
from anima.scipy.special.operands import inexact, real, single_or_double
from anima.transforms.custom import custom_jvp


def erf(x: Any) -> Any:
    """The error function."""
    return special.erf(*inexact("erf", x))


def erfc(x: Any) -> Any:
    """1 - erf(x), accurate where it is small."""
    return special.erfc(*inexact("erfc", x))


@compiled
def erfinv(x: Any) -> Any:
    """The inverse of `erf`."""
    return special.erf_inv(*inexact("erfinv", x))


@compiled
def erfcx(x: Any) -> Any:
    """exp(x**2) erfc(x), of real or complex numbers.

    >>> anima.scipy.special.erfcx(jnp.array([0., 100.]))
    Array([1.        , 0.00564161], dtype=float32)
    """
    (x,) = inexact("erfcx", x, weak=False)
    return _wofz(1j * x) if is_complex(x.dtype) else formula.erfcx(x.dtype.type(0), x)


@compiled
def dawsn(x: Any) -> Any:
    """Dawson's integral, exp(-x**2) times the integral of exp(t**2) over 0 < t < x."""
    (x,) = real("dawsn", x)
    return formula.dawsn(x.dtype.type(0), x)


@of_sequences
@compiled
def ndtr(x: Any) -> Any:
    """The normal distribution function, of float32 or float64; TypeError for other types."""
    return formula.ndtr(single_or_double(operand("ndtr", x)))


@of_sequences
@functools.partial(compiled, static=("series_order",))
def log_ndtr(x: Any, series_order: int = 3) -> Any:
    """log(ndtr(x)), of float32 or float64. `series_order` asks for no more: every value is accurate already.

    TypeError for other types, or a `series_order` that is no int; ValueError unless it is from 0 to 30.

    >>> anima.scipy.special.log_ndtr(jnp.float32(-100.))
    Array(-5005.5244, dtype=float32)
    """
    if not isinstance(series_order, int):
        raise TypeError("series_order must be a Python integer.")
    if series_order < 0:
        raise ValueError("series_order must be non-negative.")
    if series_order > 30:
        raise ValueError("series_order must be <= 30.")
    return formula.log_ndtr(single_or_double(operand("log_ndtr", x)))


@compiled
def ndtri(p: Any) -> Any:
    """The inverse of `ndtr`, of float32 or float64: NaN outside of [0, 1]. TypeError for other types."""
    return formula.ndtri(single_or_double(operand("ndtri", p)))


@compiled
def owens_t(h: Any, a: Any) -> Any:
    """Owen's T function: exp(-h**2 (1 + x**2) / 2) / (1 + x**2) / (2 pi), integrated over 0 < x < a."""
    return formula.owens_t(*real("owens_t", h, a))


@compiled
def exp1(x: Any) -> Any:
    """The exponential integral E1(x): exp(-t) / t, integrated over t > x. NaN for negative numbers."""
    (x,) = real("exp1", x)
    return formula.expn(x.dtype.type(1), x)


@compiled
def expi(x: Any) -> Any:
    """The exponential integral Ei(x): exp(t) / t, integrated over t < x (principal value).

    >>> anima.scipy.special.expi(jnp.array([-1., 1.]))
    Array([-0.21938394,  1.8951178 ], dtype=float32)
    """
    return formula.expi(*real("expi", x))


@of_sequences
@compiled
def expn(n: Any, x: Any) -> Any:
    """The exponential integral of order n: exp(-x t) / t**n, integrated over t > 1. NaN unless `n` is whole."""
    return formula.expn(*real("expn", n, x))


@compiled
def sici(x: Any) -> tuple[Any, Any]:
    """The sine and the cosine integral: sin(t) / t over 0 < t < x, and minus cos(t) / t over t > |x|."""
    (x,) = real("sici", x)
    return formula.sine_integral(x), formula.cosine_integral(x)


@compiled
def fresnel(x: Any) -> tuple[Any, Any]:
    """Fresnel's integrals of sin(pi t**2 / 2) and of cos(pi t**2 / 2) over 0 < t < x."""
    (x,) = inexact("fresnel", x, weak=False)
    if is_complex(x.dtype):
        raise NotImplementedError("Support for complex-valued inputs is not implemented yet.")
    return formula.fresnel_sine(x), formula.fresnel_cosine(x)


@of_sequences
@compiled
def spence(x: Any) -> Any:
    """Spence's function: log(t) / (1 - t), integrated over 1 < t < x. float32 or float64, else TypeError."""
    return formula.spence(single_or_double(operand("spence", x)))


# ---------------------------------------------------------------- of complex numbers


@functools.cache
def _weideman(n: int) -> tuple[float, tuple[float, ...]]:
    """The width and the coefficients of a rational approximation of `wofz` above the real axis.

    J. A. C. Weideman, "Computation of the complex error function", SIAM J. Numer. Anal. 31, 1994.
    """
    half = 2 * n
    width = math.sqrt(n / math.sqrt(2))
    t = width * np.tan(np.arange(-half + 1, half) * (np.pi / half) / 2)
    values = np.concatenate([[0.0], np.exp(-t * t) * (width * width + t * t)])
    coefficients = np.fft.fft(np.fft.fftshift(values)).real / (2 * half)
    return width, tuple(coefficients[1:n + 1].tolist())


@custom_jvp
def _wofz(z: Any) -> Any:
    lower = z.imag < 0
    w = jnp.where(lower, -z, z)
    inner = jnp.abs(w) < 8
    small, large = jnp.where(inner, w, 0), jnp.where(inner, 8, w)
    width, coefficients = _weideman(40 if z.dtype == np.complex128 else 24)
    ratio = (width + 1j * small) / (width - 1j * small)
    total = jnp.full_like(small, coefficients[-1])
    for c in coefficients[-2::-1]:
        total = total * ratio + c
    bottom = width - 1j * small
    near = (2 * total / bottom + 1 / math.sqrt(math.pi)) / bottom
    fraction = jnp.zeros_like(large)
    for k in range(16, 0, -1):  # Laplace's continued fraction
        fraction = (0.5 * k) / (large - fraction)
    upper = jnp.where(inner, near, (1j / math.sqrt(math.pi)) / (large - fraction))
    return jnp.where(lower, 2 * jnp.exp(-jnp.square(jnp.where(lower, z, 0))) - upper, upper)


_wofz.defjvps(lambda t, out, z: t * (2j / math.sqrt(math.pi) - 2 * z * out))


@compiled
def wofz(z: Any) -> Any:
    """Faddeeva's function exp(-z**2) erfc(-i z), of complex numbers."""
    (z,) = inexact("wofz", as_array(operand("wofz", z)), weak=False)
    return _wofz(convert(z, np.result_type(z.dtype, np.complex64)))
