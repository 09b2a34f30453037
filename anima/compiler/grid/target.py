"""Grids of threads to compile for."""

from __future__ import annotations

from anima.compiler.machine.target import Target
from anima.util import record

SHORT = 64  # elements of a row that one thread goes through for something like a sort


@record
class GridTarget(Target):
    """A machine whose threads run together: in warps, whose lanes exchange values; in blocks of warps, which share fast
    memory; and in a grid of blocks.

    `at_once` is about how many threads it takes to keep the machine busy, `single` how many a program has at most that
    is too small for more than one block; `products`: whether a library does large matrix products.
    """

    warp: int = 32
    block: int = 256
    single: int = 512
    at_once: int = 1 << 18
    shared: int = 48 << 10       # bytes that a block shares without asking for more
    most_shared: int = 96 << 10  # and at most
    products: bool = False

    def sorts(self, kept: int, length: int, rows: int) -> bool:
        return Target.sorts(self, kept, length, rows) or self.is_long(length, rows)

    def is_long(self, length: int, rows: int, short: int = SHORT) -> bool:
        """Whether rows are too long for one thread to go through, and not so many that each has a thread."""
        return length > short and rows < self.at_once // 4


def nvidia(capability: tuple[int, int], processors: int = 132, products: bool = False) -> GridTarget:
    """A GPU of NVIDIA's, of a compute capability, with so many multiprocessors."""
    major, minor = capability
    return GridTarget("nvptx64-nvidia-cuda", f"sm_{major}{minor}", "+ptx83", 4, 64, second_cache=1 << 17,
                      at_once=2048 * processors, products=products)
