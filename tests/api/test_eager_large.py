"""Operations on large arrays outside of `jit` run as compiled code: with its bits, and with nothing else changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
import anima.scipy.ndimage
from anima import lax
from anima.api import eager
from anima.config import config
from anima.core.primitive import LARGE, Primitive

N = LARGE + 17
X = np.random.default_rng(5).normal(size=N).astype(np.float32)
ROUNDED: dict[str, Callable[[Any], Any]] = {
    "exp": jnp.exp, "sum": jnp.sum, "prod": lambda x: jnp.prod(1 + x * 1e-6), "mean of rows": lambda x: x[:N // 7 * 7]
    .reshape(7, -1).mean(1), "variance": jnp.var, "norm": jnp.linalg.norm, "running sum": jnp.cumsum,
    "product": lambda x: x[:512 * 512].reshape(512, 512) @ x[-512 * 512:].reshape(512, 512), "tanh": jnp.tanh,
    "softmax": lambda x: anima.nn.softmax(x[:-17].reshape(-1, 16)), "power": lambda x: abs(x) ** 1.5,
    "integers to floats": lambda x: lax.dot(
        (x[:250000] * 50).astype(np.int8).reshape(500, 500), (x[-250000:] * 50).astype(np.int8).reshape(500, 500),
        preferred_element_type=np.float32),
    "window": lambda x: lax.reduce_window(x, 0.0, lax.add, (3,), (1,), "SAME")}
SAME: dict[str, Callable[[Any], Any]] = {
    "add": lambda x: x + 1, "half": lambda x: x * 0.5, "where": lambda x: jnp.where(x > 0, x, -1), "max": jnp.max,
    "argmin": jnp.argmin, "sort": lambda x: jnp.sort(x[:LARGE]), "to integers": lambda x: x.astype(np.int32),
    "rest": lambda x: x % 0.7, "outer": lambda x: x[:600, None] - x[:500],
    "top": lambda x: lax.top_k(x, 3)[0], "clip": lambda x: jnp.clip(x, -1, 1),
    "integer product": lambda x: (x[:6400] * 9).astype(np.int8).reshape(80, 80) @ jnp.ones((80, 80), np.int8)}


def check_bits(found: Any, wanted: Any) -> None:
    assert found.dtype == wanted.dtype and found.weak_type == wanted.weak_type
    np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))


@pytest.mark.parametrize("name", ROUNDED)
def test_what_rounds_otherwise_is_compiled_from_the_first_call(name: str) -> None:
    f, x = ROUNDED[name], jnp.asarray(X)
    results = [f(x) for _ in range(4)]
    for later in results[1:]:
        check_bits(later, results[0])
    assert results[0].dtype == np.float32
    with config.option("disable_jit")(True):
        np.testing.assert_allclose(results[0], f(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name, dtype", [*((name, dtype) for name in SAME for dtype in (
    "float32", "float16", "bfloat16", "int8")), ("add", "complex64"), ("half", "complex64")])
def test_what_gives_the_same_bits_is_compiled_when_it_took_its_time(name: str, dtype: str,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    f, x = SAME[name], jnp.asarray(X * 40).astype(dtype)
    with config.option("disable_jit")(True):
        wanted = f(x)
    monkeypatch.setattr(eager, "_WORTH", -1.0)
    anima.clear_caches()
    for _ in range(3):
        check_bits(f(x), wanted)


def test_compiled_code_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """And NumPy's way, where it may not."""
    ran = []
    rule = lax.exp_p.eval
    monkeypatch.setattr(lax.exp_p, "eval", lambda x, **params: (ran.append(x.size), rule(x, **params))[1])
    anima.clear_caches()
    x = jnp.asarray(X)
    for _ in range(3):
        lax.exp(x)
    assert not ran
    for name in ("disable_jit", "no_tracing", "debug_nans"):
        anima.clear_caches()
        with config.option(name)(True):
            lax.exp(x)
        assert ran.pop() == N and not ran, name
    lax.exp(x[:100])
    assert ran == [100]


def test_numbers_keep_their_types() -> None:
    x = jnp.asarray(X)
    assert (jnp.full(N, 1.0) * 2).weak_type and not (x * 2).weak_type
    assert (jnp.arange(N) * 2.5).dtype == np.float32 and (x > 2).dtype == bool
    with anima.enable_x64(True):
        assert (x * np.float64(2)).dtype == np.float64 and jnp.exp(np.ones(N)).dtype == np.float64


def test_arrays_of_the_user_stay_theirs() -> None:
    own = X.copy()
    for f in (jnp.exp, jnp.abs, lambda x: jnp.add(x, 1), jnp.cumsum, lambda x: lax.add(x, own)):
        for _ in range(3):
            out = f(own)
            own[0] += 1
            assert own.flags.writeable and not np.may_share_memory(np.asarray(out), own)
    np.testing.assert_array_equal(own[1:], X[1:])


def test_errors_are_those_of_small_arrays() -> None:
    x = jnp.asarray(X)
    with config.option("debug_nans")(True), pytest.raises(FloatingPointError, match="log"):
        jnp.log(x)
    gone = jnp.asarray(X)
    assert jnp.exp(gone).shape == (N,)
    gone.delete()
    for _ in range(3):
        with pytest.raises(RuntimeError, match="deleted"):
            jnp.exp(gone)
    with pytest.raises(TypeError, match="shapes"):
        lax.add(x, x[1:])


def test_what_cannot_be_compiled_runs_as_before() -> None:
    class Odd(Primitive):
        large = 1

        def infer(self, x: Any) -> Any:
            return x

        def eval(self, x: np.ndarray) -> np.ndarray:
            return x + 1

    odd = Odd("odd_one")
    for _ in range(4):
        np.testing.assert_array_equal(odd.bind(jnp.zeros(3)), np.ones(3))


def test_functions_that_look_into_arrays_and_mistakes() -> None:
    x = jnp.asarray(np.where(X > 1, np.nan, X))
    for _ in range(3):
        assert x[~jnp.isnan(x)].shape == ((X <= 1).sum(),) and x[x > 0].shape == ((X[X <= 1] > 0).sum(),)
        assert jnp.unique(jnp.round(x[:LARGE])).size < 20 and jnp.nonzero(x > 0)[0].size == (X[X <= 1] > 0).sum()
        assert jnp.repeat(x, jnp.ones(N, int)).shape == x.shape and jnp.flatnonzero(x > 5).size == 0
        with pytest.raises(ValueError, match="axis"):
            jnp.sum(x, axis=3)
        with pytest.raises(TypeError, match="shapes"):
            jnp.add(x, x[1:])


def test_random_keys() -> None:
    keys = anima.random.split(anima.random.key(0), LARGE)
    for _ in range(3):
        same = keys == keys
        assert same.dtype == bool and same.all() and jnp.where(same, keys, keys[0]).dtype == keys.dtype
        assert anima.random.key_data(jnp.roll(keys, 3))[3].tolist() == anima.random.key_data(keys)[0].tolist()


def test_derivatives_and_lanes(x64: None) -> None:
    x = jnp.asarray(X.astype(np.float64))
    slope = anima.grad(lambda x: jnp.sum(jnp.tanh(x) ** 2))
    wanted = 2 * np.tanh(X.astype(np.float64)) / np.cosh(X.astype(np.float64)) ** 2
    for _ in range(3):
        np.testing.assert_allclose(slope(x), wanted, rtol=1e-12)
    rows = x[:LARGE].reshape(64, -1)
    np.testing.assert_allclose(anima.vmap(jnp.sum)(rows), np.asarray(rows).sum(1), rtol=1e-10)
    np.testing.assert_allclose(anima.jvp(jnp.exp, (x,), (x,))[1], X * np.exp(X.astype(np.float64)), rtol=1e-6)


def test_functions_of_many_operations_are_remembered() -> None:
    image = jnp.asarray(X[:400].reshape(20, 20))
    points = [jnp.asarray(X[:50]) * 3 + 10, jnp.asarray(X[50:100]) * 3 + 10]
    for f in (lambda: anima.image.resize(image, (10, 30), "linear"),
              lambda: anima.image.resize(image, (10, 30), anima.image.ResizeMethod.CUBIC),
              lambda: anima.scipy.ndimage.map_coordinates(image, points, 1, "nearest")):
        results = [np.asarray(f()) for _ in range(4)]
        for later in results[1:]:
            np.testing.assert_array_equal(later, results[0])
