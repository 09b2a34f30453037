"""Windows: the elements under a frame that moves over an array, summed or compared, and the derivatives of that.

    >>> lax.reduce_window(jnp.array([1., 5., 2., 4.]), -jnp.inf, lax.max, (2,), (2,), "VALID")
    Array([5., 4.], dtype=float32)

A window has `window_dimensions` elements, `window_dilation` apart; it moves by `window_strides` over the operand with
`base_dilation - 1` gaps between its elements and `padding` around them. Sums are linear, and their adjoint is a sum
over windows too. An extreme follows the first element that attains it: `select_and_gather_add` fetches the tangent
from there, `select_and_scatter_add` takes the cotangent back. To compile, a window is slices of the array combined;
a long one combines shorter ones, so that n elements cost about log n.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from anima.core import dtypes
from anima.core.avals import Shape, ShapedArray, max_dim, tangent_aval
from anima.core.dims import Dim
from anima.core.primitive import LARGE, Linear, Work, Zero
from anima.core.trace import aval_of
from anima.ops import elementwise as ew, reference as ref
from anima.ops.composite import Composite
from anima.ops.family import ARRAY, INEXACT, NUMBER, WIDER, constant, is_kind
from anima.ops.gather import GatherScatterMode, ScatterDimensionNumbers, scatter_add
from anima.ops.reduce import largest, reduce_max, reduce_min, smallest
from anima.ops.shape import (
    batch_at_front,
    broadcast_in_dim,
    broadcasted_iota,
    expand_dims,
    pad,
    pad_p,
    reduce_sum,
    reshape,
    shape_of,
    slice as sliced,
    slice_in_dim,
    zeros,
)

__all__ = [
    "padtype_to_pads", "reduce_window_max_p", "reduce_window_min_p", "reduce_window_shape_tuple",
    "reduce_window_sum_p", "select_and_gather_add_p", "select_and_scatter_add_p"]

RADIX = 8    # elements of the windows that longer ones are made of
TERMS = 16   # most elements along an axis, or windows over an element, that are written out
Arrays = list[Any]
Combine = Callable[[Arrays, Arrays], Arrays]


# ---------------------------------------------------------------- where windows are


def padtype_to_pads(in_shape: Sequence[int], window_shape: Sequence[int], window_strides: Sequence[int],
                    padding: str) -> list[tuple[int, int]]:
    """The padding (low, high) of each dimension that "VALID", "SAME" or "SAME_LOWER" stands for.

    With "SAME" there are as many windows as strides fit into the array; of an odd amount, the larger part
    is high ("SAME") or low ("SAME_LOWER").

    Raises:
      RuntimeError: for another string.
      ValueError: for strides that are not positive.
      TypeError: for a padding that is no string.
    """
    if not isinstance(padding, str):
        raise TypeError(f"Unknown padding type: {padding}.")
    kind = padding.upper()
    if kind == "VALID":
        return [(0, 0)] * len(in_shape)
    if kind not in ("SAME", "SAME_LOWER"):
        raise RuntimeError("Unrecognized padding type: expected 'VALID', 'SAME', or 'SAME_LOWER', "
                           f"got {padding}.")
    if any(stride < 1 for stride in window_strides):
        raise ValueError(f"window_strides must be positive, got {tuple(window_strides)}.")
    pads = []
    for n, window, stride in zip(in_shape, window_shape, window_strides, strict=True):
        total = max_dim((-(-n // stride) - 1) * stride + window - n, 0)
        total = int(total) if isinstance(total, np.integer) else total
        pads.append((total // 2, total - total // 2) if kind == "SAME" else (total - total // 2, total // 2))
    return pads


def dilated(n: int, by: int) -> int:
    """The size of `n` elements `by` apart."""
    return (n - 1) * by + 1 if n else 0


def reduce_window_shape_tuple(operand_shape: Sequence[int], window_dimensions: Sequence[int],
                              window_strides: Sequence[int], padding: Sequence[tuple[int, int]],
                              base_dilation: Sequence[int] | None = None,
                              window_dilation: Sequence[int] | None = None) -> Shape:
    """How many windows fit, by dimension, for padding in numbers (see `padtype_to_pads`)."""
    ones = (1,) * len(operand_shape)
    out = []
    for n, window, stride, (low, high), apart, gap in zip(
            operand_shape, window_dimensions, window_strides, padding, base_dilation or ones,
            window_dilation or ones, strict=True):
        room = low + high + dilated(n, apart) - dilated(window, gap)
        out.append(max_dim(room // stride + 1, 0))
    return tuple(out)


def check_windows(name: str, shape: Shape, *, window_dimensions: Shape, window_strides: Shape,
                  padding: Sequence[tuple[int, int]], base_dilation: Shape, window_dilation: Shape) -> Shape:
    """The shape of the result; TypeError for windows that make no sense."""
    if len(window_dimensions) != len(shape):
        raise TypeError(f"{name} got the wrong number of window_dimensions for operand: got operand shape {shape} "
                        f"with window_dimensions {window_dimensions}.")
    given = {"window_dimensions": window_dimensions, "window_strides": window_strides,
             "base_dilation": base_dilation, "window_dilation": window_dilation}
    for what, values in (*given.items(), ("padding", padding)):
        if len(values) != len(shape):
            raise TypeError(f"{name} got inconsistent {what} and window_dimensions: got {what} {tuple(values)} and "
                            f"window_dimensions {window_dimensions}.")
    for what, values in given.items():
        if any(n < 1 for n in values):
            raise TypeError(f"{name} {what} must have every element be strictly positive, got {tuple(values)}.")
    return reduce_window_shape_tuple(shape, window_dimensions, window_strides, padding, base_dilation, window_dilation)


def _int(n: Any) -> int:
    return n if isinstance(n, Dim) else int(n)


def window_params(shape: Shape, window_dimensions: Sequence[int], window_strides: Sequence[int] | None = None,
                  padding: str | Sequence[tuple[int, int]] = "VALID", base_dilation: Sequence[int] | None = None,
                  window_dilation: Sequence[int] | None = None) -> dict[str, Any]:
    """The parameters of a primitive over windows, complete and checked."""
    ones = (1,) * len(window_dimensions)
    w: dict[str, Any] = {name: tuple(map(_int, ones if values is None else values)) for name, values in (
        ("window_dimensions", window_dimensions), ("window_strides", window_strides),
        ("base_dilation", base_dilation), ("window_dilation", window_dilation))}
    check_windows("reduce_window", shape, padding=[(0, 0)] * len(shape), **w)
    if isinstance(padding, str):
        padding = padtype_to_pads(shape, list(map(dilated, w["window_dimensions"], w["window_dilation"])),
                                  w["window_strides"], padding)  # of the elements as they are, not apart
    w["padding"] = tuple((_int(low), _int(high)) for low, high in padding)
    check_windows("reduce_window", shape, **w)
    return w


def led(w: dict[str, Any], at: int) -> dict[str, Any]:
    """The parameters with one more dimension, a batch, at `at`."""
    return {name: (*v[:at], (0, 0) if name == "padding" else 1, *v[at:]) for name, v in w.items()}


def _without(w: dict[str, Any], axis: int) -> dict[str, Any]:
    """The parameters without a dimension."""
    return {name: (*v[:axis], *v[axis + 1:]) for name, v in w.items()}


def is_padded(w: dict[str, Any]) -> bool:
    """Whether windows see elements that are not the operand's."""
    return any(map(any, w["padding"])) or any(n > 1 for n in w["base_dilation"])


def padding_config(w: dict[str, Any]) -> tuple[tuple[int, int, int], ...]:
    """Padding and base dilation as a parameter of `pad`."""
    return tuple((low, high, apart - 1) for (low, high), apart in zip(w["padding"], w["base_dilation"], strict=True))


def laid_out(x: Any, fill: Any, w: dict[str, Any]) -> Any:
    """The operand with its padding, over which windows move."""
    return pad(x, constant(fill, aval_of(x).dtype), padding_config(w)) if is_padded(w) else x


def taken_back(y: Any, w: dict[str, Any]) -> Any:
    """The adjoint of `laid_out` in its operand: the elements, without padding."""
    if not is_padded(w):
        return y
    core = pad(y, constant(0, aval_of(y).dtype), [(-low, -high, 0) for low, high in w["padding"]])
    return sliced(core, (0,) * len(core.shape), core.shape, w["base_dilation"])


def offsets(w: dict[str, Any]) -> Iterator[Shape]:
    """The positions of a window's elements from its first, in row-major order."""
    for place in np.ndindex(*w["window_dimensions"]):
        yield tuple(int(k) * gap for k, gap in zip(place, w["window_dilation"], strict=True))


def element_slices(out: Shape, start: Shape, w: dict[str, Any]) -> tuple[slice, ...]:
    """Of a laid out array: one element of each window, that at `start`."""
    return tuple(slice(k, k + (n - 1) * stride + 1, stride)
                 for k, n, stride in zip(start, out, w["window_strides"], strict=True))


# ---------------------------------------------------------------- windows as slices


def windowed(combine: Combine, xs: Arrays, w: dict[str, Any],
             total: Callable[[Any, Sequence[int]], Any] | None = None) -> Arrays:
    """Each window of laid out arrays combined, in row-major order, by an associative function of equal shapes.

    One axis after the other, the last one first. `total(x, axes)` does the same over whole axes of one array.
    """
    sizes, strides, gaps = w["window_dimensions"], w["window_strides"], w["window_dilation"]
    counts = [max_dim((n - dilated(size, gap)) // stride + 1, 0) for n, size, stride, gap in zip(
        shape_of(xs[0]), sizes, strides, gaps, strict=True)]
    whole = [axis for axis, count in enumerate(counts) if count == gaps[axis] == 1]
    if total is None or math.prod(sizes[axis] for axis in whole) <= TERMS:
        whole = []
    for axis in reversed(range(len(sizes))):
        size, stride, gap = sizes[axis], strides[axis], gaps[axis]
        if axis in whole:
            xs = [slice_in_dim(x, 0, size, axis=axis) for x in xs]
        elif size > TERMS and gap == 1 and (stride >= size or counts[axis] == 1):
            xs = _apart(combine, xs, axis, size, max(stride, size), counts[axis], total)
        else:
            xs = _along(combine, xs, axis, size, gap, stride, counts[axis])
    return [expand_dims(total(x, whole), whole) for x in xs] if total is not None and whole else xs


def _along(combine: Combine, xs: Arrays, axis: int, size: int, gap: int, stride: int, count: int) -> Arrays:
    """`count` windows of `size` elements along an axis: a few slices combined, of the array or of shorter windows."""
    def part(ys: Arrays, start: int) -> Arrays:
        return [slice_in_dim(y, start, start + (count - 1) * stride + 1, stride, axis) for y in ys]

    if size <= TERMS:
        parts = [part(xs, k * gap) for k in range(size)]
    else:
        whole, rest = divmod(size, RADIX)
        short = _along(combine, xs, axis, RADIX, gap, 1, (count - 1) * stride + 1 + (whole - 1) * RADIX * gap)
        parts = [_along(combine, short, axis, whole, RADIX * gap, stride, count)]
        parts += [part(xs, (whole * RADIX + k) * gap) for k in range(rest)]
    out = parts[0]
    for other in parts[1:]:
        out = combine(out, other)
    return out


def _apart(combine: Combine, xs: Arrays, axis: int, size: int, stride: int, count: int,
           total: Callable[[Any, Sequence[int]], Any] | None) -> Arrays:
    """Windows that do not overlap: an axis of their own for their elements, which are combined pair by pair."""
    def split(x: Any) -> Any:
        shape, length = shape_of(x), count * stride
        widths = [(0, length - n if d == axis else 0, 0) for d, n in enumerate(shape)]
        x = x if length == shape[axis] else pad(x, constant(0, x.dtype), widths)
        x = reshape(x, (*shape[:axis], count, stride, *shape[axis + 1:]))
        return slice_in_dim(x, 0, size, axis=axis + 1)

    ys = list(map(split, xs))
    if total is not None:
        return [total(y, (axis + 1,)) for y in ys]
    left: Arrays | None = None  # what comes after the pairs
    while size > 1:
        if size % 2:
            last = [slice_in_dim(y, size - 1, size, axis=axis + 1) for y in ys]
            left = last if left is None else combine(last, left)
        even, odd = ([slice_in_dim(y, k, size - size % 2, 2, axis + 1) for y in ys] for k in (0, 1))
        ys, size = combine(even, odd), size // 2
    ys = ys if left is None else combine(ys, left)
    return [reshape(y, (*shape_of(y)[:axis + 1], *shape_of(y)[axis + 2:])) for y in ys]


def _spread(combine: Combine, x: Any, fill: Any, axis: int, w: dict[str, Any]) -> Any | None:
    """The windows along an axis where they see few elements: each element given to the windows that have it.

    That is so where the axis is short, or where strides are 1 and the elements far apart. None elsewhere.
    """
    size, stride, apart, (low, high) = (w[name][axis] for name in (
        "window_dimensions", "window_strides", "base_dilation", "padding"))
    n, shape = shape_of(x)[axis], shape_of(x)
    count = (low + high + dilated(n, apart) - size) // stride + 1
    terms = n if n <= 2 else -(-size // apart)
    if w["window_dilation"][axis] > 1 or size == 1 or terms > TERMS or (n > 2 and (stride > 1 or apart == 1)):
        return None
    total: Any = None
    for k in range(terms):
        if n <= 2:  # the windows that have element k
            first = max(-(-(k * apart + low - size + 1) // stride), 0)
            wide = max(min((k * apart + low) // stride + 1, count) - first, 0)
            part = slice_in_dim(x, k, k + 1, axis=axis)
            term = broadcast_in_dim(part, (*shape[:axis], wide, *shape[axis + 1:]), range(len(shape)))
        else:  # each element, k elements before the last one of the windows that end within `apart` of it
            wide, first = min(apart, size - k * apart), low - size + 1 + k * apart
            inner = (*shape[:axis + 1], wide, *shape[axis + 1:])
            term = broadcast_in_dim(x, inner, [d + (d > axis) for d in range(len(shape))])
            gaps = [(0, apart - wide if d == axis + 1 else 0, 0) for d in range(len(inner))]
            term = pad(term, constant(fill, term.dtype), gaps) if wide < apart else term
            term, wide = reshape(term, (*shape[:axis], n * apart, *shape[axis + 1:])), n * apart
        widths = [(first, count - first - wide, 0) if d == axis else (0, 0, 0) for d in range(len(shape))]
        term = pad(term, constant(fill, term.dtype), widths)
        total = term if total is None else combine([total], [term])[0]
    return total


# ---------------------------------------------------------------- sums and extremes


def lowest(dtype: Any) -> Any:
    """What is no more than any number; complex ones are ordered by real parts, those of equal ones by the others."""
    return _in_parts(smallest(dtype), dtype)


def highest(dtype: Any) -> Any:
    """What is no less than any number."""
    return _in_parts(largest(dtype), dtype)


def _in_parts(value: Any, dtype: Any) -> Any:
    return complex(value, value) if dtype in dtypes.COMPLEX else value


class WindowReduction(Composite):
    """Combines the elements of each window; `combine` is its operation on NumPy arrays, `identity` its neutral one."""

    large = LARGE >> 2

    def __init__(self, name: str, operation: Any, combine: Callable[..., Any], accepts: tuple[type, ...],
                 identity: Callable[[Any], Any], total: Callable[[Any, Sequence[int]], Any]):
        super().__init__(name)
        self.operation, self.combine, self.accepts = operation, combine, accepts
        self.identity, self.total = identity, total

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             **params: Any) -> Work:
        return Work(float(outs[0].size * max(math.prod(params["window_dimensions"]) - 1, 0)))

    def infer(self, x: ShapedArray, **w: Any) -> ShapedArray:
        if not is_kind(x.dtype, self.accepts):
            kind = "number" if self.accepts is NUMBER else "number or bool"
            raise TypeError(f"operand to {self.name} must have a {kind} dtype, got {dtypes.name(x.dtype)}")
        return ShapedArray(check_windows(self.name, x.shape, **w), x.dtype, x.weak_type)

    def eval(self, x: np.ndarray, **w: Any) -> np.ndarray:
        out = reduce_window_shape_tuple(x.shape, **w)
        if 0 in out:
            return np.empty(out, x.dtype)
        wide = x.astype(_EXACT.get(x.dtype, x.dtype) if self.operation is ew.add else WIDER.get(x.dtype, x.dtype))
        total = laid_out_numpy(wide, self.identity(x.dtype), w)
        for axis, (count, size, stride, gap) in enumerate(zip(
                out, w["window_dimensions"], w["window_strides"], w["window_dilation"], strict=True)):
            before, reach = (slice(None),) * axis, (count - 1) * stride + 1
            total = functools.reduce(self.combine, (
                total[(*before, slice(k * gap, k * gap + reach, stride))] for k in range(size)))
        return total.astype(x.dtype)

    def program(self, x: Any, **w: Any) -> Any:
        aval = aval_of(x)
        out = reduce_window_shape_tuple(aval.shape, **w)
        if 0 in out:
            return zeros(ShapedArray(out, aval.dtype))

        def combine(a: Arrays, b: Arrays) -> Arrays:
            return [self.operation.bind(a[0], b[0])]

        y, fill = ew.convert(x, WIDER.get(aval.dtype, aval.dtype)), self.identity(aval.dtype)
        for axis in reversed(range(aval.ndim)):
            spread = _spread(combine, y, fill, axis, w) if aval.shape[axis] else None
            if spread is not None:
                y, w = spread, led(_without(w, axis), axis)
        (y,) = windowed(combine, [laid_out(y, fill, w)], w, self.total)
        return ew.convert(y, aval.dtype)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **w: Any) -> tuple[Any, Any]:
        out = self.bind(*primals, **w)
        if isinstance(tangents[0], Zero):
            return out, Zero(tangent_aval(aval_of(out)))
        return out, self.tangent(tangents[0], primals[0], w)

    def tangent(self, t: Any, x: Any, w: dict[str, Any]) -> Any:
        """The tangent of the result."""
        select = ew.ge if self.operation is ew.max else ew.le
        return select_and_gather_add_p.bind(t, x, select_prim=select, **w)

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **w: Any) -> tuple[Any, int]:
        (d,) = dims
        assert d is not None
        return self.bind(args[0], **led(w, d)), d


class WindowSum(WindowReduction):
    """The sum over each window, which is linear."""

    def tangent(self, t: Any, x: Any, w: dict[str, Any]) -> Any:
        return self.bind(t, **w)

    def transpose(self, ct: Any, x: Any, **w: Any) -> Sequence[Any]:
        """An element's cotangent is the sum over the windows that have it: windows over the cotangents, where strides
        become gaps, and gaps strides."""
        if not isinstance(x, Linear):
            return [None]
        if isinstance(ct, Zero) or not x.aval.size:
            return [Zero(x.aval)]
        pads = []
        for n, m, window, gap, stride, apart, (low, _) in zip(
                x.aval.shape, shape_of(ct), w["window_dimensions"], w["window_dilation"], w["window_strides"],
                w["base_dilation"], w["padding"], strict=True):
            reach = dilated(window, gap)
            before = reach - 1 - low
            pads.append((before, dilated(n, apart) + reach - 1 - before - dilated(m, stride)))
        return [self.bind(ct, window_dimensions=w["window_dimensions"], window_strides=w["base_dilation"],
                          padding=tuple(pads), base_dilation=w["window_strides"],
                          window_dilation=w["window_dilation"])]


# Sums of floats round once.
_EXACT: dict[Any, np.dtype] = {**dict.fromkeys(dtypes.FLOATS, np.dtype(np.float64)),
                               np.dtype(np.complex64): np.dtype(np.complex128)}
_EXACT |= {d: wide for d, wide in WIDER.items() if d not in dtypes.FLOATS}

reduce_window_sum_p = WindowSum("reduce_window_sum", ew.add, np.add, NUMBER, lambda dtype: 0, reduce_sum)
reduce_window_max_p = WindowReduction("reduce_window_max", ew.max, ref.maximum, ARRAY, lowest, reduce_max)
reduce_window_min_p = WindowReduction("reduce_window_min", ew.min, ref.minimum, ARRAY, highest, reduce_min)


def laid_out_numpy(x: np.ndarray, fill: Any, w: dict[str, Any]) -> np.ndarray:
    """`laid_out` of NumPy arrays."""
    return pad_p.eval(x, np.asarray(fill, x.dtype), padding_config=padding_config(w)) if is_padded(w) else x


# ---------------------------------------------------------------- derivatives of extremes


def _chosen(select: Any) -> Combine:
    """Of two (value, ...), that whose value is extreme; the first of equals, and the first NaN."""
    def combine(a: Arrays, b: Arrays) -> Arrays:
        if aval_of(a[0]).dtype in dtypes.COMPLEX:  # of which only extremes are told
            best = (ew.max if select is ew.ge else ew.min).bind(a[0], b[0])
            first = ew.or_.bind(ew.eq.bind(best, a[0]), ew.ne.bind(a[0], a[0]))
        else:
            first = ew.or_.bind(select.bind(a[0], b[0]), ew.ne.bind(a[0], a[0]))
        return [ew.select_n_p.bind(first, y, x) for x, y in zip(a, b, strict=True)]

    return combine


def _neutral(select: Any, dtype: Any) -> Any:
    return (lowest if select is ew.ge else highest)(dtype)


class Selection(Composite):
    """What a window's extreme element of the operand says of another array, in which the operation is linear.

    `first` is linear, `x` the operand; `select_prim` is `ge` for the largest, `le` for the smallest element.
    """

    large = LARGE >> 2

    def adjoint(self) -> Selection:
        """The operation that is its adjoint in `first`."""
        raise self._missing("The adjoint")

    def _check(self, first: ShapedArray, x: ShapedArray, w: dict[str, Any]) -> Shape:
        if first.dtype != x.dtype or not is_kind(x.dtype, INEXACT):
            raise TypeError(f"{self.name} requires arrays of one floating or complex dtype, got {first.str_short()} "
                            f"and {x.str_short()}.")
        return check_windows(self.name, x.shape, **w)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = self.bind(*primals, **params)
        if isinstance(tangents[0], Zero):
            return out, Zero(tangent_aval(aval_of(out)))
        return out, self.bind(tangents[0], primals[1], **params)

    def transpose(self, ct: Any, first: Any, x: Any, **params: Any) -> Sequence[Any]:
        if not isinstance(first, Linear):
            return [None, None]
        return [Zero(first.aval) if isinstance(ct, Zero) else self.adjoint().bind(ct, x, **params), None]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, select_prim: Any,
              **w: Any) -> tuple[Any, int]:
        stacks = [batch_at_front(a, d, size) for a, d in zip(args, dims, strict=True)]
        return self.bind(*stacks, select_prim=select_prim, **led(w, 0)), 0


class SelectAndGather(Selection):
    """For each window, the tangent at its extreme element."""

    def adjoint(self) -> Selection:
        return select_and_scatter_add_p

    def infer(self, t: ShapedArray, x: ShapedArray, *, select_prim: Any, **w: Any) -> ShapedArray:
        out = self._check(t, x, w)
        if t.shape != x.shape:
            raise TypeError(f"{self.name} requires arrays of one shape, got {t.str_short()} and {x.str_short()}.")
        return ShapedArray(out, t.dtype, t.weak_type)

    def eval(self, t: np.ndarray, x: np.ndarray, *, select_prim: Any, **w: Any) -> np.ndarray:
        out = reduce_window_shape_tuple(x.shape, **w)
        laid, found = laid_out_numpy(t, 0, w), np.zeros(out, t.dtype)
        for start, here in _extremes(x, out, select_prim, w):
            found = np.where(here, laid[element_slices(out, start, w)], found)
        return found

    def program(self, t: Any, x: Any, *, select_prim: Any, **w: Any) -> Any:
        out = reduce_window_shape_tuple(shape_of(x), **w)
        if 0 in out:
            return zeros(ShapedArray(out, aval_of(t).dtype))
        laid = [laid_out(x, _neutral(select_prim, aval_of(x).dtype), w), laid_out(t, 0, w)]
        return windowed(_chosen(select_prim), laid, w)[1]


class SelectAndScatter(Selection):
    """The sum, for each element, of the cotangents of the windows whose extreme it is."""

    def adjoint(self) -> Selection:
        return select_and_gather_add_p

    def infer(self, source: ShapedArray, x: ShapedArray, *, select_prim: Any, **w: Any) -> ShapedArray:
        out = self._check(source, x, w)
        if source.shape != out:
            raise TypeError(f"{self.name} source has shape {source.shape}, but there are {out} windows.")
        return ShapedArray(x.shape, source.dtype, source.weak_type)

    def eval(self, source: np.ndarray, x: np.ndarray, *, select_prim: Any, **w: Any) -> np.ndarray:
        if not source.size:
            return np.zeros(x.shape, x.dtype)
        wide = _EXACT.get(x.dtype, x.dtype)
        total = laid_out_numpy(np.zeros(x.shape, wide), 0, w)
        number = np.zeros(source.shape, np.int64)
        for k, (_, here) in enumerate(_extremes(x, source.shape, select_prim, w)):
            number = np.where(here, k, number)
        for k, start in enumerate(offsets(w)):
            total[element_slices(source.shape, start, w)] += np.where(number == k, source, 0)
        core = pad_p.eval(total, np.zeros((), wide), padding_config=tuple((-a, -b, 0) for a, b in w["padding"]))
        return core[tuple(slice(None, None, n) for n in w["base_dilation"])].astype(x.dtype)

    def program(self, source: Any, x: Any, *, select_prim: Any, **w: Any) -> Any:
        dtype = aval_of(x).dtype
        if not aval_of(source).size:
            return zeros(ShapedArray(shape_of(x), dtype))
        source = ew.convert(source, WIDER.get(dtype, dtype))
        laid = laid_out(x, _neutral(select_prim, dtype), w)
        places = _places(laid.shape)
        (_, places) = windowed(_chosen(select_prim), [laid, places], w)
        shifts = [-(-dilated(n, gap) // stride) for n, gap, stride in zip(
            w["window_dimensions"], w["window_dilation"], w["window_strides"], strict=True)]
        total = (_pulled if math.prod(shifts) <= TERMS else _pushed)(source, places, laid.shape, shifts, w)
        return ew.convert(taken_back(total, w), dtype)


def _extremes(x: np.ndarray, out: Shape, select: Any, w: dict[str, Any]) -> Iterator[tuple[Shape, np.ndarray]]:
    """For each element of a window: where in the window it is, and of which windows it is the extreme so far."""
    if 0 in out:
        return
    wide = x.astype(WIDER.get(x.dtype, x.dtype))
    laid, best = laid_out_numpy(wide, _neutral(select, x.dtype), w), None
    for start in offsets(w):
        part = laid[element_slices(out, start, w)]
        better = np.full(out, True) if best is None else ~(select.eval(best, part) | np.isnan(best))
        best = part if best is None else np.where(better, part, best)
        yield start, better


def _places(shape: Shape) -> Any:
    """For each element of an array, its number."""
    dtype = np.dtype(np.int32 if math.prod(shape) < 1 << 31 else np.int64)
    return reshape(broadcasted_iota(dtype, (math.prod(shape),), 0), shape)


def _pulled(source: Any, places: Any, shape: Shape, shifts: Sequence[int], w: dict[str, Any]) -> Any:
    """Each element looks at the few windows that it may be the extreme of."""
    strides = w["window_strides"]
    here = _places(shape)
    total = None
    for shift in np.ndindex(*shifts):
        def spread(y: Any, fill: int, shift: Sequence[int] = shift) -> Any:
            """`y` of the window that begins at most a stride before each element, or `shift` windows earlier."""
            n = shape_of(y)
            inner = tuple(size for pair in zip(n, strides, strict=True) for size in pair)
            y = reshape(broadcast_in_dim(y, inner, tuple(range(0, 2 * len(n), 2))),
                        tuple(a * s for a, s in zip(n, strides, strict=True)))
            return pad(y, constant(fill, y.dtype), [(k * s, size - (a + k) * s, 0) for k, s, size, a in zip(
                map(int, shift), strides, shape, n, strict=True)])

        mine = ew.eq.bind(spread(places, -1), here)
        value = spread(source, 0)
        term = ew.select_n_p.bind(mine, zeros(aval_of(value)), value)
        total = term if total is None else ew.add.bind(total, term)
    return total


def _pushed(source: Any, places: Any, shape: Shape, shifts: Sequence[int], w: dict[str, Any]) -> Any:
    """Each window adds its cotangent to its extreme."""
    count = aval_of(source).size
    numbers = ScatterDimensionNumbers((), (0,), (0,))
    flat = scatter_add(zeros(ShapedArray((math.prod(shape),), source.dtype)),
                       expand_dims(reshape(places, (count,)), (1,)), reshape(source, (count,)), numbers,
                       mode=GatherScatterMode.PROMISE_IN_BOUNDS)
    return reshape(flat, shape)


select_and_gather_add_p = SelectAndGather("select_and_gather_add")
select_and_scatter_add_p = SelectAndScatter("select_and_scatter_add")
