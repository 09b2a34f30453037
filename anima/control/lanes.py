"""Which mapped loops each lane runs through on its own, rather than all lanes each step together.

    vmap(scan(s: f32[3]; ...))    stacks f32[256,3], rearranged in memory at every step
                            ->    256 times: three numbers in registers for all steps

Lanes on their own read and write their parts of sequences in places far apart from each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from anima.core.avals import ShapedArray
from anima.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Var, subjaxprs
from anima.ops.broadcast import Movement
from anima.ops.family import Elementwise
from anima.ops.reduce import Reduce

FEW = 8             # elements of an array that stay in registers
_SAME_PLACE = 4096  # bytes: addresses so far apart share a place in a first-level cache ...
_PLACES = 16        # ... in which lines of memory of so many lanes have places of their own


def on_their_own(closed: ClosedJaxpr, sequences: Sequence[ShapedArray], length: int) -> bool:
    """Whether lanes of a scan run on their own: steps do no more than take small arrays apart, compute with their
    elements and put them together, or go through sequences. `sequences` are the elements of those that lanes have."""
    if closed.jaxpr.effects or not all(map(_few, (*closed.jaxpr.invars, *closed.jaxpr.constvars))):
        return False
    if any(_SAME_PLACE // math.gcd(length * a.size * a.dtype.itemsize, _SAME_PLACE) < _PLACES for a in sequences):
        return False
    apart = len(sequences) > 0
    for eqn in _equations(closed.jaxpr):
        simple = isinstance(eqn.primitive, (Elementwise, Movement, Reduce)) or list(subjaxprs(eqn.params))
        if not simple or not all(map(_few, eqn.outvars)):
            return False
        apart = apart or (eqn.primitive.moves and eqn.outvars[0].aval.size > 1)
    return apart


def _few(var: Var) -> bool:
    return isinstance(var.aval.dtype, np.dtype) and var.aval.size <= FEW


def _equations(jaxpr: Jaxpr) -> Iterator[Eqn]:
    """The equations of a program, those of the programs in it, and of what stands for a program."""
    for eqn in jaxpr.eqns:
        body = eqn.primitive.body
        programs = list(subjaxprs(eqn.params))
        if not programs and body is not None and not eqn.primitive.on_words and eqn.primitive.axis_names is None:
            programs = [body(eqn.params, [v.aval for v in eqn.invars])]
        else:
            yield eqn
        for inner in programs:
            yield from _equations(inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner)
