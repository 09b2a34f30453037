"""Special functions that one formula defines, for NumPy arrays and for compiled code: values in float64, then rounded.

    dawsn = Formula("dawsn", integrals.dawsn, "...", operands="n x", cost=..., jvp=(None, lambda t, y, n, x: ...))

Derivatives that would cancel are functions of their own, of the next order.
"""

# Rules name operations that are defined further down.
# mypy: disable-error-code="has-type"

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from anima.ops import gamma_quotients, hypergeometric, integrals
from anima.ops.elementwise import (
    add,
    cos,
    div,
    exp,
    floor,
    log,
    lt,
    mul,
    neg,
    rem,
    round,
    select_n_p,
    sin,
    square,
    sub,
)
from anima.ops.family import REAL, Elementwise, Rules, constant, no_derivative
from anima.ops.gamma import NUMPY
from anima.ops.special import digamma, erf, near_zero, power_series

FORMULAS: dict[str, Formula] = {}


class Formula(Elementwise):
    """An operation whose values are `formula(*operands, f)`, `f` the functions of arrays or of compiled numbers."""

    def __init__(self, name: str, formula: Callable[..., Any], doc: str, *, jvp: Rules, operands: str = "x",
                 cost: float):
        super().__init__(name, self.values, REAL, doc, jvp=jvp, operands=operands, cost=cost)
        self.formula = formula
        FORMULAS[name] = self

    def values(self, *args: np.ndarray) -> np.ndarray:
        """The formula on NumPy arrays, in float64."""
        wide = np.broadcast_arrays(*(a.astype(np.float64) for a in args))
        with np.errstate(all="ignore"):
            out = self.formula(*(a.reshape(-1) for a in wide), NUMPY)
            return out.reshape(wide[0].shape).astype(args[0].dtype)


_LOG1P_OVER_X = power_series([(-1) ** k / (k + 1) for k in range(16)])
_SINE_OVER_X = power_series([(-1) ** k / math.factorial(2 * k + 1) for k in range(8)])


def _spence_slope(t: Any, y: Any, x: Any) -> Any:
    """log(x) / (1 - x), as a series of x - 1 near 1."""
    return mul(t, neg(near_zero(sub(x, 1.0), 0.06, _LOG1P_OVER_X, lambda w: div(log(add(w, 1.0)), w))))


def _sine_slope(t: Any, y: Any, x: Any) -> Any:
    return mul(t, near_zero(x, 0.5, lambda v: _SINE_OVER_X(square(v)), lambda v: div(sin(v), v)))


def _quarter_turns(x: Any) -> Any:
    """pi x**2 / 2 less whole turns: x = n + r, n**2 is 0 or 1 besides multiples of 4, and 2 n r + r**2 is small."""
    n = round(x)
    r = sub(x, n)
    odd = sub(n, mul(2.0, floor(mul(0.5, n))))
    return mul(math.pi / 2, rem(add(odd, add(mul(2.0, mul(n, r)), square(r))), 4.0))


def _density(x: Any) -> Any:
    """exp(-x**2 / 2)."""
    return exp(mul(-0.5, square(x)))


def _normal(x: Any) -> Any:
    return mul(1 / math.sqrt(2 * math.pi), _density(x))


def _log_ndtr_slope(t: Any, y: Any, x: Any) -> Any:
    """sqrt(2/pi) / erfcx(-x / sqrt(2)) left of 0; right of it, where that overflows, a quotient of the functions."""
    right = lt(constant(0, x.dtype), x)
    zero = constant(0, x.dtype)
    left, x = select_n_p.bind(right, x, zero), select_n_p.bind(right, zero, x)
    far = div(math.sqrt(2 / math.pi), erfcx(zero, mul(-math.sqrt(0.5), left)))
    return mul(t, select_n_p.bind(right, far, div(_normal(x), ndtr(x))))


def _owens_slope(t: Any, y: Any, h: Any, a: Any) -> Any:
    inner = erf(mul(math.sqrt(0.5), mul(a, h)))
    return mul(t, mul(-math.sqrt(1 / (8 * math.pi)), mul(_density(h), inner)))


def _owens_slope_a(t: Any, y: Any, h: Any, a: Any) -> Any:
    wider = add(square(a), 1.0)
    return mul(t, div(exp(mul(-0.5, mul(square(h), wider))), mul(2 * math.pi, wider)))


gamma = Formula("gamma", gamma_quotients.gamma, "The gamma function.", cost=60,
                jvp=(lambda t, y, x: mul(t, mul(y, digamma(x))),))
beta = Formula("beta", gamma_quotients.beta, "The beta function.", operands="a b", cost=250,
               jvp=(lambda t, y, a, b: mul(t, mul(y, sub(digamma(a), digamma(add(a, b))))),
                    lambda t, y, a, b: mul(t, mul(y, sub(digamma(b), digamma(add(a, b)))))))
betaln = Formula("betaln", gamma_quotients.betaln, "The logarithm of the beta function of positive numbers.",
                 operands="a b", cost=200,
                 jvp=(lambda t, y, a, b: mul(t, sub(digamma(a), digamma(add(a, b)))),
                      lambda t, y, a, b: mul(t, sub(digamma(b), digamma(add(a, b))))))
poch = Formula("poch", gamma_quotients.poch, "Pochhammer's symbol, Gamma(z + m) / Gamma(z).", operands="z m", cost=300,
               jvp=(lambda t, y, z, m: mul(t, mul(y, sub(digamma(add(z, m)), digamma(z)))),
                    lambda t, y, z, m: mul(t, mul(y, digamma(add(z, m))))))
erfcx = Formula("erfcx", integrals.erfcx, "exp(x**2) times the repeated integral of erfc of order n.", operands="n x",
                cost=120, jvp=(no_derivative("erfcx", "n"),
                               lambda t, y, n, x: mul(t, mul(mul(-2.0, add(n, 1.0)), erfcx(add(n, 1.0), x)))))
dawsn = Formula("dawsn", integrals.dawsn, "The derivative of order n of Dawson's integral.", operands="n x", cost=80,
                jvp=(no_derivative("dawsn", "n"), lambda t, y, n, x: mul(t, dawsn(add(n, 1.0), x))))
ndtri = Formula("ndtri", integrals.ndtri, "The inverse of the normal distribution function.", cost=60,
                jvp=(lambda t, y, x: mul(t, mul(math.sqrt(2 * math.pi), exp(mul(0.5, square(y))))),))
ndtr = Formula("ndtr", integrals.ndtr, "The normal distribution function.", cost=100,
               jvp=(lambda t, y, x: mul(t, _normal(x)),))
log_ndtr = Formula("log_ndtr", integrals.log_ndtr, "The logarithm of the normal distribution function.", cost=250,
                   jvp=(_log_ndtr_slope,))
owens_t = Formula("owens_t", integrals.owens_t, "Owen's T function.", operands="h a", cost=400,
                  jvp=(_owens_slope, _owens_slope_a))
expn = Formula("expn", integrals.expn, "The exponential integral of order n.", operands="n x", cost=250,
               jvp=(no_derivative("expn", "n"), lambda t, y, n, x: mul(t, neg(expn(sub(n, 1.0), x)))))
expi = Formula("expi", integrals.expi, "The exponential integral Ei.", cost=150,
               jvp=(lambda t, y, x: mul(t, div(exp(x), x)),))
sine_integral = Formula("sine_integral", integrals.sine_integral, "The sine integral Si.", cost=60, jvp=(_sine_slope,))
cosine_integral = Formula("cosine_integral", integrals.cosine_integral, "The cosine integral Ci of |x|.", cost=60,
                          jvp=(lambda t, y, x: mul(t, div(cos(x), x)),))
fresnel_sine = Formula("fresnel_sine", integrals.fresnel_sine, "Fresnel's integral S.", cost=60,
                       jvp=(lambda t, y, x: mul(t, sin(_quarter_turns(x))),))
fresnel_cosine = Formula("fresnel_cosine", integrals.fresnel_cosine, "Fresnel's integral C.", cost=60,
                         jvp=(lambda t, y, x: mul(t, cos(_quarter_turns(x))),))
spence = Formula("spence", integrals.spence, "Spence's function, the dilogarithm of 1 - x.", cost=40,
                 jvp=(_spence_slope,))
hyp1f1 = Formula("hyp1f1", hypergeometric.hyp1f1, "Kummer's hypergeometric function.", operands="a b x", cost=400,
                 jvp=(no_derivative("hyp1f1", "a"), no_derivative("hyp1f1", "b"),
                      lambda t, y, a, b, x: mul(t, mul(div(a, b), hyp1f1(add(a, 1.0), add(b, 1.0), x)))))
hyp2f1 = Formula("hyp2f1", hypergeometric.hyp2f1, "Gauss's hypergeometric function.", operands="a b c x", cost=800,
                 jvp=(no_derivative("hyp2f1", "a"), no_derivative("hyp2f1", "b"), no_derivative("hyp2f1", "c"),
                      lambda t, y, a, b, c, x: mul(t, mul(div(mul(a, b), c), hyp2f1(
                          add(a, 1.0), add(b, 1.0), add(c, 1.0), x)))))
