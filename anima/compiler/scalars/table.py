"""The scalar functions of generated code: one table from primitive names to LLVM instructions.

`emit` writes the instructions of one elementwise primitive on values of any vector width; `convert`
changes the dtype of a value. Dtypes are the short names ("f32", "bf16", "u8", "bool", "c64"); a value
of a complex dtype is a pair of values; f16 and bf16 are computed in f32. A function may write several
blocks: `b.block` is not the same afterwards.

Long functions are not written in line: they are called, as `anima.support.<function>.<dtype>.v<width>`,
which `native` resolves with `support_text` and compiles once in a process.

    >>> m = ModuleBuilder()
    >>> b = m.function("f", [Type("float", 8)], Type("float", 8))
    >>> b.ret(emit(b, "sqrt", [b.params[0]], "f32"))
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from anima.compiler.ir.assembly import Builder, ModuleBuilder, Type, Value
from anima.compiler.ir.loops import PARTS
from anima.compiler.scalars.arithmetic import (
    BOOLEAN,
    FLOAT,
    SIGNED,
    SMALL_FIELDS,
    UNSIGNED,
    Function,
    long_rem,
    rem,
    round_away,
    small_nextafter,
    small_reduce_precision,
)
from anima.compiler.scalars.base import KINDS, Num
from anima.compiler.scalars.complex_numbers import COMPLEX
from anima.compiler.scalars.convert import convert, llvm_type, to_f32
from anima.compiler.scalars.exponential import (
    acosh,
    asinh,
    atanh,
    cbrt,
    cosh,
    exp,
    exp2,
    expm1,
    log,
    log1p,
    log2,
    logistic,
    power,
    rsqrt,
    sinh,
    tanh,
)
from anima.compiler.scalars.incomplete import ARITY, INCOMPLETE
from anima.compiler.scalars.small import HALVES, SMALL_FLOATS, SMALL_INTEGERS, byte_of, cut
from anima.compiler.scalars.special import digamma, erf, erf_inv, erfc, lgamma
from anima.compiler.scalars.trigonometric import acos, asin, atan, atan2, cos, large_loop, sin, tan

__all__ = ["COMPLEX", "LONG", "SCALARS", "SUPPORT", "call_support", "convert", "emit", "llvm_type", "support_text"]


def _round(x: Num, rounding_method: int = 0) -> Num:
    return x.rint() if int(rounding_method) == 1 else round_away(x)


# Functions of f32 and f64 numbers.
SCALARS: dict[str, Function] = {
    **FLOAT, **INCOMPLETE,
    "acos": acos, "acosh": acosh, "asin": asin, "asinh": asinh, "atan": atan, "atan2": atan2, "atanh": atanh,
    "cbrt": cbrt, "cos": cos, "cosh": cosh, "digamma": digamma, "erf": erf, "erf_inv": erf_inv, "erfc": erfc,
    "exp": exp, "exp2": exp2, "expm1": expm1, "lgamma": lgamma, "log": log, "log1p": log1p, "log2": log2,
    "logistic": logistic, "pow": power, "rem": rem, "round": _round, "rsqrt": rsqrt, "sin": sin,
    "sinh": sinh, "tan": tan, "tanh": tanh,
}
# Those of them that are called rather than written in line: long enough for a call to cost little.
SUPPORT: dict[str, frozenset[str]] = {
    "f32": frozenset((*INCOMPLETE, "acosh", "asinh", "atan2", "atanh", "cbrt", "digamma", "erf_inv", "erfc",
                      "lgamma", "pow", "tan")),
    "f64": frozenset((*INCOMPLETE, "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cosh",
                      "digamma", "erf", "erf_inv", "erfc", "lgamma", "log2", "pow", "sinh", "tan")),
}
# Those that are long enough for a call to cost less than to write them once more, in code that runs once.
LONG = frozenset(SCALARS) - frozenset(FLOAT) - {"round", "rsqrt"}
_TABLES = {"f32": SCALARS, "f64": SCALARS, "bool": BOOLEAN, "c64": COMPLEX, "c128": COMPLEX,
           **dict.fromkeys(("i8", "i16", "i32", "i64"), SIGNED),
           **dict.fromkeys(("u8", "u16", "u32", "u64"), UNSIGNED)}


def enter(name: str, formula: Function) -> None:
    """Gives a function of f32 and f64 numbers its instructions; ValueError for a name that has some."""
    if name in SCALARS:
        raise ValueError(f"compiled code has a function '{name}' already")
    SCALARS[name] = formula


_OF_BITS = ("shift_right_logical", "clz", "population_count")

Operand = Value | tuple[Value, Value]


def emit(b: Builder, name: str, args: list[Any], dtype: str, **params: Any) -> Any:
    """Write the elementwise primitive `name` on operands of one `dtype` (a short name).

    Returns its value (i1 lanes for comparisons; a pair for complex results). `params` are those of the
    primitive that matter: `y` of integer_pow, `rounding_method` of round, `exponent_bits` and `mantissa_bits`
    of reduce_precision. `select_n` takes its predicate first, then the cases. Raises NotImplementedError for
    a function that does not exist for the dtype.
    """
    if name == "select_n":
        return _select_n(b, args)
    if name == "complex":
        return args[0], args[1]
    if dtype in SMALL_INTEGERS and name in _OF_BITS:  # those above are zeros
        result = emit(b, name, args, "u8", **params)
        return cut(b, (Num(b, result) - (8 - SMALL_INTEGERS[dtype])).v if name == "clz" else result, dtype)
    if dtype in SMALL_INTEGERS:
        result = emit(b, name, [byte_of(b, a, dtype) for a in args], f"{dtype[0]}8", **params)
        return result if result.type.scalar == "i1" else cut(b, result, dtype)
    if dtype in HALVES:
        wide = [to_f32(b, a, dtype) for a in args]
        if dtype in SMALL_FLOATS and name in ("nextafter", "reduce_precision"):
            raise NotImplementedError(f"compiled code has no function '{name}' of {dtype}")
        if name == "nextafter":
            x, y = ((Num(b, a).cast("bitcast", "i16"), Num(b, w)) for a, w in zip(args, wide, strict=True))
            return small_nextafter(x, y, dtype).cast("bitcast", args[0].type.scalar).v
        if name == "reduce_precision":
            return _small_reduce_precision(b, args[0], wide[0], dtype, **params)
        result = emit(b, name, wide, "f32", **params)
        return convert(b, result, "f32", dtype) if result.type.is_float else result
    function = _TABLES.get(dtype, {}).get(name)
    if function is None:
        raise NotImplementedError(f"compiled code has no function '{name}' of {dtype}")
    if dtype in PARTS:
        result = function(*[(Num(b, re_), Num(b, im)) for re_, im in args], **params)
        return (result[0].v, result[1].v) if isinstance(result, tuple) else result.v
    if dtype in SUPPORT and name in SUPPORT[dtype]:
        return call_support(b, name, args, dtype)
    return function(*[Num(b, a) for a in args], **params).v


def _small_reduce_precision(b: Builder, x: Value, wide: Value, dtype: str, exponent_bits: int,
                            mantissa_bits: int) -> Value:
    pattern = Num(b, x).cast("bitcast", "i16")
    rounded = small_reduce_precision(pattern, Num(b, wide), dtype, mantissa_bits).cast("bitcast", x.type.scalar).v
    # What is left is a narrower range, or nothing: f32 holds every value.
    limited = emit(b, "reduce_precision", [to_f32(b, rounded, dtype)], "f32", exponent_bits=exponent_bits,
                   mantissa_bits=23) if exponent_bits < SMALL_FIELDS[dtype][0] else None
    return rounded if limited is None else convert(b, limited, "f32", dtype)


def _select_n(b: Builder, args: list[Any]) -> Any:
    which, *cases = args
    if isinstance(cases[0], tuple):
        return tuple(_select_n(b, [which, *parts]) for parts in zip(*cases, strict=True))
    result = cases[0]
    for i, case in enumerate(cases[1:], 1):
        chosen = which if which.type.scalar == "i1" else b.cmp("sge", which, i)
        result = b.select(chosen, case, result)
    return result


def call_support(b: Builder, name: str, args: Sequence[Operand], dtype: str) -> Operand:
    """Call a function that `native` compiles apart from the module that uses it. Those of complex numbers find the
    parts of their operands in memory, and leave there those of the result."""
    if dtype in PARTS:
        parts = [part for x in args for part in x]  # type: ignore[union-attr]
        type = parts[0].type
        memory = b.alloca(type, len(parts))
        places = [b.gep(type.text, memory, k) for k in range(len(parts))]
        for part, place in zip(parts, places, strict=True):
            b.store(part, place)
        symbol = f"anima.support.{name}.{dtype}.v{type.width}"
        b.module.declare(symbol, [memory.type])
        b.call(symbol, [memory])
        return b.load(type, places[0]), b.load(type, places[1])
    type = args[0].type  # type: ignore[union-attr]
    symbol = f"anima.support.{name}.{dtype}.v{type.width}"
    b.module.declare(symbol, [a.type for a in args], type)  # type: ignore[union-attr]
    result = b.call(symbol, args, type)  # type: ignore[arg-type]
    assert result is not None
    return result


_SYMBOL = re.compile(r"anima\.support\.(\w+)\.(f32|f64|c64|c128)\.v(\d+)")
_ARITY = {"pow": 2, "rem": 2, "long_rem": 2, "atan2": 2, **dict.fromkeys(INCOMPLETE, 2), **ARITY}


def support_text(symbol: str, triple: str, vector_bits: int, features: str) -> str:
    """The LLVM module that defines a support function; KeyError if the name is none of ours."""
    module = ModuleBuilder(triple, vector_bits, features)
    write_support(module, symbol)
    return module.text()


def write_support(module: ModuleBuilder, symbol: str, linkage: str = "") -> None:
    """Defines a support function in a module; KeyError if the name is none of ours."""
    match = _SYMBOL.fullmatch(symbol)
    if match is None:
        raise KeyError(f"{symbol} is not a support function")
    name, dtype, width = match[1], match[2], int(match[3])
    if name.endswith("_large"):
        b = module.function(symbol, [Type("ptr"), Type("i64")], None, linkage)
        large_loop(b, name.removesuffix("_large"), KINDS[dtype])
        return
    if dtype in PARTS:
        type = llvm_type(PARTS[dtype], width)
        b = module.function(symbol, [Type("ptr")], None, linkage)
        places = [b.gep(type.text, b.params[0], k) for k in range(2 * _ARITY.get(name, 1))]
        re_im = [Num(b, b.load(type, place)) for place in places]
        for part, place in zip(COMPLEX[name](*zip(re_im[::2], re_im[1::2], strict=True)), places, strict=False):
            b.store(part.v, place)
        b.ret()
        return
    type = llvm_type(dtype, width)
    b = module.function(symbol, [type] * _ARITY.get(name, 1), type, linkage)
    b.ret((long_rem if name == "long_rem" else SCALARS[name])(*[Num(b, p) for p in b.params]).v)
