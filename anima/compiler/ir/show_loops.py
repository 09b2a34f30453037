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
    affine,
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


def check(program: Program) -> None:
    """LoopError if the program breaks a rule of the loop IR."""
    _Checker(program).run()


class _Checker:
    def __init__(self, program: Program):
        self.program = program
        self.buffers = {b.name: b for b in program.buffers}
        self.scopes: list[dict[str, tuple[str, bool]]] = [{}]  # name -> (dtype, mutable)
        self.locals: list[dict[str, str]] = [{}]
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
        self.scopes.append({})
        self.locals.append({})
        for stmt in stmts:
            self.stmt(stmt)
        self.scopes.pop()
        self.locals.pop()

    def bind(self, name: str, dtype: str, mutable: bool = False) -> None:
        if name in self.bound:
            self.fail(f"'{name}' is bound twice")
        self.bound.add(name)
        self.scopes[-1][name] = dtype, mutable

    def find(self, name: str) -> tuple[str, bool]:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        self.fail(f"'{name}' is not bound")
        raise AssertionError

    def memory(self, name: str, write: bool) -> str:
        for scope in reversed(self.locals):
            if name in scope:
                return scope[name]
        b = self.buffers.get(name)
        if b is None:
            self.fail(f"no buffer '{name}'")
        assert b is not None
        written = b.alias is not None or b.donated or b.role in ("output", "temp", "own", "window")
        self.need(not write or written, f"store to {b.role} {name}")
        return b.dtype

    def stmt(self, stmt: Stmt) -> None:
        kind = type(stmt)
        if kind is Let:  # most are
            self.bind(stmt.name, self.expr(stmt.value))  # type: ignore[union-attr]
            return
        match stmt:
            case Again():
                self.stmt(written_out(stmt))
            case Kernel(name=name, body=body):
                self.need(not self.kernel, f"kernel {name} inside of a kernel")
                self.kernel, self.bound = name, set()
                self.block(body)
                self.kernel = ""
            case For(index=index, extent=extent, body=body):
                self.need(self.expr(extent) == INDEX, f"the extent of {index} is not an index")
                self.scopes.append({})
                self.bind(index, INDEX)
                self.block(body)
                self.scopes.pop()
            case While(before=before, cond=cond, body=body):
                self.scopes.append({})
                self.locals.append({})
                for inner in before:
                    self.stmt(inner)
                self.need(self.expr(cond) == "bool", "the condition of a while is not a bool")
                self.block(body)
                self.scopes.pop()
                self.locals.pop()
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
                self.locals[-1][buffer] = dtype
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
            found = self.find(expr.name)[0]
            if found != expr.dtype:
                self.fail(f"'{text(expr)}' is {found}, not {expr.dtype}")
        elif kind is Op:
            self.op(expr.name, [self.expr(a) for a in expr.args], expr.dtype)
        elif kind is Affine:
            if any(self.expr(v) != INDEX for v in expr.values):
                self.fail(f"{text(expr)} is not a sum of indices")
            if affine(expr.const, *expr.terms) != expr:
                self.fail(f"{text(expr)} is not in its simplest form")
        elif kind is Const:
            if not _holds(expr.dtype, expr.value):
                self.fail(f"the constant {expr.value!r} is not {expr.dtype}")
        elif kind is Load:
            if self.expr(expr.index) != INDEX:
                self.fail(f"an index into {expr.buffer} is not an index")
            found = self.memory(expr.buffer, False)
            if found != expr.dtype:
                self.fail(f"load of {expr.dtype} from {expr.buffer}, which holds {found}")
        else:
            self.fail(f"no such expression: {expr!r}")
        return expr.dtype

    def op(self, name: str, types: list[str], dtype: str) -> None:
        if dtype == INDEX and name not in _ON_INDICES:
            self.fail(f"{name} of indices")
        if name in _COMPARISONS:
            right = dtype == "bool" and types[0] == types[1]
        elif name in _ONE_TYPE:
            right = all(t == dtype for t in types)
        else:
            right = name != "select_n" or all(t == dtype for t in types[1:])
        if not right:
            self.fail(f"{name} of {types} gives {dtype}")


def _holds(dtype: str, value: Any) -> bool:
    if dtype == "bool":
        return type(value) is bool
    if dtype == INDEX or dtype[0] in "iu":
        return type(value) is int
    return type(value) is (complex if dtype[0] == "c" else float)
