"""Bytes: numbers, texts and counts one after the other, in an envelope with a version and a checksum.

    w = Writer();  w.text("sin");  w.integer(-3)       blob = sealed(MAGIC, 1, w.bytes())
    r = Reader(opened(MAGIC, 1, blob));  r.text() == "sin";  r.integer() == -3

A reader takes nothing on trust: whatever is not as `docs/export-format.md` has it is a `FormatError`, every count is
compared with what is left of the bytes before anything of that size is made, and nothing that is read is run.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import NoReturn, TypeVar

T = TypeVar("T")
Data = bytes | memoryview

_HEAD = struct.Struct("<8sIQ32s")  # magic, version, bytes that follow, their SHA-256
DEPTH = 64                        # values and trees in one another
_WORD = 1 << 64


class FormatError(ValueError):
    """Bytes are not an exported program that this version of Anima can read: damaged, of another kind or version."""


def sealed(magic: bytes, version: int, content: bytes) -> bytes:
    """The envelope of a content."""
    return _HEAD.pack(magic, version, len(content), hashlib.sha256(content).digest()) + content


def opened(magic: bytes, version: int, blob: bytes, what: str) -> memoryview:
    """The content of an envelope; FormatError unless it is whole, of this kind, and of a version up to `version`."""
    if len(blob) < _HEAD.size or bytes(blob[:8]) != magic:
        raise FormatError(f"These {len(blob)} bytes are not {what} of Anima's: they do not begin with {magic!r}.")
    _, found, size, digest = _HEAD.unpack_from(blob)
    if not 1 <= found <= version:
        raise FormatError(f"This is {what} in version {found} of the format; this Anima reads versions 1 to {version}. "
                          "Use the Anima that it was made with, or a later one.")
    content = memoryview(blob)[_HEAD.size:]
    if len(content) != size:
        raise FormatError(f"{what} is incomplete: {len(content)} bytes of {size}.".capitalize())
    if hashlib.sha256(content).digest() != digest:
        raise FormatError(f"{what} is damaged: its checksum is another.".capitalize())
    return content


def version_of(blob: Data) -> int:
    """The version of the format that an envelope says."""
    return _HEAD.unpack_from(blob)[1]


class Writer:
    """Appends values to bytes."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def bytes(self) -> bytes:
        return bytes(self._bytes)

    def natural(self, value: int) -> None:
        """A number that is not negative, seven bits a byte, the low ones first."""
        while value > 127:
            self._bytes.append(value & 127 | 128)
            value >>= 7
        self._bytes.append(value)

    def integer(self, value: int) -> None:
        """A number of 64 bits: 2 n, or -2 n - 1."""
        if not -_WORD // 2 <= value < _WORD // 2:
            raise NotImplementedError(f"the integer {value} has more than 64 bits, and cannot be exported")
        self.natural(2 * value if value >= 0 else -2 * value - 1)

    def flag(self, value: bool) -> None:
        self._bytes.append(bool(value))

    def real(self, value: float) -> None:
        self._bytes += struct.pack("<d", value)

    def data(self, value: Data) -> None:
        self.natural(len(value))
        self._bytes += value

    def text(self, value: str) -> None:
        self.data(value.encode())

    def append(self, other: Writer) -> None:
        self._bytes += other._bytes


class Reader:
    """Takes values off bytes, in the order in which a `Writer` put them there."""

    def __init__(self, content: memoryview, version: int = 1) -> None:
        self._content = content
        self.version = version
        self._place = 0
        self._depth = 0

    def fail(self, problem: str) -> NoReturn:
        raise FormatError(f"The exported program is damaged, at byte {self._place}: {problem}.")

    def _take(self, count: int) -> memoryview:
        start, self._place = self._place, self._place + count
        if self._place > len(self._content):
            self._place = start
            self.fail(f"{count} bytes are missing")
        return self._content[start:self._place]

    def natural(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                if value >= _WORD:
                    break
                return value
        self.fail("a number is too large")

    def integer(self) -> int:
        value = self.natural()
        return -(value + 1) // 2 if value & 1 else value // 2

    def flag(self) -> bool:
        value = self._take(1)[0]
        if value > 1:
            self.fail("a flag is neither 0 nor 1")
        return bool(value)

    def real(self) -> float:
        return struct.unpack("<d", self._take(8))[0]

    def count(self) -> int:
        """How many things follow, each of which takes a byte at least."""
        value = self.natural()
        if value > len(self._content) - self._place:
            self.fail(f"{value} things cannot follow")
        return value

    def data(self) -> memoryview:
        return self._take(self.count())

    def text(self) -> str:
        try:
            return str(self.data(), "utf-8")
        except UnicodeDecodeError:
            self.fail("a text is not UTF-8")

    def below(self, size: int, what: str) -> int:
        """A number that says which of `size` things."""
        value = self.natural()
        if value >= size:
            self.fail(f"there is no {what} of number {value}")
        return value

    def many(self, read: Callable[[], T]) -> list[T]:
        """A count, and as many things."""
        return [read() for _ in range(self.count())]

    def inside(self, read: Callable[[], T]) -> T:
        """What is read inside of something else; FormatError if it is too deep inside."""
        if self._depth == DEPTH:
            self.fail(f"values are more than {DEPTH} deep")
        self._depth += 1
        value = read()
        self._depth -= 1
        return value

    def end(self) -> None:
        """FormatError unless everything is read."""
        if self._place != len(self._content):
            self.fail("there is more than belongs here")
