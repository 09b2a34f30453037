"""Exported functions for sizes that are not known: what they compute for some, what is refused, files."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import export as ex, lax
from anima.config import threefry_partitionable
from anima.core.dims import Dim
from anima.core.format import sealed
from anima.errors import InconclusiveDimensionOperation
from anima.export.polymorphic import FAMILY, FAMILY_VERSION
from tests.export.test_damage import DAMAGES, HEAD

F32 = np.float32


def struct(spec: str, dtype: Any = F32, **options: Any) -> anima.ShapeDtypeStruct:
    return anima.ShapeDtypeStruct(ex.symbolic_shape(spec, **options), dtype)


def loss(x: Any) -> Any:
    return jnp.mean(jnp.tanh(x) ** 2)


# Functions of one array, its shape, that of the result, and shapes to call it with.
CASES: list[tuple[str, Callable[[Any], Any], str, str, list[tuple[int, ...]]]] = [
    ("elements", lambda x: jnp.sin(x) * 2, "a, b", "(a, b)", [(2, 3), (1, 1), (40, 7)]),
    ("sum", lambda x: x.sum(0), "a, b", "(b,)", [(2, 3), (1, 5)]),
    ("mean", lambda x: jnp.mean(x) + x.shape[0] / 4, "a, b", "()", [(2, 3), (8, 8)]),
    ("variance", lambda x: jnp.var(x, axis=0, keepdims=True), "a, 3", "(1, 3)", [(2, 3), (9, 3)]),
    ("flat", lambda x: x.reshape(-1), "a, b", "(a*b,)", [(2, 3), (5, 1)]),
    ("merged", lambda x: x.reshape(x.shape[0] * x.shape[1], 2), "a, b, 2", "(a*b, 2)", [(2, 3, 2)]),
    ("halves", lambda x: x.reshape(2, x.shape[0] // 2), "2*a", "(2, a)", [(6,), (2,)]),
    ("product", lambda x: x @ x.T, "a, b", "(a, a)", [(3, 4), (1, 2)]),
    ("differences", lambda x: x[1:] - x[:-1], "a + 1", "(a,)", [(4,), (2,)]),
    ("twice", lambda x: jnp.concatenate([x, x, x[:1]]), "a", "(2*a + 1,)", [(4,), (1,)]),
    ("numbers", lambda x: jnp.arange(x.shape[0]) + x * x.shape[0], "a", "(a,)", [(4,), (1,)]),
    ("numbers of both", lambda x: jnp.full((x.shape[0] + x.shape[1],), x.size), "a, b", "(b + a,)", [(2, 3)]),
    ("padded", lambda x: jnp.pad(x, 1), "a, b", "(a + 2, b + 2)", [(2, 3)]),
    ("loop", lambda x: lax.scan(lambda c, v: (c + v.sum(), c), 0.0, x)[1], "a, b", "(a,)", [(4, 3), (1, 1)]),
    ("steps", lambda x: lax.fori_loop(0, x.shape[0], lambda i, c: c * 0.5 + x[i], F32(0)), "a", "()", [(4,), (1,)]),
    ("softmax", lambda x: anima.nn.softmax(x), "a, b", "(a, b)", [(2, 3), (4, 1)]),
    ("middle", lambda x: x[x.shape[0] // 2], "a", "()", [(5,), (1,)]),
    ("rows", anima.vmap(jnp.sort), "a, b", "(a, b)", [(2, 3)]),
    ("gradient", anima.grad(loss), "a, b", "(a, b)", [(2, 3)]),
    ("inner", lambda x: anima.jit(loss)(x) + x.shape[0], "a", "()", [(4,)]),
    ("remainder", lambda x: x[: x.shape[0] % 3 + 1], "a", "(mod(a, 3) + 1,)", [(5,), (7,)]),
]


def of_shape(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(F32)


@pytest.mark.parametrize("fun,spec,out,shapes", [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_one_program_for_all_sizes(fun: Callable[[Any], Any], spec: str, out: str,
                                   shapes: list[tuple[int, ...]]) -> None:
    exported = ex.export(anima.jit(fun))(struct(spec))
    assert str(exported.out_avals[0].shape) == out
    assert str(anima.eval_shape(fun, struct(spec)).shape) == out
    again = ex.deserialize(exported.serialize())
    assert str(again.in_avals) == str(exported.in_avals) and str(again.out_avals) == str(exported.out_avals)
    for shape in shapes:
        x = of_shape(shape)
        wanted = anima.jit(fun)(x)
        for called in (exported.call(x), again.call(x), anima.jit(again.call)(x)):
            assert called.dtype == wanted.dtype
            np.testing.assert_allclose(called, wanted, rtol=1e-5, atol=1e-6)


def test_derivatives_of_all_sizes() -> None:
    exported = ex.export(anima.jit(loss))(struct("a, 2*b"))
    again = ex.deserialize(exported.serialize(vjp_order=2))
    x = of_shape((3, 4))
    np.testing.assert_allclose(anima.grad(again.call)(x), anima.grad(loss)(x), rtol=1e-5)

    def of_gradient(f: Callable[..., Any]) -> Any:
        return anima.grad(lambda x: anima.grad(f)(x).sum())(x)

    np.testing.assert_allclose(of_gradient(again.call), of_gradient(loss), rtol=1e-4, atol=1e-7)
    assert str(again.vjp().in_avals[0].shape) == "(a, 2*b)"


def test_random_numbers_of_all_sizes() -> None:
    """The newer stream numbers each element by itself; the older one is another program for odd sizes."""
    def draw(x: Any) -> Any:
        return anima.random.uniform(anima.random.key(0), x.shape)

    with threefry_partitionable(True):
        exported = ex.export(anima.jit(draw))(struct("a"))
        np.testing.assert_array_equal(exported.call(jnp.ones(7)), draw(jnp.ones(7)))
    with threefry_partitionable(False):
        with pytest.raises(InconclusiveDimensionOperation):
            ex.export(anima.jit(draw))(struct("a"))
        even = ex.export(anima.jit(draw))(struct("2*a"))
        np.testing.assert_array_equal(even.call(jnp.ones(8)), draw(jnp.ones(8)))


def test_several_arguments_share_their_sizes() -> None:
    args = ex.symbolic_args_specs({"x": jnp.ones((2, 3)), "y": jnp.ones(3), "n": 2}, {"x": "k, n", "y": "n", "n": None})
    exported = ex.export(anima.jit(lambda p: p["x"] @ p["y"] * p["n"]))(args)
    given = {"x": jnp.ones((4, 5)), "y": jnp.ones(5), "n": 3}
    np.testing.assert_array_equal(exported.call(given), np.full(4, 15.0))
    with pytest.raises(ValueError, match=r"inconsistency between dimension size args\[0\]\['y'\].shape\[0\] \(= 4\)"):
        exported.call({**given, "y": jnp.ones(4)})
    with pytest.raises(ValueError, match=r"Rank mismatch for args\[0\]\['y'\]: expected \(n,\)"):
        exported.call({**given, "y": jnp.ones((5, 1))})
    with pytest.raises(ValueError, match="pytree structure"):
        exported.call(given, 1)
    with pytest.raises(ValueError, match="Dtype mismatch"):
        exported.call({**given, "y": jnp.arange(5)})


def test_an_exported_function_inside_of_another() -> None:
    inner = ex.export(anima.jit(lambda x: x.sum(0) * x.shape[0]))(struct("a, b"))
    outer = ex.export(anima.jit(lambda y: inner.call(jnp.stack([y, y]))))(struct("2*c"))
    assert str(outer.out_avals[0].shape) == "(2*c,)"
    np.testing.assert_array_equal(ex.deserialize(outer.serialize()).call(jnp.ones(6)), np.full(6, 4.0))


@pytest.mark.parametrize("spec,shape,message", [
    ("a, b", (0, 3), "Expected value >= 1 for dimension variable 'a'"),
    ("2*a", (5,), "Division had remainder 1"), ("a, a", (3, 4), "inconsistency"), ("a - 1", (0,), None),
    ("a*b", (6,), "Cannot solve for values of dimension variables a, b"), ("a + b, b", (5, 2), None),
    ("floordiv(a, 2), a", (2, 5), None), ("floordiv(a, 2)", (2,), "Cannot solve"), ("a, b", (3, 0), "'b'")])
def test_sizes_of_a_call(spec: str, shape: tuple[int, ...], message: str | None) -> None:
    exported = ex.export(anima.jit(lambda x: x + 1))(struct(spec))
    if message is None:
        assert exported.call(jnp.ones(shape)).shape == shape
    else:
        with pytest.raises(ValueError, match=message):
            exported.call(jnp.ones(shape))


def test_constraints() -> None:
    a, b = ex.symbolic_shape("a, b", constraints=["a >= 4", "b <= 10", "mod(a, 2) == 0"])
    assert a >= 4 and a > 2 and a % 2 == 0 and b <= 10 and a + 1 >= 5
    with pytest.raises(InconclusiveDimensionOperation):
        bool(a > 4)
    exported = ex.export(anima.jit(lambda x: x.reshape(x.shape[0] // 2, 2, x.shape[1])))(
        anima.ShapeDtypeStruct((a, b), F32))
    exported = ex.deserialize(exported.serialize())
    assert exported.call(jnp.ones((6, 3))).shape == (3, 2, 3)
    for shape in ((2, 3), (5, 3), (4, 11)):
        with pytest.raises(ValueError, match="constraints a >= 4, b <= 10"):
            exported.call(jnp.ones(shape))
    assert str(ex.symbolic_shape("a, b", constraints=["a == 2*b"])) == "(2*b, b)"
    for wrong in (["a"], ["a > b"], ["a >="], ["1 >= 2"]):
        with pytest.raises(ValueError):
            ex.SymbolicScope(wrong)
    with pytest.raises(ValueError, match="There are no sizes"):
        ex.export(anima.jit(jnp.sin))(struct("a", constraints=["a >= 5", "a <= 4"]))


# ---------------------------------------------------------------- what is refused

def test_decisions_by_sizes_are_refused() -> None:
    x = struct("a, b")
    for fun in (lambda x: x if x.shape[0] > x.shape[1] else -x, lambda x: x[:3] if x.shape[0] >= 3 else x,
                lambda x: [x[i] for i in range(x.shape[0])], lambda x: x + np.ones(x.shape, F32),
                lambda x: x * np.cos(x.shape[0]), lambda x: x.sum() if x.shape[0] == 11 else x):
        with pytest.raises(InconclusiveDimensionOperation):
            ex.export(anima.jit(fun))(x)
    same = ex.export(anima.jit(lambda x: x if x.shape[0] >= 1 and x.shape[0] != 3 else -x))(x)
    assert same.call(jnp.ones((3, 3)))[0, 0] == 1
    with pytest.raises(TypeError):
        ex.export(anima.jit(lambda x: x + x.T))(x)


def test_sizes_are_known_to_exported_functions_alone() -> None:
    x = struct("a")
    for call in (lambda: anima.jit(jnp.sin).lower(x), lambda: anima.make_jaxpr(jnp.sin)(x)):
        with pytest.raises(NotImplementedError, match="The size a of"):
            call()
    with pytest.raises(ValueError, match="mixing of symbolic scopes"):
        ex.export(anima.jit(lambda x, y: x))(x, struct("b"))
    for call in (lambda: np.zeros(x.shape), lambda: int(x.shape[0]), lambda: range(x.shape[0])):
        with pytest.raises(InconclusiveDimensionOperation):
            call()


def test_nothing_of_symbolic_sizes_is_left_behind() -> None:
    f = anima.jit(lambda x: jnp.concatenate([x, x]))
    ex.export(f)(struct("a"))
    for n in (11, 13, 17, 19):
        assert all(type(d) is int for d in anima.make_jaxpr(f)(jnp.ones(n)).out_avals[0].shape)
        assert not any(isinstance(d, Dim) for d in f.lower(jnp.ones(n)).jaxpr.out_avals[0].shape)


def test_damaged_files() -> None:
    rng = random.Random(0)
    originals = [ex.export(anima.jit(fun))(struct(spec)).serialize(vjp_order=k % 2) for k, (_, fun, spec, _, _) in
                 enumerate(CASES[:6])]
    errors = 0
    for k in range(200):
        data = bytearray(rng.choice(originals))
        before = bytes(data)
        DAMAGES[k % len(DAMAGES)](rng, data)
        if bytes(data) != before:
            with pytest.raises(ex.FormatError):
                ex.deserialize(bytes(data))
        content = bytearray(before[HEAD:])
        DAMAGES[k % len(DAMAGES)](rng, content)
        try:
            ex.deserialize(sealed(FAMILY, FAMILY_VERSION, bytes(content)))
        except ex.FormatError:
            errors += 1
    assert errors > 100


# ---------------------------------------------------------------- texts

ARITHMETIC = [
    ("a + b", "b + a"), ("1 - a", "- a + 1"), ("2*a*b", "2*a*b"), ("a*a", "a^2"), ("(a - b)*(a + b)", "- b^2 + a^2"),
    ("a//2", "floordiv(a, 2)"), ("(4*a + 2)//2", "2*a + 1"), ("(2*a + 1) % 2", "1"), ("(a*b)//a", "b"), ("a - a", "0"),
    ("(a + b)//2*2", "2*floordiv(b + a, 2)"), ("max(a, 1)", "a"), ("7 % a", "mod(7, a)"), ("a**2*b + a", "a^2*b + a"),
    ("divmod(a, 2)", "(floordiv(a, 2), mod(a, 2))"), ("sum([a, b, a])", "b + 2*a"), ("3 - a", "- a + 3")]


@pytest.mark.parametrize("text,wanted", ARITHMETIC)
def test_arithmetic(text: str, wanted: str) -> None:
    scope = ex.SymbolicScope()
    a, b = ex.symbolic_shape("a, b", scope=scope)
    found = eval(text, {"a": a, "b": b})
    assert str(found) == wanted
    if ex.is_symbolic_dim(found):
        assert ex.symbolic_shape(wanted, scope=scope) == (found,)
        for x, y in ((1, 1), (3, 5), (8, 2)):
            assert found.at({"a": x, "b": y}) == eval(text, {"a": x, "b": y})


def test_comparisons() -> None:
    a, b = ex.symbolic_shape("a, b")
    assert a >= 1 and a + 1 > a and a * b >= 1 and not a - 1 < 0 and a // 2 >= 0 and a % 2 <= 1 and a != 3 and a == a
    assert a != b and a + b == b + a and hash(a + b) == hash(b + a) and a // 2 * 2 + a % 2 >= 0
    for call in (lambda: a < b, lambda: a >= 2, lambda: a - b > 0, lambda: max(a, b)):
        with pytest.raises(InconclusiveDimensionOperation, match="inconclusive"):
            call()
    with pytest.raises(ZeroDivisionError):
        a // 0
    with pytest.raises(ValueError, match="negative powers"):
        a ** -1


@pytest.mark.parametrize("spec", ["2 a", "a b", "a //2", "max(a)", "foo(a, b)", "a+", "a^", "a^99", "(" * 50 + "a", "?",
                                  "max(a, b", "floordiv(a, 0)", "-" * 40 + "a"])
def test_texts_that_are_no_shapes(spec: str) -> None:
    with pytest.raises(ValueError, match="symbolic shape"):
        ex.symbolic_shape(spec)
