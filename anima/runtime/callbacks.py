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

from anima.compiler.lowering.callback import HostFunction, InPlace
from anima.core.avals import ShapedArray
from anima.core.handlers import Calls
from anima.runtime.handler_calls import way_of
from anima.runtime.threads import num_threads
from anima.spans import recorder, span

_Memory = tuple[tuple[int, ...], np.dtype, int]
_VIEWS = 64  # places in memory, at most, of which an operation in place keeps views


class Callbacks:
    """The callbacks of one program, as the one function that its machine code calls.

    At `address` is the address of this function, then of each callback 0 or, from its first call on, what of machine
    code is called in its place: an operation in place may have a `way` (see `calling_code`). While a profile is taken,
    all come here.
    """

    __slots__ = ("_known", "_table", "address")

    def __init__(self, callbacks: Sequence[HostFunction]) -> None:
        self._known = [(_OnMemory(c) if isinstance(c, InPlace) else _OnCopies(c), *_named(c)) for c in callbacks]
        self._table = (ctypes.c_int64 * (1 + len(callbacks)))(id(self))
        self.address = ctypes.addressof(self._table)

    def __call__(self, number: int, address: int) -> None:
        call, name, source = self._known[number]
        if recorder.events is None:
            call(address)
            self._table[1 + number] = call.way
            return
        with span(name, "callback", source=source):
            call(address)


class _OnMemory:
    """What an operation in place does with views of the program's memory, which is often in the same places."""

    __slots__ = ("count", "kinds", "views", "words", "write")

    def __init__(self, callback: InPlace) -> None:
        self.write, self.count = callback.writer(), len(callback.operands)
        self.kinds = [*map(place_of, (*callback.operands, *callback.results))]
        self.words = ctypes.c_int64 * len(self.kinds)
        self.views: dict[tuple[int, ...], tuple[list[np.ndarray], list[np.ndarray]]] = {}

    @property
    def way(self) -> int:
        return way_of(self.write) if isinstance(self.write, Calls) else getattr(self.write, "way", 0)

    def __call__(self, address: int) -> None:
        places = tuple(self.words.from_address(address))
        outs, operands = self.views.get(places) or self._seen(places)
        self.write(outs, num_threads, *operands)

    def _seen(self, places: tuple[int, ...]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The results and the operands that are in these places."""
        given = [_view(a, *kind) for a, kind in zip(places, self.kinds, strict=True)]
        if len(self.views) >= _VIEWS:
            self.views.clear()
        self.views[places] = found = given[self.count:], given[:self.count]
        return found


class _OnCopies:
    """What any other callback does with copies of the program's memory."""

    __slots__ = ("callback", "operands", "results", "words")
    way = 0

    def __init__(self, callback: HostFunction) -> None:
        self.callback = callback
        self.operands, self.results = [*map(place_of, callback.operands)], [*map(place_of, callback.results)]
        self.words = ctypes.c_int64 * (len(self.operands) + len(self.results))

    def __call__(self, address: int) -> None:
        places = self.words.from_address(address)
        found = self.callback([_copy(a, *kind) for a, kind in zip(places, self.operands, strict=False)])
        for a, (_, dtype, size), value in zip(places[len(self.operands):], self.results, found, strict=True):
            array = np.ascontiguousarray(value, dtype)
            if size:
                ctypes.memmove(a, array.ctypes.data, size)


def _named(callback: HostFunction) -> tuple[str, str]:
    """What a callback is for, and the user's line, in profiles."""
    if not isinstance(callback, HostFunction):
        return "tape", ""
    return callback.primitive.name, str(callback.source or "")


def _copy(address: int, shape: tuple[int, ...], dtype: np.dtype, size: int) -> np.ndarray:
    if not size:
        return np.empty(shape, dtype)
    return np.frombuffer(ctypes.string_at(address, size), dtype).reshape(shape)


def _view(address: int, shape: tuple[int, ...], dtype: np.dtype, size: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype).reshape(shape) if size else np.empty(
        shape, dtype)


def place_of(aval: ShapedArray) -> _Memory:
    """Shape, dtype and bytes of an array."""
    return aval.shape, aval.dtype, math.prod(aval.shape) * aval.dtype.itemsize
