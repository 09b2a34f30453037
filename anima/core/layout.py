"""Orders of axes in memory: all arrays are row-major here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anima.core.avals import ShapedArray
from anima.util import record


class AutoLayout:
    """The order that the compiler chooses."""

    def __repr__(self) -> str:
        return "AUTO"


AUTO = AutoLayout()


@record
class Layout:
    """An order of axes: `major_to_minor` from the one with the longest steps on; `tiling` of the last ones."""

    major_to_minor: tuple[int, ...]
    tiling: tuple[tuple[int, ...], ...] | None = None
    sub_byte_element_size_in_bits: int = 0

    AUTO = AUTO

    @staticmethod
    def from_pjrt_layout(pjrt_layout: Any) -> Layout:
        """The layout that an object with `minor_to_major` speaks of."""
        return Layout(tuple(pjrt_layout.minor_to_major())[::-1])

    def check_compatible_aval(self, aval_shape: Sequence[int]) -> None:
        """ValueError unless it orders the axes of such a shape."""
        if sorted(self.major_to_minor) != list(range(len(aval_shape))):
            raise ValueError("Length of major_to_minor and the rank of the value should match. Got "
                             f"major_to_minor={self.major_to_minor} and shape={tuple(aval_shape)}")

    def update(self, **kwargs: Any) -> Layout:
        """The layout with other fields."""
        fields = {name: getattr(self, name) for name in ("major_to_minor", "tiling", "sub_byte_element_size_in_bits")}
        return Layout(**{**fields, **kwargs})


@record
class Format:
    """How an array lies in memory, and where: either may be None, which is of no consequence."""

    layout: Layout | AutoLayout | None = None
    sharding: Any = None

    def is_row_major(self) -> bool:
        """Whether arrays lie so here, or may."""
        return not isinstance(self.layout, Layout) or self.layout.major_to_minor == tuple(
            range(len(self.layout.major_to_minor)))


def row_major(aval: ShapedArray, sharding: Any = None) -> Format:
    """How an array of this type lies in memory."""
    return Format(Layout(tuple(range(aval.ndim))), sharding)
