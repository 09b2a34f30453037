"""Meshes with axes of both types: types tell along `e`, propagation cuts along `a`; results lie as in JAX 0.10.2.

A type closes the dimensions that it cuts: along `a` they are cut only within the parts of `e`. The others are open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import NamedSharding, P, lax
from anima.sharding import AxisType, Mesh, auto_axes, explicit_axes, reshard

EA, AE = (("e", "a"),), (("a", "e"),)


@pytest.fixture
def mesh(eight_devices: None) -> Iterator[Mesh]:
    mesh = anima.make_mesh((2, 4), ("e", "a"), axis_types=(AxisType.Explicit, AxisType.Auto))
    with anima.set_mesh(mesh):
        yield mesh


def put(mesh: Mesh, spec: tuple[Any, ...]) -> Any:
    return anima.device_put(np.arange(64.0, dtype="f").reshape(8, 8), NamedSharding(mesh, P(*spec)))


def check(found: Any, type_: str, spec: tuple[Any, ...], value: Any) -> None:
    assert str(anima.typeof(found)) == type_
    assert found.sharding.is_equivalent_to(NamedSharding(found.sharding.mesh, P(*spec)), found.ndim), found.sharding
    np.testing.assert_allclose(found, value, rtol=1e-6)


ONE: list[tuple[Callable[[Any], Any], tuple[Any, ...], str, tuple[Any, ...]]] = [
    (jnp.negative, (), "float32[8,8]", ()), (jnp.negative, ("a", "e"), "float32[8,8@e]", ("a", "e")),
    (jnp.negative, EA, "float32[8@e,8]", EA), (jnp.negative, AE, "float32[8@e,8]", ("e",)),
    (lambda x: x.T, AE, "float32[8,8@e]", (None, "e")), (lambda x: x[:4], AE, "float32[4@e,8]", ("e",)),
    (lambda x: x.sum(1), ("e", "a"), "float32[8@e]", ("e",)), (lambda x: x.sum(1), EA, "float32[8@e]", ("e",)),
    (lambda x: x.sum(0), ("e", "a"), "float32[8]", ("a",)), (lambda x: x.reshape(64), EA, "float32[64@e]", ("e",)),
    (lambda x: jnp.cumsum(x, 1), AE, "float32[8@e,8]", ("e",)),
    (lambda x: jnp.einsum("ij,jk->ik", x, x, out_sharding=P("e")), ("e", "a"), "float32[8@e,8]", ("e", "a")),
    (lambda x: auto_axes(lambda y: y @ y.T, axes="e", out_sharding=P("e"))(x), ("a",), "float32[8@e,8]", ("e", "a")),
    (anima.grad(lambda x: (x ** 2).sum()), AE, "float32[8@e,8]", ("e",)),
    (anima.vmap(lambda r: 2 * r), ("e", "a"), "float32[8@e,8]", ("e", "a")),
]


@pytest.mark.parametrize("case", range(len(ONE)))
def test_operations(case: int, mesh: Mesh) -> None:
    f, spec, type_, out = ONE[case]
    x = put(mesh, spec)
    check(anima.jit(f)(x), type_, out, f(np.asarray(x)) if case < 11 else anima.jit(f)(put(mesh, ())))


def test_operations_outside_of_jit(mesh: Mesh) -> None:
    check(-put(mesh, AE), "float32[8@e,8]", ("e",), -np.asarray(put(mesh, ())))
    check(put(mesh, EA).sum(1), "float32[8@e]", ("e",), np.asarray(put(mesh, ())).sum(1))
    check(put(mesh, EA).T, "float32[8,8@e]", (None, *EA), np.asarray(put(mesh, ())).T)


@pytest.mark.parametrize("first,second,out", [
    (("e",), ("a",), ("e",)), (("a",), EA, EA), (EA, ("a",), EA), (("a",), AE, ("e",)),
    (("a",), (None, "e"), ("a", "e")), ((None, "a"), ("e",), ("e", "a"))])
def test_sums(first: tuple[Any, ...], second: tuple[Any, ...], out: tuple[Any, ...], mesh: Mesh) -> None:
    a, b = put(mesh, first), put(mesh, second)
    type_ = "float32[8,8@e]" if "e" in second[1:] else "float32[8@e,8]"
    for f in (jnp.add, anima.jit(jnp.add)):
        check(f(a, b), type_, out, 2 * np.asarray(a))


@pytest.mark.parametrize("spec,wanted,out", [
    (("a",), (), ("a",)), (("a",), (None, "e"), ("a", "e")), (("a",), ("e",), ("e",)),
    ((None, "a"), ("e",), ("e", "a")), (("e", "a"), (), (None, "a")), (EA, (), ()), (AE, (), ("a",)),
    (EA, ("e",), EA), (AE, ("e",), ("e",)),
    (AE, (None, "e"), ("a", "e")), ((None, ("e", "a")), (None, "e"), (None, ("e", "a")))])
def test_reshard_says_of_explicit_axes_alone(spec: tuple[Any, ...], wanted: tuple[Any, ...], out: tuple[Any, ...],
                                             mesh: Mesh) -> None:
    x = put(mesh, spec)
    type_ = "float32[8,8]" if not wanted else "float32[8@e,8]" if wanted[0] else "float32[8,8@e]"
    for f in (lambda x: reshard(x, P(*wanted)), anima.jit(lambda x: reshard(x, P(*wanted)))):
        check(f(x), type_, out, x)
    with pytest.raises(ValueError, match="of type Auto"):
        reshard(x, P("e", "a"))


@pytest.mark.parametrize("spec,wanted,out", [
    (("e",), ("a",), EA), (("e", "a"), (), ("e",)), ((None, "e"), ("a",), ("a", "e")), (AE, ("a",), EA),
    ((None, "e"), (None, "a"), (None, ("e", "a")))])
def test_constraints_say_of_auto_axes_alone(spec: tuple[Any, ...], wanted: tuple[Any, ...], out: tuple[Any, ...],
                                            mesh: Mesh) -> None:
    x = put(mesh, spec)
    check(anima.jit(lambda x: lax.with_sharding_constraint(x, P(*wanted)))(x), str(anima.typeof(x)), out, x)


@pytest.mark.parametrize("spec", [(), ("e",), ("a",), ("e", "a"), ("a", "e"), EA])
def test_jit_takes_and_gives_what_it_is_asked_for(spec: tuple[Any, ...], mesh: Mesh) -> None:
    x, sharding = put(mesh, ()), NamedSharding(mesh, P(*spec))
    type_ = str(anima.typeof(put(mesh, spec)))
    check(anima.jit(lambda x: 2 * x, out_shardings=sharding)(x), type_, spec, 2 * np.asarray(x))
    check(anima.jit(lambda x: 2 * x, in_shardings=sharding)(put(mesh, spec)), type_, spec, 2 * np.asarray(x))


def test_calls_may_say_how_their_arguments_are_cut() -> None:
    f = explicit_axes(lambda *xs: xs[0] + 1 if xs else jnp.ones(2))
    with anima.set_mesh(anima.make_mesh((1,), ("x",), (AxisType.Auto,))):
        assert f(in_sharding=None)[0] == 1 and f(jnp.ones(2), in_sharding=None)[0] == 2
        assert f(jnp.ones(2), in_sharding=P("x"))[0] == 2
        with pytest.raises(TypeError, match="in_sharding"):
            f(jnp.ones(2))
