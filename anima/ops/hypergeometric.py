"""Kummer's and Gauss's hypergeometric functions, over NumPy arrays of float64 and compiled numbers alike.

    hyp1f1(a, b, x) = sum of (a)_k x**k / ((b)_k k!)      hyp2f1(a, b, c, x) = sum of (a)_k (b)_k x**k / ((c)_k k!)

Transformations make the terms of the series positive where they can. Formula numbers are those of the NIST Digital
Library of Mathematical Functions.
"""

from __future__ import annotations

from math import inf, nan

from anima.ops.gamma import Functions, whole
from anima.ops.gamma_quotients import gamma
from anima.ops.pairs import Number


def _ends(a: Number, f: Functions) -> Number:
    """Whether (a)_k is 0 from some k on."""
    return (a <= 0.0) & whole(a, f)


def hyp1f1(a: Number, b: Number, x: Number, f: Functions) -> Number:
    """M(a, b, x) = e**x M(b - a, b, -x) (13.2.39); for large x the expansion 13.7.1."""
    flip = (x < 0.0) & ~_ends(a, f)
    top = f.select(flip, b - a, a)
    size = f.select(flip, -x, x)
    far = (size > 60.0) & (size > (f.abs(b - top) + 1.0) * (f.abs(1.0 - top) + 1.0) * 2.0) & ~_ends(top, f)
    one = 0.0 * a + 0.0 * b + 0.0 * f.select(f.abs(x) < inf, x, 0.0) + 1.0

    def step(k: Number, term: Number, total: Number) -> tuple[list[Number], Number]:
        term = term * ((top + k) / (b + k)) * (size / (k + 1.0))
        return [k + 1.0, term, total + term], (f.abs(term) > f.abs(total) * 1e-17) | ((k < -top) | (k < -b))

    near = f.repeat(~far & (f.abs(x) < inf), [one - 1.0, one, one], step)[2]
    near = f.select(flip, near * f.exp(x), near)

    def expand(k: Number, term: Number, total: Number) -> tuple[list[Number], Number]:
        term = term * ((b - top + k) * (1.0 - top + k)) / ((k + 1.0) * large)
        return [k + 1.0, term, total + term], (f.abs(term) > f.abs(total) * 1e-17) & (k < 50.0)

    large = f.select(far, size, 100.0)
    expansion = f.repeat(far, [one - 1.0, one, one], expand)[2]
    root = f.exp(f.select(flip, 0.0, large * 0.5))  # twice, for it overflows later
    power = f.exp((top - b) * f.log(large))
    outer = gamma(b, f) / gamma(f.select(far, top, 1.0), f) * expansion * power * root * root
    result = f.select(far, outer, near)
    return f.select(_ends(b, f) & ~(_ends(a, f) & (a >= b)), inf, f.select(x == 0.0, one, result))


def _gauss_series(a: Number, b: Number, c: Number, x: Number, active: Number, f: Functions) -> Number:
    one = 0.0 * x + 1.0

    def step(k: Number, term: Number, total: Number) -> tuple[list[Number], Number]:
        term = term * ((a + k) / (c + k)) * ((b + k) / (k + 1.0)) * x
        more = (f.abs(term) > f.abs(total) * 1e-17) | (((k < -a) | (k < -b) | (k < -c)) & (term != 0.0))
        return [k + 1.0, term, total + term], more

    return f.repeat(active, [one - 1.0, one, one], step)[2]


def hyp2f1(a: Number, b: Number, c: Number, x: Number, f: Functions) -> Number:
    """F(a, b; c; x), x <= 1: left of 0 by x / (x - 1) (15.8.1), near 1 by 1 - x unless c - a - b is whole (15.8.4)."""
    finite = _ends(a, f) | _ends(b, f)
    left = (x < 0.0) & ~finite
    rest = c - a - b
    middle = f.select(f.select(left, x / (x - 1.0), x) > 1.0, 0.0 * x, f.select(left, x / (x - 1.0), x))
    z = f.select(finite, x, middle)
    other = f.select(left, c - b, b)  # F(a, b) = (1 - x)**-a F(a, c - b)
    rest = f.select(left, b - a, rest)
    near = (z > 0.75) & ~whole(rest, f) & ~finite & (z < 1.0) & ~_ends(c - a, f) & ~_ends(c - other, f)
    valid = (x < 1.0) | finite
    direct = _gauss_series(a, other, c, f.select(near | ~valid, 0.0, z), valid & ~near, f)
    y = f.select(near, 1.0 - z, 0.0 * z)
    safe = f.select(near, rest, 0.5)
    first = _gauss_series(a, other, 1.0 - safe, y, near, f)
    second = _gauss_series(c - a, c - other, safe + 1.0, y, near, f)
    whole_c = gamma(c, f)
    power = f.exp(safe * f.log(f.select(near, y, 1.0)))
    joined = (whole_c * gamma(safe, f) / (gamma(c - a, f) * gamma(c - other, f)) * first
              + power * whole_c * gamma(-safe, f) / (gamma(a, f) * gamma(other, f)) * second)
    result = f.select(near, joined, direct)
    result = f.select(left, result * f.exp(-a * f.log1p(-f.select(left, x, 0.0))), result)
    sum_at_one = whole_c * gamma(c - a - b, f) / (gamma(c - a, f) * gamma(c - b, f))  # 15.4.20
    at_one = f.select(c - a - b > 0.0, sum_at_one, inf)
    result = f.select((x == 1.0) & ~finite, at_one, f.select((x > 1.0) & ~finite, inf, result))
    ended = (_ends(a, f) & (a >= c)) | (_ends(b, f) & (b >= c))
    result = f.select(_ends(c, f) & ~ended, inf, f.select(x == 0.0, 0.0 * x + 1.0, result))
    return f.select((a == a) & (b == b) & (c == c) & (x == x), result, nan)
