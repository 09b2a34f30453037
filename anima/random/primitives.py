"""Random keys and the operations on them: seed, split, fold in, draw bits.

A key is an element of an extended dtype: a few uint32 words, two for Threefry. Each operation is a primitive on
arrays of keys, and is defined by one program on the words that the keys' generator (`implementation.py`) gives.
That program is what eager mode runs and what the compiler inlines:

    random_bits_p.body({"bit_width": 32, "shape": (4,)}, [key_aval])
    { lambda ; a:u32[2]. let ... j:u32[2] k:u32[2] = threefry2x32 c e g i ... in (m,) }
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from anima.config import config, threefry_partitionable
from anima.core import dtypes
from anima.core.avals import Shape, ShapedArray
from anima.core.dims import Point, point_of
from anima.core.jaxpr import ClosedJaxpr
from anima.core.primitive import Primitive, ShardingRule, Zero
from anima.core.sharding_rules import leading
from anima.core.stage import eval_numpy, trace_to_jaxpr
from anima.core.trace import EVAL, under
from anima.ops import shape as sh
from anima.random.implementation import Implementation, of_dtype
from anima.util import cleared

UINT32 = np.dtype(np.uint32)


def words_aval(aval: ShapedArray) -> ShapedArray:
    """The type of the words that an array of keys holds; other types as they are."""
    if isinstance(aval.dtype, dtypes.ExtendedDType):
        return ShapedArray(aval.shape + aval.dtype.element_shape, aval.dtype.base)
    return aval


class KeyPrimitive(Primitive):
    """An operation on keys, defined by `program` on their words; results are never differentiable."""

    on_words = exact = True

    def program(self, impl: Implementation, *words: Any, **params: Any) -> Any:
        """The operation, on arrays of words of this generator's keys, in terms of ordinary operations."""
        raise self._missing("The program on words")

    def body(self, params: dict[str, Any], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
        """The operation as a program on words, for these types of keys."""
        given = tuple(avals), tuple(params.items())
        return _expand(self, *given, config.trace_key(), point_of(*given))

    def eval(self, *args: Any, **params: Any) -> Any:
        avals = [ShapedArray(x.shape, x.dtype) for x in args]
        return self.eval_extended(avals, args, params)

    def eval_extended(self, avals: Sequence[ShapedArray], args: Sequence[Any], params: dict[str, Any]) -> Any:
        return eval_numpy(self.body(params, avals), args)[0]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = self.bind(*primals, **params)
        return out, Zero(ShapedArray(out.shape, dtypes.float0))

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        (keys,), (dim,) = args, dims
        return self.bind(_front(keys, dim), **params), 0

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], **params: Any) -> ShardingRule:
        """Each key by itself: the dimensions of the keys go along; those of their words, and of what is made of each,
        come after them and are whole."""
        return leading(min(len(a.shape) for a in (*avals, *outs)), avals, outs)


@functools.lru_cache(maxsize=1024)
def _expand(primitive: KeyPrimitive, avals: tuple[ShapedArray, ...], params: tuple[tuple[str, Any], ...],
            options: Hashable, point: Point | None) -> ClosedJaxpr:
    known = dict(params)
    impl = known.pop("impl", None) or of_dtype(avals[0].dtype)
    numbering = known.pop("partitionable", None)
    with config.held(options), nullcontext() if numbering is None else threefry_partitionable(numbering):
        jaxpr, consts = under(EVAL, trace_to_jaxpr, lambda *words: [primitive.program(impl, *words, **known)],
                              [words_aval(a) for a in avals])
    return ClosedJaxpr(jaxpr, consts)


cleared(_expand.cache_clear)


def _front(x: Any, dim: int | None) -> Any:
    """`x` with dimension `dim` first."""
    if not dim:
        return x
    return sh.transpose(x, (dim, *(i for i in range(len(x.shape)) if i != dim)))


class Drawing(KeyPrimitive):
    """What depends on how counters are numbered: the option `threefry_partitionable` as it is when this is applied."""

    uses_keys = True

    def bind(self, *args: Any, **params: Any) -> Any:
        if params.get("partitionable") is None:
            params["partitionable"] = config.threefry_partitionable
        return super().bind(*args, **params)


# ---------------------------------------------------------------- the primitives

class RandomSeed(KeyPrimitive):
    """Keys from integer seeds, elementwise."""

    def infer(self, seeds: ShapedArray, *, impl: Implementation) -> ShapedArray:
        if not dtypes.issubdtype(seeds.dtype, np.integer) and seeds.dtype != dtypes.bool_:
            raise TypeError(f"PRNG key seed must be an integer; got {seeds}")
        return ShapedArray(seeds.shape, impl.dtype)

    def program(self, impl: Implementation, seeds: Any) -> Any:
        return impl.seed(seeds)


class SameWords(KeyPrimitive):
    """Keys and their words are the same numbers in memory."""

    def program(self, impl: Implementation, words: Any) -> Any:
        return words

    def eval_extended(self, avals: Sequence[ShapedArray], args: Sequence[Any], params: dict[str, Any]) -> Any:
        return args[0]


class RandomWrap(SameWords):
    """Keys from their words."""

    def infer(self, words: ShapedArray, *, impl: Implementation) -> ShapedArray:
        check_words(words, impl)
        return ShapedArray(words.shape[:len(words.shape) - len(impl.key_shape)], impl.dtype)


class RandomUnwrap(SameWords):
    """The words of keys."""

    def infer(self, keys: ShapedArray) -> ShapedArray:
        check_keys(keys, "random_unwrap")
        return words_aval(keys)


class RandomClone(SameWords):
    """The same keys, which count as unused again for the checker of key reuse."""

    def infer(self, keys: ShapedArray) -> ShapedArray:
        check_keys(keys, "random_clone")
        return keys


class RandomBits(Drawing):
    """Uniform unsigned integers of `bit_width` bits: an array of shape `shape` for each key."""

    def infer(self, keys: ShapedArray, *, bit_width: int, shape: Shape,
              partitionable: bool | None = None) -> ShapedArray:
        check_keys(keys, "random_bits")
        if bit_width not in (8, 16, 32, 64):
            raise TypeError(f"requires 8-, 16-, 32- or 64-bit field width, got {bit_width}.")
        return ShapedArray(keys.shape + tuple(shape), np.dtype(f"uint{bit_width}"))

    def program(self, impl: Implementation, words: Any, *, bit_width: int, shape: Shape) -> Any:
        return impl.random_bits(words, bit_width, tuple(shape))


class RandomSplit(Drawing):
    """Independent new keys: an array of shape `shape` for each key."""

    def infer(self, keys: ShapedArray, *, shape: Shape, partitionable: bool | None = None) -> ShapedArray:
        check_keys(keys, "random_split")
        return ShapedArray(keys.shape + tuple(shape), keys.dtype)

    def program(self, impl: Implementation, words: Any, *, shape: Shape) -> Any:
        return impl.split(words, tuple(shape))


class RandomFoldIn(KeyPrimitive):
    """A new key for each pair of a key and an integer, elementwise."""

    def infer(self, keys: ShapedArray, data: ShapedArray) -> ShapedArray:
        check_keys(keys, "random_fold_in")
        if keys.shape != data.shape or data.dtype != UINT32:
            raise TypeError(f"random_fold_in requires keys and uint32 data of equal shapes, got {keys}, {data}")
        return keys

    def program(self, impl: Implementation, words: Any, data: Any) -> Any:
        return impl.fold_in(words, data)

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
