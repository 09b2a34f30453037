"""What statements cost: the sum of what their parts do, by hand."""

from __future__ import annotations

import pytest

from anima.compiler.ir.costs import cost, extent_of, operation_cost
from anima.compiler.ir.loops import Accumulate, Assign, Call, Expr, For, If, Kernel, Let, Local, Stmt, Store, While
from anima.ops.family import ELEMENTWISE
from tests.compiler.loop_programs import at, c, i, ix, k, op, v, x_at

X, Y = v("x"), v("y")
LESS = op("lt", X, k(1.0), dtype="bool")
LOAD, SET = x_at(i("j")), Assign("x", op("sin", X))          # 0.7 and 10
STORE = Store("y", at("j", 2), op("add", X, Y))              # 1 + 0.3 * 0.2 + 1


@pytest.mark.parametrize(("node", "nanoseconds"), [
    (k(1.0), 0.0), (X, 0.0), (Local("row", "f32", 9), 0.0), (Let("z", X), 0.0),
    (op("add", X, Y), 1.0), (op("add", op("sin", X), op("div", X, Y)), 15.0), (op("pow", X, Y), 20.0),
    (op("cast", X), 0.5), (op("bitcast", X), 0.0), (op("no_primitive", X), 1.0),
    (ix("mul", i("j"), ix("add", i("k"), c(3))), 0.4),
    (LOAD, 0.7), (x_at(at("j", 4, 1)), 0.82), (STORE, 2.06), (Accumulate("s", "add", LOAD), 1.7), (SET, 10.0),
    (For("j", c(10), (SET,)), 107.0), (For("j", c(0), (SET,)), 2.0), (For("j", i("n"), (SET,)), 170.0),
    (For("j", c(10), (SET,), "parallel"), 107.0), (For("j", c(10), (SET, STORE), "serial", 8), 127.6),
    (For("j", c(12), (SET,), "vector"), 122.0), (For("j", c(12), (SET,), "vector", 1), 122.0),
    (For("j", c(12), (SET,), "vector", 10), 22.0), (For("j", c(12), (SET,), "whole", 10), 28.0),
    (While((SET,), LESS, (SET, SET)), 64 * 31.0), (While((), LESS, ()), 64.0),
    (If(LESS, (SET,), (STORE,)), 11.0), (If(LESS, (STORE,), (SET, SET)), 21.0), (If(LESS, (), ()), 1.0),
    (Kernel("k", (SET, STORE)), 12.06), (Call("exchange", ()), 10_000.0),
    (Call("gemm", ("f32", "N", "N", 100, 50, 20, 1.0, "a", 0, 20, "b", 0, 50, 0.0, "c", 0, 50, 3, 0, 0, 5000)), 6100.0),
])
def test_costs(node: Stmt | Expr, nanoseconds: float) -> None:
    assert cost(node) == pytest.approx(nanoseconds)


@pytest.mark.parametrize(("extent", "trips"), [
    (c(7), 7), (c(0), 0), (i("n"), 16), (ix("min", c(5), i("n")), 5), (ix("min", i("n"), c(6)), 6),
    (ix("min", i("n"), i("m")), 16), (ix("max", c(5), i("n")), 16), (ix("div", c(5), c(6)), 16),
])
def test_trips(extent: Expr, trips: int) -> None:
    assert extent_of(extent) == trips


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_operations_cost_what_their_primitives_say(name: str) -> None:
    assert operation_cost(name) == ELEMENTWISE[name].cost
