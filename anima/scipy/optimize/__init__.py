"""Minima of functions, as `scipy.optimize`.

    >>> result = anima.scipy.optimize.minimize(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), method="BFGS")
    >>> result.x
    Array([1., 1.], dtype=float32)
"""

from anima import errors as _errors
from anima.scipy.optimize.minimize import OptimizeResults, minimize

globals().update(_errors.public_face(__name__, globals()))  # errors show the user's frames only

__all__ = ["OptimizeResults", "minimize"]
