"""Arrays that are changed at some places if a condition holds: the condition decides what is written, or whether.

    u = scatter a i v                             j = select_n p -1 i
    b = select_n p a u                     ->     b = scatter a j v              which drops what is out of bounds

    u = dynamic_update_slice a v i                w = dynamic_slice a i;  x = select_n p w v
    b = select_n p a u                     ->     b = dynamic_update_slice a x i

As they stand, all of the array is copied and compared; so, a step of a loop takes the time of what it writes.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from anima.compiler.rewriting.inline import has_programs, map_programs
from anima.core import dtypes
from anima.core.avals import Shape, ShapedArray
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Literal, Var
from anima.core.primitive import Primitive
from anima.ops.broadcast import broadcast_in_dim_p
from anima.ops.elementwise import select_n_p
from anima.ops.gather import GatherScatterMode
from anima.ops.index import dynamic_slice_p
from anima.ops.shape import reshape_p

_SCATTERS = frozenset(("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max"))
_DROPPING = (GatherScatterMode.FILL_OR_DROP, GatherScatterMode.PROMISE_IN_BOUNDS)
_SHARE = 2  # of an array's elements, one in so many at most is written


def conditional(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Decides at the places that are written, in a program and those in it."""
    jaxpr = closed.jaxpr
    eqns = [e.replace(params=map_programs(e.params, conditional)) if has_programs(e.params) else e for e in jaxpr.eqns]
    uses = Counter(v for atoms in (jaxpr.outvars, *(e.invars for e in eqns)) for v in atoms if type(v) is Var)
    updates = {e.outvars[0]: e for e in eqns if _is_update(e) and uses[e.outvars[0]] == 1}
    out: list[Eqn] = []
    for eqn in eqns:
        found = _choice(eqn, updates) if eqn.primitive is select_n_p else None
        out += [eqn] if found is None else _decided(eqn, *found)
    same = len(out) == len(jaxpr.eqns) and all(a is b for a, b in zip(out, jaxpr.eqns, strict=True))
    return closed if same else closed.replace(jaxpr=jaxpr.replace(eqns=out))


def _is_update(eqn: Eqn) -> bool:
    if eqn.primitive.name in _SCATTERS and eqn.params["mode"] in _DROPPING and _nowhere(eqn) is not None:
        written = eqn.invars[2].aval.size
    elif eqn.primitive.name == "dynamic_update_slice":
        written = eqn.invars[1].aval.size
    else:
        return False
    return written * _SHARE <= eqn.outvars[0].aval.size


def _nowhere(scatter: Eqn) -> int | None:
    """A part of an index that is out of bounds, if there is one."""
    whole, index, _ = (x.aval for x in scatter.invars)
    info = dtypes.iinfo(index.dtype)
    last = -1 if info.min < 0 else int(info.max)
    return None if not index.shape[-1] or 0 <= last < max(whole.shape) else last


def _choice(eqn: Eqn, updates: dict[Var, Eqn]) -> tuple[Eqn, bool] | None:
    """The update that one value of a condition takes, where the other takes the array as it was; which does. The
    condition is one for the whole array, or for each of the arrays that a scatter changes."""
    which, *cases = eqn.invars
    if which.aval.dtype != np.bool_ or len(cases) != 2:
        return None
    for value, (updated, whole) in ((False, cases), (True, cases[::-1])):
        update = updates.get(updated) if type(updated) is Var else None
        if update is not None and update.invars[0] is whole:
            batch = _batch(update)[0]
            alike = all(n == (whole.aval.shape[d] if d in batch else 1) for d, n in enumerate(which.aval.shape))
            return (update, value) if which.aval.size == 1 or alike else None
    return None


def _batch(update: Eqn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The dimensions of the array, and of the indices, for each of which a scatter changes an array."""
    numbers = update.params.get("dimension_numbers")
    return ((), ()) if numbers is None else (
        tuple(numbers.operand_batching_dims), tuple(numbers.scatter_indices_batching_dims))


def _decided(eqn: Eqn, update: Eqn, value: bool) -> list[Eqn]:
    out: list[Eqn] = []

    def made(primitive: Primitive, invars: list[Atom], of: Shape, params: dict[str, Any]) -> Var:
        result = Var(ShapedArray(of, (invars[0] if primitive is dynamic_slice_p else invars[-1]).aval.dtype))
        out.append(Eqn(primitive, invars, [result], params, eqn.source))
        return result

    def chosen(which: Atom, new: Atom, other: Atom) -> Var:
        return made(select_n_p, [which, *([other, new] if value else [new, other])], new.aval.shape, {})

    def spread(atom: Atom, of: Shape, dims: tuple[int, ...]) -> Var:
        return made(broadcast_in_dim_p, [atom], of, {"shape": of, "broadcast_dimensions": dims})

    (dims, places), whole, which = _batch(update), update.invars[0], eqn.invars[0]
    sizes = tuple(whole.aval.shape[d] for d in dims) if which.aval.size != 1 else ()
    which = made(reshape_p, [which], sizes, {"new_sizes": sizes, "dimensions": None})
    if update.primitive.name in _SCATTERS:
        index = update.invars[1]
        kind, of = index.aval.dtype, index.aval.shape
        which = spread(which, of, places) if sizes else which
        nowhere = spread(Literal(_nowhere(update), ShapedArray((), kind)), of, ())
        invars = [whole, chosen(which, index, nowhere), update.invars[2]]
        params = {**update.params, "mode": GatherScatterMode.FILL_OR_DROP, "indices_are_sorted": False}
    else:
        _, window, *start = update.invars
        old = made(dynamic_slice_p, [whole, *start], window.aval.shape, {"slice_sizes": window.aval.shape})
        invars, params = [whole, chosen(which, window, old), *start], update.params
    return [*out, update.replace(invars=invars, outvars=eqn.outvars, params=params)]
