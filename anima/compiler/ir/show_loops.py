"""Printing and checking loop programs.

    program f(in0: f32[8]) -> (out0: f32[8])
      kernel exp:
        vector i1 < 8:
          out0[i1] = exp(in0[i1])

`check` proves what every pass relies on: names are bound before use and once in a kernel, types of
operands agree, buffers exist and constants are never written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from anima.compiler.ir.loops import (
    INDEX,
    Accumulate,
    Affine,
    Again,
    Assign,
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
    Prefetch,
    Program,
    Stmt,
    Store,
    While,
    WindowAt,
)
from anima.compiler.ir.routines import ROUTINES, buffers_read, buffers_written
from anima.compiler.storage.buffers import written_out

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
          "eq": "==", "ne": "!=", "and": "&", "or": "|", "xor": "^", "shift_left": "<<"}
_TIGHT = {"mul": 3, "div": 3, "rem": 3, "add": 2, "sub": 2}
_ON_INDICES = frozenset(("div", "rem", "max", "min", "select_n", "cast"))
_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
_ONE_TYPE = frozenset(("add", "sub", "mul", "div", "rem", "max", "min", "and", "or", "xor", "pow", "atan2",
                       "nextafter", "shift_left", "shift_right_logical", "shift_right_arithmetic"))


def show(program: Program) -> str:
    """The program as text."""
    inputs = ", ".join(map(_buffer, program.with_role("input")))
    outputs = ", ".join(map(_buffer, program.with_role("output")))
    lines = [f"program {program.name}({inputs}) -> ({outputs})"]
    for b in program.buffers:
        if b.role in ("const", "temp", "own"):
            at = "" if b.offset is None else f" at {b.offset}"
            lines.append(f"  {b.role} {_buffer(b)}{at}")
    lines += _block(program.body, "  ")
    return "\n".join(lines)


def _buffer(b: Buffer) -> str:
    return f"{b.name}: {b.dtype}[{b.size}]" + ("" if b.alias is None else f" = {b.alias}")


def _block(stmts: Sequence[Stmt], indent: str) -> Iterator[str]:
    for stmt in stmts:
        yield from _stmt(stmt, indent)


def _stmt(stmt: Stmt, indent: str) -> Iterator[str]:
    inner = indent + "  "
    match stmt:
        case Kernel(name=name, body=body):
            yield f"{indent}kernel {name}:"
            yield from _block(body, inner)
        case Again(kernel=kernel, names=names):
            yield f"{indent}kernel {kernel.name}: as above, with {', '.join(f'{new} for {old}' for old, new in names)}"
        case For(index=index, extent=extent, body=body, kind=kind, width=width, grain=grain):
            extra = f"({width})" if width > 1 else f"(grain {grain})" if grain > 1 else ""
            yield f"{indent}{'for' if kind == 'serial' else kind}{extra} {index} < {text(extent)}:"
            yield from _block(body, inner)
        case While(before=before, cond=cond, body=body):
            yield f"{indent}while:"
            yield from _block(before, inner)
            yield f"{indent}  if not {text(cond)}: break"
            yield from _block(body, inner)
        case If(cond=cond, then=then, orelse=orelse):
            yield f"{indent}if {text(cond)}:"
            yield from _block(then, inner)
            if orelse:
                yield f"{indent}else:"
                yield from _block(orelse, inner)
        case Let(name=name, value=value):
            yield f"{indent}{name} = {text(value)}"
        case Mutable(name=name, dtype=dtype, init=init):
            yield f"{indent}var {name}: {dtype} = {text(init)}"
        case Assign(name=name, value=value):
            yield f"{indent}{name} := {text(value)}"
        case Accumulate(name=name, op=op, value=value):
            yield f"{indent}{name} {_INFIX.get(op, op)}= {text(value)}"
        case Store(buffer=buffer, index=index, value=value, op=op):
            yield f"{indent}{buffer}[{text(index)}] {'' if op is None else _INFIX.get(op, op)}= {text(value)}"
        case Prefetch(load=load):
            yield f"{indent}prefetch {text(load)}"
        case Local(buffer=buffer, dtype=dtype, size=size, held=held):
            how = f" {held}" if held == "apart" else f" in {held}" if held else ""
            yield f"{indent}local {buffer}: {dtype}[{size}]{how}"
        case WindowAt(buffer=buffer, address=address):
            yield f"{indent}window {buffer} at {text(address)}"
        case Call(routine=routine, args=args):
            yield f"{indent}call {routine}({', '.join(map(str, args))})"


def text(expr: Expr, tightness: int = 0) -> str:
    """An expression as text."""
    match expr:
        case Const(value=value, dtype=dtype):
            return str(value) if dtype in (INDEX, "bool", "i32", "f32") else f"{value}:{dtype}"
        case NamedValue(name=name):
            return name
        case Affine(const=const):
            terms = [(c, text(v, 3) if abs(c) == 1 else f"{text(v, 3)} * {abs(c)}") for v, c in expr.terms]
            terms += [(const, str(abs(const)))] if const else []
            body = "".join(f" {'-' if c < 0 else '+'} {term}" for c, term in sorted(terms, key=lambda t: t[0] < 0))
            body = ("-" if body[1] == "-" else "") + body[3:]
            return f"({body})" if tightness > (2 if const or len(expr.values) > 1 else 3) else body
        case Load(buffer=buffer, index=index):
            return f"{buffer}[{text(index)}]"
        case Op(name=name, args=args, dtype=dtype, params=params):
            if name in _INFIX and len(args) == 2:
                own = _TIGHT.get(name, 1)
                body = f"{text(args[0], own)} {_INFIX[name]} {text(args[1], own + 1)}"
                return f"({body})" if own < tightness else body
            shown = [text(a) for a in args] + [f"{k}={v}" for k, v in params]
            head = dtype if name == "cast" else f"bitcast_{dtype}" if name == "bitcast" else name
            return f"{head}({', '.join(shown)})"
    raise NotImplementedError(f"no such expression: {expr!r}")


# ---------------------------------------------------------------- the checker


class LoopError(AssertionError):
    """A loop program that breaks the rules of the loop IR: a defect of a compiler pass."""


# Kernels that were found to be right, by identity; what stood around each, and the names that it binds.
Right = dict[int, tuple[Kernel, Any, set[str]]]


def check(program: Program, right: Right | None = None) -> None:
    """LoopError if the program breaks a rule of the loop IR. What is in `right` is not looked at again where the same
    stands around it; what is found to be right is entered there."""
    _Checker(program, {} if right is None else right).run()


class _Checker:
    def __init__(self, program: Program, right: Right):
        self.program = program
        self.right = right
        self.buffers = {b.name: b for b in program.buffers}
        self.outside = [(b.name, b.dtype, b.role, _is_written(b)) for b in program.buffers]
        self.names: dict[str, tuple[str, bool]] = {}  # those in scope -> (dtype, mutable)
        self.locals: dict[str, str] = {}
        self.hidden: list[tuple[dict[str, Any], str, Any]] = []  # of open blocks: what a name was outside of them
        self.bound: set[str] = set()
        self.kernel = ""

    def fail(self, message: str) -> None:
        place = f" in kernel {self.kernel}" if self.kernel else ""
        raise LoopError(f"{self.program.name}{place}: {message}")

    def need(self, condition: bool, message: str) -> None:
        if not condition:
            self.fail(message)

    def run(self) -> None:
        self.need(len(self.buffers) == len(self.program.buffers), "two buffers of one name")
        for b in self.program.buffers:
            self.need(b.alias is None or b.alias in self.buffers, f"{b.name} is an alias of no buffer")
            self.need((b.value is not None) == (b.role == "const"), f"{b.name}: constants, and only they, have values")
        self.block(self.program.body)

    def block(self, stmts: Sequence[Stmt]) -> None:
        opened = len(self.hidden)
        for stmt in stmts:
            self.stmt(stmt)
        self.close(opened)

    def close(self, opened: int) -> None:
        """Ends the scopes that were opened since so many names were bound."""
        hidden = self.hidden
        while len(hidden) > opened:
            scope, name, before = hidden.pop()
            if before is None:
                del scope[name]
            else:
                scope[name] = before

    def bind(self, name: str, dtype: str, mutable: bool = False) -> None:
        if name in self.bound:
            self.fail(f"'{name}' is bound twice")
        self.bound.add(name)
        self.hidden.append((self.names, name, self.names.get(name)))
        self.names[name] = dtype, mutable

    def find(self, name: str) -> tuple[str, bool]:
        found = self.names.get(name)
        if found is None:
            self.fail(f"'{name}' is not bound")
            raise AssertionError
        return found

    def memory(self, name: str, write: bool) -> str:
        local = self.locals.get(name)
        if local is not None:
            return local
        b = self.buffers.get(name)
        if b is None:
            self.fail(f"no buffer '{name}'")
            raise AssertionError
        if write and not _is_written(b):
            self.fail(f"store to {b.role} {name}")
        return b.dtype

    def known_kernel(self, kernel: Kernel) -> None:
        """A kernel, unless it is known to be right among the same buffers and names."""
        self.need(not self.kernel, f"kernel {kernel.name} inside of a kernel")
        around = self.outside, dict(self.names), dict(self.locals)
        known = self.right.get(id(kernel))
        if known is not None and known[1] == around:
            self.bound = set(known[2])
            return
        self.kernel, self.bound = kernel.name, set()
        self.block(kernel.body)
        self.kernel = ""
        self.right[id(kernel)] = kernel, around, set(self.bound)

    def stmt(self, stmt: Stmt) -> None:
        kind = type(stmt)
        if kind is Let:  # most are
            self.bind(stmt.name, self.expr(stmt.value))  # type: ignore[union-attr]
            return
        match stmt:
            case Again():
                self.stmt(written_out(stmt))
            case Kernel():
                self.known_kernel(stmt)
            case For(index=index, extent=extent, body=body):
                self.need(self.expr(extent) == INDEX, f"the extent of {index} is not an index")
                opened = len(self.hidden)
                self.bind(index, INDEX)
                self.block(body)
                self.close(opened)
            case While(before=before, cond=cond, body=body):
                opened = len(self.hidden)
                for inner in before:
                    self.stmt(inner)
                self.need(self.expr(cond) == "bool", "the condition of a while is not a bool")
                self.block(body)
                self.close(opened)
            case If(cond=cond, then=then, orelse=orelse):
                self.need(self.expr(cond) == "bool", "the condition of an if is not a bool")
                self.block(then)
                self.block(orelse)
            case Mutable(name=name, dtype=dtype, init=init):
                self.need(self.expr(init) == dtype, f"the initial value of {name} is not {dtype}")
                self.bind(name, dtype, True)
            case Assign(name=name, value=value) | Accumulate(name=name, value=value):
                dtype, mutable = self.find(name)
                self.need(mutable, f"'{name}' is not a variable")
                self.need(dtype != INDEX or type(stmt) is Assign, f"'{name}' is an index, to which nothing is added")
                self.need(self.expr(value) == dtype, f"'{name}' is {dtype}, its new value {self.expr(value)}")
            case Store(buffer=buffer, index=index, value=value):
                self.need(self.expr(index) == INDEX, f"an index into {buffer} is not an index")
                dtype, got = self.memory(buffer, True), self.expr(value)
                self.need(got == dtype, f"store of {got} to {buffer}, which holds {dtype}")
            case Prefetch(load=load):
                self.expr(load)
            case Local(buffer=buffer, dtype=dtype):
                self.need(buffer not in self.bound, f"'{buffer}' is bound twice")
                self.bound.add(buffer)
                self.hidden.append((self.locals, buffer, self.locals.get(buffer)))
                self.locals[buffer] = dtype
            case WindowAt(buffer=buffer, address=address):
                self.need(self.expr(address) == "i64", f"the address of {buffer} is not an i64")
                self.need(self.buffers[buffer].role == "window", f"{buffer} is no window")
            case Call(routine=routine, args=args):
                self.need(routine in ROUTINES, f"no routine '{routine}'")
                self.need(not self.kernel or routine in ("look", "barrier"), f"{routine} is called inside of a kernel")
                for name in buffers_read(routine, args):
                    self.memory(name, False)
                for name in buffers_written(routine, args):
                    self.memory(name, True)
            case _:
                self.fail(f"no such statement: {stmt!r}")

    def expr(self, expr: Any) -> str:
        """The expression's type, after checking it. Most of what is checked is right: texts are for what is not."""
        kind = type(expr)
        if kind is NamedValue:
            found = self.names.get(expr.name) or self.find(expr.name)
            if found[0] != expr.dtype:
                self.fail(f"'{text(expr)}' is {found[0]}, not {expr.dtype}")
        elif kind is Op:
            self.op(expr.name, [self.expr(a) for a in expr.args], expr.dtype)
        elif kind is Affine:
            for v in expr.values:
                if self.expr(v) != INDEX:
                    self.fail(f"{text(expr)} is not a sum of indices")
            if not _is_simplest(expr):
                self.fail(f"{text(expr)} is not in its simplest form")
        elif kind is Const:
            if not _holds(expr.dtype, expr.value):
                self.fail(f"the constant {expr.value!r} is not {expr.dtype}")
        elif kind is Load:
            if self.expr(expr.index) != INDEX:
                self.fail(f"an index into {expr.buffer} is not an index")
            held = self.memory(expr.buffer, False)
            if held != expr.dtype:
                self.fail(f"load of {expr.dtype} from {expr.buffer}, which holds {held}")
        else:
            self.fail(f"no such expression: {expr!r}")
        return expr.dtype

    def op(self, name: str, types: list[str], dtype: str) -> None:
        if dtype == INDEX and name not in _ON_INDICES:
            self.fail(f"{name} of indices")
        if name in _COMPARISONS:
            right = dtype == "bool" and types[0] == types[1]
        elif name in _ONE_TYPE:
            right = types.count(dtype) == len(types)
        else:
            right = name != "select_n" or types[1:].count(dtype) == len(types) - 1
        if not right:
            self.fail(f"{name} of {types} gives {dtype}")


def _is_written(b: Buffer) -> bool:
    return b.alias is not None or b.donated or b.role in ("output", "temp", "own", "window")


def _is_simplest(expr: Affine) -> bool:
    """Whether `affine` would make it so."""
    values, coefficients = expr.values, expr.coefficients
    if not values or len(values) != len(coefficients) or 0 in coefficients:
        return False
    if any(type(v) is Affine or type(v) is Const for v in values):
        return False
    if len(values) == 1:
        return expr.const != 0 or coefficients[0] != 1
    return len(set(values)) == len(values)


def _holds(dtype: str, value: Any) -> bool:
    if dtype == "bool":
        return type(value) is bool
    if dtype == INDEX or dtype[0] in "iu":
        return type(value) is int
    return type(value) is (complex if dtype[0] == "c" else float)
