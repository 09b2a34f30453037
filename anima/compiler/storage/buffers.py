"""The buffer plan: which buffers share memory.

    t1 = exp in0;  t2 = sum t1;  out0 = t1 / t2        ->      t1 is out0
    copy in0 to out0, then update out0 (in0 donated)   ->      out0 is in0, no copy

A copy from a buffer that nothing reads afterwards becomes no copy at all; a temp that dies where another
one of its size is made element by element gives it its memory; the rest is placed in the arena, about where it
fits first over lifetimes, 64 bytes aligned. After this pass every temp has an offset or an alias.

What may be overwritten while it is still read is told by `overwrites` alone: by a kernel, a buffer of which each
iteration reads the very element that it writes afterwards; by a call of a routine, nothing. Lowering rules may so
read an operand whenever they like. `proof.py` proves it of a finished plan.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anima.compiler.ir.affine import injective, nest_of
from anima.compiler.ir.loops import (
    Accumulate,
    Affine,
    Again,
    Assign,
    Buffer,
    Call,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    Local,
    Mutable,
    NamedValue,
    Op,
    Prefetch,
    Program,
    Stmt,
    Store,
    While,
    WindowAt,
    affine,
    children,
    roots,
    walk,
)
from anima.compiler.ir.routines import arguments, buffers_read, buffers_written, renamed
from anima.compiler.scalars.small import SMALL_FLOATS, SMALL_INTEGERS
from anima.util import check_level, record, replace

ALIGNMENT = 64
BYTES = {**dict.fromkeys((*SMALL_FLOATS, *SMALL_INTEGERS), 1), "bool": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2,
         "f16": 2, "bf16": 2, "i32": 4, "u32": 4, "f32": 4, "i64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16}


def plan_buffers(program: Program) -> Program:
    """Gives every temp its place in memory, and lets donated inputs be overwritten."""
    program = remove_copies(program)
    units, loops = accesses(program)
    lives = _lifetimes(units, loops, program)
    shared = _share_elementwise(program, units, loops, lives)
    buffers = [replace(b, alias=shared[b.name]) if b.name in shared else b for b in program.buffers]
    put = place_apart if check_level() > 1 else place
    offsets, arena = put(_spans(buffers, lives, "temp"))
    offsets |= put(_spans(buffers, lives, "own"))[0]
    buffers = [replace(b, offset=offsets[b.name]) if b.name in offsets else b for b in buffers
               if b.role not in ("temp", "own") or b.name in lives]
    return replace(program, buffers=tuple(buffers), arena=arena)


def size_in_bytes(b: Buffer) -> int:
    """Bytes that a buffer takes."""
    return b.size * BYTES.get(b.dtype, 1)


def own_bytes(buffers: Iterable[Buffer]) -> int:
    """Bytes of memory for those that are a thread's own."""
    return max((b.offset + size_in_bytes(b) for b in buffers if b.role == "own" and b.offset is not None), default=0)


# ---------------------------------------------------------------- lifetimes


@dataclass(slots=True)
class Life:
    """Positions of a buffer's first and last use, `begin <= position <= end`, and of its writes."""

    begin: int
    end: int
    written: list[int]


@record
class Access:
    """A statement that runs as one unit, its position, the loops around it, and the buffers that it uses."""

    stmt: Stmt
    position: int
    reads: frozenset[str]
    writes: frozenset[str]
    whole: frozenset[str]  # written before read, in full, as far as one can tell


def accesses(program: Program) -> tuple[list[Access], list[tuple[int, int]]]:
    """The units of a program that use buffers, in order, and the intervals of positions that loops run over."""
    units: list[Access] = []
    loops: list[tuple[int, int]] = []
    kernels: dict[int, tuple[set[str], set[str]]] = {}

    def visit(stmts: Iterable[Stmt], sure: bool = True) -> None:
        for stmt in stmts:
            if isinstance(stmt, (For, While)):
                start = len(units)
                exprs = [stmt.extent] if isinstance(stmt, For) else [stmt.cond]
                units.append(_access(exprs, stmt, len(units)))
                if isinstance(stmt, While):
                    visit(stmt.before, sure)
                    units.append(_access(exprs, stmt, len(units)))
                visit(stmt.body, sure)
                units.append(_access(exprs, stmt, len(units)))
                loops.append((start, len(units) - 1))
            elif isinstance(stmt, If):
                units.append(_access([stmt.cond], stmt, len(units)))
                visit(stmt.then, False)
                visit(stmt.orelse, False)
            else:
                unit = _access([stmt], stmt, len(units), kernels)
                if unit.reads or unit.writes:
                    units.append(unit if sure else replace(unit, whole=frozenset()))

    visit(program.body)
    return units, loops


def _access(nodes: Sequence[Expr | Stmt], stmt: Stmt, position: int,
            kernels: dict[int, tuple[set[str], set[str]]] | None = None) -> Access:
    reads, writes = uses(nodes, kernels)
    return Access(stmt, position, frozenset(reads), frozenset(writes), frozenset(writes - reads))


def on_many_threads(stmt: Stmt) -> bool:
    return isinstance(stmt, For) and stmt.kind == "parallel"


def uses(nodes: Iterable[Expr | Stmt], kernels: dict[int, tuple[set[str], set[str]]] | None = None
         ) -> tuple[set[str], set[str]]:
    """The buffers that statements and expressions read, and those that they write; `kernels` remembers, by identity,
    those of kernels that stand several times."""
    known = {} if kernels is None else kernels
    reads: set[str] = set()
    writes: set[str] = set()
    stack: list[Any] = list(nodes)
    while stack:
        node = stack.pop()
        kind = type(node)
        if kind is NamedValue or kind is Const:
            continue
        if kind is Op:
            stack += node.args
            continue
        if kind is Let:
            stack.append(node.value)
            continue
        if kind is Again:
            names = dict(node.names)
            if id(node.kernel) not in known:
                known[id(node.kernel)] = uses((node.kernel,))
            reads.update(names.get(b, b) for b in known[id(node.kernel)][0])
            writes.update(names.get(b, b) for b in known[id(node.kernel)][1])
            continue
        if kind is Load:
            reads.add(node.buffer)
        elif kind is Store:
            writes.add(node.buffer)
            if node.op is not None:
                reads.add(node.buffer)
        elif kind is Call:
            written = buffers_written(node.routine, node.args)
            reads.update(buffers_read(node.routine, node.args))
            writes.update(written)
            if arguments(node.routine, node.args).get("beta", 0.0) != 0.0:
                reads.update(written)
        stack += children(node)
    return reads, writes


def buffers_of(nodes: Iterable[Expr | Stmt]) -> set[str]:
    """The buffers that statements and expressions read or write."""
    return set().union(*uses(nodes))


def _lifetimes(units: Sequence[Access], loops: Sequence[tuple[int, int]], program: Program) -> dict[str, Life]:
    """When each buffer is in use. What a loop carries from one iteration to the next lives as long as the loop, and so
    does what threads share, which are not at the same iteration's step."""
    own = {b.name for b in program.with_role("own")}
    lives: dict[str, Life] = {}
    fresh: dict[str, int] = {}  # first use, if that one writes without reading
    for unit in units:
        for name in unit.reads | unit.writes:
            life = lives.get(name)
            if life is None:
                lives[name] = life = Life(unit.position, unit.position, [])
                if name in unit.whole:
                    fresh[name] = unit.position
            life.end = unit.position
            if name in unit.writes:
                life.written.append(unit.position)
    for start, end in sorted(loops, key=lambda span: span[1] - span[0]):
        threads = on_many_threads(units[start].stmt)
        for name in {n for unit in units[start:end + 1] for n in unit.reads | unit.writes}:
            life = lives[name]
            inside = start <= life.begin and life.end <= end
            if not (inside and name in fresh) or (threads and name not in own):
                life.begin, life.end = min(life.begin, start), max(life.end, end)
    return lives


# ---------------------------------------------------------------- copies


def remove_copies(program: Program) -> Program:
    """Drops copies whose source is never used again, by making both one buffer."""
    known = {b.name: b for b in program.buffers}
    copies = {id(k): pair for k in program.body
              if isinstance(k, Kernel) and (pair := _copied(k)) is not None and known.keys() >= set(pair)}
    if not copies:
        return program
    units, loops = accesses(program)
    lives = _lifetimes(units, loops, program)
    overwritten = {b.alias for b in program.buffers}
    names: dict[str, str] = {}
    dropped: set[int] = set()
    for unit in units:
        if id(unit.stmt) not in copies:
            continue
        source, target = (known[_end_of(names, n)] for n in copies[id(unit.stmt)])
        if lives[source.name].end > unit.position or lives[target.name].begin < unit.position:
            continue
        kept = _merge(source, target, source.name in overwritten)
        if kept is None:
            continue
        dropped.add(id(unit.stmt))
        if isinstance(kept, Buffer):  # an output that takes over a donated input's memory
            known[target.name] = replace(target, alias=source.name)
            overwritten.add(source.name)
            continue
        gone = target if kept == source.name else source
        names[gone.name] = kept
        lives[kept].begin = min(lives[source.name].begin, lives[target.name].begin)
        lives[kept].end = max(lives[source.name].end, lives[target.name].end)
        del known[gone.name]
    names = {n: _end_of(names, n) for n in names}
    body = rename([s for s in program.body if id(s) not in dropped], names) if names or dropped else program.body
    return replace(program, buffers=tuple(known.values()), body=body)


def _end_of(names: dict[str, str], name: str) -> str:
    """What a buffer is called after all renamings, whose chains are made short on the way."""
    last = name
    while last in names:
        last = names[last]
    while name != last:
        names[name], name = last, names[name]
    return last


def _merge(source: Buffer, target: Buffer, overwritten: bool) -> str | Buffer | None:
    """The name of the buffer that both become; `target` itself if it is to be an alias of `source`; or None."""
    if source.size != target.size or source.dtype != target.dtype or source.alias or target.alias:
        return None
    if source.role == "temp":
        return target.name
    if source.donated and target.role == "temp":
        return source.name
    if source.donated and target.role == "output" and not overwritten:
        return target
    return None


def _copied(kernel: Kernel) -> tuple[str, str] | None:
    """(source, target) if a kernel does nothing but copy one buffer to another."""
    body = kernel.body if kernel.name == "copy" else ()
    while len(body) == 1 and isinstance(body[0], For):
        body = body[0].body
    match body:
        case (*indices, Let(name=loaded, value=Load(buffer=source, index=here)),
              Store(buffer=target, index=there, value=NamedValue(name=stored), op=None)):
            plain = all(isinstance(s, Let) for s in indices) and loaded == stored and here == there
            return (source, target) if plain else None
    return None


def rename(stmts: Sequence[Stmt], buffers: Mapping[str, str], names: Mapping[str, str] | None = None,
           numbers: Mapping[str, Const] | None = None,
           at: Callable[[str, Expr], Expr] = lambda buffer, index: index) -> tuple[Stmt, ...]:
    """Statements with buffers renamed, and `names` of values; `numbers` are put in place of names. `at` gives the index
    into a buffer for what it was."""
    named, numbered = names or {}, numbers or {}
    kernels: dict[int, Kernel] = {}  # renamed, by identity: what stands several times stays one

    def expr(e: Expr) -> Expr:
        kind = type(e)
        if kind is Const:
            return e
        if kind is NamedValue:
            name = e.name  # type: ignore[union-attr]
            return numbered.get(name) or (NamedValue(named[name], e.dtype) if name in named else e)
        match e:
            case Op(name, args, dtype, params):
                return Op(name, tuple(map(expr, args)), dtype, params)
            case Load(buffer, index, dtype):
                return Load(buffers.get(buffer, buffer), at(buffer, expr(index)), dtype)
            case Affine(values, coefficients, const):
                changed = tuple(map(expr, values))
                return affine(const, *zip(changed, coefficients, strict=True)) if numbered else Affine(
                    changed, coefficients, const)
        return e

    def stmt(s: Stmt) -> Stmt:
        match s:
            case Let(name, value):
                return Let(named.get(name, name), expr(value))
            case Kernel(body=body):
                if id(s) not in kernels:
                    changed = named or not buffers_of(body).isdisjoint(buffers)
                    kernels[id(s)] = replace(s, body=block(body)) if changed else s
                return kernels[id(s)]
            case Again(kernel=kernel, names=pairs):
                return Again(stmt(kernel), tuple((buffers.get(a, a), buffers.get(b, b)) for a, b in pairs))  # type: ignore[arg-type]
            case For(index, extent, body, kind, width, grain):
                return For(named.get(index, index), expr(extent), block(body), kind, width, grain)
            case While(before=before, cond=cond, body=body):
                return replace(s, before=block(before), cond=expr(cond), body=block(body))
            case If(cond=cond, then=then, orelse=orelse):
                return If(expr(cond), block(then), block(orelse))
            case Mutable(name=name, dtype=dtype, init=init):
                return Mutable(named.get(name, name), dtype, expr(init))
            case Assign(name=name, value=value):
                return Assign(named.get(name, name), expr(value))
            case Accumulate(name=name, op=op, value=value):
                return Accumulate(named.get(name, name), op, expr(value))
            case Store(buffer=buffer, index=index, value=value, op=op):
                return Store(buffers.get(buffer, buffer), at(buffer, expr(index)), expr(value), op)
            case Prefetch(load=load):
                return Prefetch(expr(load))  # type: ignore[arg-type]
            case Local(buffer=buffer):
                return replace(s, buffer=buffers[buffer]) if buffer in buffers else s
            case WindowAt(buffer=buffer, address=address):
                return WindowAt(buffers.get(buffer, buffer), expr(address))
            case Call(routine=routine, args=args):
                return replace(s, args=renamed(routine, args, buffers))  # type: ignore[arg-type]
        return s

    def block(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        return tuple(map(stmt, body))

    return block(stmts)


def written_out(again: Again) -> Kernel:
    """The kernel that stands here again, as if by itself."""
    (kernel,) = rename((again.kernel,), dict(again.names))
    assert isinstance(kernel, Kernel)
    return kernel


# ---------------------------------------------------------------- sharing


def _share_elementwise(program: Program, units: Sequence[Access], loops: Sequence[tuple[int, int]],
                       lives: dict[str, Life]) -> dict[str, str]:
    """Buffers first written by a kernel that reads a dying buffer at exactly the same indices: target -> source."""
    known = {b.name: b for b in program.buffers}
    shared: dict[str, str] = {b.name: b.alias for b in program.buffers if b.alias is not None}
    taken = set(shared.values())
    looped = {position for a, b in outermost(loops) for position in range(a, b + 1)}
    kernels = Kernels()
    for unit in units:
        if not isinstance(unit.stmt, (Kernel, Again)) or unit.position in looped:
            continue
        dying = [n for n in sorted(unit.reads) if n in known and lives[n].end == unit.position and n not in taken
                 and n not in shared and (known[n].donated or known[n].role == "temp")]
        born = [n for n in sorted(unit.whole) if n in known and lives[n].begin == unit.position and n not in shared]
        if not dying or not born:
            continue
        for target in born:
            b = known[target]
            for source in dying:
                s = known[source]
                usable = s.donated or (s.role == "temp" and b.role == "temp")
                if (usable and source not in taken and s.size == b.size and s.dtype == b.dtype
                        and kernels.overwrites(unit.stmt, target, source)):
                    shared[target] = source
                    taken.add(source)
                    break
    return shared


class ElementUses:
    """Which elements each statement of a kernel's loop nest uses and stores; `nest` is None if it has no such nest."""

    def __init__(self, kernel: Kernel) -> None:
        self.nest = nest_of(kernel.body)
        self.used: list[dict[str, set[Expr]]] = []           # by buffer, loaded or stored
        self.stored: list[tuple[str, Expr] | None] = []
        if self.nest is None:
            return
        for stmt in (*self.nest.between, *self.nest.body):
            here: dict[str, set[Expr]] = {}
            for node in walk(stmt):
                if isinstance(node, (Load, Store)):
                    here.setdefault(node.buffer, set()).add(node.index)
            self.used.append(here)
            self.stored.append((stmt.buffer, stmt.index) if isinstance(stmt, Store) else None)

    def overwrites(self, target: str, source: str) -> bool:
        """Whether the kernel can write `target` to the memory of `source`, both of one size and type: each iteration of
        its nest uses one element of `source`, then writes the same one of `target`, and no other iteration does."""
        if self.nest is None:
            return False
        used: set[Expr] = set()
        written: set[Expr] = set()
        for here, stored in zip(self.used, self.stored, strict=True):
            if source in here:
                if written:
                    return False
                used |= here[source]
            if stored is not None and stored[0] == target:
                written.add(stored[1])
        return len(written) == 1 and used == written and injective(written.pop(), self.nest.extents, self.nest.lets)


class Kernels:
    """What kernels overwrite, answered once for one that stands several times."""

    def __init__(self) -> None:
        self.uses: dict[int, ElementUses] = {}
        self.known: dict[tuple[int, str, str], bool] = {}

    def overwrites(self, stmt: Kernel | Again, target: str, source: str) -> bool:
        """Whether a kernel, or one that stands again, can write `target` to the memory of `source`."""
        kernel = stmt
        if isinstance(stmt, Again):
            kernel, formal = stmt.kernel, {new: old for old, new in stmt.names}
            target, source = formal[target], formal[source]
        assert isinstance(kernel, Kernel)
        key = id(kernel), target, source
        if key not in self.known:
            if id(kernel) not in self.uses:
                self.uses[id(kernel)] = ElementUses(kernel)
            self.known[key] = self.uses[id(kernel)].overwrites(target, source)
        return self.known[key]


def outermost(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The intervals that lie in no other one."""
    out: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if not out or start > out[-1][1]:
            out.append((start, end))
    return out


# ---------------------------------------------------------------- the arena


def _spans(buffers: Sequence[Buffer], lives: dict[str, Life], role: str) -> list[tuple[str, int, int, int]]:
    """(name, bytes, begin, end) of each piece of memory for buffers of a role; an alias lengthens the life of what it
    stands for."""
    found: dict[str, list[int]] = {}
    owners = roots(buffers)
    for name, root in owners.items():
        if root.role == role and name in lives:
            life = lives[name]
            span = found.setdefault(root.name, [life.begin, life.end])
            span[0], span[1] = min(span[0], life.begin), max(span[1], life.end)
    return [(name, size_in_bytes(owners[name]), a, b) for name, (a, b) in found.items()]


def place(spans: Sequence[tuple[str, int, int, int]]) -> tuple[dict[str, int], int]:
    """Offsets so that what lives at the same time does not overlap, and the bytes needed in all."""
    offsets: dict[str, int] = {}
    living: list[tuple[int, int, int]] = []  # (end of life, offset, end of memory), the first to die first
    gaps = _Gaps()
    for name, size, begin, end in sorted(spans, key=lambda s: (s[2], -s[1])):
        while living and living[0][0] < begin:
            gaps.free(*heapq.heappop(living)[1:])
        size = -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
        offsets[name] = at = gaps.take(size)
        heapq.heappush(living, (end, at, at + size))
    return offsets, gaps.total


class _Gaps:
    """Free memory below `total`: where each gap ends, where it starts, and heaps of gaps of about one size (a power
    of two), which still hold gaps that are gone."""

    def __init__(self) -> None:
        self.total = 0
        self.ends: dict[int, int] = {}
        self.starts: dict[int, int] = {}
        self.heaps: dict[int, list[tuple[int, int]]] = {}

    def free(self, start: int, end: int) -> None:
        """Makes memory a gap, or part of those beside it."""
        if start in self.starts:
            start, _ = self._remove(self.starts[start])
        if end in self.ends:
            _, end = self._remove(end)
        self.ends[start], self.starts[end] = end, start
        heapq.heappush(self.heaps.setdefault((end - start).bit_length(), []), (start, end))

    def _remove(self, start: int) -> tuple[int, int]:
        end = self.ends.pop(start)
        del self.starts[end]
        return start, end

    def take(self, size: int) -> int:
        """Memory of this size: the beginning of the first gap among the first of each heap, or at the end."""
        found: list[tuple[int, int]] = []
        for bits, heap in self.heaps.items():
            while heap and self.ends.get(heap[0][0]) != heap[0][1]:
                heapq.heappop(heap)
            if bits >= size.bit_length() and heap and heap[0][1] - heap[0][0] >= size:
                found.append(heap[0])
        if found:
            start, end = self._remove(min(found)[0])
            if end - start > size:
                self.free(start + size, end)
            return start
        last = self.total
        start, _ = self._remove(self.starts[last]) if last in self.starts else (last, last)
        self.total = max(last, start + size)
        if start + size < last:  # a gap that is not the first of its heap may be large enough
            self.free(start + size, last)
        return start


def place_apart(spans: Sequence[tuple[str, int, int, int]]) -> tuple[dict[str, int], int]:
    """`place` for runs that are checked: only buffers of one size lie on each other, and after each there are bytes
    that are nobody's."""
    offsets: dict[str, int] = {}
    free_from: dict[tuple[int, int], int] = {}  # (bytes, offset) -> the end of the last life there
    total = 0
    for name, size, begin, end in sorted(spans, key=lambda s: s[2]):
        at = next((at for (n, at), last in free_from.items() if n == size and last < begin), None)
        if at is None:
            at, total = total, total + (-(-size // ALIGNMENT) + 1) * ALIGNMENT
        free_from[size, at] = end
        offsets[name] = at
    return offsets, total
