"""Messages by address: MPI's functions, called by compiled code without Python and without the interpreter's lock.

mpi4py has loaded the MPI library, and tells its handles (of communicators, types, operations) and their size. Machine
code for each kind of message reads them from a record, and calls the library's function on the program's own memory:

    record     the code for this kind, MPI_Allreduce, 16 (elements), MPI_FLOAT, MPI_SUM, a communicator, ...
    data       the addresses of the operand and of the result
    code(record, data)      what MPI returns: 0, or the number of an error, which is in the record then, too
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from anima.compiler.machine import native
from anima.runtime.fields import with_fields
from anima.util import once

_FIELDS = {name: 8 * k for k, name in enumerate(
    ("code", "send", "count", "type", "op", "comm", "status", "to", "from", "bytes", "told"))}  # `told` of any size
_NAMED = "bBhHiIlLqQfdFD"  # types that MPI has names for; others are bytes to it

# {n} and {h} are the types of numbers of elements and of handles.
_TEXT = """
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define internal i32 @end(ptr %record, i32 %status) {
  %well = icmp eq i32 %status, 0
  br i1 %well, label %done, label %tell
tell:
  set i32 %status, %record, status
  br label %done
done:
  ret i32 %status
}

define i32 @reduced(ptr %record, ptr %data) {
  %x = load ptr, ptr %data
  %out.at = getelementptr ptr, ptr %data, i64 1
  %out = load ptr, ptr %out.at
  %send = field ptr %record, send
  %count = field {n} %record, count
  %type = field {h} %record, type
  %op = field {h} %record, op
  %comm = field {h} %record, comm
  %status = call i32 %send(ptr %x, ptr %out, {n} %count, {h} %type, {h} %op, {h} %comm)
  %told = call i32 @end(ptr %record, i32 %status)
  ret i32 %told
}

define i32 @moved(ptr %record, ptr %data) {
  %x = load ptr, ptr %data
  %out.at = getelementptr ptr, ptr %data, i64 1
  %out = load ptr, ptr %out.at
  %send = field ptr %record, send
  %count = field {n} %record, count
  %type = field {h} %record, type
  %comm = field {h} %record, comm
  %status = call i32 %send(ptr %x, {n} %count, {h} %type, ptr %out, {n} %count, {h} %type, {h} %comm)
  %told = call i32 @end(ptr %record, i32 %status)
  ret i32 %told
}

define i32 @permuted(ptr %record, ptr %data) {
  %x = load ptr, ptr %data
  %out.at = getelementptr ptr, ptr %data, i64 1
  %out = load ptr, ptr %out.at
  %send = field ptr %record, send
  %count = field {n} %record, count
  %type = field {h} %record, type
  %comm = field {h} %record, comm
  %to = field i32 %record, to
  %from = field i32 %record, from
  %bytes = field i64 %record, bytes
  %told = getelementptr i8, ptr %record, i64 {told}
  call void @llvm.memset.p0.i64(ptr %out, i8 0, i64 %bytes, i1 false)
  %status = call i32 %send(ptr %x, {n} %count, {h} %type, i32 %to, i32 0, ptr %out, {n} %count, {h} %type, i32 %from,
                           i32 0, {h} %comm, ptr %told)
  %ended = call i32 @end(ptr %record, i32 %status)
  ret i32 %ended
}
"""


@once
def _library() -> Any:
    """The functions of the MPI library that mpi4py has loaded."""
    return ctypes.CDLL(MPI.__file__)


@once
def _counts_are_wide() -> bool:
    """Whether the library takes numbers of elements of 64 bits (MPI 4.0), which such functions have `_c` in their names
    for."""
    return hasattr(_library(), "MPI_Sendrecv_c")


@once
def _code() -> native.Module:
    text = _TEXT
    for name, value in (("n", "i64" if _counts_are_wide() else "i32"), ("told", str(_FIELDS["told"])),
                        ("h", f"i{8 * MPI._sizeof(MPI.Comm)}")):  # type: ignore[attr-defined]
        text = text.replace(f"{{{name}}}", value)
    return native.load(with_fields(text, _FIELDS), level=0)


def _address(name: str) -> int:
    """That of a function of MPI."""
    name += "_c" * _counts_are_wide()
    function = getattr(_library(), name, None)
    if function is None:
        raise RuntimeError(f"The MPI library that mpi4py has loaded ({MPI.Get_library_version().splitlines()[0]}) does "
                           f"not show its function {name}. Fix: pip install mpich, and mpi4py from PyPI.")
    return ctypes.cast(function, ctypes.c_void_p).value or 0


# Of each kind: the machine code, MPI's function, the operation
_KINDS: dict[str, tuple[str, str, MPI.Op | None]] = {
    "add": ("reduced", "MPI_Allreduce", MPI.SUM), "max": ("reduced", "MPI_Allreduce", MPI.MAX),
    "min": ("reduced", "MPI_Allreduce", MPI.MIN), "scatter": ("reduced", "MPI_Reduce_scatter_block", MPI.SUM),
    "gather": ("moved", "MPI_Allgather", None), "all_to_all": ("moved", "MPI_Alltoall", None),
    "permute": ("permuted", "MPI_Sendrecv", None)}


class Message:
    """One exchange of a program (`core.processes.Exchanger`). `group` gives its communicator, which all of the group
    make together, at the first exchange."""

    def __init__(self, kind: str, group: Callable[[], MPI.Comm], perm: Any, patience: float) -> None:
        self.kind, self.group, self.perm = kind, group, perm
        self.patience = patience  # seconds in which others find out what an error comes from, and tell
        self.way = 0

    def __call__(self, x: np.ndarray, out: np.ndarray) -> None:
        if not self.way:
            self._prepare(x, out)
        if not self._status.value:  # or it is compiled code that has met an error
            self._run(self.way, (ctypes.c_void_p * 2)(x.ctypes.data, out.ctypes.data))
        status, self._status.value = self._status.value, 0
        if status:
            time.sleep(self.patience)
            raise MPI.Exception(status)

    def _prepare(self, x: np.ndarray, out: np.ndarray) -> None:
        """Writes the record, whose address `way` is then."""
        code, function, op = _KINDS[self.kind]
        self.comm = comm = self.group()  # which lives as long as this
        named = op is not None or x.dtype.char in _NAMED
        self.type = MPI._typedict[x.dtype.char] if named else MPI.BYTE  # type: ignore[attr-defined]
        count = (out if self.kind == "scatter" else x).size // (comm.size if self.kind == "all_to_all" else 1)
        count *= 1 if named else x.itemsize
        if count > 0x7FFFFFFF and not _counts_are_wide():
            raise OverflowError(f"A message of {count:,} elements is larger than this MPI takes. Fix: an MPI of "
                                "version 4, such as that of `pip install mpich`.")
        to, source = (_other(comm, self.perm, k) for k in (0, 1))
        handle = MPI._handleof  # type: ignore[attr-defined]
        words = {"code": _code().address(code), "send": _address(function), "count": count, "type": handle(self.type),
                 "op": 0 if op is None else handle(op), "comm": handle(comm), "to": to, "from": source,
                 "bytes": out.nbytes if source == MPI.PROC_NULL else 0}
        room = -(-MPI._sizeof(MPI.Status) // 8)  # type: ignore[attr-defined]
        self.record = (ctypes.c_int64 * (len(_FIELDS) + room))()
        for name, value in words.items():
            self.record[_FIELDS[name] // 8] = value
        address = ctypes.addressof(self.record)
        self._status = ctypes.c_int32.from_address(address + _FIELDS["status"])
        self._run = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)(words["code"])
        self.way = address


def _other(comm: MPI.Comm, perm: Any, end: int) -> int:
    """Where the own array goes (0), or the result comes from (1): a rank, or none."""
    me = comm.Get_rank()
    return next((pair[1 - end] for pair in perm or () if pair[end] == me), MPI.PROC_NULL)
