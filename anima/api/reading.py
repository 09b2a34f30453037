"""The leaves of arguments, read by Python code that is made for one structure of arguments.

    read = reader(in_tree, static)      for calls f({"w": w, "b": b}, n), of which n is static, it is

    def read(args, kwargs):
        if len(args) != 2 or len(kwargs) != 0: return None
        v0 = args[0]
        if type(v0) is not dict or len(v0) != 2: return None
        v1 = args[1]
        if type(v1) is not t1 or hash(v1) != h1 or v1 != c1: return None
        return (v0['b'], v0['w'],)

An object of a registered type is taken apart by the function that it was registered with. That takes a fifth of the
time that looking at any structure takes. What is not of the structure gives None.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from anima import tree
from anima.tree_engine import flatten_of
from anima.util import exact_type

Read = Callable[[tuple[Any, ...], dict[str, Any]], "tuple[Any, ...] | None"]


def reader(in_tree: tree.PyTreeDef, static: Any) -> Read:
    """The function for calls whose traced arguments, `(args, kwargs)`, have this structure, and whose static ones
    are these (as `Signature.split` gives them).

    What stands in the place of a leaf may be anything: it is for others to look at.
    """
    positional, named = in_tree.spec.children()
    count, fixed, *fixed_named = static if static is not None else (positional.num_children, ())
    code = _Code()
    code.refuse(f"len(args) != {count} or len(kwargs) != {named.num_children + len(fixed_named)}")
    for place, kind, value in fixed:
        code.static(f"args[{place}]", kind, value)
    for name, kind, value in fixed_named:
        code.static(f"kwargs[{name!r}]", kind, value)
    places = [k for k in range(count) if k not in {place for place, *_ in fixed}]
    for place, child in zip(places, positional.children(), strict=True):
        code.visit(child, f"args[{place}]")
    for name, child in zip(named.entries(), named.children(), strict=True):
        code.visit(child, f"kwargs[{name!r}]")
    return code.function()


class _Code:
    """Python text, with the objects that it names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.leaves: list[str] = []
        self.objects: dict[str, Any] = {"flatten": tree.flatten, "exact_type": exact_type}
        self.count = 0

    def refuse(self, condition: str) -> None:
        self.lines.append(f"if {condition}: return None")

    def new(self, expression: str) -> tuple[str, int]:
        self.count += 1
        self.lines.append(f"v{self.count} = {expression}")
        return f"v{self.count}", self.count

    def static(self, expression: str, kind: Hashable, value: Any) -> None:
        v, k = self.new(expression)
        self.objects |= {f"t{k}": kind, f"h{k}": hash(value), f"c{k}": value}
        other = f"type({v}) is not t{k}" if kind is type(value) else f"exact_type({v}) != t{k}"
        self.refuse(f"{other} or hash({v}) != h{k} or {v} != c{k}")

    def visit(self, spec: Any, expression: str) -> None:
        """Reads the part of the arguments at `expression`."""
        kind = spec.type
        if spec.is_leaf(strict=True):
            self.leaves.append(expression)
        elif kind is type(None):
            self.refuse(f"{expression} is not None")
        elif kind in (tuple, list, dict):
            v, k = self.new(expression)
            self.refuse(f"type({v}) is not {kind.__name__} or len({v}) != {spec.num_children}")
            for n, (entry, child) in enumerate(zip(spec.entries(), spec.children(), strict=True)):
                key = repr(entry)
                if type(entry) not in (str, int):
                    key = f"k{k}_{n}"
                    self.objects[key] = entry
                self.visit(child, f"{v}[{key}]")
        elif kind in flatten_of:
            self.registered(spec, expression)
        else:
            v, k = self.new(f"flatten({expression})")
            self.objects[f"s{k}"] = spec
            self.refuse(f"{v}[1].spec != s{k}")
            self.leaves.append(f"*{v}[0]")

    def registered(self, spec: Any, expression: str) -> None:
        """Reads an object of a registered type, by its own function."""
        v, k = self.new(expression)
        kind, data = tree.PyTreeDef(spec).node_data() or (None, None)
        self.objects |= {f"t{k}": kind, f"f{k}": flatten_of[spec.type], f"c{k}": data}
        self.refuse(f"type({v}) is not t{k}")
        self.lines.append(f"p{k}, d{k} = f{k}({v})")
        self.refuse(f"not (d{k} == c{k})")
        self.lines.append(f"{''.join(f'q{k}_{n}, ' for n in range(spec.num_children)) or '()'} = p{k}")
        for n, child in enumerate(spec.children()):
            self.visit(child, f"q{k}_{n}")

    def function(self) -> Read:
        body = [*self.lines, f"return ({''.join(leaf + ', ' for leaf in self.leaves)})"]
        text = "\n".join(["def read(args, kwargs):", "    try:", *("        " + line for line in body),
                          "    except Exception:  # a key that is missing, a comparison that fails",
                          "        return None"])
        exec(text, self.objects)
        return self.objects["read"]
