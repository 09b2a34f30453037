"""Tapes: what a function of the library did with arrays, to be done again with others of the same types.

A function of NumPy's face checks and promotes its arguments before it applies an operation or a few; on small arrays
that takes much longer than the operations. What it applies depends on the types of the arrays and on the other
arguments, but not on what the arrays hold, unless it looks there. So a run under `Recording` leaves behind a tape: the
operations, and where their operands come from. A tape evaluates the same rules on the same values, and gives the same
bits. Where the function has looked into an array, or has done more than such operations, there is no tape.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
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

_BRIEF = 1 << 12      # elements of all steps
_MOST_STEPS = 1000    # of a tape, beyond which native code takes long to prepare
_OFTEN = 4            # times that a tape was played, from which native code for its steps is worth its while
_SMALL = 1 << 12      # bytes of what is made of constants and kept as one
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
    """An operation: where its operands are among the values of a tape, and its results; of which types they are."""

    primitive: Primitive
    params: dict[str, Any]
    sources: list[int]
    places: list[int]
    avals: list[ShapedArray]
    results: list[ShapedArray]
    large: bool  # compiled code does it

    @classmethod
    def of(cls, primitive: Primitive, params: dict[str, Any], sources: list[int], places: list[int],
           avals: list[ShapedArray], results: list[ShapedArray]) -> Applied:
        return cls(primitive, params, sources, places, avals, results, primitive.is_large(avals, params))

    def apply(self, values: list[Any]) -> None:
        """Puts the results among the values."""
        operands = [values[k] for k in self.sources]
        elements = [x._value for x in operands]
        if self.large:
            out = EVAL.on_large(self.primitive, operands, self.avals, elements, self.params)
        else:
            out = self.primitive.eval(*elements, **self.params)
        for k, value, aval in zip(self.places, out if self.primitive.multiple_results else [out], self.results,
                                  strict=True):
            values[k] = wrap(value, aval)


class _Row(NamedTuple):
    """Steps in a row; native code for them, which takes the values at `sources` and gives those at `places`."""

    steps: Sequence[Applied]
    native: Callable[..., Any] | None = None
    sources: Sequence[int] = ()
    places: Sequence[int] = ()


class Player:
    """Operations on arrays of some `types`: values are the arguments, the constants, then the results of each step.

    Results come as a "list", a "tuple" or a "single" array, as `form` says.
    """

    __slots__ = ("_constants", "_form", "_native", "_outs", "_played", "_rows", "_steps", "_types")

    def __init__(self, types: Sequence[ShapedArray], constants: Sequence[ConcreteArray], steps: Sequence[Applied],
                 outs: Sequence[int], form: str) -> None:
        self._types, self._constants, self._steps, self._outs, self._form = types, constants, steps, outs, form
        self._native: Callable[..., Any] | None = None
        self._rows = [_Row(steps)]
        self._played = 0

    def play(self, args: Sequence[ConcreteArray]) -> Any:
        """The results for arguments that hold elements."""
        self._played = played = self._played + 1
        if played == _OFTEN:
            if Ways.often():
                self._prepare()
            else:
                self._played = played - 1
        if self._native is not None:
            out = self._native(*args)
            if out is not NotImplemented:
                return out
        values: list[Any] = [*args, *self._constants, *[None] * sum([len(step.places) for step in self._steps])]
        before = hush()
        try:
            for row in self._rows:
                if row.native is not None:
                    found = row.native(*[values[k] for k in row.sources])
                    if found is not NotImplemented:
                        for k, x in zip(row.places, found, strict=True):
                            values[k] = x
                        continue
                for step in row.steps:
                    step.apply(values)
        finally:
            restore(before)
        first = len(self._types)
        own = range(first, first + len(self._constants))  # constants are the tape's own
        outs = [wrap(values[k]._value, values[k].aval) if k in own else values[k] for k in self._outs]
        return outs if self._form == "list" else outs[0] if self._form == "single" else (*outs,)

    def _prepare(self) -> None:
        """Looks for native code: for all, or else for steps in a row."""
        if len(self._steps) > _MOST_STEPS:
            return
        first = len(self._types)
        constants = dict(enumerate(self._constants, first))
        types = dict(enumerate(self._types))
        self._native = Ways.chain(self._steps, constants, types, self._outs, self._form)
        if self._native is not None or len(self._steps) == 1:
            return
        types |= {k: aval for step in self._steps for k, aval in zip(step.places, step.results, strict=True)}
        last = {k: n for n, step in enumerate(self._steps) for k in step.sources} | dict.fromkeys(
            self._outs, len(self._steps))
        rows, end = [], 0
        for known, found in itertools.groupby(self._steps, Ways.can_chain):
            row = [*found]
            end += len(row)
            made = [k for step in row for k in step.places]
            sources = [k for k in dict.fromkeys(k for step in row for k in step.sources)
                       if k not in constants and k not in made]
            places = [k for k in made if last.get(k, -1) >= end]
            native = Ways.chain(row, constants, {k: types[k] for k in sources}, places, "list") if known else None
            rows.append(_Row(row, native, sources, places))
        self._rows = rows  # at once: other threads may play


def _same(x: ConcreteArray) -> Any:
    return NotImplemented if x._value.__class__ is str else x


def _view(aval: ShapedArray) -> Callable[..., Any]:
    def view(x: ConcreteArray) -> Any:
        value = x._value
        return NotImplemented if value.__class__ is str else wrap(value.reshape(aval.shape), aval)

    return view


class Replay(Player):
    """`tape(*arrays)`: what the function gives for arrays of the types that it was recorded with; NotImplemented where
    one of them was deleted."""

    __slots__ = ("_make",)

    def __init__(self, recording: Recording, out: Any, arrays: Sequence[ConcreteArray]) -> None:
        values, count = recording.values, len(arrays)
        several = isinstance(out, (list, tuple))
        self._make = getattr(type(out), "_make", None)  # of tuples with names
        outs = [recording.places[id(x)] for x in (out if several else [out])]
        steps, made = [], []
        for step in recording.steps:  # what is made of constants is a constant, if it is small
            _, _, sources, results = step
            if any(k < count or k in made for k in sources) or any(
                    k in outs or values[k].nbytes > _SMALL for k in results):
                steps.append(step)
                made += results
        used = {k for _, _, sources, _ in steps for k in sources} | {*outs}
        known = [k for k in range(count, len(values)) if k not in made and k in used]
        order = {k: n for n, k in enumerate((*range(count), *known, *made))}
        form = "tuple" if isinstance(out, tuple) else "list" if several else "single"
        constants = [_held(v, aval_of(v)) for v in map(values.__getitem__, known)]
        super().__init__([aval_of(x) for x in values[:count]], constants, [
            Applied.of(primitive, params, [order[k] for k in sources], [order[k] for k in results],
                       [aval_of(values[k]) for k in sources], [aval_of(values[k]) for k in results])
            for primitive, params, sources, results in steps],
            [order[k] for k in outs], form)

    def settled(self) -> Callable[..., Any] | None:
        """What will be called in its place from now on: itself, or native code if that is all; None: that is not known
        yet."""
        if len(self._steps) == 0 and self._form == "single" and [*self._outs] == [0] and len(self._types) == 1:
            return _same
        if len(self._steps) == len(self._types) == 1 and self._form == "single":
            (step,) = self._steps
            if (step.sources == [0] and [*self._outs] == step.places
                    and step.primitive.is_view(step.avals[0], step.results[0])):
                return _view(step.results[0])
        if self._played < _OFTEN:
            return None
        return self if self._native is None or self._make is not None else self._native

    def stay(self) -> None:
        """It is not to become native code, which copies what could be a view."""
        self._played = _OFTEN

    @property
    def is_brief(self) -> bool:
        """Whether nothing does what it does more quickly, but for arrays that are not small."""
        return self._native is not None and sum([a.size for step in self._steps for a in step.results]) <= _BRIEF

    @property
    def kept(self) -> int:
        """Bytes of the constants."""
        return sum([x.nbytes for x in self._constants])

    def __call__(self, *args: ConcreteArray) -> Any:
        if str in [x._value.__class__ for x in args]:
            return NotImplemented
        outs = self.play(args)
        return outs if self._make is None else self._make(outs)


class Played(Player):
    """`played(arrays)`: the results of a program for arrays of its arguments' types, operation by operation, as
    `eval_jaxpr` gives them outside of any transformation; it has no extended types."""

    __slots__ = ()

    def __init__(self, closed: ClosedJaxpr) -> None:
        jaxpr = closed.jaxpr
        literals = [a for e in jaxpr.eqns for a in e.invars if isinstance(a, Literal)]
        literals += [a for a in jaxpr.outvars if isinstance(a, Literal)]
        constants = [_held(c, v.aval) for v, c in zip(jaxpr.constvars, closed.consts, strict=True)]
        constants += [_held(a.val, a.aval) for a in literals]
        variables = [*jaxpr.invars, *jaxpr.constvars, *literals, *(v for e in jaxpr.eqns for v in e.outvars)]
        places = {id(v): k for k, v in enumerate(variables)}
        super().__init__([v.aval for v in jaxpr.invars], constants, [
            Applied.of(e.primitive, e.params, [places[id(a)] for a in e.invars], [places[id(v)] for v in e.outvars],
                       [a.aval for a in e.invars], [v.aval for v in e.outvars]) for e in jaxpr.eqns],
            [places[id(a)] for a in jaxpr.outvars], "list")

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


def _told_apart(x: Any, arrays: Iterator[ConcreteArray]) -> Any:
    """An argument with the next of the arrays in the place of each of its own."""
    if x.__class__ is tuple or x.__class__ is list:
        return x.__class__([_told_apart(y, arrays) for y in x])
    return next(arrays) if x.__class__ is ConcreteArray else x


def record(fun: Callable[..., Any], arrays: Sequence[ConcreteArray], args: Sequence[Any],
           kwargs: dict[str, Any]) -> tuple[Any, Replay | None, bool]:
    """`fun(*args, **kwargs)`; a tape of it as a function of the `arrays` among or in its arguments, if there can be
    one; and whether compiled code gives the same bits."""
    if str in [x._value.__class__ for x in arrays]:  # deleted
        return fun(*args, **kwargs), None, False
    if len({*map(id, arrays)}) < len(arrays):  # who is who is to be seen
        arrays = [ConcreteArray(x._value, x.aval) for x in arrays]
        apart = iter(arrays)
        args, kwargs = [_told_apart(x, apart) for x in args], {k: _told_apart(x, apart) for k, x in kwargs.items()}
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
