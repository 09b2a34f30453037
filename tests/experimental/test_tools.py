"""Small tools: what they do on CPUs, and what they refuse."""

from __future__ import annotations

import json
import linecache
import pathlib
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.machine import store
from anima.experimental import (
    control_deps,
    profiler as xla_profiler,
    roofline as rl,
    scheduling_groups as groups,
    shard_alike as alike,
    source_mapper as sm,
    topologies,
    transfer,
)
from anima.experimental.compilation_cache import compilation_cache
from anima.experimental.sparse import BCOO
from anima.extend.core import Primitive
from anima.ops.linalg_spectral import eigh_tridiagonal_p
from anima.ops.linalg_systems import sylvester_p
from anima.ops.threefry import threefry2x32_p
from anima.profiler import ProfileData, TraceAnnotation, trace
from anima.sharding import Mesh, NamedSharding, PartitionSpec as P

X = np.arange(6, dtype=np.float32).reshape(2, 3)


# ---------------------------------------------------------------- names of parts

def test_groups_are_calls_in_programs() -> None:
    group = groups.scheduling_group(name="g")(lambda x, *, b: {"y": jnp.sin(x) * b})
    text = str(anima.make_jaxpr(lambda x: group(x, b=2.0))(X))
    assert "xla_metadata_call[" in text and "scheduling_group=g" in text and "sin" in text
    for run in (lambda f: f, anima.jit):
        np.testing.assert_allclose(run(lambda x: group(x, b=2.0))(X)["y"], 2 * np.sin(X), rtol=1e-6)
    gradient = anima.grad(lambda x: group(x, b=x)["y"].sum())(X)
    np.testing.assert_allclose(gradient, np.sin(X) + X * np.cos(X), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(anima.vmap(lambda x: group(x, b=3.0)["y"])(X), 3 * np.sin(X), rtol=1e-6)
    inner = groups.xla_metadata_call(lambda x: x * X, note=1)  # closes over an array
    np.testing.assert_array_equal(anima.jit(inner)(X), X * X)


def test_order_of_operations() -> None:
    def f(x: Any) -> Any:
        a, b = jnp.sin(x), jnp.cos(x)
        assert control_deps.control_dep(a, b) is None and control_deps.schedule([b, a, b]) is None
        return a + b

    for run in (f, anima.jit(f), anima.vmap(f)):
        np.testing.assert_allclose(run(jnp.asarray(X)), np.sin(X) + np.cos(X), rtol=1e-6)
    with pytest.raises(TypeError):
        control_deps.control_dep("a", X)


# ---------------------------------------------------------------- devices

def test_alike() -> None:
    a, b = anima.jit(alike.shard_alike)({"x": X}, {"x": 2 * X})
    np.testing.assert_array_equal(a["x"], X)
    np.testing.assert_array_equal(b["x"], 2 * X)
    np.testing.assert_array_equal(anima.grad(lambda x: alike.shard_alike(x, x)[1].sum())(X), np.ones_like(X))
    with pytest.raises(ValueError, match="Trees should match"):
        alike.shard_alike([X], (X,))
    with pytest.raises(ValueError, match=r"leaf shape: \(2, 3\) and `y` leaf shape: \(3, 2\)"):
        alike.shard_alike(X, X.T)


def test_what_is_alike_is_cut_alike(eight_devices: Any) -> None:
    mesh = Mesh(np.array(eight_devices[:2]), ("x",))
    cut = anima.device_put(jnp.ones((4, 3)), NamedSharding(mesh, P("x")))
    _, other = anima.jit(alike.shard_alike)(cut, jnp.zeros((4, 3)))
    assert other.sharding.spec == P("x")


def test_topologies() -> None:
    here = topologies.get_attached_topology()
    assert here.devices == anima.devices() == topologies.get_attached_topology("cpu").devices
    assert topologies.make_mesh(here, (len(here.devices),), ("x",)).axis_names == ("x",)
    with pytest.raises(RuntimeError):
        topologies.get_attached_topology("tpu")
    with pytest.raises(NotImplementedError, match="machines that are not there"):
        topologies.get_topology_desc("v5e:2x2", "tpu")
    with pytest.raises(NotImplementedError, match="pull arrays from"):
        transfer.start_transfer_server(None)
    with pytest.raises(NotImplementedError, match="XLA's instructions"):
        xla_profiler.get_profiled_instructions_proto("/tmp")


# ---------------------------------------------------------------- the cache on the disk

def test_cache_on_the_disk(tmp_path: pathlib.Path, unchecked: None) -> None:
    before = anima.config.compilation_cache_dir
    try:
        with anima.config.option("enable_compilation_cache")(True):
            compilation_cache.set_cache_dir(tmp_path / "programs")
            assert compilation_cache.is_initialized() and store.location() == str(tmp_path / "programs")
            anima.jit(lambda x: jnp.sin(x) * 2.5)(X)
            compilation_cache.reset_cache()
            assert any((tmp_path / "programs").rglob("*"))
    finally:
        anima.config.update("compilation_cache_dir", before)
    with anima.config.option("enable_compilation_cache")(False):
        assert not compilation_cache.is_initialized()


# ---------------------------------------------------------------- counts

def test_counts() -> None:
    a, b = np.ones((8, 16), np.float32), np.ones((16, 4), np.float32)
    shapes, result = rl.roofline(lambda a, b: jnp.exp(a @ b) + 1)(a, b)
    assert shapes.shape == (8, 4)
    assert result.flops == 2 * 8 * 16 * 4 and result.unfused_flops == result.flops + 8 * 4 * 2
    out = 8 * 4 * 4
    assert result.unfused_hbm_bytes == a.nbytes + b.nbytes + out + 2 * out + 2 * out
    assert a.nbytes + b.nbytes + out <= result.hbm_bytes < result.unfused_hbm_bytes
    assert result.peak_hbm_bytes == a.nbytes + b.nbytes + out
    looped = rl.roofline(lambda x: lax.fori_loop(0, 10, lambda i, c: c @ c, x))(np.ones((4, 4), np.float32))[1]
    assert looped.flops == 10 * 2 * 4**3
    forward, backward = rl.roofline_and_grad(lambda a: jnp.sum(a @ b), None, None, None)(a)[1:]
    assert forward.flops == 2 * 8 * 16 * 4 < backward.flops
    types = rl.roofline(jnp.sin)(anima.ShapeDtypeStruct((5,), np.float32))[1]
    assert types.unfused_flops == 5 and types.ici_bytes == {}


F, C = np.ones((8, 64), np.float32), np.ones((8, 64), np.complex64)
M, S, TALL, V = (np.ones(shape, np.float32) for shape in ((2, 5, 3), (4, 4), (4, 7), 5))
KEYS = np.zeros(8, np.uint32)


@pytest.mark.parametrize("call, args, operations", [
    (lambda x: lax.sort(x), (F,), 512 * 6), (lambda x: lax.top_k(x, 2)[0], (F,), 512 * 6),
    (lambda x: lax.top_k(x, 2, axis=0)[0], (F,), 512 * 3), (lambda x: lax.argmin(x, 1, "int32"), (M,), 30 - 6),
    (lambda x: lax.fft(x, "FFT", (64,)), (C,), 5 * 512 * 6), (lambda x: lax.fft(x, "FFT", (8, 64)), (C,), 5 * 512 * 9),
    (lambda x: lax.fft(x, "RFFT", (64,)), (F,), 2.5 * 512 * 6), (lambda x: lax.fft(x, "FFT", (1,)), (C[:, :1],), 5 * 8),
    (lambda x: lax.fft(x, "IRFFT", (64,)), (C[:, :33],), 2.5 * 512 * 6),
    (lambda x: lax.linalg.cholesky(x, symmetrize_input=False), (S,), 64), (lax.linalg.geqrf_p.bind, (M,), 30 * 3),
    (lax.linalg.ormqr, (M, M[:, 0, :2], np.ones((2, 5, 4), "f")), 4 * 40 * 2),
    (lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True), (S, TALL), 28 * 4),
    (lambda a, b: lax.linalg.triangular_solve(a, b), (S, TALL.T), 28 * 4),
    (lambda d, e: eigh_tridiagonal_p.bind(d, e, vectors=True), (V, V[:4]), 30 * 5),
    (lambda d, e: eigh_tridiagonal_p.bind(d, e, vectors=False), (V, V[:4]), 5 * 5),
    (lambda a, b, c: sylvester_p.bind(a, a, a, b, b, b, c, transposed=False), (S, S[:3, :3], S[:, :3]), 5 * 12 * 7),
    (lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 4), (1, 4), "VALID"), (F,), 8 * 16 * 3),
    (lambda k, x: threefry2x32_p.bind(k, k, x, x), (KEYS, KEYS), 800),
    (lambda m, x: m @ x, (BCOO.fromdense(np.eye(4, 5, dtype=np.float32)), M[0]), 2 * 4 * 3),
])
def test_operations_are_counted_as_they_say(call: Any, args: tuple[Any, ...], operations: float) -> None:
    assert rl.roofline(call)(*args)[1].unfused_flops == operations


def test_counts_inside_of_meshes() -> None:
    """A program over a mesh counts as that of one device does."""
    mesh = Mesh(np.array(anima.devices()[:1]), ("x",))
    shapes, result = rl.roofline(lambda x: jnp.sin(x) @ x.T, mesh, P("x"), P("x"))(X)
    plain = rl.roofline(lambda x: jnp.sin(x) @ x.T)(X)[1]
    assert shapes.shape == (2, 2) and result.flops == plain.flops == 24 and result.unfused_flops == 30
    assert rl.RooflineShape.total_bytes([anima.typeof(X), anima.typeof(jnp.ones(3, "int8"))]) == 27
    assert rl.RooflineResult.zeros() + result == result


def test_sums_of_counts_and_rules_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    one = rl.RooflineResult(flops=2, hbm_bytes=3, peak_hbm_bytes=5, ici_bytes={"x": 1})
    assert one + 2 * one == rl.RooflineResult(flops=6, hbm_bytes=9, peak_hbm_bytes=10, ici_bytes={"x": 3})
    assert one * 0.5 == rl.RooflineResult(flops=1, hbm_bytes=1, peak_hbm_bytes=2, ici_bytes={"x": 0})
    mine, free = Primitive("mine_counted"), Primitive("free_counted")
    for p in (mine, free):
        p.def_abstract_eval(lambda x: x)

    @rl.register_roofline(mine)
    def rule(context: Any, x: rl.RooflineShape) -> rl.RooflineResult:
        assert context.primitive is mine and context.avals_in[0].shape == x.shape
        return rl.RooflineResult(flops=7 * x.size, hbm_bytes=x.bytes)

    rl.register_standard_roofline(free)
    result = rl.roofline(lambda x: free.bind(mine.bind(x)), print_jaxpr=True)(X)[1]
    assert (result.flops, result.hbm_bytes) == (42, 24)
    assert "mine_counted" in capsys.readouterr().out
    with pytest.raises(TypeError, match="Expected ShapedArray"):
        rl.RooflineShape.from_aval(3)


# ---------------------------------------------------------------- maps of sources

def mapped(x: Any) -> Any:
    y = jnp.sin(x)
    return lax.scan(lambda c, a: (c * a, c + a), y, jnp.arange(3.0))


def test_source_maps() -> None:
    jaxpr, loops = sm.generate_sourcemaps(mapped, sm.filter_passes("jaxpr|loops"))(1.0)
    assert "sin" in jaxpr.generated_code and "#" not in jaxpr.generated_code and jaxpr.pass_name == "jaxpr"
    for dump, words in ((jaxpr, ("sin", "mul")), (loops, ("kernel sin",))):
        again = sm.SourceMap.from_json(dump.source_map.to_json())
        assert again == dump.source_map and json.loads(dump.source_map.to_json())["version"] == 3
        asked, line = {}, 0
        for text, segments in zip(dump.generated_code.splitlines(), again.mappings, strict=True):
            for _, _, more, _ in segments:
                line += more
                asked[text.strip()] = linecache.getline(again.sources[0], line + 1)
        for word in words:
            [place] = [source for text, source in asked.items() if word in text]
            assert ("jnp.sin(x)" if "sin" in word else "lax.scan(") in place


def test_passes_and_numbers() -> None:
    assert [p.name for p in sm.all_passes()][:2] == ["jaxpr", "loops"] and sm.filter_passes("nothing") == []
    with pytest.raises(ValueError, match="already registered"):
        sm.register_pass(sm.all_passes()[0])
    with pytest.raises(NotImplementedError, match="flags of XLA"):
        sm.compile_with_env(mapped, (1.0,), {}, {}, {"xla_dump_to": "/tmp"})
    assert sm.compile_with_env(mapped, (1.0,), {}, {}, None) is None
    made = sm.MappingsGenerator()
    with pytest.raises(RuntimeError, match="new_group"):
        made.new_segment(1)
    made.new_group()
    for numbers in ((5, 1, 10, 40), (9,), (900, 0, 7, 0, 2)):
        made.new_segment(*numbers)
    with pytest.raises(ValueError, match="one, four or five"):
        made.new_segment(1, 2)
    whole = sm.SourceMap(3, ["a", "b"], [], ["n"], made.mappings())
    assert made.mappings() == [[(5, 1, 10, 40), (4,), (891, -1, -3, -40, 2)]]
    assert sm.SourceMap.from_json(whole.to_json()) == whole
    assert json.loads(whole.to_json())["mappings"].startswith("KCUwC,I,")  # as other readers have it


# ---------------------------------------------------------------- traces as data

def test_traces_are_data(tmp_path: pathlib.Path) -> None:
    with trace(tmp_path), TraceAnnotation("outer", number=3), TraceAnnotation("inner"):
        anima.jit(lambda x: x * 2)(X)
    for data in (ProfileData.from_file(tmp_path), ProfileData.from_file(next(tmp_path.rglob("*.gz")))):
        plane = data.find_plane_with_name("/host:CPU")
        assert plane is data.planes[0] and data.find_plane_with_name("gpu") is None
        events = [e for line in plane.lines for e in line.events]
        outer, inner = (next(e for e in events if e.name == name) for name in ("outer", "inner"))
        assert outer.start_ns <= inner.start_ns <= inner.end_ns <= outer.end_ns and inner.duration_ns > 0
        assert dict(outer.stats) == {"kind": "annotation", "number": 3}
        assert "MainThread" in [line.name for line in plane.lines]
    (tmp_path / "no.json.gz").write_bytes(b"no")
    with pytest.raises(ValueError, match="is no trace"):
        ProfileData.from_file(tmp_path / "no.json.gz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError):
        ProfileData.from_file(tmp_path / "empty")
    with pytest.raises(NotImplementedError, match="XLA's format"):
        ProfileData.from_serialized_xspace(b"")
