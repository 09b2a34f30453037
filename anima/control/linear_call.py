"""`linear_call`: a function that is linear in some arguments, with a transpose of its own.

    linear_call(fun, transpose, residuals, x)     transposed: linear_call(transpose, fun, residuals, ct)

Both functions are traced at once; what they close over joins the residuals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from anima import errors, tree
from anima.control.common import share_consts, trace_pure
from anima.core.avals import ShapedArray
from anima.core.jaxpr import ClosedJaxpr
from anima.core.primitive import Linear, Primitive, Zero
from anima.core.stage import eval_jaxpr, eval_numpy
from anima.core.trace import aval_of
from anima.ops.broadcast import as_array, instantiate
from anima.transforms.forward import jvp_flat
from anima.transforms.transpose import add_cotangents
from anima.transforms.vmap import batch_jaxpr, move_to


class LinearCall(Primitive):
    """`callee(*residuals, *linear)`, whose transpose is `transpose(*residuals, *cts)`."""

    multiple_results = True

    def infer(self, *avals: ShapedArray, callee: ClosedJaxpr, **params: Any) -> list[ShapedArray]:
        return callee.out_avals

    def eval(self, *args: np.ndarray, callee: ClosedJaxpr, **params: Any) -> list[np.ndarray]:
        return eval_numpy(callee, args)

    def eval_extended(self, avals: Sequence[ShapedArray], args: Sequence[Any], params: dict[str, Any]) -> Any:
        return self.eval(*args, **params)

    def body(self, params: dict[str, Any], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
        """The program that an equation stands for."""
        return params["callee"]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, callee: ClosedJaxpr, transpose: ClosedJaxpr,
            num_res: int) -> tuple[list[Any], list[Any]]:
        """Linear in the linear arguments; differentiated as any program with respect to the residuals."""
        call = partial(self.bind, *primals[:num_res], callee=callee, transpose=transpose, num_res=num_res)
        outs = call(*primals[num_res:])
        zeros = [Zero(aval_of(x)) for x in primals[num_res:]]
        moved = jvp_flat(partial(eval_jaxpr, callee.jaxpr, callee.consts), primals, [*tangents[:num_res], *zeros])[1]
        if all(isinstance(t, Zero) for t in tangents[num_res:]):
            return outs, moved
        return outs, list(map(add_cotangents, moved, call(*map(instantiate, tangents[num_res:]))))

    def transpose(self, cts: Sequence[Any], *args: Any, callee: ClosedJaxpr, transpose: ClosedJaxpr,
                  num_res: int) -> list[Any]:
        found = self.bind(*args[:num_res], *map(instantiate, cts), callee=transpose, transpose=callee, num_res=num_res)
        return [None] * num_res + [ct if isinstance(a, Linear) else None
                                   for ct, a in zip(found, args[num_res:], strict=True)]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, callee: ClosedJaxpr,
              transpose: ClosedJaxpr, num_res: int) -> tuple[list[Any], list[int | None]]:
        """All linear arguments and all results are stacked, so that the two programs stay each other's transpose."""
        residual_dims = tuple(dims[:num_res])
        linear = [move_to(x, d, 0, size) for x, d in zip(args[num_res:], dims[num_res:], strict=True)]
        ins, outs = (0,) * len(linear), (0,) * len(callee.out_avals)
        stacked = self.bind(*args[:num_res], *linear, callee=batch_jaxpr(callee, size, residual_dims + ins, outs)[0],
                            transpose=batch_jaxpr(transpose, size, residual_dims + outs, ins)[0], num_res=num_res)
        return stacked, list(outs)


linear_call_p = LinearCall("linear_call")


@errors.api_boundary
def linear_call(fun: Callable[..., Any], fun_transpose: Callable[..., Any], residual_args: Any,
                linear_args: Any) -> Any:
    """`fun(residual_args, linear_args)`, a function linear in `linear_args` with a transpose of its own.

    Args:
      fun: a function of two pytrees, linear in the second.
      fun_transpose: `fun_transpose(residual_args, ct) -> linear_args`, its transpose: of a value like the result of
        `fun`, it gives one like `linear_args`. The transpose of it is `fun` again.

    Raises:
      TypeError, ValueError: where `fun_transpose` gives another structure, or other types.

    >>> f = lambda x: linear_call(lambda r, x: x / r, lambda r, ct: ct / r, 4.0, x)
    >>> grad(f)(1.0)
    Array(0.25, dtype=float32, weak_type=True)
    """
    residuals, res_tree = tree.flatten(residual_args)
    linear, lin_tree = tree.flatten(linear_args)
    residuals, linear = list(map(as_array, residuals)), list(map(as_array, linear))
    res_avals, avals = list(map(aval_of, residuals)), list(map(aval_of, linear))
    callee, consts, out_tree = trace_pure(fun, tree.treedef_tuple((res_tree, lin_tree)), [*res_avals, *avals],
                                              "linear_call")
    back, back_consts, back_tree = trace_pure(fun_transpose, tree.treedef_tuple((res_tree, out_tree)),
                                                  [*res_avals, *callee.out_avals], "linear_call")
    if back_tree != lin_tree:
        raise TypeError("transpose output pytree structure must match that of linear inputs, got output structure "
                        f"{back_tree} and input structure {lin_tree}.")
    for expected, got in zip(avals, back.out_avals, strict=True):
        if (expected.shape, expected.dtype) != (got.shape, got.dtype):
            raise ValueError(f"Expected cotangent type {expected.str_short()} but got {got.str_short()}")
    (callee, back), shared = share_consts([(callee, consts), (back, back_consts)])
    outs = linear_call_p.bind(*shared, *residuals, *linear, callee=callee, transpose=back,
                              num_res=len(shared) + len(residuals))
    return tree.unflatten(out_tree, outs)
