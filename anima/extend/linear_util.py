"""Functions with what is done before and after them, step by step: `WrappedFun`.

    @transformation_with_aux2
    def count(f, store, *args):
        store.store(len(args))
        return f(*args)

    wrapped, number = count(wrap_init(f))
    wrapped.call_wrapped(x, y), number()
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

from anima.config import config
from anima.names import access
from anima.util import cleared, fun_name


class StoreException(Exception):
    """A store was read before anything was put there, or written twice."""


class Store:
    """A place for one value, which a transformation leaves beside its result."""

    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value: tuple[Any, ...] = ()

    def store(self, val: Any) -> None:
        if self._value:
            raise StoreException("Store occupied")
        self._value = (val,)

    def reset(self) -> None:
        self._value = ()

    @property
    def val(self) -> Any:
        if not self._value:
            raise StoreException("Store empty")
        return self._value[0]

    def __bool__(self) -> bool:
        return bool(self._value)


class EqualStore(Store):
    """A store that may be written again, with an equal value."""

    __slots__ = ()

    def store(self, val: Any) -> None:
        if self._value and self._value[0] != val:
            raise StoreException(f"Store occupied with {self._value[0]!r}, which is not {val!r}")
        self._value = (val,)


class WrappedFun:
    """A function with transformations around it, the last one outermost.

    Equal where function, transformations (with their arguments) and parameters are: what caches compare.
    """

    __slots__ = ("debug_info", "f", "f_transformed", "in_type", "params", "stores", "transforms")

    def __init__(self, f: Callable[..., Any], f_transformed: Callable[..., Any], transforms: Sequence[Any],
                 stores: Sequence[Store | None], params: Any, in_type: Any, debug_info: Any) -> None:
        self.f, self.f_transformed, self.transforms, self.stores = f, f_transformed, tuple(transforms), tuple(stores)
        self.params, self.in_type, self.debug_info = params, in_type, debug_info

    @property
    def __name__(self) -> str:
        return fun_name(self.f)

    def call_wrapped(self, *args: Any, **kwargs: Any) -> Any:
        """The function with all transformations, applied."""
        return self.f_transformed(*args, **kwargs)

    def wrap(self, gen: Callable[..., Any], gen_static_args: Sequence[Any], out_store: Store | None) -> WrappedFun:
        """With one more transformation: `gen(f, *gen_static_args, *args)`, or `gen(f, store, ...)`."""
        given = (*gen_static_args,) if out_store is None else (out_store, *gen_static_args)
        return WrappedFun(self.f, partial(gen, self.f_transformed, *given), ((gen, tuple(gen_static_args)),
                          *self.transforms), (out_store, *self.stores), self.params, None, self.debug_info)

    def populate_stores(self, stores: Sequence[Store | None]) -> None:
        """Leaves the values that another run of an equal function left."""
        for mine, other in zip(self.stores, stores, strict=True):
            if mine is not None and other is not None:
                mine.store(other.val)

    def replace_debug_info(self, debug_info: Any) -> WrappedFun:
        return WrappedFun(self.f, self.f_transformed, self.transforms, self.stores, self.params, self.in_type,
                          debug_info)

    def with_unknown_names(self) -> WrappedFun:
        return self.replace_debug_info(self.debug_info and self.debug_info.with_unknown_names())

    def _key(self) -> tuple[Any, ...]:
        return self.f, self.transforms, self.params, self.in_type

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WrappedFun) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        steps = "".join(f"{n} : {fun_name(gen)}   {args}\n" for n, (gen, args) in enumerate(self.transforms))
        return f"Wrapped function:\n{steps}\nCore: {fun_name(self.f)}\n"


def wrap_init(f: Callable[..., Any], params: dict[str, Any] | None = None, *, debug_info: Any = None) -> WrappedFun:
    """`f`, with `params` as keywords, as a WrappedFun without transformations."""
    params = params or {}
    return WrappedFun(f, partial(f, **params) if params else f, (), (), tuple(sorted(params.items())), None, debug_info)


def _named(step: Callable[..., Any], gen: Callable[..., Any]) -> Callable[..., Any]:
    """The step under the name of what it does; its parameters are its own."""
    del wraps(gen)(step).__wrapped__  # type: ignore[attr-defined]
    return step


def transformation2(gen: Callable[..., Any], fun: WrappedFun | None = None, *gen_static_args: Any) -> Any:
    """A step `gen(f, *static, *args, **kwargs)` around functions: `step(fun, *static)` is a WrappedFun."""
    def step(fun: WrappedFun, *gen_static_args: Any) -> WrappedFun:
        return fun.wrap(gen, gen_static_args, None)

    return _named(step, gen) if fun is None else step(fun, *gen_static_args)


def transformation_with_aux2(gen: Callable[..., Any], fun: WrappedFun | None = None, *gen_static_args: Any,
                             use_eq_store: bool = False, unk_names: bool = False) -> Any:
    """A step `gen(f, store, *static, *args, **kwargs)` that leaves a value in the store: `step(fun, *static)` is a
    WrappedFun, and a function that gives the value once that has been called."""
    def step(fun: WrappedFun, *gen_static_args: Any, use_eq_store: bool = use_eq_store,
             unk_names: bool = unk_names) -> tuple[WrappedFun, Callable[[], Any]]:
        store = EqualStore() if use_eq_store else Store()
        wrapped = fun.wrap(gen, gen_static_args, store)
        return wrapped.with_unknown_names() if unk_names else wrapped, lambda: store.val

    return _named(step, gen) if fun is None else step(fun, *gen_static_args)


def _stepping(gen: Callable[..., Any], f: Callable[..., Any], static: Sequence[Any], args: Sequence[Any],
              kwargs: dict[str, Any]) -> Any:
    """Runs a generator that yields (args, kwargs) for `f`, is sent the result, and yields what comes of it."""
    steps = gen(*static, *args, **kwargs)
    given, keywords = next(steps)
    found = steps.send(f(*given, **keywords))
    for _ in steps:
        raise RuntimeError(f"the transformation {fun_name(gen)} yields more than twice")
    return found


def transformation(gen: Callable[..., Any], fun: WrappedFun | None = None, *gen_static_args: Any) -> Any:
    """As `transformation2`, from a generator `gen(*static, *args, **kwargs)`, which yields the arguments (args, kwargs)
    of the function, and then what comes of its result."""
    def run(f: Callable[..., Any], static: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        return _stepping(gen, f, static, args, kwargs)

    def step(fun: WrappedFun, *gen_static_args: Any) -> WrappedFun:
        return fun.wrap(run, (gen_static_args,), None)

    return _named(step, gen) if fun is None else step(fun, *gen_static_args)


def transformation_with_aux(gen: Callable[..., Any], fun: WrappedFun | None = None, *gen_static_args: Any) -> Any:
    """As `transformation_with_aux2`, from a generator, which last yields (result, value beside it)."""
    def run(f: Callable[..., Any], store: Store, static: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        result, aux = _stepping(gen, f, static, args, kwargs)
        store.store(aux)
        return result

    def step(fun: WrappedFun, *gen_static_args: Any) -> tuple[WrappedFun, Callable[[], Any]]:
        store = Store()
        return fun.wrap(run, (gen_static_args,), store), lambda: store.val

    return _named(step, gen) if fun is None else step(fun, *gen_static_args)


def merge_linear_aux(aux1: Callable[[], Any], aux2: Callable[[], Any]) -> tuple[bool, Any]:
    """The value of the one of two stores that was written, and whether that is the first."""
    try:
        first = aux1()
    except StoreException:
        return False, aux2()
    try:
        aux2()
    except StoreException:
        return True, first
    raise StoreException("both stores occupied")


def cache(call: Callable[..., Any], *, explain: Callable[..., None] | None = None) -> Callable[..., Any]:
    """`call(fun, *args)`, remembered for equal functions and arguments, as long as the function lives.

    What transformations leave in stores is left again. `explain(fun, ...)` is called where nothing was remembered.
    """
    known: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()

    @wraps(call)
    def remembering(fun: WrappedFun, *args: Any) -> Any:
        mine = known.setdefault(fun.f, {})
        key = (fun.transforms, fun.params, fun.in_type, args, config.trace_key())
        if key in mine:
            out, stores = mine[key]
            fun.populate_stores(stores)
            return out
        if explain is not None:
            explain(fun, not mine, mine, key, 0.0)
        out = call(fun, *args)
        mine[key] = out, fun.stores
        return out

    remembering.cache_clear = cleared(known.clear)  # type: ignore[attr-defined]
    remembering.evict_function = lambda f: known.pop(f, None)  # type: ignore[attr-defined]
    return remembering

globals().update(access(__name__, globals()))
