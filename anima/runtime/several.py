"""Several operations by native code: a tape that one call plays from beginning to end (see `core.replay`).

    m = max x; d = sub x m; e = exp d; s = sum e; p = div e s

Each step calls a loop as a single operation does (see `runtime.single`): NumPy's own, or one of those below for what
NumPy has no such loop for, with the same bits. Results that the tape does not give lie in scratch memory; what only
brings elements into another shape, or repeats them, is no step: those that read it step through memory otherwise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from anima.compiler.machine import native
from anima.core.array import ConcreteArray
from anima.core.avals import Shape, ShapedArray
from anima.core.replay import Applied
from anima.core.ways import Ways
from anima.ops import elementwise as ew
from anima.runtime import calling, own_loops, single
from anima.runtime.calling import Input, Output
from anima.runtime.cpu import here
from anima.runtime.single import Described

_MOST_SCRATCH = 1 << 20  # bytes
_COPIED = 1 << 14        # bytes of a result that is an argument in another shape, at most, which it is a copy of
_MOST_PLACES = 24        # of arguments and results
_LINE = 64               # bytes between which results in scratch memory begin

# A tape's table: the number of steps; for each its program, how many words that takes, and these. A word is a kind, a
# number and an offset: an address as it is, that of an argument or result, or one in scratch memory.
_FIXED, _GIVEN, _SCRATCH = 0, 1, 2
_MOST_WORDS = 16
_TEXT = """
define internal void @play(ptr %args, ptr %arena, ptr %pool, ptr %table) {{
  %words = alloca [{most} x ptr]
  %count = load i64, ptr %table
  %first = getelementptr i64, ptr %table, i64 1
  br label %step
step:
  %number = phi i64 [ 0, %0 ], [ %number1, %call ]
  %at = phi ptr [ %first, %0 ], [ %word.at, %call ]
  %program = load ptr, ptr %at
  %length.at = getelementptr i64, ptr %at, i64 1
  %length = load i64, ptr %length.at
  %begin = getelementptr i64, ptr %at, i64 2
  br label %next
next:
  %k = phi i64 [ 0, %step ], [ %k1, %found ]
  %word.at = phi ptr [ %begin, %step ], [ %word1, %found ]
  %more = icmp slt i64 %k, %length
  br i1 %more, label %word, label %call
word:
  %kind = load i64, ptr %word.at
  %which.at = getelementptr i64, ptr %word.at, i64 1
  %which = load i64, ptr %which.at
  %offset.at = getelementptr i64, ptr %word.at, i64 2
  %offset = load i64, ptr %offset.at
  %given = icmp eq i64 %kind, {given}
  br i1 %given, label %argument, label %other
argument:
  %argument.at = getelementptr ptr, ptr %args, i64 %which
  %address = load ptr, ptr %argument.at
  br label %found
other:
  %scratch = icmp eq i64 %kind, {scratch}
  %base = select i1 %scratch, ptr %arena, ptr null
  %there = getelementptr i8, ptr %base, i64 %which
  br label %found
found:
  %where = phi ptr [ %address, %argument ], [ %there, %other ]
  %place = getelementptr i8, ptr %where, i64 %offset
  %word.to = getelementptr ptr, ptr %words, i64 %k
  store ptr %place, ptr %word.to
  %word1 = getelementptr i64, ptr %word.at, i64 3
  %k1 = add i64 %k, 1
  br label %next
call:
  call void %program(ptr %words, ptr %arena, ptr %pool)
  %number1 = add i64 %number, 1
  %again = icmp slt i64 %number1, %count
  br i1 %again, label %step, label %done
done:
  ret void
}}
"""
_ENTRY = """
define void @tape{n}(ptr %args, ptr %arena, ptr %pool) {{
  %table.at = getelementptr ptr, ptr %args, i64 {n}
  %table = load ptr, ptr %table.at
  call void @play(ptr %args, ptr %arena, ptr %pool, ptr %table)
  ret void
}}
"""

_FOLDS: dict[str, tuple[str, Callable[[str, np.dtype], str]]] = {
    "reduce_max": ("max", own_loops.extreme_of_rows), "reduce_min": ("min", own_loops.extreme_of_rows),
    **{f"reduce_{name}": (name, own_loops.bits_of_rows) for name in ("and", "or", "xor")}}


@cache
def _loop(text: str) -> tuple[int, Any]:
    """The address of a loop, and what keeps it."""
    module = native.load(text, level=2, symbols={})
    return module.address("loop"), module


@cache
def _module() -> native.Module:
    text = _TEXT.format(most=_MOST_WORDS, given=_GIVEN, scratch=_SCRATCH)
    return native.load(text + "".join(_ENTRY.format(n=n) for n in range(1, _MOST_PLACES + 1)), level=1, symbols={})


# --- Operations ------------------------------------------------------------------------------

_STRETCHED: dict[str, Callable[[Sequence[np.dtype]], str | None]] = {
    "select_n": own_loops.chosen, "convert_element_type": own_loops.converted, "max": own_loops.extreme("max"),
    "min": own_loops.extreme("min")}
_UFUNCS = {"max": np.maximum, "min": np.minimum}  # of integers


def _own(text: str | None, tables: single.Tables | None, count: int) -> Described | None:
    if text is None or tables is None:
        return None
    address, module = _loop(text)
    return single.with_tables(f"ufunc{count}", (address, 0), tables, module)


def _described(step: Applied, shapes: Sequence[Shape]) -> Described | None:
    """The operation on operands of these shapes, before they are stretched."""
    out, name = step.results[0], step.primitive.name
    if step.large:
        return None
    if step.primitive.as_ufunc is not None:
        return single.described(step.primitive, step.params, step.avals, out, shapes)
    kinds = [a.dtype for a in (*step.avals, out)]
    if name in _FOLDS:
        return _folded(name, step)
    if name not in _STRETCHED or not all(d.kind in "biu" or d.str[1:] in ("f4", "f8") for d in kinds):
        return None
    tables = single.stretched([*shapes, out.shape], [d.itemsize for d in kinds])
    if name in _UFUNCS and out.dtype.kind != "f":
        found = single.loop(_UFUNCS[name], kinds)
        return None if found is None or tables is None else single.with_tables("ufunc3", found, tables, None)
    return _own(_STRETCHED[name](kinds), tables, len(kinds))


def _folded(name: str, step: Applied) -> Described | None:
    """A reduction along the last axes."""
    (x,), axes = step.avals, step.params["axes"]
    fine = x.dtype.kind in "biu" or x.dtype.str[1:] in ("f4", "f8")
    if not fine or tuple(sorted(axes)) != (*range(x.ndim - len(axes), x.ndim),):
        return None
    short, text = _FOLDS[name]
    address, module = _loop(text(short, x.dtype))
    return Described(address, [step.results[0].size, math.prod([x.shape[a] for a in axes])], module)


class _Formula:
    """The operations that one stands for, as they are taken down: values are numbers, as on tapes."""

    def __init__(self, table: _StepTable, step: Applied) -> None:
        self.table, self.x, self.dtype = table, step.sources[0], step.results[0].dtype
        self.types = {self.x: step.avals[0]}
        self.steps: list[Applied] = []

    def constant(self, value: float, dtype: Any) -> int:
        array = np.array(value, dtype)
        k = self.table.new()
        self.table.keep.append(array)
        self.table.places[k] = _Place(_FIXED, array.ctypes.data, ())
        self.types[k] = ShapedArray((), array.dtype)
        return k

    def do(self, primitive: Any, dtype: Any, *operands: int, **params: Any) -> int:
        k = self.table.new()
        self.types[k] = out = self.types[self.x].update(dtype=np.dtype(dtype))
        self.steps.append(Applied.of(primitive, params, [*operands], [k], [self.types[x] for x in operands], [out]))
        return k


def _logistic(f: _Formula, accuracy: Any = None) -> None:
    dtype = f.dtype
    if dtype.itemsize == 4:
        one = f.constant(1, "f8")
        wide = f.do(ew.convert_element_type_p, "f8", f.x)
        below = f.do(ew.add, "f8", one, f.do(ew.exp, "f8", f.do(ew.neg, "f8", wide)))
        f.do(ew.convert_element_type_p, dtype, f.do(ew.div, "f8", one, below))
        return
    one, zero = f.constant(1, dtype), f.constant(0, dtype)
    e = f.do(ew.exp, dtype, f.do(ew.neg, dtype, f.do(ew.abs, dtype, f.x)))
    top = f.do(ew.select_n_p, dtype, f.do(ew.ge, "bool", f.x, zero), e, one)
    f.do(ew.div, dtype, top, f.do(ew.add, dtype, one, e))


def _rsqrt(f: _Formula, accuracy: Any = None) -> None:
    f.do(ew.div, f.dtype, f.constant(1, f.dtype), f.do(ew.sqrt, f.dtype, f.x))


def _integer_pow(f: _Formula, y: int) -> None:
    power, out, n = f.x, None, abs(y)
    while n:
        if n & 1:
            out = power if out is None else f.do(ew.mul, f.dtype, out, power)
        n >>= 1
        if n:
            power = f.do(ew.mul, f.dtype, power, power)
    if y < 0 and out is not None:
        f.do(ew.div, f.dtype, f.constant(1, f.dtype), out)


_FORMULAS: dict[str, Callable[..., None]] = {"logistic": _logistic, "rsqrt": _rsqrt, "integer_pow": _integer_pow}


def _stretches(step: Applied) -> bool:
    """Whether operands that are repeated need not be so in memory."""
    ufunc = step.primitive.as_ufunc
    function = ufunc(step.avals, step.params) if ufunc is not None else None
    return step.primitive.name in _STRETCHED or (isinstance(function, np.ufunc) and function.signature is None)


def _moved(step: Applied) -> Iterator[tuple[int, int, single.Tables | None]]:
    """For an operation that moves elements: by operand, bytes into the result, how it is copied there."""
    out, params, name = step.results[0], step.params, step.primitive.name
    size, whole = out.dtype.itemsize, _strides(out)
    begun = 0
    for aval in step.avals:
        steps, shape, skipped, at = _strides(aval), aval.shape, 0, 0
        if name == "broadcast_in_dim":
            dims = dict(zip(params["broadcast_dimensions"], zip(steps, aval.shape, strict=True), strict=True))
            shape, steps = out.shape, [s if d in dims and (s := dims[d][0]) and dims[d][1] != 1 else 0
                                       for d in range(out.ndim)]
        elif name == "transpose":
            shape, steps = out.shape, [steps[d] for d in params["permutation"]]
        elif name == "slice":
            skipped = sum(a * s for a, s in zip(params["start_indices"], steps, strict=True))
            shape = out.shape
            steps = [s * n for s, n in zip(steps, params["strides"] or [1] * len(steps), strict=True)]
        elif name == "rev":
            skipped = sum(s * (n - 1) for d, (s, n) in enumerate(zip(steps, shape, strict=True))
                          if d in params["dimensions"])
            steps = [-s if d in params["dimensions"] else s for d, s in enumerate(steps)]
        elif name not in _MOVES:  # a view
            shape, steps, whole = (out.size,), [size], [size]
        else:  # concatenate
            at = begun * whole[params["dimension"]]
            begun += aval.shape[params["dimension"]]
        axes = [(n, strides) for n, *strides in zip(shape[::-1], steps[::-1], whole[::-1], strict=True)]
        yield skipped, at, single.two_loops([*axes, (1, [0, 0])])


_SAME = {"stop_gradient", "copy"}
_MOVES = {"broadcast_in_dim", "transpose", "slice", "rev", "concatenate"}


def _strides(aval: ShapedArray) -> list[int]:
    return [math.prod(aval.shape[d + 1:]) * aval.dtype.itemsize for d in range(aval.ndim)]


# --- Tapes -----------------------------------------------------------------------------------


class _Place(NamedTuple):
    """Where a value lies, and its shape there, before it is stretched."""

    kind: int
    number: int
    shape: Shape


class _StepTable:
    """The table of a tape, step by step."""

    def __init__(self, places: dict[int, _Place]) -> None:
        self.places = places  # of values; those of results that the tape gives are known before they are computed
        self.rows: list[list[int]] = []
        self.keep: list[Any] = []
        self.scratch = 0
        self.real: dict[int, _Place] = {}  # of values that are repeated: where they are so in memory
        self.numbers = itertools.count(-1, -1)

    def new(self) -> int:
        """The number of a value that is not on the tape."""
        return next(self.numbers)

    def room(self, aval: ShapedArray) -> _Place:
        begin = self.scratch
        self.scratch += -(-max(aval.size * aval.dtype.itemsize, 1) // _LINE) * _LINE
        return _Place(_SCRATCH, begin, aval.shape)

    def add(self, found: Described, places: Sequence[_Place], offsets: Sequence[int]) -> None:
        words = [(p.kind, p.number, n) for p, n in zip(places, offsets, strict=True)]
        words += [(_FIXED, n, 0) for n in found.more]
        self.rows.append([found.program, len(words), *itertools.chain(*words)])
        self.keep.append(found.keep)

    def move(self, step: Applied, sources: Sequence[_Place], out: _Place) -> bool:
        """Copies what a step moves; False where that takes more than two loops."""
        for place, (skipped, at, tables) in zip(sources, _moved(step), strict=True):
            found = _own(own_loops.copies(step.results[0].dtype), tables, 2)
            if found is None:
                return False
            self.add(found, [place, out], [skipped, at])
        return True


def chain(steps: Sequence[Applied], constants: dict[int, ConcreteArray], types: dict[int, ShapedArray],
          outs: Sequence[int], form: str) -> Callable[..., Any] | None:
    """A function of arrays of these types, which are values of a tape by number, that goes through its steps and gives
    the values `outs`; None where there is no native code for one of them."""
    if not outs or len(types) + len(outs) > _MOST_PLACES or not all(map(_is_plain, steps)):
        return None
    views = {step.places[0]: step.sources[0] for step in steps if step.avals and (
        step.primitive.name in _SAME or step.primitive.is_view(step.avals[0], step.results[0]))}
    places = {k: _Place(_GIVEN, n, a.shape) for n, (k, a) in enumerate(types.items())}
    places |= {k: _Place(_FIXED, c._value.ctypes.data, c.aval.shape) for k, c in constants.items()}
    wanted: dict[int, int] = {}
    avals = {step.places[0]: step.results[0] for step in steps}
    for number, out in enumerate(outs, len(types)):
        k = out
        while k in views:
            k = views[k]
        if (k in places or k in wanted) and out in views and avals[out].size * avals[out].dtype.itemsize <= _COPIED:
            del views[k := out]  # a copy
        if k in places or k in wanted:
            return None
        wanted[k] = number
    table = _StepTable(places)
    if not all(_add(table, step, views, wanted) for step in steps) or table.scratch > _MOST_SCRATCH:
        return None
    words = np.array([len(table.rows), *itertools.chain(*table.rows)], np.int64)
    brief = sum(single.work(s.primitive, s.avals, s.results[0]) for s in steps) <= single.BRIEF
    room = table.scratch + _LINE  # it begins at such a multiple
    scratch = Output(here().allocator(room), (room,), np.dtype(np.uint8)) if table.scratch else None
    module = _module()
    return calling.caller(module.address(f"tape{len(types) + len(outs)}"),
                          [Input(a.dtype, a.size, a) for a in types.values()], [single.made(avals[k]) for k in outs],
                          scratch, [words.ctypes.data], False, (table.keep, words, module, constants),
                          [avals[k] for k in outs], form, brief=brief)


def _is_plain(step: Applied) -> bool:
    """Whether a step gives one array, and all are of NumPy's numbers and not empty."""
    return len(step.results) == 1 and all(isinstance(a.dtype, np.dtype) and a.dtype.kind in "biuf" and a.size
                                          for a in (*step.avals, *step.results))


def can_chain(step: Applied) -> bool:
    """Whether there is native code for a step alone."""
    table = _StepTable({k: _Place(_GIVEN, k, a.shape) for k, a in zip(step.sources, step.avals, strict=True)})
    return _is_plain(step) and _add(table, step, {}, {})


def _add(table: _StepTable, step: Applied, views: dict[int, int], wanted: dict[int, int]) -> bool:
    """Adds a step; False if there is no native code for it."""
    (value,), (out,), places = step.places, step.results, table.places
    if value in views:
        source = _in_memory(table, views[value], step.avals[0])
        if source is None:
            return False
        places[value] = source._replace(shape=out.shape)
        return True
    name = step.primitive.name
    if name == "broadcast_in_dim" and value not in wanted:
        source = _in_memory(table, step.sources[0], step.avals[0])
        if source is None:
            return False
        places[value] = source._replace(shape=step.primitive.aligned(step.avals[0].shape, **step.params))
        return True
    if name in _FORMULAS and out.dtype.str[1:] in ("f4", "f8") and not (name == "integer_pow" and step.params["y"] in (
            0, 1, 2)):
        formula = _Formula(table, step)
        _FORMULAS[name](formula, **step.params)
        formula.steps[-1] = formula.steps[-1]._replace(places=step.places)
        return all(_add(table, part, {}, wanted) for part in formula.steps)
    stretches = _stretches(step)
    sources = []
    for k, aval in zip(step.sources, step.avals, strict=True):
        place = places[k] if stretches else _in_memory(table, k, aval)
        if place is None:
            return False
        sources.append(place)
    places[value] = _Place(_GIVEN, wanted[value], out.shape) if value in wanted else table.room(out)
    if name in _MOVES or name in _SAME or (sources and step.primitive.is_view(step.avals[0], out)):
        return table.move(step, sources, places[value])
    found = _described(step, [p.shape for p in sources])
    if found is None:
        return False
    table.add(found, [*sources, places[value]], [0] * (len(sources) + 1))
    return True


def _in_memory(table: _StepTable, value: int, aval: ShapedArray) -> _Place | None:
    """Where a value of this type lies as a whole; it is brought there if it is only to be stretched."""
    place = table.places[value]
    if place.shape == aval.shape:
        return place
    if value not in table.real:
        tables = single.stretched([place.shape, aval.shape], [aval.dtype.itemsize] * 2)
        found = _own(own_loops.copies(aval.dtype), tables, 2)
        if found is None:
            return None
        room = table.real[value] = table.room(aval)
        table.add(found, [place, room], [0, 0])
    return table.real[value]


Ways.chain, Ways.can_chain = staticmethod(chain), staticmethod(can_chain)
