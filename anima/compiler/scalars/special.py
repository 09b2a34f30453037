"""Error functions and the gamma function's logarithm and its derivative.

Minimax polynomials (Remez) in variables that make the function nearly flat; zeros are factored out, so
that accuracy is relative to the result near them too; left of 0 lgamma and digamma are those of
`ops/gamma.py`. In f32 the longer ones are computed in f64.

    erf(x) = x + x*P(x*x) for |x| < 1,   1 - exp(-P(|x|)) beyond
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, log, nan, pi, sqrt

import numpy as np

from anima.compiler.scalars.arithmetic import if_any, repeat
from anima.compiler.scalars.base import Num, horner, polynomial, select
from anima.compiler.scalars.exponential import (
    EXP2,
    LOG2E,
    exp,
    expm1,
    log as log_of,
    log1p,
    log_of_sum,
    power_of_two,
    reduced_exp,
    split,
)
from anima.compiler.scalars.trigonometric import COS, SIN, cos, sin
from anima.ops.gamma import COSINE, PRODUCT_ENDS, SINE, Functions, digamma_left, lgamma_left
from anima.ops.pairs import Pair, quick_two_sum
from anima.ops.series import ERFC, ERFC_LOW, LGAMMA_NEAR, STIRLING

# erf(x) = x + x * P(x**2), |x| <= 1
ERF_SMALL = {
    "f32": (0.12837916612625122, -0.3761262595653534, 0.1128358542919159, -0.026853810995817184,
            0.005188325420022011, -0.0008010172750800848, 7.853790884837508e-05),
    "f64": (0.1283791670955126, -0.3761263890318375, 0.11283791670954857, -0.0268661706450729,
            0.005223977624780903, -0.000854832697874426, 0.00012055331036971896, -1.4925593508525399e-05,
            1.6460972841196056e-06, -1.6350025453846546e-07, 1.4657881214235322e-08, -1.136567052423091e-09,
            5.945268187913438e-11)}
# -log(erfc(x)) = P(x), 1 <= x <= 4 (f32), 6 (f64)
ERF_LARGE = {
    "f32": (0.00034166828845627606, 1.1270885467529297, 0.6381459832191467, 0.10310568660497665,
            -0.021837519481778145, 0.002947513246908784, -0.00018636335153132677),
    "f64": (5.028466596236567e-07, 1.1283740895088685, 0.6366436279342379, 0.1027034399473945,
            -0.018990179640929174, -0.0004106269325543264, 0.0019159425702672515, -0.0007706429009879938,
            0.00013505043686179465, 2.026647296844754e-05, -2.2822363391003625e-05, 8.66709989595915e-06,
            -2.1356565440253352e-06, 3.7329796171780193e-07, -4.642206828154649e-08, 3.934169178511668e-09,
            -2.0449031176071734e-10, 4.928445322545478e-12)}
# (1 + 2x) exp(x**2) erfc(x) = P((x - 3) / (x + 3)), 0 <= x <= 10.3, to 2**-28.9
ERFC_SINGLE = (1.2530080080032349, -0.13562114536762238, -0.04756242036819458, 0.1296464502811432,
             -0.11927061527967453, 0.06829574704170227, -0.023799538612365723, 0.0025657168589532375,
             0.0020048462320119143, -0.0007726775365881622, -0.00026623523444868624)
# erf_inv(x) = x * P(w - centre), or x * P(sqrt(w) - centre), w = -log(1 - x**2) (Giles, 2010)
# In f32 his own coefficients, highest first: they fix the last digits of normal random numbers.
GILES_CENTRE = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
                -0.00125372503, -0.00417768164, 0.246640727, 1.50140941)
GILES_TAIL = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
              -0.0076224613, 0.00943887047, 1.00167406, 2.83297682)
ERFINV_CENTRE_F64 = (1.6536545626831027, 0.24015818242558826, -0.006033670871427754,
                     -0.0007407025341539554, 0.00018673420802425782, -1.3882523395790496e-05,
                     -1.365469184436827e-06, 4.2347881907677473e-07, -2.9070382773414006e-08,
                     -4.112661977456679e-09, 1.0512183977783266e-09, -5.4142390042654147e-11,
                     -1.297695810965094e-11, 2.6303545845048107e-12, -8.117011715863032e-14,
                     -3.998977993541517e-14, 6.594703357627469e-15, -4.286547094244701e-17,
                     -1.3003930451502108e-16, 1.57597693913447e-17, 1.1444207999932763e-18,
                     -3.575495037181891e-19, -1.009239247408263e-21, 3.3757433699616656e-21)
ERFINV_MIDDLE_F64 = (3.0838856104922208, 1.0052589676941657, 0.005370914553570911, -0.0037512085082629454,
                     0.0024914420970181864, -0.0016882755342516973, 0.0009532893630780574,
                     -0.0003550378308301876, 2.403126310609541e-05, 6.828724882268987e-05,
                     -4.731901543195028e-05, 1.2464433004660296e-05, 2.925823730813656e-06,
                     -3.984076903188464e-06, 1.4985467346946016e-06, -3.026654160538564e-08,
                     -2.711872949787971e-07, 1.3394283821538644e-07, 6.345439992755872e-10,
                     -1.6187646679878855e-08)
ERFINV_TAIL_F64 = (4.849906401408584, 1.0103004648645455, -0.00013871931837718707, -0.00021503011983974252,
                   7.599527801211071e-05, -1.9681770534786892e-05, 4.526053441240029e-06,
                   -9.930304209255403e-07, 2.290479329626587e-07, -6.755274441107055e-08,
                   2.9033137205096167e-08, -1.5261597939329732e-08, 7.79639851642924e-09,
                   -3.4643044502255944e-09, 1.3410588547859857e-09, -4.4155898920243516e-10,
                   5.6095137529775406e-11, 4.380135503310083e-11, -1.738377197443229e-11)
# digamma(x) = (x - root) P(x - 2), 1 <= x <= 3
DIGAMMA_NEAR = (0.7853075386041053, -0.2607389546830014, 0.10899991701762615, -0.049551032917669255,
                0.02344730959773169, -0.011338432553487125, 0.005552254171166207, -0.00273957288016479,
                0.0013581421928583824, -0.0006753134030827866, 0.00033643235608532557,
                -0.00016781495579235085, 8.377976995538008e-05, -4.184730368958946e-05,
                2.089133913744542e-05, -1.0437610071844419e-05, 5.269630013276403e-06,
                -2.6416965362694244e-06, 1.2104031979100833e-06, -5.931806891684155e-07,
                4.636564769945452e-07, -2.4549544797841117e-07, -5.802350645942426e-08,
                3.982349918800259e-08, 1.1627814032001595e-07, -6.37615867869242e-08,
                -3.5985483260732424e-08, 1.972302697040257e-08, 1.0241678944961761e-08,
                -5.359528567459683e-09)
# digamma(x) = log x - 1/(2x) - P(1/x**2)/x**2, x >= 8
DIGAMMA_FAR = (0.08333333333332583, -0.008333333323900542, 0.0039682500066167215, -0.004165897944855359,
               0.00749953202404158, -0.017270703895213325)
DIGAMMA_ROOT = (1.4616321449683622, 9.549995429965697e-17)
FORMULAS = Functions(exp, expm1, log_of, log1p, Num.sqrt, sin, cos, Num.rint, Num.abs, select, horner, split,
                     repeat, if_any, power_of_two)
SINGLE_FORMULAS = replace(FORMULAS, single=True)


# Error functions -----------------------------------------------------------------------------------


def erf(x: Num) -> Num:
    """The error function."""
    name, a = x.kind.name, x.abs()
    small = a.fma(polynomial(a * a, ERF_SMALL[name]), a)

    def large() -> Num:
        # 1 - 2**-t = (1 - s) - s * (2**r - 1)  with t = -log2(erfc(a)), s = 2**n, n + r = -t
        t = polynomial(a.at_most(3.95 if name == "f32" else 5.95), [-LOG2E * c for c in ERF_LARGE[name]])
        n = t.rint()
        r, s = t - n, power_of_two(n)
        return (-s * r).fma(polynomial(r, EXP2[name]), 1.0 - s)

    return if_any(a >= 1.0, small, large).copysign(x)


def erfc(x: Num) -> Num:
    """1 - erf(x), accurate where it is tiny."""
    return erfc_f32(x) if x.kind.name == "f32" else erfc_f64(x)


def erfc_f32(x: Num) -> Num:
    """1 - erf(x), from |x| = 1/2 on by `_beyond`."""
    n, tail = _beyond(x.abs().at_most(10.3), 1.0)
    tail = tail.times_power_of_two(n)
    centre = 1.0 - x.fma(polynomial(x * x, ERF_SMALL["f32"]), x)
    return select(x.abs() < 0.5, centre, select(x < 0.0, 2.0 - tail, tail))


def ndtr_f32(x: Num) -> Num:
    """The normal distribution function, erfc(-x / sqrt(2)) / 2."""
    n, tail = _beyond(x.abs().at_most(14.5), 0.5)
    tail = tail.times_power_of_two(n - 1.0)
    half = x * (0.5 * sqrt(0.5))
    centre = half.fma(polynomial(x * x * 0.5, ERF_SMALL["f32"]), half) + 0.5
    return select(x.abs() < 0.5, centre, select(x < 0.0, tail, 1.0 - tail))


def _beyond(a: Num, square_of_scale: float) -> tuple[Num, Num]:
    """n and erfc(z) / 2**n of z = scale * a in f32: exp(-z*z) P(t) / (1 + 2z) with the rounding errors of all but t."""
    scale = sqrt(square_of_scale)
    high = float(np.float32(scale))
    z, square = a * high, a * a
    bottom = a.fma(2.0 * high, 1.0)
    n, p = reduced_exp(square * -square_of_scale)
    power = quick_two_sum(p.const(1.0), p)
    t, inverse = (z - 3.0) / (z + 3.0), 1.0 / bottom
    factor = quick_two_sum(p.const(ERFC_SINGLE[0]), t * polynomial(t, ERFC_SINGLE[1:]))
    q = factor.hi * inverse
    bottom_rest = a.fma(2.0 * high, 1.0 - bottom)
    if scale != high:
        bottom_rest = a.fma(2.0 * (scale - high), bottom_rest)
    rest = (-q).fma(bottom_rest, (-q).fma(bottom, factor.hi)) + factor.lo
    product = power.hi * q
    square_rest = a.fma(a, -square) * square_of_scale
    error = power.hi.fma(q, -product) + (power.hi * rest).fma(inverse, product * (power.lo - square_rest))
    return n, product + error


def erfc_f64(x: Num) -> Num:
    """1 - erf(x), accurate where it is tiny: exp(-x*x) times a polynomial for x > 1/2."""
    a = x.abs()
    near = a.at_most(28.0)
    t = (near - 4.0) / (near + 4.0)
    square = near * near
    error = near.fma(near, -square)
    # exp(-square) * P(t) / (1 + 2x) with the rounding errors kept; 2**512 too large so that only the
    # last step may be subnormal.
    n, p = reduced_exp(-square)
    power = quick_two_sum(p.const(1.0), p)
    factor = quick_two_sum(p.const(ERFC[0]), t * polynomial(t, ERFC[1:]))
    top = power * Pair(factor.hi, factor.lo + ERFC_LOW)
    bottom = near.fma(2.0, 1.0)
    inverse = 1.0 / bottom
    q = top.hi * inverse
    rest = (-q).fma(near.fma(2.0, 1.0 - bottom), (-q).fma(bottom, top.hi)) + top.lo
    q = q + (rest * inverse - q * error)
    size = q.times_power_of_two(n + 512.0) * 2.0**-512
    tail = select(a > 28.0, 0.0, size)
    far = select(x < 0.0, 2.0 - tail, tail)
    centre = 1.0 - x.fma(polynomial(x * x, ERF_SMALL["f64"]), x)
    return select(a < 0.5, centre, far)


def erf_inv(x: Num) -> Num:
    """The inverse of erf on [-1, 1]; NaN outside."""
    if x.kind.name == "f32":
        # As eagerly: log1p(-x * x), from 0.9 on log((1 - x)(1 + x)).
        near, square = x.abs() < 0.9, x * x
        u = select(near, 1.0 - square, (1.0 - x) * (x + 1.0))
        w = -log_of_sum(u, select(near, (1.0 - u) - square, 0.0))
    else:
        w = -log_of((-x).fma(x, 1.0))
    root = w.sqrt()
    if x.kind.name == "f32":
        centre = w < 5.0
        variable = select(centre, w - 2.5, root - 3.0)
        factor = select(centre, variable.const(GILES_CENTRE[0]), GILES_TAIL[0])
        for c, d in zip(GILES_CENTRE[1:], GILES_TAIL[1:], strict=True):
            # Not fused, so that the result is that of eager evaluation.
            factor = factor * variable + select(centre, x.const(c), d)
        factor = select(x.abs() > 1.0, nan, factor)
    else:
        tail = select(w < 16.0, polynomial(root - 3.25, ERFINV_MIDDLE_F64),
                      polynomial(root - 5.0, ERFINV_TAIL_F64))
        factor = select(w < 6.25, polynomial(w - 3.125, ERFINV_CENTRE_F64), tail)
    return x * select(x.abs() == 1.0, inf, factor)


# Gamma ---------------------------------------------------------------------------------------------


def _sin_pi(f: Num) -> Num:
    """|sin(pi f)|, |f| <= 1/2."""
    a = f.abs()
    swap = a > 0.25
    r = select(swap, 0.5 - a, a) * pi
    z = r * r
    sine = (z * r).fma(polynomial(z, SIN["f64"]), r)
    return select(swap, z.fma(-0.5, 1.0) + z * z * polynomial(z, COS["f64"]), sine)


def lgamma_right(a: Num) -> Num:
    """The logarithm of gamma(a) for a > 0."""
    def far() -> Num:
        inverse = 1.0 / a
        rest = inverse.fma(polynomial(inverse * inverse, STIRLING), 0.5 * log(2 * pi) - 0.5)
        return select(a == inf, inf, (a - 0.5).fma(log_of(a) - 1.0, rest))

    def middle() -> Num:
        # Below 3/4: gamma(a) = gamma(a + 1) / a. From 3 to 8: gamma(a) = (a - 1) gamma(a - 1).
        low = a < 0.75
        near, product = select(low, a + 1.0, a), select(low, a, 1.0)
        for _ in range(5):
            step = near > 3.0
            near = select(step, near - 1.0, near)
            product = select(step, product * near, product)
        logarithm = log_of(product)
        return select(low, _lgamma_near(near) - logarithm, _lgamma_near(near) + logarithm)

    below = if_any((a < 0.75) | ((a > 3.0) & (a < 8.0)), _lgamma_near(a), middle)
    return if_any(a >= 8.0, below, far)


def _lgamma_near(a: Num) -> Num:
    """`lgamma_right` from 3/4 to 3."""
    return (a - 1.0) * (a - 2.0) * polynomial(a.at_most(3.0) - 1.875, LGAMMA_NEAR) + 0.0  # and not -0 of 1


def _lgamma(x: Num, pairs: bool) -> Num:
    """The logarithm of |gamma(x)|; infinity at 0, -1, -2, ... Near the roots left of 0 it needs pairs of numbers, but
    for results of f32: no number of f32 is so near to one."""
    left = x < 0.0
    right = lgamma_right(select(left, 1.0 - x, x))

    def reflected() -> Num:
        difference = log_of(pi / _sin_pi(x - x.rint())) - right
        if not pairs:
            return difference
        near = left & (x > PRODUCT_ENDS)
        n = select(near, -x.rint(), 0.0)
        return select(near, lgamma_left(n, select(near, x, -0.5) + n, FORMULAS), difference)

    pole = (x <= 0.0) & (x == x.rint())
    return select(pole | (x.abs() == inf), inf, if_any(left, right, reflected))


def digamma_right(a: Num) -> Num:
    """The derivative of lgamma for a > 0."""
    def far() -> Num:
        inverse = 1.0 / a
        square = inverse * inverse
        result = log_of(a) - inverse.fma(0.5, square * polynomial(square, DIGAMMA_FAR))
        return select(a == inf, inf, result)

    def middle() -> Num:
        low = a < 1.0
        near, total = select(low, a + 1.0, a), select(low, -1.0 / a, 0.0)
        for _ in range(5):
            step = near > 3.0
            near = select(step, near - 1.0, near)
            total = select(step, total + 1.0 / near, total)
        return _digamma_near(near) + total

    below = if_any((a < 1.0) | ((a > 3.0) & (a < 8.0)), _digamma_near(a), middle)
    return if_any(a >= 8.0, below, far)


def _digamma_near(a: Num) -> Num:
    """`digamma_right` from 1 to 3."""
    clipped = a.at_most(3.0)
    return ((clipped - DIGAMMA_ROOT[0]) - DIGAMMA_ROOT[1]) * polynomial(clipped - 2.0, DIGAMMA_NEAR)


def digamma_of(x: Num, pairs: bool) -> Num:
    """The derivative of lgamma; NaN at 0, -1, -2, ... `pairs` of numbers as in `_lgamma`."""
    pole = (x <= 0.0) & (x == x.rint())
    left = (x < 0.0) & ~pole

    def reflected() -> Num:
        if not pairs:
            e = x - x.rint()
            square = e * e
            return right - polynomial(square, COSINE[:12]) / (e * polynomial(square, SINE[:11]))
        n = select(left, -x.rint(), 0.0)
        return digamma_left(n, select(left, x, -0.5) + n, FORMULAS)

    right = digamma_right(x if pairs else select(left, 1.0 - x, x))
    return select(pole, nan, if_any(left, right, reflected))


def _in_f64(function: Callable[[Num, bool], Num]) -> Callable[[Num], Num]:
    """The function, computed in f64 for f32 too."""
    def either(x: Num) -> Num:
        if x.kind.name == "f64":
            return function(x, True)
        return function(x.cast("fpext", "double"), False).cast("fptrunc", "float")
    either.__doc__ = function.__doc__
    return either


lgamma = _in_f64(_lgamma)
digamma = _in_f64(digamma_of)
