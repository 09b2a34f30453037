"""LLVM text to PTX, the assembly language that the driver of NVIDIA's GPUs compiles."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from anima.compiler.machine.target import Target
from anima.util import lazy_module, once

if TYPE_CHECKING:
    import llvmlite.binding as llvm
else:
    llvm = lazy_module("llvmlite.binding")

_lock = threading.Lock()


@once
def _machines() -> dict[Target, Any]:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return {}


def compile_ptx(text: str, target: Target) -> bytes:
    """The PTX of an LLVM text, ending with a zero byte. ValueError for a text that is not valid."""
    with _lock:
        known = _machines()
        if target not in known:
            known[target] = llvm.Target.from_triple(target.triple).create_target_machine(
                cpu=target.cpu, features=target.features, opt=2)
        try:
            module = llvm.parse_assembly(text)
            return known[target].emit_assembly(module).encode() + b"\0"
        except RuntimeError as error:
            raise ValueError(f"invalid LLVM: {error}") from None
