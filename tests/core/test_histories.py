"""Random histories of calls outside of jit: whatever was called before, on which types, under which options, by which
threads, a call gives what it gives where nothing is remembered."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.runtime import calling

SHAPES = ((), (1,), (3,), (2, 3), (0,), (0, 3), (1, 3), (2, 1))
DTYPES = ("f4", "i4", "u1", "?", "f2", "c8", "i8", "f8", "i1", "bfloat16")


class Sub(np.ndarray):
    """An array of NumPy's that is none of its own."""


class Unit(float):
    """A number that is more than one."""


def value(rng: np.random.Generator) -> Any:
    """An operand of some kind: arrays of ours, weak and strong, NumPy's, their scalars, Python's numbers."""
    shape, dtype = SHAPES[rng.integers(len(SHAPES))], DTYPES[rng.integers(len(DTYPES))]
    made = np.asarray(np.abs(rng.normal(size=shape) * 3)).astype(jnp.bfloat16 if dtype == "bfloat16" else dtype)
    match rng.integers(10):
        case 0:
            return made
        case 1:
            return made.view(Sub)
        case 2:
            return made.reshape(-1)[:1].sum()
        case 3:
            return (2, 1.5, True, Unit(2.5), 1j, -0.0, 0.0, float("nan"), 2**31, -1)[rng.integers(10)]
        case 4:
            return jnp.asarray((2, 1.5, True, 1j)[rng.integers(4)])
        case _:
            return jnp.asarray(made)


FUNCTIONS: tuple[Callable[[Any, Any], Any], ...] = (
    jnp.add, jnp.subtract, jnp.multiply, jnp.true_divide, jnp.less, jnp.equal, jnp.maximum, jnp.power, jnp.floor_divide,
    jnp.logical_and, jnp.arctan2, jnp.outer, lambda x, y: jnp.asarray(x) + y, lambda x, y: x - jnp.asarray(y),
    lambda x, y: jnp.where(x == y, x, y), lambda x, y: jnp.clip(x, None, y), lambda x, y: jnp.sum(x),
    lambda x, y: jnp.sum(x, keepdims=True), lambda x, y: jnp.mean(y), lambda x, y: jnp.std(x, ddof=1),
    lambda x, y: jnp.stack([x, x]), lambda x, y: jnp.concatenate([jnp.ravel(x), jnp.ravel(y)]),
    lambda x, y: jnp.asarray(x)[None], lambda x, y: -jnp.asarray(x), lambda x, y: jnp.abs(y), lambda x, y: jnp.exp(x),
    lambda x, y: jnp.full_like(x, 1), lambda x, y: jnp.zeros_like(y), lambda x, y: jnp.sort(jnp.ravel(x)),
    lambda x, y: jnp.cumsum(x), lambda x, y: jnp.any(y), lambda x, y: jnp.linspace(x, y, 3), lambda x, y: jnp.sign(x),
    lambda x, y: jnp.round(x, 1), lambda x, y: jnp.asarray(y).astype("f4"), lambda x, y: jnp.isnan(y),
    lambda x, y: anima.nn.relu(x), lambda x, y: anima.nn.softmax(y), lambda x, y: jnp.real(x),
    lambda x, y: jnp.atleast_1d(x).at[:1].set(1), lambda x, y: lax.neg(jnp.asarray(x)), lambda x, y: divmod(x, y),
    lambda x, y: jnp.take(jnp.ravel(x), np.array([0, 5]), mode="fill", fill_value=-0.0),
    lambda x, y: jnp.take(jnp.ravel(x), np.array([0, 5]), mode="fill", fill_value=0.0),
    lambda x, y: lax.integer_pow(jnp.asarray(x), 2), lambda x, y: jnp.expand_dims(x, -1) * y)
OPTIONS: tuple[Callable[[], Any], ...] = (
    *[contextlib.nullcontext] * 5, lambda: anima.enable_x64(True), lambda: anima.numpy_dtype_promotion("strict"),
    lambda: anima.numpy_rank_promotion("raise"), anima.disable_jit)


def outcome(fun: Callable[..., Any], *args: Any) -> Any:
    """Types and bits of the results, or the kind of error."""
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
            return [(type(o), o.shape, str(o.dtype), getattr(o, "weak_type", None), np.asarray(o).tobytes())
                    for o in anima.tree.leaves(fun(*args))]
    except Exception as error:
        return type(error)


def history(seed: int, steps: int) -> Iterator[str]:
    """What differs."""
    rng = np.random.default_rng(seed)
    pool = [value(rng) for _ in range(12)]
    for _ in range(steps):
        if rng.random() < 0.2:
            pool[rng.integers(len(pool))] = value(rng)
        fun, option = FUNCTIONS[rng.integers(len(FUNCTIONS))], OPTIONS[rng.integers(len(OPTIONS))]
        x, y = (pool[k] for k in rng.integers(len(pool), size=2))
        if rng.random() < 0.02 and isinstance(x, anima.Array):
            x.delete()
        with option():
            found = [outcome(fun, x, y) for _ in range(rng.integers(1, 4))]
            with anima.default_device(anima.devices()[0]):  # then nothing is remembered
                wanted = outcome(fun, x, y)
        if any(f != wanted for f in found):
            yield f"{FUNCTIONS.index(fun)} of {x!r} and {y!r} under {option}: {found}, wanted {wanted}"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("compiles", [False, True])
def test_histories(seed: int, compiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calling._module()  # else native code waits for more calls
    monkeypatch.setattr("anima.api.eager._WORTH", 0.0 if compiles else 1e9)
    assert next(history(seed, 150), None) is None


def test_histories_of_threads() -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda k=k: found.extend(history(100 + k, 60))) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not found
