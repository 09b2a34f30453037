"""Exported functions for sizes that are not known: what they compute for some, what is refused, files."""

from __future__ import annotations

import operator
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import export as ex, lax
from anima.config import threefry_partitionable
from anima.core.dims import OPERATIONS, Dim
from anima.core.format import sealed
from anima.errors import InconclusiveDimensionOperation, UnexpectedDimVar
from anima.export.polymorphic import FAMILY
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
    ("rows of what is left", lambda x: x.reshape(x.shape[0], -1), "a, 2, 3", "(a, 6)", [(1, 2, 3), (5, 2, 3)]),
    ("as many as rows", lambda x: jnp.reshape(x, [-1, x.shape[1] * 3]), "a, b, 3", "(a, 3*b)", [(2, 1, 3), (1, 4, 3)]),
    ("halves", lambda x: x.reshape(2, x.shape[0] // 2), "2*a", "(2, a)", [(6,), (2,)]),
    ("product", lambda x: x @ x.T, "a, b", "(a, a)", [(3, 4), (1, 2)]),
    ("differences", lambda x: x[1:] - x[:-1], "a + 1", "(a,)", [(4,), (2,)]),
    ("twice", lambda x: jnp.concatenate([x, x, x[:1]]), "a", "(2*a + 1,)", [(4,), (1,)]),
    ("numbers", lambda x: jnp.arange(x.shape[0]) + x * x.shape[0], "a", "(a,)", [(4,), (1,)]),
    ("numbers beside NumPy's", lambda x: np.arange(6.0).reshape(2, 3) * x.shape[0] - 1, "a", "(2, 3)", [(1,), (7,)]),
    ("numbers from 3", lambda x: jnp.arange(3, x.shape[0]), "a", "(max(a - 3, 0),)", [(1,), (3,), (9,)]),
    ("numbers backwards", lambda x: jnp.arange(x.shape[0], 0, -1, dtype="int8"), "a", "(a,)", [(1,), (5,)]),
    ("numbers in steps", lambda x: jnp.arange(0, 10, x.shape[0], jnp.bfloat16), "a", "(floordiv(9, a) + 1,)",
     [(1,), (4,), (12,)]),
    ("grid", lambda x: jnp.mgrid[1:x.shape[0], :3], "a", "(2, a - 1, 3)", [(1,), (4,)]),
    ("frequencies", lambda x: jnp.fft.fftfreq(x.shape[0], 0.5), "a", "(a,)", [(1,), (4,), (5,)]),
    ("some frequencies", lambda x: jnp.fft.rfftfreq(x.shape[0]), "a", "(floordiv(a, 2) + 1,)", [(1,), (4,), (5,)]),
    ("numbers of both", lambda x: jnp.full((x.shape[0] + x.shape[1],), x.size), "a, b", "(b + a,)", [(2, 3)]),
    ("padded", lambda x: jnp.pad(x, 1), "a, b", "(a + 2, b + 2)", [(2, 3)]),
    ("loop", lambda x: lax.scan(lambda c, v: (c + v.sum(), c), 0.0, x)[1], "a, b", "(a,)", [(4, 3), (1, 1)]),
    ("steps", lambda x: lax.fori_loop(0, x.shape[0], lambda i, c: c * 0.5 + x[i], F32(0)), "a", "()", [(4,), (1,)]),
    ("softmax", lambda x: anima.nn.softmax(x), "a, b", "(a, b)", [(2, 3), (4, 1)]),
    ("middle", lambda x: x[x.shape[0] // 2], "a", "()", [(5,), (1,)]),
    ("rows", anima.vmap(jnp.sort), "a, b", "(a, b)", [(2, 3)]),
    ("rows reshaped", anima.vmap(lambda x: x.reshape(x.shape[0], 1)), "a, b", "(a, b, 1)", [(2, 3), (1, 1)]),
    ("rows times one", lambda x: anima.vmap(lambda v: jnp.outer(v, x[0]).reshape(-1))(x), "a, b", "(a, b^2)",
     [(2, 3), (1, 3)]),
    ("gradient", anima.grad(loss), "a, b", "(a, b)", [(2, 3)]),
    ("columns of a Jacobian", anima.jacfwd(lambda x: x.sum(0) ** 2), "a, 4", "(4, a, 4)", [(1, 4), (3, 4)]),
    ("rows of a Jacobian", anima.jacrev(lambda x: x[:, None] * x), "a", "(a, a, a)", [(1,), (3,)]),
    ("Hessian", anima.hessian(lambda x: (x ** 3).sum()), "a", "(a, a)", [(1,), (3,)]),
    ("attention", lambda x: anima.nn.dot_product_attention(x, x, x, is_causal=True), "2, a, 3, 4", "(2, a, 3, 4)",
     [(2, 1, 3, 4), (2, 5, 3, 4)]),
    ("inner", lambda x: anima.jit(loss)(x) + x.shape[0], "a", "()", [(4,)]),
    ("remainder", lambda x: x[: x.shape[0] % 3 + 1], "a", "(min(mod(a, 3) + 1, a),)", [(5,), (7,), (1,), (2,)]),
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
    def export() -> Any:
        return ex.export(anima.jit(lambda x: x + 1))(struct(spec))

    if message is None:
        assert export().call(jnp.ones(shape)).shape == shape
    elif message.startswith("Cannot solve"):
        with pytest.raises(ValueError, match=f"^{message}"):
            export()
    else:
        exported = export()
        with pytest.raises(ValueError, match=message):
            exported.call(jnp.ones(shape))


def test_sizes_that_a_function_closes_over() -> None:
    a, b = ex.symbolic_shape("a, b")
    exported = ex.export(anima.jit(lambda x: jnp.ones(2 * a) + jnp.concatenate([x, x]) * a))(
        anima.ShapeDtypeStruct((a,), F32))
    assert str(exported.out_avals[0].shape) == "(2*a,)"
    np.testing.assert_array_equal(ex.deserialize(exported.serialize()).call(jnp.ones(3)), np.full(6, 4.0))
    for wrong in (lambda x: jnp.zeros(a + b), lambda x: x + b, lambda x: lax.full((b,), 1.0)):
        with pytest.raises(UnexpectedDimVar, match="dimension variables b, which are in no shape"):
            ex.export(anima.jit(wrong))(anima.ShapeDtypeStruct((a,), F32))
    with pytest.raises(TypeError, match="concrete values"):
        jnp.zeros(a)


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
                lambda x: x[jnp.triu_indices(x.shape[0])],
                lambda x: x * np.cos(x.shape[0]), lambda x: x.sum() if x.shape[0] == 11 else x):
        with pytest.raises(InconclusiveDimensionOperation):
            ex.export(anima.jit(fun))(x)
    for numbers in (lambda x: jnp.arange(0.0, x.shape[0]), lambda x: jnp.arange(0, x.shape[0], 0)):
        with pytest.raises(ValueError, match="arange: "):
            ex.export(anima.jit(numbers))(x)
    for rest in (lambda x: x.reshape(x.shape[0], -1, 3), lambda x: x.reshape(-1, 8)):
        with pytest.raises(InconclusiveDimensionOperation, match="does not evenly divide"):
            ex.export(anima.jit(rest))(struct("a, 4"))
    with pytest.raises(ValueError, match="may be 1, or more"):
        ex.export(anima.jit(jnp.squeeze))(struct("a, 4"))
    more = ex.export(anima.jit(jnp.squeeze))(struct("a, 1", constraints=["a >= 2"]))
    assert str(more.out_avals[0].shape) == "(a,)"
    same = ex.export(anima.jit(lambda x: x if x.shape[0] >= 1 and x.shape[0] != 3 else -x))(x)
    assert same.call(jnp.ones((3, 3)))[0, 0] == 1
    with pytest.raises(TypeError):
        ex.export(anima.jit(lambda x: x + x.T))(x)


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_random_numbers_of_generators_that_make_four_at_a_time(impl: str) -> None:
    key = anima.random.key(3, impl=impl)
    for fun in (lambda x: anima.random.uniform(key, x.shape), lambda x: anima.random.bits(key, x.shape[:1], "uint8")):
        exported = ex.deserialize(ex.export(anima.jit(fun))(struct("a, 5")).serialize())
        for n in (1, 3, 4, 9):
            np.testing.assert_array_equal(exported.call(jnp.ones((n, 5))), fun(jnp.ones((n, 5))))


@pytest.mark.parametrize("fun", [lambda x: jnp.tile(x, (3, 1, 1)),
                                 lambda x: anima.random.gamma(anima.random.key(0), x)])
def test_programs_of_one_size_are_not_those_of_sizes_that_are_not_known(fun: Callable[[Any], Any]) -> None:
    with threefry_partitionable(True):
        exported = ex.export(anima.jit(fun))(struct("a, 4"))
        for point in exported.points:
            x = jnp.ones((point["a"], 4))
            np.testing.assert_array_equal(anima.jit(fun)(x), exported.call(x))


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
            ex.deserialize(sealed(FAMILY, 1, bytes(content)))
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


NAMED = {"floordiv": lambda x, y: x // y, "mod": lambda x, y: x % y, "max": max, "min": min}
AT = [{"a": a, "b": b} for a in (1, 2, 3, 4, 7, 12) for b in (1, 2, 3, 5, 9)]


def random_size(rng: random.Random, depth: int) -> str:
    if not depth or rng.random() < 0.15:
        return rng.choice(["a", "b", "a", "b", str(rng.randint(-3, 5))])
    kind = rng.choice(["+", "-", "*", "**", *NAMED])
    x, y = random_size(rng, depth - 1), random_size(rng, depth - 1)
    return f"{kind}({x}, {y})" if kind in NAMED else f"({x}) ** 2" if kind == "**" else f"({x}) {kind} ({y})"


def computed(text: str, names: dict[str, Any]) -> Any:
    """What a text of a size is; None where it divides by zero."""
    try:
        return eval(text, names)
    except ZeroDivisionError:
        return None


@pytest.mark.parametrize("seed", range(40))
def test_random_sizes(seed: int) -> None:
    """They have the values of their texts, can be read from their own, and say of others only what always holds."""
    rng = random.Random(seed)
    for _ in range(40):
        texts = random_size(rng, rng.randint(1, 3)), random_size(rng, rng.randint(0, 2))
        scope = ex.SymbolicScope()
        a, b = ex.symbolic_shape("a, b", scope=scope)
        sizes = [computed(text, {"a": a, "b": b, **OPERATIONS}) for text in texts]
        if None in sizes:
            continue
        wanted = [[computed(text, {**at, **NAMED}) for at in AT] for text in texts]
        for size, values in zip(sizes, wanted, strict=True):
            if not ex.is_symbolic_dim(size):
                assert set(values) <= {size, None}
                continue
            assert ex.symbolic_shape(str(size), scope=scope) == (size,)
            assert all(v is None or size.at(at) == v for at, v in zip(AT, values, strict=True)), texts
        pairs = [(x, y) for x, y in zip(*wanted, strict=True) if x is not None and y is not None]
        for compare in (operator.lt, operator.le, operator.gt, operator.ge):
            try:
                known = compare(*sizes)
            except InconclusiveDimensionOperation:
                continue
            assert all(compare(x, y) == known for x, y in pairs), (texts, compare)
        assert sizes[0] != sizes[1] or all(x == y for x, y in pairs), texts


def test_comparisons_at_the_ends_of_what_is_known() -> None:
    """A size is 1 or more: what that decides, and what it does not."""
    (a,) = ex.symbolic_shape("a")
    below = 3 - a  # 2 or less
    known = {operator.ge: {0: True, 1: True, 2: None}, operator.gt: {-1: True, 0: True, 1: None},
             operator.lt: {0: False, 1: False, 2: None}, operator.le: {-1: False, 0: False, 1: None}}
    for compare, results in known.items():
        for number, wanted in results.items():
            other = {operator.ge: operator.le, operator.gt: operator.lt, operator.lt: operator.gt,
                     operator.le: operator.ge}[compare]
            for this, size, than in ((compare, a, number), (other, below, 3 - number)):
                if wanted is None:
                    with pytest.raises(InconclusiveDimensionOperation):
                        this(size, than)
                else:
                    assert this(size, than) is wanted


@pytest.mark.parametrize("text", ["max(a, b) >= 1", "max(a, 3) >= 3", "min(a, 3) <= 3", "min(a, b) >= 1", "a**2 >= 1",
                                  "((a - 4) // (b + 3))**2 >= 0", "max(a, b) > 0", "min(a, b) - 1 >= 0",
                                  "b - min(0, a) >= 1",
                                  "max(a + 1, a) == a + 1", "min(a + 1, a) == a", "max(a - 1, 0) == a - 1",
                                  "min(a, 1) == 1", "max(2, min(a, 2)) == 2", "(a + b) // (a + b) == 1"])
def test_what_is_known_of_sizes(text: str) -> None:
    a, b = ex.symbolic_shape("a, b")
    assert eval(text, {"a": a, "b": b, **OPERATIONS})


@pytest.mark.parametrize("text", ["a + 'x'", "'x' + a", "a - 'x'", "'x' - a", "a * 1.5", "1.5 * a", "a ** 1.5",
                                  "divmod(a, 1.5)", "divmod(1.5, a)", "a // 1.5", "7.5 // a", "a % 1.5", "7.5 % a",
                                  "a < 1.5", "a <= 1.5", "a > 'x'", "a >= 'x'"])
def test_sizes_are_computed_with_integers(text: str) -> None:
    (a,) = ex.symbolic_shape("a")
    with pytest.raises(TypeError, match=r"not supported|unsupported operand|can only concatenate str"):
        eval(text, {"a": a})
    assert a != "x" and a != 1.5


def test_sizes_of_two_scopes_are_not_computed_with_each_other() -> None:
    (a,), (b,) = ex.symbolic_shape("a"), ex.symbolic_shape("a")
    assert a != b
    for call in (lambda: a + b, lambda: a * b, lambda: a // b, lambda: a < b):
        with pytest.raises(ValueError, match="mixing of symbolic scopes: 'a' is of scope"):
            call()


def test_sizes_of_a_traced_function_as_texts_and_numbers() -> None:
    """A size is written as what it is; as a number, it is one of a few that the function is traced for."""
    seen = []

    def fun(x: Any) -> Any:
        n = x.shape[0] * 2 + 1
        seen.append((f"{n:>9}", str(n), pickle.loads(pickle.dumps(n)), n + 0.5))
        return x

    ex.export(anima.jit(fun))(struct("a"))
    for padded, text, number, half in seen:
        assert padded == "  2*a + 1" and text == "2*a + 1" and type(number) is int and half == number + 0.5


def test_numbers_among_parameters_follow_the_sizes() -> None:
    def fun(x: Any) -> Any:
        return lax.linalg.symmetric_product(x, x @ x.T, alpha=x.shape[0] / 4, beta=x.shape[1])

    x = of_shape((3, 2))
    got = ex.export(anima.jit(fun))(struct("a, b")).call(x)
    np.testing.assert_allclose(got, (3 / 4 + 2) * x @ x.T, rtol=1e-5)


NUMBERS: list[tuple[str, Callable[..., Any], bool]] = [
    ("linear", lambda a, b: a * 0.5 + 0.25, True), ("integer", lambda a, b: 3 * a - b + 1, True),
    ("of a product", lambda a, b: a * b * 0.5 + 1, True), ("of a sum", lambda a, b: a + 2 * b + 0.5, True),
    ("inverse", lambda a, b: 2.5 / a, True), ("inverse of a sum", lambda a, b: 1 / (b + 1), True),
    ("inverse of a square", lambda a, b: 3 / a**2, True), ("quotient", lambda a, b: a / b, False),
    ("root", lambda a, b: a**0.5, False), ("complex", lambda a, b: 1j * a, False),
    ("infinite", lambda a, b: float("inf") if a % 2 else 1.0, False),
]


@pytest.mark.parametrize("number, known", [c[1:] for c in NUMBERS], ids=[c[0] for c in NUMBERS])
def test_numbers_that_are_made_of_sizes(number: Callable[..., Any], known: bool) -> None:
    """Those are known for all sizes that are linear in one, or its inverse; others are refused."""
    export = ex.export(anima.jit(lambda x: x * number(*x.shape)))
    if not known:
        with pytest.raises(InconclusiveDimensionOperation):
            export(struct("a, b"))
        return
    exported = export(struct("a, b"))
    for shape in ((1, 1), (3, 5), (8, 2), (40, 41)):
        np.testing.assert_allclose(exported.call(jnp.ones(shape)), np.full(shape, number(*shape)), rtol=1e-6)


@pytest.mark.parametrize("size", [lambda a: a % 5, lambda a: a % 25, lambda a: a // 100, lambda a: 10 // a,
                                  lambda a: a % 1000, lambda a: a // 64 + 1, lambda a: 100 // a % 3])
def test_sizes_that_are_the_same_for_some_arguments(size: Callable[[Any], Any]) -> None:
    """Points are looked for at which they are neither numbers nor other sizes."""
    exported = ex.export(anima.jit(lambda x: jnp.ones(size(x.shape[0])) + x.sum()))(struct("a"))
    for n in (1, 3, 9, 24, 130, 250, 1003, 3000):
        np.testing.assert_array_equal(exported.call(jnp.ones(n)), np.full(size(n), 1.0 + n))


def test_points_are_where_sizes_are() -> None:
    exported = ex.export(anima.jit(lambda x: x * 2))(struct("floordiv(66, a - 11), a"))
    assert exported.call(jnp.ones((6, 22))).shape == (6, 22)


def test_sizes_without_a_program() -> None:
    exported = ex.export(anima.jit(lambda x: x[: 10 % (x.shape[0] - 1)]))(struct("a"))
    assert exported.call(jnp.ones(5)).shape == (2,)
    with pytest.raises(ValueError, match=r"has no program for the sizes \{'a': 1\}: integer modulo by zero"):
        exported.call(jnp.ones(1))


def test_calls_of_more_sizes_than_are_kept() -> None:
    exported = ex.export(anima.jit(lambda x: x[:1] * 2 + x.shape[0]))(struct("a"))
    for n in (*range(1, 70), 1, 69):
        assert float(exported.call(jnp.ones(n))[0]) == 2 + n


def test_orders_of_derivatives_that_are_serialized() -> None:
    exported = ex.export(anima.jit(jnp.sin))(struct("a"))
    for order in (-1, 16):
        with pytest.raises(ValueError, match=f"vjp_order is from 0 to 15, got {order}"):
            exported.serialize(vjp_order=order)


def test_constraints_between_numbers_and_of_products() -> None:
    assert ex.SymbolicScope(["2 >= 1", "1 == 1", "1 <= 1"]).limits == []
    for text in ("1 >= 2", "2 <= 1", "1 == 2"):
        with pytest.raises(ValueError, match=f"Unsatisfiable constraint: {text}"):
            ex.SymbolicScope([text])
    a, b = ex.symbolic_shape("a, b", constraints=["a*b == 6", "2*a == b"])
    assert a * b == 6 and 2 * a - b <= 0 and 2 * a - b >= 0 and 2 * a == b
    a, b = ex.symbolic_shape("a, b", constraints=["a == b + 1"])
    assert str(a) == "b + 1"


def test_products_for_which_sizes_stand() -> None:
    a, b, c, d = ex.symbolic_shape("a, b, c, d", constraints=["a * b == c + d", "2*c*d == 4*a", "mod(d, 3) == b"])
    assert [str(x) for x in (2 * b * a, a * b * b, c * d, a * b - c, d % 3, c * d * d)] == [
        "2*d + 2*c", "b*d + b*c", "2*a", "d", "b", "2*a*d"]
    assert a * b == c + d and hash(a * b) == hash(c + d)
    for constraints, product in ((["a*b == c", "c == 4"], "4*a"), (["a*b == a*a*b"], "a^2*b"),
                                 (["3*a*b == c"], "a^2*b"), (["a*b == c*a", "a*c == b*a"], None)):
        a, b, c = ex.symbolic_shape("a, b, c", constraints=constraints)
        assert product is None or str(a * b * a) == product
    exported = ex.export(anima.jit(lambda x, y: x.reshape(-1) + y))(
        *ex.symbolic_args_specs((jnp.ones((2, 3)), jnp.ones(6)), ("a, b", "c"), constraints=["a*b == c"]))
    exported = ex.deserialize(exported.serialize())
    assert exported.call(jnp.ones((4, 3)), jnp.ones(12)).shape == (12,)
    with pytest.raises(ValueError, match="constraints a\\*b == c"):
        exported.call(jnp.ones((4, 3)), jnp.ones(11))


@pytest.mark.parametrize("method", ["nearest", "linear", "cubic", "cubic-pytorch", "area"])
def test_images_of_unknown_sizes(method: str) -> None:
    for shape in (lambda n: (2 * n, 3), lambda n: (5, n), lambda n: (n // 2 + 1, 3)):
        resize = lambda x, shape=shape: anima.image.resize(x, shape(x.shape[0]), method)
        exported = ex.export(anima.jit(resize))(struct("n, 3"))
        for n in (1, 4, 7):
            x = jnp.arange(3.0 * n).reshape(n, 3) ** 2
            np.testing.assert_allclose(exported.call(x), resize(x), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("call", [
    lambda **given: ex.symbolic_shape("a", **given), lambda **given: ex.symbolic_args_specs(np.ones(3), "a", **given)])
def test_constraints_are_part_of_a_scope(call: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="Either a scope or constraints can be given"):
        call(scope=ex.SymbolicScope(), constraints=["a >= 2"])
    for given in ({"scope": ex.SymbolicScope()}, {"constraints": ["a >= 2"]}):
        call(**given)


@pytest.mark.parametrize("text, problem", [("a" + "+a" * 100_000, "is too long"),
                                           ("max(" * 60 + "a" + ", 1)" * 60, "is too deep")])
def test_texts_that_are_too_much(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ex.symbolic_shape(text)
    deep = "max(" * 9 + "a" + "".join(f", b{k})" for k in range(9))
    assert str(ex.symbolic_shape(deep)[0]) == deep


@pytest.mark.parametrize("spec", ["2 a", "a b", "a //2", "max(a)", "foo(a, b)", "a+", "a^", "a^99", "(" * 50 + "a", "?",
                                  "max(a, b", "floordiv(a, 0)", "-" * 40 + "a"])
def test_texts_that_are_no_shapes(spec: str) -> None:
    with pytest.raises(ValueError, match="symbolic shape"):
        ex.symbolic_shape(spec)
