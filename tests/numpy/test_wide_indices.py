"""Indices far out of range, of every integer dtype: they are out of range, eager and compiled, and stay so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax

N = 5
DTYPES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
MODES = ["clip", "fill", "drop", "promise_in_bounds", None]
COMBINE = {"set": lambda a, b: b, "add": lambda a, b: a + b, "multiply": lambda a, b: a * b, "min": min, "max": max}


def indices(dtype: str) -> np.ndarray:
    """Numbers inside, at the edges, and beyond: those that become small when cut to 32, 16 or 8 bits among them."""
    info = np.iinfo(dtype)
    wide = [s * 2**b + k for b in (7, 8, 15, 16, 31, 32, 33, 62, 63) for s in (1, -1) for k in (-1, 0, 1, 3)]
    near = [0, 1, N - 1, N, N + 1, -1, -N, -N - 1]
    return np.array([i for i in [*near, *wide, info.min, info.max] if info.min <= i <= info.max], dtype)


def place(i: int, clip: bool, wrap: bool = True) -> int | None:
    """Which element an index names; None: none."""
    i = i + N if wrap and i < 0 else i
    return min(max(i, 0), N - 1) if clip else i if 0 <= i < N else None


@pytest.fixture(params=[False, True], ids=["x32", "x64"])
def x64(request: Any) -> Any:
    with anima.enable_x64(request.param):
        yield request.param


def both(function: Callable[..., Any], *args: Any) -> list[Any]:
    """The results of the function, and of the compiled one."""
    return [np.asarray(function(*args)), np.asarray(anima.jit(function)(*args))]


def known(dtype: str, x64: bool) -> np.ndarray:
    if "64" in dtype and not x64:
        pytest.skip("arguments of 64 bits are cut before a program sees them")
    return indices(dtype)


@pytest.mark.parametrize("wrap", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_reading(dtype: str, mode: Any, wrap: bool, x64: bool) -> None:
    x, index = jnp.arange(N, dtype="float32") + 10, known(dtype, x64)
    clip = mode in ("clip", "promise_in_bounds", None)
    where = [place(int(i), clip, wrap) for i in index]
    want = np.array([np.nan if p is None else p + 10 for p in where], "float32")
    for got in both(lambda x, i: x.at[i].get(mode=mode, wrap_negative_indices=wrap), x, index):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", COMBINE)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_writing(dtype: str, mode: Any, kind: str, x64: bool) -> None:
    index = known(dtype, x64)
    want = np.arange(N) + 10
    for k, i in enumerate(index):
        p = place(int(i), mode == "clip")
        if p is not None:
            want[p] = COMBINE[kind](want[p], k % 3)
    values = (np.arange(len(index)) % 3).astype("int32")
    for got in both(lambda x, i: getattr(x.at[i], kind)(values, mode=mode), jnp.arange(N, dtype="int32") + 10, index):
        np.testing.assert_array_equal(got, want.astype("int32"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_indices(dtype: str, x64: bool) -> None:
    index = known(dtype, x64)
    x, ones = jnp.arange(N, dtype="float32"), np.ones(len(index), "float32")
    filled = np.array([np.nan if (p := place(int(i), False)) is None else p for i in index], "float32")
    around = np.array([int(i) % N for i in index], "float32")
    inside = [int(i) for i in index if 0 <= int(i) < N]
    counts = np.bincount(inside, minlength=N)
    for function, want in [
            (lambda i: jnp.take(x, i), filled), (lambda i: jnp.take_along_axis(x, i, 0), filled),
            (lambda i: jnp.take(x, i, mode="wrap"), around),
            (lambda i: jnp.bincount(jnp.maximum(i, 0) if dtype[0] == "i" else i, length=N)[1:], counts[1:]),
            (lambda i: anima.ops.segment_sum(ones, i, N), counts),
            (lambda i: anima.nn.one_hot(i, N), np.array([np.arange(N) == int(i) for i in index], "float32")),
            (lambda i: lax.index_take(x, (i,), (0,)), [place(int(i), True) for i in index])]:
        for got in both(function, index):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scalar_indices(dtype: str, x64: bool) -> None:
    x = jnp.arange(N, dtype="float32")
    functions: list[tuple[Callable[[Any], Any], Callable[[int], Any]]] = [
        (lambda i: x[i], lambda i: place(i, True)),
        (lambda i: x.at[i].add(1).sum(), lambda i: 10 + (place(i, False) is not None)),
        (lambda i: lax.dynamic_slice(x, (i,), (2,)), lambda i: start(i) + np.arange(2)),
        (lambda i: lax.dynamic_update_slice(x, x[:2] + 50, (i,)),
         lambda i: [k if k - start(i) not in (0, 1) else k - start(i) + 50 for k in range(N)]),
        (lambda i: lax.switch(i, [lambda k=k: k for k in range(N)]), lambda i: min(max(i, 0), N - 1)),
        (lambda i: jnp.roll(x, i), lambda i: np.roll(np.arange(N), i % N))]

    def start(i: int) -> int:
        return min(place(i, True) or 0, N - 2)

    for function, wanted in functions:
        fast = anima.jit(function)
        for i in known(dtype, x64):
            for got in (np.asarray(function(i)), np.asarray(fast(i))):
                np.testing.assert_array_equal(got, wanted(int(i)))


@pytest.mark.parametrize("i", [2**31, 2**32, 2**32 + 1, 2**63, 2**80, -2**31 - 1, -2**32, -2**80])
def test_numbers_as_they_are_written(i: int, x64: bool) -> None:
    x = jnp.arange(N, dtype="float32")
    kinds = [lambda k: k] + [np.int64] * (-2**63 <= i < 2**63)
    for kind in kinds:
        value = kind(i)
        for run in (lambda f: f(x), lambda f: anima.jit(f)(x)):
            assert run(lambda x, value=value: x[value]) == (N - 1 if i > 0 else 0)
            np.testing.assert_array_equal(run(lambda x, value=value: x.at[value].add(7)), np.arange(N))
            assert np.isnan(run(lambda x, value=value: x.at[value].get(mode="fill")))
    if len(kinds) > 1:
        array = np.array([i, 2])
        for run in (lambda f: f(x), lambda f: anima.jit(f)(x)):
            np.testing.assert_array_equal(run(lambda x: x[array]), [N - 1 if i > 0 else 0, 2])
            np.testing.assert_array_equal(run(lambda x: jnp.take(x, array)), [np.nan, 2])
            np.testing.assert_array_equal(run(lambda x: jnp.take(x, array, mode="wrap")), [i % N, 2])
            np.testing.assert_array_equal(run(lambda x: x.at[array].set(9)), [0, 1, 9, 3, 4])


@pytest.mark.parametrize("i, slope", [(2, 1.0), (-1, 1.0), (9, 0.0), (-9, 0.0)])
def test_tangents_are_read_and_no_cotangent_flows_through_a_broken_promise(i: int, slope: float) -> None:
    x, index = jnp.arange(N, dtype="float32"), jnp.array([i])
    for wrap in (lambda f: f, anima.jit):
        assert wrap(anima.grad(lambda x: x[index].sum()))(x).sum() == slope
        assert wrap(lambda x: anima.jvp(lambda x: x[index].sum(), (x,), (jnp.ones(N),))[1])(x) == 1.0
        updated = wrap(anima.grad(lambda u: x.at[index].add(u, mode="promise_in_bounds").sum()))
        assert updated(jnp.ones(1)).sum() == slope
        assert wrap(anima.grad(lambda x: x.at[index].get(mode="clip").sum()))(x).sum() == 1.0


@pytest.mark.parametrize("dtype", DTYPES[:3] + DTYPES[4:7])
@pytest.mark.parametrize("shape, axis", [((0,), 0), ((0, 3), 0), ((3, 0), 1)])
def test_an_axis_of_size_0_takes_no_updates(dtype: str, shape: tuple[int, ...], axis: int) -> None:
    x, index = jnp.zeros(shape), (slice(None),) * axis + (jnp.array([0, 1], dtype),)
    for wrap in (lambda f: f, anima.jit):
        for kind in COMBINE:
            assert wrap(lambda x, kind=kind: getattr(x.at[index], kind)(1.0))(x).shape == shape
        assert wrap(anima.grad(lambda x: x.at[index].add(1.0).sum()))(x).shape == shape
        assert (wrap(anima.grad(lambda u: x.at[index].add(u).sum()))(1.0)) == 0.0
    with pytest.raises(IndexError, match="out of bounds for axis"):
        x[index]
    assert x[(slice(None),) * axis + (jnp.zeros((0, 2), dtype),)].size == 0


@pytest.mark.parametrize("dtype", DTYPES[:3] + DTYPES[4:7])
@pytest.mark.parametrize("shape", [(5, 3), (20, 30), (300, 300), (1,), (), (2, 0)])
def test_unravel_index_of_small_types(dtype: str, shape: tuple[int, ...]) -> None:
    index = np.array([0, 1, 5, 14, 100]).astype(dtype)
    total = int(np.prod(shape))
    want = np.unravel_index(np.minimum(index.astype(int), total - 1), shape) if total and shape else None
    for got in (jnp.unravel_index(index, shape), anima.jit(jnp.unravel_index, static_argnums=1)(index, shape)):
        assert len(got) == len(shape) and all(g.dtype == dtype for g in got)
        for g, w in zip(got, want or (), strict=False):
            np.testing.assert_array_equal(g, w)


@pytest.mark.parametrize("dtype", DTYPES)
def test_powers_of_two_of_every_integer(dtype: str, x64: bool) -> None:
    index = known(dtype, x64)
    with np.errstate(over="ignore"):
        want = np.ldexp(np.float32(1), np.clip(index.astype(object), -1000, 1000).astype(int))
    for got in both(lambda i: jnp.ldexp(np.float32(1), i), index):
        np.testing.assert_array_equal(got, want)


LONG = anima.ShapeDtypeStruct((2**31 + 17,), np.int8)
COUNTED: dict[str, Any] = {
    "at": lambda a: a.at[-3].set(9), "at a slice": lambda a: a.at[5:7].set(9), "gather": lambda a: a[np.array([5, -1])],
    "argmax": jnp.argmax, "argsort": jnp.argsort,
    "top_k": lambda a: lax.top_k(a, 3), "nonzero": lambda a: jnp.nonzero(a, size=3),
    "iota": lambda a: lax.iota(np.int32, 2**31 + 5),
    "a traced place": lambda a: lax.fori_loop(
        0, 2, lambda i, x: lax.dynamic_slice(a, (i,), (3,)), np.zeros(3, np.int8)),
    "filled": lambda a: a.at[4].get(mode="fill")}


@pytest.mark.parametrize("name", COUNTED)
def test_what_32_bits_cannot_count_is_refused(name: str) -> None:
    with pytest.raises(NotImplementedError, match=r"int32 has no numbers for all of the 2,147,.* reshape"):
        anima.eval_shape(COUNTED[name], LONG)


def test_what_is_known_of_long_dimensions_works() -> None:
    for f, shape in ((lambda a: a[-3], ()), (lambda a: a[2**31:], (17,)), (lambda a: a[::-1], LONG.shape),
                     (lambda a: jnp.roll(a, 3), LONG.shape), (lambda a: a.reshape(1, -1).sum(1), (1,))):
        assert anima.eval_shape(f, LONG).shape == shape
    with pytest.raises(OverflowError):
        lax.fori_loop(0, 2**31 + 3, lambda i, x: x + i, 0)
