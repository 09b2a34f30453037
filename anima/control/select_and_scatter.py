"""What belongs to windows, brought to the element of each that the user's own comparison chooses.

    select_and_scatter[select_jaxpr=... scatter_jaxpr=... window_dimensions=(2,) window_strides=(2,) ...] x source 0.0

Of each window one element is kept while `select(kept, next)` holds, in row-major order; padding is never chosen. Each
element of the result is the initial value, to which `scatter(so far, value)` adds the values of the windows that chose
it, those that are further from their windows' beginning later. `select_and_scatter_add` is the case of extremes and
sums, of which derivatives of pooling are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.control.reduce import applied
from anima.core.avals import Shape
from anima.core.jaxpr import ClosedJaxpr, Jaxpr
from anima.core.trace import aval_of
from anima.ops import elementwise as ew
from anima.ops.family import constant
from anima.ops.shape import broadcast, full, pad, slice as sliced
from anima.ops.window import is_padded, laid_out, offsets, reduce_window_shape_tuple, taken_back, window_params
from anima.transforms.composed import Composed


def _closed(program: Any) -> ClosedJaxpr:
    return ClosedJaxpr(program, []) if isinstance(program, Jaxpr) else program


def _scattered(operand: Any, source: Any, init_value: Any, *, select_jaxpr: Any, select_consts: Sequence[Any],
               scatter_jaxpr: Any, scatter_consts: Sequence[Any], window_dimensions: Shape, window_strides: Shape,
               padding: Sequence[tuple[int, int]]) -> Any:
    aval, out = aval_of(operand), aval_of(source).shape
    w = window_params(aval.shape, window_dimensions, window_strides, padding)
    windows = reduce_window_shape_tuple(aval.shape, **w)
    if windows != out:
        raise TypeError(f"select_and_scatter: source has the shape {out}, but there are {windows} windows.")
    total = broadcast(init_value, aval.shape)
    if 0 in out or 0 in aval.shape:
        return total
    strides, reach = window_strides, [(n - 1) * s + 1 for n, s in zip(out, window_strides, strict=True)]
    laid, inside = laid_out(operand, 0, w), laid_out(full(aval.shape, True), False, w) if is_padded(w) else None
    select, starts = applied(_closed(select_jaxpr), select_consts, out), list(offsets(w))

    def seen(x: Any, start: Shape) -> Any:
        return sliced(x, start, [a + n for a, n in zip(start, reach, strict=True)], strides)

    kept, number = seen(laid, starts[0]), full(out, 0, np.int32)
    if inside is not None:
        number = ew.select_n_p.bind(seen(inside, starts[0]), full(out, -1, np.int32), number)
    for k, start in enumerate(starts[1:], 1):
        here = seen(laid, start)
        better = ew.not_(select([kept], [here])[0])
        if inside is not None:
            better = ew.and_(seen(inside, start), ew.or_(better, ew.lt(number, constant(0, number.dtype))))
        kept = ew.select_n_p.bind(better, kept, here)
        number = ew.select_n_p.bind(better, number, full(out, k, np.int32))
    total, wide = laid_out(total, 0, w), aval_of(laid).shape
    scatter = applied(_closed(scatter_jaxpr), scatter_consts, wide)
    for k, start in enumerate(starts):
        config = [(a, n - a - r, s - 1) for a, n, r, s in zip(start, wide, reach, strides, strict=True)]
        mine = pad(ew.eq(number, constant(k, number.dtype)), constant(False, np.dtype(bool)), config)
        value = pad(source, constant(0, aval_of(source).dtype), config)
        total = ew.select_n_p.bind(mine, total, scatter([total], [value])[0])
    return taken_back(total, w)


select_and_scatter_p = Composed("select_and_scatter", _scattered)
