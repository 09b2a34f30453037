"""Tapes in the memory of a GPU: what kernels ask the host for to keep values of the steps of loops of unknown length.

    tapes = Tapes(machine)                  of one run of a program
    tapes.answer("tape_grow", table)        does to a table what the routine of that name does (`tapes/routines.py`)

For each tape there stands a number below 0, in tables and in arrays of tapes, where on a CPU the address of a header
does. The address of a header is here a tape in this machine's memory, which is copied when it is read. There is no
budget: a tape has all of its elements, or the program ends with the error of memory that is not there.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np

from anima.control.tape import STEPS, Tape, TapeDType, in_memory, record
from anima.core.avals import ShapedArray
from anima.runtime.tapes import routines

_LEAST, _LEAST_BYTES = 16, 1 << 12  # steps that tapes first have room for, and bytes of all tapes of a loop
_numbers = count(1)
_NO_ELEMENT = ShapedArray((0,), np.dtype(np.int32))


class DeviceTape:
    """A tape: its number, how many elements it has, and the memory that they are in."""

    __slots__ = ("__weakref__", "address", "length", "machine", "nbytes", "number")

    def __init__(self, machine: Any) -> None:
        self.machine, self.number = machine, -next(_numbers)
        self.address = self.nbytes = self.length = 0
        _known[self.number] = self

    def grow(self, nbytes: int) -> None:
        """Gives the tape more memory, while a program waits."""
        address = self.machine.allocate(nbytes, aside=True)
        if self.address:
            self.machine.driver.copy(address, self.address, self.nbytes)
        self.free(aside=True)
        self.address, self.nbytes = address, nbytes

    def free(self, aside: bool) -> None:
        address, self.address = self.address, 0
        if address:
            self.machine.driver.free(address, aside)

    def __del__(self) -> None:
        self.free(aside=False)


_known: weakref.WeakValueDictionary[int, DeviceTape] = weakref.WeakValueDictionary()  # by number


class Tapes:
    """The tapes of one run of a program, in the order in which they were made; as long as it lives, so do they."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.made: list[DeviceTape] = []

    def answer(self, routine: str, words: np.ndarray) -> None:
        """Does what a program asks for: to its table, or to the word of its mark."""
        getattr(self, f"_{routine}")(words)

    def close(self) -> None:
        """Frees all tapes."""
        self.made.clear()

    def _new(self, nbytes: int = 0) -> DeviceTape:
        tape = DeviceTape(self.machine)
        self.made.append(tape)
        if nbytes:
            tape.grow(nbytes)
        return tape

    def _tape_open(self, table: np.ndarray) -> None:
        table[:2] = 0
        for entry in _entries(table):
            entry[0], entry[2] = self._new().number, 0

    def _tape_grow(self, table: np.ndarray) -> None:
        capacity, steps = map(int, table[:2])
        entries = _entries(table)
        wanted = steps or max(2 * capacity, _LEAST, _LEAST_BYTES // max(int(entries[:, 1].sum()), 1))
        for entry in entries:
            if entry[1]:
                tape = _known[int(entry[0])]
                tape.grow(wanted * int(entry[1]))
                entry[2] = tape.address
        table[0] = wanted

    def _tape_close(self, table: np.ndarray) -> None:
        for number in _entries(table)[:, 0]:
            _known[int(number)].length = int(table[1])

    def _tape_read(self, table: np.ndarray) -> None:
        entries = _entries(table)
        lengths = [_length(int(number)) for number in entries[:, 0]]
        longest = max(lengths, default=0)
        table[:2] = 0, longest
        for entry, length in zip(entries, lengths, strict=True):
            number, size = map(int, entry[:2])
            if not (size and longest):
                continue
            tape = _known.get(number) if length == longest else None
            if tape is None:
                tape = self._new(longest * size)
                tape.length = longest
                if length == longest:  # it is here
                    self.machine.driver.upload(tape.address, routines.words(number)[routines.DATA], longest * size,
                                               aside=True)
                else:
                    self.machine.driver.clear(tape.address, longest * size)
            entry[2] = tape.address

    def _tape_mark(self, mark: np.ndarray) -> None:
        mark[0] = len(self.made)

    def _tape_release(self, mark: np.ndarray) -> None:
        for tape in self.made[int(mark[0]):]:
            tape.free(aside=True)
        del self.made[int(mark[0]):]


def _entries(table: np.ndarray) -> np.ndarray:
    """(tape, bytes of an element, address of the elements), for each tape."""
    return table[2:].reshape(-1, 3)


def _length(number: int) -> int:
    """How many elements a tape has."""
    if number < 0:
        return _known[number].length
    if number and routines.words(number)[routines.LOOP]:
        raise NotImplementedError("A loop on a GPU cannot read what a loop on the CPU recorded in part, over the budget"
                                  " of tapes. Fix: raise it with anima.config.update('anima_tape_budget', bytes).")
    return routines.words(number)[routines.LENGTH] if number else 0


def tapes_here(words: np.ndarray, dtype: TapeDType, keep: Any) -> np.ndarray:
    """An array of tapes, as a CPU has it: copies of those on a GPU."""
    out = np.empty(words.shape, object)
    for place in np.ndindex(words.shape):
        number = int(words[place])
        out[place] = _copied(_known[number], dtype) if number < 0 else Tape(number, keep) if number else None
    return out


def _copied(tape: DeviceTape, dtype: TapeDType) -> Tape:
    if dtype == STEPS:
        return record([np.zeros(0, np.int32)] * tape.length, _NO_ELEMENT)[()]
    stored = in_memory(dtype.element)
    values: Sequence[Any] = np.empty((tape.length, *stored.shape), stored.dtype)
    if values.nbytes:  # type: ignore[attr-defined]
        tape.machine.driver.enter()
        tape.machine.driver.download(values.ctypes.data, tape.address, values.nbytes)  # type: ignore[attr-defined]
    if isinstance(dtype.element.dtype, TapeDType):
        values = tapes_here(values, dtype.element.dtype, None)  # type: ignore[arg-type]
    return record(values, dtype.element)[()]
