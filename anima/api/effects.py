"""Calling Python from programs: `pure_callback` and `io_callback`; names for parts of programs.

    y = pure_callback(scipy.special.jv, ShapeDtypeStruct(z.shape, z.dtype), v, z)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima import errors, tree
from anima.config import enable_x64
from anima.control.effects import VMAP_METHODS, FlatCallback, io_callback_p, pure_callback_p
from anima.core import dtypes
from anima.core.avals import ShapedArray
from anima.core.source import NamedScope, within
from anima.core.trace import aval_of
from anima.util import fun_name, wraps


@errors.api_boundary
def pure_callback(callback: Callable[..., Any], result_shape_dtypes: Any, *args: Any, sharding: Any = None,
                  vmap_method: str | None = None, **kwargs: Any) -> Any:
    """The results of a Python function without side effects, called wherever the program runs.

    Args:
      callback: a function of arrays (pytrees of arrays) that returns arrays (NumPy's or Anima's). It may be called
        more often than it stands in the program, or not at all.
      result_shape_dtypes: what it returns: a pytree whose leaves have a `shape` and a `dtype`.
      args, kwargs: pytrees of arrays.
      vmap_method: what `vmap` does. "sequential" (or "sequential_unrolled") calls the function for each lane;
        "broadcast_all" once, with a leading dimension on every argument; "expand_dims" likewise, of size 1 on
        arguments that are not mapped; "legacy_vectorized" leaves those as they are.

    Returns:
      The results, in the structure of `result_shape_dtypes`.

    Raises:
      ValueError: where it is differentiated (wrap it with `custom_jvp`).
      AnimaRuntimeError: for results of other shapes or dtypes than promised.
      Whatever the function raises ends the program and is raised by the call of the program.

    >>> jit(lambda x: pure_callback(np.sort, x, x))(anima.numpy.array([3., 1.]))
    Array([1., 3.], dtype=float32)
    """
    if vmap_method is not None and vmap_method not in VMAP_METHODS:
        raise ValueError(f"vmap_method must be one of the allowed methods {[*VMAP_METHODS, None]}, "
                         f"but got: {vmap_method}")
    flat, leaves = flatten_call("pure_callback", callback, args, kwargs)
    avals, out_tree = _result_types(result_shape_dtypes)
    outs = pure_callback_p.bind(*leaves, callback=flat, result_avals=avals, vmap_method=vmap_method)
    return tree.unflatten(out_tree, outs)


@errors.api_boundary
def io_callback(callback: Callable[..., Any], result_shape_dtypes: Any, *args: Any, sharding: Any = None,
                ordered: bool = False, **kwargs: Any) -> Any:
    """The results of a Python function with side effects, called exactly where it stands in the program.

    Args:
      callback: a function of arrays (pytrees of arrays) that returns arrays.
      result_shape_dtypes: what it returns: a pytree whose leaves have a `shape` and a `dtype` (None: nothing).
      ordered: refuse `vmap`, which would call it for each lane in turn. (Calls keep their order in any case.)

    Returns:
      The results, in the structure of `result_shape_dtypes`.

    Raises:
      ValueError: where it is differentiated, or, if `ordered`, batched.
    """
    flat, leaves = flatten_call("io_callback", callback, args, kwargs)
    avals, out_tree = _result_types(result_shape_dtypes)
    outs = io_callback_p.bind(*leaves, callback=flat, ordered=bool(ordered), result_avals=avals)
    return tree.unflatten(out_tree, outs)


def flatten_call(what: str, callback: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any],
                 static: bool = False) -> tuple[FlatCallback, list[Any]]:
    """A function of flat arrays, and the arrays; with `static`, leaves that are no arrays are kept aside."""
    if not callable(callback):
        raise TypeError(f"{what}: the callback argument should be a callable, got {callback!r}")
    leaves, in_tree = tree.flatten((tuple(args), kwargs))
    known, arrays = [], []
    for number, leaf in enumerate(leaves):
        try:
            aval_of(leaf)
            arrays.append(leaf)
        except TypeError:
            if not static:
                raise TypeError(f"Error interpreting argument to {what} as an Anima value. The problematic value is of "
                                f"type {type(leaf)} and was passed to {what} at position {number}.") from None
            known.append((number, leaf))
    return FlatCallback(callback, in_tree, tuple(known)), arrays


def _result_types(result_shape_dtypes: Any) -> tuple[tuple[ShapedArray, ...], Any]:
    leaves, out_tree = tree.flatten(result_shape_dtypes)
    avals = []
    for leaf in leaves:
        if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            raise TypeError(f"result_shape_dtypes must be a pytree of objects with a shape and a dtype, such as "
                            f"ShapeDtypeStruct; got the leaf {leaf!r}")
        if isinstance(leaf.dtype, dtypes.ExtendedDType):
            raise TypeError("callbacks cannot return random keys: return random.key_data, and use random.wrap_key_data")
        dtype = np.dtype(leaf.dtype)
        if not enable_x64.value and dtypes.canonicalize_dtype(dtype) != dtype:
            raise ValueError("result_shape_dtypes cannot specify 64-bit types when `anima_enable_x64` is disabled")
        avals.append(ShapedArray(tuple(int(n) for n in leaf.shape), dtype))
    return tuple(avals), out_tree


def effects_barrier() -> None:
    """Waits until the effects of all calls so far have happened: they have, when a call returns."""


class named_scope(within):
    """A name for the operations inside a `with` block, or, as a decorator, inside a function.

    Programs know each operation's line and function in the user's code; the names around it stand in
    `eqn.source_info.name_stack`.

    >>> def f(x):
    ...     with anima.named_scope("layer"):
    ...         return anima.numpy.sin(x)
    >>> str(anima.make_jaxpr(anima.grad(f))(1.0).eqns[0].source_info.name_stack)
    'jvp(layer)'

    Raises:
      TypeError: for a name that is no string.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError("named_scope name argument must be a string.")
        super().__init__(NamedScope(name))


def named_call(fun: Callable[..., Any], *, name: str | None = None) -> Callable[..., Any]:
    """`fun` inside a `named_scope` of its own name, or of `name`."""
    @wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        with named_scope(fun_name(fun) if name is None else name):
            return fun(*args, **kwargs)

    return call
