"""Programs as text, in the notation of the documents, on lines of 80 columns.

    { lambda a:f32[4]; b:f32[4]. let c:f32[4] = add b a in (c,) }

Names run a, b, ..., z, ba, ... through the whole program, inner programs included; a result that nobody
uses is `_`; parameters at their default are left out; a program called more than once is written once,
before the others. The layout is Wadler's ("A prettier printer", 2003): a group is written on one line
if it fits, otherwise its lines are broken. Programs are told apart by their fields, not by their class,
because `core/jaxpr.py`, which defines them, prints itself with this module.
"""

from __future__ import annotations

import builtins
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from anima.config import config
from anima.core import dtypes
from anima.core.refs import show_levels
from anima.util import deeper, fun_name, record

WIDTH = 80
_CALLS = ("pjit", "jit")  # what the primitive of calls is named in the documents, and in JAX today


@record
class Line:
    """A line break, or `flat` where its group fits on one line; None: its group never does."""

    flat: str | None = " "


@record
class DocNest:
    """Lines broken inside of `doc` are indented by `indent` more."""

    indent: int
    doc: Doc


@record
class DocGroup:
    """Written on one line if it fits; otherwise its own `Line`s (not those of inner groups) break."""

    doc: Doc


Doc = str | Line | DocNest | DocGroup | tuple["Doc", ...]


def join(separator: Doc, docs: Sequence[Doc]) -> Doc:
    """The docs with a separator between them."""
    return tuple(part for doc in docs for part in (separator, doc))[1:]


def layout(doc: Doc, width: int = WIDTH) -> str:
    """The text of a document."""
    out: list[str] = []
    column = 0
    todo: list[tuple[int, bool, Doc]] = [(0, False, doc)]
    while todo:
        indent, flat, item = todo.pop()
        match item:
            case str():
                out.append(item)
                column += len(item)
            case tuple():
                todo.extend((indent, flat, part) for part in reversed(item))
            case DocNest():
                todo.append((indent + item.indent, flat, item.doc))
            case DocGroup():
                todo.append((indent, flat or _fits(item.doc, width - column), item.doc))
            case Line() if flat and item.flat is not None:
                out.append(item.flat)
                column += len(item.flat)
            case Line():
                out.append("\n" + " " * indent)
                column = indent
    return "".join(out)


def _fits(doc: Doc, room: int) -> bool:
    todo = [doc]
    while todo and room >= 0:
        item = todo.pop()
        match item:
            case str():
                room -= len(item)
            case tuple():
                todo.extend(reversed(item))
            case Line(flat=None):
                return False
            case Line():
                room -= len(item.flat or "")
            case DocNest() | DocGroup():
                todo.append(item.doc)
    return room >= 0


# Values of parameters that go without saying, whatever the primitive.
_UNSAID: dict[str, tuple[Any, ...]] = {
    "inline": (False,), "donated": (None, False, ()), "keep_unused": (False,), "precision": (None,),
    "preferred_element_type": (None,), "dimensions": (None,), "accuracy": (None,), "sharding": (None,),
    "out_sharding": (None,), "axis_index_groups": (None,), "memory_space": (None,), "kind": (None,),
    "partitionable": (True, False), "seen_on": (None,)}
_ON_REFS = ("get", "swap", "addupdate")
_FIRST = {"name": 0, "jaxpr": 1, "call_jaxpr": 1}


def _is_program(x: Any) -> bool:
    return hasattr(x, "eqns") and hasattr(x, "in_avals")


def _open(x: Any) -> Any:
    return getattr(x, "jaxpr", x)


def programs_in(params: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The programs among parameters, or in sequences there, each with the parameter's name."""
    for key, value in params.items():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if _is_program(item):
                yield key, _open(item)


def letters(number: int) -> str:
    """The `number`-th name: a, b, ..., z, ba, bb, ..."""
    name = chr(ord("a") + number % 26)
    while number := number // 26:
        name = chr(ord("a") + number % 26) + name
    return name


class Printer:
    """Turns programs to documents; remembers the names it gave."""

    def __init__(self, *, print_shapes: bool = True, source_info: bool = False, name_stack: bool = False):
        self.print_shapes = print_shapes
        self.source_info = source_info
        self.name_stack = name_stack
        self.names: dict[Any, str] = {}
        self.shared: dict[int, str] = {}

    def name(self, var: Any) -> str:
        if var not in self.names:
            self.names[var] = letters(len(self.names))
        return self.names[var]

    def binder(self, var: Any, used: Any = None) -> str:
        """A variable where it is bound, with its type; `_` if it is not among the `used` ones."""
        name = self.name(var) if used is None or var in used else "_"
        return f"{name}:{var.aval.str_short(short_dtypes=True)}" if self.print_shapes else name

    def atom(self, atom: Any) -> str:
        return literal_text(atom.val) if hasattr(atom, "val") else self.name(atom)

    def program(self, jaxpr: Any) -> Doc:
        jaxpr = _open(jaxpr)
        used = {v for e in jaxpr.eqns for v in e.invars if not hasattr(v, "val")}
        used.update(v for v in jaxpr.outvars if not hasattr(v, "val"))
        consts, args = _spaced([self.binder(v) for v in jaxpr.constvars]), _spaced(map(self.binder, jaxpr.invars))
        with deeper():
            eqns = [self.eqn(e, used) for e in jaxpr.eqns]
        told = self.source_info or self.name_stack
        between = Line(None if told else "; ")  # a place ends its line
        body: Doc = (Line(None if told else " "), join(between, eqns)) if eqns else ()
        outs = _spaced([self.atom(v) + "," * (i == 0 or i + 1 < len(jaxpr.outvars))
                        for i, v in enumerate(jaxpr.outvars)])
        return DocGroup(("{ lambda ", DocNest(4, (consts, "; ", args, ". let")), DocNest(4, body), DocNest(2, Line()),
                         "in (", DocNest(4, outs), ") }"))

    def eqn(self, eqn: Any, used: Any = None) -> Doc:
        """One equation; `used` are the variables that somebody uses (None: all)."""
        binders = [self.binder(v, used) for v in eqn.outvars]
        head: Doc = (_spaced(binders), " = ") if binders else ()
        args = [(DocGroup(Line()), self.atom(v)) for v in eqn.invars]
        told = [str(eqn.source)] if self.source_info and eqn.source else []
        if self.name_stack:
            told.append(f"[{eqn.source_info.name_stack}]")
        place = f"  # {' '.join(told)}" if told else ""
        if eqn.primitive.name in _ON_REFS and "levels" in eqn.params:
            return (*self.on_ref(eqn, used), place)
        return (DocNest(2, head), eqn.primitive.name, self.params(eqn), DocNest(2, tuple(args)), place)

    def params(self, eqn: Any, *, inner: bool = True) -> Doc:
        """The parameters of an equation that do not go without saying, `inner` programs among them or not."""
        programs = () if inner else {key for key, _ in programs_in(eqn.params)}
        shown = [(k, v) for k, v in eqn.params.items() if k not in programs and not self._unsaid(k, v)]
        shown.sort(key=lambda item: (_FIRST.get(item[0], 2), item[0]))
        if not shown:
            return ()
        parts = [DocGroup((f"{k}=", self.value(k, v))) for k, v in shown]
        return DocGroup(("[", DocNest(2, (Line(""), join(Line(), parts))), Line(""), "]"))

    def on_ref(self, eqn: Any, used: Any) -> tuple[Doc, ...]:
        """What is done to a place that a reference refers to."""
        name, (ref, *given) = eqn.primitive.name, eqn.invars
        value = self.atom(given.pop(0)) if name != "get" else ""
        there = self.atom(ref) + show_levels(ref.aval.shape, eqn.params["levels"],
                                             [(self.atom(v), v.aval.shape) for v in given])
        if name == "addupdate":
            return there, " += ", value
        if name == "get":
            return self.binder(eqn.outvars[0], used), " <- ", there
        if used is not None and eqn.outvars[0] not in used:
            return there, " <- ", value
        return self.binder(eqn.outvars[0], used), f", {there} <- {there}, ", value

    def _unsaid(self, key: str, value: Any) -> bool:
        if key == "donated" and isinstance(value, (tuple, list)):
            return not any(value)
        return any(value is d or value == d for d in _UNSAID.get(key, ()))

    def value(self, key: str, value: Any) -> Doc:
        """A parameter's value."""
        if _is_program(value):
            return self.shared.get(id(_open(value))) or self.program(value)
        if isinstance(value, (tuple, list)) and value and all(map(_is_program, value)):
            inner = [self.value(key, v) for v in value]
            return DocGroup(("(", DocNest(2, (Line(""), join(Line(), inner))), Line(""), ")"))
        if key == "dimension_numbers" and type(value) is tuple:  # of a dot_general, axes written as lists
            return str(tuple(tuple(map(list, pair)) for pair in value))
        if isinstance(value, np.dtype):
            return dtypes.name(value)
        if isinstance(value, frozenset) and value:
            return f"frozenset({{{', '.join(sorted(map(repr, value)))}}})"
        if callable(value) and (hasattr(value, "__name__") or isinstance(value, partial)):
            return fun_name(value)
        return str(value)

    def whole(self, jaxpr: Any) -> Doc:
        """A program, after those that it calls more than once (innermost first)."""
        calls: Counter[int] = Counter()
        order: list[tuple[str, Any]] = []
        _count_calls(_open(jaxpr), calls, order)
        before: list[Doc] = []
        for name, inner in order:
            if calls[id(inner)] > 1:
                doc = self.program(inner)
                taken = set(self.shared.values())
                fresh = name if name not in taken else next(
                    f"{name}{i}" for i in range(1, len(taken) + 1) if f"{name}{i}" not in taken)
                self.shared[id(inner)] = fresh
                before += [f"let {fresh} = ", doc, " in", Line(None)]
        return (*before, self.program(jaxpr))


def _count_calls(jaxpr: Any, calls: Counter[int], order: list[tuple[str, Any]]) -> None:
    for eqn in jaxpr.eqns:
        for _, inner in programs_in(eqn.params):
            if eqn.primitive.name in _CALLS:
                calls[id(inner)] += 1
                if calls[id(inner)] > 1:
                    continue
            _count_calls(inner, calls, order)
            if eqn.primitive.name in _CALLS:
                order.append((eqn.params.get("name", "jaxpr"), inner))


def _spaced(words: Any) -> Doc:
    """Words filled into lines."""
    return join(DocGroup(Line()), list(words))


def literal_text(value: Any) -> str:
    """A constant scalar: a Python number, exactly the value of its type."""
    array = np.asarray(value)
    # ml_dtypes' small floats have no Python number of their own
    return str(float(array) if array.dtype.kind == "V" and array.dtype != dtypes.float0 else array.item())


_COLORED = re.compile(r"(?<![\w.=])(?P<word>lambda|let|in)(?=\s|$)|(?P<type>:(?:Ref\{)?[\w<>]+\[[^]]*\]\}?)", re.M)
_BLUE, _MAGENTA = "\x1b[34;1m{}\x1b[39;22m", "\x1b[35m{}\x1b[39m"


def colored(text: str, use_color: bool | None) -> str:
    """The text of a program with the colours of terminals: words of the notation blue, types magenta. None: on
    terminals and in notebooks, unless the option pprint_use_color is off."""
    if use_color is None:
        use_color = config.pprint_use_color and (sys.stdout.isatty() or hasattr(builtins, "get_ipython"))
    if not use_color:
        return text
    return _COLORED.sub(lambda m: (_BLUE if m["word"] else _MAGENTA).format(m[0]), text)


def show_jaxpr(jaxpr: Any, *, source_info: bool = False, name_stack: bool = False, print_shapes: bool = True,
               width: int = WIDTH) -> str:
    """The text of a jaxpr or closed jaxpr."""
    printer = Printer(print_shapes=print_shapes, source_info=source_info, name_stack=name_stack)
    return layout(printer.whole(jaxpr), width)


def show_eqn(eqn: Any, *, source_info: bool = False, print_shapes: bool = True, width: int = WIDTH) -> str:
    """The text of one equation, its variables named by their order in it."""
    printer = Printer(print_shapes=print_shapes, source_info=source_info)
    for var in (*eqn.invars, *eqn.outvars):
        if not hasattr(var, "val"):
            printer.name(var)
    return layout(printer.eqn(eqn), width)
