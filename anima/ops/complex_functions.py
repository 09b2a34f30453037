"""Complex functions on NumPy arrays where NumPy's own differ from C's Annex G: at zeros, infinities and NaNs.

    divide(1+0j, inf+nan*1j) == 0        multiply and divide infinite numbers by their directions
    expm1(-inf+inf*1j) == -1             as exp(-inf+inf*1j) == 0

NumPy's functions compute what is ordinary; what comes out infinite, NaN or zero in a part is computed again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def of_parts(real: Any, imag: Any) -> np.ndarray:
    """`real + i imag`, part by part (so that NaN and infinity stay in theirs)."""
    real, imag = np.broadcast_arrays(real, imag)
    out = np.empty(real.shape, np.result_type(real.dtype, np.complex64))
    out.real, out.imag = real, imag
    return out


def _mended(function: Callable[..., Any], exact: Callable[..., Any]) -> Callable[..., Any]:
    """NumPy's `function`, and `exact` where a part of its result is zero or no finite number."""
    def mended(*args: Any) -> Any:
        out = np.asarray(function(*args))
        odd = ~(np.isfinite(out) & (out.real != 0) & (out.imag != 0))
        if odd.any():
            out[odd] = exact(*[a[odd] for a in np.broadcast_arrays(*args)])
        return out

    return mended


def _is_infinite(z: np.ndarray) -> np.ndarray:
    return np.isinf(z.real) | np.isinf(z.imag)


def _signs(x: np.ndarray) -> np.ndarray:
    """1 for infinities and 0 for other numbers, with their signs."""
    return np.copysign(np.where(np.isinf(x), np.ones_like(x), np.zeros_like(x)), x)


def _scaled(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The parts of z over a power of two that brings them near 1, and its exponent; of infinite numbers the signs."""
    size = np.maximum(np.abs(z.real), np.abs(z.imag))
    exponent = np.frexp(np.where(np.isfinite(size), size, np.ones_like(size)))[1]
    infinite = _is_infinite(z)
    a, b = (np.where(infinite, _signs(p), np.ldexp(p, -exponent)) for p in (z.real, z.imag))
    return a, b, exponent


def _divide(z: np.ndarray, w: np.ndarray) -> np.ndarray:
    (a, b, up), (c, d, down) = _scaled(z), _scaled(w)
    size, shift = c * c + d * d, up - down
    factor = np.where(_is_infinite(w), 0, np.where(_is_infinite(z), np.inf, 1)).astype(a.dtype)
    factor = np.where(_is_infinite(w) & _is_infinite(z), np.full_like(factor, np.nan), factor)
    real, imag = (np.ldexp(p / size, shift) * factor for p in (a * c + b * d, b * c - a * d))
    zero = w == 0
    return of_parts(np.where(zero, z.real / w.real, real), np.where(zero, z.imag / w.real, imag))


divide = _mended(np.true_divide, _divide)


def reciprocal(z: np.ndarray) -> Any:
    return divide(np.ones_like(z), z)


def rsqrt(z: np.ndarray) -> Any:
    return reciprocal(np.sqrt(z))


def sign(z: np.ndarray) -> np.ndarray:
    """z / |z|; of an infinite number its direction, of a zero the zero."""
    a, b, _ = _scaled(z)
    size = np.hypot(a, b)
    out = np.where(z == 0, z, of_parts(a / size, b / size))
    return np.where(np.isnan(z), np.full_like(z, np.complex128(complex(np.nan, np.nan))), out)


def square(z: np.ndarray) -> np.ndarray:
    """(x - y) (x + y) + 2 i x y."""
    x, y = z.real, z.imag
    return of_parts((x - y) * (x + y) + np.zeros((), x.dtype), x * y * 2)


def _expm1(z: np.ndarray) -> np.ndarray:
    size, half = np.expm1(z.real), np.sin(z.imag * 0.5)
    lost = np.isinf(z.real) & ~np.isfinite(z.imag)
    return of_parts(np.where(lost, size, size * np.cos(z.imag) - 2 * half * half), np.exp(z).imag)


expm1 = _mended(np.expm1, _expm1)


def log1p(z: np.ndarray) -> np.ndarray:
    """As log(1 + z); near 0 with |1 + z|^2 - 1 = x (2 + x) + y^2."""
    x, y = z.real, z.imag
    small = (np.abs(x) < 0.5) & (np.abs(y) < 1)
    near = np.log1p(np.where(small, x * (2 + x) + y * y, np.zeros_like(x))) / 2
    return of_parts(np.where(small, near, np.log(np.hypot(x + 1, y))), np.arctan2(y, x + 1))


def logistic(z: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-z) on the right, e^z / (1 + e^z) on the left; real for real numbers."""
    right = z.real >= 0
    e = np.exp(np.where(right, -z, z))
    out = divide(np.where(right, np.ones_like(e), e), 1 + e)
    return of_parts(out.real, np.where(z.imag == 0, z.imag, out.imag))


def power(z: np.ndarray, w: np.ndarray) -> Any:
    """e^(w log z) where a number is not finite; 1 for w = 0, else 0 for z = 0 (NaN unless Re w is positive)."""
    out = np.asarray(np.power(z, w))
    odd = ~(np.isfinite(out) & np.isfinite(z) & np.isfinite(w))
    if odd.any():
        z, w = (v[odd] for v in np.broadcast_arrays(z, w))
        logarithm = np.log(z)
        # A real exponent multiplies each part: 0 times infinity would be NaN.
        product = np.where(w.imag == 0, of_parts(w.real * logarithm.real, w.real * logarithm.imag), w * logarithm)
        at_zero = np.where(w.real > 0, np.zeros_like(z), np.full_like(z, np.complex128(complex(np.nan, np.nan))))
        out[odd] = np.where(w == 0, np.ones_like(z), np.where(z == 0, at_zero, np.exp(product)))
    return out
