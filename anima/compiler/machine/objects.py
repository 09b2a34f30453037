"""LLVM texts to loaded modules: several at once, on all cores; those that other programs have, too, once for all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from anima import granted
from anima.compiler.machine import native
from anima.compiler.machine.target import Target
from anima.util import cleared, lazy_module, once

futures = lazy_module("concurrent.futures")  # slow to load
_shared: dict[tuple[str, Target], native.Module] = {}  # modules that many programs use: parts of matrix products
cleared(_shared.clear)


def modules(texts: Sequence[str], shared: int, target: Target) -> tuple[native.Module, ...]:
    """The modules of texts, of which the last `shared` are those of other programs, too."""
    own = len(texts) - shared
    made = {text: _shared[text, target] for text in texts[own:] if (text, target) in _shared}
    wanted = [text for text in texts if text not in made]
    made |= zip(wanted, _loaded(wanted, target), strict=True)
    for text in texts[own:]:
        made[text] = _shared.setdefault((text, target), made[text])
    return tuple(made[text] for text in texts)


def _loaded(texts: Sequence[str], target: Target) -> list[native.Module]:
    if len(texts) > 1:
        try:
            jobs = [_workers().submit(native.load, text, target) for text in texts]
        except RuntimeError:  # the system gives no more threads, or the process is ending: this one does it all
            pass
        else:
            return [job.result() for job in jobs]
    return [native.load(text, target) for text in texts]


@once
def _workers() -> Any:
    return futures.ThreadPoolExecutor(granted.cores(), "anima-compile")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.cache_clear)  # type: ignore[attr-defined]  # the threads are the parent's
