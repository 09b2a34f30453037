"""Calls outside of `jit` that come again: tapes and native code give what the first call gave, bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import nn, tree
from anima.core.ways import Ways
from anima.runtime import several

TIMES = 9  # calls, after which there is native code if there ever is
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-40, -1e-45, 3e38, -3e38, 2.0, 1e5, np.pi]
SHAPES: list[tuple[int, ...]] = [(), (1,), (16,), (17,), (5, 33), (16, 1), (2, 3, 4)]
DTYPES = ["float32", "float64", "int32", "uint8", "bool", "float16", "bfloat16", "complex64"]

UNARY: dict[str, Callable[[Any], Any]] = {
    **{f.__name__: f for f in (
        jnp.sinc, jnp.sign, jnp.square, jnp.reciprocal, jnp.cbrt, jnp.trunc, jnp.rint, jnp.isnan, jnp.isreal, jnp.imag,
        jnp.nan_to_num, jnp.nanmax, jnp.nanmin, jnp.nansum, jnp.any, jnp.all, jnp.min, jnp.max, jnp.sum, jnp.mean,
        jnp.var, jnp.std, jnp.prod, jnp.ptp, jnp.flip, jnp.transpose, jnp.ravel, jnp.atleast_3d, jnp.squeeze,
        jnp.cumsum, jnp.diff, jnp.median, jnp.logical_not, jnp.exp2, jnp.expm1, jnp.log1p, jnp.fft.fft,
        nn.relu, nn.sigmoid, nn.silu, nn.gelu, nn.softmax, nn.log_softmax, nn.softplus, nn.elu, nn.logsumexp)},
    "max of columns": lambda x: x.max(0), "min of rows": lambda x: x.min(-1), "any of rows": lambda x: (x != 0).any(-1),
    "new axes": lambda x: x[None, ..., None], "reversed": lambda x: x[::-1], "every other": lambda x: x[..., ::2],
    "a part": lambda x: x[1:-1], "to int": lambda x: x.real.astype("int32"), "to bool": lambda x: x.astype(bool),
    "to float": lambda x: x.real.astype("float32"), "cube": lambda x: x ** 3, "stacked": lambda x: jnp.stack([x, x]),
    "joined": lambda x: jnp.concatenate([x, x * 2], -1), "flat": lambda x: x.reshape(-1),
    "set": lambda x: x.at[0].set(x[-1]), "added": lambda x: x.at[..., 0].add(x[..., -1]),
    "twice the same": lambda x: [x.T, x.T], "normalised": lambda x: nn.standardize(x) if x.ndim else x}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    f.__name__: f for f in (
        jnp.maximum, jnp.minimum, jnp.fmax, jnp.fmin, jnp.hypot, jnp.logaddexp, jnp.mod, jnp.fmod, jnp.floor_divide,
        jnp.divmod, jnp.isclose, jnp.nextafter, jnp.copysign, jnp.heaviside, jnp.outer, jnp.logical_and,
        jnp.logical_xor, jnp.array_equal)}
BINARY |= {"clipped": lambda x, y: jnp.clip(x, -1, y), "chosen": lambda x, y: jnp.where(x > 0, x, y),
           "rows less one": lambda x, y: jnp.subtract(x, y[..., :1]), "of kinds": lambda x, y: x * 2 + (y > 0)}


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Native code from the first moment on; whether there was some, tape by tape."""
    made: list[bool] = []

    def chain(*tape: Any) -> Any:
        run = several.chain(*tape)
        made.append(run is not None)
        return run

    monkeypatch.setattr(Ways, "again", 1 << 30)
    monkeypatch.setattr(Ways, "chain", staticmethod(chain))
    yield made


def data(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng, kind = np.random.default_rng(seed), np.dtype(getattr(ml_dtypes, dtype, dtype))
    if kind.kind == "b":
        return rng.random(shape) > 0.5
    if kind.kind in "iu":
        return rng.integers(-5 if kind.kind == "i" else 0, 9, shape).astype(kind)
    x = np.where(rng.random(shape) < 0.5, rng.normal(size=shape) * 3, rng.choice(SPECIAL, shape))
    with np.errstate(all="ignore"):
        return (x + 1j * rng.normal(size=shape) if kind.kind == "c" else x).astype(kind)


def parts(x: Any) -> np.ndarray:
    x = np.asarray(x)
    return np.stack([x.real, x.imag]) if x.dtype.kind == "c" else x


def check_again(function: Callable[..., Any], args: list[np.ndarray]) -> None:
    arrays = [*map(jnp.asarray, args)]
    try:
        with anima.disable_jit():
            first = function(*arrays)
    except (TypeError, ValueError, IndexError):  # of no such type or shape
        with pytest.raises((TypeError, ValueError, IndexError)):
            function(*arrays)
        return
    for _ in range(TIMES):
        last = function(*arrays)
    for a, b in zip(tree.leaves(first), tree.leaves(last), strict=True):
        if isinstance(a, anima.Array):
            assert (a.shape, a.dtype, a.aval.weak_type) == (b.shape, b.dtype, b.aval.weak_type)
        a, b = parts(a), parts(b)
        nan = np.asarray(a != a)
        np.testing.assert_array_equal(nan, b != b)
        assert a[~nan].tobytes() == b[~nan].tobytes()


@pytest.mark.parametrize("name", UNARY)
def test_again_of_one_array(name: str) -> None:
    for seed, dtype in enumerate(DTYPES):
        for shape in SHAPES:
            with anima.enable_x64(dtype == "float64"):
                check_again(UNARY[name], [data(dtype, shape, seed)])


@pytest.mark.parametrize("name", BINARY)
def test_again_of_two_arrays(name: str) -> None:
    for seed, dtype in enumerate(DTYPES[:5]):
        for shape in SHAPES:
            with anima.enable_x64(dtype == "float64"):
                check_again(BINARY[name], [data(dtype, shape, seed), data(dtype, shape, seed + 1)])


@pytest.mark.parametrize("name", ["sinc", "softmax", "gelu", "nanmax", "std", "stacked", "joined", "cube", "relu"])
def test_these_are_native(name: str, native: list[bool]) -> None:
    check_again(UNARY[name], [data("float32", (7, 19), 0)])
    assert native == [True] * len(native) != []


def test_steps_without_native_code_stand_between_those_that_have_it(native: list[bool]) -> None:
    check_again(lambda x, i: x.at[i].add(1), [data("float32", (9, 4), 0), np.array([3, -1, 3])])
    assert {*native} == {True, False}


def test_results_of_several_calls_are_apart() -> None:
    x = jnp.arange(6.0).reshape(2, 3)
    results = [nn.softmax(x) for _ in range(20)]
    assert len({r.unsafe_buffer_pointer() for r in results}) == 20
    f = anima.jit(lambda r: r + 1, donate_argnums=0)
    before = np.asarray(results[-1]).copy()
    f(results[-2])
    np.testing.assert_array_equal(results[-1], before)
    np.testing.assert_array_equal(nn.softmax(x), before)


def test_a_deleted_array_is_noticed() -> None:
    x = jnp.arange(6.0)
    for _ in range(TIMES):
        nn.softmax(x)
    x.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        nn.softmax(x)


def test_a_list_may_change_between_calls() -> None:
    x, y = jnp.arange(3.0), jnp.ones(3)
    given = [x, y]
    for _ in range(TIMES):
        jnp.stack(given)
    given[1] = x
    np.testing.assert_array_equal(jnp.stack(given), [[0, 1, 2]] * 2)
    given.append(y)
    assert jnp.stack(given).shape == (3, 3)


def test_each_update_in_a_wider_type_warns() -> None:
    for _ in range(TIMES):
        with pytest.warns(FutureWarning, match="scatter inputs have incompatible types"):
            jnp.arange(3).at[0].set(1.5)


def test_results_with_names_keep_them() -> None:
    for _ in range(TIMES):
        out = jnp.linalg.slogdet(jnp.eye(3) * 2)
    assert type(out).__name__ == "SlogdetResult" and np.isclose(out.logabsdet, 3 * np.log(2))


def test_arrays_of_numpy_are_taken_as_they_are_at_each_call() -> None:
    values, places = np.arange(6, dtype=np.float32), np.array([0, 2])
    x = jnp.arange(10.0)
    for k in range(5):
        values[0], places[1] = k, k
        kept = jnp.reshape(values, (2, 3))
        np.testing.assert_array_equal(jnp.mean(values), values.mean(dtype=np.float32))
        np.testing.assert_array_equal(x[places], np.asarray(x)[places])
        np.testing.assert_array_equal(x.at[places].add(1), np.asarray(x) + np.isin(np.arange(10), places)
                                      + (k == 0) * (np.arange(10) == 0))
        np.testing.assert_array_equal(jnp.concatenate([x, values]), np.concatenate([x, values]))
        values[0] = -1
        assert kept[0, 0] == k


def test_arrays_of_numpy_that_must_be_narrowed() -> None:
    x = jnp.arange(10.0)
    for far in (2**32, 2**32 + 1, -2**40):
        for _ in range(4):
            np.testing.assert_array_equal(jnp.isnan(x.at[np.array([far, 1])].get(mode="fill")), [True, False])
            np.testing.assert_array_equal(x.at[np.array([far, 1])].set(5.0), x.at[1].set(5.0))
    for _ in range(4):
        assert jnp.sort(np.array([3.0, 1.0])).dtype == jnp.float32
        assert jnp.sum(np.array([3, 1])).dtype == jnp.int32
        with anima.transfer_guard("disallow"), pytest.raises(anima.errors.AnimaRuntimeError):
            jnp.sum(np.ones(3, np.float32))
