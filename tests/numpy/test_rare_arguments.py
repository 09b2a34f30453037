"""Arguments that few programs give, and that NumPy does not take, or reads in another way."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import anima
import anima.numpy as jnp

F = np.arange(6, dtype=np.float32).reshape(2, 3)
ADD, INCREMENT = jnp.frompyfunc(operator.add, 2, 1), jnp.frompyfunc(lambda x: x + 1, 1, 1)


class Wrapped:
    """An object that stands for an array, and has nothing else of it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __jax_array__(self) -> anima.Array:
        return jnp.asarray(self.value)


class Exported:
    """An array of another library, which can only be handed over."""

    def __init__(self, value: np.ndarray) -> None:
        self.value = value

    def __dlpack__(self, **options: Any) -> Any:
        return self.value.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.value.__dlpack_device__()


class Numbers:
    """A sequence by its methods alone."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, place: int) -> int:
        return [4, 5, 6][place]


BIG = 2 ** 70
CASES: list[tuple[Callable[[], Any], Any, str]] = [
    (lambda: jnp.array(Exported(F)), F, "float32"),
    (lambda: jnp.array(Numbers()), [4, 5, 6], "int32"),
    (lambda: jnp.array([BIG, 1], "float32"), [2.0 ** 70, 1], "float32"),
    (lambda: jnp.array([[BIG, np.float32(1)]]), [[2.0 ** 70, 1]], "float32"),
    (lambda: jnp.array([Wrapped([1, 2]), Wrapped([3, 4])]), [[1, 2], [3, 4]], "int32"),
    (lambda: anima.jit(lambda x: jnp.array([x, 1.5], dtype="int32"))(2.5), [2, 1], "int32"),
    (lambda: anima.jit(lambda x: jnp.array([[x, 1], [2, x]]))(2.5), [[2.5, 1], [2, 2.5]], "float32"),
    (lambda: jnp.zeros(jnp.array([2, 3])), np.zeros((2, 3)), "float32"),
    (lambda: jnp.full((2, 3), F[:1]), np.stack([F[0], F[0]]), "float32"),
    (lambda: jnp.arange(ml_dtypes.bfloat16(1), 5), [1, 2, 3, 4], "bfloat16"),
    (lambda: jnp.arange(ml_dtypes.bfloat16(0), 2, ml_dtypes.bfloat16(0.5)), [0, 0.5, 1, 1.5], "bfloat16"),
    (lambda: jnp.dot(np.arange(3), np.array(2), preferred_element_type="float32"), [0, 2, 4], "float32"),
    (lambda: jnp.array([True, False]).view("int8"), [1, 0], "int8"),
    (lambda: jnp.array([1, 258], "int32").view(bool), [1, 0, 0, 0, 1, 1, 0, 0], "bool"),
    (lambda: jnp.array(F).view(), F, "float32"),
    (lambda: jnp.array(F).compress(np.array([False, True]), axis=0), F[1:], "float32"),
    (lambda: jnp.array(F).compress(np.array([False, True, True]), axis=1, size=3, fill_value=7),
     [[1, 2, 7], [4, 5, 7]], "float32"),
    (lambda: jnp.compress(np.zeros(0, bool), F, axis=0, size=2, fill_value=9), np.full((2, 3), 9), "float32"),
    (lambda: jnp.compress(np.zeros(0, bool), F[:, :0], axis=1, size=1, fill_value=9), [[9], [9]], "float32"),
    (lambda: jnp.pad(F, {0: 1, 1: (2, 0)}), np.pad(F, ((1, 1), (2, 0))), "float32"),
    (lambda: jnp.pad(F, {-1: (0, 1)}), np.pad(F, ((0, 0), (0, 1))), "float32"),
    (lambda: jnp.polyval(F.ravel(), np.float32([2, -3]), unroll=2), np.polyval(F.ravel(), [2, -3]), "float32"),
    (lambda: jnp.polyval(F.ravel(), np.float32([2, -3]), unroll=6), np.polyval(F.ravel(), [2, -3]), "float32"),
    (lambda: jnp.polymul(np.float32([0, 0, 1, 2]), np.float32([0, 3]), trim_leading_zeros=True), [3, 6], "float32"),
    (lambda: jnp.polymul(np.float32([0, 0]), np.float32([0, 3]), trim_leading_zeros=True), [0], "float32"),
    (lambda: jnp.polymul(np.float32([0, 0]), np.float32([0]), trim_leading_zeros=True), [0], "float32"),
    (lambda: jnp.argwhere(np.float32(3), size=2), np.zeros((2, 0)), "int32"),
    (lambda: jnp.put(F, np.array([5, 6]), np.float32([7, 8]), inplace=False), [[0, 1, 2], [3, 4, 8]], "float32"),
    (lambda: jnp.place(F[:0], F[:0] > 0, np.float32([1]), inplace=False), F[:0], "float32"),
    (lambda: jnp.cov(F.astype(int), dtype="float16"), np.cov(F), "float16"),
    (lambda: jnp.interp(np.float32([-1, 0.5, 2]), np.float32([0, 1]), np.float32([0, 3]), "extrapolate"),
     [-3, 1.5, 3], "float32"),
    (lambda: jnp.interp(np.float32([-1, 0.5, 2]), np.float32([0, 1]), np.float32([0, 3]), right="extrapolate"),
     [0, 1.5, 6], "float32"),
    (lambda: ADD.reduce(F, axis=1, dtype="int32"), F.sum(1), "int32"),
    (lambda: ADD.reduce(F, axis=1, where=F > 1, initial=10), [12, 22], "float32"),
    (lambda: ADD.reduce(F, axis=0, where=np.array([True, False, True]), initial=10), [13, 10, 17], "float32"),
    (lambda: ADD.accumulate(F, axis=1, dtype="int32"), np.cumsum(F, 1), "int32"),
    (lambda: ADD.accumulate(F[:0]), F[:0], "float32"),
    (lambda: INCREMENT.at(F, (0, 1), inplace=False), F + np.eye(2, 3, 1) * [[1], [0]], "float32"),
    (lambda: anima.jit(lambda i: ADD.reduceat(F, i, axis=1, dtype="int32"))(np.array([0, 2])), [[1, 2], [7, 5]],
     "int32"),
    (lambda: jnp.logical_and.reduce(F, axis=1, initial=True), [False, True], "bool"),
    (lambda: jnp.logical_or.reduce(F[:1, :1], axis=0, initial=3, keepdims=True), [[True]], "bool"),
    (lambda: jnp.logical_xor.reduce(F, axis=0, dtype="int32", where=F != 4), [1, 1, 0], "int32"),
    (lambda: jnp.logical_and.accumulate(F[:, ::-1], axis=1), [[True, True, False], [True, True, True]], "bool"),
    (lambda: jnp.logical_xor.accumulate(F[0], dtype="int32"), [0, 1, 0], "int32"),
    (lambda: jnp.logical_and.at(jnp.arange(3), np.array([1, 1]), 1, inplace=False), [False, True, True], "bool"),
    (lambda: anima.jit(lambda i: jnp.logical_or.reduceat(np.array([0, 2, 0]), i))(np.array([0, 2])), [1, 0], "int32"),
    (lambda: jnp.nanvar(np.arange(5), dtype="int32"), 2, "int32"),
    (lambda: jnp.nanvar(np.array([1, np.nan, 3.5], "f"), dtype="int8", keepdims=True), [1], "int8"),
    (lambda: jnp.linalg.norm(np.zeros((0, 2, 2)), 2, (0, 1)), [0, 0], "float32"),
    (lambda: jnp.linalg.norm(np.zeros((0, 2, 2)), np.inf, (0, 1)), [0, 0], "float32"),
    (lambda: jnp.linalg.norm(np.zeros((2, 0, 2)), 1, (0, 1)), [0, 0], "float32"),
    (lambda: jnp.linalg.cond(np.array([np.zeros((2, 2)), np.eye(2), np.full((2, 2), np.nan)]), -2), [np.inf, 1, np.nan],
     "float32"),
    (lambda: jnp.linalg.matrix_rank(np.ones((2, 0, 3), "f")), [0, 0], "int32"),
    (lambda: jnp.linalg.matrix_rank(np.diag(np.float32([3, 1, 0.1])), tol=0.5), 2, "int32"),
    (lambda: jnp.linalg.matrix_rank(np.diag(np.float32([3, 1, 0.1])), rtol=0.5), 1, "int32"),
    (lambda: jnp.linalg.multi_dot([F]), F, "float32"),
    (lambda: anima.jit(lambda o: jnp.linalg.norm(F, ord=o, axis=1))(3.0), (F ** 3).sum(1) ** (1 / 3), "float32"),
    (lambda: jnp.arange(5.0)[Wrapped([3, 1])], [3, 1], "float32"),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_result(number: int) -> None:
    call, want, dtype = CASES[number]
    got = call()
    assert got.shape == np.shape(want) and got.dtype.name == dtype
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_lengths_with_an_infinite_side(dtype: str, x64: None) -> None:
    x, y = jnp.array([np.nan, np.inf, 1], dtype), jnp.array([np.inf, -np.inf, -np.inf], dtype)
    for f in (jnp.hypot, anima.jit(jnp.hypot)):
        for got in (f(x, y), f(y, x)):
            assert got.tolist() == [np.inf] * 3 and got.dtype == dtype


def test_powers_of_bools(x64: None) -> None:
    """Those of numbers that are known have 32 bits, others the type of the exponent."""
    x = jnp.array([True, False])
    for exponent, want, dtype in ((2, [1, 0], "int32"), (0, [1, 1], "int32"), (np.int8(2), [1, 0], "int32"),
                                  (np.array([2, 0], "int8"), [1, 1], "int8"),
                                  (np.array([2, 0], "int64"), [1, 1], "int64"), (True, [1, 0], "int32"),
                                  (x, [1, 1], "int32")):
        for got in (x ** exponent, anima.jit(lambda x, e=exponent: x ** e)(x), jnp.power(x, exponent)):
            assert got.tolist() == want and got.dtype == dtype and not got.weak_type
    assert (2.0 ** x).tolist() == [2, 1] and (2.0 ** x).weak_type


def test_none_counts_as_the_default_float() -> None:
    assert jnp.result_type(None) == jnp.result_type(None, 1) == anima.dtypes.result_type(None, np.int8) == np.float32
    with anima.enable_x64(True):
        assert jnp.result_type(None, np.float32) == np.float64


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_places_may_be_floats(dtype: str) -> None:
    rows, columns = jnp.unravel_index(jnp.array([1.0, 4, -1, 100, -100], dtype), (2, 3))
    assert rows.dtype == columns.dtype == dtype
    np.testing.assert_array_equal(rows.astype(float), [0, 1, 1, 1, 0])
    np.testing.assert_array_equal(columns.astype(float), [1, 1, 2, 2, 0])


def test_keys_are_stacked() -> None:
    keys = [anima.random.key(0), anima.random.key(7)]
    got = jnp.array(keys)
    assert got.shape == (2,) and got.dtype == keys[0].dtype
    np.testing.assert_array_equal(anima.random.key_data(got), [anima.random.key_data(k) for k in keys])


def test_positions_of_the_arguments_of_array_are_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="by position is deprecated"):
        assert jnp.array([1, 2], None, True, "C", 3).shape == (1, 1, 2)
    with pytest.warns(DeprecationWarning, match="by position is deprecated"):
        assert jnp.array([1, 2], None, True, ndmin=2).shape == (1, 2)
    with pytest.warns(DeprecationWarning), pytest.raises(NotImplementedError, match="got 'F'"):
        jnp.array([1, 2], None, True, "F")


@pytest.mark.parametrize("index, want", [(-2, [0, 1, 2, 4]), (np.array([-1, 1]), [0, 2, 3]), (0, [1, 2, 3, 4])])
def test_traced_places_are_deleted(index: Any, want: list[int]) -> None:
    x = np.stack([np.arange(5), np.arange(5) + 10])
    delete = anima.jit(lambda i: jnp.delete(x, i, axis=1, assume_unique_indices=True))
    np.testing.assert_array_equal(delete(index), np.stack([want, np.add(want, 10)]))
    np.testing.assert_array_equal(np.delete(x, index, axis=1), delete(index))


def test_one_traced_place_is_known_to_be_one() -> None:
    np.testing.assert_array_equal(anima.jit(lambda i: jnp.delete(jnp.arange(5), i))(-2), [0, 1, 2, 4])
    with pytest.raises(anima.errors.ConcretizationTypeError, match="assume_unique_indices=True"):
        anima.jit(lambda i: jnp.delete(jnp.arange(5), i))(np.array([0, 1]))


def test_rows_padded_by_a_function() -> None:
    """It gets each row with zeros beside it; later axes see what was made of earlier ones."""
    def fill(row: Any, width: tuple[int, int], axis: int, options: dict[str, Any]) -> Any:
        out = np.array(row)
        out[:width[0]] = options["value"] + axis
        out[len(out) - width[1]:] = out[::-1][width[1]] if width[1] else 0
        return out

    def numpys(row: np.ndarray, width: tuple[int, int], axis: int, options: dict[str, Any]) -> None:
        row[...] = fill(row, width, axis, options)

    widths = ((1, 0), (2, 1))
    np.testing.assert_array_equal(jnp.pad(F, widths, fill, value=7), np.pad(F, widths, numpys, value=7))


def test_texts() -> None:
    x = jnp.arange(2.0)
    assert repr(x.at) == "_IndexUpdateHelper(Array([0., 1.], dtype=float32))"
    assert repr(x.at[0]) == "_IndexUpdateRef(Array([0., 1.], dtype=float32), 0)"
    assert jnp.array_repr(x) == "Array([0., 1.], dtype=float32)" != jnp.array_repr(np.float32([0, 1]))
    assert [repr(g) for g in (jnp.mgrid, jnp.ogrid, jnp.r_, jnp.c_)] == [
        f"anima.numpy.{name}" for name in ("mgrid", "ogrid", "r_", "c_")]
    assert len(jnp.r_) == len(np.r_) == 0


def test_what_is_a_scalar() -> None:
    assert jnp.isscalar(jnp.float32(1)) and jnp.isscalar(Wrapped(1.0)) and jnp.isscalar(1j)
    assert not jnp.isscalar(jnp.ones(1)) and not jnp.isscalar(Wrapped([1.0])) and not jnp.isscalar([1])


@pytest.mark.parametrize("name", ["ix_", "mgrid"])
def test_types_of_grids_without_points(name: str) -> None:
    """Indices are integers even where there are none."""
    grid = jnp.ix_(np.zeros(0, "f"))[0] if name == "ix_" else jnp.mgrid[()]
    assert grid.shape == (0,) and grid.dtype == np.int32
    assert jnp.ogrid[()] == []


@pytest.mark.parametrize("labels, shapes", [
    ("i,i->", ((0,), (0,))), ("i,i->i", ((0,), (0,))), ("ij,jk->ik", ((2, 0), (0, 3))), ("ij,jk->ik", ((0, 2), (2, 3))),
    ("i,j->ij", ((0,), (2,))), ("ii->i", ((0, 0),)), ("i,i->", ((1,), (4,))), ("ij,ij->j", ((1, 3), (4, 1))),
    ("ij,jk,k->i", ((2, 0), (0, 0), (0,))), ("...i,i->...", ((3, 0), (0,)))], ids=str)
def test_einsum_of_nothing_and_of_one(labels: str, shapes: Any) -> None:
    args = [np.ones(shape, np.float32) for shape in shapes]
    got = jnp.einsum(labels, *args)
    np.testing.assert_array_equal(got, np.einsum(labels, *args))
    assert got.shape == np.einsum(labels, *args).shape


@pytest.mark.parametrize("n", (1, 2, 3, 16, 17, 40))
def test_compiled_diagonals(n: int) -> None:
    """On each side of the main one, of batches, beside a matrix and others, and their slopes."""
    v, a = np.arange(1, n + 1, dtype=np.float32), np.arange(n * n, dtype=np.float32).reshape(n, n)
    for k in (0, 1, -1, 2, -2, n, -n - 1):
        want = np.diag(v, k)
        np.testing.assert_array_equal(anima.jit(lambda v, k=k: jnp.diag(v, k))(v), want)
        np.testing.assert_array_equal(anima.jit(anima.vmap(lambda v, k=k: jnp.diag(v, k) * 2))(np.stack([v, -v])),
                                      np.stack([2 * want, -2 * want]))
        np.testing.assert_array_equal(anima.jit(lambda v, k=k: jnp.diag(v, k) - jnp.diag(v, -k))(v),
                                      want - np.diag(v, -k))
        np.testing.assert_array_equal(anima.jit(anima.grad(lambda v, k=k: (jnp.diag(v, k)**2).sum()))(v), 2 * v)
    for fun in (lambda a, v: a + jnp.diag(v), lambda a, v: a - jnp.diag(a.diagonal()),
                lambda a, v: jnp.diag(v).T[::-1]):
        np.testing.assert_array_equal(anima.jit(fun)(a, v), fun(jnp.asarray(a), jnp.asarray(v)))


def test_compiled_diagonals_divide_nothing() -> None:
    def loops(fun: Callable[..., Any], *shape: int) -> str:
        return str(anima.jit(fun).lower(np.ones(shape, np.float32)).loops)

    for text in (loops(jnp.diag, 50), loops(anima.vmap(jnp.diag), 9, 20), loops(lambda a: a + jnp.diag(a[0]), 50, 50),
                 loops(lambda v: jnp.diag(v, 1), 50)):
        assert " / " not in text and " % " not in text
