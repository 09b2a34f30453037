"""The equations of functions with derivatives of their own, whose rules call the user's: see `custom`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from anima import errors
from anima.core import dtypes
from anima.core.avals import ShapedArray, tangent_aval
from anima.core.jaxpr import ClosedJaxpr
from anima.core.primitive import Linear, Primitive, Zero
from anima.core.stage import (
    StageTrace,
    StageTracer,
    Traced,
    close,
    eval_jaxpr,
    eval_numpy,
    trace_to_jaxpr,
)
from anima.core.state import current
from anima.core.trace import Trace, aval_of, under
from anima.ops.broadcast import instantiate, reduce_sum
from anima.ops.collective import cotangent_of
from anima.transforms.discharge import Discharged, Stateful, discharge_jaxpr, is_last
from anima.transforms.linearize import PartialTrace, fill, linearize_flat
from anima.transforms.symbolic_zeros import tangents_for_user
from anima.transforms.transpose import backward
from anima.transforms.vmap import BatchTrace, batch_flat, move_to
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
    closes_over = True

    def bind(self, *args: Any, subfuns: Sequence[Any] = (), **params: Any) -> Any:
        if "call_jaxpr" in params:
            return super().bind(*args, **params)
        if current.trace.is_ground:
            return subfuns[0].call_wrapped(*args)
        return self._bind_functions(args, *subfuns, **params)

    def _bind_functions(self, args: Sequence[Any], fun: Any, *rules: Any, symbolic_zeros: bool = False,
                        **params: Any) -> Any:
        """The call of functions of flat arguments, as interpreters of libraries hand it on: `fun` and its rules.

        What they leave in stores is what the last one of them left that was run, as where one alone is.
        """
        program, consts = _closed(fun.call_wrapped, args)
        found = self._rules(*rules, symbolic_zeros=symbolic_zeros, **params)
        outs = self.bind(*consts, *args, call_jaxpr=program, num_consts=len(consts), name=fun_name(fun),
                         symbolic_zeros=symbolic_zeros, **found)
        if any(_stores(rules[0])):
            _reset(fun)
        return outs

    def _rules(self, *rules: Any, **params: Any) -> dict[str, Any]:
        """The parameters of an equation that are its rules, by what `subfuns` has for them."""
        raise NotImplementedError

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


def _stores(fun: Any) -> list[Any]:
    return [store for store in getattr(fun, "stores", ()) if store is not None]


def _reset(fun: Any) -> Any:
    """A function that may run once more: nothing is in its stores."""
    for store in _stores(fun):
        store.reset()
    return fun


class CustomJVPCall(CustomCall):
    """`fun(*args)`, whose tangents `jvp(*primals, *tangents)` gives (flat lists)."""

    def _rules(self, jvp: Any, *, symbolic_zeros: bool) -> dict[str, Any]:  # type: ignore[override]
        def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            outs = list(_reset(jvp).call_wrapped(*primals, *tangents_for_user(tangents, symbolic_zeros)))
            return outs[:len(outs) // 2], outs[len(outs) // 2:]

        return {"jvp": rule}

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, call_jaxpr: ClosedJaxpr | None,
            jvp: Callable[..., Any], num_consts: int, name: str, symbolic_zeros: bool) -> tuple[Any, Any]:
        refuse_closed_over(name, tangents[:num_consts], "custom_jvp")
        outs, out_tangents = jvp(primals[num_consts:], tangents[num_consts:])
        if call_jaxpr is not None:
            _check_same_types(f"Custom JVP rule for function {name}", call_jaxpr.out_avals, outs)
        return outs, [Zero(a) if (a := tangent_aval(aval_of(out))).dtype == dtypes.float0 else t
                      for out, t in zip(outs, out_tangents, strict=True)]

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
              jvp: Callable[..., Any], num_consts: int, within: BatchTrace | None = None, **params: Any,
              ) -> tuple[Any, Any]:
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
                outs, out_ts = jvp(xs[:n], fill(nonzero, xs[n:], xs[:n]))
                return [*outs, *map(instantiate, out_ts)]

            flat = [*primals, *(t for t in tangents if not isinstance(t, Zero))]
            flat_dims = [*in_dims, *(d for d, nz in zip(in_dims, nonzero, strict=True) if nz)]
            outs, out_dims = batch_flat(rule, size, flat, flat_dims, within)
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

    def _rules(self, fwd: Any, bwd: Any, *, out_trees: Callable[[], Any],  # type: ignore[override]
               symbolic_zeros: bool) -> dict[str, Any]:
        def back(residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
            given = tangents_for_user(cts, symbolic_zeros)
            return list(getattr(bwd, "call_wrapped", bwd)(*residuals, *given))

        def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any], Callable[..., Any]]:
            pairs = ((x, not isinstance(t, Zero)) for x, t in zip(primals, tangents, strict=True))
            found = list(_reset(fwd).call_wrapped(*(each for pair in pairs for each in pair)))
            places = out_trees()[2]  # of arguments that are residuals as they are; None: `fwd` gives the residual
            count = places.count(None)
            given = iter(found[:count])
            return found[count:], [next(given) if k is None else primals[k] for k in places], back

        return {"fwd": rule, "bwd": None}

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, call_jaxpr: ClosedJaxpr | None,
            fwd: Callable[..., Any], bwd: Callable[..., Any], num_consts: int, name: str, symbolic_zeros: bool,
            ) -> tuple[Any, Any]:
        refuse_closed_over(name, tangents[:num_consts], "custom_vjp")
        outs, residuals, bwd_flat = fwd(primals[num_consts:], tangents[num_consts:])
        if call_jaxpr is not None:
            _check_same_types(f"Custom VJP fwd rule for function {name}", call_jaxpr.out_avals, outs)
        tangents = tangents[num_consts:]
        out_avals = tuple(tangent_aval(aval_of(out)) for out in outs)
        mask = tuple(not isinstance(t, Zero) for t in tangents)
        out_tangents = custom_lin_p.bind(*residuals, *(t for t in tangents if not isinstance(t, Zero)), bwd=bwd_flat,
                                         num_res=len(residuals), out_avals=out_avals, name=name, mask=mask)
        return outs, [Zero(a) if a.dtype == dtypes.float0 else o
                      for a, o in zip(out_avals, out_tangents, strict=True)]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, call_jaxpr: ClosedJaxpr,
              fwd: Callable[..., Any], bwd: Callable[..., Any], num_consts: int, within: BatchTrace | None = None,
              **params: Any) -> tuple[Any, Any]:
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

            outs, out_dims = batch_flat(run, size, primals, dims0[num_consts:], within)
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
    takes_zeros = True
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
