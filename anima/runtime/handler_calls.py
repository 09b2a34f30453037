"""Handlers of XLA's convention called by compiled code, without Python and without the interpreter's lock.

    record     the code, the handler, a frame without addresses, its size, ...
    data       the addresses of operands, then of results
    code(record, data)      0; 1 after an error of the handler, which is left to Python to raise

The frame is copied to the stack, as handlers may be called by several threads at once, and completed there: behind it
are the addresses of descriptions of the operands and results, and then these.
"""

from __future__ import annotations

import ctypes

from anima.compiler.machine import native
from anima.core import handlers
from anima.runtime.fields import with_fields
from anima.util import once

_FIELDS = {name: 8 * k for k, name in enumerate(
    ("code", "handler", "frame", "bytes", "operands", "arrays", "wait", "tell"))}

_TEXT = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define i32 @call(ptr %record, ptr %data) {
start:
  %bytes = field i64 %record, bytes
  %known = field ptr %record, frame
  %frame = alloca i8, i64 %bytes, align 16
  call void @llvm.memcpy.p0.p0.i64(ptr %frame, ptr %known, i64 %bytes, i1 false)
  %operands = field i64 %record, operands
  %arrays = field i64 %record, arrays
  %items = getelementptr i8, ptr %frame, i64 {size}
  %results = getelementptr ptr, ptr %items, i64 %operands
  %parts = getelementptr ptr, ptr %items, i64 %arrays
  %args.at = getelementptr i8, ptr %frame, i64 {args}
  store ptr %items, ptr %args.at
  %rets.at = getelementptr i8, ptr %frame, i64 {rets}
  store ptr %results, ptr %rets.at
  br label %next
next:
  %k = phi i64 [ 0, %start ], [ %after, %one ]
  %more = icmp ult i64 %k, %arrays
  br i1 %more, label %one, label %go
one:
  %place = mul i64 %k, {part}
  %part = getelementptr i8, ptr %parts, i64 %place
  %item = getelementptr ptr, ptr %items, i64 %k
  store ptr %part, ptr %item
  %given = getelementptr ptr, ptr %data, i64 %k
  %array = load ptr, ptr %given
  %array.at = getelementptr i8, ptr %part, i64 {data}
  store ptr %array, ptr %array.at
  %after = add i64 %k, 1
  br label %next
go:
  %handler = field ptr %record, handler
  %error = call ptr %handler(ptr %frame)
  %future.at = getelementptr i8, ptr %frame, i64 {future}
  %future = load ptr, ptr %future.at
  %none = icmp eq ptr %future, null
  br i1 %none, label %end, label %later
later:
  %wait = field ptr %record, wait
  %late = call ptr %wait(ptr %future)
  br label %end
end:
  %second = phi ptr [ null, %go ], [ %late, %later ]
  %well = icmp eq ptr %error, null
  %failure = select i1 %well, ptr %second, ptr %error
  %done = icmp eq ptr %failure, null
  br i1 %done, label %return, label %failed
failed:
  %tell = field ptr %record, tell
  call void %tell(ptr %failure)
  br label %return
return:
  %status = phi i32 [ 0, %end ], [ 1, %failed ]
  ret i32 %status
}
"""


@once
def _code() -> native.Module:
    text = _TEXT
    for name, number in handlers.LAYOUT.items():
        text = text.replace(f"{{{name}}}", str(number))
    return native.load(with_fields(text, _FIELDS), level=0)


def way_of(calls: handlers.Calls) -> int:
    """What compiled code calls in the place of `calls`, after a first call through Python: the address of a record; 0
    where operands are in the memory of results, which Python puts there."""
    if calls.aliases:
        return 0
    if calls.record is None:
        frame, operands, arrays, kept = calls.template()
        record = (ctypes.c_int64 * len(_FIELDS))(
            _code().address("call"), calls.handler.address, ctypes.addressof(frame), ctypes.sizeof(frame), operands,
            arrays, handlers.address(handlers.wait), handlers.address(handlers.tell))
        calls.__dict__.setdefault("record", (record, frame, kept))  # another thread's, if that came first
    return ctypes.addressof(calls.record[0])
