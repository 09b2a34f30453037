"""Arguments that only describe arrays, as `ShapeDtypeStruct`s do: functions may ask for their shapes and dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima.api.stages import ShapeDtypeStruct, type_of
from anima.core import dtypes
from anima.core.array import ConcreteArray
from anima.core.jaxpr import ClosedJaxpr
from anima.core.stage import Traced, trace_to_jaxpr
from anima.ops.broadcast import full_like, zeros
from anima.transforms.dce import dce_jaxpr
from anima.util import lazy_module

inlining = lazy_module("anima.compiler.rewriting.inline")


def are_described(leaves: Sequence[Any]) -> bool:
    """Whether some of the leaves are descriptions."""
    return ShapeDtypeStruct in map(type, leaves)


def with_values(leaves: Sequence[Any], closed: ClosedJaxpr, name: str) -> list[Any]:
    """The leaves, which are the last inputs of a program, with zeros for descriptions; TypeError for one whose value it
    uses."""
    jaxpr = inlining.inline(closed).jaxpr
    used = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[1][len(jaxpr.invars) - len(leaves):]
    for x, is_used in zip(leaves, used, strict=True):
        if is_used and type(x) is ShapeDtypeStruct:
            raise TypeError(f"{name} computes with an argument that is a description of an array, {x}, and has no "
                            "value. Fix: pass an array, or use its shape and dtype alone.")
    return [_zeros(x) if type(x) is ShapeDtypeStruct else x for x in leaves]


def _zeros(x: ShapeDtypeStruct) -> Any:
    if x.sharding is not None:
        return full_like(x, 0)
    aval = type_of(x)
    if isinstance(aval.dtype, dtypes.ExtendedDType):
        return ConcreteArray(np.zeros(aval.shape + aval.dtype.element_shape, aval.dtype.base), aval)
    return zeros(aval)


def differentiable(fun: Callable[..., list[Any]], leaves: Sequence[Any], name: str) -> list[Any]:
    """The leaves that `fun` is to be differentiated at, with zeros for descriptions, as of `with_values`."""
    described = [x for x in leaves if type(x) is ShapeDtypeStruct]

    def of_described(*xs: Any) -> list[Any]:
        given = iter(xs)
        return fun(*(next(given) if type(x) is ShapeDtypeStruct else x for x in leaves))

    closed = ClosedJaxpr(*trace_to_jaxpr(of_described, list(map(type_of, described)), Traced(name, by="grad")))
    given = iter(with_values(described, closed, name))
    return [next(given) if type(x) is ShapeDtypeStruct else x for x in leaves]
