"""C functions of XLA's typed convention ("handlers"), as extensions of libraries for JAX hold them compiled.

    XLA_FFI_Error *handler(XLA_FFI_CallFrame *frame)

A frame has the types, sizes and addresses of operands and results, attributes in the order of their names, and a table
of functions that the handler may call. Handlers made for versions 0.1 to 0.3 of the convention are called; the layouts
of its structures are facts of its header `xla/ffi/api/c_api.h` (OpenXLA, Apache-2.0), in whose words they are named.

Here are no devices with streams, no types with state, and no allocator: a handler that asks for one gets an error.
Tasks that it schedules are run by threads.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from typing import Any

import numpy as np

from anima.core import dtypes
from anima.core.avals import ShapedArray
from anima.errors import AnimaRuntimeError
from anima.util import record

MAJOR, MINOR = 0, 3
EXECUTE = 3  # the stage
_TYPES = {"bool": 1, "i8": 2, "i16": 3, "i32": 4, "i64": 5, "u8": 6, "u16": 7, "u32": 8, "u64": 9, "f16": 10, "f32": 11,
          "f64": 12, "c64": 15, "bf16": 16, "c128": 18, "f8_e5m2": 19, "f8_e4m3fn": 20, "f8_e4m3b11fnuz": 23,
          "f8_e5m2fnuz": 24, "f8_e4m3fnuz": 25, "f8_e4m3": 28, "f8_e3m4": 29, "f8_e8m0fnu": 33}
_ARRAY, _DICTIONARY, _SCALAR, _STRING = 1, 2, 3, 4  # kinds of attributes
_CODES = ("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
          "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
          "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED")


class _Sized(Structure):
    """Structures say how large they are, and may be extended by a list of others."""

    _fields_ = [("struct_size", c_size_t), ("extension_start", c_void_p)]

    def __init__(self, *values: Any) -> None:
        super().__init__(ctypes.sizeof(self), None, *values)


class _Buffer(_Sized):
    _fields_ = [("dtype", c_int32), ("data", c_void_p), ("rank", c_int64), ("dims", POINTER(c_int64))]


class _Buffers(_Sized):
    """Operands or results."""

    _fields_ = [("size", c_int64), ("types", POINTER(c_int32)), ("items", POINTER(POINTER(_Buffer)))]


class _Span(Structure):
    _fields_ = [("ptr", c_char_p), ("len", c_size_t)]


class _Scalar(Structure):
    _fields_ = [("dtype", c_int32), ("value", c_void_p)]


class _Array(Structure):
    _fields_ = [("dtype", c_int32), ("size", c_size_t), ("data", c_void_p)]


class _Attributes(_Sized):
    _fields_ = [("size", c_int64), ("types", POINTER(c_int32)), ("names", POINTER(POINTER(_Span))),
                ("items", POINTER(c_void_p))]


class _Frame(_Sized):
    _fields_ = [("api", c_void_p), ("ctx", c_void_p), ("stage", c_int32), ("args", _Buffers), ("rets", _Buffers),
                ("attrs", _Attributes), ("future", c_void_p)]


class _Version(_Sized):
    _fields_ = [("major", c_int32), ("minor", c_int32)]


class _Metadata(Structure):
    _fields_ = [("struct_size", c_size_t), ("version", _Version), ("traits", ctypes.c_uint32), ("state_type", c_int64)]


class _MetadataExtension(Structure):
    """What asks a handler for its version in place of a call."""

    _fields_ = [("struct_size", c_size_t), ("type", c_int32), ("next", c_void_p), ("metadata", POINTER(_Metadata))]


# ---------------------------------------------------------------- what handlers may call


class _ErrorArguments(_Sized):
    """Arguments of what makes errors: a message and a code; of what reads one: the error and its message."""

    _fields_ = [("first", c_void_p), ("second", c_void_p)]


class _Task(_Sized):
    _fields_ = [("ctx", c_void_p), ("task", c_void_p), ("data", c_void_p)]


class _Count(_Sized):
    _fields_ = [("ctx", c_void_p), ("num_threads", POINTER(c_int64))]


class _Number(_Sized):
    _fields_ = [("ctx", c_void_p), ("value", c_int64)]


class _Ordinal(_Sized):
    _fields_ = [("ctx", c_void_p), ("value", c_int32)]


class _FutureArguments(_Sized):
    _fields_ = [("future", c_void_p), ("error", c_void_p)]


class _Future:
    """The end of work that a handler does after it has returned."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.error: int | None = None


_numbers = itertools.count(1)
_errors: dict[int, tuple[int, Any]] = {}  # code and message, by the number that stands for the address of an error
_futures: dict[int, _Future] = {}
_running = threading.local()  # the error of a handler that compiled code has called
_threads: list[Callable[[], int]] = [lambda: 1]  # tells how many threads the programs that call handlers may use


def _error(code: int, message: str) -> int:
    _errors[number := next(_numbers)] = code, ctypes.create_string_buffer(message.encode())
    return number


def _create_error(a: _ErrorArguments) -> int:
    return _error((a.second or 0) & 0xFFFFFFFF, ctypes.string_at(a.first).decode(errors="replace"))


def _read_error(a: _ErrorArguments) -> None:
    a.second = ctypes.addressof(_errors[a.first][1])


def _drop_error(a: _ErrorArguments) -> None:
    _errors.pop(a.first, None)


def _schedule(a: _Task) -> None:
    threading.Thread(target=ctypes.CFUNCTYPE(None, c_void_p)(a.task), args=(a.data,)).start()


def _count_threads(a: _Count) -> None:
    a.num_threads[0] = _threads[0]()


def _create_future(a: _FutureArguments) -> None:
    _futures[number := next(_numbers)] = _Future()
    a.future = number


def _complete(a: _FutureArguments) -> None:
    _futures[a.future].done.set()


def _fail(a: _FutureArguments) -> None:
    _futures[a.future].error = a.error
    _complete(a)


def _run_id(a: _Number) -> None:
    a.value = next(_numbers)


def _ordinal(a: _Ordinal) -> None:
    a.value = 0


def _lacks(what: str) -> Callable[[_Sized], int]:
    return lambda a: _error(12, f"{what} on the CPU.")


_STATE = "There are no types with state"
_TABLE: list[tuple[Callable[[Any], int | None], type[_Sized]]] = [  # in the order of the structure `XLA_FFI_Api`
    (_create_error, _ErrorArguments), (_read_error, _ErrorArguments), (_drop_error, _ErrorArguments),
    (_lacks("Only ffi.register_ffi_target registers handlers"), _Sized), (_lacks("There are no streams"), _Sized),
    (_lacks(_STATE), _Sized), (_lacks("There is no user data"), _Sized), (_lacks(_STATE), _Sized),
    (_lacks(_STATE), _Sized), (_lacks("There is no allocator"), _Sized), (_lacks("There is no allocator"), _Sized),
    (_schedule, _Task), (_count_threads, _Count), (_create_future, _FutureArguments), (_complete, _FutureArguments),
    (_fail, _FutureArguments), (_run_id, _Number), (_ordinal, _Ordinal)]


class _Api(_Sized):
    _fields_ = [("version", _Version), ("internal", c_void_p), ("functions", c_void_p * len(_TABLE))]


@cache
def _api() -> tuple[_Api, list[Any]]:
    """The table, and what it points to."""
    made = []
    for function, kind in _TABLE:
        def call(address: Any, function: Any = function) -> int:
            return function(address.contents) or 0

        made.append(ctypes.CFUNCTYPE(c_void_p, POINTER(kind))(call))
    addresses = (c_void_p * len(made))(*(ctypes.cast(f, c_void_p).value for f in made))
    return _Api(_Version(MAJOR, MINOR), None, addresses), made


# ---------------------------------------------------------------- handlers


@record(eq=False)
class Handler:
    """A handler that is known by a name. `owner` keeps its code where it is."""

    name: str
    address: int
    owner: Any

    def __repr__(self) -> str:
        return self.name


def check_version(name: str, address: int) -> None:
    """NotImplementedError unless a handler is of a version that is called here."""
    metadata = _Metadata(ctypes.sizeof(_Metadata), _Version(0, 0))
    ask = _MetadataExtension(ctypes.sizeof(_MetadataExtension), 1, None, ctypes.pointer(metadata))
    frame = _frame(None, None, None)
    frame.extension_start = ctypes.addressof(ask)
    _take(_function(address)(ctypes.byref(frame)), name)
    version = metadata.version.major, metadata.version.minor
    if version[0] != MAJOR or version[1] > MINOR:
        raise NotImplementedError(f"register_ffi_target: {name!r} is made for version {version[0]}.{version[1]} of the "
                                  f"calling convention; up to {MAJOR}.{MINOR} is known here.")


def type_number(aval: ShapedArray, name: str) -> int:
    """The number of an array's type. NotImplementedError for types that handlers are not given."""
    number = _TYPES.get(dtypes.short_name(aval.dtype))
    if number is None:
        raise NotImplementedError(f"ffi_call: {name} cannot be given arrays of type {aval.str_short()}.")
    return number


LAYOUT = {"size": ctypes.sizeof(_Frame), "args": _Frame.args.offset + _Buffers.items.offset,
          "rets": _Frame.rets.offset + _Buffers.items.offset, "future": _Frame.future.offset,
          "part": ctypes.sizeof(_Buffer), "data": _Buffer.data.offset}  # for compiled code


@ctypes.CFUNCTYPE(c_void_p, c_void_p)
def wait(number: int) -> int:
    """The error of work that ends later, when it has ended; 0 if there is none."""
    (future := _futures[number]).done.wait()
    del _futures[number]
    return future.error or 0


@ctypes.CFUNCTYPE(None, c_void_p)
def tell(number: int) -> None:
    """Notes the error of a call by compiled code, which is about to ask Python to raise it."""
    _running.failed = number


def address(function: Any) -> int:
    """That of a function of ctypes."""
    return ctypes.cast(function, c_void_p).value or 0


class Calls:
    """Calls of a handler on arrays: results, what tells how many threads there are, and operands of the same types each
    time, of which those at the positions in `aliases` are put into the memory of results.

    Each thread has a frame of its own, in which addresses alone change.
    """

    record: Any = None  # what compiled code calls it by, the same from the first one on, and what that is made of

    def __init__(self, handler: Handler, results: Sequence[ShapedArray], aliases: Mapping[int, int],
                 attributes: tuple[tuple[str, Any], ...]) -> None:
        self.handler, self.results, self.aliases = handler, results, aliases
        self.attributes = _attributes(attributes)
        self.function = _function(handler.address)
        self.local = threading.local()

    def __call__(self, outs: Sequence[np.ndarray], threads: Callable[[], int], *args: np.ndarray) -> None:
        _take(_running.__dict__.pop("failed", 0), self.handler.name)
        for operand, result in self.aliases.items():
            outs[result][...] = args[operand]
        own = self.local.__dict__
        if "frame" not in own:
            own["operands"] = [self._buffer(ShapedArray(x.shape, x.dtype)) for x in args]
            own["results"] = [*map(self._buffer, self.results)]
            own["frame"] = _frame(_buffers(own["operands"]), _buffers(own["results"]), self.attributes)
        for k, (buffer, x) in enumerate(zip(own["operands"], args, strict=True)):
            buffer.data = (outs[self.aliases[k]] if k in self.aliases else x).ctypes.data
        for buffer, x in zip(own["results"], outs, strict=True):
            buffer.data = x.ctypes.data
        frame: _Frame = own["frame"]
        _threads[0] = threads
        failed = self.function(ctypes.byref(frame))
        late, frame.future = wait(frame.future) if frame.future else 0, None
        _take(failed or late, self.handler.name)

    def template(self) -> tuple[Any, int, int, Any]:
        """The frame of this thread, room for addresses, and descriptions of the arrays, in a row; how many operands,
        and arrays, there are; and what the frame refers to, which would end with the thread."""
        own = dict(self.local.__dict__)
        parts = [*own["operands"], *own["results"]]
        data = b"".join([bytes(own["frame"]), bytes(8 * len(parts)), *map(bytes, parts)])
        return ctypes.create_string_buffer(data, len(data)), len(own["operands"]), len(parts), own

    def _buffer(self, aval: ShapedArray) -> _Buffer:
        sizes = (c_int64 * max(aval.ndim, 1))(*aval.shape)
        return _Buffer(type_number(aval, self.handler.name), None, aval.ndim, sizes)


def _function(address: int) -> Any:
    return ctypes.CFUNCTYPE(c_void_p, POINTER(_Frame))(address)


def _take(number: int | None, name: str) -> None:
    """Raises the error of this number, if it is one."""
    if number:
        code, message = _errors.pop(number)
        what = _CODES[code] if code < len(_CODES) else "UNKNOWN"
        raise AnimaRuntimeError(f"{what}: {message.value.decode(errors='replace')} [from the handler {name}]")


def _frame(args: _Buffers | None, rets: _Buffers | None, attributes: _Attributes | None) -> _Frame:
    table = ctypes.addressof(_api()[0])
    frame = _Frame(table, table, EXECUTE, args or _Buffers(), rets or _Buffers(), attributes or _Attributes())
    frame.struct_size = _Frame.future.offset  # as older versions, too, count it
    return frame


def _buffers(buffers: Sequence[_Buffer]) -> _Buffers:
    kinds = (c_int32 * len(buffers))(*(1 for _ in buffers))
    items = (POINTER(_Buffer) * len(buffers))(*map(ctypes.pointer, buffers))
    return _Buffers(len(buffers), kinds, items)


def fixed(attributes: Mapping[str, Any], name: str) -> tuple[tuple[str, Any], ...]:
    """Attributes as parameters of an operation, in the order of their names, arrays and dicts by what they hold.

    TypeError for what is no truth value, whole number (64 bits), number (float64), number or array of NumPy's, list of
    numbers, text, or dict of such.
    """
    return tuple((key, _fixed(attributes[key], f"{key}={attributes[key]!r} of {name}")) for key in sorted(attributes))


def _fixed(value: Any, what: str) -> Any:
    if isinstance(value, Mapping):
        return fixed(value, what)
    if isinstance(value, int) and value.bit_length() > 63 and value != -1 << 63:
        raise TypeError(f"ffi_call: the attribute {what} has more than 64 bits.")
    for kind in (str, bool, int, float):
        if isinstance(value, kind) and (kind is str or not isinstance(value, np.generic)):
            return kind(value)
    array = np.asarray(value)
    if not isinstance(value, (np.generic, np.ndarray, list, tuple)) or dtypes.short_name(array.dtype) not in _TYPES:
        raise TypeError(f"ffi_call: the attribute {what} is no number, array of numbers, text or dict of such.")
    return Numbers(array.dtype, None if isinstance(value, np.generic) else array.size, array.tobytes())


@record
class Numbers:
    """A number of NumPy's, or the elements of an array (which handlers are given without a shape)."""

    dtype: np.dtype
    size: int | None
    data: bytes


_NUMBERS = {bool: np.bool_, int: np.int64, float: np.float64}


def _attributes(given: tuple[tuple[str, Any], ...]) -> _Attributes:
    count, made = len(given), [_attribute(value) for _, value in given]
    names = [ctypes.pointer(_span(name)) for name, _ in given]
    kinds, items = (c_int32 * count)(*(kind for kind, _ in made)), (c_void_p * count)(*(
        ctypes.addressof(item) for _, item in made))
    found = _Attributes(count, kinds, (POINTER(_Span) * count)(*names), items)
    found.keep = made
    return found


def _span(text: str) -> _Span:
    data = text.encode()
    return _Span(data, len(data))


def _attribute(value: Any) -> tuple[int, Any]:
    if isinstance(value, str):
        return _STRING, _span(value)
    if isinstance(value, tuple):
        return _DICTIONARY, _attributes(value)
    if not isinstance(value, Numbers):
        dtype = np.dtype(_NUMBERS[type(value)])
        value = Numbers(dtype, None, np.asarray(value, dtype).tobytes())
    number, data = _TYPES[dtypes.short_name(value.dtype)], ctypes.create_string_buffer(value.data, len(value.data))
    address = ctypes.addressof(data)
    made = _Scalar(number, address) if value.size is None else _Array(number, value.size, address)
    made.keep = data
    return (_SCALAR if value.size is None else _ARRAY), made
