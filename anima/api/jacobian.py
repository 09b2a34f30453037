"""Jacobians and Hessians: `jvp` or `vjp` of all directions of a basis at once, by `vmap`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from anima import errors, tree
from anima.api.autodiff import check_inputs, check_output_dtype, jvp, select_arguments, vjp
from anima.api.mapping import vmap
from anima.core import dtypes
from anima.core.dims import Dim
from anima.core.trace import aval_of
from anima.ops.broadcast import zeros
from anima.ops.elementwise import add, convert, eq
from anima.ops.linalg import compare
from anima.ops.shape import reshape, split
from anima.util import wraps


def basis(leaves: Sequence[Any]) -> list[Any]:
    """For each leaf, the part of the standard basis of all leaves that is its own: stacked along axis 0."""
    sizes = [aval_of(x).size for x in leaves]
    total, out, start = sum(sizes), [], 0
    for x, size in zip(leaves, sizes, strict=True):
        aval = aval_of(x)
        if isinstance(total, Dim):
            block = compare(lambda row, column, start=start: eq(row, add(column, np.int32(start))), (total, size))
        else:
            block = np.zeros((total, size), aval.dtype)
            block[start + np.arange(size), np.arange(size)] = 1
        out.append(convert(reshape(block, (total, *aval.shape)), aval.dtype, aval.weak_type))
        start += size
    return out


def unstack_basis(stack: Any, axis: int, like: Any, like_leaves: Sequence[Any]) -> Any:
    """Splits a dimension that runs over the basis of a tree into that tree's leaves and their shapes."""
    avals = list(map(aval_of, like_leaves))
    shape = aval_of(stack).shape
    parts = split(stack, [a.size for a in avals], axis) if avals else []
    return tree.unflatten(like, [reshape(p, (*shape[:axis], *a.shape, *shape[axis + 1:]))
                                 for p, a in zip(parts, avals, strict=True)])


def _numbers(derivative: Any, of: Any) -> Any:
    """The derivative of what `of` is; zeros of its own type where it is made of integers or bools."""
    aval = aval_of(derivative)
    return zeros(aval.update(dtype=aval_of(of).dtype)) if aval.dtype == dtypes.float0 else derivative


def jacfwd(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False,
           holomorphic: bool = False) -> Callable[..., Any]:
    """The Jacobian of `fun` by forward mode, one column at a time (all at once, by vmap).

    Each leaf of the result has the shape of the output followed by that of the argument.
    """

    @wraps(fun)
    @errors.api_boundary
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        partial_fun, chosen = select_arguments(fun, argnums, args, kwargs)
        leaves, in_tree = tree.flatten(chosen)
        check_inputs(fun, argnums, args, "jacfwd", holomorphic, forward=True)
        push = partial(jvp, partial_fun, chosen, has_aux=has_aux)

        def column(*tangents: Any) -> Any:
            return push(tree.unflatten(in_tree, tangents))

        axes = (None, -1, None) if has_aux else (None, -1)
        out, jac, *aux = vmap(column, out_axes=axes)(*basis(leaves))
        for leaf in tree.leaves(out):
            if holomorphic:
                check_output_dtype(leaf, "jacfwd", holomorphic)
        example = tree.structure(chosen[0]) if isinstance(argnums, (int, np.integer)) else in_tree
        jac = tree.map(_numbers, jac, out)
        result = tree.map(lambda j: unstack_basis(j, aval_of(j).ndim - 1, example, leaves), jac)
        return (result, aux[0]) if has_aux else result

    return jacobian


def jacrev(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False,
           allow_int: bool = False) -> Callable[..., Any]:
    """The Jacobian of `fun` by reverse mode, one row at a time (all at once, by vmap).

    Each leaf of the result has the shape of the output followed by that of the argument.
    """

    @wraps(fun)
    @errors.api_boundary
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        partial_fun, chosen = select_arguments(fun, argnums, args, kwargs)
        check_inputs(fun, argnums, args, "jacrev", holomorphic, allow_int)
        out, pull, *aux = vjp(partial_fun, *chosen, has_aux=has_aux)
        leaves, out_tree = tree.flatten(out)
        for leaf in leaves:
            check_output_dtype(leaf, "jacrev", holomorphic)
        rows = vmap(lambda *cts: pull(tree.unflatten(out_tree, cts)))(*basis(leaves))
        rows = tree.map(_numbers, rows, chosen)
        row_leaves, row_tree = tree.flatten(rows[0] if isinstance(argnums, (int, np.integer)) else rows)
        blocks = [tree.leaves(unstack_basis(r, 0, out_tree, leaves)) for r in row_leaves]
        result = tree.unflatten(out_tree,
                                [tree.unflatten(row_tree, [b[k] for b in blocks]) for k in range(len(leaves))])
        return (result, aux[0]) if has_aux else result

    return jacobian


def hessian(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False,
            holomorphic: bool = False) -> Callable[..., Any]:
    """The Hessian of a scalar function: forward mode over reverse mode."""
    return jacfwd(jacrev(fun, argnums, has_aux, holomorphic), argnums, has_aux, holomorphic)
