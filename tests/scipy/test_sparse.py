"""Iterative solvers against direct ones: real, complex, preconditioned, differentiated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.scipy.sparse.linalg import bicgstab, cg, gmres

RNG = np.random.default_rng(0)
SOLVERS: dict[str, Callable[..., Any]] = {
    "cg": cg, "bicgstab": bicgstab, "gmres": gmres, "gmres of 3": lambda *a, **k: gmres(*a, restart=3, **k),
    "gmres step by step": lambda *a, **k: gmres(*a, solve_method="incremental", **k)}


def matrix(name: str, n: int, dtype: str = "f8") -> np.ndarray:
    a = RNG.standard_normal((n, n)) + (1j * RNG.standard_normal((n, n)) if dtype[0] == "c" else 0)
    return (a @ a.conj().T / n + np.eye(n) if name == "cg" else a / n + 2 * np.eye(n)).astype(dtype)


@pytest.mark.parametrize("name", SOLVERS)
def test_solutions(name: str, x64: None) -> None:
    solve = SOLVERS[name]
    for dtype in ("f8", "c16"):
        for n in (1, 2, 9):
            a, b = matrix(name, n, dtype), matrix("", n, dtype)[0]
            want = np.linalg.solve(a, b)
            x, info = solve(a, b, tol=1e-10)
            assert x.dtype == dtype and (info == 0 if "gmres" in name else info is None)
            np.testing.assert_allclose(x, want, rtol=1e-7)
    np.testing.assert_allclose(solve(lambda v: jnp.asarray(a) @ v, b, tol=1e-10)[0], want, rtol=1e-7)
    np.testing.assert_allclose(anima.jit(lambda a, b: solve(a, b, tol=1e-10)[0])(a, b), want, rtol=1e-7)
    np.testing.assert_allclose(solve(a, b, want, tol=1e-10, M=np.diag(1 / np.diag(a)))[0], want, rtol=1e-7)
    np.testing.assert_allclose(solve(a, b, tol=1e-10, M=np.diag(1 / np.diag(a)))[0], want, rtol=1e-7)
    assert not np.asarray(solve(a, 0 * b)[0]).any()


@pytest.mark.parametrize("name", ["cg", "bicgstab", "gmres"])
def test_derivatives(name: str, x64: None) -> None:
    solve, a, b, ct = SOLVERS[name], matrix(name, 5), RNG.standard_normal(5), RNG.standard_normal(5)

    def value(a: Any, b: Any) -> Any:
        a = (a + a.T) / 2 if name == "cg" else a
        return jnp.sum(jnp.asarray(ct) * solve(a, b, tol=1e-13)[0])

    def direct(a: Any, b: Any) -> Any:
        a = (a + a.T) / 2 if name == "cg" else a
        return jnp.sum(jnp.asarray(ct) * jnp.linalg.solve(a, b))

    for k in (0, 1):
        np.testing.assert_allclose(anima.grad(value, k)(a, b), anima.grad(direct, k)(a, b), rtol=1e-7)
    np.testing.assert_allclose(anima.jacfwd(anima.grad(lambda s: value(a * s, b)))(1.2),
                               anima.grad(anima.grad(lambda s: direct(a * s, b)))(1.2), rtol=1e-7)
    two = jnp.stack([b, 2 * b])
    both = anima.vmap(lambda b: solve(a, b, tol=1e-10)[0])(two)
    np.testing.assert_allclose(both[1], 2 * np.linalg.solve(a, b), rtol=1e-7)


def test_derivatives_of_complex_systems(x64: None) -> None:
    """The transposed system of a Hermitian matrix is another one."""
    a, b, ct = matrix("cg", 4, "c16"), matrix("", 4, "c16")[0], matrix("", 4, "c16")[1]
    for solve in (cg, bicgstab):
        slope = anima.vjp(lambda b, solve=solve: solve(a, b, tol=1e-13)[0], b)[1](ct)[0]
        np.testing.assert_allclose(slope, np.linalg.solve(a.T, ct), rtol=1e-7)


@pytest.mark.parametrize("name", SOLVERS)
def test_the_tolerance_is_that_of_the_residual(name: str, x64: None) -> None:
    """Whatever the size of the preconditioner."""
    a, b = matrix(name, 9), 50 * RNG.standard_normal(9)
    for scale in (1e-6, 1e6):
        x, _ = SOLVERS[name](a, b, tol=1e-2, M=lambda v, scale=scale: scale * v)
        assert (0 if "gmres" in name else 1e-9) <= np.linalg.norm(a @ np.asarray(x) - b) / np.linalg.norm(b) <= 2e-2


def test_trees_of_arrays() -> None:
    tree = {"a": jnp.ones(3), "b": (jnp.ones((2, 2)),)}
    for solve in SOLVERS.values():
        x, _ = solve(lambda t: {"a": 2 * t["a"], "b": (4 * t["b"][0],)}, tree)
        np.testing.assert_allclose(x["a"], 0.5, rtol=1e-5)
        np.testing.assert_allclose(x["b"][0], 0.25, rtol=1e-5)


def test_limits() -> None:
    a, b = jnp.diag(jnp.arange(1.0, 9.0)), jnp.ones(8)
    few, many = (float(jnp.linalg.norm(a @ cg(a, b, maxiter=k)[0] - b)) for k in (2, 20))
    assert many < 1e-4 < few
    assert not np.asarray(cg(a, b, atol=10.0)[0]).any()


B = jnp.ones(3)
ERRORS: list[tuple[Callable[[], Any], type[Exception]]] = [
    (lambda: cg(jnp.ones((2, 3)), B), ValueError), (lambda: gmres("a", B), TypeError), (lambda: cg(3, B), TypeError),
    (lambda: cg(jnp.eye(3), B, jnp.ones(2)), ValueError), (lambda: bicgstab(jnp.eye(3), B, (B,)), ValueError),
    (lambda: gmres(jnp.eye(3), B, solve_method="x"), ValueError)]


@pytest.mark.parametrize("call, error", ERRORS)
def test_errors(call: Callable[[], Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


def test_iterations_that_break_down_end() -> None:
    """Where nothing would change any more: after a few steps, not after all."""
    calls: list[int] = []

    def skew(v: Any) -> Any:
        anima.debug.callback(lambda: calls.append(1))
        return jnp.stack([v[1], -v[0]])

    x, _ = bicgstab(skew, jnp.array([1.0, 0.0]), maxiter=500)
    anima.effects_barrier()
    assert len(calls) < 20 and np.isfinite(x).all()


@pytest.mark.parametrize("solve, products", [(cg, 1), (bicgstab, 2)])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_as_many_steps_as_are_asked_for(solve: Callable[..., Any], products: int, steps: int) -> None:
    calls: list[int] = []

    def product(v: Any) -> Any:
        anima.debug.callback(lambda: calls.append(1))
        return v * jnp.arange(1.0, 9.0)

    solve(product, jnp.ones(8), tol=0.0, maxiter=steps)
    anima.effects_barrier()
    assert len(calls) == 1 + products * steps
