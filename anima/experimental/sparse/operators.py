"""What operators and methods of sparse arrays mean.

    >>> mat = sparse.BCOO.fromdense(jnp.array([[0., 2.], [3., 0.]]))
    >>> 2 * mat @ mat.T + mat
    BCOO(float32[2, 2], nse=6)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anima import numpy as jnp
from anima.experimental.sparse.base import JAXSparse, install
from anima.experimental.sparse.bcoo import BCOO
from anima.experimental.sparse.bcsr import BCSR
from anima.experimental.sparse.coo import COO, coo_matmat, coo_matvec
from anima.experimental.sparse.csr import CSC, CSR, csr_matmat, csr_matvec
from anima.experimental.sparse.transform import sparsify

Function = Callable[..., Any]


def _lifted(function: Function) -> Function:
    return sparsify(function, use_tracer=True)


def _reflected(function: Function) -> Function:
    return _lifted(lambda x, y: function(y, x))


def _getitem(mat: Any, index: Any) -> Any:
    return _lifted(lambda x: x[index])(mat)


def _fixed(name: str) -> Function:
    """A method of arrays, whose arguments are no arrays."""
    def method(mat: Any, *args: Any, **kwargs: Any) -> Any:
        return _lifted(lambda x: getattr(x, name)(*args, **kwargs))(mat)

    return method


_of_both: dict[str, Function] = {
    "__neg__": lambda mat: mat.like(-mat.data), "__pos__": lambda mat: mat, "__abs__": _lifted(jnp.abs),
    "__matmul__": _lifted(jnp.matmul), "__rmatmul__": _reflected(jnp.matmul),
    "__mul__": _lifted(jnp.multiply), "__rmul__": _reflected(jnp.multiply),
    "__add__": _lifted(jnp.add), "__radd__": _reflected(jnp.add),
    "__sub__": _lifted(jnp.subtract), "__rsub__": _reflected(jnp.subtract),
    "__truediv__": _lifted(jnp.true_divide), "__rtruediv__": _reflected(jnp.true_divide),
    "__pow__": _lifted(jnp.power),
    "__eq__": _lifted(jnp.equal), "__ne__": _lifted(jnp.not_equal),
    "__lt__": _lifted(jnp.less), "__le__": _lifted(jnp.less_equal),
    "__gt__": _lifted(jnp.greater), "__ge__": _lifted(jnp.greater_equal),
    "__getitem__": _getitem, "sum": _fixed("sum"),
}


install(BCOO, {**_of_both, "reshape": _fixed("reshape"), "astype": _fixed("astype")})
install(BCSR, _of_both)


# ---------------------------------------------------------------- COO, CSR, CSC

def _scaled(function: Function) -> Function:
    """A function of the elements and a number."""
    def operator(mat: Any, other: Any) -> Any:
        if isinstance(other, JAXSparse) or jnp.ndim(other):
            raise NotImplementedError(f"{type(mat).__name__} arrays are multiplied and divided by numbers; for all "
                                      "else there are BCOO and BCSR arrays.")
        return mat.like(function(mat.data, other))

    return operator


def _matmul(matvec: Function, matmat: Function, own: Callable[[Any], Any], transpose: bool) -> Function:
    """`mat @ x`, where `own(mat)` is the matrix, or its transpose, that these functions multiply."""
    def operator(mat: Any, other: Any) -> Any:
        if isinstance(other, JAXSparse):
            raise NotImplementedError(f"{type(mat).__name__} times {type(other).__name__} is not implemented: there "
                                      "are BCOO arrays for that.")
        return (matvec if jnp.ndim(other) == 1 else matmat)(own(mat), other, transpose=transpose)

    return operator


def _rmatmul(matmul: Function) -> Function:
    """`x @ mat`, from the product of the matrix's transpose with `x`."""
    def operator(mat: Any, other: Any) -> Any:
        return matmul(mat, jnp.transpose(jnp.asarray(other))).T

    return operator


_coo = (coo_matvec, coo_matmat)
_csr = (csr_matvec, csr_matmat)
for _kind, _functions, _own, _turned in ((COO, _coo, lambda m: m, False), (CSR, _csr, lambda m: m, False),
                                         (CSC, _csr, lambda m: m.transpose(), True)):
    install(_kind, {
        "__neg__": lambda mat: mat.like(-mat.data), "__pos__": lambda mat: mat,
        "__mul__": _scaled(jnp.multiply), "__rmul__": _scaled(jnp.multiply), "__truediv__": _scaled(jnp.true_divide),
        "__matmul__": _matmul(*_functions, _own, _turned),
        "__rmatmul__": _rmatmul(_matmul(*_functions, _own, not _turned)),
    })
