"""Primitives of your own, defined rule by rule, and elementwise operations with instructions of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar

import numpy as np

from anima import errors
from anima.compiler.scalars.table import enter
from anima.config import config
from anima.core import dtypes, primitive as core
from anima.core.array import Array, ConcreteArray
from anima.core.avals import ShapedArray
from anima.core.dims import index_of
from anima.core.jaxpr import ClosedJaxpr
from anima.core.stage import trace_to_jaxpr
from anima.core.state import current
from anima.core.trace import EVAL, Trace, Tracer, aval_of, numpy_value, under
from anima.ops.broadcast import as_array
from anima.ops.family import ELEMENTWISE, REAL, Elementwise

Rule = TypeVar("Rule", bound=Callable[..., Any])


class _AnyPrimitive(type):
    """What `isinstance` asks: Anima's own operations are operations."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return super().__instancecheck__(instance) or (cls is Primitive and isinstance(instance, core.Primitive))


class Primitive(core.Primitive, metaclass=_AnyPrimitive):
    """An operation whose rules are set one by one; those that are missing raise a NotImplementedError when needed.

    `def_abstract_eval(rule)`: types of the results, `ShapedArray`s, for those of the arguments. Needed wherever the
    operation is traced.
    `def_impl(rule)`: the results, for arrays. It may compute in any way, with NumPy too.
    `def_lowering(rule)`: a function made of other operations, which compiled programs have in its place (and which
    is the implementation too, where there is no other); what `interpreters.mlir.register_lowering` sets.
    `def_jvp(rule)`: `rule(primals, tangents) -> (results, tangents of results)`; any tangent may be a `Zero`; what
    `interpreters.ad.primitive_jvps[p]` is.
    `def_transpose(rule)`: `rule(ct, *args) -> cotangents`, None for each argument that is not a `Linear`; what
    `interpreters.ad.primitive_transposes[p]` is.
    `def_batching(rule)`: `rule(args, dims) -> (results, dims of results)`, dims being axes, or None; what
    `interpreters.batching.primitive_batchers[p]` is.

    All take the parameters that `bind(*args, **params)` is given as keywords. With `multiple_results = True`, there
    is a list of results, of their types, and so on. Subclasses may have the rules as methods: `impl(*args, **params)`
    and `abstract_eval(*types, **params) -> (types of the results, effects)`.

    >>> cube_p = Primitive("cube")
    >>> infer = cube_p.def_abstract_eval(lambda x: x)
    >>> impl = cube_p.def_lowering(lambda x: x * x * x)
    >>> cube_p.bind(2.0), jit(cube_p.bind)(3.0)
    (Array(8., dtype=float32, weak_type=True), Array(27., dtype=float32, weak_type=True))
    """

    cost = 10.0
    maps_freely = of_users = True
    lowering: Callable[..., Any] | None = None
    map_primitive = skip_canonicalization = ref_allocating = ref_primitive = False
    is_effectful: Callable[..., bool] | None = None

    def __init__(self, name: str, multiple_results: bool | None = None):
        super().__init__(name)
        if multiple_results is not None:
            self.multiple_results = multiple_results
        self._found = threading.local()  # effects that the types of the last application told
        if type(self).abstract_eval is not core.Primitive.abstract_eval:
            self.def_effectful_abstract_eval(self.abstract_eval)

    def _missing(self, rule: str, advice: str = "") -> NotImplementedError:
        return super()._missing(rule, advice or _SETTERS.get(rule, ""))

    # ---------------------------------------------------------------- setting rules

    def def_abstract_eval(self, abstract_eval: Rule) -> Rule:
        def infer(*avals: ShapedArray, **params: Any) -> Any:
            return _as_types(abstract_eval(*avals, **params))

        self.infer = infer  # type: ignore[method-assign]
        return abstract_eval

    def_effectful_abstract_eval2 = def_abstract_eval

    def def_effectful_abstract_eval(self, effectful_abstract_eval: Rule) -> Rule:
        """`rule(*types, **params) -> (types of the results, effects)`: what has effects is never dropped or merged."""
        def infer(*avals: ShapedArray, **params: Any) -> Any:
            out, effects = effectful_abstract_eval(*avals, **params)
            self._found.effects = frozenset(effects)
            return _as_types(out)

        self.infer = infer  # type: ignore[method-assign]
        return effectful_abstract_eval

    def def_impl(self, impl: Rule) -> Rule:
        self.impl = impl  # type: ignore[method-assign]
        return impl

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

    def def_bind_with_trace(self, bind_with_trace: Rule) -> Rule:
        """`rule(trace, args, types, params)`: what `bind` does."""
        self.bind_with_trace = bind_with_trace  # type: ignore[method-assign]
        return bind_with_trace

    # ---------------------------------------------------------------- applying them

    def bind(self, *args: Any, **params: Any) -> Any:
        return self.bind_with_trace(current.trace, args, None, params)

    def bind_with_trace(self, trace: Trace, args: Sequence[Any], avals: Any, params: dict[str, Any], /) -> Any:
        """Applies the operation under a trace."""
        return self._run(args, params) if trace is EVAL else trace.process(self, args, params)

    def impl(self, *args: Any, **params: Any) -> Any:
        """The results, for arrays: what `def_impl` set, or else the lowering."""
        if self.lowering is None:
            raise self._missing("Evaluation", "Set it by def_impl or def_lowering.")
        return self.lowering(*args, **params)

    def effects_of(self, params: dict[str, Any]) -> frozenset[Any]:
        return getattr(self._found, "effects", frozenset())

    def is_high(self, *avals: ShapedArray, **params: Any) -> bool:
        """Whether types other than those of arrays are involved: there are none."""
        return False

    def to_lojax(self, *args: Any, **params: Any) -> NoReturn:
        raise NotImplementedError(f"'{self.name}' is about arrays already: there are no types above those of arrays.")

    def _run(self, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """The implementation's results on arrays: checked to be of the types that were promised, if any were."""
        for x in args:
            if isinstance(x, Tracer):
                raise errors.UnexpectedTracerError(errors.leaked_tracer_message(x))
        arrays = list(map(as_array, args))
        outs = under(EVAL, self.impl, *arrays, **params)
        if "infer" not in vars(self) and type(self).infer is core.Primitive.infer:
            return outs
        # The user may write to a NumPy array later on.
        outs = [o if isinstance(o, ConcreteArray) and o.aval == a else ConcreteArray(np.array(numpy_value(o, a)), a)
                for o, a in self._checked(outs, list(map(aval_of, arrays)), params)]
        if config.debug_nans or config.debug_infs:
            errors.check_finite(self.name, [o.value for o in outs], current.source)
        return outs if self.multiple_results else outs[0]

    def _checked(self, outs: Any, avals: list[ShapedArray], params: dict[str, Any]) -> list[tuple[Any, ShapedArray]]:
        """Results with the types that were promised; TypeError if theirs are others."""
        outs = list(outs) if self.multiple_results else [outs]
        promised = self.abstract_out(avals, params)
        got = list(map(aval_of, outs))
        if [(a.shape, a.dtype) for a in got] != [(a.shape, a.dtype) for a in promised]:
            raise TypeError(f"the implementation of '{self.name}' returned {[a.str_short() for a in got]}, but its "
                            f"abstract evaluation rule says {[a.str_short() for a in promised]}.")
        return list(zip(outs, promised, strict=True))

    def eval(self, *args: np.ndarray, **params: Any) -> Any:
        arrays = list(map(as_array, args))
        pairs = self._checked(under(EVAL, self.impl, *arrays, **params), list(map(aval_of, arrays)), params)
        values = [np.array(o, a.dtype, copy=None if isinstance(o, Array) else True) for o, a in pairs]
        return values if self.multiple_results else values[0]

    def body(self, params: dict[str, Any], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
        """The program that an equation stands for, for arguments of these types."""
        if self.lowering is None:
            raise self._missing("Compilation", "Set it by def_lowering.")
        rule = partial(self.lowering, **params)
        many = self.multiple_results
        return ClosedJaxpr(*under(EVAL, trace_to_jaxpr, lambda *xs: list(rule(*xs)) if many else [rule(*xs)], avals))


_SETTERS = {
    "Type inference": "Set it by def_abstract_eval.",
    "Forward-mode differentiation": "Set it by def_jvp, or as interpreters.ad.primitive_jvps[p].",
    "Transposition (reverse-mode differentiation)":
        "Set it by def_transpose, or as interpreters.ad.primitive_transposes[p].",
    "Batching (vmap)": "Set it by def_batching, or as interpreters.batching.primitive_batchers[p].",
}


class UserElementwise(Elementwise):
    """An elementwise operation of the user's, known to this process alone."""

    large = None


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
    return UserElementwise(name, fun, REAL, fun.__doc__ or "", jvp=jvp, operands=operands, cost=cost)


def _as_types(found: Any) -> Any:
    """What a rule of the user's gives as types, with Python's integers for sizes and dtypes for dtypes."""
    if isinstance(found, (tuple, list)):
        return [*map(_as_types, found)]
    return found.update(shape=tuple(map(index_of, found.shape)), dtype=dtypes.np_dtype(found.dtype)) if type(
        found) is ShapedArray else found
