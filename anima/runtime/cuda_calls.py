"""What programs on a GPU call back into Python for: the kernel waits, in the middle, while the host computes.

    kernel       mailbox = number                                        waits until the first bit is set
    host         operands from the GPU, call, results to the GPU         mailbox = first bit, and the status

Copies go by a stream of their own, as the kernel keeps the other one busy. The call of a program that calls back
returns when the program is over. What a callback raises ends the program, and leaves the call.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.compiler.grid.compile import GridProgram, HostCall
from anima.config import default_device
from anima.runtime.callbacks import Callbacks, place_of
from anima.runtime.cuda_driver import CudaDriver, CudaError

_ANSWERED = -1 << 31
_PATIENCE, _FIRST_PAUSE, _LONGEST_PAUSE = 1e-4, 2e-5, 1e-3  # seconds


class Mailbox:
    """A word of this machine's memory that kernels write and read."""

    def __init__(self, driver: CudaDriver) -> None:
        self.address = driver.allocate_mapped(64)
        self.word = ctypes.c_int32.from_address(self.address)
        self.word.value = _ANSWERED


class HostCalls:
    """The callbacks of one program."""

    def __init__(self, driver: CudaDriver, grid: GridProgram, mailbox: Mailbox) -> None:
        self.driver, self.mailbox = driver, mailbox
        self.functions = Callbacks(grid.program.callbacks)
        self.calls = [_CallPlace(call, grid.program.callbacks[call.number]) for call in grid.calls]

    def serve(self, addresses: Sequence[int]) -> None:
        """Answers what the program asks for until it is over; raises what a callback has raised."""
        failed: BaseException | None = None
        while True:
            try:
                self._until_over(addresses, failed is not None)
                break
            except CudaError:
                raise
            except BaseException as error:  # Ctrl-C as well: the kernel must come to its end
                failed = failed or error
        if failed is not None:
            raise failed

    def _until_over(self, addresses: Sequence[int], failed: bool) -> None:
        word, driver = self.mailbox.word, self.driver
        since, pause = time.perf_counter(), _FIRST_PAUSE
        while True:
            if (asked := word.value) >= 0:
                if not failed:
                    self._answer(self.calls[asked], addresses)
                word.value = _ANSWERED | failed
                since, pause = time.perf_counter(), _FIRST_PAUSE
            elif driver.is_ready():
                driver.wait()
                return
            elif time.perf_counter() - since > _PATIENCE:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _answer(self, call: _CallPlace, addresses: Sequence[int]) -> None:
        driver = self.driver
        for memory, slot, offset in call.operands:
            driver.download(memory.ctypes.data, addresses[slot] + offset, memory.nbytes, aside=True)
        driver.calling = threading.get_ident()
        try:
            with default_device(None):
                self.functions(call.number, call.table.ctypes.data)
        finally:
            driver.calling = None
        for memory, slot, offset in call.results:
            driver.upload(addresses[slot] + offset, memory.ctypes.data, memory.nbytes, aside=True)


class _CallPlace:
    """Where a callback stands in a program: memory here and there, of its operands and of its results."""

    def __init__(self, call: HostCall, function: Any) -> None:
        avals = (*function.operands, *function.results)
        memory = [np.empty(place_of(aval)[2], np.uint8) for aval in avals]
        self.number = call.number
        self.table = np.array([m.ctypes.data for m in memory] or [0], np.int64)
        places = [(m, p.slot, p.offset) for m, p in zip(memory, call.places, strict=True)]
        count = len(function.operands)
        self.operands, self.results = ([p for p in some if p[0].nbytes] for some in (places[:count], places[count:]))
