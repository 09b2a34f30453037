"""No copies of parts: what reads a part of an array finds it there, what makes a part of one puts it there.

    t[i] = in[i + 300];  ... t[k * 300 + i] ...         ... in[k * 300 + i + 300] ...
    ... t[k * 300 + i] = x ...;  out[i + 300] = t[i]    ... out[k * 300 + i + 300] = x ...

So `scan` over `xs[1:]` reads `xs`, and `concatenate([first[None], ys])` of what it stacks is where it stacks them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence, Set

from anima.compiler.ir.affine import LoopNest, injective, nest_of, steps
from anima.compiler.ir.loops import (
    Affine,
    Again,
    Buffer,
    Call,
    Const,
    Expr,
    For,
    Kernel,
    Let,
    Load,
    NamedValue,
    Program,
    Stmt,
    Store,
    WindowAt,
    affine,
    names_in,
    statements,
)
from anima.compiler.storage.buffers import Access, accesses, buffers_of, rename
from anima.util import record, replace


@record
class Copy:
    """A store that, with the loops around it, puts `source[i + shift]` in all places `i` of `target`, or else
    `source[i]`, of all places of it, in `target[i - shift]`."""

    store: Store
    source: Buffer
    target: Buffer
    shift: int


def no_copies_of_parts(program: Program) -> Program:
    """A program without stores that only move a contiguous part of an array, where that can be read or made in place.
    """
    known = {b.name: b for b in program.buffers}
    again = {id(s.kernel) for s in statements(*program.body) if isinstance(s, Again)}
    copies = {id(s): found for s in program.body
              if isinstance(s, Kernel) and id(s) not in again and (found := _copies(s, known))}
    if not copies:
        return program
    uses = _Uses(program)
    shifts: dict[str, tuple[str, int]] = {}  # buffers that are a part of another one, from this place on
    wholes: set[str] = set()
    dropped: set[int] = set()
    for unit in uses.units:
        for copy in copies.get(id(unit.stmt), ()):
            if uses.can_read(copy, unit):
                part, whole, first = copy.target.name, copy.source.name, copy.shift
            elif uses.can_make(copy, unit):
                part, whole, first = copy.source.name, copy.target.name, -copy.shift
            else:
                continue
            if part not in wholes and part not in shifts and whole not in shifts:
                shifts[part] = whole, first
                wholes.add(whole)
                dropped.add(id(copy.store))
    if not shifts:
        return program

    def at(buffer: str, index: Expr) -> Expr:
        return affine(shifts[buffer][1], (index, 1)) if buffer in shifts else index

    kept = [replace(s, body=_without(s.body, dropped)) if isinstance(s, Kernel) and id(s) in copies else s
            for s in program.body]
    body = rename([s for s in kept if not isinstance(s, Kernel) or s.body],
                  {part: whole for part, (whole, _) in shifts.items()}, at=at)
    return replace(program, buffers=tuple(b for b in program.buffers if b.name not in shifts), body=body)


class _Uses:
    """Where buffers are used, by positions of the program's statements."""

    def __init__(self, program: Program):
        self.units, self.loops = accesses(program)
        self.of: dict[str, list[Access]] = defaultdict(list)
        for unit in self.units:
            for name in unit.reads | unit.writes:
                self.of[name].append(unit)
        apart = [s for s in statements(*program.body) if isinstance(s, (Again, Call, WindowAt))]
        repeated = [s.kernel for s in apart if isinstance(s, Again)]  # in which other buffers stand for some of its own
        self.fixed = buffers_of((*apart, *repeated)) | {s.buffer for s in apart if isinstance(s, WindowAt)}

    def can_read(self, copy: Copy, here: Access) -> bool:
        """Whether what reads the target, which nothing else writes, may read the source: that is not written again, nor
        could be somebody's memory as soon as it is not needed for itself."""
        source, target = copy.source.name, copy.target.name
        last, needed = self.of[source][-1].position, self.of[target][-1].position
        if here.position < last < needed and (copy.source.donated or copy.source.role == "temp"):
            return False
        return (copy.target.role == "temp" and copy.target.size < copy.source.size
                and self.fixed.isdisjoint((source, target))
                and all(u is here or target not in u.writes for u in self.of[target])
                and all(u.position < here.position or source not in u.writes for u in self.of[source]))

    def can_make(self, copy: Copy, here: Access) -> bool:
        """Whether what makes the source may make it in the target, and what reads it find it there: where nobody else
        writes from then on, and none reads meanwhile."""
        source, target, first = copy.source.name, copy.target.name, -copy.shift
        if copy.source.role != "temp" or copy.source.size > copy.target.size or not self.fixed.isdisjoint(
                (source, target)) or any(source in u.writes for u in self.of[source] if u.position >= here.position):
            return False
        made = self.of[source][0].position
        begin = min(made, *(start for start, end in self.loops if start <= made <= end), made)
        return not any(
            (u.position <= here.position and target in u.reads)
            or (target in u.writes and _writes_among(u.stmt, copy, first, first + copy.source.size))
            for u in self.of[target] if begin <= u.position)


def _exact_nest(kernel: Kernel) -> LoopNest | None:
    nest = nest_of(kernel.body)
    return nest if nest is not None and all(isinstance(loop.extent, Const) for loop in nest.loops) else None


def _copies(kernel: Kernel, known: dict[str, Buffer]) -> list[Copy]:
    """The stores of a kernel that do nothing but move a part of a buffer."""
    nest = _exact_nest(kernel)
    if nest is None or kernel.reduces is not None:
        return []
    count, lets, found = math.prod(n for _, n in nest.extents), nest.lets, []
    stores = [s for s in nest.body if isinstance(s, Store)]
    for store in stores:
        load = lets.get(store.value.name) if isinstance(store.value, NamedValue) else None
        if not isinstance(load, Load) or store.op is not None or sum(s.buffer == store.buffer for s in stores) > 1:
            continue
        shift = affine(0, (load.index, 1), (store.index, -1))
        source, target = known.get(load.buffer), known.get(store.buffer)
        if source is None or target is None or source.dtype != target.dtype or not isinstance(shift, Const):
            continue
        # Of whole arrays, `remove_copies` takes care.
        if source.size != target.size and count == min(source.size, target.size) and injective(
                store.index, nest.extents, lets):
            found.append(Copy(store, source, target, int(shift.value)))
    return found


def _without(stmts: Sequence[Stmt], dropped: Set[int]) -> tuple[Stmt, ...]:
    """A kernel's body without some stores, and the loads that were for these."""
    if isinstance(loop := stmts[-1], For):
        body = _without(loop.body, dropped)
        return (*stmts[:-1], replace(loop, body=body)) if body else ()
    kept = [s for s in stmts if id(s) not in dropped]
    if not any(isinstance(s, Store) for s in kept):
        return ()
    read = set().union(*(names_in(s) for s in kept))
    return tuple(s for s in kept if not (isinstance(s, Let) and isinstance(s.value, Load) and s.name not in read))


def _writes_among(stmt: Stmt, copy: Copy, first: int, end: int) -> bool:
    """Whether a statement may write to places of a copy's target from `first` to before `end`, the copy aside."""
    nest = _exact_nest(stmt) if isinstance(stmt, Kernel) else None
    if nest is None:
        return True
    stores = [s for s in nest.body if isinstance(s, Store) and s.buffer == copy.target.name and s is not copy.store]
    return any(_meets(s.index, nest, first, end) for s in stores)


def _meets(index: Expr, nest: LoopNest, first: int, end: int) -> bool:
    """Whether places at these indices may be among those from `first` to before `end`."""
    if nest.lets.keys() & names_in(index):
        return True
    low = high = index.const if isinstance(index, Affine) else int(index.value) if isinstance(index, Const) else 0
    extents = dict(nest.extents)
    for name, step in steps(index, {}).items():
        if step is None or name not in extents:
            return True
        reach = step * (extents[name] - 1)
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low < end and first <= high
