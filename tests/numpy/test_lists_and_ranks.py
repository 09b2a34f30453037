"""Arguments in forms that users write: lists for arrays, arrays of other ranks, counts that are exact."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.special

import anima
import anima.numpy as jnp
from anima import lax

MATRIX = [[2.0, 1.0], [1.0, 3.0]]


class Wrapped:
    """A value of another library, which says how it becomes an array."""

    def __init__(self, value: complex) -> None:
        self.value = value

    def __jax_array__(self) -> anima.Array:
        return jnp.asarray(self.value)


@pytest.mark.parametrize("name", ["cholesky", "lu_factor", "qr", "svd", "eigh", "polar", "schur", "hessenberg", "expm",
                                  "sqrtm", "det", "inv"])
def test_matrices_as_lists(name: str) -> None:
    function = getattr(anima.scipy.linalg, name)
    for got, wanted in zip(anima.tree.leaves(function(MATRIX)), anima.tree.leaves(function(jnp.array(MATRIX))),
                           strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_systems_as_lists() -> None:
    c = scipy.linalg.cho_factor(np.array(MATRIX))
    np.testing.assert_allclose(anima.scipy.linalg.cho_solve((c[0].tolist(), c[1]), [1, 2]),
                               scipy.linalg.cho_solve(c, np.array([1, 2])), rtol=1e-6)
    lu, pivots = scipy.linalg.lu_factor(np.array(MATRIX))
    np.testing.assert_allclose(anima.scipy.linalg.lu_solve((lu.tolist(), pivots.tolist()), [1, 2]),
                               np.linalg.solve(MATRIX, [1, 2]), rtol=1e-6)
    np.testing.assert_allclose(anima.scipy.linalg.solve(MATRIX, [1, 2]), np.linalg.solve(MATRIX, [1, 2]), rtol=1e-6)
    np.testing.assert_allclose(anima.scipy.linalg.solve_triangular(MATRIX, [1, 2], lower=True),
                               scipy.linalg.solve_triangular(np.array(MATRIX), np.array([1, 2]), lower=True), rtol=1e-6)


def test_schur_of_integers() -> None:
    t, z = anima.scipy.linalg.schur(jnp.array([[0, 2], [-2, 0]]), output="complex")
    assert t.dtype == z.dtype == np.complex64
    np.testing.assert_allclose(z @ t @ z.conj().T, [[0, 2], [-2, 0]], atol=1e-6)


@pytest.mark.parametrize("name, args", [
    ("ndtr", ([-1.0, 0.5],)), ("log_ndtr", ([-1.0, 0.5],)), ("spence", ([0.5, 2.0],)), ("expn", ([1, 2], [0.5, 1.5])),
    ("hyp1f1", (2, 2, [1.0, 2.0]))])
def test_special_functions_of_lists(name: str, args: tuple[Any, ...]) -> None:
    np.testing.assert_allclose(getattr(anima.scipy.special, name)(*args), getattr(scipy.special, name)(*args),
                               rtol=2e-6)


def test_other_functions_of_lists() -> None:
    assert jnp.array_equal([1, 2], [1, 2]) and not jnp.array_equal([1, 2], [1, 2, 3])
    assert jnp.array_equiv([1, 2], [[1, 2], [1, 2]]) and not jnp.array_equiv([1, 2], [[1, 2], [1, 3]])
    assert jnp.iscomplexobj([1, 2j]) and not jnp.iscomplexobj([1, 2]) and jnp.isrealobj("text")
    assert jnp.iscomplexobj(Wrapped(1j)) and not jnp.iscomplexobj(Wrapped(1.0))
    np.testing.assert_allclose(jnp.fft.ihfft([1.0, 2.0, 4.0]), np.fft.ihfft([1.0, 2.0, 4.0]), rtol=1e-6)
    np.testing.assert_allclose(anima.scipy.signal.detrend([1.0, 2.0, 4.0], type="constant"), [-4 / 3, -1 / 3, 5 / 3],
                               rtol=1e-6)
    np.testing.assert_array_equal(anima.scipy.ndimage.map_coordinates(MATRIX, [[0.5, 1], [0.5, 0]], order=1),
                                  [1.75, 1])
    np.testing.assert_array_equal(jnp.vectorize(lambda x: x + 1)([0, 1]), [1, 2])
    np.testing.assert_array_equal(jnp.vectorize(jnp.dot, signature="(n),(n)->()")(MATRIX, [1, 2]), [4, 7])


@pytest.mark.parametrize("operation", [jnp.polyadd, jnp.polysub])
def test_sums_of_columns_of_polynomials(operation: Callable[..., anima.Array]) -> None:
    sign = 1 if operation is jnp.polyadd else -1
    x, y = np.arange(6.0).reshape(3, 2), np.array([[5.0, 7.0]])
    longer = np.concatenate([np.zeros((2, 2)), y])
    np.testing.assert_array_equal(operation(x, y), x + sign * longer)
    np.testing.assert_array_equal(operation(y, x), longer + sign * x)
    np.testing.assert_array_equal(operation(x, jnp.array([4.0])), x + sign * np.array([[0, 0], [0, 0], [4, 4]]))
    with pytest.raises(ValueError):
        operation(x, jnp.ones((2, 3)))


def test_bases_of_logspace_broadcast() -> None:
    base = np.array([2.0, 3.0])
    np.testing.assert_allclose(jnp.logspace(0, 2, 3, base=base), np.logspace(0, 2, 3, base=base), rtol=1e-6)
    np.testing.assert_allclose(jnp.logspace(jnp.array([0, 1]), 2, 3, base=base, axis=1),
                               np.logspace([0, 1], 2, 3, base=base, axis=1), rtol=1e-6)


@pytest.mark.parametrize("start, stop", [(0, 25), (-3, 7), (1, 0), (5, 5), (-11, -2)])
@pytest.mark.parametrize("num", [2, 3, 6, 7, 10, 11, 101, 1000])
def test_linspace_is_rounded_once(start: int, stop: int, num: int) -> None:
    for endpoint in (True, False):
        exact = (start * np.arange(num - endpoint, -1, -1.0)[:num] + stop * np.arange(num)) if endpoint else \
            (start * np.arange(num, 0, -1.0) + stop * np.arange(num))
        wanted = (exact / (num - endpoint)).astype(np.float32)
        np.testing.assert_array_equal(jnp.linspace(start, stop, num, endpoint), wanted)


def test_linspace_begins_and_ends_as_asked() -> None:
    """To the last bit: a histogram counts the least number, too."""
    rng = np.random.default_rng(18)
    for _ in range(50):
        x = rng.normal(size=500).astype(np.float32)
        for linspace in (jnp.linspace, anima.jit(jnp.linspace, static_argnums=2)):
            spaced = linspace(x.min(), x.max(), 8)
            assert spaced[0] == x.min()
            assert spaced[-1] == x.max()
        assert jnp.histogram(x, bins=7)[0].sum() == 500
        assert jnp.histogram2d(x, x[::-1], bins=7)[0].sum() == 500


def test_linspace_of_the_largest_and_of_narrow_numbers() -> None:
    large = float(np.finfo(np.float32).max)
    np.testing.assert_allclose(jnp.linspace(-large, large, 5), large * np.array([-1, -0.5, 0, 0.5, 1]), rtol=1e-6)
    np.testing.assert_array_equal(jnp.linspace(0, 1, 1001, dtype="float16"), np.linspace(0, 1, 1001).astype("float16"))
    np.testing.assert_array_equal(jnp.linspace(0, 4000, 4001, dtype="bfloat16"),
                                  jnp.arange(4001.0).astype("bfloat16"))
    np.testing.assert_array_equal(jnp.linspace(0, 10, 11, dtype=int), np.arange(11))
    np.testing.assert_array_equal(jnp.linspace(0, 2 + 4j, 3), [0, 1 + 2j, 2 + 4j])


@pytest.mark.parametrize("n", [5, 60, 70, 1000])
def test_repeats_that_are_known_when_a_program_runs(n: int) -> None:
    """By comparisons where they are few, else by counting ends; cut, or padded with the last part."""
    counts = np.random.default_rng(n).integers(0, 4, n).astype(np.int32)
    counts[-3:] = 0, 2, 0
    rows = np.arange(2 * n, dtype=np.float32).reshape(n, 2)
    for total in (1, n, counts.sum(), counts.sum() + 7):
        want = np.repeat(rows, counts, axis=0)[:total]
        want = np.concatenate([want, np.broadcast_to(rows[-1], (total - len(want), 2))])
        got = anima.jit(lambda x, c: jnp.repeat(x, c, axis=0, total_repeat_length=total))(rows, counts)  # noqa: B023
        np.testing.assert_array_equal(got, want)


def test_edges_of_histograms_are_exact() -> None:
    counts, edges = jnp.histogram(jnp.array([1, 2, 3, 10, 11, 15, 19, 25]), range=(0, 25), bins=5)
    np.testing.assert_array_equal(counts, [3, 0, 2, 2, 1])
    np.testing.assert_array_equal(edges, [0, 5, 10, 15, 20, 25])


def test_functions_of_indices_are_mapped() -> None:
    shapes = []

    def of(i: anima.Array, j: anima.Array, scale: float = 1) -> anima.Array:
        shapes.append((jnp.shape(i), jnp.shape(j)))
        return i + scale * j

    np.testing.assert_array_equal(jnp.fromfunction(of, (2, 3), scale=10), [[0, 10, 20], [1, 11, 21]])
    assert shapes == [((), ())]
    rows = jnp.fromfunction(lambda i, j: jnp.stack([i, j]), (2, 3), dtype=int)
    assert rows.shape == (2, 3, 2) and rows.dtype == np.int32
    np.testing.assert_array_equal(rows[1, 2], [1, 2])
    np.testing.assert_array_equal(jnp.fromfunction(lambda i: 3.0, (2,)), [3, 3])
    assert jnp.fromfunction(lambda: 3.0, ()) == 3


def test_an_array_of_conditions_has_one_for_each_function() -> None:
    x = jnp.arange(4.0)
    functions = [lambda x: x, lambda x: 10 * x, lambda x: 100 * x]
    np.testing.assert_array_equal(jnp.piecewise(x, jnp.array([False, True, False]), functions), [0, 10, 20, 30])
    np.testing.assert_array_equal(jnp.piecewise(x, x > 1, [lambda x: -x]), [0, 0, -2, -3])
    np.testing.assert_array_equal(jnp.piecewise(x, x > 1, [lambda x: -x, 7]), [7, 7, -2, -3])


def test_numbers_are_scalars() -> None:
    assert jnp.isscalar(np.array(1.0)) and not jnp.isscalar(np.ones(1))


def test_files_keep_bfloat16() -> None:
    file = io.BytesIO()
    x = jnp.array([2, 4.5], "bfloat16")
    jnp.save(file, x)
    file.seek(0)
    loaded = jnp.load(file)
    assert loaded.dtype == x.dtype
    np.testing.assert_array_equal(loaded, x)


@pytest.mark.parametrize("a, b, wanted", [
    ("float32", "float64", "float64"), ("int8", "uint32", "int32"), ("int8", "uint64", "float64"),
    ("bool", int, "int64"), ("int16", float, "float64"), ("bfloat16", float, "bfloat16"), ("int32", "uint32", "int32")])
def test_types_promote_as_they_are(a: Any, b: Any, wanted: str) -> None:
    assert jnp.promote_types(a, b) == jnp.promote_types(b, a) == np.dtype(wanted)


def test_rounded_numbers_stay_weak() -> None:
    assert jnp.round(2.345, 2).weak_type and jnp.angle(-1.0 + 0j, deg=True).weak_type
    assert not jnp.round(jnp.float32(2.345), 2).weak_type


@pytest.mark.parametrize("index", [-1, jnp.array(-1), jnp.array([-1]), (jnp.array([1, -1]), 0), (-1, slice(None)),
                                   (-1, jnp.array([0, 1]))])
def test_negative_indices_that_do_not_count_from_the_end(index: Any) -> None:
    x = jnp.arange(6.0).reshape(3, 2) + 1
    for method in ("set", "add", "multiply"):
        changed = getattr(x.at[index], method)(50, mode="drop", wrap_negative_indices=False)
        touched = np.asarray(changed) != np.asarray(x)
        assert not touched[0].any() and not touched[2].any()
    read = x.at[index].get(mode="fill", fill_value=-7, wrap_negative_indices=False)
    first = np.asarray(index[0] if isinstance(index, tuple) else index)
    np.testing.assert_array_equal((np.asarray(read) == -7).reshape(*first.shape, -1).all(-1), first < 0)
    clipped = x.at[index].get(mode="clip", wrap_negative_indices=False)
    rest = index[1:] if isinstance(index, tuple) else ()
    np.testing.assert_array_equal(clipped, np.asarray(x)[(np.maximum(first, 0), *rest)])


def test_axes_of_broadcast_in_dim_come_in_any_order() -> None:
    x = jnp.arange(6.0).reshape(2, 3)
    got = lax.broadcast_in_dim(x, (3, 4, 2), (2, 0))
    np.testing.assert_array_equal(got, np.broadcast_to(np.asarray(x).T[:, None], (3, 4, 2)))
    np.testing.assert_array_equal(anima.grad(lambda x: lax.broadcast_in_dim(x, (3, 4, 2), (2, 0)).sum())(x),
                                  np.full((2, 3), 4))
    with pytest.raises(TypeError, match="strictly increasing"):
        lax.broadcast_in_dim(jnp.ones((2, 2)), (2, 2), (0, 0))
