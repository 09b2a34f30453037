"""What an index says: how it depends on loops, and its value where numbers are known.

    steps(i * 1024 + j % 7 + 3, {}) == {"i": 1024, "j": None}
    known(j * 2 + 1, {"j": [0, 1, 2, 3]}) == [1, 3, 5, 7]          in the lanes of a loop that runs as a whole
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anima.compiler.ir.loops import (
    INDEX,
    Affine,
    Const,
    Expr,
    For,
    Let,
    Load,
    NamedValue,
    Op,
    Stmt,
    Store,
    blocks_of,
    children,
    lets_of,
    walk,
)

WORDS = frozenset(("f32", "i32", "u32", "f64", "i64", "u64", "c64", "c128"))  # of parts of 4 or 8 bytes


def steps(expr: Expr, lets: Mapping[str, Expr]) -> dict[str, int | None]:
    """What each name in an expression is multiplied by; None where the expression is not linear in it. `lets` has the
    values of names that stand for expressions."""
    found: dict[str, int | None] = {}
    pending: list[tuple[Expr | Stmt, int | None]] = [(expr, 1)]
    while pending:
        node, factor = pending.pop()
        if type(node) is NamedValue:
            before = found.get(node.name, 0)
            if before is None and factor is None:
                continue
            found[node.name] = None if before is None or factor is None else before + factor
            if node.name in lets:
                pending.append((lets[node.name], factor))
        elif type(node) is Affine and factor is not None:
            pending += ((value, c * factor) for value, c in node.terms)
        else:
            pending += ((child, None) for child in children(node))
    return found


def injective(expr: Expr, extents: Sequence[tuple[str, int]], lets: Mapping[str, Expr]) -> bool:
    """Whether different iterations of the loops (index and extent of each) surely give different indices."""
    found, moves = steps(expr, lets), []
    for name, extent in extents:
        step = found.get(name, 0)
        if step is None:
            return False
        if extent > 1:
            moves.append((abs(step), extent))
    reach = 0
    for step, extent in sorted(moves):
        if step <= reach:
            return False
        reach += step * (extent - 1)
    return True


@dataclass(slots=True)
class LoopNest:
    """Loops inside of each other, outside in; how often each runs at most; the lets between them; the inner body."""

    loops: list[For]
    extents: list[tuple[str, int]]
    between: list[Let]
    body: tuple[Stmt, ...]

    @property
    def lets(self) -> dict[str, Expr]:
        return lets_of((*self.between, *self.body))


def largest(extent: Expr) -> int | None:
    """How often a loop runs at most, where that is known."""
    match extent:
        case Const(value=most) | Op(name="min", args=(Const(value=most), _) | (_, Const(value=most))):
            return int(most)
    return None


def nest_of(stmts: Sequence[Stmt]) -> LoopNest | None:
    """The nest that statements are, if nothing but lets stands between its loops, and lets and stores inside."""
    loops: list[For] = []
    extents: list[tuple[str, int]] = []
    between: list[Let] = []
    while stmts and isinstance(loop := stmts[-1], For):
        extent = largest(loop.extent)
        if extent is None or not all(isinstance(s, Let) for s in stmts[:-1]):
            return None
        between += stmts[:-1]  # type: ignore[arg-type]
        loops.append(loop)
        extents.append((loop.index, extent))
        stmts = loop.body
    return LoopNest(loops, extents, between, tuple(stmts)) if all(isinstance(s, (Let, Store)) for s in stmts) else None


def index_lets(body: Sequence[Stmt]) -> list[Let]:
    """Those of a body's lets that name indices made of indices alone."""
    found: list[Let] = []
    others: set[str] = set()
    for stmt in body:
        if isinstance(stmt, Let):
            nodes = list(walk(stmt.value))
            if stmt.value.dtype == INDEX and not any(
                    isinstance(n, Load) or (isinstance(n, NamedValue) and n.name in others) for n in nodes):
                found.append(stmt)
            else:
                others.add(stmt.name)
    return found


def across(loop: For) -> list[Load]:
    """What a loop over rows, with a loop over lanes last in it, loads along the rows, one element after the other, and
    in steps across the lanes."""
    *before, lanes = loop.body
    if not isinstance(lanes, For) or not all(isinstance(s, Let) for s in before):
        return []
    lets = lets_of((*before, *lanes.body))
    found: dict[Load, None] = {}
    for node in walk(*lanes.body):
        if isinstance(node, Load):
            step = steps(node.index, lets)
            if step.get(loop.index, 0) == 1 and step.get(lanes.index, 0) not in (None, 0, 1, -1):
                found[node] = None
    return list(found)


def along(loop: For) -> tuple[dict[Load, int], dict[Store, int]]:
    """What the statements of a loop in order load and store from one element to the next (1), or back (-1): numbers
    whose parts have 4 or 8 bytes; of stores, those to buffers that the loop does nothing else with."""
    lets = lets_of(loop.body)
    every = list(walk(*loop.body))
    written = Counter(n.buffer for n in every if isinstance(n, Store))
    read = {n.buffer for n in every if isinstance(n, Load)}

    def by(index: Expr, dtype: str) -> int:
        step = steps(index, lets).get(loop.index, 0)
        return step if step in (1, -1) and dtype in WORDS else 0  # type: ignore[return-value]

    loads = dict.fromkeys(n for s in loop.body if not blocks_of(s) for n in walk(s) if isinstance(n, Load))
    stores = [s for s in loop.body if isinstance(s, Store)]
    loaded = {n: by(n.index, n.dtype) for n in loads if n.buffer not in written}
    stored = {s: by(s.index, s.value.dtype) for s in stores
              if s.op is None and written[s.buffer] == 1 and s.buffer not in read}
    return {n: step for n, step in loaded.items() if step}, {s: step for s, step in stored.items() if step}


# ---------------------------------------------------------------- numbers

Numbers = Any  # an int, a bool, or an array of such: one for each lane, or for each iteration of loops

_RULES: dict[str, Callable[..., Numbers]] = {
    "div": operator.floordiv, "rem": operator.mod, "max": np.maximum, "min": np.minimum, "lt": operator.lt,
    "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
    "and": np.logical_and, "or": np.logical_or, "not": np.logical_not, "cast": lambda x: x,
    "select_n": lambda which, no, yes: np.where(which, yes, no)}


def known(expr: Expr, numbers: Mapping[str, Numbers]) -> Numbers | None:
    """The value of an expression of indices and conditions on them; `numbers` are those of names. None: not known."""
    kind = type(expr)
    if kind is Const:
        return expr.value if expr.dtype in (INDEX, "bool") else None  # type: ignore[union-attr]
    if kind is NamedValue:
        return numbers.get(expr.name)  # type: ignore[union-attr]
    if kind is Load or expr.dtype not in (INDEX, "bool"):
        return None
    values = [known(part, numbers) for part in children(expr)]  # type: ignore[arg-type]
    if any(value is None for value in values):
        return None
    if isinstance(expr, Affine):
        return sum(map(operator.mul, values, expr.coefficients), expr.const)
    assert isinstance(expr, Op)
    return _RULES[expr.name](*values) if expr.name in _RULES else None
