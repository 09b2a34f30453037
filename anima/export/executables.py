"""Compiled programs as bytes: machine code for one kind of CPU, loaded without tracing or compiling anything.

    blob, in_tree, out_tree = serialize(jit(f).lower(x).compile())
    deserialize_and_load(blob, in_tree, out_tree)(x)

These bytes are code: unlike an exported program, which is data, they do whatever they were made to do when they are
called. Their checksum tells of accidents, not of malice. Load only what you would also run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from anima import errors, tree
from anima.api.devices import devices
from anima.api.later import OpaqueProgram, later_p
from anima.api.stages import ArgInfo, Compiled, MemoryAnalysis, call_compiled, struct_of
from anima.compiler.keys import program_key
from anima.compiler.lowering.callback import HostFunction, InPlace
from anima.compiler.machine import native
from anima.compiler.machine.target import Target
from anima.core.avals import ShapedArray
from anima.core.format import FormatError, Reader, Writer, opened, sealed
from anima.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Var
from anima.export.reading import Programs
from anima.export.writing import Tables
from anima.runtime.executable import Executable
from anima.runtime.programs import Float0Executable
from anima.runtime.saving import read_code, read_target, write_code, write_naturals, write_target
from anima.version import __version__

MAGIC, VERSION = b"ANIMAOBJ", 2
WHAT = "a compiled program"
_FOREIGN = re.compile(r"\(call foreign |\(foreign:")  # in the key of a program


class LoadedExecutable(Executable):
    """Machine code that was loaded: what is known of the program it was made from are its arguments and results."""

    @property
    def loops(self) -> str:
        raise _no_program()

    @property
    def llvm(self) -> str:
        raise _no_program()

    @property
    def asm(self) -> str:
        raise _no_program()

    def cost_analysis(self) -> dict[str, float]:
        raise _no_program()


class Loaded:
    """A compiled program that was loaded: called as `Compiled` is."""

    def __init__(self, executable: LoadedExecutable, in_tree: tree.PyTreeDef, out_tree: tree.PyTreeDef,
                 in_avals: Sequence[ShapedArray], out_avals: Sequence[ShapedArray], donated: Sequence[int]) -> None:
        self.executable, self.in_tree, self.out_tree = executable, in_tree, out_tree
        self.donate_argnums = tuple(donated)
        self._ins, self._outs = list(in_avals), list(out_avals)

    @property
    def in_avals(self) -> Any:
        """The types of the arguments, in the structure of (args, kwargs)."""
        return tree.unflatten(self.in_tree, self._ins)

    @property
    def args_info(self) -> Any:
        """The types of the arguments, and whether they are donated (`ArgInfo`)."""
        return tree.unflatten(self.in_tree, [ArgInfo(a, k in self.donate_argnums) for k, a in enumerate(self._ins)])

    @property
    def out_info(self) -> Any:
        """The types of the results (`ShapeDtypeStruct`s)."""
        return tree.unflatten(self.out_tree, map(struct_of, self._outs))

    def memory_analysis(self) -> MemoryAnalysis:
        """Bytes of arguments, results, temporaries and code."""
        return MemoryAnalysis(**self.executable.memory_analysis())

    def runtime_executable(self) -> LoadedExecutable:
        return self.executable

    def as_text(self) -> str:
        """There is no text: NotImplementedError."""
        raise _no_program()

    def cost_analysis(self) -> dict[str, float]:
        """There is no program to estimate: NotImplementedError."""
        raise _no_program()

    @errors.api_boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return call_compiled(self, self._ins, self._outs, args, kwargs)

    call = __call__


def _no_program() -> NotImplementedError:
    return NotImplementedError("This program was loaded as machine code: there is no text of it. Look at the one that "
                               "was serialized.")


# ---------------------------------------------------------------- to bytes


def serialize(compiled: Any) -> tuple[bytes, tree.PyTreeDef, tree.PyTreeDef]:
    """A compiled program as bytes, for `deserialize_and_load` on the same kind of CPU by the same version of Anima.

    Args:
      compiled: what `jit(f).lower(...).compile()` gives.

    Returns:
      (the bytes, the structure of `(args, kwargs)`, the structure of the result).

    Raises:
      NotImplementedError: for programs that call Python or C functions by their address, or differentiate loops of
        unknown length.
      TypeError: for what is no compiled program.

    >>> blob, in_tree, out_tree = serialize(jit(lambda x: 2 * x).lower(1.0).compile())
    >>> deserialize_and_load(blob, in_tree, out_tree)(21.0)
    Array(42., dtype=float32, weak_type=True)
    """
    if not isinstance(compiled, Compiled):
        raise TypeError(f"serialize takes what jit(f).lower(...).compile() gives, got {type(compiled).__name__}.")
    executable, traced = compiled.executable, compiled.traced
    if isinstance(executable, Float0Executable):
        executable = executable.executable
    if not isinstance(executable, Executable):
        raise NotImplementedError(f"{traced.fun_name} records the steps of loops for their derivatives: compiled "
                                  "programs that do cannot be serialized. Use anima.export.")
    if _FOREIGN.search(program_key(executable.code.program)):
        raise NotImplementedError(f"{traced.fun_name} calls a C function, which is at another address in another "
                                  "process: it cannot be serialized.")
    tables, body = Tables(), Writer()
    for avals in (traced.jaxpr.in_avals, traced.jaxpr.out_avals):
        body.natural(len(avals))
        for aval in avals:
            body.natural(tables.type(aval))
    write_naturals(body, traced.donate_argnums)
    _write_callbacks(body, tables, executable)
    write_code(body, executable)
    out = Writer()
    for text in (__version__, native.version()):
        out.text(text)
    write_target(out, executable.backend.target)
    tables.write(out)
    out.append(body)
    return sealed(MAGIC, VERSION, out.bytes()), compiled.in_tree, compiled.out_tree


def _write_callbacks(w: Writer, tables: Tables, executable: Executable) -> None:
    """Programs that are compiled when they are called, and operations that a library of Python's computes, each as a
    program of one equation."""
    w.natural(len(executable.program.callbacks))
    for c in executable.program.callbacks:
        on_call = isinstance(c, HostFunction) and c.primitive is later_p
        if not on_call and not isinstance(c, InPlace):
            at = f" at {c.source}" if getattr(c, "source", None) else ""
            raise NotImplementedError(f"{executable.program.name} calls Python{at}: it cannot be serialized.")
        operands, results = [Var(a) for a in c.operands], [Var(a) for a in c.results]
        alone = ClosedJaxpr(Jaxpr((), operands, results, [Eqn(c.primitive, operands, results, c.params, c.source)]))
        w.flag(on_call)
        w.natural(tables.program(c.params["program"].closed if on_call else alone))


def _read_callback(r: Reader, tables: Programs) -> HostFunction:
    """What `_write_callbacks` wrote of one."""
    on_call, program = r.flag(), tables.program()
    if not on_call:
        return InPlace.of(*program.eqns)
    return HostFunction(later_p, {"program": OpaqueProgram(program)}, tuple(program.in_avals),
                        tuple(program.out_avals), None)


# ---------------------------------------------------------------- and back


def deserialize_and_load(serialized: bytes, in_tree: tree.PyTreeDef, out_tree: tree.PyTreeDef, backend: Any = None,
                         execution_devices: Any = None) -> Loaded:
    """The compiled program in bytes that `serialize` made, ready to call: nothing is traced or compiled.

    The bytes are machine code, which a call runs: load only what you trust.

    Args:
      serialized, in_tree, out_tree: what `serialize` gave.
      backend, execution_devices: None, or the one CPU device.

    Raises:
      FormatError: a ValueError, for bytes that are damaged, of another format or of another version of Anima or LLVM,
        and for code of a CPU that has what this one has not.
      ValueError: for structures with another number of leaves.
    """
    if backend not in (None, "cpu") or any(d not in devices() for d in execution_devices or ()):
        raise NotImplementedError(f"Programs run on one device, {devices()[0]}.")
    reader = Reader(opened(MAGIC, VERSION, serialized, WHAT))
    made_by, known = (reader.text(), reader.text()), (__version__, native.version())
    if made_by != known:
        raise FormatError(f"This compiled program was made by Anima {made_by[0]} with {made_by[1]}; this is Anima "
                          f"{known[0]} with {known[1]}. Compile it again, or export it (anima.export).")
    target = _read_target(reader)
    tables = Programs(reader)
    ins, outs = reader.many(tables.type), reader.many(tables.type)
    for treedef, avals, what in ((in_tree, ins, "in_tree"), (out_tree, outs, "out_tree")):
        if treedef.num_leaves != len(avals):
            raise ValueError(f"{what} has {treedef.num_leaves} leaves, but the program {len(avals)}: {treedef}")
    donated = reader.many(reader.natural)
    callbacks = [_read_callback(reader, tables) for _ in range(reader.count())]
    executable = Float0Executable.around(LoadedExecutable(*read_code(reader, target, callbacks)), ins, outs)
    reader.end()
    return Loaded(executable, in_tree, out_tree, ins, outs, donated)


def _read_target(r: Reader) -> Target:
    """The machine that code is for; FormatError unless this one runs it."""
    target, host = read_target(r), native.host()
    missing = _has(target.features) - _has(host.features)
    if target.triple != host.triple or missing:
        lacking = f", which has not {', '.join(sorted(missing))}" if missing else ""
        raise FormatError(f"This compiled program is for {target.cpu} ({target.triple}); this machine is {host.cpu} "
                          f"({host.triple}){lacking}. Compile it here, or export it (anima.export).")
    return target


def _has(features: str) -> set[str]:
    return {name[1:] for name in features.split(",") if name.startswith("+")}
