"""Gradients of loops of unknown length on a card that computes (see `test_cuda_programs`): tapes are in its memory, and
the host makes, moves and frees them while kernels wait."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.grid import compile
from anima.config import config
from anima.control import tape
from anima.runtime import cuda, cuda_driver, cuda_tapes
from tests.runtime.test_cuda_programs import Card, agree, card, library

__all__ = ["card", "library"]  # fixtures

RNG = np.random.default_rng(1)
X = RNG.uniform(0.5, 1.5, 5).astype(np.float32)
W = RNG.normal(size=(5, 5)).astype(np.float32) / 4


def steps(x: Any, n: Any) -> Any:
    """`n` steps of a loop of arrays, which keeps several values of each."""
    return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, jnp.sin(c[1]) * jnp.exp(-c[1]) + x), (0, x))[1]


def until(x: Any) -> Any:
    """As many steps as it takes."""
    return lax.while_loop(lambda c: c[0].sum() < 30, lambda c: (c[0] + jnp.cos(c[1]) ** 2, c[1] * 1.1), (x, x))[0]


def nested(x: Any, n: Any) -> Any:
    """Tapes of tapes: the inner loop is as long as the outer one has come."""
    def outer(c: tuple[Any, Any]) -> tuple[Any, Any]:
        def inner(d: tuple[Any, Any]) -> tuple[Any, Any]:
            return d[0] + 1, jnp.sin(d[1]) + 0.1 * x

        return c[0] + 1, lax.while_loop(lambda d: d[0] < c[0], inner, (0, c[1]))[1]

    return lax.while_loop(lambda c: c[0] < n, outer, (0, x))[1]


def product(x: Any, n: Any) -> Any:
    return lax.fori_loop(0, n, lambda i, y: jnp.tanh(W @ y) + x * i, x)


def branches(x: Any, n: Any) -> Any:
    def step(i: Any, y: Any) -> Any:
        return lax.cond(i % 3 == 0, lambda y: steps(y, i), lambda y: y * jnp.cos(y), y)

    return lax.fori_loop(0, n, step, x)


def squared(fun: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: (fun(*args) ** 2).sum()


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "while": (anima.grad(squared(until)), (X,)),
    "a number": (anima.grad(until), (np.float32(0.3),)),
    "steps": (anima.grad(squared(steps)), (X, 7)),
    "no steps": (anima.value_and_grad(squared(steps)), (X, 0)),
    "fori": (anima.grad(squared(product)), (X, 4)),
    "nested": (anima.grad(squared(nested)), (X, 4)),
    "branches": (anima.grad(squared(branches)), (X, 7)),
    "two loops": (anima.grad(lambda x, n: squared(steps)(steps(x, n) + product(x, 3), n + 1)), (X, 3)),
    "lanes": (anima.vmap(anima.grad(squared(steps)), (0, 0)), (np.stack([X, 2 * X, X + 1]), np.array([3, 0, 5]))),
    "lanes together": (anima.grad(lambda x: anima.vmap(squared(until))(x).sum()), (np.stack([X, 2 * X]),)),
    "hessian": (anima.hessian(squared(steps)), (X, 3)),
    "twice": (anima.grad(lambda x, n: (anima.grad(squared(steps))(x, n) ** 2).sum()), (X, 3)),
    "jacobian": (anima.jacrev(steps), (X, 4)),
    "tangents": (lambda x, n: anima.jvp(lambda x: anima.grad(squared(steps))(x, n), (x,), (x,))[1], (X, 4)),
    "integers and truths": (anima.grad(lambda x, n: lax.while_loop(
        lambda c: c[0] < n, lambda c: (c[0] + 1, jnp.where(c[1] > 1, c[1] * 0.5, c[1] ** 2 + c[0])), (0, x))[1].sum()),
        (X, 6)),
    "complex": (anima.grad(lambda x, n: abs(steps(x * (1 + 0.5j), n)).sum()), (X, 4)),
    "halves": (anima.grad(lambda x, n: squared(steps)(x.astype(jnp.bfloat16), n).astype(jnp.float32)), (X, 3)),
    "of nothing": (anima.grad(squared(steps)), (X[:0], 3)),
    "in a scan": (anima.grad(lambda x: lax.scan(lambda c, n: (steps(c, n), None), x, np.arange(4))[0].sum()), (X,))}


@pytest.fixture(autouse=True)
def all_is_given_back(card: anima.Device) -> Any:
    """What a test has on the card is free when nothing refers to it any more, and no tape is known."""
    yield
    anima.clear_caches()
    gc.collect()
    assert not cuda_tapes._known


def driver_of() -> Card:
    return cuda.gpu().driver.functions  # type: ignore[return-value]


@pytest.mark.parametrize("name", PROGRAMS)
def test_jitted(name: str, card: anima.Device) -> None:
    fun, args = PROGRAMS[name]
    called = anima.jit(fun)
    there = anima.device_put(args, card)
    agree(called(*there), called(*args))
    gc.collect()
    blocks = len(driver_of().blocks)
    for _ in range(2):
        called(*there)
    gc.collect()
    assert len(driver_of().blocks) == blocks  # tapes of a program are gone with its call


@pytest.mark.parametrize("name", ["while", "a number", "no steps", "fori", "nested", "lanes", "twice", "jacobian",
                                  "complex", "in a scan"])
def test_one_by_one(name: str, card: anima.Device) -> None:
    """A program makes the tapes, another one reads them."""
    fun, args = PROGRAMS[name]
    want = fun(*map(jnp.asarray, args))
    agree(fun(*anima.device_put(args, card)), want)


@pytest.mark.parametrize("name", ["steps", "nested", "lanes", "twice"])
def test_several_blocks(name: str, card: anima.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile, "LARGE", 1)
    monkeypatch.setattr(compile, "_has_rounds", lambda stmts: False)
    fun, args = PROGRAMS[name]
    if args[0].shape == (5,):
        args = (np.resize(X, 70), *args[1:])
    launched = set()
    launch = Card.run
    monkeypatch.setattr(Card, "run", lambda self, function, words, blocks, *rest: (
        launched.add(blocks), launch(self, function, words, blocks, *rest))[1])
    agree(anima.jit(fun)(*anima.device_put(args, card)), anima.jit(fun)(*args))
    assert max(launched) > 1


def test_tapes_grow(card: anima.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as they are full; what is on them stays."""
    sizes: list[int] = []
    grow = cuda_tapes.DeviceTape.grow
    monkeypatch.setattr(cuda_tapes.DeviceTape, "grow", lambda self, n: (sizes.append(n), grow(self, n))[1])

    def many(x: Any, n: Any) -> Any:
        return lax.fori_loop(0, n, lambda i, y: jnp.sin(y) + x, x)

    for n in (1024, 1025, 5000):
        sizes.clear()
        x = np.float32(0.3)
        agree(anima.jit(anima.grad(many))(anima.device_put(x, card), n), anima.grad(many)(x, n))
        assert sizes == [4 * 1024 * 2 ** k for k in range(len(sizes))]
        assert len(sizes) == {1024: 1, 1025: 2, 5000: 4}[n]


def test_tapes_live_as_long_as_what_reads_them(card: anima.Device) -> None:
    there = anima.device_put(X, card)

    def work() -> None:
        for fun in (steps, nested):
            out, pull = anima.vjp(lambda x, fun=fun: fun(x, 4), there)
            want, here = anima.vjp(lambda x, fun=fun: fun(x, 4), X)
            agree(out, want)
            for scale in (1, 3):
                agree(pull(out * scale), here(want * scale))
            agree(anima.jit(pull)(out), here(want))  # tapes that are constants of a program

    work()
    anima.clear_caches()
    gc.collect()
    blocks = len(driver_of().blocks)
    work()
    anima.clear_caches()
    gc.collect()
    assert len(driver_of().blocks) == blocks and not cuda_tapes._known


def test_tapes_of_the_cpu_are_read_on_a_card(card: anima.Device) -> None:
    for fun in (steps, nested):
        _, slope = anima.linearize(lambda x, fun=fun: fun(x, 4), jnp.asarray(X))
        there = slope(anima.device_put(X, card))
        agree(there, slope(jnp.asarray(X)))
        agree(anima.jit(slope)(anima.device_put(X, card)), slope(jnp.asarray(X)))


def test_tapes_of_a_card_are_read_on_the_cpu(card: anima.Device) -> None:
    """As copies; those of steps, which have no data, too."""
    jaxpr = anima.make_jaxpr(lambda x: anima.vjp(lambda x: nested(x, 4), x)[1](x))(X)
    kinds = [v.aval.dtype for e in jaxpr.eqns if e.primitive.name == "tape_while" for v in e.outvars
             if isinstance(v.aval.dtype, tape.TapeDType)]
    assert tape.STEPS in kinds and any(isinstance(k.element.dtype, tape.TapeDType) for k in kinds)
    eqn = next(e for e in jaxpr.eqns if e.primitive.name == "tape_while")
    args = [np.asarray(RNG.uniform(0, 1, v.aval.shape) * 4, v.aval.dtype) for v in eqn.invars]
    want = eqn.primitive.bind(*map(jnp.asarray, args), **eqn.params)
    found = eqn.primitive.bind(*anima.device_put(args, card), **eqn.params)

    def same(a: Any, b: Any, dtype: Any) -> None:
        assert len(a) == len(b) > 0
        if dtype == tape.STEPS:
            return
        for x, y in zip(a.elements(dtype.element), b.elements(dtype.element), strict=True):
            if isinstance(dtype.element.dtype, tape.TapeDType):
                same(x, y, dtype.element.dtype) if x is not None and len(x) else None
            else:
                np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)

    for a, b in zip(found, want, strict=True):
        if isinstance(a.dtype, tape.TapeDType):
            same(a.elements()[()], b.elements()[()], a.dtype)


def test_tapes_inside_of_loops_are_given_back_there(card: anima.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    most = []
    answer = cuda_tapes.Tapes.answer
    monkeypatch.setattr(cuda_tapes.Tapes, "answer", lambda self, *args: (
        answer(self, *args), most.append((len(cuda_tapes._known), len(driver_of().blocks))))[0])
    fun = anima.jit(lambda x: lax.scan(lambda c, n: (anima.grad(squared(steps))(c, n), None), x, np.full(6, 2))[0])
    agree(fun(anima.device_put(X / 4, card)), fun(X / 4))
    few = len(most) // 6
    assert max(most[:few]) == max(most)


def test_callbacks_and_tapes(card: anima.Device) -> None:
    seen: list[float] = []

    def noted(x: Any) -> Any:
        def step(c: Any) -> Any:
            anima.debug.callback(lambda s: seen.append(float(s)), c[1].sum())
            y = anima.pure_callback(lambda s: np.asarray(2 * s), c[1], lax.stop_gradient(c[1]))
            return c[0] + 1, jnp.sin(c[1]) * y

        return lax.while_loop(lambda c: c[0] < 4, step, (0, x))[1].sum()

    called = anima.jit(anima.grad(noted))
    want = called(X)
    anima.effects_barrier()
    first = list(seen)
    seen.clear()
    agree(called(anima.device_put(X, card)), want)
    anima.effects_barrier()
    assert len(seen) == len(first) == 4
    np.testing.assert_allclose(seen, first, rtol=1e-4)


def test_what_a_callback_raises_frees_the_tapes(card: anima.Device) -> None:
    def picky(i: Any) -> Any:
        if i == 9:
            raise ValueError("no more")
        return np.float32(i)

    def loop(x: Any, n: Any) -> Any:
        def step(i: Any, y: Any) -> Any:
            return jnp.sin(y) * anima.pure_callback(picky, anima.ShapeDtypeStruct((), np.float32), i)

        return lax.fori_loop(1, n, step, x).sum()

    there = anima.device_put(X, card)
    called = anima.jit(anima.grad(loop))
    called(there, 5)
    gc.collect()
    blocks = len(driver_of().blocks)
    for _ in range(2):
        with pytest.raises(ValueError, match="no more") as caught:
            called(there, 12)
        assert not cuda_tapes._known and caught.value is not None
    del caught
    gc.collect()
    assert len(driver_of().blocks) == blocks
    agree(called(there, 5), called(X, 5))


def test_memory_that_is_not_there(card: anima.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    there = anima.device_put(np.ones(1000, np.float32), card)
    called = anima.jit(anima.grad(squared(steps)))
    want = np.asarray(called(there, 3))
    answer = Card.answer
    monkeypatch.setattr(Card, "answer", lambda self, name, args: cuda_driver.OUT_OF_MEMORY if (
        name == "cuMemAllocAsync" and args[1] > 100_000) else answer(self, name, args))
    with pytest.raises(RuntimeError, match=r"RESOURCE_EXHAUSTED: Out of memory allocating \d+ bytes"):
        called(there, 500)
    np.testing.assert_array_equal(called(there, 3), want)


def test_tapes_that_are_kept_in_part_are_refused(card: anima.Device) -> None:
    """What a CPU recorded over its budget cannot be read on a card; on a card there is no budget."""
    with config.option("tape_budget")(10_000):
        _, slope = anima.linearize(lambda x: steps(x, 2000), jnp.asarray(X))
        slope(jnp.asarray(X))
        with pytest.raises(NotImplementedError, match=r"recorded in part, over the budget of tapes\. Fix: "):
            slope(anima.device_put(X, card))
        want = anima.grad(squared(steps))(jnp.asarray(X), 2000)
        agree(anima.jit(anima.grad(squared(steps)))(anima.device_put(X, card), 2000), want)
