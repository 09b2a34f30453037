"""Discrete Fourier transforms along the last axes: one primitive of four kinds.

    FFT    X[k] = sum of x[n] exp(-2 pi i k n / N)             complex to complex
    IFFT   x[n] = 1/N sum of X[k] exp(2 pi i k n / N)          complex to complex
    RFFT   the first N//2 + 1 of the FFT of real numbers       real to complex
    IRFFT  the real numbers that have this RFFT                complex to real

Outside of compiled code, values are computed by pocketfft (M. Reinecke; Cooley and Tukey, 1965, and Bluestein, 1970,
for large primes), in the precision of the operand; in it, by loops (`compiler/lowering/fourier.py`). All kinds are
linear; the matrices of the first two are symmetric, and those of the last two each other's adjoint but for the weights
of the frequencies that IRFFT counts twice.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from anima.core import dtypes
from anima.core.avals import Shape, ShapedArray, tangent_aval
from anima.core.primitive import Linear, ShardingRule, Work, Zero
from anima.core.sharding_rules import dimensions
from anima.core.trace import aval_of
from anima.ops.broadcast import as_array, shape_of
from anima.ops.elementwise import conj, convert, mul
from anima.ops.stacked import Stacked

_NAMES = {np.dtype(real): np.dtype(whole) for real, whole in ((np.float32, np.complex64), (np.float64, np.complex128))}
_REALS = {whole: real for real, whole in _NAMES.items()}
_PARALLEL = 1 << 14  # elements from which more than one thread pays


class FftType(enum.IntEnum):
    """The kinds of Fourier transforms."""

    FFT = 0
    IFFT = 1
    RFFT = 2
    IRFFT = 3


class Fft(Stacked):
    """The transform of kind `fft_type` over the last axes, of `fft_lengths` elements (of real numbers)."""

    linear = True

    def infer(self, x: ShapedArray, *, fft_type: FftType, fft_lengths: Shape) -> ShapedArray:
        rank = len(fft_lengths)
        if x.ndim < rank:
            raise ValueError(f"FFT input shape {x.shape} must have at least as many input dimensions as fft_lengths "
                             f"{fft_lengths}.")
        real, last = fft_type == FftType.RFFT, x.shape[x.ndim - rank:]
        if x.dtype not in (_NAMES if real else _REALS):
            wanted = "float32 or float64" if real else "complex64 or complex128"
            raise ValueError(f"{fft_type.name} input must be {wanted}, got {dtypes.name(x.dtype)}")
        half = (*fft_lengths[:-1], fft_lengths[-1] // 2 + 1 if fft_lengths[-1] else 0)
        if fft_type == FftType.IRFFT:
            if last != half and not (last[:-1] == half[:-1] and last[-1] == 1 and half[-1] == 0):
                raise ValueError(f"IRFFT input shape {x.shape} minor dimensions must be equal to {half}, those of "
                                 f"the RFFT of fft_lengths {fft_lengths}.")
            return ShapedArray((*x.shape[:x.ndim - rank], *fft_lengths), _REALS[x.dtype])
        if last != fft_lengths:
            raise ValueError(f"{fft_type.name} input shape {x.shape} minor dimensions must be equal to fft_lengths "
                             f"{fft_lengths}")
        return ShapedArray((*x.shape[:x.ndim - rank], *half), _NAMES[x.dtype]) if real else x.strip_weak_type()

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray],
                      *, fft_lengths: Shape, **params: Any) -> ShardingRule:
        ndim = avals[0].ndim
        return dimensions(avals, outs)._replace(exchanged=frozenset(range(ndim - len(fft_lengths), ndim)))

    def eval(self, x: np.ndarray, *, fft_type: FftType, fft_lengths: Shape) -> np.ndarray:
        aval = self.infer(ShapedArray(x.shape, x.dtype), fft_type=fft_type, fft_lengths=fft_lengths)
        out = np.empty(aval.shape, aval.dtype)
        self.into(fft_type=fft_type, fft_lengths=fft_lengths)([out], lambda: 1, x)
        return out

    def into(self, **params: Any) -> Callable[..., None]:  # type: ignore[override]
        return partial(self._transform, **params)

    def _transform(self, outs: Sequence[np.ndarray], threads: Callable[[], int], x: np.ndarray, *, fft_type: FftType,
                   fft_lengths: Shape) -> None:
        import scipy.fft  # slow to load, and not always needed

        (out,) = outs
        if not out.size:
            return
        workers = threads() if out.size >= _PARALLEL else 1
        single, kind = len(fft_lengths) == 1, fft_type.name.lower()
        given: dict[str, Any] = {"axis": -1} if single else {"axes": tuple(range(-len(fft_lengths), 0))}
        transform = getattr(scipy.fft, kind if single else f"{kind}n")  # the first has much less to do around it
        if fft_type in (FftType.FFT, FftType.IFFT):
            out[...] = x
            x, given["overwrite_x"] = out, True
        elif fft_type == FftType.IRFFT:
            given["n" if single else "s"] = fft_lengths[0] if single else fft_lengths
        found = transform(x, workers=workers, **given)
        if not np.may_share_memory(found, out):
            out[...] = found

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work], *,
             fft_type: FftType, fft_lengths: Shape) -> Work:
        """5 N log2 N for complex numbers, as is custom, half of it for real ones."""
        size = float(max(avals[0].size, outs[0].size))
        real = fft_type in (FftType.RFFT, FftType.IRFFT)
        return Work((2.5 if real else 5.0) * size * math.log2(max(math.prod(fft_lengths), 2)))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out, (t,) = self.bind(*primals, **params), tangents
        return out, Zero(tangent_aval(aval_of(out))) if isinstance(t, Zero) else self.bind(t, **params)

    def transpose(self, ct: Any, x: Linear, *, fft_type: FftType, fft_lengths: Shape) -> Sequence[Any]:
        if isinstance(ct, Zero) or 0 in fft_lengths:
            return [Zero(x.aval)]
        if fft_type in (FftType.FFT, FftType.IFFT):
            return [self.bind(ct, fft_type=fft_type, fft_lengths=fft_lengths)]
        if fft_type == FftType.RFFT:
            weights = _weights(ct.dtype, len(shape_of(ct)), fft_lengths, 0.5, math.prod(fft_lengths))
            return [self.bind(mul(conj(ct), weights), fft_type=FftType.IRFFT, fft_lengths=fft_lengths)]
        spectrum = self.bind(ct, fft_type=FftType.RFFT, fft_lengths=fft_lengths)
        weights = _weights(spectrum.dtype, len(shape_of(ct)), fft_lengths, 2.0, 1 / math.prod(fft_lengths))
        return [mul(conj(spectrum), weights)]


def _weights(dtype: np.dtype, rank: int, lengths: Shape, inner: float, scale: float) -> np.ndarray:
    """`scale` at the frequencies of the last axis that are their own mirror images, `inner * scale` at the others."""
    n = lengths[-1]
    weights = np.full((1,) * (rank - 1) + (n // 2 + 1,), inner * scale, dtype)
    weights[..., :1] = scale
    if n % 2 == 0:
        weights[..., -1:] = scale
    return weights


fft_p = Fft("fft")


def _kind(fft_type: Any) -> FftType:
    if isinstance(fft_type, FftType):
        return fft_type
    if not isinstance(fft_type, str):
        raise TypeError(f"Unknown FFT type value '{fft_type}'")
    if fft_type.upper() not in FftType.__members__:
        raise ValueError(f"Unknown FFT type '{fft_type}'")
    return FftType[fft_type.upper()]


def fft(x: Any, fft_type: FftType | str, fft_lengths: Sequence[int]) -> Any:
    """The discrete Fourier transform of `x` over its last axes.

    `fft_type` is FftType.FFT, IFFT, RFFT or IRFFT, or its name; `fft_lengths` are the sizes of the axes, of the
    result for IRFFT. float32 and complex64 give these, float64 and complex128 those; integers are taken as floats.
    ValueError for sizes that do not fit, an unknown type, or complex numbers for RFFT.

    >>> lax.fft(jnp.ones(4), "RFFT", (4,))
    Array([4.+0.j, 0.+0.j, 0.+0.j], dtype=complex64)
    """
    kind = _kind(fft_type)
    lengths = tuple(int(n) for n in fft_lengths)
    x = as_array(x)
    dtype = dtypes.to_inexact(x.dtype)
    if kind == FftType.RFFT:
        if dtypes.issubdtype(dtype, np.complexfloating):
            raise ValueError("only real valued inputs supported for rfft")
    else:
        dtype = dtypes.to_complex(dtype)
    x = x if x.dtype == dtype and not x.weak_type else convert(x, dtype)
    return fft_p.bind(x, fft_type=kind, fft_lengths=lengths) if lengths else x
