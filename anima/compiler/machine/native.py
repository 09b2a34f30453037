"""LLVM text to machine code in this process: the only file that imports llvmlite.

`compile_module` parses LLVM assembly and generates an object file in memory; `load_object` links such an
object (fresh, or from a cache on disk) and gives addresses. No optimising passes run before code generation:
our text is written as it is meant to run, and instcombine, GVN and the like made none of our programs faster,
but compiling a tenth to a half slower. Code generation takes no Python lock, so that threads compile at once.

    >>> m = compile_module("define i64 @twice(i64 %x) { %y = shl i64 %x, 1  ret i64 %y }")
    >>> ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(m.address("twice"))(21)
    42
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import sys
import threading
from collections.abc import Sequence

import llvmlite
import llvmlite.binding as llvm

from anima.compiler.machine.target import Target, target_of
from anima.compiler.scalars.table import support_text
from anima.util import once


@once
def host() -> Target:
    """The machine we run on."""
    _initialize()
    return target_of(llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


def version() -> str:
    """The code generator: objects that one version made are for that version."""
    return f"llvmlite {llvmlite.__version__}, LLVM {llvm.llvm_version_info}"


class Module:
    """Machine code in memory. It stays there for as long as this object lives."""

    __slots__ = ("_addresses", "_engine", "_library", "_object", "_target", "_trackers", "llvm")

    def __init__(self, object_bytes: bytes, llvm_text: str | None, target: Target, support: str = "") -> None:
        self._object = object_bytes
        self._target = target
        self.llvm = llvm_text
        self._library = f"anima{next(_numbers)}"
        self._addresses: dict[str, int] = {}
        needed = {name.decode() for name in _SUPPORT_NAME.findall(object_bytes)} - {support}
        for name in needed:
            _support(name, target)  # compiled without the lock
        with _lock:
            link = llvm.JITLibraryBuilder().add_object_img(object_bytes).add_current_process()
            for name in needed:
                link.import_symbol(name, _support(name, target).address(name))
            self._engine = _engine()
            self._trackers = [link.link(self._engine, self._library)]

    def address(self, function_name: str) -> int:
        """The address of a function (or constant) of the module; KeyError if it has none of that name."""
        known = self._addresses.get(function_name)
        if known is None:
            with _lock:
                try:
                    tracker = self._engine.lookup(self._library, function_name)
                except RuntimeError as error:
                    raise KeyError(f"no function {function_name!r} in this module: {error}") from None
                self._trackers.append(tracker)
            known = self._addresses[function_name] = tracker[function_name]
        return known

    def object_bytes(self) -> bytes:
        """The object file, for `load_object`."""
        return self._object

    def asm(self) -> str:
        """The machine code as assembly text; ValueError for a module that was loaded as an object."""
        if self.llvm is None:
            raise ValueError("a module loaded from a cached object has no LLVM text to print assembly from")
        return _generate(_parse(self.llvm), self._target, as_object=False).decode()


def compile_module(ir_text: str, check: bool = False, level: int = 1, target: Target | None = None) -> Module:
    """Compile LLVM assembly for the host, or for a `target` whose code the host can run. `check` runs LLVM's verifier
    first; `level` 0 makes slower code in a fifth of the time.

    Raises `ValueError` with LLVM's message and the offending line if the text is not valid.
    """
    return load_object(compile_object(ir_text, check, level, target), ir_text, target)


def compile_object(ir_text: str, check: bool = False, level: int = 1, target: Target | None = None) -> bytes:
    """The object file for LLVM assembly, not loaded: what a cache keeps."""
    module = _parse(ir_text)
    if check:
        with _lock:
            try:
                module.verify()
            except RuntimeError as error:
                raise ValueError(f"invalid LLVM: {error}") from None
    return _generate(module, target or host(), as_object=True, level=level)


def load_object(object_bytes: bytes, ir_text: str | None = None, target: Target | None = None) -> Module:
    """Link an object file that `compile_object` made for the target."""
    return Module(object_bytes, ir_text, target or host())


def support_objects(modules: Sequence[Module], target: Target) -> dict[str, bytes]:
    """The objects of the functions that modules, and those functions, call apart from themselves, by name."""
    found: dict[str, bytes] = {}
    waiting = [m.object_bytes() for m in modules]
    while waiting:
        for name in {name.decode() for name in _SUPPORT_NAME.findall(waiting.pop())} - found.keys():
            found[name] = _support(name, target).object_bytes()
            waiting.append(found[name])
    return found


def keep_support(objects: dict[str, bytes], target: Target) -> None:
    """Makes objects those of functions that modules call, so that they need not be compiled. Those that others call
    come last."""
    for name, data in reversed(objects.items()):
        if (name, target) not in _support_modules:
            _support_modules.setdefault((name, target), Module(data, None, target, support=name))


# Implementation -----------------------------------------------------------------------------------

_SWITCHES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "passes")
_SUPPORT_NAME = re.compile(rb"anima\.support\.\w+\.f\d\d\.v\d+")
_support_modules: dict[tuple[str, Target], Module] = {}
_lock = threading.RLock()
_numbers = itertools.count()
_local = threading.local()


def _before_fork() -> None:
    _lock.acquire()
    llvm.ffi.lib._lock.__enter__()


def _after_fork() -> None:
    llvm.ffi.lib._lock.__exit__()
    _lock.release()


# A child of fork must not inherit our lock, or llvmlite's, held by a thread that the child does not have.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


@once
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


_PER_ENGINE = 64
_engines: list[llvm.LLJIT] = []  # the one for new modules, as often as it may take more of them


def _engine() -> llvm.LLJIT:
    # Called under the lock. LLVM keeps some KiB of a module that is gone, until the engine goes with the last of its
    # modules; an engine for each would take four times the memory, and more time than a small program does.
    if not _engines:
        engine = llvm.create_lljit_compiler(_machine(host()), use_jit_link=sys.platform != "win32")
        _engines.extend([engine] * _PER_ENGINE)
    return _engines.pop()


@once
def _initialize_all() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def _machine(target: Target, level: int = 1) -> llvm.TargetMachine:
    if target.triple != host().triple:
        _initialize_all()
    with _lock:
        return llvm.Target.from_triple(target.triple).create_target_machine(
            cpu=target.cpu, features=target.features, opt=level, reloc="pic", codemodel="small", jit=True)


def _support(name: str, target: Target) -> Module:
    # A function of `scalars` that is called, not written in line: compiled at its first use.
    module = _support_modules.get((name, target))
    if module is None:
        text = support_text(name, target.triple, target.vector_bytes * 8, target.features)
        # The large arguments of sin, cos and tan are rare: less time to compile is worth more than speed.
        code = _generate(_parse(text), target, as_object=True, level=0 if "_large." in name else 1)
        module = Module(code, text, target, support=name)
        module = _support_modules.setdefault((name, target), module)
    return module


@once
def _unlocked_emitter() -> ctypes._NamedFuncPointer:  # type: ignore[name-defined]
    # llvmlite serialises every call. Code generation is nine tenths of a compilation and needs only its
    # own context and target machine, so this one call goes to the library directly.
    function = ctypes.CDLL(llvm.ffi.lib._name).LLVMPY_TargetMachineEmitToMemory
    locked = llvm.ffi.lib.LLVMPY_TargetMachineEmitToMemory
    function.argtypes, function.restype = locked.argtypes, locked.restype
    return function


def _parse(ir_text: str) -> llvm.ModuleRef:
    _initialize()
    with _lock:
        try:
            return llvm.parse_assembly(ir_text, llvm.create_context())
        except RuntimeError as error:
            raise ValueError(f"invalid LLVM: {error}") from None


def _thread_machine(target: Target, level: int) -> llvm.TargetMachine:
    # A target machine generates code for one thread at a time.
    machines = _local.__dict__.setdefault("machines", {})
    if (target, level) not in machines:
        machines[target, level] = _machine(target, level)
    return machines[target, level]


def _generate(module: llvm.ModuleRef, target: Target, as_object: bool, level: int = 1) -> bytes:
    # Level 1 selects the same instructions as 2 for explicit vector code, and is quicker.
    machine = _thread_machine(target, level)
    error = ctypes.c_char_p()
    _passes(+1)
    try:
        buffer = _unlocked_emitter()(machine, module, int(as_object), ctypes.byref(error))
    finally:
        _passes(-1)
    if not buffer:
        raise RuntimeError(f"LLVM could not generate code: {(error.value or b'').decode()}")
    with _lock:
        start, size = llvm.ffi.lib.LLVMPY_GetBufferStart(buffer), llvm.ffi.lib.LLVMPY_GetBufferSize(buffer)
        try:
            return ctypes.string_at(start, size)
        finally:
            llvm.ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


_generating = 0


def _passes(change: int) -> None:
    # Passes of the code generator that do nothing, or next to nothing, to text that is written as ours is, and take a
    # quarter of its time: most of that is the one that makes addresses a base, a counter and a constant, as they are
    # already. Their switches are one each for the process, so others find them as they left them. A file takes LLVM
    # no longer to read than one switch.
    global _generating
    with _lock:
        _generating += change
        if _generating == (1 if change > 0 else 0):
            llvm.set_option("anima", f"@{_SWITCHES}.{'off' if change > 0 else 'on'}")
