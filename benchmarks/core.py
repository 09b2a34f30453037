"""Compiling and running the basic programs, beside NumPy and JAX where it is installed.

    python -m benchmarks.core
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

import anima
import anima.numpy as jnp
from benchmarks.harness import HAVE_JAX, Case, measure_fresh, print_row, report, work_of

if HAVE_JAX:
    import jax
    import jax.numpy as xnp


def stupid(copy: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A thousand dead multiplications."""
    def stupid_fn(x: Any) -> Any:
        y = copy(x)
        for _ in range(1000):
            x = x * x
        return y

    return stupid_fn


def selu(np_like: Any) -> Callable[[Any], Any]:
    def fun(x: Any, alpha: float = 1.67, lmbda: float = 1.05) -> Any:
        return lmbda * np_like.where(x > 0, x, alpha * np_like.exp(x) - alpha)

    return fun


def softmax(np_like: Any) -> Callable[[Any], Any]:
    def fun(x: Any) -> Any:
        e = np_like.exp(x - x.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    return fun


def layer_norm(np_like: Any) -> Callable[[Any], Any]:
    def fun(x: Any) -> Any:
        centred = x - x.mean(axis=-1, keepdims=True)
        return centred / np_like.sqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5)

    return fun


def mlp_loss(np_like: Any) -> Callable[..., Any]:
    def loss(params: Any, x: Any, y: Any) -> Any:
        for w, b in params[:-1]:
            x = np_like.tanh(x @ w + b)
        w, b = params[-1]
        return ((x @ w + b - y) ** 2).mean()

    return loss


def mlp_data(sizes: tuple[int, ...] = (64, 128, 128, 10), batch: int = 128) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    params = [(rng.normal(size=(m, n)).astype(np.float32) / np.sqrt(m).astype(np.float32), np.zeros(n, np.float32))
              for m, n in itertools.pairwise(sizes)]
    x, y = (rng.normal(size=(batch, n)).astype(np.float32) for n in (sizes[0], sizes[-1]))
    return params, x, y


def both(make: Callable[[Any], Callable[..., Any]], *args: Any, numpy: bool = True,
         wrap: str | None = None) -> dict[str, Callable[[], Any]]:
    """Contestants for one function: jitted by Anima and JAX, and NumPy's."""
    def jitted(module: Any, np_like: Any) -> Callable[[], Any]:
        fun = make(np_like)
        compiled = module.jit(getattr(module, wrap)(fun) if wrap else fun)
        placed = module.device_put(args)
        return lambda: module.block_until_ready(compiled(*placed))

    out = {"anima": jitted(anima, jnp)}
    if HAVE_JAX:
        out["jax"] = jitted(jax, xnp)
    if numpy and wrap is None:
        fun = make(np)
        out["numpy"] = lambda: fun(*args)
    return out


def compiling(make: Callable[[Any], Callable[..., Any]], *args: Any, wrap: str | None = None) -> dict[str, Any]:
    """Contestants that trace, compile and run a function never seen before."""
    def fresh(module: Any, np_like: Any) -> Callable[[], Callable[[], Any]]:
        placed = module.device_put(args)

        def maker() -> Callable[[], Any]:
            fun = make(np_like)
            compiled = module.jit(getattr(module, wrap)(fun) if wrap else fun)
            return lambda: module.block_until_ready(compiled(*placed))

        return maker

    out = {"anima": fresh(anima, jnp)}
    if HAVE_JAX:
        out["jax"] = fresh(jax, xnp)
    return out


def main() -> None:
    rng = np.random.default_rng(0)
    million = rng.normal(size=1_000_000).astype(np.float32)
    rows = rng.normal(size=(4096, 1024)).astype(np.float32)
    square = rng.normal(size=(512, 512)).astype(np.float32)
    small = rng.normal(size=(4,)).astype(np.float32)
    print("Compiling: trace, compile and first run; N x = takes N times as long as Anima")
    for name, contestants in [
        ("stupid_fn (1,000 dead products)", compiling(lambda m: stupid(m.copy), small)),
        ("selu", compiling(selu, million)), ("softmax", compiling(softmax, rows)),
        ("layer norm", compiling(layer_norm, rows)), ("value_and_grad of an MLP",
                                                      compiling(mlp_loss, *mlp_data(), wrap="value_and_grad")),
    ]:
        print_row(name, measure_fresh(contestants), part="compiling")
    limited = [("selu of 1e6 f32", selu, million), ("softmax of 4096x1024 f32", softmax, rows),
               ("layer norm of 4096x1024 f32", layer_norm, rows), ("sum of 4e6 f32", lambda m: lambda x: x.sum(), rows),
               ("column sums of 4096x1024 f32", lambda m: lambda x: x.sum(0), rows),
               ("transpose and add, 4096x1024", lambda m: lambda x: x.T + 1.0, rows),
               ("512x512 product", lambda m: lambda x: x @ x, square)]
    report([
        *(Case(name, both(make, x), work=work_of(make(jnp), (x,))) for name, make, x in limited),
        Case("value_and_grad of an MLP", both(mlp_loss, *mlp_data(), wrap="value_and_grad")),
        Case("dispatch of x + 1, 4 elements", both(lambda m: lambda x: x + 1, small)),
    ], "Running")


if __name__ == "__main__":
    main()
