"""`jax._src.dispatch`: operations done at once, and waiting for effects."""

from typing import Any

from anima.api.effects import effects_barrier
from anima.core.primitive import Primitive

__all__ = ["apply_primitive", "wait_for_tokens"]


def apply_primitive(prim: Primitive, *args: Any, **params: Any) -> Any:
    """The results of an operation."""
    return prim.bind(*args, **params)


def wait_for_tokens() -> None:
    """Waits until the effects of programs have happened."""
    effects_barrier()
