"""Calls of LAPACK: every argument by reference, one call for each matrix of the batch."""

from __future__ import annotations

from collections.abc import Callable

from anima.compiler.emitting.function import Function
from anima.compiler.emitting.value import COMPLEX_TYPES, MEMORY, LaneIndex, i64
from anima.compiler.ir.assembly import Value
from anima.compiler.ir.lapack import SCALARS, SIGNATURES
from anima.compiler.ir.loops import Call
from anima.compiler.ir.routines import buffers_written

_LARGEST = 2**31 - 1  # LAPACK's integers


def emit_lapack(f: Function, call: Call, routine: Value, constant: Callable[..., Value]) -> None:
    """Write the calls of `routine`; `constant` gives the address of a number."""
    scalar = SCALARS[call.routine[0]]

    def element(dtype: str) -> str:
        return f"[2 x {MEMORY[dtype]}]" if dtype in COMPLEX_TYPES else MEMORY[dtype]

    def number(value: object) -> Value:
        size = int(value)  # type: ignore[call-overload]
        if size > _LARGEST:
            raise NotImplementedError(f"{call.routine} with {size} elements: LAPACK counts in 32 bits")
        return constant("i32", size)

    def once(t: Value) -> None:
        given = iter(call.args[1:])
        values: list[Value] = []
        for argument in SIGNATURES[call.routine]:
            value = next(given)
            if argument[0] in "<>=":
                place = f.places[str(value)]
                offset = f.sum((LaneIndex(t),), (int(next(given)),))
                values.append(f.b.gep(element(place.dtype), place.pointer, f.total(offset)))
            elif argument[0] == "*":
                values.append(constant(MEMORY[scalar], float(value), *([0.0] if scalar in COMPLEX_TYPES else [])))
            elif argument.isupper():
                values.append(constant("i8", ord(str(value))))
            else:
                values.append(number(value))
        f.b.call(routine, values)

    f.counted(i64(0), i64(int(call.args[0])), 1, [], (), once)
    for name in buffers_written(call.routine, call.args):
        f.changed(f.places[name].root)
