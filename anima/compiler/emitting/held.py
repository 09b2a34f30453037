"""Small arrays in registers: a value for each element, or all elements in one vector.

    local t: f32[3] in elements      unrolled i < 3: t[i] = ...     three registers, t[1] is the second
    local t: f32[10] in lanes        whole i < 10: t[i] = x[i]      one vector of 16 lanes, 10 of them used
                                     whole i < 10: y[i] = t[9 - i]  a shuffle
                                     s = t[2]                       an extracted lane

Every index is known when the program is compiled. The values are variables of the function (`env`), so that
loops and branches carry them as they do others. Lanes without an element repeat all from the first: LLVM does not
come to an end with some shuffles of shuffles that repeat one of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anima.compiler.emitting.memory import MemoryAccess
from anima.compiler.emitting.value import COMPLEX_TYPES, REGISTER, Val, parts, rebuild
from anima.compiler.ir.affine import Numbers, known
from anima.compiler.ir.assembly import Type, Value
from anima.compiler.ir.loops import Expr, Local


def lanes_for(count: int) -> int:
    """How many lanes a vector of so many elements takes."""
    return max(2, 1 << (count - 1).bit_length())


def elements_of(width: int, count: int) -> list[int]:
    """The element of each lane: lanes after the last element have the first, and so on."""
    return [lane if lane < count else lane % count for lane in range(width)]


class Held(MemoryAccess):
    """Adds buffers in registers to a function.

    `held` has the keys of their values in `env`, one for each element or one for all, `sizes` how many elements
    there are; `numbers` the indices of loops that are being written out or as a whole, and what follows from these.
    """

    env: dict[str, Val]
    held: dict[str, tuple[str, ...]]
    sizes: dict[str, int]
    numbers: dict[str, Numbers]

    def hold(self, local: Local) -> None:
        """Declares a buffer in registers; its elements are 0."""
        width = lanes_for(local.size) if local.held == "lanes" else self.width
        type = Type(REGISTER[local.dtype], width)
        zero = self.b.const(type, 0)
        value: Val = (zero, zero) if local.dtype in COMPLEX_TYPES else zero
        names = [local.buffer] if local.held == "lanes" else [f"{local.buffer}.{i}" for i in range(local.size)]
        self.held[local.buffer], self.sizes[local.buffer] = tuple(names), local.size
        self.env.update(dict.fromkeys(names, value))

    def in_lanes(self, buffer: str) -> bool:
        """Whether a buffer in registers is one vector."""
        return self.held[buffer] == (buffer,)

    def number_of(self, expr: Expr) -> int | None:
        """The number that an expression of indices is, if it is known and the same in all lanes."""
        found = known(expr, self.numbers)
        return int(found) if found is not None and np.ndim(found) == 0 else None

    def places_of(self, buffer: str, index: Expr) -> Numbers:
        """The elements that an index means."""
        found = known(index, self.numbers)
        if found is None:
            raise ValueError(f"an index into {buffer}, which is in registers, is not known: {index!r}")
        return found

    def element(self, buffer: str, index: Expr) -> Val:
        """The elements of a buffer in registers at an index: a scalar if that is one number."""
        where = self.places_of(buffer, index)
        if not self.in_lanes(buffer):
            return self.env[self.held[buffer][int(where)]]
        whole = self.env[buffer]
        if np.ndim(where) == 0:
            return rebuild(whole, tuple(self.b.extract(p, int(where)) for p in parts(whole)))
        order, first = [int(k) for k in where], parts(whole)[0].type
        if first.is_float and order == elements_of(first.width, self.sizes[buffer]):
            return whole  # what the lanes beyond the last element have does not matter to floats
        return rebuild(whole, tuple(self._picked(p, order) for p in parts(whole)))

    def _picked(self, vector: Value, order: Sequence[int]) -> Value:
        if list(order) == list(range(vector.type.width)):
            return vector
        return self.b.shuffle(vector, self.b.undef(vector.type), order)

    def put(self, buffer: str, index: Expr, value: Val) -> tuple[str, Val]:
        """The key of what changes when `value` is put at an index, and its new value. `value` is in lanes if the
        index differs between lanes; then it may have more of these than there are elements."""
        where = self.places_of(buffer, index)
        if not self.in_lanes(buffer):
            return self.held[buffer][int(where)], value
        old = self.env[buffer]
        if np.ndim(where) == 0:
            return buffer, rebuild(old, tuple(self.b.insert(o, v, int(where)) for o, v in
                                              zip(parts(old), parts(value), strict=True)))
        width = parts(old)[0].type.width
        lane_of = {int(k): lane for lane, k in reversed(list(enumerate(where)))}
        return buffer, rebuild(old, tuple(self._mixed(o, v, lane_of, self.sizes[buffer], width) for o, v in
                                          zip(parts(old), parts(value), strict=True)))

    def _mixed(self, old: Value, new: Value, lane_of: dict[int, int], size: int, width: int) -> Value:
        """`old` with the elements that are in lanes of `new`."""
        elements = elements_of(width, size)
        if new.type.width != width:
            new = self._picked(new, [lane_of.get(k, 0) for k in elements])
            lane_of = {k: k for k in lane_of}
        order = [width + lane_of[k] if k in lane_of else k for k in elements]
        if order[:size] == list(range(width, width + size)):
            return new  # lanes beyond the last element have what they have
        return self.b.shuffle(old, new, order)

    def stretched(self, value: Val, count: int) -> Val:
        """A vector of `count` elements, with the first of them in the lanes after these."""
        return rebuild(value, tuple(self._picked(p, elements_of(p.type.width, count)) for p in parts(value)))

