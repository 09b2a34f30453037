"""Seconds of one call. It needs nothing: processes of other libraries use it, too."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def seconds(run: Callable[[], Any], least: float = 0.004) -> float:
    """Seconds of one call: a mean over as many as `least` seconds hold."""
    start = time.perf_counter()
    run()
    once = time.perf_counter() - start
    if once >= least:
        return once
    count = max(1, int(least / max(once, 1e-7)))
    start = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - start) / count
