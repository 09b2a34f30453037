"""Functions that say themselves what `vmap` makes of them: `custom_vmap`.

    @custom_vmap
    def f(x): ...
    @f.def_vmap
    def rule(axis_size, in_batched, x): return ..., True      # (out, out_batched)

One equation holds the function's program and the rule. The derivative of such a function is one again, whose rule is
the derivative of the rule: `vmap` of `grad` differentiates the rule, as `grad` of `vmap` does. Where only tangents or
cotangents are batched (as in Jacobians), the function is not: no rule then. Flat rules are functions
`rule(size, batched, *args) -> (outs, outs_batched)`; what is batched is stacked along axis 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from anima import errors, tree
from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import ShapedArray, tangent_aval
from anima.core.jaxpr import ClosedJaxpr
from anima.core.primitive import Linear, Primitive, Zero
from anima.core.stage import StageTrace, eval_jaxpr, eval_numpy, trace_to_jaxpr
from anima.core.trace import Trace, aval_of, under
from anima.ops.broadcast import instantiate, reduce_sum
from anima.transforms.custom import Custom
from anima.transforms.dce import dce_jaxpr
from anima.transforms.discharge import without_refs
from anima.transforms.forward import jvp_flat, jvp_jaxpr
from anima.transforms.linearize import fill, linear_flat, linearize_jaxpr
from anima.transforms.taylor import Term, flat, grouped, taylor_jaxpr
from anima.transforms.transpose import backward, transpose_jaxpr
from anima.transforms.vmap import batch_flat, batch_jaxpr, move_to
from anima.util import fun_name

Rule = Callable[..., tuple[Sequence[Any], Sequence[bool]]]


class CustomVmapCall(Primitive):
    """`call(*args)`; batched, what `rule` gives."""

    multiple_results = maps_freely = True

    def infer(self, *avals: ShapedArray, call: ClosedJaxpr, rule: Rule) -> list[ShapedArray]:
        return call.out_avals

    def eval(self, *args: np.ndarray, call: ClosedJaxpr, rule: Rule) -> list[np.ndarray]:
        return eval_numpy(call, args)

    def eval_extended(self, avals: Sequence[ShapedArray], args: Sequence[Any], params: dict[str, Any]) -> Any:
        return self.eval(*args, **params)

    def body(self, params: dict[str, Any], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
        """The program that an equation stands for."""
        return params["call"]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, call: ClosedJaxpr,
              rule: Rule) -> tuple[list[Any], list[int | None]]:
        stacks = [x if d is None else move_to(x, d, 0, size) for x, d in zip(args, dims, strict=True)]
        outs, batched = rule(size, [d is not None for d in dims], *stacks)
        return list(outs), [0 if b else None for b in batched]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, call: ClosedJaxpr,
            rule: Rule) -> tuple[list[Any], list[Any]]:
        nonzero, moving = tuple(not isinstance(t, Zero) for t in tangents), _differentiable(call)
        both = jvp_jaxpr(call, nonzero, moving)[0]
        outs = self.bind(*primals, *(t for t in tangents if not isinstance(t, Zero)), call=both,
                         rule=partial(_jvp_rule, rule, both, nonzero, moving))
        return outs[: len(moving)], fill(moving, outs[len(moving):], outs)

    def taylor(self, order: int, terms: Sequence[Term], *, call: ClosedJaxpr, rule: Rule) -> list[Term]:
        """The function's own program on terms: no rule is known for them."""
        new, mask = taylor_jaxpr(call, order, tuple(len(t) > 1 for t in terms))
        return grouped(eval_jaxpr(new.jaxpr, new.consts, *flat(terms)), mask, order)

    def linearize(self, parent: Trace, recorder: StageTrace, primals: Sequence[Any], tangents: Sequence[Any], *,
                  call: ClosedJaxpr, rule: Rule) -> tuple[list[Any], list[Any]]:
        """Runs the function; records one equation for its linear part, which computes what it needs again: what is
        worth keeping is not known before it is batched, or not."""
        nonzero, moving = tuple(not isinstance(t, Zero) for t in tangents), _differentiable(call)
        outs = under(parent, self.bind, *primals, call=call, rule=rule)
        both, tangent = jvp_jaxpr(call, nonzero, moving)[0], _tangents(call, nonzero, moving)
        found = under(recorder, self.bind, *primals, *(t for t in tangents if not isinstance(t, Zero)), call=tangent,
                      rule=partial(_tangent_rule, rule, both, nonzero, moving)) if any(moving) else []
        return outs, fill(moving, found, outs)

    def transpose(self, cts: Sequence[Any], *args: Any, call: ClosedJaxpr, rule: Rule) -> list[Any]:
        linear = tuple(isinstance(a, Linear) for a in args)
        nonzero = tuple(not isinstance(ct, Zero) for ct in cts)
        new, mask = transpose_jaxpr(call, linear, nonzero)
        found = iter(self.bind(*(a for a in args if not isinstance(a, Linear)),
                               *(ct for ct in cts if not isinstance(ct, Zero)), call=new,
                               rule=partial(_transposed_rule, rule, new, call.in_avals, linear, nonzero, mask)))
        wanted = iter(mask)
        return [(next(found) if next(wanted) else Zero(a.aval)) if isinstance(a, Linear) else None for a in args]


custom_vmap_call_p = CustomVmapCall("custom_vmap_call")


def _differentiable(call: ClosedJaxpr) -> tuple[bool, ...]:
    return tuple(tangent_aval(a).dtype != dtypes.float0 for a in call.out_avals)


def _tangents(call: ClosedJaxpr, nonzero: tuple[bool, ...], moving: tuple[bool, ...]) -> ClosedJaxpr:
    """The program from arguments and nonzero tangents to tangents. What is linear is apart in it, in calls too, so that
    it can be transposed."""
    primal, linear, _ = linearize_jaxpr(call, nonzero, moving)
    count = len(call.in_avals)

    def run(*args: Any) -> list[Any]:
        residuals = eval_jaxpr(primal.jaxpr, primal.consts, *args[:count])[len(moving):]
        return eval_jaxpr(linear.jaxpr, linear.consts, *residuals, *args[count:])

    jaxpr, consts = trace_to_jaxpr(run, [*call.in_avals, *(tangent_aval(a) for a, nz in zip(
        call.in_avals, nonzero, strict=True) if nz)])
    part = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0]
    return ClosedJaxpr(jaxpr, consts).part(part.replace(invars=jaxpr.invars))


def _without_rule(rule: Rule, closed: ClosedJaxpr, size: int, batched: Sequence[bool],
                  args: Sequence[Any]) -> tuple[list[Any], list[bool]]:
    """The program batched as any other, with a rule for the next vmap around it."""
    dims = tuple(0 if b else None for b in batched)
    mapped = [d is not None for d in batch_jaxpr(closed, size, dims)[1]]
    new, _ = batch_jaxpr(closed, size, dims, tuple(0 if m else None for m in mapped))
    return custom_vmap_call_p.bind(*args, call=new, rule=partial(_mapped_rule, rule, size, dims, mapped)), mapped


def _mapped_rule(rule: Rule, lanes: int, inner: Sequence[int | None], mapped: Sequence[bool], size: int,
                 batched: Sequence[bool], *args: Any) -> tuple[list[Any], Sequence[bool]]:
    """A rule mapped over `lanes`, which stand behind the axis that it is about."""
    found: list[Sequence[bool]] = []

    def run(*xs: Any) -> Sequence[Any]:
        outs, outs_batched = rule(size, batched, *xs)
        found.append(outs_batched)
        return outs

    dims = [None if d is None else int(b) for d, b in zip(inner, batched, strict=True)]
    outs, out_dims = batch_flat(run, lanes, args, dims)
    return [move_to(o, d, int(b), lanes) if m else o
            for o, d, m, b in zip(outs, out_dims, mapped, found[0], strict=True)], found[0]


def _jvp_rule(rule: Rule, both: ClosedJaxpr, nonzero: Sequence[bool], moving: Sequence[bool], size: int,
              batched: Sequence[bool], *args: Any) -> tuple[list[Any], list[bool]]:
    """The derivative of a rule: of (arguments, nonzero tangents), it gives (results, tangents that move)."""
    count = len(nonzero)
    if not any(batched[:count]):
        return _without_rule(partial(_jvp_rule, rule, both, nonzero, moving), both, size, batched, args)
    given = iter(zip(args[count:], batched[count:], strict=True))
    primals, tangents, either = [], [], []
    for x, b, nz in zip(args[:count], batched[:count], nonzero, strict=True):
        t, tb = next(given) if nz else (None, False)
        x = x if b or not tb else move_to(x, None, 0, size)
        primals.append(x)
        tangents.append((t if tb or not b else move_to(t, None, 0, size)) if nz else Zero(tangent_aval(aval_of(x))))
        either.append(b or tb)
    found: list[Sequence[bool]] = []

    def run(*xs: Any) -> Sequence[Any]:
        outs, outs_batched = rule(size, either, *xs)
        found.append(outs_batched)
        return outs

    outs, out_tangents = jvp_flat(run, primals, tangents)
    moved = [instantiate(t) for t, m in zip(out_tangents, moving, strict=True) if m]
    return [*outs, *moved], [*found[0], *(b for b, m in zip(found[0], moving, strict=True) if m)]


def _tangent_rule(rule: Rule, both: ClosedJaxpr, nonzero: Sequence[bool], moving: Sequence[bool], size: int,
                  batched: Sequence[bool], *args: Any) -> tuple[list[Any], list[bool]]:
    outs, outs_batched = _jvp_rule(rule, both, nonzero, moving, size, batched, *args)
    return outs[len(moving):], outs_batched[len(moving):]


def _transposed_rule(rule: Rule, transposed: ClosedJaxpr, avals: Sequence[ShapedArray], linear: Sequence[bool],
                     nonzero: Sequence[bool], mask: Sequence[bool], size: int, batched: Sequence[bool], *args: Any,
                     ) -> tuple[list[Any], list[bool]]:
    """The transpose of a rule: of (known arguments, nonzero cotangents), it gives cotangents of the linear arguments.

    Those are all taken as batched: a lane's cotangent is its own.
    """
    known = len(linear) - sum(linear)
    if not any(batched[:known]):
        itself = partial(_transposed_rule, rule, transposed, avals, linear, nonzero, mask)
        return _without_rule(itself, transposed, size, batched, args)
    is_known = iter(batched[:known])
    in_batched = [True if lin else next(is_known) for lin in linear]
    stacked = [a.update(shape=(size, *a.shape)) for a, lin in zip(avals, linear, strict=True) if lin]
    found: list[Sequence[bool]] = []

    def run(*xs: Any) -> Sequence[Any]:
        values, lanes = iter(args[:known]), iter(xs)
        outs, outs_batched = rule(size, in_batched, *(next(lanes) if lin else next(values) for lin in linear))
        found.append(outs_batched)
        return outs

    jaxpr, consts = linear_flat(run, stacked)
    given = iter(zip(args[known:], batched[known:], strict=True))
    cts = [_fit(*next(given), out_batched, size) if nz else Zero(v.aval)
           for nz, out_batched, v in zip(nonzero, found[0], jaxpr.outvars, strict=True)]
    grads = backward(jaxpr, consts, list(map(Linear, stacked)), cts)
    return [instantiate(g) for g, m in zip(grads, mask, strict=True) if m], [True] * sum(mask)


def _fit(ct: Any, ct_batched: bool, out_batched: bool, size: int) -> Any:
    """A cotangent for a result of a rule: one for each lane, or the sum of those of the lanes that share it."""
    if out_batched:
        return ct if ct_batched else move_to(ct, None, 0, size)
    return reduce_sum(ct if ct_batched else move_to(ct, None, 0, size), (0,))


class custom_vmap(Custom):
    """A function with a rule of its own for `vmap`.

    `def_vmap(rule)`: `rule(axis_size, in_batched, *args) -> (out, out_batched)`. Where `in_batched`, of the structure
    of the arguments, is True, an argument is stacked along its leading axis; likewise results. For a vmap in a vmap,
    the rule is applied once, and mapped as any function.

    Raises:
      AttributeError: where it is called without a rule.
      ValueError: for results of the rule that are not the function's own, stacked.

    Differs from JAX: reverse mode works too, by differentiating the rule.

    >>> @custom_vmap
    ... def f(x, y): return x + y
    >>> @f.def_vmap
    ... def rule(axis_size, in_batched, x, y): return x * y, True
    >>> vmap(f)(jnp.arange(3), jnp.arange(1, 4))
    Array([0, 2, 6], dtype=int32)
    """

    vmap_rule: Callable[..., tuple[Any, Any]] | None = None

    def __init__(self, fun: Callable[..., Any]):
        super().__init__(fun)

    def def_vmap(self, vmap_rule: Callable[..., tuple[Any, Any]]) -> Callable[..., tuple[Any, Any]]:
        self.vmap_rule = vmap_rule
        return vmap_rule

    @errors.api_boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.vmap_rule is None:
            raise AttributeError(f"No batching rule defined for custom_vmap function {fun_name(self.fun)} using "
                                 "def_vmap.")
        # Of numbers and arrays of others the function might make such; as an operation it makes arrays of them.
        arrays = all(isinstance(x, Array) for x in tree.leaves((args, kwargs)))
        if arrays and self.just_runs(args, kwargs, mapped=False):
            return self.fun(*args, **kwargs)
        t = self.trace_body(args, kwargs)
        rule = partial(self._rule, len(t.consts), t.in_tree, t.out_tree, t.jaxpr.out_avals)
        outs = custom_vmap_call_p.bind(*t.consts, *t.flat, call=without_refs(t.jaxpr), rule=rule)
        return tree.unflatten(t.out_tree, outs)

    def _rule(self, num_consts: int, in_tree: Any, out_tree: Any, avals: Sequence[ShapedArray], size: int,
              batched: Sequence[bool], *args: Any) -> tuple[list[Any], list[bool]]:
        """The user's rule, on flat arguments, of which the first are what the function closes over."""
        name = fun_name(self.vmap_rule)
        if any(batched[:num_consts]):
            raise errors.UnexpectedTracerError(
                f"Detected vmap of a custom_vmap function ({fun_name(self.fun)}) with respect to a value that it "
                f"closes over. Pass that value to the function as an argument.\n  {errors.user_line()}")
        pair = self.vmap_rule(size, list(tree.unflatten(in_tree, batched[num_consts:])),  # type: ignore[misc]
                              *tree.unflatten(in_tree, args[num_consts:]))
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ValueError(f"custom vmap rule ({name}) must return a pair (output value, output batching "
                             f"specification), but got {pair}.")
        outs, got_tree = tree.flatten(pair[0])
        outs_batched, batched_tree = tree.flatten(pair[1])
        if got_tree != batched_tree:
            raise ValueError("structure of output value and output batching specification returned by custom vmap "
                             f"rule ({name}) do not match.\nOutput values: {got_tree}\nBatching spec: {batched_tree}")
        if got_tree != out_tree:
            raise ValueError(f"structure of output returned by custom vmap rule ({name}) does not match that of "
                             f"original custom-vmapped function.\nOriginal output: {out_tree}\nRule output: "
                             f"{got_tree}")
        for out, b, aval in zip(outs, outs_batched, avals, strict=True):
            expected = aval.update(shape=(size, *aval.shape)) if b else aval
            got = aval_of(out)
            if (got.shape, got.dtype) != (expected.shape, expected.dtype):
                raise ValueError(f"custom vmap rule ({name}) returned an output of type {got.str_short()} that it says "
                                 f"is {'' if b else 'not '}batched; for an axis of size {size}, and a "
                                 f"function that returns {aval.str_short()}, it must be {expected.str_short()}.")
        return outs, list(map(bool, outs_batched))
