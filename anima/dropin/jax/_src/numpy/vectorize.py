"""`jax._src.numpy.vectorize`: the steps of `vectorize`, of which libraries make ones for arrays of their own."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from anima.numpy.functional import (
    checked_outputs,
    core_sizes,
    parse_signature as _parse_gufunc_signature,
    vectorize as vectorize,
)

__all__ = ["_apply_excluded", "_check_output_dims", "_parse_gufunc_signature", "_parse_input_dimensions", "vectorize"]
_Dims = Sequence[tuple[str, ...]]


def _apply_excluded(func: Callable[..., Any], excluded: Collection[int | str], args: Sequence[Any],
                    kwargs: dict[str, Any]) -> tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]:
    """`func` with the arguments in `excluded` (places or names) as they are, and the other ones, which it takes."""
    if not excluded:
        return func, args, kwargs
    taken = [i for i in range(len(args)) if i not in excluded]
    fixed = {key: x for key, x in kwargs.items() if key in excluded}

    def rest(*others: Any, **named: Any) -> Any:
        given = list(args)
        for i, x in zip(taken, others, strict=True):
            given[i] = x
        return func(*given, **named, **fixed)

    return rest, [args[i] for i in taken], {key: x for key, x in kwargs.items() if key not in fixed}


def _parse_input_dimensions(args: Sequence[Any], input_core_dims: _Dims,
                            error_context: str = "") -> tuple[tuple[int, ...], dict[str, int]]:
    """The shape that the other dimensions are broadcast to, and the sizes of core dimensions by name."""
    if len(args) != len(input_core_dims):
        raise TypeError(f"wrong number of positional arguments: expected {len(input_core_dims)}, got {len(args)} "
                        f"{error_context}")
    sizes = core_sizes(input_core_dims, args, error_context)
    loops = [x.shape[:x.ndim - len(dims)] for x, dims in zip(args, input_core_dims, strict=True)]
    return np.broadcast_shapes(*loops), sizes


def _check_output_dims(func: Callable[..., Any], dim_sizes: dict[str, int], expected_output_core_dims: _Dims,
                       error_context: str = "") -> Callable[..., Any]:
    """`func`, whose results must have these core dimensions."""
    return checked_outputs(func, expected_output_core_dims, dim_sizes, error_context)
