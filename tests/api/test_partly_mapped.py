"""Functions mapped over some axes of a mesh: along the others, of type Explicit, types within and of results tell how
values are cut, as in JAX 0.10.2."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import P, lax
from anima.errors import ShardingTypeError
from anima.sharding import Mesh, NamedSharding

A = (np.arange(64, dtype=np.float32).reshape(8, 8) - 20) / 50


@pytest.fixture(autouse=True)
def mesh(eight_devices: None) -> Iterator[Mesh]:
    mesh = anima.make_mesh((2, 4), ("x", "y"))
    with anima.set_mesh(mesh):
        yield mesh


def mapped(f: Callable[..., Any], ins: Any = P("x"), outs: Any = P("x"), names: Any = frozenset("x")) -> Any:
    return anima.shard_map(f, in_specs=ins, out_specs=outs, axis_names=names)


def rows(a: Any, parts: int = 2) -> list[Any]:
    return np.split(np.asarray(a), parts)


WITHIN: list[tuple[Callable[[Any], Any], P, str, str, Callable[[Any], Any]]] = [
    (lambda v: v * 2, P("x"), "4,8@y", "8@x,8@y", lambda a: a * 2),
    (lambda v: v.sum(1), P("x"), "4", "8@x", lambda a: a.sum(1)),
    (lambda v: v.T, P(None, "x"), "8@y,4", "8@y,8@x", lambda a: a.T),
    (lambda v: lax.psum(v, "x"), P(), "4,8@y", "4,8@y", lambda a: sum(rows(a))),
    (lambda v: lax.pmax(v, "x"), P(), "4,8@y", "4,8@y", lambda a: np.maximum(*rows(a))),
    (lambda v: lax.psum(v.sum(0), "x"), P(), "8@y", "8@y", lambda a: a.sum(0)),
    (lambda v: lax.ppermute(v, "x", [(0, 1), (1, 0)]), P("x"), "4,8@y", "8@x,8@y",
     lambda a: np.concatenate(rows(a)[::-1])),
    (lambda v: lax.all_gather(v, "x", tiled=True), P("x"), "8,8@y", "16@x,8@y", lambda a: np.concatenate([a, a])),
    (lambda v: lax.all_gather(v, "x", axis=1), P("x"), "4,2,8@y", "8@x,2,8@y",
     lambda a: np.concatenate([np.stack(rows(a), 1)] * 2)),
    (lambda v: lax.psum_scatter(v, "x", tiled=True), P("x"), "2,8@y", "4@x,8@y", lambda a: sum(rows(a))),
    (lambda v: lax.all_to_all(v, "x", 0, 0, tiled=True), P("x"), "4,8@y", "8@x,8@y",
     lambda a: np.concatenate([a[:2], a[4:6], a[2:4], a[6:]])),
    (lambda v: lax.scan(lambda c, u: (c + u, u), v[0], v)[1], P("x"), "4,8@y", "8@x,8@y", lambda a: a),
    (lambda v: anima.vmap(lambda r: lax.psum(r, "x"))(v), P(), "4,8@y", "4,8@y", lambda a: sum(rows(a))),
    (lambda v: anima.reshard(v, P(None, None)), P("x"), "4,8", "8@x,8", lambda a: a),
]


@pytest.mark.parametrize("transform", [lambda f: f, anima.jit])
@pytest.mark.parametrize("case", range(len(WITHIN)))
def test_types_within_and_of_results(case: int, transform: Callable[..., Any], mesh: Mesh) -> None:
    f, spec, inside, outside, expected = WITHIN[case]
    seen: list[str] = []

    def told(v: Any) -> Any:
        out = f(v)
        seen.append(str(anima.typeof(out)).partition("{")[0])
        return out

    x = anima.device_put(A, P("x", "y"))
    found = transform(mapped(told, outs=spec))(x)
    assert (seen[0], str(anima.typeof(found))) == (f"float32[{inside}]", f"float32[{outside}]")
    assert found.sharding == NamedSharding(mesh, anima.typeof(found).sharding.spec)
    np.testing.assert_allclose(found, expected(A), rtol=1e-6, atol=1e-6)


def test_a_dimension_that_both_cut() -> None:
    x = anima.device_put(A, P("x", "y"))
    assert str(anima.typeof(mapped(lambda v: v, P(None, "x"), P(None, "x"))(x))) == "float32[8,8@(x,y)]"
    assert str(anima.typeof(mapped(lambda v: v, P(None, "y"), P(None, "y"), {"y"})(x))) == "float32[8@x,8@y]"
    with pytest.raises(ValueError, match="does not divide into the parts along the axes"):
        mapped(lambda v: v)(anima.device_put(A[:4], P("y")))
    with pytest.raises(ShardingTypeError, match="must be unsharded over the dimensions"):
        mapped(lambda v: lax.all_gather(v, "x", axis=1, tiled=True))(x)
    with pytest.raises(ShardingTypeError, match="Contracting dimensions are sharded"):
        mapped(lambda v: v @ v.T)(x)


@pytest.mark.parametrize("transform", [lambda f: f, anima.jit])
def test_gradients_of_a_network_whose_layers_are_cut(transform: Callable[..., Any]) -> None:
    """The batch by `x`, in the function; the layers by `y`, in the types."""
    weights = [np.sin(np.arange(64, dtype=np.float32) + k).reshape(8, 8) for k in range(2)]

    def loss(w1: Any, w2: Any, x: Any) -> Any:
        def of_part(x: Any, w1: Any, w2: Any) -> Any:
            out = jnp.einsum("bh,hd->bd", jnp.tanh(x @ w1), w2, out_sharding=P(None, None))
            return lax.pmean(jnp.sum(out ** 2), "x")

        return mapped(of_part, (P("x"), P(), P()), P())(x, w1, w2)

    given = [anima.device_put(w, s) for w, s in zip(weights, (P(None, "y"), P("y")), strict=True)]
    found = transform(anima.grad(loss, (0, 1)))(*given, anima.device_put(A, P("x")))
    assert [str(anima.typeof(g)) for g in found] == ["float32[8,8@y]", "float32[8@y,8]"]
    plain = anima.grad(lambda w1, w2: jnp.sum((jnp.tanh(A @ w1) @ w2) ** 2) / 2, (0, 1))(*weights)
    for g, e in zip(found, plain, strict=True):
        np.testing.assert_allclose(g, e, rtol=2e-4, atol=1e-4)


def test_one_in_the_other() -> None:
    def over_y(v: Any) -> Any:
        return mapped(lambda t: lax.psum(t * t, "y"), P(None, "y"), P(None, None), {"y"})(v)

    x = anima.device_put(A, P("x", "y"))
    total = sum(c ** 2 for c in np.split(A, 4, 1))
    np.testing.assert_allclose(anima.jit(mapped(over_y))(x), total, rtol=1e-6)
    np.testing.assert_allclose(anima.grad(lambda v: mapped(over_y)(v).sum())(x), 2 * A, rtol=1e-6)


def test_the_program_of_one_device() -> None:
    x = anima.device_put(A, P("x", "y"))
    program = anima.jit(mapped(lambda v: lax.psum(v * 2, "x"), outs=P())).lower(x).partitioned
    assert [(c.name, c.axes) for c in program.collectives] == [("psum", ("x",))]
    assert program.out_specs == (P(None, "y"),)
    np.testing.assert_allclose(program(x), sum(rows(A * 2)), rtol=1e-6)
