"""Programs that are loaded, beside tracing and compiling them: exported ones (data), and compiled ones (machine code).

    python -m benchmarks.exported [WORD ...]       only the programs whose names have one of the words

"load" makes an `Exported` of bytes, "load, first call" compiles and runs it too, as "trace, first call" does for the
function; "code, first call" loads machine code and runs it. For JAX, "jax: trace, first call" is where it is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import anima
import anima.numpy as jnp
from anima import export
from anima.experimental import serialize_executable
from benchmarks.harness import HAVE_JAX, measure_fresh, print_row

if HAVE_JAX:
    import jax

F32 = np.float32
Program = tuple[Callable[..., Any], tuple[Any, ...]]


def small(m: Any) -> Callable[..., Any]:
    return lambda x: m.sin(x) * 2 + x


def network(m: Any, library: Any) -> Callable[..., Any]:
    """A step of training a network of four layers."""
    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = m.tanh(x @ w)
        return m.mean(x * x)

    return lambda weights, x: [w - 0.1 * g for w, g in zip(weights, library.grad(loss)(weights, x), strict=True)]


def recurrence(m: Any, library: Any) -> Callable[..., Any]:
    """The gradient of a recurrent network over 50 steps."""
    def loss(w: Any, xs: Any) -> Any:
        return m.sum(library.lax.scan(lambda h, x: (m.tanh(h @ w + x), ()), xs[0], xs)[0])

    return library.grad(loss)


def chain(m: Any, library: Any) -> Callable[..., Any]:
    """300 elementwise operations."""
    def run(x: Any) -> Any:
        for i in range(100):
            x = m.sin(x) * 1.01 + 0.1 * i
        return x

    return run


def programs(m: Any, library: Any) -> dict[str, Program]:
    weights = [np.full((32, 32), 0.01 * k, F32) for k in range(1, 5)]
    return {
        "sin(x) * 2 + x": (small(m), (np.ones(100, F32),)),
        "training step, 4 layers": (network(m, library), (weights, np.ones((16, 32), F32))),
        "gradient of a scan": (recurrence(m, library), (weights[0], np.ones((50, 4, 32), F32))),
        "300 elementwise operations": (chain(m, library), (np.ones(100, F32),)),
        "linear solve": (lambda a, b: m.linalg.solve(a, b), (np.eye(8, dtype=F32) * 2, np.ones(8, F32))),
    }


def contestants(fun: Callable[..., Any], args: tuple[Any, ...],
                jax_fun: Any) -> dict[str, Callable[[], Callable[[], Any]]]:
    given = anima.tree.map(jnp.asarray, args)
    jitted = anima.jit(fun)
    blob = export.export(jitted)(*given).serialize()
    saved = serialize_executable.serialize(jitted.lower(*given).compile())

    def fresh(run: Callable[[], Any]) -> Callable[[], Callable[[], Any]]:
        def make() -> Callable[[], Any]:
            anima.clear_caches()
            if jax_fun is not None:
                jax.clear_caches()
            return run
        return make

    found = {
        "anima": fresh(lambda: export.deserialize(blob).call(*given)),
        "load": fresh(lambda: export.deserialize(blob)),
        "trace, first call": fresh(lambda: anima.jit(lambda *xs: fun(*xs))(*given)),
        "code, first call": fresh(lambda: serialize_executable.deserialize_and_load(*saved)(*given))}
    if jax_fun is not None:
        found["jax: trace, first call"] = fresh(lambda: jax.block_until_ready(jax.jit(lambda *xs: jax_fun(*xs))(*args)))
    return found


def show(words: Sequence[str] = ()) -> None:
    """The programs whose names have one of the words; all, if there are none."""
    print("`anima`: load an exported program and call it for the first time; others as multiples of that")
    theirs = programs(jax.numpy, jax) if HAVE_JAX else {}
    for name, (fun, args) in programs(jnp, anima).items():
        if not words or any(word in name for word in words):
            print_row(name, measure_fresh(contestants(fun, args, theirs[name][0] if theirs else None)))


if __name__ == "__main__":
    show(sys.argv[1:])
