"""Records of the operations on windows. References go from window to window, and through each element by element."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from anima.ops import elementwise as el, window as win
from tests.op_records import ALL, FLOATS, INEXACT, NUMBERS, Arg, Case, Record, special_values

Place = tuple[int, ...]


def result_shape(shape: Place, w: dict[str, Any]) -> Place:
    """How many windows there are, counted one by one."""
    out = []
    for n, size, stride, (low, high), apart, gap in zip(
            shape, w["window_dimensions"], w["window_strides"], w["padding"], w["base_dilation"],
            w["window_dilation"], strict=True):
        last = low + high + (n + (n - 1) * (apart - 1) if n else 0) - 1  # of the padded array
        first = 0
        while first + (size - 1) * gap <= last:
            first += stride
        out.append(first // stride)
    return tuple(out)


def elements(shape: Place, window: Place, w: dict[str, Any]) -> Iterator[Place | None]:
    """The places in the operand that a window sees, in order; None for padding and gaps."""
    for inside in np.ndindex(*w["window_dimensions"]):
        place = []
        for n, i, k, stride, (low, _), apart, gap in zip(
                shape, window, inside, w["window_strides"], w["padding"], w["base_dilation"], w["window_dilation"],
                strict=True):
            at, between = divmod(i * stride + k * gap - low, apart)
            place.append(-1 if between or not 0 <= at < n else at)
        yield None if -1 in place else tuple(place)


def folded(combine: Callable[[Any, Any], Any], neutral: Callable[[Any], Any]) -> Callable[..., np.ndarray]:
    def reference(x: np.ndarray, **w: Any) -> np.ndarray:
        out = np.zeros(result_shape(x.shape, w), x.dtype)
        for window in np.ndindex(*out.shape):
            values = [neutral(x.dtype) if p is None else x[p] for p in elements(x.shape, window, w)]
            total = values[0]
            for value in values[1:]:
                total = combine(total, value)
            out[window] = total
        return out

    return reference


def _edge(sign: int) -> Callable[[np.dtype], Any]:
    def neutral(dtype: np.dtype) -> Any:
        if dtype.kind == "c":
            return complex(-sign * np.inf, -sign * np.inf)
        if dtype.kind in "iu":
            return (np.iinfo(dtype).max, np.iinfo(dtype).min)[sign > 0]
        return sign < 0 if dtype.kind == "b" else -sign * np.inf
    return neutral


def _key(v: Any) -> Any:
    """What complex numbers are ordered by."""
    return (v.real, v.imag) if isinstance(v, complex | np.complexfloating) else v


def _extreme(better: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    """NaN if either is; of zeros, that whose sign fits."""
    def choose(a: Any, b: Any) -> Any:
        if a != a or b != b:
            return a if a != a else b
        if a == b == 0 and isinstance(a, np.floating):
            return a if better(np.copysign(1, a), np.copysign(1, b)) else b
        return a if better(_key(a), _key(b)) else b
    return choose


def chosen(x: np.ndarray, window: Place, w: dict[str, Any], select_prim: Any) -> Place | None:
    """Where a window's extreme is: the first of equals; None if padding is."""
    best: Any = None
    outside = _key(_edge(1 if select_prim is el.ge else -1)(x.dtype))
    for place in elements(x.shape, window, w):
        value = outside if place is None else _key(x[place])
        if best is None or (value > best[0] if select_prim is el.ge else value < best[0]):
            best = value, place
    return best[1]


def _gather(t: np.ndarray, x: np.ndarray, select_prim: Any, **w: Any) -> np.ndarray:
    out = np.zeros(result_shape(x.shape, w), t.dtype)
    for window in np.ndindex(*out.shape):
        place = chosen(x, window, w, select_prim)
        out[window] = 0 if place is None else t[place]
    return out


def _scatter(source: np.ndarray, x: np.ndarray, select_prim: Any, **w: Any) -> np.ndarray:
    out = np.zeros(x.shape, source.dtype)
    for window in np.ndindex(*source.shape):
        place = chosen(x, window, w, select_prim)
        if place is not None:
            out[place] += source[window]
    return out


SHAPES: tuple[tuple[Place, dict[str, Any]], ...] = (
    ((6,), {"window_dimensions": (3,)}),
    ((7,), {"window_dimensions": (2,), "window_strides": (2,), "padding": "SAME"}),
    ((5,), {"window_dimensions": (2,), "window_strides": (50,), "padding": ((1, 3),)}),
    ((4, 5), {"window_dimensions": (2, 2), "window_strides": (2, 2)}),
    ((3, 4), {"window_dimensions": (3, 2), "window_strides": (2, 1), "padding": "SAME_LOWER"}),
    ((4, 3), {"window_dimensions": (2, 2), "padding": ((1, 2), (-1, 3)), "base_dilation": (2, 1),
              "window_dilation": (1, 2)}),
    ((4,), {"window_dimensions": (5,), "padding": ((4, 4),), "base_dilation": (3,)}),
    ((3,), {"window_dimensions": (2,), "padding": ((2, 1),), "base_dilation": (3,)}),
    ((2,), {"window_dimensions": (4,), "window_strides": (2,), "padding": ((3, 4),), "base_dilation": (3,)}),
    ((1, 2), {"window_dimensions": (3, 1), "padding": ((2, 2), (0, 0))}),
    ((4,), {"window_dimensions": (5,)}),
    ((2, 3), {"window_dimensions": (7, 1), "window_strides": (4, 2)}),
    ((0,), {"window_dimensions": (2,)}),
)
LONG: tuple[tuple[Place, dict[str, Any]], ...] = (  # windows that are put together from shorter ones
    ((60,), {"window_dimensions": (19,)}),
    ((90,), {"window_dimensions": (21,), "window_strides": (2,), "window_dilation": (2,), "padding": ((3, 0),)}),
    ((70,), {"window_dimensions": (17,), "window_strides": (20,)}),
    ((3, 18), {"window_dimensions": (2, 18)}),
    ((5, 4), {"window_dimensions": (5, 4)}),
)


def cases(lo: float, hi: float, **options: Any) -> tuple[Case, ...]:
    return tuple(Case((Arg(shape, lo, hi, **options),), win.window_params(shape, **given), plain=k < len(SHAPES))
                 for k, (shape, given) in enumerate(SHAPES + LONG))


def selections(of_source: bool) -> tuple[Case, ...]:
    out = []
    for k, (shape, given) in enumerate(SHAPES[:-1] + LONG):
        w = win.window_params(shape, **given)
        first = result_shape(shape, w) if of_source else shape
        out.append(Case((Arg(first, -2, 2), Arg(shape, -3, 3, distinct=True)),
                        {"select_prim": (el.ge, el.le)[k % 2], **w}, plain=k < len(SHAPES) - 1))
    return tuple(out)


SPECIAL = Case((Arg(values=special_values),), win.window_params((21,), (3,), padding="SAME"), plain=False, only=FLOATS)
WINDOWS = (
    Record(win.reduce_window_sum_p, folded(lambda a, b: a + b, lambda d: 0), cases(0.5, 2), NUMBERS, ulps=8,
           complex_ulps=16),
    Record(win.reduce_window_max_p, folded(_extreme(lambda a, b: a > b), _edge(1)),
           (*cases(-3, 3, distinct=True), SPECIAL), ALL, complex_ulps=0),
    Record(win.reduce_window_min_p, folded(_extreme(lambda a, b: a < b), _edge(-1)),
           (*cases(-3, 3, distinct=True), SPECIAL), ALL, complex_ulps=0),
    Record(win.select_and_gather_add_p, _gather, selections(False), INEXACT, complex_ulps=0),
    Record(win.select_and_scatter_add_p, _scatter, selections(True), INEXACT, ulps=64, complex_ulps=64),
)
