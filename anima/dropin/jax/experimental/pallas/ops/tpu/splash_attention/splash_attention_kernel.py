"""Attention of one sequence under a known mask: scores, and weights, in float32."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from anima import nn, numpy as jnp
from anima.dropin.jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

DEFAULT_MASK_VALUE = -0.7 * float(np.finfo(np.float32).max)


class SegmentIds(NamedTuple):
    """The segments of packed sequences, `q` [queries] and `kv` [keys]: a query sees the keys of its own."""

    q: Any
    kv: Any


class QKVLayout(enum.IntEnum):
    """Which axis of an operand varies fastest on a TPU."""

    HEAD_DIM_MINOR = enum.auto()
    SEQ_MINOR = enum.auto()


@dataclass(frozen=True)
class BlockSizes:
    """Sizes of blocks on a TPU, of which nothing here makes use."""

    block_q: int
    block_kv: int
    block_kv_compute: int | None = None
    block_q_dkv: int | None = None
    block_kv_dkv: int | None = None
    block_kv_dkv_compute: int | None = None
    block_q_dq: int | None = None
    block_kv_dq: int | None = None
    use_fused_bwd_kernel: bool = False
    q_layout: QKVLayout = QKVLayout.HEAD_DIM_MINOR
    k_layout: QKVLayout = QKVLayout.HEAD_DIM_MINOR
    v_layout: QKVLayout = QKVLayout.HEAD_DIM_MINOR

    @property
    def has_backward_blocks(self) -> bool:
        """Whether sizes for the derivative are given."""
        return None not in (self.block_q_dkv, self.block_kv_dkv, self.block_kv_dkv_compute)

    @classmethod
    def get_default(cls) -> BlockSizes:
        """Blocks of 128."""
        return cls(*[128] * 8)


class SplashAttentionKernel:
    """`kernel(q, k, v, segment_ids=None, sinks=None)`, made by `make_splash_mha` and `make_splash_mqa`.

    `q` is [heads, queries, size], `k` and `v` [groups, keys, size], or [keys, size] with one group for all heads
    (mqa); scores are not scaled. A sink is one more score of each head, [heads], whose weight is lost. The result is
    [heads, queries, size] of the type of `q`; with save_residuals=True a pair with `(logsumexp,)` of the scores,
    [heads, queries].
    """

    def __init__(self, mask: Any, *, is_mqa: bool, save_residuals: bool = False,
                 mask_value: float = DEFAULT_MASK_VALUE, attn_logits_soft_cap: float | None = None):
        if len(mask.shape) != 3:
            raise ValueError(f"the mask must be [heads, queries, keys], got the shape {mask.shape}.")
        self.mask = mask[:] if isinstance(mask, masks.Mask) else mask
        self.is_mqa, self.save_residuals = is_mqa, save_residuals
        self.mask_value, self.soft_cap = mask_value, attn_logits_soft_cap

    def __call__(self, q: Any, k: Any, v: Any, segment_ids: SegmentIds | None = None, sinks: Any = None) -> Any:
        q, k, v = (jnp.asarray(x) for x in (q, k, v))
        if self.is_mqa:
            k, v = k[None], v[None]
        if (q.ndim, k.ndim) != (3, 3) or v.shape[:2] != k.shape[:2] or len(q) % len(k) or q.shape[2] != k.shape[2]:
            raise ValueError("attention needs q [heads, queries, size] and k, v [groups, keys, size]"
                             f"{' without the groups (mqa)' if self.is_mqa else ''}, heads a multiple of groups; got "
                             f"{q.shape}, {k.shape} and {v.shape}.")
        k, v = (jnp.repeat(x, len(q) // len(k), axis=0) for x in (k, v))
        scores = jnp.einsum("hsd,htd->hst", q, k, preferred_element_type=np.float32)
        if self.mask.shape != scores.shape:
            raise ValueError(f"a mask of the shape {self.mask.shape} does not fit scores of {scores.shape}.")
        if self.soft_cap is not None:
            scores = self.soft_cap * jnp.tanh(scores / self.soft_cap)
        seen = self.mask
        if segment_ids is not None:
            seen = seen & (segment_ids.q[:, None] == segment_ids.kv)
        scores = jnp.where(seen, scores, self.mask_value)
        if sinks is not None:
            scores = jnp.concatenate(
                [scores, jnp.broadcast_to(sinks.astype(np.float32)[:, None, None], (*scores.shape[:2], 1))], axis=-1)
        weights = nn.softmax(scores, axis=-1)[..., :k.shape[1]]
        out = jnp.einsum("hst,htd->hsd", weights, v, preferred_element_type=np.float32).astype(q.dtype)
        return (out, (nn.logsumexp(scores, axis=-1),)) if self.save_residuals else out


def _make(mask: Any, *, is_mqa: bool, block_sizes: BlockSizes | None = None, head_shards: int = 1,
          q_seq_shards: int = 1, downcast_smem_data: bool = True, residual_checkpoint_name: str | None = None,
          interpret: bool = False, backward_impl: str = "vanilla", **options: Any) -> SplashAttentionKernel:
    """A kernel for a mask [heads, queries, keys]: a `MultiHeadMask` or an array. What says how a TPU should do it is
    of no importance here."""
    return SplashAttentionKernel(mask, is_mqa=is_mqa, **options)


make_splash_mha = make_splash_mha_single_device = make_masked_mha_reference = partial(_make, is_mqa=False)
make_splash_mqa = make_splash_mqa_single_device = make_masked_mqa_reference = partial(_make, is_mqa=True)
