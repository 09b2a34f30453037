"""What a program is: a list of equations over typed variables, closed over constants.

    >>> anima.make_jaxpr(lambda x: 2 * anima.numpy.sin(x))(1.0)
    { lambda ; a:f32[]. let b:f32[] = sin a; c:f32[] = mul 2.0 b in (c,) }

Grammar: `Jaxpr = constvars; invars. Eqn* in outs`, `Eqn = outvars = primitive[params] atoms`,
`Atom = Var | Literal`. A `ClosedJaxpr` is a jaxpr with the values of its constvars.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from anima.core.avals import ShapedArray
from anima.core.primitive import Work, total_work
from anima.core.source import Source
from anima.util import lazy_module, record, replace

if TYPE_CHECKING:
    from anima.core.primitive import Primitive

show = lazy_module("anima.core.show")


class Var:
    """A variable, compared by identity; printed by its place in the program."""

    __slots__ = ("aval",)

    def __init__(self, aval: ShapedArray):
        self.aval = aval

    def __repr__(self) -> str:
        return f"Var(id={id(self)}):{self.aval.str_short()}"


class Literal:
    """A constant scalar, written in place."""

    __slots__ = ("aval", "val")

    def __init__(self, val: Any, aval: ShapedArray):
        self.val = np.asarray(val, aval.dtype)[()]
        self.aval = aval

    def __repr__(self) -> str:
        return show.literal_text(self.val)


Atom = Var | Literal


@record(eq=False)
class Eqn:
    """`outvars = primitive[params] invars`, asked for at `source`."""

    primitive: Primitive
    invars: Sequence[Atom]
    outvars: Sequence[Var]
    params: dict[str, Any]
    source: Source | None = None
    effects: frozenset[str] = frozenset()

    def replace(self, **changes: Any) -> Eqn:
        return replace(self, **changes)

    @property
    def source_info(self) -> Source | None:
        return self.source

    def __repr__(self) -> str:
        return show.show_eqn(self)


@record(eq=False)
class Jaxpr:
    """A program: constvars and invars come in, equations run in order, outvars go out."""

    constvars: Sequence[Var]
    invars: Sequence[Var]
    eqns: Sequence[Eqn]
    outvars: Sequence[Atom]
    effects: frozenset[str] = field(default=frozenset())

    def replace(self, **changes: Any) -> Jaxpr:
        return replace(self, **changes)

    @property
    def in_avals(self) -> list[ShapedArray]:
        return [v.aval for v in self.invars]

    @property
    def out_avals(self) -> list[ShapedArray]:
        return [v.aval for v in self.outvars]

    def pretty_print(self, *, source_info: bool = False, print_shapes: bool = True, **unused: Any) -> str:
        """The program's text; `source_info` adds the user's line to each equation."""
        return show.show_jaxpr(self, source_info=source_info, print_shapes=print_shapes)

    def __repr__(self) -> str:
        return show.show_jaxpr(self)


@record(eq=False)
class ClosedJaxpr:
    """A jaxpr and the values of its constvars."""

    jaxpr: Jaxpr
    consts: Sequence[Any] = ()

    def replace(self, **changes: Any) -> ClosedJaxpr:
        return replace(self, **changes)

    @property
    def eqns(self) -> Sequence[Eqn]:
        return self.jaxpr.eqns

    @property
    def in_avals(self) -> list[ShapedArray]:
        return self.jaxpr.in_avals

    @property
    def out_avals(self) -> list[ShapedArray]:
        return self.jaxpr.out_avals

    @property
    def effects(self) -> frozenset[str]:
        return self.jaxpr.effects

    @property
    def constvars(self) -> Sequence[Var]:
        return self.jaxpr.constvars

    @property
    def invars(self) -> Sequence[Var]:
        return self.jaxpr.invars

    @property
    def outvars(self) -> Sequence[Atom]:
        return self.jaxpr.outvars

    @property
    def literals(self) -> Sequence[Any]:
        return self.consts

    def map_jaxpr(self, f: Callable[[Jaxpr], Jaxpr]) -> ClosedJaxpr:
        """The same constants with `f(jaxpr)`."""
        return ClosedJaxpr(f(self.jaxpr), self.consts)

    def pretty_print(self, *, source_info: bool = False, print_shapes: bool = True, **unused: Any) -> str:
        """The program's text; `source_info` adds the user's line to each equation."""
        return show.show_jaxpr(self, source_info=source_info, print_shapes=print_shapes)

    def __repr__(self) -> str:
        return show.show_jaxpr(self)


def work_of(jaxpr: ClosedJaxpr | Jaxpr) -> Work:
    """What one run of a program computes: its equations' work, that of a loop of unknown length once."""
    return total_work(e.primitive.work([a.aval for a in e.invars], [v.aval for v in e.outvars],
                                       list(map(work_of, subjaxprs(e.params))), **e.params) for e in jaxpr.eqns)


def subjaxprs(params: dict[str, Any]) -> Iterator[ClosedJaxpr | Jaxpr]:
    """The programs held in an equation's parameters."""
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, (ClosedJaxpr, Jaxpr)):
                yield item
