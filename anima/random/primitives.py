"""Random keys and the operations on them: seed, split, fold in, draw bits.

A key is an element of an extended dtype: two uint32 words. Each operation is a primitive on arrays of
keys, and is defined by one program on the words, written with ordinary operations around Threefry-2x32.
That program is what eager mode runs and what the compiler inlines:

    >>> random_bits_p.expand([key_aval], {"bit_width": 32, "shape": (4,)})
    { lambda ; a:u32[2]. let ... j:u32[2] k:u32[2] = threefry2x32 c e g i ... in (m,) }

Threefry: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Two ways of numbering
the counters exist, "original" and "partitionable" (`config.threefry_partitionable`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anima.config import config
from anima.core import dtypes
from anima.core.avals import Shape, ShapedArray
from anima.core.jaxpr import ClosedJaxpr
from anima.core.primitive import Primitive, Zero
from anima.core.stage import eval_numpy, trace_to_jaxpr
from anima.core.trace import EVAL, under
from anima.ops import elementwise as el, shape as sh
from anima.ops.threefry import threefry2x32_p

UINT32 = np.dtype(np.uint32)


@dataclass(frozen=True, slots=True, repr=False)
class Implementation:
    """A generator of random bits: its name, its tag in printed types, the shape of a key's words."""

    name: str
    tag: str
    key_shape: Shape

    @property
    def dtype(self) -> dtypes.KeyDType:
        return dtypes.KeyDType(self.tag, np.uint32, self.key_shape)

    def __repr__(self) -> str:
        return self.tag


THREEFRY = Implementation("threefry2x32", "fry", (2,))


def words_aval(aval: ShapedArray) -> ShapedArray:
    """The type of the words that an array of keys holds; other types as they are."""
    if isinstance(aval.dtype, dtypes.ExtendedDType):
        return ShapedArray(aval.shape + aval.dtype.element_shape, aval.dtype.base)
    return aval


class KeyPrimitive(Primitive):
    """An operation on keys, defined by `program` on their words; results are never differentiable."""

    def program(self, *words: Any, **params: Any) -> Any:
        """The operation, on arrays of words, in terms of ordinary operations."""
        raise self._missing("The program on words")

    def expand(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> ClosedJaxpr:
        """The operation as a program on words, for these types of keys."""
        return _expand(self, tuple(avals), tuple(params.items()), config.threefry_partitionable, config.enable_x64)

    def eval(self, *args: Any, **params: Any) -> Any:
        avals = [ShapedArray(x.shape, x.dtype) for x in args]
        return self.eval_extended(avals, args, params)

    def eval_extended(self, avals: Sequence[ShapedArray], args: Sequence[Any], params: dict[str, Any]) -> Any:
        return eval_numpy(self.expand(avals, params), args)[0]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = self.bind(*primals, **params)
        return out, Zero(ShapedArray(out.shape, dtypes.float0))

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        (keys,), (dim,) = args, dims
        return self.bind(_front(keys, dim), **params), 0


@functools.lru_cache(maxsize=1024)
def _expand(primitive: KeyPrimitive, avals: tuple[ShapedArray, ...], params: tuple[tuple[str, Any], ...],
            partitionable: bool, x64: bool) -> ClosedJaxpr:
    del partitionable, x64  # read by the program itself; here they are part of the cache's key
    jaxpr, consts = under(EVAL, trace_to_jaxpr, lambda *words: [primitive.program(*words, **dict(params))],
                          [words_aval(a) for a in avals])
    return ClosedJaxpr(jaxpr, consts)


def _front(x: Any, dim: int | None) -> Any:
    """`x` with dimension `dim` first."""
    if not dim:
        return x
    return sh.transpose(x, (dim, *(i for i in range(len(x.shape)) if i != dim)))


# ---------------------------------------------------------------- programs on words

def _word(words: Any, index: int, extra: int = 0) -> Any:
    """One word of each key: `words[..., index]`, with `extra` dimensions of size 1 behind."""
    shape = words.shape
    part = sh.slice_in_dim(words, index, index + 1, axis=len(shape) - 1)
    return sh.reshape(part, shape[:-1] + (1,) * extra)


def _counters(keys_ndim: int, shape: Shape) -> Any:
    """0, 1, ... in an array of this shape, behind `keys_ndim` dimensions of size 1."""
    return sh.reshape(sh.iota(UINT32, math.prod(shape)), (1,) * keys_ndim + tuple(shape))


def _encrypt(words: Any, high: Any, low: Any) -> list[Any]:
    """Threefry of the counters (high, low), for each key along new trailing dimensions."""
    extra = len(low.shape) - (len(words.shape) - 1)
    return threefry2x32_p.bind(_word(words, 0, extra), _word(words, 1, extra), high, low)


def _check_count(count: int) -> None:
    if count >= 2**32:
        raise NotImplementedError(f"Drawing {count} blocks of random bits from one key: split the key, and draw "
                                  "fewer than 2**32 from each.")


def original_words(words: Any, shape: Shape) -> Any:
    """An array of random words for each key: the counters are cut into halves, which are encrypted in pairs."""
    count, rank = math.prod(shape), len(words.shape) - 1
    _check_count(count)
    axis = next((d for d, n in enumerate(shape) if n != 1), 0)
    if count % 2 == 0 and shape[axis] % 2 == 0:  # the halves are those of the array along its first axis
        high = _counters(rank, (*shape[:axis], shape[axis] // 2, *shape[axis + 1:]))
        return sh.concatenate(_encrypt(words, high, el.add(high, np.uint32(count // 2))), rank + axis)
    half = -(-count // 2)
    high = _counters(rank, (half,))
    low = el.add(high, np.uint32(half))
    if count % 2:
        low = el.select(el.eq(high, np.uint32(half - 1)), sh.full(high.shape, np.uint32(0)), low)
    first, second = _encrypt(words, high, low)
    flat = sh.concatenate([first, sh.slice_in_dim(second, 0, count - half, axis=rank)], rank)
    return sh.reshape(flat, tuple(words.shape[:-1]) + tuple(shape))


def partitionable_words(words: Any, shape: Shape) -> list[Any]:
    """Two random words for each key and each 64-bit counter, as two arrays."""
    _check_count(math.prod(shape))
    low = _counters(len(words.shape) - 1, shape)
    return _encrypt(words, sh.full(low.shape, np.uint32(0)), low)


def original_bits(words: Any, bit_width: int, shape: Shape) -> Any:
    """Unsigned integers for each key, one behind the other in a stream of words."""
    rank, count, out = len(words.shape) - 1, math.prod(shape), tuple(words.shape[:-1]) + tuple(shape)
    if bit_width == 32:
        return original_words(words, shape)
    if bit_width == 64:
        _check_count(2 * count)
        high = _counters(rank, shape)
        return _join(*_encrypt(words, high, el.add(high, np.uint32(count))))
    lanes = 32 // bit_width
    number = -(-count // lanes)
    drawn = original_words(words, (number,))
    wide = sh.broadcast_in_dim(drawn, drawn.shape + (lanes,), tuple(range(rank + 1)))
    offsets = el.mul(sh.broadcasted_iota(UINT32, wide.shape, rank + 1), np.uint32(bit_width))
    parts = el.convert_element_type(el.and_(el.shift_right_logical(wide, offsets), np.uint32(2**bit_width - 1)),
                                    np.dtype(f"uint{bit_width}"))
    flat = sh.reshape(parts, drawn.shape[:rank] + (number * lanes,))
    return sh.reshape(sh.slice_in_dim(flat, 0, count, axis=rank), out)


def partitionable_bits(words: Any, bit_width: int, shape: Shape) -> Any:
    """Unsigned integers for each key, each from its own counter."""
    high, low = partitionable_words(words, shape)
    if bit_width == 64:
        return _join(high, low)
    mixed = el.xor(high, low)
    return mixed if bit_width == 32 else el.convert_element_type(mixed, np.dtype(f"uint{bit_width}"))


def _join(high: Any, low: Any) -> Any:
    """64-bit integers from two words each."""
    wide = np.dtype(np.uint64)
    return el.or_(el.shift_left(el.convert_element_type(high, wide), np.uint64(32)), el.convert_element_type(low, wide))


def _seed_words(seeds: Any) -> Any:
    """The key for each seed: its high word, its low word."""
    low = el.convert_element_type(seeds, UINT32)
    if seeds.dtype.itemsize == 8:
        high = el.convert_element_type(el.shift_right_logical(seeds, seeds.dtype.type(32)), UINT32)
    else:
        high = sh.full(low.shape, np.uint32(0))
    return _pair(high, low)


def _pair(high: Any, low: Any) -> Any:
    """The words of keys, side by side in a new last dimension."""
    shape = tuple(low.shape)
    return sh.concatenate([sh.reshape(high, shape + (1,)), sh.reshape(low, shape + (1,))], len(shape))


# ---------------------------------------------------------------- the primitives

class RandomSeed(KeyPrimitive):
    """Keys from integer seeds, elementwise."""

    def infer(self, seeds: ShapedArray, *, impl: Implementation) -> ShapedArray:
        if not dtypes.issubdtype(seeds.dtype, np.integer) and seeds.dtype != dtypes.bool_:
            raise TypeError(f"PRNG key seed must be an integer; got {seeds}")
        return ShapedArray(seeds.shape, impl.dtype)

    def program(self, seeds: Any, *, impl: Implementation) -> Any:
        return _seed_words(seeds)


class RandomWrap(KeyPrimitive):
    """Keys from their words."""

    def infer(self, words: ShapedArray, *, impl: Implementation) -> ShapedArray:
        check_words(words, impl)
        return ShapedArray(words.shape[:len(words.shape) - len(impl.key_shape)], impl.dtype)

    def program(self, words: Any, *, impl: Implementation) -> Any:
        return words


class RandomUnwrap(KeyPrimitive):
    """The words of keys."""

    def infer(self, keys: ShapedArray) -> ShapedArray:
        check_keys(keys, "random_unwrap")
        return words_aval(keys)

    def program(self, words: Any) -> Any:
        return words


class RandomClone(KeyPrimitive):
    """The same keys, which count as unused again for the checker of key reuse."""

    def infer(self, keys: ShapedArray) -> ShapedArray:
        check_keys(keys, "random_clone")
        return keys

    def program(self, words: Any) -> Any:
        return words


class RandomBits(KeyPrimitive):
    """Uniform unsigned integers of `bit_width` bits: an array of shape `shape` for each key."""

    def infer(self, keys: ShapedArray, *, bit_width: int, shape: Shape) -> ShapedArray:
        check_keys(keys, "random_bits")
        if bit_width not in (8, 16, 32, 64):
            raise TypeError(f"requires 8-, 16-, 32- or 64-bit field width, got {bit_width}.")
        return ShapedArray(keys.shape + tuple(shape), np.dtype(f"uint{bit_width}"))

    def program(self, words: Any, *, bit_width: int, shape: Shape) -> Any:
        draw = partitionable_bits if config.threefry_partitionable else original_bits
        return draw(words, bit_width, tuple(shape))


class RandomSplit(KeyPrimitive):
    """Independent new keys: an array of shape `shape` for each key."""

    def infer(self, keys: ShapedArray, *, shape: Shape) -> ShapedArray:
        check_keys(keys, "random_split")
        return ShapedArray(keys.shape + tuple(shape), keys.dtype)

    def program(self, words: Any, *, shape: Shape) -> Any:
        if config.threefry_partitionable:
            return _pair(*partitionable_words(words, tuple(shape)))
        return original_words(words, (*shape, 2))


class RandomFoldIn(KeyPrimitive):
    """A new key for each pair of a key and an integer, elementwise."""

    def infer(self, keys: ShapedArray, data: ShapedArray) -> ShapedArray:
        check_keys(keys, "random_fold_in")
        if keys.shape != data.shape or data.dtype != UINT32:
            raise TypeError(f"random_fold_in requires keys and uint32 data of equal shapes, got {keys}, {data}")
        return keys

    def program(self, words: Any, data: Any) -> Any:
        high, low = _encrypt(words, sh.full(data.shape, np.uint32(0)), data)
        return _pair(high, low)

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        moved = [sh.broadcast(x, (size,)) if d is None else _front(x, d) for x, d in zip(args, dims, strict=True)]
        return self.bind(*moved, **params), 0


def check_keys(aval: ShapedArray, name: str) -> None:
    """TypeError if `aval` is not an array of keys."""
    if not isinstance(aval.dtype, dtypes.KeyDType):
        raise TypeError(f"{name} takes PRNG keys, got {aval}")


def check_words(words: ShapedArray, impl: Implementation) -> None:
    """TypeError if an array cannot be the words of keys of this implementation."""
    rank = len(impl.key_shape)
    if words.dtype != UINT32:
        raise TypeError("Anima encountered invalid PRNG key data: expected key_data.dtype = uint32; "
                        f"got dtype={dtypes.name(words.dtype)}")
    if words.ndim < rank:
        raise TypeError(f"Anima encountered invalid PRNG key data: expected key_data.ndim >= {rank}; "
                        f"got ndim={words.ndim}")
    if words.shape[words.ndim - rank:] != impl.key_shape:
        raise TypeError("Anima encountered invalid PRNG key data: expected key_data.shape to end with "
                        f"{impl.key_shape}; got shape={words.shape} for impl={impl}")


random_seed_p = RandomSeed("random_seed")
random_wrap_p = RandomWrap("random_wrap")
random_unwrap_p = RandomUnwrap("random_unwrap")
random_clone_p = RandomClone("random_clone")
random_bits_p = RandomBits("random_bits")
random_split_p = RandomSplit("random_split")
random_fold_in_p = RandomFoldIn("random_fold_in")
