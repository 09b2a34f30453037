"""`jax._src.sharding_impls`: how a sharding is said not to be given, beside what `jax.sharding` has."""

from typing import Any

from anima.core.shardings import NamedSharding
from anima.ops.placing import asked_sharding

__all__ = ["UNSPECIFIED", "UnspecifiedValue", "canonicalize_sharding"]

UNSPECIFIED = None  # what `in_shardings` and `out_shardings` are by default
UnspecifiedValue = type(UNSPECIFIED)


def canonicalize_sharding(sharding: Any, api_name: str, check_mesh_consistency: bool = True) -> NamedSharding | None:
    """What an argument `out_sharding` says, about an abstract mesh; None if it says nothing. Errors as the functions
    that have such an argument raise them."""
    asked = None if sharding is None else asked_sharding(api_name, sharding)
    return None if asked is None else NamedSharding(asked.mesh.abstract_mesh, asked.spec)
