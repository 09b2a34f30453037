"""Equal groups and calls are lowered once: those that follow are the first one's kernels again, on other buffers.

    a = exp x * 2;  b = exp y * 2       ->      kernel exp_mul: out0[i] = exp(in0[i]) * 2
                                                exp_mul again: in1 for in0, out1 for out0

Two groups are equal if they differ in the identities of their variables alone: the same operations on the same types,
the same operands in common, and results that are wanted in memory alike. Calls (`lowering/calls.py`) that read whole
arrays are equal within one block, so that a kernel that stands here again runs where the first one did: once, in each
step of a loop, or on one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Sequence

from anima.compiler.ir.groups import Fused, Group
from anima.compiler.ir.loops import Again, Buffer, Kernel, Local, Stmt, While, statements
from anima.compiler.lowering.array import Memory
from anima.compiler.storage.buffers import buffers_of
from anima.core.jaxpr import Eqn, Literal, Var
from anima.util import exactly

LEAST = 8   # groups of a program in which looking for equal ones may pay
LONG = 100  # statements of a call's kernels that are worth it: short ones may be held in registers

Structure = tuple[Hashable, list[str]]  # what equal groups have in common, and the buffers, in an order that they share


class Known:
    """The kernels of what was lowered so far, by its structure."""

    def __init__(self) -> None:
        self.known: dict[Hashable, tuple[list[tuple[Kernel, set[str]]], list[str], list[Buffer]]] = {}

    def again(self, structure: Structure, temp: Callable[[str, int], str]) -> list[Stmt] | None:
        """The kernels of an equal part on this one's buffers; None if there is none yet. `temp` makes a buffer for
        them alone."""
        key, buffers = structure
        if key not in self.known:
            return None
        kernels, first, others = self.known[key]
        pairs = [*zip(first, buffers, strict=True),
                 *((b.name, temp(b.dtype, b.size) if b.role == "temp" else b.name) for b in others)]
        return [Again(kernel, tuple(pair for pair in pairs if pair[0] in used)) for kernel, used in kernels]

    def note(self, structure: Structure, stmts: Sequence[Stmt], others: Sequence[Buffer] = ()) -> None:
        """Remembers what a part became, where that can stand for another one (a copy may be dropped later); `others`
        are buffers of its own, and constants."""
        key, buffers = structure
        kernels = [(s, buffers_of((s,)) - {x.buffer for x in statements(s) if isinstance(x, Local)})
                   for s in stmts if isinstance(s, Kernel) and s.name != "copy"]
        known = {*buffers, *(b.name for b in others)}
        if len(kernels) == len(stmts) and all(used <= known for _, used in kernels) and not any(
                isinstance(s, While) for s in statements(*stmts)):  # (their looks for signals count by themselves)
            self.known[key] = kernels, buffers, list(others)


def call_structure(eqn: Eqn, buffers: Sequence[str]) -> Structure | None:
    """What is common to a call and its equals, whose operands and results are in these buffers; None if it cannot be
    told."""
    key = (eqn.primitive, exactly(eqn.params), *((a.aval.shape, a.aval.dtype) for a in (*eqn.invars, *eqn.outvars)),
           *map(buffers.index, buffers))
    return (key, list(dict.fromkeys(buffers))) if _compares(key) else None


def _compares(key: Hashable) -> bool:
    try:
        hash(key)
    except TypeError:  # parameters that cannot be compared
        return False
    return True


def is_long(stmts: Sequence[Stmt]) -> bool:
    """Whether statements are worth looking for their equals."""
    return sum(1 for _ in statements(*stmts)) >= LONG


class Repeats(Known):
    """The kernels of the groups that were lowered so far, for one program between the given places."""

    def __init__(self, fused: Fused, places: dict[Var, Memory], values: Container[Var]) -> None:
        super().__init__()
        self.fused = fused
        self.places = places
        self.values = values

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
        return (key, list(buffers)) if _compares(key) else None
