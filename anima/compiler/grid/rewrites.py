"""What a grid of threads computes by other operations than one core does: what is done in order there.

    cumsum[axis=0] x: f32[4096]   ->   sums of the prefixes of 64 rows of 64, and of the rows before each
    sort x: f32[1000000]          ->   210 rounds of exchanges between elements whose places differ by some bits

Methods: Blelloch, Prefix sums and their applications (1990); Batcher, Sorting networks and their applications (1968),
in the form whose exchanges all go one way, which needs no power of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from anima.compiler.grid.target import GridTarget
from anima.compiler.machine.target import Target
from anima.compiler.rewriting.rewrites import rewrite
from anima.control.scan import scan
from anima.core import dtypes
from anima.core.jaxpr import Eqn
from anima.ops import elementwise as el
from anima.ops.broadcast import broadcast_in_dim, broadcasted_iota, full
from anima.ops.reduce import cummax_p, cummin_p, cumprod_p, cumsum_p
from anima.ops.shape import concatenate, pad, reshape, slice_in_dim
from anima.ops.sort import take_along

SHORT = 64  # elements that one thread goes through in order

_COMBINE: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
    "cumsum": (cumsum_p, el.add), "cumprod": (cumprod_p, el.mul), "cummax": (cummax_p, el.max),
    "cummin": (cummin_p, el.min)}


def _is_long(axis: str) -> Callable[[Eqn, Target], bool]:
    """Whether an equation is about an axis that is long, and rows that are not so many that each has a thread."""
    def where(eqn: Eqn, target: Target) -> bool:
        aval = eqn.invars[0].aval
        n = aval.shape[eqn.params[axis]]
        return isinstance(target, GridTarget) and n > SHORT and aval.size // n < target.at_once // 4
    return where


def _neutral(name: str, dtype: np.dtype) -> Any:
    """What changes nothing."""
    if name in ("cumsum", "cumprod"):
        return np.asarray(name == "cumprod", dtype)
    if dtypes.issubdtype(dtype, np.inexact):
        return np.asarray(-np.inf if name == "cummax" else np.inf).astype(dtype)
    ends = dtypes.iinfo(dtype)
    return np.asarray(ends.min if name == "cummax" else ends.max, dtype)


def _cumulative(name: str) -> Callable[..., Any]:
    primitive, combine = _COMBINE[name]

    def program(eqn: Eqn, target: Target, x: Any) -> Any:
        """In rows: along each, and over the rows before it."""
        axis, reverse = eqn.params["axis"], eqn.params["reverse"]
        small = dtypes.issubdtype(x.dtype, np.floating) and x.dtype.itemsize <= 2
        narrow = x.dtype if small else None  # what is rounded once, in the end
        x = x if narrow is None else el.convert(x, np.dtype(np.float32))
        shape, n = x.shape, x.shape[axis]
        length = min(SHORT, 1 << math.isqrt(n - 1).bit_length())
        rows = -(-n // length)
        neutral = _neutral(name, x.dtype)
        extra = [(0, 0, 0)] * len(shape)
        extra[axis] = (rows * length - n, 0, 0) if reverse else (0, rows * length - n, 0)
        parts = reshape(pad(x, neutral, extra), (*shape[:axis], rows, length, *shape[axis + 1:]))
        along = primitive.bind(parts, axis=axis + 1, reverse=reverse)
        last = 0 if reverse else length - 1
        totals = reshape(slice_in_dim(along, last, last + 1, axis=axis + 1), (*shape[:axis], rows, *shape[axis + 1:]))
        until = primitive.bind(totals, axis=axis, reverse=reverse)
        first = full((*shape[:axis], 1, *shape[axis + 1:]), neutral)
        kept = slice_in_dim(until, 1, rows, axis=axis) if reverse else slice_in_dim(until, 0, rows - 1, axis=axis)
        before = concatenate([kept, first] if reverse else [first, kept], axis)
        others = tuple(d for d in range(len(parts.shape)) if d != axis + 1)
        whole = reshape(combine(broadcast_in_dim(before, parts.shape, others), along),
                        (*shape[:axis], rows * length, *shape[axis + 1:]))
        start = rows * length - n if reverse else 0
        found = slice_in_dim(whole, start, start + n, axis=axis)
        return found if narrow is None else el.convert(found, narrow)

    return program


for _name in _COMBINE:
    rewrite(_name, where=_is_long("axis"), again=True)(_cumulative(_name))


def _ascending(x: Any) -> list[Any]:
    """Integers, the first foremost, in the order of `x`: NaN last, -0 as 0."""
    if dtypes.issubdtype(x.dtype, np.complexfloating):
        return [*_ascending(el.real(x)), *_ascending(el.imag(x))]
    if x.dtype == np.bool_:
        return [el.convert(x, np.dtype(np.int32))]
    if not dtypes.issubdtype(x.dtype, np.floating):
        return [x]
    wide = el.convert(x, np.dtype(np.float32)) if x.dtype.itemsize < 4 else x
    signed = np.dtype(f"int{8 * wide.dtype.itemsize}")
    most, zero = (full(x.shape, np.asarray(n, signed)) for n in (np.iinfo(signed).max, 0))
    bits = el.bitcast_convert_type(wide, signed)
    ordered = el.select(el.lt(bits, zero), el.xor(bits, most), bits)
    ordered = el.select(el.eq(wide, full(x.shape, np.asarray(0, wide.dtype))), zero, ordered)
    return [el.select(el.ne(wide, wide), most, ordered)]


def _rounds(n: int) -> np.ndarray:
    """By which bits the places differ that are compared, round by round."""
    found = []
    for level in range(1, (n - 1).bit_length() + 1):
        found.append((1 << level) - 1)
        found += [1 << k for k in range(level - 2, -1, -1)]
    return np.asarray(found, np.int32)


@rewrite("sort", where=_is_long("dimension"), again=True)
def _sort(eqn: Eqn, target: Target, *xs: Any) -> Any:
    """By exchanges; of equal elements the one that came first is the smaller."""
    axis, count = eqn.params["dimension"], eqn.params["num_keys"]
    shape, n = xs[0].shape, xs[0].shape[axis]
    keys = [key for x in xs[:count] for key in _ascending(x)]
    place = broadcasted_iota(np.dtype(np.int32), shape, axis)
    end = full(shape, np.asarray(n - 1, np.int32))

    def exchange(carry: tuple[Any, ...], bits: Any) -> tuple[Any, None]:
        partner = el.xor(place, broadcast_in_dim(bits, shape, ()))
        there = el.min(partner, end)
        others = tuple(take_along(v, there, axis) for v in carry)
        before = el.lt(others[-1], carry[-1])
        for mine, other in reversed([*zip(carry[:-1], others[:-1], strict=True)]):
            before = el.or_(el.lt(other, mine), el.and_(el.eq(other, mine), before))
        first = el.lt(place, partner)  # the lower place has the smaller element
        taken = el.and_(el.eq(first, before), el.le(partner, end))
        return tuple(el.select(taken, o, m) for m, o in zip(carry, others, strict=True)), None

    *_, order = scan(exchange, (*keys, place), _rounds(n))[0]
    return [take_along(x, order, axis) for x in xs]
