"""How the calls of a jitted function split into static and traced arguments.

    Signature(f, static_argnums=1, static_argnames=None).split((x, 3), {})   ->   (x,), {}, (2, ((1, int, 3),))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from anima import errors, tree
from anima.core.array import Array
from anima.core.trace import Tracer
from anima.names import did_you_mean
from anima.util import exact_type, fun_name


class Signature:
    """How calls of a function split into static and traced arguments."""

    def __init__(self, fun: Callable[..., Any], static_argnums: int | Sequence[int] | None,
                 static_argnames: str | Iterable[str] | None):
        try:
            self.parameters = list(inspect.signature(fun).parameters.values())
        except (ValueError, TypeError):
            self.parameters = []
        nums = as_tuple(static_argnums)
        names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames or ())
        positional = [p.name for p in self.parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self.check("static", fun, nums, names)
        if static_argnames is None:
            names = tuple(positional[n] for n in nums if -len(positional) <= n < len(positional))
        if static_argnums is None:
            nums = tuple(positional.index(n) for n in names if n in positional)
        self.static_argnums, self.static_argnames = nums, frozenset(names)
        self.is_static = bool(nums or names)
        self.places: dict[int, tuple[list[int], list[int]]] = {}  # by number of arguments: the static, the traced

    def check(self, kind: str, fun: Callable[..., Any], nums: Sequence[int], names: Iterable[str]) -> None:
        """ValueError unless the `kind`_argnums and `kind`_argnames are arguments of the function."""
        if not self.parameters:
            return
        positional = [p for p in self.parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        variadic = any(p.kind == p.VAR_POSITIONAL for p in self.parameters)
        for n in nums:
            if not variadic and not -len(positional) <= n < len(positional):
                raise ValueError(f"jitted function {fun_name(fun)} has {kind}_argnums={tuple(nums)} but only "
                                 f"{len(positional)} positional arguments.")
        known = {p.name for p in self.parameters}
        if not any(p.kind == p.VAR_KEYWORD for p in self.parameters):
            for name in names:
                if name not in known:
                    raise ValueError(f"jitted function {fun_name(fun)} has invalid argnames {{{name!r}}} in "
                                     f"{kind}_argnames. Function does not take these args."
                                     f"{did_you_mean(name, known)}")

    def split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
        """(traced arguments, traced keywords, the static ones with their types as a hashable key)."""
        if not self.is_static:
            return args, kwargs, None
        count = len(args)
        places = self.places.get(count)
        if places is None:
            where = {n % count if n < 0 else n for n in self.static_argnums} if args else set()
            places = self.places[count] = ([i for i in range(count) if i in where],
                                           [i for i in range(count) if i not in where])
        fixed, free = places
        static: Any = count, tuple([(i, exact_type(args[i]), args[i]) for i in fixed])
        if kwargs and self.static_argnames:
            static += (*[(k, exact_type(kwargs[k]), kwargs[k]) for k in sorted(kwargs) if k in self.static_argnames],)
            kwargs = {k: v for k, v in kwargs.items() if k not in self.static_argnames}
        try:
            hash(static)
        except TypeError:
            _explain_unhashable(*static[1], *static[2:])
            raise
        return tuple([args[i] for i in free]), kwargs, static

    def join(self, args: Sequence[Any], kwargs: dict[str, Any], static: Any) -> tuple[Sequence[Any], dict[str, Any]]:
        """The inverse of `split`."""
        if static is None:
            return args, kwargs
        count, positional, *named = static
        fixed, rest = {i: value for i, _, value in positional}, iter(args)
        return ([fixed[i] if i in fixed else next(rest) for i in range(count)],
                {**kwargs, **{k: value for k, _, value in named}})

    def leaf_names(self, args: Sequence[Any], kwargs: dict[str, Any], static: Any) -> tuple[str, ...]:
        """The names, for errors, of the flat traced arguments: `x`, `params['w']`."""
        fixed = {i for i, *_ in static[1]} if static else set()
        total = len(args) + len(fixed)
        names = [p.name for p in self.parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        star = next((p.name for p in self.parameters if p.kind == p.VAR_POSITIONAL), "args")
        names += [f"{star}[{i}]" for i in range(max(0, total - len(names)))]
        given = [n for i, n in enumerate(names[:total]) if i not in fixed]
        if not kwargs and all(isinstance(x, Array) for x in args):
            return tuple(given)
        out = []
        for path, _ in tree.leaves_with_path((tuple(args), kwargs)):
            if path[0].idx == 0:
                out.append(given[path[1].idx] + tree.keystr(path[2:]))
            else:
                out.append(f"{path[1].key}" + tree.keystr(path[2:]))
        return tuple(out)


def _explain_unhashable(*static: tuple[int | str, Hashable, Any]) -> None:
    """Raises for the first of the static arguments (place, type, value) that cannot be part of a key."""
    for where, _, value in static:
        if isinstance(value, Tracer):
            raise errors.ConcretizationTypeError(
                value, f"Static argument {where!r} of a jitted function cannot be a traced value.",
                "call it with a value that is known, or make that argument an ordinary one")
        try:
            hash(value)
        except TypeError as e:
            place = "index" if isinstance(where, int) else "name"
            raise ValueError(f"Non-hashable static arguments are used in a jit function: static argument ({place} "
                             f"{where}) of type {type(value)} is not hashable: {e}. Make it hashable (a tuple for a "
                             "list, a frozen dataclass) or pass it as an ordinary argument.") from None


def as_tuple(nums: int | Sequence[int] | None) -> tuple[int, ...]:
    """Numbers of arguments, of which one may be given by itself; TypeError for what is no number."""
    if nums is None:
        return ()
    if isinstance(nums, (int, np.integer)):
        return (int(nums),)
    if not all(isinstance(n, (int, np.integer)) for n in nums):
        raise TypeError(f"static_argnums and donate_argnums must be ints, got {nums!r}")
    return tuple(int(n) for n in nums)
