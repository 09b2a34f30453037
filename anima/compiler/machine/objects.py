"""LLVM texts to loaded modules: several at once, on all cores, and once for all processes if a folder is given.

In the folder (`anima_compilation_cache_dir`) a module is known by a hash of its text, the target and the versions of
all that made it. A file that is not what it should be is as good as none.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
import zlib
from collections.abc import Sequence
from typing import Any

from anima.compiler.machine import native
from anima.compiler.machine.target import Target
from anima.config import (
    compilation_cache_dir,
    compilation_cache_max_size,
    enable_compilation_cache,
    persistent_cache_min_compile_time_secs,
    persistent_cache_min_entry_size_bytes,
    raise_persistent_cache_errors,
)
from anima.util import cleared, lazy_module, once

hashlib, tempfile = lazy_module("hashlib"), lazy_module("tempfile")  # for the disk only, and slow to load
futures = lazy_module("concurrent.futures")
_FORMAT = b"anima-object-1\n"
_ADDRESS = "inttoptr (i64"  # of a C function of this process: in others, such code is of no use
_shared: dict[tuple[str, Target], native.Module] = {}  # modules that many programs use: parts of matrix products
cleared(_shared.clear)


def modules(texts: Sequence[str], shared: int, target: Target) -> tuple[native.Module, ...]:
    """The modules of texts, of which the last `shared` are those of other programs, too."""
    own = len(texts) - shared
    made = {text: _shared[text, target] for text in texts[own:] if (text, target) in _shared}
    wanted = [text for text in texts if text not in made]
    if len(wanted) == 1:
        made[wanted[0]] = load(wanted[0], target)
    else:
        made |= zip(wanted, _workers().map(lambda text: load(text, target), wanted), strict=True)
    for text in texts[own:]:
        made[text] = _shared.setdefault((text, target), made[text])
    return tuple(made[text] for text in texts)


@once
def _workers() -> Any:
    return futures.ThreadPoolExecutor(thread_name_prefix="anima-compile")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.cache_clear)  # type: ignore[attr-defined]  # the threads are the parent's


def load(text: str, target: Target) -> native.Module:
    """The module for an LLVM text, from the folder of compiled code if it is there."""
    folder = compilation_cache_dir.value if enable_compilation_cache.value else None
    if folder is None or _ADDRESS in text:
        return native.compile_module(text, target=target)
    path = os.path.join(os.fspath(folder), _digest(text, target) + ".o")
    known = _read(path)
    if known is not None:
        try:
            return native.load_object(known, text, target)
        except (RuntimeError, ValueError):
            pass  # an object that does not link: compile again
    begun = time.perf_counter()
    module = native.compile_module(text, target=target)
    if time.perf_counter() - begun >= persistent_cache_min_compile_time_secs.value:
        _write(path, module.object_bytes())
    return module


def _digest(text: str, target: Target) -> str:
    made_by = "\n".join((native.version(), target.triple, target.cpu, target.features))
    return hashlib.sha256(f"{_FORMAT!r}\n{made_by}\n{text}".encode()).hexdigest()


def _read(path: str) -> bytes | None:
    """The object in a file; None if there is none, or something else."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return None
    except OSError:
        if raise_persistent_cache_errors.value:
            raise
        return None
    _touch(path)
    head = len(_FORMAT) + 12
    if len(content) < head or not content.startswith(_FORMAT):
        return None
    size, checksum = struct.unpack_from("<QI", content, len(_FORMAT))
    data = content[head:]
    return data if len(data) == size and zlib.crc32(data) == checksum else None


def _write(path: str, data: bytes) -> None:
    """Puts an object into a file that appears complete or not at all; a folder that cannot be written is no error,
    unless `raise_persistent_cache_errors`."""
    largest = compilation_cache_max_size.value
    if len(data) < persistent_cache_min_entry_size_bytes.value or 0 <= largest < len(data):
        return
    with contextlib.suppress(*(() if raise_persistent_cache_errors.value else (OSError,))):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".part-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_FORMAT + struct.pack("<QI", len(data), zlib.crc32(data)) + data)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        if largest >= 0:
            _make_room(os.path.dirname(path), largest)


def _touch(path: str) -> None:
    """Notes when a file was used last, where room is short."""
    if compilation_cache_max_size.value >= 0:
        with contextlib.suppress(OSError):
            os.utime(path)


def _make_room(folder: str, largest: int) -> None:
    """Deletes the objects that were used longest ago, until the others take no more than `largest` bytes."""
    found = []
    for entry in os.scandir(folder):
        with contextlib.suppress(FileNotFoundError):  # another process was quicker
            if entry.name.endswith(".o"):
                found.append((entry.stat().st_mtime_ns, entry.stat().st_size, entry.path))
    taken = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if taken <= largest:
            break
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        taken -= size
