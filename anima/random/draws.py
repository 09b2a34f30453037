"""Draws that come straight from random bits: bits, uniform, randint, normal, bernoulli and their kin.

A float in [1, 2) has a fixed exponent and the bits of its fraction free: `uniform` fills the fraction
with random bits, reads the word as a float, and subtracts 1. `normal` is the inverse of its distribution
function at a uniform number; both are exact functions of the bits, the same on every machine.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from anima import errors
from anima.api.eager import compiled, repeated
from anima.core import dtypes
from anima.core.avals import Shape, broadcast_shapes
from anima.core.trace import aval_of
from anima.ops import elementwise as el, special
from anima.ops.broadcast import as_shape, broadcast_in_dim
from anima.ops.placing import as_asked
from anima.ops.shape import reshape
from anima.random.keys import check_key, draw_keys, use
from anima.random.primitives import random_bits_p

F = TypeVar("F", bound=Callable[..., Any])


def sampler(*static: str, is_exact: bool = False) -> Callable[[F], F]:
    """Makes the public face of a sampler: its first argument becomes one typed key, its errors show the user's line.

    Adds the keyword `out_sharding`. Outside of `jit` it is compiled, at once unless it `is_exact` (see `api.eager`);
    the arguments named `static` are no arrays' even if they are numbers.
    """
    return functools.partial(_sampler, static=static, is_exact=is_exact)  # type: ignore[return-value]


def _sampler(fun: F, static: tuple[str, ...], is_exact: bool) -> F:
    name, drawn = fun.__name__, repeated(fun) if is_exact else compiled(fun, ("shape", "dtype", *static))

    @errors.api_boundary
    @functools.wraps(fun)
    def public(key: Any, *args: Any, out_sharding: Any = None, **kwargs: Any) -> Any:
        if out_sharding is not None:
            return as_asked(name, None, out_sharding, public, key, *args, **kwargs)
        typed, _ = check_key(name, key)
        use(typed, name)
        return drawn(typed, *args, **kwargs)

    parameters = inspect.signature(fun).parameters.values()
    last = inspect.Parameter("out_sharding", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="Any")
    vars(public)["__signature__"] = inspect.Signature([*parameters, last])
    return public  # type: ignore[return-value]


# ---------------------------------------------------------------- arguments

def float_dtype(name: str, dtype: Any) -> Any:
    """The dtype a user asked for (None: the default float); ValueError if it is not a real floating one."""
    dtype = dtypes.check_user_dtype(dtype, name)
    if not dtypes.issubdtype(dtype, np.floating):
        raise ValueError(f"dtype argument to `{name}` must be a float dtype, got {dtypes.name(dtype)}")
    return dtype


def normal_dtype(name: str, dtype: Any) -> Any:
    """The dtype a user asked for (None: the default float); ValueError if it is not a floating or complex one."""
    dtype = dtypes.check_user_dtype(dtype, name)
    if not dtypes.issubdtype(dtype, np.inexact):
        raise ValueError(f"dtype argument to `{name}` must be a float or complex dtype, got {dtypes.name(dtype)}")
    return dtype


def int_dtype(name: str, dtype: Any, error: type[Exception] = TypeError) -> Any:
    """The dtype a user asked for (None: the default int); `error` if it is not an integer one."""
    dtype = dtypes.check_user_dtype(int if dtype is None else dtype, name)
    if not dtypes.issubdtype(dtype, np.integer):
        raise error(f"{name} only accepts integer dtypes, got {dtypes.name(dtype)}")
    return dtype


def common_shape(name: str, shape: Any, *params: Any) -> Shape:
    """`shape`, or the shape that the parameters have together where it is None; ValueError if they disagree."""
    shapes = [aval_of(p).shape for p in params]
    given = None if shape is None else as_shape(shape)
    try:
        joint = broadcast_shapes(*shapes, *([] if given is None else [given]), name=name)
    except TypeError:
        joint = None
    if joint is None or (given is not None and joint != given):
        listed = ", ".join(map(str, [given, *shapes] if given is not None else shapes))
        raise ValueError(f"{name} got incompatible shapes for broadcasting: {listed}.")
    return joint


def operand(x: Any, dtype: Any, shape: Shape) -> Any:
    """A parameter as an operand for arrays of this dtype and shape; scalars stay scalars."""
    aval = aval_of(x)
    if type(x) in (bool, int, float) or isinstance(x, np.generic) or (isinstance(x, np.ndarray) and not x.ndim):
        return np.asarray(x, dtype)
    x = el.convert_element_type(x, dtype)
    if not aval.shape or aval.shape == shape:
        return x
    return broadcast_in_dim(x, shape, tuple(range(len(shape) - aval.ndim, len(shape))))


def full(x: Any, dtype: Any, shape: Shape) -> Any:
    """A parameter as an array of exactly this dtype and shape."""
    x = operand(x, dtype, shape)
    return x if tuple(x.shape) == shape else broadcast_in_dim(x, shape, ())


# ---------------------------------------------------------------- bits and uniform numbers

@sampler(is_exact=True)
def bits(key: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Uniform random bits: an array of unsigned integers (uint32 by default)."""
    dtype = dtypes.check_user_dtype(dtypes.default_uint() if dtype is None else dtype, "bits")
    if not dtypes.issubdtype(dtype, np.unsignedinteger):
        raise ValueError(f"dtype argument to `bits` must be an unsigned int dtype, got {dtypes.name(dtype)}")
    return draw_bits(key, dtypes.itemsize_bits(dtype), as_shape(shape))


def draw_bits(key: Any, bit_width: int, shape: Shape) -> Any:
    """Unsigned integers of `bit_width` random bits."""
    return random_bits_p.bind(key, bit_width=bit_width, shape=shape)


@sampler(is_exact=True)
def uniform(key: Any, shape: Any = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0) -> Any:
    """Numbers uniform in [minval, maxval); the bounds broadcast to `shape`.

    For the shape (), they may be arrays of one element: the number has the shape of minval then.

    Differs from JAX: a finite maxval is never returned, not even where the interval holds so few floats that the
    scaled number would be rounded to it. Where maxval - minval overflows, numbers are infinite or NaN, as JAX's.

    >>> anima.random.uniform(anima.random.key(0), (2,))
    Array([0.21629536, 0.8041241 ], dtype=float32)
    """
    shape, dtype = as_shape(shape), float_dtype("uniform", dtype)
    lower, upper = aval_of(minval).shape, aval_of(maxval).shape
    if not shape and (lower or upper) and math.prod(lower) == math.prod(upper) == 1:
        minval, maxval = reshape(minval, ()), reshape(maxval, ())
    else:
        lower = shape
    return reshape(_uniform(key, shape, dtype, minval, maxval), lower)


def _uniform(key: Any, shape: Shape, dtype: Any, minval: Any, maxval: Any) -> Any:
    """`uniform` for a shape and a dtype that have been checked."""
    drawn = draw_uniform(key, shape, dtype, minval, maxval)
    if _is_unit(minval, maxval):
        return drawn
    low, high = (full(el.stop_gradient(operand(x, dtype, shape)), dtype, shape) for x in (minval, maxval))
    beyond = el.and_(el.ge(drawn, high), el.is_finite(drawn))
    return el.select(beyond, el.max(low, el.nextafter(high, low)), drawn)


def _is_unit(minval: Any, maxval: Any) -> bool:
    return type(minval) is float and minval == 0.0 and type(maxval) is float and maxval == 1.0


def draw_uniform(key: Any, shape: Shape, dtype: Any, minval: Any = 0.0, maxval: Any = 1.0) -> Any:
    """`uniform` for arguments that have been checked."""
    common_shape("uniform", shape, minval, maxval)
    info = dtypes.finfo(dtype)
    # The fraction of bfloat16 has 7 bits: one byte suffices for it.
    drawn = 8 if info.nmant < 8 else info.bits
    word = np.dtype(f"uint{info.bits}")
    fraction = el.shift_right_logical(draw_bits(key, drawn, shape), np.dtype(f"uint{drawn}").type(drawn - info.nmant))
    one = np.ones((), dtype)
    floats = el.or_(el.convert_element_type(fraction, word), one.view(word)[()])
    floats = el.sub(el.bitcast_convert_type(floats, dtype), one)
    if _is_unit(minval, maxval):
        return floats  # scaling by 1 and adding 0 would change no bit
    low, high = operand(minval, dtype, shape), operand(maxval, dtype, shape)
    # Rounding of the scaled number may fall below the lower bound.
    return el.max(full(low, dtype, shape), _scaled(floats, low, high, dtype))


def _scaled(floats: Any, low: Any, high: Any, dtype: Any) -> Any:
    """floats * (high - low) + low, rounded once where that is possible in float64.

    This is what JAX's compiled code does on CPUs with a fused multiply-add.
    """
    known = isinstance(low, np.ndarray) and isinstance(high, np.ndarray)
    with np.errstate(over="ignore", invalid="ignore"):
        width = np.asarray(high - low) if known else el.sub(high, low)
    if dtype != np.float32 or (known and np.frexp(width)[0] == 0.5):
        return el.add(el.mul(floats, width), low)  # a power of two scales without rounding
    floats, width, low = (el.convert(x, np.dtype(np.float64)) for x in (floats, width, low))
    return el.convert(el.add(el.mul(floats, width), low), dtype)


@sampler(is_exact=True)
def randint(key: Any, shape: Any, minval: Any, maxval: Any, dtype: Any = None) -> Any:
    """Integers uniform in [minval, maxval); the bounds broadcast to `shape`.

    Where maxval <= minval the result is minval. As two draws are reduced modulo the width of the
    interval, numbers are biased by at most width / 2**64.

    >>> anima.random.randint(anima.random.key(0), (5,), 0, 10)
    Array([8, 1, 3, 8, 8], dtype=int32)
    """
    dtype = int_dtype("randint", dtype)
    shape = as_shape(shape)
    common_shape("randint", shape, minval, maxval)
    return draw_randint(key, shape, minval, maxval, dtype)


def draw_randint(key: Any, shape: Shape, minval: Any, maxval: Any, dtype: Any) -> Any:
    """`randint` for arguments that have been checked."""
    limits = dtypes.iinfo(dtype)
    width = max(32, limits.bits)
    work = np.dtype(f"int{width}" if limits.min < 0 or limits.bits < 32 else f"uint{width}")
    unsigned = np.dtype(f"uint{width}")
    low, high, beyond = _integer_bounds(minval, maxval, dtype, work)
    low, high, beyond = (full(x, d, shape) for x, d in ((low, work), (high, work), (beyond, dtypes.bool_)))
    empty = el.le(high, low)
    span = el.convert_element_type(el.sub(high, low), unsigned)
    one = unsigned.type(1)
    span = el.select(empty, full(one, unsigned, shape), span)
    span = el.select(el.and_(beyond, el.not_(empty)), el.add(span, one), span)
    key_high, key_low = draw_keys(key)
    upper, lower = draw_bits(key_high, width, shape), draw_bits(key_low, width, shape)
    # (upper * 2**width + lower) mod span, in words of `width` bits.
    multiplier = el.rem(full(unsigned.type(2**(width // 2)), unsigned, shape), span)
    multiplier = el.rem(el.mul(multiplier, multiplier), span)
    offset = el.add(el.mul(el.rem(upper, span), multiplier), el.rem(lower, span))
    drawn = el.add(low, el.convert_element_type(el.rem(offset, span), work))
    return drawn if work == dtype else el.convert_element_type(drawn, dtype)


def _integer_bounds(minval: Any, maxval: Any, dtype: Any, work: Any) -> tuple[Any, Any, Any]:
    """Bounds clamped to the range of `dtype`, in `work`; and whether maxval is above that range."""
    limits = dtypes.iinfo(dtype)
    least, most = int(limits.min), int(limits.max)

    def clamped(x: Any) -> tuple[Any, Any]:
        if type(x) in (bool, int, float):
            dtypes.check_python_int(int(x), None if -2**31 <= x < 2**31 else np.dtype(
                dtypes.default_uint() if x > 0 else dtypes.default_int()))
            return work.type(min(max(int(x), least), most)), np.bool_(int(x) > most)
        held = aval_of(x).dtype
        if not dtypes.issubdtype(held, np.integer):
            x, held = el.convert_element_type(x, dtypes.default_int()), dtypes.default_int()
        own = dtypes.iinfo(held)
        lower, upper = max(least, int(own.min)), min(most, int(own.max))
        above = el.gt(x, held.type(upper)) if upper < int(own.max) else np.bool_(False)
        return el.convert_element_type(el.clamp(held.type(lower), x, held.type(upper)), work), above

    low, _ = clamped(minval)
    high, beyond = clamped(maxval)
    return low, high, beyond


@sampler()
def normal(key: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Numbers of the standard normal distribution, real or complex (of variance 1).

    >>> anima.random.normal(anima.random.key(0), (1,))
    Array([-0.20584226], dtype=float32)
    """
    return draw_normal(key, as_shape(shape), normal_dtype("normal", dtype))


def draw_normal(key: Any, shape: Shape, dtype: Any) -> Any:
    """`normal` for arguments that have been checked."""
    if dtype.kind == "c":
        real = dtypes.to_real(dtype)
        key_real, key_imag = draw_keys(key)
        root = np.sqrt(2).astype(real)
        return el.complex(el.div(draw_normal(key_real, shape, real), root),
                          el.div(draw_normal(key_imag, shape, real), root))
    low = np.nextafter(np.asarray(-1, dtype), np.asarray(0, dtype), dtype=dtype)
    return el.mul(np.sqrt(2).astype(dtype), special.erf_inv(draw_uniform(key, shape, dtype, low, 1.0)))


@sampler(is_exact=True)
def bernoulli(key: Any, p: Any = 0.5, shape: Any = None, mode: str = "low") -> Any:
    """Booleans that are True with probability `p`; `shape` is that of `p` by default.

    mode="high" resolves probabilities far below 2**-24 (float32), with twice the bits.
    """
    if mode not in ("low", "high"):
        raise ValueError(f"got mode={mode!r}, expected 'high' or 'low'")
    dtype = dtypes.dtype_of(p)
    if not dtypes.issubdtype(dtype, np.floating):
        raise TypeError(f"bernoulli probability `p` must have a floating dtype, got {dtypes.name(dtype)}.")
    return draw_bernoulli(key, p, common_shape("bernoulli", shape, p), dtype, mode)


def draw_bernoulli(key: Any, p: Any, shape: Shape, dtype: Any, mode: str = "low") -> Any:
    """`bernoulli` for arguments that have been checked."""
    if mode == "low":
        return el.lt(draw_uniform(key, shape, dtype), operand(p, dtype, shape))
    coarse, fine = two_uniforms(key, shape, dtype)
    fine = el.mul(fine, np.asarray(2.0**-dtypes.finfo(dtype).nmant, dtype))
    return el.lt(fine, el.sub(full(p, dtype, shape), coarse))


def two_uniforms(key: Any, shape: Shape, dtype: Any, minval: Any = 0.0) -> list[Any]:
    """Two uniform arrays, for the coarse and the fine part of one number."""
    both = draw_uniform(key, (2, *shape), dtype, minval)
    return [both[0], both[1]]


@sampler(is_exact=True)
def rademacher(key: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Numbers that are -1 or 1 with equal probability (int32 by default)."""
    dtype = dtypes.check_user_dtype(int if dtype is None else dtype, "rademacher")
    heads = draw_bernoulli(key, 0.5, as_shape(shape), dtypes.default_float())
    return el.convert_element_type(el.sub(el.mul(el.convert_element_type(heads, np.dtype(np.int32)), np.int32(2)),
                                          np.int32(1)), dtype)
