"""Structured control flow: values, derivatives of every kind, vmap, nesting, and the errors of mistakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.control.common import share_consts
from anima.lax.mapping import IN_TURN, LARGE

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


def test_results_of_a_choice_are_weakly_typed_where_those_of_its_first_branch_are() -> None:
    def strong(x):
        return jnp.int32(3)

    def weak(x):
        return x

    for branches, expected in (((strong, weak), False), ((weak, strong), True), ((weak, strong, weak), True)):
        assert anima.jit(lambda k, x, b=branches: lax.switch(k, b, x))(1, 1).weak_type is expected
    assert anima.jit(lambda p, x: lax.cond(p, strong, weak, x))(True, 1).weak_type is True
    assert anima.jit(lambda p, x: lax.cond(p, weak, strong, x))(True, 1).weak_type is False


def test_cond_of_the_documents():
    operand = jnp.array([0.0])
    assert repr(lax.cond(True, lambda x: x + 1, lambda x: x - 1, operand)) == "Array([1.], dtype=float32)"
    assert repr(lax.cond(False, lambda x: x + 1, lambda x: x - 1, operand)) == "Array([-1.], dtype=float32)"


def test_switches_of_any_number_of_branches():
    for count in (1, 2, 3, 4, 5, 8, 13, 300):
        branches = [lambda x, k=k: x * k + k for k in range(count)]
        f = anima.jit(anima.value_and_grad(lambda x, which, branches=branches: lax.switch(which, branches, x)))
        for which in sorted({-3, 0, 1, 2, count // 2, count - 2, count - 1, count, 1000}):
            k = min(max(which, 0), count - 1)
            assert f(2.0, which) == (3.0 * k, k), (count, which)


def test_switch_clamps():
    branches = [lambda x: x, lambda x: 2 * x, lambda x: 3 * x]
    assert [float(lax.switch(i, branches, 1.0)) for i in (-5, 0, 1, 2, 9)] == [1.0, 1.0, 2.0, 3.0, 3.0]
    assert [float(lax.switch(i, branches[1:2], 1.0)) for i in (-5, 0, 9)] == [2.0, 2.0, 2.0]
    assert [float(anima.jit(lambda i: lax.switch(i, branches[1:2], 1.0))(i)) for i in (-5, 0, 9)] == [2.0, 2.0, 2.0]
    assert [float(lax.cond(p, lambda: 1.0, lambda: 2.0)) for p in (0.0, 2.5, -1, 0)] == [2.0, 1.0, 1.0, 2.0]


@pytest.mark.parametrize("call,error,phrase", [
    (lambda: lax.scan(lambda c, x: (c, x), 0.0, (jnp.ones(2), jnp.ones(3))), ValueError, "different leading axis "
                                                                                         "sizes"),
    (lambda: lax.scan(lambda c, x: (jnp.ones(2), x), 0.0, jnp.ones(2)), TypeError, "has type float32.. but the "
                                                                                   "corresponding"),
    (lambda: lax.scan(lambda c, x: c, 0.0, jnp.ones(2)), TypeError, "must be a pair"),
    (lambda: lax.scan(lambda c, x: (c, x), 0.0), ValueError, "`length` not provided"),
    (lambda: lax.while_loop(lambda c: c, lambda c: c, 1.0), TypeError, "cond_fun must return a boolean scalar"),
    (lambda: lax.cond(True, lambda x: (x, x), lambda x: x, 1.0), TypeError, "same pytree structure"),
    (lambda: lax.cond(jnp.array([True, False]), lambda x: x, lambda x: x, 1.0), TypeError, "Pred must be a scalar"),
    (lambda: lax.switch(0.5, [lambda x: x, lambda x: x], 1.0), TypeError, "Index type must be an integer"),
    (lambda: lax.switch(0, [], 1.0), ValueError, "Empty branch sequence"),
    (lambda: lax.switch(jnp.array([0]), [lambda x: x, lambda x: x], 1.0), TypeError, "Branch index must be scalar"),
    (lambda: lax.switch(0.5, [lambda x: x], 1.0), TypeError, "Index type must be an integer"),
    (lambda: lax.cond(None, lambda x: x, lambda x: x, 1.0), TypeError, "cond predicate is None"),
    (lambda: lax.cond(1j, lambda x: x, lambda x: x, 1.0), TypeError, "either boolean or number, got complex64"),
    (lambda: lax.cond(anima.random.key(0), lambda x: x, lambda x: x, 1.0), TypeError, "either boolean or number"),
    (lambda: lax.scan(3, 0.0, jnp.ones(2)), TypeError, "f argument should be a callable, got 3"),
    *((lambda f=f, g=g: lax.while_loop(f, g, 0.0), TypeError, "body_fun and cond_fun arguments should be callable")
      for f, g in ((3, lambda x: x), (lambda x: x < 1, 3))),
    (lambda: lax.while_loop(lambda x: (x < 3,), lambda x: x + 1, 0), TypeError, "got pytree PyTreeDef"),
    (lambda: lax.while_loop(lambda x: (x < 3, x < 4), lambda x: x + 1, 0), TypeError, "got pytree PyTreeDef"),
])
def test_mistakes(call, error, phrase):
    with pytest.raises(error, match=phrase):
        call()


@pytest.mark.parametrize("bounds", [(0.0, 3), (0, 3.0), (0, jnp.float32(3)), (0, jnp.arange(3)), (0, jnp.uint8(3)),
                                    (jnp.int8(0), jnp.int16(3)), (0, jnp.complex64(3))], ids=str)
def test_bounds_of_fori_loop_have_one_dtype(bounds: tuple[Any, Any]) -> None:
    with pytest.raises(TypeError, match=r"((lower|upper) must be a scalar integer|equal types), got .*lax.while_loop"):
        lax.fori_loop(*bounds, lambda i, x: x, 1.0)


@pytest.mark.parametrize("bounds, steps", [
    ((0, 5), 5), ((-3, 4), 7), ((5, 0), 0), ((0, np.int8(5)), 5), ((np.int16(-2), 3), 5), ((np.int8(120), 127), 7),
    ((np.uint8(250), np.uint8(255)), 5), ((2**31 - 3, 2**31), 3), ((0.0, 3.0), 3), ((0.5, 3.0), 3),
    ((np.bool_(False), True), 1), ((jnp.int32(1), jnp.int32(4)), 3), ((np.int8(0), 200), 200)], ids=str)
def test_bounds_of_fori_loop(bounds: tuple[Any, Any], steps: int) -> None:
    first = 0.0 if bounds[0] == 0.5 else 0
    index, count = lax.fori_loop(*bounds, lambda i, c: (i * 1, c[1] + 1), (first, 0))
    assert int(count) == steps
    if steps:
        assert float(index) == float(bounds[0]) + steps - 1


def test_traced_bounds_of_fori_loop_keep_their_dtype() -> None:
    for upper in (np.int8(3), np.int32(3), np.uint16(3)):
        lower = 0 if upper.dtype.kind == "i" else np.uint16(0)
        found = anima.jit(lambda n, lower=lower: lax.fori_loop(lower, n, lambda i, c: i, n * 0))(upper)
        assert found.dtype == upper.dtype and int(found) == 2
    assert int(anima.jit(lambda n: lax.fori_loop(0, n, lambda i, c: c + i, 0, unroll=1))(3)) == 3
    with pytest.raises(ValueError, match="statically known"):
        anima.jit(lambda n: lax.fori_loop(0, n, lambda i, c: c + i, 0, unroll=2))(3)


def test_forms_of_cond() -> None:
    for pred in (True, 2, -1.5, np.bool_(True), jnp.int8(3), float("nan")):
        assert float(lax.cond(pred, lambda: 1.0, lambda: 2.0)) == 1.0
    for pred in (False, 0, 0.0, jnp.zeros(())):
        assert float(lax.cond(pred, lambda: 1.0, lambda: 2.0)) == 2.0
    assert float(lax.cond(True, lambda x: x + 1, lambda x: x - 1, operand=3.0)) == 4.0
    assert float(lax.cond(True, lambda x: 5.0, lambda x: 6.0, operand=None)) == 5.0
    assert int(lax.switch(9, [lambda x: 5, lambda x: 6], operand=None)) == 6
    old = anima.jit(lambda p: lax.cond(p, (3.0, 1), lambda x: x[0] + x[1], 4.0, lambda x: -x))
    assert float(old(True)) == 4.0 and float(old(False)) == -4.0
    assert float(lax.cond(True, lambda f, g: 1.0, lambda f, g: 2.0, np.float32(1), np.float32(2))) == 1.0


def test_a_weak_carry_takes_the_dtype_of_the_body_and_is_strong_then() -> None:
    last = lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] + 1.5), (0, 0))[1]
    assert last.dtype == jnp.float32 and not last.weak_type
    same = lax.scan(lambda c, _: ((c[1], c[0]), None), (1.0, np.float32(2.0)), length=2)[0]
    assert (same[0].weak_type, same[1].weak_type) == (False, True)  # as the body's results are, like JAX


def test_no_fewer_steps_than_none() -> None:
    for f in (lambda n: lax.scan(lambda c, x: (c, c), 0.0, None, length=n),
              lambda n: lax.scan(lambda c, x: (c, None), 0.0, None, length=n)):
        assert float(f(0)[0]) == 0.0
        with pytest.raises(ValueError, match=r"scan: `length` .* cannot be negative, got -1"):
            f(-1)


def test_numbers_of_steps_to_unroll() -> None:
    for unroll in (0, 1, 2, 3, 7, 100, True, False):
        assert float(lax.scan(lambda c, x: (c + x, None), 0.0, jnp.arange(7.0), unroll=unroll)[0]) == 21.0
        assert float(lax.fori_loop(0, 7, lambda i, c: c + i, 0.0, unroll=unroll)) == 21.0
    for unroll, error in ((-1, ValueError), (2.0, TypeError)):
        with pytest.raises(error):
            lax.scan(lambda c, x: (c, None), 0.0, jnp.arange(7.0), unroll=unroll)
    with pytest.raises(anima.errors.ConcretizationTypeError, match="`length` argument to `scan`") as caught:
        anima.jit(lambda n: lax.scan(lambda c, x: (c, None), 0.0, length=n))(3)
    assert "while_loop" in str(caught.value)


def test_map_in_batches() -> None:
    xs = {"a": np.arange(14.0, dtype=np.float32).reshape(7, 2), "b": np.arange(7)}
    for size in (None, 0, 1, 2, 3, 7, 10):
        out = lax.map(lambda x: {"s": x["a"].sum() * x["b"], "k": 1}, xs, batch_size=size)
        np.testing.assert_array_equal(out["s"], xs["a"].sum(1) * xs["b"])
        assert out["k"].shape == (7,)
    for size in (None, 2):
        with pytest.raises(ValueError, match="different leading axis sizes"):
            lax.map(lambda x: x[0], (np.zeros(3, np.float32), np.zeros(4, np.float32)), batch_size=size)


@pytest.mark.parametrize("n", range(10))
@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scan_of_matrices(n: int, reverse: bool) -> None:
    xs = np.random.default_rng(n).normal(size=(n, 2, 2)).astype(np.float32)
    expected, running = [], np.eye(2, dtype=np.float32)
    for x in xs[::-1] if reverse else xs:
        running = running @ x
        expected.append(running)
    found = lax.associative_scan(jnp.matmul, xs, reverse=reverse)
    np.testing.assert_allclose(found, np.array(expected[::-1] if reverse else expected).reshape(n, 2, 2), rtol=1e-4,
                               atol=1e-5)
    assert not (lax.associative_scan(jnp.add, jnp.broadcast_to(2, (n,))).weak_type and n > 1)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", [IN_TURN[0] - 1, IN_TURN[0], 17, 300])
def test_associative_scan_in_turn_and_by_halves(n: int, reverse: bool, axis: int) -> None:
    """Recurrences with coefficients, their gradients and their derivatives under vmap, on both sides of the limit."""
    a, b = np.random.default_rng(n).uniform(0.2, 0.9, (2, n, 3)).swapaxes(1, 1 + axis)

    def recurrence(a: Any, b: Any) -> Any:
        return lax.associative_scan(lambda f, g: (f[0] * g[0], g[0] * f[1] + g[1]), (a, b), reverse, axis)[1]

    def one_by_one(a: Any, b: Any) -> Any:
        def step(x: Any, c: Any) -> Any:
            x = c[0] * x + c[1]
            return x, x
        rows = (jnp.moveaxis(a, axis, 0), jnp.moveaxis(b, axis, 0))
        return jnp.moveaxis(lax.scan(step, jnp.zeros(3), rows, reverse=reverse)[1], 0, axis)

    def slope(f: Any) -> Any:
        return anima.grad(lambda *x: jnp.sum(f(*x) ** 2), (0, 1))

    pairs = np.stack([a, b]), np.stack([b, a])
    for got, want in ((recurrence(a, b), one_by_one(a, b)), (slope(recurrence)(a, b), slope(one_by_one)(a, b)),
                      (anima.vmap(slope(recurrence))(*pairs), anima.vmap(slope(one_by_one))(*pairs))):
        for x, y in zip(anima.tree.leaves(got), anima.tree.leaves(want), strict=True):
            np.testing.assert_allclose(x, y, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("size", [32, 33])
def test_associative_scan_of_large_products(size: int) -> None:
    """On both sides of where several threads share them: those go by halves, without a loop."""
    assert LARGE == 32 * 32
    xs = np.random.default_rng(0).normal(size=(12, size, size)).astype(np.float32) / 8
    loops = "scan" in str(anima.make_jaxpr(lambda xs: lax.associative_scan(jnp.matmul, xs))(xs))
    assert loops == (size == 32)
    np.testing.assert_allclose(lax.associative_scan(jnp.matmul, xs)[-1], np.linalg.multi_dot(xs), rtol=1e-3, atol=1e-4)


def test_associative_scan_of_results_of_another_type() -> None:
    """Is what it was without a loop, whose carry has one type."""
    for n in (5, 20):
        with pytest.raises(TypeError, match="concatenate"):
            lax.associative_scan(lambda a, b: (a + b).astype(jnp.float32), jnp.arange(n))


# ---------------------------------------------------------------- texts


def carry() -> Any:
    return {"a": np.int32(0), "b": (np.ones(2, np.float32),)}


def retyped(c: Any) -> Any:
    return {"a": c["a"] + 1.5, "b": (c["b"][0][None],)}


LOOPS: dict[str, Any] = {
    "scan": lambda f: lax.scan(lambda c, x: (f(c), x), carry(), np.arange(3)),
    "while_loop": lambda f: lax.while_loop(lambda c: c["a"] < 3, lambda c: f(c), carry()),
    "fori_loop": lambda f: lax.fori_loop(0, 3, lambda i, c: f(c), carry())}
LOOPS["fori_loop traced"] = lambda f: anima.jit(lambda n: lax.fori_loop(0, n, lambda i, c: f(c), carry()))(3)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_carry_that_changes_is_reported_leaf_by_leaf(loop: str) -> None:
    with pytest.raises(TypeError) as caught:
        LOOPS[loop](retyped)
    text = str(caught.value)
    assert text.startswith(f"{loop.split()[0]} body function carry input and carry output must have equal types, but "
                           "they differ:\n\n")
    assert ("  * the input carry component c['a'] has type int32[] but the corresponding output carry component has "
            "type float32[], so the dtypes do not match\n  * the input carry component c['b'][0] has type float32[2] "
            "but the corresponding output carry component has type float32[1,2], so the shapes do not match\n") in text
    assert f"Revise <lambda> at {__file__}:" in text


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("change, words", [
    (lambda c: {"a": c["a"], "b": c["b"][0]}, "c['b'] is a tuple of 1 but the corresponding component of the carry "
                                              "output is an array."),
    (lambda c: {"a": c["a"]}, "c is a dict with the keys 'a', 'b' but the corresponding component of the carry output "
                              "is a dict with the keys 'a'."),
    (lambda c: {"a": c["a"], "b": (None,)}, "c['b'][0] is an array but the corresponding component of the carry output "
                                            "is None."),
    (lambda c: [c["a"], c["b"]], "c is a dict with the keys 'a', 'b' but the corresponding component of the carry "
                                 "output is a list of 2.")])
def test_a_carry_of_another_structure(loop: str, change: Any, words: str) -> None:
    with pytest.raises(TypeError, match="must have the same pytree structure, but they differ") as caught:
        LOOPS[loop](change)
    assert "The input carry component " + words in str(caught.value)


class Tagged:
    """A value with a word that is part of its structure."""

    def __init__(self, value: Any, word: str) -> None:
        self.value, self.word = value, word


anima.tree_util.register_pytree_node(Tagged, lambda t: ((t.value,), t.word), lambda word, values: Tagged(*values, word))


def test_a_carry_whose_structure_changes_in_what_is_no_value() -> None:
    with pytest.raises(TypeError, match=r"component c\['x'\] is a Tagged of 1 but the corresponding component"):
        lax.scan(lambda c, _: ({"y": c["y"], "x": Tagged(c["x"].value, "new")}, None),
                 {"y": 0.0, "x": Tagged(1.0, "old")}, None, 2)


def test_branches_that_differ() -> None:
    def first(c: Any) -> Any:
        return c

    with pytest.raises(TypeError) as caught:
        lax.cond(True, first, retyped, carry())
    assert str(caught.value) == f"""\
cond branches must have equal output types but they differ.

true_fun is first at {__file__}:{first.__code__.co_firstlineno}
false_fun is retyped at {__file__}:{retyped.__code__.co_firstlineno}

  * the output of true_fun['a'] has type int32[] but the corresponding output of false_fun has type float32[], so the \
dtypes do not match
  * the output of true_fun['b'][0] has type float32[2] but the corresponding output of false_fun has type \
float32[1,2], so the shapes do not match

Revise true_fun and/or false_fun so that all output types match."""
    with pytest.raises(TypeError, match=r"branch 0 output\['b'\] is a tuple of 1 but branch 2 output\['b'\] is None"):
        lax.switch(0, [first, first, lambda c: {**c, "b": None}], carry())


def test_results_that_are_no_arrays_and_where_they_stand() -> None:
    with pytest.raises(TypeError, match=r"function <lambda> at .*test_control.py:\d+ traced for scan returned a value "
                                        r"of type <class 'str'> at output component \[1\]\['y'\]"):
        lax.scan(lambda c, x: (c, {"y": "s"}), 0.0, jnp.arange(3.0))


def test_branches_share_what_they_close_over() -> None:
    weights = jnp.arange(4.0)
    program = anima.make_jaxpr(lambda p: lax.cond(p, lambda: weights * 2, lambda: weights - 1))(True)
    (eqn,) = (e for e in program.eqns if e.primitive.name == "cond")
    assert len(eqn.invars) == 2


def test_a_function_of_several_branches_is_called_once() -> None:
    called = []

    def f(x):
        called.append("f")
        return x ** 2

    def g(x):
        called.append("g")
        return x + 1

    assert float(lax.switch(2, [f, g, f, g], 3.0)) == 9.0 and called == ["f", "g"]
    assert float(anima.jit(lambda k: lax.cond(k > 0, f, f, 4.0))(1)) == 16.0 and called == ["f", "g", "f"]
    del called[:]
    lax.cond(True, f, g, 0.0)
    assert called == ["f", "g"]


def test_functions_that_nobody_can_look_into() -> None:
    """The argument of one without a signature is called the carry."""
    class Silent:
        def __call__(self, *args: Any) -> Any:
            return (args[0], 1), None

        __signature__ = "none"

    with pytest.raises(TypeError, match="The input carry component carry is an array"):
        lax.scan(Silent(), 0.0, jnp.ones(2))


@pytest.mark.parametrize("wrap", [lambda f: f, anima.jit], ids=["eager", "jit"])
def test_gradients_of_what_is_added_up_with_another_weak_type(wrap: Any) -> None:
    """What a carry adds up may be weakly typed where the carry is not."""
    def added(w: Any, xs: Any) -> Any:
        return lax.scan(lambda c, x: (c + jnp.sin(w) * 2.0, c * x), jnp.float32(1), xs)[1].sum()

    xs = np.float32([1, 2, 3])
    got = wrap(anima.grad(added))(0.5, xs)
    np.testing.assert_allclose(got, 2 * np.cos(0.5) * (0 * 1 + 1 * 2 + 2 * 3), rtol=1e-6)


def test_what_programs_close_over_is_shared() -> None:
    """Each value as often as one program has it: two arguments of a program may be one value."""
    def closed(fun: Callable[..., Any], count: int) -> Any:
        return anima.make_jaxpr(fun)(*[1.0] * count)

    a, b, x = np.float32(2.0), np.float32(3.0), np.float32(5.0)
    one = closed(lambda p, q, r, x: p - q * r + x, 4), [a, b, a]
    two = closed(lambda p, q, x: p / q - x, 3), [b, a]
    programs, values = share_consts([one, two, one])
    assert [id(v) for v in values] == [id(v) for v in (a, b, a)]
    for program, (before, consts) in zip(programs, (one, two, one), strict=True):
        assert anima.extend.core.jaxpr_as_fun(program)(*values, x) == anima.extend.core.jaxpr_as_fun(before)(*consts, x)
