"""What users are told when something is wrong: exception classes, their texts, and short tracebacks.

    TracerBoolConversionError: Attempted boolean conversion of traced array with shape bool[].
    The error occurred while tracing the function f at train.py:30 for jit. This concrete value was not
    available in Python because it depends on the value of the argument x.
      at model.py:14, in f:   if x > 0:
    Fix: anima.lax.cond or anima.numpy.where; or mark x static: jit(f, static_argnames="x").

A tracer is known here only by its `aval` and `origin_text()`. Tracebacks that leave the public API keep
the user's frames and lose Anima's own, unless `ANIMA_TRACEBACK=full`.
"""
from __future__ import annotations

import contextlib
import functools
import linecache
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any, TypeVar

import numpy as np

from anima.config import debug_infs, debug_nans, traceback as _traceback, traceback_filtering
from anima.names import access

F = TypeVar("F", bound=Callable[..., Any])
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
# What only Anima's frames call is hidden with them.
_SERVANTS = (os.path.dirname(np.__file__) + os.sep, contextlib.__file__)
_hidden = [_PACKAGE, "<frozen"]
_internal_code: dict[CodeType, bool] = {}
_passed_code: dict[CodeType, bool] = {}
_faces: dict[Callable[..., Any], Callable[..., Any]] = {}


# ---------------------------------------------------------------- whose code is it

def is_internal(code: CodeType) -> bool:
    """Whether a code object is Anima's own."""
    known = _internal_code.get(code)
    if known is None:
        known = _internal_code[code] = code.co_filename.startswith(tuple(_hidden))
    return known


def hide_files(prefix: str) -> None:
    """Frames of files whose paths begin so are hidden, as Anima's own are."""
    _hidden.append(prefix)
    _internal_code.clear()
    _passed_code.clear()


def show_files(prefix: str) -> None:
    """Undoes `hide_files`; ValueError for what is not hidden."""
    _hidden.remove(prefix)
    _internal_code.clear()
    _passed_code.clear()


def hidden_files() -> list[str]:
    """Beginnings of the paths of files that `hide_files` was told of."""
    return _hidden[2:]


def _is_passed(code: CodeType) -> bool:
    """Whether a code object is Anima's own, or of NumPy, which calls Anima for the user."""
    known = _passed_code[code] = is_internal(code) or code.co_filename.startswith(_SERVANTS)
    return known


def user_frame() -> FrameType | None:
    """The innermost frame on the stack that is not Anima's, nor NumPy's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        known = _passed_code.get(frame.f_code)
        if not (_is_passed(frame.f_code) if known is None else known):
            break
        frame = frame.f_back
    return frame


def public_frame() -> FrameType:
    """The frame of the function of Anima's that the user's code called last."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_internal(frame.f_back.f_code):
        frame = frame.f_back
    return frame


def user_stacklevel() -> int:
    """The `stacklevel` with which the caller's `warnings.warn` points to the user's line."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and is_internal(frame.f_code):
        frame = frame.f_back
        level += 1
    return level


def user_line() -> str:
    """The user's current line as "at model.py:14, in f:   if x > 0:", or "" if there is none."""
    frame = user_frame()
    if frame is None:
        return ""
    return line_of((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))


def line_of(source: Sequence[Any]) -> str:
    """A place (file, line, function, ...) as "at model.py:14, in f:   if x > 0:"."""
    file, line, function, *_ = source
    text = linecache.getline(file, line).strip()
    return f"at {os.path.basename(file)}:{line}, in {function}:" + (f"   {text}" if text else "")


# ---------------------------------------------------------------- short tracebacks

def filter_traceback(error: BaseException) -> None:
    """Drop Anima's own frames from an exception, and from those it came from, before a bare `raise`.

    Those that Anima raised and handled itself are left out: users would read of two mistakes where they made one.
    """
    if _traceback.value == "full" or traceback_filtering.value == "off":
        return
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = without_internal(one.__traceback__)
        while one.__context__ is not None and _is_handled(one.__context__):
            one.__context__ = one.__context__.__context__
        pending += (one.__cause__, one.__context__)


def _is_handled(error: BaseException) -> bool:
    """Whether an exception came by Anima's own frames alone."""
    return error.__traceback__ is not None and without_internal(error.__traceback__) is None


def without_internal(tb: TracebackType | None) -> TracebackType | None:
    """A traceback of the users' frames alone."""
    # All is kept from `filtered` on, which comes after `before` others that are.
    kept, before, filtered, inside = [], 0, tb, False
    while tb is not None:
        code = tb.tb_frame.f_code
        inside = is_internal(code) or (inside and code.co_filename.startswith(_SERVANTS))
        if inside:
            before, filtered = len(kept), tb.tb_next
        else:
            kept.append(tb)
        tb = tb.tb_next
    for one in reversed(kept[:before]):
        filtered = TracebackType(filtered, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return filtered


def api_boundary(fun: F) -> F:
    """Decorate a public function: exceptions that leave it show the user's frames only."""
    @functools.wraps(fun)
    def boundary(*args: Any, **kwargs: Any) -> Any:
        try:
            return fun(*args, **kwargs)
        except Exception as error:
            filter_traceback(error)
            raise       # a bare raise adds no frame of ours again
    return boundary     # type: ignore[return-value]


_BOUNDARY = api_boundary(is_internal).__code__


def public_face(module: str, names: Mapping[str, Any], submodules: Sequence[str] = ()) -> dict[str, Any]:
    """Anima's plain functions among the names of a public module, each behind an `api_boundary`; and its `access`.

    The module takes them in place of its own: users call functions whose errors show their own frames only,
    while inside of Anima the bare functions call each other. One function has one face, whatever its names.
    """
    faces: dict[str, Any] = access(module, names, submodules)
    for name, fun in names.items():
        plain = isinstance(fun, FunctionType) and fun.__code__ is not _BOUNDARY and is_internal(fun.__code__)
        if plain and not name.startswith("_"):
            if fun not in _faces:
                face = _faces[fun] = api_boundary(fun)
                face.__module__ = module  # where pickle finds it again
                face.__name__ = face.__qualname__ = fun.__name__ if names.get(fun.__name__) is fun else name
            faces[name] = _faces[fun]
    return faces


def behind_face(fun: Any) -> Any:
    """The bare function behind the one that users call; anything else as it is."""
    bare = getattr(fun, "__wrapped__", None)
    return bare if isinstance(bare, FunctionType) and _faces.get(bare) is fun else fun


# ---------------------------------------------------------------- texts about tracers

def no_execution_message(what: str) -> str:
    return f"{what} was to be computed, but the option no_execution is set."


def no_tracing_message(what: str) -> str:
    return f"{what} was to be traced, but the option no_tracing is set."


def describe(aval: Any) -> str:
    """An aval in full names: "float32[2,3]"."""
    if hasattr(aval, "inner_aval"):
        return f"Ref{{{describe(aval.inner_aval)}}}"
    dtype = aval.dtype
    name = "float0" if getattr(dtype, "names", None) else getattr(dtype, "name", dtype)
    sizes = aval.dimensions() if hasattr(aval, "dimensions") else map(str, aval.shape)
    return f"{name}[{','.join(sizes)}]"


def traced_array(tracer: Any) -> str:
    """What a tracer stands for: "traced array with shape float32[2,3]"."""
    return f"traced array with shape {describe(tracer.aval)}"


def origin_text(tracer: Any) -> str:
    """The sentence on where a tracer comes from, if the tracer has one to tell."""
    tell = getattr(tracer, "origin_text", None) or getattr(tracer, "_origin_text", None)
    return (tell() or "").strip() if tell is not None else ""


def from_numbers(tracer: Any) -> bool:
    """Whether no argument that a tracer comes from is known to be more than a number."""
    tell = getattr(tracer, "from_numbers", None)
    return tell is None or tell()


_ARGUMENT = re.compile(r"depends on the values? of the arguments? ([^\s.]+)")
_FUNCTION = re.compile(r"tracing the function (\w+)")


def _fix(alternative: str, origin: str) -> str:
    """The "Fix:" line: the alternative, or making the argument named in `origin` static; "" if there is neither."""
    argument, function = _ARGUMENT.search(origin), _FUNCTION.search(origin)
    ways = [alternative] if alternative else []
    if argument is not None and re.fullmatch(r"\w+", argument[1]):
        fun, name = function[1] if function else "f", argument[1]
        ways.append(f'mark {name} static: jit({fun}, static_argnames="{name}")')
    return f"Fix: {'; or '.join(ways)}." if ways else ""


def _about(tracer: Any, happened: str, fix: str, context: str = "") -> str:
    origin = origin_text(tracer)
    line = user_line()
    # An array cannot be made static: it has no hash.
    advice = _fix(fix, origin if not tracer.aval.shape and from_numbers(tracer) else "")
    parts = (happened, context.strip(), origin, "  " + line if line else "", advice)
    return "\n".join(part for part in parts if part)


def shape_message(given: Any, tracers: Sequence[Any]) -> str:
    """The text for a shape whose sizes are not all known integers; `tracers` are those that are traced."""
    text = f"Shapes must be 1D sequences of concrete values of integer type, got {given}."
    if not tracers:
        return text
    return _about(
        tracers[0], f"{text}\nIf using `jit`, try using `static_argnums` or applying `jit` to smaller subfunctions.",
        "take the size from the shape of an argument, which is known while tracing")


def formatted(tracer: Any, spec: str) -> str:
    """What stands for a traced value in a text; TypeError for a format of numbers, as in f"{x:.3f}"."""
    with contextlib.suppress(ValueError):
        return format(repr(tracer), spec)
    raise TypeError(_about(
        tracer, f"unsupported format string passed to {type(tracer).__name__}.__format__: {spec!r} is for numbers, and "
        f"a {traced_array(tracer)} has none yet.", f'anima.debug.print("{{x:{spec}}}", x=x), which prints when the '
        "program runs"))


class AnimaTypeError(TypeError):
    """A TypeError of Anima's own."""


class AnimaIndexError(IndexError):
    """An IndexError of Anima's own."""


KNOWN_VALUE = "give a value that is known while tracing: a number of Python's, or a size from the shape of an argument"


class ConcretizationTypeError(AnimaTypeError):
    """A traced value was used where Python needs the number itself.

    `fix` is what to do about it, "" where `context` says so already.
    """

    def __init__(self, tracer: Any, context: str = "",
                 fix: str = "keep the value an array (for example x.astype(float) for float(x))") -> None:
        super().__init__(_about(
            tracer,
            f"Abstract tracer value encountered where concrete value is expected: {traced_array(tracer)}",
            fix, context))


class TracerArrayConversionError(AnimaTypeError):
    """A traced value was passed to NumPy."""

    def __init__(self, tracer: Any) -> None:
        super().__init__(_about(
            tracer, f"The numpy.ndarray conversion method __array__() was called on {traced_array(tracer)}",
            "use anima.numpy in place of numpy, or anima.pure_callback around NumPy code"))


class TracerIntegerConversionError(AnimaTypeError):
    """A traced value was used as a Python integer: an index into a list, the argument of range."""

    def __init__(self, tracer: Any) -> None:
        super().__init__(_about(
            tracer, f"The __index__() method was called on {traced_array(tracer)}",
            "index an array rather than a list, and loop with anima.lax.fori_loop rather than range"))


class TracerBoolConversionError(ConcretizationTypeError):
    """A traced value decided an `if`, a `while`, an `assert`, `and`, `or` or `not`."""

    def __init__(self, tracer: Any) -> None:
        TypeError.__init__(self, _about(
            tracer, f"Attempted boolean conversion of {traced_array(tracer)}.",
            "anima.lax.cond, anima.lax.while_loop or anima.numpy.where (and for `and`, `or`, `not`: &, |, ~)"))


class NonConcreteBooleanIndexError(AnimaIndexError):
    """A traced boolean mask was used as an index: the size of the result would depend on its values."""

    def __init__(self, tracer: Any) -> None:
        super().__init__(_about(
            tracer, f"Array boolean indices must be concrete; got ShapedArray({describe(tracer.aval)})",
            "anima.numpy.where(mask, x, fill), or anima.numpy.nonzero(mask, size=n)"))


class UnexpectedTracerError(AnimaTypeError):
    """A tracer was used after, or outside of, the trace that made it."""


class KeyReuseError(AnimaTypeError):
    """A PRNG key was used more than once."""


class InconclusiveDimensionOperation(AnimaTypeError):
    """A comparison of symbolic dimensions has no answer for all their values."""


class UnexpectedDimVar(Exception):
    """A symbolic dimension that a function closes over has a variable that no shape of its arguments has."""


class ShardingTypeError(AnimaTypeError):
    """Types of operands that are cut along Explicit axes of a mesh, of which there is no one type of the result."""


class JaxprTypeError(AnimaTypeError):
    """A jaxpr does not type-check."""


class AnimaRuntimeError(RuntimeError):
    """Compiled code or a device failed while running."""


JAXTypeError = AnimaTypeError
JAXIndexError = AnimaIndexError
JaxRuntimeError = AnimaRuntimeError


# ---------------------------------------------------------------- texts

def immutable_message(kind: type | None = None) -> str:
    """For `x[i] = y`."""
    return ("Anima arrays are immutable and do not support in-place item assignment. Instead of x[idx] = y, "
            "use x = x.at[idx].set(y) or another .at[] method.")


def ambiguous_truth_message(size: int) -> str:
    """For `if array:` where the array does not have exactly one element."""
    if size:
        return "The truth value of an array with more than one element is ambiguous. Use a.any() or a.all()"
    return ("The truth value of an empty array is ambiguous. Use `array.size > 0` to check that an array is "
            "not empty.")


def not_an_array_message(x: Any) -> str:
    """For a value that arrays are not made of, where an operand is expected."""
    try:
        text = repr(x)
    except Exception:  # of a class whose objects are not whole yet, for instance
        text = object.__repr__(x)
    return (f"Value {text} of type {type(x)} is not a valid Anima type: expected an array, a NumPy array or a Python "
            "number.")


def ref_as_array_message(aval: Any, operation: str = "") -> str:
    """For a mutable reference where an array is meant."""
    to = f" to a primitive: {operation}" if operation else ""
    return (f"Attempting to pass a Ref {aval!r}{to} -- did you forget to unpack ([...]) the ref?\n  {user_line()}")


def leaked_tracer_message(tracer: Any, holder: str | None = None) -> str:
    """For a tracer met outside of its trace, or, if `holder` says what holds it, about to be."""
    tell = getattr(tracer, "made_text", None)
    parts = [
        ("Encountered an unexpected tracer. A function transformed by Anima had a side effect, allowing for "
         f"a reference to an intermediate value with type {describe(tracer.aval)} wrapped in a "
         f"{type(tracer).__name__} to escape the scope of the transformation."),
        ("Transformations require that functions explicitly return their outputs, and disallow saving "
         "intermediate values to global state."),
        origin_text(tracer) if tell is None else tell()]
    line = user_line()
    if holder is not None:
        parts.append(f"  It is still held by {holder or 'something'}.")
        parts.append("Fix: return the value from the transformed function instead of storing it.")
    else:
        if line:
            parts.append(f"  It was used {line}")
        parts.append("Fix: return the value from the transformed function. To catch the leak where it happens, "
                     "run with ANIMA_CHECK_TRACER_LEAKS=1 or inside `with anima.checking_leaks():`.")
    return "\n".join(part for part in parts if part)


def truncation_message(wanted: str, held: str, fun_name: str) -> str:
    """For a 64-bit dtype asked for while 64-bit types are off."""
    return (f"Explicitly requested dtype {wanted} requested in {fun_name} is not available, and will be "
            f"truncated to dtype {held}. To enable more dtypes, set the anima_enable_x64 (or jax_enable_x64) "
            "configuration option or the ANIMA_ENABLE_X64 (or JAX_ENABLE_X64) shell environment variable.")


def promotion_message(names: Sequence[str], *, strict: bool, small_floats: bool) -> str:
    """For dtypes without a common dtype."""
    listed = "(" + ", ".join(map(repr, names)) + ")"
    if strict:
        return (f"Input dtypes {listed} have no available implicit dtype promotion path when "
                "anima_numpy_dtype_promotion=strict. Try explicitly casting inputs to the desired output "
                "type, or set anima_numpy_dtype_promotion=standard.")
    why = "Try explicitly casting inputs to the desired output type, as in x.astype('float32')."
    if small_floats:
        why = ("To avoid unintended promotion, 8-bit floats do not support implicit promotion. If you'd like "
               "your inputs to be promoted to another type, you can do so explicitly using e.g. "
               "x.astype('float32')")
    return f"Input dtypes {listed} have no available implicit dtype promotion path. {why}"


def rank_promotion_message(operation: str, shapes: Iterable[Sequence[int]], raising: bool) -> str:
    """For operands of different ranks, under numpy_rank_promotion 'warn' or 'raise'."""
    listed = " ".join(str(tuple(shape)) for shape in shapes)
    if raising:
        return (f"Operands could not be broadcast together for {operation} on shapes {listed} and with the "
                "config option anima_numpy_rank_promotion='raise'. Fix: give the operands equal ranks with "
                "reshape or x[None], or set the option to 'allow'.")
    return (f"Following NumPy automatic rank promotion for {operation} on shapes {listed}. Set the "
            "anima_numpy_rank_promotion config option to 'allow' to disable this warning.")


def nonfinite_message(primitive_name: str, kind: str, value: Any, source: Sequence[Any] | None = None) -> str:
    """For a NaN or an infinity under debug_nans or debug_infs; `source` is where the operation was asked for, if
    that is not where the user is now."""
    line = user_line() if source is None else line_of(source)
    where = f"\n  {line}" if line else ""
    return (f"invalid value ({kind}) encountered in {primitive_name}: the result, "
            f"{value.dtype.name}[{','.join(map(str, value.shape))}], holds {kind}.{where}")


def check_finite(primitive_name: str, outputs: Sequence[Any], source: Sequence[Any] | None = None,
                 moved: Sequence[Any] = ()) -> None:
    """FloatingPointError if an output holds a NaN under debug_nans, or an infinity under debug_infs, which is not there
    in what was `moved` to make it."""
    for wanted, kind, test in ((debug_nans.value, "nan", np.isnan), (debug_infs.value, "inf", np.isinf)):
        for value in outputs if wanted else ():
            if _holds(value, test) and not any(_holds(x, test) for x in moved):
                raise FloatingPointError(nonfinite_message(primitive_name, kind, np.asarray(value), source))


def _holds(value: Any, test: Callable[[np.ndarray], np.ndarray]) -> bool:
    value = np.asarray(value)
    return (value.dtype.kind in "fc" or "float" in value.dtype.name) and bool(test(value).any())

globals().update(access(__name__, globals()))
