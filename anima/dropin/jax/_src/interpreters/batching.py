"""`jax._src.interpreters.batching`: the indices of a mapped axis, and one element of what is mapped over."""

from collections.abc import Callable
from typing import Any

from anima.numpy import arange
from anima.transforms.vmap import BatchTrace

__all__ = ["is_vmappable", "make_iota", "to_elt"]


def make_iota(axis_size: int) -> Any:
    """The places of the elements along an axis."""
    return arange(axis_size)


def to_elt(trace: BatchTrace, get_idx: Callable[[], Any], x: Any, spec: int | None) -> Any:
    """What stands for one element of `x`, mapped along its dimension `spec`, while `trace` maps a function."""
    return trace.join(x, spec)


def is_vmappable(x: Any) -> bool:
    """Whether `vmap` takes an object whole, as types of libraries may ask for: none does here."""
    return False
