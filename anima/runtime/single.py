"""Single operations by native code: NumPy's own loops, called without NumPy's search for them (see `core.ways`).

A ufunc of NumPy's keeps a loop for each combination of element types, in fields that its C interface makes public
(PyUFuncObject in NumPy's ufuncobject.h). A way is a function as compiled programs have (`calling.caller`), and its
program calls the loop once, or once a row where one operand is repeated along rows.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

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
# Sums of rows by a ufunc: it adds each to its result, which is 0 before. Behind what the other program has come the
# result's bytes.
_SUMS = """
define void @sums(ptr %args, ptr %arena, ptr %pool) {
  %all = alloca [8 x ptr]
  %x = load ptr, ptr %args
  %out.at = getelementptr ptr, ptr %args, i64 1
  %out = load ptr, ptr %out.at
  store ptr %out, ptr %all
  %all.x = getelementptr ptr, ptr %all, i64 1
  store ptr %x, ptr %all.x
  %all.out = getelementptr ptr, ptr %all, i64 2
  store ptr %out, ptr %all.out
  %all.more = getelementptr ptr, ptr %all, i64 3
  %more = getelementptr ptr, ptr %args, i64 2
  call void @llvm.memcpy.p0.p0.i64(ptr %all.more, ptr %more, i64 40, i1 false)
  %bytes.at.at = getelementptr ptr, ptr %args, i64 7
  %bytes.at = load ptr, ptr %bytes.at.at
  %bytes = load i64, ptr %bytes.at
  call void @llvm.memset.p0.i64(ptr %out, i8 0, i64 %bytes, i1 false)
  call void @ufunc3(ptr %all, ptr %arena, ptr %pool)
  ret void
}
"""
_COPY = "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)\ndeclare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\n"
BRIEF = 1 << 12  # elements that take a microsecond or two, which are not worth letting other threads in for
_COUNTS = (2, 3, 4)  # arguments of loops, the result among them

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
    return native.load(_COPY + "".join(programs) + _SUMS, level=0, symbols={})


def _as_expected(ufunc: np.ufunc) -> bool:
    counts = (ctypes.c_int * 3).from_address(id(ufunc) + _HEAD)
    numbers = [np.dtype(c).num for signature in ufunc.types for c in signature.replace("->", "")]
    return ([*counts] == [ufunc.nin, ufunc.nout, ufunc.nargs]
            and ctypes.c_int.from_address(id(ufunc) + _NTYPES).value == ufunc.ntypes
            and [*ctypes.string_at(_word(id(ufunc) + _TYPES), len(numbers))] == numbers)


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


def loop(ufunc: np.ufunc, dtypes: Sequence[np.dtype]) -> tuple[int, int] | None:
    """Addresses of the loop for arguments of these types, and of what it is given beside; None: there is none."""
    for k, signature in enumerate(ufunc.types):
        if [np.dtype(c) for c in signature.replace("->", "")] == [*dtypes]:
            return _word(_word(id(ufunc) + _FUNCTIONS) + 8 * k), _word(_word(id(ufunc) + _DATA) + 8 * k)
    return None


@once
def _sums_as_expected(module: native.Module) -> bool:
    """Whether NumPy's `reduce` calls a loop as `sums` does, once for a row."""
    found = loop(np.add, [np.dtype(np.float32)] * 3)
    for row in (np.sin(np.arange(301, dtype=np.float32)), -np.zeros(2, np.float32)):
        out = np.ones(1, np.float32)
        tables = [np.array(n, np.int64) for n in _sums(row.shape, (0,), row.itemsize)]
        calling.enter(module.address("sums"), [x.ctypes.data for x in (row, out)] + [
            *(found or ()), *(t.ctypes.data for t in tables)], 0, 0)
        if out.tobytes() != np.add.reduce(row, -1, row.dtype).tobytes():
            return False
    return True


def two_loops(axes: Iterable[tuple[int, Sequence[int]]]) -> Tables | None:
    """Loops over axes, innermost first: elements, and bytes from one to the next in each array. Axes that go through
    all arrays as one do are one; None where two loops are not enough."""
    found: list[tuple[int, list[int]]] = []
    still: list[int] = []
    for size, steps in axes:
        strides = [*steps]
        still = [0] * len(strides)
        if size == 1:
            continue
        if found and strides == [found[-1][0] * s for s in found[-1][1]]:
            found[-1] = found[-1][0] * size, found[-1][1]
        else:
            found.append((size, strides))
    if len(found) > 2:
        return None
    (elements, strides), (rows, steps) = (*found, (1, still), (1, still))[:2]
    return [elements], strides, [rows, *steps]


class Described(NamedTuple):
    """An operation as a program does it: the program, what it takes behind the addresses of operands and result, and
    what has to live as long."""

    program: int
    more: list[int]
    keep: Any


def described(primitive: Any, params: dict[str, Any], avals: Sequence[ShapedArray], out: ShapedArray,
              shapes: Sequence[Shape]) -> Described | None:
    """How an operation of NumPy's is applied to operands of these types, which have the `shapes` before they are
    stretched; None: it cannot be."""
    function, module = primitive.as_ufunc(avals, params), _module()
    types = [*avals, out]
    kinds = [a.dtype for a in types]
    if (function is None or module is None or not out.size
            or not all(isinstance(d, np.dtype) and d.kind in "biuf" for d in kinds)):
        return None
    sizes = [d.itemsize for d in kinds]
    if isinstance(function, np.ufunc):
        ufunc, name = function, f"ufunc{len(kinds)}"
        if ufunc.nargs != len(kinds) or len(kinds) not in _COUNTS:
            return None
        both = [*shapes, out.shape]
        tables = stretched(both, sizes) if ufunc.signature is None else _products(
            both, sizes, params["dimension_numbers"][0])
    else:  # the method `reduce` of a ufunc
        ufunc, name, kinds = function.__self__, "sums", [out.dtype] * 3
        tables = _sums(shapes[0], params["axes"], sizes[0]) if _sums_as_expected(module) else None
    found = None if tables is None else loop(ufunc, kinds)
    return None if found is None or tables is None else with_tables(name, found, tables, ufunc)


def with_tables(program: str, found: tuple[int, int], tables: Tables, keep: Any) -> Described | None:
    """A loop (its address, and what it is given beside) with its sizes, strides and rows."""
    module = _module()
    if module is None:
        return None
    arrays = [np.array(n, np.int64) for n in tables]
    return Described(module.address(program), [*found, *(t.ctypes.data for t in arrays)], (arrays, keep, module))


def way(primitive: Any, params: dict[str, Any], avals: Sequence[ShapedArray], numbers: Sequence[type | None],
        out: ShapedArray) -> Callable[..., Any] | None:
    """A function that applies an operation of NumPy's to operands of these types (see `Ways.meet`); None: it cannot."""
    found = described(primitive, params, avals, out, [a.shape for a in avals])
    if found is None:
        return None
    again.load()
    inputs = [Input(a.dtype, a.size, a, number=n) for a, n in zip(avals, numbers, strict=True)]
    return calling.caller(found.program, inputs, [made(out)], None, found.more, False, found.keep, [out], "single",
                          brief=work(primitive, avals, out) <= BRIEF)


def made(out: ShapedArray) -> Output:
    """A result of this type."""
    return Output(here().allocator(out.size * out.dtype.itemsize), out.shape, out.dtype)


def work(primitive: Any, avals: Sequence[ShapedArray], out: ShapedArray) -> int:
    """About how many elements an operation takes as long as."""
    if primitive.name == "dot_general":
        return avals[0].size * math.prod(avals[1].shape[1:]) >> 6
    return max([a.size for a in (*avals, out)])


Tables = Sequence[Sequence[int]]  # sizes, strides and rows for a program


def _products(shapes: Sequence[Shape], sizes: Sequence[int], contracted: Sequence[Shape]) -> Tables | None:
    """Of two matrices along these dimensions; a vector is a row on the left, a column on the right."""
    (left, right, _), ((along,), (down,)) = shapes, contracted
    k = left[along]
    if not k:
        return None
    m, n = math.prod(left) // k, math.prod(right) // k
    strides = [0, 0, 0]
    for steps, size in zip(((k, 1) if along == len(left) - 1 else (1, m), (n, 1) if down == 0 else (1, k), (n, 1)),
                           sizes, strict=True):
        strides.extend([step * size for step in steps])
    return [1, m, k, n], strides, [1, 0, 0, 0]


def stretched(shapes: Sequence[Shape], sizes: Sequence[int]) -> Tables | None:
    """Loops over arrays that are stretched to the last of the shapes; None where two are not enough."""
    def axes() -> Iterator[tuple[int, list[int]]]:
        places = [*sizes]
        for axis in range(1, len(shapes[-1]) + 1):
            have = [s[-axis] if len(s) >= axis else 1 for s in shapes]
            yield shapes[-1][-axis], [0 if n == 1 else place for n, place in zip(have, places, strict=True)]
            places = [place * n for n, place in zip(have, places, strict=True)]

    return two_loops([*axes(), (1, [0] * len(sizes))])


def _sums(shape: Shape, axes: Shape, size: int) -> Tables:
    """Along the last axes, or the first ones."""
    elements = math.prod([shape[a] for a in axes])
    rows = math.prod(shape) // elements
    along, across = (rows * size, size) if axes[0] == 0 else (size, elements * size)
    return [elements], [0, along, 0], [rows, size, across, size], [rows * size]


Ways.make = staticmethod(way)
Ways.is_loaded = staticmethod(calling.is_loaded)
