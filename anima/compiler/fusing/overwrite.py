"""Updates in place: what is read before an array is written over, and whose memory a result takes.

    t = a[i];  b = a.at[i].set(a[j]);  c = b.at[j].set(t)       ->      t is read first; b and c are in a's memory

Scatters, dynamic updates, loops and branches make a result out of an operand: that may be written over where
nothing reads it later. `reads_first` asks for this when kernels are chosen: small values that come from such an
array are computed of their own, and all that reads it is done before. `overwritten` looks at the groups that came
out, and gives the pairs for which it holds; lowering believes nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from functools import partial
from heapq import heappop, heappush

from anima.compiler.fusing.materialise import acts_elementwise, is_view
from anima.compiler.fusing.windows import follows, read, written
from anima.compiler.ir.groups import Fused, Group, home_of
from anima.compiler.lowering.reduce import Sweeps
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Var
from anima.util import record, weak_cache

SMALLER = 4   # times: how much smaller than an array what is read of it before has to be
MOST = 1000   # steps from an array to what it is made of, or what reads it: with more, it is copied

Pairs = Sequence[tuple[Var, Atom]]  # what a loop carries: the array, and the one that takes its place


def pairs(eqn: Eqn) -> list[tuple[int, int]]:
    """Positions of operands and of results that may take over their memory."""
    if eqn.primitive.updates:
        return [(0, 0)]
    found: dict[int, int] = {}
    inner = [(i, i.given) for i in eqn.primitive.inner(eqn.params) if i.given is not None]
    for program, given in inner:
        found.update((given + program.first + k, k) for k in range(program.carries))
    if found:
        return list(found.items())
    for k, result in enumerate(eqn.outvars if inner else ()):  # of branches
        for branch, given in inner:
            n = _origins(branch.program)[k]
            if n is not None and eqn.invars[given + n].aval.size == result.aval.size and given + n not in found:
                found[given + n] = k
                break
    return list(found.items())


@weak_cache
def _origins(closed: ClosedJaxpr) -> list[int | None]:
    """For each result the argument that it is, or that updates and elementwise operations make it of."""
    jaxpr = closed.jaxpr
    arguments = {v: n for n, v in enumerate(jaxpr.invars)}
    makers = {v: (e, k) for e in jaxpr.eqns for k, v in enumerate(e.outvars)}

    def origin(atom: Atom) -> int | None:
        while type(atom) is Var and atom not in arguments and atom in makers:
            step = _made_of(*makers[atom])
            if not step:
                return None
            atom = step[0]
        return arguments.get(atom) if type(atom) is Var and atom.aval.shape else None

    return [origin(v) for v in jaxpr.outvars]


def _made_of(eqn: Eqn, k: int) -> list[Atom]:
    """Operands that may become the result number `k` of an equation in their own memory."""
    if is_view(eqn):
        return list(eqn.invars)
    if acts_elementwise(eqn):
        out = eqn.outvars[k].aval
        return [v for v in eqn.invars if v.aval.shape == out.shape and v.aval.dtype == out.dtype]
    return [eqn.invars[n] for n, j in pairs(eqn) if j == k]


def is_single(eqn: Eqn) -> bool:
    """Whether an update writes one element, after all that it reads."""
    name = eqn.primitive.name
    return eqn.primitive.updates and eqn.invars[1 if name == "dynamic_update_slice" else 2].aval.size == 1


# ---------------------------------------------------------------- before kernels are chosen


@record(eq=False)
class Reads:
    """`early` are variables to be computed of their own, `order` an order of the roots, `before` says by the number
    of an equation that overwrites which others read before."""

    early: frozenset[Var]
    order: list[int]
    before: dict[int, list[int]]


class ReadsFirst:
    """Finds, for every array that an equation may write over, what reads it."""

    def __init__(self, jaxpr: Jaxpr, views: dict[Var, Var], roots: set[int], carried: Pairs):
        self.jaxpr = jaxpr
        self.home = partial(home_of, views)
        self.roots = roots
        self.last: dict[Var, int] = {}  # of what is folded: the number of the last root that computes it
        self.users: dict[Var, list[int]] = {}
        self.given: dict[int, Counter[Atom]] = {}  # the operands of what updates, loops or branches
        self.folded: list[tuple[int, int, Eqn]] = []  # what reads an array, with a root that comes before another one
        self.makers = {v: e for e in jaxpr.eqns for v in e.outvars}
        self.over = self._candidates(carried)

    def _candidates(self, carried: Pairs) -> dict[Var, int]:
        """Arrays, and the number of the (last) root that may write over them."""
        fixed = set(self.jaxpr.constvars) | {self.home(v) for v in self.jaxpr.outvars} - set(self.jaxpr.invars)
        over: dict[Var, int] = {}
        for number, eqn in enumerate(self.jaxpr.eqns):
            if number not in self.roots:
                continue
            taken = pairs(eqn)
            if taken:
                self.given[number] = Counter(map(self.home, eqn.invars))
            for place, _ in taken:
                array = self.home(eqn.invars[place])
                if type(array) is Var and array.aval.size > 1 and array not in fixed:
                    over[array] = number
        makers = {v: n for n, e in enumerate(self.jaxpr.eqns) for v in e.outvars} if carried else {}
        for array, result in carried:
            if array.aval.size > 1 and array not in over and array not in fixed:
                first = self._first(array, result, makers)
                if first is not None:
                    over[array] = first
        return over

    def _first(self, array: Var, result: Atom, makers: dict[Var, int]) -> int | None:
        """The root that makes the first of the arrays of which, in turn, a result is made of `array`."""
        number = None
        for _ in range(MOST):
            if type(result) is not Var or result is array or result not in makers:
                break
            here = makers[result]
            number = here if here in self.roots and self.home(result) is result else number
            eqn = self.jaxpr.eqns[here]
            step = _made_of(eqn, eqn.outvars.index(result))
            if not step:
                break
            result = array if array in step else step[0]
        return number

    def run(self) -> Reads:
        order = sorted(self.roots)
        if not self.over:
            return Reads(frozenset(), order, {})
        self._note_users()
        early: set[Var] = set()
        before: dict[int, list[int]] = {}
        for array, number in self.over.items():
            readers, wanted = self._readers(array, number)
            early |= wanted
            if readers:
                before.setdefault(number, []).extend(sorted(readers))
        if any(reader > number for number, readers in before.items() for reader in readers):
            order = self._ordered(before)
            places = {number: place for place, number in enumerate(order)}
            for end, number, eqn in self.folded:
                if places[end] > places[number]:  # now it comes after what writes over the array
                    early.update(eqn.outvars)
        return Reads(frozenset(early), order, before)

    def _note_users(self) -> None:
        eqns = self.jaxpr.eqns
        for number in range(len(eqns) - 1, -1, -1):
            eqn = eqns[number]
            root = number in self.roots
            end = number if root else max((self.last.get(v, -1) for v in eqn.outvars), default=-1)
            for v in eqn.invars:
                if type(v) is Var:
                    self.users.setdefault(v, []).append(number)
                    self.last[v] = max(self.last.get(v, -1), end)

    def _readers(self, array: Var, number: int) -> tuple[set[int], set[Var]]:
        """The roots that read an array which root `number` writes over, other than that one; and the values made of
        the array that are better computed first."""
        eqns, overwriting = self.jaxpr.eqns, self.jaxpr.eqns[number]
        readers: set[int] = set()
        early: set[Var] = set()
        stack: list[tuple[Var, bool | None]] = [(array, True)]  # None: the elements that are written over, in order
        seen: set[tuple[Var, bool | None]] = set(stack)
        window = written(overwriting, self.makers) if overwriting.primitive.updates else None
        steps = 0
        while stack:
            var, same = stack.pop()
            steps += len(self.users.get(var, ()))
            if steps > MOST:
                return set(), set()
            for user in self.users.get(var, ()):
                eqn = eqns[user]
                if user == number:
                    if not self._can_write(number, array, var, same):
                        return readers, set()
                    if (number in self.given and self.home(var) is not array and same is not None
                            and not is_single(overwriting)):
                        early.add(var)
                    continue
                if user in self.roots:
                    readers.add(user)
                    continue
                ends = max(self.last.get(v, -1) for v in eqn.outvars)
                in_window = window is not None and ends <= number and (
                    follows(eqn, var) if same is None else same and read(eqn, array, self.home) == window)
                small = SMALLER * sum(v.aval.size for v in eqn.outvars) <= array.aval.size
                if small and not is_view(eqn) and not in_window:
                    if ends > number or (ends == number and not is_single(overwriting)):
                        early.update(eqn.outvars)
                    elif 0 <= ends < number:
                        self.folded.append((ends, number, eqn))
                    continue
                after = None if in_window else bool(same) and follows(eqn, var)
                for v in eqn.outvars:
                    if (v, after) not in seen:
                        seen.add((v, after))
                        stack.append((v, after))
        return readers, early

    def _can_write(self, number: int, array: Var, var: Var, same: bool | None) -> bool:
        """Whether an equation may write over an array although it reads `var`, which is made of that."""
        eqn = self.jaxpr.eqns[number]
        if number not in self.given:
            return bool(same) and acts_elementwise(eqn) and var.aval.size == eqn.outvars[0].aval.size
        return self.home(var) is not array or self.given[number][array] == 1

    def _ordered(self, before: dict[int, list[int]]) -> list[int]:
        """The roots in an order in which what writes over an array waits for all that reads it, as far as that does
        not wait for the former; effects keep their order. What could not wait is left out of `before`."""
        eqns = self.jaxpr.eqns
        makers = {v: n for n, e in enumerate(eqns) for v in e.outvars}
        effects = [n for n, e in enumerate(eqns) if e.effects]
        previous = dict(zip(effects[1:], effects, strict=False))
        followers: dict[int, list[int]] = {}
        needs, waits = [0] * len(eqns), [0] * len(eqns)  # how many have to come before, and how many should
        for number, eqn in enumerate(eqns):
            first = {makers[v] for v in eqn.invars if type(v) is Var and v in makers}
            first |= {previous[number]} if number in previous else set()
            for other in first:
                followers.setdefault(other, []).append(number)
            needs[number] = len(first)
        waiting: dict[int, list[int]] = {}
        for number, readers in before.items():
            waits[number] = len(set(readers))
            for reader in set(readers):
                waiting.setdefault(reader, []).append(number)
        sizes = Counter(dict.fromkeys(before, 0))  # of what is copied if an equation does not wait
        for array, number in self.over.items():
            sizes[number] += array.aval.size
        ready = [n for n, count in enumerate(needs) if not count and not waits[n]]
        held = sorted((sizes[n], n) for n, count in enumerate(needs) if not count and waits[n])
        placed: dict[int, int] = {}
        while ready or held:
            number = heappop(ready) if ready else heappop(held)[1]
            if number in placed:
                continue
            placed[number] = len(placed)
            for other in followers.get(number, ()):
                needs[other] -= 1
                if not needs[other] and waits[other]:
                    heappush(held, (sizes[other], other))
                elif not needs[other]:
                    heappush(ready, other)
            for other in waiting.get(number, ()):
                waits[other] -= 1
                if not waits[other] and not needs[other]:
                    heappush(ready, other)
        for number in before:
            before[number] = [n for n in before[number] if placed[n] < placed[number]]
        return [n for n in placed if n in self.roots]


# ---------------------------------------------------------------- after kernels were chosen


def overwritten(fused: Fused) -> dict[Var, Var]:
    """Results of updates, loops and branches, and the operands over which they may be written: nothing else of the
    same group reads these, and no later one. Constants and results of the program stay; so do arguments that are its
    results, unless they are copied before anything else."""
    jaxpr = fused.closed.jaxpr
    kept = fused.results - set(jaxpr.invars) | set(jaxpr.constvars)
    over: dict[Var, Var] = {}
    read: set[Var] = set()  # by later groups
    for group in reversed(fused.groups):
        if group.kind == "call":
            eqn = group.roots[0]
            for place, k in pairs(eqn):
                operand, result = eqn.invars[place], eqn.outvars[k]
                if type(operand) is not Var or not result.aval.shape:
                    continue
                array = fused.home(operand)
                if (array not in kept and array not in read and array not in group.moved
                        and array.aval.size == result.aval.size and array.aval.dtype == result.aval.dtype):
                    over[result] = array
        read.update(group.reads)
    return over


class MemoryReuse:
    """Which values of a program may be in the memory of one of its arguments, in turn."""

    def __init__(self, fused: Fused):
        self.fused = fused
        self.writers = {v: n for n, g in enumerate(fused.groups) for e in g.roots for v in e.outvars}
        self.kept = fused.results - set(fused.closed.jaxpr.invars) | set(fused.closed.jaxpr.constvars)
        self.last: dict[Var, int] = {}  # groups that read
        self.sweeps: dict[Group, Sweeps] = {}
        for n, group in enumerate(fused.groups):
            self.last.update(dict.fromkeys(group.reads, n))

    def chain(self, result: Var) -> list[Var]:
        """A result, what it is written over, what that is written over, ..."""
        found = [result]
        while found[-1] in self.fused.over:
            found.append(self.fused.over[found[-1]])
        return found

    def over(self, array: Var, result: Var, placed: Container[Var]) -> list[Var] | None:
        """The values, none of which has been placed, that may be in the memory of an argument, from the result
        backwards; None if the result may not be there."""
        if array.aval.size != result.aval.size or array.aval.dtype != result.aval.dtype:
            return None
        before: dict[Var, Var] = {}
        stack = [result]
        while stack:
            var = stack.pop()
            if var is array:
                found = []
                while var is not result:
                    var = before[var]
                    found.append(var)
                return found
            for other in self._operands(var):
                if other not in before and (other is array or other not in placed):
                    before[other] = var
                    stack.append(other)
        found = self.chain(result)
        writer = self.writers.get(found[-1])
        return found if writer is not None and self._is_free(array, found[-1], writer) else None

    def is_read(self, array: Var) -> bool:
        """Whether an argument is read, or returned."""
        return array in self.last or array in self.fused.results

    def _operands(self, var: Var) -> list[Var]:
        """Arrays over which a value may be written."""
        if var in self.fused.over:
            return [self.fused.over[var]]
        writer = self.writers.get(var)
        group = None if writer is None else self.fused.groups[writer]
        if writer is None or group is None or group.kind == "call":
            return []
        return [v for v in group.reads if self.last[v] == writer and v not in self.kept and v.aval.shape
                and v.aval.size == var.aval.size and v.aval.dtype == var.aval.dtype and self._in_step(group, v, var)]

    def _is_free(self, array: Var, result: Var, writer: int) -> bool:
        """Whether a group may write a result to the memory of an argument: nothing reads that later, nor at another
        index."""
        last = self.last.get(array, -1)
        group = self.fused.groups[writer]
        return last < writer or (last == writer and group.kind != "call" and self._in_step(group, array, result))

    def _in_step(self, group: Group, operand: Var, result: Var) -> bool:
        """Whether each element of an operand that a kernel reads is read before the same one of a result is stored."""
        if operand in group.moved or group.cuts:
            return False
        if group.kind == "map":
            return True
        if group not in self.sweeps:
            self.sweeps[group] = Sweeps(group, self.fused.producers, self.fused.stored)
        return self.sweeps[group].written_last(result, operand)
