"""Operations of which each thread of a grid does a short piece, in order; `rewrites.py` makes long ones of them.

    running[op=add] x: f32[a,16,b] start: f32[a,b]     y[i,k,j] = start[i,j] + x[i,0,j] + ... + x[i,k,j]
    runs[op=add] x: f32[a,16,b] goes_on: bool[a,16]    the sums of runs, begun anew where one does not go on
    count_digits[shift=4] keys: u32[r,n]               how many keys of each piece of a row have each digit
    move_by_digit[shift=4] keys places until           keys and their places in the order of the digit
"""

from __future__ import annotations

import numpy as np

from anima.compiler.ir.index_math import Index
from anima.compiler.ir.loops import INDEX, Const, Expr, Load, NamedValue, Op, Store, affine
from anima.compiler.lowering.array import Scope, scalar_type
from anima.compiler.lowering.calls import ProgramBuilder, call
from anima.compiler.lowering.matrices import CompilerPrimitive
from anima.compiler.lowering.reduce import combine
from anima.core.avals import ShapedArray
from anima.core.jaxpr import Eqn

PIECE = 16       # elements that a thread goes through in order: half of what is read at once, so that caches keep it
KEYS = 32        # of a sort
DIGIT = 4        # bits of keys by which they are moved at once

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
    """How many keys of each piece of a row have each digit: all pieces of the first digit come first."""

    def infer(self, keys: ShapedArray, *, shift: int) -> ShapedArray:
        rows, n = keys.shape
        return ShapedArray((rows, pieces(n, KEYS) << DIGIT), _I32)

    def eval(self, keys: np.ndarray, *, shift: int) -> np.ndarray:
        n = keys.shape[1]
        count = pieces(n, KEYS)
        places = _digits(keys, shift) * count + np.arange(n) // KEYS
        return np.stack([np.bincount(row, minlength=count << DIGIT) for row in places]).astype(np.int32)


class MoveByDigit(CompilerPrimitive):
    """Keys and what belongs to them in the order of a digit; `until` are the running sums of `count_digits`."""

    multiple_results = True

    def infer(self, keys: ShapedArray, places: ShapedArray, until: ShapedArray, *, shift: int) -> list[ShapedArray]:
        return [keys, places]

    def eval(self, keys: np.ndarray, places: np.ndarray, until: np.ndarray, *, shift: int) -> list[np.ndarray]:
        order = np.argsort(_digits(keys, shift), 1, "stable")
        return [np.take_along_axis(keys, order, 1), np.take_along_axis(places, order, 1)]


count_digits_p, move_by_digit_p = CountDigits("count_digits"), MoveByDigit("move_by_digit")


def _digits(keys: np.ndarray, shift: int) -> np.ndarray:
    return (keys >> np.asarray(shift, keys.dtype)).astype(np.int64) & ((1 << DIGIT) - 1)


class _Piece:
    """A thread's work on a piece of a row of keys: `base` is where the row begins, `first` the piece's first key in
    it, `size` how many keys it has."""

    def __init__(self, scope: Scope, eqn: Eqn, row: Index, piece: Index) -> None:
        self.scope, self.eqn = scope, eqn
        _, n = eqn.invars[0].aval.shape
        ix = scope.ix
        self.count, self.row, self.number = pieces(n, KEYS), row, piece
        self.base, self.first = ix.scale(row, n).expr(), ix.scale(piece, KEYS).expr()
        left: Expr = Const(KEYS, INDEX)
        if n % KEYS:
            left = Op("min", (left, affine(n, (self.first, -1))), INDEX)
        self.size = scope.let(left, scope.depth, "n")

    def at(self, k: NamedValue) -> Expr:
        """The place of a key of the piece."""
        return affine(0, (self.base, 1), (self.first, 1), (k, 1))

    def key(self, keys: str, k: NamedValue) -> tuple[Expr, Expr]:
        """A key, and its digit."""
        scope, dtype = self.scope, scalar_type(self.eqn.invars[0].aval)
        key = scope.let(Load(keys, self.at(k), dtype), scope.depth)
        digit = Op("shift_right_logical", (key, Const(self.eqn.params["shift"], dtype)), dtype)
        digit = Op("and", (digit, Const((1 << DIGIT) - 1, dtype)), dtype)
        return key, scope.let(Op("cast", (scope.let(digit, scope.depth),), INDEX), scope.depth)

    def of_digit(self, d: NamedValue) -> Expr:
        """The place of what is known of this piece and a digit, in the row's."""
        return affine(0, (d, self.count), (self.number.expr(), 1))

    def row_of_counts(self) -> Expr:
        """Where the row's counts begin."""
        return self.scope.ix.scale(self.row, self.count << DIGIT).expr()


@call("count_digits")
def _count_digits(builder: ProgramBuilder, eqn: Eqn) -> None:
    keys, out, scope = builder.memory(eqn.invars[0]), builder.result(eqn.outvars[0]), builder.scope()
    rows, n = eqn.invars[0].aval.shape
    with scope.loop(rows, "each") as row, scope.loop(pieces(n, KEYS), "each") as number:
        piece, counts = _Piece(scope, eqn, row, number), scope.local("i32", 1 << DIGIT)
        with scope.serial(1 << DIGIT) as d:
            scope.emit(Store(counts, d, Const(0, "i32")))
        with scope.serial(piece.size) as k:
            _, digit = piece.key(keys, k)
            _next(scope, counts, digit)
        with scope.serial(1 << DIGIT) as d:
            count = scope.let(Load(counts, d, "i32"), scope.depth)
            scope.emit(Store(out, affine(0, (piece.row_of_counts(), 1), (piece.of_digit(d), 1)), count))
    builder.kernel("count_digits", scope, eqn.source)


@call("move_by_digit")
def _move_by_digit(builder: ProgramBuilder, eqn: Eqn) -> None:
    keys, places, until = map(builder.memory, eqn.invars)
    keys_out, places_out = map(builder.result, eqn.outvars)
    scope = builder.scope()
    rows, n = eqn.invars[0].aval.shape
    with scope.loop(rows, "each") as row, scope.loop(pieces(n, KEYS), "each") as number:
        piece, next_ = _Piece(scope, eqn, row, number), scope.local("i32", 1 << DIGIT)
        with scope.serial(1 << DIGIT) as d:
            place = scope.let(piece.of_digit(d), scope.depth, "n")
            before = affine(-1, (piece.row_of_counts(), 1), (Op("max", (place, Const(1, INDEX)), INDEX), 1))
            count = scope.let(Load(until, before, "i32"), scope.depth)
            first = Op("eq", (place, Const(0, INDEX)), "bool")
            scope.emit(Store(next_, d, Op("select_n", (first, count, Const(0, "i32")), "i32")))
        with scope.serial(piece.size) as k:
            key, digit = piece.key(keys, k)
            to = affine(0, (piece.base, 1), (Op("cast", (_next(scope, next_, digit),), INDEX), 1))
            target = scope.let(to, scope.depth, "n")
            scope.emit(Store(keys_out, target, key))
            scope.emit(Store(places_out, target, Load(places, piece.at(k), "i32")))
    builder.kernel("move_by_digit", scope, eqn.source)


def _next(scope: Scope, counts: str, digit: Expr) -> Expr:
    """A digit's number, which grows by 1."""
    before = scope.let(Load(counts, digit, "i32"), scope.depth)
    scope.emit(Store(counts, digit, Op("add", (before, Const(1, "i32")), "i32")))
    return before
