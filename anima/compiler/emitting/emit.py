"""Loop programs to LLVM text: one entry function, one function for each distinct kernel.

    void entry(ptr args, ptr arena, ptr pool)

`args` are addresses: of the inputs, the outputs and the constants, in their order in the program, then of
what the program calls: external routines, and kernels in other modules (many kernels are spread over a few
modules, which are compiled at the same time). Nothing in the text depends on where memory lies, so equal
programs are equal text, in this process and in the next.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from anima.compiler.emitting.control import part_types, stored
from anima.compiler.emitting.foreign import emit_foreign
from anima.compiler.emitting.function import Function, Operands, TextModule, operands
from anima.compiler.emitting.lapack import emit_lapack
from anima.compiler.emitting.memory import Place
from anima.compiler.emitting.value import COMPLEX_TYPES, I64, MEMORY, PTR, LaneIndex, i64, itemsize, parts
from anima.compiler.ir import lapack
from anima.compiler.ir.assembly import Builder, ModuleBuilder, Type, Value
from anima.compiler.ir.loops import (
    ENTRY,
    INDEX,
    Accumulate,
    Again,
    Assign,
    Call,
    Const,
    For,
    If,
    Kernel,
    Mutable,
    Program,
    Stmt,
    slots,
    statements,
)
from anima.compiler.ir.routines import arguments, buffers_written
from anima.compiler.keys import statements_key
from anima.compiler.machine.target import Target
from anima.compiler.products.convolution import WindowProduct, shared_text as convolution_text
from anima.compiler.products.driver import Driven, emit_driven
from anima.compiler.products.gemm import ProductText, shared_text
from anima.compiler.products.moves import ExchangeText, TurnText, moves_text
from anima.compiler.products.order import OrderText, order_text
from anima.compiler.products.substitution import SubstitutionText, substitution_text
from anima.compiler.storage.buffers import own_bytes, written_out
from anima.util import record

_INLINE = 4   # most kernels that are part of the entry function
_SPREAD = 12  # kernels from which they go into modules of their own, to be compiled at the same time,
_LONG = 300   # or statements in kernels, the longest of which does not count
_MANY = 128  # most operands of a kernel that is a function with a parameter for each
_PART = 16    # most statements in a row outside of kernels that are not cut into parts,
_LARGE = 200  # of which each has this many statements and operands
_ENDING = frozenset(("poll", "watch", "stopped", "callback"))  # routines after which the program may be over
_FLUSHING = "flushing"
_TO_ZERO = 1 << 15  # of the register with modes of arithmetic
_PARAMS: list[Any] = [("args", PTR, "noalias"), ("arena", PTR, "noalias"), ("pool", PTR)]
I32 = Type("i32")
_GEMM = {"c64": "cgemm", "c128": "zgemm"}
_DRIVEN: dict[str, tuple[Any, Callable[[str, str, Target], str]]] = {
    "gemm": (ProductText, shared_text), "convolution": (WindowProduct, convolution_text),
    "substitution": (SubstitutionText, substitution_text), "turn": (TurnText, moves_text),
    "exchange": (ExchangeText, moves_text), "order": (OrderText, order_text)}


@record
class Emitted:
    """The LLVM texts of a program: `texts[0]` has the entry.

    `callees` are what it calls, in the order in which their addresses end `args`: (None, an external routine; or
    "function", the Python object that callbacks call) or (the number of a text, a function in it). `parallel`:
    whether the program uses the thread pool. The last `shared` texts are the same in other programs: parts of
    matrix products.
    """

    texts: tuple[str, ...]
    callees: tuple[tuple[int | None, str], ...]
    parallel: bool
    shared: int = 0


def emit_program(program: Program, target: Target) -> Emitted:
    """The LLVM modules of a program.

    After this pass loops, lets and variables no longer appear; blocks, phis and vector instructions do.
    """
    entry = EntryFunction(program, target)
    entry.write()
    modules = [m for m in entry.modules if m.builder.has_functions]
    texts = [*(m.builder.text() for m in modules), *entry.shared]
    numbers = {id(m): n for n, m in enumerate([*modules, *entry.shared])}
    callees = tuple((None if m is None else numbers[id(m)], name) for _, name, m in entry.callees.values())
    return Emitted(tuple(texts), callees, any(m.parallel for m in modules), len(entry.shared))


class Outer(Function):
    """The entry function or a part of it. Long blocks are cut: code generation takes more than twice the time for a
    function of twice the size."""

    def __init__(self, entry: EntryFunction, b: Builder) -> None:
        super().__init__(entry.modules[0], b, b.params[2])
        self.entry = entry
        self.outside = entry.outer
        self.addresses: dict[str, Value] = {}  # of what it calls
        self.within = 0  # how many loops and branches are around what is being written
        self.threaded = False  # whether several threads run it
        self.in_kernel = False  # whether what is being written is in a kernel

    @property
    def often(self) -> bool:
        """Whether what is written now, and what it calls, may run many times."""
        return self.repeated or self.within > 0

    def statement(self, stmt: Stmt) -> None:
        """Write one statement, the addresses that it needs before it: all of them at the function's start would be
        more than there are registers."""
        if isinstance(stmt, (Kernel, Again)):
            super().statement(stmt)
            return
        if not self.within:
            self.entry.address(self.entry.uses(stmt).buffers)
        self.within += 1
        super().statement(stmt)
        self.within -= 1

    def block(self, stmts: Sequence[Stmt]) -> None:
        """Write statements in order, those of long blocks as parts (which know nothing of lanes). What runs often
        and is short stays together: to call a part takes as long as to write dozens of values."""
        if len(stmts) <= _PART or self.width > 1 or (self.often and _is_short(stmts)):
            super().block(stmts)
            return
        run: list[Stmt] = []
        size = 0
        for stmt in stmts:
            alone = self._stands_alone(stmt)
            more = 1 + len(self.entry.uses(stmt).buffers)
            if run and (not alone or size + more > _LARGE):
                self.entry.part(run)
                run, size = [], 0
            if alone:
                run.append(stmt)
                size += more
            else:
                self.statement(stmt)
        if run:
            self.entry.part(run)

    def kernel(self, body: Sequence[Stmt]) -> None:
        """Write what is in a kernel."""
        self.in_kernel = True
        self.block(body)
        self.in_kernel = False

    def parallel(self, loop: For) -> None:
        """Hand out the iterations."""
        if self.in_kernel:
            super().parallel(loop)
        else:
            self.entry.parallel(loop)

    def _stands_alone(self, stmt: Stmt) -> bool:
        """Whether a statement can stand in another function: it binds and assigns no names of this one, does not end
        it, and uses none of its registers."""
        if not isinstance(stmt, (Kernel, Again, Call, For, If)) or (isinstance(stmt, Kernel) and stmt.inline):
            return False
        inside = list(statements(stmt))
        own = {s.name for s in inside if isinstance(s, Mutable)}
        if any((isinstance(s, Call) and s.routine in _ENDING)
               or (isinstance(s, (Assign, Accumulate)) and s.name not in own) for s in inside):
            return False
        return not self.held or self.held.keys().isdisjoint(self.entry.uses(stmt).buffers)


def _is_short(stmts: Sequence[Stmt]) -> bool:
    """Whether there are few statements, what is inside of others counted."""
    return sum(1 for _ in islice(statements(*stmts), _LARGE + 1)) <= _LARGE


class EntryFunction:
    """Writes what stands outside of kernels: the addresses of buffers, calls of kernels and of routines."""

    def __init__(self, program: Program, target: Target) -> None:
        self.program = program
        self.buffers = {b.name: b for b in program.buffers}
        self.target = target
        self.slots = {b.name: n for n, b in enumerate(slots(program))}
        self.callees: dict[str, tuple[int, str, TextModule | str | None]] = {}  # and where their addresses are
        self.shared: list[str] = []  # texts of parts of matrix products
        self.kernels: dict[str, tuple[TextModule, str, bool]] = {}  # the last: whether they fail without memory
        self.parts = 0
        self._functions: dict[tuple[int, tuple[int, ...], tuple[bool, ...]], Any] = {}  # of kernels, by their identity
        self._written: dict[int, list[str]] = {}  # by kernels that stand several times
        self._copies: list[Kernel] = []  # what was written out, kept as its identity is
        self._uses: dict[int, Operands] = {}  # by the identity of statements, which the program keeps
        kernels = [s for s in statements(*program.body)
                   if isinstance(s, Again) or (isinstance(s, Kernel) and not s.inline)]
        count, sizes = len(kernels), sorted(sum(1 for _ in statements(s)) for s in kernels if isinstance(s, Kernel))
        long = sum(sizes[:-1]) >= _LONG
        # A function costs the code generator 0.3 ms, however short: few kernels are written in line.
        self.inline = count <= _INLINE and not long
        spread = 4 if long or count >= 4 * _SPREAD else 2 if count >= _SPREAD else 0
        masks = target.has("avx512f") and target.vector_bytes == 64
        self.modules = [TextModule(ModuleBuilder(target.triple, 8 * target.vector_bytes, target.features), masks)
                        for _ in range(1 + spread)]
        self.written = [0] * spread  # how much is in each module but the first, about
        self.flushes = program.flushes and target.triple.startswith(("x86", "amd64"))
        start = self.modules[0].builder.function
        self.function = Outer(self, start(_FLUSHING, _PARAMS, None, "internal", "noinline") if self.flushes else
                              start(ENTRY, _PARAMS))
        self.function.windows = {b.name: b.dtype for b in program.with_role("window")}

    def write(self) -> None:
        """Writes the program."""
        self.function.block(self.program.body)
        self.function.finish(lambda: self.function.b.call(self._callee("exhausted", None), []))
        if self.flushes:
            self._flushing()

    def _flushing(self) -> None:
        """The entry function, which calls the program in a mode that flushes, as its threads do then."""
        b = self.modules[0].builder.function(ENTRY, _PARAMS)
        _in_mode(b, True, lambda: b.call(_FLUSHING, b.params))
        b.ret()

    def root(self, name: str) -> str:
        """The buffer whose memory a buffer is."""
        while (buffer := self.buffers.get(name)) is not None and buffer.alias is not None:
            name = buffer.alias
        return name

    def address(self, names: Iterable[str]) -> None:
        """Loads the addresses of those buffers, and of what they are parts of, that the function does not have yet."""
        f = self.function
        args, arena, *_ = f.b.params
        for name in names:
            buffer = self.buffers.get(name)
            if buffer is None or buffer.role == "window" or name in f.places:
                continue
            root = self.root(name)
            if root != name:
                self.address([root])
            if root != name and buffer.role == "temp":
                pointer = f.places[root].pointer
            elif name in self.slots:
                pointer = f.b.load(PTR, f.b.gep("ptr", args, self.slots[name]))
            else:
                if buffer.offset is None:
                    raise ValueError(f"temporary buffer {name} has no place in the arena")
                pointer = f.b.gep("i8", arena, buffer.offset) if buffer.offset else arena
            f.places[name] = Place(pointer, buffer.dtype, root)

    def uses(self, stmt: Stmt) -> Operands:
        """What a statement uses from outside."""
        found = self._uses.get(id(stmt))
        if found is None:
            if isinstance(stmt, Again):
                found, names = self.uses(stmt.kernel), dict(stmt.names)
                found = Operands(tuple(names[b] for b in found.buffers), found.values)
            else:
                found = operands((stmt,))
            self._uses[id(stmt)] = found
        return found

    def part(self, stmts: Sequence[Stmt], kernel: Kernel | None = None) -> None:
        """Writes statements as a function of their own, and its call; for a `kernel`, what is in it."""
        f, uses = self.function, [self.uses(s) for s in stmts]
        buffers = list(dict.fromkeys(n for u in uses for n in u.buffers))
        values = list(dict.fromkeys(v for u in uses for v in u.values))

        def write(inner: Outer) -> None:
            if kernel is not None:
                inner.kernel(kernel.body)
            else:
                for stmt in stmts:
                    inner.statement(stmt)

        name, arguments, fails = self._outlined(Operands(tuple(buffers), tuple(values)), f.threaded, write)
        f.run(name, [*f.b.params[:len(_PARAMS)], *arguments], fails)
        for stmt in stmts:
            for buffer in self._stored(stmt):
                f.changed(self.root(buffer))

    def parallel(self, loop: For) -> None:
        """Hands out the iterations of a loop around kernels. Each of them is a call of a part, which has an arena for
        what is its thread's own, and no pool."""
        f, uses = self.function, self.uses(loop)
        own = own_bytes(self.buffers[n] for n in uses.buffers if n in self.buffers)
        assert isinstance(loop.extent, Const)
        count = int(loop.extent.value)
        f.env[loop.index] = LaneIndex(i64(0))

        def write(inner: Outer) -> None:
            inner.env[loop.index] = LaneIndex(inner.b.params[len(_PARAMS)], 0, 0, count - 1)
            inner.repeated = True
            inner.block(loop.body)

        inside = Operands(uses.buffers, ((loop.index, INDEX), *uses.values))
        name, (_, *arguments), fails = self._outlined(inside, True, write)

        def call(g: Function, words: Sequence[Value], memory: Value, i: Value) -> None:
            g.run(name, [words[0], memory, Value("null", PTR), i, *words[1:]], fails)

        f.on_threads([f.b.params[0], *arguments], i64(count), loop.grain, own, call)
        f.forget_stores(loop.body)

    def _outlined(self, uses: Operands, threaded: bool, write: Callable[[Outer], None]
                  ) -> tuple[str, list[Value], bool]:
        """Writes a part of the function as one of its own, with `uses`; its name, what it takes beside _PARAMS (values,
        and the addresses of what it does not find in the arena, as that is another one for each thread), and whether it
        fails where it gets no memory."""
        f = self.function
        given = [n for n in dict.fromkeys([*uses.buffers, *map(self.root, uses.buffers)])
                 if n not in self.buffers or self.buffers[n].role == "window"
                 or (threaded and self.buffers[self.root(n)].role == "temp")]
        values = [v for name, _ in uses.values for v in parts(f.plain(f.env[name]))]
        arguments = [*values, *(f.places[n].pointer for n in given)]
        params: list[Any] = [*_PARAMS, *((f"p{n}", v.type) for n, v in enumerate(arguments))]
        self.parts += 1
        name = f"{ENTRY}.part{self.parts}"
        b = self.modules[0].builder.function(name, params, linkage="internal", attributes="noinline")
        self.function = inner = Outer(self, b)
        inner.windows, inner.repeated, inner.threaded = f.windows, f.often, threaded
        for n, pointer in zip(given, b.params[len(_PARAMS) + len(values):], strict=True):
            inner.places[n] = Place(pointer, f.places[n].dtype, f.places[n].root)
        inner.receive(uses.values, b.params[len(_PARAMS):])
        write(inner)
        inner.finish()
        self.function = f
        return name, arguments, inner.exhausted is not None

    def _stored(self, stmt: Stmt) -> list[str]:
        """The buffers that a statement writes."""
        if not isinstance(stmt, Again):
            return stored((stmt,))
        if id(stmt.kernel) not in self._written:
            self._written[id(stmt.kernel)] = stored((stmt.kernel,))
        names = dict(stmt.names)
        return [names[b] for b in self._written[id(stmt.kernel)] if b in names]  # others are its own

    def outer(self, stmt: Stmt) -> None:
        """A kernel or an external routine."""
        if isinstance(stmt, (Kernel, Again)):
            self._kernel(stmt)
        elif isinstance(stmt, Call) and stmt.routine == "gemm" and stmt.args[0] in COMPLEX_TYPES:
            self._blas(stmt)
        elif isinstance(stmt, Call) and stmt.routine in _DRIVEN:
            self._driven(stmt, *_DRIVEN[stmt.routine])
        elif isinstance(stmt, Call) and stmt.routine in lapack.ROUTINES:
            emit_lapack(self.function, stmt, lambda name: self._callee(name, None), self._constant)
        elif isinstance(stmt, Call) and stmt.routine == "foreign":
            emit_foreign(self.function, stmt, self._constant)
        elif isinstance(stmt, Call) and stmt.routine == "callback":
            self._callback(stmt)
        elif isinstance(stmt, Call) and stmt.routine.startswith("tape_"):
            self._tape(stmt)
        elif isinstance(stmt, Call) and stmt.routine == "stamp":
            cell, stamp = self._callee("stamped", None), self._callee("stamp", None)
            self.function.b.call(stamp, [cell, i64(int(stmt.args[0]))])
        elif isinstance(stmt, Call) and stmt.routine in ("poll", "watch", "stopped"):
            self._interrupt(stmt)
        else:
            raise NotImplementedError(f"the external routine {stmt.routine!r}" if isinstance(stmt, Call)
                                      else f"{type(stmt).__name__} cannot stand here")

    # -- kernels --------------------------------------------------------------------------------

    def _kernel(self, stmt: Kernel | Again) -> None:
        f, uses = self.function, self.uses(stmt)
        kernel = stmt.kernel if isinstance(stmt, Again) else stmt
        if kernel.inline or self.inline or len(uses.buffers) > _MANY:
            self._in_line(self._own(stmt), len(uses.buffers) > _MANY)
            return
        self.address(uses.buffers)
        roots = {root: n for n, root in enumerate(dict.fromkeys(map(self.root, uses.buffers)))}
        places = tuple(roots[self.root(name)] for name in uses.buffers)
        sharing = self._sharing(roots)
        known = self._functions.get((id(kernel), places, sharing))
        if known is None:
            own = self._own(stmt)
            known = self._functions[id(kernel), places, sharing] = self._function(own, uses, roots, sharing)
        module, name, fails, pool, written = known
        args = [f.places[root].pointer for root in roots]
        for value, _ in uses.values:
            args += parts(f.plain(f.env[value]))
        function = name if module is self.modules[0] else self._callee(name, module)
        f.run(function, [*args, *([f.pool] if pool and f.pool is not None else [])], fails)
        for number in written:
            f.changed(f.places[uses.buffers[number]].root)

    def _own(self, stmt: Kernel | Again) -> Kernel:
        """The kernel on its own buffers."""
        if isinstance(stmt, Kernel):
            return stmt
        self._copies.append(written_out(stmt))
        return self._copies[-1]

    def _in_line(self, kernel: Kernel, large: bool) -> None:
        """Writes a kernel where it is called; a `large` one in a function that takes what the entry function does."""
        f = self.function
        if kernel.inline:
            with f.inlined(kernel.body):
                f.kernel(kernel.body)
        elif large:
            self.part([kernel], kernel)
        else:
            with f.scope():
                f.kernel(kernel.body)

    def _function(self, kernel: Kernel, uses: Operands, roots: dict[str, int], sharing: tuple[bool, ...]
                  ) -> tuple[TextModule, str, bool, bool, tuple[int, ...]]:
        """The function of a kernel, that of an equal one if there is one; whether it fails where it gets no memory,
        whether it takes the pool, and which of its operands it writes."""
        numbers = {name: f"{roots[self.root(name)]}:{self.buffers[name].dtype}" for name in uses.buffers}
        free = " ".join(f"{n}:{d}" for n, d in uses.values)
        key = f"{free}|{sharing}|{statements_key(kernel.body, numbers)}"
        pool = any(isinstance(s, For) and s.kind == "parallel" for s in statements(*kernel.body))
        if key not in self.kernels:
            self._define(key, kernel, uses.buffers, uses.values, roots, sharing, pool)
        written = set(stored(kernel.body))
        return *self.kernels[key], pool, tuple(n for n, name in enumerate(uses.buffers) if name in written)

    def _sharing(self, roots: Iterable[str]) -> tuple[bool, ...]:
        """Which operands lie on the same memory as another one (temporaries that are not alive together)."""
        shared: set[str] = set()
        for role in ("temp", "own"):
            temps = [b for b in map(self.buffers.__getitem__, roots) if b.role == role and b.offset is not None]
            last, end = "", -1
            for buffer in sorted(temps, key=lambda b: (b.offset, b.size)):
                start = int(buffer.offset)  # type: ignore[arg-type]
                stop = start + buffer.size * itemsize(buffer.dtype)
                if start < min(end, stop):
                    shared |= {last, buffer.name}
                if stop > end:
                    last, end = buffer.name, stop
        return tuple(root in shared for root in roots)

    def _define(self, key: str, kernel: Kernel, buffers: Sequence[str], values: Sequence[tuple[str, str]],
                roots: dict[str, int], sharing: Sequence[bool], pool: bool) -> None:
        params: list[Any] = [(f"p{i}", PTR, "" if shared else "noalias") for i, shared in enumerate(sharing)]
        for number, (_, dtype) in enumerate(values):
            params += [(f"s{number}.{part}", type) for part, type in enumerate(part_types(dtype, 1))]
        if pool:
            params.append(("pool", PTR))
        module = self.modules[0]
        if self.written:
            least = min(range(len(self.written)), key=self.written.__getitem__)
            self.written[least] += len(key)
            module = self.modules[1 + least]
        name = f"k{len(self.kernels)}.{_identifier(kernel.name)}"
        b = module.builder.function(name, params, linkage="" if self.written else "internal", attributes="noinline")
        f = Function(module, b, b.params[-1] if pool else None)
        f.repeated = self.function.often
        for buffer in buffers:
            root = self.root(buffer)
            f.places[buffer] = Place(b.params[roots[root]], self.buffers[buffer].dtype, root)
        f.receive(values, b.params[len(roots):])
        f.block(kernel.body)
        f.finish()
        self.kernels[key] = module, name, f.exhausted is not None

    # -- external routines ----------------------------------------------------------------------

    def _callee(self, name: str, module: TextModule | None) -> Value:
        """The address of a routine or of a function in another module, loaded at the function's start."""
        f = self.function
        if name not in f.addresses:
            address = f.b.first(f"getelementptr ptr, {f.b.params[0]}, i64 {self._place(name, name, module)}", PTR)
            f.addresses[name] = f.b.first(f"load ptr, {address}, align 8", PTR)
        return f.addresses[name]

    def _place(self, key: str, name: str, module: TextModule | str | None) -> int:
        """That of an address in the table, which is an entry's first parameter."""
        return self.callees.setdefault(key, (len(self.slots) + len(self.callees), name, module))[0]

    def _tape(self, call: Call) -> None:
        """A routine on the addresses of buffers, and numbers."""
        f = self.function
        given = [f.places[a].pointer if isinstance(a, str) else i64(int(a)) for a in call.args]
        f.b.call(self._callee(call.routine, None), given)
        for name in buffers_written(call.routine, call.args):
            f.changed(f.places[name].root)

    def _interrupt(self, call: Call) -> None:
        """Looks for signals, and the words by which kernels tell that they have."""
        f = self.function
        if call.routine == "poll":
            f.stop_unless_zero(f.b.call(self._callee("poll", None), [], I32))
            return
        flag = f.places[str(call.args[0])].pointer
        if call.routine == "stopped":
            f.stop_unless_zero(f.b.load(I64, flag))
        else:
            f.b.store(i64(0), flag)
            f.b.store(self._callee("look", None), f.b.gep("i64", flag, 1))

    def _callback(self, call: Call) -> None:
        """Hands the interpreter the addresses of operands and results."""
        f = self.function
        number, _, *names = call.args
        data = f.b.alloca(PTR, max(len(names), 1))
        for k, name in enumerate(names):
            f.b.store(f.places[str(name)].pointer, f.b.gep("ptr", data, k))
        function = self._callee("function", None)
        callee = self._callee("callback", None)

        def ask() -> Value | None:
            return f.b.call(callee, [function, i64(int(number)), data], I32)

        status = _in_mode(f.b, False, ask) if self.flushes else ask()
        f.stop_unless_zero(status)
        for name in buffers_written(call.routine, call.args):
            f.changed(f.places[name].root)

    def _constant(self, scalar: str, *numbers: float) -> Value:
        text = "_".join(map(str, numbers))
        return self.modules[0].builder.constant(f"const.{scalar}.{text.encode().hex()}", scalar, numbers, 8)

    def _driven(self, call: Call, make: Callable[[dict[str, object], Target], Driven],
                text: Callable[[str, str, Target], str]) -> None:
        """A call of generated code that programs share."""
        f, a = self.function, arguments(call.routine, call.args)
        dtype, product = str(a["dtype"]), make(a, self.target)

        def operand(name: str) -> Value:
            place = f.places[str(a[name])]
            return f.b.gep(MEMORY[place.dtype], place.pointer, int(a[f"{name}_offset"]))  # type: ignore[call-overload]

        assert f.pool is not None
        emit_driven(f.b, product, operand, f.pool,
                    lambda name: self._shared_function(name, dtype, product.target, text))
        self.modules[0].parallel |= product.grain > 0
        for name in buffers_written(call.routine, call.args):
            f.changed(f.places[name].root)

    def _shared_function(self, name: str, dtype: str, target: Target,
                         write: Callable[[str, str, Target], str]) -> int:
        """The place in the table of addresses of a function that programs share."""
        text = write(name, dtype, target)
        if not any(text is t for t in self.shared):
            self.shared.append(text)
        return self._place(f"{name}.{dtype}.{target.vector_bytes}", name, text)

    def _blas(self, call: Call) -> None:
        """A product of complex numbers. BLAS is column-major: C = A B there is C' = B' A' here, with the operands
        exchanged."""
        f, a = self.function, arguments("gemm", call.args)
        dtype = str(a["dtype"])
        routine, scalar = self._callee(_GEMM[dtype], None), MEMORY[dtype]

        def scale(number: object) -> Value:
            value = complex(number)  # type: ignore[call-overload]
            return self._constant(scalar, value.real, *([value.imag] if dtype in COMPLEX_TYPES else []))

        def flag(letter: object) -> Value:
            return self._constant("i8", ord(str(letter)))

        def matrix(which: str, t: Value) -> Value:
            place = f.places[str(a[which])]
            stride, offset = int(a[which + "_stride"]), int(a[which + "_offset"])  # type: ignore[call-overload]
            index = f.sum((LaneIndex(t),), (stride,), offset)
            return f.b.gep(f"[2 x {scalar}]" if dtype in COMPLEX_TYPES else scalar, place.pointer, f.total(index))

        def size(which: str) -> Value:
            return self._constant("i32", int(a[which]))  # type: ignore[call-overload]

        def multiply(t: Value) -> None:
            f.b.call(routine, [flag(a["transb"]), flag(a["transa"]), size("n"), size("m"), size("k"), scale(a["alpha"]),
                               matrix("b", t), size("ldb"), matrix("a", t), size("lda"), scale(a["beta"]),
                               matrix("c", t), size("ldc")])

        f.counted(i64(0), i64(int(a["batch"])), 1, [], (), multiply)  # type: ignore[call-overload]
        f.changed(f.places[str(a["c"])].root)


def _in_mode(b: Builder, flushes: bool, write: Callable[[], Value | None]) -> Value | None:
    """What `write` writes, run where results below the least normal number become 0, or where they do not."""
    get, put = "llvm.x86.sse.stmxcsr", "llvm.x86.sse.ldmxcsr"
    for name in (get, put):
        b.module.declare(name, [PTR])
    before, mode = b.alloca(I32), b.alloca(I32)
    b.call(get, [before])
    old = b.load(I32, before)
    b.store(b.op("or", old, _TO_ZERO) if flushes else b.op("and", old, ~_TO_ZERO), mode)
    b.call(put, [mode])
    result = write()
    b.call(put, [before])
    return result


def _identifier(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", name)[:40]

