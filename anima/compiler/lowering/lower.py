"""From a fused program to the loop IR: buffers for what is in memory, a kernel for each group.

    map over (8): b = exp a; c = b * 2.0      ->      program f(in0: f32[8]) -> (out0: f32[8])
                                                        kernel exp_mul:
                                                          vector i1 < 8: out0[i1] = exp(in0[i1]) * 2.0

Control flow lowers its inner programs through the same `Lowering`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from anima.compiler.fusing.overwrite import MemoryReuse
from anima.compiler.fusing.repeats import LEAST, Known, Repeats, call_structure, is_long
from anima.compiler.ir.groups import LARGE, Fused, Group
from anima.compiler.ir.loops import Buffer, Call, Expr, Kernel, Program, Stmt
from anima.compiler.lowering import (
    callback,
    contract,
    control,
    convolution,
    foreign,
    fourier,
    index,
    linalg,
    matrices,
    scan,
    singular,
    sort,
    sparse,
    spectra,
    tape,
)
from anima.compiler.lowering.array import (
    Elements,
    Memory,
    Scope,
    Sliced,
    constant,
    not_lowered,
    scalar_type,
)
from anima.compiler.lowering.callback import HostFunction
from anima.compiler.lowering.calls import CALLS, INLINE_OPERANDS, Operand, Result
from anima.compiler.lowering.control import CONTROL
from anima.compiler.lowering.elements import FEW, all_indices, splits
from anima.compiler.lowering.flush import flushes
from anima.compiler.lowering.map import map_kernels
from anima.compiler.lowering.reduce import reduce_kernel
from anima.compiler.machine.target import Target
from anima.core import dtypes
from anima.core.array import ConcreteArray
from anima.core.avals import Shape, ShapedArray
from anima.core.jaxpr import Atom, Eqn, Literal, Var
from anima.core.source import Source
from anima.util import replace

# They enter their rules in the tables.
RULES = (callback, contract, control, convolution, foreign, fourier, index, linalg, matrices, scan, singular, sort,
         sparse, spectra, tape)


def lower(fused: Fused, name: str, target: Target, donated: tuple[int, ...] = ()) -> Program:
    """The loop program of a fused program; `donated` are positions of inputs whose memory may be reused.

    After this pass there are no arrays and no equations, only buffers, loops and scalars.
    """
    builder = Lowering(target)
    jaxpr = fused.closed.jaxpr
    inputs = [builder.buffer(f"in{n}", scalar_type(v.aval), v.aval.size, "input")
              for n, v in enumerate(jaxpr.invars)]
    outputs = [builder.buffer(f"out{n}", scalar_type(v.aval), v.aval.size, "output")
               for n, v in enumerate(jaxpr.outvars)]
    for k in donated:
        builder.buffers[inputs[k]] = replace(builder.buffers[inputs[k]], donated=True)
    builder.fused_program(fused, inputs, outputs)
    return Program(name, tuple(builder.buffers.values()), tuple(builder.body), callbacks=tuple(builder.callbacks),
                   flushes=flushes(jaxpr))


SMALL = 1024  # bytes of constants of which equal ones are found


class Lowering:
    """A program under construction: see `calls.ProgramBuilder` for what lowering rules use of it.

    `places` and `values` are those of the program (of a loop's body, ...) that is being lowered.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.buffers: dict[str, Buffer] = {}
        self.callbacks: list[HostFunction] = []
        self.body: list[Stmt] = []
        self.places: dict[Var, Memory] = {}
        self.values: dict[Var, Expr | Elements] = {}
        self.split = False  # whether small arrays are values of elements
        self.beside_kernels: set[Group] = set()  # the groups that become plain statements
        self.plain: Scope | None = None  # the statements beside kernels
        self.fused: Fused | None = None
        self.inside = 0  # how many loops and branches are around the statements being appended
        self.repeats: Repeats | None = None  # if equal groups are lowered once
        self.calls = Known()  # those of the block that is being appended to
        self.starts: dict[Eqn, list[int]] = {}  # where the parts of concatenations begin
        self._constants: dict[int, tuple[Any, str]] = {}
        self._contents: dict[tuple[np.dtype, bytes], str] = {}  # small constants, which may be equal
        self._count = 0
        self._names = 0

    # ---------------------------------------------------------------- buffers

    def buffer(self, name: str, dtype: str, size: int, role: str, value: Any = None) -> str:
        self.buffers[name] = Buffer(name, dtype, size, role, value)  # type: ignore[arg-type]
        return name

    def temp(self, dtype: str, size: int) -> str:
        self._count += 1
        return self.buffer(f"t{self._count}", dtype, size, "temp")

    def constant(self, value: Any) -> str:
        known = self._constants.get(id(value))
        if known is not None:
            return known[1]
        array = np.ascontiguousarray(value.value if isinstance(value, ConcreteArray) else value)
        if array.dtype == dtypes.float0:
            array = np.zeros(array.shape, np.bool_)  # see `scalar_type`
        content = (array.dtype, array.tobytes()) if array.nbytes <= SMALL else None
        name = None if content is None else self._contents.get(content)
        if name is None:
            self._count += 1
            name = self.buffer(f"const{self._count}", dtypes.short_name(array.dtype), array.size, "const", array)
            if content is not None:
                self._contents[content] = name
        self._constants[id(value)] = value, name
        return name

    def name(self, letter: str) -> str:
        self._names += 1
        return f"p{letter}{self._names}"

    def home(self, atom: Var) -> Var:
        assert self.fused is not None
        return self.fused.home(atom)

    def memory(self, atom: Atom) -> str:
        if isinstance(atom, Literal):
            return self.constant(np.asarray(atom.val, atom.aval.dtype))
        home = self.home(atom)
        place = self.places.get(home)
        if isinstance(place, str):
            return place
        buffer = self.temp(scalar_type(atom.aval), atom.aval.size)
        self.move(self.values[home] if place is None else place, buffer, home.aval)
        return buffer

    def operand(self, atom: Atom) -> Operand:
        if isinstance(atom, Literal):
            return self.memory(atom) if atom.aval.shape else self.value(atom)
        if not atom.aval.shape:
            return self.value(atom)
        home = self.home(atom)
        given = self.values.get(home)
        return self.places[home] if given is None else given if isinstance(given, tuple) else (given,)

    def value(self, atom: Atom) -> Any:
        """The value of a scalar, or those of the elements of a small array."""
        if isinstance(atom, Literal):
            return constant(atom.val, scalar_type(atom.aval))
        if atom not in self.values:
            with self.beside() as scope:
                found = tuple(scope.at(atom, index) for index in all_indices(scope, atom.aval.shape))
            self.values[atom] = found if atom.aval.shape else found[0]
        return self.values[atom]

    def set_value(self, var: Var, value: Result) -> None:
        self.values[var] = value
        if var in self.places:
            self.move(value, self.places[var], var.aval)

    def place(self, var: Var) -> Memory | None:
        return self.places.get(var) if var.aval.shape else None

    def result(self, var: Var) -> str:
        if var not in self.places:
            self.places[var] = self.temp(scalar_type(var.aval), var.aval.size)
        place = self.places[var]
        assert isinstance(place, str)
        return place

    def is_read(self, var: Var) -> bool:
        assert self.fused is not None
        jaxpr = self.fused.closed.jaxpr
        return var in jaxpr.outvars or any(var in eqn.invars for eqn in jaxpr.eqns)

    def updated(self, eqn: Eqn) -> str:
        operand, out = eqn.invars[0], self.result(eqn.outvars[0])
        self.copy(self.memory(operand), out, operand.aval.size)
        assert self.fused is not None
        if eqn.outvars[0] in self.fused.over:  # the last that reads the operand: what it is made of may die
            self.places[self.fused.over[eqn.outvars[0]]] = out
        return out

    def written_over(self, eqn: Eqn) -> None:
        assert self.fused is not None
        for var in eqn.outvars:
            array = self.fused.over.get(var)
            place = None if array is None else self.places.get(array)
            if isinstance(place, str) and self.buffers[place].donated and self.inside == 0:
                out = self.result(var)
                self.copy(place, out, var.aval.size)
                self.places[array] = out  # type: ignore[index]

    # ---------------------------------------------------------------- statements

    def emit(self, stmt: Stmt) -> None:
        self.body.append(stmt)

    def scope(self) -> Scope:
        assert self.fused is not None
        return Scope(self.places, self.fused.producers, self.values, self.starts)

    @contextmanager
    def beside(self) -> Iterator[Scope]:
        """For statements beside kernels, whose names are new in the whole program. What they compute is known to
        all that follow."""
        assert self.plain is not None
        scope = self.plain
        scope.prefix, scope.count = "p", self._names
        yield scope
        self._names = scope.count
        self.body.extend(scope.take())

    def kernel(self, name: str, scope: Scope, source: Source | None = None,
               reduces: tuple[Shape, tuple[int, ...]] | None = None) -> None:
        if scope.body:
            self.body.append(Kernel(name, scope.body, source, reduces=reduces))

    def fill(self, buffer: str, size: int, value: Any) -> None:
        scope = Scope({}, {})
        with scope.loop(size, "each") as i:
            scope.store(buffer, i, constant(value, self.buffers[buffer].dtype))
        if size:
            self.kernel("fill", scope)

    def copy(self, source: str, target: str, size: int) -> None:
        scope = Scope({}, {})
        with scope.loop(size, "each") as i:
            scope.store(target, i, scope.cast(scope.load(source, i, self.buffers[source].dtype),
                                              self.buffers[target].dtype))
        if size and source != target:
            self.kernel("copy", scope)

    def move(self, source: Operand, target: Memory, aval: ShapedArray) -> None:
        """Appends a kernel that copies an array from one place to another."""
        if source == target or not aval.size:
            return
        if isinstance(source, str) and isinstance(target, str):
            self.copy(source, target, aval.size)
            return
        if not isinstance(source, (str, Sliced)):  # values need no kernel
            var = Var(aval)
            scope = Scope({var: target}, {})
            values = source if isinstance(source, tuple) else (source,)
            for index, value in zip(all_indices(scope, aval.shape), values, strict=True):
                scope.write(var, index, value)
            self.body.extend(scope.body)
            return
        flat = Var(ShapedArray((aval.size,), aval.dtype))
        other = Var(flat.aval)
        scope = Scope({flat: source, other: target}, {})
        with scope.loop(aval.size, "each") as i:
            scope.write(other, (i,), scope.at(flat, (i,)))
        self.kernel("copy", scope)

    def block(self, write: Callable[[], None]) -> tuple[Stmt, ...]:
        outer, self.body, self.calls = (self.body, self.calls), [], Known()
        self.inside += 1
        try:
            write()
            return tuple(self.body)
        finally:
            self.body, self.calls = outer
            self.inside -= 1

    # ---------------------------------------------------------------- programs

    def inner(self, eqn: Eqn) -> tuple[Fused, ...]:
        assert self.fused is not None
        return self.fused.inner[eqn]

    def program(self, fused: Fused, inputs: list[Operand], outputs: list[Memory | None]) -> list[Any]:
        outer = self.places, self.values, self.fused, self.split, self.plain, self.beside_kernels, self.repeats
        try:
            return self.fused_program(fused, inputs, outputs)
        finally:
            (self.places, self.values, self.fused, self.split, self.plain, self.beside_kernels,
             self.repeats) = outer

    def fused_program(self, fused: Fused, inputs: Sequence[Operand], outputs: Sequence[Memory | None]
                      ) -> list[Result | None]:
        """Appends the kernels of a program between the given places."""
        jaxpr = fused.closed.jaxpr
        self.fused, self.places, self.values, self.plain = fused, {}, {}, None
        self.split = self.inside > 0 and (any(type(x) is tuple for x in inputs) or splits(jaxpr))
        self.plain = self.scope()
        self.beside_kernels = self._plain_groups(fused.groups)
        for var, given in zip(jaxpr.invars, inputs, strict=True):
            if isinstance(given, (str, Sliced)):
                self.places[var] = given
            else:
                self.values[var] = given
        for var, value in zip(jaxpr.constvars, fused.closed.consts, strict=True):
            self.places[var] = self.constant(value)
        mark = tape.mark(self) if tape.RECORDS in jaxpr.effects else None
        first, last = self._place_outputs(fused, outputs)
        self._share_results(fused)
        for group in fused.groups:
            self._place_results(group, fused)
        for atom, target in first:  # before an argument is overwritten
            self.move(self.operand(atom), target, atom.aval)
        taken, updated = set(outputs), set(fused.over.values())
        overwritten = {v for v in jaxpr.invars if v in updated or self.places.get(v) in taken}
        for result, place in zip(jaxpr.outvars, outputs, strict=True):
            if place is None and isinstance(result, Var) and fused.home(result) in overwritten:
                self.value(result)
        many = not self.inside and len(fused.groups) >= LEAST
        self.repeats = Repeats(fused, self.places, self.values) if many else None
        for group in fused.groups:
            self._group(group, fused)
        for source, target, aval in last:
            self.move(source if isinstance(source, str) else self.operand(source), target, aval)
        values = [self.value(atom) if target is None else None
                  for atom, target in zip(jaxpr.outvars, outputs, strict=True)]
        if mark is not None:
            tape.release(self, mark)
        return values

    def _place_outputs(self, fused: Fused, outputs: Sequence[Memory | None]
                       ) -> tuple[list[tuple[Atom, Memory]], list[tuple[Atom | str, Memory, ShapedArray]]]:
        """Computes each result in its own place where that is possible, though it be that of an argument; the copies
        that are left to do before and after."""
        jaxpr, taken = fused.closed.jaxpr, MemoryReuse(fused)
        given = set(jaxpr.invars)
        arguments = {place: v for v in jaxpr.invars if isinstance(place := self.places.get(v), str)}
        first: list[tuple[Atom, Memory]] = []
        last: list[tuple[Atom | str, Memory, ShapedArray]] = []
        for atom, target in zip(jaxpr.outvars, outputs, strict=True):
            home = atom if isinstance(atom, Literal) else fused.home(atom)
            argument = arguments.get(target) if isinstance(target, str) else None
            if target is None or home is argument:
                continue
            if isinstance(home, Literal) or home in self.places or home in self.values:
                if home not in given:
                    last.append((atom, target, atom.aval))
                elif argument is None or not taken.is_read(argument):
                    first.append((atom, target))
                else:
                    first.append((atom, self._later(target, atom.aval, last)))
                continue
            chain = taken.chain(home)
            if argument is not None:
                found = taken.over(argument, home, self.places)
                target = self._later(target, home.aval, last) if found is None else target
                chain = chain if found is None else found
            elif isinstance(target, Sliced) and len(chain) > 1:
                target = self._later(target, home.aval, last)
            for var in chain:
                if var not in self.values:
                    self.places.setdefault(var, target)
        return first, last

    def _later(self, target: Memory, aval: ShapedArray, last: list[tuple[Atom | str, Memory, ShapedArray]]) -> str:
        """A buffer for what is copied to its place at the end."""
        buffer = self.temp(scalar_type(aval), aval.size)
        last.append((buffer, target, aval))
        return buffer

    def _share_results(self, fused: Fused) -> None:
        """Gives arrays that updates write over the memory of the updates' results."""
        most = FEW if self.split else 1
        for result, array in fused.over.items():
            if array not in self.places and array not in self.values and array.aval.size > most:
                if result not in self.places:
                    self.places[result] = self.temp(scalar_type(result.aval), result.aval.size)
                self.places[array] = self.places[result]

    def _place_results(self, group: Group, fused: Fused) -> None:
        """Memory for the results of a group that have none yet; scalars inside of loops need none."""
        named = group in self.beside_kernels or group.roots[0].primitive.name in CONTROL
        most = FEW if self.split else 1
        for eqn in group.roots:
            for var in eqn.outvars:
                if var in fused.stored and var not in self.places and not (
                        named and (not var.aval.shape or 0 < var.aval.size <= most)):
                    self.places[var] = self.temp(scalar_type(var.aval), var.aval.size)

    def _plain_groups(self, groups: Sequence[Group]) -> set[Group]:
        """The groups that become plain statements rather than kernels: small ones in loops, no more than a function
        should hold."""
        found: set[Group] = set()
        size = 0
        for group in groups if self.inside > 0 else ():
            count = math.prod(group.shape)
            if group.kind == "map" and (not group.shape or (self.split and count <= FEW)):
                size += count * group.size
                if size <= LARGE:
                    found.add(group)
        return found

    def _group(self, group: Group, fused: Fused) -> None:
        first = group.roots[0]
        for var in group.reads if group not in self.beside_kernels and first.primitive.name not in CONTROL else ():
            if type(self.values.get(var)) is tuple and var not in self.places:
                self.places[var] = self.memory(var)  # kernels read memory
        if group.kind == "call":
            self._call(first)
        elif all(v.aval.size == 0 for eqn in group.roots for v in eqn.outvars):
            return
        elif group in self.beside_kernels:
            stored = [v for eqn in group.roots for v in eqn.outvars if v in fused.stored]
            with self.beside() as scope:
                indices = all_indices(scope, group.shape)
                for index in indices:
                    for eqn in group.roots:
                        scope.define(eqn, index)
            for var in stored:
                found = tuple(scope.memo[var, index] for index in indices)
                self.set_value(var, found if var.aval.shape else found[0])
        else:
            self._kernels(group, fused)

    def _kernels(self, group: Group, fused: Fused) -> None:
        """Appends the kernels of a group: those of an equal one again, where there is one."""
        structure = None if self.repeats is None else self.repeats.structure(group)
        again = None if structure is None or self.repeats is None else self.repeats.again(structure, self.temp)
        if again is not None:
            self.body += again
            return
        start, first = len(self.body), group.roots[0]
        if group.kind == "map":
            for scope in map_kernels(self.scope, group, fused.stored):
                self.kernel(_kernel_name(group), scope, first.source)
        else:
            self.kernel(_kernel_name(group), reduce_kernel(self.scope, group, fused.stored), first.source,
                        (group.shape, group.axes))
        if structure is not None and self.repeats is not None:
            self.repeats.note(structure, self.body[start:])

    def _call(self, eqn: Eqn) -> None:
        rule = CALLS.get(eqn.primitive.name)
        if rule is None:
            raise not_lowered(eqn)
        start = len(self.body)
        if eqn.primitive.name in CONTROL:
            rule(self, eqn)
        else:
            self._apart(rule, eqn)
        self.body[start:] = [replace(s, source=eqn.source) if isinstance(s, Call) else s for s in self.body[start:]]

    def _apart(self, rule: Callable[[Any, Eqn], None], eqn: Eqn) -> None:
        # Rules write whole buffers: results that are parts of others are copied there.
        parts = [(v, self.places[v]) for v in eqn.outvars if isinstance(self.places.get(v), Sliced)]
        for var, _ in parts:
            self.places[var] = self.temp(scalar_type(var.aval), var.aval.size)
        self._once(rule, eqn)
        for var, place in parts:
            self.move(self.places[var], place, var.aval)

    def _once(self, rule: Callable[[Any, Eqn], None], eqn: Eqn) -> None:
        """Appends what a rule does, or the kernels of an equal call again."""
        operands = [self.places.get(self.home(x)) for x in eqn.invars if type(x) is Var]
        places = [place for place in operands if isinstance(place, str)]
        whole = not INLINE_OPERANDS[eqn.primitive.name] and len(places) == len(eqn.invars)
        structure = call_structure(eqn, [*places, *map(self.result, eqn.outvars)]) if whole else None
        if structure is None:
            rule(self, eqn)
            return
        again = self.calls.again(structure, self.temp)
        if again is not None:
            self.body += again
            return
        start, known = len(self.body), len(self.buffers)
        rule(self, eqn)
        if is_long(self.body[start:]):
            self.calls.note(structure, self.body[start:], [
                b for n, b in enumerate(self.buffers.values()) if n >= known or b.role == "const"])


def _kernel_name(group: Group) -> str:
    """A name that says what the kernel computes: its last operations."""
    names = [eqn.primitive.name for eqn in group.roots]
    short = list(dict.fromkeys(reversed(names)))[:3]
    return "_".join(reversed(short))


