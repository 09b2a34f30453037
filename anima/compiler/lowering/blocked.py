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
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from anima.compiler.ir.interpret import DTYPES, run_call
from anima.compiler.ir.lapack import LETTERS, workspace
from anima.compiler.ir.loops import Call
from anima.compiler.lowering.array import scalar_type
from anima.compiler.lowering.calls import ProgramBuilder, call
from anima.compiler.lowering.matrices import CompilerPrimitive
from anima.compiler.products.substitution import MOST_ROWS
from anima.core import dtypes
from anima.core.avals import Shape, ShapedArray
from anima.core.jaxpr import Eqn
from anima.core.primitive import Work
from anima.ops import elementwise as el
from anima.ops.broadcast import broadcast_to
from anima.ops.linalg import identity
from anima.util import record, replace

LEAST = 72    # rows, and columns, from which on a matrix is factored by blocks
_BLOCK = 64   # rows, or columns, of a block that LAPACK factors; halves have a multiple of it
_REFLECTED = 32  # columns of a block of reflections
_STRIP = 128  # columns of a triangle that is updated at once
_I32 = np.dtype(np.int32)


@record
class Section:
    """A matrix in a buffer, of rows `ld` apart, and as many more, `step` apart, as there are in the batch."""

    buffer: str
    ld: int
    step: int = 0
    offset: int = 0

    def at(self, row: int, column: int) -> Section:
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


Room = tuple[Section, Section]


class Blocks:
    """Writes the calls for matrices of one type: `emit` takes them, `temp` gives buffers for elements of a type."""

    def __init__(self, emit: Callable[[Call], None], temp: Callable[[str, int], str], dtype: str) -> None:
        self.emit, self.temp, self.dtype = emit, temp, dtype

    def room(self, rows: int, columns: int, dtype: str | None = None) -> Section:
        """A matrix to work in."""
        return Section(self.temp(dtype or self.dtype, rows * columns), columns)

    def subtract(self, c: Section, a: Section, b: Section, m: int, n: int, k: int, transa: str = "N", transb: str = "N",
                 batch: int = 1) -> None:
        """C -= op(A) op(B), which is m x n."""
        self._product((-1.0, 1.0), c, a, b, (m, n, k), transa, transb, batch)

    def multiply(self, c: Section, a: Section, b: Section, m: int, n: int, k: int, transa: str = "N") -> None:
        """C = op(A) B, which is m x n."""
        self._product((1.0, 0.0), c, a, b, (m, n, k), transa, "N", 1)

    def _product(self, scales: tuple[float, float], c: Section, a: Section, b: Section, sizes: tuple[int, int, int],
                 transa: str, transb: str, batch: int) -> None:
        if all(sizes):
            self.emit(Call("gemm", (self.dtype, transa, transb, *sizes, scales[0], *a.words, *b.words, scales[1],
                                    *c.words, batch, a.step, b.step, c.step)))

    def solve(self, how: Triangle, a: Section, b: Section, n: int, columns: int, batch: int = 1) -> None:
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
        words = [w for x in arguments for w in ((x.buffer, x.offset, 0) if isinstance(x, Section) else (x,))]
        self.emit(Call(LETTERS[self.dtype] + name, (1, 1, *words)))

    def cholesky(self, a: Section, n: int, info: Section) -> Section:
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

    def lu(self, a: Section, m: int, n: int, pivots: Section) -> None:
        """Factors of A, m x n. What LAPACK says of exchanges counts from the first row of its block, and from 1."""
        k = min(m, n)
        self._columns(a, 0, k, (m, n), pivots, (self.room(min(k, _BLOCK), m), self.room(1, 1, "i32")))
        self.solve(Triangle("L", True, "N", True), a, a.at(0, k), k, n - k)

    def _columns(self, a: Section, start: int, stop: int, sizes: tuple[int, int], pivots: Section, room: Room) -> None:
        """Columns `start` to `stop`, where what is left of them is already updated; exchanges are those of all."""
        m, n = sizes
        if stop - start <= _BLOCK:
            columns, info = room
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

    def reflections(self, a: Section, m: int, n: int, taus: Section, vectors: Section, triangles: Section) -> None:
        """A becomes what `geqrf` makes of it; `vectors` are those of its reflections, one a row, and `triangles` what
        makes a block of them one: I - V T V^H. Nothing is written above the diagonals of those, where zeros are."""
        k, room = min(m, n), (self.room(_REFLECTED, n), self.room(_REFLECTED, n))
        size = workspace(LETTERS[self.dtype] + "geqrf", m, _REFLECTED)["work"]
        work, info = self.room(1, size), self.room(1, 1, "i32")
        for start in range(0, k, _REFLECTED):
            count, rows = min(_REFLECTED, k - start), m - start
            here, columns, t = a.at(start, start), vectors.at(start, start), triangles.at(start, 0)
            self._turn(here, columns, rows, count)
            self.lapack("geqrf", rows, count, columns, m, taus.at(0, start), work, size, info)
            self._turn(columns, here, count, rows)
            self.lapack("laset", "U", count, count, 0.0, 1.0, columns, m)
            self.lapack("larft", "F", "C", rows, count, columns, m, taus.at(0, start), t, t.ld)
            self._reflect(columns, t, "N", a.at(start, start + count), rows, n - start - count, count, room)

    def orthogonal(self, q: Section, m: int, n: int, k: int, vectors: Section, triangles: Section) -> None:
        """Q, which is the identity so far, becomes the product of the reflections, the last ones first."""
        room = self.room(_REFLECTED, n), self.room(_REFLECTED, n)
        for start in range((k - 1) // _REFLECTED * _REFLECTED, -1, -_REFLECTED):
            self._reflect(vectors.at(start, start), triangles.at(start, 0), "T", q.at(start, start), m - start,
                          n - start, min(_REFLECTED, k - start), room)

    def _reflect(self, vectors: Section, t: Section, trans: str, c: Section, m: int, n: int, k: int, room: Room
                 ) -> None:
        """C -= V op(T) V^H C."""
        first, second = (replace(part, ld=n) for part in room)
        self.multiply(first, vectors, c, k, n, m)
        self.multiply(second, t, first, k, n, k, trans)
        self.subtract(c, vectors, second, m, n, k, "T")

    def _turn(self, a: Section, b: Section, rows: int, columns: int) -> None:
        """B is the transpose of A, which has so many rows and columns."""
        self.emit(Call("turn", (self.dtype, rows, columns, *a.words, *b.words)))


def _half(n: int) -> int:
    """The first half of a matrix that is cut."""
    return -(-n // (2 * _BLOCK)) * _BLOCK


# ---------------------------------------------------------------- primitives

Writer = Callable[[Blocks, Mapping[str, Any], list[Section], list[Section], list[Shape]], None]


class ByBlocks(CompilerPrimitive):
    """An operation on whole matrices that is done by blocks. Its results are of the types `results`; the first of them
    is operand `over` before `write` makes it what it is to be; the one of number `zeros` is full of them."""

    multiple_results = True

    def __init__(self, name: str, write: Writer, over: int = 0, zeros: int | None = None) -> None:
        super().__init__(name)
        self.over, self.write, self.zeros = over, write, zeros
        call(name)(self.lowered)

    def infer(self, *avals: ShapedArray, results: tuple[ShapedArray, ...], **params: Any) -> list[ShapedArray]:
        return list(results)

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             **params: Any) -> Work:
        """The leading term without its factor, as that of factorizations is."""
        return Work(float(outs[0].size * min(avals[0].shape[-2:])))

    def eval(self, *operands: np.ndarray, results: tuple[ShapedArray, ...], **params: Any) -> list[np.ndarray]:
        outs = [np.zeros(r.shape, r.dtype) for r in results]
        outs[0][...] = operands[self.over]
        given = [np.ascontiguousarray(x) for x in operands]
        memory = {f"m{k}": x.reshape(-1) for k, x in enumerate([*given, *outs])}

        def temp(dtype: str, size: int) -> str:
            memory[name := f"m{len(memory)}"] = np.empty(size, DTYPES[dtype])
            return name

        sections = [_section(f"m{k}", x.shape) for k, x in enumerate([*given, *outs])]
        blocks = Blocks(lambda stmt: run_call(stmt, memory), temp, dtypes.short_name(results[0].dtype))
        self.write(blocks, params, sections[:len(given)], sections[len(given):], [x.shape for x in (*given, *outs)])
        return outs

    def lowered(self, builder: ProgramBuilder, eqn: Eqn) -> None:
        """Appends the calls to a program."""
        first = eqn.outvars[0]
        builder.copy(builder.memory(eqn.invars[self.over]), builder.result(first), first.aval.size)
        if self.zeros is not None:
            zeros = eqn.outvars[self.zeros]
            builder.fill(builder.result(zeros), zeros.aval.size, 0.0)
        sections = [_section(buffer, v.aval.shape) for buffer, v in (
            *((builder.memory(v), v) for v in eqn.invars), *((builder.result(v), v) for v in eqn.outvars))]
        blocks = Blocks(lambda stmt: builder.emit(replace(stmt, source=eqn.source)), builder.temp,
                        scalar_type(first.aval))
        count = len(eqn.invars)
        self.write(blocks, eqn.params, sections[:count], sections[count:],
                   [v.aval.shape for v in (*eqn.invars, *eqn.outvars)])


def _section(buffer: str, shape: Shape) -> Section:
    """All of an array, of matrices or of a vector."""
    return Section(buffer, shape[-1], math.prod(shape[-2:]))


def _write_solve(blocks: Blocks, params: Mapping[str, Any], operands: list[Section], results: list[Section],
                 shapes: list[Shape]) -> None:
    how, shape = params["how"], shapes[1]
    n, columns = shape[-2:] if how.side == "L" else shape[:-3:-1]
    blocks.solve(how, operands[0], results[0], n, columns, math.prod(shape[:-2]))


def _write_cholesky(blocks: Blocks, params: Mapping[str, Any], operands: list[Section], results: list[Section],
                    shapes: list[Shape]) -> None:
    blocks.cholesky(results[0], shapes[0][-1], results[1])


def _write_lu(blocks: Blocks, params: Mapping[str, Any], operands: list[Section], results: list[Section],
              shapes: list[Shape]) -> None:
    m, n = shapes[0][-2:]
    blocks.lu(results[0], m, n, results[1])


def _write_reflections(blocks: Blocks, params: Mapping[str, Any], operands: list[Section], results: list[Section],
                       shapes: list[Shape]) -> None:
    (m, n), (a, taus, vectors, triangles) = shapes[0][-2:], results
    blocks.reflections(a, m, n, taus, vectors, triangles)


def _write_orthogonal(blocks: Blocks, params: Mapping[str, Any], operands: list[Section], results: list[Section],
                      shapes: list[Shape]) -> None:
    (m, n), (_, vectors, triangles) = shapes[0][-2:], operands
    blocks.orthogonal(results[0], m, n, shapes[1][-2], vectors, triangles)


solve_p = ByBlocks("blocked_solve", _write_solve, over=1)
cholesky_p = ByBlocks("blocked_cholesky", _write_cholesky)
lu_p = ByBlocks("blocked_lu", _write_lu)
reflections_p = ByBlocks("blocked_reflections", _write_reflections, zeros=3)
orthogonal_p = ByBlocks("blocked_orthogonal", _write_orthogonal)


# ---------------------------------------------------------------- what rewrites use


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


def reflections(x: Any) -> list[Any]:
    """What `geqrf` makes of a matrix, the factors of the reflections, and of which `orthogonal` makes their product:
    vectors and triangles."""
    m, n = x.shape[-2:]
    k, batch = min(m, n), x.shape[:-2]
    shapes = [(m, n), (k,), (k, m), (k, _REFLECTED)]
    return reflections_p.bind(x, results=tuple(ShapedArray((*batch, *shape), x.dtype) for shape in shapes))


def orthogonal(vectors: Any, triangles: Any, columns: int) -> Any:
    """The first columns of the product of reflections."""
    m = vectors.shape[-1]
    q = identity((*vectors.shape[:-2], m, columns), vectors.dtype)
    return orthogonal_p.bind(q, vectors, triangles, results=(ShapedArray(q.shape, q.dtype),))[0]
