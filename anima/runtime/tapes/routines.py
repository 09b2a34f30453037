"""Tapes at run time: the routines that compiled loops call.

A header is (next, data, length, bytes, loop, position); the headers made by a run of a program are a chain, which
begins in its state: (budget, bytes used, status, chain). A table is (capacity, count, entries*), an entry (header,
bytes of an element, elements). A loop whose tapes do not fit the budget has count -1 then; if it could go on
nevertheless (see `recording.py`), `loop` is its number, and `position` which of its tapes the header is of.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import count
from typing import Any

from anima.compiler.machine import native
from anima.runtime.fields import with_fields
from anima.util import once

BUDGET, USED, STATUS, CHAIN = range(4)                     # words of a state
DATA, LENGTH, BYTES, LOOP = range(1, 5)                    # ... of a header
_FIELDS = {name: 8 * word for names in (
    ("budget", "used", "status", "chain"),
    ("next", "data", "length", "bytes", "loop", "position"),
    ("capacity", "count"),                                 # of a table, ahead of the entries
    ("header", "size", "elements"),                        # of an entry
) for word, name in enumerate(names)}

_CODE = """
declare void @forget(i64)
declare ptr @malloc(i64)
declare ptr @calloc(i64, i64)
declare ptr @realloc(ptr, i64)
declare void @free(ptr)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)

define internal ptr @entry_of(ptr %table, i64 %k) alwaysinline {
  %entries = getelementptr i64, ptr %table, i64 2
  %three = mul i64 %k, 3
  %entry = getelementptr i64, ptr %entries, i64 %three
  ret ptr %entry
}

define internal i64 @length_of(ptr %header) alwaysinline {
  %none = icmp eq ptr %header, null
  br i1 %none, label %zero, label %read
zero:
  ret i64 0
read:
  %length = field i64 %header, length
  ret i64 %length
}

; A header at the front of the chain; null, and the status is set, if there is no memory.
define internal ptr @new_header(ptr %state, i64 %code) {
  %new = call ptr @calloc(i64 6, i64 8)
  %none = icmp eq ptr %new, null
  br i1 %none, label %failed, label %made
failed:
  set i64 %code, %state, status
  ret ptr null
made:
  %chain = field ptr %state, chain
  set ptr %chain, %new, next
  set ptr %new, %state, chain
  ret ptr %new
}

define void @tape_open(ptr %tapes, ptr %table, i64 %n, i64 %code) {
entry:
  %state = load ptr, ptr %tapes
  set i64 0, %table, capacity
  set i64 0, %table, count
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k1, %body ]
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k, %n
  br i1 %more, label %body, label %done
body:
  %e = call ptr @entry_of(ptr %table, i64 %k)
  %new = call ptr @new_header(ptr %state, i64 %code)
  set ptr %new, %e, header
  set ptr null, %e, elements
  br label %next
done:
  ret void
}

; The bytes that one step takes on all tapes.
define internal i64 @bytes_of_step(ptr %table, i64 %n) {
entry:
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k1, %body ]
  %sum = phi i64 [ 0, %entry ], [ %sum1, %body ]
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k, %n
  br i1 %more, label %body, label %done
body:
  %e = call ptr @entry_of(ptr %table, i64 %k)
  %size = field i64 %e, size
  %sum1 = add i64 %sum, %size
  br label %next
done:
  ret i64 %sum
}

define void @tape_grow(ptr %tapes, ptr %table, i64 %n, i64 %code) {
entry:
  %state = load ptr, ptr %tapes
  %status = field i64 %state, status
  %fine = icmp eq i64 %status, 0
  %count = field i64 %table, count
  %open = icmp sge i64 %count, 0
  %well = and i1 %fine, %open
  br i1 %well, label %plan, label %done
plan: ; for `count` steps if that is known, else for twice as many as now, or as many as fit in 7/8 of the budget
  %capacity = field i64 %table, capacity
  %twice = shl i64 %capacity, 1
  %doubled = call i64 @llvm.smax.i64(i64 %twice, i64 16)
  %known = icmp ne i64 %count, 0
  %step = call i64 @bytes_of_step(ptr %table, i64 %n)
  %used = field i64 %state, used
  %budget = field i64 %state, budget
  %reserve = ashr i64 %budget, 3
  %most.bytes = sub i64 %budget, %reserve
  %left = sub i64 %most.bytes, %used
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
  %k = phi i64 [ 0, %plan ], [ %k1, %look ], [ %k1, %note ]
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k, %n
  br i1 %more, label %look, label %finish
look:
  %e = call ptr @entry_of(ptr %table, i64 %k)
  %size = field i64 %e, size
  %empty = icmp eq i64 %size, 0
  br i1 %empty, label %next, label %enlarge
enlarge:
  %old = field ptr %e, elements
  %bytes = mul i64 %size, %wanted
  %moved = call ptr @realloc(ptr %old, i64 %bytes)
  %none = icmp eq ptr %moved, null
  br i1 %none, label %fail, label %note
note:
  set ptr %moved, %e, elements
  %header = field ptr %e, header
  set ptr %moved, %header, data
  set i64 %bytes, %header, bytes
  br label %next
finish:
  set i64 %total, %state, used
  set i64 %wanted, %table, capacity
  ret void
fail:
  set i64 -1, %table, count
  set i64 %code, %state, status
  ret void
done:
  ret void
}

define void @tape_check(ptr %tapes, ptr %table, i64 %n, i64 %code) {
  %state = load ptr, ptr %tapes
  %used = field i64 %state, used
  %budget = field i64 %state, budget
  %quarter = ashr i64 %budget, 2
  %most = sub i64 %budget, %quarter
  %full = icmp sgt i64 %used, %most
  br i1 %full, label %stop, label %done
stop:
  set i64 0, %table, capacity
  set i64 -1, %table, count
  ret void
done:
  ret void
}

define void @tape_close(ptr %tapes, ptr %table, i64 %n, i64 %code) {
entry:
  %count = field i64 %table, count
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k1, %body ], [ %k1, %set ]
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k, %n
  br i1 %more, label %body, label %done
body:
  %e = call ptr @entry_of(ptr %table, i64 %k)
  %header = field ptr %e, header
  %none = icmp eq ptr %header, null
  br i1 %none, label %next, label %set
set:
  set i64 %count, %header, length
  br label %next
done:
  ret void
}

define void @tape_read(ptr %tapes, ptr %table, i64 %n, i64 %code) {
entry:
  %state = load ptr, ptr %tapes
  set i64 0, %table, capacity
  br label %measure
measure:
  %j = phi i64 [ 0, %entry ], [ %j1, %measured ]
  %count = phi i64 [ 0, %entry ], [ %longest, %measured ]
  %j1 = add i64 %j, 1
  %j.more = icmp slt i64 %j, %n
  br i1 %j.more, label %measured, label %next
measured:
  %je = call ptr @entry_of(ptr %table, i64 %j)
  %jh = field ptr %je, header
  %length = call i64 @length_of(ptr %jh)
  %longest = call i64 @llvm.smax.i64(i64 %count, i64 %length)
  br label %measure
next:
  %k = phi i64 [ 0, %measure ], [ %k1, %look ], [ %k1, %there ], [ %k1, %take ], [ %k1, %note ]
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k, %n
  br i1 %more, label %look, label %finish
look:
  %e = call ptr @entry_of(ptr %table, i64 %k)
  %size = field i64 %e, size
  %header = field ptr %e, header
  %empty = icmp eq i64 %size, 0
  br i1 %empty, label %next, label %find
find:
  %own = call i64 @length_of(ptr %header)
  %short = icmp slt i64 %own, %count
  br i1 %short, label %zeros, label %there
there:
  %reaches = icmp sgt i64 %own, 0
  br i1 %reaches, label %take, label %next
take:
  %data = field ptr %header, data
  set ptr %data, %e, elements
  %loop = field i64 %header, loop
  %others = field i64 %table, capacity
  %partial = or i64 %loop, %others
  set i64 %partial, %table, capacity
  br label %next
zeros:
  %bytes = mul i64 %size, %count
  %used = field i64 %state, used
  %total = add i64 %used, %bytes
  %budget = field i64 %state, budget
  %fits = icmp sle i64 %total, %budget
  br i1 %fits, label %clear, label %fail
clear:
  %new = call ptr @new_header(ptr %state, i64 %code)
  %no.header = icmp eq ptr %new, null
  br i1 %no.header, label %fail, label %fill
fill:
  %blank = call ptr @calloc(i64 %count, i64 %size)
  %none = icmp eq ptr %blank, null
  br i1 %none, label %fail, label %note
note:
  set ptr %blank, %new, data
  set i64 %count, %new, length
  set i64 %bytes, %new, bytes
  set i64 %total, %state, used
  set ptr %blank, %e, elements
  br label %next
finish:
  set i64 %count, %table, count
  ret void
fail:
  set i64 %code, %state, status
  set i64 0, %table, count
  ret void
}

define void @tape_mark(ptr %tapes, ptr %mark) {
  %state = load ptr, ptr %tapes
  %chain = field ptr %state, chain
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
  %first = field ptr %state, chain
  br label %next
next:
  %header = phi ptr [ %first, %entry ], [ %following, %free ]
  %here = icmp eq ptr %header, %until
  br i1 %here, label %done, label %drop
drop:
  %following = field ptr %header, next
  %data = field ptr %header, data
  %bytes = field i64 %header, bytes
  %used = field i64 %state, used
  %less = sub i64 %used, %bytes
  set i64 %less, %state, used
  %loop = field i64 %header, loop
  %whole = icmp eq i64 %loop, 0
  br i1 %whole, label %free, label %forget
forget:
  call void @forget(i64 %loop)
  br label %free
free:
  call void @free(ptr %data)
  call void @free(ptr %header)
  br label %next
done:
  set ptr %until, %state, chain
  ret void
}

define void @tape_trim(ptr %header, i64 %bytes) {
  %data = field ptr %header, data
  %nothing = icmp eq i64 %bytes, 0
  br i1 %nothing, label %drop, label %keep
drop:
  call void @free(ptr %data)
  set ptr null, %header, data
  ret void
keep:
  %smaller = call ptr @realloc(ptr %data, i64 %bytes)
  %failed = icmp eq ptr %smaller, null
  %new = select i1 %failed, ptr %data, ptr %smaller
  set ptr %new, %header, data
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


@once
def _module() -> native.Module:
    address = ctypes.cast(_forget, ctypes.c_void_p).value or 0
    return native.load(with_fields(_CODE, _FIELDS), symbols={"forget": address})


@once
def routine(name: str) -> int:
    """The address of a routine that compiled loops call."""
    return _module().address(name)


@once
def trim() -> Callable[[int, int], None]:
    """`trim(header, bytes)`: a tape keeps only its first bytes."""
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(routine("tape_trim"))


@once
def free() -> Callable[[int, int], None]:
    """`free(state, until)`: frees the headers of a state's chain, up to the header `until` (or 0)."""
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(routine("tape_free"))


def words(address: int) -> Any:
    """The words of a header (or of a state, which has fewer), in place."""
    return (ctypes.c_int64 * 6).from_address(address)
