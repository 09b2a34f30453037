"""Propagation: how the values of a program are cut, from how its arguments are and from what the program asks for.

    outs = propagate(closed, [NamedSharding(mesh, P("x")), None])     # None: not known, propagation may choose

Each primitive says by its `sharding_rule` which dimensions of its operands and results go together: they have a factor
in common, and what one is cut along, the others are, unless an axis is taken already. That is applied forwards and
backwards until nothing changes: first where all operands and results have all factors (elementwise operations), since
that costs no communication, then everywhere. Of two factors that want one axis, that with more parts gets it, then that
of the first operand; where two operands want a factor on different axes, it is cut no further.
The method is that of Shardy (OpenXLA) and of GSPMD (Xu et al., 2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from anima.core.avals import ShapedArray, ShardedArray
from anima.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from anima.core.mesh import AbstractMesh, Mesh
from anima.core.partition import UNCONSTRAINED, PartitionSpec, axes_of
from anima.core.primitive import Primitive, ShardingRule
from anima.core.sharding_rules import Factor
from anima.core.shardings import NamedSharding, Sharding

Axes = tuple[Any, ...]


class ShardedValue:
    """How one value of a program is cut: `axes` of each dimension; `open` are those that propagation may cut more.

    Along `typed` axes only its type cuts it. A type that cuts all dimensions says all (in JAX, too, types close what
    they cut, and leave the others open)."""

    __slots__ = ("axes", "open", "shape", "typed")

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)
        self.axes: list[Axes] = [()] * len(self.shape)
        self.open = [True] * len(self.shape)
        self.typed: frozenset[Any] = frozenset()

    @classmethod
    def of(cls, aval: ShapedArray) -> ShardedValue:
        """A value of a type, cut as that tells."""
        made = cls(aval.shape)
        if type(aval) is ShardedArray:
            made.typed = frozenset(aval.sharding.mesh.explicit_axes)
            made.axes = [axes_of(p) for p in aval.sharding.spec]
            made.open = [not all(made.axes)] * len(made.shape)
        return made

    @property
    def used(self) -> set[Any]:
        return {name for axes in self.axes for name in axes}

    def fix(self, spec: PartitionSpec) -> None:
        """Cuts the value so, as far as its type does not tell; only dimensions that are UNCONSTRAINED stay open."""
        for k, partition in enumerate(spec.padded(len(self.shape))):
            if k < len(self.axes):
                asked, mine = axes_of(partition), self.axes[k]
                if tuple(n for n in asked if n in self.typed) != mine:
                    asked = mine + tuple(n for n in asked if n not in self.typed)
                self.axes[k], self.open[k] = asked, partition is UNCONSTRAINED

    def spec(self) -> PartitionSpec:
        """As a spec, without the dimensions at the end that are not cut."""
        last = max((k + 1 for k, axes in enumerate(self.axes) if axes), default=0)
        return PartitionSpec(*self.axes[:last])


class Link:
    """Values whose dimensions have factors in common: `terms` are (value, factors of each of its dimensions).

    It `passes` where all have all factors. `varied` are the factors of dimensions of different sizes.
    """

    __slots__ = ("factors", "passes", "terms", "varied")

    def __init__(self, terms: Sequence[tuple[ShardedValue, Sequence[tuple[Any, ...]]]], first: bool = True) -> None:
        self.terms = [(value, dims) for value, dims in terms if any(dims)]
        found = [{f for dim in dims for f in dim} for _, dims in self.terms]
        self.factors = list(dict.fromkeys(f for _, dims in self.terms for dim in dims for f in dim))
        self.passes = first and all(f == found[0] for f in found)
        sizes = {(f, n) for value, dims in self.terms
                 for n, dim in zip(value.shape, dims, strict=True) for f in dim[:1]}
        self.varied = {f for f, n in sizes if not isinstance(f, Factor) and any(f == g and n != m for g, m in sizes)}


def identity(ndim: int) -> tuple[tuple[int, ...], ...]:
    """The factors of a value that is cut as another of as many dimensions."""
    return tuple((k,) for k in range(ndim))


class Propagation:
    """The values of a program on a mesh, and what is known of them."""

    def __init__(self, mesh: Mesh | AbstractMesh) -> None:
        self.sizes = dict(mesh.shape_tuple)
        self.mesh = mesh
        self.links: list[Link] = []
        self.watched: list[tuple[Any, ShardedValue]] = []  # functions that want to know how values are cut
        self.told: frozenset[Any] = frozenset()  # axes along which new values are cut as their types tell, only

    # ------------------------------------------------------------ the graph

    def fresh(self, aval: ShapedArray) -> ShardedValue:
        """A value of which nothing is known but its type."""
        made = ShardedValue.of(aval)
        made.typed |= self.told
        return made

    def value(self, aval: ShapedArray, sharding: Sharding | None = None) -> ShardedValue:
        """A value of the program; where a sharding on this mesh is given, it is cut so for good."""
        made = self.fresh(aval)
        spec = self.spec_on_mesh(sharding)
        if spec is not None and len(spec) <= len(made.shape):
            made.fix(spec)
        return made

    def spec_on_mesh(self, sharding: Sharding | None) -> PartitionSpec | None:
        """What a sharding says on this mesh: None if it is not known, and nothing is cut if it is about another."""
        if sharding is None:
            return None
        if isinstance(sharding, NamedSharding) and sharding.mesh.shape_tuple == self.mesh.shape_tuple:
            return sharding.spec
        return PartitionSpec()

    def program(self, jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[ShardedValue]) -> list[ShardedValue | None]:
        """Adds a program on these arguments; gives its results, None for literals."""
        env = self.values(jaxpr, consts, args)
        return [None if isinstance(a, Literal) else env[a] for a in jaxpr.outvars]

    def values(self, jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[ShardedValue]) -> dict[Var, ShardedValue]:
        """Adds a program on these arguments; gives the value of each of its variables."""
        env: dict[Var, ShardedValue] = dict(zip(jaxpr.invars, args, strict=True))
        for var, const in zip(jaxpr.constvars, consts, strict=True):
            env[var] = self.value(var.aval, const.sharding if getattr(const, "committed", False) else None)

        for eqn in jaxpr.eqns:
            operands = [self.fresh(a.aval) if isinstance(a, Literal) else env[a] for a in eqn.invars]
            env.update(zip(eqn.outvars, self.equation(eqn, operands), strict=True))
        return env

    def equation(self, eqn: Eqn, operands: list[ShardedValue]) -> list[ShardedValue]:
        """Adds an equation; gives its results."""
        primitive, params = eqn.primitive, eqn.params
        tell = primitive.watches(params)
        if tell is not None:
            self.watched.append((tell, operands[0]))
        avals, outs = [a.aval for a in eqn.invars], [v.aval for v in eqn.outvars]
        if primitive.inner(params):
            return self._loops(eqn, operands, [self.fresh(a) for a in outs])
        told = primitive.apart(params, self.mesh)
        if told:
            return self._apart(eqn, operands, told)
        for operand, aval, sharding in zip(operands, avals, primitive.takes(params), strict=False):
            if sharding is not None:
                self.same(operand, self.value(aval, sharding))
        rule = primitive.sharding_rule(avals, outs, **params)
        if rule is None and primitive.body is not None and not (primitive.on_words or primitive.places(params)):
            body = primitive.body(params, avals)
            return [v or self.fresh(a) for v, a in zip(self.program(body.jaxpr, body.consts, operands), outs,
                                                               strict=True)]
        results = [self.fresh(a) for a in outs]
        for result, sharding in zip(results, primitive.places(params) or (), strict=False):
            spec = self.spec_on_mesh(sharding)
            if spec is not None and primitive.places_all:
                result.fix(spec)
        if rule is not None and rule.resized and any(type(a) is Var and not a.aval.shape for a in eqn.invars):
            rule = rule.without(rule.resized)
        self.link(rule, operands, results)
        return results

    def link(self, rule: ShardingRule | None, operands: Iterable[ShardedValue],
             results: Iterable[ShardedValue]) -> None:
        """Cuts values as a rule says that they go together."""
        if rule is not None:
            terms = [*zip(operands, rule.operands, strict=True), *zip(results, rule.results, strict=True)]
            self.links.append(Link(terms))

    def _loops(self, eqn: Eqn, operands: list[ShardedValue], results: list[ShardedValue]) -> list[ShardedValue]:
        """The programs that a loop or a branch runs: what it carries is cut in one way."""
        for inner in eqn.primitive.inner(eqn.params):
            first = inner.given if inner.given is not None else 0
            program = inner.program
            args = [self.fresh(a) for a in program.in_avals]
            for k, operand in enumerate(operands[first:first + len(args)]):
                carried = inner.first <= k < inner.first + inner.carries
                if carried or operand.shape != args[k].shape:
                    self.same(args[k], operand)
                else:
                    args[k] = operand
            outs = self.program(program.jaxpr, program.consts, args)
            for k, out in enumerate(outs):
                if out is None or len(outs) > len(results):
                    continue
                self.same(out, results[k])
                if k < inner.carries:
                    self.same(args[inner.first + k], results[k])
        return results

    def _apart(self, eqn: Eqn, operands: list[ShardedValue], told: frozenset[Any]) -> list[ShardedValue]:
        """The program that an operation stands for, which takes and gives values cut along the axes `told` as it says:
        within, nothing is cut along these. Along others, propagation may cut all of them."""
        primitive, params = eqn.primitive, eqn.params

        def edge(value: ShardedValue, sharding: Sharding | None) -> ShardedValue:
            spec = self.spec_on_mesh(sharding)
            if spec is not None:
                value.typed -= told
                value.fix(spec)
                value.open = [True] * len(value.shape)
            value.typed |= told
            return value

        avals = [a.aval for a in eqn.invars]
        args = [edge(self.fresh(a), s) for a, s in zip(avals, primitive.takes(params), strict=True)]
        body, before = primitive.body(params, avals), self.told  # type: ignore[misc]
        self.told = before | told
        outs = self.program(body.jaxpr, body.consts, args)
        self.told = before
        results: list[ShardedValue] = []
        for out, var, sharding in zip(outs, eqn.outvars, primitive.places(params), strict=True):
            made = out is not None and any(sharding.spec) and not any(out is v for v in (*args, *results))
            results.append(edge(out if made else self.fresh(var.aval), sharding))  # type: ignore[arg-type]
            if out is not None and not made:
                self.same(out, results[-1])
        for operand, arg in zip(operands, args, strict=True):
            self.same(operand, arg)
        return results

    def same(self, a: ShardedValue, b: ShardedValue) -> None:
        """Cuts two values in the same way, of which one may be a stack of values such as the other."""
        long, short = (a, b) if len(a.shape) >= len(b.shape) else (b, a)
        rank = len(short.shape)
        if rank and long.shape[len(long.shape) - rank:] == short.shape:
            self.links.append(Link([(long, ((),) * (len(long.shape) - rank) + identity(rank)),
                                    (short, identity(rank))], first=False))

    # ------------------------------------------------------------ what follows

    def run(self) -> None:
        """Cuts values as others that go with them, until nothing changes."""
        for chosen in ([link for link in self.links if link.passes], self.links):
            changed = True
            while changed:
                changed = False
                for link in (*chosen, *reversed(chosen)):
                    changed |= self._update(link)

    def _update(self, link: Link) -> bool:
        changed = False
        known_axes = [projected(self.sizes, value, dims) for value, dims in link.terms]
        agreed: list[Any] = []
        for factor in link.factors:
            best = _agreed(_candidates([(value, p[factor]) for (value, _), p in zip(link.terms, known_axes, strict=True)
                                        if factor in p]))
            if best:
                first = next(k for k, p in enumerate(known_axes) if p.get(factor, ())[:len(best)] == best)
                parts = math.prod(self.sizes[name] for name in best) if link.passes else 0
                agreed.append((factor in link.varied, -parts, first, len(agreed), factor, best))
        for *_, factor, best in sorted(agreed, key=lambda a: a[:4]):
            for (value, dims), known in zip(link.terms, known_axes, strict=True):
                if factor in known and known[factor] != best and self._cut(value, dims, known, factor, best):
                    changed = True
        return changed

    def _cut(self, value: ShardedValue, dims: Sequence[tuple[Any, ...]], known: dict[Any, Axes], factor: Any,
             best: Axes) -> bool:
        """Cuts the dimension of a value that has the factor along more axes, as far as they are free and divide it."""
        have = known[factor]
        dimension = next(k for k, dim in enumerate(dims) if factor in dim)
        if best[:len(have)] != have or not value.open[dimension]:
            return False
        place = dims[dimension].index(factor)
        if any(f in known and not _full(self.sizes, value, dims[dimension], f, known[f])
               for f in dims[dimension][:place]) or any(known[f] for f in dims[dimension][place + 1:] if f in known):
            return False
        added: Axes = ()
        for name in best[len(have):]:
            parts = math.prod(self.sizes[n] for n in (*value.axes[dimension], *added, name))
            if name in value.used or name in value.typed or value.shape[dimension] % parts:
                break
            added += (name,)
        if not added:
            return False
        value.axes[dimension] += added
        known[factor] = have + added
        return True


def projected(sizes: Mapping[Any, int], value: ShardedValue, dims: Sequence[tuple[Any, ...]]) -> dict[Any, Axes]:
    """Along which axes each factor of a value is cut."""
    found: dict[Any, Axes] = {}
    for axes, dim in zip(value.axes, dims, strict=True):
        rest = list(axes)
        for k, factor in enumerate(dim):
            size = factor.size if isinstance(factor, Factor) else None
            mine: Axes = ()
            while rest and (size is None or k == len(dim) - 1 or (size % sizes[rest[0]] == 0 and size > 1)):
                name = rest.pop(0)
                mine += (name,)
                size = None if size is None else size // sizes[name]
            found[factor] = mine
            if size != 1 and size is not None:
                rest = []
    return found


def _full(sizes: Mapping[Any, int], value: ShardedValue, dim: tuple[Any, ...], factor: Any, axes: Axes) -> bool:
    """Whether a factor is cut into single elements, so that the next one may be cut too."""
    return isinstance(factor, Factor) and math.prod(sizes[n] for n in axes) == factor.size


def _candidates(found: Sequence[tuple[ShardedValue, Axes]]) -> list[Axes]:
    """Along which axes values cut a factor that they have in common; where types tell of some axes, of those values
    that begin with them."""
    told = {tuple(n for n in axes if n in value.typed) for value, axes in found if value.typed} - {()}
    every = [axes for _, axes in found]
    if len(told) != 1:
        return every
    (head,) = told
    return [axes for axes in every if axes[:len(head)] == head] or every


def _agreed(candidates: Sequence[Axes]) -> Axes:
    """The longest axes that all agree on."""
    best = max(candidates, key=len)
    for axes in candidates:
        common = next((k for k, (a, b) in enumerate(zip(axes, best, strict=False)) if a != b), None)
        best = best if common is None else best[:common]
    return best


def propagate(closed: ClosedJaxpr, mesh: Mesh | AbstractMesh,
              shardings: Sequence[Sharding | None], *, tells: bool = True) -> list[PartitionSpec]:
    """How the results of a program are cut on a mesh, given the shardings of its arguments (None: not known); functions
    that watch values are told of these if `tells`."""
    graph = Propagation(mesh)
    args = [graph.value(a, s) for a, s in zip(closed.in_avals, shardings, strict=True)]
    outs = graph.program(closed.jaxpr, closed.consts, args)
    graph.run()
    for tell, value in graph.watched if tells else ():
        tell(NamedSharding(mesh, value.spec()))
    return [PartitionSpec() if out is None else out.spec() for out in outs]


def propagate_one(primitive: Primitive, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray],
                  params: dict[str, Any], mesh: Mesh | AbstractMesh,
                  shardings: Sequence[Sharding | None]) -> list[PartitionSpec]:
    """How the results of one operation are cut: `propagate`, of a program that is nothing else."""
    graph = Propagation(mesh)
    operands = [graph.value(a, s) for a, s in zip(avals, shardings, strict=True)]
    eqn = Eqn(primitive, [Var(a) for a in avals], [Var(a) for a in outs], params)
    results = graph.equation(eqn, operands)
    graph.run()
    return [r.spec() for r in results]
