"""Memory that ends where nothing may be touched."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np


class Fenced:
    """Arrays that end, or begin, at a page that cannot be touched."""

    def __init__(self) -> None:
        self.page = mmap.PAGESIZE
        self.maps: list[mmap.mmap] = []
        self.protect = ctypes.CDLL(None, use_errno=True).mprotect

    def array(self, like: np.ndarray, at_end: bool) -> np.ndarray:
        pages = -(-like.nbytes // self.page)
        memory = mmap.mmap(-1, (pages + 2) * self.page)
        self.maps.append(memory)
        whole = np.frombuffer(memory, np.uint8)
        for number in (0, pages + 1):
            address = whole.ctypes.data + number * self.page
            assert self.protect(ctypes.c_void_p(address), ctypes.c_size_t(self.page), 0) == 0
        start = self.page + (pages * self.page - like.nbytes if at_end else 0)
        array = whole[start:start + like.nbytes].view(like.dtype)
        array[:] = like
        return array
