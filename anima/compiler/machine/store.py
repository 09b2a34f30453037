"""What was compiled, on the disk: machine code and whole programs, found again by a digest of all that made them.

    key = store.key("object", text)      store.write(key, data)      store.read(key) == data, in the next process too

The folder is `anima_compilation_cache_dir`, or else ANIMA_CACHE_DIR, or `anima` in the user's folder of caches. Files
are written by a thread of their own, and what was used longest ago goes when there is no room. Where something is wrong
with the folder or the disk, one line of the log says so, and programs are compiled as if there were none.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib.util
import os
import platform
import queue
import secrets
import sys
import threading

import numpy as np

from anima.compiler.machine import amx
from anima.compiler.machine.folder import Folder, on_disk
from anima.config import (
    compilation_cache_dir,
    compilation_cache_max_size,
    enable_compilation_cache,
    persistent_cache_min_compile_time_secs,
    persistent_cache_min_entry_size_bytes,
    raise_persistent_cache_errors,
)
from anima.util import cleared, logger, once

_PACKAGES = ("llvmlite", "ml_dtypes", "numpy", "opt_einsum", "optree", "scipy")  # what programs are made with
_CPU = ("vendor_id", "cpu family", "model", "stepping", "flags", "CPU implementer", "CPU part", "Features", "isa")
LOOKS = 16  # while as much is written as the folder may hold
_unusable: set[str] = set()    # folders that are not asked again
_unwritable: set[str] = set()  # those that are only read


def location() -> str | None:
    """The folder; None where there is none, or none is wanted."""
    if not enable_compilation_cache.value:
        return None
    given = compilation_cache_dir.value or os.environ.get("ANIMA_CACHE_DIR")
    if given:
        return os.path.abspath(os.path.expanduser(os.fspath(given)))
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "")
    else:
        base = os.environ.get("XDG_CACHE_HOME", "")
        if not os.path.isabs(base):  # as the XDG specification has it
            base = os.path.expanduser("~/.cache")
    return os.path.join(base, "anima") if os.path.isabs(base) else None


def key(*parts: str | bytes) -> str | None:
    """The name of what is made of these parts by this Anima, its libraries and options, for this CPU; None where
    nothing is kept."""
    if (folder := location()) is None or folder in _unusable:
        return None
    digest = hashlib.sha256(_maker())
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def read(name: str) -> memoryview | None:
    """What was written under a key."""
    folder = location()
    if folder is None or folder in _unusable:
        return None
    _writer.wait_for(folder, name)
    try:
        return Folder(folder).get(name)
    except OSError as error:
        _give_up(folder, error, _unusable, "used")
        return None


def write(name: str, data: bytes, seconds: float = 0.0) -> None:
    """Keeps what took `seconds` to make, soon."""
    folder, largest = location(), compilation_cache_max_size.value
    if (folder is None or folder in _unusable | _unwritable or seconds < persistent_cache_min_compile_time_secs.value
            or len(data) < persistent_cache_min_entry_size_bytes.value or 0 <= largest < len(data)):
        return
    if raise_persistent_cache_errors.value:
        _put(folder, name, data, largest)
    else:
        _writer.put(folder, name, data, largest)


def flush() -> None:
    """Returns when all that was to be written has been."""
    _writer.flush()


def _give_up(folder: str, error: OSError, known: set[str], what: str) -> None:
    """Remembers, and says once, what does not work with a folder."""
    if raise_persistent_cache_errors.value:
        raise error
    if folder not in known:
        known.add(folder)
        logger().info("The cache of compiled programs in %s is not %s: %s", folder, what, error)


@cleared
def _try_again() -> None:
    _unusable.clear()
    _unwritable.clear()


def _put(folder: str, name: str, data: bytes, largest: int) -> None:
    """Writes a file; looks through the folder once for each part of its size that is written, by whichever processes.

    That takes a second where there are many files, so it is left to chance, and none needs to know of the others.
    """
    size = on_disk(Folder(folder).put(name, data))
    if largest >= 0 and secrets.randbelow(largest or 1) < size * LOOKS:
        Folder(folder).trim(largest)


class _FileWriter:
    """Writes files one after the other, in a thread that is started for the first and ends with the process."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[tuple[str, str, bytes, int] | threading.Event] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.waiting: set[tuple[str, str]] = set()
        self.thread: threading.Thread | None = None

    def put(self, folder: str, name: str, data: bytes, largest: int) -> None:
        with self.lock:
            if self.thread is None or not self.thread.is_alive():
                thread = threading.Thread(target=self.work, daemon=True, name="anima-cache")
                try:
                    thread.start()
                except RuntimeError:  # the process is ending
                    return
                self.thread = thread
            self.waiting.add((folder, name))
            self.queue.put((folder, name, data, largest))

    def work(self) -> None:
        while True:
            job = self.queue.get()
            if isinstance(job, threading.Event):
                job.set()
                continue
            folder, name, data, largest = job
            try:
                if folder not in _unusable | _unwritable:
                    with contextlib.suppress(MemoryError):  # this one is not kept; the next may be
                        _put(folder, name, data, largest)
            except OSError as error:
                _give_up(folder, error, _unwritable, "written to")
            finally:
                self.waiting.discard((folder, name))

    def wait_for(self, folder: str, name: str) -> None:
        if (folder, name) in self.waiting:
            self.flush()

    def flush(self) -> None:
        if self.thread is not None and self.thread.is_alive():
            done = threading.Event()
            self.queue.put(done)
            done.wait(10.0)


_writer = _FileWriter()


def _after_fork() -> None:
    global _writer
    _writer = _FileWriter()  # the thread, and what it has still to write, are the parent's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(flush)


# ---------------------------------------------------------------- what made it


@once
def _maker() -> bytes:
    """A digest of Anima's sources, Python, the libraries and the CPU."""
    found = [sys.version, sys.platform, np.__version__, *_cpu(), f"AMX: {amx.lent()}"]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    _list(root, "", found)
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            found.append(_stamp(package, os.stat(spec.origin)))
    return hashlib.sha256("\n".join(found).encode()).digest()


def _list(folder: str, prefix: str, found: list[str]) -> None:
    """The sources under a folder: names, sizes, and when they were written and put there."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda e: e.name):
            if entry.name.endswith(".py") or entry.name.startswith("passes."):
                found.append(_stamp(prefix + entry.name, entry.stat()))
            elif entry.is_dir() and entry.name != "__pycache__":
                _list(entry.path, f"{prefix}{entry.name}/", found)


def _stamp(name: str, known: os.stat_result) -> str:
    return f"{name} {known.st_size} {known.st_mtime_ns} {known.st_ctime_ns}"


def _cpu() -> list[str]:
    """What code for this CPU depends on, asked of the system (LLVM, which knows, is slow to load); where it does
    not tell, which machine it is."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = file.read(1 << 16).split("\n\n", 1)[0].split("\n")
    except OSError:
        return [*platform.uname()]
    return [line for line in lines if line.split("\t", 1)[0].strip() in _CPU]
