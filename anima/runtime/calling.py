"""The way into compiled code: a native function that reads arrays where CPython and NumPy keep them.

    run = caller(inputs, outputs, ...)       a builtin function of Python's, made of machine code of ours
    run(x, y)                                the results; NotImplemented: not what the program was made for

Each step of a call costs more in Python than a small program takes. Native code checks in a few nanoseconds
that every argument is of the type the program was compiled for, finds its address in the object itself, has
the results made, runs the program without the interpreter's lock, and wraps the results. What it does not
know it refuses, before anything has happened: the caller then goes the general way. It keeps no state, so
that calls nest and run on many threads. Where in an object each field lies is measured when this module is
first used; on an interpreter where objects look different there is no `run`, and addresses are collected in
Python (`enter`).

The way back: compiled code calls `callback`, which calls what a callback has of machine code (a message between
processes), or takes the interpreter's lock and calls a Python function,
and `poll`, which looks for signals (Ctrl-C). If either leaves an exception behind, the program returns at
once, and the call raises that exception. So does one that gets no memory, after `exhausted`.
"""

from __future__ import annotations

import ctypes
import re
import struct
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from anima import granted
from anima.compiler.machine import native
from anima.core import processes
from anima.core.array import ConcreteArray, PlacedArray
from anima.core.avals import ShapedArray
from anima.core.shardings import Sharding
from anima.runtime import threads
from anima.runtime.calling_code import FORMS, HEAD, HEAD_BYTES, LOCK, RECORD, RECORD_BYTES, RUN
from anima.runtime.fields import with_fields
from anima.util import lazy_module, once, record

resource = lazy_module("resource")  # which Windows does not have

_NEEDED_FLAGS = 0x0001 | 0x0100  # C-contiguous, aligned (NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_ALIGNED)
_WRITEABLE = 0x0400
_NONE, _ONE = 0x0004, 0x0008     # METH_NOARGS, METH_O: no argument beside the object itself, or one
_FASTCALL = 0x0080               # METH_FASTCALL: the arguments come as an array of objects
_SCRATCH_ALIGNMENT = 64
_MOST_INPUTS = 4096              # of a native call, which keeps notes of each on the stack

_KINDS = {"float32": 1, "int32": 2, "int64": 3, "bool": 4}
_OF_INTS = {"float32": 5, "float64": 6}


# What the code needs of the interpreter by address: functions and objects.
_PYTHON = ("PyEval_SaveThread", "PyEval_RestoreThread", "PyGILState_Ensure", "PyGILState_Release",
           "PyObject_Call", "PyObject_CallFunction", "PyErr_CheckSignals", "PyErr_Occurred", "PyErr_SetString",
           "Py_IncRef", "Py_DecRef", "PyTuple_New", "PyTuple_SetItem", "PyList_New", "PyList_SetItem",
           "PyType_GenericAlloc", "PyLong_AsLongLongAndOverflow")
_OBJECTS = {"None": None, "True": True, "NotImplemented": NotImplemented, "ndarray": np.ndarray,
            "ConcreteArray": ConcreteArray, "PlacedArray": PlacedArray, "ShapedArray": ShapedArray,
           "MemoryError": MemoryError}

_NEW_ARRAY = 94  # of NumPy's C functions (its ABI, since 1.0): PyArray_NewFromDescr
_empty = np.empty  # as it is now: what native code does in its place

# --- Where fields lie ------------------------------------------------------------------------


def _words(thing: Any) -> list[int]:
    """The words of 8 bytes of an object without items."""
    return list((ctypes.c_int64 * (type(thing).__basicsize__ // 8)).from_address(id(thing)))


@cache
def layout() -> dict[str, int] | None:
    """Offsets of the fields of objects; None if the objects do not look as expected."""
    # CPython: PyObject_HEAD is (reference count, type); NumPy's PyArrayObject_fields and PyArray_Descr follow it.
    head, word = object.__basicsize__, 8
    locked = getattr(sys, "_is_gil_enabled", lambda: True)()  # without the lock, objects may go while we look
    if struct.calcsize("P") != word or sys.byteorder != "little" or not locked:
        return None
    fields = {"head": head, "type": head - word, "tuple_items": tuple.__basicsize__,
              "bytes_items": bytes.__basicsize__ - 1,
              "data": head, "ndim": head + word, "dims": head + 2 * word, "dtype": head + 5 * word,
              "flags": head + 6 * word, "dtype_tag": head + word, "list_items": head + word}
    for array in (np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((5,), np.int16)[::2]):
        if not _array_as_expected(array, fields):
            return None
    number, pair, text = 0.1, (1, "a"), bytes(range(3, 80))
    if (struct.pack("<d", number) != ctypes.string_at(id(number) + head, 8)
            or [*(ctypes.c_int64 * 2).from_address(id(pair) + fields["tuple_items"])] != [*map(id, pair)]
            or ctypes.string_at(id(text) + fields["bytes_items"], len(text)) != text):
        return None
    dtype = np.dtype(np.float32)
    aval = ShapedArray((7, 5), dtype, True)
    array = ConcreteArray(np.zeros((7, 5), dtype), aval)
    placed = object.__new__(PlacedArray)
    placed._value, placed.aval, placed._sharding = array.value, aval, dtype  # anything, for a sharding
    placed.committed, placed.is_cut = True, False  # type: ignore[misc]
    for name, thing, part in (("value", array, array.value), ("aval", array, aval), ("aval_dtype", aval, dtype),
                              ("weak", aval, True), ("sharding", placed, dtype), ("committed", placed, True),
                              ("is_cut", placed, False), ("value", placed, array.value), ("aval", placed, aval)):
        if _words(thing).count(id(part)) != 1:
            return None
        if fields.setdefault(name, _words(thing).index(id(part)) * word) != _words(thing).index(id(part)) * word:
            return None
    return fields


def _array_as_expected(array: np.ndarray, fields: dict[str, int]) -> bool:
    def word_at(thing: Any, field: str) -> int:
        return ctypes.c_int64.from_address(id(thing) + fields[field]).value

    dtype = array.dtype
    tag = struct.pack("<3s", f"{dtype.kind}{dtype.char}{dtype.byteorder}".encode()), dtype.num
    found = word_at(dtype, "dtype_tag") & (1 << 64) - 1
    return (word_at(array, "type") == id(np.ndarray) and word_at(array, "data") == array.ctypes.data
            and word_at(array, "dtype") == id(dtype) and word_at(array, "ndim") & 0xFFFFFFFF == array.ndim
            and word_at(array, "flags") & 0xFFFF == array.flags.num & 0xFFFF
            and tuple((ctypes.c_int64 * array.ndim).from_address(word_at(array, "dims"))) == array.shape
            and tag == (struct.pack("<Q", found)[:3], found >> 32))


def _new_array() -> int:
    """The address of NumPy's function that makes an array."""
    core = sys.modules.get("numpy._core._multiarray_umath") or sys.modules["numpy.core._multiarray_umath"]
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi))
    return ctypes.c_void_p.from_address(pointer(core._ARRAY_API, None) + 8 * _NEW_ARRAY).value or 0


@once
def _module() -> tuple[native.Module, dict[str, int] | None]:
    """The code of this file; the layout if `run` is part of it."""
    fields = layout()
    symbols = addresses(_PYTHON, _OBJECTS) | {"PyArray_NewFromDescr": _new_array()}
    # 3 ms instead of 15; a call takes 10 ns more
    return native.load(written(LOCK if fields is None else RUN + LOCK, fields or {}, symbols), level=0,
                       symbols=symbols), fields


def addresses(functions: Sequence[str], things: Mapping[str, Any]) -> dict[str, int]:
    """Where functions of the interpreter and objects are."""
    return {name: id(thing) for name, thing in things.items()} | {
        name: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in functions}


def written(text: str, fields: Mapping[str, int], symbols: Mapping[str, int]) -> str:
    """LLVM text with fields and numbers written out; `{name}` of a symbol is its address."""
    values: dict[str, Any] = {name: f"@{name}" for name in symbols}
    values |= {"needed": _NEEDED_FLAGS, "read_only": 0xFFFFFFFF & ~_WRITEABLE, "head_bytes": HEAD_BYTES,
               "record_bytes": RECORD_BYTES, "scratch_over": _SCRATCH_ALIGNMENT - 1,
               "scratch_mask": -_SCRATCH_ALIGNMENT, "log_bytes": processes.LOG_BYTES,
               "log_factor": processes.FACTOR, "log_mask": processes.KEPT - 1}
    offsets = {**HEAD, **RECORD, **processes.LOG, **fields}
    text = re.sub(r"{(\w+)}", lambda m: str({**offsets, **values}[m[1]]), with_fields(text, offsets))
    return text + "".join(f"@{name} = external global i8\n" for name in symbols)


def is_loaded() -> bool:
    """Whether the native code is there already."""
    return bool(_module.known)  # type: ignore[attr-defined]


# --- Calling ---------------------------------------------------------------------------------


@record
class Input:
    """An argument: NumPy arrays of a dtype and number of elements; with `aval`, all that is of that type."""

    dtype: np.dtype
    size: int
    aval: ShapedArray | None = None
    donated: str | None = None  # to the function of this name
    number: type | None = None  # int: Python's, as floats; None: those of the array's kind
    lies: Sharding | None = None  # only arrays that were placed under this very sharding


@record
class Output:
    """A result, or scratch memory: `make(shape, dtype)`; or what the program writes over the input `donor`."""

    make: Callable[[tuple[int, ...], np.dtype], np.ndarray]
    shape: tuple[int, ...]
    dtype: np.dtype
    donor: int | None = None


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int),
                ("doc", ctypes.c_char_p))


_new_function = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
    ("PyCFunction_NewEx", ctypes.pythonapi))
_new_method = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_void_p)(
    ("PyDescr_NewMethod", ctypes.pythonapi))


@cache
def _described(name: str, address: int, flags: int) -> _Method:
    return _Method(name.encode(), address, flags, None)


def function(name: str, address: int, state: tuple[Any, ...]) -> Callable[..., Any]:
    """The native function `ptr(state, operands, their number)` at an address as a builtin function of Python's."""
    described = _described(name, address, _FASTCALL)
    # the code and its description too: at the end of the process this module may go before the function
    return _new_function(ctypes.addressof(described), (*state, described, _module()), None)


def method(kind: type, name: str, address: int, others: int, keep: Any) -> Any:
    """The native function `ptr(self, other)` at an address as a method for a class, of one operand or none beside the
    object itself; what it needs is kept for ever."""
    described = _described(name, address, _ONE if others else _NONE)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object((described, keep, _module())))
    return _new_method(kind, ctypes.addressof(described))


def run() -> int:
    """The address of the code of all functions that `caller` makes."""
    return _module()[0].address("run")


_STACK = 1 << 20  # bytes of the stack that compiled programs are sure to find
_deep = False


def _make_stack_deep() -> None:
    """Has the main thread's stack reach as far down as compiled code may need: the system makes it longer only as it is
    used, and ends the process if there is no memory then. Stacks of other threads are whole from their start."""
    global _deep
    if _deep or sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return
    most, _ = resource.getrlimit(resource.RLIMIT_STACK)
    if most == resource.RLIM_INFINITY or most >= 4 * _STACK:
        granted.require(_STACK, "the stack of compiled programs")
        ctypes.CFUNCTYPE(None, ctypes.c_int64)(_module()[0].address("reach"))(_STACK)
    _deep = True


_no_pool = ctypes.c_int64(0)


def caller(entry: int, inputs: Sequence[Input], outputs: Sequence[Output], scratch: Output | None,
           more: Sequence[int], parallel: bool, keep: Any, results: Sequence[Any] | None = None,
           form: str = "list", note: tuple[int, int, int] = (0, 0, 0),
           brief: bool = False) -> Callable[..., Any] | None:
    """A builtin function `run(*arguments)` for the program at `entry`; None where there is none.

    `more` are addresses that the program takes after those of its arguments and results, `keep` is what has to
    live as long as the function. Results are NumPy arrays or, with `results` (of each its type, or an array that was
    placed as it is to be), arrays of Anima's; they come as a "list", a "tuple" or a "single" one. `note` is what
    `core.processes.Log.entry` tells, for calls that are noted there. A `brief` program, of a microsecond or so, keeps
    the interpreter's lock.
    """
    _make_stack_deep()
    if _module()[1] is None or len(inputs) > _MOST_INPUTS:
        return None
    made = [*outputs, *((scratch,) if scratch is not None else ())]
    wishes = [(o.shape, o.dtype) for o in made]
    plain = [(ctypes.c_int64 * (2 + len(o.shape)))(id(o.dtype), len(o.shape), *o.shape) for o in made]
    pool = threads.pool_cell if parallel else _no_pool
    words = [entry, len(inputs), len(outputs), len(made), len(more), FORMS[form], ctypes.addressof(pool), *note,
             int(brief), *more]
    for output, wish, sizes in zip(made, wishes, plain, strict=True):
        if output.donor is not None:
            words += [0, output.donor]
        else:
            words += [1, ctypes.addressof(sizes)] if output.make is _empty else [id(output.make), id(wish)]
    words += [0] * len(outputs) if results is None else map(id, results)
    for given in inputs:
        words += _record(given)
    return function("run", run(), (struct.pack(f"<{len(words)}q", *words), inputs, made, wishes, plain, results, keep))


def _record(given: Input) -> list[int]:
    dtype, aval = given.dtype, given.aval
    tag = ctypes.c_int64.from_address(id(dtype) + layout()["dtype_tag"]).value  # type: ignore[index]
    if aval is None:
        sizes, record = [given.size], [tag, 0, 0, 0, 1, 0, 0, 0, 0, 0, -1]
    else:
        plain = isinstance(aval.dtype, np.dtype)
        sizes = [*aval.shape, *getattr(aval.dtype, "element_shape", ())]
        scalar: type | None = None
        kind = 0
        if plain and not sizes:
            scalar, kind = (None, _OF_INTS[aval.dtype.name]) if given.number is int and aval.dtype.kind == "f" else (
                _numbers(aval.dtype, aval.weak_type))
        number = {1: float, 2: int, 3: int, 4: bool, 5: int, 6: int}.get(kind)
        record = [tag, id(aval.dtype), id(type(aval.dtype)) if plain else 0, id(bool(aval.weak_type)),
                  int(plain and not aval.weak_type), id(scalar) if scalar else 0, id(number) if number else 0, kind,
                  0 if given.donated is None else id(given.donated), 0 if given.lies is None else id(given.lies),
                  len(sizes)]
    return [8 * (1 + len(record) + len(sizes)), *record, *sizes]


@cache
def _numbers(dtype: np.dtype, weak: bool) -> tuple[type | None, int]:
    """What has the type of an array of no dimensions: the type whose objects hold the element as NumPy does, and
    the kind of Python number that becomes one."""
    scalar: type | None = {"float64": float, "complex128": complex}.get(dtype.name) if weak else dtype.type
    if scalar is not None:
        one = scalar(1)
        if ctypes.string_at(id(one) + object.__basicsize__, dtype.itemsize) != np.ones((), dtype).tobytes():
            scalar = None
    return scalar, _KINDS.get(dtype.name, 0) if weak or dtype.kind == "b" else 0


@once
def _enter() -> Any:
    signature = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    return signature(_module()[0].address("enter"))


def enter(entry: int, addresses: Sequence[int], arena: int, pool: int) -> None:
    """A call with addresses collected in Python."""
    args = (ctypes.c_int64 * max(len(addresses), 1))(*addresses)
    _enter()(entry, ctypes.addressof(args), arena, pool)


def way_back(name: str) -> int:
    """The address of `callback(table, number, data)`, `poll()` or `look(flag)`: 0, or else an exception is
    waiting (for the last, perhaps in another thread); or of `exhausted()`, which leaves a MemoryError."""
    return _module()[0].address(name)
