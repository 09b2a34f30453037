"""Control flow: `scan`, `while` and `cond` become loops and branches around kernels.

    scan over x: f32[100,8], carry c: f32[8]        for k < 100:
                                                      kernel: out0[i] = out0[i] + in1[k*8 + i]

Scalars that a loop carries are variables, in registers. Arrays that it carries stay in one buffer, updated
in place where all that the body reads of them can be read before (see `overwrite.py`), and through a copy
otherwise. A slice of `xs` is a place in its buffer, and so is a slice of `ys`: nothing is copied in or out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from anima.compiler.ir.groups import Fused
from anima.compiler.ir.loops import (
    INDEX,
    Assign,
    Const,
    Expr,
    For,
    If,
    Let,
    Load,
    Mutable as Variable,
    NamedValue,
    Op,
    Stmt,
    While,
)
from anima.compiler.lowering.array import Memory, Sliced, constant, scalar_type
from anima.compiler.lowering.calls import Operand, ProgramBuilder, Result, call
from anima.compiler.lowering.elements import FEW, splits
from anima.core.avals import ShapedArray
from anima.core.jaxpr import Atom, Eqn, Var
from anima.util import record, split_list

CONTROL = frozenset(("scan", "while", "cond", "tape_while", "tape_scan"))


class Carry:
    """What a loop carries: a variable for each scalar, a buffer for each array, or variables for its elements where
    the loop's `body` takes small arrays apart. `given` are the body's constants."""

    def __init__(self, builder: ProgramBuilder, body: Fused, given: Sequence[Operand], initial: Sequence[Atom],
                 results: Sequence[Var]):
        self.builder = builder
        self.body = body
        self.given = given
        self.slots: list[Memory | Variables] = []
        self.avals = [v.aval for v in results]
        apart = splits(body.closed.jaxpr)
        for atom, var in zip(initial, results, strict=True):
            place = builder.place(var)
            if not var.aval.shape or (apart and 0 < var.aval.size <= FEW):
                value = builder.value(atom)
                self.slots.append(_variables(builder, value if type(value) is tuple else (value,), var.aval))
            else:
                sliced = isinstance(place, Sliced)
                buffer = builder.temp(scalar_type(var.aval), var.aval.size) if sliced else builder.result(var)
                builder.move(builder.operand(atom), buffer, var.aval)
                self.slots.append(buffer)

    def current(self) -> list[Operand]:
        """The values at this point of the loop: names for variables, buffers for arrays."""
        return [slot.read(self.builder) if isinstance(slot, Variables) else slot for slot in self.slots]

    def step(self, elements: Sequence[Operand] = (), outputs: Sequence[Memory | None] = ()) -> None:
        """One run of the body, which reads the `elements` of this step too, and writes its other results to
        `outputs`."""
        targets = [None if isinstance(slot, Variables) else slot for slot in self.slots]
        values = self.builder.program(self.body, [*self.given, *self.current(), *elements], [*targets, *outputs])
        for slot, value in zip(self.slots, values, strict=False):
            if isinstance(slot, Variables):
                slot.assign(self.builder, value)

    def read_back(self, buffers: Sequence[str]) -> None:
        """Makes what is in these buffers, one for each array or scalar, the current values."""
        for slot, aval, buffer in zip(self.slots, self.avals, buffers, strict=True):
            if isinstance(slot, Variables):
                slot.assign(self.builder, tuple(Load(buffer, Const(i, INDEX), slot.dtype) for i in range(aval.size)))
            else:
                self.builder.move(buffer, slot, aval)

    def finish(self, results: Sequence[Var]) -> None:
        """Gives the results their final values."""
        for slot, var in zip(self.slots, results, strict=True):
            if isinstance(slot, Variables):
                self.builder.set_value(var, slot.read(self.builder))
            else:
                place = self.builder.place(var)
                if place is not None:
                    self.builder.move(slot, place, var.aval)


@record
class Variables:
    """The variables for a scalar, or for the elements of a small array."""

    names: tuple[str, ...]
    dtype: str
    is_array: bool

    def read(self, builder: ProgramBuilder) -> Result:
        """Names for the present values."""
        values = []
        for name in self.names:
            values.append(NamedValue(builder.name("v"), self.dtype))
            builder.emit(Let(values[-1].name, NamedValue(name, self.dtype)))
        return tuple(values) if self.is_array else values[0]

    def assign(self, builder: ProgramBuilder, value: Result) -> None:
        """Gives them new values."""
        for name, one in zip(self.names, value if type(value) is tuple else (value,), strict=True):
            builder.emit(Assign(name, one))  # type: ignore[arg-type]


def _variables(builder: ProgramBuilder, values: Sequence[Expr], aval: ShapedArray) -> Variables:
    """New variables with these values."""
    slot = Variables(tuple(builder.name("s") for _ in values), scalar_type(aval), bool(aval.shape))
    for name, value in zip(slot.names, values, strict=True):
        builder.emit(Variable(name, slot.dtype, value))
    return slot


# ---------------------------------------------------------------- scan


@call("scan")
def _scan(builder: ProgramBuilder, eqn: Eqn) -> None:
    p = eqn.params
    length, num_carry, reverse = p["length"], p["num_carry"], p["reverse"]
    (fused,) = builder.inner(eqn)
    jaxpr = fused.closed.jaxpr
    consts, initial, xs = split_list(eqn.invars, [p["num_consts"], num_carry])
    results, ys = split_list(eqn.outvars, [num_carry])
    given: list[Operand] = [builder.operand(c) for c in consts]
    x_places = [_in_memory(builder, x) for x in xs]
    y_places = [builder.place(y) or builder.result(y) for y in ys]
    carry = Carry(builder, fused, given, initial, results)
    position = NamedValue(builder.name("k"), INDEX)

    def body() -> None:
        slices = [_slice(place, position, v.aval, length, reverse) for place, v in
                  zip(x_places, jaxpr.invars[len(consts) + num_carry:], strict=True)]
        parts = [_slice(place, position, v.aval, length, reverse) for place, v in
                 zip(y_places, jaxpr.outvars[num_carry:], strict=True)]
        carry.step(slices, parts)

    stmts = builder.block(body)
    builder.emit(For(position.name, Const(length, INDEX), stmts, "serial" if num_carry else "parallel"))
    carry.finish(results)


def _in_memory(builder: ProgramBuilder, atom: Atom) -> Memory:
    operand = builder.operand(atom)
    return operand if isinstance(operand, (str, Sliced)) else builder.memory(atom)


def _slice(whole: Memory | None, position: Expr, aval: ShapedArray, length: int, reverse: bool) -> Sliced:
    """Element number `position` (from the end, if `reverse`) of an array of `length` elements of type `aval`."""
    assert whole is not None
    base = whole if isinstance(whole, Sliced) else Sliced(whole, 0, ())
    step = -aval.size if reverse else aval.size
    first = (length - 1) * aval.size if reverse else 0
    return Sliced(base.buffer, base.offset + first, (*base.positions, (position, length, step)))


# ---------------------------------------------------------------- while


@call("while")
def _while(builder: ProgramBuilder, eqn: Eqn) -> None:
    p = eqn.params
    cond_consts, body_consts, initial = split_list(eqn.invars, [p["cond_nconsts"], p["body_nconsts"]])
    cond, body = builder.inner(eqn)
    for_cond: list[Operand] = [builder.operand(c) for c in cond_consts]
    for_body: list[Operand] = [builder.operand(c) for c in body_consts]
    carry = Carry(builder, body, for_body, initial, eqn.outvars)
    found: list[Expr] = []

    def test() -> None:
        (value,) = builder.program(cond, [*for_cond, *carry.current()], [None])
        assert value is not None
        found.append(value)

    before = builder.block(test)
    builder.emit(While(before, found[0], builder.block(carry.step)))
    carry.finish(eqn.outvars)


# ---------------------------------------------------------------- cond


@call("cond")
def _cond(builder: ProgramBuilder, eqn: Eqn) -> None:
    index, *operands = eqn.invars
    which = builder.value(index)
    builder.written_over(eqn)
    given = [builder.operand(x) for x in operands]
    targets = [builder.place(v) for v in eqn.outvars]
    variables = [None if place is not None or not v.aval.size else
                 _variables(builder, [constant(0, scalar_type(v.aval))] * v.aval.size, v.aval)
                 for v, place in zip(eqn.outvars, targets, strict=True)]

    def branch(fused: Fused) -> None:
        values = builder.program(fused, given, targets)
        for slot, value in zip(variables, values, strict=True):
            if slot is not None and value is not None:
                slot.assign(builder, value)

    blocks = [builder.block(partial(branch, fused)) for fused in builder.inner(eqn)]

    def among(low: int, high: int) -> tuple[Stmt, ...]:
        """The block that is chosen, of those from `low` to before `high`: half of them are left after each question."""
        if high - low == 1:
            return blocks[low]
        middle = (low + high) // 2
        chosen: Expr = Op("lt", (which, constant(middle, which.dtype)), "bool")
        if which.dtype == "bool":
            chosen = Op("not", (which,), "bool")
        return (If(chosen, among(low, middle), among(middle, high)),)

    for stmt in among(0, len(blocks)):
        builder.emit(stmt)
    for var, made in zip(eqn.outvars, variables, strict=True):
        if made is not None:
            builder.set_value(var, made.read(builder))
