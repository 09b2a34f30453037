"""Random numbers, beside JAX (both of its streams) and NumPy.

    python -m benchmarks.random
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import anima
from benchmarks.harness import HAVE_JAX, Case, report

if HAVE_JAX:
    import jax

Draw = Callable[[Any, Any], Any]  # (module of random functions, key) -> numbers


def contestants(draw: Draw, numpy: Callable[[], Any] | None = None) -> dict[str, Callable[[], Any]]:
    """One draw by each: in both of JAX's streams ("new" is its default, "old" the one that Anima's default is)."""
    def jitted(module: Any, partitionable: bool) -> Callable[[], Any]:
        with module.threefry_partitionable(partitionable):
            compiled = module.jit(lambda key: draw(module.random, key))
            key = module.random.key(0)
            module.block_until_ready(compiled(key))

        def run() -> Any:
            with module.threefry_partitionable(partitionable):
                return module.block_until_ready(compiled(key))

        return run

    out = {"anima": jitted(anima, False), "anima new": jitted(anima, True)}
    if HAVE_JAX:
        out["jax old"], out["jax new"] = jitted(jax, False), jitted(jax, True)
    if numpy is not None:
        out["numpy"] = numpy
    return out


def main() -> None:
    rng = np.random.default_rng(0)
    million, rows = 1_000_000, (100_000, 100)
    logits = rng.normal(size=rows).astype(np.float32)
    numbers = rng.normal(size=100_000).astype(np.float32)

    def categorical() -> Any:
        return (rng.gumbel(size=rows) + logits).argmax(-1)

    report([
        Case("uniform of 1e6 f32", contestants(lambda r, k: r.uniform(k, (million,)),
                                               lambda: rng.random(million, np.float32))),
        Case("normal of 1e6 f32", contestants(lambda r, k: r.normal(k, (million,)),
                                              lambda: rng.standard_normal(million, np.float32))),
        Case("bits of 1e6 u32", contestants(lambda r, k: r.bits(k, (million,)),
                                            lambda: rng.integers(0, 2**32, million, np.uint32))),
        Case("sum of 1e6 normals", contestants(lambda r, k: r.normal(k, (million,)).sum(),
                                               lambda: rng.standard_normal(million, np.float32).sum())),
        Case("permutation of 1e5", contestants(lambda r, k: r.permutation(k, 100_000),
                                               lambda: rng.permutation(100_000))),
        Case("permutation of 1e5 f32", contestants(lambda r, k: r.permutation(k, numbers),
                                                   lambda: rng.permutation(numbers))),
        Case("categorical of 1e5x100", contestants(lambda r, k: r.categorical(k, logits), categorical), rounds=5),
        Case("gamma of 1e5 f32", contestants(lambda r, k: r.gamma(k, 2.5, (100_000,)),
                                             lambda: rng.standard_gamma(2.5, 100_000, np.float32)), rounds=5),
        Case("split into 1e5 keys", contestants(lambda r, k: r.key_data(r.split(k, 100_000)))),
    ], "Random numbers")


if __name__ == "__main__":
    main()
