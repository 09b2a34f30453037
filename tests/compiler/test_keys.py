"""Keys of programs: equal for equal machine code, different for everything that changes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from anima.compiler.ir.loops import (
    INDEX,
    Accumulate,
    Assign,
    Buffer,
    Call,
    Const,
    For,
    If,
    Kernel,
    Let,
    Local,
    Mutable,
    Op,
    Program,
    Store,
    While,
    WindowAt,
)
from anima.compiler.keys import program_key, statements_key
from anima.compiler.storage.buffers import rename
from tests.compiler.loop_programs import at, c, k, op, v, x_at

LESS = op("lt", v("s"), k(9.0), dtype="bool")
BODY = (
    Kernel("first", (
        Local("row", "f32", 4, "lanes"),
        Mutable("s", "f32", k(0.0)),
        For("i", c(4), (Let("x", x_at(at("i", 2, 1))), Store("row", at("i"), op("round", v("x"), mode=1)),
                        Accumulate("s", "add", v("x"))), "vector", 8, 2),
        Store("y", c(0), v("s"), "add"))),
    Mutable("s", "f32", k(-0.0)),
    While((Let("z", v("s")), Assign("s", op("add", v("s"), k(1.0)))), LESS, (Assign("s", v("z")),)),
    If(LESS, (Store("y", c(1), k(1.0)),), (Store("y", c(2), v("s")), Store("t", c(0), v("s")))),
    WindowAt("w", Const(64, "i64")),
    Call("gemm", ("f32", "N", "T", 2, 2, 2, 1.0, "x", 0, 2, "t", 0, 2, 0.0, "y", 0, 2, 1, 0, 0, 0)),
)
BUFFERS = (Buffer("x", "f32", 9, "input", donated=True), Buffer("y", "f32", 4, "output", alias="x"),
           Buffer("t", "f32", 4, "temp", offset=64), Buffer("w", "f32", 4, "window"))
PROGRAM = Program("p", BUFFERS, BODY, 128)
OTHER: dict[type, Any] = {int: lambda n: n + 1, float: lambda n: n + 1.0, str: lambda s: s + "_", bool: lambda b: not b}
FREE = {"source", "donated", "callbacks"}  # what code does not depend on


def changed(node: Any, path: str = "p") -> Iterator[tuple[str, Any]]:
    """The node with one thing changed, and where."""
    if is_dataclass(node):
        for field in fields(node):
            name, old = field.name, getattr(node, field.name)
            if name in FREE or (type(node) in (Buffer, Program) and name in ("value", "name")):
                continue
            if name == "dtype" and type(node).__name__ in ("NamedValue", "Load"):
                continue  # that of what they name
            for where, new in changed(old, f"{path}.{name}"):
                yield where, replace(node, **{name: new})
    elif isinstance(node, tuple):
        for n, part in enumerate(node):
            yield f"{path}: without {n}", node[:n] + node[n + 1:]
            for where, new in changed(part, f"{path}[{n}]"):
                yield where, (*node[:n], new, *node[n + 1:])
        if len(node) > 1 and node[0] != node[1]:
            yield f"{path}: exchanged", (node[1], node[0], *node[2:])
    elif type(node) in OTHER:
        yield path, OTHER[type(node)](node)
        if node == 0 and type(node) is float:
            yield f"{path}: of the other sign", -node


CHANGES = dict(changed(PROGRAM))


@pytest.mark.parametrize("where", CHANGES)
def test_whatever_changes_changes_the_key(where: str) -> None:
    assert program_key(CHANGES[where]) != program_key(PROGRAM)


def test_what_does_not_change_code_is_no_part_of_the_key() -> None:
    constant = Buffer("renamed", "f32", 4, "output", value=1, alias="x")
    assert program_key(replace(PROGRAM, name="q", buffers=(BUFFERS[0], constant, *BUFFERS[2:]), callbacks=(1,),
                               body=rename(BODY, {"y": "renamed"}))) == program_key(PROGRAM)


def test_no_bracket_is_lost() -> None:
    """The same statements, inside of a block or after it."""
    one, two = Let("x", k(1.0)), Let("y", k(2.0))
    bodies = [(For("i", c(2), (one, two)),), (For("i", c(2), (one,)), two), (If(LESS, (one, two), ()),),
              (If(LESS, (one,), (two,)),), (If(LESS, (), (one, two)),), (While((one,), LESS, (two,)),),
              (While((), LESS, (one, two)),), (While((one, two), LESS, ()),), (one, For("i", c(2), (two,)))]
    assert len({statements_key(body, {}) for body in bodies}) == len(bodies)
    x, y, z = Op("neg", (k(1.0),), "f32"), k(2.0), Const(3, INDEX)
    assert statements_key([Let("a", op("add", x, y))], {}) != statements_key([Let("a", op("add", x, z))], {})
