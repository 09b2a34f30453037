"""Products of numbers in blocks with a scale for each (microscaling formats), and what makes blocks of arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anima.core import dtypes
from anima.core.array import Array
from anima.core.state import warn
from anima.core.trace import aval_of
from anima.lax.ragged import scaled_dot
from anima.ops import elementwise as ew, reduce as rd, shape as sh
from anima.ops.contract import dot_general
from anima.transforms.custom import custom_vjp

_WORD = np.dtype(np.uint32)


def scaled_matmul(lhs: Any, rhs: Any, lhs_scales: Any, rhs_scales: Any,
                  preferred_element_type: Any = np.float32) -> Array:
    """For each batch, (lhs * lhs_scales) @ (rhs * rhs_scales).T, where each scale is that of a block of the last axis.

    Args:
      lhs, rhs: [batch, rows, k] and [batch, columns, k], as a rule of 8- or 4-bit floats.
      lhs_scales, rhs_scales: [batch, rows, k / block] and [batch, columns, k / block].
      preferred_element_type: of the result [batch, rows, columns], summed in float32 at least.

    Raises:
      ValueError: for arrays of other than three dimensions.
      TypeError: for shapes that do not fit.

    >>> x = jnp.ones((1, 2, 32), jnp.float8_e4m3fn)
    >>> anima.nn.scaled_matmul(x, x, jnp.full((1, 2, 1), 2.0), jnp.ones((1, 2, 1)))
    Array([[[64., 64.],
            [64., 64.]]], dtype=float32)
    """
    if any(aval_of(x).ndim != 3 for x in (lhs, rhs, lhs_scales, rhs_scales)):
        raise ValueError("scaled_matmul takes arrays of three dimensions, got " + ", ".join(
            aval_of(x).str_short() for x in (lhs, rhs, lhs_scales, rhs_scales)) + ".")
    return scaled_dot(lhs, rhs, lhs_scale=lhs_scales, rhs_scale=rhs_scales,
                      dimension_numbers=(((2,), (2,)), ((0,), (0,))),
                      preferred_element_type=dtypes.canonicalize_dtype(preferred_element_type))


@dataclass(frozen=True)
class BlockScaleConfig:
    """How an array becomes blocks with scales: along the contracted axis, `block_size` numbers of `data_type` share one
    of `scale_type`; all share `global_scale`, a float32[1], where there is one. See `get_scaled_dot_general_config`."""

    mode: str
    block_size: int
    data_type: Any
    scale_type: Any
    global_scale: Array | None
    infer_only: bool


def get_scaled_dot_general_config(mode: str, global_scale: Any = None) -> BlockScaleConfig:
    """The microscaling format of a name, for `scaled_dot_general`.

    Args:
      mode: "mxfp8" (32 numbers of float8_e4m3fn share a power of two) or "nvfp4" (16 of float4_e2m1fn share a
        float8_e4m3fn).
      global_scale: float32[1], of "nvfp4" alone: what all numbers are divided by first; by default 1.

    Raises:
      ValueError: for another name.

    Open Compute Project, "Microscaling formats (MX) specification" 1.0 (2023).
    """
    if mode == "mxfp8":
        return BlockScaleConfig(mode, 32, _scalar_type("float8_e4m3fn"), _scalar_type("float8_e8m0fnu"), None, False)
    if mode == "nvfp4":
        scale = sh.full((1,), 1, np.float32) if global_scale is None else sh.as_array(global_scale)
        return BlockScaleConfig(mode, 16, _scalar_type("float4_e2m1fn"), _scalar_type("float8_e4m3fn"), scale, False)
    raise ValueError(f"Unsupported mode: {mode!r}. There are 'mxfp8' and 'nvfp4'.")


def _scalar_type(name: str) -> Any:
    return dtypes.np_dtype(name).type


def scaled_dot_general(lhs: Any, rhs: Any, dimension_numbers: Any, preferred_element_type: Any = np.float32,
                       configs: Sequence[BlockScaleConfig] | None = None, implementation: Any = None) -> Array:
    """`lax.dot_general` of operands that are rounded to blocks with scales; its derivatives likewise.

    Args:
      lhs, rhs: arrays of floats, whose contracted size is a multiple of the blocks' size.
      dimension_numbers: as of `lax.dot_general`.
      preferred_element_type: float32, bfloat16 or float16: of the result, summed in float32.
      configs: how lhs, rhs and cotangents become blocks; None: not at all.
      implementation: chose among kernels of GPUs, and warns that it no longer does.

    Raises:
      TypeError: for another type of the result.
      ValueError: for sizes that blocks do not divide.

    >>> mx = anima.nn.get_scaled_dot_general_config("mxfp8")
    >>> x = jnp.full((2, 32), 1.1)
    >>> anima.nn.scaled_dot_general(x, x, (((1,), (1,)), ((), ())), configs=[mx, mx, mx])
    Array([[40.5, 40.5],
           [40.5, 40.5]], dtype=float32)
    """
    if implementation is not None:
        warn("scaled_dot_general: `implementation` chooses nothing.", DeprecationWarning)
    dtype = dtypes.canonicalize_dtype(preferred_element_type)
    if dtype not in (np.float32, dtypes.bfloat16, np.float16):
        raise TypeError("scaled_dot_general: preferred_element_type must be float32, bfloat16 or float16, got "
                        f"{dtypes.name(dtype)}.")
    lhs, rhs = sh.as_array(lhs), sh.as_array(rhs)
    if configs is None:
        return dot_general(lhs, rhs, dimension_numbers, preferred_element_type=dtype)
    of_lhs, of_rhs, of_cotangents = configs
    (left, right), (left_batch, right_batch) = dimension_numbers

    @custom_vjp
    def product(a: Any, b: Any) -> Any:
        return _rounded_product(a, b, of_lhs, of_rhs, dtype)

    def backward(saved: tuple[Any, Any], ct: Any) -> tuple[Any, Any]:
        a, b = saved
        turned = _rounded_product(ct, _turned(b), of_cotangents, of_rhs, dtype)
        return turned.astype(a.dtype), _rounded_product(_turned(ct), _turned(a), of_cotangents, of_lhs,
                                                        dtype).astype(b.dtype)

    product.defvjp(lambda a, b: (product(a, b), (a, b)), backward)
    a, batches, rows = _as_matrices(lhs, left, left_batch)
    b, _, columns = _as_matrices(rhs, right, right_batch)
    return sh.reshape(product(a, b), (*batches, *rows, *columns))


def _turned(x: Any) -> Any:
    return sh.transpose(x, (0, 2, 1))


def _as_matrices(x: Any, contracted: Sequence[int], batch: Sequence[int]) -> tuple[Any, Sequence[int], Sequence[int]]:
    """(x as [batch, rows, contracted], the sizes of the batch axes, those of the rows)."""
    free = [k for k in range(x.ndim) if k not in (*contracted, *batch)]
    groups = [[x.shape[k] for k in axes] for axes in (batch, free, contracted)]
    return sh.reshape(sh.transpose(x, (*batch, *free, *contracted)), tuple(map(math.prod, groups))), *groups[:2]


def _rounded_product(a: Any, b: Any, of_a: BlockScaleConfig, of_b: BlockScaleConfig, dtype: Any) -> Any:
    """For each batch a @ b.T, of [batch, rows, k] and [batch, columns, k]."""
    (a, a_scales), (b, b_scales) = _blocks(a, of_a), _blocks(b, of_b)
    out = scaled_matmul(a, b, a_scales, b_scales, dtype)
    for config in (of_a, of_b):
        if config.global_scale is not None:
            out = ew.mul(out, sh.broadcast_to(ew.convert(config.global_scale, out.dtype), out.shape))
    return out


def _blocks(x: Any, config: BlockScaleConfig) -> tuple[Any, Any]:
    """(numbers of `data_type`, their blocks' scales) along the last axis."""
    size = config.block_size
    if x.shape[-1] % size:
        raise ValueError(f"scaled_dot_general: blocks of {size} do not divide a contracted axis of size {x.shape[-1]}.")
    data, scale_type = (dtypes.np_dtype(t) for t in (config.data_type, config.scale_type))
    single = np.dtype(np.float32)
    parts = ew.convert(sh.reshape(x, (*x.shape[:-1], x.shape[-1] // size, size)), single)
    if config.global_scale is not None:
        parts = ew.div(parts, sh.broadcast_to(config.global_scale, parts.shape))
    largest = single.type(dtypes.finfo(data).max)
    needed = ew.div(rd.reduce_max(ew.abs(parts), (parts.ndim - 1,)), largest)
    if scale_type == dtypes.np_dtype("float8_e8m0fnu"):  # a power of two: the next, by a carry into the exponent
        word = ew.shift_right_logical(ew.add(ew.bitcast_convert_type(needed, _WORD), np.uint32(0x7FFFFF)),
                                      np.uint32(23))
        scales = ew.bitcast_convert_type(ew.convert(ew.min(word, np.uint32(255)), np.dtype(np.uint8)), scale_type)
    else:
        scales = ew.convert(ew.min(needed, single.type(dtypes.finfo(scale_type).max)), scale_type)
    factors = ew.convert(scales, single)
    factors = ew.select_n(ew.eq(factors, single.type(0)), factors, sh.full_like(factors, 1))  # of blocks of zeros
    parts = ew.div(parts, sh.broadcast_in_dim(factors, parts.shape, tuple(range(factors.ndim))))
    return sh.reshape(ew.convert(ew.clamp(-largest, parts, largest), data), x.shape), scales
