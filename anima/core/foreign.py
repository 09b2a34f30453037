"""C functions: what their declarations say, and calls of them by their address.

    parse("void (const float *x, float *out, int64_t x_size, double eps)")

In an array function, pointers to constants are operands, in order, and other pointers results; a number is a size of
an array (`x_size`, `x_ndim`, `x_dim0`; `const int64_t *x_shape`), or else the attribute of its name. What it returns is
one more result. A function without pointers is one of numbers: its parameters are operands, but for attributes.

A call is written as text, `(void b0 b1 i64:12 f64:1e-05)`: what it returns, then its arguments, buffers by number.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anima.core import dtypes
from anima.core.avals import ShapedArray
from anima.util import record

_WORD = 8 * ctypes.sizeof(ctypes.c_void_p)
_LONG = 8 * ctypes.sizeof(ctypes.c_long)
_NUMBERS = {
    "float": "f32", "double": "f64", "bool": "bool", "_Bool": "bool", "char": "i8", "signed char": "i8",
    "unsigned char": "u8", "short": "i16", "unsigned short": "u16", "int": "i32", "unsigned": "u32",
    "unsigned int": "u32", "long": f"i{_LONG}", "unsigned long": f"u{_LONG}", "long long": "i64",
    "unsigned long long": "u64", "long int": f"i{_LONG}", "unsigned long int": f"u{_LONG}", "short int": "i16",
    "long long int": "i64", "size_t": f"u{_WORD}", "ssize_t": f"i{_WORD}", "ptrdiff_t": f"i{_WORD}",
    "intptr_t": f"i{_WORD}", "Py_ssize_t": f"i{_WORD}",
    **{f"{'' if s == 'i' else 'u'}int{bits}_t": f"{s}{bits}" for s in "iu" for bits in (8, 16, 32, 64)}}
_BEHIND = {  # what only pointers lead to: C has no such numbers, or passes them in ways of its own
    "long double": "f80", "float complex": "c64", "double complex": "c128", "float _Complex": "c64",
    "double _Complex": "c128",
    "__pyx_t_float_complex": "c64", "__pyx_t_double_complex": "c128", "_Float16": "f16", "float16": "f16",
    "bfloat16": "bf16", **{d.name: dtypes.short_name(d) for d in dtypes.SMALL_FLOATS}}
_CTYPES: dict[str, Any] = {
    "f32": ctypes.c_float, "f64": ctypes.c_double, "bool": ctypes.c_bool,
    **{f"{s}{bits}": getattr(ctypes, f"c_{'' if s == 'i' else 'u'}int{bits}") for s in "iu"
       for bits in (8, 16, 32, 64)}}
NUMPY = {name: dtypes.np_dtype({"f": "float", "i": "int", "u": "uint"}[name[0]] + name[1:] if name != "bool" else name)
         for name in _CTYPES}
_WORDS = frozenset(" ".join((*_NUMBERS, *_BEHIND, "void signed")).split())  # no names
_SIZE = re.compile(r"(\w+)_(size|ndim|dim(\d+)|shape)")


@record(eq=False)
class Parameter:
    """A parameter of a C function: its name ("" where it has none), the short name of its type ("" of `void`), whether
    it is a pointer, and to what is constant."""

    name: str
    type: str
    pointer: bool = False
    constant: bool = False


@record
class ForeignSignature:
    """A C function's type: what it returns ("" for `void`), and its parameters."""

    text: str
    returns: str
    parameters: tuple[Parameter, ...]

    @property
    def scalar(self) -> bool:
        """Whether it is a function of numbers."""
        return not any(p.pointer for p in self.parameters)


@record(eq=False)
class ForeignFunction:
    """A C function that is known by a name. `owner` keeps its code where it is."""

    name: str
    address: int
    signature: ForeignSignature
    owner: Any

    def __repr__(self) -> str:
        return self.name


def parse(text: str) -> ForeignSignature:
    """The type of a function from its declaration in C, with or without its name. ValueError where it is not
    understood; NotImplementedError for types that compiled code does not pass."""
    match = re.fullmatch(r"\s*([\w\s]+?)\s*\((.*)\)\s*;?\s*", text, re.S)
    if match is None:
        raise ValueError(f"{text!r} is no declaration of a C function, such as 'void (const float *x, float *out)'")
    returns, inside = " ".join(match[1].split()), match[2].strip()
    if returns.count(" ") and returns.split()[-1] not in _WORDS:
        returns = returns.rpartition(" ")[0]  # the rest is the name
    parts = [p.strip() for p in inside.split(",")] if inside not in ("", "void") else []
    parameters = tuple(_parameter(part, text) for part in parts)
    names = [p.name for p in parameters if p.name]
    if len(set(names)) < len(names):
        raise ValueError(f"{text!r} has two parameters of one name")
    return ForeignSignature(text, "" if returns == "void" else _number(returns, text), parameters)


def _parameter(part: str, text: str) -> Parameter:
    words = re.sub(r"\b(const|restrict|volatile|__restrict)\b", " ", part)
    words = re.sub(r"\s+", " ", words.replace("[]", "")).strip()
    known = {**_NUMBERS, **_BEHIND, "void": ""}
    pointer = "*" in words or part.endswith("[]")
    if words.count("*") > 1:
        raise NotImplementedError(f"{text!r}: pointers to pointers ({part!r}) are not passed to C functions")
    type_name, _, name = words.partition("*") if "*" in words else (words, "", "")
    type_name, name = type_name.strip(), name.strip()
    if "*" not in words and type_name not in known:  # the last word is the name
        type_name, _, name = type_name.rpartition(" ")
    if type_name not in known or (name and (not name.isidentifier() or name in _WORDS)):
        raise ValueError(f"{text!r}: the parameter {part!r} is not understood; types are {', '.join(known)}")
    if not pointer:
        return Parameter(name, _number(type_name, text))
    return Parameter(name, known[type_name], True, re.match(r"\s*const\b|.*\bconst\b.*\*", part) is not None)


def _number(name: str, text: str) -> str:
    if name in _BEHIND or name == "long double":
        raise NotImplementedError(f"{text!r}: numbers of type {name} are not passed to C functions, nor returned; "
                                  "pass a pointer")
    if name not in _NUMBERS:
        raise ValueError(f"{text!r}: the type {name!r} is not understood")
    return _NUMBERS[name]


# ---------------------------------------------------------------- calls on arrays


def layout_of(function: ForeignFunction, operands: Sequence[ShapedArray], results: Sequence[ShapedArray],
              aliases: Mapping[int, int], attributes: Mapping[str, Any]) -> str:
    """A call as text, in which buffers are the operands that no result takes the place of, then the results.

    TypeError where arrays or attributes are not what the function is declared for.
    """
    known = function.signature
    own = [k for k in range(len(operands)) if k not in aliases]
    avals = [*(operands[k] for k in own), *results]
    returned = bool(known.returns)
    pointers = [p for p in known.parameters if p.pointer and not _is_shape(p)]
    constant = [p for p in pointers if p.constant]
    written = [p for p in pointers if not p.constant]
    if len(constant) != len(own) or len(written) + returned != len(results):
        raise TypeError(f"ffi_call: {function.name} is declared as {known.text!r}: with {len(constant)} operands and "
                        f"{len(written) + returned} results, but is called with {len(own)} and {len(results)}.")
    places = {p: k for k, p in enumerate((*constant, *written))}
    for p, k in places.items():
        _check_type(function, p.type, avals[k], p.name)
    if returned:
        _check_type(function, known.returns, avals[-1], "what it returns")
        if avals[-1].shape:
            raise TypeError(f"ffi_call: {function.name} returns one number, but its last result is of shape "
                            f"{avals[-1].shape}.")
    by_name = {p.name: avals[k] for p, k in places.items() if p.name}
    used: set[str] = set()
    words = [_argument(function, p, places, by_name, attributes, used) for p in known.parameters]
    _check_used(function, attributes, used)
    return f"({' '.join([known.returns or 'void', *words])})"


def _is_shape(p: Parameter) -> bool:
    return p.pointer and p.constant and p.type == "i64" and p.name.endswith("_shape")


def _check_type(function: ForeignFunction, wanted: str, aval: ShapedArray, what: str) -> None:
    if wanted and dtypes.short_name(aval.dtype) != wanted:
        raise TypeError(f"ffi_call: {function.name} is declared as {function.signature.text!r}, but "
                        f"{what or 'an array'} is of type {aval.str_short()}.")


def _argument(function: ForeignFunction, p: Parameter, places: Mapping[Parameter, int],
              arrays: Mapping[str, ShapedArray], attributes: Mapping[str, Any], used: set[str]) -> str:
    if p in places:
        return f"b{places[p]}"
    match = _SIZE.fullmatch(p.name)
    if match is not None and match[1] in arrays and p.name not in attributes:
        shape = arrays[match[1]].shape
        if match[2] == "shape":
            return f"s:{','.join(map(str, shape))}"
        if match[3] is not None and int(match[3]) >= len(shape):
            raise TypeError(f"ffi_call: {function.name} wants {p.name}, but {match[1]} has shape {shape}.")
        sizes = {"size": math.prod(shape), "ndim": len(shape)}
        return number(p.type, sizes.get(match[2], shape[int(match[3])] if match[3] else 0), function, p.name)
    used.add(p.name)
    if p.pointer or p.name not in attributes:
        lacking = f"attribute {p.name!r}, and no array it is a size of" if p.name else "name for one of its numbers"
        raise TypeError(f"ffi_call: {function.name} is declared as {function.signature.text!r}, but there is no "
                        f"{lacking}.")
    return number(p.type, attributes[p.name], function, p.name)


def _check_used(function: ForeignFunction, attributes: Mapping[str, Any], used: set[str]) -> None:
    unknown = sorted(set(attributes) - used)
    if unknown:
        raise TypeError(f"ffi_call: {function.name}, declared as {function.signature.text!r}, has no parameters for "
                        f"the attributes {', '.join(unknown)}.")


def number(type: str, value: Any, function: ForeignFunction, name: str) -> str:
    """An argument that is a number of a type, as text. TypeError if it is none."""
    kinds = (float, int, np.floating, np.integer) if type[0] == "f" else (int, np.integer, np.bool_)
    small = type[0] != "f" and type != "bool" and isinstance(value, kinds) and not (
        np.iinfo(NUMPY[type]).min <= value <= np.iinfo(NUMPY[type]).max)
    if not isinstance(value, kinds) or small or (type == "bool" and not isinstance(value, (bool, np.bool_))):
        raise TypeError(f"ffi_call: {function.name} wants a number of type {type} for {name}, got {value!r}.")
    return f"{type}:{float(value).hex() if type[0] == 'f' else int(value)}"


def value_of(word: str) -> tuple[str, int | float]:
    """The type and the value of a number's text."""
    type, _, text = word.partition(":")
    return type, float.fromhex(text) if type[0] == "f" else int(text)


def run(address: int, layout: str, arrays: Sequence[np.ndarray]) -> None:
    """Calls a function as a text says, on memory: row-major arrays, of which the results come last."""
    returns, *words = layout[1:-1].split(" ")
    given: list[Any] = []
    types: list[Any] = []
    for word in words:
        if word[0] == "b" and word[1:].isdecimal():
            types.append(ctypes.c_void_p)
            given.append(arrays[int(word[1:])].ctypes.data)
        elif word.startswith("s:"):
            sizes = [int(n) for n in word[2:].split(",") if n]
            types.append(ctypes.c_void_p)
            given.append((ctypes.c_int64 * max(len(sizes), 1))(*sizes))
        else:
            type, value = value_of(word)
            types.append(_CTYPES[type])
            given.append(value)
    found = ctypes.CFUNCTYPE(None if returns == "void" else _CTYPES[returns], *types)(address)(*given)
    if returns != "void":
        arrays[-1][...] = found


# ---------------------------------------------------------------- calls on numbers


def arguments_of(function: ForeignFunction, count: int, attributes: Mapping[str, Any]) -> tuple[int | str, ...]:
    """The arguments of a function of numbers: numbers of operands, or texts of attributes. TypeError unless it has as
    many operands as given. (What Cython adds to its functions, `__pyx_skip_dispatch`, is 0.)"""
    used: set[str] = set()
    found: list[int | str] = []
    operands = 0
    for p in function.signature.parameters:
        if p.name in attributes:
            used.add(p.name)
            found.append(number(p.type, attributes[p.name], function, p.name))
        elif p.name == "__pyx_skip_dispatch":
            found.append(f"{p.type}:0")
        else:
            found.append(operands)
            operands += 1
    _check_used(function, attributes, used)
    if operands != count or not count:
        raise TypeError(f"ffi_call: {function.name} is declared as {function.signature.text!r}, with {operands} "
                        f"operands, but is called with {count}.")
    return tuple(found)


def apply(address: int, returns: str, types: Sequence[str], args: Sequence[np.ndarray]) -> np.ndarray:
    """The values of a function of numbers, for arrays that broadcast."""
    call = ctypes.CFUNCTYPE(_CTYPES[returns], *(_CTYPES[t] for t in types))(address)
    wide = np.broadcast_arrays(*args)
    out = np.empty(wide[0].shape, NUMPY[returns])
    for k in np.ndindex(out.shape):
        out[k] = call(*(x[k].item() for x in wide))
    return out


