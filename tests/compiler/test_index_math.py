"""Arithmetic on indices: every rule against whole numbers, on all values of the loops that an index depends on."""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from anima.compiler.ir.affine import LoopNest, injective, known, nest_of, steps
from anima.compiler.ir.index_math import FALSE, TRUE, Index, Indexer, conjunction
from anima.compiler.ir.loops import INDEX, Affine, Const, Expr, For, Let, NamedValue, Op, Stmt, Store, affine, walk
from anima.compiler.ir.show_loops import text
from anima.compiler.scheduling.vectorize import names_in
from tests.compiler.loop_programs import at, c, i, ix, k, parallel, serial, vector, x_at

RULES: dict[str, Any] = {
    "div": operator.floordiv, "rem": operator.mod,
    "max": max, "min": min, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "eq": operator.eq, "ne": operator.ne, "and": lambda a, b: bool(a and b), "or": lambda a, b: bool(a or b),
    "not": operator.not_, "cast": int, "select_n": lambda which, no, yes: yes if which else no}


def value(expr: Expr, names: Mapping[str, int]) -> Any:
    match expr:
        case Const(value=number):
            return number
        case NamedValue(name=name):
            return names[name]
        case Affine(const=const):
            return const + sum(value(v, names) * c for v, c in expr.terms)
        case Op(name="mul", args=(a, b)):
            return value(a, names) * value(b, names)
        case Op(name=name, args=args):
            return RULES[name](*(value(a, names) for a in args))
    raise TypeError(expr)


def points(extents: Mapping[str, int]) -> Iterator[dict[str, int]]:
    for numbers in itertools.product(*map(range, extents.values())):
        yield dict(zip(extents, numbers, strict=True))


# ---------------------------------------------------------------- static

OPERANDS = {"not": 1, "cast": 1, "select_n": 3}


@pytest.mark.parametrize("name", RULES)
def test_what_is_known_of_an_operation(name: str) -> None:
    logical = name in ("and", "or", "not")
    numbers = [False, True] if logical else [-3, 0, 2, 3]
    for args in itertools.product(numbers, repeat=OPERANDS.get(name, 2)):
        if (name in ("div", "rem") and args[1] <= 0) or (name == "select_n" and args[0] not in (0, 2)):
            continue
        dtype = "bool" if logical else INDEX
        given = [bool(args[0]), *args[1:]] if name == "select_n" else list(args)
        names = {f"n{n}": a for n, a in enumerate(given)}
        expr = Op(name, tuple(NamedValue(n, dtype) for n in names), "bool" if name in RULES and logical else INDEX)
        assert known(expr, names) == RULES[name](*given)
        lanes = {n: np.array([a, a]) for n, a in names.items()}
        assert np.array_equal(known(expr, lanes), [RULES[name](*given)] * 2)
        literals = Op(name, tuple(Const(a, dtype) for a in given), expr.dtype)
        assert known(literals, {}) == RULES[name](*given)


def test_what_is_not_known() -> None:
    numbers = {"a": 5, "b": 0}
    assert known(i("a"), numbers) == 5 and known(i("b"), numbers) == 0 and known(i("z"), numbers) is None
    assert known(Const(2.0, "f32"), numbers) is None and known(Const(3, "i32"), numbers) is None
    assert known(Const(False, "bool"), numbers) is False and known(c(0), numbers) == 0
    assert known(ix("add", i("b"), i("z")), numbers) is None and known(ix("add", i("z"), i("b")), numbers) is None
    assert known(ix("exp", i("a")), numbers) is None and known(x_at(i("a")), numbers) is None
    assert known(Op("add", (i("a"), i("a")), "i32"), numbers) is None
    assert known(Op("lt", (i("b"), i("a")), "bool"), numbers) is True


# ---------------------------------------------------------------- indices


def grown(ix: Indexer, rng: random.Random, variables: list[Index], steps: int) -> Iterator[tuple[Index, Any]]:
    """Indices made of others by all rules, each with a function that computes it from numbers."""
    made: list[tuple[Index, Any]] = [(v, lambda p, n=n: p[n]) for n, v in zip("ijk", variables, strict=True)]
    made.append((ix.const(7), lambda p: 7))
    for _ in range(steps):
        (a, f), (b, g) = rng.choice(made), rng.choice(made)
        n = rng.choice([-6, -1, 0, 1, 2, 3, 4, 6, 8, 12, 24, 30])
        rule = rng.choice(["add", "sub", "scale", "offset", "div", "rem", "div", "rem", "clamp", "recombine"])
        if rule in ("div", "rem", "recombine") and (a.lo < 0 or n < 1):
            continue
        if rule == "add":
            new = ix.add(a, b), lambda p, f=f, g=g: f(p) + g(p)
        elif rule == "sub":
            new = ix.sub(a, b), lambda p, f=f, g=g: f(p) - g(p)
        elif rule == "scale":
            new = ix.scale(a, n), lambda p, f=f, n=n: f(p) * n
        elif rule == "offset":
            new = ix.offset(a, n), lambda p, f=f, n=n: f(p) + n
        elif rule == "div":
            new = ix.div(a, n), lambda p, f=f, n=n: f(p) // n
        elif rule == "rem":
            new = ix.rem(a, n), lambda p, f=f, n=n: f(p) % n
        elif rule == "clamp":
            low = rng.randrange(-5, 9)
            high = low + rng.choice([0, 1, 20])
            new = ix.clamp(a, low, high), lambda p, f=f, lo=low, hi=high: min(max(f(p), lo), hi)
        else:
            m = rng.choice([1, 2, -3])
            parts = [ix.scale(ix.div(a, n), m * n), ix.scale(ix.rem(a, n), m)]
            rng.shuffle(parts)
            new = ix.add(ix.add(parts[0], b), parts[1]), lambda p, f=f, g=g, m=m: m * f(p) + g(p)
            assert new[0].nonlinear <= (a.nonlinear or b.nonlinear), "a quotient and its remainder are one again"
        if max(abs(new[0].lo), abs(new[0].hi)) < 10**6:
            made.append(new)
            yield new


@pytest.mark.parametrize("seed", range(40))
def test_random_indices_have_the_values_and_the_bounds_of_numbers(seed: int) -> None:
    rng = random.Random(seed)
    extents = {n: rng.choice([1, 2, 3, 4, 5, 6]) for n in "ijk"}
    maker = Indexer()
    variables = [maker.var(n, extent, level) for level, (n, extent) in enumerate(extents.items(), 1)]
    for index, fun in grown(maker, rng, variables, 60):
        got = [value(index.expr(), p) for p in points(extents)]
        want = [fun(p) for p in points(extents)]
        assert got == want, index.expr()
        assert index.lo <= min(got) and max(got) <= index.hi
        names = names_in(index.expr())
        assert index.level == max(("ijk".index(n) + 1 for n in names), default=0)
        if not any(isinstance(e, Op) and e.name in ("min", "max") for e in walk(index.expr())):  # a clamp is opaque
            assert {n for n, v in zip("ijk", variables, strict=True) if index.mentions(v.terms[0][0])} == names
        for bound in (min(got), max(got), max(got) + 1, index.hi, index.hi + 1, index.lo):
            less, least = maker.less(index, bound), maker.at_least(index, bound)
            for number, p in zip(got, points(extents), strict=True):
                assert value(less, p) == (number < bound) and value(least, p) == (number >= bound)


@pytest.mark.parametrize("seed", range(20))
def test_shapes_of_elements(seed: int) -> None:
    rng = random.Random(seed)
    maker = Indexer()
    shape = [rng.choice([1, 2, 3, 4, 6]) for _ in range(rng.randrange(1, 5))]
    size = int(np.prod(shape))
    whole = maker.var("m", size, 1)
    parts = maker.unflatten(whole, shape)
    for m in range(size):
        assert tuple(value(p.expr(), {"m": m}) for p in parts) == np.unravel_index(m, shape)
    assert all(p.lo >= 0 and p.hi < n for p, n in zip(parts, shape, strict=True))
    assert maker.flatten(parts, shape) is whole or size == 1, "taken apart and put together it is the same"
    separate = [maker.var(f"i{n}", extent, n + 1) for n, extent in enumerate(shape)]
    flat = maker.flatten(separate, shape)
    assert not flat.nonlinear and (flat.lo, flat.hi) == (0, size - 1)
    again = maker.unflatten(flat, shape)
    assert all(b is a or n == 1 for a, b, n in zip(separate, again, shape, strict=True)), "without a division"


def test_quotients_that_need_no_division() -> None:
    m = Indexer()
    x, y, z = m.var("i", 4, 1), m.var("j", 6, 2), m.var("k", 100, 3)
    total = m.add(m.scale(x, 24), m.scale(y, 4))
    for a, n, want in [
        (total, 24, (x, m.scale(y, 4))), (m.offset(total, 3), 24, (x, m.offset(m.scale(y, 4), 3))),
        (m.offset(total, 24), 24, (m.offset(x, 1), m.scale(y, 4))), (total, 4, (m.add(m.scale(x, 6), y), m.zero)),
        (y, 6, (m.zero, y)), (z, 1, (z, m.zero)), (m.offset(y, 6), 12, (m.zero, m.offset(y, 6))),
        (m.scale(z, 6), 12, (m.div(z, 2), m.scale(m.rem(z, 2), 6))),
        (m.offset(m.scale(z, 6), 5), 12, (m.div(z, 2), m.offset(m.scale(m.rem(z, 2), 6), 5))),
    ]:
        assert m.divmod(a, n) == want
    for a, n in [(y, 5), (m.offset(y, 1), 6), (m.add(m.scale(z, 4), y), 8), (m.sub(m.scale(z, 3), y), 3)]:
        a = m.offset(a, max(0, -a.lo))
        quotient, remainder = m.divmod(a, n)
        assert quotient.nonlinear and remainder.nonlinear
        assert (remainder.lo, remainder.hi) == (0, min(n - 1, a.hi)) and quotient.hi == a.hi // n
    few = m.rem(m.var("few", 3, 1), 2)
    assert (few.lo, few.hi) == (0, 1)


def test_equal_indices_are_one_object_with_the_simplest_text() -> None:
    m = Indexer()
    x, y = m.var("i", 4, 1), m.var("j", 6, 2)
    assert m.var("i", 4, 1) is x and m.add(x, y) is m.add(y, x) and m.sub(x, x) is m.zero
    assert m.scale(x, 1) is x and m.scale(x, 0) is m.zero and m.offset(x, 0) is x and m.add(x, m.zero) is x
    assert m.add(m.zero, x) is x and m.div(m.offset(m.scale(x, 5), 7), 9) is m.div(m.offset(m.scale(x, 5), 7), 9)
    assert m.clamp(x, 0, 3) is x and m.clamp(x, -1, 9) is x
    assert (m.clamp(x, 2, 9).lo, m.clamp(x, 2, 9).hi) == (2, 3) and (m.clamp(x, 0, 1).lo, m.clamp(x, 0, 1).hi) == (0, 1)
    assert (m.clamp(x, 8, 9).lo, m.clamp(x, 8, 9).hi) == (8, 8)
    assert (m.clamp(m.offset(x, 50), 2, 9).lo, m.clamp(m.offset(x, 50), 2, 9).hi) == (9, 9)
    assert x.expr() == i("i") and m.zero.expr() == c(0) and m.const(3).expr() == c(3)
    assert m.offset(m.scale(x, 2), 3).expr() == at("i", 2, 3) and m.add(x, m.scale(y, -1)).expr() == at("i", "j", -1)
    assert m.offset(m.scale(x, 2), 3).expr() is m.offset(m.scale(x, 2), 3).expr()
    assert (x.coefficient(x.terms[0][0]), x.coefficient(y.terms[0][0]), m.scale(y, -4).coefficient(y.terms[0][0])) == (
        1, 0, -4)
    assert m.less(x, 4) is TRUE and m.less(x, 3) is not TRUE and m.less(x, 0) is FALSE and m.less(x, 1) is not FALSE
    assert m.at_least(x, 0) is TRUE and m.at_least(x, 1) is not TRUE and m.at_least(x, 4) is FALSE
    assert m.at_least(x, 3) is not FALSE
    some, other = m.less(x, 3), m.less(y, 2)
    assert conjunction([]) is TRUE and conjunction([TRUE, TRUE]) is TRUE and conjunction([some, FALSE]) is FALSE
    assert conjunction([TRUE, some, TRUE]) is some
    assert conjunction([some, TRUE, other]) == Op("and", (some, other), "bool")


# ---------------------------------------------------------------- affine


@pytest.mark.parametrize("seed", range(20))
def test_sums_have_one_form(seed: int) -> None:
    rng = random.Random(seed)
    parts = [i("i"), i("j"), ix("rem", i("i"), c(3)), c(4), at("i", 2, "j", -1, 5), ix("max", at("j", 3), i("i"))]
    terms = [(rng.choice(parts), rng.randrange(-2, 3)) for _ in range(rng.randrange(6))]
    const = rng.randrange(-2, 3)
    made = affine(const, *terms)
    for p in points({"i": 4, "j": 3}):
        assert value(made, p) == const + sum(value(part, p) * number for part, number in terms)
    if isinstance(made, Affine):
        assert not any(isinstance(v, (Affine, Const)) for v in made.values) and 0 not in made.coefficients
        assert len(set(made.values)) == len(made.values) == len(made.coefficients)
    assert affine(0, (made, 1)) == made and affine(const, *terms, (made, -1)) == c(0)
    assert affine(-1, (made, 2)) == affine(2 * const - 1, *((part, 2 * number) for part, number in terms))


@pytest.mark.parametrize("expr, want, operations", [
    (at("i", 64, "j"), "i * 64 + j", 2), (at("i", 64, "j", 3), "i * 64 + j * 3", 3), (at("i", 2, 3), "i * 2 + 3", 2),
    (at("i", "j", -1, 7), "i + 7 - j", 3), (at("i", -1, 7), "7 - i", 2), (at("i", -4), "-i * 4", 1),
    (at("i", "j", 1, -1), "i + j - 1", 2), (at("i", -4, -2), "-i * 4 - 2", 2),
    (affine(1, (ix("rem", i("i"), c(7)), 5)), "i % 7 * 5 + 1", 2),
])
def test_sums_in_print(expr: Affine, want: str, operations: int) -> None:
    assert text(expr) == want and expr.operations == operations
    assert text(ix("rem", expr, c(7))) == (f"{want} % 7" if len(want) == 6 else f"({want}) % 7")
    assert text(ix("min", c(16), expr)) == f"min(16, {want})"


def an_expression(rng: random.Random, depth: int) -> Expr:
    if depth == 0:
        return rng.choice([i("i"), i("j"), i("t"), i("u"), c(rng.randrange(-3, 4)), c(5)])
    name = rng.choice(["add", "sub", "mul", "add", "sub", "mul", "div", "rem"])
    left, right = an_expression(rng, depth - 1), an_expression(rng, depth - 1)
    return ix(name, left, c(rng.randrange(1, 5)) if name in ("div", "rem") else right)


LETS = {"t": at("i", 3, "j", 2), "u": ix("add", ix("mul", c(-2), i("t")), i("j"))}


def with_lets(expr: Expr, p: dict[str, int]) -> int:
    p = {**p, "t": value(LETS["t"], p)}
    return value(expr, {**p, "u": value(LETS["u"], p)})


@pytest.mark.parametrize("seed", range(60))
def test_coefficients_are_differences(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        expr = an_expression(rng, rng.randrange(4))
        for name in "ij":
            step = steps(expr, LETS).get(name, 0)
            changes = {with_lets(expr, {**p, name: p[name] + 1}) - with_lets(expr, p) for p in points({"i": 7, "j": 7})}
            assert step is None or changes == {step}
            assert (name in steps(expr, LETS)) == bool(names_in(expr) & {name, "t", "u"}) >= (changes != {0})
        extents = [("i", rng.choice([1, 2, 3])), ("j", rng.choice([1, 3, 4]))]
        every = [with_lets(expr, {"i": 0, "j": 0} | p) for p in points(dict(extents))]
        assert not injective(expr, extents, LETS) or len(set(every)) == len(every)


@pytest.mark.parametrize("expr, want", [
    (at("i", 7, 3), (7, 0)), (ix("mul", c(4), i("i")), (4, 0)), (ix("sub", c(3), i("j")), (0, -1)),
    (ix("sub", at("i", 5), at("i", 2)), (3, 0)), (i("t"), (3, 2)), (i("u"), (-6, -3)), (c(9), (0, 0)),
    (ix("rem", i("j"), c(4)), (0, None)), (ix("mul", i("i"), i("j")), (None, None)), (i("else"), (0, 0)),
    (ix("add", ix("div", i("j"), c(2)), i("i")), (1, None)), (ix("mul", ix("div", i("j"), c(2)), c(3)), (0, None)),
    (ix("mul", c(2), ix("mul", i("i"), c(3))), (6, 0)), (ix("mul", c(3), c(4)), (0, 0)),
])
def test_coefficients_that_show(expr: Expr, want: tuple[int | None, int | None]) -> None:
    found = steps(expr, LETS)
    assert (found.get("i", 0), found.get("j", 0)) == want


@pytest.mark.parametrize("row, column, extents, yes", [
    (4, 1, (9, 4), True), (3, 1, (9, 4), False), (1, 9, (9, 4), True), (1, 8, (9, 4), False), (-4, 1, (9, 4), True),
    (0, 1, (2, 4), False), (0, 1, (1, 4), True), (4, 0, (9, 1), True), (0, 0, (1, 1), True), (5, 2, (2, 3), True),
    (4, 2, (2, 3), False), (0, 1, (0, 4), True), (1, 1, (2, 2), False), (1, 0, (2, 2), False),
])
def test_different_iterations_store_elsewhere(row: int, column: int, extents: tuple[int, int], yes: bool) -> None:
    assert injective(at("i", row, "j", column, 2), [("i", extents[0]), ("j", extents[1])], {}) == yes


def nest(*body: Stmt, between: tuple[Stmt, ...] = (), rows: Expr | int = 5) -> For:
    inner = vector("j", 4, *body)
    loop = parallel("i", 5, *between, inner)
    return loop if rows == 5 else For("i", rows, loop.body, "parallel")  # type: ignore[arg-type]


HERE = at("i", 4, "j")
ONE = Store("y", HERE, x_at(HERE))


@pytest.mark.parametrize("loop, yes", [
    (nest(ONE), True), (nest(ONE, between=(Let("t", x_at(i("i"))),)), True), (nest(), True),
    (nest(ONE, between=(Store("z", i("i"), k(1.0)),)), False), (nest(ONE, rows=i("n")), False),
    (nest(ONE, rows=ix("min", c(5), i("n"))), True), (vector("j", 4, ONE), True),
    (nest(serial("m", 2, ONE), ONE), False),
    (parallel("i", 5, vector("j", 4, ONE), Let("t", c(1))), False),
    (parallel("i", 5, serial("m", 2, vector("j", 4, ONE))), True),
])
def test_what_is_a_nest(loop: For, yes: bool) -> None:
    assert (nest_of((loop,)) is not None) == yes


def test_a_nest_has_its_loops_and_what_stands_between_them() -> None:
    let = Let("t", at("i", 4))
    found = nest_of((nest(Let("s", i("t")), ONE, between=(let,)),))
    assert isinstance(found, LoopNest)
    assert [loop.index for loop in found.loops] == ["i", "j"] and found.extents == [("i", 5), ("j", 4)]
    assert found.between == [let] and found.body == (Let("s", i("t")), ONE)
    assert found.lets == {"t": let.value, "s": i("t")}


# ---------------------------------------------------------------- multiples


@pytest.mark.parametrize("c", [1, 2, 3, 7, 8, 12])
def test_where_an_index_is_a_multiple(c: int) -> None:
    """Quotients without a division, at and beyond the ends of what allows them."""
    extents = {"i": 5, "j": 6}
    told = 0
    for a, b, offset in itertools.product((0, 1, -1, c - 1, c, c + 1, 3 * c - 1), (0, 1, -1, 2), (-c, -2, 0, 1, c)):
        ix = Indexer()
        i, j = (ix.var(name, extents[name], 1) for name in extents)
        index = ix.offset(ix.add(ix.scale(i, a), ix.scale(j, b)), offset)
        near = ix.near(index, c)
        for names in points(extents):
            number = a * names["i"] + b * names["j"] + offset
            if near is not None:
                q, r = (value(x.expr(), names) for x in near)
                assert number == q * c + r and -c < r < c
                assert value(ix.is_zero(near[1]), names) == (number % c == 0)
        told += near is not None
    assert told >= 10


def test_what_is_decided_of_zero() -> None:
    ix = Indexer()
    i = ix.var("i", 4, 1)
    assert ix.is_zero(ix.zero) is TRUE
    assert ix.is_zero(ix.const(1)) is FALSE is ix.is_zero(ix.offset(i, 1)) is ix.is_zero(ix.offset(i, -4))
    for index in (i, ix.offset(i, -3), ix.offset(i, -1)):
        assert isinstance(ix.is_zero(index), Op)
