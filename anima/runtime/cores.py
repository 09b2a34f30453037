"""How many cores there are for this process: those that it may run on, or fewer, if its control groups grant no more.

A container that is limited to the time of two cores sees all of a machine. As many threads as those would use up a
period's share at once, and then all of them wait for the next period. The files are those of Linux's control groups,
in both of their versions (the kernel's `admin-guide/cgroup-v1` and `cgroup-v2`); elsewhere there are none.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from anima.util import once


def available() -> int:
    """The number of cores, at least 1."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = quota()
    return own if granted is None else max(1, min(own, math.ceil(granted)))


@once
def quota(mounted: str = "/sys/fs/cgroup", told: str = "/proc/self/cgroup") -> float | None:
    """Of how many cores control groups grant the time; None if no group sets a limit."""
    limits = [quota / period for group in _groups(Path(mounted), Path(told))
              if (found := _limit(group)) is not None for quota, period in [found] if quota > 0 and period > 0]
    return min(limits, default=None)


def _groups(mounted: Path, told: Path) -> Iterator[Path]:
    """The folders of the groups that the process is in, which a container may not show, and of those around."""
    for line in _text(told).splitlines():
        number, controllers, group = (*line.split(":", 2), "", "")[:3]
        names = controllers.split(",")
        if number == "0" and not controllers:
            roots = [mounted, mounted / "unified"]
        elif "cpu" in names:
            roots = [mounted / controllers, mounted / "cpu"]
        else:
            continue
        place = PurePosixPath(group.lstrip("/"))
        for part in (place, *place.parents):
            if ".." not in part.parts:
                yield from (root / part for root in roots)


def _limit(group: Path) -> tuple[int, int] | None:
    """The microseconds of a period that a group may run, and those of the period."""
    words = _text(group / "cpu.max").split() or [
        *_text(group / "cpu.cfs_quota_us").split(), *_text(group / "cpu.cfs_period_us").split()]
    try:
        quota, period = map(int, words)
    except ValueError:  # "max", -1, or no such file
        return None
    return quota, period


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
