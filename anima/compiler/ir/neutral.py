"""Neutral elements of the operations that `Accumulate` knows.

    neutral("max", "f32") == -inf        neutral("and", "u8") == 255
"""

from __future__ import annotations

import math

_INTEGER_BITS = {"index": 64} | {f"{sign}{bits}": bits for sign in "iu" for bits in (1, 2, 4, 8, 16, 32, 64)}


def neutral(op: str, dtype: str) -> bool | int | float:
    """The value e with `op(e, x) == x` for every x; NotImplementedError if there is none."""
    bits = _INTEGER_BITS.get(dtype)
    signed = dtype[0] == "i"
    match op:
        case "add":
            # -0.0 leaves a sum of negative zeros alone; 0.0 would not.
            return -0.0 if bits is None and dtype != "bool" else 0
        case "mul":
            return 1
        case "and":
            return True if dtype == "bool" else -1 if signed else (1 << bits) - 1  # type: ignore[operator]
        case "or" | "xor":
            return 0
        case "max" if dtype == "bool":
            return False
        case "min" if dtype == "bool":
            return True
        case "max" if bits is not None:
            return -(1 << bits - 1) if signed else 0
        case "min" if bits is not None:
            return (1 << bits - 1) - 1 if signed else (1 << bits) - 1
        case "max":
            return -math.inf
        case "min":
            return math.inf
    raise NotImplementedError(f"no neutral element of {op} for {dtype}")
