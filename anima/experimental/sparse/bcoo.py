"""BCOO: arrays of which some elements are stored, each with its indices, in batches.

    BCOO((data, indices), shape=(*batch, *sparse, *dense))

`data` is [*batch, nse, *dense], `indices` is [*batch, nse, n_sparse]. Element `e` of `nse` is a block of the dense
dimensions at `indices[e]` in the sparse ones. Elements at the same place add up; those whose indices are not all inside
of the shape are no elements, and fill up arrays of a fixed length.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anima import numpy as jnp, tree
from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import Shape
from anima.experimental.sparse.base import JAXSparse, meaning, rebuilt, shape_with_batch


def parts_of(mat: BCOO) -> tuple[Shape, Shape, Shape]:
    """The batch, the sparse and the dense part of the shape."""
    first, last = mat.n_batch, mat.n_batch + mat.n_sparse
    return mat.shape[:first], mat.shape[first:last], mat.shape[last:]


def _check(data: Any, indices: Any, shape: Shape) -> None:
    n_batch, nse, n_sparse = indices.ndim - 2, indices.shape[-2], indices.shape[-1]
    n_dense = data.ndim - 1 - n_batch
    if not dtypes.issubdtype(indices.dtype, np.integer):
        raise TypeError(f"BCOO: indices must be integers, got {dtypes.name(indices.dtype)}.")
    if n_dense < 0 or n_batch + n_sparse + n_dense != len(shape):
        raise ValueError(f"BCOO: data of shape {data.shape} and indices of shape {indices.shape} have {n_batch=}, "
                         f"{n_sparse=}, {n_dense=}, which is not the rank of shape {shape}.")
    batch, dense = shape[:n_batch], shape[n_batch + n_sparse:]

    def fits(given: Shape) -> bool:
        return all(n in (1, full) for n, full in zip(given, batch, strict=True))

    if data.shape[n_batch:] != (nse, *dense) or not fits(data.shape[:n_batch]):
        raise ValueError(f"Invalid data.shape={data.shape} for nse={nse}, {n_batch=}, {n_dense=} and shape={shape}.")
    if not fits(indices.shape[:n_batch]):
        raise ValueError(f"Invalid indices.shape={indices.shape} for {n_batch=} and shape={shape}.")


@tree.register_pytree_node_class
class BCOO(JAXSparse):
    """A sparse array by the indices of its stored elements, in batches.

    Args:
      args: (data, indices): data [*batch, nse, *dense], indices [*batch, nse, n_sparse], integers. Batch dimensions may
        be 1 where all the batch shares them.
      shape: (*batch, *sparse, *dense).
      indices_sorted, unique_indices: promises, for each element of the batch: indices are in lexicographic order, those
        outside of the shape last; no two inside are the same. Sorted ones make products faster.

    Raises:
      ValueError: for shapes that do not fit. TypeError: for indices that are no integers.

    >>> sparse.BCOO.fromdense(jnp.eye(3)) @ jnp.arange(3.)
    Array([0., 1., 2.], dtype=float32)
    """

    data: Any
    indices: Any
    indices_sorted: bool
    unique_indices: bool

    def __init__(self, args: tuple[Any, Any], *, shape: Any, indices_sorted: bool = False,
                 unique_indices: bool = False):
        super().__init__(args, shape=shape)
        self.data, self.indices = map(jnp.asarray, args)
        self.indices_sorted, self.unique_indices = bool(indices_sorted), bool(unique_indices)
        if self.indices.ndim < 2:
            raise ValueError(f"BCOO: indices must have two dimensions at least, got shape {self.indices.shape}.")
        _check(self.data, self.indices, self.shape)

    @property
    def nse(self) -> int:
        return int(self.indices.shape[-2])

    @property
    def dtype(self) -> Any:
        return self.data.dtype

    @property
    def n_batch(self) -> int:
        """The number of batch dimensions."""
        return int(self.indices.ndim) - 2

    @property
    def n_sparse(self) -> int:
        """The number of sparse dimensions."""
        return int(self.indices.shape[-1])

    @property
    def n_dense(self) -> int:
        """The number of dense dimensions."""
        return int(self.data.ndim) - 1 - self.n_batch

    def _layout_text(self) -> str:
        return "".join(f", {name}={n}" for name, n in (("n_batch", self.n_batch), ("n_dense", self.n_dense)) if n)

    def tree_flatten(self) -> tuple[tuple[Any, Any], dict[str, Any]]:
        return (self.data, self.indices), {"shape": self.shape, "indices_sorted": self.indices_sorted,
                                           "unique_indices": self.unique_indices}

    @classmethod
    def tree_unflatten(cls, aux_data: Any, children: Any) -> BCOO:
        data, indices = children
        shape = aux_data["shape"]
        if hasattr(indices, "ndim") and hasattr(data, "ndim") and indices.ndim >= 2:
            n_dense = max(data.ndim - indices.ndim + 1, 0)
            shape = shape_with_batch(shape, indices.shape[-1] + n_dense, (indices, 2), (data, 1 + n_dense))
        return rebuilt(cls, ("data", "indices"), children, {**aux_data, "shape": shape})

    def like(self, data: Any) -> BCOO:
        """The same elements with other values."""
        return BCOO((data, self.indices), shape=self.shape, indices_sorted=self.indices_sorted,
                    unique_indices=self.unique_indices)

    @classmethod
    def fromdense(cls, mat: Any, *, nse: int | None = None, index_dtype: Any = np.int32, n_dense: int = 0,
                  n_batch: int = 0) -> BCOO:
        """The nonzero elements of a dense array; see `bcoo_fromdense`."""
        return meaning(cls, "fromdense")(
            mat, nse=nse, index_dtype=index_dtype, n_dense=n_dense, n_batch=n_batch)

    @classmethod
    def from_scipy_sparse(cls, mat: Any, *, index_dtype: Any = None, n_dense: int = 0, n_batch: int = 0) -> BCOO:
        """A matrix of `scipy.sparse`; its indices are marked as sorted and unique where they are.

        Raises:
          NotImplementedError: for n_dense or n_batch other than 0.
        """
        if n_dense or n_batch:
            raise NotImplementedError("BCOO.from_scipy_sparse with nonzero n_dense or n_batch.")
        mat = mat.tocoo()
        indices = np.stack([mat.row, mat.col], 1).astype(np.int64)
        steps = np.diff(indices, axis=0)
        above = (steps[:, 0] > 0) | ((steps[:, 0] == 0) & (steps[:, 1] >= 0))
        sorted_ = bool(above.all())
        unique = sorted_ and not (steps == 0).all(1).any()
        return cls((mat.data, indices.astype(np.int32 if index_dtype is None else index_dtype)), shape=mat.shape,
                   indices_sorted=sorted_, unique_indices=bool(unique))

    def todense(self) -> Array:
        return meaning(BCOO, "todense")(self)

    def transpose(self, axes: Any = None) -> BCOO:
        order = tuple(reversed(range(self.ndim))) if axes is None else axes
        return meaning(BCOO, "transpose")(self, permutation=order)

    def reshape(self, *args: Any, **kwargs: Any) -> BCOO:
        """The elements in row-major order under another shape; see `anima.numpy.reshape`."""
        return meaning(BCOO, "reshape")(self, *args, **kwargs)

    def astype(self, *args: Any, **kwargs: Any) -> BCOO:
        """The array with elements of another dtype; see `anima.numpy.astype`."""
        return meaning(BCOO, "astype")(self, *args, **kwargs)

    def sort_indices(self) -> BCOO:
        """The same elements in order of their indices."""
        return meaning(BCOO, "sort_indices")(self)

    def sum_duplicates(self, nse: int | None = None, remove_zeros: bool = True) -> BCOO:
        """The same array with each index once, in order, as `nse` elements; see `bcoo_sum_duplicates`."""
        return meaning(BCOO, "sum_duplicates")(self, nse, remove_zeros)

    def update_layout(self, *, n_batch: int | None = None, n_dense: int | None = None,
                      on_inefficient: str | None = "error") -> BCOO:
        """The same array with other numbers of batch and dense dimensions; see `bcoo_update_layout`."""
        return meaning(BCOO, "update_layout")(
            self, n_batch=n_batch, n_dense=n_dense, on_inefficient=on_inefficient)
