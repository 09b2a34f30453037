"""Tapes: what a function of the library did with arrays, to be done again with others of the same types.

A function of NumPy's face checks and promotes its arguments before it applies an operation or a few; on small arrays
that takes much longer than the operations. What it applies depends on the types of the arrays and on the other
arguments, but not on what the arrays hold, unless it looks there. So a run under `Recording` leaves behind a tape: the
operations, and where their operands come from. A tape evaluates the same rules on the same values, and gives the same
bits. Where the function has looked into an array, or has done more than such operations, there is no tape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from anima.core.array import ConcreteArray
from anima.core.avals import ShapedArray
from anima.core.dtypes import ExtendedDType
from anima.core.jaxpr import ClosedJaxpr, Literal
from anima.core.primitive import Primitive
from anima.core.quiet import hush, restore
from anima.core.state import current
from anima.core.trace import EVAL, Trace, aval_of, numpy_value, under, wrap
from anima.core.ways import Ways

_OFTEN = 4            # times that a tape was played, from which native code for its steps is worth its while
_MOST_KEPT = 1 << 16  # bytes of constants that a tape keeps


class Recording(Trace):
    """Applies operations as they are applied outside of any transformation, and takes them down."""

    label = "Recording"
    is_ground = True

    def __init__(self, args: Sequence[ConcreteArray]) -> None:
        super().__init__(EVAL)
        self.values: list[Any] = [*args]  # the arguments; then constants and results as they come
        self.seen: list[Any] = []         # lives as long as this, so that nothing else has its identity
        self.places = {id(x): k for k, x in enumerate(args)}
        self.steps: list[tuple[Primitive, dict[str, Any], list[int], list[int]]] = []
        self.complete = len(self.places) == len(args)  # else who is who is not known
        self.exact = True
        self.looked = False  # into an array, or done what is more than an operation

    def place(self, x: Any) -> int:
        if id(x) not in self.places:
            self.places[id(x)] = len(self.values)
            self.values.append(x)
        return self.places[id(x)]

    def look_into(self, x: ConcreteArray) -> None:
        """Notes that the elements of an array are read."""
        self.looked = self.looked or id(x) in self.places

    def process(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        current.recording = None
        try:
            out = EVAL.process(primitive, args, params)
        finally:
            current.recording = self
        many = primitive.multiple_results
        operands = [x if x.__class__ is ConcreteArray else numpy_value(x, aval_of(x)) for x in args]
        self.seen.extend(args)
        sources, results = [*map(self.place, operands)], [*map(self.place, out if many else [out])]
        avals = [aval_of(x) for x in (*args, *(out if many else [out]))]
        self.looked = (self.looked or _is_more(primitive, params)
                       or any(x.__class__ is not ConcreteArray for x in (out if many else [out])))
        self.complete = self.complete and not any(isinstance(a.dtype, ExtendedDType) for a in avals)
        self.exact = self.exact and primitive.is_exact(avals, params)
        self.steps.append((primitive, params, sources, results))
        return out


class Applied(NamedTuple):
    """An operation: where its operands are among the values before, and of which types they and the results are."""

    primitive: Primitive
    params: dict[str, Any]
    sources: list[int]
    avals: list[ShapedArray]
    results: list[ShapedArray]

    def is_large(self) -> bool:
        return self.primitive.is_large(self.avals, self.params)

    def way(self) -> Callable[..., Any] | None:
        """Native code for it, if it is one loop of NumPy's (see `core.ways`)."""
        if self.is_large() or self.primitive.as_ufunc is None or self.primitive.multiple_results:
            return None
        return Ways.make(self.primitive, self.params, self.avals, [None] * len(self.avals), self.results[0])


class Player:
    """Operations on arrays: values are the arguments, the constants, then the results of each step."""

    __slots__ = ("_constants", "_count", "_large", "_outs", "_played", "_steps", "_ways")

    def __init__(self, count: int, constants: Sequence[ConcreteArray], steps: Sequence[Applied], outs: Sequence[int],
                 ) -> None:
        self._count, self._constants, self._outs = count, constants, outs
        self._steps = steps
        self._ways: list[Callable[..., Any] | None] = [None] * len(steps)
        self._large = [step.is_large() for step in steps]
        self._played = 0

    def play(self, args: Sequence[ConcreteArray]) -> list[ConcreteArray]:
        """The results for arguments that hold elements."""
        self._played += 1
        if self._played == _OFTEN:
            if Ways.often():
                self._ways = [step.way() for step in self._steps]
            else:
                self._played -= 1
        values = [*args, *self._constants]
        before = hush()
        try:
            for step, way, large in zip(self._steps, self._ways, self._large, strict=True):
                operands = [values[k] for k in step.sources]
                if way is not None:
                    out = way(*operands)
                    if out is not NotImplemented:
                        values.append(out)
                        continue
                elements = [x._value for x in operands]
                if large:
                    out = EVAL.on_large(step.primitive, operands, step.avals, elements, step.params)
                else:
                    out = step.primitive.eval(*elements, **step.params)
                if step.primitive.multiple_results:
                    values.extend(map(wrap, out, step.results))
                else:
                    values.append(wrap(out, step.results[0]))
        finally:
            restore(before)
        # a constant is the tape's own
        return [wrap(values[k]._value, values[k].aval) if 0 <= k - self._count < len(self._constants) else values[k]
                for k in self._outs]


class Replay(Player):
    """`tape(*arrays)`: what the function gives for arrays of the types that it was recorded with; NotImplemented where
    one of them was deleted."""

    __slots__ = ("_form",)

    def __init__(self, recording: Recording, out: Any, arrays: Sequence[ConcreteArray]) -> None:
        values, count = recording.values, len(arrays)
        made = [k for *_, results in recording.steps for k in results]
        known = [k for k in range(count, len(values)) if k not in made]
        order = {k: n for n, k in enumerate((*range(count), *known, *made))}
        self._form = getattr(type(out), "_make", type(out)) if isinstance(out, (list, tuple)) else None
        super().__init__(count, [_held(v, aval_of(v)) for v in map(values.__getitem__, known)], [
            Applied(primitive, params, [order[k] for k in sources], [aval_of(values[k]) for k in sources],
                 [aval_of(values[k]) for k in results]) for primitive, params, sources, results in recording.steps],
            [order[recording.places[id(x)]] for x in (out if self._form else [out])])

    def settled(self) -> Callable[..., Any] | None:
        """What will be called in its place from now on: itself, or native code if that is all; None: that is not known
        yet."""
        if (len(self._steps) != 1 or self._form is not None or self._large[0]
                or self._steps[0].primitive.as_ufunc is None):
            return self
        if self._played < _OFTEN:
            return None
        alone = self._steps[0].sources == [*range(self._count)] and self._outs == [self._count]
        return (self._ways[0] if alone else None) or self

    @property
    def kept(self) -> int:
        """Bytes of the constants."""
        return sum([x.nbytes for x in self._constants])

    def __call__(self, *args: ConcreteArray) -> Any:
        if str in [x._value.__class__ for x in args]:
            return NotImplemented
        outs = self.play(args)
        return outs[0] if self._form is None else self._form(outs)


class Played(Player):
    """`played(arrays)`: the results of a program for arrays of its arguments' types, operation by operation, as
    `eval_jaxpr` gives them outside of any transformation; it has no extended types."""

    __slots__ = ("_types",)

    def __init__(self, closed: ClosedJaxpr) -> None:
        jaxpr = closed.jaxpr
        literals = [a for e in jaxpr.eqns for a in e.invars if isinstance(a, Literal)]
        literals += [a for a in jaxpr.outvars if isinstance(a, Literal)]
        constants = [_held(c, v.aval) for v, c in zip(jaxpr.constvars, closed.consts, strict=True)]
        constants += [_held(a.val, a.aval) for a in literals]
        variables = [*jaxpr.invars, *jaxpr.constvars, *literals, *(v for e in jaxpr.eqns for v in e.outvars)]
        places = {id(v): k for k, v in enumerate(variables)}
        self._types = [v.aval for v in jaxpr.invars]
        super().__init__(len(jaxpr.invars), constants, [
            Applied(e.primitive, e.params, [places[id(a)] for a in e.invars], [a.aval for a in e.invars],
                 [v.aval for v in e.outvars]) for e in jaxpr.eqns], [places[id(a)] for a in jaxpr.outvars])

    def __call__(self, args: Sequence[Any]) -> list[ConcreteArray]:
        held = [x if x.__class__ is ConcreteArray and x._value.__class__ is not str else _held(x, a)
                for x, a in zip(args, self._types, strict=True)]
        return self.play(held)


def _held(x: Any, aval: ShapedArray) -> ConcreteArray:
    """An array with an operand's elements, which stays as it is."""
    value = numpy_value(x, aval)
    return ConcreteArray(value if x.__class__ is ConcreteArray else value.copy(), aval)


def played(closed: ClosedJaxpr) -> Played | None:
    """A program to be played; None where that would not do all that applying its operations does."""
    jaxpr = closed.jaxpr
    atoms = [*jaxpr.invars, *jaxpr.constvars, *jaxpr.outvars, *(a for e in jaxpr.eqns for a in (*e.invars, *e.outvars))]
    fine = all(type(a.aval) is ShapedArray and not isinstance(a.aval.dtype, ExtendedDType) for a in atoms)
    return Played(closed) if fine and not any(_is_more(e.primitive, e.params) for e in jaxpr.eqns) else None


def _is_more(primitive: Primitive, params: dict[str, Any]) -> bool:
    """Whether an application is more than its results."""
    return (primitive.axis_names is not None or bool(primitive.effects_of(params)) or bool(primitive.pins(params))
            or primitive.refusal(params) is not None)


def record(fun: Callable[..., Any], arrays: Sequence[ConcreteArray], args: Sequence[Any],
           kwargs: dict[str, Any]) -> tuple[Any, Replay | None, bool]:
    """`fun(*args, **kwargs)`; a tape of it as a function of the `arrays` among its arguments, if there can be one; and
    whether compiled code gives the same bits."""
    if len({*map(id, arrays)}) < len(arrays):  # who is who is to be seen
        apart = iter([ConcreteArray(x._value, x.aval) for x in arrays])
        args = [next(apart) if x.__class__ is ConcreteArray else x for x in args]
        kwargs = {name: next(apart) if x.__class__ is ConcreteArray else x for name, x in kwargs.items()}
        arrays = [x for x in (*args, *kwargs.values()) if x.__class__ is ConcreteArray]
    recording = current.recording = Recording(arrays)
    try:
        out = under(recording, fun, *args, **kwargs)
    finally:
        current.recording = None
    results = out if isinstance(out, (list, tuple)) else [out]
    exact = recording.exact and not recording.looked
    fine = recording.complete and not recording.looked and all(
        x.__class__ is ConcreteArray and id(x) in recording.places for x in results)
    if not fine:
        return out, None, exact
    tape = Replay(recording, out, arrays)
    return out, tape if tape.kept <= _MOST_KEPT else None, exact
