"""Ranges of integers against all values that there are, and programs that they change against what they replace."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.ir.loops import INDEX, Const, Expr, NamedValue, Op
from anima.compiler.ir.ranges import Ranges

X = NamedValue("x", "i8")
MEANS: dict[str, Any] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": lambda x, y: np.int8(int(x / y)), "rem": np.fmod,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "min": np.minimum, "max": np.maximum,
    "neg": np.negative, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "select_n": lambda which, x, y: y if which else x,
    "shift_right_logical": lambda x, y: (x.view("uint8") >> y.view("uint8")).view("int8")}
SOME = [*range(-128, 128, 5), -2, -1, 0, 1, 127]


def _random(rng: random.Random, ranges: Ranges, lets: list[tuple[str, Expr]]) -> None:
    """Adds a value to a chain of them."""
    named = [X, *(NamedValue(n, v.dtype) for n, v in lets if v.dtype == "i8")]
    x, y = rng.choice(named), rng.choice([*named, Const(rng.choice([0, 1, 3, 7, 8, 64, -1, -5]), "i8")])
    kind = rng.choice(["add", "sub", "mul", "div", "rem", "and", "or", "xor", "min", "max", "neg", "from the end",
                       "select", "less", "shift_right_logical"])
    name = f"v{len(lets)}"
    flags = [NamedValue(n, v.dtype) for n, v in lets if v.dtype == "bool"]
    if kind == "less":
        made = Op(rng.choice(["lt", "le", "gt", "ge"]), (x, y), "bool")
    elif kind == "neg":
        made = Op("neg", (x,), "i8")
    elif kind in ("div", "rem"):
        made = Op(kind, (x, Const(rng.choice([1, 3, 8]), "i8")), "i8")
    elif kind == "shift_right_logical":
        made = Op(kind, (x, Const(rng.choice([0, 1, 3]), "i8")), "i8")
    elif kind == "select":
        if not flags:
            return
        made = Op("select_n", (rng.choice(flags), x, y), "i8")
    elif kind == "from the end":
        n = rng.choice([1, 5, 64])
        negative, more = Op("lt", (x, Const(0, "i8")), "bool"), Op("add", (x, Const(n, "i8")), "i8")
        for suffix, value in (("a", negative), ("b", more)):
            ranges.define(name + suffix, value)
            lets.append((name + suffix, value))
        made = Op("select_n", (NamedValue(name + "a", "bool"), x, NamedValue(name + "b", "i8")), "i8")
    else:
        made = Op(kind, (x, y), "i8")
    ranges.define(name, made)
    lets.append((name, made))


def _values(lets: list[tuple[str, Expr]], x: int) -> dict[str, Any]:
    env: dict[str, Any] = {"x": np.int8(x)}
    with np.errstate(all="ignore"):
        for name, made in lets:
            assert type(made) is Op
            args = [np.int8(a.value) if type(a) is Const else env[a.name] for a in made.args]  # type: ignore[union-attr]
            env[name] = MEANS[made.name](*args)
    return env


@pytest.mark.parametrize("seed", range(150))
def test_every_value_is_in_its_range(seed: int) -> None:
    """Also where a condition holds, or does not."""
    rng, ranges, lets = random.Random(seed), Ranges(), []  # type: ignore[var-annotated]
    while len(lets) < 12:
        _random(rng, ranges, lets)
    flags = [n for n, v in lets if v.dtype == "bool"]
    inside = {}
    for flag, holds in itertools.product(flags, (True, False)):
        inside[flag, holds] = ranges.copy()
        inside[flag, holds].suppose(NamedValue(flag, "bool"), holds)
    for x in SOME:
        env = _values(lets, x)
        for name, made in [("x", X), *lets]:
            if made.dtype == "bool":
                decided = ranges.decided(made.name, made.args) if type(made) is Op else None
                assert decided is None or decided == bool(env[name])
                continue
            places = [ranges, *(r for (flag, holds), r in inside.items() if bool(env[flag]) == holds)]
            for place in places:
                least, most = place.of(NamedValue(name, made.dtype))
                assert least <= int(env[name]) <= most, (name, x)


def test_what_is_known_of_an_index() -> None:
    ranges = Ranges()
    x = NamedValue("x", "i32")
    for name, made in (("n", Op("lt", (x, Const(0, "i32")), "bool")), ("a", Op("add", (x, Const(64, "i32")), "i32")),
                       ("s", Op("select_n", (NamedValue("n", "bool"), x, NamedValue("a", "i32")), "i32")),
                       ("w", Op("cast", (NamedValue("s", "i32"),), INDEX)),
                       ("low", Op("ge", (NamedValue("w", INDEX), Const(0, INDEX)), "bool")),
                       ("high", Op("le", (NamedValue("w", INDEX), Const(63, INDEX)), "bool"))):
        ranges.define(name, made)
    inside = ranges.copy()
    inside.suppose(Op("and", (NamedValue("low", "bool"), NamedValue("high", "bool")), "bool"))
    assert inside.of(NamedValue("w", INDEX)) == (0, 63)
    assert inside.of(x) == (-64, 63)
    assert ranges.of(x) == (-1 << 31, (1 << 31) - 1)
    assert inside.of(Op("and", (Op("add", (x, Const(1, "i32")), "i32"), Const(63, "i32")), "i32")) == (0, 63)


# ---------------------------------------------------------------- programs


def test_bits_and_quotients_of_an_index_are_indices() -> None:
    """No clamp is left around an index of bits that an array's indices have, or around a quotient."""
    x = np.arange(64, dtype="float32")
    for index in (lambda i: i ^ 21, lambda i: i | 8, lambda i: i // 3):
        f = anima.jit(lambda x, index=index: x[index(jnp.arange(64))])
        assert "min(max(" not in str(f.lower(x).loops)
        np.testing.assert_array_equal(f(x), index(np.arange(64)))


def _near(x: Any, divisor: int, added: int, swap: bool, below: int) -> Any:
    rest = lax.rem(x, jnp.full_like(x, divisor))
    more = rest + jnp.asarray(added, x.dtype)
    negative = rest < below
    return jnp.where(negative, rest, more) if swap else jnp.where(negative, more, rest)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8"])
@pytest.mark.parametrize("divisor, added, swap, below", [
    (64, 64, False, 0), (64, 64, True, 0), (64, 32, False, 0), (63, 63, False, 0), (64, 64, False, 1), (1, 1, False, 0),
    (-64, -64, False, 0), (-64, 64, False, 0), (2, 2, False, 0)])
def test_remainders_and_what_is_nearly_one(dtype: str, divisor: int, added: int, swap: bool, below: int) -> None:
    if dtype == "uint8" and divisor < 0:
        divisor, added = 200, 200
    info = np.iinfo(dtype)
    x = np.array([info.min, info.min + 1, info.max, info.max - 1, *range(127)], dtype)
    if dtype != "uint8":
        x = np.concatenate([x, -x])
    fun = lambda x: _near(x, divisor, added, swap, below)
    np.testing.assert_array_equal(anima.jit(fun)(x), fun(jnp.asarray(x)))
    np.testing.assert_array_equal(anima.jit(lambda x: x % divisor)(x), np.asarray(jnp.asarray(x) % divisor))


@pytest.mark.parametrize("n", [1, 7, 64])
def test_updates_at_indices_that_reach_over_the_end(n: int) -> None:
    """Indices on both sides of every limit; reads around them in the same step."""
    def step(a: Any, i: Any) -> tuple[Any, Any]:
        around = a[(i + 1) % n] + 2 * a[i - 1] + 3 * a[i] + 5 * a[i + 1]
        return a.at[i].set(around % 1000), around

    a = np.arange(1, n + 1, dtype="int32")
    i = np.array([*range(-2 * n - 2, 2 * n + 3), 2**31 - 1, -2**31], "int32")
    found = anima.jit(lambda a, i: lax.scan(step, a, i))(a, i)
    expected: Any = jnp.asarray(a), []
    for k in i:
        new, out = step(expected[0], jnp.asarray(k))
        expected = new, [*expected[1], out]
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], np.array(expected[1]))


def test_more_is_known_in_a_branch_than_after_it() -> None:
    """A value is an index in a branch, where it is less than 4, and of a larger array outside of it."""
    small, large = np.arange(4, dtype="int32"), np.arange(100, 200, dtype="int32")

    def fun(i: Any) -> Any:
        a = lax.cond(i < 4, lambda i: jnp.asarray(small)[i], lambda i: 7 * i, i)
        b = jnp.zeros(4, "int32").at[i].set(5, mode="drop")
        return a, b, jnp.asarray(large)[i], jnp.asarray(large).reshape(25, 4)[i // 4, i % 4]

    for i in (0, 3, 4, 50, 99):
        for found, expected in zip(anima.jit(fun)(np.int32(i)), fun(jnp.int32(i)), strict=True):
            np.testing.assert_array_equal(found, expected)
