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
from anima.util import deeper, weak_cache

Kinds = tuple[str | None, ...]


@weak_cache
def memories(program: ClosedJaxpr | Jaxpr, ins: Kinds) -> Kinds:
    """The kinds (see `memory_of`) of a program's results, for arguments in these."""
    env: dict[Var, str | None] = dict(zip(program.invars, ins, strict=True))
    if isinstance(program, ClosedJaxpr):
        env.update((v, memory_of(committed_sharding(c)))
                   for v, c in zip(program.jaxpr.constvars, program.consts, strict=True))

    def read(atom: Atom) -> str | None:
        return env.get(atom) if isinstance(atom, Var) else None

    for eqn in program.eqns:
        kinds = tuple(map(read, eqn.invars))
        inner = [*subjaxprs(eqn.params)] if eqn.params else []
        found: Sequence[str | None]
        if eqn.primitive is device_put_p:
            found = [_kind_at(eqn.params["devices"][0], kinds[0])]
        elif len(inner) == 1 and len(inner[0].invars) == len(kinds) and len(inner[0].outvars) == len(eqn.outvars):
            with deeper():
                found = memories(inner[0], kinds)
        else:
            found = [common_memory(kinds, [len(a.aval.shape) for a in eqn.invars])] * len(eqn.outvars)
        env.update(zip(eqn.outvars, found, strict=True))
    return tuple(map(read, program.outvars))


@weak_cache
def tells_of_memory(program: ClosedJaxpr | Jaxpr) -> bool:
    """Whether a program puts values into some memory, wherever they are."""
    with deeper():
        return any((e.primitive is device_put_p and isinstance(e.params["devices"][0], MemorySpace))
                   or any(map(tells_of_memory, subjaxprs(e.params))) for e in program.eqns if e.params)


def _kind_at(target: Any, before: str | None) -> str | None:
    """The kind of memory of what is put to a target."""
    if isinstance(target, MemorySpace):
        return None if target.kind == MEMORY_KINDS[0] else target.kind
    sharding = target.sharding if isinstance(target, Loosely) else target
    return memory_of(sharding) if isinstance(sharding, Sharding) else before
