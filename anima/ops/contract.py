"""Contraction: sums of products over pairs of axes, from the dot product to batched matrix products.

`dimension_numbers = ((lhs_contract, rhs_contract), (lhs_batch, rhs_batch))` pairs axes off. The result
has the batch axes, then the other axes of `lhs`, then those of `rhs`:

    >>> dot_general(jnp.ones((2, 3)), jnp.ones((3, 4)), (((1,), (0,)), ((), ()))).shape    # a matrix product
    (2, 4)

Its derivative is bilinear, and its transpose in either operand contracts the cotangent with the other.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from anima.config import default_matmul_precision
from anima.core import dtypes
from anima.core.avals import Shape, ShapedArray, ShardedArray, tangent_aval
from anima.core.partition import PartitionSpec
from anima.core.primitive import LARGE, Linear, Primitive, ShardingRule, Work, Zero
from anima.core.sharding_rules import dims
from anima.core.trace import aval_of
from anima.ops import reference
from anima.ops.broadcast import as_array, shape_of
from anima.ops.elementwise import convert
from anima.ops.family import WIDER, add_any
from anima.ops.placing import as_asked
from anima.ops.shape import transpose

Numbers = tuple[tuple[Shape, Shape], tuple[Shape, Shape]]


class Precision(enum.Enum):
    """How exactly to multiply float32: all are full precision on a CPU."""

    DEFAULT = 0
    HIGH = 1
    HIGHEST = 2

    @classmethod
    def _missing_(cls, value: object) -> Precision | None:
        return cls.DEFAULT if value is None else _PRECISION_NAMES.get(value) if isinstance(value, str) else None

    def __repr__(self) -> str:
        return f"Precision.{self.name}"

    def __str__(self) -> str:
        return self.name


class DotAlgorithm(NamedTuple):
    """How to multiply and add: what operands are rounded to, and in which type products are added.

    The counts are of the parts that operands are split into, and of the products of parts; a CPU splits nothing.
    """

    lhs_precision_type: Any
    rhs_precision_type: Any
    accumulation_type: Any
    lhs_component_count: int = 1
    rhs_component_count: int = 1
    num_primitive_operations: int = 1
    allow_imprecise_accumulation: bool = False


class DotAlgorithmPreset(enum.Enum):
    """Algorithms by name: the types of the operands, and of the sums. On a CPU those of one part each are supported;
    float32 does what three or six products of parts come near to."""

    DEFAULT = enum.auto()
    ANY_F8_ANY_F8_F32 = enum.auto()
    ANY_F8_ANY_F8_F32_FAST_ACCUM = enum.auto()
    ANY_F8_ANY_F8_ANY = enum.auto()
    ANY_F8_ANY_F8_ANY_FAST_ACCUM = enum.auto()
    F16_F16_F16 = enum.auto()
    F16_F16_F32 = enum.auto()
    BF16_BF16_BF16 = enum.auto()
    BF16_BF16_F32 = enum.auto()
    BF16_BF16_F32_X3 = enum.auto()
    BF16_BF16_F32_X6 = enum.auto()
    BF16_BF16_F32_X9 = enum.auto()
    TF32_TF32_F32 = enum.auto()
    TF32_TF32_F32_X3 = enum.auto()
    F32_F32_F32 = enum.auto()
    F64_F64_F64 = enum.auto()

    def __repr__(self) -> str:
        return f"DotAlgorithmPreset.{self.name}"

    def __str__(self) -> str:
        return self.name


_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)
_ALGORITHMS = {
    DotAlgorithmPreset.F16_F16_F16: (np.dtype(np.float16), np.dtype(np.float16)),
    DotAlgorithmPreset.F16_F16_F32: (np.dtype(np.float16), _F32),
    DotAlgorithmPreset.BF16_BF16_BF16: (dtypes.bfloat16, dtypes.bfloat16),
    DotAlgorithmPreset.BF16_BF16_F32: (dtypes.bfloat16, _F32),
    DotAlgorithmPreset.BF16_BF16_F32_X3: (_F32, _F32), DotAlgorithmPreset.BF16_BF16_F32_X6: (_F32, _F32),
    DotAlgorithmPreset.F32_F32_F32: (_F32, _F32), DotAlgorithmPreset.F64_F64_F64: (_F64, _F64)}

DotDimensionNumbers = tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]]
PrecisionLike = (None | str | Precision | tuple[str, str] | tuple[Precision, Precision] | DotAlgorithm
                 | DotAlgorithmPreset)


def _algorithm(precision: Any) -> tuple[Any, Any] | None:
    """(dtype of the operands, dtype of the sums) where an algorithm is asked for; ValueError for an unsupported one."""
    if isinstance(precision, str) and precision in DotAlgorithmPreset.__members__:
        precision = DotAlgorithmPreset[precision]
    if precision is DotAlgorithmPreset.DEFAULT or not isinstance(precision, (DotAlgorithm, DotAlgorithmPreset)):
        return None
    if isinstance(precision, DotAlgorithmPreset) and precision in _ALGORITHMS:
        return _ALGORITHMS[precision]
    if isinstance(precision, DotAlgorithm):
        given = [np.dtype(t) for t in (precision.lhs_precision_type, precision.rhs_precision_type,
                                       precision.accumulation_type)]
        parts = precision.lhs_component_count, precision.rhs_component_count, precision.num_primitive_operations
        if given[0] == given[1] and (given[0], given[2]) in _ALGORITHMS.values() and parts == (1, 1, 1):
            return given[0], given[2]
    raise ValueError(f"The precision {precision} is not supported by dot_general on CPU")


def _algorithm_of_all(lhs: Any, rhs: Any) -> tuple[Any, Any] | None:
    """The algorithm of products that name none, if `default_matmul_precision` is one: it is for real floats alone."""
    name = default_matmul_precision.value
    if name is None or not all(dtypes.issubdtype(aval_of(x).dtype, np.floating) for x in (lhs, rhs)):
        return None
    return _algorithm(name)


_PRECISION_NAMES = {
    "default": Precision.DEFAULT, "fastest": Precision.DEFAULT, "bfloat16": Precision.DEFAULT,
    "high": Precision.HIGH, "bfloat16_3x": Precision.HIGH, "tensorfloat32": Precision.HIGH,
    "highest": Precision.HIGHEST, "float32": Precision.HIGHEST}


def canonicalize_precision(precision: Any) -> tuple[Precision, Precision] | None:
    """A pair of precisions from None, one, a name, or a pair; ValueError for anything else."""
    if precision is None:
        return None
    both = precision if isinstance(precision, (tuple, list)) else (precision, precision)
    try:
        lhs, rhs = (Precision("" if p is None else p) for p in both)  # None alone is the default
    except ValueError:
        raise ValueError("Precision must be None, a Precision, a pair of these, or one of the names "
                         f"{sorted(_PRECISION_NAMES)}; got {precision!r}.") from None
    return lhs, rhs


def other_axes(ndim: int, *used: Shape) -> Shape:
    """The axes below `ndim` that are in none of `used`, in order."""
    taken = {a for axes in used for a in axes}
    return tuple(a for a in range(ndim) if a not in taken)


def _sizes(shape: Shape, axes: Shape) -> Shape:
    return tuple(shape[a] for a in axes)


class Bilinear(Primitive):
    """An operation on two operands that is linear in each of them."""

    def is_exact(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> bool:
        return all(a.dtype.kind in "bui" for a in avals)

    def is_large(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> bool:
        many = LARGE << 2 if all(a.dtype.char in "fdFD" for a in avals) else LARGE  # else NumPy calls no BLAS
        if avals[0].size * avals[1].size < many:  # products of numbers, at most
            return False
        return self.work(avals, [self.infer(*avals, **params)], [], **params).flops >= 2 * many

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        (x, y), (t, u) = primals, tangents
        out = self.bind(x, y, **params)
        terms = [self.bind(*pair, **params) for pair, tangent in (((t, y), t), ((x, u), u))
                 if not isinstance(tangent, Zero)]
        if not terms or not dtypes.issubdtype(aval_of(out).dtype, np.inexact):
            return out, Zero(tangent_aval(aval_of(out)))
        return out, terms[0] if len(terms) == 1 else add_any(*terms)


class DotGeneral(Bilinear):
    """Multiplies along batch axes, sums along contracting ones, and pairs all others."""

    keeps_nan = True

    def as_ufunc(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> np.ufunc | None:
        lhs, rhs = avals
        (contracted, _), batch = params["dimension_numbers"]
        of_matrices = len(contracted) == 1 and batch == ((), ()) and 1 <= lhs.ndim <= 2 and 1 <= rhs.ndim <= 2
        dtypes_ = {lhs.dtype, rhs.dtype, params.get("preferred_element_type") or lhs.dtype}
        return np.matmul if of_matrices and len(dtypes_) == 1 and lhs.dtype not in WIDER else None

    def infer(self, lhs: ShapedArray, rhs: ShapedArray, *, dimension_numbers: Numbers, precision: Any = None,
              preferred_element_type: Any = None) -> ShapedArray:
        (lc, rc), (lb, rb) = dimension_numbers
        _check_axes(lhs, rhs, dimension_numbers)
        shape = (_sizes(lhs.shape, lb) + _sizes(lhs.shape, other_axes(lhs.ndim, lc, lb))
                 + _sizes(rhs.shape, other_axes(rhs.ndim, rc, rb)))
        dtype = natural_dtype(lhs.dtype, rhs.dtype)
        if preferred_element_type is not None and preferred_element_type != dtype:
            _check_preferred(dtype, preferred_element_type)
            dtype = preferred_element_type
        return ShapedArray(shape, dtype, lhs.weak_type and rhs.weak_type)

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray],
                      *, dimension_numbers: Numbers, **params: Any) -> ShardingRule:
        (lhs, rhs), ((lhs_contract, rhs_contract), (lhs_batch, rhs_batch)) = avals, dimension_numbers
        left = [f"m{k}" for k in range(lhs.ndim)]
        right = [f"n{k}" for k in range(rhs.ndim)]
        for i, j in (*zip(lhs_batch, rhs_batch, strict=True), *zip(lhs_contract, rhs_contract, strict=True)):
            right[j] = left[i]
        out = [left[i] for i in lhs_batch]
        out += [f for i, f in enumerate(left) if i not in lhs_batch and i not in lhs_contract]
        out += [f for j, f in enumerate(right) if j not in rhs_batch and j not in rhs_contract]
        return ShardingRule([dims(*left), dims(*right)], [dims(*out)], summed=frozenset(left[i] for i in lhs_contract),
                            combines="add")

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             *, dimension_numbers: Numbers, **params: Any) -> Work:
        return Work(2.0 * outs[0].size * math.prod(_sizes(avals[0].shape, dimension_numbers[0][0])))

    def eval(self, lhs: np.ndarray, rhs: np.ndarray, *, dimension_numbers: Numbers, precision: Any = None,
             preferred_element_type: Any = None) -> np.ndarray:
        natural = natural_dtype(lhs.dtype, rhs.dtype)
        dtype = natural if preferred_element_type is None else preferred_element_type
        work = working_dtype(natural, dtype)
        (order_a, shape_a), (order_b, shape_b), shape = _as_matrices(lhs.shape, rhs.shape, dimension_numbers)
        a = lhs if order_a is None else lhs.transpose(order_a).reshape(shape_a)
        b = rhs if order_b is None else rhs.transpose(order_b).reshape(shape_b)
        out = np.matmul(_as(a, work), _as(b, work)).reshape(shape)
        return out if out.dtype == dtype else reference.convert(out, dtype)

    def transpose(self, ct: Any, x: Any, y: Any, *, dimension_numbers: Numbers, precision: Any = None,
                  preferred_element_type: Any = None) -> Sequence[Any]:
        if isinstance(ct, Zero):
            return [Zero(a.aval) if isinstance(a, Linear) else None for a in (x, y)]
        (lc, rc), (lb, rb) = dimension_numbers
        params = {"precision": precision, "preferred_element_type": preferred_element_type}
        if isinstance(x, Linear):
            return [self._cotangent(ct, x.aval, y, dimension_numbers, False, params), None]
        return [None, self._cotangent(ct, y.aval, x, ((rc, lc), (rb, lb)), True, params)]

    def _cotangent(self, ct: Any, aval: ShapedArray, y: Any, numbers: Numbers, swapped: bool,
                   params: dict[str, Any]) -> Any:
        """The cotangent of the operand that `numbers` puts first; `swapped` if it was the second one."""
        (xc, yc), (xb, yb) = numbers
        xo, yo = other_axes(aval.ndim, xc, xb), other_axes(len(y.shape), yc, yb)
        batch = tuple(range(len(xb)))
        first = len(xb) + (0 if swapped else len(xo))  # where the axes of y are in ct
        contract = tuple(range(first, first + len(yo)))
        product = partial(self.bind, dimension_numbers=((contract, yo), (batch, yb)), **params)
        # The result has batch axes, the other axes of x, and the contracted ones in the order of y.
        in_order_of_y = tuple(xc[yc.index(a)] for a in sorted(yc))
        places = tuple(xb) + xo + in_order_of_y
        if type(aval) is ShardedArray:
            spec = PartitionSpec(*(aval.sharding.spec[p] for p in places))
            out = as_asked("dot_general", None, aval.sharding.update(spec=spec), product, ct, y)
        else:
            out = product(ct, y)
        out = transpose(out, tuple(int(i) for i in np.argsort(places)))
        return convert(out, aval.dtype, aval.weak_type) if aval_of(out).dtype != aval.dtype else out

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, dimension_numbers: Numbers,
              **params: Any) -> tuple[Any, int]:
        (lc, rc), (lb, rb) = dimension_numbers
        (x, y), (dx, dy) = args, dims
        if dx is not None and dy is not None:
            numbers = ((_shift(lc, dx), _shift(rc, dy)), ((dx, *_shift(lb, dx)), (dy, *_shift(rb, dy))))
            return self.bind(x, y, dimension_numbers=numbers, **params), 0
        if dx is not None:
            lc, lb = _shift(lc, dx), _shift(lb, dx)
            place = len(lb) + other_axes(len(x.shape), lc, lb).index(dx)
        else:
            assert dy is not None
            rc, rb = _shift(rc, dy), _shift(rb, dy)
            place = len(x.shape) - len(lc) + other_axes(len(y.shape), rc, rb).index(dy)
        return self.bind(x, y, dimension_numbers=((lc, rc), (lb, rb)), **params), place


def _shift(axes: Shape, batch_axis: int) -> Shape:
    return tuple(a + (a >= batch_axis) for a in axes)


_Form = tuple[Shape | None, Shape]


@functools.lru_cache(2048)
def _as_matrices(lhs: Shape, rhs: Shape, numbers: Numbers) -> tuple[_Form, _Form, Shape]:
    """The order of axes in which each operand is a stack of matrices (None: it is one), the shape of that; the shape
    of the result."""
    def form(given: Shape, order: Shape, wanted: Shape) -> _Form:
        return (None if given == wanted and order == (*range(len(given)),) else order), wanted

    (lc, rc), (lb, rb) = numbers
    lo, ro = other_axes(len(lhs), lc, lb), other_axes(len(rhs), rc, rb)
    batch, k = _sizes(lhs, lb), math.prod(_sizes(lhs, lc))
    rows, columns = _sizes(lhs, lo), _sizes(rhs, ro)
    return (form(lhs, (*lb, *lo, *lc), (*batch, math.prod(rows), k)),
            form(rhs, (*rb, *rc, *ro), (*batch, k, math.prod(columns))), batch + rows + columns)


def _as(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return x if x.dtype is dtype or x.dtype == dtype else x.astype(dtype)


def natural_dtype(lhs: Any, rhs: Any) -> Any:
    """Of two dtypes the one with more kinds of numbers, more bits, the greater range; a signed one before its twin."""
    return lhs if lhs is rhs or lhs == rhs else max(lhs, rhs, key=_reach)


@functools.cache
def _reach(dtype: Any) -> tuple[int, int, int]:
    kinds = (np.bool_, np.integer, np.floating, np.complexfloating)
    rank = next(k for k, kind in enumerate(kinds) if dtypes.issubdtype(dtype, kind))
    last = dtypes.finfo(dtype).maxexp if rank == 2 else int(dtypes.issubdtype(dtype, np.signedinteger))
    return rank, dtypes.itemsize_bits(dtype), int(last)


def working_dtype(natural: Any, wanted: Any) -> np.dtype:
    """What products and sums are computed in: float32 for smaller floats, the result's if that is wider, or of floats
    where the operands are none."""
    work = WIDER.get(natural, natural)
    if wanted != natural and dtypes.issubdtype(wanted, np.number):
        wide = WIDER.get(wanted, wanted)
        exact = not dtypes.issubdtype(natural, np.inexact)
        if np.result_type(work, wide) == wide or (exact and dtypes.issubdtype(wanted, np.inexact)):
            return wide
    return work


def _check_preferred(natural: Any, preferred: Any) -> None:
    """TypeError if a result of dtype `natural` cannot be asked for as `preferred`."""
    for kind in (np.complexfloating, np.integer):
        if dtypes.issubdtype(natural, kind) and not dtypes.issubdtype(preferred, kind):
            if kind is np.integer and dtypes.issubdtype(preferred, np.inexact):
                continue
            raise TypeError(f"`preferred_element_type` and the original type must be of one kind, got "
                            f"{dtypes.name(preferred)} for result type of {dtypes.name(natural)}.")
    if dtypes.issubdtype(natural, np.integer) and (dtypes.itemsize_bits(preferred) < dtypes.itemsize_bits(natural)):
        raise TypeError("`preferred_element_type` must not be narrower than the original type, got "
                        f"preferred_element_type of {dtypes.name(preferred)} for result type of "
                        f"{dtypes.name(natural)}.")


def _check_axes(lhs: ShapedArray, rhs: ShapedArray, numbers: Numbers) -> None:
    """TypeError unless the dimension numbers make sense for the operands."""
    (lc, rc), (lb, rb) = numbers
    for side, x, contract, batch in (("lhs", lhs, lc, lb), ("rhs", rhs, rc, rb)):
        if not all(0 <= a < x.ndim for a in (*contract, *batch)):
            raise TypeError(f"dot_general requires {side} dimension numbers to be nonnegative and less than "
                            f"the number of axes of the {side} value, got {side}_batch of {batch} and "
                            f"{side}_contracting of {contract} for {side} of rank {x.ndim}")
    if len(lb) != len(rb):
        raise TypeError("dot_general requires equal numbers of lhs_batch and rhs_batch dimensions, "
                        f"got lhs_batch {lb} and rhs_batch {rb}.")
    for side, contract, batch in (("lhs", lc, lb), ("rhs", rc, rb)):
        for what, axes in (("batch", batch), ("contracting", contract)):
            if len(set(axes)) != len(axes):
                raise TypeError(f"dot_general requires {side} {what} dimensions to be distinct, "
                                f"got {side}_{what} {axes}.")
        if set(contract) & set(batch):
            raise TypeError(f"dot_general requires {side} batch dimensions to be disjoint from contracting "
                            f"dimensions, got {side}_batch {batch} and {side}_contracting {contract}.")
    if _sizes(lhs.shape, lb) != _sizes(rhs.shape, rb):
        raise TypeError("dot_general requires lhs batch dimensions and rhs batch dimensions to have the same "
                        f"shape, got {_sizes(lhs.shape, lb)} and {_sizes(rhs.shape, rb)}.")
    if _sizes(lhs.shape, lc) != _sizes(rhs.shape, rc):
        raise TypeError("dot_general requires contracting dimensions to have the same shape, "
                        f"got {_sizes(lhs.shape, lc)} and {_sizes(rhs.shape, rc)}.")


dot_general_p = DotGeneral("dot_general")


def _axes(axes: Any) -> Shape:
    return axes if type(axes) is tuple and len(axes) < 2 and type(sum(axes)) is int else tuple(map(int, axes))


def dot_general(lhs: Any, rhs: Any, dimension_numbers: Any, precision: Any = None,
                preferred_element_type: Any = None, *, out_sharding: Any = None) -> Any:
    """Sums of products of `lhs` and `rhs` over the contracting axes, for each batch index.

    `dimension_numbers` is `((lhs_contract, rhs_contract), (lhs_batch, rhs_batch))`; the result has the
    batch axes, then the remaining ones of `lhs`, then those of `rhs`, in the operands' common dtype or in
    `preferred_element_type`. Floats below 32 bits add up in float32. `precision` may also be a `DotAlgorithmPreset`, a
    `DotAlgorithm` or the name of one: operands are rounded to its types. TypeError if paired sizes differ, ValueError
    for an unknown precision, and for an algorithm that CPUs do not have.
    """
    if out_sharding is not None:
        return as_asked("dot_general", None, out_sharding, dot_general, lhs, rhs, dimension_numbers, precision,
                        preferred_element_type)
    algorithm = _algorithm_of_all(lhs, rhs) if precision is None else _algorithm(precision)
    if algorithm is not None:
        operands, sums = algorithm
        lhs, rhs = as_array(lhs), as_array(rhs)
        wanted = natural_dtype(lhs.dtype, rhs.dtype) if preferred_element_type is None else \
            dtypes.canonicalize_dtype(preferred_element_type)
        return convert(_product(convert(lhs, operands), convert(rhs, operands), dimension_numbers, None, sums), wanted)
    precision = None if isinstance(precision, DotAlgorithmPreset) or precision == "DEFAULT" else precision
    return _product(lhs, rhs, dimension_numbers, precision, preferred_element_type)


def _product(lhs: Any, rhs: Any, dimension_numbers: Any, precision: Any, preferred_element_type: Any) -> Any:
    (lc, rc), (lb, rb) = dimension_numbers
    preferred = None if preferred_element_type is None else dtypes.canonicalize_dtype(preferred_element_type)
    params = {"dimension_numbers": ((_axes(lc), _axes(rc)), (_axes(lb), _axes(rb))),
              "precision": canonicalize_precision(precision)}
    if preferred is not None and not dtypes.issubdtype(preferred, np.complexfloating):
        if any(dtypes.issubdtype(aval_of(x).dtype, np.complexfloating) for x in (lhs, rhs)):  # the real part
            return convert(dot_general_p.bind(lhs, rhs, **params, preferred_element_type=None), preferred)
    return dot_general_p.bind(lhs, rhs, **params, preferred_element_type=preferred)


def dot(lhs: Any, rhs: Any, *, dimension_numbers: Any = None, precision: Any = None,
        preferred_element_type: Any = None, out_sharding: Any = None) -> Any:
    """The product of vectors and matrices, or `dot_general` if `dimension_numbers` are given."""
    if dimension_numbers is None:
        a, b = shape_of(lhs), shape_of(rhs)
        if not (1 <= len(a) <= 2 and 1 <= len(b) <= 2 and a[-1] == b[0]):
            raise ValueError("lax.dot: dimension_numbers must be specified when not performing simple "
                             "un-batched matrix-matrix, matrix-vector, or vector-vector products; got "
                             f"lhs_shape={a} rhs_shape={b}")
        dimension_numbers = (((len(a) - 1,), (0,)), ((), ()))
    return dot_general(lhs, rhs, dimension_numbers, precision, preferred_element_type, out_sharding=out_sharding)


def batch_matmul(lhs: Any, rhs: Any, precision: Any = None) -> Any:
    """Matrix products of the last two axes, for each index of the (equal) leading ones."""
    n, m = len(shape_of(lhs)), len(shape_of(rhs))
    if n < 2 or m < 2:
        raise ValueError(f"Arguments to batch_matmul must be at least 2D, got {n}, {m}")
    if n != m:
        raise ValueError(f"Arguments to batch_matmul must have same ndim, got {n}, {m}")
    batch = tuple(range(n - 2))
    return dot_general(lhs, rhs, (((n - 1,), (n - 2,)), (batch, batch)), precision)
