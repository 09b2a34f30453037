"""Calls of LAPACK: every argument by reference, one call for each matrix of the batch, on several threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

from anima.compiler.emitting.function import Function
from anima.compiler.emitting.memory import Place
from anima.compiler.emitting.value import COMPLEX_TYPES, MEMORY, LaneIndex, i64
from anima.compiler.ir.assembly import Type, Value
from anima.compiler.ir.lapack import ROUTINES, SCALARS, SIGNATURES, alone, piece
from anima.compiler.ir.loops import Call
from anima.compiler.ir.routines import buffers_written
from anima.util import replace

_LARGEST = 2**31 - 1  # LAPACK's integers


def emit_lapack(f: Function, call: Call, callee: Callable[[str], Value], constant: Callable[..., Value]) -> None:
    """Write the calls of a routine; `callee` gives the address of one, `constant` that of a number."""
    routine = callee(call.routine)
    scalar = SCALARS[call.routine[0]]

    def element(dtype: str) -> str:
        return f"[2 x {MEMORY[dtype]}]" if dtype in COMPLEX_TYPES else MEMORY[dtype]

    def number(value: object) -> Value:
        size = int(value)  # type: ignore[call-overload]
        if size > _LARGEST:
            raise NotImplementedError(f"{call.routine} with {size} elements: LAPACK counts in 32 bits")
        return constant("i32", size)

    def once(g: Function, routine: Value, places: Mapping[str, Place], t: Value, p: Value) -> None:
        given = iter(call.args[2:])
        values: list[Value] = []
        for argument in SIGNATURES[call.routine]:
            value = next(given)
            if argument[0] in "<>=":
                place, offset, stride = places[str(value)], int(next(given)), int(next(given))
                at = g.sum((LaneIndex(t if stride >= 0 else p),), (abs(stride),), offset)
                values.append(g.b.gep(element(place.dtype), place.pointer, g.total(at)))
            elif argument[0] == "*":
                values.append(constant(MEMORY[scalar], float(value), *([0.0] if scalar in COMPLEX_TYPES else [])))
            elif argument.isupper():
                values.append(constant("i8", ord(str(value))))
            else:
                values.append(number(value))
        g.b.call(routine, values)

    batch, pieces = int(call.args[0]), int(call.args[1])
    with _threads(f, callee) if alone(call.routine, call.args) else nullcontext():
        if pieces == 1:
            f.counted(i64(0), i64(batch), 1, [], (), lambda t: once(f, routine, f.places, t, i64(0)))
        else:
            size, (_, read, written) = i64(piece(batch, pieces)), ROUTINES[call.routine]
            given = dict(zip(ROUTINES[call.routine][0], call.args, strict=True))
            names = list(dict.fromkeys(str(given[name]) for name in (*read, *written)))

            def some(g: Function, words: Sequence[Value], _: Value, p: Value) -> None:
                places = {n: replace(f.places[n], pointer=w) for n, w in zip(names, words, strict=False)}
                first = g.b.op("mul", p, size)
                last = g.b.intrinsic("smin", g.b.op("add", first, size), i64(batch))
                g.counted(first, last, 1, [], (), lambda t: once(g, words[-1], places, t, p))

            f.on_threads([*(f.places[n].pointer for n in names), routine], i64(pieces), 1, 0, some)
    for name in buffers_written(call.routine, call.args):
        f.changed(f.places[name].root)


@contextmanager
def _threads(f: Function, callee: Callable[[str], Value]) -> Iterator[None]:
    """Has LAPACK use one thread, and afterwards as many as before. Where another thread does the same just then, this
    one changes nothing: what that one will put back is right."""
    b, word = f.b, Type("i32")
    one = b.const(word, 1)
    threads = b.call(callee("get_num_threads"), [one], word)  # (takes nothing; `abs`, which may stand for it, does)
    assert threads is not None
    b.call(callee("set_num_threads"), [one])
    yield
    several, done = b.label("several"), b.label("done")
    b.branch_if(b.cmp("sgt", threads, 1), several, done)
    b.place(several)
    b.call(callee("set_num_threads"), [threads])
    b.branch(done)
    b.place(done)
