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
from anima.compiler.lowering import blocked
from anima.compiler.lowering.array import scalar_type
from anima.compiler.lowering.calls import ProgramBuilder, call
from anima.compiler.lowering.matrices import CompilerPrimitive, small, substitution_p
from anima.compiler.machine.target import Target
from anima.compiler.rewriting.rewrites import Rewriter, Where, rewrite
from anima.control.elimination import perturbed_p, tridiagonal_factors_p, tridiagonal_substitution_p
from anima.core import dtypes
from anima.core.avals import Shape, ShapedArray
from anima.core.jaxpr import Eqn
from anima.ops import elementwise as el
from anima.ops.broadcast import (
    broadcast_in_dim,
    broadcast_to,
    broadcasted_iota,
    expand_dims,
    full,
    full_like,
    zeros,
)
from anima.ops.contract import batch_matmul
from anima.ops.family import WIDER
from anima.ops.linalg import (
    adjoint,
    conjugate,
    identity,
    is_complex,
    lower_part,
    matrix_transpose,
    take_rows,
    upper_part,
)
from anima.ops.linalg_factor import last, lu_pivots_to_permutation
from anima.ops.linalg_spectral import complex_type, real_type, safe_size
from anima.ops.reduce import reduce_and, reduce_max
from anima.ops.shape import concatenate, pad, slice_in_dim
from anima.ops.sort import sort_p

_I32 = np.dtype(np.int32)


class Lapack(CompilerPrimitive):
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


lapack_p = Lapack("lapack")

Named = Sequence[tuple[str, int]]  # buffers and their sizes


def _arguments(routine: str, given: Sequence[Any], batch: int, operands: Named, results: Named,
               temp: Callable[[str, int], str], copy: Callable[[str, str, int], None]) -> tuple[str | int | float, ...]:
    """The arguments of a `Call`, after copies of the operands that it changes."""
    room = sum(16 * value[1] for name, value in zip(SIGNATURES[routine], given, strict=True)
               if name[0] == ">" and isinstance(value, tuple))
    count = lapack.pieces(batch, lapack.product_of(dict(zip(SIGNATURES[routine], given, strict=True))), room)
    args: list[str | int | float] = [batch, count]
    for name, value in zip(SIGNATURES[routine], given, strict=True):
        if name[0] == "<":
            args += [operands[value][0], 0, operands[value][1] // batch]
        elif name[0] == ">" and isinstance(value, tuple):
            dtype, size = value
            args += [temp(dtype, count * size), 0, -size]
        elif name[0] in "=>":
            result = results[value[0] if name[0] == "=" else value]
            if name[0] == "=":
                copy(operands[value[1]][0], *result)
            args += [result[0], 0, result[1] // batch]
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
    types = {"work": dtypes.short_name(x.dtype), "rwork": dtypes.short_name(real_type(x.dtype)), "iwork": "i32",
             "bwork": "i32"}
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

def factorization(name: str, where: Where = lambda eqn, target: True) -> Callable[[Rewriter], Rewriter]:
    """Enters a rewrite; factors of matrices without elements, and results without elements, never reach it."""
    def enter(rule: Rewriter) -> Rewriter:
        def checked(eqn: Eqn, target: Target, *operands: Any) -> Any:
            factors = len(operands) == 1
            if all(v.aval.size == 0 for v in (eqn.invars if factors else eqn.outvars)):
                return [_trivial(v.aval) for v in eqn.outvars]
            return rule(eqn, *operands)

        return rewrite(name, where)(checked)
    return enter


def _large(eqn: Eqn, target: Target) -> bool:
    return not small(eqn)


def _trivial(aval: ShapedArray) -> Any:
    """The result for a matrix without elements: orthogonal matrices are identities, orders of rows the trivial one."""
    if aval.dtype == _I32:
        return broadcasted_iota(_I32, aval.shape, aval.ndim - 1)
    if aval.ndim > 1 and aval.shape[-1] == aval.shape[-2]:
        return identity(aval.shape, aval.dtype)
    return zeros(aval)


@factorization("cholesky", where=_large)
def _cholesky(eqn: Eqn, x: Any) -> Any:
    n = x.shape[-1]
    if blocked.wanted(x):
        factor, info = blocked.cholesky(x)
        return lower_part(_where_ok(reduce_max(info, (last(info),)), factor))
    # The transpose of L L^H is (L^T)^H L^T: the upper factor there is the transpose of the lower one here.
    factor, info = _call("potrf", [x], ["U", n, (0, 0), n, 1], [((n, n), x.dtype), ((), _I32)])
    return lower_part(_where_ok(info, factor))


def _solve(a: Any, b: Any, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool,
           unit_diagonal: bool) -> Any:
    """The transpose of op(A) X = B is X^T op(A)^T = B^T, where A^T is what a column-major reader sees."""
    n, (rows, columns) = a.shape[-1], b.shape[-2:]
    if (columns if left_side else rows) == 1:
        return _solve_vector(a, b, lower, transpose_a == left_side, conjugate_a, unit_diagonal)
    if not is_complex(a):
        return blocked.solve(a, b, "L" if left_side else "R", lower, "T" if transpose_a else "N", unit_diagonal)
    if conjugate_a and not transpose_a:
        a = conjugate(a)
    trans = "N" if not transpose_a else "C" if conjugate_a else "T"
    arguments = ["R" if left_side else "L", "U" if lower else "L", trans, "U" if unit_diagonal else "N", columns, rows,
                 1.0, 1, n, (0, 0), columns]
    return _call("trsm", [b, a], arguments, [((rows, columns), b.dtype)])[0]


def _solve_vector(a: Any, b: Any, lower: bool, columns: bool, conjugate_a: bool, unit_diagonal: bool) -> Any:
    """Of one right side; `columns`: by the columns of A, as LAPACK's rows are."""
    if conjugate_a and columns:
        a = conjugate(a)
    n, trans = a.shape[-1], "N" if columns else "C" if conjugate_a else "T"
    return _call("trsv", [b, a], ["U" if lower else "L", trans, "U" if unit_diagonal else "N", n, 1, n, (0, 0), 1],
                 [(b.shape[-2:], b.dtype)])[0]


@factorization("triangular_solve", where=_large)
def _triangular_solve(eqn: Eqn, a: Any, b: Any) -> Any:
    wide = WIDER.get(b.dtype, b.dtype)
    return el.convert(_solve(el.convert(a, wide), el.convert(b, wide), **eqn.params), b.dtype)


@factorization("lu", where=_large)
def _lu(eqn: Eqn, x: Any) -> Any:
    m, n = x.shape[-2:]
    k = min(m, n)
    if blocked.wanted(x):
        factors, pivots = blocked.lu(x)
    else:
        turned, pivots, _ = _call("getrf", [matrix_transpose(x)], [m, n, (0, 0), m, 1, 2],
                                  [((n, m), x.dtype), ((k,), _I32), ((), _I32)])
        factors, pivots = matrix_transpose(turned), el.sub(pivots, 1)
    return [factors, pivots, lu_pivots_to_permutation(pivots, m)]


@factorization("lu_solve")
def _lu_solve(eqn: Eqn, a: Any, lu: Any, permutation: Any, b: Any) -> Any:
    if small(eqn):
        return substitution_p.bind(lu, permutation, b, **eqn.params)
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


@factorization("qr", where=_large)
def _qr(eqn: Eqn, x: Any) -> Any:
    n = x.shape[-1]
    columns = eqn.outvars[0].aval.shape[-1]
    pivoting = eqn.params["pivoting"]
    if blocked.wanted(x) and not pivoting:
        packed, _, vectors, triangles = blocked.reflections(x)
        return [blocked.orthogonal(vectors, triangles, columns),
                upper_part(slice_in_dim(packed, 0, columns, axis=last(x) - 1))]
    packed, taus, *order = _pivoted_reflections(x) if pivoting else _reflections(x)
    r = upper_part(slice_in_dim(matrix_transpose(packed), 0, columns, axis=last(x) - 1))
    if columns <= n:
        packed = slice_in_dim(packed, 0, columns, axis=last(x) - 1)
    else:
        zero = full((), 0, x.dtype)
        packed = pad(packed, zero, [*[(0, 0, 0)] * (last(x) - 1), (0, columns - n, 0), (0, 0, 0)])
    return [_product(packed, taus), r, *order]


def _pivoted_reflections(x: Any) -> tuple[Any, Any, Any]:
    """As `_reflections`, of the columns in the order that is the last result."""
    m, n = x.shape[-2:]
    work = _work("geqp3", x, m, n)
    any_column = full((*x.shape[:-2], n), 0, _I32)
    arguments = [m, n, (0, 0), m, (1, 1), 2, work["work"], work["work"][1],
                 *([work["rwork"]] if is_complex(x) else []), 3]
    packed, order, taus, _ = _call("geqp3", [matrix_transpose(x), any_column], arguments, [
        ((n, m), x.dtype), ((n,), _I32), ((min(m, n),), x.dtype), ((), _I32)])
    return packed, taus, el.sub(order, 1)


@factorization("geqrf")
def _geqrf(eqn: Eqn, x: Any) -> Any:
    if blocked.wanted(x):
        return blocked.reflections(x)[:2]
    packed, taus = _reflections(x)
    return [matrix_transpose(packed), taus]


@factorization("householder_product")
def _householder_product(eqn: Eqn, a: Any, taus: Any) -> Any:
    if not taus.shape[-1]:
        return identity(a.shape, a.dtype)
    return _product(matrix_transpose(a), taus)


@factorization("eigh", where=_large)
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


@factorization("svd", where=_large)
def _svd(eqn: Eqn, x: Any) -> Any:
    m, n = x.shape[-2:]
    k, full_matrices, vectors = min(m, n), eqn.params["full_matrices"], eqn.params["compute_uv"]
    name = "gesdd" if eqn.params["algorithm"] is None else "gesvd"
    work = _work(name, x, m, n, int(vectors), int(full_matrices))
    job = "N" if not vectors else "A" if full_matrices else "S"
    left, right = ((m, n) if full_matrices else (k, k)) if vectors else (1, 1)
    arguments = [*[job] * (1 if name == "gesdd" else 2), m, n, (0, 0), m, 1, 2, m, 3, right, work["work"],
                 work["work"][1]]
    if is_complex(x):
        arguments.append(work["rwork"])
    if name == "gesdd":
        arguments.append(work["iwork"])
    arguments.append(4)
    shapes = [((n, m), x.dtype), ((k,), real_type(x.dtype)), ((left, m) if vectors else (1, 1), x.dtype),
              ((n, right) if vectors else (1, 1), x.dtype), ((), _I32)]
    _, s, u, vh, info = _call(name, [matrix_transpose(x)], arguments, shapes)
    return [_where_ok(info, out) for out in ([s, matrix_transpose(u), matrix_transpose(vh)] if vectors else [s])]


@factorization("eig")
def _eig(eqn: Eqn, x: Any) -> Any:
    n, real = x.shape[-1], not is_complex(x)
    wanted = [eqn.params["compute_left_eigenvectors"], eqn.params["compute_right_eigenvectors"]]
    work = _work("geev", x, n, n, *map(int, wanted))
    safe, finite = _finite(x, 2)
    values = [1, 2] if real else [1]
    first = len(values) + 1
    arguments = [*("V" if on else "N" for on in wanted), n, (0, 0), n, *values, first, n, first + 1, n, work["work"],
                 work["work"][1], *([] if real else [work["rwork"]]), first + 2]
    vectors = [((n, n) if on else (1, 1), x.dtype) for on in wanted]
    size = _power_of_size(safe)
    outs = _call("geev", [matrix_transpose(el.div(safe, _spread(el.convert(size, x.dtype), safe)))], arguments,
                 [((n, n), x.dtype), *[((n,), x.dtype)] * len(values), *vectors, ((), _I32)])
    parts = outs[1:3] if real else (el.real(outs[1]), el.imag(outs[1]))
    w = el.complex(*(el.mul(part, _spread(size, part)) for part in parts))
    found = [w] + [matrix_transpose(_paired(outs[2], v) if real else v)
                   for v, on in zip(outs[first:], wanted, strict=False) if on]
    return [_where_ok(outs[-1], out, finite) for out in found]


def _power_of_size(x: Any) -> Any:
    """For each finite matrix of `x`, what to divide it by, without rounding, where it is too large or small for LAPACK
    (`safe_size`): else 1."""
    parts = [el.abs(part) for part in ((el.real(x), el.imag(x)) if is_complex(x) else (x,))]
    size = reduce_max(el.max(parts[0], parts[-1]), (last(x) - 1, last(x)))
    kind, limit = np.finfo(size.dtype), safe_size(size.dtype)
    outside = el.or_(el.gt(size, full_like(size, limit)), el.lt(size, full_like(size, 1 / limit)))
    power = el.reduce_precision(el.clamp(full_like(size, kind.tiny), size, full_like(size, kind.max / 4)), kind.nexp, 0)
    return el.select(outside, power, full_like(size, 1))


def _spread(x: Any, like: Any) -> Any:
    """`x`, one number for each matrix or row of `like`, for each of its elements."""
    return broadcast_in_dim(x, like.shape, tuple(range(len(x.shape))))


def _finite(x: Any, rank: int) -> tuple[Any, Any]:
    """(`x`, zeros where anything in the last `rank` axes is not finite: iterations need not end there; where it is)."""
    batch = len(x.shape) - rank
    finite = reduce_and(el.eq(el.sub(x, x), full_like(x, 0)), tuple(range(batch, len(x.shape))))
    return el.select(broadcast_in_dim(finite, x.shape, tuple(range(batch))), x, full_like(x, 0)), finite


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


@factorization("ormqr")
def _ormqr(eqn: Eqn, a: Any, taus: Any, c: Any) -> Any:
    k, (m, n), left, whole = taus.shape[-1], c.shape[-2:], eqn.params["left"], is_complex(c)
    if not k:
        return c
    name = "unmqr" if whole else "ormqr"
    work = _work(name, c, n if left else m, k)["work"]
    trans = "N" if not eqn.params["transpose"] else "C" if whole else "T"
    packed = matrix_transpose(slice_in_dim(a, 0, k, axis=last(a)))
    size = a.shape[-2]
    # LAPACK writes to the reflections, though it puts back what was there.
    _, out, _ = _call(name, [packed, taus, matrix_transpose(c)],
                      ["L" if left else "R", trans, m, n, k, (0, 0), size, 1, (1, 2), m, work, work[1], 2],
                      [((k, size), c.dtype), ((n, m), c.dtype), ((), _I32)])
    return matrix_transpose(out)


@factorization("eigh_tridiagonal")
def _eigh_tridiagonal(eqn: Eqn, d: Any, e: Any) -> Any:
    n, vectors = d.shape[-1], eqn.params["vectors"]
    if n == 1:
        return [d, expand_dims(full_like(d, 1), (last(d),))][:1 + vectors]
    d, e = (expand_dims(v, (last(v),)) for v in (d, e))  # so that the batch is all but the last two axes
    (d, fine), (e, also) = _finite(d, 2), _finite(e, 2)
    work = _work("stevd", d, n, n, int(vectors))
    size = n if vectors else 1
    arguments = ["V" if vectors else "N", n, (0, 0), (1, 1), 2, size, work["work"], work["work"][1], work["iwork"],
                 work["iwork"][1], 3]
    w, _, v, info = _call("stevd", [d, e], arguments, [((n,), d.dtype), ((n - 1,), d.dtype), ((size, size), d.dtype),
                                                       ((), _I32)])
    return [_where_ok(info, out, el.and_(fine, also)) for out in ([w, matrix_transpose(v)] if vectors else [w])]


@factorization("hessenberg")
def _hessenberg(eqn: Eqn, x: Any) -> Any:
    n = x.shape[-1]
    work = _work("gehrd", x, n, n)["work"]
    packed, taus, _ = _call("gehrd", [matrix_transpose(x)], [n, 1, n, (0, 0), n, 1, work, work[1], 2],
                            [((n, n), x.dtype), ((n - 1,), x.dtype), ((), _I32)])
    return [matrix_transpose(packed), taus]


@factorization("tridiagonal")
def _tridiagonal(eqn: Eqn, x: Any) -> Any:
    n, real = x.shape[-1], real_type(x.dtype)
    name = "hetrd" if is_complex(x) else "sytrd"
    work = _work(name, x, n, n)["work"]
    packed, d, e, taus, _ = _call(
        name, [matrix_transpose(x)], ["L" if eqn.params["lower"] else "U", n, (0, 0), n, 1, 2, 3, work, work[1], 4],
        [((n, n), x.dtype), ((n,), real), ((n - 1,), real), ((n - 1,), x.dtype), ((), _I32)])
    return [matrix_transpose(packed), d, e, taus]


@factorization("schur")
def _schur(eqn: Eqn, x: Any) -> Any:
    n, vectors = x.shape[-1], eqn.params["compute_schur_vectors"]
    work = _work("gees", x, n, n)
    safe, finite = _finite(x, 2)
    values = [2] if is_complex(x) else [2, 3]
    place = values[-1] + 1
    size = n if vectors else 1
    # It calls the function SELECT only to sort.
    arguments = ["V" if vectors else "N", "N", "N", n, (0, 0), n, 1, *values, place, size, work["work"],
                 work["work"][1], *([work["rwork"]] if is_complex(x) else []), work["bwork"], place + 1]
    outs = _call("gees", [matrix_transpose(safe)], arguments, [
        ((n, n), x.dtype), ((), _I32), *[((n,), x.dtype)] * len(values), ((size, size), x.dtype), ((), _I32)])
    return [_where_ok(outs[-1], matrix_transpose(out), finite) for out in (outs[0], outs[-2])[:1 + vectors]]


# ---------------------------------------------------------------- equations


@factorization("tridiagonal_solve")
def _tridiagonal_solve(eqn: Eqn, dl: Any, d: Any, du: Any, b: Any) -> Any:
    n, k = b.shape[-2:]
    if eqn.params["perturb_singular"]:
        return perturbed_p.program(dl, d, du, b)
    if n == 1:
        d = expand_dims(d, (last(b),))
        return el.select(broadcast_to(el.eq(d, full_like(d, 0)), b.shape), full_like(b, _nan(b.dtype)), el.div(b, d))
    if not is_complex(b) and b.size > n:  # in vectors: across right sides and matrices
        return tridiagonal_substitution_p.program(*[*tridiagonal_factors_p.program(dl, d, du), b])
    dl, d, du = (expand_dims(v, (last(d),)) for v in (dl, d, du))
    operands = [slice_in_dim(dl, 1, n, axis=last(d)), d, slice_in_dim(du, 0, n - 1, axis=last(d)), matrix_transpose(b)]
    *_, out, info = _call("gtsv", operands, [n, k, (0, 0), (1, 1), (2, 2), (3, 3), n, 4], [
        ((n - 1,), b.dtype), ((n,), b.dtype), ((n - 1,), b.dtype), ((k, n), b.dtype), ((), _I32)])
    return _where_ok(info, matrix_transpose(out))


@factorization("tridiagonal_factors")
def _tridiagonal_factors(eqn: Eqn, dl: Any, d: Any, du: Any) -> Any:
    return tridiagonal_factors_p.program(dl, d, du)


@factorization("tridiagonal_substitution")
def _tridiagonal_substitution(eqn: Eqn, *operands: Any) -> Any:
    return tridiagonal_substitution_p.program(*operands)


@factorization("sylvester")
def _sylvester(eqn: Eqn, a: Any, ta: Any, u: Any, b: Any, tb: Any, v: Any, c: Any) -> Any:
    (m, n), transposed = c.shape[-2:], eqn.params["transposed"]
    right = batch_matmul(batch_matmul(adjoint(u), conjugate(c) if transposed else c), v)
    trans = "C" if transposed and is_complex(c) else "T" if transposed else "N"
    out, scale, _ = _call("trsyl", [matrix_transpose(x) for x in (right, ta, tb)],
                          [trans, trans, 1, m, n, 1, m, 2, n, (0, 0), m, 1, 2],
                          [((n, m), c.dtype), ((), real_type(c.dtype)), ((), _I32)])
    scale = expand_dims(el.convert(scale, c.dtype), (last(c) - 1, last(c)))
    found = batch_matmul(batch_matmul(u, el.div(matrix_transpose(out), scale)), adjoint(v))
    return conjugate(found) if transposed else found


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
    with scope.loop(out.aval.size // size, "parallel") as row:
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
