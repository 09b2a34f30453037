"""How functions of the library run outside of `jit`, where a call of NumPy for each operation is not the best way.

    @repeated  def where(c, x, y): ...     called again on arrays of such types, it plays a tape of what it applied
    @compiled  def normal(key, shape): ... one program, with the bits that it has inside of `jit`

An operation on a large array is compiled, too, and a function of such operations as a whole: then they take one pass
over memory, on all cores, where NumPy takes one for each on one core.
"""

from __future__ import annotations

import enum
import functools
import inspect
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from anima import errors
from anima.api.jit import JitFunction
from anima.config import config, settled
from anima.core import transfers
from anima.core.array import Array, ConcreteArray
from anima.core.avals import ShapedArray, standing
from anima.core.jaxpr import subjaxprs
from anima.core.primitive import LARGE, Primitive
from anima.core.replay import Replay, record
from anima.core.state import current, is_tracing
from anima.core.trace import EVAL, aval_of, type_of, under
from anima.core.ways import Ways
from anima.util import cleared

F = TypeVar("F", bound=Callable[..., Any])

_MOST_KNOWN = 1024
_MOST_ITEMS = 256  # of a list or tuple
_CHANGING = 4      # calls that differ in their numbers alone, after which these are operands
_WORTH = 0.01     # seconds in single operations, after which a function is compiled if that changes no bit
_PLAIN = frozenset((type(None), bool, int, float, str))
_WHOLE = frozenset((type(None), bool, int, str, type(...)))
_VIEW = 1 << 14  # bytes of a result that is a view of an operand, from which compiled code is slower: it copies
_ARRAYS = (Array, np.ndarray, np.generic)
_VALUE_NEEDED = (errors.ConcretizationTypeError, errors.TracerArrayConversionError, errors.TracerIntegerConversionError)


def _static(x: Any) -> Any:
    """What stands in keys for an argument that is no array: its class and value, so that 1, 1.0 and True are different,
    and so are the zeros of floats. TypeError if it is of no kind that values say everything about."""
    kind = x.__class__
    if kind in _WHOLE:
        return kind, x
    if kind in (float, complex):
        return kind, str(x) if x == 0 or kind is complex else x
    if kind is tuple:
        kinds = (*map(type, x),)
        return (kind, x, kinds) if _WHOLE.issuperset(kinds) else (kind, *map(_static, x))
    if kind is slice:
        return kind, _static((x.start, x.stop, x.step))
    if isinstance(x, (type, np.dtype, enum.Enum)):
        return kind, x
    raise TypeError(kind)


_HERE = object()  # stands for an array among arguments


def _without_arrays(x: Any) -> Any:
    """An argument with a mark in the place of each array."""
    if x.__class__ is tuple or x.__class__ is list:
        return x.__class__(map(_without_arrays, x))
    return _HERE if x.__class__ is ConcreteArray else x


def _filled(x: Any, arrays: Iterator[Any]) -> Any:
    """An argument with the next of the arrays in the place of each mark."""
    if x.__class__ is tuple or x.__class__ is list:
        return x.__class__([_filled(y, arrays) for y in x])
    return next(arrays) if x is _HERE else x


class _Program:
    """A function compiled for calls with these arguments but for what takes the places that are marked."""

    def __init__(self, fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        @functools.wraps(fun)
        def program(*arrays: Any) -> Any:
            given = iter(arrays)
            return fun(*[_filled(x, given) for x in args], **{k: _filled(x, given) for k, x in kwargs.items()})

        self.fun = fun
        self.jitted: JitFunction | None = JitFunction(program, counts_keys=False)

    @classmethod
    def of_arrays(cls, fun: Callable[..., Any], args: Iterable[Any], kwargs: dict[str, Any]) -> _Program:
        """A function of the arrays among, or within, its arguments."""
        return cls(fun, [*map(_without_arrays, args)], {k: _without_arrays(x) for k, x in kwargs.items()})

    def does_better(self, arrays: Iterable[Any]) -> bool:
        """Whether there are large operations in it that give other bits than NumPy: then it is used from the start."""
        try:
            programs: list[Any] = [self.jitted.trace(*arrays).jaxpr] if self.jitted is not None else []
        except Exception:  # values are needed, or there is a mistake, which the call itself will tell of
            return False
        large, exact = False, True
        while programs:
            for e in programs.pop().eqns:
                avals, outs = [a.aval for a in e.invars], [v.aval for v in e.outvars]
                inner = [*subjaxprs(e.params)]
                programs += inner
                large = large or e.primitive.is_large(avals, e.params)
                exact = exact and (bool(inner) or e.primitive.is_exact([*avals, *outs], e.params))
        return large and not exact

    def __call__(self, arrays: Iterable[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.jitted is not None:
            try:
                return self.jitted(*arrays)
            except _VALUE_NEEDED:  # of an array: the size of a result, for one
                self.jitted = None
        return self.fun(*args, **kwargs)


def _shape(x: Any, name: str) -> Any:
    if name != "shape" or not isinstance(x, (list, Array, np.ndarray)):
        return x
    return tuple(x if isinstance(x, list) else np.asarray(x).tolist())


def compiled(fun: F, static: Iterable[str] = ()) -> F:
    """`fun`, compiled whenever it is called outside of tracing.

    Arguments that are arrays or floats are the program's, and so are integers that are not named in `static`.
    """
    programs: dict[Any, _Program] = {}
    cleared(programs.clear)
    names = [*inspect.signature(fun).parameters]

    def with_shape(args: Iterable[Any], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (*map(_shape, args, names),), {name: _shape(x, name) for name, x in kwargs.items()}

    @functools.wraps(fun)
    def public(*args: Any, **kwargs: Any) -> Any:
        if is_tracing() or config.disable_jit or len(args) > len(names):
            return fun(*args, **kwargs)
        if list in map(type, args) or list in map(type, kwargs.values()):  # as shapes may be given
            args, kwargs = with_shape(args, kwargs)
        key: list[Any] = [len(args), *kwargs]
        arrays: dict[Any, Any] = {}
        try:
            for k, x in (*enumerate(args), *kwargs.items()):
                name = k if k.__class__ is str else names[k]
                if isinstance(x, _ARRAYS) or (x.__class__ in (float, complex, int) and name not in static):
                    if name == "shape" and getattr(x, "ndim", 0):
                        args, kwargs = with_shape(args, kwargs)
                        return public(*args, **kwargs)
                    arrays[k] = x
                    key.append(None)
                else:
                    key.append(_static(x))
            known = (*key,)
            program = programs.get(known)
        except TypeError:  # none that it can be called with
            return fun(*args, **kwargs)
        if program is None:
            if len(programs) >= _MOST_KNOWN:
                programs.clear()
            program = programs[known] = _Program(fun, [_HERE if k in arrays else x for k, x in enumerate(args)],
                                                 {k: _HERE if k in arrays else x for k, x in kwargs.items()})
        return program(arrays.values(), args, kwargs)

    return public  # type: ignore[return-value]


class _Repeated:
    """What is known of calls of one kind."""

    __slots__ = ("exact", "met", "program", "run", "spent", "tape")

    def __init__(self) -> None:
        self.met, self.spent, self.exact = False, 0.0, False
        self.run: Callable[..., Any] | None = None
        self.tape: Replay | None = None
        self.program: _Program | None = None

    def call(self, fun: Callable[..., Any], arrays: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if (self.program is not None and not config.no_tracing
                and str not in [x._value.__class__ for x in arrays]):  # of none that was deleted
            return self.program(arrays, args, kwargs)
        out: Any = NotImplemented
        before = time.perf_counter()
        if not self.met:
            self.met = True
            if _may_be_large(arrays):
                program = _Program.of_arrays(fun, args, kwargs)
                if program.does_better(arrays):
                    self.program = program
                    return program(arrays, args, kwargs)
            out, self.tape, self.exact = record(fun, arrays, args, kwargs)
            if _is_large_view(out, arrays):
                self.exact = False
                if self.tape is not None:
                    self.tape.stay()
        elif self.tape is not None:
            out = self.tape(*arrays)
        if out is NotImplemented:
            out = fun(*args, **kwargs)
        if self.exact and not (self.tape is not None and self.tape.is_brief):
            self.spent += time.perf_counter() - before
            if self.spent > _WORTH and self.program is None and not config.disable_jit:
                self.program = _Program.of_arrays(fun, args, kwargs)
        return out

    def settle(self, options: Any, fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any],
               arrays: Sequence[Any]) -> None:
        """Has `run` be what from now on is called with the arrays, if it is known what that is and nothing is done
        beside: the compiled program, or the tape, if there will be no program."""
        if self.program is None:
            waits = self.tape is None or (self.exact and not self.tape.is_brief)  # for a program
            self.run = None if waits else self.tape.settled()
        elif self.program.jitted is not None:
            key, run, finish = self.program.jitted.programs.last
            self.run = run if key is options and finish is None else None
        if self.run is not None and args and not kwargs and args[0].__class__ is ConcreteArray and (
                len(args) == 1 or args[1].__class__ is ConcreteArray or _is_fixed(args[1])):
            operands = [x.aval if x.__class__ is ConcreteArray else x for x in args]
            Ways.keep(options, fun, operands, len(arrays), self.run)


def _is_fixed(x: Any) -> bool:
    """Whether an argument is what it is for as long as it is the same thing."""
    return x.__class__ in _WHOLE or x.__class__ is float or (
        x.__class__ is tuple and _WHOLE.issuperset(map(type, x)))


def _may_be_large(arrays: Sequence[ConcreteArray]) -> bool:
    """Whether operations on these may be large ones (see `Primitive.is_large`)."""
    return any(x.aval.size >= LARGE >> 2 for x in arrays) and not (config.disable_jit or config.no_tracing)


def _is_large_view(out: Any, arrays: Sequence[ConcreteArray]) -> bool:
    results = out if isinstance(out, (list, tuple)) else [out]
    return any(x.__class__ is ConcreteArray and x.nbytes >= _VIEW
               and any(np.may_share_memory(x._value, a._value) for a in arrays) for x in results)


def _note(args: Iterable[Any], key: list[Any], arrays: list[ConcreteArray]) -> bool:
    """Adds what arguments are told by, arrays by the identity of their types; False if that does not tell all."""
    for x in args:
        kind = x.__class__
        if kind is ConcreteArray:
            key.append(id(x.aval))
            arrays.append(x)
        elif kind in _WHOLE or (kind is float and x and x == x):  # zeros of two signs are equal, NaNs are not
            key += kind, x
        elif kind is slice and _WHOLE.issuperset(kinds := (type(x.start), type(x.stop), type(x.step))):
            key += kind, kinds, x.start, x.stop, x.step
        elif (kind is tuple or kind is list) and len(x) <= _MOST_ITEMS:
            key += kind, len(x)
            if not _note(x, key, arrays):
                return False
        elif isinstance(x, (type, np.dtype, enum.Enum)):
            key += kind, x
        else:
            return False
    return True


def _spell(x: Any, key: list[Any], arrays: list[ConcreteArray]) -> bool:
    """Adds what an argument is told by, arrays by what their types are; whether these are kept. TypeError if it is of
    no kind that this says everything about."""
    kind = x.__class__
    if kind is ConcreteArray:
        before, aval = x.aval, type_of(x)
        arrays.append(x)
        key += aval.shape, aval.dtype, aval.weak_type
        return before is aval
    if (kind is tuple or kind is list) and len(x) <= _MOST_ITEMS:
        key += kind, len(x)
        return sum([_spell(y, key, arrays) for y in x]) == len(x)
    key.append(_static(x))
    return True


def _taken(x: Any) -> Any:
    """An argument in which NumPy's arrays are taken over, if that leaves their numbers what they are: of calls with
    arrays, what is known of earlier ones can be used."""
    kind = x.__class__
    if kind is tuple or kind is list:
        taken = kind(map(_taken, x))
        return x if all(map(operator.is_, taken, x)) else taken
    if kind is not np.ndarray or x.ndim == 0 or x.dtype.kind not in "biufc" or x.dtype.char in "gG":
        return x
    aval = standing(aval_of(x))
    value = np.array(x, dtype=aval.dtype)
    if value.dtype != x.dtype and x.dtype.kind in "iu" and (value != x).any():
        return x
    transfers.implicit(x)
    return ConcreteArray(value, aval)


class _Calls:
    """The calls of a function that are known: by everything that they depend on; and, those whose other arguments are
    told by class and value, by types of arrays that are told by identity, and kept."""

    def __init__(self, fun: Callable[..., Any], moves: bool, numbers: bool) -> None:
        self.fun = fun
        self.moves, self.numbers = moves, numbers
        self.known: dict[Any, _Repeated | None] = {}
        self.quick: dict[Any, tuple[_Repeated, Any]] = {}
        self.alike: dict[Any, int] = {}  # how many calls differed in their numbers alone
        for kept in (self.known, self.quick, self.alike):
            cleared(kept.clear)

    def call(self, options: Any, args: tuple[Any, ...], kwargs: dict[str, Any], quick: Any = None) -> Any:
        """What the function gives; if the call is known, it will be found under the key `quick`, too."""
        key: list[Any] = [options, *kwargs]
        arrays: list[ConcreteArray] = []
        try:
            kept = _spell((*args, *kwargs.values()), key, arrays)
            this = (*key,)
            found = self.known.get(this)
        except TypeError:
            return self.fun(*args, **kwargs)
        if found is None:
            if self.numbers and this not in self.known and (as_arrays := self._changing(options, args, kwargs)):
                return self.call(options, *as_arrays)
            if len(self.known) >= _MOST_KNOWN:
                self.known.clear()
            if this not in self.known and (self.moves or not _may_be_large(arrays)):
                self.known[this] = None
                return self.fun(*args, **kwargs)
            found = self.known[this] = _Repeated()
        if quick is not None and kept:
            if len(self.quick) >= _MOST_KNOWN:
                self.quick.clear()
            self.quick[quick] = found, [x.aval for x in arrays]
        return found.call(self.fun, arrays, args, kwargs)

    def _changing(self, options: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments with arrays in the place of numbers, of which there are others at each call: what is known of
        one call is of no use to the next. None as long as there are not, and where an array of half precision would
        take a number that is rounded once as one that is rounded twice."""
        key: list[Any] = [options, len(args), *kwargs]
        arrays: list[ConcreteArray] = []
        numbers = []
        for x in (*args, *kwargs.values()):
            if x.__class__ is float or x.__class__ is int:
                key.append(x.__class__)
                numbers.append(x)
            else:
                _spell(x, key, arrays)
        if not numbers or not arrays or any(x.dtype.itemsize < 4 and x.dtype.kind not in "biu" for x in arrays):
            return None
        this = (*key,)
        if len(self.alike) >= _MOST_KNOWN:
            self.alike.clear()
        self.alike[this] = met = self.alike.get(this, 0) + 1
        if met <= _CHANGING or any(x.__class__ is int and not -1 << 31 <= x < 1 << 31 for x in numbers):
            return None

        def of(x: Any) -> Any:
            return ConcreteArray(np.asarray(x, (aval := aval_of(x)).dtype), aval) if x.__class__ in (float, int) else x

        return (*map(of, args),), {k: of(x) for k, x in kwargs.items()}


def repeated(fun: F, moves: bool = False, numbers: bool = False) -> F:
    """`fun`, which does not find out again what it applies to arrays of types that it was called with before.

    Where compiled code gives the same bits, it is compiled once such calls have taken as long as that takes. Where it
    does not, large arrays meet it from the first call on; `moves`: `fun` only moves elements, and so it always does.
    `numbers`: a number of Python's is no more to `fun` than an array of weak type, and becomes one if it changes.
    """
    calls = _Calls(fun, moves, numbers)

    @functools.wraps(fun)
    def public(*args: Any, **kwargs: Any) -> Any:
        if not kwargs and Ways.is_native:
            out = EVAL.again(public, *args)
            if out is not NotImplemented:
                return out
        options = settled[0] or config.call_key()
        if current.trace is not EVAL or not EVAL.learns(options):
            return fun(*args, **kwargs)
        key = [options, len(args), *kwargs]
        arrays: list[ConcreteArray] = []
        if not (_note(args, key, arrays) and _note(kwargs.values(), key, arrays)):
            given = args, (*kwargs.values(),)
            taken = _taken(given)
            if taken is given:
                return calls.call(options, args, kwargs)
            return public(*taken[0], **dict(zip(kwargs, taken[1], strict=True)))
        this = (*key,)
        known = calls.quick.get(this)
        if known is None:
            return calls.call(options, args, kwargs, this)
        found = known[0]
        if found.run is not None:
            out = found.run(*arrays)
            if out is not NotImplemented:
                return out
        out = found.call(fun, arrays, args, kwargs)
        found.settle(options, public, args, kwargs, arrays)
        return out

    return public  # type: ignore[return-value]


of_numbers = functools.partial(repeated, numbers=True)


class _Operation:
    """An operation on large arrays of one kind each."""

    def __init__(self, primitive: Primitive, avals: Sequence[ShapedArray], params: dict[str, Any]) -> None:
        @functools.wraps(primitive.bind)
        def program(*operands: Any) -> Any:
            return primitive.bind(*operands, **params)

        program.__name__ = program.__qualname__ = primitive.name
        outs = primitive.infer(*avals, **params)
        types = [*avals, *(outs if primitive.multiple_results else [outs])]
        self.avals = avals  # which are told by identity
        self.jitted: Callable[..., Any] | None = JitFunction(program, counts_keys=False)
        self.left = _WORTH if primitive.is_exact(types, params) else 0.0  # seconds for `eval`, before it is compiled


_operations: dict[Any, _Operation] = {}
cleared(_operations.clear)


def on_large(primitive: Primitive, args: Sequence[Any], avals: Sequence[ShapedArray], values: Sequence[np.ndarray],
             params: dict[str, Any]) -> Any:
    """The elements of the results of an operation on large arrays, by compiled code. Where that gives the same bits as
    `eval`, it is compiled once this has taken as long as that takes; otherwise at once, so that the bits stay the same.
    """
    avals = [*map(standing, avals)]
    try:
        key = (primitive, *map(id, avals), *params, *params.values())
        found = _operations.get(key)
    except TypeError:  # a parameter that has no hash
        return primitive.eval(*values, **params)
    if found is None:
        if len(_operations) >= _MOST_KNOWN:
            _operations.clear()
        found = _operations[key] = _Operation(primitive, avals, params)
    if found.left <= 0 and found.jitted is not None and not (config.disable_jit or config.no_tracing):
        try:
            out = under(EVAL, found.jitted, *args)
        except NotImplementedError:  # of such a type, or under an option
            found.jitted = None
        else:
            return [x.elements() for x in out] if primitive.multiple_results else out.elements()
    before = time.perf_counter()
    out = primitive.eval(*values, **params)
    found.left -= time.perf_counter() - before
    return out


EVAL.on_large = on_large
