"""LLVM text to machine code in this process: the only file that imports llvmlite, at the first text to compile.

`compile_module` parses LLVM assembly and generates an object file in memory; `load_object` links such an
object (fresh, or from the disk) and gives addresses: by `image` where that knows how, by LLVM otherwise. No
optimising passes run before code generation: our text is written as it is meant to run, and instcombine, GVN and
the like made none of our programs faster, but compiling a tenth to a half slower. Code generation takes no Python
lock, so that threads compile at once.

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
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from anima import granted
from anima.compiler.machine import amx, image, store
from anima.compiler.machine.target import Target, target_of
from anima.util import lazy_module, once

if TYPE_CHECKING:
    import llvmlite
    import llvmlite.binding as llvm

    from anima.compiler.scalars import table
else:  # programs that are all on disk need none of these
    llvmlite, llvm = lazy_module("llvmlite"), lazy_module("llvmlite.binding")
    table = lazy_module("anima.compiler.scalars.table")


@once
def host() -> Target:
    """The machine we run on."""
    _initialize()
    features = llvm.get_host_cpu_features().flatten()
    if "+amx-tile" in features and not amx.lent():
        features = features.replace("+amx", "-amx")
    return target_of(llvm.get_process_triple(), llvm.get_host_cpu_name(), features)


def version() -> str:
    """The code generator: objects that one version made are for that version."""
    return f"llvmlite {llvmlite.__version__}, LLVM {llvm.llvm_version_info}"


class Module:
    """Machine code in memory. It stays there for as long as this object lives."""

    __slots__ = ("_addresses", "_code", "_object", "_target", "llvm")

    def __init__(self, object_bytes: bytes, llvm_text: str | None, target: Target | None,
                 symbols: Mapping[str, int] | None = None, support: str = "") -> None:
        self._object = object_bytes
        self._target = target
        self.llvm = llvm_text
        known = dict(symbols or {})
        for name in {name.decode() for name in _SUPPORT_NAME.findall(object_bytes)} - {support}:
            known[name] = _support(name, target or host()).address(name)
        self._code = image.load(object_bytes, lambda name: known[name] if name in known else image.of_process(name))
        self._addresses = _Lookup(object_bytes, known) if self._code is None else self._code.addresses

    def address(self, function_name: str) -> int:
        """The address of a function (or constant) of the module; KeyError if it has none of that name."""
        try:
            return self._addresses[function_name]
        except KeyError:
            raise KeyError(f"no function {function_name!r} in this module") from None

    def object_bytes(self) -> bytes:
        """The object file, for `load_object`."""
        return self._object

    def asm(self) -> str:
        """The machine code as assembly text; ValueError for a module that was loaded as an object."""
        if self.llvm is None:
            raise ValueError("a module loaded from a cached object has no LLVM text to print assembly from")
        return _generate(_parse(self.llvm), self._target or host(), as_object=False).decode()


class _Lookup(dict[str, int]):
    """The addresses of the functions of an object that LLVM links, each looked up when it is first asked for."""

    def __init__(self, object_bytes: bytes, symbols: Mapping[str, int]) -> None:
        super().__init__()
        self.dylib = f"anima{next(_numbers)}"
        with _lock:
            link = llvm.JITLibraryBuilder().add_object_img(object_bytes).add_current_process()
            for name, address in symbols.items():
                link.import_symbol(name, address)
            self.engine = _engine()
            self.trackers = [link.link(self.engine, self.dylib)]

    def __missing__(self, name: str) -> int:
        with _lock:
            try:
                tracker = self.engine.lookup(self.dylib, name)
            except RuntimeError as error:
                raise KeyError(f"{name}: {error}") from None
            self.trackers.append(tracker)
        self[name] = tracker[name]
        return self[name]


def compile_module(ir_text: str, check: bool = False, level: int = 1, target: Target | None = None) -> Module:
    """Compile LLVM assembly for the host, or for a `target` whose code the host can run. `check` runs LLVM's verifier
    first; `level` 0 makes slower code in a fifth of the time.

    Raises `ValueError` with LLVM's message and the offending line if the text is not valid.
    """
    return load_object(compile_object(ir_text, check, level, target), ir_text, target)


def compile_object(ir_text: str, check: bool = False, level: int = 1, target: Target | None = None) -> bytes:
    """The object file for LLVM assembly, not loaded: what a cache keeps."""
    _require_memory(ir_text)
    module = _parse(ir_text)
    if check:
        with _lock:
            try:
                module.verify()
            except RuntimeError as error:
                raise ValueError(f"invalid LLVM: {error}") from None
    return _generate(module, target or host(), as_object=True, level=level)


def load_object(object_bytes: bytes, ir_text: str | None = None, target: Target | None = None,
                symbols: Mapping[str, int] | None = None) -> Module:
    """Link an object file that `compile_object` made for the target; `symbols` are addresses of what it calls.

    RuntimeError for one that calls what is nowhere, or is no object file.
    """
    return Module(object_bytes, ir_text, target, symbols)


def load(ir_text: str, target: Target | None = None, level: int = 1,
         symbols: Mapping[str, int] | None = None) -> Module:
    """`compile_module`, but what was compiled of the same text once may be on the disk. A text that begins with
    `QUICKLY` is compiled at level 0."""
    return _load(ir_text, target, 0 if ir_text.startswith(QUICKLY) else level, symbols)


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

QUICKLY = "; little time is spent in this code\n"
_SWITCHES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "passes")
ADDRESS = "inttoptr (i64"  # of something in this process: in others, such code is of no use
_SUPPORT_NAME = re.compile(rb"anima\.support\.\w+\.[cf]\d+\.v\d+")
_support_modules: dict[tuple[str, Target], Module] = {}
_lock = threading.RLock()
_numbers = itertools.count()
_local = threading.local()
_held: list[Any] = []  # llvmlite's lock, during a fork


def _before_fork() -> None:
    _lock.acquire()
    if "llvmlite.binding" in sys.modules:
        llvm.ffi.lib._lock.__enter__()
        _held.append(llvm.ffi.lib._lock)


def _after_fork() -> None:
    if _held:
        _held.pop().__exit__()
    _lock.release()


# A child of fork must not inherit our lock, or llvmlite's, held by a thread that the child does not have.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


_LIBRARY = 192 << 20  # bytes of addresses that LLVM's code takes
_ROOM = 32 << 20      # bytes of memory that it takes for a short text,
_PER_LETTER = 500     # and for each letter of a long one


def _require_memory(ir_text: str) -> None:
    # LLVM ends the process where it gets no memory.
    _initialize()
    granted.require(_ROOM + _PER_LETTER * len(ir_text), "compiling a program")


@once
def _initialize() -> None:
    if "llvmlite.binding" not in sys.modules:
        granted.require(_LIBRARY, "LLVM, which compiles programs,")
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
        text = table.support_text(name, target.triple, target.vector_bytes * 8, target.features)
        # The large arguments of sin, cos and tan are rare: less time to compile is worth more than speed.
        level = 0 if "_large." in name else 1
        module = _support_modules.setdefault((name, target), _load(text, target, level, None, name))
    return module


def _load(text: str, target: Target | None, level: int, symbols: Mapping[str, int] | None, support: str = "") -> Module:
    key = None if ADDRESS in text else store.key("object", repr(target), str(level), text)
    known = None if key is None else store.read(key)
    if known is not None:
        try:
            return Module(bytes(known), text, target, symbols, support)
        except (RuntimeError, ValueError):
            pass  # an object that does not link: compile again
    begun = time.perf_counter()
    data = compile_object(text, level=level, target=target)
    if key is not None:
        store.write(key, data, time.perf_counter() - begun)
    return Module(data, text, target, symbols, support)


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
