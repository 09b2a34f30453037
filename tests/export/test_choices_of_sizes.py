"""Exported functions whose sizes are the smaller or the larger of others: right for all sizes, or refused."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import export as ex, lax
from anima.core import max_dim, min_dim
from anima.core.simplex import least
from anima.errors import InconclusiveDimensionOperation
from tests.export.test_polymorphic import of_shape, struct

SAME = {"window_strides": (2, 2), "padding": "SAME", "dimension_numbers": ("NHWC", "HWIO", "NHWC")}
CASES: list[tuple[str, Callable[[Any], Any], str, list[tuple[int, ...]]]] = [
    ("as many as columns", lambda x: x[:x.shape[1]], "a, b", [(4, 3), (3, 4), (3, 3)]),
    ("first", lambda x: x[:20], "a", [(1,), (20,), (30,)]),
    ("without the first", lambda x: x[20:] * 2, "a", [(1,), (20,), (30,)]),
    ("last", lambda x: x[-2:].sum(), "a", [(1,), (2,), (30,)]),
    ("between", lambda x: x[-20:-3], "a", [(1,), (4,), (30,)]),
    ("in steps", lambda x: x[2::2], "a", [(1,), (2,), (3,), (8,)]),
    ("backwards", lambda x: x[::-1], "a", [(1,), (5,)]),
    ("every b-th of the first", lambda x: x[:4:x.shape[1]], "c, b", [(20, 2), (3, 4), (1, 1), (4, 1)]),
    ("every b-th backwards", lambda x: x[2::-x.shape[1]], "c, b", [(20, 2), (1, 3), (2, 1), (3, 1)]),
    ("every b-th of 20", lambda x: x[::x.shape[1]], "20, b", [(20, 1), (20, 7), (20, 30)]),
    ("in steps that are computed", lambda x: lax.slice_in_dim(x, 0, x.shape[0], 1 + x.shape[0] // 4), "b",
     [(1,), (5,), (12,)]),
    ("backwards to", lambda x: x[:2:-2], "a", [(1,), (2,), (3,), (4,), (20,)]),
    ("backwards within", lambda x: x[2:0:-2], "a", [(1,), (2,), (3,), (20,)]),
    ("backwards from", lambda x: x[-3::-1], "a", [(1,), (2,), (3,), (20,)]),
    ("every b-th written", lambda x: x.at[::x.shape[1]].set(7.0), "c, b", [(20, 2), (3, 4), (1, 1)]),
    ("known places", lambda x: x[np.array([0, -1, 2])], "a, 4", [(1, 4), (2, 4), (20, 4)]),
    ("known places written", lambda x: x.at[-1, np.array([0, -2])].set(7.0), "a, 4", [(1, 4), (3, 4)]),
    ("taken around", lambda x: jnp.take(x, np.array([5, -3]), 0, mode="wrap"), "a", [(1,), (4,), (20,)]),
    ("one that may be past the end", lambda x: x[2] + x[-3, 1], "a, 4", [(1, 4), (2, 4), (3, 4), (20, 4)]),
    ("deleted", lambda x: jnp.delete(x, -1, 0), "a, 4", [(1, 4), (5, 4)]),
    ("deleted in steps", lambda x: jnp.delete(x, slice(1, None, 2)), "a", [(1,), (2,), (5,)]),
    ("inserted", lambda x: jnp.insert(x, np.array([0, -1]), 5.0), "a", [(1,), (2,), (5,)]),
    ("inserted in steps", lambda x: jnp.insert(x, slice(None, None, 2), 5.0), "a", [(1,), (2,), (5,)]),
    ("edges", lambda x: jnp.pad(x, [[x.shape[0], 1]], "edge"), "a", [(1,), (2,), (5,)]),
    ("reflected", lambda x: jnp.pad(x, [[2, 1], [0, 0]], "reflect"), "a, 2", [(1, 2), (2, 2), (5, 2)]),
    ("mirrored", lambda x: jnp.pad(x, [[0, 2 * x.shape[0] - 1]], "symmetric"), "a", [(1,), (2,), (5,)]),
    ("wrapped", lambda x: jnp.pad(x, [[2, 2]], "wrap"), "a", [(1,), (2,), (3,), (5,)]),
    ("means of 3", lambda x: jnp.pad(x, [[1, 2]], "mean", stat_length=3), "a", [(1,), (2,), (5,)]),
    ("at most", lambda x: jnp.ones(min_dim(x.shape[0], 4)), "a", [(1,), (4,), (9,)]),
    ("at least", lambda x: jnp.ones(max_dim(x.shape[0] - 5, 0)), "a", [(1,), (5,), (9,)]),
    ("filled up", lambda x: jnp.pad(x, (0, max_dim(8 - x.shape[0], 0))), "a", [(1,), (8,), (9,)]),
    ("singular values", lambda x: jnp.linalg.svd(x)[1], "a, b", [(4, 3), (3, 4)]),
    ("diagonal", lambda x: jnp.diagonal(x, 1), "a, b", [(4, 3), (3, 4)]),
    ("written", lambda x: x.at[:5].set(7.0), "a", [(1,), (5,), (9,)]),
    ("rolled", lambda x: jnp.roll(x, 15), "a", [(1,), (4,), (30,)]),
    ("windows", lambda x: lax.conv_general_dilated(x, jnp.ones((3, 3, 1, 1)), **SAME), "1, h, w, 1",
     [(1, 4, 3, 1), (1, 7, 8, 1), (1, 1, 2, 1)]),
    ("windows of all rows", lambda x: lax.reduce_window(x, 0.0, lax.add, (2, x.shape[0]), (1, 1), "VALID"), "a, 8",
     [(2, 8), (7, 8), (12, 8)]),
    ("segments in buckets", lambda x: anima.ops.segment_max(x, jnp.arange(x.shape[0]) % 3, x.shape[1], bucket_size=2),
     "a, b", [(1, 1), (2, 3), (5, 4)]),
    ("steps", lambda x: lax.fori_loop(0, min_dim(x.shape[0], 4), lambda i, c: c + x[i], 0.0), "a", [(1,), (4,), (9,)]),
]


@pytest.mark.parametrize("fun,spec,shapes", [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_one_program_has_the_right_sizes(fun: Callable[[Any], Any], spec: str, shapes: list[tuple[int, ...]]) -> None:
    exported = ex.export(anima.jit(fun))(struct(spec))
    again = ex.deserialize(exported.serialize())
    assert str(again.out_avals) == str(exported.out_avals)
    for shape in shapes:
        x = of_shape(shape)
        np.testing.assert_allclose(again.call(x), fun(jnp.asarray(x)), rtol=1e-5, atol=1e-6)


def test_sizes_of_results_say_what_is_chosen() -> None:
    of = {text: ex.export(anima.jit(fun))(struct(spec)).out_avals[0].shape for text, fun, spec, _ in CASES}
    assert str(of["first"]) == "(min(20, a),)" and str(of["at least"]) == "(max(a - 5, 0),)"
    assert str(of["every b-th of 20"]) == "(floordiv(19, b) + 1, b)"
    assert str(of["filled up"]) == "(max(- a + 8, 0) + a,)" and str(of["singular values"]) == "(min(b, a),)"


def test_derivatives_where_sizes_are_chosen() -> None:
    def f(x: Any) -> Any:
        return (x[:3] ** 2).sum()

    again = ex.deserialize(ex.export(anima.jit(f))(struct("a")).serialize(vjp_order=1))
    for n in (2, 3, 9):
        np.testing.assert_allclose(anima.grad(again.call)(of_shape((n,))), anima.grad(f)(of_shape((n,))), rtol=1e-6)


def test_choices_of_sizes_that_are_not_known() -> None:
    a, b = ex.symbolic_shape("a, b")
    assert str((max_dim(a, b), min_dim(a, 3), max_dim(0, a - 5))) == "(max(a, b), min(a, 3), max(0, a - 5))"
    assert max_dim(a, 1) == a and min_dim(a + 1, a) == a and max_dim(3, 4) == 4
    assert max_dim(np.int64(3), 4) == 4 and min_dim(np.int64(3), np.int32(4)) == 3


def test_other_programs_for_other_sizes_are_refused() -> None:
    """The decisions are by numbers that do not know what they are the value of."""
    def f(x: Any) -> Any:
        return x * (2 if len(range(x.shape[0])[:6]) == 6 else 3) + x[:6].sum()

    def g(x: Any) -> Any:
        return jnp.sin(x) if x.shape[0] % 2 else x

    for fun in (f, g):
        with pytest.raises(InconclusiveDimensionOperation):
            ex.export(anima.jit(fun))(struct("a"))


KNOWN: list[tuple[str, list[str], list[str]]] = [
    ("a", ["mod(a, 4) == 0"], ["a % 4 == 0", "4 * (a // 4) == a", "a // 4 * 4 >= a"]),
    ("a, b", ["a >= 4", "3 >= b"], ["a >= b", "a > b"]),
    ("a, b, c, d", ["a >= b", "b >= c", "c >= d"], ["a - d >= 0", "a >= d"]),
    ("a, b, c", ["a + 2 <= b", "c >= a + b"], ["c - 2*a - 2 >= 0", "b > a + 1"]),
    ("a", ["2*a >= 5", "3*a <= 10"], ["a == 3"]),
    ("a, b", [], ["-2 * ((-b) // 2) >= b", "a - a // 2 >= 1", "a - 2 * (a // 2) <= 1", "a - 5 % a >= 1", "a // 2 <= a",
                  "(a * a - b * b) // (a + b) == a - b", "(a * b + b) % (a + 1) == 0", "-(-a // 2) == (a + 1) // 2"])]


@pytest.mark.parametrize("names,constraints,facts", KNOWN)
def test_what_follows_of_linear_facts(names: str, constraints: list[str], facts: list[str]) -> None:
    known = dict(zip(names.split(", "), ex.symbolic_shape(names, constraints=constraints), strict=True))
    for fact in facts:
        assert eval(fact, dict(known)) is True, fact


def test_constraints_that_contradict_each_other() -> None:
    for constraints in (["a <= 0"], ["a >= 5", "a <= 4"], ["a + b <= 1"]):
        a, _ = ex.symbolic_shape("a, b", constraints=constraints)
        with pytest.raises(ValueError, match="Unsatisfiable constraint"):
            bool(a >= 2)
    for wrong in ("a >= 1", 3):
        with pytest.raises(ValueError, match="sequence of texts"):
            ex.symbolic_shape("a", constraints=wrong)


def test_the_least_value_of_a_form() -> None:
    """For forms whose names are small whole numbers, it is never more than what any of these has."""
    rng = random.Random(0)
    places = [(x, y) for x in range(-4, 5) for y in range(-4, 5)]

    def form() -> dict[Any, int]:
        return {"x": rng.randint(-2, 2), "y": rng.randint(-2, 2), (): rng.randint(-4, 4)}

    box: list[Any] = [{"x": 1, (): 4}, {"x": -1, (): 4}, {"y": 1, (): 4}, {"y": -1, (): 4}]
    for _ in range(200):
        goal, facts = form(), [*(form() for _ in range(rng.randint(0, 3))), *box]
        value = [goal["x"] * x + goal["y"] * y + goal[()] for x, y in places
                 if all(f.get("x", 0) * x + f.get("y", 0) * y + f[()] >= 0 for f in facts)]
        assert not value or least(goal, facts) <= min(value)
    assert least({"x": 1}, [{"x": 3, (): -4}]) * 3 == 4 and least({"x": 1}, []) == -np.inf
    assert least({"x": 1}, [{"x": 1, (): -5}, {"x": -1, (): 4}]) == np.inf


@pytest.mark.parametrize("text,wanted", [("a + -1", "a - 1"), ("-2 * a^2 * b + -1 *b^2*a", "- 2*a^2*b - a*b^2"),
                                         ("a*-2 + 9", "- 2*a + 9"), ("a - -1", "a + 1")])
def test_texts_with_negative_numbers(text: str, wanted: str) -> None:
    assert str(ex.symbolic_shape(text)[0]) == wanted


def test_shapes_of_arguments_that_are_given_anew() -> None:
    specs = ex.symbolic_args_specs((1.0, np.ones((2, 3))), ("a,", "a, b, c"))
    assert str([s.shape for s in specs]) == "[(a,), (a, b, c)]"


def test_what_differs_for_few_of_one_size_and_many_of_another_is_refused() -> None:
    for f in (lambda c, b: len(range(min(4, c))[::b]), lambda c, b: 3 + (b > 4 * c)):
        with pytest.raises(InconclusiveDimensionOperation, match="depends on the values of sizes"):
            ex.export(anima.jit(lambda x, f=f: jnp.ones(f(*map(np.int64, x.shape))) + x.sum()))(struct("c, b"))


@pytest.mark.parametrize("f", [
    lambda x: x * (np.int32(7) % x.shape[0]), lambda x: x * np.minimum(x.shape[0], 8),
    lambda x: x * np.sign(x.shape[0] - 4), lambda x: x * (np.int32(4) < x.shape[0]),
    lambda x: x * np.array([1, 2, 3, 4])[:x.shape[0]].sum(), lambda x: x * math.ceil(x.shape[0] / 200),
    lambda x: x * int(x.shape[0] / 1500), lambda x: x * np.max((*x.shape, 60))])
def test_functions_of_sizes_that_nothing_sees_are_refused(f: Callable[[Any], Any]) -> None:
    with pytest.raises(InconclusiveDimensionOperation, match="depends on the values of sizes"):
        ex.export(anima.jit(f))(struct("a"))


def test_comparisons_are_not_looked_at_where_arguments_are_huge() -> None:
    seen = []

    def f(x: Any) -> Any:
        seen.append(x.size)
        np.tri(x.shape[0], 1)  # which chooses types by its size
        return x

    assert str(ex.export(anima.jit(f))(struct("a, a")).out_avals[0].shape) == "(a, a)"
    assert max(map(int, seen)) <= 1 << 24


def test_programs_with_keys_are_looked_at_too() -> None:
    key = anima.random.key(0)
    like = anima.ShapeDtypeStruct((), key.dtype)
    with anima.threefry_partitionable(True):
        kept = ex.export(anima.jit(lambda k, x: x * anima.random.bernoulli(k, 0.5, x.shape)))(like, struct("a, b"))
        np.testing.assert_array_equal(kept.call(key, jnp.ones((3, 5))), anima.random.bernoulli(key, 0.5, (3, 5)))
        with pytest.raises(InconclusiveDimensionOperation, match="another program"):  # longer arrays take more rounds
            ex.export(anima.jit(anima.random.permutation))(like, struct("a"))
