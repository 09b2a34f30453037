"""Windows that slide over an array, however they are written, are read at sums of counters.

    a = slice[0:93] x;  b = slice[1:94] x; ...                   i = add (iota 8) 0
    y = concatenate[dimension=1] a[:, None] b[:, None] ...  ->   y = gather x i

    i: i32[93,8]            a constant, in which             ->  i = add (iota[0] (93, 8)) (iota[1] (93, 8))
    y = gather x i          i[j, k] = j + k

Sums of counters are known where memory is read: windows are not copied one by one, and sums over them copy none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from anima.core.array import ConcreteArray
from anima.core.avals import Shape, ShapedArray
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Literal, Var
from anima.core.primitive import Primitive
from anima.ops.broadcast import broadcast_in_dim_p, iota_p
from anima.ops.elementwise import add, mul
from anima.ops.gather import GatherDimensionNumbers, GatherScatterMode, gather_p
from anima.ops.shape import slice_p

LEAST_WINDOWS = 8    # fewer are put side by side in registers
LEAST_SIZE = 1 << 10  # of all windows; small arrays are in registers, too
LEAST_PLACES = 32


def counted_constants(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program with sums of counters instead of the constants that are such sums."""
    eqns: list[Eqn] = []
    kept: list[tuple[Var, Any]] = []
    for var, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        steps = _steps(value.value) if isinstance(value, ConcreteArray) else None
        if steps is None:
            kept.append((var, value))
        else:
            eqns += _sum(var, int(value.value[(0,) * value.value.ndim]), steps)
    if not eqns:
        return closed
    jaxpr = closed.jaxpr.replace(constvars=[v for v, _ in kept], eqns=[*eqns, *closed.eqns])
    return ClosedJaxpr(jaxpr, [value for _, value in kept])


def _steps(places: np.ndarray) -> list[int] | None:
    """By how much whole numbers grow along each axis, if that is the same everywhere."""
    if places.dtype.kind not in "iu" or places.size < LEAST_PLACES:
        return None
    first = int(places[(0,) * places.ndim])
    steps = [int(places[tuple(int(d == axis) for d in range(places.ndim))]) - first if n > 1 else 0
             for axis, n in enumerate(places.shape)]
    expected = np.asarray(first, np.int64)
    for step, n in zip(steps, places.shape, strict=True):
        expected = expected[..., None] + step * np.arange(n)
    return steps if any(steps) and np.array_equal(places, expected) else None


def _sum(out: Var, first: int, steps: list[int]) -> list[Eqn]:
    """The equations for the array of `out` that begins with `first` and grows by `steps` along its axes."""
    aval = out.aval
    eqns: list[Eqn] = []

    def made(primitive: Primitive, invars: list[Atom], **params: Any) -> Var:
        result = Var(aval)
        eqns.append(Eqn(primitive, invars, [result], params))
        return result

    def number(value: int) -> Literal:
        return Literal(np.asarray(value, aval.dtype), ShapedArray((), aval.dtype))

    total: Var | None = None
    for axis, step in enumerate(steps):
        if step:
            counter = made(iota_p, [], dtype=aval.dtype, shape=aval.shape, dimension=axis)
            term = counter if step == 1 else made(mul, [counter, number(step)])
            total = term if total is None else made(add, [total, term])
    assert total is not None
    made(add, [total, number(first)])
    eqns[-1] = eqns[-1].replace(outvars=[out])
    return eqns


def stacked_windows(eqn: Eqn, made: Mapping[Var, Eqn]) -> list[Eqn] | None:
    """The equations for windows of an array that are joined along an axis of their own."""
    (out,), count = eqn.outvars, len(eqn.invars)
    axis = eqn.params["dimension"]
    if count < LEAST_WINDOWS or out.aval.size < LEAST_SIZE or out.aval.shape[axis] != count:
        return None
    found = [_window(v, axis, made) for v in eqn.invars]
    windows = [w for w in found if w is not None]
    if len(windows) < count or any(w.invars[0] is not windows[0].invars[0] for w in windows):
        return None
    starts = np.array([w.params["start_indices"] for w in windows])
    steps = starts[1] - starts[0]
    moving = np.flatnonzero(steps)
    if len(moving) != 1 or (np.diff(starts, axis=0) != steps).any():
        return None
    return _gathered(eqn, windows[0], int(moving[0]), int(steps[moving[0]]))


def _window(atom: Atom, axis: int, made: Mapping[Var, Eqn]) -> Eqn | None:
    """The slice that an array with an axis of one element more is."""
    eqn = made.get(atom) if type(atom) is Var else None
    if eqn is None or eqn.primitive.name not in ("broadcast_in_dim", "reshape"):
        return None
    shape = atom.aval.shape
    rest = tuple(d for d in range(len(shape)) if d != axis)
    inner = eqn.invars[0]
    same = type(inner) is Var and inner.aval.shape == tuple(shape[d] for d in rest)
    if not same or tuple(eqn.params.get("broadcast_dimensions", rest)) != rest:
        return None
    window = made.get(inner)  # type: ignore[arg-type]
    plain = window is not None and window.primitive is slice_p and set(window.params["strides"] or (1,)) == {1}
    return window if plain else None


def _gathered(eqn: Eqn, window: Eqn, axis: int, step: int) -> list[Eqn]:
    """Windows as the first one, and each `step` further along `axis` than the one before."""
    x, (out,), count = window.invars[0], eqn.outvars, len(eqn.invars)
    start, limit = window.params["start_indices"], window.params["limit_indices"]
    eqns: list[Eqn] = []
    low = [0 if d == axis else n for d, n in enumerate(start)]
    high = [x.aval.shape[axis] if d == axis else n for d, n in enumerate(limit)]
    within: Shape = tuple(b - a for a, b in zip(low, high, strict=True))
    if within != x.aval.shape:
        part = Var(x.aval.update(shape=within))
        bounds = {"start_indices": tuple(low), "limit_indices": tuple(high), "strides": None}
        eqns.append(Eqn(slice_p, [x], [part], bounds, eqn.source))
        x = part
    places, column = (Var(ShapedArray(s, np.dtype(np.int32))) for s in ((count,), (count, 1)))
    eqns += _sum(places, start[axis], [step])
    eqns.append(Eqn(broadcast_in_dim_p, [places], [column],
                    {"shape": (count, 1), "broadcast_dimensions": (0,)}, eqn.source))
    numbers = GatherDimensionNumbers(
        offset_dims=tuple(d for d in range(out.aval.ndim) if d != eqn.params["dimension"]), collapsed_slice_dims=(),
        start_index_map=(axis,), operand_batching_dims=(), start_indices_batching_dims=())
    eqns.append(Eqn(gather_p, [x, column], [out], {
        "dimension_numbers": numbers, "slice_sizes": tuple(b - a for a, b in zip(start, limit, strict=True)),
        "indices_are_sorted": step > 0, "unique_indices": True, "mode": GatherScatterMode.CLIP, "fill_value": None,
    }, eqn.source))
    return eqns
