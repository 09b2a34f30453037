"""Products that sum: dot, matmul, inner, outer, tensordot, kron, cross and their kin.

Each is one `dot_general` and the transposition that puts the result's axes in NumPy's order.
"""

from __future__ import annotations

import operator
from typing import Any

from anima.api.eager import of_numbers, repeated
from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import canonicalize_axis
from anima.errors import describe
from anima.numpy.elementwise import conj, multiply, subtract
from anima.numpy.manipulation import broadcast_shapes, moveaxis, ravel
from anima.numpy.promote import (
    as_array,
    as_arrays,
    convert_operand,
    no_out,
    normalize_axes,
    promote_dtypes,
    promote_factors,
)
from anima.ops import shape as sh
from anima.ops.contract import dot_general
from anima.ops.placing import as_asked

ArrayLike = Any


def _preferred(dtype: Any, name: str) -> Any:
    return None if dtype is None else dtypes.check_user_dtype(dtype, name)


def _scaled(a: Array, b: Array, preferred: Any) -> Array:
    """The product with a scalar."""
    if preferred is not None:
        a, b = (x.astype(preferred) for x in (a, b))
    return multiply(a, b)


def _check_sizes(what: str, a: Array, b: Array) -> None:
    last, row = a.shape[-1], b.shape[max(b.ndim - 2, 0)]
    if last != row:
        raise TypeError(f"dot_general requires contracting dimensions to have the same shape, got {(last,)} and "
                        f"{(row,)}.\n{what} contracts the last axis of a with the {'second to last' * (b.ndim > 1)}"
                        f"{'only' * (b.ndim == 1)} axis of b; their shapes are {a.shape} and {b.shape}.")


@of_numbers
def dot(a: ArrayLike, b: ArrayLike, *, precision: Any = None, preferred_element_type: Any = None,
        out_sharding: Any = None) -> Array:
    """The sum of products over the last axis of `a` and the second to last (of a vector, only) axis of `b`.

    TypeError if these differ in size.
    """
    if out_sharding is not None:
        return as_asked("dot", None, out_sharding, dot, a, b, precision=precision,
                        preferred_element_type=preferred_element_type)
    preferred = _preferred(preferred_element_type, "dot")
    a, b = promote_factors("dot", preferred, a, b)
    if not a.ndim or not b.ndim:
        return _scaled(a, b, preferred)
    contract = ((a.ndim - 1,), (max(b.ndim - 2, 0),))
    _check_sizes("dot(a, b)", a, b)
    return dot_general(a, b, (contract, ((), ())), precision, preferred)


@repeated
def matmul(a: ArrayLike, b: ArrayLike, *, precision: Any = None, preferred_element_type: Any = None,
           out_sharding: Any = None) -> Array:
    """The matrix product in the last two axes; the others broadcast. A vector is a row, or a column, as needed.

    ValueError for scalars, TypeError if the contracted sizes differ.
    """
    if out_sharding is not None:
        return as_asked("matmul", None, out_sharding, matmul, a, b, precision=precision,
                        preferred_element_type=preferred_element_type)
    preferred = _preferred(preferred_element_type, "matmul")
    a, b = promote_factors("matmul", preferred, a, b)
    for i, x in enumerate((a, b)):
        if not x.ndim:
            raise ValueError(f"matmul input operand {i} must have ndim at least 1, but it has ndim 0")
    _check_sizes("a @ b (matmul)", a, b)
    if a.ndim <= 2 and b.ndim <= 2:
        return dot_general(a, b, (((a.ndim - 1,), (b.ndim - 2 if b.ndim == 2 else 0,)), ((), ())), precision, preferred)
    return _batched_matmul(a, b, precision, preferred)


def _batched_matmul(a: Array, b: Array, precision: Any, preferred: Any) -> Array:
    a_core, b_core = min(a.ndim, 2), min(b.ndim, 2)
    a_batch, b_batch = a.shape[:a.ndim - a_core], b.shape[:b.ndim - b_core]
    try:
        rank = len(broadcast_shapes(a_batch, b_batch))
    except ValueError:
        raise ValueError(f"Incompatible types for matmul arguments: {describe(a.aval)} and {describe(b.aval)}. All "
                         f"axes but the last two broadcast, and {a_batch} and {b_batch} do not.") from None
    # Labels: batch axes are 0 .. rank - 1 counted from the left of the result, then row, column, contracted.
    row, column, contracted = rank, rank + 1, rank + 2
    a_labels = [rank - len(a_batch) + i for i in range(len(a_batch))] + ([row] if a_core == 2 else []) + [contracted]
    b_labels = [rank - len(b_batch) + i for i in range(len(b_batch))] + [contracted] + ([column] if b_core == 2 else [])
    a, a_labels = _without_stretched(a, a_labels, b.shape, b_labels, rank)
    b, b_labels = _without_stretched(b, b_labels, a.shape, a_labels, rank)
    out = list(range(rank)) + ([row] if a_core == 2 else []) + ([column] if b_core == 2 else [])
    return contract_labels(a, a_labels, b, b_labels, out, precision, preferred)


def _without_stretched(x: Array, labels: list[int], other_shape: tuple[int, ...], other: list[int],
                       rank: int) -> tuple[Array, list[int]]:
    """`x` without its batch axes of size 1 that the other operand has too."""
    gone = [i for i, label in enumerate(labels) if label < rank and x.shape[i] == 1 and label in other]
    return sh.squeeze(x, gone) if gone else x, [label for i, label in enumerate(labels) if i not in gone]


def contract_labels(a: Array, a_labels: Any, b: Array, b_labels: Any, out: Any, precision: Any = None,
                    preferred: Any = None) -> Array:
    """The product of two labelled arrays: labels of both that are in `out` are batch axes, those that are not
    are summed over; every other label is in `out`. Labels are distinct within an operand."""
    shared = [label for label in a_labels if label in b_labels]
    batch = [label for label in shared if label in out]
    summed = [label for label in shared if label not in out]
    numbers = (tuple(tuple(labels.index(s) for s in summed) for labels in (a_labels, b_labels)),
               tuple(tuple(labels.index(s) for s in batch) for labels in (a_labels, b_labels)))
    result = dot_general(a, b, numbers, precision, preferred)
    labels = [*batch, *(s for s in a_labels if s not in shared), *(s for s in b_labels if s not in shared)]
    return sh.transpose(result, [labels.index(label) for label in out])


@repeated
def vdot(a: ArrayLike, b: ArrayLike, *, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """The sum of conj(a) * b over all elements."""
    a, b = as_arrays("vdot", a, b)
    return dot(conj(ravel(a)), ravel(b), precision=precision, preferred_element_type=preferred_element_type)


@repeated
def inner(a: ArrayLike, b: ArrayLike, *, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """The sum of products over the last axes of both."""
    a, b = as_arrays("inner", a, b)
    if not a.ndim or not b.ndim:
        a, b = promote_factors("inner", preferred_element_type, a, b)
        return _scaled(a, b, _preferred(preferred_element_type, "inner"))
    return tensordot(a, b, (-1, -1), precision=precision, preferred_element_type=preferred_element_type)


@repeated
def outer(a: ArrayLike, b: ArrayLike, out: None = None) -> Array:
    """The matrix of products of the elements of `a` (rows) and `b` (columns), both flattened."""
    no_out("outer", out)
    a, b = promote_dtypes("outer", a, b)
    return multiply(sh.expand_dims(ravel(a), (1,)), sh.expand_dims(ravel(b), (0,)))


@repeated
def tensordot(a: ArrayLike, b: ArrayLike, axes: Any = 2, *, precision: Any = None, preferred_element_type: Any = None,
              out_sharding: Any = None) -> Array:
    """The sum of products over pairs of axes: the last n of `a` with the first n of `b`, or `axes` of each."""
    if out_sharding is not None:
        return as_asked("tensordot", None, out_sharding, tensordot, a, b, axes, precision=precision,
                        preferred_element_type=preferred_element_type)
    preferred = _preferred(preferred_element_type, "tensordot")
    a, b = promote_factors("tensordot", preferred, a, b)
    if isinstance(axes, (tuple, list)):
        if len(axes) != 2:
            raise TypeError("tensordot requires both axes lists to be either ints, tuples or lists of equal length, "
                            f"got {axes}")
        given = [(ax,) if hasattr(ax, "__index__") else tuple(ax) for ax in axes]
        if len(given[0]) != len(given[1]):
            raise TypeError(f"tensordot requires axes lists to have equal length, got {axes[0]} and {axes[1]}.")
        left, right = (normalize_axes(ax, x.ndim) for ax, x in zip(given, (a, b), strict=True))
    else:
        n = operator.index(axes)
        if n > min(a.ndim, b.ndim):
            raise TypeError(f"Number of tensordot axes (axes {n}) exceeds input ranks ({a.shape} and {b.shape})")
        if n < 0:
            raise ValueError(f"Number of tensordot axes must be non-negative, got {n}")
        left, right = tuple(range(a.ndim - n, a.ndim)), tuple(range(n))
    return dot_general(a, b, ((left, right), ((), ())), precision, preferred)


@repeated
def vecdot(x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1, precision: Any = None,
           preferred_element_type: Any = None) -> Array:
    """The sum of conj(x1) * x2 over `axis`; the other axes broadcast."""
    a, b = promote_factors("vecdot", preferred_element_type, x1, x2)
    if not a.ndim or not b.ndim:
        raise ValueError("vecdot requires arrays of at least one dimension")
    if a.shape[axis] != b.shape[axis]:
        raise ValueError(f"axis {axis} of the vecdot operands must match, got shapes {a.shape} and {b.shape}")
    a, b = moveaxis(a, axis, -1), moveaxis(b, axis, -1)
    a, b = sh.expand_dims(conj(a), (a.ndim - 1,)), sh.expand_dims(b, (b.ndim,))
    product = matmul(a, b, precision=precision, preferred_element_type=preferred_element_type)
    return sh.squeeze(product, (product.ndim - 2, product.ndim - 1))


@repeated
def matvec(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """The products of matrices (the last two axes of x1) and vectors (the last of x2); other axes broadcast."""
    a, b = promote_dtypes("matvec", x1, x2)
    _check_cores("matvec", a.ndim >= 2 and b.ndim >= 1, a.shape[-1:], b.shape[-1:])
    product = matmul(a, sh.expand_dims(b, (b.ndim,)))
    return sh.squeeze(product, (product.ndim - 1,))


@repeated
def vecmat(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """The products of vectors (the last axis of x1, conjugated) and matrices (the last two of x2)."""
    a, b = promote_dtypes("vecmat", x1, x2)
    _check_cores("vecmat", a.ndim >= 1 and b.ndim >= 2, a.shape[-1:], b.shape[-2:-1])
    product = matmul(sh.expand_dims(conj(a), (a.ndim - 1,)), b)
    return sh.squeeze(product, (product.ndim - 2,))


def _check_cores(name: str, enough: bool, left: Any, right: Any) -> None:
    if not enough:
        raise ValueError(f"{name}: operands have too few dimensions")
    if left != right:
        raise ValueError(f"{name}: inconsistent size for core dimension: {left[0]} vs {right[0]}")


@repeated
def kron(a: ArrayLike, b: ArrayLike) -> Array:
    """The Kronecker product: blocks of `b` scaled by each element of `a`."""
    a, b = promote_dtypes("kron", a, b)
    rank = max(a.ndim, b.ndim)
    a, b = sh.broadcast_to_rank(a, rank), sh.broadcast_to_rank(b, rank)
    if not rank:
        return multiply(a, b)
    wide_a = sh.expand_dims(a, [2 * i + 1 for i in range(rank)])
    wide_b = sh.expand_dims(b, [2 * i for i in range(rank)])
    return sh.reshape(multiply(wide_a, wide_b), [m * n for m, n in zip(a.shape, b.shape, strict=True)])


@repeated
def cross(a: ArrayLike, b: ArrayLike, axisa: int = -1, axisb: int = -1, axisc: int = -1,
          axis: int | None = None) -> Array:
    """The cross product of vectors of 3 (or 2) components in the given axes; of two 2-vectors, its z component."""
    a, b = (as_array(convert_operand(x, x.dtype, False)) for x in promote_dtypes("cross", a, b))
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = moveaxis(a, axisa, -1), moveaxis(b, axisb, -1)
    if a.shape[-1] not in (2, 3) or b.shape[-1] not in (2, 3):
        raise ValueError("Dimension must be either 2 or 3 for cross product")
    flat = a.shape[-1] == b.shape[-1] == 2
    ax, ay, az = _components(a)
    bx, by, bz = _components(b)
    z = subtract(multiply(ax, by), multiply(ay, bx))
    if flat:
        return z
    x = subtract(multiply(ay, bz), multiply(az, by))
    y = subtract(multiply(az, bx), multiply(ax, bz))
    joined = sh.stack([x, y, z], z.ndim)
    return moveaxis(joined, -1, canonicalize_axis(axisc, joined.ndim))


def _components(x: Array) -> list[Array]:
    parts = [sh.index_in_dim(x, i, x.ndim - 1, keepdims=False) for i in range(x.shape[-1])]
    return parts if len(parts) == 3 else [*parts, sh.full_like(parts[0], 0)]
