"""What programs on a GPU ask the host for: the kernel waits, in the middle, while Python is called, or a tape grows.

    kernel       mailbox = number                                        waits until the first bit is set
    host         operands from the GPU, call, results to the GPU         mailbox = first bit, and the status

Copies go by a stream of their own, as the kernel keeps the other one busy. The call of a program that calls back
returns when the program is over. What is raised meanwhile ends the program, and leaves the call.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Sequence

import numpy as np

from anima.compiler.grid.compile import GridProgram, HostCall
from anima.config import default_device
from anima.runtime.callbacks import Callbacks
from anima.runtime.cuda_driver import CudaDriver, CudaError
from anima.runtime.cuda_tapes import Tapes

_ANSWERED = -1 << 31
_PATIENCE, _FIRST_PAUSE, _LONGEST_PAUSE = 1e-4, 2e-5, 1e-3  # seconds


class Mailbox:
    """A word of this machine's memory that kernels write and read."""

    def __init__(self, driver: CudaDriver) -> None:
        self.address = driver.allocate_mapped(64)
        self.word = ctypes.c_int32.from_address(self.address)
        self.word.value = _ANSWERED


class HostCalls:
    """What one program asks for."""

    def __init__(self, driver: CudaDriver, grid: GridProgram, mailbox: Mailbox) -> None:
        self.driver, self.mailbox = driver, mailbox
        functions = Callbacks(grid.program.callbacks)
        self.calls = [_Callback(call, functions, driver) if call.routine == "callback" else _TapeRoutine(call)
                      for call in grid.calls]

    def serve(self, addresses: Sequence[int], tapes: Tapes) -> None:
        """Answers what the program asks for until it is over; raises what went wrong."""
        failed: BaseException | None = None
        while True:
            try:
                self._until_over(addresses, tapes, failed is not None)
                break
            except CudaError:
                raise
            except BaseException as error:  # Ctrl-C as well: the kernel must come to its end
                failed = failed or error
        if failed is not None:
            tapes.close()  # its traceback may live long
            raise failed

    def _until_over(self, addresses: Sequence[int], tapes: Tapes, failed: bool) -> None:
        word, driver = self.mailbox.word, self.driver
        since, pause = time.perf_counter(), _FIRST_PAUSE
        while True:
            if (asked := word.value) >= 0:
                if not failed:
                    self._answer(self.calls[asked], addresses, tapes)
                word.value = _ANSWERED | failed
                since, pause = time.perf_counter(), _FIRST_PAUSE
            elif driver.is_ready():
                driver.wait()
                return
            elif time.perf_counter() - since > _PATIENCE:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _answer(self, call: _Callback | _TapeRoutine, addresses: Sequence[int], tapes: Tapes) -> None:
        for memory, slot, offset in call.operands:
            self.driver.download(memory.ctypes.data, addresses[slot] + offset, memory.nbytes, aside=True)
        call.run(tapes)
        for memory, slot, offset in call.results:
            self.driver.upload(addresses[slot] + offset, memory.ctypes.data, memory.nbytes, aside=True)


class _Callback:
    """A callback, and where its operands and results are, here and there."""

    def __init__(self, call: HostCall, functions: Callbacks, driver: CudaDriver) -> None:
        self.number, self.functions, self.driver = call.number, functions, driver
        pieces = [[(np.empty(size, np.uint8), place.slot, place.offset) for place, size in some]
                  for some in (call.operands, call.results)]
        self.table = np.array([m.ctypes.data for some in pieces for m, _, _ in some] or [0], np.int64)
        self.operands, self.results = ([p for p in some if p[0].nbytes] for some in pieces)

    def run(self, tapes: Tapes) -> None:
        self.driver.calling = threading.get_ident()
        try:
            with default_device(None):
                self.functions(self.number, self.table.ctypes.data)
        finally:
            self.driver.calling = None


class _TapeRoutine:
    """A routine on the table of a loop, or on a mark, and where that is, here and there."""

    def __init__(self, call: HostCall) -> None:
        self.routine = call.routine
        place, size = (*call.operands, *call.results)[0]
        self.words = np.zeros(size // 8, np.int64)
        piece = self.words, place.slot, place.offset
        self.operands, self.results = ([piece] * len(some) for some in (call.operands, call.results))

    def run(self, tapes: Tapes) -> None:
        tapes.answer(self.routine, self.words)
