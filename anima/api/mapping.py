"""`vmap`: a function of one element made a function of a stack of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from anima import errors, tree
from anima.api.signature import Signature
from anima.core.avals import ShardedArray, canonicalize_axis
from anima.core.axes import Axis
from anima.core.explicit import cut_of
from anima.core.partition import PartitionSpec as P
from anima.core.refs import Ref, check_given_once
from anima.core.source import Transform, within
from anima.core.trace import aval_of
from anima.ops.broadcast import reduce_sum
from anima.transforms.refs import cells_of, held_by, new_ref, put, whole
from anima.transforms.vmap import batch_flat, hooked, move_to
from anima.util import fun_name, wraps


def _is_none(x: Any) -> bool:
    return x is None


def vmap(fun: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0, axis_name: Any = None,
         axis_size: int | None = None, spmd_axis_name: Any = None, sum_match: bool = False) -> Callable[..., Any]:
    """Maps `fun` over an axis of its arguments, all elements at once.

    Args:
      fun: a function of arrays and pytrees of them.
      in_axes: the axis to map over: an int, None (not mapped), or a pytree prefix of them, one entry for each
        positional argument. Keyword arguments are mapped over axis 0.
      out_axes: where the mapped axis stands in the results: likewise.
      axis_name: a name of the mapped axis for collectives (`lax.psum`, ...) within `fun`.
      axis_size: the number of elements, needed only where no argument is mapped.
      spmd_axis_name: the axes of the mesh (a name, or a tuple) along which a `shard_map` within `fun` spreads the
        elements.
      sum_match: sum results that are mapped where `out_axes` says None, instead of refusing them.

    Raises:
      ValueError: for axes that do not exist or disagree in size.

    >>> vmap(lambda x, y: x * y, in_axes=(0, None))(anima.numpy.arange(3), 2)
    Array([0, 2, 4], dtype=int32)
    """
    if not callable(fun):
        raise TypeError(f"Expected a callable value, got {fun!r}")
    if isinstance(in_axes, list):
        in_axes = tuple(in_axes)
    if not (in_axes is None or isinstance(in_axes, (int, tuple))):
        raise TypeError(f"vmap in_axes must be an int, None, or a tuple of entries corresponding to the positional "
                        "arguments "
                        f"passed to the function, but got {in_axes}.")
    for leaf in tree.leaves(in_axes):
        if not isinstance(leaf, int):
            raise TypeError(f"vmap in_axes must be an int, None, or (nested) container with those types as leaves, "
                            "but got "
                            f"{in_axes}.")
    for leaf in tree.leaves(out_axes):
        if not isinstance(leaf, int):
            raise TypeError(f"vmap out_axes must be an int, None, or (nested) container with those types as leaves, "
                            "but got "
                            f"{out_axes}.")

    @wraps(fun)
    @errors.api_boundary
    def mapped(*args: Any, **kwargs: Any) -> Any:
        if isinstance(in_axes, tuple) and len(in_axes) != len(args):
            raise ValueError(f"vmap in_axes must be an int, None, or a tuple of entries corresponding to the "
                             f"positional arguments passed to the function, but got {len(in_axes)=}, {len(args)=}"
                             + (f". Arguments by name ({', '.join(kwargs)}) are mapped over their first axes, and have "
                                "no entry in in_axes: pass them by position." if kwargs else ""))
        _check_no_hooks((args, kwargs))
        leaves, in_tree = tree.flatten((args, kwargs))
        axes = tree.broadcast_prefix((in_axes, 0), (args, kwargs), is_leaf=_is_none, what="vmap in_axes")
        dims = [_axis(axis, x, k, fun, args, kwargs) for k, (axis, x) in enumerate(zip(axes, leaves, strict=True))]
        size = _axis_size(fun, args, kwargs, leaves, dims, axis_size)
        axis = _mapped_axis(size, axis_name, _names(spmd_axis_name), _cut_alike(fun, leaves, dims))
        out_tree, outs, out_dims, is_ref = _run(fun, axis, leaves, in_tree, dims)
        targets = tree.flatten_axes("vmap out_axes", out_tree, out_axes)
        if not sum_match:
            for k, (dim, target) in enumerate(zip(out_dims, targets, strict=True)):
                if target is None and dim is not None:
                    raise _mapped_result(fun, tree.leaves_with_path(tree.unflatten(out_tree, outs))[k][0], dim)
        placed = [_place(fun, o, d, t, axis) for o, d, t in zip(outs, out_dims, targets, strict=True)]
        result = tree.unflatten(out_tree, [new_ref(x) if r else x for x, r in zip(placed, is_ref, strict=True)])
        _check_no_hooks(result)
        return result

    return mapped


def _cut_alike(fun: Callable[..., Any], leaves: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, ...]:
    """The axes of type Explicit along which mapped dimensions are cut; ValueError for different ones."""
    avals = [(aval_of(x), d) for x, d in zip(leaves, dims, strict=True) if d is not None]
    found = {axes for aval, d in avals if type(aval) is ShardedArray for axes in [cut_of(aval)[d]] if axes}
    if len(found) > 1:
        cuts = " vs ".join(sorted(str(P(axes)) for axes in found))
        raise ValueError(f"Mapped away dimension of inputs passed to vmap should be sharded the same. Got inconsistent "
                         f"axis specs: {cuts}, for {fun_name(fun)}. Fix: anima.reshard one of them.")
    return next(iter(found), ())


def _mapped_axis(size: int, name: Any, spmd: tuple[Any, ...], typed: tuple[Any, ...]) -> int:
    if spmd and typed and spmd != typed:
        raise ValueError("Only one of spmd_axis_name or arrays sharded on `Explicit` mesh axes can be given to vmap, "
                         f"got spmd_axis_name={spmd} and arrays that are cut along {typed}.")
    return Axis(size, name, spmd, typed=typed) if spmd or typed or name is not None else size


def _check_no_hooks(values: Any) -> None:
    """NotImplementedError for a value of a type that says on its own how it is mapped."""
    if hooked:
        for leaf in tree.leaves(values, is_leaf=lambda x: type(x) in hooked):
            if type(leaf) in hooked:
                raise NotImplementedError(f"vmap maps over axes of arrays, and has no hooks for {type(leaf).__name__}, "
                                          "which was registered with batching.register_vmappable: make it a pytree "
                                          "(anima.tree_util.register_pytree_node) whose leaves are all mapped.")


def _names(given: Any) -> tuple[Any, ...]:
    return () if given is None else tuple(given) if isinstance(given, (tuple, list)) else (given,)


def _run(fun: Callable[..., Any], size: int, leaves: list[Any], in_tree: Any,
         dims: list[int | None]) -> tuple[Any, list[Any], list[int | None], list[bool]]:
    """The structure of the results of `fun` on stacks, its flat results, the dimensions that they are stacked along,
    and which of them are to be references. Mapped references hold a stack, too, and get another at the end."""
    refs = [k for k, (x, d) in enumerate(zip(leaves, dims, strict=True)) if isinstance(x, Ref) and d is not None]
    check_given_once(leaves, lambda k: f"argument {k}", f"when calling {fun_name(fun)} for vmap")
    found: list[Any] = []

    def flat(*xs: Any) -> list[Any]:
        cells = cells_of(refs, leaves, xs)
        positional, keywords = tree.unflatten(in_tree, [cells.get(k, x) for k, x in enumerate(xs)])
        outs, out_tree = tree.flatten(fun(*positional, **keywords))
        found.extend((out_tree, [isinstance(x, Ref) for x in outs]))
        return [*(held_by(x, fun, "vmap", cells.values()) for x in outs), *(cells[k].whole() for k in refs)]

    stacks = [whole(x) if k in refs else x for k, x in enumerate(leaves)]
    outs, out_dims = batch_flat(within(Transform("vmap"))(flat), size, stacks, dims)
    for k in reversed(refs):
        put(leaves[k], move_to(outs.pop(), out_dims.pop(), dims[k], size))  # type: ignore[arg-type]
    return found[0], outs, out_dims, found[1]


def _axis(axis: int | None, x: Any, number: int, fun: Callable[..., Any], args: Any, kwargs: Any) -> int | None:
    """`axis`, counted from the front, of `x`, the leaf of this number among the arguments."""
    def which() -> str:
        name = Signature(fun, None, None).leaf_names(args, kwargs, None)[number]
        return f"It is {name}, of the arguments of {fun_name(fun)}."

    if axis is None:
        return None
    try:
        ndim = aval_of(x).ndim
    except TypeError as error:
        raise TypeError(f"{error} {which()}") from None
    try:
        return canonicalize_axis(axis, ndim)
    except ValueError:
        raise ValueError(f"vmap was requested to map its argument along axis {axis}, which implies that its rank "
                         f"should be at least {axis + 1 if axis >= 0 else -axis}, but is only {ndim} (its shape is "
                         f"{aval_of(x).shape}). {which()} Fix: None in its place in in_axes, for what all have "
                         "alike.") from None


def _axis_size(fun: Callable[..., Any], args: Any, kwargs: Any, leaves: list[Any], dims: list[int | None],
               given: int | None) -> int:
    sizes = {aval_of(x).shape[d] for x, d in zip(leaves, dims, strict=True) if d is not None}
    if given is not None:
        sizes.add(given)
    if not sizes:
        raise ValueError("vmap must have at least one non-None value in in_axes" if leaves else
                         "vmap wrapped function must be passed at least one argument containing an array, got empty "
                         f"*args={args} and **kwargs={kwargs}")
    if len(sizes) == 1:
        return sizes.pop()
    lines = []
    names = Signature(fun, None, None).leaf_names(args, kwargs, None)
    for name, x, d in zip(names, leaves, dims, strict=True):
        if d is not None:
            aval = aval_of(x)
            lines.append(f"  * axis {d} of argument {name} of type {aval.str_short()} has size {aval.shape[d]};")
    if given is not None:
        lines.append(f"  * axis_size is {given};")
    raise ValueError("vmap got inconsistent sizes for array axes to be mapped:\n" + "\n".join(lines)
                     + f"\nin vmap of {fun_name(fun)}. Fix: None in in_axes for what is the same for all.")


def _mapped_result(fun: Callable[..., Any], path: Any, dim: int) -> ValueError:
    return ValueError(f"at vmap out_axes{tree.keystr(path)}, got axis spec None but output was batched on axis {dim}: "
                      f"{fun_name(fun)} returned a value that depends on a mapped argument where out_axes says that it "
                      "does not. Fix: an axis there, or a value that is the same for all.")


def _place(fun: Callable[..., Any], out: Any, dim: int | None, target: int | None, size: int) -> Any:
    if target is None:
        return out if dim is None else reduce_sum(out, (dim,))
    ndim = aval_of(out).ndim + (dim is None)
    if not -ndim <= target < ndim:
        raise ValueError(f"vmap out_axes {target} is out of bounds for an output of {ndim} dimensions: that of "
                         f"{fun_name(fun)} has {ndim - 1}, and the one that is mapped comes to them.")
    return move_to(out, dim, target, size)
