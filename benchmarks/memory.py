"""Peak memory of gradients of long loops, each in a process of its own, beside JAX where it is installed.

    python -m benchmarks.memory          a million steps over 100 floats: 0.4 GB for every state
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import anima
import anima.numpy as jnp
from benchmarks.harness import HAVE_JAX

if HAVE_JAX:
    import jax

STEPS, SIZE = 1_000_000, 100
MIB = 1 << 20


def step(m: Any, c: Any, x: Any) -> Any:
    return m.sin(c) + x * m.cos(c)


def checkpointed_scan(lib: Any, m: Any, steps: int) -> Callable[[Any], Any]:
    """A scan whose body is computed again on the way back."""
    def loss(x: Any) -> Any:
        body = lib.checkpoint(lambda c, _: (step(m, c, x), None))
        return lib.lax.scan(body, x, None, length=steps)[0].sum()

    return loss


def while_loop(lib: Any, m: Any, steps: int) -> Callable[[Any], Any]:
    """A loop whose length is not known when it is compiled."""
    def loss(x: Any) -> Any:
        return lib.lax.while_loop(lambda c: c[1] < steps, lambda c: (step(m, c[0], x), c[1] + 1), (x, 0))[0].sum()

    return loss


def peak() -> int:
    """Most memory that this process has had so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def run(make: Callable[..., Any], library: str, budget: int | None, answer: Any) -> None:
    """Sends (growth of the peak memory in bytes, seconds) of one gradient; compiling is not counted."""
    lib, m = (anima, jnp) if library == "anima" else (jax, jax.numpy)
    if budget is not None:
        anima.config.update("anima_tape_budget", budget)
    x = np.linspace(0.0, 1.0, SIZE, dtype=np.float32)
    np.asarray(lib.jit(lib.grad(make(lib, m, 1000)))(x))  # loads what is needed
    gradient = lib.jit(lib.grad(make(lib, m, STEPS))).lower(x).compile()
    before, start = peak(), time.perf_counter()
    np.asarray(gradient(x))
    answer.send((peak() - before, time.perf_counter() - start))


def measure(make: Callable[..., Any], library: str, budget: int | None = None) -> str:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=run, args=(make, library, budget, theirs))
    child.start()
    theirs.close()
    try:
        memory, seconds = ours.recv()
        return f"{library} {memory / MIB:8.1f} MiB in {seconds:6.2f} s"
    except EOFError:
        return f"{library} failed"
    finally:
        child.join()


def main() -> None:
    print(f"gradient of {STEPS} steps over {SIZE} floats: growth of the peak memory")
    print("scan under checkpoint     ", measure(checkpointed_scan, "anima"),
          measure(checkpointed_scan, "jax") if HAVE_JAX else "")
    print("while_loop                ", measure(while_loop, "anima"))
    for size in (256, 64, 8, 1):
        print(f"while_loop, {size:3d} MiB budget", measure(while_loop, "anima", size * MIB))


if __name__ == "__main__":
    main()
