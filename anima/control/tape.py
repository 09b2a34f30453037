"""Tapes: what a loop of unknown length remembers of its steps, and loops over tapes.

    carry, steps, y = tape_while[...] c     y: tape<f32[3]>[], one f32[3] for each step; steps: tape<step>[]
    ct = tape_scan[...] c ct steps y        a loop over the elements of tapes, from either end

A tape is a scalar of an extended element type, so that jaxprs, `vmap` and derivatives treat it as any other
value: its tangent is a tape too. Its value is the address of a header in memory, (next, data, length, bytes, loop,
position); 0 is a tape of zeros, of any length. `steps` has no data: its element k is k. The rules of a loop over tapes
are those of `scan`.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from anima.config import config
from anima.control.scan import Scan, batch_lanes, first_lanes, unused_inputs
from anima.core import dtypes
from anima.core.array import ConcreteArray
from anima.core.avals import ShapedArray
from anima.core.intern import interned
from anima.core.jaxpr import ClosedJaxpr, Eqn
from anima.core.primitive import Primitive, Work
from anima.core.stage import eval_numpy, trace_to_jaxpr
from anima.core.trace import EVAL, aval_of, under
from anima.ops.elementwise import add_any
from anima.transforms.vmap import batch_jaxpr
from anima.util import split_list

WORD = np.dtype(np.int64)
HEADER_WORDS = 6


class tape(dtypes.extended):
    """The abstract scalar type of tapes that have no tangent."""


class inexact_tape(np.inexact):
    """The abstract scalar type of tapes of floating numbers, which have tangents."""


class TapeDType(dtypes.ExtendedDType):
    """The element type of tapes whose elements are arrays of type `element`.

    In NumPy its arrays hold `Tape` objects (None: zeros), in compiled code the addresses of headers.
    """

    __slots__ = ("element",)
    element: ShapedArray
    word = WORD

    def __init__(self, element: ShapedArray, tag: str = "") -> None:
        super().__init__(tag or element.str_short(short_dtypes=True), object, ())
        object.__setattr__(self, "element", element.strip_weak_type())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.element, self.tag)

    @property
    def type(self) -> Any:  # type: ignore[override]
        return inexact_tape if dtypes.issubdtype(self.element.dtype, np.inexact) else tape

    @property
    def name(self) -> str:
        return f"tape<{self.tag}>"

    def zeros(self, shape: tuple[int, ...]) -> ConcreteArray:
        """Tapes of zeros."""
        return ConcreteArray(np.full(shape, None, object), ShapedArray(shape, self))

    def add(self, x: Any, y: Any) -> Any:
        """The sums of tapes, element by element."""
        aval = aval_of(x)
        if aval.shape:
            return batch_lanes(_Sum("add"), aval.shape[0], [x, y], [0, 0], {})[0][0]
        body = _sum_of(self)
        return tape_scan_p.call(body, [], [], [x, y])[0]

    def to_words(self, value: np.ndarray) -> np.ndarray:
        """The addresses of an array of tapes, which must be kept while they are used."""
        return handles(value)


STEPS = TapeDType(ShapedArray((), np.dtype(np.int32)), "step")
STEPS_AVAL = ShapedArray((), STEPS)


def tape_aval(element: ShapedArray, words: bool = False) -> ShapedArray:
    """The type of a tape of elements of that type; or, in compiled code, of its address."""
    return ShapedArray((), WORD if words else TapeDType(element))


class _Sum(Primitive):
    """What `batch_lanes` binds for each lane of a sum of arrays of tapes."""

    def bind(self, *args: Any, **params: Any) -> list[Any]:
        return [aval_of(args[0]).dtype.add(*args)]


@cache
def _sum_of(dtype: TapeDType) -> ClosedJaxpr:
    def add(x: Any, y: Any) -> list[Any]:
        inner = dtype.element.dtype
        return [inner.add(x, y) if isinstance(inner, TapeDType) else add_any(x, y)]

    return ClosedJaxpr(*under(EVAL, trace_to_jaxpr, add, [dtype.element] * 2))


# ---------------------------------------------------------------- tapes in memory


class Tape:
    """A tape outside of compiled code: the address of its header, and what keeps the memory alive."""

    __slots__ = ("handle", "keep")
    evaluate: Callable[[ClosedJaxpr, Sequence[np.ndarray]], list[np.ndarray]]  # a loop that reads it, if it is partial

    def __init__(self, handle: int, keep: Any):
        self.handle = handle
        self.keep = keep

    def __len__(self) -> int:
        return self._header()[2]

    @property
    def partial(self) -> bool:
        """Whether some elements are not there, but computed as they are read."""
        return self._header()[4] != 0

    def __reduce__(self) -> Any:
        raise TypeError("A tape, of a loop to be differentiated, cannot be pickled: it lies in this process's memory.")

    def _header(self) -> Any:
        return (ctypes.c_int64 * HEADER_WORDS).from_address(self.handle)

    def elements(self, element: ShapedArray) -> np.ndarray:
        """All elements, stacked; those of a tape of tapes are `Tape`s."""
        stored = in_memory(element)
        count = len(self)
        if count * stored.size == 0:
            return np.zeros((count, *stored.shape), object if isinstance(element.dtype, TapeDType) else stored.dtype)
        size = count * stored.size * stored.dtype.itemsize
        raw = np.frombuffer((ctypes.c_uint8 * size).from_address(self._header()[1]), np.uint8)
        array = raw.view(stored.dtype).reshape(count, *stored.shape)
        return tapes(array, self, type(self)) if isinstance(element.dtype, TapeDType) else array


def in_memory(element: ShapedArray) -> ShapedArray:
    """The type of an element as it lies in memory: of base elements, or of addresses."""
    if isinstance(element.dtype, TapeDType):
        return ShapedArray(element.shape, WORD)
    if isinstance(element.dtype, dtypes.ExtendedDType):
        return ShapedArray(element.shape + element.dtype.element_shape, element.dtype.base)
    return element


def handles(value: np.ndarray) -> np.ndarray:
    """The addresses of an array of `Tape`s."""
    flat = [0 if t is None else t.handle for t in np.asarray(value, object).reshape(-1)]
    return np.array(flat, WORD).reshape(np.shape(value))


def tapes(words: np.ndarray, keep: Any, kind: type[Tape] = Tape) -> np.ndarray:
    """`Tape`s for an array of addresses; `keep` keeps them alive."""
    out = np.empty(words.shape, object)
    for place in np.ndindex(words.shape):
        out[place] = kind(int(words[place]), keep) if words[place] else None
    return out


def record(values: Sequence[np.ndarray], element: ShapedArray) -> np.ndarray:
    """A tape of the values given, as an array of shape ()."""
    stored = in_memory(element)
    nested = isinstance(element.dtype, TapeDType)
    data = np.empty((len(values), *stored.shape), stored.dtype)
    for k, value in enumerate(values):
        data[k] = handles(value) if nested else value
    header = np.array([0, data.ctypes.data, len(values), data.nbytes, 0, 0], WORD)
    out = np.empty((), object)
    out[()] = Tape(header.ctypes.data, (header, data, list(values) if nested else None))
    return out


def _elements(value: Any, element: ShapedArray, count: int) -> np.ndarray:
    """`count` elements of an operand."""
    item = _item(value)
    stored = in_memory(element)
    if item is None or len(item) < count:
        nested = isinstance(element.dtype, TapeDType)
        return np.full((count, *stored.shape), None if nested else 0, object if nested else stored.dtype)
    return item.elements(element)


def _item(value: Any) -> Any:
    """The `Tape` (or None) that an operand is."""
    return value[()] if isinstance(value, np.ndarray) else value


# ---------------------------------------------------------------- the budget

_free = [0.0, 0]  # when it was last asked for, and what it was


def budget() -> int:
    """Bytes that the tapes of one program may take: `anima_tape_budget`, or a quarter of the memory that is free."""
    if config.tape_budget is not None:
        return config.tape_budget
    now = time.monotonic()
    if _free[1] == 0 or now - _free[0] > 1.0:
        _free[:] = [now, _free_memory() // 4]
    return int(_free[1])


def _free_memory() -> int:
    try:
        with open("/proc/meminfo", "rb") as file:
            for line in file:
                if line.startswith(b"MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return 1 << 33


def over_budget(where: Any) -> MemoryError:
    """The error of a loop whose tape does not fit."""
    place = f" at {where}" if where is not None else ""
    return MemoryError(
        f"Reverse-mode differentiation of the while_loop{place}, does not fit the tape budget of {budget()} bytes. "
        "Raise it with anima.config.update('anima_tape_budget', bytes).")


def room_for(count: int, elements: Sequence[ShapedArray], where: Any) -> None:
    """MemoryError if tapes of `count` elements each are over the budget."""
    stored = list(map(in_memory, elements))
    if count * sum(math.prod(a.shape) * a.dtype.itemsize for a in stored) > budget():
        raise over_budget(where)


# ---------------------------------------------------------------- loops over tapes


class TapeScan(Scan):
    """`scan` whose `xs` and `ys` are tapes: as many steps as the longest of `xs` has elements.

    The parameter `length` tells which of `xs` have no data but count the steps.
    """

    distribute: Any = None
    keep: Any = None  # of a step's values: what a checkpoint keeps goes to arrays, and these have a length

    def call(self, jaxpr: ClosedJaxpr, consts: Sequence[Any], carry: Sequence[Any], xs: Sequence[Any], *,
             length: Any = None, reverse: bool = False, unroll: int = 1) -> list[Any]:
        args = [*consts, *carry, *xs]
        return self.bind(*args, jaxpr=jaxpr, length=tuple(aval_of(x).dtype == STEPS for x in xs),
                         linear=(False,) * len(args), num_carry=len(carry), num_consts=len(consts), reverse=reverse,
                         unroll=1)

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             **params: Any) -> Work:
        """Of one step: how many there are is not known."""
        return programs[0]

    def timing(self, xs: Sequence[Any]) -> list[Any]:
        return [x for x in xs if aval_of(x).dtype == STEPS][:1]

    def infer(self, *avals: ShapedArray, jaxpr: ClosedJaxpr, num_carry: int, **params: Any) -> list[ShapedArray]:
        outs = jaxpr.out_avals
        return outs[:num_carry] + [tape_aval(a, "words" in params) for a in outs[num_carry:]]

    def eval(self, *args: Any, jaxpr: ClosedJaxpr, length: Sequence[bool], num_carry: int, num_consts: int,
             reverse: bool, **params: Any) -> list[np.ndarray]:
        consts, carry, xs = split_list(args, [num_consts, num_carry])
        elements = jaxpr.in_avals[num_consts + num_carry:]
        evaluate = next((t.evaluate for t in map(_item, xs) if t is not None and t.partial), None)
        if evaluate is not None:
            avals = [*jaxpr.in_avals[:num_consts + num_carry],
                     *(STEPS_AVAL if counts else tape_aval(e) for e, counts in zip(elements, length, strict=True))]
            loop = partial(self.bind, jaxpr=jaxpr, length=length, num_carry=num_carry, num_consts=num_consts,
                           reverse=reverse, **params)
            return evaluate(interned(ClosedJaxpr(*under(EVAL, trace_to_jaxpr, loop, avals))), args)
        count = max((len(t) for t in map(_item, xs) if t is not None), default=0)
        stacks = [np.arange(count, dtype=np.int32) if counts else _elements(x, e, count)
                  for x, e, counts in zip(xs, elements, length, strict=True)]
        y_avals = jaxpr.out_avals[num_carry:]
        room_for(count, y_avals, None)
        ys: list[list[np.ndarray]] = [[None] * count for _ in y_avals]  # type: ignore[list-item]
        for k in reversed(range(count)) if reverse else range(count):
            outs = eval_numpy(jaxpr, [*consts, *carry, *(s[k] for s in stacks)])
            carry = outs[:num_carry]
            for y, value in zip(ys, outs[num_carry:], strict=True):
                y[k] = value
        return [*carry, *map(record, ys, y_avals)]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        first_x = params["num_consts"] + params["num_carry"]
        if any(d is not None for d in dims[first_x:]) or len(params["jaxpr"].out_avals) > params["num_carry"]:
            outs, lane_dims = batch_lanes(self, size, args, dims, params)
            if any(d is not None for d, c in zip(dims[first_x:], params["length"], strict=True) if c):
                return outs, lane_dims
            return first_lanes(outs, size, _out_dims(params, size, dims))
        return super().batch(size, args, dims, **params)

    def dce(self, eqn: Eqn, used: Sequence[bool]) -> Eqn:
        """The equation without unused results; what counts the steps stays."""
        p = eqn.params
        first_x = p["num_consts"] + p["num_carry"]
        shrunk = super().dce(eqn, used)
        kept, q = list(shrunk.invars), shrunk.params
        counting = {v for v, c in zip(eqn.invars[first_x:], p["length"], strict=True) if c}
        length = tuple(v in counting for v in kept[q["num_consts"] + q["num_carry"]:])
        params = {**q, "length": length}
        missing = list(counting)[:1]
        if missing and not any(length):
            body = unused_inputs(q["jaxpr"], len(missing))
            params |= {"jaxpr": body, "length": (*length, True), "linear": (False,) * (len(kept) + 1)}
            kept += missing
        return shrunk.replace(params=params, invars=kept)


def _out_dims(params: dict[str, Any], size: int, dims: Sequence[int | None]) -> list[int | None]:
    """Which results of a loop over tapes differ between lanes (0), and which do not (None)."""
    nb, nc = params["num_consts"], params["num_carry"]
    mapped = [None if d is None else 0 for d in dims]
    while True:
        out_dims = batch_jaxpr(params["jaxpr"], size, tuple(mapped))[1]
        grown = [c if d is None else 0 for c, d in zip(mapped[nb:nb + nc], out_dims, strict=False)]
        if grown == mapped[nb:nb + nc]:
            return [*grown, *out_dims[nc:]]
        mapped[nb:nb + nc] = grown


tape_scan_p = TapeScan("tape_scan")
