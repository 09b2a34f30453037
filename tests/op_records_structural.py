"""Records of the operations that are not elementwise: moving, reducing, contracting, indexing, sorting.

References are written from the definitions, index by index where NumPy has no such function.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima.core import dtypes as dt
from anima.core.device import devices
from anima.core.mesh import AxisType, Mesh
from anima.core.partition import PartitionSpec
from anima.core.shardings import NamedSharding
from anima.ops import (
    broadcast as br,
    contract,
    elementwise as el,
    gather as ga,
    index,
    placing,
    reduce as rd,
    shape as sh,
    sort,
    threefry,
)
from tests.op_records import (
    ALL,
    BITS,
    CONSTANT,
    FLOATS,
    INEXACT,
    INTS,
    NUMBERS,
    ORDERED,
    Arg,
    Case,
    Record,
    special_values,
)

# ---------------------------------------------------------------- moving elements


def case(*shapes: tuple[int, ...], **params: Any) -> Case:
    """One application to operands of these shapes."""
    return Case(tuple(Arg(s) for s in shapes), params)


def built(shape: Sequence[int], dtype: np.dtype, element: Callable[..., Any]) -> np.ndarray:
    """The array whose element at index `i` is `element(i)`."""
    out = np.zeros(shape, dtype)
    for i in np.ndindex(*shape):
        out[i] = element(i)
    return out


def _broadcast(x: np.ndarray, shape: Any, broadcast_dimensions: Any) -> np.ndarray:
    return built(shape, x.dtype, lambda i: x[tuple(i[d] % n for d,
                                                   n in zip(broadcast_dimensions, x.shape, strict=True))])


def _pad(x: np.ndarray, value: np.ndarray, padding_config: Any) -> np.ndarray:
    def place(axis: int, i: int) -> int:
        lo, _, interior = padding_config[axis]
        at, rest = divmod(i - lo, interior + 1)
        return at if rest == 0 and 0 <= at < x.shape[axis] else -1

    shape = [lo + hi + n + max(n - 1, 0) * k for n, (lo, hi, k) in zip(x.shape, padding_config, strict=True)]

    def element(i: Any) -> Any:
        at = tuple(place(a, k) for a, k in enumerate(i))
        return value[()] if -1 in at else x[at]

    return built(shape, x.dtype, element)


def _slice(x: np.ndarray, start_indices: Any, limit_indices: Any, strides: Any) -> np.ndarray:
    return x[tuple(map(slice, start_indices, limit_indices, strides or [None] * x.ndim))]


def _bytes_as(x: np.ndarray, new_dtype: np.dtype) -> np.ndarray:
    shape = list(x.shape)
    if new_dtype.itemsize < x.dtype.itemsize:
        shape.append(x.dtype.itemsize // new_dtype.itemsize)
    elif new_dtype.itemsize > x.dtype.itemsize:
        shape.pop()
    return np.frombuffer(x.tobytes(), new_dtype).reshape(shape)


def _sized(kind: str, factor: float) -> Callable[[np.dtype], dict[str, Any]]:
    return lambda d: {"new_dtype": np.dtype(f"{kind}{round(8 * d.itemsize * factor)}")}


BYTES = INTS + FLOATS
MOVING = (
    Record(el.bitcast_convert_type_p, _bytes_as, (
        Case((Arg((2, 3)),), _sized("uint", 1)), Case((Arg(values=special_values),), _sized("int", 1), plain=False),
        Case((Arg((3,)),), _sized("int", 0.5), only=BYTES[1:4] + BYTES[5:]),
        Case((Arg((3, 2)),), _sized("uint", 2), only=tuple(d for d in BYTES if d[-2:] != "64")),
        Case((Arg((2, 2)),), _sized("float", 1), only=tuple(d for d in BYTES if d[-1] != "8")),
        Case((Arg((0, 4)),), _sized("int", 1))), BYTES, native=True, rejects=("bool", "complex64"), skip=CONSTANT),
    Record(br.broadcast_in_dim_p, _broadcast, (
        case((), shape=(2, 3), broadcast_dimensions=()), case((3,), shape=(2, 3), broadcast_dimensions=(1,)),
        case((2,), shape=(2, 3), broadcast_dimensions=(0,)), case((1, 3), shape=(2, 4, 3), broadcast_dimensions=(0, 2)),
        case((2, 3), shape=(2, 1, 3), broadcast_dimensions=(0, 2)), case((0,), shape=(2, 0), broadcast_dimensions=(1,)),
        case((1,), shape=(0, 3), broadcast_dimensions=(1,)), case((19,), shape=(3, 19), broadcast_dimensions=(1,)),
    ), ALL, complex_ulps=0),
    Record(sh.reshape_p, lambda x, new_sizes, dimensions: x.reshape(new_sizes), (
        case((2, 6), new_sizes=(3, 4), dimensions=None), case((6,), new_sizes=(1, 2, 3, 1), dimensions=None),
        case((1, 1), new_sizes=(), dimensions=None), case((), new_sizes=(1,), dimensions=None),
        case((0, 4), new_sizes=(2, 0, 7), dimensions=None)), ALL, complex_ulps=0),
    Record(sh.transpose_p, lambda x, permutation: np.transpose(x, permutation), (
        case((2, 3), permutation=(1, 0)), case((2, 3, 4), permutation=(2, 0, 1)), case((17, 5), permutation=(1, 0)),
        case((0, 3), permutation=(1, 0)), case((1, 2, 1), permutation=(1, 2, 0))), ALL, complex_ulps=0),
    Record(sh.rev_p, lambda x, dimensions: built(x.shape, x.dtype, lambda i: x[tuple(
        n - 1 - k if a in dimensions else k for a, (k, n) in enumerate(zip(i, x.shape, strict=True)))]), (
        case((7,), dimensions=(0,)), case((2, 3), dimensions=(1,)), case((2, 3), dimensions=(0, 1)),
        case((37,), dimensions=(0,)), case((0, 2), dimensions=(0,))), ALL, complex_ulps=0),
    Record(sh.squeeze_p, lambda x, dimensions: x.reshape([n for a, n in enumerate(x.shape) if a not in dimensions]), (
        case((1, 3), dimensions=(0,)), case((1, 3, 1), dimensions=(0, 2)), case((1,), dimensions=(0,)),
        case((1, 0), dimensions=(0,))), ALL, complex_ulps=0),
    Record(sh.slice_p, _slice, (
        case((7,), start_indices=(2,), limit_indices=(5,), strides=None),
        case((7,), start_indices=(1,), limit_indices=(7,), strides=(3,)),
        case((4, 5), start_indices=(1, 0), limit_indices=(3, 5), strides=(1, 2)),
        case((40,), start_indices=(3,), limit_indices=(39,), strides=None),
        case((4,), start_indices=(2,), limit_indices=(2,), strides=None)), ALL, complex_ulps=0),
    Record(sh.concatenate_p, lambda *xs, dimension: np.concatenate(xs, dimension), (
        case((2, 3), (1, 3), dimension=0), case((2, 3), (2, 1), (2, 2), dimension=1), case((0,), (3,), dimension=0),
        case((19,), (3,), (21,), dimension=0), case((2,), dimension=0)), ALL, complex_ulps=0),
    Record(sh.pad_p, _pad, (
        case((3,), (), padding_config=((1, 2, 0),)), case((3,), (), padding_config=((-1, 2, 1),)),
        case((2, 3), (), padding_config=((1, 0, 2), (0, -1, 0))),
                            case((2, 2), (), padding_config=((-1, -1, 0), (1, 1, 1))),
        case((4,), (), padding_config=((-2, -1, 2),)), case((0,), (), padding_config=((1, 1, 3),)),
        case((33,), (), padding_config=((2, 5, 0),))), ALL, complex_ulps=0),
    Record(br.iota_p, lambda dimension, dtype, shape: np.arange(shape[dimension]).reshape(
        [-1 if a == dimension else 1 for a in range(len(shape))]) * np.ones(shape, int), tuple(
        Case((), lambda d, s=s, a=a: {"dimension": a, "dtype": d, "shape": s})
        for s, a in (((5,), 0), ((2, 3), 0), ((2, 3), 1), ((0,), 0), ((37,), 0))), NUMBERS, complex_ulps=0),
)

# ---------------------------------------------------------------- placing


def _cut(axis_type: AxisType, shape: tuple[int, ...], **names: Any) -> Case:
    """Under a mesh of one device that cuts the first dimension; it is the parameter of the name that is given."""
    def params(dtype: np.dtype) -> dict[str, Any]:
        mesh = Mesh(np.array(devices()[:1]), ("x",), axis_types=(axis_type,))
        sharding = NamedSharding(mesh, PartitionSpec(*("x",)[: len(shape)]))
        return {name: (sharding,) if name == "devices" else sharding for name in names} | {
            name: value for name, value in names.items() if value is not None}

    return Case((Arg(shape),), params)


def _cuts(axis_type: AxisType, **names: Any) -> tuple[Case, ...]:
    return tuple(_cut(axis_type, shape, **names) for shape in ((), (1,), (2, 3), (19,), (0, 3)))


PLACING = (
    Record(placing.sharding_constraint_p, lambda x, **params: x, _cuts(AxisType.Auto, sharding=None),
           ALL, complex_ulps=0),
    Record(placing.reshard_p, lambda x, **params: x, _cuts(AxisType.Explicit, dst_sharding=None), ALL, complex_ulps=0),
    Record(placing.device_put_p, lambda x, **params: [x], _cuts(
        AxisType.Auto, devices=None, srcs=(None,), copy_semantics=(None,)), ALL, complex_ulps=0),
)

# ---------------------------------------------------------------- reductions


def _rows(x: np.ndarray, axes: Any) -> tuple[np.ndarray, tuple[int, ...]]:
    """The elements that are combined with each other, as rows; the shape of the result."""
    kept = tuple(a for a in range(x.ndim) if a not in axes)
    shape = tuple(x.shape[a] for a in kept)
    return x.transpose(*kept, *axes).reshape(math.prod(shape), math.prod(x.shape[a] for a in axes)), shape


def folded(combine: Callable[[Any, Any], Any], start: Callable[[np.dtype], Any]) -> Callable[..., np.ndarray]:
    """A reduction one element at a time, from `start(dtype)`."""
    def reference(x: np.ndarray, axes: Any) -> np.ndarray:
        rows, shape = _rows(x, axes)
        first = np.array(start(x.dtype)).astype(x.dtype)[()]
        return np.array([functools.reduce(combine, row, first) for row in rows], x.dtype).reshape(shape)

    return reference


def running(combine: Callable[[Any, Any], Any]) -> Callable[..., np.ndarray]:
    """The reductions of all prefixes (suffixes if `reverse`)."""
    def reference(x: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
        lines = np.moveaxis(x, axis, -1)
        out = np.empty_like(lines)
        for i in np.ndindex(*lines.shape[:-1]):
            line = list(itertools.accumulate(lines[i][::-1] if reverse else lines[i], combine))
            out[i] = line[::-1] if reverse else line
        return np.moveaxis(out, -1, axis)

    return reference


def _log_add(x: Any, y: Any) -> Any:
    return np.log(np.exp(x) + np.exp(y)) if isinstance(x, np.complexfloating) else np.logaddexp(x, y)


def _key(v: Any) -> Any:
    return (v.real, v.imag) if isinstance(v, np.complexfloating) else v


def _largest(x: Any, y: Any) -> Any:
    return x if x != x else y if y != y else max(x, y, key=_key)


def _smallest(x: Any, y: Any) -> Any:
    return x if x != x else y if y != y else min(x, y, key=_key)


def _top(dtype: np.dtype) -> Any:
    return True if dtype.kind == "b" else dt.iinfo(dtype).max if dtype.kind in "iu" else np.inf


def _bottom(dtype: np.dtype) -> Any:
    return False if dtype.kind == "b" else dt.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def _position(better: Callable[[Any, Any], bool]) -> Callable[..., np.ndarray]:
    def reference(x: np.ndarray, axes: Any, index_dtype: np.dtype) -> np.ndarray:
        rows, shape = _rows(x, axes)

        def best(row: np.ndarray) -> int:
            at = 0
            for k, v in enumerate(row):
                if row[at] == row[at] and (v != v or better(v, row[at])):
                    at = k
            return at

        return np.array([best(r) for r in rows], index_dtype).reshape(shape)

    return reference


def reductions(low: float = -3, high: float = 3, distinct: bool = False, empty: bool = True) -> tuple[Case, ...]:
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((5,), (0,)), ((2, 3), (0,)), ((2, 3), (1,)), ((2, 3, 2), (0, 2)), ((2, 3), (0, 1)), ((2, 1), (1,)), ((2,), ())]
    cases = [Case((Arg(s, low, high, distinct=distinct),), {"axes": a}) for s, a in shapes]
    cases += [Case((Arg((37, 3), low, high, distinct=distinct),), {"axes": (0,)}, plain=False),
              Case((Arg((3, 131), low, high, distinct=distinct),), {"axes": (1,)}, plain=False)]
    if empty:
        cases += [Case((Arg((0, 3)),), {"axes": (0,)}), Case((Arg((0, 3)),), {"axes": (1,)})]
    return tuple(cases)


SPECIAL = Case((Arg(values=special_values),), {"axes": (0,)}, only=FLOATS[2:] + INTS, plain=False)
FINITE = Case((Arg(values=lambda d: special_values(d)[:-3]),), {"axes": (0,)}, only=FLOATS[2:], plain=False)


def along(low: float = -3, high: float = 3, distinct: bool = False) -> tuple[Case, ...]:
    cases = [Case((Arg(s, low, high, distinct=distinct),), {"axis": a, "reverse": r}, plain=n == 0 or n < 4)
             for s, a in (((5,), 0), ((2, 3), 0), ((2, 3), 1), ((1,), 0), ((0, 2), 0), ((67,), 0))
             for r in (False, True) for n in (math.prod(s) // 10,)]
    return tuple(cases)


def positions() -> tuple[Case, ...]:
    kinds = [np.dtype("int32"), np.dtype("int64"), np.dtype("uint8")]
    shapes: list[tuple[tuple[int, ...], int]] = [((5,), 0), ((2, 3), 0), ((2, 3), 1), ((3, 1), 1), ((0, 2), 1),
                                                 ((67,), 0)]
    cases = [Case((Arg(s, -2, 2),), {"axes": (a,), "index_dtype": kinds[k % 3]}) for k, (s, a) in enumerate(shapes)]
    specials = Case((Arg(values=special_values),), {"axes": (0,), "index_dtype": kinds[0]}, plain=False)
    finite = Case((Arg(values=lambda d: special_values(d)[:-1] if d.kind != "b" else [False, False, True, True]),),
                  {"axes": (0,), "index_dtype": kinds[0]}, plain=False)
    return (*cases, specials, finite)


REDUCTIONS = (
    Record(br.reduce_sum_p, folded(lambda a, b: a + b, lambda d: 0), reductions(0.5, 3), NUMBERS, ulps=24,
           complex_ulps=24),
    Record(rd.reduce_prod_p, folded(lambda a, b: a * b, lambda d: 1), reductions(0.5, 1.5), NUMBERS, ulps=80,
           complex_ulps=160),
    Record(rd.reduce_max_p, folded(_largest, _bottom), (*reductions(distinct=True), SPECIAL, FINITE), ALL,
           complex_ulps=0, native=True),
    Record(rd.reduce_min_p, folded(_smallest, _top), (*reductions(distinct=True), SPECIAL, FINITE), ALL,
           complex_ulps=0, native=True),
    Record(rd.reduce_and_p, folded(lambda a, b: a & b, lambda d: True if d.kind == "b" else ~np.zeros((), d)),
           reductions(-9, 9), BITS),
    Record(rd.reduce_or_p, folded(lambda a, b: a | b, lambda d: 0), reductions(-9, 9), BITS),
    Record(rd.reduce_xor_p, folded(lambda a, b: a ^ b, lambda d: 0), reductions(-9, 9), BITS),
    Record(rd.argmax_p, _position(lambda a, b: a > b), positions(), ORDERED, native=True),
    Record(rd.argmin_p, _position(lambda a, b: a < b), positions(), ORDERED, native=True),
    Record(rd.cumsum_p, running(lambda a, b: a + b), along(0.5, 2), NUMBERS, ulps=8, complex_ulps=16),
    Record(rd.cumprod_p, running(lambda a, b: a * b), along(0.5, 1.5), NUMBERS, ulps=80, complex_ulps=160),
    Record(rd.cummax_p, running(_largest), along(distinct=True), NUMBERS, complex_ulps=0, native=True),
    Record(rd.cummin_p, running(_smallest), along(distinct=True), NUMBERS, complex_ulps=0, native=True),
    Record(rd.cumlogsumexp_p, running(_log_add), along(0, 3), INEXACT, ulps=40, complex_ulps=80),
)

# ---------------------------------------------------------------- contraction


def _dot_general(x: np.ndarray, y: np.ndarray, dimension_numbers: Any, precision: Any,
                 preferred_element_type: Any) -> np.ndarray:
    (xc, yc), (xb, yb) = dimension_numbers
    if preferred_element_type is not None and x.dtype.kind in "iu":
        x, y = x.astype(preferred_element_type), y.astype(preferred_element_type)
    batch = [x.shape[a] for a in xb]
    summed = [x.shape[a] for a in xc]
    xo = [a for a in range(x.ndim) if a not in (*xc, *xb)]
    yo = [a for a in range(y.ndim) if a not in (*yc, *yb)]
    shape = batch + [x.shape[a] for a in xo] + [y.shape[a] for a in yo]

    def element(i: Any) -> Any:
        b, ix, iy = i[:len(batch)], i[len(batch):len(batch) + len(xo)], i[len(batch) + len(xo):]
        at_x, at_y = dict(zip([*xb, *xo], b + ix, strict=True)), dict(zip([*yb, *yo], b + iy, strict=True))
        total = np.zeros((), x.dtype)[()]
        for k in np.ndindex(*summed):
            at_x.update(zip(xc, k, strict=True))
            at_y.update(zip(yc, k, strict=True))
            total = total + x[tuple(at_x[a] for a in range(x.ndim))] * y[tuple(at_y[a] for a in range(y.ndim))]
        return total

    return built(shape, x.dtype, element)


def dots(*cases: tuple[tuple[int, ...], tuple[int, ...], Any]) -> tuple[Case, ...]:
    return tuple(Case((Arg(a, 0.5, 3), Arg(b, 0.5, 3)), {"dimension_numbers": n, "precision": None,
                                                        "preferred_element_type": None}) for a, b, n in cases)


CONTRACTIONS = (
    Record(contract.dot_general_p, _dot_general, (*dots(
        ((3,), (3,), (((0,), (0,)), ((), ()))), ((2, 3), (3, 4), (((1,), (0,)), ((), ()))),
        ((2, 3), (4, 3), (((1,), (1,)), ((), ()))), ((3, 2), (3,), (((0,), (0,)), ((), ()))),
        ((2, 2, 3), (2, 3, 2), (((2,), (1,)), ((0,), (0,)))), ((2, 3, 2), (3, 2, 2), (((1, 0), (0, 2)), ((), ()))),
        ((2,), (3,), (((), ()), ((), ()))), ((2, 0), (0, 3), (((1,), (0,)), ((), ()))),
        ((0, 2), (2, 3), (((1,), (0,)), ((), ()))), ((3, 2), (2, 3), (((), ()), ((0, 1), (1, 0)))),
                                                        ((), (), (((), ()), ((), ()))),
    ), Case((Arg((9, 18), 0.5, 3), Arg((18, 21), 0.5, 3)),
            {"dimension_numbers": (((1,), (0,)), ((), ())), "precision": None,
                                                   "preferred_element_type": None}, plain=False),
        Case((Arg((2, 3), 0.5, 3), Arg((3, 2), 0.5, 3)),
             {"dimension_numbers": (((1,), (0,)), ((), ())), "precision": None,
                                          "preferred_element_type": np.dtype("float64")}, only=FLOATS),
        Case((Arg((2, 3), -99, 99), Arg((3, 2), -99, 99)), {
            "dimension_numbers": (((1,), (0,)), ((), ())), "precision": None,
            "preferred_element_type": np.dtype("int64")}, only=("int8", "int16", "int32", "int64")),
    ), ALL, ulps=8, complex_ulps=16),
)

# ---------------------------------------------------------------- indexing

Mode = ga.GatherScatterMode


def _windows(shape: Sequence[int], indices: np.ndarray, sizes: Sequence[int], dims: Any, mode: Any) -> Any:
    """For each index vector (batch index, start of its window in the operand or None if it is left out)."""
    _, _, index_map, batching, indices_batching = dims
    for b in np.ndindex(*indices.shape[:-1]):
        start = [0] * len(shape)
        for j, d in enumerate(index_map):
            start[d] = int(indices[b][j])
        for d, k in zip(batching, indices_batching, strict=True):
            start[d] = b[k]
        inside = all(0 <= s <= n - w for s, n, w in zip(start, shape, sizes, strict=True))
        if mode in (Mode.CLIP, Mode.PROMISE_IN_BOUNDS):
            yield b, [min(max(s, 0), n - w) for s, n, w in zip(start, shape, sizes, strict=True)]
        else:
            yield b, start if inside else None


def _element_places(shape: Sequence[int], indices: np.ndarray, sizes: Sequence[int], dims: Any, mode: Any) -> Any:
    """Pairs (index in the gather's result or the scatter's updates, index in the operand or None)."""
    window_dims, single = dims[0], {*dims[1], *dims[3]}
    kept = [d for d in range(len(shape)) if d not in single]
    rank = indices.ndim - 1 + len(window_dims)
    for b, start in _windows(shape, indices, sizes, dims, mode):
        for w in np.ndindex(*(sizes[d] for d in kept)):
            offset, batch = dict(zip(window_dims, w, strict=True)), iter(b)
            place = tuple(offset[a] if a in offset else next(batch) for a in range(rank))
            inner = dict(zip(kept, w, strict=True))
            yield place, None if start is None else tuple(s + inner.get(d, 0) for d, s in enumerate(start))


def _gather(x: np.ndarray, indices: np.ndarray, dimension_numbers: Any, slice_sizes: Any, mode: Any, fill_value: Any,
            **hints: Any) -> np.ndarray:
    places = list(_element_places(x.shape, indices, slice_sizes, dimension_numbers, mode))
    kept = [n for d, n in enumerate(slice_sizes) if d not in {*dimension_numbers[1], *dimension_numbers[3]}]
    window, batch = iter(kept), iter(indices.shape[:-1])
    rank = indices.ndim - 1 + len(kept)
    out = np.zeros([next(window) if a in dimension_numbers[0] else next(batch) for a in range(rank)], x.dtype)
    for place, at in places:
        out[place] = fill_value if at is None else x[at]
    return out


def _scatter(combine: Callable[[Any, Any], Any]) -> Callable[..., np.ndarray]:
    def reference(x: np.ndarray, indices: np.ndarray, updates: np.ndarray, dimension_numbers: Any, mode: Any,
                  **hints: Any) -> np.ndarray:
        out, window = x.copy(), iter(dimension_numbers[0])
        single = {*dimension_numbers[1], *dimension_numbers[3]}
        sizes = [1 if d in single else updates.shape[next(window)] for d in range(x.ndim)]
        for place, at in _element_places(x.shape, indices, sizes, dimension_numbers, mode):
            if at is not None:
                out[at] = combine(out[at], updates[place])
        return out

    return reference


GATHERS: list[tuple[tuple[int, ...], Any, tuple[Any, ...], tuple[int, ...]]] = [  # operand, indices, numbers, sizes
    ((5,), [[0], [3], [3], [-1], [7]], ((), (0,), (0,)), (1,)),
    ((4, 3), [[2], [0]], ((1,), (0,), (0,)), (1, 3)),
    ((4, 3), [[1, 2], [3, 0], [5, 1]], ((), (0, 1), (0, 1)), (1, 1)),
    ((4, 5), [[1, 2], [3, 4], [-1, 0]], ((1, 2), (), (0, 1)), (2, 2)),
    ((3, 4), [[[0], [2]], [[1], [1]]], ((0,), (1,), (1,)), (3, 1)),
    ((2, 5), [[[4], [0]], [[1], [9]]], ((), (1,), (1,), (0,), (0,)), (1, 1)),
    ((3,), np.zeros((0, 1)), ((), (0,), (0,)), (1,)),
]


def gathers() -> tuple[Case, ...]:
    out = []
    for k, (shape, at, numbers, sizes) in enumerate(GATHERS):
        for mode in (Mode.CLIP, Mode.FILL_OR_DROP) if k < 4 else (Mode.FILL_OR_DROP,):
            fill = 7 if mode is Mode.FILL_OR_DROP else None
            out.append(Case((Arg(shape), Arg(values=at, dtype="int32")), {
                "dimension_numbers": ga.GatherDimensionNumbers(*numbers), "slice_sizes": sizes, "mode": mode,
                "fill_value": fill, "unique_indices": False, "indices_are_sorted": False}))
    wild = [[0], [2], [255], [128], [3]]
    out.append(Case((Arg((4,)), Arg(values=wild, dtype="uint8")), {
        "dimension_numbers": ga.GatherDimensionNumbers((), (0,), (0,)), "slice_sizes": (1,),
        "mode": Mode.FILL_OR_DROP, "fill_value": 1, "unique_indices": False, "indices_are_sorted": False}, plain=False))
    return tuple(out)


def scatters(low: float = -3, high: float = 3, distinct: bool = False, unique: bool = False) -> tuple[Case, ...]:
    out = []
    for k, (shape, at, numbers, sizes) in enumerate(GATHERS):
        at = np.array(at, int)
        if unique and k in (0, 4):
            continue  # they name an element twice
        single = {*numbers[1], *(numbers[3] if len(numbers) > 3 else ())}
        window, batch = iter([n for d, n in enumerate(sizes) if d not in single]), iter(at.shape[:-1])
        rank = at.ndim - 1 + len(numbers[0])
        updates = tuple(next(window) if a in numbers[0] else next(batch) for a in range(rank))
        modes = (Mode.CLIP, Mode.FILL_OR_DROP) if k < 4 and not unique else (Mode.FILL_OR_DROP,)
        out += [Case((Arg(shape, low, high, distinct=distinct), Arg(values=at, dtype="int32"),
                      Arg(updates, low + 0.1, high + 0.1, distinct=distinct)), {
            "dimension_numbers": ga.ScatterDimensionNumbers(*numbers), "mode": mode, "unique_indices": unique,
            "indices_are_sorted": False}) for mode in modes]
    return tuple(out)


def _start(shape: Sequence[int], sizes: Sequence[int], indices: Sequence[Any]) -> list[slice]:
    starts = [min(max(int(i), 0), n - s) for n, s, i in zip(shape, sizes, indices, strict=True)]
    return [slice(a, a + s) for a, s in zip(starts, sizes, strict=True)]


def _dynamic_slice(x: np.ndarray, *indices: np.ndarray, slice_sizes: Any) -> np.ndarray:
    return x[tuple(_start(x.shape, slice_sizes, indices))]


def _dynamic_update_slice(x: np.ndarray, update: np.ndarray, *indices: np.ndarray) -> np.ndarray:
    out = x.copy()
    out[tuple(_start(x.shape, update.shape, indices))] = update
    return out


def at(*indices: int, dtype: str = "int32") -> tuple[Arg, ...]:
    return tuple(Arg(values=i, dtype=dtype) for i in indices)


INDEXING = (
    Record(index.dynamic_slice_p, _dynamic_slice, (
        Case((Arg((7,)), *at(2)), {"slice_sizes": (3,)}), Case((Arg((7,)), *at(6)), {"slice_sizes": (3,)}),
        Case((Arg((7,)), *at(-4)), {"slice_sizes": (2,)}), Case((Arg((3, 4)), *at(1, 2)), {"slice_sizes": (1, 2)}),
        Case((Arg((3, 4)), *at(1, 200, dtype="uint8")), {"slice_sizes": (2, 4)}), Case((Arg(()),), {"slice_sizes": ()}),
        Case((Arg((4,)), *at(1, dtype="int64")), {"slice_sizes": (0,)}),
        Case((Arg((40,)), *at(5)), {"slice_sizes": (33,)}, plain=False)), ALL, complex_ulps=0, rejects=()),
    Record(index.dynamic_update_slice_p, _dynamic_update_slice, (
        Case((Arg((7,)), Arg((3,)), *at(2))), Case((Arg((7,)), Arg((3,)), *at(6))),
                                                                 Case((Arg((7,)), Arg((2,)), *at(-4))),
        Case((Arg((3, 4)), Arg((1, 2)), *at(1, 2))), Case((Arg((3, 4)), Arg((2, 4)), *at(1, 200, dtype="uint8"))),
        Case((Arg((4,)), Arg((0,)), *at(1, dtype="int64"))),
        Case((Arg((40,)), Arg((33,)), *at(5)), plain=False)), ALL, complex_ulps=0, rejects=()),
    Record(ga.gather_p, _gather, gathers(), ALL, complex_ulps=0),
    Record(ga.scatter_p, _scatter(lambda old, new: new), scatters(), ALL, complex_ulps=0),
    Record(ga.scatter_add_p, _scatter(lambda old, new: old + new), scatters(0.5, 3), NUMBERS, ulps=2, complex_ulps=4),
    Record(ga.scatter_mul_p, _scatter(lambda old, new: old * new), (*scatters(0.5, 2, unique=True),), NUMBERS,
           ulps=2, complex_ulps=8),
    Record(ga.scatter_min_p, _scatter(_smallest), scatters(distinct=True), ORDERED, native=True,
           rejects=()),
    Record(ga.scatter_max_p, _scatter(_largest), scatters(distinct=True), ORDERED, native=True,
           rejects=()),
)

# ---------------------------------------------------------------- sorting, random bits


def _order(v: Any) -> tuple[Any, ...]:
    """A key by which Python sorts: NaN last, complex numbers by their parts, -0 equal to 0."""
    if isinstance(v, np.complexfloating):
        return (*_order(v.real), *_order(v.imag))
    return (v != v, 0 if v != v else v)


def _sort(*xs: np.ndarray, dimension: int, is_stable: bool, num_keys: int) -> list[np.ndarray]:
    outs = [np.empty_like(np.moveaxis(x, dimension, -1)) for x in xs]
    lines = [np.moveaxis(x, dimension, -1) for x in xs]
    for i in np.ndindex(*outs[0].shape[:-1]):
        rows = list(zip(*(line[i] for line in lines), strict=True))
        rows.sort(key=lambda row: tuple(_order(v) for v in row[:num_keys]))
        for k, out in enumerate(outs):
            out[i] = [row[k] for row in rows]
    return [np.moveaxis(o, -1, dimension) for o in outs]


def _top_k(x: np.ndarray, k: int, axis: int) -> list[np.ndarray]:
    lines = np.moveaxis(x, axis, -1)
    places = np.empty((*lines.shape[:-1], k), np.int32)
    for i in np.ndindex(*lines.shape[:-1]):
        def descending(j: int, i: Any = i) -> Any:
            v = lines[i][j]
            if v.dtype.kind in "biu":
                return -int(v)
            return (v == v, -v if v == v else 0, bool(np.signbit(v)) if v == v else False)

        places[i] = sorted(range(lines.shape[-1]), key=descending)[:k]
    places = np.moveaxis(places, -1, axis)
    return [np.take_along_axis(x, places, axis), places]


def sorts(*shapes: tuple[tuple[int, ...], int], operands: int = 1, num_keys: int = 1) -> tuple[Case, ...]:
    return tuple(Case((Arg(s, -3, 3, distinct=True),) * num_keys + (Arg(s, -9, 9),) * (operands - num_keys), {
        "dimension": a, "is_stable": True, "num_keys": num_keys}) for s, a in shapes)


def _threefry(k1: np.ndarray, k2: np.ndarray, x1: np.ndarray, x2: np.ndarray) -> list[np.ndarray]:
    """Threefry-2x32 with 20 rounds on Python's integers, as in the paper."""
    words = np.broadcast_arrays(k1, k2, x1, x2)
    outs = [np.zeros(words[0].shape, np.uint32) for _ in range(2)]
    mask = 0xFFFFFFFF
    for i in np.ndindex(*words[0].shape):
        key0, key1, a, b = (int(w[i]) for w in words)
        keys = [key0, key1, key0 ^ key1 ^ 0x1BD11BDA]
        a, b = a + keys[0] & mask, b + keys[1] & mask
        for rotation, turn in zip((13, 15, 26, 6, 17, 29, 16, 24) * 3, range(20), strict=False):
            a = a + b & mask
            b = (b << rotation | b >> 32 - rotation) & mask ^ a
            if turn % 4 == 3:
                n = turn // 4 + 1
                a, b = a + keys[n % 3] & mask, b + keys[(n + 1) % 3] + n & mask
        outs[0][i], outs[1][i] = a, b
    return outs


WORDS = (0, 2**32 - 1)
SORTING = (
    Record(sort.sort_p, _sort, (
        *sorts(((5,), 0), ((2, 3), 0), ((2, 3), 1), ((0,), 0), ((1,), 0), ((2, 0), 1)), *sorts(((67,), 0)),
        *sorts(((5,), 0), ((2, 4), 1), operands=2), *sorts(((4,), 0), operands=3, num_keys=2),
        Case((Arg(values=special_values),), {"dimension": 0, "is_stable": True, "num_keys": 1}, plain=False),
        Case((Arg(values=[2, 1, 2, 1, 0, 2]), Arg(values=[0, 1, 2, 3, 4, 5], dtype="int32")), {
            "dimension": 0, "is_stable": True, "num_keys": 1}, plain=False)), ALL, complex_ulps=0, native=True),
    Record(sort.top_k_p, _top_k, (
        *(Case((Arg(s, -3, 3, distinct=True),), {"k": k, "axis": a}) for s, k, a in (
            ((5,), 2, 0), ((2, 4), 3, 1), ((3, 2), 1, 0), ((4,), 0, 0), ((3,), 3, 0), ((67,), 5, 0))),
        Case((Arg(values=special_values),), {"k": 2, "axis": 0}, plain=False),
        Case((Arg(values=lambda d: special_values(d)[:-1] if d.kind != "b" else [True, False]),), {"k": 2, "axis": 0},
             plain=False),
        Case((Arg(values=[2, 1, 2, 1, 0, 2]),), {"k": 4, "axis": 0}, plain=False)), ORDERED, native=True,
        rejects=()),
    Record(threefry.threefry2x32_p, _threefry, tuple(
        Case(tuple(Arg(s, *WORDS) for s in shapes)) for shapes in (
            ((),) * 4, ((3,),) * 4, ((), (), (5,), (5,)), ((2, 1), (2, 1), (1, 3), (1, 3)), ((0,),) * 4,
                                                                   ((131,),) * 4)),
        ("uint32",)),
)

STRUCTURAL = MOVING + PLACING + REDUCTIONS + CONTRACTIONS + INDEXING + SORTING
