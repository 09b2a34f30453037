"""From a fused program to the loop IR: buffers for what is in memory, a kernel for each group.

    program f(in0: f32[8]) -> (out0: f32[8])
      kernel exp:
        vector i1 < 8: out0[i1] = exp(in0[i1])

Control flow lowers its inner programs through the same `Builder`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from anima.compiler.calls import CALLS
from anima.compiler.fuse import fuse
from anima.compiler.groups import Fused, Group
from anima.compiler.loops import Buffer, Kernel, Program, Stmt
from anima.compiler.lower_array import Scope, constant, not_lowered, scalar_type
from anima.compiler.lower_map import map_kernels
from anima.compiler.lower_reduce import reduce_kernels, rows_kernel, strategy
from anima.core import dtypes
from anima.core.array import ConcreteArray
from anima.core.jaxpr import Atom, ClosedJaxpr, Literal, Var
from anima.core.source import Source


def lower(fused: Fused, name: str, donated: tuple[int, ...] = ()) -> Program:
    """The loop program of a fused program; `donated` are positions of inputs whose memory may be reused.

    After this pass there are no arrays and no equations, only buffers, loops and scalars.
    """
    builder = Builder()
    jaxpr = fused.closed.jaxpr
    inputs = [builder.buffer(f"in{n}", scalar_type(v.aval), v.aval.size, "input")
              for n, v in enumerate(jaxpr.invars)]
    outputs = [builder.buffer(f"out{n}", scalar_type(v.aval), v.aval.size, "output")
               for n, v in enumerate(jaxpr.outvars)]
    builder.fused_program(fused, inputs, outputs)
    program = Program(name, tuple(builder.buffers.values()), tuple(builder.body))
    return program


class Builder:
    """A program under construction: see `calls.ProgramBuilder` for what lowering rules use of it."""

    def __init__(self) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.body: list[Stmt] = []
        self.places: dict[Var, str] = {}
        self.fused: Fused | None = None
        self._constants: dict[int, tuple[Any, str]] = {}
        self._count = 0

    # ---------------------------------------------------------------- buffers

    def buffer(self, name: str, dtype: str, size: int, role: str, value: Any = None) -> str:
        self.buffers[name] = Buffer(name, dtype, size, role, value)  # type: ignore[arg-type]
        return name

    def temp(self, dtype: str, size: int) -> str:
        self._count += 1
        return self.buffer(f"t{self._count}", dtype, size, "temp")

    def constant(self, value: Any) -> str:
        array = np.ascontiguousarray(value.value if isinstance(value, ConcreteArray) else value)
        known = self._constants.get(id(value))
        if known is None:
            self._count += 1
            name = self.buffer(f"const{self._count}", dtypes.short_name(array.dtype), array.size, "const", array)
            known = self._constants[id(value)] = (value, name)
        return known[1]

    def memory(self, atom: Atom) -> str:
        if isinstance(atom, Literal):
            return self.constant(np.asarray(atom.val, atom.aval.dtype))
        assert self.fused is not None
        return self.places[self.fused.home(atom)]

    def result(self, var: Var) -> str:
        return self.places[var]

    # ---------------------------------------------------------------- statements

    def emit(self, stmt: Stmt) -> None:
        self.body.append(stmt)

    def scope(self) -> Scope:
        assert self.fused is not None
        return Scope(self.places, self.fused.producers)

    def kernel(self, name: str, scope: Scope, source: Source | None = None) -> None:
        body = scope.body
        if body:
            self.body.append(Kernel(name, body, source))

    def fill(self, buffer: str, size: int, value: Any) -> None:
        scope = Scope({}, {})
        with scope.loop(size, "vector") as i:
            scope.store(buffer, i, constant(value, self.buffers[buffer].dtype))
        if size:
            self.kernel("fill", scope)

    def copy(self, source: str, target: str, size: int) -> None:
        scope = Scope({}, {})
        with scope.loop(size, "vector") as i:
            scope.store(target, i, scope.load(source, i, self.buffers[source].dtype))
        if size and source != target:
            self.kernel("copy", scope)

    def block(self, write: Callable[[], None]) -> tuple[Stmt, ...]:
        outer, self.body = self.body, []
        try:
            write()
            return tuple(self.body)
        finally:
            self.body = outer

    # ---------------------------------------------------------------- programs

    def program(self, closed: ClosedJaxpr, inputs: list[str], outputs: list[str]) -> None:
        outer = self.places, self.fused
        try:
            self.fused_program(fuse(closed), inputs, outputs)
        finally:
            self.places, self.fused = outer

    def fused_program(self, fused: Fused, inputs: list[str], outputs: list[str]) -> None:
        """Appends the kernels of a program between the given buffers."""
        jaxpr = fused.closed.jaxpr
        self.fused = fused
        self.places = dict(zip(jaxpr.invars, inputs, strict=True))
        for var, value in zip(jaxpr.constvars, fused.closed.consts, strict=True):
            self.places[var] = self.constant(value)
        copies = self._place_outputs(fused, outputs)
        for group in fused.groups:
            for eqn in group.roots:
                for var in eqn.outvars:
                    if var in fused.stored and var not in self.places:
                        self.places[var] = self.temp(scalar_type(var.aval), var.aval.size)
        for group in fused.groups:
            self._group(group, fused)
        for atom, target in copies:
            if isinstance(atom, Literal):
                self.fill(target, 1, constant(atom.val, scalar_type(atom.aval)).value)
            else:
                self.copy(self.places[fused.home(atom)], target, atom.aval.size)

    def _place_outputs(self, fused: Fused, outputs: list[str]) -> list[tuple[Atom, str]]:
        """Computes each result in its own buffer where that is possible; the copies that are left to do."""
        copies: list[tuple[Atom, str]] = []
        for atom, target in zip(fused.closed.jaxpr.outvars, outputs, strict=True):
            home = atom if isinstance(atom, Literal) else fused.home(atom)
            if isinstance(home, Literal) or home in self.places:
                copies.append((atom, target))
            else:
                self.places[home] = target
        return copies

    def _group(self, group: Group, fused: Fused) -> None:
        first = group.roots[0]
        if group.kind == "call":
            rule = CALLS.get(first.primitive.name)
            if rule is None:
                raise not_lowered(first)
            rule(self, first)
        elif all(v.aval.size == 0 for eqn in group.roots for v in eqn.outvars):
            return
        elif group.kind == "map":
            for scope in map_kernels(self.scope, group, fused.stored):
                self.kernel(_kernel_name(group), scope, first.source)
        elif strategy(group.shape, group.axes) == "rows":
            self.kernel(_kernel_name(group), rows_kernel(self.scope, group, fused.stored), first.source)
        else:
            reduce_kernels(self.scope, group, fused.stored,
                           lambda name, scope: self.kernel(name, scope, first.source), self.temp)


def _kernel_name(group: Group) -> str:
    """A name that says what the kernel computes: its last operations."""
    names = [eqn.primitive.name for eqn in group.roots]
    short = list(dict.fromkeys(reversed(names)))[:3]
    return "_".join(reversed(short))


