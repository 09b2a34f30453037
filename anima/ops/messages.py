"""What processes exchange: the collectives of a program that runs in several of them (`transforms.messages`).

    a:f32[4] = exchange[groups=((0, 1),) kind=add] b      the sum of what both processes have

Compiled code hands its memory to what exchanges it (`core.processes`), in the order of the program, which is the same
in all processes: nothing here is dropped, merged or moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima.core import processes
from anima.core.avals import ShapedArray
from anima.core.primitive import Primitive

_EFFECT = frozenset(("exchange",))
_LATE = "Programs are transformed before they are those of one process."


class _Message(Primitive):
    """An operation that calls what exchanges arrays."""

    cost = 1.0

    def effects_of(self, params: dict[str, Any]) -> frozenset[str]:
        return _EFFECT

    def eval(self, *args: np.ndarray, **params: Any) -> np.ndarray:
        aval = self.infer(*(ShapedArray(x.shape, x.dtype) for x in args), **params)
        out = np.empty(aval.shape, aval.dtype)
        self.into(**params)([out], lambda: 1, *map(np.ascontiguousarray, args))
        return out

    def into(self, **params: Any) -> Callable[..., None]:  # type: ignore[override]
        raise self._missing("Evaluation")

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        raise self._missing("Forward-mode differentiation", _LATE)

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        raise self._missing("Batching (vmap)", _LATE)


class Exchange(_Message):
    """The result of `core.processes.Alone.exchange`, for the group of this process among `groups`."""

    def infer(self, x: ShapedArray, *, kind: str, groups: processes.Groups, perm: Any = None) -> ShapedArray:
        shape = {"gather": (len(groups[0]), *x.shape), "scatter": x.shape[1:]}.get(kind, x.shape)
        return ShapedArray(shape, x.dtype)

    def physical(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> dict[str, Any]:
        return params  # only leading dimensions matter

    def into(self, *, kind: str, groups: processes.Groups,  # type: ignore[override]
             perm: Any = None) -> Callable[..., None]:
        return _Into(processes.here.exchange(kind, processes.group_of(groups), perm))


class _Into:
    """An exchange as what writes results where they belong."""

    __slots__ = ("exchange",)

    def __init__(self, exchange: processes.Exchanger) -> None:
        self.exchange = exchange

    @property
    def way(self) -> int:
        return self.exchange.way

    def __call__(self, outs: Sequence[np.ndarray], threads: Callable[[], int], x: np.ndarray) -> None:
        self.exchange(x, outs[0])


class GroupIndex(_Message):
    """The number of this process within its group: an operation, so that programs are the same in all processes."""

    def infer(self, *, groups: processes.Groups) -> ShapedArray:
        return ShapedArray((), np.dtype(np.int32))

    def into(self, *, groups: processes.Groups) -> Callable[..., None]:  # type: ignore[override]
        index = processes.group_of(groups).index(processes.here.index)

        def write(outs: Sequence[np.ndarray], threads: Callable[[], int]) -> None:
            outs[0][...] = index

        return write


exchange_p = Exchange("exchange")
group_index_p = GroupIndex("group_index")
