"""Distributions that are a formula in uniform, normal or exponential numbers.

Most are the inverse of a distribution function at a uniform number. Where 0 or 1 would give an infinity,
the uniform numbers start at the least positive number instead of 0.

    exponential  -log(1 - u)        gumbel    -log(-log(u))        logistic  log(u) - log(1 - u)
    laplace      sign(v) log(1-|v|) cauchy    tan(pi (u - 1/2))    pareto    exp(exponential / b)
"""

from __future__ import annotations

from typing import Any

import numpy as np

import anima.numpy as jnp
from anima.config import config
from anima.core import dtypes
from anima.core.avals import Shape, canonicalize_axis
from anima.core.trace import aval_of
from anima.ops import elementwise as el, special
from anima.ops.broadcast import as_shape
from anima.ops.sort import top_k
from anima.random.draws import (
    common_shape,
    draw_bernoulli,
    draw_normal,
    draw_uniform,
    float_dtype,
    full,
    operand,
    sampler,
    two_uniforms,
)
from anima.random.keys import draw_keys


def _tiny(dtype: Any) -> Any:
    return np.asarray(dtypes.finfo(dtype).tiny, dtype)


def draw_exponential(key: Any, shape: Shape, dtype: Any) -> Any:
    """Exponential numbers of mean 1."""
    return el.neg(el.log1p(el.neg(draw_uniform(key, shape, dtype))))


def draw_gumbel(key: Any, shape: Shape, dtype: Any, mode: str | None = None) -> Any:
    """Standard Gumbel numbers; mode "high" keeps all bits of those far below the mean."""
    if mode not in (None, "low", "high"):
        raise ValueError(f"Must provide valid mode for gumbel got: {mode}")
    if mode is None and config.high_dynamic_range_gumbel:
        mode = "high"
    if mode != "high":
        return el.neg(el.log(el.neg(el.log(draw_uniform(key, shape, dtype, _tiny(dtype), 1.0)))))
    coarse, fine = two_uniforms(key, shape, dtype)
    # Close to 0 the coarse number has room below its last bit: the fine one fills it.
    eps = np.asarray(dtypes.finfo(dtype).eps, dtype)
    refined = el.add(el.add(coarse, el.mul(eps, fine)), _tiny(dtype))
    u = el.select(el.ge(coarse, np.asarray(0.5, dtype)), coarse, refined)
    return el.neg(el.log(el.neg(el.log1p(el.neg(u)))))


@sampler()
def exponential(key: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Exponentially distributed numbers of mean 1."""
    return draw_exponential(key, as_shape(shape), float_dtype("exponential", dtype))


@sampler()
def gumbel(key: Any, shape: Any = (), dtype: Any = None, mode: str | None = None) -> Any:
    """Standard Gumbel distributed numbers; mode="high" resolves the lower tail, with twice the bits."""
    return draw_gumbel(key, as_shape(shape), float_dtype("gumbel", dtype), mode)


@sampler()
def laplace(key: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Standard Laplace distributed numbers."""
    dtype = float_dtype("laplace", dtype)
    low = np.nextafter(np.asarray(-1, dtype), np.asarray(0, dtype))
    u = draw_uniform(key, as_shape(shape), dtype, low, 1.0)
    return el.mul(el.sign(u), el.log1p(el.neg(el.abs(u))))


@sampler()
def logistic(key: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Standard logistic distributed numbers."""
    dtype = float_dtype("logistic", dtype)
    u = draw_uniform(key, as_shape(shape), dtype, _tiny(dtype), 1.0)
    return el.sub(el.log(u), el.log1p(el.neg(u)))


@sampler()
def cauchy(key: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Standard Cauchy distributed numbers."""
    dtype = float_dtype("cauchy", dtype)
    u = draw_uniform(key, as_shape(shape), dtype, np.asarray(dtypes.finfo(dtype).eps, dtype), 1.0)
    return el.tan(el.mul(np.asarray(np.pi, dtype), el.sub(u, np.asarray(0.5, dtype))))


@sampler()
def truncated_normal(key: Any, lower: Any, upper: Any, shape: Any = None, dtype: Any = None) -> Any:
    """Standard normal numbers given that they lie in (lower, upper); differentiable in the bounds."""
    dtype = float_dtype("truncated_normal", dtype)
    shape = common_shape("truncated_normal", shape, lower, upper)
    root = np.sqrt(2).astype(dtype)
    low, high = el.convert_element_type(lower, dtype), el.convert_element_type(upper, dtype)
    u = draw_uniform(key, shape, dtype, special.erf(el.div(low, root)), special.erf(el.div(high, root)))
    out = el.mul(root, special.erf_inv(u))
    infinity = np.asarray(np.inf, dtype)
    inside = [el.nextafter(el.stop_gradient(low), full(infinity, dtype, low.shape)),
              el.nextafter(el.stop_gradient(high), full(el.neg(infinity), dtype, high.shape))]
    return el.min(full(inside[1], dtype, shape), el.max(full(inside[0], dtype, shape), out))


@sampler()
def maxwell(key: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Maxwell distributed numbers of scale 1: lengths of standard normal vectors of dimension 3."""
    return _draw_maxwell(key, as_shape(shape), float_dtype("maxwell", dtype))


def _draw_maxwell(key: Any, shape: Shape, dtype: Any) -> Any:
    vectors = draw_normal(key, (*shape, 3), dtype)
    return jnp.sqrt(jnp.sum(vectors * vectors, axis=-1))


@sampler()
def double_sided_maxwell(key: Any, loc: Any, scale: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Numbers `loc + scale * sign * maxwell` with a random sign."""
    dtype = float_dtype("double_sided_maxwell", dtype)
    shapes = [aval_of(loc).shape, aval_of(scale).shape]
    shape = (*as_shape(shape), *jnp.broadcast_shapes(*shapes))
    key_length, key_sign = draw_keys(key)
    lengths = _draw_maxwell(key_length, shape, dtype) * _signs(key_sign, shape, dtype)
    return lengths * operand(scale, dtype, shape) + operand(loc, dtype, shape)


def _signs(key: Any, shape: Shape, dtype: Any) -> Any:
    return 2 * draw_bernoulli(key, 0.5, shape, dtypes.default_float()).astype(dtype) - 1


@sampler()
def rayleigh(key: Any, scale: Any, shape: Any = None, dtype: Any = None) -> Any:
    """Rayleigh distributed numbers of the given scale: lengths of normal vectors of dimension 2.

    Differs from JAX: the uniform number 0, which would give an infinity, is taken as half the next one.
    """
    dtype = float_dtype("rayleigh", dtype)
    shape = common_shape("rayleigh", shape, scale)
    u = draw_uniform(key, shape, dtype)
    u = jnp.where(u == 0, np.asarray(dtypes.finfo(dtype).eps / 2, dtype), u)
    return operand(scale, dtype, shape) * jnp.sqrt(jnp.log(u) * -2)


@sampler()
def pareto(key: Any, b: Any, shape: Any = None, dtype: Any = None) -> Any:
    """Pareto distributed numbers with exponent `b`: at least 1, P(X > x) = x**-b."""
    dtype = float_dtype("pareto", dtype)
    shape = common_shape("pareto", shape, b)
    return jnp.exp(draw_exponential(key, shape, dtype) / operand(b, dtype, shape))


@sampler()
def lognormal(key: Any, sigma: Any = 1.0, shape: Any = None, dtype: Any = None) -> Any:
    """exp(sigma * normal)."""
    dtype = float_dtype("lognormal", dtype)
    shape = common_shape("lognormal", shape, sigma)
    return jnp.exp(draw_normal(key, shape, dtype) * operand(sigma, dtype, shape))


@sampler()
def weibull_min(key: Any, scale: Any, concentration: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Weibull distributed numbers: `scale * exponential ** (1 / concentration)`.

    The exponential numbers are of `shape`, and broadcast against the parameters.
    """
    dtype = float_dtype("weibull_min", dtype)
    power, scale = (el.convert_element_type(x, dtype) for x in (1 / jnp.asarray(concentration), scale))
    return draw_exponential(key, as_shape(shape), dtype) ** power * scale


@sampler()
def triangular(key: Any, left: Any, mode: Any, right: Any, shape: Any = None, dtype: Any = None) -> Any:
    """Numbers of triangular density on [left, right] with its peak at `mode`."""
    dtype = float_dtype("triangular", dtype)
    shape = common_shape("triangular", shape, left, mode, right)
    low, peak, high = (full(x, dtype, shape) for x in (left, mode, right))
    u = draw_uniform(key, shape, dtype)
    rising = low + jnp.sqrt(u * (high - low) * (peak - low))
    falling = high - jnp.sqrt((1 - u) * (high - low) * (high - peak))
    return jnp.where(u < (peak - low) / (high - low), rising, falling)


@sampler()
def wald(key: Any, mean: Any, shape: Any = None, dtype: Any = None) -> Any:
    """Wald (inverse Gaussian) numbers of the given mean and scale 1.

    Michael, Schucany and Haas, "Generating random variates using transformations with multiple roots",
    The American Statistician 30 (1976).
    """
    dtype = float_dtype("wald", dtype)
    shape = common_shape("wald", shape, mean)
    key_normal, key_uniform = draw_keys(key)
    mean = full(mean, dtype, shape)
    v, u = draw_normal(key_normal, shape, dtype), draw_uniform(key_uniform, shape, dtype)
    y = v**2
    root = jnp.sqrt(4 * mean * y + mean**2 * y**2)
    x = mean + mean**2 * y / 2 - mean / 2 * root
    return jnp.where(u <= mean / (mean + x), x, mean**2 / x)


@sampler("axis", "replace")
def categorical(key: Any, logits: Any, axis: int = -1, shape: Any = None, replace: bool = True,
                mode: str | None = None) -> Any:
    """Indices along `axis`, drawn with probabilities softmax(logits): the place of the largest
    of `logits + gumbel` (the Gumbel-max trick).

    `shape` must end with what the other dimensions of `logits` broadcast to, and is just these by default. With
    replace=False the leading dimensions of `shape` hold distinct indices.
    """
    logits = jnp.asarray(logits)
    if not dtypes.issubdtype(logits.dtype, np.floating):
        logits = logits.astype(dtypes.default_float())
    axis = canonicalize_axis(axis, logits.ndim)
    rest = logits.shape[:axis] + logits.shape[axis + 1:]
    wanted = rest if shape is None else as_shape(shape)
    lead, batch = wanted[:max(len(wanted) - len(rest), 0)], wanted[max(len(wanted) - len(rest), 0):]
    if len(batch) != len(rest) or any(size not in (1, to) for size, to in zip(rest, batch, strict=True)):
        raise ValueError(f"categorical got incompatible shapes for broadcasting: {wanted}, {rest}.")
    if not replace:
        logits = jnp.broadcast_to(logits, (*batch[:axis], logits.shape[axis], *batch[axis:]))
        return _without_replacement(key, logits, axis, lead, mode)
    noise = draw_gumbel(key, (*lead, *batch[:axis], logits.shape[axis], *batch[axis:]), logits.dtype, mode)
    return jnp.argmax(noise + logits, axis=axis + len(lead))


def _without_replacement(key: Any, logits: Any, axis: int, lead: Shape, mode: str | None) -> Any:
    count, total = int(np.prod(lead, dtype=np.int64)), logits.shape[axis]
    if count > total:
        raise ValueError(f"Number of samples without replacement ({count}) cannot exceed number of categories "
                         f"({total}).")
    scores = jnp.moveaxis(draw_gumbel(key, logits.shape, logits.dtype, mode) + logits, axis, -1)
    best = top_k(scores, count)[1]
    return jnp.moveaxis(best, -1, 0).reshape(*lead, *scores.shape[:-1])
