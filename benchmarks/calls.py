"""What a call of a small compiled function costs, beside JAX where it is installed.

    python -m benchmarks.calls
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import anima
import anima.numpy as jnp
from benchmarks.harness import HAVE_JAX, Case, report

if HAVE_JAX:
    import jax
    import jax.numpy as xnp


STATES = ((5, 1_000), (40, 16_384), (100, 16_384), (10, 65_536), (5, 1_000_000))  # arrays that a step makes anew


def calls(m: Any, np_like: Any) -> dict[str, Callable[[], Any]]:
    """One call of each kind; `m` is the module of transformations."""
    x, host = np_like.arange(4, dtype=np.float32), np.arange(3, dtype=np.float32)
    affine = m.jit(lambda x: x * 2 + 1)
    scaled = m.jit(lambda x, n: x * n)
    power = m.jit(lambda x, n: x**n, static_argnums=1)
    several = m.jit(lambda x: (x, x + 1, x * 2))
    gradient = m.jit(m.value_and_grad(lambda x: (x * x).sum()))
    tree = {f"layer{k}": {"w": x, "b": (x, x)} for k in range(10)}
    added = m.jit(lambda p, g: {k: {"w": v["w"] - g, "b": v["b"]} for k, v in p.items()})
    halved, given_up = m.jit(lambda x: x * 0.5), m.jit(lambda x: x * 0.5, donate_argnums=0)
    state: dict[str, Any] = {"fed": x, "donated": np_like.arange(4, dtype=np.float32)}
    descend = m.jit(lambda parameters, g: [p - 0.001 * g * p for p in parameters])
    for count, size in STATES:
        state[f"{count} of {size}"] = [np_like.full(size + k, 1.0, dtype=np.float32) for k in range(count)]

    def feed(name: str, fun: Callable[[Any], Any]) -> Any:
        state[name] = fun(state[name])
        return state[name]

    def step(name: str) -> Any:
        return m.block_until_ready(feed(name, lambda x: descend(x, 0.1)))  # it takes longer than to ask for it

    return {
        "an array": lambda: affine(x), "a NumPy array": lambda: affine(host), "a Python number": lambda: affine(3.0),
        "a NumPy array of float64": lambda: affine(np.ones(3)), "an array and a number": lambda: scaled(x, 0.5),
        "by keyword": lambda: scaled(x, n=0.5), "a static argument": lambda: power(x, 3),
        "three results": lambda: several(x), "value and gradient": lambda: gradient(x),
        "30 leaves": lambda: added(tree, 0.1), "x = f(x)": lambda: feed("fed", halved),
        "x = f(x), donated": lambda: feed("donated", given_up),
        **{f"a step of {count} parameters of {size:,}":
           lambda name=f"{count} of {size}": step(name) for count, size in STATES}}


def cases() -> list[Case]:
    contestants = {"anima": calls(anima, jnp)}
    if HAVE_JAX:
        contestants["jax"] = calls(jax, xnp)
    return [Case(name, {who: runs[name] for who, runs in contestants.items()}) for name in contestants["anima"]]


def main() -> None:
    report(cases(), "Calls of compiled functions")


if __name__ == "__main__":
    main()
