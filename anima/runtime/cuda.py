"""Programs on a GPU: each is a kernel, or a few with products of a library between them, launched and not waited for.

    machine = gpu()                                 RuntimeError where there is none
    x = machine.put(array)                          GpuMemory
    [y] = machine.program(closed, "f")([x])         launched
    y.host()                                        waits, and copies
"""

from __future__ import annotations

import ctypes
import math
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from anima.compiler.emitting.value import NUMPY, itemsize
from anima.compiler.grid.compile import GridProgram, LibraryProduct, Slot, compile_grid
from anima.compiler.grid.target import GridTarget, nvidia
from anima.compiler.ir.loops import roots, slots
from anima.compiler.machine import ptx
from anima.control.tape import WORD, TapeDType, handles
from anima.core import dlpack
from anima.core.remote import Remote
from anima.runtime.cuda_calls import HostCalls, Mailbox
from anima.runtime.cuda_driver import OUT_OF_MEMORY, Blas, CudaDriver, CudaError, blas_library
from anima.runtime.cuda_tapes import Tapes, tapes_here
from anima.runtime.executable import written_inputs
from anima.util import once

_BYTE = np.dtype(np.uint8)
ALIGNED = 256  # bytes, that addresses of arrays divide by
_FREE = sys.getrefcount(object())  # references to an object that nothing refers to


class GpuMemory(Remote):
    """Elements of an array in the memory of a GPU."""

    __slots__ = ("_address", "_host", "dtype", "is_lent", "machine", "nbytes", "shape")

    def __init__(self, machine: Gpu, shape: tuple[int, ...], dtype: np.dtype, address: int | None = None) -> None:
        self.machine, self.shape, self.dtype = machine, shape, dtype
        self.nbytes = math.prod(shape) * dtype.itemsize
        self.is_lent = False  # others may use it, on streams of their own
        self._host: np.ndarray | None = None
        self._address = machine.allocate(self.nbytes) if address is None else address

    @property
    def address(self) -> int:
        return self._address

    def __del__(self) -> None:
        address = getattr(self, "_address", 0)
        if address and not self.machine.driver.closed:
            self.release(address)

    def release(self, address: int) -> None:
        """Gives the memory back, which nothing of ours refers to any more."""
        driver = self.machine.driver
        if self.is_lent:
            driver.retire(partial(driver.free, address))
        else:
            driver.free(address)

    def give_up(self) -> int:
        """The address of the memory, which is another object's from now on."""
        address, self._address = self._address, 0
        return address

    @property
    def dlpack_device(self) -> tuple[int, int]:
        return dlpack.CUDA, 0

    def lend(self, wait: bool = True) -> int:
        self.is_lent = True
        if wait:
            self.wait()
        return self._address

    def copy(self) -> GpuMemory:
        """The same elements in memory of their own."""
        with self.machine.lock:
            self.machine.driver.enter()
            new = GpuMemory(self.machine, self.shape, self.dtype)
            if self.nbytes:
                self.machine.driver.copy(new.address, self._address, self.nbytes, aside=False)
        return new

    def host(self) -> np.ndarray:
        if self._host is None:
            found = np.empty(self.shape, self.dtype)
            if self.nbytes:
                self.machine.driver.enter()
                self.machine.driver.download(found.ctypes.data, self._address, self.nbytes)
            found.flags.writeable = False
            self._host = self.seen(found)
        return self._host

    def seen(self, found: np.ndarray) -> np.ndarray:
        """The array that elements are, which are here now."""
        return found

    def wait(self) -> None:
        self.machine.driver.enter()
        self.machine.driver.wait()  # others may launch meanwhile

    def is_ready(self) -> bool:
        self.machine.driver.enter()
        return self.machine.driver.is_ready()


class BorrowedMemory(GpuMemory):
    """Memory of another library, which `give_back` tells when nothing of ours uses it any more."""

    __slots__ = ("give_back",)

    def __init__(self, machine: Gpu, shape: tuple[int, ...], dtype: np.dtype, address: int,
                 give_back: Callable[[], None]) -> None:
        self.give_back = give_back
        super().__init__(machine, shape, dtype, address)
        self.is_lent = True

    def release(self, address: int) -> None:
        self.machine.driver.retire(self.give_back)


class TapeMemory(GpuMemory):
    """An array of tapes: their numbers, in the memory of a GPU; `keep` keeps the tapes alive."""

    __slots__ = ("keep", "tape_dtype")

    def __init__(self, machine: Gpu, shape: tuple[int, ...], tape_dtype: Any, address: int | None = None) -> None:
        super().__init__(machine, shape, WORD, address)
        self.tape_dtype, self.keep = tape_dtype, None

    def seen(self, found: np.ndarray) -> np.ndarray:
        return tapes_here(found, self.tape_dtype, self.keep)

    @classmethod
    def of(cls, machine: Gpu, tapes: np.ndarray) -> TapeMemory:
        """An array of tapes that are in the memory of this machine."""
        new = cls(machine, tapes.shape, None)
        new._host = new.keep = tapes
        return new


class Gpu:
    """A GPU that programs run on."""

    def __init__(self, driver: CudaDriver) -> None:
        self.driver = driver
        library = blas_library()
        self.blas = None if library is None else Blas(library, driver)
        self.target: GridTarget = nvidia(driver.capability, driver.processors, self.blas is not None)
        self.kind = driver.name
        self.lock = threading.RLock()
        self.live: Callable[[], Sequence[Any]] = list  # arrays that hold memory, for errors

    @cached_property
    def mailbox(self) -> Mailbox:
        return Mailbox(self.driver)

    def allocate(self, nbytes: int, aside: bool = False) -> int:
        """The address of memory, for a thread that has entered. RuntimeError that tells what holds the rest, where
        there is not enough."""
        try:
            return self.driver.allocate(nbytes, aside)
        except CudaError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            free, total = self.driver.free_memory()
            largest = sorted(self.live(), key=lambda x: -x.nbytes)[:5]
            held = "; ".join(f"{x.aval.str_short()} of {x.nbytes} bytes" for x in largest) or "none"
            raise RuntimeError(
                f"RESOURCE_EXHAUSTED: Out of memory allocating {nbytes} bytes on {self.driver.name}: {free} of "
                f"{total} bytes are free. The largest arrays there: {held}.") from None

    def put(self, array: np.ndarray) -> GpuMemory:
        tapes = array if array.dtype == object else None
        array = np.ascontiguousarray(array) if tapes is None else handles(tapes)
        with self.lock:
            self.driver.enter()
            memory = GpuMemory(self, array.shape, array.dtype) if tapes is None else TapeMemory.of(self, tapes)
            if array.nbytes:
                self.driver.upload(memory.address, array.ctypes.data, array.nbytes)
        return memory

    def borrow(self, lent: dlpack.Lent) -> GpuMemory:
        """Memory of another library, as it is; a copy, if it does not lie as programs need it. What runs on other
        streams is waited for."""
        with self.lock:
            self.driver.enter()
            self.driver.call("cuCtxSynchronize")
        if not lent.address:  # of nothing
            lent.give_back()
            return GpuMemory(self, lent.shape, lent.dtype)
        memory = BorrowedMemory(self, lent.shape, lent.dtype, lent.address, lent.give_back)
        return memory if lent.address % ALIGNED == 0 else memory.copy()

    @property
    def compute_capability(self) -> str:
        return "{}.{}".format(*self.driver.capability)

    @property
    def core_count(self) -> int:
        return self.driver.processors

    def memory_stats(self) -> dict[str, int]:
        self.driver.enter()
        return self.driver.memory_stats()

    def program(self, closed: Any, name: str, donated: Sequence[int] = ()) -> GpuProgram:
        return GpuProgram(self, compile_grid(closed, name, donated, self.target), closed, name)


class GpuProgram:
    """A compiled program: its kernels, constants, and how they are launched."""

    def __init__(self, machine: Gpu, grid: GridProgram, closed: Any, name: str) -> None:
        self.machine, self.grid, self.name = machine, grid, name
        self.consts = closed.consts  # of which tapes are found by their addresses
        driver = machine.driver
        code = ptx.compile_ptx(grid.text, machine.target)
        program = grid.program
        self.nbytes = program.arena
        self.sizes = [b.size * itemsize(b.dtype) for b in program.with_role("input")]
        self.outputs = [_output(a, NUMPY[b.dtype])
                        for a, b in zip(closed.out_avals, program.with_role("output"), strict=True)]
        inputs = {b.name: k for k, b in enumerate(program.with_role("input"))}
        owners = roots(program.buffers)
        self.donors = written_inputs(program)  # inputs whose memory is written over,
        self.taken = [inputs.get(owners[b.name].name) for b in program.with_role("output")]  # and by which output
        self.gives_tapes = any(kind is TapeMemory for kind, _, _ in self.outputs)
        with machine.lock:
            driver.enter()
            assert len(slots(program)) == sum(map(len, map(program.with_role, ("input", "output", "const"))))
            self.module = driver.load(code)
            self.kernels = [None if isinstance(step, LibraryProduct) else
                            (step, *driver.function(self.module, step.entry, step.threads, step.shared))
                            for step in grid.steps]
            self.constants = [machine.put(np.ascontiguousarray(b.value, NUMPY[b.dtype]))
                              for b in program.with_role("const")]
            self.host_calls = HostCalls(driver, grid, machine.mailbox) if grid.calls else None
            self.start = np.array([0, machine.mailbox.address if grid.calls else 0], np.uint64)
            self.counter = machine.put(self.start)

    def __call__(self, given: Sequence[Remote]) -> list[Remote]:
        """Launches the program. The results, which are computed later."""
        machine, driver = self.machine, self.machine.driver
        assert [memory.nbytes for memory in given] == self.sizes  # type: ignore[attr-defined]
        with machine.lock:
            driver.enter()
            given = list(given)
            for k in self.donors:
                if given[k].is_lent or sys.getrefcount(given[k]) > _FREE + 3:  # the caller's, the array's, and ours
                    given[k] = given[k].copy()
            outputs = [kind(machine, shape, dtype, None if donor is None else given[donor].give_up())
                       for (kind, shape, dtype), donor in zip(self.outputs, self.taken, strict=True)]
            tapes = Tapes(machine)
            arena = GpuMemory(machine, (self.nbytes,), _BYTE) if self.nbytes else None
            inputs = [outputs[self.taken.index(k)].address if k in self.taken else m.address
                      for k, m in enumerate(given)]
            addresses = inputs + [m.address for m in (*outputs, *self.constants)]
            addresses.append(0 if arena is None else arena.address)
            count = len(addresses) + 1
            values = (ctypes.c_uint64 * count)(*addresses, self.counter.address)
            first = ctypes.addressof(values)
            params = (ctypes.c_void_p * count)(*range(first, first + 8 * count, 8))
            if self.host_calls is not None:
                driver.upload(self.counter.address, self.start.ctypes.data, self.start.nbytes)
            for step, kernel in zip(self.grid.steps, self.kernels, strict=True):
                if isinstance(step, LibraryProduct):
                    assert machine.blas is not None
                    machine.blas.product(step.arguments, *(_at(addresses, p) for p in step.places))
                    continue
                assert kernel is not None
                launch, function, most = kernel
                driver.launch(function, min(launch.blocks, most), launch.threads, launch.shared, launch.waits,
                              params)
                if self.host_calls is not None:
                    driver.serving = threading.get_ident()
                    try:
                        self.host_calls.serve(addresses, tapes)
                    finally:
                        driver.served()
        if self.gives_tapes:
            keep = tapes, self.consts, [m for m in given if isinstance(m, TapeMemory)]
            for memory in outputs:
                if isinstance(memory, TapeMemory):
                    memory.keep = keep
        return list(outputs)


def _output(aval: Any, dtype: np.dtype) -> tuple[Callable[..., GpuMemory], tuple[int, ...], Any]:
    """What makes the memory of a result, its shape, and its dtype."""
    if isinstance(aval.dtype, TapeDType):
        return TapeMemory, aval.shape, aval.dtype
    return GpuMemory, (*aval.shape, *getattr(aval.dtype, "element_shape", ())), dtype


def _at(addresses: Sequence[int], place: Slot) -> int:
    return addresses[place.slot] + place.offset


@once
def gpu() -> Gpu:
    """The GPU. RuntimeError where there is none, or no driver."""
    return Gpu(CudaDriver())
