"""Callbacks: equations that call back into Python, from compiled code, in program order.

    debug_print[fmt="x = {}"] a               call callback(0, 1, a)
    b = pure_callback[callback=f] a           call callback(1, 1, a, b)

What is called is the primitive's own `eval` rule, on copies of the operands; results are copied into their
buffers. Compiled code runs a callback exactly where, and as often as, its equation stands. Operations that a library
of Python's computes (a long `fft`) are called in the same way by their `into` rule, on the program's own memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima.compiler.ir.loops import Call
from anima.compiler.lowering.calls import ProgramBuilder, call
from anima.core.avals import ShapedArray
from anima.core.jaxpr import Eqn
from anima.core.primitive import Primitive
from anima.core.source import Source
from anima.util import record


@record
class HostFunction:
    """A Python function that a program calls: types of its operands and results, and the primitive it is for."""

    primitive: Primitive
    params: dict[str, Any]
    operands: tuple[ShapedArray, ...]
    results: tuple[ShapedArray, ...]
    source: Source | None

    @classmethod
    def of(cls, eqn: Eqn) -> HostFunction:
        """What an equation calls."""
        return cls(eqn.primitive, eqn.params, tuple(v.aval for v in eqn.invars), tuple(v.aval for v in eqn.outvars),
                   eqn.source)

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results of a call."""
        try:
            found = self.primitive.called_back(*arrays, **self.params)
        except Exception as error:
            if self.source is not None:
                error.add_note(f"called back from compiled code: {self.primitive} at {self.source}")
            raise
        return list(found) if self.primitive.multiple_results else [found]


@record
class InPlace(HostFunction):
    """An operation that reads and writes the program's memory."""

    def writer(self) -> Callable[..., None]:
        """What computes the results where they belong: of arrays for them, a function that tells how many threads there
        are, and the operands."""
        assert self.primitive.into is not None
        return self.primitive.into(**self.params)


@call("debug_print", "debug_callback", "pure_callback", "io_callback", "later")
def _callback(builder: ProgramBuilder, eqn: Eqn) -> None:
    _emit(builder, eqn, HostFunction)


@call("exchange", "group_index")
def call_in_place(builder: ProgramBuilder, eqn: Eqn) -> None:
    """Calls an operation's `into` rule."""
    _emit(builder, eqn, InPlace)


def _emit(builder: ProgramBuilder, eqn: Eqn, kind: type[HostFunction]) -> None:
    number = len(builder.callbacks)
    builder.callbacks.append(kind.of(eqn))
    reads = [builder.memory(v) for v in eqn.invars]
    writes = [builder.result(v) for v in eqn.outvars]
    builder.emit(Call("callback", (number, len(reads), *reads, *writes)))
