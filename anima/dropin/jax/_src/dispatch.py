"""`jax._src.dispatch`: waiting for effects."""

from anima.api.effects import effects_barrier

__all__ = ["wait_for_tokens"]


def wait_for_tokens() -> None:
    """Waits until the effects of programs have happened."""
    effects_barrier()
