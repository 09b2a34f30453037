"""What of the machine is granted to this process: cores and memory, or less, if its control groups grant no more.

A container that is limited to the time of two cores, or to some memory, sees all of a machine. As many threads as that
has cores would use up a period's share at once, and then all of them wait for the next period; what is kept to be used
again would be what the process is killed for. The files are those of Linux's control groups, in both of their versions
(the kernel's `admin-guide/cgroup-v1` and `cgroup-v2`); elsewhere there are none.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from anima.util import once


def cores() -> int:
    """The number of cores, at least 1."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = core_quota()
    return own if granted is None else max(1, min(own, math.ceil(granted)))


def memory() -> int | None:
    """The bytes of memory; None if that is not known."""
    try:
        own = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        own = 0
    return min((size for size in (own, memory_quota()) if size), default=None)


def require(nbytes: int, user: str) -> None:
    """MemoryError unless the system would give so many bytes more: for who can do nothing but end the process where it
    gets none."""
    try:
        mmap.mmap(-1, nbytes).close()
    except OSError as error:
        raise MemoryError(f"out of memory: {user} may need {nbytes >> 20} MiB, which the system does not give "
                          f"({error.strerror})") from None


@once
def core_quota(mounted: str = "/sys/fs/cgroup", told: str = "/proc/self/cgroup") -> float | None:
    """Of how many cores control groups grant the time; None if no group sets a limit."""
    limits = []
    for group in _groups("cpu", Path(mounted), Path(told)):
        words = _text(group / "cpu.max").split() or [
            *_text(group / "cpu.cfs_quota_us").split(), *_text(group / "cpu.cfs_period_us").split()]
        match [_number(word) for word in words]:  # microseconds of a period, and those of the period
            case [int(quota), int(period)] if quota > 0 and period > 0:
                limits.append(quota / period)
    return min(limits, default=None)


@once
def memory_quota(mounted: str = "/sys/fs/cgroup", told: str = "/proc/self/cgroup") -> int | None:
    """How many bytes control groups grant; None if no group sets a limit."""
    limits = [_number(_text(group / "memory.max") or _text(group / "memory.limit_in_bytes"))
              for group in _groups("memory", Path(mounted), Path(told))]
    return min((limit for limit in limits if limit), default=None)


def _groups(controller: str, mounted: Path, told: Path) -> Iterator[Path]:
    """The folders of the groups that the process is in, which a container may not show, and of those around."""
    for line in _text(told).splitlines():
        number, controllers, group = (*line.split(":", 2), "", "")[:3]
        if number == "0" and not controllers:
            roots = [mounted, mounted / "unified"]
        elif controller in controllers.split(","):
            roots = [mounted / controllers, mounted / controller]
        else:
            continue
        place = PurePosixPath(group.lstrip("/"))
        for part in (place, *place.parents):
            if ".." not in part.parts:
                yield from (root / part for root in roots)


def _number(text: str) -> int | None:
    """A number of at least 0; None for anything else: "max", -1, no text at all."""
    return int(text) if text.strip().isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
