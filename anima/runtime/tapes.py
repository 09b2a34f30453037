"""Tapes at run time: the routines that compiled loops call.

A header is (next, data, length, bytes, loop, position); the headers made by a run of a program are a chain, which
begins in its state: (budget, bytes used, status, chain). A table is (capacity, count, (header, bytes of an element,
data)*). A loop whose tapes do not fit the budget has count -1 then; if it could go on nevertheless (see
`recording.py`), `loop` is its number, and `position` which of its tapes the header is of.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any

from anima.compiler import native

BUDGET, USED, STATUS, CHAIN = range(4)  # words of a state

_CODE = """
declare ptr @malloc(i64)
declare ptr @calloc(i64, i64)
declare ptr @realloc(ptr, i64)
declare void @free(ptr)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)

define internal ptr @entry_of(ptr %table, i64 %k) alwaysinline {
  %three = mul i64 %k, 3
  %at = add i64 %three, 2
  %entry = getelementptr i64, ptr %table, i64 %at
  ret ptr %entry
}

define internal ptr @new_header(ptr %state, i64 %code) {
  %header = call ptr @calloc(i64 6, i64 8)
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
  %fine = icmp eq i64 %status, 0
  %count.at = getelementptr i64, ptr %table, i64 1
  %count = load i64, ptr %count.at
  %open = icmp sge i64 %count, 0
  %well = and i1 %fine, %open
  br i1 %well, label %plan, label %done
plan:
  %capacity = load i64, ptr %table
  %twice = shl i64 %capacity, 1
  %doubled = call i64 @llvm.smax.i64(i64 %twice, i64 16)
  %known = icmp ne i64 %count, 0
  %step = call i64 @bytes_of_step(ptr %table, i64 %n)
  %used = load i64, ptr %used.at
  %budget = load i64, ptr %state
  %left = sub i64 %budget, %used
  %one = call i64 @llvm.smax.i64(i64 %step, i64 1)
  %fitting = sdiv i64 %left, %one
  %most = add i64 %capacity, %fitting
  %fewer = call i64 @llvm.smin.i64(i64 %doubled, i64 %most)
  %bare = icmp eq i64 %step, 0
  %more.steps = select i1 %bare, i64 %doubled, i64 %fewer
  %wanted = select i1 %known, i64 %count, i64 %more.steps
  %new.steps = sub i64 %wanted, %capacity
  %more.bytes = mul i64 %new.steps, %step
  %total = add i64 %used, %more.bytes
  %within = icmp sle i64 %total, %budget
  %more.room = icmp sgt i64 %new.steps, 0
  %fits = and i1 %within, %more.room
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
  store i64 -1, ptr %count.at
  store i64 %code, ptr %status.at
  ret void
done:
  ret void
}

define void @tape_check(ptr %tapes, ptr %table, i64 %n, i64 %code) {
  %state = load ptr, ptr %tapes
  %used.at = getelementptr i64, ptr %state, i64 1
  %used = load i64, ptr %used.at
  %budget = load i64, ptr %state
  %quarter = ashr i64 %budget, 2
  %most = sub i64 %budget, %quarter
  %full = icmp sgt i64 %used, %most
  br i1 %full, label %stop, label %done
stop:
  store i64 0, ptr %table
  %count.at = getelementptr i64, ptr %table, i64 1
  store i64 -1, ptr %count.at
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
  store i64 0, ptr %table
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
  %h.loop = getelementptr i64, ptr %header, i64 4
  %loop = load i64, ptr %h.loop
  %others = load i64, ptr %table
  %partial = or i64 %loop, %others
  store i64 %partial, ptr %table
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
  %header = phi ptr [ %first, %entry ], [ %following, %free ]
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
  %loop.at = getelementptr i64, ptr %header, i64 4
  %loop = load i64, ptr %loop.at
  %whole = icmp eq i64 %loop, 0
  br i1 %whole, label %free, label %forget
forget:
  call void {forget}(i64 %loop)
  br label %free
free:
  call void @free(ptr %data)
  call void @free(ptr %header)
  br label %next
done:
  store ptr %until, ptr %chain.at
  ret void
}

define void @tape_trim(ptr %header, i64 %bytes) {
  %data.at = getelementptr i64, ptr %header, i64 1
  %data = load ptr, ptr %data.at
  %nothing = icmp eq i64 %bytes, 0
  br i1 %nothing, label %drop, label %keep
drop:
  call void @free(ptr %data)
  store ptr null, ptr %data.at
  ret void
keep:
  %smaller = call ptr @realloc(ptr %data, i64 %bytes)
  %failed = icmp eq ptr %smaller, null
  %new = select i1 %failed, ptr %data, ptr %smaller
  store ptr %new, ptr %data.at
  ret void
}
"""


_loops: dict[int, Any] = {}  # by number: what stands for the loops whose tapes are kept in part
_numbers = count(1)


def enter_loop(loop: Any) -> int:
    """Remembers a loop until its tapes are freed; gives its number."""
    number = next(_numbers)
    _loops[number] = loop
    return number


def loop_of(number: int) -> Any:
    """The loop of that number."""
    return _loops[number]


def loops_of(run: int) -> list[Any]:
    """The loops of the run whose state is at that address."""
    return [x for x in list(_loops.values()) if x.run == run]


@ctypes.CFUNCTYPE(None, ctypes.c_int64)
def _forget(number: int) -> None:
    _loops.pop(number, None)


@cache
def _module() -> native.Module:
    address = ctypes.cast(_forget, ctypes.c_void_p).value
    return native.compile_module(_CODE.replace("{forget}", f"inttoptr (i64 {address} to ptr)"))


@cache
def routine(name: str) -> int:
    """The address of a routine that compiled loops call."""
    return _module().address(name)


@cache
def trim() -> Callable[[int, int], None]:
    """`trim(header, bytes)`: a tape keeps only its first bytes."""
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(routine("tape_trim"))


@cache
def free() -> Callable[[int, int], None]:
    """`free(state, until)`: frees the headers of a state's chain, up to the header `until` (or 0)."""
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(routine("tape_free"))


def words(address: int) -> Any:
    """The words of a header (or of a state, which has fewer), in place."""
    return (ctypes.c_int64 * 6).from_address(address)
