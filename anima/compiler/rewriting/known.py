"""Reads, and sums on zeros, at places that are known before the program runs: they are slices.

    i = rem (add (iota 200) 1) 200                    a = slice[1:200] x;  b = slice[0:1] x
    y = gather x i                             ->     y = concatenate a b

    g = scatter-add 0.0 i y                    ->     a = slice[199:200] y;  b = slice[0:199] y
                                                      g = concatenate a b

Neighbours on a ring are written so, and columns in another order; the second is the first one's derivative. Of slices
it is known where they begin, so that they are loaded as vectors, and small ones are in registers. Places are made of
numbers and counters by integer arithmetic; those that a loop or branch is given from outside are known in it, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from anima.compiler.rewriting.inline import has_programs, map_programs
from anima.compiler.rewriting.sliding import counted_constants, stacked_windows
from anima.core.array import ConcreteArray
from anima.core.avals import ShapedArray
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Literal, Var
from anima.ops.broadcast import broadcast_in_dim_p, iota_p
from anima.ops.elementwise import add
from anima.ops.family import Elementwise
from anima.ops.gather import GatherScatterMode, gather_p, scatter_add_p
from anima.ops.shape import concatenate_p, pad_p, reshape_p, rev_p, slice_p

MOST_PLACES = 1 << 16  # that are computed to see whether they are in order
MOST_RUNS = 4          # of places one after the other
_DEEP = 32             # longest chain of equations that places are computed by
_MAKING = frozenset((broadcast_in_dim_p, iota_p, reshape_p, concatenate_p, slice_p, rev_p))

Run = tuple[int, int, int]  # the first place, how many there are, and the step from each to the next
Part = Run | tuple[None, int, int]  # of an array: a run of another one's, or zeros


def known_places(closed: ClosedJaxpr, given: Mapping[Var, np.ndarray] | None = None) -> ClosedJaxpr:
    """Reads and adds by slices where the places are known, in a program and those of its loops and branches. `given`
    are arguments whose values are."""
    if not _has_any(closed):
        return closed
    closed = counted_constants(closed)
    values = _Values(closed, given or {})
    eqns: list[Eqn] = []
    for eqn in closed.eqns:
        if has_programs(eqn.params):
            inner = {id(program): _given(program, operands, values) for program, operands in _programs(eqn)}
            eqn = eqn.replace(params=map_programs(
                eqn.params, lambda program: known_places(program, inner.get(id(program)))))  # noqa: B023
        eqns += _read(eqn, values) or _added(eqn, values) or _joined(eqn, values) or [eqn]
    return closed.replace(jaxpr=closed.jaxpr.replace(eqns=eqns))


def _has_any(closed: ClosedJaxpr) -> bool:
    return any(e.primitive in (gather_p, scatter_add_p, concatenate_p) or has_programs(e.params) for e in closed.eqns)


def _programs(eqn: Eqn) -> Iterator[tuple[ClosedJaxpr, Sequence[Atom]]]:
    """The programs of a loop or branch, each with the operands that are its first arguments in every run."""
    p, operands = eqn.params, eqn.invars
    if "num_carry" in p:
        yield p["jaxpr"], operands[:p["num_consts"]]
    elif "body_nconsts" in p:
        yield p["cond_jaxpr"], operands[:p["cond_nconsts"]]
        yield p["body_jaxpr"], operands[p["cond_nconsts"]:p["cond_nconsts"] + p["body_nconsts"]]
    elif "branches" in p:
        yield from ((branch, operands[1:]) for branch in p["branches"])


def _given(program: ClosedJaxpr, operands: Sequence[Atom], values: _Values) -> dict[Var, np.ndarray]:
    found = ((v, values.of(atom)) for v, atom in zip(program.jaxpr.invars, operands, strict=False))
    return {v: value for v, value in found if value is not None}


class _Values:
    """The values of small arrays of integers that follow from nothing but numbers."""

    def __init__(self, closed: ClosedJaxpr, given: Mapping[Var, np.ndarray]) -> None:
        self.found: dict[Var, np.ndarray | None] = dict(given)
        for var, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            if _is_small(var.aval) and isinstance(value, ConcreteArray):
                self.found[var] = value.value
        self.made = {v: e for e in closed.eqns for v in e.outvars}

    def of(self, atom: Atom, deep: int = _DEEP) -> np.ndarray | None:
        if type(atom) is Literal:
            return np.asarray(atom.val, atom.aval.dtype) if _is_small(atom.aval) else None
        assert type(atom) is Var
        if atom not in self.found:
            self.found[atom] = self._computed(atom, deep)
        return self.found[atom]

    def _computed(self, var: Var, deep: int) -> np.ndarray | None:
        eqn = self.made.get(var)
        if (eqn is None or not deep or not _is_small(var.aval) or eqn.effects or len(eqn.outvars) != 1
                or not (eqn.primitive in _MAKING or isinstance(eqn.primitive, Elementwise))):
            return None
        operands = [self.of(v, deep - 1) for v in eqn.invars]
        if any(x is None for x in operands):
            return None
        with np.errstate(all="ignore"):
            return np.asarray(eqn.primitive.eval(*operands, **eqn.params), var.aval.dtype)


def _is_small(aval: ShapedArray) -> bool:
    return isinstance(aval.dtype, np.dtype) and aval.dtype.kind in "iub" and aval.size <= MOST_PLACES


def _runs(places: np.ndarray) -> list[Run] | None:
    """Places one after the other; None if there are too many such runs."""
    steps = np.diff(places)
    if steps.size and steps[0] and (steps == steps[0]).all():
        return [(int(places[0]), places.size, int(steps[0]))]
    ends = np.flatnonzero(steps != 1) + 1
    if ends.size >= MOST_RUNS or not places.size:
        return None
    return [(int(part[0]), part.size, 1) for part in np.split(places, ends)]


def _places(axis: Sequence[int], whole: Sequence[int], indices: Atom, mode: GatherScatterMode, extent: int,
            values: _Values) -> np.ndarray | None:
    """The places along one axis that indices name; None if they name others, or nobody knows."""
    if len(axis) != 1 or tuple(axis) != tuple(whole) or indices.aval.ndim != 2 or not extent:
        return None
    found = values.of(indices)
    if found is None:
        return None
    places = found[:, 0].astype(np.int64)
    if mode in (GatherScatterMode.CLIP, GatherScatterMode.PROMISE_IN_BOUNDS):
        places = np.clip(places, 0, extent - 1)
    return places if places.size and places.min() >= 0 and places.max() < extent else None


def _read(eqn: Eqn, values: _Values) -> list[Eqn] | None:
    """Equations for a gather of slices along one axis."""
    if eqn.primitive is not gather_p:
        return None
    (x, indices), (out,), p = eqn.invars, eqn.outvars, eqn.params
    dims = p["dimension_numbers"]
    places = _places(dims.start_index_map, dims.collapsed_slice_dims, indices, p["mode"],
                     x.aval.shape[dims.start_index_map[0]] if dims.start_index_map else 0, values)
    if places is None or dims.operand_batching_dims:
        return None
    axis, = dims.start_index_map
    whole = all(n == (1 if d == axis else x.aval.shape[d]) for d, n in enumerate(p["slice_sizes"]))
    runs = _runs(places)
    if runs is None or not whole or tuple(dims.offset_dims) != tuple(d for d in range(out.aval.ndim) if d != axis):
        return None
    return _parts(x, out, axis, runs, eqn)


def _added(eqn: Eqn, values: _Values) -> list[Eqn] | None:
    """Equations for what is added to zeros at different places along one axis."""
    if eqn.primitive is not scatter_add_p:
        return None
    (array, indices, updates), (out,), p = eqn.invars, eqn.outvars, eqn.params
    dims, zeros = p["dimension_numbers"], values.made.get(array) if type(array) is Var else None
    if (zeros is None or zeros.primitive is not broadcast_in_dim_p or type(zeros.invars[0]) is not Literal
            or zeros.invars[0].val or dims.operand_batching_dims or array.aval.dtype != updates.aval.dtype):
        return None
    axes = dims.scatter_dims_to_operand_dims
    # What promises to be inside is dropped where it is not.
    mode = GatherScatterMode.FILL_OR_DROP if p["mode"] is GatherScatterMode.PROMISE_IN_BOUNDS else p["mode"]
    places = _places(axes, dims.inserted_window_dims, indices, mode, array.aval.shape[axes[0]] if axes else 0, values)
    if places is None or len(np.unique(places)) < places.size:
        return None
    axis, = axes
    rest = tuple(d for d in range(array.aval.ndim) if d != axis)
    if (tuple(dims.update_window_dims) != rest or updates.aval.ndim != array.aval.ndim
            or any(updates.aval.shape[d] != array.aval.shape[d] for d in rest)):
        return None
    runs = _runs(places)
    if runs is None:
        return None
    zero, extent = zeros.invars[0], array.aval.shape[axis]
    added = Var(updates.aval)  # zeros lose their signs
    eqns = [Eqn(add, [updates, zero], [added], {}, eqn.source)]
    updates = added
    if len(runs) == 1:
        first, count, step = runs[0]
        low, high = sorted((first, first + step * (count - 1)))
        if step < 0:
            back = Var(updates.aval)
            eqns.append(Eqn(rev_p, [updates], [back], {"dimensions": (axis,)}, eqn.source))
            updates = back
        config = tuple((low, extent - 1 - high, abs(step) - 1) if d == axis else (0, 0, 0)
                       for d in range(out.aval.ndim))
        return [*eqns, Eqn(pad_p, [updates, zero], [out], {"padding_config": config}, eqn.source)]
    return [*eqns, *_parts(updates, out, axis, _on_zeros(runs, extent), eqn, zero)]


def _joined(eqn: Eqn, values: _Values) -> list[Eqn] | None:
    """Equations for windows side by side that slide over an array."""
    return stacked_windows(eqn, values.made) if eqn.primitive is concatenate_p else None


def _on_zeros(runs: Sequence[Run], extent: int) -> list[Part]:
    """What an axis consists of, where elements are put at these places among so many zeros."""
    parts: list[Part] = []
    end, begin, sources = 0, 0, {}
    for first, count, _ in runs:
        sources[first], begin = (begin, count), begin + count
    for first, (source, count) in sorted(sources.items()):
        if first > end:
            parts.append((None, first - end, 1))
        parts.append((source, count, 1))
        end = first + count
    return [*parts, (None, extent - end, 1)] if extent > end else parts


def _parts(x: Atom, out: Var, axis: int, parts: Sequence[Part], eqn: Eqn, zero: Atom | None = None) -> list[Eqn]:
    """The equations for an array's parts behind each other."""
    eqns: list[Eqn] = []
    for first, count, step in parts:
        shape = tuple(count if d == axis else n for d, n in enumerate(out.aval.shape))
        part = out if len(parts) == 1 else Var(out.aval.update(shape=shape))
        if first is None:
            assert zero is not None
            params = {"shape": shape, "broadcast_dimensions": ()}
            eqns.append(Eqn(broadcast_in_dim_p, [zero], [part], params, eqn.source))
            continue
        low, high = sorted((first, first + step * (count - 1)))
        bounds: dict[str, Any] = {
            "start_indices": tuple(low if d == axis else 0 for d in range(len(shape))),
            "limit_indices": tuple(high + 1 if d == axis else n for d, n in enumerate(x.aval.shape)),
            "strides": None if step in (1, -1) else tuple(abs(step) if d == axis else 1 for d in range(len(shape)))}
        forward = part if step > 0 else Var(part.aval)
        eqns.append(Eqn(slice_p, [x], [forward], bounds, eqn.source))
        if step < 0:
            eqns.append(Eqn(rev_p, [forward], [part], {"dimensions": (axis,)}, eqn.source))
    if len(parts) > 1:
        eqns.append(Eqn(concatenate_p, [v for e in eqns for v in e.outvars], [out], {"dimension": axis}, eqn.source))
    return eqns
