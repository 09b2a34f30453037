"""Universal functions as objects: `add.reduce`, `add.accumulate`, `add.outer`, `add.at`, `frompyfunc`.

    >>> jnp.add.outer(jnp.arange(2), jnp.arange(3)).shape
    (2, 3)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from anima import errors
from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import canonicalize_axis
from anima.core.trace import Tracer
from anima.lax.control import scan
from anima.numpy import elementwise, functions, reductions
from anima.numpy.elementwise import broadcast_array, select_where, to_bool
from anima.numpy.functional import vectorize
from anima.numpy.manipulation import moveaxis
from anima.numpy.promote import as_array, convert_operand, no_out, normalize_axes, operand, static_value
from anima.ops import elementwise as ew, index as ix, shape as sh

ArrayLike = Any


class ufunc:
    """A function of `nin` arrays, applied element by element, with NumPy's ufunc methods.

    `identity` is what reducing nothing gives; `inexact` says that results for integers are floats; `call`, `reduce`,
    `accumulate`, `at` and `reduceat` replace the general ways, which apply `func` in a loop.
    """

    def __init__(self, func: Callable[..., Any], /, nin: int, nout: int, *, name: str | None = None,
                 nargs: int | None = None, identity: Any = None, call: Callable[..., Any] | None = None,
                 reduce: Callable[..., Any] | None = None, accumulate: Callable[..., Any] | None = None,
                 at: Callable[..., Any] | None = None, reduceat: Callable[..., Any] | None = None,
                 inexact: bool = False):
        functools.update_wrapper(self, func)
        self.__name__ = name or func.__name__
        self._func, self._nin, self._nout, self._identity = func, nin, nout, identity
        self._call = call or vectorize(func)
        self._reduce, self._accumulate, self._at, self._reduceat = reduce, accumulate, at, reduceat
        self._inexact = inexact

    nin = property(lambda self: self._nin, doc="How many arrays it takes.")
    nout = property(lambda self: self._nout, doc="How many arrays it returns.")
    nargs = property(lambda self: self._nin, doc="How many arguments it takes.")
    identity = property(lambda self: self._identity, doc="What reducing nothing gives; None if there is no such thing.")

    @errors.api_boundary
    def __call__(self, *args: ArrayLike, out: None = None, where: None = None) -> Any:
        if out is not None or where is not None:
            no_out(self.__name__, out)
            raise NotImplementedError(f"where argument of {self}")
        return self._call(*args)

    def __repr__(self) -> str:
        return f"<anima.numpy.ufunc '{self.__name__}'>"

    def __hash__(self) -> int:
        return hash((self._func, self.__name__, self._nin, self._nout))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ufunc) and (self._func, self.__name__, self._nin, self._nout) == (
            other._func, other.__name__, other._nin, other._nout)

    def _operand(self, a: ArrayLike, method: str) -> Array:
        """An array that a method is given; as floats where results of the function are."""
        x = as_array(a, f"{self.__name__}.{method}")
        return ew.convert(x, dtypes.to_inexact(x.dtype), x.weak_type) if self._inexact else x

    def _binary(self, method: str) -> None:
        if self._nin != 2 or self._nout != 1:
            raise ValueError(f"{method} only supported for functions with nin=2 and nout=1")

    @errors.api_boundary
    def reduce(self, a: ArrayLike, axis: Any = 0, dtype: Any = None, out: None = None, keepdims: bool = False,
               initial: Any = None, where: Any = None) -> Array:
        """The elements along `axis` joined by the function, from left to right, after `initial`."""
        self._binary("reduce")
        no_out(f"{self.__name__}.reduce", out)
        x = self._operand(a, "reduce")
        if self._reduce in (reductions.max, reductions.min) and dtype is not None:
            x, dtype = ew.convert(x, dtypes.check_user_dtype(dtype, "reduce")), None
        if self._reduce is not None:
            given = {k: v for k, v in (("dtype", dtype), ("initial", initial), ("where", where)) if v is not None}
            return self._reduce(x, axis=axis, keepdims=keepdims, **given)
        return self._fold(x, axis, dtype, keepdims, initial, where)

    def _fold(self, x: Array, axis: Any, dtype: Any, keepdims: bool, initial: Any, where: Any) -> Array:
        if where is not None and self._identity is None and initial is None:
            raise ValueError(f"reduction operation {self.__name__!r} does not have an identity, so to use a where mask "
                             "one has to specify 'initial'.")
        if dtype is not None:
            x = as_array(convert_operand(x, dtypes.check_user_dtype(dtype, "reduce"), False))
        axes = normalize_axes(axis, x.ndim)
        rest = tuple(i for i in range(x.ndim) if i not in axes)
        rows = sh.transpose(x, (*axes, *rest))
        rows = sh.reshape(rows, (int(np.prod([x.shape[i] for i in axes], dtype=int)),
                                 *(x.shape[i] for i in rest)))
        start = self._identity if initial is None else initial
        if start is None and not rows.shape[0]:
            raise ValueError(f"zero-size array to reduction operation {self.__name__!r} which has no identity")
        if start is None:
            carry, rows = rows[0], rows[1:]
        else:
            carry = broadcast_array(as_array(convert_operand(operand("reduce", start), x.dtype, False)), rows.shape[1:])
        if where is None:
            result, _ = scan(lambda c, row: (self._call(c, row), None), carry, rows)
        else:
            mask = sh.transpose(broadcast_array(reductions.mask_of(where), x.shape), (*axes, *rest))
            mask = sh.reshape(mask, rows.shape)
            result, _ = scan(lambda c, row: (select_where(row[1], self._call(c, row[0]), c), None), carry, (rows, mask))
        return sh.expand_dims(result, axes) if keepdims else result

    @errors.api_boundary
    def accumulate(self, a: ArrayLike, axis: int = 0, dtype: Any = None, out: None = None) -> Array:
        """The results of reducing ever more elements along `axis`."""
        self._binary("accumulate")
        no_out(f"{self.__name__}.accumulate", out)
        x = self._operand(a, "accumulate")
        if self._accumulate is not None:
            return self._accumulate(x, axis=axis, dtype=dtype)
        if dtype is not None:
            x = as_array(convert_operand(x, dtypes.check_user_dtype(dtype, "accumulate"), False))
        axis = _single(axis, x.ndim)
        rows = moveaxis(x, axis, 0)
        if not rows.shape[0]:
            return x

        def step(carry: Array, row: Array) -> tuple[Array, Array]:
            carry = self._call(carry, row)
            return carry, carry

        _, rest = scan(step, rows[0], rows[1:])
        return moveaxis(sh.concatenate([sh.expand_dims(rows[0], (0,)), rest], 0), 0, axis)

    @errors.api_boundary
    def at(self, a: ArrayLike, indices: Any, b: ArrayLike | None = None, /, *, inplace: bool = True) -> Array:
        """A copy of `a` with the function applied at `indices`, once for each time an element is named."""
        if inplace:
            raise NotImplementedError(f"{self}.at: arrays are immutable, pass inplace=False and use the returned copy")
        x = self._operand(a, "at")
        if self._nin == 1:
            return x.at[indices].apply(self._call)
        self._binary("at")
        if self._at is not None and x.dtype != np.bool_:  # sums of truth values are no numbers
            return self._at(x, indices, b)
        old = x.at[indices].get()
        flat = as_array(sh.reshape(sh.iota(dtypes.default_int(), x.size), x.shape)).at[indices].get()
        values = sh.reshape(broadcast_array(as_array(b), old.shape), (old.size,))
        places = sh.reshape(flat, (flat.size,))
        out, _ = scan(lambda c, iv: (c.at[iv[0]].set(self._call(c[iv[0]], iv[1])), None),
                      sh.reshape(x, (x.size,)), (places, values))
        return sh.reshape(out, x.shape)

    @errors.api_boundary
    def reduceat(self, a: ArrayLike, indices: Any, axis: int = 0, dtype: Any = None, out: None = None) -> Array:
        """Reductions of the stretches of `axis` that start at `indices`: each ends where the next starts."""
        self._binary("reduceat")
        no_out(f"{self.__name__}.reduceat", out)
        x = self._operand(a, "reduceat")
        if isinstance(indices, Tracer):
            return self._stretches(x, indices, _single(axis, x.ndim), dtype)
        starts = static_value(indices, "the indices of ufunc.reduceat must be static").astype(int)
        axis = _single(axis, x.ndim)
        stops = [*starts[1:].tolist(), x.shape[axis]]
        if not x.shape[axis]:
            raise IndexError(f"{self.__name__}.reduceat: there are no elements along axis {axis}.")
        parts = []
        for start, stop in zip(starts.tolist(), stops, strict=True):
            part = sh.slice_in_dim(x, start, stop if stop > start else start + 1, axis=axis)
            if self._reduce is not None:
                parts.append(self.reduce(part, axis=axis, dtype=dtype, keepdims=True))
            else:  # from the first element on, whatever the identity is
                first = sh.index_in_dim(part, 0, axis, keepdims=False)
                rest = sh.slice_in_dim(part, 1, None, axis=axis)
                parts.append(self._fold(rest, axis, dtype, True, first, None))
        out = sh.concatenate(parts, axis)
        return ew.convert(out, x.dtype) if dtype is None and self._reduce is not None else out

    def _stretches(self, x: Array, starts: Array, axis: int, dtype: Any) -> Array:
        """`reduceat` of traced indices: one element after the other, or, where the order is nothing to the function,
        pairs of the elements that each takes are joined, then pairs of pairs."""
        if dtype is not None:
            x = as_array(convert_operand(x, dtypes.check_user_dtype(dtype, "reduceat"), False))
        rows = moveaxis(x, axis, 0)
        size, count = rows.shape[0], starts.shape[0]
        first = ix.narrow_index(starts)
        following = sh.concatenate([sh.slice_in_dim(first, 1, count), sh.full((1,), size, np.int32)], 0)
        last = ew.max(following, ew.add(first, np.int32(1)))
        place = sh.broadcasted_iota(np.int32, (size, count), 0)
        taken = ew.and_(ew.ge(place, sh.broadcast_in_dim(first, place.shape, (1,))),
                        ew.lt(place, sh.broadcast_in_dim(last, place.shape, (1,))))
        values = sh.broadcast_in_dim(rows, (size, count, *rows.shape[1:]), (0, *range(2, rows.ndim + 1)))
        if self._reduce is None:
            later = ew.and_(taken, ew.gt(place, sh.broadcast_in_dim(first, place.shape, (1,))))

            def step(joined: Array, given: tuple[Array, Array]) -> tuple[Array, None]:
                row, is_later = given
                is_later = sh.broadcast_in_dim(is_later, row.shape, (0,))
                return select_where(is_later, self._call(joined, row), joined), None

            return moveaxis(scan(step, rows[first], (values, later))[0], 0, axis)
        while size > 1:
            half = size // 2
            rest = [sh.slice_in_dim(v, 2 * half, size) for v in (values, taken)]
            (left, has_left), (right, has_right) = ([sh.slice_in_dim(v, k, 2 * half, 2) for v in (values, taken)]
                                                    for k in (0, 1))
            wide = [sh.broadcast_in_dim(h, left.shape, (0, 1)) for h in (has_left, has_right)]
            joined = select_where(wide[0], select_where(wide[1], self._call(left, right), left), right)
            values = sh.concatenate([joined, rest[0]], 0)
            taken = sh.concatenate([ew.or_(has_left, has_right), rest[1]], 0)
            size -= half
        return moveaxis(sh.squeeze(values, (0,)), 0, axis)

    @errors.api_boundary
    def outer(self, A: ArrayLike, B: ArrayLike, /) -> Array:
        """The function of every pair of elements: shape `A.shape + B.shape`."""
        self._binary("outer")
        x, y = as_array(A, f"{self.__name__}.outer", 0), as_array(B, f"{self.__name__}.outer", 1)
        return self._call(sh.reshape(x, (*x.shape, *(1,) * y.ndim)), sh.reshape(y, (*(1,) * x.ndim, *y.shape)))


def _single(axis: Any, ndim: int) -> int:
    """The axis of a method that takes one alone."""
    if axis is None:
        raise ValueError("accumulate and reduceat go along a single axis, got axis=None")
    return canonicalize_axis(axis, ndim)


class _Logical(ufunc):
    """A function of truth values, which its methods make of what they are given first."""

    def _truths(self, a: ArrayLike, method: str) -> Array:
        return as_array(to_bool(as_array(a, f"{self.__name__}.{method}")))

    @errors.api_boundary
    def reduce(self, a: ArrayLike, axis: Any = 0, dtype: Any = None, out: None = None, keepdims: bool = False,
               initial: Any = None, where: Any = None) -> Array:
        result = super().reduce(self._truths(a, "reduce"), axis, None, out, keepdims, None, where)
        return _typed(result if initial is None else self._call(initial, result), dtype, "reduce")

    @errors.api_boundary
    def accumulate(self, a: ArrayLike, axis: int = 0, dtype: Any = None, out: None = None) -> Array:
        return _typed(super().accumulate(self._truths(a, "accumulate"), axis, None, out), dtype, "accumulate")

    @errors.api_boundary
    def at(self, a: ArrayLike, indices: Any, b: ArrayLike | None = None, /, *, inplace: bool = True) -> Array:
        return super().at(self._truths(a, "at"), indices, b, inplace=inplace)

    @errors.api_boundary
    def reduceat(self, a: ArrayLike, indices: Any, axis: int = 0, dtype: Any = None, out: None = None) -> Array:
        x = as_array(a, f"{self.__name__}.reduceat")
        result = super().reduceat(self._truths(x, "reduceat"), indices, axis, None, out)
        return _typed(result, x.dtype if dtype is None else dtype, "reduceat")


def _typed(x: Array, dtype: Any, method: str) -> Array:
    return x if dtype is None else ew.convert(x, dtypes.check_user_dtype(dtype, method))


def frompyfunc(func: Callable[..., Any], /, nin: int, nout: int, *, identity: Any = None) -> ufunc:
    """A `ufunc` of a function of `nin` scalars that returns `nout` scalars."""
    if nin < 1 or nout < 1:
        raise ValueError(f"nin and nout must be positive; got {nin}, {nout}")
    return ufunc(func, nin, nout, identity=identity)


def _standard(function: Callable[..., Any], nin: int = 2, identity: Any = None, **ways: Any) -> ufunc:
    return ufunc(function, nin, 1, identity=identity, call=function, **ways)


def _logical(function: Callable[..., Any], identity: bool, **ways: Any) -> ufunc:
    return _Logical(function, 2, 1, identity=identity, call=function, **ways)


def _updates(name: str) -> Callable[..., Array]:
    return lambda x, indices, values: getattr(x.at[indices], name)(values)


add = _standard(elementwise.add, identity=0, reduce=reductions.sum, accumulate=reductions.cumsum, at=_updates("add"))
multiply = _standard(elementwise.multiply, identity=1, reduce=reductions.prod, accumulate=reductions.cumprod,
                     at=_updates("multiply"))
subtract = _standard(elementwise.subtract, at=_updates("subtract"))
maximum = _standard(elementwise.maximum, reduce=reductions.max, at=_updates("max"))
minimum = _standard(elementwise.minimum, reduce=reductions.min, at=_updates("min"))
logical_and = _logical(elementwise.logical_and, identity=True, reduce=reductions.all)
logical_or = _logical(elementwise.logical_or, identity=False, reduce=reductions.any)
logical_xor = _logical(elementwise.logical_xor, identity=False)
bitwise_and = _standard(elementwise.bitwise_and, identity=-1)
bitwise_or = _standard(elementwise.bitwise_or, identity=0)
bitwise_xor = _standard(elementwise.bitwise_xor, identity=0)
logaddexp = _standard(functions.logaddexp, identity=-np.inf, inexact=True)
logaddexp2 = _standard(functions.logaddexp2, identity=-np.inf, inexact=True)
negative = _standard(elementwise.negative, nin=1)
