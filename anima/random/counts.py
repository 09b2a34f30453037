"""Counts: Poisson, binomial, multinomial and geometric numbers.

Small means are counted out step by step; large ones are drawn by transformed rejection: a smooth map of
two uniform numbers is rounded to an integer, and kept with the probability that makes it exact.

W. Hoermann, "The transformed rejection method for generating Poisson random variables", Insurance:
Mathematics and Economics 12 (1993); "The generation of binomial random variates", JSCS 46 (1993).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import anima.numpy as jnp
from anima.control.scan import scan
from anima.control.while_loop import while_loop
from anima.core import dtypes
from anima.core.avals import Shape
from anima.numpy.promote import promote_dtypes_inexact
from anima.ops import special
from anima.random.draws import common_shape, draw_uniform, float_dtype, full, int_dtype, operand, sampler
from anima.random.keys import clone, draw_keys


def _until_all_accepted(key: Any, shape: Shape, dtype: Any, attempt: Callable[[Any, Any], tuple[Any, Any]]) -> Any:
    """Calls `attempt(u, v) -> (numbers, accepted)` with new uniform numbers until all have been accepted."""
    def body(state: Any) -> Any:
        key, out, done = state
        key, key_u, key_v = draw_keys(key, 3)
        numbers, accepted = attempt(draw_uniform(key_u, shape, dtype) - 0.5, draw_uniform(key_v, shape, dtype))
        return key, jnp.where(accepted, numbers, out), done | accepted

    start = key, -jnp.ones(shape, dtype), jnp.zeros(shape, bool)
    return while_loop(lambda state: ~jnp.all(state[2]), body, start)[1]


# ---------------------------------------------------------------- Poisson

@sampler()
def poisson(key: Any, lam: Any, shape: Any = None, dtype: Any = None) -> Any:
    """Poisson distributed integers of mean `lam`; -1 where `lam` is negative or NaN."""
    dtype = int_dtype("poisson", dtype, ValueError)
    shape = common_shape("poisson", shape, lam)
    lam = full(lam, np.dtype(np.float32), shape)
    small = jnp.isnan(lam) | (lam < 10)
    counted = _counted_poisson(key, jnp.where(small, lam, 0), shape)
    drawn = _rejection_poisson(clone(key), jnp.where(small, 1e5, lam), shape)
    out = jnp.where(small, counted.astype(dtype), drawn.astype(dtype))
    return jnp.where(lam == 0, jnp.zeros_like(out), out)


def _counted_poisson(key: Any, lam: Any, shape: Shape) -> Any:
    """How many uniform numbers, multiplied, stay above exp(-lam) (Knuth)."""
    def body(state: Any) -> Any:
        key, count, log_product = state
        key, subkey = draw_keys(key)
        count = jnp.where(log_product > -lam, count + 1, count)
        return key, count, log_product + jnp.log(draw_uniform(subkey, shape, lam.dtype))

    start = key, jnp.zeros(shape, jnp.int32), jnp.zeros(shape, lam.dtype)
    return while_loop(lambda state: jnp.any(state[2] > -lam), body, start)[1] - 1


def _rejection_poisson(key: Any, lam: Any, shape: Shape) -> Any:
    """Hoermann's algorithm PTRS, for means of 10 and more."""
    log_lam = jnp.log(lam)
    b = 0.931 + 2.53 * jnp.sqrt(lam)
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    surely = 0.9277 - 3.6224 / (b - 2)

    def attempt(u: Any, v: Any) -> tuple[Any, Any]:
        us = 0.5 - jnp.abs(u)
        k = jnp.floor((2 * a / us + b) * u + lam + 0.43)
        s = jnp.log(v * inverse_alpha / (a / (us * us) + b))
        t = -lam + k * log_lam - special.lgamma(k + 1)
        impossible = (k < 0) | ((us < 0.013) & (v > us))
        return k, ((us >= 0.07) & (v <= surely)) | (~impossible & (s <= t))

    return _until_all_accepted(key, shape, lam.dtype, attempt)


# ---------------------------------------------------------------- binomial

# log(k!) less Stirling's formula, for k = 0, ... 9.
_STIRLING_TAIL = np.array([math.lgamma(k + 1) - ((k + 0.5) * math.log(k + 1) - (k + 1) + 0.5 * math.log(2 * math.pi))
                           for k in range(10)])


def _stirling_tail(k: Any) -> Any:
    """log(k!) - ((k + 1/2) log(k + 1) - (k + 1) + log(2 pi) / 2)."""
    table = jnp.asarray(_STIRLING_TAIL, k.dtype)
    square = (k + 1) * (k + 1)
    series = (1 / 12 - (1 / 360 - 1 / 1260 / square) / square) / (k + 1)
    return jnp.where(k <= 9, table[jnp.clip(k, 0, 9).astype(jnp.int32)], series)


@sampler()
def binomial(key: Any, n: Any, p: Any, shape: Any = None, dtype: Any = None) -> Any:
    """The number of successes in `n` trials of probability `p` each, as floats; small ones are drawn in float32.

    NaN where `n` is negative or `p` is outside of [0, 1].

    Differs from JAX: of infinitely many trials of probability 0 or 1 there are 0 or infinitely many; JAX never returns.
    """
    dtype = float_dtype("binomial", dtype)
    shape = common_shape("binomial", shape, n, p)
    wide = np.promote_types(dtype, np.float32)
    return _draw_binomial(key, full(n, wide, shape), full(p, wide, shape), shape, wide).astype(dtype)


def _draw_binomial(key: Any, n: Any, p: Any, shape: Shape, dtype: Any) -> Any:
    rare = jnp.where(p < 0.5, p, 1 - p)
    bad_n, bad_p = jnp.isnan(n) | (n < 0), jnp.isnan(p) | (p < 0) | (p > 1)
    q = jnp.where(bad_p | jnp.isnan(rare) | (rare < 0), 0.01, rare)
    endless = jnp.isinf(n)
    small = bad_n | endless | (n * q <= 10)
    count = jnp.where(endless, 0, jnp.floor(n))
    counted = _counted_binomial(key, jnp.where(small, count, 0), q, shape)
    drawn = _rejection_binomial(clone(key), jnp.where(small, 1e4, count), jnp.where(small, 0.5, q), shape)
    k = jnp.where(small, counted, drawn)
    k = jnp.where(endless & (p > 0), jnp.asarray(jnp.inf, dtype), k)
    mirrored = (p < 0.5) | endless
    return jnp.where(bad_n | bad_p, jnp.asarray(jnp.nan, dtype), jnp.where(mirrored, k, count - k))


def _counted_binomial(key: Any, n: Any, p: Any, shape: Shape) -> Any:
    """How many waiting times for a success (geometric numbers) fit into `n` trials."""
    log_failure = jnp.log1p(-p)

    def body(state: Any) -> Any:
        key, count, trials = state
        subkey, key = draw_keys(key)
        count = jnp.where(trials <= n, count + 1, count)
        waiting = jnp.ceil(jnp.log(draw_uniform(subkey, shape, p.dtype)) / log_failure)
        return key, count, trials + waiting

    start = key, jnp.zeros(shape, p.dtype), jnp.zeros(shape, p.dtype)
    return while_loop(lambda state: jnp.any(state[2] <= n), body, start)[1] - 1


def _rejection_binomial(key: Any, n: Any, p: Any, shape: Shape) -> Any:
    """Hoermann's algorithm BTRS, for n p of 10 and more."""
    deviation = jnp.sqrt(n * p * (1 - p))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * p
    centre = n * p + 0.5
    surely = 0.92 - 4.2 / b
    odds = p / (1 - p)
    alpha = (2.83 + 5.1 / b) * deviation
    m = jnp.floor((n + 1) * p)

    def attempt(u: Any, v: Any) -> tuple[Any, Any]:
        us = 0.5 - jnp.abs(u)
        k = jnp.floor((2 * a / us + b) * u + centre)
        impossible = (k < 0) | (k > n)
        s = jnp.log(v * alpha / (a / (us * us) + b))
        t = ((m + 0.5) * jnp.log((m + 1) / (odds * (n - m + 1))) + (n + 1) * jnp.log((n - m + 1) / (n - k + 1))
             + (k + 0.5) * jnp.log(odds * (n - k + 1) / (k + 1))
             + _stirling_tail(m) + _stirling_tail(n - m) - _stirling_tail(k) - _stirling_tail(n - k))
        return k, ((us >= 0.07) & (v <= surely)) | (~impossible & (s <= t))

    return _until_all_accepted(key, shape, p.dtype, attempt)


@sampler("unroll")
def multinomial(key: Any, n: Any, p: Any, *, shape: Any = None, dtype: Any = None, unroll: int = 1) -> Any:
    """How `n` draws fall to the outcomes of probabilities `p` (its last axis), as floats unless `dtype` says otherwise.

    `shape` is that of the whole result, by default the one that `n[..., None]` and `p` have together.
    Counts are drawn in the floats that `n` and `p` have in common.
    """
    kept = dtypes.check_user_dtype(dtype, "multinomial")
    n, p = promote_dtypes_inexact("multinomial", jnp.asarray(n), jnp.asarray(p))
    dtype = p.dtype
    shape = common_shape("multinomial", shape, jnp.expand_dims(n, -1), p)
    batch = shape[:-1]
    shares = jnp.moveaxis(full(p, dtype, shape), -1, 0)
    rest = jnp.flip(jnp.cumsum(jnp.flip(shares, 0), axis=0), 0)
    ratios = shares / jnp.where(rest == 0, 1, rest)

    def draw(remaining: Any, step: Any) -> tuple[Any, Any]:
        ratio, key = step
        count = _draw_binomial(key, remaining, jnp.clip(ratio, 0, 1), batch, dtype)
        return remaining - count, count

    _, counts = scan(draw, full(n, dtype, batch), (ratios, draw_keys(key, shape[-1])), unroll=unroll)
    return jnp.moveaxis(counts, 0, -1).astype(kept)


@sampler()
def geometric(key: Any, p: Any, shape: Any = None, dtype: Any = None) -> Any:
    """The number of trials, each succeeding with probability `p`, up to and with the first success."""
    dtype = int_dtype("geometric", dtype, ValueError)
    shape = common_shape("geometric", shape, p)
    p = jnp.asarray(p)
    p = p.astype(dtypes.to_inexact(p.dtype))
    u = draw_uniform(key, shape, p.dtype)
    u = jnp.where(u == 0, 1, u)
    ratio = jnp.log(u) / operand(jnp.log1p(-p), p.dtype, shape)
    return (jnp.floor(ratio) + 1).astype(dtype)
