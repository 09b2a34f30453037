"""Loops of independent iterations, each of many kernels and routines, run on threads.

    for k < 256:                               parallel k < 256:
      call gemm(x[k], w, t1)                     call gemm(x[k], w, t1)         t1, t2: own
      kernel tanh: t2[i] = tanh(t1[i])   ->      kernel tanh: t2[i] = tanh(t1[i])
      call gemm(t2, v, y[k])                     call gemm(t2, v, y[k])

A thread has memory of its own for what an iteration makes and uses up, and runs its kernels and routines alone. That
is better than several threads in each of them where these are short, or the iterations are many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set

from anima.compiler.ir.costs import cost
from anima.compiler.ir.loops import (
    Again,
    Buffer,
    Call,
    Const,
    For,
    Kernel,
    Load,
    Stmt,
    Store,
    blocks_of,
    names_in,
    statements,
    statements_outside,
    walk,
    with_blocks,
)
from anima.compiler.ir.routines import TAPE_ROUTINES
from anima.compiler.scheduling.parallelize import PIECE, WORTH
from anima.compiler.storage.buffers import buffers_of, size_in_bytes, written_out
from anima.util import replace

OWN = 1 << 25         # bytes of a thread's own memory, at most
LEAST = 4 * WORTH     # nanoseconds of such a loop, at least, as `costs` counts, which knows nothing of vectors yet
SHARE = 4 * PIECE     # of a kernel or routine, that a thread would have to do
ENOUGH = 16           # iterations that are enough, however long their kernels are
_IN_ORDER = frozenset(("callback", "foreign", *TAPE_ROUTINES))  # what threads cannot do at the same time


def on_threads(loop: For, buffers: Mapping[str, Buffer], elsewhere: Set[str]) -> For:
    """The loop with its iterations on threads; itself, if they cannot be, or are better in order. `elsewhere` are
    buffers that are used outside of the loop, too."""
    if not isinstance(loop.extent, Const):
        return loop
    count, inside = int(loop.extent.value), list(statements(*loop.body))
    if any(isinstance(s, Call) and s.routine in _IN_ORDER for s in inside):
        return loop
    each = sum(map(cost, loop.body))
    longest = max((cost(s) for s in inside if isinstance(s, (Kernel, Again, Call))), default=0.0)
    if count < max(2, min(longest / SHARE, ENOUGH)) or count * each < LEAST:
        return loop
    if sum(size_in_bytes(buffers[n]) for n in _own(loop, buffers) - elsewhere) > OWN:
        return loop
    return replace(loop, kind="parallel", grain=max(1, int(PIECE / each)))


def own_buffers(body: Sequence[Stmt], buffers: Mapping[str, Buffer]) -> set[str]:
    """The buffers that each thread of a loop around kernels has for itself."""
    loops = [s for s in statements_outside(body) if isinstance(s, For) and s.kind == "parallel"]
    users = Counter(_users(body)) if loops else Counter()
    return {n for loop in loops for inside in [Counter(_users(loop.body))] for n in _own(loop, buffers)
            if inside[n] == users[n]}


def _users(stmts: Sequence[Stmt]) -> Iterator[str]:
    """The buffers that each statement outside of kernels uses."""
    for stmt in statements_outside(stmts):
        yield from buffers_of([with_blocks(stmt, [() for _ in blocks_of(stmt)])])


def _own(loop: For, buffers: Mapping[str, Buffer]) -> set[str]:
    """The temporary buffers of a loop that have no place for each iteration."""
    found = {n for n in buffers_of(loop.body) if n in buffers and buffers[n].role == "temp"}
    for stmt in statements(*loop.body):
        for node in walk(written_out(stmt) if isinstance(stmt, Again) else stmt):
            if isinstance(node, (Load, Store)) and loop.index in names_in(node.index):
                found.discard(node.buffer)
    return found
