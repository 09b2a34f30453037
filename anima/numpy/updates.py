"""`x.at[index]`: updated copies of an array, by index.

    >>> jnp.zeros(3).at[1].add(7.)
    Array([0., 7., 0.], dtype=float32)

Updates out of bounds are dropped. Repeated indices add up in `add`; in `set` one of the values wins.
Each update is one `scatter`: index arrays, ints and slices with a step are its indices, contiguous
slices its windows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from anima import errors
from anima.api.eager import repeated
from anima.control.while_loop import while_loop
from anima.core import dtypes
from anima.core.array import Array, ConcreteArray
from anima.core.state import warn
from anima.core.trace import is_tracing
from anima.lax.arranging import scatter_sub
from anima.numpy import windows
from anima.numpy.creation import asarray
from anima.numpy.elementwise import power, true_divide
from anima.numpy.indexing import BATCH, StaticSlice, Subscript, analyse, stacked, take_indexed, wrapped
from anima.numpy.manipulation import broadcast_to
from anima.numpy.promote import as_array, convert_operand, operand
from anima.numpy.reductions import any as any_
from anima.ops import elementwise as ew, index as ix, shape as sh
from anima.ops.placing import as_asked

_I32 = np.dtype(np.int32)
_DEFAULTS = False, False, None, None, True


class _IndexUpdateHelper:
    """What `x.at` is: takes an index."""

    __slots__ = ("array",)

    def __init__(self, array: Array):
        self.array = array

    def __getitem__(self, index: Any) -> _IndexUpdateRef:
        return _IndexUpdateRef(self.array, index)

    @errors.api_boundary
    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError("'_IndexUpdateHelper' object does not support item assignment: arrays do not change. Fix: "
                        "x = x.at[index].set(values), which makes another array; add, multiply, ... in the place of += "
                        "and *=.")

    def __repr__(self) -> str:
        return f"_IndexUpdateHelper({self.array!r})"


def at(x: Array) -> _IndexUpdateHelper:
    """Indexed updates of `x`: `at(x)[index].set(values)`, and so on."""
    return _IndexUpdateHelper(x)


def _update(compute: Callable[..., Array], doc: str) -> Callable[..., Array]:
    """A method that updates: `compute(x, index, values, **options)`."""
    compute = repeated(compute)

    @errors.api_boundary
    def method(self: _IndexUpdateRef, values: Any, *, indices_are_sorted: bool = False, unique_indices: bool = False,
               mode: Any = None, out_sharding: Any = None, wrap_negative_indices: bool = True) -> Array:
        if (indices_are_sorted, unique_indices, mode, out_sharding, wrap_negative_indices) == _DEFAULTS:
            return compute(self.array, self.index, values)
        return compute(self.array, self.index, values, indices_are_sorted=indices_are_sorted,
                       unique_indices=unique_indices, mode=mode, out_sharding=out_sharding,
                       wrap_negative_indices=wrap_negative_indices)

    method.__doc__ = doc
    return method


def _scattered(scatter: Callable[..., Any]) -> Callable[..., Array]:
    return lambda x, index, values, **options: scatter_update(x, index, values, scatter, **options)


def _divided(x: Array, index: Any, values: Any, **options: Any) -> Array:
    quotient = true_divide(x, scatter_update(sh.full_like(x, 1), index, values, ix.scatter_mul, **options))
    return convert_operand(quotient, x.dtype, x.weak_type) if dtypes.issubdtype(x.dtype, np.inexact) else quotient


def _raised(x: Array, index: Any, values: Any, **options: Any) -> Array:
    return power(x, scatter_update(sh.full_like(x, 1), index, values, ix.scatter_mul, **options))


def _refused(sign: str, method: str) -> Callable[..., Any]:
    """What an operator such as += does to `x.at[index]`: a TypeError, which names the method that is meant."""
    @errors.api_boundary
    def operator(self: _IndexUpdateRef, values: Any) -> Any:
        raise TypeError(f"unsupported operand type(s) for {sign}: '_IndexUpdateRef' and '{type(values).__name__}': "
                        f"arrays do not change. Fix: x = x.at[index].{method}(values), which makes another array.")

    return operator


class _IndexUpdateRef:
    """What `x.at[index]` is: the updates, each of which returns a new array.

    `mode` says what happens out of bounds: None and "drop" skip the update, "clip" moves it to the edge,
    "promise_in_bounds" says it does not happen. `indices_are_sorted` and `unique_indices` are promises.
    """

    __slots__ = ("array", "index")

    def __init__(self, array: Array, index: Any):
        self.array, self.index = array, index

    def __repr__(self) -> str:
        return f"_IndexUpdateRef({self.array!r}, {self.index!r})"

    __iadd__, __isub__ = _refused("+=", "add"), _refused("-=", "subtract")
    __imul__, __itruediv__ = _refused("*=", "multiply"), _refused("/=", "divide")
    __ipow__ = _refused("**=", "power")

    @errors.api_boundary
    def get(self, *, indices_are_sorted: bool = False, unique_indices: bool = False, mode: Any = None,
            fill_value: Any = None, out_sharding: Any = None, wrap_negative_indices: bool = True) -> Array:
        """`x[index]`; with mode="fill", elements out of bounds are `fill_value` (default: NaN or the least int)."""
        if out_sharding is not None:
            return as_asked("get", None, out_sharding, take_indexed, self.array, self.index, mode=mode,
                            fill_value=fill_value, indices_are_sorted=indices_are_sorted,
                            unique_indices=unique_indices, wrap_negative_indices=wrap_negative_indices)
        return take_indexed(self.array, self.index, mode=mode, fill_value=fill_value,
                            indices_are_sorted=indices_are_sorted, unique_indices=unique_indices,
                            wrap_negative_indices=wrap_negative_indices)

    set = _update(_scattered(ix.scatter), "A copy of `x` with `x[index] = values`.")
    add = _update(_scattered(ix.scatter_add), "A copy of `x` with `x[index] += values`.")
    subtract = _update(_scattered(scatter_sub), "A copy of `x` with `x[index] -= values`.")
    multiply = mul = _update(_scattered(ix.scatter_mul), "A copy of `x` with `x[index] *= values`.")
    divide = _update(_divided, "A copy of `x` with `x[index] /= values`.")
    power = _update(_raised, "A copy of `x` with `x[index] **= values`.")
    min = _update(_scattered(ix.scatter_min), "A copy of `x` with `x[index] = minimum(x[index], values)`.")
    max = _update(_scattered(ix.scatter_max), "A copy of `x` with `x[index] = maximum(x[index], values)`.")

    @errors.api_boundary
    def apply(self, func: Callable[[Any], Any], *, indices_are_sorted: bool = False, unique_indices: bool = False,
              mode: Any = None, wrap_negative_indices: bool = True) -> Array:
        """A copy of `x` with `x[index] = func(x[index])`, once for each time an element is indexed."""
        options = {"indices_are_sorted": indices_are_sorted, "unique_indices": unique_indices, "mode": mode,
                   "wrap_negative_indices": wrap_negative_indices}
        if windows.holds_window(self.index):
            return windows.updated(self.array, self.index, lambda part, rest: part.at[rest].apply(func, **options))
        if unique_indices or analyse(self.array, self.index, clamp_ints=False).batch_shape is None:
            return self._apply_once(func, options)
        # How often each element is indexed.
        counts = scatter_update(sh.full(self.array.shape, 0, _I32), self.index, np.int32(1), ix.scatter_add, **options)
        if isinstance(counts, ConcreteArray) and counts.size and counts.value.max() <= 1:
            return self._apply_once(func, options)

        def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
            x, left = state
            changed = convert_operand(func(x), self.array.dtype, self.array.weak_type)
            return ew.select_n(ew.gt(left, np.int32(0)), x, changed), ew.sub(left, np.int32(1))

        return while_loop(lambda state: any_(ew.gt(state[1], np.int32(0))), step, (self.array, counts))[0]

    def _apply_once(self, func: Callable[[Any], Any], options: dict[str, Any]) -> Array:
        def scatter(operand: Array, indices: Array, updates: Array, numbers: Any, **modes: Any) -> Array:
            return ix.scatter_apply(operand, indices, func, numbers, update_shape=updates.shape, **modes)

        return scatter_update(self.array, self.index, sh.zeros(self.array.aval.update(shape=())), scatter, **options)


def scatter_update(x: Array, index: Any, values: Any, scatter: Callable[..., Any], *, indices_are_sorted: bool = False,
                   unique_indices: bool = False, mode: Any = None, out_sharding: Any = None,
                   wrap_negative_indices: bool = True) -> Array:
    """`scatter` of `values`, broadcast, into `x` at `index`."""
    if out_sharding is not None:
        return as_asked("scatter", None, out_sharding, scatter_update, x, index, values, scatter,
                        indices_are_sorted=indices_are_sorted, unique_indices=unique_indices, mode=mode,
                        wrap_negative_indices=wrap_negative_indices)
    x = as_array(x)
    if windows.holds_window(index):
        return windows.updated(x, index, lambda part, rest: scatter_update(
            part, rest, values, scatter, indices_are_sorted=indices_are_sorted, unique_indices=unique_indices,
            mode=mode, wrap_negative_indices=wrap_negative_indices))
    values = (asarray(values) if isinstance(values, (list, tuple, range)) else
              as_array(operand("scatter", dtypes.number_of(values, x.dtype))))
    plan = analyse(x, index, clamp_ints=False, wrap=wrap_negative_indices)
    if mode is not None:
        mode = ix.GatherScatterMode.from_any(mode)
    dtype, weak = x.dtype, x.weak_type
    compute = _common_dtype(dtype, values)
    if 0 in plan.shape:  # nothing is written, whatever the values are
        return x
    indices, numbers, unordered = _scatter_numbers(plan, wrap_negative_indices)
    updates = _to_result_shape(plan, as_array(convert_operand(values, compute, weak and compute == dtype)))
    if indices is None:
        indices = sh.full((0,), 0, _I32)
    known = not unordered or plan.batch_shape == ()  # one window, wherever it is
    target = plan.operand if compute == dtype else ew.convert(plan.operand, compute, False)
    mode = ix.GatherScatterMode.FILL_OR_DROP if mode is None else mode
    result = scatter(target, indices, updates, numbers, indices_are_sorted=indices_are_sorted or known,
                     unique_indices=unique_indices or known, mode=mode)
    result = result if compute == dtype else ew.convert(result, dtype, weak)
    return sh.reshape(result, x.shape)


def _common_dtype(dtype: Any, values: Array) -> Any:
    """The dtype to update in: that of `x`, unless `values` cannot be cast to it; then a warning is given."""
    if isinstance(dtype, dtypes.ExtendedDType):
        return dtype
    common = dtypes.lattice_result_type((dtype, False), (values.dtype, values.weak_type))[0]
    if common != dtype:
        warn(
            "scatter inputs have incompatible types: cannot safely cast value from "
            f"dtype={dtypes.name(values.dtype)} to dtype={dtypes.name(dtype)}. In future Anima releases this will "
            "result in an error.", FutureWarning)
    return common


def _to_result_shape(plan: Subscript, values: Array) -> Array:
    """`values` broadcast to the shape of `x[index]`, without its new axes, and against backward slices."""
    values = broadcast_to(values, plan.shape)
    new, backwards, position = [], [], 0
    for item in plan.layout:
        if item is None:
            new.append(position)
        elif item != BATCH:
            if plan.axes[item].turned:  # type: ignore[union-attr]
                backwards.append(position)
        position += len(plan.batch_shape or ()) if item == BATCH else 1
    if backwards:
        values = sh.rev(values, backwards)
    return sh.squeeze(values, new) if new else values


def _scatter_numbers(plan: Subscript, wrap: bool) -> tuple[Array | None, ix.ScatterDimensionNumbers, bool]:
    """(indices, dimension numbers, whether index arrays take part) for updates laid out as `x[index]` is."""
    sizes = plan.operand.shape
    batch, windows, places = _batch_layout(plan)
    columns, mapped, inserted = [], [], []
    for i, (a, n) in enumerate(zip(plan.axes, sizes, strict=True)):
        if isinstance(a, StaticSlice):
            if a.contiguous:
                if a.low or a.size != n:
                    columns.append(a.low)
                    mapped.append(i)
                continue
            columns.append(_SteppedIndices(a, places[i]))
        elif isinstance(a, int):
            columns.append(a)
        else:
            a = wrapped(a, n) if wrap else ix.narrow_index(a)
            columns.append(_Placed(a, places[BATCH], len(plan.batch_shape or ())))
        mapped.append(i)
        inserted.append(i)
    numbers = ix.ScatterDimensionNumbers(update_window_dims=tuple(windows), inserted_window_dims=tuple(inserted),
                                         scatter_dims_to_operand_dims=tuple(mapped))
    unordered = any(isinstance(c, _Placed) for c in columns)
    if not columns:
        return None, numbers, False
    arrays = [c if isinstance(c, int) else c.array(len(batch)) for c in columns]
    return stacked(arrays, [0] * len(arrays), batch, False), numbers, unordered


def _batch_layout(plan: Subscript) -> tuple[tuple[int, ...], list[int], dict[int, int]]:
    """(shape of the indices, positions of window dimensions in the updates, where each indexed axis stands
    in the shape of the indices)."""
    batch: list[int] = []
    windows: list[int] = []
    places: dict[int, int] = {}
    position = 0
    for item in plan.layout:
        if item is None:
            continue
        if item == BATCH:
            places[BATCH] = len(batch)
            batch.extend(plan.batch_shape or ())
            position += len(plan.batch_shape or ())
            continue
        span = plan.axes[item]
        if span.contiguous:  # type: ignore[union-attr]
            windows.append(position)
        else:
            places[item] = len(batch)
            batch.append(span.size)  # type: ignore[union-attr]
        position += 1
    return tuple(batch), windows, places


class _SteppedIndices:
    """The indices of a slice with a step, along one dimension of the indices."""

    def __init__(self, span: StaticSlice, place: int):
        self.span, self.place = span, place

    def array(self, rank: int) -> Any:
        low, step = self.span.low, abs(self.span.step)
        shape = [1] * rank
        shape[self.place] = self.span.size
        if not is_tracing():
            return np.arange(low, low + self.span.size * step, step, dtype=_I32).reshape(shape)
        steps = ew.mul(np.int32(step), sh.iota(_I32, self.span.size))
        return sh.reshape(ew.add(np.int32(low), steps), shape)


class _Placed:
    """An index array whose dimensions start at `place` in the indices."""

    def __init__(self, value: Any, place: int, ndim: int):
        self.value, self.place, self.ndim = value, place, ndim

    def array(self, rank: int) -> Any:
        value = self.value
        shape = (1,) * (self.ndim - value.ndim) + tuple(value.shape) + (1,) * (rank - self.place - self.ndim)
        return value.reshape(shape) if isinstance(value, np.ndarray) else sh.reshape(value, shape)
