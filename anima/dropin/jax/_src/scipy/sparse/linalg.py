"""`jax._src.scipy.sparse.linalg`: trees as vectors, and steps of `gmres`, of which libraries make their own."""

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import anima.numpy as jnp
from anima import tree
from anima.scipy.sparse.linalg import gmres, operator_function as _normalize_matvec

__all__ = ["_add", "_gmres_batched", "_gmres_incremental", "_gmres_solve", "_identity", "_mul", "_norm",
           "_normalize_matvec", "_shapes", "_sub", "_vdot_real_tree", "_vdot_tree"]

_add = partial(tree.map, operator.add)
_sub = partial(tree.map, operator.sub)


def _mul(scalar: Any, x: Any) -> Any:
    """A tree times a number."""
    return tree.map(lambda leaf: scalar * leaf, x)


def _shapes(x: Any) -> Any:
    """The shapes of the leaves of a tree, in a tree like it."""
    return tree.map(jnp.shape, x)


def _vdot_tree(x: Any, y: Any, precision: Any = "highest") -> Any:
    """The product of two trees as of vectors, the first one conjugated."""
    return sum(tree.leaves(tree.map(partial(jnp.vdot, precision=precision), x, y)))


def _vdot_real_tree(x: Any, y: Any) -> Any:
    """The real part of the product of two trees as of vectors, the first one conjugated."""
    return jnp.real(_vdot_tree(x, y))


def _identity(x: Any) -> Any:
    """The operator that changes nothing."""
    return x


def _norm(x: Any) -> Any:
    """The Euclidean norm of all leaves of a tree."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(jnp.abs(leaf))) for leaf in tree.leaves(x)))


def _gmres_incremental(A: Any, b: Any, x0: Any, **options: Any) -> Any:
    """The solution of A x = b, whose residual is looked at after each vector."""
    return gmres(A, b, x0, tol=0.0, solve_method="incremental", **options)[0]


def _gmres_batched(A: Any, b: Any, x0: Any, **options: Any) -> Any:
    """The solution of A x = b, whose residual is looked at after all vectors."""
    return gmres(A, b, x0, tol=0.0, solve_method="batched", **options)[0]


def _gmres_solve(A: Any, b: Any, x0: Any, atol: Any, ptol: Any, restart: int, maxiter: int, M: Any,
                 gmres_func: Callable[..., Any]) -> Any:
    """The solution of A x = b to within `atol`; what that is of preconditioned residuals follows here."""
    return gmres_func(A, b, x0, atol=atol, restart=restart, maxiter=maxiter, M=None if M is _identity else M)
