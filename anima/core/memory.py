"""Memory for large results: blocks that arrays no longer use are used again.

Fresh memory from the operating system costs a page fault for every 4 KiB, several times what a simple
kernel needs to fill it. A block belongs to the arrays over it as their `base`; when the pool holds the
only reference left, it is free. To Python a block is read-only, and so are the arrays, for ever: compiled
code, which fills them, has the address.

There is no lock: who looks for a block takes those that it looks at out of the pool, in one step each. So
threads, finalizers and signals that come in between meet other blocks, and what an exception leaves outside
of the pool is freed with the arrays over it.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from anima import granted

LEAST = 1 << 18          # bytes from which a result comes out of the pool
MOST = 1 << 30           # bytes that the pool keeps at most, free blocks and used ones together; of little memory ...
_SHARE = 8               # ... this part of it
_PER_SIZE = 8            # blocks of one size
_ALIGNMENT = 64
_HUGE = 1 << 21          # bytes of a huge page: blocks of several lie in such pages, whatever was at their place before
_PAGE = 1 << 12          # of a small one
_STEP = 5 * _ALIGNMENT   # blocks begin so far apart within a small page, as caches tell addresses apart by their ends
_ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)
_turns = itertools.count()
_FREE = 2                # references to a block that only one list and `getrefcount` itself hold

_KEPT = 1 << 24          # bytes, half of those that the C library is to keep when they are free

_blocks: dict[int, list[np.ndarray]] = {}


def _keep_what_is_free() -> None:
    """Smaller results are in memory of the C library's. GNU's returns the end of that to the system as soon as 128 KiB
    there are free: a loop whose step makes many arrays of 10 to 100 KiB would have their pages cleared at each step.
    Once a large block was freed, it keeps twice as much as that."""
    np.empty(_KEPT, np.uint8)


_keep_what_is_free()


def require_addresses(shape: Sequence[int], dtype: np.dtype) -> None:
    """MemoryError for an array that no memory has addresses for, or whose shape NumPy does not take: it counts without
    dimensions of 0."""
    size = math.prod(n for n in shape if n)
    if size * dtype.itemsize > sys.maxsize:
        raise MemoryError(f"out of memory: no array has the shape {tuple(shape)} and the type {dtype}: dimensions of "
                          f"{size} elements, {size * dtype.itemsize} bytes, are more than there are addresses for")


def empty(shape: tuple[int, ...], dtype: np.dtype, nbytes: int) -> np.ndarray:
    """An uninitialised array of `nbytes` bytes; at least `LEAST` of them, for smaller ones see `np.empty`."""
    blocks = _blocks.setdefault(nbytes, [])
    taken: list[np.ndarray] = []
    try:
        while _take(blocks, taken):
            if sys.getrefcount(taken[-1]) == _FREE:
                return np.ndarray(shape, dtype, taken[-1])
        try:
            block = _new(nbytes)
        except MemoryError:  # which names the bytes alone
            raise MemoryError(f"out of memory: the system does not give the {nbytes} bytes of an array of the shape "
                              f"{tuple(shape)} and the type {dtype}") from None
        if len(taken) < _PER_SIZE and _make_room(nbytes, len(taken) * nbytes):
            taken.append(block)
        return np.ndarray(shape, dtype, block)
    finally:
        _put_back(blocks, taken)


def filled(fun: Callable[..., Any], args: Sequence[Any], shape: tuple[int, ...], dtype: np.dtype,
           nbytes: int) -> np.ndarray:
    """`fun(*args, out=...)` in memory from `empty`, which nothing else can write to afterwards."""
    array = empty(shape, dtype, nbytes)
    fun(*args, out=opened(array))
    return array


def opened(array: np.ndarray) -> np.ndarray:
    """A row-major array as one that can be written to, for who has it alone, and holds it as long."""
    if array.flags.writeable:
        return array
    memory: Any = (ctypes.c_char * array.nbytes).from_address(array.ctypes.data)
    return np.ndarray(array.shape, array.dtype, memory)


def copied(value: Any, dtype: np.dtype) -> np.ndarray:
    """A value as a row-major array with memory of its own: a large one's is as that of results, where vectors lie
    within lines of the cache."""
    if not isinstance(value, np.ndarray) or value.dtype != dtype or value.nbytes < LEAST:
        return np.array(value, dtype, order="C")
    return filled(_copy, (value,), value.shape, value.dtype, value.nbytes)


def _copy(value: np.ndarray, out: np.ndarray) -> None:
    np.copyto(out, value)


class Holder(Protocol):
    """What holds elements."""

    def elements(self) -> np.ndarray: ...


def is_exclusive(array: Holder) -> bool:
    """Whether nothing but this array, which the caller holds, can see its elements: they may be written over."""
    value = array.elements()
    if sys.getrefcount(value) > _FREE + 1:  # the array's and ours
        return False
    block = value.base
    if block is None:
        return value.flags.owndata
    if type(block) is not np.ndarray:  # memory of another library
        return False
    if block.flags.owndata:
        return sys.getrefcount(block) == _FREE + 1  # the value's and ours
    listed = any(block is b for b in list(_blocks.get(block.nbytes, ())))
    return listed and sys.getrefcount(block) == _FREE + 2  # the pool's, the value's and ours


def most() -> int:
    """Bytes that the pool keeps at most."""
    there = granted.memory()
    return MOST if there is None else min(MOST, there // _SHARE)


def held() -> int:
    """Bytes of all blocks in the pool."""
    return sum([size * len(blocks) for size, blocks in list(_blocks.items())])


def _take(blocks: list[np.ndarray], taken: list[np.ndarray]) -> bool:
    """Moves the last of the blocks to those taken, if there is one."""
    try:
        taken.append(blocks.pop())
    except IndexError:  # other threads may have taken some
        return False
    return True


def _put_back(blocks: list[np.ndarray], taken: list[np.ndarray]) -> None:
    blocks.extend(reversed(taken))
    del blocks[_PER_SIZE:]  # other threads may have made some


def _new(nbytes: int) -> np.ndarray:
    memory = _in_huge_pages(nbytes + 2 * _HUGE) if nbytes >= 2 * _HUGE else None
    if memory is not None:
        start = -memory.ctypes.data % _HUGE + _STEP * next(_turns) % _PAGE
    else:
        memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
    memory.flags.writeable = False
    # Not a view of `memory`: arrays over that would have `memory` itself as their base, and not be counted here.
    return np.frombuffer(memory.data[start: start + nbytes], np.uint8)


def _in_huge_pages(nbytes: int) -> np.ndarray | None:
    """Fresh memory in huge pages, where the system has them and gives it."""
    if _ADVICE is None:
        return None
    try:
        room = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        room.madvise(_ADVICE)
    except (OSError, OverflowError):
        return None
    return np.frombuffer(room, np.uint8)


def _make_room(nbytes: int, taken: int) -> bool:
    """Whether a block more fits, beside `taken` bytes; free blocks of other sizes make way for it."""
    for size, blocks in list(_blocks.items()):
        if held() + taken + nbytes <= most():
            return True
        if size != nbytes:
            used: list[np.ndarray] = []
            while _take(blocks, used):
                if sys.getrefcount(used[-1]) == _FREE:
                    del used[-1]
            _put_back(blocks, used)
            if not blocks:
                _blocks.pop(size, None)
    return held() + taken + nbytes <= most()
