"""Logarithms of incomplete gamma and beta functions, and of what is close to them, where the functions underflow or are
1.

Far in a lower tail I = density * x / a * (1 + x / (a + 1) + ...), a series that ends soon (DLMF 8.7.1 and 8.17.8); in
the upper tail of the gamma function a continued fraction (DLMF 8.9.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima.control.while_loop import while_loop
from anima.core import dtypes
from anima.core.array import Array
from anima.core.primitive import Zero
from anima.numpy.functions import exp, log, log1p
from anima.numpy.manipulation import broadcast_arrays
from anima.numpy.reductions import any as any_of
from anima.numpy.selection import where
from anima.ops import elementwise as ew, special
from anima.ops.broadcast import full_like
from anima.scipy.stats import functions as fn
from anima.transforms.custom import custom_jvp
from anima.transforms.symbolic_zeros import SymbolicZero

_TERMS = 20_000   # that the series may have; far in the tail it has few
_FRACTIONS = 200  # of the continued fraction, where it is used


def _tiny(x: Array) -> float:
    """What is computed to all digits is above this."""
    return float(dtypes.finfo(x.dtype).tiny) * 2.0**30


def _series(here: Array, ratio: Callable[[Any], Array]) -> Array:
    """log(1 + ratio(0) + ratio(0) ratio(1) + ...) where `here`; no steps are done where that is nowhere."""
    one = full_like(ratio(0), 1)
    eps = float(dtypes.finfo(one.dtype).eps) / 4

    def more(state: Any) -> Any:
        n, term, total = state
        return (n < _TERMS) & any_of(here & (term > eps * total))

    def step(state: Any) -> Any:
        n, term, total = state
        term = where(here, term * ratio(ew.convert(n, one.dtype)), 0)
        return n + 1, term, total + term

    return log(while_loop(more, step, (np.int32(0), one, one))[2])


def _by_size(value: Array, other: Array, tail: Array, low: Array) -> Array:
    """The logarithm of `value`, which is 1 - other, and whose logarithm is `tail` where `low`."""
    near_one = value > 0.5
    middle = log(where(low | near_one, 0.5, value))
    return where(low, tail, where(near_one, log1p(-where(near_one, other, 0.5)), middle))


def _given(t: Any) -> bool:
    return not isinstance(t, (Zero, SymbolicZero))


@custom_jvp
def log_igamma(a: Array, x: Array) -> Array:
    """log P(a, x) for x > 0, of the regularized lower incomplete gamma function."""
    a, x = broadcast_arrays(a, x)
    value = special.igamma(a, x)
    low = value < _tiny(x)
    tail = fn.gamma_density(x, a) + log(x / a) + _series(low, lambda n: x / (a + (n + 1)))
    return _by_size(value, special.igammac(a, x), tail, low)


@custom_jvp
def log_igammac(a: Array, x: Array) -> Array:
    """log Q(a, x) for x > 0, of the regularized upper incomplete gamma function."""
    a, x = broadcast_arrays(a, x)
    value = special.igammac(a, x)
    low = (value < _tiny(x)) & (x < np.inf)

    def more(state: Any) -> Any:
        return (state[0] > 0) & any_of(low)

    def step(state: Any) -> Any:
        count, fraction = state
        k = ew.convert(count, x.dtype)
        return count - 1, x + (2 * k - 1) - a + k * (a - k) / fraction

    fraction = while_loop(more, step, (np.int32(_FRACTIONS), x + (2 * _FRACTIONS + 1) - a))[1]
    tail = fn.gamma_density(x, a) + log(x) - log(where(low, fraction, 1))
    return where(x == np.inf, -np.inf, _by_size(value, special.igamma(a, x), tail, low))


def _gamma_jvp(function: Any, sign: float) -> Any:
    def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (a, x), (da, dx) = primals, tangents
        out = function(a, x)
        terms = []
        if _given(dx):
            terms.append(sign * dx * exp(fn.gamma_density(x, a) - out))
        if _given(da):
            slope = special.igamma_grad_a(*broadcast_arrays(a, x)) * exp(-out)
            leading = log(x) - special.digamma(a + 1) if sign > 0 else log(x) - special.digamma(a)
            terms.append(da * where(abs(out) < -np.log(_tiny(out)), sign * slope, leading))
        return out, sum(terms[1:], terms[0]) if terms else full_like(out, 0)

    return rule


log_igamma.defjvp(_gamma_jvp(log_igamma, 1.0), symbolic_zeros=True)
log_igammac.defjvp(_gamma_jvp(log_igammac, -1.0), symbolic_zeros=True)


@custom_jvp
def log_betainc(a: Array, b: Array, x: Array, y: Array) -> Array:
    """log I_x(a, b) for 0 < x < 1 and y = 1 - x, of the regularized incomplete beta function."""
    a, b, x, y = broadcast_arrays(a, b, x, y)
    value = special.betainc(a, b, x)
    low = value < _tiny(x)
    series = _series(low, lambda n: x * ((a + b + n) / (a + 1 + n)))
    tail = fn.beta_density(x, y, a, b) + log(x) + where(x < 0.5, log1p(-x), log(y)) - log(a) + series
    return _by_size(value, special.betainc(b, a, y), tail, low)


def _beta_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    (a, b, x, y), (da, db, dx, _) = primals, tangents  # y moves with x
    if _given(da) or _given(db):
        raise NotImplementedError("The derivative of the incomplete beta function in a and b is not implemented.")
    out = log_betainc(a, b, x, y)
    return out, dx * exp(fn.beta_density(x, y, a, b) - out) if _given(dx) else full_like(out, 0)


log_betainc.defjvp(_beta_jvp, symbolic_zeros=True)
