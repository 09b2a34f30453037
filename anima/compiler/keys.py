"""Programs as text in which operands have numbers for names: equal text, equal machine code.

    load(0:f32, i1) + load(1:f32, i1) -> 2:f32       for  out = a + b  as well as for  h = x + y

`repr` would not do: `-0.0 == 0.0`, and the names of buffers differ from program to program.
"""

from __future__ import annotations

from collections.abc import Sequence

from anima.compiler.ir.loops import (
    Accumulate,
    Affine,
    Again,
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


def statements_key(stmts: Sequence[Stmt], buffers: dict[str, str]) -> str:
    """The text of statements, buffers named as in `buffers` (local ones by their own names). Kernels that stand several
    times are written once."""
    out: list[str] = []
    kernels: dict[int, int] = {}
    for stmt in stmts:
        _write(stmt, buffers, kernels, out)
    return "".join(out)


def program_key(program: Program) -> str:
    """The text of a whole program; its name and values of constants are not part of it."""
    names = {b.name: str(i) for i, b in enumerate(program.buffers)}
    head = ";".join(f"{b.role}:{b.dtype}:{b.size}:{b.offset}:{names.get(b.alias or '', '')}" for b in program.buffers)
    return f"{program.arena}|{program.flushes}|{head}|{statements_key(program.body, names)}"


def _write(node: Stmt | Expr, buffers: dict[str, str], kernels: dict[int, int], out: list[str]) -> None:
    match node:
        case Affine(values=values, coefficients=coefficients, const=const):
            out.append(f"({coefficients}+{const}")
            inside: tuple[Stmt | Expr, ...] = values
        case Op(name=name, args=args, dtype=dtype, params=params):
            out.append(f"({name}:{dtype}{params or ''}")
            inside = args
        case Load(buffer=buffer, index=index):
            out.append(f"(load {buffers.get(buffer, buffer)}")
            inside = (index,)
        case Let(name=name, value=value):
            out.append(f"({name}=")
            inside = (value,)
        case Store(buffer=buffer, index=index, value=value, op=op):
            out.append(f"(store {buffers.get(buffer, buffer)} {op}")
            inside = (index, value)
        case Prefetch(load=load):
            out.append("(prefetch")
            inside = (load,)
        case For(index=name, extent=extent, body=body, kind=sort, width=width, grain=grain):
            out.append(f"(for {name} {sort} {width} {grain}")
            inside = (extent, *body)
        case While(before=before, cond=cond, body=body):
            out.append(f"(while {len(before)}")
            inside = (*before, cond, *body)
        case If(cond=cond, then=then, orelse=orelse):
            out.append(f"(if {len(then)}")
            inside = (cond, *then, *orelse)
        case Mutable(name=name, dtype=dtype, init=init):
            out.append(f"(var {name}:{dtype}")
            inside = (init,)
        case Assign(name=name, value=value):
            out.append(f"(set {name}")
            inside = (value,)
        case Accumulate(name=name, op=op, value=value):
            out.append(f"(acc {name} {op}")
            inside = (value,)
        case Local(buffer=buffer, dtype=dtype, size=size, held=held):
            out.append(f"(local {buffer}:{dtype}:{size}:{held}")
            inside = ()
        case WindowAt(buffer=buffer, address=address):
            out.append(f"(window {buffers.get(buffer, buffer)}")
            inside = (address,)
        case Call(routine=routine, args=args):
            named = [buffers.get(a, a) if isinstance(a, str) else repr(a) for a in args]
            out.append(f"(call {routine} {' '.join(named)}")
            inside = ()
        case Kernel(name=name, body=body, inline=inline):
            kernels[id(node)] = len(kernels)
            out.append(f"(kernel {name} {inline}")
            inside = body
        case Again(kernel=kernel, names=names):
            out.append(f"(again {kernels[id(kernel)]} {' '.join(f'{buffers[a]}={buffers[b]}' for a, b in names)}")
            inside = ()
        case _:
            raise TypeError(f"not a node of the loop IR: {node!r}")
    for child in inside:
        kind = type(child)
        if kind is NamedValue:
            out.append(f" {child.name}")  # type: ignore[union-attr]
        elif kind is Const:
            out.append(f" {child.value!r}:{child.dtype}")  # type: ignore[union-attr]
        else:
            _write(child, buffers, kernels, out)
    out.append(")")
