"""Derivatives outside of `jit`: those of a function that does again what it did before are not made anew.

    linearize_again(fun, [x], [True])    first: linearised operation by operation, and these are taken down
                                         then: the operations alone run, and the linear program is the one made before

Which operations `fun` applies, Python decides in each call, as ever. A call walks along those of earlier ones, in a
tree; where it leaves them, what ran so far is linearised from its results. At the end of a walk that came to the end,
the linear program is known, and a second program gives its constants from the values met on the way. In all cases the
same rules are evaluated on the same values, which gives the same bits.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any, NamedTuple

import numpy as np

from anima.config import config
from anima.core import source
from anima.core.array import ConcreteArray
from anima.core.avals import ShapedArray, tangent_aval
from anima.core.jaxpr import ClosedJaxpr, Jaxpr
from anima.core.primitive import Linear, Primitive, Zero
from anima.core.replay import Played, played
from anima.core.stage import StageTrace, hoisted, trace_to_jaxpr
from anima.core.state import current
from anima.core.trace import EVAL, Trace, aval_of, is_plain, type_of, under
from anima.transforms.custom import Recalled
from anima.transforms.dce import dce_jaxpr
from anima.transforms.forward import JVPTracer
from anima.transforms.linearize import LinearizeTrace, PartialTrace, linearize_flat
from anima.transforms.transpose import backward, transpose_jaxpr
from anima.util import cleared, weak_cache

_MOST_STEPS = 1 << 14  # in all trees together
_MOST_BYTES = 1 << 20  # of results that a walk keeps: large ones take longer than all that it saves
_NUMBERS = frozenset((int, float, complex, bool))


class _Met(Trace):
    """Applies primitives under the parent; one application is that of `primitive` to `args`, with the results `out`."""

    label = "Met"
    derives = True

    def __init__(self, parent: Trace, primitive: Primitive, args: Sequence[Any], params: dict[str, Any],
                 out: Any = None) -> None:
        super().__init__(parent)
        self.primitive, self.args, self.params, self.out = primitive, args, params, out

    def process(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        same = (primitive is self.primitive and len(args) == len(self.args)
                and all(map(_is_same, args, self.args)) and params == self.params)
        if same and self.out is not None:
            return list(self.out) if primitive.multiple_results else self.out
        assert self.parent is not None
        out = under(self.parent, primitive.bind, *args, **params)
        if same:
            self.out = out
        return out

    def linearize(self, recorder: StageTrace, tangents: Sequence[Any]) -> tuple[Any, Any]:
        """(results, their tangents)."""
        rule = self.primitive.linearize
        if rule is not None:
            return rule(self, recorder, self.args, tangents, **self.params)
        args = tuple(self.args), tuple(tangents)  # as all rules are given them
        return under(PartialTrace(self, recorder), self.primitive.jvp, *args, **self.params)


def _is_same(x: Any, own: Any) -> bool:
    """Whether an operand is one of the application's own, or a rule has made an array of that, a number."""
    return x is own or (own.__class__ in _NUMBERS and x.__class__ is ConcreteArray and not x.ndim and x.value == own)


class _Moved(JVPTracer):
    """A value with a number among those of a walk that have tangents, and its tangent once that is made."""

    __slots__ = ("number",)

    def __init__(self, owner: _AgainTrace, primal: Any, tangent: Any) -> None:
        self.owner, self.primal, self.tangent = owner, primal, tangent
        self.aval = primal.aval if primal.__class__ is ConcreteArray else aval_of(primal)
        self.number = len(owner.moved)
        owner.moved.append(self)


class _Step:
    """Where a walk is after one more operation."""

    __slots__ = ("after", "linear", "moves", "run", "source", "types")
    count = 0

    def __init__(self, types: Sequence[ShapedArray], moves: Sequence[bool], where: source.Source | None,
                 run: Callable[[Sequence[Any]], Any] | None = None) -> None:
        self.after: dict[Any, _Step] = {}
        self.types = types  # of the operands, which keys tell by identity
        self.moves = moves  # which results have tangents; the others are values like any
        self.source = where
        self.run = run      # what gives the results of an operation with a rule of its own
        self.linear: dict[tuple[int | None, ...], _Linear] = {}  # by the numbers of what is returned
        _Step.count += 1


class _Run(NamedTuple):
    """An operation that ran."""

    step: _Step
    primitive: Primitive
    args: Sequence[Any]
    params: dict[str, Any]
    results: Sequence[Any]

    def is_fixed(self, x: Any) -> bool:
        """Whether an operand is the same in all walks."""
        return self.primitive.reads_numbers and x.__class__ is not _Moved and not aval_of(x).shape

    @property
    def others(self) -> list[Any]:
        """Operands that are not fixed and results, if they have no tangents."""
        return [x for x in self.args if x.__class__ is not _Moved and not self.is_fixed(x)] + [
            x for x in self.results if x.__class__ is not _Moved]


class _AgainTrace(LinearizeTrace):
    """Runs operations as long as they are those of a call before; linearises from where they are not."""

    recalls = True

    def __init__(self, recorder: StageTrace, start: _Step) -> None:
        super().__init__(EVAL, recorder)
        self.place: _Step | None = start  # None: nothing is taken down any more
        self.walking = bool(start.after)
        self.moved: list[_Moved] = []     # the arguments, then results
        self.count = 0                    # of arguments
        self.runs: list[_Run] = []
        self.nbytes = 0

    def enter(self, primal: Any) -> _Moved:
        """An argument."""
        self.count += 1
        return _Moved(self, primal, None if self.walking else self.recorder.new_arg(tangent_aval(aval_of(primal))))

    def join(self, primal: Any, tangent: Any) -> Any:
        return primal if isinstance(tangent, Zero) else _Moved(self, primal, tangent)

    def process(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        place = self.place
        if place is None:
            return super().process(primitive, args, params)
        key: list[Any] = [primitive]  # what the operation is known by
        primals = []
        moves = False
        for x in args:
            kind = x.__class__
            if kind is _Moved and x.owner is self:
                key.append(x.number)
                x, moves = x.primal, True
            elif kind is ConcreteArray:
                key.append(~id(x.aval))
                if primitive.reads_numbers and not x.ndim:
                    key.append(x.elements().tobytes())
            elif kind in _NUMBERS or isinstance(x, np.generic):
                key.append((kind, str(x)) if primitive.reads_numbers else kind)
            else:
                return self._unknown(primitive, args, params)
            primals.append(x)
        if not moves:
            return under(EVAL, primitive.bind, *args, **params)
        key += params
        key += params.values()
        if current.names:  # a linear program tells of the scopes that it was asked for in
            key.append(current.names)
        known = (*key,)
        try:
            step = place.after.get(known)
        except TypeError:  # a parameter that has no hash
            return self._unknown(primitive, args, params)
        if step is None and [x for x in args if x.__class__ is ConcreteArray and x.aval is not type_of(x)]:
            return self.process(primitive, args, params)  # now types that are equal are the same
        if step is None or not self.walking:
            return self._learn(place, known, primitive, args, primals, params)
        before, current.trace = current.trace, EVAL
        try:
            out = EVAL.process(primitive, primals, params) if step.run is None else step.run(primals)
        finally:
            current.trace = before
        self.place = step
        if not primitive.multiple_results:
            result = _Moved(self, out, None) if step.moves[0] else out
            self.runs.append(_Run(step, primitive, args, params, (result,)))
            return result
        results = [_Moved(self, x, None) if moves else x for x, moves in zip(out, step.moves, strict=True)]
        self.runs.append(_Run(step, primitive, args, params, results))
        return results

    def _unknown(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """Applies what nothing can be known of; the rest of the walk is not taken down."""
        if self.walking:
            self.leave()
        self.place = None
        return super().process(primitive, args, params)

    def _learn(self, place: _Step, key: Any, primitive: Primitive, args: Sequence[Any], primals: Sequence[Any],
               params: dict[str, Any]) -> Any:
        """Linearises an operation, and takes it down if its results are those that it has by itself."""
        if self.walking:
            self.leave()
        met = _Met(EVAL, primitive, primals, params)
        out, tangent = met.linearize(self.recorder, [self.split(x)[1] for x in args])
        many = primitive.multiple_results
        outs, own = (out, met.out) if many else ([out], [met.out])
        results = list(map(self.join, outs, tangent if many else [tangent]))
        self.nbytes += sum([a.size * a.dtype.itemsize for a in map(aval_of, outs)])
        if key in place.after:
            self.place = place.after[key]
        elif self.nbytes > _MOST_BYTES or _Step.count >= _MOST_STEPS:
            self.place = None
        else:
            fine = own is not None and all(a is b and a.__class__ is ConcreteArray
                                           for a, b in zip(outs, own, strict=True))
            run = None if fine else _run_of_rule(primals, [x.__class__ is _Moved for x in args], params)
            lasts = all(map(is_plain, params.values())) if fine else run is not None
            self.place = _Step([*map(aval_of, primals)], [x.__class__ is _Moved for x in results],
                               current.source or source.here(), run) if lasts else None
            if self.place is not None:
                place.after[key] = self.place
        return results if many else results[0]

    def leave(self) -> None:
        """Linearises what ran so far."""
        self.walking = False
        for x, tangent in zip(self.moved, self.linearize(EVAL, self.recorder), strict=True):
            x.tangent = tangent

    def linearize(self, parent: Trace, recorder: StageTrace, values: Sequence[Any] = ()) -> list[Any]:
        """The tangents of what has some, recorded from those of the arguments.

        Operands and results are `values` in place of their own, if there are some: of `moved`, then of `others`.
        """
        others = iter(values[len(self.moved):])

        def value(x: Any) -> Any:
            if x.__class__ is _Moved:
                return values[x.number] if values else x.primal
            return next(others) if values else x

        tangents: list[Any] = [recorder.new_arg(tangent_aval(x.aval)) for x in self.moved[:self.count]]
        before = current.source
        try:
            for run in self.runs:
                args = [x if run.is_fixed(x) else value(x) for x in run.args]
                outs, many = list(map(value, run.results)), run.primitive.multiple_results
                met = _Met(parent, run.primitive, args, run.params, outs if many else outs[0])
                current.source = run.step.source
                _, moved = met.linearize(recorder, [tangents[x.number] if x.__class__ is _Moved
                                                    else Zero(tangent_aval(aval_of(x))) for x in run.args])
                tangents.extend(compress(moved if many else [moved], run.step.moves))
        finally:
            current.source = before
        return tangents

    def values(self) -> list[Any]:
        """All that the tangents may depend on."""
        return [*self.moved, *(x for run in self.runs for x in run.others)]

    def finish(self, outs: Sequence[Any]) -> tuple[list[Any], list[bool], Jaxpr, list[Any]]:
        """As `linearize_flat`, for what the function returned."""
        if self.walking and self.place is not None:
            numbers = tuple([x.number if x.__class__ is _Moved and x.owner is self else None for x in outs])
            linear = self.place.linear.get(numbers)
            if linear is None:
                linear = self.place.linear[numbers] = _Linear(self, numbers)
            if linear.residuals is not None:
                return [self.split(x)[0] for x in outs], linear.mask, linear.jaxpr, linear.constants(self)
            self.leave()
        pairs = [self.split(x) for x in outs]
        jaxpr, consts = self.recorder.finish([t for _, t in pairs if not isinstance(t, Zero)])
        return [p for p, _ in pairs], [not isinstance(t, Zero) for _, t in pairs], jaxpr, consts


def _run_of_rule(primals: Sequence[Any], moves: Sequence[bool], params: dict[str, Any]
                 ) -> Callable[[Sequence[Any]], Any] | None:
    """What gives the results that a rule does, which is the same thing in each call, for operands of such types, of
    which some have tangents; None where that is not so."""
    rule = params.get("jvp")
    if not isinstance(rule, Recalled) or not all(x.__class__ is ConcreteArray for x in primals):
        return None

    avals = list(map(aval_of, primals))
    tangents = [tangent_aval(a) for a in avals]

    def results(*values: Any) -> Any:
        given = iter(values[len(avals):])
        return rule(values[:len(avals)], [next(given) if moved else Zero(a)
                                          for a, moved in zip(tangents, moves, strict=True)])[0]

    jaxpr, consts = trace_to_jaxpr(results, [*avals, *compress(tangents, moves)])
    jaxpr, needed = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    program = played(ClosedJaxpr(jaxpr, consts))
    if program is None or any(needed[len(avals):]):
        return None
    return lambda values: program([*compress(values, needed)])


class _Linear:
    """The linear program at the end of a walk, and one that makes its constants of the values met on the way."""

    def __init__(self, walk: _AgainTrace, numbers: Sequence[int | None]) -> None:
        found: list[Any] = []

        def residuals(*values: Any) -> list[Any]:
            recorder = StageTrace(current.trace)
            tangents = walk.linearize(current.trace, recorder, values)
            outs = [None if n is None or isinstance(tangents[n], Zero) else tangents[n] for n in numbers]
            jaxpr, consts = recorder.finish([t for t in outs if t is not None])
            found.extend(([t is not None for t in outs], jaxpr))
            return consts

        jaxpr, consts = trace_to_jaxpr(residuals, list(map(aval_of, walk.values())))
        self.mask: list[bool] = found[0]
        self.jaxpr: Jaxpr = found[1]
        jaxpr, self.needed = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
        self.residuals = played(ClosedJaxpr(jaxpr, consts))

    def constants(self, walk: _AgainTrace) -> list[Any]:
        """Those of the linear program for another walk of the kind."""
        assert self.residuals is not None
        return self.residuals([x.primal if x.__class__ is _Moved else x for x in compress(walk.values(), self.needed)])


_starts: dict[Any, _Step] = {}


@cleared
def _forget() -> None:
    _starts.clear()
    _Step.count = 0


def _start(primals: Sequence[Any], nonzero: Sequence[bool]) -> _Step | None:
    """Where walks from arguments of these types start; None: nowhere."""
    types: list[Any] = []
    for x in primals:
        if x.__class__ is ConcreteArray:
            types.append(type_of(x))
        elif x.__class__ in _NUMBERS or isinstance(x, np.generic):
            types.append(x.__class__)
        else:
            return None
    key = config.call_key(), (*map(id, types),), (*nonzero,)
    if _Step.count >= _MOST_STEPS:
        _forget()
    found = _starts.get(key)
    return _starts.setdefault(key, _Step(types, (), None)) if found is None else found


def linearize_again(fun: Callable[..., Sequence[Any]], primals: Sequence[Any], nonzero: Sequence[bool],
                    ) -> tuple[list[Any], list[bool], Jaxpr, list[Any]]:
    """`linearize_flat`, quickly if it was done before."""
    start = None
    if current.trace is EVAL and EVAL.learns(config.call_key()) and not config.check_tracer_leaks:
        start = _start(primals, nonzero)
    if start is None:
        return linearize_flat(fun, primals, nonzero)
    recorder = StageTrace(EVAL)
    recorder.keeps_places = True
    walk = _AgainTrace(recorder, start)
    try:
        args = [walk.enter(x) if nz else x for x, nz in zip(primals, nonzero, strict=True)]
        return walk.finish(under(walk, fun, *args))
    finally:
        walk.alive = walk.partial.alive = recorder.alive = False
        walk.moved.clear()  # they know the walk: arrays would live until circles are looked for
        walk.runs.clear()


@weak_cache
def without_last(jaxpr: Jaxpr, count: int) -> Jaxpr:
    """The program without so many of its results: one or more."""
    return jaxpr.replace(outvars=jaxpr.outvars[:-count])


_applied: weakref.WeakSet[Jaxpr] = weakref.WeakSet()


@weak_cache
def _transposed(jaxpr: Jaxpr, nonzero: tuple[bool, ...]) -> tuple[Played | None, list[bool]]:
    linear = (False,) * len(jaxpr.constvars) + (True,) * len(jaxpr.invars)
    closed, mask = transpose_jaxpr(hoisted(jaxpr), linear, nonzero)
    return played(closed), mask


def backward_again(jaxpr: Jaxpr, consts: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
    """Cotangents of all arguments of a linear program, for those of its results; quickly if it was done before."""
    if current.trace is EVAL and EVAL.learns(config.call_key()) and jaxpr in _applied:
        given = [ct for ct in cts if not isinstance(ct, Zero)]
        if all(x.__class__ is ConcreteArray for x in (*consts, *given)):
            program, mask = _transposed(jaxpr, tuple([not isinstance(ct, Zero) for ct in cts]))
            if program is not None:
                found = iter(program([*consts, *given]))
                return [next(found) if m else Zero(v.aval) for v, m in zip(jaxpr.invars, mask, strict=True)]
    _applied.add(jaxpr)
    return backward(jaxpr, consts, [Linear(v.aval) for v in jaxpr.invars], cts)
