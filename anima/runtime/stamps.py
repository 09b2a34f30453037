"""The times that compiled programs note while a profile is taken: a ring of records in memory, filled without a lock.

A record has what the program calls it (`compiler/scheduling/stamp.py`), the number of the program, the ticks of the
processor's clock, and the thread. A note takes about 15 ns.
"""

from __future__ import annotations

import ctypes
import itertools
import platform
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from anima.compiler.machine import native
from anima.core.source import Source
from anima.spans import Event
from anima.util import once

AVAILABLE = sys.platform != "win32" and platform.machine() in ("x86_64", "AMD64", "aarch64", "arm64")
_RECORD = np.dtype([("number", np.int64), ("program", np.int64), ("ticks", np.int64), ("thread", np.uint64)])
_CAPACITY = 1 << 20
_TICKS = ("call i64 @llvm.readcyclecounter()" if platform.machine() in ("x86_64", "AMD64") else
          'call i64 asm sideeffect "mrs $0, cntvct_el0", "=r"()')
_CODE = """
declare i64 @llvm.readcyclecounter()
declare i64 @pthread_self()

@records = global ptr null
@count = global i64 0

define i64 @ticks() {
  %now = {ticks}
  ret i64 %now
}

define void @stamp(ptr %cell, i64 %number) {
  %records = load atomic ptr, ptr @records monotonic, align 8
  %off = icmp eq ptr %records, null
  br i1 %off, label %done, label %on
on:
  %k = atomicrmw add ptr @count, i64 1 monotonic
  %room = icmp ult i64 %k, {capacity}
  br i1 %room, label %note, label %done
note:
  %now = {ticks}
  %program = load i64, ptr %cell
  %thread = call i64 @pthread_self()
  %record = getelementptr { i64, i64, i64, i64 }, ptr %records, i64 %k
  store i64 %number, ptr %record
  %program.at = getelementptr i64, ptr %record, i64 1
  store i64 %program, ptr %program.at
  %ticks.at = getelementptr i64, ptr %record, i64 2
  store i64 %now, ptr %ticks.at
  %thread.at = getelementptr i64, ptr %record, i64 3
  store i64 %thread, ptr %thread.at
  br label %done
done:
  ret void
}
"""


@once
def _module() -> native.Module:
    return native.load(_CODE.replace("{ticks}", _TICKS).replace("{capacity}", str(_CAPACITY)), level=0)


@once
def _records() -> np.ndarray:
    return np.empty(_CAPACITY, _RECORD)  # for ever: a thread may still be writing when a profile has ended


def _global(name: str) -> ctypes.c_int64:
    return ctypes.c_int64.from_address(_module().address(name))


def _clock() -> tuple[int, int]:
    """Ticks, and nanoseconds, of the same moment."""
    ticks = ctypes.CFUNCTYPE(ctypes.c_int64)(_module().address("ticks"))
    pairs = []
    for _ in range(5):
        before, now, after = time.perf_counter_ns(), ticks(), time.perf_counter_ns()
        pairs.append((after - before, now, (before + after) // 2))
    return min(pairs)[1:]


_numbers = itertools.count(1)
_programs: dict[int, Mapping[int, tuple[str, Source | None]]] = {}


def register(names: Mapping[int, tuple[str, Source | None]]) -> ctypes.c_int64:
    """The number of a program, in memory to which its code has the address; `names` says what it notes."""
    cell = ctypes.c_int64(next(_numbers))
    _programs[cell.value] = names
    return cell


def address() -> int:
    """Of the routine that notes the time: `stamp(cell, number)`."""
    return _module().address("stamp")


class Notes:
    """What programs note from now until `stop`."""

    def __init__(self) -> None:
        self.begun = _clock()
        _global("count").value = 0
        _global("records").value = _records().ctypes.data

    def stop(self) -> tuple[list[Event], int]:
        """The spans that are whole, and how many notes there was no room for."""
        _global("records").value = 0
        ended, count = _clock(), _global("count").value
        notes = _records()[:min(count, _CAPACITY)].copy()
        scale = (ended[1] - self.begun[1]) / max(ended[0] - self.begun[0], 1)
        times = ((notes["ticks"] - self.begun[0]) * scale).astype(np.int64) + self.begun[1]
        return _paired(notes, times), max(count - _CAPACITY, 0)


def _paired(notes: np.ndarray, times: np.ndarray) -> list[Event]:
    """A span for each beginning with an end: a program that an exception left has none."""
    events: list[Event] = []
    open_: dict[int, list[tuple[int, int, int]]] = {}
    for (number, program, _, thread), now in zip(notes.tolist(), times.tolist(), strict=True):
        stack = open_.setdefault(thread, [])
        if number % 2 == 0:
            stack.append((program, number, now))
            continue
        while stack:
            begun_by, begun, start = stack.pop()
            if (begun_by, begun + 1) == (program, number):
                name, source = _programs.get(program, {}).get(begun, ("?", None))
                details: dict[str, Any] = {"source": str(source)} if source is not None else {}
                if begun:
                    details["program"] = _programs.get(program, {}).get(0, ("?", None))[0]
                events.append(Event(name, "kernel" if begun else "call", start, now - start, thread, details))
                break
    return events
