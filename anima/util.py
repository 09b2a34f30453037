"""Small tools that every layer uses: splitting lists, names of functions, things made once, caches, records, modules
loaded late.

    split_list([1, 2, 3, 4], [1, 2]) == [[1], [2, 3], [4]]
"""
from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import itertools
import math
import os
import signal
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar, dataclass_transform, overload

import numpy as np

A = TypeVar("A")
B = TypeVar("B")


def split_list(items: Sequence[A], sizes: Sequence[int]) -> list[list[A]]:
    """Cut `items` into consecutive lists of the given sizes and a last one with the rest."""
    items = list(items)
    parts: list[list[A]] = []
    start = 0
    for size in sizes:
        if start + size > len(items):
            raise ValueError(f"cannot split {len(items)} items into parts of sizes {tuple(sizes)}")
        parts.append(items[start:start + size])
        start += size
    parts.append(items[start:])
    return parts


@contextmanager
def calling(by: str, fun: Callable[..., Any], arguments: Sequence[str]) -> Iterator[None]:
    """Around what calls the user's function with these arguments: a TypeError for a function of others names them."""
    try:
        yield
    except TypeError as error:
        if _takes(fun, len(arguments)):
            raise
        given = ": " * bool(arguments) + ", ".join(arguments)
        raise TypeError(f"{error}. {by} calls {name_and_place(fun)} with {len(arguments)} "
                        f"argument{'s' * (len(arguments) != 1)}{given}.") from None


def _takes(fun: Callable[..., Any], count: int) -> bool:
    try:
        signature = inspect.signature(fun)
    except (ValueError, TypeError):
        return True
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def rename(fun: Callable[..., Any], name: str) -> None:
    """Gives a function its public name; Python's own errors about arguments name what it wraps by that, too."""
    fun.__name__ = name
    inside = fun
    while inside is not None:
        inside.__qualname__ = name
        inside = getattr(inside, "__wrapped__", None)


def fun_name(function: Any) -> str:
    """The name to show for a callable: its own, that of a partial's function, or its class's."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


def place_of(function: Any) -> str:
    """Where a function stands in its source, "train.py:12"; "" for one that is not written in Python."""
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


def name_and_place(function: Any) -> str:
    """A function and where it stands: "step at train.py:12"."""
    return f"{fun_name(function)} at {place}" if (place := place_of(function)) else fun_name(function)


# What attributes of functions have to be; callables of libraries keep there what they like.
_OF_FUNCTIONS: dict[str, Any] = {"__name__": str, "__qualname__": str, "__module__": str, "__annotations__": dict,
                                 "__type_params__": tuple, "__annotate__": (type(None), types.FunctionType)}


def wraps(function: Any) -> Callable[[Any], Any]:
    """As `functools.wraps`; of a callable whose names are no text, or annotations no dictionary, without them."""
    return functools.wraps(function, [each for each in functools.WRAPPER_ASSIGNMENTS
                                      if isinstance(getattr(function, each, None), _OF_FUNCTIONS.get(each, object))])


class ByIdentity:
    """Makes any object usable as a dictionary key, by its identity; keeps the object alive."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and self.value is other.value

    def __repr__(self) -> str:
        return f"ByIdentity({self.value!r})"


_clears: list[Callable[[], None]] = []


def cleared(clear: Callable[[], None]) -> Callable[[], None]:
    """Has `clear()` called by `clear_all`: every cache of programs says so, or is a `weak_cache`."""
    _clears.append(clear)
    return clear


def clear_all() -> None:
    """Forgets all that was remembered of programs."""
    for clear in _clears:
        clear()


def weak_cache(function: Callable[..., B]) -> Callable[..., B]:
    """Remembers results by the identity of the first argument, a record without `eq`, and by the others.

    They are kept in that record: what is remembered of it may refer to it, and goes with it all the same.
    """
    @functools.wraps(function)
    def wrapper(first: Any, *rest: Any) -> B:
        try:
            known = first.derived
        except AttributeError:
            known = {}
            object.__setattr__(first, "derived", known)
            _origins[id(first)] = first
        key = function, rest
        if key not in known:
            known[key] = function(first, *rest)
        return known[key]

    return wrapper


_origins: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # of which something is remembered


@cleared
def _clear_derived() -> None:
    for ref in _origins.valuerefs():
        origin = ref()
        if origin is not None:
            origin.derived.clear()


def exact_type(value: Any) -> Any:
    """The type of a hashable value, with what `==` does not tell either: types of a tuple's items, signs of zeros.

    >>> exact_type(1), exact_type((1, True)) == exact_type((1.0, 1)), exact_type(0.0) == exact_type(-0.0)
    (<class 'int'>, False, False)
    """
    kind = type(value)
    if isinstance(value, tuple):
        return kind, *map(exact_type, value)
    if isinstance(value, np.generic):
        return kind, value.tobytes()
    if isinstance(value, (float, complex)):
        return kind, math.copysign(1.0, value.real), math.copysign(1.0, value.imag)
    return kind


def exactly(params: dict[str, Any]) -> tuple[Any, ...]:
    """What parameters are looked up by: those that are equal are the same, signs of zeros and types too.

    >>> exactly({"fill": 0.0}) == exactly({"fill": -0.0})
    False
    """
    return (*params.items(), exact_type((*params.values(),))) if params else ()


def check_level() -> int:
    """What `ANIMA_CHECK` says now: 1 to check programs as they are compiled, 2 to check the memory of runs too."""
    text = os.environ.get("ANIMA_CHECK", "")
    return int(text) if text.isdigit() else int(bool(text))


def once(function: Callable[..., B]) -> Callable[..., B]:
    """Remembers results for ever, by the arguments: each is made once, whichever threads ask first.

    For what others keep addresses of, or what there must be one of; `functools.cache`, where two threads may both
    make a value, is for what is merely slow to compute. A call from within finds what it makes; what raises is
    tried again, and so is, in a child of fork, what a thread of the parent was making.
    """
    known: dict[tuple[Any, ...], B] = {}
    lock = fork_safe(threading.RLock())

    @functools.wraps(function)
    def wrapper(*args: Any) -> B:
        try:
            return known[args]
        except KeyError:
            pass
        with lock:
            return known[args] if args in known else known.setdefault(args, function(*args))

    wrapper.cache_clear, wrapper.known = known.clear, known  # type: ignore[attr-defined]
    return wrapper


def fork_safe(lock: A) -> A:
    """The lock, which is free in a child of fork: a thread that the child does not have may have held it."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lock._at_fork_reinit)  # type: ignore[attr-defined]
    return lock


class _Nesting(threading.local):
    level = 0


_nesting = _Nesting()
_limit_lock = fork_safe(threading.Lock())
_FEW, _MANY = 16, 512  # levels below which Python's own room is enough, and above which there is no more
_FRAMES = 64  # of one level: calls between a program and the next one inside of it, and some to spare


@contextmanager
def deeper() -> Iterator[None]:
    """Room for more nested calls in this block, where many such blocks are in each other.

    Programs may nest deeper than Python's limit allows, which is meant for recursion without end; that still
    meets a limit, as no more room is given to more than a few hundred levels.
    """
    _nesting.level += 1
    more = _FRAMES if _FEW <= _nesting.level <= _MANY else 0
    if more:
        _add_to_limit(more)
    try:
        yield
    finally:
        _nesting.level -= 1
        if more:
            _add_to_limit(-more)


def _add_to_limit(frames: int) -> None:
    with _limit_lock:  # the limit is of all threads
        sys.setrecursionlimit(sys.getrecursionlimit() + frames)


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """A block that Ctrl-C waits for the end of, for what cannot be done again if it was done by half."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[tuple[int, Any]] = []

    def note(number: int, frame: Any) -> None:
        came.append((number, frame))

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])


class _LazyModule:
    """Stands for a module that is imported when something is first read from it (again, if that failed: of a package
    with native code, an interrupt would leave what can neither be used nor imported)."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, attribute: str) -> Any:
        with interrupts_wait():
            module = importlib.import_module(self.__name__)
        self.__dict__ = module.__dict__  # what is read from now on is found as quickly as in the module
        return getattr(module, attribute)


def lazy_module(name: str) -> Any:
    """A module that is loaded when something is first read from it: for what most runs do not need at once."""
    return _LazyModule(name)


_logging = lazy_module("logging")
above_logger: str | None = None     # the logger that has Anima's below it, where it is not the root


def logger() -> Any:
    """The logger "anima"."""
    found = _logging.getLogger("anima")
    if above_logger is not None:
        found.parent = _logging.getLogger(above_logger)
    return found


# ---------------------------------------------------------------- records

@overload
def record(cls: type[A], /) -> type[A]: ...
@overload
def record(*, eq: bool) -> Callable[[type[A]], type[A]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def record(cls: Any = None, /, *, eq: bool = True) -> Any:
    """A frozen dataclass with slots, as `dataclass(frozen=True, slots=True)` makes it, but in a fourth of the time.

    There are enough of them to be a good part of what starting costs. All methods are one piece of code, and making
    an instance takes half the time, too. Fields may have `field(default=..., compare=False, repr=False)`; methods
    that the class defines are kept. Without `eq`, records are equal where they are the same, weak references to
    them are possible, and what `weak_cache` remembers of them is in them.
    """
    if cls is None:
        return functools.partial(_record, eq=eq)
    return _record(cls, eq)


def _record(cls: type, eq: bool) -> type:
    inherited = getattr(cls, "__dataclass_fields__", {})
    own = {name: _field(cls, name, hint) for name, hint in cls.__annotations__.items()}
    fields = {**inherited, **own}
    body = {name: value for name, value in cls.__dict__.items()
            if name not in own and name not in ("__dict__", "__weakref__")}
    slots = [name for name in own if name not in inherited]
    if not eq and not any("__weakref__" in base.__dict__ for base in cls.__mro__[1:]):
        slots += ["__weakref__", "derived"]
    body |= {"__slots__": tuple(slots), "__dataclass_fields__": fields,
             "__dataclass_params__": _params, "__match_args__": tuple(fields)}
    scope: dict[str, Any] = {"__name__": cls.__module__}
    methods = _methods(fields, scope)
    methods = {name: methods[name] for name in (("__init__", "__eq__", "__hash__") if eq else ("__init__",))}
    for name, method in methods.items():
        method.__qualname__ = f"{cls.__qualname__}.{name}"
    shared = {**methods, "__repr__": _repr, "__setattr__": _refuse, "__delattr__": _refuse,
              "__getstate__": _get_state, "__setstate__": _set_state}
    made: Any = type(cls)(cls.__name__, cls.__bases__, {**shared, **body})
    made.__qualname__ = cls.__qualname__
    scope.update({f"set_{k}": getattr(made, name).__set__ for k, name in enumerate(fields)})
    return made


_params = types.SimpleNamespace(frozen=True)  # what a dataclass that inherits from a record asks for


def _field(cls: type, name: str, hint: Any) -> Any:
    given = cls.__dict__.get(name, dataclasses.MISSING)
    known: Any = given if isinstance(given, dataclasses.Field) else dataclasses.field(default=given)
    if known.default_factory is not dataclasses.MISSING:
        raise TypeError(f"{cls.__name__}.{name}: a record has no default factories")
    known.name, known.type = name, hint
    known._field_type = dataclasses._FIELD  # type: ignore[attr-defined]
    return known


def _methods(fields: dict[str, Any], scope: dict[str, Any]) -> dict[str, types.FunctionType]:
    """The methods of a record of these fields: those of any with as many, under other names."""
    names = {f"field_{k}": name for k, name in enumerate(fields)}
    given = [f.default for f in fields.values()]
    defaults = tuple(itertools.dropwhile(lambda default: default is dataclasses.MISSING, given))
    if dataclasses.MISSING in defaults:
        raise TypeError(f"a field without a default follows one with a default: {', '.join(fields)}")
    made = {}
    for name, code in _codes(len(fields), tuple(k for k, f in enumerate(fields.values()) if f.compare)).items():
        code = code.replace(co_varnames=tuple([names.get(v, v) for v in code.co_varnames]),
                            co_names=tuple([names.get(v, v) for v in code.co_names]))
        made[name] = types.FunctionType(code, scope, name, defaults if name == "__init__" else ())
    return made


@functools.cache
def _codes(count: int, compared: tuple[int, ...]) -> dict[str, types.CodeType]:
    """The code of the methods of records with so many fields, of which some count in comparisons: compiling it takes
    twenty times longer than giving fields their names."""
    stores = "\n".join(f"    set_{k}(self, field_{k})" for k in range(count))
    values = "".join(f"self.field_{k}, " for k in compared)
    text = (f"def __init__({', '.join(['self', *(f'field_{k}' for k in range(count))])}):\n{stores or '    pass'}\n"
            "def __eq__(self, other):\n    if other.__class__ is not self.__class__:\n        return NotImplemented\n"
            f"    return ({values}) == ({values.replace('self.', 'other.')})\n"
            f"def __hash__(self):\n    return hash(({values}))\n")
    scope: dict[str, Any] = {}
    exec(text, scope)
    return {name: scope[name].__code__ for name in ("__init__", "__eq__", "__hash__")}


def replace(of: A, /, **changes: Any) -> A:
    """A record or dataclass with some fields changed, as `dataclasses.replace` gives it, in a third of the time."""
    for name in of.__match_args__:  # type: ignore[attr-defined]
        if name not in changes:
            changes[name] = getattr(of, name)
    return of.__class__(**changes)


def _repr(self: Any) -> str:
    shown = (f"{name}={getattr(self, name)!r}" for name, f in self.__dataclass_fields__.items() if f.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse(self: Any, name: str, *value: Any) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot change field {name!r}")


def _get_state(self: Any) -> list[Any]:
    return [getattr(self, name) for name in self.__dataclass_fields__]


def _set_state(self: Any, state: list[Any]) -> None:
    for name, value in zip(self.__dataclass_fields__, state, strict=True):
        object.__setattr__(self, name, value)
