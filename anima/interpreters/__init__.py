"""The transformations, for those who give primitives rules from outside: `ad`, `batching`, `partial_eval`, and `mlir`,
where compiled programs get theirs. Each is loaded when it is first used.

    ad.primitive_jvps[p] = lambda primals, tangents: ...
"""

import importlib
from typing import Any

_SUBMODULES = ("ad", "batching", "mlir", "partial_eval", "pxla", "xla")


def __getattr__(name: str) -> Any:
    if name not in _SUBMODULES:
        raise AttributeError(f"module 'anima.interpreters' has no attribute {name!r}")
    return importlib.import_module(f"anima.interpreters.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBMODULES})
