"""Vector loops get their width: as many lanes as fit into a register of the target.

    vector j < 1024: s add= x[j]      ->      vector(16) j < 1024: s add= x[j]          (f32, AVX-512)

The width follows from the widest type that the body computes with. A loop that cannot run in lanes
(it branches differently in each, or has scratch memory of its own) becomes serial.

After this pass `vector` loops have a width of 2 or more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from anima.compiler.emit_value import itemsize
from anima.compiler.loops import (
    INDEX,
    Accumulate,
    Assign,
    Call,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    Local,
    Op,
    Program,
    Ref,
    Stmt,
    Store,
    Var,
    While,
    walk,
)
from anima.compiler.native import Target

_HALVES = frozenset(("f16", "bf16"))


def vectorize(program: Program, target: Target) -> Program:
    """Chooses the width of each vector loop."""
    return replace(program, body=_block(program.body, target))


def _block(stmts: Iterable[Stmt], target: Target) -> tuple[Stmt, ...]:
    return tuple(_stmt(s, target) for s in stmts)


def _stmt(stmt: Stmt, target: Target) -> Stmt:
    match stmt:
        case For(kind="vector", width=1):
            return _widen(stmt, target)
        case For(body=body) | Kernel(body=body):
            return replace(stmt, body=_block(body, target))
        case While(before=before, body=body):
            return replace(stmt, before=_block(before, target), body=_block(body, target))
        case If(then=then, orelse=orelse):
            return replace(stmt, then=_block(then, target), orelse=_block(orelse, target))
    return stmt


def _widen(loop: For, target: Target) -> For:
    width = target.vector_bytes // widest(loop.body)
    if isinstance(loop.extent, Const):
        extent = max(int(loop.extent.value), 1)
        masked = target.has("avx512f")
        while width > 1 and (width // 2 >= extent if masked else width > extent):
            width //= 2
    if width < 2 or not fits(loop):
        return replace(loop, kind="serial", width=1)
    return replace(loop, width=width)


def widest(stmts: Sequence[Stmt]) -> int:
    """The size in bytes of the widest element that statements compute with."""
    size = 1
    computed_halves = False
    for node in walk(*stmts):
        if isinstance(node, (Const, Ref, Load, Op)):
            dtype = node.dtype
            if dtype == INDEX or dtype == "bool":
                continue
            own = itemsize(dtype) // (2 if dtype in ("c64", "c128") else 1)
            size = max(size, own)
            computed_halves = computed_halves or (isinstance(node, Op) and _is_computed(node, dtype))
    if computed_halves:
        size = max(size, 4)
    # An index that becomes a value, or that is computed with, takes 32 bits in each lane.
    if any(isinstance(n, Op) and n.name == "cast" and n.args[0].dtype == INDEX for n in walk(*stmts)):
        size = max(size, 2)
    return size


def _is_computed(op: Op, dtype: str) -> bool:
    """Whether an operation on halves goes through f32."""
    return dtype in _HALVES and op.name not in ("select_n", "bitcast")


def fits(loop: For) -> bool:
    """Whether the iterations of a loop can run in lanes: what controls them must not differ between lanes."""
    varying = varying_names(loop)
    own = {node.name for node in walk(*loop.body) if isinstance(node, (Let, Var))}
    for node in walk(*loop.body):
        match node:
            case Local() | Call():
                return False
            case For(kind="parallel" | "vector"):
                return False
            case For(extent=extent) if _varies(extent, varying):
                return False
            case If(cond=cond) | While(cond=cond) if _varies(cond, varying):
                return False
            case Assign(name=name) if name not in own:
                return False
            case Store(index=index) if not _varies(index, varying):
                return False
    return True


def varying_names(loop: For) -> set[str]:
    """Names whose values differ between iterations of a loop."""
    names = {loop.index}
    while True:
        before = len(names)
        for node in walk(*loop.body):
            match node:
                case (Let(name=name, value=value) | Var(name=name, init=value) | Assign(name=name, value=value)
                      | Accumulate(name=name, value=value)):
                    if _varies(value, names):
                        names.add(name)
        if len(names) == before:
            return names


def _varies(expr: Expr, names: set[str]) -> bool:
    return any(isinstance(node, Ref) and node.name in names for node in walk(expr))
