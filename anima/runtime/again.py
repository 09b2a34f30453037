"""What was applied to operands of such types before, found again by native code: no step in Python between an operator
and the program that does what it asks for.

    again(function, x, y)        what `function` gives, if there is a way for operands of these types (see `core.ways`)
    x + y                        of arrays that are no tracers: this, then what the operator means in Python

Ways are found in a table by the options that hold, the function and its operands: of an array the identity of its type,
of a number its class, and of a second operand that is part of the operation (`x[0]`, `x ** 2`) its identity. An entry
keeps all that its words are addresses of; ways refuse what they were not made for.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType
from typing import Any

from anima.compiler.machine import native
from anima.config import settled
from anima.core.array import ConcreteArray, operators
from anima.core.state import current
from anima.core.trace import EVAL
from anima.core.ways import Ways
from anima.runtime import calling
from anima.util import fork_safe, once

_BITS = 10   # of the number of an entry
_PLACES = 4  # entries that a key may be at, one after the other
_WORDS = 8   # of an entry: the options, the function, its operands, what the way is made of, and room
_MOST_ALIVE = 8192
_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)  # odd: they spread the bits of addresses

_TRACE = "trace"  # the name of a field

# An operand that is not there is 0. A null result means that an exception is set.
_TEXT = """
declare ptr @run(ptr, ptr, i64)

define internal i64 @kind(ptr %x) {
  %type = field ptr %x, type
  %ours = icmp eq ptr %type, {ConcreteArray}
  br i1 %ours, label %array, label %other
array:
  %aval = field i64 %x, aval
  ret i64 %aval
other:
  %class = ptrtoint ptr %type to i64
  ret i64 %class
}

define internal ptr @find(ptr %function, ptr %operands, i64 %count) {
  %trace = call ptr {PyObject_GetAttr}(ptr {current}, ptr {trace})
  %none = icmp eq ptr %trace, null
  br i1 %none, label %failed, label %traced
failed:
  ret ptr null
traced:
  call void {Py_DecRef}(ptr %trace)
  %evaluates = icmp eq ptr %trace, {EVAL}
  br i1 %evaluates, label %first, label %refuse
refuse:
  call void {Py_IncRef}(ptr {NotImplemented})
  ret ptr {NotImplemented}
first:
  %items.at = getelementptr i8, ptr {settled}, i64 {list_items}
  %items = load ptr, ptr %items.at
  %options = load i64, ptr %items
  %x = load ptr, ptr %operands
  %a = call i64 @kind(ptr %x)
  %two = icmp eq i64 %count, 2
  br i1 %two, label %second, label %begin
second:
  %y.at = getelementptr ptr, ptr %operands, i64 1
  %y = load ptr, ptr %y.at
  %b.given = call i64 @kind(ptr %y)
  br label %begin
begin:
  %b.kind = phi i64 [ 0, %first ], [ %b.given, %second ]
  %y.some = phi ptr [ null, %first ], [ %y, %second ]
  br label %look
look:
  %b = phi i64 [ %b.kind, %begin ], [ %b.itself, %itself ]
  %f = ptrtoint ptr %function to i64
  %hash.f = mul i64 %f, {factor0}
  %hash.a = mul i64 %a, {factor1}
  %hash.b = mul i64 %b, {factor2}
  %hash.fa = add i64 %hash.f, %hash.a
  %hash = add i64 %hash.fa, %hash.b
  %index = lshr i64 %hash, {unused_bits}
  %first.place = mul i64 %index, {places_bytes}
  br label %try
try:
  %place = phi i64 [ 0, %look ], [ %place1, %next ]
  %place.bytes = mul i64 %place, {entry_bytes}
  %bytes = add i64 %first.place, %place.bytes
  %entry = getelementptr i8, ptr {table}, i64 %bytes
  %entry.options = field i64 %entry, options
  %entry.function = field i64 %entry, function
  %entry.a = field i64 %entry, first
  %entry.b = field i64 %entry, second
  %way = field ptr %entry, way
  %same.options = icmp eq i64 %entry.options, %options
  %same.function = icmp eq i64 %entry.function, %f
  %same.a = icmp eq i64 %entry.a, %a
  %same.b = icmp eq i64 %entry.b, %b
  %same.of = and i1 %same.options, %same.function
  %same.ab = and i1 %same.a, %same.b
  %same = and i1 %same.of, %same.ab
  br i1 %same, label %call, label %next
next:
  %place1 = add i64 %place, 1
  %more = icmp slt i64 %place1, {places}
  br i1 %more, label %try, label %other
call:
  %taken = field i64 %entry, taken
  call void {Py_IncRef}(ptr %way)
  %out = call ptr @run(ptr %way, ptr %operands, i64 %taken)
  call void {Py_DecRef}(ptr %way)
  ret ptr %out
other:
  %was.class = icmp eq i64 %b, %b.kind
  %again = and i1 %two, %was.class
  br i1 %again, label %itself, label %refuse
itself:
  %b.itself = ptrtoint ptr %y.some to i64
  br label %look
}

define ptr @again(ptr %self, ptr %given, i64 %count) {
  %left = sub i64 %count, 1
  %some = icmp sgt i64 %left, 0
  %few = icmp slt i64 %left, 3
  %right = and i1 %some, %few
  br i1 %right, label %look, label %refuse
refuse:
  call void {Py_IncRef}(ptr {NotImplemented})
  ret ptr {NotImplemented}
look:
  %function = load ptr, ptr %given
  %operands = getelementptr ptr, ptr %given, i64 1
  %out = call ptr @find(ptr %function, ptr %operands, i64 %left)
  ret ptr %out
}

define internal ptr @operator(ptr %function, ptr %meaning, ptr %x, ptr %y) {
  %operands = alloca [2 x ptr]
  store ptr %x, ptr %operands
  %y.at = getelementptr ptr, ptr %operands, i64 1
  store ptr %y, ptr %y.at
  %alone = icmp eq ptr %y, null
  %count = select i1 %alone, i64 1, i64 2
  %out = call ptr @find(ptr %function, ptr %operands, i64 %count)
  %known = icmp ne ptr %out, {NotImplemented}
  br i1 %known, label %done, label %general
done:
  ret ptr %out
general:
  call void {Py_DecRef}(ptr %out)
  %asked = call ptr (ptr, ...) {PyObject_CallFunctionObjArgs}(ptr %meaning, ptr %x, ptr %y, ptr null)
  ret ptr %asked
}
"""
_OPERATOR = """
define ptr @operator{number}(ptr %self, ptr %other) {{
  %out = call ptr @operator(ptr {{function{number}}}, ptr {{meaning{number}}}, {operands})
  ret ptr %out
}}
"""
_PYTHON = ("PyObject_GetAttr", "PyObject_CallFunctionObjArgs", "Py_IncRef", "Py_DecRef")
_ENTRY = {"options": 0, "function": 8, "first": 16, "second": 24, "way": 32, "taken": 40}


class _Entries:
    """The entries, and what keeps alive the things that their words are addresses of, until all are cleared."""

    def __init__(self) -> None:
        self.words = (ctypes.c_uint64 * (_WORDS << _BITS))()
        self.alive: list[Any] = []
        self.lock = fork_safe(threading.RLock())  # what is freed may come back here

    def keep(self, options: Any, function: Any, operands: Sequence[Any], taken: int, way: Callable[..., Any]) -> None:
        """From now on `way`, which takes the first `taken` operands, is found under these options: by the function, and
        of each operand the type of an array, the class of a number, or the very thing, if it is the second."""
        if way.__class__ is not BuiltinFunctionType or not 1 <= len(operands) <= 2:
            return
        if len(self.alive) >= _MOST_ALIVE:
            self.clear()
        marks = [id(function), *map(id, operands)]
        found = sum(mark * factor for mark, factor in zip(marks, _FACTORS, strict=False)) % (1 << 64)
        words = [id(options), *marks, *[0] * (2 - len(operands)), id(way.__self__), taken]  # type: ignore[attr-defined]
        entry = options, function, [*operands], way
        with self.lock:  # words are written in one step of the interpreter, which no thread sees half of
            alive = self.alive
            alive.append(entry)
            at = self._place(found // (_PLACES << 64 - _BITS) * _PLACES, words[:4]) * _WORDS
            self.words[at:at + len(words)] = words
            if self.alive is not alive:  # cleared meanwhile, by what was freed
                self.words[at:at + len(words)] = [0] * len(words)

    def _place(self, first: int, key: list[int]) -> int:
        """Which of the entries from `first` on a key is at, or will be: if all are taken, each in its turn."""
        places = range(first, first + _PLACES)
        for at in places:
            if not self.words[at * _WORDS] or self.words[at * _WORDS:at * _WORDS + len(key)] == key:
                return at
        return places[len(self.alive) % _PLACES]

    def clear(self) -> None:
        with self.lock:
            alive, self.alive = self.alive, []
            self.words[:] = [0] * len(self.words)
            alive.clear()


@once
def load() -> None:
    """Has functions and operators look into the table; nothing is done where there is no native code for that."""
    fields = calling.layout()
    if fields is None or not _is_list(settled, fields["list_items"]):
        return
    table = _Entries()
    things = {"current": current, "trace": _TRACE, "EVAL": EVAL, "settled": settled, "NotImplemented": NotImplemented,
              "ConcreteArray": ConcreteArray}
    text, methods = [_TEXT], []
    for number, (special, function, meaning, takes) in enumerate(operators()):
        things |= {f"function{number}": function, f"meaning{number}": meaning}
        operands = ", ".join(f"ptr %{x}" for x in takes) + ", ptr null" * (2 - len(takes))
        text.append(_OPERATOR.format(number=number, operands=operands))
        methods.append((special, len(takes) - 1))
    symbols = calling.addresses(_PYTHON, things) | {"table": ctypes.addressof(table.words)}
    numbers = {f"factor{k}": factor for k, factor in enumerate(_FACTORS)} | {
        "unused_bits": 64 - _BITS + _PLACES.bit_length() - 1, "entry_bytes": 8 * _WORDS, "places": _PLACES,
        "places_bytes": 8 * _WORDS * _PLACES}
    module = native.load(calling.written("".join(text), fields | _ENTRY | numbers, symbols), level=0, symbols={
        **symbols, "run": calling.run()})
    keep = table, things, module
    Ways.keep, Ways.forget = table.keep, table.clear
    EVAL.again = calling.function("again", module.address("again"), keep)
    Ways.is_native = True
    for number, (special, others) in enumerate(methods):
        address = module.address(f"operator{number}")
        setattr(ConcreteArray, special, calling.method(ConcreteArray, special, address, others, keep))


def _is_list(thing: list[Any], items: int) -> bool:
    """Whether the address of a list's elements is where it is looked for."""
    at = ctypes.c_int64.from_address(id(thing) + items).value
    return thing.__sizeof__() >= items + 8 and ctypes.c_int64.from_address(at).value == id(thing[0])
