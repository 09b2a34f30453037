"""The operations on references: making, reading, writing, adding, ending.

    b:f32[] <- a[0]          get
    b:f32[], a[0] <- a[0], c  swap
    a[0] <- c                swap, whose result nobody uses
    a[0] += c                addupdate

On a cell of the current trace they act at once, whatever that trace computes with (`eval`). A reference from outside
is passed to the trace below, which may only be given what that knows of: neither tangents nor lanes of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from anima import errors
from anima.core.avals import ShapedArray
from anima.core.jaxpr import ClosedJaxpr
from anima.core.primitive import Primitive
from anima.core.refs import (
    STATE,
    AbstractRef,
    Cell,
    EagerCell,
    Levels,
    Ref,
    StagedRef,
    check_alive,
    indexed_shape,
    read,
)
from anima.core.stage import StageTrace
from anima.core.state import current
from anima.core.trace import EVAL, Trace, Tracer, aval_of
from anima.ops.broadcast import as_array, full
from anima.ops.elementwise import convert
from anima.transforms.discharge import discharged
from anima.transforms.vmap import BatchTrace, batch_flat
from anima.util import fun_name


def _known(*operands: Any) -> list[Any]:
    """Operands as arrays, which outside of all traces have values."""
    given = list(map(as_array, operands))
    for x in given if current.trace is EVAL else ():
        if isinstance(x, Tracer):
            raise errors.UnexpectedTracerError(errors.leaked_tracer_message(x))
    return given


class RefOp(Primitive):
    """What is done to one reference, the first operand."""

    takes_refs = True
    writes = False
    does = ""  # for errors

    def bind(self, *args: Any, **params: Any) -> Any:
        ref, *operands = args
        check_alive(ref, f"ref_{self.name}")
        trace = current.trace
        if isinstance(ref, Cell) and ref.trace is trace:
            return self.eval(ref, *_known(*operands), **params)
        if self.writes and isinstance(trace, BatchTrace):
            self.batch(trace.size, args, (), **params)
        return self.outside(trace, args, params)

    def outside(self, trace: Trace, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """What is done to a reference that is no cell of the current trace."""
        return trace.process(self, args, params)

    def effects_of(self, params: dict[str, Any]) -> frozenset[str]:
        return frozenset((STATE,))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        raise ValueError(
            f"performing {self.does} operation with a differentiated value on a non-differentiated array reference of "
            f"type {primals[0].aval!r}. Move the array reference to be an argument of the differentiated function? "
            f"Or write anima.lax.stop_gradient of the value.\n  {errors.user_line()}")

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> Any:
        raise ValueError(
            f"performing {self.does} operation with vmapped value on an unbatched array reference of type "
            f"{args[0].aval!r}. Move the array reference to be an argument to the vmapped function?\n"
            f"  {errors.user_line()}")


class Get(RefOp):
    """The elements at a place."""

    does = "a get"

    def infer(self, ref: AbstractRef, *operands: ShapedArray, levels: Levels) -> ShapedArray:  # type: ignore[override]
        return ref.inner_aval.update(shape=indexed_shape(ref.shape, levels, [o.shape for o in operands]))

    def eval(self, ref: Cell, *operands: Any, levels: Levels) -> Any:
        return ref.read(levels, operands)

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, levels: Levels) -> Any:
        whole = self.bind(args[0], levels=())
        outs, out_dims = batch_flat(lambda *given: [read(whole, levels, given)], size, args[1:], dims[1:])
        return outs[0], out_dims[0]


class Write(RefOp):
    """An operation on a place and a value, the second operand."""

    writes = True

    def write(self, ref: Cell, value: Any, operands: Sequence[Any], levels: Levels, method: str) -> None:
        inner = ref.aval.inner_aval
        if aval_of(value).weak_type != inner.weak_type:
            value = convert(value, inner.dtype, inner.weak_type)
        if inner.dtype == np.bool_ and method == "add":
            method = "max"  # what sums of truth values are
        ref.write(levels, operands, value, method)


class Swap(Write):
    """Puts a value in a place, and gives what was there."""

    does = "a set/swap"

    def infer(self, ref: AbstractRef, value: ShapedArray, *operands: ShapedArray,  # type: ignore[override]
              levels: Levels) -> ShapedArray:
        return ref.inner_aval.update(shape=value.shape)

    def put(self, ref: Ref, value: Any, *operands: Any, levels: Levels) -> None:
        """Without asking what was there."""
        check_alive(ref, "ref_set")
        if isinstance(ref, Cell) and ref.trace is current.trace:
            value, *operands = _known(value, *operands)
            self.write(ref, value, operands, levels, "set")
        else:
            self.bind(ref, value, *operands, levels=levels)

    def eval(self, ref: Cell, value: Any, *operands: Any, levels: Levels) -> Any:
        before = ref.read(levels, operands)
        self.write(ref, value, operands, levels, "set")
        return before


class AddUpdate(Write):
    """Adds a value to what is in a place."""

    multiple_results = True
    does = "an addupdate"

    def infer(self, ref: AbstractRef, value: ShapedArray, *operands: ShapedArray,  # type: ignore[override]
              levels: Levels) -> list[ShapedArray]:
        return []

    def eval(self, ref: Cell, value: Any, *operands: Any, levels: Levels) -> list[Any]:
        self.write(ref, value, operands, levels, "add")
        return []


class End(RefOp):
    """The end of a reference, which only who made it may say."""

    writes = True

    def outside(self, trace: Trace, args: Sequence[Any], params: dict[str, Any]) -> Any:
        ref = args[0]
        if not isinstance(trace, StageTrace):
            if not trace.holds_refs:
                return trace.process(self, args, params)
            self.batch(0, args, ())
        if not isinstance(ref, StagedRef) or ref.owner is not trace or ref.variable in trace.invars:
            self.batch(0, args, ())
        out = trace.process(self, args, params)
        ref.end(self.does)
        return out

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        return self.batch(0, primals, ())

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> Any:
        raise ValueError(
            f"{self.name} of an array reference of type {args[0].aval!r} within a function that it was made outside "
            f"of. End it where it was made.\n  {errors.user_line()}")


class Freeze(End):
    """The array that a reference ends with."""

    does = "frozen"

    def infer(self, ref: AbstractRef) -> ShapedArray:  # type: ignore[override]
        return ref.inner_aval

    def eval(self, ref: Cell) -> Any:
        ref.end(self.does)
        return ref.whole()


class Free(End):
    """Ends a reference whose array nobody needs."""

    multiple_results = True
    does = "freed"

    def infer(self, ref: AbstractRef) -> list[ShapedArray]:  # type: ignore[override]
        return []

    def eval(self, ref: Cell) -> list[Any]:
        ref.end(self.does)
        return []


class NewRef(RefOp):
    """A reference to a copy of an array."""

    def bind(self, *args: Any, **params: Any) -> Any:
        trace = current.trace
        return self.eval(*args, **params) if trace.holds_refs else trace.process(self, args, params)

    def infer(self, aval: ShapedArray, *, memory_space: Any, kind: Any) -> AbstractRef:  # type: ignore[override]
        return AbstractRef(aval, memory_space, kind)

    def eval(self, value: Any, *, memory_space: Any, kind: Any) -> Cell:
        value = as_array(value)
        kind_of = EagerCell if current.trace is EVAL else Cell
        return kind_of(current.trace, value, AbstractRef(aval_of(value), memory_space, kind))


class EmptyRef(RefOp):
    """A reference to an array of this type: zeros."""

    bind = NewRef.bind

    def infer(self, *, ty: ShapedArray, memory_space: Any) -> AbstractRef:  # type: ignore[override]
        return AbstractRef(ty, memory_space)

    def eval(self, *, ty: ShapedArray, memory_space: Any) -> Cell:
        return new_ref_p.eval(full(ty.shape, np.zeros((), ty.dtype)[()], ty.dtype), memory_space=memory_space,
                              kind=None)


get_p, swap_p, addupdate_p = Get("get"), Swap("swap"), AddUpdate("addupdate")
freeze_p, free_p = Freeze("freeze"), Free("free_ref")
new_ref_p, empty_ref_p = NewRef("new_ref"), EmptyRef("empty_ref")


def whole(ref: Ref) -> Any:
    """The array that a reference holds by now."""
    return get_p.bind(ref, levels=())


def put(ref: Ref, value: Any) -> None:
    """An array of the same type in place of that."""
    swap_p.put(ref, value, levels=())


def cells_of(refs: Sequence[int], given: Sequence[Any], values: Sequence[Any]) -> dict[int, Cell]:
    """Cells of the current trace in place of the references at these places among what is given."""
    cells = {}
    for k in refs:
        inner = aval_of(values[k])
        cells[k] = Cell(current.trace, values[k], AbstractRef(inner, given[k].aval.memory_space, given[k].aval.kind))
    return cells


def held_by(x: Any, fun: Callable[..., Any], by: str, given: Iterable[Any] = ()) -> Any:
    """What a reference holds that a transformed function made and returns; other results as they are.

    ValueError for a reference from outside, or one that was `given`.
    """
    if not isinstance(x, Ref):
        return x
    check_alive(x, by)
    if not isinstance(x, Cell) or x.trace is not current.trace or any(x is g for g in given):
        raise ValueError(f"function {fun_name(fun)} transformed by {by} returned a mutable array reference of type "
                         f"{x.aval!r} that it did not make, but such references cannot be returned.\n"
                         f"  {errors.user_line()}")
    return x.whole()


def new_ref(value: Any) -> Ref:
    """A reference to an array."""
    return new_ref_p.bind(value, memory_space=None, kind=None)


def refuse_writes(closed: ClosedJaxpr, args: Sequence[Any]) -> None:
    """ValueError if a program for each lane of a batch writes to a reference, of which there is one for all."""
    for k in discharged(closed)[1]:
        swap_p.batch(0, [args[k]], ())
