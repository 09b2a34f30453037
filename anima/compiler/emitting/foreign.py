"""Calls of C functions at addresses that are known: of arrays in memory, and of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anima.compiler.emitting.value import REGISTER
from anima.compiler.ir.assembly import Builder, Type, Value
from anima.compiler.ir.loops import Call, Op
from anima.compiler.ir.routines import buffers_written
from anima.core.foreign import value_of

_NARROW = {"bool": "zext", "i8": "sext", "u8": "zext", "i16": "sext", "u16": "zext"}  # passed as 32 bits


def _function(address: int) -> Value:
    return Value(f"inttoptr (i64 {address} to ptr)", Type("ptr"))


def _passed(b: Builder, value: Value, type: str) -> Value:
    """A number as C passes it."""
    return b.cast(_NARROW[type], value, Type("i32")) if type in _NARROW else value


def _returned(b: Builder, function: Value, args: list[Value], type: str) -> Value:
    """The number that a function returns; a bool in memory is a byte."""
    found = b.call(function, args, Type("i8" if type == "bool" else REGISTER[type]))
    assert found is not None
    return b.cmp("ne", found, 0) if type == "bool" else found


def emit_function(b: Builder, op: Op, values: list[Any]) -> Value:
    """The value of a function of numbers, for one lane after the other."""
    function, width = _function(dict(op.params)["address"]), max(v.type.width for v in values)
    if width == 1:
        given = [_passed(b, v, a.dtype) for v, a in zip(values, op.args, strict=True)]
        return _returned(b, function, given, op.dtype)
    found = b.undef(Type(REGISTER[op.dtype], width))
    for lane in range(width):
        given = [_passed(b, v if v.type.width == 1 else b.extract(v, lane), a.dtype)
                 for v, a in zip(values, op.args, strict=True)]
        found = b.insert(found, _returned(b, function, given, op.dtype), lane)
    return found


def emit_foreign(f: Any, call: Call, constant: Callable[..., Value]) -> None:
    """The call of a function of arrays, as its text says; `constant` gives the address of numbers."""
    address, layout, _, *buffers = call.args
    places = [f.places[str(name)] for name in buffers]
    returns, *words = str(layout)[1:-1].split(" ")
    given = []
    for word in words:
        if word[0] == "b" and word[1:].isdecimal():
            given.append(places[int(word[1:])].pointer)
        elif word.startswith("s:"):
            given.append(constant("i64", *([int(n) for n in word[2:].split(",") if n] or [0])))
        else:
            type, value = value_of(word)
            given.append(_passed(f.b, f.b.const(Type(REGISTER[type]), value), type))
    function = _function(int(address))
    if returns == "void":
        f.b.call(function, given)
    else:
        found = _returned(f.b, function, given, returns)
        found = f.b.cast("zext", found, Type("i8")) if returns == "bool" else found
        f.b.store(found, places[-1].pointer)
    for name in buffers_written(call.routine, call.args):
        f.changed(f.places[name].root)


