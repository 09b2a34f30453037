"""In which kinds of memory a program's values are: names of one memory, on a CPU, which shardings of results keep.

    device_put(a, memory.Space.Host) * 2   ->   "pinned_host"
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anima.core.device import MEMORY_KINDS, MemorySpace
from anima.core.jaxpr import Atom, ClosedJaxpr, Jaxpr, Var, subjaxprs
from anima.core.placement import committed_sharding
from anima.core.shardings import Sharding, common_memory, memory_of
from anima.ops.placing import Loosely, device_put_p
from anima.util import weak_cache

Kinds = tuple[str | None, ...]


@weak_cache
def memories(closed: ClosedJaxpr, ins: Kinds) -> Kinds:
    """The kinds (see `memory_of`) of a program's results, for arguments in these."""
    env: dict[Var, str | None] = dict(zip(closed.jaxpr.invars, ins, strict=True))
    for var, const in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        env[var] = memory_of(committed_sharding(const))

    def read(atom: Atom) -> str | None:
        return env[atom] if isinstance(atom, Var) else None

    for eqn in closed.eqns:
        kinds = tuple(map(read, eqn.invars))
        inner = [*map(_closed, subjaxprs(eqn.params))] if eqn.params else []
        found: Sequence[str | None]
        if eqn.primitive is device_put_p:
            found = [_kind_at(eqn.params["devices"][0], kinds[0])]
        elif len(inner) == 1 and len(inner[0].in_avals) == len(kinds) and len(inner[0].out_avals) == len(eqn.outvars):
            found = memories(inner[0], kinds)
        else:
            found = [common_memory(kinds, [len(a.aval.shape) for a in eqn.invars])] * len(eqn.outvars)
        env.update(zip(eqn.outvars, found, strict=True))
    return tuple(map(read, closed.jaxpr.outvars))


@weak_cache
def tells_of_memory(closed: ClosedJaxpr) -> bool:
    """Whether a program puts values into some memory, wherever they are."""
    return any((e.primitive is device_put_p and isinstance(e.params["devices"][0], MemorySpace))
               or any(map(tells_of_memory, map(_closed, subjaxprs(e.params)))) for e in closed.eqns if e.params)


def _closed(program: Jaxpr | ClosedJaxpr) -> ClosedJaxpr:
    return program if isinstance(program, ClosedJaxpr) else ClosedJaxpr(program)


def _kind_at(target: Any, before: str | None) -> str | None:
    """The kind of memory of what is put to a target."""
    if isinstance(target, MemorySpace):
        return None if target.kind == MEMORY_KINDS[0] else target.kind
    sharding = target.sharding if isinstance(target, Loosely) else target
    return memory_of(sharding) if isinstance(sharding, Sharding) else before
