"""What a program is, and the public names of it.

    closed = make_jaxpr(f)(x);  core.eval_jaxpr(closed.jaxpr, closed.consts, x)
"""

from typing import Any

from anima.core.avals import (
    AbstractValue as AbstractValue,
    ShapedArray as ShapedArray,
    max_dim as max_dim,
    min_dim as min_dim,
)
from anima.core.jaxpr import Atom as Atom
from anima.core.stage import eval_jaxpr as eval_jaxpr
from anima.core.trace import (
    Trace as Trace,
    Tracer as Tracer,
    ensure_compile_time_eval as ensure_compile_time_eval,
    eval_context as eval_context,
)
from anima.names import access

ParamDict = dict[str, Any]

__all__ = ["AbstractValue", "Atom", "ParamDict", "ShapedArray", "Trace", "Tracer", "ensure_compile_time_eval",
           "eval_context", "eval_jaxpr", "max_dim", "min_dim"]

globals().update(access(__name__, globals()))
