"""What is about several devices, processes or memories: what it means on one CPU, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import random
from anima.experimental import (
    compute_on,
    custom_partitioning as cp,
    fused,
    layout,
    mesh_utils,
    multihost_utils,
    random as stateful,
    xla_metadata,
)

X = np.float32([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


def equal(actual: Any, expected: Any) -> None:
    for a, e in zip(anima.tree.leaves(actual), anima.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(e), rtol=1e-6)


# ---------------------------------------------------------------- layouts and places

def test_layouts() -> None:
    order = layout.Layout((1, 0))
    assert order.update(tiling=((8,),)).tiling == ((8,),) and order.update(tiling=None) == order
    assert (layout.Format(), layout.Format(order).layout) == (layout.Format(None, None), order)
    assert repr(layout.Layout.AUTO) == "AUTO"

    class Pjrt:
        def minor_to_major(self) -> tuple[int, ...]:
            return 0, 1

    assert layout.Layout.from_pjrt_layout(Pjrt()) == order
    for mode in (lambda f: f, anima.jit):
        equal(mode(lambda x: layout.with_layout_constraint(x, order))(X), X)
        equal(mode(lambda x: layout.with_layout_constraint({"a": x, "b": [x]}, order))(X), {"a": X, "b": [X]})
    equal(anima.grad(lambda x: layout.with_layout_constraint(x, order).sum())(X), np.ones_like(X))
    for wrong in (layout.Layout((0,)), layout.Layout((0, 0)), layout.Layout((0, 1, 2))):
        with pytest.raises(ValueError, match="Length of major_to_minor"):
            layout.with_layout_constraint(X, wrong)


@pytest.mark.parametrize("place", ["device_host", "device", "tpu_sparsecore", "gpu_stream:3"])
def test_places(place: str) -> None:
    with compute_on.compute_on(place):
        equal(anima.jit(lambda x: 2 * x)(X), 2 * X)
    equal(compute_on.compute_on(place)(lambda x: 2 * x)(X), 2 * X)
    equal(compute_on.compute_on2(compute_type=place, out_memory_spaces=None)(lambda x: 2 * x)(X), 2 * X)
    equal(compute_on.compute_on2(lambda x: 2 * x, compute_type=place, out_memory_spaces=None)(X), 2 * X)


@pytest.mark.parametrize("place", ["moon", "gpu_stream:", "device ", None])
def test_places_that_there_are_not(place: Any) -> None:
    with pytest.raises(ValueError, match="Invalid compute type"), compute_on.compute_on(place):
        pass
    with pytest.raises(ValueError, match="Invalid compute type"):
        compute_on.compute_on2(compute_type=place, out_memory_spaces=None)


def test_notes_change_nothing() -> None:
    with xla_metadata.set_xla_metadata(group=1):
        equal(jnp.sin(X), np.sin(X))
    equal(xla_metadata.set_xla_metadata(group=1)(jnp.sin)(X), np.sin(X))
    equal(anima.grad(lambda x: xla_metadata.set_xla_metadata(x * x, group=1))(3.0), 6.0)


def test_fused_functions() -> None:
    @fused.fused(out_spaces=("device", "device"))
    def f(x: Any) -> Any:
        return x + 1, x * 2

    equal(f(X), (X + 1, X * 2))
    equal(anima.grad(lambda x: f(x)[1].sum())(X), np.full_like(X, 2))
    with pytest.raises(TypeError, match="1 kinds of memory"):
        fused.fused(out_spaces=("device",))(lambda x: (x, x))(X)
    with pytest.raises(TypeError, match="2 kinds of memory"):
        fused.fused(out_spaces=("device",) * 2)(lambda x: x)(X)


# ---------------------------------------------------------------- processes and devices

def test_one_process_agrees_with_itself() -> None:
    values = {"a": jnp.ones(2), "b": 1}
    multihost_utils.assert_equal(values)
    multihost_utils.sync_global_devices("here")
    assert multihost_utils.reached_preemption_sync_point(3) is False
    same = multihost_utils.broadcast_one_to_all(values)
    assert isinstance(same["a"], np.ndarray)
    equal(same, values)
    gathered = multihost_utils.process_allgather(values)
    assert (gathered["a"].shape, gathered["b"].shape) == ((1, 2), (1,))
    tiled = multihost_utils.process_allgather(values, tiled=True)
    assert (tiled["a"].shape, tiled["b"].shape) == ((2,), ())
    for get in (multihost_utils.process_allgather, multihost_utils.broadcast_one_to_all):
        assert get(np.arange(3.0)).dtype == np.float64  # as this process has it
    mesh = anima.sharding.Mesh(anima.devices()[:1], "x")
    for spec, known in ((anima.P("x"), anima.P("x")), (None, anima.P())):
        for change in (multihost_utils.host_local_array_to_global_array,
                       multihost_utils.global_array_to_host_local_array):
            placed = change({"a": X}, mesh, spec)["a"]
            equal(placed, X)
            assert placed.sharding == anima.NamedSharding(mesh, known)
    with pytest.raises(ValueError, match="Resource axis: y of"):
        multihost_utils.host_local_array_to_global_array(X, mesh, anima.P("y"))
    with multihost_utils.live_devices([*anima.devices(), "gone"]) as alive:
        assert alive == anima.devices()
    with pytest.raises(ValueError, match="source"):
        multihost_utils.broadcast_one_to_all(values, is_source=False)
    with pytest.raises(TypeError):
        multihost_utils.assert_equal("text")
    assert multihost_utils.ProcessFailureError([1]).failed_devices == [1]


class Chip:
    """A device of a machine of several."""

    def __init__(self, number: int) -> None:
        self.slice_index, self.process_index, self.number = number // 4, number // 2, number


def numbers(mesh: np.ndarray) -> Any:
    return np.vectorize(lambda chip: chip.number)(mesh).tolist()


def test_meshes_of_devices() -> None:
    mesh = mesh_utils.create_device_mesh((1, 1))
    assert (mesh.shape, mesh[0, 0]) == ((1, 1), anima.devices()[0])
    chips = [Chip(k) for k in range(8)]
    assert numbers(mesh_utils.create_device_mesh((2, 4), chips)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert numbers(mesh_utils.create_hybrid_device_mesh((2, 2), (2, 1), chips)) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert numbers(mesh_utils.create_hybrid_device_mesh((2, 1), (1, 4), chips, process_is_granule=True)) == [
        [0, 2, 4, 6], [1, 3, 5, 7]]
    turned = mesh_utils.create_hybrid_device_mesh((4,), (2,), chips[::-1], should_sort_granules_by_key=False)
    assert numbers(turned) == [7, 6, 5, 4, 3, 2, 1, 0]
    with pytest.raises(ValueError, match="Number of devices 1 must equal"):
        mesh_utils.create_device_mesh((2,))
    with pytest.raises(ValueError, match="Number of slices 2 must equal"):
        mesh_utils.create_hybrid_device_mesh((4,), (1,), chips)
    with pytest.raises(ValueError, match="does not have attribute slice_index"):
        mesh_utils.create_hybrid_device_mesh((1,), (1,))
    with pytest.raises(ValueError, match="as many axes"):
        mesh_utils.create_hybrid_device_mesh((4,), (2, 1), chips)


def test_functions_that_say_how_they_are_cut() -> None:
    scale = jnp.float32(3.0)

    @cp.custom_partitioning
    def f(x: Any, y: Any = 2.0) -> Any:
        return x * y, scale * x

    f.def_partition(lambda *args: None, sharding_rule="i j, -> i j, i j")
    eqn = anima.make_jaxpr(f)(X).eqns[0]
    assert eqn.primitive is cp.custom_partitioning_p and eqn.params["sharding_rule"].startswith("i j")
    for mode in (lambda f: f, anima.jit):
        equal(mode(f)(X), (2 * X, 3 * X))
        equal(mode(lambda x: f(x, y=4.0))(X), (4 * X, 3 * X))
        equal(mode(anima.vmap(f))(X), (2 * X, 3 * X))
        equal(mode(anima.grad(lambda x: f(x)[0].sum()))(X), np.full_like(X, 2))

    @anima.jit
    def closing(scale: Any) -> Any:
        scaled = cp.custom_partitioning(lambda x: x * scale)
        scaled.def_partition(lambda *args: None)
        return scaled(X)

    equal(closing(5.0), 5 * X)
    fixed = cp.custom_partitioning(lambda x, n: x[:n], static_argnums=(1,))
    with pytest.raises(AttributeError, match="def_partition says how"):
        fixed(X, 1)
    fixed.def_partition(lambda *args: None)
    equal(fixed(X, 1), X[:1])
    with pytest.raises(ValueError, match="sharding_rule that is a string"):
        f.def_partition(lambda *args: None, reduction_factors=("i",))


def test_rules_of_partitioning() -> None:
    i, ij = cp.ArrayMapping("i", cp.BATCHING), cp.ArrayMapping(cp.CompoundFactor("i", "k"), "j")
    rule = cp.SdyShardingRule((ij,), (i,), k=2, reduction_factors=("j",))
    assert (rule.operand_mappings, rule.reduction_factors) == ((ij,), ("j",))
    for wrong, match in ((lambda: cp.ArrayMapping(1), "must be a str"),
                         (lambda: cp.CompoundFactor("i"), "at least two"),
                         (lambda: cp.CompoundFactor("i", 2), "must be a str"),
                         (lambda: cp.SdyShardingRule((i,), (i,), i=3), "whole dimension"),
                         (lambda: cp.SdyShardingRule((i,), (i,), z=3), "not used"),
                         (lambda: cp.SdyShardingRule((ij,), (i,)), "k is only used in compound factors"),
                         (lambda: cp.SdyShardingRule((i,), (i,), reduction_factors=("z",)), "not used")):
        with pytest.raises(ValueError, match=match):
            wrong()


def test_rules_of_partitioning_as_texts() -> None:
    f = cp.custom_partitioning(lambda x: x)
    for rule, sizes in (("i j -> i", {}), ("... i -> ...", {}), ("...1, (i j) k -> (i j)", {"i": 2, "j": 3}),
                        ("->", {}), ("i, j1->i j1", {"reduction_factors": ("i",)})):
        f.def_partition(lambda *args: None, sharding_rule=rule, **sizes)
    for rule, sizes in (("2i -> j", {}), ("i", {}), ("i (j -> j", {}), ("i j) -> j", {}), ("i; j -> j", {}), ("", {}),
                        (".i -> j", {}), ("i (j) -> i", {}), ("i ((j k)) -> i", {}), ("i ... -> i", {}),
                        ("i->i->i", {}), ("i -> (i k)", {}), ("i -> i", {"i": 2}), ("i -> i", {"k": 2}),
                        ("i -> i", {"reduction_factors": ("i",), "permutation_factors": ("i",)})):
        with pytest.raises(ValueError, match=r"[Ff]actor|rackets|->|\.\.\."):
            f.def_partition(lambda *args: None, sharding_rule=rule, **sizes)
    for rule, sizes in ((3, {}), ("(i j) -> (i j)", {"i": "b", "j": 2})):
        with pytest.raises(TypeError, match="must be a"):
            f.def_partition(lambda *args: None, sharding_rule=rule, **sizes)


# ---------------------------------------------------------------- random numbers

def test_a_generator_that_counts() -> None:
    rng = stateful.stateful_rng(0)
    base = random.key(0)

    def nth(n: int) -> Any:
        return random.fold_in(base, n)

    equal(random.key_data(rng.key()), random.key_data(nth(0)))
    equal(rng.random(3), random.uniform(nth(1), (3,)))
    equal(rng.normal(2.0, 3.0, (2, 2)), random.normal(nth(2), (2, 2)) * 3 + 2)
    equal(rng.integers(5, size=4), random.randint(nth(3), (4,), 0, 5))
    equal(rng.integers(3, 9), random.randint(nth(4), (), 3, 9))
    equal(rng.uniform(1.0, 2.0, 2), random.uniform(nth(5), (2,), minval=1.0, maxval=2.0))
    equal(random.key_data(rng.key((2,))), random.key_data(random.split(nth(6), (2,))))
    children = rng.spawn(2)
    assert float(children[0].random()) != float(children[1].random())
    assert repr(rng).endswith("_counter=Ref(8, dtype=int32))")
    assert rng.random(dtype="float16").dtype == np.float16
    with pytest.raises(ValueError, match="typed key"):
        stateful.StatefulPRNG(1)
    assert 0 <= float(stateful.stateful_rng().random()) < 1


def test_a_generator_counts_in_programs() -> None:
    rng = stateful.stateful_rng(0)
    inner = anima.jit(lambda: rng.random())
    other = anima.jit(lambda r: r.random())
    drawn = [inner(), inner(), other(rng), rng.random()]
    equal(drawn, [random.uniform(random.fold_in(random.key(0), n)) for n in range(4)])
    _, several = anima.lax.scan(lambda c, _: (c, rng.random()), 0, None, length=3)
    equal(list(several), [random.uniform(random.fold_in(random.key(0), n)) for n in range(4, 7)])
    with pytest.raises(TypeError, match="explicit seed"):
        anima.jit(lambda: stateful.stateful_rng().random())()

    @anima.jit
    def inside(seed: Any) -> Any:
        mine = stateful.stateful_rng(seed)
        return mine.random(), mine.random()

    first, second = inside(3)
    assert first != second
    equal(first, random.uniform(random.fold_in(random.key(3), 0)))
    slope = anima.grad(lambda x: x * rng.random())(2.0)
    equal(slope, random.uniform(random.fold_in(random.key(0), 7)))


def test_generators_to_map_over() -> None:
    rng = stateful.stateful_rng(0)
    lanes = rng.split(3)
    keys = random.split(random.fold_in(random.key(0), 0), 3)
    for n in range(2):
        drawn = anima.vmap(lambda r, x: x + r.random())(lanes, jnp.arange(3.0))
        equal(list(drawn), [k + random.uniform(random.fold_in(key, n)) for k, key in enumerate(keys)])
    with pytest.raises(ValueError, match="cannot operate on split stateful generator"):
        lanes.random()
    assert rng.split((2, 2)).tree_flatten()[0][0].shape == (2, 2)


def test_none_of_it_is_loaded_with_anima() -> None:
    code = ("import anima, sys; print([m for m in sys.modules if m.startswith(('anima.extend', 'anima.interpreters', "
            "'anima.experimental', 'anima.example_libraries', 'anima.api_util'))])")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
