"""Random indices of every kind, read and written, run and recorded, against NumPy."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.core.stage import eval_jaxpr


def _random_slice(rng: random.Random, n: int) -> slice:
    def bound() -> int | None:
        return rng.choice([None, *range(-n - 2, n + 3)])
    return slice(bound(), bound(), rng.choice([None, 1, 2, 3, -1, -2]))


def _random_array(rng: random.Random, n: int, shape: tuple[int, ...]) -> np.ndarray:
    dtype = rng.choice(["i4", "i8", "u1", "i1"])
    low = 0 if dtype == "u1" else -n
    return np.array([rng.randint(low, n - 1) for _ in range(int(np.prod(shape)))], dtype).reshape(shape)


def _random_index(rng: random.Random, shape: tuple[int, ...]) -> tuple[Any, ...]:
    batch = rng.choice([(2,), (3,), (2, 3), (1, 3), ()])
    index: list[Any] = []
    axis, ellipsis = 0, False
    while axis < len(shape) and rng.random() < 0.85:
        kind, n = rng.choice("issnaameb"), shape[axis]
        if kind == "i":
            index.append(rng.randint(-n, n - 1))
        elif kind == "s":
            index.append(_random_slice(rng, n))
        elif kind == "a":
            index.append(_random_array(rng, n, rng.choice([batch, batch[1:], (1,) * len(batch)])))
        elif kind == "m":
            index.append(np.array([rng.random() < 0.5 for _ in range(n)]))
        elif kind == "n":
            index.append(None)
        elif kind == "b":
            index.append(rng.choice([True, False]))
        elif not ellipsis:
            ellipsis = True
            index.append(Ellipsis)
            axis += rng.randint(0, len(shape) - axis)
        axis += kind in "isam"
    if ellipsis:
        index.extend([slice(None)] * (len(shape) - axis))
    return tuple(index)


def _cases(count: int) -> list[tuple[np.ndarray, tuple[Any, ...], np.ndarray]]:
    rng, cases = random.Random(7), []
    while len(cases) < count:
        shape = tuple(rng.randint(1, 4) for _ in range(rng.randint(1, 4)))
        x = np.arange(np.prod(shape), dtype="f").reshape(shape)
        index = _random_index(rng, shape)
        try:
            cases.append((x, index, x[index]))
        except (IndexError, ValueError):
            continue
    return cases


@pytest.mark.parametrize("batch", [(0,), (0, 2), (2, 0), (1, 0, 3)], ids=str)
@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (4, 3), (0,)], ids=str)
def test_no_indices_read_and_write_nothing(shape: tuple[int, ...], batch: tuple[int, ...]) -> None:
    """Not even of an axis without elements."""
    x, none = np.ones(shape, "f"), np.zeros(batch, "i4")
    for index in [(none,), (..., none), (none, slice(None)), (none, none), (none, np.zeros((), "i4"))]:
        if sum(e is not Ellipsis for e in index) > x.ndim or (0 in shape and np.ndim(index[-1]) == 0):
            continue
        for run in (lambda f: f, anima.jit):
            assert run(lambda x, index=index: x[index])(x).shape == x[index].shape
            for mode in ("fill", "clip"):
                assert run(lambda x, index=index, mode=mode: x.at[index].get(mode=mode))(
                    jnp.asarray(x)).shape == x[index].shape
            np.testing.assert_array_equal(run(lambda x, index=index: x.at[index].add(7.0))(jnp.asarray(x)), x)


@pytest.mark.parametrize("index, want", [(([0, -1],), (2, 0)), ((None, [3]), (1, 1, 0)),
                                         (([[0], [1]], slice(None, None, -1)), (2, 1, 0))], ids=str)
def test_results_without_elements_read_nothing(index: tuple[Any, ...], want: tuple[int, ...]) -> None:
    """Along an axis without elements: there is no place to be out of bounds at."""
    index = tuple(jnp.array(e) if isinstance(e, list) else e for e in index)
    x = jnp.eye(0)
    assert x[index].shape == anima.jit(lambda x: x[index])(x).shape == want
    assert anima.grad(lambda x: x[index].sum())(x).shape == (0, 0)
    with pytest.raises(IndexError, match="index is out of bounds for axis 0 with size 0"):
        jnp.zeros((0, 3))[index]


CASES = _cases(600)
CHUNKS = [CASES[i::12] for i in range(12)]


def _recorded(function, x: np.ndarray, index: tuple[Any, ...], *more: Any) -> np.ndarray:
    """`function(x, index, ...)` recorded with the index's integer arrays and every other int as arguments."""
    places = [i for i, e in enumerate(index)
              if (isinstance(e, np.ndarray) and e.dtype != bool) or (type(e) is int and i % 2 == 0)]

    def on_arrays(x, more, *arrays):
        entries = list(index)
        for place, array in zip(places, arrays, strict=True):
            entries[place] = array
        return function(x, tuple(entries), *more)

    arrays = [index[i] for i in places]
    program = anima.make_jaxpr(on_arrays)(x, more, *arrays)
    return np.asarray(eval_jaxpr(program.jaxpr, program.consts, *map(jnp.array, (x, *more, *arrays)))[0])


@pytest.mark.parametrize("cases", CHUNKS)
def test_reading(cases):
    for x, index, want in cases:
        got = jnp.array(x)[index]
        assert got.shape == want.shape, index
        np.testing.assert_array_equal(np.asarray(got), want, err_msg=str(index))
        np.testing.assert_array_equal(np.asarray(jnp.array(x).at[index].get(mode="fill", fill_value=-1)), want)
        np.testing.assert_array_equal(_recorded(lambda x, i: x[i], x, index), want, err_msg=str(index))


@pytest.mark.parametrize("cases", CHUNKS)
def test_writing(cases):
    for k, (x, index, read) in enumerate(cases):
        values = np.random.RandomState(k).randint(100, 200, read.shape).astype("f")
        for name, at in (("add", np.add.at), ("max", np.maximum.at)):
            want = x.copy()
            at(want, index, values)
            np.testing.assert_array_equal(np.asarray(getattr(jnp.array(x).at[index], name)(values)), want,
                                          err_msg=str(index))
        got = _recorded(lambda x, i, v: x.at[i].max(v), x, index, values)
        np.testing.assert_array_equal(got, want, err_msg=str(index))
        if not any(isinstance(e, (np.ndarray, bool)) for e in index):
            want = x.copy()
            want[index] = values
            np.testing.assert_array_equal(np.asarray(jnp.array(x).at[index].set(values)), want, err_msg=str(index))


def test_gradient_of_reading_is_writing():
    x, rows = jnp.arange(12.0).reshape(4, 3), jnp.array([1, 1, 3])
    grad = anima.grad(lambda x: (x[rows, 1:] * jnp.arange(6.0).reshape(3, 2)).sum())(x)
    want = np.zeros((4, 3))
    np.add.at(want, (np.array([1, 1, 3]), slice(1, None)), np.arange(6.0).reshape(3, 2))
    np.testing.assert_allclose(np.asarray(grad), want)


def test_vmapped_reading_and_writing():
    x, i = jnp.arange(12.0).reshape(3, 4), jnp.array([0, 3, 9])
    np.testing.assert_array_equal(np.asarray(anima.vmap(lambda r, k: r[k])(x, i)), [0.0, 7.0, 11.0])
    got = anima.vmap(lambda r, k: r.at[k].set(-1.0))(x, i)
    want = np.arange(12.0).reshape(3, 4)
    want[0, 0] = want[1, 3] = -1
    np.testing.assert_array_equal(np.asarray(got), want)


def test_one_dynamic_slice_reads_a_row():
    program = str(anima.make_jaxpr(lambda x, i: x[i, 1:3])(jnp.ones((4, 3)), 1))
    assert program.count("dynamic_slice[slice_sizes=(1, 2)]") == 1 and "gather" not in program


def test_lossy_update_warns():
    with pytest.warns(FutureWarning, match="scatter inputs have incompatible types"):
        assert jnp.arange(3).at[0].set(1.5).tolist() == [1, 1, 2]


def test_apply_once_for_each_time_an_element_is_named():
    index = jnp.array([1, 1, 0])
    double = lambda x: x.at[index].apply(lambda v: v * 2)
    assert double(jnp.ones(3)).tolist() == [2.0, 4.0, 1.0]
    assert anima.vmap(double)(jnp.ones((2, 3))).tolist() == [[2.0, 4.0, 1.0]] * 2


def test_products_at_a_traced_index_have_gradients() -> None:
    x = jnp.array([1.0, 2.0, 3.0])

    def total(a: Any, i: Any) -> Any:
        return a.at[i].mul(a[1]).sum()

    np.testing.assert_array_equal(anima.jit(anima.grad(total))(x, 1), [1.0, 4.0, 1.0])
    np.testing.assert_array_equal(anima.vmap(anima.grad(total), (None, 0))(x, jnp.arange(2)), [[2, 2, 1], [1, 4, 1]])
    with pytest.raises(NotImplementedError, match="unique_indices"):
        anima.grad(total)(x, jnp.array([0, 0]))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("size", [1, 127, 128, 129, 255, 256, 257, 40_000])
def test_clipped_scalar_index_of_a_small_type(dtype: str, size: int) -> None:
    """The last place may be more than the type of the index holds."""
    for place in (0, 3, np.iinfo(dtype).max, np.iinfo(dtype).min):
        for take in (jnp.take, anima.jit(jnp.take, static_argnames="mode")):
            got = take(np.arange(size), np.asarray(place, dtype), mode="clip")
            assert int(got) == min(max(place, 0), size - 1)


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0], (1, 2, 3), range(1, 4), [True, 2, 3.5], [[1], [2]]])
@pytest.mark.parametrize("op", ["set", "add", "multiply", "max"])
def test_updates_take_sequences(values, op):
    """What `asarray` makes of them."""
    x = jnp.ones((2, 3))
    np.testing.assert_array_equal(getattr(x.at[:], op)(values), getattr(x.at[:], op)(np.asarray(values, np.float32)))


def test_bools_take_the_first_and_the_second() -> None:
    x = jnp.arange(3.0)
    assert jnp.take(x, np.array([True, False])).tolist() == [1, 0] and float(jnp.take(x, True)) == 1


def test_lists_of_traced_indices() -> None:
    x = np.arange(42.0).reshape(2, 3, 7)
    index = (((1, 1), (1, 0)), 1)
    read = anima.jit(lambda x, i: x[i])
    np.testing.assert_array_equal(read(x, index), x[np.array(index[0]), 1])
    np.testing.assert_array_equal(anima.jit(lambda x, a: x[(a, a + 1), 2])(x, 0), x[[0, 1], 2])
    changed = anima.jit(lambda x, i: x.at[i].set(1.0))(x, index)
    want = x.copy()
    want[np.array(index[0]), 1] = 1.0
    np.testing.assert_array_equal(changed, want)


# ---------------------------------------------------------------- single elements outside of transformations


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "complex64", "int4", "float64"])
def test_single_elements(dtype: str) -> None:
    with anima.enable_x64(True):
        x = jnp.asarray(np.arange(-6, 6).reshape(3, 1, 4)).astype(dtype)
        for place in itertools.product(range(-3, 3), (-1, 0), range(-4, 4)):
            got = x[place]
            assert (got.shape, got.dtype, got.weak_type) == ((), x.dtype, False)
            assert np.asarray(got) == np.asarray(x)[place]


def test_single_elements_are_arrays_of_their_own() -> None:
    x, scalar, weak = jnp.arange(4.0), jnp.float32(2), jnp.asarray(3) * jnp.ones((2,))
    assert x[1].unsafe_buffer_pointer() != x.unsafe_buffer_pointer() + 4  # and do not keep all of x
    assert scalar[()] == 2 and scalar[()].shape == ()
    assert lax.full((3,), 1)[1].weak_type == lax.full((3,), 1).weak_type and weak[0].dtype == weak.dtype
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(x[1])[...] = 0
    x.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        x[1]


def test_what_is_no_place_of_a_single_element() -> None:
    x = jnp.arange(6.0).reshape(2, 3)
    for index in (True, (True, 1), (np.int64(1), 2), (jnp.int32(1), 2), (1, slice(None)), (None, 1, 1), (..., 1), 1):
        np.testing.assert_array_equal(x[index], np.asarray(x)[np.asarray(index) if index is True else index])
    for index in ((2, 0), (0, -4), (-3, 0), (10**30, 0)):
        np.testing.assert_array_equal(x[index], anima.jit(lambda x, index=index: x[index])(x))
    with pytest.raises(IndexError, match="Too many indices"):
        x[1, 2, 0]
    keys = anima.random.split(anima.random.key(0), 3)
    assert anima.random.key_data(keys[1]).tolist() == anima.random.key_data(keys)[1].tolist()


def test_single_elements_within_functions_that_are_recorded_and_transformed() -> None:
    def f(x: Any) -> Any:
        return x[0, 1] * x[1, 2] + x[-1, -3]

    x = jnp.arange(6.0).reshape(2, 3)
    wanted = float(f(x))
    for g in (anima.jit(f), lambda x: anima.vmap(f)(x[None])[0], lambda x: anima.jvp(f, (x,), (x,))[0]):
        for _ in range(4):
            assert float(g(x)) == wanted
    np.testing.assert_array_equal(anima.grad(f)(x), [[0, 5, 0], [1, 0, 1]])
    for k in range(4):  # a function outside of transformations that finds again what it applied
        np.testing.assert_array_equal(jnp.unwrap(x[0] + k), np.unwrap(np.arange(3.0) + k))
    with anima.debug_nans(True):
        assert float(x[1, 2]) == 5
        with pytest.raises(FloatingPointError):
            jnp.array([1.0, np.nan])[1] * 2
