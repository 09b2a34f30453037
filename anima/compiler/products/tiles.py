"""The register kernel of products of bytes, and of bfloat16, on machines that multiply tiles: x86's AMX.

    kernel(a, rs, 1, b, bs, c, cs, k, add)      C[32, 32] = A[32, k] B[k, 32]  (+ C, if `add`)     k in words of 4 bytes

A tile is 16 rows of 64 bytes; four of them are sums, two are of A, two of B, whose rows have a word of each column.
Their shapes are a state of the thread, which is given back at the end: where it is not, the system saves 8 KB more
whenever it turns to another thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from anima.compiler.ir.assembly import Builder, Type, Value
from anima.compiler.products.dots import BFLOAT, TILE, WORD
from anima.compiler.products.kernel import i64, loop, times, when


def write_tiles(b: Builder, kind: str) -> None:
    """Write the kernel, whose parameters are those of `kernel.KERNEL`, in words; k is a multiple of TILE."""
    a, rs, _, rows, bs, c, cs, k, add = b.params
    rs, bs, cs = (times(b, stride, WORD) for stride in (rs, bs, cs))
    letters = "".join("u" if x == "u8" else "s" for x in (kind[:2], kind[2:]))
    multiply = "tdpbf16ps" if kind == BFLOAT else f"tdpb{letters}d"
    shapes = b.module.constant("tiles", "i8", [1] + [0] * 15 + [4 * TILE, 0] * 8 + [0] * 16 + [TILE] * 8 + [0] * 8)
    sums = [(t, t // 2, t % 2) for t in range(4)]  # a tile's number, and which of A and of B it is the product of

    def tile(name: str, number: int, *more: Value) -> None:
        _call(b, name, [i8(number), *more])

    def places() -> list[tuple[int, Value]]:
        return [(t, _at(b, _at(b, c, times(b, cs, TILE) if i else None), i64(64) if j else None)) for t, i, j in sums]

    def zeros() -> None:
        for t, *_ in sums:
            tile("tilezero", t)

    def load() -> None:
        for t, place in places():
            tile("tileloadd64", t, place, cs)

    _call(b, "ldtilecfg", [shapes])
    when(b, add, load, zeros)

    def step(_: Value, carried: list[Value]) -> Sequence[Value]:
        left, right = carried
        for number in (0, 1):
            tile("tileloadd64", 4 + number, _at(b, left, times(b, rs, TILE) if number else None), rs)
            tile("tileloadd64", 6 + number, _at(b, right, i64(64) if number else None), bs)
        for t, i, j in sums:
            tile(multiply, t, i8(4 + i), i8(6 + j))
        return [b.gep("i8", left, i64(64)), b.gep("i8", right, times(b, bs, TILE))]

    loop(b, i64(0), k, TILE, step, [a, rows], sure=True)
    for t, place in places():
        tile("tilestored64", t, place, cs)
    _call(b, "tilerelease", [])
    b.ret()


def i8(number: int) -> Value:
    """A constant, as a tile's number is."""
    return Value(str(number), Type("i8"))


def _at(b: Builder, pointer: Value, offset: Value | None) -> Value:
    return pointer if offset is None else b.gep("i8", pointer, offset)


def _call(b: Builder, name: str, args: Sequence[Value]) -> None:
    full = f"llvm.x86.{name}"
    b.module.declare(full, [a.type for a in args])
    b.call(full, args)
