"""Primitives of your own, and what programs are made of.

    double_p = Primitive("double")
    double_p.def_abstract_eval(lambda x: x)
    double_p.def_lowering(lambda x: 2 * x)
    double_p.def_jvp(lambda primals, tangents: (double_p.bind(*primals), double_p.bind(*map(instantiate, tangents))))

`primitives` has those that there are.
"""

from anima import names as _names
from anima.core.avals import ShapedArray as ShapedArray
from anima.core.check import check_jaxpr as check_jaxpr
from anima.core.jaxpr import (
    ClosedJaxpr as ClosedJaxpr,
    Jaxpr as Jaxpr,
    Literal as Literal,
    Var as Var,
)
from anima.core.primitive import Linear as Linear, Zero as Zero
from anima.core.stage import eval_jaxpr as eval_jaxpr
from anima.errors import (
    InconclusiveDimensionOperation as InconclusiveDimensionOperation,
    JaxprTypeError as JaxprTypeError,
)
from anima.extend.core.calls import CallPrimitive as CallPrimitive, call_impl as call_impl
from anima.extend.core.context import (
    OpaqueTraceState as OpaqueTraceState,
    TraceTag as TraceTag,
    find_top_trace as find_top_trace,
    get_opaque_trace_state as get_opaque_trace_state,
    nonempty_axis_env_DO_NOT_USE as nonempty_axis_env_DO_NOT_USE,
    set_current_trace as set_current_trace,
    take_current_trace as take_current_trace,
    unsafe_am_i_under_a_jit_DO_NOT_USE as unsafe_am_i_under_a_jit_DO_NOT_USE,
    unsafe_am_i_under_a_vmap_DO_NOT_USE as unsafe_am_i_under_a_vmap_DO_NOT_USE,
    unsafe_get_axis_names_DO_NOT_USE as unsafe_get_axis_names_DO_NOT_USE,
)
from anima.extend.core.operation import Primitive as Primitive, elementwise as elementwise
from anima.extend.core.programs import (
    DebugInfo as DebugInfo,
    DropVar as DropVar,
    JaxprEqn as JaxprEqn,
    gensym as gensym,
    jaxpr_as_fun as jaxpr_as_fun,
    jaxprs_in_params as jaxprs_in_params,
    new_jaxpr_eqn as new_jaxpr_eqn,
    subjaxprs as subjaxprs,
)
from anima.extend.core.types import (
    AbstractToken as AbstractToken,
    Effect as Effect,
    Effects as Effects,
    Token as Token,
    array_types as array_types,
    concrete_or_error as concrete_or_error,
    mapped_aval as mapped_aval,
    no_effects as no_effects,
    primal_dtype_to_tangent_dtype as primal_dtype_to_tangent_dtype,
    unmapped_aval as unmapped_aval,
    valid_jaxtype as valid_jaxtype,
)
from anima.ops.broadcast import instantiate as instantiate

globals().update(_names.access(__name__, globals(), ("primitives",)))
