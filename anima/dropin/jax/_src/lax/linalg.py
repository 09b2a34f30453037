"""`jax._src.lax.linalg`: transposes, and how lowering rules mark what failed; else the public functions."""

from typing import Any

import anima.numpy as jnp

__all__ = ["_H", "_T", "_broadcasting_select_hlo", "_nan_like_hlo", "symmetrize"]


def _T(x: Any) -> Any:
    """Matrices, transposed."""
    return jnp.swapaxes(x, -1, -2)


def _H(x: Any) -> Any:
    """Matrices, transposed and conjugated."""
    return jnp.conj(_T(x))


def symmetrize(x: Any) -> Any:
    """The Hermitian parts of matrices."""
    return (x + _H(x)) / 2


def _nan_like_hlo(ctx: Any, aval: Any) -> Any:
    """An array of NaNs of a type."""
    nan = complex("nan+nanj") if jnp.issubdtype(aval.dtype, jnp.complexfloating) else float("nan")
    return jnp.full(aval.shape, nan, aval.dtype)


def _broadcasting_select_hlo(ctx: Any, which: Any, which_aval: Any, x: Any, x_aval: Any, y: Any, y_aval: Any) -> Any:
    """`x` where `which` holds, which is broadcast, and `y` elsewhere."""
    return jnp.where(which, x, y)
