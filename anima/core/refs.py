"""Mutable references to arrays: what they are, and what can be done to them.

    r = new_ref(x)        a:Ref{f32[3]} = new_ref x
    r[0] += 1.            b:f32[] <- a[0]; c:f32[] = add b 1.0; a[0] <- c
    y = freeze(r)         d:f32[3] = freeze a

A reference is one of two things. Where a program is recorded, it is a variable of that program (`StagedRef`), and
what is done to it is equations with an effect. Everywhere else it is a `Cell`: a place that holds the value that the
reference has by now, made of whatever the trace it belongs to computes with. So reading is indexing, writing is
`x.at[i].set(v)`, and no transformation needs rules for references of its own. Cells outside of all traces
(`EagerCell`) own memory and write in place.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima import errors
from anima.core import dtypes, memory
from anima.core.array import Array, ConcreteArray, operator
from anima.core.avals import AbstractValue, Shape, ShapedArray
from anima.core.layout import row_major
from anima.core.shardings import WHOLE
from anima.core.source import Source, here
from anima.util import record

STATE = "State"  # the effect of programs that read references or write to them


@record
class AbstractRef(AbstractValue):  # type: ignore[misc]
    """The type of a reference: that of the array it refers to, which it has the shape and dtype of."""

    inner_aval: ShapedArray
    memory_space: Any = None
    kind: Any = None

    shape = property(lambda self: self.inner_aval.shape)
    dtype = property(lambda self: self.inner_aval.dtype)
    ndim = property(lambda self: self.inner_aval.ndim)
    size = property(lambda self: self.inner_aval.size)
    weak_type = property(lambda self: self.inner_aval.weak_type)

    def update(self, inner_aval: ShapedArray | None = None, memory_space: Any = None, kind: Any = None,
               **changes: Any) -> AbstractRef:
        """The type of a reference to an array of another type; `inner_aval` replaces all of it."""
        inner = self.inner_aval if inner_aval is None else inner_aval
        return AbstractRef(inner.update(**changes), self.memory_space if memory_space is None else memory_space,
                           self.kind if kind is None else kind)

    def update_weak_type(self, weak_type: bool) -> AbstractRef:
        return self.update(weak_type=weak_type)

    def inc_rank(self, size: int, spec: int | None) -> AbstractRef:
        """The type of a reference to `size` such arrays stacked along the axis `spec`; None: not stacked."""
        return self.update(self.inner_aval.inc_rank(size, spec))

    def dec_rank(self, size: int, spec: int | None) -> AbstractRef:
        """The type of a reference to one of `size` arrays that are stacked along the axis `spec`."""
        return self.update(self.inner_aval.dec_rank(size, spec))

    def leading_axis_spec(self) -> int:
        """The `spec` of `inc_rank` and `dec_rank` for the leading axis."""
        return self.inner_aval.leading_axis_spec()

    def to_ct_aval(self) -> AbstractRef:
        """The type of what gradients of the elements are added up in: a reference, too."""
        return AbstractRef(self.inner_aval.to_ct_aval(), self.memory_space, self.kind)

    at_least_vspace = to_ct_aval

    def strip_weak_type(self) -> AbstractRef:
        return AbstractRef(self.inner_aval.strip_weak_type(), self.memory_space, self.kind)

    def to_tangent_aval(self) -> ShapedArray:
        """There are no tangents of references: `float0`."""
        return ShapedArray(self.shape, dtypes.float0)

    def str_short(self, short_dtypes: bool = False, mesh_axis_types: bool = False) -> str:
        return f"Ref{{{self.inner_aval.str_short(short_dtypes)}}}"

    def __repr__(self) -> str:
        return f"Ref{{{dtypes.name(self.dtype)}[{','.join(map(str, self.shape))}]}}"

    __str__ = __repr__


# ---------------------------------------------------------------- places in an array


@record
class Span:
    """A slice of an axis: `size` elements from `start` on, in steps of `step` (not 0)."""

    start: int
    size: int
    step: int

    def as_slice(self) -> slice:
        stop = self.start + self.size * self.step
        return slice(self.start, None if stop < 0 else stop, self.step)

    def text(self, length: int) -> str:
        """As a slice of an axis of this length is written."""
        if (self.start, self.size, self.step) == (0, length, 1):
            return ":"
        stop = self.start + self.size * self.step
        ends = stop >= length if self.step > 0 else stop < 0
        return f"{self.start or ''}:{'' if ends else stop}" + (f":{self.step}" if self.step != 1 else "")


OPERAND = "operand"          # an entry of an index that an operand gives: one integer, or an array of them
Level = tuple[Any, ...]      # for each axis an int, a Span or OPERAND; None is a new axis
Levels = tuple[Level, ...]   # of a view of a view; the empty index is the whole array


def indices(levels: Levels, operands: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Each level as what arrays are indexed by."""
    given = iter(operands)
    return [tuple([next(given) if e is OPERAND else e.as_slice() if isinstance(e, Span) else e for e in level])
            for level in levels]


def indexed_shape(shape: Shape, levels: Levels, operand_shapes: Sequence[Shape]) -> Shape:
    """The shape of what a place in an array of this shape holds."""
    dummy = np.broadcast_to(np.False_, shape)
    for index in indices(levels, [np.zeros(s, np.intp) if s else 0 for s in operand_shapes]):
        dummy = dummy[index]
    return dummy.shape


def show_levels(shape: Shape, levels: Levels, operands: Sequence[tuple[str, Shape]]) -> str:
    """A place in an array as programs are printed: `[0,b]`, `[1:][c]`, `[...]`; of operands, names and shapes."""
    given, text = iter(operands), []
    for level in levels:
        lengths, words, shapes = iter(shape), [], []
        for entry in level:
            length = 0 if entry is None else next(lengths)
            if entry is OPERAND:
                entry, operand_shape = next(given)
                shapes.append(operand_shape)
            words.append(entry.text(length) if isinstance(entry, Span) else str(entry))
        text.append(f"[{','.join(words)}]")
        shape = indexed_shape(shape, (level,), shapes)
    return "".join(text) or "[...]"


def read(value: Any, levels: Levels, operands: Sequence[Any]) -> Any:
    """What the place holds."""
    for index in indices(levels, operands):
        value = value[index]
    return value


def written(value: Any, levels: Levels, operands: Sequence[Any], new: Any, method: str) -> Any:
    """`value` with `new` in the place (`method` "set"), or joined with what is there ("add", "max")."""
    return _written(value, indices(levels, operands) or [(...,)], new, method)


def _written(value: Any, places: Sequence[tuple[Any, ...]], new: Any, method: str) -> Any:
    if places[0] == (...,):  # of these the compiler knows more than of updates
        return new if method == "set" else value + new if method == "add" else value | new
    if len(places) == 1:
        return getattr(value.at[places[0]], method)(new)
    joined = _joined(value.shape, places[0], places[1])
    if joined is not None:
        return _written(value, [joined, *places[2:]], new, method)
    inner = _written(value[places[0]], places[1:], new, method)
    return value.at[places[0]].set(inner)


def _joined(shape: Shape, first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """One index for a place in a place, if both consist of known integers and slices, and of single integers that are
    not known: these may come after slices only of whole axes, whose bounds are the array's own."""
    if any(e is None or getattr(e, "ndim", 0) for e in (*first, *second)):
        return None
    out, inner = [], iter(second)
    for entry, size in zip(first, shape, strict=True):
        if not isinstance(entry, slice):
            out.append(entry)
            continue
        span = range(size)[entry]
        within = next(inner)
        if isinstance(within, int):
            out.append(span[within])
        elif isinstance(within, slice):
            part = span[within]
            out.append(slice(part.start, part.stop if part.stop >= 0 else None, part.step))
        elif span == range(size):
            out.append(within)
        else:
            return None
    return tuple(out)


# ---------------------------------------------------------------- references


class Ref:
    """A mutable reference to an array: `r[i]` reads, `r[i] = v` writes, `r[i] += v` does both.

    Made by `anima.new_ref`; `anima.freeze` ends it and gives the array. Where operations on arrays are meant, read
    it first: `r[...] + 1`.
    """

    __slots__ = ("__weakref__", "aval", "ended")
    __module__ = "anima"

    aval: AbstractRef
    ended: str  # how it was ended; "" as long as it may be used

    shape = property(lambda self: self.aval.shape, doc="The shape of the array.")
    dtype = property(lambda self: self.aval.dtype, doc="The element type of the array.")
    ndim = property(lambda self: self.aval.ndim, doc="The number of dimensions of the array.")
    size = property(lambda self: self.aval.size, doc="The number of elements of the array.")
    weak_type = property(lambda self: self.aval.weak_type, doc="Whether the element type gives way in promotion.")
    sharding = WHOLE  # on the one device
    format = property(lambda self: row_major(self.aval.inner_aval, WHOLE), doc="How the elements lie in memory.")

    @property
    def at(self) -> Any:
        """Views: `r.at[2:]` is a reference to these elements of `r`."""
        return operator("ref_at")(self)

    @errors.api_boundary
    def __len__(self) -> int:
        if not self.aval.shape:
            raise TypeError("len() of unsized object")
        return self.aval.shape[0]

    @errors.api_boundary
    def __getitem__(self, index: Any) -> Any:
        return operator("ref_get")(self, index)

    @errors.api_boundary
    def __setitem__(self, index: Any, value: Any) -> None:
        operator("ref_set")(self, index, value)

    @errors.api_boundary
    def get(self, idx: Any = ()) -> Any:
        """The elements at `idx`."""
        return operator("ref_get")(self, idx)

    @errors.api_boundary
    def set(self, value: Any, idx: Any = ()) -> None:
        """Puts `value` at `idx`."""
        operator("ref_set")(self, idx, value)

    @errors.api_boundary
    def swap(self, value: Any, idx: Any = ()) -> Any:
        """Puts `value` at `idx`, and gives what was there."""
        return operator("ref_swap")(self, idx, value)

    @errors.api_boundary
    def addupdate(self, x: Any, idx: Any = ()) -> None:
        """Adds `x` to the elements at `idx`."""
        operator("ref_addupdate")(self, idx, x)

    @errors.api_boundary
    def reshape(self, *shape: Any) -> Any:
        """A view in another shape: what is written to it is written to the reference."""
        return operator("ref_reshape")(self, *shape)

    @errors.api_boundary
    def bitcast(self, dtype: Any) -> Any:
        """A view of the bits as another type; see `reshape`."""
        return operator("ref_bitcast")(self, dtype)

    @errors.api_boundary
    def __iter__(self) -> Any:
        raise TypeError("A Ref cannot be iterated over. Iterate over what it holds: `for x in r[...]`.")

    @errors.api_boundary
    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise ValueError(errors.ref_as_array_message(self.aval))

    def __bool__(self) -> bool:
        return bool(self[...])

    def __copy__(self) -> Ref:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("A reference cannot be pickled. Pickle what it holds: `r[...]`.")

    committed = False  # to a device: there is one

    def unsafe_buffer_pointer(self) -> int:
        """The address of the elements; what is written there, others may see."""
        raise TypeError(f"A reference that is traced has no address, type {self.aval!r}.")

    def block_until_ready(self) -> Ref:
        """The reference itself: on a CPU results are ready when a call returns."""
        return self

    def end(self, how: str) -> None:
        """Forbids all further use."""
        self.ended = f"{how} {errors.user_line()}".strip()


class StagedRef(Ref):
    """A reference that is a variable of a program being recorded by `owner`."""

    __slots__ = ("owner", "source", "variable")

    def __init__(self, owner: Any, variable: Any, source: Source | None = None):
        self.owner, self.variable, self.source = owner, variable, source
        self.aval, self.ended = variable.aval, ""

    def made_text(self) -> str:
        return self.owner.made_text(self)

    def origin_text(self) -> str:
        return self.owner.origin_text(self)

    def __repr__(self) -> str:
        return f"Traced<{self.aval!r}>with<{self.owner.describe()}>"


class Cell(Ref):
    """A reference that holds its value, which `trace` computes with."""

    __slots__ = ("changed", "source", "trace", "value")

    def __init__(self, trace: Any, value: Any, aval: AbstractRef):
        self.trace, self.value, self.aval, self.ended = trace, value, aval, ""
        self.changed = False
        self.source = here()

    def __repr__(self) -> str:
        return f"Ref({self.value!r})"

    def made_text(self) -> str:
        return f"It was made {errors.line_of(self.source)}" if self.source else ""

    origin_text = made_text

    def whole(self) -> Any:
        """The array."""
        return self.value

    def replace(self, value: Any) -> None:
        """Another array of the same type in place of this one."""
        self.value = value
        self.changed = True

    def read(self, levels: Levels, operands: Sequence[Any]) -> Any:
        return read(self.whole(), levels, operands)

    def write(self, levels: Levels, operands: Sequence[Any], new: Any, method: str) -> None:
        self.replace(written(self.whole(), levels, operands, new, method))


_alive: weakref.WeakSet[EagerCell] = weakref.WeakSet()


def _after_fork() -> None:
    for cell in _alive:
        cell.turn = threading.RLock()  # a thread that the child does not have may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class EagerCell(Cell):
    """A reference to memory of its own. Once others may see this memory (`shared`), writing takes a copy first, unless
    they are gone by then. Threads take turns: what one reads, another does not write to meanwhile."""

    __slots__ = ("shared", "turn")

    def __init__(self, trace: Any, value: ConcreteArray, aval: AbstractRef):
        super().__init__(trace, value.elements(), aval)
        self.shared = True
        self.turn = threading.RLock()  # a callback of a program that writes may read
        _alive.add(self)

    def whole(self) -> ConcreteArray:
        return ConcreteArray(self.elements(), self.aval.inner_aval)

    def replace(self, value: ConcreteArray) -> None:
        with self.turn:
            self.value, self.shared = value.elements(), True

    def elements(self) -> np.ndarray:
        """The elements, for code of Anima's that does not write to them."""
        with self.turn:
            self.shared = True
            return self.value

    def exclusive(self) -> np.ndarray:
        """The elements, in memory that nobody else sees until this thread's turn ends."""
        if self.shared and not memory.is_exclusive(self):
            self.value = np.array(self.value, order="C")
        self.shared = False
        return self.value

    def take_over(self, value: np.ndarray) -> None:
        """These elements from now on, which nobody else sees."""
        self.value, self.shared = value, False

    def read(self, levels: Levels, operands: Sequence[Any]) -> Any:
        place = self._basic(levels, operands)
        if place is None or not place:
            return super().read(levels, operands) if place is None else self.whole()
        inner = self.aval.inner_aval
        with self.turn:
            part = np.array(self.value[place], order="C")
        rank = part.ndim - len(getattr(inner.dtype, "element_shape", ()))
        return ConcreteArray(part, inner.update(shape=part.shape[:rank]))

    def write(self, levels: Levels, operands: Sequence[Any], new: Any, method: str) -> None:
        place = self._basic(levels, operands)
        with self.turn:
            if place is None or isinstance(self.aval.dtype, dtypes.ExtendedDType):
                super().write(levels, operands, new, method)
            elif not place and method == "set":
                self.replace(new)
            else:
                own, given = memory.opened(self.exclusive()), new.elements()
                with np.errstate(all="ignore"):
                    own[place] = given if method == "set" else np.add(own[place], given, dtype=own.dtype)

    def _basic(self, levels: Levels, operands: Sequence[Any]) -> tuple[Any, ...] | None:
        """The index, if it is one of known integers within bounds and slices; None for others."""
        if len(levels) != 1:
            return None if levels else ()
        known: list[int] = []
        axes = iter(self.aval.shape)
        lengths = [0 if e is None else next(axes) for e in levels[0]]
        for length, entry in zip(lengths, indices(levels, operands)[0], strict=True):
            if isinstance(entry, ConcreteArray) and not entry.shape:
                k = int(entry.elements())
                if not -length <= k < length:
                    return None
                known.append(k)
            elif isinstance(entry, Array):
                return None
        values = iter(known)
        return tuple([next(values) if isinstance(e, Array) else e for e in indices(levels, operands)[0]])

    def unsafe_buffer_pointer(self) -> int:
        with self.turn:
            return self.exclusive().ctypes.data

    def __deepcopy__(self, memo: Any) -> EagerCell:
        return EagerCell(self.trace, self.whole(), self.aval)

    def __repr__(self) -> str:
        if self.ended:
            return f"Ref({self.aval.inner_aval.str_short()}, {self.ended})"
        return "Ref" + repr(self.whole()).removeprefix("Array")

    __str__ = __repr__


def check_alive(ref: Any, what: str) -> None:
    """ValueError for what is no reference, RuntimeError for one that was frozen or freed, UnexpectedTracerError for
    one that outlives its trace."""
    if not isinstance(ref, Ref):
        raise ValueError(f"Can only call `{what}` on a `Ref`: {ref!r}.")
    if ref.ended:
        raise RuntimeError(f"This reference of type {ref.aval!r} cannot be used any more: it was {ref.ended}. "
                           "Use the array that freeze returned, or make another reference with new_ref.")
    owner = ref.owner if isinstance(ref, StagedRef) else ref.trace if isinstance(ref, Cell) else None
    if owner is not None and not owner.alive:
        raise errors.UnexpectedTracerError(errors.leaked_tracer_message(ref))


def check_given_once(refs: Sequence[Any], names: Callable[[int], str], what: str) -> None:
    """ValueError if the same reference is among arguments twice; `names` tells what each is called."""
    first: dict[int, int] = {}
    for k, ref in enumerate(refs):
        if isinstance(ref, Ref) and first.setdefault(id(ref), k) != k:
            raise ValueError(f"only one reference to a mutable array may be passed as an argument to a function, but "
                             f"{what} the mutable array reference of type {ref.aval!r} appeared at both "
                             f"{names(first[id(ref)])} and {names(k)}.")


def check_not_closed_over(refs: Sequence[Any], closed_over: Sequence[Any], names: Callable[[int], str],
                          what: str) -> None:
    """ValueError if a reference among the arguments is also closed over."""
    closed = {id(c) for c in closed_over if isinstance(c, Ref)}
    for k, ref in enumerate(refs):
        if id(ref) in closed:
            raise ValueError(f"{what}, a mutable array reference of type {ref.aval!r} was both closed over and passed "
                             f"as the argument {names(k)}")


