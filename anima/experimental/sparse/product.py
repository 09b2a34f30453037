"""Products of BCOO arrays with dense ones and with each other.

A product with a dense array goes entry by entry, or by rows where indices are in order; both are loops in generated
code (`anima/ops/sparse.py`).

    >>> mat = sparse.BCOO.fromdense(jnp.array([[0., 2.], [3., 0.]]))
    >>> sparse.bcoo_dot_general(mat, jnp.ones(2), dimension_numbers=(((1,), (0,)), ((), ())))
    Array([2., 3.], dtype=float32)
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from anima import lax, numpy as jnp
from anima.api.mapping import vmap
from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import Shape
from anima.experimental.sparse.bcoo import BCOO, parts_of
from anima.experimental.sparse.layout import (
    add_at,
    bcoo_extract,
    bcoo_todense,
    bcoo_update_layout,
    compiled,
    elements_at,
    inside,
    linear,
    spread,
    where_inside,
)
from anima.experimental.sparse.shape import bcoo_transpose
from anima.ops import sparse as ops

Axes = tuple[int, ...]
Numbers = tuple[tuple[Axes, Axes], tuple[Axes, Axes]]

_COLUMNS = 4     # of a dense operand, up to which entries in order are taken one by one, rather than by rows


def numbers_of(dimension_numbers: Any) -> Numbers:
    """Dimension numbers as tuples of ints."""
    (lc, rc), (lb, rb) = dimension_numbers
    (lc, rc, lb, rb) = (tuple(map(operator.index, axes)) for axes in (lc, rc, lb, rb))
    return (lc, rc), (lb, rb)


def checked_numbers(name: str, lhs: Shape, rhs: Shape, dimension_numbers: Any) -> Numbers:
    """TypeError unless the axes that belong together have the same sizes."""
    (lc, rc), (lb, rb) = numbers = numbers_of(dimension_numbers)
    for what, ones, others in (("contracting", lc, rc), ("batch", lb, rb)):
        sizes = tuple(lhs[a] for a in ones), tuple(rhs[a] for a in others)
        if sizes[0] != sizes[1]:
            raise TypeError(f"{name} requires {what} dimensions to have the same shape, got {sizes[0]} and {sizes[1]}.")
    if len({*lc, *lb}) != len(lc) + len(lb) or len({*rc, *rb}) != len(rc) + len(rb):
        raise TypeError(f"{name}: dimension numbers {dimension_numbers} name a dimension twice.")
    return numbers


def bcoo_dot_general(lhs: Any, rhs: Any, *, dimension_numbers: Any, precision: None = None,
                     preferred_element_type: Any = None, out_sharding: None = None) -> Any:
    """`lax.dot_general` where one operand is a BCOO array, or both are.

    Args:
      lhs, rhs: a BCOO array and a dense one, in this order or the other, or two BCOO arrays.
      dimension_numbers: ((lhs contracting, rhs contracting), (lhs batch, rhs batch)).
      precision: sums are in the precision of the result whatever it is.
      preferred_element_type: dtype of the result; by default what both dtypes promote to.

    Returns:
      A dense array, or, of two BCOO arrays, a BCOO array with as many elements as there may be products, or places for
      them, whatever is less.

    Raises:
      TypeError: for shapes that do not fit, or no BCOO array. NotImplementedError: of two BCOO arrays, for batch
      dimensions that are not batch dimensions of both.
    """
    if isinstance(lhs, BCOO) and isinstance(rhs, BCOO):
        return _sparse_by_sparse(lhs, rhs, checked_numbers("bcoo_dot_general", lhs.shape, rhs.shape, dimension_numbers),
                                 preferred_element_type)
    if not isinstance(lhs, BCOO) and not isinstance(rhs, BCOO):
        raise TypeError(f"bcoo_dot_general needs a BCOO array, got {type(lhs).__name__} and {type(rhs).__name__}.")
    mat, dense = (lhs, jnp.asarray(rhs)) if isinstance(lhs, BCOO) else (rhs, jnp.asarray(lhs))
    (lc, rc), (lb, rb) = checked_numbers("bcoo_dot_general", jnp.shape(dense) if mat is rhs else mat.shape,
                                         mat.shape if mat is rhs else dense.shape, dimension_numbers)
    dtype = jnp.result_type(mat.data, dense) if preferred_element_type is None else \
        dtypes.canonicalize_dtype(preferred_element_type)
    numbers = ((lc, rc), (lb, rb)) if mat is lhs else ((rc, lc), (rb, lb))
    data, indices = spread(mat)
    run = partial(_product, shape=mat.shape, numbers=numbers, in_order=mat.indices_sorted, dtype=dtype)
    out = compiled(run, data.size, data, indices, dense)
    if mat is rhs:  # its free axes come last
        batch, own = len(lb), mat.ndim - len(lb) - len(lc)
        out = jnp.transpose(out, (*range(batch), *range(batch + own, out.ndim), *range(batch, batch + own)))
    return out


class _Roles:
    """Which of some axes of the sparse operand are contracted, of the batch, or free, and their partners."""

    def __init__(self, axes: Sequence[int], numbers: Numbers):
        (mc, xc), (mb, xb) = numbers
        contracted, batch = dict(zip(mc, xc, strict=True)), dict(zip(mb, xb, strict=True))
        self.contracted = [a for a in axes if a in contracted]
        self.batch = [a for a in axes if a in batch]
        self.free = [a for a in axes if a not in contracted and a not in batch]
        self.partner = contracted | batch


def _product(data: Any, indices: Any, x: Any, *, shape: Shape, numbers: Numbers, in_order: bool, dtype: Any) -> Array:
    """[batch, free axes of the sparse operand, free axes of x]."""
    if dtype == np.bool_:
        return _product(data != 0, indices, (x != 0).astype(np.int32), shape=shape, numbers=numbers, in_order=in_order,
                        dtype=np.dtype(np.int32)) != 0
    data, x = data.astype(dtype), x.astype(dtype)
    n_batch, n_sparse = indices.ndim - 2, indices.shape[-1]
    (mc, xc), (mb, xb) = numbers
    outer, sparse, dense = (_Roles(range(a, b), numbers) for a, b in (
        (0, n_batch), (n_batch, n_batch + n_sparse), (n_batch + n_sparse, len(shape))))
    x_free = [a for a in range(x.ndim) if a not in xc and a not in xb]
    x_outer = [outer.partner[a] for a in range(n_batch) if a in outer.partner]
    inner = [sparse.contracted + sparse.batch, dense.batch, dense.contracted]
    partners = [[roles.partner[a] for a in axes] for roles, axes in zip((sparse, dense, dense), inner, strict=True)]
    arranged = jnp.transpose(x, (*x_outer, *(a for part in partners for a in part), *x_free))
    counts = [math.prod(x.shape[a] for a in part) for part in (*partners, x_free)]
    arranged = arranged.reshape(*(x.shape[a] for a in x_outer), *counts)
    own = [dense.batch, dense.contracted, dense.free]
    data = jnp.transpose(data, (*range(n_batch + 1), *(a - n_sparse + 1 for part in own for a in part)))
    data = data.reshape(*data.shape[: n_batch + 1], *(math.prod(shape[a] for a in part) for part in own))
    columns = [[a - n_batch for a in axes] for axes in (sparse.free + sparse.batch, sparse.contracted + sparse.batch)]
    sizes = shape[n_batch: n_batch + n_sparse]
    run = partial(_one_product, columns=columns, sizes=sizes, in_order=in_order)
    for a in reversed(range(n_batch)):
        run = vmap(run, in_axes=(0, 0, 0 if a in outer.partner else None))
    out = run(data, indices, arranged)
    axes = [*range(n_batch), *sparse.free, *sparse.batch, *dense.batch, *dense.free]
    out = out.reshape(*(shape[a] for a in axes), *(x.shape[a] for a in x_free))
    if outer.contracted:
        out = jnp.sum(out, tuple(outer.contracted), dtype=dtype)
        axes = [a for a in axes if a not in outer.contracted]
    order = [axes.index(a) for a in (*mb, *(a for a in range(len(shape)) if a not in mb and a not in mc))]
    return jnp.transpose(out, (*order, *range(len(axes), out.ndim)))


def _one_product(data: Any, indices: Any, x: Any, *, columns: Sequence[Sequence[int]], sizes: Shape,
                 in_order: bool) -> Array:
    """data [nse, q, p, g], indices [nse, n_sparse], x [k, q, p, f]: [rows, q, g, f], where rows are those of the first
    columns of indices, and k of the second."""
    rows, inner = ([sizes[c] for c in part] for part in columns)
    count, nse = math.prod(rows), indices.shape[0]
    first, second = (linear(indices[:, _slice_of(part)], [sizes[c] for c in part]) if part
                     else jnp.zeros((nse,), indices.dtype) for part in columns)
    _, q, p, g = data.shape
    k, f = math.prod(inner), x.shape[3]
    if q == p == g == 1 and columns[0]:
        ordered = in_order and list(columns[0]) == list(range(len(rows)))
        return _by_rows(data.reshape(nse), first, second, x.reshape(k, f), count, ordered).reshape(count, 1, 1, f)
    taken = ops.take_rows(x.reshape(1, k, q * p * f), second[None]).reshape(nse, q, p, f)
    terms = jnp.sum(data[:, :, :, :, None] * taken[:, :, :, None, :], 2, dtype=x.dtype)
    if not columns[0]:
        return jnp.sum(terms, 0, dtype=x.dtype)[None]
    return add_at(terms.reshape(nse, q * g * f), jnp.where(first < 0, count, first), count).reshape(count, q, g, f)


def _slice_of(columns: Sequence[int]) -> Any:
    """What gives these columns: a slice where there is one."""
    first = columns[0]
    if list(columns) == list(range(first, first + len(columns))):
        return slice(first, first + len(columns))
    return np.array(columns, np.int32)


def _by_rows(data: Any, rows: Any, columns: Any, x: Any, count: int, in_order: bool) -> Array:
    """A matrix given by its entries times a dense one: [count, f]."""
    if in_order and x.shape[1] > _COLUMNS:
        out = ops.row_product(data[None], columns[None], ops.row_pointers(rows[None], count), x[None])
    else:
        out = ops.entry_product(data[None], rows[None], columns[None], x[None], count, in_order)
    return out[0]


def matrix_product(data: Any, rows: Any, columns: Any, x: Any, *, count: int, in_order: bool | None) -> Array:
    """A matrix of `count` rows times a dense one, [columns, f]; `rows` are the rows of the entries, in order or not, or
    where rows begin, if `in_order` is None."""
    dtype = jnp.result_type(data, x)
    if dtype == np.bool_:
        return matrix_product(data.astype(np.int32), rows, columns, x, count=count, in_order=in_order) != 0
    data, x = data.astype(dtype), x.astype(dtype)
    if in_order is None:
        return ops.row_product(data[None], columns[None], rows[None], x[None])[0]
    return _by_rows(data, rows, columns, x, count, in_order)


# ---------------------------------------------------------------- of two sparse arrays

def _by_batch(mat: BCOO, batch: Axes) -> BCOO:
    """The array with these batch dimensions first, and all others sparse."""
    if any(a >= mat.n_batch for a in batch):
        raise NotImplementedError(f"bcoo_dot_general: batch dimensions {batch} of {mat} must be its own.")
    order = (*batch, *(a for a in range(mat.ndim) if a not in batch))
    if order != tuple(range(mat.ndim)):
        mat = bcoo_transpose(mat, permutation=order)
    return bcoo_update_layout(mat, n_batch=len(batch), n_dense=0)


def every_element(dense: Any, n_batch: int, index_dtype: Any) -> BCOO:
    """A BCOO array that stores all elements of a dense one."""
    batch, sizes = dense.shape[:n_batch], dense.shape[n_batch:]
    count = math.prod(sizes)
    grid = np.indices(sizes).reshape(len(sizes), count).T if sizes else np.zeros((1, 0))
    indices = jnp.broadcast_to(jnp.asarray(grid.astype(index_dtype)), (*batch, count, len(sizes)))
    return BCOO((dense.reshape(*batch, count), indices), shape=dense.shape, indices_sorted=True, unique_indices=True)


def _sparse_by_sparse(lhs: BCOO, rhs: BCOO, numbers: Numbers, preferred: Any) -> BCOO:
    (lc, rc), (lb, rb) = numbers
    free = [[a for a in range(m.ndim) if a not in c and a not in b] for m, c, b in ((lhs, lc, lb), (rhs, rc, rb))]
    # Axes once those of the batch are first.
    places = [[*b, *(a for a in range(m.ndim) if a not in b)] for m, b in ((lhs, lb), (rhs, rb))]
    n_batch = len(lb)
    inner = [[place.index(a) - n_batch for a in axes] for place, axes in zip(places, (lc, rc), strict=True)]
    outer = [[place.index(a) - n_batch for a in axes] for place, axes in zip(places, free, strict=True)]
    one, two = _by_batch(lhs, lb), _by_batch(rhs, rb)
    shape = (*(lhs.shape[a] for a in lb), *(lhs.shape[a] for a in free[0]), *(rhs.shape[a] for a in free[1]))
    index_dtype = jnp.result_type(one.indices, two.indices)
    pairs, room = one.nse * two.nse, math.prod(shape[n_batch:])
    if room <= pairs and math.prod(two.shape[n_batch:]) <= max(pairs, 1):
        batch = tuple(range(n_batch))
        contracted = tuple(tuple(n_batch + a for a in axes) for axes in inner)
        dense = bcoo_dot_general(one, bcoo_todense(two), dimension_numbers=(contracted, (batch, batch)),
                                 preferred_element_type=preferred)
        return every_element(dense, n_batch, index_dtype)
    dtype = jnp.result_type(one.data, two.data) if preferred is None else dtypes.canonicalize_dtype(preferred)
    sizes = [parts_of(m)[1] for m in (one, two)]

    def products(x: Any, i: Any, y: Any, j: Any) -> tuple[Any, Any]:
        meet = inside(i, sizes[0])[:, None] & inside(j, sizes[1])[None]
        for a, b in zip(*inner, strict=True):
            meet = meet & (i[:, a, None] == j[None, :, b])
        data = jnp.where(meet, x.astype(dtype)[:, None] * y.astype(dtype)[None], jnp.zeros((), dtype))
        columns = [jnp.broadcast_to(i[:, a, None], meet.shape).astype(index_dtype) for a in outer[0]]
        columns += [jnp.broadcast_to(j[None, :, b], meet.shape).astype(index_dtype) for b in outer[1]]
        places = jnp.stack(columns, -1) if columns else jnp.zeros((*meet.shape, 0), index_dtype)
        return data.reshape(pairs), where_inside(meet, places, shape[n_batch:]).reshape(pairs, len(columns))

    for _ in range(n_batch):
        products = vmap(products)
    out = BCOO(products(*spread(one), *spread(two)), shape=shape)
    return every_element(bcoo_todense(out), n_batch, index_dtype) if room <= pairs else out


# ---------------------------------------------------------------- elementwise products

def bcoo_multiply_dense(sp_mat: BCOO, v: Any) -> Array:
    """The data of the product of a BCOO array and a dense one, which is broadcast to its shape.

    Raises:
      NotImplementedError: if the result would have another shape than `sp_mat`.
    """
    v = jnp.asarray(v)
    if not v.ndim:
        return sp_mat.data * v
    return spread(sp_mat)[0] * values_at(sp_mat, v)


def values_at(mat: BCOO, v: Any) -> Array:
    """The elements of a dense array, broadcast to the shape of a BCOO array, where that has elements; 0 outside."""
    shape = (1,) * (mat.ndim - v.ndim) + v.shape
    if len(shape) != mat.ndim or any(n not in (1, m) for n, m in zip(shape, mat.shape, strict=True)):
        raise NotImplementedError("Products and quotients of a sparse array and a dense one are implemented where the "
                                  f"result has the shape of the sparse one; got shapes {mat.shape} and {v.shape}.")
    n_batch, n_sparse = mat.n_batch, mat.n_sparse
    batch, sizes, _ = parts_of(mat)
    kept = [c for c in range(n_sparse) if shape[n_batch + c] != 1]
    v = jnp.broadcast_to(v.reshape(shape), (*batch, *shape[n_batch:]))
    v = v.reshape(*batch, *(shape[n_batch + c] for c in kept), *shape[n_batch + n_sparse:])
    _, indices = spread(mat)
    if len(kept) < n_sparse:
        keep = inside(indices, sizes)
        indices = where_inside(keep, indices[..., np.array(kept, np.int32)], [sizes[c] for c in kept])
    return elements_at(indices, v)


def bcoo_multiply_sparse(lhs: BCOO, rhs: BCOO) -> BCOO:
    """The elementwise product of two BCOO arrays of one shape, or that broadcast to one.

    Stored where `lhs` is, or where `rhs` is, if only that one has the shape; else as one entry for each pair of theirs.
    """
    out_shape = np.broadcast_shapes(lhs.shape, rhs.shape)
    lhs, rhs = _of_rank(lhs, len(out_shape)), _of_rank(rhs, len(out_shape))
    n_batch, n_dense = min(lhs.n_batch, rhs.n_batch), min(lhs.n_dense, rhs.n_dense)
    lhs, rhs = (bcoo_update_layout(m, n_batch=n_batch, n_dense=n_dense) for m in (lhs, rhs))
    sizes = out_shape[n_batch: len(out_shape) - n_dense]
    if parts_of(lhs)[1] != sizes and parts_of(rhs)[1] == sizes:
        lhs, rhs = rhs, lhs
    if parts_of(lhs)[1] != sizes:
        return _by_pairs(lhs, rhs, out_shape)
    columns = [c for c, (n, m) in enumerate(zip(parts_of(rhs)[1], sizes, strict=True)) if n == m]
    kept = np.array(columns, np.int32)
    limits, batch = [sizes[c] for c in columns], out_shape[:n_batch]

    def there(data: Any, own: Any, other: Any) -> Any:
        """The sums of the elements of `data`, at the indices `other`, that are at the indices `own`."""
        count = own.shape[0]
        both = jnp.concatenate([other, own])
        both = where_inside(inside(both, limits), both, limits)
        places = jnp.arange(both.shape[0], dtype=np.int32)
        if columns:
            *keys, places = lax.sort([*(both[:, c] for c in range(len(columns))), places], num_keys=len(columns))
            changes = jnp.stack([k[1:] != k[:-1] for k in keys]).any(0)
            numbers = jnp.concatenate([jnp.zeros((1,), np.int32), jnp.cumsum(changes.astype(np.int32))])
        else:
            numbers = jnp.zeros(both.shape[:1], np.int32)
        group = jnp.zeros_like(numbers).at[places].set(numbers)
        sums = add_at(data, group[: other.shape[0]], both.shape[0])
        return jnp.take(sums, group[other.shape[0]:][:count], axis=0)

    ld, li = spread(lhs)
    rd, ri = spread(rhs)
    ld, li, rd, ri = (jnp.broadcast_to(x, (*batch, *x.shape[n_batch:])) for x in (ld, li, rd, ri))
    meant = inside(ri, parts_of(rhs)[1])  # also in dimensions of size 1, which `kept` leaves out
    rd = jnp.where(meant.reshape(*meant.shape, *(1,) * n_dense), rd, jnp.zeros((), rd.dtype))
    for _ in range(n_batch):
        there = vmap(there)
    found = there(rd, li[..., kept], ri[..., kept]) if lhs.nse else rd[..., :0] * 0
    data = ld * found if lhs.nse else ld
    return BCOO((data, li), shape=out_shape, indices_sorted=lhs.indices_sorted, unique_indices=lhs.unique_indices)


def _by_pairs(lhs: BCOO, rhs: BCOO, out_shape: Shape) -> BCOO:
    """The elementwise product of arrays of one layout, each pair of whose entries may meet at one place."""
    n_batch, n_sparse = lhs.n_batch, lhs.n_sparse
    ones, others = parts_of(lhs)[1], parts_of(rhs)[1]
    sizes, batch = out_shape[n_batch: n_batch + n_sparse], out_shape[:n_batch]
    index_dtype = jnp.result_type(lhs.indices, rhs.indices)

    def products(x: Any, i: Any, y: Any, j: Any) -> tuple[Any, Any]:
        meet = inside(i, ones)[:, None] & inside(j, others)[None]
        columns = []
        for c, (n, m) in enumerate(zip(ones, others, strict=True)):
            if n == m:
                meet = meet & (i[:, c, None] == j[None, :, c])
            column = j[None, :, c] if n == 1 else i[:, c, None]
            columns.append(jnp.broadcast_to(column, meet.shape).astype(index_dtype))
        data = x[:, None] * y[None]
        data = jnp.where(meet.reshape(*meet.shape, *(1,) * (data.ndim - 2)), data, jnp.zeros((), data.dtype))
        places = where_inside(meet, jnp.stack(columns, -1), sizes)
        return data.reshape(-1, *data.shape[2:]), places.reshape(-1, n_sparse)

    parts = [jnp.broadcast_to(x, (*batch, *x.shape[n_batch:])) for mat in (lhs, rhs) for x in spread(mat)]
    for _ in range(n_batch):
        products = vmap(products)
    return BCOO(products(*parts), shape=out_shape)


def _of_rank(mat: BCOO, rank: int) -> BCOO:
    """The array with sparse dimensions of size 1 in front."""
    more = rank - mat.ndim
    if not more:
        return mat
    mat = bcoo_update_layout(mat, n_batch=0)
    indices = jnp.concatenate([jnp.zeros((mat.nse, more), mat.indices.dtype), mat.indices], -1)
    sizes = (1,) * more + parts_of(mat)[1]
    indices = where_inside(inside(indices, sizes), indices, sizes)
    return BCOO((mat.data, indices), shape=(1,) * more + mat.shape, indices_sorted=mat.indices_sorted,
                unique_indices=mat.unique_indices)


# ---------------------------------------------------------------- some elements of a dense product

def bcoo_dot_general_sampled(A: Any, B: Any, indices: Any, *, dimension_numbers: Any) -> Array:
    """Elements of the product of two dense arrays: those at `indices`; no others are computed where that is possible.

    Args:
      A, B, dimension_numbers: as of `lax.dot_general`.
      indices: [*batch, nse, n_sparse], as of a BCOO array of the shape of the product.

    Returns:
      [*batch, nse, *dense], as the data of that array; 0 for indices outside.
    """
    A, B, indices = jnp.asarray(A), jnp.asarray(B), jnp.asarray(indices)
    (ac, bc), (ab, bb) = checked_numbers("bcoo_dot_general_sampled", A.shape, B.shape, dimension_numbers)
    a_free, b_free = ([a for a in range(x.ndim) if a not in c and a not in b] for x, c, b in ((A, ac, ab), (B, bc, bb)))
    batch = tuple(A.shape[a] for a in ab)
    sizes = [[x.shape[a] for a in free] for x, free in ((A, a_free), (B, b_free))]
    dtype = jnp.result_type(A, B)
    rank = len(sizes[0]) + len(sizes[1])
    if indices.shape[:-2] != batch or indices.shape[-1] != rank:
        whole = lax.dot_general(A.astype(dtype), B.astype(dtype), ((ac, bc), (ab, bb)))
        n_batch = indices.ndim - 2
        window = whole.shape[n_batch + indices.shape[-1]:]
        like = BCOO((jnp.zeros((*indices.shape[:-1], *window), dtype), indices), shape=whole.shape)
        return bcoo_extract(like, whole, assume_unique=True).data
    depth = math.prod(A.shape[a] for a in ac)
    A, B = (jnp.transpose(x, (*b, *free, *c)).reshape(*batch, math.prod(n), depth).astype(dtype)
            for x, b, free, c, n in ((A, ab, a_free, ac, sizes[0]), (B, bb, b_free, bc, sizes[1])))

    def one(a: Any, b: Any, index: Any) -> Any:
        places = [linear(part, size) if size else jnp.zeros(part.shape[:1], np.int32)
                  for part, size in zip((index[:, : len(sizes[0])], index[:, len(sizes[0]):]), sizes, strict=True)]
        terms = [ops.take_rows(x[None], place[None])[0] for x, place in zip((a, b), places, strict=True)]
        return jnp.sum(terms[0] * terms[1], 1, dtype=dtype)

    for _ in batch:
        one = vmap(one)
    return one(A, B, indices)
