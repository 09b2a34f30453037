"""`while_loop` and `fori_loop`: loops whose number of steps may be known only when they run.

A `fori_loop` between known bounds is a scan; any other is a while. Where the predicate is batched, the
whole loop is mapped over its lanes, each of which runs to its own end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima import tree
from anima.control.common import differences, reorder, strong_like, trace_function
from anima.control.cond import batch_lanes
from anima.control.scan import scan_p
from anima.core import dtypes
from anima.core.avals import ShapedArray, tangent_aval
from anima.core.jaxpr import ClosedJaxpr
from anima.core.primitive import Primitive, Zero
from anima.core.stage import eval_numpy
from anima.core.trace import Tracer, aval_of
from anima.ops.broadcast import instantiate
from anima.ops.elementwise import add, convert, lt
from anima.transforms.forward import jvp_jaxpr
from anima.transforms.vmap import batch_jaxpr, move_to
from anima.util import fun_name, split_list


class While(Primitive):
    """Operands: constants of the condition, constants of the body, initial carry; results: final carry."""

    multiple_results = True

    def infer(self, *avals: ShapedArray, body_jaxpr: ClosedJaxpr, **params: Any) -> list[ShapedArray]:
        return body_jaxpr.out_avals

    def eval(self, *args: np.ndarray, cond_jaxpr: ClosedJaxpr, body_jaxpr: ClosedJaxpr, cond_nconsts: int,
             body_nconsts: int) -> list[np.ndarray]:
        cond_consts, body_consts, carry = split_list(args, [cond_nconsts, body_nconsts])
        while eval_numpy(cond_jaxpr, [*cond_consts, *carry])[0]:
            carry = eval_numpy(body_jaxpr, [*body_consts, *carry])
        return carry

    def eval_extended(self, avals: Sequence[ShapedArray], args: Sequence[Any], params: dict[str, Any]) -> Any:
        return self.eval(*args, **params)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, cond_jaxpr: ClosedJaxpr, body_jaxpr: ClosedJaxpr,
            cond_nconsts: int, body_nconsts: int) -> tuple[list[Any], list[Any]]:
        cond_consts, body_consts, carry = split_list(primals, [cond_nconsts, body_nconsts])
        _, const_t, carry_t = split_list(tangents, [cond_nconsts, body_nconsts])
        const_nz = [not isinstance(t, Zero) for t in const_t]
        carry_nz = [not isinstance(t, Zero) for t in carry_t]
        while True:
            body, mask = jvp_jaxpr(body_jaxpr, (*const_nz, *carry_nz), tuple(carry_nz))
            if mask == carry_nz:
                break
            carry_nz = [a or b for a, b in zip(carry_nz, mask, strict=True)]
        given_consts = [t for t in const_t if not isinstance(t, Zero)]
        given_carry = [instantiate(t) for t, nz in zip(carry_t, carry_nz, strict=True) if nz]
        nb, nc, dc = len(body_consts), len(carry), len(given_consts)
        order = [*range(nb), *range(nb + nc, nb + nc + dc), *range(nb, nb + nc), *range(nb + nc + dc, len(body.in_avals))]
        cond = _ignore_last(cond_jaxpr, [aval_of(t) for t in given_carry])
        outs = self.bind(*cond_consts, *body_consts, *given_consts, *carry, *given_carry, cond_jaxpr=cond,
                         body_jaxpr=reorder(body, order), cond_nconsts=cond_nconsts, body_nconsts=nb + dc)
        found = iter(outs[nc:])
        return outs[:nc], [next(found) if nz else Zero(tangent_aval(aval_of(o)))
                           for nz, o in zip(carry_nz, outs[:nc], strict=True)]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, cond_jaxpr: ClosedJaxpr,
              body_jaxpr: ClosedJaxpr, cond_nconsts: int, body_nconsts: int) -> tuple[Any, Any]:
        params = dict(cond_jaxpr=cond_jaxpr, body_jaxpr=body_jaxpr, cond_nconsts=cond_nconsts,
                      body_nconsts=body_nconsts)
        cond_dims, const_dims, carry_dims = split_list(dims, [cond_nconsts, body_nconsts])
        mapped = [d is not None for d in carry_dims]
        const_zero = [None if d is None else 0 for d in const_dims]
        while True:
            force = tuple(0 if m else None for m in mapped)
            body, out_dims = batch_jaxpr(body_jaxpr, size, (*const_zero, *force), force)
            grown = [m or d is not None for m, d in zip(mapped, out_dims, strict=True)]
            if grown == mapped:
                break
            mapped = grown
        cond_in = (*(None if d is None else 0 for d in cond_dims), *force)
        cond, (pred_dim,) = batch_jaxpr(cond_jaxpr, size, cond_in)
        if pred_dim is not None:
            return batch_lanes(self, size, args, dims, params)
        want = [*(d is not None for d in (*cond_dims, *const_dims)), *mapped]
        moved = [move_to(a, d, 0, size) if m else a for a, d, m in zip(args, dims, want, strict=True)]
        outs = self.bind(*moved, cond_jaxpr=cond, body_jaxpr=body, cond_nconsts=cond_nconsts, body_nconsts=body_nconsts)
        return outs, list(force)


while_p = While("while")


def _ignore_last(closed: ClosedJaxpr, avals: Sequence[ShapedArray]) -> ClosedJaxpr:
    from_end = [type(closed.jaxpr.invars[0])(a) for a in avals] if closed.jaxpr.invars else []
    return closed.replace(jaxpr=closed.jaxpr.replace(invars=[*closed.jaxpr.invars, *from_end]))


def while_loop(cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init_val: Any) -> Any:
    """Applies `body_fun` as long as `cond_fun` holds, starting from `init_val`.

    Args:
      cond_fun: carry -> scalar bool.
      body_fun: carry -> carry of the same structure, shapes and dtypes.
      init_val: a pytree of arrays.

    Raises:
      TypeError: for a condition that is not a scalar bool, or a carry that changes its type (leaf by leaf).
    """
    if not (callable(cond_fun) and callable(body_fun)):
        raise TypeError("lax.while_loop: body_fun and cond_fun arguments should be callable.")
    leaves, in_tree = tree.flatten(init_val)
    args_tree = tree.structure((init_val,))
    for attempt in range(2):
        avals = list(map(aval_of, leaves))
        body, body_consts, out_tree = trace_function(body_fun, args_tree, avals, "while_loop")
        if out_tree != in_tree:
            raise TypeError(f"body_fun output and input must have identical types, but they differ: the input has "
                            "structure "
                            f"{in_tree}, the output {out_tree}. Revise {fun_name(body_fun)}.")
        promoted = strong_like(leaves, body.out_avals)
        if attempt or all(a is b for a, b in zip(promoted, leaves, strict=True)):
            break
        leaves = promoted
    problems = differences(in_tree, avals, body.out_avals, "carry")
    if problems:
        raise TypeError("body_fun output and input must have identical types, but they "
                        "differ:\n\n" + "\n".join(problems)
                        + f"\n\nRevise {fun_name(body_fun)} so that all output types match the corresponding input "
                          "types.")
    cond, cond_consts, cond_tree = trace_function(cond_fun, args_tree, avals, "while_loop")
    if len(cond.out_avals) != 1 or cond_tree.node_data() is not None:
        raise TypeError(f"cond_fun must return a boolean scalar, but got pytree {cond_tree}.")
    (pred,) = cond.out_avals
    if pred.shape or pred.dtype != np.dtype(bool):
        raise TypeError(f"cond_fun must return a boolean scalar, but got output type(s) [{pred!r}].")
    outs = while_p.bind(*cond_consts, *body_consts, *leaves, cond_jaxpr=cond, body_jaxpr=body,
                        cond_nconsts=len(cond_consts), body_nconsts=len(body_consts))
    return tree.unflatten(in_tree, outs)


def fori_loop(lower: Any = None, upper: Any = None, body_fun: Callable[[Any, Any], Any] = None,  # type: ignore[assignment]
              init_val: Any = None, *, unroll: int | bool | None = None, start: Any = None, stop: Any = None) -> Any:
    """Applies `body_fun(i, carry)` for i from `lower` up to `upper` (not included).

    Known bounds give a scan, which every transformation goes through; others a while loop. `start` and
    `stop` are accepted as names of the bounds.
    """
    lower, upper = (start if lower is None else lower), (stop if upper is None else upper)
    if not callable(body_fun):
        raise TypeError("lax.fori_loop: body_fun argument should be callable.")
    for name, bound in (("lower", lower), ("upper", upper)):
        if aval_of(bound).shape or not dtypes.issubdtype(aval_of(bound).dtype, np.integer):
            raise TypeError(f"lax.fori_loop: {name} must be a scalar integer, got {aval_of(bound).str_short()}.")
    kind, weak = dtypes.lattice_result_type(*((aval_of(b).dtype, aval_of(b).weak_type) for b in (lower, upper)))
    known = not isinstance(lower, Tracer) and not isinstance(upper, Tracer)
    if known:
        first = lower if isinstance(lower, int) else convert(lower, kind, weak)
        return _fori_scan(int(lower), int(upper), first, body_fun, init_val, unroll)
    if unroll is not None:
        raise ValueError("Can only use `unroll` in `fori_loop` if the loop bounds are statically known.")

    def body(carry: Any) -> Any:
        i, stop, value = carry
        return add(i, 1), stop, body_fun(i, value)

    start = (convert(lower, kind, weak), convert(upper, kind, weak), init_val)
    return while_loop(lambda c: lt(c[0], c[1]), body, start)[2]


def _fori_scan(lower: int, upper: int, first: Any, body_fun: Callable[[Any, Any], Any], init_val: Any,
               unroll: int | bool | None) -> Any:
    from_tree = tree.structure((first, init_val))
    leaves = tree.leaves((first, init_val))
    in_tree = tree.structure(((first, init_val),))

    def body(carry: Any) -> Any:
        i, value = carry
        return add(i, 1), body_fun(i, value)

    for attempt in range(2):
        avals = list(map(aval_of, leaves))
        closed, consts, out_tree = trace_function(body, in_tree, avals, "fori_loop")
        if out_tree != from_tree:
            raise TypeError(f"body_fun output and input must have identical types, but they differ: the input has "
                            "structure "
                            f"{tree.structure(init_val)}, the output {out_tree.children()[1]}. Revise "
                            f"{fun_name(body_fun)}.")
        promoted = strong_like(leaves, closed.out_avals)
        if attempt or all(a is b for a, b in zip(promoted, leaves, strict=True)):
            break
        leaves = promoted
    problems = differences(from_tree, avals, closed.out_avals, "carry")
    if problems:
        raise TypeError("body_fun output and input must have identical types, but they "
                        "differ:\n\n" + "\n".join(problems)
                        + f"\n\nRevise {fun_name(body_fun)} so that all output types match the corresponding input "
                          "types.")
    length = max(upper - lower, 0)
    steps = length if unroll is True else int(unroll or 1)
    outs = scan_p.call(closed, consts, leaves, [], length=length, reverse=False, unroll=max(steps, 1))
    return tree.unflatten(from_tree, outs)[1]
