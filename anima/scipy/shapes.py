"""What functions of several axes share: vectors along the last axis of arrays."""

from __future__ import annotations

from typing import Any

import anima.numpy as jnp


def along_last(vector: Any, like: Any) -> Any:
    """A vector as an array of the rank and the type of `like`, along its last axis."""
    return jnp.asarray(vector, like.dtype).reshape((1,) * (like.ndim - 1) + (-1,))
