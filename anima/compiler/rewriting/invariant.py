"""Work that every iteration of a loop would do alike, done once before it.

    while: x = x * exp(a)            ->      e = exp(a);  while: x = x * e           a is constant in the loop

What only moves elements, or makes an array much larger than what it is made of, stays in the loop: there it
costs nothing, or less than memory would. A loop without iterations pays for what it does not use; nothing
that is moved has effects.
"""

from __future__ import annotations

from collections.abc import Sequence

from anima.compiler.rewriting.inline import has_programs
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Literal, Var
from anima.util import split_list

LARGER = 4  # elements of a result, for one of its operands, up to which it is kept


def invariant(eqn: Eqn) -> tuple[list[Eqn], Eqn]:
    """What comes before a `scan` or `while`, and what is left of it."""
    p = eqn.params
    if eqn.primitive.name == "while":
        for_cond, for_body, carry = split_list(eqn.invars, [p["cond_nconsts"], p["body_nconsts"]])
        first, cond, for_cond = _taken_out(p["cond_jaxpr"], for_cond)
        second, body, for_body = _taken_out(p["body_jaxpr"], for_body)
        if not first and not second:
            return [], eqn
        params = {**p, "cond_jaxpr": cond, "body_jaxpr": body, "cond_nconsts": len(for_cond),
                  "body_nconsts": len(for_body)}
        return [*first, *second], eqn.replace(params=params, invars=[*for_cond, *for_body, *carry])
    consts, others = split_list(eqn.invars, [p["num_consts"]])
    before, body, consts = _taken_out(p["jaxpr"], consts)
    if not before:
        return [], eqn
    args = [*consts, *others]
    params = {**p, "jaxpr": body, "num_consts": len(consts), "linear": (False,) * len(args)}
    return before, eqn.replace(params=params, invars=args)


def _taken_out(closed: ClosedJaxpr, consts: Sequence[Atom]) -> tuple[list[Eqn], ClosedJaxpr, list[Atom]]:
    """The equations that depend on the first arguments alone, for their values outside (`consts`); the program
    without these, with their results as more such arguments; all their values."""
    jaxpr = closed.jaxpr
    known: dict[Var, Atom] = dict(zip(jaxpr.invars, consts, strict=False))
    makers: dict[Var, Eqn] = {}
    wanted: list[Eqn] = []
    for eqn in jaxpr.eqns:
        reads = [v for v in eqn.invars if not isinstance(v, Literal)]
        if not reads or eqn.effects or has_programs(eqn.params) or any(
                v not in known and v not in makers for v in reads):
            continue
        makers.update(dict.fromkeys(eqn.outvars, eqn))
        size = sum(v.aval.size for v in reads)
        if not eqn.primitive.moves and sum(v.aval.size for v in eqn.outvars) <= LARGER * size:
            wanted.append(eqn)
    if not wanted:
        return [], closed, list(consts)
    moved = _with_operands(wanted, makers)
    before: list[Eqn] = []
    for eqn in jaxpr.eqns:
        if id(eqn) in moved:
            outs = [Var(v.aval) for v in eqn.outvars]
            before.append(eqn.replace(invars=[v if isinstance(v, Literal) else known[v] for v in eqn.invars],
                                      outvars=outs))
            known.update(zip(eqn.outvars, outs, strict=True))
    left = [e for e in jaxpr.eqns if id(e) not in moved]
    read = {v for v in (*(v for e in left for v in e.invars), *jaxpr.outvars) if isinstance(v, Var)}
    more = [v for e in jaxpr.eqns if id(e) in moved for v in e.outvars if v in read]
    count = len(consts)
    body = jaxpr.replace(invars=[*jaxpr.invars[:count], *more, *jaxpr.invars[count:]], eqns=left)
    return before, ClosedJaxpr(body, closed.consts), [*consts, *(known[v] for v in more)]


def _with_operands(eqns: Sequence[Eqn], makers: dict[Var, Eqn]) -> set[int]:
    """Equations and those that their operands come from, by id."""
    found: set[int] = set()
    stack = list(eqns)
    while stack:
        eqn = stack.pop()
        if id(eqn) not in found:
            found.add(id(eqn))
            stack += [makers[v] for v in eqn.invars if isinstance(v, Var) and v in makers]
    return found
