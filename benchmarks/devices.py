"""Programs on 8 devices of one machine: dispatch, collectives, a product, and a training step, beside JAX's.

    ANIMA_NUM_CPU_DEVICES=8 XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m benchmarks.devices

Sizes are those of whole arrays; each device has an eighth. "one device" is the same work without devices.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

COUNT = 8
os.environ.setdefault("ANIMA_NUM_CPU_DEVICES", str(COUNT))
os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count={COUNT}")

import anima  # noqa: E402 - how many devices there are is known from here on
import anima.numpy as jnp  # noqa: E402
from benchmarks.harness import HAVE_JAX, Case, report  # noqa: E402

if HAVE_JAX:
    import jax
    import jax.numpy as xnp

Runs = dict[str, Callable[[], Any]]


class On:
    """The work in one library: `m` is it, `np_like` its NumPy."""

    def __init__(self, m: Any, np_like: Any):
        self.m, self.np = m, np_like
        self.mesh = m.make_mesh((COUNT,), ("x",), axis_types=(m.sharding.AxisType.Auto,))
        self.P = m.sharding.PartitionSpec

    def split(self, shape: tuple[int, ...], seed: int = 0) -> Any:
        """Random numbers, cut along the first axis."""
        values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
        return self.m.device_put(values, self.m.NamedSharding(self.mesh, self.P("x")))

    def whole(self, shape: tuple[int, ...], seed: int = 1) -> Any:
        """Random numbers that every device has."""
        values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
        return self.m.device_put(values, self.m.NamedSharding(self.mesh, self.P()))

    def mapped(self, f: Callable[..., Any], *ins: Any, outs: Any = "x", **options: Any) -> Any:
        """`f` on parts, jitted; specs are names of an axis or None."""
        spec = {"x": self.P("x"), None: self.P()}
        in_specs = tuple(spec[i] if isinstance(i, str) or i is None else i for i in ins)
        out_specs = spec[outs] if isinstance(outs, str) or outs is None else outs
        return self.m.jit(self.m.shard_map(f, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, **options))

    def ready(self, f: Callable[..., Any], *args: Any) -> Callable[[], Any]:
        """A call of which the results are there when it returns."""
        return lambda: self.m.block_until_ready(f(*args))

    def dispatch(self) -> Runs:
        small, many = self.split((COUNT, 4)), [self.split((COUNT, 4), k) for k in range(20)]
        return {"call of a pmapped function": self.ready(self.m.pmap(lambda x: x + 1), small),
                "call of a shard_mapped function": self.ready(self.mapped(lambda x: x + 1, "x"), small),
                "call of a jitted function, cut array": self.ready(self.m.jit(lambda x: x + 1), small),
                "call with 20 cut arrays": self.ready(
                    self.mapped(lambda *xs: [x + 1 for x in xs], *["x"] * 20), *many),
                "psum of a number by pmap": self.ready(
                    self.m.pmap(lambda x: self.m.lax.psum(x, "i"), "i"), self.split((COUNT,)))}

    def collectives(self) -> Runs:
        lax, runs = self.m.lax, {}
        for text, size in (("4 KB", 2**10), ("1 MB", 2**18), ("64 MB", 2**24)):
            x = self.split((COUNT, size // COUNT))
            runs[f"psum of {text}"] = self.ready(self.mapped(lambda a: lax.psum(a, "x"), "x", outs=None), x)
            if size < 2**24:
                runs[f"all_gather of {text}"] = self.ready(
                    self.mapped(lambda a: lax.all_gather(a, "x", tiled=True), "x", outs=None, check_vma=False), x)
        x = self.split((COUNT, 2**21))
        square = self.split((2048, 2048))
        runs["psum_scatter of 64 MB"] = self.ready(
            self.mapped(lambda a: lax.psum_scatter(a[0], "x", tiled=True), "x"), x)
        runs["ppermute of 16 MB"] = self.ready(
            self.mapped(lambda a: lax.ppermute(a, "x", [(k, (k + 1) % COUNT) for k in range(COUNT)]), "x"), square)
        runs["all_to_all of 16 MB"] = self.ready(
            self.mapped(lambda a: lax.all_to_all(a, "x", 1, 0, tiled=True), "x", outs=self.P(None, "x")), square)
        return runs

    def products(self) -> Runs:
        a, b, c = self.split((1024, 1024)), self.whole((1024, 1024)), self.split((1024, 1024), 2)
        return {"matmul, rows cut": self.ready(self.mapped(lambda a, b: a @ b, "x", None), a, b),
                "matmul, sums cut (psum)": self.ready(
                    self.mapped(lambda a, b: self.m.lax.psum(a.T @ b, "x"), "x", "x", outs=None), a, c),
                "matmul, jitted, cut arrays": self.ready(self.m.jit(lambda a, b: a @ b), a, b)}

    def training(self) -> Runs:
        """A step of gradient descent of a perceptron, its batch cut: each device's gradients are added up."""
        sizes, lax, np_like = [64, 256, 256, 10], self.m.lax, self.np
        rng = np.random.default_rng(3)
        weights = [(rng.normal(size=(n, k)) / np.sqrt(n)).astype(np.float32)
                   for n, k in pairwise(sizes)]
        labels = np.eye(10, dtype=np.float32)[rng.integers(0, 10, 1024)]

        def loss(ws: Any, x: Any, y: Any) -> Any:
            for w in ws[:-1]:
                x = np_like.tanh(x @ w)
            return -np_like.sum(self.m.nn.log_softmax(x @ ws[-1]) * y) / len(labels)

        def step(ws: Any, x: Any, y: Any, add: Callable[[Any], Any]) -> Any:
            return [w - 0.1 * add(g) for w, g in zip(ws, self.m.grad(loss)(ws, x, y), strict=True)]

        parts = self.mapped(partial(step, add=lambda g: g), None, "x", "x", outs=None)  # types add gradients up
        elements = self.m.pmap(partial(step, add=lambda g: lax.psum(g, "i")), "i", in_axes=(None, 0, 0), out_axes=None)
        one = self.m.jit(partial(step, add=lambda g: g))
        placed = [self.m.device_put(w, self.m.NamedSharding(self.mesh, self.P())) for w in weights]
        x = np.random.default_rng(0).normal(size=(1024, 64)).astype(np.float32)
        cut = self.m.NamedSharding(self.mesh, self.P("x"))
        xs, ys = self.m.device_put(x, cut), self.m.device_put(labels, cut)
        whole = self.m.NamedSharding(self.mesh, self.P())
        jitted = self.m.jit(partial(step, add=lambda g: g), in_shardings=(whole, cut, cut), out_shardings=whole)
        by_element = [a.reshape(COUNT, -1, a.shape[1]) for a in (x, labels)]
        return {"training step, shard_map": self.ready(parts, placed, xs, ys),
                "training step, jit with shardings": self.ready(jitted, placed, xs, ys),
                "training step, pmap": self.ready(elements, weights, *map(self.np.asarray, by_element)),
                "training step, one device": self.ready(one, list(map(self.np.asarray, weights)),
                                                        *map(self.np.asarray, (x, labels)))}

    def runs(self) -> Runs:
        return {**self.dispatch(), **self.collectives(), **self.products(), **self.training()}


def cases() -> list[Case]:
    contestants = {"anima": (anima, jnp)}
    if HAVE_JAX:
        contestants["jax"] = (jax, xnp)
    runs = {who: On(*modules).runs() for who, modules in contestants.items()}
    return [Case(name, {who: found[name] for who, found in runs.items()}) for name in runs["anima"]]


def main() -> None:
    report(cases(), "Devices")


if __name__ == "__main__":
    main()
