"""Slips of a person, as changes of source text: what cosmic-ray's operators, which act on one sign, do not make.

    if a and b:  ->  if a:      f(x, y)  ->  f(y, x)      f(x, axis=1)  ->  f(x)      d[k] = v  ->  pass
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

Edit = tuple[int, int, str]  # bytes from, bytes to, what stands there instead


class _Source:
    """A file's text by places of its syntax tree."""

    def __init__(self, code: str) -> None:
        self.raw = code.encode()
        self.tree = ast.parse(code)
        self.lines = [0]
        for line in self.raw.split(b"\n"):
            self.lines.append(self.lines[-1] + len(line) + 1)

    def span(self, first: ast.expr | ast.stmt | ast.keyword, last: ast.expr | ast.stmt | ast.keyword | None = None
             ) -> tuple[int, int]:
        """Where a node begins and ends, or the nodes from one to another."""
        last = last or first
        return (self.lines[first.lineno - 1] + first.col_offset,
                self.lines[(last.end_lineno or 1) - 1] + (last.end_col_offset or 0))

    def text(self, node: ast.expr) -> str:
        start, end = self.span(node)
        return self.raw[start:end].decode()

    def exchanged(self, one: ast.expr, other: ast.expr) -> Edit:
        """One expression in the place of a later one."""
        start, end = self.span(one, other)
        between = self.raw[self.span(one)[1]:self.span(other)[0]].decode()
        return start, end, self.text(other) + between + self.text(one)


def slips(code: str) -> list[Edit]:
    """All slips in a file. Annotations are left alone."""
    source = _Source(code)
    ignored = {id(inner) for node in ast.walk(source.tree) for field in ("annotation", "returns")
               if (note := getattr(node, field, None)) is not None for inner in ast.walk(note)}
    found: list[Edit] = []
    for node in ast.walk(source.tree):
        if id(node) not in ignored:
            found += _expressions(source, node)
            found += _statements(source, node)
    return found


def _expressions(source: _Source, node: ast.AST) -> Iterator[Edit]:
    match node:
        case ast.BoolOp(op=op, values=values):
            sign = " and " if isinstance(op, ast.And) else " or "
            for value in values:
                kept = sign.join(f"({source.text(v)})" for v in values if v is not value)
                yield *source.span(node), f"({kept})"
        case ast.If(test=test) | ast.IfExp(test=test):
            yield *source.span(test), "True"
            yield *source.span(test), "False"
        case ast.comprehension(ifs=tests):
            for test in tests:
                yield *source.span(test), "True"
        case ast.Call(args=args, keywords=keywords):
            for one, other in pairwise(args):
                if not isinstance(one, ast.Starred) and not isinstance(other, ast.Starred):
                    yield source.exchanged(one, other)
            for keyword in keywords:
                start, end = source.span(keyword)
                before = source.raw[:start].rstrip()
                if keyword.arg is not None and before.endswith(b","):
                    yield len(before) - 1, end, ""
        case ast.Slice(lower=lower, upper=upper):
            for bound, step in ((lower, "+ 1"), (upper, "- 1")):
                if bound is not None:
                    yield *source.span(bound), f"({source.text(bound)}) {step}"
        case ast.BinOp(left=left, op=op, right=right):
            if isinstance(op, (ast.Add, ast.Sub, ast.Mult)):
                yield *source.span(node), f"({source.text(left)})"
            if not isinstance(op, (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr, ast.BitXor)):
                yield source.exchanged(left, right)
        case ast.Dict(values=values) if len(values) > 1:
            for one, other in pairwise(values):
                yield source.exchanged(one, other)


def _statements(source: _Source, node: ast.AST) -> Iterator[Edit]:
    for statement in (*getattr(node, "body", ()), *getattr(node, "orelse", ())) if isinstance(
            node, (ast.FunctionDef, ast.If, ast.For, ast.While, ast.With, ast.Try)) else ():
        match statement:
            case ast.Expr(value=ast.Constant()) | ast.Assign(targets=[ast.Name()]):
                continue  # a docstring; a name that is then unknown
            case ast.Expr() | ast.AugAssign() | ast.Delete() | ast.Assign():
                yield *source.span(statement), "pass"
    if isinstance(node, ast.Match) and len(node.cases) > 1:
        for case in node.cases:
            yield source.lines[case.pattern.lineno - 1], source.lines[case.body[-1].end_lineno or 1] - 1, ""


def changed(code: str, edit: Edit) -> str:
    """The text with an edit in it."""
    raw, (start, end, text) = code.encode(), edit
    return (raw[:start] + text.encode() + raw[end:]).decode()
