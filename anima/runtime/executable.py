"""Compiled programs: from the loop IR to something to call.

    executable = compile_program(program, shapes)      vectorize, parallelize, emit, compile, load
    [z] = executable([x, y])                           NumPy arrays in, fresh NumPy arrays out

A call takes about a microsecond more than the program itself. The lock of the interpreter is free while
the program runs, and an executable may be called from several threads at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from anima.compiler import cache, fortran, native
from anima.compiler.costs import cost
from anima.compiler.emit import ENTRY, slots
from anima.compiler.emit_value import NUMPY, itemsize
from anima.compiler.loops import Buffer, Op, Program, walk
from anima.compiler.show_loops import show
from anima.core.avals import Shape
from anima.runtime import memory, tapes, threads
from anima.runtime.callbacks import Callbacks
from anima.runtime.calling import descriptor, fast_invoke, slow_invoke, way_back

_ALIGNMENT = 64
_KEPT_ARENAS = 2           # scratch memory that an executable keeps from call to call ...
_KEPT_BYTES = 1 << 28      # ... unless it is larger than this


def compile_program(program: Program, shapes: Sequence[Shape] | None = None,
                    target: native.Target | None = None) -> Executable:
    """Machine code for a program; `shapes` are those of the outputs (flat, if None), `target` the machine (this one).

    Raises NotImplementedError for what the back end has no instructions for, naming it.
    """
    code = cache.compiled(program, target or native.host())
    return Executable(program, code, shapes)


@dataclass(frozen=True, slots=True)
class _Output:
    """How to make one output: `make(shape, dtype)`; `donor` is the input whose memory it takes over."""

    shape: Shape
    dtype: np.dtype
    donor: int | None
    make: Callable[[Shape, np.dtype], np.ndarray]


class Executable:
    """A compiled program. `executable(inputs)` gives the list of its outputs."""

    def __init__(self, program: Program, code: cache.Code, shapes: Sequence[Shape] | None = None) -> None:
        self.program = program
        self.code = code
        self._inputs = [(NUMPY[b.dtype], b.size) for b in program.with_role("input")]
        self._outputs = _outputs(program, shapes)
        self._constants = [np.ascontiguousarray(b.value, NUMPY[b.dtype]) for b in program.with_role("const")]
        for array, buffer in zip(self._constants, program.with_role("const"), strict=True):
            if array.size != buffer.size:
                raise ValueError(f"the constant {buffer.name} has {array.size} elements, not {buffer.size}")
        assert [b.role for b in slots(program)] == sorted(
            (b.role for b in slots(program)), key=("input", "output", "const").index)
        self._function = Callbacks(program.callbacks)
        self._more = [a.ctypes.data for a in self._constants] + [
            self._address_of(name) if module is None else code.modules[module].address(name)
            for module, name in code.callees]
        self._entry = code.modules[0].address(ENTRY)
        outputs = [(o.dtype, b.size) for o, b in zip(self._outputs, program.with_role("output"), strict=True)]
        self._descriptor = descriptor(self._entry, self._inputs, outputs, self._more)
        self._address = ctypes.addressof(self._descriptor)
        self._invoke = fast_invoke()
        self._arenas: list[Any] = []
        donors = any(o.donor is not None for o in self._outputs)
        self._fresh = None if donors else [(o.make, o.shape, o.dtype) for o in self._outputs]

    def _address_of(self, name: str) -> int:
        """What a program calls outside of its own modules."""
        if name == "function":
            return id(self._function)
        if name.startswith("tape_"):
            return tapes.routine(name)
        return way_back(name) if name in ("callback", "poll", "look") else fortran.address(name)

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run the program. Inputs have the program's dtypes and numbers of elements, in row-major order;
        others are copied if only their layout differs. TypeError or ValueError for a wrong dtype or size."""
        fresh = self._fresh
        if fresh is None or self._invoke is None or type(inputs) is not list:
            return self._call_slowly(inputs)
        outputs = [make(shape, dtype) for make, shape, dtype in fresh]
        pool = threads.pool_address() if self.code.parallel else 0
        if self.code.program.arena:
            arena = self._take_arena()
            try:
                status = self._invoke(self._address, inputs, outputs, arena[1], pool)
            finally:  # a callback may raise
                self._keep(arena)
        else:
            status = self._invoke(self._address, inputs, outputs, 0, pool)
        return outputs if status == 0 else self._call_slowly(inputs)

    def _take_arena(self) -> tuple[Any, int]:
        """Scratch memory, aligned."""
        try:
            return self._arenas.pop()
        except IndexError:
            scratch = np.empty(self.code.program.arena + _ALIGNMENT, np.uint8)
            return scratch, -(-scratch.ctypes.data // _ALIGNMENT) * _ALIGNMENT

    def _keep(self, arena: tuple[Any, int]) -> None:
        if len(self._arenas) < _KEPT_ARENAS and self.code.program.arena <= _KEPT_BYTES:
            self._arenas.append(arena)

    def _call_slowly(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """A call with every input checked and brought into shape."""
        if len(inputs) != len(self._inputs):
            raise TypeError(f"{self.program.name} takes {len(self._inputs)} arrays, got {len(inputs)}")
        arrays = [_row_major(a, dtype, size, i) for i, (a, (dtype, size)) in
                  enumerate(zip(inputs, self._inputs, strict=True))]
        outputs = [o.make(o.shape, o.dtype) if o.donor is None else arrays[o.donor].reshape(o.shape)
                   for o in self._outputs]
        arena = self._take_arena()
        pool = threads.pool_address() if self.code.parallel else 0
        try:
            slow_invoke(self._entry, arrays + outputs, self._more, arena[1], pool)
        finally:
            self._keep(arena)
        return outputs

    # -- what people look at --------------------------------------------------------------------

    @property
    def loops(self) -> str:
        """The program as it was emitted: vectorised and parallelised loops."""
        return show(self.code.program)

    @property
    def llvm(self) -> str:
        """The LLVM text that was compiled."""
        return "\n".join(self.code.texts)

    @property
    def asm(self) -> str:
        """The machine code as assembly text."""
        return "\n".join(module.asm() for module in self.code.modules)

    def memory_analysis(self) -> dict[str, int]:
        """Bytes of the arguments, the results, scratch memory and machine code."""
        outputs = self.program.with_role("output")
        return {
            "argument_size_in_bytes": sum(map(_bytes, self.program.with_role("input"))),
            "output_size_in_bytes": sum(map(_bytes, outputs)),
            "temp_size_in_bytes": self.code.program.arena,
            "alias_size_in_bytes": sum(_bytes(b) for b, o in zip(outputs, self._outputs, strict=True)
                                       if o.donor is not None),
            "generated_code_size_in_bytes": sum(len(m.object_bytes()) for m in self.code.modules),
        }

    def cost_analysis(self) -> dict[str, float]:
        """Estimates for one call: `optimal_seconds` on one core, scalar `operations` in the text, bytes in and out."""
        sizes = self.memory_analysis()
        return {
            "optimal_seconds": sum(cost(s) for s in self.code.program.body) * 1e-9,
            "operations": float(sum(isinstance(n, Op) for n in walk(*self.program.body))),
            "bytes accessed": float(sizes["argument_size_in_bytes"] + sizes["output_size_in_bytes"]),
        }


def _bytes(buffer: Buffer) -> int:
    return buffer.size * itemsize(buffer.dtype)


def _outputs(program: Program, shapes: Sequence[Shape] | None) -> list[_Output]:
    inputs = {b.name: i for i, b in enumerate(program.with_role("input"))}
    by_name = {b.name: b for b in program.buffers}
    made = []
    buffers = program.with_role("output")
    for buffer, shape in zip(buffers, shapes if shapes is not None else [(b.size,) for b in buffers], strict=True):
        root = buffer
        while root.alias is not None:
            root = by_name[root.alias]
        if int(np.prod(shape, dtype=np.int64)) != buffer.size:
            raise ValueError(f"the output {buffer.name} has {buffer.size} elements, which is not the shape {shape}")
        dtype = NUMPY[buffer.dtype]
        nbytes = buffer.size * dtype.itemsize
        make = np.empty if nbytes < memory.LEAST else partial(memory.empty, nbytes=nbytes)
        made.append(_Output(tuple(shape), dtype, inputs.get(root.name), make))
    return made


def _row_major(array: Any, dtype: np.dtype, size: int, position: int) -> np.ndarray:
    """The array itself if it is as the program wants it, else a copy in row-major order."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        got = f"an array of {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
        raise TypeError(f"argument {position} must be an array of {dtype}, got {got}")
    if array.size != size:
        raise ValueError(f"argument {position} must have {size} elements, got shape {array.shape}")
    return np.require(np.asarray(array), dtype, ["C_CONTIGUOUS", "ALIGNED"])
