"""Orders of axes in memory: all arrays are row-major here, and what is asked for is checked and has no effect.

    with_layout_constraint(x, Layout(major_to_minor=(1, 0)))
"""

from __future__ import annotations

from typing import Any

from anima import tree
from anima.core.layout import AutoLayout as AutoLayout, Format as Format, Layout as Layout
from anima.core.trace import aval_of
from anima.names import access
from anima.ops.broadcast import as_array


def with_layout_constraint(x: Any, layouts: Any) -> Any:
    """`x`, a pytree of arrays, once `layouts` (one `Layout`, or a prefix of the tree with some) are found to fit.

    Raises:
      ValueError: for a layout of another rank than its array.
    """
    leaves, structure = tree.flatten(x)
    for leaf, layout in zip(leaves, tree.flatten_axes("with_layout_constraint layouts", structure, layouts),
                            strict=True):
        if isinstance(layout, Layout):
            try:
                layout.check_compatible_aval(aval_of(leaf).shape)
            except ValueError as error:
                raise ValueError("One of with_layout_constraint arguments is incompatible with its layout annotation "
                                 f"{layout}: {error}") from None
    return tree.map(as_array, x)

globals().update(access(__name__, globals()))
