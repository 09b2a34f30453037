"""What kernels written for TPUs need to run here: names of memories, grids with scalars that index maps see."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

from anima import names, numpy as jnp
from anima.core import dtypes
from anima.core.avals import ShapedArray
from anima.experimental.pallas.specs import CompilerParams, GridSpec, MemoryRef, no_block_spec


class MemorySpace(enum.Enum):
    """Memories of a TPU: here all of them are the one that there is."""

    VMEM = "vmem"
    SMEM = "smem"
    CMEM = "cmem"
    HBM = "hbm"

    def __str__(self) -> str:
        return str(self.value)

    def __call__(self, shape: Sequence[int], dtype: Any) -> MemoryRef:
        return MemoryRef(ShapedArray(tuple(shape), dtypes.canonicalize_dtype(dtype)), self)


VMEM, SMEM, CMEM, HBM = MemorySpace.VMEM, MemorySpace.SMEM, MemorySpace.CMEM, MemorySpace.HBM


class PrefetchScalarGridSpec(GridSpec):
    """A grid whose index maps, and kernel, see the first `num_scalar_prefetch` operands whole, as references."""

    def __init__(self, num_scalar_prefetch: int, grid: Any = (), in_specs: Any = no_block_spec,
                 out_specs: Any = no_block_spec, scratch_shapes: Any = ()):
        super().__init__(grid, in_specs, out_specs, scratch_shapes)
        self.num_scalar_prefetch = num_scalar_prefetch


def load(ref: Any, *, mask: Any = None) -> Any:
    """What a reference, or a view of one, holds. Where a mask does not hold, elements may be any: they are its own."""
    del mask
    return ref[...]


def store(ref: Any, val: Any, *, mask: Any = None) -> None:
    """Puts a value in a reference, or in a view of one, where the mask holds."""
    ref[...] = val if mask is None else jnp.where(mask, val, ref[...])


__all__ = ["CMEM", "HBM", "SMEM", "VMEM", "CompilerParams", "MemorySpace", "PrefetchScalarGridSpec", "load", "store"]
globals().update(names.access(__name__, globals()))
