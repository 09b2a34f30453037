"""Long loops look for signals now and then, so that Ctrl-C stops them.

    for k < 1000000000:              var ticks: i64 = 50000000
      ...                            for k < 1000000000:
                              ->       ...
                                       ticks := ticks - 3
                                       if ticks < 0:
                                         call poll()
                                         ticks := 50000000

`ticks` counts down estimated nanoseconds, through all loops outside of kernels together. A loop that is over
before a user could notice stays as it is. In a kernel only loops in order look, each for itself, and loops on threads,
between their pieces: Python handles signals in its main thread, so that the threads of a kernel tell each other, by a
word of memory, to stop. So do those of a loop around kernels. Between long steps of a program there is a look, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anima.compiler.ir.costs import cost
from anima.compiler.ir.loops import (
    INDEX,
    Assign,
    Buffer,
    Call,
    Const,
    For,
    If,
    Kernel,
    Mutable,
    NamedValue,
    Op,
    Program,
    Stmt,
    While,
    blocks_of,
    map_blocks,
    statements,
    with_blocks,
)
from anima.compiler.storage.buffers import ALIGNMENT
from anima.util import replace

_PERIOD = 50_000_000  # nanoseconds, as estimated, from one look to the next
_FIRST = 100_000      # to the first look of a loop in a kernel
_SHORT = 5_000_000.0  # a loop that is estimated to take less need not look
_LONG = 200_000_000.0  # what is estimated to take as long is noticed, though nothing in it goes on in order
_STOP = "stop"        # the buffer by which threads tell each other


def interrupt(program: Program) -> Program:
    """Puts the looks into a program. After this pass loops may be left by an exception."""
    looks = _Looks()
    body = looks.block(program.body)
    if looks.outside:
        body = (Mutable("ticks", "i64", Const(_PERIOD, "i64")), *body)
    if not looks.inside:
        return replace(program, body=body)
    stop = Buffer(_STOP, "i64", 2, "temp", offset=-(-program.arena // ALIGNMENT) * ALIGNMENT)
    return replace(program, body=(Call("watch", (_STOP,)), *body), buffers=(*program.buffers, stop),
                   arena=stop.offset + ALIGNMENT)  # type: ignore[operator]


class _Looks:
    """Rewrites statements; `outside` and `inside` of kernels it has put that many looks."""

    def __init__(self) -> None:
        self.outside = self.inside = 0

    def block(self, stmts: Sequence[Stmt]) -> tuple[Stmt, ...]:
        """Statements outside of kernels."""
        out: list[Stmt] = []
        for stmt in stmts:
            before = self.inside
            out.append(self._stmt(stmt))
            if self.inside > before and (isinstance(stmt, Kernel) or _on_threads(stmt)):
                out.append(Call("stopped", (_STOP,)))
            elif isinstance(stmt, Call) and cost(stmt) >= _LONG:
                out.append(Call("poll", ()))
        return tuple(out)

    def _stmt(self, stmt: Stmt) -> Stmt:
        before = self.outside
        match stmt:
            case For() if _on_threads(stmt):
                if cost(stmt) < _SHORT and not any(map(_is_open, statements(*stmt.body))):
                    return stmt
                return self._pieces(stmt, self._thread)
            case For(body=body):
                new = self.block(body)
                if self.outside == before and isinstance(stmt.extent, Const) and cost(stmt) < _SHORT:
                    return replace(stmt, body=new)
                return replace(stmt, body=(*new, *self._outside(new)))
            case While():
                first, new = self.block(stmt.before), self.block(stmt.body)
                return replace(stmt, before=first, body=(*new, *self._outside((*first, *new))))
            case If():
                return map_blocks(self.block, stmt)
            case Kernel(body=body) if _takes_long(body):
                return replace(stmt, body=self._kernel(body))
        return stmt

    def _pieces(self, loop: For, inside: Callable[[Sequence[Stmt]], tuple[Stmt, ...]]) -> For:
        """A loop on threads that looks now and then; `inside` rewrites its body."""
        self.inside += 1
        often = Const(max(1, int(_PERIOD / max(1.0, sum(map(cost, loop.body))))), INDEX)
        count = Op("rem", (NamedValue(loop.index, INDEX), often), INDEX)
        look = If(Op("eq", (count, Const(0, INDEX)), "bool"), (Call("look", (_STOP,)),))
        return replace(loop, body=(look, *inside(loop.body)))

    def _outside(self, body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        self.outside += 1
        return _look("ticks", body, Call("poll", ()))

    def _kernel(self, stmts: Sequence[Stmt]) -> tuple[Stmt, ...]:
        """Statements of a kernel."""
        out: list[Stmt] = []
        for stmt in stmts:
            if _is_long(stmt):
                out += self._looking(stmt, self._kernel)  # type: ignore[arg-type]
            elif _has_long_pieces(stmt):
                out.append(self._pieces(stmt, self._kernel))  # type: ignore[arg-type]
            else:
                out.append(map_blocks(self._kernel, stmt))
        return tuple(out)

    def _thread(self, stmts: Sequence[Stmt]) -> tuple[Stmt, ...]:
        """Statements outside of kernels that a thread runs."""
        out: list[Stmt] = []
        for stmt in stmts:
            match stmt:
                case Kernel(body=body) if _takes_long(body):
                    out.append(replace(stmt, body=self._kernel(body)))
                case For() | While() if _is_open(stmt) or cost(stmt) >= _SHORT:
                    out += self._looking(stmt, self._thread)
                case _:
                    out.append(map_blocks(self._thread, stmt))
        return tuple(out)

    def _looking(self, loop: For | While, inside: Callable[[Sequence[Stmt]], tuple[Stmt, ...]]) -> tuple[Stmt, Stmt]:
        """A loop on a thread that looks, and what stands before it; `inside` rewrites its blocks."""
        self.inside += 1
        ticks = f"ticks{self.inside}"
        blocks = [inside(block) for block in blocks_of(loop)]
        look = _look(ticks, [s for block in blocks for s in block], Call("look", (_STOP,)))
        return (Mutable(ticks, "i64", Const(_FIRST, "i64")),
                with_blocks(loop, [*blocks[:-1], (*blocks[-1], *look)]))


def _on_threads(stmt: Stmt) -> bool:
    """Whether a statement outside of kernels is a loop on threads."""
    return isinstance(stmt, For) and stmt.kind == "parallel"


def _is_long(stmt: Stmt) -> bool:
    """Whether a statement in a kernel is a loop in order, step by step, that may take long."""
    return isinstance(stmt, While) or (
        isinstance(stmt, For) and stmt.kind == "serial" and stmt.width == 1 and cost(stmt) >= _SHORT)


def _has_long_pieces(stmt: Stmt) -> bool:
    """Whether a statement in a kernel is a loop on threads that takes long, however long each iteration does."""
    return isinstance(stmt, For) and stmt.kind == "parallel" and cost(stmt) >= _LONG


def _takes_long(kernel: Sequence[Stmt]) -> bool:
    return any(_is_long(stmt) or _has_long_pieces(stmt) for stmt in statements(*kernel))


def _is_open(stmt: Stmt) -> bool:
    """Whether a statement is a loop of which nobody knows how long it takes."""
    return isinstance(stmt, While) or (isinstance(stmt, For) and not isinstance(stmt.extent, Const))


def _look(ticks: str, body: Sequence[Stmt], call: Call) -> tuple[Stmt, ...]:
    """The count of an iteration, and the look when it is time for one."""
    now = NamedValue(ticks, "i64")
    each = max(1, round(sum(map(_own_cost, body))))
    return (Assign(ticks, Op("sub", (now, Const(each, "i64")), "i64")),
            If(Op("lt", (now, Const(0, "i64")), "bool"), (call, Assign(ticks, Const(_PERIOD, "i64")))))


def _is_count(stmt: Stmt) -> bool:
    return isinstance(stmt, Assign) and stmt.name.startswith("ticks")


def _own_cost(stmt: Stmt) -> float:
    """The estimated cost of a statement; a loop inside that counts does so for itself."""
    match stmt:
        case For(body=body) | While(body=body) if any(_is_count(s) for s in body):
            return 0.0
        case If(then=then, orelse=orelse):
            return max(sum(map(_own_cost, then)), sum(map(_own_cost, orelse)))
    return cost(stmt)
