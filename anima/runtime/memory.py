"""Memory for large results: blocks that arrays no longer use are used again.

Fresh memory from the operating system costs a page fault for every 4 KiB, several times what a simple
kernel needs to fill it. A block belongs to the arrays over it as their `base`; when the pool holds the
only reference left, it is free.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np

LEAST = 1 << 18          # bytes from which a result comes out of the pool
MOST = 1 << 30           # bytes that the pool keeps at most, free blocks and used ones together
_PER_SIZE = 8            # blocks of one size
_ALIGNMENT = 64
_FREE = 2                # references to a block that only the pool and `getrefcount` itself hold

_lock = threading.Lock()
_blocks: dict[int, list[np.ndarray]] = {}
_held = 0


def empty(shape: tuple[int, ...], dtype: np.dtype, nbytes: int) -> np.ndarray:
    """An uninitialised array of `nbytes` bytes; at least `LEAST` of them, for smaller ones see `np.empty`."""
    global _held
    # Who has the lock may be the one who asks (a finalizer, a signal), or in the parent of this process: no waiting.
    if not _lock.acquire(blocking=False):
        return np.ndarray(shape, dtype, _new(nbytes))
    try:
        blocks = _blocks.setdefault(nbytes, [])
        for k in range(len(blocks)):
            if sys.getrefcount(blocks[k]) == _FREE:
                return np.ndarray(shape, dtype, blocks[k])
        block = _new(nbytes)
        if len(blocks) < _PER_SIZE and _make_room(nbytes):
            blocks.append(block)
            _held += nbytes
        return np.ndarray(shape, dtype, block)
    finally:
        _lock.release()


def _new(nbytes: int) -> np.ndarray:
    memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    # Not a view of `memory`: arrays over that would have `memory` itself as their base, and not be counted here.
    return np.frombuffer(memoryview(memory)[start: start + nbytes], np.uint8)


def _make_room(nbytes: int) -> bool:
    """Whether a block more fits; free blocks of other sizes make way for it."""
    global _held
    for size, blocks in list(_blocks.items()):
        if _held + nbytes <= MOST:
            break
        if size != nbytes:
            free: list[Any] = [k for k in range(len(blocks)) if sys.getrefcount(blocks[k]) == _FREE]
            for k in reversed(free):
                del blocks[k]
                _held -= size
    return _held + nbytes <= MOST
