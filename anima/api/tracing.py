"""Looking at programs without running them: `make_jaxpr`, `eval_shape`; small things on arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from anima import errors, tree
from anima.api.jit import Signature
from anima.api.stages import struct_of, type_of
from anima.core.array import ConcreteArray
from anima.core.avals import ShapedArray
from anima.core.device import CPU, Device
from anima.core.jaxpr import ClosedJaxpr
from anima.core.stage import Traced, trace_to_jaxpr
from anima.core.trace import aval_of
from anima.ops.elementwise import convert
from anima.util import fun_name


def make_jaxpr(fun: Callable[..., Any], static_argnums: int | Sequence[int] = (), axis_env: Any = None,
               return_shape: bool = False) -> Callable[..., Any]:
    """A function that returns the program that `fun` is, for arguments of these types.

    Args:
      static_argnums: arguments taken by value.
      return_shape: return (jaxpr, shapes and dtypes of the results) instead.

    >>> make_jaxpr(lambda x: x * 2.0)(3.0)
    { lambda ; a:f32[]. let b:f32[] = mul a 2.0 in (b,) }
    """
    if not callable(fun):
        raise TypeError(f"Expected a callable value, got {fun!r}")
    signature = Signature(fun, static_argnums, None)

    @wraps(fun)
    @errors.api_boundary
    def jaxpr_maker(*args: Any, **kwargs: Any) -> Any:
        dynamic, named, static = signature.split(args, kwargs)
        leaves, in_tree = tree.flatten((dynamic, named))
        found: list[Any] = []

        def flat(*xs: Any) -> list[Any]:
            positional, keywords = tree.unflatten(in_tree, xs)
            positional, keywords = signature.join(positional, keywords, static)
            outs, out_tree = tree.flatten(fun(*positional, **keywords))
            found.append(out_tree)
            return outs

        traced = Traced(fun_name(fun), _place(fun), "make_jaxpr", signature.leaf_names(dynamic, named, static))
        jaxpr, consts = trace_to_jaxpr(flat, list(map(type_of, leaves)), traced)
        closed = ClosedJaxpr(jaxpr, consts)
        if return_shape:
            return closed, tree.unflatten(found[0], map(struct_of, closed.out_avals))
        return closed

    return jaxpr_maker


def _place(fun: Callable[..., Any]) -> str:
    code = getattr(fun, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Shapes and dtypes of the results of `fun`, as a pytree of `ShapeDtypeStruct`s; nothing is computed."""
    return make_jaxpr(fun, return_shape=True)(*args, **kwargs)[1]


def typeof(x: Any) -> ShapedArray:
    """The type of a value: shape, dtype and weak type."""
    return aval_of(x)


def block_until_ready(x: Any) -> Any:
    """`x`, once every array in it is computed."""
    return tree.map(lambda v: v.block_until_ready() if hasattr(v, "block_until_ready") else v, x)


def device_put(x: Any, device: Any = None, **_: Any) -> Any:
    """`x` with every leaf as an array on a device."""
    def put(leaf: Any) -> Any:
        try:
            aval = aval_of(leaf)
        except TypeError:
            raise TypeError(f"Argument '{leaf}' of type {type(leaf)} is not a valid Anima type") from None
        return leaf if isinstance(leaf, ConcreteArray) else convert(leaf, aval.dtype, aval.weak_type)

    return tree.map(put, x)


def device_get(x: Any) -> Any:
    """`x` with every array as a NumPy array."""
    return tree.map(lambda v: v.__array__() if hasattr(v, "__array__") else v, x)


def devices(backend: str | None = None) -> list[Device]:
    """The devices of a platform (default: all)."""
    if backend not in (None, "cpu"):
        raise RuntimeError(f"Unknown backend {backend}. Available backends are ['cpu']")
    return [CPU]


def device_count(backend: str | None = None) -> int:
    """How many devices there are."""
    return len(devices(backend))


def default_backend() -> str:
    """The platform that arrays are made on: "cpu"."""
    return "cpu"
