"""A step along a direction that meets Wolfe's strong conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anima.numpy as jnp
from anima.lax.control import while_loop
from anima.util import record

_DECREASE, _CURVATURE = 1e-4, 0.9  # Nocedal and Wright, "Numerical Optimization", 2006, chapter 3


@record
class LineSearchStep:
    """A step, the value and the gradient after it, whether it meets the conditions, and how often the function was
    called."""

    size: Any
    value: Any
    gradient: Any
    found: Any
    calls: Any


def line_search(function: Callable[[Any], Any], x: Any, direction: Any, value: Any, gradient: Any, first: Any,
                maxiter: int) -> LineSearchStep:
    """A step from `x`, where the function has this value and gradient; `first` is tried first.

    An interval is kept whose lower end decreases the function enough and still descends, and whose upper end does
    not; what a cubic through both suggests is kept away from them.
    """
    slope = jnp.sum(gradient * direction)

    def going(state: Any) -> Any:
        return (state["calls"] < maxiter) & ~state["found"]

    def step(s: Any) -> Any:
        size = s["next"]
        now, grad = function(x + size * direction)
        rate = jnp.sum(grad * direction)
        high = ~(now <= value + _DECREASE * size * slope) | (now >= s["value"]) & (s["low"] > 0)
        found = ~high & (jnp.abs(rate) <= -_CURVATURE * slope)
        upper = high | (rate >= 0)
        kept = {"high": jnp.where(upper, size, s["high"]), "low": jnp.where(upper, s["low"], size),
                "value": jnp.where(upper, s["value"], now), "rate": jnp.where(upper, s["rate"], rate),
                "high_value": jnp.where(upper, now, s["high_value"]),
                "high_rate": jnp.where(upper, rate, s["high_rate"])}
        better = found | (now < s["best_value"])
        return {**kept, "next": _between(kept), "calls": s["calls"] + 1, "found": found,
                "best": jnp.where(better, size, s["best"]), "best_value": jnp.where(better, now, s["best_value"]),
                "best_gradient": jnp.where(better, grad, s["best_gradient"])}

    zero = jnp.zeros_like(value)
    start = {"high": zero + jnp.inf, "low": zero, "value": value, "rate": slope, "high_value": value,
             "high_rate": slope, "next": zero + first, "calls": jnp.int32(0), "found": jnp.array(False), "best": zero,
             "best_value": value, "best_gradient": gradient}
    s = while_loop(going, step, start)
    return LineSearchStep(s["best"], s["best_value"], s["best_gradient"], s["found"], s["calls"])


def _between(s: dict[str, Any]) -> Any:
    """The minimum of the cubic that has the values and slopes of the ends, within the middle of the interval."""
    open_end = s["high"] == jnp.inf
    width = jnp.where(open_end, 1, s["high"] - s["low"])
    mean = 3 * (s["value"] - s["high_value"]) / width + s["rate"] + s["high_rate"]
    root = jnp.sqrt(jnp.maximum(mean * mean - s["rate"] * s["high_rate"], 0))
    bottom = s["high_rate"] - s["rate"] + 2 * root
    part = 1 - (s["high_rate"] + root - mean) / jnp.where(bottom == 0, 1, bottom)
    part = jnp.where(jnp.isfinite(part), jnp.clip(part, 0.1, 0.9), 0.5)
    return jnp.where(open_end, 2.5 * s["low"], s["low"] + part * width)
