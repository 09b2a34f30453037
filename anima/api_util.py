"""Functions of pytrees as functions of flat lists, and what is said of their arguments.

    flat, out_tree = flatten_fun(linear_util.wrap_init(f), in_tree)
    outs = flat.call_wrapped(*leaves);  tree.unflatten(out_tree(), outs)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any

from anima import tree
from anima.core.avals import ShapedArray
from anima.core.trace import aval_of
from anima.extend.core.programs import DebugInfo
from anima.extend.linear_util import Store, WrappedFun, transformation2, transformation_with_aux2
from anima.names import access
from anima.util import fun_name, place_of


def safe_map(f: Callable[..., Any], *args: Iterable[Any]) -> list[Any]:
    """`list(map(f, *args))`; ValueError for arguments of different lengths."""
    lists = list(map(list, args))
    for number, items in enumerate(lists[1:], 2):
        if len(items) != len(lists[0]):
            less = "shorter" if len(items) < len(lists[0]) else "longer"
            raise ValueError(f"safe_map() argument {number} is {less} than argument 1")
    return list(map(f, *lists))


@transformation_with_aux2
def flatten_fun(f: Callable[..., Any], store: Store, in_tree: Any, *leaves: Any) -> list[Any]:
    """(a function of the leaves of (args, kwargs) to a list of leaves, what gives the structure of its result)."""
    args, kwargs = tree.unflatten(in_tree, leaves)
    outs, out_tree = tree.flatten(f(*args, **kwargs))
    store.store(out_tree)
    return outs


@transformation_with_aux2
def flatten_fun_nokwargs(f: Callable[..., Any], store: Store, in_tree: Any, *leaves: Any) -> list[Any]:
    """As `flatten_fun`, of the leaves of the positional arguments."""
    outs, out_tree = tree.flatten(f(*tree.unflatten(in_tree, leaves)))
    store.store(out_tree)
    return outs


class _Fixed:
    """An argument taken by value: compared with ==, or by identity where it has no hash."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Fixed) and type(self.value) is type(other.value) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value) if isinstance(self.value, Hashable) else id(self.value)


@transformation2
def _with_fixed(f: Callable[..., Any], dynamic: tuple[int, ...], fixed: tuple[Any, ...], *args: Any,
                **kwargs: Any) -> Any:
    given, kept = dict(zip(dynamic, args, strict=True)), iter(fixed)
    count = len(dynamic) + len(fixed)
    return f(*(given[k] if k in given else next(kept).value for k in range(count)), **kwargs)


def argnums_partial(f: WrappedFun, dyn_argnums: int | Sequence[int], args: Sequence[Any],
                    require_static_args_hashable: bool = True) -> tuple[WrappedFun, tuple[Any, ...]]:
    """The function of the arguments at `dyn_argnums` alone, in that order, the others fixed, and those arguments.

    Raises:
      ValueError: for a fixed argument without a hash, where `require_static_args_hashable`.
    """
    numbers = (dyn_argnums,) if isinstance(dyn_argnums, int) else tuple(dyn_argnums)
    dynamic = tuple(n % len(args) for n in numbers)
    fixed = [x for k, x in enumerate(args) if k not in dynamic]
    if require_static_args_hashable:
        for x in fixed:
            if not isinstance(x, Hashable):
                raise ValueError(f"Non-hashable static arguments are used: {x!r} of type {type(x)}.")
    return _with_fixed(f, dynamic, tuple(map(_Fixed, fixed))), tuple(args[k] for k in dynamic)


def shaped_abstractify(x: Any) -> ShapedArray:
    """The type of a value, or of anything with a shape and a dtype; TypeError for something else."""
    if hasattr(x, "shape") and hasattr(x, "dtype") and not hasattr(x, "__array__"):
        return ShapedArray(tuple(x.shape), x.dtype, getattr(x, "weak_type", False))
    try:
        return aval_of(x)
    except TypeError:
        raise TypeError(f"Argument '{x}' of type {type(x)} is not a valid Anima type") from None


def debug_info(traced_for: str, fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], *,
               static_argnums: Sequence[int] = (), static_argnames: Sequence[str] = (), result_paths_thunk: Any = None,
               sourceinfo: str | None = None, signature: inspect.Signature | None = None) -> DebugInfo:
    """What errors and programs say of a function: its name and place, and the names of its arguments' leaves."""
    if sourceinfo is None:
        place = place_of(inspect.unwrap(fun))
        sourceinfo = f"{fun_name(fun)} at {place}" if place else fun_name(fun)
    static = {n % len(args) for n in static_argnums} if args else set()
    names: list[str] = []
    try:
        bound = (signature or inspect.signature(fun)).bind(*args, **kwargs)
    except (ValueError, TypeError):
        return DebugInfo(traced_for, sourceinfo, None, result_paths_thunk)
    fixed = {id(args[n]) for n in static}
    for name, value in bound.arguments.items():
        if name not in static_argnames and id(value) not in fixed:
            names += [name + tree.keystr(path) for path, _ in tree.leaves_with_path(value)]
    return DebugInfo(traced_for, sourceinfo, tuple(names), result_paths_thunk)


def flatten_axes(name: str, treedef: tree.PyTreeDef, axis_tree: Any, *, kws: bool = False,
                 tupled_args: bool = False) -> list[Any]:
    """The entries of a prefix of a tree, one for each leaf of the tree; None is an entry.

    With `kws`, the tree is that of (args, kwargs), and the prefix one of args.

    Raises:
      ValueError: if `axis_tree` is no prefix.
    """
    if kws:
        axis_tree = (axis_tree, {})
        full = treedef.unflatten(range(treedef.num_leaves))
        axis_tree = (axis_tree[0], tree.map(lambda _: None, full[1]))
    return tree.flatten_axes(name, treedef, axis_tree)


def donation_vector(donate_argnums: Collection[int], donate_argnames: Collection[str], in_tree: tree.PyTreeDef,
                    kws: bool = True) -> tuple[bool, ...]:
    """For each leaf of (args, kwargs) (of args, without `kws`): whether it is donated."""
    whole = tree.unflatten(in_tree, range(in_tree.num_leaves))
    args, kwargs = whole if kws else (whole, {})
    marks = [k in donate_argnums for k, arg in enumerate(args) for _ in tree.leaves(arg)]
    marks += [name in donate_argnames for name, value in sorted(kwargs.items()) for _ in tree.leaves(value)]
    return tuple(marks)


def rebase_donate_argnums(donate_argnums: Iterable[int], static_argnums: Iterable[int]) -> tuple[int, ...]:
    """The numbers of donated arguments among those that are not static; ValueError for one that is both."""
    static = sorted(set(static_argnums))
    donated = sorted(set(donate_argnums))
    if set(static) & set(donated):
        raise ValueError(f"static_argnums {tuple(static)} and donate_argnums {tuple(donated)} must not intersect.")
    return tuple(n - sum(s < n for s in static) for n in donated)

globals().update(access(__name__, globals()))
