"""What reverse mode keeps of each step of a loop, and what it computes again.

    s, i -> s + x * sin(a + i), i + 1        sin(a + i) follows from a and the step's number: nothing is kept
    s, i -> s + h * (s * s - s), i + 1       2 s follows from s: s is kept
    s, i -> sin(s), i + 1                    cos(s) is kept

What follows from constants, and from carries that never change, is computed once, before the loop; counters, `xs`
and `ys` are at hand. Of the rest a minimum cut of the body's graph tells what to store: the fewest bytes, where
operations that are done again are worth bytes, too. (Ford and Fulkerson 1956; Dinic 1970. Of residuals: Jain et al.,
Checkmate, 2020; the min-cut partitioner of PyTorch's AOTAutograd, 2022.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from anima.core import dtypes
from anima.core.avals import ShapedArray
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var, subjaxprs
from anima.core.stage import trace_to_jaxpr
from anima.ops.elementwise import add, convert, mul
from anima.ops.family import Elementwise
from anima.transforms.dce import dce_jaxpr
from anima.util import exactly, split_list, weak_cache

STEP = ShapedArray((), np.dtype(np.int32))

CHEAP = 5     # the cost of an operation that may be done again: one that costs more is stored
PER_BYTE = 8  # operations that are better than to store a byte
FEW = 64      # operations on fewer elements than these wait for each other, and
LONGEST = 12  # where more would wait for each other, the way back would wait for them: it needs their end first


class LinearizedLoop(NamedTuple):
    """The parts of a linearised loop."""

    body: ClosedJaxpr     # (consts, carry, xs) -> (results, values to store)
    outside: ClosedJaxpr  # (consts, carry) -> values that do not change
    xs: list[int]         # which operands of the body are read again
    stored: list[int]     # which results of the body are
    tangent: ClosedJaxpr  # (those values; tangents of consts, of carry, of xs; xs; stored; step if counted) -> tangents


@weak_cache
def plan_residuals(primal: ClosedJaxpr, tangent: ClosedJaxpr, n_out: int, num_consts: int, num_carry: int,
                   counted: bool) -> LinearizedLoop:
    """The plan for a body `primal: (consts, carry, xs) -> (results, residuals)`, whose first results are the next
    carry, and its linear part `tangent: (residuals, tangents) -> tangents of results`.

    `counted`: the loop may end before its first step; the number of each step is known on the way back.
    """
    jaxpr, linear = _merged(primal.jaxpr), tangent.jaxpr
    residuals = jaxpr.outvars[n_out:]
    consts, carry, xs = split_list(jaxpr.invars, [num_consts, num_carry])
    nexts = list(zip(carry, jaxpr.outvars, strict=False))
    counters = _counters(jaxpr, nexts) if counted else {}
    unchanged = {v for v, out in nexts if out is v}
    fixed = _closure(jaxpr, {*jaxpr.constvars, *consts, *unchanged}, loops=not counted)
    ys = {v: k for k, v in enumerate(jaxpr.outvars[:n_out]) if k >= num_carry and isinstance(v, Var)}
    free = _closure(jaxpr, {*fixed, *counters}, loops=False) | {*xs, *ys}
    kept = _cheapest(jaxpr, free, residuals) | {v for v in ys if v not in fixed and v not in xs and v not in counters}
    again, read = _program(jaxpr, {*fixed, *counters, *xs, *kept}, residuals)

    stored = [v for v in read if v in kept]
    results = [*jaxpr.outvars[:n_out], *(v for v in stored if v not in ys)]
    place = {v: k for k, v in enumerate(results) if k >= num_carry}
    before = [v for v in read if v in fixed]
    starts = [v for v in read if v in counters]
    at_hand = [v for v in xs if v in read]
    outside, _ = dce_jaxpr(jaxpr.replace(eqns=[e for e in jaxpr.eqns if any(v in fixed for v in e.outvars)],
                                         outvars=[*before, *starts]), [True] * (len(before) + len(starts)))

    counts = _count([(v.aval, counters[v]) for v in starts])
    at_step: dict[Atom, Atom] = dict(zip(starts, counts.outvars, strict=True))
    named = at_step | {v: at_step.get(r, r) for v, r in zip(linear.invars, residuals, strict=False)}
    tangents = linear.replace(
        invars=[*before, *counts.invars[:-1], *linear.invars[len(residuals):], *at_hand, *stored,
                *(counts.invars[-1:] if counted else ())],
        eqns=[*counts.eqns, *(e.replace(invars=[named.get(v, v) for v in e.invars]) for e in (*again, *linear.eqns))],
        outvars=[named.get(v, v) for v in linear.outvars])
    return LinearizedLoop(ClosedJaxpr(jaxpr.replace(outvars=results), primal.consts),
                          primal.part(outside.replace(invars=[*consts, *carry])),
                          [k for k, v in enumerate(jaxpr.invars) if v in at_hand], [place[v] for v in stored],
                          ClosedJaxpr(tangents, tangent.consts))


def _merged(jaxpr: Jaxpr) -> Jaxpr:
    """The program with equal things computed once: rules of derivatives compute again what the program has."""
    same: dict[Atom, Atom] = {}
    known: dict[Any, Eqn] = {}
    eqns = []
    for eqn in jaxpr.eqns:
        if any(v in same for v in eqn.invars):
            eqn = eqn.replace(invars=[same.get(v, v) for v in eqn.invars])
        atoms = (v if isinstance(v, Var) else (v.aval, np.asarray(v.val).tobytes()) for v in eqn.invars)
        key = (eqn.primitive, *atoms, *exactly(eqn.params))
        first = known.setdefault(key, eqn) if not eqn.effects and _hashable(key) else eqn
        if first is eqn:
            eqns.append(eqn)
        else:
            same.update(zip(eqn.outvars, first.outvars, strict=True))
    return jaxpr.replace(eqns=eqns, outvars=[same.get(v, v) for v in jaxpr.outvars])


def _hashable(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


def _closure(jaxpr: Jaxpr, known: set[Var], loops: bool) -> set[Var]:
    """What can be computed from `known`, effects (and loops, unless they may be run) aside."""
    found = set(known)
    for eqn in jaxpr.eqns:
        if not eqn.effects and (loops or next(subjaxprs(eqn.params), None) is None) and all(
                isinstance(v, Literal) or v in found for v in eqn.invars):
            found.update(eqn.outvars)
    return found


def _counters(jaxpr: Jaxpr, carries: Sequence[tuple[Var, Atom]]) -> dict[Var, Any]:
    """Integer scalars of the carry that grow by a constant at each step, and by how much."""
    producers: dict[Any, Eqn] = {v: e for e in jaxpr.eqns for v in e.outvars}
    found: dict[Var, Any] = {}
    for var, out in carries:
        eqn = producers.get(out)
        if (eqn is None or eqn.primitive.name not in ("add", "sub") or var.aval.shape
                or not dtypes.issubdtype(var.aval.dtype, np.integer)):
            continue
        a, b = eqn.invars
        if a is var and isinstance(b, Literal):
            found[var] = int(b.val) if eqn.primitive.name == "add" else -int(b.val)
        elif b is var and isinstance(a, Literal) and eqn.primitive.name == "add":
            found[var] = int(a.val)
    return found


def _count(counters: Sequence[tuple[ShapedArray, int]]) -> Jaxpr:
    """The program (first values, step) -> values of counters at that step."""
    def fun(*args: Any) -> list[Any]:
        *firsts, step = args
        out = []
        for (aval, stride), first in zip(counters, firsts, strict=True):
            moved = mul(convert(step, aval.dtype), np.asarray(stride).astype(aval.dtype))
            out.append(convert(add(first, moved), aval.dtype, aval.weak_type))
        return out

    return trace_to_jaxpr(fun, [*(aval for aval, _ in counters), STEP])[0]


def _program(jaxpr: Jaxpr, known: set[Var], wanted: Sequence[Atom]) -> tuple[list[Eqn], list[Var]]:
    """The equations that compute `wanted` from what is known, and what they, or `wanted`, are of that."""
    read: dict[Var, None] = {}
    todo = {v for v in wanted if isinstance(v, Var)}
    eqns: list[Eqn] = []
    for eqn in reversed(jaxpr.eqns):
        if any(v in todo and v not in known for v in eqn.outvars):
            eqns.append(eqn)
            todo.update(v for v in eqn.invars if isinstance(v, Var))
    for v in (*wanted, *(v for e in reversed(eqns) for v in e.invars)):
        if v in known:
            read[v] = None  # type: ignore[index]
    return eqns[::-1], list(read)


# ---------------------------------------------------------------- what to store

FOREVER = 1 << 62


def cost_again(eqn: Eqn) -> int | None:
    """Operations to compute an element again; None for what is stored instead."""
    primitive = eqn.primitive
    again = (primitive.moves or isinstance(primitive, Elementwise)) and primitive.cost <= CHEAP
    return math.ceil(primitive.cost) if again else None


def _cheapest(jaxpr: Jaxpr, free: set[Var], residuals: Sequence[Atom]) -> set[Var]:
    """What to store, so that residuals follow from it and from what is free.

    Each value is an edge from a node "its operands are known" to one "it is known", whose capacity is its size.
    """
    producers: dict[Var, Eqn] = {}
    waits: dict[Atom, int] = {}  # operations that follow each other from what can only be stored
    for eqn in jaxpr.eqns:
        cost = cost_again(eqn)
        if cost is not None:
            v = eqn.outvars[0]
            wait = max((waits.get(u, 0) for u in eqn.invars), default=0) + (cost if v.aval.size < FEW else 0)
            if wait <= LONGEST:
                producers[v], waits[v] = eqn, wait
    nodes: dict[Var, int] = {}
    capacity: list[dict[int, int]] = [{}, {}]  # the source, the sink

    def connect(a: int, b: int, most: int) -> None:
        capacity[a][b] = most
        capacity[b].setdefault(a, 0)

    def node(v: Var) -> int:
        if v not in nodes:
            nodes[v] = len(capacity)
            capacity.extend(({}, {}))
            todo.append(v)
        return nodes[v]

    todo: list[Var] = []
    for v in residuals:
        if isinstance(v, Var) and v not in free:
            connect(node(v) + 1, 1, FOREVER)
    while todo:
        v = todo.pop()
        at, eqn = nodes[v], producers.get(v)
        connect(at, at + 1, max(v.aval.size * v.aval.dtype.itemsize, 1) * PER_BYTE)
        connect(0, at, v.aval.size * (cost_again(eqn) or 0) if eqn is not None else FOREVER)
        for u in () if eqn is None else eqn.invars:
            if isinstance(u, Var) and u not in free:
                connect(node(u) + 1, at, FOREVER)
    needed = _sink_side(capacity)
    return {v for v, at in nodes.items() if at + 1 in needed and at not in needed}


def _sink_side(capacity: list[dict[int, int]]) -> set[int]:
    """The nodes on the side of the sink (1) of the minimum cut from the source (0) that is nearest to the sink.

    Dinic's algorithm: as long as there are ways that can take more, fill the shortest. Leaves `capacity` as what
    is left of it.
    """
    while 1 in (level := _levels(capacity)):
        ways = [iter(edges) for edges in capacity]
        path = [0]
        while path:
            last = path[-1]
            if last == 1:
                edges = list(pairwise(path))
                flow = min(capacity[a][b] for a, b in edges)
                for a, b in edges:
                    capacity[a][b] -= flow
                    capacity[b][a] += flow
                del path[1 + next(k for k, (a, b) in enumerate(edges) if not capacity[a][b]):]
                continue
            step = next((b for b in ways[last] if capacity[last][b] and level.get(b) == level[last] + 1), None)
            if step is None:
                path.pop()
            else:
                path.append(step)
    found, todo = {1}, [1]
    while todo:
        b = todo.pop()
        more = [a for a in capacity[b] if a not in found and capacity[a][b]]
        found.update(more)
        todo += more
    return found


def _levels(capacity: list[dict[int, int]]) -> dict[int, int]:
    """How many edges each node that the source still reaches is away from it."""
    level, front = {0: 0}, [0]
    while front and 1 not in level:
        reached = {b: None for a in front for b, left in capacity[a].items() if left and b not in level}
        depth = level[front[0]] + 1
        front = list(reached)
        level.update(dict.fromkeys(front, depth))
    return level
