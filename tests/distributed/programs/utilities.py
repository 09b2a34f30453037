"""What `multihost_utils` and arrays over 3 processes say; raises where that is wrong."""

import time

import numpy as np

import anima
import anima.numpy as jnp
from anima import NamedSharding, P
from anima.experimental import multihost_utils as utils
from anima.sharding import AxisType


def refused(call, kind, *texts):
    """Asserts that a call raises such an error, with these texts in it."""
    try:
        call()
    except kind as error:
        assert all(text in str(error) for text in texts), error
    else:
        raise AssertionError(f"no {kind.__name__}: {texts}")


anima.distributed.initialize(num_processes=3)
me = anima.process_index()
assert anima.distributed.is_initialized() and anima.process_count() == anima.device_count() == 3
assert [d.id for d in anima.devices()] == [0, 1, 2] == anima.process_indices()
assert anima.local_devices() == [anima.devices()[me]] and anima.local_device_count() == 1
assert anima.local_devices(process_index=(me + 1) % 3) != anima.local_devices()
assert jnp.ones(2).devices() == {anima.devices()[me]} and jnp.ones(2).is_fully_addressable
mesh = anima.make_mesh((3,), ("x",), axis_types=(AxisType.Auto,))
cut, same = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
assert mesh.is_multi_process and not cut.is_fully_addressable and cut.addressable_devices == {anima.devices()[me]}

x = anima.make_array_from_process_local_data(cut, np.full((2, 4), me))
assert x.shape == (6, 4) and not x.is_fully_addressable and repr(x) == "Array(shape=(6, 4), dtype=int32)" == str(x)
(shard,) = x.addressable_shards
assert shard.index == (slice(2 * me, 2 * me + 2), slice(None)) and shard.device == anima.devices()[me]
np.testing.assert_array_equal(shard.data, np.full((2, 4), me))
np.testing.assert_array_equal(x.addressable_data(0), np.full((2, 4), me))
assert [s.data is None for s in x.global_shards] == [k != me for k in range(3)]
np.testing.assert_array_equal(utils.process_allgather(x), np.repeat(np.arange(3), 8).reshape(6, 4))
np.testing.assert_array_equal(utils.process_allgather(np.float32(me)), [0, 1, 2])
np.testing.assert_array_equal(utils.process_allgather(np.ones((2, 1)) * me, tiled=True), [[0], [0], [1], [1], [2], [2]])
assert utils.process_allgather(np.ones((2, 1))).shape == (3, 2, 1)
sent = utils.broadcast_one_to_all({"a": np.float32(me), "b": np.arange(3) * (me + 1)}, is_source=me == 2)
assert sent["a"] == 2 and sent["a"].shape == () and list(sent["b"]) == [0, 3, 6]
assert utils.broadcast_one_to_all(np.array([me == 0])) == [True]
utils.assert_equal({"a": 1.0, "b": [np.ones(3)]})
utils.sync_global_devices("here")

full = anima.device_put(np.arange(6.0), same)
assert full.is_fully_replicated and not full.is_fully_addressable
assert float(full.sum()) == 15 and float(full[2]) == 2 and full.tolist() == list(range(6))
half = anima.make_array_from_process_local_data(same, np.arange(6.0))
np.testing.assert_array_equal(half, np.arange(6.0))
back = utils.global_array_to_host_local_array(x, mesh, P("x"))
assert back.shape == (2, 4) and back.is_fully_addressable
again = utils.host_local_array_to_global_array(back, mesh, P("x"))
assert again.shape == (6, 4) and again.sharding == cut
mine = anima.make_array_from_process_local_data(cut, np.arange(6), (6,))
np.testing.assert_array_equal(mine.addressable_data(0), [2 * me, 2 * me + 1])
f = anima.jit(lambda x: (x * 2, x.sum()), out_shardings=(cut, same))
doubled, total = f(x)
assert doubled.sharding == cut and int(total) == 24 and doubled.dtype == x.dtype
text = str(f.lower(x).partitioned)
assert "psum" in text and "each of 3 devices" in text
called = anima.jit(lambda x: anima.pure_callback(lambda v: 2 * v, anima.ShapeDtypeStruct(x.shape, x.dtype), x).sum())
assert int(called(x)) == 48  # whatever addresses the processes write
time.sleep(1.2)              # until each has looked at its neighbour
copy = anima.tree.map(lambda v: v.clone(), x)
np.testing.assert_array_equal(copy.addressable_data(0), x.addressable_data(0))
small = anima.sharding.Mesh(np.array(anima.devices()[:2]), ("x",))
other = NamedSharding(anima.make_mesh((3,), ("y",), axis_types=(AxisType.Auto,)), P("y"))
ref, gone = anima.new_ref(jnp.int32(0)), f(x)[0]
gone.delete()
refused(lambda: gone + 1, RuntimeError, "deleted")
refused(lambda: np.asarray(gone), RuntimeError, "deleted")
refused(lambda: np.asarray(x), RuntimeError, "spans non-addressable", "int32[6,4]", "process_allgather")
refused(lambda: anima.jit(lambda y: x + y)(1.0), RuntimeError, "spans non-addressable", "pass it as an argument")
refused(lambda: f(gone), RuntimeError, "deleted")
refused(lambda: anima.jit(lambda a, b: a + b)(x, anima.device_put(np.ones((6, 4)), other)), NotImplementedError,
        "two meshes", "device_put")
refused(lambda: anima.device_put(x, anima.devices()[0]), ValueError, "process_allgather")
refused(lambda: anima.jit(lambda x: ref.__setitem__(..., x.sum()))(x), NotImplementedError, "references")
refused(anima.distributed.initialize, RuntimeError, "should only be called once")
refused(lambda: utils.assert_equal({"w": np.full(3, me == 1)}, "weights differ"), AssertionError,
        "weights differ", "[1] have other values than process 0")
refused(lambda: anima.make_array_from_process_local_data(cut, np.arange(4), (6,)), ValueError, "(2,)", "(6,)")
refused(lambda: anima.make_array_from_process_local_data(cut, np.arange(4), (6, 1)), ValueError, "dimensions")
refused(lambda: anima.device_put(np.ones(7), cut), ValueError, "7")
if me == 2:
    refused(lambda: anima.device_put(np.ones(4), NamedSharding(small, P("x"))), ValueError, "none of its devices")
    refused(lambda: anima.make_array_from_callback((4,), NamedSharding(small, P("x")), lambda index: np.ones(2)),
            ValueError, "none of the devices")
local = anima.jit(lambda y: jnp.sin(y).sum())(np.ones(1000) * me)  # of this process alone
assert local.is_fully_addressable and abs(float(local) - 1000 * np.sin(me)) < 1e-2
anima.distributed.shutdown()
print("all well")
