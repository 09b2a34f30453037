"""Equations with a lowering of their own: the table, and the program under construction that rules add to.

    @call("cumsum", inline="all")
    def _cumsum(builder, eqn): ...

A rule appends kernels and calls that compute the equation's results. Operands named in `inline` (their
positions, or "all") are read through a scope's `at`, so that producers fold into them; all others are in
memory, at `builder.memory(operand)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from anima.compiler.ir.groups import Fused
from anima.compiler.ir.loops import Expr, Stmt
from anima.compiler.lowering.array import Elements, Memory, Scope
from anima.compiler.machine.target import Target
from anima.core.avals import Shape, ShapedArray
from anima.core.jaxpr import Atom, Eqn, Var
from anima.core.source import Source

Operand = Memory | Expr | Elements
Result = Expr | Elements


class ProgramBuilder(Protocol):
    """What a rule sees of the program that it adds to."""

    def scope(self) -> Scope:
        """An empty kernel that can read every array of the program."""

    def kernel(self, name: str, scope: Scope, source: Source | None = None,
               reduces: tuple[Shape, tuple[int, ...]] | None = None) -> None:
        """Appends the finished kernel; `reduces` are the shape that it goes through in order along some axes."""

    def emit(self, stmt: Stmt) -> None:
        """Appends a statement."""

    def memory(self, atom: Atom) -> str:
        """The buffer that holds an operand (row-major, from its first element)."""

    def result(self, var: Var) -> str:
        """The buffer that a result is to be written to."""

    def is_read(self, var: Var) -> bool:
        """Whether a result is an operand of an equation, or one of the program's results."""

    def updated(self, eqn: Eqn) -> str:
        """The buffer of a result that is the first operand with some elements changed, as it is before that."""

    def written_over(self, eqn: Eqn) -> None:
        """Puts donated arguments where the results that branches make of them will be: copies that fall away."""

    def temp(self, dtype: str, size: int) -> str:
        """A new buffer for intermediate values."""

    target: Target
    """The machine that the program is for."""

    buffers: dict[str, Any]

    def buffer(self, name: str, dtype: str, size: int, role: str, value: Any = None) -> str:
        """A new buffer of a role."""

    def constant(self, value: Any) -> str:
        """A buffer with the value of a NumPy array."""

    def fill(self, buffer: str, size: int, value: Any) -> None:
        """Appends a kernel that sets every element (a Python number of the buffer's type)."""

    def copy(self, source: str, target: str, size: int) -> None:
        """Appends a kernel that copies a buffer, to one of another type perhaps."""

    def move(self, source: Operand, target: Memory, aval: ShapedArray) -> None:
        """Appends a kernel that copies an array (or a scalar's value) from one place to another."""

    def operand(self, atom: Atom) -> Operand:
        """Where an operand is, or, of a scalar, its value; of a small array, perhaps those of its elements."""

    def value(self, atom: Atom) -> Expr:
        """The value of a scalar operand, by name or number."""

    def set_value(self, var: Var, value: Result) -> None:
        """Makes `value`, by name or number, that of a scalar result (or of a small array: one for each element)."""

    def place(self, var: Var) -> Memory | None:
        """Where a result is to be written; None for one that `set_value` is to give."""

    def name(self, letter: str) -> str:
        """A new name for a value outside of kernels."""

    callbacks: list[Any]
    """What the program calls back into Python for."""

    def inner(self, eqn: Eqn) -> tuple[Fused, ...]:
        """The programs that an equation runs."""

    def program(self, fused: Fused, inputs: list[Operand], outputs: list[Memory | None]) -> list[Any]:
        """Appends a whole program that reads `inputs` and writes `outputs`. For results whose output is None,
        which are scalars or small arrays, gives their values."""

    def block(self, write: Callable[[], None]) -> tuple[Stmt, ...]:
        """The statements that `write` appends, for use inside of a `While`, `If` or `For`."""


CallRule = Callable[[ProgramBuilder, Eqn], None]
CALLS: dict[str, CallRule] = {}
INLINE_OPERANDS: dict[str, Any] = {}


def call(*names: str, inline: str | Sequence[int] = ()) -> Callable[[CallRule], CallRule]:
    """Enters a rule in the table."""
    def enter(rule: CallRule) -> CallRule:
        for name in names:
            CALLS[name] = rule
            INLINE_OPERANDS[name] = inline
        return rule
    return enter
