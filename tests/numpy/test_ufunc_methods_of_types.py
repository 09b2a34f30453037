"""Methods of universal functions, and reductions, for types that their functions change."""

from __future__ import annotations

import numpy as np
import pytest

import anima
import anima.numpy as jnp


@pytest.mark.parametrize("dtype", [bool, np.int32, np.float16])
def test_logarithms_of_sums(dtype: type) -> None:
    x = jnp.array([1, 0, 1]).astype(dtype)
    for fun, base in ((jnp.logaddexp, np.e), (jnp.logaddexp2, 2.0)):
        want = np.log(np.cumsum(base ** np.asarray(x, np.float64))) / np.log(base)
        kind = np.float16 if dtype is np.float16 else np.float32
        for out, value in ((fun.reduce(x), want[-1]), (fun.accumulate(x), want),
                           (fun.reduceat(x, jnp.array([0])), want[-1:])):
            assert out.dtype == kind
            np.testing.assert_allclose(out, value, rtol=2e-3)
    out = jnp.logaddexp.at(jnp.arange(3), jnp.array([0]), 2.0, inplace=False)
    np.testing.assert_allclose(out, [np.logaddexp(0, 2), 1, 2], rtol=1e-6)


def test_types_of_extremes() -> None:
    x = jnp.array([1.5, 0.5, 2.5])
    for fun, value in ((jnp.maximum, 2.5), (jnp.minimum, 0.5)):
        out = fun.reduce(x, dtype="float16")
        assert out.dtype == np.float16 and float(out) == value
        assert int(fun.reduce(x, dtype="int8")) == int(value)


def test_truth_values_are_joined() -> None:
    x = jnp.array([True, False, False])
    np.testing.assert_array_equal(jnp.add.at(x, jnp.array([1, 1]), True, inplace=False), [True, True, False])
    np.testing.assert_array_equal(jnp.multiply.at(x, jnp.array([0]), False, inplace=False), [False, False, False])


def test_lost_imaginary_parts() -> None:
    x = jnp.array([1 + 2j, 3 + 1j])
    for fun, want in ((jnp.sum, 4), (jnp.prod, 3), (jnp.cumsum, [1, 4]), (jnp.cumprod, [1, 3]), (jnp.mean, 2)):
        for _ in range(2):
            with pytest.warns(np.exceptions.ComplexWarning, match="imaginary"):
                out = fun(x, dtype=np.float32)
            np.testing.assert_array_equal(out, np.float32(want))


def test_vectorized_functions_without_some_arguments() -> None:
    def shifted(x: anima.Array, by: anima.Array | None = None) -> anima.Array:
        return x if by is None else x + by

    np.testing.assert_array_equal(jnp.vectorize(shifted)(np.arange(2), None), [0, 1])
    np.testing.assert_array_equal(jnp.vectorize(shifted)(np.arange(2), by=None), [0, 1])
    of_rows = jnp.vectorize(shifted, signature="(n),()->(n)")
    np.testing.assert_array_equal(of_rows(np.arange(4).reshape(2, 2), None), [[0, 1], [2, 3]])
    with pytest.raises(TypeError, match="expected 2, got 1"):
        of_rows(np.arange(2))
