"""Checkpointing: reverse mode that computes values again instead of keeping them (rematerialisation).

    grad(checkpoint(f))     keeps the arguments of f, and runs f again on the way back

A policy tells which intermediate results are worth keeping all the same. (Griewank and Walther, Evaluating
Derivatives, 2008, chapter 12; Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016.)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from anima import errors, tree
from anima.config import config
from anima.core.avals import ShapedArray, tangent_aval
from anima.core.intern import interned
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var, subjaxprs
from anima.core.kept import kept
from anima.core.primitive import Primitive, Zero
from anima.core.refs import STATE, Ref
from anima.core.stage import (
    StageTrace,
    Traced,
    bind_eqn,
    eval_jaxpr,
    eval_numpy,
    hoisted,
    literal_array,
    trace_pytrees,
    trace_to_jaxpr,
)
from anima.core.trace import Trace, aval_of, under
from anima.names import did_you_mean
from anima.ops.elementwise import optimization_barrier
from anima.transforms.call import ProgramCall
from anima.transforms.dce import dce_jaxpr
from anima.transforms.linearize import fill, linearize_jaxpr
from anima.util import exact_type, fun_name, logger, weak_cache, wraps

Policy = Callable[..., Any]
Saveable, Recompute = True, False  # what policies answer


class Offloadable(NamedTuple):
    """A policy's answer: keep the value in the memory `dst`. All memory is one to a CPU: it is kept."""

    src: str
    dst: str


class Name(Primitive):
    """The identity, with a name that policies go by."""

    cost = 0.0
    moves = True

    def infer(self, x: ShapedArray, *, name: str) -> ShapedArray:
        return x

    def eval(self, x: np.ndarray, *, name: str) -> np.ndarray:
        return x

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, name: str) -> tuple[Any, Any]:
        return self.bind(primals[0], name=name), tangents[0]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, name: str) -> tuple[Any, Any]:
        return self.bind(args[0], name=name), dims[0]

    def physical(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> dict[str, Any]:
        return params


name_p = Name("name")


class Checkpoint(ProgramCall):
    """A program whose intermediate results are not kept for differentiation."""

    def eval(self, *args: np.ndarray, jaxpr: ClosedJaxpr, **params: Any) -> list[np.ndarray]:
        return eval_numpy(jaxpr, args)

    def linearize(self, parent: Trace, recorder: StageTrace, primals: Sequence[Any], tangents: Sequence[Any], *,
                  jaxpr: ClosedJaxpr, policy: Policy | None, prevent_cse: bool, differentiated: bool,
                  ) -> tuple[list[Any], list[Any]]:
        """Runs the program; records one equation that will run it again and then its linear part.

        References from outside of it are read and written to once: what was read is kept.
        """
        nonzero = tuple(not isinstance(t, Zero) for t in tangents)
        forward, again, mask, used = _split(jaxpr, nonzero, policy, prevent_cse)
        count = len(mask)
        params = {"policy": policy, "prevent_cse": prevent_cse}
        outs = under(parent, self.bind, *primals, jaxpr=forward, differentiated=differentiated, **params)
        if config.log_checkpoint_residuals:
            _log_residuals(forward, count, used)
        given = [t for t in tangents if not isinstance(t, Zero)]
        needed = [p for p, u in zip(primals, used, strict=True) if u]
        found = under(recorder, self.bind, *needed, *outs[count:], *given, jaxpr=again, differentiated=True,
                      **params) if any(mask) else []
        return outs[:count], fill(mask, found, outs)


checkpoint_p = Checkpoint("checkpoint")


def _log_residuals(forward: ClosedJaxpr, count: int, used: Sequence[bool]) -> None:
    """Logs what is kept for the way back: arguments, and results of the program after the first `count`."""
    text = ["remat-decorated function saving inputs with shapes:"]
    text += [f"  {v.aval.str_short()}" for v, u in zip(forward.jaxpr.invars, used, strict=True) if u]
    makers = {v: eqn for eqn in forward.eqns for v in eqn.outvars}
    for k, v in enumerate(forward.jaxpr.outvars[count:]):
        eqn = makers.get(v)  # type: ignore[arg-type]
        what = "an argument" if eqn is None else (
            f"named '{eqn.params['name']}'" if eqn.primitive is name_p else f"output of {eqn.primitive.name}")
        where = f" at {eqn.source}" if eqn is not None and eqn.source else ""
        text += ["and saving these intermediates:"] * (k == 0) + [f"  {v.aval.str_short()} from {what}{where}"]
    logger().warning("\n".join(text))


@weak_cache
def _split(closed: ClosedJaxpr, nonzero: tuple[bool, ...], policy: Policy | None,
           prevent_cse: bool) -> tuple[ClosedJaxpr, ClosedJaxpr, list[bool], list[bool]]:
    """(args -> results, kept values), (needed args, kept values, tangents -> tangents of results), which results
    have those, which args are needed."""
    primal, tangent, mask = linearize_jaxpr(closed, nonzero)
    count = len(mask)
    whole, cut, _ = kept_apart(primal, policy)
    residuals = cut.jaxpr.outvars[count:]
    needed, used_in = dce_jaxpr(cut.jaxpr.replace(outvars=residuals), [True] * len(residuals))
    n_args = len(closed.in_avals)
    used_kept = used_in[n_args:]
    needed = needed.replace(constvars=cut.jaxpr.constvars)
    forward, _ = dce_jaxpr(whole.jaxpr, [*(True,) * count, *(False,) * len(residuals), *used_kept])
    forward = forward.replace(invars=whole.jaxpr.invars, constvars=whole.jaxpr.constvars)

    def again(*args: Any) -> list[Any]:
        at = len(needed.invars)
        kept_values = _barrier(args[:at]) if prevent_cse else args[:at]
        found = eval_jaxpr(needed, cut.consts, *kept_values)
        return eval_jaxpr(tangent.jaxpr, tangent.consts, *found, *args[at:])

    avals = [*needed.in_avals, *(tangent_aval(a) for a, nz in zip(closed.in_avals, nonzero, strict=True) if nz)]
    tangents = ClosedJaxpr(*trace_to_jaxpr(again, avals))
    return ClosedJaxpr(forward, whole.consts), tangents, mask, used_in[:n_args]


def _barrier(values: Sequence[Any]) -> list[Any]:
    """`optimization_barrier` of all that are not references."""
    given = iter(optimization_barrier([x for x in values if not isinstance(x, Ref)]))
    return [x if isinstance(x, Ref) else next(given) for x in values]


def kept_apart(closed: ClosedJaxpr, policy: Policy | None) -> tuple[ClosedJaxpr, ClosedJaxpr, list[Var]]:
    """The program with what `policy` keeps as further results, the program that takes that as further arguments
    instead of computing it, and its variables in both.

    A primitive with a `keep` method does so with the programs it holds:
    `keep(eqn, policy) -> (eqn with further results, eqn that takes kept values instead, kept values)`.
    What equations on references give is always kept: by then these may hold something else.
    """
    if policy is None and STATE not in closed.effects:
        return closed, closed, []
    policy = policy or checkpoint_policies.nothing_saveable
    closed = ClosedJaxpr(*trace_to_jaxpr(partial(_eval_inlined, closed), closed.in_avals))  # it sees into calls
    whole: list[Eqn] = []
    cut: list[Eqn] = []
    kept: list[Var] = []
    for eqn in closed.eqns:
        inside = eqn.primitive.keep
        if STATE in eqn.effects:
            kept += eqn.outvars
        elif inside is not None:
            eqn, rest, values = inside(eqn, policy)
            kept += values
            cut.append(rest)
        elif policy(eqn.primitive, *(a.aval for a in eqn.invars), **eqn.params):
            kept += eqn.outvars
        else:
            cut.append(eqn)
        whole.append(eqn)
    jaxpr = closed.jaxpr
    return (ClosedJaxpr(jaxpr.replace(eqns=whole, outvars=[*jaxpr.outvars, *kept]), closed.consts),
            ClosedJaxpr(jaxpr.replace(eqns=cut, invars=[*jaxpr.invars, *kept]), closed.consts), kept)


def _eval_inlined(closed: ClosedJaxpr, *args: Any) -> list[Any]:
    """As `eval_jaxpr`, with the equations of jitted functions in place of calls of them."""
    env: dict[Var, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    env.update(zip(closed.jaxpr.invars, args, strict=True))

    def read(atom: Atom) -> Any:
        return literal_array(atom) if isinstance(atom, Literal) else env[atom]

    for eqn in closed.eqns:
        values = list(map(read, eqn.invars))
        call = isinstance(eqn.primitive, ProgramCall) and eqn.primitive is not checkpoint_p
        env.update(zip(eqn.outvars, _eval_inlined(eqn.params["jaxpr"], *values) if call else bind_eqn(eqn, values),
                       strict=True))
    return list(map(read, closed.jaxpr.outvars))


def checkpoint(fun: Callable[..., Any] | None = None, *, prevent_cse: bool = True, policy: Policy | None = None,
               static_argnums: int | Sequence[int] = (), static_argnames: str | Iterable[str] = (),
               concrete: Any = None) -> Any:
    """Makes reverse-mode differentiation of `fun` compute intermediate values again instead of keeping them.

    Args:
      fun: a function of arrays and pytrees of them.
      prevent_cse: keep the compiler from undoing it.
      policy: `policy(primitive, *avals, **params) -> bool`: which results to keep all the same (see
        `checkpoint_policies`), of each step of a `scan` and of the branch of a `cond` too; None keeps nothing.
      static_argnums, static_argnames: arguments taken by value.
      concrete: not available any more, in JAX either: NotImplementedError.

    >>> grad(checkpoint(lambda x: jnp.sin(jnp.sin(x))))(1.0)
    Array(0.3600..., dtype=float32, weak_type=True)
    """
    if concrete is not None:
        raise NotImplementedError("checkpoint has no option `concrete`. Fix: name the arguments that are to be taken "
                                  "by value with `static_argnums`.")
    if policy is not None and not callable(policy):
        raise TypeError(f"The policy of checkpoint is a function, got {policy!r}. Fix: one of "
                        "anima.checkpoint_policies, as checkpoint_policies.dots_saveable, "
                        "or policy(primitive, *avals, **params) -> bool.")
    if fun is None:
        return partial(checkpoint, prevent_cse=prevent_cse, policy=policy, static_argnums=static_argnums,
                       static_argnames=static_argnames)
    nums = given_nums = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    if names:
        order = list(inspect.signature(fun).parameters)
        nums = (*nums, *(order.index(n) for n in names if n in order))

    @wraps(fun)
    @errors.api_boundary
    def call(*args: Any, **kwargs: Any) -> Any:
        if not all(-len(args) <= n < len(args) for n in given_nums):
            raise ValueError(f"the static_argnums of checkpoint must be of positional arguments, "
                             f"-{len(args)} <= n < {len(args)}, but are {given_nums}.")
        where = {n % len(args) for n in nums if -len(args) <= n < len(args)}
        fixed = {k: v for k, v in kwargs.items() if k in names}
        leaves, in_tree = tree.flatten(([a for i, a in enumerate(args) if i not in where],
                                        {k: v for k, v in kwargs.items() if k not in names}))

        def whole(rest: Any, named: Any) -> Any:
            given = iter(rest)
            return fun(*(a if i in where else next(given) for i, a in enumerate(args)), **named, **fixed)

        avals = list(map(aval_of, leaves))

        def make() -> tuple[ClosedJaxpr, list[Any], Any]:
            jaxpr, consts, out_tree = trace_pytrees(whole, in_tree, avals, Traced(fun_name(fun), by="checkpoint"))
            # Layers of a network are equal programs mostly: what is derived from one is made once.
            return interned(hoisted(jaxpr)), consts, out_tree

        static = tuple([(i, args[i]) for i in sorted(where)] + sorted(fixed.items()))
        key = "checkpoint", in_tree, tuple(avals), len(args), static, exact_type(static)
        closed, consts, out_tree = kept(fun, key, make)
        outs = checkpoint_p.bind(*consts, *leaves, jaxpr=closed, prevent_cse=prevent_cse, differentiated=False,
                                 policy=policy)
        return tree.unflatten(out_tree, outs)

    return call


def checkpoint_name(x: Any, name: str) -> Any:
    """`x`, under a name that the policies of `checkpoint` go by; every leaf of a pytree."""
    return tree.map(lambda leaf: name_p.bind(leaf, name=name), x)


class _Policies(type):
    """Tells who misses the name of a policy by a letter."""

    def __getattr__(cls, name: str) -> Any:
        raise AttributeError(f"checkpoint_policies has no attribute {name!r}.{did_you_mean(name, dir(cls))}")


class checkpoint_policies(metaclass=_Policies):
    """Which intermediate results `checkpoint` keeps: `policy(primitive, *avals, **params) -> bool`.

    A policy may also answer `Saveable`, `Recompute` or `Offloadable(src, dst)` of `anima.ad_checkpoint`.
    """

    @staticmethod
    def everything_saveable(prim: Primitive, *avals: Any, **params: Any) -> bool:
        """Keep every result: as without `checkpoint`."""
        return True

    @staticmethod
    def nothing_saveable(prim: Primitive, *avals: Any, **params: Any) -> bool:
        """Keep no result."""
        return False

    @staticmethod
    def dots_saveable(prim: Primitive, *avals: Any, **params: Any) -> bool:
        """Keep results of matrix products and convolutions."""
        return prim.name in ("dot_general", "conv_general_dilated")

    checkpoint_dots = dots_saveable

    @staticmethod
    def dots_with_no_batch_dims_saveable(prim: Primitive, *avals: Any, **params: Any) -> bool:
        """Keep results of matrix products without batch dimensions."""
        return prim.name == "dot_general" and not params["dimension_numbers"][1][0]

    checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable

    @staticmethod
    def save_only_these_names(*names: str) -> Policy:
        """Keep values named so by `checkpoint_name`."""
        return lambda prim, *avals, **params: prim is name_p and params["name"] in names

    @staticmethod
    def save_any_names_but_these(*names: str) -> Policy:
        """Keep values named by `checkpoint_name`, except these."""
        return lambda prim, *avals, **params: prim is name_p and params["name"] not in names

    @staticmethod
    def save_anything_except_these_names(*names: str) -> Policy:
        """Keep every result except values named so."""
        return lambda prim, *avals, **params: not (prim is name_p and params["name"] in names)

    @staticmethod
    def save_and_offload_only_these_names(*, names_which_can_be_saved: Sequence[str],
                                          names_which_can_be_offloaded: Sequence[str], offload_src: str,
                                          offload_dst: str) -> Policy:
        """Keep values named so by `checkpoint_name`, the second ones in the memory `offload_dst`."""
        both = set(names_which_can_be_saved) & set(names_which_can_be_offloaded)
        if both:
            raise ValueError(f"The names should be either saved or offloaded, not both: {sorted(both)}")

        def policy(prim: Primitive, *avals: Any, **params: Any) -> Any:
            if prim is name_p and params["name"] in names_which_can_be_offloaded:
                return Offloadable(offload_src, offload_dst)
            return prim is name_p and params["name"] in names_which_can_be_saved

        return policy

    @staticmethod
    def offload_dot_with_no_batch_dims(offload_src: str, offload_dst: str) -> Policy:
        """Keep results of matrix products without batch dimensions in the memory `offload_dst`."""
        keep, there = checkpoint_policies.dots_with_no_batch_dims_saveable, Offloadable(offload_src, offload_dst)
        return lambda prim, *avals, **params: keep(prim, *avals, **params) and there

    @staticmethod
    def save_from_both_policies(first: Policy, second: Policy) -> Policy:
        """Keep what either policy keeps."""
        return lambda prim, *avals, **params: (first(prim, *avals, **params) or second(prim, *avals, **params))


def saved_residuals(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> list[tuple[ShapedArray, str]]:
    """What reverse mode of `fun` would keep: types, and where each value comes from."""
    leaves, in_tree = tree.flatten((args, kwargs))
    jaxpr, consts, _ = trace_pytrees(lambda args, kwargs: fun(*args, **kwargs), in_tree, list(map(aval_of, leaves)),
                                     Traced(fun_name(fun), by="saved_residuals"))
    closed = ClosedJaxpr(jaxpr, consts)
    nonzero = tuple(tangent_aval(a) == a for a in closed.in_avals)
    primal, _, mask = linearize_jaxpr(closed, nonzero)
    known = {v: f"from the argument {name}" for v, name in
             zip(primal.jaxpr.invars, _argument_names(fun, args, kwargs), strict=True)}
    kept = dict.fromkeys(v for v in primal.jaxpr.outvars[len(mask):] if not isinstance(v, Literal))
    return [(v.aval, known.get(v) or _origin(primal.jaxpr, v)) for v in kept]


def _argument_names(fun: Callable[..., Any], args: Any, kwargs: Any) -> list[str]:
    """What the user calls each leaf of the arguments: `x`, `params['w']`."""
    try:
        names = [p.name for p in inspect.signature(fun).parameters.values()
                 if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    except (ValueError, TypeError):  # a callable without a signature
        names = []
    names += [f"args[{k}]" for k in range(len(names), len(args))]
    return [(names[path[1].idx] if path[0].idx == 0 else path[1].key) + tree.keystr(path[2:])
            for path, _ in tree.leaves_with_path((args, kwargs))]


def _origin(jaxpr: Jaxpr | ClosedJaxpr, var: Atom) -> str:
    """Which operation of the user's made a value, or what name it has."""
    for eqn in jaxpr.eqns:
        if var in eqn.outvars:
            at = eqn.outvars.index(var)
            found = [_origin(inner, inner.outvars[at]) for inner in subjaxprs(eqn.params)
                     if len(inner.outvars) == len(eqn.outvars)]
            inside = [text for text in found if text != "a constant"]
            if inside:  # of branches, the one that does not just fill the place
                return min(inside, key=lambda text: ("output of broadcast_in_dim" in text, text))
            what = f"named '{eqn.params['name']}'" if eqn.primitive is name_p else f"output of {eqn.primitive.name}"
            return f"{what} from {eqn.source}"
    return "a constant"


def print_saved_residuals(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Prints what reverse mode of `fun` would keep, one line a value."""
    for aval, origin in saved_residuals(fun, *args, **kwargs):
        print(f"{aval.str_short(short_dtypes=True)} {origin}")
