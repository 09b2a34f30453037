"""Derivatives by sparse arrays: by their stored elements, at the same places.

    >>> mat = sparse.BCOO.fromdense(jnp.array([[0., 2.], [3., 0.]]))
    >>> sparse.grad(lambda m: jnp.sum((m @ jnp.ones(2)) ** 2))(mat)
    BCOO(float32[2, 2], nse=2)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima import errors, numpy as jnp, tree
from anima.api import autodiff, jacobian as jacobians
from anima.experimental.sparse.base import JAXSparse
from anima.experimental.sparse.bcoo import BCOO
from anima.experimental.sparse.bcsr import BCSR
from anima.experimental.sparse.transform import is_sparse
from anima.util import wraps


@tree.register_pytree_node_class
class _Elements:
    """What of the chosen arguments is differentiated by: arrays, and the data of sparse ones."""

    def __init__(self, leaves: Sequence[Any]):
        self.leaves = tuple(leaves)

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        return self.leaves, None

    @classmethod
    def tree_unflatten(cls, aux_data: None, children: Any) -> _Elements:
        return cls(children)


def _lifted(transform: Callable[..., Any], fun: Callable[..., Any], argnums: Any, has_aux: bool,
            options: dict[str, Any], assemble: Callable[..., Any], doc: str) -> Callable[..., Any]:
    """`transform` of `fun`, a function whose arguments `argnums` may hold sparse arrays."""
    numbers = (argnums,) if isinstance(argnums, (int, np.integer)) else tuple(argnums)

    @wraps(fun)
    @errors.api_boundary
    def derivative(*args: Any, **kwargs: Any) -> Any:
        places = [n + len(args) if n < 0 else n for n in numbers]
        if any(not 0 <= n < len(args) for n in places):
            raise ValueError(f"argnums={argnums} for a function that was called with {len(args)} arguments.")
        leaves, in_tree = tree.flatten(tuple(args[n] for n in places), is_leaf=is_sparse)

        def of_elements(elements: _Elements) -> Any:
            chosen = tree.unflatten(in_tree, [old.like(new) if is_sparse(old) else new
                                              for old, new in zip(leaves, elements.leaves, strict=True)])
            given = list(args)
            for n, value in zip(places, chosen, strict=True):
                given[n] = value
            return fun(*given, **kwargs)

        def rebuild(elements: _Elements) -> Any:
            found = tree.unflatten(in_tree, map(_placed, leaves, elements.leaves))
            return found[0] if isinstance(argnums, (int, np.integer)) else found

        start = _Elements([x.data if is_sparse(x) else x for x in leaves])
        found = transform(of_elements, has_aux=has_aux, **options)(start)
        return assemble(found, lambda value: tree.map(
            lambda x: rebuild(x) if isinstance(x, _Elements) else x, value,
            is_leaf=lambda x: isinstance(x, _Elements)))

    derivative.__doc__ = doc
    return derivative


def _placed(old: Any, data: Any) -> Any:
    """Elements at the places of a sparse array; `data` may have more dimensions in front, which become batches."""
    if not is_sparse(old):
        return data
    data = jnp.asarray(data) if not isinstance(data, np.ndarray) else data  # of float0, there are arrays of NumPy's
    outer = data.shape[: data.ndim - old.data.ndim]
    if not outer:
        return _with_data(old, data)

    def repeated(x: Any) -> Any:
        return jnp.broadcast_to(x, (*outer, *x.shape))

    flags = {"indices_sorted": getattr(old, "indices_sorted", False),
             "unique_indices": getattr(old, "unique_indices", False)}
    if isinstance(old, BCOO):
        return BCOO((data, repeated(old.indices)), shape=(*outer, *old.shape), **flags)
    if isinstance(old, BCSR):
        return BCSR((data, repeated(old.indices), repeated(old.indptr)), shape=(*outer, *old.shape), **flags)
    raise NotImplementedError(f"Jacobians by {type(old).__name__} arrays are not implemented: use BCOO arrays.")


def _with_data(old: JAXSparse, data: Any) -> Any:
    children, aux = old.tree_flatten()
    return type(old).tree_unflatten(aux, (data, *children[1:]))


def value_and_grad(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False,
                   **kwargs: Any) -> Callable[..., Any]:
    """`anima.value_and_grad` of a function of sparse arrays: gradients by them have elements at the same places."""
    return _lifted(autodiff.value_and_grad, fun, argnums, has_aux, kwargs,
                   lambda found, rebuild: (found[0], rebuild(found[1])), value_and_grad.__doc__ or "")


def grad(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False,
         **kwargs: Any) -> Callable[..., Any]:
    """`anima.grad` of a function of sparse arrays: gradients by them have elements at the same places.

    Args:
      fun: a function whose result is a scalar.
      argnums: which arguments to differentiate by: arrays, sparse arrays, and pytrees of them.
      has_aux, kwargs: as of `anima.grad`.

    >>> mat = sparse.BCOO.fromdense(jnp.array([0., 2.]))
    >>> sparse.grad(lambda m: (m * m).sum())(mat).data
    Array([4.], dtype=float32)
    """
    return _lifted(autodiff.grad, fun, argnums, has_aux, kwargs, _first_if(has_aux), grad.__doc__ or "")


def _first_if(has_aux: bool) -> Callable[..., Any]:
    if has_aux:
        return lambda found, rebuild: (rebuild(found[0]), found[1])
    return lambda found, rebuild: rebuild(found)


def jacfwd(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False,
           **kwargs: Any) -> Callable[..., Any]:
    """`anima.jacfwd` of a function of sparse arrays: by them, Jacobians are sparse, in batches, one for each result."""
    return _lifted(jacobians.jacfwd, fun, argnums, has_aux, kwargs, _first_if(has_aux), jacfwd.__doc__ or "")


def jacrev(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False,
           **kwargs: Any) -> Callable[..., Any]:
    """`anima.jacrev` of a function of sparse arrays: by them, Jacobians are sparse, in batches, one for each result."""
    return _lifted(jacobians.jacrev, fun, argnums, has_aux, kwargs, _first_if(has_aux), jacrev.__doc__ or "")


jacobian = jacrev
