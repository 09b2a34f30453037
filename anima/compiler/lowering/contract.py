"""Matrix products: large ones to `gemm`, all others to loops.

    dot_general a b, small, or of integers of 32 bits:                  reduce_sum(a * b, the contracted axis)
    dot_general a b, large f32, or bytes if there are instructions:     Call("gemm", ...)

The first rewrite happens before fusion, so that products of small matrices fuse with what is around them.
A transposed operand is a flag of `gemm` where its strides allow it, and a copy otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import numpy as np

from anima.compiler.ir.loops import Call, Const, Expr
from anima.compiler.lowering.array import scalar_type
from anima.compiler.lowering.calls import ProgramBuilder, call
from anima.compiler.lowering.matrices import CompilerPrimitive
from anima.compiler.lowering.thin import by_numbers, columns, of_points, sums
from anima.compiler.machine.target import Target
from anima.compiler.products import dots
from anima.compiler.rewriting.rewrites import rewrite
from anima.compiler.scheduling.reductions import UNROLLED
from anima.core import dtypes
from anima.core.avals import Shape, ShapedArray, row_major_strides
from anima.core.jaxpr import Atom, Eqn, Var
from anima.core.primitive import Work
from anima.ops import elementwise as el
from anima.ops.broadcast import broadcast_in_dim, full
from anima.ops.contract import dot_general_p, natural_dtype, working_dtype
from anima.ops.reduce import reduce_or_p
from anima.ops.shape import pad, reduce_sum_p, reshape, transpose, transpose_p
from anima.util import record

SMALL_PRODUCT = 4096     # multiplications, up to which a matrix product is done by loops
VECTOR_PRODUCT = 1 << 17  # of a product by a vector
FEW_NUMBERS = 16          # of the smaller matrix: they stay in registers
FEW_ROWS = 4              # for which the other matrix is read once more each, if its elements have to be made wider
_LEAST_BFLOATS = 32       # of rows or columns, and contracted, of products of bfloat16 by instructions for these
_LEAST_BYTES = 16         # contracted, of products of bytes by instructions for these
_GEMM = frozenset(("f32", "f64", "c64", "c128"))


@record
class Product:
    """A dot_general as batches of matrix products: axes of both operands, and extents."""

    left: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]   # batch, free and contracted axes
    right: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    batch: int
    m: int
    n: int
    k: int

    @classmethod
    def of(cls, x: ShapedArray, y: ShapedArray, dimension_numbers: Any) -> Product:
        (xc, yc), (xb, yb) = dimension_numbers
        pairs = sorted(zip(xc, yc, strict=True))  # the order of the contracted axes does not matter
        xc, yc = tuple(a for a, _ in pairs), tuple(b for _, b in pairs)
        xf = tuple(d for d in range(x.ndim) if d not in xc and d not in xb)
        yf = tuple(d for d in range(y.ndim) if d not in yc and d not in yb)

        def size(aval: ShapedArray, axes: Sequence[int]) -> int:
            return math.prod(aval.shape[a] for a in axes)

        return cls((tuple(xb), xf, xc), (tuple(yb), yf, yc), size(x, xb), size(x, xf), size(y, yf), size(x, xc))


# ---------------------------------------------------------------- by loops


def wants_loops(eqn: Eqn) -> bool:
    """Whether a product is better written as a sum of products."""
    x, y = (v.aval for v in eqn.invars)
    p = Product.of(x, y, eqn.params["dimension_numbers"])
    dtype = scalar_type(_work_aval(x, y, eqn.outvars[0].aval, p.k))
    if dtype not in _GEMM or 0 in (p.batch, p.k) or p.m == p.n == 1:
        return True
    if by_numbers(p.batch, p.m, p.n, p.k) is not None or of_points(p.m, p.n, p.k):
        return True
    work = p.m * p.n * p.k
    few, axes = (x, p.left) if p.m < p.n else (y, p.right)
    if wants_wider(eqn) and (min(p.m, p.n) == 1 or (min(p.m, p.n) <= FEW_ROWS and _contracts_last(few, axes))):
        return True  # so that the larger matrix is read as it is
    if 1 in (p.m, p.n):
        return work <= VECTOR_PRODUCT or min(max(p.m, p.n), p.k) <= UNROLLED or dtype in ("c64", "c128")
    return work <= SMALL_PRODUCT or min(p.m, p.n) * p.k <= FEW_NUMBERS


def points_first(eqn: Eqn) -> tuple[Eqn, ...]:
    """A product of a small matrix by points, `a @ x.T`, as `(x @ a.T).T`: in a loop, each point is a lane."""
    if eqn.primitive is not dot_general_p:
        return (eqn,)
    x, y = (v.aval for v in eqn.invars)
    p = Product.of(x, y, eqn.params["dimension_numbers"])
    if p.left[0] or not of_points(p.n, p.m, p.k):
        return (eqn,)
    (out,), few, many = eqn.outvars, len(p.left[1]), len(p.right[1])
    turned = Var(out.aval.update(shape=(*out.aval.shape[few:], *out.aval.shape[:few])))
    contracted, batch = eqn.params["dimension_numbers"]
    numbers = (contracted[::-1], batch[::-1])
    permutation = (*range(many, many + few), *range(many))
    return (eqn.replace(invars=eqn.invars[::-1], outvars=[turned], params={**eqn.params, "dimension_numbers": numbers}),
            Eqn(transpose_p, [turned], [out], {"permutation": permutation}, eqn.source))


def _contracts_last(x: ShapedArray, axes: tuple[tuple[int, ...], ...]) -> bool:
    """Whether the contracted axes of an operand are its last ones, in order."""
    return list(axes[2]) == list(range(x.ndim - len(axes[2]), x.ndim))


def _work_aval(x: ShapedArray, y: ShapedArray, out: ShapedArray, k: int = 0) -> ShapedArray:
    """The type in which terms are multiplied and added; for products by `gemm` of matrices whose rows have `k` elements
    one of floats, where these are exact."""
    exact = _exact_float(x.dtype, y.dtype, k) if k else None
    if exact is not None:
        return out.update(dtype=exact)
    return out.update(dtype=working_dtype(natural_dtype(x.dtype, y.dtype), out.dtype))


def _exact_float(x: Any, y: Any, k: int) -> np.dtype | None:
    """A type of floats in which all sums of `k` products of such small integers are numbers; None if there is none."""
    if not all(isinstance(d, np.dtype) and d.kind in "iu" and d.itemsize <= 2 for d in (x, y)):
        return None
    most = k * math.prod(max(-int(np.iinfo(d).min), int(np.iinfo(d).max)) for d in (x, y))
    return np.dtype(np.float32) if most <= 1 << 24 else np.dtype(np.float64) if most <= 1 << 53 else None


def wants_wider(eqn: Eqn) -> bool:
    """Whether the operands of a product by `gemm` are to be converted first."""
    x, y = (v.aval for v in eqn.invars)
    out = eqn.outvars[0].aval
    work = _work_aval(x, y, out, Product.of(x, y, eqn.params["dimension_numbers"]).k).dtype
    return x.dtype != work or y.dtype != work or out.dtype != work


@rewrite("dot_general", where=lambda eqn, target: (wants_bytes(eqn, target) or wants_bfloats(eqn, target) or
                                                   wants_loops(eqn) or wants_wider(eqn)))
def _product(eqn: Eqn, target: Target, x: Any, y: Any) -> Any:
    """The product by loops, or of the type that `gemm` takes, in terms of other operations."""
    if wants_bfloats(eqn, target):
        return _tiled_product(eqn, x, y)
    if wants_bytes(eqn, target):
        return _tiled_product(eqn, x, y) if dots.has_tiles(target) else _shifted_product(eqn, x, y, dots.kinds(target))
    out = eqn.outvars[0].aval
    numbers = eqn.params["dimension_numbers"]
    product = Product.of(x.aval, y.aval, numbers)
    if wants_loops(eqn):
        work = _work_aval(x.aval, y.aval, out).dtype
        x, y = el.convert(x, work), el.convert(y, work)
        way = None if work == np.bool_ else by_numbers(product.batch, product.m, product.n, product.k)
        total = _sum_of_products(x, y, product) if way is None else _by_numbers(x, y, product, way)
        return el.convert(total, out.dtype)
    work = _work_aval(x.aval, y.aval, out, product.k).dtype
    x, y = el.convert(x, work), el.convert(y, work)
    total = dot_general_p.bind(x, y, dimension_numbers=numbers, precision=None, preferred_element_type=None)
    if dtypes.issubdtype(out.dtype, np.integer):  # of which narrower types take the last bits
        total = el.convert(total, np.dtype(np.int32 if work == np.float32 else np.int64))
    return el.convert(total, out.dtype)


def _sum_of_products(x: Any, y: Any, p: Product) -> Any:
    """`sum over k of x[b, i, k] * y[b, j, k]`, laid out so that the innermost loop runs along y's last axis;
    y is the matrix where the other one is a vector, or has few rows."""
    if p.n == 1 < p.m or (p.n <= FEW_ROWS < p.m and p.m * p.n * p.k > SMALL_PRODUCT and not of_points(p.m, p.n, p.k)):
        turned = _sum_of_products(y, x, Product(p.right, p.left, p.batch, p.n, p.m, p.k))
        nb, nm, nn = len(p.left[0]), len(p.left[1]), len(p.right[1])
        return transpose(turned, (*range(nb), *range(nb + nn, nb + nn + nm), *range(nb, nb + nn)))
    xs = [[x.shape[a] for a in axes] for axes in p.left]
    ys = [[y.shape[a] for a in axes] for axes in p.right]
    last = max((d for d, n in enumerate(y.shape) if n != 1), default=-1)
    rows = last in p.right[2] or p.n == 1
    space = (*xs[0], *xs[1], *ys[1], *xs[2]) if rows else (*xs[0], *xs[1], *xs[2], *ys[1])
    nb, nm, nn, nk = len(xs[0]), len(xs[1]), len(ys[1]), len(xs[2])
    free = nb + nm if rows else nb + nm + nk
    contracted = nb + nm + nn if rows else nb + nm
    x_place = {**dict(zip(p.left[0], range(nb), strict=True)), **dict(zip(p.left[1], range(nb, nb + nm), strict=True)),
               **dict(zip(p.left[2], range(contracted, contracted + nk), strict=True))}
    y_place = {**dict(zip(p.right[0], range(nb), strict=True)),
               **dict(zip(p.right[1], range(free, free + nn), strict=True)),
               **dict(zip(p.right[2], range(contracted, contracted + nk), strict=True))}
    terms = el.and_ if x.dtype == dtypes.bool_ else el.mul
    product = terms(_spread(x, space, x_place), _spread(y, space, y_place))
    axes = tuple(range(contracted, contracted + nk))
    if not axes:
        return product
    return (reduce_or_p if x.dtype == dtypes.bool_ else reduce_sum_p).bind(product, axes=axes)


def _by_numbers(x: Any, y: Any, p: Product, way: str) -> Any:
    """Such a sum by the numbers of the operands, in the order of `dot_general`."""
    nb = len(p.left[0])
    shape = [v.shape[a] for v, axes in ((x, p.left[0]), (x, p.left[1]), (y, p.right[1])) for a in axes]
    if way == "sums":
        x = reshape(transpose(x, (*p.left[0], *p.left[2], *p.left[1])), (p.k, p.m))
        y = reshape(transpose(y, (*p.right[0], *p.right[2], *p.right[1])), (p.k, p.n))
        return reshape(sums(x, y), shape)
    turned = p.m < p.n  # the small matrix is the left one
    (many, points), (few, small) = ((p.right, y), (p.left, x)) if turned else ((p.left, x), (p.right, y))
    batch, free = shape[:nb], [points.shape[a] for a in many[1]]
    points = reshape(transpose(points, (*many[0], *many[1], *many[2])), (*batch, *free, p.k))
    small = reshape(transpose(small, (*few[0], *few[1], *few[2])), (*batch, min(p.m, p.n), p.k))
    return reshape(columns(points, small, nb, nb if turned else nb + len(free)), shape)


def _spread(x: Any, space: Shape, place: dict[int, int]) -> Any:
    """An operand as an array over the whole space, its axis `a` at `place[a]`."""
    order = sorted(range(len(x.shape)), key=lambda a: place[a])
    if order != list(range(len(order))):
        x = transpose(x, tuple(order))
    return broadcast_in_dim(x, space, tuple(place[a] for a in order))


# ---------------------------------------------------------------- of bytes


def wants_bytes(eqn: Eqn, target: Target) -> bool:
    """Whether a product is one of matrices of bytes, for which a machine has instructions."""
    x, y = (v.aval for v in eqn.invars)
    p, out = Product.of(x, y, eqn.params["dimension_numbers"]), eqn.outvars[0].aval.dtype
    return (bool(dots.kinds(target)) and _is_byte(x.dtype) and _is_byte(y.dtype) and p.batch > 0
            and min(p.m, p.n) > 1 and p.k >= _LEAST_BYTES and p.m * p.n * p.k > SMALL_PRODUCT
            and ((dtypes.issubdtype(out, np.integer) and out.itemsize <= 4) or p.k * 255 * 255 < 1 << 31))


def wants_bfloats(eqn: Eqn, target: Target) -> bool:
    """Whether a product is one of matrices of bfloat16, for which a machine has instructions."""
    x, y = (v.aval for v in eqn.invars)
    p, out = Product.of(x, y, eqn.params["dimension_numbers"]), eqn.outvars[0].aval.dtype
    return (dots.has_bfloat_tiles(target) and x.dtype == y.dtype == dtypes.bfloat16 and p.batch > 0
            and out in (dtypes.bfloat16, np.float32) and min(max(p.m, p.n), p.k) >= _LEAST_BFLOATS
            and not wants_loops(eqn))


def _is_byte(dtype: Any) -> bool:
    return dtype in (np.int8, np.uint8)


class TileProduct(CompilerPrimitive):
    """A product of stacks of matrices of bytes, or of bfloat16, as tiles are read: rows of x, and of y or
    its transpose, are contiguous, and what is contracted is padded with zeros to whole rows of tiles."""

    def infer(self, x: ShapedArray, y: ShapedArray, *, transposed: bool) -> ShapedArray:
        dtype = np.dtype(np.float32 if x.dtype == dtypes.bfloat16 else np.int32)
        return ShapedArray((*x.shape[:2], y.shape[1 if transposed else 2]), dtype)

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             **params: Any) -> Work:
        return Work(2.0 * outs[0].size * avals[0].shape[-1])

    def eval(self, x: np.ndarray, y: np.ndarray, *, transposed: bool) -> np.ndarray:
        work = np.float32 if x.dtype == dtypes.bfloat16 else np.int32
        x, y = x.astype(work), y.astype(work)
        return np.matmul(x, y.swapaxes(1, 2) if transposed else y)


tile_product_p = TileProduct("tile_product")


def _tiled_product(eqn: Eqn, x: Any, y: Any) -> Any:
    """The product of bytes by tiles."""
    p, out = Product.of(x.aval, y.aval, eqn.params["dimension_numbers"]), eqn.outvars[0].aval
    transposed = _contracts_last(y.aval, p.right)
    x = _stack(x, (*p.left[0], *p.left[1], *p.left[2]), (p.batch, p.m, p.k), 2)
    batch, free, contracted = p.right
    y = (_stack(y, (*batch, *free, *contracted), (p.batch, p.n, p.k), 2) if transposed else
         _stack(y, (*batch, *contracted, *free), (p.batch, p.k, p.n), 1))
    return el.convert(reshape(tile_product_p.bind(x, y, transposed=transposed), out.shape), out.dtype)


def _stack(x: Any, order: Sequence[int], shape: Shape, contracted: int) -> Any:
    """An operand as a stack of matrices, its axes in that order, with the contracted one padded."""
    x = reshape(x if list(order) == list(range(len(order))) else transpose(x, order), shape)
    more = -shape[contracted] % (dots.WORD * dots.TILE // x.dtype.itemsize)
    return pad(x, full((), 0, x.dtype), [(0, more if d == contracted else 0, 0) for d in range(3)]) if more else x


@call("tile_product")
def _tile_product(builder: ProgramBuilder, eqn: Eqn) -> None:
    numbers = (((2,), (2 if eqn.params["transposed"] else 1,)), ((0,), (0,)))
    x, y = eqn.invars
    _by_bytes(builder, x, y, eqn.outvars[0], Product.of(x.aval, y.aval, numbers))


def _shifted_product(eqn: Eqn, x: Any, y: Any, kinds: Collection[str]) -> Any:
    """The product of bytes as one of these kinds: with x = x' + c and y = y' + d for numbers c and d,

        sum of x * y  =  sum of x' * y'  +  c * sum of y  +  d * sum of x'          modulo 2**32
    """
    numbers, out = eqn.params["dimension_numbers"], eqn.outvars[0].aval
    p = Product.of(x.aval, y.aval, numbers)
    own = _kind(x.aval, y.aval)
    kind = own if own in kinds else min(kinds)
    new_x, c = _shifted(x, kind[:2])
    new_y, d = _shifted(y, kind[2:])
    total = dot_general_p.bind(new_x, new_y, dimension_numbers=numbers, precision=None,
                               preferred_element_type=np.dtype(np.int32))
    batch, rows = len(p.left[0]), len(p.left[1])
    if c:
        place = (*range(batch), *range(batch + rows, len(out.shape)))
        total = el.add(total, _sums(y, p.right, c, out.shape, place))
    if d:
        total = el.add(total, _sums(new_x, p.left, d, out.shape, tuple(range(batch + rows))))
    return el.convert(total, out.dtype)


def _kind(*operands: ShapedArray) -> str:
    if operands[0].dtype == dtypes.bfloat16:
        return dots.BFLOAT
    return "".join("u8" if aval.dtype == np.uint8 else "i8" for aval in operands)


def _shifted(x: Any, kind: str) -> tuple[Any, int]:
    """Bytes as such of another kind, and the number that is missing in these: 128, if there was no sign."""
    if _kind(x.aval) == kind:
        return x, 0
    turned = el.xor(el.bitcast_convert_type(x, np.dtype(np.uint8)), full(x.shape, 128, np.dtype(np.uint8)))
    dtype, missing = (np.int8, 128) if kind == "i8" else (np.uint8, -128)
    return el.bitcast_convert_type(turned, np.dtype(dtype)), missing


def _sums(x: Any, axes: tuple[Sequence[int], ...], factor: int, shape: Shape, place: Sequence[int]) -> Any:
    """The sums over the contracted axes, times a number, as an array of that shape whose axes at `place` are x's."""
    batch, free, contracted = axes
    wide = np.dtype(np.int32)
    x = el.convert(transpose(x, (*batch, *free, *contracted)), wide)
    kept = len(batch) + len(free)
    total = reduce_sum_p.bind(x, axes=tuple(range(kept, len(x.shape))))
    return broadcast_in_dim(el.mul(total, full(total.shape, factor, wide)), shape, tuple(place))


def _by_bytes(builder: ProgramBuilder, x: Atom, y: Atom, out: Var, p: Product) -> None:
    """The call of `gemm` for matrices of words of four bytes along what is contracted."""
    words = -(-p.k * x.aval.dtype.itemsize // dots.WORD)
    a = _words(builder, x, *p.left, p.m, p.k)
    b = _words(builder, y, *p.right, p.n, p.k)
    b_trans = "N" if b.trans == "T" else "T"
    builder.emit(Call("gemm", (_kind(x.aval, y.aval), a.trans, b_trans, p.m, p.n, words, 1.0, a.buffer, 0, a.ld,
                               b.buffer, 0, b.ld, 0.0, builder.result(out), 0, p.n, p.batch, a.stride, b.stride,
                               p.m * p.n)))


def _words(builder: ProgramBuilder, operand: Atom, batch: Shape, rows: Shape, contracted: Shape, m: int,
           k: int) -> Matrix:
    """The operand as matrices of words, rows by words; where bytes are not next to each other, or some are missing at
    the end, a copy of their transposes: bytes of neighbours are then loaded at once."""
    shape = operand.aval.shape
    strides = row_major_strides(shape)
    step, row, column = (_merged(shape, strides, axes) for axes in (batch, rows, contracted))
    size = dots.WORD // operand.aval.dtype.itemsize
    words = -(-k // size)
    if column == 1 and row is not None and step is not None and not any(n % size for n in (k, row, step)):
        return Matrix(builder.memory(operand), max(row, k) // size, "N", step // size)
    buffer = builder.temp("i32", math.prod(shape[a] for a in batch) * words * m)
    source = builder.memory(operand)
    dtype = scalar_type(operand.aval)
    axes = batch, rows, contracted
    for first, count, present in ((0, k // size, size), (k // size, min(k % size, 1), k % size)):
        if count:
            _pack_words(builder, source, dtype, buffer, shape, axes, (first, count, present, words))
    return Matrix(buffer, m, "T", words * m)


def _pack_words(builder: ProgramBuilder, source: str, dtype: str, buffer: str, shape: Shape,
                axes: tuple[Shape, Shape, Shape], which: tuple[int, int, int, int]) -> None:
    """A nest that writes `count` words from the first one, of `present` elements each, of all `words` of the rows."""
    batch, rows, contracted = axes
    first, count, present, words = which
    bits = 16 if dtype == "bf16" else 8
    size = 8 * dots.WORD // bits
    scope, strides = builder.scope(), row_major_strides(shape)
    ix = scope.ix
    with ExitStack() as stack:
        outer = [stack.enter_context(scope.loop(shape[a], "each")) for a in batch]
        word = stack.enter_context(scope.loop(count, "each"))
        inner = [stack.enter_context(scope.loop(shape[a], "each")) for a in rows]
        start = ix.zero
        for i, a in zip((*outer, *inner), (*batch, *rows), strict=True):
            start = ix.add(start, ix.scale(i, strides[a]))
        number = ix.offset(word, first)
        value: Expr | None = None
        for t in range(present):
            parts = ix.unflatten(ix.offset(ix.scale(number, size), t), [shape[a] for a in contracted])
            at = start
            for i, a in zip(parts, contracted, strict=True):
                at = ix.add(at, ix.scale(i, strides[a]))
            part = scope.load(source, at, dtype)
            part = scope.op("bitcast", (part,), "u16") if bits == 16 else part
            part = scope.op("and", (scope.cast(part, "i32"), Const(2**bits - 1, "i32")), "i32")
            part = scope.op("shift_left", (part, Const(bits * t, "i32")), "i32") if t else part
            value = part if value is None else scope.op("or", (value, part), "i32")
        assert value is not None
        target = ix.flatten((*outer, number, *inner), (*(shape[a] for a in batch), words, *(shape[a] for a in rows)))
        scope.store(buffer, target, value)
    builder.kernel("pack", scope)


# ---------------------------------------------------------------- by gemm


@record
class Matrix:
    """A stack of matrices in a buffer: leading dimension, "N" or "T", and the step to the next one."""

    buffer: str
    ld: int
    trans: str
    stride: int


@call("dot_general")
def _dot_general(builder: ProgramBuilder, eqn: Eqn) -> None:
    x, y = eqn.invars
    p = Product.of(x.aval, y.aval, eqn.params["dimension_numbers"])
    out = eqn.outvars[0]
    if out.aval.size == 0:
        return
    dtype = scalar_type(out.aval)
    if dtype == "i32":
        _by_bytes(builder, x, y, out, p)
        return
    assert dtype in _GEMM and p.k > 0, "left to `rewrite`"
    a = _matrix(builder, x, p.left[0], p.left[1], p.left[2], p.m, p.k)
    b = _matrix(builder, y, p.right[0], p.right[2], p.right[1], p.k, p.n)
    builder.emit(Call("gemm", (dtype, a.trans, b.trans, p.m, p.n, p.k, 1.0, a.buffer, 0, a.ld, b.buffer, 0, b.ld,
                               0.0, builder.result(out), 0, p.n, p.batch, a.stride, b.stride, p.m * p.n)))


def _matrix(builder: ProgramBuilder, operand: Atom, batch: Shape, rows: Shape, columns: Shape, m: int,
            n: int) -> Matrix:
    """The operand as matrices, rows and columns running over the given axes; copied if strides do not allow it."""
    shape = operand.aval.shape
    strides = row_major_strides(shape)
    step = _merged(shape, strides, batch)
    row, column = _merged(shape, strides, rows), _merged(shape, strides, columns)
    buffer = builder.memory(operand)
    if step is not None and row is not None and column is not None:
        if (column == 1 or n == 1) and (row >= n or m == 1):
            return Matrix(buffer, max(row, n, 1) if m > 1 else max(n, 1), "N", step)
        if (row == 1 or m == 1) and (column >= m or n == 1):
            return Matrix(buffer, max(column, m, 1) if n > 1 else max(m, 1), "T", step)
    return Matrix(_packed(builder, operand, (*batch, *rows, *columns)), n, "N", m * n)


def _merged(shape: Shape, strides: Sequence[int], axes: Shape) -> int | None:
    """The step of one index that runs over several axes in order; None if there is none."""
    real = [a for a in axes if shape[a] != 1]
    if any(strides[a] != shape[b] * strides[b] for a, b in pairwise(real)):
        return None
    return strides[real[-1]] if real else 0


def _packed(builder: ProgramBuilder, operand: Atom, order: Shape) -> str:
    """A copy of the operand with its axes in another order."""
    aval = operand.aval
    shape = tuple(aval.shape[a] for a in order)
    buffer = builder.temp(scalar_type(aval), aval.size)
    scope = builder.scope()
    strides = row_major_strides(aval.shape)
    ix = scope.ix
    with ExitStack() as stack:
        index = [stack.enter_context(scope.loop(n, "each")) for n in shape]
        source = ix.zero
        for i, a in zip(index, order, strict=True):
            source = ix.add(source, ix.scale(i, strides[a]))
        value = scope.load(builder.memory(operand), source, scalar_type(aval))
        scope.store(buffer, ix.flatten(index, shape), value)
    builder.kernel("pack", scope)
    return buffer

