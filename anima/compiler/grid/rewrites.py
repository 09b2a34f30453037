"""What a grid of threads computes by other operations than one core does: what is done in order there.

    cumsum[axis=0] x: f32[4096]      ->   sums of 256 pieces of 16, how much is before each, running sums of pieces
    sort x: f32[1000000]             ->   eight times: count digits of 4 bits, running sums, move by digit
    scatter-add of 1000000 updates   ->   sort by place; sums of the runs of pieces; those of runs that go on in the
                                          next piece as another 62,500; one sum for each place is added

Methods: Blelloch, Prefix sums and their applications (1990); Satish, Harris and Garland, "Designing efficient sorting
algorithms for manycore GPUs" (2009). Which sums are made depends on sizes and on indices alone, never on threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima.compiler.grid.pieces import (
    DIGIT,
    PIECE,
    RUN,
    count_digits_p,
    move_by_digit_p,
    pieces,
    running_p,
    runs_p,
)
from anima.compiler.grid.target import SHORT, GridTarget
from anima.compiler.machine.target import Target
from anima.compiler.rewriting.rewrites import rewrite
from anima.config import enable_x64
from anima.control.scan import scan
from anima.core import dtypes
from anima.core.avals import Shape
from anima.core.jaxpr import Eqn
from anima.ops import elementwise as el
from anima.ops.broadcast import broadcast_in_dim, broadcasted_iota, full, reduce_sum
from anima.ops.gather import (
    GatherScatterMode,
    ScatterDimensionNumbers,
    scatter_add_p,
    scatter_max_p,
    scatter_min_p,
    scatter_mul_p,
    scatter_p,
    window_sizes,
)
from anima.ops.index_types import narrow_index
from anima.ops.reduce import cummax_p, cummin_p, cumprod_p, cumsum_p, reduce_max, reduce_min, reduce_prod
from anima.ops.shape import concatenate, moveaxis, pad, reshape, slice_in_dim, transpose
from anima.ops.sort import take_along

FEW = 32    # elements whose running sums one thread makes
EACH = 32   # elements for each thread that keeps a grid busy, of which running sums are made one by one
PART = 64   # one thread does up to a 64th of as many updates of single elements as keep a grid busy

_I32, _U32 = np.dtype(np.int32), np.dtype(np.uint32)
_WIDER = {np.dtype(np.float32): np.dtype(np.float64), np.dtype(np.complex64): np.dtype(np.complex128)}
_CUMULATIVE: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "cumsum": (cumsum_p, "add", reduce_sum), "cumprod": (cumprod_p, "mul", reduce_prod),
    "cummax": (cummax_p, "max", reduce_max), "cummin": (cummin_p, "min", reduce_min)}
_SCATTERS = {"scatter": (scatter_p, ""), "scatter-add": (scatter_add_p, "add"), "scatter-mul": (scatter_mul_p, "mul"),
             "scatter-min": (scatter_min_p, "min"), "scatter-max": (scatter_max_p, "max")}


def _is_long(axis: str, short: int) -> Callable[[Eqn, Target], bool]:
    """Whether an equation is about an axis that is long, and rows that are not so many that each has a thread."""
    def where(eqn: Eqn, target: Target) -> bool:
        aval = eqn.invars[0].aval
        n = aval.shape[eqn.params[axis]]
        return isinstance(target, GridTarget) and n > 0 and target.is_long(n, aval.size // n, short)
    return where


def _neutral(op: str, dtype: np.dtype) -> np.ndarray:
    """What changes nothing."""
    if op in ("add", "mul"):
        zero = -0.0 if dtypes.issubdtype(dtype, np.inexact) else 0
        return np.asarray(1 if op == "mul" else zero).astype(dtype)
    if dtypes.issubdtype(dtype, np.inexact):
        return np.asarray(-np.inf if op == "max" else np.inf).astype(dtype)
    if dtype == np.bool_:
        return np.asarray(op == "min")
    ends = dtypes.iinfo(dtype)
    return np.asarray(ends.min if op == "max" else ends.max, dtype)


def _is_small_float(dtype: Any) -> bool:
    return bool(dtypes.issubdtype(dtype, np.floating)) and dtype.itemsize <= 2


# ---------------------------------------------------------------- running sums


def _cumulative(name: str) -> Callable[..., Any]:
    primitive, op, reduce = _CUMULATIVE[name]

    def program(eqn: Eqn, target: GridTarget, x: Any) -> Any:
        """Each by itself, if they are few; or in pieces: what is before each, and then along each."""
        axis, reverse, dtype, shape = eqn.params["axis"], eqn.params["reverse"], x.dtype, x.shape
        x = el.convert(x, np.dtype(np.float32)) if _is_small_float(dtype) else x  # rounded once, in the end
        wide = _WIDER.get(x.dtype, x.dtype) if op == "add" else x.dtype
        n, inner = shape[axis], math.prod(shape[axis + 1:])
        x = reshape(x, (math.prod(shape[:axis]), n, inner))
        whole = _one_by_one if x.size * n <= EACH * target.at_once else _in_pieces
        with enable_x64(True):  # sums are made in 64 bits whatever users may have
            return el.convert(reshape(whole(x, primitive, op, reduce, wide, reverse), shape), dtype)

    return program


def _one_by_one(x: Any, primitive: Any, op: str, reduce: Callable[..., Any], wide: np.dtype, reverse: bool) -> Any:
    outer, n, inner = x.shape
    shape = (outer, n, n, inner)
    this, other = (broadcasted_iota(_I32, shape, d) for d in (1, 2))
    counts = el.ge(other, this) if reverse else el.le(other, this)
    every = el.convert(broadcast_in_dim(x, shape, (0, 2, 3)), wide)
    return reduce(el.select(counts, every, full(shape, _neutral(op, wide))), (2,))


def _in_pieces(x: Any, primitive: Any, op: str, reduce: Callable[..., Any], wide: np.dtype, reverse: bool) -> Any:
    outer, n, inner = x.shape
    count = pieces(n, PIECE)
    missing = count * PIECE - n
    ends = (missing, 0, 0) if reverse else (0, missing, 0)
    padded = pad(x, _neutral(op, x.dtype), [(0, 0, 0), ends, (0, 0, 0)])
    totals = reduce(el.convert(reshape(padded, (outer, count, PIECE, inner)), wide), (2,))
    until = primitive.bind(totals, axis=1, reverse=reverse)
    nothing = full((outer, 1, inner), _neutral(op, wide))
    kept = slice_in_dim(until, 1, count, axis=1) if reverse else slice_in_dim(until, 0, count - 1, axis=1)
    before = concatenate([kept, nothing] if reverse else [nothing, kept], 1)
    found = running_p.bind(reshape(padded, (outer * count, PIECE, inner)), reshape(before, (outer * count, inner)),
                           op=op, reverse=reverse)
    start = missing if reverse else 0
    return slice_in_dim(reshape(found, (outer, count * PIECE, inner)), start, start + n, axis=1)


for _name in _CUMULATIVE:
    rewrite(_name, where=_is_long("axis", FEW), again=True)(_cumulative(_name))


# ---------------------------------------------------------------- sorting


def _ascending(x: Any) -> list[tuple[Any, range]]:
    """Unsigned integers, the first foremost, in the order of `x`, and which of their bits count: NaN last, -0 as 0."""
    if dtypes.issubdtype(x.dtype, np.complexfloating):
        return [*_ascending(el.real(x)), *_ascending(el.imag(x))]
    if x.dtype == np.bool_:
        return [(el.convert(x, _U32), range(1))]
    bits = dtypes.itemsize_bits(x.dtype)
    if not dtypes.issubdtype(x.dtype, np.floating):
        low = int(dtypes.iinfo(x.dtype).min)
        if bits < 32:
            x = el.sub(el.convert(x, _I32), full(x.shape, np.asarray(low, _I32)))
            return [(el.convert(x, _U32), range(bits))]
        unsigned = np.dtype(f"uint{bits}")
        top = full(x.shape, np.asarray(-low, unsigned))
        return [(el.xor(el.bitcast_convert_type(x, unsigned), top) if low else x, range(bits))]
    wide = el.convert(x, np.dtype(np.float32)) if bits < 32 else x
    unsigned = np.dtype(f"uint{8 * wide.dtype.itemsize}")
    top = full(x.shape, np.asarray(1 << (8 * wide.dtype.itemsize - 1), unsigned))
    zero = full(x.shape, np.asarray(0, wide.dtype))
    raw = el.bitcast_convert_type(el.select(el.eq(wide, zero), zero, wide), unsigned)
    ordered = el.select(el.ge(raw, top), el.not_(raw), el.xor(raw, top))
    last = full(x.shape, np.asarray(np.iinfo(unsigned).max, unsigned))
    low = 0 if bits >= 32 else 23 - min(dtypes.finfo(x.dtype).nmant, 10)  # what is below is 0 in small floats
    return [(el.select(el.ne(wide, wide), last, ordered), range(low, 8 * wide.dtype.itemsize))]


def _moved(keys: Any, places: Any, bits: range) -> tuple[Any, Any]:
    """Rows of keys and their places in the order of some bits of the keys."""
    def by_digit(both: Any, shift: Any) -> Any:
        until = cumsum_p.bind(count_digits_p.bind(both[0], shift), axis=1, reverse=False)
        return move_by_digit_p.bind(*both, until, shift)

    def by_two(both: Any, shifts: Any) -> tuple[Any, None]:  # and so back to where they were
        return by_digit(by_digit(both, shifts[0]), shifts[1]), None

    count = pieces(len(bits), 2 * DIGIT)
    start = min(bits.start, keys.dtype.itemsize * 8 - 2 * DIGIT * count)
    shifts = np.asarray([(start + 2 * k * DIGIT, start + (2 * k + 1) * DIGIT) for k in range(count)], keys.dtype)
    return tuple(scan(by_two, [keys, places], shifts)[0])


@rewrite("sort", where=_is_long("dimension", SHORT), again=True)
def _sort(eqn: Eqn, target: Target, *xs: Any) -> Any:
    """By digits, the least of the last key first."""
    axis, count = eqn.params["dimension"], eqn.params["num_keys"]
    shape, n = xs[0].shape, xs[0].shape[axis]
    rows = (math.prod(shape) // n, n)
    order: Any = None
    for keys, bits in reversed([key for x in xs[:count] for key in _ascending(x)]):
        keys = reshape(moveaxis(keys, axis, len(shape) - 1), rows)
        if order is None:
            _, order = _moved(keys, broadcasted_iota(_I32, rows, 1), bits)
        else:
            _, order = _moved(take_along(keys, order, 1), order, bits)
    order = moveaxis(reshape(order, (*shape[:axis], *shape[axis + 1:], n)), len(shape) - 1, axis)
    return [take_along(x, order, axis) for x in xs]


# ---------------------------------------------------------------- scatter


def _meets_often(eqn: Eqn, target: Target) -> bool:
    """Whether updates of whole rows may meet, and are more than one thread had better do in order; and rows are not so
    long that each keeps a grid busy."""
    operand, indices, updates = (v.aval for v in eqn.invars)
    dims: ScatterDimensionNumbers = eqn.params["dimension_numbers"]
    if not isinstance(target, GridTarget) or eqn.params.get("unique_indices") or not operand.size:
        return False
    sizes = window_sizes(operand.ndim, updates.shape, dims)
    whole = all(sizes[d] == (1 if d in dims.scatter_dims_to_operand_dims else operand.shape[d])
                for d in range(operand.ndim) if d not in dims.operand_batching_dims)
    count, width = math.prod(indices.shape[:-1]), math.prod(sizes)
    least = SHORT if width > 1 else max(SHORT, target.at_once // PART)
    real = not dtypes.issubdtype(operand.dtype, np.complexfloating)
    return (whole and least < count < 1 << 31 and operand.size < 1 << 31 and width < target.at_once // 8
            and (real or eqn.primitive.name in ("scatter", "scatter-add", "scatter-mul")))


def _scattered(name: str) -> Callable[..., Any]:
    primitive, op = _SCATTERS[name]

    def program(eqn: Eqn, target: Target, x: Any, indices: Any, updates: Any) -> Any:
        """By places in order, so that each is written once."""
        dims: ScatterDimensionNumbers = eqn.params["dimension_numbers"]
        narrow = x.dtype if op and _is_small_float(x.dtype) else None
        if narrow is not None:
            x, updates = (el.convert(v, np.dtype(np.float32)) for v in (x, updates))
        named = [d for d in range(len(x.shape)) if d in (*dims.scatter_dims_to_operand_dims,
                                                         *dims.operand_batching_dims)]
        front = [*named, *(d for d in range(len(x.shape)) if d not in named)]
        sizes = [x.shape[d] for d in named]
        rows, count = math.prod(sizes), math.prod(indices.shape[:-1])
        flat = reshape(transpose(x, front), (rows, x.size // rows))
        batch = [d for d in range(len(updates.shape)) if d not in dims.update_window_dims]
        given = reshape(transpose(updates, (*batch, *dims.update_window_dims)), (count, flat.shape[1]))
        places = _places(indices, dims, x.shape, named, eqn.params["mode"].exact)
        keys, order = _moved(reshape(el.convert(places, _U32), (1, count)), broadcasted_iota(_I32, (1, count), 1),
                             range(rows.bit_length()))
        places = reshape(el.convert(keys, _I32), (count,))
        given = take_along(given, broadcast_in_dim(reshape(order, (count,)), given.shape, (0,)), 0)
        for written, values in _sums(places, given, op, rows):
            flat = primitive.bind(flat, reshape(written, (*written.shape, 1)), values, unique_indices=True,
                                  indices_are_sorted=False, mode=GatherScatterMode.FILL_OR_DROP,
                                  dimension_numbers=ScatterDimensionNumbers((1,), (0,), (0,)))
        found = transpose(reshape(flat, tuple(x.shape[d] for d in front)), np.argsort(front).tolist())
        return found if narrow is None else el.convert(found, narrow)

    return program


def _places(indices: Any, dims: ScatterDimensionNumbers, shape: Shape, named: Sequence[int],
            mode: GatherScatterMode) -> Any:
    """The number of the row that each update goes to; behind the last one for what goes nowhere."""
    batch = indices.shape[:-1]
    parts = {d: broadcasted_iota(_I32, batch, b)
             for d, b in zip(dims.operand_batching_dims, dims.scatter_indices_batching_dims, strict=True)}
    inside: Any = None
    for j, d in enumerate(dims.scatter_dims_to_operand_dims):
        index = reshape(slice_in_dim(narrow_index(indices), j, j + 1, axis=len(batch)), batch)
        low, high = (full(batch, np.asarray(n, _I32)) for n in (0, shape[d] - 1))
        parts[d] = el.clamp(low, index, high)
        if not mode.clips:
            here = el.eq(parts[d], index)
            inside = here if inside is None else el.and_(inside, here)
    place = full(batch, np.asarray(0, _I32))
    for d in named:
        place = el.add(el.mul(place, full(batch, np.asarray(shape[d], _I32))), parts[d])
    nowhere = full(batch, np.asarray(math.prod(shape[d] for d in named), _I32))
    return place if inside is None else el.select(inside, place, nowhere)


def _sums(places: Any, values: Any, op: str, nowhere: int) -> list[tuple[Any, Any]]:
    """The sums of rows that go to the same place, which are beside each other; without an operation, the last of them.

    A list of places and rows: each place is in it once, but for `nowhere`.
    """
    count, width = values.shape
    out = full((count,), np.asarray(nowhere, _I32))
    following = concatenate([slice_in_dim(places, 1, count), full((1,), np.asarray(-1, _I32))], 0)
    ends = el.ne(places, following)
    if not op:
        return [(el.select(ends, places, out), values)]
    length = RUN if count > SHORT else count
    number = pieces(count, length)
    padded = pad(places, np.asarray(nowhere, _I32), [(0, number * length - count, 0)])
    rows = reshape(padded, (number, length))
    goes_on = el.eq(rows, concatenate([slice_in_dim(rows, 0, 1, axis=1), slice_in_dim(rows, 0, length - 1, axis=1)], 1))
    neutral = _neutral(op, values.dtype)
    values = reshape(pad(values, neutral, [(0, number * length - count, 0), (0, 0, 0)]), (number, length, width))
    sums = runs_p.bind(values, goes_on, op=op)
    if number == 1:
        return [(el.select(ends, places, out), reshape(sums, (count, width)))]
    first = broadcast_in_dim(reshape(slice_in_dim(rows, 0, 1, axis=1), (number,)), rows.shape, (0,))
    last = broadcast_in_dim(reshape(slice_in_dim(rows, length - 1, length, axis=1), (number,)), rows.shape, (0,))
    # What is neither the first run nor the last one of a piece is complete.
    complete = el.and_(reshape(pad(ends, np.asarray(False), [(0, number * length - count, 0)]), rows.shape),
                       el.and_(el.ne(rows, first), el.ne(rows, last)))
    written = el.select(complete, rows, full(rows.shape, np.asarray(nowhere, _I32)))
    ending = el.sub(reduce_sum(el.convert(el.eq(rows, first), _I32), (1,)), full((number,), np.asarray(1, _I32)))
    one = take_along(sums, broadcast_in_dim(ending, (number, 1, width), (0,)), 1)
    alone = broadcast_in_dim(reshape(el.eq(slice_in_dim(first, 0, 1, axis=1), slice_in_dim(last, 0, 1, axis=1)),
                                     (number,)), (number, 1, width), (0,))
    other = el.select(alone, full(one.shape, neutral), slice_in_dim(sums, length - 1, length, axis=1))
    both = concatenate([slice_in_dim(first, 0, 1, axis=1), slice_in_dim(last, 0, 1, axis=1)], 1)
    more = _sums(reshape(both, (2 * number,)), reshape(concatenate([one, other], 1), (2 * number, width)), op, nowhere)
    return [(reshape(written, (number * length,)), reshape(sums, (number * length, width))), *more]


for _name in _SCATTERS:
    rewrite(_name, where=_meets_often, again=True)(_scattered(_name))
