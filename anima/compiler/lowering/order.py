"""Sorting rows by one key of 32 or 64 bits where the machine has a fast way to sort integers: the routine `order`.

    keys -> integers in the same order;  sort the integers;  integers -> numbers, which are the keys

Other operands move with 32-bit keys: an integer of 64 bits has a key and, below it, the place where it came from. So
equal keys stay in order.
"""

from __future__ import annotations

import math

from anima.compiler.ir.index_math import Index
from anima.compiler.ir.loops import INDEX, Call, Const, Expr, Op, affine
from anima.compiler.lowering.array import Scope, scalar_type
from anima.compiler.lowering.calls import ProgramBuilder
from anima.compiler.lowering.radix import FLOATS, bits_of, number_of_bits, one_key, ordered_bits, put_zeros
from anima.compiler.machine.target import Target
from anima.compiler.products.order import PIECES
from anima.core.jaxpr import Eqn

SHORTEST = 256       # elements of rows that are sorted so, ...
FEW = 8              # where rows are fewer than that: lanes are for
IN_LANES = 1000      # shorter rows of which there are more
PIECE = 1 << 15      # elements of the shortest row that is sorted in pieces, alone; with others, more
_ENOUGH = 4          # times as many, at most


def order_fits(eqn: Eqn, target: Target) -> bool:
    """Whether a sort has one key that the routine sorts faster than any other way does."""
    if not target.compresses or not one_key(eqn):
        return False
    out, bits = eqn.outvars[0].aval, bits_of(scalar_type(eqn.outvars[0].aval))
    length = out.shape[eqn.params["dimension"]]
    shortest = SHORTEST if out.size < FEW * length else IN_LANES
    return (bits == 32 or (bits == 64 and len(eqn.invars) == 1)) and shortest <= length < 1 << 31


class _WordSort:
    """The sort of one equation."""

    def __init__(self, builder: ProgramBuilder, eqn: Eqn) -> None:
        self.builder, self.eqn = builder, eqn
        self.shape, axis = eqn.outvars[0].aval.shape, eqn.params["dimension"]
        self.n, self.inner = self.shape[axis], math.prod(self.shape[axis + 1:])
        self.rows = math.prod(self.shape) // self.n
        self.dtype, self.alone = scalar_type(eqn.outvars[0].aval), len(eqn.invars) == 1
        self.key = f"u{bits_of(self.dtype)}"
        self.word = self.key if self.alone else "u64"
        self.words = [builder.temp(self.word, self.rows * self.n) for _ in range(3)]

    def _in_pieces(self) -> bool:
        """Whether rows are long, and fewer than would keep all threads busy."""
        return self.n >= PIECE * min(self.rows, _ENOUGH) and self.rows < PIECES

    def element(self, scope: Scope, row: Index, k: Index) -> Expr:
        """The key of a row's element, as it came."""
        ix = scope.ix
        return scope.at(self.eqn.invars[0], ix.unflatten(ix.in_row(row, k, self.n, self.inner), self.shape))

    def sort(self) -> None:
        """Sorts the words, which are made of keys."""
        scope = self.builder.scope()
        ix = scope.ix
        with scope.loop(self.rows, "each") as row, scope.loop(self.n, "each") as k:
            word = ordered_bits(scope, self.element(scope, row, k), signed_zeros=self.alone)
            if not self.alone:
                high = scope.op("shift_left", (scope.cast(word, "u64"), Const(32, "u64")), "u64")
                word = scope.op("or", (high, scope.index_value(k, "u64")), "u64")
            scope.store(self.words[0], ix.add(ix.scale(row, self.n), k), word)
        self.builder.kernel("sort", scope, self.eqn.source)
        operands = [x for word in self.words for x in (word, 0)]
        self.builder.emit(Call("order", (self.word, self.rows, self.n, int(self._in_pieces()), *operands),
                               self.eqn.source))

    def numbers(self) -> None:
        """The words become numbers again."""
        scope = self.builder.scope()
        ix, result = scope.ix, self.builder.result(self.eqn.outvars[0])
        with scope.loop(self.rows, "each") as row, scope.loop(self.n, "each") as k:
            word = scope.load(self.words[2], ix.add(ix.scale(row, self.n), k), self.word, scope.depth)
            scope.store(result, ix.in_row(row, k, self.n, self.inner), number_of_bits(scope, word, self.dtype))
        if self.dtype in FLOATS:
            with scope.loop(self.rows, "each") as row:
                zero = Const((1 << (int(self.word[1:]) - 1)) - 1, self.word)  # -0.0
                first, same = self.find(scope, row, zero)
                with scope.when(same):
                    put_zeros(scope, lambda k: self.element(scope, row, k), self.n, first,
                              lambda k: ix.in_row(row, k, self.n, self.inner), result)
        self.builder.kernel("sort", scope, self.eqn.source)

    def find(self, scope: Scope, row: Index, word: Expr) -> tuple[Expr, Expr]:
        """How many of a row's sorted words are below a word, and whether the next one is equal to it."""
        def here(value: Expr) -> Expr:
            return scope.let(value, scope.depth)

        ix = scope.ix
        below = scope.var(Const(0, INDEX), "a")
        step = scope.var(Const(1 << (self.n.bit_length() - 1), INDEX), "b")

        def at(place: Expr) -> Expr:
            inside = ix.opaque(here(Op("min", (place, Const(self.n - 1, INDEX)), INDEX)), 0, self.n - 1, scope.depth)
            return here(scope.load(self.words[2], ix.add(ix.scale(row, self.n), inside), self.word, scope.depth))

        with scope.serial(Const(self.n.bit_length(), INDEX)):
            end = here(affine(0, (below, 1), (step, 1)))
            less = Op("lt", (at(affine(-1, (end, 1))), word), "bool")
            fits = Op("le", (end, Const(self.n, INDEX)), "bool")
            taken = here(Op("and", (less, fits), "bool"))
            scope.assign(below, Op("select_n", (taken, scope.read(below), end), INDEX))
            scope.assign(step, Op("div", (step, Const(2, INDEX)), INDEX))
        found = scope.read(below)
        return scope.cast(found, "i32"), here(Op("eq", (at(found), word), "bool"))

    def take(self) -> None:
        """All operands are taken from where the keys came from."""
        scope = self.builder.scope()
        ix = scope.ix
        with scope.loop(self.rows, "each") as row, scope.loop(self.n, "each") as k:
            word = scope.load(self.words[2], ix.add(ix.scale(row, self.n), k), "u64", scope.depth)
            came = scope.as_index(scope.cast(word, "u32"), 0, self.n - 1)
            source = ix.unflatten(ix.in_row(row, came, self.n, self.inner), self.shape)
            for operand, var in zip(self.eqn.invars, self.eqn.outvars, strict=True):
                if self.builder.is_read(var):
                    value = scope.at(operand, source)
                    scope.store(self.builder.result(var), ix.in_row(row, k, self.n, self.inner), value)
        self.builder.kernel("sort", scope, self.eqn.source)


def sort_by_order(builder: ProgramBuilder, eqn: Eqn) -> None:
    """Sorts the operands by the first one."""
    work = _WordSort(builder, eqn)
    work.sort()
    (work.numbers if work.alone else work.take)()
