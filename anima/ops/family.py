"""The family of elementwise operations: every rule but the function and its derivative is generic.

    sin = Elementwise("sin", np.sin, INEXACT, "Sine of x (radians).",
                      jvp=(lambda t, y, x: mul(t, cos(x)),))

Operands are scalars `()` or arrays of one rank with equal or unit sizes, all of one dtype; the result is
weakly typed if they all are. A derivative rule gives, for the tangent `t` of one operand, the tangent
of the result `y`; `None` in its place means piecewise constant. A transpose rule gives, for the
cotangent of the result, that of one operand; the family sums it to that operand's shape.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima import errors
from anima.core import dtypes, literals, memory, transfers
from anima.core.array import ConcreteArray
from anima.core.avals import Shape, ShapedArray, broadcast_shapes, scalar_type, tangent_aval
from anima.core.primitive import LARGE, Linear, Primitive, ShardingRule, Work, Zero
from anima.core.sharding_rules import each_alike
from anima.core.state import current
from anima.core.trace import Tracer, aval_of
from anima.ops.accuracy import check_accuracy
from anima.ops.broadcast import broadcast_to, expand_dims, reduce_sum
from anima.ops.shape import moveaxis, reshape

INEXACT = (np.floating, np.complexfloating)
REAL = (np.floating,)
NUMBER = (np.integer, np.floating, np.complexfloating)
INTEGER = (np.integer,)
BITS = (np.integer, np.bool_)
ORDERED = (np.integer, np.floating, np.bool_)
ARRAY = (np.bool_, np.number)
ANY: tuple[type, ...] = ()

Rule = Callable[..., Any]
Rules = Sequence[Rule | None] | None

_F32 = np.dtype(np.float32)
# Small types are computed in a wider one, where all of their operations are exact or rounded once more.
WIDER: dict[Any, np.dtype] = {d: _F32 for d in dtypes.FLOATS if d.itemsize <= 2}
WIDER |= {d: np.dtype(np.int8) for d in dtypes.SMALL_SIGNED}
WIDER |= {d: np.dtype(np.uint8) for d in dtypes.SMALL_UNSIGNED}

_PYTHON_SCALARS = frozenset((int, float, complex, bool))
_HOLDS: dict[type, tuple[type, ...]] = {
    bool: (np.bool_,), int: NUMBER, float: INEXACT, complex: (np.complexfloating,)}


ELEMENTWISE: dict[str, Elementwise] = {}  # by name, as the operations of compiled loops are named


def constant(value: Any, dtype: Any) -> ConcreteArray:
    """A number as a weakly typed scalar array; OverflowError if an int does not fit."""
    return ConcreteArray(np.array(value, dtype), scalar_type(dtype, True))


def known_scalar(x: Any) -> Any:
    """The value of an operand that is one number, known while tracing; None otherwise."""
    if isinstance(x, Tracer) or aval_of(x).shape:
        return None
    return np.asarray(x)[()]


@functools.cache
def is_kind(dtype: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a dtype is one of the abstract kinds (`np.floating`, ...); the empty tuple is any."""
    return not kinds or any(dtypes.issubdtype(dtype, k) for k in kinds)


def match_scalars(args: Sequence[Any]) -> Sequence[Any]:
    """Gives Python numbers among the operands the dtype of the arrays, where it can hold their kind."""
    arrays = [a for a in args if type(a) not in _PYTHON_SCALARS]
    if not arrays or len(arrays) == len(args):
        return args
    transfers.operands(args)
    dtype = aval_of(arrays[0]).dtype
    found = [constant(a, dtype) if type(a) in _PYTHON_SCALARS and is_kind(dtype, _HOLDS[type(a)]) else a for a in args]
    if current.trace.asks_numbers and dtype != np.bool_:
        return [literals.typed(a, dtype) if x is not a else a for x, a in zip(found, args, strict=True)]
    return found


def unbroadcast(ct: Any, aval: ShapedArray) -> Any:
    """The cotangent of an operand that was repeated: `ct` summed to the operand's shape."""
    if ct.shape == aval.shape:
        return ct
    if not aval.shape:
        return reduce_sum(ct, tuple(range(len(ct.shape))))
    axes = tuple(i for i, (want, have) in enumerate(zip(aval.shape, ct.shape, strict=True)) if want != have)
    return reshape(reduce_sum(ct, axes), aval.shape)


def align(x: Any, dim: int | None, rank: int, target: int) -> Any:
    """An operand of a batched elementwise operation of rank `rank`, with its batch dimension at `target`."""
    ndim = len(aval_of(x).shape)
    if dim is None:
        return x if ndim == 0 or rank == 0 else expand_dims(x, (target,))
    if ndim - 1 == rank:
        return x if dim == target else moveaxis(x, dim, target)
    return expand_dims(x, [d for d in range(rank + 1) if d != target])


def _ufunc(fun: Callable[..., Any], floats: bool, widen: bool, avals: Sequence[ShapedArray],
           params: dict[str, Any]) -> Callable[..., Any] | None:
    dtype = avals[0].dtype
    if params or (widen and dtype in WIDER) or (floats and dtype.kind != "f"):
        return None
    return fun


class Elementwise(Primitive):
    """An operation that acts on each element by itself.

    `fun` is the function on NumPy arrays; `accepts` the kinds of dtypes (`ANY`: all); `result` maps the
    first operand's dtype to the result's; `widen=False` hands small floats to `fun` as they are;
    `jvp` and `transpose` have one rule per operand; `linear` says that the operation is jointly linear; `cost` is
    that of a function with a series or a few of them, if it is only for inexact numbers, else that of an instruction;
    `real` is the function of NumPy's that `fun` is for real floats.
    """

    large: int | None = LARGE
    loads = False  # whether to compute a value imports a package that takes longer than to compile a program

    def __init__(self, name: str, fun: Callable[..., Any], accepts: tuple[type, ...], doc: str, *,
                 jvp: Rules, transpose: Rules = None, operands: str = "x", linear: bool = False,
                 result: Callable[[Any], Any] | None = None, widen: bool = True, accuracy: bool = False,
                 cost: float | None = None, real: np.ufunc | None = None):
        super().__init__(name)
        ELEMENTWISE[name] = self
        if real is not None or isinstance(fun, np.ufunc):
            self.as_ufunc = functools.partial(_ufunc, fun if real is None else real, real is not None, widen)
        self.cost = cost if cost is not None else 10.0 if accepts is INEXACT else 1.0
        self.fun, self.accepts, self.linear, self.widen = fun, accepts, linear, widen
        self.jvp_rules, self.transpose_rules, self.result = jvp, transpose, result
        self.transcendental = accepts in (INEXACT, REAL) and self.cost > 1
        self.exact = not self.transcendental
        self.operands = tuple(operands.split())
        self.accepted: set[Any] = set()  # dtypes seen and found acceptable
        self.__name__, self.__doc__ = f"bitwise_{name}" if accepts is BITS else name, doc
        kind = inspect.Parameter
        params = [kind(n, kind.POSITIONAL_OR_KEYWORD) for n in self.operands]
        if accuracy:
            params.append(kind("accuracy", kind.KEYWORD_ONLY, default=None))
        self.__signature__ = inspect.Signature(params)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Applies the operation; Python numbers take the dtype of the arrays among the operands."""
        try:  # as `errors.api_boundary` does, without the cost of one more call
            if kwargs or len(args) != len(self.operands):
                args = self._arguments(args, kwargs)
            return self.bind(*(args if len(args) == 1 else match_scalars(args)))
        except Exception as error:
            errors.filter_traceback(error)
            raise

    def _arguments(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Operands given by keyword; `accuracy` is a hint, and every result is accurate here already."""
        try:
            bound = self.__signature__.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{self.name}(): {error}") from None
        check_accuracy(bound.get("accuracy"))
        return tuple(bound[n] for n in self.operands)

    # ---------------------------------------------------------------- types

    def infer(self, *avals: ShapedArray, **params: Any) -> ShapedArray:
        if len(avals) != len(self.operands):
            raise TypeError(f"{self.name} takes {len(self.operands)} operands, and got {len(avals)}.")
        first = avals[0]
        shape, dtype, weak = first.shape, first.dtype, first.weak_type
        if dtype not in self.accepted:
            self._check_dtypes(avals)
        for other in avals[1:]:
            if other.dtype is not dtype and other.dtype != dtype:
                self._check_dtypes(avals)
                self._check_same_dtypes(avals)
            if other.shape != shape:
                shape = self.broadcast(avals)
            weak = weak and other.weak_type
        if self.result is not None:
            return ShapedArray(shape, self.result(dtype), weak)
        if shape == first.shape and weak == first.weak_type:
            return first
        return ShapedArray(shape, dtype, weak)

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray],
                      **params: Any) -> ShardingRule:
        return each_alike(outs[0].shape, avals, outs)

    def broadcast(self, avals: Sequence[ShapedArray]) -> Shape:
        """The shape of the result; TypeError if the operands' do not fit."""
        shapes = [a.shape for a in avals if a.shape]
        if not shapes:
            return ()
        ranks = {len(s) for s in shapes}
        if len(ranks) > 1:
            raise TypeError(f"{self.name}: arrays must have the same number of dimensions, got {ranks}")
        return broadcast_shapes(*shapes, name=self.name)

    def _check_dtypes(self, avals: Sequence[ShapedArray]) -> None:
        for i, aval in enumerate(avals):
            if not is_kind(aval.dtype, self.accepts):
                where = f" at position {i}" if len(avals) > 1 else ""
                kinds = ", ".join(k.__name__.rstrip("_") for k in self.accepts)
                raise TypeError(f"{self.name} does not accept dtype {dtypes.name(aval.dtype)}{where}. "
                                f"Accepted dtypes{where} are subtypes of {kinds}.")
        self.accepted.add(avals[0].dtype)

    def _check_same_dtypes(self, avals: Sequence[ShapedArray]) -> None:
        """TypeError unless all operands have one dtype."""
        if any(a.dtype != avals[0].dtype for a in avals):
            names = ", ".join(dtypes.name(a.dtype) for a in avals)
            similar = _PROMOTING.get(self.name)
            tip = "" if not similar else (
                f" (Tip: jnp.{similar} is a similar function that does automatic type promotion on inputs).")
            raise TypeError(f"lax.{self.name} requires arguments to have the same dtypes, got {names}.{tip}")

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             **params: Any) -> Work:
        size = float(outs[0].size)
        return Work(0.0, size) if self.transcendental else Work(size)

    # ---------------------------------------------------------------- values

    def is_exact(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> bool:
        plain = all(isinstance(a.dtype, np.dtype) and a.dtype.kind in "biuf" and a.dtype not in WIDER for a in avals)
        return plain and self.exact

    def eval(self, *args: np.ndarray, **params: Any) -> Any:
        dtype = args[0].dtype
        wide = WIDER.get(dtype) if self.widen else None
        if wide is None:
            if params:
                return self.fun(*args, **params)
            for a in args:
                if a.nbytes >= memory.LEAST:
                    return self._into_known(args)
            return self.fun(*args)
        out = self.fun(*[a.astype(wide) for a in args], **params)
        return out.astype(dtype) if out.dtype == wide else out

    def _into_known(self, args: Sequence[np.ndarray]) -> Any:
        """A large result in memory that was used before, where NumPy's function takes such: new memory costs more than
        a sum."""
        (shape, *others) = {a.shape for a in args if a.ndim}
        if self.result is not None or others or not isinstance(self.fun, np.ufunc):
            return self.fun(*args)
        dtype = args[0].dtype
        return memory.filled(self.fun, args, shape, dtype, math.prod(shape) * dtype.itemsize)

    # ---------------------------------------------------------------- derivatives

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        primals = match_scalars(primals)  # rules may apply any operation to them
        out = self.bind(*primals, **params)
        if self.linear and not any(isinstance(t, Zero) for t in tangents):
            return out, self.bind(*tangents, **params)
        total = None
        for t, rule in zip(tangents, self.jvp_rules or (None,) * len(tangents), strict=True):
            if rule is None or isinstance(t, Zero):
                continue
            term = rule(t, out, *primals, **params)
            if term is not None:
                term = term if term.shape == out.shape else broadcast_to(term, out.shape)
                total = term if total is None else add_any(total, term)
        return out, Zero(tangent_aval(aval_of(out))) if total is None else total

    def transpose(self, ct: Any, *args: Any, **params: Any) -> Sequence[Any]:
        rules = self.transpose_rules
        if rules is None:
            raise self._missing("Transposition (reverse-mode differentiation)", "It is not linear.")
        if not self.linear and sum(isinstance(x, Linear) for x in args) > 1:
            raise self._missing("Transposition (reverse-mode differentiation)",
                                "It is not linear in several operands at once.")
        cts: list[Any] = []
        for x, rule in zip(args, rules, strict=True):
            if not isinstance(x, Linear):
                cts.append(None)
            elif isinstance(ct, Zero):
                cts.append(Zero(x.aval))
            elif rule is None:
                raise self._missing("Transposition (reverse-mode differentiation)",
                                    "It is not linear in that operand.")
            else:
                cts.append(unbroadcast(rule(ct, *args, **params), x.aval))
        return cts

    # ---------------------------------------------------------------- batching

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None],
              **params: Any) -> tuple[Any, int]:
        ranks = [len(aval_of(x).shape) - (d is not None) for x, d in zip(args, dims, strict=True)]
        rank = max(ranks)
        target = next((d for d, r in zip(dims, ranks, strict=True) if d is not None and r == rank), 0)
        aligned = [align(x, d, rank, target) for x, d in zip(args, dims, strict=True)]
        return self.bind(*aligned, **params), target


# Names of the functions that promote, for errors.
_PROMOTING = {
    "add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "rem": "remainder", "max": "maximum",
    "min": "minimum", "atan2": "arctan2", "pow": "power", "nextafter": "nextafter", "select_n": "where",
    "clamp": "clip", "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "shift_left": "left_shift", "shift_right_arithmetic": "right_shift"}


def _same(ct: Any, *operands: Any) -> Any:
    return ct


add_any = Elementwise("add_any", np.add, ANY, "Sum of two tangents or cotangents of one value.",
                      operands="x y", jvp=(_same, _same), transpose=(_same, _same), linear=True)


def no_derivative(function: str, operand: str, error: type[Exception] = NotImplementedError) -> Callable[..., Any]:
    """A rule for an operand in which the derivative is not known here; `error` is what JAX raises."""
    def rule(*args: Any) -> Any:
        raise error(f"The derivative of {function} in {operand} is not implemented.")

    return rule
