"""From loops to machine code: the last passes, in order, and the code generator.

    loops   tile vectorize parallelize      what runs in which order, in lanes, on threads
            interrupt                       where Ctrl-C is noticed
    llvm    emit_program                    text
    code    native                          several modules at once, on all cores
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from anima.compiler.emitting.emit import emit_program
from anima.compiler.ir.loops import Program
from anima.compiler.machine.native import Module, Target
from anima.compiler.scheduling.interrupt import interrupt
from anima.compiler.scheduling.parallelize import parallelize
from anima.compiler.scheduling.tile import tile
from anima.compiler.scheduling.vectorize import vectorize
from anima.util import cleared, lazy_module, once, record

futures = lazy_module("concurrent.futures")

Load = Callable[[str, Target], Module]
_shared: dict[tuple[str, Target], Module] = {}  # modules that many programs use: parts of matrix products
cleared(_shared.clear)


@record(eq=False)
class Code:
    """A compiled program: its last loops, LLVM text and modules; what it calls (see `Emitted.callees`); whether it
    uses the thread pool."""

    program: Program
    texts: tuple[str, ...]
    modules: tuple[Module, ...]
    callees: tuple[tuple[int | None, str], ...]
    parallel: bool


def passes(target: Target) -> tuple[Callable[[Program], Program], ...]:
    """Loops to loops, for a machine."""
    return tile, partial(vectorize, target=target), parallelize, interrupt


def build(program: Program, target: Target, load: Load) -> Code:
    """Machine code for a program; `load` makes a module of a text (or finds it where it is kept)."""
    for run in passes(target):
        program = run(program)
    emitted = emit_program(program, target)
    own = len(emitted.texts) - emitted.shared
    made = {text: _shared[text, target] for text in emitted.texts[own:] if (text, target) in _shared}
    wanted = [text for text in emitted.texts if text not in made]
    if len(wanted) == 1:
        made[wanted[0]] = load(wanted[0], target)
    else:
        made |= zip(wanted, _workers().map(lambda text: load(text, target), wanted), strict=True)
    for text in emitted.texts[own:]:
        made[text] = _shared.setdefault((text, target), made[text])
    # Programs that differ in constants and callbacks alone share the code, which keeps none of these alive.
    bare = tuple(replace(b, value=None) if b.role == "const" else b for b in program.buffers)
    program = replace(program, buffers=bare, callbacks=())
    return Code(program, emitted.texts, tuple(made[t] for t in emitted.texts), emitted.callees, emitted.parallel)


@once
def _workers() -> Any:
    return futures.ThreadPoolExecutor(thread_name_prefix="anima-compile")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.cache_clear)  # type: ignore[attr-defined]  # the threads are the parent's
