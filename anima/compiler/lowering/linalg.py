"""Factorizations of matrices: LAPACK's routines, with what is around them as array operations.

    L = cholesky A   ->   f, info = lapack[potrf] A;  L = select(lower triangle, select(info == 0, f, nan), 0)

LAPACK's matrices are column-major: what is row-major here is the transpose there. For Cholesky factors and triangular
systems that is another way to say the same; the others get, and give, transposed copies. Before fusion each
factorization becomes `lapack` equations and the maps around them; this module has both halves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima.compiler.ir import lapack
from anima.compiler.ir.lapack import LETTERS, SIGNATURES, workspace
from anima.compiler.ir.loops import Call, Load
from anima.compiler.lowering.array import scalar_type
from anima.compiler.lowering.calls import ProgramBuilder, call
from anima.core import dtypes
from anima.core.avals import Shape, ShapedArray
from anima.core.jaxpr import Eqn
from anima.core.primitive import Primitive
from anima.ops import elementwise as el
from anima.ops.broadcast import broadcast_in_dim, broadcasted_iota, full, full_like, zeros
from anima.ops.family import WIDER
from anima.ops.linalg import (
    conjugate,
    identity,
    is_complex,
    lower_part,
    matrix_transpose,
    take_rows,
    upper_part,
)
from anima.ops.linalg_factor import last, lu_pivots_to_permutation
from anima.ops.linalg_spectral import complex_type, real_type
from anima.ops.reduce import reduce_and
from anima.ops.shape import concatenate, pad, slice_in_dim
from anima.ops.sort import sort_p

_I32 = np.dtype(np.int32)


class Lapack(Primitive):
    """A call of a routine for each matrix of a batch.

    `arguments` are as in `lapack.SIGNATURES`: letters and numbers, the number of an operand for `<`, of a result for
    `>` (or the size of a work array and its type), and both, (result, operand), for `=`. `results` are their types.
    """

    multiple_results = True

    def infer(self, *avals: ShapedArray, routine: str, arguments: tuple[Any, ...],
              results: tuple[ShapedArray, ...]) -> list[ShapedArray]:
        assert len(arguments) == len(SIGNATURES[routine])
        return list(results)


    def eval(self, *operands: np.ndarray, routine: str, arguments: tuple[Any, ...],
             results: tuple[ShapedArray, ...]) -> list[np.ndarray]:
        outs = [np.empty(r.shape, r.dtype) for r in results]
        memory: dict[str, np.ndarray] = {f"y{k}": out.reshape(-1) for k, out in enumerate(outs)}
        memory |= {f"x{k}": np.ascontiguousarray(x).reshape(-1) for k, x in enumerate(operands)}

        def temp(dtype: str, size: int) -> str:
            name = f"t{len(memory)}"
            memory[name] = np.empty(size, _I32 if dtype == "i32" else lapack.DTYPES[LETTERS[dtype]])
            return name

        def copy(source: str, target: str, size: int) -> None:
            memory[target][...] = memory[source]

        batch = math.prod(operands[0].shape[:-2])
        args = _arguments(routine, arguments, batch, [(f"x{k}", x.size) for k, x in enumerate(operands)],
                          [(f"y{k}", y.size) for k, y in enumerate(outs)], temp, copy)
        lapack.run(routine, args, memory)
        return outs

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        raise self._missing("Forward-mode differentiation", "The compiler makes it after all transformations.")

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        raise self._missing("Batching (vmap)", "The compiler makes it after all transformations.")


lapack_p = Lapack("lapack")

Named = Sequence[tuple[str, int]]  # buffers and their sizes


def _arguments(routine: str, given: Sequence[Any], batch: int, operands: Named, results: Named,
               temp: Callable[[str, int], str], copy: Callable[[str, str, int], None]) -> tuple[str | int | float, ...]:
    """The arguments of a `Call`, after copies of the operands that it changes."""
    args: list[str | int | float] = [batch]
    for name, value in zip(SIGNATURES[routine], given, strict=True):
        if name[0] == "<":
            args += [operands[value][0], operands[value][1] // batch]
        elif name[0] == ">" and isinstance(value, tuple):
            args += [temp(*value), 0]
        elif name[0] in "=>":
            result = results[value[0] if name[0] == "=" else value]
            if name[0] == "=":
                copy(operands[value[1]][0], *result)
            args += [result[0], result[1] // batch]
        else:
            args.append(value)
    return tuple(args)


@call("lapack")
def _lapack(builder: ProgramBuilder, eqn: Eqn) -> None:
    routine, (matrices, *_) = eqn.params["routine"], eqn.invars
    args = _arguments(routine, eqn.params["arguments"], math.prod(matrices.aval.shape[:-2]),
                      [(builder.memory(v), v.aval.size) for v in eqn.invars],
                      [(builder.result(v), v.aval.size) for v in eqn.outvars], builder.temp, builder.copy)
    builder.emit(Call(routine, args))


def _call(name: str, operands: Sequence[Any], arguments: Sequence[Any], shapes: Sequence[tuple[Shape, Any]]) -> Any:
    """Results of the routine of this name for the operands' type; `shapes` are those in one matrix's results."""
    x = operands[0]
    batch = x.shape[:-2]
    results = tuple(ShapedArray((*batch, *shape), np.dtype(dtype)) for shape, dtype in shapes)
    return lapack_p.bind(*operands, routine=LETTERS[dtypes.short_name(x.dtype)] + name, arguments=tuple(arguments),
                         results=results)


def _work(name: str, x: Any, m: int, n: int, *options: int) -> dict[str, tuple[str, int]]:
    """The work arrays of the routine of this name for m x n matrices: types of their elements and sizes."""
    sizes = workspace(LETTERS[dtypes.short_name(x.dtype)] + name, m, n, *options)
    types = {"work": dtypes.short_name(x.dtype), "rwork": dtypes.short_name(real_type(x.dtype)), "iwork": "i32"}
    return {name: (types[name], size) for name, size in sizes.items()}


def _where_ok(info: Any, x: Any, also: Any = None) -> Any:
    """`x`, with NaN for all of a matrix's result that the routine did not find."""
    ok = el.eq(info, full_like(info, 0))
    ok = ok if also is None else el.and_(ok, also)
    rank = len(ok.shape)
    return el.select(broadcast_in_dim(ok, x.shape, tuple(range(rank))), x, full_like(x, _nan(x.dtype)))


def _nan(dtype: Any) -> Any:
    return complex(math.nan, math.nan) if dtypes.issubdtype(dtype, np.complexfloating) else math.nan


# ---------------------------------------------------------------- one rewrite for each primitive

Rewrite = Callable[..., Any]
REWRITES: dict[str, Rewrite] = {}


def rewrite(name: str) -> Callable[[Rewrite], Rewrite]:
    """Enters a rewrite; matrices without elements never reach it."""
    def enter(rule: Rewrite) -> Rewrite:
        def checked(eqn: Eqn, *operands: Any) -> Any:
            if any(v.aval.size == 0 for v in eqn.invars):
                return [_trivial(v.aval) for v in eqn.outvars]
            return rule(eqn, *operands)

        REWRITES[name] = checked
        return rule
    return enter


def _trivial(aval: ShapedArray) -> Any:
    """The result for a matrix without elements: orthogonal matrices are identities, orders of rows the trivial one."""
    if aval.dtype == _I32:
        return broadcasted_iota(_I32, aval.shape, aval.ndim - 1)
    if aval.ndim > 1 and aval.shape[-1] == aval.shape[-2]:
        return identity(aval.shape, aval.dtype)
    return zeros(aval)


@rewrite("cholesky")
def _cholesky(eqn: Eqn, x: Any) -> Any:
    n = x.shape[-1]
    # The transpose of L L^H is (L^T)^H L^T: the upper factor there is the transpose of the lower one here.
    factor, info = _call("potrf", [x], ["U", n, (0, 0), n, 1], [((n, n), x.dtype), ((), _I32)])
    return lower_part(_where_ok(info, factor))


def _solve(a: Any, b: Any, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool,
           unit_diagonal: bool) -> Any:
    """The transpose of op(A) X = B is X^T op(A)^T = B^T, where A^T is what a column-major reader sees."""
    if conjugate_a and not transpose_a:
        a = conjugate(a)
    trans = "N" if not transpose_a else "C" if conjugate_a else "T"
    n, (rows, columns) = a.shape[-1], b.shape[-2:]
    arguments = ["R" if left_side else "L", "U" if lower else "L", trans, "U" if unit_diagonal else "N", columns, rows,
                 1.0, 1, n, (0, 0), columns]
    return _call("trsm", [b, a], arguments, [((rows, columns), b.dtype)])[0]


@rewrite("triangular_solve")
def _triangular_solve(eqn: Eqn, a: Any, b: Any) -> Any:
    wide = WIDER.get(b.dtype, b.dtype)
    return el.convert(_solve(el.convert(a, wide), el.convert(b, wide), **eqn.params), b.dtype)


@rewrite("lu")
def _lu(eqn: Eqn, x: Any) -> Any:
    m, n = x.shape[-2:]
    k = min(m, n)
    turned, pivots, _ = _call("getrf", [matrix_transpose(x)], [m, n, (0, 0), m, 1, 2],
                              [((n, m), x.dtype), ((k,), _I32), ((), _I32)])
    pivots = el.sub(pivots, 1)
    return [matrix_transpose(turned), pivots, lu_pivots_to_permutation(pivots, m)]


@rewrite("lu_solve")
def _lu_solve(eqn: Eqn, a: Any, lu: Any, permutation: Any, b: Any) -> Any:
    transposed, conjugated = eqn.params["transpose_a"], eqn.params["conjugate_a"]

    def solve(b: Any, lower: bool) -> Any:
        return _solve(lu, b, True, lower, transposed, conjugated, lower)

    if not transposed:
        return solve(solve(take_rows(b, permutation), True), False)
    places = broadcasted_iota(_I32, permutation.shape, last(permutation))
    _, inverse = sort_p.bind(permutation, places, dimension=last(permutation), is_stable=True, num_keys=1)
    return take_rows(solve(solve(b, False), True), inverse)


def _reflections(x: Any) -> tuple[Any, Any]:
    """The result of geqrf, transposed, and the factors of the reflections."""
    m, n = x.shape[-2:]
    k = min(m, n)
    work = _work("geqrf", x, m, n)["work"]
    packed, taus, _ = _call("geqrf", [matrix_transpose(x)], [m, n, (0, 0), m, 1, work, work[1], 2],
                            [((n, m), x.dtype), ((k,), x.dtype), ((), _I32)])
    return packed, taus


def _product(packed: Any, taus: Any) -> Any:
    """Q of reflections in the rows of `packed`, which are columns of Q."""
    n, m = packed.shape[-2:]
    k = taus.shape[-1]
    name = "ungqr" if is_complex(packed) else "orgqr"
    work = _work(name, packed, m, n)["work"]
    out, _ = _call(name, [packed, taus], [m, n, k, (0, 0), m, 1, work, work[1], 1],
                   [((n, m), packed.dtype), ((), _I32)])
    return matrix_transpose(out)


@rewrite("qr")
def _qr(eqn: Eqn, x: Any) -> Any:
    n = x.shape[-1]
    columns = eqn.outvars[0].aval.shape[-1]
    packed, taus = _reflections(x)
    r = upper_part(slice_in_dim(matrix_transpose(packed), 0, columns, axis=last(x) - 1))
    if columns <= n:
        packed = slice_in_dim(packed, 0, columns, axis=last(x) - 1)
    else:
        zero = full((), 0, x.dtype)
        packed = pad(packed, zero, [*[(0, 0, 0)] * (last(x) - 1), (0, columns - n, 0), (0, 0, 0)])
    return [_product(packed, taus), r]


@rewrite("geqrf")
def _geqrf(eqn: Eqn, x: Any) -> Any:
    packed, taus = _reflections(x)
    return [matrix_transpose(packed), taus]


@rewrite("householder_product")
def _householder_product(eqn: Eqn, a: Any, taus: Any) -> Any:
    return _product(matrix_transpose(a), taus)


@rewrite("eigh")
def _eigh(eqn: Eqn, x: Any) -> Any:
    n = x.shape[-1]
    name = "heevd" if is_complex(x) else "syevd"
    work = _work(name, x, n, n)
    arguments: list[Any] = ["V", "L" if eqn.params["lower"] else "U", n, (0, 0), n, 1, work["work"], work["work"][1]]
    if is_complex(x):
        arguments += [work["rwork"], work["rwork"][1]]
    arguments += [work["iwork"], work["iwork"][1], 2]
    vectors, values, info = _call(name, [matrix_transpose(x)], arguments,
                                  [((n, n), x.dtype), ((n,), real_type(x.dtype)), ((), _I32)])
    return [_where_ok(info, matrix_transpose(vectors)), _where_ok(info, values)]


@rewrite("svd")
def _svd(eqn: Eqn, x: Any) -> Any:
    m, n = x.shape[-2:]
    k, full_matrices, vectors = min(m, n), eqn.params["full_matrices"], eqn.params["compute_uv"]
    work = _work("gesdd", x, m, n, int(vectors), int(full_matrices))
    job = "N" if not vectors else "A" if full_matrices else "S"
    left, right = ((m, n) if full_matrices else (k, k)) if vectors else (1, 1)
    arguments = [job, m, n, (0, 0), m, 1, 2, m, 3, right, work["work"], work["work"][1]]
    if is_complex(x):
        arguments.append(work["rwork"])
    arguments += [work["iwork"], 4]
    shapes = [((n, m), x.dtype), ((k,), real_type(x.dtype)), ((left, m) if vectors else (1, 1), x.dtype),
              ((n, right) if vectors else (1, 1), x.dtype), ((), _I32)]
    _, s, u, vh, info = _call("gesdd", [matrix_transpose(x)], arguments, shapes)
    return [_where_ok(info, out) for out in ([s, matrix_transpose(u), matrix_transpose(vh)] if vectors else [s])]


@rewrite("eig")
def _eig(eqn: Eqn, x: Any) -> Any:
    n, real = x.shape[-1], not is_complex(x)
    wanted = [eqn.params["compute_left_eigenvectors"], eqn.params["compute_right_eigenvectors"]]
    work = _work("geev", x, n, n, *map(int, wanted))
    # Its iteration need not end where there are NaNs.
    finite = el.eq(el.sub(x, x), full_like(x, 0))
    finite = reduce_and(finite, (last(x) - 1, last(x)))
    safe = el.select(broadcast_in_dim(finite, x.shape, tuple(range(last(x) - 1))), x, full_like(x, 0))
    values = [1, 2] if real else [1]
    first = len(values) + 1
    arguments = [*("V" if on else "N" for on in wanted), n, (0, 0), n, *values, first, n, first + 1, n, work["work"],
                 work["work"][1], *([] if real else [work["rwork"]]), first + 2]
    vectors = [((n, n) if on else (1, 1), x.dtype) for on in wanted]
    outs = _call("geev", [matrix_transpose(safe)], arguments,
                 [((n, n), x.dtype), *[((n,), x.dtype)] * len(values), *vectors, ((), _I32)])
    w = el.complex(outs[1], outs[2]) if real else outs[1]
    found = [w] + [matrix_transpose(_paired(outs[2], v) if real else v)
                   for v, on in zip(outs[first:], wanted, strict=False) if on]
    return [_where_ok(outs[-1], out, finite) for out in found]


def _paired(imaginary: Any, rows: Any) -> Any:
    """Complex vectors (rows), of which LAPACK gives conjugate pairs as the real and the imaginary part."""
    axis = last(rows) - 1
    n = rows.shape[axis]
    if n == 1:
        return el.convert(rows, complex_type(rows.dtype))

    def rolled(first: int) -> Any:
        return concatenate([slice_in_dim(rows, first, n, axis=axis), slice_in_dim(rows, 0, first, axis=axis)], axis)

    sign = broadcast_in_dim(imaginary, rows.shape, tuple(range(last(rows))))
    nothing = full_like(rows, 0)
    above, below = el.gt(sign, nothing), el.lt(sign, nothing)
    return el.complex(el.select(below, rolled(n - 1), rows),
                      el.select(above, rolled(1), el.select(below, el.neg(rows), nothing)))


# ---------------------------------------------------------------- exchanges of rows


@call("lu_pivots_to_permutation")
def _permutation(builder: ProgramBuilder, eqn: Eqn) -> None:
    """The exchanges, one after the other; a place outside of the rows counts as the nearest row."""
    pivots, (out,) = eqn.invars[0], eqn.outvars
    count, size = pivots.aval.shape[-1], out.aval.shape[-1]
    if out.aval.size == 0:
        return
    source, target, dtype = builder.memory(pivots), builder.result(out), scalar_type(out.aval)
    scope = builder.scope()
    ix = scope.ix
    with scope.loop(out.aval.size // size, "serial") as row:
        start = ix.scale(row, size)
        with scope.loop(size, "serial") as i:
            scope.store(target, ix.add(start, i), scope.index_value(i, dtype))
        if count:
            with scope.loop(count, "serial") as i:
                pivot = scope.load(source, ix.add(ix.scale(row, count), i), dtype, scope.depth)
                other = ix.add(start, scope.as_index(pivot, 0, size - 1))
                here = scope.let(Load(target, ix.add(start, i).expr(), dtype), scope.depth)
                there = scope.let(Load(target, other.expr(), dtype), scope.depth)
                scope.store(target, ix.add(start, i), there)
                scope.store(target, other, here)
    builder.kernel("permutation", scope, eqn.source)
