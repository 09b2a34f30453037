"""What a profile costs while it is taken: calls of compiled functions with and without.

    python -m benchmarks.profiles
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

import anima
import anima.numpy as jnp
from anima import lax
from anima.config import profiling
from benchmarks.harness import Case, measure, print_row


def network(x: Any, weights: Any) -> Any:
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.sum(x)


def functions() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Names, functions and their arguments: a small call, a step of training, a long loop."""
    x, weights = jnp.ones((64, 128)), [jnp.ones((128, 128)) * 0.01] * 4
    return {"affine of 4": (lambda x: x * 2 + 1, (jnp.arange(4.0),)),
            "gradient of a network": (anima.grad(network, argnums=1), (x, weights)),
            "loop of 10,000": (lambda x: lax.fori_loop(0, 10_000, lambda i, c: jnp.sin(c) + i, x), (jnp.float32(1),)),
            "softmax 1000 x 1000": (lambda x: anima.nn.softmax(x), (jnp.asarray(np.ones((1000, 1000), np.float32)),))}


def contestants(fun: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, Callable[[], Any]]:
    """Ten calls each: of what is compiled without and with notes of times."""
    jitted = anima.jit(fun)

    def calls(noting: bool) -> None:
        with profiling(noting):
            for _ in range(10):
                jitted(*args)

    return {"anima": lambda: calls(False), "profiled": lambda: calls(True)}


def show() -> None:
    print("one run; N x = takes N times as long as Anima without a profile")
    with tempfile.TemporaryDirectory() as folder, anima.profiler.trace(folder):
        for name, (fun, args) in functions().items():
            print_row(name, measure(Case(name, contestants(fun, args))))


if __name__ == "__main__":
    show()
