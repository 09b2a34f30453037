"""Functions of the operations in `jax.lax` that are made of other ones: map, associative_scan, approximate top k.

    >>> lax.associative_scan(jnp.add, jnp.arange(5))
    Array([ 0,  1,  3,  6, 10], dtype=int32)
"""

from __future__ import annotations

import operator as op
from collections.abc import Callable
from typing import Any

import numpy as np

from anima import tree
from anima.api.mapping import vmap
from anima.control.scan import scan_length
from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import broadcast_shapes, canonicalize_axis
from anima.core.jaxpr import all_eqns
from anima.core.stage import StageTrace, StageTracer, trace_to_jaxpr
from anima.core.state import current
from anima.core.trace import Tracer, aval_of
from anima.lax.control import scan
from anima.ops import elementwise as ew, shape as sh, sort as st
from anima.ops.contract import natural_dtype
from anima.ops.family import ANY, match_scalars
from anima.ops.reduce import prefixes
from anima.ops.special import random_gamma_grad_p
from anima.transforms.composed import Composed
from anima.util import calling, fun_name


def reciprocal(x: Any) -> Array:
    """1 / x, element by element."""
    return ew.integer_pow(x, -1)


def mul(x: Any, y: Any, *, out_dtype: Any = None) -> Array:
    """The product, element by element, of arrays of one dtype; in `out_dtype`, where products may be wider, if given.

    >>> lax.mul(jnp.int8(100), jnp.int8(100), out_dtype=jnp.int32)
    Array(10000, dtype=int32)
    """
    if out_dtype is None:
        return ew.mul(x, y)
    x, y = match_scalars((x, y))
    given, wanted = aval_of(x).dtype, dtypes.canonicalize_dtype(out_dtype)
    if aval_of(y).dtype != given:
        return ew.mul(x, y)  # which says what is wrong
    work = natural_dtype(given, wanted)
    return ew.convert(ew.mul(ew.convert(x, work), ew.convert(y, work)), wanted)


def random_gamma_grad(*args: Any) -> Array:
    """The derivative in `a` of a sample of the gamma distribution of order `a`: `random_gamma_grad(a, sample)`."""
    arrays = match_scalars(args)
    shape = broadcast_shapes(*(sh.shape_of(x) for x in arrays), name="random_gamma_grad")
    return random_gamma_grad_p.bind(*(sh.broadcast_to(x, shape) for x in arrays))


class _Stage(ew.Identity):
    """Applied, it leaves no equation: its value is one of the program that is being traced."""

    def bind(self, *args: Any, **params: Any) -> Any:
        x, trace = sh.as_array(*args), current.trace
        if isinstance(x, Tracer) or not isinstance(trace, StageTrace):
            return x
        return StageTracer(trace, trace.const(x, x.aval))


stage_p = _Stage("stage", lambda x: x, ANY, "x, as a value of the program that is being traced.", linear=True, cost=0,
                 jvp=(lambda t, y, x: t,), transpose=(lambda ct, x: ct,))


def stage(x: Any, /) -> Any:
    """`x` as an array; while a function is being traced, as a value of its program."""
    return stage_p.bind(x)


def shape_as_value(shape: Any) -> Array:
    """A shape as a vector of the default int.

    >>> lax.shape_as_value((2, 3))
    Array([2, 3], dtype=int32)
    """
    return sh.as_array(np.asarray(sh.as_shape(shape), dtypes.default_int()))


def map(f: Callable[[Any], Any], xs: Any, *, batch_size: int | None = None) -> Any:
    """`f` of each part of `xs` along its leading axes, one after the other, stacked.

    With `batch_size`, that many at a time are mapped together (`vmap`).

    Raises:
      ValueError: where the leading axes disagree, or there are none.
    """
    with calling("map", f, ("x",)):
        return _map(f, xs, batch_size)


def _map(f: Callable[[Any], Any], xs: Any, batch_size: int | None) -> Any:
    if not batch_size:
        return scan(lambda _, x: ((), f(x)), (), xs)[1]
    leaves, structure = tree.flatten(xs)
    count, size = divmod(scan_length(xs, None), batch_size)
    if size and not count:
        return vmap(f)(xs)
    whole = count * batch_size
    chunks = [sh.reshape(sh.slice_in_dim(x, 0, whole), (count, batch_size, *sh.shape_of(x)[1:])) for x in leaves]
    out = scan(lambda _, x: ((), vmap(f)(x)), (), tree.unflatten(structure, chunks))[1]
    out = tree.map(lambda y: sh.reshape(y, (whole, *y.shape[2:])), out)
    if not size:
        return out
    rest = vmap(f)(tree.unflatten(structure, [sh.slice_in_dim(x, whole, whole + size) for x in leaves]))
    return tree.map(lambda a, b: sh.concatenate([a, b], 0), out, rest)


def associative_scan(fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """The running results of an associative operation along `axis`.

    `fn(a, b)` combines two trees of arrays, any number of elements at once; `reverse` runs from the end. A loop goes
    from one element to the next, which combines each once; very many, or products of large matrices, which several
    threads can share, go in a logarithmic number of steps, by the even-odd method of Blelloch, "Prefix sums and their
    applications" (1990), which combines twice as often.

    Raises:
      TypeError: for a function that does not return as many arrays as its arguments are trees of.
      ValueError: where the axes of `elems` disagree.
    """
    if not callable(fn):
        raise TypeError("lax.associative_scan: fn argument should be callable.")
    leaves, structure = tree.flatten(elems)
    if not leaves:
        return elems
    axis = canonicalize_axis(axis, len(sh.shape_of(leaves[0])))
    sizes = {sh.shape_of(x)[axis] for x in leaves}
    if len(sizes) != 1:
        raise ValueError(f"Array inputs to associative_scan must have the same first dimension. (saw: {sorted(sizes)})")
    leaves = [sh.as_array(x) for x in leaves]

    def combine(a: list[Array], b: list[Array]) -> list[Array]:
        found, found_structure = tree.flatten(fn(tree.unflatten(structure, a), tree.unflatten(structure, b)))
        if len(found) != len(a):
            raise TypeError(f"associative_scan: fn must return the structure of its arguments, {structure}, but "
                            f"{fun_name(fn)} returned {found_structure}.")
        return found

    if min(sizes) < 2:
        return tree.unflatten(structure, leaves)
    if _goes_in_turn(combine, leaves, axis):
        return tree.unflatten(structure, _in_turn(combine, leaves, axis, reverse))
    leaves = [sh.rev(x, (axis,)) for x in leaves] if reverse else leaves
    leaves = [ew.convert(x, x.dtype) for x in prefixes(combine, leaves, axis)]
    return tree.unflatten(structure, [sh.rev(x, (axis,)) for x in leaves] if reverse else leaves)


IN_TURN = range(9, (1 << 15) + 1)  # as many elements are combined one after the other ...
LARGE = 1024  # ... but for products of parts of more elements

Combine = Callable[[list[Any], list[Any]], list[Any]]


def _goes_in_turn(combine: Combine, xs: list[Array], axis: int) -> bool:
    """Whether a loop can combine the elements, and is quicker than halves of them at once."""
    if xs[0].shape[axis] not in IN_TURN:
        return False
    parts = [x.aval.update(shape=(*x.shape[:axis], 1, *x.shape[axis + 1:]), weak_type=False) for x in xs]
    jaxpr, _ = trace_to_jaxpr(lambda *args: combine(list(args[:len(xs)]), list(args[len(xs):])), parts + parts)
    same = all(v.aval.shape == part.shape and v.aval.dtype == part.dtype
               for v, part in zip(jaxpr.outvars, parts, strict=True))
    multiplies = any(e.primitive.name == "dot_general" for e in all_eqns(jaxpr))
    return same and not (multiplies and max(part.size for part in parts) > LARGE)


def _in_turn(combine: Combine, xs: list[Array], axis: int, reverse: bool) -> list[Array]:
    """The running results of `combine`, by a loop."""
    rows = [sh.expand_dims(sh.moveaxis(x, axis, 0), (axis + 1,)) for x in xs]

    def step(before: list[Array], here: list[Array]) -> tuple[list[Array], list[Array]]:
        found = [ew.convert(x, x.dtype) for x in combine(before, here)]
        return found, found

    n = xs[0].shape[axis]
    start, rest = (n - 1, (0, n - 1)) if reverse else (0, (1, n))
    first = [ew.convert(x, x.dtype) for x in (sh.index_in_dim(x, start, keepdims=False) for x in rows)]
    _, others = scan(step, first, [sh.slice_in_dim(x, *rest) for x in rows], reverse=reverse)
    return [sh.moveaxis(sh.squeeze(sh.concatenate([b, one] if reverse else [one, b], 0), (axis + 1,)), 0, axis)
            for one, b in zip((sh.expand_dims(a, (0,)) for a in first), others, strict=True)]


def approx_max_k(operand: Any, k: int, reduction_dimension: int = -1, recall_target: float = 0.95,
                 reduction_input_size_override: int = -1, aggregate_to_topk: bool = True) -> list[Array]:
    """The `k` largest elements of floats along an axis, and their indices; exact here, whatever the recall asked for.

    Without `aggregate_to_topk`, all elements, in order: that is what a CPU has to choose from.
    """
    return list(_top(operand, k, reduction_dimension, recall_target, reduction_input_size_override, aggregate_to_topk,
                     True))


def approx_min_k(operand: Any, k: int, reduction_dimension: int = -1, recall_target: float = 0.95,
                 reduction_input_size_override: int = -1, aggregate_to_topk: bool = True) -> list[Array]:
    """The `k` smallest elements of floats along an axis, and their indices; see `approx_max_k`. NaN is none of them."""
    return list(_top(operand, k, reduction_dimension, recall_target, reduction_input_size_override, aggregate_to_topk,
                     False))


def _top(operand: Any, k: int, axis: int, recall_target: float, size_override: int, aggregate: bool,
         largest: bool) -> Any:
    aval, k = aval_of(operand), op.index(k)
    if not dtypes.issubdtype(aval.dtype, np.floating):
        raise ValueError("operand must be a floating type")
    size = aval.shape[canonicalize_axis(axis, aval.ndim)]
    if not 0 < k <= size:
        raise ValueError(f"k must be positive and at most the size of reduction_dim, {size}, got {k}")
    if not 0 < recall_target <= 1:
        raise ValueError(f"recall_target must be in (0, 1], got {recall_target}")
    return approx_top_k_p.bind(operand, k=k, reduction_dimension=axis, recall_target=float(recall_target),
                               reduction_input_size_override=size_override, aggregate_to_topk=bool(aggregate),
                               is_max_k=largest)


def _approx_top_k(x: Any, *, k: int, reduction_dimension: int, recall_target: float,
                  reduction_input_size_override: int, aggregate_to_topk: bool, is_max_k: bool) -> list[Any]:
    count = k if aggregate_to_topk else x.shape[reduction_dimension]
    axis = canonicalize_axis(reduction_dimension, x.ndim)
    if is_max_k:
        return st.top_k(x, count, axis=axis)
    order = ew.select_n(ew.ne(x, x), ew.neg(x), sh.full_like(x, -np.inf))  # NaN is no smaller than infinity
    indices = st.top_k(ew.stop_gradient(order), count, axis=axis)[1]
    return [st.take_along(x, indices, axis), indices]


approx_top_k_p = Composed("approx_top_k", _approx_top_k, multiple_results=True)


def _total_order(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A comparison in the total order of floats (IEEE 754): -NaN, -inf, ..., -0, 0, ..., inf, NaN."""
    def fun(x: Any, y: Any) -> Any:
        if not dtypes.issubdtype(x.dtype, np.floating):
            return compare(x, y)
        word = np.dtype(f"int{8 * x.dtype.itemsize}")
        bits = [ew.bitcast_convert_type(v, word) for v in (x, y)]
        positive = word.type(np.iinfo(word).max)
        return compare(*(ew.select_n(ew.lt(b, word.type(0)), b, ew.xor(b, positive)) for b in bits))

    return fun


eq_to_p, le_to_p, lt_to_p = (Composed(name, _total_order(compare)) for name, compare in
                             (("eq_to", ew.eq), ("le_to", ew.le), ("lt_to", ew.lt)))
