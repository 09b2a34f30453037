"""Costly functions of independent small values, done at once, as lanes of one vector.

    c = tanh a                                   s = concatenate[dimension=0] (reshape a) (reshape b)
    d = tanh b                            ->     t = tanh s
                                                 c = reshape (slice t);  d = reshape (slice t)

People write equations of motion, reaction rates and channels as one scalar each. Of a function that takes many
instructions a vector costs about what one value does. Equations that no value goes between are found by the number
of such functions on the longest way to them; the others keep their order as far as that allows.

Sines and cosines are alike: most of what one takes, the other takes, too.

After this pass no `LEAST` alike functions of small values are computed apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate

import numpy as np

from anima.compiler.rewriting.inline import has_programs, map_programs
from anima.core.avals import ShapedArray
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Var
from anima.core.primitive import Primitive
from anima.ops.elementwise import cos, sin
from anima.ops.family import Elementwise
from anima.ops.shape import concatenate_p, reshape_p, slice_p
from anima.util import exactly

LEAST = 4      # functions that are worth the instructions that bring them together
MOST = 64      # values at once: what registers hold
SMALL = 4      # elements of a value that has no vectors of its own
COSTLY = 10.0  # nanoseconds, about, of a function that is a polynomial at least


def together(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Brings costly functions of small values together, in a program and those of its loops and branches."""
    jaxpr = closed.jaxpr
    eqns = [e.replace(params=map_programs(e.params, together)) if has_programs(e.params) else e for e in jaxpr.eqns]
    costly = {id(e) for e in eqns if _is_costly(e)}
    first: dict[int, Sequence[Eqn]] = {}
    if len(costly) >= LEAST:
        levels = _levels(eqns, costly)
        groups: dict[object, list[Eqn]] = {}
        for eqn, level in zip(eqns, levels, strict=True):
            if id(eqn) in costly:
                groups.setdefault((level, *_kind(eqn)), []).append(eqn)
        first = {id(part[0]): part for group in groups.values() for part in _cut(group)}
    if not first:
        same = all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True))
        return closed if same else closed.replace(jaxpr=jaxpr.replace(eqns=eqns))
    gone = {id(e) for part in first.values() for e in part[1:]}
    out: list[Eqn] = []
    for number in sorted(range(len(eqns)), key=lambda n: (levels[n], id(eqns[n]) not in costly)):
        eqn = eqns[number]
        if id(eqn) not in gone:
            out += _joined(first[id(eqn)]) if id(eqn) in first else [eqn]
    return closed.replace(jaxpr=jaxpr.replace(eqns=out))


def _is_costly(eqn: Eqn) -> bool:
    """Whether an equation is a function of one small array of floats, and of numbers, that takes many instructions."""
    if not isinstance(eqn.primitive, Elementwise) or eqn.primitive.cost < COSTLY:
        return False
    arrays = [v.aval for v in eqn.invars if type(v) is Var]
    return (len(arrays) == 1 and 0 < arrays[0].size <= SMALL and arrays[0].dtype.kind == "f"
            and all(type(v) is Var or not v.aval.shape for v in eqn.invars))


def _array(eqn: Eqn) -> Var:
    """The operand that is not a number."""
    return next(v for v in eqn.invars if type(v) is Var)


def _kind(eqn: Eqn) -> tuple[object, ...]:
    """What two functions have in common whose values may be computed at once."""
    operands = [v.aval.dtype if type(v) is Var else (v.aval.dtype, v.val.tobytes())  # type: ignore[union-attr]
                for v in eqn.invars]
    return (sin if eqn.primitive is cos else eqn.primitive, *operands, *exactly(eqn.params))


def _levels(eqns: Sequence[Eqn], costly: set[int]) -> list[int]:
    """For each equation, the most costly functions on a way to its results; effects stay in their order."""
    level: dict[Var, int] = {}
    out, effects = [], 0
    for eqn in eqns:
        own = max((level.get(v, 0) for v in eqn.invars if type(v) is Var), default=0) + (id(eqn) in costly)
        if eqn.effects:
            own = effects = max(own, effects)
        level.update(dict.fromkeys(eqn.outvars, own))
        out.append(own)
    return out


def _cut(group: Sequence[Eqn]) -> list[Sequence[Eqn]]:
    """Parts of a group, each large enough to be worth it and small enough for registers."""
    parts: list[list[Eqn]] = [[]]
    size = 0
    for eqn in group:
        if size + _array(eqn).aval.size > MOST:
            parts.append([])
            size = 0
        parts[-1].append(eqn)
        size += _array(eqn).aval.size
    return [p for p in parts if len(p) >= LEAST]


@cache
def _vector(size: int, dtype: np.dtype) -> ShapedArray:
    return ShapedArray((size,), dtype)


def _joined(group: Sequence[Eqn]) -> list[Eqn]:
    """One equation for all of a group, with those that put its operand together and take its result apart."""
    first, source = group[0], group[0].source
    out: list[Eqn] = []

    def add(primitive: Primitive, operands: Sequence[Atom], size: int, dtype: np.dtype, **params: object) -> Var:
        result = Var(_vector(size, dtype))
        out.append(Eqn(primitive, list(operands), [result], params, source))
        return result

    arrays = list(dict.fromkeys(map(_array, group)))
    ends = dict(zip(arrays, accumulate(v.aval.size for v in arrays), strict=True))
    arrays += [arrays[-1]] * (LEAST - len(arrays))  # fewer would be put in place one by one
    parts = [add(reshape_p, [v], v.aval.size, v.aval.dtype, new_sizes=(v.aval.size,), dimensions=None) for v in arrays]
    total = sum(p.aval.size for p in parts)
    whole = add(concatenate_p, parts, total, parts[0].aval.dtype, dimension=0)
    dtype = first.outvars[0].aval.dtype
    values = {p: add(p, [whole if type(v) is Var else v for v in e.invars], total, dtype, **e.params)
              for p, e in {e.primitive: e for e in group}.items()}
    for eqn in group:
        array = _array(eqn)
        at, end = ends[array] - array.aval.size, ends[array]
        piece = add(slice_p, [values[eqn.primitive]], array.aval.size, dtype, start_indices=(at,), limit_indices=(end,),
                    strides=None)
        out.append(Eqn(reshape_p, [piece], list(eqn.outvars),
                       {"new_sizes": eqn.outvars[0].aval.shape, "dimensions": None}, eqn.source))
    return out
