"""Notes for XLA on operations: there is nobody here to read them.

    with set_xla_metadata(group="attention"):
        y = f(x)
"""

from __future__ import annotations

from contextlib import ContextDecorator
from typing import Any

from anima.names import access


class XlaMetadata(ContextDecorator):
    """A block or function whose operations carry notes."""

    def __init__(self, notes: dict[str, Any]) -> None:
        self.notes = notes

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exception: object) -> None:
        return None


def set_xla_metadata(x: Any = None, **kwargs: Any) -> Any:
    """Without `x`, a block or decorator for operations that carry notes; with it, `x` itself."""
    return XlaMetadata(kwargs) if x is None else x

globals().update(access(__name__, globals()))
