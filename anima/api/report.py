"""What a compiled program does, kernel by kernel: the lines that asked for it, bytes, operations, and time.

    compiled = jit(f).lower(x).compile()
    print(compiled.report())             as estimated
    print(compiled.report(x))            measured, too, beside what the machine could do

The limits of the machine are measured by two programs: one copies arrays that no cache holds, one multiplies matrices.
A share of more than one means that what a kernel moves was in a cache.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anima.api.pjit import executable_of
from anima.compiler.fusing.reasons import through_memory
from anima.compiler.ir.costs import cost
from anima.compiler.ir.groups import Fused
from anima.compiler.ir.loops import Again, Call, Kernel, Program, Stmt, statements
from anima.compiler.traffic import Traffic, traffic
from anima.core import notebook
from anima.core.avals import ShapedArray
from anima.core.jaxpr import ClosedJaxpr
from anima.core.source import Source
from anima.core.stage import trace_to_jaxpr
from anima.ops.contract import dot_general_p
from anima.ops.elementwise import add
from anima.runtime import stamps
from anima.spans import Event
from anima.util import once, record

_CALLS = 5  # that are measured, after one that is not
_HEADER = "kernel", "asked for at", "bytes", "operations", "estimated", "measured", "share of limit"


@record
class Roofline:
    """What the machine can do with all its threads: bytes and operations (of float32) a second."""

    bandwidth: float
    operations: float

    def seconds(self, work: Traffic) -> float:
        """The least time for some work."""
        return max(work.moved / self.bandwidth, work.operations / self.operations)


@once
def limits() -> Roofline:
    """Those of this machine, measured at the first call, for less than half a second."""
    x, a = np.ones(1 << 24, np.float32), np.ones((768, 768), np.float32)
    numbers = (((1,), (0,)), ((), ()))
    copying = _quickest(lambda x: add(x, 1.0), x)
    multiplying = _quickest(lambda a: dot_general_p.bind(a, a, dimension_numbers=numbers, precision=None,
                                                         preferred_element_type=None), a)
    return Roofline(2 * x.nbytes / copying, 2 * 768**3 / multiplying)


def _quickest(function: Callable[[Any], Any], operand: np.ndarray) -> float:
    """The shortest of twenty runs."""
    aval = ShapedArray(operand.shape, operand.dtype)
    executable = executable_of(ClosedJaxpr(*trace_to_jaxpr(lambda x: [function(x)], [aval])), "limit")
    times = []
    for _ in range(20):
        begun = time.perf_counter()
        executable([operand])
        times.append(time.perf_counter() - begun)
    return min(times)


@record
class Row:
    """A kernel, a routine, or a loop or branch around such; times in seconds. There are no estimates for routines."""

    name: str
    source: Source | None
    work: Traffic
    estimated: float | None
    measured: float | None = None

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        share = "" if not self.measured else f"{limits().seconds(self.work) / self.measured:.0%}"
        return (self.name, str(self.source or ""), f"{self.work.moved:,}", f"{self.work.operations:,}",
                _time(self.estimated), _time(self.measured), share)


@dataclass(frozen=True)
class Report:
    """A table of a program's kernels, and what goes through memory between them. `str` and notebooks show it."""

    name: str
    rows: tuple[Row, ...]
    memory: tuple[str, ...] = ()

    def __str__(self) -> str:
        table = [_HEADER, *(row.cells() for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(cell.ljust(w) if k < 2 else cell.rjust(w)
                           for k, (cell, w) in enumerate(zip(cells, widths, strict=True))).rstrip() for cells in table]
        if self.memory:
            lines += ["between kernels, through memory:", *(f"  {line}" for line in self.memory)]
        return "\n".join([f"{self.name}: {_counted(len(self.rows))}", *lines])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        table = notebook.table(_HEADER, [tuple(map(notebook.escape, row.cells())) for row in self.rows])
        memory = notebook.folded("between kernels, through memory", notebook.verbatim("\n".join(self.memory)))
        body = table + memory if self.memory else table
        return notebook.folded(f"{self.name}: {_counted(len(self.rows))}", body, opened=True)


def report(program: Program, fused: Fused | None = None, events: Sequence[Event] = ()) -> Report:
    """Of loops as they were compiled; with the groups that they come from, if these are known, and with what a profile
    noted of their calls."""
    values = Counter(map(str, through_memory(fused))) if fused is not None else {}
    memory = tuple(f"{text} ({count} such)" if count > 1 else text for text, count in values.items())
    return Report(program.name, tuple(_rows(program, _measured(program, events))), memory)


def noted(call: Callable[[], Any]) -> list[Event]:
    """What a call of a program that was compiled under `profiling` notes, five times, after one that is not measured;
    ValueError where clocks are not read."""
    if not stamps.AVAILABLE:
        raise ValueError("report: kernels are not timed on this machine. Ask for a report without arguments.")
    call()
    notes = stamps.Notes()
    for _ in range(_CALLS):
        call()
    return notes.stop()[0]


def _measured(program: Program, events: Iterable[Event]) -> dict[int, float]:
    """The shortest time that was measured of each statement, by its place among those with notes."""
    numbers = sorted(_noted(program))
    calls = sorted((e for e in events if e.kind == "call" and e.name == program.name), key=lambda e: e.start)
    inside = sorted((e for e in events if e.details.get("program") == program.name), key=lambda e: e.start)
    times: dict[int, list[float]] = defaultdict(list)
    for call in calls:
        own = [e for e in inside if call.start <= e.start <= call.start + call.duration and e.thread == call.thread]
        if len(own) == len(numbers):
            for number, event in zip(numbers, own, strict=True):
                times[number].append(event.duration * 1e-9)
    return {number: min(found) for number, found in times.items()}


def _noted(program: Program) -> dict[int, Stmt]:
    """The statements between notes of time, by the number of the first."""
    found: dict[int, Stmt] = {}
    number = 0
    for stmt in program.body:
        if isinstance(stmt, Call) and stmt.routine == "stamp":
            number = int(stmt.args[0])
        elif number and number % 2 == 0 and not _serves(stmt):
            found[number] = stmt
            number = 0
    return found


def _serves(stmt: Stmt) -> bool:
    """Whether a statement is there for Ctrl-C or a profile alone."""
    return isinstance(stmt, Call) and stmt.routine in ("stamp", "poll", "watch", "look", "stopped")


def _rows(program: Program, times: dict[int, float]) -> Iterator[Row]:
    buffers = {b.name: b for b in program.buffers}
    numbers = {id(stmt): number for number, stmt in _noted(program).items()}
    for stmt in program.body:
        inside = [s.kernel if isinstance(s, Again) else s for s in statements(stmt)]
        parts = [s for s in inside if isinstance(s, (Kernel, Call)) and not _serves(s)]
        if not parts:
            continue
        if isinstance(stmt, (Kernel, Again)):
            name = str(getattr(parts[0], "name", ""))
        else:
            around = type(stmt).__name__.lower()
            name = stmt.routine if isinstance(stmt, Call) else f"{around} of {_counted(len(parts))}"
        source = next((s.source for s in parts if s.source is not None), None)
        estimate = None if any(isinstance(s, Call) for s in parts) else cost(stmt) * 1e-9
        yield Row(name, source, traffic(buffers, stmt), estimate, times.get(numbers.get(id(stmt), 0)))


def _counted(count: int) -> str:
    return f"{count} kernel{'s' * (count != 1)}"


def _time(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:,.1f} us"
