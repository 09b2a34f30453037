"""Which operation is to come first: operations of a compiled program run in the order in which they were asked for,
where it could be seen.

    schedule([a, b, c])
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from anima.core.trace import aval_of
from anima.names import access


def control_dep(src: Any, dst: Any) -> None:
    """`src` is to be computed before `dst` (both are arrays).

    Nothing is recorded: one CPU has no transfers or collectives running beside other operations, whose order this is
    for; operations with effects keep their order by themselves.

    Raises:
      TypeError: for what is no array.
    """
    aval_of(src), aval_of(dst)


def schedule(ops: Sequence[Any]) -> None:
    """`control_dep` of each array and the next."""
    for src, dst in pairwise(ops):
        control_dep(src, dst)


globals().update(access(__name__, globals()))
