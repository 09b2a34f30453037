"""Records of convolutions. The reference goes from output to output, and through each sum term by term."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from anima.ops.convolution import ConvDimensionNumbers, conv_dimension_numbers, conv_general_dilated_p
from tests.op_records import ALL, FLOATS, Arg, Case, Record

Place = tuple[int, ...]


def by_hand(x: np.ndarray, w: np.ndarray, *, dimension_numbers: ConvDimensionNumbers, window_strides: Place,
            padding: Any, lhs_dilation: Place, rhs_dilation: Place, feature_group_count: int, batch_group_count: int,
            precision: Any = None, preferred_element_type: Any = None) -> np.ndarray:
    """A convolution from its definition, at every index of the output."""
    lhs, rhs, out = dimension_numbers
    if preferred_element_type is not None and x.dtype.kind in "iu":
        x, w = x.astype(preferred_element_type), w.astype(preferred_element_type)
    x, w = x.transpose(lhs), w.transpose(rhs)
    spread = [max((n - 1) * apart + 1, 0) if n else 0 for n, apart in zip(x.shape[2:], lhs_dilation, strict=True)]
    window = [max((n - 1) * gap + 1, 0) for n, gap in zip(w.shape[2:], rhs_dilation, strict=True)]
    places = [max((n + low + high - k) // step + 1, 0) for n, k, step, (low, high) in zip(
        spread, window, window_strides, padding, strict=True)]
    batch, outputs = x.shape[0] // batch_group_count, w.shape[0]
    result = np.zeros((batch, outputs, *places), x.dtype)

    def terms(place: Place) -> Iterator[tuple[Place, Place]]:
        """Places in the kernel, and those that they meet in x."""
        for tap in np.ndindex(*w.shape[2:]):
            met = [divmod(y * step + k * gap - low, apart) for y, step, k, gap, (low, _), apart in zip(
                place, window_strides, tap, rhs_dilation, padding, lhs_dilation, strict=True)]
            if all(rest == 0 and 0 <= at < n for (at, rest), n in zip(met, x.shape[2:], strict=True)):
                yield tap, tuple(at for at, _ in met)

    for n, o, *place in np.ndindex(*result.shape):
        group = o // (outputs // (feature_group_count * batch_group_count))
        row = group * batch + n if batch_group_count > 1 else n
        first = group * w.shape[1] if feature_group_count > 1 else 0
        total = result[(n, o, *place)]
        for tap, at in terms(tuple(place)):
            for c in range(w.shape[1]):
                product = x[(row, first + c, *at)] * w[(o, c, *tap)]
                total = total | product if x.dtype == np.bool_ else total + product
        result[(n, o, *place)] = total
    return result.transpose(np.argsort(out))


def params(x: Place, w: Place, layout: tuple[str, str, str] | None = None, **given: Any) -> dict[str, Any]:
    """All parameters of a convolution."""
    n = len(x) - 2
    return {"dimension_numbers": conv_dimension_numbers(x, w, layout), "window_strides": (1,) * n,
            "padding": ((0, 0),) * n, "lhs_dilation": (1,) * n, "rhs_dilation": (1,) * n, "feature_group_count": 1,
            "batch_group_count": 1, "precision": None, "preferred_element_type": None, **given}


FORMS: tuple[tuple[Place, Place, dict[str, Any]], ...] = (
    ((1, 2, 5), (3, 2, 2), {}),
    ((2, 3), (4, 3), {}),
    ((2, 4, 3), (2, 3, 2), {"layout": ("NWC", "WIO", "NWC"), "padding": ((2, -1),), "window_strides": (2,)}),
    ((1, 2, 4), (2, 2, 3), {"lhs_dilation": (3,), "padding": ((2, 1),), "window_strides": (2,), "rhs_dilation": (2,)}),
    ((1, 4, 3), (4, 2, 2), {"feature_group_count": 2}),
    ((4, 1, 3), (2, 1, 2), {"batch_group_count": 2, "lhs_dilation": (2,)}),
    ((1, 3, 4, 2), (2, 2, 2, 3), {"layout": ("NHWC", "HWIO", "NHWC"), "padding": ((1, 0), (0, 1))}),
    ((3, 2, 1, 2), (2, 2, 1, 2), {"layout": ("WNHC", "OIHW", "CNHW"), "rhs_dilation": (1, 2),
                                  "padding": ((0, 0), (2, 2))}),
    ((1, 1, 2, 2, 2), (2, 1, 1, 2, 2), {"padding": ((0, 0), (1, 0), (0, 1))}),
    ((2, 2, 0), (3, 2, 1), {"padding": ((1, 1),)}),
    ((0, 2, 3), (3, 2, 2), {}),
    ((1, 0, 3), (2, 0, 2), {}),
    ((1, 2, 2), (2, 2, 3), {}),
)
LARGER: tuple[tuple[Place, Place, dict[str, Any]], ...] = (  # each runs in a way of its own when compiled
    ((1, 5, 4, 8), (3, 3, 8, 4), {"layout": ("NHWC", "HWIO", "NHWC"), "padding": ((1, 1), (1, 1))}),
    ((1, 8, 5, 4), (4, 8, 3, 3), {"padding": ((1, 1), (1, 1)), "lhs_dilation": (2, 1)}),
    ((2, 3, 4, 16), (2, 2, 3, 4), {"layout": ("CHWN", "IHWO", "HWNC"), "padding": ((0, 0), (1, 0))}),
    ((2, 4, 5, 2), (2, 4, 4, 16), {"layout": ("CHWN", "IHWO", "HWNC"), "padding": ((1, 0), (1, 0))}),
    ((1, 5, 4, 8), (3, 2, 1, 8), {"layout": ("NHWC", "HWIO", "NHWC"), "feature_group_count": 8,
                                  "padding": ((1, 1), (1, 0))}),
    ((2, 5, 6, 8), (2, 4, 5, 8), {"layout": ("CHWN", "IHWO", "HWNC"), "batch_group_count": 8}),
    ((2, 3, 2, 2), (6, 3, 1, 1), {}),
)


def cases() -> tuple[Case, ...]:
    out = []
    for number, (x, w, given) in enumerate(FORMS + LARGER):
        plain = number < len(FORMS) and math.prod(x) * math.prod(w) <= 200
        out.append(Case((Arg(x, 0.5, 3), Arg(w, 0.5, 3)), params(x, w, **given), plain=plain,
                        only=None if plain or number < len(FORMS) else ("float32", "float64", "int32", "complex64")))
    return tuple(out)


WIDER = params((1, 2, 4), (2, 2, 2), preferred_element_type=np.dtype("float64"))
CONVOLUTIONS = (
    Record(conv_general_dilated_p, by_hand, (
        *cases(), Case((Arg((1, 2, 4), 0.5, 3), Arg((2, 2, 2), 0.5, 3)), WIDER, only=FLOATS)), ALL,
           ulps=32, complex_ulps=64),
)
