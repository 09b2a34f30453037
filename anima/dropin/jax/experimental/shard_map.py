"""`jax.experimental.shard_map`: an older form of `shard_map`, which takes its arguments by position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anima import shard_map as _shard_map

__all__ = ["shard_map"]


def shard_map(f: Callable[..., Any], mesh: Any, in_specs: Any, out_specs: Any, check_rep: bool = True) -> Any:
    """`anima.shard_map`; `check_rep` is its `check_vma`."""
    return _shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_rep)
