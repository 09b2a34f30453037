"""The processes that compute together: which of them this one is, and how it exchanges arrays with the others.

    processes.here.index, processes.here.count      0, 1 unless `anima.distributed.initialize()` was called

What exchanges is installed there (`distributed.mpi`). Each process has one device, of the same number.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

import numpy as np

Groups = tuple[tuple[int, ...], ...]  # the numbers of the processes that exchange something among each other, in order
KEPT = 1024                  # calls of which a log tells what they were; a power of 2
FACTOR = 0x9E3779B97F4A7C15  # of the hash of all calls so far
LOG = {"log.begun": 0, "log.chain": 8, "log.inside": 16}  # bytes from the start of a log's memory to its words
LOG_BYTES = 24               # of these: then, of each call kept, the hash up to it and the number of its record
_MASK = (1 << 64) - 1


class Exchanger(Protocol):
    """What exchanges arrays: a function of the own one and of that for the result, both C-contiguous.

    `way` is what compiled code calls in its place (see `runtime.callbacks`): 0 before the first exchange.
    """

    way: int

    def __call__(self, x: np.ndarray, out: np.ndarray) -> None: ...


class Log:
    """The calls that this process has begun: how many, whether it is inside of one, and of the last ones what they
    were, each with a hash of all up to it. The calls of compiled code write into this memory by themselves
    (`runtime.calling_code`)."""

    def __init__(self) -> None:
        self.words = (ctypes.c_uint64 * (LOG_BYTES // 8 + 2 * KEPT))()
        self.numbers: dict[bytes, int] = {}  # of all records that there have been, and
        self.records: list[bytes] = []       # these, by their numbers

    @property
    def begun(self) -> int:
        return self.words[0]

    @property
    def inside(self) -> bool:
        return bool(self.words[2])

    def known(self, record: bytes) -> bool:
        """Whether there has been a call with this record."""
        return record in self.numbers

    def entry(self, record: bytes) -> tuple[int, int, int]:
        """The address of the log, what hashes a call with this record, and the record's number."""
        number = self.numbers.setdefault(record, len(self.records))
        if number == len(self.records):
            self.records.append(record)
        return ctypes.addressof(self.words), int.from_bytes(record[:8], "little", signed=True), number

    def begin(self, record: bytes) -> None:
        """Notes that a call begins."""
        words = self.words
        _, hashed, number = self.entry(record)
        words[1] = chain = (words[1] * FACTOR + hashed) & _MASK
        at = LOG_BYTES // 8 + 2 * (words[0] % KEPT)
        words[at], words[at + 1] = chain, number
        words[0] += 1
        words[2] = 1

    def end(self) -> None:
        """Notes that the call has ended."""
        self.words[2] = 0

    def last(self, count: int) -> dict[int, tuple[int, bytes]]:
        """The last calls, at most so many: by their numbers the hash of all up to each, and its record."""
        words = memoryview(bytes(self.words)).cast("Q")  # at once, as other threads go on
        begun, first = words[0], LOG_BYTES // 8
        at = {k: first + 2 * (k % KEPT) for k in range(max(0, begun - min(count, KEPT - 1)), begun)}
        return {k: (words[n], self.records[words[n + 1]]) for k, n in at.items()}


class Alone:
    """One process, which has nobody to exchange anything with; and what those do that are not alone."""

    index, count = 0, 1

    log: Log  # where there are others

    def exchange(self, kind: str, group: tuple[int, ...], perm: Any) -> Exchanger:
        """What exchanges arrays of one shape and type with the others of a group, each of which does the same.

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
