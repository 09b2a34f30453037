"""`jax.core`: the types of programs and of what is traced; also names on their way out, which libraries still read."""

from typing import Any

import numpy as np

from anima.core import avals, dtypes
from anima.core.avals import AbstractValue as AbstractValue, max_dim as max_dim, min_dim as min_dim
from anima.core.jaxpr import Literal, Var
from anima.core.state import current
from anima.core.trace import (
    Tracer as Tracer,
    aval_of,
    ensure_compile_time_eval as ensure_compile_time_eval,
    eval_context as eval_context,
)
from anima.dropin.tracing import Trace as Trace
from anima.extend.core import (
    CallPrimitive as CallPrimitive,
    DebugInfo as DebugInfo,
    DropVar as DropVar,
    Effect as Effect,
    Effects as Effects,
    InconclusiveDimensionOperation as InconclusiveDimensionOperation,
    JaxprTypeError as JaxprTypeError,
    array_types,
    check_jaxpr as check_jaxpr,
    concrete_or_error as concrete_or_error,
    eval_jaxpr as eval_jaxpr,
    find_top_trace as find_top_trace,
    gensym as gensym,
    get_opaque_trace_state as get_opaque_trace_state,
    jaxprs_in_params as jaxprs_in_params,
    new_jaxpr_eqn as new_jaxpr_eqn,
    no_effects as no_effects,
    nonempty_axis_env_DO_NOT_USE as nonempty_axis_env_DO_NOT_USE,
    primal_dtype_to_tangent_dtype as primal_dtype_to_tangent_dtype,
    unsafe_am_i_under_a_jit_DO_NOT_USE as unsafe_am_i_under_a_jit_DO_NOT_USE,
    unsafe_am_i_under_a_vmap_DO_NOT_USE as unsafe_am_i_under_a_vmap_DO_NOT_USE,
    unsafe_get_axis_names_DO_NOT_USE as unsafe_get_axis_names_DO_NOT_USE,
    valid_jaxtype as valid_jaxtype,
)

Atom = Var | Literal
ParamDict = dict[str, Any]
pytype_aval_mappings: dict[type, Any] = dict.fromkeys(  # other libraries add theirs; what has `__array__` needs none
    (*array_types, bool, int, float, complex), aval_of)


class _TracingContext:
    """What is traced at the moment."""

    @property
    def trace(self) -> Any:
        return current.trace


trace_ctx = _TracingContext()


class _TypesOfArrays(type):
    """What `isinstance` asks."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, avals.ShapedArray)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, avals.ShapedArray)


class ShapedArray(metaclass=_TypesOfArrays):
    """The types of arrays, made with how they are cut, too: Anima's own types say that by a class of theirs.

    >>> ShapedArray((2, 3), np.dtype("float32"), sharding=None)
    ShapedArray(float32[2,3])
    """

    def __new__(cls, shape: Any, dtype: Any, weak_type: bool = False, *, sharding: Any = None,
                vma: frozenset[Any] = frozenset(), manual_axis_type: Any = None,
                memory_space: Any = None) -> avals.ShapedArray:  # type: ignore[misc]
        sizes = tuple(int(n) if isinstance(n, np.integer) else n for n in shape)
        whole = avals.ShapedArray(sizes, dtypes.np_dtype(dtype), weak_type, vma)
        return avals.sharded(whole, sharding)


def is_concrete(x: Any) -> bool:
    """Whether the elements of an operand are known: those of tracers are if they are differentiated at most."""
    return not isinstance(x, Tracer) or x.concrete() is not None


def is_constant_dim(d: Any) -> bool:
    """Whether the size of a dimension is a number."""
    return isinstance(d, (int, np.integer))
