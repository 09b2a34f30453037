"""Work that every iteration of a loop would do alike, done once before it.

    while: x = x * exp(a)            ->      e = exp(a);  while: x = x * e           a is constant in the loop

What only moves elements, or makes an array much larger than what it is made of, stays in the loop: there it
costs nothing, or less than memory would. A loop without iterations pays for what it does not use; nothing
that is moved has effects. Loops within are moved, too: those that may not end, where there are iterations for sure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from anima.compiler.lowering.contract import SMALL_PRODUCT
from anima.compiler.rewriting.inline import has_programs
from anima.control.elimination import tridiagonal_factors_p, tridiagonal_solve_p, tridiagonal_substitution_p
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Literal, Var, subjaxprs
from anima.ops.contract import dot_general_p
from anima.ops.shape import transpose_p
from anima.util import split_list

LARGER = 4     # elements of a result, for one of its operands, up to which it is kept
SHORT = 32     # most elements of rows that are not added up across lanes,
LONG = 4       # least rows of a matrix for each of its columns,
MOST = 1 << 18  # and most elements of it: of larger ones, memory is the limit
TALL = 32       # rows of which any matrix is turned
FEW = 3 << 12   # that has at most so many elements
_LOOPS = ("cond", "scan", "while")
LINES = 8       # columns of a result up to which a small product is written out


def invariant(eqn: Eqn) -> tuple[list[Eqn], Eqn]:
    """What comes before a `scan` or `while`, and what is left of it."""
    p = eqn.params
    if eqn.primitive.name == "while":
        for_cond, for_body, carry = split_list(eqn.invars, [p["cond_nconsts"], p["body_nconsts"]])
        first, cond, for_cond = _taken_out(p["cond_jaxpr"], for_cond, True)
        second, body, for_body = _taken_out(p["body_jaxpr"], for_body, False)
        if not first and not second:
            return [], eqn
        params = {**p, "cond_jaxpr": cond, "body_jaxpr": body, "cond_nconsts": len(for_cond),
                  "body_nconsts": len(for_body)}
        return [*first, *second], eqn.replace(params=params, invars=[*for_cond, *for_body, *carry])
    consts, others = split_list(eqn.invars, [p["num_consts"]])
    before, body, consts = _taken_out(p["jaxpr"], consts, p["length"] > 0)
    if not before:
        return [], eqn
    args = [*consts, *others]
    params = {**p, "jaxpr": body, "num_consts": len(consts), "linear": (False,) * len(args)}
    return before, eqn.replace(params=params, invars=args)


def _taken_out(closed: ClosedJaxpr, consts: Sequence[Atom], runs: bool) -> tuple[list[Eqn], ClosedJaxpr, list[Atom]]:
    """The equations that depend on the first arguments alone, for their values outside (`consts`); the program
    without these, with their results as more such arguments; all their values. `runs` tells that it does so at least
    once."""
    jaxpr = closed.jaxpr
    found = _InvariantEqns(jaxpr.invars[:len(consts)], Counter(v for e in jaxpr.eqns for v in e.invars), runs)
    for eqn in jaxpr.eqns:
        found.add(eqn)
    if not found.wanted:
        return [], closed, list(consts)
    known: dict[Var, Atom] = dict(zip(jaxpr.invars, consts, strict=False))
    moved = _with_operands(found.wanted, found.makers)
    before: list[Eqn] = []
    for eqn in found.eqns:
        if id(eqn) in moved:
            outs = [Var(v.aval) for v in eqn.outvars]
            before.append(eqn.replace(invars=[v if isinstance(v, Literal) else known[v] for v in eqn.invars],
                                      outvars=outs))
            known.update(zip(eqn.outvars, outs, strict=True))
    moved -= found.free
    left = [e for e in found.eqns if id(e) not in moved]
    read = {v for v in (*(v for e in left for v in e.invars), *jaxpr.outvars) if isinstance(v, Var)}
    more = [v for e in found.eqns if id(e) in moved for v in e.outvars if v in read]
    count = len(consts)
    body = jaxpr.replace(invars=[*jaxpr.invars[:count], *more, *jaxpr.invars[count:]], eqns=left)
    return before, ClosedJaxpr(body, closed.consts), [*consts, *(known[v] for v in more)]


class _InvariantEqns:
    """The equations of a loop's body, and which of them give the same in every iteration.

    `makers` has these by their results, `wanted` those that are worth a place before the loop. Those that are `free`,
    by id, depend on numbers alone: each side makes its own. `made_of` has how many elements of others a value consists
    of that was only moved, none for numbers.
    """

    def __init__(self, consts: Sequence[Var], uses: Counter[Atom], runs: bool) -> None:
        self.consts, self.uses, self.runs = set(consts), uses, runs
        self.eqns: list[Eqn] = []
        self.makers: dict[Var, Eqn] = {}
        self.wanted: list[Eqn] = []
        self.free: set[int] = set()
        self.made_of: dict[Var, int] = {}

    def add(self, eqn: Eqn) -> None:
        """The next equation."""
        found = _turned(eqn, lambda v: self._is_known(v) and not self._is_free(v), self.uses) or _factored(
            eqn, self._is_known)
        if found is not None:
            first, eqn = found
            self.makers.update(dict.fromkeys(first.outvars, first))
            self.wanted.append(first)
            self.eqns.append(first)
        self.eqns.append(eqn)
        transposed = _transposed_factor(eqn, self.makers)
        if transposed is not None:
            self.wanted.append(transposed)
        reads = [v for v in eqn.invars if not isinstance(v, Literal)]
        if eqn.effects or any(v not in self.consts and v not in self.makers for v in reads):
            return
        if has_programs(eqn.params):
            if reads and eqn.primitive.name in _LOOPS and (self.runs or _ends(eqn)):
                self.wanted.append(eqn)
                self.makers.update(dict.fromkeys(eqn.outvars, eqn))
            return
        size, free = sum(v.aval.size for v in eqn.outvars), [v for v in reads if self._is_free(v)]
        if len(free) == len(reads):
            self.free.add(id(eqn))
        elif free and size > LARGER * sum(map(self._elements, reads)):
            return
        elif not eqn.primitive.moves and size <= LARGER * sum(v.aval.size for v in reads):
            self.wanted.append(eqn)
        self.makers.update(dict.fromkeys(eqn.outvars, eqn))
        if eqn.primitive.moves or id(eqn) in self.free:
            self.made_of.update(dict.fromkeys(eqn.outvars, sum(map(self._elements, reads))))

    def _is_known(self, v: Atom) -> bool:
        return isinstance(v, Literal) or v in self.consts or v in self.makers

    def _is_free(self, v: Var) -> bool:
        return id(self.makers.get(v)) in self.free

    def _elements(self, v: Var) -> int:
        return self.made_of.get(v, v.aval.size)


def _ends(eqn: Eqn) -> bool:
    """Whether an equation has an end for sure."""
    return eqn.primitive.name != "while" and all(_ends(e) for inner in subjaxprs(eqn.params) for e in inner.eqns)


def _factored(eqn: Eqn, is_known: Callable[[Atom], bool]) -> tuple[Eqn, Eqn] | None:
    """A system with three fixed diagonals and another right side: the elimination, and what it does to that."""
    if eqn.primitive is not tridiagonal_solve_p or eqn.params["perturb_singular"]:
        return None
    *matrix, right = eqn.invars
    if right.aval.dtype.kind == "c" or right.aval.shape[-2] < 2 or is_known(right) or not all(map(is_known, matrix)):
        return None
    factors = [Var(a) for a in tridiagonal_factors_p.infer(*(v.aval for v in matrix))]
    return (eqn.replace(primitive=tridiagonal_factors_p, params={}, invars=matrix, outvars=factors),
            eqn.replace(primitive=tridiagonal_substitution_p, params={}, invars=[*factors, right]))


def _turned(eqn: Eqn, is_fixed: Callable[[Var], bool], uses: Counter[Atom]) -> tuple[Eqn, Eqn] | None:
    """A product of a fixed matrix with many short rows, or a small one, and a vector: the matrix with its columns in
    rows, and the product of that: lanes are then along its rows, and nothing is summed across lanes."""
    if eqn.primitive is not dot_general_p:
        return None
    (contracted, batch), shapes = eqn.params["dimension_numbers"], [v.aval.shape for v in eqn.invars]
    for k, matrix in enumerate(eqn.invars):
        if (isinstance(matrix, Literal) or batch[0] or len(shapes[k]) != 2 or len(shapes[1 - k]) != 1
                or contracted[k] != (1,) or not is_fixed(matrix)):
            continue
        rows, columns = shapes[k]
        long = columns <= SHORT and rows >= LONG * columns and rows * columns <= MOST
        few = FEW if uses[matrix] == 1 else FEW // 4  # else the cache has it twice
        if not long and (rows < TALL or rows * columns > few):
            continue
        turn = {"permutation": (1, 0)}
        moved = Var(transpose_p.infer(matrix.aval, **turn))
        operands = [moved if j == k else v for j, v in enumerate(eqn.invars)]
        params = {**eqn.params, "dimension_numbers": (((0,), (0,)), batch)}
        return (eqn.replace(primitive=transpose_p, params=turn, invars=[matrix], outvars=[moved]),
                eqn.replace(invars=operands, params=params))
    return None


def _transposed_factor(eqn: Eqn, makers: dict[Var, Eqn]) -> Eqn | None:
    """What transposes the right matrix of a small product: of the matrix as it was, rows are summed across lanes."""
    if eqn.primitive is not dot_general_p or [v.aval.ndim for v in eqn.invars] != [2, 2]:
        return None
    x, y = eqn.invars
    made = makers.get(y) if isinstance(y, Var) else None
    plain = eqn.params["dimension_numbers"] == (((1,), (0,)), ((), ()))
    if made is None or made.primitive is not transpose_p or not plain or y.aval.shape[1] <= LINES:
        return None
    return made if x.aval.shape[0] * y.aval.size <= SMALL_PRODUCT else None


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
