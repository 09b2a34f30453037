"""Equal programs made one object, so that what is remembered of the one is found for the other.

    interned(a) is interned(b)      where a and b differ in the identities of their variables alone

A loop that runs on its own is traced for each new function, if it is a lambda at each call; what is derived from its
program (machine code, derivatives, batched forms) belongs to the program and is made once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from types import MethodType
from typing import Any

import numpy as np

from anima.config import config
from anima.core.jaxpr import Atom, ClosedJaxpr, Jaxpr, Literal, Var
from anima.util import ByIdentity, cleared, fork_safe, weak_cache

_KEPT = 128  # programs: as many as a long-running process may use in turn, and their machine code

_programs: OrderedDict[Hashable, ClosedJaxpr] = OrderedDict()
_lock = fork_safe(threading.RLock())
cleared(_programs.clear)


def interned(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The first of the programs equal to this one that were passed here lately.

    A program with effects is its own: it holds functions of the user's, which nothing should keep alive. So is one
    with parameters that cannot be compared.
    """
    if closed.effects:
        return closed
    try:
        key = _key(closed), config.trace_key()
        hash(key)
    except TypeError:
        return closed
    with _lock:
        known = _programs.setdefault(key, closed)
        _programs.move_to_end(key)
        if len(_programs) > _KEPT:
            _programs.popitem(last=False)
    return known


@weak_cache
def _key(closed: ClosedJaxpr) -> Hashable:
    return (_program(closed.jaxpr), *map(ByIdentity, closed.consts))


def _program(jaxpr: Jaxpr) -> Hashable:
    """A jaxpr with numbers in place of variables."""
    numbers: dict[Var, int] = {}

    def new(variables: Sequence[Var]) -> Iterator[Hashable]:
        for v in variables:
            numbers[v] = len(numbers)
            yield v.aval

    def atom(a: Atom) -> Hashable:
        if isinstance(a, Literal):
            return a.aval, np.asarray(a.val).tobytes()  # 0.0 is not -0.0
        return numbers[a]

    return (tuple(new(jaxpr.constvars)), tuple(new(jaxpr.invars)),
            tuple([(e.primitive, tuple(map(atom, e.invars)), _value(e.params), tuple(new(e.outvars)), e.source)
                   for e in jaxpr.eqns]), tuple(map(atom, jaxpr.outvars)))


def _value(x: Any) -> Hashable:
    """A parameter, or a part of one, so that what is equal is the same to the compiler (1 is not 1.0, nor True)."""
    if isinstance(x, ClosedJaxpr):
        return _key(x)
    if isinstance(x, Jaxpr):
        return _program(x)
    if isinstance(x, dict):
        return tuple([(k, _value(v)) for k, v in x.items()])
    if isinstance(x, (tuple, list)):
        return type(x), tuple(map(_value, x))
    if isinstance(x, partial):  # a rule of a custom derivative
        return _value(x.func), _value(x.args), _value(x.keywords)
    if isinstance(x, MethodType):  # whose function may be given another rule
        return x.__func__, ByIdentity(x.__self__), _value(getattr(x.__self__, "__dict__", {}))
    return (repr(x) if isinstance(x, float) else x), type(x)
