"""Names about types that arrays of JAX's may have beside numbers: what changes of a type, and extended dtypes.

    cur_qdd(box)          what may change of the type of a value, as it is now
"""

from __future__ import annotations

from typing import Any

from anima.core.trace import Tracer


def cur_qdd(x: Any) -> Any:
    """What may change of the type of a value while a program runs, as it is now: the attribute `cur_qdd` of values
    whose types are of the kind `hijax.MutableHiType`.

    Raises:
      AttributeError: for values of which nothing may change, arrays and references among them.
      NotImplementedError: for values that are traced: no type changes within a program.
    """
    if isinstance(x, Tracer):
        raise NotImplementedError(f"cur_qdd: types do not change within a program; got {x}.")
    return x.cur_qdd


class EArray:
    """Arrays of extended dtypes other than random keys, of which there are none: nothing is an instance."""

    def __init__(self, aval: Any, data: Any):
        raise NotImplementedError("EArray: there are no extended dtypes but those of random keys, whose arrays "
                                  "random.wrap_key_data makes.")


def primal_tangent_dtype(primal_dtype: Any, tangent_dtype: Any, name: str | None = None) -> Any:
    """A dtype whose values and tangents are of two dtypes: NotImplementedError.

    A function with a derivative of its own (`custom_jvp`) may have tangents of another precision inside.
    """
    raise NotImplementedError("primal_tangent_dtype: arrays and their tangents have one dtype. Use custom_jvp or "
                              "custom_vjp where derivatives are to be computed in another.")
