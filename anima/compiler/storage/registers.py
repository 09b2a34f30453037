"""Small arrays inside of loops live in registers, for as long as the loop runs.

    for k < 1000:                              local t1.r: f32[2] in lanes
      kernel add:                              kernel hold: whole(2) c1 < 2: t1.r[c1] = t1[c1]
        vector i < 2:                  ->      for k < 1000:
          t1[i] = t1[i] * 0.5                    kernel add:
                                                   whole(2) i < 2: t1.r[i] = t1.r[i] * 0.5
                                               kernel hold: whole(2) c2 < 2: t1[c2] = t1.r[c2]

A small buffer stays out of memory where every index into it is known to the compiler: a number, or made of
indices of loops that can be written out. Its elements are single values ("elements") where they are used one
by one, or the lanes of one vector ("lanes") where they are computed alike; buffers that kernels use together
are held alike. What every iteration writes before it reads is known to that iteration alone. A loop over lanes
(`parallel`, outside of kernels) becomes one kernel, its buffers private to each lane, or runs on threads (`apart.py`).

After this pass a loop outside of kernels is `parallel` only if it has routines or is long; kernels on registers are
`inline`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from anima.compiler.emitting.value import itemsize
from anima.compiler.ir.groups import LARGE
from anima.compiler.ir.loops import (
    INDEX,
    PARTS,
    Again,
    Call,
    Const,
    For,
    If,
    Kernel,
    Let,
    Load,
    Local,
    Mutable,
    NamedValue,
    Op,
    Program,
    Stmt,
    Store,
    While,
    blocks_of,
    map_blocks,
    names_in,
    statements,
    statements_outside,
    walk,
    with_blocks,
)
from anima.compiler.machine.target import Target
from anima.compiler.scheduling.choices import without_branches
from anima.compiler.scheduling.vectorize import fits
from anima.compiler.storage.accesses import LARGEST, LONGEST, Block, Covered, Mode, block_of, marked, unrolled_size
from anima.compiler.storage.apart import on_threads, own_buffers
from anima.compiler.storage.buffers import buffers_of, rename
from anima.compiler.storage.rows import hold_rows
from anima.util import replace

LOOP = 700        # statements of a loop's kernels, written out: more are too many for the registers ...
LANES = 3000      # ... but those of lanes: what has no register lies lane beside lane
LEAST = 8         # lanes that are worth a vector
PRIVATE = 4096    # bytes, about, of the buffers of one lane
VECTORS = 10      # that a buffer may take


def registers(program: Program, target: Target | None = None, largest: int = LARGEST) -> Program:
    """Holds the small arrays of each loop outside of kernels in registers, and rows of accumulators in kernels; those
    of loops in order, if they have at most `largest` elements, in few of the `target`'s registers."""
    if any(isinstance(s, (For, While)) for s in statements_outside(program.body)):
        program = _loops(program, largest, None if target is None else VECTORS * target.vector_bytes)
    body = hold_rows(program.body)
    return program if body is program.body else replace(program, body=body)


def _loops(program: Program, largest: int, most_bytes: int | None) -> Program:
    worker = _Worker(program, largest, most_bytes)
    body = worker.top(program.body)
    held = {s.buffer for s in statements(*body) if isinstance(s, Local)}
    own = own_buffers(body, worker.buffers)
    kept = tuple(replace(b, role="own") if b.name in own else b for b in program.buffers if b.name not in held)
    return replace(program, buffers=kept, body=body)


# ---------------------------------------------------------------- the pass


@dataclass(slots=True)
class _Plan:
    """How buffers, and the kernels that use them, are held."""

    buffers: dict[str, Mode] = field(default_factory=dict)
    kernels: dict[int, Mode] = field(default_factory=dict)  # by id


class _Worker:
    def __init__(self, program: Program, largest: int, most_bytes: int | None) -> None:
        self.buffers = {b.name: b for b in program.buffers}
        self.largest = largest
        self.most_bytes = most_bytes
        self.count = 0

    def top(self, stmts: Sequence[Stmt], outside: Set[str] = frozenset()) -> tuple[Stmt, ...]:
        """Statements that stand in no loop; `outside` of them these buffers are used."""
        used = [buffers_of([s]) for s in stmts]
        users = Counter(name for names in used for name in names)
        out: list[Stmt] = []
        for place, stmt in enumerate(stmts):
            if not isinstance(stmt, (For, While, If)):
                out.append(stmt)
                continue
            elsewhere = {name for name in used[place] if name in outside or users[name] > 1}
            if not isinstance(stmt, If):
                out += self.loop(stmt, elsewhere)
            else:
                then, orelse = (elsewhere | buffers_of(block) for block in (stmt.orelse, stmt.then))
                out.append(replace(stmt, then=self.top(stmt.then, then), orelse=self.top(stmt.orelse, orelse)))
        return tuple(out)

    def loop(self, stmt: Stmt, elsewhere: set[str]) -> list[Stmt]:
        """One outermost loop, with what has to stand before and after it; `elsewhere` are buffers used there too.

        Lanes within it run several at once where they can if single values are held, or fewer.
        """
        if isinstance(stmt, For) and stmt.kind == "parallel" and stmt.width > 1:
            return [on_threads(replace(stmt, kind="serial", width=1), self.buffers, elsewhere)]
        found, in_the_way = self.planned(stmt, elsewhere)
        inner = [s for s in statements_outside([part for block in blocks_of(stmt) for part in block])
                 if isinstance(s, For) and s.kind == "parallel"]
        if not inner or (isinstance(stmt, For) and stmt.kind == "parallel"):
            return found
        single = {id(s) for s in statements_outside(inner)}
        for _ in range(2):
            other, more = self.planned(stmt, elsewhere, in_the_way, single)
            if _count_lanes(other) > _count_lanes(found):
                return other
            if more <= in_the_way:
                break
            in_the_way = in_the_way | more
        return found

    def planned(self, stmt: Stmt, elsewhere: set[str], without: Set[str] = frozenset(), single: Set[int] = frozenset(),
                ) -> tuple[list[Stmt], set[str]]:
        """A loop whose buffers are held, but those `without`; and which of them are in the way of lanes within it. What
        the statements with the ids `single` alone use is held in single values."""
        longest = LARGEST if isinstance(stmt, For) and stmt.kind == "parallel" and _are_many(stmt) else LONGEST
        blocks = {id(s): block_of(s, longest) for s in statements_outside([stmt])}
        for s in statements_outside([stmt]):
            if isinstance(s, Again):  # the kernel that runs again is as it was
                blocks[id(s.kernel)].sizes = {"elements": None, "lanes": None}
        plan = self.plan(stmt, list(dict.fromkeys(blocks.values())), without, single)
        in_the_way: set[str] = set()
        if not plan.kernels and not plan.buffers:
            return [self.lanes(stmt, elsewhere, in_the_way)], in_the_way
        covered = Covered(blocks, plan.buffers.keys())
        covered.block([stmt], frozenset())
        live = {b: f"{b}.r" for b in plan.buffers if b in elsewhere or self.buffers[b].role != "temp"}
        locals_: list[Stmt] = []
        before: list[Stmt] = []
        after: list[Stmt] = []
        for name, new in live.items():
            locals_.append(self.local(name, new, plan.buffers[name]))
            everything = {(name, i) for i in range(self.buffers[name].size)}
            if covered.exposed & everything or not everything <= covered.written:
                before.append(self.copy(name, new, plan.buffers[name], name))
            if name in covered.stored:
                after.append(self.copy(new, name, plan.buffers[name], name))
        private = {n: m for n, m in plan.buffers.items() if n not in live}
        declared, (stmt,) = self.declare((stmt,), private, blocks, plan)
        (stmt,) = rename((stmt,), live) if live else (stmt,)
        stmt = self.lanes(stmt, elsewhere, in_the_way, {*live.values(), *(s.buffer for s in declared)})  # type: ignore[union-attr]
        return ([*declared, *locals_, *_copies(before), stmt, *_copies(after)],
                {name for name in plan.buffers if live.get(name, name) in in_the_way})

    def in_few(self, name: str) -> bool:
        """Whether a buffer, or each part of complex numbers, takes few registers."""
        b = self.buffers[name]
        return self.most_bytes is None or b.size * itemsize(PARTS.get(b.dtype, b.dtype)) <= self.most_bytes

    def local(self, name: str, new: str, mode: Mode) -> Local:
        return Local(new, self.buffers[name].dtype, self.buffers[name].size, mode)

    def copy(self, source: str, target: str, mode: Mode, like: str) -> Stmt:
        """A loop that copies between memory and registers."""
        self.count += 1
        b, i = self.buffers[like], NamedValue(f"c{self.count}", INDEX)
        body = (Store(target, i, Load(source, i, b.dtype)),)
        return marked(For(i.name, Const(b.size, INDEX), body, "vector"), mode)

    # ---------------------------------------------------------------- which buffers

    def plan(self, loop: Stmt, blocks: Sequence[Block], without: Set[str], single: Set[int]) -> _Plan:
        """Which buffers are held, and how; none of `without`."""
        stored = {a.buffer for b in blocks for a in b.accesses if a.is_store}
        parallel = isinstance(loop, For) and loop.kind == "parallel"
        largest = LARGEST if parallel else self.largest
        small = {n for n in stored if n in self.buffers and 0 < self.buffers[n].size <= largest
                 and self.buffers[n].role in ("temp", "output") and (parallel or self.in_few(n))} - without
        for b in blocks:
            unable = b.is_kernel and b.sizes["elements"] is None and b.sizes["lanes"] is None
            small -= b.banned | b.open | (b.touches if unable else set())
        plan = _Plan()
        room = LANES if parallel else LOOP
        for names, users in _components(small, blocks):
            mode = self.mode(names, users, room, parallel or all(id(b.stmt) in single for b in users))
            if mode is None:
                continue
            held = dict.fromkeys([n for n in sorted(names) if all(
                b.sizes[mode] is not None for b in users if n in b.touches)], mode)
            plan.buffers.update(held)
            for b in users:
                if b.is_kernel and b.sizes[mode] is not None and b.touches & held.keys():
                    plan.kernels[id(b.stmt)] = mode
                    room -= b.sizes[mode]  # type: ignore[operator]
        for b in blocks:  # short kernels on memory are written out too
            if not isinstance(b.stmt, Kernel) or id(b.stmt) in plan.kernels:
                continue
            size = b.sizes["elements"] and unrolled_size(b.stmt.body, "elements")
            few = largest == LARGEST or all(self.buffers[n].size <= largest for n in b.touches & self.buffers.keys())
            if size is not None and size <= room and few:
                plan.kernels[id(b.stmt)] = "elements"
                room -= size
        return plan

    @staticmethod
    def mode(names: set[str], users: Sequence[Block], room: int, parallel: bool) -> Mode | None:
        """How buffers that are used together are held best; None: in memory."""
        fitting: list[Mode] = []
        for mode in ("elements", "lanes"):
            sizes = [b.sizes[mode] for b in users if b.is_kernel]
            able = [s for s in sizes if s is not None]
            if (len(able) == len(sizes) or mode == "lanes") and sum(able) <= room:
                fitting.append(mode)  # type: ignore[arg-type]
        if len(fitting) < 2 or parallel:
            return fitting[0] if fitting else None
        costs = {mode: sum(b.cost(mode, names) for b in users) for mode in fitting}
        return min(fitting, key=lambda mode: costs[mode])

    # ---------------------------------------------------------------- writing

    def declare(self, stmts: tuple[Stmt, ...], private: dict[str, Mode], blocks: dict[int, Block], plan: _Plan,
                ) -> tuple[list[Stmt], tuple[Stmt, ...]]:
        """Declares the `private` buffers as far inside as each can be; marks the loops of kernels."""
        deeper: dict[tuple[int, int], dict[str, Mode]] = {}
        where: dict[str, list[int]] = {}
        for n, stmt in enumerate(stmts if private else ()):
            for name in sorted(_touched(stmt, blocks) & private.keys()):
                where.setdefault(name, []).append(n)
        for n, stmt in enumerate(stmts):
            if blocks_of(stmt):
                alone = {name for name, places in where.items() if places == [n]}
                for name, block in _inner_blocks(stmt, alone, blocks).items():
                    deeper.setdefault((n, block), {})[name] = private[name]
        inside = {name for names in deeper.values() for name in names}
        declared: list[Stmt] = [self.local(name, name, private[name]) for name in where if name not in inside]
        new: list[Stmt] = []
        for n, stmt in enumerate(stmts):
            mode = plan.kernels.get(id(stmt))
            if mode is not None:
                assert isinstance(stmt, Kernel)
                new.append(_inlined(stmt, mode, blocks[id(stmt)]))
                continue
            inner = []
            for number, part in enumerate(blocks_of(stmt)):
                found, body = self.declare(part, deeper.get((n, number), {}), blocks, plan)
                inner.append((*found, *body))
            new.append(with_blocks(stmt, inner))
        return declared, tuple(new)

    # ---------------------------------------------------------------- lanes

    def lanes(self, stmt: Stmt, elsewhere: set[str], in_the_way: set[str], held: Set[str] = frozenset()) -> Stmt:
        """A loop over lanes as a kernel, if every lane's buffers can be its own; else on threads, if that is better and
        it uses none of the buffers `held` in registers around it; else in order, or loops within it."""
        if not isinstance(stmt, For) or stmt.kind != "parallel":
            return self.inner_lanes(stmt, elsewhere, in_the_way, held)
        body, outside = _in_order(stmt.body), held
        private = []
        held = {s.buffer for s in statements(*body) if isinstance(s, Local)}
        own = {node.buffer for node in walk(*body) if isinstance(node, (Load, Store))
               and stmt.index not in names_in(node.index)}  # others have places for all lanes
        for name in sorted(own - held):
            b = self.buffers.get(name)
            if b is None or b.role != "temp" or name in elsewhere:
                continue
            private.append(b)
        inside = list(statements(*body))
        if (len(inside) > LARGE or any(isinstance(s, (Call, Again)) for s in inside)
                or sum(8 * b.size for b in private) > PRIVATE):
            loop = replace(stmt, kind="serial", body=body)
            return loop if buffers_of([loop]) & outside else on_threads(loop, self.buffers, elsewhere)
        locals_ = tuple(Local(b.name, b.dtype, b.size) for b in private)
        flat = self.flattened(body)
        loop = replace(stmt, body=(*locals_, *flat))
        alike = without_branches(loop)
        source = next((k.source for k in statements_outside(stmt.body) if isinstance(k, Kernel) and k.source), None)
        vector = alike is not None and _in_lanes(alike)
        return Kernel("lanes", (replace(alike, kind="vector") if vector else loop,), source)  # type: ignore[arg-type]

    def inner_lanes(self, stmt: Stmt, elsewhere: set[str], in_the_way: set[str], held: Set[str]) -> Stmt:
        """Loops over lanes inside of one in order: as kernels, if lanes are run several at once and use none of the
        arrays `held` in registers outside of them; else in order. Those of them that are `in_the_way` are noted, if
        lanes use memory anyway."""
        if not any(isinstance(s, For) and s.kind == "parallel" for s in statements_outside([stmt])):
            return stmt
        blocks = blocks_of(stmt)
        touched = [buffers_of(block) for block in blocks]
        new = []
        for number, block in enumerate(blocks):
            shared = elsewhere.union(*(t for n, t in enumerate(touched) if n != number))
            mine = held | {s.buffer for s in block if isinstance(s, Local)}
            used = [buffers_of([s]) for s in block]
            users = Counter(name for names in used for name in names)
            inner = []
            for s, names in zip(block, used, strict=True):
                others = {name for name in names if name in shared or users[name] > 1}
                if not isinstance(s, For) or s.kind != "parallel":
                    inner.append(self.inner_lanes(s, others, in_the_way, mine))
                    continue
                lanes = self.lanes(s, others - mine, in_the_way)
                fine = isinstance(lanes, Kernel) and any(isinstance(f, For) and f.kind == "vector" for f in lanes.body)
                if isinstance(lanes, Kernel) and any(
                        self.buffers[n].role != "input" for n in (others - mine) & self.buffers.keys()):
                    in_the_way |= names & mine
                fine = fine or (isinstance(lanes, For) and lanes.kind == "parallel")
                inner.append(lanes if fine and not names & mine else _in_order([s])[0])
            new.append(tuple(inner))
        return with_blocks(stmt, new)

    def flattened(self, stmts: Sequence[Stmt]) -> tuple[Stmt, ...]:
        """Kernels inside of a kernel are plain statements, in order, with names of their own."""
        out: list[Stmt] = []
        for stmt in stmts:
            if isinstance(stmt, Kernel):
                self.count += 1
                out += _renamed_apart(stmt.body, f"l{self.count}.")
            else:
                out.append(map_blocks(self.flattened, stmt))
        return tuple(out)


def _are_many(lanes: For) -> bool:
    """Whether lanes fill vectors, so that all of a lane's elements are better vectors of these."""
    return not isinstance(lanes.extent, Const) or lanes.extent.value >= LEAST


def _count_lanes(stmts: Sequence[Stmt]) -> int:
    """How many loops over lanes run several at once."""
    return sum(isinstance(s, Kernel) and s.name == "lanes" for s in statements_outside(stmts))


def _in_lanes(loop: For) -> bool:
    """Whether a loop's iterations are best run several at once: the same statements for each, none of them divided
    into lanes, and no division of integers by a value, for which machines have no instruction in lanes."""
    if not fits(loop) or any(isinstance(s, (If, Call)) for s in statements(*loop.body)):
        return False
    return not any(isinstance(node, Op) and node.name in ("div", "rem") and node.dtype[0] in "iu"
                   and not isinstance(node.args[1], Const) for node in walk(*loop.body))


def _copies(loops: Sequence[Stmt]) -> list[Stmt]:
    """One kernel for copies between memory and registers."""
    return [Kernel("hold", tuple(loops), inline=True)] if loops else []


def _components(names: set[str], blocks: Sequence[Block]) -> list[tuple[set[str], list[Block]]]:
    """Buffers in groups that kernels use together, and who uses each group."""
    group: dict[str, set[str]] = {n: {n} for n in sorted(names)}
    for b in blocks:
        together = sorted(b.touches & names) if b.is_kernel else []
        for other in together[1:]:
            first, second = group[together[0]], group[other]
            if first is not second:
                first, second = (first, second) if len(first) >= len(second) else (second, first)
                first |= second
                group.update(dict.fromkeys(second, first))
    found: dict[int, tuple[set[str], list[Block]]] = {id(g): (g, []) for g in group.values()}
    for b in blocks:
        for number in dict.fromkeys(id(group[name]) for name in sorted(b.touches & names)):
            found[number][1].append(b)
    return list(found.values())


def _inlined(kernel: Kernel, mode: Mode, block: Block) -> Kernel:
    """The kernel on registers, its scratch memory too where that can be."""
    body: list[Stmt] = []
    for stmt in kernel.body:
        if isinstance(stmt, Local) and stmt.buffer not in block.open and stmt.size <= LARGEST:
            stmt = replace(stmt, held=mode)
        body.append(marked(stmt, mode))
    return replace(kernel, body=tuple(body), inline=True)


def _touched(stmt: Stmt, blocks: dict[int, Block]) -> set[str]:
    """The buffers that a statement uses, what is inside of it included."""
    return set().union(*(blocks[id(s)].touches for s in statements_outside([stmt])))


def _inner_blocks(stmt: Stmt, names: set[str], blocks: dict[int, Block]) -> dict[str, int]:
    """For each of the buffers that only one block of `stmt` uses, which sets all that it reads in each iteration:
    the number of that block."""
    used = [set().union(*(_touched(s, blocks) for s in block)) & names for block in blocks_of(stmt)]
    outside = blocks[id(stmt)].touches
    found: dict[str, int] = {}
    for number, block in enumerate(blocks_of(stmt)):
        alone = used[number] - outside - set().union(*(b for n, b in enumerate(used) if n != number))
        if alone:
            covered = Covered(blocks, alone)
            covered.block(block, frozenset())
            found.update(dict.fromkeys(alone - {name for name, _ in covered.exposed}, number))
    return found


# ---------------------------------------------------------------- lanes


def _in_order(stmts: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """Loops over lanes run in order; kernels are as they were."""
    return tuple(replace(s, kind="serial", body=_in_order(s.body)) if isinstance(s, For) and s.kind == "parallel"
                 else map_blocks(_in_order, s) for s in stmts)


def _renamed_apart(stmts: Sequence[Stmt], prefix: str) -> tuple[Stmt, ...]:
    """The body of a kernel with its own names made different from all others; `parallel` loops in order."""
    inside = list(statements(*stmts))
    names = {s.index if isinstance(s, For) else s.name for s in inside if isinstance(s, (For, Let, Mutable))}
    buffers = {s.buffer for s in inside if isinstance(s, Local)}
    return _in_order(rename(stmts, {b: prefix + b for b in buffers}, {n: prefix + n for n in names}))
