"""What programs for grids consist of: plain nests of loops, on scalars alone.

    call gemm(f32, N, N, 64, 32, 16, 1.0, a, ...)            kernel gemm:
                                                               each i < 64: each j < 32:
                                                      ->         var s = 0.0
                                                                 reduce k < 16: s += a[i*16 + k] * b[k*32 + j]
                                                                 c[i*32 + j] = s

Matrix products and convolutions become nests; loops in lanes of vectors are loops again, and arrays in lanes of a
vector are registers one by one: a thread has no vectors. Scratch memory that is too large for a block becomes a
temporary buffer.

After this pass the only routines left are large products outside of loops, and what the host is asked for: callbacks
into Python, and tapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from anima import errors
from anima.compiler.emitting.value import itemsize
from anima.compiler.grid.target import GridTarget
from anima.compiler.grid.teams import around
from anima.compiler.ir.loops import (
    INDEX,
    Accumulate,
    Again,
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
    Program,
    Stmt,
    Store,
    affine,
    map_blocks,
    statements,
    statements_outside,
)
from anima.compiler.ir.routines import TAPE_ROUTINES, WHEEL, arguments
from anima.compiler.storage.buffers import rename, written_out
from anima.core.source import Source
from anima.util import replace

PRODUCTS = ("f32", "f64", "c64", "c128")
APART = 1 << 18  # multiplications of a product that is worth a kernel of its own
LOCAL = 1 << 15  # bytes of scratch memory of one block, at most


def nests(program: Program, target: GridTarget) -> Program:
    """Writes products and convolutions as nests, but for products that a library is to do. NotImplementedError for any
    other routine but those that the host is asked for."""
    calls = [s for s in statements_outside(program.body) if isinstance(s, Call)]
    for s in sorted(calls, key=lambda s: s.source is None):
        if s.routine not in ("gemm", "convolution") and not asks_host(s):
            raise refusal(f"'{s.routine}' cannot run on a GPU yet", s.source)
    # What has names outside of kernels would not be known in the next one.
    apart = target.products and not any(isinstance(s, (Let, Mutable, Local)) for s in program.body)
    body = [s if apart and _is_apart(s) else _each((s,), _as_nest)[0] for s in program.body]
    return replace(program, body=tuple(body))


def asks_host(stmt: Stmt) -> bool:
    """Whether a statement is a call that the host does while the grid waits."""
    return isinstance(stmt, Call) and (stmt.routine == "callback" or stmt.routine in TAPE_ROUTINES)


def refusal(why: str, source: Source | None) -> NotImplementedError:
    """The error for what cannot run on a grid."""
    where = f" ({errors.line_of(source)})" if source else ""
    return NotImplementedError(f"{why}{where}. Fix: compute it on the CPU: "
                               "anima.device_put(x, anima.devices('cpu')[0]).")


def _is_apart(stmt: Stmt) -> bool:
    """Whether a statement is a product that is large enough for a kernel of its own."""
    if not isinstance(stmt, Call) or stmt.routine != "gemm":
        return False
    a = arguments("gemm", stmt.args)
    return a["dtype"] in PRODUCTS and math.prod(int(a[n]) for n in ("m", "n", "k", "batch")) >= APART  # type: ignore[call-overload]


def plain(program: Program) -> Program:
    """Writes lanes of vectors as loops and registers, and what stands in a program again as itself."""
    worker = _Plain()
    body = worker.block(program.body)
    return replace(program, body=body, buffers=(*program.buffers, *worker.buffers))


def _each(stmts: Sequence[Stmt], change: Callable[[Stmt], Stmt]) -> tuple[Stmt, ...]:
    """Statements outside of kernels, each changed."""
    return tuple(map_blocks(lambda block: _each(block, change), change(s)) for s in stmts)


# ---------------------------------------------------------------- no lanes


class _Plain:
    def __init__(self) -> None:
        self.buffers: list[Buffer] = []

    def block(self, stmts: Sequence[Stmt]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for stmt in stmts:
            match stmt:
                case Again():
                    out.append(self.kernel(written_out(stmt)))
                case Kernel():
                    out.append(self.kernel(stmt))
                case Local(held="lanes" | "apart"):
                    out.append(replace(stmt, held="elements" if stmt.held == "lanes" else ""))
                case For(kind="whole"):
                    out.append(replace(stmt, kind="unrolled", width=1, body=self.block(stmt.body)))
                case For(kind="vector" | "square" | "stream" | "parallel"):
                    body = self.block(stmt.body)
                    out.append(For(stmt.index, stmt.extent, body, "reduce" if _adds_up(stmt) else "each"))
                case _:
                    out.append(map_blocks(self.block, stmt))
        return tuple(out)

    def kernel(self, kernel: Kernel) -> Kernel:
        """A kernel, its large rows in memory if it has each once."""
        large = {s.buffer: s for s in kernel.body if isinstance(s, Local) and not s.held
                 and s.size * itemsize(s.dtype) > LOCAL}
        names = {}
        for name, local in large.items():
            names[name] = f"large{len(self.buffers)}"
            self.buffers.append(Buffer(names[name], local.dtype, local.size, "temp"))
        body = self.block([s for s in kernel.body if not (isinstance(s, Local) and s.buffer in large)])
        return replace(kernel, body=rename(body, names) if names else body)


def _adds_up(loop: For) -> bool:
    """Whether a loop adds to variables that are declared outside of it."""
    inside = list(statements(*loop.body))
    own = {s.name for s in inside if isinstance(s, Mutable)}
    return any(isinstance(s, Accumulate) and s.name not in own for s in inside)


# ---------------------------------------------------------------- products


def _as_nest(stmt: Stmt) -> Stmt:
    if isinstance(stmt, Call) and stmt.routine == "gemm":
        return _gemm(stmt)
    if isinstance(stmt, Call) and stmt.routine == "convolution":
        return _convolution(stmt)
    return stmt


def _nest(loops: Sequence[tuple[str, int]], body: Sequence[Stmt], kind: Literal["each", "reduce"]) -> tuple[Stmt, ...]:
    """Statements in loops, those of one iteration left out."""
    return around([loop for loop in loops if loop[1] != 1], body, kind)


def _at(loops: Sequence[tuple[str, int]], *steps: tuple[str, int], start: int = 0) -> Expr:
    """An index: names times steps, without those of loops of one iteration, which are not there."""
    there = {name for name, extent in loops if extent != 1}
    return affine(start, *((NamedValue(name, INDEX), step) for name, step in steps if name in there))


def _gemm(call: Call) -> Kernel:
    a = arguments("gemm", call.args)
    dtype = str(a["dtype"])
    if dtype not in PRODUCTS:
        raise NotImplementedError(f"products of {dtype} on a grid")
    loops = [(name, int(a[size])) for name, size in (("t", "batch"), ("i", "m"), ("j", "n"), ("k", "k"))]  # type: ignore[call-overload]
    t, i, j, k = loops

    def element(name: str, row: str, column: str) -> Expr:
        turned = name != "c" and a[f"trans{name}"] == "T"
        ld = int(a[f"ld{name}"])  # type: ignore[call-overload]
        steps = (row, 1 if turned else ld), (column, ld if turned else 1), ("t", int(a[f"{name}_stride"]))  # type: ignore[call-overload]
        return _at(loops, *steps, start=int(a[f"{name}_offset"]))  # type: ignore[call-overload,arg-type]

    def load(name: str, row: str, column: str) -> Expr:
        return Load(str(a[name]), element(name, row, column), dtype)

    product = Op("mul", (load("a", "i", "k"), load("b", "k", "j")), dtype)
    total: Expr = NamedValue("s", dtype)
    if a["alpha"] != 1:
        total = Op("mul", (Const(a["alpha"], dtype), total), dtype)
    if a["beta"] != 0:
        total = Op("add", (total, Op("mul", (Const(a["beta"], dtype), load("c", "i", "j")), dtype)), dtype)
    body = [Mutable("s", dtype, Const(0.0, dtype)), *_nest([k], [Accumulate("s", "add", product)], "reduce"),
            Store(str(a["c"]), element("c", "i", "j"), total)]
    return Kernel("gemm", _nest([t, i, j], body, "each"), call.source)


def _convolution(call: Call) -> Kernel:
    a = arguments("convolution", call.args)
    dtype = str(a["dtype"])
    number = {name: value for name, value in a.items() if isinstance(value, int)}
    rows = [(f"r{d}", [number[f"row{d}_{k}"] for k in WHEEL]) for d in range(4)]
    rows.append(("p", [number["places"], number["place_x"], number["place_out"], 0, 0, number["place_step"]]))
    terms = [(f"t{d}", [number[f"term{d}_{k}"] for k in WHEEL]) for d in range(4)]
    terms.append(("tap", [number["taps"], number["tap_x"], number["tap_w"], 0, 0, number["tap_step"]]))
    terms.append(("f", [number["features"], number["feature_x"], number["feature_w"], 0, 0, 0]))
    kept = [("g", number["groups"]), *((name, w[0]) for name, w in rows), ("o", number["outputs"])]
    summed = [(name, w[0]) for name, w in terms]
    loops = [*kept, *summed]

    def at(*parts: tuple[str, int], start: int) -> Expr:
        return _at(loops, *parts, start=start)

    wheels = [*rows, *terms]
    x = at(("g", number["x_group"]), *((n, w[1]) for n, w in wheels), start=number["x_offset"])
    w_at = at(("g", number["w_group"]), ("o", number["output_w"]), *((n, w[2]) for n, w in terms),
              start=number["w_offset"])
    out = at(("g", number["out_group"]), ("o", number["output_out"]), *((n, w[2]) for n, w in rows),
             start=number["out_offset"])
    product = Op("mul", (Load(str(a["x"]), x, dtype), Load(str(a["w"]), w_at, dtype)), dtype)
    body: tuple[Stmt, ...] = (Accumulate("s", "add", product),)
    for d in range(3):
        coordinate = at(*((n, w[3 + d]) for n, w in wheels), start=number[f"start{d}"])
        if isinstance(coordinate, Const) and 0 <= coordinate.value < number[f"size{d}"]:
            continue
        below, above = (Op(name, (coordinate, Const(end, INDEX)), "bool")
                        for name, end in (("ge", 0), ("lt", number[f"size{d}"])))
        body = (If(Op("and", (below, above), "bool"), body),)
    stmts = [Mutable("s", dtype, Const(0.0, dtype)), *_nest(summed, body, "reduce"),
             Store(str(a["out"]), out, NamedValue("s", dtype))]
    return Kernel("convolution", _nest(kept, stmts, "each"), call.source)
