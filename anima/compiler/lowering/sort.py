"""Sorting along one axis, stable, over any number of keys and operands; and the first k in order.

    width = 1, 2, 4, ...:   merge neighbouring runs of that width from one buffer to another

Floats are ordered with NaN last and -0.0 equal to 0.0, complex numbers by real, then imaginary part. Short rows are
sorted by exchanges, one in each lane if there are many; long rows with one key by its digits (`radix.py`), others by
merges. Methods: Knuth, The Art of Computer Programming 3, 5.2.2 (merge exchange), 5.2.4 (straight merge sort), 5.3.4
(odd-even transposition).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import partial

from anima.compiler.ir.costs import UNKNOWN_TRIPS
from anima.compiler.ir.index_math import Index
from anima.compiler.ir.loops import INDEX, PARTS, Const, Expr, Load, NamedValue, Op, Store, affine
from anima.compiler.lowering.array import Scope, scalar_type
from anima.compiler.lowering.calls import ProgramBuilder, call
from anima.compiler.lowering.lanes import WRITTEN_OUT, MatrixWriter
from anima.compiler.lowering.order import order_fits, sort_by_order
from anima.compiler.lowering.radix import (
    FLOATS,
    bits_of,
    is_real,
    number_of_bits,
    one_key,
    ordered_bits,
    radix_fits,
    radix_sort,
    zeros_in_order,
)
from anima.compiler.lowering.radix_pieces import in_pieces, sort_in_pieces
from anima.compiler.machine.target import Target
from anima.core.jaxpr import Atom, Eqn

MANY = 4       # rows that are enough for lanes ...
SHORT = 256    # ... and twice as many if they are longer, which the other way takes in better
NETWORK = 4096  # elements of rows for which exchanges in lanes take less time than digits or merges ...
SINGLE = 1024  # ... and one by one less than merges
_PASSES = 4   # keys that rows are sorted by one after the other, at most: so from ...
_ALONE = 128  # elements on, where rows are few
_ROOM = 8    # elements among which top_k's best ones move are a multiple of it: whole vectors
_LOOK = 32   # elements of which top_k first asks whether one is among the best
_ONE, _ZERO = Const(1, INDEX), Const(0, INDEX)


def _add(a: Expr, b: Expr) -> Expr:
    return affine(0, (a, 1), (b, 1))


def _min(a: Expr, b: Expr) -> Expr:
    return Op("min", (a, b), INDEX)


@call("sort", inline=range(1, sys.maxsize))  # all but the first key are looked at once
def _sort(builder: ProgramBuilder, eqn: Eqn) -> None:
    shape, axis = eqn.outvars[0].aval.shape, eqn.params["dimension"]
    if eqn.outvars[0].aval.size == 0:
        return
    n, inner = shape[axis], math.prod(shape[axis + 1:])
    outer = math.prod(shape) // n
    types = [scalar_type(v.aval) for v in eqn.outvars]
    results = [builder.result(v) for v in eqn.outvars]
    if order_fits(eqn, builder.target):
        sort_by_order(builder, eqn)
        return
    if _by_network(eqn, n, outer):
        _sort_in_lanes(builder, eqn, types, results)
        return
    if radix_fits(eqn):
        (sort_in_pieces if in_pieces(eqn) else radix_sort)(builder, eqn)
        return
    # Rows are sorted where they lie one behind the other: in the results, if the axis is the last one.
    first = results if inner == 1 else [builder.temp(t, outer * n) for t in types]
    second = [builder.temp(t, outer * n) for t in types] if n > 1 else first
    scope = builder.scope()
    ix = scope.ix

    with scope.loop(outer, "each") as row:
        base = ix.scale(row, n)
        with scope.loop(n, "serial") as k:
            index = ix.unflatten(ix.in_row(row, k, n, inner), shape)
            for operand, target in zip(eqn.invars, first, strict=True):
                scope.store(target, ix.add(base, k), scope.at(operand, index))
        if n > 1:
            start = scope.let(base.expr(), base.level, "n")
            _merge_sort(scope, start, n, types, first, second, eqn.params["num_keys"])
        if inner != 1:
            with scope.loop(n, "serial") as k:
                for source, target, dtype in zip(first, results, types, strict=True):
                    value = scope.let(Load(source, ix.add(base, k).expr(), dtype), scope.depth)
                    scope.store(target, ix.in_row(row, k, n, inner), value)
    builder.kernel("sort", scope, eqn.source)


def wants_passes(eqn: Eqn, target: Target) -> bool:
    """Whether rows are sorted by one key after the other, the last one first, in less time than by all at once."""
    shape, axis, keys = eqn.outvars[0].aval.shape, eqn.params["dimension"], eqn.params["num_keys"]
    if type(target) is not Target or not 1 < keys <= _PASSES or not eqn.outvars[0].aval.size:
        return False
    types = [scalar_type(v.aval) for v in eqn.outvars[:keys]]
    if not all(map(is_real, types)):
        return False
    if math.prod(shape) < MANY * shape[axis]:
        return shape[axis] >= _ALONE
    quick = target.compresses and max(map(bits_of, types)) <= 32
    return shape[axis] >= (SINGLE if quick else NETWORK + 1)


def _by_network(eqn: Eqn, n: int, rows: int) -> bool:
    """Whether exchanges sort rows of `n` elements in less time than digits (of one key) or merges."""
    if not one_key(eqn):
        return n <= (NETWORK if rows >= MANY else SINGLE)
    if rows < MANY or (n > SHORT and rows < 2 * MANY):
        return not radix_fits(eqn) and n <= SINGLE
    bits = bits_of(scalar_type(eqn.outvars[0].aval))
    return n <= (NETWORK if bits == 32 and len(eqn.invars) == 1 else NETWORK * bits // 64)


def _sort_in_lanes(builder: ProgramBuilder, eqn: Eqn, types: Sequence[str], results: Sequence[str]) -> None:
    """Sorts rows one in each lane: by exchanges of neighbours if all is written out, else by Batcher's network."""
    shape, axis = eqn.outvars[0].aval.shape, eqn.params["dimension"]
    n, inner = shape[axis], math.prod(shape[axis + 1:])
    rows = math.prod(shape) // n
    scope = builder.scope()
    ix = scope.ix
    with scope.loop(rows, "vector") as row:
        def at(operand: Atom, k: Index) -> Expr:
            return scope.at(operand, ix.unflatten(ix.in_row(row, k, n, inner), shape))

        def store(target: str, k: Index, value: Expr) -> None:
            scope.store(target, ix.in_row(row, k, n, inner), value)

        if n > WRITTEN_OUT and one_key(eqn) and (bits_of(types[0]) < 64 or len(types) == 1):
            _sort_numbers(scope, eqn, n, at, [partial(store, target) for target in results])
        else:
            _sort_records(scope, eqn, n, at, [partial(store, target) for target in results])
    if n > WRITTEN_OUT and len(types) == 1 and types[0] in FLOATS:
        with scope.loop(rows, "each") as row:
            zeros_in_order(scope, lambda k: at(eqn.invars[0], k), n, types[0], lambda k: ix.in_row(row, k, n, inner),
                           results[0])
    builder.kernel("sort", scope, eqn.source)


def _sort_numbers(scope: Scope, eqn: Eqn, n: int, at: Callable[[Atom, Index], Expr],
                  stores: Sequence[Callable[[Index, Expr], None]]) -> None:
    """Sorts by one key as integers: with other operands, the lower half of each says where it came from."""
    key, alone = eqn.invars[0], len(eqn.invars) == 1
    dtype = scalar_type(key.aval)
    wide = "u32" if alone and bits_of(dtype) <= 32 else "u64"
    work = MatrixWriter(scope, wide, False, True)
    room = work.room(n)
    for k in work.steps(0, n):
        number = scope.cast(ordered_bits(scope, at(key, k), signed_zeros=alone), wide)
        if not alone:
            number = work.op("or", work.op("shift_left", number, Const(32, wide)), scope.index_value(k, wide))
        room.put(k, None, number)

    def exchange(i: Index, j: Index) -> None:
        x, y = room.get(i), room.get(j)
        room.put(i, None, work.op("min", x, y))
        room.put(j, None, work.op("max", x, y))

    _network(scope, n, exchange)
    for k in work.steps(0, n):
        if alone:
            stores[0](k, number_of_bits(scope, scope.cast(room.get(k), f"u{bits_of(dtype)}"), dtype))
            continue
        taken = scope.as_index(scope.cast(room.get(k), "u32"), 0, n - 1)
        for operand, store in zip(eqn.invars, stores, strict=True):
            store(k, at(operand, taken))


def _sort_records(scope: Scope, eqn: Eqn, n: int, at: Callable[[Atom, Index], Expr],
                  stores: Sequence[Callable[[Index, Expr], None]]) -> None:
    """Sorts by any keys; what they do not tell apart keeps its order, in a network by its place."""
    keys, types = eqn.params["num_keys"], [scalar_type(v.aval) for v in eqn.invars]
    work = MatrixWriter(scope, types[0], n <= WRITTEN_OUT, True)
    rooms = [work.room(n, dtype=t) for t in types]
    compared = rooms[:keys]
    if not work.written_out:
        compared.append(work.room(n, dtype="i32"))
        rooms.append(compared[-1])

    def exchange(i: Index, j: Index) -> None:
        pairs = {room: (room.get(i), room.get(j)) for room in rooms}
        less = before(lambda value: scope.let(value, scope.depth), [pairs[r][1] for r in compared],
                      [pairs[r][0] for r in compared])
        for room, (x, y) in pairs.items():
            room.put(i, None, work.select(less, y, x))
            room.put(j, None, work.select(less, x, y))

    for k in work.steps(0, n):
        for operand, room in zip(eqn.invars, rooms, strict=False):
            room.put(k, None, at(operand, k))
        if not work.written_out:
            compared[-1].put(k, None, scope.index_value(k, "i32"))
    if work.written_out:
        for start in range(n):  # odd-even transposition: Knuth, 5.3.4, exercise 37
            for i in range(start % 2, n - 1, 2):
                exchange(scope.ix.const(i), scope.ix.const(i + 1))
    else:
        _network(scope, n, exchange)
    for k in work.steps(0, n):
        for room, store in zip(rooms, stores, strict=False):
            store(k, room.get(k))


def _network(scope: Scope, n: int, exchange: Callable[[Index, Index], None]) -> None:
    """Batcher's merge exchange for any number of elements: Knuth, 5.2.2, Algorithm M."""
    def here(value: Expr) -> Expr:
        return scope.let(value, scope.depth)

    def number(value: Expr) -> Expr:
        return here(Op("cast", (value,), "i32"))

    def i32(name: str, a: Expr, b: Expr | int) -> Expr:
        return here(Op(name, (a, Const(b, "i32") if isinstance(b, int) else b), "i32"))

    rounds = (n - 1).bit_length()
    with scope.serial(rounds) as a:
        p = i32("shift_right_logical", Const(1 << (rounds - 1), "i32"), number(a))
        with scope.serial(Op("min", (affine(1, (a, 1)), Const(rounds, INDEX)), INDEX)) as b:
            first = here(Op("eq", (b, _ZERO), "bool"))
            q = i32("shift_right_logical", Const(1 << rounds, "i32"), number(b))
            r = here(Op("select_n", (first, p, Const(0, "i32")), "i32"))
            d = here(Op("select_n", (first, i32("sub", q, p), p), "i32"))
            # Elements whose number has the bit p as r has it, and a partner d further on.
            blocks, pairs = i32("sub", i32("sub", Const(n, "i32"), d), r), i32("add", p, p)
            rest = i32("rem", blocks, pairs)
            count = i32("add", i32("mul", i32("div", blocks, pairs), p), i32("min", rest, p))
            mask = i32("sub", p, 1)
            from_, apart = (here(Op("cast", (v,), INDEX)) for v in (r, d))
            with scope.serial(Op("min", (here(Op("cast", (count,), INDEX)), Const(n // 2, INDEX)), INDEX)) as k:
                inside = here(Op("cast", (i32("and", number(k), mask),), INDEX))
                i = here(affine(0, (from_, 1), (k, 2), (inside, -1)))
                ix, depth = scope.ix, scope.depth
                exchange(ix.opaque(i, 0, n - 1, depth), ix.opaque(here(_add(i, apart)), 0, n - 1, depth))


def _merge_sort(scope: Scope, start: Expr, n: int, types: Sequence[str], first: Sequence[str], second: Sequence[str],
                num_keys: int) -> None:
    """Sorts a row of `first`, with `second` as the other buffer: two passes a round, so that it ends where it began."""
    width = scope.var(_ONE, "w")
    with scope.while_(Op("lt", (width, Const(n, INDEX)), "bool"), steps=((n - 1).bit_length() + 1) // 2):
        _merge_pass(scope, start, n, scope.read(width), types, first, second, num_keys)
        double = scope.let(_add(width, width), scope.depth, "n")
        _merge_pass(scope, start, n, double, types, second, first, num_keys)
        scope.assign(width, _add(double, double))


def _merge_pass(scope: Scope, start: Expr, n: int, width: Expr, types: Sequence[str], source: Sequence[str],
                target: Sequence[str], num_keys: int) -> None:
    """Merges pairs of runs of `width` elements."""
    size = Const(n, INDEX)
    low = scope.var(_ZERO, "a")
    with scope.while_(Op("lt", (low, size), "bool"), steps=-(-n // UNKNOWN_TRIPS)):  # all merges take n steps
        middle = scope.let(_min(_add(low, width), size), scope.depth, "n")
        high = scope.let(_min(_add(middle, width), size), scope.depth, "n")
        left, right = scope.var(scope.read(low), "a"), scope.var(middle, "b")
        count = scope.let(affine(0, (high, 1), (low, -1)), scope.depth, "n")
        with scope.serial(count) as step:
            _merge_step(scope, start, _add(low, step), left, right, middle, high, types, source, target, num_keys)
        scope.assign(low, high)


def _merge_step(scope: Scope, start: Expr, place: Expr, left: NamedValue, right: NamedValue, middle: Expr, high: Expr,
                types: Sequence[str], source: Sequence[str], target: Sequence[str], num_keys: int) -> None:
    """Takes the smaller of the runs' first elements; the left one if they are equal."""
    def here(value: Expr) -> Expr:
        return scope.let(value, scope.depth)

    def first_of(run: Expr, end: Expr) -> Expr:
        return here(_add(start, _min(run, affine(-1, (end, 1)))))

    a, b = first_of(left, middle), first_of(right, high)
    xs = [here(Load(s, a, t)) for s, t in zip(source, types, strict=True)]
    ys = [here(Load(s, b, t)) for s, t in zip(source, types, strict=True)]
    smaller = before(here, ys[:num_keys], xs[:num_keys])
    left_done, right_left = Op("ge", (left, middle), "bool"), Op("lt", (right, high), "bool")
    take = here(Op("and", (right_left, Op("or", (left_done, smaller), "bool")), "bool"))
    for x, y, t, dtype in zip(xs, ys, target, types, strict=True):
        scope.emit(Store(t, _add(start, place), Op("select_n", (take, x, y), dtype)))
    moved = here(Op("cast", (take,), INDEX))
    scope.assign(right, _add(right, moved))
    scope.assign(left, affine(1, (left, 1), (moved, -1)))


@call("top_k", inline="all")
def _top_k(builder: ProgramBuilder, eqn: Eqn) -> None:
    """Goes through each row once and keeps the k best in order; most elements are compared with the last only."""
    operand, (values, order) = eqn.invars[0], eqn.outvars
    shape, axis, k = operand.aval.shape, eqn.params["axis"], eqn.params["k"]
    if order.aval.size == 0:
        return
    n, inner = shape[axis], math.prod(shape[axis + 1:])
    dtype = scalar_type(operand.aval)
    scope = builder.scope()
    ix = scope.ix

    with scope.loop(math.prod(shape) // n, "each") as row:
        def candidate(j: Index) -> tuple[Expr, Expr]:
            x = scope.at(operand, ix.unflatten(ix.in_row(row, j, n, inner), shape))
            return x, ordered_bits(scope, x, signed_zeros=True)

        _, first = candidate(ix.zero)
        room = -(-k // _ROOM) * _ROOM
        bits, best, places = (scope.local(t, 2 * (room + 1)) for t in (first.dtype, dtype, "i32"))
        most = Const((1 << int(first.dtype[1:])) - 1, first.dtype)
        for half in (0, 1):
            scope.emit(Store(bits, Const(half * (room + 1), INDEX), most))
        count, start, worst = scope.var(_ZERO, "a"), scope.var(_ZERO, "n"), scope.var(first, "b")
        full = Op("ge", (count, Const(k, INDEX)), "bool")

        def through(first: Expr, size: Expr) -> None:
            with scope.serial(size) as counter:
                j = ix.opaque(scope.let(_add(first, counter), scope.depth), 0, n - 1, scope.depth)
                x, key = candidate(j)
                better = Op("or", (Op("not", (full,), "bool"), Op("gt", (key, worst), "bool")), "bool")
                with scope.when(scope.let(better, scope.depth)):
                    _insert(scope, [(bits, key), (best, x), (places, scope.index_value(j, "i32"))], count, start, room)
                    scope.assign(count, _min(affine(1, (count, 1)), Const(k, INDEX)))
                    scope.assign(worst, Load(bits, _add(start, count), key.dtype))

        if n < 2 * _LOOK:
            through(_ZERO, Const(n, INDEX))
        else:  # most of many elements are not among the best: that is seen of some at once; the first part may be short
            parts = -(-n // _LOOK)
            with scope.serial(parts) as part:
                begin = scope.let(affine(n - parts * _LOOK, (part, _LOOK)), scope.depth, "n")
                low = scope.let(Op("max", (begin, _ZERO), INDEX), scope.depth, "n")
                largest = scope.var(Const(0, first.dtype), "b")
                place = ix.opaque(low, 0, n - _LOOK, scope.depth)
                with scope.loop(_LOOK, "vector") as i:
                    scope.accumulate(largest, "max", candidate(ix.add(place, i))[1])
                some = Op("or", (Op("not", (full,), "bool"), Op("gt", (largest, worst), "bool")), "bool")
                with scope.when(scope.let(some, scope.depth)):
                    through(low, affine(_LOOK, (begin, 1), (low, -1)))
        kept = ix.opaque(scope.read(start), 0, room + 1, scope.depth)
        with scope.loop(k, "serial") as j:
            target = ix.in_row(row, j, k, inner)
            for source, var, t in ((best, values, dtype), (places, order, "i32")):
                value = scope.let(Load(source, ix.offset(ix.add(kept, j), 1).expr(), t), scope.depth)
                scope.store(builder.result(var), target, value)
    builder.kernel("top_k", scope, eqn.source)


def _insert(scope: Scope, rows: Sequence[tuple[str, Expr]], count: NamedValue, start: NamedValue, room: int) -> None:
    """Puts a new element behind all that are not smaller, of `count` in order.

    A row has two halves of 1 + `room` elements, of which the one at `start` is in use; its first key is above all.
    Without a branch, the other half gets what is kept, the new element, and what moves by one place.
    """
    ix, (bits, key) = scope.ix, rows[0]
    here = ix.opaque(scope.read(start), 0, room + 1, scope.depth)
    held = scope.let(Op("cast", (count,), "i32"), scope.depth)
    other = scope.let(affine(room + 1, (start, -1)), scope.depth, "n")
    there = ix.opaque(other, 0, room + 1, scope.depth)
    with scope.loop(room, "vector") as i:
        at, to = ix.add(here, i), ix.offset(ix.add(there, i), 1)

        def stays(place: Index, inside: str) -> Expr:
            old = scope.let(Load(bits, place.expr(), key.dtype), scope.depth)
            known = scope.op(inside, (scope.index_value(i, "i32"), held), "bool")
            return scope.op("and", (known, scope.op("ge", (old, key), "bool")), "bool")

        this, previous = stays(ix.offset(at, 1), "lt"), stays(at, "le")
        for row, value in rows:
            old, moved = (scope.let(Load(row, p.expr(), value.dtype), scope.depth) for p in (ix.offset(at, 1), at))
            new = scope.op("select_n", (previous, moved, value), value.dtype)
            scope.store(row, to, scope.op("select_n", (this, new, old), value.dtype))
    scope.assign(start, other)


def before(here: Callable[[Expr], Expr], xs: Sequence[Expr], ys: Sequence[Expr]) -> Expr:
    """Whether the keys `xs` come strictly before `ys`."""
    result: Expr | None = None
    for x, y in reversed(list(_parts(here, xs, ys))):
        less = _less(here, x, y)
        if result is None:
            result = less
        else:
            more = _less(here, y, x)
            equal = here(Op("and", (Op("not", (more,), "bool"), result), "bool"))
            result = here(Op("or", (less, equal), "bool"))
    assert result is not None
    return result


def _parts(here: Callable[[Expr], Expr], xs: Sequence[Expr], ys: Sequence[Expr]) -> list[tuple[Expr, Expr]]:
    """Pairs of real numbers to compare, the foremost first."""
    out: list[tuple[Expr, Expr]] = []
    for x, y in zip(xs, ys, strict=True):
        if x.dtype in PARTS:
            real = PARTS[x.dtype]
            out += [(here(Op(part, (x,), real)), here(Op(part, (y,), real))) for part in ("real", "imag")]
        else:
            out.append((x, y))
    return out


def _less(here: Callable[[Expr], Expr], x: Expr, y: Expr) -> Expr:
    """x < y, where NaN is above everything."""
    less = here(Op("lt", (x, y), "bool"))
    if x.dtype == "bool" or x.dtype[0] in "iu":
        return less
    x_nan, y_number = Op("ne", (x, x), "bool"), Op("eq", (y, y), "bool")
    # x < y, or y is NaN and x is not
    return here(Op("or", (less, Op("not", (Op("or", (x_nan, y_number), "bool"),), "bool")), "bool"))
