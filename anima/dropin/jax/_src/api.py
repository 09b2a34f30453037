"""`jax._src.api`: the steps of Jacobians, of which libraries make ones that take a few directions at a time; else the
public functions."""

from collections.abc import Callable, Sequence
from typing import Any

from anima import tree
from anima.api.autodiff import check_input, check_output_dtype, jvp, vjp
from anima.api.jacobian import basis, unstack_basis
from anima.dropin.jax._src.dtypes import dtype as _dtype

__all__ = ["_check_input_dtype_jacfwd", "_check_input_dtype_jacrev", "_check_output_dtype_jacfwd",
           "_check_output_dtype_jacrev", "_dtype", "_jacfwd_unravel", "_jacrev_unravel", "_jvp", "_std_basis", "_vjp"]


def _check_input_dtype_jacfwd(holomorphic: bool, x: Any) -> None:
    """TypeError for what `jacfwd` does not differentiate by."""
    check_input(x, "jacfwd", holomorphic, False, forward=True)


def _check_input_dtype_jacrev(holomorphic: bool, allow_int: bool, x: Any) -> None:
    """TypeError for what `jacrev` does not differentiate by."""
    check_input(x, "jacrev", holomorphic, allow_int)


def _check_output_dtype_jacfwd(holomorphic: bool, x: Any) -> None:
    """TypeError for a result whose derivative `jacfwd` does not give."""
    if holomorphic:
        check_output_dtype(x, "jacfwd", holomorphic)


def _check_output_dtype_jacrev(holomorphic: bool, x: Any) -> None:
    """TypeError for a result whose derivative `jacrev` does not give."""
    check_output_dtype(x, "jacrev", holomorphic)


def _std_basis(pytree: Any) -> Any:
    """The tree's standard basis: for each leaf its part of all directions, stacked along axis 0."""
    leaves, structure = tree.flatten(pytree)
    return tree.unflatten(structure, basis(leaves))


def _jacfwd_unravel(input_pytree: Any, output_pytree_leaf: Any, arr: Any) -> Any:
    """What the last axis of `arr` holds for the directions of a basis, as a tree like the inputs."""
    leaves, structure = tree.flatten(input_pytree)
    return unstack_basis(arr, arr.ndim - 1, structure, leaves)


def _jacrev_unravel(output_pytree: Any, input_pytree_leaf: Any, arr: Any) -> Any:
    """What the first axis of `arr` holds for the directions of a basis, as a tree like the outputs."""
    leaves, structure = tree.flatten(output_pytree)
    return unstack_basis(arr, 0, structure, leaves)


def _jvp(fun: Any, primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False) -> Any:
    """`jvp` of a function, wrapped or not."""
    return jvp(_plain(fun), primals, tangents, has_aux=has_aux)


def _vjp(fun: Any, *primals: Any, has_aux: bool = False) -> Any:
    """`vjp` of a function, wrapped or not."""
    return vjp(_plain(fun), *primals, has_aux=has_aux)


def _plain(fun: Any) -> Callable[..., Any]:
    return fun.call_wrapped if hasattr(fun, "call_wrapped") else fun  # type: ignore[no-any-return]
