"""Taylor-mode automatic differentiation: all derivatives of a function along a curve, at polynomial cost.

    jet(sin, (x0,), ([x1, x2],))   ->   sin(x0), [cos(x0) x1, cos(x0) x2 - sin(x0) x1^2]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from anima import errors, tree
from anima.core import dtypes
from anima.core.avals import ShapedArray, tangent_aval
from anima.core.stage import flattened
from anima.core.trace import Tracer, aval_of
from anima.interpreters.rules import Rule, RuleTable
from anima.names import access
from anima.ops.broadcast import as_array, broadcast
from anima.ops.elementwise import convert, mul
from anima.transforms.taylor import Term, padded, taylor_flat
from anima.util import lazy_module

_ad = lazy_module("anima.interpreters.ad")


class ZeroSeries:
    """The series of an argument that does not move along the curve."""

    def __repr__(self) -> str:
        return "zero_series"


zero_series = ZeroSeries()


@errors.api_boundary
def jet(fun: Callable[..., Any], primals: Sequence[Any], series: Sequence[Any], factorial_scaled: bool = True,
        **_: Any) -> tuple[Any, Any]:
    """The value of `fun` and its derivatives of order 1 to K along a curve (Taylor mode).

    The curve x(s) passes `primals` at s = 0, and `series` are its derivatives there. The cost is K^2 times that
    of `fun` for products, where K nested `jvp` take 2^K. Rules come from the primitives' `jvp` rules, so that
    what can be differentiated K times has a jet: control flow, linear algebra, custom derivatives, all of it.

    Args:
      fun: a function of arrays and pytrees of them.
      primals: a tuple or list of its positional arguments.
      series: a tuple or list of as many: for an array, a list of its derivatives x', x'', ... of order 1 to K,
        of its shape and dtype; for a pytree, one with such lists in place of the leaves. A derivative may be
        None for zero; `None` or `zero_series` in place of a list or of a tree is one of zeros.
      factorial_scaled: terms are derivatives; with False, they are coefficients of powers of s, which are the
        derivatives divided by k!, in `series` and in the result.

    Returns:
      `(fun(*primals), derivatives)`: the latter with a list of K terms in place of each array of the former.

    Raises:
      TypeError: for terms of another dtype than their argument, or an integer argument that moves.
      ValueError: for lists of different lengths, or terms of another shape.

    Source: Griewank and Walther, "Evaluating Derivatives", 2nd ed. 2008, chapter 13; Bettencourt, Johnson and
    Duvenaud, "Taylor-mode automatic differentiation for higher-order derivatives in JAX", 2019.
    Differs from JAX: arguments may be pytrees, every operation has its rule, and those of `custom_jvp` are used.

    >>> value, (slope, curvature) = jet(lambda x: x ** 3, (2.0,), ([1.0, 0.0],))
    >>> float(value), float(slope), float(curvature)
    (8.0, 12.0, 12.0)
    """
    if not callable(fun):
        raise TypeError(f"jet expects a callable as its first argument, got {fun!r}.")
    for what, given in (("primals", primals), ("series", series)):
        if not isinstance(given, (tuple, list)):
            raise TypeError(f"jet expects {what} to be a tuple or a list, one item for each argument; "
                            f"got {type(given).__name__}.")
    if len(primals) != len(series):
        raise ValueError(f"jet got {len(primals)} primals but {len(series)} series: there must be one series for each "
                         "argument.")
    leaves, in_tree = tree.flatten(tuple(primals))
    given = [s for p, x in zip(primals, series, strict=True) for s in _series_of(p, x)]
    order = _order(given)
    scales = [math.factorial(k) if factorial_scaled else 1 for k in range(1, order + 1)]
    terms = [_term(x, s, scales) for x, s in zip(leaves, given, strict=True)]
    flat_fun, trees = flattened(fun, in_tree, lambda _, outs: list(map(as_array, outs)))
    outs = [padded(t, order) for t in taylor_flat(flat_fun, order, terms)]
    derivatives = [[_scaled(c, f) for c, f in zip(t[1:], scales, strict=True)] for t in outs]
    return tree.unflatten(trees[0], [t[0] for t in outs]), tree.unflatten(trees[0], derivatives)


def _is_zero(series: Any) -> bool:
    return series is None or isinstance(series, ZeroSeries)


def _series_of(primal: Any, series: Any) -> list[Any]:
    """The series (a list of terms, or None) for each leaf of an argument."""
    found: list[Any] = []
    if _is_zero(series):
        return [None] * len(tree.leaves(primal))
    try:
        tree.map(lambda _, s: found.append(None if _is_zero(s) else s), primal, series)
    except ValueError as error:
        raise ValueError("jet: the series of an argument must have its tree structure, with a list of derivatives in "
                         f"place of each array. {error}") from None
    return found


def _order(series: Sequence[Any]) -> int:
    """How many terms all series have."""
    for s in series:
        if s is not None and not isinstance(s, (tuple, list)):
            raise TypeError(f"jet expects the series of an array to be a list of its derivatives, got {s!r}.")
    lengths = {len(s) for s in series if s is not None}
    if len(lengths) != 1:
        what = f"they have {sorted(lengths)} terms" if lengths else "no argument has terms"
        raise ValueError(f"jet terms have inconsistent lengths for different arguments: {what}.")
    return lengths.pop()


def _term(x: Any, series: Sequence[Any] | None, scales: Sequence[int]) -> Term:
    """An argument and its coefficients."""
    x = as_array(x)
    if series is None:
        return [x]
    aval = aval_of(x)
    if tangent_aval(aval) is not aval:
        if any(c is not None and not _known_zero(c) for c in series):
            raise TypeError(f"jet: an argument of type {aval.str_short()} has no derivatives but zero; make it a "
                            "float, or give None or zero_series for its series.")
        return [x]
    return [x, *(None if c is None else _scaled(_checked(c, aval), 1 / f)
                 for c, f in zip(series, scales, strict=True))]


def _known_zero(x: Any) -> bool:
    return not isinstance(x, Tracer) and (aval_of(x).dtype == dtypes.float0 or not np.any(np.asarray(x)))


def _checked(c: Any, aval: ShapedArray) -> Any:
    """A derivative of an argument of type `aval`; a scalar stands for an array of it."""
    got = aval_of(c)
    if dtypes.lattice_result_type((got.dtype, got.weak_type), (aval.dtype, False))[0] != aval.dtype:
        raise TypeError(f"jet: the terms of an argument of type {aval.str_short()} must be of its dtype, got "
                        f"{got.str_short()}.")
    if got.shape not in ((), aval.shape):
        raise ValueError(f"jet: the terms of an argument of type {aval.str_short()} must have its shape, got "
                         f"{got.str_short()}.")
    c = convert(c, aval.dtype, aval.weak_type)
    return c if got.shape == aval.shape else broadcast(c, aval.shape)


def _scaled(x: Any, factor: float) -> Any:
    return x if factor == 1 or tangent_aval(aval_of(x)) is not aval_of(x) else mul(x, float(factor))


# ---------------------------------------------------------------- rules from outside

def _as_method(primitive: Any, rule: Rule) -> Rule:
    """A rule of derivatives as one of coefficients."""
    def taylor(order: int, terms: Sequence[Term], **params: Any) -> list[Term]:
        scales = [math.factorial(k) for k in range(1, order + 1)]
        full = [padded(t, order) for t in terms]
        series = [[_scaled(c, f) for c, f in zip(t[1:], scales, strict=True)] for t in full]
        out, derivatives = rule([t[0] for t in full], series, **params)
        pairs = zip(out, derivatives, strict=True) if primitive.multiple_results else [(out, derivatives)]
        return [[x, *(_scaled(c, 1 / f) for c, f in zip(s, scales, strict=True))] for x, s in pairs]

    return taylor


class _JetRules(RuleTable):
    """`table[p] = rule` with `rule(primals, series, **params) -> (result, its series)`, or lists of both for several
    results. A series is a list of derivatives. What has a `jvp` rule has one of these."""

    def __contains__(self, primitive: object) -> bool:
        return super().__contains__(primitive) or primitive in _ad.primitive_jvps

    def __getitem__(self, primitive: Any) -> Rule:
        if super().__contains__(primitive):
            table, given = getattr(primitive.taylor, "given", (None, None))
            if table is self:
                return given
        if primitive not in self:
            raise KeyError(primitive)
        return lambda primals, series, **params: jet(partial(primitive.bind, **params), tuple(primals), tuple(series))


jet_rules = _JetRules("taylor", _as_method)

globals().update(access(__name__, globals()))
