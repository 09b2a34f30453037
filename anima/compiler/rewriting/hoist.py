"""Products that a scan computes step by step, done for all steps at once, before the loop or after it.

What does not depend on the step at all goes before the loop first: see `invariant.py`.

    scan: y = x @ w; c' = f(c, y)         ->   ys = xs @ w;  scan: c' = f(c, y)           x from `xs`, w constant
    scan: g, c' = f(c, x); s' = s + x^T g  ->   scan: g, c' = f(c, x);  s = s0 + xs^T gs   a sum over steps
    scan: g, c' = f(c, x); y = g @ w      ->   scan: g, c' = f(c, x);  ys = gs @ w        y is stacked only

The gradient of a recurrent network with respect to its weights is of the second kind: one product over time
instead of an outer product, of the size of the weights, in every step. A step's operands are stacked for it
where they are not larger than what the step would have added up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from anima.compiler.rewriting.inline import has_programs, map_programs
from anima.compiler.rewriting.invariant import invariant
from anima.core.avals import ShapedArray
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from anima.ops.elementwise import add_any
from anima.ops.shape import reshape_p, transpose_p

MOST_BYTES = 1 << 26   # of what is stacked for one product
LARGER = 4             # elements that a step may stack, for one that it does not add up
_SUMS = frozenset(("add", "add_any"))
_MOVES = (transpose_p, reshape_p)  # the sum of these is that of the sum


def hoist(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Takes out of loops what does not depend on the iteration, and products out of scans.

    After this pass a scan's products need its carry."""
    if not any(has_programs(e.params) for e in closed.eqns):
        return closed
    eqns: list[Eqn] = []
    changed = False
    for eqn in closed.eqns:
        if has_programs(eqn.params):
            params = map_programs(eqn.params, hoist)
            if any(params[k] is not v for k, v in eqn.params.items()):
                eqn, changed = eqn.replace(params=params), True
        new = _outside(eqn)
        changed = changed or len(new) > 1 or new[0] is not eqn
        eqns += new
    return closed.replace(jaxpr=closed.jaxpr.replace(eqns=eqns)) if changed else closed


def _outside(eqn: Eqn) -> list[Eqn]:
    """An equation, if it is a loop with what can be done before and after it."""
    is_scan = eqn.primitive.name == "scan" and eqn.params["length"] > 1
    if not is_scan and eqn.primitive.name != "while":
        return [eqn]
    before, eqn = invariant(eqn)
    return [*before, *((_Split(eqn).run() if is_scan else None) or [eqn])]


@dataclass(slots=True)
class _Body:
    """A scan's body under change."""

    consts: list[Var]
    carry: list[Var]
    xs: list[Var]
    eqns: list[Eqn]
    carry_outs: list[Atom]
    ys: list[Atom]
    outer: dict[Var, Atom] = field(default_factory=dict)  # of constants and `xs`: the operands


class _Split:
    """One scan, and the equations that come before and after it."""

    def __init__(self, eqn: Eqn) -> None:
        p = eqn.params
        jaxpr: Jaxpr = p["jaxpr"].jaxpr
        first, second, count = p["num_consts"], p["num_consts"] + p["num_carry"], p["num_carry"]
        self.eqn = eqn
        self.length: int = p["length"]
        self.before: list[Eqn] = []
        self.after: list[Eqn] = []
        self.body = _Body(list(jaxpr.invars[:first]), list(jaxpr.invars[first:second]), list(jaxpr.invars[second:]),
                          list(jaxpr.eqns), list(jaxpr.outvars[:count]), list(jaxpr.outvars[count:]))
        self.body.outer = {v: a for v, a in zip(jaxpr.invars, eqn.invars, strict=True) if v not in self.body.carry}
        self.initial = list(eqn.invars[first:second])
        self.carry_results = list(eqn.outvars[:count])
        self.y_results = list(eqn.outvars[count:])
        self.uses: dict[Var, int] = {}
        for atom in (*(a for e in jaxpr.eqns for a in e.invars), *jaxpr.outvars):
            if isinstance(atom, Var):
                self.uses[atom] = self.uses.get(atom, 0) + 1
        self.makers = {v: e for e in jaxpr.eqns for v in e.outvars}

    def run(self) -> list[Eqn] | None:
        """The equations that take the scan's place; None if there is nothing to take out of it."""
        if not any(e.primitive.name == "dot_general" for e in self.body.eqns):
            return None
        found = [self.ahead(e) for e in list(self.body.eqns)]
        found += [self.summed(n) for n in reversed(range(len(self.body.carry)))]
        found += [self.behind(n) for n in range(len(self.body.ys))]
        if not any(found):
            return None
        return [*self.before, self.scan(), *self.after]

    def scan(self) -> Eqn:
        """The loop that is left."""
        b, p = self.body, self.eqn.params
        closed: ClosedJaxpr = p["jaxpr"]
        jaxpr = closed.jaxpr.replace(invars=[*b.consts, *b.carry, *b.xs], eqns=b.eqns,
                                     outvars=[*b.carry_outs, *b.ys])
        args = [*(b.outer[v] for v in b.consts), *self.initial, *(b.outer[v] for v in b.xs)]
        params = {**p, "jaxpr": ClosedJaxpr(jaxpr, closed.consts), "num_carry": len(b.carry),
                  "num_consts": len(b.consts), "linear": (False,) * len(args)}
        outs = [*self.carry_results, *self.y_results]
        eqn = self.eqn.replace(params=params, invars=args, outvars=outs)
        shrink: Any = eqn.primitive
        return shrink.dce(eqn, [True] * len(outs))

    # ---------------------------------------------------------------- before

    def ahead(self, eqn: Eqn) -> bool:
        """A product of an element of `xs` and a constant: all of them before the loop."""
        if not _plain_product(eqn):
            return False
        result = eqn.outvars[0]
        kinds = [a in self.body.xs if isinstance(a, Var) else False for a in eqn.invars]
        fixed = [isinstance(a, Literal) or a in self.body.consts for a in eqn.invars]
        if not (kinds[0] and fixed[1]) and not (fixed[0] and kinds[1]):
            return False
        if self.length * _bytes(result.aval) > MOST_BYTES:
            return False
        operands = [a if isinstance(a, Literal) else self.body.outer[a] for a in eqn.invars]
        stacked = self.all_steps(eqn, operands, 0 if kinds[0] else 1, self.before)
        self.body.eqns.remove(eqn)
        self.body.xs.append(result)
        self.body.outer[result] = stacked
        return True

    def all_steps(self, eqn: Eqn, operands: Sequence[Atom], which: int, eqns: list[Eqn]) -> Var:
        """The stacked results of a product whose operand `which` has a leading axis of steps."""
        (lc, rc), _ = eqn.params["dimension_numbers"]
        contract = [tuple(lc), tuple(rc)]
        contract[which] = tuple(d + 1 for d in contract[which])
        ordered = list(operands) if which == 0 else [operands[1], operands[0]]
        dims = contract if which == 0 else contract[::-1]
        params = {**eqn.params, "dimension_numbers": ((dims[0], dims[1]), ((), ()))}
        out = _emit(eqns, eqn, ordered, params)
        if which == 1:  # steps, then the second operand's axes, then the first's
            own = eqn.invars[1].aval.ndim - len(rc)
            other = eqn.invars[0].aval.ndim - len(lc)
            if own and other:
                order = (0, *range(1 + own, 1 + own + other), *range(1, 1 + own))
                out = _emit(eqns, eqn.replace(primitive=transpose_p), [out], {"permutation": order})
        return out

    # ---------------------------------------------------------------- after

    def summed(self, number: int) -> bool:
        """A carry that products are added to, and that nothing else reads: their sum after the loop."""
        b = self.body
        var, out = b.carry[number], b.carry_outs[number]
        is_inexact = getattr(var.aval.dtype, "kind", "") in ("f", "c")
        if self.uses.get(var, 0) != 1 or not isinstance(out, Var) or not is_inexact:
            return False
        terms = self.terms(out, var)
        if terms is None:
            return False
        products = [t for t in terms if self.product_of(t) is not None]
        if not products:
            return False
        total: Atom = self.initial[number]
        rest = [t for t in terms if t not in products]
        left: Var | None = None
        if rest:
            left = Var(var.aval)
            total = left
        last = self.carry_results[number]
        for k, term in enumerate(products):
            one = self.over_time(term)
            new = last if k == len(products) - 1 else Var(var.aval)
            self.after.append(Eqn(add_any, [total, one], [new], {}, self.eqn.source))
            total = new
        if left is None:
            del b.carry[number], b.carry_outs[number], self.initial[number], self.carry_results[number]
        else:
            self.carry_results[number] = left
            value: Atom = var
            for term in rest:
                new = Var(var.aval)
                b.eqns.append(Eqn(add_any, [value, term], [new], {}, self.eqn.source))
                value = new
            b.carry_outs[number] = value
        return True

    def terms(self, out: Var, carry: Var) -> list[Var] | None:
        """What is added to a carry to give its next value."""
        found: list[Var] = []
        stack: list[Atom] = [out]
        seen = False
        while stack:
            atom = stack.pop()
            if atom is carry:
                seen = True
                continue
            maker = self.makers.get(atom) if isinstance(atom, Var) else None
            if maker is not None and maker.primitive.name in _SUMS and self.uses[atom] == 1 and all(  # type: ignore
                    a.aval.shape == carry.aval.shape for a in maker.invars):
                stack += maker.invars
            elif isinstance(atom, Var):
                found.append(atom)
            else:
                return None
        return found if seen else None

    def product_of(self, term: Var) -> Eqn | None:
        """The product that a term is (moved), if it is better taken over all steps at once."""
        eqn = self.makers.get(term)
        while eqn is not None and eqn.primitive in _MOVES and self.uses[eqn.outvars[0]] == 1:
            eqn = self.makers.get(eqn.invars[0]) if isinstance(eqn.invars[0], Var) else None
        if eqn is None or eqn.primitive.name != "dot_general" or self.uses[eqn.outvars[0]] != 1:
            return None
        size = sum(a.aval.size for a in eqn.invars if a not in self.body.xs)
        bytes_ = self.length * sum(_bytes(a.aval) for a in eqn.invars if a not in self.body.xs)
        if any(isinstance(a, Literal) or a in self.body.consts for a in eqn.invars) or bytes_ > MOST_BYTES:
            return None
        return eqn if size <= eqn.outvars[0].aval.size else None

    def over_time(self, term: Var) -> Var:
        """The sum of a term over all steps."""
        product = self.product_of(term)
        assert product is not None
        moves: list[Eqn] = []
        at = term
        while self.makers[at] is not product:
            moves.append(self.makers[at])
            at = self.makers[at].invars[0]  # type: ignore[assignment]
        (lc, rc), (lb, rb) = product.params["dimension_numbers"]
        dims = (((0, *(d + 1 for d in lc)), (0, *(d + 1 for d in rc))),
                (tuple(d + 1 for d in lb), tuple(d + 1 for d in rb)))
        operands = [self.stacked(a) for a in product.invars]  # type: ignore[arg-type]
        out = _emit(self.after, product, operands, {**product.params, "dimension_numbers": dims})
        for move in reversed(moves):
            out = _emit(self.after, move, [out], move.params)
        return out

    def stacked(self, var: Var) -> Atom:
        """All steps' values of a variable of the body."""
        if var in self.body.xs:
            return self.body.outer[var]
        for known, result in zip(self.body.ys, self.y_results, strict=True):
            if known is var:
                return result
        result = Var(var.aval.update(shape=(self.length, *var.aval.shape), weak_type=False))
        self.body.ys.append(var)
        self.y_results.append(result)
        return result

    def behind(self, number: int) -> bool:
        """A stacked result that is a product with a constant, and used for nothing else: after the loop."""
        b = self.body
        var = b.ys[number]
        eqn = self.makers.get(var) if isinstance(var, Var) else None
        if eqn is None or not _plain_product(eqn) or self.uses.get(var, 0) != 1:  # type: ignore[arg-type]
            return False
        fixed = [isinstance(a, Literal) or a in b.consts for a in eqn.invars]
        if fixed[0] == fixed[1]:
            return False
        which = 0 if fixed[1] else 1
        moving = eqn.invars[which]
        if moving.aval.size > LARGER * var.aval.size or self.length * _bytes(moving.aval) > MOST_BYTES:
            return False
        b.ys[number] = moving
        result = self.y_results[number]
        self.y_results[number] = Var(moving.aval.update(shape=(self.length, *moving.aval.shape), weak_type=False))
        operands: list[Atom] = [a if isinstance(a, Literal) else b.outer.get(a, a) for a in eqn.invars]
        operands[which] = self.y_results[number]
        eqns: list[Eqn] = []
        out = self.all_steps(eqn, operands, which, eqns)
        eqns[-1] = eqns[-1].replace(outvars=[result])
        assert out.aval.shape == result.aval.shape
        self.after += eqns
        return True


def _plain_product(eqn: Eqn) -> bool:
    return eqn.primitive.name == "dot_general" and not any(eqn.params["dimension_numbers"][1])


def _emit(eqns: list[Eqn], like: Eqn, operands: Sequence[Atom], params: dict[str, Any]) -> Var:
    """Appends an equation; its result."""
    aval: ShapedArray = like.primitive.infer(*(a.aval for a in operands), **params)
    out = Var(aval)
    eqns.append(Eqn(like.primitive, list(operands), [out], params, like.source))
    return out


def _bytes(aval: ShapedArray) -> int:
    return math.prod(aval.shape) * aval.dtype.itemsize
