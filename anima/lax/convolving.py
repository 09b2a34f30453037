"""Convolutions in the forms that users know, made of `conv_general_dilated`.

    >>> x, k = jnp.array([[[1., 2.]]]), jnp.array([[[1., 1., 1.]]])
    >>> lax.conv(x, k, (1,), "SAME")
    Array([[[3., 3.]]], dtype=float32)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from anima.core.trace import aval_of
from anima.ops import elementwise as ew
from anima.ops.broadcast import broadcast_in_dim, broadcasted_iota, shape_of
from anima.ops.contract import Precision, canonicalize_precision, dot_general
from anima.ops.convolution import (
    conv_dimension_numbers,
    conv_general_dilated,
    conv_transpose_padding,
)
from anima.ops.shape import reshape, rev, transpose
from anima.ops.window import dilated

_LAYOUTS = (("NC", "IO", "NC"), ("NHC", "HIO", "NHC"), ("NHWC", "HWIO", "NHWC"), ("NHWDC", "HWDIO", "NHWDC"))


def conv(lhs: Any, rhs: Any, window_strides: Sequence[int], padding: str, precision: Any = None,
         preferred_element_type: Any = None) -> Any:
    """`conv_general_dilated` of `lhs` (batch, features, space) by `rhs` (output features, features, space).

    >>> lax.conv(jnp.ones((1, 3, 8, 8)), jnp.ones((16, 3, 3, 3)), (1, 1), "SAME").shape
    (1, 16, 8, 8)
    """
    return conv_general_dilated(lhs, rhs, window_strides, padding, precision=precision,
                                preferred_element_type=preferred_element_type)


def conv_with_general_padding(lhs: Any, rhs: Any, window_strides: Sequence[int], padding: Any,
                              lhs_dilation: Sequence[int] | None, rhs_dilation: Sequence[int] | None,
                              precision: Any = None, preferred_element_type: Any = None) -> Any:
    """`conv_general_dilated` of `lhs` (batch, features, space) by `rhs` (output features, features, space), with
    dilations, and padding as a string or as pairs (low, high).

    >>> lax.conv_with_general_padding(jnp.ones((1, 3, 8)), jnp.ones((16, 3, 3)), (1,), ((2, 0),), None, (1,)).shape
    (1, 16, 8)
    """
    return conv_general_dilated(lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation, precision=precision,
                                preferred_element_type=preferred_element_type)


def conv_transpose(lhs: Any, rhs: Any, strides: Sequence[int], padding: Any, rhs_dilation: Sequence[int] | None = None,
                   dimension_numbers: Any = None, transpose_kernel: bool = False, precision: Any = None,
                   preferred_element_type: Any = None, use_consistent_padding: bool = False) -> Any:
    """The "transposed" or "fractionally strided" convolution: `lhs` with `strides` between its elements, convolved.

    Args:
      padding: "SAME" or "VALID", as of the convolution that this one takes back; or pairs (low, high) of the padding
        around the spread `lhs`, or, with `use_consistent_padding`, of that convolution.
      dimension_numbers: by default channels come last: ("NHWC", "HWIO", "NHWC") for images.
      transpose_kernel: reverses the kernel and exchanges its features, so that the result is the gradient of a
        convolution by this kernel.

    Returns an array in the layout of `dimension_numbers`. ValueError for more than three dimensions of space without
    `dimension_numbers`.

    >>> lax.conv_transpose(jnp.ones((1, 4, 4, 3)), jnp.ones((3, 3, 3, 8)), (2, 2), "SAME").shape
    (1, 8, 8, 8)
    """
    lhs_shape, rhs_shape = shape_of(lhs), shape_of(rhs)
    if dimension_numbers is None:
        if len(lhs_shape) - 2 not in range(len(_LAYOUTS)):
            raise ValueError("conv_transpose needs dimension_numbers for more than three dimensions of space, got "
                             f"lhs of shape {lhs_shape}.")
        dimension_numbers = _LAYOUTS[len(lhs_shape) - 2]
    numbers = conv_dimension_numbers(lhs_shape, rhs_shape, dimension_numbers)
    window = [rhs_shape[d] for d in numbers.rhs_spec[2:]]
    sizes = list(map(dilated, window, rhs_dilation or (1,) * len(window)))
    if isinstance(padding, str) and padding.upper() in ("SAME", "VALID"):
        padding = [conv_transpose_padding(k, s, padding) for k, s in zip(sizes, strides, strict=True)]
    elif isinstance(padding, str):
        if any(s != 1 for s in strides):
            raise ValueError(f"Padding of a transposed convolution must be 'SAME', 'VALID' or pairs, got {padding!r}.")
    elif use_consistent_padding:
        padding = [(k - 1 - low, k - 1 - high) for k, (low, high) in zip(sizes, padding, strict=True)]
    if transpose_kernel:
        order = list(range(len(rhs_shape)))
        a, b = numbers.rhs_spec[:2]
        order[a], order[b] = b, a
        rhs = transpose(rev(rhs, numbers.rhs_spec[2:]), tuple(order))
    return conv_general_dilated(lhs, rhs, (1,) * len(window), padding, strides, rhs_dilation, numbers,
                                precision=precision, preferred_element_type=preferred_element_type)


def conv_general_dilated_patches(lhs: Any, filter_shape: Sequence[int], window_strides: Sequence[int], padding: Any,
                                 lhs_dilation: Sequence[int] | None = None, rhs_dilation: Sequence[int] | None = None,
                                 dimension_numbers: Any = None, precision: Any = None,
                                 preferred_element_type: Any = None) -> Any:
    """The windows that a convolution by a kernel of shape `filter_shape` sees, as features.

    The result has, at each place in space, features * prod(filter_shape) features: for each feature of `lhs`, its
    window in row-major order. Arguments are as in `conv_general_dilated`.

    >>> lax.conv_general_dilated_patches(jnp.array([[[1., 2., 3., 4.]]]), (2,), (2,), "VALID")
    Array([[[1., 3.],
            [2., 4.]]], dtype=float32)
    """
    shape, dtype = shape_of(lhs), aval_of(lhs).dtype
    window = tuple(map(int, filter_shape))
    numbers = conv_dimension_numbers(shape, (1, 1, *window), dimension_numbers)
    features, size = shape[numbers.lhs_spec[1]], math.prod(window)
    ones = ew.convert(ew.eq(*(broadcasted_iota(int, (size, size), d) for d in (0, 1))), dtype)
    kernel = reshape(broadcast_in_dim(ones, (features, size, size), (1, 2)), (features * size, 1, *window))
    order = sorted(range(len(shape)), key=numbers.rhs_spec.__getitem__)
    if order != list(range(len(order))):
        kernel = transpose(kernel, tuple(order))
    precisions = canonicalize_precision(precision)
    return conv_general_dilated(
        lhs, kernel, window_strides, padding, lhs_dilation, rhs_dilation, numbers, feature_group_count=features,
        precision=None if precisions is None else (precisions[0], Precision.DEFAULT),
        preferred_element_type=preferred_element_type)


def conv_general_dilated_local(lhs: Any, rhs: Any, window_strides: Sequence[int], padding: Any,
                               filter_shape: Sequence[int], lhs_dilation: Sequence[int] | None = None,
                               rhs_dilation: Sequence[int] | None = None, dimension_numbers: Any = None,
                               precision: Any = None) -> Any:
    """A convolution with a kernel of its own for each place of the output ("locally connected").

    `rhs` has output features, features * prod(filter_shape) (in the order of `conv_general_dilated_patches`), and the
    output's space, in the layout of `dimension_numbers`. Other arguments are as in `conv_general_dilated`.

    >>> x, k = jnp.array([[[1., 2., 3.]]]), jnp.array([[[1., 10.], [0., 0.]]])    # the kernels (1, 0) and (10, 0)
    >>> lax.conv_general_dilated_local(x, k, (1,), "VALID", (2,))
    Array([[[ 1., 20.]]], dtype=float32)
    """
    precisions = canonicalize_precision(precision)
    patches = conv_general_dilated_patches(
        lhs, filter_shape, window_strides, padding, lhs_dilation, rhs_dilation, dimension_numbers,
        precision=None if precisions is None else precisions[0])
    _, rhs_spec, out_spec = conv_dimension_numbers(shape_of(lhs), shape_of(rhs), dimension_numbers)
    numbers = ((out_spec[1],), (rhs_spec[1],)), (out_spec[2:], rhs_spec[2:])
    out = dot_general(patches, rhs, numbers, precision=precisions)
    places = (*out_spec[2:], *out_spec[:2])  # of the product's axes
    return transpose(out, tuple(places.index(d) for d in range(len(places))))
