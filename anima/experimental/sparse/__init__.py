"""Sparse arrays, and functions of them, as `jax.experimental.sparse`: see `docs/sparse.md`.

    >>> from anima.experimental import sparse
    >>> mat = sparse.BCOO.fromdense(jnp.array([[0., 2.], [3., 0.]]))
    >>> mat @ jnp.array([1., 2.])
    Array([4., 3.], dtype=float32)
"""

from anima.experimental.sparse import linalg as linalg, operators as _operators
from anima.experimental.sparse.autodiff import (
    grad as grad,
    jacfwd as jacfwd,
    jacobian as jacobian,
    jacrev as jacrev,
    value_and_grad as value_and_grad,
)
from anima.experimental.sparse.base import (
    CuSparseEfficiencyWarning as CuSparseEfficiencyWarning,
    JAXSparse as JAXSparse,
    SparseEfficiencyError as SparseEfficiencyError,
    SparseEfficiencyWarning as SparseEfficiencyWarning,
)
from anima.experimental.sparse.bcoo import BCOO as BCOO
from anima.experimental.sparse.bcsr import (
    BCSR as BCSR,
    bcsr_broadcast_in_dim as bcsr_broadcast_in_dim,
    bcsr_concatenate as bcsr_concatenate,
    bcsr_dot_general as bcsr_dot_general,
    bcsr_extract as bcsr_extract,
    bcsr_fromdense as bcsr_fromdense,
    bcsr_sum_duplicates as bcsr_sum_duplicates,
    bcsr_todense as bcsr_todense,
)
from anima.experimental.sparse.construct import empty as empty, eye as eye, random_bcoo as random_bcoo
from anima.experimental.sparse.convolution import bcoo_conv_general_dilated as bcoo_conv_general_dilated
from anima.experimental.sparse.coo import (
    COO as COO,
    coo_fromdense as coo_fromdense,
    coo_matmat as coo_matmat,
    coo_matvec as coo_matvec,
    coo_todense as coo_todense,
)
from anima.experimental.sparse.csr import (
    CSC as CSC,
    CSR as CSR,
    csr_fromdense as csr_fromdense,
    csr_matmat as csr_matmat,
    csr_matvec as csr_matvec,
    csr_todense as csr_todense,
)
from anima.experimental.sparse.layout import (
    bcoo_extract as bcoo_extract,
    bcoo_fromdense as bcoo_fromdense,
    bcoo_sort_indices as bcoo_sort_indices,
    bcoo_sum_duplicates as bcoo_sum_duplicates,
    bcoo_todense as bcoo_todense,
    bcoo_update_layout as bcoo_update_layout,
)
from anima.experimental.sparse.primitives import (
    bcoo_dot_general_p as bcoo_dot_general_p,
    bcoo_dot_general_sampled_p as bcoo_dot_general_sampled_p,
    bcoo_extract_p as bcoo_extract_p,
    bcoo_fromdense_p as bcoo_fromdense_p,
    bcoo_sort_indices_p as bcoo_sort_indices_p,
    bcoo_spdot_general_p as bcoo_spdot_general_p,
    bcoo_sum_duplicates_p as bcoo_sum_duplicates_p,
    bcoo_todense_p as bcoo_todense_p,
    bcoo_transpose_p as bcoo_transpose_p,
    bcsr_dot_general_p as bcsr_dot_general_p,
    bcsr_extract_p as bcsr_extract_p,
    bcsr_fromdense_p as bcsr_fromdense_p,
    bcsr_todense_p as bcsr_todense_p,
    coo_fromdense_p as coo_fromdense_p,
    coo_matmat_p as coo_matmat_p,
    coo_matvec_p as coo_matvec_p,
    coo_todense_p as coo_todense_p,
    csr_fromdense_p as csr_fromdense_p,
    csr_matmat_p as csr_matmat_p,
    csr_matvec_p as csr_matvec_p,
    csr_todense_p as csr_todense_p,
)
from anima.experimental.sparse.product import (
    bcoo_dot_general as bcoo_dot_general,
    bcoo_dot_general_sampled as bcoo_dot_general_sampled,
    bcoo_multiply_dense as bcoo_multiply_dense,
    bcoo_multiply_sparse as bcoo_multiply_sparse,
)
from anima.experimental.sparse.shape import (
    bcoo_broadcast_in_dim as bcoo_broadcast_in_dim,
    bcoo_concatenate as bcoo_concatenate,
    bcoo_dynamic_slice as bcoo_dynamic_slice,
    bcoo_gather as bcoo_gather,
    bcoo_reduce_sum as bcoo_reduce_sum,
    bcoo_reshape as bcoo_reshape,
    bcoo_rev as bcoo_rev,
    bcoo_slice as bcoo_slice,
    bcoo_squeeze as bcoo_squeeze,
    bcoo_transpose as bcoo_transpose,
)
from anima.experimental.sparse.transform import (
    SparseTracer as SparseTracer,
    sparsify as sparsify,
    todense as todense,
    todense_p as todense_p,
)
from anima.names import access

globals().update(access(__name__, globals(), ("linalg",)))
