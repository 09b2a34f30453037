"""Primitives of your own, and what programs are made of.

    double_p = Primitive("double")
    double_p.def_abstract_eval(lambda x: x)
    double_p.def_lowering(lambda x: 2 * x)
    double_p.def_jvp(lambda primals, tangents: (double_p.bind(*primals), double_p.bind(*map(instantiate, tangents))))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from anima.compiler.scalars.table import enter
from anima.core import primitive as core
from anima.core.array import Array
from anima.core.avals import ShapedArray as ShapedArray
from anima.core.jaxpr import (
    ClosedJaxpr as ClosedJaxpr,
    Eqn as JaxprEqn,
    Jaxpr as Jaxpr,
    Literal as Literal,
    Var as Var,
    subjaxprs as jaxprs_in_params,
)
from anima.core.primitive import Linear as Linear, Zero as Zero
from anima.core.stage import eval_jaxpr as eval_jaxpr, trace_to_jaxpr
from anima.core.trace import EVAL, aval_of, under
from anima.ops.broadcast import as_array, instantiate as instantiate
from anima.ops.family import ELEMENTWISE, REAL, Elementwise

__all__ = ["ClosedJaxpr", "Jaxpr", "JaxprEqn", "Linear", "Literal", "Primitive", "ShapedArray", "Var", "Zero",
           "elementwise", "eval_jaxpr", "instantiate", "jaxpr_as_fun", "jaxprs_in_params"]

Rule = TypeVar("Rule", bound=Callable[..., Any])


class Primitive(core.Primitive):
    """An operation whose rules are set one by one; those that are missing raise a NotImplementedError when needed.

    `def_abstract_eval(rule)`: types of the results, `ShapedArray`s, for those of the arguments. Always needed.
    `def_impl(rule)`: the results, for arrays. It may compute in any way, with NumPy too.
    `def_lowering(rule)`: a function made of other operations, which compiled programs have in its place (and which
    is the implementation too, where there is no other).
    `def_jvp(rule)`: `rule(primals, tangents) -> (results, tangents of results)`; any tangent may be a `Zero`.
    `def_transpose(rule)`: `rule(ct, *args) -> cotangents`, None for each argument that is not a `Linear`.
    `def_batching(rule)`: `rule(args, dims) -> (results, dims of results)`, dims being axes, or None.

    All take the parameters that `bind(*args, **params)` is given as keywords. With `multiple_results = True`, there
    is a list of results, of their types, and so on.

    >>> cube_p = Primitive("cube")
    >>> infer = cube_p.def_abstract_eval(lambda x: x)
    >>> impl = cube_p.def_lowering(lambda x: x * x * x)
    >>> cube_p.bind(2.0), jit(cube_p.bind)(3.0)
    (Array(8., dtype=float32, weak_type=True), Array(27., dtype=float32, weak_type=True))
    """

    def __init__(self, name: str, multiple_results: bool = False):
        super().__init__(name)
        self.multiple_results = multiple_results
        self.impl: Callable[..., Any] | None = None
        self.lowering: Callable[..., Any] | None = None

    def def_abstract_eval(self, rule: Rule) -> Rule:
        self.infer = rule  # type: ignore[method-assign]
        return rule

    def def_impl(self, rule: Rule) -> Rule:
        self.impl = rule
        return rule

    def def_lowering(self, rule: Rule) -> Rule:
        self.lowering = rule
        return rule

    def def_jvp(self, rule: Rule) -> Rule:
        self.jvp = rule  # type: ignore[method-assign]
        return rule

    def def_transpose(self, rule: Rule) -> Rule:
        self.transpose = rule  # type: ignore[method-assign]
        return rule

    def def_batching(self, rule: Rule) -> Rule:
        def batch(size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
            return rule(args, dims, **params)

        self.batch = batch  # type: ignore[method-assign]
        return rule

    def _as_list(self, outs: Any) -> list[Any]:
        return list(outs) if self.multiple_results else [outs]

    def eval(self, *args: np.ndarray, **params: Any) -> Any:
        """The implementation's results, checked to be of the types that were promised."""
        rule = self.impl or self.lowering
        if rule is None:
            raise self._missing("Evaluation", "Set it by def_impl or def_lowering.")
        arrays = list(map(as_array, args))
        outs = self._as_list(rule(*arrays, **params))
        avals = self.abstract_out(list(map(aval_of, arrays)), params)
        got = list(map(aval_of, outs))
        if [(a.shape, a.dtype) for a in got] != [(a.shape, a.dtype) for a in avals]:
            raise TypeError(f"the implementation of '{self.name}' returned {[a.str_short() for a in got]}, but its "
                            f"abstract evaluation rule says {[a.str_short() for a in avals]}.")
        # The user may write to a NumPy array later on.
        values = [np.array(o, a.dtype, copy=None if isinstance(o, Array) else True)
                  for o, a in zip(outs, avals, strict=True)]
        return values if self.multiple_results else values[0]

    def body(self, params: dict[str, Any], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
        """The program that an equation stands for, for arguments of these types."""
        if self.lowering is None:
            raise self._missing("Compilation", "Set it by def_lowering.")
        rule = partial(self.lowering, **params)
        return ClosedJaxpr(*under(EVAL, trace_to_jaxpr, lambda *xs: self._as_list(rule(*xs)), avals))


def elementwise(name: str, fun: Callable[..., Any], formula: Callable[..., Any], *,
                jvp: Sequence[Callable[..., Any] | None], operands: str = "x", cost: float = 10.0) -> Elementwise:
    """A new operation on each element of arrays of floats, with instructions of its own.

    Args:
      name: as no other operation is called.
      fun: the function on NumPy arrays, for use outside of compiled programs.
      formula: the function on numbers of compiled code, f32 or f64 (float16 and bfloat16 are computed in f32), written
        with operators, or with what else `anima.compiler.scalars.base.Num` has.
      jvp: for each operand a rule `(t, y, *operands)`: how the result `y` changes with the operand's tangent `t`. None
        where it does not.
      operands: their names.
      cost: nanoseconds of one core for one element, roughly; an addition takes 1.

    Everything else (types, broadcasting, `vmap`, transposition, fusion) is that of all elementwise operations.

    >>> gauss = elementwise("gauss", lambda x: 1 / (1 + x * x), lambda x: 1.0 / (x * x + 1.0), cost=4.0,
    ...                     jvp=[lambda t, y, x: -2 * t * x * y * y])
    >>> jit(grad(gauss))(1.0)
    Array(-0.5, dtype=float32, weak_type=True)
    """
    if name in ELEMENTWISE:
        raise ValueError(f"there is an operation '{name}' already")
    enter(name, formula)
    return Elementwise(name, fun, REAL, fun.__doc__ or "", jvp=jvp, operands=operands, cost=cost)


def jaxpr_as_fun(closed: ClosedJaxpr) -> Callable[..., list[Any]]:
    """A program as a function of flat arguments that returns a list.

    >>> jaxpr_as_fun(make_jaxpr(lambda x: 2 * x)(1.0))(4.0)
    [Array(8., dtype=float32, weak_type=True)]
    """
    return lambda *args: eval_jaxpr(closed.jaxpr, closed.consts, *args)
