"""Machines to compile for."""

from __future__ import annotations

from anima.util import record

MOST_KEPT = 64     # elements that `top_k` keeps in order without sorting ...
_MORE_KEPT = 256   # ... and of rows that have
_LONG = 512        # so many times as many, few of which come among the first


@record
class Target:
    """A machine to compile for: its LLVM names, the width of its vector registers in bytes, and how many it has.

    `line` and the caches of one core are in bytes, too. They decide how sums are cut, and so what is computed: they are
    the same for all machines until one needs others.
    """

    triple: str
    cpu: str
    features: str
    vector_bytes: int
    registers: int
    line: int = 64
    first_cache: int = 1 << 15
    second_cache: int = 1 << 18

    def sorts(self, kept: int, length: int, rows: int) -> bool:
        """Whether the first elements of rows are found by sorting these, and not by keeping them in order."""
        return kept > (_MORE_KEPT if length >= _LONG * kept else MOST_KEPT)

    @property
    def compresses(self) -> bool:
        """Whether an instruction moves the lanes of a mask together."""
        return self.has("avx512f") and self.vector_bytes == 64

    @property
    def masks(self) -> bool:
        """Whether loads and stores of some lanes cost what those of all do: AVX2's stores take many times as long on
        some machines."""
        return self.has("avx512f")

    def has(self, feature: str) -> bool:
        """Whether the machine has an LLVM feature, such as `"avx512f"` or `"fma"`."""
        return f"+{feature}" in self.features.split(",")


def target_of(triple: str, cpu: str, features: str) -> Target:
    """The machine with these LLVM names; `features` as `"+avx2,-avx512f"`."""
    has = {name[1:] for name in features.split(",") if name.startswith("+")}
    wide = {"avx512f", "avx512dq", "avx512bw", "avx512vl"} <= has
    vector_bytes = 64 if wide else 32 if "avx2" in has else 16
    # x86 alone has few registers, unless they are wide; elsewhere 32 are part of the architecture.
    few = triple.startswith(("x86", "i386", "i686", "amd64")) and not wide
    return Target(triple, cpu, features, vector_bytes, 16 if few else 32)
