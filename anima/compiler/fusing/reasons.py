"""Why values of a fused program go through memory, between kernels."""

from __future__ import annotations

from collections.abc import Iterator

from anima.compiler.ir.groups import LARGE, Fused, Group
from anima.compiler.lowering.reduce import REDUCTIONS
from anima.core.jaxpr import Eqn, Var
from anima.util import record


@record
class InMemory:
    """A value that one kernel stores and others load: the equation that it comes from, and why it is not folded."""

    var: Var
    eqn: Eqn
    reason: str

    def __str__(self) -> str:
        where = f" at {self.eqn.source}" if self.eqn.source is not None else ""
        return f"{self.var.aval.str_short()}, {self.eqn.primitive.name}{where}: {self.reason}"


def through_memory(fused: Fused) -> Iterator[InMemory]:
    """The values between kernels of a program and of its loops and branches, in the order of the program."""
    readers: dict[Var, list[Group]] = {}
    for group in fused.groups:
        for var in dict.fromkeys(map(fused.home, _loaded(group))):
            readers.setdefault(var, []).append(group)
    for group in fused.groups:
        for eqn in group.roots:
            for var in eqn.outvars:
                others = [g for g in readers.get(var, ()) if g is not group]
                if others and var in fused.stored:
                    yield InMemory(var, eqn, _reason(eqn, var, group, others))
            for inner in fused.inner.get(eqn, ()):
                yield from through_memory(inner)


def _loaded(group: Group) -> list[Var]:
    if group.kind == "call":
        return [v for eqn in group.roots for v in eqn.invars if type(v) is Var]
    return list(group.reads)


def _reason(eqn: Eqn, var: Var, group: Group, others: list[Group]) -> str:
    calls = [g.roots[0].primitive.name for g in others if g.kind == "call"]
    if group.kind == "call":
        return f"{eqn.primitive.name} has a kernel or routine of its own"
    if calls:
        return f"{calls[0]} reads whole arrays"
    if eqn.primitive.name in REDUCTIONS:
        return "it is not known before all that it adds up or compares has been seen"
    if group.size + others[0].size > LARGE:
        return "one kernel for both would be too large to compile quickly"
    if len(others) == 1 and var in others[0].moved:
        return "the kernel that reads it looks at each element several times, or in another order"
    return "a later kernel needs it too, and it is dearer to compute again than to load"
