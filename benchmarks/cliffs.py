"""Loops that update arrays in place, beside JAX where it is installed: a step must cost what it touches.

    python -m benchmarks.cliffs [WORD ...]       only the cases whose names have one of the words
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.core import both
from benchmarks.harness import Case, measure, print_row
from benchmarks.loops import library

F32 = np.float32
I32 = np.int32


def one_element(m: Any) -> Callable[[Any], Any]:
    """Writes an element computed from another."""
    return lambda x: library(m).lax.fori_loop(0, 1000, lambda i, a: a.at[i].set(a[i] * 2 + 1), x)


def prefix_sums(m: Any) -> Callable[[Any], Any]:
    return lambda x: library(m).lax.fori_loop(1, x.shape[0], lambda i, a: a.at[i].add(a[i - 1]), x)


def thomas(m: Any) -> Callable[..., Any]:
    """A tridiagonal system: elimination forwards, substitution backwards."""
    def solve(low: Any, mid: Any, high: Any, right: Any) -> Any:
        n, lax = mid.shape[0], library(m).lax

        def eliminate(i: Any, s: Any) -> Any:
            b, d = s
            w = low[i] / b[i - 1]
            return b.at[i].add(-w * high[i - 1]), d.at[i].add(-w * d[i - 1])

        b, d = lax.fori_loop(1, n, eliminate, (mid, right))
        x = d.at[n - 1].set(d[n - 1] / b[n - 1])
        return lax.fori_loop(0, n - 1, lambda k, x: x.at[n - 2 - k].set(
            (x[n - 2 - k] - high[n - 2 - k] * x[n - 1 - k]) / b[n - 2 - k]), x)

    return solve


# ---------------------------------------------------------------- sorting and searching


def insertion_sort(m: Any) -> Callable[[Any], Any]:
    lax = library(m).lax

    def insert(i: Any, a: Any) -> Any:
        def shift(s: Any) -> Any:
            a, j = s
            return a.at[j].set(a[j - 1]), j - 1

        key = a[i]
        a, j = lax.while_loop(lambda s: (s[1] > 0) & (s[0][s[1] - 1] > key), shift, (a, i))
        return a.at[j].set(key)

    return lambda x: lax.fori_loop(1, x.shape[0], insert, x)


def bubble_sort(m: Any) -> Callable[[Any], Any]:
    lax = library(m).lax

    def swap(j: Any, a: Any) -> Any:
        low, high = m.minimum(a[j], a[j + 1]), m.maximum(a[j], a[j + 1])
        return a.at[j].set(low).at[j + 1].set(high)

    return lambda x: lax.fori_loop(0, x.shape[0], lambda i, a: lax.fori_loop(0, x.shape[0] - 1 - i, swap, a), x)


def heap_sort(m: Any) -> Callable[[Any], Any]:
    """Pushes all elements on a heap, and pops them."""
    lax = library(m).lax

    def push(i: Any, s: Any) -> Any:
        heap, x = s

        def up(t: Any) -> Any:
            heap, k = t
            parent = (k - 1) // 2
            a, b = heap[k], heap[parent]
            return heap.at[k].set(b).at[parent].set(a), parent

        heap, _ = lax.while_loop(lambda t: (t[1] > 0) & (t[0][t[1]] < t[0][(t[1] - 1) // 2]), up,
                                 (heap.at[i].set(x[i]), i))
        return heap, x

    def pop(i: Any, s: Any) -> Any:
        heap, out = s
        last = heap.shape[0] - 1 - i

        def child(heap: Any, k: Any) -> Any:
            left = 2 * k + 1
            return m.where((left + 1 < last) & (heap[left + 1] < heap[left]), left + 1, left)

        def down(t: Any) -> Any:
            heap, k = t
            c = child(heap, k)
            a, b = heap[k], heap[c]
            return heap.at[k].set(b).at[c].set(a), c

        out = out.at[i].set(heap[0])
        heap = heap.at[0].set(heap[last])
        heap, _ = lax.while_loop(lambda t: (2 * t[1] + 1 < last) & (t[0][child(*t)] < t[0][t[1]]), down,
                                 (heap, m.int32(0)))
        return heap, out

    def run(x: Any) -> Any:
        heap, _ = lax.fori_loop(0, x.shape[0], push, (m.zeros_like(x), x))
        return lax.fori_loop(0, x.shape[0], pop, (heap, m.zeros_like(x)))[1]

    return run


def union_find(m: Any) -> Callable[..., Any]:
    """Joins sets, halving paths on the way to their roots."""
    lax = library(m).lax

    def find(parent: Any, k: Any) -> Any:
        def step(s: Any) -> Any:
            p, k = s
            p = p.at[k].set(p[p[k]])
            return p, p[k]

        return lax.while_loop(lambda s: s[0][s[1]] != s[1], step, (parent, k))

    def join(i: Any, s: Any) -> Any:
        parent, one, other = s
        parent, a = find(parent, one[i])
        parent, b = find(parent, other[i])
        return parent.at[a].set(b), one, other

    return lambda one, other: lax.fori_loop(0, one.shape[0], join, (m.arange(one.shape[0]), one, other))[0]


def sieve(n: int) -> Callable[[Any], Callable[[Any], Any]]:
    """Primes below `n`."""
    def make(m: Any) -> Callable[[Any], Any]:
        lax = library(m).lax

        def strike(k: Any, is_prime: Any) -> Any:
            def multiples(s: Any) -> Any:
                p, j = s
                return p.at[j].set(False), j + k

            start = m.where(is_prime[k], k * k, n)
            return lax.while_loop(lambda s: s[1] < n, multiples, (is_prime, start))[0]

        return lambda x: lax.fori_loop(2, int(n ** 0.5) + 1, strike, x)

    return make


# ---------------------------------------------------------------- tables


def warping(m: Any) -> Callable[..., Any]:
    """Dynamic time warping of two series."""
    def run(x: Any, y: Any) -> Any:
        lax, n, k = library(m).lax, x.shape[0], y.shape[0]

        def cell(i: Any, j: Any, d: Any) -> Any:
            best = m.minimum(m.minimum(d[i - 1, j], d[i, j - 1]), d[i - 1, j - 1])
            return d.at[i, j].set(m.abs(x[i - 1] - y[j - 1]) + best)

        start = m.full((n + 1, k + 1), m.inf, x.dtype).at[0, 0].set(0.0)
        return lax.fori_loop(1, n + 1, lambda i, d: lax.fori_loop(1, k + 1, lambda j, d: cell(i, j, d), d),
                             start)[n, k]

    return run


def edit_distance(m: Any) -> Callable[..., Any]:
    def run(x: Any, y: Any) -> Any:
        lax, n, k = library(m).lax, x.shape[0], y.shape[0]

        def cell(i: Any, j: Any, d: Any) -> Any:
            same = (x[i - 1] != y[j - 1]).astype(d.dtype)
            best = m.minimum(m.minimum(d[i - 1, j], d[i, j - 1]) + 1, d[i - 1, j - 1] + same)
            return d.at[i, j].set(best)

        start = m.zeros((n + 1, k + 1), m.int32).at[:, 0].set(m.arange(n + 1)).at[0, :].set(m.arange(k + 1))
        return lax.fori_loop(1, n + 1, lambda i, d: lax.fori_loop(1, k + 1, lambda j, d: cell(i, j, d), d),
                             start)[n, k]

    return run


def floyd_warshall(m: Any) -> Callable[[Any], Any]:
    """All shortest paths."""
    return lambda d: library(m).lax.fori_loop(
        0, d.shape[0], lambda k, d: m.minimum(d, d[:, k][:, None] + d[k][None, :]), d)


def elimination(m: Any) -> Callable[[Any], Any]:
    """Gaussian elimination without pivots, rows and columns masked."""
    def run(a: Any) -> Any:
        number = m.arange(a.shape[0])

        def step(k: Any, a: Any) -> Any:
            factors = m.where(number > k, a[:, k] / a[k, k], 0.0)
            pivot = m.where(number >= k, a[k], 0.0)
            return (a - factors[:, None] * pivot[None, :]).at[:, k].add(factors)

        return library(m).lax.fori_loop(0, a.shape[0] - 1, step, a)

    return run


# ---------------------------------------------------------------- simulations


def life(m: Any) -> Callable[[Any], Any]:
    """Conway's game, the neighbours by slices."""
    def step(_: Any, a: Any) -> Any:
        n, k = a.shape[0] - 2, a.shape[1] - 2
        around = sum(a[i:i + n, j:j + k] for i in range(3) for j in range(3) if (i, j) != (1, 1))
        alive = (around == 3) | ((around == 2) & (a[1:-1, 1:-1] == 1))
        return a.at[1:-1, 1:-1].set(alive.astype(a.dtype))

    return lambda x: library(m).lax.fori_loop(0, 100, step, x)


def queue(m: Any) -> Callable[[Any], Any]:
    """A ring buffer: takes an element from the front, puts two behind it."""
    def step(_: Any, s: Any) -> Any:
        ring, head, tail = s
        x, size = ring[head % ring.shape[0]], ring.shape[0]
        ring = ring.at[tail % size].set(x * 0.5)
        ring = ring.at[(tail + 1) % size].set(x + 1)
        return ring, head + 1, tail + 2

    return lambda x: library(m).lax.fori_loop(0, 10_000, step, (x, m.int32(0), m.int32(1)))[0]


def delay(m: Any) -> Callable[[Any], Any]:
    """Mackey and Glass' equation for many cells: what comes of a value is made of one that was kept long before."""
    def step(s: Any, i: Any) -> Any:
        rows, x = s
        before = rows[i]
        return (rows.at[i].set(x), x + 0.1 * (0.2 * before / (1.0 + before ** 10) - 0.1 * x)), None

    def run(rows: Any) -> Any:
        turns = library(m).lax.fori_loop(0, 2, lambda _, s: library(m).lax.scan(step, s, m.arange(rows.shape[0]))[0],
                                         (rows, rows[-1]))
        return turns[0]

    return run


def transport(m: Any) -> Callable[..., Any]:
    """Sinkhorn's steps under a cost that takes a loop itself, and is the same in each of them."""
    lax, exp, log = library(m).lax, m.exp, m.log

    def cost(a: Any, b: Any) -> Any:
        product = a[:, None] * b[None]
        return lax.while_loop(lambda s: abs(s * s - product).max() > 1e-4, lambda s: (s + product / s) / 2, product + 1)

    def run(a: Any, b: Any) -> Any:
        return lax.fori_loop(0, 50, lambda _, g: -log(exp(-log(exp(g[None] - cost(a, b)).sum(1))[:, None]
                                                          - cost(a, b)).sum(0)), b * 0)

    return run


def events(m: Any) -> Callable[[Any], Any]:
    """Times at which a falling ball hits the ground, kept if it does."""
    def step(s: Any) -> Any:
        height, speed, now, count, times = s
        height, speed = height + 0.001 * speed, speed - 0.00981
        hit = height < 0
        times = m.where(hit, times.at[count].set(now), times)
        return m.where(hit, 0.0, height), m.where(hit, -0.999 * speed, speed), now + 0.001, count + hit, times

    def run(times: Any) -> Any:
        start = m.float32(1.0), m.float32(0.0), m.float32(0.0), m.int32(0), times
        return library(m).lax.while_loop(lambda s: s[2] < 20.0, step, start)[4]

    return run


def ising(m: Any) -> Callable[..., Any]:
    """Metropolis' algorithm for spins on a torus, one spin at a time."""
    def flip(a: Any, given: Any) -> Any:
        (i, j), u = given
        n, k = a.shape
        around = a[(i + 1) % n, j] + a[i - 1, j] + a[i, (j + 1) % k] + a[i, j - 1]
        change = 2.0 * a[i, j] * around
        return a.at[i, j].set(m.where(u < m.exp(-0.5 * change), -a[i, j], a[i, j])), None

    return lambda a, places, us: library(m).lax.scan(flip, a, (places, us))[0]


Make = Callable[[Any], Callable[..., Any]]


def cases() -> list[tuple[str, Make, tuple[Any, ...]]]:
    """(name, function of a NumPy-like module, arguments)."""
    rng = np.random.default_rng(0)
    many, thousand = rng.normal(size=100_000).astype(F32), rng.normal(size=1000).astype(F32)
    square = rng.uniform(1, 2, size=(300, 300)).astype(F32)
    spins = rng.choice(np.array([-1, 1], F32), size=(64, 64))
    return [
        ("one element of 1,000,000, 1,000 steps", one_element, (np.ones(1_000_000, F32),)),
        ("prefix sums of 100,000", prefix_sums, (many,)),
        ("tridiagonal system of 100,000", thomas, (many * 0 + 1, many * 0 + 4, many * 0 + 1, many)),
        ("insertion sort of 1,000", insertion_sort, (thousand,)),
        ("bubble sort of 1,000", bubble_sort, (thousand,)),
        ("heap sort of 10,000", heap_sort, (many[:10_000],)),
        ("union-find of 10,000", union_find, tuple(rng.integers(0, 10_000, 10_000, I32) for _ in range(2))),
        ("sieve below 1,000,000", sieve(1_000_000), (np.ones(1_000_000, bool),)),
        ("time warping 400 x 400", warping, (thousand[:400], thousand[600:])),
        ("edit distance 400 x 400", edit_distance, tuple(rng.integers(0, 4, 400, I32) for _ in range(2))),
        ("shortest paths of 300", floyd_warshall, (square,)),
        ("elimination of 300 x 300", elimination, (square + 300 * np.eye(300, dtype=F32),)),
        ("game of life 256 x 256, 100 steps", life, (rng.integers(0, 2, (256, 256), I32),)),
        ("queue of 100,000, 10,000 steps", queue, (many,)),
        ("delay of 1,700 steps, 16 cells", delay, (rng.uniform(0.5, 1.2, size=(1700, 16)).astype(F32),)),
        ("transport of 100 to 120 places, 50 steps", transport, (rng.uniform(1, 2, 100).astype(F32),
                                                                  rng.uniform(1, 2, 120).astype(F32))),
        ("events of 20,000 steps, 10,000 places", events, (np.zeros(10_000, F32),)),
        ("Ising 64 x 64, 100,000 flips", ising, (spins, rng.integers(0, 64, (100_000, 2), I32),
                                                  rng.uniform(size=100_000).astype(F32))),
    ]


def main(words: list[str] | None = None) -> None:
    print("one run; N x = takes N times as long as Anima")
    for name, make, args in cases():
        if not words or any(w in name for w in words):
            print_row(name, measure(Case(name, both(make, *args, numpy=False), rounds=7)))


if __name__ == "__main__":
    main(sys.argv[1:])
