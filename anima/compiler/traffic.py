"""What statements of a loop program move and compute: bytes of memory, and operations on numbers.

    parallel i < 1000: vector j < 64: y[i*64 + j] = exp(x[i*64 + j])       512,000 bytes, 64,000 operations

A kernel moves each element of a buffer once, however often it looks at it: what it looked at before is in the cache.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from anima.compiler.emitting.value import itemsize
from anima.compiler.ir.costs import extent_of
from anima.compiler.ir.loops import (
    INDEX,
    Accumulate,
    Again,
    Buffer,
    Call,
    For,
    If,
    Kernel,
    Load,
    Op,
    Stmt,
    Store,
    While,
    blocks_of,
    statements,
    walk,
)
from anima.compiler.ir.routines import arguments, buffers_read, buffers_written, shapes
from anima.compiler.products import dots
from anima.compiler.storage.buffers import written_out
from anima.util import record

_INSTRUCTIONS = frozenset(("select_n", "bitcast", "cast"))  # that compute nothing


@record
class Traffic:
    """Bytes that are read and written, and operations on numbers that are not indices."""

    read: int = 0
    written: int = 0
    operations: int = 0

    @property
    def moved(self) -> int:
        """Bytes, read or written."""
        return self.read + self.written

    def times(self, count: int) -> Traffic:
        """Of so many repetitions."""
        return Traffic(self.read * count, self.written * count, self.operations * count)

    def plus(self, other: Traffic) -> Traffic:
        """Of both, one after the other."""
        return Traffic(self.read + other.read, self.written + other.written, self.operations + other.operations)


def traffic(buffers: Mapping[str, Buffer], *stmts: Stmt) -> Traffic:
    """What one run of statements, kernels or around these, moves and computes. A loop of unknown length counts as one
    step, a branch as all that it may do."""
    total = Traffic()
    for stmt in stmts:
        if isinstance(stmt, Call):
            total = total.plus(_call(stmt, buffers))
        elif isinstance(stmt, Again):
            total = total.plus(_kernel(written_out(stmt), buffers))
        elif isinstance(stmt, Kernel) or not any(isinstance(s, (Kernel, Again, Call)) for s in statements(stmt)):
            total = total.plus(_kernel(stmt, buffers))
        else:
            inside = [traffic(buffers, *block) for block in blocks_of(stmt)]
            for part in inside:
                total = total.plus(part.times(_trips(stmt)))
    return total


def _trips(stmt: Stmt) -> int:
    if isinstance(stmt, For):
        return extent_of(stmt.extent)
    return stmt.steps or 1 if isinstance(stmt, While) else 1


def _call(call: Call, buffers: Mapping[str, Buffer]) -> Traffic:
    names = buffers_read(call.routine, call.args), buffers_written(call.routine, call.args)
    read, written = (sum(_bytes(buffers[n], None) for n in set(group) if n in buffers) for group in names)
    given: dict[str, Any] = arguments(call.routine, call.args)
    operations = 0
    if parts := shapes(call.routine, call.args):
        moved = [math.prod(shape) * (given["batch"] if given.get(f"{name}_stride") else 1) * itemsize(
            buffers[given[name]].dtype) for name, shape in parts.items()]
        written = moved[-1]
        read = sum(moved) - (0 if call.routine == "substitution" or given.get("beta") else written)
    if call.routine == "gemm":
        operations = 2 * dots.in_word(given["dtype"]) * given["m"] * given["n"] * given["k"] * given["batch"]
    if call.routine == "substitution":
        operations = given["n"]**2 * given["columns"] * given["batch"]
    return Traffic(read, written, operations)


def _kernel(kernel: Stmt, buffers: Mapping[str, Buffer]) -> Traffic:
    loads: Counter[str] = Counter()
    stores: Counter[str] = Counter()
    operations = _count([kernel], 1, loads, stores)
    read, written = (sum(_bytes(buffers[name], count) for name, count in group.items() if name in buffers)
                     for group in (loads, stores))
    return Traffic(read, written, operations)


def _count(stmts: Sequence[Stmt], times: int, loads: Counter[str], stores: Counter[str]) -> int:
    """Operations; adds to how often elements of each buffer are loaded and stored."""
    operations = 0
    for stmt in stmts:
        if isinstance(stmt, Kernel):
            operations += _count(stmt.body, times, loads, stores)
        elif isinstance(stmt, (For, While, If)):
            for block in blocks_of(stmt):
                operations += _count(block, times * _trips(stmt), loads, stores)
        else:
            for node in walk(stmt):
                if isinstance(node, Load):
                    loads[node.buffer] += times
                elif isinstance(node, Store):
                    stores[node.buffer] += times
                elif isinstance(node, Accumulate) or (
                        isinstance(node, Op) and node.dtype != INDEX and node.name not in _INSTRUCTIONS):
                    operations += times
    return operations


def _bytes(buffer: Buffer, count: int | None) -> int:
    return (buffer.size if count is None else min(count, buffer.size)) * itemsize(buffer.dtype)
