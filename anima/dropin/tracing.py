"""Interpreters of operations that libraries write themselves: traces as JAX has them, with a method for each kind.

    class Counting(jax.core.Trace):
        def __init__(self, parent_trace):
            super().__init__()
            self.parent_trace = parent_trace

        def process_primitive(self, primitive, tracers, params): ...

`set_current_trace(trace)` has it told of operations. What Anima's own traces are told by `process` comes to the method
for its kind, functions with derivatives of their own as those and as what they call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from anima import tree
from anima.core import memory, trace as core
from anima.core.array import ConcreteArray
from anima.core.avals import tangent_aval
from anima.core.jaxpr import ClosedJaxpr
from anima.core.primitive import Primitive, Zero
from anima.core.stage import eval_jaxpr
from anima.extend.linear_util import WrappedFun, wrap_init
from anima.transforms.custom_calls import custom_jvp_call_p, custom_vjp_call_p


class _AnyTrace(type):
    """What `isinstance` asks: Anima's own traces are traces."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return super().__instancecheck__(instance) or (cls is Trace and isinstance(instance, core.Trace))


class Trace(core.Trace, metaclass=_AnyTrace):
    """An interpreter whose methods are told of operations by their kinds."""

    parent_trace: core.Trace | None = None
    asks_numbers = True

    def __init__(self) -> None:
        super().__init__(getattr(self, "parent_trace", None))

    @property
    def parent(self) -> core.Trace | None:
        """What its own work runs under, as subclasses name it."""
        return self.parent_trace

    @parent.setter
    def parent(self, trace: core.Trace | None) -> None:
        self.parent_trace = trace

    def full_raise(self, x: Any) -> Any:
        """A value, for this trace: itself."""
        return x

    def process(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        if primitive is custom_jvp_call_p:
            return self._custom_jvp(args, **params)
        if primitive is custom_vjp_call_p:
            return self._custom_vjp(args, **params)
        if primitive.call_primitive:
            program = params["call_jaxpr"]
            rest = {key: value for key, value in params.items() if key != "call_jaxpr"}
            return self.process_call(primitive, self._function(program), args, rest)
        arrays = [ConcreteArray(memory.copied(x, x.dtype), core.aval_of(x)) if isinstance(x, (np.ndarray, np.generic))
                  else x for x in args]
        return self.process_primitive(primitive, arrays, params)

    def process_primitive(self, primitive: Primitive, tracers: Sequence[Any], params: dict[str, Any]) -> Any:
        """The results of an operation: one, or a list if `primitive.multiple_results`."""
        raise NotImplementedError(f"{type(self).__name__} must override process_primitive")

    def process_call(self, primitive: Primitive, f: WrappedFun, tracers: Sequence[Any], params: dict[str, Any]) -> Any:
        """The results of `f.call_wrapped(*tracers)`, a function that is called under a name of its own."""
        raise NotImplementedError(f"{type(self).__name__} must override process_call to handle {primitive}")

    def process_custom_jvp_call(self, primitive: Primitive, fun: WrappedFun, jvp: WrappedFun, tracers: Sequence[Any], *,
                                symbolic_zeros: bool) -> Any:
        """The results of `fun`. `jvp` takes primals and tangents, and gives results and their tangents."""
        raise NotImplementedError(f"{type(self).__name__} must override process_custom_jvp_call to handle custom_jvp")

    def process_custom_vjp_call(self, primitive: Primitive, fun: WrappedFun, fwd: WrappedFun, bwd: Callable[..., Any],
                                tracers: Sequence[Any], out_trees: Callable[[], Any], symbolic_zeros: bool) -> Any:
        """The results of `fun`. `fwd` takes each argument and whether it is perturbed, and gives residuals and results;
        `bwd`, after it, takes residuals and cotangents; `out_trees()` tells the structures of results and residuals."""
        raise NotImplementedError(f"{type(self).__name__} must override process_custom_vjp_call to handle custom_vjp")

    def _function(self, program: ClosedJaxpr) -> WrappedFun:
        """A program as a function: where its arguments are this trace's, this is told of its operations."""
        def fun(*args: Any) -> list[Any]:
            run = partial(eval_jaxpr, program.jaxpr, program.consts, *args)
            mine = any(isinstance(x, core.Tracer) and x.owner is self for x in args)
            return core.under(self, run) if mine else run()

        return wrap_init(fun)

    def _custom_jvp(self, args: Sequence[Any], *, call_jaxpr: ClosedJaxpr, jvp: Callable[..., Any], num_consts: int,
                    symbolic_zeros: bool, **params: Any) -> Any:
        def rule(*both: Any) -> list[Any]:
            half = len(both) // 2
            outs, tangents = jvp(both[num_consts:half], both[half + num_consts:])
            return [*outs, *tangents]

        return self.process_custom_jvp_call(custom_jvp_call_p, self._function(call_jaxpr), wrap_init(rule), args,
                                            symbolic_zeros=symbolic_zeros)

    def _custom_vjp(self, args: Sequence[Any], *, call_jaxpr: ClosedJaxpr, fwd: Callable[..., Any], num_consts: int,
                    symbolic_zeros: bool, **params: Any) -> Any:
        found: list[Any] = []

        def forward(*flat: Any) -> list[Any]:
            given = list(zip(flat[::2], flat[1::2], strict=True))[num_consts:]
            outs, residuals, back = fwd([x for x, _ in given], [x if perturbed else Zero(tangent_aval(core.aval_of(x)))
                                                                for x, perturbed in given])
            found[:] = [len(outs), len(residuals), back, [Zero(tangent_aval(core.aval_of(x)))
                                                          for x in flat[:2 * num_consts:2]]]
            return [*residuals, *outs]

        def bwd(*flat: Any) -> list[Any]:
            _, count, back, closed_over = found
            return [*closed_over, *back(flat[:count], flat[count:])]

        def out_trees() -> tuple[Any, Any, list[None]]:
            outs, residuals, *_ = found
            return tree.structure([0] * outs), tree.structure([0] * residuals), [None] * residuals

        return self.process_custom_vjp_call(custom_vjp_call_p, self._function(call_jaxpr), wrap_init(forward), bwd,
                                            args, out_trees=out_trees, symbolic_zeros=symbolic_zeros)
