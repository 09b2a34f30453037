"""Small arrays inside of loops live in registers: a variable for each element.

    for k < 1000:                              var t1.0: f32 = t1[0]
      kernel add:                              var t1.1: f32 = t1[1]
        vector i < 2:                  ->      for k < 1000:
          t1[i] = t1[i] * 0.5                    t1.0 := t1.0 * 0.5
                                                 t1.1 := t1.1 * 0.5
                                               t1[0] = t1.0
                                               t1[1] = t1.1

Kernels inside of a loop whose own loops are short are written out and become part of it. A small buffer
that is used at constant indices only is then replaced; one that every iteration writes before it reads is
known to that iteration alone. A loop over lanes (`parallel`, outside of kernels) becomes one kernel, its
buffers private to each lane.

After this pass no loop outside of kernels is `parallel`, and short kernels inside of loops are gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

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
    Window,
    children,
    statements,
    walk,
)
from anima.compiler.lower_array import constant
from anima.compiler.propagate import blocks_of, forward, tidy, with_blocks, without_unused
from anima.compiler.routines import buffers_read, buffers_written
from anima.compiler.unroll import Unroller, count_uses, loaded, unrolled_size
from anima.compiler.vectorize import fits

_LEAVES = (Ref, Const)
LARGEST = 64      # elements of a buffer that becomes variables
LONGEST = 8       # iterations of a loop that is written out
LOOP = 700        # statements of all kernels of a loop that are: more are too many for the registers
PRIVATE = 4096    # bytes, about, of the buffers of one lane


def registers(program: Program) -> Program:
    """Puts the small arrays of each loop outside of kernels into variables."""
    if not any(isinstance(s, (For, While)) for s in statements_outside(program.body)):
        return program
    worker = _Worker(program)
    body = worker.top(program.body)
    used = buffers_of(body) - {s.buffer for s in statements(*body) if isinstance(s, Local)}
    kept = tuple(b for b in program.buffers if b.role in ("input", "output", "window") or b.name in used)
    return replace(program, buffers=kept, body=body)


def statements_outside(stmts: Sequence[Stmt]) -> Iterator[Stmt]:
    """Every statement outside of kernels."""
    for stmt in stmts:
        yield stmt
        for block in blocks_of(stmt):
            yield from statements_outside(block)


def buffers_of(stmts: Sequence[Stmt]) -> set[str]:
    """The buffers that statements load from or store to."""
    found = loaded(stmts)
    for stmt in statements(*stmts):
        if type(stmt) is Store:
            found.add(stmt.buffer)
        elif type(stmt) is Call:
            found.update(buffers_read(stmt.routine, stmt.args), buffers_written(stmt.routine, stmt.args))
    return found


@dataclass(slots=True)
class _Use:
    """How the statements of a loop use a buffer."""

    constant: bool = True
    indices: set[int] = field(default_factory=set)


class _Worker:
    def __init__(self, program: Program) -> None:
        self.buffers = {b.name: b for b in program.buffers}
        self.mutable = {s.name for s in statements(*program.body) if isinstance(s, Var)}
        self.unroller = Unroller("r")
        self.locals: dict[str, Local] = {}

    def top(self, stmts: Sequence[Stmt]) -> tuple[Stmt, ...]:
        """Statements that stand in no loop."""
        out: list[Stmt] = []
        for place, stmt in enumerate(stmts):
            if isinstance(stmt, (For, While)):
                others = [s for n, s in enumerate(stmts) if n != place]
                out += self.loop(stmt, buffers_of(others))
            elif isinstance(stmt, If):  # its loops: what is used in the branches is taken to be used elsewhere
                out.append(replace(stmt, then=self.branch(stmt.then), orelse=self.branch(stmt.orelse)))
            else:
                out.append(stmt)
        return tuple(out)

    def branch(self, stmts: Sequence[Stmt]) -> tuple[Stmt, ...]:
        everything = set(self.buffers)
        return tuple(new for s in stmts for new in
                     (self.loop(s, everything) if isinstance(s, (For, While)) else (s,)))

    def loop(self, stmt: Stmt, elsewhere: set[str]) -> list[Stmt]:
        """One outermost loop, with what has to stand before and after it; `elsewhere` are buffers used there too."""
        if sum(unrolled_size(s.body, LONGEST) or 0 for s in statements_outside([stmt]) if isinstance(s, Kernel)) > LOOP:
            inner = [self.branch(block) for block in blocks_of(stmt)]
            return [self.lanes(with_blocks(stmt, inner), elsewhere)]
        self.locals = {}
        stmt = self.written_out(stmt)
        small = self.small([stmt])
        live = {b for b in small if b in elsewhere or (b in self.buffers and self.buffers[b].role != "temp")}
        before: list[Stmt] = []
        after: list[Stmt] = []
        covered = Covered([stmt], set(small))
        for name in sorted(live):
            b = self.buffers[name]
            for i in sorted(small[name].indices):
                fresh = (name, i) not in covered.exposed and covered.writes_all((name, i))
                init: Expr = constant(0, b.dtype) if fresh else Load(name, Const(i, INDEX), b.dtype)
                before.append(Var(_element(name, i), b.dtype, init))
                if covered.stores(name):
                    after.append(Store(name, Const(i, INDEX), Ref(_element(name, i), b.dtype)))
        declared, (stmt,) = self.declare((stmt,), {n: u for n, u in small.items() if n not in live}, set(small))
        elements = {_element(name, i) for name, use in small.items() for i in use.indices}
        (stmt,) = forward((stmt,), {}, elements | self.mutable)
        (stmt,) = tidy((stmt,), elements, count_uses(after))
        stmts = without_unused([*declared, *before, stmt, *after], elements)
        return [self.lanes(s, elsewhere) if s is stmt else s for s in stmts]

    # ---------------------------------------------------------------- writing out

    def written_out(self, stmt: Stmt) -> Stmt:
        """The statement with its short kernels replaced by their statements."""
        match stmt:
            case For(body=body):
                return replace(stmt, body=self.written_out_block(body))
            case While(before=before, body=body):
                return replace(stmt, before=self.written_out_block(before), body=self.written_out_block(body))
            case If(then=then, orelse=orelse):
                return replace(stmt, then=self.written_out_block(then), orelse=self.written_out_block(orelse))
        return stmt

    def written_out_block(self, stmts: Sequence[Stmt]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for stmt in stmts:
            if not isinstance(stmt, Kernel):
                out.append(self.written_out(stmt))
            elif unrolled_size(stmt.body, LONGEST) is None:
                out.append(stmt)
            else:
                for new in self.unroller.block(stmt.body, {}):
                    if isinstance(new, Local):
                        self.locals[new.buffer] = new
                    out.append(new)
        return tuple(out)

    # ---------------------------------------------------------------- which buffers

    def small(self, stmts: Sequence[Stmt]) -> dict[str, _Use]:
        """The buffers that can be replaced: small, and used at constant indices where their values can be named."""
        uses: dict[str, _Use] = {}

        def note(node: Stmt | Expr, inside: bool) -> None:
            if type(node) is Let:
                node = node.value
            if type(node) is Const or type(node) is Ref:
                return
            match node:
                case Load(buffer=buffer, index=index):
                    use = uses.setdefault(buffer, _Use())
                    _note_index(use, index)
                case Store(buffer=buffer, index=index, op=op):
                    use = uses.setdefault(buffer, _Use())
                    _note_index(use, index)
                    use.constant = use.constant and not inside and op is None
                case Call(routine=routine, args=args):
                    for buffer in (*buffers_read(routine, args), *buffers_written(routine, args)):
                        uses.setdefault(buffer, _Use()).constant = False
            for child in children(node):
                note(child, inside or type(node) is Kernel)

        for stmt in stmts:
            note(stmt, False)
        stored = {s.buffer for s in statements(*stmts) if isinstance(s, Store)}
        return {name: use for name, use in uses.items()
                if use.constant and self.size(name) <= LARGEST and name in stored and not self.is_elsewhere(name)}

    def size(self, name: str) -> int:
        local = self.locals.get(name)
        return self.buffers[name].size if name in self.buffers else local.size if local else LARGEST + 1

    def is_elsewhere(self, name: str) -> bool:
        return name in self.buffers and self.buffers[name].role in ("const", "window")

    def dtype(self, name: str) -> str:
        return self.buffers[name].dtype if name in self.buffers else self.locals[name].dtype

    # ---------------------------------------------------------------- variables

    def declare(self, stmts: tuple[Stmt, ...], private: dict[str, _Use], every: set[str],
                ) -> tuple[list[Stmt], tuple[Stmt, ...]]:
        """Declares the `private` buffers' variables as far inside as each can be; replaces accesses of `every` one."""
        deeper: dict[tuple[int, int], dict[str, _Use]] = {}
        where: dict[str, list[int]] = {}
        for n, stmt in enumerate(stmts if private else ()):
            if type(stmt) is Let and type(stmt.value) is Op and not any(type(a) in (Op, Load) for a in stmt.value.args):
                continue  # most statements: an operation on names
            for name in buffers_of((stmt,)) & private.keys():
                where.setdefault(name, []).append(n)
        for n, stmt in enumerate(stmts):
            if blocks_of(stmt):
                alone = {name for name, places in where.items() if places == [n]}
                for name, block in _inner_blocks(stmt, alone).items():
                    deeper.setdefault((n, block), {})[name] = private[name]
        inside = {name for names in deeper.values() for name in names}
        here = [name for name in where if name not in inside]
        declared = [Var(_element(name, i), self.dtype(name), constant(0, self.dtype(name)))
                    for name in here for i in sorted(private[name].indices)]
        new: list[Stmt] = []
        for n, stmt in enumerate(stmts):
            if isinstance(stmt, Local) and stmt.buffer in every:
                continue
            inner = []
            for number, part in enumerate(blocks_of(stmt)):
                found, body = self.declare(part, deeper.get((n, number), {}), every)
                inner.append((*found, *body))
            new.append(_replaced(with_blocks(stmt, inner), every))
        return list(declared), tuple(new)

    # ---------------------------------------------------------------- lanes

    def lanes(self, stmt: Stmt, elsewhere: set[str]) -> Stmt:
        """A loop over lanes as a kernel, if every lane's buffers can be its own; else in order."""
        if not isinstance(stmt, For):
            return stmt
        if stmt.kind != "parallel":
            return replace(stmt, body=_in_order(stmt.body))
        body = _in_order(stmt.body)
        private = []
        for name in sorted(buffers_of(body)):
            b = self.buffers.get(name)
            if b is None or b.role != "temp" or name in elsewhere:
                continue
            private.append(b)
        if (any(isinstance(s, Call) for s in statements(*body)) or sum(8 * b.size for b in private) > PRIVATE):
            return replace(stmt, kind="serial", body=body)
        locals_ = tuple(Local(b.name, b.dtype, b.size) for b in private)
        flat = self.flattened(body)
        loop = replace(stmt, body=(*locals_, *flat))
        return Kernel("lanes", (replace(loop, kind="vector") if _in_lanes(loop) else loop,))

    def flattened(self, stmts: Sequence[Stmt]) -> tuple[Stmt, ...]:
        """Kernels inside of a kernel are plain statements, in order, with names of their own."""
        out: list[Stmt] = []
        for stmt in stmts:
            if isinstance(stmt, Kernel):
                self.unroller.count += 1
                out += _renamed_apart(stmt.body, f"l{self.unroller.count}.")
            else:
                out.append(with_blocks(stmt, [self.flattened(b) for b in blocks_of(stmt)]))
        return tuple(out)


def _in_lanes(loop: For) -> bool:
    """Whether a loop's iterations are best run several at once: the same statements for each, none of them divided
    into lanes, and no division of integers by a value, for which machines have no instruction in lanes."""
    if not fits(loop) or any(isinstance(s, (Local, If, Call)) for s in statements(*loop.body)):
        return False
    return not any(isinstance(node, Op) and node.name in ("div", "rem") and node.dtype[0] in "iu"
                   and not isinstance(node.args[1], Const) for node in walk(*loop.body))


def _element(name: str, i: int) -> str:
    return f"{name}.{i}"


def _note_index(use: _Use, index: Expr) -> None:
    if isinstance(index, Const):
        use.indices.add(int(index.value))
    else:
        use.constant = False


def _inner_blocks(stmt: Stmt, names: set[str]) -> dict[str, int]:
    """For each of the buffers that only one block of `stmt` uses, which sets all that it reads in each iteration:
    the number of that block."""
    blocks = [buffers_of(block) & names for block in blocks_of(stmt)]
    outside = loaded([c for c in children(stmt) if isinstance(c, (Load, Op))])
    found: dict[str, int] = {}
    for number, block in enumerate(blocks_of(stmt)):
        alone = blocks[number] - outside - set().union(*(b for n, b in enumerate(blocks) if n != number))
        exposed = {name for name, _ in Covered(block, alone).exposed} if alone else set()
        found.update(dict.fromkeys(alone - exposed, number))
    return found


class Covered:
    """Which elements statements may read before they have written them (`exposed`), and which they surely write."""

    def __init__(self, stmts: Sequence[Stmt], names: set[str]) -> None:
        self.names = names
        self.exposed: set[tuple[str, int]] = set()
        self.stored: set[str] = set()
        self.written = self.block(stmts, frozenset())

    def stores(self, name: str) -> bool:
        return name in self.stored

    def writes_all(self, element: tuple[str, int]) -> bool:
        return element in self.written

    def block(self, stmts: Sequence[Stmt], written: frozenset[tuple[str, int]]) -> frozenset[tuple[str, int]]:
        for stmt in stmts:
            written = self.stmt(stmt, written)
        return written

    def expr(self, expr: Expr, written: frozenset[tuple[str, int]]) -> None:
        kind = type(expr)
        if kind is Op:
            for arg in expr.args:  # type: ignore[union-attr]
                self.expr(arg, written)
        elif kind is Load:
            self.expr(expr.index, written)  # type: ignore[union-attr]
            if expr.buffer in self.names and type(expr.index) is Const:  # type: ignore[union-attr]
                element = expr.buffer, int(expr.index.value)  # type: ignore[union-attr]
                if element not in written:
                    self.exposed.add(element)

    def stmt(self, stmt: Stmt, written: frozenset[tuple[str, int]]) -> frozenset[tuple[str, int]]:
        if type(stmt) is Let:
            self.expr(stmt.value, written)
            return written
        match stmt:
            case Store(buffer=buffer, index=index, value=value):
                self.expr(value, written)
                if buffer in self.names and isinstance(index, Const):
                    self.stored.add(buffer)
                    return written | {(buffer, int(index.value))}
                self.expr(index, written)
                return written
            case For(extent=extent, body=body):
                self.expr(extent, written)
                inside = self.block(body, written)
                return inside if isinstance(extent, Const) and extent.value > 0 else written
            case While(before=before, cond=cond, body=body):
                first = self.block(before, written)
                self.expr(cond, first)
                self.block(body, first)
                return first
            case If(cond=cond, then=then, orelse=orelse):
                self.expr(cond, written)
                return self.block(then, written) & self.block(orelse, written)
            case Kernel(body=body):
                self.block(body, written)
                return written
            case _:
                for child in children(stmt):
                    self.expr(child, written)  # type: ignore[arg-type]
                return written


# ---------------------------------------------------------------- replacing


def _replaced(stmt: Stmt, names: set[str]) -> Stmt:
    """A statement, without what is in its blocks (but with what is in a kernel), with elements as variables."""
    match stmt:
        case Store(buffer=buffer, index=Const(value=i), value=value) if buffer in names:
            return Assign(_element(buffer, int(i)), _expr(value, names))
        case Let(name=name, value=value):
            return Let(name, _expr(value, names))
        case Store(buffer=buffer, index=index, value=value, op=op):
            return Store(buffer, _expr(index, names), _expr(value, names), op)
        case Assign(value=value) | Accumulate(value=value):
            return replace(stmt, value=_expr(value, names))
        case Var(init=init):
            return replace(stmt, init=_expr(init, names))
        case Window(address=address):
            return replace(stmt, address=_expr(address, names))
        case For(extent=extent):
            return replace(stmt, extent=_expr(extent, names))
        case While(cond=cond) | If(cond=cond):
            return replace(stmt, cond=_expr(cond, names))
        case Kernel(body=body):
            return replace(stmt, body=_replaced_block(body, names))
    return stmt


def _replaced_block(stmts: Sequence[Stmt], names: set[str]) -> tuple[Stmt, ...]:
    return tuple(_replaced(with_blocks(s, [_replaced_block(b, names) for b in blocks_of(s)]), names) for s in stmts)


def _expr(expr: Expr, names: set[str]) -> Expr:
    match expr:
        case Load(buffer=buffer, index=Const(value=i), dtype=dtype) if buffer in names:
            return Ref(_element(buffer, int(i)), dtype)
        case Load(index=index):
            return replace(expr, index=_expr(index, names))
        case Op(args=args):
            new = tuple([a if type(a) in _LEAVES else _expr(a, names) for a in args])
            return expr if new == args else Op(expr.name, new, expr.dtype, expr.params)
    return expr


def _in_order(stmts: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """Loops over lanes inside of a loop run in order; kernels are as they were."""
    return tuple(replace(s, kind="serial", body=_in_order(s.body)) if isinstance(s, For) and s.kind == "parallel"
                 else s if isinstance(s, Kernel) else with_blocks(s, [_in_order(b) for b in blocks_of(s)])
                 for s in stmts)


def _renamed_apart(stmts: Sequence[Stmt], prefix: str) -> tuple[Stmt, ...]:
    """The body of a kernel with its own names made different from all others; `parallel` loops in order."""
    own = {s.index if isinstance(s, For) else s.buffer if isinstance(s, Local) else s.name
           for s in statements(*stmts) if isinstance(s, (For, Let, Var, Local))}

    def named(name: str) -> str:
        return prefix + name if name in own else name

    def expr(e: Expr) -> Expr:
        match e:
            case Ref(name=name, dtype=dtype):
                return Ref(named(name), dtype)
            case Load(buffer=buffer, index=index, dtype=dtype):
                return Load(named(buffer), expr(index), dtype)
            case Op(args=args):
                return replace(e, args=tuple(map(expr, args)))
        return e

    def stmt(s: Stmt) -> Stmt:
        match s:
            case For():
                return replace(s, index=named(s.index), extent=expr(s.extent), body=block(s.body),
                               kind="serial" if s.kind == "parallel" else s.kind)
            case While(before=before, cond=cond, body=body):
                return While(block(before), expr(cond), block(body))
            case If(cond=cond, then=then, orelse=orelse):
                return If(expr(cond), block(then), block(orelse))
            case Let() | Assign() | Accumulate():
                return replace(s, name=named(s.name), value=expr(s.value))
            case Var():
                return replace(s, name=named(s.name), init=expr(s.init))
            case Store():
                return replace(s, buffer=named(s.buffer), index=expr(s.index), value=expr(s.value))
            case Local():
                return replace(s, buffer=named(s.buffer))
        return s

    def block(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        return tuple(map(stmt, body))

    return block(stmts)
