"""Collectives for users: sums, extremes and exchanges between the elements of axes that `vmap` has named, or a mesh.

    >>> vmap(lambda x: lax.psum(x, "i"), axis_name="i")(jnp.arange(4.0))
    Array([6., 6., 6., 6.], dtype=float32)

An axis name is any hashable value but an int; of several, in a tuple, the elements are numbered in row-major order.
Sums and extremes take ints too: axes of the operand itself.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from anima import tree
from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import canonicalize_axis
from anima.core.axes import manual_names, size_of, varying
from anima.core.trace import Tracer, aval_of
from anima.ops import collective, exchange
from anima.ops.broadcast import as_array, expand_dims, reduce_sum
from anima.ops.elementwise import convert, div, mul
from anima.ops.family import constant
from anima.ops.shape import squeeze

Groups = Sequence[Sequence[int]] | None


def _names(axis_name: Any) -> tuple[Any, ...]:
    return tuple(axis_name) if isinstance(axis_name, (tuple, list, set, frozenset)) else (axis_name,)


def bound(axis_name: Any, caller: str) -> tuple[tuple[Any, ...], int]:
    """The names and how many elements they have together; NameError for one that is not bound."""
    names = _names(axis_name)
    if len(set(names)) != len(names):
        raise ValueError(f"{caller}: an axis name is there twice in {axis_name!r}.")
    return names, math.prod(size_of(n, caller) for n in names)


def _one_or_all(names: tuple[Any, ...]) -> Any:
    return names[0] if len(names) == 1 else names


def grouped(axis_index_groups: Groups, names: Sequence[Any], caller: str) -> Any:
    """The groups as tuples, checked against the size of the axis."""
    if axis_index_groups is None:
        return None
    groups = tuple(tuple(map(operator.index, g)) for g in axis_index_groups)
    size = math.prod(size_of(n, caller) for n in names if not isinstance(n, int))
    if sorted(i for g in groups for i in g) != list(range(size)):
        raise ValueError("axis_index_groups must cover all indices exactly once")
    if caller not in _UNEQUAL and len(set(map(len, groups))) > 1:
        raise ValueError(f"{caller}: axis_index_groups must all be the same size, got {groups}.")
    return groups


_UNEQUAL = ("psum", "pmax", "pmin")  # what may be done in groups of different sizes


def axis_size(axis_name: Any) -> int:
    """The number of elements of a mapped axis (of all, for a tuple of names); NameError if it has no such name here.

    >>> vmap(lambda x: x / lax.axis_size("i"), axis_name="i")(jnp.array([1.0, 2.0]))
    Array([0.5, 1. ], dtype=float32)
    """
    return math.prod(size_of(n, "axis_size") for n in _names(axis_name))


def axis_index(axis_name: Any) -> Array:
    """The number of the element in the mapped axis, an int32; for a tuple of names, the last changes fastest.

    >>> vmap(lambda x: x * lax.axis_index("i"), axis_name="i")(jnp.array([5, 6, 7]))
    Array([ 0,  6, 14], dtype=int32)
    """
    names, _ = bound(axis_name, "axis_index")
    return exchange.flat_index(names) if names else as_array(np.int32(0))


# ---------------------------------------------------------------- sums and extremes

def _reduced(primitive: collective.AxesReduce, x: Any, axis_name: Any, axis_index_groups: Groups) -> Any:
    names = _names(axis_name)
    groups = grouped(axis_index_groups, names, primitive.name)
    if groups is not None and any(isinstance(n, int) for n in names):
        raise ValueError("axis_index_groups only supported for sums over just named axes.")
    bound([n for n in names if not isinstance(n, int)], primitive.name)

    def one(leaf: Any) -> Any:
        return collective.reduce_named(primitive, leaf, names, groups) if names else as_array(leaf)

    return tree.map(one, x)


def psum(x: Any, axis_name: Any, *, axis_index_groups: Groups = None) -> Any:
    """The sum over a mapped axis, or several, of each leaf of the pytree `x`; bools are counted.

    Args:
      axis_name: a name, an int (an axis of the leaf itself), or a tuple of them.
      axis_index_groups: sum within groups of elements only, each a sequence of their numbers.

    Raises:
      NameError: for a name that no enclosing `vmap`, `pmap` or `shard_map` has given.
      ValueError: for a name that is there twice, or groups that do not have each element once.

    A number that does not depend on the mapped argument is multiplied at once: `psum(1, "i")` is the axis' size.

    >>> vmap(lambda x: x / lax.psum(x, "i"), axis_name="i")(jnp.array([1.0, 3.0]))
    Array([0.25, 0.75], dtype=float32)
    """
    names = _names(axis_name)
    groups = grouped(axis_index_groups, names, "psum")
    _, size = bound([n for n in names if not isinstance(n, int)], "psum")
    if groups:
        sizes = set(map(len, groups))
        size = sizes.pop() if len(sizes) == 1 else 0  # 0: not the same for all
    positions = [n for n in names if isinstance(n, int)]

    def one(leaf: Any) -> Any:
        aval = aval_of(leaf)
        if aval.dtype == dtypes.bool_:
            leaf = convert(leaf, np.dtype(np.int32)) if not isinstance(leaf, bool) else np.int32(leaf)
        if isinstance(leaf, Tracer) or not names or not size:
            return _reduced(collective.psum_p, leaf, names, axis_index_groups)
        if positions:
            leaf = reduce_sum(leaf, [canonicalize_axis(a, aval.ndim) for a in positions])
        if isinstance(leaf, (int, float, complex)):
            return leaf * size
        return mul(leaf, constant(size, aval_of(leaf).dtype))

    return tree.map(one, x)


def pmean(x: Any, axis_name: Any, *, axis_index_groups: Groups = None) -> Any:
    """The mean over a mapped axis, or several, of each leaf of the pytree `x`; see `psum`.

    >>> vmap(lambda x: x - lax.pmean(x, "i"), axis_name="i")(jnp.array([1.0, 3.0]))
    Array([-1.,  1.], dtype=float32)
    """
    total = psum(x, axis_name, axis_index_groups=axis_index_groups)
    count = psum(1, axis_name=[n for n in _names(axis_name) if not isinstance(n, int)],
                 axis_index_groups=axis_index_groups)

    def one(leaf: Any, given: Any) -> Any:
        here = math.prod(aval_of(given).shape[a] for a in _names(axis_name) if isinstance(a, int))
        aval = aval_of(leaf)
        if isinstance(leaf, (int, float, complex)):
            return leaf / (int(count) * here)
        if not dtypes.issubdtype(aval.dtype, np.inexact):
            leaf = convert(leaf, dtypes.canonicalize_dtype(np.float64))
        dtype = aval_of(leaf).dtype
        if isinstance(count, int):
            return div(leaf, constant(count * here, dtype))
        return div(leaf, convert(mul(count, here), dtype))  # groups of different sizes

    return tree.map(one, total, x)


def pmax(x: Any, axis_name: Any, *, axis_index_groups: Groups = None) -> Any:
    """The greatest over a mapped axis, or several, of each leaf of the pytree `x`; see `psum`.

    >>> vmap(lambda x: lax.pmax(x, "i"), axis_name="i")(jnp.array([1, 3, 2]))
    Array([3, 3, 3], dtype=int32)
    """
    return _reduced(collective.pmax_p, x, axis_name, axis_index_groups)


def pmin(x: Any, axis_name: Any, *, axis_index_groups: Groups = None) -> Any:
    """The least over a mapped axis, or several, of each leaf of the pytree `x`; see `psum`.

    >>> vmap(lambda x: lax.pmin(x, "i"), axis_name="i")(jnp.array([1, 3, 2]))
    Array([1, 1, 1], dtype=int32)
    """
    return _reduced(collective.pmin_p, x, axis_name, axis_index_groups)


# ---------------------------------------------------------------- exchanges

def ppermute(x: Any, axis_name: Any, perm: Sequence[tuple[int, int]]) -> Any:
    """For each pair (a, b) of `perm`, element b gets the leaves of the pytree `x` that element a has; others get zeros.

    Raises:
      ValueError: where two pairs have the same source or the same target, or one names no element.

    >>> vmap(lambda x: lax.ppermute(x, "i", [(0, 1), (1, 2), (2, 0)]), axis_name="i")(jnp.array([5, 6, 7]))
    Array([7, 5, 6], dtype=int32)
    """
    names, size = bound(axis_name, "ppermute")
    pairs = tuple((operator.index(a), operator.index(b)) for a, b in perm)
    for ends in zip(*pairs, strict=True):
        if len(set(ends)) < len(ends) or not all(0 <= i < size for i in ends):
            raise ValueError(f"ppermute sources and destinations must be unique and less than the size {size} of the "
                             f"axis, got {pairs}.")
    return tree.map(lambda leaf: exchange.ppermute_p.bind(leaf, axis_name=names, perm=pairs), x)


def pshuffle(x: Any, axis_name: Any, perm: Sequence[int]) -> Any:
    """Element k gets what element `perm[k]` has: `ppermute` by a whole permutation.

    >>> vmap(lambda x: lax.pshuffle(x, "i", [2, 0, 1]), axis_name="i")(jnp.array([5, 6, 7]))
    Array([7, 5, 6], dtype=int32)
    """
    if set(perm) != set(range(len(perm))):
        raise ValueError(f"`perm` does not represent a permutation: {perm}")
    return ppermute(x, axis_name, list(zip(perm, range(len(perm)), strict=True)))


def pbroadcast(x: Any, axis_name: Any, source: int) -> Any:
    """Every element gets what the element with the number `source` has.

    >>> vmap(lambda x: lax.pbroadcast(x, "i", 2), axis_name="i")(jnp.array([5, 6, 7]))
    Array([7, 7, 7], dtype=int32)
    """
    (names, size), source = bound(axis_name, "pbroadcast"), operator.index(source)
    if not 0 <= source < size:
        raise ValueError(f"pbroadcast: there is no element {source} in an axis of size {size}.")
    return tree.map(lambda leaf: collective.pbroadcast_p.bind(leaf, axis_name=_one_or_all(names), source=source), x)


def pcast(x: Any, axis_name: Any, *, to: str) -> Any:
    """`x`, declared to vary along mapped axes (`to="varying"`), of which a gradient is then the sum.

    That is about `shard_map`, with `check_vma=True`; elsewhere every value may vary, and this is the identity.

    Raises:
      ValueError: where `x` varies along one of the axes already, and for another `to`.
      NotImplementedError: for values that are sums of parts (`to="unreduced"`, `to="reduced"`).

    >>> f = anima.shard_map(lambda w: lax.pcast(w, "i", to="varying"), mesh=anima.make_mesh((1,), ("i",)),
    ...                     in_specs=anima.P(), out_specs=anima.P("i"))
    >>> f(jnp.array([1.0, 2.0]))
    Array([1., 2.], dtype=float32)
    """
    names, _ = bound(axis_name, "pcast")
    if to in ("unreduced", "reduced"):
        raise NotImplementedError(f"pcast(..., to={to!r}): values that are sums of parts are not supported.")
    if to != "varying":
        raise ValueError(f"Unexpected to={to!r} of pcast. Allowed: 'varying'.")
    about = manual_names().intersection(names)

    def one(leaf: Any) -> Any:
        already = about & aval_of(leaf).vma
        if already:
            raise ValueError(f"pcast(..., {axis_name!r}, to='varying') of a {aval_of(leaf).str_short()}, which varies "
                             f"along {', '.join(sorted(map(str, already)))} already.")
        return varying(leaf, about)

    return tree.map(one, x)


class Sent:
    """What `psend` has sent: `precv` takes it. A pytree of the one array that arrives."""

    def __init__(self, arrived: Any, names: tuple[Any, ...], perm: tuple[tuple[int, int], ...]) -> None:
        self.arrived, self.names, self.perm = arrived, names, perm

    def __repr__(self) -> str:
        return f"Sent(names={self.names}, perm={self.perm})"


tree.register_pytree_node(Sent, lambda x: ((x.arrived,), (x.names, x.perm)),
                          lambda given, leaves: Sent(leaves[0], *given))


def psend(x: Any, axis_name: Any, perm: Sequence[tuple[int, int]]) -> Any:
    """Sends each leaf of the pytree `x` from element `a` to element `b`, for the pairs (a, b) of `perm`.

    Returns:
      For each leaf a token, for `precv`, and for `optimization_barrier` where something else is to come first.

    Differs from JAX: there, sending and receiving apart is for GPUs alone.

    >>> def shifted(x): return lax.precv(lax.psend(x, "i", [(0, 1), (1, 2)]), typeof(x), "i", [(0, 1), (1, 2)])
    >>> vmap(shifted, axis_name="i")(jnp.array([5, 6, 7]))
    Array([0, 5, 6], dtype=int32)
    """
    names, pairs = _names(axis_name), tuple((operator.index(a), operator.index(b)) for a, b in perm)
    return tree.map(lambda leaf: Sent(ppermute(leaf, axis_name, pairs), names, pairs), x)


def precv(token: Any, out_shape: Any, axis_name: Any, perm: Sequence[tuple[int, int]]) -> Any:
    """What `psend`, which gave the token, has sent to this element: zeros where that is nothing.

    Args:
      out_shape: its shape and dtype, as a `ShapeDtypeStruct`.
      axis_name, perm: what `psend` was told.

    Raises:
      TypeError: for a token that is not of `psend`, and for another shape or dtype than was sent.
      ValueError: for other names or pairs.
    """
    if not isinstance(token, Sent):
        raise TypeError(f"precv takes a token that psend has given, got {token!r}.")
    pairs = tuple((operator.index(a), operator.index(b)) for a, b in perm)
    if token.names != _names(axis_name) or token.perm != pairs:
        raise ValueError(f"precv over {axis_name!r} with the pairs {pairs} does not belong to psend over {token.names} "
                         f"with the pairs {token.perm}.")
    found = aval_of(token.arrived)
    if found.shape != tuple(out_shape.shape) or found.dtype != dtypes.canonicalize_dtype(out_shape.dtype):
        raise TypeError(f"precv of {out_shape} gets what psend has sent, which is {found.str_short()}.")
    return token.arrived


def all_gather(x: Any, axis_name: Any, *, axis_index_groups: Groups = None, axis: int = 0, tiled: bool = False,
               to: str = "varying") -> Any:
    """What all elements have, of each leaf of the pytree `x`, side by side along a new axis.

    Args:
      axis: where the new axis stands in the result; if `tiled`, the axis along which leaves are joined end to end.
      to: "varying", or "invarying", where types tell (in `shard_map`) that all elements get the same.

    >>> vmap(lambda x: lax.all_gather(x, "i"), axis_name="i")(jnp.array([5, 6]))
    Array([[5, 6],
           [5, 6]], dtype=int32)
    """
    names, size = bound(axis_name, "all_gather")
    if to == "reduced":
        raise NotImplementedError("all_gather(..., to='reduced'): values that are sums of parts are not supported.")
    if to not in ("varying", "invarying"):
        raise ValueError(f"Unexpected to={to!r} of all_gather. Allowed: 'varying', 'invarying'.")
    groups = grouped(axis_index_groups, names, "all_gather")
    if groups is not None and to == "invarying":
        raise NotImplementedError("all_gather(..., to='invarying'): with axis_index_groups, results differ.")

    def one(leaf: Any) -> Any:
        ndim = aval_of(leaf).ndim
        params = {"all_gather_dimension": canonicalize_axis(axis, ndim if tiled else ndim + 1), "axis_name": names,
                  "axis_size": len(groups[0]) if groups else size, "tiled": bool(tiled)}
        if to == "invarying" and manual_names().issuperset(names):  # elsewhere, no type tells
            return exchange.all_gather_invariant_p.bind(leaf, **params)
        return exchange.all_gather_p.bind(leaf, axis_index_groups=groups, **params)

    return tree.map(one, x)


def psum_scatter(x: Any, axis_name: Any, *, scatter_dimension: int = 0, axis_index_groups: Groups = None,
                 tiled: bool = False) -> Any:
    """The sum over a mapped axis, of which each element gets its own part along `scatter_dimension`.

    That has the size of the axis and is gone after; if `tiled`, its size is a multiple and each gets so many in a row.

    >>> vmap(lambda x: lax.psum_scatter(x, "i"), axis_name="i")(jnp.array([[1, 2], [3, 4]]))
    Array([4, 6], dtype=int32)
    """
    names, size = bound(axis_name, "psum_scatter")
    groups = grouped(axis_index_groups, names, "psum_scatter")
    size = len(groups[0]) if groups else size
    return tree.map(lambda leaf: exchange.reduce_scatter_p.bind(
        leaf, axis_index_groups=groups, axis_name=names, axis_size=size, tiled=bool(tiled),
        scatter_dimension=canonicalize_axis(scatter_dimension, aval_of(leaf).ndim)), x)


def all_to_all(x: Any, axis_name: Any, split_axis: int, concat_axis: int, *, axis_index_groups: Groups = None,
               tiled: bool = False) -> Any:
    """Every element cuts `split_axis` into one part for each element, and joins those that it gets along `concat_axis`.

    Without `tiled`, `split_axis` has the size of the mapped axis and is gone after, and `concat_axis` is a new one: the
    mapped axis and one of the leaf change places.

    >>> vmap(lambda x: lax.all_to_all(x, "i", 0, 0), axis_name="i")(jnp.array([[1, 2], [3, 4]]))
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    names, size = bound(axis_name, "all_to_all")
    groups = grouped(axis_index_groups, names, "all_to_all")
    size = len(groups[0]) if groups else size

    def bind(leaf: Any, split: int, concat: int) -> Any:
        return exchange.all_to_all_p.bind(leaf, axis_index_groups=groups, axis_name=_one_or_all(names),
                                            concat_axis=concat, split_axis=split, tiled=bool(tiled))

    def one(leaf: Any) -> Any:
        shape = aval_of(leaf).shape
        split, concat = canonicalize_axis(split_axis, len(shape)), canonicalize_axis(concat_axis, len(shape))
        if tiled:
            return bind(leaf, split, concat)
        if shape[split] != size:
            raise ValueError("all_to_all requires the size of the mapped axis axis_name to equal x.shape[split_axis], "
                             f"but they are {size} and {shape[split]} respectively.")
        if split == concat:
            return bind(leaf, split, concat)
        at = concat + (concat > split)
        gone = split + (concat < split)
        return squeeze(bind(expand_dims(leaf, (at,)), gone, at), (gone,))

    return tree.map(one, x)


def pswapaxes(x: Any, axis_name: Any, axis: int, *, axis_index_groups: Groups = None) -> Any:
    """Exchanges the mapped axis and the axis `axis` of `x`, of the same size.

    >>> vmap(lambda x: lax.pswapaxes(x, "i", 0), axis_name="i")(jnp.array([[1, 2], [3, 4]]))
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    return all_to_all(x, axis_name, axis, axis, axis_index_groups=axis_index_groups)
