"""Products of matrices of bytes, and of bfloat16: few products, or a square of sums of many, by one instruction.

    vpdpbusd s, y, x        s[j] += sum over t < 4 of x[4*j + t] * y[4*j + t]: bytes with sign by bytes without one
    sdot, udot s, x, y      the same, of both with sign, or both without
    tdpbssd s, x, y         s[i, j] += sum over t < 64 of x[i, t] * y[t, j], for i and j < 16, of tiles in registers
    tdpbf16ps s, x, y       the same of 32 products of bfloat16, added up in float32

A kind of product is named by its operands: "i8u8", "i8i8", "u8i8", "u8u8". To the driver, whose element is a word of
four bytes along what is contracted, such a product is one of k / 4. Sums are integers of 32 bits, which wrap around.
That of bfloat16, "bf16", is one of k / 2, and its sums are of float32; subnormal numbers count as zeros in it.
"""

from __future__ import annotations

from anima.compiler.ir.assembly import Builder, Type, Value
from anima.compiler.machine.target import Target

WORD = 4   # bytes that are multiplied by one instruction
TILE = 16  # rows of a tile, and words in each
BFLOAT = "bf16"
KINDS = frozenset(("i8u8", "i8i8", "u8i8", "u8u8"))
IN_WORDS = KINDS | {BFLOAT}
_ARM = {"i8i8": "sdot", "u8u8": "udot"}


def has_tiles(target: Target) -> bool:
    """Whether a machine multiplies tiles of bytes (x86's AMX). Their words are padded to `TILE` with zeros."""
    return target.vector_bytes == 64 and target.has("amx-tile") and target.has("amx-int8")


def has_bfloat_tiles(target: Target) -> bool:
    """Whether a machine multiplies tiles of bfloat16."""
    return has_tiles(target) and target.has("amx-bf16")


def in_word(kind: str) -> int:
    """Elements in a word, of a kind of product; one of those of other kinds, which have none."""
    return WORD if kind in KINDS else WORD // 2 if kind == BFLOAT else 1


def kinds(target: Target) -> frozenset[str]:
    """The products for which a machine has instructions."""
    if has_tiles(target):
        return KINDS
    wide = target.vector_bytes == 64
    if target.has("avx512vnni") if wide else target.vector_bytes == 32 and target.has("avxvnni"):
        return frozenset(("i8u8",))
    return frozenset(_ARM) if target.has("dotprod") and target.triple.startswith(("aarch64", "arm64")) else frozenset()


def add_dots(b: Builder, kind: str, total: Value, x: Value, y: Value) -> Value:
    """`total` plus the dot products of the words of two vectors."""
    width = total.type.width
    if kind == "i8u8":
        return b.intrinsic("x86.avx512.vpdpbusd", total, y, x, suffix=str(32 * width))
    bytes_ = Type("i8", WORD * width)
    parts = [b.cast("bitcast", v, bytes_) for v in (x, y)]
    return b.intrinsic(f"aarch64.neon.{_ARM[kind]}", total, *parts, suffix=f"v{width}i32.v{bytes_.width}i8")
