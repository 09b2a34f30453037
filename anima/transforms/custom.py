"""Functions with derivatives of their own: `custom_jvp` and `custom_vjp`.

    @custom_jvp
    def log1pexp(x): return log(1 + exp(x))
    log1pexp.defjvp(lambda primals, tangents: ...)

Called where nothing is being transformed, such a function just runs. Otherwise its body is traced to a
jaxpr that one equation holds, whose rules call the user's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial, update_wrapper
from typing import Any, NamedTuple

from anima import errors, tree
from anima.config import config
from anima.core import dtypes
from anima.core.array import ConcreteArray
from anima.core.avals import ShapedArray, standing, tangent_aval
from anima.core.jaxpr import ClosedJaxpr
from anima.core.primitive import Linear, Primitive, Zero
from anima.core.stage import (
    StageTrace,
    StageTracer,
    Traced,
    close,
    eval_jaxpr,
    eval_numpy,
    trace_pytrees,
    trace_to_jaxpr,
)
from anima.core.state import current
from anima.core.trace import Trace, Tracer, aval_of, under
from anima.ops.broadcast import as_operand, instantiate, reduce_sum
from anima.ops.collective import cotangent_of
from anima.ops.elementwise import convert
from anima.transforms.discharge import Discharged, Stateful, discharge_jaxpr, is_last
from anima.transforms.linearize import PartialTrace, fill, linearize_flat
from anima.transforms.symbolic_zeros import CustomVJPPrimal, tangents_for_user
from anima.transforms.transpose import backward
from anima.transforms.vmap import BatchTrace, BatchTracer, batch_flat, move_to
from anima.util import fun_name, record


@record
class Subfunction:
    """A program as readers of programs call it, in place of the call that holds it."""

    program: ClosedJaxpr

    def call_wrapped(self, *args: Any) -> list[Any]:
        return eval_jaxpr(self.program.jaxpr, self.program.consts, *args)


class CustomCall(Stateful):
    """What the two calls share: the body runs, is inlined by the compiler, and is batched."""

    multiple_results = True

    def bind(self, *args: Any, subfuns: Sequence[Subfunction] = (), **params: Any) -> Any:
        return super().bind(*args, **params)

    def get_bind_params(self, params: dict[str, Any]) -> dict[str, Any]:
        """The parameters, and the body once more: as the first of `subfuns`, to be called."""
        return {**params, "subfuns": (Subfunction(params["call_jaxpr"]),)}

    def infer(self, *avals: ShapedArray, call_jaxpr: ClosedJaxpr, **params: Any) -> list[ShapedArray]:
        return call_jaxpr.out_avals

    def eval(self, *args: Any, call_jaxpr: ClosedJaxpr, **params: Any) -> Any:
        return eval_numpy(call_jaxpr, args)

    def eval_extended(self, avals: Sequence[ShapedArray], args: Sequence[Any], params: dict[str, Any]) -> Any:
        return self.eval(*args, **params)

    def body(self, params: dict[str, Any], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
        return params["call_jaxpr"]

    def bind_discharged(self, trace: Trace, args: Sequence[Any], own: tuple[bool, ...], params: dict[str, Any]) -> Any:
        if not is_last(trace):
            return super().bind_discharged(trace, args, own, params)
        closed = params["call_jaxpr"]
        return eval_jaxpr(closed.jaxpr, closed.consts, *args)

    def discharge(self, args: Sequence[Any], values: Sequence[Any], own: tuple[bool, ...],
                  params: dict[str, Any]) -> Discharged:
        if any(own):
            raise NotImplementedError(
                f"{params['name']}, a function with a derivative of its own, takes a reference that was made, or is "
                "mapped by vmap, inside of the function that is being transformed. Make it outside of that.\n"
                f"  {errors.user_line()}")
        jaxpr, _ = discharge_jaxpr(params["call_jaxpr"], own)
        return values, {**params, "call_jaxpr": jaxpr}, {}


class CustomJVPCall(CustomCall):
    """`fun(*args)`, whose tangents `jvp(*primals, *tangents)` gives (flat lists)."""

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, call_jaxpr: ClosedJaxpr,
            jvp: Callable[..., Any], num_consts: int, name: str, symbolic_zeros: bool) -> tuple[Any, Any]:
        refuse_closed_over(name, tangents[:num_consts], "custom_jvp")
        outs, out_tangents = jvp(primals[num_consts:], tangents[num_consts:])
        _check_same_types(f"Custom JVP rule for function {name}", call_jaxpr.out_avals, outs)
        return outs, [Zero(a) if (a := tangent_aval(out)).dtype == dtypes.float0 else t
                      for out, t in zip(call_jaxpr.out_avals, out_tangents, strict=True)]

    def linearize(self, parent: Trace, recorder: StageTrace, primals: Sequence[Any], tangents: Sequence[Any],
                  **params: Any) -> tuple[list[Any], list[Any]]:
        """Runs the rule, and records what it does with tangents.

        What a loop or a call in it makes of primals and tangents together is recorded whole, the results of the
        function too. Then the rule, which is linear in the tangents, is linearised in them at zero.
        """
        before = len(recorder.eqns)
        outs, found = under(PartialTrace(parent, recorder), self.jvp, primals, tangents, **params)
        if not any(isinstance(x, StageTracer) and x.owner is recorder for x in outs):
            return outs, found
        del recorder.eqns[before:]
        nonzero = [not isinstance(t, Zero) for t in tangents]
        mask: list[bool] = []

        def rule(*given: Any) -> list[Any]:
            outs, found = self.jvp(primals, fill(nonzero, given, primals), **params)
            mask[:] = [not isinstance(t, Zero) for t in found]
            return [*outs, *(t for t in found if not isinstance(t, Zero))]

        given = [t for t in tangents if not isinstance(t, Zero)]
        zeros = [instantiate(Zero(aval_of(t))) for t in given]
        values, moves, linear, residuals = under(parent, linearize_flat, rule, zeros, [True] * len(given))
        moved = fill(moves, under(recorder, eval_jaxpr, linear, residuals, *given), values)
        outs = values[:len(mask)]
        return outs, fill(mask, moved[len(mask):], outs)

    def in_tangents(self, params: dict[str, Any]) -> ClosedJaxpr:
        """The function: a rule that calls it on tangents means what it computes, and is not asked again."""
        program: ClosedJaxpr = params["call_jaxpr"]
        return program

    def transpose(self, cts: Sequence[Any], *args: Any, call_jaxpr: ClosedJaxpr, **params: Any) -> list[Any]:
        """What is transposed is linear: its derivative is the function itself, whatever the rule says."""
        return backward(call_jaxpr.jaxpr, call_jaxpr.consts, args, cts)

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, call_jaxpr: ClosedJaxpr,
              jvp: Callable[..., Any], num_consts: int, **params: Any) -> tuple[Any, Any]:
        args = [a if d is None else move_to(a, d, 0, size) for a, d in zip(args, dims, strict=True)]
        dims0 = [None if d is None else 0 for d in dims]
        shared = all(d is None for d in dims)

        def fun(*xs: Any) -> list[Any]:
            nonlocal shared
            outs, out_dims = batch_flat(partial(eval_jaxpr, call_jaxpr.jaxpr, call_jaxpr.consts), size, xs, dims0)
            shared = shared and all(d is None for d in out_dims)
            return outs if shared else [move_to(o, d, 0, size) for o, d in zip(outs, out_dims, strict=True)]

        def batched_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            nonzero = [not isinstance(t, Zero) for t in tangents]
            in_dims = dims0[num_consts:]
            n = len(primals)

            def rule(*xs: Any) -> list[Any]:
                given = iter(xs[n:])
                ts = [next(given) if nz else Zero(tangent_aval(aval_of(p)))
                      for p, nz in zip(xs[:n], nonzero, strict=True)]
                outs, out_ts = jvp(xs[:n], ts)
                return [*outs, *map(instantiate, out_ts)]

            flat = [*primals, *(t for t in tangents if not isinstance(t, Zero))]
            flat_dims = [*in_dims, *(d for d, nz in zip(in_dims, nonzero, strict=True) if nz)]
            outs, out_dims = batch_flat(rule, size, flat, flat_dims)
            if shared and any(d is not None for d in out_dims):
                raise NotImplementedError(f"vmap: results of {params['name']} that its rule maps, and it does not")
            outs = outs if shared else [move_to(o, d, 0, size) for o, d in zip(outs, out_dims, strict=True)]
            return outs[: len(outs) // 2], outs[len(outs) // 2:]

        batched, consts = _closed(fun, args)
        outs = self.bind(*consts, *args, call_jaxpr=batched, jvp=batched_jvp, num_consts=len(consts) + num_consts,
                         **params)
        return outs, [None if shared else 0] * len(outs)


class CustomVJPCall(CustomCall):
    """`fun(*args)`, whose cotangents `bwd(residuals, cts)` gives after `fwd(*args) -> (outs, residuals)`."""

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, call_jaxpr: ClosedJaxpr, fwd: Callable[..., Any],
            bwd: Callable[..., Any], num_consts: int, name: str, symbolic_zeros: bool) -> tuple[Any, Any]:
        refuse_closed_over(name, tangents[:num_consts], "custom_vjp")
        outs, residuals, bwd_flat = fwd(primals[num_consts:], tangents[num_consts:])
        _check_same_types(f"Custom VJP fwd rule for function {name}", call_jaxpr.out_avals, outs)
        tangents = tangents[num_consts:]
        out_avals = tuple(tangent_aval(a) for a in call_jaxpr.out_avals)
        mask = tuple(not isinstance(t, Zero) for t in tangents)
        out_tangents = custom_lin_p.bind(*residuals, *(t for t in tangents if not isinstance(t, Zero)), bwd=bwd_flat,
                                         num_res=len(residuals), out_avals=out_avals, name=name, mask=mask)
        return outs, [Zero(a) if a.dtype == dtypes.float0 else o
                      for a, o in zip(out_avals, out_tangents, strict=True)]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, call_jaxpr: ClosedJaxpr,
              fwd: Callable[..., Any], bwd: Callable[..., Any], num_consts: int, **params: Any) -> tuple[Any, Any]:
        args = [a if d is None else move_to(a, d, 0, size) for a, d in zip(args, dims, strict=True)]
        dims0 = [None if d is None else 0 for d in dims]

        def fun(*xs: Any) -> list[Any]:
            outs, out_dims = batch_flat(partial(eval_jaxpr, call_jaxpr.jaxpr, call_jaxpr.consts), size, xs, dims0)
            return [move_to(o, d, 0, size) for o, d in zip(outs, out_dims, strict=True)]

        def batched_fwd(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any, Any]:
            inner: list[Any] = []
            zero = [isinstance(t, Zero) for t in tangents]

            def run(*xs: Any) -> list[Any]:
                ts = [Zero(tangent_aval(aval_of(x))) if z else x for x, z in zip(xs, zero, strict=True)]
                outs, res, bwd_flat = fwd(xs, ts)
                inner.append((len(outs), bwd_flat))
                return [*outs, *res]

            outs, out_dims = batch_flat(run, size, primals, dims0[num_consts:])
            n_out, bwd_flat = inner[0]
            res_dims = out_dims[n_out:]

            def batched_bwd(res: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
                given = [ct for ct in cts if not isinstance(ct, Zero)]

                def run_bwd(*xs: Any) -> list[Any]:
                    lanes = iter(xs[len(res):])
                    return bwd_flat(xs[: len(res)],
                                    [_of_lane(ct) if isinstance(ct, Zero) else next(lanes) for ct in cts])

                grads, grad_dims = batch_flat(run_bwd, size, [*res, *given], [*res_dims] + [0] * len(given))
                return [_fit(g, d, in_dim, size)
                        for g, d, in_dim in zip(grads, grad_dims, dims0[num_consts:], strict=True)]

            moved = [move_to(o, d, 0, size) for o, d in zip(outs[:n_out], out_dims[:n_out], strict=True)]
            return moved, outs[n_out:], batched_bwd

        batched, consts = _closed(fun, args)
        outs = self.bind(*consts, *args, call_jaxpr=batched, fwd=batched_fwd, bwd=bwd,
                         num_consts=len(consts) + num_consts, **params)
        return outs, [0] * len(outs)


def _fit(grad: Any, dim: int | None, in_dim: int | None, size: int) -> Any:
    """A batched cotangent for an argument mapped along `in_dim`; summed where the argument is shared."""
    if isinstance(grad, Zero):
        shape = grad.aval.shape
        return grad if in_dim is None else Zero(grad.aval.update(shape=(*shape[:in_dim], size, *shape[in_dim:])))
    return reduce_sum(move_to(grad, dim, 0, size), (0,)) if in_dim is None else move_to(grad, dim, in_dim, size)


def _of_lane(ct: Zero) -> Zero:
    """One lane of a zero that is stacked along its first dimension."""
    return Zero(ct.aval.update(shape=ct.aval.shape[1:]))


class CustomLin(Primitive):
    """The linear map that a `custom_vjp` function's derivative is, known only by its transpose."""

    multiple_results = True
    takes_refs = True  # among the residuals
    typed = False      # each operand varies along axes of its own, and results are cut as those of the function

    def infer(self, *avals: ShapedArray, out_avals: Sequence[ShapedArray], **params: Any) -> list[ShapedArray]:
        return list(out_avals)

    def _refuse(self, name: str) -> TypeError:
        return TypeError(f"can't apply forward-mode differentiation (jvp) to a custom_vjp function: {name}. "
                         "Define it with custom_jvp, or use reverse mode (grad, vjp).")

    def eval(self, *args: Any, name: str, **params: Any) -> Any:
        raise self._refuse(name)

    def refusal(self, params: dict[str, Any]) -> TypeError:
        return self._refuse(params["name"])

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, name: str, **params: Any) -> Any:
        raise self._refuse(name)

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, name: str, **params: Any) -> Any:
        raise self._refuse(name)

    def transpose(self, cts: Sequence[Any], *args: Any, bwd: Callable[..., Any], num_res: int,
                  out_avals: Sequence[ShapedArray], name: str, mask: tuple[bool, ...]) -> list[Any]:
        grads = bwd(args[:num_res], cts)
        linear = [g for g, nz in zip(grads, mask, strict=True) if nz]
        return [None] * num_res + [cotangent_of(g, a.aval) if isinstance(a, Linear) else None
                                   for g, a in zip(linear, args[num_res:], strict=True)]


custom_jvp_call_p = CustomJVPCall("custom_jvp_call")
custom_vjp_call_p = CustomVJPCall("custom_vjp_call")
custom_lin_p = CustomLin("custom_lin")


def refuse_closed_over(name: str, tangents: Sequence[Any], kind: str) -> None:
    if any(not isinstance(t, Zero) for t in tangents):
        raise errors.UnexpectedTracerError(
            f"Detected differentiation of a {kind} function ({name}) with respect to a value that it closes over. "
            f"Pass that value to the function as an argument.\n  {errors.user_line()}")


def _check_same_types(rule: str, expected: Sequence[ShapedArray], outs: Sequence[Any]) -> None:
    for k, (aval, out) in enumerate(zip(expected, outs, strict=True)):
        got = aval_of(out)
        if (got.shape, got.dtype) != (aval.shape, aval.dtype):
            raise ValueError(f"{rule} must produce a primal output with the shapes and dtypes of the function's own: "
                             f"at output {k}, expected {aval.str_short()}, got {got.str_short()}.")


def _closed(fun: Callable[..., Any], args: Sequence[Any], traced: Traced = Traced()) -> tuple[ClosedJaxpr, list[Any]]:
    jaxpr, consts = trace_to_jaxpr(fun, [aval_of(a) for a in args], traced)
    return close(jaxpr, consts)


_TOLD = frozenset((type(None), bool, int, str))  # types of values that say all about arguments
_MOST_RECALLED = 1024


class Recalled(partial[Any]):
    """A rule that is the same thing in each call."""


class TracedBody(NamedTuple):
    """A function's body: the values it closes over come before its own flat arguments."""

    jaxpr: ClosedJaxpr
    consts: list[Any]
    flat: list[Any]
    in_tree: Any
    out_tree: Any
    nondiff: dict[int, Any]


class Custom:
    """A function, its arguments that are not differentiated, and how to call it."""

    __slots__ = ("__dict__", "__weakref__", "recalled")  # what it recalls is no part of what it is (see `core.intern`)

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: Sequence[int] = (),
                 nondiff_argnames: Sequence[str] = ()):
        update_wrapper(self, fun, updated=())
        self.fun = fun
        self.is_ours = (getattr(fun, "__module__", None) or "").partition(".")[0] == "anima"
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

    def trace_body(self, args: Sequence[Any], kwargs: dict[str, Any]) -> TracedBody:
        """The function's body at these arguments."""
        args = self._positional(args, kwargs)
        nondiff = {i % len(args): args[i] for i in self.nondiff_argnums}
        leaves, in_tree = tree.flatten(tuple(a for i, a in enumerate(args) if i not in nondiff))
        flat = list(map(as_operand, leaves))

        def whole(*given: Any) -> Any:
            rest = iter(given)
            return self.fun(*(nondiff[i] if i in nondiff else next(rest) for i in range(len(args))))

        jaxpr, consts, out_tree = trace_pytrees(whole, in_tree, list(map(aval_of, flat)),
                                                Traced(fun_name(self.fun), by=type(self).__name__))
        return TracedBody(*close(jaxpr, consts), flat, in_tree, out_tree, nondiff)

    def just_runs(self, args: Any, kwargs: Any, mapped: bool = True) -> bool:
        """Whether nothing is recorded or differentiated; mapped by vmap the function may be, if `mapped`. TypeError for
        arguments that cannot be positional."""
        if kwargs:
            self._positional(args, kwargs)
        trace = current.trace
        while mapped and isinstance(trace, BatchTrace):
            trace = trace.parent
        others = (BatchTracer,) if mapped else ()
        return trace.is_ground and not any(isinstance(x, Tracer) and not isinstance(x, others)
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
        name = fun_name(self.fun)
        if self.jvp is None:
            raise AttributeError(f"No JVP defined for custom_jvp function {name} using defjvp.")
        if self.just_runs(args, kwargs):
            return self.fun(*args, **kwargs)
        t, rule = self._recalled(args) if current.trace.recalls and not kwargs else self._traced(args, kwargs)
        outs = custom_jvp_call_p.bind(*t.consts, *t.flat, call_jaxpr=t.jaxpr, jvp=rule, num_consts=len(t.consts),
                                      name=name, symbolic_zeros=self.symbolic_zeros)
        return tree.unflatten(t.out_tree, outs)

    def _traced(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[TracedBody, Callable[..., Any]]:
        t = self.trace_body(args, kwargs)
        return t, partial(self._rule, fun_name(self.fun), self._in_order(t.nondiff), t.in_tree, t.out_tree)

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
        if primal_tree != out_tree:
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
    each differentiable argument (None: zero). Values of `nondiff_argnums` come first to `bwd`, in place to `fwd`.
    Python numbers among the residuals reach `bwd` as they are, not as arrays.

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
        name = fun_name(self.fun)
        if self.fwd is None or self.bwd is None:
            raise AttributeError(f"No VJP defined for custom_vjp function {name} using defvjp.")
        if self.just_runs(args, kwargs):
            return self.fun(*args, **kwargs)
        t = self.trace_body(args, kwargs)
        forward = partial(self._forward, name, t.nondiff, t.in_tree, t.out_tree)
        outs = custom_vjp_call_p.bind(*t.consts, *t.flat, call_jaxpr=t.jaxpr, fwd=forward, bwd=self.bwd,
                                      num_consts=len(t.consts), name=name, symbolic_zeros=self.symbolic_zeros)
        return tree.unflatten(t.out_tree, outs)

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
        if got_tree != out_tree:
            raise TypeError(f"Custom VJP fwd rule {fun_name(self.fwd)} for function {name} must produce a primal "
                            f"output with container (pytree) structure {out_tree}, but got {got_tree}.")
        residuals, res_tree = tree.flatten(pair[1])
        traced = [not isinstance(r, (bool, int, float, complex)) for r in residuals]  # the others come back as they are
        avals = [aval_of(p) for p in primals]

        def bwd(res: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
            arrays = iter(res)
            kept = [next(arrays) if t else r for t, r in zip(traced, residuals, strict=True)]
            grads = self.bwd(*self._in_order(nondiff), tree.unflatten(res_tree, kept),  # type: ignore[misc]
                             tree.unflatten(out_tree, tangents_for_user(cts, self.symbolic_zeros)))
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
        promoted, _ = dtypes.lattice_result_type((got.dtype, got.weak_type), (expected.dtype, False))
        if got.shape != expected.shape or not got.weak_type or promoted != expected.dtype:
            raise ValueError(f"Custom VJP bwd rule for function {name} must produce cotangents with the shapes and "
                             f"dtypes of the arguments: expected {expected.str_short()}, got {got.str_short()}.")
        return convert(grad, expected.dtype)
