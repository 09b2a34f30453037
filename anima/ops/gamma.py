"""The gamma function's logarithm and its derivative left of 0, over NumPy arrays and compiled numbers alike.

    lgamma(-n + e) = -log |e (1 - e) (2 - e) ... (n - e) / Gamma(1 + e)|
    digamma(-n + e) = digamma(1 + n - e) - pi / tan(pi e)

Both have roots in nearly every interval between two poles. Pairs of numbers hold what is left there of terms that
cancel; the tables are minimax polynomials, the rest of their first coefficients in those that end with LOW.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima.ops import series
from anima.ops.pairs import Number, Pair, polynomial, two_product, two_quotient, two_sum
from anima.util import record

# 1/Gamma(1 + e) = P(e), |e| <= 1/2
RECIPROCAL_GAMMA = (
    1.0, 0.5772156649015329, -0.6558780715202539, -0.04200263503409524, 0.16653861138229148, -0.04219773455554433,
    -0.009621971527876973, 0.0072189432466631, -0.0011651675918590652, -0.00021524167411495098,
    0.0001280502823881162, -2.013485478078824e-05, -1.2504934821426704e-06, 1.1330272319816964e-06,
    -2.0563384169776322e-07, 6.116095104477096e-09, 5.002007644489455e-09, -1.1812745704524735e-09,
    1.043426710562991e-10, 7.782263250364422e-12, -3.696805190798278e-12, 5.100377303199282e-13,
    -2.0584322778958035e-14, -5.349796096617638e-15, 1.228368623311869e-15, -1.1580576733890092e-16)
RECIPROCAL_GAMMA_LOW = (
    3.6120881088643716e-34, -4.942915152430644e-18, 2.137185197068487e-17, 1.492030628564186e-18,
    1.0189144546951554e-17, -3.3579992680543646e-18, -5.30003146540348e-19, -3.600653876736859e-19,
    5.659992132224708e-20, 2.3766474821487702e-21, -9.371218524114322e-21, 9.307355740360469e-24,
    -2.607318160363403e-23, -1.0011548981630233e-22, 9.797670381641691e-24, -2.2776018358863418e-25,
    3.758020364310683e-25, -6.627207250936153e-26, 5.2000063022167184e-27, -1.6537701731442681e-28)
# sin(pi e) = pi e P(e**2) and cos(pi e) = P(e**2), |e| <= 1/2
SINE = (
    1.0, -1.6449340668482264, 0.8117424252833536, -0.19075182412208422, 0.0261478478176548, -0.0023460810354558235,
    0.000148428793031071, -6.975873661656375e-06, 2.5312174041365044e-07, -7.3047118218563136e-09,
    1.7165384574683195e-10, -3.3481277064228297e-12, 5.5061896720575275e-14, -7.580064025271889e-16)
SINE_LOW = (
    -2.5641317566922015e-34, -3.0406723503984355e-17, 3.5613840321310695e-17, 4.419585639968862e-18,
    6.311757997726649e-19, -1.6957942119938214e-19, 6.7774066384868e-21, -3.55594208042041e-22,
    -1.903853093950745e-23, 1.8477494145955089e-25, 6.868614638669255e-27)
COSINE = (
    1.0, -4.934802200544679, 4.0587121264167685, -1.3352627688545895, 0.2353306303588932, -0.02580689139001406,
    0.0019295743094039231, -0.0001046381049248457, 4.303069587032943e-06, -1.3878952462210722e-07,
    3.6047307972774174e-09, -7.700707050425769e-11, 1.3768623087205498e-12, -2.0901491428493597e-14,
    2.671864292688992e-16)
COSINE_LOW = (
    -5.271844997893501e-36, -3.1326477543698557e-16, -2.6602000824298927e-16, 3.1815237895490657e-18,
    -1.2583065782914982e-18, 1.1701918341335052e-18, -9.67137564620876e-20, -2.112482861620945e-21,
    3.255053202342817e-22, 1.1224758775794564e-23, -2.6273948842273394e-26, -3.8640697068101394e-28)
# log(m) = s P(s**2), s = (m - 1)/(m + 1), sqrt(1/2) <= m <= sqrt(2)
LOGARITHM = (
    2.0, 0.6666666666666666, 0.4, 0.2857142857142857, 0.2222222222222222, 0.1818181818181818, 0.15384615384615596,
    0.13333333333303657, 0.11764705885301635, 0.1052631557945829, 0.09523820282253566, 0.08695259535883336,
    0.08009940789525667, 0.07242190576363715, 0.0849811408417357)
LOGARITHM_LOW = (
    1.6030021820250112e-33, 3.7007434154147385e-17, -2.220446043038237e-17, 1.5860266781531488e-17,
    1.2368350059031618e-17, 1.245468408006797e-17, -1.0300742065480394e-17, 4.282560132120834e-18,
    -1.5528730304204191e-18, 4.299255028773784e-18, -3.1665121194673927e-18)
# digamma(a) = log(a) - 1/(2a) - P(1/a**2)/a**2, a >= 16
DIGAMMA_SERIES = (
    0.08333333333333333, -0.008333333333333333, 0.003968253968253968, -0.004166666666666667, 0.007575757575757575,
    -0.02109279609279486, 0.08333333333169063, -0.4432598024325915, 3.0539533870362696, -26.455789441245884,
    281.3263447498334, -3578.0796063097782, 50492.91153512572, -576605.0454596418)
DIGAMMA_SERIES_LOW = (
    4.625929269271485e-18, -1.1564823173015065e-19, 2.202823192524127e-19, -5.764844851766206e-20,
    5.647863924955761e-20, -8.79637372917423e-19, -5.297387916626407e-18, -1.7749978794039133e-17)
LN2 = (0.6931471805599453, 2.3190468138462996e-17)
PRODUCT_ENDS = -100.5  # further left neither lgamma nor what it is a difference of is small


@record
class Functions:
    """What the formulas need beside operators.

    `split(x)` is f and k with x = 2**k (1 + f); `repeat(active, state, step)` the state after steps that each give
    a new state and which elements go on, `active` the first to do so; `if_any(rare, x, compute)` what is computed where
    something rare is the case, and `x` elsewhere. `single` where results are rounded to float32.
    """

    exp: Callable[[Number], Number]
    expm1: Callable[[Number], Number]
    log: Callable[[Number], Number]
    log1p: Callable[[Number], Number]
    sqrt: Callable[[Number], Number]
    sin: Callable[[Number], Number]
    cos: Callable[[Number], Number]
    rint: Callable[[Number], Number]
    abs: Callable[[Number], Number]
    select: Callable[[Any, Number, Number], Number]
    polynomial: Callable[[Number, Sequence[float]], Number]
    split: Callable[[Number], tuple[Number, Number]]
    repeat: Callable[[Any, list[Number], Callable[..., Any]], Sequence[Number]]
    if_any: Callable[[Any, Number, Callable[[], Number]], Number]
    power_of_two: Callable[[Number], Number]
    single: bool = False


def _numpy_split(x: np.ndarray) -> tuple[np.ndarray, Any]:
    m, k = np.frexp(x)
    low = m < 0.5 ** 0.5
    return np.where(low, 2 * m, m) - 1, k - low


def _numpy_repeat(active: Any, state: list[Number], step: Callable[..., Any]) -> list[Number]:
    while np.any(active):
        proposed, more = step(*state)
        state = [np.where(active, new, old) for new, old in zip(proposed, state, strict=True)]
        active = active & more
    return state


def _numpy_if_any(rare: Any, x: Number, compute: Callable[[], Number]) -> Number:
    return np.where(rare, compute(), x) if np.any(rare) else x


NUMPY = Functions(np.exp, np.expm1, np.log, np.log1p, np.sqrt, np.sin, np.cos, np.rint, np.abs, np.where,
                  series.polynomial, _numpy_split, _numpy_repeat, _numpy_if_any,
                  lambda n: np.ldexp(1.0, n))


def whole(x: Number, f: Functions) -> Number:
    """Whether a number is an integer."""
    return x == f.rint(x)


def lgamma_left(n: Number, e: Number, f: Functions) -> Number:
    """log |Gamma(-n + e)|, for whole n from 0 to -PRODUCT_ENDS, |e| <= 1/2."""
    size = polynomial(Pair(e, 0.0 * e), RECIPROCAL_GAMMA, RECIPROCAL_GAMMA_LOW).times(e)

    def step(k: Number, hi: Number, lo: Number) -> tuple[list[Number], Any]:
        product = Pair(hi, lo) * two_sum(k, -e)
        return [k + 1.0, product.hi, product.lo], k < n

    _, hi, lo = f.repeat(n >= 1.0, [0.0 * e + 1.0, size.hi, size.lo], step)
    negative = hi < 0.0
    hi, lo = f.select(negative, -hi, hi), f.select(negative, -lo, lo)
    near = (hi > 0.5) & (hi < 2.0)
    centre = f.select(near, hi, 0.0 * hi + 1.0)
    return -f.select(near, f.log1p((centre - 1.0) + lo), f.log(hi) + lo / hi)


def digamma_left(n: Number, e: Number, f: Functions) -> Number:
    """digamma(-n + e), for whole n from 0, |e| <= 1/2."""
    one = 0.0 * e + 1.0
    unit = Pair(one, 0.0 * e)
    square = two_product(e, e)
    cotangent = two_quotient(polynomial(square, COSINE, COSINE_LOW), polynomial(square, SINE, SINE_LOW).times(e))

    def step(hi: Number, lo: Number, high: Number, low: Number) -> tuple[list[Number], Any]:
        a = Pair(hi, lo)
        total, a = Pair(high, low) + two_quotient(unit, a), a.plus(one)
        return [a.hi, a.lo, total.hi, total.lo], a.hi < 16.0

    a = two_sum(n + 1.0, -e)
    hi, lo, high, low = f.repeat(a.hi < 16.0, [a.hi, a.lo, 0.0 * e, 0.0 * e], step)
    inverse = two_quotient(unit, Pair(hi, lo))
    squared = inverse * inverse
    rest = squared * polynomial(squared, DIGAMMA_SERIES, DIGAMMA_SERIES_LOW)
    right = (logarithm(Pair(hi, lo), f) + -inverse.times(0.5 * one)) + -rest
    result = ((right + -Pair(high, low)) + -cotangent).value()
    return f.select(e * e < 1e-300, -1.0 / e, result)  # whose halves might overflow


def logarithm(x: Pair, f: Functions) -> Pair:
    """log x as a pair, for normal positive x."""
    m, k = f.split(x.hi)
    s = two_quotient(Pair(m, 0.0 * m), two_sum(0.0 * m + 2.0, m))
    multiple = two_product(0.0 * m + k, 0.0 * m + LN2[0])
    return (Pair(multiple.hi, multiple.lo + k * LN2[1])
            + polynomial(s * s, LOGARITHM, LOGARITHM_LOW) * s).plus(x.lo / x.hi)
