"""CSR and CSC: a matrix by rows, or by columns: the other index of each stored element, and where each row begins.

    CSR((data, indices, indptr), shape=(rows, columns))       elements indptr[i] to indptr[i + 1] are those of row i
    CSC((data, indices, indptr), shape=(rows, columns))       ... of column i
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from anima import numpy as jnp, tree
from anima.core.array import Array
from anima.experimental.sparse.base import JAXSparse, rebuilt
from anima.experimental.sparse.bcsr import BCSR, bcsr_fromdense, bcsr_todense
from anima.experimental.sparse.coo import check_matrix, check_operand
from anima.experimental.sparse.layout import compiled, known
from anima.experimental.sparse.product import matrix_product
from anima.ops import sparse as ops


class _Compressed(JAXSparse):
    """What CSR and CSC have in common."""

    data: Any
    indices: Any
    indptr: Any

    def __init__(self, args: tuple[Any, Any, Any], *, shape: Any):
        super().__init__(args, shape=shape)
        self.data, self.indices, self.indptr = map(jnp.asarray, args)
        check_matrix(self, self.indptr, self.indices, self.data)
        if self.indptr.shape[0] != self.shape[self._axis] + 1:
            raise ValueError(f"{type(self).__name__}: indptr of shape {self.indptr.shape} for shape {self.shape}.")

    _axis = 0  # the dimension along which indptr runs

    @property
    def nse(self) -> int:
        return int(self.data.size)

    @property
    def dtype(self) -> Any:
        return self.data.dtype

    def tree_flatten(self) -> tuple[tuple[Any, Any, Any], dict[str, Any]]:
        return (self.data, self.indices, self.indptr), {"shape": self.shape}

    @classmethod
    def tree_unflatten(cls, aux_data: Any, children: Any) -> Any:
        return rebuilt(cls, ("data", "indices", "indptr"), children, aux_data)

    def like(self, data: Any) -> Any:
        """The same elements with other values."""
        return type(self)((data, self.indices, self.indptr), shape=self.shape)


@tree.register_pytree_node_class
class CSR(_Compressed):
    """A matrix by rows.

    Args:
      args: (data, indices, indptr): elements, their columns, and where rows begin, [rows + 1].
      shape: (rows, columns).

    Raises:
      ValueError: for shapes that do not fit. TypeError: for indices that are no integers.
    """

    @classmethod
    def fromdense(cls, mat: Any, *, nse: int | None = None, index_dtype: Any = np.int32) -> CSR:
        """The nonzero elements of a dense matrix; see `csr_fromdense`."""
        return csr_fromdense(mat, nse=nse, index_dtype=index_dtype)

    def to_bcsr(self) -> BCSR:
        """The same elements as a BCSR array."""
        return BCSR((self.data, self.indices, self.indptr), shape=self.shape)

    def todense(self) -> Array:
        return csr_todense(self)

    def transpose(self, axes: Any = None) -> CSC:
        _check_axes(self, axes)
        return CSC((self.data, self.indices, self.indptr), shape=self.shape[::-1])


@tree.register_pytree_node_class
class CSC(_Compressed):
    """A matrix by columns.

    Args:
      args: (data, indices, indptr): elements, their rows, and where columns begin, [columns + 1].
      shape: (rows, columns).

    Raises:
      ValueError: for shapes that do not fit. TypeError: for indices that are no integers.
    """

    _axis = 1

    @classmethod
    def fromdense(cls, mat: Any, *, nse: int | None = None, index_dtype: Any = np.int32) -> CSC:
        """The nonzero elements of a dense matrix, by columns; arguments as of `csr_fromdense`."""
        with known(mat):
            transposed = jnp.asarray(mat).T
        return csr_fromdense(transposed, nse=nse, index_dtype=index_dtype).transpose()

    def todense(self) -> Array:
        return csr_todense(self.transpose()).T

    def transpose(self, axes: Any = None) -> CSR:
        _check_axes(self, axes)
        return CSR((self.data, self.indices, self.indptr), shape=self.shape[::-1])


def _check_axes(mat: JAXSparse, axes: Any) -> None:
    if axes is not None and tuple(axes) != (1, 0):
        raise NotImplementedError(f"{type(mat).__name__}.transpose: axes must be None or (1, 0), got {axes}.")


def csr_fromdense(mat: Any, *, nse: int | None = None, index_dtype: Any = np.int32) -> CSR:
    """The nonzero elements of a dense matrix, by rows.

    Args:
      mat: a matrix.
      nse: the number of elements to store; by default, as many as there are, which must be known: not while tracing.
      index_dtype: of columns, and of where rows begin.

    >>> sparse.csr_fromdense(jnp.eye(2)).indptr
    Array([0, 1, 2], dtype=int32)
    """
    mat = jnp.asarray(mat)
    if mat.ndim != 2:
        raise ValueError(f"csr_fromdense: expected a matrix, got shape {mat.shape}.")
    found = bcsr_fromdense(mat, nse=nse, index_dtype=index_dtype)
    return CSR((found.data, found.indices, found.indptr), shape=mat.shape)


def csr_todense(mat: CSR) -> Array:
    """The dense matrix with these elements: those at one place are added up."""
    return bcsr_todense(mat.to_bcsr())


def csr_matvec(mat: CSR, v: Any, transpose: bool = False) -> Array:
    """The product of a CSR matrix, or its transpose, and a vector.

    >>> sparse.csr_matvec(sparse.csr_fromdense(jnp.array([[0., 2.], [3., 0.]])), jnp.array([1., 2.]))
    Array([4., 3.], dtype=float32)
    """
    v = check_operand("csr_matvec", mat, v, 1, transpose)
    return csr_matmat(mat, v[:, None], transpose=transpose)[:, 0]


def csr_matmat(mat: CSR, B: Any, *, transpose: bool = False) -> Array:
    """The product of a CSR matrix, or its transpose, and a dense matrix."""
    B = check_operand("csr_matmat", mat, B, 2, transpose)
    run = partial(_product, columns=mat.shape[1], transpose=bool(transpose))
    return compiled(run, mat.data.size, mat.data, mat.indices, mat.indptr, B)


def _product(data: Any, indices: Any, indptr: Any, x: Any, *, columns: int, transpose: bool) -> Array:
    if transpose:
        rows = ops.row_numbers(indptr[None], data.size)[0]
        return matrix_product(data, indices, rows, x, count=columns, in_order=False)
    return matrix_product(data, indptr, indices, x, count=indptr.size - 1, in_order=None)
