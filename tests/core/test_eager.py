"""Operations outside of `jit`: what is remembered of them changes nothing but their time."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.api import eager
from anima.core import avals, memory, quiet, trace
from anima.core.trace import EVAL
from anima.ops.broadcast import broadcast_in_dim_p

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


def test_options_count_from_the_next_operation_on(x64: None) -> None:
    x = jnp.asarray(X)
    for _ in range(2):
        assert (x + 1).dtype == np.float32 and jnp.sum(jnp.arange(3)).dtype == np.int64
        with anima.enable_x64(False):
            assert jnp.sum(jnp.arange(3)).dtype == np.int32
        with anima.debug_nans(True), pytest.raises(FloatingPointError):
            jnp.log(x)
        with anima.no_execution(True), pytest.raises(RuntimeError):
            x + 1
        with anima.numpy_rank_promotion("raise"), pytest.raises(ValueError, match="rank"):
            x + jnp.ones(4)
        assert (x + jnp.ones(4)).shape == (3, 4)


def test_nans_that_are_moved_were_made_elsewhere() -> None:
    with anima.debug_nans(True):
        x = jnp.full((2, 3), np.nan).reshape(3, 2).T
        assert np.isnan(jnp.where(jnp.ones(3, bool), 1.0, x)).sum() == 0
        for made in (lambda: x + 1, lambda: jnp.where(x != x, x, 1.0), lambda: jnp.ones(3).at[7].get(mode="fill")):
            with pytest.raises(FloatingPointError, match="invalid value"):
                made()
    with anima.debug_infs(True):
        assert np.isinf(jnp.full(3, np.inf)[::2]).all()


def test_types_are_those_of_the_first_time() -> None:
    """Equal parameters of other types, weak types and other dtypes of one shape."""
    x = jnp.asarray(X)
    weak = jnp.asarray(2.0)
    for _ in range(3):
        assert jnp.sum(x, axis=1).shape == (3,) and jnp.sum(x, axis=0).shape == (4,)
        assert (weak * 3).weak_type and not (jnp.float32(2) * 3).weak_type
        assert (x * weak).dtype == np.float32 and (x.astype(jnp.float16) * weak).dtype == np.float16
        assert (x > 0).dtype == bool and lax.convert_element_type(x, np.int8).dtype == np.int8
        assert lax.broadcast_in_dim(x, (3, 4), (0, 1)).shape == (3, 4)


def test_parameters_are_known_by_their_names() -> None:
    x = jnp.ones((2, 2, 1))
    p = broadcast_in_dim_p
    for _ in range(2):
        assert p.bind(jnp.ones((1, 2)), shape=(1, 2), broadcast_dimensions=(0, 1)).shape == (1, 2)
        with pytest.raises(TypeError):
            p.bind(jnp.ones((1, 2)), broadcast_dimensions=(1, 2), shape=(0, 1))
        assert p.bind(x, broadcast_dimensions=(0, 1, 2), shape=(2, 2, 5)).shape == (2, 2, 5)
        assert p.bind(x, shape=(2, 2, 5), broadcast_dimensions=(0, 1, 2)).shape == (2, 2, 5)


def test_errors_are_raised_each_time() -> None:
    x = jnp.asarray(X)
    for _ in range(3):
        with pytest.raises((TypeError, ValueError), match="ncompatible shapes"):
            x + jnp.ones(3)
        with pytest.raises(TypeError, match="contract"):
            x @ x
        with pytest.raises(TypeError, match="same dtypes"):
            lax.add(x, jnp.arange(12).reshape(3, 4))


def test_products_of_all_forms() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((5, 3, 4), (5, 4, 2)))
    for _ in range(2):
        np.testing.assert_allclose(lax.dot_general(a, b, (((2,), (1,)), ((0,), (0,)))), a @ b, rtol=1e-5)
        np.testing.assert_allclose(lax.dot_general(a, a, (([1], [1]), ([0], [0]))),
                                   np.einsum("bij,bik->bjk", a, a), rtol=1e-5)
        np.testing.assert_allclose(jnp.tensordot(a, b, ((0, 2), (0, 1))), np.tensordot(a, b, ((0, 2), (0, 1))),
                                   rtol=1e-5)
        np.testing.assert_allclose(jnp.asarray(a[0]) @ jnp.asarray(b[0]), a[0] @ b[0], rtol=1e-5)


def test_what_is_known_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_MOST_KNOWN", 20)
    monkeypatch.setattr(avals, "_MOST_STANDING", 20)
    monkeypatch.setattr(EVAL, "known", None)  # what other tests left there
    monkeypatch.setattr(EVAL, "under", {})
    for n in range(1, 100):
        x = jnp.asarray(np.ones(n, np.float32))
        assert (x + x).shape == (n,)
        assert len(avals._standing) <= 21 and len(EVAL.known.results) <= 21


def test_numbers_beside_arrays() -> None:
    x = jnp.asarray(X)
    for number in (1, 2.5, True, np.float32(3), np.int8(4), np.array(5.0, np.float32)):
        for _ in range(2):
            np.testing.assert_array_equal(x + number, X + np.float32(number))


def test_numpys_warnings_are_as_they_were() -> None:
    with warnings.catch_warnings(), np.errstate(divide="warn"):
        warnings.simplefilter("error")
        assert np.isinf(jnp.asarray(1.0) / 0)
        with pytest.raises(RuntimeWarning):
            np.float32(1) / np.float32(0)
        before = quiet.hush()
        try:
            assert np.isinf(np.float32(1) / np.float32(0))
        finally:
            quiet.restore(before)
        with pytest.raises(RuntimeWarning):
            np.float32(1) / np.float32(0)


def test_large_results_are_new_memory_that_nobody_can_write_to() -> None:
    big = np.linspace(-1, 1, memory.LEAST // 4 + 3, dtype=np.float32)
    x = jnp.asarray(big)
    first = jnp.tanh(x) * 2 + x
    kept = np.array(first)
    others = [jnp.tanh(x) * k for k in range(5)]
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(kept, np.tanh(big) * np.float32(2) + big)
    np.testing.assert_array_equal(others[3], np.tanh(big) * np.float32(3))
    assert (x > 0).dtype == bool and (x + x[:1]).shape == x.shape  # other ways
    with pytest.raises(ValueError):
        np.asarray(first)[0] = 1
    with pytest.raises(ValueError):
        np.asarray(first).flags.writeable = True


def test_many_threads() -> None:
    wrong: list[Any] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(200):
            shape = tuple(rng.integers(1, 4, 2))
            a = rng.standard_normal(shape).astype(np.float32)
            if not np.array_equal(jnp.asarray(a) + jnp.asarray(a) * 2, a + a * np.float32(2)):
                wrong.append(shape)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.parametrize("fun", [
    anima.nn.selu, anima.nn.elu, anima.nn.gelu, anima.nn.silu, anima.nn.softplus, lambda x: anima.nn.elu(x, 0.5),
    lambda x: anima.nn.softmax(x.reshape(4, -1), axis=0), lambda x: anima.nn.gelu(x, approximate=False),
    lambda x: anima.nn.softmax(x.reshape(4, -1), (0, 1)), lambda x: anima.nn.standardize(x, epsilon=1e-3),
    lambda x: anima.nn.leaky_relu(x, jnp.float32(0.2))])
def test_functions_that_are_one_program_for_large_arrays(fun: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = jnp.asarray(np.random.default_rng(0).standard_normal(eager.LARGE).astype(np.float32))
    large = fun(x)
    monkeypatch.setattr(eager, "LARGE", 1 << 40)
    np.testing.assert_allclose(large, fun(x), rtol=2e-6, atol=2e-6)
    with anima.disable_jit():
        np.testing.assert_array_equal(fun(x), fun(x))
    gradient = anima.grad(lambda y: fun(y).sum())(x)
    monkeypatch.undo()
    np.testing.assert_array_equal(anima.grad(lambda y: fun(y).sum())(x), gradient)
