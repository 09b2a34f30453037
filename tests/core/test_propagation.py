"""Propagation of shardings: what must hold of every value of every program, and chains of operations whose results are
cut in one way that is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import P, lax
from anima.core.partition import axes_of
from anima.core.propagation import Propagation, propagate
from anima.core.stage import eval_jaxpr
from anima.sharding import AxisType, Mesh, NamedSharding
from anima.transforms.partition import partition

Axes = tuple[Any, ...]


def mesh_of(devices: list[anima.Device], **sizes: int) -> Mesh:
    count = math.prod(sizes.values())
    return Mesh(np.array(devices[:count]).reshape(*sizes.values()), tuple(sizes),
                axis_types=(AxisType.Auto,) * len(sizes))


def sizes_of(rng: np.random.Generator, rank: int) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.choice([1, 2, 3, 4, 6, 8, 12], rank))


# Each step makes an array of one or two others.
def _reshaped(rng: np.random.Generator, x: Any) -> Any:
    total = x.size
    first = int(rng.choice([n for n in range(1, total + 1) if total % n == 0]))
    return x.reshape(first, total // first)


def _contracted(rng: np.random.Generator, x: Any, y: Any) -> Any:
    for d, n in enumerate(x.shape):
        if n in y.shape:
            return jnp.tensordot(x, y, ((d,), (y.shape.index(n),)))
    return x


ONE: list[Callable[..., Any]] = [
    lambda rng, x: jnp.sin(x), lambda rng, x: jnp.transpose(x, rng.permutation(x.ndim)), _reshaped,
    lambda rng, x: jnp.sum(x, int(rng.integers(x.ndim))) if x.ndim > 1 else x,
    lambda rng, x: jnp.broadcast_to(x, (4, *x.shape)),
    lambda rng, x: jnp.pad(x, [(0, int(rng.integers(3)))] * x.ndim), lambda rng, x: x[: max(1, x.shape[0] - 1)],
    lambda rng, x: jnp.concatenate([x, x[:1]]), lambda rng, x: jnp.flip(x, 0), lambda rng, x: jnp.cumsum(x, x.ndim - 1),
    lambda rng, x: jnp.sort(x, 0), lambda rng, x: x[::2], lambda rng, x: jnp.repeat(x, 3, 0),
    lambda rng, x: jnp.where(x > 0, x, 1), lambda rng, x: lax.scan(lambda c, r: (c + r.sum(), r * c), 0.0, x)[1],
    lambda rng, x: anima.jit(jnp.tanh)(x), lambda rng, x: lax.cond(x.sum() > 0, lambda x: x, lambda x: -x, x)]
TWO: list[Callable[..., Any]] = [
    lambda rng, x, y: x + y if x.shape == y.shape else x, lambda rng, x, y: x * y[:1].sum(), _contracted,
    lambda rng, x, y: jnp.outer(x, y) if x.size * y.size < 5000 else x,
    lambda rng, x, y: jnp.concatenate([x, y]) if x.shape[1:] == y.shape[1:] else y]


@pytest.mark.parametrize("seed", range(40))
def test_what_holds_of_every_value(seed: int, eight_devices: list[anima.Device]) -> None:
    """Its parts are of one size; no axis cuts it twice; what was given stays; and another round changes nothing."""
    rng = np.random.default_rng(seed)
    mesh = mesh_of(eight_devices, **[{"x": 4, "y": 2}, {"x": 8}, {"x": 2, "y": 2, "z": 2}, {"x": 3}][seed % 4])
    shapes = [sizes_of(rng, int(rng.integers(1, 4))) for _ in range(3)]

    def program(*given: Any, seed: int = seed) -> list[Any]:
        rng, known = np.random.default_rng(seed), list(given)
        for _ in range(6):
            x, y = (known[k] for k in rng.integers(0, len(known), 2))
            step = rng.integers(len(ONE) + len(TWO))
            out = ONE[step](rng, x) if step < len(ONE) else TWO[step - len(ONE)](rng, x, y)
            known.append(out if out.ndim and out.size < 10_000 else x)
        return known

    closed = anima.make_jaxpr(program)(*(jnp.ones(s) for s in shapes))
    given = []
    for shape in shapes:
        left, spec = [*mesh.axis_names], []
        for n in shape:
            fits = [a for a in left if n % mesh.shape[a] == 0]
            spec.append(left.pop(left.index(rng.choice(fits))) if fits and rng.random() < 0.7 else None)
        given.append(NamedSharding(mesh, P(*spec)) if rng.random() < 0.8 else None)
    graph = Propagation(mesh)
    args = [graph.value(a, s) for a, s in zip(closed.in_avals, given, strict=True)]
    env = graph.values(closed.jaxpr, closed.consts, args)
    graph.run()
    values = [*env.values(), *(v for link in graph.links for v, _ in link.terms)]
    before = [[*v.axes] for v in values]
    for value in values:
        used = [name for axes in value.axes for name in axes]
        assert len(used) == len(set(used))
        for n, axes in zip(value.shape, value.axes, strict=True):
            assert n % math.prod(mesh.shape[name] for name in axes) == 0, (value.shape, value.axes)
    for value, sharding in zip(args, given, strict=True):
        if sharding is not None:
            assert value.axes == [axes_of(p) for p in sharding.spec.padded(len(value.shape))]
    graph.run()
    assert [v.axes for v in values] == before


# Operations, and what they do with the axes of each dimension; the last dimension is never cut.
CHAIN: dict[str, tuple[Callable[[Any], Any], Callable[[list[Axes]], list[Axes]]]] = {
    "elementwise": (lambda x: jnp.exp(x) * 2 + 1, lambda s: s),
    "select": (lambda x: jnp.where(x > 0, x, 0), lambda s: s),
    "turned": (lambda x: jnp.moveaxis(x, 0, -2) if x.ndim > 2 else x,
               lambda s: [*s[1:-1], s[0], s[-1]] if len(s) > 2 else s),
    "new": (lambda x: jnp.broadcast_to(x[None], (3, *x.shape)) if x.ndim < 5 else x,
            lambda s: [(), *s] if len(s) < 5 else s),
    "added": (lambda x: x.sum(0) if x.ndim > 2 else x, lambda s: s[1:] if len(s) > 2 else s),
    "kept": (lambda x: jnp.max(x, -1, keepdims=True) + x, lambda s: s),
    "product": (lambda x: x @ jnp.ones((x.shape[-1], 5)), lambda s: s),
    "sums": (lambda x: jnp.cumsum(x, -1), lambda s: s),
    "ends": (lambda x: jnp.concatenate([x, x], -1)[..., 1:], lambda s: s),
    "function": (anima.jit(lambda x: jnp.tanh(x)), lambda s: s),
    "softmax": (lambda x: anima.nn.softmax(x, -1), lambda s: s),
    "loop": (lambda x: lax.fori_loop(0, 3, lambda i, x: x * 2, x), lambda s: s),
    "steps": (lambda x: lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] + 1), (0, x))[1], lambda s: s),
    "branch": (lambda x: lax.cond(True, lambda x: x + 1, lambda x: x, x), lambda s: s),
    "scan": (lambda x: lax.scan(lambda c, _: (c * 2, None), x, None, length=2)[0], lambda s: s),
    "with a row": (lambda x: x + jnp.arange(x.shape[-1] * 1.0), lambda s: s)}


@pytest.mark.parametrize("seed", range(30))
def test_chains_are_cut_as_their_argument(seed: int, eight_devices: list[anima.Device]) -> None:
    """Forwards and, where the result is what is asked for, backwards; compiled as one operation after the other."""
    rng = np.random.default_rng(seed)
    mesh = mesh_of(eight_devices, x=4, y=2)
    first: list[Axes] = [*[[("x",), ("y",)], [("y",), ("x",)], [("x", "y"), ()], [(), ("y",)]][seed % 4], ()]
    names = [str(n) for n in rng.choice([*CHAIN], 4)]

    def fun(x: Any) -> Any:
        for name in names:
            x = CHAIN[name][0](x)
        return x

    spec = first
    for name in names:
        spec = CHAIN[name][1](spec)
    x = np.arange(8 * 8 * 3, dtype=np.float32).reshape(8, 8, 3) / 100
    given = anima.device_put(x, NamedSharding(mesh, P(*(a or None for a in first))))
    for out in (anima.jit(fun)(given), fun(given)):
        assert [axes_of(p) for p in out.sharding.spec.padded(out.ndim)] == spec, names
        np.testing.assert_allclose(out, fun(jnp.asarray(x)), rtol=1e-5)
    (found,) = propagate(anima.make_jaxpr(fun)(x), mesh, [given.sharding])
    assert [axes_of(p) for p in found.padded(len(spec))] == spec, names


CONFLICTS: list[tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]] = [
    (("x", None), (None, "x"), ("x", None)), ((None, "x"), ("x", None), (None, "x")),
    (("x", None), (None, ("x", "y")), (None, ("x", "y"))), ((None, ("x", "y")), ("x", None), (None, ("x", "y"))),
    (("y", None), (None, ("y", "x")), (None, ("y", "x"))), (("x", None), (None, "y"), ("x", "y")),
    ((("x", "y"), None), (None, "y"), (("x", "y"), None)), ((None, "y"), (("x", "y"), None), (("x", "y"), None)),
    ((None, None), ("y", "x"), ("y", "x")), (("x", None), ("x", "y"), ("x", "y"))]


@pytest.mark.parametrize("one, other, wanted", CONFLICTS, ids=str)
def test_which_of_two_factors_gets_an_axis(one: Any, other: Any, wanted: Any,
                                           eight_devices: list[anima.Device]) -> None:
    """That with more parts; of equal ones that of the first operand."""
    mesh = mesh_of(eight_devices, x=4, y=2)
    a, b = (anima.device_put(np.ones((8, 8), np.float32), NamedSharding(mesh, P(*s))) for s in (one, other))
    for fun in (lambda a, b: a + b, lambda a, b: jnp.where(a > 0, a, b), lambda a, b: jnp.sin(jnp.exp(a) - b)):
        for out in (anima.jit(fun)(a, b), fun(a, b)):
            assert tuple(out.sharding.spec.padded(2)) == wanted


def _constrained(*spec: Any) -> Callable[[Any], Any]:
    return lambda x: lax.with_sharding_constraint(x * 2, P(*spec))


X, XY, ROWS = P("x"), P("x", "y"), P(("x", "y"))
# A program that is mapped over x, of a mesh of 4 by 2, with its in_specs and out_specs; how its arguments of 8 by 4
# (the second: 4 by 6) are cut; how JAX 0.10.2 cuts its results, and the gradient of the first argument.
MAPPED: dict[str, tuple[Callable[..., Any], Any, Any, Any, Any, Any]] = {
    "columns": (jnp.sin, X, X, [XY], [XY], XY),
    "rows": (jnp.sin, X, X, [ROWS], [ROWS], ROWS),
    "the other way": (jnp.sin, X, X, [P("y", "x")], [X], X),
    "columns alone": (jnp.sin, X, X, [P(None, "y")], [XY], XY),
    "unplaced": (lambda x: x + lax.axis_index("x"), X, X, [None], [X], X),
    "sum": (lambda x: lax.psum(x, "x"), X, P(), [XY], [P(None, "y")], XY),
    "sum of rows": (lambda x: lax.psum(x, "x"), X, P(), [ROWS], [P("y")], ROWS),
    "a dimension less": (lambda x: lax.psum(x.sum(0), "x"), X, P(), [XY], [P("y")], XY),
    "product": (lambda x, w: x @ w, (X, P()), X, [X, P(None, "y")], [XY], X),
    "contracted": (lambda x, w: x @ w, (X, P()), X, [XY, P("y")], [X], XY),
    "unused": (lambda x, w: x * 2, (X, P()), X, [XY, P("y")], [XY], XY),
    "gather": (lambda x: lax.all_gather(x, "x", axis=1), X, X, [XY], [P("x", None, "y")], XY),
    "scatter": (lambda x: lax.psum_scatter(x, "x", scatter_dimension=1, tiled=True), X, P("x", None), [ROWS], [ROWS],
                ROWS),
    "exchange": (lambda x: lax.all_to_all(x, "x", 1, 0, tiled=True), X, P(None, "x"), [XY], [P(None, "x")], X),
    "permutation": (lambda x: lax.ppermute(x, "x", [(0, 1), (1, 0)]), X, X, [XY], [XY], XY),
    "loop": (lambda x: lax.scan(lambda c, _: (jnp.sin(c), c.sum(1)), x, None, 3), X, (X, P(None, "x")), [XY],
             [XY, P(None, "x")], XY),
    "constraint": (_constrained(None, "y"), X, X, [X], [XY], XY),
    "constraint of rows": (_constrained("y"), X, X, [X], [ROWS], ROWS),
    "transposed": (lambda x: x.T, X, P(None, "x"), [XY], [P("y", "x")], XY),
    "reshaped": (lambda x: x.reshape(-1), X, X, [XY], [X], X),
    "two": (lambda x: (x, lax.pmean(x, "x")), X, (X, P()), [XY], [XY, P(None, "y")], XY),
}


@pytest.mark.parametrize("name", MAPPED)
def test_functions_mapped_over_some_axes_are_cut_along_the_others(name: str,
                                                                  eight_devices: list[anima.Device]) -> None:
    fun, in_specs, out_specs, specs, wanted, slope = MAPPED[name]
    mesh = mesh_of(eight_devices, x=4, y=2)
    mapped = anima.shard_map(fun, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names={"x"})
    values = [np.arange(32, dtype=np.float32).reshape(8, 4) / 8, np.ones((4, 6), np.float32)]
    args = [x if s is None else anima.device_put(x, NamedSharding(mesh, s))
            for x, s in zip(values, specs, strict=False)]

    def loss(*xs: Any) -> Any:
        return sum(jnp.sum(jnp.sin(y)) for y in anima.tree.leaves(mapped(*xs)))

    for call, cuts in [(mapped, wanted), (anima.jit(mapped), wanted), (anima.jit(anima.grad(loss)), [slope])]:
        outs = anima.tree.leaves(call(*args))
        assert [y.sharding.spec for y in outs] == cuts
        for y, known in zip(outs, anima.tree.leaves(call(*values[:len(args)])), strict=True):
            np.testing.assert_allclose(y, known, rtol=1e-6)
        closed = anima.make_jaxpr(call)(*args)
        each = partition(closed, mesh, [s or P() for s in specs], cuts)
        whole = anima.shard_map(lambda *xs, each=each: eval_jaxpr(each.jaxpr, each.consts, *xs), mesh=mesh,
                                in_specs=tuple(s or P() for s in specs), out_specs=cuts, check_vma=False)(*args)
        for y, part in zip(outs, whole, strict=True):
            np.testing.assert_allclose(part, y, rtol=1e-5)
