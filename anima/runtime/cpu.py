"""The CPU as a machine that programs run on: its memory is NumPy's, and a launch is a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from anima.compiler.ir.loops import ENTRY
from anima.compiler.machine import native, objects
from anima.compiler.machine.backend import LoadedCode
from anima.compiler.machine.target import Target
from anima.core import memory
from anima.core.avals import Shape
from anima.runtime import calling, threads
from anima.util import once, record

_empty = np.empty  # as it is now: native code relies on what it gives


@record
class Cpu:
    """This machine, or one with fewer instructions that this one can be (see `compiler.machine.backend.Backend`)."""

    target: Target

    def load(self, texts: Sequence[str], shared: int) -> tuple[LoadedCode, ...]:
        return objects.modules(texts, shared, self.target)

    def entry(self, code: Sequence[LoadedCode]) -> int:
        return code[0].address(ENTRY)

    def allocator(self, nbytes: int) -> Callable[[Shape, np.dtype], np.ndarray]:
        return _empty if nbytes < memory.LEAST else partial(memory.empty, nbytes=nbytes)

    def copy_in(self, array: np.ndarray) -> np.ndarray:
        return array

    def copy_out(self, memory: np.ndarray) -> np.ndarray:
        return memory

    def address(self, memory: np.ndarray) -> int:
        return memory.ctypes.data

    def launch(self, entry: int, addresses: Sequence[int], scratch: int, parallel: bool) -> None:
        calling.enter(entry, addresses, scratch, threads.pool_address() if parallel else 0)

    def caller(self, entry: int, *described: Any) -> Callable[..., Any] | None:
        return calling.caller(entry, *described)


@once
def here() -> Cpu:
    """The CPU that we run on."""
    return Cpu(native.host())
