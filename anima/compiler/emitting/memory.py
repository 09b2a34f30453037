"""Loads and stores: which instruction moves the elements that the lanes of a loop want.

    uniform index          one scalar load
    step 1                 one vector load (masked in the last, partial round of a loop)
    step -1                the same, reversed
    step 2 to 8            as many vector loads; stores to all places between are one after the other: `interleave.py`
    step 1, clamped        one masked vector load, and one scalar load for the lanes beyond each end
    another step, general  a gather

A bool is a byte in memory and an i1 in a register; a complex number is two adjacent floats in memory and
two registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from anima.compiler.emitting.interleave import interleaved
from anima.compiler.emitting.value import (
    COMPLEX_TYPES,
    MEMORY,
    REGISTER,
    ZERO,
    Indices,
    LaneIndex,
    Val,
    constant_of,
    i64,
    identity,
    itemsize,
)
from anima.compiler.ir.assembly import Builder, Type, Value
from anima.util import record

LINE = 64    # bytes that are fetched at once
_PIECES = 4   # most stores in place of one with a mask
_WIDEST = 512  # bits of a vector: what is longer is loaded and stored in parts
LONGEST = 8   # steps; elements that are further apart are gathered
_NEAREST = 4  # so without AVX-512's shuffles, which take any order


@record
class Place:
    """A buffer in a function: its address, its element type, and the root buffer whose memory it is; how many lanes
    have elements of their own, side by side."""

    pointer: Value
    dtype: str
    root: str
    lanes: int = 1


class MemoryAccess(Indices):
    """Access to buffers in a function that is being written.

    `past` says that vectors are stored past the caches, which they can be where they are whole lines;
    `mask` tells which lanes are active (None: all), `active` how many, if it is the first ones of a round's mask, which
    comes with it; `apart` whether they may have left the loop that is being written;
    `versions` counts the stores to each buffer, so that a load is not taken for one made before a store.
    """

    apart = False

    def __init__(self, b: Builder) -> None:
        super().__init__(b)
        self.places: dict[str, Place] = {}
        self.mask: Value | None = None
        self.past = False
        self.active: tuple[Value | None, Value | int] = None, 0
        self.versions: dict[str, int] = {}
        self._epoch = 0

    def changed(self, root: str) -> None:
        """Forgets what was loaded from a buffer."""
        self._epoch += 1
        self.versions[root] = self._epoch

    def load(self, buffer: str, index: LaneIndex) -> Val:
        """The elements at an index: a scalar if that is uniform."""
        place = self.places[buffer]
        if place.lanes > 1:
            with self._own_lanes():
                return self._known(place, self._in_lanes(place, index))
        return self._known(place, index)

    def _known(self, place: Place, index: LaneIndex) -> Val:
        key = ("load", place.pointer.name, place.dtype, self.versions.get(place.root, 0), *identity(index), self.width,
               None if self.mask is None or index.uniform else self.mask.name)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self._load(place, index)
        return found

    def _load(self, place: Place, index: LaneIndex) -> Val:
        if place.dtype in COMPLEX_TYPES:
            return self._load_complex(place, index)
        value = self._load_real(place.pointer, MEMORY[place.dtype], index)
        if place.dtype == "bool":
            return self.b.cmp("ne", value, 0)
        return value

    def store(self, buffer: str, index: LaneIndex, value: Val) -> None:
        """Puts a value (of one lane, for a uniform index) where the index says."""
        place = self.places[buffer]
        self.changed(place.root)
        if place.lanes > 1:
            with self._own_lanes():
                self._store(place, self._in_lanes(place, index), value)
            return
        self._store(place, index, value)

    def _store(self, place: Place, index: LaneIndex, value: Val) -> None:
        if place.dtype in COMPLEX_TYPES:
            self._store_complex(place, index, value)  # type: ignore[arg-type]
            return
        assert isinstance(value, Value)
        if place.dtype == "bool":
            value = self.b.cast("zext", value, value.type.of("i8"))
        self._store_real(place.pointer, MEMORY[place.dtype], index, value)

    def prefetch(self, buffer: str, index: LaneIndex) -> None:
        """Brings near what is at an index: the lines of all lanes, which are one after the other."""
        place = self.places[buffer]
        element = MEMORY[place.dtype] if place.dtype not in COMPLEX_TYPES else f"[2 x {REGISTER[place.dtype]}]"
        address = self._address(place.pointer, element, index)
        for start in range(0, itemsize(place.dtype) * self.width, LINE):
            self.b.prefetch(self.b.gep("i8", address, start) if start else address)

    def store_next(self, buffer: str, index: LaneIndex, values: Sequence[Value]) -> None:
        """Puts values in lanes where the index says, and the places after it: as many as its step."""
        place = self.places[buffer]
        self.changed(place.root)
        b, element, numbers, mask = self.b, MEMORY[place.dtype], len(values), self.mask
        start = self._address(place.pointer, element, index)
        first = mask is None or mask is self.active[0]
        masks = [] if first or mask is None else interleaved(b, [mask] * numbers)
        for part, vector in enumerate(interleaved(b, values)):
            address = self._step(start, element, i64(part * self.width))
            if mask is None:
                b.store(vector, address)
            elif first:
                self._store_first(vector, address, numbers, part)
            else:
                b.masked_store(vector, address, masks[part])

    def _in_lanes(self, place: Place, index: LaneIndex) -> LaneIndex:
        """The place of each lane's own element at an index."""
        if not index.uniform:
            raise ValueError(f"an index into {place.root}, which is apart, differs between lanes")
        return self.sum((index, LaneIndex(ZERO, 1, 0, place.lanes - 1)), (place.lanes, 1))

    @contextmanager
    def _own_lanes(self) -> Iterator[None]:
        """For access to memory that every lane has: what those without work do there means nothing, and instructions
        with masks are slow, unless lanes wait for others."""
        mask, last = self.mask, self.last
        self.mask, self.last = mask if self.apart else None, None
        yield
        self.mask, self.last = mask, last

    # -- addresses ------------------------------------------------------------------------------

    def _step(self, pointer: Value, element: str, index: Value) -> Value:
        if index.type.width == 1 and constant_of(index) == 0:
            return pointer
        key = ("gep", pointer.name, element, index.name, index.type)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self.b.gep(element, pointer, index)
        return found  # type: ignore[return-value]

    def _address(self, pointer: Value, element: str, index: LaneIndex, back: int = 0) -> Value:
        """The address of the first lane's element, less `back`: what is the same in all rounds of a loop first."""
        address = self._step(pointer, element, index.value)
        if index.moving is not None:
            address = self._step(address, element, index.moving)
        return self._step(address, element, i64(index.offset - back))

    def _addresses(self, pointer: Value, element: str, index: LaneIndex, small: bool) -> Value:
        """The lanes' own addresses; of `small` elements, those of inactive lanes are that of the first."""
        if index.general:
            addresses = self._step(pointer, element, index.value)
        else:
            start = self._address(pointer, element, index)
            addresses = self.b.gep(element, start, self.steps(Type("i64", self.width), index.step))
        if small and self.mask is not None:
            first = self.b.splat(self.b.extract(addresses, 0), self.width)
            addresses = self.b.select(self.mask, addresses, first)
        return addresses

    # -- real numbers ---------------------------------------------------------------------------

    def _load_real(self, pointer: Value, scalar: str, index: LaneIndex) -> Value:
        b = self.b
        if index.uniform:
            return b.load(Type(scalar), self._address(pointer, scalar, index))
        type = Type(scalar, self.width)
        if self._masks_clamped(index, type.bits):
            return self._load_clamped(pointer, scalar, type, index)
        if index.step in (1, -1) and not index.general:
            address = self._address(pointer, scalar, index, self.width - 1 if index.step == -1 else 0)
            mask = self._turned_mask(index)
            value = b.load(type, address) if mask is None else b.masked_load(type, address, mask)
            return value if index.step == 1 else self._reversed(value)
        # Small elements are loaded one by one, which is better done without a branch for each lane.
        small = type.bits < 32
        step = 0 if index.general or self.last is not None else index.step
        if 2 <= step <= (2 if small else LONGEST if self._has_avx512() else _NEAREST) and (
                self.mask is None or (step > 2 and self.mask is self.active[0])):
            return self._in_steps(type, self._address(pointer, scalar, index), step)
        if step == 2 and not small:
            address = self._address(pointer, scalar, index)
            both = b.masked_load(Type(scalar, 2 * self.width), address, self._even_lanes())
            return b.shuffle(both, b.undef(both.type), [2 * lane for lane in range(self.width)])
        return self._gather(type, pointer, scalar, index, None if small else self.mask, small)

    # -- what is clamped ------------------------------------------------------------------------

    def _masks_clamped(self, index: LaneIndex, bits: int) -> bool:
        """Whether elements from one to the next, beyond two ends the last ones, are loaded under a mask."""
        if index.clamped is None or index.clamped[0].step != 1 or self.last is not None:
            return False
        return any(f"+{f}" in self.b.module.features for f in (("avx512bw", "avx") if bits >= 32 else ("avx512bw",)))

    def _load_clamped(self, pointer: Value, element: str, type: Type, index: LaneIndex) -> Value:
        """The elements, of one number or two, at a clamped index."""
        assert index.clamped is not None
        b, (inside, below), numbers = self.b, self._ends(index), type.width // self.width
        free, *ends = index.clamped
        one = Type(type.scalar, numbers)
        found = [b.load(one, self._address(pointer, element, end)) for end in ends if end is not None]
        others = [b.shuffle(x, b.undef(one), [lane % numbers for lane in range(type.width)]) if numbers > 1 else
                  b.splat(x, type.width) for x in found]
        other = others[0]
        if len(others) > 1:
            assert below is not None
            other = b.select(self._repeated(below, numbers), *others)
        return b.masked_load(type, self._address(pointer, element, free), self._repeated(inside, numbers), other)

    def _repeated(self, mask: Value, numbers: int) -> Value:
        """The mask of elements that are several numbers each."""
        if numbers == 1:
            return mask
        if mask is self.active[0]:
            return self._first(numbers, 0, numbers * self.width)
        return self.b.shuffle(mask, self.b.undef(mask.type), [n // numbers for n in range(numbers * self.width)])

    def _ends(self, index: LaneIndex) -> tuple[Value, Value | None]:
        """The active lanes of a clamped index that are between its ends; those below the first, if there is one."""
        assert index.clamped is not None
        key = "ends", *identity(index), None if self.mask is None else self.mask.name
        found = self.known.get(key)
        if found is not None:
            inside, below = found  # type: ignore[misc]
            return inside, below  # type: ignore[return-value]
        b, (free, least, most) = self.b, index.clamped
        first, lanes = self.total(free), b.step(Type("i32", self.width))

        def until(end: LaneIndex) -> Value:
            """The lane of an end, -1 if it is before all, in all lanes."""
            lane = b.intrinsic("smin", b.op("sub", self.total(end), first), i64(self.width))
            lane = b.intrinsic("smax", lane, i64(-1))
            return b.splat(b.cast("trunc", lane, Type("i32")), self.width)

        below = None if least is None else b.cmp("slt", lanes, until(least))
        masks = [] if below is None else [b.op("xor", below, b.const(below.type, 1))]
        masks += [] if most is None else [b.cmp("sle", lanes, until(most))]
        masks += [] if self.mask is None else [self.mask]
        inside = masks[0]
        for mask in masks[1:]:
            inside = b.op("and", inside, mask)
        self.known[key] = inside, below  # type: ignore[assignment]
        return inside, below

    def _even_lanes(self) -> Value:
        """A mask of twice as many lanes, of which every other one is never active: what lies there may not exist."""
        flags = Type("i1", self.width)
        assert self.mask is not None
        lanes = [x for lane in range(self.width) for x in (lane, self.width + lane)]
        return self.b.shuffle(self.mask, self.b.const(flags, 0), lanes)

    def _in_steps(self, type: Type, address: Value, step: int) -> Value:
        """Elements a few apart, from as many vectors, of which the last ends with the last of them."""
        b, width = self.b, type.width
        last = step * (width - 1) + 1 - width
        starts = [*range(0, last, width), last]

        def part(start: int) -> Value:
            place = self._step(address, type.scalar, i64(start))
            return b.load(type, place) if self.mask is None else b.masked_load(type, place, self._until(step, start))

        found = part(0)
        for number, start in enumerate(starts[1:], 1):
            places = [step * lane - start for lane in range(width)]  # in the next vector
            order = [width + place if place >= 0 else lane if number > 1 else step * lane
                     for lane, place in enumerate(places)]
            found = b.permute(found, part(start), [n if n < 2 * width else -1 for n in order])
        return found

    def _until(self, step: int, start: int) -> Value:
        """The lanes of a vector at a place that are not beyond the last active lane's element, in steps."""
        b, mask, count = self.b, *self.active
        assert mask is not None
        key = ("until", mask.name, step, start)
        found = self.known.get(key)
        if found is None:
            if isinstance(count, int):
                lanes = [lane <= step * (count - 1) - start for lane in range(self.width)]
                found = b.const_lanes(Type("i1", self.width), lanes)
            else:
                last = b.op("sub", b.op("mul", count, i64(step)), i64(step + start))
                found = b.cmp("sle", b.step(Type("i64", self.width)), b.splat(last, self.width))
            self.known[key] = found
        assert isinstance(found, Value)
        return found

    def _first(self, numbers: int, part: int, width: int) -> Value:
        """Which lanes of a vector of a width are numbers of active lanes, if each of these has so many, which are in
        vectors one after the other: this is the one of that `part`."""
        b, mask, count = self.b, *self.active
        assert mask is not None
        key = ("first", mask.name, numbers, part, width)
        found = self.known.get(key)
        if found is None:
            if isinstance(count, int):
                found = b.first_lanes(min(max(numbers * count - part * width, 0), width), width)
            else:
                left = b.op("sub", b.op("mul", count, i64(numbers)), i64(part * width))
                lanes = Type("i32", width)
                found = b.cmp("slt", b.step(lanes), b.splat(b.cast("trunc", left, Type("i32")), width))
            self.known[key] = found
        assert isinstance(found, Value)
        return found

    def _turned_mask(self, index: LaneIndex) -> Value | None:
        if self.mask is None or index.step == 1:
            return self.mask
        return self._reversed(self.mask)

    def _reversed(self, value: Value) -> Value:
        order = list(range(self.width - 1, -1, -1))
        return self.b.shuffle(value, self.b.undef(value.type), order)

    def _store_real(self, pointer: Value, scalar: str, index: LaneIndex, value: Value) -> None:
        b = self.b
        if index.uniform:
            if value.type.width > 1:
                raise ValueError("a vector loop stores several values to one element")
            b.store(value, self._address(pointer, scalar, index))
            return
        value = b.splat(value, self.width) if value.type.width == 1 else value
        if index.step in (1, -1) and not index.general:
            if index.step == -1:
                value = self._reversed(value)
            address = self._address(pointer, scalar, index, self.width - 1 if index.step == -1 else 0)
            mask = self._turned_mask(index)
            if self.past:
                b.store(value, address, LINE, f"!nontemporal {b.module.metadata('nontemporal', '!{i32 1}')}")
            elif mask is None:
                b.store(value, address)
            else:
                self._store_active(value, address, mask, last=index.step == -1)
            return
        self._scatter(value, pointer, scalar, index)

    def _gather(self, type: Type, pointer: Value, element: str, index: LaneIndex, mask: Value | None,
                small: bool = False, align: int | None = None) -> Value:
        """The elements at each lane's own place."""
        b, count = self.b, self._count_apart()
        if not count:
            return b.gather(type, self._addresses(pointer, element, index, small), mask, align=align)
        value = b.const(type, 0) if self.mask else b.undef(type)
        for lane in range(count):
            value = b.insert(value, b.load(type.element, self._place(pointer, element, index, lane), align), lane)
        return value

    def _scatter(self, value: Value, pointer: Value, element: str, index: LaneIndex, align: int | None = None) -> None:
        """Stores each lane's value at its own place."""
        b, count = self.b, self._count_apart()
        if not count:
            b.scatter(value, self._addresses(pointer, element, index, small=False), self.mask, align=align)
        for lane in range(count):
            b.store(b.extract(value, lane), self._place(pointer, element, index, lane), align)

    def _place(self, pointer: Value, element: str, index: LaneIndex, lane: int) -> Value:
        """The address of one lane's element."""
        if not index.general:
            return self._step(self._address(pointer, element, index), element, self.lane(lane, index.step))
        key = "lane", index.value.name, lane
        if key not in self.known:
            self.known[key] = self.b.extract(index.value, lane)
        return self._step(pointer, element, self.known[key])  # type: ignore[arg-type]

    def _has_avx512(self) -> bool:
        return "+avx512f" in self.b.module.features

    def _count_apart(self) -> int:
        """How many lanes, if they are known, have elements that are moved one by one. With AVX-512, one instruction
        moves them all; AVX2's is slower than as many loads on some machines, and takes LLVM longer."""
        mask, active = self.active
        if self._has_avx512() or (self.mask is not None and (self.mask is not mask or not isinstance(active, int))):
            return 0
        return self.width if self.mask is None else active  # type: ignore[return-value]

    def _store_active(self, value: Value, address: Value, mask: Value, last: bool = False) -> None:
        """Stores the active lanes, which are the first ones, or the `last`."""
        active, b = self.active[1], self.b
        if not isinstance(active, int) and self.mask is self.active[0] and not self._has_avx512():
            self.either(b.cmp("eq", active, i64(self.width)), lambda: b.store(value, address),
                        lambda: b.masked_store(value, address, mask))
        elif not isinstance(active, int) or self.mask is not self.active[0] or not self._store_pieces(
                value, address, active, self.width - active if last else 0):
            b.masked_store(value, address, mask)

    def either(self, condition: Value | None, usual: Callable[[], None], rare: Callable[[], None]) -> None:
        raise NotImplementedError

    def _store_first(self, value: Value, address: Value, numbers: int, part: int) -> None:
        """Stores what is of active lanes, see `_first`."""
        active, width = self.active[1], value.type.width
        if not isinstance(active, int) or not self._store_pieces(
                value, address, min(max(numbers * active - part * width, 0), width)):
            self.b.masked_store(value, address, self._first(numbers, part, width))

    def _store_pieces(self, value: Value, address: Value, count: int, at: int = 0) -> bool:
        """Stores so many lanes from one on in pieces, if they are few: a load that comes soon after, and touches what
        lies behind, has to wait for a store with a mask."""
        b, scalar = self.b, value.type.scalar
        pieces = [size for size in (1 << k for k in reversed(range(count.bit_length()))) if count & size]
        if len(pieces) > _PIECES or value.type.bits < 32:
            return False
        for size in pieces:
            whole = size == value.type.width
            part = value if whole else b.shuffle(value, b.undef(value.type), range(at, at + size)) if size > 1 else (
                b.extract(value, at))
            b.store(part, b.gep(scalar, address, at) if at else address)
            at += size
        return True

    # -- complex numbers ------------------------------------------------------------------------

    def _load_complex(self, place: Place, index: LaneIndex) -> tuple[Value, Value]:
        b, scalar = self.b, REGISTER[place.dtype]
        element = f"[2 x {scalar}]"
        if index.uniform:
            real = self._address(place.pointer, element, index)
            return b.load(Type(scalar), real), b.load(Type(scalar), b.gep(scalar, real, 1))
        if index.step == -1 and not index.general and self.mask is None:
            back = self._address(place.pointer, element, index, self.width - 1)
            return self._apart([b.load(Type(scalar, 2 * self.width), back)], range(self.width - 1, -1, -1))
        if self._masks_clamped(index, 64):
            both = self._load_clamped(place.pointer, element, Type(scalar, 2 * self.width), index)
            return self._apart([both], range(self.width))
        if index.step != 1 or index.general:
            if scalar == "float":  # both parts as one number
                both = self._gather(Type("double", self.width), place.pointer, element, index, self.mask, align=4)
                return self._apart([b.cast("bitcast", both, Type(scalar, 2 * self.width))], range(self.width))
            reals = self._addresses(place.pointer, element, index, small=False)
            imaginaries = b.gep(scalar, reals, 1)
            type = Type(scalar, self.width)
            return b.gather(type, reals, self.mask), b.gather(type, imaginaries, self.mask)
        address = self._address(place.pointer, element, index)
        parts, width = self._in_parts(scalar)
        found = []
        for part in range(parts):
            start, type = self._part(address, scalar, part, width), Type(scalar, width)
            mask = self.mask and self._doubled(part, width)
            found.append(b.load(type, start) if mask is None else b.masked_load(type, start, mask))
        return self._apart(found, range(self.width))

    def _in_parts(self, scalar: str) -> tuple[int, int]:
        """In how many vectors the complex numbers of all lanes are, and how many numbers are in each."""
        parts = 1 if 2 * self.width * Type(scalar).bits <= _WIDEST else 2
        return parts, 2 * self.width // parts

    def _apart(self, vectors: Sequence[Value], lanes: Sequence[int]) -> tuple[Value, Value]:
        """The parts of complex numbers that are one after the other in one vector or two (by shuffles that LLVM knows:
        those of numbers that are but moved fall away)."""
        first, order = vectors[0], [2 * lane for lane in lanes]
        other = vectors[1] if len(vectors) > 1 else self.b.undef(first.type)
        return self.b.shuffle(first, other, order), self.b.shuffle(first, other, [place + 1 for place in order])

    def _part(self, address: Value, scalar: str, part: int, width: int) -> Value:
        """Where a part of complex numbers in a vector is."""
        return self.b.gep(scalar, address, part * width) if part else address

    def _doubled(self, part: int, width: int) -> Value:
        """The mask of the numbers in a part of complex ones."""
        assert self.mask is not None
        if self.mask is self.active[0]:
            return self._first(2, part, width)
        lanes = [(part * width + lane) // 2 for lane in range(width)]
        return self.b.shuffle(self.mask, self.b.undef(self.mask.type), lanes)

    def _pairs(self, re: Value, im: Value, parts: int) -> list[Value]:
        """Complex numbers one after the other, in one vector or two."""
        width = 2 * self.width // parts
        order = [lane + part * self.width for lane in range(self.width) for part in (0, 1)]
        return [self.b.shuffle(re, im, order[start:start + width]) for start in range(0, 2 * self.width, width)]

    def _store_complex(self, place: Place, index: LaneIndex, value: tuple[Value, Value]) -> None:
        b, scalar = self.b, REGISTER[place.dtype]
        element = f"[2 x {scalar}]"
        if index.uniform:
            real = self._address(place.pointer, element, index)
            b.store(value[0], real)
            b.store(value[1], b.gep(scalar, real, 1))
            return
        re, im = (b.splat(v, self.width) if v.type.width == 1 else v for v in value)
        if index.step != 1 or index.general:
            if scalar == "float":  # both parts as one number
                (both,) = self._pairs(re, im, 1)
                whole = b.cast("bitcast", both, Type("double", self.width))
                self._scatter(whole, place.pointer, element, index, align=4)
            else:
                reals = self._addresses(place.pointer, element, index, small=False)
                b.scatter(re, reals, self.mask)
                b.scatter(im, b.gep(scalar, reals, 1), self.mask)
            return
        address = self._address(place.pointer, element, index)
        parts, width = self._in_parts(scalar)
        for part, vector in enumerate(self._pairs(re, im, parts)):
            start = self._part(address, scalar, part, width)
            if self.mask is None:
                b.store(vector, start)
            elif self.mask is self.active[0]:
                self._store_first(vector, start, 2, part)
            else:
                b.masked_store(vector, start, self._doubled(part, width))
