"""Tapes: what a function of the library did with arrays, to be done again with others of the same types.

A function of NumPy's face checks and promotes its arguments before it applies an operation or a few; on small arrays
that takes much longer than the operations. What it applies depends on the types of the arrays and on the other
arguments, but not on what the arrays hold, unless it looks there. So a run under `Recording` leaves behind a tape: the
operations, and where their operands come from. A tape evaluates the same rules on the same values, and gives the same
bits. Where the function has looked into an array, or has done more than such operations, there is no tape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima.core import memory
from anima.core.array import ConcreteArray
from anima.core.avals import ShapedArray
from anima.core.dtypes import ExtendedDType
from anima.core.jaxpr import ClosedJaxpr, Literal
from anima.core.primitive import Primitive
from anima.core.quiet import hush, restore
from anima.core.state import current
from anima.core.trace import EVAL, Trace, aval_of, numpy_value, under, wrap
from anima.core.ways import Ways

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


class Replay:
    """`tape(*arrays)`: what the function gives for arrays of the types that it was recorded with; NotImplemented where
    one of them was deleted."""

    __slots__ = ("_constants", "_form", "_loop", "_outs", "_steps")

    def __init__(self, recording: Recording, out: Any, arrays: Sequence[ConcreteArray]) -> None:
        self._loop, count = _loop(recording, arrays, out), len(arrays)
        made = [k for *_, results in recording.steps for k in results]
        known = [k for k in range(count, len(recording.values)) if k not in made]
        order = {k: n for n, k in enumerate((*range(count), *known, *made))}
        self._constants = [numpy_value(v, aval_of(v)) for v in map(recording.values.__getitem__, known)]
        self._steps = [(primitive.eval, params, [order[k] for k in sources], primitive.multiple_results)
                       for primitive, params, sources, _ in recording.steps]
        self._form = getattr(type(out), "_make", type(out)) if isinstance(out, (list, tuple)) else None
        self._outs = [(order[recording.places[id(x)]], x.aval) for x in (out if self._form else [out])]

    def settled(self) -> Callable[..., Any] | None:
        """What will be called in its place from now on: itself, or native code if all is one loop of NumPy's (see
        `core.ways`); None: that is not known yet."""
        if self._loop is None:
            return self
        return (Ways.make(*self._loop) or self) if Ways.often() else None

    @property
    def kept(self) -> int:
        """Bytes of the constants."""
        return sum([x.nbytes for x in self._constants])

    def __call__(self, *args: ConcreteArray) -> Any:
        values: list[Any] = [x._value for x in args]
        if str in map(type, values):
            return NotImplemented
        values += self._constants
        _play(self._steps, values)
        if self._form is None:
            ((k, aval),) = self._outs
            return args[k] if k < len(args) else wrap(values[k], aval)
        return self._form([args[k] if k < len(args) else wrap(values[k], aval) for k, aval in self._outs])


class Played:
    """`played(arrays)`: the results of a program for arrays of its arguments' types, operation by operation, as
    `eval_jaxpr` gives them outside of any transformation; it has no extended types."""

    __slots__ = ("_constants", "_count", "_outs", "_steps", "_types")

    def __init__(self, closed: ClosedJaxpr) -> None:
        jaxpr = closed.jaxpr
        literals = [a for e in jaxpr.eqns for a in e.invars if isinstance(a, Literal)]
        literals += [a for a in jaxpr.outvars if isinstance(a, Literal)]
        self._constants = [numpy_value(c, v.aval) for v, c in zip(jaxpr.constvars, closed.consts, strict=True)]
        self._constants += [np.asarray(a.val, a.aval.dtype) for a in literals]
        variables = [*jaxpr.invars, *jaxpr.constvars, *literals, *(v for e in jaxpr.eqns for v in e.outvars)]
        places = {id(v): k for k, v in enumerate(variables)}
        self._steps = [(e.primitive.eval, e.params, [places[id(a)] for a in e.invars], e.primitive.multiple_results)
                       for e in jaxpr.eqns]
        self._count = len(jaxpr.invars)
        self._types = [v.aval for v in jaxpr.invars]
        self._outs = [(places[id(a)], a.aval) for a in jaxpr.outvars]

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        values: list[Any] = [x.elements() if x.__class__ is ConcreteArray else np.asarray(x, a.dtype)
                             for x, a in zip(args, self._types, strict=True)]
        values += self._constants
        _play(self._steps, values)
        return [args[k] if k < self._count and args[k].__class__ is ConcreteArray else wrap(values[k], aval)
                for k, aval in self._outs]


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


def _play(steps: Sequence[tuple[Callable[..., Any], dict[str, Any], list[int], bool]], values: list[Any]) -> None:
    """Evaluates rules on values at places before, and appends the results."""
    before = hush()
    try:
        for rule, params, sources, many in steps:
            out = rule(*[values[k] for k in sources], **params)
            for value in out if many else (out,):
                if value.__class__ is not np.ndarray:
                    value = np.asarray(value)
                values.append(value if value.flags.c_contiguous else memory.copied(value, value.dtype))
    finally:
        restore(before)


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


def _loop(recording: Recording, arrays: Sequence[ConcreteArray], out: Any) -> tuple[Any, ...] | None:
    """What `Ways.make` makes native code of that does all that was recorded, if that is one operation."""
    if len(recording.steps) != 1 or out.__class__ is not ConcreteArray:
        return None
    ((primitive, params, sources, results),) = recording.steps
    if primitive.as_ufunc is None or sources != [*range(len(arrays))] or recording.places[id(out)] != results[0]:
        return None
    return primitive, params, [x.aval for x in arrays], [None] * len(arrays), out.aval
