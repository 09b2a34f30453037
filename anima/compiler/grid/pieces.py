"""Operations of which each thread of a grid does a short piece, in order; `rewrites.py` makes long ones of them.

    running[op=add] x: f32[a,16,b] start: f32[a,b]     y[i,k,j] = start[i,j] + x[i,0,j] + ... + x[i,k,j]
    runs[op=add] x: f32[a,16,b] goes_on: bool[a,16]    the sums of runs, begun anew where one does not go on
    count_digits keys: u32[r,n] shift                  how many keys of each tile of a row have each digit
    move_by_digit keys places until shift              keys and their places in the order of the digit
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from anima.compiler.ir.index_math import Index
from anima.compiler.ir.loops import INDEX, Const, Expr, Load, Op, Store, affine
from anima.compiler.lowering.array import Scope, scalar_type
from anima.compiler.lowering.calls import ProgramBuilder, call
from anima.compiler.lowering.matrices import CompilerPrimitive
from anima.compiler.lowering.reduce import combine
from anima.core.avals import ShapedArray
from anima.core.jaxpr import Eqn

PIECE = 8        # elements that a thread goes through in order: a part of what is read at once, which caches keep
RUN = 16         # the same, of runs
DIGIT = 4        # bits of keys by which they are moved at once
WORKERS = 256    # that move the keys of a tile,
KEYS = 8         # so many each
TILE = WORKERS * KEYS

_GROUP = 16      # workers whose counts are added up in order
_GROUPS = WORKERS // _GROUP
_UFUNCS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
_I32 = np.dtype(np.int32)


def pieces(n: int, length: int) -> int:
    """How many pieces there are of n elements."""
    return -(-n // length)


# ---------------------------------------------------------------- sums


class Running(CompilerPrimitive):
    """Results along the middle one of three axes, each of which takes in one element more than the one before; in the
    type of the start, and rounded to that of the elements."""

    def infer(self, x: ShapedArray, start: ShapedArray, *, op: str, reverse: bool) -> ShapedArray:
        return x

    def eval(self, x: np.ndarray, start: np.ndarray, *, op: str, reverse: bool) -> np.ndarray:
        turned = x[:, ::-1] if reverse else x
        found = _UFUNCS[op].accumulate(np.concatenate([start[:, None], turned], 1, dtype=start.dtype), axis=1)[:, 1:]
        return (found[:, ::-1] if reverse else found).astype(x.dtype)


class Runs(CompilerPrimitive):
    """As `running`, of runs: where one does not go on, the result is the element."""

    def infer(self, x: ShapedArray, goes_on: ShapedArray, *, op: str) -> ShapedArray:
        return x

    def eval(self, x: np.ndarray, goes_on: np.ndarray, *, op: str) -> np.ndarray:
        out = x.copy()
        for k in range(1, x.shape[1]):
            out[:, k] = np.where(goes_on[:, k, None], _UFUNCS[op](out[:, k - 1], x[:, k]), x[:, k])
        return out


running_p, runs_p = Running("running"), Runs("runs")


@call("running", inline="all")
def _running(builder: ProgramBuilder, eqn: Eqn) -> None:
    x, start = eqn.invars
    out, length = builder.result(eqn.outvars[0]), x.aval.shape[1]
    dtype, wide = scalar_type(x.aval), scalar_type(start.aval)
    op = combine(eqn.params["op"], wide)
    scope = builder.scope()
    ix = scope.ix
    with scope.loop(x.aval.shape[0], "each") as i, scope.loop(x.aval.shape[2], "each") as j:
        total = scope.var(scope.at(start, (i, j)))
        with scope.serial(length) as step:
            k = ix.opaque(step, 0, length - 1, scope.depth)
            k = ix.offset(ix.scale(k, -1), length - 1) if eqn.params["reverse"] else k
            value = scope.op(op, (scope.read(total), scope.cast(scope.at(x, (i, k, j)), wide)), wide)
            scope.assign(total, value)
            scope.store(out, ix.flatten((i, k, j), x.aval.shape), scope.cast(value, dtype))
    builder.kernel("running", scope, eqn.source)


@call("runs", inline="all")
def _runs(builder: ProgramBuilder, eqn: Eqn) -> None:
    x, goes_on = eqn.invars
    out, length, dtype = builder.result(eqn.outvars[0]), x.aval.shape[1], scalar_type(x.aval)
    op = combine(eqn.params["op"], dtype)
    scope = builder.scope()
    ix = scope.ix
    with scope.loop(x.aval.shape[0], "each") as i, scope.loop(x.aval.shape[2], "each") as j:
        total = scope.var(scope.at(x, (i, ix.zero, j)))
        scope.store(out, ix.flatten((i, ix.zero, j), x.aval.shape), scope.read(total))
        with scope.serial(length - 1) as step:
            k = ix.offset(ix.opaque(step, 0, max(length - 2, 0), scope.depth), 1)
            element = scope.at(x, (i, k, j))
            more = scope.op(op, (scope.read(total), element), dtype)
            value = scope.op("select_n", (scope.at(goes_on, (i, k)), element, more), dtype)
            scope.assign(total, value)
            scope.store(out, ix.flatten((i, k, j), x.aval.shape), value)
    builder.kernel("runs", scope, eqn.source)


# ---------------------------------------------------------------- digits


class CountDigits(CompilerPrimitive):
    """How many keys of each tile of a row have each digit: all tiles of the first digit come first."""

    def infer(self, keys: ShapedArray, shift: ShapedArray) -> ShapedArray:
        rows, n = keys.shape
        return ShapedArray((rows, pieces(n, TILE) << DIGIT), _I32)

    def eval(self, keys: np.ndarray, shift: np.ndarray) -> np.ndarray:
        n = keys.shape[1]
        count = pieces(n, TILE)
        places = _digits(keys, shift) * count + np.arange(n) // TILE
        return np.stack([np.bincount(row, minlength=count << DIGIT) for row in places]).astype(np.int32)


class MoveByDigit(CompilerPrimitive):
    """Keys and what belongs to them in the order of a digit; `until` are the running sums of `count_digits`."""

    multiple_results = True

    def infer(self, keys: ShapedArray, places: ShapedArray, until: ShapedArray,
              shift: ShapedArray) -> list[ShapedArray]:
        return [keys, places]

    def eval(self, keys: np.ndarray, places: np.ndarray, until: np.ndarray, shift: np.ndarray) -> list[np.ndarray]:
        order = np.argsort(_digits(keys, shift), 1, "stable")
        return [np.take_along_axis(keys, order, 1), np.take_along_axis(places, order, 1)]


count_digits_p, move_by_digit_p = CountDigits("count_digits"), MoveByDigit("move_by_digit")


def _digits(keys: np.ndarray, shift: np.ndarray) -> np.ndarray:
    return (keys >> shift).astype(np.int64) & ((1 << DIGIT) - 1)


class _Tile:
    """A block's work on a tile of a row of keys: each of its workers counts the digits of a few keys in order, in the
    memory that the block shares."""

    def __init__(self, builder: ProgramBuilder, scope: Scope, eqn: Eqn, row: Index, tile: Index) -> None:
        self.scope, self.keys = scope, builder.memory(eqn.invars[0])
        self.dtype, n = scalar_type(eqn.invars[0].aval), eqn.invars[0].aval.shape[1]
        self.shift, self.tile, self.count = scope.at(eqn.invars[-1], ()), tile, pieces(n, TILE)
        self.base = scope.let(scope.ix.scale(row, n).expr(), scope.depth, "n")
        self.counts_at = scope.let(scope.ix.scale(row, self.count << DIGIT).expr(), scope.depth, "n")
        self.first = scope.let(scope.ix.scale(tile, TILE).expr(), scope.depth, "n")
        self.n = n
        self.counts, self.sums = scope.local("i32", WORKERS << DIGIT), scope.local("i32", _GROUPS << DIGIT)
        with scope.loop(WORKERS << DIGIT, "each") as j:
            scope.store(self.counts, j, Const(0, "i32"))
        self.each_key(lambda key, digit, worker, place: self.next(self.counter(digit, worker)))

    def each_key(self, do: Callable[[Expr, Expr, Index, Expr], object]) -> None:
        """`do(key, digit, worker, place)` for all keys, those of a worker in order."""
        scope, dtype = self.scope, self.dtype
        with scope.loop(WORKERS, "each") as worker:
            mine = affine(0, (self.first, 1), (worker.expr(), KEYS))
            left = Op("min", (Const(KEYS, INDEX), affine(self.n, (scope.let(mine, scope.depth, "n"), -1))), INDEX)
            with scope.serial(scope.let(left, scope.depth, "n")) as k:
                place = scope.let(affine(0, (self.base, 1), (mine, 1), (k, 1)), scope.depth, "n")
                key = scope.let(Load(self.keys, place, dtype), scope.depth)
                digit = scope.let(Op("shift_right_logical", (key, self.shift), dtype), scope.depth)
                digit = scope.let(Op("and", (digit, Const((1 << DIGIT) - 1, dtype)), dtype), scope.depth)
                do(key, scope.let(Op("cast", (digit,), INDEX), scope.depth, "n"), worker, place)

    def counter(self, digit: Expr, worker: Index) -> Expr:
        """The place of a worker's counter."""
        return affine(0, (digit, WORKERS), (worker.expr(), 1))

    def next(self, place: Expr) -> Expr:
        """What a counter says, which grows by 1."""
        before = self.scope.let(Load(self.counts, place, "i32"), self.scope.depth)
        self.scope.emit(Store(self.counts, place, Op("add", (before, Const(1, "i32")), "i32")))
        return before

    def add_up(self) -> None:
        """Counters say how many keys the workers before in a group have; `sums` are the groups' own."""
        with self.scope.loop(_GROUPS << DIGIT, "each") as group:
            self._running(self.counts, self.scope.ix.scale(group, _GROUP), _GROUP, Const(0, "i32"),
                          lambda total: self.scope.store(self.sums, group, total))

    def _running(self, memory: str, first: Index, size: int, start: Expr, end: Callable[[Expr], None]) -> None:
        """Numbers become the sums of those before them, and of `start`."""
        scope = self.scope
        total = scope.var(start, "a")
        with scope.serial(size) as k:
            place = scope.let(affine(0, (first.expr(), 1), (k, 1)), scope.depth, "n")
            number = scope.let(Load(memory, place, "i32"), scope.depth)
            scope.emit(Store(memory, place, total))
            scope.assign(total, Op("add", (total, number), "i32"))
        end(scope.read(total))

    def each_digit(self, start: Callable[[Index], Expr], end: Callable[[Index, Expr], None]) -> None:
        """The sums of groups become where their keys go, from `start(digit)` on; `end` is told of what comes then."""
        with self.scope.loop(1 << DIGIT, "each") as d:
            self._running(self.sums, self.scope.ix.scale(d, _GROUPS), _GROUPS, start(d), lambda total: end(d, total))

    def of_tile(self, d: Index) -> Expr:
        """The place of what is known of this tile and a digit, in the row's."""
        return affine(0, (d.expr(), self.count), (self.tile.expr(), 1))


@call("count_digits")
def _count_digits(builder: ProgramBuilder, eqn: Eqn) -> None:
    out, scope = builder.result(eqn.outvars[0]), builder.scope()
    rows, n = eqn.invars[0].aval.shape
    with scope.loop(rows, "each") as row, scope.loop(pieces(n, TILE), "each") as number:
        tile = _Tile(builder, scope, eqn, row, number)
        tile.add_up()
        tile.each_digit(lambda d: Const(0, "i32"), lambda d, total: scope.emit(
            Store(out, affine(0, (tile.counts_at, 1), (tile.of_tile(d), 1)), total)))
    builder.kernel("count_digits", scope, eqn.source)


@call("move_by_digit")
def _move_by_digit(builder: ProgramBuilder, eqn: Eqn) -> None:
    _, places, until, _ = map(builder.memory, eqn.invars)
    keys_out, places_out = map(builder.result, eqn.outvars)
    scope = builder.scope()
    rows, n = eqn.invars[0].aval.shape
    with scope.loop(rows, "each") as row, scope.loop(pieces(n, TILE), "each") as number:
        tile = _Tile(builder, scope, eqn, row, number)
        tile.add_up()

        def start(d: Index) -> Expr:
            place = scope.let(tile.of_tile(d), scope.depth, "n")
            before = affine(-1, (tile.counts_at, 1), (Op("max", (place, Const(1, INDEX)), INDEX), 1))
            count = scope.let(Load(until, before, "i32"), scope.depth)
            return scope.let(Op("select_n", (Op("eq", (place, Const(0, INDEX)), "bool"), count, Const(0, "i32")),
                                "i32"), scope.depth)

        def move(key: Expr, digit: Expr, worker: Index, place: Expr) -> None:
            group = affine(0, (digit, _GROUPS), (scope.ix.div(worker, _GROUP).expr(), 1))
            first = scope.let(Load(tile.sums, group, "i32"), scope.depth)
            to = Op("add", (first, tile.next(tile.counter(digit, worker))), "i32")
            target = scope.let(affine(0, (tile.base, 1), (Op("cast", (to,), INDEX), 1)), scope.depth, "n")
            scope.emit(Store(keys_out, target, key))
            scope.emit(Store(places_out, target, Load(places, place, "i32")))

        tile.each_digit(start, lambda d, total: None)
        tile.each_key(move)
    builder.kernel("move_by_digit", scope, eqn.source)
