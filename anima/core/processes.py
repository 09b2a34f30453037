"""The processes that compute together: which of them this one is, and how it exchanges arrays with the others.

    processes.here.index, processes.here.count      0, 1 unless `anima.distributed.initialize()` was called

What exchanges is installed there (`distributed.mpi`). Each process has one device, of the same number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Groups = tuple[tuple[int, ...], ...]  # the numbers of the processes that exchange something among each other, in order


class Alone:
    """One process, which has nobody to exchange anything with; and what those do that are not alone."""

    index, count = 0, 1

    def exchange(self, kind: str, group: tuple[int, ...], perm: Any) -> Callable[[np.ndarray, np.ndarray], None]:
        """What exchanges arrays with the others of a group, each of which does the same: a function of the own array
        and of the one for the result, both C-contiguous.

        Args:
          kind: "add", "max" or "min" of all; "gather": all of them, in order; "scatter": of the sum of all, whose
            leading axis is that of the group, the own part; "all_to_all": to each of the leading axis its part;
            "permute": to others as the pairs of `perm` (of numbers within the group) say, zeros from nobody.
          group: numbers of the processes.
        """
        raise RuntimeError("There is no other process. Fix: anima.distributed.initialize(), in programs that mpirun "
                           "starts.")

    def barrier(self) -> None:
        """Waits for all processes."""

    def calls(self, record: bytes) -> None:
        """Tells that this process begins with what `record` describes, as all others are to do next."""

    def returns(self) -> None:
        """Tells that it has ended."""


here: Any = Alone()


def group_of(groups: Groups) -> tuple[int, ...]:
    """The group that this process is in."""
    return next(g for g in groups if here.index in g)
