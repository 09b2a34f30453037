"""`jax._src.dispatch`: operations done at once, and waiting for effects."""

from anima.api.effects import effects_barrier
from anima.interpreters.xla import apply_primitive

__all__ = ["apply_primitive", "wait_for_tokens"]


def wait_for_tokens() -> None:
    """Waits until the effects of programs have happened."""
    effects_barrier()
