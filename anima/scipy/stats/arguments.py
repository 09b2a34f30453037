"""What all distributions do with their arguments: one inexact dtype, float32 in place of smaller ones, NaN for NaN."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from anima.api.eager import compiled
from anima.core.array import Array
from anima.core.trace import aval_of
from anima.numpy.promote import convert_operand, promote_dtypes_inexact
from anima.numpy.selection import where
from anima.ops import elementwise as ew
from anima.ops.family import WIDER

F = TypeVar("F", bound=Callable[..., Any])


def promoted(fun: F) -> F:
    """`fun` of arrays of their common inexact dtype, which the result has, too; weakly typed if that is."""
    return _promoted(fun, lambda common, args: common)


def strongly(fun: F) -> F:
    """As `promoted`, never weakly typed."""
    return _promoted(fun, lambda common, args: False)


def closely(fun: F) -> F:
    """As `promoted`, weakly typed if the first argument is, too."""
    return _promoted(fun, lambda common, args: common and aval_of(next(iter(args))).weak_type)


def _promoted(fun: F, weak: Callable[[bool, Iterable[Any]], bool]) -> F:
    signature, name = inspect.signature(fun), f"{fun.__module__.rpartition('.')[2]}.{fun.__name__}"

    @functools.wraps(fun)
    def called(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        xs = promote_dtypes_inexact(name, *bound.arguments.values())
        dtype = xs[0].dtype
        wide = WIDER.get(dtype)
        out = fun(*(xs if wide is None else [ew.convert(x, wide) for x in xs]))
        return convert_operand(out, dtype, weak(xs[0].aval.weak_type, bound.arguments.values()))

    return compiled(called)  # type: ignore[return-value]


def valid(x: Array, out: Array, *conditions: Any) -> Array:
    """`out`, NaN where `x` is NaN or a condition on the parameters does not hold."""
    good = x == x
    for condition in conditions:
        good = good & condition
    return where(good, out, np.nan)


def on(inside: Any, x: Array, fun: Callable[[Array], Array], otherwise: Any, safe: float = 1.0) -> Array:
    """`fun(x)` where `inside`, `otherwise` elsewhere; `fun` never sees what is outside, so that derivatives are
    right."""
    return where(inside, fun(where(inside, x, safe)), otherwise)


def whole(k: Array) -> Array:
    """Whether numbers are whole."""
    return ew.round(k) == k
