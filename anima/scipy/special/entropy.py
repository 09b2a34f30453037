"""Logarithms and what sums of them are made of: entropies, logits, Box and Cox's transforms.

Derivatives are rules of their own, where those of the formulas would be 0/0 or cancel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import anima.numpy as jnp
from anima.api.eager import repeated
from anima.nn import normalize
from anima.numpy.promote import is_complex
from anima.ops.elementwise import logistic
from anima.scipy import logarithms
from anima.scipy.special.operands import inexact, real
from anima.transforms.custom import custom_jvp


def _quotient(x: Any, y: Any) -> Any:
    """x / y, and 0 / 0 = 0."""
    return x / jnp.where((x == 0) & (y == 0), 1, y)


@repeated
def xlogy(x: Any, y: Any) -> Any:
    """x log(y), 0 where x = 0 and y is not NaN.

    >>> anima.scipy.special.xlogy(jnp.zeros(1), jnp.zeros(1))
    Array([0.], dtype=float32)
    """
    return logarithms.xlogy(*inexact("xlogy", x, y))


@repeated
def xlog1py(x: Any, y: Any) -> Any:
    """x log(1 + y), 0 where x = 0 and y is not NaN."""
    return logarithms.xlog1py(*inexact("xlog1py", x, y))


@custom_jvp
def _entr(x: Any) -> Any:
    return -logarithms.xlogy(x, x)


_entr.defjvps(lambda t, out, x: -t * (jnp.log(x) + 1))  # without x / x, whose derivatives are lost in rounding


@repeated
def entr(x: Any) -> Any:
    """-x log(x): 0 where x = 0, -inf where it is negative."""
    (x,) = real("entr", x, weak=True)
    return jnp.where(x < 0, -np.inf, _entr(x))


def _log_ratio(p: Any, q: Any) -> Any:
    """log(p / q), for positive numbers."""
    near = (p < 2 * q) & (q < 2 * p)
    base = jnp.where(near, q, 1)
    return jnp.where(near, jnp.log1p((jnp.where(near, p, 1) - base) / base), jnp.log(p) - jnp.log(q))


def _outside(p: Any, q: Any) -> Any:
    """What relative entropies are outside of their domain: infinite, NaN of NaN."""
    return jnp.where(jnp.isnan(p) | jnp.isnan(q), np.nan, np.inf)


@custom_jvp
def _rel_entr(p: Any, q: Any) -> Any:
    both, outside = (p > 0) & (q > 0), _outside(p, q)
    p, q, empty = jnp.where(both, p, 1), jnp.where(both, q, 1), (p == 0) & (q >= 0)
    return jnp.where(both, p * _log_ratio(p, q), jnp.where(empty, jnp.zeros_like(p), outside))


def _slope(p: Any, q: Any) -> Any:
    """The slope of `kl_div` in p; where both are 0, that of -p, as the logarithm of 0 / 0 counts for nothing there."""
    nothing = (p == 0) & (q == 0)
    return jnp.where(nothing, -1, _log_ratio(jnp.where(nothing, 1, p), jnp.where(nothing, 1, q)))


_rel_entr.defjvps(lambda t, out, p, q: t * (_slope(p, q) + 1), lambda t, out, p, q: -t * _quotient(p, q))


@repeated
def rel_entr(p: Any, q: Any) -> Any:
    """p log(p / q): 0 where p = 0 and q is not negative, inf where one of them is negative, or q alone is 0."""
    return _rel_entr(*real("rel_entr", p, q, weak=True))


_ATANH = [1 / (2 * k + 3) for k in range(16)]  # atanh(s) = s + s**3 (1/3 + s**2/5 + ...)


@custom_jvp
def _kl_div(p: Any, q: Any) -> Any:
    both, outside = (p > 0) & (q > 0), _outside(p, q)
    empty, over = (p == 0) & (q >= 0), q
    p, q = jnp.where(both, p, 1), jnp.where(both, q, 1)
    near = (p < 1.5 * q) & (q < 1.5 * p)
    u = jnp.where(near, (q - p) / p, 0)
    s = u / (2 + u)
    total = jnp.full_like(s, _ATANH[-1])
    for c in _ATANH[-2::-1]:
        total = total * (s * s) + c
    small = p * s * (u - 2 * s * s * total)  # u - log(1 + u) = s (u - 2 s**2 (1/3 + ...)), s = u / (2 + u)
    large = p * _log_ratio(p, q) - p + q
    return jnp.where(both, jnp.where(near, small, large), jnp.where(empty, over, outside))


_kl_div.defjvps(lambda t, out, p, q: t * _slope(p, q), lambda t, out, p, q: t * (1 - _quotient(p, q)))


@repeated
def kl_div(p: Any, q: Any) -> Any:
    """p log(p / q) - p + q, which is not negative; limits as in `rel_entr`."""
    return _kl_div(*real("kl_div", p, q, weak=True))


@custom_jvp
def _logit(x: Any) -> Any:
    centre = jnp.abs(x - 0.5) < 0.2
    s = jnp.where(centre, 2 * x - 1, 0)
    far = jnp.where(centre, 0.25, x)
    return jnp.where(centre, jnp.log1p(s) - jnp.log1p(-s), jnp.log(far) - jnp.log1p(-far))


_logit.defjvps(lambda t, out, x: t / (x * (1 - x)))


@repeated
def logit(x: Any) -> Any:
    """log(x / (1 - x)), the inverse of `expit`.

    >>> anima.scipy.special.logit(jnp.array([0., 0.5, 1.]))
    Array([-inf,   0.,  inf], dtype=float32)
    """
    return _logit(*inexact("logit", x))


def expit(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return logistic(*inexact("expit", x))


# ---------------------------------------------------------------- Box and Cox


def _moment(n: int, u: Any) -> Any:
    """The integral of s**n exp(s u) over 0 < s < 1: (exp(u) - 1) / u for n = 0, and its derivatives."""
    near = jnp.abs(u) < n + 1
    v = jnp.where(near, u, 0)
    term = total = jnp.full_like(v, 1 / (n + 1))  # exp(v) (1/(n+1) - v/((n+1) (n+2)) + ...), of like signs for v < 0
    for k in range(18 + 2 * n):
        term = term * -v / (n + 2 + k)
        total = total + term
    right = term = jnp.full_like(v, 1.0)
    right = right / (n + 1)
    for k in range(1, 18 + 2 * n):
        term = term * v / k
        right = right + term / (n + 1 + k)
    small = jnp.where(v < 0, jnp.exp(v) * total, right)
    w = jnp.where(near, n + 1.0, u)
    large = jnp.expm1(w) / w
    for k in range(1, n + 1):
        large = (jnp.exp(w) - k * large) / w
    return jnp.where(near, small, large)


def _exprel(n: int, u: Any) -> Any:
    function = custom_jvp(lambda u: _moment(n, u))
    function.defjvps(lambda t, out, u: t * _exprel(n + 1, u))
    return function(u)


def _powers(logarithm: Any, lmbda: Any) -> Any:
    """(exp(lmbda logarithm) - 1) / lmbda, for any finite or infinite logarithm."""
    if is_complex(lmbda.dtype):
        none = lmbda == 0
        power = jnp.where(none, 1, lmbda)
        return jnp.where(none, logarithm, jnp.expm1(power * logarithm) / power)
    zero = logarithm == -np.inf
    safe = jnp.where(zero, 0, logarithm)
    regular = safe * _exprel(0, lmbda * safe)
    return jnp.where(zero, jnp.where(lmbda > 0, -1 / jnp.where(lmbda > 0, lmbda, 1), -np.inf), regular)


@repeated
def boxcox(x: Any, lmbda: Any) -> Any:
    """Box and Cox's transform (x**lmbda - 1) / lmbda, log(x) for lmbda = 0; NaN where x is real and negative.

    >>> anima.scipy.special.boxcox(jnp.array([1., 3.]), 2.)
    Array([0., 4.], dtype=float32)
    """
    x, lmbda = inexact("boxcox", x, lmbda, weak=True)
    return _powers(jnp.log(x), lmbda)


@repeated
def boxcox1p(x: Any, lmbda: Any) -> Any:
    """((1 + x)**lmbda - 1) / lmbda, log(1 + x) for lmbda = 0."""
    x, lmbda = inexact("boxcox1p", x, lmbda, weak=True)
    return _powers(jnp.log1p(x), lmbda)


# ---------------------------------------------------------------- along an axis


def logsumexp(a: Any, axis: Any = None, b: Any = None, keepdims: bool = False, return_sign: bool = False,
              where: Any = None) -> Any:
    """log(sum(b * exp(a))) along `axis`, without overflow; see `anima.nn.logsumexp`."""
    return normalize.logsumexp(a, axis, b, keepdims, return_sign, where)


def softmax(x: Any, /, *, axis: Any = None) -> Any:
    """exp(x) / sum(exp(x)) along `axis` (default: all): positive numbers whose sum is 1."""
    return normalize.softmax(x, axis)


def log_softmax(x: Any, /, *, axis: Any = None) -> Any:
    """log(softmax(x)) along `axis` (default: all)."""
    return normalize.log_softmax(x, axis)
