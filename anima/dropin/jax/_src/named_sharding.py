"""`jax._src.named_sharding`: how shardings that JAX has pickled are read; else the public classes."""

from typing import Any

from anima.core.shardings import NamedSharding


def _unpickle_named_sharding(mesh: Any, spec: Any, memory_kind: str | None, logical_device_ids: Any) -> NamedSharding:
    """A sharding, from its fields."""
    del logical_device_ids
    return NamedSharding(mesh, spec, memory_kind=memory_kind)
