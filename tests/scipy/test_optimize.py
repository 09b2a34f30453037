"""Minimization: known minima, limits, states, compiled and batched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.optimize

import anima
import anima.numpy as jnp
from anima.scipy.optimize import OptimizeResults, minimize

LBFGS = "l-bfgs-experimental-do-not-rely-on-this"
METHODS = ("BFGS", LBFGS)


def rosenbrock(x: Any) -> Any:
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def himmelblau(x: Any) -> Any:
    return (x[0] ** 2 + x[1] - 11) ** 2 + (x[0] + x[1] ** 2 - 7) ** 2


def matyas(x: Any) -> Any:
    return 0.26 * (x[0] ** 2 + x[1] ** 2) - 0.48 * x[0] * x[1]


def quartic(x: Any) -> Any:
    return jnp.sum((x - jnp.arange(x.size)) ** 4 + (x - jnp.arange(x.size)) ** 2)


PROBLEMS = [(rosenbrock, np.zeros(2), np.ones(2)), (rosenbrock, np.full(5, -0.5), np.ones(5)),
            (himmelblau, np.ones(2), np.array([3.0, 2.0])), (matyas, np.array([3.0, -2.0]), np.zeros(2)),
            (quartic, np.zeros(9), np.arange(9.0)), (quartic, np.zeros(1), np.zeros(1))]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("problem", range(len(PROBLEMS)))
def test_minima(problem: int, method: str, x64: None) -> None:
    function, start, want = PROBLEMS[problem]
    options = {"ftol": 1e-15} if method == LBFGS else None
    found = minimize(function, start, method=method, options=options)
    assert isinstance(found, OptimizeResults) and bool(found.success) and int(found.status) == 0
    np.testing.assert_allclose(found.x, want, atol=2e-5)
    np.testing.assert_allclose(found.jac, anima.grad(function)(found.x))
    np.testing.assert_allclose(found.fun, function(found.x))
    reference = scipy.optimize.minimize(lambda x: float(function(x)), start,
    method="BFGS" if method == "BFGS" else "L-BFGS-B",
                                        jac=lambda x: np.asarray(anima.grad(function)(x)))
    assert int(found.nfev) <= 2 * reference.nfev + 5 and int(found.nit) <= 2 * reference.nit + 5
    compiled = anima.jit(lambda x: minimize(function, x, method=method, options=options))(start)
    np.testing.assert_allclose(compiled.x, want, atol=2e-5)


def test_the_inverse_of_the_hessian(x64: None) -> None:
    found = minimize(rosenbrock, np.zeros(3), method="BFGS")
    np.testing.assert_allclose(found.hess_inv, np.linalg.inv(anima.hessian(rosenbrock)(found.x)), rtol=0.2, atol=2e-2)


@pytest.mark.parametrize("method", METHODS)
def test_limits_and_options(method: str) -> None:
    few = minimize(rosenbrock, jnp.zeros(2), method=method, options={"maxiter": 2})
    assert not few.success and int(few.status) == 1 and int(few.nit) == 2
    coarse, fine = (int(minimize(rosenbrock, jnp.zeros(2), method=method, tol=t).nit) for t in (10.0, 1e-3))
    assert coarse < fine
    shifted = minimize(lambda x, a, b: jnp.sum((x - a) ** 2) * b, jnp.zeros(2), (3.0, 2.0), method=method)
    np.testing.assert_allclose(shifted.x, 3, rtol=1e-4)
    assert int(minimize(matyas, jnp.zeros(2), method=method).nit) == 0
    starts = jnp.array([[0.0, 0.0], [2.0, 2.0]])
    many = anima.vmap(lambda x: minimize(himmelblau, x, method=method).x)(starts)
    np.testing.assert_allclose(anima.vmap(himmelblau)(many), 0, atol=1e-4)


def test_limits_of_calls() -> None:
    found = minimize(rosenbrock, jnp.zeros(2), method=LBFGS, options={"maxfun": 5})
    assert not found.success and int(found.status) == 2


def test_functions_without_a_minimum_end() -> None:
    for method in METHODS:
        found = minimize(lambda x: jnp.sum(x), jnp.zeros(2), method=method, options={"maxiter": 5})
        assert not found.success


ERRORS: list[tuple[Callable[[], Any], type[Exception]]] = [
    (lambda: minimize(matyas, jnp.zeros(2), method="x"), ValueError),
    (lambda: minimize(matyas, jnp.zeros(2), 1, method="BFGS"), TypeError),
    (lambda: minimize(matyas, jnp.zeros(2), method="BFGS", options={"x": 1}), TypeError),
    (lambda: minimize(lambda x: x, jnp.zeros(2), method="BFGS"), TypeError)]


@pytest.mark.parametrize("call, error", ERRORS)
def test_errors(call: Callable[[], Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        call()
