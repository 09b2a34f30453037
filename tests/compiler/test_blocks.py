"""Large arrays between products are made and used up by blocks of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
import anima.scipy.linalg
from anima import lax
from anima.compiler.lowering import matrices
from anima.compiler.rewriting import blocks

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts as large is small, so that tests are."""
    monkeypatch.setattr(blocks, "LEAST", 1 << 12)
    monkeypatch.setattr(blocks, "BLOCK", 1 << 11)
    monkeypatch.setattr(blocks, "ROWS", 4)
    monkeypatch.setattr(blocks, "BATCH", 1 << 12)
    monkeypatch.setattr(blocks, "MATRIX", 1 << 9)
    monkeypatch.setattr(matrices, "LARGE", 8)


def data(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.normal(size=shape).astype(dtype)


def check(fun: Callable[..., Any], *args: Any, by_blocks: bool = True, rtol: float = 2e-5) -> None:
    """A function by blocks against the same one of whole arrays."""
    made = anima.jit(lambda *xs: fun(*xs))
    fused = made.lower(*args).fused
    assert (" scan[" in fused) is by_blocks, fused
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "LEAST", 1 << 60)
        patch.setattr(blocks, "BATCH", 1 << 60)
        whole = anima.jit(lambda *xs: fun(*xs))
        assert " scan[" not in whole.lower(*args).fused
        expected = anima.tree.leaves(whole(*args))
    for got, want in zip(anima.tree.leaves(made(*args)), expected, strict=True):
        np.testing.assert_allclose(np.asarray(got, np.complex128), np.asarray(want, np.complex128), rtol, rtol / 10)


def attention(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return anima.nn.dot_product_attention(q, k, v, **options)


def kernel(x: Any, y: Any) -> Any:
    """Of all pairs of points."""
    return jnp.exp(-0.5 * ((x * x).sum(1)[:, None] + (y * y).sum(1) - 2 * x @ y.T))


@pytest.mark.parametrize("shape", [(2, 64, 3, 8), (1, 96, 1, 4), (3, 37, 2, 5), (1, 128, 1, 1)])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"local_window_size": (3, 2)}], ids=str)
def test_attention(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    # 37 is a prime number: blocks of whole heads
    check(lambda q, k, v: attention(q, k, v, **options), data(*shape), data(*shape), data(*shape))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_attention_of_other_types(dtype: str) -> None:
    with anima.enable_x64():
        q = jnp.asarray(data(2, 64, 4, 8), dtype)
        check(lambda q: attention(q, q, q, is_causal=True), q, rtol=1e-12 if dtype == "float64" else 2e-2)


def test_attention_with_bias_masks_and_fewer_heads() -> None:
    q, k, bias, mask = data(2, 64, 4, 8), data(2, 48, 2, 8), data(1, 4, 64, 48), data(2, 1, 64, 48) > 0
    check(lambda q, k, b, m: attention(q, k, k, bias=b, mask=m), q, k, bias, mask)
    lengths = np.array([40, 64], np.int32), np.array([48, 11], np.int32)
    check(lambda q, k, s, t: attention(q, k, k, query_seq_lengths=s, key_value_seq_lengths=t), q, k, *lengths)


def test_masks_are_made_by_blocks() -> None:
    """What is as large as the scores and computed of less is not in memory either."""
    def fun(q: Any, k: Any) -> Any:
        places = [lax.broadcasted_iota(np.int32, (128, 96), d) for d in (0, 1)]
        near = jnp.exp(-jnp.abs(places[0] - places[1]) / 10.0)
        scores = jnp.where(places[0] % 7 >= places[1] % 5, q @ k.T * near, -jnp.inf)
        return anima.nn.softmax(scores) @ k

    check(fun, data(128, 8), data(96, 8))
    loops = anima.jit(fun).lower(data(128, 8), data(96, 8)).loops
    assert "[12288]" not in loops, loops


def test_masks_that_others_use_too() -> None:
    """What the region needs, and what needs its results."""
    def fun(q: Any, k: Any) -> Any:
        seen = jnp.broadcast_to(jnp.arange(80) < 60, (40, 3, 64, 80))
        before = jnp.where(seen, jnp.sin(q[..., :1] * k[..., 0][:, :, None]), 0.0)
        k = k + jnp.cumsum(before, 0).max((2, 3))[..., None, None]
        out = anima.nn.softmax(jnp.where(seen, jnp.einsum("bnth,bnsh->bnts", q, k), -9.0)) @ k
        total = jnp.where(seen, out.sum((-1, -2))[..., None, None], 0.0)
        return jnp.cumsum(total, 0).max((2, 3)), out

    check(fun, data(40, 3, 64, 4), data(40, 3, 80, 4))


def test_pairs_of_points() -> None:
    x, y, w = data(100, 3), data(64, 3), data(64)
    check(lambda x, y, w: kernel(x, y) @ w, x, y, w)
    check(lambda x, y, w: (kernel(x, y) @ w, kernel(x, y).sum(1), kernel(x, y).max(1)), x, y, w)
    check(lambda x, y: anima.nn.logsumexp(-kernel(x, y), axis=1), x, y)
    check(lambda x, y: jnp.sqrt((kernel(x, y) > 0.5).sum(1)), x, y)
    with anima.enable_x64():
        check(lambda x, y, w: kernel(x, y) @ w, x.astype("f8"), y.astype("f8"), w.astype("f8"), rtol=1e-12)


def test_columns() -> None:
    """Blocks of the other operand's rows, where the first one's are added up."""
    x, y = data(64, 3), data(100, 3)
    check(lambda x, y: kernel(x, y).sum(0), x, y)
    check(lambda x, y: anima.nn.softmax(x @ y.T, axis=0).T @ x, x, y)


def test_products_with_operands_of_few_dimensions() -> None:
    """Of one contracted dimension each, which is not the same one."""
    x, y = data(3, 80), data(2, 64, 3)
    check(lambda x, y: jnp.tanh(jnp.tensordot(x, y, (0, 2)) * 2).max((1, 2)), x, y)
    check(lambda x, y: jnp.exp(jnp.einsum("ka,bck->abc", x, y) - 1).sum((0, 2)), x, y, by_blocks=False)


def test_complex_numbers() -> None:
    x, y = data(64, 3), data(100, 3)
    check(lambda x, y: jnp.abs(jnp.exp(1j * (x @ y.T)).sum(1)), x, y)


def test_several_regions_and_what_follows() -> None:
    def fun(q: Any) -> Any:
        for _ in range(3):
            q = q + jnp.tanh(attention(q, q, q)) @ jnp.ones((8, 8), np.float32) / 8
        return q.sum(-1), q

    check(fun, data(2, 64, 2, 8), rtol=1e-4)


def test_within_loops() -> None:
    q = data(2, 64, 2, 8)
    run = anima.jit(lambda q: lax.scan(lambda c, _: (attention(c, c, c, is_causal=True), c.sum()), q, None, length=3))
    expected = q
    for _ in range(3):
        expected = attention(expected, expected, expected, is_causal=True)
    np.testing.assert_allclose(run(q)[0], expected, 1e-4, 1e-5)


def test_lanes_and_gradients() -> None:
    q = data(3, 64, 2, 8)
    check(anima.vmap(lambda q: attention(q, q, q)), q[None])
    got, want = (transform(anima.grad(lambda q: (attention(q, q, q, is_causal=True) ** 2).sum()))(q)
                 for transform in (anima.jit, lambda f: f))
    np.testing.assert_allclose(got, want, 1e-3, 1e-4)


def likelihood(t: Any, y: Any) -> Any:
    matrix = jnp.exp(-(t[:, None] - t) ** 2) + 0.1 * jnp.eye(len(t))
    factor = jnp.linalg.cholesky(matrix)
    solved = anima.scipy.linalg.solve_triangular(factor, y, lower=True)
    return 0.5 * solved @ solved + jnp.log(jnp.diag(factor)).sum()


def newton(x: Any) -> Any:
    """Roots of matrices by products and inverses."""
    a = x @ x.T + 4 * jnp.eye(len(x))
    for _ in range(3):
        x = 0.5 * (x + jnp.linalg.solve(x + 6 * jnp.eye(len(x)), a))
    return jnp.trace(x), jnp.abs(x).max()


def spectra(x: Any) -> Any:
    values, vectors = jnp.linalg.eigh(x @ x.T)
    q, r = jnp.linalg.qr(jnp.sort(x, 0))
    return values + jnp.diag(r), (vectors * vectors).sum(0), jnp.linalg.det(x @ q.T), jnp.cumsum(x @ x, 1)[:, -1]


@pytest.mark.parametrize(("one", "shapes"), [
    (likelihood, ((16,), (16,))), (anima.grad(likelihood, (0, 1)), ((16,), (16,))), (newton, ((16, 16),)),
    (lambda x: anima.grad(lambda x: newton(x)[0])(x).sum(0), ((16, 16),)), (spectra, ((17, 17),))],
    ids=["likelihood", "its gradient", "newton", "its gradient", "spectra"])
def test_batches_of_matrices(one: Callable[..., Any], shapes: Any) -> None:
    batches = [data(40, *shape) for shape in shapes]
    check(anima.vmap(one), *batches, rtol=1e-3)
    check(anima.vmap(anima.vmap(one)), *(x.reshape(8, 5, *x.shape[1:]) for x in batches), rtol=1e-3)


def test_gradients_of_attention() -> None:
    """Scores and their derivatives are in no memory either, head by head."""
    q = data(5, 64, 4, 8)
    gradient = anima.grad(lambda q, k, v: (attention(q, k, v) ** 2).sum(), (0, 1, 2))
    check(gradient, q, q * 2, q + 1, rtol=1e-3)
    assert anima.jit(gradient).lower(q, q, q).compile().memory_analysis().temp_size_in_bytes < 20 * 64 * 64 * 4
    layer = anima.grad(lambda w, q: (attention(q @ w, q, q).sum() ** 2), (0, 1))
    check(layer, data(8, 8), q, rtol=1e-3)


def test_a_batch_of_one() -> None:
    q = data(1, 96, 16, 8)
    gradient = anima.grad(lambda q, k, v: (attention(q, k, v) ** 2).sum(), (0, 1, 2))
    check(gradient, q, q * 2, q + 1, rtol=1e-3)
    check(anima.vmap(lambda q: attention(q[None], q[None], q[None])), q, rtol=1e-3)


def test_effects_stay_in_order() -> None:
    seen: list[float] = []

    def note(x: Any) -> None:
        anima.debug.callback(lambda x: seen.append(float(x)), x, ordered=True)

    def fun(q: Any, k: Any) -> Any:
        note(1.0)
        scores = anima.nn.softmax(q @ k.T)
        note((scores @ k).sum() * 0 + 2.0)
        note(3.0)
        late = anima.pure_callback(lambda x: x * 2, anima.ShapeDtypeStruct((), np.float32), q[0, 0])
        note(late * 0 + 4.0)
        return (scores * jnp.exp(scores)) @ k

    run = anima.jit(fun)
    assert " scan[" in run.lower(data(120, 4), data(90, 4)).fused
    anima.block_until_ready(run(data(120, 4), data(90, 4)))
    anima.effects_barrier()
    assert seen == [1.0, 2.0, 3.0, 4.0]


def test_what_the_region_needs_comes_before_it() -> None:
    def fun(q: Any, k: Any) -> Any:
        scores = q @ k.T
        first = anima.nn.softmax(scores) @ k
        scale = jnp.cumsum(jnp.sort(k[:, 0])) + 1  # made after what needs the region's results could have been
        return jnp.cumsum(first, 0), (jnp.tanh(scores) * scale) @ k

    check(fun, data(120, 4), data(90, 4))


def test_what_the_region_makes_again_keeps_what_it_is_made_of() -> None:
    def fun(q: Any, k: Any, u: Any) -> Any:
        spread = lax.broadcast_in_dim(jnp.cosh(u), (120, 45, 2), (0, 1))  # in blocks, and as a whole for its maximum
        weights = jnp.exp(jnp.einsum("id,jed->ije", q, k)) * spread
        return jnp.einsum("ije,jek->ik", weights, abs(k[..., :2])), spread.max(0)

    check(fun, data(120, 4), data(45, 2, 4), data(120, 45))


def test_dimensions_that_are_cut_are_not_merged() -> None:
    def fun(q: Any, k: Any, w: Any) -> Any:
        return (jnp.exp(jnp.einsum("aid,jd->aij", q, k)) * w.reshape(8, 16, 30)) @ k

    check(fun, data(8, 16, 4), data(30, 4), data(128, 30), rtol=1e-4)


def test_an_equation_of_one_region_begins_no_other() -> None:
    def fun(q: Any, k: Any) -> Any:
        return jnp.tanh(anima.nn.softmax(q @ k.mT) @ k).mean(1)  # the second product is large enough for one, too

    check(fun, data(16, 64, 8), data(16, 64, 8))


def test_what_stays_whole() -> None:
    x, y = data(100, 3), data(64, 3)
    check(lambda x, y: (kernel(x, y), kernel(x, y).sum(1)), x, y, by_blocks=False)  # a result
    check(lambda x, y: jnp.cumsum(kernel(x, y), 0) @ y, x, y, by_blocks=False)      # rows need the rows before
    check(lambda x, y: jnp.sort(kernel(x, y), 0) @ y, x, y, by_blocks=False)
    check(lambda x, y: x @ y.T, x, y, by_blocks=False)                              # nothing uses it up
    check(lambda x, y: (x @ y.T).sum(), x, y, by_blocks=False)                      # blocks would have to be added up
    batch, tiny = data(40, 16, 16), data(100, 8, 8)
    check(lambda x: jnp.linalg.cholesky(x @ jnp.swapaxes(x, 1, 2) + 9 * jnp.eye(8)).sum((1, 2)), tiny, by_blocks=False)
    check(lambda x: (x @ x, anima.numpy.tanh(x @ x)), batch, by_blocks=False)       # as large results
    wide = data(100, 300), data(64, 300)
    check(lambda x, y: anima.nn.softmax(x @ y.T) @ y, *wide, by_blocks=False)       # it is no larger than these


def test_random_numbers_are_those_of_whole_arrays() -> None:
    def fun(q: Any) -> Any:
        kept = anima.random.bernoulli(anima.random.key(0), 0.5, (120, 80))
        return jnp.where(kept, anima.nn.softmax(q @ q[:80].T), 0) @ q[:80]

    check(fun, data(120, 4))
