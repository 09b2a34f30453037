"""Gamma random numbers by rejection, and what is made of them: beta, Dirichlet, chi-square, F, Student's t.

    beta = G(a) / (G(a) + G(b))      t = normal * sqrt(df / 2 / G(df / 2))      chisquare = 2 G(df / 2)

Small shape parameters give numbers that float32 cannot hold; ratios are therefore taken of logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

import anima.numpy as jnp
from anima.api.jit import jit
from anima.api.mapping import vmap
from anima.control.while_loop import while_loop
from anima.core import dtypes
from anima.core.avals import Shape, ShapedArray, tangent_aval
from anima.core.primitive import Zero
from anima.ops import elementwise as el, shape as sh, special
from anima.ops.broadcast import as_shape
from anima.random.distributions import draw_exponential
from anima.random.draws import (
    common_shape,
    draw_bernoulli,
    draw_normal,
    draw_uniform,
    float_dtype,
    full,
    operand,
    sampler,
)
from anima.random.implementation import Implementation
from anima.random.keys import draw_keys, wrap_key_data
from anima.random.primitives import KeyPrimitive, check_keys


def _one_gamma(key: Any, a: Any, log_space: bool) -> Any:
    """One gamma number, or its logarithm.

    Marsaglia and Tsang, "A simple method for generating gamma variables", ACM TOMS 26 (2000): a cubed
    normal number is accepted with a probability that is close to 1. For a < 1 a number for a + 1 is
    multiplied by u ** (1 / a).
    """
    dtype = a.dtype
    large = a >= 1
    d = jnp.where(large, a, a + 1) - 1 / 3
    c = 1 / 3 / jnp.sqrt(d)

    def cubes(state: Any) -> Any:
        """The next x with 1 + c x > 0."""
        key, subkey = draw_keys(state[0])
        x = draw_normal(subkey, (), dtype)
        return key, x, 1 + x * c

    def propose(state: Any) -> Any:
        key, key_x, key_u = draw_keys(state[0], 3)
        start = key_x, jnp.zeros((), dtype), -jnp.ones((), dtype)
        _, x, v = while_loop(lambda s: s[2] <= 0, cubes, start)
        return key, x * x, v * v * v, draw_uniform(key_u, (), dtype)

    def rejected(state: Any) -> Any:
        _, x2, v, u = state
        return (u >= 1 - 0.0331 * (x2 * x2)) & (jnp.log(u) >= x2 * 0.5 + d * (1 - v + jnp.log(v)))

    key, key_boost = draw_keys(key)
    never_accepted = (jnp.asarray(x, dtype) for x in (0, 1, 2))
    _, _, v, _ = while_loop(rejected, propose, (key, *never_accepted))
    if log_space:
        log_u = -draw_exponential(key_boost, (), dtype)
        boost = jnp.where(large | (log_u == 0), 0, log_u * (1 / a))
        return jnp.log(d) + jnp.log(v) + boost
    boost = jnp.where(large, 1, (1 - draw_uniform(key_boost, (), dtype)) ** (1 / a))
    return d * v * boost


class RandomGamma(KeyPrimitive):
    """Gamma numbers for keys and shape parameters: each key serves the parameters `a[keys' dims + ...]`."""

    def infer(self, keys: ShapedArray, a: ShapedArray, *, log_space: bool) -> ShapedArray:
        check_keys(keys, "random_gamma")
        if a.shape[:keys.ndim] != keys.shape:
            raise TypeError(f"random_gamma requires parameters for each key, got {keys} and {a}")
        return ShapedArray(a.shape, a.dtype)

    def program(self, impl: Implementation, words: Any, a: Any, *, log_space: bool) -> Any:
        keys = wrap_key_data(words, impl=impl).ravel()
        count = a.size // keys.size if keys.size else 0
        each = vmap(lambda k: draw_keys(k, count))(keys)
        # Compiled even where all else is not: loops over lanes are slow in NumPy.
        lanes = jit(vmap(partial(_one_gamma, log_space=log_space)))
        return sh.reshape(lanes(sh.reshape(each, (a.size,)), sh.reshape(a, (a.size,))), a.shape)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, log_space: bool) -> tuple[Any, Any]:
        keys, a = primals
        out = self.bind(keys, a, log_space=log_space)
        t = tangents[1]
        if isinstance(t, Zero):
            return out, Zero(tangent_aval(ShapedArray(out.shape, out.dtype)))
        if not log_space:
            return out, el.mul(t, special.random_gamma_grad_p(a, out))
        # Where exp underflows, x is a power of a uniform number u: log x = log(u) / a + ..., slope -log(x) / a.
        x = jnp.exp(out)
        tiny = x <= float(dtypes.finfo(out.dtype).tiny)
        safe = jnp.where(tiny, 1, x)
        return out, el.mul(t, jnp.where(tiny, -out / a, special.random_gamma_grad_p(a, safe) / safe))

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        keys, a = (sh.broadcast(x, (size,)) if d is None else jnp.moveaxis(x, d, 0)
                   for x, d in zip(args, dims, strict=True))
        return self.bind(keys, a, **params), 0


random_gamma_p = RandomGamma("random_gamma")


def draw_gamma(key: Any, a: Any, shape: Shape, dtype: Any, log_space: bool = False) -> Any:
    """Gamma numbers of shape parameter `a`, or their logarithms."""
    return random_gamma_p.bind(key, full(a, dtype, shape), log_space=log_space)


@sampler()
def gamma(key: Any, a: Any, shape: Any = None, dtype: Any = None) -> Any:
    """Gamma distributed numbers of shape parameter `a` and scale 1; differentiable in `a`."""
    dtype = float_dtype("gamma", dtype)
    return draw_gamma(key, a, common_shape("gamma", shape, a), dtype)


@sampler()
def loggamma(key: Any, a: Any, shape: Any = None, dtype: Any = None) -> Any:
    """Logarithms of gamma distributed numbers, precise where the numbers themselves underflow."""
    dtype = float_dtype("loggamma", dtype)
    return draw_gamma(key, a, common_shape("loggamma", shape, a), dtype, log_space=True)


@sampler()
def beta(key: Any, a: Any, b: Any, shape: Any = None, dtype: Any = None) -> Any:
    """Beta distributed numbers, in (0, 1), of density x**(a-1) (1-x)**(b-1) up to a factor."""
    dtype = float_dtype("beta", dtype)
    shape = common_shape("beta", shape, a, b)
    key_a, key_b = draw_keys(key)
    log_a, log_b = draw_gamma(key_a, a, shape, dtype, True), draw_gamma(key_b, b, shape, dtype, True)
    larger = jnp.maximum(log_a, log_b)
    scaled_a, scaled_b = jnp.exp(log_a - larger), jnp.exp(log_b - larger)
    return scaled_a / (scaled_a + scaled_b)


@sampler()
def dirichlet(key: Any, alpha: Any, shape: Any = None, dtype: Any = None) -> Any:
    """Vectors of positive numbers of sum 1, Dirichlet distributed with parameters `alpha` (its last axis).

    `shape` is that of the batch of vectors; by default the one of `alpha` without its last axis.
    """
    dtype = float_dtype("dirichlet", dtype)
    alpha = jnp.asarray(alpha)
    if alpha.ndim < 1:
        raise ValueError(f"dirichlet requires alpha.ndim >= 1, got alpha.ndim == {alpha.ndim}")
    batch = common_shape("dirichlet", shape, jnp.zeros(alpha.shape[:-1]))
    logs = draw_gamma(key, alpha, (*batch, alpha.shape[-1]), dtype, True)
    scaled = jnp.exp(logs - el.stop_gradient(jnp.max(logs, axis=-1, keepdims=True)))
    return scaled / jnp.sum(scaled, axis=-1, keepdims=True)


@sampler()
def chisquare(key: Any, df: Any, shape: Any = None, dtype: Any = None) -> Any:
    """Chi-square distributed numbers with `df` degrees of freedom."""
    dtype = float_dtype("chisquare", dtype)
    return _draw_chisquare(key, df, common_shape("chisquare", shape, df), dtype)


def _draw_chisquare(key: Any, df: Any, shape: Shape, dtype: Any) -> Any:
    return jnp.exp(draw_gamma(key, full(df, dtype, shape) / 2, shape, dtype, True)) * 2


@sampler()
def f(key: Any, dfnum: Any, dfden: Any, shape: Any = None, dtype: Any = None) -> Any:
    """F distributed numbers: the ratio of two chi-square numbers, each divided by its degrees of freedom."""
    dtype = float_dtype("f", dtype)
    shape = common_shape("f", shape, dfnum, dfden)
    key_den, key_num = draw_keys(key)
    num = _draw_chisquare(key_num, dfnum, shape, dtype) / operand(dfnum, dtype, shape)
    return num / (_draw_chisquare(key_den, dfden, shape, dtype) / operand(dfden, dtype, shape))


@sampler()
def t(key: Any, df: Any, shape: Any = None, dtype: Any = None) -> Any:
    """Student's t distributed numbers with `df` degrees of freedom."""
    dtype = float_dtype("t", dtype)
    shape = common_shape("t", shape, df)
    key_normal, key_gamma = draw_keys(key)
    half = full(df, dtype, shape) / 2
    return draw_normal(key_normal, shape, dtype) * jnp.sqrt(half / draw_gamma(key_gamma, half, shape, dtype))


@sampler()
def generalized_normal(key: Any, p: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Numbers of density exp(-|x|**p) up to a factor."""
    return _draw_generalized_normal(key, p, as_shape(shape), float_dtype("generalized_normal", dtype))


def _draw_generalized_normal(key: Any, p: Any, shape: Shape, dtype: Any) -> Any:
    key_gamma, key_sign = draw_keys(key)
    power = jnp.asarray(1 / jnp.asarray(p, dtype), dtype)
    sizes = draw_gamma(key_gamma, power, shape, dtype)
    signs = 2 * draw_bernoulli(key_sign, 0.5, shape, dtypes.default_float()).astype(dtype) - 1
    return signs * sizes ** operand(power, dtype, shape)


@sampler("d")
def ball(key: Any, d: int, p: Any = 2, shape: Any = (), dtype: Any = None) -> Any:
    """Points uniform in the unit ball of the p-norm in `d` dimensions, along a last axis.

    Barthe, Guedon, Mendelson and Naor, "A probabilistic approach to the geometry of the l_p^n-ball",
    Annals of Probability 33 (2005).
    """
    dtype = float_dtype("ball", dtype)
    shape = as_shape(shape)
    key_point, key_radius = draw_keys(key)
    point = _draw_generalized_normal(key_point, p, (*shape, d), dtype)
    extra = draw_exponential(key_radius, shape, dtype)
    p = np.asarray(p, dtype) if isinstance(p, (int, float)) else jnp.asarray(p, dtype)
    norm = (jnp.sum(jnp.abs(point) ** p, axis=-1) + extra) ** (1 / p)
    return point / norm[..., None]
