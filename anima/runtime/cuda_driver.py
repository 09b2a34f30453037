"""NVIDIA's driver, called directly: memory, modules, launches; and cuBLAS, for products of large matrices.

The driver's library (`libcuda`) comes with the driver, so that nothing need be installed for it. Every call's status is
looked at. Reference: CUDA Driver API; cuBLAS.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_longlong, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from anima.util import once

OUT_OF_MEMORY, NOT_READY = 2, 600
_FOR_EVER = frozenset({214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999})  # of the context
_OLDEST = 12010  # CUDA 12.1: kernels may have parameters of more than 4 KB
_NONE = "Unknown backend gpu. Available backends are ['cpu']"
_ATTRIBUTES = {"processors": 16, "major": 75, "minor": 76}
_SHARED_LIMIT = 8    # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_KEPT = 4            # CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
_POOL = {"pool_bytes": 5, "peak_pool_bytes": 6, "bytes_in_use": 7, "peak_bytes_in_use": 8}  # CU_MEMPOOL_ATTR_...
_PLAIN_SHARED = 48 << 10
_PATIENCE, _FIRST_PAUSE, _LONGEST_PAUSE = 2e-3, 2e-5, 2e-3  # seconds: how long to look without a pause

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,), "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int), "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int), "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxSetCurrent": (c_void_p,), "cuStreamCreate": (POINTER(c_void_p), c_uint), "cuStreamQuery": (c_void_p,),
    "cuStreamSynchronize": (c_void_p,), "cuMemAllocAsync": (POINTER(c_uint64), c_size_t, c_void_p),
    "cuMemFreeAsync": (c_uint64, c_void_p), "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuMemHostAlloc": (POINTER(c_void_p), c_size_t, c_uint),
    "cuMemsetD8Async": (c_uint64, ctypes.c_ubyte, c_size_t, c_void_p), "cuMemGetInfo_v2": (POINTER(c_size_t),) * 2,
    "cuDeviceGetDefaultMemPool": (POINTER(c_void_p), c_int), "cuMemPoolSetAttribute": (c_void_p, c_int, c_void_p),
    "cuMemPoolGetAttribute": (c_void_p, c_int, c_void_p), "cuCtxSynchronize": (),
    "cuModuleLoadDataEx": (POINTER(c_void_p), c_char_p, c_uint, c_void_p, c_void_p), "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p), "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (POINTER(c_int), c_void_p, c_int, c_size_t),
    "cuLaunchKernel": (c_void_p, *(c_uint,) * 7, c_void_p, c_void_p, c_void_p),
    "cuLaunchCooperativeKernel": (c_void_p, *(c_uint,) * 7, c_void_p, c_void_p),
}


class CudaError(RuntimeError):
    """What the driver says; `code` is its number."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class CudaDriver:
    """The first GPU, and one stream of work for it; another one for what is done `aside`: now, whatever runs, while a
    program waits for it."""

    def __init__(self) -> None:
        self.functions = _driver_functions()
        self.process = os.getpid()
        self.closed = False
        self.calling: int | None = None  # the thread that is called back by a program
        self.serving: int | None = None  # the one that answers a program, which waits for it
        self.retired: list[Callable[[], None]] = []  # what is done when nothing runs
        self.failed: CudaError | None = None  # what the GPU failed by, for this process
        self.allocations = self.largest = 0
        atexit.register(self.close)
        version, count, device, context = c_int(), c_int(), c_int(), c_void_p()
        self.functions.cuDriverGetVersion(byref(version))  # older ones lack some of the others
        if version.value < _OLDEST:
            found, needed = (f"{v // 1000}.{v % 1000 // 10}" for v in (version.value, _OLDEST))
            raise RuntimeError(f"{_NONE}: the driver of NVIDIA's is for CUDA {found}, and {needed} is needed. Fix: a "
                               "newer driver.")
        for name, types in _SIGNATURES.items():
            getattr(self.functions, name).argtypes = types
        self.call("cuInit", 0)
        self.call("cuDeviceGetCount", byref(count))
        if not count.value:
            raise RuntimeError(f"{_NONE}: the driver of NVIDIA's finds no GPU.")
        self.call("cuDeviceGet", byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.device, self.context = device.value, context
        self.enter()
        stream, aside, self.pool = c_void_p(), c_void_p(), c_void_p()
        self.call("cuStreamCreate", byref(stream), 1)
        self.call("cuStreamCreate", byref(aside), 1)
        self.stream, self.aside = stream, aside
        self.call("cuDeviceGetDefaultMemPool", byref(self.pool), device)
        self.call("cuMemPoolSetAttribute", self.pool, _KEPT, byref(c_uint64((1 << 64) - 1)))
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, 256, device)
        self.name = name.value.decode()
        self.processors, major, minor = (self.attribute(n) for n in ("processors", "major", "minor"))
        self.capability = major, minor

    def call(self, name: str, *args: Any) -> None:
        """A function of the driver's. CudaError with its name and the driver's for what went wrong."""
        code = getattr(self.functions, name)(*args)
        if code:
            raise self.error(code, name)

    def error(self, code: int, name: str) -> CudaError:
        """What is raised for a status that a function gives. Some are for ever: later calls say so at once."""
        if code not in _FOR_EVER:
            return CudaError(f"{self.text(code)} ({name})", code)
        self.failed = CudaError(f"{self.text(code)} ({name}): something that ran on the GPU failed, which this process "
                                "can use no more; what is on the CPU is as it was. Fix: start it anew.", code)
        return self.failed

    def text(self, code: int) -> str:
        """What a status means."""
        name, text = c_char_p(), c_char_p()
        self.functions.cuGetErrorName(code, byref(name))
        self.functions.cuGetErrorString(code, byref(text))
        return f"{(name.value or b'CUDA_ERROR').decode()}: {(text.value or b'?').decode()}"

    def enter(self) -> None:
        """Makes calls of this thread about the GPU."""
        if os.getpid() != self.process:
            raise RuntimeError("A GPU cannot be used in a child of fork of a process that used it. Fix: "
                               "multiprocessing.set_start_method('spawn').")
        if self.calling == threading.get_ident():
            raise RuntimeError("A function that is called back by a program on a GPU cannot use the GPU, which waits "
                               "for it. Fix: give what it needs to the callback as an operand.")
        if self.failed is not None:
            raise CudaError(str(self.failed), self.failed.code)
        self.call("cuCtxSetCurrent", self.context)

    def attribute(self, name: str) -> int:
        """A number that describes the GPU."""
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), _ATTRIBUTES[name], self.device)
        return value.value

    def allocate(self, nbytes: int, aside: bool = False) -> int:
        """The address of memory, 256-byte aligned, for what is launched from now on."""
        address = c_uint64()
        stream = self.aside if aside else self.stream
        self.call("cuMemAllocAsync", byref(address), max(nbytes, 16), stream)
        self.allocations, self.largest = self.allocations + 1, max(self.largest, nbytes)
        if aside:
            self.call("cuStreamSynchronize", stream)
        return address.value

    def allocate_mapped(self, nbytes: int) -> int:
        """The address of memory of this machine that kernels find at the same address."""
        address = c_void_p()
        self.call("cuMemHostAlloc", byref(address), nbytes, 3)  # for all contexts, and for kernels
        assert address.value is not None
        return address.value

    def free(self, address: int, aside: bool = False) -> None:
        """Gives memory back, once what was launched before is done with it."""
        if not self.closed and os.getpid() == self.process:
            self.functions.cuCtxSetCurrent(self.context)
            self.functions.cuMemFreeAsync(address, self.aside if aside else self.stream)

    def retire(self, release: Callable[[], None]) -> None:
        """Gives memory back that others use as well, when nothing runs any more, on no stream."""
        if self.closed or os.getpid() != self.process:
            return
        if self.serving == threading.get_ident():  # a program waits for this thread
            self.retired.append(release)
            return
        self.functions.cuCtxSetCurrent(self.context)
        self.functions.cuCtxSynchronize()
        release()

    def served(self) -> None:
        """A program that waited for this thread is over."""
        self.serving = None
        while self.retired:
            self.retire(self.retired.pop())

    def close(self) -> None:
        """At the end of the process: what its memory was given back by then does not matter."""
        self.closed = True

    def clear(self, address: int, nbytes: int) -> None:
        """Fills memory with zeros, aside."""
        self.call("cuMemsetD8Async", address, 0, nbytes, self.aside)
        self.call("cuStreamSynchronize", self.aside)

    def copy(self, target: int, source: int, nbytes: int, aside: bool = True) -> None:
        """Copies memory of the GPU: now, aside, or when what was launched is done."""
        self.call("cuMemcpyDtoDAsync_v2", target, source, nbytes, self.aside if aside else self.stream)
        if aside:
            self.call("cuStreamSynchronize", self.aside)

    def upload(self, address: int, source: int, nbytes: int, aside: bool = False) -> None:
        """Copies from this machine's memory, which may be changed when this returns."""
        stream = self.aside if aside else self.stream
        self.call("cuMemcpyHtoDAsync_v2", address, source, nbytes, stream)
        self.call("cuStreamSynchronize", stream)

    def download(self, target: int, address: int, nbytes: int, aside: bool = False) -> None:
        """Copies to this machine's memory, when what was launched is done."""
        stream = self.aside if aside else self.stream
        if not aside:
            self.wait()
        self.call("cuMemcpyDtoHAsync_v2", target, address, nbytes, stream)
        self.call("cuStreamSynchronize", stream)

    def wait(self) -> None:
        """Returns when all that was launched is done; signals (Ctrl-C) are noticed meanwhile."""
        pause = _FIRST_PAUSE
        start = time.perf_counter()
        while (code := self.functions.cuStreamQuery(self.stream)) == NOT_READY:
            if time.perf_counter() - start > _PATIENCE:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        if code:
            raise self.error(code, "cuStreamQuery")

    def is_ready(self) -> bool:
        """Whether all that was launched is done."""
        code = self.functions.cuStreamQuery(self.stream)
        if code not in (0, NOT_READY):
            raise self.error(code, "cuStreamQuery")
        return not code

    def free_memory(self) -> tuple[int, int]:
        """Bytes that are free, and all."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def memory_stats(self) -> dict[str, int]:
        """Of the memory of this process: how much is in use, and was at most, by the names that JAX has."""
        _, total = self.free_memory()
        found = {"num_allocs": self.allocations, "largest_alloc_size": self.largest, "bytes_limit": total}
        for name, number in _POOL.items():
            value = c_uint64()
            self.call("cuMemPoolGetAttribute", self.pool, number, byref(value))
            found[name] = value.value
        return found

    def load(self, ptx: bytes) -> c_void_p:
        """The module of a PTX text."""
        module, log = c_void_p(), ctypes.create_string_buffer(1 << 13)
        options = (c_int * 2)(5, 6)  # the buffer for what the compiler says, and its size
        values = (c_void_p * 2)(ctypes.cast(log, c_void_p), len(log))
        try:
            self.call("cuModuleLoadDataEx", byref(module), ptx, 2, options, values)
        except CudaError as error:
            raise CudaError(f"{error} {log.value.decode(errors='replace')}", error.code) from None
        return module

    def function(self, module: c_void_p, name: str, threads: int, shared: int) -> tuple[c_void_p, int]:
        """A kernel of a module, and how many blocks of it run at once."""
        function, blocks = c_void_p(), c_int()
        self.call("cuModuleGetFunction", byref(function), module, name.encode())
        if shared > _PLAIN_SHARED:
            self.call("cuFuncSetAttribute", function, _SHARED_LIMIT, shared)
        self.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", byref(blocks), function, threads, shared)
        return function, blocks.value * self.processors

    def launch(self, function: c_void_p, blocks: int, threads: int, shared: int, waits: bool, params: Any) -> None:
        """Starts a kernel; its blocks all together, if they wait for each other."""
        if not waits:
            self.call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, shared, self.stream, params, None)
        else:
            self.call("cuLaunchCooperativeKernel", function, blocks, 1, 1, threads, 1, 1, shared, self.stream, params)


def _driver_functions() -> Any:
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        return ctypes.CDLL(name)
    except OSError:
        raise RuntimeError(f"{_NONE}: this machine has no driver of NVIDIA's ({name}).") from None


# ---------------------------------------------------------------- products

_PRODUCTS = {"f32": ("cublasSgemmStridedBatched", c_float, 1), "c64": ("cublasCgemmStridedBatched", c_float, 2),
             "f64": ("cublasDgemmStridedBatched", c_double, 1), "c128": ("cublasZgemmStridedBatched", c_double, 2)}


class Blas:
    """cuBLAS. Products have the precision of their elements."""

    def __init__(self, functions: Any, driver: CudaDriver) -> None:
        self.functions = functions
        self.handle = c_void_p()
        self._check(functions.cublasCreate_v2(byref(self.handle)))
        self._check(functions.cublasSetStream_v2(self.handle, driver.stream))
        for name, _, _ in _PRODUCTS.values():
            getattr(functions, name).argtypes = (
                c_void_p, c_int, c_int, c_int, c_int, c_int, c_void_p, c_void_p, c_int, c_longlong, c_void_p, c_int,
                c_longlong, c_void_p, c_void_p, c_int, c_longlong, c_int)

    @staticmethod
    def _check(status: int) -> None:
        if status:
            raise RuntimeError(f"cuBLAS failed: its status is {status}.")

    def product(self, given: dict[str, Any], a: int, b: int, c: int) -> None:
        """`gemm` of `compiler/ir/routines.py`, for matrices at these addresses. Ours are row-major, those of cuBLAS
        column-major: so B comes first."""
        name, kind, count = _PRODUCTS[given["dtype"]]
        alpha, beta = ((kind * count)(*_parts(given[n])[:count]) for n in ("alpha", "beta"))
        size = ctypes.sizeof(kind) * count
        turned = [int(given[f"trans{n}"] == "T") for n in "ab"]
        self._check(getattr(self.functions, name)(
            self.handle, turned[1], turned[0], given["n"], given["m"], given["k"], alpha,
            b + size * given["b_offset"], given["ldb"], given["b_stride"], a + size * given["a_offset"], given["lda"],
            given["a_stride"], beta, c + size * given["c_offset"], given["ldc"], given["c_stride"], given["batch"]))


def _parts(number: complex) -> tuple[float, float]:
    return complex(number).real, complex(number).imag


@once
def blas_library() -> Any:
    """The library, where it is installed: by itself, or as a package of Python's; None where it is not."""
    names = [f"libcublas.so.{version}" for version in (13, 12)]
    for root in sys.path:
        names += [str(p) for version in (13, 12) for p in Path(root).glob(f"nvidia/*/lib/libcublas.so.{version}")]
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
