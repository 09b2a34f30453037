"""Functions with derivatives of their own: `custom_jvp` and `custom_vjp`.

    @custom_jvp
    def log1pexp(x): return log(1 + exp(x))
    log1pexp.defjvp(lambda primals, tangents: ...)

Called where nothing is being transformed, such a function just runs; where operations run at once, its rule is asked
for derivatives. Otherwise its body is traced to a jaxpr that one equation holds (`custom_calls`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial, update_wrapper
from typing import Any, NamedTuple

import numpy as np

from anima import errors, tree
from anima.config import config
from anima.core import dtypes
from anima.core.array import ConcreteArray
from anima.core.avals import ShapedArray, standing, tangent_aval
from anima.core.jaxpr import ClosedJaxpr
from anima.core.primitive import Zero
from anima.core.stage import (
    Traced,
    close,
    trace_pytrees,
)
from anima.core.state import current
from anima.core.trace import CompileTimeTrace, Trace, Tracer, aval_of, under
from anima.ops.broadcast import as_operand, instantiate
from anima.ops.elementwise import convert
from anima.transforms.custom_calls import custom_jvp_call_p, custom_vjp_call_p
from anima.transforms.forward import JVPTrace
from anima.transforms.symbolic_zeros import CustomVJPPrimal, tangents_for_user
from anima.transforms.vmap import BatchTrace, BatchTracer
from anima.util import calling, fun_name

_TOLD = frozenset((type(None), bool, int, str))  # types of values that say all about arguments
_MOST_RECALLED = 1024
_AS_THEY_ARE = (bool, int, float, complex, np.generic, np.ndarray)  # residuals that come back so


class Recalled(partial[Any]):
    """A rule that is the same thing in each call."""


def _runs_at_once(trace: Trace | None) -> bool:
    """Whether operations are differentiated and mapped at most, not recorded."""
    while isinstance(trace, BatchTrace) or trace.derives:
        trace = trace.parent
    return trace.is_ground


class _Found:
    """The structure of results, once a rule has given some."""

    tree: Any = None


class TracedBody(NamedTuple):
    """A function's body: the values it closes over come before its own flat arguments. No program (and no values, and
    the structure of results is yet to be found) where its rule alone is asked."""

    jaxpr: ClosedJaxpr | None
    consts: list[Any]
    flat: list[Any]
    in_tree: Any
    out_tree: Any
    nondiff: dict[int, Any]

    def unflatten(self, outs: Sequence[Any]) -> Any:
        return tree.unflatten(self.out_tree.tree if isinstance(self.out_tree, _Found) else self.out_tree, outs)


class Custom:
    """A function, its arguments that are not differentiated, and how to call it."""

    __slots__ = ("__dict__", "__weakref__", "recalled")  # what it recalls is no part of what it is (see `core.intern`)

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: Sequence[int] = (),
                 nondiff_argnames: Sequence[str] = ()):
        update_wrapper(self, fun, updated=())
        self.fun = fun
        self.is_ours = str(getattr(fun, "__module__", None)).partition(".")[0] == "anima"
        self.recalled: dict[Any, tuple[TracedBody, Recalled]] = {}
        names = list(inspect.signature(fun).parameters) if nondiff_argnames else []
        unknown = [n for n in nondiff_argnames if n not in names]
        if unknown:
            raise ValueError(f"nondiff_argnames names {unknown}, but the arguments of {fun_name(fun)} are {names}.")
        self.nondiff_argnums = (*nondiff_argnums, *(names.index(n) for n in nondiff_argnames))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else partial(self, instance)

    def __getattr__(self, name: str) -> Any:
        """A function with rules of two kinds takes both: `defvjp` around `def_vmap`."""
        inner = self.__dict__.get("fun")
        if name in ("defjvp", "defjvps", "defvjp", "def_vmap") and isinstance(inner, Custom):
            return getattr(inner, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _positional(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments as positional ones, defaults filled in."""
        try:
            bound = inspect.signature(self.fun).bind(*args, **kwargs)
        except ValueError:  # a callable without a signature
            return tuple(args)
        bound.apply_defaults()
        named = [name for name in bound.kwargs if name in kwargs]  # the others have their defaults
        if named:
            raise TypeError(f"The input arguments to the {type(self).__name__}-decorated function "
                            f"{fun_name(self.fun)} could not be resolved to positional-only arguments. Binding failed "
                            "with the error:\nThe following keyword arguments could not be resolved to positions: "
                            f"{', '.join(named)}")
        return bound.args

    def _apart(self, args: Sequence[Any]) -> tuple[dict[int, Any], tuple[Any, ...]]:
        """The arguments that are not differentiated, by their places, and the others."""
        nondiff = {i % len(args): args[i] for i in self.nondiff_argnums}
        return nondiff, tuple(a for i, a in enumerate(args) if i not in nondiff)

    def trace_body(self, args: Sequence[Any], kwargs: dict[str, Any]) -> TracedBody:
        """The function's body at these arguments."""
        args = self._positional(args, kwargs)
        nondiff, rest = self._apart(args)
        leaves, in_tree = tree.flatten(rest)
        flat = list(map(as_operand, leaves))

        def whole(*given: Any) -> Any:
            rest = iter(given)
            return self.fun(*(nondiff[i] if i in nondiff else next(rest) for i in range(len(args))))

        jaxpr, consts, out_tree = trace_pytrees(whole, in_tree, list(map(aval_of, flat)),
                                                Traced(fun_name(self.fun), by=type(self).__name__))
        return TracedBody(*close(jaxpr, consts), flat, in_tree, out_tree, nondiff)

    def derived(self, args: Sequence[Any]) -> Any:
        """What the rule gives where operations run at once, or the function does where nothing that it takes has a
        tangent: neither is traced, so that they may be any that take arrays. NotImplemented elsewhere: where an
        argument that is not to be differentiated has a tangent, or what is closed over, of which the program tells."""
        trace = current.trace
        nondiff, rest = self._apart(args)
        try:
            if not any(map(trace.moves, tree.leaves(args))):
                leaves, out_tree = tree.flatten(under(trace.parent, self, *args))
                return tree.unflatten(out_tree, leaves)  # nodes of users' classes belong to the trace that makes them
            if (not isinstance(trace, JVPTrace) or any(map(trace.moves, tree.leaves(nondiff)))
                    or (not self.is_ours and not _runs_at_once(trace))):
                return NotImplemented
            leaves, in_tree = tree.flatten(rest)
            t = TracedBody(None, [], [*map(as_operand, leaves)], in_tree, _Found(), nondiff)
            return self.call(t, self.rule(t))
        except errors.UnexpectedTracerError:
            return NotImplemented

    def call(self, t: TracedBody, rule: Callable[..., Any]) -> Any:
        """One equation, or what the trace makes of it."""
        raise NotImplementedError

    def rule(self, t: TracedBody) -> Callable[..., Any]:
        """What the equation has for a rule."""
        raise NotImplementedError

    def just_runs(self, args: Any, kwargs: Any, mapped: bool = True) -> bool:
        """Whether nothing is recorded or differentiated; mapped by vmap the function may be, if `mapped`. TypeError for
        arguments that cannot be positional."""
        if kwargs:
            self._positional(args, kwargs)
        trace = current.trace
        while mapped and isinstance(trace, BatchTrace):
            trace = trace.parent
        others = (BatchTracer,) if mapped else ()
        at_once = trace.is_ground or isinstance(trace, CompileTimeTrace)
        return at_once and not any(isinstance(x, Tracer) and not isinstance(x, others)
                                   for x in tree.leaves((args, kwargs)))

    def _in_order(self, nondiff: dict[int, Any]) -> list[Any]:
        return [nondiff[i] for i in sorted(nondiff)]


class custom_jvp(Custom):
    """A function with a rule for its tangents.

    `defjvp(rule)`: `rule(primals, tangents) -> (out, tangent_out)`, after the values of `nondiff_argnums`
    where there are any. `defjvps(*rules)`: one `rule(tangent, out, *primals)` an argument, or None.
    With `symbolic_zeros=True`, tangents that are zero come as `SymbolicZero`s.

    >>> @custom_jvp
    ... def f(x): return x * 2.0
    >>> @f.defjvp
    ... def f_jvp(primals, tangents): return f(*primals), tangents[0] * 3.0
    >>> grad(f)(1.0)
    Array(3., dtype=float32, weak_type=True)
    """

    jvp: Callable[..., Any] | None = None
    symbolic_zeros = False

    def defjvp(self, jvp: Callable[..., Any], symbolic_zeros: bool = False) -> Callable[..., Any]:
        self.jvp, self.symbolic_zeros = jvp, symbolic_zeros
        return jvp

    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        if self.nondiff_argnums:
            raise TypeError("Can't use ``defjvps`` with ``nondiff_argnums``.")

        def jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
            out = self(*primals)
            terms = [rule(t, out, *primals) for rule, t in zip(jvps, tangents, strict=True) if rule is not None]
            total = terms[0] if terms else tree.map(lambda x: instantiate(Zero(tangent_aval(aval_of(x)))), out)
            for term in terms[1:]:
                total = tree.map(lambda a, b: a + b, total, term)
            return out, total

        self.defjvp(jvp)

    @errors.api_boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.jvp is None:
            raise AttributeError(f"No JVP defined for custom_jvp function {fun_name(self.fun)} using defjvp.")
        if self.just_runs(args, kwargs):
            return self.fun(*args, **kwargs)
        recalled = self.is_ours and current.trace.recalls and not kwargs
        if current.trace.derives and not recalled:
            args, kwargs = self._positional(args, kwargs), {}
            if (found := self.derived(args)) is not NotImplemented:
                return found
        t, rule = self._recalled(args) if recalled else self._traced(args, kwargs)
        return self.call(t, rule)

    def call(self, t: TracedBody, rule: Callable[..., Any]) -> Any:
        outs = custom_jvp_call_p.bind(*t.consts, *t.flat, call_jaxpr=t.jaxpr, jvp=rule, num_consts=len(t.consts),
                                      name=fun_name(self.fun), symbolic_zeros=self.symbolic_zeros)
        return t.unflatten(outs)

    def rule(self, t: TracedBody) -> Callable[..., Any]:
        return partial(self._rule, fun_name(self.fun), self._in_order(t.nondiff), t.in_tree, t.out_tree)

    def _traced(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[TracedBody, Callable[..., Any]]:
        t = self.trace_body(args, kwargs)
        return t, self.rule(t)

    def _recalled(self, args: Sequence[Any]) -> tuple[TracedBody, Callable[..., Any]]:
        """The same, which of a function of the library depends on the types of arrays and on other values alone: it is
        the same thing in each call."""
        told = [(type(x), x) if type(x) in _TOLD else standing(aval_of(x)) if isinstance(x, (ConcreteArray, Tracer))
                else None for x in args]
        if not self.is_ours or None in told:
            return self._traced(args, {})
        flat = [x for x in args if type(x) not in _TOLD]
        found = self.recalled.get(key := (config.call_key(), *told))
        if found is None:
            t, rule = self._traced(args, {})
            if t.consts or [*map(id, t.flat)] != [*map(id, flat)]:
                return t, rule
            if len(self.recalled) >= _MOST_RECALLED:
                self.recalled.clear()
            found = self.recalled[key] = t._replace(flat=[]), Recalled(rule)
        return found[0]._replace(flat=flat), found[1]

    def _rule(self, name: str, nondiff: Sequence[Any], in_tree: Any, out_tree: Any,
              primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        pair = self.jvp(*nondiff, tree.unflatten(in_tree, primals),  # type: ignore[misc]
                        tree.unflatten(in_tree, tangents_for_user(tangents, self.symbolic_zeros)))
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"Custom JVP rule {fun_name(self.jvp)} for function {name} must produce a pair (list or "
                            f"tuple of length two) representing primal and tangent outputs, but got {pair}.")
        outs, primal_tree = tree.flatten(pair[0])
        out_tangents, tangent_tree = tree.flatten(pair[1])
        if primal_tree != tangent_tree:
            raise TypeError(f"Custom JVP rule {fun_name(self.jvp)} for function {name} must produce primal and tangent "
                            f"outputs with equal container (pytree) structures, but got {primal_tree} and "
                            f"{tangent_tree} respectively.")
        if isinstance(out_tree, _Found):
            out_tree.tree = primal_tree
        elif primal_tree != out_tree:
            raise TypeError(f"Custom JVP rule {fun_name(self.jvp)} for function {name} must produce a pair of outputs "
                            f"with the structure of the function's own output, {out_tree}, but got {primal_tree}.")
        for out, tangent in zip(outs, out_tangents, strict=True):
            expected, got = tangent_aval(aval_of(out)), _tangent_aval_of(tangent)
            if (expected.shape, expected.dtype) != (got.shape, got.dtype):
                raise TypeError(f"Custom JVP rule must produce primal and tangent outputs with corresponding shapes "
                                f"and dtypes. Expected {expected.str_short()} (tangent type of "
                                f"{aval_of(out).str_short()}) but got {got.str_short()}.")
        return outs, out_tangents


def _tangent_aval_of(x: Any) -> ShapedArray:
    return x.aval if isinstance(x, Zero) else aval_of(x)


class custom_vjp(Custom):
    """A function with a rule for its cotangents.

    `defvjp(fwd, bwd)`: `fwd(*args) -> (out, residuals)`; `bwd(residuals, ct) -> tuple of cotangents`, one for
    each differentiable argument (None: zero). Values of `nondiff_argnums` come first to `bwd`, in place to `fwd`;
    UnexpectedTracerError if one is traced. Numbers and arrays of Python's and NumPy's among the residuals reach `bwd`
    as they are.

    With `symbolic_zeros=True`, the leaves of `fwd`'s arguments are `CustomVJPPrimal`s, which say what a gradient is
    wanted for, and cotangents that are zero come as `SymbolicZero`s. `optimize_remat` needs nothing to be done:
    what only unused residuals need is never computed.
    """

    fwd: Callable[..., Any] | None = None
    bwd: Callable[..., Any] | None = None
    symbolic_zeros = False
    optimize_remat = False

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any], symbolic_zeros: bool = False,
               optimize_remat: bool = False) -> None:
        self.fwd, self.bwd = fwd, bwd
        self.symbolic_zeros, self.optimize_remat = symbolic_zeros, optimize_remat

    @errors.api_boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.fwd is None or self.bwd is None:
            raise AttributeError(f"No VJP defined for custom_vjp function {fun_name(self.fun)} using defvjp.")
        if self.nondiff_argnums:
            self._refuse_tracers(self._apart(self._positional(args, kwargs))[0])
        if self.just_runs(args, kwargs):
            return self.fun(*args, **kwargs)
        if current.trace.derives:
            args, kwargs = self._positional(args, kwargs), {}
            if (found := self.derived(args)) is not NotImplemented:
                return found
        t = self.trace_body(args, kwargs)
        return self.call(t, self.rule(t))

    def _refuse_tracers(self, nondiff: dict[int, Any]) -> None:
        """UnexpectedTracerError for a tracer among these arguments: its derivative would be lost."""
        for k, x in nondiff.items():
            for leaf in tree.leaves(x):
                if isinstance(leaf, Tracer):
                    raise errors.UnexpectedTracerError(
                        f"The custom_vjp function {fun_name(self.fun)} was given a tracer as argument {k}, which "
                        "nondiff_argnums names. Such arguments are not to be traced. Fix: leave it out of "
                        "nondiff_argnums, and have the rule give None, or zeros, as its cotangent. "
                        f"{leaf.origin_text()}".rstrip())

    def call(self, t: TracedBody, rule: Callable[..., Any]) -> Any:
        outs = custom_vjp_call_p.bind(*t.consts, *t.flat, call_jaxpr=t.jaxpr, fwd=rule, bwd=self.bwd,
                                      num_consts=len(t.consts), name=fun_name(self.fun),
                                      symbolic_zeros=self.symbolic_zeros)
        return t.unflatten(outs)

    def rule(self, t: TracedBody) -> Callable[..., Any]:
        return partial(self._forward, fun_name(self.fun), t.nondiff, t.in_tree, t.out_tree)

    def _forward(self, name: str, nondiff: dict[int, Any], in_tree: Any, out_tree: Any, primals: Sequence[Any],
                 tangents: Sequence[Any]) -> tuple[list[Any], list[Any], Callable[..., Any]]:
        given = primals
        if self.symbolic_zeros:
            given = [CustomVJPPrimal(p, not isinstance(t, Zero)) for p, t in zip(primals, tangents, strict=True)]
        rest = iter(tree.unflatten(in_tree, given))
        count = len(nondiff) + len(in_tree.children())
        args = [nondiff[i] if i in nondiff else next(rest) for i in range(count)]
        pair = self.fwd(*args)  # type: ignore[misc]
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"Custom VJP fwd rule {fun_name(self.fwd)} for function {name} must produce a pair (list "
                            f"or tuple of length two) where the first element represents the primal output and the "
                            f"second element represents residuals, but got {pair}.")
        outs, got_tree = tree.flatten(pair[0])
        if isinstance(out_tree, _Found):
            out_tree.tree = got_tree
        elif got_tree != out_tree:
            raise TypeError(f"Custom VJP fwd rule {fun_name(self.fwd)} for function {name} must produce a primal "
                            f"output with container (pytree) structure {out_tree}, but got {got_tree}.")
        residuals, res_tree = tree.flatten(pair[1])
        traced = [not isinstance(r, _AS_THEY_ARE) for r in residuals]
        avals = [aval_of(p) for p in primals]

        def bwd(res: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
            arrays = iter(res)
            kept = [next(arrays) if t else r for t, r in zip(traced, residuals, strict=True)]
            before = self._in_order(nondiff)
            names = [*(f"nondiff_argnums[{k}]" for k in range(len(before))), "residuals", "cotangent"]
            with calling("custom_vjp", self.bwd, names):  # type: ignore[arg-type]
                grads = self.bwd(*before, tree.unflatten(res_tree, kept),  # type: ignore[misc]
                                 tree.unflatten(got_tree, tangents_for_user(cts, self.symbolic_zeros)))
            return self._flat_grads(name, grads, in_tree, avals)

        return outs, [r for r, t in zip(residuals, traced, strict=True) if t], bwd

    def _flat_grads(self, name: str, grads: Any, in_tree: Any, avals: Sequence[ShapedArray]) -> list[Any]:
        arity = len(in_tree.children())
        if not isinstance(grads, (tuple, list)) or len(grads) != arity:
            raise TypeError(f"Custom VJP bwd rule {fun_name(self.bwd)} for function {name} must produce a tuple of "
                            f"length equal to the number of differentiable arguments ({arity}), but got {grads}.")
        try:
            flat = tree.broadcast_prefix(tuple(grads), tree.unflatten(in_tree, range(in_tree.num_leaves)),
                                         is_leaf=lambda x: x is None)
        except ValueError:
            raise TypeError(
                f"Custom VJP bwd rule {fun_name(self.bwd)} for function {name} must produce an output with the same "
                "container (pytree) structure as the args tuple of the primal function, but got bwd output structure "
                f"{tree.structure(grads)} for primal input structure {in_tree}.") from None
        return [self._checked_grad(name, grad, aval) for grad, aval in zip(flat, avals, strict=True)]

    def _checked_grad(self, name: str, grad: Any, aval: ShapedArray) -> Any:
        expected = tangent_aval(aval)
        if grad is None or isinstance(grad, Zero) or expected.dtype != aval.dtype:
            return Zero(expected)
        got = aval_of(grad)
        if (got.shape, got.dtype) == (expected.shape, expected.dtype):
            return grad
        if expected.dtype in dtypes.SMALL_FLOATS and got.shape == expected.shape and got.dtype in dtypes.FLOATS:
            return grad  # 8 bits are few for a cotangent: rules may give more
        promoted, _ = dtypes.lattice_result_type((got.dtype, got.weak_type), (expected.dtype, False))
        fits = dtypes.issubdtype(got.dtype, np.floating) if dtypes.issubdtype(expected.dtype, np.floating) else (
            dtypes.issubdtype(got.dtype, np.inexact))  # of any width: rules compute in more digits, or in fewer
        if got.shape != expected.shape or not (fits or (got.weak_type and promoted == expected.dtype)):
            raise ValueError(f"Custom VJP bwd rule for function {name} must produce cotangents with the shapes and "
                             f"dtypes of the arguments: expected {expected.str_short()}, got {got.str_short()}.")
        return convert(grad, expected.dtype)
