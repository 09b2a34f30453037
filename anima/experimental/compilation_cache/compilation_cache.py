"""The cache of compiled programs on the disk: see docs/caching.md.

    set_cache_dir("/tmp/programs")      as anima.config.update("compilation_cache_dir", ...)
"""

from __future__ import annotations

import os

from anima.compiler.machine import store
from anima.config import compilation_cache_dir
from anima.names import access
from anima.util import clear_all


def set_cache_dir(path: str | os.PathLike[str]) -> None:
    """Programs are kept in this folder from now on, and looked for there first; it is made when it is needed."""
    compilation_cache_dir.set(os.fspath(path))


def reset_cache() -> None:
    """Writes what is to be written, and forgets in this process what was compiled, and which folders did not work.

    What is on the disk stays there.
    """
    store.flush()
    clear_all()


def is_initialized() -> bool:
    """Whether programs are kept: there is a folder for them, and the option `enable_compilation_cache` is set."""
    return store.location() is not None


globals().update(access(__name__, globals()))
