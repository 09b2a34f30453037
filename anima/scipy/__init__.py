"""SciPy's functions on Anima arrays, a submodule for each of SciPy's, loaded when it is first used.

    >>> anima.scipy.special.expit(0.)
    Array(0.5, dtype=float32, weak_type=True)
"""

from anima import errors as _errors

globals().update(_errors.public_face(__name__, globals(), (
    "cluster", "fft", "integrate", "interpolate", "linalg", "ndimage", "optimize", "signal", "sparse", "spatial",
    "special", "stats")))
