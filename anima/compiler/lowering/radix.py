"""Sorting long rows by the digits of one key: a stable radix sort, least significant digit first.

    keys -> integers in the same order;  for each digit: count, add up, move (key, place);  take by place

A pass is linear in the length of the row, whatever the values. Method: Knuth, The Art of Computer
Programming 3, 5.2.5; integers in the order of floats as in Herf, "Radix tricks" (2001).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from anima.compiler.ir.index_math import Index
from anima.compiler.ir.loops import INDEX, Const, Expr, Load, NamedValue, Op, Store, affine
from anima.compiler.lowering.array import Scope, scalar_type
from anima.compiler.lowering.calls import ProgramBuilder
from anima.core import dtypes
from anima.core.jaxpr import Eqn

LENGTH = 64             # rows from this length on are sorted by digits
LONG = 1 << 14          # rows from this length on by larger digits
FLOATS = {"f16": "u16", "bf16": "u16", "f32": "u32", "f64": "u64"}
_BITS = {"bool": 8, "i8": 8, "u8": 8, "i16": 16, "u16": 16, "f16": 16, "bf16": 16, "i32": 32, "u32": 32, "f32": 32,
         "i64": 64, "u64": 64, "f64": 64}


def bits_of(dtype: str) -> int:
    """How many bits a key of this type has as an integer."""
    return _BITS[dtype]


def is_real(dtype: str) -> bool:
    """Whether keys of this type are integers in the same order."""
    return dtype in _BITS


def one_key(eqn: Eqn) -> bool:
    """Whether a sort has one key, a real number."""
    return eqn.params["num_keys"] == 1 and is_real(scalar_type(eqn.outvars[0].aval))


def radix_fits(eqn: Eqn) -> bool:
    """Whether a sort has one real key and rows that are long enough."""
    out = eqn.outvars[0].aval
    length = LENGTH * (2 if dtypes.itemsize_bits(out.dtype) == 64 else 1)
    return one_key(eqn) and length <= out.shape[eqn.params["dimension"]] < 1 << 31


def ordered_bits(scope: Scope, x: Expr, signed_zeros: bool = False) -> Expr:
    """An unsigned integer for each number, in the order of the numbers: NaN last, -0.0 equal to 0.0 unless
    `signed_zeros`. Narrow types are widened first."""
    if not is_real(x.dtype):
        x = scope.cast(x, "f32" if x.dtype[0] == "f" else f"{x.dtype[0]}8")
    bits = _BITS[x.dtype]
    unsigned = f"u{bits}"
    if x.dtype == "bool":
        return scope.op("cast", (x,), "u8")
    if x.dtype[0] == "u":
        return x
    top = Const(1 << (bits - 1), unsigned)
    if x.dtype[0] == "i":
        return scope.op("xor", (scope.op("bitcast", (x,), unsigned), top), unsigned)
    if not signed_zeros:
        zero = Const(0.0, x.dtype)
        x = scope.op("select_n", (scope.op("eq", (x, zero), "bool"), x, zero), x.dtype)
    raw = scope.op("bitcast", (x,), unsigned)
    negative = scope.op("ge", (raw, top), "bool")
    flipped = scope.op("select_n", (negative, scope.op("xor", (raw, top), unsigned), scope.op("not", (raw,), unsigned)),
                       unsigned)
    nan = scope.op("ne", (x, x), "bool")
    return scope.op("select_n", (nan, flipped, Const((1 << bits) - 1, unsigned)), unsigned)


def radix_sort(builder: ProgramBuilder, eqn: Eqn) -> None:
    """Sorts the operands by the first one."""
    shape, axis = eqn.outvars[0].aval.shape, eqn.params["dimension"]
    n, inner = shape[axis], math.prod(shape[axis + 1:])
    rows = math.prod(shape) // n
    dtype = scalar_type(eqn.outvars[0].aval)
    bits = _BITS[dtype]
    key_type = f"u{bits}"
    digit = 8 if n < LONG or bits <= 16 else 11
    keys = [builder.temp(key_type, rows * n) for _ in range(2)]
    if len(eqn.invars) == 1:
        _sort_keys(builder, eqn, keys, key_type, digit)
        return
    places = [builder.temp("i32", rows * n) for _ in range(2)]
    scope = builder.scope()
    ix = scope.ix

    with scope.loop(rows, "each") as row:
        start = scope.let(ix.scale(row, n).expr(), row.level, "n")
        counts = scope.local("i32", 1 << digit)
        with scope.loop(n, "each") as k:
            x = scope.at(eqn.invars[0], ix.unflatten(ix.in_row(row, k, n, inner), shape))
            scope.store(keys[0], ix.add(ix.scale(row, n), k), ordered_bits(scope, x))
        for number, shift in enumerate(range(0, bits, digit)):
            here, there = number % 2, 1 - number % 2
            _pass(scope, start, n, (keys[here], key_type, shift, digit), counts, places[here] if number else None,
                  keys[there], places[there])
        last = places[len(range(0, bits, digit)) % 2]
        with scope.loop(n, "serial") as k:
            taken = scope.as_index(scope.load(last, ix.add(ix.scale(row, n), k), "i32", scope.depth), 0, n - 1)
            source = ix.unflatten(ix.in_row(row, taken, n, inner), shape)
            for operand, var in zip(eqn.invars, eqn.outvars, strict=True):
                scope.store(builder.result(var), ix.in_row(row, k, n, inner), scope.at(operand, source))
    builder.kernel("sort", scope, eqn.source)


def _pass(scope: Scope, start: Expr, n: int, digits: tuple[str, str, int, int], counts: str, places: str | None,
          keys_out: str, places_out: str) -> None:
    """Moves a row's keys and places in the order of one digit."""
    keys, key_type, shift, digit = digits
    one, zero = Const(1, "i32"), Const(0, "i32")

    def here(value: Expr) -> Expr:
        return scope.let(value, scope.depth)

    def at(k: NamedValue) -> Expr:
        return affine(0, (start, 1), (k, 1))

    with scope.loop(1 << digit, "each") as d:
        scope.emit(Store(counts, d.expr(), zero))
    with scope.serial(n) as k:
        which = digit_of(scope, here(Load(keys, at(k), key_type)), shift, digit)
        scope.emit(Store(counts, which, Op("add", (here(Load(counts, which, "i32")), one), "i32")))
    _add_up(scope, counts, 0, digit)
    with scope.serial(n) as k:
        key = here(Load(keys, at(k), key_type))
        which = digit_of(scope, key, shift, digit)
        to = here(Load(counts, which, "i32"))
        scope.emit(Store(counts, which, Op("add", (to, one), "i32")))
        target = here(affine(0, (start, 1), (Op("cast", (to,), INDEX), 1)))
        scope.emit(Store(keys_out, target, key))
        came = Op("cast", (k,), "i32") if places is None else Load(places, at(k), "i32")
        scope.emit(Store(places_out, target, came))


def digit_of(scope: Scope, key: Expr, shift: int, digit: int) -> Expr:
    """A digit of a key, as an index."""
    bits = int(key.dtype[1:])
    moved = Op("shift_right_logical", (key, Const(shift, key.dtype)), key.dtype) if shift else key
    mask = Const((1 << min(digit, bits)) - 1, key.dtype)
    number = scope.let(Op("and", (moved, mask), key.dtype), scope.depth)
    return scope.let(Op("cast", (number,), INDEX), scope.depth)


def _add_up(scope: Scope, counts: str, first: int, digit: int) -> None:
    """Counts of digits, from place `first` on, become the places where keys with these begin."""
    total = scope.var(Const(0, "i32"), "a")
    with scope.serial(1 << digit) as k:
        place = affine(first, (k, 1))
        count = scope.let(Load(counts, place, "i32"), scope.depth)
        scope.emit(Store(counts, place, total))
        scope.assign(total, Op("add", (total, count), "i32"))


# ---------------------------------------------------------------- keys alone


def _sort_keys(builder: ProgramBuilder, eqn: Eqn, keys: list[str], key_type: str, digit: int) -> None:
    """Sorts rows of nothing but keys: the numbers come back from their bits. All digits are counted at once."""
    operand, out = eqn.invars[0], eqn.outvars[0]
    shape, axis, dtype = out.aval.shape, eqn.params["dimension"], scalar_type(out.aval)
    n, inner = shape[axis], math.prod(shape[axis + 1:])
    shifts, one = range(0, int(key_type[1:]), digit), Const(1, "i32")
    scope = builder.scope()
    ix = scope.ix

    def here(value: Expr) -> Expr:
        return scope.let(value, scope.depth)

    def element(k: Index) -> Expr:
        return scope.at(operand, ix.unflatten(ix.in_row(row, k, n, inner), shape))

    def more(places: str, which: Expr) -> Expr:
        """A number of `places`, which grows by 1."""
        before = here(Load(places, which, "i32"))
        scope.emit(Store(places, which, Op("add", (before, one), "i32")))
        return before

    with scope.loop(math.prod(shape) // n, "each") as row:
        base = ix.scale(row, n)
        counts = scope.local("i32", len(shifts) << digit)
        with scope.loop(len(shifts) << digit, "each") as d:
            scope.emit(Store(counts, d.expr(), Const(0, "i32")))
        with scope.loop(n, "serial") as k:
            key = ordered_bits(scope, element(k), signed_zeros=True)
            scope.store(keys[0], ix.add(base, k), key)
            for number, shift in enumerate(shifts):
                more(counts, affine(number << digit, (digit_of(scope, key, shift, digit), 1)))
        for number, shift in enumerate(shifts):
            source, target = keys[number % 2], keys[1 - number % 2]
            _add_up(scope, counts, number << digit, digit)
            with scope.loop(n, "serial") as k:
                key = here(Load(source, ix.add(base, k).expr(), key_type))
                place = more(counts, affine(number << digit, (digit_of(scope, key, shift, digit), 1)))
                scope.emit(Store(target, affine(0, (base.expr(), 1), (Op("cast", (place,), INDEX), 1)), key))
        with scope.loop(n, "each") as k:
            key = here(Load(keys[len(shifts) % 2], ix.add(base, k).expr(), key_type))
            scope.store(builder.result(out), ix.in_row(row, k, n, inner), number_of_bits(scope, key, dtype))
        if dtype in FLOATS:
            zeros_in_order(scope, element, n, dtype, lambda k: ix.in_row(row, k, n, inner), builder.result(out))
    builder.kernel("sort", scope, eqn.source)


def number_of_bits(scope: Scope, bits: Expr, dtype: str) -> Expr:
    """The number that `ordered_bits` made `bits` of."""
    if dtype == "bool" or dtype[0] == "u":
        return scope.cast(bits, dtype)
    top = Const(1 << (_BITS[dtype] - 1), bits.dtype)
    raw = scope.op("xor", (bits, top), bits.dtype)
    if dtype in FLOATS:
        positive = scope.op("ge", (bits, top), "bool")
        raw = scope.op("select_n", (positive, scope.op("not", (bits,), bits.dtype), raw), bits.dtype)
    return scope.op("bitcast", (raw,), dtype)


def zeros_in_order(scope: Scope, element: Callable[[Index], Expr], n: int, dtype: str,
                   place: Callable[[Index], Index], target: str) -> None:
    """-0.0 and 0.0 are equal: where there is a -0.0, they go back to the order in which they came."""
    zero, minus = Const(0.0, dtype), Const(1 << (_BITS[dtype] - 1), FLOATS[dtype])
    below, zeros = scope.var(Const(0, "i32"), "a"), scope.var(Const(0, "i32"), "a")
    with scope.loop(n, "reduce") as k:
        x = element(k)
        negative = scope.op("eq", (scope.op("bitcast", (x,), minus.dtype), minus), "bool")
        for total, counted in ((below, scope.op("lt", (x, zero), "bool")), (zeros, negative)):
            scope.accumulate(total, "add", scope.cast(counted, "i32"))
    some = scope.let(Op("gt", (scope.read(zeros), Const(0, "i32")), "bool"), scope.depth)
    with scope.when(some):
        put_zeros(scope, element, n, scope.read(below), place, target)


def put_zeros(scope: Scope, element: Callable[[Index], Expr], n: int, first: Expr, place: Callable[[Index], Index],
              target: str) -> None:
    """Puts -0.0 and 0.0, which begin at the place `first`, into the order in which they came."""
    next_place = scope.var(first, "a")
    with scope.loop(n, "serial") as k:
        x = element(k)
        with scope.when(scope.op("eq", (x, Const(0.0, x.dtype)), "bool")):
            to = scope.as_index(scope.read(next_place), 0, n - 1)
            scope.store(target, place(to), x)
            scope.assign(next_place, Op("add", (next_place, Const(1, "i32")), "i32"))
