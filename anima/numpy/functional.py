"""Functions that take functions: vectorize, apply_along_axis, piecewise; and gcd and lcm, which loop."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from anima import errors, tree
from anima.api.eager import compiled
from anima.api.mapping import vmap
from anima.control.while_loop import while_loop
from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import canonicalize_axis
from anima.core.trace import aval_of
from anima.numpy.creation import asarray, canonical_shape
from anima.numpy.elementwise import abs, broadcast_array, select_where
from anima.numpy.manipulation import moveaxis
from anima.numpy.promote import (
    as_array,
    as_arrays,
    convert_operand,
    is_integer,
    normalize_axes,
    numpy_dtype_of,
    operand,
    promote,
)
from anima.numpy.selection import where
from anima.ops import elementwise as ew, shape as sh
from anima.ops.reduce import reduce_or
from anima.util import wraps

ArrayLike = Any
_DIMENSION = r"\w+"
_ARGUMENT = rf"\((?:{_DIMENSION}(?:,{_DIMENSION})*)?\)"
_SIGNATURE = re.compile(rf"^{_ARGUMENT}(?:,{_ARGUMENT})*->{_ARGUMENT}(?:,{_ARGUMENT})*$")


# ---------------------------------------------------------------- vectorize

def parse_signature(signature: str) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """The names of the core dimensions of each argument, and of each result."""
    text = re.sub(r"\s+", "", signature)
    if not _SIGNATURE.match(text):
        raise ValueError(f"not a valid gufunc signature: {signature}")
    sides = [[tuple(re.findall(_DIMENSION, a)) for a in re.findall(_ARGUMENT, side)] for side in text.split("->")]
    return sides[0], sides[1]


def vectorize(pyfunc: Callable[..., Any], *, excluded: Collection[int | str] = frozenset(),
              signature: str | None = None) -> Callable[..., Any]:
    """`pyfunc` applied to every element, or, with a signature such as "(n,m),(m)->(n)", to every core array.

    The other axes broadcast. Arguments in `excluded` (positions or names), and None, are passed as they are.

    >>> f = jnp.vectorize(lambda x, y: x @ y, signature="(n),(n)->()")
    >>> f(jnp.ones((4, 3)), jnp.ones(3)).shape
    (4,)
    """
    if any(not isinstance(e, (int, str)) for e in excluded):
        raise TypeError(f"anima.numpy.vectorize can exclude only integers and strings, but {excluded=}")
    if any(isinstance(e, int) and e < 0 for e in excluded):
        raise ValueError(f"excluded={excluded!r} contains negative numbers")
    parsed = None if signature is None else parse_signature(signature)
    context = f"on vectorized function with excluded={frozenset(excluded)!r} and signature={signature!r}"

    @errors.api_boundary
    @wraps(pyfunc)
    def vectorized(*args: Any, **kwargs: Any) -> Any:
        taken = [i for i in range(len(args)) if i not in excluded]
        by_name = [k for k in kwargs if k not in excluded]
        values = (*(args[i] for i in taken), *(kwargs[k] for k in by_name))
        inputs = [()] * len(values) if parsed is None else parsed[0]
        if len(inputs) != len(values):
            raise TypeError(f"wrong number of arguments: expected {len(inputs)}, got {len(values)} {context}")
        inputs = [dims for dims, x in zip(inputs, values, strict=True) if x is not None]
        mapped, named = [i for i in taken if args[i] is not None], [k for k in by_name if kwargs[k] is not None]
        given = (x for x in values if x is not None)
        arrays = as_arrays("vectorize", *(asarray(x) if isinstance(x, (list, tuple)) else x for x in given))

        def core(*values: Any) -> Any:
            full, names = list(args), dict(kwargs)
            for i, v in zip(mapped, values, strict=False):
                full[i] = v
            names.update(zip(named, values[len(mapped):], strict=True))
            return pyfunc(*full, **names)

        sizes = core_sizes(inputs, arrays, context)
        if parsed is not None:
            core = checked_outputs(core, parsed[1], sizes, context)
        return _map_loops(core, arrays, [len(d) for d in inputs])

    return vectorized


def core_sizes(inputs: Sequence[tuple[str, ...]], arrays: Sequence[Array], context: str) -> dict[str, int]:
    """The sizes of core dimensions by name; ValueError where arguments do not agree."""
    sizes: dict[str, int] = {}
    for dims, x in zip(inputs, arrays, strict=True):
        if x.ndim < len(dims):
            raise ValueError(f"input with shape {x.shape} does not have enough dimensions for all core dimensions "
                             f"{dims} {context}")
        for name, n in zip(dims, x.shape[x.ndim - len(dims):], strict=True):
            wanted = sizes.setdefault(name, n)
            if wanted != n:
                raise ValueError(f"inconsistent size for core dimension {name!r}: {n} vs {wanted} {context}")
    return sizes


def checked_outputs(function: Callable[..., Any], outputs: Sequence[tuple[str, ...]], sizes: dict[str, int],
                    context: str) -> Callable[..., Any]:
    """`function`, whose results (anything with a shape) must have these core dimensions."""
    def checked(*args: Any) -> Any:
        out = function(*args)
        shapes = list(map(np.shape, out if isinstance(out, tuple) else (out,)))
        if len(shapes) != len(outputs):
            raise TypeError(f"wrong number of outputs: expected {len(outputs)}, got {len(shapes)} {context}")
        known = dict(sizes)
        for dims, shape in zip(outputs, shapes, strict=True):
            if len(shape) != len(dims):
                raise ValueError(f"output shape {shape} does not match core dimensions {dims} {context}")
            for name, n in zip(dims, shape, strict=True):
                if known.setdefault(name, n) != n:
                    raise ValueError(f"inconsistent size for core dimension {name!r}: {n} vs {known[name]} {context}")
        return out

    return checked


def _map_loops(core: Callable[..., Any], arrays: Sequence[Array], core_ranks: Sequence[int]) -> Any:
    """`core` mapped over the leading axes, which broadcast; axes of size 1 are not mapped at all."""
    loops = [x.shape[:x.ndim - c] for x, c in zip(arrays, core_ranks, strict=True)]
    try:
        shape = np.broadcast_shapes(*loops)
    except ValueError:
        raise ValueError(f"vectorized function got incompatible shapes for broadcasting: {loops}") from None
    values = []
    in_axes = []
    for x, loop in zip(arrays, loops, strict=True):
        lead = len(shape) - len(loop)
        kept = [n != 1 or shape[lead + i] == 1 for i, n in enumerate(loop)]
        values.append(sh.squeeze(x, [i for i, keep in enumerate(kept) if not keep]))
        in_axes.append([None] * lead + [0 if keep else None for keep in kept])
    function = core
    for level in reversed(range(len(shape))):
        axes = tuple(a[level] for a in in_axes)
        if any(a is not None for a in axes):
            function = vmap(function, in_axes=axes)
    return function(*values)


# ---------------------------------------------------------------- apply

def apply_along_axis(func1d: Callable[..., Any], axis: int, arr: ArrayLike, *args: Any, **kwargs: Any) -> Any:
    """`func1d(row, *args, **kwargs)` of every row of `arr` along `axis`; the axes of its result, or of each array of
    a pytree, are in place of it."""
    x = as_array(arr, "apply_along_axis")
    axis = canonicalize_axis(axis, x.ndim)
    rows = moveaxis(x, axis, -1)
    function: Callable[..., Any] = lambda row: tree.map(as_array, func1d(row, *args, **kwargs))  # noqa: E731
    for _ in range(x.ndim - 1):
        function = vmap(function)

    def in_place(out: Array) -> Array:
        extra = out.ndim - (x.ndim - 1)
        return moveaxis(out, tuple(range(x.ndim - 1, out.ndim)), tuple(range(axis, axis + extra)))

    return tree.map(in_place, function(rows))


def apply_over_axes(func: Callable[[Any, int], Any], a: ArrayLike, axes: Any) -> Array:
    """`func(a, axis)` for each of `axes` in turn; axes it removes come back with size 1."""
    x = as_array(a, "apply_over_axes")
    for axis in normalize_axes(axes, x.ndim):
        result = as_array(func(x, axis))
        if result.ndim == x.ndim - 1:
            result = sh.expand_dims(result, (axis,))
        elif result.ndim != x.ndim:
            raise ValueError("function is not returning an array of the correct shape")
        x = result
    return x


def piecewise(x: ArrayLike, condlist: Any, funclist: Sequence[Any], *args: Any, **kw: Any) -> Array:
    """`funclist[i](x)` where `condlist[i]` holds (the last one that does); one more function is for elsewhere.

    Functions may be numbers. Each is applied to all of `x`, then chosen from. An array `condlist` holds as many
    conditions as its length if there are as many functions; else it is one condition.
    """
    x = as_array(x, "piecewise")
    single = not isinstance(condlist, (list, tuple)) and np.ndim(condlist) <= x.ndim and (
        np.ndim(condlist) == 0 or np.shape(condlist)[0] not in (len(funclist), len(funclist) - 1))
    conditions = [condlist] if single else list(condlist)
    conditions = [broadcast_array(as_array(np.asarray(c) if isinstance(c, list) else operand("piecewise", c)), x.shape)
                  for c in conditions]
    count, given = len(conditions), len(funclist)
    if given == count + 1:
        *functions, otherwise = funclist
    elif given == count:
        functions, otherwise = list(funclist), 0
    else:
        raise ValueError(f"with {count} condition(s), {count} or {count + 1} functions are expected; got {given}")

    def apply(function: Any) -> Array:
        value = as_array(function(x, *args, **kw) if callable(function) else function)
        return broadcast_array(ew.convert(value, x.dtype), x.shape)

    result = apply(otherwise)
    for condition, function in zip(conditions, functions, strict=True):
        result = where(condition, apply(function), result)
    return result


def fromfunction(function: Any, shape: Any, *, dtype: Any = float, **kwargs: Any) -> Any:
    """`function(i, j, ...)` for all indices of `shape`: the function of numbers is mapped, one axis after the other.

    Results that are arrays follow with their own axes; keyword arguments are given to each call.

    Differs from NumPy: the function is not called on whole index arrays, so it may branch on shapes and reduce.
    """
    dtype = dtypes.check_user_dtype(dtype, "fromfunction")
    shape = canonical_shape(shape)
    mapped = functools.partial(function, **kwargs)
    for axis in reversed(range(len(shape))):
        mapped = vmap(mapped, in_axes=tuple(0 if i == axis else None for i in range(len(shape))))
    return mapped(*[sh.iota(dtype, n) for n in shape])



# ---------------------------------------------------------------- number theory

def _integers(name: str, x1: Any, x2: Any) -> list[Array]:
    x, y = promote(name, x1, x2)
    arrays = [as_array(convert_operand(v, numpy_dtype_of(v), False)) for v in (x, y)]
    if not is_integer(arrays[0].dtype):
        raise ValueError(f"Arguments to anima.numpy.{name} must be integers.")
    shape = np.broadcast_shapes(arrays[0].shape, arrays[1].shape)
    return [broadcast_array(v, shape) for v in arrays]


def _typed_as_given(result: Array, *args: Any) -> Array:
    """Weakly typed if all arguments are weakly typed scalars."""
    return ew.convert(result, result.dtype, not result.ndim and all(aval_of(x).weak_type for x in args))


@compiled
def gcd(x1: ArrayLike, x2: ArrayLike) -> Array:
    """The greatest common divisor, element by element, by Euclid's algorithm; ValueError for floats."""
    x, y = (abs(v) for v in _integers("gcd", x1, x2))
    zero = x.dtype.type(0)

    def unfinished(pair: tuple[Array, Array]) -> Array:
        from_any = ew.ne(pair[1], zero)
        return reduce_or(from_any, tuple(range(from_any.ndim))) if from_any.ndim else from_any

    def step(pair: tuple[Array, Array]) -> tuple[Array, Array]:
        a, b = pair
        done = ew.eq(b, zero)
        divisor = select_where(done, b.dtype.type(1), b)
        return select_where(done, a, b), select_where(done, b, ew.rem(a, divisor))

    return _typed_as_given(while_loop(unfinished, step, (x, y))[0], x1, x2)


@compiled
def lcm(x1: ArrayLike, x2: ArrayLike) -> Array:
    """The least common multiple, element by element; ValueError for floats."""
    x, y = (abs(v) for v in _integers("lcm", x1, x2))
    divisor = gcd(x, y)
    zero = ew.eq(divisor, x.dtype.type(0))
    safe = select_where(zero, divisor.dtype.type(1), divisor)
    return _typed_as_given(select_where(zero, sh.full_like(divisor, 0), ew.mul(x, ew.div(y, safe))), x1, x2)


