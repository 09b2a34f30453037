"""`sparsify`, and operators of sparse arrays: values, classes and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.experimental import sparse
from tests.experimental.sparse.arrays import check, random_dense, variants

RNG = np.random.default_rng(0)
DENSE = random_dense(RNG, (3, 4))
V, W = jnp.arange(4.0), jnp.arange(3.0)
CLOSE = {"rtol": 1e-5, "atol": 1e-6}

# Functions of a matrix, and the class of the result.
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], type]] = {
    "sin": (jnp.sin, sparse.BCOO), "sqrt of squares": (lambda x: jnp.sqrt(x ** 2), sparse.BCOO),
    "-": (lambda x: -x, sparse.BCOO), "abs": (abs, sparse.BCOO), "expm1": (jnp.expm1, sparse.BCOO),
    "astype": (lambda x: x.astype(int), sparse.BCOO), "2 x": (lambda x: 2 * x, sparse.BCOO),
    "x / 2": (lambda x: x / 2, sparse.BCOO), "x + x": (lambda x: x + x, sparse.BCOO),
    "x - 2 x": (lambda x: x - 2 * x, sparse.BCOO), "x x": (lambda x: x * x, sparse.BCOO),
    "x > 0": (lambda x: x > 0, sparse.BCOO), "maximum": (lambda x: jnp.maximum(x, 0), sparse.BCOO),
    "x * dense": (lambda x: x * DENSE, sparse.BCOO), "x * row": (lambda x: V * x, sparse.BCOO),
    "x / column": (lambda x: x / (W[:, None] + 1), sparse.BCOO), "x + dense": (lambda x: x + DENSE, anima.Array),
    "dense - x": (lambda x: DENSE - x, anima.Array), "x @ v": (lambda x: x @ V, anima.Array),
    "w @ x": (lambda x: W @ x, anima.Array), "x @ x.T": (lambda x: x @ x.T, sparse.BCOO),
    "x @ stack": (lambda x: x @ jnp.ones((2, 4, 3)), anima.Array),
    "stack @ x": (lambda x: jnp.ones((2, 5, 3)) @ x, anima.Array),
    "einsum": (lambda x: jnp.einsum("ij,kj->ik", x, DENSE), anima.Array), "sum": (lambda x: x.sum(), anima.Array),
    "sum of columns": (lambda x: x.sum(0), sparse.BCOO), "mean": (lambda x: jnp.mean(x, 1), sparse.BCOO),
    "trace": (jnp.trace, anima.Array), "reshape": (lambda x: x.reshape(4, -1), sparse.BCOO),
    "T": (lambda x: x.T, sparse.BCOO), "squeeze": (lambda x: jnp.squeeze(x[None]), sparse.BCOO),
    "broadcast": (lambda x: jnp.broadcast_to(x, (2, 3, 4)), sparse.BCOO), "stack": (lambda x: jnp.stack([x, x]),
                                                                                    sparse.BCOO),
    "concatenate": (lambda x: jnp.concatenate([x, 2 * x], 1), sparse.BCOO), "x[0]": (lambda x: x[0], sparse.BCOO),
    "x[1, 2]": (lambda x: x[1, 2], sparse.BCOO), "x[::-1, 1::2]": (lambda x: x[::-1, 1::2], sparse.BCOO),
    "x[-1]": (lambda x: x[-1], sparse.BCOO), "x[..., None]": (lambda x: x[..., None], sparse.BCOO),
    "x[list]": (lambda x: x[jnp.array([2, 0, 0])], sparse.BCOO),
    "x[lists]": (lambda x: x[jnp.array([2, 0]), jnp.array([1, 3])], sparse.BCOO),
    "dynamic_slice": (lambda x: lax.dynamic_slice(x, (1, 1), (2, 2)), sparse.BCOO),
    "relu": (anima.nn.relu, sparse.BCOO),
    "gradient": (anima.grad(lambda x: jnp.sum(x ** 3)), sparse.BCOO), "todense": (lambda x: sparse.todense(x) + 1,
                                                                                   anima.Array),
    "jit": (anima.jit(lambda x: jnp.sin(x) * 2), sparse.BCOO),
    "cond": (lambda x: lax.cond(x.sum() > 0, lambda y: y * 2, lambda y: y * 3, x), sparse.BCOO),
    "while": (lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, x))[1], sparse.BCOO),
    "scan": (lambda x: lax.scan(lambda c, y: (c * y, c.sum()), x, V)[1], anima.Array),
    "convolution": (lambda x: lax.conv(x[None, None], jnp.ones((2, 1, 2, 2)), (1, 1), "SAME"), sparse.BCOO),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_sparsify(name: str) -> None:
    function, kind = FUNCTIONS[name]
    want = function(jnp.asarray(DENSE))
    lifted, traced = sparse.sparsify(function), sparse.sparsify(function, use_tracer=True)
    for mat in variants(DENSE):
        runs = [lifted] if name == "cond" else [lifted, traced]  # it asks for a value
        if not mat.unique_indices and name in ("x > 0", "maximum", "gradient"):
            runs = runs[:1]
        for run in (*runs, anima.jit(lifted)):
            out = run(mat)
            assert isinstance(out, kind), (out, mat)
            if kind is sparse.BCOO:
                check(out, want, **CLOSE)
            else:
                np.testing.assert_allclose(out, want, **CLOSE)


@pytest.mark.parametrize("name", ["sin", "-", "2 x", "x x", "x @ v", "w @ x", "sum", "T", "x / 2", "x * row", "x + x"])
def test_of_rows(name: str) -> None:
    mat, function = sparse.BCSR.fromdense(DENSE), FUNCTIONS[name][0]
    out = sparse.sparsify(function)(mat)
    got = sparse.todense(out)
    np.testing.assert_allclose(got, function(jnp.asarray(DENSE)), **CLOSE)


def test_trees_and_tracers() -> None:
    mat, seen = sparse.BCOO.fromdense(DENSE), []

    def f(tree: dict[str, Any], scale: float) -> Any:
        seen.append(tree["a"])
        return {"out": tree["a"] * scale, "same": tree["b"], "two": 2}

    out = sparse.sparsify(f, use_tracer=True)({"a": mat, "b": V}, scale=3.0)
    assert isinstance(seen[0], sparse.SparseTracer) and repr(seen[0]) == "SparseTracer<float32[3,4]>"
    check(out["out"], DENSE * 3)
    assert out["same"] is V and out["two"] == 2
    out = sparse.sparsify(f)({"a": mat, "b": V}, scale=3.0)
    assert not isinstance(seen[1], sparse.SparseTracer)
    check(out["out"], DENSE * 3)


def test_scan_goes_over_batches() -> None:
    mat = sparse.BCOO.fromdense(DENSE, n_batch=1)
    total, rows = sparse.sparsify(lambda x: lax.scan(lambda c, y: (c + y.sum(), 2 * y), 0.0, x))(mat)
    np.testing.assert_allclose(total, DENSE.sum(), rtol=1e-5)
    check(rows, 2 * DENSE)
    with pytest.raises(NotImplementedError, match="batch"):
        sparse.sparsify(lambda x: lax.scan(lambda c, y: (c, y), 0.0, x))(sparse.BCOO.fromdense(DENSE))


REFUSED: dict[str, Callable[[Any], Any]] = {
    "cos": jnp.cos, "x == x": lambda x: x == x, "x + 1": lambda x: x + 1, "2 / x": lambda x: 2 / x,
    "max": jnp.max, "cumsum": jnp.cumsum, "scatter": lambda x: x.at[0].set(1.0),
    "x * larger": lambda x: x * jnp.ones((2, 3, 4))}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    with pytest.raises(NotImplementedError, match=r"sparse|implemented"):
        sparse.sparsify(REFUSED[name])(sparse.BCOO.fromdense(DENSE))


def test_operators() -> None:
    mat = sparse.BCOO.fromdense(DENSE)
    check(np.float32(2) * mat, 2 * DENSE)
    assert isinstance(np.arange(3.0, dtype="f4") @ mat, anima.Array) and isinstance(DENSE * mat, sparse.BCOO)
    assert len(mat) == 3 and [repr(row) for row in mat] == ["BCOO(float32[4], nse=4)"] * 3
    check(mat[1], DENSE[1])
    assert mat[0].nse == 4 and mat[:, 1:3].nse == min(mat.nse, 6) and mat[0, 1].nse == 1
    for other in (sparse.COO, sparse.CSR, sparse.CSC, sparse.BCSR):
        one = other.fromdense(DENSE)
        np.testing.assert_allclose((-one * 2 / 4).todense(), -DENSE / 2)
        np.testing.assert_allclose(W @ one, W @ DENSE, **CLOSE)
        np.testing.assert_allclose(DENSE.T @ one, DENSE.T @ DENSE, rtol=1e-4, atol=1e-5)
    with pytest.raises(NotImplementedError, match=r"COO\.sum"):
        sparse.COO.fromdense(DENSE).sum()
    with pytest.raises(TypeError):
        jnp.sin(mat)


def test_duplicates_are_added_before_functions_that_are_not_linear() -> None:
    mat = sparse.BCOO((jnp.array([1., 2, 3, 4]), jnp.array([[1, 1], [0, 2], [1, 1], [3, 4]])), shape=(3, 4))
    want = np.asarray(mat.todense())
    for function in (jnp.sin, lambda x: x ** 2, lambda x: x * x, lambda x: jnp.maximum(x, 0)):
        check(sparse.sparsify(function)(mat), function(want), **CLOSE)


@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 1), (), (1,), (1, 1)], ids=str)
def test_sums_with_dense_arrays_of_fewer_elements_are_refused(shape: tuple[int, ...]) -> None:
    mat = sparse.BCOO.fromdense(jnp.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]]))
    add = sparse.sparsify(lambda x, y: x + y)
    for args in ((mat, jnp.ones(shape)), (jnp.ones(shape), mat)):
        with pytest.raises(NotImplementedError, match="fewer elements"):
            add(*args)
    for dense in (jnp.ones((2, 3)), jnp.ones((1, 2, 3)), jnp.ones((4, 2, 3))):
        np.testing.assert_array_equal(add(mat, dense), mat.todense() + dense)
        np.testing.assert_array_equal(add(dense, mat), mat.todense() + dense)
