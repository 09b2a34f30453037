"""Which operation is to come first. Outside of programs operations run in the order in which they were asked for; in
programs this is refused: compiled operations come in an order of the compiler's, effects aside, which keep theirs.

    schedule([a, b, c])
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from anima.core.trace import Tracer, aval_of
from anima.names import access


def control_dep(src: Any, dst: Any) -> None:
    """`src` is to be computed before `dst`: two arrays, which are there already.

    Raises:
      TypeError: for what is no array.
      NotImplementedError: for values of a program that is being traced.
    """
    for x in (src, dst):
        aval_of(x)
        if isinstance(x, Tracer):
            raise NotImplementedError("control_dep: the compiler chooses the order of operations without effects. What "
                                      "is to come later has to use what comes first.")


def schedule(ops: Sequence[Any]) -> None:
    """`control_dep` of each array and the next."""
    for src, dst in pairwise(ops):
        control_dep(src, dst)


globals().update(access(__name__, globals()))
