"""Quasi-Newton methods: BFGS, and L-BFGS, which keeps the last steps instead of a matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

import anima.numpy as jnp
from anima.api.autodiff import value_and_grad
from anima.lax.control import fori_loop, while_loop
from anima.scipy.optimize.line_search import line_search

_MOST = 2**31 - 1
_MEMORY = "l-bfgs-experimental-do-not-rely-on-this"


class OptimizeResults(NamedTuple):
    """What a minimization found: `x`, where the function is `fun` and its gradient `jac`; `success`, and a `status` (0:
    the gradient is small enough; 1: `maxiter` steps; others: the line search failed, or another limit was met);
    `hess_inv`, the approximate inverse of the Hessian (None for L-BFGS); how often the function (`nfev`) and its
    gradient (`njev`) were computed, and the number of steps (`nit`)."""

    x: Any
    success: Any
    status: Any
    fun: Any
    jac: Any
    hess_inv: Any
    nfev: Any
    njev: Any
    nit: Any


def minimize(fun: Callable[..., Any], x0: Any, args: tuple[Any, ...] = (), *, method: str, tol: float | None = None,
             options: Mapping[str, Any] | None = None) -> OptimizeResults:
    """A minimum of `fun(x, *args)`, a number, over vectors `x`, from `x0` on.

    `method` is "BFGS" (`options`: maxiter, norm, gtol, line_search_maxiter) or
    "l-bfgs-experimental-do-not-rely-on-this" (maxiter, norm, maxcor, ftol, gtol, maxfun, maxgrad, maxls); `tol` stands
    for gtol. TypeError where `args` is no tuple, or for an option that there is not; ValueError for another method.
    """
    options = dict(options or {})
    if not isinstance(args, tuple):
        raise TypeError(f"args argument to anima.scipy.optimize.minimize must be a tuple, got {args}")
    x0 = jnp.asarray(x0)
    x0 = x0 if jnp.issubdtype(x0.dtype, np.floating) else x0.astype(float)
    evaluate = value_and_grad(lambda x: fun(x, *args))
    if tol is not None:
        options["gtol"] = tol
    if method.lower() == "bfgs":
        return _bfgs(evaluate, x0, **options)
    if method.lower() == _MEMORY:
        return _lbfgs(evaluate, x0, **options)
    raise ValueError(f"Method {method} not recognized: there are BFGS and {_MEMORY}")


def _state(evaluate: Callable[[Any], Any], x: Any) -> dict[str, Any]:
    value, gradient = evaluate(x)
    if value.shape:
        raise ValueError(f"fun must return a number, got an array of shape {value.shape}")
    return {"x": x, "value": value, "gradient": gradient, "nit": jnp.int32(0), "calls": jnp.int32(1),
            "status": jnp.int32(-1)}


def _first_step(s: dict[str, Any], direction: Any) -> Any:
    """1, but no longer than a unit at first, where the direction is only that of the gradient."""
    size = jnp.sqrt(jnp.sum(jnp.square(direction)))
    return jnp.where(s["nit"] == 0, jnp.minimum(1, 1 / jnp.where(size == 0, 1, size)), 1).astype(direction.dtype)


def _results(s: dict[str, Any], hess_inv: Any, maxiter: Any) -> OptimizeResults:
    status = jnp.where(s["status"] < 0, 1, s["status"])
    return OptimizeResults(s["x"], s["status"] == 0, status, s["value"], s["gradient"], hess_inv, s["calls"],
                           s["calls"], s["nit"])


def _bfgs(evaluate: Callable[[Any], Any], x0: Any, maxiter: int | None = None, norm: Any = np.inf, gtol: float = 1e-5,
          line_search_maxiter: int = 10) -> OptimizeResults:
    """Nocedal and Wright, "Numerical Optimization", 2006, algorithm 6.1."""
    if x0.ndim != 1:
        raise ValueError(f"x0 must be a vector, got shape {x0.shape}")
    n = x0.shape[0]
    limit = 200 * n if maxiter is None else int(min(maxiter, _MOST))
    unit = jnp.eye(n, dtype=x0.dtype)

    def small(gradient: Any) -> Any:
        return jnp.linalg.norm(gradient, norm) < gtol

    def step(s: dict[str, Any]) -> dict[str, Any]:
        direction = -(s["inverse"] @ s["gradient"])
        found = line_search(evaluate, s["x"], direction, s["value"], s["gradient"], _first_step(s, direction),
                            line_search_maxiter)
        change, turn = found.size * direction, found.gradient - s["gradient"]
        product = jnp.sum(change * turn)
        rho = jnp.where(product > 0, 1 / jnp.where(product > 0, product, 1), 0)
        left = unit - rho * jnp.outer(change, turn)
        scale = jnp.where((s["nit"] == 0) & (product > 0), product / jnp.sum(turn * turn), 1)
        inverse = left @ (scale * s["inverse"]) @ left.T + rho * jnp.outer(change, change)
        stuck = found.size == 0
        return {"x": s["x"] + change, "value": found.value, "gradient": found.gradient, "nit": s["nit"] + 1,
                "calls": s["calls"] + found.calls, "inverse": jnp.where(product > 0, inverse, s["inverse"]),
                "status": jnp.where(small(found.gradient), 0, jnp.where(stuck, 3, -1)).astype(np.int32)}

    start = _state(evaluate, x0) | {"inverse": unit}
    start["status"] = jnp.where(small(start["gradient"]), 0, -1).astype(np.int32)
    s = while_loop(lambda s: (s["status"] < 0) & (s["nit"] < limit), step, start)
    return _results(s, s["inverse"], limit)


def _lbfgs(evaluate: Callable[[Any], Any], x0: Any, maxiter: float | None = None, norm: Any = np.inf, maxcor: int = 10,
           ftol: float = 2.220446049250313e-09, gtol: float = 1e-05, maxfun: float | None = None,
           maxgrad: float | None = None, maxls: int = 20) -> OptimizeResults:
    """Nocedal and Wright, "Numerical Optimization", 2006, algorithms 7.4 and 7.5."""
    n = x0.size
    limit = 200 * n if maxiter is None else int(min(maxiter, _MOST))
    calls = min([_MOST, *(int(min(m, _MOST)) for m in (maxfun, maxgrad) if m is not None)])
    shape = (maxcor, *x0.shape)

    def step(s: dict[str, Any]) -> dict[str, Any]:
        direction = -_two_loops(s, maxcor)
        found = line_search(evaluate, s["x"], direction, s["value"], s["gradient"], _first_step(s, direction), maxls)
        change, turn = found.size * direction, found.gradient - s["gradient"]
        product = jnp.sum(change * turn)
        good = product > 0
        safe = jnp.where(good, product, 1)

        def pushed(kept: Any, new: Any) -> Any:
            return jnp.where(good, jnp.roll(kept, -1, 0).at[-1].set(new), kept)

        largest = jnp.maximum(jnp.maximum(jnp.abs(s["value"]), jnp.abs(found.value)), 1)
        gain = (s["value"] - found.value) / largest
        count = s["calls"] + found.calls
        status = jnp.where(found.size == 0, 5, jnp.where(count >= calls, 2, -1))
        status = jnp.where((gain < ftol) & (found.size > 0), 4, status)
        status = jnp.where(jnp.linalg.norm(found.gradient.reshape(-1), norm) < gtol, 0, status)
        return {"x": s["x"] + change, "value": found.value, "gradient": found.gradient, "nit": s["nit"] + 1,
                "calls": count, "status": status.astype(np.int32), "changes": pushed(s["changes"], change),
                "turns": pushed(s["turns"], turn), "rhos": pushed(s["rhos"], 1 / safe),
                "scale": jnp.where(good, product / jnp.where(good, jnp.sum(turn * turn), 1), s["scale"])}

    start = _state(evaluate, x0)
    start |= {"changes": jnp.zeros(shape, x0.dtype), "turns": jnp.zeros(shape, x0.dtype),
              "rhos": jnp.zeros(maxcor, x0.dtype), "scale": jnp.ones((), x0.dtype)}
    small = jnp.linalg.norm(start["gradient"].reshape(-1), norm) < gtol
    start["status"] = jnp.where(small, 0, -1).astype(np.int32)
    s = while_loop(lambda s: (s["status"] < 0) & (s["nit"] < limit), step, start)
    return _results(s, None, limit)


def _two_loops(s: dict[str, Any], maxcor: int) -> Any:
    """The approximate inverse of the Hessian, of the last steps, times the gradient."""
    changes, turns, rhos = s["changes"], s["turns"], s["rhos"]

    def back(i: Any, state: Any) -> Any:
        q, weights = state
        k = maxcor - 1 - i
        weight = rhos[k] * jnp.sum(changes[k] * q)
        return q - weight * turns[k], weights.at[k].set(weight)

    q, weights = fori_loop(0, maxcor, back, (s["gradient"], jnp.zeros_like(rhos)))

    def forth(k: Any, r: Any) -> Any:
        return r + changes[k] * (weights[k] - rhos[k] * jnp.sum(turns[k] * r))

    return fori_loop(0, maxcor, forth, s["scale"] * q)
