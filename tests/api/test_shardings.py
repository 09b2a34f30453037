"""Arrays and programs on several devices: where results are, and what is refused."""

from __future__ import annotations

import json
import pathlib
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import P, lax
from anima.core.array import PlacedArray
from anima.sharding import AxisType, Mesh, NamedSharding, SingleDeviceSharding, auto_axes, explicit_axes, get_mesh

CASES = json.loads((pathlib.Path(__file__).parent / "data" / "shardings.json").read_text())
X = np.arange(16, dtype=np.float32).reshape(8, 2)


def on(mesh: Mesh, fun: Callable[[], Any]) -> Any:
    """What a function gives while this mesh is set."""
    with anima.set_mesh(mesh):
        return fun()


class Scope:
    """What the snippets of this file name: devices, meshes, and arrays on them."""

    def __init__(self, devices: list[anima.Device]) -> None:
        self.D = devices
        self.auto = Mesh(np.array(devices).reshape(4, 2), ("x", "y"))
        self.explicit = anima.make_mesh((4, 2), ("x", "y"))
        self.small = Mesh(devices[:4], "x")
        self.u = jnp.asarray(X)
        self.a, self.b, self.r = (anima.device_put(X, self.N(*p)) for p in (("x",), (None, "y"), ()))
        self.d3 = anima.device_put(X, devices[3])
        self.ea, self.eb = anima.device_put(X, self.E("x")), anima.device_put(X, self.E(None, "y"))

    def N(self, *spec: Any) -> NamedSharding:
        return NamedSharding(self.auto, P(*spec))

    def E(self, *spec: Any) -> NamedSharding:
        return NamedSharding(self.explicit, P(*spec))

    def run(self, code: str) -> Any:
        names = {"anima": anima, "jnp": jnp, "lax": lax, "np": np, "P": P, "X": X, "NamedSharding": NamedSharding,
                 "Mesh": Mesh, "AxisType": AxisType, "f": lambda x, y: x + y, "auto_axes": auto_axes,
                 "explicit_axes": explicit_axes, "SingleDeviceSharding": SingleDeviceSharding, "on": on,
                 "N": self.N, "E": self.E, **vars(self)}
        return eval(code, names)


@pytest.fixture
def scope(eight_devices: list[anima.Device]) -> Scope:
    return Scope(eight_devices)


@pytest.mark.parametrize("case", CASES["errors"], ids=lambda c: c[0])
def test_misuse(case: list[str], scope: Scope) -> None:
    code, error, phrase = case
    with pytest.raises(Exception) as caught:
        scope.run(code)
    assert type(caught.value).__name__ == error and phrase in str(caught.value), caught.value


@pytest.mark.parametrize("case", CASES["specs"], ids=lambda c: c[0])
def test_where_results_are(case: list[str], scope: Scope) -> None:
    """The value is that of whole arrays; the sharding has this spec."""
    code, spec = case
    result = scope.run(code)
    found = result.sharding
    assert str(found.spec) == spec and found.mesh in (scope.auto, scope.explicit) and result.committed
    for name in ("a", "b", "r", "ea", "eb", "d3"):
        setattr(scope, name, scope.u)
    scope.N = scope.E = lambda *p: None  # type: ignore[method-assign]
    plain = scope.run(code.replace("P('x')", "None")) if "with_sharding" not in code and "reshard" not in code else None
    if plain is not None:
        np.testing.assert_allclose(result, plain, rtol=1e-5)


@pytest.mark.parametrize("case", CASES["types"], ids=lambda c: c[0])
def test_types_that_tell(case: list[str], scope: Scope) -> None:
    code, text = case
    assert str(anima.typeof(scope.run(code))) == text


def test_an_array_and_its_parts(scope: Scope) -> None:
    a = scope.a
    assert a.sharding == scope.N("x") == a.device and a.committed and a.devices() == set(scope.D)
    assert [s.device for s in a.addressable_shards] == scope.D
    assert a.global_shards[3].index == (slice(2, 4), slice(None))
    assert [s.replica_id for s in a.addressable_shards] == [0, 1] * 4
    for shard in a.addressable_shards:
        np.testing.assert_array_equal(shard.data, X[shard.index])
        assert shard.data.devices() == {shard.device} and np.may_share_memory(np.asarray(shard.data), np.asarray(a))
    np.testing.assert_array_equal(a.addressable_data(3), X[2:4])
    assert not a.is_fully_replicated and scope.r.is_fully_replicated and a.is_fully_addressable
    assert scope.d3.device == scope.D[3] and scope.d3.sharding == SingleDeviceSharding(scope.D[3])
    assert not scope.u.committed and pickle.loads(pickle.dumps(a)).sharding == scope.u.sharding
    assert a.to_device(scope.D[2]).devices() == {scope.D[2]} and a.clone().sharding == a.sharding


def test_putting(scope: Scope) -> None:
    N, D = scope.N, scope.D
    assert anima.device_put(scope.a, N("x")) is scope.a
    put = anima.device_put({"a": X, "b": [X, 1.0]}, {"a": N("x"), "b": D[2]})
    assert put["a"].sharding == N("x") and put["b"][1].devices() == {D[2]}
    assert anima.device_put(scope.u, D[0]).committed and not anima.device_put(scope.u).committed
    own = anima.device_put(scope.a, N("x"), may_alias=False)
    assert own.sharding == N("x") and not np.may_share_memory(np.asarray(own), np.asarray(scope.a))
    given = anima.device_put(X, N("x"))
    taken = anima.device_put(given, N("y"), donate=True)
    assert given.is_deleted() and taken.sharding == N("y")
    np.testing.assert_array_equal(taken, X)
    with anima.set_mesh(scope.auto):
        assert anima.device_put(X, P("y")).sharding == N("y")
    kept = anima.jit(lambda x: anima.device_put(x, N("y")) + 1)(scope.r)
    assert kept.sharding == N("y")


@pytest.mark.usefixtures("eight_devices")
def test_layouts_along_explicit_axes_name_every_dimension() -> None:
    mesh = anima.make_mesh((4, 2), ("x", "y"))
    with anima.set_mesh(mesh):
        x = anima.device_put(X, P())
        made = {"given": x, "computed": x + 1, "replicated": anima.reshard(x, P()), "cut": anima.reshard(x, P("x")),
                "zeros": jnp.zeros((2, 3)), "jitted": anima.jit(lambda: jnp.ones(8))(), "numbers": jnp.array([1, 2]),
                "of NumPy's": anima.jit(lambda v: v * 2)(np.ones((2, 3))), "asked": anima.jit(
                    jnp.sin, out_shardings=P())(x)}
    assert {name: v.sharding.spec for name, v in made.items()} == {
        "given": P(), "computed": P(None, None), "replicated": P(None, None), "cut": P("x", None),
        "zeros": P(None, None), "jitted": P(None), "numbers": P(), "of NumPy's": P(None, None), "asked": P()}
    assert made["given"].sharding != made["computed"].sharding
    assert made["given"].sharding.is_equivalent_to(made["computed"].sharding, 2)
    assert anima.typeof(made["given"]) == anima.typeof(made["computed"])


def test_arrays_of_numbers_are_made_where_options_say(scope: Scope) -> None:
    for make in (lambda: jnp.array([1, 2]), lambda: jnp.asarray(X), lambda: jnp.array(3, ndmin=1)):
        assert not make().committed
        with anima.default_device(scope.D[3]):
            assert make().devices() == {scope.D[3]} and not make().committed
        with anima.set_mesh(scope.auto):
            assert make().sharding == NamedSharding(scope.auto, P())
    with anima.default_device(scope.D[3]):
        assert jnp.asarray(scope.u) is scope.u
        assert anima.jit(lambda: jnp.array([1, 2]) * 2)().devices() == {scope.D[3]}


def test_arrays_made_of_parts(scope: Scope) -> None:
    N, asked = scope.N, []

    def part(index: Any) -> np.ndarray:
        asked.append(index)
        return X[index]

    made = anima.make_array_from_callback((8, 2), N("x", "y"), part)
    assert made.sharding == N("x", "y") and len(asked) == 8
    again = anima.make_array_from_single_device_arrays(
        (8, 2), N("x", "y"), [s.data for s in reversed(made.addressable_shards)])
    local = anima.make_array_from_process_local_data(N(None, "y"), X)
    for x in (made, again, local):
        np.testing.assert_array_equal(x, X)
    assert again.sharding == made.sharding and local.sharding == N(None, "y")


def test_the_default_device(scope: Scope) -> None:
    third = scope.D[3]
    with anima.default_device(third):
        made = [jnp.ones(2), jnp.sin(scope.u), anima.jit(lambda x: x + 1)(scope.u), jnp.asarray(X) * 2]
        assert all(x.devices() == {third} and not x.committed for x in made)
    assert jnp.sin(made[0]).devices() == {scope.D[0]} and (made[0] + scope.d3[0]).committed
    assert (scope.d3 + scope.u).devices() == {third} and anima.jit(lambda x: x, device=third)(1.0).devices() == {third}


def test_the_mesh_that_is_set(scope: Scope) -> None:
    traced = []

    @anima.jit
    def f(x: Any) -> Any:
        traced.append(anima.sharding.get_abstract_mesh())
        return lax.with_sharding_constraint(x, P("x"))

    with anima.set_mesh(scope.auto):
        assert get_mesh() == scope.auto and jnp.zeros(8).sharding == scope.N() and jnp.sin(X).committed
        assert f(X).sharding == scope.N("x")
        assert anima.jit(lambda x: x + 1, in_shardings=P("y"), out_shardings=P())(X).sharding == scope.N()
    other = Mesh(scope.D, "x")
    with anima.set_mesh(other):
        assert f(X).sharding == NamedSharding(other, P("x"))
    assert [m.shape_tuple for m in traced] == [(("x", 4), ("y", 2)), (("x", 8),)]
    with anima.set_mesh(scope.auto):  # a mesh without devices stands for the one that is set
        abstract = NamedSharding(scope.auto.abstract_mesh, P("x"))
        assert anima.jit(lambda: lax.with_sharding_constraint(jnp.ones((8, 2)), abstract))().sharding == scope.N("x")
        ones = np.ones((8, 2), np.float32)
        assert anima.jit(lambda x: x * 2, out_shardings=abstract)(ones).sharding == scope.N("x")
        assert anima.jit(lambda x: {"a": x}, out_shardings={"a": abstract})(ones)["a"].sharding == scope.N("x")
        assert anima.jit(lambda x: x * 2, in_shardings=abstract)(ones).sharding == scope.N("x")
    with pytest.warns(DeprecationWarning), scope.auto:
        assert lax.with_sharding_constraint(X, P("y")).sharding == scope.N("y")


def test_stages_know_shardings(scope: Scope) -> None:
    a, N = scope.a, scope.N
    compiled = anima.jit(lambda x, y: {"z": x * y}).lower(a, 2.0).compile()
    assert compiled.input_shardings[0] == (N("x"), N()) and compiled.output_shardings["z"] == N("x")
    assert compiled(a, 2.0)["z"].sharding == N("x") and compiled(scope.u, 2.0)["z"].sharding == N("x")
    with pytest.raises(ValueError, match="compiled for input shardings that disagree"):
        compiled(scope.b, 2.0)
    struct = anima.ShapeDtypeStruct((8, 2), np.float32, sharding=N("y"))
    assert anima.jit(jnp.sin).lower(struct).compile().output_shardings == N("y")
    assert anima.eval_shape(jnp.sin, scope.ea).sharding.spec == P("x", None)


def test_donated_parts(scope: Scope) -> None:
    step = anima.jit(lambda w, x: w - x, donate_argnums=0)
    for _ in range(3):
        w = anima.device_put(X, scope.N("x"))
        new = step(w, scope.u)
        assert w.is_deleted() and new.sharding == scope.N("x") and not np.asarray(new).any()
    with pytest.raises(ValueError, match="twice"):
        step(new, new)
    assert not new.is_deleted()


@pytest.mark.parametrize("transformed", [
    lambda f: f, anima.jit, lambda f: anima.jit(anima.jit(f)), anima.grad, lambda f: anima.jit(anima.grad(f)),
    lambda f: anima.grad(anima.checkpoint(f)), lambda f: anima.hessian(f)], ids=range(7))
def test_transformations_keep_to_the_devices(transformed: Any, scope: Scope) -> None:
    def loss(x: Any) -> Any:
        step = lax.fori_loop(0, 2, lambda i, v: jnp.tanh(v) * 2, lax.with_sharding_constraint(x, scope.N("x")))
        return jnp.sum(lax.scan(lambda c, v: (c + v, c * v), jnp.zeros(2), step)[1])

    found = transformed(loss)(scope.a)
    assert type(found) is PlacedArray and found.devices() == set(scope.D)
    np.testing.assert_allclose(found, transformed(loss)(X), rtol=1e-4, atol=1e-4)


def test_a_nan_is_found(scope: Scope) -> None:
    with anima.debug_nans(True), pytest.raises(FloatingPointError):
        anima.jit(jnp.log)(-scope.a - 1)


def test_calls_that_come_again(scope: Scope) -> None:
    """The short way of calls on placed arrays looks at types and shardings, too."""
    f = anima.jit(lambda p, y: {"z": p["w"] + y})
    for _ in range(3):
        for w, y in ((scope.a, scope.u), (scope.b, scope.b), (scope.r, 1), (scope.a, X.astype(np.float16)),
                     (scope.d3, 2.0), (scope.u, scope.u)):
            found = f({"w": w}, y)["z"]
            np.testing.assert_allclose(found, X + np.asarray(y), rtol=1e-3)
            assert found.devices() == w.devices()
    with pytest.raises(ValueError, match="incompatible devices"):
        f({"w": scope.a}, scope.d3)


def test_batches_of_constraints(scope: Scope) -> None:
    stack = anima.device_put(np.ones((2, 8, 2), np.float32), scope.N("y"))
    found = anima.jit(anima.vmap(lambda x: lax.with_sharding_constraint(x, scope.N("x")) * 2))(stack)
    assert found.sharding.spec == P("y", "x")


def test_an_argument_that_is_not_used_does_not_matter(scope: Scope) -> None:
    assert anima.jit(lambda x, y: x * 2)(scope.d3, scope.a).devices() == {scope.D[3]}
    with pytest.raises(ValueError, match="argument y of"):
        anima.jit(lambda x, y: x * 2, keep_unused=True)(scope.d3, scope.a)


def test_shardings_are_told(scope: Scope, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[Any] = []
    inspected: Callable[..., Any] = anima.jit(lambda x: (anima.debug.inspect_array_sharding(x.T, callback=told.append),
                                                         x)[1])
    inspected(scope.a)
    inspected(scope.a)
    inspected(scope.u)
    assert told == [scope.N(None, "x"), scope.u.sharding]
    anima.debug.visualize_array_sharding(anima.device_put(X, scope.N("x")), min_width=12, scale=0.5)
    assert capsys.readouterr().out.splitlines()[:3] == ["┌──────────┐", "│ CPU 0,1  │", "├──────────┤"]


def test_one_device_is_not_told_apart() -> None:
    """Where there is one device, arrays put there are as others are: their calls take the short way."""
    here = anima.devices()[0]
    assert type(anima.device_put(1.0, here)) is type(jnp.ones(1)) and not isinstance(jnp.ones(1), PlacedArray)


def test_types_of_elements_say_how_they_are_cut(scope: Scope) -> None:
    """Those of vmap, of its programs within, of sequences that a scan goes over, and of slopes."""
    seen: list[str] = []

    def noted(x: Any) -> Any:
        seen.append(str(anima.typeof(x)))
        return x * 2

    @anima.custom_vjp
    def sine(x: Any) -> Any:
        return jnp.sin(x)

    sine.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.cos(x) * 2,))
    stack = anima.device_put(np.stack([X, X]), scope.E(None, "x"))
    with anima.set_mesh(scope.explicit):
        anima.vmap(noted)(stack)
        anima.vmap(lambda x: noted(anima.reshard(x, P("y"))))(np.stack([X, X]))
        anima.vmap(anima.jit(noted))(stack)
        _, ys = lax.scan(lambda c, x: (c, noted(x)), 0.0, stack)
        slope = anima.jit(anima.grad(lambda x: sine(x).sum()))(scope.ea)
    assert set(seen) == {"float32[8@x,2]", "float32[8@y,2]"} and seen[1] == "float32[8@y,2]"
    assert str(anima.typeof(ys)) == "float32[2,8@x,2]" and str(anima.typeof(slope)) == "float32[8@x,2]"
    np.testing.assert_allclose(slope, 2 * np.cos(X), rtol=1e-5)


def test_slopes_of_what_is_not_used_are_cut_as_it_is(scope: Scope) -> None:
    def f(a: Any, b: Any) -> Any:
        return (b * b).sum()

    for grad in (anima.grad(f, (0, 1)), anima.jit(anima.grad(f, (0, 1)))):
        with anima.set_mesh(scope.explicit):
            found, _ = grad(scope.ea, scope.eb)
        assert str(anima.typeof(found)) == "float32[8@x,2]" and found.sharding.is_equivalent_to(scope.E("x"), 2)
        np.testing.assert_array_equal(found, np.zeros((8, 2)))


def test_what_types_and_propagation_say_keeps_its_order(scope: Scope) -> None:
    mesh = anima.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto, AxisType.Explicit))
    f = anima.shard_map(lambda a: a * 2, mesh=mesh, in_specs=P(("x", "y")), out_specs=P(("x", "y")))
    for g in (f, anima.jit(f)):
        assert g(X).sharding.spec.padded(2) == P(("x", "y"), None)


def test_results_are_cut_as_their_types_say_where_no_argument_is_used(scope: Scope) -> None:
    unused = anima.jit(anima.grad(lambda a, b: (b * b).sum()))
    for given in (scope.ea, scope.eb):
        assert unused(given, np.ones(3, np.float32)).sharding.spec == given.sharding.spec.padded(2)
    with anima.set_mesh(scope.explicit):
        made = anima.jit(lambda: jnp.zeros((8, 2), out_sharding=P("y")))()
    assert made.sharding == scope.E("y", None)


def test_what_a_function_closes_over_goes_where_its_arguments_are(scope: Scope) -> None:
    """Where nothing else says where, it does."""
    f = anima.jit(lambda x: x + scope.d3)
    assert f(scope.a).sharding == scope.N("x") and f(scope.u).sharding == SingleDeviceSharding(scope.D[3])
    np.testing.assert_array_equal(f(scope.a), 2 * X)
    assert anima.jit(lambda x: x + scope.a)(scope.d3).sharding == SingleDeviceSharding(scope.D[3])
    assert anima.jit(lambda x: x + scope.a)(scope.u).sharding == scope.N("x")
    small = anima.device_put(X, NamedSharding(scope.small, P("x")))
    assert anima.jit(lambda x: x + small)(scope.a).sharding == scope.N("x")


@pytest.mark.parametrize("value", [2.0, 3, True, 1j, np.float32(2), np.int8(3)], ids=repr)
def test_weak_types_stay_weak_wherever_they_are(value: Any, scope: Scope) -> None:
    for place in (scope.D[3], scope.N(), scope.E()):
        x = anima.device_put(value, place)
        plain = jnp.asarray(value)
        assert (x.dtype, x.weak_type) == (plain.dtype, plain.weak_type)
        for fun in (lambda x: x * 1, lambda x: x + jnp.float16(1) if x.dtype != bool else x, lambda x: (x, x)[0]):
            called = anima.jit(fun)
            wanted = anima.jit(fun)(plain)
            for _ in range(3):
                out = called(x)
                assert (out.dtype, out.weak_type, out.devices()) == (wanted.dtype, wanted.weak_type, x.devices())


@pytest.mark.parametrize("places", [(3, None), (None, 3), (3, 3), (None, None)], ids=str)
def test_places_that_are_asked_for_one_by_one(places: tuple[Any, Any], scope: Scope) -> None:
    """A result that nothing is said of goes where the arguments are, or the other result."""
    asked = tuple(None if p is None else SingleDeviceSharding(scope.D[p]) for p in places)
    fun = anima.jit(lambda x: (x + 1, x * 2), out_shardings=asked)
    for given in (scope.d3, *((scope.u,) if any(p is not None for p in places) else ())):
        for _ in range(3):
            outs = fun(given)
            assert [o.devices() for o in outs] == [{scope.D[3]}] * 2
            np.testing.assert_array_equal(outs[1], X * 2)


def test_results_on_another_mesh_than_the_arguments(scope: Scope) -> None:
    rows = NamedSharding(Mesh(scope.D, "r"), P("r"))
    x, told = anima.device_put(X, rows), []

    def f(x: Any) -> Any:
        anima.debug.inspect_array_sharding(x * 3, callback=told.append)
        return lax.with_sharding_constraint(x * 2, scope.N("x", "y")) + 1, x * 4, x.sum()

    found = anima.jit(f)(x)
    assert [y.sharding for y in found] == [scope.N("x", "y"), rows, NamedSharding(rows.mesh, P())]
    assert told == [rows]
    np.testing.assert_array_equal(found[0], X * 2 + 1)
    one, other = anima.jit(lambda a, b: (a + 1, b + 1))(x, scope.b)
    assert (one.sharding, other.sharding) == (rows, scope.b.sharding)


@pytest.mark.parametrize("jit", [anima.jit, lambda f: f])
@pytest.mark.parametrize("fun", [
    anima.random.key_data, lambda k: anima.random.wrap_key_data(anima.random.key_data(k)), anima.random.clone,
    anima.vmap(anima.random.normal), anima.vmap(lambda k: anima.random.split(k, 3)),
    anima.vmap(lambda k: anima.random.fold_in(k, 3)), anima.vmap(lambda k: anima.random.permutation(k, 4))],
    ids=range(7))
def test_what_is_drawn_from_keys_is_cut_as_they_are(scope: Scope, fun: Any, jit: Any) -> None:
    keys = anima.random.split(anima.random.key(3), 8)
    for sharding in (scope.N("x"), scope.E("x")):
        found, alone = jit(fun)(anima.device_put(keys, sharding)), fun(keys)
        assert found.sharding.is_equivalent_to(sharding, found.ndim)
        assert found.dtype == alone.dtype and bool((found == alone).all())
