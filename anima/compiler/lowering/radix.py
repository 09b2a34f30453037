"""Sorting long rows by the digits of one key: a stable radix sort, least significant digit first.

    keys -> integers in the same order;  for each digit: count, add up, move (key, place);  take by place

A pass is linear in the length of the row, whatever the values. Method: Knuth, The Art of Computer
Programming 3, 5.2.5; integers in the order of floats as in Herf, "Radix tricks" (2001).
"""

from __future__ import annotations

import math

from anima.compiler.ir.index_math import Index
from anima.compiler.ir.loops import INDEX, Const, Expr, Load, Op, Ref, Store
from anima.compiler.lowering.array import Scope, scalar_type
from anima.compiler.lowering.calls import ProgramBuilder
from anima.core import dtypes
from anima.core.jaxpr import Eqn

LENGTH = 512            # rows from this length on are sorted by digits
LONG = 1 << 14          # rows from this length on by larger digits
_FLOATS = {"f16": "u16", "bf16": "u16", "f32": "u32", "f64": "u64"}
_BITS = {"bool": 8, "i8": 8, "u8": 8, "i16": 16, "u16": 16, "f16": 16, "bf16": 16, "i32": 32, "u32": 32, "f32": 32,
         "i64": 64, "u64": 64, "f64": 64}


def radix_fits(eqn: Eqn) -> bool:
    """Whether a sort has one real key and rows that are long enough."""
    out = eqn.outvars[0].aval
    length = LENGTH * (2 if dtypes.itemsize_bits(out.dtype) == 64 else 1)
    n = out.shape[eqn.params["dimension"]]
    return eqn.params["num_keys"] == 1 and scalar_type(out) in _BITS and length <= n < 1 << 31


def ordered_bits(scope: Scope, x: Expr, signed_zeros: bool = False) -> Expr:
    """An unsigned integer for each number, in the order of the numbers: NaN last, -0.0 equal to 0.0 unless
    `signed_zeros`."""
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
    places = [builder.temp("i32", rows * n) for _ in range(2)]
    scope = builder.scope()
    ix = scope.ix

    def place(row: Index, k: Index) -> Index:
        before, after = ix.divmod(row, inner)
        return ix.add(ix.scale(ix.add(ix.scale(before, n), k), inner), after)

    with scope.loop(rows, "each") as row:
        start = scope.let(ix.scale(row, n).expr(), row.level, "n")
        counts = scope.local("i32", 1 << digit)
        with scope.loop(n, "each") as k:
            x = scope.at(eqn.invars[0], ix.unflatten(place(row, k), shape))
            scope.store(keys[0], ix.add(ix.scale(row, n), k), ordered_bits(scope, x))
        for number, shift in enumerate(range(0, bits, digit)):
            here, there = number % 2, 1 - number % 2
            _pass(scope, start, n, (keys[here], key_type, shift, digit), counts, places[here] if number else None,
                  keys[there], places[there])
        last = places[len(range(0, bits, digit)) % 2]
        with scope.loop(n, "serial") as k:
            taken = scope.as_index(scope.load(last, ix.add(ix.scale(row, n), k), "i32", scope.depth), 0, n - 1)
            source = ix.unflatten(place(row, taken), shape)
            for operand, var in zip(eqn.invars, eqn.outvars, strict=True):
                scope.store(builder.result(var), place(row, k), scope.at(operand, source))
    builder.kernel("sort", scope, eqn.source)


def _pass(scope: Scope, start: Expr, n: int, digits: tuple[str, str, int, int], counts: str, places: str | None,
          keys_out: str, places_out: str) -> None:
    """Moves a row's keys and places in the order of one digit."""
    keys, key_type, shift, digit = digits
    one, zero = Const(1, "i32"), Const(0, "i32")

    def here(value: Expr) -> Expr:
        return scope.let(value, scope.depth)

    def at(k: Ref) -> Expr:
        return Op("add", (start, k), INDEX)

    def digit_of(key: Expr) -> Expr:
        moved = Op("shift_right_logical", (key, Const(shift, key_type)), key_type) if shift else key
        mask = Const((1 << digit) - 1 if digit < int(key_type[1:]) else (1 << int(key_type[1:])) - 1, key_type)
        return here(Op("cast", (here(Op("and", (moved, mask), key_type)),), INDEX))

    with scope.loop(1 << digit, "each") as d:
        scope.emit(Store(counts, d.expr(), zero))
    with scope.serial(n) as k:
        which = digit_of(here(Load(keys, at(k), key_type)))
        scope.emit(Store(counts, which, Op("add", (here(Load(counts, which, "i32")), one), "i32")))
    total = scope.var(zero, "a")
    with scope.serial(1 << digit) as k:
        count = here(Load(counts, k, "i32"))
        scope.emit(Store(counts, k, total))
        scope.assign(total, Op("add", (total, count), "i32"))
    with scope.serial(n) as k:
        key = here(Load(keys, at(k), key_type))
        which = digit_of(key)
        to = here(Load(counts, which, "i32"))
        scope.emit(Store(counts, which, Op("add", (to, one), "i32")))
        target = here(Op("add", (start, Op("cast", (to,), INDEX)), INDEX))
        scope.emit(Store(keys_out, target, key))
        came = Op("cast", (k,), "i32") if places is None else Load(places, at(k), "i32")
        scope.emit(Store(places_out, target, came))
