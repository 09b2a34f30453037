"""The state of loops is near the threads that work on it: in memory that they share, where one block has a program.

    for k < 1000:                              local t1.near: f32[16]
      kernel tanh: t1[i] = tanh(t1[i])    ->   for k < 1000:
                                                 kernel tanh: t1.near[i] = tanh(t1.near[i])

From one thread to another this is some ten times as fast as what all blocks share.
Of the results, those that the loop reads again are copied at the end.
"""

from __future__ import annotations

from anima.compiler.emitting.value import itemsize
from anima.compiler.grid.teams import around
from anima.compiler.ir.loops import (
    INDEX,
    Buffer,
    Call,
    For,
    Kernel,
    Load,
    Local,
    NamedValue,
    Program,
    Store,
    While,
    statements_outside,
    walk,
)
from anima.compiler.storage.buffers import buffers_of, rename
from anima.util import replace

EACH = 1 << 12  # bytes of an array, at most
ALL = 1 << 15   # and of all of them


def near(program: Program) -> Program:
    """Moves small arrays that loops outside of kernels work on to shared memory, for a program that one block runs."""
    outside = list(statements_outside(program.body))
    if any(isinstance(s, Call) for s in outside):  # which find arrays where all can
        return program
    loops = [s for s in outside if isinstance(s, (For, While))]
    used = buffers_of(loops)
    loaded = {n.buffer for n in walk(*loops) if isinstance(n, Load)}
    aliases = {b.alias for b in program.buffers} | {b.name for b in program.buffers if b.alias is not None}
    chosen: list[Buffer] = []
    room = ALL
    for b in sorted(program.buffers, key=_nbytes):
        able = b.role == "temp" or (b.role == "output" and b.name in loaded)
        if able and b.name in used and b.name not in aliases and 0 < _nbytes(b) <= min(EACH, room):
            chosen.append(b)
            room -= _nbytes(b)
    names = {b.name: f"{b.name}.near" for b in chosen}
    body = [*(Local(names[b.name], b.dtype, b.size) for b in chosen), *rename(program.body, names)]
    body += [_copy(b, names[b.name]) for b in chosen if b.role == "output"]
    kept = tuple(b for b in program.buffers if b.name not in names or b.role == "output")
    return replace(program, body=tuple(body), buffers=kept)


def _nbytes(b: Buffer) -> int:
    return b.size * itemsize(b.dtype)


def _copy(b: Buffer, source: str) -> Kernel:
    i = NamedValue("i", INDEX)
    return Kernel("copy", around([("i", b.size)], (Store(b.name, i, Load(source, i, b.dtype)),), "each"))
