"""Inlining: calls are replaced by the programs that they hold.

    b = pjit[name=f jaxpr={ lambda ; x. let y = sin x in (y,) }] a      ->      b = sin a

A primitive that stands for a program says so by a method `body(params, types of the arguments)`;
those on the words of random keys wait until there are words, and what is compiled when it is called stays, but in
loops. Programs inside control flow are treated alike. After this pass no other such primitive appears.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from anima.core.dtypes import ExtendedDType
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var


def inline(closed: ClosedJaxpr, in_loop: bool = False) -> ClosedJaxpr:
    """Replaces every call by the equations of its program."""
    if not any(_stands_for(e, in_loop) or (e.params and has_programs(e.params)) for e in closed.eqns):
        return closed
    flat = _Flattener(in_loop)
    jaxpr = closed.jaxpr
    env: dict[Var, Atom] = {}
    flat.constvars = list(jaxpr.constvars)
    flat.consts = list(closed.consts)
    flat.append(jaxpr, env)
    outvars = [flat.read(env, v) for v in jaxpr.outvars]
    return ClosedJaxpr(Jaxpr(flat.constvars, jaxpr.invars, outvars, flat.eqns, jaxpr.effects), flat.consts)


def _stands_for(eqn: Eqn, in_loop: bool) -> bool:
    primitive = eqn.primitive
    if primitive.body is None or primitive.on_words:
        return False
    return in_loop or not primitive.on_call or any(isinstance(a.aval.dtype, ExtendedDType) for a in eqn.invars)


def has_programs(params: dict[str, Any]) -> bool:
    """Whether an equation's parameters hold programs."""
    for value in params.values():
        kind = type(value)
        if kind is ClosedJaxpr or kind is Jaxpr:
            return True
        if kind in (tuple, list) and value and type(value[0]) in (ClosedJaxpr, Jaxpr):
            return True
    return False


def map_programs(params: dict[str, Any], fun: Callable[[ClosedJaxpr], ClosedJaxpr]) -> dict[str, Any]:
    """The parameters with `fun` applied to the programs that they hold."""
    def one(value: Any) -> Any:
        if type(value) is ClosedJaxpr:
            return fun(value)
        if type(value) is Jaxpr and not value.constvars:
            return fun(ClosedJaxpr(value, [])).jaxpr
        if type(value) in (tuple, list) and value and type(value[0]) in (ClosedJaxpr, Jaxpr):
            return type(value)(map(one, value))
        return value
    return {k: one(v) for k, v in params.items()}


class _Flattener:
    """Collects the equations of a program and of those inside it."""

    def __init__(self, in_loop: bool) -> None:
        self.in_loop = in_loop
        self.eqns: list[Eqn] = []
        self.constvars: list[Var] = []
        self.consts: list[Any] = []

    def read(self, env: dict[Var, Atom], atom: Atom) -> Atom:
        return atom if type(atom) is Literal else env.get(atom, atom)  # type: ignore[arg-type]

    def append(self, jaxpr: Jaxpr, env: dict[Var, Atom], rename: bool = False) -> None:
        """Adds the equations of `jaxpr`; with `rename`, defining new variables."""
        for eqn in jaxpr.eqns:
            invars = eqn.invars
            if env:
                invars = [a if type(a) is Literal else env.get(a, a) for a in invars]  # type: ignore[arg-type]
            if _stands_for(eqn, self.in_loop):
                self._call(eqn, invars, env)
                continue
            outvars = eqn.outvars
            if rename:
                outvars = [Var(v.aval) for v in outvars]
                env.update(zip(eqn.outvars, outvars, strict=True))
            params = eqn.params
            if has_programs(params):
                params = map_programs(params, partial(inline, in_loop=self.in_loop or eqn.primitive.name != "cond"))
            if rename or invars is not eqn.invars or params is not eqn.params:
                eqn = Eqn(eqn.primitive, invars, outvars, params, eqn.source, eqn.effects)
            self.eqns.append(eqn)

    def _call(self, eqn: Eqn, invars: Sequence[Atom], env: dict[Var, Atom]) -> None:
        """Adds the equations that a call stands for, and makes its results those of the program."""
        assert eqn.primitive.body is not None
        body = eqn.primitive.body(eqn.params, [v.aval for v in eqn.invars])
        inner: dict[Var, Atom] = dict(zip(body.jaxpr.invars, invars, strict=True))
        for var, value in zip(body.jaxpr.constvars, body.consts, strict=True):
            known = Var(var.aval)
            self.constvars.append(known)
            self.consts.append(value)
            inner[var] = known
        self.append(body.jaxpr, inner, rename=True)
        env.update(zip(eqn.outvars, (self.read(inner, v) for v in body.jaxpr.outvars), strict=True))


