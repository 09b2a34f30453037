"""Operations on sparse arrays as primitives of their data and indices, under JAX's names.

    bcoo_todense_p.bind(data, indices, spinfo=SparseInfo((2, 3)))    csr_matvec_p.bind(data, columns, pointers, v, ...)

Each is what the function of its name does, with all its rules. The functions themselves, which know their arrays,
compile smaller operations (`anima/ops/sparse.py`): these names are in the programs of those who bind them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from anima import numpy as jnp, tree
from anima.core.avals import Shape
from anima.experimental.sparse import bcsr, coo, csr, layout, product, shape as shapes
from anima.experimental.sparse.bcoo import BCOO
from anima.transforms.composed import Composed


class SparseInfo(NamedTuple):
    """What is known of a BCOO or BCSR array beside its data and indices."""

    shape: Shape
    indices_sorted: bool = False
    unique_indices: bool = False


class COOInfo(NamedTuple):
    """What is known of a COO matrix beside its data and indices."""

    shape: Shape
    rows_sorted: bool = False
    cols_sorted: bool = False


def _parts(name: str, function: Callable[..., Any]) -> Composed:
    """A primitive whose result is a sparse array, as its leaves."""
    def leaves(*args: Any, **params: Any) -> Sequence[Any]:
        return tree.leaves(function(*args, **params))

    return Composed(name, leaves, multiple_results=True)


def _bcoo(data: Any, indices: Any, info: SparseInfo) -> BCOO:
    return BCOO((data, indices), shape=info.shape, indices_sorted=info.indices_sorted,
                unique_indices=info.unique_indices)


def _bcsr(data: Any, indices: Any, indptr: Any, info: SparseInfo) -> bcsr.BCSR:
    return bcsr.BCSR((data, indices, indptr), shape=info.shape, indices_sorted=info.indices_sorted,
                     unique_indices=info.unique_indices)


def _coo(data: Any, row: Any, col: Any, info: COOInfo) -> coo.COO:
    return coo.COO((data, row, col), shape=info.shape, rows_sorted=info.rows_sorted, cols_sorted=info.cols_sorted)


def _extract(indices: Any, arr: Any, *, assume_unique: bool) -> Any:
    window = arr.shape[indices.ndim - 2 + indices.shape[-1]:]
    places = BCOO((jnp.zeros((*indices.shape[:-1], *window), arr.dtype), indices), shape=arr.shape)
    return layout.bcoo_extract(places, arr, assume_unique=assume_unique).data


bcoo_fromdense_p = _parts("bcoo_fromdense", layout.bcoo_fromdense)
bcoo_todense_p = Composed("bcoo_todense", lambda data, indices, *, spinfo: layout.bcoo_todense(
    _bcoo(data, indices, spinfo)))
bcoo_extract_p = Composed("bcoo_extract", _extract)
bcoo_transpose_p = _parts("bcoo_transpose", lambda data, indices, *, permutation, spinfo: shapes.bcoo_transpose(
    _bcoo(data, indices, spinfo), permutation=permutation))
bcoo_sort_indices_p = _parts("bcoo_sort_indices", lambda data, indices, *, spinfo: layout.bcoo_sort_indices(
    _bcoo(data, indices, spinfo)))
bcoo_sum_duplicates_p = _parts("bcoo_sum_duplicates", lambda data, indices, *, spinfo, nse: layout.bcoo_sum_duplicates(
    _bcoo(data, indices, spinfo), nse=nse))
bcoo_dot_general_p = Composed(
    "bcoo_dot_general",
    lambda lhs_data, lhs_indices, rhs, *, dimension_numbers, preferred_element_type=None, lhs_spinfo:
    product.bcoo_dot_general(_bcoo(lhs_data, lhs_indices, lhs_spinfo), rhs, dimension_numbers=dimension_numbers,
                             preferred_element_type=preferred_element_type))
bcoo_spdot_general_p = _parts(
    "bcoo_spdot_general",
    lambda lhs_data, lhs_indices, rhs_data, rhs_indices, *, lhs_spinfo, rhs_spinfo, dimension_numbers,
    preferred_element_type=None: product.bcoo_dot_general(
        _bcoo(lhs_data, lhs_indices, lhs_spinfo), _bcoo(rhs_data, rhs_indices, rhs_spinfo),
        dimension_numbers=dimension_numbers, preferred_element_type=preferred_element_type))
bcoo_dot_general_sampled_p = Composed(
    "bcoo_dot_general_sampled", lambda A, B, indices, *, dimension_numbers: product.bcoo_dot_general_sampled(
        A, B, indices, dimension_numbers=dimension_numbers))

bcsr_fromdense_p = _parts("bcsr_fromdense", bcsr.bcsr_fromdense)
bcsr_todense_p = Composed("bcsr_todense", lambda data, indices, indptr, *, spinfo: bcsr.bcsr_todense(
    _bcsr(data, indices, indptr, spinfo)))
bcsr_extract_p = Composed("bcsr_extract", bcsr.bcsr_extract)
bcsr_dot_general_p = Composed(
    "bcsr_dot_general",
    lambda lhs_data, lhs_indices, lhs_indptr, rhs, *, dimension_numbers, preferred_element_type=None, lhs_spinfo:
    bcsr.bcsr_dot_general(_bcsr(lhs_data, lhs_indices, lhs_indptr, lhs_spinfo), rhs,
                          dimension_numbers=dimension_numbers, preferred_element_type=preferred_element_type))

coo_fromdense_p = _parts("coo_fromdense", coo.coo_fromdense)
coo_todense_p = Composed("coo_todense", lambda data, row, col, *, spinfo: coo.coo_todense(
    _coo(data, row, col, spinfo)))
coo_matvec_p = Composed("coo_matvec", lambda data, row, col, v, *, spinfo, transpose: coo.coo_matvec(
    _coo(data, row, col, spinfo), v, transpose=transpose))
coo_matmat_p = Composed("coo_matmat", lambda data, row, col, B, *, spinfo, transpose: coo.coo_matmat(
    _coo(data, row, col, spinfo), B, transpose=transpose))

csr_fromdense_p = _parts("csr_fromdense", csr.csr_fromdense)
csr_todense_p = Composed("csr_todense", lambda data, indices, indptr, *, shape: csr.csr_todense(
    csr.CSR((data, indices, indptr), shape=shape)))
csr_matvec_p = Composed("csr_matvec", lambda data, indices, indptr, v, *, shape, transpose: csr.csr_matvec(
    csr.CSR((data, indices, indptr), shape=shape), v, transpose=transpose))
csr_matmat_p = Composed("csr_matmat", lambda data, indices, indptr, B, *, shape, transpose: csr.csr_matmat(
    csr.CSR((data, indices, indptr), shape=shape), B, transpose=transpose))
