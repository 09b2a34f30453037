"""Arrays are transposed as late as can be: what is computed of them is computed as they lie.

    b = transpose a                                   d = broadcast_in_dim[shape=(1000, 1)] c
    d = broadcast_in_dim[shape=(1, 1000)] c           e = sub a d
    e = sub b d                                ->     g = reduce_sum[axes=(1,)] e
    g = reduce_sum[axes=(0,)] e                       h = exp e
    h = transpose (exp e)

Rows are then read along memory, several sums of a row stay one loop over it, and two transpositions that undo one
another are none. Left as they are: arrays of short rows, of which whole columns are better taken at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from anima.compiler.lowering.reduce import REDUCTIONS
from anima.compiler.rewriting.inline import has_programs, map_programs
from anima.core.avals import Shape, inverse_order
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Var
from anima.core.primitive import Primitive
from anima.ops.broadcast import broadcast_in_dim_p, iota_p
from anima.ops.family import Elementwise
from anima.ops.shape import reshape_p, transpose_p

_ALONG = {"cumsum": "axis", "cumprod": "axis", "cummax": "axis", "cummin": "axis", "cumlogsumexp": "axis",
          "sort": "dimension"}  # operations along an axis, which the parameter names
_LEAST_ROW = 32        # elements of a row that is long
_LEAST_SIZE = 1 << 10  # small arrays are in registers
_SMALL = 8             # an operand that is so many times smaller than the result is transposed for it

Order = tuple[int, ...]


def postpone(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Moves transpositions behind what acts on elements or along axes, in a program and those in it."""
    eqns = [e.replace(params=map_programs(e.params, postpone)) if has_programs(e.params) else e for e in closed.eqns]
    jaxpr, outvars = closed.jaxpr, closed.jaxpr.outvars
    if any(e.primitive is transpose_p for e in eqns):
        work = _Postponed(eqns, 2)
        if work.along_rows or not work.across_rows:
            work = _Postponed(eqns, _LEAST_ROW)
        eqns, outvars = work.eqns, [work.read(v) for v in outvars]
    return closed.replace(jaxpr=jaxpr.replace(eqns=eqns, outvars=outvars))


def _ordered(shape: Sequence[int], order: Sequence[int]) -> Shape:
    return tuple(shape[d] for d in order)


class _Postponed:
    """The equations of a program; `lying` are the arrays that transposed ones are made of, and in which order of axes.
    Rows have `least_row` elements at least; some of short ones may be acted on as wholes, or across them.
    """

    along_rows = across_rows = False

    def __init__(self, eqns: Sequence[Eqn], least_row: int) -> None:
        self.least_row = least_row
        self.eqns: list[Eqn] = []
        self.env: dict[Var, Atom] = {}
        self.made: dict[Var, Eqn] = {}
        self.lying: dict[Var, tuple[Var, Order]] = {}
        for eqn in eqns:
            eqn = eqn.replace(invars=[self.read(v) for v in eqn.invars])
            if eqn.primitive is transpose_p:
                self.transpose(eqn)
            elif not self.moved(eqn):
                self.add(eqn)

    def read(self, atom: Atom) -> Atom:
        return self.env.get(atom, atom) if type(atom) is Var else atom

    def add(self, eqn: Eqn) -> None:
        self.eqns.append(eqn)
        self.made.update((v, eqn) for v in eqn.outvars)

    def new(self, primitive: Primitive, invars: Sequence[Atom], shape: Shape, like: Eqn, params: dict[str, Any],
            dtype: Any = None) -> Var:
        """The result of a new equation in the place of `like`."""
        result = Var(like.outvars[0].aval.update(shape=shape, dtype=dtype or like.outvars[0].aval.dtype))
        self.add(Eqn(primitive, list(invars), [result], params, like.source))
        return result

    def transpose(self, eqn: Eqn) -> None:
        (x,), (out,), order = eqn.invars, eqn.outvars, tuple(eqn.params["permutation"])
        if type(x) is Var and x in self.lying:
            x, before = self.lying[x]
            order = _ordered(before, order)
        if order == tuple(range(len(order))):
            self.env[out] = x
            return
        self.add(eqn.replace(invars=[x], params={"permutation": order}))
        lies_across = order[-1] != len(order) - 1 and x.aval.shape[-1] >= self.least_row
        if type(x) is Var and lies_across and x.aval.size >= _LEAST_SIZE:
            self.lying[out] = x, order

    def moved(self, eqn: Eqn) -> bool:
        """Whether an equation was done before the transposition of its operands."""
        orders = {self.lying[v][1] for v in eqn.invars if type(v) is Var and v in self.lying}
        if len(orders) != 1 or eqn.effects:
            return False
        order, = orders
        if eqn.primitive.name in REDUCTIONS:
            return self.reduced(eqn, order)
        axis = _ALONG.get(eqn.primitive.name)
        if axis is None and not isinstance(eqn.primitive, Elementwise):
            return False
        shape = eqn.outvars[0].aval.shape
        if not all(self.turns(v, shape) for v in eqn.invars):
            return False
        params = eqn.params
        if axis is not None:
            params = {**params, axis: order[params[axis]]}
            self.note_rows(shape, order, (params[axis],))
        operands = [self.turned(v, order, eqn) for v in eqn.invars]
        back = inverse_order(order)
        outs = [Var(v.aval.update(shape=_ordered(v.aval.shape, back))) for v in eqn.outvars]
        self.add(eqn.replace(invars=operands, outvars=outs, params=params))
        for new, out in zip(outs, eqn.outvars, strict=True):
            self.transpose(Eqn(transpose_p, [new], [out], {"permutation": order}, eqn.source))
        return True

    def reduced(self, eqn: Eqn, order: Order) -> bool:
        if len(eqn.invars) != 1:
            return False
        source, (out,) = self.lying[eqn.invars[0]][0], eqn.outvars  # type: ignore[index]
        axes = {order[d] for d in eqn.params["axes"]}
        rest = [d for d in range(len(order)) if d not in axes]
        kept = [d for k, d in enumerate(order) if k not in eqn.params["axes"]]
        params = {**eqn.params, "axes": tuple(sorted(axes))}
        self.note_rows(eqn.invars[0].aval.shape, order, params["axes"])
        if kept == rest:
            self.add(eqn.replace(invars=[source], params=params))
            return True
        total = self.new(eqn.primitive, [source], _ordered(source.aval.shape, rest), eqn, params)
        self.transpose(Eqn(transpose_p, [total], [out], {"permutation": tuple(map(rest.index, kept))}, eqn.source))
        return True

    def note_rows(self, shape: Shape, order: Order, axes: Sequence[int]) -> None:
        """Takes note of an operation along these axes of an array that has this shape in this order."""
        last = len(order) - 1
        if shape[order.index(last)] < _LEAST_ROW:
            self.along_rows |= last in axes
            self.across_rows |= last not in axes

    def turns(self, atom: Atom, shape: Shape) -> bool:
        """Whether an operand of an operation with results of this shape costs nothing, or little, in another order."""
        if type(atom) is not Var or not atom.aval.shape or atom in self.lying:
            return True
        made = self.made.get(atom)
        if made is not None and made.primitive in (broadcast_in_dim_p, iota_p):
            atom = made.invars[0] if made.invars else atom
            return not made.invars or atom.aval.size * _SMALL <= math.prod(shape)
        return atom.aval.size * _SMALL <= math.prod(shape)

    def turned(self, atom: Atom, order: Order, like: Eqn) -> Atom:
        """An operand in the order that its axes had before they were put in `order`."""
        if type(atom) is not Var or not atom.aval.shape:
            return atom
        if atom in self.lying:
            return self.lying[atom][0]
        back = inverse_order(order)
        shape, made = _ordered(atom.aval.shape, back), self.made.get(atom)
        if made is not None and made.primitive is iota_p:
            params = {**made.params, "shape": shape, "dimension": order[made.params["dimension"]]}
            return self.new(iota_p, [], shape, like, params, atom.aval.dtype)
        if made is not None and made.primitive is broadcast_in_dim_p:
            dims = [order[d] for d in made.params["broadcast_dimensions"]]
            if dims == sorted(dims):
                params = {"shape": shape, "broadcast_dimensions": tuple(dims)}
                return self.new(broadcast_in_dim_p, made.invars, shape, like, params, atom.aval.dtype)
        long = [d for d in back if atom.aval.shape[d] != 1]
        if long == sorted(long):
            return self.new(reshape_p, [atom], shape, like, {"new_sizes": shape, "dimensions": None}, atom.aval.dtype)
        return self.new(transpose_p, [atom], shape, like, {"permutation": back}, atom.aval.dtype)
