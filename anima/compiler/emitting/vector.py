"""Vector loops: `width` iterations at a time, and what is left over.

    vector(16) j < 1000:          ->   for j in 0, 64, ... < 960: 4 rounds of 16, an accumulator each
      s add= x[j]                      for j in 960, 976, ... < 1000: lanes j + l < 1000 active
                                       s = s + (the sum of 4 accumulators of 16 lanes, pairwise)

Where the machine has no masked instructions the rest runs one by one. A long body is not written twice: it gets masks
in all of its rounds or, without such instructions, lanes beyond the last iteration do that one once more; with AVX2,
whose masks are slow, a very long one gets them. A `while` runs until its last lane is done. How accumulators are
combined depends on the program alone. Two rounds look for NaNs with one comparison.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from typing import cast

import numpy as np

from anima.compiler.emitting.control import Control
from anima.compiler.emitting.held import elements_of
from anima.compiler.emitting.interleave import runs
from anima.compiler.emitting.value import COMPLEX_TYPES, ZERO, LaneIndex, Val, constant_of, i64, parts, rebuild
from anima.compiler.ir.affine import WORDS, steps
from anima.compiler.ir.assembly import Type, Value
from anima.compiler.ir.costs import cost
from anima.compiler.ir.loops import (
    INDEX,
    Accumulate,
    Assign,
    Call,
    Const,
    Expr,
    For,
    If,
    Let,
    Load,
    Local,
    Mutable,
    NamedValue,
    Op,
    Stmt,
    Store,
    While,
    lets_of,
    statements,
    varying_names,
    walk,
)
from anima.compiler.ir.neutral import neutral

_HEAVY = 24      # nanoseconds or so of one scalar iteration from which a body is written once only
_HEAVIER = 100   # ... on machines where masks cost a little
_LIGHT = 2.5     # below: reductions run in four accumulators, to hide the latency of the additions
_MEDIUM = 6.0    # below: in two


class Vector(Control):
    """Adds vector loops to a function."""

    masks: bool
    tests: dict[str, Expr]  # of accumulators that say whether a value was a NaN: the value
    waiting: dict[str, Value]  # values that are not looked at yet, by accumulator

    def vector(self, loop: For) -> None:
        """The loop, `loop.width` lanes at once."""
        if self.width > 1:
            raise ValueError("a vector loop inside of a vector loop")
        extent = self.index(loop.extent)
        extent = LaneIndex(self.total(extent), 0, extent.lo, extent.hi)
        count = constant_of(extent.value)
        if count == 0:
            return
        looks = [s for s in statements(*loop.body) if isinstance(s, If) and s.then and isinstance(s.then[0], Call)]
        self.shared = frozenset(s.name for look in looks for s in look.then if isinstance(s, Assign)) | _alike(loop)
        sums = self._accumulated(loop.body)
        weight = sum(cost(s) for s in loop.body)
        tests = _nan_tests(loop.body, sums)
        rounds = self._rounds(loop, count, weight, sums, tests)
        self.tests = tests if rounds > 1 else {}
        totals = [self._accumulators(sums, u, loop.width) for u in range(rounds)]
        with self.scope():
            self._rounds_and_rest(loop, extent, count, weight, totals)
            partial = [{key: self.env[key] for key in renamed.values()} for renamed in totals]
        for name, stmt in sums.items():
            found = {renamed[name]: p[renamed[name]] for p, renamed in zip(partial, totals, strict=True)}
            self._combine(name, stmt, list(found.values()), loop.width)
        self.tests = {}

    def block(self, stmts: Sequence[Stmt]) -> None:
        """Write statements in order, stores to places next to each other as one."""
        if self.width == 1:
            super().block(stmts)
            return
        for run in runs(stmts):
            if len(run) == 1 or not self._store_run(cast(Sequence[Store], run)):
                super().block(run)

    def _store_run(self, run: Sequence[Store]) -> bool:
        """Stores to places next to each other, if these make up all places that the lanes go over."""
        first = run[0]
        if first.buffer in self.held or self.places[first.buffer].dtype in (*COMPLEX_TYPES, "bool"):
            return False
        index = self.index(first.index)
        if index.general or index.step != len(run) or self.last is not None:
            return False
        self.store_next(first.buffer, index, [cast(Value, self.wide(self.stored_value(s.value))) for s in run])
        return True

    def whole(self, loop: For) -> None:
        """The loop in one round, its last lanes without work."""
        assert isinstance(loop.extent, Const)
        count, width = int(loop.extent.value), loop.width
        sums = self._accumulated(loop.body)
        totals = [self._accumulators(sums, 0, width)]
        mask = None if count == width else self._first_lanes(count, width)
        with self.inlined(loop.body):
            self.numbers[loop.index] = np.array(elements_of(width, count))
            self._round(loop, LaneIndex(i64(count), 0, count, count), i64(0), totals, mask, count)
            partial = {name: self.env[key] for name, key in totals[0].items()}
        for name, stmt in sums.items():
            self._combine(name, stmt, [partial[name]], width)

    def _while(self, stmt: While) -> None:
        """In lanes: for as long as any lane goes on; what the others hold stays as it is."""
        if self.width == 1:
            super()._while(stmt)
            return
        b, mask, apart = self.b, self.mask, self.apart
        lanes = Type("i1", self.width)
        stmts = (*stmt.before, *stmt.body)
        keys = self.carried(stmts)
        self.forget_stores(stmts)
        for key in keys:
            if key not in self.shared:
                self.env[key] = self.wide(self.env[key])
        before, head, inside, done = b.block, b.label("while"), b.label("do"), b.label("done")
        b.branch(head)
        with self.scope(), self.repeating():
            b.place(head)
            active = b.phi(lanes, (b.const(lanes, 1) if mask is None else mask, before))
            phis = self._phis(keys, before)
            self.mask, self.apart = active, True
            self.block(stmt.before)
            condition = self.wide(self.evaluate(stmt.cond))
            assert isinstance(condition, Value)
            results = {k: self.env[k] for k in keys}
            self.mask = going = b.op("and", active, condition)
            b.branch_if(self._any(going), inside, done)
            b.place(inside)
            self.block(stmt.body)
            active.add(going, b.block)
            for k, values in phis.items():
                for phi, value in zip(values, parts(self.env[k]), strict=True):
                    phi.add(value, b.block)
            b.branch(head)
        b.place(done)
        self.mask, self.apart = mask, apart
        self.env.update(results)
        self.forget_stores(stmts)

    def _any(self, lanes: Value) -> Value:
        """Whether a condition holds in any lane."""
        bits = lanes.type.width
        if bits < 8:  # there is no integer of so few bits
            lanes, bits = self.b.cast("zext", lanes, Type("i8", bits)), 8 * bits
        return self.b.cmp("ne", self.b.cast("bitcast", lanes, Type(f"i{bits}")), 0)

    def _accumulated(self, stmts: Sequence[Stmt]) -> dict[str, Accumulate]:
        """The `Accumulate` statements whose variables stand outside of the loop, by name."""
        found: dict[str, Accumulate] = {}
        for node in statements(*stmts):
            if isinstance(node, Accumulate) and node.name in self.env:
                if node.name in found and found[node.name].op != node.op:
                    raise ValueError(f"{node.name} is accumulated by two operations")
                found[node.name] = node
        return found

    def accumulate(self, stmt: Accumulate) -> None:
        """What a variable holds, and one value more; of NaNs in two vectors, one after the other, at once."""
        if stmt.name not in self.tests or self.mask is not None or self.width == 1:
            return super().accumulate(stmt)
        value = cast(Value, self.wide(self.evaluate(self.tests[stmt.name])))
        before = self.waiting.pop(stmt.name, None)
        if before is None:
            self.waiting[stmt.name] = value
        else:
            key = self.renamed[stmt.name]
            self.env[key] = self.combine("or", "bool", self.env[key], self.b.cmp("uno", before, value))

    def _rounds(self, loop: For, count: int | None, weight: float, sums: dict[str, Accumulate],
                tests: dict[str, Expr]) -> int:
        flags = all(stmt.op == "or" for stmt in sums.values())
        if not sums or weight > (_HEAVY if tests and flags else _MEDIUM):
            return 1
        most = 4 if weight <= _LIGHT and not (tests and flags) else 2
        if count is None:
            return most
        blocks = count // loop.width
        while most > 1 and (blocks < most or (blocks % most and blocks < 4 * most)):
            most //= 2
        return most

    def _accumulators(self, sums: dict[str, Accumulate], number: int, width: int) -> dict[str, str]:
        """Keys of one set of accumulators, which start at the neutral element; for tests, those of the set before."""
        renamed = {}
        for name, stmt in sums.items():
            key = f"{name}@{number - number % 2 if name in self.tests else number}"
            start = self.constant(neutral(stmt.op, stmt.value.dtype), stmt.value.dtype)
            self.env[key] = rebuild(start, tuple(self.b.splat(p, width) for p in parts(start)))
            renamed[name] = key
        return renamed

    def _rounds_and_rest(self, loop: For, extent: LaneIndex, count: int | None, weight: float,
                         totals: list[dict[str, str]]) -> None:
        step = loop.width * len(totals)
        keys = list(dict.fromkeys(key for renamed in totals for key in renamed.values()))
        once = totals[:1]
        if count is not None and count % step == 0:
            self.counted(i64(0), extent.value, step, keys, loop.body,
                         lambda i: self._round(loop, extent, i, totals))
            return
        if self.masks and (weight > _HEAVY or (count is not None and count < step)):
            self._masked(loop, extent, count, i64(0), once)
            return
        if weight > _HEAVY and not once[0]:  # what adds to nothing
            across = _across(loop, self.held.keys())
            if weight > _HEAVIER and "+avx" in self.b.module.features and all(
                    step == 0 or (step == 1 and dtype in WORDS - COMPLEX_TYPES) for step, dtype in across):
                self._masked(loop, extent, count, i64(0), once)
                return
            if all(step not in (1, -1) for step, _ in across):  # would be gathered anyhow
                self.counted(i64(0), extent.value, step, keys, loop.body, lambda i: self._repeating(loop, extent, i))
                return
        main = i64(count - count % step) if count is not None else self.b.op(
            "sub", extent.value, self.b.op("urem", extent.value, i64(step)))
        self.counted(i64(0), main, step, keys, loop.body,
                     lambda i: self._round(loop, extent, i, totals))
        if self.masks:
            self._masked(loop, extent, count, main, once)
        else:
            self._one_by_one(loop, extent, main, totals[0])

    def _round(self, loop: For, extent: LaneIndex, i: Value, totals: list[dict[str, str]], mask: Value | None = None,
               active: Value | int = 0) -> None:
        """The body once for each set of accumulators, at iterations i, i + width, ...; with a mask, whose first lanes
        are active."""
        outer_renamed, outer_mask, self.active = self.renamed, self.mask, (mask, active)
        self.width = loop.width
        for number, renamed in enumerate(totals):
            self.renamed = outer_renamed | renamed
            self.mask = mask
            first = constant_of(i)
            moving, offset = (i, 0) if first is None else (None, first)
            self.env[loop.index] = LaneIndex(ZERO, 1, 0, max(extent.hi - 1, 0), moving, offset + number * loop.width)
            self.block(loop.body)
        self.renamed, self.mask, self.width = outer_renamed, outer_mask, 1

    def _repeating(self, loop: For, extent: LaneIndex, i: Value) -> None:
        """A round whose lanes after the last iteration do that one once more."""
        b = self.b
        left = b.op("sub", extent.value, i)
        self.last = b.intrinsic("smin", b.op("sub", left, i64(1)), i64(loop.width - 1))
        self._round(loop, extent, i, [{}])
        self.last = None

    def _masked(self, loop: For, extent: LaneIndex, count: int | None, start: Value,
                totals: list[dict[str, str]]) -> None:
        """Rounds from `start` in which only the lanes within the extent are active."""
        b, lanes = self.b, Type("i32", loop.width)
        first = constant_of(start)
        single = count is not None and first is not None and count - first <= loop.width

        def body(i: Value) -> None:
            rest: Value | int
            if single:
                rest = count - first  # type: ignore[operator]
                mask = self._first_lanes(rest, loop.width)
            else:
                rest = b.intrinsic("smin", b.op("sub", extent.value, i), i64(loop.width))
                mask = b.cmp("slt", b.step(lanes), b.splat(b.cast("trunc", rest, Type("i32")), loop.width))
            self._round(loop, extent, i, totals, mask, rest)

        keys = [key for renamed in totals for key in renamed.values()]
        self.counted(start, extent.value, loop.width, keys, loop.body, body)

    def _first_lanes(self, count: int, width: int) -> Value:
        """The mask of a loop's last iterations."""
        if "+avx512f" in self.b.module.features:
            return self.b.first_lanes(count, width)
        return self.b.const_lanes(Type("i1", width), [i < count for i in range(width)])

    def _one_by_one(self, loop: For, extent: LaneIndex, start: Value, renamed: dict[str, str]) -> None:
        """Scalar iterations from `start`; their terms go to lane 0 of the accumulators."""
        vectors = {key: self.env[key] for key in renamed.values()}
        for key, value in vectors.items():
            first = tuple(self.b.extract(p, 0) for p in parts(value))
            self.env[key] = rebuild(value, first)

        outer = self.renamed
        self.renamed = outer | renamed

        def body(i: Value) -> None:
            self.env[loop.index] = LaneIndex(i, 0, 0, max(extent.hi - 1, 0))
            self.block(loop.body)

        self.counted(start, extent.value, 1, list(renamed.values()), loop.body, body)
        self.renamed = outer
        for key, value in vectors.items():
            whole = tuple(self.b.insert(v, s, 0) for v, s in zip(parts(value), parts(self.env[key]), strict=True))
            self.env[key] = rebuild(value, whole)

    def _combine(self, name: str, stmt: Accumulate, values: list[Val], width: int) -> None:
        """Adds the accumulators to each other in pairs, then their halves, then the variable."""
        op, dtype = stmt.op, stmt.value.dtype
        self.width = width
        while len(values) > 1:
            values = [self.combine(op, dtype, a, c) for a, c in zip(values[::2], values[1::2], strict=True)]
        total = values[0]
        while self.width > 1:
            half = self.width // 2
            low, high = (rebuild(total, tuple(self.b.shuffle(p, self.b.undef(p.type), range(at, at + half))
                                              if half > 1 else self.b.extract(p, at) for p in parts(total)))
                         for at in (0, half))
            self.width = half
            total = self.combine(op, dtype, low, high)
        key = self.renamed.get(name, name)
        self.env[key] = self.variable(self.combine(op, dtype, self.env[key], total))


def _across(loop: For, held: Set[str]) -> list[tuple[int | None, str]]:
    """How far apart in the lanes what a loop loads and stores lies in memory (None: not known), and its types."""
    inside = list(statements(*loop.body))
    lets, own = lets_of(inside, INDEX), held | {s.buffer for s in inside if isinstance(s, Local)}
    return [(steps(n.index, lets).get(loop.index, 0), n.dtype if isinstance(n, Load) else n.value.dtype)
            for n in walk(*loop.body) if isinstance(n, (Load, Store)) and n.buffer not in own]


def _nan_tests(body: Sequence[Stmt], sums: dict[str, Accumulate]) -> dict[str, Expr]:
    """Of those of a loop's accumulators that say whether a value was a NaN: the value."""
    compared = {s.name: s.value.args for s in body
                if isinstance(s, Let) and isinstance(s.value, Op) and s.value.name == "ne"}
    values = {name: a for name, (a, c) in compared.items() if a == c and a.dtype in ("f32", "f64")}
    times = Counter(s.name for s in statements(*body) if isinstance(s, Accumulate))
    return {s.name: values[s.value.name] for s in body
            if isinstance(s, Accumulate) and s.op == "or" and s.name in sums and times[s.name] == 1
            and isinstance(s.value, NamedValue) and s.value.name in values}


def _alike(loop: For) -> set[str]:
    """Variables of a loop's iterations that have the same value in all of its lanes, always: none where lanes go ways
    of their own."""
    inside = list(statements(*loop.body))
    if any(isinstance(s, (While, If)) for s in inside):
        return set()
    return {s.name for s in inside if isinstance(s, Mutable)} - varying_names(loop)
