"""What is asked of NVIDIA's driver, in which order, and what is made of its answers: a driver that is none.

Its memory is this machine's; kernels are launched and do nothing.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.api import remotes
from anima.core.array import PlacedArray
from anima.core.device import machines
from anima.core.trace import EvalTrace
from anima.runtime import cuda, cuda_driver

MEMORY = 1 << 20  # bytes of the card


class Function:
    """A function of the driver's, as ctypes shows one."""

    argtypes: Any = None

    def __init__(self, call: Callable[..., int]) -> None:
        self.call = call

    def __call__(self, *args: Any) -> int:
        return self.call(*args)


def put(reference: Any, value: Any) -> int:
    """Gives a value to what a pointer argument points to."""
    reference._obj.value = value
    return 0


class Driver:
    """What the driver's functions do. `log` has the calls that matter, `failing` the code that a function gives."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.failing: dict[str, int] = {}
        self.blocks: dict[int, Any] = {}
        self.version, self.cards, self.busy, self.peak = 13000, 1, 0, 0

    def __getattr__(self, name: str) -> Function:
        if not name.startswith("cu"):
            raise AttributeError(name)
        found = Function(lambda *args: self.failing.get(name) or self.answer(name, args))
        setattr(self, name, found)
        return found

    def answer(self, name: str, args: tuple[Any, ...]) -> int:
        match name:
            case "cuDriverGetVersion":
                return put(args[0], self.version)
            case "cuDeviceGetCount":
                return put(args[0], self.cards)
            case "cuDeviceGetName":
                args[0].value = b"A card"
            case "cuDeviceGetAttribute":
                return put(args[0], {16: 10, 75: 9, 76: 0}[args[1]])
            case "cuGetErrorName" | "cuGetErrorString":
                return put(args[1], f"{'CUDA_ERROR' if 'Name' in name else 'text'}_{args[0]}".encode())
            case "cuMemAllocAsync":
                if args[1] > MEMORY:
                    return cuda_driver.OUT_OF_MEMORY
                block = ctypes.create_string_buffer(args[1])
                self.blocks[ctypes.addressof(block)] = block
                return put(args[0], ctypes.addressof(block))
            case "cuMemFreeAsync":
                del self.blocks[args[0]]
            case "cuMemcpyHtoDAsync_v2" | "cuMemcpyDtoHAsync_v2" | "cuMemcpyDtoDAsync_v2":
                ctypes.memmove(*args[:3])
            case "cuMemGetInfo_v2":
                put(args[0], 5)
                return put(args[1], MEMORY)
            case "cuMemPoolGetAttribute":
                used = sum(map(len, self.blocks.values()))
                self.peak = max(self.peak, used)
                return put(args[2], self.peak if args[1] in (6, 8) else used)
            case "cuStreamQuery":
                self.busy -= self.busy > 0
                return cuda_driver.NOT_READY if self.busy else 0
            case "cuOccupancyMaxActiveBlocksPerMultiprocessor":
                return put(args[0], 2)
            case "cuModuleLoadDataEx":
                assert args[1].startswith(b"//") and b".target sm_90" in args[1]
            case "cuLaunchKernel" | "cuLaunchCooperativeKernel":
                self.log.append((name, args[1], args[4], args[7]))
            case "cuFuncSetAttribute":
                self.log.append((name, *args[1:]))
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    found = Driver()
    monkeypatch.setattr(cuda_driver, "_driver_functions", lambda: found)
    monkeypatch.setattr(cuda, "blas_library", lambda: None)
    monkeypatch.setattr(EvalTrace, "on_remote", None)
    before = dict(machines)
    cuda.gpu.cache_clear()
    remotes.gpus.cache_clear()
    yield found
    cuda.gpu.cache_clear()
    remotes.gpus.cache_clear()
    machines.clear()
    machines.update(before)
    anima.clear_caches()


def test_there_and_back(driver: Driver) -> None:
    (card,) = anima.devices("gpu")
    assert repr(card) == "CudaDevice(id=0)" and card.device_kind == "A card" and str(card) == "cuda:0"
    assert repr(card.default_memory()).startswith("CudaDeviceMemory")
    assert anima.local_devices(backend="gpu") == [card] == anima.devices("cuda")
    assert anima.devices()[0].platform == "cpu"
    for dtype in ("float32", "bool", "bfloat16", "int8", "complex64"):
        x = jnp.arange(6).reshape(2, 3).astype(dtype)
        machine = machines[card]
        memory = machine.put(np.asarray(x))
        assert memory.address in driver.blocks and memory.nbytes == x.nbytes
        np.testing.assert_array_equal(memory.host(), np.asarray(x))
        assert memory.host() is memory.host()


def test_memory_is_given_back(driver: Driver) -> None:
    x = anima.device_put(np.ones(100, np.float32), anima.devices("gpu")[0])
    before = len(driver.blocks)
    y = anima.jit(lambda x: x + 1)(x)
    assert isinstance(y, PlacedArray) and len(driver.blocks) > before
    found = anima.live_arrays("gpu")
    assert any(x is y for x in found) and all(x.platform() == "gpu" for x in found)
    del found
    del x, y
    anima.clear_caches()
    assert len(driver.blocks) <= before


def test_launches(driver: Driver) -> None:
    card = anima.devices("gpu")[0]
    one = anima.device_put(np.ones(1000, np.float32), card)
    anima.jit(lambda x: x + 1)(one)
    assert driver.log == [("cuLaunchKernel", 4, 256, 0)]
    driver.log.clear()
    anima.jit(lambda x: anima.lax.scan(lambda c, t: (c * 0.5 + t, None), 0.0, x)[0])(one)
    assert driver.log == [("cuLaunchKernel", 1, 1, 0)]
    driver.log.clear()
    many = anima.device_put(np.ones(1 << 17, np.float32), card)
    anima.jit(lambda x: x / x.sum())(many)  # every block needs what all have added up
    ((name, blocks, threads, shared),) = driver.log
    assert name == "cuLaunchCooperativeKernel" and blocks == 20 and threads == 256 and shared > 0


def test_no_memory(driver: Driver) -> None:
    x = anima.device_put(np.ones(1000, np.float32), anima.devices("gpu")[0])
    x = anima.jit(lambda x: x + 1)(x)
    with pytest.raises(RuntimeError, match=r"RESOURCE_EXHAUSTED: Out of memory allocating 4000000 bytes on A card: 5 "
                                           r"of .* bytes are free\. The largest arrays there: float32\[1000\]"):
        anima.jit(lambda x: jnp.tile(x, 1000) + 1)(x)
    anima.jit(lambda x: x + 2)(x)  # the process goes on


@pytest.mark.parametrize("name", ["cuLaunchKernel", "cuModuleLoadDataEx", "cuStreamSynchronize"])
def test_errors_are_named(driver: Driver, name: str) -> None:
    x = anima.device_put(np.ones(10, np.float32), anima.devices("gpu")[0])
    driver.failing[name] = 700
    with pytest.raises(RuntimeError, match=rf"CUDA_ERROR_700: text_700 \({name}\)"):
        np.asarray(anima.jit(lambda x: x * 3)(x))


def test_what_failed_on_the_card_is_told_when_somebody_waits(driver: Driver) -> None:
    y = anima.jit(lambda x: x * 3)(anima.device_put(np.ones(10, np.float32), anima.devices("gpu")[0]))
    driver.failing["cuStreamQuery"] = 700
    with pytest.raises(RuntimeError, match=r"CUDA_ERROR_700.*this process can use no more"):
        y.block_until_ready()


def test_others_launch_while_one_waits(driver: Driver) -> None:
    x = anima.device_put(np.ones(10, np.float32), anima.devices("gpu")[0])
    y = anima.jit(lambda x: x * 3)(x)
    driver.busy = 1 << 30
    waiting = threading.Thread(target=y.block_until_ready, daemon=True)
    waiting.start()
    time.sleep(0.05)
    assert waiting.is_alive() and not y.is_ready()
    anima.jit(lambda x: x * 3)(x)
    driver.busy = 0
    waiting.join(10)
    assert not waiting.is_alive()


def test_an_old_driver(driver: Driver) -> None:
    driver.version = 11040
    with pytest.raises(RuntimeError, match=r"the driver of NVIDIA's is for CUDA 11\.4, and 12\.1 is needed"):
        anima.devices("gpu")


def test_no_card(driver: Driver) -> None:
    driver.cards = 0
    with pytest.raises(RuntimeError, match="finds no GPU"):
        anima.devices("gpu")


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(cuda_driver.ctypes, "CDLL", missing)
    with pytest.raises(RuntimeError, match="no driver of NVIDIA's"):
        cuda_driver.CudaDriver()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_of_fork_is_told(driver: Driver) -> None:
    machine = machines[anima.devices("gpu")[0]]
    machine.driver.process += 1  # as a child finds it
    with pytest.raises(RuntimeError, match="child of fork"):
        machine.put(np.ones(3))
    machine.driver.process -= 1
