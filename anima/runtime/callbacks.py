"""What compiled code calls back into Python for: memory in, memory out.

    function(number, address)      `address`: of the addresses of the operands, then of the results

Operands are copied out of the program's memory, so that a callback may keep them; results are checked by
the primitive's `eval` rule and copied in. An operation in place gets views of that memory. Whatever is raised here
ends the program and leaves the call.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import numpy as np

from anima.compiler.lowering.callback import Callback, InPlace
from anima.core.avals import ShapedArray
from anima.runtime.threads import num_threads
from anima.spans import span

_Memory = tuple[tuple[int, ...], np.dtype, int]


class Callbacks:
    """The callbacks of one program, as the one function that its machine code calls."""

    __slots__ = ("_known",)
    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._known = [(c, [*map(_memory, c.operands)], [*map(_memory, c.results)], *_named(c)) for c in callbacks]

    def __call__(self, number: int, address: int) -> None:
        callback, operands, results, name, source = self._known[number]
        with span(name, "callback", source=source):
            self._call(callback, operands, results, address)

    def _call(self, callback: Callback, operands: Sequence[_Memory], results: Sequence[_Memory], address: int) -> None:
        addresses = (ctypes.c_int64 * (len(operands) + len(results))).from_address(address)
        if isinstance(callback, InPlace):
            given = [_view(a, *kind) for a, kind in zip(addresses, [*operands, *results], strict=True)]
            callback.write(given[len(operands):], num_threads, given[:len(operands)])
            return
        found = callback([_copy(a, *kind) for a, kind in zip(addresses, operands, strict=False)])
        for a, (_, dtype, size), value in zip(addresses[len(operands):], results, found, strict=True):
            array = np.ascontiguousarray(value, dtype)
            if size:
                ctypes.memmove(a, array.ctypes.data, size)


def _named(callback: Callback) -> tuple[str, str]:
    """What a callback is for, and the user's line, in profiles."""
    if not isinstance(callback, Callback):
        return "tape", ""
    return callback.primitive.name, str(callback.source or "")


def _copy(address: int, shape: tuple[int, ...], dtype: np.dtype, size: int) -> np.ndarray:
    if not size:
        return np.empty(shape, dtype)
    return np.frombuffer(ctypes.string_at(address, size), dtype).reshape(shape)


def _view(address: int, shape: tuple[int, ...], dtype: np.dtype, size: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype).reshape(shape) if size else np.empty(
        shape, dtype)


def _memory(aval: ShapedArray) -> _Memory:
    """Shape, dtype and bytes of an array."""
    return aval.shape, aval.dtype, math.prod(aval.shape) * aval.dtype.itemsize
