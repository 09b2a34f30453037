"""Programs that are compiled when they are called for the first time, if ever: for what hardly happens.

    { lambda ; a. let
        b = later[program={ lambda ; x. let y = sin x in (y,) }] a
      in (b,) }

Compiled code calls Python, which compiles the program. To transformations it is what the program consists of; so it is
to the compiler inside of loops, where such a call would cost too much, and for operands that are no numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.api.pjit import executable_of
from anima.core.avals import ShapedArray
from anima.core.jaxpr import ClosedJaxpr
from anima.core.stage import eval_jaxpr
from anima.transforms.composed import Composed
from anima.util import record


@record
class OpaqueProgram:
    """A program that passes over programs in parameters do not look into."""

    closed: ClosedJaxpr

    def __repr__(self) -> str:
        return repr(self.closed)


class Later(Composed):
    """`program.closed(*args)`."""

    on_call = True

    def body(self, params: dict[str, Any], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
        return params["program"].closed

    def eval(self, *args: np.ndarray, program: OpaqueProgram) -> list[np.ndarray]:
        return executable_of(program.closed, "later")(list(map(np.asarray, args)))


def _applied(*args: Any, program: OpaqueProgram) -> list[Any]:
    return eval_jaxpr(program.closed.jaxpr, program.closed.consts, *args)


later_p = Later("later", _applied, multiple_results=True)


def later(closed: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
    """The results of a program that is compiled when compiled code gets here."""
    return later_p.bind(*args, program=OpaqueProgram(closed))
