"""Making arrays out of less: broadcasting, its adjoint the sum, counting, and filling.

`broadcast_in_dim` and `reduce_sum` are each other's transpose, which is why both are at home here,
below everything else in `ops`. `Movement` is the family of primitives that only move elements about.

    >>> broadcast_in_dim(jnp.arange(3), (2, 3), (1,))      # operand axis 0 is result axis 1
    Array([[0, 1, 2],
           [0, 1, 2]], dtype=int32)
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from anima import errors
from anima.config import config
from anima.core import dtypes, memory, transfers
from anima.core.array import Array, ConcreteArray
from anima.core.avals import (
    Shape,
    ShapedArray,
    canonicalize_axis,
    check_countable,
    reduced_shape,
    scalar_type,
    tangent_aval,
)
from anima.core.axes import varying
from anima.core.dims import index_of
from anima.core.placement import pulls
from anima.core.primitive import LARGE, Linear, Primitive, ShardingRule, Work, Zero
from anima.core.refs import Ref
from anima.core.sharding_rules import dims, without
from anima.core.trace import Tracer, aval_of, is_array_like
from anima.ops import reference
from anima.ops.placing import as_asked, lies_somewhere, put_like, typed_as


def as_shape(sizes: Any, context: str = "") -> Shape:
    """Sizes as a tuple of ints; TypeError if one is not an integer known while tracing."""
    single = isinstance(sizes, (int, np.integer)) or getattr(sizes, "shape", None) == ()
    given = (sizes,) if single or not isinstance(sizes, Iterable) else tuple(sizes)
    try:
        plain = all(type(n) is int for n in given)
        return given if plain else tuple(map(index_of, given))
    except TypeError:
        tracers = [d for d in given if isinstance(d, Tracer)]
        if not tracers:
            kinds = ", ".join(str(type(d)) for d in given)
            raise TypeError(f"{context or 'Shapes'} must have every element be an integer type, "
                            f"got ({kinds}).") from None
        raise TypeError(errors.shape_message(given, tracers)) from None


def check_nonnegative(sizes: Sequence[int], what: str) -> None:
    """TypeError, naming `what`, if some size is negative."""
    if any(d < 0 for d in sizes):
        raise TypeError(f"{what} must have every element be nonnegative, got {tuple(sizes)}.")


def as_array(x: Any) -> Array:
    """`x` itself if it is an array, else an array of its value (weakly typed for Python scalars)."""
    if isinstance(x, Array):
        return x
    aval = aval_of(x)
    transfers.implicit(x)
    return ConcreteArray(memory.copied(x, aval.dtype), aval)


def as_operand(x: Any) -> Array | Ref:
    """`as_array`, of what may also be a reference."""
    return x if isinstance(x, Ref) else as_array(x)


def shape_of(x: Any) -> Shape:
    """The shape of an operand."""
    return aval_of(x).shape


def all_weak(avals: Sequence[ShapedArray]) -> bool:
    """The weak type of a result that all operands have a part in."""
    return all(a.weak_type for a in avals)


def same_dtype(name: str, avals: Sequence[ShapedArray]) -> Any:
    """The element type that all operands of `name` share; TypeError if they do not."""
    if any(a.dtype != avals[0].dtype for a in avals[1:]):
        listed = ", ".join(dtypes.name(a.dtype) for a in avals)
        tip = f" (Tip: anima.numpy.{name} is a similar function that does automatic type promotion on inputs)."
        raise TypeError(f"lax.{name} requires arguments to have the same dtypes, got {listed}."
                        + (tip if name == "concatenate" else ""))
    return avals[0].dtype


def element_shape(aval: ShapedArray) -> Shape:
    """Dimensions of one element: `()` but for extended types such as random keys."""
    return aval.dtype.element_shape if isinstance(aval.dtype, dtypes.ExtendedDType) else ()


def instantiate(x: Any) -> Any:
    """A tangent or cotangent as an array, where it was a symbolic zero."""
    return typed_as(zeros(x.aval), x.aval) if isinstance(x, Zero) else x


class Movement(Primitive):
    """A primitive that moves elements of its leading `moved` operands (None: of all) unchanged to its
    one result: linear in them, so that its derivative is itself. Further operands are indices.

    Subclasses write `adjoint(ct, *args, **params)`, a transpose that need not think of zeros.
    """

    cost = 0.0
    moves = True
    moved: int | None = None

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = self.bind(*primals, **params)
        count = len(primals) if self.moved is None else self.moved
        if all(isinstance(t, Zero) for t in tangents[:count]):
            return out, Zero(tangent_aval(aval_of(out)))
        return out, self.bind(*map(instantiate, tangents[:count]), *primals[count:], **params)

    def transpose(self, ct: Any, *args: Any, **params: Any) -> Sequence[Any]:
        if isinstance(ct, Zero):
            return [Zero(a.aval) if isinstance(a, Linear) else None for a in args]
        return self.adjoint(ct, *args, **params)

    def adjoint(self, ct: Any, *args: Any, **params: Any) -> Sequence[Any]:
        raise self._missing("Transposition (reverse-mode differentiation)")


class BroadcastInDim(Movement):
    """Operand axis `i` becomes result axis `broadcast_dimensions[i]`; sizes 1 and new axes repeat."""

    keeps_nan = True

    def infer(self, x: ShapedArray, *, shape: Shape, broadcast_dimensions: Shape) -> ShapedArray:
        dims = broadcast_dimensions
        check_nonnegative(shape, "broadcast_in_dim shape")
        check_nonnegative(dims, "broadcast_in_dim broadcast_dimensions")
        if len(dims) != x.ndim:
            raise TypeError("broadcast_in_dim broadcast_dimensions must have length equal to operand ndim; "
                            f"got broadcast_dimensions {dims} for operand ndim {x.ndim}.")
        if len(shape) < x.ndim:
            raise TypeError("broadcast_in_dim target broadcast shape must have equal or higher rank to the operand "
                            f"shape; got operand ndim {x.ndim} and target broadcast ndim {len(shape)}.")
        if any(d >= len(shape) for d in dims):
            raise TypeError("broadcast_in_dim broadcast_dimensions must be a subset of output dimensions, got "
                            f"{dims} for operand ndim {x.ndim} and shape {shape}.")
        if any(n != 1 and n != shape[d] for n, d in zip(x.shape, dims, strict=True)):
            raise TypeError("broadcast_in_dim operand dimension sizes must either be 1, or be equal to their "
                            "corresponding dimensions in the target broadcast shape; got operand of shape "
                            f"{x.shape}, target broadcast shape {shape}, broadcast_dimensions {dims}")
        if any(a >= b for a, b in itertools.pairwise(dims)):
            raise TypeError(f"broadcast_in_dim broadcast_dimensions must be strictly increasing; got {dims}")
        return x.update(shape=shape)

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray],
                      *, broadcast_dimensions: Shape, **params: Any) -> ShardingRule:
        (x,), shape = avals, outs[0].shape
        kept = [d if n == shape[d] else None for n, d in zip(x.shape, broadcast_dimensions, strict=True)]
        return ShardingRule([dims(*kept)], [dims(*range(len(shape)))])

    def on_parts(self, params: dict[str, Any], avals: Sequence[ShapedArray],
                 outs: Sequence[ShapedArray]) -> dict[str, Any]:
        return {**params, "shape": outs[0].shape}

    def aligned(self, given: Shape, *, shape: Shape, broadcast_dimensions: Shape) -> Shape:
        sizes = dict(zip(broadcast_dimensions, given, strict=True))
        return tuple([sizes.get(d, 1) for d in range(len(shape))])

    def eval(self, x: np.ndarray, *, shape: Shape, broadcast_dimensions: Shape) -> np.ndarray:
        out = x.reshape(self.aligned(x.shape, shape=shape, broadcast_dimensions=broadcast_dimensions))
        return out if out.shape == shape else np.broadcast_to(out, shape)

    def adjoint(self, ct: Any, x: Linear, *, shape: Shape, broadcast_dimensions: Shape) -> Sequence[Any]:
        given = x.aval.shape
        repeated = [d for n, d in zip(given, broadcast_dimensions, strict=True) if n == 1 and shape[d] != 1]
        new = [d for d in range(len(shape)) if d not in broadcast_dimensions]
        ct = reduce_sum(ct, sorted(new + repeated))
        return [expand_dims(ct, [i for i, d in enumerate(broadcast_dimensions) if d in repeated])]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[Any], *, shape: Shape,
              broadcast_dimensions: Shape) -> tuple[Any, int]:
        # The batch axis goes right behind the axis it follows in the operand: nothing is transposed.
        d, kept = dims[0], broadcast_dimensions
        out = kept[d - 1] + 1 if d else 0
        new_dims = (*kept[:d], out, *(k + 1 for k in kept[d:]))
        wider = (*shape[:out], index_of(size), *shape[out:])
        return self.bind(args[0], shape=wider, broadcast_dimensions=new_dims), out

    def is_view(self, operand: ShapedArray, result: ShapedArray) -> bool:
        return operand.size == result.size

    def physical(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> dict[str, Any]:
        shape, inner = params["shape"], element_shape(avals[0])
        more = tuple(range(len(shape), len(shape) + len(inner)))
        return {"shape": shape + inner, "broadcast_dimensions": params["broadcast_dimensions"] + more}


_FEW = 1 << 14  # elements that lie in a cache, so that columns are read where they are


class ReduceSum(Movement):
    """The sum over `axes`. Integers wrap around; types below 32 bits add up in float32 and round once."""

    cost = 1.0  # for each element that is added
    large = LARGE
    moves = False
    keeps_nan = True

    def infer(self, x: ShapedArray, *, axes: Shape) -> ShapedArray:
        if not dtypes.issubdtype(x.dtype, np.number):
            raise TypeError(f"reduce_sum does not accept dtype {dtypes.name(x.dtype)}. "
                            "Accepted dtypes are subtypes of number.")
        if x.dtype.itemsize == 2 and not config.allow_f16_reductions and dtypes.issubdtype(x.dtype, np.floating):
            raise ValueError(f"reduce_sum on operand {x.str_short()} is not allowed when "
                             "anima_allow_f16_reductions=False.")
        return x.update(shape=reduced_shape(x, axes))

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray],
                      *, axes: Shape, **params: Any) -> ShardingRule:
        return without(axes, avals[0], outs, "add")

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             **params: Any) -> Work:
        return Work(float(max(avals[0].size - outs[0].size, 0)))

    def as_ufunc(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> Callable[..., Any] | None:
        (x,), axes = avals, params["axes"]
        count = len(axes)
        together = axes == (*range(x.ndim - count, x.ndim),) or (axes == (*range(count),) and x.size <= _FEW)
        several = math.prod([x.shape[a] for a in axes]) > 1
        return np.add.reduce if together and several and x.dtype.itemsize >= 4 else None

    def eval(self, x: np.ndarray, *, axes: Shape) -> np.ndarray:
        first = x.ndim - len(axes)
        if axes and axes == (*range(first, x.ndim),) and x.size and x.dtype.itemsize >= 4 and x.flags.c_contiguous:
            rows = x.reshape(*x.shape[:first], -1)
            if rows.shape[-1] > 1:
                return np.add.reduce(rows, -1, rows.dtype)
        # NumPy's own sum is pairwise only along the innermost axis: bring the summed ones there.
        if x.ndim == 2 and axes == (0,):
            rows = x.T
        else:
            kept = [i for i in range(x.ndim) if i not in axes]
            count = math.prod([x.shape[a] for a in axes])
            rows = x.transpose(*kept, *axes).reshape([*[x.shape[i] for i in kept], count])
        if rows.shape[-1] == 1:
            return rows[..., 0]  # -0.0 stays
        dtype = x.dtype
        if dtype.itemsize < 4 and dtypes.issubdtype(dtype, np.floating):
            return np.add.reduce(np.ascontiguousarray(rows, np.float32), -1).astype(dtype)
        return np.add.reduce(np.ascontiguousarray(rows), -1, dtype)

    def adjoint(self, ct: Any, x: Linear, *, axes: Shape) -> Sequence[Any]:
        kept = tuple(i for i in range(x.aval.ndim) if i not in axes)
        return [broadcast_in_dim(ct, x.aval.shape, kept)]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[Any], *, axes: Shape) -> tuple[Any, int]:
        d = dims[0]
        return self.bind(args[0], axes=tuple(a + (a >= d) for a in axes)), d - sum(a < d for a in axes)


class Iota(Primitive):
    """Counts 0, 1, 2... along one dimension."""

    cost = 0.0
    moves = True

    def infer(self, *, dimension: int, dtype: Any, shape: Shape) -> ShapedArray:
        check_nonnegative(shape, "iota shape")
        if not dtypes.issubdtype(dtype, np.number):
            raise TypeError(f"iota does not accept dtype {dtypes.name(dtype)}. "
                            "Accepted dtypes are subtypes of integer, floating, complexfloating.")
        if not 0 <= dimension < len(shape):
            raise ValueError(f"iota dimension must be between 0 and len(shape), got {dimension=} for {shape=}")
        check_countable("iota", shape[dimension], dtype)
        return ShapedArray(shape, dtype)

    def eval(self, *, dimension: int, dtype: Any, shape: Shape) -> np.ndarray:
        aligned = [1] * len(shape)
        aligned[dimension] = shape[dimension]
        return np.broadcast_to(np.arange(shape[dimension]).astype(dtype).reshape(aligned), shape)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Zero]:
        out = self.bind(**params)
        return out, Zero(tangent_aval(aval_of(out)))

    def transpose(self, ct: Any, *args: Any, **params: Any) -> Sequence[Any]:
        return []

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[Any, None]:
        return self.bind(**params), None


broadcast_in_dim_p = BroadcastInDim("broadcast_in_dim")
reduce_sum_p = ReduceSum("reduce_sum")
iota_p = Iota("iota")


def broadcast_in_dim(operand: Any, shape: Any, broadcast_dimensions: Sequence[int], *,
                     out_sharding: Any = None) -> Any:
    """`operand` repeated to `shape`, its axis `i` becoming axis `broadcast_dimensions[i]` of the result.

    TypeError if an operand size is neither 1 nor the size of its result axis.
    """
    if out_sharding is not None:
        return as_asked("broadcast_in_dim", None, out_sharding, broadcast_in_dim, operand, shape, broadcast_dimensions)
    shape = as_shape(shape, "broadcast_in_dim shape")
    dims = as_shape(broadcast_dimensions, "broadcast_in_dim broadcast_dimensions")
    if shape_of(operand) == shape and dims == tuple(range(len(shape))):
        return as_array(operand)
    return broadcast_in_dim_p.bind(operand, shape=shape, broadcast_dimensions=dims)


def broadcast(operand: Any, sizes: Sequence[int], *, out_sharding: Any = None) -> Any:
    """`operand` repeated along new leading axes of the given sizes."""
    if out_sharding is not None:
        return as_asked("broadcast", None, out_sharding, broadcast, operand, sizes)
    given, sizes = shape_of(operand), as_shape(sizes)
    return broadcast_in_dim(operand, sizes + given, range(len(sizes), len(sizes) + len(given)))


def broadcast_to_rank(x: Any, rank: int) -> Any:
    """`x` with leading axes of size 1 up to `rank` dimensions."""
    missing = rank - len(shape_of(x))
    return as_array(x) if missing <= 0 else expand_dims(x, range(missing))


def broadcast_to(x: Any, shape: Any) -> Any:
    """`x` broadcast to `shape` by NumPy's rules; ValueError if that cannot be."""
    shape, given = as_shape(shape), shape_of(x)
    lead = len(shape) - len(given)
    if lead < 0 or any(n != 1 and n != m for n, m in zip(given, shape[lead:], strict=True)):
        kind = dtypes.name(aval_of(x).dtype)
        listed = ",".join(map(str, given)), ",".join(map(str, shape))
        raise ValueError(f"Incompatible types for broadcasting: input type={kind}[{listed[0]}] and requested "
                         f"type={kind}[{listed[1]}]")
    return broadcast_in_dim(x, shape, range(lead, len(shape)))


def broadcast_like(arr: Any, like_arr: Any) -> Any:
    """`arr` broadcast to the shape of `like_arr` by NumPy's rules."""
    return broadcast_to(arr, shape_of(like_arr))


def expand_dims(array: Any, dimensions: Iterable[int]) -> Any:
    """`array` with new axes of size 1 at `dimensions`, positions in the result; ValueError if one repeats."""
    given, dims = shape_of(array), tuple(dimensions)
    rank = len(given) + len(dims)
    new = {canonicalize_axis(d, rank) for d in dims}
    if len(new) != len(dims):
        raise ValueError(f"repeated axis in lax.expand_dims: {dims}")
    kept = [d for d in range(rank) if d not in new]
    sizes = [1] * rank
    for d, n in zip(kept, given, strict=True):
        sizes[d] = n
    return broadcast_in_dim(array, sizes, kept)


def reduce_sum(operand: Any, axes: Sequence[int], *, out_sharding: Any = None) -> Any:
    """The sum of `operand` over `axes`, in its own element type."""
    if out_sharding is not None:
        return as_asked("reduce_sum", None, out_sharding, reduce_sum, operand, axes)
    axes = tuple(canonicalize_axis(a, len(shape_of(operand))) for a in axes)
    return reduce_sum_p.bind(operand, axes=axes) if axes else as_array(operand)


def iota(dtype: Any, size: int) -> Any:
    """`[0, 1, ..., size - 1]` of the given element type."""
    return broadcasted_iota(dtype, (size,), 0)


def broadcasted_iota(dtype: Any, shape: Any, dimension: int, *, out_sharding: Any = None) -> Any:
    """An array of `shape` whose every element is its own index along `dimension`."""
    if out_sharding is not None:
        return as_asked("broadcasted_iota", None, out_sharding, broadcasted_iota, dtype, shape, dimension)
    return iota_p.bind(dtype=dtypes.canonicalize_dtype(dtype), shape=as_shape(shape, "iota shape"),
                       dimension=operator.index(dimension))


def scalar(value: Any, dtype: Any, weak_type: bool = False) -> Any:
    """`value`, a number or a scalar array, as a scalar of element type `dtype`."""
    aval = aval_of(value)
    if aval.dtype == dtype and isinstance(value, Array) and aval.weak_type == weak_type:
        return value
    if isinstance(value, Tracer) or pulls(value):
        return value.astype(dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        number = np.asarray(reference.convert(np.asarray(value), dtype))
    return ConcreteArray(number, scalar_type(dtype, weak_type))


def full(shape: Any, fill_value: Any, dtype: Any = None, *, sharding: Any = None) -> Any:
    """An array of `shape` filled with the scalar `fill_value`, of its element type or of `dtype`."""
    if sharding is not None:
        return as_asked("full", sharding, None, full, shape, fill_value, dtype)
    if dtype is not None:
        dtype = dtypes.canonicalize_dtype(dtype)
        fill_value = dtypes.number_of(fill_value, dtype)
    shape, fill = as_shape(shape, "full shape"), aval_of(fill_value)
    if fill.shape:
        raise TypeError(f"full must be called with scalar fill_value, got fill_value.shape {fill.shape}.")
    weak = dtype is None and fill.weak_type
    return broadcast(scalar(fill_value, fill.dtype if dtype is None else dtype, weak), shape)


def full_like(x: Any, fill_value: Any, dtype: Any = None, shape: Any = None, sharding: Any = None) -> Any:
    """An array like `x` (its shape, element type and sharding, unless given) filled with `fill_value`."""
    if sharding is not None:
        return as_asked("full_like", sharding, None, full_like, x, fill_value, dtype, shape)
    described = not is_array_like(x) and hasattr(x, "shape") and hasattr(x, "dtype")
    aval = described_aval(x) if described else aval_of(x)
    weak = dtype is None and aval.weak_type
    dtype = aval.dtype if dtype is None else dtypes.canonicalize_dtype(dtype)
    fill_value = dtypes.number_of(fill_value, dtype)
    fill = aval_of(fill_value)
    if fill.shape:
        raise TypeError(f"full must be called with scalar fill_value, got fill_value.shape {fill.shape}.")
    value = scalar(fill_value, dtype, weak)
    out = broadcast(value, aval.shape if shape is None else as_shape(shape, "full_like shape"))
    return put_like(x, out) if lies_somewhere(x, shape) else varying(out, aval.vma)


def described_aval(x: Any) -> ShapedArray:
    """The type of what has a shape and a dtype."""
    return ShapedArray(tuple(x.shape), dtypes.canonicalize_dtype(x.dtype), bool(getattr(x, "weak_type", False)))


def zeros(aval: ShapedArray) -> Any:
    """Zeros of the given type."""
    if aval.dtype == dtypes.float0:
        return ConcreteArray(np.zeros(aval.shape, dtypes.float0), aval)
    if isinstance(aval.dtype, dtypes.ExtendedDType):
        return aval.dtype.zeros(aval.shape)
    return broadcast(ConcreteArray(np.zeros((), aval.dtype), scalar_type(aval.dtype, aval.weak_type)), aval.shape)


def zeros_like(x: Any) -> Any:
    """Zeros of the type of `x`."""
    return zeros(aval_of(x))


def empty(shape: Any, dtype: Any, *, out_sharding: Any = None) -> Any:
    """An array whose elements nobody relies on: zeros."""
    if out_sharding is not None:
        return as_asked("empty", None, out_sharding, empty, shape, dtype)
    return full(shape, 0, dtype)
