"""Compiled code, kept: the same program is compiled once in a process, and once for all if a folder is given.

In memory the key is the program itself as text: equal programs share the code while one of them is in use, and the
code of the last few programs stays for those that may come. On disk (`anima_compilation_cache_dir`) a hash of the LLVM
text, the target and the versions of all that made it. A file that is not what it should be is as good as none.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import weakref
import zlib
from collections import OrderedDict

from anima.compiler.build import Code, build
from anima.compiler.ir.loops import Program
from anima.compiler.keys import program_key
from anima.compiler.machine import native
from anima.config import compilation_cache_dir
from anima.util import cleared, fork_safe, lazy_module

hashlib, tempfile = lazy_module("hashlib"), lazy_module("tempfile")  # for the disk only, and slow to load
_FORMAT = b"anima-object-1\n"
_KEPT = 64  # programs that nothing else may refer to; each takes some 50 KiB

_Key = tuple[str, native.Target]
_known: weakref.WeakValueDictionary[_Key, Code] = weakref.WeakValueDictionary()
_recent: OrderedDict[_Key, Code] = OrderedDict()
_lock = fork_safe(threading.RLock())


def compiled(program: Program, target: native.Target) -> Code:
    """The machine code of a program for a target."""
    key = program_key(program), target
    code = _known.get(key) or build(program, target, load)
    with _lock:
        code = _known.setdefault(key, code)  # another thread may have been quicker
        _recent[key] = code
        _recent.move_to_end(key)
        while len(_recent) > _KEPT:
            _recent.popitem(last=False)
    return code


@cleared
def clear() -> None:
    """Forgets the programs compiled by this process; those in the folder stay."""
    with _lock:
        _known.clear()
        _recent.clear()


# --- On disk ---------------------------------------------------------------------------------


def load(text: str, target: native.Target) -> native.Module:
    """The module for an LLVM text, from the folder of compiled code if it is there."""
    folder = compilation_cache_dir.value
    if folder is None:
        return native.compile_module(text, target=target)
    path = os.path.join(os.fspath(folder), _digest(text, target) + ".o")
    known = _read(path)
    if known is not None:
        try:
            return native.load_object(known, text, target)
        except (RuntimeError, ValueError):
            pass  # an object that does not link: compile again
    module = native.compile_module(text, target=target)
    _write(path, module.object_bytes())
    return module


def _digest(text: str, target: native.Target) -> str:
    made_by = "\n".join((native.version(), target.triple, target.cpu, target.features))
    return hashlib.sha256(f"{_FORMAT!r}\n{made_by}\n{text}".encode()).hexdigest()


def _read(path: str) -> bytes | None:
    """The object in a file; None if there is none, or something else."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError:
        return None
    head = len(_FORMAT) + 12
    if len(content) < head or not content.startswith(_FORMAT):
        return None
    size, checksum = struct.unpack_from("<QI", content, len(_FORMAT))
    data = content[head:]
    return data if len(data) == size and zlib.crc32(data) == checksum else None


def _write(path: str, data: bytes) -> None:
    """Puts an object into a file that appears complete or not at all; a folder that cannot be written is no error."""
    with contextlib.suppress(OSError):
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
