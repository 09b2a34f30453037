"""Single operations by native code: NumPy's own loops, called without NumPy's search for them (see `core.ways`).

A ufunc of NumPy's keeps a loop for each combination of element types, in fields that its C interface makes public
(PyUFuncObject in NumPy's ufuncobject.h). A way is a function as compiled programs have (`calling.caller`), and its
program calls the loop once, or once a row where one operand is repeated along rows.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from anima.compiler.machine import native
from anima.core.avals import Shape, ShapedArray
from anima.core.ways import Ways
from anima.runtime import again, calling
from anima.runtime.calling import Input, Output
from anima.runtime.cpu import here
from anima.util import once

# The program of a ufunc with so many arguments. Behind the addresses of those come the loop, what it is given beside,
# and where numbers of 8 bytes stand: sizes (the elements of a row, for a start) and strides for the loop; the number of
# rows, and the bytes from one to the next in each argument.
_PROGRAM = """
define void @ufunc{count}(ptr %args, ptr %arena, ptr %pool) {{
  %places = alloca [{count} x ptr]
  call void @llvm.memcpy.p0.p0.i64(ptr %places, ptr %args, i64 {bytes}, i1 false)
  %more = getelementptr i8, ptr %args, i64 {bytes}
  %loop = load ptr, ptr %more
  %data.at = getelementptr ptr, ptr %more, i64 1
  %data = load ptr, ptr %data.at
  %sizes.at = getelementptr ptr, ptr %more, i64 2
  %sizes = load ptr, ptr %sizes.at
  %strides.at = getelementptr ptr, ptr %more, i64 3
  %strides = load ptr, ptr %strides.at
  %rows.at = getelementptr ptr, ptr %more, i64 4
  %steps = load ptr, ptr %rows.at
  %rows = load i64, ptr %steps
  br label %row
row:
  %i = phi i64 [ 0, %0 ], [ %i1, %next ]
  call void %loop(ptr %places, ptr %sizes, ptr %strides, ptr %data)
  %i1 = add i64 %i, 1
  %some = icmp slt i64 %i1, %rows
  br i1 %some, label %next, label %done
next:
{moves}
  br label %row
done:
  ret void
}}
"""
_MOVE = """
  %place{k}.at = getelementptr ptr, ptr %places, i64 {k}
  %step{k}.at = getelementptr i64, ptr %steps, i64 {after}
  %place{k} = load ptr, ptr %place{k}.at
  %step{k} = load i64, ptr %step{k}.at
  %moved{k} = getelementptr i8, ptr %place{k}, i64 %step{k}
  store ptr %moved{k}, ptr %place{k}.at"""
_COPY = "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\n"
_BRIEF, _BRIEF_PRODUCT = 1 << 12, 1 << 18  # elements; multiplications
_COUNTS = (2, 3)  # arguments of ufuncs, the result among them

# PyUFuncObject behind the head of every object: nin, nout, nargs, identity (int); functions, data (pointers);
# ntypes, reserved (int); name, types (pointers).
_HEAD = object.__basicsize__
_FUNCTIONS, _DATA, _NTYPES, _TYPES = _HEAD + 16, _HEAD + 24, _HEAD + 32, _HEAD + 48


@once
def _module() -> native.Module | None:
    """The programs; None where ufuncs do not look as expected."""
    if not (_as_expected(np.add) and _as_expected(np.tanh)):
        return None
    programs = [_PROGRAM.format(count=n, bytes=8 * n, moves="".join(_MOVE.format(k=k, after=k + 1) for k in range(n)))
                for n in _COUNTS]
    return native.load(_COPY + "".join(programs), level=0, symbols={})


def _as_expected(ufunc: np.ufunc) -> bool:
    counts = (ctypes.c_int * 3).from_address(id(ufunc) + _HEAD)
    numbers = [np.dtype(c).num for signature in ufunc.types for c in signature.replace("->", "")]
    return ([*counts] == [ufunc.nin, ufunc.nout, ufunc.nargs]
            and ctypes.c_int.from_address(id(ufunc) + _NTYPES).value == ufunc.ntypes
            and [*ctypes.string_at(_word(id(ufunc) + _TYPES), len(numbers))] == numbers)


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


def _loop(ufunc: np.ufunc, dtypes: Sequence[np.dtype]) -> tuple[int, int] | None:
    """Addresses of the loop for arguments of these types, and of what it is given beside; None: there is none."""
    for k, signature in enumerate(ufunc.types):
        if [np.dtype(c) for c in signature.replace("->", "")] == [*dtypes]:
            return _word(_word(id(ufunc) + _FUNCTIONS) + 8 * k), _word(_word(id(ufunc) + _DATA) + 8 * k)
    return None


def _rows(shapes: Sequence[Shape], sizes: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """The loops over arrays that are stretched to the last of the shapes, innermost first: elements, and bytes from one
    to the next in each array. Loops that go through all arrays as one do are one."""
    places = [*sizes]
    found: list[tuple[int, list[int]]] = []
    for axis in range(1, len(shapes[-1]) + 1):
        size = shapes[-1][-axis]
        have = [s[-axis] if len(s) >= axis else 1 for s in shapes]
        strides = [0 if n == 1 else place for n, place in zip(have, places, strict=True)]
        places = [place * n for n, place in zip(have, places, strict=True)]
        if size == 1:
            continue
        if found and strides == [found[-1][0] * s for s in found[-1][1]]:
            found[-1] = found[-1][0] * size, found[-1][1]
        else:
            found.append((size, strides))
    yield from found


def way(primitive: Any, params: dict[str, Any], avals: Sequence[ShapedArray], numbers: Sequence[type | None],
        out: ShapedArray) -> Callable[..., Any] | None:
    """A function that applies an operation of NumPy's to operands of these types (see `Ways.meet`); None: it cannot."""
    types = [*avals, out]
    kinds = [a.dtype for a in types]
    if not all(isinstance(d, np.dtype) and d.kind in "biuf" for d in kinds) or len(kinds) not in _COUNTS:
        return None
    ufunc, module = primitive.as_ufunc(avals, params), _module()
    if ufunc is None or module is None or not out.size or ufunc.nargs != len(kinds):
        return None
    loop, described = _loop(ufunc, kinds), _described(ufunc, [a.shape for a in types], [d.itemsize for d in kinds])
    if loop is None or described is None:
        return None
    again.load()
    inputs = [Input(a.dtype, a.size, a, number=n) for a, n in zip(avals, numbers, strict=True)]
    outputs = [Output(here().allocator(out.size * out.dtype.itemsize), out.shape, out.dtype)]
    return calling.caller(module.address(f"ufunc{len(kinds)}"), inputs, outputs, None,
                          [*loop, *(d.ctypes.data for d in described)], False, (described, ufunc, module), [out],
                          "single", brief=_is_brief(ufunc, types))


def _is_brief(ufunc: np.ufunc, types: Sequence[ShapedArray]) -> bool:
    """Whether it takes a microsecond or two, which are not worth letting other threads in for."""
    if ufunc.signature is not None:
        return types[0].size * math.prod(types[1].shape[1:]) <= _BRIEF_PRODUCT
    return types[-1].size <= _BRIEF


def _described(ufunc: np.ufunc, shapes: Sequence[Shape], sizes: Sequence[int]) -> list[np.ndarray] | None:
    """Sizes, strides and rows for the program; None where one loop over rows is not enough."""
    if ufunc.signature is not None:
        k, n = shapes[0][-1], math.prod(shapes[1][1:])  # a vector is a row on the left, a column on the right
        numbers = [1, math.prod(shapes[0][:-1]), k, n], [0] * len(sizes), [1] + [0] * len(sizes)
        for columns, size in zip((k, n, n), sizes, strict=True):
            numbers[1].extend((columns * size, size))
    else:
        over = [*_rows(shapes, sizes)]
        if len(over) > 2:
            return None
        still = 1, [0] * len(sizes)
        (elements, strides), (rows, steps) = (*over, still, still)[:2]
        numbers = [elements], strides, [rows, *steps]
    return [np.array(n, np.int64) for n in numbers]


Ways.make = staticmethod(way)
Ways.is_loaded = staticmethod(calling.is_loaded)
