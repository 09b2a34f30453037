"""Integrals of samples, as `scipy.integrate`.

    >>> anima.scipy.integrate.trapezoid(jnp.array([0., 1., 4.]))
    Array(3., dtype=float32)
"""

from typing import Any

from anima import errors as _errors
from anima.api.eager import repeated
from anima.numpy import calculus as _calculus


@repeated
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """The integral of `y` along `axis` by the trapezoidal rule, at coordinates `x` or with step `dx`."""
    return _calculus.trapezoid(y, x, dx, axis)


globals().update(_errors.public_face(__name__, globals()))  # errors show the user's frames only

__all__ = ["trapezoid"]
