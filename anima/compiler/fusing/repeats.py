"""Equal groups are lowered once: those that follow are the first one's kernels again, on other buffers.

    a = exp x * 2;  b = exp y * 2       ->      kernel exp_mul: out0[i] = exp(in0[i]) * 2
                                                exp_mul again: in1 for in0, out1 for out0

Two groups are equal if they differ in the identities of their variables alone: the same operations on the same types,
the same operands in common, and results that are wanted in memory alike.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Sequence

from anima.compiler.ir.groups import Fused, Group
from anima.compiler.ir.loops import Again, Kernel, Stmt, While, statements
from anima.compiler.lowering.array import Memory
from anima.compiler.storage.buffers import buffers_of
from anima.core.jaxpr import Literal, Var
from anima.util import exactly

LEAST = 8  # groups of a program in which looking for equal ones may pay

Structure = tuple[Hashable, list[str]]  # what equal groups have in common, and the buffers, in an order that they share


class Repeats:
    """The kernels of the groups that were lowered so far, for one program between the given places."""

    def __init__(self, fused: Fused, places: dict[Var, Memory], values: Container[Var]) -> None:
        self.fused = fused
        self.places = places
        self.values = values
        self.known: dict[Hashable, tuple[list[tuple[Kernel, set[str]]], list[str]]] = {}

    def again(self, structure: Structure) -> list[Stmt] | None:
        """The kernels of an equal group on this one's buffers; None if there is none yet."""
        key, buffers = structure
        if key not in self.known:
            return None
        kernels, first = self.known[key]
        pairs = list(zip(first, buffers, strict=True))
        return [Again(kernel, tuple(pair for pair in pairs if pair[0] in used)) for kernel, used in kernels]

    def note(self, structure: Structure, stmts: Sequence[Stmt]) -> None:
        """Remembers what a group became, where that can stand for another group (a copy may be dropped later)."""
        key, buffers = structure
        kernels = [(s, buffers_of((s,))) for s in stmts if isinstance(s, Kernel) and s.name != "copy"]
        if len(kernels) == len(stmts) and all(used <= set(buffers) for _, used in kernels) and not any(
                isinstance(s, While) for s in statements(*stmts)):  # (their looks for signals count by themselves)
            self.known[key] = kernels, buffers

    def structure(self, group: Group) -> Structure | None:
        """What is common to a group and its equals; None if it cannot be told, or depends on values by name."""
        text: list[Hashable] = [group.kind, group.shape, group.axes, group.flat, group.cuts, group.paired]
        numbers: dict[Var, int] = {}
        buffers: dict[str, int] = {}
        visited: dict[int, int] = {}
        pending = list(reversed(group.roots))
        while pending:
            eqn = pending.pop()
            if id(eqn) in visited:
                continue
            visited[id(eqn)] = len(visited)
            text += (eqn.primitive, len(eqn.invars), exactly(eqn.params))
            for atom in (*eqn.invars, *eqn.outvars):
                if type(atom) is Literal:
                    text += (atom.aval.dtype, atom.val.tobytes())
                    continue
                assert type(atom) is Var
                if atom in numbers:
                    text.append(numbers[atom])
                    continue
                place = self.places.get(atom)
                if atom in self.values or not (place is None or isinstance(place, str)):
                    return None
                text += (atom.aval.shape, atom.aval.dtype, atom in self.fused.stored,
                         None if place is None else buffers.setdefault(place, len(buffers)))
                numbers[atom] = len(numbers)
                if place is None and atom in self.fused.producers:
                    pending.append(self.fused.producers[atom])
        text += (visited[id(eqn)] for eqn in group.roots)
        key = tuple(text)
        try:
            hash(key)
        except TypeError:  # parameters that cannot be compared
            return None
        return key, list(buffers)
