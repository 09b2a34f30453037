"""Compiled programs: from the loop IR to something to call.

    executable = compile_program(program, shapes)      vectorize, parallelize, emit, compile, load
    [z] = executable([x, y])                           NumPy arrays in, fresh NumPy arrays out

A call takes less than a microsecond more than the program itself. The lock of the interpreter is free while
the program runs, and an executable may be called from several threads at once.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anima import routines
from anima.compiler.cache import Code
from anima.compiler.emitting.value import NUMPY, itemsize
from anima.compiler.ir.loops import Affine, Buffer, Op, Program, roots, slots, walk
from anima.compiler.machine.backend import Backend
from anima.compiler.machine.target import Target
from anima.compiler.storage.buffers import own_bytes
from anima.core import memory
from anima.core.array import ConcreteArray, PlacedArray
from anima.core.avals import Shape, ShapedArray
from anima.core.shardings import Sharding
from anima.runtime import cpu, threads
from anima.runtime.calling import Input, Output, way_back
from anima.util import check_level, fork_safe, lazy_module, replace

if TYPE_CHECKING:
    from anima.compiler import driver, traffic
    from anima.compiler.ir import costs, show_loops
    from anima.compiler.scheduling import stamp
    from anima.compiler.storage import buffers
    from anima.runtime import callbacks, guards, stamps
    from anima.runtime.tapes import routines as tapes
else:  # programs from the disk need none of these
    driver, costs = lazy_module("anima.compiler.driver"), lazy_module("anima.compiler.ir.costs")
    show_loops, stamp = lazy_module("anima.compiler.ir.show_loops"), lazy_module("anima.compiler.scheduling.stamp")
    buffers, callbacks = lazy_module("anima.compiler.storage.buffers"), lazy_module("anima.runtime.callbacks")
    guards, stamps = lazy_module("anima.runtime.guards"), lazy_module("anima.runtime.stamps")
    tapes, traffic = lazy_module("anima.runtime.tapes.routines"), lazy_module("anima.compiler.traffic")

_ALIGNMENT = 64
_WAYS_BACK = ("callback", "poll", "look", "exhausted")


def compile_program(program: Program, shapes: Sequence[Shape] | None = None,
                    target: Target | None = None) -> Executable:
    """Machine code for a program; `shapes` are those of the outputs (flat, if None), `target` the CPU (this one).

    Raises NotImplementedError for what the back end has no instructions for, naming it.
    """
    backend = cpu.here() if target is None else cpu.Cpu(target)
    return Executable(program, driver.assemble(program, backend), backend, shapes)


class Executable:
    """A compiled program. `executable(inputs)` gives the list of its outputs; inputs at `donors` are written over."""

    def __init__(self, program: Program, code: Code, backend: Backend, shapes: Sequence[Shape] | None = None,
                 donors: Sequence[int] | None = None) -> None:
        self.program = program
        self.code = code
        self.backend = backend
        self._inputs = [_input(b) for b in program.with_role("input")]
        self._outputs = _outputs(program, shapes, backend)
        self.donors = written_inputs(program) if donors is None else list(donors)
        arena = code.program.arena
        self._scratch = _output((arena + _ALIGNMENT,), np.dtype(np.uint8), backend) if arena else None
        values = [np.ascontiguousarray(b.value, NUMPY[b.dtype]) for b in program.with_role("const")]
        for array, buffer in zip(values, program.with_role("const"), strict=True):
            if array.size != buffer.size:
                raise ValueError(f"the constant {buffer.name} has {array.size} elements, not {buffer.size}")
        self._constants = [backend.copy_in(array) for array in values]
        assert [b.role for b in slots(program)] == sorted(
            (b.role for b in slots(program)), key=("input", "output", "const").index)
        self._guards = guards.Guards(program, code, self._constants) if check_level() > 1 else None
        if self._guards is not None:
            self._guard(self._guards)
        self._function = callbacks.Callbacks(program.callbacks) if program.callbacks else None
        self._stamped = stamps.register(names) if program.body and (names := stamp.stamped(program)) else None
        self._more = [*map(backend.address, self._constants)] + [
            self._address_of(name) if module is None else code.modules[module].address(name)
            for module, name in code.callees]
        self._entry = backend.entry(code.modules)
        self._run = self._caller(self._inputs, None, "list")

    def _caller(self, inputs: Sequence[Input], results: Sequence[Any] | None, form: str,
                note: tuple[int, int, int] = (0, 0, 0)) -> Callable[..., Any] | None:
        if self.donors and (results is None or not all(self._is_direct(o, inputs) for o in self._outputs)):
            return None
        run = self.backend.caller(self._entry, inputs, self._outputs, self._scratch, self._more, self.code.parallel,
                                  (self.code, self._constants, self._function, self._stamped), results, form, note)
        if run is not None and self.donors:
            run = self._over_donors(run)
        if run is None or self._guards is None:
            return run
        return self._guards.around(run, [k for k, given in enumerate(inputs) if given.donated is not None])

    def _is_direct(self, output: Output, inputs: Sequence[Input]) -> bool:
        """Whether an output is made, or can be the very array of an input: it has the type of that."""
        given = None if output.donor is None else inputs[output.donor].aval
        return output.donor is None or (given is not None and given.shape == output.shape)

    def _over_donors(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """`run`, which writes over memory of donated arguments: over copies, where others see that memory."""
        donors, name, parallel = self.donors, self.program.name, self.code.parallel

        def writing(*arguments: Any) -> Any:
            if parallel:
                threads.pool_address()  # `run` starts no threads, and leaves such calls to copies
            given = list(arguments)
            result = NotImplemented
            if not _take_over(given, donors, name):
                return result
            try:
                _make_exclusive(given, donors)
                result = None  # from here on, what was written over is worth nothing after an exception
                result = run(*given)
            finally:
                if result is NotImplemented:
                    for k in donors:
                        arguments[k]._value = given[k]._value
            return result

        return writing

    def _guard(self, guards: guards.Guards) -> None:
        """Has all memory made between guard bytes."""
        names = [b.name for b in self.program.with_role("output")]
        self._outputs = [replace(o, make=guards.result(name)) for o, name in zip(self._outputs, names, strict=True)]
        self._constants = [array for _, array, _ in guards.constants]
        if self._scratch is not None:
            self._scratch = replace(self._scratch, make=guards.scratch)

    def typed(self, avals: Sequence[ShapedArray | None], out_avals: Sequence[ShapedArray], form: str,
              donated: Sequence[int] = ()) -> Callable[..., Any] | None:
        """A function of arguments of the types `avals`: arrays of Anima's or NumPy's, Python numbers; None: of NumPy's.

        Its results are arrays of the types `out_avals`, as a "list", a "tuple" or a "single" one; the arguments at
        `donated` are deleted. It gives NotImplemented for other arguments. None where there is no such function.
        """
        inputs = [replace(given, aval=aval, donated=self.program.name if k in donated else None)
                  for k, (given, aval) in enumerate(zip(self._inputs, avals, strict=True))]
        return self._caller(inputs, out_avals, form)

    def placed(self, avals: Sequence[ShapedArray], lies: Sequence[Sharding | None], examples: Sequence[PlacedArray],
               form: str, note: tuple[int, int, int]) -> Callable[..., Any] | None:
        """`typed`, for a program of one of several processes: of arguments that were placed under these very shardings
        (None: not placed), whose parts here are of the types `avals`. Results are as the examples, but for elements;
        the calls are noted in a log (`core.processes.Log.entry`). None where arguments are written over, too."""
        if self.donors:
            return None
        inputs = [replace(given, aval=aval, lies=where)
                  for given, aval, where in zip(self._inputs, avals, lies, strict=True)]
        return self._caller(inputs, examples, form, note)

    @property
    def shapes(self) -> list[Shape]:
        """The shapes of the outputs."""
        return [o.shape for o in self._outputs]

    def _address_of(self, name: str) -> int:
        """What a program calls outside of its own modules."""
        if name == "function":
            return self._function.address
        if name == "stamped":
            return ctypes.addressof(self._stamped)
        if name == "stamp":
            return stamps.address()
        if name.startswith("tape_"):
            return tapes.routine(name)
        if name in ("get_num_threads", "set_num_threads"):
            return routines.threads_routine(name)
        return way_back(name) if name in _WAYS_BACK else routines.address(name)

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run the program. Inputs have the program's dtypes and numbers of elements, in row-major order;
        others are copied if only their layout differs. TypeError or ValueError for a wrong dtype or size."""
        if self._run is not None:
            outputs = self._run(*inputs)
            if outputs is not NotImplemented:
                return outputs
        return self._call_slowly(inputs)

    def _call_slowly(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """A call with every input checked and brought into shape."""
        if len(inputs) != len(self._inputs):
            raise TypeError(f"{self.program.name} takes {len(self._inputs)} arrays, got {len(inputs)}")
        arrays = [_row_major(a, given, i) for i, (a, given) in enumerate(zip(inputs, self._inputs, strict=True))]
        invoke = self._invoke if self._guards is None else self._guards.around(self._invoke)
        return invoke(*arrays)

    def _invoke(self, *arrays: np.ndarray) -> list[np.ndarray]:
        """A call with inputs that are as they must be, not through `run`."""
        there = self.backend
        given = [there.copy_in(a) for a in arrays]
        outputs = [_made(o) if o.donor is None else given[o.donor] for o in self._outputs]
        scratch = None if self._scratch is None else _made(self._scratch)
        arena = 0 if scratch is None else -(-there.address(scratch) // _ALIGNMENT) * _ALIGNMENT
        addresses = [*map(there.address, (*given, *outputs)), *self._more]
        there.launch(self._entry, addresses, arena, self.code.parallel)
        return [there.copy_out(x).reshape(o.shape) for x, o in zip(outputs, self._outputs, strict=True)]

    # -- what people look at --------------------------------------------------------------------

    @property
    def loops(self) -> str:
        """The program as it was emitted: vectorised and parallelised loops."""
        return show_loops.show(self.code.program)

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
        outputs, program = self.program.with_role("output"), self.code.program
        return {
            "argument_size_in_bytes": sum(map(_bytes, self.program.with_role("input"))),
            "output_size_in_bytes": sum(map(_bytes, outputs)),
            "temp_size_in_bytes": program.arena + threads.num_threads() * own_bytes(program.buffers),
            "alias_size_in_bytes": sum(_bytes(b) for b, o in zip(outputs, self._outputs, strict=True)
                                       if o.donor is not None),
            "generated_code_size_in_bytes": sum(len(m.object_bytes()) for m in self.code.modules),
        }

    def cost_analysis(self) -> dict[str, float]:
        """Estimates for one call: `optimal_seconds` on one core, scalar `operations` in the text, bytes of kernels."""
        by_name = {b.name: b for b in self.code.program.buffers}
        return {
            "optimal_seconds": sum(costs.cost(s) for s in self.code.program.body) * 1e-9,
            "operations": float(sum(n.operations if isinstance(n, Affine) else isinstance(n, Op)
                                    for n in walk(*self.program.body))),
            "bytes accessed": float(traffic.traffic(by_name, *self.code.program.body).moved),
        }


def _bytes(buffer: Buffer) -> int:
    return buffer.size * itemsize(buffer.dtype)


_taking_over = fork_safe(threading.Lock())


def _take_over(given: list[Any], donors: Sequence[int], name: str) -> bool:
    """Puts arrays that nobody else has in the places of the donors among `given`, which are deleted. False if there are
    others than our arrays, or one is gone, to another thread for instance."""
    with _taking_over:
        found = [given[k] for k in donors]
        for x in found:
            if x.__class__ is not ConcreteArray or x._value.__class__ is str:
                return False
        for k in donors:
            own = ConcreteArray.__new__(ConcreteArray)  # whose value is sealed already
            own._value, own.aval = given[k]._value, given[k].aval
            given[k] = own
        for x in found:
            x._value = name
    return True


def _make_exclusive(given: list[Any], donors: Sequence[int]) -> None:
    """Copies the elements of donors that others see, through views of them or a call that is still running."""
    for k in donors:
        own = given[k]
        if not memory.is_exclusive(own):
            given[k] = ConcreteArray(own.elements().copy(), own.aval)


def _input(buffer: Buffer) -> Input:
    memory.require_addresses((buffer.size,), NUMPY[buffer.dtype])
    return Input(NUMPY[buffer.dtype], buffer.size)


def _outputs(program: Program, shapes: Sequence[Shape] | None, backend: Backend) -> list[Output]:
    """How to make each output, or the input whose memory it takes over."""
    inputs = {b.name: i for i, b in enumerate(program.with_role("input"))}
    donors = {name: inputs.get(root.name) for name, root in roots(program.buffers).items()}
    made: list[Output] = []
    results = program.with_role("output")
    for buffer, shape in zip(results, shapes if shapes is not None else [(b.size,) for b in results], strict=True):
        if math.prod(shape) != buffer.size:
            raise ValueError(f"the output {buffer.name} has {buffer.size} elements, which is not the shape {shape}")
        made.append(replace(_output(tuple(shape), NUMPY[buffer.dtype], backend), donor=donors[buffer.name]))
    return made


def written_inputs(program: Program) -> list[int]:
    """The positions of the donated inputs whose memory the program writes to, or gives back."""
    inputs = program.with_role("input")
    if not any(b.donated for b in inputs):
        return []
    owners = roots(program.buffers)
    taken = {b.name for b in program.with_role("output")}.union(*(u.writes for u in buffers.accesses(program)[0]))
    written = {owners[name].name for name in taken & owners.keys()}
    return [k for k, b in enumerate(inputs) if b.name in written]


def _output(shape: Shape, dtype: np.dtype, backend: Backend) -> Output:
    memory.require_addresses(shape, dtype)
    return Output(backend.allocator(math.prod(shape) * dtype.itemsize), shape, dtype)


def _made(output: Output) -> Any:
    return output.make(output.shape, output.dtype)


def _row_major(array: Any, given: Input, position: int) -> np.ndarray:
    """The array itself if it is as the program wants it, else a copy in row-major order."""
    dtype, size = given.dtype, given.size
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        got = f"an array of {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
        raise TypeError(f"argument {position} must be an array of {dtype}, got {got}")
    if array.size != size:
        raise ValueError(f"argument {position} must have {size} elements, got shape {array.shape}")
    return np.require(np.asarray(array), dtype, ["C_CONTIGUOUS", "ALIGNED"])
