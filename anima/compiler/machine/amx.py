"""The tile registers of x86's AMX, which Linux lends to processes that ask for them."""

from __future__ import annotations

import ctypes
import platform
import sys
from typing import Any

from anima.util import once

_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18  # arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)


@once
def lent() -> bool:
    """Whether this process may use them, for which it asks here. Code that uses them is neither made nor loaded where
    that is not so: it would end the process. They stay lent to children of fork."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return False
    process: Any = ctypes.CDLL(None)
    return process.syscall(ctypes.c_long(_ARCH_PRCTL), ctypes.c_long(_REQUEST), ctypes.c_long(_TILE_DATA)) == 0
