"""Structured control flow: values, derivatives of every kind, vmap, nesting, and the errors of mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax

XS = np.linspace(0.1, 0.9, 5, dtype=np.float32)


def running(w, c, xs):
    """A recurrence with constants, a carry, inputs and outputs."""
    return lax.scan(lambda c, x: (jnp.sin(c * w) + x, c * x), c, xs)


def running_loop(w, c, xs):
    ys = []
    for x in xs:
        c, y = jnp.sin(c * w) + x, c * x
        ys.append(y)
    return c, jnp.stack(ys)


def total(recurrence):
    def fun(w, c, xs):
        last, ys = recurrence(w, c, xs)
        return last + (ys * jnp.arange(1.0, 6.0)).sum()

    return fun


ARGS = (np.float32(0.7), np.float32(0.3), XS)


@pytest.mark.parametrize("wrap", [lambda f: f, anima.jit], ids=["eager", "jit"])
def test_scan_is_the_loop(wrap):
    for got, expected in zip(wrap(running)(*ARGS), running_loop(*ARGS), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("wrap", [lambda f: f, anima.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("argnum", [0, 1, 2])
def test_gradients_of_scan(wrap, argnum):
    got = wrap(anima.grad(total(running), argnum))(*ARGS)
    np.testing.assert_allclose(got, anima.grad(total(running_loop), argnum)(*ARGS), rtol=1e-5)


def test_second_derivatives_of_scan():
    def second(recurrence):
        return anima.grad(lambda w: anima.grad(total(recurrence))(w, *ARGS[1:]))(ARGS[0])

    np.testing.assert_allclose(second(running), second(running_loop), rtol=1e-5)
    push = anima.jvp(lambda w: total(running)(w, *ARGS[1:]), ARGS[:1], (np.float32(1),))[1]
    np.testing.assert_allclose(push, anima.grad(total(running))(*ARGS), rtol=1e-5)


@pytest.mark.parametrize("axes", [(0, None, None), (None, 0, None), (None, None, 1), (0, 0, 1)])
def test_vmap_of_scan(axes):
    lanes = 3
    args = [a if ax is None else np.stack([a * (k + 1) for k in range(lanes)], ax)
            for a, ax in zip(ARGS, axes, strict=True)]
    got = anima.vmap(anima.grad(total(running)), in_axes=axes)(*args)
    expected = [anima.grad(total(running))(*(a if ax is None else np.take(a, k, ax)
                                             for a, ax in zip(args, axes, strict=True))) for k in range(lanes)]
    np.testing.assert_allclose(got, np.stack(expected), rtol=1e-5)


def test_scan_in_reverse_over_pytrees_and_nothing():
    carry, ys = lax.scan(lambda c, x: ({"n": c["n"] + 1}, (x["a"], c["n"])), {"n": 0}, {"a": jnp.arange(3)},
                         reverse=True)
    assert carry == {"n": 3} and ys[0].tolist() == [0, 1, 2] and ys[1].tolist() == [2, 1, 0]
    carry, ys = lax.scan(lambda c, _: (c * 2, c), 1, None, length=4)
    assert carry == 16 and ys.tolist() == [1, 2, 4, 8]
    carry, ys = lax.scan(lambda c, x: (c + x, x), 1.0, jnp.zeros((0,)))
    assert carry == 1.0 and ys.shape == (0,)


def test_weakly_typed_carry_is_promoted():
    carry, _ = lax.scan(lambda c, x: (c + x, None), 0, XS)
    assert carry.dtype == np.dtype("float32")
    np.testing.assert_allclose(carry, XS.sum(), rtol=1e-6)


def collatz(n):
    def step(c):
        n, count = c
        return lax.cond(n % 2 == 0, lambda n: n // 2, lambda n: 3 * n + 1, n), count + 1

    return lax.while_loop(lambda c: c[0] != 1, step, (n, 0))[1]


@pytest.mark.parametrize("wrap", [lambda f: f, anima.jit], ids=["eager", "jit"])
def test_while_and_cond_under_vmap(wrap):
    assert wrap(collatz)(7) == 16
    assert wrap(anima.vmap(collatz))(jnp.arange(1, 10)).tolist() == [0, 1, 7, 2, 5, 8, 16, 3, 19]


def test_document_loops():
    assert repr(lax.while_loop(lambda x: x < 10, lambda x: x + 1, 0)) == "Array(10, dtype=int32, weak_type=True)"
    assert repr(lax.fori_loop(0, 10, lambda i, x: x + i, 0)) == "Array(45, dtype=int32, weak_type=True)"
    array = jnp.arange(10)
    assert str(lax.fori_loop(0, 10, lambda i, x: x + array[i], 0)) == "45"
    iterator = iter(range(10))
    assert str(lax.fori_loop(0, 10, lambda i, x: x + next(iterator), 0)) == "0"


def test_forward_mode_of_while():
    def power(x):
        return lax.while_loop(lambda c: c < 100.0, lambda c: c * x, x)

    value, tangent = anima.jvp(power, (3.0,), (1.0,))
    assert (float(value), float(tangent)) == (243.0, 405.0)


@pytest.mark.parametrize("wrap", [lambda f: f, anima.jit], ids=["eager", "jit"])
def test_cond(wrap):
    def f(p, x):
        return lax.cond(p, jnp.sin, lambda x: x * x, x)

    assert wrap(f)(False, 3.0) == 9.0
    np.testing.assert_allclose(wrap(anima.grad(f, 1))(True, 2.0), np.cos(2.0), rtol=1e-6)
    assert wrap(anima.grad(f, 1))(False, 2.0) == 4.0
    assert wrap(anima.grad(anima.grad(f, 1), 1))(False, 2.0) == 2.0
    lanes = wrap(anima.vmap(anima.grad(f, 1)))(np.array([True, False]), np.array([2.0, 2.0], np.float32))
    np.testing.assert_allclose(lanes, [np.cos(2.0), 4.0], rtol=1e-6)


def test_cond_of_the_documents():
    operand = jnp.array([0.0])
    assert repr(lax.cond(True, lambda x: x + 1, lambda x: x - 1, operand)) == "Array([1.], dtype=float32)"
    assert repr(lax.cond(False, lambda x: x + 1, lambda x: x - 1, operand)) == "Array([-1.], dtype=float32)"


def test_switch_clamps():
    branches = [lambda x: x, lambda x: 2 * x, lambda x: 3 * x]
    assert [float(lax.switch(i, branches, 1.0)) for i in (-5, 0, 1, 2, 9)] == [1.0, 1.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize("call,error,phrase", [
    (lambda: lax.scan(lambda c, x: (c, x), 0.0, (jnp.ones(2), jnp.ones(3))), ValueError, "different leading axis "
                                                                                         "sizes"),
    (lambda: lax.scan(lambda c, x: (jnp.ones(2), x), 0.0, jnp.ones(2)), TypeError, "has type f32.. but the "
                                                                                   "corresponding"),
    (lambda: lax.scan(lambda c, x: c, 0.0, jnp.ones(2)), TypeError, "must be a pair"),
    (lambda: lax.scan(lambda c, x: (c, x), 0.0), ValueError, "`length` not provided"),
    (lambda: lax.while_loop(lambda c: c, lambda c: c, 1.0), TypeError, "cond_fun must return a boolean scalar"),
    (lambda: lax.cond(True, lambda x: (x, x), lambda x: x, 1.0), TypeError, "same pytree structure"),
    (lambda: lax.cond(jnp.array([True, False]), lambda x: x, lambda x: x, 1.0), TypeError, "Pred must be a scalar"),
    (lambda: lax.switch(0.5, [lambda x: x, lambda x: x], 1.0), TypeError, "Index type must be an integer"),
    (lambda: lax.switch(0, [], 1.0), ValueError, "Empty branch sequence"),
])
def test_mistakes(call, error, phrase):
    with pytest.raises(error, match=phrase):
        call()


@pytest.mark.parametrize("bounds", [(0.0, 3), (0, 3.0), (0, jnp.float32(3)), (0, jnp.arange(3))], ids=str)
def test_bounds_of_fori_loop_are_integers(bounds: tuple[Any, Any]) -> None:
    with pytest.raises(TypeError, match=r"(lower|upper) must be a scalar integer, got .*lax.while_loop"):
        lax.fori_loop(*bounds, lambda i, x: x, 1.0)
