"""Equations with a lowering of their own: the table, and the program under construction that rules add to.

    @call("cumsum", inline="all")
    def _cumsum(builder, eqn): ...

A rule appends kernels and calls that compute the equation's results. Operands named in `inline` (their
positions, or "all") are read through a scope's `at`, so that producers fold into them; all others are in
memory, at `builder.memory(operand)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from anima.compiler.loops import Stmt
from anima.compiler.lower_array import Scope
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Var
from anima.core.source import Source


class ProgramBuilder(Protocol):
    """What a rule sees of the program that it adds to."""

    def scope(self) -> Scope:
        """An empty kernel that can read every array of the program."""

    def kernel(self, name: str, scope: Scope, source: Source | None = None) -> None:
        """Appends the finished kernel."""

    def emit(self, stmt: Stmt) -> None:
        """Appends a statement."""

    def memory(self, atom: Atom) -> str:
        """The buffer that holds an operand (row-major, from its first element)."""

    def result(self, var: Var) -> str:
        """The buffer that a result is to be written to."""

    def temp(self, dtype: str, size: int) -> str:
        """A new buffer for intermediate values."""

    def constant(self, value: Any) -> str:
        """A buffer with the value of a NumPy array."""

    def fill(self, buffer: str, size: int, value: Any) -> None:
        """Appends a kernel that sets every element (a Python number of the buffer's type)."""

    def copy(self, source: str, target: str, size: int) -> None:
        """Appends a kernel that copies a buffer."""

    def program(self, closed: ClosedJaxpr, inputs: list[str], outputs: list[str]) -> None:
        """Appends a whole program that reads `inputs` and writes `outputs` (all distinct from them)."""

    def block(self, write: Callable[[], None]) -> tuple[Stmt, ...]:
        """The statements that `write` appends, for use inside of a `While`, `If` or `For`."""


CallRule = Callable[[ProgramBuilder, Eqn], None]
CALLS: dict[str, CallRule] = {}
INLINE_OPERANDS: dict[str, Any] = {}


def call(*names: str, inline: str | tuple[int, ...] = ()) -> Callable[[CallRule], CallRule]:
    """Enters a rule in the table."""
    def enter(rule: CallRule) -> CallRule:
        for name in names:
            CALLS[name] = rule
            INLINE_OPERANDS[name] = inline
        return rule
    return enter
