"""Rows of `surface.py` that are no convolutions: pooling, transforms, matrices large and small, sorting, sums.

Each is one function of a module with JAX's names, and, where there is one, of NumPy, SciPy or PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.fft
import scipy.linalg
import scipy.sparse

import anima
from benchmarks.harness import HAVE_JAX, HAVE_TORCH, Case, work_of

if HAVE_JAX:
    import jax
if HAVE_TORCH:
    import torch

Function = Callable[..., Any]
RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Routine:
    """Work on arrays: `by` makes its function from a module with JAX's names, the others are those of libraries."""

    name: str
    arrays: tuple[np.ndarray, ...]
    by: Callable[[Any], Function]
    numpy: Function | None = None
    torch: Function | None = None
    limited: bool = False  # by the machine's bandwidth or arithmetic, if by anything
    eager: bool = False    # outside of jit

    def case(self) -> Case:
        return Case(self.name, self.contestants(), work=work_of(self.by(anima), self.arrays) if self.limited else None)

    def contestants(self) -> dict[str, Callable[[], Any]]:
        found = {"anima": compiled(anima, self)}
        if self.numpy is not None:
            found["numpy"] = partial(self.numpy, *self.arrays)
        if HAVE_JAX:
            found["jax"] = compiled(jax, self)
        if HAVE_TORCH and self.torch is not None:
            found["torch"] = partial(self.torch, *map(torch.from_numpy, self.arrays))
        return found


def compiled(module: Any, routine: Routine) -> Callable[[], Any]:
    """One run by Anima or JAX."""
    fun, arrays = routine.by(module), module.device_put(routine.arrays)
    if not routine.eager:
        fun = module.jit(fun)
    return lambda: module.block_until_ready(fun(*arrays))


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


# ---------------------------------------------------------------- pooling


def pooled(module: Any, x: Any, size: int, mean: bool) -> Any:
    window, strides = (1, size, size, 1), (1, 2, 2, 1)
    if mean:
        return module.lax.reduce_window(x, 0.0, module.lax.add, window, strides, "VALID") / size**2
    return module.lax.reduce_window(x, -np.inf, module.lax.max, window, strides, "VALID")


def pooled_by_torch(x: Any, size: int, mean: bool) -> Any:
    functions = torch.nn.functional
    return (functions.avg_pool2d if mean else functions.max_pool2d)(x.permute(0, 3, 1, 2), size, 2)


def pooling() -> Iterator[Routine]:
    x = normal(8, 56, 56, 64)
    for mean in (False, True):
        for size in (2, 3):
            name = f"{'mean' if mean else 'max'} of {size}x{size}, stride 2"
            windows = partial(pooled_by_torch, size=size, mean=mean)

            def gradient(x: Any, windows: Function = windows) -> Any:
                x = x.detach().requires_grad_(True)
                return torch.autograd.grad(windows(x).sum(), x)

            def fun(module: Any, size: int = size, mean: bool = mean) -> Function:
                return lambda x: pooled(module, x, size, mean)

            yield Routine(name, (x,), fun, torch=windows)
            yield Routine(name + " by x", (x,), lambda m, fun=fun: m.grad(lambda x: (fun(m)(x)**2).sum()),
                          torch=gradient)


# ---------------------------------------------------------------- Fourier transforms


def transforming(module: Any) -> Function:
    """A thousand transforms, each of the one before."""
    return lambda x: module.lax.scan(lambda c, _: (module.numpy.fft.fft(c) / 8, None), x, None, 1000)[0]


def transforms() -> Iterator[Routine]:
    real = (normal(1024, 1024),)
    for n in (64, 1000, 1001, 1009, 1024):
        x = ((normal(2**20 // n, n) + 1j * normal(2**20 // n, n)).astype(np.complex64),)
        yield Routine(f"fft of {n}", x, lambda m: m.numpy.fft.fft, scipy.fft.fft, lambda x: torch.fft.fft(x))
    for rows, n in ((1000, 64), (1000, 256), (100, 1024), (1, 4096), (1000, 105), (1000, 101)):
        x = ((normal(rows, n) + 1j * normal(rows, n)).astype(np.complex64),)
        yield Routine(f"fft of {rows} x {n}", x, lambda m: m.numpy.fft.fft, scipy.fft.fft, lambda x: torch.fft.fft(x))
    for n in (105, 256):
        yield Routine(f"rfft of 1000 x {n}", (normal(1000, n),), lambda m: m.numpy.fft.rfft, scipy.fft.rfft,
                      lambda x: torch.fft.rfft(x))
    for n in (64, 256):
        yield Routine(f"fft2 of {n}x{n}", ((normal(n, n) + 0j).astype(np.complex64),), lambda m: m.numpy.fft.fft2,
                      scipy.fft.fft2, lambda x: torch.fft.fft2(x))
    yield Routine("fft of 64, 1000 steps", ((normal(64) + 0j).astype(np.complex64),), transforming)
    yield Routine("rfft of 1024", real, lambda m: m.numpy.fft.rfft, scipy.fft.rfft, lambda x: torch.fft.rfft(x))
    yield Routine("irfft of 1024", (scipy.fft.rfft(real[0]),), lambda m: m.numpy.fft.irfft, scipy.fft.irfft,
                  lambda x: torch.fft.irfft(x))
    yield Routine("fft2 of 1024x1024", ((real[0] + 0j).astype(np.complex64),), lambda m: m.numpy.fft.fft2,
                  scipy.fft.fft2, lambda x: torch.fft.fft2(x))
    yield Routine("rfft2 of 1024x1024", real, lambda m: m.numpy.fft.rfft2, scipy.fft.rfft2,
                  lambda x: torch.fft.rfft2(x))


# ---------------------------------------------------------------- matrices


def linear(name: str) -> dict[str, Any]:
    """A routine of `numpy.linalg` by each."""
    return {"by": lambda m: getattr(m.numpy.linalg, name), "numpy": getattr(np.linalg, name),
            "torch": lambda *x: getattr(torch.linalg, name)(*x)}


def matrices() -> Iterator[Routine]:
    for n, count in ((512, 0), (3, 10_000), (4, 10_000), (8, 10_000), (16, 10_000)):
        batch = (count,) if count else ()
        size = f"{count} x {n}x{n}" if count else f"{n}x{n}"
        a, b = normal(*batch, n, n), normal(*batch, n, 1 if count else n)
        positive = (a @ a.swapaxes(-1, -2) + np.eye(n)).astype(np.float32)
        yield Routine(f"cholesky of {size}", (positive,), **linear("cholesky"))
        yield Routine(f"solve of {size}", (a, b), **linear("solve"))
        yield Routine(f"det of {size}", (a,), **linear("det"))
        yield Routine(f"inv of {size}", (a,), **linear("inv"))
        if n <= 4 or not count:
            yield Routine(f"qr of {size}", (a,), **linear("qr"))
            yield Routine(f"eigh of {size}", (positive,), **linear("eigh"))
            yield Routine(f"svd of {size}", (a,), **linear("svd"))


def filtering(module: Any) -> Function:
    """A Kalman filter: a state of 4, observed at 2."""
    jnp = module.numpy
    move, noise = np.eye(4, k=2, dtype=np.float32) * 0.1 + np.eye(4, dtype=np.float32), np.float32(0.01)
    seen = np.eye(2, 4, dtype=np.float32)

    def step(state: Any, z: Any) -> Any:
        mean, cov = move @ state[0], move @ state[1] @ move.T + noise * jnp.eye(4)
        innovation = seen @ cov @ seen.T + jnp.eye(2)
        gain = jnp.linalg.solve(innovation, seen @ cov).T
        mean = mean + gain @ (z - seen @ mean)
        return (mean, cov - gain @ innovation @ gain.T), mean

    return lambda z: module.lax.scan(step, (jnp.zeros(4), jnp.eye(4)), z)


def solving(n: int) -> Callable[[Any], Function]:
    """A thousand systems, each made of the solution of the one before."""
    a = normal(n, n) + 3 * np.eye(n, dtype=np.float32)

    def by(module: Any) -> Function:
        def step(x: Any, b: Any) -> Any:
            x = module.numpy.linalg.solve(a + 0.01 * x, b[:, None])[:, 0]
            return x, x[0]

        return lambda b: module.lax.scan(step, b[0], b)

    return by


def relaxing(name: str) -> Callable[[Any], Function]:
    """A thousand spectra, each of a matrix made of the values before."""
    def by(module: Any) -> Function:
        jnp = module.numpy

        def step(x: Any, a: Any) -> Any:
            found = getattr(jnp.linalg, name)(a + jnp.diag(x))
            values = found[0] if name == "eigh" else found[1]
            return 0.1 * values, found[0 if name == "svd" else 1][..., 0]

        return lambda a: module.lax.scan(step, a[0, 0], a)

    return by


def in_scans() -> Iterator[Routine]:
    yield Routine("Kalman filter of 4, 1000 steps", (normal(1000, 2),), filtering)
    for n in (4, 8, 16):
        yield Routine(f"solve of {n}x{n}, 1000 steps", (normal(1000, n),), solving(n))
    for n in (3, 8):
        a = normal(1000, n, n)
        yield Routine(f"eigh of {n}x{n}, 1000 steps", ((a + a.swapaxes(1, 2)).astype(np.float32),), relaxing("eigh"))
        yield Routine(f"svd of {n}x{n}, 1000 steps", (a,), relaxing("svd"))


# ---------------------------------------------------------------- sorting, and sums along an axis


def summed_by(module: Any, count: int, ordered: bool) -> Function:
    """The sums of segments, in the form that all versions have."""
    return lambda x, ids: module.numpy.zeros(count, x.dtype).at[ids].add(x, indices_are_sorted=ordered)


def sparse(module: Any, rows: int) -> Function:
    """A sparse matrix, by its elements, times a vector."""
    return lambda v, i, j, x: module.numpy.zeros(rows, x.dtype).at[i].add(v * x[j], indices_are_sorted=True)


def orders() -> Iterator[Routine]:
    long, rows = normal(1_000_000), normal(1000, 1000)
    for name, array in (("1000000", long), ("1000 rows of 1000", rows), ("10000 rows of 10", normal(10_000, 10))):
        yield Routine(f"sort of {name}", (array,), lambda m: m.numpy.sort, np.sort, lambda x: torch.sort(x))
        yield Routine(f"argsort of {name}", (array,), lambda m: m.numpy.argsort, np.argsort,
                      lambda x: torch.argsort(x))
        yield Routine(f"cumsum of {name}", (array,), lambda m: lambda x: m.numpy.cumsum(x, -1),
                      lambda x: np.cumsum(x, -1), lambda x: torch.cumsum(x, -1))
    yield Routine("cumsum of 1000 columns of 1000", (rows,), lambda m: lambda x: m.numpy.cumsum(x, 0),
                  lambda x: np.cumsum(x, 0), lambda x: torch.cumsum(x, 0))
    for k in (1, 10, 64):
        yield Routine(f"top_k {k} of 1000 rows of 1000", (rows,), lambda m, k=k: lambda x: m.lax.top_k(x, k),
                      None, lambda x, k=k: torch.topk(x, k))
    yield Routine("top_k 10 of 1000000", (long,), lambda m: lambda x: m.lax.top_k(x, 10), None,
                  lambda x: torch.topk(x, 10))


def segments() -> Iterator[Routine]:
    x = normal(1_000_000)
    for count in (10, 1000, 100_000):
        ids = RNG.integers(0, count, x.size).astype(np.int32)
        for name, places in (("", ids), ("in order ", np.sort(ids))):
            yield Routine(f"segment_sum {name}into {count}", (x, places), lambda m, count=count, name=name: summed_by(
                m, count, bool(name)), lambda x, ids, count=count: np.bincount(ids, x, count))
    wide = normal(100_000, 32)
    ids = RNG.integers(0, 1000, len(wide)).astype(np.int32)
    yield Routine("segment_sum of rows of 32", (wide, ids),
                  lambda m: lambda x, ids: m.numpy.zeros((1000, 32), x.dtype).at[ids].add(x))
    matrix = scipy.sparse.random(20_000, 20_000, 0.0025, "csr", np.float32, rng=RNG)
    i, j = (x.astype(np.int32) for x in matrix.tocoo().coords)
    yield Routine("sparse matvec", (matrix.data, i, j, normal(20_000)), lambda m: sparse(m, 20_000),
                  lambda v, i, j, x: matrix @ x)


def routines() -> Iterator[Routine]:
    """All rows."""
    for group in (pooling, transforms, matrices, in_scans, orders, segments):
        yield from group()
