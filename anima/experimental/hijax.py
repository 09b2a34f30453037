"""Operations with rules of their own as classes, and types of values beyond arrays, as far as there are any.

    class Times(VJPHiPrimitive):
        def __init__(self, aval):
            self.in_avals, self.out_aval, self.params = (aval, aval), aval, {}
            super().__init__()
        def expand(self, x, y): return x * y
        def vjp_fwd(self, nzs_in, x, y): return x * y, (x, y)
        def vjp_bwd_retval(self, res, g): return g * res[1], g * res[0]

    Times(typeof(x))(x, y)

Values that programs know are arrays. A type of one's own (`HiType`) can be defined, and a class of values registered;
an operation on such values says that they are no arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from anima import tree
from anima.core.avals import AbstractValue as AbstractValue, ShapedArray as ShapedArray, tangent_aval
from anima.core.dtypes import float0
from anima.core.primitive import Zero as Zero
from anima.core.refs import AbstractRef as AbstractRef
from anima.core.trace import aval_of
from anima.custom_batching import custom_vmap
from anima.custom_derivatives import custom_jvp, custom_vjp, linear_call
from anima.extend.core.operation import Primitive
from anima.extend.core.types import EffectTypeSet
from anima.interpreters.ad import instantiate_zeros as instantiate_zeros, is_undefined_primal as is_undefined_primal
from anima.interpreters.batching import AxisData
from anima.names import access
from anima.numpy.refs import TransformedRef as TransformedRef
from anima.transforms.vmap import move_to

# ---------------------------------------------------------------- types

class HiType(AbstractValue):
    """A type of values that consist of others: the base of classes of your own."""


class MutableHiType(HiType):
    """A type of values that change."""


class HiPspec:
    """How a value of a `HiType` is cut into parts."""


class AvalQDD(NamedTuple):
    """A type, and what of it changes while a program runs."""

    aval: Any
    qdd: Any


class AvalMutableQDD(NamedTuple):
    """A type, and a place for what of it changes."""

    aval: Any
    mutable_qdd: Any


class aval_method(NamedTuple):
    """A method of a type that its values have, too."""

    fun: Callable[..., Any]


class aval_property(NamedTuple):
    """A property of a type that its values have, too."""

    fget: Callable[[Any], Any]


hitypes: dict[type, Callable[[Any], Any]] = {}


def register_hitype(val_cls: type, typeof_fn: Callable[[Any], Any]) -> None:
    """Notes what the type of a class of values is. Operations accept arrays alone, and refuse such values by name."""
    hitypes[val_cls] = typeof_fn


control_flow_allowed_effects = EffectTypeSet()


# ---------------------------------------------------------------- operations

class HiPrimitive(Primitive):
    """An operation whose rules are methods of a subclass.

    `abstract_eval(*types, **params) -> (types of the results, effects)`, `to_lojax(*args, **params)` what it is made
    of, and where they are needed `jvp(primals, tangents, **params)`, `transpose(ct, *args, **params)`.
    """

    def __init__(self, name: str):
        super().__init__(name)
        self.multiple_results = type(self).multiple_results
        self.def_effectful_abstract_eval(self.abstract_eval)
        self.def_lowering(self.to_lojax)


class VJPHiPrimitive:
    """One operation of given types and parameters, whose rules are methods of a subclass.

    `__init__` sets `in_avals` (a tuple of types, or of pytrees of them), `out_aval` and `params` (a dictionary, whose
    entries are attributes, too), and calls that of the base. Methods are `expand(*args)`, what it is made of, and where
    they are needed `jvp(primals, tangents)`, `vjp_fwd(nzs_in, *args) -> (result, residuals)`,
    `vjp_bwd_retval(residuals, ct) -> cotangents` and `batch(axis_data, args, dims) -> (result, its dim)`.
    """

    in_avals: tuple[Any, ...]
    out_aval: Any
    params: dict[str, Any]

    def __init__(self) -> None:
        for name in ("in_avals", "out_aval", "params"):
            if not hasattr(self, name):
                raise AttributeError(f"{type(self).__name__} must set self.{name} before it calls super().__init__()")
        vars(self).update({name: value for name, value in self.params.items() if not hasattr(self, name)})

    def __repr__(self) -> str:
        return f"{type(self).__name__}[{self.params}]"

    def expand(self, *args: Any) -> Any:
        """What the operation is made of."""
        raise NotImplementedError(f"{type(self).__name__} must implement `expand`")

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """(result, its tangent)."""
        raise NotImplementedError(f"for jvp support, {type(self).__name__} must implement `jvp`")

    def vjp_fwd(self, nzs_in: Sequence[bool], /, *args: Any) -> tuple[Any, Any]:
        """(result, residuals); `nzs_in` tells of which arguments cotangents are wanted."""
        raise NotImplementedError(f"for grad support, {type(self).__name__} must implement `vjp_fwd`")

    def vjp_bwd_retval(self, res: Any, outgrad: Any, /) -> Sequence[Any]:
        """Cotangents of the arguments."""
        raise NotImplementedError(f"for grad support, {type(self).__name__} must implement `vjp_bwd_retval`")

    def batch(self, axis_data: AxisData, args: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        """(results, their mapped axis)."""
        raise NotImplementedError(f"for vmap support, {type(self).__name__} must implement `batch`")

    def _has(self, method: str) -> bool:
        return getattr(type(self), method) is not getattr(VJPHiPrimitive, method)

    def __call__(self, *args: Any) -> Any:
        self._check(args)
        fun: Callable[..., Any] = self.expand
        if self._has("batch"):
            fun = custom_vmap(fun)
            fun.def_vmap(self._batched)
        if self._has("vjp_fwd") and self._has("jvp") and all(
                tangent_aval(a).dtype != float0 for a in tree.leaves(tuple(self.in_avals))):
            both = custom_jvp(fun)
            both.defjvp(self._both)
            return both(*args)
        if self._has("vjp_fwd"):
            whole = custom_vjp(fun)
            whole.defvjp(self._forward, self._backward, symbolic_zeros=True)
            return whole(*args)
        if self._has("jvp"):
            moving = custom_jvp(fun)
            moving.defjvp(self.jvp)
            return moving(*args)
        return fun(*args)

    def _check(self, args: Sequence[Any]) -> None:
        given, structure = tree.flatten(tuple(args))
        wanted, expected = tree.flatten(tuple(self.in_avals))
        types = [(a.shape, a.dtype) for a in map(aval_of, given)]
        if structure != expected or types != [(a.shape, a.dtype) for a in wanted]:
            raise TypeError(f"{self} is an operation on {self.in_avals}, and got "
                            f"{tree.map(aval_of, tuple(args))}")

    def _both(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """The rule where each mode has its own: tangents are those of `jvp`, cotangents those of `vjp_bwd_retval`."""
        out, residuals = self.vjp_fwd((True,) * len(primals), *primals)
        return out, linear_call(lambda known, ts: self.jvp(known[0], ts)[1],
                                lambda known, ct: tuple(self.vjp_bwd_retval(known[1], ct)),
                                (tuple(primals), residuals), tuple(tangents))

    def _forward(self, *args: Any) -> tuple[Any, Any]:
        values = tree.map(lambda x: x.value, args)
        wanted = tuple(any(x.perturbed for x in tree.leaves(arg)) for arg in args)
        return self.vjp_fwd(wanted, *values)

    def _backward(self, residuals: Any, ct: Any) -> tuple[Any, ...]:
        return tuple(self.vjp_bwd_retval(residuals, tree.map(instantiate_zeros, ct)))

    def _batched(self, size: int, mapped: Sequence[Any], *args: Any) -> tuple[Any, Any]:
        dims = tree.map(lambda m: 0 if m else None, tuple(mapped))
        out, dim = self.batch(AxisData(None, size), args, dims)
        if not isinstance(dim, (int, type(None))):
            leaves, structure = tree.flatten(out)
            places = tree.flatten_axes("dims of the results", structure, dim)
            return (structure.unflatten([x if d is None else move_to(x, d, 0, size)
                                         for x, d in zip(leaves, places, strict=True)]),
                    structure.unflatten([d is not None for d in places]))
        return (tree.map(lambda x: x if dim is None else move_to(x, dim, 0, size), out),
                tree.map(lambda x: dim is not None, out))

globals().update(access(__name__, globals()))
