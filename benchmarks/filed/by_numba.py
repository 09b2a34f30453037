"""Some of the programs, written as loops for Numba."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

import anima
from benchmarks.filed import programs


@numba.njit(fastmath=False)
def _bodies(x: np.ndarray, v: np.ndarray, masses: np.ndarray, steps: int) -> float:
    x, v = x.copy(), v.copy()
    pull = np.zeros_like(x)
    for step in range(2 * steps):
        pull[:] = 0.0
        for i in range(4):
            for j in range(4):
                if i != j:
                    d0, d1, d2 = x[j, 0] - x[i, 0], x[j, 1] - x[i, 1], x[j, 2] - x[i, 2]
                    r2 = d0 * d0 + d1 * d1 + d2 * d2
                    w = masses[j] / (r2 * np.sqrt(r2))
                    pull[i, 0] += w * d0
                    pull[i, 1] += w * d1
                    pull[i, 2] += w * d2
        v += 0.005 * pull
        if step % 2 == 0:
            x += 0.01 * v
    return ((x[1] - x[2]) ** 2).sum()


@numba.njit
def _while(table: np.ndarray) -> int:
    last, most, at = table.max(), 0, 0
    while most < last:
        most = max(most, table[at])
        at += 1
    return at


@numba.njit(parallel=True)
def _differences(x: np.ndarray) -> float:
    total = 0.0
    n0, n1, n2 = x.shape
    for i in numba.prange(n0):
        part = np.float32(0)
        for j in range(n1):
            for k in range(n2):
                if i + 1 < n0:
                    part += (x[i + 1, j, k] - x[i, j, k]) ** 2
                if j + 1 < n1:
                    part += (x[i, j + 1, k] - x[i, j, k]) ** 2
                if k + 1 < n2:
                    part += (x[i, j, k + 1] - x[i, j, k]) ** 2
        total += part
    return total


@numba.njit
def _matrices(turns: np.ndarray) -> float:
    a, b, total = np.eye(3), np.zeros((3, 3)), 0.0
    for t in range(turns.shape[0]):
        for i in range(3):
            for j in range(3):
                b[i, j] = a[i, 0] * turns[t, 0, j] + a[i, 1] * turns[t, 1, j] + a[i, 2] * turns[t, 2, j]
        a, b = b, a
        total += a[0, 0]
    return total


LOOPS: dict[str, Callable[..., Any]] = {
    "four bodies, 2000 steps": lambda x, v: _bodies(x, v, np.array([1.0, 1e-3, 3e-4, 5e-5]), 2000),
    "while of a million steps": _while,
    "squared differences of a volume": _differences,
    "scan over 3x3 matrices": _matrices,
}


def made(name: str, gradient: bool) -> tuple[Callable[[], Any], float, float] | None:
    """As `programs.made`; None for what is not written here."""
    if gradient or name not in LOOPS:
        return None
    _, args = programs.PROGRAMS[name][0](anima)
    start = time.perf_counter()
    value = LOOPS[name](*args)
    return lambda: LOOPS[name](*args), time.perf_counter() - start, float(abs(value))
