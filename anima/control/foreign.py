"""Calls of C functions: of whole arrays (`ffi_call`), and of each element (`ffi_elementwise`), which fuse into loops.

    b = ffi_call[target=scale attributes=(('factor', 2.0),)] a        (void b0 b1 i64:12 f64:2.0)
    b = ffi_elementwise[target=ndtr] a

The declaration that a function is registered with says what it is given (`core/foreign.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima.control.effects import batch_stacked
from anima.core import dtypes, foreign
from anima.core.avals import ShapedArray, broadcast_shapes
from anima.core.foreign import ForeignFunction
from anima.core.handlers import Calls, Handler, type_number
from anima.core.primitive import Primitive
from anima.core.trace import aval_of
from anima.ops.family import align

Attributes = tuple[tuple[str, Any], ...]


def _refuse(target: ForeignFunction | Handler) -> ValueError:
    return ValueError(f"The FFI call to `{target.name}` cannot be differentiated. You can use `anima.custom_jvp` or "
                      "`anima.custom_vjp` to add support.")


class FfiCall(Primitive):
    """A C function of arrays: one with a declaration, or a handler, which finds them in the program's memory.

    `input_output_aliases` are pairs (operand, result): the function finds such an operand in the memory of the result.
    """

    multiple_results = True

    def infer(self, *avals: ShapedArray, result_avals: Sequence[ShapedArray], target: ForeignFunction | Handler,
              **params: Any) -> list[ShapedArray]:
        if isinstance(target, Handler):
            for aval in (*avals, *result_avals):
                type_number(aval, target.name)
        else:
            self.layout(avals, result_avals=result_avals, target=target, **params)
        return list(result_avals)

    def layout(self, avals: Sequence[ShapedArray], *, target: ForeignFunction, attributes: Attributes,
               result_avals: Sequence[ShapedArray], input_output_aliases: Sequence[tuple[int, int]],
               **params: Any) -> str:
        """The call of a function with a declaration, as text."""
        return foreign.layout_of(target, avals, result_avals, dict(input_output_aliases), dict(attributes))

    def eval(self, *args: np.ndarray, target: ForeignFunction | Handler, **params: Any) -> list[np.ndarray]:
        outs = [np.empty(a.shape, a.dtype) for a in params["result_avals"]]
        if isinstance(target, Handler):
            self.into(target=target, **params)(outs, lambda: 1, *(np.asarray(x, order="C") for x in args))
            return outs
        layout = self.layout([ShapedArray(x.shape, x.dtype) for x in args], target=target, **params)
        aliases = dict(params["input_output_aliases"])
        for operand, result in aliases.items():
            outs[result][...] = args[operand]
        own = [np.ascontiguousarray(x) for k, x in enumerate(args) if k not in aliases]
        foreign.run(target.address, layout, [*own, *outs])
        return outs

    def into(self, *, target: Handler, attributes: Attributes, result_avals: Sequence[ShapedArray],  # type: ignore[override]
             input_output_aliases: Sequence[tuple[int, int]], **params: Any) -> Callable[..., None]:
        return Calls(target, result_avals, dict(input_output_aliases), attributes)

    def effects_of(self, params: dict[str, Any]) -> frozenset[str]:
        return frozenset(("FFI",) if params["has_side_effect"] else ())

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, target: ForeignFunction | Handler,
            **params: Any) -> tuple[Any, Any]:
        raise _refuse(target)

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        return batch_stacked(self, size, args, dims, params)


class FfiElementwise(Primitive):
    """A C function of numbers, of each element of the operands; numbers are converted to and from the types of C."""

    cost = 50.0

    def infer(self, *avals: ShapedArray, target: ForeignFunction, attributes: Attributes, dtype: Any) -> ShapedArray:
        foreign.arguments_of(target, len(avals), dict(attributes))
        return ShapedArray(broadcast_shapes((), *(a.shape for a in avals), name=target.name), dtype)

    def eval(self, *args: np.ndarray, target: ForeignFunction, attributes: Attributes, dtype: Any) -> np.ndarray:
        given, values = foreign.arguments_of(target, len(args), dict(attributes)), []
        types = [p.type for p in target.signature.parameters]
        for type, word in zip(types, given, strict=True):
            value = args[word] if isinstance(word, int) else np.asarray(foreign.value_of(word)[1])
            values.append(value.astype(foreign.NUMPY[type]))
        return foreign.apply(target.address, target.signature.returns, types, values).astype(dtype)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, target: ForeignFunction,
            **params: Any) -> tuple[Any, Any]:
        raise _refuse(target)

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, int]:
        ranks = [len(aval_of(x).shape) - (d is not None) for x, d in zip(args, dims, strict=True)]
        return self.bind(*(align(x, d, max(ranks), 0) for x, d in zip(args, dims, strict=True)), **params), 0


ffi_call_p = FfiCall("ffi_call")
ffi_elementwise_p = FfiElementwise("ffi_elementwise")


def widens(given: Any, type: str) -> bool:
    """Whether numbers of a dtype are numbers of a type of C's, all of them."""
    wanted = foreign.NUMPY[type]
    return given == wanted or (not dtypes.issubdtype(given, np.complexfloating) and np.can_cast(given, wanted, "safe"))
