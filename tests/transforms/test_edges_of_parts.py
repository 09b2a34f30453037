"""Operations on arrays that are cut and have few elements, or none: eager, compiled, and as programs of one device."""

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
from anima.sharding import AxisType, Mesh, NamedSharding

SIZES = {"x": 2, "z": 1, "y": 4}
GROUPS: dict[str, Callable[[Any, Any], Any]] = {
    "sums": lambda a, b: (a.sum(0), a.sum(0, keepdims=True), a.sum(), jnp.max(a, -1, initial=-9), (a > 0).any(0),
                          (a > 0).all(), a.prod(1), a - a.sum(0, keepdims=True)),
    "stretched": lambda a, b: (a + b, a + b[:, :1], a * b[:1], a[:, None, :, None], jnp.broadcast_to(a, (4, *a.shape)),
                               a[:, None].squeeze(1), a + jnp.arange(a.shape[1]), jnp.where(a > b, a, 0)),
    "products": lambda a, b: (a @ b.T, a.T @ b, jnp.einsum("ij,kj->jik", a, b), jnp.einsum("ij,ij->i", a, b),
                              anima.vmap(lambda r, s: r * s.sum())(a, b), jnp.outer(a, b)[:3]),
    "shapes": lambda a, b: (a.T, a.reshape(-1), a.reshape(*a.shape, 1, 1), a.ravel().reshape(a.shape[::-1]),
                            jnp.moveaxis(jnp.stack([a, b], 1), 0, -1), jnp.expand_dims(a, (0, 2))),
    "joined": lambda a, b: (jnp.concatenate([a, b], 0), jnp.concatenate([a, b], 1), jnp.stack([a, b], 1),
                            jnp.repeat(a, 2, 0), jnp.tile(a, (2, 1)), jnp.pad(a, ((1, 2), (0, 1)))),
    "slices": lambda a, b: (a[::-1], a[1:], a[:, ::2], jnp.roll(a, 1, 0), lax.dynamic_slice_in_dim(a, 1, a.shape[0]),
                            lax.dynamic_update_slice(a, b[:1], (0, 0)), jnp.tril(a), jnp.diff(a, axis=1)),
    "indexed": lambda a, b: (jnp.take_along_axis(a, jnp.argsort(b, 1), 1), a.at[:1].set(b[:1]), a.at[:, :1].add(1),
                             a.at[jnp.array([0, 5])].get(mode="fill", fill_value=-1) if len(a) else a,
                             a.at[jnp.array([9, 0])].add(2., mode="drop"),
                             anima.ops.segment_sum(a, jnp.zeros(a.shape[0], int), 2)),
    "in order": lambda a, b: (jnp.sort(a, 0), jnp.sort(a, 1), jnp.argsort(a, 0), jnp.cumsum(a, 0), jnp.cumsum(a, 1),
                              *lax.top_k(a, min(1, a.shape[1])), *lax.sort((a, b), dimension=0)),
    "loops": lambda a, b: (*lax.scan(lambda c, r: (c + r, c * r), jnp.zeros(a.shape[1]), a),
                           lax.fori_loop(0, 3, lambda i, c: c * 2 + b, a), lax.cond(a.sum() > 0, lambda: a, lambda: b),
                           lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + b), (0, a))[1],
                           lax.map(lambda r: r * 2, a)),
    "slopes": lambda a, b: (anima.grad(lambda a: (jnp.sin(a) * b).sum())(a),
                            anima.grad(lambda a: ((a @ b.T) ** 2).sum())(a),
                            anima.grad(lambda a: (jnp.cumsum(a, 0)[::-1] * b).sum())(a),
                            *anima.grad(lambda a, b: jnp.concatenate([a, b * a]).sum(), (0, 1))(a, b))}
SHAPES = ((0, 8), (8, 0), (0, 0), (1, 8), (8, 1), (4, 3), (8, 16))


def cut(rng: np.random.Generator, shape: Sequence[int]) -> P:
    """A spec, along several axes of some dimensions, of size 1 too."""
    left, spec = [str(n) for n in rng.permutation([*SIZES])], []
    for n in shape:
        mine: list[str] = []
        for axis in [*left]:
            if n % math.prod(SIZES[a] for a in (*mine, axis)) == 0 and rng.random() < 0.6:
                mine.append(axis)
                left.remove(axis)
        spec.append(tuple(mine) or None)
    return P(*spec)


@pytest.mark.parametrize(("name", "shape"), [*itertools.product(GROUPS, SHAPES)], ids=str)
def test_parts_of_few_elements(name: str, shape: tuple[int, int], eight_devices: list[anima.Device]) -> None:
    mesh = Mesh(np.array(eight_devices).reshape(*SIZES.values()), tuple(SIZES), axis_types=(AxisType.Auto,) * 3)
    rng = np.random.default_rng([len(name), *shape])
    fun = GROUPS[name]
    x, y = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    a, b = (anima.device_put(v, NamedSharding(mesh, cut(rng, shape))) for v in (x, y))
    wanted = fun(jnp.asarray(x), jnp.asarray(y))
    jitted = anima.jit(fun)
    told = f"{name} of {a.sharding.spec} and {b.sharding.spec}"
    for outs in (fun(a, b), jitted(a, b), jitted.lower(a, b).partitioned(a, b)):
        for k, (out, want) in enumerate(zip(outs, wanted, strict=True)):
            np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-4, err_msg=f"{told}: {k}", strict=True)
            for shard in out.addressable_shards:
                np.testing.assert_array_equal(shard.data, np.asarray(out)[shard.index], strict=True)
