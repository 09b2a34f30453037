"""Checks that do not fail, beside none, and beside JAX's own where it is installed.

    python -m benchmarks.checks [WORD ...]       only the cases whose names have one of the words

`anima` is the program without checks; the others are multiples of it. `jax checked / jax` is JAX's own price.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import anima
import anima.numpy as jnp
from anima.experimental import checkify
from benchmarks.harness import HAVE_JAX, Case, measure, print_row
from benchmarks.loops import library

if HAVE_JAX:
    import jax
    import jax.experimental.checkify as jax_checkify

F32, I32 = np.float32, np.int32
Make = Callable[[Any], Callable[..., Any]]


def checks_of(m: Any) -> Any:
    """The module of checks that goes with a NumPy-like module."""
    return checkify if m is jnp else jax_checkify


def chain(m: Any) -> Callable[..., Any]:
    return lambda x: m.log(x) * m.sin(x) + m.sqrt(x) / (x + 1.0)


def cheap_chain(m: Any) -> Callable[..., Any]:
    return lambda x: (x * x + x) * x - x / (x * x + 1.0)


def softmax(m: Any) -> Callable[..., Any]:
    return lambda x: library(m).nn.softmax(x)


def scan(m: Any) -> Callable[..., Any]:
    def step(s: Any, a: Any) -> Any:
        return s * 0.5 + m.sin(a), s

    return lambda x: library(m).lax.scan(step, m.float32(0), x)


def indexed_scan(m: Any) -> Callable[..., Any]:
    return lambda x, i: library(m).lax.scan(lambda s, k: (s * 0.5 + m.sin(x[k]), None), m.float32(0), i)[0]


def fori(m: Any) -> Callable[..., Any]:
    return lambda x, i: library(m).lax.fori_loop(0, len(i), lambda k, s: s * 0.5 + x[i[k]], m.float32(0))


def layer_norm(m: Any) -> Callable[..., Any]:
    def norm(x: Any) -> Any:
        centred = x - m.mean(x, axis=1, keepdims=True)
        return centred / m.sqrt(m.mean(centred * centred, axis=1, keepdims=True) + 1e-5)

    return norm


def user_scan(m: Any) -> Callable[..., Any]:
    def step(s: Any, a: Any) -> Any:
        checks_of(m).debug_check(s < 1e9, "{s} at {a}", s=s, a=a)
        return s * 0.5 + m.sin(a), s

    return lambda x: library(m).lax.scan(step, m.float32(0), x)


def cases() -> list[tuple[str, Make, tuple[Any, ...], str]]:
    """(name, function of a NumPy-like module, arguments, which checks)."""
    rng = np.random.default_rng(0)
    table, many = rng.uniform(1, 2, 100_000).astype(F32), rng.uniform(1, 2, 1_000_000).astype(F32)
    places, square = rng.integers(0, 100_000, 1_000_000, I32), rng.uniform(1, 2, (1000, 1000)).astype(F32)
    rows, columns = rng.integers(0, 1000, (2, 1_000_000), I32)
    return [
        ("gather of 1,000,000", lambda m: lambda x, i: x[i], (table, places), "index_checks"),
        ("gather of 5,000 rows", lambda m: lambda x, i: x[i], (square, rows[:5000]), "index_checks"),
        ("gather by two indices", lambda m: lambda x, i, j: x[i, j], (square, rows, columns), "index_checks"),
        ("scatter-add of 1,000,000", lambda m: lambda x, i: x.at[i].add(1.0), (table, places), "index_checks"),
        ("elementwise chain, NaNs", chain, (many,), "nan_checks"),
        ("cheap chain, NaNs", cheap_chain, (many,), "nan_checks"),
        ("cheap chain, NaNs and divisions", cheap_chain, (many,), "float_checks"),
        ("softmax, NaNs", softmax, (square,), "nan_checks"),
        ("layer norm, NaNs", layer_norm, (square,), "nan_checks"),
        ("layer norm, NaNs and divisions", layer_norm, (square,), "float_checks"),
        ("product of matrices, NaNs", lambda m: lambda x: x @ x, (square,), "nan_checks"),
        ("scan of 100,000, NaNs", scan, (table,), "nan_checks"),
        ("scan of 100,000, indices", indexed_scan, (table, places[:100_000]), "index_checks"),
        ("fori_loop of 100,000, two indices", fori, (table, places[:100_000]), "index_checks"),
        ("scan of 100,000, a user's check", user_scan, (table,), "user_checks"),
    ]


def many_equations(x: Any, i: Any) -> Any:
    """1,360 equations, of which 160 index."""
    for k in range(80):
        x = jnp.sin(x) * 1.5
        y = x[i]
        x = x.at[i].set(y + k) / (y + 2.0)
    return x


def compile_time(kind: str) -> float:
    """Seconds of the processor to trace and compile `many_equations` with checks of a kind ("": with none)."""
    args, times = (jnp.arange(16.0), jnp.int32(3)), []
    for _ in range(3):
        anima.clear_caches()
        fun = checkify.checkify(many_equations, errors=getattr(checkify, kind)) if kind else many_equations
        start = time.process_time()
        anima.jit(fun).lower(*args).compile()
        times.append(time.process_time() - start)
    return min(times)


def show_compile_times() -> None:
    with anima.config.option("enable_compilation_cache")(False):
        plain = compile_time("")
        print(f"tracing and compiling 1,360 equations: {plain:.2f} s without checks")
        for kind in ("user_checks", "index_checks", "float_checks", "all_checks"):
            print(f"  {kind:14s} {compile_time(kind) / plain:.2f} x", flush=True)


def contestants(make: Make, args: tuple[Any, ...], kind: str) -> dict[str, Callable[[], Any]]:
    """The program and the program with checks, compiled."""
    own = list(map(jnp.asarray, args))
    plain, checked = anima.jit(make(jnp)), anima.jit(checkify.checkify(make(jnp), errors=getattr(checkify, kind)))
    checked(*own)[0].throw()
    found: dict[str, Callable[[], Any]] = {"anima": lambda: plain(*own), "checked": lambda: checked(*own)}
    if HAVE_JAX:
        theirs = list(map(jax.numpy.asarray, args))
        other = jax.jit(make(jax.numpy))
        slow = jax.jit(jax_checkify.checkify(make(jax.numpy), errors=getattr(jax_checkify, kind)))
        found["jax"] = lambda: jax.block_until_ready(other(*theirs))
        found["jax checked"] = lambda: jax.block_until_ready(slow(*theirs))
    return found


def show(words: list[str] | None = None) -> None:
    print("one run; N x = takes N times as long as Anima without checks")
    for name, make, args, kind in cases():
        if not words or any(w in name for w in words):
            medians = measure(Case(name, contestants(make, args, kind)))
            price = f"  jax checked / jax {medians['jax checked'] / medians['jax']:.2f}" if HAVE_JAX else ""
            print_row(name, medians, price)


if __name__ == "__main__":
    show(sys.argv[1:])
    show_compile_times()
