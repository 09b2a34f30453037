"""What kernels written for Triton, which makes code for GPUs, name: libraries that have some can be imported here."""

from __future__ import annotations

from anima import names
from anima.experimental.pallas.specs import CompilerParams
from anima.names import refusing

_WHY = "pallas.triton.{} is not implemented: it is part of kernels for GPUs. Here, kernels read and write ref[index]."
atomic_add, atomic_and, atomic_cas, atomic_max, atomic_min, atomic_or, atomic_xchg, atomic_xor = (
    refusing(f"atomic_{name}", _WHY.format(f"atomic_{name}"), "NotImplementedError: part of kernels for GPUs.")
    for name in ("add", "and", "cas", "max", "min", "or", "xchg", "xor"))
approx_tanh, debug_barrier, elementwise_inline_asm, load, max_contiguous, store = (
    refusing(name, _WHY.format(name), "NotImplementedError: part of kernels for GPUs.")
    for name in ("approx_tanh", "debug_barrier", "elementwise_inline_asm", "load", "max_contiguous", "store"))

__all__ = ["CompilerParams", "approx_tanh", "atomic_add", "atomic_and", "atomic_cas", "atomic_max", "atomic_min",
           "atomic_or", "atomic_xchg", "atomic_xor", "debug_barrier", "elementwise_inline_asm", "load",
           "max_contiguous", "store"]
globals().update(names.access(__name__, globals()))
