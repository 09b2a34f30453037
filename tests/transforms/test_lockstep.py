"""Programs of several processes, run in one: a thread for each process, which meet where the programs exchange arrays.

Random chains of collectives, between elementwise operations, of small and large arrays of many types, along all axes
of a mesh in any order: the results of each device are those of the same function mapped over devices of one process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import P, lax
from anima.core import processes
from anima.core.stage import eval_numpy
from anima.sharding import AxisType
from anima.transforms import messages

pytestmark = pytest.mark.usefixtures("eight_devices")
SIZES = {"a": 4, "b": 2}
AXES: list[Any] = ["a", "b", ("a", "b"), ("b", "a")]
TYPES = ["float32", "float16", "bfloat16", "int32", "int16", "int8", "uint8", "bool", "complex64"]
GROUPS = [[0, 2], [3, 1]]  # of the axis a
N = 8


class Meeting:
    """In place of `processes.here`, for as many threads as there are processes."""

    def __init__(self, count: int) -> None:
        self.count, self.own = count, threading.local()
        self.barrier = threading.Barrier(count, timeout=20)
        self.given: list[Any] = [None] * count

    @property
    def index(self) -> int:
        return self.own.index

    def exchange(self, kind: str, group: tuple[int, ...], perm: Any) -> Callable[[np.ndarray, np.ndarray], None]:
        def meet(x: np.ndarray, out: np.ndarray) -> None:
            self.given[self.index] = kind, group, x.copy()
            self.barrier.wait()
            found = [self.given[k] for k in group]
            self.barrier.wait()
            assert {(k, g) for k, g, _ in found} == {(kind, group)}, "processes that do not do the same"
            out[...] = combined(kind, [x for *_, x in found], group.index(self.index), perm)

        return meet

    def run(self, program: Any, parts: Sequence[Any]) -> list[list[np.ndarray]]:
        """The results of each process, of its own parts of the arguments."""
        def one(index: int) -> list[np.ndarray]:
            self.own.index = index
            try:
                return eval_numpy(program, parts[index])
            except BaseException:
                self.barrier.abort()
                raise

        with ThreadPoolExecutor(self.count) as pool:
            return list(pool.map(one, range(self.count)))


def combined(kind: str, xs: Sequence[np.ndarray], at: int, perm: Any) -> np.ndarray:
    if kind in ("add", "max", "min"):
        return reduce({"add": np.add, "max": np.maximum, "min": np.minimum}[kind], xs)
    if kind == "gather":
        return np.stack(xs)
    if kind == "scatter":
        return sum(xs)[at]  # type: ignore[no-any-return, index]
    if kind == "all_to_all":
        return np.stack([x[at] for x in xs])
    return next((xs[a] for a, b in perm if b == at), np.zeros_like(xs[0]))


def size(axes: Any) -> int:
    return int(np.prod([SIZES[n] for n in ([axes] if isinstance(axes, str) else axes)]))


def weighed(x: Any, axis: int = 0) -> Any:
    """A sum along an axis that depends on the order of its elements."""
    return jnp.tensordot(jnp.arange(1.0, x.shape[axis] + 1), x, (0, axis)) / x.shape[axis]


def typed(fun: Callable[..., Any], dtype: str) -> Callable[..., Any]:
    """A collective of whole numbers of a type; the result is a float again."""
    def called(x: Any, axes: Any) -> Any:
        whole = jnp.round(8 * jnp.sin(x))
        found = fun(whole > 0 if dtype == "bool" else abs(whole).astype(dtype), axes)
        return found.astype("complex64").real.astype("float32")

    return called


COLLECTIVES: list[Callable[..., Any]] = [
    *(typed(lax.psum, t) for t in TYPES), *(typed(f, t) for f in (lax.pmax, lax.pmin) for t in TYPES[:-1]),
    lax.psum, lax.pmax, lax.pmin, lax.psum, lax.psum, lax.pmean,
    lambda x, axes: lax.pmax(jnp.where(x > 0.6, jnp.nan, x), axes),
    lambda x, axes: lax.pmin(jnp.where(x > 0.6, jnp.nan, x), axes),
    lambda x, axes: lax.psum(x, "a", axis_index_groups=GROUPS),
    lambda x, axes: lax.all_gather(x, "a", axis_index_groups=GROUPS)[1],
    lambda x, axes: weighed(lax.all_gather(x, axes)), lambda x, axes: weighed(lax.all_gather(x, axes, axis=1), 1),
    lambda x, axes: weighed(lax.all_gather(x[None], axes, axis=0, tiled=True)),
    lambda x, axes: lax.psum_scatter(jnp.outer(jnp.arange(1.0, size(axes) + 1), x), axes),
    lambda x, axes: lax.psum_scatter(jnp.outer(x, jnp.arange(1.0, size(axes) + 1)), axes, scatter_dimension=1),
    lambda x, axes: jnp.tile(lax.psum_scatter(x, axes, tiled=True), size(axes)),
    lambda x, axes: weighed(lax.all_to_all(jnp.outer(x, jnp.arange(1.0, size(axes) + 1)), axes, 1, 0)),
    lambda x, axes: lax.all_to_all(x, axes, 0, 0, tiled=True),
    lambda x, axes: lax.all_to_all(x[None], axes, 1, 0, tiled=True).T.reshape(-1),
    lambda x, axes: lax.ppermute(x, "a", [(0, 2), (2, 3), (1, 0)]), lambda x, axes: lax.pshuffle(x, "b", [1, 0]),
    lambda x, axes: x * lax.axis_index(axes).astype("float32"),
    lambda x, axes: lax.fori_loop(0, 3, lambda i, c: jnp.cos(lax.psum(c, axes)), x),
    lambda x, axes: lax.cond(lax.psum(x, ("a", "b")).sum() > 0, lambda v: lax.pmax(v, axes), jnp.sin, x)]
LOCAL: list[Callable[..., Any]] = [lambda x, y: jnp.sin(x) + y, lambda x, y: x * y[::-1], lambda x, y: x - y.sum()]


def chain(seed: int) -> Callable[..., Any]:
    """A function of a vector: a chain of collectives and other operations, each of some result before."""
    rng = np.random.default_rng(seed)
    steps = [(rng.integers(len(COLLECTIVES)), rng.integers(len(AXES)), rng.integers(len(LOCAL)), rng.random(3))
             for _ in range(7)]

    def fun(x: Any) -> Any:
        known = [x]
        for which, axes, local, (one, other, kind) in steps:
            a, b = (known[int(r * len(known))] for r in (one, other))
            known.append(LOCAL[local](a, b) if kind < 0.3 else COLLECTIVES[which](a, AXES[axes]))
        return jnp.nan_to_num(jnp.stack(known), nan=-7.0)

    return fun


def alone(which: int, axes: int) -> Callable[..., Any]:
    return lambda x: jnp.nan_to_num(jnp.stack([x, COLLECTIVES[which](x, AXES[axes])]), nan=-7.0)


def check(fun: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = anima.make_mesh(tuple(SIZES.values()), tuple(SIZES), axis_types=(AxisType.Auto,) * 2)
    mapped = anima.jit(anima.shard_map(fun, mesh=mesh, in_specs=P(tuple(SIZES)), out_specs=P(None, tuple(SIZES)),
                                       check_vma=False))
    x = np.random.default_rng(0).uniform(-1, 1, 8 * N).astype(np.float32)
    expected = np.asarray(mapped(x)).reshape(-1, 8, N)
    exchanging = messages._Exchanging(mesh)
    exchanging.numbers = np.arange(8).reshape(exchanging.sizes)  # as if each device were another process's
    program = exchanging.program(mapped.lower(x).partitioned.jaxpr)
    meeting = Meeting(8)
    monkeypatch.setattr(processes, "here", meeting)
    found = meeting.run(program, [[part] for part in x.reshape(8, N)])
    np.testing.assert_allclose(np.stack([f[0] for f in found], 1), expected, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("which", range(len(COLLECTIVES)))
def test_each_collective(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for axes in range(len(AXES)):
        with monkeypatch.context() as patch:
            check(alone(which, axes), patch)


@pytest.mark.parametrize("small", [0, 4 * N, messages.SMALL])
@pytest.mark.parametrize("seed", range(8))
def test_chains(seed: int, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "SMALL", small)  # bytes of what one message may take together with others
    check(chain(seed), monkeypatch)
