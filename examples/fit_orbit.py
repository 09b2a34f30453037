#!/usr/bin/env python3
"""Fits a differential equation to data by reverse mode through an adaptive solver.

    python examples/fit_orbit.py                 a few seconds
    python examples/fit_orbit.py --help

The solver (Dormand-Prince, with steps of its own choice) is one `while_loop`: how many steps it takes is known only
when it has taken them. Its gradient by reverse mode is compared with forward mode and with finite differences; then
predators and prey that were observed with noise give back the rates of their equation, by Gauss-Newton.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]  # a bare clone: nothing need be installed

import anima
import anima.numpy as jnp
from anima import lax

# Dormand and Prince, "A family of embedded Runge-Kutta formulae", 1980: fifth order, and the error of the fourth.
TIMES = (1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)
STAGES = ((1 / 5,), (3 / 40, 9 / 40), (44 / 45, -56 / 15, 32 / 9),
          (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
          (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
          (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84))
ERROR = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)

RATES = np.array([1.5, 1.0, 1.0, 3.0])  # of births, of being caught, of growing by what was caught, of deaths
START = np.array([1.0, 1.0])


def solve(field: Callable[..., Any], y: Any, start: Any, stop: Any, rates: Any, tolerance: float = 1e-8) -> Any:
    """y(stop) of y' = field(t, y, rates) with y(start) = y."""

    def going(state: Any) -> Any:
        return state[0] < stop

    def step(state: Any) -> Any:
        t, y, h = state
        h = jnp.minimum(h, stop - t)
        slopes = [field(t, y, rates)]
        for c, row in zip(TIMES, STAGES, strict=True):
            new = y + h * sum(a * k for a, k in zip(row, slopes, strict=True))
            slopes.append(field(t + c * h, new, rates))
        error = h * sum(e * k for e, k in zip(ERROR, slopes, strict=True))
        scale = tolerance * (1 + jnp.maximum(jnp.abs(y), jnp.abs(new)))
        size = jnp.max(jnp.abs(error) / scale)
        good = size <= 1
        factor = jnp.clip(0.9 * jnp.maximum(size, 1e-10) ** -0.2, 0.2, 5.0)
        last = good & (t + h >= stop)
        t = jnp.where(last, stop, jnp.where(good, t + h, t))
        return t, jnp.where(good, new, y), h * lax.stop_gradient(factor)  # the result hardly depends on the steps

    return lax.while_loop(going, step, (jnp.asarray(start, y.dtype), y, jnp.asarray(0.01, y.dtype)))[1]


def hunting(t: Any, y: Any, rates: Any) -> Any:
    """Lotka and Volterra's equation of prey and predators."""
    prey, predators = y
    born, caught, fed, died = rates
    return jnp.stack([prey * (born - caught * predators), predators * (fed * prey - died)])


def path(rates: Any, start: Any, times: Any) -> Any:
    """The state at each of the times, `[n, 2]`."""

    def advance(carry: Any, stop: Any) -> Any:
        t, y = carry
        y = solve(hunting, y, t, stop, rates)
        return (stop, y), y

    return lax.scan(advance, (jnp.zeros((), start.dtype), start), times)[1]


def gauss_newton(residual: Callable[[Any], Any], x: Any, steps: int) -> Any:
    """The x with the least sum of squares of `residual(x)`; steps that do not help are halved."""

    def improve(x: Any, _: Any) -> Any:
        r, jacobian = residual(x), anima.jacfwd(residual)(x)
        direction = -jnp.linalg.solve(jacobian.T @ jacobian, jacobian.T @ r)

        def worse(a: Any) -> Any:
            return (jnp.sum(residual(x + a * direction) ** 2) > jnp.sum(r**2)) & (a > 1e-6)

        return x + lax.while_loop(worse, lambda a: a / 2, jnp.ones((), x.dtype)) * direction, jnp.sum(r**2)

    return lax.scan(improve, x, None, length=steps)


@dataclass
class Report:
    """The numbers printed at the end."""

    rates: np.ndarray
    losses: np.ndarray
    forward_difference: float
    finite_difference: float


def check_gradient(loss: Callable[[Any], Any], rates: Any) -> tuple[float, float]:
    """The largest relative differences of reverse mode from forward mode and from finite differences."""
    reverse = np.asarray(anima.jit(anima.grad(loss))(rates))
    forward = np.asarray(anima.jit(anima.jacfwd(loss))(rates))
    value, h = anima.jit(loss), 1e-4
    finite = np.array([(value(rates + h * e) - value(rates - h * e)) / (2 * h) for e in np.eye(len(rates))])
    size = np.max(np.abs(reverse))
    return float(np.max(np.abs(reverse - forward)) / size), float(np.max(np.abs(reverse - finite)) / size)


def main(arguments: list[str] | None = None) -> Report:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--points", type=int, default=40, help="number of observations")
    parser.add_argument("--noise", type=float, default=0.02, help="their relative error")
    parser.add_argument("--steps", type=int, default=8, help="steps of Gauss-Newton")
    options = parser.parse_args(arguments)
    with anima.enable_x64(True):
        times, start = jnp.linspace(0.25, 10.0, options.points), jnp.asarray(START)
        exact = anima.jit(path)(jnp.asarray(RATES), start, times)
        seen = exact * (1 + options.noise * anima.random.normal(anima.random.key(0), exact.shape))

        def residual(rates: Any) -> Any:
            return (path(rates, start, times) / seen - 1).ravel()

        guess = jnp.asarray(RATES * np.array([1.1, 0.95, 0.95, 1.05]))
        differences = check_gradient(lambda r: jnp.mean(residual(r) ** 2), guess)
        rates, losses = anima.jit(lambda x: gauss_newton(residual, x, options.steps))(guess)
    report = Report(np.asarray(rates), np.asarray(losses), *differences)
    print(f"""
Gradient through the solver's while_loop, by reverse mode
  relative difference from forward mode         {report.forward_difference:8.1e}
  relative difference from finite differences   {report.finite_difference:8.1e}

Rates                  {"born":>8s} {"caught":>8s} {"fed":>8s} {"died":>8s}
  true                 {"".join(f" {r:8.4f}" for r in RATES)[1:]}
  first guess          {"".join(f" {r:8.4f}" for r in np.asarray(guess))[1:]}
  fitted               {"".join(f" {r:8.4f}" for r in report.rates)[1:]}
  sum of squares: {report.losses[0]:.4f} at first, {report.losses[-1]:.4f} at last
""")
    return report


if __name__ == "__main__":
    main()
