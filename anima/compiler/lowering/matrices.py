"""Factors of small matrices, and systems with them, as loops of the program itself.

    vector b < 10000:                  a matrix in each lane
      local a: f32[64] apart
      ...
      for k < 8:
        ...                            pivots are searched, and rows exchanged, by selects
        for j < 7 - k:  for i < 7 - k:  a[..] = a[..] - l[..] * t

Many matrices run one in each lane; few have their rows in vectors; those of up to 4 rows are written out, element by
element, and need no scratch memory. Methods: Golub and Van Loan, "Matrix computations" (2013), algorithms 3.4.1 (LU by
outer products, with partial pivoting), 4.2.2 (Cholesky by outer products), 5.2.1 (QR by reflections), 3.1.3 and 3.1.4
(substitution by columns).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from anima.compiler.ir.index_math import Index
from anima.compiler.ir.loops import Const, Expr
from anima.compiler.lowering.array import Scope, scalar_type
from anima.compiler.lowering.calls import ProgramBuilder, call
from anima.compiler.lowering.lanes import WRITTEN_OUT, MatrixWriter, Number, Room, Submatrix
from anima.core.avals import ShapedArray
from anima.core.jaxpr import Atom, Eqn, Literal, Var
from anima.core.primitive import Primitive
from anima.ops.linalg import LAPACK_TYPES, lu_solve_p

LARGEST = 16     # rows and columns of small matrices whose singular values are asked for, if they are not MANY,
LARGER = 32      # of other small ones,
LARGE = 64       # and of those that FILL the lanes, or are reflected
FEW = 4          # matrices, or right sides: fewer run one after the other
MANY = 8         # matrices, or right sides, that are enough for lanes, be there more of the others or not
FILL = 16        # matrices that are enough for all lanes

_I32 = np.dtype(np.int32)
Element = Callable[[Index, Index], Expr]


def small(eqn: Eqn) -> bool:
    """Whether the matrices of an equation are small."""
    matrix = eqn.invars[0].aval
    if eqn.primitive.name == "svd" and (matrix.dtype.kind == "c" or eqn.params["algorithm"] is not None):
        return False
    count = math.prod(matrix.shape[:-2])
    few = eqn.primitive.name == "svd" and count < MANY
    largest = LARGE if count >= FILL or eqn.primitive.name == "qr" else LARGEST if few else LARGER
    return (matrix.dtype in LAPACK_TYPES and max(matrix.shape[-2:]) <= largest and not eqn.params.get("pivoting")
            and all(v.aval.size > 0 for v in (*eqn.invars, *eqn.outvars)))


class CompilerPrimitive(Primitive):
    """An operation that only the compiler makes, after all transformations."""

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        raise self._missing("Forward-mode differentiation", "The compiler makes it after all transformations.")

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        raise self._missing("Batching (vmap)", "The compiler makes it after all transformations.")


class Substitution(CompilerPrimitive):
    """`lu_solve` by the factors alone: what the compiler makes of it."""

    def infer(self, lu: ShapedArray, permutation: ShapedArray, b: ShapedArray, **params: Any) -> ShapedArray:
        return b

    def eval(self, lu: np.ndarray, permutation: np.ndarray, b: np.ndarray, **params: Any) -> np.ndarray:
        return lu_solve_p.eval(lu, lu, permutation, b, **params)


substitution_p = Substitution("substitution")


# ---------------------------------------------------------------- one of many


@contextmanager
def matrices(scope: Scope, count: int, size: int, dtype: str, written_out: int = WRITTEN_OUT
             ) -> Iterator[tuple[MatrixWriter, Index]]:
    """The work on each of `count` matrices of `size` rows or columns, up to `written_out` written out, and the index of
    the matrix."""
    out = size <= written_out
    lanes = out or count >= FEW
    with scope.loop(count, "vector" if lanes else "each") as b:
        yield MatrixWriter(scope, dtype, out, lanes and count > 1), b


def reader(scope: Scope, atom: Atom, b: Index) -> Element:
    """The elements of matrix b of an operand."""
    shape = atom.aval.shape
    batch = scope.ix.unflatten(b, shape[:-2])
    return lambda i, j: scope.at(atom, (*batch, i, j))


# ---------------------------------------------------------------- Cholesky


@call("cholesky", inline="all")
def _cholesky(builder: ProgramBuilder, eqn: Eqn) -> None:
    operand, out = eqn.invars[0], eqn.outvars[0]
    n, target = out.aval.shape[-1], builder.result(out)
    scope = builder.scope()
    ix = scope.ix
    with matrices(scope, out.aval.size // n**2, n, scalar_type(out.aval)) as (work, b):
        halves = hermitian_part_of(scope, operand) if work.lanes and not work.written_out else None
        factor, failed = _cholesky_factor(work, n, reader(scope, operand if halves is None else halves, b),
                                          halves is not None)

        def element(i: Index, j: Index) -> Expr:
            return work.select(failed, work.const(math.nan), factor.get(i, j))

        for i in work.steps(0, n):
            for j, choose in work.columns(i, n, together=True):
                lower = partial(element, i, j)
                place = ix.add(ix.scale(b, n * n), ix.add(ix.scale(i, n), j))
                scope.store(target, place, choose(lower, lower, lambda: work.const(0.0)))
    builder.kernel("cholesky", scope, eqn.source)


def hermitian_part_of(scope: Scope, atom: Atom) -> Atom | None:
    """x, if a matrix is (x + x^H) / 2: it had better be made where x is, as lanes step far across memory along the
    columns of x."""
    def made_by(atom: Atom, name: str) -> Sequence[Atom]:
        eqn = scope.producers.get(atom) if isinstance(atom, Var) else None
        return eqn.invars if eqn is not None and eqn.primitive.name == name else ()

    quotient = made_by(atom, "div")
    if not quotient or not isinstance(quotient[1], Literal) or quotient[1].val != 2:
        return None
    last = atom.aval.ndim - 1
    for x, other in itertools.permutations(made_by(quotient[0], "add")):
        if atom.aval.dtype.kind == "c":
            (other,) = made_by(other, "conj") or (other,)
        turned = scope.producers.get(other) if isinstance(other, Var) else None
        if (turned is not None and turned.primitive.name == "transpose" and turned.invars[0] is x
                and turned.params["permutation"] == (*range(last - 1), last, last - 1)):
            return x
    return None


def _cholesky_factor(work: MatrixWriter, n: int, read: Element, halves: bool) -> tuple[Room, Expr]:
    """The lower triangle of the factor, and whether there is none: a pivot is not positive (NaN are as numbers are).
    The matrix is the Hermitian part of what is read, if that is `halves`."""
    ix = work.scope.ix
    a, column = work.room(n, n), work.room(n)
    for i in work.steps(0, n):
        for j in work.row(work.zero, ix.const(n) if halves else ix.offset(i, 1), n):
            a.put(i, j, read(i, j))
    for i in work.steps(0, n if halves else 0):
        for j in work.row(work.zero, ix.offset(i, 1), n):
            a.put(i, j, work.op("div", work.op("add", a.get(i, j), work.conj(a.get(j, i))), work.const(2.0)))
    factor = a if work.written_out or work.lanes else work.room(n, n)  # rows of `a` are written as vectors only
    failed = Number(work, Const(False, "bool"))
    for k in work.steps(0, n):
        pivot = work.part("real", a.get(k, k))
        failed.set(work.op("or", failed.value, work.op("le", pivot, work.const(0.0, work.real), to="bool"), to="bool"))
        root = work.op("sqrt", pivot, to=work.real)
        scale = work.whole(work.op("div", work.const(1.0, work.real), root, to=work.real))
        factor.put(k, k, work.whole(root))
        for i in work.after(k, n):
            value = work.op("mul", a.get(i, k), scale)
            column.put(i, None, value)
            factor.put(i, k, value)
        for i in work.after(k, n):
            value = column.get(i)
            for j in work.row(ix.offset(k, 1), ix.offset(i, 1), n):
                product = work.op("mul", value, work.conj(column.get(j)))
                a.put(i, j, work.op("sub", a.get(i, j), product))
    return factor, failed.value


# ---------------------------------------------------------------- LU


@call("lu", inline="all")
def _lu(builder: ProgramBuilder, eqn: Eqn) -> None:
    operand, outs = eqn.invars[0], eqn.outvars
    m, n = operand.aval.shape[-2:]
    factors, pivots, order = (builder.result(v) for v in outs)
    scope = builder.scope()
    ix = scope.ix
    with matrices(scope, operand.aval.size // (m * n), max(m, n), scalar_type(operand.aval)) as (work, b):
        read = reader(scope, operand, b)
        a, rows = work.room(m, n), work.room(m, 1, "i32")
        for i in work.steps(0, m):
            rows.put(i, None, scope.index_value(i, "i32"))
            for j in work.row(work.zero, ix.const(n), n):
                a.put(i, j, read(i, j))
        for k in work.steps(0, min(m, n)):
            place = _eliminate(work, a, rows, k, m, n)
            scope.store(pivots, ix.add(ix.scale(b, min(m, n)), k), place)
        for i in work.steps(0, m):
            scope.store(order, ix.add(ix.scale(b, m), i), rows.get(i))
            for j in work.row(work.zero, ix.const(n), n):
                scope.store(factors, ix.add(ix.scale(b, m * n), ix.add(ix.scale(i, n), j)), a.get(i, j))
    builder.kernel("lu", scope, eqn.source)


def _eliminate(work: MatrixWriter, a: Room, rows: Room, k: Index, m: int, n: int) -> Expr:
    """A step of the elimination: the row that row k is exchanged with."""
    scope = work.scope
    pivot, place = _pivot(work, a, k, m)

    def is_pivot(i: Index) -> Expr:
        return work.op("eq", place, scope.index_value(i, "i32"), to="bool")

    def reduced(i: Index, x: Expr, t: Expr) -> Expr:
        return work.op("sub", x, work.op("mul", factor.get(i), t))

    singular = work.op("eq", pivot, work.const(0.0), to="bool")
    factor = work.room(m)
    old, first = rows.get(k), Number(work, rows.get(k))
    top = a.get(k, k)
    for i in work.after(k, m):
        here = is_pivot(i)
        row = rows.get(i)
        first.set(work.select(here, row, first.value))
        rows.put(i, None, work.select(here, old, row))
        x = work.select(here, top, a.get(i, k))
        factor.put(i, None, work.select(singular, x, work.op("div", x, pivot)))
    rows.put(k, None, first.value)
    for j, choose in work.columns(k, n):
        above = a.get(k, j)
        found = Number(work, above)
        for i in work.after(k, m):
            found.set(work.select(is_pivot(i), a.get(i, j), found.value))
        t = found.value
        a.put(k, j, t)
        for i in work.after(k, m):
            x = work.select(is_pivot(i), above, a.get(i, j))
            a.put(i, j, choose(lambda x=x: x, partial(factor.get, i), partial(reduced, i, x, t)))
    return place


def _pivot(work: MatrixWriter, a: Room, k: Index, m: int) -> tuple[Expr, Expr]:
    """The largest element of column k from row k on, the first of equal ones, and its row."""
    first = a.get(k, k)
    pivot, largest = Number(work, first), Number(work, work.size(first))
    place = Number(work, work.scope.index_value(k, "i32"))
    for i in work.after(k, m):
        x = a.get(i, k)
        new = work.size(x)
        better = work.op("gt", new, largest.value, to="bool")
        largest.set(work.select(better, new, largest.value))
        pivot.set(work.select(better, x, pivot.value))
        place.set(work.select(better, work.scope.index_value(i, "i32"), place.value))
    return pivot.value, place.value


# ---------------------------------------------------------------- QR


@call("qr", inline="all")
def _qr(builder: ProgramBuilder, eqn: Eqn) -> None:
    operand, (q, r) = eqn.invars[0], eqn.outvars
    (m, n), size = operand.aval.shape[-2:], q.aval.shape[-1]
    rank = min(m, n)
    left, right = builder.result(q), builder.result(r)
    scope = builder.scope()
    ix = scope.ix

    def store(buffer: str, rows: int, columns: int, b: Index, i: Index, j: Index, value: Expr) -> None:
        scope.store(buffer, ix.add(ix.scale(b, rows * columns), ix.add(ix.scale(i, columns), j)), value)

    with matrices(scope, operand.aval.size // (m * n), max(m, n), scalar_type(operand.aval)) as (work, b):
        read, a, diagonal = reader(scope, operand, b), work.room(m, n), work.room(rank)
        for i in work.steps(0, m):
            for j in work.row(work.zero, ix.const(n), n):
                a.put(i, j, read(i, j))
        vectors = a if work.written_out or work.lanes else work.room(m, rank)  # rows of `a` are written as vectors only
        factors = work.room(rank)
        for k in work.steps(0, rank):
            factor = reflection(work, a, vectors, diagonal, k, m)
            factors.put(k, None, factor)
            for j in work.row(ix.offset(k, 1), ix.const(n), n):
                reflect(work, a, vectors, work.conj(factor), k, j)
        for i in work.steps(0, rank):
            for j, choose in work.columns(i, n, together=True):
                store(right, size, n, b, i, j, choose(
                    lambda: work.const(0.0), partial(diagonal.get, i), partial(a.get, i, j)))
        for i in work.steps(rank, size):
            for j in work.row(work.zero, ix.const(n), n):
                store(right, size, n, b, i, j, work.const(0.0))
        out = _product(work, vectors, factors, rank, m, size)
        for i in work.steps(0, m):
            for j in work.row(work.zero, ix.const(size), size):
                store(left, m, size, b, i, j, out.get(i, j))
    builder.kernel("qr", scope, eqn.source)


def reflection(work: MatrixWriter, a: Room | Submatrix, vectors: Room | Submatrix, diagonal: Room, k: Index,
               m: int) -> Expr:
    """The factor of the reflection that makes column k zero below the diagonal, as LAPACK's larfg chooses it; its
    vector begins with 1. All is measured in a power of two as large as the largest number, so that none overflows, and
    columns of subnormal numbers have reflections as good as others."""
    real, zero = work.real, work.const(0.0, work.real)
    largest = Number(work, work.size(a.get(k, k)))
    for i in work.after(k, m):
        largest.set(work.op("max", largest.value, work.size(a.get(i, k)), to=real))
    unit = work.power_of_two(largest.value)
    scale = work.op("div", work.const(1.0, real), unit, to=real)

    def scaled(i: Index) -> Expr:
        return work.op("mul", a.get(i, k), work.whole(scale))

    total = Number(work, zero)
    for i in work.after(k, m):
        total.set(work.op("add", total.value, work.square(scaled(i)), to=real))
    below, top = total.value, scaled(k)
    length = work.op("sqrt", work.op("add", below, work.square(top), to=real), to=real)
    up = work.op("ge", work.part("real", top), zero, to="bool")
    done = work.op("and", work.op("eq", below, zero, to="bool"),
                   work.op("eq", work.part("imag", top), zero, to="bool"), to="bool")
    beta = work.whole(work.select(up, work.op("neg", length, to=real), length))
    diagonal.put(k, None, work.select(done, a.get(k, k), work.op("mul", beta, work.whole(unit))))
    apart = work.op("sub", top, beta)
    for i in work.after(k, m):
        vectors.put(i, k, work.select(done, work.const(0.0), work.op("div", scaled(i), apart)))
    return work.select(done, work.const(0.0), work.op("div", work.op("neg", apart), beta))


def reflect(work: MatrixWriter, a: Room | Submatrix, vectors: Room | Submatrix, factor: Expr, k: Index,
            j: Index) -> None:
    """Column j of `a` less its part along vector k times `factor`."""
    rows = a.rows
    top = a.get(k, j)
    along = Number(work, top)
    for i in work.after(k, rows):
        along.set(work.op("add", along.value, work.op("mul", work.conj(vectors.get(i, k)), a.get(i, j))))
    t = work.op("mul", factor, along.value)
    a.put(k, j, work.op("sub", top, t))
    for i in work.after(k, rows):
        a.put(i, j, work.op("sub", a.get(i, j), work.op("mul", vectors.get(i, k), t)))


def _product(work: MatrixWriter, vectors: Room, factors: Room, rank: int, m: int, size: int) -> Room:
    """The first columns of the product of all reflections."""
    ix, out = work.scope.ix, work.room(m, size)
    for i in work.steps(0, size):
        for j, choose in work.columns(i, size):
            out.put(i, j, choose(*(partial(work.const, x) for x in (0.0, 1.0, 0.0))))
    for i in work.steps(size, m):
        for j in work.row(work.zero, ix.const(size), size):
            out.put(i, j, work.const(0.0))
    product_of_reflections(work, out, vectors, factors, rank, ix.const(size))
    return out


def product_of_reflections(work: MatrixWriter, out: Room | Submatrix, vectors: Room | Submatrix, factors: Room,
                           rank: int, size: Index) -> None:
    """The reflections, the last one first, of the columns of what begins as the identity."""
    ix = work.scope.ix
    for step in work.steps(0, rank):
        k = ix.offset(ix.scale(step, -1), rank - 1)
        factor = factors.get(k)
        for j in work.row(k, size, size.const):
            reflect(work, out, vectors, factor, k, j)


# ---------------------------------------------------------------- triangular systems


@contextmanager
def _systems(scope: Scope, matrix: Atom, sides: int, turned: Callable[[MatrixWriter, Element], Element]
             ) -> Iterator[tuple[MatrixWriter, Element, Index, Index]]:
    """The work on each system, one right side at a time: the elements that `turned` makes of the matrix, its number,
    and that of the side. Lanes are sides, where these are many, or else matrices."""
    n, count, dtype = matrix.aval.shape[-1], math.prod(matrix.aval.shape[:-2]), scalar_type(matrix.aval)
    written_out = n <= WRITTEN_OUT
    vectors = sides >= MANY or sides > count
    matrices = not vectors and (written_out or count >= FEW)
    vectors = vectors and (written_out or sides >= FEW)
    with scope.loop(count, "vector" if matrices else "each") as b:
        work = MatrixWriter(scope, dtype, written_out, (matrices and count > 1) or (vectors and sides > 1))
        a = turned(work, reader(scope, matrix, b))
        if matrices and count > 1 and sides > 1 and not written_out:  # what lies apart in memory is read once
            room = work.room(n, n)
            for i in work.steps(0, n):
                for j in work.steps(0, n):
                    room.put(i, j, a(i, j))
            a = room.get
        with scope.loop(sides, "vector" if vectors else "serial" if matrices else "each") as c:
            yield work, a, b, c


def _substitute(work: MatrixWriter, a: Element, x: Room, n: int, lower: bool, unit: bool) -> None:
    """Solves with a triangle, in place."""
    ix = work.scope.ix

    def at(k: Index) -> Index:
        return k if lower else ix.offset(ix.scale(k, -1), n - 1)

    for k in work.steps(0, n):
        j = at(k)
        value = x.get(j)
        if not unit:
            value = work.op("div", value, a(j, j))
            x.put(j, None, value)
        for step in work.after(k, n):
            i = at(step)
            x.put(i, None, work.op("sub", x.get(i), work.op("mul", a(i, j), value)))


def _turned(work: MatrixWriter, a: Element, transposed: bool, conjugated: bool) -> Element:
    """op(A)."""
    def element(i: Index, j: Index) -> Expr:
        x = a(j, i) if transposed else a(i, j)
        return work.conj(x) if conjugated else x

    return element


@call("triangular_solve", inline=(1,))
def _triangular_solve(builder: ProgramBuilder, eqn: Eqn) -> None:
    (matrix, sides), out, p = eqn.invars, eqn.outvars[0], eqn.params
    n, left = matrix.aval.shape[-1], p["left_side"]
    rows = out.aval.shape[-1 if left else -2]
    target = builder.result(out)
    scope = builder.scope()
    ix = scope.ix
    # X op(A) = B says op(A)^T X^T = B^T
    turned = partial(_turned, transposed=p["transpose_a"] == left, conjugated=p["conjugate_a"])
    with _systems(scope, matrix, rows, turned) as (work, a, b, c):
        read, x = reader(scope, sides, b), work.room(n)
        for i in work.steps(0, n):
            x.put(i, None, read(i, c) if left else read(c, i))
        _substitute(work, a, x, n, (p["lower"] != p["transpose_a"]) == left, p["unit_diagonal"])
        for i in work.steps(0, n):
            place = ix.flatten((i, c) if left else (c, i), out.aval.shape[-2:])
            scope.store(target, ix.add(ix.scale(b, n * rows), place), x.get(i))
    builder.kernel("triangular_solve", scope, eqn.source)


@call("substitution", inline=(2,))
def _substitution(builder: ProgramBuilder, eqn: Eqn) -> None:
    (matrix, order, sides), out, p = eqn.invars, eqn.outvars[0], eqn.params
    n, columns = sides.aval.shape[-2:]
    transposed, target = p["transpose_a"], builder.result(out)
    scope = builder.scope()
    ix = scope.ix
    turned = partial(_turned, transposed=transposed, conjugated=p["conjugate_a"])
    with _systems(scope, matrix, columns, turned) as (work, a, b, c):
        read, x = reader(scope, sides, b), work.room(n)
        batch = ix.unflatten(b, order.aval.shape[:-1])

        def row(i: Index) -> Index:
            return scope.as_index(scope.at(order, (*batch, i)), 0, n - 1)

        for i in work.steps(0, n):
            x.put(i, None, read(i if transposed else row(i), c))
        for lower in (True, False):
            _substitute(work, a, x, n, lower, lower != transposed)
        for i in work.steps(0, n):
            place = ix.flatten((row(i) if transposed else i, c), (n, columns))
            scope.store(target, ix.add(ix.scale(b, n * columns), place), x.get(i))
    builder.kernel("substitution", scope, eqn.source)
