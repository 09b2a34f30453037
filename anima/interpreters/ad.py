"""Derivatives of primitives, given from outside.

    ad.primitive_jvps[p] = lambda primals, tangents: (p.bind(*primals), ...)
    ad.primitive_transposes[p] = lambda ct, x: [...]
    ad.deflinear2(p, lambda ct, x: [p.bind(ct)])

A tangent or cotangent may be a `Zero`; operands of a transpose rule that are to get a cotangent are `UndefinedPrimal`s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

from anima import tree
from anima.core.avals import tangent_aval
from anima.core.primitive import Linear as UndefinedPrimal, Primitive, Zero as Zero
from anima.core.stage import eval_jaxpr
from anima.core.trace import aval_of
from anima.interpreters.rules import RuleTable
from anima.names import access
from anima.ops.broadcast import instantiate, zeros as zeros_like_aval
from anima.ops.elementwise import add_any as add_jaxvals_p
from anima.transforms.forward import JVPTrace as JVPTrace, JVPTracer as JVPTracer, jvp_flat
from anima.transforms.linearize import fill, linearize_flat
from anima.transforms.transpose import add_cotangents

__all__ = ["JVPTrace", "JVPTracer", "UndefinedPrimal", "Zero", "add_jaxvals", "add_jaxvals_p", "add_tangents",
           "defbilinear", "defjvp", "defjvp2", "deflinear", "deflinear2", "get_primitive_transpose",
           "instantiate_zeros", "is_undefined_primal", "jvp", "linearize", "primitive_jvps", "primitive_transposes",
           "zeros_like_aval"]

Rule = Callable[..., Any]

primitive_jvps = RuleTable("jvp", hides=("linearize", "taylor"))
primitive_transposes = RuleTable("transpose")

for _kind in (Zero, UndefinedPrimal):
    tree.register_pytree_node(_kind, lambda x: ((), x.aval), lambda aval, _, kind=_kind: kind(aval))


def instantiate_zeros(tangent: Any) -> Any:
    """An array of zeros for a `Zero`; anything else as it is."""
    return instantiate(tangent)


def add_tangents(x: Any, y: Any) -> Any:
    """The sum of two tangents, either of which may be a `Zero`."""
    return add_cotangents(x, y)


def is_undefined_primal(x: Any) -> bool:
    """Whether `x` stands for an operand that a transpose rule is to find the cotangent of."""
    return isinstance(x, UndefinedPrimal)


def get_primitive_transpose(p: Primitive) -> Rule:
    """The transpose rule of a primitive; NotImplementedError if it has none."""
    if p not in primitive_transposes:
        raise NotImplementedError(f"Transposition (reverse-mode differentiation) of '{p.name}' is not implemented.")
    return primitive_transposes[p]


def add_jaxvals(x: Any, y: Any) -> Any:
    """The sum of two tangents."""
    return add_jaxvals_p.bind(x, y)


def _zero(out: Any) -> Zero:
    return Zero(tangent_aval(aval_of(out)))


def defjvp(primitive: Primitive, *jvprules: Rule | None) -> None:
    """Sets the forward rule: for each operand, `rule(tangent, *operands)`, or None where the result does not move."""
    defjvp2(primitive, *(None if rule is None else partial(_without_result, rule) for rule in jvprules))


def _without_result(rule: Rule, t: Any, out: Any, *primals: Any, **params: Any) -> Any:
    return rule(t, *primals, **params)


def defjvp2(primitive: Primitive, *jvprules: Rule | None) -> None:
    """Sets the forward rule: for each operand, `rule(tangent, result, *operands)`, or None."""
    def jvp_rule(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = primitive.bind(*primals, **params)
        moved = [rule(t, out, *primals, **params) for rule, t in zip(jvprules, tangents, strict=True)
                 if rule is not None and not isinstance(t, Zero)]
        return out, reduce(add_tangents, moved, _zero(out))

    primitive_jvps[primitive] = jvp_rule


def deflinear2(primitive: Primitive, transpose_rule: Rule) -> None:
    """Says that an operation is linear in all operands, and sets `transpose_rule(ct, *operands)`, which gives the
    cotangents of all."""
    def jvp_rule(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = primitive.bind(*primals, **params)
        if all(isinstance(t, Zero) for t in tangents):
            return out, list(map(_zero, out)) if primitive.multiple_results else _zero(out)
        return out, primitive.bind(*map(instantiate_zeros, tangents), **params)

    def transpose(ct: Any, *args: Any, **params: Any) -> Sequence[Any]:
        if isinstance(ct, Zero):
            return [Zero(a.aval) if is_undefined_primal(a) else None for a in args]
        return transpose_rule(ct, *args, **params)

    primitive_jvps[primitive] = jvp_rule
    primitive_transposes[primitive] = transpose


def deflinear(primitive: Primitive, transpose_rule: Rule) -> None:
    """As `deflinear2`, with `transpose_rule(ct)`."""
    deflinear2(primitive, lambda ct, *args, **params: transpose_rule(ct, **params))


def defbilinear(prim: Primitive, lhs_rule: Rule, rhs_rule: Rule) -> None:
    """Says that an operation is linear in each of two operands; `lhs_rule(ct, x, y)` gives the cotangent of x, which
    is an `UndefinedPrimal` then, and `rhs_rule(ct, x, y)` that of y."""
    defjvp(prim, lambda t, x, y, **params: prim.bind(t, y, **params),
           lambda t, x, y, **params: prim.bind(x, t, **params))

    def transpose(ct: Any, x: Any, y: Any, **params: Any) -> Sequence[Any]:
        if is_undefined_primal(x) == is_undefined_primal(y):
            raise TypeError(f"'{prim.name}' is linear in one operand at a time")
        if is_undefined_primal(x):
            return Zero(x.aval) if isinstance(ct, Zero) else lhs_rule(ct, x, y, **params), None
        return None, Zero(y.aval) if isinstance(ct, Zero) else rhs_rule(ct, x, y, **params)

    primitive_transposes[prim] = transpose


def _flat(fun: Callable[..., Any], has_aux: bool) -> tuple[Callable[..., list[Any]], list[Any], list[Any]]:
    """`fun` with leaves for results; lists that get the results' tree and, with `has_aux`, what is returned beside."""
    trees: list[Any] = []
    aux: list[Any] = []

    def flat(*xs: Any) -> list[Any]:
        out = getattr(fun, "call_wrapped", fun)(*xs)
        if has_aux:
            out, extra = out
            aux.append(extra)
        leaves, out_tree = tree.flatten(out)
        trees.append(out_tree)
        return leaves

    return flat, trees, aux


def jvp(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False,
        instantiate: bool | Sequence[bool] = True, transform_stack: bool = True) -> tuple[Any, ...]:
    """Results of `fun(*primals)` and their tangents, which are `Zero`s where `instantiate` is False.

    With `has_aux`, `fun` returns a pair, whose second part comes last as it is.
    """
    flat, trees, aux = _flat(fun, has_aux)
    outs, moved = jvp_flat(flat, primals, tangents)
    wanted = [instantiate] * len(moved) if isinstance(instantiate, bool) else instantiate
    moved = [instantiate_zeros(t) if w else t for t, w in zip(moved, wanted, strict=True)]
    return (trees[0].unflatten(outs), trees[0].unflatten(moved), *aux)


def linearize(traceable: Callable[..., Any], primals_ft: Sequence[Any], has_aux: bool = False,
              is_vjp: bool = False) -> tuple[Any, ...]:
    """(results of `traceable(*primals)`, the function from tangents to tangents), and what is returned beside the
    results, with `has_aux`."""
    flat, trees, aux = _flat(traceable, has_aux)
    outs, mask, jaxpr, consts = linearize_flat(flat, primals_ft, [True] * len(primals_ft))

    def tangents_of(*tangents: Any) -> Any:
        found = fill(mask, eval_jaxpr(jaxpr, consts, *tangents), outs)
        return trees[0].unflatten(map(instantiate_zeros, found))

    return (trees[0].unflatten(outs), tangents_of, *aux)

globals().update(access(__name__, globals()))
