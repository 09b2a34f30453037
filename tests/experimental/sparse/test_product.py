"""Products of sparse arrays with dense ones and with each other, against dense products and SciPy's; derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse

import anima
import anima.numpy as jnp
from anima import lax
from anima.experimental import sparse
from anima.experimental.sparse.layout import elements_at
from anima.ops import sparse as ops
from anima.test_util import check_grads
from tests.experimental.sparse.arrays import check, layouts, random_dense, shuffled, variants

RNG = np.random.default_rng(0)
DENSE = random_dense(RNG, (2, 3, 4))
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
# Shape of the other operand, and dimension numbers.
PRODUCTS: list[tuple[tuple[int, ...], Any]] = [
    ((4,), (((2,), (0,)), ((), ()))), ((4, 5), (((2,), (0,)), ((), ()))), ((2, 4, 5), (((2,), (1,)), ((0,), (0,)))),
    ((5, 4, 3), (((1, 2), (2, 1)), ((), ()))), ((3, 2), (((1,), (0,)), ((0,), (1,)))),
    ((2, 3, 4), (((0, 1, 2), (0, 1, 2)), ((), ()))), ((5,), (((), ()), ((), ()))),
    ((3, 4, 2), (((0,), (2,)), ((1, 2), (0, 1)))), ((2, 7), (((0,), (0,)), ((), ())))]


def swapped(numbers: Any) -> Any:
    (lc, rc), (lb, rb) = numbers
    return (rc, lc), (rb, lb)


@pytest.mark.parametrize("shape, numbers", PRODUCTS, ids=str)
def test_dot_general(shape: tuple[int, ...], numbers: Any) -> None:
    other = random_dense(RNG, shape)
    want = lax.dot_general(DENSE, other, numbers)
    turned = lax.dot_general(other, DENSE, swapped(numbers))
    for layout in layouts(3):
        for mat in variants(DENSE, *layout):
            np.testing.assert_allclose(sparse.bcoo_dot_general(mat, other, dimension_numbers=numbers), want, **CLOSE)
            np.testing.assert_allclose(sparse.bcoo_dot_general(other, mat, dimension_numbers=swapped(numbers)), turned,
                                       **CLOSE)
    mat = sparse.BCOO.fromdense(DENSE, n_batch=1)
    run = anima.jit(lambda m, x: sparse.bcoo_dot_general(m, x, dimension_numbers=numbers))
    np.testing.assert_allclose(run(mat, other), want, **CLOSE)


@pytest.mark.parametrize("shape, numbers", PRODUCTS, ids=str)
def test_of_two_sparse_arrays(shape: tuple[int, ...], numbers: Any) -> None:
    other = random_dense(RNG, shape)
    want, done = np.asarray(lax.dot_general(DENSE, other, numbers)), 0
    for layout in layouts(3):
        left = list(variants(DENSE, *layout))[-1]
        for n_batch in range(len(shape) + 1):
            try:
                out = sparse.bcoo_dot_general(left, sparse.BCOO.fromdense(other, n_batch=n_batch),
                                              dimension_numbers=numbers)
            except NotImplementedError:
                assert numbers[1][0]
                continue
            check(out, want, **CLOSE)
            done += 1
    assert done


def test_products_that_stay_sparse() -> None:
    """Where there are fewer pairs of elements than places for results."""
    rows, columns = np.zeros((50, 3), np.float32), np.zeros((3, 60), np.float32)
    rows[[3, 7, 7], [0, 1, 2]], columns[[1, 2], [5, 59]] = [1, 2, 3], [4, 5]
    out = sparse.BCOO.fromdense(rows) @ sparse.BCOO.fromdense(columns)
    assert out.nse == 6
    check(out, rows @ columns)
    left, right = np.stack([rows, rows[::-1]]), np.stack([columns, -columns])
    out = sparse.bcoo_dot_general(sparse.BCOO.fromdense(left, n_batch=1), sparse.BCOO.fromdense(right, n_batch=1),
                                  dimension_numbers=(((2,), (1,)), ((0,), (0,))))
    assert out.nse == 6
    check(out, left @ right)


@pytest.mark.parametrize("shape, numbers", PRODUCTS, ids=str)
def test_sampled(shape: tuple[int, ...], numbers: Any) -> None:
    other = random_dense(RNG, shape)
    whole = lax.dot_general(DENSE, other, numbers)
    n_batch = len(numbers[1][0])
    for last in range(n_batch, whole.ndim + 1):
        at = jnp.asarray(RNG.integers(0, 6, (*whole.shape[:n_batch], 6, last - n_batch)))
        got = sparse.bcoo_dot_general_sampled(DENSE, other, at, dimension_numbers=numbers)
        np.testing.assert_allclose(got, elements_at(at, whole), **CLOSE)


@pytest.mark.parametrize("layout", layouts(3), ids=str)
def test_elementwise(layout: tuple[int, int]) -> None:
    for mat in variants(DENSE, *layout):
        for shape in ((4,), (3, 1), (2, 1, 1), (2, 3, 4), (1, 1, 4), ()):
            v = random_dense(RNG, shape)
            check(mat.like(sparse.bcoo_multiply_dense(mat, v)), DENSE * v, rtol=1e-5)
            check(mat * v, DENSE * v, rtol=1e-5)
            check(mat / (v + 20), DENSE / (v + 20), rtol=1e-5)
        for shape in ((2, 3, 4), (1, 3, 4), (2, 1, 4), (3, 4), (4,)):
            w = random_dense(RNG, shape)
            for n_batch in range(len(shape)):
                other = list(variants(w, n_batch))[-1]
                check(sparse.bcoo_multiply_sparse(mat, other), DENSE * w, rtol=1e-5)
                check(other * mat, DENSE * w, rtol=1e-5)
    with pytest.raises(NotImplementedError):
        sparse.bcoo_multiply_dense(mat, np.ones((5, 2, 3, 4)))


@pytest.mark.parametrize("layout", layouts(3), ids=str)
def test_products_of_the_shape_of_neither(layout: tuple[int, int]) -> None:
    a = random_dense(RNG, (2, 1, 4))
    others = {shape: random_dense(RNG, shape) for shape in ((1, 3, 4), (3, 1))}
    for mat in variants(a, *layout):
        for w in others.values():
            for n_batch in range(w.ndim):
                *_, outside, doubled = variants(w, n_batch)
                check(sparse.bcoo_multiply_sparse(mat, outside), a * w, rtol=1e-5)
                check(doubled * mat, a * w, rtol=1e-5)


def test_products_of_kronecker_have_an_entry_for_each_pair() -> None:
    a, b = np.float32([[0, 1], [2, 0]]), np.float32([[3, 0, 0], [0, 4, 5]])
    got = sparse.sparsify(jnp.kron)(sparse.BCOO.fromdense(a), sparse.BCOO.fromdense(b))
    assert got.nse == 6
    check(got, np.kron(a, b), rtol=1e-6)


def formats(a: np.ndarray) -> dict[str, Any]:
    padded = sparse.BCOO.fromdense(a, nse=int((a != 0).sum()) + 3)
    return {"sorted": sparse.BCOO.fromdense(a), "unsorted": shuffled(padded),
            "bcsr": sparse.BCSR.fromdense(a), "coo": sparse.COO.fromdense(a), "csr": sparse.CSR.fromdense(a),
            "csc": sparse.CSC.fromdense(a)}


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "uint16", "float16", "bfloat16", "float32", "float64",
                                   "complex64", "complex128"])
def test_dtypes(dtype: str, x64: None) -> None:
    a = np.asarray(jnp.asarray(random_dense(RNG, (7, 9))).astype(dtype))
    v, w, x = (np.asarray(jnp.asarray(random_dense(RNG, s)).astype(dtype)) for s in ((9,), (7,), (9, 6)))
    tolerance = {"rtol": 2e-2, "atol": 2e-1} if dtype.endswith("16") else {"rtol": 1e-5, "atol": 1e-4}
    for name, mat in formats(a).items():
        for got, want in ((mat @ v, jnp.matmul(a, v)), (w @ mat, jnp.matmul(w, a)), (mat @ x, jnp.matmul(a, x)),
                          (anima.jit(lambda m, y: m @ y)(mat, x), jnp.matmul(a, x)), (mat.T @ w, jnp.matmul(a.T, w))):
            assert got.dtype == want.dtype, (name, got.dtype)
            np.testing.assert_allclose(np.asarray(got).astype("c16"), np.asarray(want).astype("c16"), **tolerance,
                                       err_msg=name)


def test_promotion() -> None:
    a = random_dense(RNG, (3, 4))
    for mat in formats(a).values():
        assert (mat @ jnp.arange(4)).dtype == np.float32 and (mat @ jnp.ones(4, np.float16)).dtype == np.float32
    numbers = (((1,), (0,)), ((), ()))
    got = sparse.bcoo_dot_general(sparse.BCOO.fromdense(a), a[0], dimension_numbers=numbers,
                                  preferred_element_type=np.float16)
    assert got.dtype == np.float16


@pytest.mark.parametrize("rows, columns, density", [(300, 200, 0.1), (1, 5000, 0.9), (5000, 1, 0.9), (2000, 30, 0.2),
                                                    (3, 4, 0.0), (1025, 1023, 0.01), (64, 63, 0.9)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_against_scipy(rows: int, columns: int, density: float, dtype: str, x64: None) -> None:
    a = scipy.sparse.random(rows, columns, density, "csr", dtype=dtype, random_state=RNG)
    x = RNG.normal(size=(columns, 17)).astype(dtype)
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == "float32" else {"rtol": 1e-11, "atol": 1e-11}
    mats = [sparse.BCOO.from_scipy_sparse(a), sparse.BCSR.from_scipy_sparse(a),
            sparse.CSR((a.data, a.indices, a.indptr), shape=a.shape)]
    assert mats[0].indices_sorted and mats[1].indices_sorted
    mats.append(shuffled(mats[0]))
    for mat in mats:
        for run in (lambda m, y: m @ y, anima.jit(lambda m, y: m @ y)):
            np.testing.assert_allclose(run(mat, x), a @ x, **close)
            np.testing.assert_allclose(run(mat, x[:, 0]), a @ x[:, 0], **close)
            np.testing.assert_allclose(run(mat, x[:, :3]), a @ x[:, :3], **close)
        turned = anima.jit(lambda m, y: y @ m)
        y = RNG.normal(size=rows).astype(dtype)
        np.testing.assert_allclose(turned(mat, y), y @ a, **close)
        np.testing.assert_array_equal(mat.todense(), a.toarray())


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "complex64"])
def test_long_rows_in_order(columns: int, dtype: str) -> None:
    """Their sums stay in registers: the same bits as of entries in any order; empty rows, some outside, two batches."""
    rng = np.random.default_rng(5)
    rows = np.sort(rng.choice([0, 1, 3, 700, 1299, 1300, 1301], (2, 20_000)), 1).astype(np.int32)
    places = rng.integers(-1, 9, rows.shape).astype(np.int32)
    data, x = rng.integers(-8, 8, rows.shape).astype(dtype), rng.integers(-8, 8, (2, 8, columns)).astype(dtype)
    given = [jnp.asarray(a) for a in (data, rows, places, x)]
    for count in (1, 1300):  # entries of many rows are outside
        run = anima.jit(lambda *a, count=count: [ops.entry_product(*a, count, order) for order in (True, False)])
        got, want = run(*given)
        np.testing.assert_array_equal(got, want)
        assert np.asarray(got)[:, 0].any()


def test_what_is_outside_does_not_count() -> None:
    """Not even where the dense operand is infinite."""
    x = jnp.array([1., 2., jnp.inf])
    data, at = jnp.array([1., 5., 7., 9.]), jnp.array([[0, 1], [1, 3], [2, 0], [2, 0]])
    mats = [sparse.BCOO((data, at), shape=(2, 3)),
            sparse.COO((data, at[:, 0], at[:, 1]), shape=(2, 3), rows_sorted=True),
            sparse.CSR((data, at[:, 1], jnp.array([0, 1, 2])), shape=(2, 3))]
    for mat in mats:
        for f in (lambda m, y: m @ y, anima.jit(lambda m, y: m @ y)):
            assert f(mat, x).tolist() == [2, 0]
            assert f(mat, jnp.stack([x] * 20, 1))[:, 0].tolist() == [2, 0]
            assert f(mat.T, jnp.ones(2)).tolist() == [0, 1, 0]


@pytest.mark.parametrize("name", ["sorted", "unsorted", "bcsr", "coo", "csr", "csc"])
def test_derivatives(name: str, x64: None) -> None:
    a = random_dense(RNG, (4, 5), np.float64)
    mat = formats(a)[name]
    v, x = RNG.normal(size=5), RNG.normal(size=(5, 6))
    check_grads(lambda d, y: mat.like(d) @ y, (mat.data, v), order=2)
    check_grads(lambda d, y: mat.like(d) @ y, (mat.data, x), order=2)
    check_grads(lambda d, y: jnp.sin(y @ mat.like(d)), (mat.data, x[:4, :4]), order=2)
    check_grads(anima.jit(lambda d: jnp.sin(mat.like(d).todense())), (mat.data,), order=2)


def test_derivatives_of_other_products(x64: None) -> None:
    a, b = random_dense(RNG, (2, 4, 5), np.float64), random_dense(RNG, (2, 5, 3), np.float64)
    one, two = sparse.BCOO.fromdense(a, n_batch=1), sparse.BCOO.fromdense(b, n_batch=1)
    numbers = (((2,), (1,)), ((0,), (0,)))
    check_grads(lambda x, y: sparse.bcoo_dot_general(one.like(x), two.like(y), dimension_numbers=numbers).todense(),
                (one.data, two.data), order=2)
    check_grads(lambda x, y: sparse.bcoo_multiply_sparse(one.like(x), one.like(y)).data, (one.data, one.data), order=2)
    check_grads(lambda x, y: sparse.bcoo_multiply_dense(one.like(x), y), (one.data, a[0]), order=2)
    row, column = sparse.BCOO.fromdense(a[:1]), sparse.BCOO.fromdense(a[:, :1])
    check_grads(lambda x, y: sparse.bcoo_multiply_sparse(row.like(x), column.like(y)).data, (row.data, column.data),
                order=2)
    check_grads(lambda x, y: sparse.bcoo_dot_general_sampled(x, y, one.indices[..., :2] % 3, dimension_numbers=numbers),
                (a, b), order=2)
    check_grads(lambda x: sparse.BCOO.fromdense(x, nse=12, n_batch=1).data, (np.abs(a) + 1,), order=2)
    check_grads(lambda x: one.like(x).sum_duplicates(nse=9).data, (one.data,), order=2)


def test_vmap(x64: None) -> None:
    a = random_dense(RNG, (3, 4, 5), np.float64)
    mats, x = sparse.BCOO.fromdense(a, n_batch=1), RNG.normal(size=(3, 5))
    np.testing.assert_allclose(anima.vmap(lambda m, y: m @ y)(mats, x), np.einsum("bij,bj->bi", a, x))
    one = sparse.BCOO.fromdense(a[0])
    np.testing.assert_allclose(anima.vmap(lambda y: one @ y)(x), x @ a[0].T)
    data = RNG.normal(size=(3, one.nse))
    want = [np.asarray(one.like(d).todense()) @ y for d, y in zip(data, x, strict=True)]
    np.testing.assert_allclose(anima.jit(anima.vmap(lambda d, y: one.like(d) @ y))(data, x), want)
    np.testing.assert_allclose(anima.vmap(lambda d: one.like(d) @ x[0])(data),
                               [np.asarray(one.like(d).todense()) @ x[0] for d in data])
    grads = anima.vmap(anima.grad(lambda d, y: jnp.sum((one.like(d) @ y) ** 2)))(data, x)
    for d, y, g in zip(data, x, grads, strict=True):
        np.testing.assert_allclose(g, anima.grad(lambda d, y: jnp.sum((one.like(d) @ y) ** 2))(d, y))


def test_same_numbers_every_time() -> None:
    a = scipy.sparse.random(3000, 2000, 0.02, "csr", dtype="float32", random_state=RNG)
    mat, x = sparse.BCOO.from_scipy_sparse(a), RNG.normal(size=3000).astype("float32")
    run = anima.jit(lambda m, y: (m.T @ y, shuffled(m).T @ y))
    first = [np.asarray(y) for y in run(mat, x)]
    for _ in range(3):
        for y, z in zip(run(mat, x), first, strict=True):
            np.testing.assert_array_equal(y, z)


def test_errors() -> None:
    mat = sparse.BCOO.fromdense(DENSE[0])
    for bad in (np.ones(3), np.ones((3, 4))):
        for m in formats(DENSE[0]).values():
            with pytest.raises((TypeError, ValueError)):
                m @ bad
    with pytest.raises(TypeError, match="BCOO"):
        sparse.bcoo_dot_general(DENSE, DENSE, dimension_numbers=(((0,), (0,)), ((), ())))
    with pytest.raises(NotImplementedError):
        sparse.COO.fromdense(DENSE[0]) @ mat


@pytest.mark.parametrize("columns", [None, 1, 3, 5])
@pytest.mark.parametrize("rows", [1, 40, 1000])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.complex64])
def test_sorted_entries_of_long_rows(rows: int, columns: int | None, dtype: type) -> None:
    """Rows without entries among long ones, padding behind them, columns that do not exist."""
    rng = np.random.default_rng(rows)
    full = np.flatnonzero(rng.random(rows) < 0.7) if rows > 1 else np.array([0])
    numbers = np.sort(np.r_[rng.choice(full, 12 * rows), np.full(7, rows)])
    at = np.stack([numbers, rng.integers(0, 53, len(numbers))], 1).astype(np.int32)
    data = rng.integers(-4, 5, len(at)).astype(dtype)
    x = rng.integers(-4, 5, (50,) if columns is None else (50, columns)).astype(dtype)
    want = np.zeros((rows, *x.shape[1:]), dtype)
    inside = (at[:, 0] < rows) & (at[:, 1] < 50)
    np.add.at(want, at[inside, 0], (data[inside].reshape(-1, *[1] * (x.ndim - 1)) * x[at[inside, 1]]))
    mat = sparse.BCOO((data, at), shape=(rows, 50), indices_sorted=True)
    np.testing.assert_array_equal(anima.jit(lambda m, x: m @ x)(mat, x), want)
    unsorted = sparse.BCOO((data, at), shape=(rows, 50))
    np.testing.assert_array_equal(anima.jit(lambda m, x: m @ x)(unsorted, x), want)


@pytest.mark.parametrize("seed", range(12))
def test_a_wrong_promise_of_order_touches_nothing_else(seed: int) -> None:
    """Sums are wrong where indices are not in order: each is one of some of the entries, in place and within bounds."""
    rng = np.random.default_rng(seed)
    rows, n = [(3, 400), (40, 500), (200, 2000)][seed % 3]
    at = np.stack([rng.integers(-3, rows + 3, n), rng.integers(-2, 12, n)], 1).astype(np.int32)
    mat = sparse.BCOO((np.ones(n, np.float32), at), shape=(rows, 10), indices_sorted=True)
    inside = (at[:, 1] >= 0) & (at[:, 1] < 10)
    for x in (np.ones(10, np.float32), np.ones((10, 3), np.float32)):
        out = np.asarray(anima.jit(lambda m, x: m @ x)(mat, x))
        assert out.shape == (rows, *x.shape[1:]) and (out >= 0).all()
        assert (np.sum(out, 0) <= np.sum(inside)).all() and (out == np.round(out)).all()
