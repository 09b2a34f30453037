"""Iterative solvers of linear systems A x = b, as `scipy.sparse.linalg`; A is a matrix or a function.

    >>> x, _ = anima.scipy.sparse.linalg.cg(lambda x: 2 * x, jnp.array([2., 4.]))
    >>> x
    Array([1., 2.], dtype=float32)

`b` may be any pytree of arrays. Derivatives solve one more system (implicit differentiation).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import anima.numpy as jnp
from anima import errors as _errors, tree
from anima.core import dtypes
from anima.flatten_util import ravel_pytree
from anima.lax.control import fori_loop, while_loop
from anima.lax.solving import custom_linear_solve

Function = Callable[[Any], Any]
Solve = Callable[[Function, Any, Any, Function, bool, Any, int], Any]


def operator_function(a: Any) -> Function:
    """The linear function of a matrix; a function itself. TypeError and ValueError for what is neither."""
    if callable(a):
        return a
    if not hasattr(a, "ndim"):
        raise TypeError(f"linear operator must be either a function or ndarray: {a}")
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise ValueError(f"linear operator must be a square matrix, but has shape: {a.shape}")
    matrix = jnp.asarray(a)
    return lambda x: matrix @ x


def _is_real(x: Any) -> bool:
    return not dtypes.issubdtype(x.dtype, np.complexfloating)


def _solved(A: Any, b: Any, x0: Any, tol: Any, atol: Any, maxiter: int | None, M: Any, solve: Solve,
            symmetric: bool) -> tuple[Any, None]:
    """The solution by `solve(function, b, x0, preconditioner, whether there is one, tolerance, maxiter)` on vectors."""
    b = tree.map(lambda v: jnp.asarray(v) if jnp.issubdtype(jnp.asarray(v).dtype, np.inexact) else
                 jnp.asarray(v).astype(float), b)
    x0 = tree.map(jnp.zeros_like, b) if x0 is None else tree.map(jnp.asarray, x0)
    if tree.structure(x0) != tree.structure(b):
        raise ValueError(f"x0 and b must have matching tree structure: {tree.structure(x0)} vs {tree.structure(b)}")
    shapes = [[v.shape for v in tree.leaves(t)] for t in (x0, b)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"arrays in x0 and b must have matching shapes: {shapes[0]} vs {shapes[1]}")
    size = sum(v.size for v in tree.leaves(b))
    count = 10 * size if maxiter is None else maxiter
    precondition = (lambda v: v) if M is None else operator_function(M)

    def solver(matvec: Function, right: Any) -> Any:
        flat, unravel = ravel_pytree(right)

        def on_vectors(f: Function) -> Function:
            return lambda v: ravel_pytree(f(unravel(v)))[0].astype(flat.dtype)

        start = ravel_pytree(x0)[0].astype(flat.dtype)
        norm = jnp.sqrt(jnp.sum(jnp.square(jnp.abs(flat))))
        return unravel(solve(on_vectors(matvec), flat, start, on_vectors(precondition), M is not None,
                             jnp.maximum(jnp.asarray(tol, norm.dtype) * norm, jnp.asarray(atol, norm.dtype)), count))

    symmetric = symmetric and all(map(_is_real, tree.leaves(b)))
    return custom_linear_solve(operator_function(A), b, solver, solver, symmetric), None


def _dot(x: Any, y: Any) -> Any:
    return jnp.vdot(x, y)


def _norm(x: Any) -> Any:
    return jnp.sqrt(jnp.real(_dot(x, x)))


def _ratio(x: Any, y: Any) -> Any:
    """x / y; 0 where y is 0: a step that need not be taken."""
    return jnp.where(y == 0, 0, x / jnp.where(y == 0, 1, y))


def _cg(a: Function, b: Any, x0: Any, m: Function, conditioned: bool, tolerance: Any, maxiter: int) -> Any:
    def going(state: Any) -> Any:
        _, r, gamma, _, k = state
        size = jnp.real(_dot(r, r)) if conditioned else jnp.real(gamma)
        return (size > jnp.square(tolerance)) & (k < maxiter)

    def step(state: Any) -> Any:
        x, r, gamma, p, k = state
        ap = a(p)
        alpha = _ratio(gamma, _dot(p, ap))
        x, r = x + alpha * p, r - alpha * ap
        z = m(r)
        now = _dot(r, z)
        return x, r, now, z + _ratio(now, gamma) * p, k + 1

    r = b - a(x0)
    z = m(r)
    return while_loop(going, step, (x0, r, _dot(r, z), z, jnp.int32(0)))[0]


def _bicgstab(a: Function, b: Any, x0: Any, m: Function, conditioned: bool, tolerance: Any, maxiter: int) -> Any:
    def going(state: Any) -> Any:
        r, k = state[1], state[-1]
        return (jnp.real(_dot(r, r)) > jnp.square(tolerance)) & (k < maxiter) & (k >= 0)

    def step(state: Any) -> Any:
        x, r, shadow, alpha, omega, rho, p, q, k = state
        rho_new = _dot(shadow, r)
        beta = _ratio(rho_new, rho) * _ratio(alpha, omega)
        p = r + beta * (p - omega * q)
        p_hat = m(p)
        q = a(p_hat)
        alpha = _ratio(rho_new, _dot(shadow, q))
        s = r - alpha * q
        early = jnp.real(_dot(s, s)) < jnp.square(tolerance)
        s_hat = m(s)
        t = a(s_hat)
        omega = _ratio(_dot(t, s), _dot(t, t))
        x = x + alpha * p_hat + jnp.where(early, 0, omega) * s_hat
        r = jnp.where(early, s, s - omega * t)
        broken = (rho_new == 0) | ((omega == 0) & ~early) | (alpha == 0)
        return x, r, shadow, alpha, omega, rho_new, p, q, jnp.where(broken, -11, k + 1)

    r = b - a(x0)
    one = jnp.ones((), b.dtype)
    return while_loop(going, step, (x0, r, r, one, one, one, r, jnp.zeros_like(r), jnp.int32(0)))[0]


def _rotation(x: Any, y: Any) -> tuple[Any, Any]:
    """c and s with -conj(s) x + c y = 0, c real."""
    size = jnp.sqrt(jnp.square(jnp.abs(x)) + jnp.square(jnp.abs(y)))
    safe = jnp.where(size == 0, 1, size)
    phase = jnp.where(x == 0, 1, x / jnp.where(x == 0, 1, jnp.abs(x)).astype(x.dtype))
    return jnp.where(size == 0, 1, jnp.abs(x) / safe).astype(x.dtype), phase * jnp.conj(y) / safe.astype(x.dtype)


def _cycle(a: Function, m: Function, residual: Any, restart: int, tolerance: Any) -> Any:
    """The correction in the Krylov space of `restart` vectors that leaves the least residual (Saad & Schultz, 1986)."""
    n, dtype = residual.shape[0], residual.dtype
    beta = _norm(residual)

    def going(state: Any) -> Any:
        k, _, _, _, errors = state
        return (k < restart) & (jnp.abs(errors[k]) > tolerance)

    def step(state: Any) -> Any:
        k, basis, upper, turns, errors = state
        w = m(a(basis[:, k]))
        h = jnp.zeros(restart + 1, dtype)
        for _ in range(2):  # twice is enough
            change = jnp.conj(basis).T @ w
            w, h = w - basis @ change, h + change
        size = _norm(w)
        basis = basis.at[:, k + 1].set(_ratio(w, size.astype(dtype)))
        h = h.at[k + 1].set(size.astype(dtype))

        def turn(i: Any, h: Any) -> Any:
            c, s = turns[i, 0], turns[i, 1]
            return h.at[i].set(c * h[i] + s * h[i + 1]).at[i + 1].set(-jnp.conj(s) * h[i] + c * h[i + 1])

        h = fori_loop(0, k, turn, h)
        c, s = _rotation(h[k], h[k + 1])
        h = h.at[k].set(c * h[k] + s * h[k + 1]).at[k + 1].set(0)
        errors = errors.at[k + 1].set(-jnp.conj(s) * errors[k]).at[k].set(c * errors[k])
        return k + 1, basis, upper.at[:, k].set(h[:restart]), turns.at[k].set(jnp.stack([c, s])), errors

    basis = jnp.zeros((n, restart + 1), dtype).at[:, 0].set(_ratio(residual, beta.astype(dtype)))
    errors = jnp.zeros(restart + 1, dtype).at[0].set(beta.astype(dtype))
    state = (jnp.int32(0), basis, jnp.eye(restart, dtype=dtype), jnp.zeros((restart, 2), dtype), errors)
    k, basis, upper, _, errors = while_loop(going, step, state)
    used = jnp.arange(restart, dtype=np.int32) < k
    diagonal = jnp.diagonal(upper)
    upper = upper + jnp.diag(jnp.where(diagonal == 0, 1, 0).astype(dtype))  # of steps that changed nothing
    y = jnp.linalg.solve(upper, jnp.where(used & (diagonal != 0), errors[:restart], 0))
    return basis[:, :restart] @ y


def _gmres(restart: int, incremental: bool) -> Solve:
    def solve(a: Function, b: Any, x0: Any, m: Function, conditioned: bool, tolerance: Any, maxiter: int) -> Any:
        size = max(min(restart, b.shape[0]), 1)
        weight = _norm(m(b)) / jnp.where(_norm(b) == 0, 1, _norm(b)) if conditioned else 1
        inner = tolerance * weight if incremental else jnp.zeros_like(tolerance)

        def going(state: Any) -> Any:
            _, r, k = state
            return (_norm(r) > tolerance * weight) & (k < maxiter)

        def step(state: Any) -> Any:
            x, r, k = state
            x = x + _cycle(a, m, r, size, inner)
            return x, m(b - a(x)), k + 1

        return while_loop(going, step, (x0, m(b - a(x0)), jnp.int32(0)))[0]

    return solve


def cg(A: Any, b: Any, x0: Any = None, *, tol: Any = 1e-5, atol: Any = 0.0, maxiter: int | None = None,
       M: Any = None) -> tuple[Any, None]:
    """The solution of A x = b by conjugate gradients, for a Hermitian positive definite `A`; and None.

    `x0` is where to start (default: 0), `M` an approximate inverse of `A`; it ends when the residual's norm is below
    max(tol * norm(b), atol), or after `maxiter` steps (default: 10 for each element). ValueError where shapes or trees
    differ, TypeError for an operator that is neither a matrix nor a function.

    Hestenes and Stiefel, "Methods of conjugate gradients for solving linear systems", 1952.
    """
    return _solved(A, b, x0, tol, atol, maxiter, M, _cg, True)


def bicgstab(A: Any, b: Any, x0: Any = None, *, tol: Any = 1e-5, atol: Any = 0.0, maxiter: int | None = None,
             M: Any = None) -> tuple[Any, None]:
    """As `cg`, for any `A`, by stabilized biconjugate gradients (H. A. van der Vorst, 1992)."""
    return _solved(A, b, x0, tol, atol, maxiter, M, _bicgstab, False)


def gmres(A: Any, b: Any, x0: Any = None, *, tol: Any = 1e-5, atol: Any = 0.0, restart: int = 20,
          maxiter: int | None = None, M: Any = None, solve_method: str = "batched") -> tuple[Any, Any]:
    """As `cg`, for any `A`, by generalized minimal residuals, started again after `restart` vectors; and 0, or -1 where
    the solution has NaNs.

    solve_method="incremental" looks after each vector whether the residual is small enough, "batched" after all.
    ValueError for another.
    """
    if solve_method not in ("incremental", "batched"):
        raise ValueError(f"invalid solve_method {solve_method}, must be either 'incremental' or 'batched'")
    x, _ = _solved(A, b, x0, tol, atol, maxiter, M, _gmres(restart, solve_method == "incremental"), False)
    return x, jnp.where(jnp.isnan(_norm(ravel_pytree(x)[0])), -1, 0)


globals().update(_errors.public_face(__name__, globals()))  # errors show the user's frames only

__all__ = ["bicgstab", "cg", "gmres"]
