"""Data types: NumPy's, ml_dtypes' small ones, `float0`, PRNG keys; and how they promote.

A dtype inside Anima is an `np.dtype` or an `ExtendedDType` (PRNG keys). Types combine by a lattice:
the result is the least type that both lead to. Python scalars are weakly typed: they stand for their
kind alone (`i*`, `f*`, `c*`), and give way to the dtypes of arrays.

    b1 -> i* -> u8, u16, ... s8, ... -> f* -> f8..., bf16, f16 -> f32 -> f64, c64 -> c128;   f* -> c* -> c64
    result_type(np.float32(1), 2.0) -> float32        result_type(1, 2.0) -> float32 (weak)

While 64-bit types are off (`enable_x64`), each dtype is replaced by its 32-bit one: `canonicalize_dtype`.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from anima.config import config, enable_x64, explicit_x64_dtypes, numpy_dtype_promotion
from anima.core.state import warn
from anima.errors import promotion_message, truncation_message

DType = Any     # np.dtype | ExtendedDType


class TypePromotionError(ValueError):
    """Two dtypes have no common dtype that they promote to implicitly."""


class extended(np.generic):
    """The abstract scalar type of all dtypes that are not NumPy's."""


class prng_key(extended):
    """The abstract scalar type of PRNG key dtypes: `issubdtype(key.dtype, prng_key)`."""


class ExtendedDType:
    """A dtype whose elements are small NumPy arrays of dtype `base` and shape `element_shape`."""

    __slots__ = ("base", "element_shape", "tag")
    type: Any = extended
    kind = "K"
    tag: str
    base: np.dtype
    element_shape: tuple[int, ...]

    def __init__(self, name: str, base: Any, element_shape: Sequence[int]) -> None:
        object.__setattr__(self, "tag", name)
        object.__setattr__(self, "base", np.dtype(base))
        object.__setattr__(self, "element_shape", tuple(element_shape))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{self} is immutable")

    @property
    def name(self) -> str:
        """The printed name."""
        return self.tag

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return math.prod(self.element_shape) * self.base.itemsize

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, ExtendedDType) and self._key() == other._key())

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return type(self).__name__, self.tag, self.base, self.element_shape

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.tag, self.base, self.element_shape)

    def __repr__(self) -> str:
        return self.name

    def zeros(self, shape: Sequence[int]) -> Any:
        """Zeros of this type, where they exist."""
        raise TypeError(f"There is no zero of dtype {self}.")

    def add(self, x: Any, y: Any) -> Any:
        """The sum of two arrays of this type, where it exists."""
        raise TypeError(f"There is no sum of arrays of dtype {self}.")


class KeyDType(ExtendedDType):
    """The dtype of PRNG keys; `name` says whose (`fry`: Threefry), as in `key<fry>`."""

    __slots__ = ()
    type = prng_key

    def __init__(self, name: str = "fry", base: Any = np.uint32, element_shape: Sequence[int] = (2,)) -> None:
        super().__init__(name, base, element_shape)

    @property
    def name(self) -> str:
        return f"key<{self.tag}>"


class ScalarType(type):
    """The metaclass of `anima.numpy.float32` and its kind: each has a `dtype`; its call makes an array."""

    dtype: np.dtype
    _make: Callable[[Any, np.dtype], Any]

    def __call__(cls, x: Any) -> Any:
        return cls._make(x, cls.dtype)

    def __hash__(cls) -> int:
        return hash(cls.dtype.type)

    def __eq__(cls, other: object) -> bool:
        if cls is other:
            return True
        if isinstance(other, str):  # a name is not a type
            return False
        if isinstance(other, (np.dtype, ScalarType)) or _is_numpy_type(other):
            return bool(cls.dtype == np_dtype(other))
        return NotImplemented

    def __ne__(cls, other: object) -> bool:
        return not cls == other

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.dtype.type)


def _is_numpy_type(x: Any) -> bool:
    return isinstance(x, type) and issubclass(x, np.generic)


def make_scalar_type(dtype: Any, make: Callable[[Any, np.dtype], Any],
                     module: str = "anima.numpy") -> ScalarType:
    """The type `module.<name of dtype>`; calling it with `x` returns `make(x, dtype)`."""
    dtype = np.dtype(dtype)
    return ScalarType(dtype.name, (), {"dtype": dtype, "_make": staticmethod(make), "__module__": module,
                                       "__doc__": f"The dtype {dtype.name}; called, a scalar array of it."})


# ---------------------------------------------------------------- the dtypes

float0: np.dtype = np.dtype([("float0", np.void, 0)])   # of tangents of integers: there is nothing to hold
bool_ = np.dtype(np.bool_)
bfloat16 = np.dtype(ml_dtypes.bfloat16)
_FLOAT8_NAMES = ("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz",
                 "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
SMALL_FLOATS = tuple(np.dtype(getattr(ml_dtypes, name)) for name in (
    *_FLOAT8_NAMES, "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"))
SMALL_SIGNED = tuple(np.dtype(getattr(ml_dtypes, f"int{bits}")) for bits in (1, 2, 4))
SMALL_UNSIGNED = tuple(np.dtype(getattr(ml_dtypes, f"uint{bits}")) for bits in (1, 2, 4))
SIGNED = tuple(np.dtype(f"int{bits}") for bits in (8, 16, 32, 64))
UNSIGNED = tuple(np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64))
_F16, _F32, _F64 = (np.dtype(f"float{bits}") for bits in (16, 32, 64))
_C64, _C128 = np.dtype(np.complex64), np.dtype(np.complex128)
_I32, _I64, _U32, _U64 = SIGNED[2], SIGNED[3], UNSIGNED[2], UNSIGNED[3]
FLOATS = (*SMALL_FLOATS, bfloat16, _F16, _F32, _F64)
COMPLEX = (_C64, _C128)
ALL_DTYPES = (bool_, *SMALL_SIGNED, *SMALL_UNSIGNED, *SIGNED, *UNSIGNED, *FLOATS, *COMPLEX)
_BY_NAME = {dtype.name: dtype for dtype in ALL_DTYPES} | {"float0": float0}

_TO_32 = {_I64: _I32, _U64: _U32, _F64: _F32, _C128: _C64}
_CUSTOM_KIND = (dict.fromkeys((*SMALL_FLOATS, bfloat16), np.floating)
                | dict.fromkeys(SMALL_SIGNED, np.signedinteger)
                | dict.fromkeys(SMALL_UNSIGNED, np.unsignedinteger))
_CUSTOM_KIND_OF_TYPE = {d.type: kind for d, kind in _CUSTOM_KIND.items()}
_SHORT_NAMES = {d: d.name.replace("bfloat", "bf").replace("float", "f").replace("complex", "c")
                .replace("uint", "u").replace("int", "i") for d in ALL_DTYPES} | {float0: "float0"}
_PYTHON_TYPES = (bool, int, float, complex)


def default_int() -> np.dtype:
    """The dtype of Python ints: int32, or int64 with 64-bit types on."""
    return _I64 if enable_x64.value else _I32


def default_uint() -> np.dtype:
    """uint32, or uint64 with 64-bit types on."""
    return _U64 if enable_x64.value else _U32


def default_float() -> np.dtype:
    """The dtype of Python floats: float32, or float64 with 64-bit types on."""
    return _F64 if enable_x64.value else _F32


def default_complex() -> np.dtype:
    """The dtype of Python complex numbers: complex64, or complex128 with 64-bit types on."""
    return _C128 if enable_x64.value else _C64


_PYTHON_DEFAULTS: dict[type, Callable[[], np.dtype]] = {
    bool: lambda: bool_, int: default_int, float: default_float, complex: default_complex}


def np_dtype(dtype: Any) -> DType:
    """Anything that names a dtype as an `np.dtype` (or the ExtendedDType itself), 64-bit ones included."""
    if isinstance(dtype, (np.dtype, ExtendedDType)):
        return dtype
    if isinstance(dtype, str) and dtype in _BY_NAME:
        return _BY_NAME[dtype]
    if isinstance(dtype, ScalarType):
        return dtype.dtype
    return np.dtype(dtype)


def _refuse_array(dtype: Any) -> None:
    """ValueError for an array in place of a dtype: in `hstack(a, b)` brackets were forgotten."""
    if hasattr(dtype, "aval") and hasattr(dtype, "__array__"):
        raise ValueError("An array was passed as a dtype argument, which is not supported: give its dtype, x.dtype. "
                         "Functions that join arrays take them as one sequence, as in hstack((a, b)).")


def canonicalize_dtype(dtype: Any, allow_extended_dtype: bool = True) -> DType:
    """`dtype` as it exists now: 64-bit types become their 32-bit ones while `enable_x64` is off."""
    if not isinstance(dtype, np.dtype):
        if isinstance(dtype, type) and dtype in _PYTHON_DEFAULTS:
            return _PYTHON_DEFAULTS[dtype]()
        _refuse_array(dtype)
        dtype = np_dtype(dtype)
    if isinstance(dtype, ExtendedDType) and not allow_extended_dtype:
        raise ValueError(f"canonicalize_dtype got the extended dtype {dtype}")
    return dtype if enable_x64.value else _TO_32.get(dtype, dtype)


def check_user_dtype(dtype: Any, fun_name: str) -> DType:
    """The dtype a user asked `fun_name` for; None is the default float. Warns if a 64-bit one is truncated.

    TypeError if it is no dtype, or one that arrays cannot hold.
    """
    if dtype is None:
        return default_float()
    if isinstance(dtype, type) and dtype in _PYTHON_DEFAULTS:
        return _PYTHON_DEFAULTS[dtype]()
    if isinstance(dtype, (int, float)) and not isinstance(dtype, np.generic):
        raise TypeError(f"Cannot interpret '{dtype}' as a data type in {fun_name}; a shape of several sizes "
                        "is given as one tuple, as in zeros((2, 3)).")
    _refuse_array(dtype)
    wanted = np_dtype(dtype)
    if isinstance(wanted, ExtendedDType) or wanted == float0:
        return wanted
    if wanted.newbyteorder("=") in _SHORT_NAMES:
        wanted = wanted.newbyteorder("=")
    else:
        raise TypeError(f"Anima supports only number and bool dtypes, got dtype {dtype} in {fun_name}")
    held = canonicalize_dtype(wanted)
    if held is not wanted and held != wanted:
        if explicit_x64_dtypes.value == "error":
            raise ValueError(truncation_message(wanted.name, held.name, fun_name))
        warn(truncation_message(wanted.name, held.name, fun_name))
    return held


# ---------------------------------------------------------------- the dtype of a value

def is_supported(dtype: DType) -> bool:
    """Whether arrays can have the dtype."""
    return dtype in _SHORT_NAMES or isinstance(dtype, ExtendedDType)


def array_dtype(x: np.ndarray | np.generic) -> DType:
    """The dtype that arrays of the values of `x` have; TypeError where there is none (text, dates, records, ...)."""
    dtype = x.dtype if x.dtype.isnative else x.dtype.newbyteorder("=")
    if dtype not in _SHORT_NAMES:
        raise TypeError(f"Value {x!r} with dtype {x.dtype} is not a valid Anima array type. "
                        "Only arrays of numeric types are supported.")
    return canonicalize_dtype(dtype)


def dtype_of(x: Any) -> DType:
    """The dtype of an array, tracer, aval, NumPy value or Python scalar; TypeError for anything else."""
    dtype = getattr(x, "dtype", None)
    if isinstance(dtype, (np.dtype, ExtendedDType)):
        return canonicalize_dtype(dtype)
    return _dtype_and_weak(x)[0]


def is_weakly_typed(x: Any) -> bool:
    """Whether `x` gives way in promotion: a Python number (not a bool), or an array made of such alone."""
    if isinstance(x, (np.ndarray, np.generic, bool)):
        return False
    weak = getattr(getattr(x, "aval", x), "weak_type", None)
    return isinstance(x, (int, float, complex)) if weak is None else bool(weak)


def _dtype_and_weak(x: Any) -> tuple[DType, bool]:
    """The dtype and weakness that `x`, a value or a dtype, has in promotion."""
    kind = type(x)
    if kind in _PYTHON_DEFAULTS:
        return _PYTHON_DEFAULTS[kind](), kind is not bool
    if isinstance(x, (np.ndarray, np.generic)):
        return array_dtype(x), False
    if isinstance(x, (np.dtype, ExtendedDType, ScalarType, str)):
        return canonicalize_dtype(x), False
    if isinstance(x, type):
        if x in _PYTHON_DEFAULTS:
            return _PYTHON_DEFAULTS[x](), x is not bool
        return canonicalize_dtype(x), False
    dtype = getattr(x, "dtype", None)
    if isinstance(dtype, (np.dtype, ExtendedDType)):
        return canonicalize_dtype(dtype), is_weakly_typed(x)
    for python_type in _PYTHON_TYPES:       # subclasses: IntEnum and such
        if isinstance(x, python_type):
            return _PYTHON_DEFAULTS[python_type](), python_type is not bool
    raise TypeError(f"Cannot determine dtype of {x!r}")


def scalar_type_of(x: Any) -> type:
    """The Python type (bool, int, float, complex) that the elements of `x`, or of its dtype, are like."""
    dtype = _dtype_and_weak(x)[0]
    kinds = (np.bool_, np.integer, np.floating, np.complexfloating)
    for kind, python_type in zip(kinds, _PYTHON_TYPES, strict=True):
        if issubdtype(dtype, kind):
            return python_type
    raise TypeError(f"Invalid scalar value {x}")


def check_python_int(x: int, dtype: DType | None = None) -> None:
    """OverflowError if the Python int `x` does not fit `dtype` (the default int if None)."""
    dtype = default_int() if dtype is None else dtype
    if not -0x80000000 <= x <= 0x7fffffff or dtype.itemsize < 4 or dtype.kind == "u":
        limits = iinfo(dtype)
        if not limits.min <= x <= limits.max:
            raise OverflowError(f"Python int {x} too large to convert to {dtype.name}")


def number_of(x: Any, dtype: DType) -> Any:
    """What a Python integer, which may be beyond the default ones, is in `dtype`; others than it has, and whatever else
    `x` may be, as they are."""
    if type(x) is int:
        if issubdtype(dtype, np.inexact):
            return float(x)
        if not -0x80000000 <= x <= 0x7fffffff and issubdtype(dtype, np.integer):
            limits = iinfo(dtype)
            return dtype.type(x) if limits.min <= x <= limits.max else x
    return x


# ---------------------------------------------------------------- promotion

def _lattice(strict: bool) -> dict[Any, list[Any]]:
    """Each type's direct successors. Weak types are the strings i*, f*, c*."""
    u8, u16, u32, u64 = UNSIGNED
    s8, s16, s32, s64 = SIGNED
    small = (*SMALL_SIGNED, *SMALL_UNSIGNED)
    if strict:
        return {"i*": ["f*", *small, *SIGNED, *UNSIGNED], "f*": ["c*", *FLOATS], "c*": list(COMPLEX)}
    return {
        bool_: ["i*"], "i*": [*small, u8, s8],
        u8: [u16, s16], u16: [u32, s32], u32: [u64, s64], u64: ["f*"],
        s8: [s16], s16: [s32], s32: [s64], s64: ["f*"],
        "f*": ["c*", *SMALL_FLOATS, bfloat16, _F16],
        bfloat16: [_F32], _F16: [_F32], _F32: [_F64, _C64], _F64: [_C128],
        "c*": [_C64], _C64: [_C128],
    }


def _upper_bounds(edges: dict[Any, list[Any]]) -> dict[Any, frozenset[Any]]:
    """For each type, all that it leads to, itself included."""
    def reach(node: Any, found: set[Any]) -> set[Any]:
        if node not in found:
            found.add(node)
            for successor in edges.get(node, ()):
                reach(successor, found)
        return found
    return {node: frozenset(reach(node, set())) for node in ("i*", "f*", "c*", *ALL_DTYPES)}


_BOUNDS = {strict: _upper_bounds(_lattice(strict)) for strict in (False, True)}
_WEAK_NODES = {_I32: "i*", _I64: "i*", _F32: "f*", _F64: "f*", _C64: "c*", _C128: "c*"}
_WEAK_DEFAULTS = {"i*": default_int, "f*": default_float, "c*": default_complex}
_joined: dict[tuple[Any, ...], tuple[DType, bool]] = {}


def _node(dtype: DType, weak: bool) -> Any:
    if not weak or dtype == bool_:
        return dtype
    if dtype in _WEAK_NODES:
        return _WEAK_NODES[dtype]
    kind = "i*" if issubdtype(dtype, np.integer) else "c*" if issubdtype(dtype, np.complexfloating) else "f*"
    return kind


def _join(strict: bool, nodes: Iterable[Any]) -> Any:
    """The least upper bound of the nodes; TypePromotionError if there is none."""
    distinct = list(dict.fromkeys(nodes))
    if len(distinct) == 1:
        return distinct[0]
    bounds = _BOUNDS[strict]
    for node in distinct:
        if node not in bounds:
            raise TypeError(f"dtype {short_name(node)} does not promote: it combines only with itself")
    common = frozenset.intersection(*(bounds[node] for node in distinct))
    for node in common:
        if common == bounds[node]:
            return node
    names = tuple(_WEAK_DEFAULTS[n]().name if n in ("i*", "f*", "c*") else n.name for n in distinct)
    small = any(node in SMALL_FLOATS for node in distinct)
    raise TypePromotionError(promotion_message(names, strict=strict, small_floats=small))


def lattice_result_type(*dtypes_and_weak: tuple[DType, bool]) -> tuple[DType, bool]:
    """The promotion of (dtype, weak) pairs, as one such pair in dtypes that exist now.

    >>> lattice_result_type((np.dtype("int8"), False), (np.dtype("float32"), True))
    (dtype('float32'), True)
    """
    options = config.trace_key()
    known = _joined.get((dtypes_and_weak, options))
    if known is None:
        if not dtypes_and_weak:
            raise ValueError("at least one array or dtype is required")
        with config.held(options):
            strict = numpy_dtype_promotion.value == "strict"
            node = _join(strict, (_node(canonicalize_dtype(d), weak) for d, weak in dtypes_and_weak))
            if node in _WEAK_DEFAULTS:
                known = _WEAK_DEFAULTS[node](), True
            else:   # bool keeps its flag: a weak bool is a bool
                known = canonicalize_dtype(node), False
        _joined[dtypes_and_weak, options] = known
    return known


def result_type(*args: Any, return_weak_type_flag: bool = False) -> Any:
    """The dtype that values and dtypes promote to together (None is the default float); with the flag, the pair
    (dtype, weak).

    Raises TypePromotionError where there is no implicit promotion, TypeError for what has no dtype.

    >>> result_type(np.int8(1), 2.0), result_type(np.float32(1), 2j)
    (dtype('float32'), dtype('complex64'))
    """
    result = lattice_result_type(*[_dtype_and_weak(default_float() if x is None else x) for x in args])
    return result if return_weak_type_flag else result[0]


def promote_types(a: Any, b: Any) -> DType:
    """The dtype that the dtypes `a` and `b` promote to; `int`, `float`, `complex` count as weak."""
    return lattice_result_type(_dtype_and_weak(a), _dtype_and_weak(b))[0]


def to_inexact(dtype: Any) -> DType:
    """The floating or complex dtype of results of functions such as `sin` on this dtype."""
    dtype = canonicalize_dtype(dtype)
    if issubdtype(dtype, np.inexact) or is_extended(dtype):  # an operation that refuses keys will say so itself
        return dtype
    return _F64 if dtype.itemsize == 8 else _F32


def to_complex(dtype: Any) -> np.dtype:
    """The complex dtype that holds this dtype."""
    dtype = to_inexact(dtype)
    return dtype if dtype.kind == "c" else _C128 if dtype == _F64 else _C64


def to_real(dtype: Any) -> DType:
    """The dtype of the real part of this dtype."""
    dtype = canonicalize_dtype(dtype)
    return _F32 if dtype == _C64 else _F64 if dtype == _C128 else dtype


# ---------------------------------------------------------------- questions about dtypes

def issubdtype(arg1: Any, arg2: Any) -> bool:
    """`np.issubdtype` that knows the small dtypes (bfloat16 is a `np.floating`) and PRNG keys.

    >>> issubdtype("bfloat16", np.floating), issubdtype(KeyDType(), prng_key)
    (True, True)
    """
    a_type, b_type = _scalar_class(arg1), _scalar_class(arg2)
    if a_type is b_type:
        return True
    return issubclass(_CUSTOM_KIND_OF_TYPE.get(a_type, a_type), b_type)


def _scalar_class(x: Any) -> type:
    """The NumPy scalar class, concrete or abstract, that `x` names."""
    if isinstance(x, ExtendedDType):
        return x.type
    if isinstance(x, np.dtype):
        return x.type
    if isinstance(x, type) and issubclass(x, np.generic):
        return x
    return np_dtype(x).type


_KINDS: dict[str, tuple[type, ...]] = {
    "bool": (np.bool_,), "signed integer": (np.signedinteger,), "unsigned integer": (np.unsignedinteger,),
    "integral": (np.integer,), "real floating": (np.floating,), "complex floating": (np.complexfloating,),
    "numeric": (np.number,)}


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether `dtype` is of a kind: a dtype, a name ("integral", "real floating"), or a tuple of these."""
    dtype = np_dtype(dtype)
    for one in kind if isinstance(kind, tuple) else (kind,):
        if isinstance(one, str) and one in _KINDS:
            if issubdtype(dtype, _KINDS[one][0]):
                return True
            continue
        try:
            other = np_dtype(one)
        except TypeError:
            wrong = ValueError if isinstance(one, str) else TypeError
            raise wrong(f"Unrecognized {kind=} expected one of {list(_KINDS)}, or a dtype") from None
        if dtype == other:
            return True
    return False


def is_extended(dtype: Any) -> bool:
    """Whether `dtype` is not one of NumPy's (a PRNG key's)."""
    return isinstance(dtype, ExtendedDType)


class _Limits(type):
    """What `isinstance` asks: calls of the class make NumPy's objects, and those of ml_dtypes."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, (np.finfo, ml_dtypes.finfo) if cls is finfo else (np.iinfo, ml_dtypes.iinfo))


class finfo(ml_dtypes.finfo, metaclass=_Limits):
    """The limits of a floating dtype: `eps`, `max`, `tiny`, `bits`, ..."""

    def __new__(cls, dtype: Any) -> Any:
        dtype = np_dtype(dtype)
        if not issubdtype(dtype, np.inexact):
            raise ValueError(f"data type {dtype} not inexact")
        return ml_dtypes.finfo(dtype)


class iinfo(ml_dtypes.iinfo, metaclass=_Limits):
    """The limits of an integer dtype: `min`, `max`, `bits`, `dtype`."""

    def __new__(cls, int_type: Any) -> Any:
        dtype = np_dtype(int_type)
        return ml_dtypes.iinfo(dtype) if dtype in _CUSTOM_KIND else np.iinfo(dtype)


def itemsize_bits(dtype: Any) -> int:
    """The bits of one element, as counted by the dtype's name: 4 for int4, though NumPy stores a byte."""
    dtype = np_dtype(dtype)
    if dtype == bool_:
        return 8
    if dtype in _CUSTOM_KIND:
        return (finfo if issubdtype(dtype, np.floating) else iinfo)(dtype).bits
    return dtype.itemsize * 8


def name(dtype: Any) -> str:
    """The full name: "float32", "bfloat16", "key<fry>", "float0"."""
    dtype = np_dtype(dtype)
    return "float0" if dtype == float0 else dtype.name


def short_name(dtype: Any) -> str:
    """The name in printed programs: "f32", "bf16", "i32", "u8", "bool", "c64", "key<fry>", "float0"."""
    short = _SHORT_NAMES.get(dtype) if isinstance(dtype, np.dtype) else None
    return short if short is not None else _SHORT_NAMES.get(np_dtype(dtype), name(dtype))


def element_bytes(value: np.ndarray) -> bytes:
    """The elements in row-major order, little-endian; those of less than a byte take one."""
    if np_dtype(value.dtype) in (*SMALL_SIGNED, *SMALL_UNSIGNED):
        value = value.astype(np.int8)  # what the other bits of a byte are does not matter
    return np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<"), copy=False).tobytes()
