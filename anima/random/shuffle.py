"""Permutations and choices from a finite set.

To shuffle, random words are drawn as sort keys; equal words would favour the order that was there, so
the sort is repeated until a tie in every round is out of the question.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import anima.numpy as jnp
from anima.core import dtypes
from anima.core.avals import canonicalize_axis
from anima.core.trace import is_array_like
from anima.ops.broadcast import as_array, as_shape, broadcasted_iota
from anima.ops.sort import sort_key_val, top_k
from anima.random.distributions import draw_gumbel
from anima.random.draws import draw_bits, draw_randint, draw_uniform, sampler
from anima.random.keys import draw_keys, is_key


def _shuffled(key: Any, x: Any, axis: int) -> Any:
    """`x` with its elements along `axis` shuffled, each line on its own."""
    if is_key(x):  # keys are no operands of a sort: their places are
        places = broadcasted_iota(np.dtype(np.int32), tuple(x.shape), axis)
        return jnp.take_along_axis(x, _shuffled(key, places, axis), axis)
    # With words of 32 bits the chance of ties in all rounds is below size ** -3.
    rounds = math.ceil(3 * math.log(max(1, x.size)) / math.log(2**32 - 1))
    for _ in range(rounds):
        key, subkey = draw_keys(key)
        _, x = sort_key_val(draw_bits(subkey, 32, tuple(x.shape)), x, dimension=axis)
    return x


def _permuted(key: Any, x: Any, axis: int) -> Any:
    """`x` with its slices along `axis` in random order; an int stands for arange."""
    if not x.ndim:
        return _shuffled(key, jnp.arange(int(x)), 0)
    if x.ndim == 1:
        return _shuffled(key, x, 0)
    return jnp.take(x, _shuffled(key, jnp.arange(x.shape[axis]), 0), axis=axis, unique_indices=True)


@sampler(is_exact=True)
def permutation(key: Any, x: Any, axis: int = 0, independent: bool = False) -> Any:
    """`x` with its slices along `axis` in random order, or a permutation of range(x) for an int.

    With independent=True each line along `axis` is shuffled on its own.

    >>> anima.random.permutation(anima.random.key(0), 10)
    Array([2, 7, 9, 6, 0, 8, 1, 3, 4, 5], dtype=int32)
    """
    if not is_array_like(x):
        raise TypeError(f"permutation requires ndarray or scalar arguments, got {type(x)} at position 0.")
    x = as_array(x)
    if not x.ndim:
        if not dtypes.issubdtype(x.dtype, np.integer):
            raise TypeError("x must be an integer or at least 1-dimensional")
        canonicalize_axis(axis, 1)
        return _permuted(key, x, 0)
    axis = canonicalize_axis(axis, x.ndim)
    return _shuffled(key, x, axis) if independent else _permuted(key, x, axis)


@sampler("a", "axis", "replace")
def choice(key: Any, a: Any, shape: Any = (), replace: bool = True, p: Any = None, axis: int = 0,
           mode: str | None = None) -> Any:
    """Draws from `a` along `axis`, or from range(a) for an int: an array of `shape` of them.

    `p` are probabilities (they sum to 1), uniform by default. ValueError if more are asked for than
    there are with replace=False.
    """
    if not is_array_like(a):
        raise TypeError(f"choice requires ndarray or scalar arguments, got {type(a)} at position 0.")
    shape = as_shape(shape)
    a = as_array(a)
    axis = canonicalize_axis(axis, a.ndim) if a.ndim else 0
    total = a.shape[axis] if a.ndim else int(a)
    count = math.prod(shape)
    if count and total <= 0:
        raise ValueError("a must be greater than 0 unless no samples are taken")
    if not replace and count > total:
        raise ValueError(f"Cannot take a larger sample (size {count}) than population (size {total}) when "
                         "'replace=False'")
    out_shape = a.shape[:axis] + shape + a.shape[axis + 1:]
    if p is None and not replace:
        index: Any = (slice(None),) * axis + (slice(count),)
        return jnp.reshape(_permuted(key, a, axis)[index], out_shape)
    if p is None:
        indices = draw_randint(key, shape, 0, total, dtypes.default_int()) if count else jnp.zeros(shape, int)
    else:
        indices = _weighted(key, p, total, shape, replace, mode)
    if not a.ndim:
        return indices
    return jnp.reshape(jnp.take(a, indices.ravel(), axis=axis), out_shape)


def _weighted(key: Any, p: Any, total: int, shape: tuple[int, ...], replace: bool, mode: str | None) -> Any:
    """Indices drawn with probabilities `p`."""
    p = jnp.asarray(p)
    p = p.astype(dtypes.to_inexact(p.dtype))
    if p.shape != (total,):
        raise ValueError("p must be None or a 1D vector with the same size as a.shape[axis]. "
                         f"p has shape {p.shape} and a.shape[axis] is {total}.")
    if replace and total:
        sums = jnp.cumsum(p)
        return jnp.searchsorted(sums, sums[-1] * (1 - draw_uniform(key, shape, p.dtype)))
    scores = draw_gumbel(key, (total,), p.dtype, mode) + jnp.log(p)
    return top_k(scores, math.prod(shape))[1].reshape(shape)
