"""Kernels that JAX has written with pallas, which Keras and others import by name: beside sums written out."""

import numpy as np
import pytest

import anima as ax
import anima.numpy as jnp
from anima.dropin.jax.experimental.pallas.ops.tpu import splash_attention as splash
from anima.dropin.jax.experimental.pallas.ops.tpu.flash_attention import SegmentIds, flash_attention
from anima.dropin.jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from tests.dropin.test_dropin import under_jax

QUERIES, KEYS, SIZE = 7, 9, 4


def operands(heads, groups):
    draw = np.random.default_rng(3).standard_normal
    return (draw((heads, QUERIES, SIZE), np.float32), draw((groups, KEYS, SIZE), np.float32),
            draw((groups, KEYS, SIZE), np.float32))


def softmax_of(scores, values):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ values


def of_heads():
    shape = (QUERIES, KEYS)
    some = np.random.default_rng(0).random(shape) < 0.5
    some[:, 0] = True
    return splash.MultiHeadMask([
        splash.CausalMask(shape, offset=1), splash.LocalMask(shape, (2, None), 0) & splash.CausalMask(shape),
        splash.FullMask(shape), splash.NumpyMask(some) | masks.ChunkedCausalMask(shape, 3)])


def test_masks():
    q, k = np.arange(QUERIES)[:, None], np.arange(KEYS)
    some = of_heads().masks[3].left.array
    for found, expected in zip(of_heads()[:], [k <= q + 1, (k >= q - 2) & (k <= q), k >= 0 * q,
                                                some | ((q // 3 == k // 3) & (k <= q))], strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(of_heads().masks[0][2:4, 1:], (k <= q + 1)[2:4, 1:])
    assert splash.CausalMask((2, 3)) == splash.CausalMask((2, 3)) != splash.CausalMask((2, 3), 1)
    assert len({splash.LocalMask((2, 3), (1, None), 0), splash.LocalMask((2, 3), (1, None), 0)}) == 1
    np.testing.assert_array_equal(splash.make_local_attention_mask((QUERIES, KEYS), (1, 2)),
                                  (k >= q - 1) & (k <= q + 2))
    assert 0.2 < splash.make_random_mask((100, 100), 0.75, 1).mean() < 0.3
    with pytest.raises(NotImplementedError, match="truth value"):
        bool(splash.FullMask((2, 2)))
    with pytest.raises(ValueError, match="one shape"):
        splash.FullMask((2, 2)) & splash.FullMask((2, 3))
    with pytest.raises(ValueError, match="boolean array"):
        splash.NumpyMask(np.ones((2, 2)))
    with pytest.raises(ValueError, match="positive"):
        masks.ChunkedCausalMask((2, 2), 0)


@pytest.mark.parametrize("groups", [4, 2, 1])
def test_splash_attention(groups):
    q, k, v = operands(4, groups)
    segments = splash.SegmentIds(np.arange(QUERIES) // 4, np.arange(KEYS) // 4)
    kernel = splash.make_splash_mha(of_heads(), head_shards=1, q_seq_shards=1, save_residuals=True,
                                    attn_logits_soft_cap=2.0)
    out, (lse,) = ax.jit(kernel)(q, k, v, segments)
    keys, values = (np.repeat(x, 4 // groups, axis=0) for x in (k, v))
    scores = 2 * np.tanh(q @ keys.transpose(0, 2, 1) / 2)
    seen = of_heads()[:] & (segments.q[:, None] == segments.kv)
    scores = np.where(seen, scores, -0.7 * np.finfo(np.float32).max)
    np.testing.assert_allclose(out, softmax_of(scores, values), rtol=1e-5, atol=1e-6)
    some = seen.any(-1)
    np.testing.assert_allclose(lse[some], np.log(np.sum(np.exp(scores), -1)[some]), rtol=1e-5, atol=1e-6)


def test_splash_attention_with_one_group_and_sinks():
    q, k, v = operands(4, 1)
    kernel = splash.make_splash_mqa(np.ones((4, QUERIES, KEYS), bool), head_shards=1, q_seq_shards=1)
    sinks = np.array([0.5, -1, 2, 0], np.float32)
    scores = q @ k[0].T
    weights = np.exp(scores) / (np.exp(scores).sum(-1, keepdims=True) + np.exp(sinks)[:, None, None])
    np.testing.assert_allclose(kernel(q, k[0], v[0], sinks=sinks), weights @ v[0], rtol=1e-5, atol=1e-6)
    half = kernel(jnp.asarray(q, jnp.bfloat16), k[0].astype(jnp.bfloat16), v[0].astype(jnp.bfloat16))
    assert half.dtype == jnp.bfloat16
    with pytest.raises(ValueError, match="without the groups"):
        kernel(q, k, v)
    with pytest.raises(ValueError, match="does not fit"):
        kernel(q[:3], k[0], v[0])
    with pytest.raises(ValueError, match="heads, queries, keys"):
        splash.make_splash_mha(splash.FullMask((2, 2)), head_shards=1, q_seq_shards=1)


def test_flash_attention():
    q, k, v = (x[None] for x in operands(4, 4))
    bias = np.random.default_rng(1).standard_normal((1, 4, QUERIES, KEYS)).astype(np.float32)
    segments = SegmentIds(np.arange(QUERIES)[None] // 4, np.arange(KEYS)[None] // 4)
    found = flash_attention(q, k, v, bias, segments, causal=True, sm_scale=0.5)
    seen = (segments.q[0][:, None] == segments.kv[0]) & np.tri(QUERIES, KEYS, dtype=bool)
    scores = np.where(seen, (q @ k.swapaxes(2, 3) + bias) * 0.5, -np.inf)
    np.testing.assert_allclose(found, softmax_of(scores, v), rtol=1e-5, atol=1e-6)


def test_as_libraries_import_them():
    assert under_jax("""
import jax.experimental.pallas as pl
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask
from jax.experimental.pallas.ops.tpu import flash_attention
print(pl.BlockSpec.__name__, splash_attention_kernel.BlockSizes.get_default().block_q,
      splash_attention_kernel.BlockSizes.get_default().has_backward_blocks)
""") == "BlockSpec 128 True\n"
