"""pmap on 8 devices: axes, arguments that are static, donated or not mapped, and within other transformations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax

pytestmark = pytest.mark.usefixtures("eight_devices")
X = np.random.default_rng(0).normal(size=(8, 3, 2)).astype(np.float32)
Fun = Callable[..., Any]


@pytest.mark.parametrize(("mapped", "args", "expected"), [
    (anima.pmap(lambda a: a * 2), (X,), X * 2),
    (anima.pmap(lambda a: a - lax.pmean(a, "i"), "i"), (X[:4],), X[:4] - X[:4].mean(0)),
    (anima.pmap(lambda a: lax.psum(a, "i"), "i", out_axes=None), (X,), X.sum(0)),
    (anima.pmap(lambda a: a.sum(0), in_axes=1, out_axes=1), (X,), X.sum(0).T),
    (anima.pmap(lambda a: a[0], in_axes=-1, out_axes=-1), (X,), X[0]),
    (anima.pmap(lambda a, b: a * b, in_axes=(0, None)), (X, 3.0), X * 3),
    (anima.pmap(lambda a, b: a * b, in_axes=[0, None]), (X, 3.0), X * 3),
    (anima.pmap(lambda d: d["a"] + d["b"], in_axes=({"a": 0, "b": None},)), ({"a": X, "b": X[0]},), X + X[0]),
    (anima.pmap(lambda a, n: a ** n, static_broadcasted_argnums=1), (X, 2), X ** 2),
    (anima.pmap(lambda n, a: a ** n, static_broadcasted_argnums=(0,), in_axes=(None, 0)), (2, X), X ** 2),
    (anima.pmap(lambda: lax.axis_index("i"), "i", axis_size=5), (), np.arange(5)),
    (anima.pmap(lambda a: 1), (X,), np.ones(8, np.int32)),
    (anima.pmap(lambda a: lax.psum(a, "i", axis_index_groups=[[0, 3], [1, 2]]), "i"), (X[:4],),
     np.stack([X[0] + X[3], X[1] + X[2], X[1] + X[2], X[0] + X[3]])),
    (anima.pmap(anima.vmap(lambda a: lax.psum(a, ("i", "j")), axis_name="j"), "i"), (X,),
     np.broadcast_to(X.sum((0, 1)), X.shape)),
    (anima.vmap(anima.pmap(lambda a: lax.psum(a, ("i", "j")), "i"), axis_name="j"), (X,),
     np.broadcast_to(X.sum((0, 1)), X.shape)),
    (anima.jit(anima.pmap(lambda a: a - lax.pmax(a, "i"), "i")), (X,), X - X.max(0)),
    (anima.pmap(lambda a: lax.scan(lambda c, r: (c + lax.psum(r, "i"), c), jnp.zeros(2), a)[0], "i"), (X,),
     np.broadcast_to(X.sum((0, 1)), (8, 2))),
    (anima.pmap(anima.grad(lambda a: (lax.psum(a, "i") * a).sum()), "i"), (X,), 2 * X.sum(0) + 0 * X),
])
def test_values(mapped: Fun, args: tuple[Any, ...], expected: np.ndarray) -> None:
    out = mapped(*args)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(mapped(*args), out)  # from the program that is kept


def test_derivatives_through_it() -> None:
    f = anima.pmap(lambda a: jnp.sin(a) * lax.psum(a, "i"), "i")
    s = X.sum(0)
    expected = np.cos(X) * s + np.sin(X).sum(0)
    np.testing.assert_allclose(anima.grad(lambda x: f(x).sum())(X), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(anima.jvp(f, (X,), (X,))[1], np.cos(X) * X * s + np.sin(X) * s, rtol=1e-4, atol=1e-5)


def test_another_mesh_is_current(eight_devices: list[anima.Device]) -> None:
    with anima.set_mesh(anima.make_mesh((4, 2), ("x", "y"), (anima.sharding.AxisType.Auto,) * 2)):
        np.testing.assert_allclose(anima.pmap(lambda a: a + lax.psum(1, "i"), "i")(X), X + 8, rtol=1e-6)


def test_results_lie_on_the_devices(eight_devices: list[anima.Device]) -> None:
    f = anima.pmap(lambda a: (a, lax.psum(a, "i")), "i", out_axes=(1, None))
    split, same = f(X)
    assert split.sharding.spec == anima.P(None, "i") and split.sharding.device_set == set(eight_devices)
    assert same.sharding.is_fully_replicated and (split * 2).sharding.spec == anima.P(None, "i")
    assert anima.vmap(anima.pmap(lambda a: a, "i"))(X[None]).sharding.spec == anima.P(None, "i")
    assert anima.grad(lambda x: f(x)[0].sum())(X).sharding.spec == anima.P("i")
    rows = anima.NamedSharding(anima.sharding.Mesh(eight_devices, "rows"), anima.P("rows"))
    assert f(anima.device_put(X, rows))[0].sharding == split.sharding  # wherever the arguments were


def test_keywords_and_trees() -> None:
    f = anima.pmap(lambda a, b: {"s": (a, b), "n": None}, out_axes={"s": (0, 1), "n": None})
    out = f(X, b=X)
    assert out["s"][1].shape == (3, 8, 2) and out["n"] is None
    np.testing.assert_array_equal(out["s"][1], X.transpose(1, 0, 2))


def test_donated_arguments() -> None:
    f = anima.pmap(lambda a: a + 1, donate_argnums=0)
    x, elsewhere = anima.pmap(lambda a: a)(X), jnp.asarray(X)
    for given in (x, elsewhere):
        np.testing.assert_allclose(f(given), X + 1, rtol=1e-6)
    assert x.is_deleted() and not elsewhere.is_deleted()


def test_chosen_devices(eight_devices: list[anima.Device]) -> None:
    f = anima.pmap(lambda a: a * 2, "i", devices=eight_devices[4:6])
    np.testing.assert_array_equal(f(X[:2]), X[:2] * 2)
    with pytest.raises(ValueError, match="over 3 elements requires as many devices, and there are 2"):
        f(X[:3])
    mesh = anima.make_jaxpr(f)(X[:2]).eqns[0].params["jaxpr"].eqns[0].params["mesh"]
    assert [d.id for d in mesh.devices] == [4, 5]


def test_it_is_lowered_as_jitted_functions_are() -> None:
    f = anima.pmap(lambda a: a - lax.pmean(a, "i"), "i")
    assert f.lower(X).compile()(X).shape == X.shape
    assert anima.eval_shape(f, X).shape == X.shape
