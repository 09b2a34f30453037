"""A finished plan of memory is checked: nothing is written over what is still read."""

from __future__ import annotations

import itertools

from anima.compiler.ir.loops import Again, Call, Kernel, Program, roots
from anima.compiler.ir.routines import apart, buffers_written, operand_places
from anima.compiler.storage.buffers import Kernels, accesses, on_many_threads, size_in_bytes

MemorySpan = tuple[str, int, int]  # a piece of memory, and the bytes of it from one to another


def memory_spans(program: Program) -> dict[str, MemorySpan]:
    """Where each buffer of a program whose temporaries have places is: in an arena (which has the name of a role), or
    memory of its own."""
    found: dict[str, MemorySpan] = {}
    for b, root in zip(program.buffers, roots(program.buffers).values(), strict=True):
        offset = root.offset
        found[b.name] = (root.name, 0, 1) if offset is None else (f" {root.role}", offset, offset + size_in_bytes(b))
    return found


def overlap(some: MemorySpan, other: MemorySpan) -> bool:
    """Whether two pieces have bytes in common."""
    return some[0] == other[0] and some[1] < other[2] and other[1] < some[2]


def check_memory(program: Program) -> None:
    """AssertionError if anything writes to memory that it, or what it is part of, still reads (see `overwrites`)."""
    known = memory_spans(program)
    kernels = Kernels()
    units, loops = accesses(program)
    for start, end in loops:
        if on_many_threads(units[start].stmt):
            _check_threads(program, set().union(*(u.reads | u.writes for u in units[start:end + 1])))
    for unit in units:
        for target in unit.writes & known.keys():
            for other in (unit.reads | unit.writes) & known.keys() - {target}:
                if not overlap(known[target], known[other]):
                    continue
                fine = isinstance(unit.stmt, (Kernel, Again)) and known[target] == known[other] and (
                    kernels.overwrites(unit.stmt, target, other)
                    or (other in unit.writes and kernels.overwrites(unit.stmt, other, target)))
                if not fine:
                    raise AssertionError(f"{program.name}: {target} is written over {other}, which is in use")
        if isinstance(unit.stmt, Call):
            routine, args = unit.stmt.routine, unit.stmt.args
            names = buffers_written(routine, args) if routine == "callback" else [
                str(args[k]) for k in operand_places(routine, args)]
            twice = unit.writes.intersection(n for n in names if names.count(n) > 1)
            if twice and not apart(routine, args):
                raise AssertionError(f"{program.name}: {routine} writes to {twice}, which it is given twice")


def _check_threads(program: Program, used: set[str]) -> None:
    """What threads share, which are at different steps of a loop, must have memory of its own."""
    shared = {root.name: root for name, root in roots(program.buffers).items() if name in used and root.role == "temp"}
    spans = sorted((b.offset or 0, (b.offset or 0) + size_in_bytes(b), b.name) for b in shared.values())
    for (_, end, name), (start, _, other) in itertools.pairwise(spans):
        if end > start:
            raise AssertionError(f"{program.name}: {name} and {other} of a loop on threads have the same memory")
