"""Making and taking apart programs: for interpreters of your own.

    for eqn in make_jaxpr(f)(x).jaxpr.eqns:
        outs = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from anima.core.avals import ShapedArray
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, EqnContext, Jaxpr, Var, subjaxprs as _programs
from anima.core.primitive import Primitive
from anima.core.source import Source, SourceInfo, here
from anima.core.stage import eval_jaxpr
from anima.util import record


@record
class DebugInfo:
    """The function that a program comes from: who traced it, "name at file:line", names of arguments and results."""

    traced_for: str
    func_src_info: str
    arg_names: tuple[str, ...] | None = None
    result_paths: Any = None

    @property
    def func_name(self) -> str:
        return self.func_src_info.split(" at ")[0]

    name = func_name

    def safe_arg_names(self, expected_count: int) -> tuple[str, ...]:
        """The arguments' names, or empty ones if there are not as many."""
        names = self.arg_names or ()
        return tuple(names) if len(names) == expected_count else ("",) * expected_count

    def with_unknown_names(self) -> DebugInfo:
        return DebugInfo(self.traced_for, self.func_src_info)


class DropVar(Var):
    """A result that nothing uses."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "_"


def gensym() -> Callable[[ShapedArray], Var]:
    """A function from types to new variables."""
    return Var


def new_jaxpr_eqn(invars: Sequence[Atom], outvars: Sequence[Var], primitive: Primitive, params: dict[str, Any],
                  effects: Any, source_info: SourceInfo | Source | None = None, ctx: EqnContext | None = None) -> Eqn:
    """The equation `outvars = primitive[params] invars`, asked for at `source_info` (default: here)."""
    place = source_info.place if isinstance(source_info, SourceInfo) else source_info or here()
    return Eqn(primitive, list(invars), list(outvars), params, place, frozenset(effects))


class _EquationsOfPrograms(type):
    """What `isinstance` asks, and what a call makes."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Eqn)

    def __call__(cls, invars: Sequence[Atom], outvars: Sequence[Var], primitive: Primitive, params: dict[str, Any],
                 effects: Any, source_info: SourceInfo | Source | None, ctx: EqnContext | None = None) -> Eqn:
        return new_jaxpr_eqn(invars, outvars, primitive, params, effects, source_info, ctx)


class JaxprEqn(metaclass=_EquationsOfPrograms):
    """The equations of programs: `outvars = primitive[params] invars`."""


def jaxpr_as_fun(closed_jaxpr: ClosedJaxpr, *args: Any) -> Callable[..., list[Any]]:
    """A program as a function of flat arguments (after `args`, if they are given) that returns a list.

    >>> jaxpr_as_fun(make_jaxpr(lambda x: 2 * x)(1.0))(4.0)
    [Array(8., dtype=float32, weak_type=True)]
    """
    return partial(eval_jaxpr, closed_jaxpr.jaxpr, closed_jaxpr.consts, *args)


def jaxprs_in_params(params: dict[str, Any]) -> Iterator[Jaxpr]:
    """The programs held in an equation's parameters, without their constants."""
    for program in _programs(params):
        yield program.jaxpr if isinstance(program, ClosedJaxpr) else program


def subjaxprs(jaxpr: Jaxpr) -> Iterator[Jaxpr]:
    """The programs held in the parameters of all equations of a program."""
    for eqn in jaxpr.eqns:
        yield from jaxprs_in_params(eqn.params)
