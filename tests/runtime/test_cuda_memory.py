"""Memory of a card (see `test_cuda_programs`): donated, given away, taken from other libraries, counted, and lost."""

from __future__ import annotations

import copy
import ctypes
import gc
import pickle
import warnings
from typing import Any

import numpy as np
import pytest

import anima
import anima.extend.backend
import anima.numpy as jnp
from anima import lax
from anima.core import dlpack
from anima.core.device import machines
from tests.runtime.test_cuda import Driver, driver
from tests.runtime.test_cuda_programs import Card, card, library

__all__ = ["card", "driver", "library"]  # fixtures

RNG = np.random.default_rng(2)
F = RNG.normal(size=(3, 4)).astype(np.float32)


def there(x: Any, card: anima.Device) -> anima.Array:
    y = anima.device_put(x, card)
    assert y.unsafe_buffer_pointer() in of(card).blocks
    return y


def of(card: anima.Device) -> Card:
    return machines[card].driver.functions


# ---------------------------------------------------------------- donation


@pytest.mark.parametrize("fun", [lambda x, y: x * 2 + y, lambda x, y: x.at[1].set(y[0]), lambda x, y: x,
                                 lambda x, y: lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) + y, x),
                                 lambda x, y: x / jnp.abs(x).sum(1, keepdims=True) + y])
def test_results_take_over_donated_memory(fun: Any, card: anima.Device) -> None:
    x, y = there(F, card), there(F[::-1], card)
    want = anima.jit(fun)(F, F[::-1])
    called = anima.jit(fun, donate_argnums=0)
    for _ in range(2):
        x = there(F, card)
        address, count = x.unsafe_buffer_pointer(), len(of(card).blocks)
        out = called(x, y)
        assert x.is_deleted() and not y.is_deleted()
        np.testing.assert_allclose(out, want, rtol=1e-6)
        del x
    in_place = called.lower(F, F).compile().memory_analysis().alias_size_in_bytes
    assert (out.unsafe_buffer_pointer() == address) == bool(in_place) and len(of(card).blocks) <= count + 3
    np.testing.assert_array_equal(y, F[::-1])


def test_what_others_see_is_not_written_over(card: anima.Device) -> None:
    step = anima.jit(lambda x: x + 1, donate_argnums=0)
    x = there(F, card)
    address, seen = x.unsafe_buffer_pointer(), np.asarray(x)
    lent = dlpack.lent(x.remote, x.shape, x.dtype, max_version=(1, 0))
    out = step(x)
    assert out.unsafe_buffer_pointer() != address
    np.testing.assert_array_equal(seen, F)
    np.testing.assert_allclose(step(out), F + 2, rtol=1e-6)
    del lent


def test_what_is_donated_in_vain(card: anima.Device) -> None:
    x = there(F, card)
    with pytest.warns(UserWarning, match=r"Some donated buffers were not usable: float32\[3,4\]"):
        anima.jit(lambda x: x.sum(), donate_argnums=0)(x)
    assert not x.is_deleted()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        anima.jit(lambda x: x + 1, donate_argnums=0)(x)
    with pytest.raises(RuntimeError, match="deleted"):
        x + 1


# ---------------------------------------------------------------- other libraries


class Foreign:
    """An array of another library on the card, in some order."""

    def __init__(self, x: Any, card: anima.Device, order: tuple[int, ...], versioned: bool = True) -> None:
        self.memory, self.versioned = machines[card].put(np.ascontiguousarray(np.transpose(x, order))), versioned
        memory = self.memory
        base = np.asarray(dlpack._Elsewhere(memory, memory.address, memory.shape, memory.dtype, False))
        self.view = np.transpose(base, np.argsort(order))

    def __dlpack__(self, stream: Any = None, **kwargs: Any) -> Any:
        if kwargs and not self.versioned:
            raise TypeError("max_version")
        assert stream == -1
        capsule = self.view.__dlpack__(**kwargs)
        tensor = dlpack._tensor(capsule)
        tensor.device_type, tensor.device_id = self.__dlpack_device__()
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


class ByInterface:
    """A library that has `__cuda_array_interface__` alone."""

    def __init__(self, said: dict[str, Any], kept: Any = None) -> None:
        self.__cuda_array_interface__, self.kept = said, kept


@pytest.mark.parametrize("dtype", ["float32", "bool", "int8", "uint16", "bfloat16", "float16", "complex64"])
@pytest.mark.parametrize("shape", [(3, 4), (), (0, 2)])
def test_given_away_and_taken(dtype: str, shape: tuple[int, ...], card: anima.Device) -> None:
    x = there(jnp.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape)).astype(dtype), card)
    want = np.array(x)  # (which may keep what it was made of, from NumPy 2.5)
    assert x.__dlpack_device__() == (2, 0)
    y = anima.dlpack.from_dlpack(x)
    assert (y.dtype, y.shape, y.platform()) == (x.dtype, x.shape, "gpu") and y.committed
    assert y.unsafe_buffer_pointer() == x.unsafe_buffer_pointer()
    assert anima.dlpack.from_dlpack(x, copy=True).unsafe_buffer_pointer() != x.unsafe_buffer_pointer()
    address = x.unsafe_buffer_pointer()
    del x
    gc.collect()
    assert address in of(card).blocks  # y uses it
    np.testing.assert_array_equal(np.asarray(y), want)
    here = np.from_dlpack(y, device="cpu") if dtype != "bfloat16" else want
    np.testing.assert_array_equal(here, want)
    del y
    gc.collect()
    assert address not in of(card).blocks


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_taken_in_another_order(order: tuple[int, ...], versioned: bool, card: anima.Device) -> None:
    x = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    other = Foreign(x, card, order, versioned)
    y = jnp.from_dlpack(other)
    assert y.platform() == "gpu" and (y.unsafe_buffer_pointer() == other.memory.address) == (order == (0, 1, 2))
    np.testing.assert_array_equal(np.asarray(y), x)
    np.testing.assert_allclose(np.asarray(jnp.sin(y)), np.sin(x), rtol=1e-6)
    if order != (0, 1, 2):
        with pytest.raises(BufferError, match="cannot avoid a copy"):
            jnp.from_dlpack(other, copy=False)


def test_lifetimes(card: anima.Device) -> None:
    """The memory lives as long as one of the arrays, and is given back then."""
    other = Foreign(F, card, (0, 1))
    address = other.memory.address
    y = jnp.from_dlpack(other)
    del other
    gc.collect()
    assert address in of(card).blocks
    np.testing.assert_array_equal(np.asarray(y + 0), F)
    y.delete()
    gc.collect()
    assert address not in of(card).blocks
    with pytest.raises(RuntimeError, match="deleted"):
        y.__dlpack__()


def test_the_interface(card: anima.Device) -> None:
    x = there(F, card)
    said = x.__cuda_array_interface__
    assert said["data"] == (x.unsafe_buffer_pointer(), False) and said["shape"] == (3, 4) and said["version"] == 3
    assert said["typestr"] == "<f4" and said["strides"] is None and said["stream"] is None
    for take in (jnp.asarray, jnp.array, jnp.from_dlpack):
        y = take(ByInterface(said, x))
        assert y.platform() == "gpu" and y.unsafe_buffer_pointer() == x.unsafe_buffer_pointer()
        np.testing.assert_array_equal(np.asarray(y), F)
    assert jnp.asarray(ByInterface(said, x), dtype="int32").dtype == np.int32
    nothing = jnp.asarray(ByInterface({**said, "data": (0, False), "shape": (0, 3)}))
    np.testing.assert_array_equal(np.asarray(nothing + 1), np.ones((0, 3)))
    turned = jnp.asarray(ByInterface({**said, "shape": (4, 3), "strides": (4, 16)}, x))
    np.testing.assert_array_equal(np.asarray(turned), F.T)
    with pytest.raises(BufferError, match="has gaps"):
        jnp.asarray(ByInterface({**said, "shape": (3, 2), "strides": (16, 8)}, x))
    with pytest.raises(BufferError, match="masks"):
        jnp.asarray(ByInterface({**said, "mask": 1}, x))
    part = jnp.asarray(ByInterface({**said, "data": (said["data"][0] + 16, False), "shape": (2, 4)}, x))
    np.testing.assert_array_equal(np.asarray(part), F[1:])  # it does not lie as programs need it: a copy
    for without in (jnp.asarray(F), there(F, card).astype("bfloat16"), anima.device_put(anima.random.key(0), card)):
        assert not hasattr(without, "__cuda_array_interface__")


def test_what_cannot_be_given_away(card: anima.Device) -> None:
    x = there(F, card)
    with pytest.raises(BufferError, match="on the device"):
        x.__dlpack__(dl_device=(2, 1), max_version=(1, 0))
    with pytest.raises(BufferError, match="before version 1"):
        x.__dlpack__(copy=False)
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    assert name(x.__dlpack__()) == b"dltensor" and name(x.__dlpack__(max_version=(1, 0))) == b"dltensor_versioned"
    assert dlpack._tensor(x.__dlpack__()).data != x.unsafe_buffer_pointer()  # a copy, which may be written to
    other = Foreign(F, card, (0, 1))
    other.__dlpack_device__ = lambda: (2, 3)  # type: ignore[method-assign]
    with pytest.raises(BufferError, match="in the memory of GPU 3"):
        jnp.from_dlpack(other)


# ---------------------------------------------------------------- what is known of the card


def test_statistics(driver: Driver) -> None:
    card = anima.devices("gpu")[0]
    before = card.memory_stats()
    assert before is not None and before["bytes_limit"] == 1 << 20
    x = anima.device_put(np.ones(1000, np.float32), card)
    x.unsafe_buffer_pointer()  # it is brought there when it is needed
    during = card.memory_stats()
    assert during is not None and during["bytes_in_use"] - before["bytes_in_use"] == x.nbytes
    assert during["num_allocs"] == before["num_allocs"] + 1 and during["largest_alloc_size"] >= x.nbytes
    del x
    after = card.memory_stats()
    assert after is not None and after["bytes_in_use"] == before["bytes_in_use"]
    assert after["peak_bytes_in_use"] >= during["bytes_in_use"] <= after["peak_pool_bytes"]
    assert anima.devices("cpu")[0].memory_stats() is None


def test_what_a_card_says_of_itself(driver: Driver) -> None:
    card = anima.devices("gpu")[0]
    assert (card.id, card.platform, card.device_kind, card.compute_capability, card.core_count) == (
        0, "gpu", "A card", "9.0", 10)
    assert card.client.platform == "gpu" and card.client.devices() == [card] == card.client.local_devices()
    with pytest.raises(AttributeError, match="it is no GPU"):
        _ = anima.devices("cpu")[0].compute_capability


def test_copies_and_pickles(card: anima.Device) -> None:
    x = there(F, card)
    back = pickle.loads(pickle.dumps(x))
    assert back.platform() == "cpu" and back.dtype == x.dtype
    np.testing.assert_array_equal(back, F)
    for other in (copy.copy(x), copy.deepcopy(x), x.copy()):
        assert other.platform() == "gpu" and other.devices() == {card}
        np.testing.assert_array_equal(np.asarray(other), F)


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("call", [lambda x: x + 1, lambda x: np.asarray(x), lambda x: x.block_until_ready(),
                                  lambda x: anima.device_put(np.ones(3), x.device) * 2,
                                  lambda x: jnp.from_dlpack(x)])
def test_a_card_that_failed(call: Any, driver: Driver) -> None:
    """The error is told where somebody waits, and by each call from then on; the CPU is as it was."""
    card = anima.devices("gpu")[0]
    x = anima.device_put(np.ones(3, np.float32), card)
    y = anima.jit(lambda x: x * 3)(x)
    driver.failing["cuStreamQuery"] = 700
    with pytest.raises(RuntimeError, match=r"CUDA_ERROR_700.*what is on the CPU is as it was"):
        y.block_until_ready()
    driver.failing.clear()  # some functions of a driver do not tell
    with pytest.raises(RuntimeError, match=r"CUDA_ERROR_700.*start it anew"):
        call(x)
    np.testing.assert_array_equal(jnp.ones(3) + 1, np.full(3, 2))


def test_arrays_of_two_devices(card: anima.Device) -> None:
    x, y = there(F, card), anima.device_put(F, anima.devices("cpu")[0])
    for call in (lambda: x + y, lambda: anima.jit(lambda a, b: a + b)(x, y), lambda: jnp.concatenate([y, x])):
        with pytest.raises(ValueError, match=r"(?s)incompatible devices.*platform GPU.*platform CPU|"
                                             r"incompatible devices.*platform CPU.*platform GPU"):
            call()


# ---------------------------------------------------------------- where arrays are by default


@pytest.mark.parametrize("option", ["platforms", "platform_name"])
@pytest.mark.parametrize("value", ["cuda", "gpu", "cuda,cpu", "cpu,cuda"])
def test_the_card_is_the_default(option: str, value: str, card: anima.Device) -> None:
    first = "cpu" if value.startswith("cpu") else "gpu"
    anima.config.update(f"anima_{option}", value)
    try:
        assert anima.default_backend() == first == anima.devices()[0].platform
        x = jnp.ones(3) + 1
        y = anima.jit(lambda x: jnp.sin(x))(np.ones(3, np.float32))
        assert x.platform() == y.platform() == first and not x.committed
        np.testing.assert_allclose(y + x, np.sin(np.ones(3)) + 2, rtol=1e-6)
        assert anima.extend.backend.get_default_device().platform == first
        assert lax.platform_dependent(1, cpu=lambda x: "cpu", cuda=lambda x: "gpu") == first
        key = anima.random.key(0)
        assert anima.random.normal(key, (3,)).platform() == first
        assert anima.device_put(x, anima.devices("cpu")[0]).platform() == "cpu"
    finally:
        anima.config.update(f"anima_{option}", None)
    assert (jnp.ones(3) + 1).platform() == "cpu" == anima.default_backend()
    assert anima.config.default_device is None


def test_no_card_where_it_is_the_default(driver: Driver) -> None:
    driver.cards = 0
    anima.config.update("anima_platforms", "cuda")
    try:
        for call in (anima.default_backend, anima.devices, lambda: jnp.ones(3), lambda: anima.jit(jnp.sin)(1.0)):
            with pytest.raises(RuntimeError, match=r"Unknown backend cuda.*finds no GPU"):
                call()
        anima.config.update("anima_platforms", "cuda,cpu")
        assert anima.default_backend() == "cpu" == (jnp.ones(3) + 1).platform()
    finally:
        anima.config.update("anima_platforms", None)


# ---------------------------------------------------------------- on a real card


@pytest.fixture
def real() -> anima.Device:
    try:
        return anima.devices("gpu")[0]
    except RuntimeError as error:
        pytest.skip(str(error))


def test_memory_of_a_real_card(real: anima.Device) -> None:
    x = anima.device_put(np.arange(1 << 20, dtype=np.float32), real)
    nbytes, address = x.nbytes, x.unsafe_buffer_pointer()
    before = real.memory_stats()
    assert before is not None and x.nbytes <= before["bytes_in_use"] <= before["peak_bytes_in_use"]
    assert before["peak_bytes_in_use"] <= before["peak_pool_bytes"] <= before["bytes_limit"]
    y = anima.jit(lambda x: x * 2 + 1, donate_argnums=0)(x)
    assert y.unsafe_buffer_pointer() == address and x.is_deleted()
    y.block_until_ready()
    after = real.memory_stats()
    assert after is not None and after["bytes_in_use"] - before["bytes_in_use"] < nbytes  # but a few words
    z = anima.dlpack.from_dlpack(y)
    assert z.unsafe_buffer_pointer() == address == y.__cuda_array_interface__["data"][0]
    del y
    np.testing.assert_array_equal(np.asarray(z[:4]), [1, 3, 5, 7])
    out = anima.jit(lambda x: x + 1, donate_argnums=0)(z)  # others may see it: it is not written over
    assert out.unsafe_buffer_pointer() != address
    np.testing.assert_array_equal(np.asarray(out[:4]), [2, 4, 6, 8])


def test_a_real_card_that_has_no_room(real: anima.Device) -> None:
    x = anima.device_put(np.ones(1 << 20, np.float32), real) + 0
    limit = (real.memory_stats() or {})["bytes_limit"]
    with pytest.raises(RuntimeError, match=r"RESOURCE_EXHAUSTED.*The largest arrays there: float32\[1048576\]"):
        machines[real].allocate(2 * limit)
    assert float((x + 1).sum()) == 2 << 20
