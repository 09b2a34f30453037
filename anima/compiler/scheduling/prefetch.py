"""Rows that are looked up are fetched some iterations before they are used: no machine foresees where they lie.

    for i < 32:                                for i < 32:
      n = index(ids[i])                          n = index(ids[i])
      vector j < 128:                    ->      n.ahead = index(ids[min(i + 8, 31)])
        s[j] = s[j] + x[n * 128 + j]             vector j < 128:
                                                   prefetch x[n.ahead * 128 + j]
                                                   s[j] = s[j] + x[n * 128 + j]

Only what a nest reads, and does not write, is looked at ahead of time, in bounds; a row there may belong to an
iteration of the loop around, or to none.
"""

from __future__ import annotations

from collections.abc import Mapping

from anima.compiler.emitting.value import itemsize
from anima.compiler.ir.affine import steps
from anima.compiler.ir.costs import extent_of
from anima.compiler.ir.loops import (
    INDEX,
    Affine,
    Const,
    Expr,
    For,
    Kernel,
    Let,
    Load,
    Mutable,
    NamedValue,
    Op,
    Prefetch,
    Program,
    Stmt,
    Store,
    affine,
    lets_of,
    map_blocks,
    names_in,
    statements,
    walk,
    with_blocks,
    with_kernels,
)
from anima.compiler.machine.target import Target
from anima.util import replace

_AHEAD = 8192  # bytes of rows from their fetch to their use, about
_MOST = 16     # iterations from the one to the other


def prefetch(program: Program, target: Target) -> Program:
    """Fetches rows at looked-up places of large buffers before they are used."""
    sizes = {b.name: b.size for b in program.buffers}
    large = {b.name for b in program.buffers if b.size * itemsize(b.dtype) > target.second_cache}
    if not large:
        return program
    body = with_kernels(lambda kernel: _kernel(kernel, sizes, large), program.body)
    return program if body is program.body else replace(program, body=body)


def _kernel(kernel: Kernel, sizes: Mapping[str, int], large: set[str]) -> Kernel:
    written = {s.buffer for s in statements(*kernel.body) if isinstance(s, Store)}
    read = {name: size for name, size in sizes.items() if name not in written}

    def ahead(stmt: Stmt) -> Stmt:
        stmt = map_blocks(lambda block: tuple(map(ahead, block)), stmt)
        return _Rows(stmt, read, large).loop() if isinstance(stmt, For) and stmt.width == 1 else stmt

    body = tuple(map(ahead, kernel.body))
    return kernel if body == kernel.body else replace(kernel, body=body)


class _Rows:
    """A loop whose iterations look up rows; `read` are the sizes of buffers that do not change.

    `moving` are names of values that differ between iterations, `looked` those of them that come from memory, `early`
    those that are needed ahead of time.
    """

    def __init__(self, outer: For, read: Mapping[str, int], large: set[str]) -> None:
        self.outer, self.read, self.large = outer, read, large
        self.lets = lets_of(outer.body)
        self.moving, self.looked, self.early = {outer.index}, set[str](), set[str]()
        for name, value in self.lets.items():
            names = names_in(value)
            if not names.isdisjoint(self.moving):
                self.moving.add(name)
                if not names.isdisjoint(self.looked) or any(isinstance(node, Load) for node in walk(value)):
                    self.looked.add(name)
        self.distance = 0

    def loop(self) -> For:
        """The loop with its rows fetched early; itself if it looks up none."""
        body: list[Stmt] = list(self.outer.body)
        rows = [(n, s, found) for n, s in enumerate(body) if isinstance(s, For) and s.width > 1
                and s.kind in ("vector", "whole") and (found := self.rows(s))]
        if not rows:
            return self.outer
        size = sum(itemsize(load.dtype) * extent_of(lanes.extent) for _, lanes, found in rows for load in found)
        self.distance = min(max(_AHEAD // size, 1), _MOST)
        for n, lanes, found in rows:
            fetched = [Prefetch(replace(load, index=self.ahead(load.index))) for load in found]
            body[n] = with_blocks(lanes, [(*fetched, *lanes.body)])
        new = [Let(f"{name}.ahead", self.ahead(value)) for name, value in reversed(self.lets.items())
               if name in self.early]
        first = rows[0][0]
        return replace(self.outer, body=(*body[:first], *reversed(new), *body[first:]))

    def rows(self, lanes: For) -> list[Load]:
        """The rows that a loop over lanes loads at places that are looked up in the loop around it."""
        inside = {s.index if isinstance(s, For) else s.name for s in statements(*lanes.body)
                  if isinstance(s, (Let, Mutable, For))}
        found: dict[Load, None] = {}
        for node in walk(*lanes.body):
            if isinstance(node, Load) and node.buffer in self.large and node.buffer in self.read:
                step = steps(node.index, {})
                names = step.keys() - {lanes.index}
                if (step.get(lanes.index) == 1 and inside.isdisjoint(names) and not self.looked.isdisjoint(names)
                        and all(map(self.foreseen, names))):
                    found[node] = None
        return list(found)

    def foreseen(self, name: str) -> bool:
        """Whether a value can be had ahead of time: what it comes from is linear in iterations, and read alone."""
        if name not in self.moving or name == self.outer.index:
            return True
        value = self.lets[name]
        return all(map(self.foreseen, names_in(value))) and all(
            node.buffer in self.read and self.step(node) is not None and self.looked.isdisjoint(names_in(node.index))
            and not any(isinstance(inner, Load) for inner in walk(node.index))
            for node in walk(value) if isinstance(node, Load))

    def step(self, load: Load) -> int | None:
        """How far a load moves from one iteration to the next; None: not evenly."""
        return steps(load.index, self.lets).get(self.outer.index, 0)

    def ahead(self, expr: Expr) -> Expr:
        """The value of an expression some iterations later."""
        match expr:
            case NamedValue(name=self.outer.index):
                return affine(self.distance, (expr, 1))
            case NamedValue(name=name) if name in self.moving:
                self.early.add(name)
                return replace(expr, name=f"{name}.ahead")
            case Affine(const=const):
                return affine(const, *((self.ahead(value), c) for value, c in expr.terms))
            case Op(args=args):
                return replace(expr, args=tuple(map(self.ahead, args)))
            case Load(buffer=buffer, index=index) if step := self.step(expr):
                name, end = ("min", self.read[buffer] - 1) if step > 0 else ("max", 0)
                return replace(expr, index=Op(name, (self.ahead(index), Const(end, INDEX)), INDEX))
        return expr
