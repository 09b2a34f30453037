"""Random loop programs: compiled, for machines with and without masks, they compute what the interpreter computes.

Indices are sums, products, quotients, remainders, maxima, minima and choices of loop indices and of loaded
integers; values are exact (integers, and sums of small whole floats), so results must have the same bits.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from anima.compiler.ir.interpret import run
from anima.compiler.ir.loops import Accumulate, Assign, Expr, If, Kernel, Let, Mutable, Program, Stmt, Store
from anima.compiler.ir.show_loops import check
from anima.runtime.executable import compile_program
from tests.compiler.loop_programs import c, i, ix, k, op, parallel, program, serial, v, vector, x_at
from tests.compiler.test_emit import NARROW

SIZE = 97


class Maker:
    """Writes one random program."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = 0

    def name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def index(self, names: list[str], depth: int = 3) -> Expr:
        """A non-negative index expression."""
        r = self.random
        if depth == 0 or r.random() < 0.2:
            return i(r.choice(names)) if names and r.random() < 0.8 else c(r.randrange(9))
        sort = r.choice(("add", "add", "mul", "div", "rem", "max", "min", "turn", "loaded", "choose"))
        inner = self.index(names, depth - 1)
        if sort in ("div", "rem"):
            return ix(sort, inner, c(r.randrange(1, 8)))
        if sort == "mul":
            return ix("mul", inner, c(r.randrange(4)))
        if sort == "turn":
            return ix("sub", c(40), ix("min", inner, c(40)))
        if sort == "loaded":
            return op("cast", op("and", x_at(self.inside(inner), "n", "i32"), k(63, "i32"), dtype="i32"), dtype="index")
        other = self.index(names, depth - 1)
        if sort == "choose":
            return ix("select_n", op(r.choice(("lt", "ge", "eq")), inner, other, dtype="bool"), inner, other)
        return ix(sort, inner, other)

    def inside(self, index: Expr) -> Expr:
        return ix("rem", index, c(SIZE)) if self.random.random() < 0.5 else ix("min", index, c(SIZE - 1))

    def value(self, names: list[str], depth: int = 2) -> Expr:
        """A whole number as an f32."""
        r = self.random
        if depth == 0 or r.random() < 0.3:
            sort = r.choice(("load", "load", "index", "const", "integer"))
            if sort == "index":
                return op("cast", self.inside(self.index(names)), dtype="f32")
            if sort == "integer":
                return op("cast", x_at(self.inside(self.index(names)), "n", "i32"), dtype="f32")
            return k(r.randrange(-3, 4)) if sort == "const" else x_at(self.inside(self.index(names)))
        a, b = self.value(names, depth - 1), self.value(names, depth - 1)
        if r.random() < 0.3:
            return op("select_n", op("lt", a, b, dtype="bool"), a, b)
        return op(r.choice(("add", "sub", "max", "min")), a, b)

    def map(self, names: list[str], extent: int, place: Expr, out: str) -> list[Stmt]:
        """A vector loop that stores, and perhaps sums."""
        r = self.random
        j, total = self.name("j"), self.name("s")
        body: list[Stmt] = []
        here = [*names, j]
        if r.random() < 0.5:
            bound = self.name("n")
            body.append(Let(bound, self.index(here)))
            here.append(bound)
        store = Store(out, ix("add", ix("mul", place, c(extent)), i(j)), self.value(here))
        loops: list[Stmt] = [Mutable(total, "f32", k(r.randrange(5)))]
        sums = r.random() < 0.5
        if sums:
            body.append(Accumulate(total, r.choice(("add", "max", "min")), self.value(here)))
        if r.random() < 0.3:
            part, m = self.name("p"), self.name("m")
            body += [Mutable(part, "f32", self.value(here, 1)),
                     serial(m, r.randrange(1, 4), Accumulate(part, "add", self.value([*here, m], 1)),
                            If(op("lt", i(m), c(1), dtype="bool"), (Assign(part, op("add", v(part), k(1))),))),
                     Store(out, store.index, op("add", store.value, v(part)))]
        else:
            body.append(store)
        loops.append(vector(j, extent, *body))
        if sums:
            loops.append(Store("z", place, v(total)))
        return loops

    def program(self) -> Program:
        r = self.random
        kernels: list[Stmt] = []
        rows, extent = r.choice((1, 2, 5)), r.choice((1, 3, 8, 16, 17, 33, 70))
        for _ in range(r.randrange(1, 3)):
            o = self.name("i")
            kind = r.choice((serial, parallel))
            kernels.append(Kernel(self.name("k"), (kind(o, rows, *self.map([o], extent, i(o), "y")),)))
        fill = Kernel("fill", (serial("f", rows, Store("z", i("f"), k(0))),))
        return program("random", {"x": ("f32", SIZE), "n": ("i32", SIZE)},
                       {"y": ("f32", rows * extent), "z": ("f32", rows)}, fill, *kernels)


@pytest.mark.parametrize("seed", range(60))
def test_compiled_is_interpreted(seed):
    p = Maker(seed).program()
    check(p)
    rng = np.random.default_rng(seed)
    inputs = [rng.integers(-8, 9, SIZE).astype(np.float32), rng.integers(-100, 100, SIZE).astype(np.int32)]
    expected = run(p, inputs)
    for target in (None, NARROW):
        for got, wanted in zip(compile_program(p, None, target)(inputs), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
