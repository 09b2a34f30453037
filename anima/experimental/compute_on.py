"""Where in a machine operations run: on a CPU in one place, whatever is asked for.

    with compute_on("device_host"):
        y = x * 2
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from anima.names import access

_TYPES = re.compile(r"device_host|device|tpu_sparsecore|gpu_stream:\d+")


def _check(compute_type: str) -> None:
    if not isinstance(compute_type, str) or not _TYPES.fullmatch(compute_type):
        raise ValueError(f"Invalid compute type {compute_type}. Current supported values are `device_host`, `device`, "
                         "`tpu_sparsecore`, and `gpu_stream:#`.")


@contextmanager
def compute_on(compute_type: str) -> Iterator[None]:
    """A block (or decorated function) to be run in a place; ValueError for one of an unknown name."""
    _check(compute_type)
    yield


def compute_on2(f: Callable[..., Any] | None = None, *, compute_type: str, out_memory_spaces: Any,
                compiler_options: dict[str, Any] | None = None) -> Callable[..., Any]:
    """A function to be run in a place, with results in certain memories: of which a CPU has one.

    ValueError for a place of an unknown name.
    """
    _check(compute_type)
    return f if f is not None else lambda f: f

globals().update(access(__name__, globals()))
