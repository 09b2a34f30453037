"""Tracing: who decides what happens when a primitive is applied to values.

Each thread has one current `Trace`. `Primitive.bind` hands it the primitive and its arguments; a
transformation installs its own trace, which looks for its own tracers among the arguments, does its
work, and applies primitives under the trace it was installed on (its `parent`). At the bottom is
`EvalTrace`, which runs the primitive's `eval` rule on NumPy arrays.
"""

from __future__ import annotations

import enum
import gc
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from anima import errors
from anima.config import config, debug_key_reuse, enable_x64, no_execution, numpy_rank_promotion, settled
from anima.core import dtypes, memory, transfers
from anima.core.array import Array, ConcreteArray, PlacedArray
from anima.core.avals import ShapedArray, scalar_type, standing
from anima.core.explicit import typed
from anima.core.leaks import holder
from anima.core.literals import TypedNumber
from anima.core.placement import elsewhere, moved, place, placed_results
from anima.core.primitive import Primitive
from anima.core.quiet import hush, restore
from anima.core.refs import Ref
from anima.core.state import _State, current, inside as inside, is_tracing as is_tracing
from anima.core.ways import Same, Ways
from anima.util import cleared


class Trace:
    """An interpreter of primitives; `parent` is the one that its own work runs under."""

    label = "Trace"
    is_ground = False  # nothing is transformed or recorded: operations run at once
    holds_refs = True  # those made under it are cells of its own
    recalls = False    # it knows an operation again by its parameters, where these are the same things
    derives = False    # it only adds tangents to what its parent does
    asks_numbers = False  # operations of arrays and Python's numbers are given these as such, not as arrays

    def __init__(self, parent: Trace | None):
        self.parent = parent
        self.level: int = 0 if parent is None else parent.level + 1
        self.alive = True
        self.made: list[weakref.ref[Tracer]] | None = [] if config.check_tracer_leaks else None  # its tracers

    def process(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        raise NotImplementedError

    def moves(self, x: Any) -> bool:
        """Whether a value has a tangent here."""
        return False

    @property
    def main(self) -> Trace:
        """The identity of the transformation in progress, which libraries ask tracers for: `x._trace.main`."""
        return self

    def describe(self) -> str:
        """What a user would call this trace, for errors."""
        return self.label


def _of_values(name: str) -> Callable[..., Any]:
    """A method of arrays that needs the value: tracers with none raise ConcretizationTypeError."""
    def method(self: Tracer, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._known(lambda x: errors.ConcretizationTypeError(
            x, f"The {name}() method was called on a traced array.")), name)(*args, **kwargs)

    method.__name__ = method.__qualname__ = name
    return method


def _property_of_values(name: str) -> property:
    """As `_of_values`, of an attribute."""
    def get(self: Tracer) -> Any:
        return getattr(self._known(lambda x: errors.ConcretizationTypeError(
            x, f"The attribute {name} of a traced array was asked for.")), name)

    return property(get)


class Tracer(Array):
    """Stands for a value of type `aval` while a function is traced."""

    __slots__ = ("__weakref__", "aval", "owner")

    def __init__(self, owner: Trace, aval: ShapedArray):
        self.owner = owner
        self.aval = aval
        if owner.made is not None:
            owner.made.append(weakref.ref(self))

    @property
    def _trace(self) -> Trace:  # tracers of libraries set it
        return self.owner

    @_trace.setter
    def _trace(self, trace: Trace) -> None:
        self.owner = trace

    def concrete(self) -> Any:
        """The value, where the trace knows one; None otherwise."""
        return None

    def origin_text(self) -> str:
        """Where the tracer came from, for errors."""
        return ""

    def made_text(self) -> str:
        """Where the tracer was made, for the error about one that outlives its trace."""
        return self.origin_text()

    def _known(self, error: Callable[[Tracer], Exception]) -> Any:
        value = self.concrete()
        if value is None:
            if not self.owner.alive:
                raise errors.UnexpectedTracerError(errors.leaked_tracer_message(self))
            raise error(self)
        return value

    def __bool__(self) -> bool:
        if self.aval.size != 1:
            raise ValueError(errors.ambiguous_truth_message(self.aval.size))
        return bool(self._known(errors.TracerBoolConversionError))

    def __int__(self) -> int:
        return int(self._known(errors.ConcretizationTypeError))

    def __index__(self) -> int:
        return self._known(errors.TracerIntegerConversionError).__index__()

    def __float__(self) -> float:
        return float(self._known(errors.ConcretizationTypeError))

    def __complex__(self) -> complex:
        return complex(self._known(errors.ConcretizationTypeError))

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise errors.TracerArrayConversionError(self)

    def tolist(self) -> Any:
        return self._known(errors.ConcretizationTypeError).tolist()

    def __format__(self, spec: str) -> str:
        value = self.concrete()
        return format(value, spec) if value is not None else errors.formatted(self, spec)

    def __reversed__(self) -> Iterator[Any]:
        return iter([self[k] for k in range(len(self) - 1, -1, -1)])

    def to_concrete_value(self) -> Any:
        """The value, where the trace knows one; None otherwise."""
        return self.concrete()

    def full_lower(self) -> Tracer:
        """The tracer itself: none here stands for another one."""
        return self

    get_referent = full_lower

    __dlpack__, tobytes = _of_values("__dlpack__"), _of_values("tobytes")
    delete, is_deleted, devices = _of_values("delete"), _of_values("is_deleted"), _of_values("devices")
    on_device_size_in_bytes = _of_values("on_device_size_in_bytes")
    unsafe_buffer_pointer = _of_values("unsafe_buffer_pointer")

    addressable_data = _of_values("addressable_data")
    addressable_shards, global_shards = _property_of_values("addressable_shards"), _property_of_values("global_shards")
    committed = _property_of_values("committed")
    is_fully_addressable = _property_of_values("is_fully_addressable")
    is_fully_replicated = _property_of_values("is_fully_replicated")

    @property
    def sharding(self) -> Any:
        """Traced arrays lie nowhere yet: AttributeError, so that `hasattr` tells them from those that do."""
        raise AttributeError(f"The attribute sharding is not available on {errors.traced_array(self)}.")

    def block_until_ready(self) -> Tracer:
        return self

    def __repr__(self) -> str:
        return f"Traced<{self.aval!r}>with<{self.owner.describe()}>"

    def __reduce__(self) -> Any:
        raise errors.ConcretizationTypeError(self, "It cannot be pickled.")

    def __copy__(self) -> Tracer:
        return self

    def __deepcopy__(self, memo: Any) -> Tracer:
        return self


def _is_masked(x: Any) -> bool:
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)  # where there is one, it has been imported
    return masked is not None and isinstance(x, masked)


def _scalars(x64: bool) -> dict[type, ShapedArray]:
    with enable_x64(x64):
        return {kind: ShapedArray((), dtypes.dtype_of(kind()), kind is not bool)
                for kind in (bool, int, float, complex)}


_scalar_avals = {x64: _scalars(x64) for x64 in (False, True)}  # of Python's, while `enable_x64` is so


def aval_of(x: Any) -> ShapedArray:
    """The type of a value; TypeError if it is not something that arrays are made of."""
    if isinstance(x, Array):
        return x.aval
    kind = type(x)
    if kind in (bool, int, float, complex):
        if kind is int:
            dtypes.check_python_int(x)
        return _scalar_avals[config.enable_x64][kind]
    if isinstance(x, (np.ndarray, np.generic)):
        if kind is not np.ndarray and _is_masked(x):
            raise ValueError("numpy masked arrays are not supported as inputs: the mask would be lost. "
                             "Use x.filled() to get a standard NumPy array.")
        return ShapedArray(x.shape, dtypes.array_dtype(x))
    if isinstance(x, Ref):
        return x.aval  # type: ignore[return-value]
    if isinstance(x, TypedNumber):
        return scalar_type(x.dtype, True)
    for number in (int, float, complex):
        if isinstance(x, number):  # of a subclass: an IntEnum, a unit of measure
            return aval_of(number(x))  # type: ignore[arg-type]
    if hasattr(x, "__array__") and hasattr(x, "dtype"):
        return aval_of(np.asarray(x))
    raise TypeError(errors.not_an_array_message(x))


def is_array_like(x: Any) -> bool:
    """Whether `x` can be an operand: an array, a tracer, a NumPy value or a Python number."""
    if isinstance(x, (Array, np.ndarray, np.generic, bool, int, float, complex)):
        return True
    return hasattr(x, "__array__") and hasattr(x, "dtype") and not isinstance(x, Ref)


def numpy_value(x: Any, aval: ShapedArray) -> np.ndarray:
    """A concrete operand as a NumPy array of its aval's dtype."""
    if isinstance(x, ConcreteArray):
        return x.elements()
    return np.asarray(x, dtype=aval.dtype)


def type_of(x: ConcreteArray) -> ShapedArray:
    """The type of an array; it has from now on the one that stands for its equals."""
    found = x.aval = standing(x.aval)
    return found


class _Known:
    """What is known of operations under one setting of the options: types of results by those of arguments.

    Types are found by identity, as that is quick: of each kind one stands for its equals.
    """

    __slots__ = ("checking", "key", "no_execution", "numbers", "results", "watched", "ways")

    def __init__(self, key: Any) -> None:
        self.key = key
        self.checking = config.debug_nans or config.debug_infs
        self.no_execution = no_execution.value
        self.watched = self.no_execution or key.guarded
        self.numbers: dict[type, ShapedArray] = {}  # of NumPy's kinds: the type of each
        self.results: dict[Any, tuple[Any, Any]] = {}  # with what is known by its identity, so that it lives
        self.ways = Ways(key, not (self.checking or self.watched or moved()))

    def watch(self, primitive: Primitive, args: Sequence[Any]) -> None:
        """Raises, or logs, where an option has it that nothing is computed, or that arguments are not transferred."""
        if self.no_execution:
            raise RuntimeError(errors.no_execution_message(primitive.name))
        for x in args:
            transfers.implicit(x)

    def infer(self, primitive: Primitive, avals: list[Any], params: dict[str, Any]) -> Any:
        """`primitive.infer`."""
        try:
            found = self.results.get((primitive, *map(id, avals), *params, *params.values()))
            return found[1] if found is not None else self._infer(primitive, avals, params)
        except TypeError:  # a parameter that has no hash; or what the rule says
            return primitive.infer(*avals, **params)

    def _infer(self, primitive: Primitive, avals: list[Any], params: dict[str, Any]) -> Any:
        same = [*map(standing, avals)]
        key = (primitive, *map(id, same), *params, *params.values())
        found = self.results.get(key)
        if found is not None:
            return found[1]
        out = primitive.infer(*avals, **params)
        if primitive.axis_names is None and all(map(is_plain, params.values())):
            if len(self.results) >= _MOST_KNOWN:
                self.results.clear()
            out = [*map(standing, out)] if primitive.multiple_results else standing(out)
            self.results[key] = same, out
        return out


def _key(function: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """What an application is found by; the types of arrays are told by identity, as that is quick."""
    return (function, *[id(x.aval) if x.__class__ is ConcreteArray else x.__class__ for x in args],
            *params, *params.values())


_MOST_KNOWN = 8192


def is_plain(value: Any) -> bool:
    """Whether a parameter is of values alone, which keep nothing alive."""
    if type(value) is tuple or hasattr(value, "_fields"):
        return all(map(is_plain, value))
    return value is None or type(value) in (int, bool, str, float) or isinstance(value, (np.dtype, enum.Enum))


class EvalTrace(Trace):
    """Runs primitives on NumPy arrays, one at a time."""

    label = "EvalTrace"
    is_ground = True
    known: Any = None  # under the options that held last
    on_parts: Callable[..., Any]  # applies an operation to arrays that are cut over processes; see `anima.distributed`
    on_remote: Callable[..., Any] | None = None  # does an operation on a device that is no CPU; see `api/remotes.py`
    on_large: Callable[..., Any]  # does an operation on large arrays by compiled code; see `api/eager.py`
    again: Callable[..., Any]  # what a function gives for operands of such types as it had before, quickly; if that is
    #                            not known, NotImplemented, and the function calls `remember`
    moved_keys: Callable[..., None]  # notes where random keys are moved to; see `control/key_reuse.py`

    def __init__(self, parent: Trace | None):
        super().__init__(parent)
        self.under: dict[Any, _Known] = {}

    def _known_under(self, key: Any) -> _Known:
        if len(self.under) >= 16 and key not in self.under:
            self.forget()
        return self.under.setdefault(key, _Known(key))

    def forget(self) -> None:
        """Forgets all that is known of operations."""
        self.under.clear()
        self.known = None
        Ways.forget()

    def learns(self, key: Any) -> bool:
        """Whether what is applied under these options may be applied again without asking."""
        known = self.known
        return known is not None and known.key is key and known.ways.learns

    def process(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        known, key = self.known, config.call_key()
        if known is None or known.key is not key:
            known = self.known = self._known_under(key)
        if known.watched:
            known.watch(primitive, args)
        if self.on_remote is not None and (out := self.on_remote(primitive, args, params)) is not NotImplemented:
            return self._noted(primitive, args, params, out)
        again = way = None
        if known.ways.learns:
            again = _key(primitive, args, params)
            try:
                way = known.ways.get(again)
            except TypeError:  # a parameter that has no hash
                again = None
            if way is not None:
                out = self._same(known, again, way, primitive, args, params) if way.__class__ is Same else way(*args)
                if out is not NotImplemented:
                    return out
        avals, values, foreign, extended = [], [], [], False
        placed = moved() or bool(primitive.pins(params))
        for x in args:
            if x.__class__ is ConcreteArray:
                aval, value = type_of(x), x._value
                if value.__class__ is str:
                    x.elements()  # raises
            elif isinstance(x, Tracer):
                raise errors.UnexpectedTracerError(errors.leaked_tracer_message(x))
            elif x.__class__ is PlacedArray:
                if x.is_cut and not x.is_deleted():
                    return self.on_parts(primitive, args, params)
                aval, value, placed = x.aval, numpy_value(x, x.aval), True
            elif (number := known.numbers.get(x.__class__)) is not None:
                aval, value = number, np.asarray(x)
            else:
                aval = aval_of(x)
                value = numpy_value(x, aval)
                if isinstance(x, np.generic) and value.dtype == x.dtype:
                    known.numbers[x.__class__] = aval
                foreign.append(value)  # perhaps over memory of the user's: an array, or what NumPy reads as one
            extended = extended or isinstance(aval.dtype, dtypes.ExtendedDType)
            avals.append(aval)
            values.append(value)
        out_avals = known.infer(primitive, avals, params)
        before = hush()
        try:
            if extended:
                out = primitive.eval_extended(avals, values, params)
            elif primitive.is_large(avals, params) and not (placed or known.checking):
                out = self.on_large(primitive, args, avals, values, params)
            else:
                out = primitive.eval(*values, **params)
        except (OverflowError, ValueError):
            _require_addresses(out_avals if primitive.multiple_results else [out_avals])
            raise
        finally:
            restore(before)
        if known.checking:
            errors.check_finite(primitive.name, out if primitive.multiple_results else [out], current.source,
                                values if primitive.moves else ())
        if placed:
            return self._noted(primitive, args, params,
                               self._placed(primitive, args, avals, out_avals, params, out, foreign))
        if again is not None and not (foreign or extended) and primitive.axis_names is None and all(
                map(is_plain, params.values())):
            known.ways.meet(_key(primitive, args, params), primitive, params, avals, out_avals)
        if primitive.multiple_results:
            return [wrap(v, a, foreign) for v, a in zip(out, out_avals, strict=True)]
        return self._noted(primitive, args, params, wrap(out, out_avals, foreign))

    def _noted(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any], out: Any) -> Any:
        """The result; where keys that it moves are now is noted, if that is to be."""
        if debug_key_reuse.value and primitive.moves and any(
                isinstance(aval_of(x).dtype, dtypes.ExtendedDType) for x in args):
            self.moved_keys(primitive, args, params, out)
        return out

    @staticmethod
    def _same(known: _Known, key: Any, way: Same, primitive: Primitive, args: Sequence[Any],
              params: dict[str, Any]) -> Any:
        """The results for operands of types that were met before; NotImplemented where one was deleted."""
        values = [x._value if x.__class__ is ConcreteArray else np.asarray(x) for x in args]
        if str in map(type, values):
            return NotImplemented
        before = hush()
        try:
            if way.large:
                out = EVAL.on_large(primitive, args, way.avals, values, params)
            else:
                out = primitive.eval(*values, **params)
        finally:
            restore(before)
        if not way.settled:
            known.ways.meet(key, primitive, params, way.avals, way.out)
        if primitive.multiple_results:
            return list(map(wrap, out, way.out))
        return wrap(out, way.out)

    def _placed(self, primitive: Primitive, args: Sequence[Any], avals: Sequence[ShapedArray], out_avals: Any,
                params: dict[str, Any], out: Any, foreign: Sequence[np.ndarray]) -> Any:
        """The results where the arguments, or the option default_device, have them be."""
        many = primitive.multiple_results
        types, values = (out_avals, out) if many else ([out_avals], [out])
        types = typed(primitive, avals, types, params)
        shardings = placed_results(primitive, args, avals, types, params)
        made = [(s, True) for s in shardings] if shardings is not None else [elsewhere(a.ndim) for a in types]
        if not primitive.pins(params):
            transfers.between(args, shardings or ())
        outs = [place(wrap(v, a, foreign).elements(), a, *where)
                for v, a, where in zip(values, types, made, strict=True)]
        return outs if many else outs[0]


def _require_addresses(avals: Sequence[ShapedArray]) -> None:
    """MemoryError if there can be no such arrays, which names their shapes, as errors of NumPy do not."""
    for aval in avals:
        if isinstance(aval.dtype, np.dtype):
            memory.require_addresses(aval.shape, aval.dtype)


def wrap(value: Any, aval: ShapedArray, foreign: Sequence[np.ndarray] = ()) -> ConcreteArray:
    """An array of type `aval` over a NumPy value: in row-major order, sharing no memory with a user's own array."""
    if value.__class__ is not np.ndarray:
        value = np.asarray(value)
    flags = value.flags
    if not flags.c_contiguous or (foreign and any(value is x or np.may_share_memory(value, x) for x in foreign)):
        value = memory.copied(value, value.dtype)
        flags = value.flags
    flags.writeable = False
    array = _new(ConcreteArray)  # as its constructor makes it
    array._value, array.aval = value, aval
    return array


_new = object.__new__
EVAL = EvalTrace(None)
_State.trace = EVAL
cleared(EVAL.forget)


def _again(function: Any, *operands: Any) -> Any:
    known = EVAL.known
    if current.trace is EVAL and known is not None and known.key is (settled[0] or config.call_key()):
        way = known.ways.get(_key(function, operands, {}))
        if way is not None:
            return way(*operands)
    return NotImplemented


EVAL.again = _again


def remember(function: Any, primitive: Primitive, args: Sequence[Any], operands: Sequence[Any], out: Any) -> Any:
    """`out`, which `primitive` gave for `operands`; these are the function's `args`, or what it has made of them."""
    known = EVAL.known
    if known is None or known.key is not config.call_key():
        return out  # another thread has applied something meanwhile, under other options
    if current.trace is EVAL and primitive.as_ufunc is not None:
        avals = []
        for x, made in zip(args, operands, strict=True):
            if x.__class__ is ConcreteArray:
                stretched = made is not x and (made.__class__ is not ConcreteArray or made.aval.dtype != x.aval.dtype
                                               or made.size != x.size or numpy_rank_promotion.value != "allow")
                if stretched:
                    return out
                avals.append(type_of(x))
            elif x.__class__ is int or x.__class__ is float:
                aval = aval_of(made)
                avals.append(aval if aval.weak_type else scalar_type(aval.dtype, True))
            else:
                return out
        known.ways.meet(_key(function, args, {}), primitive, {}, avals, out.aval, [x.__class__ for x in args])
    return out


@contextmanager
def installed(trace: Trace) -> Iterator[Trace]:
    """`trace` is the current one inside the block."""
    before = current.trace
    current.trace = trace
    try:
        yield trace
    finally:
        current.trace = before


def under(trace: Trace, fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`fun(*args, **kwargs)` with `trace` as the current one."""
    before = current.trace
    current.trace = trace
    try:
        return fun(*args, **kwargs)
    finally:
        current.trace = before


class CompileTimeTrace(Trace):
    """Applies primitives at once, whatever is being traced, except to values that are tracers."""

    label = "CompileTimeTrace"
    holds_refs = False

    def process(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        waits = any(isinstance(x, Tracer) for x in args)
        return under(self.parent if waits and self.parent else EVAL, primitive.bind, *args, **params)


@contextmanager
def ensure_compile_time_eval() -> Iterator[None]:
    """A block (or decorated function) in which operations on known values are done while tracing.

    >>> @jit
    ... def f(x):
    ...     with anima.ensure_compile_time_eval():
    ...         n = int(anima.numpy.sum(anima.numpy.arange(3)))   # a number, where jit alone would record a sum
    ...     return x * n
    >>> f(2)
    Array(6, dtype=int32, weak_type=True)
    """
    with installed(CompileTimeTrace(current.trace)):
        yield


@contextmanager
def eval_context() -> Iterator[None]:
    """A block in which operations are done at once, whatever is being traced; tracers cannot be used in it."""
    with installed(EVAL):
        yield


def check_leaks(trace: Trace) -> None:
    """Under `check_tracer_leaks`: UnexpectedTracerError if something still refers to a tracer of an ended trace."""
    if trace.made is None or all(made() is None for made in trace.made):
        return
    gc.collect()  # they may be garbage in circles
    for made in trace.made:
        x = made()
        if x is not None:
            text = errors.leaked_tracer_message(x, holder(x))
            raise errors.UnexpectedTracerError(f"Leaked trace {trace.describe()}. {text}")
