"""dot_product_attention against a loop over batch, heads and queries in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import nn

RNG = np.random.default_rng(0)
B, T, S, N, K, H = 2, 5, 7, 4, 2, 3
Q, KEY, VALUE = (RNG.normal(size=s).astype(np.float32) for s in ((B, T, N, H), (B, S, K, H), (B, S, K, H)))
BIAS = RNG.normal(size=(1, N, T, S)).astype(np.float32)
MASK = RNG.random((B, 1, T, S)) < 0.7


def reference(allowed: np.ndarray, bias: np.ndarray | None = None, scale: float | None = None) -> np.ndarray:
    out = np.zeros((B, T, N, H))
    for b in range(B):
        for t in range(T):
            for h in range(N):
                group = h // (N // K)
                scores = KEY[b, :, group].astype(np.float64) @ Q[b, t, h] * (H**-0.5 if scale is None else scale)
                if bias is not None:
                    scores = scores + bias[0, h, t]
                seen = np.broadcast_to(allowed, (B, N, T, S))[b, h, t]
                weights = np.where(seen, np.exp(scores - scores.max()), 0) if seen.any() else np.ones(S)
                out[b, t, h] = weights / weights.sum() @ VALUE[b, :, group]
    return out


I, J = np.arange(T)[:, None], np.arange(S)
CASES: list[tuple[dict[str, Any], np.ndarray]] = [
    ({}, np.ones((T, S), bool)),
    ({"mask": MASK}, MASK),
    ({"is_causal": True}, J <= I),
    ({"local_window_size": 1}, np.abs(J - I) <= 1),
    ({"local_window_size": (2, 0)}, (J - I <= 0) & (J - I >= -2)),
    ({"key_value_seq_lengths": np.array([3, 7])}, (np.array([3, 7])[:, None] > J)[:, None, None]),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_masks(number: int) -> None:
    options, allowed = CASES[number]
    out = nn.dot_product_attention(Q, KEY, VALUE, **options)
    np.testing.assert_allclose(out, reference(allowed), rtol=2e-5, atol=1e-6)


def masked(q: Any, k: Any, v: Any, seen: Any) -> Any:
    return nn.dot_product_attention(q, k, v, mask=seen[None, None], return_residual=True)


# Compiled once for all windows, as the mask is an argument.
masked_gradients = anima.jit(anima.grad(lambda *x: sum((y ** 2).sum() for y in masked(*x)), (0, 1, 2)))


@pytest.mark.parametrize("options", [
    {"is_causal": True}, {"local_window_size": 100}, {"local_window_size": (300, 0)},
    {"local_window_size": (0, 40), "is_causal": True}, {"local_window_size": (30, -20)}], ids=str)
@pytest.mark.parametrize(("queries", "keys"), [(1024, 1024), (1030, 1100), (1100, 1030), (511, 600)])
def test_long_sequences_in_parts(options: dict[str, Any], queries: int, keys: int) -> None:
    q, k, v = (RNG.normal(size=(1, n, 1, 4)).astype(np.float32) for n in (queries, keys, keys))
    window = options.get("local_window_size", (queries + keys, queries + keys))
    left, right = (window, window) if isinstance(window, int) else window
    distance = np.arange(keys) - np.arange(queries)[:, None]
    seen = (distance >= -left) & (distance <= (min(right, 0) if options.get("is_causal") else right))

    def attend(q: Any, k: Any, v: Any) -> Any:
        return nn.dot_product_attention(q, k, v, **options, return_residual=True)

    for got, want in zip(attend(q, k, v), masked(q, k, v, seen), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    gradients = anima.jit(anima.grad(lambda *x: sum((y ** 2).sum() for y in attend(*x)), (0, 1, 2)))(q, k, v)
    for got, want in zip(gradients, masked_gradients(q, k, v, seen), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


def test_bias_scale_residual() -> None:
    out, residual = nn.dot_product_attention(Q, KEY, VALUE, BIAS, scale=0.5, return_residual=True)
    np.testing.assert_allclose(out, reference(np.ones((T, S), bool), BIAS, 0.5), rtol=2e-5, atol=1e-6)
    scores = 0.5 * np.einsum("btnh,bsnh->btns", Q, np.repeat(KEY, 2, axis=2)) + BIAS[0].transpose(1, 0, 2)
    np.testing.assert_allclose(residual, np.log(np.exp(scores).sum(-1)), rtol=1e-5)
    single = nn.dot_product_attention(Q[0], KEY[0], VALUE[0], BIAS, scale=0.5, return_residual=True)
    for got, want in zip(single, (out[0], residual[0]), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_query_lengths_and_no_batch() -> None:
    out = np.asarray(nn.dot_product_attention(Q, KEY, VALUE, query_seq_lengths=np.array([2, 5])))
    want = reference(np.ones((T, S), bool))
    want[0, 2:] = 0
    np.testing.assert_allclose(out, want, rtol=2e-5, atol=1e-6)
    single = nn.dot_product_attention(Q[0], KEY[0], VALUE[0])
    np.testing.assert_allclose(single, reference(np.ones((T, S), bool))[0], rtol=2e-5, atol=1e-6)


def test_gradient_and_jit() -> None:
    def f(q: Any) -> Any:
        return jnp.sum(nn.dot_product_attention(q, KEY, VALUE, is_causal=True) ** 2)

    direction = RNG.normal(size=Q.shape).astype(np.float32)
    step = 1e-2
    slope = (float(f(Q + step * direction)) - float(f(Q - step * direction))) / (2 * step)
    grad = np.asarray(anima.grad(f)(Q))
    assert abs(np.sum(grad * direction) - slope) < 1e-2 * abs(slope)
    np.testing.assert_allclose(anima.jit(anima.grad(f))(Q), grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dtype", "most"), [("float16", 0.02), ("bfloat16", 0.1)])
def test_gradients_of_narrow_types(dtype: str, most: float) -> None:
    # Scores are large, so that the errors of single terms would be, too, if they did not cancel.
    xs = [jnp.asarray(3 * RNG.standard_normal((2, 17, 2, 8)), dtype) for _ in range(3)]

    def gradient(*xs: Any) -> Any:
        return anima.grad(lambda q: jnp.sum(nn.dot_product_attention(q, *xs[1:]).astype(np.float32)))(xs[0])

    want = gradient(*(x.astype(np.float32) for x in xs))
    np.testing.assert_allclose(np.asarray(gradient(*xs), np.float32), want, rtol=0, atol=most)


def test_nothing_to_attend_to() -> None:
    q, none = np.ones((2, 3, 2, 4), np.float32), np.ones((2, 0, 2, 4), np.float32)
    np.testing.assert_array_equal(nn.dot_product_attention(q, none, none), np.zeros_like(q))
    assert nn.dot_product_attention(none, q, q).shape == none.shape
    assert nn.dot_product_attention(*[q[..., :0]] * 3).shape == (2, 3, 2, 0)


def test_errors() -> None:
    with pytest.raises(ValueError, match="multiple"):
        nn.dot_product_attention(Q[:, :, :3], KEY, VALUE)
    for given in ((Q[0, 0], KEY[0, 0], VALUE[0, 0]), (Q[0], KEY, VALUE), (Q, KEY[0], VALUE), (Q, KEY, VALUE[0])):
        with pytest.raises(ValueError, match="must all have 3 or all have 4 dimensions"):
            nn.dot_product_attention(*given)
    with pytest.raises(NotImplementedError, match="cudnn"):
        nn.dot_product_attention(Q, KEY, VALUE, implementation="cudnn")
    with pytest.raises(ValueError, match="boolean"):
        nn.dot_product_attention(Q, KEY, VALUE, mask=np.ones((T, S), np.float32))


@pytest.mark.parametrize("options,error,words", [
    ({"mask": np.ones((3, 1, T, S), bool)}, TypeError, "mask of shape .* does not broadcast"),
    ({"mask": np.ones((1, B, 1, T, S), bool)}, ValueError, "4 dimensions or less"),
    ({"bias": np.ones((T, S + 1))}, TypeError, "bias of shape .* does not broadcast"),
    ({"query_seq_lengths": np.array([3])}, ValueError, r"int32 of shape \(2,\), got int32 of shape \(1,\)"),
    ({"key_value_seq_lengths": np.array([3.0, 4.0])}, ValueError, "got float32 of shape"),
    ({"key_value_seq_lengths": 3}, ValueError, "key_value_seq_lengths"),
    ({"query": Q[:1]}, ValueError, "batches of one size"), ({"value": VALUE[..., :2]}, ValueError, "dimensions equal"),
    ({"key": KEY.astype(np.float16)}, ValueError, "one dtype"), ({"implementation": "fast"}, ValueError, "fast")])
def test_shapes_and_dtypes_that_do_not_fit(options: dict[str, Any], error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        nn.dot_product_attention(**{"query": Q, "key": KEY, "value": VALUE, **options})
    if "mask" in options or "bias" in options:  # nor without a batch
        with pytest.raises(error, match=words):
            nn.dot_product_attention(Q[0], KEY[0], VALUE[0], **options)
