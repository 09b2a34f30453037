"""Functions with derivatives of their own, and what helps to write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from anima import names as _names, tree
from anima.control.linear_call import linear_call as linear_call
from anima.core import dtypes
from anima.core.jaxpr import ClosedJaxpr
from anima.core.kept import kept
from anima.core.stage import eval_jaxpr, trace_pytrees
from anima.core.trace import Tracer, aval_of
from anima.ops.broadcast import instantiate
from anima.transforms.custom import custom_jvp as custom_jvp, custom_vjp as custom_vjp
from anima.transforms.custom_calls import (
    custom_jvp_call_p as custom_jvp_call_p,
    custom_vjp_call_p as custom_vjp_call_p,
)
from anima.transforms.symbolic_zeros import (
    CustomVJPPrimal as CustomVJPPrimal,
    SymbolicZero as SymbolicZero,
    custom_vjp_primal_tree_values as custom_vjp_primal_tree_values,
)
from anima.util import wraps


def closure_convert(fun: Callable[..., Any], *example_args: Any) -> tuple[Callable[..., Any], list[Any]]:
    """`fun` as a function of the traced values it closes over, and those values.

    Returns:
      (converted, consts) with `converted(*args, *consts)` equal to `fun(*args)`: so a `custom_vjp` function
      that takes `fun` as an argument can be differentiated by what `fun` closes over.
    """
    leaves, in_tree = tree.flatten(example_args)
    avals = tuple(map(aval_of, leaves))
    jaxpr, values, out_tree = kept(fun, ("closure_convert", in_tree, avals), lambda: trace_pytrees(fun, in_tree, avals))
    hoisted = [isinstance(v, Tracer) for v in values]
    consts = [v for v, h in zip(values, hoisted, strict=True) if h]

    def converted(*args: Any) -> Any:
        split = len(args) - len(consts)
        xs, args_tree = tree.flatten(args[:split])
        if args_tree != in_tree:
            raise TypeError(f"the function was closure-converted for arguments of structure {in_tree}, and called with "
                            f"{args_tree}.")
        given = iter(args[split:])
        all_values = [next(given) if h else v for v, h in zip(values, hoisted, strict=True)]
        return tree.unflatten(out_tree, eval_jaxpr(jaxpr, all_values, *xs))

    return converted, consts


def custom_gradient(fun: Callable[..., Any]) -> Callable[..., Any]:
    """A function that gives its own gradient: `fun(*args)` returns (out, vjp) with `vjp(ct)` the cotangents.

    >>> @custom_gradient
    ... def f(x): return x ** 2, lambda ct: (ct * x,)
    """

    @custom_vjp
    def wrapped(*args: Any) -> Any:
        return fun(*args)[0]

    def forward(*args: Any) -> tuple[Any, Any]:
        out, rule = fun(*args)
        leaves, out_tree = tree.flatten((out,))

        def gradients(ct: Any) -> tuple[Any, ...]:
            grads = rule(ct)
            return grads if isinstance(grads, tuple) else (grads,)

        jaxpr, consts, grad_tree = trace_pytrees(gradients, out_tree, list(map(aval_of, leaves)))
        return out, (consts, _Rule(ClosedJaxpr(jaxpr), grad_tree))

    def backward(residuals: Any, ct: Any) -> Any:
        consts, program = residuals
        outs = eval_jaxpr(program.closed.jaxpr, consts, *tree.leaves(ct))
        return tree.unflatten(program.grad_tree, outs)

    wrapped.defvjp(forward, backward)
    return wraps(fun)(lambda *args, **kwargs: wrapped(*args, **kwargs))


def zero_from_primal(val: Any, symbolic_zeros: bool = False) -> Any:
    """The zero tangent of a value, or of each leaf of a pytree: an array of zeros (NumPy's, of dtype `float0`, for
    integers and booleans), or a `SymbolicZero`.

    >>> zero_from_primal(jnp.ones(2))
    Array([0., 0.], dtype=float32)
    """
    def zero(leaf: Any) -> Any:
        symbolic = SymbolicZero.from_primal_value(leaf)
        if symbolic_zeros:
            return symbolic
        return np.zeros(symbolic.shape, dtypes.float0) if symbolic.dtype == dtypes.float0 else instantiate(symbolic)

    return tree.map(zero, val)


@tree.register_static
class _Rule:
    """The program of a vjp rule, as a constant of a pytree."""

    def __init__(self, closed: ClosedJaxpr, grad_tree: Any):
        self.closed, self.grad_tree = closed, grad_tree


globals().update(_names.access(__name__, globals()))
