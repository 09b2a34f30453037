"""Attention: each query reads from the values, by how much its key agrees with theirs."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

import anima.numpy as jnp
from anima.core import dtypes
from anima.core.dims import Dim
from anima.nn.normalize import largest, logsumexp, softmax

_FAR_BELOW = -0.7 * float(np.finfo(np.float32).max)  # finite, so that a row that is all masked has no NaN


_PART = 256    # queries of a part, at least, of those that do not see all keys
_PARTS = 4     # of queries, at most: each is a program of its own ...
_ALIKE = 16    # ... but where all of them see as many keys


def _windows(local_window_size: Any, is_causal: bool) -> tuple[int | None, int | None]:
    """How far a query sees to the left and to the right; None: to the end."""
    if local_window_size is None:
        return None, 0 if is_causal else None
    pair = isinstance(local_window_size, int)
    left, right = (local_window_size, local_window_size) if pair else local_window_size
    return left, min(right, 0) if is_causal else right


def _parts(queries: int, keys: int, left: int | None, right: int | None) -> list[tuple[slice, slice]]:
    """Queries in parts, each with the keys that any of them sees: every query sees one, or there is one part."""
    everything = left is right is None or isinstance(queries, Dim) or isinstance(keys, Dim)
    if everything or min(left or 0, right or 0) < 0 or queries > keys:
        return [(slice(0, queries), slice(0, keys))]
    count = max(1, min(_PARTS if left is None or right is None else _ALIKE, queries // _PART))
    ends = [queries * k // count for k in range(count + 1)]
    return [(slice(a, b), slice(0 if left is None else max(0, a - left),
                                keys if right is None else min(keys, b + right))) for a, b in pairwise(ends)]


def _visible(rows: slice, columns: slice, left: int | None, right: int | None, lengths_q: Any, lengths_kv: Any
             ) -> list[Any]:
    """Masks of the pairs (query, key), each broadcasting to [batch, heads, queries, keys]."""
    queries, keys = jnp.arange(rows.start, rows.stop), jnp.arange(columns.start, columns.stop)
    distance = keys[None, :] - queries[:, None]
    masks = []
    if right is not None:
        masks.append((distance <= right)[None, None])
    if left is not None:
        masks.append((distance >= -left)[None, None])
    if lengths_q is not None:
        masks.append((queries[None, :] < jnp.asarray(lengths_q, queries.dtype)[:, None])[:, None, :, None])
    if lengths_kv is not None:
        masks.append((keys[None, :] < jnp.asarray(lengths_kv, keys.dtype)[:, None])[:, None, None, :])
    return masks


def dot_product_attention(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, *,
                          scale: float | None = None, is_causal: bool = False, query_seq_lengths: Any = None,
                          key_value_seq_lengths: Any = None, local_window_size: Any = None,
                          implementation: str | None = None, return_residual: bool = False) -> Any:
    """softmax(query @ key.T * scale + bias) @ value, for each head (Vaswani et al., 2017).

    `query` is [batch, queries, heads, size], `key` and `value` are [batch, keys, groups, size]; batch may be
    left out of all three. Each of the `groups` serves heads / groups heads. `bias` and the boolean `mask`
    broadcast to [batch, heads, queries, keys]. Weights are computed in float32. With return_residual=True
    the result is a pair with the logsumexp of the scores, [batch, queries, heads]. Scores of pairs that a long query
    with is_causal or local_window_size alone does not see are mostly not computed.
    """
    if implementation not in (None, "xla"):
        kind = NotImplementedError if implementation == "cudnn" else ValueError
        raise kind(f"dot_product_attention: implementation={implementation!r} is not supported.")
    query, key, value = (jnp.asarray(x) for x in (query, key, value))
    if query.ndim not in (3, 4) or key.ndim != query.ndim or value.ndim != query.ndim:
        raise ValueError("dot_product_attention: query, key and value must all have 3 or all have 4 dimensions, "
                         f"got shapes {query.shape}, {key.shape}, {value.shape}")
    batched = query.ndim == 4
    if not batched:
        query, key, value = query[None], key[None], value[None]
    _check_agreement(query, key, value)
    repeats = query.shape[2] // key.shape[2]
    if repeats > 1:
        key, value = jnp.repeat(key, repeats, axis=2), jnp.repeat(value, repeats, axis=2)
    work = jnp.float64 if query.dtype == np.float64 else jnp.float32
    shape = (len(query), query.shape[2], query.shape[1], key.shape[1])
    bias = None if bias is None else _rank4("bias", bias, shape).astype(work)
    query_seq_lengths = _lengths("query_seq_lengths", query_seq_lengths, len(query))
    key_value_seq_lengths = _lengths("key_value_seq_lengths", key_value_seq_lengths, len(query))
    window, given = _windows(local_window_size, is_causal), [] if mask is None else [_mask4(mask, shape)]
    scale = 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale

    def attend(rows: slice, columns: slice) -> tuple[Any, Any]:
        """The result for some queries, which see no other keys than these, and their scores."""
        scores = jnp.einsum("btnh,bsnh->bnts", query[:, rows], key[:, columns], preferred_element_type=work)
        scores = scores * np.asarray(scale, scores.dtype)
        if bias is not None:
            scores = scores + bias
        for one in (*given, *_visible(rows, columns, *window, query_seq_lengths, key_value_seq_lengths)):
            scores = jnp.where(one, scores, np.asarray(_FAR_BELOW, scores.dtype))
        return _read(scores, value[:, columns]), scores

    everywhere = bias is None and not given and query_seq_lengths is None and key_value_seq_lengths is None
    parts = _parts(*shape[2:], *window) if everywhere else [(slice(0, shape[2]), slice(0, shape[3]))]
    outs, scores = zip(*(attend(*part) for part in parts), strict=True)
    out = jnp.concatenate(outs, axis=1)
    if query_seq_lengths is not None:
        places = jnp.arange(out.shape[1])
        kept = places[None, :] < jnp.asarray(query_seq_lengths, places.dtype)[:, None]
        out = jnp.where(kept[:, :, None, None], out, 0)
    out = out.astype(query.dtype)
    if not batched:
        out = out[0]
    if not return_residual:
        return out
    residual = jnp.concatenate([jnp.swapaxes(logsumexp(s, axis=-1), 1, 2) for s in scores], axis=1)
    return out, residual if batched else residual[0]


def _read(scores: Any, value: Any) -> Any:
    """softmax(scores) @ value, [batch, queries, heads, size]. There are fewer numbers to divide after the product than
    before it. But where weights are rounded to a narrow type, errors of derivatives cancel only if it is the divided
    ones that are."""
    if value.dtype != scores.dtype or value.shape[1] == 0:
        return jnp.einsum("bnts,bsnh->btnh", softmax(scores).astype(value.dtype), value)
    weights = jnp.exp(scores - largest(scores, -1))
    return jnp.einsum("bnts,bsnh->btnh", weights, value) / jnp.einsum("bnts->btn", weights)[..., None]


def _check_agreement(query: Any, key: Any, value: Any) -> None:
    shapes = f"got shapes {query.shape}, {key.shape}, {value.shape}"
    if value.shape != key.shape or query.shape[2] % key.shape[2] or query.shape[3] != key.shape[3]:
        raise ValueError("dot_product_attention: the number of heads of query must be a multiple of that of key and "
                         f"value, other dimensions equal; {shapes}")
    if len(query) != len(key):
        raise ValueError(f"dot_product_attention: query, key and value must be batches of one size; {shapes}")
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError("dot_product_attention: query, key and value must have one dtype, got "
                         f"{query.dtype}, {key.dtype}, {value.dtype}")


def _lengths(name: str, lengths: Any, batch: int) -> Any:
    if lengths is None:
        return None
    lengths = jnp.asarray(lengths)
    if lengths.shape != (batch,) or lengths.dtype != np.int32:
        raise ValueError(f"dot_product_attention: {name} must be int32 of shape {(batch,)}, got {lengths.dtype} of "
                         f"shape {lengths.shape}")
    return lengths


def _mask4(mask: Any, shape: tuple[int, ...]) -> Any:
    mask = jnp.asarray(mask)
    if mask.dtype != dtypes.bool_:
        raise ValueError(f"dot_product_attention: mask must be boolean, got {mask.dtype}")
    return _rank4("mask", mask, shape)


def _rank4(name: str, x: Any, shape: tuple[int, ...]) -> Any:
    x = jnp.asarray(x)
    if x.ndim > 4:
        raise ValueError(f"dot_product_attention: {name} must have 4 dimensions or less, got shape {x.shape}")
    x = x.reshape((1,) * (4 - x.ndim) + x.shape)
    if any(n not in (1, whole) for n, whole in zip(x.shape, shape, strict=True)):
        raise TypeError(f"dot_product_attention: {name} of shape {x.shape} does not broadcast to [batch, heads, "
                        f"queries, keys], which is {shape}")
    return x
