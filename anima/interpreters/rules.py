"""Tables of rules by primitive: views of the primitives, whose methods the rules are.

    table[p] = rule      # p's own method from now on, wherever p is transformed
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

from anima.core.primitive import Primitive
from anima.util import clear_all, lazy_module

Rule = Callable[..., Any]

primitives = lazy_module("anima.extend.core.primitives")  # all of them, which takes a while


def _named() -> Iterator[Any]:
    assert primitives.sin_p  # loaded now
    return iter(vars(primitives).values())


class RuleTable(MutableMapping[Any, Rule]):
    """The rules that primitives have as their method `method`; those that are set are `adapted` to what it takes,
    and those that are read, from what it takes."""

    def __init__(self, method: str, adapted: Callable[[Any, Rule], Rule] | None = None,
                 read: Callable[[Any, Rule], Rule] | None = None, also: dict[str, Any] | None = None,
                 hides: Sequence[str] = ()):
        self.method, self.adapted, self.read = method, adapted, read
        self.also = also or {}  # other attributes of a primitive whose rule is set
        self.hides = hides  # rules of its class that do the same in another way, and give way
        self.changed: dict[Any, None] = {}  # primitives with a rule from outside

    def __contains__(self, primitive: object) -> bool:
        none = getattr(Primitive, self.method)
        mine = getattr(primitive, self.method, none)
        return mine is not none and getattr(mine, "__func__", mine) is not none

    def __getitem__(self, primitive: Any) -> Rule:
        if primitive not in self:
            raise KeyError(primitive)
        rule = getattr(primitive, self.method)
        table, given = getattr(rule, "given", (None, None))
        if table is self:
            return given
        return self.read(primitive, rule) if self.read else rule

    def __setitem__(self, primitive: Any, rule: Rule) -> None:
        if primitive in self:
            clear_all()  # programs remember what came of the rule before
        method = rule
        if self.adapted:
            method = self.adapted(primitive, rule)
            method.given = self, rule  # type: ignore[attr-defined]
        setattr(primitive, self.method, method)
        for name, value in self.also.items():
            setattr(primitive, name, value)
        for name in self.hides:
            vars(primitive).setdefault(name, None)
        self.changed[primitive] = None

    def __delitem__(self, primitive: Any) -> None:
        del self.changed[primitive]
        clear_all()
        mine = vars(primitive)
        for name in (self.method, *self.also, *(name for name in self.hides if mine.get(name) is None)):
            mine.pop(name, None)

    def __iter__(self) -> Iterator[Any]:
        known = dict.fromkeys([*(p for p in _named() if isinstance(p, Primitive)), *self.changed])
        return (p for p in known if p in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)
