"""Which operation is to come first. Outside of programs operations run in the order in which they were asked for; in
programs this is a hint, which changes no value: on a CPU the compiler chooses the order of operations without effects.

    schedule([a, b, c])
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from anima.core.trace import aval_of
from anima.names import access


def control_dep(src: Any, dst: Any) -> None:
    """`src` is to be computed before `dst`: two arrays, or values of a program.

    Raises:
      TypeError: for what is no array.
    """
    for x in (src, dst):
        aval_of(x)


def schedule(ops: Sequence[Any]) -> None:
    """`control_dep` of each array and the next."""
    for src, dst in pairwise(ops):
        control_dep(src, dst)


globals().update(access(__name__, globals()))
