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
from anima.scipy.optimize.line_search import line_search

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


@pytest.mark.parametrize("method", METHODS)
def test_the_tolerance_stands_for_that_of_the_gradient(method: str) -> None:
    by_tol, by_option, both = (minimize(rosenbrock, jnp.zeros(2), method=method, tol=t, options=o) for t, o in (
        (3.0, None), (None, {"gtol": 3.0}), (3.0, {"gtol": 1e-3})))
    assert by_tol.x.tolist() == by_option.x.tolist() == both.x.tolist()


def test_calls_end_with_the_first_step_that_uses_them_up() -> None:
    def found(**options: int) -> tuple[int, int]:
        out = minimize(rosenbrock, jnp.zeros(2), method=LBFGS, options=options)
        return int(out.nit), int(out.nfev)

    calls = [found(maxiter=k)[1] for k in range(1, 6)]
    for most in range(calls[0], calls[-1] + 1):
        nit, nfev = found(maxfun=most)
        assert (nit, nfev) == found(maxgrad=most) == found(maxfun=most, maxgrad=99) == found(maxfun=99, maxgrad=most)
        assert nfev == calls[nit - 1] >= most and (nit == 1 or calls[nit - 2] < most)


def test_the_gain_that_is_too_small_is_relative() -> None:
    """To the function's value: its unit does not matter."""
    steps = {int(minimize(lambda x, c=c: c * (rosenbrock(x) + 1), jnp.zeros(2), method=LBFGS, options={
        "gtol": 0.0, "ftol": 1e-2}).nit) for c in (2.0, 64.0, 4096.0)}
    assert len(steps) == 1 and steps.pop() > 3


STUBBORN: dict[str, Callable[[Any], Any]] = {
    "quadratic": lambda t: (t - 3) ** 2, "flat": lambda t: (t - 2) ** 10, "steep": lambda t: jnp.exp(5 * t) - 40 * t,
    "kink": lambda t: jnp.sqrt((t - 1.3) ** 2 + 1e-6), "wall": lambda t: -t + jnp.exp(20 * (t - 2)),
    "waves": lambda t: -t + 0.9 * jnp.sin(9 * t) / 9 + 0.1 * t * t, "tail": lambda t: -t / (t * t + 2),
    "far": lambda t: (t / 300 - 1) ** 2, "near": lambda t: (300 * t - 1) ** 2}


@pytest.mark.parametrize("first", [1e-3, 1.0, 50.0])
@pytest.mark.parametrize("name", STUBBORN)
def test_steps_meet_the_conditions(name: str, first: float, x64: None) -> None:
    """Wolfe's strong ones, after few calls, wherever the search begins."""
    function = anima.value_and_grad(STUBBORN[name])
    value, slope = function(jnp.float64(0))
    found = line_search(function, jnp.float64(0), -jnp.sign(slope), value, slope, first, 30)
    size, rate = float(found.size), -abs(float(slope))
    assert bool(found.found) and size > 0 and int(found.calls) <= 22
    after, now = function(-jnp.sign(slope) * size)
    np.testing.assert_allclose(found.value, after, rtol=1e-12)
    assert float(found.value) <= float(value) + 1e-4 * size * rate
    assert abs(float(now)) <= 0.9 * abs(rate)


@pytest.mark.parametrize("name", STUBBORN)
def test_searches_that_are_cut_short_give_the_best_that_they_met(name: str, x64: None) -> None:
    function, met = anima.value_and_grad(STUBBORN[name]), []
    value, slope = function(jnp.float64(0))
    for most in range(1, 5):
        found = line_search(function, jnp.float64(0), -jnp.sign(slope), value, slope, 50.0, most)
        met.append(float(found.value))
        assert int(found.calls) <= most and met[-1] <= float(value)
        assert float(found.size) > 0 or met[-1] == float(value)
    assert met == sorted(met, reverse=True)


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
