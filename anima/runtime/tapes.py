"""Tapes at run time: the routines that compiled loops call, and programs that take or give tapes.

A header is (next, data, length, bytes); the headers made by a run of a program are a chain, which begins in its
state: (budget, bytes used, status, chain). A table is (capacity, count, (header, bytes of an element, data)*).
What is left of the chain when a program ends is freed, unless tapes are among its results: those keep it alive.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from anima.compiler import native
from anima.compiler.lower_tape import TAPES, source_code
from anima.control.tape import TapeDType, budget, handles, over_budget, tapes
from anima.core.jaxpr import ClosedJaxpr, Jaxpr, subjaxprs
from anima.core.source import Source

_BUDGET, _USED, _STATUS, _CHAIN = range(4)

_CODE = """
declare ptr @malloc(i64)
declare ptr @calloc(i64, i64)
declare ptr @realloc(ptr, i64)
declare void @free(ptr)
declare i64 @llvm.smax.i64(i64, i64)

define internal ptr @entry_of(ptr %table, i64 %k) alwaysinline {
  %three = mul i64 %k, 3
  %at = add i64 %three, 2
  %entry = getelementptr i64, ptr %table, i64 %at
  ret ptr %entry
}

define internal ptr @new_header(ptr %state, i64 %code) {
  %header = call ptr @calloc(i64 4, i64 8)
  %none = icmp eq ptr %header, null
  %status.at = getelementptr i64, ptr %state, i64 2
  br i1 %none, label %failed, label %made
failed:
  store i64 %code, ptr %status.at
  ret ptr null
made:
  %chain.at = getelementptr i64, ptr %state, i64 3
  %chain = load ptr, ptr %chain.at
  store ptr %chain, ptr %header
  store ptr %header, ptr %chain.at
  ret ptr %header
}

define void @tape_open(ptr %tapes, ptr %table, i64 %n, i64 %code) {
entry:
  %state = load ptr, ptr %tapes
  store i64 0, ptr %table
  %count.at = getelementptr i64, ptr %table, i64 1
  store i64 0, ptr %count.at
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k1, %body ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %body, label %done
body:
  %header = call ptr @new_header(ptr %state, i64 %code)
  %e = call ptr @entry_of(ptr %table, i64 %k)
  store ptr %header, ptr %e
  %data.at = getelementptr i64, ptr %e, i64 2
  store i64 0, ptr %data.at
  %k1 = add i64 %k, 1
  br label %next
done:
  ret void
}

define internal i64 @bytes_of_step(ptr %table, i64 %n) {
entry:
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k1, %body ]
  %sum = phi i64 [ 0, %entry ], [ %sum1, %body ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %body, label %done
body:
  %e = call ptr @entry_of(ptr %table, i64 %k)
  %size.at = getelementptr i64, ptr %e, i64 1
  %size = load i64, ptr %size.at
  %sum1 = add i64 %sum, %size
  %k1 = add i64 %k, 1
  br label %next
done:
  ret i64 %sum
}

define void @tape_grow(ptr %tapes, ptr %table, i64 %n, i64 %code) {
entry:
  %state = load ptr, ptr %tapes
  %used.at = getelementptr i64, ptr %state, i64 1
  %status.at = getelementptr i64, ptr %state, i64 2
  %status = load i64, ptr %status.at
  %well = icmp eq i64 %status, 0
  br i1 %well, label %plan, label %done
plan:
  %capacity = load i64, ptr %table
  %count.at = getelementptr i64, ptr %table, i64 1
  %count = load i64, ptr %count.at
  %twice = shl i64 %capacity, 1
  %doubled = call i64 @llvm.smax.i64(i64 %twice, i64 16)
  %known = icmp ne i64 %count, 0
  %wanted = select i1 %known, i64 %count, i64 %doubled
  %step = call i64 @bytes_of_step(ptr %table, i64 %n)
  %new.steps = sub i64 %wanted, %capacity
  %more.bytes = mul i64 %new.steps, %step
  %used = load i64, ptr %used.at
  %total = add i64 %used, %more.bytes
  %budget = load i64, ptr %state
  %fits = icmp sle i64 %total, %budget
  br i1 %fits, label %next, label %fail
next:
  %k = phi i64 [ 0, %plan ], [ %k1, %skip ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %look, label %finish
look:
  %e = call ptr @entry_of(ptr %table, i64 %k)
  %size.at = getelementptr i64, ptr %e, i64 1
  %size = load i64, ptr %size.at
  %k1 = add i64 %k, 1
  %empty = icmp eq i64 %size, 0
  br i1 %empty, label %skip, label %enlarge
enlarge:
  %header = load ptr, ptr %e
  %data.at = getelementptr i64, ptr %e, i64 2
  %data = load ptr, ptr %data.at
  %bytes = mul i64 %size, %wanted
  %moved = call ptr @realloc(ptr %data, i64 %bytes)
  %none = icmp eq ptr %moved, null
  br i1 %none, label %fail, label %note
note:
  store ptr %moved, ptr %data.at
  %h.data = getelementptr i64, ptr %header, i64 1
  store ptr %moved, ptr %h.data
  %h.bytes = getelementptr i64, ptr %header, i64 3
  store i64 %bytes, ptr %h.bytes
  br label %skip
skip:
  br label %next
finish:
  store i64 %total, ptr %used.at
  store i64 %wanted, ptr %table
  ret void
fail:
  store i64 %code, ptr %status.at
  ret void
done:
  ret void
}

define void @tape_close(ptr %tapes, ptr %table, i64 %n, i64 %code) {
entry:
  %count.at = getelementptr i64, ptr %table, i64 1
  %count = load i64, ptr %count.at
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k1, %skip ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %body, label %done
body:
  %e = call ptr @entry_of(ptr %table, i64 %k)
  %header = load ptr, ptr %e
  %k1 = add i64 %k, 1
  %none = icmp eq ptr %header, null
  br i1 %none, label %skip, label %set
set:
  %length.at = getelementptr i64, ptr %header, i64 2
  store i64 %count, ptr %length.at
  br label %skip
skip:
  br label %next
done:
  ret void
}

define internal i64 @length_of(ptr %header) {
  %none = icmp eq ptr %header, null
  br i1 %none, label %zero, label %read
zero:
  ret i64 0
read:
  %length.at = getelementptr i64, ptr %header, i64 2
  %length = load i64, ptr %length.at
  ret i64 %length
}

define void @tape_read(ptr %tapes, ptr %table, i64 %n, i64 %code) {
entry:
  %state = load ptr, ptr %tapes
  %used.at = getelementptr i64, ptr %state, i64 1
  %status.at = getelementptr i64, ptr %state, i64 2
  %count.at = getelementptr i64, ptr %table, i64 1
  br label %measure
measure:
  %j = phi i64 [ 0, %entry ], [ %j1, %measured ]
  %count = phi i64 [ 0, %entry ], [ %longest, %measured ]
  %j.more = icmp slt i64 %j, %n
  br i1 %j.more, label %measured, label %next
measured:
  %je = call ptr @entry_of(ptr %table, i64 %j)
  %jh = load ptr, ptr %je
  %length = call i64 @length_of(ptr %jh)
  %longest = call i64 @llvm.smax.i64(i64 %count, i64 %length)
  %j1 = add i64 %j, 1
  br label %measure
next:
  %k = phi i64 [ 0, %measure ], [ %k1, %skip ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %look, label %finish
look:
  %e = call ptr @entry_of(ptr %table, i64 %k)
  %size.at = getelementptr i64, ptr %e, i64 1
  %size = load i64, ptr %size.at
  %data.at = getelementptr i64, ptr %e, i64 2
  %header = load ptr, ptr %e
  %k1 = add i64 %k, 1
  %empty = icmp eq i64 %size, 0
  br i1 %empty, label %skip, label %find
find:
  %own = call i64 @length_of(ptr %header)
  %short = icmp slt i64 %own, %count
  br i1 %short, label %zeros, label %there
there:
  %reaches = icmp sgt i64 %own, 0
  br i1 %reaches, label %take, label %skip
take:
  %h.data = getelementptr i64, ptr %header, i64 1
  %data = load ptr, ptr %h.data
  store ptr %data, ptr %data.at
  br label %skip
zeros:
  %bytes = mul i64 %size, %count
  %used = load i64, ptr %used.at
  %total = add i64 %used, %bytes
  %budget = load i64, ptr %state
  %fits = icmp sle i64 %total, %budget
  br i1 %fits, label %clear, label %fail
clear:
  %made = call ptr @new_header(ptr %state, i64 %code)
  %no.header = icmp eq ptr %made, null
  br i1 %no.header, label %fail, label %fill
fill:
  %blank = call ptr @calloc(i64 %count, i64 %size)
  %none = icmp eq ptr %blank, null
  br i1 %none, label %fail, label %note
note:
  %m.data = getelementptr i64, ptr %made, i64 1
  store ptr %blank, ptr %m.data
  %m.length = getelementptr i64, ptr %made, i64 2
  store i64 %count, ptr %m.length
  %m.bytes = getelementptr i64, ptr %made, i64 3
  store i64 %bytes, ptr %m.bytes
  store i64 %total, ptr %used.at
  store ptr %blank, ptr %data.at
  br label %skip
skip:
  br label %next
finish:
  store i64 %count, ptr %count.at
  ret void
fail:
  store i64 %code, ptr %status.at
  store i64 0, ptr %count.at
  ret void
}

define void @tape_mark(ptr %tapes, ptr %mark) {
  %state = load ptr, ptr %tapes
  %chain.at = getelementptr i64, ptr %state, i64 3
  %chain = load ptr, ptr %chain.at
  store ptr %chain, ptr %mark
  ret void
}

define void @tape_release(ptr %tapes, ptr %mark) {
  %state = load ptr, ptr %tapes
  %until = load ptr, ptr %mark
  call void @tape_free(ptr %state, ptr %until)
  ret void
}

define void @tape_free(ptr %state, ptr %until) {
entry:
  %used.at = getelementptr i64, ptr %state, i64 1
  %chain.at = getelementptr i64, ptr %state, i64 3
  %first = load ptr, ptr %chain.at
  br label %next
next:
  %header = phi ptr [ %first, %entry ], [ %following, %drop ]
  %here = icmp eq ptr %header, %until
  br i1 %here, label %done, label %drop
drop:
  %following = load ptr, ptr %header
  %data.at = getelementptr i64, ptr %header, i64 1
  %data = load ptr, ptr %data.at
  %bytes.at = getelementptr i64, ptr %header, i64 3
  %bytes = load i64, ptr %bytes.at
  %used = load i64, ptr %used.at
  %less = sub i64 %used, %bytes
  store i64 %less, ptr %used.at
  call void @free(ptr %data)
  call void @free(ptr %header)
  br label %next
done:
  store ptr %until, ptr %chain.at
  ret void
}
"""


@cache
def _module() -> native.Module:
    return native.compile_module(_CODE)


@cache
def routine(name: str) -> int:
    """The address of a routine that compiled loops call."""
    return _module().address(name)


@cache
def _free() -> Callable[[int, int], None]:
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(routine("tape_free"))


class _State:
    """The state of one run; as long as it lives, so do the tapes of its chain."""

    __slots__ = ("__weakref__", "words")

    def __init__(self) -> None:
        self.words = np.array([budget(), 0, 0, 0], np.int64)

    def release(self) -> None:
        """Frees all tapes."""
        _release(self.words)

    def keep(self) -> None:
        """The tapes are freed when nothing refers to the state any more."""
        weakref.finalize(self, _release, self.words)


def _release(words: np.ndarray) -> None:
    if words[_CHAIN]:
        _free()(words.ctypes.data, 0)


class TapeExecutable:
    """An executable of a program that uses tapes inside, takes them or gives them."""

    def __init__(self, executable: Any, closed: ClosedJaxpr):
        self.executable = executable
        self.closed = closed
        self.records = any(b.name == TAPES for b in executable.program.with_role("input"))
        self.given = [k for k, a in enumerate(closed.in_avals) if isinstance(a.dtype, TapeDType)]
        self.results = [k for k, a in enumerate(closed.out_avals) if isinstance(a.dtype, TapeDType)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.executable, name)

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run the program; arrays of tapes hold `Tape` objects."""
        values = list(inputs)
        for k in self.given:
            values[k] = handles(values[k])
        state = _State()
        if self.records:
            values.append(np.array([state.words.ctypes.data], np.int64))
        kept = False
        try:
            outs = self.executable(values)
            if state.words[_STATUS]:
                raise over_budget(self._place(int(state.words[_STATUS])))
            if self.results:
                keep = (state, [inputs[k] for k in self.given], self.closed.consts)
                state.keep()
                kept = True
                for k in self.results:
                    outs[k] = tapes(outs[k], keep)
            return outs
        finally:
            if not kept:
                state.release()

    def _place(self, code: int) -> Source | None:
        return next((s for s in _sources(self.closed.jaxpr) if source_code(s) == code), None)


def _sources(jaxpr: Jaxpr | ClosedJaxpr) -> Iterator[Source | None]:
    for eqn in jaxpr.eqns:
        yield eqn.source
        for inner in subjaxprs(eqn.params):
            yield from _sources(inner)


def with_tapes(executable: Any, closed: ClosedJaxpr) -> Any:
    """The executable itself, or, where tapes are involved, one that looks after them."""
    made = TapeExecutable(executable, closed)
    return made if made.records or made.given or made.results else executable

