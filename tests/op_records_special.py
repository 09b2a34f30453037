"""Records of Fourier transforms and of the special functions that one formula defines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import scipy.special

from anima.ops import formula as fo
from anima.ops.fft import FftType, fft_p
from tests.op_records import BITS, COMPLEX, FLOATS, Arg, Case, Record, double, unary
from tests.op_records_structural import case


def fourier(x: np.ndarray, fft_type: FftType, fft_lengths: tuple[int, ...]) -> np.ndarray:
    """By the definition, axis by axis."""
    inverse = fft_type in (FftType.IFFT, FftType.IRFFT)
    if not x.size:
        last = fft_lengths[-1] // 2 + 1 if fft_type == FftType.RFFT else fft_lengths[-1]
        return np.zeros((*x.shape[:-1], last))
    if fft_type == FftType.IRFFT:
        return _from_half(x, fft_lengths)
    for k, n in enumerate(fft_lengths):
        axis = x.ndim - len(fft_lengths) + k
        turns = np.exp((2j if inverse else -2j) * np.pi * np.outer(np.arange(n), np.arange(n)) / n)
        x = np.moveaxis(np.tensordot(turns, x, (1, axis)), 0, axis) / (n if inverse else 1)
    return x[..., :fft_lengths[-1] // 2 + 1] if fft_type == FftType.RFFT else x


def _from_half(x: np.ndarray, lengths: tuple[int, ...]) -> np.ndarray:
    """The other frequencies of the last axis are conjugates, at negated frequencies of the other axes."""
    n = lengths[-1]
    front = fourier(x, FftType.IFFT, (*lengths[:-1], x.shape[-1]))  # undone along the last axis
    front = fourier(front, FftType.FFT, (x.shape[-1],))
    k = np.arange(n // 2 + 1)
    weights = np.where((k == 0) | (2 * k == n), 1, 2)
    turns = np.exp(2j * np.pi * np.outer(k, np.arange(n)) / n)
    return (front * weights @ turns).real / n


def _transforms(kind: FftType, shapes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]) -> tuple[Case, ...]:
    return tuple(case(shape, fft_type=kind, fft_lengths=lengths) for shape, lengths in shapes)


SQUARE = (((4,), (4,)), ((1,), (1,)), ((7,), (7,)), ((3, 6), (6,)), ((2, 3, 4), (3, 4)), ((2, 2, 3), (2, 2, 3)),
          ((0, 5), (5,)))
HALF = (((3,), (4,)), ((3,), (5,)), ((1,), (1,)), ((2, 4), (6,)), ((2, 3, 3), (3, 4)), ((0, 3), (4,)))
FOURIER = (Record(fft_p, fourier, tuple(
    Case(c.args, c.params, only=names)
    for kind, shapes, names in ((FftType.FFT, SQUARE, COMPLEX), (FftType.IFFT, SQUARE, COMPLEX),
                                (FftType.IRFFT, HALF, COMPLEX), (FftType.RFFT, SQUARE, ("float32", "float64")))
    for c in _transforms(kind, shapes)), ("float32", "float64", *COMPLEX), ulps=512, complex_ulps=64, rejects=()),)


def _of_order(orders: tuple[int, ...], low: float, high: float) -> tuple[Case, ...]:
    return tuple(Case((Arg(values=np.full(s, float(n))), Arg(s, low, high))) for n in orders for s in ((), (2, 3)))


def _erfcx(n: Any, x: Any) -> Any:
    whole = mpmath.exp(x * x) * mpmath.erfc(x)
    first = 1 / mpmath.sqrt(mpmath.pi) - x * whole
    return (whole, first, (whole - 2 * x * first) / 4)[int(n)]


def _dawsn(n: Any, x: Any) -> Any:
    value = mpmath.sqrt(mpmath.pi) / 2 * mpmath.exp(-x * x) * mpmath.erfi(x)
    slope = 1 - 2 * x * value
    return (value, slope, -2 * x * slope - 2 * value)[int(n)]


def _ordered(exact: Callable[..., Any]) -> Callable[..., Any]:
    """mpmath's function for every type."""
    return double(lambda *xs: np.vectorize(lambda *v: float(exact(*map(mpmath.mpf, v))), otypes=[float])(*xs), exact)


def _owens_t(h: Any, a: Any) -> Any:
    return mpmath.quad(lambda x: mpmath.exp(-h * h * (1 + x * x) / 2) / (1 + x * x), [0, a]) / (2 * mpmath.pi)


def few(*ranges: tuple[float, float]) -> tuple[Case, ...]:
    """Cases of functions that take long to compile: equal shapes, shapes that broadcast, more than a register."""
    shapes = [((2, 3),) * len(ranges), ((3, 1),) + ((1, 4),) * (len(ranges) - 1), ((19,),) * len(ranges)]
    return tuple(Case(tuple(Arg(s, lo, hi) for s, (lo, hi) in zip(case, ranges, strict=True)), plain=case[0] != (19,))
                 for case in shapes)


def _near(low: float, high: float) -> tuple[Case, ...]:
    return unary(low, high, specials=False)


sp = scipy.special
WIDE, OTHERS = ("float32", "float64"), BITS + COMPLEX  # small types are computed in float32
INTEGRALS = (
    Record(fo.gamma, double(sp.gamma, mpmath.gamma), _near(0.3, 9), FLOATS, ulps=4),
    Record(fo.beta, double(sp.beta, mpmath.beta), few((0.3, 5), (0.3, 5)), WIDE, ulps=8, rejects=OTHERS),
    Record(fo.betaln, double(sp.betaln, lambda a, b: mpmath.log(mpmath.beta(a, b))),
           few((0.2, 0.8), (0.2, 0.8)), WIDE, ulps=16, rejects=OTHERS),
    Record(fo.poch, double(sp.poch, mpmath.rf), few((0.3, 5), (0.3, 5)), WIDE, ulps=8, rejects=OTHERS),
    Record(fo.erfcx, _ordered(_erfcx), _of_order((0, 1, 2), -2, 4), FLOATS, ulps=12, constant=(0,)),
    Record(fo.dawsn, _ordered(_dawsn), _of_order((0, 1, 2), -0.7, 0.7), FLOATS, ulps=12, constant=(0,)),
    Record(fo.ndtr, double(sp.ndtr, mpmath.ncdf), _near(-4, 4), FLOATS, ulps=4),
    Record(fo.log_ndtr, double(sp.log_ndtr, lambda x: mpmath.log(mpmath.ncdf(x))), _near(-5, 2), FLOATS, ulps=4),
    Record(fo.ndtri, double(sp.ndtri, lambda p: mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1)), _near(0.05, 0.95), FLOATS,
           ulps=4),
    Record(fo.owens_t, double(sp.owens_t, _owens_t), few((-2, 2), (-3, 3)), WIDE, ulps=8, rejects=OTHERS),
    Record(fo.expn, double(lambda n, x: sp.expn(n.astype(int), x), lambda n, x: mpmath.expint(int(n), x)),
           _of_order((1, 2, 3, 21), 0.2, 5), FLOATS, ulps=4, constant=(0,)),
    Record(fo.expi, double(sp.expi, mpmath.ei), _near(0.5, 9), FLOATS, ulps=4),
    Record(fo.sine_integral, double(lambda x: sp.sici(x)[0], mpmath.si), _near(-9, 9), FLOATS, ulps=4),
    Record(fo.cosine_integral, double(lambda x: sp.sici(x)[1], mpmath.ci), _near(0.2, 3), FLOATS, ulps=16),
    Record(fo.fresnel_sine, double(lambda x: sp.fresnel(x)[0], mpmath.fresnels), _near(-5, 5), FLOATS, ulps=4),
    Record(fo.fresnel_cosine, double(lambda x: sp.fresnel(x)[1], mpmath.fresnelc), _near(-5, 5), FLOATS, ulps=4),
    Record(fo.spence, double(sp.spence, lambda x: mpmath.polylog(2, 1 - x).real), _near(0.2, 4), FLOATS, ulps=4),
    Record(fo.hyp1f1, double(sp.hyp1f1, mpmath.hyp1f1), few((0.5, 3), (0.5, 3), (-3, 3)), WIDE,
           ulps=12, constant=(0, 1), rejects=OTHERS),
    Record(fo.hyp2f1, double(sp.hyp2f1, mpmath.hyp2f1), few((0.5, 3), (0.5, 3), (0.5, 3), (-2, 0.5)),
           WIDE, ulps=48, constant=(0, 1, 2), rejects=OTHERS),
)
SPECIAL = FOURIER + INTEGRALS
