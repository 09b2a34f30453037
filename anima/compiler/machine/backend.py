"""What a kind of machine has to offer: texts in; code to enter, memory, a launch; results out.

    code = backend.load(texts, shared)                     the machine code of LLVM texts
    x, y = backend.copy_in(a), backend.allocator(n)(shape, dtype)
    backend.launch(backend.entry(code), [backend.address(x), backend.address(y)], scratch=0, parallel=False)
    backend.copy_out(y)                                    a NumPy array

All that is above asks for no more. The CPU's is `runtime/cpu.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from anima.compiler.machine.target import Target
from anima.core.avals import Shape


class LoadedCode(Protocol):
    """Machine code where it can run."""

    def address(self, name: str) -> int:
        """Where a function is."""
        ...

    def object_bytes(self) -> bytes:
        """The code as a file."""
        ...

    def asm(self) -> str:
        """The code to read."""
        ...


class Backend(Protocol):
    """A machine that programs run on. Its memory is what these methods give and take as such: nothing else reads it."""

    @property
    def target(self) -> Target:
        """What code for it may use."""
        ...

    def load(self, texts: Sequence[str], shared: int) -> tuple[LoadedCode, ...]:
        """The code of LLVM texts, of which the last `shared` are those of other programs, too."""
        ...

    def entry(self, code: Sequence[LoadedCode]) -> int:
        """Where the program begins that the first text has."""
        ...

    def allocator(self, nbytes: int) -> Callable[[Shape, np.dtype], Any]:
        """What makes memory of so many bytes for an array of a shape and dtype, anew with each call."""
        ...

    def copy_in(self, array: np.ndarray) -> Any:
        """Memory with the elements of a row-major array; that of the array itself where the machine reads it."""
        ...

    def copy_out(self, memory: Any) -> np.ndarray:
        """The array that memory was made for."""
        ...

    def address(self, memory: Any) -> int:
        """Where memory is, for the program."""
        ...

    def launch(self, entry: int, addresses: Sequence[int], scratch: int, parallel: bool) -> None:
        """Runs a program on memory at these addresses until it is done; `parallel`: on threads, too."""
        ...

    def caller(self, entry: int, *described: Any) -> Callable[..., Any] | None:
        """A shorter way for all calls of one program (see `runtime.calling.caller`), or None."""
        ...
