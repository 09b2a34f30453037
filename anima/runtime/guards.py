"""Guards: what `ANIMA_CHECK=2` puts around the memory of a compiled program, and looks at after each of its calls.

    guard bytes | result | guard bytes          guard bytes | temp | guard bytes | temp | ... | guard bytes

A program that writes outside of a buffer writes on guard bytes, unless it is far off. Results and temporaries are
full of NaN (or -1) when a call begins, so that memory read before it is written shows. Arguments that are not donated,
and constants, must be after a call what they were before it. This costs several passes over all memory for each call.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from anima.compiler.cache import Code
from anima.compiler.emitting.scratch import OVERRUN
from anima.compiler.ir.loops import Program
from anima.compiler.storage.buffers import ALIGNMENT, size_in_bytes
from anima.core.array import ConcreteArray

GUARD = 256         # bytes on each side of a buffer
FRESH = 0xFF        # the bytes of memory that nothing has been written to
_UNTOUCHED = 0xA5   # guard bytes

_made = threading.local()  # `calls`: for each call that this thread is in, the memory made for it


class GuardError(AssertionError):
    """A compiled program has written where it must not: a defect of the compiler."""


class GuardedBlock:
    """Memory between guard bytes. `holes` are pieces of it that nothing may write to, with the buffer before each."""

    def __init__(self, name: str, size: int, holes: Sequence[tuple[int, int, str]] = ()):
        self.name, self.size, self.holes = name, size, holes
        self.bytes = np.full(size + 2 * GUARD + ALIGNMENT, _UNTOUCHED, np.uint8)
        self.start = GUARD + -(self.bytes.ctypes.data + GUARD) % ALIGNMENT
        inside = self.bytes[self.start: self.start + size]
        inside[:] = FRESH
        for begin, end, _ in holes:
            inside[begin:end] = _UNTOUCHED

    def array(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The memory as an array."""
        return np.ndarray(shape, dtype, self.bytes, self.start)

    def check(self, program: str) -> None:
        """GuardError if a guard byte has changed."""
        end = self.start + self.size
        pieces = [(0, self.start, f"before {self.name}"), (end, len(self.bytes), f"after {self.name}")]
        pieces += [(self.start + a, self.start + b, f"after {name}") for a, b, name in self.holes]
        for begin, stop, where in pieces:
            changed = np.flatnonzero(self.bytes[begin:stop] != _UNTOUCHED)
            if changed.size:
                raise GuardError(f"{program} writes to memory {where}: {changed.size} bytes, from byte "
                                 f"{changed[0]} of {stop - begin} on")


class Guards:
    """The guards of one program, whose `code` may be that of others too; `constants` are its own."""

    def __init__(self, program: Program, code: Code, constants: Sequence[np.ndarray]):
        self.name = program.name
        self.overruns = [ctypes.c_char_p.from_address(module.address(OVERRUN))
                         for module, text in zip(code.modules, code.texts, strict=True) if f"@{OVERRUN} =" in text]
        self.given = [b.name for b in program.with_role("input")]
        self.kept = {k for k, b in enumerate(program.with_role("input")) if not b.donated}
        self.constants: list[tuple[GuardedBlock, np.ndarray, bytes]] = []
        for buffer, value in zip(program.with_role("const"), constants, strict=True):
            block = GuardedBlock(buffer.name, value.nbytes)
            array = block.array(value.shape, value.dtype)
            array[...] = value
            self.constants.append((block, array, array.tobytes()))
        self.arena = code.program.arena
        self.holes = _holes(code.program)

    def result(self, name: str) -> Callable[[tuple[int, ...], np.dtype], np.ndarray]:
        """What makes the memory of a result: `make(shape, dtype)`."""
        return partial(self._make, name, ())

    def scratch(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The memory of all temporaries, 64 bytes aligned."""
        return self._make("scratch memory", self.holes, (self.arena,), np.dtype(np.uint8))

    def _make(self, name: str, holes: Sequence[tuple[int, int, str]], shape: tuple[int, ...], dtype: np.dtype
              ) -> np.ndarray:
        block = GuardedBlock(name, math.prod(shape) * dtype.itemsize, holes)
        _made.calls[-1].append(block)
        return block.array(shape, dtype)

    def around(self, run: Callable[..., Any], donated: Sequence[int] = ()) -> Callable[..., Any]:
        """`run(*arguments)`, checked. The arguments at `donated` may be written to."""
        kept = self.kept.difference(donated)

        def checked(*arguments: Any) -> Any:
            calls = _made.__dict__.setdefault("calls", [])
            before = [(self.given[k], a, a.tobytes()) for k, a in enumerate(map(_memory, arguments))
                      if a is not None and k in kept]
            calls.append([])
            try:
                results = run(*arguments)
            finally:
                blocks = calls.pop()
            if results is not NotImplemented:
                self._check(blocks, before)
            return results

        return checked

    def _check(self, blocks: Sequence[GuardedBlock], before: Sequence[tuple[str, np.ndarray, bytes]]) -> None:
        name = self.name
        for cell in self.overruns:
            if cell.value is not None:
                buffer, cell.value = cell.value.decode(), None
                raise GuardError(f"{name} writes to memory after its scratch memory {buffer}")
        for block in (*blocks, *(block for block, _, _ in self.constants)):
            block.check(name)
        constants = [(block.name, array, value) for block, array, value in self.constants]
        for what, array, value in (*before, *constants):
            if array.tobytes() != value:
                raise GuardError(f"{name} writes to {what}, which it may only read")


def _memory(argument: Any) -> np.ndarray | None:
    """The NumPy array that an argument is or has."""
    value = ConcreteArray.elements(argument) if isinstance(argument, ConcreteArray) else argument
    return value if isinstance(value, np.ndarray) else None


def _holes(program: Program) -> list[tuple[int, int, str]]:
    """The pieces of the arena that belong to no temporary."""
    spans = sorted((b.offset, b.offset + size_in_bytes(b), b.name) for b in program.with_role("temp")
                   if b.offset is not None)
    holes, end, last = [], 0, "the start"
    for start, stop, name in [*spans, (program.arena, program.arena, "")]:
        if start > end:
            holes.append((end, start, last))
        if stop > end:
            end, last = stop, name
    return holes
