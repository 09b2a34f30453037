"""Functions of Python that write their results into memory that they are given.

    def double(ctx, out, x):
        np.asarray(out)[...] = 2 * np.asarray(x)

    buffer_callback(double, ShapeDtypeStruct((3,), float32))(x)
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from anima import tree
from anima.api.effects import io_callback, pure_callback
from anima.names import access
from anima.util import record


class ExecutionStage(enum.Enum):
    """What a program is doing when it calls: always running, here."""

    INSTANTIATE = 0
    PREPARE = 1
    INITIALIZE = 2
    EXECUTE = 3


@record
class ExecutionContext:
    """The circumstances of a call."""

    stage: ExecutionStage = ExecutionStage.EXECUTE

    @property
    def stream(self) -> int:
        raise NotImplementedError("ExecutionContext.stream: programs on a CPU have no streams.")


class Buffer:
    """The memory of an operand, or of a result, which may be written to: `numpy.asarray(buffer)`."""

    def __init__(self, value: np.ndarray) -> None:
        self._value = value

    shape = property(lambda self: self._value.shape)
    dtype = property(lambda self: self._value.dtype)
    ndim = property(lambda self: self._value.ndim)
    writeable = property(lambda self: self._value.flags.writeable)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._value, dtype, copy=copy)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._value.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._value.__dlpack_device__()


def buffer_callback(callback: Callable[..., None], result_shape_dtypes: Any, *, has_side_effect: bool = False,
                    vmap_method: str | None = None, input_output_aliases: Mapping[int, int] | None = None,
                    command_buffer_compatible: bool = False) -> Callable[..., Any]:
    """A function of arrays that calls `callback(ctx, out, *args)` where it runs, and has what that leaves in `out`.

    Args:
      callback: gets an `ExecutionContext`, a pytree of `Buffer`s to be filled, and the arguments as read-only ones.
      result_shape_dtypes: the results: a pytree whose leaves have a `shape` and a `dtype`.
      has_side_effect: it must be called exactly where it stands; otherwise it may be called more often, or not at all.
      vmap_method: as that of `pure_callback`.
      input_output_aliases: numbers of arguments, with the number of the result that has its value to begin with.
      command_buffer_compatible: of no consequence on a CPU.

    Raises:
      ValueError: for aliases of arguments or results that are not there, or not of one shape and dtype; for
        `vmap_method` with a side effect.
    """
    aliases = dict(input_output_aliases or {})
    wanted, structure = tree.flatten(result_shape_dtypes)
    if has_side_effect and vmap_method is not None:
        raise ValueError("buffer_callback: a function with side effects is called for each lane; give no vmap_method.")

    def host(*args: Any) -> Any:
        return _filled(callback, args, wanted, structure, aliases)

    def call(*args: Any) -> Any:
        _check_aliases(aliases, tree.leaves(args), wanted)
        if has_side_effect:
            return io_callback(host, result_shape_dtypes, *args, ordered=False)
        return pure_callback(host, result_shape_dtypes, *args, vmap_method=vmap_method)

    return call


def _check_aliases(aliases: Mapping[int, int], leaves: Sequence[Any], wanted: Sequence[Any]) -> None:
    for source, target in aliases.items():
        if not (0 <= source < len(leaves) and 0 <= target < len(wanted)):
            raise ValueError(f"input_output_aliases: there is no argument {source}, or no result {target}.")
        x, out = np.asarray(leaves[source]) if not hasattr(leaves[source], "shape") else leaves[source], wanted[target]
        if tuple(x.shape) != tuple(out.shape) or np.dtype(x.dtype) != np.dtype(out.dtype):
            raise ValueError(f"input_output_aliases: argument {source} is no {np.dtype(out.dtype)}{out.shape}, as "
                             f"result {target} is.")


def _filled(callback: Callable[..., None], args: Sequence[Any], wanted: Sequence[Any], structure: Any,
            aliases: Mapping[int, int]) -> Any:
    """Runs the callback on new memory. Under `vmap`, operands have leading axes, and so have the results."""
    leaves, args_structure = tree.flatten(tuple(args))
    values = [np.asarray(x) for x in leaves]
    outs = [np.zeros(s.shape, np.dtype(s.dtype)) for s in wanted]
    for source, target in aliases.items():
        outs[target] = values[source].copy()
    for value in values:
        value.flags.writeable = False
    callback(ExecutionContext(), tree.unflatten(structure, map(Buffer, outs)),
             *tree.unflatten(args_structure, map(Buffer, values)))
    return tree.unflatten(structure, outs)

globals().update(access(__name__, globals()))
