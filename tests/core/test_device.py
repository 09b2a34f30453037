"""Devices, shardings, and what arrays and types say of them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import P, lax, nn
from anima.core.device import CPU, MEMORY_KINDS
from anima.core.shardings import Shard, Sharding
from anima.errors import ConcretizationTypeError
from anima.sharding import Mesh, NamedSharding

WHOLE = jnp.ones(2).sharding
ARRAYS = {"vector": jnp.arange(3), "scalar": jnp.float32(1), "empty": jnp.zeros((0, 2)), "key": anima.random.key(0)}


@pytest.mark.parametrize("x", ARRAYS.values(), ids=ARRAYS)
def test_an_array_lies_whole_on_its_device(x: Any) -> None:
    sharding = x.sharding
    assert sharding == anima.sharding.make_single_device_sharding(CPU) and hash(sharding) == hash(WHOLE)
    assert x.devices() == sharding.device_set == sharding.addressable_devices == {CPU} and x.device == CPU
    (shard,) = x.addressable_shards
    assert (shard.device, shard.replica_id, shard.index) == (CPU, 0, (slice(None),) * x.ndim)
    assert shard.data is x.addressable_data(0) is x.global_shards[0].data is x
    with pytest.raises(IndexError):
        x.addressable_data(1)
    assert x.is_fully_addressable and x.is_fully_replicated
    assert sharding.shard_shape(x.shape) == x.shape
    assert sharding.devices_indices_map(x.shape) == sharding.addressable_devices_indices_map(x.shape)
    assert sharding.num_devices == 1 and sharding.has_addressable_devices and sharding.is_fully_addressable
    assert sharding.is_equivalent_to(WHOLE, x.ndim) and sharding.is_fully_replicated
    assert x.to_device(sharding) is x and x.to_device(CPU) is x


def test_shardings_as_values() -> None:
    assert str(WHOLE) == "SingleDeviceSharding(device=CpuDevice(id=0), memory_kind=device)"
    assert pickle.loads(pickle.dumps(WHOLE)) == WHOLE
    assert WHOLE != "cpu" and str(CPU) == "cpu:0"
    others = [WHOLE.with_memory_kind(kind) for kind in MEMORY_KINDS]
    assert [s.memory_kind for s in others] == list(MEMORY_KINDS) and others[0] == WHOLE
    assert not any(s == WHOLE or s.is_equivalent_to(WHOLE, 1) for s in others[1:])
    assert all(anima.device_put(1.0, s).devices() == {CPU} for s in others)
    for kind in (lambda: WHOLE.with_memory_kind("disk"), lambda: type(WHOLE)(CPU, memory_kind="disk")):
        with pytest.raises(ValueError, match="Could not find memory 'disk'"):
            kind()
    elsewhere = type(WHOLE)(anima.Device(1, process_index=1))
    assert not elsewhere.is_fully_addressable and elsewhere.addressable_devices_indices_map((2,)) == {}
    assert isinstance(jnp.ones(2).addressable_shards[0], anima.Shard) and anima.Shard is Shard
    assert isinstance(WHOLE, anima.sharding.Sharding)


def test_a_sharding_of_ones_own() -> None:
    class Halves(Sharding):
        device_set = {CPU, anima.Device(1)}

        def devices_indices_map(self, global_shape: tuple[int, ...]) -> Any:
            half = global_shape[0] // 2
            return {CPU: (slice(0, half),), anima.Device(1): (slice(half, None),)}

    halves = Halves()
    assert halves.shard_shape((6,)) == (3,) and halves.num_devices == 2 and not halves.is_fully_replicated
    assert Shard(CPU, halves, (6,)).index == (slice(0, 3),)
    assert not halves.is_equivalent_to(WHOLE, 1)
    with pytest.raises(RuntimeError, match=r"Unknown device CpuDevice\(id=1\)"):
        jnp.zeros(6, device=halves)


TAKES_SHARDING: dict[str, Callable[[Any], Any]] = {
    "zeros": lambda s: jnp.zeros(3, out_sharding=s), "arange": lambda s: jnp.arange(3, out_sharding=s),
    "reshape": lambda s: jnp.ones(3).reshape(3, 1, out_sharding=s),
    "ravel": lambda s: jnp.ones(3).ravel(out_sharding=s), "flatten": lambda s: jnp.ones(3).flatten(out_sharding=s),
    "dot": lambda s: jnp.dot(2.0, jnp.ones(3), out_sharding=s),
    "einsum": lambda s: jnp.einsum("i,i", jnp.ones(3), jnp.ones(3), out_sharding=s),
    "lax.dot_general": lambda s: lax.dot_general(jnp.ones(3), jnp.ones(3), (((0,), (0,)), ((), ())), out_sharding=s),
    "lax.broadcasted_iota": lambda s: lax.broadcasted_iota(int, (3,), 0, out_sharding=s),
    "get": lambda s: jnp.ones(3).at[0].get(out_sharding=s), "set": lambda s: jnp.ones(3).at[0].set(1, out_sharding=s),
    "random": lambda s: anima.random.normal(anima.random.key(0), (3,), out_sharding=s),
    "initializer": lambda s: nn.initializers.ones(anima.random.key(0), (3,), out_sharding=s),
    "segment_sum": lambda s: anima.ops.segment_sum(jnp.ones(3), jnp.zeros(3, int), out_sharding=s),
    "quantile": lambda s: jnp.quantile(jnp.ones(3), 0.5, out_sharding=s),
}


@pytest.mark.parametrize("make", TAKES_SHARDING.values(), ids=TAKES_SHARDING)
def test_out_sharding(make: Callable[[Any], Any]) -> None:
    assert (make(NamedSharding(Mesh([CPU], "x"), P())) == make(None)).all()
    for wrong in (CPU, WHOLE, "cpu", 3):
        with pytest.raises(TypeError, match="only supports instances of `NamedSharding`"):
            make(wrong)
    with pytest.raises(RuntimeError, match=r"Unknown device CpuDevice\(id=1\)"):
        make(NamedSharding(Mesh([anima.Device(1)], "x"), P()))


def test_device_put_is_recorded() -> None:
    x = jnp.ones(2)
    for options, semantics in (({}, "REUSE_INPUT"), ({"donate": True}, "DONATE_INPUT"),
                               ({"may_alias": False}, "ALWAYS_COPY"), ({"may_alias": True}, "REUSE_INPUT")):
        program = anima.make_jaxpr(lambda v, o=options: anima.device_put(v, WHOLE, **o))(x)
        (eqn,) = program.eqns
        assert eqn.primitive is lax.device_put_p and [s.name for s in eqn.params["copy_semantics"]] == [semantics]
        assert eqn.params["devices"] == (WHOLE,) and eqn.params["srcs"] == (None,)
        assert anima.device_put(x, **options) is not x if semantics == "ALWAYS_COPY" else anima.device_put(x) is x
    grad = anima.grad(lambda v: jnp.sum(anima.device_put({"a": v, "b": 2 * v}, CPU)["b"] ** 2))
    np.testing.assert_allclose(anima.jit(grad)(x), grad(x))
    np.testing.assert_allclose(anima.vmap(anima.device_put)(x), x)
    key = anima.random.key(3)
    assert (anima.random.key_data(anima.jit(anima.device_put)(key)) == anima.random.key_data(key)).all()
    with pytest.raises(ValueError, match="may_alias and donate"):
        anima.device_put(x, donate=True, may_alias=True)
    with pytest.raises(ValueError, match="A device is one of"):
        anima.device_put(x, src=3)
    with pytest.raises(ValueError, match="prefix"):
        anima.device_put([x, x], [CPU])


def test_with_sharding_constraint() -> None:
    tree = {"a": jnp.ones(2), "b": 3.0}
    for constrain in (lax.with_sharding_constraint, anima.jit(lambda t, s: lax.with_sharding_constraint(t, s),
                                                              static_argnums=1)):
        assert constrain(tree, WHOLE)["b"] == 3
    (eqn,) = anima.make_jaxpr(lambda v: lax.with_sharding_constraint(v, WHOLE))(1.0).eqns
    assert eqn.primitive is lax.sharding_constraint_p and eqn.params["sharding"] == WHOLE
    assert anima.grad(lambda v: lax.with_sharding_constraint(v, WHOLE) ** 2)(3.0) == 6
    with pytest.raises(TypeError, match="with_sharding_constraint: a sharding must be"):
        lax.with_sharding_constraint(tree, CPU)


def test_traced_arrays_lie_nowhere() -> None:
    names = ["committed", "addressable_shards", "global_shards", "is_fully_addressable", "is_fully_replicated"]
    for name in names:
        with pytest.raises(ConcretizationTypeError, match=name):
            anima.jit(lambda x, n=name: getattr(x, n))(1.0)
    with pytest.raises(ConcretizationTypeError, match="addressable_data"):
        anima.jit(lambda x: x.addressable_data(0))(1.0)
    assert not anima.jit(lambda x: hasattr(x, "sharding"))(1.0)
    assert anima.jit(lambda x: x.to_device(CPU))(1.0) == 1


def test_programs_and_shardings() -> None:
    identity = anima.jit(lambda x, y: {"z": x}, in_shardings=WHOLE, out_shardings={"z": WHOLE})
    compiled = identity.lower(1.0, 2.0).compile()
    assert compiled.input_shardings == ((WHOLE, WHOLE), {}) and compiled.output_shardings == {"z": WHOLE}
    with pytest.raises(RuntimeError, match="Unknown device"):
        anima.jit(lambda x: x, in_shardings=type(WHOLE)(anima.Device(1)))(1.0)


def test_types() -> None:
    aval = anima.typeof(jnp.ones((2, 3)))
    assert (aval.str_short(), aval.str_short(short_dtypes=True), aval.str_short(True, True)) == (
        "float32[2,3]", "f32[2,3]", "f32[2,3]")
    assert aval.inc_rank(5, aval.leading_axis_spec()).shape == (5, 2, 3) and aval.inc_rank(5, -1).shape == (2, 3, 5)
    assert aval.dec_rank(2, 0).shape == (3,) and aval.dec_rank(3, -1).shape == (2,)
    assert aval.inc_rank(5, None) == aval == aval.dec_rank(2, None) == aval.update()
    assert aval.update((4,), jnp.int32.dtype, True) == aval.update(weak_type=True, dtype=jnp.int32.dtype, shape=(4,))
    assert aval.update_weak_type(True).weak_type and aval.to_tangent_aval() == aval.to_ct_aval() == aval
    assert anima.typeof(1).to_tangent_aval().dtype == anima.float0 == anima.typeof(1).at_least_vspace().dtype
