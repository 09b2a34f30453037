"""shard_map on 8 devices: values and gradients against NumPy on the whole arrays, types of what varies, nesting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import P, lax
from anima.experimental import io_callback
from anima.sharding import AxisType, Mesh

pytestmark = pytest.mark.usefixtures("eight_devices")
X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)  # parts of (2, 2) on a mesh of (4, 2)
W = np.random.default_rng(1).normal(size=(4,)).astype(np.float32)
BLOCKS = X.reshape(4, 2, 2, 2).transpose(0, 2, 1, 3)                 # x, y, rows, columns of parts
Fun = Callable[..., Any]


@pytest.fixture
def mesh(eight_devices: list[anima.Device]) -> Mesh:
    return Mesh(np.array(eight_devices).reshape(4, 2), ("x", "y"))


def whole(blocks: np.ndarray) -> np.ndarray:
    """Parts by (x, y) put together as P("x", "y") says."""
    return np.block([[blocks[i, j] for j in range(blocks.shape[1])] for i in range(blocks.shape[0])])


def everywhere(part: np.ndarray) -> np.ndarray:
    return np.broadcast_to(part, (4, 2, *part.shape))


FLAT = BLOCKS.reshape(8, 2, 2)  # devices in row-major order
SHIFT = [(k, (k + 3) % 8) for k in range(8)]
CASES: list[tuple[Fun, Any, np.ndarray]] = [
    (lambda a: a * 2, P("x", "y"), X * 2),
    (lambda a: lax.psum(a, "x"), P(None, "y"), X.reshape(4, 2, 4).sum(0)),
    (lambda a: lax.psum(a, ("x", "y")), P(), FLAT.sum(0)),
    (lambda a: lax.pmean(lax.pmax(a, "x"), "y"), P(), BLOCKS.max(0).mean(0)),
    (lambda a: lax.psum(a, "y") * lax.axis_index("x"), P("x"), whole(BLOCKS.sum(1, keepdims=True)
                                                                     * np.arange(4)[:, None, None, None])),
    (lambda a: lax.all_gather(a, ("x", "y"), to="invarying"), P(), FLAT),
    (lambda a: lax.all_gather(a, ("y", "x"), axis=1)[None, None], P("x", "y"),
     np.tile(BLOCKS.transpose(1, 0, 2, 3).reshape(8, 2, 2).transpose(1, 0, 2), (4, 2, 1, 1, 1))),
    (lambda a: lax.all_gather(a, "x", axis=1, tiled=True, to="invarying"), P(None, "y"),
     BLOCKS.transpose(2, 1, 0, 3).reshape(2, 16)),
    (lambda a: lax.psum_scatter(a.ravel(), "x", tiled=True), P(("y", "x")),
     BLOCKS.sum(0).reshape(2, 4).ravel()),
    (lambda a: lax.psum_scatter(jnp.tile(a.ravel(), 2), ("x", "y"), tiled=True), P(("x", "y")),
     np.tile(FLAT.sum(0).ravel(), 2)),
    (lambda a: lax.psum_scatter(jnp.tile(a.ravel(), 2), ("x", "y"))[None], P(("x", "y")),
     np.tile(FLAT.sum(0).ravel(), 2)),
    (lambda a: lax.ppermute(a, ("x", "y"), SHIFT), P("x", "y"), whole(np.roll(FLAT, 3, 0).reshape(BLOCKS.shape))),
    (lambda a: lax.ppermute(a, "y", [(0, 1)]), P("x", "y"),
     whole(np.stack([np.zeros_like(BLOCKS[:, 0]), BLOCKS[:, 0]], 1))),
    (lambda a: lax.pshuffle(a, ("y", "x"), list(range(8))[::-1]), P("x", "y"), whole(BLOCKS[::-1, ::-1])),
    (lambda a: lax.pbroadcast(a, ("x", "y"), 5), P("x", "y"), whole(everywhere(FLAT[5]))),
    (lambda a: lax.all_to_all(a, "y", 1, 0, tiled=True), P("x", "y"),
     whole(np.stack([np.concatenate([BLOCKS[:, 0, :, j:j + 1], BLOCKS[:, 1, :, j:j + 1]], 1) for j in range(2)], 1))),
    (lambda a: lax.all_to_all(jnp.tile(a.ravel(), 2), ("x", "y"), 0, 0, tiled=True), P(("x", "y")),
     np.tile(FLAT.reshape(8, 4), 2).T.ravel()),
    (lambda a: lax.pswapaxes(a, "y", 1), P("x", "y"), whole(BLOCKS.transpose(0, 3, 2, 1))),
    (lambda a: (a.sum() * lax.axis_size(("x", "y")))[None], P(("x", "y")), FLAT.sum((1, 2)) * 8),
    (lambda a: jnp.full((1,), lax.axis_index(("y", "x"))), P(("y", "x")), np.arange(8)),
    (lambda a: a + jnp.asarray(W)[:2], P("x", "y"), X + np.tile(W[:2], 2)),
    (lambda a: lax.scan(lambda c, row: (c + row, c), jnp.zeros(2), a)[1], P("x", "y"),
     whole(np.concatenate([np.zeros_like(BLOCKS[:, :, :1]), BLOCKS[:, :, :1]], 2))),
    (lambda a: lax.fori_loop(0, 3, lambda i, c: c + lax.psum(a, "x"), jnp.zeros((2, 2))), P(None, "y"),
     3 * X.reshape(4, 2, 4).sum(0)),
    (lambda a: lax.while_loop(lambda c: c[0] < lax.axis_index("x"), lambda c: (c[0] + 1, c[1] * 2),
                              (0, a))[1], P("x", "y"), whole(BLOCKS * 2.0 ** np.arange(4)[:, None, None, None])),
    (lambda a: lax.cond(a.sum() > 0, lambda: jnp.ones(1), lambda: jnp.zeros(1)), P(("x", "y")),
     (FLAT.sum((1, 2)) > 0).astype(np.float32)),
    (lambda a: lax.switch(lax.axis_index("y"), [lambda b: b, lambda b: -b], a), P("x", "y"),
     whole(BLOCKS * np.array([1, -1])[:, None, None])),
    (lambda a: anima.checkpoint(lambda b: jnp.sin(lax.psum(b, "x")))(a), P(None, "y"),
     np.sin(X.reshape(4, 2, 4).sum(0))),
    (lambda a: anima.jit(lambda b: b - lax.pmean(b, "y"))(a), P("x", "y"),
     whole(BLOCKS - BLOCKS.mean(1, keepdims=True))),
    (lambda a: anima.vmap(lambda b: b - lax.psum(b, ("x", "i")), axis_name="i")(lax.pcast(a, (), to="varying")),
     P("x", "y"), whole(BLOCKS - BLOCKS.sum((0, 2), keepdims=True))),
]


@pytest.mark.parametrize(("f", "out_specs", "expected"), CASES)
@pytest.mark.parametrize("check_vma", [True, False])
def test_values(mesh: Mesh, f: Fun, out_specs: Any, expected: np.ndarray, check_vma: bool) -> None:
    g = anima.shard_map(f, mesh=mesh, in_specs=P("x", "y"), out_specs=out_specs, check_vma=check_vma)
    for h in (g, anima.jit(g)):
        np.testing.assert_allclose(np.asarray(h(X)), expected, rtol=1e-5, atol=1e-5)
    stacked = anima.vmap(g)(np.stack([X, 2 * X, -X]))
    np.testing.assert_allclose(stacked[0], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(stacked[2], np.asarray(g(-X)), rtol=1e-5, atol=1e-5)


def test_nothing_is_compiled_while_jit_is_disabled(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> Any:
        raise AssertionError("compiled")

    monkeypatch.setattr(anima.api.shard_map, "executable_of", refuse)
    with anima.disable_jit():
        got = anima.shard_map(lambda x: lax.psum(jnp.sin(x), "x"), mesh=mesh, in_specs=P("x"), out_specs=P())(X)
    np.testing.assert_allclose(got, np.sin(X).reshape(mesh.shape["x"], -1, X.shape[1]).sum(0), rtol=1e-5)


DIFFERENTIABLE = [
    k for k in range(len(CASES)) if k not in (19, 23, 24)]  # of ints, of a loop of unknown length, piecewise constant


@pytest.mark.parametrize("case", DIFFERENTIABLE)
@pytest.mark.parametrize("check_vma", [True, False])
def test_gradients(mesh: Mesh, case: int, check_vma: bool) -> None:
    f, out_specs, expected = CASES[case]
    g = anima.shard_map(f, mesh=mesh, in_specs=P("x", "y"), out_specs=out_specs, check_vma=check_vma)
    weights = np.random.default_rng(case).normal(size=expected.shape).astype(np.float32)

    def loss(x: Any) -> Any:
        return (jnp.sin(g(x)) * weights).sum()

    gradient = np.asarray(anima.jit(anima.grad(loss))(X), np.float64)
    v = np.random.default_rng(9).normal(size=X.shape).astype(np.float32)
    with anima.enable_x64(True):
        x, d = X.astype(np.float64), 1e-6 * v.astype(np.float64)
        slope = (float(loss(x + d)) - float(loss(x - d))) / 2e-6
    np.testing.assert_allclose((gradient * v).sum(), slope, rtol=2e-4, atol=2e-4)
    tangent = anima.jvp(loss, (X,), (v,))[1]
    np.testing.assert_allclose(tangent, slope, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("check_vma", [True, False])
def test_gradient_of_what_all_devices_share(mesh: Mesh, check_vma: bool) -> None:
    """Each device's part of the gradient of a replicated argument is added up, inside and outside."""
    def loss(w: Any, a: Any) -> Any:
        return (jnp.tanh(a * w[:2]) ** 2).sum()

    def total(w: Any) -> Any:
        return anima.shard_map(lambda w, a: lax.psum(loss(w, a), ("x", "y")), mesh=mesh, in_specs=(P(), P("x", "y")),
                               out_specs=P(), check_vma=check_vma)(w, X)

    expected = anima.grad(lambda w: sum(loss(w, part) for part in FLAT))(W)
    np.testing.assert_allclose(anima.grad(total)(W), expected, rtol=1e-5, atol=1e-6)

    def inside(w: Any, a: Any) -> Any:
        g = anima.grad(loss)(w, a)
        return g if check_vma else lax.psum(g, ("x", "y"))

    summed = anima.shard_map(inside, mesh=mesh, in_specs=(P(), P("x", "y")), out_specs=P(), check_vma=check_vma)
    np.testing.assert_allclose(summed(W, X), expected, rtol=1e-5, atol=1e-6)


def test_own_derivatives(mesh: Mesh) -> None:
    @anima.custom_vjp
    def f(w: Any, a: Any) -> Any:
        return w * a

    f.defvjp(lambda w, a: (w * a, (w, a)), lambda res, ct: ((ct * res[1]).sum(), ct * res[0]))
    g = anima.shard_map(f, mesh=mesh, in_specs=(P(), P("x", "y")), out_specs=P("x", "y"))
    gw, gx = anima.grad(lambda w, x: (g(w, x) * x).sum(), (0, 1))(2.0, X)
    np.testing.assert_allclose((gw, gx[3, 1]), ((X * X).sum(), 4 * X[3, 1]), rtol=1e-5)


def types_of(mesh: Mesh, f: Fun, in_specs: Any = P("x", "y"), **options: Any) -> str:
    """The text of the types of what `f` gives for its part of X."""
    found: list[str] = []

    def note(a: Any) -> Any:
        found.append(anima.typeof(f(a)).str_short(short_dtypes=True))
        return a

    anima.shard_map(note, mesh=mesh, in_specs=in_specs, out_specs=in_specs, **options)(X)
    return found[0]


@pytest.mark.parametrize(("f", "text"), [
    (lambda a: a, "f32[2,2]{V:(x,y)}"), (lambda a: lax.psum(a, "x"), "f32[2,2]{V:y}"),
    (lambda a: lax.psum(a, ("x", "y")) * 2, "f32[2,2]"), (lambda a: jnp.zeros(3), "f32[3]"),
    (lambda a: lax.psum(a, "x") + lax.psum(a, "y"), "f32[2,2]{V:(x,y)}"), (lambda a: lax.axis_index("y"), "i32[]{V:y}"),
    (lambda a: lax.pcast(jnp.zeros(3), "x", to="varying"), "f32[3]{V:x}"),
    (lambda a: lax.all_gather(a, "x"), "f32[4,2,2]{V:(x,y)}"),
    (lambda a: lax.all_gather(a, "x", to="invarying"), "f32[4,2,2]{V:y}"),
    (lambda a: lax.pmin(a, "y").sum(), "f32[]{V:x}"),
    (lambda a: lax.scan(lambda c, r: (c + 1, r), 0, a)[0], "i32[]"),
    (lambda a: lax.scan(lambda c, r: ((c[1], c[1] + r), r), (jnp.zeros(2), jnp.zeros(2)), a)[0][0], "f32[2]{V:(x,y)}"),
    (lambda a: lax.cond(a[0, 0] > 0, lambda: 1.0, lambda: 2.0), "f32[]{V:(x,y)}"),
    (lambda a: lax.cond(True, lambda: (1.0, a), lambda: (2.0, 0 * a))[0], "f32[]"),
    (lambda a: lax.while_loop(lambda c: c[0] < a.sum(), lambda c: (c[0] + 1, c[1]), (0.0, 1.0))[1], "f32[]{V:(x,y)}"),
    (lambda a: anima.grad(lambda w: (w * a).sum())(1.0), "f32[]"),
    (lambda a: anima.random.uniform(anima.random.fold_in(anima.random.key(0), lax.axis_index("x"))), "f32[]{V:x}"),
])
def test_types_tell_what_varies(mesh: Mesh, f: Fun, text: str) -> None:
    assert types_of(mesh, f) == text
    assert types_of(mesh, f, check_vma=False) == text.split("{")[0]


def test_types_as_values(mesh: Mesh) -> None:
    def f(a: Any) -> Any:
        aval = anima.typeof(a)
        assert aval.vma == aval.manual_axis_type.varying == {"x"} and anima.typeof(lax.psum(a, "x")).mat.empty
        assert aval.update(manual_axis_type=anima.sharding.ManualAxisType()).str_short() == "float32[2,4]"
        assert aval.update(shape=(3,)).vma == {"x"} and aval != aval.update(vma=frozenset())
        return a

    anima.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(X)


def test_programs_as_text(mesh: Mesh) -> None:
    f = anima.shard_map(lambda a: lax.psum(a, "x") + 1, mesh=mesh, in_specs=P("x"), out_specs=P(), axis_names={"x"})
    assert str(anima.make_jaxpr(f)(X[:, 0])) == """{ lambda ; a:f32[8]. let
    b:f32[2] = shard_map[
      jaxpr={ lambda ; c:f32[2]{V:x}. let
          d:f32[2] = psum_invariant[axes=('x',)] c
          e:f32[2] = add d 1.0
        in (e,) }
      check_vma=True
      in_specs=(P('x',),)
      mesh=Mesh('x': 4, 'y': 2, axis_types=(Auto, Auto))
      newly_manual_axes=frozenset({'x'})
      out_specs=(P(),)
    ] a
  in (b,) }"""


def test_some_axes_at_a_time(mesh: Mesh) -> None:
    def outer(a: Any) -> Any:
        inner = anima.shard_map(lambda b: b + lax.psum(b, ("x", "y")), in_specs=P(None, "y"), out_specs=P(None, "y"))
        return inner(a) * lax.axis_size("x")

    f = anima.shard_map(outer, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    np.testing.assert_allclose(f(X), 4 * whole(BLOCKS + FLAT.sum(0)), rtol=1e-5)
    g = anima.grad(lambda x: (f(x) ** 2).sum() / 2)(X)
    y = BLOCKS + FLAT.sum(0)
    np.testing.assert_allclose(g, 16 * whole(y + y.sum((0, 1))), rtol=1e-4)


def test_the_current_mesh_and_one_axis_of_it(mesh: Mesh) -> None:
    with anima.set_mesh(mesh):
        f = anima.shard_map(lambda a: lax.psum(a, "x"), in_specs=P("x"), out_specs=P())
        np.testing.assert_allclose(f(X), X.reshape(4, 2, 4).sum(0), rtol=1e-6)
        g = anima.smap(lambda a: a.sum(0, keepdims=True), in_axes=0, out_axes=-1, axis_name="x")
        np.testing.assert_allclose(g(X), X.reshape(4, 1, 2, 4).sum(2).transpose(1, 0, 2).reshape(1, 16), rtol=1e-6)

        @anima.smap(in_axes=(0, None), out_axes=None, axis_name="y")
        def h(a: Any, b: Any) -> Any:
            return lax.psum(a.sum() * b, "y")

        np.testing.assert_allclose(h(X, 3.0), 3 * X.sum(), rtol=1e-5)
        assert anima.shard_map(lambda a: anima.sharding.get_abstract_mesh().axis_types and a, in_specs=P("x"),
                               out_specs=P("x"), axis_names={"x"})(X).shape == X.shape


def test_results_lie_as_their_specs_say(mesh: Mesh) -> None:
    f = anima.shard_map(lambda a: (lax.psum(a, "x"), a), mesh=mesh, in_specs=P("x", "y"),
                        out_specs=(P(None, "y"), P("x", "y")))
    for g in (f, anima.jit(f), anima.jit(lambda x: [y * 2 for y in f(x)])):
        total, same = g(X)
        assert (total.sharding.mesh, total.sharding.spec, same.sharding.spec) == (mesh, P(None, "y"), P("x", "y"))
        assert {s.data.shape for s in same.addressable_shards} == {(2, 2)}
    assert anima.grad(lambda x: f(x)[0].sum())(X).sharding.spec == P("x", "y")
    explicit = anima.make_mesh((4, 2), ("x", "y"))
    x = anima.device_put(X, anima.NamedSharding(explicit, P("x")))
    inferred = anima.shard_map(lambda a: a * 2, mesh=explicit, out_specs=P("x"))
    assert anima.make_jaxpr(inferred)(x).eqns[0].params["in_specs"] == (P("x", None),)
    assert str(anima.typeof(inferred(x))) == "float32[8@x,4]"
    with pytest.raises(ValueError, match="incompatible devices"):
        f(anima.device_put(X, anima.devices()[3]))


def test_arguments_as_trees(mesh: Mesh) -> None:
    args = {"w": X, "b": [W, 2.0]}, 3
    f = anima.shard_map(lambda t, n: {"y": t["w"] * n + t["b"][0] * t["b"][1], "z": t["b"]}, mesh=mesh,
                        in_specs=({"w": P("x"), "b": P()}, None), out_specs={"y": P("x"), "z": P()})
    out = f(*args)
    np.testing.assert_allclose(out["y"], X * 3 + W * 2, rtol=1e-6)
    assert out["z"][1] == 2.0 and f.__wrapped__(*args)["y"].shape == (8, 4)


def test_elements_of_a_vmap_over_devices(mesh: Mesh) -> None:
    f = anima.shard_map(lambda a: lax.psum(a, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
    g = anima.vmap(f, spmd_axis_name="y")
    jaxpr = anima.make_jaxpr(g)(X.T.reshape(4, 8))
    assert jaxpr.eqns[0].params["in_specs"] == (P("y", "x"),)
    np.testing.assert_allclose(g(X.T), X.T.reshape(4, 4, 2).sum(1), rtol=1e-5)
    named = anima.vmap(anima.shard_map(lambda a: lax.psum(a, ("x", "i")), mesh=mesh, in_specs=P("x"), out_specs=P()),
                       axis_name="i", out_axes=None)
    np.testing.assert_allclose(named(X.T), X.T.reshape(4, 4, 2).sum((0, 1)), rtol=1e-5)


def test_random_numbers_of_each_device(mesh: Mesh) -> None:
    def draw(key: Any) -> Any:
        return anima.random.normal(anima.random.fold_in(key, lax.axis_index("x")), (2,))

    key = anima.random.key(7)
    out = anima.shard_map(draw, mesh=mesh, in_specs=P(), out_specs=P("x"))(key)
    expected = np.concatenate([anima.random.normal(anima.random.fold_in(key, k), (2,)) for k in range(4)])
    np.testing.assert_array_equal(out, expected)
    keys = anima.random.split(key, 8)
    np.testing.assert_array_equal(
        anima.shard_map(anima.vmap(anima.random.uniform), mesh=mesh, in_specs=P("x"), out_specs=P("x"))(keys),
        anima.vmap(anima.random.uniform)(keys))


def test_what_no_device_has_of_its_own_is_computed_once(mesh: Mesh) -> None:
    f = anima.shard_map(lambda w, a: a @ jnp.sin(w), mesh=mesh, in_specs=(P(), P(("x", "y"))), out_specs=P(("x", "y")))
    text = str(anima.jit(f).lower(np.ones((4, 4), np.float32), X).fused)
    assert "f32[4,4] = sin" in text and "f32[8,4,4]" not in text


def test_prints_and_loops_around(mesh: Mesh, capsys: pytest.CaptureFixture[str]) -> None:
    f = anima.shard_map(lambda a: a + lax.pmean(a, "x"), mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    out, _ = lax.scan(lambda c, _: (f(c), None), X, None, length=2)
    blocks = X.reshape(4, 2, 4)
    blocks = blocks + blocks.mean(0)
    np.testing.assert_allclose(out, (blocks + blocks.mean(0)).reshape(8, 4), rtol=1e-5)
    g = anima.shard_map(lambda a: (anima.debug.print("{}", a.sum()), a)[1], mesh=mesh, in_specs=P(("x", "y")),
                        out_specs=P(("x", "y")))
    g(np.arange(8.0))
    anima.effects_barrier()
    assert sorted(capsys.readouterr().out.split()) == [f"{k}.0" for k in range(8)]


@pytest.mark.parametrize("method", [None, "expand_dims", "broadcast_all", "sequential"])
@pytest.mark.parametrize("around", [
    lambda call: call, anima.jit, lambda call: lambda x: lax.scan(lambda c, a: (c, call(a)), 0, x)[1],
    lambda call: lambda x: lax.cond(x.sum() > -99, call, lambda x: x + lax.axis_index("x"), x)],
    ids=["", "jit", "scan", "cond"])
def test_each_device_calls_back_with_its_own_part(mesh: Mesh, method: str | None, around: Any) -> None:
    shapes: list[Any] = []

    def host(x: Any) -> np.ndarray:
        shapes.append(x.shape)
        return np.asarray(x) * 2

    def call(x: Any) -> Any:
        return anima.pure_callback(host, anima.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method=method)

    f = anima.shard_map(around(call), mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    for fun in (f, anima.jit(f)):
        np.testing.assert_array_equal(fun(X), X * 2)
    assert set(shapes) <= {(2, 4), (4,)}
    if method is None:
        with pytest.raises(NotImplementedError, match="vmap_method"):
            anima.vmap(anima.shard_map(call, mesh=mesh, in_specs=P("x"), out_specs=P("x")))(X[None])


@pytest.mark.parametrize("ordered", [False, True])
def test_effects_are_those_of_every_device(mesh: Mesh, ordered: bool) -> None:
    seen: list[int] = []
    kind = anima.ShapeDtypeStruct((), np.int32)

    def count(*args: Any) -> np.int32:
        seen.append(1)
        return np.int32(len(seen))

    f = anima.shard_map(lambda x: x + io_callback(count, kind, ordered=ordered), mesh=mesh, in_specs=P("x"),
                        out_specs=P(("x", "y")), check_vma=False)
    assert sorted(np.asarray(f(np.zeros(8, np.int32))[::2]).tolist()) == [*range(1, 9)]


def test_references_within(mesh: Mesh) -> None:
    def f(a: Any) -> Any:
        total, count = anima.new_ref(a), anima.new_ref(jnp.zeros(()))
        total[0] += lax.psum(a[0], "x")
        count[...] += lax.psum(1, "x")
        return total[...], count[...]

    out, count = anima.shard_map(f, mesh=mesh, in_specs=P("x", "y"), out_specs=(P("x", "y"), P()))(X)
    np.testing.assert_allclose(out[::2], X[::2] + X[::2].sum(0), rtol=1e-5)
    np.testing.assert_allclose(out[1::2], X[1::2])
    assert count == 4
    with pytest.raises(ValueError, match="does not vary along x, y"):
        anima.shard_map(lambda a: anima.new_ref(jnp.zeros((2, 2))).__setitem__(..., a), mesh=mesh,
                        in_specs=P("x", "y"), out_specs=P())(X)


def test_results_lie_as_out_specs_are_written() -> None:
    mesh = Mesh(np.array(anima.devices()[:1]), ("m",))
    for spec in (P(None), P(None, None), P("m", None), P(None, "m"), P()):
        g = anima.shard_map(lambda x: x, mesh=mesh, in_specs=spec, out_specs=spec)
        assert g(jnp.ones((2, 2))).sharding.spec == spec


def test_operands_that_every_device_has(mesh: Mesh) -> None:
    """Without specs of the operands each device has the whole; one without a spec is passed on as it is."""
    doubled = anima.shard_map(lambda a: a * 2, mesh=mesh, in_specs=None, out_specs=P("x"))
    np.testing.assert_array_equal(doubled(X), np.tile(X * 2, (4, 1)))
    scaled = anima.shard_map(lambda a, n: a * n, mesh=mesh, in_specs=(P("x"), None), out_specs=P("x"))
    np.testing.assert_array_equal(scaled(X, 3), X * 3)


def test_sums_of_parts_are_no_operands(mesh: Mesh) -> None:
    for given in ({"unreduced": {"x"}}, {"reduced": {"x"}}):
        with pytest.raises(NotImplementedError, match="values that are sums of parts are not supported"):
            anima.shard_map(lambda a: a, mesh=mesh, in_specs=P(None, **given), out_specs=P("x"))(X)


def test_functions_that_nobody_can_look_into(mesh: Mesh) -> None:
    class Silent:
        __signature__ = "none"

        def __call__(self, a: Any) -> Any:
            return a * 2

    np.testing.assert_array_equal(anima.shard_map(Silent(), mesh=mesh, in_specs=P("x"), out_specs=P("x"))(X), X * 2)


def test_extremes_of_groups_vary(mesh: Mesh) -> None:
    groups = [[0, 1], [2, 3]]
    f = anima.shard_map(lambda x: lax.pmax(x, "x", axis_index_groups=groups) - lax.pmin(
        x, "x", axis_index_groups=groups), mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    for fun in (f, anima.jit(f)):
        np.testing.assert_array_equal(fun(np.array([1, 4, 9, 16])), [3, 3, 7, 7])
    with pytest.raises(ValueError, match="replication"):
        anima.shard_map(lambda x: lax.pmax(x, "x", axis_index_groups=groups), mesh=mesh, in_specs=P("x"),
                        out_specs=P())(np.arange(4))


@pytest.mark.parametrize("f", [lambda x: jnp.sin(jnp.sum(x)), jnp.sum], ids=["sin", "sum"])
def test_derivatives_of_lanes_that_are_spread(f: Fun) -> None:
    mesh = anima.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    mapped = anima.shard_map(f, mesh=mesh, in_specs=P("y"), out_specs=P(), check_vma=False)
    plain = anima.vmap(anima.grad(mapped))(X[:4])
    for fun in (anima.grad(mapped), anima.grad(anima.jit(mapped))):
        spread = anima.vmap(fun, spmd_axis_name="x")(X[:4])
        assert spread.sharding.spec == (P(None, "y") if f is jnp.sum else P("x", "y"))
        np.testing.assert_allclose(spread, plain, rtol=1e-6)
    second = anima.vmap(anima.hessian(mapped), spmd_axis_name="x")(X[:4])
    np.testing.assert_allclose(second, anima.vmap(anima.hessian(mapped))(X[:4]), rtol=1e-6)
    with pytest.raises(ValueError, match=r"spmd_axis_name .* cannot appear in shard_map in_specs"):
        anima.vmap(mapped, spmd_axis_name="y")(X[:4])


def test_abstract_meshes_are_those_of_the_arguments(mesh: Mesh) -> None:
    f = anima.shard_map(lambda x, y: x + y, mesh=mesh.abstract_mesh, in_specs=(P("x"), P()), out_specs=P("x"))
    rows = anima.NamedSharding(mesh, P("x"))
    for fun in (f, anima.jit(f)):
        out = fun(anima.device_put(X, rows), X[:2])
        assert out.sharding == rows
        np.testing.assert_array_equal(out, X + np.tile(X[:2], (4, 1)))
    other = anima.NamedSharding(anima.make_mesh((8,), ("z",)), P())
    with pytest.raises(ValueError, match="Mesh shape of the input"):
        f(anima.device_put(X, other), X[:2])


def test_what_is_like_a_value_varies_as_it(mesh: Mesh) -> None:
    def f(x: Any) -> Any:
        made = [jnp.zeros_like(x), jnp.ones_like(x, shape=(5,)), jnp.full_like(x, 2), lax.full_like(x, 1)]
        assert [anima.typeof(y).vma for y in made] == [{"x"}] * 4
        return lax.fori_loop(0, 2, lambda i, c: c + x, made[0])

    g = anima.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    np.testing.assert_allclose(g(X), 2 * X, rtol=1e-6)
