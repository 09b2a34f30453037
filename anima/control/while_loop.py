"""`while_loop` and `fori_loop`: loops whose number of steps may be known only when they run.

A `fori_loop` between known bounds is a scan; any other is a while. Where the predicate is batched, the
whole loop is mapped over its lanes, each of which runs to its own end. Reverse mode runs the loop once,
recording what the adjoint needs of each step (`tape_while`), and goes back over the tapes (`tape_scan`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima import tree
from anima.control.common import all_varying, check_carry, reorder, steady, strong_like, trace_function
from anima.control.residuals import plan_residuals
from anima.control.scan import batch_lanes, first_lanes, grow_carry, jvp_mask, linear_mask, scan_p, unroll_steps
from anima.control.tape import STEPS_AVAL, WORD, record, room_for, tape_aval, tape_scan_p
from anima.core import dtypes
from anima.core.avals import ShapedArray, tangent_aval
from anima.core.axes import joins_lanes, name_of, varying
from anima.core.jaxpr import ClosedJaxpr, Eqn, Var
from anima.core.primitive import Inner, Zero
from anima.core.refs import Ref
from anima.core.stage import StageTrace, eval_jaxpr, eval_numpy, trace_to_jaxpr
from anima.core.trace import Trace, Tracer, aval_of, under
from anima.ops.broadcast import broadcast_in_dim, shape_of
from anima.ops.elementwise import add, convert, lt, select
from anima.ops.reduce import reduce_or
from anima.transforms.dce import dce_jaxpr
from anima.transforms.discharge import Discharged, Stateful, discharge_jaxpr, open_jaxpr, refs_within
from anima.transforms.forward import jvp_jaxpr
from anima.transforms.linearize import fill, linearize_jaxpr
from anima.transforms.partition import Left, Partition
from anima.transforms.reshard import Cut
from anima.transforms.taylor import Term, flat, grouped, taylor_loop
from anima.transforms.vmap import batch_jaxpr, move_to
from anima.util import split_list


class WhileLoop(Stateful):
    """Operands: constants of the condition, constants of the body, initial carry; results: final carry."""

    multiple_results = True

    def infer(self, *avals: ShapedArray, body_jaxpr: ClosedJaxpr, **params: Any) -> list[ShapedArray]:
        return body_jaxpr.out_avals

    def inner(self, params: dict[str, Any]) -> Sequence[Inner]:
        body, first = params["body_jaxpr"], params["body_nconsts"]
        return (Inner(params["cond_jaxpr"]),
                Inner(body, first, len(body.jaxpr.invars) - first, params["cond_nconsts"]))

    def distribute(self, partition: Partition, operands: Sequence[Cut], results: Sequence[Cut], *,
                   cond_jaxpr: ClosedJaxpr, body_jaxpr: ClosedJaxpr, cond_nconsts: int, body_nconsts: int,
                   ) -> tuple[dict[str, Any], list[Left], list[Left]]:
        """All devices take the same steps, since scalars are whole."""
        cond_consts, body_consts, _ = split_list(operands, [cond_nconsts, body_nconsts])
        cond = partition.program(cond_jaxpr, [*cond_consts, *results], [()])
        body = partition.program(body_jaxpr, [*body_consts, *results], results)
        new = {"cond_jaxpr": cond, "body_jaxpr": body, "cond_nconsts": cond_nconsts, "body_nconsts": body_nconsts}
        return new, list(map(Left, [*cond_consts, *body_consts, *results])), list(map(Left, results))

    def eval(self, *args: np.ndarray, cond_jaxpr: ClosedJaxpr, body_jaxpr: ClosedJaxpr, cond_nconsts: int,
             body_nconsts: int) -> list[np.ndarray]:
        cond_consts, body_consts, carry = split_list(args, [cond_nconsts, body_nconsts])
        while eval_numpy(cond_jaxpr, [*cond_consts, *carry])[0]:
            carry = eval_numpy(body_jaxpr, [*body_consts, *carry])
        return carry

    def eval_extended(self, avals: Sequence[ShapedArray], args: Sequence[Any], params: dict[str, Any]) -> Any:
        return self.eval(*args, **params)

    def outputs(self, outs: Sequence[Any], count: int) -> tuple[list[Any], list[Any], list[Any]]:
        """The final carry (of `count` values), the tape that counts steps if there is one, and the tapes of values."""
        return list(outs[:count]), [], []

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, cond_jaxpr: ClosedJaxpr, body_jaxpr: ClosedJaxpr,
            cond_nconsts: int, body_nconsts: int) -> tuple[list[Any], list[Any]]:
        cond_consts, body_consts, carry = split_list(primals, [cond_nconsts, body_nconsts])
        sizes = [len(body_consts), len(carry)]
        given = tangents[cond_nconsts:]
        force, given = grow_carry(body_jaxpr, [not isinstance(t, Zero) for t in given], given, sizes, jvp_mask)
        nonzero = [not isinstance(t, Zero) for t in given]
        body, mask = jvp_jaxpr(body_jaxpr, tuple(nonzero), tuple(force))
        const_t, carry_t = ([t for t in ts if not isinstance(t, Zero)] for ts in split_list(given, sizes[:1]))
        # (consts, carry, tangents of consts, of carry) -> (consts and tangents, carry and tangents)
        nb, nc, db = *sizes, len(const_t)
        n_in = len(body.in_avals)
        order = [*range(nb), *range(nb + nc, nb + nc + db), *range(nb, nb + nc), *range(nb + nc + db, n_in)]
        # (carry, ys, tangents of carry, of ys) -> (carry and tangents, ys and tangents)
        n_out, dc = len(mask), sum(mask[:nc])
        out_order = [*range(nc), *range(n_out, n_out + dc), *range(nc, n_out), *range(n_out + dc, len(body.out_avals))]
        outs = self.bind(*cond_consts, *body_consts, *const_t, *carry, *carry_t, body_nconsts=nb + db,
                         cond_jaxpr=_ignore_last(cond_jaxpr, list(map(aval_of, carry_t))),
                         body_jaxpr=reorder(body, order, out_order), cond_nconsts=cond_nconsts)
        carries, steps, ys = self.outputs(outs, nc + dc)
        values = [*carries[:nc], *ys[:n_out - nc]]
        out_tangents = fill(mask, [*carries[nc:], *ys[n_out - nc:]], values)
        none = [Zero(tangent_aval(aval_of(s))) for s in steps]
        return [*values[:nc], *steps, *values[nc:]], [*out_tangents[:nc], *none, *out_tangents[nc:]]

    def taylor(self, order: int, terms: Sequence[Term], *, cond_jaxpr: ClosedJaxpr, body_jaxpr: ClosedJaxpr,
               cond_nconsts: int, body_nconsts: int) -> list[Term]:
        """The loop on operands with their Taylor coefficients, which the condition does not see."""
        count = len(terms) - cond_nconsts - body_nconsts
        body, loop, mask = taylor_loop(body_jaxpr, order, terms[cond_nconsts:], body_nconsts, count)
        consts, carry = (flat(part) for part in split_list(loop, [body_nconsts]))
        outs = self.bind(*(t[0] for t in terms[:cond_nconsts]), *consts, *carry, body_jaxpr=body,
                         cond_jaxpr=_first_of_terms(cond_jaxpr, cond_nconsts, loop[body_nconsts:]),
                         cond_nconsts=cond_nconsts, body_nconsts=len(consts))
        carries, steps, ys = self.outputs(outs, len(carry))
        found = grouped([*carries, *ys], mask, order)
        return [*found[:count], *([s] for s in steps), *found[count:]]

    def linearize(self, parent: Trace, recorder: StageTrace, primals: Sequence[Any], tangents: Sequence[Any], *,
                  cond_jaxpr: ClosedJaxpr, body_jaxpr: ClosedJaxpr, cond_nconsts: int,
                  body_nconsts: int) -> tuple[list[Any], list[Any]]:
        """Runs the loop, taping residuals; records the loop of tangents, over the tapes."""
        _, consts, carry = split_list(primals, [cond_nconsts, body_nconsts])
        sizes, given = [len(consts), len(carry)], list(tangents[cond_nconsts:])
        force, given = under(recorder, grow_carry, body_jaxpr, [not isinstance(t, Zero) for t in given], given, sizes,
                             linear_mask)
        nonzero = tuple(not isinstance(t, Zero) for t in given)
        primal, tangent, mask = linearize_jaxpr(body_jaxpr, nonzero, tuple(force))
        const_t, carry_t = ([t for t in ts if not isinstance(t, Zero)] for ts in split_list(given, sizes[:1]))
        nc, n_out = len(carry), len(mask)
        plan = plan_residuals(primal, tangent, n_out, *sizes, True)
        outs = under(parent, tape_while_p.bind, *primals, cond_jaxpr=cond_jaxpr, body_jaxpr=plan.body,
                     cond_nconsts=cond_nconsts, body_nconsts=body_nconsts)
        carries, steps, ys = tape_while_p.outputs(outs, nc)
        fixed = under(parent, eval_jaxpr, plan.outside.jaxpr, plan.outside.consts, *consts, *carry)
        found = under(recorder, tape_scan_p.call, plan.tangent, [*fixed, *const_t], carry_t,
                      [*(ys[k - nc] for k in plan.stored), *steps])
        values = [*carries, *ys[:n_out - nc]]
        out_tangents = fill(mask, found, values)
        kept = steps if self is tape_while_p else []
        none = [Zero(tangent_aval(aval_of(s))) for s in kept]
        return [*carries, *kept, *values[nc:]], [*out_tangents[:nc], *none, *out_tangents[nc:]]

    def check_refs(self, args: Sequence[Any], params: dict[str, Any]) -> None:
        super().check_refs(args[params["cond_nconsts"]:], params)  # the condition may read what the body writes to

    def with_operands(self, args: Sequence[Any], params: dict[str, Any],
                      refs: tuple[Ref, ...]) -> tuple[Sequence[Any], dict[str, Any]]:
        n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
        cond_refs, body_refs = (tuple(r for r in refs if r in refs_within(params[name]))
                                for name in ("cond_jaxpr", "body_jaxpr"))
        new = {"cond_jaxpr": open_jaxpr(params["cond_jaxpr"], cond_refs), "cond_nconsts": n_cond + len(cond_refs),
               "body_jaxpr": open_jaxpr(params["body_jaxpr"], body_refs), "body_nconsts": n_body + len(body_refs)}
        return [*cond_refs, *args[:n_cond], *body_refs, *args[n_cond:]], {**params, **new}

    def discharge(self, args: Sequence[Any], values: Sequence[Any], own: tuple[bool, ...],
                  params: dict[str, Any]) -> Discharged:
        """What the body writes to becomes carry, which the condition reads, too."""
        n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
        cond, cond_changed = discharge_jaxpr(params["cond_jaxpr"], (*own[:n_cond], *own[n_cond + n_body:]))
        if cond_changed:
            raise ValueError("The condition of a while_loop writes to an array reference of type "
                             f"{args[cond_changed[0]].aval!r}. Do it in the body.")
        body, changed = discharge_jaxpr(params["body_jaxpr"], own[n_cond:])
        count, last = len(args) - n_cond - n_body, len(body.out_avals) - len(changed)
        fixed = [k for k in range(n_body) if k not in changed]
        body = reorder(body, [*fixed, *range(n_body, n_body + count), *changed],
                       [*range(count), *range(last, len(body.out_avals)), *range(count, last)])
        jaxpr = cond.jaxpr
        known = {id(a): v for a, v, o in zip(args, jaxpr.invars[:n_cond], own, strict=False) if o}
        ends = [known.pop(id(args[n_cond + k]), None) or Var(body.in_avals[len(fixed) + count + i])
                for i, k in enumerate(changed)]
        kept = [k for k, v in enumerate(jaxpr.invars[:n_cond]) if v not in ends]
        cond = cond.replace(jaxpr=jaxpr.replace(
            invars=[*(jaxpr.invars[k] for k in kept), *jaxpr.invars[n_cond:], *ends]))
        given = [*(values[k] for k in kept), *(values[n_cond + k] for k in fixed), *values[n_cond + n_body:],
                 *(values[n_cond + k] for k in changed)]
        new = {**params, "cond_jaxpr": cond, "body_jaxpr": body, "cond_nconsts": len(kept), "body_nconsts": len(fixed)}
        return given, new, {n_cond + k: count + i for i, k in enumerate(changed)}

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, cond_jaxpr: ClosedJaxpr,
              body_jaxpr: ClosedJaxpr, cond_nconsts: int, body_nconsts: int) -> tuple[Any, Any]:
        sizes = [cond_nconsts, body_nconsts]
        cond, body, out_dims = _batched(size, cond_jaxpr, body_jaxpr, split_list(dims, sizes))
        if cond is None:
            params = {"cond_jaxpr": cond_jaxpr, "body_jaxpr": body_jaxpr, "cond_nconsts": cond_nconsts,
                      "body_nconsts": body_nconsts}
            batch = _in_step(size, args, dims, cond_jaxpr, body_jaxpr, sizes) if (
                joins_lanes(self, params, name_of(size))) else batch_lanes(self, size, args, dims, params)
            return _unchanged(*batch, args, dims, body_jaxpr, sizes)
        want = [d is not None for d in (*dims[:sum(sizes)], *out_dims)]
        moved = [move_to(a, d, 0, size) if m else a for a, d, m in zip(args, dims, want, strict=True)]
        outs = self.bind(*moved, cond_jaxpr=cond, body_jaxpr=body, cond_nconsts=cond_nconsts, body_nconsts=body_nconsts)
        return outs, out_dims


class TapeWhile(WhileLoop):
    """A while whose body gives, after the next carry, values `ys` that go to tapes.

    Results: final carry, a tape that counts the steps, the tapes of `ys`.
    """

    distribute: Any = None

    def inner(self, params: dict[str, Any]) -> Sequence[Inner]:
        return [i._replace(given=None) for i in super().inner(params)]  # it may need its first carry again

    def infer(self, *avals: ShapedArray, body_jaxpr: ClosedJaxpr, cond_nconsts: int, body_nconsts: int,
              **params: Any) -> list[ShapedArray]:
        count = len(avals) - cond_nconsts - body_nconsts
        outs = body_jaxpr.out_avals
        words = "words" in params
        steps = ShapedArray((), WORD) if words else STEPS_AVAL
        return [*outs[:count], steps, *(tape_aval(a, words) for a in outs[count:])]

    def eval(self, *args: np.ndarray, cond_jaxpr: ClosedJaxpr, body_jaxpr: ClosedJaxpr, cond_nconsts: int,
             body_nconsts: int) -> list[np.ndarray]:
        cond_consts, body_consts, carry = split_list(args, [cond_nconsts, body_nconsts])
        elements = body_jaxpr.out_avals[len(carry):]
        ys: list[list[np.ndarray]] = [[] for _ in elements]
        count = 0
        while eval_numpy(cond_jaxpr, [*cond_consts, *carry])[0]:
            room_for(count + 1, elements, next((e.source for e in body_jaxpr.eqns if e.source), None))
            outs = eval_numpy(body_jaxpr, [*body_consts, *carry])
            carry = outs[:len(carry)]
            for y, value in zip(ys, outs[len(carry):], strict=True):
                y.append(value)
            count += 1
        nothing = np.zeros((0,), np.int32)
        return [*carry, record([nothing] * count, ShapedArray((0,), nothing.dtype)), *map(record, ys, elements)]

    def outputs(self, outs: Sequence[Any], count: int) -> tuple[list[Any], list[Any], list[Any]]:
        return list(outs[:count]), [outs[count]], list(outs[count + 1:])

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, cond_jaxpr: ClosedJaxpr,
              body_jaxpr: ClosedJaxpr, cond_nconsts: int, body_nconsts: int) -> tuple[Any, Any]:
        sizes = [cond_nconsts, body_nconsts]
        count = len(args) - sum(sizes)
        outs, lane_dims = batch_lanes(self, size, args, dims, {
            "cond_jaxpr": cond_jaxpr, "body_jaxpr": body_jaxpr, "cond_nconsts": cond_nconsts,
            "body_nconsts": body_nconsts})
        cond, _, out_dims = _batched(size, cond_jaxpr, body_jaxpr, split_list(dims, sizes))
        if cond is None:
            return outs, lane_dims
        return first_lanes(outs, size, [*out_dims[:count], None, *out_dims[count:]])

    def dce(self, eqn: Eqn, used: Sequence[bool]) -> Eqn:
        """The equation without the tapes that are not used, and without operands that only they need."""
        p = eqn.params
        nb = p["body_nconsts"]
        count = len(eqn.invars) - p["cond_nconsts"] - nb
        keep = [*(True,) * count, *used[count + 1:]]
        body, used_in = dce_jaxpr(p["body_jaxpr"].jaxpr, keep)
        used_in[nb:] = [True] * count
        body = body.replace(invars=[v for v, u in zip(p["body_jaxpr"].jaxpr.invars, used_in, strict=True) if u])
        in_mask = [*(True,) * p["cond_nconsts"], *used_in]
        return eqn.replace(
            params={**p, "body_jaxpr": p["body_jaxpr"].part(body), "body_nconsts": sum(used_in[:nb])},
            invars=[v for v, u in zip(eqn.invars, in_mask, strict=True) if u],
            outvars=[v for v, u in zip(eqn.outvars, [*keep[:count], True, *keep[count:]], strict=True) if u])


while_p = WhileLoop("while")
tape_while_p = TapeWhile("tape_while")


def _unchanged(outs: Sequence[Any], out_dims: Sequence[int | None], args: Sequence[Any], dims: Sequence[int | None],
               body: ClosedJaxpr, sizes: Sequence[int]) -> tuple[list[Any], list[int | None]]:
    """The results of lanes that may take other numbers of steps: what all have alike, and no step changes, stays so."""
    first, inner = sum(sizes), zip(body.jaxpr.invars[sizes[1]:], body.jaxpr.outvars, strict=True)
    found = [(arg, None) if given is result and d is None else (out, out_d) for (given, result), arg, d, out, out_d
             in zip(inner, args[first:], dims[first:], outs, out_dims, strict=True)]
    return [out for out, _ in found], [d for _, d in found]


def _batched(size: int, cond_jaxpr: ClosedJaxpr, body_jaxpr: ClosedJaxpr,
             dims: Sequence[Sequence[int | None]]) -> tuple[ClosedJaxpr | None, ClosedJaxpr, list[int | None]]:
    """Condition (None if lanes may differ in it) and body on stacks along dimension 0, and which results are stacks."""
    cond_in, const_in, carry = ([None if d is None else 0 for d in part] for part in dims)
    while True:
        body, out_dims = batch_jaxpr(body_jaxpr, size, (*const_in, *carry), (*carry, *(None,) * (
            len(body_jaxpr.out_avals) - len(carry))))
        grown = [c if d is None else 0 for c, d in zip(carry, out_dims, strict=False)]
        if grown == carry:
            break
        carry = grown
    cond, (pred_dim,) = batch_jaxpr(cond_jaxpr, size, (*cond_in, *carry))
    return None if pred_dim is not None else cond, body, list(out_dims)


def _in_step(size: int, args: Sequence[Any], dims: Sequence[int | None], cond_jaxpr: ClosedJaxpr,
             body_jaxpr: ClosedJaxpr, sizes: Sequence[int]) -> tuple[list[Any], list[int]]:
    """A loop of all lanes together, because they exchange values: lanes that have ended keep theirs."""
    consts, carry = split_list(args, [sum(sizes)])
    const_dims = [tuple(part) for part in split_list(dims, sizes)[:2]]
    lanes = (0,) * len(carry)
    stacked_cond, _ = batch_jaxpr(cond_jaxpr, size, (*const_dims[0], *lanes), (0,))
    stacked_body, _ = batch_jaxpr(body_jaxpr, size, (*const_dims[1], *lanes), lanes)

    def going(*xs: Any) -> Any:
        own, _, values = split_list(xs, sizes)
        return eval_jaxpr(stacked_cond.jaxpr, stacked_cond.consts, *own, *values)[0]

    def step(*xs: Any) -> list[Any]:
        _, own, values = split_list(xs, sizes)
        new = eval_jaxpr(stacked_body.jaxpr, stacked_body.consts, *own, *values)
        return [select(broadcast_in_dim(going(*xs), shape_of(n), (0,)), n, v)
                for n, v in zip(new, values, strict=True)]

    stacks = [move_to(a, d, 0, size) for a, d in zip(carry, dims[sum(sizes):], strict=True)]
    avals = list(map(aval_of, [*consts, *stacks]))
    cond = ClosedJaxpr(*trace_to_jaxpr(lambda *xs: [reduce_or(going(*xs), (0,))], avals))
    outs = while_p.bind(*consts, *consts, *stacks, cond_nconsts=len(consts), body_nconsts=len(consts), cond_jaxpr=cond,
                        body_jaxpr=ClosedJaxpr(*trace_to_jaxpr(step, avals)))
    return outs, list(lanes)


def _ignore_last(closed: ClosedJaxpr, avals: Sequence[ShapedArray]) -> ClosedJaxpr:
    """The program with further arguments at the end, which it does not use."""
    return closed.replace(jaxpr=closed.jaxpr.replace(invars=[*closed.jaxpr.invars, *map(Var, avals)]))


def _first_of_terms(closed: ClosedJaxpr, num_consts: int, carry: Sequence[Term]) -> ClosedJaxpr:
    """The condition on a carry of values with their Taylor coefficients, which it does not use."""
    consts, values = split_list(closed.jaxpr.invars, [num_consts])
    invars = [w for v, term in zip(values, carry, strict=True) for w in (v, *(Var(v.aval) for _ in term[1:]))]
    return closed.replace(jaxpr=closed.jaxpr.replace(invars=[*consts, *invars]))


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
    return _while(cond_fun, body_fun, init_val, body_fun, "while_loop")


def _while(cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init_val: Any, users: Callable[..., Any],
           by: str) -> Any:
    """The loop that `by` makes of the function `users`."""
    leaves, in_tree = tree.flatten(init_val)
    args_tree = tree.structure((init_val,))
    body, body_consts, leaves = _trace_body(body_fun, users, in_tree, leaves, args_tree, by)
    avals = list(map(aval_of, leaves))
    cond, cond_consts, cond_tree = trace_function(cond_fun, args_tree, avals, by)
    if len(cond.out_avals) != 1 or cond_tree.node_data() is not None:
        raise TypeError(f"cond_fun must return a boolean scalar, but got pytree {cond_tree}.")
    (pred,) = cond.out_avals
    if pred.shape or pred.dtype != np.dtype(bool):
        fix = "all of its elements, or any: .all(), .any()" if pred.shape else "a comparison, as in x > 0"
        raise TypeError(f"cond_fun must return a boolean scalar, but got output type(s) [{pred!r}]. Fix: {fix}.")
    operands = [*cond_consts, *body_consts, *leaves]
    if pred.vma:  # devices take different numbers of steps, so that all that these change differs
        operands = [x if isinstance(x, Ref) else varying(x, pred.vma) for x in operands]
        cond, body = all_varying(cond, pred.vma), all_varying(body, pred.vma)
    outs = while_p.bind(*operands, cond_jaxpr=cond, body_jaxpr=body, cond_nconsts=len(cond_consts),
                        body_nconsts=len(body_consts))
    return tree.unflatten(in_tree, outs)


def fori_loop(lower: Any = None, upper: Any = None, body_fun: Callable[[Any, Any], Any] | None = None,
              init_val: Any = None, *, unroll: int | bool | None = None, start: Any = None, stop: Any = None) -> Any:
    """Applies `body_fun(i, carry)` for i from `lower` up to `upper` (not included).

    Known integer bounds give a scan; others a while loop. `start` and `stop` are accepted as names of the bounds.

    Raises:
      TypeError: for bounds that are not scalars of one dtype, or a carry that changes its type (leaf by leaf).
      ValueError: for `unroll` where the bounds are not known.
    """
    lower, upper = (start if lower is None else lower), (stop if upper is None else upper)
    if not callable(body_fun):
        raise TypeError("lax.fori_loop: body_fun argument should be callable.")
    lower, upper = loop_bounds(lower, upper)
    if type(lower) is int and type(upper) is int:
        aval_of(max(lower, upper - 1))  # OverflowError if there is no such number in an array
        return _fori_scan(lower, upper, body_fun, init_val, unroll)
    if unroll not in (None, False, 1):
        raise ValueError("Can only use `unroll` in `fori_loop` if the loop bounds are statically known.")

    def body(carry: Any) -> Any:
        i, stop, value = carry
        return add(i, 1), stop, body_fun(i, value)

    return _while(lambda c: lt(c[0], c[1]), body, (lower, upper, init_val), body_fun, "fori_loop")[2]


def loop_bounds(lower: Any, upper: Any) -> tuple[Any, Any]:
    """Bounds of a loop: Python ints if both are known and whole, else scalars of one dtype; TypeError for others.

    A Python int takes the type of a signed integer array.
    """
    avals = [ShapedArray((), dtypes.dtype_of(0), True) if type(b) is int else aval_of(b) for b in (lower, upper)]
    for name, aval in zip(("lower", "upper"), avals, strict=True):
        if aval.shape or not any(dtypes.issubdtype(aval.dtype, kind) for kind in (np.bool_, np.integer, np.floating)):
            raise TypeError(f"lax.fori_loop: {name} must be a scalar integer, got {aval.str_short()}. "
                            "Make it an int, or use lax.while_loop.")
    kinds = [a.dtype for a in avals]
    if kinds[0] != kinds[1]:
        weak = [a.weak_type for a in avals]
        if weak[0] == weak[1] or any(k.kind != "i" for k in kinds):
            raise TypeError("lower and upper arguments to fori_loop must have equal types, got "
                            f"{dtypes.name(kinds[0])} and {dtypes.name(kinds[1])}. Convert one, or use lax.while_loop.")
        kinds = [kinds[weak.index(False)]] * 2
    known = [float(b) if not isinstance(b, (int, Tracer)) else b for b in (lower, upper)]
    if all(not isinstance(b, Tracer) and b % 1 == 0 for b in known):
        return int(lower), int(upper)
    return tuple(convert(b, k, a.weak_type and k == a.dtype)
                 for b, k, a in zip((lower, upper), kinds, avals, strict=True))  # type: ignore[return-value]


def _trace_body(body: Callable[[Any], Any], body_fun: Callable[..., Any], carry_tree: Any, leaves: Sequence[Any],
                in_tree: Any, by: str) -> tuple[ClosedJaxpr, list[Any], Sequence[Any]]:
    """The body's program, what it closes over, and the first carry with weak types promoted to what the body makes."""
    def check(out_tree: Any, got: Sequence[ShapedArray] | None = None) -> None:
        if by == "fori_loop":  # the carry ends with the user's own
            trees, position = (carry_tree.children()[-1], out_tree.children()[-1]), 1
        else:
            trees, position = (carry_tree, out_tree), 0
        first = carry_tree.num_leaves - trees[0].num_leaves
        check_carry(by, body_fun, position, trees, avals[first:], got and got[first:])

    for attempt in itertools.count():
        avals = list(map(aval_of, leaves))
        closed, consts, out_tree = trace_function(body, in_tree, avals, by, body_fun)
        check(out_tree)
        promoted = strong_like(leaves, closed.out_avals)
        if steady(attempt, leaves, promoted):
            break
        leaves = promoted
    check(out_tree, closed.out_avals)
    return closed, consts, leaves


def _fori_scan(lower: int, upper: int, body_fun: Callable[[Any, Any], Any], init_val: Any,
               unroll: int | bool | None) -> Any:
    from_tree = tree.structure((lower, init_val))
    leaves = tree.leaves((lower, init_val))
    in_tree = tree.structure(((lower, init_val),))

    def body(carry: Any) -> Any:
        i, value = carry
        return add(i, 1), body_fun(i, value)

    closed, consts, leaves = _trace_body(body, body_fun, from_tree, leaves, in_tree, "fori_loop")
    length = max(upper - lower, 0)
    outs = scan_p.call(closed, consts, leaves, [], length=length, reverse=False,
                       unroll=unroll_steps(1 if unroll is None else unroll, length))
    return tree.unflatten(from_tree, outs)[1]
