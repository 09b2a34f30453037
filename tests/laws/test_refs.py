"""Random programs on references do what NumPy's arrays do, transformed in any way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
from anima import numpy as jnp
from tests.laws.ref_programs import SIZE, Program

COUNT = 3  # programs for each way


def through(transform: Callable[..., Any], p: Program, xs: np.ndarray) -> np.ndarray:
    """What a program makes of references that it is given."""
    refs = [anima.new_ref(xs), anima.new_ref(jnp.zeros(xs.shape))]
    transform(p.on)(*refs)
    return np.concatenate([np.asarray(anima.freeze(r)) for r in refs], axis=-1)


ONE: dict[str, Callable[..., Any]] = {
    "eager": lambda p, x: p(x), "jit": lambda p, x: anima.jit(p)(x), "given": lambda p, x: through(anima.jit, p, x)}
MANY: dict[str, Callable[..., Any]] = {
    "vmap": lambda p, xs: anima.jit(anima.vmap(p))(xs),
    "given": lambda p, xs: through(lambda f: anima.jit(anima.vmap(f)), p, xs)}
SLOPES: dict[str, Callable[..., Any]] = {
    "grad": lambda f, x, v: np.sum(np.asarray(anima.grad(f)(x)) * v),
    "jit of grad": lambda f, x, v: np.sum(np.asarray(anima.jit(anima.grad(f))(x)) * v),
    "jvp": lambda f, x, v: anima.jvp(anima.jit(f), (x,), (v,))[1]}
CASES = [(seed, way) for k, way in enumerate(ONE) for seed in range(COUNT * k, COUNT * (k + 1))]


@pytest.mark.parametrize("seed,way", CASES)
def test_values(seed: int, way: str) -> None:
    with anima.enable_x64(True):
        p, x = Program(seed), np.random.default_rng(seed).normal(size=SIZE)
        np.testing.assert_allclose(ONE[way](p, x), p.numpy(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed,way", [(100 + s + COUNT * k, way) for k, way in enumerate(MANY) for s in range(COUNT)])
def test_stacks(seed: int, way: str) -> None:
    with anima.enable_x64(True):
        p, xs = Program(seed), np.random.default_rng(seed).normal(size=(3, SIZE))
        np.testing.assert_allclose(MANY[way](p, xs), np.stack([p.numpy(x) for x in xs]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed,way", [(200 + s + COUNT * k, way) for k, way in enumerate(SLOPES) for s in range(COUNT)])
def test_slopes(seed: int, way: str) -> None:
    with anima.enable_x64(True):
        p, rng = Program(seed), np.random.default_rng(seed)
        x, v, w, h = rng.normal(size=SIZE), rng.normal(size=SIZE), rng.normal(size=2 * SIZE), 1e-6
        difference = np.sum((p.numpy(x + h * v) - p.numpy(x - h * v)) * w) / (2 * h)
        slope = SLOPES[way](lambda x: jnp.sum(p(x) * w), x, v)
        np.testing.assert_allclose(slope, difference, rtol=1e-4, atol=1e-4 * (1 + abs(difference)))


def add(x: np.ndarray, y: Any) -> np.ndarray:
    return x | y if x.dtype == bool else (x + y).astype(x.dtype)


PLACES = (np.s_[...], np.s_[:], 0, -1, np.s_[2:5], np.s_[::-1], np.s_[::-2], np.s_[5:1:-2], np.s_[3:3])


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool"])
@pytest.mark.parametrize("size", [6, 70_000])  # of the second, memory is the run time's
def test_arrays_that_were_read_or_given_stay_as_they_were(size: int, dtype: str) -> None:
    """Whatever is written later, in whatever way; and each way means what it means to NumPy."""
    rng = np.random.default_rng(size)
    compiled = anima.jit(lambda ref, v: ref.__setitem__(1, v))
    twice = anima.jit(lambda x: jnp.flip(jnp.flip(x)))

    def some(n: int) -> np.ndarray:
        return rng.integers(0, 2 if dtype == "bool" else 9, n).astype(dtype)

    for _ in range(12 if size < 100 else 3):
        model = some(size)
        kept: list[tuple[Any, np.ndarray]] = []

        def keep(x: Any, kept: list[tuple[Any, np.ndarray]] = kept) -> Any:
            kept.append((x, np.array(x)))
            return x

        made = (lambda x: x, jnp.asarray, lambda x: twice(jnp.asarray(x)))[rng.integers(3)]
        ref = anima.new_ref(keep(made(model.copy())))
        for _ in range(25):
            place = PLACES[rng.integers(len(PLACES))]
            value: Any = some(model[place].size)[0] if np.ndim(model[place]) == 0 else some(len(model[place]))
            match rng.integers(7):
                case 0:
                    assert keep(ref[place]).tolist() == model[place].tolist()
                case 1:
                    ref[place] = keep(jnp.asarray(value))
                    model[place] = value
                case 2:
                    ref[...] = keep(twice(jnp.asarray(new := some(size))))
                    model[...] = new
                case 3:
                    ref[place] += keep(jnp.asarray(value))
                    model[place] = add(model[place], value)
                case 4:
                    ref.addupdate(keep(jnp.asarray(value)), place)
                    model[place] = add(model[place], value)
                case 5:
                    compiled(ref, value if np.ndim(value) == 0 else model[2])
                    model[1] = value if np.ndim(value) == 0 else model[2]
                case 6:  # a view of a view
                    ref.at[1:].at[::-1][0] = value if np.ndim(value) == 0 else model[0]
                    model[-1] = value if np.ndim(value) == 0 else model[0]
            keep(ref[...])
            for array, before in kept:
                assert np.array_equal(array, before)
            assert np.array_equal(ref[...], model)
        assert np.array_equal(anima.freeze(ref), model)


@pytest.mark.parametrize("weak", [False, True])
@pytest.mark.parametrize("value", [2.0, np.float32(2), jnp.float32(2), 2])
def test_a_reference_keeps_its_type(value: Any, weak: bool) -> None:
    """Weak or not, whatever is written to it."""
    for write in (lambda r: r.__setitem__(..., value), lambda r: r.addupdate(value), lambda r: anima.jit(
            lambda r: r.__setitem__(..., value))(r), lambda r: r.__setitem__((), jnp.asarray(value) * 1)):
        ref = anima.new_ref(jnp.asarray(1.0) if weak else jnp.float32(1))
        before = ref.aval.inner_aval
        write(ref)
        assert (ref[...] * 1).aval == before == anima.freeze(ref).aval


@pytest.mark.parametrize("first", [np.s_[::-1], np.s_[4::-1], np.s_[1:], np.s_[::2], np.s_[::-2], np.s_[5:0:-1]],
                         ids=str)
def test_views_of_views_are_those_of_numpy(first: slice) -> None:
    """Slices of slices, forwards and backwards, to the ends and short of them; read and written."""
    for second in (np.s_[...], np.s_[:], np.s_[::-1], np.s_[1:], np.s_[:-1], np.s_[2:0:-1], np.s_[::2], 0, -1):
        for compiled in (False, True):
            model = np.arange(6, dtype="float32")
            ref, view = anima.new_ref(model), model[first]

            def change(ref: Any, second: Any = second) -> Any:
                before = ref.at[first][second]
                ref.at[first].at[second][...] += 10
                ref.at[first][second] = ref.at[first][second] * 2
                return before

            before = (anima.jit(change) if compiled else change)(ref)
            assert np.array_equal(before, view[second])
            view[second] = (view[second] + 10) * 2
            assert np.array_equal(ref[...], model), (second, compiled)
