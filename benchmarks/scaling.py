"""Compile time of large programs, at two sizes, beside JAX where it is installed: it should grow like the program.

    python -m benchmarks.scaling [WORD ...]        only the programs whose names have one of the words
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import anima
import anima.numpy as jnp
from benchmarks.harness import HAVE_JAX, print_row

if HAVE_JAX:
    import jax

SIZES = (1000, 2000)
V = np.linspace(0.1, 1.0, 16, dtype=np.float32)
W = np.eye(4, dtype=np.float32) / 2
Program = tuple[Callable[..., Any], tuple[Any, ...]]


def arrays(n: int) -> list[np.ndarray]:
    """Small arrays, all different."""
    return [np.full(3, i, np.float32) for i in range(n)]


def chain(m: Any, x: Any, n: int) -> Any:
    """A chain of elementwise operations."""
    for i in range(n):
        x = m.sin(x) if i % 3 == 0 else x * 1.01 if i % 3 == 1 else x + 0.5
    return x


def tree(xs: list[Any]) -> Any:
    """A sum, in pairs."""
    while len(xs) > 1:
        xs = [a + b for a, b in zip(xs[::2], xs[1::2], strict=False)] + xs[len(xs) - len(xs) % 2:]
    return xs[0]


def recurrence(m: Any, w: Any, h: Any, n: int) -> Any:
    """A recurrent network without a loop; a loss."""
    for _ in range(n):
        h = m.tanh(w @ h + 0.1)
    return h.sum()


def updates(x: Any, n: int) -> Any:
    """Each element set by itself."""
    for i in range(n):
        x = x.at[i].set(1.5 * i)
    return x


PROGRAMS: dict[str, Callable[[Any, Any, int], Program]] = {
    "leaves": lambda lib, m, n: (lambda xs: [x + 1 for x in xs], (arrays(n),)),
    "chain": lambda lib, m, n: (lambda x: chain(m, x, n), (V,)),
    "gradient of a chain": lambda lib, m, n: (lib.grad(lambda x: chain(m, x, n).sum()), (V,)),
    "chain in a scan": lambda lib, m, n: (
        lambda x: lib.lax.scan(lambda c, _: (chain(m, c, n), None), x, None, length=3)[0], (V,)),
    "products": lambda lib, m, n: (lambda xs: [x @ W for x in xs], ([W] * n,)),
    "gradient of a recurrence": lambda lib, m, n: (lib.grad(lambda w, h: recurrence(m, w, h, n)), (W, W[0])),
    "tree of sums": lambda lib, m, n: (lambda xs: tree(list(xs)), (arrays(n),)),
    "stack of scalars": lambda lib, m, n: (lambda xs: m.stack(xs), ([np.float32(i) for i in range(n)],)),
    "concatenation": lambda lib, m, n: (lambda xs: m.concatenate(xs), (arrays(n),)),
    "updates": lambda lib, m, n: (lambda x: updates(x, n), (np.zeros(n, np.float32),)),
}


def compiling(lib: Any, program: Program) -> float:
    """Seconds of tracing and compiling, once."""
    fun, args = program
    start = time.perf_counter()
    lib.jit(fun).lower(*args).compile()
    return time.perf_counter() - start


def main(words: list[str] | None = None) -> None:
    libraries = {"anima": (anima, jnp), **({"jax": (jax, jax.numpy)} if HAVE_JAX else {})}
    for name, make in PROGRAMS.items():
        if words and not any(w in name for w in words):
            continue
        for lib, m in libraries.values():
            compiling(lib, make(lib, m, 8))
        for n in SIZES:
            times = {key: compiling(lib, make(lib, m, n)) for key, (lib, m) in libraries.items()}
            print_row(f"{name}, {n}", times)


if __name__ == "__main__":
    main(sys.argv[1:])
