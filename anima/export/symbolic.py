"""Shapes with names for sizes that are not known while a function is exported.

    symbolic_shape("b, 2*n + 1, 3")      symbolic_shape("b, _", like=(8, 3)) == (b, 3)

A size is an integer, a name, a sum, difference or product of such, `a^2`, `max(a, b)`, `min(a, b)`, `mod(a, 2)` or
`floordiv(a, 2)`; how they are computed with: `core/dims.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from anima import tree
from anima.api.stages import ShapeDtypeStruct, type_of
from anima.core.dims import OPERATIONS, Dim, Size, SymbolicDim
from anima.core.size_terms import Bounds, Monomial, Rule, without
from anima.core.source import here

_TOKEN = re.compile(r"\s*(?:(\d+)|(\.\.\.)|([A-Za-z_]\w*)|([-+*^(),]))")
_NAMED = re.compile(r"\s*[A-Za-z_]\w*\s*==")  # a constraint by which a name stands for a size: what is read first
_LONGEST = 10_000  # characters
_DEEPEST = 30  # operations in each other
_MOST_POWER = 16


class SymbolicScope:
    """Names of sizes, which mean the same in all shapes that are made with it, and what holds of them.

    Args:
      constraints_str: texts "e1 >= e2", "e1 <= e2", "e1 == e2" of sizes. A name that is equal to a size stands for it;
        for another product, as in "2*a*b == c + d", stands the size that it is equal to.

    Raises:
      ValueError: for texts that are no constraints.
    """

    def __init__(self, constraints_str: Sequence[str] = ()) -> None:
        if isinstance(constraints_str, str) or not isinstance(constraints_str, Sequence):
            raise ValueError(f"The constraints of a scope are a sequence of texts, got {constraints_str!r}.")
        self.constraints = list(constraints_str)
        self.limits: list[SymbolicDim] = []  # none is ever negative
        self.replaced: dict[str, Size] = {}
        self.rules: list[Rule] = []  # of products that are equal to sizes
        self.bounds: dict[Any, Bounds] = {}  # of sizes, by their terms
        self.place = here()
        for text in sorted(self.constraints, key=lambda text: not _NAMED.match(str(text))):
            self._constrain(text)

    def _constrain(self, text: str) -> None:
        parts = re.split(r"(==|>=|<=)", text) if isinstance(text, str) else []
        if len(parts) != 3:
            raise ValueError(f"Constraint parsing error: must contain one of '==' or '>=' or '<=': {text!r}")
        left, right = parse(parts[0], self, text), parse(parts[2], self, text)
        if (
            parts[1] == "=="
            and isinstance(left, SymbolicDim)
            and (name := _is_name(left)) is not None
            and name not in getattr(right, "names", set)()
        ):
            self.replaced[name] = right
            return
        for limit in {"==": (left - right, right - left), ">=": (left - right,), "<=": (right - left,)}[parts[1]]:
            if isinstance(limit, SymbolicDim):
                self.limits.append(limit)
                self.bounds.clear()
            elif limit < 0:
                raise ValueError(f"Unsatisfiable constraint: {text}")
        if parts[1] == "==" and isinstance(left, SymbolicDim) and len(left.terms) == 1:
            self._replace(left.terms[0], right)

    def _replace(self, term: tuple[Monomial, int], new: Size) -> None:
        """Has a size stand for a term from now on, unless the term is in it again, or makes fractions of it."""
        (product, c), terms = term, dict(new.terms) if isinstance(new, SymbolicDim) else {(): int(new)}
        if not any(d % c or without(monomial, product) is not None for monomial, d in terms.items()):
            self.rules.append((product, {monomial: d // c for monomial, d in terms.items()}))

    def __repr__(self) -> str:
        where = f" created at {self.place}" if self.place else ""
        holds = f" with constraints: {', '.join(self.constraints)}" if self.constraints else ""
        return f"scope {id(self)}{where}{holds}"


def _is_name(size: SymbolicDim) -> str | None:
    """The name, for a size that is one."""
    if len(size.terms) != 1 or size.terms[0][1] != 1 or len(size.terms[0][0]) != 1:
        return None
    ((atom, power),) = size.terms[0][0]
    return atom.name if power == 1 and not atom.parts else None


def parse(text: str, scope: SymbolicScope, whole: str | None = None) -> Size:
    """The size that a text says; ValueError for another text."""
    return _Parser(text, scope, f"in {text if whole is None else whole!r}").size()


class _Parser:
    """Takes a size off a text, by recursive descent."""

    def __init__(self, text: str, scope: SymbolicScope, where: str) -> None:
        self.scope, self.where, self.depth = scope, where, 0
        self.words: list[str] = []
        place, text = 0, text.rstrip()
        if len(text) > _LONGEST:
            raise self.error("it is too long")
        while place < len(text):
            found = _TOKEN.match(text, place)
            if found is None:
                raise self.error(f"unexpected {text[place:].strip()[:1]!r}")
            self.words.append(found[0].strip())
            place = found.end()
        self.words.append("")

    def error(self, problem: str) -> ValueError:
        return ValueError(f"syntax error in symbolic shape {self.where}: {problem}")

    def take(self, *wanted: str) -> str:
        word = self.words[0]
        if wanted and word not in wanted:
            raise self.error(f"expecting {' or '.join(map(repr, wanted))} but found {word or 'the end'!r}")
        return self.words.pop(0) if word else word

    def size(self) -> Size:
        found = self.sum()
        self.take("")
        return found

    def sum(self) -> Size:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.error("it is too deep")
        total: Size = 0
        sign = -1 if self.words[0] in ("-", "+") and self.take() == "-" else 1
        while True:
            total = self.product() * sign + total
            if self.words[0] not in ("+", "-"):
                self.depth -= 1
                return total
            sign = 1 if self.take() == "+" else -1

    def product(self) -> Size:
        found = self.factor()
        while self.words[0] == "*":
            self.take()
            found = found * self.factor()
        return found

    def factor(self) -> Size:
        word = self.take()
        if word == "-" and self.words[0].isdecimal():
            found: Size = -int(self.take())
        elif word.isdecimal():
            found = int(word)
        elif word in OPERATIONS and self.words[0] == "(":
            found = self.operation(word)
        elif word.isidentifier():
            found = self.scope.replaced.get(word, None) or SymbolicDim.variable(word, self.scope)
        else:
            raise self.error(f"expecting a name or a number but found {word or 'the end'!r}")
        if self.words[0] == "^":
            self.take()
            power = self.take()
            if not power.isdecimal() or int(power) > _MOST_POWER:
                raise self.error(f"expecting a power up to {_MOST_POWER} but found {power or 'the end'!r}")
            found = found ** int(power)
        return found

    def operation(self, name: str) -> Size:
        self.take("(")
        left = self.sum()
        self.take(",")
        right = self.sum()
        self.take(")")
        try:
            return OPERATIONS[name](left, right)
        except ZeroDivisionError:
            raise self.error("division by zero") from None


def is_symbolic_dim(p: Any) -> bool:
    """Whether a size is one that is not known.

    >>> is_symbolic_dim(symbolic_shape("n")[0]), is_symbolic_dim(3)
    (True, False)
    """
    return isinstance(p, (SymbolicDim, Dim))


def symbolic_shape(
    shape_spec: str | None,
    *,
    constraints: Sequence[str] = (),
    scope: SymbolicScope | None = None,
    like: Sequence[int | None] | None = None,
) -> tuple[Size, ...]:
    """The shape that a text says.

    Args:
      shape_spec: sizes, with commas between them. "_" is the size of `like` there, "..." all that are left of it.
      constraints: what holds of the sizes, for a new scope.
      scope: whose names are meant; a new one's, if none is given.
      like: a shape, for "_" and "...".

    Raises:
      ValueError: for sizes that are not those of `like`, and for what is no shape.

    >>> symbolic_shape("2*n, m - 1, ...", like=(4, 2, 3))
    (2*n, m - 1, 3)
    """
    if scope is not None and constraints:
        raise ValueError("Either a scope or constraints can be given: constraints are part of a scope.")
    scope = SymbolicScope(constraints) if scope is None else scope
    text = "..." if shape_spec is None else shape_spec.strip()
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1].strip()
    parts = _split(text)
    known = tuple(like) if like is not None else ()
    if parts and parts[-1] == "...":
        if like is None:
            raise ValueError(f"symbolic shape '{shape_spec}' has '...', but there is no shape `like` to complete it")
        parts[-1:] = ["_"] * (len(known) - len(parts) + 1)
    if like is not None and len(parts) != len(known):
        raise ValueError(f"symbolic shape '{shape_spec}' has {len(parts)} sizes, but like={known} has {len(known)}")
    return tuple(
        _size(part, scope, known[k] if like is not None else None, k, shape_spec) for k, part in enumerate(parts)
    )


def _split(text: str) -> list[str]:
    """The parts between commas that are not in parentheses."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    parts = [part.strip() for part in parts]
    return parts[:-1] if not parts[-1] else parts


def _size(part: str, scope: SymbolicScope, known: int | None, place: int, spec: str | None) -> Size:
    where = f"'{spec}' in dimension {place}"
    if part == "_":
        if known is None:
            raise ValueError(f"symbolic shape {where} has '_', but there is no size `like` it")
        return known
    size = _Parser(part, scope, where).size()
    if isinstance(size, int) and (size < 0 or known not in (None, size)):
        raise ValueError(f"symbolic shape {where} has the size {size}, different from {known}")
    return size


def symbolic_args_specs(
    args: Any, shapes_specs: Any, constraints: Sequence[str] = (), scope: SymbolicScope | None = None
) -> Any:
    """`ShapeDtypeStruct`s in the structure of `args`, of their dtypes and of the shapes that `shapes_specs`, a text or
    a prefix of the structure, says. ValueError as for `symbolic_shape`.

    >>> symbolic_args_specs((jnp.ones((3, 2)), 1.0), ("n, _", None))
    (ShapeDtypeStruct(shape=(n, 2), dtype=float32), ShapeDtypeStruct(shape=(), dtype=float32))
    """
    if scope is not None and constraints:
        raise ValueError("Either a scope or constraints can be given: constraints are part of a scope.")
    scope = SymbolicScope(constraints) if scope is None else scope
    leaves, treedef = tree.flatten(args)
    specs = tree.broadcast_prefix(shapes_specs, args, is_leaf=lambda x: x is None)
    found = []
    for leaf, spec in zip(leaves, specs, strict=True):
        aval = type_of(leaf)
        parts = None if spec is None else _split(spec.strip().removeprefix("(").removesuffix(")"))
        anew = parts is not None and len(parts) != len(aval.shape) and not {"_", "..."}.intersection(parts)
        shape = symbolic_shape(spec, scope=scope, like=None if anew else aval.shape)
        found.append(ShapeDtypeStruct(shape, aval.dtype))
    return tree.unflatten(treedef, found)
