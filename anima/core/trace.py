"""Tracing: who decides what happens when a primitive is applied to values.

Each thread has one current `Trace`. `Primitive.bind` hands it the primitive and its arguments; a
transformation installs its own trace, which looks for its own tracers among the arguments, does its
work, and applies primitives under the trace it was installed on (its `parent`). At the bottom is
`EvalTrace`, which runs the primitive's `eval` rule on NumPy arrays.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from anima import errors
from anima.config import config, enable_x64, no_execution
from anima.core import dtypes
from anima.core.array import Array, ConcreteArray
from anima.core.avals import ShapedArray
from anima.core.leaks import holder
from anima.core.primitive import Primitive
from anima.core.refs import Ref
from anima.core.state import _State, current


class Trace:
    """An interpreter of primitives; `parent` is the one that its own work runs under."""

    label = "Trace"
    holds_refs = True  # those made under it are cells of its own

    def __init__(self, parent: Trace | None):
        self.parent = parent
        self.level: int = 0 if parent is None else parent.level + 1
        self.alive = True
        self.made: list[weakref.ref[Tracer]] | None = [] if config.check_tracer_leaks else None  # its tracers

    def process(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        raise NotImplementedError

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
        return int(self._known(errors.TracerIntegerConversionError))

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
        return format(value, spec) if value is not None else format(repr(self), spec)

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
            raise ValueError("NumPy masked arrays are not supported as inputs: the mask would be lost. "
                             "Use x.filled() to get a standard NumPy array.")
        return ShapedArray(x.shape, dtypes.array_dtype(x))
    if isinstance(x, Ref):
        return x.aval  # type: ignore[return-value]
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


class EvalTrace(Trace):
    """Runs primitives on NumPy arrays, one at a time."""

    label = "EvalTrace"

    def process(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        if no_execution.value:
            raise RuntimeError(errors.no_execution_message(primitive.name))
        avals, values, foreign, extended = [], [], [], False
        for x in args:
            if isinstance(x, Tracer):
                raise errors.UnexpectedTracerError(errors.leaked_tracer_message(x))
            aval = aval_of(x)
            value = numpy_value(x, aval)
            if not isinstance(x, ConcreteArray):
                foreign.append(value)  # perhaps over memory of the user's: an array, or what NumPy reads as one
            extended = extended or isinstance(aval.dtype, dtypes.ExtendedDType)
            avals.append(aval)
            values.append(value)
        out_avals = primitive.infer(*avals, **params)
        with np.errstate(all="ignore"):
            if extended:
                out = primitive.eval_extended(avals, values, params)
            else:
                out = primitive.eval(*values, **params)
        if config.debug_nans or config.debug_infs:
            errors.check_finite(primitive.name, out if primitive.multiple_results else [out], current.source)
        if primitive.multiple_results:
            return [wrap(v, a, foreign) for v, a in zip(out, out_avals, strict=True)]
        return wrap(out, out_avals, foreign)


def wrap(value: Any, aval: ShapedArray, foreign: Sequence[np.ndarray] = ()) -> ConcreteArray:
    """An array of type `aval` over a NumPy value: in row-major order, sharing no memory with a user's own array."""
    value = np.asarray(value)
    if not value.flags.c_contiguous or any(value is x or np.may_share_memory(value, x) for x in foreign):
        value = value.copy()
    return ConcreteArray(value, aval)


EVAL = EvalTrace(None)
_State.trace = EVAL


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


def is_tracing() -> bool:
    """Whether some enclosing trace records a program rather than running it."""
    return inside("DynamicJaxprTrace")


def inside(label: str) -> bool:
    """Whether the current trace, or one that it runs under, is of this kind."""
    trace = current.trace
    while trace is not None:
        if trace.label == label:
            return True
        trace = trace.parent
    return False
