"""Functions of the operations in `jax.lax` that are made of other ones: map, associative_scan, approximate top k.

    >>> lax.associative_scan(jnp.add, jnp.arange(5))
    Array([ 0,  1,  3,  6, 10], dtype=int32)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anima import tree
from anima.api.mapping import vmap
from anima.control.scan import scan_length
from anima.core.array import Array
from anima.core.avals import canonicalize_axis
from anima.lax.control import scan
from anima.ops import elementwise as ew, shape as sh, sort as st
from anima.util import fun_name


def reciprocal(x: Any) -> Array:
    """1 / x, element by element."""
    return ew.integer_pow(x, -1)


def map(f: Callable[[Any], Any], xs: Any, *, batch_size: int | None = None) -> Any:
    """`f` of each part of `xs` along its leading axes, one after the other, stacked.

    With `batch_size`, that many at a time are mapped together (`vmap`).

    Raises:
      ValueError: where the leading axes disagree, or there are none.
    """
    if not batch_size:
        return scan(lambda _, x: ((), f(x)), (), xs)[1]
    leaves, structure = tree.flatten(xs)
    count, size = divmod(scan_length(leaves, None), batch_size)
    whole = count * batch_size
    chunks = [sh.reshape(sh.slice_in_dim(x, 0, whole), (count, batch_size, *sh.shape_of(x)[1:])) for x in leaves]
    out = scan(lambda _, x: ((), vmap(f)(x)), (), tree.unflatten(structure, chunks))[1]
    out = tree.map(lambda y: sh.reshape(y, (whole, *y.shape[2:])), out)
    if not size:
        return out
    rest = vmap(f)(tree.unflatten(structure, [sh.slice_in_dim(x, whole, whole + size) for x in leaves]))
    return tree.map(lambda a, b: sh.concatenate([a, b], 0), out, rest) if count else rest


def associative_scan(fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """The running results of an associative operation along `axis`, in a logarithmic number of steps.

    `fn(a, b)` combines two trees of arrays, any number of elements at once; `reverse` runs from the end.
    The even-odd method of Blelloch, "Prefix sums and their applications" (1990).

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
    leaves = [sh.rev(x, (axis,)) for x in leaves] if reverse else leaves

    def combine(a: list[Array], b: list[Array]) -> list[Array]:
        found, found_structure = tree.flatten(fn(tree.unflatten(structure, a), tree.unflatten(structure, b)))
        if len(found) != len(a):
            raise TypeError(f"associative_scan: fn must return the structure of its arguments, {structure}, but "
                            f"{fun_name(fn)} returned {found_structure}.")
        return found

    out = [ew.convert(x, x.dtype) for x in _prefixes(combine, leaves, axis)] if min(sizes) > 1 else leaves
    out = [sh.rev(x, (axis,)) for x in out] if reverse else out
    return tree.unflatten(structure, out)


def _every_second(x: Array, start: int, stop: int, axis: int) -> Array:
    return sh.slice_in_dim(x, start, max(start, stop), 2, axis)


def _prefixes(combine: Callable[[list[Array], list[Array]], list[Array]], xs: list[Array], axis: int) -> list[Array]:
    """Pairs are combined and scanned: these are the odd places; one more combination gives the even ones."""
    n = xs[0].shape[axis]
    if n < 2:
        return xs
    paired = n - n % 2
    pairs = combine([_every_second(x, 0, paired - 1, axis) for x in xs],
                    [_every_second(x, 1, paired, axis) for x in xs])
    odd = _prefixes(combine, pairs, axis)
    later = [_every_second(x, 2, n, axis) for x in xs]
    before = [sh.slice_in_dim(x, 0, y.shape[axis], axis=axis) for x, y in zip(odd, later, strict=True)]
    even = combine(before, later) if later[0].shape[axis] else later
    even = [sh.concatenate([sh.slice_in_dim(x, 0, 1, axis=axis), y], axis) for x, y in zip(xs, even, strict=True)]
    return [_interleaved(a, b, axis) for a, b in zip(even, odd, strict=True)]


def _interleaved(even: Array, odd: Array, axis: int) -> Array:
    """even[0], odd[0], even[1], ...; `even` may have one element more."""
    count = odd.shape[axis]
    both = sh.concatenate([sh.expand_dims(sh.slice_in_dim(even, 0, count, axis=axis), (axis + 1,)),
                           sh.expand_dims(odd, (axis + 1,))], axis + 1)
    mixed = sh.reshape(both, (*odd.shape[:axis], 2 * count, *odd.shape[axis + 1:]))
    if even.shape[axis] == count:
        return mixed
    return sh.concatenate([mixed, sh.slice_in_dim(even, count, count + 1, axis=axis)], axis)


def approx_max_k(operand: Any, k: int, reduction_dimension: int = -1, recall_target: float = 0.95,
                 reduction_input_size_override: int = -1, aggregate_to_topk: bool = True) -> list[Array]:
    """The `k` largest elements and their indices; exact here, whatever the recall asked for."""
    return st.top_k(operand, k, axis=reduction_dimension)


def approx_min_k(operand: Any, k: int, reduction_dimension: int = -1, recall_target: float = 0.95,
                 reduction_input_size_override: int = -1, aggregate_to_topk: bool = True) -> list[Array]:
    """The `k` smallest elements and their indices; exact here, whatever the recall asked for."""
    values, indices = st.top_k(ew.neg(operand), k, axis=reduction_dimension)
    return [ew.neg(values), indices]
