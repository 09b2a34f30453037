"""Long sums of few results are taken in parts, so that the whole grid has something to do.

    var s = 0.0                                      each p < 64:
    reduce j < 1000000: s += x[j]           ->         var s = -0.0
    y[0] = s                                           reduce j < 15625: s += x[p*15625 + j]
                                                       part[p] = s
                                                     var s = 0.0
                                                     reduce p < 64: s += part[p]
                                                     y[0] = s

How many parts there are depends on sizes alone, so that results are the same on every grid.
"""

from __future__ import annotations

from collections.abc import Sequence

from anima.compiler.grid.target import GridTarget
from anima.compiler.grid.teams import Nest, around, nest
from anima.compiler.ir.affine import steps
from anima.compiler.ir.loops import (
    INDEX,
    Accumulate,
    Buffer,
    Const,
    Expr,
    For,
    Kernel,
    Let,
    Load,
    Mutable,
    NamedValue,
    Op,
    Program,
    Stmt,
    Store,
    affine,
    lets_of,
    map_blocks,
    statements,
    walk,
)
from anima.compiler.ir.neutral import neutral
from anima.compiler.storage.buffers import rename
from anima.util import replace

LEAST = 4096  # iterations of a reduction that is worth cutting


def parts(program: Program, target: GridTarget) -> Program:
    """Cuts long reductions of few results."""
    worker = _Parts(target)
    body = worker.block(program.body)
    return replace(program, body=body, buffers=(*program.buffers, *worker.buffers))


class _Parts:
    def __init__(self, target: GridTarget) -> None:
        self.target = target
        self.buffers: list[Buffer] = []

    def block(self, stmts: Sequence[Stmt]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for stmt in stmts:
            if isinstance(stmt, Kernel) and not stmt.inline:
                out += self.kernel(stmt)
            else:
                out.append(map_blocks(self.block, stmt))
        return tuple(out)

    def kernel(self, kernel: Kernel) -> list[Kernel]:
        """A kernel, or two that do the same."""
        whole = [kernel]
        if len(kernel.body) == 1 and isinstance(kernel.body[0], For) and kernel.body[0].kind == "each":
            outer = nest(kernel.body[0])
        else:
            outer = Nest([], kernel.body)
        if not outer.loops and any(isinstance(s, For) and s.kind == "each" for s in kernel.body):
            return whole
        places = [k for k, s in enumerate(outer.body) if isinstance(s, For)]
        if len(places) != 1 or outer.body[places[0]].kind != "reduce":  # type: ignore[union-attr]
            return whole
        loop = outer.body[places[0]]
        before, after = outer.body[:places[0]], outer.body[places[0] + 1:]
        assert isinstance(loop, For)
        if (not all(isinstance(s, (Let, Mutable)) for s in before) or not isinstance(loop.extent, Const)
                or not all(isinstance(s, (Let, Store)) for s in after)):
            return whole
        inside = list(statements(*loop.body))
        if any(not isinstance(s, (Let, Accumulate, For)) for s in inside):
            return whole
        sums = {s.name: s for s in inside if isinstance(s, Accumulate)}
        variables = {s.name: s for s in before if isinstance(s, Mutable)}
        if not sums or not sums.keys() <= variables.keys():
            return whole
        count = self.count(outer, loop)
        return whole if count < 2 else self.cut(kernel, outer, loop, before, after, sums, variables, count)

    def count(self, outer: Nest, loop: For) -> int:
        """In how many parts a reduction is to be cut; 1: not at all."""
        extent = int(loop.extent.value)  # type: ignore[union-attr]
        total = nest(loop).count
        results = outer.count
        team = 1 if self.across(outer, loop) else self.target.block
        if total < LEAST or results * min(team, self.target.warp) >= self.target.at_once // 4:
            return 1
        wanted = max(1, self.target.at_once // (results * team))
        return min(wanted, extent, max(1, total // (64 if team == 1 else 8 * team)))

    def across(self, outer: Nest, loop: For) -> bool:
        """Whether results beside each other are made of what is beside each other in memory."""
        if not outer.loops:
            return False
        last = outer.loops[-1][0]
        lets = lets_of(statements(*outer.body))
        found = [steps(n.index, lets) for n in walk(*loop.body) if isinstance(n, Load)]
        return any(f.get(last) == 1 for f in found)

    def cut(self, kernel: Kernel, outer: Nest, loop: For, before: Sequence[Stmt], after: Sequence[Stmt],
            sums: dict[str, Accumulate], variables: dict[str, Mutable], count: int) -> list[Kernel]:
        extent = int(loop.extent.value)  # type: ignore[union-attr]
        size = -(-extent // count)
        count = -(-extent // size)
        part = NamedValue("part", INDEX)
        length: Expr = Const(size, INDEX)
        if extent % size:
            length = Op("min", (Const(size, INDEX), affine(extent, (part, -size))), INDEX)
        index = affine(0, (part, size), (NamedValue(loop.index, INDEX), 1))
        body = rename(loop.body, {}, {}, {loop.index: index})  # type: ignore[dict-item]
        lets = [s for s in before if isinstance(s, Let)]
        results = outer.count
        row: Expr = Const(0, INDEX)
        for name, n in outer.loops:
            row = affine(0, (row, n), (NamedValue(name, INDEX), 1))
        first = self.across(outer, loop)
        place = affine(0, (part, results), (row, 1)) if first else affine(0, (row, count), (part, 1))
        buffers = {}
        for name in sums:
            dtype = variables[name].dtype
            buffers[name] = f"cut{len(self.buffers)}"
            self.buffers.append(Buffer(buffers[name], dtype, results * count, "temp"))
        inner: tuple[Stmt, ...] = (
            *lets, *(Mutable(n, variables[n].dtype, Const(neutral(s.op, variables[n].dtype), variables[n].dtype))
                     for n, s in sums.items()),
            For(loop.index, length, body, "reduce"),
            *(Store(buffers[n], place, NamedValue(n, variables[n].dtype)) for n in sums))
        loops = [("part", count), *outer.loops] if first else [*outer.loops, ("part", count)]
        one = Kernel(f"{kernel.name}_parts", around(loops, inner, "each"), kernel.source)
        again: tuple[Stmt, ...] = (
            *before, For("part", Const(count, INDEX), tuple(
                Accumulate(n, s.op, Load(buffers[n], place, variables[n].dtype)) for n, s in sums.items()), "reduce"),
            *after)
        return [one, Kernel(kernel.name, around(outer.loops, again, "each"), kernel.source)]
