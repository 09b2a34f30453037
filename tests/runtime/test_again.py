"""Operators and functions found again by native code: what they give is what they gave before there was any."""

from __future__ import annotations

import gc
import operator
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.core import ways
from anima.core.array import Array, ConcreteArray, operators
from anima.core.trace import EVAL
from anima.numpy import elementwise
from anima.runtime import again

RNG = np.random.default_rng(0)
BINARY = [getattr(operator, name) for name in (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lt", "le", "gt", "ge", "eq", "ne", "and_",
    "or_", "xor", "lshift", "rshift")] + [divmod]
UNARY = [operator.neg, operator.pos, abs, operator.invert]


@pytest.fixture(autouse=True)
def loaded() -> Iterator[None]:
    again.load()
    assert type(EVAL.again).__name__ == "builtin_function_or_method"
    yield
    EVAL.forget()


def outcome(fun: Callable[..., Any], *args: Any) -> Any:
    """The result in full, but for the signs of NaNs, or the error."""
    try:
        out = fun(*args)
    except (TypeError, ValueError, IndexError, RuntimeError, OverflowError) as error:
        return type(error), str(error)
    return [(x.dtype, x.shape, x.weak_type, np.where(x == x, x, np.ones((), x.dtype)).tobytes(), np.isnan(x).tobytes())
            if isinstance(x, Array) else x for x in (out if isinstance(out, tuple) else (out,))]


@pytest.mark.parametrize("fun", BINARY, ids=lambda f: f.__name__)
def test_operators(fun: Callable[..., Any]) -> None:
    floats = [jnp.asarray(RNG.normal(0, 2, shape).astype("f4")) for shape in ((), (1,), (17,), (3, 17), (0,))]
    others = [jnp.arange(1, 18, dtype=np.int32), jnp.asarray(RNG.integers(0, 2, 17).astype(bool)), jnp.ones((17, 3)),
              jnp.ones(17, np.complex64)]
    foreign: list[Any] = [2, -1, 0, 2.5, True, 2**40, "a", None, [1], np.float32(3), np.arange(17, dtype="f4"), 1j]
    pairs = [(x, y) for x in [*floats, *others] for y in [*floats, *others, *foreign]]
    pairs += [(y, x) for x in (floats[2], others[0]) for y in foreign]
    for x, y in pairs:
        EVAL.forget()
        with np.errstate(all="ignore"):
            wanted = outcome(fun, x, y)
            for _ in range(5):
                assert outcome(fun, x, y) == wanted, (fun, x, y)


@pytest.mark.parametrize("fun", UNARY, ids=lambda f: f.__name__)
def test_operators_of_one_operand(fun: Callable[..., Any]) -> None:
    for dtype in ("f4", "i4", "u1", "?", "c8", "bfloat16", "f2"):
        for shape in ((), (1,), (17,), (0, 3)):
            x = jnp.asarray(RNG.integers(0, 3, shape)).astype(dtype)
            EVAL.forget()
            wanted = outcome(fun, x)
            for _ in range(5):
                assert outcome(fun, x) == wanted


def test_subscripts() -> None:
    x, longer = jnp.arange(51.0).reshape(17, 3), jnp.arange(1000.0)
    for index in (0, -1, 16, 17, -18, 2**40, None, ..., True, (0, 1), (1, 0), slice(2, 5), slice(None, None, -1), 1.5,
                  "a", jnp.int32(3), np.arange(2), x[:, 0] > 9, 400, (400,), ()):
        for array in (x, longer):
            EVAL.forget()
            wanted = outcome(operator.getitem, array, index)
            for _ in range(5):
                assert outcome(operator.getitem, array, index) == wanted
    for _ in range(3):
        assert [float(longer[i]) for i in range(-1000, 1000, 77)] == [float(i % 1000) for i in range(-1000, 1000, 77)]


def test_numbers_that_are_parts_of_operations() -> None:
    """Numbers that are equal, and not the same, are not taken for each other."""
    x = jnp.asarray([-1.5, 0.0, 2.0])
    for _ in range(600):
        assert (x ** 2).tolist() == [2.25, 0, 4] and (x ** 3).tolist() == [-3.375, 0, 8]
    assert (x ** 2.0).tolist() == [2.25, 0, 4] and np.isnan((x ** 0.5).tolist()[0])
    for zero in (0.0, -0.0) * 4:
        assert np.signbit(np.asarray(jnp.copysign(x, zero))).tolist() == [np.signbit(zero)] * 3
    i = jnp.arange(3)
    for _ in range(600):
        assert (i ** 1).dtype == np.int32
    assert outcome(lambda: i ** True) == outcome(lambda: generally(lambda: i ** True))


def generally(fun: Callable[..., Any]) -> Any:
    EVAL.forget()
    return fun()


def test_what_is_traced_is_traced() -> None:
    x = jnp.arange(3.0)
    for _ in range(5):
        x + x, -x, x[0], x < x
    jaxpr = anima.make_jaxpr(lambda y: (x + y, y + x, x * x, -x, x[0] + y))(x)
    assert [e.primitive.name for e in jaxpr.eqns].count("add") == 3
    assert anima.grad(lambda y: (x * y + x).sum())(x).tolist() == [0, 1, 2]
    assert anima.vmap(lambda y: x[0] + y)(x).tolist() == [0, 1, 2]


def test_the_options_that_hold() -> None:
    x = jnp.arange(3, dtype=np.int32)
    for _ in range(5):
        assert (x / 2).dtype == np.float32
    with anima.enable_x64(True):
        y = jnp.arange(3)
        for _ in range(5):
            assert (y / 2).dtype == np.float64 and (x + y).dtype == np.int64
    with anima.debug_nans(True):
        for _ in range(3):
            with pytest.raises(FloatingPointError):
                jnp.zeros(3) / jnp.zeros(3)
    for _ in range(3):
        assert (x / 2).dtype == np.float32 and np.isnan(jnp.zeros(3) / jnp.zeros(3)).all()
    with anima.numpy_rank_promotion("raise"), pytest.raises(ValueError, match="rank"):
        jnp.ones((2, 3)) + jnp.ones(3)


def test_deleted_arrays_are_named() -> None:
    x, y = jnp.arange(4.0), jnp.arange(4.0)
    funs = [lambda: x + y, lambda: y + x, lambda: -x, lambda: x[0], lambda: x ** 2, lambda: x @ y, lambda: abs(x)]
    for _ in range(5):
        for fun in funs:
            fun()
    x.delete()
    for fun in funs:
        with pytest.raises(RuntimeError, match="has been deleted"):
            fun()


class Reflecting:
    """No array: its own operators answer."""

    __array_priority__ = 100

    def __radd__(self, other: Any) -> str:
        return "mine"

    def __rmatmul__(self, other: Any) -> str:
        return "mine"


def test_others_may_answer() -> None:
    x = jnp.arange(4.0)
    for _ in range(5):
        assert x + Reflecting() == "mine" and x @ Reflecting() == "mine"
    with pytest.raises(TypeError, match=r"unsupported operand type\(s\) for \*"):
        x * Reflecting()
    assert x.__add__("a") is NotImplemented
    with pytest.raises(TypeError, match="exactly one argument"):
        x.__add__(1, 2)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        ConcreteArray.__add__(1, x)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        pow(x, 2, 3)  # type: ignore[call-overload]
    assert EVAL.again(jnp.add) is NotImplemented and EVAL.again(jnp.add, x, x, x) is NotImplemented


def test_every_operator_of_arrays_is_one() -> None:
    specials = {special for special, *_ in operators()}
    assert {"__add__", "__radd__", "__rmatmul__", "__ge__", "__neg__", "__getitem__"} <= specials
    for special in specials:
        assert type(vars(ConcreteArray)[special]).__name__ == "method_descriptor" and special in vars(Array)


def test_entries_that_share_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """More kinds of operations than there are places: each gives way to the next, and all are right."""
    arrays = [jnp.arange(n, dtype=np.float32) for n in range(1, 700)]
    for _ in range(3):
        for n, x in enumerate(arrays, 1):
            assert (x + x).shape == (n,) and (x * 2.0).shape == (n,)
    assert arrays[10][3] + arrays[500][400] == 403


def test_what_was_pushed_out_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many others took its place, and no code is made for it a second time."""
    made: list[Any] = []
    way = ways.Ways.make
    monkeypatch.setattr(ways.Ways, "make", staticmethod(lambda *described: made.append(0) or way(*described)))
    arrays = [jnp.arange(n, dtype=np.float32) for n in range(1, 1800)]
    for _ in range(3):
        for x in arrays:
            x * x
    count = len(made)
    for x in arrays:
        for _ in range(3):
            (x * x).block_until_ready()
        assert EVAL.again(elementwise.multiply, x, x) is not NotImplemented
    assert len(made) == count


def test_nothing_is_lost_or_kept() -> None:
    x = jnp.arange(17.0)
    things = [NotImplemented, x, x.aval, EVAL, None]

    def calls(count: int) -> list[int]:
        for _ in range(count):
            x + x, -x, x[0], x < 1, x @ x, x.__add__("a"), jnp.tanh(x)
        gc.collect()
        return [sys.getrefcount(thing) for thing in things]

    before, after = calls(1000), calls(1000)
    assert all(abs(b - a) < 100 for a, b in zip(before, after, strict=True))


def test_threads_that_forget() -> None:
    arrays = [jnp.asarray(RNG.normal(size=n).astype("f4")) for n in (1, 3, 17, 64)]
    funs = [lambda x: x + x, lambda x: x * 2, lambda x: 1 - x, lambda x: -x, lambda x: x[0], lambda x: x ** 2,
            lambda x: x < 0]
    wanted = [[outcome(fun, x) for fun in funs] for x in arrays]
    wrong: list[Any] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(3000):
            i, k = chance.randrange(len(arrays)), chance.randrange(len(funs))
            if (found := outcome(funs[k], arrays[i])) != wanted[i][k]:
                wrong.append((i, k, found))
            if chance.random() < 0.01:
                EVAL.forget()
            elif chance.random() < 0.005:
                with anima.enable_x64(True):
                    arrays[i] + jnp.ones(1)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
