"""A process whose eight threads do all sorts of things at once, from its first moment on.

    python -m tests.runtime.storm SEED SECONDS [warm] [toggle] [fork]

`warm`: everything once before, in one thread. `toggle`: 64-bit types are switched for all threads, in the middle of
what the others do, so that types may then not fit. `fork`: children of any moment (`warm`, as a child that is forked
while another thread imports a module waits for ever to import it, which is Python's). Ends with 0, or says why not.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
import warnings

import numpy as np

import anima
import anima.numpy as jnp
from anima import lax
from anima.runtime import threads

Rng = np.random.Generator
BIG = np.ones(200_000, np.float32)
step = anima.jit(lambda x, k: jnp.sin(x) * k + x)
give = anima.jit(lambda x: x * 2, donate_argnums=0)


def trace(rng: Rng) -> None:
    factor = rng.random()
    assert np.isclose(float(anima.jit(lambda x: jnp.sum(x * factor))(np.ones(8, np.float32))), 8 * factor)


def call(rng: Rng) -> None:
    x = np.full(int(rng.integers(1, 40)), 2, np.float32)
    assert np.allclose(step(x, np.float32(3)), np.sin(x) * 3 + x)


def donate(rng: Rng) -> None:
    x = jnp.asarray(np.full(int(rng.integers(1, 70_000)), 3, np.float32))
    y = give(x)
    assert x.is_deleted() and float(y[-1]) == 6


def parallel(rng: Rng) -> None:
    assert float(anima.jit(lambda x: jnp.sum(jnp.exp(x * 0)))(BIG)) == BIG.size


def loop(rng: Rng) -> None:
    n = int(rng.integers(1, 9))
    assert int(lax.fori_loop(0, n, lambda i, c: c + i, 0)) == n * (n - 1) // 2


def gradient(rng: Rng) -> None:
    assert float(anima.grad(lambda x: jnp.sum(x ** 2) + jnp.linalg.norm(x))(jnp.ones(4))[0]) == 2.5


def tape(rng: Rng) -> None:
    def halved(x: jnp.ndarray) -> jnp.ndarray:
        return lax.while_loop(lambda c: c > 1, lambda c: c * 0.5, x)

    assert float(anima.grad(halved)(8.0)) == 0.125


def draw(rng: Rng) -> None:
    assert anima.random.normal(anima.random.key(int(rng.integers(9))), (5,)).shape == (5,)


def eager(rng: Rng) -> None:
    assert float((jnp.arange(5.0) @ jnp.ones(5)) + jnp.asarray([1.0])[0]) == 11


def product(rng: Rng) -> None:
    assert np.allclose(anima.jit(lambda a: a @ a)(np.ones((33, 33), np.float32)), 33)


def clear(rng: Rng) -> None:
    anima.clear_caches()


def local(rng: Rng) -> None:
    with anima.enable_x64(True):
        assert step(np.ones(3), np.float64(2)).dtype == np.float64


def pools(rng: Rng) -> None:
    threads.set_num_threads(int(rng.integers(1, 5)))


def toggle(rng: Rng) -> None:
    anima.config.update("enable_x64", bool(rng.integers(2)))


def fork(rng: Rng) -> None:
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            for act in (call, parallel, donate, trace, tape):
                act(rng)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


ACTS = [trace, call, call, donate, parallel, loop, gradient, tape, draw, eager, product, clear, local, pools]


def main(seed: int, seconds: float, *more: str) -> int:
    """Runs the threads; the process's exit status."""
    faulthandler.enable()
    faulthandler.register(signal.SIGALRM, chain=True)
    signal.alarm(int(seconds) + 60)
    warnings.simplefilter("ignore")  # of fork in a process with threads
    acts = ACTS + [toggle] * ("toggle" in more) + [fork] * ("fork" in more)
    end, barrier, problems = time.monotonic() + seconds, threading.Barrier(8), []
    if "warm" in more:
        for act in ACTS:
            act(np.random.default_rng(seed))

    def work(number: int) -> None:
        rng = np.random.default_rng([seed, number])
        barrier.wait()
        while time.monotonic() < end and not problems:
            try:
                acts[rng.integers(len(acts))](rng)
            except Exception as error:
                if not ("toggle" in more and isinstance(error, TypeError)):
                    problems.append(traceback.format_exc())

    workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(*problems, sep="\n", file=sys.stderr)
    return len(problems)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), *sys.argv[3:]))
