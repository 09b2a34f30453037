"""What a kernel sees of an array in each step of its grid.

    BlockSpec((8, 128), lambda i, j: (i, j))      block i, j of blocks of 8 x 128 elements
    BlockSpec((None, 128), lambda i: (i, 0))      row i, without its axis
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima import lax, numpy as jnp
from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import ShapedArray, row_major_strides
from anima.util import fun_name, record


@record
class MemoryRef:
    """Memory for an array, as scratch space of a kernel."""

    inner_aval: ShapedArray
    memory_space: Any

    shape = property(lambda self: self.inner_aval.shape)
    dtype = property(lambda self: self.inner_aval.dtype)

    def get_array_aval(self) -> ShapedArray:
        """The type of the array."""
        return self.inner_aval


class MemorySpace(enum.Enum):
    """Kinds of memory, of which a CPU has one: all of them mean that."""

    ANY = "any"
    DEFAULT = "default"
    ERROR = "error"
    INDEX = "index"
    KEY = "key"
    HOST = "host"

    def __str__(self) -> str:
        return str(self.value)

    def __call__(self, shape: Sequence[int], dtype: Any) -> MemoryRef:
        return MemoryRef(ShapedArray(tuple(shape), dtypes.canonicalize_dtype(dtype)), self)


@record
class Squeezed:
    """A block of one element along an axis, which the kernel does not see; `None` in a block shape."""


@record
class Blocked:
    """A block of `block_size` elements along an axis, numbered in blocks; a number in a block shape."""

    block_size: int


@record
class Element:
    """A block of `block_size` elements along an axis, numbered by its first element in the array with `padding`."""

    block_size: int
    padding: tuple[int, int] = (0, 0)


@record
class Buffered:
    """A `pipeline_mode`: how many blocks an accelerator keeps, and whether it fetches them long before their steps."""

    buffer_count: int
    use_lookahead: bool = False


squeezed = Squeezed()
BlockDim = int | None | Squeezed | Blocked | Element


@record
class BlockSpec:
    """How an operand or result is cut into blocks, and which of them a step works on.

    Args:
      block_shape: for each axis the size of a block, None for an axis of one element that the kernel does not see, or
        an `Element`; None: the whole array.
      index_map: from the indices of the grid to the block's, one for each axis; None: the first.
      pipeline_mode, memory_space: without meaning on a CPU.
    """

    block_shape: Sequence[Any] | None = None
    index_map: Callable[..., Any] | None = None
    pipeline_mode: Any = None
    memory_space: Any = None

    def replace(self, **changes: Any) -> BlockSpec:
        """The same with other fields."""
        own = {name: getattr(self, name) for name in ("block_shape", "index_map", "pipeline_mode", "memory_space")}
        return BlockSpec(**(own | changes))


class NoBlockSpec:
    """Says that operands are not cut."""

    def __repr__(self) -> str:
        return "NoBlockSpec"


no_block_spec = NoBlockSpec()


class GridSpec:
    """The grid of a kernel, and how its operands and results are cut along it; see `pallas_call`."""

    num_scalar_prefetch = 0

    def __init__(self, grid: Any = (), in_specs: Any = no_block_spec, out_specs: Any = no_block_spec,
                 scratch_shapes: Any = ()):
        sizes = grid if isinstance(grid, (tuple, list)) else (grid,)
        named = [size if isinstance(size, tuple) else (None, size) for size in sizes]  # an axis may have a name
        self.grid = tuple(size for _, size in named)
        if not all(isinstance(size, (int, np.integer, Array)) for size in self.grid):
            raise ValueError(f"The grid of a kernel is a tuple of integers, got {grid!r}.")
        self.in_specs, self.out_specs, self.scratch_shapes = in_specs, out_specs, scratch_shapes

    def __repr__(self) -> str:
        return (f"{type(self).__name__}(grid={self.grid}, in_specs={self.in_specs}, out_specs={self.out_specs}, "
                f"scratch_shapes={self.scratch_shapes})")


def uninitialized(shape: Sequence[int], dtype: Any) -> Array:
    """What memory holds that nobody has written to: NaN, the least integer, False."""
    dtype = dtypes.canonicalize_dtype(dtype)
    if dtypes.issubdtype(dtype, np.inexact):
        return jnp.full(tuple(shape), np.nan, dtype)
    return jnp.full(tuple(shape), False if dtype == np.bool_ else jnp.iinfo(dtype).min, dtype)


class Window:
    """The blocks of one operand or result; `name` is its place, for errors."""

    def __init__(self, name: str, spec: BlockSpec, shape: Sequence[int], dtype: Any):
        self.name, self.shape, self.dtype, self.index_map = name, tuple(shape), dtype, spec.index_map
        dims = self.shape if spec.block_shape is None else tuple(spec.block_shape)
        if len(dims) != len(self.shape):
            raise ValueError(f"Block shape for {name} (= {dims}) must have the same number of dimensions as the array "
                             f"shape {self.shape}.")
        self.dims = [Squeezed() if d is None else d if isinstance(d, (Squeezed, Element)) else
                     Blocked(d.block_size if isinstance(d, Blocked) else int(d)) for d in dims]
        self.sizes = tuple(1 if isinstance(d, Squeezed) else d.block_size for d in self.dims)
        if any(size <= 0 < extent for size, extent in zip(self.sizes, self.shape, strict=True)):
            raise ValueError(f"Block shape for {name} (= {dims}) must have positive sizes.")
        self.seen = tuple(size for d, size in zip(self.dims, self.sizes, strict=True) if not isinstance(d, Squeezed))
        self.padding = [d.padding if isinstance(d, Element) else (0, -extent % size if size else 0)
                        for d, size, extent in zip(self.dims, self.sizes, self.shape, strict=True)]

    def padded(self, x: Any) -> Any:
        """An array with what there is before and after it, so that it consists of blocks."""
        if not any(map(any, self.padding)):
            return x
        edge = uninitialized((), self.dtype)
        return lax.pad(x, edge, [(low, high, 0) for low, high in self.padding])

    def unpadded(self, x: Any) -> Any:
        """The array itself."""
        if not any(map(any, self.padding)):
            return x
        return lax.slice(x, [low for low, _ in self.padding],
                         [low + extent for (low, _), extent in zip(self.padding, self.shape, strict=True)])

    def starts(self, ids: Sequence[Any], scalars: Sequence[Any]) -> list[Any]:
        """Where the block of a step begins."""
        if self.index_map is None:
            return [0] * len(self.sizes)
        found = self.index_map(*ids, *scalars)
        found = tuple(found) if isinstance(found, (tuple, list)) else (found,)
        if len(found) != len(self.sizes):
            raise ValueError(f"Index map function {fun_name(self.index_map)} for {self.name} must return "
                             f"{len(self.sizes)} values to match block_shape={tuple(self.dims)}. Currently returning "
                             f"{len(found)} values.")
        for k, i in enumerate(map(jnp.asarray, found)):
            if i.ndim or not dtypes.issubdtype(i.dtype, np.integer):
                raise ValueError(f"Index map function {fun_name(self.index_map)} for {self.name} must return integer "
                                 f"scalars. Output[{k}] has type {i.aval.str_short()}.")
        return [jnp.asarray(i, np.int32) * (1 if isinstance(d, Element) else size)
                for i, d, size in zip(found, self.dims, self.sizes, strict=True)]

    def take(self, x: Any, starts: Sequence[Any]) -> Any:
        """The block that begins there, as the kernel sees it."""
        whole = self.sizes == jnp.shape(x)
        return jnp.reshape(x if whole else lax.dynamic_slice(x, starts, self.sizes), self.seen)

    def put(self, x: Any, block: Any, starts: Sequence[Any]) -> Any:
        """The array with a block written over."""
        block = jnp.reshape(block, self.sizes)
        return block if self.sizes == jnp.shape(x) else lax.dynamic_update_slice(x, block, starts)


@record
class CostEstimate:
    """What a kernel is said to cost."""

    flops: int
    transcendentals: int
    bytes_accessed: int
    remote_bytes_transferred: int = 0


def cdiv(a: Any, b: Any) -> Any:
    """The quotient of integers, rounded up.

    >>> from anima.experimental import pallas as pl
    >>> pl.cdiv(10, 4)
    3
    """
    return (a + b - 1) // b if isinstance(a, int) and isinstance(b, int) else lax.div(a + (b - 1), jnp.asarray(b))


def align_to(a: int, alignment: int) -> int:
    """The least multiple that is not less."""
    return cdiv(a, alignment) * alignment


def next_power_of_2(x: int) -> int:
    """The least power of 2 that is not less; ValueError for negative numbers."""
    if x < 0:
        raise ValueError("`next_power_of_2` requires a non-negative integer.")
    return 1 if x == 0 else 1 << (x - 1).bit_length()


def strides_from_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """How many elements apart the elements along each axis are, of an array in row-major order."""
    return row_major_strides(shape)


class CompilerParams:
    """Wishes to a compiler for accelerators, kept as attributes."""

    def __init__(self, **wishes: Any):
        self.__dict__.update(wishes)

    def __repr__(self) -> str:
        return f"CompilerParams({', '.join(f'{k}={v!r}' for k, v in self.__dict__.items())})"
