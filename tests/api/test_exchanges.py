"""Collectives against a plain model of devices that hold arrays: on meshes with axes of size 1, along several axes in
any order, of empty arrays and single elements, mapped over devices and by vmap; and their adjoints."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import P, lax
from anima.sharding import Mesh

pytestmark = pytest.mark.usefixtures("eight_devices")
MESHES = ({"x": 2, "y": 1, "z": 3}, {"x": 4, "y": 2}, {"x": 1})
SHAPES = ((2,), (), (0, 3), (1,), (2, 1))
Held = list[np.ndarray]  # what each of a group of devices holds


def groups(sizes: dict[str, int], axes: Sequence[str]) -> list[list[int]]:
    """The numbers of the devices that exchange along these axes, in the order of the axes."""
    numbers = np.arange(math.prod(sizes.values())).reshape(tuple(sizes.values()))
    names = [*sizes]
    rest = [k for k, n in enumerate(names) if n not in axes]
    return numbers.transpose(*rest, *map(names.index, axes)).reshape(-1, math.prod(sizes[a] for a in axes)).tolist()


def in_groups(model: Callable[[Held], Held], held: np.ndarray, numbers: list[list[int]]) -> np.ndarray:
    out: dict[int, np.ndarray] = {}
    for group in numbers:
        out.update(zip(group, model([held[k] for k in group]), strict=True))
    return np.stack([out[k] for k in range(len(held))])


def all_alike(made: np.ndarray, count: int) -> Held:
    return [made] * count


def exchanges(shape: tuple[int, ...], axes: tuple[str, ...], size: int
              ) -> list[tuple[Callable[[Any], Any], Callable[[Held], Held]]]:
    """Functions of a part, and what they do to the parts of a group; those that are linear first."""
    pairs = [(k, (k + 1) % size) for k in range(size)][: max(1, size - 1)]
    found: list[tuple[Callable[[Any], Any], Callable[[Held], Held]]] = [
        (lambda a: lax.psum(a, axes), lambda h: all_alike(sum(h), len(h))),
        (lambda a: lax.pmean(a, axes), lambda h: all_alike(sum(h) / np.float32(len(h)), len(h))),
        (lambda a: lax.ppermute(a, axes, pairs), lambda h: [
            h[{b: a for a, b in pairs}[k]] if k in [b for _, b in pairs] else 0 * h[k] for k in range(len(h))]),
        (lambda a: lax.pshuffle(a, axes, [*range(size)][::-1]), lambda h: h[::-1]),
        (lambda a: lax.pbroadcast(a, axes, size - 1), lambda h: all_alike(h[-1], len(h))),
        (lambda a: a * lax.axis_index(axes), lambda h: [np.float32(k) * a for k, a in enumerate(h)])]
    for d in range(len(shape) + 1):
        found.append((lambda a, d=d: lax.all_gather(a, axes, axis=d), lambda h, d=d: all_alike(np.stack(h, d), len(h))))
        found.append((lambda a, d=d: lax.psum_scatter(jnp.stack([(k + 1) * a for k in range(size)], d), axes,
                                                      scatter_dimension=d),
                      lambda h, d=d: [(k + 1) * sum(h) for k in range(len(h))]))
        found.extend((
            lambda a, d=d, e=e: lax.all_to_all(jnp.stack([(k + 1) * a for k in range(size)], d), axes, d, e),
            lambda h, e=e: [(k + 1) * np.stack(h, e) for k in range(len(h))]) for e in {0, d})
    for d in range(len(shape)):
        found.append((lambda a, d=d: lax.all_gather(a, axes, axis=d, tiled=True),
                      lambda h, d=d: all_alike(np.concatenate(h, d), len(h))))
        found.append((lambda a, d=d: lax.psum_scatter(jnp.repeat(a, size, d), axes, scatter_dimension=d, tiled=True),
                      lambda h, d=d: np.split(np.repeat(sum(h), len(h), d), len(h), d)))
        found.extend((
            lambda a, d=d, e=e: lax.all_to_all(jnp.repeat(a, size, d), axes, d, e, tiled=True),
            lambda h, d=d, e=e: [np.concatenate([np.split(np.repeat(a, len(h), d), len(h), d)[k] for a in h], e)
                                 for k in range(len(h))]) for e in range(len(shape)))
    return found


EXTREMES: list[tuple[Callable[..., Any], Callable[[Held], Held]]] = [
    (lambda a, axes: lax.pmax(a, axes), lambda h: all_alike(np.max(h, 0), len(h))),
    (lambda a, axes: lax.pmin(a, axes), lambda h: all_alike(np.min(h, 0), len(h)))]
ALONG = [(k, axes) for k, sizes in enumerate(MESHES) for n in range(1, len(sizes) + 1)
         for axes in itertools.permutations(sizes, n)]
CASES = [(*along, SHAPES[k % len(SHAPES)]) for k, along in enumerate(ALONG)]


def on_devices(fun: Callable[[Any], Any], sizes: dict[str, int]) -> Callable[[Any], Any]:
    """A function of parts, of a stack of them, mapped over a mesh."""
    count = math.prod(sizes.values())
    mesh = Mesh(np.array(anima.devices()[:count]).reshape(*sizes.values()), tuple(sizes))
    everywhere = P(tuple(sizes))
    return anima.shard_map(lambda a: [o[None] for o in fun(a[0])], mesh=mesh, in_specs=everywhere, out_specs=everywhere,
                           check_vma=False)


def mapped(fun: Callable[[Any], Any], sizes: dict[str, int]) -> Callable[[Any], Any]:
    """The same by vmap, axis by axis."""
    for name in reversed(sizes):
        fun = anima.vmap(fun, axis_name=name)
    shape = tuple(sizes.values())
    return lambda a: [o.reshape(math.prod(shape), *o.shape[len(shape):]) for o in fun(a.reshape(*shape, *a.shape[1:]))]


@pytest.mark.parametrize(("number", "axes", "shape"), CASES, ids=str)
def test_exchanges(number: int, axes: tuple[str, ...], shape: tuple[int, ...]) -> None:
    sizes = MESHES[number]
    count, size = math.prod(sizes.values()), math.prod(sizes[a] for a in axes)
    held = np.random.default_rng(0).integers(-4, 5, (count, *shape)).astype(np.float32)
    linear = exchanges(shape, axes, size)
    every = [*linear, *((lambda a, f=f: f(a, axes), m) for f, m in EXTREMES)]
    wanted = [in_groups(model, held, groups(sizes, axes)) for _, model in every]

    def fun(a: Any) -> list[Any]:
        return [f(a) for f, _ in every]

    for way in (on_devices, mapped):
        whole = way(fun, sizes)
        for out, want in zip(anima.jit(whole)(held), wanted, strict=True):
            np.testing.assert_allclose(out, want, rtol=1e-6, strict=True)
        outs, pull = anima.vjp(way(lambda a: [f(a) for f, _ in linear], sizes), held)
        cts = [np.random.default_rng(k).integers(-2, 3, out.shape).astype(np.float32) for k, out in enumerate(outs)]
        (back,) = pull(cts)  # the adjoint of linear functions
        total = sum(np.vdot(ct, want) for ct, want in zip(cts, wanted, strict=False))
        np.testing.assert_allclose(np.vdot(back, held), total, rtol=1e-4, atol=1e-2)
