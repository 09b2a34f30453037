"""Machine code of a program as bytes, and the program back: what files of compiled programs have in common.

    write_code(writer, executable)          Executable(*read_code(reader, target))

What is read is run: who reads has to know where the bytes come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.compiler.cache import Code
from anima.compiler.emitting.value import NUMPY
from anima.compiler.ir.loops import Buffer, Program
from anima.compiler.machine import native
from anima.compiler.machine.target import Target
from anima.core.avals import Shape
from anima.core.dtypes import element_bytes
from anima.core.format import Reader, Writer
from anima.runtime.cpu import Cpu
from anima.runtime.executable import Executable

_ROLES = ("input", "const", "output", "temp", "window", "own")


def write_naturals(w: Writer, values: Sequence[int]) -> None:
    """A count, and as many numbers that are not negative."""
    w.natural(len(values))
    for value in values:
        w.natural(value)


def write_target(w: Writer, target: Target) -> None:
    """The machine that code is for."""
    for text in (target.triple, target.cpu, target.features):
        w.text(text)
    write_naturals(w, [target.vector_bytes, target.registers, target.line, target.first_cache, target.second_cache])


def read_target(r: Reader) -> Target:
    """What `write_target` wrote."""
    return Target(r.text(), r.text(), r.text(), *r.many(r.natural))


def write_code(w: Writer, executable: Executable) -> None:
    """The machine code of a program, and all that a call of it needs, apart from its callbacks."""
    code, program = executable.code, executable.program
    w.text(program.name)
    w.natural(code.program.arena)
    w.flag(code.parallel)
    values = {b.name: b.value for b in program.with_role("const")}
    w.natural(len(code.program.buffers))
    for b in code.program.buffers:
        for text in (b.name, b.dtype, b.alias or ""):
            w.text(text)
        write_naturals(w, [_ROLES.index(b.role), b.size, int(b.donated), 0 if b.offset is None else b.offset + 1])
        if b.role == "const":
            w.data(element_bytes(values[b.name].astype(NUMPY[b.dtype])))
    for shape in executable.shapes:
        write_naturals(w, shape)
    write_naturals(w, executable.donors)
    w.natural(len(code.callees))
    for module, name in code.callees:
        w.natural(0 if module is None else module + 1)
        w.text(name)
    support = native.support_objects(code.modules, executable.backend.target)
    w.natural(len(support))
    for name, data in support.items():
        w.text(name)
        w.data(data)
    w.natural(len(code.modules))
    for one in code.modules:
        w.data(one.object_bytes())


def read_code(r: Reader, target: Target,
              callbacks: Sequence[Any] = ()) -> tuple[Program, Code, Cpu, list[Shape], list[int]]:
    """What `write_code` wrote: the arguments of an `Executable`."""
    name, arena, parallel = r.text(), r.natural(), r.flag()
    buffers = tuple(r.many(lambda: _buffer(r)))
    program = Program(name, buffers, (), arena, tuple(callbacks))
    shapes = [tuple(r.many(r.natural)) for _ in program.with_role("output")]
    donors = r.many(r.natural)
    callees = tuple(r.many(lambda: (r.natural() - 1, r.text())))
    support = dict(r.many(lambda: (r.text(), bytes(r.data()))))
    objects = r.many(lambda: bytes(r.data()))
    native.keep_support(support, target)
    modules = tuple(native.load_object(data, None, target) for data in objects)
    bare = Program(name, tuple(Buffer(b.name, b.dtype, b.size, b.role, None, b.offset, b.alias, b.donated)
                               for b in buffers), (), arena)
    code = Code(bare, ("",) * len(modules), modules, tuple((None if k < 0 else k, n) for k, n in callees), parallel)
    return program, code, Cpu(target), shapes, donors


def _buffer(r: Reader) -> Buffer:
    name, dtype, alias = r.text(), r.text(), r.text()
    role, size, donated, offset = r.many(r.natural)
    value = None
    if _ROLES[role] == "const":
        value = np.frombuffer(r.data(), NUMPY[dtype].newbyteorder("<")).astype(NUMPY[dtype])
    return Buffer(name, dtype, size, _ROLES[role], value, offset - 1 if offset else None, alias or None, bool(donated))
