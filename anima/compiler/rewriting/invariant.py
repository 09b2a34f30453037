"""Work that every iteration of a loop would do alike, done once before it.

    while: x = x * exp(a)            ->      e = exp(a);  while: x = x * e           a is constant in the loop

What only moves elements, or makes an array much larger than what it is made of, stays in the loop: there it
costs nothing, or less than memory would. A loop without iterations pays for what it does not use; nothing
that is moved has effects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anima.compiler.rewriting.inline import has_programs
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Literal, Var
from anima.ops.contract import dot_general_p
from anima.ops.shape import transpose_p
from anima.util import split_list

LARGER = 4     # elements of a result, for one of its operands, up to which it is kept
SHORT = 32     # most elements of rows that are not added up across lanes,
LONG = 4       # least rows of a matrix for each of its columns,
MOST = 1 << 18  # and most elements of it: of larger ones, memory is the limit


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

    def made_of(v: Var) -> int:
        """Elements of what a value that was only moved consists of; none of numbers."""
        eqn = makers.get(v)
        if eqn is None or not (eqn.primitive.moves or id(eqn) in free):
            return v.aval.size
        return sum(made_of(x) for x in eqn.invars if isinstance(x, Var))

    free: set[int] = set()  # equations that depend on numbers alone, by id: each side makes its own
    eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        if (turned := _turned(eqn, lambda v: v in known or (v in makers and id(makers[v]) not in free))) is not None:
            columns, eqn = turned
            makers[columns.outvars[0]] = columns
            wanted.append(columns)
            eqns.append(columns)
        eqns.append(eqn)
        reads = [v for v in eqn.invars if not isinstance(v, Literal)]
        if eqn.effects or has_programs(eqn.params) or any(v not in known and v not in makers for v in reads):
            continue
        with_numbers = [v for v in reads if id(makers.get(v)) in free]
        if len(with_numbers) == len(reads):
            free.add(id(eqn))
        elif with_numbers and sum(v.aval.size for v in eqn.outvars) > LARGER * sum(map(made_of, reads)):
            continue
        makers.update(dict.fromkeys(eqn.outvars, eqn))
        if id(eqn) in free:
            continue
        size = sum(v.aval.size for v in reads)
        if not eqn.primitive.moves and sum(v.aval.size for v in eqn.outvars) <= LARGER * size:
            wanted.append(eqn)
    if not wanted:
        return [], closed, list(consts)
    moved = _with_operands(wanted, makers)
    before: list[Eqn] = []
    for eqn in eqns:
        if id(eqn) in moved:
            outs = [Var(v.aval) for v in eqn.outvars]
            before.append(eqn.replace(invars=[v if isinstance(v, Literal) else known[v] for v in eqn.invars],
                                      outvars=outs))
            known.update(zip(eqn.outvars, outs, strict=True))
    moved -= free
    left = [e for e in eqns if id(e) not in moved]
    read = {v for v in (*(v for e in left for v in e.invars), *jaxpr.outvars) if isinstance(v, Var)}
    more = [v for e in eqns if id(e) in moved for v in e.outvars if v in read]
    count = len(consts)
    body = jaxpr.replace(invars=[*jaxpr.invars[:count], *more, *jaxpr.invars[count:]], eqns=left)
    return before, ClosedJaxpr(body, closed.consts), [*consts, *(known[v] for v in more)]


def _turned(eqn: Eqn, is_fixed: Callable[[Var], bool]) -> tuple[Eqn, Eqn] | None:
    """A product of a fixed matrix with many short rows and a vector: the matrix with its columns in rows, and the
    product of that: lanes are then along its rows, which are long, and nothing is summed across lanes."""
    if eqn.primitive is not dot_general_p:
        return None
    (contracted, batch), shapes = eqn.params["dimension_numbers"], [v.aval.shape for v in eqn.invars]
    for k, matrix in enumerate(eqn.invars):
        if (isinstance(matrix, Literal) or batch[0] or len(shapes[k]) != 2 or len(shapes[1 - k]) != 1
                or contracted[k] != (1,) or not is_fixed(matrix)):
            continue
        rows, columns = shapes[k]
        if columns > SHORT or rows < LONG * columns or rows * columns > MOST:
            continue
        turn = {"permutation": (1, 0)}
        moved = Var(transpose_p.infer(matrix.aval, **turn))
        operands = [moved if j == k else v for j, v in enumerate(eqn.invars)]
        params = {**eqn.params, "dimension_numbers": (((0,), (0,)), batch)}
        return (eqn.replace(primitive=transpose_p, params=turn, invars=[matrix], outvars=[moved]),
                eqn.replace(invars=operands, params=params))
    return None


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
