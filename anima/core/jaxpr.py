"""What a program is: a list of equations over typed variables, closed over constants.

    >>> anima.make_jaxpr(lambda x: 2 * anima.numpy.sin(x))(1.0)
    { lambda ; a:f32[]. let b:f32[] = sin a; c:f32[] = mul 2.0 b in (c,) }

Grammar: `Jaxpr = constvars; invars. Eqn* in outs`, `Eqn = outvars = primitive[params] atoms`,
`Atom = Var | Literal`. A `ClosedJaxpr` is a jaxpr with the values of its constvars.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from anima.core.avals import ShapedArray
from anima.core.primitive import Work, total_work
from anima.core.source import NameStack, Source, SourceInfo
from anima.util import lazy_module, record, replace

if TYPE_CHECKING:
    from anima.core.primitive import Primitive

show = lazy_module("anima.core.show")
notebook = lazy_module("anima.core.notebook")


class Var:
    """A variable, compared by identity; printed by its place in the program."""

    __slots__ = ("aval",)
    initial_qdd = final_qdd = None  # no type here changes while a program runs

    def __init__(self, aval: ShapedArray):
        self.aval = aval

    def __repr__(self) -> str:
        return f"Var(id={id(self)}):{self.aval.str_short()}"

    def pretty_print(self, context: Any = None, *, print_dtype: bool = True) -> str:
        """The variable by itself; only its program knows its name."""
        return repr(self) if print_dtype else f"Var(id={id(self)})"


class Literal:
    """A constant scalar, written in place."""

    __slots__ = ("aval", "val")

    def __init__(self, val: Any, aval: ShapedArray):
        self.val = np.asarray(val, aval and aval.dtype)[()]  # those who rewrite programs may leave the type out
        self.aval = aval

    @property
    def hash(self) -> int:
        """Of the value."""
        return hash(self.val.item())

    def __repr__(self) -> str:
        text = show.literal_text(self.val)
        kind = _TYPED.get(self.val.dtype.kind)
        return f"Literal({kind}({text}, dtype={self.val.dtype}))" if kind else f"Literal({text})"

    def pretty_print(self, context: Any = None, *, print_dtype: bool = True) -> str:
        text = show.literal_text(self.val)
        return f"{text}:{self.aval.str_short()}" if print_dtype else text


_TYPED = {"i": "TypedInt", "u": "TypedInt", "c": "TypedComplex"}  # as such numbers are written
Atom = Var | Literal


@record
class EqnContext:
    """The settings that an equation was recorded under, as its readers ask for them: none that matter here."""

    compute_type: None = None
    xla_metadata: None = None

    @property
    def manager(self) -> nullcontext[None]:
        return nullcontext()


@record(eq=False)
class Eqn:
    """`outvars = primitive[params] invars`, asked for at `source`."""

    primitive: Primitive
    invars: Sequence[Atom]
    outvars: Sequence[Var]
    params: dict[str, Any]
    source: Source | None = None
    effects: frozenset[str] = frozenset()

    def replace(self, invars: Sequence[Atom] | None = None, outvars: Sequence[Var] | None = None,
                primitive: Primitive | None = None, params: dict[str, Any] | None = None,
                effects: frozenset[str] | None = None, source_info: SourceInfo | None = None,
                ctx: EqnContext | None = None, *, source: Source | None = None) -> Eqn:
        """The equation with other fields where they are given."""
        if source_info is not None:
            source = source_info.place
        return Eqn(self.primitive if primitive is None else primitive, self.invars if invars is None else invars,
                   self.outvars if outvars is None else outvars, self.params if params is None else params,
                   self.source if source is None else source, self.effects if effects is None else frozenset(effects))

    @property
    def source_info(self) -> SourceInfo:
        return SourceInfo(self.source, NameStack(self.source.names if self.source else ()))

    @property
    def ctx(self) -> EqnContext:
        return EqnContext()

    def __repr__(self) -> str:
        return show.show_eqn(self)


class AnyJaxpr:
    """What a jaxpr and a closed one have in common."""

    __slots__ = ()
    is_high = False  # all types are those of arrays
    in_avals: Any  # types of the arguments

    @property
    def in_aval_qdds(self) -> list[ShapedArray]:
        return self.in_avals

    final_aval_qdds = in_aval_qdds

    def pretty_print(self, *, source_info: bool = False, name_stack: bool = False, print_shapes: bool = True,
                     use_color: bool | None = None, **unused: Any) -> str:
        """The program's text; `source_info` adds the user's line to each equation, `name_stack` the names around it,
        `use_color` the colours of terminals (None: on terminals, if the option pprint_use_color is on)."""
        text = show.show_jaxpr(self, source_info=source_info, name_stack=name_stack, print_shapes=print_shapes)
        return show.colored(text, use_color)

    def _repr_html_(self) -> str:
        return notebook.program_html(self)


@record(eq=False)
class Jaxpr(AnyJaxpr):
    """A program: constvars and invars come in, equations run in order, outvars go out."""

    constvars: Sequence[Var]
    invars: Sequence[Var]
    outvars: Sequence[Atom]
    eqns: Sequence[Eqn]
    effects: frozenset[str] = field(default=frozenset())
    debug_info: Any = field(default=None)  # the function that it was traced from, where that is known

    def replace(self, **changes: Any) -> Jaxpr:
        return replace(self, **changes)

    @property
    def in_avals(self) -> list[ShapedArray]:
        return [v.aval for v in self.invars]

    @property
    def out_avals(self) -> list[ShapedArray]:
        return [v.aval for v in self.outvars]

    def __repr__(self) -> str:
        return show.show_jaxpr(self)


@record(eq=False)
class ClosedJaxpr(AnyJaxpr):
    """A jaxpr and the values of its constvars."""

    jaxpr: Jaxpr
    consts: Sequence[Any] = ()

    def replace(self, *, jaxpr: Jaxpr | None = None, consts: Sequence[Any] | None = None) -> ClosedJaxpr:
        return ClosedJaxpr(self.jaxpr if jaxpr is None else jaxpr, self.consts if consts is None else consts)

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
    def debug_info(self) -> Any:
        return self.jaxpr.debug_info

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

    def part(self, jaxpr: Jaxpr) -> ClosedJaxpr:
        """A program of equations of this one, with the values of those of its constvars that it has."""
        values = dict(zip(self.constvars, self.consts, strict=True))
        return ClosedJaxpr(jaxpr, [values[v] for v in jaxpr.constvars])

    def map_jaxpr(self, f: Callable[[Jaxpr], Jaxpr]) -> ClosedJaxpr:
        """The same constants with `f(jaxpr)`."""
        return ClosedJaxpr(f(self.jaxpr), self.consts)

    def __repr__(self) -> str:
        return show.show_jaxpr(self)


def work_of(jaxpr: ClosedJaxpr | Jaxpr) -> Work:
    """What one run of a program computes: its equations' work, that of a loop of unknown length once."""
    return total_work(e.primitive.work([a.aval for a in e.invars], [v.aval for v in e.outvars],
                                       list(map(work_of, subjaxprs(e.params))), **e.params) for e in jaxpr.eqns)


def all_eqns(jaxpr: ClosedJaxpr | Jaxpr) -> Iterator[Eqn]:
    """The equations of a program, each before those of the programs that it holds."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in subjaxprs(eqn.params):
            yield from all_eqns(inner)


def asks_for_zeros(params: dict[str, Any]) -> bool:
    """Whether a program in these parameters holds an operation whose transpose is to be asked for zeros, too."""
    return any(e.primitive.takes_zeros for inner in subjaxprs(params) for e in all_eqns(inner))


def subjaxprs(params: dict[str, Any]) -> Iterator[ClosedJaxpr | Jaxpr]:
    """The programs held in an equation's parameters."""
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, (ClosedJaxpr, Jaxpr)):
                yield item
