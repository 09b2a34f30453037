"""Sums with what is zero but in a window, or at some places: these are added to in place.

    s = dynamic_update_slice 0.0 u i             w = dynamic_slice a i;  v = add_any w u
    b = add_any a s                      ->      b = dynamic_update_slice a v i

    s = scatter-add 0.0 k u                      b = scatter-add a k u
    b = add_any a s                      ->

    s = pad u 0.0 (0, 3);  t = pad v 0.0 (5, 0)  w = concatenate u v
    b = add_any a s;  c = add_any b t    ->      c = add_any a w

So are the derivatives of an array that many equations read a little of, and they are sums of whole arrays as
differentiation leaves them; the last ones are those of `roll`. Nothing else may need `s` or `a`, which is overwritten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np

from anima.compiler.rewriting.inline import has_programs, map_programs
from anima.core.avals import ShapedArray
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from anima.ops.elementwise import add_any
from anima.ops.index import dynamic_slice_p, dynamic_update_slice_p
from anima.ops.shape import concatenate_p

_SUMS = frozenset(("add", "add_any"))
_PLACED = frozenset(("dynamic_update_slice", "scatter-add", "pad"))
_SHARE = 2          # of an array's elements, one in so many at most
_PADDED_SHARE = 8   # and of one that is padded, which may not need memory of its own:
_LEAST = 512        # if it has so many elements, which are not in registers,
_WORK = 1 << 16     # and all of them have so many, or belong to a loop


def accumulate(closed: ClosedJaxpr, inner: bool = False) -> ClosedJaxpr:
    """Adds what stands at some places to those places alone, in a program and those of its loops and branches (which
    are `inner` ones)."""
    jaxpr, inside = closed.jaxpr, partial(accumulate, inner=True)
    eqns = [e.replace(params=map_programs(e.params, inside)) if has_programs(e.params) else e for e in jaxpr.eqns]
    eqns = _joined(jaxpr, eqns)
    found = [e for e in eqns if e.primitive.name in _PLACED and _is_small(e)]
    if not inner and sum(e.outvars[0].aval.size for e in found if e.primitive.name == "pad") < _WORK:
        found = [e for e in found if e.primitive.name != "pad"]
    if found and any(e.primitive.name in _SUMS for e in eqns):
        eqns = _accumulated(jaxpr, eqns, {e.outvars[0]: e for e in found})
    same = len(eqns) == len(jaxpr.eqns) and all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True))
    return closed if same else closed.replace(jaxpr=jaxpr.replace(eqns=eqns))


def _joined(jaxpr: Jaxpr, eqns: list[Eqn]) -> list[Eqn]:
    """The equations, where two arrays on zeros that are added one after the other, and of which one begins where the
    other ends, are the parts of one array."""
    pads = [e for e in eqns if e.primitive.name == "pad" and _is_on_zeros(e, set())]
    if len(pads) < 2:
        return eqns
    uses = _uses(jaxpr, eqns)
    places: dict[Atom, Eqn] = {e.outvars[0]: e for e in pads if uses[e.outvars[0]] == 1}
    sums: dict[Atom, Eqn] = {}
    gone: set[Atom] = set()
    out: list[Eqn] = []
    for eqn in eqns:
        if eqn.primitive.name in _SUMS:
            joined, needless = _join(eqn, places, sums)
            out += joined
            gone |= needless
            if uses[eqn.outvars[0]] == 1:
                sums[eqn.outvars[0]] = joined[-1]
        else:
            out.append(eqn)
    return [e for e in out if gone.isdisjoint(e.outvars)]


def _join(total: Eqn, places: dict[Atom, Eqn], sums: dict[Atom, Eqn]) -> tuple[list[Eqn], set[Atom]]:
    """The equations for a sum of two such arrays, or of one with a sum of the other; and what nothing needs then."""
    for a, b in (total.invars, total.invars[::-1]):
        second, inner = places.get(b), [sums[a].invars, sums[a].invars[::-1]] if a in sums else []
        for first, rest in ((a, []), *((y, [x]) for x, y in inner)):
            if second is not None and first in places and (found := _parts(places[first], second)) is not None:
                parts, axis = found
                whole = Var(total.outvars[0].aval) if rest else total.outvars[0]
                joined = Eqn(concatenate_p, parts, [whole], {"dimension": axis}, total.source)
                return [joined, total.replace(invars=[*rest, whole])] if rest else [joined], {a, b, first}
    return [total], set()


def _parts(a: Eqn, b: Eqn) -> tuple[list[Atom], int] | None:
    """The parts, in order, of which two arrays on zeros make up a whole one, and along which axis."""
    for first, second in ((a, b), (b, a)):
        ends = [[(low, high) for low, high, _ in e.params["padding_config"]] for e in (first, second)]
        sides = [d for d, (x, y) in enumerate(zip(*ends, strict=True)) if x != (0, 0) or y != (0, 0)]
        if len(sides) == 1:
            axis, = sides
            if ends[0][axis] == (0, second.invars[0].aval.shape[axis]) and (
                    ends[1][axis] == (first.invars[0].aval.shape[axis], 0)):
                return [first.invars[0], second.invars[0]], axis
    return None


def _uses(jaxpr: Jaxpr, eqns: Sequence[Eqn]) -> Counter[Var]:
    return Counter(v for atoms in (jaxpr.outvars, *(e.invars for e in eqns)) for v in atoms if type(v) is Var)


def _accumulated(jaxpr: Jaxpr, eqns: Sequence[Eqn], placed: dict[Var, Eqn]) -> list[Eqn]:
    uses = _uses(jaxpr, eqns)
    zeros: set[Atom] = set()
    for e in eqns:
        if e.primitive.name in ("broadcast_in_dim", "reshape") and (_is_zero(e.invars[0]) or e.invars[0] in zeros):
            zeros.add(e.outvars[0])
    # What is placed on zeros to make an array that one equation needs; and, of sums of such, those not written yet.
    parts: dict[Atom, list[Eqn]] = {v: [e] for v, e in placed.items()
                                    if uses[v] == 1 and _is_on_zeros(e, zeros)}
    waiting: dict[Atom, Eqn] = {}
    out: list[Eqn] = []

    def write(atoms: Sequence[Atom]) -> None:
        for v in atoms:
            if v in waiting:
                first, *rest = parts.pop(v)
                out.extend(_added(waiting.pop(v), first.outvars[0], rest))

    for eqn in eqns:
        found = _summands(eqn, uses, parts)
        if found is None:
            write(eqn.invars)
            out.append(eqn)
            continue
        whole, part = found
        added = parts.pop(part)
        waiting.pop(part, None)
        if whole in parts:
            waiting.pop(whole, None)
            parts[eqn.outvars[0]] = parts.pop(whole)
            parts[eqn.outvars[0]] += added
            waiting[eqn.outvars[0]] = eqn
        else:
            out += _added(eqn, whole, added)
    write(jaxpr.outvars)
    return out


def _summands(eqn: Eqn, uses: Counter[Var], parts: dict[Atom, list[Eqn]]) -> tuple[Atom, Atom] | None:
    """An array, and one of `parts` that is added to it; None if an equation is no such sum."""
    if eqn.primitive.name in _SUMS:
        for whole, part in (eqn.invars, eqn.invars[::-1]):
            if part in parts and part is not whole and whole.aval == part.aval and uses[whole] == 1:  # type: ignore[index]
                return whole, part
    return None


def _is_zero(atom: Atom) -> bool:
    return type(atom) is Literal and not atom.val


def _is_on_zeros(place: Eqn, zeros: set[Atom]) -> bool:
    if place.primitive.name == "pad":
        return _is_zero(place.invars[1]) and all(
            low >= 0 and high >= 0 and inner == 0 for low, high, inner in place.params["padding_config"])
    return place.invars[0] in zeros


def _is_small(place: Eqn) -> bool:
    """Whether so little is placed that the array's other elements are most of the work."""
    whole = place.outvars[0].aval.size
    if place.primitive.name == "pad":
        return place.invars[0].aval.size * _PADDED_SHARE <= whole >= _LEAST
    return place.invars[1 if place.primitive.name == "dynamic_update_slice" else 2].aval.size * _SHARE <= whole


def _window(place: Eqn) -> tuple[Atom, list[Atom]]:
    """What is placed in a window, and where that starts."""
    if place.primitive.name == "pad":
        return place.invars[0], [Literal(np.int32(low), ShapedArray((), np.dtype(np.int32)))
                                 for low, _, _ in place.params["padding_config"]]
    return place.invars[1], list(place.invars[2:])


def _added(total: Eqn, whole: Atom, places: Sequence[Eqn]) -> list[Eqn]:
    """The equations for `whole` and all that is placed on zeros."""
    out: list[Eqn] = []
    for place in places:
        result = Var(whole.aval) if place is not places[-1] else total.outvars[0]
        if place.primitive.name == "scatter-add":
            out.append(place.replace(invars=[whole, *place.invars[1:]], outvars=[result]))
        else:
            update, starts = _window(place)
            window, changed = Var(update.aval), Var(update.aval)
            out += [Eqn(dynamic_slice_p, [whole, *starts], [window], {"slice_sizes": update.aval.shape}, total.source),
                    Eqn(add_any, [window, update], [changed], {}, total.source),
                    Eqn(dynamic_update_slice_p, [whole, changed, *starts], [result], {}, total.source)]
        whole = result
    return out
