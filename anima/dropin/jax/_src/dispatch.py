"""`jax._src.dispatch`: operations done at once, and waiting for effects."""

from anima.api.effects import effects_barrier
from anima.interpreters.xla import apply_primitive

__all__ = ["apply_primitive", "runtime_tokens", "wait_for_tokens"]


class RuntimeTokenSet:
    """The tokens of ordered effects: effects are in order without any, so there is none to be forgotten."""

    def clear(self) -> None:
        """Forgets the tokens: there are none."""

    def block_until_ready(self) -> None:
        """Waits until the effects of programs have happened."""
        effects_barrier()


runtime_tokens = RuntimeTokenSet()


def wait_for_tokens() -> None:
    """Waits until the effects of programs have happened."""
    effects_barrier()
