"""Vector loops get their width: as many lanes as fit into a register of the target.

    vector j < 1024: s add= x[j]      ->      vector(16) j < 1024: s add= x[j]          (f32, AVX-512)

The width follows from the widest type that the body computes with. A loop that cannot run in lanes
(it branches differently in each, or has scratch memory of its own) becomes serial.

After this pass `vector` loops have a width of 2 or more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from anima.compiler.emitting.interleave import LONGEST_ROW
from anima.compiler.emitting.memory import LONGEST
from anima.compiler.emitting.value import COMPLEX_TYPES, itemsize
from anima.compiler.ir.affine import across, along, largest, steps
from anima.compiler.ir.costs import cost
from anima.compiler.ir.loops import (
    INDEX,
    Assign,
    Call,
    Const,
    Expr,
    For,
    If,
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
    lets_of,
    map_blocks,
    names_in,
    statements,
    varying_names,
    walk,
    with_kernels,
)
from anima.compiler.machine.target import Target
from anima.compiler.scalars.small import HALVES
from anima.compiler.scheduling.tile import simple
from anima.util import replace

_MOVES = frozenset(("select_n", "bitcast"))  # operations that compute nothing
PAST_CACHES = 1 << 23  # bytes of a result from which to have its lines in caches takes longer than to do without
_MOST_ROWS = 16  # that are transposed in registers
_APART = 16  # lanes whose small elements are loaded one by one: more are in several registers
_MOST_LANES = 64  # of several vectors, whose masks are one
_BESIDE = 12.0  # nanoseconds of arithmetic beside a load or store, by which it is not waited for


def vectorize(program: Program, target: Target) -> Program:
    """Chooses the width of each vector loop."""
    large = frozenset(b.name for b in program.buffers if b.size * itemsize(b.dtype) >= PAST_CACHES)
    return replace(program, body=with_kernels(
        lambda kernel: replace(kernel, body=_block(kernel.body, target, large)), program.body))


def _block(stmts: Iterable[Stmt], target: Target, large: frozenset[str]) -> tuple[Stmt, ...]:
    return tuple(_widen(s, target) if isinstance(s, For) and s.kind == "vector" and s.width == 1
                 else _squared(map_blocks(lambda block: _block(block, target, large), s), target, large) for s in stmts)


def _squared(stmt: Stmt, target: Target, large: frozenset[str]) -> Stmt:
    """A loop over rows whose lanes load across them, in squares: vectors are transposed in registers."""
    if not (isinstance(stmt, For) and stmt.kind == "each"):
        return stmt
    *before, lanes = stmt.body
    if not (isinstance(lanes, For) and lanes.kind == "vector" and simple(lanes.body)):
        return stmt
    loads = across(stmt)
    stores = [s for s in lanes.body if isinstance(s, Store)]
    stored = {s.buffer for s in stores}
    if not loads or any(load.buffer in stored or load.dtype in COMPLEX_TYPES for load in loads):
        return stmt
    kind: Literal["square", "stream"] = "square"
    longest, element = LONGEST_ROW, max(itemsize(load.dtype) for load in loads)
    if _fills_lines(stmt, stores, min(lanes.width, target.line // element), target, large):
        kind, longest = "stream", target.line
    size = min(lanes.width, longest // element, _MOST_ROWS)
    if size < 4 or min(largest(stmt.extent) or 0, largest(lanes.extent) or 0) < size:
        return stmt
    return replace(stmt, kind=kind, width=size, body=(*before, replace(lanes, width=size)))


def _fills_lines(rows: For, stores: Sequence[Store], lanes: int, target: Target, large: frozenset[str]) -> bool:
    """Whether the rows of squares are whole lines of large results, if the first is one."""
    lets = lets_of(statements(*rows.body), INDEX)
    return target.vector_bytes == target.line and all(
        s.buffer in large and s.value.dtype not in ("bool", *COMPLEX_TYPES)
        and lanes * itemsize(s.value.dtype) == target.line and lanes <= _MOST_ROWS
        and (steps(s.index, lets).get(rows.index) or 1) % lanes == 0 for s in stores)


def _widen(loop: For, target: Target) -> For:
    width = target.vector_bytes // widest(loop.body)
    if width > _APART and _brought_together(loop):
        width = _APART
    if isinstance(loop.extent, Const):
        extent = max(int(loop.extent.value), 1)
        masked = target.has("avx512f")
        while width > 1 and (width // 2 >= extent if masked else width > extent):
            width //= 2
    if width < 2 or not fits(loop):
        return replace(loop, kind="serial", width=1)
    return _rows_along(replace(loop, width=width * _together(loop, width, target)))


def _rows_along(loop: For) -> For:
    """A loop over lanes, with loops in order in it that take several rows at a time, if what these load or store goes
    along memory, and in long steps across the lanes: vectors are transposed in registers."""
    inside = list(statements(*loop.body))
    lets = lets_of(inside, INDEX)
    own = {s.buffer for s in inside if isinstance(s, Local)}

    def far(buffer: str, index: Expr) -> bool:
        step = steps(index, lets).get(loop.index, 0)
        return buffer not in own and step is not None and abs(step) > LONGEST

    def block(stmts: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(change(map_blocks(block, s)) for s in stmts)

    def change(stmt: Stmt) -> Stmt:
        if not (isinstance(stmt, For) and stmt.kind == "serial") or any(
                isinstance(s, For) and s.kind == "serial" and s.width > 1 for s in statements(*stmt.body)):
            return stmt
        loads, stores = along(stmt)
        dtypes = [*(n.dtype for n in loads if far(n.buffer, n.index)),
                  *(s.value.dtype for s in stores if far(s.buffer, s.index))]
        parts = 2 if COMPLEX_TYPES.intersection(dtypes) else 1
        size = min(loop.width // parts, LONGEST_ROW // max(map(itemsize, dtypes), default=LONGEST_ROW))
        count = largest(stmt.extent) or 0
        if size > 4 and count % size and count % 4 == 0:
            size = 4
        return replace(stmt, width=size) if (2 if "c128" in dtypes else 4) <= size <= count else stmt

    return replace(loop, body=block(loop.body))


def _brought_together(loop: For) -> bool:
    """Whether lanes load or store elements of one or two bytes that lie apart, for which there is no instruction."""
    lets = lets_of(statements(*loop.body), INDEX)
    return any(
        isinstance(node, (Load, Store)) and steps(node.index, lets).get(loop.index, 0) not in (0, 1)
        and itemsize(node.dtype if isinstance(node, Load) else node.value.dtype) < 4 for node in walk(*loop.body))


def _together(loop: For, width: int, target: Target) -> int:
    """How many vectors of lanes go through loops in order at once: several, so that one computes while another waits
    for its results, if there is little else to wait for, and room in registers."""
    inside = list(statements(*loop.body))
    in_order = [s for s in inside if isinstance(s, For) and s.kind == "serial"]
    if not in_order or any(isinstance(s, While) for s in inside) or not isinstance(loop.extent, Const):
        return 1
    held = {s.buffer for s in inside if isinstance(s, Local)}
    lets = lets_of(inside)
    indices = {s.index for s in in_order}
    varying = varying_names(loop)  # what is loaded for all lanes at once is not waited for
    loads = {n for n in walk(*in_order) if isinstance(n, (Load, Store)) and n.buffer not in held
             and not varying.isdisjoint(names_in(n.index))}
    fixed = {n for n in loads if isinstance(n, Load) and indices.isdisjoint(steps(n.index, lets))}
    values = len(fixed) + sum(s.size for s in inside if isinstance(s, Local)) + sum(
        isinstance(s, Mutable) for s in inside)
    if sum(cost(s) for s in in_order[0].body) < _BESIDE * len(loads - fixed):
        return 1
    if int(loop.extent.value) >= 8 * width and 4 * values <= target.registers and 4 * width <= _MOST_LANES:
        return 4
    few = sum(isinstance(s, Mutable) for s in inside) <= target.registers // 4
    return 2 if few and int(loop.extent.value) >= 2 * width and 2 * width <= _MOST_LANES else 1


def widest(stmts: Sequence[Stmt]) -> int:
    """The size in bytes of the widest element that statements compute with."""
    size = 1
    dtypes = set()
    for node in walk(*stmts):
        kind = type(node)
        if kind is Op:
            if node.dtype in HALVES and node.name not in _MOVES:  # type: ignore[union-attr]
                size = max(size, 4)     # computed in f32
            elif node.name == "cast" and node.args[0].dtype == INDEX:  # type: ignore[union-attr]
                size = max(size, 2)     # an index takes more than a byte
        elif kind is not Load and kind is not Const and kind is not NamedValue:
            continue
        dtypes.add(node.dtype)  # type: ignore[union-attr]
    for dtype in dtypes - {INDEX, "bool"}:
        size = max(size, itemsize(dtype) // (2 if dtype in COMPLEX_TYPES else 1))
    return size


def fits(loop: For) -> bool:
    """Whether the iterations of a loop can run in lanes: what controls them must not differ between lanes."""
    inside = list(statements(*loop.body))
    own = {stmt.name for stmt in inside if isinstance(stmt, (Let, Mutable))}
    varying = varying_names(loop)
    held = {s.buffer for s in inside if isinstance(s, Local) and s.held in ("elements", "apart")}  # a lane's own
    apart = {s.buffer for s in inside if isinstance(s, Local) and s.held == "apart"}
    if apart and any(isinstance(node, (Load, Store)) and node.buffer in apart and not varying.isdisjoint(
            names_in(node.index)) for node in walk(*loop.body)):
        return False
    for stmt in inside:
        match stmt:
            case Local(held="" | "lanes") | Call():
                return False
            case Let(value=Op(name="foreign")):  # numbers that only a mask hides might be none for it
                return False
            case For(kind="parallel" | "vector" | "whole"):
                return False
            case For(extent=extent) if not varying.isdisjoint(names_in(extent, True)):
                return False
            case If(cond=cond) if not varying.isdisjoint(names_in(cond, True)):
                return False
            case Assign(name=name) if name not in own:
                return False
            case Store(buffer=buffer, index=index) if buffer not in held and varying.isdisjoint(names_in(index)):
                return False
    return True
