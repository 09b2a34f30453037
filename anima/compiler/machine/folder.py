"""A folder of files by key, which nobody else can put anything into, and of which nothing is believed.

    folder = Folder("/home/me/.cache/anima")      folder.put(key, data)      folder.get(key) == data

A file appears complete or not at all, and says its key and a digest: one that was cut off, damaged, renamed or put
there by other means is as good as none, and deleted. The folder and its files must be the user's own (or root's), and
no one else may be able to write to them, since what is in them is run. Where that is not so, `Refused` is raised.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from anima.core.format import FormatError, opened, sealed

MAGIC, VERSION, SUFFIX, PART = b"ANIMAKEY", 1, ".anima", ".part-"
LARGEST = 1 << 28   # bytes of a file: more is none of ours
_BLOCK = 4096       # bytes, of most systems of files
_STALE = 3600       # seconds after which a file that is not complete has been given up
_HAS_PLACES = os.open in os.supports_dir_fd and os.rename in os.supports_dir_fd and hasattr(os, "geteuid")
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | (
    getattr(os, "O_BINARY", 0))


class Refused(PermissionError):
    """A folder or a file that others could have changed."""


class CachedFile(NamedTuple):
    """A file of the folder: its name, its bytes, when it was used last (seconds since 1970)."""

    name: str
    size: int
    used: float


def on_disk(size: int) -> int:
    """The bytes that a file takes: whole blocks."""
    return -(-size // _BLOCK) * _BLOCK


def _is_whole(name: str) -> bool:
    return name.endswith(SUFFIX)


class Folder:
    """The folder at `path`, made when something is first put into it."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)

    @contextlib.contextmanager
    def _open(self, make: bool = False) -> Iterator[int | None]:
        """The folder, looked at now, by whatever path it was reached: None where there are no such handles."""
        if make:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
        if not _HAS_PLACES:
            yield None
            return
        handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _check(os.fstat(handle), self.path, stat.S_ISDIR)
            yield handle
        finally:
            os.close(handle)

    def _place(self, name: str, handle: int | None) -> str:
        return os.path.join(self.path, name) if handle is None else name

    def get(self, key: str) -> memoryview | None:
        """What was put under a key; None if there is nothing that is whole.

        Raises:
          OSError: what the system says but that there is no such file; `Refused`.
        """
        try:
            with self._open() as folder:
                return self._get(key, folder)
        except FileNotFoundError:
            return None

    def _get(self, key: str, folder: int | None) -> memoryview | None:
        place = self._place(key + SUFFIX, folder)
        handle = os.open(place, _FLAGS, dir_fd=folder)
        with open(handle, "rb") as file:
            found = os.fstat(handle)
            _check(found, key, stat.S_ISREG)
            with contextlib.suppress(OSError):
                os.utime(handle if os.utime in os.supports_fd else place)  # the next to go is what was used longest ago
            blob = file.read(found.st_size) if found.st_size <= LARGEST else b""
        try:
            content = opened(MAGIC, VERSION, blob, "a compiled program")
            if bytes(content[:len(key)]) != key.encode():
                raise FormatError("a file of another name")
        except FormatError:
            with contextlib.suppress(OSError):
                os.unlink(place, dir_fd=folder)
            return None
        return content[len(key):]

    def put(self, key: str, data: bytes) -> int:
        """Keeps data under a key; gives the bytes of the file, which is there when this returns.

        Raises:
          OSError: a folder that cannot be made or written to, a full disk; `Refused`.
        """
        content = sealed(MAGIC, VERSION, key.encode() + data)
        if len(content) > LARGEST:
            return 0
        with self._open(make=True) as folder:
            part = self._place(f"{PART}{os.getpid()}-{secrets.token_hex(8)}", folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
            try:
                with open(os.open(part, flags, 0o600, dir_fd=folder), "wb") as file:
                    file.write(content)
                os.replace(part, self._place(key + SUFFIX, folder), src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(part, dir_fd=folder)
                raise
        return len(content)

    def entries(self) -> list[CachedFile]:
        """The files of the folder, those that were used longest ago first."""
        return sorted(self._files(_is_whole), key=lambda e: (e.used, e.name))

    def _files(self, wanted: Callable[[str], bool]) -> list[CachedFile]:
        """The plain files whose names are wanted: there may be a hundred thousand of them."""
        found = []
        try:
            with os.scandir(self.path) as files:
                for file in files:
                    if not wanted(file.name):
                        continue
                    try:
                        known = file.stat(follow_symlinks=False)
                    except FileNotFoundError:  # another process was quicker
                        continue
                    if stat.S_ISREG(known.st_mode):
                        found.append(CachedFile(file.name, known.st_size, known.st_mtime))
        except FileNotFoundError:
            pass
        return found

    def trim(self, largest: int) -> int:
        """Deletes what was used longest ago, until the rest takes no more than `largest` bytes of the disk, and what
        writers that were stopped have left; gives the bytes of the rest."""
        now, left = time.time(), []
        for e in self._files(lambda name: _is_whole(name) or name.startswith(PART)):
            if _is_whole(e.name):
                left.append(e)
            elif now - e.used > _STALE:
                self._delete(e.name)
        left.sort(key=lambda e: (e.used, e.name), reverse=True)
        taken = sum([on_disk(e.size) for e in left])
        while taken > largest:
            e = left.pop()
            self._delete(e.name)
            taken -= on_disk(e.size)
        return taken

    def check(self) -> tuple[int, int]:
        """How many files are whole, and how many were not, which are gone now. OSError, `Refused`."""
        whole = bad = 0
        if os.path.exists(self.path):
            with self._open():  # `Refused` is about the folder
                pass
        for e in self.entries():
            try:
                found = self.get(e.name.removesuffix(SUFFIX))
            except Refused:
                self._delete(e.name)
                found = None
            whole, bad = whole + (found is not None), bad + (found is None)
        return whole, bad

    def clear(self) -> int:
        """Deletes all files; gives how many."""
        entries = self.entries()
        for e in entries:
            self._delete(e.name)
        return len(entries)

    def _delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path, name))


def _check(found: os.stat_result, name: str, kind: object) -> None:
    """`Refused` unless it is of a kind, of the user's own or root's, and for nobody else to write to."""
    if not kind(found.st_mode):  # type: ignore[operator]
        raise Refused(f"{name} is neither a folder nor a plain file, as it should be")
    if not hasattr(os, "geteuid"):
        return
    if found.st_uid not in (os.geteuid(), 0):
        raise Refused(f"{name} is another user's (number {found.st_uid}), whose machine code is not run")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Refused(f"others may write to {name} (mode {stat.S_IMODE(found.st_mode):o}), and machine code in it is "
                      "not run; chmod go-w makes it one's own")
