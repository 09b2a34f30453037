"""Loops in order of steps that are alike for independent lanes: the lanes go around the steps.

    for k < 1000:                                parallel l < 256:
      kernel: each i < 256: t[i] = f(x[i])         kernel: x.l[0] = x[l]
      kernel: each i < 256: x[i] = g(t[i])   ->    for k < 1000:
                                                     kernel: t.l[0] = f(x.l[0])
                                                     kernel: x.l[0] = g(t.l[0])
                                                   kernel: x[l] = x.l[0]

What a lane changes is its own. Where that and the steps are small, it is in registers (`storage/registers.py`), and
lanes are those of vectors. Lanes of long rows go through the steps one by one, too: their vectors are along rows, which
stay in a core's cache. Of those between, strips of lanes go through the steps:

    for k < 60:                                  parallel(8) l < 4:
      kernel: each l < 32:                         for k < 60:
                each i < 6: x[l*6 + i] = ... ->      kernel: vector m < 8:
                                                               for i < 6: x.l[i*8 + m] = ...

What is a lane's own lies beside that of the next lane, in memory of a thread that stays in its caches; what has no
lanes is done for each strip. Either way threads share the lanes once, not in every step. That is a `vmap` of a
simulation, or an iteration on every point of a grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from anima.compiler.ir.affine import steps
from anima.compiler.ir.loops import (
    INDEX,
    Assign,
    Buffer,
    Const,
    For,
    Kernel,
    Let,
    Load,
    Mutable,
    NamedValue,
    Program,
    Stmt,
    Store,
    While,
    affine,
    lets_of,
    map_blocks,
    roots,
    statements,
    statements_outside,
    walk,
)
from anima.compiler.machine.target import Target
from anima.compiler.scheduling import strips
from anima.compiler.scheduling.independent import DifferentError, Lanes, kernels_in, without_kernels
from anima.compiler.storage.accesses import LARGEST, unrolled_size
from anima.compiler.storage.buffers import buffers_of, rename, size_in_bytes
from anima.compiler.storage.registers import LANES, LEAST
from anima.util import replace

MOST_COUNTS = 4      # numbers of lanes that are tried
NEAR = 4096          # bytes from a step's place in an array to the next one's, at most, if the array has more
WORK = 8             # statements for each element of such an array, at least
LONG = 500           # statements of a lane from which strips are better, which are compiled in a fraction of the time
TURNS = 15           # and more of them for each loop that strips go round in
_Found = tuple[Lanes, For, tuple[Stmt, ...]]  # what runs lane by lane, and what follows it


def interchange(program: Program, target: Target) -> Program:
    """Puts lanes around the loops of a program that can have them there."""
    worker = _Interchange(program, target)
    body: list[Stmt] = []
    for n, stmt in enumerate(program.body):
        around = program.body[:n], program.body[n + 1:]
        body += worker.loop(stmt, *around) or [stmt] if isinstance(stmt, (For, While)) else [stmt]
    if not worker.count:
        return program
    used = buffers_of(body)
    kept = [b for b in program.buffers if b.role != "temp" or b.name in used]
    return replace(program, buffers=(*kept, *worker.own), body=tuple(body))


class _InRegistersError(Exception):
    """A loop's arrays are a few vectors each, in registers as they are."""


class _Interchange:
    def __init__(self, program: Program, target: Target) -> None:
        self.target = target
        self.buffers = {b.name: b for b in program.buffers}
        self.roots = {name: b.name for name, b in roots(program.buffers).items()}
        self.count = 0
        self.own: list[Buffer] = []

    def loop(self, loop: For | While, before: Sequence[Stmt], after: Sequence[Stmt]) -> list[Stmt] | None:
        """The statements that do what a loop does, lane by lane; None where that cannot be, or does not pay."""
        found, many = None, True
        for count, form in ((n, form) for n in _counts(loop) for form in (loop, *_in_rows(loop, n))):
            try:
                found, many = self.by_lanes(form, before, after, count)
                break
            except DifferentError:
                continue
            except _InRegistersError:
                return None
        for count in strips.counts(loop) if many else ():
            try:
                found = self.by_strips(loop, before, after, count)
                break
            except DifferentError:
                continue
        for count in strips.counts(loop) if found is None else ():
            try:
                found = self.by_rows(loop, before, after, count)
                break
            except DifferentError:
                continue
        return None if found is None else self.taken(*found)

    def by_lanes(self, loop: For | While, before: Sequence[Stmt], after: Sequence[Stmt], count: int,
                 ) -> tuple[_Found, bool]:
        """One lane after the other, in registers; and whether a lane has so many statements that strips are better."""
        if any(k.reduces is not None for k in kernels_in(loop)) or any(
                isinstance(s, Store) for s in statements_outside((loop,))):
            raise DifferentError
        lanes = Lanes(loop, self.buffers, count)
        if any(lanes.own(n) > LARGEST for n in lanes.small):
            raise DifferentError
        if count <= LARGEST and all(lanes.own(n) == 1 for n in lanes.small):
            raise _InRegistersError
        _check_streams(loop, self.buffers)
        lanes.given = {n for n in lanes.given if lanes.own(n) <= LARGEST}
        around, single = self.around(lanes, before, after)
        sizes = [unrolled_size(s.body, "elements", longest=LARGEST) for s in statements_outside(around.body)
                 if isinstance(s, Kernel)]
        if None in sizes or sum(sizes) > LANES:  # type: ignore[arg-type]
            raise DifferentError
        loops = sum(isinstance(s, For) for s in statements(around))
        return (lanes, around, single), sum(sizes) > LONG + TURNS * loops  # type: ignore[arg-type]

    def by_strips(self, loop: For | While, before: Sequence[Stmt], after: Sequence[Stmt], count: int) -> _Found:
        """One strip of lanes after the other, in memory."""
        alone = strips.without_lanes(loop, count)
        lanes = Lanes(loop, self.buffers, count, ("each", "vector"), alone)
        return lanes, *self.around(lanes, before, after, strips.best(lanes, alone, self.target))

    def by_rows(self, loop: For | While, before: Sequence[Stmt], after: Sequence[Stmt], count: int) -> _Found:
        """One lane after the other, whose rows are good vectors, in memory."""
        lanes = Lanes(loop, self.buffers, count, ("each", "vector"))
        lanes.given = set()
        strips.check_rows(lanes, self.target)
        around, single = self.around(lanes, before, after)
        return lanes, replace(around, body=tuple(_without_lanes(s, count) for s in around.body)), single

    def around(self, lanes: Lanes, before: Sequence[Stmt], after: Sequence[Stmt], strip: int = 1,
               ) -> tuple[For, tuple[Stmt, ...]]:
        """The loop over `lanes`, or strips of so many, around the loop that they are of; and what has to follow it."""
        earlier, later = buffers_of(before), buffers_of(after)
        elsewhere = earlier | later
        if len({self.roots[b] for b in lanes.touched}) < len(lanes.touched) or any(
                n in later or self.buffers[n].role != "temp" for n in lanes.shared):
            raise DifferentError
        private = {name: f"{name}.l{self.count}" for name in sorted(lanes.small | lanes.given)}
        index = NamedValue(f"lane{self.count}", INDEX)
        live = [self.buffers[n] for n in private if n in elsewhere or self.buffers[n].role != "temp"]
        inner = lanes.placed((lanes.loop,), index, private)
        inside = {s.name for s in statements_outside(inner) if isinstance(s, Mutable)}
        changed = sorted({s.name for s in statements_outside(inner) if isinstance(s, Assign)} - inside)
        begin = [Mutable(f"{name}.l{self.count}", dtype, NamedValue(name, dtype))
                 for name, dtype in lanes.types(changed)]
        shared = {name: f"{name}.l{self.count}" for name in sorted(lanes.shared & earlier)}
        inner = rename(inner, shared, {name: f"{name}.l{self.count}" for name in changed})
        body = (*begin, *(_copy(n, new, self.buffers[n]) for n, new in shared.items()),
                *(lanes.copy(b.name, private[b.name], b, index) for b in live), *inner,
                *(lanes.copy(private[b.name], b.name, b, index) for b in live if b.name in lanes.small))
        if strip > 1:
            body = tuple(strips.in_strips(body, index, strip, lanes.count, private.values()))
        # What is no lane's own, counters and other single values, is there after the loop as it was.
        single = without_kernels((lanes.loop,)) if changed else ()
        names = {s.index if isinstance(s, For) else s.name for s in statements_outside(single)
                 if isinstance(s, (For, Let, Mutable))}
        single = rename(single, {}, {name: f"{name}.s{self.count + 1}" for name in names})
        return For(index.name, Const(-(-lanes.count // strip), INDEX), body, "parallel", strip), single

    def taken(self, lanes: Lanes, around: For, after: Sequence[Stmt]) -> list[Stmt]:
        """The statements in the place of a loop, whose buffers the program has from now on."""
        used = buffers_of((around,))
        for n in sorted(lanes.small | lanes.given | lanes.shared):
            size = self.buffers[n].size if n in lanes.shared else lanes.own(n) * around.width
            if (new := f"{n}.l{self.count}") in used:
                self.own.append(replace(self.buffers[n], name=new, size=size, role="temp", alias=None, donated=False))
        self.count += 1
        return [around, *after]


def _without_lanes(stmt: Stmt, count: int) -> Stmt:
    """A statement of one lane, whose kernels reduce what they did but for their first axis, that of the lanes."""
    if not isinstance(stmt, Kernel):
        return map_blocks(lambda block: tuple(_without_lanes(s, count) for s in block), stmt)
    if stmt.reduces is None:
        return stmt
    shape, axes = stmt.reduces
    if shape[0] != count or 0 in axes:
        raise DifferentError
    return replace(stmt, reduces=(shape[1:], tuple(a - 1 for a in axes)))


def _copy(source: str, target: str, like: Buffer) -> Kernel:
    i = NamedValue("i", INDEX)
    store = Store(target, i, Load(source, i, like.dtype))
    return Kernel("copy", (For(i.name, Const(like.size, INDEX), (store,), "each"),))


def _counts(loop: For | While) -> list[int]:
    """Numbers of lanes that a loop may have: what its kernels' outer loops have in common, and what some loop has."""
    try:
        kernels = kernels_in(loop)
    except DifferentError:
        return []
    outer = [int(s.extent.value) for k in kernels for s in k.body if isinstance(s, For) and isinstance(s.extent, Const)]
    every = {int(s.extent.value) for s in statements(*kernels) if isinstance(s, For) and isinstance(s.extent, Const)}
    counts = [math.gcd(*outer), *sorted(every, reverse=True)]
    return [n for n in dict.fromkeys(counts) if n >= LEAST][:MOST_COUNTS]


def _check_streams(loop: For | While, buffers: Mapping[str, Buffer]) -> None:
    """What has a place for each step is best gone through as it lies, step by step, unless its steps are near each
    other, and what a step computes takes longer."""
    work = accesses = 0
    lets = lets_of(statements_outside((loop,)))
    indices = {s.index for s in statements_outside((loop,)) if isinstance(s, For)} | lets.keys()
    for node in walk(*kernels_in(loop)):
        work += isinstance(node, (Let, Store))
        if not isinstance(node, (Load, Store)) or size_in_bytes(buffers[node.buffer]) <= NEAR:
            continue
        far = [c for name, c in steps(node.index, lets).items() if name in indices]
        size = size_in_bytes(buffers[node.buffer]) // max(buffers[node.buffer].size, 1)
        accesses += bool(far)
        if isinstance(node, Load) and any(c is None or abs(c) * size > NEAR for c in far):
            raise DifferentError
    if work < WORK * accesses:
        raise DifferentError


def _in_rows(loop: For | While, count: int) -> Iterator[For | While]:
    """A loop whose kernels go through arrays as rows of so many elements, rather than through all elements at once:
    these are lanes if others of its kernels have them in rows. Nothing where none does otherwise."""
    cut = False

    def in_rows(stmt: Stmt) -> Stmt:
        if not isinstance(stmt, Kernel):
            return map_blocks(lambda block: tuple(map(in_rows, block)), stmt)
        return replace(stmt, body=tuple(rows(s) for s in stmt.body))

    def rows(stmt: Stmt) -> Stmt:
        if not (isinstance(stmt, For) and stmt.kind == "each" and isinstance(stmt.extent, Const)
                and stmt.extent.value > count and stmt.extent.value % count == 0):
            return stmt
        nonlocal cut
        cut = True
        row = NamedValue(f"{stmt.index}.row", INDEX)
        place = affine(0, (row, count), (NamedValue(stmt.index, INDEX), 1))
        lanes = For(stmt.index, Const(count, INDEX), rename(stmt.body, {}, {}, {stmt.index: place}),  # type: ignore[dict-item]
                    stmt.kind)
        return For(row.name, Const(stmt.extent.value // count, INDEX), (lanes,), stmt.kind)

    found = in_rows(loop)
    assert isinstance(found, (For, While))
    if cut:
        yield found
