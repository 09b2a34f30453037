"""`flash_attention`: the softmax of scores by values, for batches of heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anima import nn, numpy as jnp
from anima.core.array import Array
from anima.dropin.jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_kernel import SegmentIds


@dataclass(frozen=True)
class FlashBlockSizes:
    """Sizes of blocks on a TPU, of which nothing here makes use."""

    block_q: int
    block_k_major: int
    block_k: int
    block_b: int
    block_q_major_dkv: int | None = None
    block_k_major_dkv: int | None = None
    block_k_dkv: int | None = None
    block_q_dkv: int | None = None
    block_k_major_dq: int | None = None
    block_k_dq: int | None = None
    block_q_dq: int | None = None

    @classmethod
    def get_default(cls, batch_size: int, num_heads: int, q_seq_len: int, kv_len: int, d_model: int) -> FlashBlockSizes:
        """Blocks of 128."""
        return cls(128, 128, 128, 1, *[128] * 7)


BlockSizes = FlashBlockSizes


def flash_attention(q: Any, k: Any, v: Any, ab: Any = None, segment_ids: SegmentIds | None = None, *,
                    causal: bool = False, sm_scale: float = 1.0, block_sizes: FlashBlockSizes | None = None,
                    debug: bool = False) -> Array:
    """softmax(sm_scale * (q @ k.T + ab)) @ v, for each head.

    `q` is [batch, heads, queries, size], `k` and `v` [batch, heads, keys, size], the bias `ab` [batch, heads,
    queries, keys]; segments are [batch, queries] and [batch, keys]. A query sees the keys of its own segment, with
    causal=True those up to its own place.
    """
    mask = None if segment_ids is None else (segment_ids.q[:, :, None] == segment_ids.kv[:, None])[:, None]
    bias = None if ab is None else ab * sm_scale
    heads_last = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
    return jnp.swapaxes(nn.dot_product_attention(*heads_last, bias, mask, scale=sm_scale, is_causal=causal), 1, 2)


__all__ = ["BlockSizes", "SegmentIds", "flash_attention"]
