"""COO: a matrix by the row and the column of each stored element.

    COO((data, row, col), shape=(rows, columns))

Elements at one place add up; those whose row or column is outside fill up arrays of a fixed length.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from anima import numpy as jnp, tree
from anima.core import dtypes
from anima.core.array import Array
from anima.experimental.sparse.base import JAXSparse, rebuilt
from anima.experimental.sparse.bcoo import BCOO
from anima.experimental.sparse.layout import bcoo_fromdense, bcoo_todense, compiled
from anima.experimental.sparse.product import matrix_product


@tree.register_pytree_node_class
class COO(JAXSparse):
    """A matrix by the rows and columns of its elements.

    Args:
      args: (data, row, col), vectors of one length.
      shape: (rows, columns).
      rows_sorted, cols_sorted: promises: rows (or columns) are in order, those outside last.

    Raises:
      ValueError: for shapes that do not fit. TypeError: for indices that are no integers.
    """

    data: Any
    row: Any
    col: Any

    def __init__(self, args: tuple[Any, Any, Any], *, shape: Any, rows_sorted: bool = False, cols_sorted: bool = False):
        super().__init__(args, shape=shape)
        self.data, self.row, self.col = map(jnp.asarray, args)
        self._rows_sorted, self._cols_sorted = bool(rows_sorted), bool(cols_sorted)
        check_matrix(self, self.row, self.col, self.data)

    @property
    def nse(self) -> int:
        return int(self.data.size)

    @property
    def dtype(self) -> Any:
        return self.data.dtype

    def tree_flatten(self) -> tuple[tuple[Any, Any, Any], dict[str, Any]]:
        return (self.data, self.row, self.col), {"shape": self.shape, "rows_sorted": self._rows_sorted,
                                                 "cols_sorted": self._cols_sorted}

    @classmethod
    def tree_unflatten(cls, aux_data: Any, children: Any) -> COO:
        aux = {"shape": aux_data["shape"], "_rows_sorted": aux_data["rows_sorted"],
               "_cols_sorted": aux_data["cols_sorted"]}
        return rebuilt(cls, ("data", "row", "col"), children, aux)

    def like(self, data: Any) -> COO:
        """The same elements with other values."""
        return COO((data, self.row, self.col), shape=self.shape, rows_sorted=self._rows_sorted,
                   cols_sorted=self._cols_sorted)

    @classmethod
    def fromdense(cls, mat: Any, *, nse: int | None = None, index_dtype: Any = np.int32) -> COO:
        """The nonzero elements of a dense matrix; see `coo_fromdense`."""
        return coo_fromdense(mat, nse=nse, index_dtype=index_dtype)

    def to_bcoo(self) -> BCOO:
        """The same elements as a BCOO array."""
        return BCOO((self.data, jnp.stack([self.row, self.col], -1)), shape=self.shape)

    def todense(self) -> Array:
        return coo_todense(self)

    def transpose(self, axes: Any = None) -> COO:
        if axes is not None and tuple(axes) != (1, 0):
            raise NotImplementedError(f"COO.transpose: axes must be None or (1, 0), got {axes}.")
        return COO((self.data, self.col, self.row), shape=self.shape[::-1], rows_sorted=self._cols_sorted,
                   cols_sorted=self._rows_sorted)


def check_matrix(mat: JAXSparse, *vectors: Any) -> None:
    """ValueError unless the shape is that of a matrix and the last vectors have one length; TypeError for indices that
    are no integers (all but the last)."""
    if mat.ndim != 2 or any(v.ndim != 1 for v in vectors) or vectors[-1].shape != vectors[-2].shape != ():
        raise ValueError(f"{type(mat).__name__}: vectors of shapes {[v.shape for v in vectors]} do not make a "
                         f"matrix of shape {mat.shape}.")
    for v in vectors[:-1]:
        if not dtypes.issubdtype(v.dtype, np.integer):
            raise TypeError(f"{type(mat).__name__}: indices must be integers, got {dtypes.name(v.dtype)}.")


def check_operand(name: str, mat: JAXSparse, x: Any, rank: int, transpose: bool) -> Array:
    """The dense operand of a product, an array of this rank."""
    x = jnp.asarray(x)
    inner = mat.shape[0 if transpose else 1]
    if x.ndim != rank or x.shape[0] != inner:
        raise TypeError(f"{name}: a matrix of shape {mat.shape}{', transposed,' if transpose else ''} cannot be "
                        f"multiplied with an array of shape {x.shape}.")
    return x


def coo_fromdense(mat: Any, *, nse: int | None = None, index_dtype: Any = jnp.int32) -> COO:
    """The nonzero elements of a dense matrix, by rows.

    Args:
      mat: a matrix.
      nse: the number of elements to store; by default, as many as there are, which must be known: not while tracing.
      index_dtype: of rows and columns.

    >>> sparse.coo_fromdense(jnp.eye(2)).row
    Array([0, 1], dtype=int32)
    """
    mat = jnp.asarray(mat)
    if mat.ndim != 2:
        raise ValueError(f"coo_fromdense: expected a matrix, got shape {mat.shape}.")
    found = bcoo_fromdense(mat, nse=nse, index_dtype=index_dtype)
    return COO((found.data, found.indices[:, 0], found.indices[:, 1]), shape=mat.shape, rows_sorted=True)


def coo_todense(mat: COO) -> Array:
    """The dense matrix with these elements: those at one place are added up."""
    return bcoo_todense(mat.to_bcoo())


def coo_matvec(mat: COO, v: Any, transpose: bool = False) -> Array:
    """The product of a COO matrix, or its transpose, and a vector.

    >>> sparse.coo_matvec(sparse.coo_fromdense(jnp.array([[0., 2.], [3., 0.]])), jnp.array([1., 2.]))
    Array([4., 3.], dtype=float32)
    """
    v = check_operand("coo_matvec", mat, v, 1, transpose)
    return coo_matmat(mat, v[:, None], transpose=transpose)[:, 0]


def coo_matmat(mat: COO, B: Any, *, transpose: bool = False) -> Array:
    """The product of a COO matrix, or its transpose, and a dense matrix."""
    B = check_operand("coo_matmat", mat, B, 2, transpose)
    whole = mat.transpose() if transpose else mat
    run = partial(matrix_product, count=whole.shape[0], in_order=whole._rows_sorted)
    return compiled(run, whole.data.size, whole.data, whole.row, whole.col, B)
