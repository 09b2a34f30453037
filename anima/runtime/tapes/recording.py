"""Programs with tapes: the state they run with, and loops that are too long for the budget.

    executable = executable_of(closed, name)       tapes among its arguments and results are `Tape` objects

Where the tapes of a loop are full, compiled code calls back (`TapedLoop`): the loop goes on with states kept here
and there in the place of tapes (`Checkpoints`), as many as the budget allows. Who reads the tapes then calls back
for what is missing (`Refill`), which is recorded again from the nearest state, an eighth of the budget at once.
Of what was on the tapes, half is kept until its room is needed.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from anima.compiler import driver
from anima.compiler.lowering.tape import TAPES, Refill, TapedLoop, source_code
from anima.compiler.rewriting.expand import RECORDED, RECORDS
from anima.control.online import Budget, Checkpoints
from anima.control.tape import WORD, Tape, TapeDType, budget, handles, over_budget, tapes
from anima.control.while_loop import tape_while_p, while_p
from anima.core.avals import ShapedArray
from anima.core.jaxpr import ClosedJaxpr, all_eqns
from anima.core.source import Source
from anima.core.stage import eval_jaxpr, trace_to_jaxpr
from anima.core.trace import EVAL, under
from anima.ops.elementwise import add, lt
from anima.runtime import cpu
from anima.runtime.executable import Executable
from anima.runtime.logs import timed
from anima.runtime.tapes import routines as native
from anima.util import replace, split_list, weak_cache

_UNLIMITED = 1 << 62
_COUNTER = ShapedArray((), np.dtype(np.int32))
_readers = count(1)


@weak_cache
def executable_of(closed: ClosedJaxpr, name: str, donated: tuple[int, ...] = ()) -> Any:
    """The compiled form of a program, which may write over the arguments at `donated`; compiled at the first call."""
    shapes = [(*a.shape, *getattr(a.dtype, "element_shape", ())) for a in closed.out_avals]
    backend = cpu.here()
    with timed("compile", name):
        program, code = driver.compile(closed, name, donated, backend)
        if any(isinstance(c, (TapedLoop, Refill)) for c in program.callbacks):
            program = replace(program, callbacks=tuple(map(_at_run_time, program.callbacks)))
        made = Executable(program, code, backend, shapes)
    recorded = TapeExecutable(made, closed)
    return recorded if recorded.records or recorded.given or recorded.results else made


def _at_run_time(callback: Any) -> Any:
    if isinstance(callback, TapedLoop):
        return _GoOn(callback, callback.operands, callback.results)
    if isinstance(callback, Refill):
        return _Find(callback.reverse, callback.operands, callback.results)
    return callback


# ---------------------------------------------------------------- programs that use tapes


_words = ctypes.c_int64 * 4


class _RunState:
    """The state of one run; as long as it lives, so do the tapes of its chain."""

    __slots__ = ("__weakref__", "words")

    def __init__(self, room: int) -> None:
        self.words = _words(room)

    def address(self) -> np.ndarray:
        """Where it lies, as programs take it."""
        return np.array([ctypes.addressof(self.words)], np.int64)

    def release(self) -> None:
        """Frees all tapes."""
        _release(self.words)

    def keep(self) -> None:
        """The tapes are freed when nothing refers to the state any more."""
        weakref.finalize(self, _release, self.words).atexit = False  # what runs at the exit may still read them


def _release(words: Any) -> None:
    if words[native.CHAIN]:
        native.free()(ctypes.addressof(words), 0)


class _Recorded(Tape):
    """A tape that compiled code made, of which some may not be there: who reads it then is compiled, too."""

    __slots__ = ()

    def evaluate(self, closed: ClosedJaxpr, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results of a loop over this tape and others."""
        return executable_of(closed, "tape_scan")(list(map(np.asarray, args)))


class TapeExecutable:
    """An executable of a program that uses tapes inside, takes them or gives them."""

    def __init__(self, executable: Executable, closed: ClosedJaxpr):
        self.executable = executable
        self.jaxpr, self.consts = closed.jaxpr, closed.consts  # not `closed`: `executable_of` lives as long as that
        self.records = any(b.name == TAPES for b in executable.program.with_role("input"))
        self.given = [k for k, a in enumerate(closed.in_avals) if isinstance(a.dtype, TapeDType)]
        self.results = [k for k, a in enumerate(closed.out_avals) if isinstance(a.dtype, TapeDType)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.executable, name)

    def __call__(self, inputs: Sequence[np.ndarray], room: int | None = None) -> list[np.ndarray]:
        """Run the program, whose tapes may take `room` bytes (the budget); arrays of tapes hold `Tape` objects."""
        values = list(inputs)
        for k in self.given:
            values[k] = handles(values[k])
        state = _RunState(budget() if room is None else room)
        if self.records:
            values.append(state.address())
        kept = False
        try:
            outs = self.executable(values)
            self._check(state)
            if self.results:
                keep = (state, [inputs[k] for k in self.given], self.consts)
                state.keep()
                kept = True
                for k in self.results:
                    outs[k] = tapes(outs[k], keep, _Recorded)
            return outs
        finally:
            if not kept:
                state.release()

    def typed(self, avals: Sequence[ShapedArray], out_avals: Sequence[ShapedArray], form: str,
              donated: Sequence[int] = ()) -> Callable[..., Any] | None:
        """As of other executables, where all tapes are made and freed within a call."""
        if self.given or self.results:
            return None
        run = self.executable.typed([*avals, None], out_avals, form, donated)
        if run is None:
            return None

        def recording(*args: Any) -> Any:
            state = _RunState(budget())
            try:
                outs = run(*args, state.address())
                self._check(state)
                return outs
            finally:
                state.release()

        return recording

    def _check(self, state: _RunState) -> None:
        """MemoryError if the tapes of a run took more memory than they may."""
        if state.words[native.STATUS]:
            raise over_budget(self._place(state.words[native.STATUS]))

    def _place(self, code: int) -> Source | None:
        return next((e.source for e in all_eqns(self.jaxpr) if source_code(e.source) == code), None)


# ---------------------------------------------------------------- loops whose tapes are full


@weak_cache
def _segments(cond: ClosedJaxpr, body: ClosedJaxpr, cond_nconsts: int, body_nconsts: int) -> tuple[Any, Any]:
    """Programs for a part of a loop: (constants of both, carry, most steps) -> (carry, steps), while the condition
    holds; (constants of the body, carry, steps) -> (carry, tapes)."""
    given = body.in_avals[body_nconsts:]
    size = len(given)

    def limited(*args: Any) -> list[Any]:  # what the condition reads, carry, step, steps
        consts, carry, (step, most) = split_list(args, [cond_nconsts, size])
        (more,) = eval_jaxpr(cond.jaxpr, cond.consts, *consts, *carry)
        return [more & lt(step, most)]

    def counted(*args: Any) -> list[Any]:
        return [lt(args[-2], args[-1])]

    def step(*args: Any) -> list[Any]:  # constants, carry, step, steps
        *operands, done, most = args
        outs = eval_jaxpr(body.jaxpr, body.consts, *operands)
        return [*outs[:size], add(done, 1), most, *outs[size:]]

    cond_avals, body_avals = cond.in_avals[:cond_nconsts], body.in_avals[:body_nconsts]
    counters = [_COUNTER, _COUNTER]
    until = _closed(limited, [*cond_avals, *given, *counters])
    always = _closed(counted, [*given, *counters])
    traced = _closed(step, [*body_avals, *given, *counters])
    records = body.jaxpr.effects & {RECORDS, RECORDED}  # of loops in the body: tapes that now have no type of their own
    plain = traced.replace(jaxpr=traced.jaxpr.replace(
        outvars=traced.jaxpr.outvars[:size + 2], effects=traced.jaxpr.effects | ({RECORDS} if records else set())))
    taped = traced.replace(jaxpr=traced.jaxpr.replace(effects=traced.jaxpr.effects | records))
    zero = np.zeros((), np.int32)

    def advance(*args: Any) -> list[Any]:
        *operands, most = args
        outs = while_p.bind(*operands, zero, most, cond_jaxpr=until, body_jaxpr=plain, cond_nconsts=cond_nconsts,
                            body_nconsts=body_nconsts)
        return list(outs[:size + 1])

    def record(*args: Any) -> list[Any]:
        *operands, most = args
        outs = tape_while_p.bind(*operands, zero, most, cond_jaxpr=always, body_jaxpr=taped, cond_nconsts=0,
                                 body_nconsts=body_nconsts)
        return [*outs[:size], *outs[size + 3:]]

    return (executable_of(_closed(advance, [*cond_avals, *body_avals, *given, _COUNTER]), "advance"),
            executable_of(_closed(record, [*body_avals, *given, _COUNTER]), "record"))


def _closed(fun: Callable[..., list[Any]], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
    jaxpr, consts = under(EVAL, trace_to_jaxpr, fun, list(avals))
    eqns = [e.replace(effects=e.effects - {RECORDS, RECORDED}) for e in jaxpr.eqns]  # what parts make dies with them
    return ClosedJaxpr(jaxpr.replace(eqns=eqns, effects=jaxpr.effects - {RECORDS, RECORDED}), consts)


class _Loop:
    """A loop of which states are kept in the place of tapes.

    `entries` are the headers of its tapes and the bytes of an element; the first, which counts the steps and has no
    data, stands for all memory that the loop takes.
    """

    def __init__(self, run: int, entries: list[tuple[int, int]], programs: tuple[Any, Any],
                 consts: tuple[list[Any], list[Any]], plan: Budget, initial: list[Any]):
        self.run, self.entries, self.programs, self.plan = run, entries, programs, plan
        self.cond_consts, self.body_consts = consts
        self.states = Checkpoints(self._advance, initial, plan.chunk, plan.slots(), plan.prefix)
        self.windows: dict[int, list[Tape]] = {}  # what is recorded for each reader
        self.prefix_in_use = False
        self.lock = threading.RLock()  # who reads the tapes moves the states: one thread at a time
        number = native.enter_loop(self)
        for position, (header, _) in enumerate(entries[1:]):
            native.words(header)[native.BYTES:] = [0, number, position]
        self._trim()

    def _advance(self, state: list[Any], steps: int) -> tuple[list[Any], int]:
        *carry, taken = self.programs[0]([*self.cond_consts, *self.body_consts, *state, np.array(steps, np.int32)])
        return carry, int(taken)

    def go_on(self, length: int, state: list[Any]) -> list[Any]:
        """The last carry, from that after `length` steps."""
        return self.states.run(length, state, self._more_slots)

    def _more_slots(self) -> int:
        self.plan.halve()
        self._trim()
        return self.plan.slots()

    def _trim(self) -> None:
        """Keeps only the plan's prefix on the tapes."""
        self.states.prefix = self.plan.prefix
        native.words(self.entries[0][0])[native.BYTES] = self.plan.room
        for header, size in self.entries[1:]:
            native.trim()(header, self.plan.prefix * size)

    def shrink(self, room: int) -> None:
        """Makes do with fewer bytes."""
        kept = self.plan.prefix if self.prefix_in_use else 0
        self.plan = Budget(room, self.plan.state_bytes, self.plan.step_bytes, 0)
        self.plan.prefix = kept
        self._trim()
        self.states.chunk = self.plan.chunk
        self.states.shrink(max(self.plan.slots(), 1))

    def window(self, reader: int, step: int, reverse: bool) -> tuple[int, int]:
        """Makes elements around a step those that the reader sees; gives the first step and the end."""
        self.close(reader)
        if step < self.plan.prefix:
            self.prefix_in_use = True
            return 0, self.plan.prefix
        with self.lock:
            first, end, state = self.states.chunk_with(step, reverse)
            size = len(state)
            outs = self.programs[1]([*self.body_consts, *state, np.array(end - first, np.int32)], _UNLIMITED)
            self.states.recorded(end, outs[:size])
        self.windows[reader] = [t[()] for t in outs[size:]]
        return first, end

    def close(self, reader: int) -> None:
        """Forgets what was recorded for a reader."""
        self.windows.pop(reader, None)


@dataclass(frozen=True, slots=True)
class _GoOn:
    """Takes a loop over from compiled code (see `TapedLoop`)."""

    loop: TapedLoop
    operands: tuple[ShapedArray, ...]
    results: tuple[ShapedArray, ...]

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        loop = self.loop
        (run,), table, *rest = arrays
        table = table.copy()
        state, length = native.words(int(run)), int(table[1])
        cond_consts, body_consts, initial, carry = split_list(
            rest, [loop.cond_nconsts, loop.body_nconsts, len(self.results) - 1])
        entries = [(int(header), int(size)) for header, size, _ in table[2:].reshape(-1, 3)]
        own = _bytes_up_to(state[native.CHAIN], entries[0][0])
        nested = state[native.CHAIN] != entries[-1][0]  # the elements of these tapes are tapes, made since
        if nested:
            native.free()(int(run), entries[-1][0])
        earlier = native.loops_of(int(run))  # without those among the elements, which are gone
        kept = _bytes_up_to(state[native.CHAIN], entries[0][0])
        others = state[native.USED] - kept - sum(x.plan.room for x in earlier)
        room = (state[native.BUDGET] - others) * 7 // 8 // (len(earlier) + 1)
        step_bytes = sum(size for _, size in entries)
        if nested:
            step_bytes = own // length if length else room
        plan = Budget(room, sum(a.nbytes for a in initial), step_bytes, 0 if nested else length)
        if plan.slots() < 1:
            raise over_budget(loop.source)
        programs = _segments(loop.cond, loop.body, loop.cond_nconsts, loop.body_nconsts)
        made = _Loop(int(run), entries, programs, (cond_consts, body_consts), plan, initial)
        for each in earlier:
            each.shrink(room)
        state[native.USED] = others + room * (len(earlier) + 1)
        last = made.go_on(length, carry)
        table[1] = made.states.length
        return [*last, table]


def _bytes_up_to(header: int, last: int) -> int:
    """What the headers of a chain say that they have, as far as `last`."""
    total = 0
    while True:
        following, _, _, size, *_ = native.words(header)
        total += size
        if header == last:
            return total
        header = following


@dataclass(frozen=True, slots=True)
class _Find:
    """Finds elements of tapes that are kept in part (see `Refill`)."""

    reverse: bool
    operands: tuple[ShapedArray, ...]
    results: tuple[ShapedArray, ...]

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        table, (step,), reader = arrays
        table = table.copy()
        reader = reader if reader[0] else np.array([next(_readers)], WORD)
        number, length, edge = int(reader[0]), table[1], 0 if self.reverse else table[1]
        found: dict[int, tuple[int, int]] = {}
        for entry in table[2:].reshape(-1, 3):
            header, size, _ = map(int, entry)
            if not (header and size) or native.words(header)[native.LENGTH] < length:  # zeros are there
                continue
            _, data, _, _, loop_number, position = native.words(header)
            if not loop_number:
                continue
            loop = native.loop_of(loop_number)
            if step < 0:
                loop.close(number)
                continue
            if loop_number not in found:
                found[loop_number] = loop.window(number, int(step), self.reverse)
            first, end = found[loop_number]
            if number in loop.windows:
                data = native.words(loop.windows[number][position].handle)[native.DATA]
            entry[2] = data - first * size
            edge = max(edge, first) if self.reverse else min(edge, end)
        table[0] = edge
        return [table, reader]
