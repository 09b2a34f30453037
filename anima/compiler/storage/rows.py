"""Rows of accumulators held in one vector: what the columns of a product add up.

    local row: f32[10]                             local row: f32[10] in lanes
    vector i < 10: row[i] = 0.0                    whole(16) i < 10: row[i] = 0.0
    for k < 10:                            ->      for k < 10:
      vector j < 10: row[j] = row[j] + ...           whole(16) j < 10: row[j] = row[j] + ...
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

from anima.compiler.ir.loops import (
    INDEX,
    Again,
    Const,
    For,
    Kernel,
    Let,
    Load,
    Local,
    NamedValue,
    Stmt,
    Store,
    map_blocks,
    walk,
)
from anima.compiler.scheduling.vectorize import fits
from anima.compiler.storage.accesses import LARGEST, marked
from anima.compiler.storage.buffers import buffers_of
from anima.util import replace


def hold_rows(stmts: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Statements in which the rows that serial loops add to are in registers; the same ones if there are none."""
    out: list[Stmt] = []
    changed: dict[int, Kernel] = {}
    for stmt in stmts:
        if type(stmt) is Let:
            out.append(stmt)
            continue
        if type(stmt) is Again:
            stmt = Again(changed[id(stmt.kernel)], stmt.names) if id(stmt.kernel) in changed else stmt
        elif type(stmt) is not Kernel:
            stmt = map_blocks(hold_rows, stmt)
        elif not stmt.inline and (body := hold_rows(stmt.body)) is not stmt.body:
            kernel, stmt = stmt, replace(stmt, body=body)
            changed[id(kernel)] = stmt
        out.append(stmt)
    rows = {s.buffer for s in out if type(s) is Local and not s.held and 1 < s.size <= LARGEST and _fits(s, out)}
    if not rows:
        return stmts if all(map(operator.is_, out, stmts)) else tuple(out)
    return tuple(replace(s, held="lanes") if isinstance(s, Local) and s.buffer in rows else _whole(s, rows)
                 for s in out)


def _fits(row: Local, stmts: Sequence[Stmt]) -> bool:
    """Whether a serial loop adds to a row, and all loops that use it do so element by element."""
    users = [s for s in stmts if row.buffer in buffers_of((s,))]
    return (any(isinstance(s, For) and s.kind == "serial" for s in users)
            and all(_element_by_element(s, row) for s in users))


def _element_by_element(stmt: Stmt, row: Local) -> bool:
    if isinstance(stmt, For) and stmt.kind == "vector":
        return (isinstance(stmt.extent, Const) and stmt.extent.value == row.size and fits(stmt)
                and all(node.index == NamedValue(stmt.index, INDEX) for node in walk(*stmt.body)
                        if isinstance(node, (Load, Store)) and node.buffer == row.buffer))
    if isinstance(stmt, For) and stmt.kind == "serial":
        return all(_element_by_element(s, row) for s in stmt.body if row.buffer in buffers_of((s,)))
    return False


def _whole(stmt: Stmt, rows: set[str]) -> Stmt:
    if isinstance(stmt, For) and stmt.kind == "vector" and rows & buffers_of((stmt,)):
        return marked(stmt, "lanes")
    return map_blocks(lambda block: tuple(_whole(s, rows) for s in block), stmt)
