"""Primitives of sparse arrays: each gives what the function of its name gives, under transformations too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.experimental import sparse
from anima.experimental.sparse import linalg
from anima.experimental.sparse.primitives import COOInfo, SparseInfo
from tests.experimental.sparse.arrays import random_dense

RNG = np.random.default_rng(3)
DENSE = jnp.asarray(random_dense(RNG, (3, 4)))
V, B = jnp.asarray(random_dense(RNG, (4,))), jnp.asarray(random_dense(RNG, (4, 2)))
U = jnp.asarray(random_dense(RNG, (3,)))
NUMBERS = (((1,), (0,)), ((), ()))
BCOO, BCSR, COO, CSR = (getattr(sparse, kind).fromdense(DENSE) for kind in ("BCOO", "BCSR", "COO", "CSR"))
INFO, COO_INFO = SparseInfo((3, 4), True, True), COOInfo((3, 4), True)
SQUARE = sparse.CSR.fromdense(jnp.array([[4., 1., 0.], [0., 3., 0.], [1., 0., 2.]]))


def parts(mat: Any) -> tuple[Any, ...]:
    return tuple(anima.tree.leaves(mat))


FORM = {"nse": 8, "index_dtype": np.int32}
# A primitive, its operands, its parameters; a function of the same operands, which need not be sparse itself.
CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = {
    "bcoo_fromdense": (sparse.bcoo_fromdense_p, (DENSE,), {**FORM, "n_batch": 0, "n_dense": 0},
                       lambda x: sparse.bcoo_fromdense(x, nse=8)),
    "bcoo_todense": (sparse.bcoo_todense_p, parts(BCOO), {"spinfo": INFO}, lambda *xs: DENSE),
    "bcoo_extract": (sparse.bcoo_extract_p, (BCOO.indices, DENSE), {"assume_unique": True}, lambda *xs: BCOO.data),
    "bcoo_transpose": (sparse.bcoo_transpose_p, parts(BCOO), {"permutation": (1, 0), "spinfo": INFO},
                       lambda *xs: sparse.bcoo_transpose(BCOO, permutation=(1, 0))),
    "bcoo_sort_indices": (sparse.bcoo_sort_indices_p, (BCOO.data[::-1], BCOO.indices[::-1]),
                          {"spinfo": SparseInfo((3, 4))}, lambda *xs: BCOO),
    "bcoo_sum_duplicates": (sparse.bcoo_sum_duplicates_p, [jnp.concatenate([x, x]) for x in parts(BCOO)],
                            {"spinfo": SparseInfo((3, 4)), "nse": BCOO.nse}, lambda *xs: BCOO * 2.0),
    "bcoo_dot_general": (sparse.bcoo_dot_general_p, (*parts(BCOO), B),
                         {"dimension_numbers": NUMBERS, "preferred_element_type": None, "lhs_spinfo": INFO},
                         lambda *xs: DENSE @ B),
    "bcoo_dot_general_sampled": (sparse.bcoo_dot_general_sampled_p, (DENSE, B, jnp.array([[0, 1], [2, 0]])),
                                 {"dimension_numbers": NUMBERS}, lambda *xs: (DENSE @ B)[np.array([0, 2]), [1, 0]]),
    "bcsr_fromdense": (sparse.bcsr_fromdense_p, (DENSE,), {**FORM, "n_batch": 0, "n_dense": 0},
                       lambda x: sparse.bcsr_fromdense(x, nse=8)),
    "bcsr_todense": (sparse.bcsr_todense_p, parts(BCSR), {"spinfo": INFO}, lambda *xs: DENSE),
    "bcsr_extract": (sparse.bcsr_extract_p, (*parts(BCSR)[1:], DENSE), {}, lambda *xs: BCSR.data),
    "bcsr_dot_general": (sparse.bcsr_dot_general_p, (*parts(BCSR), V),
                         {"dimension_numbers": NUMBERS, "preferred_element_type": None, "lhs_spinfo": INFO},
                         lambda *xs: DENSE @ V),
    "coo_fromdense": (sparse.coo_fromdense_p, (DENSE,), FORM, lambda x: sparse.coo_fromdense(x, nse=8)),
    "coo_todense": (sparse.coo_todense_p, parts(COO), {"spinfo": COO_INFO}, lambda *xs: DENSE),
    "coo_matvec": (sparse.coo_matvec_p, (*parts(COO), U), {"spinfo": COO_INFO, "transpose": True},
                   lambda *xs: U @ DENSE),
    "coo_matmat": (sparse.coo_matmat_p, (*parts(COO), B), {"spinfo": COO_INFO, "transpose": False},
                   lambda *xs: DENSE @ B),
    "csr_fromdense": (sparse.csr_fromdense_p, (DENSE,), FORM, lambda x: sparse.csr_fromdense(x, nse=8)),
    "csr_todense": (sparse.csr_todense_p, parts(CSR), {"shape": (3, 4)}, lambda *xs: DENSE),
    "csr_matvec": (sparse.csr_matvec_p, (*parts(CSR), V), {"shape": (3, 4), "transpose": False}, lambda *xs: DENSE @ V),
    "csr_matmat": (sparse.csr_matmat_p, (*parts(CSR), B), {"shape": (3, 4), "transpose": False}, lambda *xs: DENSE @ B),
    "spsolve": (linalg.spsolve_p, (*parts(SQUARE), U), {"tol": 1e-6, "reorder": 1},
                lambda *xs: jnp.linalg.solve(SQUARE.todense(), U)),
}


@pytest.mark.parametrize("name", CASES)
def test_primitive_of_each_function(name: str) -> None:
    primitive, operands, params, function = CASES[name]
    want = anima.tree.leaves(function(*operands))

    def bound(*xs: Any) -> Any:
        return primitive.bind(*xs, **params)

    assert primitive.name == name and primitive.multiple_results == (len(want) > 1)
    for run in (bound, anima.jit(bound)):
        got = anima.tree.leaves(run(*operands))
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert [eqn.primitive for eqn in anima.make_jaxpr(bound)(*operands).eqns] == [primitive]
    lanes = anima.vmap(bound)(*(jnp.stack([x, x]) for x in operands))
    for a, b in zip(anima.tree.leaves(lanes), want, strict=True):
        np.testing.assert_allclose(a, jnp.stack([b, b]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["bcoo_todense", "bcoo_dot_general", "bcsr_dot_general", "coo_matvec", "csr_matmat",
                                  "spsolve"])
def test_derivatives_by_data(name: str) -> None:
    primitive, operands, params, _ = CASES[name]
    anima.test_util.check_grads(lambda data: primitive.bind(data, *operands[1:], **params), (operands[0],), order=1,
                                rtol=1e-2, atol=1e-2)


def test_products_of_two_sparse_arrays() -> None:
    other = sparse.BCOO.fromdense(B)
    got = sparse.bcoo_spdot_general_p.bind(*parts(BCOO), *parts(other), lhs_spinfo=INFO, rhs_spinfo=SparseInfo((4, 2)),
                                           dimension_numbers=NUMBERS, preferred_element_type=None)
    np.testing.assert_allclose(sparse.BCOO(tuple(got), shape=(3, 2)).todense(), DENSE @ B, rtol=1e-5)
