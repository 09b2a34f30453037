"""Products of sparse matrices, and the two forms of their rows: a number for each entry, or where each row begins.

    rows      0 0 1 3          entries in order of their rows
    pointers  0 2 3 3 4        entries of row i: pointers[i] to pointers[i + 1]

All operands have a leading batch axis, of size 1 where all matrices of a batch share them. Entries whose column (or
row) is outside of the matrix count nothing: they fill up arrays of a fixed length.

    >>> row_pointers(jnp.array([[0, 0, 1, 3]]), 4)
    Array([[0, 2, 3, 3, 4]], dtype=int32)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import ShapedArray, tangent_aval
from anima.core.dims import index_of
from anima.core.primitive import Linear, Primitive, Work, Zero
from anima.core.trace import aval_of
from anima.ops import elementwise as el
from anima.ops.broadcast import broadcast_in_dim, reduce_sum, same_dtype, shape_of, zeros
from anima.ops.index import GatherDimensionNumbers, GatherScatterMode, gather
from anima.ops.shape import broadcast, moveaxis, reshape


class Counting(Primitive):
    """An operation on integers with a batch axis at the front, which has no derivative."""

    cost = 3.0

    def counted(self, x: ShapedArray, length: int) -> ShapedArray:
        """The type of the result, one row for each of `x`; TypeError unless that has integers."""
        if not dtypes.issubdtype(x.dtype, np.integer):
            raise TypeError(f"{self.name} needs integers, got {dtypes.name(x.dtype)}.")
        return ShapedArray((x.shape[0], length), np.dtype(np.int32))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = self.bind(*primals, **params)
        return out, Zero(tangent_aval(aval_of(out)))

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[Any, int]:
        x = moveaxis(args[0], dims[0], 0)
        outer = shape_of(x)[:2]
        out = self.bind(reshape(x, (outer[0] * outer[1], *shape_of(x)[2:])), **params)
        return reshape(out, (*outer, *shape_of(out)[1:])), 0


class RowPointers(Counting):
    """Where each row begins in a list of row numbers that is sorted: how many are less than 0, 1, ... `rows`."""

    def infer(self, numbers: ShapedArray, *, rows: int) -> ShapedArray:
        return self.counted(numbers, rows + 1)

    def eval(self, numbers: np.ndarray, *, rows: int) -> np.ndarray:
        out = np.empty((len(numbers), rows + 1), np.int32)
        for number, target in zip(numbers, out, strict=True):
            target[:] = np.searchsorted(number, np.arange(rows + 1))
        return out


class RowNumbers(Counting):
    """The row of each of `entries` entries, given where each row begins; the number of rows for entries of none."""

    def infer(self, pointers: ShapedArray, *, entries: int) -> ShapedArray:
        return self.counted(pointers, entries)

    def eval(self, pointers: np.ndarray, *, entries: int) -> np.ndarray:
        rows = pointers.shape[1] - 1
        out = np.empty((len(pointers), entries), np.int32)
        for pointer, target in zip(pointers, out, strict=True):
            found = np.searchsorted(pointer, np.arange(entries), "right") - 1
            target[:] = np.where((found < 0) | (found >= rows), rows, found)
        return out


class SparseProduct(Primitive):
    """A sparse matrix times [k, n] dense: operands are data [b, entries], two arrays of integers that say where the
    entries are, and x [b, k, n]. Linear in data and x."""

    cost = 8.0

    def rows(self, places: Sequence[Any], **params: Any) -> int:
        """How many rows the sparse matrix has, given types of the integers."""
        raise NotImplementedError

    def entries(self, first: Any, second: Any, entries: int, **params: Any) -> tuple[Any, Any]:
        """The rows and columns of all entries."""
        raise NotImplementedError

    def add(self, terms: Callable[[np.ndarray], np.ndarray], first: np.ndarray, second: np.ndarray,
            out: np.ndarray) -> None:
        """Adds the entries' `terms`, a function of their columns, to their rows of `out`."""
        raise NotImplementedError

    def infer(self, data: ShapedArray, first: ShapedArray, second: ShapedArray, x: ShapedArray,
              **params: Any) -> ShapedArray:
        same_dtype(self.name, (data, x))
        if not dtypes.issubdtype(data.dtype, np.number):
            raise TypeError(f"{self.name} does not accept dtype {dtypes.name(data.dtype)}.")
        batch = max(a.shape[0] for a in (data, first, second, x))
        return ShapedArray((batch, self.rows((first, second), **params), x.shape[2]), data.dtype)

    def eval(self, data: np.ndarray, first: np.ndarray, second: np.ndarray, x: np.ndarray,
             **params: Any) -> np.ndarray:
        batch = max(len(a) for a in (data, first, second, x))
        _, k, n = x.shape
        wide = np.dtype(np.float32) if dtypes.name(x.dtype) in ("float16", "bfloat16") else x.dtype
        out = np.zeros((batch, self.rows((first, second), **params), n), wide)
        if data.shape[1] and x.size and out.size:
            for b in range(batch):
                values, one, two, dense = (a[b if len(a) > 1 else 0] for a in (data, first, second, x))

                def terms(column: np.ndarray, values: np.ndarray = values, dense: np.ndarray = dense) -> np.ndarray:
                    found = values.astype(wide)[:, None] * dense.astype(wide)[np.clip(column, 0, k - 1)]
                    found[(column < 0) | (column >= k)] = 0
                    return found

                self.add(terms, one, two, out[b])
        return out.astype(x.dtype)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        data, first, second, x = primals
        out = self.bind(*primals, **params)
        parts = []
        if not isinstance(tangents[0], Zero):
            parts.append(self.bind(tangents[0], first, second, x, **params))
        if not isinstance(tangents[3], Zero):
            parts.append(self.bind(data, first, second, tangents[3], **params))
        if not parts:
            return out, Zero(tangent_aval(aval_of(out)))
        return out, parts[0] if len(parts) == 1 else el.add_any(*parts)

    def transpose(self, ct: Any, data: Any, first: Any, second: Any, x: Any, **params: Any) -> Sequence[Any]:
        if isinstance(ct, Zero):
            return [Zero(a.aval) if isinstance(a, Linear) else None for a in (data, first, second, x)]
        entries = (data.aval.shape if isinstance(data, Linear) else shape_of(data))[1]
        rows, columns = self.entries(first, second, entries, **params)
        if isinstance(data, Linear):
            terms = el.mul(*_same_batch(take_rows(ct, rows), take_rows(x, columns)))
            return [_unbatched(reduce_sum(terms, (2,)), data.aval.shape[0]), None, None, None]
        found = entry_product(data, columns, rows, ct, x.aval.shape[1])
        return [None, None, None, _unbatched(found, x.aval.shape[0])]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[Any, int]:
        own = [shape_of(a)[:d] + shape_of(a)[d + 1:] if d is not None else shape_of(a)
               for a, d in zip(args, dims, strict=True)]
        if all(d is None for d in dims[:3]):  # more columns of x
            x = moveaxis(args[3], dims[3], 3)
            out = self.bind(*args[:3], reshape(x, (*own[3][:2], own[3][2] * size)), **params)
            return reshape(out, (*shape_of(out)[:2], own[3][2], index_of(size))), 3
        batch = max(shape[0] for shape in own)
        flat = []
        for a, d, shape in zip(args, dims, own, strict=True):
            if d is not None:
                a = moveaxis(a, d, 0)
            elif shape[0] > 1:
                a = broadcast(a, (index_of(size),))
            if len(shape_of(a)) > len(shape):
                a = broadcast_in_dim(a, (index_of(size), batch, *shape[1:]), range(len(shape) + 1))
                a = reshape(a, (size * batch, *shape[1:]))
            flat.append(a)
        out = self.bind(*flat, **params)
        return reshape(out, (index_of(size), batch, *shape_of(out)[1:])), 0

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             **params: Any) -> Work:
        return Work(2.0 * outs[0].shape[0] * avals[0].shape[1] * outs[0].shape[2])


class RowProduct(SparseProduct):
    """The entries are in order of their rows: first their columns [b, entries], then where rows begin [b, rows + 1]."""

    def rows(self, places: Sequence[Any]) -> int:
        return int(places[1].shape[1]) - 1

    def entries(self, first: Any, second: Any, entries: int) -> tuple[Any, Any]:
        return row_numbers(second, entries), first

    def add(self, terms: Callable[[np.ndarray], np.ndarray], first: np.ndarray, second: np.ndarray,
            out: np.ndarray) -> None:
        found = terms(first)
        starts, ends = np.clip(second[:-1], 0, len(first)), np.clip(second[1:], 0, len(first))
        full = ends > starts
        if full.any():  # with a term more at the end, where the last row may end
            pairs = np.stack([starts[full], ends[full]], 1).reshape(-1)
            out[full] = np.add.reduceat(np.concatenate([found, found[:1]]), pairs, axis=0)[::2]


class EntryProduct(SparseProduct):
    """Rows and columns of all entries, [b, entries] both; there are `count` rows. `sorted`: in order of their rows."""

    def rows(self, places: Sequence[Any], *, count: int, sorted: bool) -> int:
        return count

    def entries(self, first: Any, second: Any, entries: int, *, count: int, sorted: bool) -> tuple[Any, Any]:
        return first, second

    def add(self, terms: Callable[[np.ndarray], np.ndarray], first: np.ndarray, second: np.ndarray,
            out: np.ndarray) -> None:
        exist = (first >= 0) & (first < len(out))
        np.add.at(out, first[exist], terms(second)[exist])


def _same_batch(*operands: Any) -> list[Any]:
    """Operands with the longest of their batch axes, which are this or 1."""
    batch = max(shape_of(x)[0] for x in operands)
    return [broadcast_in_dim(x, (batch, *shape_of(x)[1:]), range(len(shape_of(x)))) for x in operands]


def _unbatched(x: Any, batch: int) -> Any:
    """The sum over the batch, for an operand that all of it shares."""
    return x if shape_of(x)[0] == batch else reshape(reduce_sum(x, (0,)), (1, *shape_of(x)[1:]))


def take_rows(x: Any, numbers: Any) -> Any:
    """Rows of matrices by number: `x` is [b, k, n], the numbers are [b, entries]; zeros outside: [b, entries, n]."""
    (_, k, n), (_, entries) = shape_of(x), shape_of(numbers)
    batch = max(shape_of(x)[0], shape_of(numbers)[0])
    if not (k and n and entries):
        return zeros(aval_of(x).update(shape=(batch, entries, n)))
    if shape_of(x)[0] == 1:
        own = shape_of(numbers)[0]
        dims = GatherDimensionNumbers((1,), (0,), (0,))
        out = gather(reshape(x, (k, n)), reshape(numbers, (own * entries, 1)), dims, (1, n),
                     mode=GatherScatterMode.FILL_OR_DROP, fill_value=0)
        return reshape(out, (own, entries, n))
    numbers = broadcast_in_dim(numbers, (batch, entries, 1), (0, 1))
    dims = GatherDimensionNumbers((2,), (1,), (1,), (0,), (0,))
    return gather(x, numbers, dims, (1, 1, n), mode=GatherScatterMode.FILL_OR_DROP, fill_value=0)


row_pointers_p = RowPointers("row_pointers")
row_numbers_p = RowNumbers("row_numbers")
row_product_p = RowProduct("row_product")
entry_product_p = EntryProduct("entry_product")


def row_pointers(numbers: Any, rows: int) -> Array:
    """Where each of `rows` rows begins, and the last one ends, among row numbers [b, entries] that are sorted."""
    return row_pointers_p.bind(numbers, rows=rows)


def row_numbers(pointers: Any, entries: int) -> Array:
    """The row of each entry, [b, entries], given where each row begins, [b, rows + 1]."""
    return row_numbers_p.bind(pointers, entries=entries)


def row_product(data: Any, columns: Any, pointers: Any, x: Any) -> Array:
    """The product of sparse matrices by rows, and dense ones; see `RowProduct`."""
    return row_product_p.bind(data, columns, pointers, x)


def entry_product(data: Any, rows: Any, columns: Any, x: Any, count: int, sorted: bool = False) -> Array:
    """The product of sparse matrices with `count` rows, entry by entry, and dense ones; see `EntryProduct`."""
    return entry_product_p.bind(data, rows, columns, x, count=count, sorted=sorted)
