"""What libraries read of `jax._src.core`: the public types, and a few questions."""

from typing import Any

from anima import typeof as typeof
from anima.core.avals import AbstractValue as AbstractValue
from anima.core.dims import index_of
from anima.core.jaxpr import (
    ClosedJaxpr as ClosedJaxpr,
    EqnContext as JaxprEqnContext,
    Jaxpr as Jaxpr,
    Literal as Literal,
    Var as Var,
)
from anima.core.trace import (
    Tracer as Tracer,
    aval_of as get_aval,
    eval_context as eval_context,
    is_tracing as _is_tracing,
)
from anima.dropin.jax._src.typing import DimSize as DimSize, Shape as Shape
from anima.dropin.jax._src.util import safe_map as safe_map, safe_zip as safe_zip
from anima.dropin.jax.core import (
    Atom as Atom,
    ShapedArray as ShapedArray,
    Trace as Trace,
    is_concrete as is_concrete,
    is_constant_dim as is_constant_dim,
    pytype_aval_mappings as pytype_aval_mappings,
    trace_ctx as trace_ctx,
)
from anima.extend.core import (
    AbstractToken as AbstractToken,
    CallPrimitive as CallPrimitive,
    DropVar as DropVar,
    Effect as Effect,
    JaxprEqn as JaxprEqn,
    Primitive as Primitive,
    concrete_or_error as concrete_or_error,
    eval_jaxpr as eval_jaxpr,
    find_top_trace as find_top_trace,
    get_opaque_trace_state as get_opaque_trace_state,
    jaxpr_as_fun as jaxpr_as_fun,
    mapped_aval as mapped_aval,
    no_effects as no_effects,
    set_current_trace as set_current_trace,
    take_current_trace as take_current_trace,
    unmapped_aval as unmapped_aval,
    valid_jaxtype as valid_jaxtype,
)
from anima.extend.core.context import TraceTag as TraceTag
from anima.extend.core.primitives import call_p as call_p, closed_call_p as closed_call_p
from anima.ops.broadcast import as_shape

__all__ = ["AbstractToken", "AbstractValue", "Atom", "CallPrimitive", "ClosedJaxpr", "DimSize", "DropVar", "Effect",
           "Jaxpr", "JaxprEqn", "JaxprEqnContext", "Literal", "Primitive", "Shape", "ShapedArray", "Trace",
           "TraceTag", "Tracer", "Var", "abstract_token", "call_p", "canonicalize_shape", "closed_call_p",
           "concrete_or_error", "dimension_as_value", "eval_context", "eval_jaxpr", "find_top_trace", "full_lower",
           "get_aval", "get_opaque_trace_state", "get_referent", "is_concrete", "is_constant_dim", "jaxpr_as_fun",
           "mapped_aval", "no_effects", "physical_aval", "pytype_aval_mappings", "safe_map", "safe_zip",
           "set_current_trace", "take_current_trace", "trace_ctx", "trace_state_clean", "typeof",
           "unmapped_aval", "valid_jaxtype"]
abstract_token = AbstractToken()


def trace_state_clean() -> bool:
    """Whether nothing is being traced."""
    return not _is_tracing()


def physical_aval(aval: AbstractValue) -> AbstractValue:
    """The type of the bytes that an array is stored as: its own."""
    return aval


def full_lower(x: Any) -> Any:
    """An operand: here, no tracer stands for what a lower one could."""
    return x.full_lower() if isinstance(x, Tracer) else x


def get_referent(x: Any) -> Any:
    """An operand: no tracer stands for another value."""
    return x.get_referent() if isinstance(x, Tracer) else x


def canonicalize_shape(shape: Any, context: str = "") -> tuple[int, ...]:
    """Sizes, or one, as a tuple; TypeError for what are no whole numbers that are known while tracing."""
    return as_shape(shape, context)


def dimension_as_value(d: DimSize) -> int:
    """A size as a value of programs."""
    return index_of(d)
