"""The sizes and costs at which the compiler decides otherwise, changed at random: programs of small arrays then go the
ways of large ones, and what they compute must not change.

    with scrambled(17):
        anima.jit(f)(x)
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import random
import sys
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

_FACTORS = 1 / 1024, 1 / 64, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 2, 4, 16
# Constants of `anima.compiler`. Those that mean what a machine can hold, or that round differently, are not among them.
THRESHOLDS = {
    "rewriting.blocks": "LEAST BLOCK ROWS BLOCKS BATCH MATRIX BATCHES SAVED",
    "rewriting.accumulate": "_SHARE _PADDED_SHARE _LEAST _WORK",
    "rewriting.invariant": "LARGER SHORT LONG MOST TALL FEW LINES",
    "rewriting.together": "LEAST MOST SMALL COSTLY",
    "rewriting.hoist": "MOST_BYTES LARGER",
    "rewriting.conditional": "_SHARE",
    "fusing.fuse": "MOST_ROOTS LONG SMALL BOXED",
    "fusing.overwrite": "SMALLER MOST",
    "fusing.repeats": "LEAST LONG",
    "fusing.materialise": ("CHEAP LOOKUP OFTEN FAR FAR_CHEAP DEEP PADDED JOINED VECTOR CONCATENATED SHORT MANY "
                           "POLYNOMIAL"),
    "ir.groups": "LARGE LOAD MOST_BOXES PIECES TURNS",
    "scheduling.interchange": "MOST_COUNTS NEAR WORK LONG TURNS",
    "scheduling.strips": "MOST_COUNTS VECTORS LONGEST GAIN LIGHT KERNEL SHARED ADDED FEW ROW LONG TURN ALIKE",
    "scheduling.tile": "_TILE _LANES _SQUARES _FEW _SAME_PLACE",
    "scheduling.schedule": "SHORT BLOCK APART GAIN CHAINS",
    "scheduling.reductions": "UNROLLED RUN_LIMIT MOST_BLOCKS _ABREAST _LIGHT _SHARED _LONG _ENOUGH _ROWS",
    "scheduling.vectorize": "PAST_CACHES _BESIDE _APART",
    "scheduling.prefetch": "_AHEAD _MOST",
    "scheduling.parallelize": "WORTH PIECE _BLOCK ENOUGH",
    "scheduling.interrupt": "_PERIOD _FIRST _SHORT _LONG",
    "storage.registers": "LOOP LANES LEAST PRIVATE VECTORS",
    "storage.accesses": "MOST LONGEST _TOGETHER",
    "storage.apart": "OWN LEAST SHARE ENOUGH",
    "emitting.emit": "_INLINE _SPREAD _LONG _PART _LARGE _MANY",
    "emitting.control": "_OFTEN _FEW",
    "lowering.index": "UNROLLED LEAST_INSIDE",
    "products.blocking": "_FAR _NEAR _PACKED_ROWS",
}
# What blocks are made of takes arrays of megabytes: these are so small that a few hundred bytes are large.
_TINY = {"LEAST": (1 << 7, 1 << 8, 1 << 10), "BLOCK": (1 << 6, 1 << 7, 1 << 9), "ROWS": (1, 2, 4), "BLOCKS": (2, 4),
         "BATCH": (1 << 7, 1 << 9), "MATRIX": (1 << 4, 1 << 7), "BATCHES": (2, 4), "SAVED": (1, 3)}


def drawn(seed: int) -> dict[tuple[str, str], Any]:
    """New values of about half of the constants, by their modules and names."""
    rng, found = random.Random(seed), {}
    for module, names in THRESHOLDS.items():
        for name in names.split():
            old = getattr(importlib.import_module(f"anima.compiler.{module}"), name)
            factor, taken = rng.choice(_FACTORS), rng.random()
            tiny = rng.choice(_TINY[name]) if module == "rewriting.blocks" else None
            if taken < (0.8 if tiny else 0.5):
                found[module, name] = tiny or (old * factor if type(old) is float else max(1, int(old * factor)))
    return found


@contextlib.contextmanager
def scrambled(seed: int) -> Iterator[None]:
    """Within, the compiler has other thresholds."""
    before: list[tuple[ModuleType, str, Any]] = []
    try:
        for (module, name), value in drawn(seed).items():
            whole = f"anima.compiler.{module}"
            for user in [m for path, m in sys.modules.items() if path.startswith("anima.compiler.")]:
                if user.__name__ == whole or (name in vars(user) and (whole, name) in _imports(user)):
                    before.append((user, name, getattr(user, name)))
                    setattr(user, name, value)
        yield
    finally:
        for user, name, old in reversed(before):
            setattr(user, name, old)


@cache
def _imports(module: ModuleType) -> frozenset[tuple[str | None, str]]:
    """The names that a module imports, with the modules that they are from."""
    return frozenset((node.module, alias.name) for node in ast.walk(ast.parse(inspect.getsource(module)))
                     if isinstance(node, ast.ImportFrom) for alias in node.names)
