"""`jax._src.dispatch`: operations done at once, and waiting for effects."""

from collections.abc import Callable
from typing import Any

from anima import clear_caches, jit
from anima.api.effects import effects_barrier
from anima.interpreters.xla import apply_primitive

__all__ = ["apply_primitive", "runtime_tokens", "wait_for_tokens", "xla_primitive_callable"]


class RuntimeTokenSet:
    """The tokens of ordered effects: effects are in order without any, so there is none to be forgotten."""

    def clear(self) -> None:
        """Forgets the tokens: there are none."""

    def block_until_ready(self) -> None:
        """Waits until the effects of programs have happened."""
        effects_barrier()


runtime_tokens = RuntimeTokenSet()


def xla_primitive_callable(prim: Any, **params: Any) -> Callable[..., Any]:
    """An operation as a compiled function. `cache_clear()` forgets these programs, and all others."""
    return jit(lambda *args: prim.bind(*args, **params))


xla_primitive_callable.cache_clear = clear_caches  # type: ignore[attr-defined]


def wait_for_tokens() -> None:
    """Waits until the effects of programs have happened."""
    effects_barrier()
