"""Loops and their gradients, lanes of loops and branches, beside JAX where it is installed.

    python -m benchmarks.loops [WORD ...]        only the cases whose names have one of the words
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import anima
import anima.numpy as jnp
from benchmarks.core import both, compiling
from benchmarks.harness import HAVE_JAX, Case, measure, measure_fresh, print_row

if HAVE_JAX:
    import jax

F32 = np.float32


def library(np_like: Any) -> Any:
    """The module of transformations that goes with a NumPy-like module."""
    return anima if np_like is jnp else jax


# ---------------------------------------------------------------- differential equations


def lorenz_vector(steps: int) -> Callable[[Any], Callable[[Any], Any]]:
    """Runge-Kutta 4 for the Lorenz system, the state a 3-vector."""
    def make(m: Any) -> Callable[[Any], Any]:
        def f(s: Any) -> Any:
            x, y, z = s[0], s[1], s[2]
            return m.stack([10.0 * (y - x), x * (28.0 - z) - y, x * y - 8.0 / 3.0 * z])

        def run(s: Any) -> Any:
            h = 0.01

            def step(s: Any, _: Any) -> Any:
                k1 = f(s)
                k2 = f(s + h / 2 * k1)
                k3 = f(s + h / 2 * k2)
                k4 = f(s + h * k3)
                return s + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

            return library(m).lax.scan(step, s, None, length=steps)[0].sum()

        return run

    return make


def lorenz_scalars(steps: int) -> Callable[[Any], Callable[[Any], Any]]:
    """The same, the state three scalars."""
    def make(m: Any) -> Callable[[Any], Any]:
        def f(x: Any, y: Any, z: Any) -> Any:
            return 10.0 * (y - x), x * (28.0 - z) - y, x * y - 8.0 / 3.0 * z

        def run(s: Any) -> Any:
            h = 0.01

            def step(s: Any, _: Any) -> Any:
                k1 = f(*s)
                k2 = f(*(a + h / 2 * b for a, b in zip(s, k1, strict=True)))
                k3 = f(*(a + h / 2 * b for a, b in zip(s, k2, strict=True)))
                k4 = f(*(a + h * b for a, b in zip(s, k3, strict=True)))
                return tuple(a + h / 6 * (p + 2 * q + 2 * r + t)
                             for a, p, q, r, t in zip(s, k1, k2, k3, k4, strict=True)), None

            out, _ = library(m).lax.scan(step, (s[0], s[1], s[2]), None, length=steps)
            return out[0] + out[1] + out[2]

        return run

    return make


def leaves(size: int, steps: int = 1000) -> Callable[[Any], Callable[[Any], Any]]:
    """A carry of 60 leaves, each coupled to the next: scalars, or vectors of `size`."""
    def make(m: Any) -> Callable[[Any], Any]:
        def run(state: Any) -> Any:
            def step(c: Any, _: Any) -> Any:
                return tuple(a + 0.01 * (b - a * a) for a, b in zip(c, c[1:] + c[:1], strict=True)), None

            start = tuple(state[k] for k in range(60))
            out, _ = library(m).lax.scan(step, start, None, length=steps)
            return sum(x.sum() for x in out)

        return run

    return make


# ---------------------------------------------------------------- learning and sampling


def gru(m: Any) -> Callable[..., Any]:
    """A gated recurrent unit over a sequence; a loss."""
    def loss(weights: Any, xs: Any) -> Any:
        w, u, b = weights
        n = u.shape[0]

        def step(h: Any, x: Any) -> Any:
            gates, own = x @ w + b, h @ u
            r = sigmoid(gates[:n] + own[:n])
            z = sigmoid(gates[n:2 * n] + own[n:2 * n])
            new = m.tanh(gates[2 * n:] + r * own[2 * n:])
            h = (1.0 - z) * new + z * h
            return h, None

        def sigmoid(a: Any) -> Any:
            return 1.0 / (1.0 + m.exp(-a))

        h, _ = library(m).lax.scan(step, m.zeros(n, m.float32), xs)
        return (h * h).sum()

    return loss


def gru_data(hidden: int, length: int = 200) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    w, u = (rng.normal(size=(hidden, 3 * hidden)).astype(F32) / F32(np.sqrt(hidden)) for _ in range(2))
    return (w, u, np.zeros(3 * hidden, F32)), rng.normal(size=(length, hidden)).astype(F32)


def hmc(steps: int = 500, leaps: int = 10) -> Callable[[Any], Callable[..., Any]]:
    """Hamiltonian Monte Carlo on a Gaussian: leapfrog steps inside of a chain."""
    def make(m: Any) -> Callable[..., Any]:
        lib = library(m)

        def run(precision: Any, q: Any, momenta: Any, logs: Any) -> Any:
            def energy(q: Any) -> Any:
                return 0.5 * (q * precision * q).sum()

            slope, eps = lib.grad(energy), 0.1

            def transition(q: Any, given: Any) -> Any:
                p, log_u = given

                def leap(_: Any, state: Any) -> Any:
                    q, p = state
                    p = p - eps / 2 * slope(q)
                    q = q + eps * p
                    return q, p - eps / 2 * slope(q)

                new, last = lib.lax.fori_loop(0, leaps, leap, (q, p))
                change = energy(q) + 0.5 * (p * p).sum() - energy(new) - 0.5 * (last * last).sum()
                q = m.where(log_u < change, new, q)
                return q, q

            return lib.lax.scan(transition, q, (momenta, logs))[1]

        return run

    return make


def hmc_data(steps: int = 500, dim: int = 10) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    return (np.linspace(0.5, 2.0, dim, dtype=F32), np.zeros(dim, F32), rng.normal(size=(steps, dim)).astype(F32),
            np.log(rng.uniform(size=steps)).astype(F32))


# ---------------------------------------------------------------- lanes


def collatz(m: Any) -> Callable[[Any], Any]:
    """Steps until each integer reaches 1."""
    def one(n: Any) -> Any:
        def body(s: Any) -> Any:
            n, count = s
            return m.where(n % 2 == 0, n // 2, 3 * n + 1), count + 1

        return library(m).lax.while_loop(lambda s: s[0] != 1, body, (n, m.int32(0)))[1]

    return library(m).vmap(one)


def skewed(m: Any) -> Callable[..., Any]:
    """A recurrence for as many steps as each lane asks for."""
    def one(x: Any, stop: Any) -> Any:
        def body(s: Any) -> Any:
            k, x = s
            return k + 1, x * 3.7 * (1.0 - x)

        return library(m).lax.while_loop(lambda s: s[0] < stop, body, (m.int32(0), x))[1]

    return library(m).vmap(one)


def skewed_data(lanes: int = 1000) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    trips = np.minimum(rng.exponential(500.0, lanes), 3900).astype(np.int32)
    trips[7] = 4000
    return rng.uniform(0.2, 0.8, lanes).astype(F32), trips


def rare_cond(m: Any) -> Callable[..., Any]:
    """A costly branch that one lane in a hundred takes."""
    lib = library(m)

    def costly(x: Any) -> Any:
        return lib.lax.fori_loop(0, 200, lambda i, a: m.sin(a) + x, x)

    return lib.vmap(lambda p, x: lib.lax.cond(p, costly, lambda x: x * 2.0, x))


def rare_data(lanes: int = 10_000) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    return rng.uniform(size=lanes) < 0.01, rng.normal(size=lanes).astype(F32)


def looked_up(m: Any) -> Callable[..., Any]:
    """Skip-grams: the product of two rows of a table in each step; its gradient adds to two rows in each."""
    def loss(table: Any, words: Any) -> Any:
        def step(total: Any, word: Any) -> Any:
            return total + m.tanh(table[word[0]] @ table[word[1]]), None

        return library(m).lax.scan(step, 0.0, words)[0]

    return loss


def looked_up_data(count: int = 1000, size: int = 500, dim: int = 12) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(size, dim)).astype(F32), rng.integers(0, size, (count, 2)).astype(np.int32)


# Functions of a number that the next step needs: what counts is how long one takes, not how many a second.
CHAINS: dict[str, Callable[[Any, Any], Any]] = {
    "exp": lambda m, x: m.exp(-x), "log": lambda m, x: m.log(x + 1.5), "sin": lambda m, x: m.sin(x) + 0.2,
    "tanh": lambda m, x: m.tanh(x) + 0.2, "arctan2": lambda m, x: m.arctan2(x, 0.7) + 0.1,
    "x**-0.2": lambda m, x: (x + 0.4) ** -0.2, "x**-1.5": lambda m, x: (x + 0.3) ** -1.5 * 0.4 + 0.1,
    "mod": lambda m, x: m.mod(x + 2.2, 6.2831853) * 0.9 + 0.1, "cbrt": lambda m, x: m.cbrt(x + 0.1)}


def chain(name: str, steps: int = 2000) -> Callable[[Any], Callable[[Any], Any]]:
    """A function applied to its own result."""
    def make(m: Any) -> Callable[[Any], Any]:
        return lambda x: library(m).lax.fori_loop(0, steps, lambda i, x: CHAINS[name](m, x), x)

    return make


# ---------------------------------------------------------------- the report

Make = Callable[[Any], Callable[..., Any]]


def cases() -> list[tuple[str, Make, tuple[Any, ...], bool]]:
    """(name, function of a NumPy-like module, arguments, whether its gradient is measured)."""
    rng = np.random.default_rng(0)
    start = np.array([1.0, 1.0, 1.0], F32)
    found: list[tuple[str, Make, tuple[Any, ...], bool]] = []
    for steps in (100, 1000, 10_000):
        found.append((f"Lorenz, 3-vector, {steps} steps", lorenz_vector(steps), (start,), True))
        found.append((f"Lorenz, scalars, {steps} steps", lorenz_scalars(steps), (start,), True))
    found.append(("60 scalars, 1000 steps", leaves(1), (rng.uniform(size=60).astype(F32),), True))
    found.append(("60 3-vectors, 1000 steps", leaves(3), (rng.uniform(size=(60, 3)).astype(F32),), True))
    found += [(f"{name} of a number, 2,000 times", chain(name), (F32(0.37),), False) for name in CHAINS]
    found.append(("GRU 32, 200 steps", gru, gru_data(32), True))
    found.append(("GRU 128, 200 steps", gru, gru_data(128), True))
    found.append(("HMC 10-dim, 500 x 10 leaps", hmc(), hmc_data(), False))
    found.append(("rows of a table, 1,000 steps", looked_up, looked_up_data(), True))
    found.append(("Collatz of 2,000 integers", collatz, (np.arange(1, 2001, dtype=np.int32),), False))
    found.append(("while, 1,000 skewed lanes", skewed, skewed_data(), False))
    found.append(("cond, 1% costly of 10,000", rare_cond, rare_data(), False))
    return found


def main(words: list[str] | None = None) -> None:
    print("forward, gradient and compilation; N x = takes N times as long as Anima")
    for name, make, args, differentiate in cases():
        if words and not any(w in name for w in words):
            continue
        forward = measure(Case(name, both(make, *args, numpy=False), rounds=7))
        print_row(name, forward)
        if differentiate:
            gradient = measure(Case(name, both(make, *args, wrap="grad"), rounds=7))
            ratio = gradient["anima"] / forward["anima"]
            print_row(name, gradient, f"{ratio:6.1f} x forward", part="gradient")
        print_row(name, measure_fresh(compiling(make, *args), rounds=2), part="compiling")
        if differentiate:
            print_row(name, measure_fresh(compiling(make, *args, wrap="grad"), rounds=2), part="compiling the gradient")


if __name__ == "__main__":
    main(sys.argv[1:])
