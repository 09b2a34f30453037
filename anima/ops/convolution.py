"""Convolutions: sums of products of a kernel and the windows of an array that it moves over.

    >>> x, k = jnp.array([[[1., 2., 4., 8.]]]), jnp.array([[[1., -1.]]])     # batch, feature, space
    >>> lax.conv_general_dilated(x, k, (1,), "VALID")
    Array([[[-1., -2., -4.]]], dtype=float32)

The output at batch n, feature o and place y is the sum, over features c and places k of the kernel, of
`lhs[n, c, y * stride + k * gap - low] * rhs[o, c, k]`, where `lhs` has `lhs_dilation - 1` gaps between its elements,
and zeros around them. Groups split features (of `lhs` and the output) or the batch of `lhs` and the output's
features. Both derivatives are convolutions: strides become gaps, and groups of features groups of batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from anima.core import dtypes
from anima.core.avals import Shape, ShapedArray, inverse_order
from anima.core.dims import index_of
from anima.core.primitive import Linear, ShardingRule, Work, Zero
from anima.core.sharding_rules import dims
from anima.core.trace import aval_of
from anima.ops import reference
from anima.ops.broadcast import full, shape_of
from anima.ops.contract import Bilinear, canonicalize_precision, working_dtype
from anima.ops.elementwise import convert
from anima.ops.placing import as_asked
from anima.ops.shape import moveaxis, pad_p, reshape, rev
from anima.ops.window import dilated, padtype_to_pads

Pads = tuple[tuple[int, int], ...]


class ConvDimensionNumbers(NamedTuple):
    """Where the axes of a convolution are: those of batch, feature and space of `lhs` and of the output, those of
    output feature, input feature and space of `rhs`."""

    lhs_spec: Shape
    rhs_spec: Shape
    out_spec: Shape


ConvGeneralDilatedDimensionNumbers = tuple[str, str, str] | ConvDimensionNumbers | None


# ---------------------------------------------------------------- layouts and shapes


def conv_general_permutations(dimension_numbers: Sequence[str]) -> tuple[Shape, Shape, Shape]:
    """The axes of `lhs`, `rhs` and output that three strings such as ("NHWC", "HWIO", "NHWC") name.

    Each is in the order of `ConvDimensionNumbers`, space in the order of the second string. TypeError for strings
    without their letters (N and C, O and I), or with different letters for space.

    >>> lax.conv_general_permutations(("NHWC", "HWIO", "NCHW"))
    ((0, 3, 1, 2), (3, 2, 0, 1), (0, 1, 2, 3))
    """
    lhs, rhs, out = dimension_numbers
    for number, (text, letters) in enumerate(((lhs, "NC"), (rhs, "OI"), (out, "NC"))):
        if any(text.count(letter) != 1 for letter in letters) or len(set(text)) != len(text):
            raise TypeError(f"convolution dimension_numbers[{number}] must contain the characters '{letters[0]}' and "
                            f"'{letters[1]}' exactly once, got {text}.")
    if not set(lhs) - set("NC") == set(rhs) - set("OI") == set(out) - set("NC"):
        raise TypeError("convolution dimension_numbers elements must each have the same set of spatial characters, "
                        f"got {tuple(dimension_numbers)}.")
    space = [letter for letter in rhs if letter not in "OI"]
    return tuple(tuple(map(text.index, (*first, *space)))  # type: ignore[return-value]
                 for text, first in ((lhs, "NC"), (rhs, "OI"), (out, "NC")))


def conv_dimension_numbers(lhs_shape: Shape, rhs_shape: Shape, dimension_numbers: Any) -> ConvDimensionNumbers:
    """Dimension numbers from three strings (see `conv_general_permutations`), or from None: batch (output feature),
    feature (input feature), then space. TypeError for anything else, or strings that do not fit the shapes.

    >>> lax.conv_dimension_numbers((1, 8, 3), (2, 3, 5), ("NWC", "WIO", "NWC"))
    ConvDimensionNumbers(lhs_spec=(0, 2, 1), rhs_spec=(2, 1, 0), out_spec=(0, 2, 1))
    """
    if isinstance(dimension_numbers, ConvDimensionNumbers):
        return dimension_numbers
    if len(lhs_shape) != len(rhs_shape):
        raise TypeError(f"convolution requires lhs and rhs ndim to be equal, got {len(lhs_shape)} and "
                        f"{len(rhs_shape)}.")
    if dimension_numbers is None:
        iota = tuple(range(len(lhs_shape)))
        return ConvDimensionNumbers(iota, iota, iota)
    if not isinstance(dimension_numbers, (list, tuple)):
        raise TypeError("convolution dimension_numbers must be tuple/list or None, got "
                        f"{type(dimension_numbers)}.")
    if len(dimension_numbers) != 3:
        raise TypeError(f"convolution dimension_numbers list/tuple must be length 3, got {len(dimension_numbers)}.")
    if not all(isinstance(text, str) for text in dimension_numbers):
        raise TypeError("convolution dimension_numbers elements must be strings, got "
                        f"{tuple(map(type, dimension_numbers))}.")
    for number, text in enumerate(dimension_numbers):
        if len(text) != len(lhs_shape):
            raise TypeError(f"convolution dimension_numbers[{number}] must have len equal to the ndim of lhs and rhs, "
                            f"got {len(text)} for lhs and rhs shapes {tuple(lhs_shape)} and {tuple(rhs_shape)}.")
    return ConvDimensionNumbers(*conv_general_permutations(dimension_numbers))


def conv_shape_tuple(lhs_shape: Shape, rhs_shape: Shape, strides: Sequence[int], pads: Any,
                     batch_group_count: int = 1) -> Shape:
    """The output's shape (batch, feature, space), for shapes in the order of `ConvDimensionNumbers`. TypeError or
    ValueError for sizes that do not fit.

    >>> lax.conv_shape_tuple((2, 3, 8, 8), (16, 3, 3, 3), (2, 2), "SAME")
    (2, 16, 4, 4)
    """
    if isinstance(pads, str):
        pads = padtype_to_pads(lhs_shape[2:], rhs_shape[2:], strides, pads)
    if len(pads) != len(lhs_shape) - 2:
        raise TypeError(f"Wrong number of explicit pads for convolution: expected {len(lhs_shape) - 2}, got "
                        f"{len(pads)}.")
    if len(strides) != len(pads) or len(rhs_shape) != len(lhs_shape):
        raise TypeError(f"convolution requires shapes of one rank and a stride for each dimension of space, got "
                        f"{tuple(lhs_shape)}, {tuple(rhs_shape)} and strides {tuple(strides)}.")
    if lhs_shape[0] % batch_group_count:
        raise ValueError(f"batch_group_count must divide the batch size, but {batch_group_count} does not divide "
                         f"{lhs_shape[0]}.")
    room = [n + low + high - k for n, k, (low, high) in zip(lhs_shape[2:], rhs_shape[2:], pads, strict=True)]
    space = (max(r // s + 1, 0) for r, s in zip(room, strides, strict=True))
    return lhs_shape[0] // batch_group_count, rhs_shape[0], *space


def _permuted(shape: Sequence[int], order: Sequence[int]) -> Shape:
    return tuple(index_of(shape[d]) for d in order)


def conv_general_shape_tuple(lhs_shape: Shape, rhs_shape: Shape, window_strides: Sequence[int], padding: Any,
                             dimension_numbers: Any) -> Shape:
    """The shape of the output of a convolution without dilation, in the layout that `dimension_numbers` name.

    >>> lax.conv_general_shape_tuple((2, 8, 8, 3), (3, 3, 3, 16), (2, 2), "SAME", ("NHWC", "HWIO", "NHWC"))
    (2, 4, 4, 16)
    """
    lhs, rhs, out = conv_general_permutations(dimension_numbers)
    shape = conv_shape_tuple(_permuted(lhs_shape, lhs), _permuted(rhs_shape, rhs), window_strides, padding)
    return _permuted(shape, inverse_order(out))


def conv_transpose_shape_tuple(lhs_shape: Shape, rhs_shape: Shape, window_strides: Sequence[int], padding: Any,
                               dimension_numbers: Any) -> Shape:
    """The shape of the output of the adjoint of a convolution with this padding ("SAME", "VALID" or pairs).

    >>> lax.conv_transpose_shape_tuple((2, 4, 4, 3), (3, 3, 3, 16), (2, 2), "SAME", ("NHWC", "HWIO", "NHWC"))
    (2, 8, 8, 16)
    """
    lhs, rhs, out = conv_general_permutations(dimension_numbers)
    given, kernel = _permuted(lhs_shape, lhs), _permuted(rhs_shape, rhs)
    if isinstance(padding, str):
        padding = [conv_transpose_padding(k, s, padding) for k, s in zip(kernel[2:], window_strides, strict=True)]
    spread = [dilated(n, s) for n, s in zip(given[2:], window_strides, strict=True)]
    shape = conv_shape_tuple((*given[:2], *spread), kernel, (1,) * len(spread), padding)
    return _permuted(shape, inverse_order(out))


def conv_transpose_padding(size: int, stride: int, padding: str) -> tuple[int, int]:
    """The padding of the convolution that is the adjoint of one with "SAME" or "VALID", along one dimension."""
    kind = padding.upper()
    if kind == "SAME":
        total = size + stride - 2
        low = size - 1 if stride > size - 1 else -(-total // 2)
    else:
        total = size + stride - 2 + max(size - stride, 0)
        low = size - 1
    return low, total - low


# ---------------------------------------------------------------- the primitive


def _split(x: Any, axis: int, count: int) -> Any:
    """An axis as two, the first one of size `count`."""
    shape = shape_of(x)
    return reshape(x, (*shape[:axis], count, shape[axis] // count, *shape[axis + 1:]))


def _joined(x: Any, axis: int) -> Any:
    """An axis and the next one as one."""
    shape = shape_of(x)
    return reshape(x, (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2:]))


def _into(x: Any, source: int, axis: int) -> Any:
    """The axis `source` made the slow part of `axis` (counted without it)."""
    return _joined(moveaxis(x, source, axis), axis)


def _into_groups(x: Any, source: int, axis: int, groups: int) -> Any:
    """The axis `source` made a part of `axis` (counted without it), inside of its groups."""
    if groups == 1:
        return _into(x, source, axis)
    x = _split(moveaxis(x, source, 0), axis + 1, groups)
    return _joined(_joined(moveaxis(x, 0, axis + 1), axis + 1), axis)


class Convolution(Bilinear):
    """The general convolution: any layout, strides, dilations, groups; its padding in numbers."""

    def infer(self, lhs: ShapedArray, rhs: ShapedArray, *, dimension_numbers: ConvDimensionNumbers,
              window_strides: Shape, padding: Pads, lhs_dilation: Shape, rhs_dilation: Shape,
              feature_group_count: int = 1, batch_group_count: int = 1, precision: Any = None,
              preferred_element_type: Any = None) -> ShapedArray:
        _check(lhs, rhs, dimension_numbers, window_strides, padding, lhs_dilation, rhs_dilation,
               feature_group_count, batch_group_count)
        lhs_shape = _permuted(lhs.shape, dimension_numbers.lhs_spec)
        rhs_shape = _permuted(rhs.shape, dimension_numbers.rhs_spec)
        space = tuple(map(dilated, lhs_shape[2:], lhs_dilation))
        if any(n + low + high < 0 for n, (low, high) in zip(space, padding, strict=True)):
            raise ValueError("Negative padding is larger than the size of the corresponding dimension: got "
                             f"padding={padding} for lhs_shape[2:]={lhs_shape[2:]}")
        window = tuple(map(dilated, rhs_shape[2:], rhs_dilation))
        shape = conv_shape_tuple((*lhs_shape[:2], *space), (*rhs_shape[:2], *window), window_strides, padding,
                                 batch_group_count)
        dtype = lhs.dtype
        if preferred_element_type is not None and preferred_element_type != dtype:
            _check_preferred(dtype, preferred_element_type)
            dtype = preferred_element_type
        weak = lhs.weak_type and rhs.weak_type
        return ShapedArray(_permuted(shape, inverse_order(dimension_numbers.out_spec)), dtype, weak)

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray],
                      *, dimension_numbers: ConvDimensionNumbers, feature_group_count: int = 1,
                      batch_group_count: int = 1, **params: Any) -> ShardingRule:
        (lhs, rhs), numbers, one = avals, dimension_numbers, feature_group_count == batch_group_count == 1
        labels: list[list[Any]] = [[None] * a.ndim for a in (lhs, rhs, outs[0])]
        for place, label in ((0, "batch"), (1, "in")):
            labels[0][numbers.lhs_spec[place]] = label if one or (place == 0 and batch_group_count == 1) else None
        for place, label in ((0, "out"), (1, "in")):
            labels[1][numbers.rhs_spec[place]] = label if one else None
        labels[2][numbers.out_spec[0]] = "batch" if batch_group_count == 1 else None
        labels[2][numbers.out_spec[1]] = "out" if one else None
        return ShardingRule([dims(*labels[0]), dims(*labels[1])], [dims(*labels[2])], combines="add")

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             *, dimension_numbers: ConvDimensionNumbers, **params: Any) -> Work:
        terms = math.prod(avals[1].shape) // max(avals[1].shape[dimension_numbers.rhs_spec[0]], 1)
        return Work(2.0 * outs[0].size * terms)

    def eval(self, lhs: np.ndarray, rhs: np.ndarray, *, preferred_element_type: Any = None, precision: Any = None,
             **params: Any) -> np.ndarray:
        dtype = lhs.dtype if preferred_element_type is None else preferred_element_type
        work = working_dtype(lhs.dtype, dtype)
        return reference.convert(_convolve(lhs.astype(work, copy=False), rhs.astype(work, copy=False), **params), dtype)

    def transpose(self, ct: Any, x: Any, y: Any, **params: Any) -> Sequence[Any]:
        linear = [isinstance(a, Linear) for a in (x, y)]
        if isinstance(ct, Zero) or 0 in shape_of(ct):
            return [Zero(a.aval) if is_linear else None for a, is_linear in zip((x, y), linear, strict=True)]
        aval = (x if linear[0] else y).aval
        other = y if linear[0] else x
        wide = aval_of(ct).dtype
        if wide != aval_of(other).dtype:
            other = convert(other, wide)
        out = (self._lhs_cotangent if linear[0] else self._rhs_cotangent)(ct, aval, other, **params)
        out = out if aval_of(out).dtype == aval.dtype else convert(out, aval.dtype)
        return [out, None] if linear[0] else [None, out]

    def _lhs_cotangent(self, ct: Any, aval: ShapedArray, rhs: Any, *, dimension_numbers: ConvDimensionNumbers,
                       window_strides: Shape, padding: Pads, lhs_dilation: Shape, rhs_dilation: Shape,
                       feature_group_count: int, batch_group_count: int, **params: Any) -> Any:
        """Each element's windows gather their cotangents, with the kernel reversed and its features exchanged."""
        lhs_spec, rhs_spec, out_spec = dimension_numbers
        groups = feature_group_count * batch_group_count
        if groups > 1:  # (groups x o, c) -> (groups x c, o)
            rhs = _split(rhs, rhs_spec[0], groups)
            inner = rhs_spec[1] + (rhs_spec[1] > rhs_spec[0])
            rhs = _into(rhs, rhs_spec[0], inner - 1 if inner > rhs_spec[0] else inner)
        pads = tuple(_lhs_pads(*p) for p in zip(
            _permuted(aval.shape, lhs_spec)[2:], _permuted(shape_of(rhs), rhs_spec)[2:],
            _permuted(shape_of(ct), out_spec)[2:], padding, window_strides, lhs_dilation, rhs_dilation, strict=True))
        out = self.bind(
            ct, rev(rhs, rhs_spec[2:]), dimension_numbers=ConvDimensionNumbers(
                out_spec, (rhs_spec[1], rhs_spec[0], *rhs_spec[2:]), lhs_spec),
            window_strides=lhs_dilation, padding=pads, lhs_dilation=window_strides, rhs_dilation=rhs_dilation,
            feature_group_count=groups, batch_group_count=1, **params)
        if batch_group_count > 1:  # features in groups are batches in groups
            out = _split(out, lhs_spec[1], batch_group_count)
            batch = lhs_spec[0] + (lhs_spec[0] > lhs_spec[1])
            out = _into(out, lhs_spec[1], batch - 1 if batch > lhs_spec[1] else batch)
        return out

    def _rhs_cotangent(self, ct: Any, aval: ShapedArray, lhs: Any, *, dimension_numbers: ConvDimensionNumbers,
                       window_strides: Shape, padding: Pads, lhs_dilation: Shape, rhs_dilation: Shape,
                       feature_group_count: int, batch_group_count: int, **params: Any) -> Any:
        """The cotangent moves over `lhs` as a kernel, batches and features exchanged."""
        lhs_spec, rhs_spec, out_spec = dimension_numbers
        if batch_group_count > 1:
            groups = {"feature_group_count": batch_group_count, "batch_group_count": 1}
        else:
            groups = {"feature_group_count": 1, "batch_group_count": feature_group_count}
        pads = []
        sizes = (_permuted(shape, spec)[2:] for shape, spec in zip(
            (shape_of(lhs), aval.shape, shape_of(ct)), dimension_numbers, strict=True))
        for n, k, m, (low, _), stride, apart, gap in zip(*sizes, padding, window_strides, lhs_dilation, rhs_dilation,
                                                         strict=True):
            pads.append((low, dilated(m, stride) + dilated(k, gap) - 1 - low - dilated(n, apart)))
        return self.bind(
            lhs, ct, dimension_numbers=ConvDimensionNumbers(*((s[1], s[0], *s[2:]) for s in (
                lhs_spec, out_spec, rhs_spec))),
            window_strides=rhs_dilation, padding=tuple(pads), lhs_dilation=lhs_dilation, rhs_dilation=window_strides,
            **groups, **params)

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *,
              dimension_numbers: ConvDimensionNumbers, feature_group_count: int, batch_group_count: int,
              **params: Any) -> tuple[Any, int]:
        (x, y), (dx, dy) = args, dims
        lhs_spec, rhs_spec, out_spec = dimension_numbers
        if not size:
            given = {"dimension_numbers": dimension_numbers, "feature_group_count": feature_group_count,
                     "batch_group_count": batch_group_count, **params}
            (one,) = self.abstract_out([a if d is None else a.update(shape=a.shape[:d] + a.shape[d + 1:])
                                        for a, d in zip(map(aval_of, args), dims, strict=True)], given)
            return full((0, *one.shape), 0, one.dtype), 0

        def apply(x: Any, y: Any, axis: int, groups: int, features: int, batches: int) -> tuple[Any, int]:
            """The convolution, the batch split off an axis of its result."""
            out = self.bind(x, y, dimension_numbers=dimension_numbers, feature_group_count=features,
                            batch_group_count=batches, **params)
            if groups == 1:
                return _split(out, axis, index_of(size)), axis
            out = _split(_split(out, axis, groups), axis + 1, index_of(size))
            return _joined(moveaxis(out, axis + 1, 0), axis + 1), 0

        if dx is not None and dy is not None:
            groups = feature_group_count * batch_group_count
            y = _into(y, dy, rhs_spec[0])
            if batch_group_count > 1:
                return apply(_into(x, dx, lhs_spec[0]), y, out_spec[1], 1, 1, size * groups)
            return apply(_into(x, dx, lhs_spec[1]), y, out_spec[1], 1, size * groups, 1)
        if dx is not None:
            x = _into_groups(x, dx, lhs_spec[0], batch_group_count)
            return apply(x, y, out_spec[0], 1, feature_group_count, batch_group_count)
        assert dy is not None
        groups = feature_group_count * batch_group_count
        y = _into_groups(y, dy, rhs_spec[0], groups)
        return apply(x, y, out_spec[1], groups, feature_group_count, batch_group_count)


def _lhs_pads(n: int, k: int, m: int, pads: tuple[int, int], stride: int, apart: int, gap: int) -> tuple[int, int]:
    """The padding of cotangents along one dimension."""
    window = dilated(k, gap)
    low = window - 1 - pads[0]
    return low, dilated(n, apart) + window - 1 - dilated(m, stride) - low


def _convolve(lhs: np.ndarray, rhs: np.ndarray, *, dimension_numbers: ConvDimensionNumbers, window_strides: Shape,
              padding: Pads, lhs_dilation: Shape, rhs_dilation: Shape, feature_group_count: int,
              batch_group_count: int) -> np.ndarray:
    """The convolution as products of matrices, one for each place in the kernel, or in the output if it has fewer."""
    groups = feature_group_count * batch_group_count
    x, w = lhs.transpose(dimension_numbers.lhs_spec), rhs.transpose(dimension_numbers.rhs_spec)
    config = tuple((low, high, apart - 1) for (low, high), apart in zip(padding, lhs_dilation, strict=True))
    x = pad_p.eval(x, np.zeros((), x.dtype), padding_config=((0, 0, 0), (0, 0, 0), *config))
    window = w.shape[2:]
    shape = conv_shape_tuple(x.shape, (*w.shape[:2], *map(dilated, window, rhs_dilation)), window_strides,
                             ((0, 0),) * len(window), batch_group_count)
    batch, places, features = shape[0], shape[2:], w.shape[1]
    # groups, batch, feature, space; groups, feature, output feature, space
    x = x.reshape(batch_group_count, batch, feature_group_count, features, *x.shape[2:])
    x = x.transpose(0, 2, 1, 3, *range(4, x.ndim)).reshape(groups, batch, features, *x.shape[4:])
    w = np.moveaxis(w.reshape(groups, w.shape[0] // groups, *w.shape[1:]), 1, 2)
    out: Any = np.zeros((groups, batch, *places, w.shape[2]), x.dtype)
    rest: Any = ...
    vectors = len(places) == 1 == math.prod((*x.shape[:3], w.shape[2], *window_strides, *rhs_dilation))
    if out.size and vectors and x.dtype.kind in "fc":
        out[0, 0, :, 0] = np.correlate(x.ravel(), np.conj(w.ravel()))  # which conjugates
    elif out.size and math.prod(window) <= math.prod(places):
        for tap in np.ndindex(*window):
            seen = x[(rest, *(slice(k * gap, k * gap + (m - 1) * step + 1, step) for k, gap, m, step in zip(
                tap, rhs_dilation, places, window_strides, strict=True)))]
            rows = np.moveaxis(seen, 2, -1).reshape(groups, batch * math.prod(places), features)
            term = np.matmul(rows, w[(rest, *tap)]).reshape(out.shape)
            np.add(out, term, out=out)  # of booleans: or
    elif out.size:
        terms = features * math.prod(window)
        flat = np.moveaxis(w, 2, -1).reshape(groups, terms, w.shape[2])
        for place in np.ndindex(*places):
            seen = x[(rest, *(slice(y * step, y * step + dilated(k, gap), gap) for y, gap, k, step in zip(
                place, rhs_dilation, window, window_strides, strict=True)))]
            out[(slice(None), slice(None), *place)] = np.matmul(seen.reshape(groups, batch, terms), flat)
    out = np.moveaxis(out, 0, -2).reshape(batch, *places, shape[1])
    return np.moveaxis(out, -1, 1).transpose(inverse_order(dimension_numbers.out_spec))


def _check_preferred(dtype: Any, preferred: Any) -> None:
    """TypeError if a convolution of arrays of `dtype` cannot be asked for as `preferred`."""
    if dtype == np.bool_ and not dtypes.issubdtype(preferred, np.complexfloating):
        return
    fits = any(dtypes.issubdtype(dtype, a) and dtypes.issubdtype(preferred, b) for a, b in (
        (np.integer, np.integer), (np.integer, np.floating), (np.floating, np.floating),
        (np.complexfloating, np.complexfloating)))
    if not fits:
        raise TypeError(f"`preferred_element_type` must be of the kind of the arguments (or floating, for integers), "
                        f"got {dtypes.name(preferred)} for {dtypes.name(dtype)}.")
    if dtypes.itemsize_bits(preferred) < dtypes.itemsize_bits(dtype):
        raise TypeError("`preferred_element_type` must not be narrower than the original type, got "
                        f"{dtypes.name(preferred)} for {dtypes.name(dtype)}.")


def _check(lhs: ShapedArray, rhs: ShapedArray, numbers: ConvDimensionNumbers, strides: Shape, padding: Pads,
           lhs_dilation: Shape, rhs_dilation: Shape, feature_groups: int, batch_groups: int) -> None:
    """ValueError or TypeError for a convolution that makes no sense."""
    name, ndim = "conv_general_dilated", lhs.ndim
    if rhs.ndim != ndim:
        raise ValueError(f"{name} lhs and rhs must have the same number of dimensions, but got {lhs.shape} and "
                         f"{rhs.shape}.")
    if lhs.dtype != rhs.dtype:
        raise TypeError(f"lax.{name} requires arguments to have the same dtypes, got {dtypes.name(lhs.dtype)}, "
                        f"{dtypes.name(rhs.dtype)}.")
    if ndim < 2 or any(sorted(spec) != list(range(ndim)) for spec in numbers):
        raise ValueError(f"{name} dimension_numbers must permute the axes of operands of at least two dimensions, "
                         f"got {numbers} for shapes {lhs.shape} and {rhs.shape}.")
    for what, values in (("window_strides", strides), ("padding", padding), ("lhs_dilation", lhs_dilation),
                         ("rhs_dilation", rhs_dilation)):
        if len(values) != ndim - 2:
            raise ValueError(f"{name} window and {what} must have the same number of dimensions, but got {ndim - 2} "
                             f"and {len(values)}")
    if any(s < 1 for s in strides):
        raise ValueError(f"{name} window_strides must be positive, got {strides}.")
    if any(d < 1 for d in (*lhs_dilation, *rhs_dilation)):
        raise TypeError(f"All dilations must be positive, got {lhs_dilation} and {rhs_dilation}.")
    for what, count in (("feature_group_count", feature_groups), ("batch_group_count", batch_groups)):
        if count < 1:
            raise ValueError(f"{name} {what} must be a positive integer, got {count}.")
    if feature_groups > 1 < batch_groups:
        raise ValueError("At most one of batch_group_count and feature_group_count may be > 1, got "
                         f"batch_group_count={batch_groups} and feature_group_count={feature_groups}")
    batch, features = (lhs.shape[d] for d in numbers.lhs_spec[:2])
    outputs, inputs = (rhs.shape[d] for d in numbers.rhs_spec[:2])
    if features % feature_groups or features // feature_groups != inputs:
        raise ValueError(f"{name} lhs feature dimension size divided by feature_group_count must equal the rhs input "
                         f"feature dimension size, but {features} // {feature_groups} != {inputs}.")
    if batch % batch_groups:
        raise ValueError(f"{name} batch_group_count must divide lhs batch dimension size, but {batch_groups} does not "
                         f"divide {batch}.")
    for what, count in (("feature_group_count", feature_groups), ("batch_group_count", batch_groups)):
        if outputs % count:
            raise ValueError(f"{name} rhs output feature dimension size must be a multiple of {what}, but {outputs} "
                             f"is not a multiple of {count}.")


conv_general_dilated_p = Convolution("conv_general_dilated")


# ---------------------------------------------------------------- for users


def conv_general_dilated(lhs: Any, rhs: Any, window_strides: Sequence[int], padding: Any,
                         lhs_dilation: Sequence[int] | None = None, rhs_dilation: Sequence[int] | None = None,
                         dimension_numbers: Any = None, feature_group_count: int = 1, batch_group_count: int = 1,
                         precision: Any = None, preferred_element_type: Any = None, out_sharding: Any = None) -> Any:
    """The convolution of `lhs` (batch, features, space) by `rhs` (output features, features, space).

    Args:
      window_strides: steps between windows, by dimension of space.
      padding: "SAME", "SAME_LOWER" or "VALID" (see `padtype_to_pads`), or a pair (low, high) for each dimension of
        space; negative ones drop elements.
      lhs_dilation, rhs_dilation: distances of the elements of `lhs` and of the kernel; 1 by default.
      dimension_numbers: the layout, as three strings such as ("NHWC", "HWIO", "NHWC"), or `ConvDimensionNumbers`.
      feature_group_count, batch_group_count: parts of features, or of the batch, that are convolved by themselves.
      preferred_element_type: the result's dtype, if not that of the arguments. Floats below 32 bits add up in float32.

    Returns an array (batch, output features, space), in the layout of `dimension_numbers`. ValueError or TypeError for
    sizes or dtypes that do not fit.

    >>> lax.conv_general_dilated(jnp.ones((1, 4, 4, 3)), jnp.ones((3, 3, 3, 8)), (2, 2), "SAME",
    ...                          dimension_numbers=("NHWC", "HWIO", "NHWC")).shape
    (1, 2, 2, 8)
    """
    if out_sharding is not None:
        return as_asked("conv_general_dilated", None, out_sharding, conv_general_dilated, lhs, rhs, window_strides,
                        padding, lhs_dilation, rhs_dilation, dimension_numbers, feature_group_count, batch_group_count,
                        precision, preferred_element_type)
    lhs_shape, rhs_shape = shape_of(lhs), shape_of(rhs)
    numbers = conv_dimension_numbers(lhs_shape, rhs_shape, dimension_numbers)
    ones = (1,) * (len(lhs_shape) - 2)
    strides, lhs_dilation, rhs_dilation = (
        tuple(map(int, ones if v is None else v)) for v in (window_strides, lhs_dilation, rhs_dilation))
    if isinstance(padding, str):
        if any(d != 1 for d in lhs_dilation):
            raise ValueError("String padding is not implemented for transposed convolution using this op. Please "
                             "either exactly specify the required padding or use conv_transpose.")
        window = _permuted(rhs_shape, numbers.rhs_spec)[2:]
        if not len(strides) == len(rhs_dilation) == len(window):
            raise ValueError("conv_general_dilated window and window_strides must have the same number of dimensions, "
                             f"but got {len(window)} and {len(strides)}")
        padding = padtype_to_pads(_permuted(lhs_shape, numbers.lhs_spec)[2:],
                                  tuple(map(dilated, window, rhs_dilation)), strides, padding)
    else:
        try:
            padding = tuple((index_of(low), index_of(high)) for low, high in padding)
        except (TypeError, ValueError):
            raise ValueError("padding argument to conv_general_dilated should be a string or a sequence of (low, high) "
                             f"pairs, got {padding}") from None
    preferred = None if preferred_element_type is None else dtypes.canonicalize_dtype(preferred_element_type)
    return conv_general_dilated_p.bind(
        lhs, rhs, window_strides=strides, padding=tuple(padding), lhs_dilation=lhs_dilation,
        rhs_dilation=rhs_dilation, dimension_numbers=numbers, feature_group_count=int(feature_group_count),
        batch_group_count=int(batch_group_count), precision=canonicalize_precision(precision),
        preferred_element_type=preferred)
