"""Compiled programs, those of earlier processes too: what was compiled once is read from the disk, and the compiler
is not even loaded.

    executable = executable_of(closed, name)       Executable, or StoredExecutable

A program is known by what was traced (`core/digest.py`), its name, what may be written over and the options that hold.
Programs in it that are compiled when they are called are found by their digests in what was traced.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from anima.compiler.machine import native, store
from anima.config import config, profiling
from anima.core import dtypes
from anima.core.avals import ShapedArray
from anima.core.digest import LARGEST, digest
from anima.core.format import Reader, Writer
from anima.core.jaxpr import ClosedJaxpr, Eqn, all_eqns
from anima.runtime.executable import Executable
from anima.runtime.logs import timed
from anima.runtime.saving import read_code, read_target, write_code, write_target
from anima.util import check_level, lazy_module, weak_cache

recording = lazy_module("anima.runtime.tapes.recording")  # with the compiler
callback = lazy_module("anima.compiler.lowering.callback")
_LOOKING = ("ANIMA_SHOW", "ANIMA_TIME")  # set, somebody wants to see the compiler at work


class StoredExecutable(Executable):
    """Machine code from the disk. What people look at, they see of the program compiled anew."""

    def __init__(self, content: memoryview, closed: ClosedJaxpr, name: str, donated: tuple[int, ...]) -> None:
        reader = Reader(content)
        called = [callback.HostFunction.of(eqn) for eqn in _on_call(closed, reader.many(reader.data))]
        super().__init__(*read_code(reader, read_target(reader), called))
        reader.end()
        self._made_from = closed.jaxpr, closed.consts, name, donated  # not `closed`, which would live as long as that

    @cached_property
    def compiled(self) -> Executable:
        """The same program with all its forms."""
        jaxpr, consts, name, donated = self._made_from
        return recording.executable_of(ClosedJaxpr(jaxpr, consts), name, donated)

    loops = property(lambda self: self.compiled.loops)  # type: ignore[assignment]
    llvm = property(lambda self: self.compiled.llvm)  # type: ignore[assignment]
    asm = property(lambda self: self.compiled.asm)  # type: ignore[assignment]

    def cost_analysis(self) -> dict[str, float]:
        return self.compiled.cost_analysis()


class Float0Executable:
    """An executable of a program that takes or gives arrays of float0, for which compiled code has bools."""

    def __init__(self, executable: Any, in_avals: Sequence[ShapedArray], out_avals: Sequence[ShapedArray]) -> None:
        self.executable = executable
        self.given, self.results = ([(k, a.shape) for k, a in enumerate(avals) if a.dtype == dtypes.float0]
                                    for avals in (in_avals, out_avals))

    @classmethod
    def around(cls, executable: Any, in_avals: Sequence[ShapedArray], out_avals: Sequence[ShapedArray]) -> Any:
        """The executable of a program of these types: itself, if there is no float0 among them."""
        made = cls(executable, in_avals, out_avals)
        return made if made.given or made.results else executable

    def __getattr__(self, name: str) -> Any:
        return getattr(self.executable, name)

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        values = list(inputs)
        for k, shape in self.given:
            values[k] = np.zeros(shape, np.bool_)
        outs = self.executable(values)
        for k, shape in self.results:
            outs[k] = np.zeros(shape, dtypes.float0)
        return outs


@weak_cache
def executable_of(closed: ClosedJaxpr, name: str, donated: tuple[int, ...] = ()) -> Any:
    """The compiled form of a program, which may write over the arguments at `donated`; compiled at the first call."""
    return Float0Executable.around(_executable_of(closed, name, donated), closed.in_avals, closed.out_avals)


def _executable_of(closed: ClosedJaxpr, name: str, donated: tuple[int, ...]) -> Any:
    key = _key(closed, name, donated)
    if key is not None and (content := store.read(key)) is not None:
        try:
            with timed("load", name):
                return StoredExecutable(content, closed, name, donated)
        except (KeyError, RuntimeError, ValueError):
            pass  # code that does not link
    made = recording.executable_of(closed, name, donated)
    called = _programs_called(made) if key is not None and type(made) is Executable else None
    if key is not None and called is not None and _is_of_all(made):
        writer = Writer()
        writer.natural(len(called))
        for one in called:
            writer.data(one)
        write_target(writer, made.backend.target)
        write_code(writer, made)
        store.write(key, writer.bytes())
    return made


def _key(closed: ClosedJaxpr, name: str, donated: tuple[int, ...]) -> str | None:
    """What the program is called on the disk; None for one that is not kept there."""
    if store.location() is None or check_level() or profiling.value or any(map(os.environ.get, _LOOKING)):
        return None
    options = config.trace_key().values
    if not all(type(value) in (bool, int, str, type(None)) or getattr(value, "empty", False) for value in options):
        return None
    known = digest(closed)
    return None if known is None else store.key("program", known, name, repr((donated, options)))


def _is_of_all(executable: Executable) -> bool:
    """Whether the code would do the same in another process: it calls nothing that is of this one."""
    constants = sum(b.value.nbytes for b in executable.program.with_role("const"))
    return constants <= LARGEST and not any(native.ADDRESS in text for text in executable.code.texts)


def _programs_called(executable: Executable) -> list[bytes] | None:
    """The digests of what code calls back, if that are programs and nothing else."""
    kind = callback.HostFunction
    found = [digest(c.params["program"].closed) if isinstance(c, kind) and c.primitive.on_call else None
             for c in executable.program.callbacks]
    return None if None in found else found  # type: ignore[return-value]


def _on_call(closed: ClosedJaxpr, called: Sequence[Any]) -> list[Eqn]:
    """The equations of a program that call programs with these digests; KeyError if there is none."""
    known = {digest(e.params["program"].closed): e for e in all_eqns(closed) if e.primitive.on_call} if called else {}
    return [known[bytes(one)] for one in called]
