"""`scan`: a loop of known length over a carry and slices of arrays, as one equation.

    carry, ys = scan(f, init, xs)    with   carry, y[k] = f(carry, x[k])   for k = 0, 1, ...

Its derivative is a scan too: linearisation runs the loop once and stacks what the tangent loop needs of each step.
A scan without carry has independent iterations.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from anima import errors, tree
from anima.control.common import check_carry, reorder, steady, strong_like, trace_function
from anima.control.lanes import on_their_own
from anima.control.residuals import plan_residuals
from anima.core.avals import ShapedArray, tangent_aval
from anima.core.axes import joins_lanes, mentions, name_of
from anima.core.dims import index_of
from anima.core.explicit import cut_of
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Var, asks_for_zeros
from anima.core.primitive import Inner, Linear, Primitive, Work, Zero
from anima.core.refs import Ref
from anima.core.stage import StageTrace, eval_jaxpr, eval_numpy, trace_to_jaxpr
from anima.core.trace import Trace, Tracer, aval_of, under
from anima.ops.broadcast import instantiate
from anima.ops.elementwise import add, add_any
from anima.ops.index import dynamic_index_in_dim, dynamic_update_index_in_dim
from anima.ops.placing import spread
from anima.ops.shape import index_in_dim
from anima.transforms.checkpoint import Policy, kept_apart
from anima.transforms.dce import dce_jaxpr
from anima.transforms.discharge import Discharged, Stateful, discharge_jaxpr, open_jaxpr
from anima.transforms.forward import jvp_jaxpr
from anima.transforms.linearize import fill, linearize_jaxpr
from anima.transforms.partition import Left, Partition
from anima.transforms.refs import refuse_writes
from anima.transforms.reshard import Cut
from anima.transforms.taylor import Term, flat, grouped, taylor_loop
from anima.transforms.transpose import add_cotangents, backward
from anima.transforms.vmap import batch_jaxpr, move_to
from anima.util import fun_name, split_list, weak_cache


def _added(body: ClosedJaxpr, first: int, carries: int) -> dict[int, tuple[Eqn, Atom]]:
    """The carries of a loop that something is added to, and that nothing else uses: the equations that add it, and what
    they add."""
    jaxpr = body.jaxpr
    uses: Counter[Any] = Counter((*chain.from_iterable(e.invars for e in jaxpr.eqns), *jaxpr.outvars))
    made: dict[Any, Eqn] = {v: e for e in jaxpr.eqns for v in e.outvars}
    found = {}
    for k in range(carries):
        var, out = jaxpr.invars[first + k], jaxpr.outvars[k]
        eqn = made.get(out) if uses[out] == uses[var] == 1 else None
        if eqn is not None and eqn.primitive in (add, add_any) and var in eqn.invars:
            what = eqn.invars[1 - list(eqn.invars).index(var)]
            if what.aval == out.aval:
                found[k] = eqn, what
    return found


def _without_adding(body: ClosedJaxpr, added: dict[int, tuple[Eqn, Atom]]) -> ClosedJaxpr:
    """The program whose results are what is added to carries."""
    adding = [eqn for eqn, _ in added.values()]
    outs = [added[k][1] if k in added else out for k, out in enumerate(body.jaxpr.outvars)]
    return body.replace(jaxpr=body.jaxpr.replace(outvars=outs, eqns=[e for e in body.eqns if e not in adding]))


class Scan(Stateful):
    """Operands: constants, initial carry, `xs`; results: final carry, stacked `ys`."""

    multiple_results = True

    def call(self, jaxpr: ClosedJaxpr, consts: Sequence[Any], carry: Sequence[Any], xs: Sequence[Any], *, length: int,
             reverse: bool, unroll: int) -> list[Any]:
        """Binds with the parameters that follow from the operands."""
        args = [*consts, *carry, *xs]
        return self.bind(*args, jaxpr=jaxpr, length=length, linear=(False,) * len(args), num_carry=len(carry),
                         num_consts=len(consts), reverse=reverse, unroll=unroll)

    def timing(self, xs: Sequence[Any]) -> list[Any]:
        """Sequences (of int32 scalars) that a loop over others needs to know how long it is."""
        return []

    def infer(self, *avals: ShapedArray, jaxpr: ClosedJaxpr, length: int, num_carry: int, **params: Any,
              ) -> list[ShapedArray]:
        outs = jaxpr.out_avals
        return outs[:num_carry] + [a.inc_rank(length, 0) for a in outs[num_carry:]]

    def inner(self, params: dict[str, Any]) -> Sequence[Inner]:
        carries = params["num_carry"]
        return (Inner(params["jaxpr"], params["num_consts"], carries, 0 if carries else None),)

    def distribute(self, partition: Partition, operands: Sequence[Cut], results: Sequence[Cut], *, jaxpr: ClosedJaxpr,
                   num_consts: int, num_carry: int, **params: Any) -> tuple[dict[str, Any], list[Left], list[Left]]:
        """Carries are cut in one way, and steps of sequences; each device takes all steps. Sums over devices that only
        go into sequences, or are only added to a carry, are taken after the loop."""
        consts, _, xs = split_list(operands, [num_consts, num_carry])
        carry, ys = split_list(results, [num_carry])
        added = _added(jaxpr, num_consts, num_carry)
        body, left = partition.program_of_sums(
            _without_adding(jaxpr, added), [*consts, *carry, *(c[1:] for c in xs)], [*carry, *(c[1:] for c in ys)],
            [*added, *range(num_carry, len(results))])

        def fun(*parts: Any) -> list[Any]:
            outs = eval_jaxpr(body.jaxpr, body.consts, *parts)
            return [add(parts[num_consts + k], x) if k in added else x for k, x in enumerate(outs)]

        if added:
            parts = body.in_avals
            parts[num_consts:num_consts + num_carry] = body.out_avals[:num_carry]
            body = partition.traced(fun, parts)
        new = {"jaxpr": body, "num_consts": num_consts, "num_carry": num_carry, **params}
        ins = [*map(Left, consts), *left[:num_carry], *(Left(((), *c[1:])) for c in xs)]
        return new, ins, [*left[:num_carry], *(y._replace(cut=((), *y.cut)) for y in left[num_carry:])]

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             *, length: int, **params: Any) -> Work:
        return programs[0].times(length)

    def eval(self, *args: np.ndarray, jaxpr: ClosedJaxpr, length: int, num_carry: int, num_consts: int,
             reverse: bool, **params: Any) -> list[np.ndarray]:
        consts, carry, xs = split_list(args, [num_consts, num_carry])
        ys = [np.empty((length, *a.shape, *getattr(a.dtype, "element_shape", ())), getattr(a.dtype, "base", a.dtype))
              for a in jaxpr.out_avals[num_carry:]]
        for k in reversed(range(length)) if reverse else range(length):
            outs = eval_numpy(jaxpr, [*consts, *carry, *(x[k] for x in xs)])
            carry = outs[:num_carry]
            for y, value in zip(ys, outs[num_carry:], strict=True):
                y[k, ...] = value
        return [*carry, *ys]

    def eval_extended(self, avals: Sequence[ShapedArray], args: Sequence[Any], params: dict[str, Any]) -> Any:
        return self.eval(*args, **params)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr, length: int, num_carry: int,
            num_consts: int, reverse: bool, unroll: int, linear: Any) -> tuple[list[Any], list[Any]]:
        sizes = [num_consts, num_carry]
        nonzero = [not isinstance(t, Zero) for t in tangents]
        carry_mask, tangents = grow_carry(jaxpr, nonzero, tangents, sizes, jvp_mask)
        nonzero = [not isinstance(t, Zero) for t in tangents]
        new, mask = jvp_jaxpr(jaxpr, tuple(nonzero), tuple(carry_mask))
        order, _ = _with_tangents(nonzero, sizes)
        out_order, out_places = _with_tangents(mask, [num_carry])
        flat = [*primals, *(t for t in tangents if not isinstance(t, Zero))]
        consts, carry, xs = [[flat[k] for k in part] for part in order]
        out_flat = list(chain.from_iterable(out_order))
        body = reorder(new, list(chain.from_iterable(order)), out_flat)
        outs = self.call(body, consts, carry, xs, length=length, reverse=reverse, unroll=unroll)
        by_place = dict(zip(out_flat, outs, strict=True))
        primal_outs = [by_place[k] for k in range(len(mask))]
        return primal_outs, [Zero(tangent_aval(aval_of(o))) if place is None else by_place[place]
                             for o, place in zip(primal_outs, out_places, strict=True)]

    def taylor(self, order: int, terms: Sequence[Term], *, jaxpr: ClosedJaxpr, length: int, num_carry: int,
               num_consts: int, reverse: bool, unroll: int, linear: Any) -> list[Term]:
        """The loop on operands with their Taylor coefficients."""
        body, terms, mask = taylor_loop(jaxpr, order, terms, num_consts, num_carry)
        outs = self.call(body, *map(flat, split_list(terms, [num_consts, num_carry])), length=length,
                         reverse=reverse, unroll=unroll)
        return grouped(outs, mask, order)

    def linearize(self, parent: Trace, recorder: StageTrace, primals: Sequence[Any], tangents: Sequence[Any], *,
                  jaxpr: ClosedJaxpr, length: int, num_carry: int, num_consts: int, reverse: bool, unroll: int,
                  linear: Any) -> tuple[list[Any], list[Any]]:
        """Runs the loop, stacking residuals; records the loop of tangents."""
        options: dict[str, Any] = {"length": length, "reverse": reverse, "unroll": unroll}
        nonzero = [not isinstance(t, Zero) for t in tangents]
        carry_mask, tangents = under(recorder, grow_carry, jaxpr, nonzero, tangents, [num_consts, num_carry],
                                     linear_mask)
        nonzero = [not isinstance(t, Zero) for t in tangents]
        primal, tangent, mask = linearize_jaxpr(jaxpr, tuple(nonzero), tuple(carry_mask))
        n_out = len(jaxpr.out_avals)
        plan = plan_residuals(primal, tangent, n_out, num_consts, num_carry, False)
        outs = under(parent, self.call, plan.body, *split_list(primals, [num_consts, num_carry]), **options)
        fixed = under(parent, eval_jaxpr, plan.outside.jaxpr, plan.outside.consts, *primals[:num_consts + num_carry])
        const_t, carry_t, xs_t = ([t for t in ts if not isinstance(t, Zero)]
                                  for ts in split_list(tangents, [num_consts, num_carry]))
        timing = self.timing(primals[num_consts + num_carry:])
        body = unused_inputs(plan.tangent, len(timing))
        out_tangents = under(recorder, self.call, body, [*fixed, *const_t], carry_t,
                             [*xs_t, *(primals[k] for k in plan.xs), *(outs[k] for k in plan.stored), *timing],
                             **options)
        return outs[:n_out], fill(mask, out_tangents, outs[:n_out])

    def transposes_zeros(self, params: dict[str, Any]) -> bool:
        """A carry has a cotangent at each step, zeros at first."""
        return params["num_carry"] > 0 and asks_for_zeros(params)

    def transpose(self, cts: Sequence[Any], *args: Any, jaxpr: ClosedJaxpr, length: int, num_carry: int,
                  num_consts: int, reverse: bool, unroll: int, linear: Any) -> list[Any]:
        # A carry that starts from a known value (zeros, in tangent loops) still becomes linear on the way.
        lin = tuple(isinstance(a, Linear) or num_consts <= k < num_consts + num_carry for k, a in enumerate(args))
        consts, _, xs = split_list(args, [num_consts, num_carry])
        ct_ys = cts[num_carry:]
        body = _transposed_body(jaxpr, lin, num_consts, num_carry, tuple(isinstance(ct, Zero) for ct in ct_ys))
        ct_consts = [instantiate(Zero(c.aval)) for c in consts if isinstance(c, Linear)]
        outs = self.call(body, [c for c in consts if not isinstance(c, Linear)],
                         [*ct_consts, *map(instantiate, cts[:num_carry])],
                         [*(ct for ct in ct_ys if not isinstance(ct, Zero)),
                          *(x for x in xs if not isinstance(x, Linear))],
                         length=length, reverse=not reverse, unroll=unroll)
        given = iter(outs)
        found = [next(given) if is_lin else None for is_lin in lin]
        return [ct if isinstance(a, Linear) else None for ct, a in zip(found, args, strict=True)]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, jaxpr: ClosedJaxpr, length: int,
              num_carry: int, num_consts: int, reverse: bool, unroll: int, linear: Any) -> tuple[Any, Any]:
        mapped = [d is not None for d in dims]
        while True:
            force = tuple(0 if m else None for m in mapped[num_consts: num_consts + num_carry])
            new, out_dims = batch_jaxpr(jaxpr, size, tuple(0 if m else None for m in mapped),
                                        (*force, *(None,) * (len(jaxpr.out_avals) - num_carry)))
            grown = [m or d is not None
                     for m, d in zip(mapped[num_consts: num_consts + num_carry], out_dims, strict=False)]
            if grown == mapped[num_consts: num_consts + num_carry]:
                break
            mapped[num_consts: num_consts + num_carry] = grown
        first_x = num_consts + num_carry
        params = {"jaxpr": jaxpr, "length": length, "num_carry": num_carry, "num_consts": num_consts,
                  "reverse": reverse, "unroll": unroll, "linear": linear}
        sequences = [v.aval for v, m in zip(jaxpr.jaxpr.invars[first_x:], mapped[first_x:], strict=True) if m]
        sequences += jaxpr.out_avals[num_carry:]
        if {d for d, m in zip(dims[first_x:], mapped[first_x:], strict=True) if m} == {1}:
            sequences = []  # each step's elements of all lanes are side by side
        shared = [a for a, d in zip(jaxpr.out_avals, out_dims, strict=True) if d is None]
        if (num_carry and not any(a.shape for a in shared) and not joins_lanes(self, params, name_of(size))
                and on_their_own(jaxpr, sequences, length)):
            return first_lanes(batch_lanes(self, size, args, dims, params)[0], size, out_dims)
        moved = [move_to(a, d, 1 if k >= first_x else 0, size) if m else a
                 for k, (a, d, m) in enumerate(zip(args, dims, mapped, strict=True))]
        outs = self.call(new, *split_list(moved, [num_consts, num_carry]), length=length, reverse=reverse,
                         unroll=unroll)
        return outs, [d if k < num_carry or d is None else d + 1 for k, d in enumerate(out_dims)]

    def with_operands(self, args: Sequence[Any], params: dict[str, Any],
                      refs: tuple[Ref, ...]) -> tuple[Sequence[Any], dict[str, Any]]:
        new = {**params, "jaxpr": open_jaxpr(params["jaxpr"], refs), "num_consts": params["num_consts"] + len(refs)}
        return [*refs, *args], new | {"linear": (False,) * (len(refs) + len(args))} if "linear" in params else new

    def discharge(self, args: Sequence[Any], values: Sequence[Any], own: tuple[bool, ...],
                  params: dict[str, Any]) -> Discharged:
        """What the body writes to becomes carry: where it gets slices of references, the whole and a counter."""
        num_consts, num_carry = params["num_consts"], params["num_carry"]
        first_x = num_consts + num_carry
        jaxpr, changed = discharge_jaxpr(params["jaxpr"], own)
        carries = [k for k in changed if k < num_consts]
        rows = [k for k in changed if k >= num_consts and params["length"]]
        before = [*(k for k in range(num_consts) if k not in carries), *range(num_consts, first_x), *carries]
        rest = [k for k in range(first_x, len(args)) if k not in rows]
        last = len(jaxpr.out_avals) - len(changed)
        ends = {k: last + i for i, k in enumerate(changed)}
        outs = [*range(num_carry), *(ends[k] for k in carries), *range(num_carry, last), *(ends[k] for k in rows)]
        body = reorder(jaxpr, [*before, *rest, *rows], outs)
        given = [values[k] for k in (*before, *rows)]
        count = num_carry + len(carries)
        places = {k: num_carry + i for i, k in enumerate((*carries, *rows))}
        if rows:
            first, step = (params["length"] - 1, -1) if params["reverse"] else (0, 1)
            body = _on_rows(body, [aval_of(values[k]) for k in rows], len(before), count, step)
            given.append(np.int32(first))
            count += len(rows) + 1
        new = {**params, "jaxpr": body, "num_consts": num_consts - len(carries), "num_carry": count}
        given += [values[k] for k in rest]
        return given, {**new, "linear": (False,) * len(given)}, places | ({-1: count - 1} if rows else {})

    def dce(self, eqn: Eqn, used: Sequence[bool]) -> Eqn:
        """The equation without unused `ys`, and without carries that nothing used depends on."""
        p = eqn.params
        jaxpr, num_carry, num_consts = p["jaxpr"], p["num_carry"], p["num_consts"]
        keep = list(used[:num_carry])
        while True:
            body, used_in = dce_jaxpr(jaxpr.jaxpr, [*keep, *used[num_carry:]])
            grown = [k or u for k, u in zip(keep, used_in[num_consts: num_consts + num_carry], strict=True)]
            if grown == keep:
                break
            keep = grown
        kept_in = [*used_in[:num_consts], *keep, *used_in[num_consts + num_carry:]]
        body = body.replace(invars=[v for v, k in zip(jaxpr.jaxpr.invars, kept_in, strict=True) if k])
        params = {**p, "jaxpr": jaxpr.part(body), "num_carry": sum(keep), "num_consts": sum(used_in[:num_consts]),
                  "linear": (False,) * sum(kept_in)}
        return eqn.replace(params=params, invars=[v for v, k in zip(eqn.invars, kept_in, strict=True) if k],
                           outvars=[v for v, k in zip(eqn.outvars, [*keep, *used[num_carry:]], strict=True) if k])

    def keep(self, eqn: Eqn, policy: Policy) -> tuple[Eqn, Eqn, list[Var]]:
        """The loop that also stacks what a checkpoint's policy keeps of each step, the loop that reads that instead
        of computing it, and the stacks. A result that is kept itself needs no second stack."""
        p = eqn.params
        count, first = p["num_carry"], p["num_consts"]
        whole, cut, kept = kept_apart(p["jaxpr"], policy)
        results = cut.jaxpr.outvars
        known = {*kept, *(v for v, after in zip(cut.jaxpr.invars[first:first + count], results, strict=False)
                          if after in kept)}
        stays = [v in known for v in results]
        found = dict(zip(results[count:], eqn.outvars[count:], strict=True))
        new = {v: Var(v.aval.inc_rank(p["length"], 0)) for v in kept if v not in found}
        whole = whole.replace(jaxpr=whole.jaxpr.replace(outvars=[*results, *new]))
        invars = [*eqn.invars, *(new.get(v) or found[v] for v in kept)]
        again = eqn.replace(invars=invars, params={**p, "jaxpr": cut, "linear": (False,) * len(invars)})
        values = [v for v, stay in zip(eqn.outvars, stays, strict=True) if stay]
        return (eqn.replace(params={**p, "jaxpr": whole}, outvars=[*eqn.outvars, *new.values()]),
                self.dce(again, [not stay for stay in stays]), [*values, *new.values()])


scan_p = Scan("scan")


def batch_lanes(primitive: Primitive, size: int, args: Sequence[Any], dims: Sequence[int | None],
                params: dict[str, Any]) -> tuple[Any, Any]:
    """A primitive applied to each lane on its own: a loop over lanes without a carry."""
    if joins_lanes(primitive, params, name_of(size)):
        uses = f"the mapped axis {name_of(size)!r}" if mentions(primitive, params, name_of(size)) else (
            "operations with batching rules of users")
        raise NotImplementedError(f"Exchanges within '{primitive.name}' whose lanes run on their own are not "
                                  f"implemented: it uses {uses}. Fix: differentiate the mapped function, "
                                  "grad(lambda xs: vmap(f)(xs).sum()), instead of mapping the derivative.")
    mapped = [d is not None for d in dims]
    xs = [move_to(a, d, 0, size) for a, d in zip(args, dims, strict=True) if d is not None]
    consts = [a for a, d in zip(args, dims, strict=True) if d is None]

    def lane(*operands: Any) -> list[Any]:
        shared, own = iter(operands[: len(consts)]), iter(operands[len(consts):])
        return primitive.bind(*(next(own) if m else next(shared) for m in mapped), **params)

    avals = [aval_of(c) for c in consts] + [aval_of(x).dec_rank(size, 0) for x in xs]
    body = ClosedJaxpr(*trace_to_jaxpr(lane, avals))
    if any(isinstance(c, Ref) for c in consts):
        refuse_writes(body, consts)
    outs = scan_p.call(body, consts, [], xs, length=index_of(size), reverse=False, unroll=1)
    return [spread(out, size) for out in outs], [0] * len(outs)


def first_lanes(outs: Sequence[Any], size: int, dims: Sequence[int | None]) -> tuple[list[Any], list[int | None]]:
    """Of the results of all lanes, those of the first lane where all are the same (their dimension is None)."""
    if size == 0:
        return list(outs), [0] * len(outs)
    same = [index_in_dim(o, 0, 0, keepdims=False) if d is None else o for o, d in zip(outs, dims, strict=True)]
    return same, [None if d is None else 0 for d in dims]


def _with_tangents(mask: Sequence[bool], sizes: Sequence[int]) -> tuple[list[list[int]], list[int | None]]:
    """Values come first and then their nonzero tangents: the positions of both, part by part, and where each
    value's tangent is."""
    where = iter(range(len(mask), len(mask) + sum(mask)))
    places = [next(where) if m else None for m in mask]
    parts = split_list(list(range(len(mask))), sizes)
    return [[*part, *(p for k in part if (p := places[k]) is not None)] for part in parts], places


def unused_inputs(closed: ClosedJaxpr, count: int) -> ClosedJaxpr:
    """The program with `count` more arguments at the end, int32 scalars that it does not use."""
    more = [Var(ShapedArray((), np.dtype(np.int32))) for _ in range(count)]
    return closed.replace(jaxpr=closed.jaxpr.replace(invars=[*closed.jaxpr.invars, *more])) if more else closed


def grow_carry(jaxpr: ClosedJaxpr, nonzero: list[bool], tangents: Sequence[Any], sizes: list[int],
                mask_of: Callable[..., list[bool]]) -> tuple[list[bool], list[Any]]:
    """Which carries have tangents, as a fixed point, and the tangents with those written out."""
    num_consts, num_carry = sizes
    where = slice(num_consts, num_consts + num_carry)
    while True:
        carry = nonzero[where]
        mask = mask_of(jaxpr, tuple(nonzero), (*carry, *(False,) * (len(jaxpr.out_avals) - num_carry)))
        grown = [a or b for a, b in zip(carry, mask[:num_carry], strict=True)]
        if grown == carry:
            break
        nonzero = [*nonzero[: where.start], *grown, *nonzero[where.stop:]]
    force = [*grown, *(False,) * (len(jaxpr.out_avals) - num_carry)]
    return force, [instantiate(t) if nz else t for t, nz in zip(tangents, nonzero, strict=True)]


def jvp_mask(jaxpr: ClosedJaxpr, nonzero: tuple[bool, ...], force: tuple[bool, ...]) -> list[bool]:
    return jvp_jaxpr(jaxpr, nonzero, force)[1]


def linear_mask(jaxpr: ClosedJaxpr, nonzero: tuple[bool, ...], force: tuple[bool, ...]) -> list[bool]:
    return linearize_jaxpr(jaxpr, nonzero, force)[2]


def _on_rows(body: ClosedJaxpr, wholes: Sequence[ShapedArray], before: int, num_carry: int, step: int) -> ClosedJaxpr:
    """A body on rows (its last arguments and results) as one on the arrays whose rows they are, and the number of the
    row, which it counts on by `step`: its first `before` arguments, those, and others."""
    count = len(wholes)

    def fun(*args: Any) -> list[Any]:
        first, arrays, (k,), rest = split_list(args, [before, count, 1])
        rows = [dynamic_index_in_dim(a, k, 0, keepdims=False, allow_negative_indices=False) for a in arrays]
        outs = eval_jaxpr(body.jaxpr, body.consts, *first, *rest, *rows)
        carry, ys, rows = split_list(outs, [num_carry, len(outs) - num_carry - count])
        new = [dynamic_update_index_in_dim(a, row, k, 0, allow_negative_indices=False)
               for a, row in zip(arrays, rows, strict=True)]
        return [*carry, *new, add(k, np.int32(step)), *ys]

    avals = body.in_avals
    number = ShapedArray((), np.dtype(np.int32))
    return ClosedJaxpr(*trace_to_jaxpr(fun, [*avals[:before], *wholes, number, *avals[before:len(avals) - count]]))


@weak_cache
def _transposed_body(jaxpr: ClosedJaxpr, lin: tuple[bool, ...], num_consts: int, num_carry: int,
                     zero_ys: tuple[bool, ...]) -> ClosedJaxpr:
    """(known consts, [ct consts, ct carry], [ct ys, known xs]) -> ([ct consts, ct carry], ct xs)."""
    in_avals = jaxpr.in_avals
    const_lin, _, xs_lin = split_list(lin, [num_consts, num_carry])
    known_consts = [a for a, is_lin in zip(in_avals, lin, strict=False) if not is_lin][: const_lin.count(False)]
    lin_consts = [a for a, is_lin in zip(in_avals[:num_consts], const_lin, strict=True) if is_lin]
    known_xs = [a for a, is_lin in zip(in_avals[num_consts + num_carry:], xs_lin, strict=True) if not is_lin]
    ys = [a for a, zero in zip(jaxpr.out_avals[num_carry:], zero_ys, strict=True) if not zero]
    carry = in_avals[num_consts: num_consts + num_carry]

    def fun(*args: Any) -> list[Any]:
        consts, sums, ct_carry, ct_ys, xs = split_list(
            args, [len(known_consts), len(lin_consts), num_carry, len(ys)])
        known = iter([*consts, *xs])
        operands = [Linear(a) if is_lin else next(known) for a, is_lin in zip(in_avals, lin, strict=True)]
        given = iter(ct_ys)
        all_ys = [Zero(a) if zero else next(given)
                  for a, zero in zip(jaxpr.out_avals[num_carry:], zero_ys, strict=True)]
        found = backward(jaxpr.jaxpr, jaxpr.consts, operands, [*ct_carry, *all_ys])
        ct_consts, new_carry, ct_xs = split_list(found, [num_consts, num_carry])
        new_sums = map(add_cotangents, sums, [ct for ct, is_lin in zip(ct_consts, const_lin, strict=True) if is_lin])
        return [*new_sums, *map(instantiate, new_carry),
                *(instantiate(ct) for ct, is_lin in zip(ct_xs, xs_lin, strict=True) if is_lin)]

    traced, consts = trace_to_jaxpr(fun, [*known_consts, *lin_consts, *carry, *ys, *known_xs])
    return ClosedJaxpr(traced, consts)


def scan(f: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any = None, length: int | None = None,
         reverse: bool = False, unroll: int | bool = 1, _split_transpose: bool = False) -> tuple[Any, Any]:
    """Loops `f` over the leading axis of `xs`, carrying a value along.

    Args:
      f: `(carry, x) -> (carry, y)`; the carry keeps its structure, shapes and dtypes.
      init: the first carry, a pytree of arrays.
      xs: a pytree of arrays with the same leading axis, or None with `length` given.
      reverse: from the last element to the first.
      unroll: how many iterations to put into one (a hint).

    Returns:
      (last carry, the ys stacked along a new leading axis).

    Raises:
      TypeError: where the carry changes its type, leaf by leaf with paths.
      ValueError: where the leading axes of `xs` disagree, or with `length`.
    """
    if not callable(f):
        raise TypeError(f"lax.scan: f argument should be a callable, got {f!r}")
    init_leaves, init_tree = tree.flatten(init)
    xs_leaves = tree.leaves(xs)
    length = scan_length(xs, length)
    x_avals = [a.dec_rank(length, 0).strip_weak_type() for a in map(aval_of, xs_leaves)]
    in_tree = tree.structure((init, xs))
    for attempt in itertools.count():
        carry_avals = list(map(aval_of, init_leaves))
        closed, consts, out_tree = trace_function(f, in_tree, [*carry_avals, *x_avals], "scan")
        carry_tree, ys_tree = _check_pair(f, out_tree)
        check_carry("scan", f, 0, (init_tree, carry_tree), carry_avals)
        out_avals = closed.out_avals[: len(carry_avals)]
        promoted = strong_like(init_leaves, out_avals)
        if steady(attempt, init_leaves, promoted):
            break
        init_leaves = promoted
    check_carry("scan", f, 0, (init_tree, carry_tree), carry_avals, out_avals)
    outs = scan_p.call(closed, consts, init_leaves, xs_leaves, length=length, reverse=bool(reverse),
                       unroll=unroll_steps(unroll, length))
    count = len(init_leaves)
    return tree.unflatten(carry_tree, outs[:count]), tree.unflatten(ys_tree, outs[count:])


def scan_length(xs: Any, length: int | None) -> int:
    """The number of steps: the leading axis of what is in `xs`, or `length`; ValueError where they disagree."""
    leaves = tree.leaves(xs)
    for k, x in enumerate(leaves):
        if not aval_of(x).shape:
            raise ValueError(f"scan got value with no leading axis to scan over: {x}. It is xs"
                             f"{tree.keystr(tree.leaves_with_path(xs)[k][0])}. Fix: arrays, where there are lists of "
                             "numbers: anima.numpy.array(numbers).")
        if cut_of(aval_of(x))[0]:
            raise ValueError(f"0th dimension of all xs should be replicated. Got {aval_of(x).sharding.spec}. Fix: "
                             "anima.reshard, as each step needs an element that all devices have.")
    lengths = {aval_of(x).shape[0] for x in leaves}
    if length is not None:
        if isinstance(length, Tracer):
            raise errors.ConcretizationTypeError(
                length, "The `length` argument to `scan` expects a concrete `int` value. For scan-like iteration with "
                "a dynamic length, use `while_loop` or `fori_loop`.", "")
        length = int(length)
        if length < 0:
            raise ValueError(f"scan: `length` is the number of steps, and cannot be negative, got {length}.")
        if lengths - {length}:
            raise ValueError(f"scan got `length` argument of {length} which disagrees with leading axis sizes "
                             f"{sorted(lengths)}.{_types(xs)}")
        return length
    if len(lengths) != 1:
        raise ValueError("scan got no values to scan over and `length` not provided." if not lengths else
                         f"scan got values with different leading axis sizes: {', '.join(map(str, sorted(lengths)))}."
                         + _types(xs))
    return lengths.pop()


def _types(xs: Any) -> str:
    """A line for each array in `xs`."""
    return "".join(f"\n  * xs{tree.keystr(path)} has type {errors.describe(aval_of(x))}"
                   for path, x in tree.leaves_with_path(xs))


def unroll_steps(unroll: int | bool, length: int) -> int:
    """How many steps to put into one: all of them for True."""
    steps = length if unroll is True else operator.index(unroll)
    if steps < 0:
        raise ValueError("`unroll` must be a `bool` or a non-negative `int`.")
    return max(steps, 1)


def _check_pair(f: Callable[..., Any], out_tree: Any) -> tuple[Any, Any]:
    children = out_tree.children()
    if out_tree.node_data() is None or out_tree.node_data()[0] not in (tuple, list) or len(children) != 2:
        raise TypeError(f"scan body output must be a pair, got {out_tree}. {fun_name(f)} should return (carry, y).")
    return children[0], children[1]
