"""Callbacks: operations that call a Python function with the values that a program has when it gets there.

    debug_print[fmt="x = {}"] a                        prints; a value more or less in a program changes nothing
    debug_callback[callback=f] a                       calls f, for its effect
    b:f32[] = io_callback[callback=f] a                calls f, for its effect and its results
    b:f32[] = pure_callback[callback=f] a              calls f for its results; may be dropped, or called again

Equations with an effect are never dropped, merged or moved out of a loop, and run in program order. Under
`vmap` a function is called for each lane in order, unless `vmap_method` says that it takes a stack.
"""

from __future__ import annotations

import string
import traceback
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from anima import errors, tree
from anima.control.scan import batch_lanes
from anima.core import dtypes
from anima.core.array import ConcreteArray
from anima.core.avals import ShapedArray
from anima.core.axes import is_of_devices
from anima.core.primitive import Primitive
from anima.core.trace import aval_of
from anima.ops.shape import broadcast
from anima.transforms.vmap import move_to
from anima.util import name_and_place, record

VMAP_METHODS = ("sequential", "sequential_unrolled", "expand_dims", "broadcast_all", "legacy_vectorized")


class DebugEffect(str):
    """The effect of printing and calling back, in an order that does not matter."""

    __slots__ = ()

    def __new__(cls) -> DebugEffect:
        return super().__new__(cls, "Debug")

    def __reduce__(self) -> Any:
        return type(self), ()


class OrderedDebugEffect(str):
    """The same, in program order."""

    __slots__ = ()

    def __new__(cls) -> OrderedDebugEffect:
        return super().__new__(cls, "OrderedDebug")

    def __reduce__(self) -> Any:
        return type(self), ()



@record
class FlatCallback:
    """A user's function of pytrees as one of flat arrays. `static` are arguments that are no arrays, by position."""

    callback_func: Callable[..., Any]
    in_tree: Any
    static: tuple[tuple[int, Any], ...] = field(default=(), repr=False)

    def __call__(self, *arrays: Any) -> Any:
        args, kwargs = tree.unflatten(self.in_tree, merge_static(self.static, arrays))
        return self.callback_func(*args, **kwargs)


def merge_static(static: Sequence[tuple[int, Any]], arrays: Sequence[Any]) -> list[Any]:
    """All leaves in order: those known by position, and the arrays."""
    known, rest = dict(static), iter(arrays)
    return [known[k] if k in known else next(rest) for k in range(len(known) + len(arrays))]


class Callback(Primitive):
    """What the four have in common: operands reach the user as arrays, random keys included."""

    multiple_results = True
    gathers = True
    errors_as_text = False  # of all users' functions, as in JAX: told by an AnimaRuntimeError

    def infer(self, *avals: ShapedArray, result_avals: Sequence[ShapedArray] = (), **params: Any) -> list[ShapedArray]:
        return list(result_avals)

    def eval(self, *args: np.ndarray, **params: Any) -> list[np.ndarray]:
        return self.called_back(*args, **params)

    def called_back(self, *args: np.ndarray, key_dtypes: Sequence[Any] = (), result_avals: Sequence[ShapedArray] = (),
                    **params: Any) -> list[np.ndarray]:
        arrays = _arrays(args, key_dtypes)
        try:
            value = self.call(arrays, **params)
        except Exception as error:
            if not Callback.errors_as_text:
                raise
            text = "".join(traceback.format_exception(error)).rstrip()
            raise errors.AnimaRuntimeError(f"INTERNAL: CpuCallback error calling callback: {text}") from error
        return self.results(value, result_avals, **params)

    def physical(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> dict[str, Any]:
        kinds = tuple(a.dtype if isinstance(a.dtype, dtypes.ExtendedDType) else None for a in avals)
        return {**params, "key_dtypes": kinds}

    def call(self, arrays: Sequence[ConcreteArray], **params: Any) -> Any:
        """Calls the user's function."""
        raise NotImplementedError

    def results(self, value: Any, avals: Sequence[ShapedArray], **params: Any) -> list[np.ndarray]:
        """What the function returned, as arrays of the types it was to return."""
        return []

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        return batch_lanes(self, size, args, dims, params)


def _arrays(values: Sequence[np.ndarray], key_dtypes: Sequence[Any]) -> list[ConcreteArray]:
    return [_array(x, d) for x, d in zip(values, key_dtypes or [None] * len(values), strict=True)]


def _array(value: np.ndarray, key_dtype: Any) -> ConcreteArray:
    """An operand as the user sees it, in memory that nobody writes to."""
    value = np.asarray(value)  # NumPy makes scalars of 0-d arrays
    if value.flags.writeable or getattr(value.base, "flags", value.flags).writeable:
        value = value.copy()
    if key_dtype is None:
        return ConcreteArray(value, ShapedArray(value.shape, value.dtype))
    rank = value.ndim - len(key_dtype.element_shape)
    return ConcreteArray(value, ShapedArray(value.shape[:rank], key_dtype))


# ---------------------------------------------------------------- for the effect


class Debug(Callback):
    """Debugging: invisible to derivatives. Outside of compiled programs, failures are those of the user's function."""

    def eval(self, *args: np.ndarray, key_dtypes: Sequence[Any] = (), **params: Any) -> list[np.ndarray]:
        self.call(_arrays(args, key_dtypes), **params)
        return []

    def effects_of(self, params: dict[str, Any]) -> frozenset[str]:
        return frozenset((OrderedDebugEffect() if params["ordered"] else DebugEffect(),))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        return self.bind(*primals, **params), []


class DebugCallback(Debug):
    """Calls a function whose results nobody wants."""

    def call(self, arrays: Sequence[ConcreteArray], *, callback: FlatCallback, **params: Any) -> Any:
        return callback(*arrays)


class DebugPrint(Debug):
    """Prints a formatted line."""

    def call(self, arrays: Sequence[ConcreteArray], *, fmt: str, in_tree: Any, static_args: Any, **params: Any) -> Any:
        args, kwargs = tree.unflatten(in_tree, merge_static(static_args, arrays))
        print(FORMATTER.vformat(fmt, args, kwargs))


class Formatter(string.Formatter):
    """`str.format` that applies a number's format to each element of an array."""

    def format_field(self, value: Any, spec: str) -> str:
        if spec and isinstance(value, ConcreteArray) and value.ndim:
            return np.array2string(value.__array__(), formatter={"all": lambda x: format(x, spec)})
        return super().format_field(value, spec)


FORMATTER = Formatter()


# ---------------------------------------------------------------- for the results


class ResultCallback(Callback):
    """Calls a function that returns arrays of known types."""

    def call(self, arrays: Sequence[ConcreteArray], *, callback: FlatCallback, **params: Any) -> Any:
        return callback(*arrays)

    def results(self, value: Any, avals: Sequence[ShapedArray], *, callback: FlatCallback,
                **params: Any) -> list[np.ndarray]:
        leaves = tree.leaves(value)
        if len(leaves) != len(avals):
            raise errors.AnimaRuntimeError(self._wrong(
                callback, f"returned {len(leaves)} arrays, in a tree of structure {tree.structure(value)}, where "
                f"result_shape_dtypes has {len(avals)}"))
        return [self._result(k, leaf, aval, callback) for k, (leaf, aval) in enumerate(zip(leaves, avals, strict=True))]

    def _result(self, number: int, leaf: Any, aval: ShapedArray, callback: FlatCallback) -> np.ndarray:
        try:
            found = aval_of(leaf)
        except TypeError:
            raise errors.AnimaRuntimeError(self._wrong(
                callback, f"returned {leaf!r} of type {type(leaf).__name__}, which is no array")) from None
        for what, expected, actual in (("shape", aval.shape, found.shape), ("dtype", aval.dtype, found.dtype)):
            if expected != actual:
                raise errors.AnimaRuntimeError(self._wrong(
                    callback, f"returned another {what} than result_shape_dtypes says. Incorrect output {what} for "
                    f"return value #{number}: Expected: {expected}, Actual: {actual}"))
        return leaf.elements() if isinstance(leaf, ConcreteArray) else np.array(leaf, aval.dtype)

    def _wrong(self, callback: FlatCallback, what: str) -> str:
        return f"The callback {name_and_place(callback.callback_func)}, called by {self.name}, {what}."


class PureCallback(ResultCallback):
    """A function without effects."""

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        raise ValueError("Pure callbacks do not support JVP. Please use `anima.custom_jvp` to use callbacks while "
                         "taking gradients.")

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        return batch_stacked(self, size, args, dims, params)


def batch_stacked(primitive: Primitive, size: int, args: Sequence[Any], dims: Sequence[int | None],
                  params: dict[str, Any]) -> tuple[Any, Any]:
    """What `vmap` makes of a call of a function from outside, by the `vmap_method` among its parameters; each device of
    a mesh calls it for its own part."""
    vmap_method = "sequential" if is_of_devices(size) else params["vmap_method"]
    if vmap_method is None:
        listed = ", ".join(map(repr, VMAP_METHODS[:-1]))
        raise NotImplementedError(f"vmap is only supported for the {primitive.name} primitive when vmap_method is one "
                                  f"of {listed}, or {VMAP_METHODS[-1]!r}. Got vmap_method=None.")
    if vmap_method.startswith("sequential"):
        return batch_lanes(primitive, size, args, dims, params)
    given = []
    for x, d in zip(args, dims, strict=True):
        if d is not None or vmap_method == "broadcast_all":
            given.append(move_to(x, d, 0, size))
        else:
            given.append(broadcast(x, (1,)) if vmap_method == "expand_dims" else x)
    avals = tuple(a.update(shape=(size, *a.shape)) for a in params["result_avals"])
    outs = primitive.bind(*given, **{**params, "result_avals": avals})
    return outs, [0] * len(outs)


class IOCallback(ResultCallback):
    """A function with effects."""

    on_each_device = True

    def effects_of(self, params: dict[str, Any]) -> frozenset[str]:
        return frozenset(("OrderedIO" if params["ordered"] else "IO",))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        raise ValueError("IO callbacks do not support JVP. Please use `anima.custom_jvp` to use callbacks while taking "
                         "gradients.")

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        if params["ordered"] and not is_of_devices(size):
            raise ValueError("Cannot `vmap` ordered IO callback.")
        return super().batch(size, args, dims, **params)


debug_callback_p = DebugCallback("debug_callback")
debug_print_p = DebugPrint("debug_print")
pure_callback_p = PureCallback("pure_callback")
io_callback_p = IOCallback("io_callback")
