"""Errors of operations that run at once show the user's frames, not Anima's; unless one asks for all."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax, nn, random

X = jnp.ones(3)
M = jnp.ones((2, 3))
KEY = random.key(0)


@anima.custom_jvp
def doubled(x: Any) -> Any:
    return jnp.reshape(x, (2,)) * 2


@jnp.vectorize
def narrow(x: Any) -> Any:
    return x.reshape(2)


WRONG: dict[str, Callable[[], Any]] = {
    "operator": lambda: X + jnp.ones(4),
    "reflected operator": lambda: np.ones(4) + X,
    "matmul": lambda: X @ jnp.ones(4),
    "comparison": lambda: M[0] < jnp.ones(4),
    "method": lambda: X.reshape(2, 2),
    "method with keyword": lambda: X.sum(axis=3),
    "function of a list": lambda: jnp.sum([1]),
    "function": lambda: jnp.concatenate([X, M]),
    "function by NumPy": lambda: jnp.broadcast_shapes((2,), (3,)),
    "alias": lambda: jnp.absolute("text"),
    "ufunc": lambda: jnp.add(X, jnp.ones(4)),
    "ufunc method": lambda: jnp.add.reduce(X, axis=5),
    "elementwise primitive": lambda: lax.add(X, jnp.ones(4)),
    "elementwise primitive, bad count": lambda: lax.add(X),
    "structural primitive": lambda: lax.reshape(X, (2, 2)),
    "lax function": lambda: lax.dot_general(X, X, (((3,), (0,)), ((), ()))),
    "cond": lambda: lax.cond(X, lambda: 1, lambda: 2),
    "index": lambda: X["a"],
    "index of too many": lambda: X[0, 1],
    "at": lambda: X.at[0].set(jnp.ones(4)),
    "at, method": lambda: X.at["a"].add(1),
    "assignment": lambda: X.__setitem__(0, 1.0),
    "bool": lambda: bool(X),
    "float": lambda: float(X),
    "int": lambda: int(X),
    "len": lambda: len(jnp.float32(1)),
    "iter": lambda: iter(jnp.float32(1)),
    "mgrid": lambda: jnp.mgrid[0:"a"],
    "r_": lambda: jnp.r_[M, X],
    "vectorize": lambda: narrow(X),
    "random": lambda: random.normal(KEY, (-1,)),
    "random, without key": lambda: random.uniform(X),
    "split": lambda: random.split(X),
    "nn": lambda: nn.softmax(X, axis=4),
    "nn, custom_jvp": lambda: nn.relu("text"),
    "custom_jvp": lambda: doubled(X),
    "initializer": lambda: nn.initializers.lecun_normal()(KEY, (3,)),
    "linalg": lambda: jnp.linalg.inv(M),
    "lax.linalg": lambda: lax.linalg.cholesky(X),
    "device_put": lambda: anima.device_put("text"),
}


def frames_of(wrong: Callable[[], Any]) -> list[str]:
    with pytest.raises(Exception) as caught:
        wrong()
    chain: list[str] = []
    error: BaseException | None = caught.value
    while error is not None:
        chain += [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        error = None if error.__suppress_context__ else error.__context__
    return chain


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_only_the_users_frames_are_shown(wrong: Callable[[], Any]) -> None:
    assert set(frames_of(wrong)) == {__file__}


def test_full_tracebacks_show_all() -> None:
    with anima.config.option("traceback")("full"):
        assert any(name != __file__ for name in frames_of(WRONG["operator"]))


def test_the_users_functions_in_between_are_kept() -> None:
    def inner(carry: Any, x: Any) -> Any:
        return carry + jnp.ones(4), x

    with pytest.raises(TypeError) as caught:
        lax.scan(inner, X, M)
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names == ["test_the_users_functions_in_between_are_kept", "inner"]


def test_public_functions_are_found_by_pickle_under_their_public_names() -> None:
    for function in (jnp.sum, jnp.absolute, jnp.linalg.inv, lax.reshape, lax.cond, random.key, nn.silu):
        assert pickle.loads(pickle.dumps(function)) is function
    assert jnp.sum.__module__ == "anima.numpy"
    assert jnp.abs is jnp.absolute


def test_recursion_without_end() -> None:
    def again(x: Any) -> Any:
        return anima.jit(lambda y: again(y))(x)

    with pytest.raises(RecursionError):
        again(1.0)
