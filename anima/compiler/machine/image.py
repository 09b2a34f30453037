"""Object files of 64-bit x86 in ELF, linked and put into memory: for code that is read from disk, LLVM is not loaded.

    code = load(object_bytes, resolve)       code.addresses["twice"]      resolve("memcpy") -> its address

Code and constants of a file lie in one piece of memory, which is never writeable and executable at once, and goes with
the last reference to `code`. What a file refers to outside of itself is reached through a table of addresses behind it.
Files with writeable data, or with a kind of reference that our code has not, are for LLVM's linker: `load` gives None.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from anima.util import once, record

_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, size, link, info, alignment, entry size
_SYMBOL = struct.Struct("<IBBHQQ")       # name, binding and type, visibility, section, value, size
_RELOCATION = struct.Struct("<QQq")      # offset, symbol and kind, addend
_PROGBITS, _SYMTAB, _RELA, _NOBITS, _UNWIND = 1, 2, 4, 8, 0x70000001
_WRITE, _ALLOC, _THREAD = 1, 2, 0x400
_UNDEFINED, _ABSOLUTE, _RESERVED = 0, 0xFFF1, 0xFF00
_WORD64, _PC32, _PLT32, _THROUGH_TABLE = 1, 2, 4, (9, 41, 42)  # kinds of relocation
_JUMP = b"\xff\x25\x02\x00\x00\x00\x0f\x0b"  # jmp *[rip + 2]; ud2: the address follows
_HERE = sys.platform == "linux" and platform.machine() == "x86_64" and sys.maxsize > 1 << 32


class UnsupportedObject(Exception):
    """Something in an object file that is for LLVM's linker."""


@record(eq=False)
class MachineCode:
    """Machine code in memory, for as long as this object lives, and where its functions are."""

    addresses: dict[str, int]


def load(data: bytes, resolve: Callable[[str], int]) -> MachineCode | None:
    """The code of an object file in memory; None if it is of another kind than this linker's.

    `resolve` gives the address of what the file does not define, or raises.
    """
    if not _HERE or data[:6] != b"\x7fELF\x02\x01" or data[16:20] != b"\x01\x00\x3e\x00":
        return None
    try:
        return _Linker(data).link(resolve)
    except (UnsupportedObject, struct.error):
        return None


class _Linker:
    """One object file: its sections, each with its place in memory (None: not there), and symbols."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        (start,) = struct.unpack_from("<Q", data, 0x28)
        (count,) = struct.unpack_from("<H", data, 0x3C)
        self.sections = [_SECTION.unpack_from(data, start + k * _SECTION.size) for k in range(count)]
        self.places: list[int | None] = []
        self.size = 0
        for _, kind, flags, _, _, size, _, _, alignment, _ in self.sections:
            if not flags & _ALLOC or not size or kind == _UNWIND:
                self.places.append(None)
                continue
            if kind != _PROGBITS or flags & (_WRITE | _THREAD) or alignment > mmap.PAGESIZE:
                raise UnsupportedObject
            self.size += -self.size % max(alignment, 1)
            self.places.append(self.size)
            self.size += size
        tables = [s for s in self.sections if s[1] == _SYMTAB]
        if len(tables) != 1:
            raise UnsupportedObject
        _, _, _, _, at, size, names, *_ = tables[0]
        self.symbols = [*_SYMBOL.iter_unpack(data[at:at + size])]
        self.names = self.sections[names][4]

    def name(self, symbol: Any) -> str:
        start = self.names + symbol[0]
        return self.data[start:self.data.index(b"\0", start)].decode()

    def relocations(self) -> Iterator[tuple[int, int, int, int]]:
        """Where in the memory something is to be filled in, of which kind, which symbol, and what is added."""
        for _, kind, _, _, at, size, _, of, _, _ in self.sections:
            if kind == _RELA and (place := self.places[of]) is not None:
                for offset, info, addend in _RELOCATION.iter_unpack(self.data[at:at + size]):
                    yield place + offset, info & 0xFFFFFFFF, info >> 32, addend

    def link(self, resolve: Callable[[str], int]) -> MachineCode:
        memory = bytearray(self.size)
        for section, place in zip(self.sections, self.places, strict=True):
            if place is not None:
                memory[place:place + section[5]] = self.data[section[4]:section[4] + section[5]]
        table: dict[int, int] = {}       # of symbols: where a jump to each, and then its address, stand
        words: list[tuple[int, int]] = []  # (place, what the word there points to)
        for place, kind, number, addend in self.relocations():
            inside = self.place_of(number)
            if kind == _WORD64 and inside is not None:
                words.append((place, inside + addend))
                continue
            if inside is None or kind in _THROUGH_TABLE:
                if number not in table:
                    memory += b"\0" * (-len(memory) % 16)
                    table[number] = len(memory)
                    memory += _JUMP + bytes(8)
                inside = table[number] + (len(_JUMP) if kind in _THROUGH_TABLE else 0)
                if kind not in (_PLT32, *_THROUGH_TABLE):
                    raise UnsupportedObject  # the address of what may be too far away
            elif kind not in (_PC32, _PLT32):
                raise UnsupportedObject
            struct.pack_into("<i", memory, place, inside + addend - place)
        outside = {n: resolve(self.name(self.symbols[n])) for n in table if self.place_of(n) is None}
        base = _room(len(memory))
        for number, place in table.items():
            known = self.place_of(number)
            struct.pack_into("<Q", memory, place + len(_JUMP), outside[number] if known is None else base + known)
        for place, target in words:
            struct.pack_into("<Q", memory, place, base + target)
        code = MachineCode({self.name(s): base + place for n, s in enumerate(self.symbols)
                            if s[1] >> 4 and (place := self.place_of(n)) is not None})
        weakref.finalize(code, _libc().munmap, base, len(memory)).atexit = False  # threads may run until the end
        ctypes.memmove(base, bytes(memory), len(memory))
        if _libc().mprotect(base, len(memory), mmap.PROT_READ | mmap.PROT_EXEC):
            raise UnsupportedObject
        return code

    def place_of(self, number: int) -> int | None:
        """Where in the memory a symbol is; None for one of elsewhere."""
        _, _, _, section, value, _ = self.symbols[number]
        if section == _UNDEFINED:
            return None
        place = self.places[section] if section < _RESERVED else None
        if place is None:
            raise UnsupportedObject
        return place + value


def _room(size: int) -> int:
    """The address of fresh memory, in whole pages."""
    base = _libc().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if base in (None, ctypes.c_void_p(-1).value):
        raise MemoryError(f"there is no room for {size} bytes of machine code")
    return base


@once
def _libc() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_ssize_t)
    library.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
    library.mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return library


def of_process(name: str) -> int:
    """The address of a function of the C library, or of another that the process has; RuntimeError if none has it."""
    try:
        return ctypes.cast(getattr(_libc(), name), ctypes.c_void_p).value or 0
    except AttributeError:
        raise RuntimeError(f"compiled code calls {name!r}, which is nowhere in this process") from None
