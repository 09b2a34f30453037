"""SciPy's functions on Anima arrays, a submodule for each of SciPy's, loaded when it is first used.

    >>> anima.scipy.special.expit(0.)
    Array(0.5, dtype=float32, weak_type=True)
"""

import importlib
from typing import Any

_SUBMODULES = ("cluster", "fft", "integrate", "interpolate", "linalg", "ndimage", "optimize", "signal", "sparse",
               "spatial", "special", "stats")


def __getattr__(name: str) -> Any:
    if name not in _SUBMODULES:
        raise AttributeError(f"module 'anima.scipy' has no attribute {name!r}")
    return importlib.import_module(f"anima.scipy.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBMODULES})
