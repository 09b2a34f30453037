"""Methods, operators and protocols of arrays; ufunc objects; names of the module."""

from __future__ import annotations

import itertools
import json
import operator
import pathlib
import pickle

import numpy as np
import pytest

import anima
import anima.numpy as jnp

X = np.arange(-3, 3, dtype="f").reshape(2, 3)
N = np.arange(-3, 3, dtype="i").reshape(2, 3)

METHODS = [
    "all()", "any(axis=0)", "argmax()", "argmin(1)", "argsort(axis=0)", "astype('int32')", "clip(-1, 1)", "conj()",
    "copy()", "cumprod(axis=1)", "cumsum()", "diagonal()", "dot(X.T)", "flatten()", "item(2)", "max(axis=1)",
    "mean(axis=0)", "min()", "nonzero()", "prod()", "ravel()", "repeat(2, axis=1)", "reshape(3, 2)",
    "reshape((3, -1))", "round(1)", "squeeze()", "std()", "sum(axis=1, keepdims=True)", "swapaxes(0, 1)",
    "take(I)", "trace()",
    "transpose()", "transpose(1, 0)", "transpose((1, 0))", "var(ddof=1)", "view('int32')", "tolist()", "T", "real",
    "imag", "mT", "shape", "ndim", "size", "nbytes", "itemsize", "dtype"]


@pytest.mark.parametrize("text", METHODS)
def test_method(text):
    index = np.array([0, 1])
    want = eval(f"x.{text}", {"x": X, "X": X, "I": index})
    got = eval(f"x.{text}", {"x": jnp.array(X), "X": jnp.array(X), "I": jnp.array(index)})
    for a, b in zip(got if isinstance(got, tuple) else [got], want if isinstance(want, tuple) else [want], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6) if not isinstance(b, np.dtype) else np.testing.assert_equal(a, b)


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (0, 4), (3, 0)])
@pytest.mark.parametrize("old, new", [*itertools.permutations(["uint8", "int16", "float32", "complex64"], 2)])
def test_views_of_every_width(shape, old, new):
    """Elements of the last axis become several, or one; not where their bytes do not divide evenly."""
    x = np.arange(1, 1 + int(np.prod(shape))).reshape(shape).astype(old)
    if shape[-1] * x.itemsize % np.dtype(new).itemsize:
        with pytest.raises((TypeError, ValueError)):
            jnp.asarray(x).view(new)
        return
    got, want = jnp.asarray(x).view(new), x.view(new)
    assert got.shape == want.shape and np.asarray(got).tobytes() == want.tobytes()


BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "gt", "ge", "eq", "ne"]
BITWISE = ["and_", "or_", "xor", "lshift", "rshift"]


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("other", [2, 2.0, np.float32(2), np.full(3, 2, "f")])
def test_operators_with_everything(name, other):
    apply = getattr(operator, name)
    for a, b in ((X, other), (other, np.abs(X) + 1)):
        got = apply(*(jnp.array(v) if isinstance(v, np.ndarray) and v.ndim == 2 else v for v in (a, b)))
        assert isinstance(got, anima.Array)
        np.testing.assert_allclose(np.asarray(got), apply(a, b), rtol=1e-6)


@pytest.mark.parametrize("name", BITWISE)
def test_bitwise_operators(name):
    apply = getattr(operator, name)
    np.testing.assert_array_equal(np.asarray(apply(jnp.array(N), 2)), apply(N, 2))
    np.testing.assert_array_equal(np.asarray(apply(5, jnp.array(np.abs(N)))), apply(np.int32(5), np.abs(N)))


def test_unary_operators():
    x = jnp.array(X)
    for apply in (operator.neg, operator.pos, operator.abs, round):
        np.testing.assert_array_equal(np.asarray(apply(x)), np.asarray(apply(X)) if apply is not round else np.round(X))
    np.testing.assert_array_equal(np.asarray(~jnp.array(N)), ~N)


def test_operators_give_way():
    class Other:
        def __radd__(self, x):
            return "other's"

    assert jnp.ones(3) + Other() == "other's"
    assert (jnp.ones(3) == None) is False  # noqa: E711
    with pytest.raises(TypeError, match="unsupported operand"):
        jnp.ones(3) + "a"


def test_objects_that_stand_for_arrays():
    class Parameter:
        def __jax_array__(self):
            return jnp.arange(3.0)

    assert jnp.sum(Parameter()) == 3 and (jnp.ones(3) + Parameter()).tolist() == [1, 2, 3]
    assert (2 * jnp.ones(3) * Parameter()).tolist() == [0, 2, 4] and jnp.array(Parameter()).shape == (3,)


def test_protocols():
    x = jnp.array(X)
    assert len(x) == 2 and [row.tolist() for row in x] == X.tolist()
    np.testing.assert_array_equal(np.asarray(pickle.loads(pickle.dumps(x))), X)
    np.testing.assert_array_equal(np.from_dlpack(x), X)
    assert x.__array_namespace__() is jnp and x.at[0].set(5.0)[0].tolist() == [5, 5, 5]
    assert int(jnp.int32(3)) == 3 and [10, 20][jnp.int32(1)] == 20 and float(jnp.float32(1.5)) == 1.5


def test_user_memory_is_never_shared():
    mine = np.ones(3, "f")
    kept = [jnp.array(mine), jnp.asarray(mine), jnp.reshape(mine, (1, 3)), jnp.transpose(mine), jnp.ravel(mine)]
    mine[:] = 7
    assert all(bool((k == 1).all()) for k in kept)


def test_sort_returns_a_sorted_copy():
    x = jnp.array([3, 1, 2])
    assert x.sort().tolist() == [1, 2, 3] and x.tolist() == [3, 1, 2]


def test_axes_may_be_numpy_arrays():
    x = jnp.ones((2, 3, 4))
    assert x.transpose(np.array([2, 0, 1])).shape == jnp.transpose(x, np.array([2, 0, 1])).shape == (4, 2, 3)
    assert jnp.sum(x, axis=np.array([0, 2])).tolist() == [8, 8, 8]
    assert jnp.flip(x, np.array([0])).shape == x.shape and jnp.squeeze(x[None], np.array([0])).shape == x.shape


def test_ufuncs():
    assert jnp.add.nin == 2 and jnp.add.identity == 0 and jnp.maximum.identity is None
    assert repr(jnp.add) == "<anima.numpy.ufunc 'add'>" and isinstance(jnp.frompyfunc(abs, 1, 1), jnp.ufunc)
    rows = jnp.array(N)
    largest = jnp.frompyfunc(lambda x, y: jnp.where(x > y, x, y), 2, 1)
    np.testing.assert_array_equal(np.asarray(largest.reduce(rows, axis=None)), N.max())
    np.testing.assert_array_equal(np.asarray(largest.accumulate(rows, axis=1)), np.maximum.accumulate(N, axis=1))
    np.testing.assert_array_equal(np.asarray(largest.outer(rows[0], rows[1])), np.maximum.outer(N[0], N[1]))
    np.testing.assert_array_equal(np.asarray(largest.at(rows[0], jnp.array([0, 0]), 9, inplace=False)), [9, -2, -1])


def test_scalar_types():
    assert jnp.float32(1).dtype == np.float32 and jnp.bfloat16([1, 2]).dtype == jnp.bfloat16
    assert jnp.zeros(2, jnp.int8).dtype == jnp.int8 and jnp.issubdtype(jnp.bfloat16, jnp.floating)
    assert jnp.finfo("bfloat16").bits == 16 and jnp.iinfo(jnp.int8).max == 127
    assert {jnp.float32: 1}[jnp.float32] == 1


def test_files(tmp_path):
    jnp.save(tmp_path / "x.npy", jnp.arange(3))
    loaded = jnp.load(tmp_path / "x.npy")
    assert isinstance(loaded, anima.Array) and loaded.tolist() == [0, 1, 2]
    jnp.savez(tmp_path / "x.npz", a=jnp.arange(2), b=jnp.ones(1))
    with jnp.load(tmp_path / "x.npz") as several:
        assert sorted(several) == ["a", "b"] and several["a"].tolist() == [0, 1]


def test_every_name_of_numpy_is_there():
    """All public names of jax.numpy; each is in `__all__` and has a docstring."""
    facts = json.loads((pathlib.Path(__file__).parent / "data" / "names.json").read_text())
    missing = [n for n in facts if not hasattr(jnp, n)]
    assert not missing
    assert set(facts) <= set(jnp.__all__)
    assert not [n for n in jnp.__all__ if callable(getattr(jnp, n)) and not getattr(jnp, n).__doc__]
