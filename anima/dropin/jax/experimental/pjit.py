"""`jax.experimental.pjit`: an older name of `jit`, which takes its arguments by position."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from anima import jit

__all__ = ["pjit"]


def pjit(fun: Callable[..., Any], in_shardings: Any = None, out_shardings: Any = None,
         static_argnums: int | Sequence[int] | None = None, static_argnames: str | Iterable[str] | None = None,
         donate_argnums: int | Sequence[int] | None = None, donate_argnames: str | Iterable[str] | None = None,
         keep_unused: bool = False, device: Any = None, backend: str | None = None, inline: bool = False,
         compiler_options: dict[str, Any] | None = None) -> Any:
    """`jit`."""
    return jit(fun, in_shardings=in_shardings, out_shardings=out_shardings, static_argnums=static_argnums,
               static_argnames=static_argnames, donate_argnums=donate_argnums, donate_argnames=donate_argnames,
               keep_unused=keep_unused, device=device, backend=backend, inline=inline,
               compiler_options=compiler_options)
