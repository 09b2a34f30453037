"""Sorting few, very long rows by the digits of one key: pieces of a row at once, by all threads.

    for each digit:  for each piece: count;   counts -> where a piece's keys with a digit go;   for each piece: move

Where an element goes does not depend on what ran when, nor do the pieces on how many threads there are. Method: Zagha
and Blelloch, "Radix sort for vector multiprocessors" (1991).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from anima.compiler.ir.index_math import Index
from anima.compiler.ir.loops import INDEX, Const, Expr, Load, Op, Store, affine
from anima.compiler.lowering.array import Scope, scalar_type
from anima.compiler.lowering.calls import ProgramBuilder
from anima.compiler.lowering.radix import FLOATS, bits_of, digit_of, number_of_bits, ordered_bits, zeros_in_order
from anima.core.jaxpr import Eqn

PIECE = 1 << 16   # elements of a piece, at least
PIECES = 16       # of a row, at most
_ONE = Const(1, "i32")


def in_pieces(eqn: Eqn) -> bool:
    """Whether a sort that `radix_sort` could do has long rows, and fewer than would keep all threads busy."""
    shape, n = eqn.outvars[0].aval.shape, eqn.outvars[0].aval.shape[eqn.params["dimension"]]
    return n >= 2 * PIECE and math.prod(shape) < PIECES * n


class _Pieces:
    """The sort of one equation: its buffers, and loops over all pieces of all rows."""

    def __init__(self, builder: ProgramBuilder, eqn: Eqn) -> None:
        self.builder, self.eqn = builder, eqn
        self.shape, axis = eqn.outvars[0].aval.shape, eqn.params["dimension"]
        self.n, self.inner = self.shape[axis], math.prod(self.shape[axis + 1:])
        self.rows = math.prod(self.shape) // self.n
        self.pieces = min(PIECES, self.n // PIECE)
        self.size = -(-self.n // self.pieces)
        self.bits = bits_of(scalar_type(eqn.outvars[0].aval))
        self.digit = 8 if self.bits <= 16 else 11
        self.key = f"u{self.bits}"
        self.keys = [builder.temp(self.key, self.rows * self.n) for _ in range(2)]
        self.places = [] if len(eqn.invars) == 1 else [builder.temp("i32", self.rows * self.n) for _ in range(2)]
        self.counts = builder.temp("i32", self.rows * self.pieces << self.digit)

    @contextmanager
    def each_piece(self, scope: Scope) -> Iterator[tuple[Index, Index, Index, Expr]]:
        """(row, where the piece's counts begin, its first element, how many it has)."""
        ix = scope.ix
        with scope.loop(self.rows * self.pieces, "each") as part:
            row, piece = ix.divmod(part, self.pieces)
            first = ix.scale(piece, self.size)
            left = scope.let(ix.offset(ix.scale(first, -1), self.n).expr(), scope.depth, "n")
            yield row, ix.scale(part, 1 << self.digit), first, Op("min", (left, Const(self.size, INDEX)), INDEX)

    def element(self, scope: Scope, row: Index, k: Index) -> Expr:
        """The key of a row's element, as it came."""
        ix = scope.ix
        return scope.at(self.eqn.invars[0], ix.unflatten(ix.in_row(row, k, self.n, self.inner), self.shape))

    def count(self, number: int, shift: int) -> None:
        """Counts the digits of each piece; before the first one, numbers become keys."""
        scope = self.builder.scope()
        ix = scope.ix
        with self.each_piece(scope) as (row, places, first, length):
            counts = scope.local("i32", 1 << self.digit)
            with scope.loop(1 << self.digit, "each") as d:
                scope.emit(Store(counts, d.expr(), Const(0, "i32")))
            with scope.serial(length) as k:
                at = ix.opaque(scope.let(affine(0, (first.expr(), 1), (k, 1)), scope.depth), 0, self.n - 1, scope.depth)
                index = ix.add(ix.scale(row, self.n), at)
                if number:
                    key: Expr = scope.let(Load(self.keys[number % 2], index.expr(), self.key), scope.depth)
                else:
                    key = ordered_bits(scope, self.element(scope, row, at), signed_zeros=not self.places)
                    scope.store(self.keys[0], index, key)
                which = digit_of(scope, key, shift, self.digit)
                before = scope.let(Load(counts, which, "i32"), scope.depth)
                scope.emit(Store(counts, which, Op("add", (before, _ONE), "i32")))
            with scope.loop(1 << self.digit, "each") as d:
                scope.store(self.counts, ix.add(places, d), scope.let(Load(counts, d.expr(), "i32"), scope.depth))
        self.builder.kernel("sort", scope, self.eqn.source)

    def add_up(self) -> None:
        """Counts become places: of all smaller digits, and of the same one in the pieces before."""
        scope = self.builder.scope()
        ix = scope.ix
        with scope.loop(self.rows, "each") as row:
            total = scope.var(Const(0, "i32"), "a")
            with scope.loop(1 << self.digit, "serial") as d, scope.loop(self.pieces, "serial") as piece:
                place = ix.add(ix.scale(ix.add(ix.scale(row, self.pieces), piece), 1 << self.digit), d)
                count = scope.let(Load(self.counts, place.expr(), "i32"), scope.depth)
                scope.store(self.counts, place, scope.read(total))
                scope.assign(total, Op("add", (total, count), "i32"))
        self.builder.kernel("sort", scope, self.eqn.source)

    def move(self, number: int, shift: int) -> None:
        """Moves each piece's keys, and the places where they came from, in the order of a digit."""
        scope = self.builder.scope()
        ix = scope.ix
        here, there = number % 2, 1 - number % 2
        with self.each_piece(scope) as (row, places, first, length):
            counts = scope.local("i32", 1 << self.digit)
            with scope.loop(1 << self.digit, "each") as d:
                start = scope.let(Load(self.counts, ix.add(places, d).expr(), "i32"), scope.depth)
                scope.emit(Store(counts, d.expr(), start))
            base = ix.scale(row, self.n).expr()
            with scope.serial(length) as k:
                at = scope.let(affine(0, (first.expr(), 1), (k, 1)), scope.depth)
                index = affine(0, (base, 1), (at, 1))
                key = scope.let(Load(self.keys[here], index, self.key), scope.depth)
                which = digit_of(scope, key, shift, self.digit)
                to = scope.let(Load(counts, which, "i32"), scope.depth)
                scope.emit(Store(counts, which, Op("add", (to, _ONE), "i32")))
                target = scope.let(affine(0, (base, 1), (Op("cast", (to,), INDEX), 1)), scope.depth)
                scope.emit(Store(self.keys[there], target, key))
                if self.places:
                    came = Load(self.places[here], index, "i32") if number else Op("cast", (at,), "i32")
                    scope.emit(Store(self.places[there], target, scope.let(came, scope.depth)))
        self.builder.kernel("sort", scope, self.eqn.source)

    def finish(self, number: int) -> None:
        """Keys become numbers again, or all operands are taken from where the keys came from."""
        scope = self.builder.scope()
        ix, dtype = scope.ix, scalar_type(self.eqn.outvars[0].aval)
        with scope.loop(self.rows, "each") as row, scope.loop(self.n, "each") as k:
            sorted_at, target = ix.add(ix.scale(row, self.n), k), ix.in_row(row, k, self.n, self.inner)
            if not self.places:
                key = scope.load(self.keys[number % 2], sorted_at, self.key, scope.depth)
                scope.store(self.builder.result(self.eqn.outvars[0]), target, number_of_bits(scope, key, dtype))
            else:
                came = scope.as_index(scope.load(self.places[number % 2], sorted_at, "i32", scope.depth), 0, self.n - 1)
                source = ix.unflatten(ix.in_row(row, came, self.n, self.inner), self.shape)
                for operand, var in zip(self.eqn.invars, self.eqn.outvars, strict=True):
                    scope.store(self.builder.result(var), target, scope.at(operand, source))
        if not self.places and dtype in FLOATS:
            with scope.loop(self.rows, "each") as row:
                zeros_in_order(scope, lambda k: self.element(scope, row, k), self.n, dtype,
                               lambda k: ix.in_row(row, k, self.n, self.inner),
                               self.builder.result(self.eqn.outvars[0]))
        self.builder.kernel("sort", scope, self.eqn.source)


def sort_in_pieces(builder: ProgramBuilder, eqn: Eqn) -> None:
    """Sorts the operands by the first one."""
    work = _Pieces(builder, eqn)
    shifts = range(0, work.bits, work.digit)
    for number, shift in enumerate(shifts):
        work.count(number, shift)
        work.add_up()
        work.move(number, shift)
    work.finish(len(shifts))
