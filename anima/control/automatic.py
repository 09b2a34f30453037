"""Checks that nobody wrote: indices in bounds, no division by zero, no NaN out of numbers.

Each looks at the operands and results of one equation, so that it is computed in the loop that computes the equation.
An operation on elements makes a NaN where its result is one and no operand is. Whether it can is found by trying it on
special numbers, once for each operation and types: `exp(x)` and `2 * x` need no check.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from anima import tree
from anima.control.checks import (
    SOME,
    DivisionByZeroError,
    ErrorState,
    JaxException,
    NaNError,
    OOBError,
    Site,
    first_where,
    part,
)
from anima.core import dtypes
from anima.core.avals import Shape
from anima.core.jaxpr import Atom, Eqn, Jaxpr, Literal, Var
from anima.core.primitive import Primitive
from anima.core.trace import aval_of
from anima.ops.broadcast import broadcast_to, scalar
from anima.ops.elementwise import and_, convert, div, eq, gt, lt, ne, not_, or_, select_n
from anima.ops.family import Elementwise
from anima.ops.gather import GatherScatterMode, Scatter, gather_p
from anima.ops.index import dynamic_slice_p, dynamic_update_slice_p
from anima.ops.reduce import reduce_or
from anima.ops.shape import reshape, slice_in_dim
from anima.util import cleared, exactly

Kinds = Collection[type[JaxException]]
_PLACE = np.dtype(np.int32)
_VALUES = [tree.structure((tuple(range(n)), {})) for n in range(4)]  # of messages with n numbers


def check_operands(state: ErrorState, eqn: Eqn, values: Sequence[Any], kinds: Kinds) -> None:
    """What is to be known before an operation: indices, divisors."""
    primitive, shape = eqn.primitive, aval_of(values[0]).shape if values else ()
    if OOBError in kinds:
        if primitive is gather_p:
            axes = eqn.params["dimension_numbers"].start_index_map
            _check_vectors(state, eqn, shape, eqn.params["slice_sizes"], axes, values[1])
        elif isinstance(primitive, Scatter):
            axes = eqn.params["dimension_numbers"].scatter_dims_to_operand_dims
            _check_vectors(state, eqn, shape, _window(eqn, shape, aval_of(values[2]).shape), axes, values[1])
        elif primitive is dynamic_slice_p:
            _check_starts(state, eqn, shape, eqn.params["slice_sizes"], eqn.invars[1:], values[1:])
        elif primitive is dynamic_update_slice_p:
            _check_starts(state, eqn, shape, aval_of(values[1]).shape, eqn.invars[2:], values[2:])
    if DivisionByZeroError in kinds and primitive is div:
        _check_divisor(state, eqn, values[1])


# ---------------------------------------------------------------- indices

def _window(eqn: Eqn, shape: Shape, updates: Shape) -> list[int]:
    """The sizes of the windows that a scatter writes."""
    dims = eqn.params["dimension_numbers"]
    single = {*dims.inserted_window_dims, *dims.operand_batching_dims}
    given = iter([updates[d] for d in dims.update_window_dims])
    return [1 if d in single else next(given) for d in range(len(shape))]


def _outside(index: Any, last: int) -> Any:
    """Where indices are not in 0 .. last; None if none can be."""
    dtype = aval_of(index).dtype
    info = dtypes.iinfo(dtype)
    if last >= info.max:
        return lt(index, scalar(0, dtype)) if info.min < 0 else None
    unsigned = np.dtype(f"u{dtype.name}") if info.min < 0 else dtype  # where numbers below 0 are beyond the last
    return gt(convert(index, unsigned), scalar(last, unsigned))


def _out_of_bounds(shape: Shape, axis: str, size: str) -> str:
    return (f"out-of-bounds indexing for array of shape {shape}: index {{}} is out of bounds for axis {axis} with "
            f"size {size}.")


def _check_starts(state: ErrorState, eqn: Eqn, shape: Shape, sizes: Shape, atoms: Sequence[Atom],
                  starts: Sequence[Any]) -> None:
    """The window of a dynamic slice: one index for each axis, some of them known."""
    for axis, (n, size, atom, start) in enumerate(zip(shape, sizes, atoms, starts, strict=True)):
        failed = None if isinstance(atom, Literal) and 0 <= atom.val <= n - size else _outside(start, n - size)
        if failed is not None:
            site = Site(OOBError, _out_of_bounds(shape, str(axis), str(n)), eqn.source, _VALUES[1],
                        (aval_of(start).strip_weak_type(),))
            state.fail(failed, site, [start])


def _check_vectors(state: ErrorState, eqn: Eqn, shape: Shape, sizes: Sequence[int], axes: Sequence[int],
                   indices: Any) -> None:
    """Windows at indices of shape (..., number of axes): the first in row-major order of those that are outside."""
    aval = aval_of(indices)
    found: list[tuple[Any, Any, Any, int]] = []
    for j, axis in enumerate(axes):
        alone = aval.size == len(axes)
        column = reshape(slice_in_dim(indices, j, j + 1, axis=-1), () if alone else (aval.size // len(axes),))
        flags = _outside(column, shape[axis] - sizes[axis]) if aval.size else None
        if flags is not None and alone:
            found.append((flags, select_n(flags, scalar(1, _PLACE), scalar(0, _PLACE)), column, axis))
        elif flags is not None:
            failed, first = first_where(flags)
            found.append((failed, first, part(column, first), axis))
    if not found:
        return
    failed, first, index, axis = found[0]
    if len(found) == 1:
        site = Site(OOBError, _out_of_bounds(shape, str(axis), str(shape[axis])), eqn.source, _VALUES[1],
                    (aval_of(index).strip_weak_type(),))
        return state.fail(failed, site, [index])
    values = [index, scalar(axis, _PLACE), scalar(shape[axis], _PLACE)]
    for other, place, index, axis in found[1:]:
        sooner = lt(place, first)
        new = [index, scalar(axis, _PLACE), scalar(shape[axis], _PLACE)]
        values = [select_n(sooner, a, b) for a, b in zip(values, new, strict=True)]
        failed, first = or_(failed, other), select_n(sooner, first, place)
    site = Site(OOBError, _out_of_bounds(shape, "{}", "{}"), eqn.source, _VALUES[3],
                tuple(aval_of(v).strip_weak_type() for v in values))
    state.fail(failed, site, values)


# ---------------------------------------------------------------- division, NaN

def _any(flags: Any, rows_first: bool = False) -> Any:
    """Whether any of some bools, of any shape, holds."""
    rank = aval_of(flags).ndim
    if rows_first and rank > 1:
        flags, rank = reduce_or(flags, (rank - 1,)), rank - 1
    return reduce_or(flags, tuple(range(rank)))


def _check_divisor(state: ErrorState, eqn: Eqn, divisor: Any) -> None:
    if not isinstance(eqn.invars[1], Literal) or eqn.invars[1].val == 0:
        zero = scalar(0, aval_of(divisor).dtype)
        site = Site(DivisionByZeroError, "division by zero", eqn.source, _VALUES[0], ())
        state.fail(_any(eq(divisor, zero)), site, [])


def _is_number(dtype: Any) -> bool:
    return not dtypes.is_extended(dtype) and dtypes.issubdtype(dtype, np.inexact)


def check_results(state: ErrorState, eqn: Eqn, values: Sequence[Any], outs: Sequence[Any], kinds: Kinds) -> None:
    """What is to be known after an operation: whether it made a NaN."""
    if NaNError not in kinds:
        return
    primitive = eqn.primitive
    results = [o for o in outs if _is_number(aval_of(o).dtype)]
    given = [v for v, atom in zip(values, eqn.invars, strict=True)
             if _is_number(aval_of(v).dtype) and not (isinstance(atom, Literal) and atom.val == atom.val)]
    if not results:
        return
    if not _may_make_nan(eqn):
        return
    if isinstance(primitive, Elementwise):
        made = ne(results[0], results[0])
        for v in given:
            number = not_(ne(v, v))
            made = and_(made, number if aval_of(v).shape in ((), aval_of(made).shape)
                        else broadcast_to(number, aval_of(made).shape))
        failed = _any(made)
    else:
        failed = _any_nan(results)
        if given:
            failed = and_(failed, not_(_any_nan(given)))
    state.fail(failed, Site(NaNError, f"nan generated by primitive: {primitive.name}.", eqn.source, _VALUES[0], ()), [])


def check_frontier(state: ErrorState, jaxpr: Jaxpr, whole: Callable[[Eqn], bool], later: Collection[Atom],
                   read: Callable[[Atom], Any]) -> None:
    """Whether some equation of a program, of those that are operations as a `whole`, may have made a NaN.

    A NaN is looked for in what comes of it, as long as that has to be a NaN too; not in what is looked at `later`.
    """
    readers: dict[Atom, list[tuple[Eqn, int]]] = {}
    for eqn in jaxpr.eqns:
        for k, atom in enumerate(eqn.invars):
            if isinstance(atom, Var):
                readers.setdefault(atom, []).append((eqn, k))
    seen: set[Atom] = set()
    by_row = {e.invars[0].aval.shape for e in jaxpr.eqns  # what is computed in one loop over rows with reductions
              if e.invars and e.invars[0].aval.ndim - 1 in e.params.get("axes", ())}
    for eqn in jaxpr.eqns:
        makes = whole(eqn) and _may_make_nan(eqn)
        for v in eqn.outvars:
            if (makes or v in seen) and v not in later and _is_number(v.aval.dtype) and v.aval.size:
                after = next((e for e, k in readers.get(v, ()) if _passes_nan(e, k)), None)
                if after is None:
                    check_number(state, read(v), v.aval.shape in by_row)
                else:
                    seen.update(after.outvars)


def check_number(state: ErrorState, value: Any, rows_first: bool = False) -> None:
    """Tells whether an array has a NaN."""
    state.fail(_any(ne(value, value), rows_first), SOME.sites[0], [])


def kept_carries(jaxpr: Jaxpr, first: int, count: int) -> tuple[int, ...]:
    """Which of the carries of a loop's body, its arguments from number `first` on, are NaN for ever once they are."""
    found = []
    for k in range(count):
        reached: set[Atom] = {jaxpr.invars[first + k]}
        for eqn in jaxpr.eqns:
            if any(atom in reached and _passes_nan(eqn, n) for n, atom in enumerate(eqn.invars)):
                reached.update(eqn.outvars)
        if jaxpr.outvars[k] in reached and _is_number(jaxpr.outvars[k].aval.dtype):
            found.append(k)
    return tuple(found)


def _may_make_nan(eqn: Eqn) -> bool:
    if isinstance(eqn.primitive, Elementwise):
        return _makes_nan(eqn)
    if eqn.primitive is gather_p:  # what stands for elements that are not there
        return eqn.params["mode"] is GatherScatterMode.FILL_OR_DROP and bool(eqn.params["fill_value"] !=
                                                                              eqn.params["fill_value"])
    return eqn.primitive.makes_nan and not eqn.primitive.moves


def _passes_nan(eqn: Eqn, place: int) -> bool:
    """Whether a NaN in an operand always gives one in the result."""
    out = eqn.outvars[0].aval if len(eqn.outvars) == 1 else None
    if out is None or not out.size or not _is_number(out.dtype):
        return False
    return _tried(eqn, place) if isinstance(eqn.primitive, Elementwise) else eqn.primitive.keeps_nan


def _any_nan(arrays: Sequence[Any]) -> Any:
    found, *rest = [_any(ne(x, x)) for x in arrays]
    for other in rest:
        found = or_(found, other)
    return found


_KNOWN: dict[Any, bool] = {}  # by operation, numbers written in the program, types
cleared(_KNOWN.clear)


def _makes_nan(eqn: Eqn) -> bool:
    """Whether an operation on elements gives a NaN for some special numbers, none of which is one."""
    return _is_number(eqn.outvars[0].aval.dtype) and _tried(eqn, None)


def _tried(eqn: Eqn, place: int | None) -> bool:
    """Whether an operation on elements, tried on special numbers, makes a NaN; with a NaN at `place`, always does."""
    atoms = eqn.invars
    key: Any = (eqn.primitive, place, tuple([np.asarray(a.val).tobytes() if isinstance(a, Literal) else None
                                             for a in atoms]),
                tuple([a.aval.dtype for a in atoms]), exactly(eqn.params))
    try:
        known = _KNOWN.get(key)
    except TypeError:  # parameters that cannot be part of a key
        return place is None
    if known is None:
        grids = [np.reshape(a.val, (1,)) if isinstance(a, Literal) else _special(a.aval.dtype) for a in atoms]
        if place is not None:
            parts = [np.nan, complex(1, np.nan)] if atoms[place].aval.dtype.kind == "c" else [np.nan]
            grids[place] = np.array(parts).astype(atoms[place].aval.dtype)
        if len(_KNOWN) > 4096:
            _KNOWN.clear()
        known = _KNOWN[key] = _outcome(eqn.primitive, grids, eqn.params, place is not None)
    return known


def _outcome(primitive: Primitive, grids: Sequence[np.ndarray], params: dict[str, Any], always: bool) -> bool:
    """Whether some result of numbers is a NaN; with `always`, whether all results are."""
    if not grids or len(grids) > 3:
        return not always
    points = [g.reshape(-1) for g in np.meshgrid(*grids, indexing="ij")]
    with np.errstate(all="ignore"):
        try:
            out = np.asarray(primitive.eval(*points, **params))
        except Exception:  # a third party's, on numbers that it does not take
            return not always
    if always:
        return bool(np.all(out != out))
    return bool(np.any((out != out) & ~np.any([p != p for p in points], axis=0)))


def _special(dtype: np.dtype) -> np.ndarray:
    """Numbers at which operations are not what they are elsewhere."""
    if dtype == dtypes.bool_:
        return np.array([False, True])
    if dtypes.issubdtype(dtype, np.integer):
        info = dtypes.iinfo(dtype)
        return np.array([n for n in (info.min, -2, -1, 0, 1, 2, info.max) if info.min <= n <= info.max], dtype)
    if dtypes.issubdtype(dtype, np.complexfloating):
        parts = np.array([-np.inf, -2, -1, 0, 1, np.inf], np.float64)
        with np.errstate(all="ignore"):
            return (parts[:, None] + 1j * parts).reshape(-1).astype(dtype)
    largest = float(dtypes.finfo(dtype).max)
    numbers = np.array([-np.inf, -largest, -2.5, -2, -1, -0.5, -0.0, 0.0, 0.5, 1, 2, 2.5, largest, np.inf])
    with np.errstate(all="ignore"):
        return numbers.astype(dtype)
