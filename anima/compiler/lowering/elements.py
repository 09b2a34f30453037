"""Small arrays of loops as values of their elements: which are, and why.

    s: f32[3]; stack([10 * (s[1] - s[0]), ...])        three scalars: nothing is put together and taken apart
    s: f32[3]; s + 0.1 * sin(s)                        an array: its elements are computed at once

What a loop's body does with its small arrays decides for all of them, its carry included.
"""

from __future__ import annotations

import math

import numpy as np

from anima.compiler.ir.costs import operation_cost
from anima.compiler.lowering.array import Indices, Scope
from anima.compiler.lowering.reduce import REDUCTIONS
from anima.core.avals import Shape
from anima.core.jaxpr import Eqn, Jaxpr
from anima.ops.family import Elementwise

FEW = 8               # elements of an array that they may stand for
MOST_ELEMENTS = 1000  # of all such arrays of a program
MOVE = 3.0            # nanoseconds, as `costs` counts, to move elements between lanes


def splits(jaxpr: Jaxpr) -> bool:
    """Whether small arrays are better taken apart: used element by element more than computed alike."""
    apart, alike, total = 0.0, 0.0, 0
    for eqn in jaxpr.eqns:
        size = max((v.aval.size for v in eqn.outvars), default=0)
        if size > FEW:
            continue
        total += size
        if isinstance(eqn.primitive, Elementwise):
            alike += (size - 1) * operation_cost(eqn.primitive.name)
        elif _takes_apart(eqn):
            apart += MOVE
    return apart > alike and total <= MOST_ELEMENTS


def _takes_apart(eqn: Eqn) -> bool:
    """Whether an equation takes elements apart, or puts them together."""
    moves = eqn.primitive.moves and not eqn.primitive.updates
    several = len(eqn.invars) > 1 or any(1 < v.aval.size <= FEW for v in eqn.invars)
    return several and (moves or eqn.primitive.name in REDUCTIONS)


def all_indices(scope: Scope, shape: Shape) -> list[Indices]:
    """All indices of a small array, in order."""
    assert math.prod(shape) <= FEW or not shape, shape
    return [tuple(map(scope.ix.const, index)) for index in np.ndindex(*shape)]
