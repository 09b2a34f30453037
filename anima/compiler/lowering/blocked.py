"""Factorizations of large matrices, by blocks: matrix products do most of the work.

    cholesky A of 512x512   ->   factor A11 of 256x256;  A21 = A21 / A11^H;  A22 -= A21 A21^H;  factor A22

Each is cut in halves down to blocks that LAPACK factors; all else is products and triangular systems with many right
sides, of which we have our own routines (`products`): theirs are not fast where matrices are of a few hundred rows, as
most are. The rows of a matrix here are its columns as LAPACK sees it.

The scheme is that of Gustavson, "Recursion leads to automatic variable blocking for dense linear-algebra algorithms"
(1997), and of Toledo, "Locality of reference in LU decomposition with partial pivoting" (1997).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np

from anima.compiler.ir.lapack import LETTERS
from anima.compiler.ir.loops import Call, Stmt
from anima.compiler.lowering.array import scalar_type
from anima.compiler.lowering.calls import ProgramBuilder, call
from anima.compiler.lowering.matrices import CompilerPrimitive
from anima.compiler.products.substitution import MOST_ROWS
from anima.core.avals import ShapedArray
from anima.core.jaxpr import Eqn
from anima.ops import elementwise as el
from anima.ops.broadcast import broadcast_to
from anima.util import record, replace

LEAST = 160   # rows, and columns, from which on a matrix is factored by blocks
_BLOCK = 64   # rows, or columns, of a block that LAPACK factors; halves have a multiple of it
_STRIP = 128  # columns of a triangle that is updated at once
_I32 = np.dtype(np.int32)


@record
class Part:
    """A matrix in a buffer, of rows `ld` apart, and as many more, `step` apart, as there are in the batch."""

    buffer: str
    ld: int
    step: int = 0
    offset: int = 0

    def at(self, row: int, column: int) -> Part:
        """The part from an element on."""
        return replace(self, offset=self.offset + row * self.ld + column)

    @property
    def words(self) -> tuple[str, int, int]:
        """As a call has them."""
        return self.buffer, self.offset, self.ld


@record
class Triangle:
    """How a triangular system reads its matrix, as `routines` has it."""

    side: str
    lower: bool
    trans: str
    unit: bool

    @property
    def forward(self) -> bool:
        """Whether the first unknowns are found first."""
        return (self.lower != (self.trans == "T")) == (self.side == "L")


class Blocks:
    """Writes the calls for matrices of one type."""

    def __init__(self, emit: Callable[[Stmt], None], dtype: str) -> None:
        self.emit, self.dtype = emit, dtype

    def subtract(self, c: Part, a: Part, b: Part, m: int, n: int, k: int, transa: str = "N", transb: str = "N",
                 batch: int = 1) -> None:
        """C -= op(A) op(B), which is m x n."""
        if m and n and k:
            self.emit(Call("gemm", (self.dtype, transa, transb, m, n, k, -1.0, *a.words, *b.words, 1.0, *c.words, batch,
                                    a.step, b.step, c.step)))

    def solve(self, how: Triangle, a: Part, b: Part, n: int, columns: int, batch: int = 1) -> None:
        """B becomes the X of op(A) X = B, or of X op(A) = B."""
        if not columns:
            return
        if n <= MOST_ROWS:
            self.emit(Call("substitution", (self.dtype, how.side, int(how.lower), how.trans, int(how.unit), n, columns,
                                            *a.words, *b.words, batch, a.step, b.step)))
            return
        h, left = _half(n), how.side == "L"
        known, rest = (b, b.at(h, 0) if left else b.at(0, h))
        across = a.at(h, 0) if how.lower else a.at(0, h)
        halves = [(a, known, h), (a.at(h, h), rest, n - h)]
        (a1, first, size), (a2, second, other) = halves if how.forward else halves[::-1]
        self.solve(how, a1, first, size, columns, batch)
        if left:
            self.subtract(second, across, first, other, columns, size, how.trans, batch=batch)
        else:
            self.subtract(second, first, across, columns, other, size, transb=how.trans, batch=batch)
        self.solve(how, a2, second, other, columns, batch)

    def lapack(self, name: str, *arguments: Any) -> None:
        """A call of LAPACK for one matrix: parts stand for their buffer, where they begin, and a step."""
        words = [w for x in arguments for w in ((x.buffer, x.offset, 0) if isinstance(x, Part) else (x,))]
        self.emit(Call(LETTERS[self.dtype] + name, (1, 1, *words)))

    def cholesky(self, a: Part, n: int, info: Part) -> Part:
        """The lower triangle of A becomes its factor; `info` has an element for each block, and what is left of it is
        given back."""
        if n <= _BLOCK:
            self.lapack("potrf", "U", n, a, a.ld, info)
            return info.at(0, 1)
        h = _half(n)
        below, rest = a.at(h, 0), a.at(h, h)
        info = self.cholesky(a, h, info)
        self.solve(Triangle("R", True, "T", False), a, below, h, n - h)
        for start in range(0, n - h, _STRIP):
            rows = below.at(start, 0)
            self.subtract(rest.at(start, start), rows, rows, n - h - start, min(_STRIP, n - h - start), h, transb="T")
        return self.cholesky(rest, n - h, info)

    def lu(self, a: Part, m: int, n: int, pivots: Part, room: tuple[Part, Part]) -> None:
        """Factors of A, m x n. What LAPACK says of exchanges counts from the first row of its block, and from 1."""
        k = min(m, n)
        self._columns(a, 0, k, (m, n), pivots, room)
        self.solve(Triangle("L", True, "N", True), a, a.at(0, k), k, n - k)

    def _columns(self, a: Part, start: int, stop: int, sizes: tuple[int, int], pivots: Part, room: tuple[Part, Part]
                 ) -> None:
        """Columns `start` to `stop`, where what is left of them is already updated; exchanges are those of all."""
        m, n = sizes
        if stop - start <= _BLOCK:
            columns, info = replace(room[0], ld=m), room[1]
            here, rows, count = a.at(start, start), m - start, stop - start
            self._turn(here, columns, rows, count)
            self.lapack("getrf", rows, count, columns, columns.ld, pivots.at(0, start), info)
            self._turn(columns, here, count, rows)
            for first, last in ((0, start), (stop, n)):
                if first < last:
                    self.emit(Call("exchange", (self.dtype, count, rows, last - first, *a.at(start, first).words,
                                                pivots.buffer, start)))
            return
        middle = start + _half(stop - start)
        width, right = middle - start, stop - middle
        self._columns(a, start, middle, sizes, pivots, room)
        self.solve(Triangle("L", True, "N", True), a.at(start, start), a.at(start, middle), width, right)
        self.subtract(a.at(middle, middle), a.at(middle, start), a.at(start, middle), m - middle, right, width)
        self._columns(a, middle, stop, sizes, pivots, room)

    def _turn(self, a: Part, b: Part, rows: int, columns: int) -> None:
        """B is the transpose of A, which has so many rows and columns."""
        self.emit(Call("turn", (self.dtype, rows, columns, *a.words, *b.words)))


def _half(n: int) -> int:
    """The first half of a matrix that is cut."""
    return -(-n // (2 * _BLOCK)) * _BLOCK


# ---------------------------------------------------------------- primitives


class Blocked(CompilerPrimitive):
    """An operation on whole matrices that is done by blocks: its results are of the types `results`."""

    multiple_results = True

    def infer(self, *avals: ShapedArray, results: tuple[ShapedArray, ...], **params: Any) -> list[ShapedArray]:
        return list(results)


solve_p, cholesky_p, lu_p = Blocked("blocked_solve"), Blocked("blocked_cholesky"), Blocked("blocked_lu")


def wanted(aval: ShapedArray) -> bool:
    """Whether a matrix is worth factoring by blocks: several are better done beside each other."""
    return (math.prod(aval.shape[:-2]) == 1 and min(aval.shape[-2:]) >= LEAST and aval.dtype.kind == "f"
            and aval.dtype.itemsize >= 4)


def solve(a: Any, b: Any, side: str, lower: bool, trans: str, unit: bool) -> Any:
    """X of op(A) X = B or X op(A) = B."""
    return solve_p.bind(a, b, how=Triangle(side, lower, trans, unit), results=(ShapedArray(b.shape, b.dtype),))[0]


def cholesky(x: Any) -> tuple[Any, Any]:
    """The factor, with what was there above its diagonal, and for each block what LAPACK says of it."""
    blocks = len(_sizes(x.shape[-1]))
    return cholesky_p.bind(x, results=(ShapedArray(x.shape, x.dtype), ShapedArray((*x.shape[:-2], blocks), _I32)))


def _sizes(n: int) -> list[int]:
    """Those of the blocks that LAPACK factors."""
    return [n] if n <= _BLOCK else [*_sizes(_half(n)), *_sizes(n - _half(n))]


def lu(x: Any) -> tuple[Any, Any]:
    """The factors, and the row that each row is exchanged with."""
    k = min(x.shape[-2:])
    factors, pivots = lu_p.bind(x, results=(ShapedArray(x.shape, x.dtype), ShapedArray((*x.shape[:-2], k), _I32)))
    starts = [start for start, size in zip(accumulate([0, *_sizes(k)]), _sizes(k), strict=False) for _ in range(size)]
    return factors, el.add(pivots, broadcast_to(np.array(starts, _I32) - 1, pivots.shape))


def _copied(builder: ProgramBuilder, eqn: Eqn, number: int) -> Part:
    """The first result, which is an operand so far."""
    operand, out = eqn.invars[number], eqn.outvars[0]
    builder.copy(builder.memory(operand), builder.result(out), out.aval.size)
    return _part(builder.result(out), out.aval)


def _part(buffer: str, aval: ShapedArray) -> Part:
    return Part(buffer, aval.shape[-1], math.prod(aval.shape[-2:]))


def _blocks(builder: ProgramBuilder, eqn: Eqn) -> Blocks:
    return Blocks(lambda stmt: builder.emit(replace(stmt, source=eqn.source)), scalar_type(eqn.outvars[0].aval))


@call("blocked_solve")
def _solve(builder: ProgramBuilder, eqn: Eqn) -> None:
    a, b = (v.aval for v in eqn.invars)
    how, sides = eqn.params["how"], _copied(builder, eqn, 1)
    n, columns = b.shape[-2:] if how.side == "L" else b.shape[:-3:-1]
    _blocks(builder, eqn).solve(how, _part(builder.memory(eqn.invars[0]), a), sides, n, columns,
                                math.prod(b.shape[:-2]))


@call("blocked_cholesky")
def _cholesky(builder: ProgramBuilder, eqn: Eqn) -> None:
    info = eqn.outvars[1].aval
    _blocks(builder, eqn).cholesky(_copied(builder, eqn, 0), eqn.invars[0].aval.shape[-1],
                                   Part(builder.result(eqn.outvars[1]), info.shape[-1]))


@call("blocked_lu")
def _lu(builder: ProgramBuilder, eqn: Eqn) -> None:
    m, n = eqn.invars[0].aval.shape[-2:]
    k, dtype = min(m, n), scalar_type(eqn.outvars[0].aval)
    room = Part(builder.temp(dtype, m * min(k, _BLOCK)), m), Part(builder.temp("i32", 1), 1)
    _blocks(builder, eqn).lu(_copied(builder, eqn, 0), m, n, Part(builder.result(eqn.outvars[1]), k), room)
