"""The way into compiled code: a native function that reads NumPy arrays where CPython keeps them.

    invoke(descriptor, inputs, outputs, arena, pool)      inputs, outputs: lists of arrays, passed as they are

Asking an array for its address takes a microsecond in Python. Native code finds the address, the dtype
and the flags in the array object itself, in a few nanoseconds, and checks them against what the program
was compiled for; what does not match is reported by its position and handled in Python. Where in an
object each field lies is measured when this module is first used; on an interpreter where the objects
look different, the addresses are collected in Python.

The way back: compiled code calls `callback`, which takes the interpreter's lock and calls a Python function,
and `poll`, which looks for signals (Ctrl-C). If either leaves an exception behind, the program returns at
once, and the call raises that exception.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from anima.compiler import native

ACCEPTED = 0
_NEEDED_FLAGS = 0x0001 | 0x0100  # C-contiguous, aligned (NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_ALIGNED)

# Of a descriptor, in words of 8 bytes: the entry function, numbers of inputs, outputs and other addresses,
# then those addresses, then for each input and output the address of its dtype and its number of elements.
_HEAD = 4

_CODE = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define i64 @invoke(ptr %descriptor, ptr %inputs, ptr %outputs, ptr %arena, ptr %pool) {
  %entry = load ptr, ptr %descriptor
  %n.in.at = getelementptr i64, ptr %descriptor, i64 1
  %n.in = load i64, ptr %n.in.at
  %n.out.at = getelementptr i64, ptr %descriptor, i64 2
  %n.out = load i64, ptr %n.out.at
  %n.more.at = getelementptr i64, ptr %descriptor, i64 3
  %n.more = load i64, ptr %n.more.at
  %more = getelementptr i64, ptr %descriptor, i64 4
  %specs = getelementptr i64, ptr %more, i64 %n.more
  %arrays = add i64 %n.in, %n.out
  %all = add i64 %arrays, %n.more
  %args = alloca i64, i64 %all, align 16
  %bad.in = call i64 @unpack(ptr %inputs, i64 %n.in, ptr %specs, ptr %args)
  %in.ok = icmp eq i64 %bad.in, 0
  br i1 %in.ok, label %second, label %refuse
refuse:
  ret i64 %bad.in
second:
  %specs.out.words = shl i64 %n.in, 1
  %specs.out = getelementptr i64, ptr %specs, i64 %specs.out.words
  %args.out = getelementptr i64, ptr %args, i64 %n.in
  %bad.out = call i64 @unpack(ptr %outputs, i64 %n.out, ptr %specs.out, ptr %args.out)
  %out.ok = icmp eq i64 %bad.out, 0
  br i1 %out.ok, label %run, label %refuse.out
refuse.out:
  %negative = sub i64 0, %bad.out
  ret i64 %negative
run:
  %args.more = getelementptr i64, ptr %args, i64 %arrays
  %bytes = shl i64 %n.more, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %args.more, ptr %more, i64 %bytes, i1 false)
  call void @enter(ptr %entry, ptr %args, ptr %arena, ptr %pool)
  ret i64 0
}

define internal i64 @unpack(ptr %list, i64 %count, ptr %specs, ptr %args) {
  %size.at = getelementptr i8, ptr %list, i64 {list_size}
  %size = load i64, ptr %size.at
  %right = icmp eq i64 %size, %count
  br i1 %right, label %start, label %wrong
wrong:
  ret i64 1000000
start:
  %items.at = getelementptr i8, ptr %list, i64 {list_items}
  %items = load ptr, ptr %items.at
  br label %check
check:
  %k = phi i64 [ 0, %start ], [ %k1, %accept ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %look, label %done
look:
  %k1 = add i64 %k, 1
  %item.at = getelementptr ptr, ptr %items, i64 %k
  %item = load ptr, ptr %item.at
  %type.at = getelementptr i8, ptr %item, i64 {type}
  %type = load i64, ptr %type.at
  %array = icmp eq i64 %type, {ndarray}
  br i1 %array, label %inspect, label %reject
inspect:
  %k2 = shl i64 %k, 1
  %spec = getelementptr i64, ptr %specs, i64 %k2
  %want.dtype = load i64, ptr %spec
  %want.size.at = getelementptr i64, ptr %spec, i64 1
  %want.size = load i64, ptr %want.size.at
  %dtype.at = getelementptr i8, ptr %item, i64 {dtype}
  %dtype = load i64, ptr %dtype.at
  %dtype.ok = icmp eq i64 %dtype, %want.dtype
  %flags.at = getelementptr i8, ptr %item, i64 {flags}
  %flags = load i32, ptr %flags.at
  %flags.set = and i32 %flags, {needed}
  %flags.ok = icmp eq i32 %flags.set, {needed}
  %ndim.at = getelementptr i8, ptr %item, i64 {ndim}
  %ndim32 = load i32, ptr %ndim.at
  %ndim = sext i32 %ndim32 to i64
  %dims.at = getelementptr i8, ptr %item, i64 {dims}
  %dims = load ptr, ptr %dims.at
  %ok = and i1 %dtype.ok, %flags.ok
  br i1 %ok, label %measure, label %reject
measure:
  %d = phi i64 [ 0, %inspect ], [ %d1, %multiply ]
  %total = phi i64 [ 1, %inspect ], [ %total1, %multiply ]
  %inside = icmp slt i64 %d, %ndim
  br i1 %inside, label %multiply, label %compare
multiply:
  %dim.at = getelementptr i64, ptr %dims, i64 %d
  %dim = load i64, ptr %dim.at
  %total1 = mul i64 %total, %dim
  %d1 = add i64 %d, 1
  br label %measure
compare:
  %size.ok = icmp eq i64 %total, %want.size
  br i1 %size.ok, label %accept, label %reject
accept:
  %data.at = getelementptr i8, ptr %item, i64 {data}
  %data = load i64, ptr %data.at
  %arg = getelementptr i64, ptr %args, i64 %k
  store i64 %data, ptr %arg
  br label %check
reject:
  ret i64 %k1
done:
  ret i64 0
}
"""

# What is needed of CPython by address; the error indicator stays set from `callback` or `poll` to the end of `enter`.
_PYTHON = ("PyEval_SaveThread", "PyEval_RestoreThread", "PyGILState_Ensure", "PyGILState_Release",
           "PyObject_CallFunction", "PyErr_CheckSignals", "Py_DecRef")
_LOCK_CODE = """
@arguments = private constant [3 x i8] c"KK\\00"

define void @enter(ptr %entry, ptr %args, ptr %arena, ptr %pool) {
  %thread = call ptr {PyEval_SaveThread}()
  call void %entry(ptr %args, ptr %arena, ptr %pool)
  call void {PyEval_RestoreThread}(ptr %thread)
  ret void
}

define i32 @callback(ptr %function, i64 %number, ptr %data) {
  %lock = call i32 {PyGILState_Ensure}()
  %result = call ptr (ptr, ptr, ...) {PyObject_CallFunction}(ptr %function, ptr @arguments, i64 %number, ptr %data)
  %raised = icmp eq ptr %result, null
  br i1 %raised, label %release, label %drop
drop:
  call void {Py_DecRef}(ptr %result)
  br label %release
release:
  call void {PyGILState_Release}(i32 %lock)
  %status = zext i1 %raised to i32
  ret i32 %status
}

define i32 @poll() {
  %lock = call i32 {PyGILState_Ensure}()
  %status = call i32 {PyErr_CheckSignals}()
  call void {PyGILState_Release}(i32 %lock)
  ret i32 %status
}

define i32 @look(ptr %flag) {
  %told = load atomic i64, ptr %flag monotonic, align 8
  %quiet = icmp eq i64 %told, 0
  br i1 %quiet, label %check, label %stop
check:
  %status = call i32 @poll()
  %none = icmp eq i32 %status, 0
  br i1 %none, label %on, label %tell
tell:
  store atomic i64 1, ptr %flag monotonic, align 8
  br label %stop
stop:
  ret i32 1
on:
  ret i32 0
}
"""


def _layout() -> dict[str, int] | None:
    """Offsets of the fields of lists and arrays; None if the objects do not look as expected."""
    # CPython: PyObject_HEAD is (reference count, type); NumPy's PyArrayObject_fields follows it.
    head = object.__basicsize__
    word = 8
    fields = {"type": head - word, "list_size": head, "list_items": head + word, "data": head, "ndim": head + word,
              "dims": head + 2 * word, "dtype": head + 5 * word, "flags": head + 6 * word}
    if struct.calcsize("P") != word:
        return None
    first, second = np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((5,), np.int16)[::2]
    both = [first, second]

    def word_at(thing: Any, field: str) -> int:
        return ctypes.c_int64.from_address(id(thing) + fields[field]).value

    for array in both:
        flags, ndim = word_at(array, "flags") & 0xFFFFFFFF, word_at(array, "ndim") & 0xFFFFFFFF
        if (word_at(array, "type") != id(np.ndarray) or word_at(array, "data") != array.ctypes.data
                or word_at(array, "dtype") != id(array.dtype) or ndim != array.ndim
                or flags & 0xFFFF != array.flags.num & 0xFFFF):
            return None
        dims = (ctypes.c_int64 * array.ndim).from_address(word_at(array, "dims"))
        if tuple(dims) != array.shape:
            return None
    if word_at(both, "list_size") != 2 or ctypes.c_int64.from_address(word_at(both, "list_items")).value != id(first):
        return None
    return fields


@cache
def _module() -> tuple[native.Module, bool]:
    """The code of this file, and whether `invoke` is part of it."""
    fields = _layout()
    text = _LOCK_CODE if fields is None else _CODE + _LOCK_CODE
    for name, value in {**(fields or {}), "ndarray": id(np.ndarray), "needed": _NEEDED_FLAGS}.items():
        text = text.replace("{" + name + "}", str(value))
    for name in _PYTHON:
        address = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
        text = text.replace("{" + name + "}", f"inttoptr (i64 {address} to ptr)")
    return native.compile_module(text), fields is not None


@cache
def fast_invoke() -> Any:
    """`invoke(descriptor, inputs, outputs, arena, pool)`: 0, or what is wrong: k + 1 for input k, -(k + 1) for
    output k (a million: a list of the wrong length). None where objects have another layout."""
    module, known = _module()
    if not known:
        return None
    signature = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.py_object, ctypes.py_object,
                                  ctypes.c_void_p, ctypes.c_void_p)
    return signature(module.address("invoke"))


@cache
def _enter() -> Any:
    signature = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    return signature(_module()[0].address("enter"))


def slow_invoke(entry: int, arrays: Sequence[np.ndarray], more: Sequence[int], arena: int, pool: int) -> None:
    """The same for arrays known to be right, with addresses collected in Python."""
    addresses = [a.ctypes.data for a in arrays] + list(more)
    args = (ctypes.c_int64 * max(len(addresses), 1))(*addresses)
    _enter()(entry, ctypes.addressof(args), arena, pool)


def way_back(name: str) -> int:
    """The address of `callback(function, number, data)`, `poll()` or `look(flag)`: 0, or else an exception is
    waiting (for the last, perhaps in another thread)."""
    return _module()[0].address(name)


def descriptor(entry: int, inputs: Sequence[tuple[np.dtype, int]], outputs: Sequence[tuple[np.dtype, int]],
               more: Sequence[int]) -> Any:
    """What `fast_invoke` needs to know of a program, in memory; the caller keeps it (and the dtypes) alive."""
    words = [entry, len(inputs), len(outputs), len(more), *more]
    assert len(words) == _HEAD + len(more)
    for dtype, size in (*inputs, *outputs):
        words += [id(dtype), size]
    return (ctypes.c_int64 * len(words))(*words)
