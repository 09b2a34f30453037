"""Expressions and statements: structured control flow straight to SSA form.

What a loop or a branch assigns is known from its statements, so every `Mutable` becomes a phi where
control joins, and nothing is left for LLVM to promote. A loop is tested before its first iteration (once,
outside) and then at its end:

    for i < n: body     ->     if 0 < n: do { body } while (++i < n)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from anima.compiler.emitting.foreign import emit_function
from anima.compiler.emitting.memory import Place
from anima.compiler.emitting.scratch import Scratch
from anima.compiler.emitting.value import (
    COMPLEX_TYPES,
    I32,
    I64,
    NUMPY,
    PTR,
    REGISTER,
    LaneIndex,
    Val,
    constant_index,
    constant_of,
    i64,
    identity,
    parts,
    rebuild,
)
from anima.compiler.ir.affine import Numbers, known
from anima.compiler.ir.assembly import Type, Value
from anima.compiler.ir.loops import (
    INDEX,
    PARTS,
    Accumulate,
    Affine,
    Again,
    Assign,
    Call,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    Local,
    Mutable,
    NamedValue,
    Op,
    Prefetch,
    Stmt,
    Store,
    While,
    WindowAt,
    statements,
)
from anima.compiler.ir.ranges import brought_inside
from anima.compiler.ir.routines import buffers_written
from anima.compiler.scalars.small import HALVES, SMALL_FLOATS, SMALL_INTEGERS
from anima.compiler.scalars.table import LONG, SUPPORT, call_support, convert, emit as emit_scalar

_OFTEN = 16  # times that a long function of real numbers is written in line in loops;
_FEW = 4     # others: of complex numbers, or in code that runs once
_INDEX_ARITHMETIC = frozenset(("div", "rem", "max", "min"))


def stored(stmts: Sequence[Stmt]) -> list[str]:
    """Names of the buffers that statements write."""
    names: dict[str, None] = {}
    for stmt in statements(*stmts):
        if isinstance(stmt, Store):
            names[stmt.buffer] = None
        elif isinstance(stmt, Call):
            names.update(dict.fromkeys(buffers_written(stmt.routine, stmt.args)))
        elif isinstance(stmt, Again):
            new = dict(stmt.names)
            names.update(dict.fromkeys(new[b] for b in stored((stmt.kernel,)) if b in new))
    return list(names)


def part_types(dtype: str, width: int) -> list[Type]:
    """LLVM types of the registers that hold a value."""
    return [Type(REGISTER[dtype], width)] * (2 if dtype in COMPLEX_TYPES else 1)


class Control(Scratch):
    """Writes statements into one LLVM function.

    `env` has the values of names in scope; `renamed` the partial accumulator that stands for a variable
    inside of a vector loop; `windows` the types of buffers that statements find; `outside` writes kernels and calls
    of external routines, where they may stand.
    """

    env: dict[str, Val]
    renamed: dict[str, str]
    outside: Callable[[Stmt], None] | None
    windows: dict[str, str]
    shared: frozenset[str] = frozenset()  # variables that all lanes have in common: they count iterations
    repeated = False  # whether what is being written runs many times
    made: dict[str, Expr]  # what names stand for
    written: dict[tuple[str, str, int], int]  # how often each long function was written in line in the module
    stopped: str | None = None  # the label of the end of the function, if something may jump there

    # -- expressions ----------------------------------------------------------------------------

    def evaluate(self, expr: Expr) -> Val:
        """The value of an expression; a vector where it differs between lanes."""
        match expr:
            case NamedValue(name=name):
                return self.env[name]
            case Const(value=value, dtype=dtype):
                return self.constant(value, dtype)
            case Affine(values=values, coefficients=coefficients, const=const):
                return self.sum([self.index(v) for v in values], coefficients, const)
            case Load(buffer=buffer, index=index):
                if buffer in self.held:
                    return self.element(buffer, index)
                return self.load(buffer, self.index(index))
            case Op(name="select_n", args=(which, *cases)) if (chosen := self.number_of(which)) is not None:
                return self.evaluate(cases[chosen])
            case Op(name=name, args=args):
                given = [self.evaluate(a) for a in args]
                key = (name, expr.dtype, args[0].dtype, expr.params, self.width, *map(identity, given))
                found = self.known.get(key)
                if found is None:
                    found = self.known[key] = self._operation(expr, given)
                return found
        raise TypeError(f"not an expression: {expr!r}")

    def index(self, expr: Expr) -> LaneIndex:
        """The value of an expression of type index."""
        value = self.evaluate(expr)
        if not isinstance(value, LaneIndex):
            raise TypeError(f"{expr!r} is not an index")
        return value

    def constant(self, value: object, dtype: str) -> Val:
        """A number as a value."""
        if dtype == INDEX:
            return constant_index(int(value))  # type: ignore[call-overload]
        type = Type(REGISTER[dtype])
        if dtype in COMPLEX_TYPES:
            number = complex(value)  # type: ignore[call-overload]
            return self.b.const(type, number.real), self.b.const(type, number.imag)
        if dtype == "bf16" or dtype in SMALL_FLOATS:
            bits = np.asarray(value, np.float32).astype(NUMPY[dtype])
            value = int(bits.view(np.int16 if dtype == "bf16" else np.int8))
        if dtype in SMALL_INTEGERS:
            value = int(value) & ((1 << SMALL_INTEGERS[dtype]) - 1)  # type: ignore[call-overload]
        return self.b.const(type, value)  # type: ignore[arg-type]

    def _operation(self, op: Op, values: list[Val]) -> Val:
        name, source = op.name, op.args[0].dtype
        if op.dtype == INDEX or source == INDEX:
            return self._index_operation(op, values)
        if name == "foreign":
            return emit_function(self.b, op, values)
        values = self.even(values)
        if name == "cast":
            return convert(self.b, values[0], source, op.dtype)
        if name == "bitcast":
            return self._bitcast(values[0], source, op.dtype)
        if name == "complex":
            return values[0], values[1]  # type: ignore[return-value]
        if name in ("real", "imag") and source in COMPLEX_TYPES:
            return values[0][name == "imag"]  # type: ignore[index]
        if name == "select_n":
            source = op.args[1].dtype
        if name in LONG and (source in SUPPORT or source in PARTS):
            key = name, source, self.width
            self.written[key] = self.written.get(key, 0) + 1
            if self.written[key] > (_OFTEN if self.repeated and source in SUPPORT else _FEW):
                return call_support(self.b, name, values, source)  # type: ignore[arg-type]
        return emit_scalar(self.b, name, values, source, **dict(op.params))

    def even(self, values: list[Val]) -> list[Val]:
        """All values in vectors, if one is."""
        if self.width == 1 or all(p.type.width == 1 for v in values for p in parts(v)):
            return values
        return [self.wide(v) for v in values]

    def wide(self, value: Val) -> Val:
        """A value in every lane."""
        if isinstance(value, LaneIndex):
            return LaneIndex(self.lanes(value, "i64"), 0, value.lo, value.hi)
        return rebuild(value, tuple(self.b.splat(p, self.width) if p.type.width == 1 else p for p in parts(value)))

    def _bitcast(self, value: Val, source: str, target: str) -> Val:
        if source == target:
            return value
        if not isinstance(value, Value):
            raise NotImplementedError(f"bitcast from {source} to {target}")
        if value.type.scalar == REGISTER[target]:
            return value
        return self.b.cast("bitcast", value, value.type.of(REGISTER[target]))

    def _index_operation(self, op: Op, values: list[Val]) -> Val:
        first = values[0]
        if op.name in ("cast", "bitcast"):
            if not isinstance(first, LaneIndex):
                return self.from_integer(first, op.args[0].dtype)  # type: ignore[arg-type]
            if op.dtype == INDEX:
                return first
            if op.dtype == "bool":
                return self.compare("ne", first, constant_index(0))
            if op.dtype[0] in "iu":
                return self.to_integer(first, op.dtype)
            small = not first.uniform and first.lo >= -(1 << 31) and first.hi < 1 << 31
            wide = self.lanes(first, "i32" if small else "i64") if not first.uniform else self.total(first)
            return convert(self.b, wide, "i32" if small else "i64", op.dtype)
        if op.name == "select_n":
            result = values[1]
            for number, case in enumerate(values[2:], 1):
                chosen = first
                assert isinstance(chosen, Value) and isinstance(case, LaneIndex) and isinstance(result, LaneIndex)
                if chosen.type.scalar != "i1":
                    chosen = self.b.cmp("sge", chosen, number)
                result = self.select(chosen, case, result)
            return result
        second = values[1]
        assert isinstance(first, LaneIndex) and isinstance(second, LaneIndex), op
        if op.name in _INDEX_ARITHMETIC:
            return self.arithmetic(op.name, first, second)
        return self.compare(op.name, first, second)

    def _inside(self, raw: NamedValue, size: int, index: Expr) -> Val:
        """`index`, which is `raw` where that is in an array of this size, as it most often is: what reads the array
        waits for nothing else then, and what brings others inside runs for them only."""
        b, first = self.b, self.evaluate(raw)
        if not isinstance(first, LaneIndex):
            assert isinstance(first, Value)
            first = self.from_integer(first, raw.dtype)
        if self.number(first) is not None:
            return self.evaluate(index)
        usual, before, rare, done = self.total(first), b.block, b.label("rare"), b.label("done")
        b.branch_if(b.cmp("ult", usual, size), done, rare, likely=True)
        b.place(rare)
        known, self.known = self.known, {}  # all that is known was computed on the usual way, too
        other = self.total(self.index(index))
        self.known, rare = known, b.block
        b.branch(done)
        b.place(done)
        return LaneIndex(b.phi(I64, (usual, before), (other, rare)), 0, 0, size - 1)

    # -- statements -----------------------------------------------------------------------------

    def block(self, stmts: Sequence[Stmt]) -> None:
        """Write statements in order."""
        for stmt in stmts:
            self.statement(stmt)

    def statement(self, stmt: Stmt) -> None:
        """Write one statement."""
        match stmt:
            case Let(name=name, value=value):
                bounded = brought_inside(value, self.made) if self.repeated and self.width == 1 else None
                self.env[name] = self.evaluate(value) if bounded is None else self._inside(*bounded)
                self.made[name] = value
                if self.numbers:
                    self._number(name, known(value, self.numbers))
            case Store(buffer=buffer) if buffer in self.held:
                self._put(stmt)
            case Store(buffer=buffer, index=index, value=value, op=op):
                where, new = self.index(index), self.stored_value(value)
                if op is not None:
                    new = self.combine(op, value.dtype, self.load(buffer, where), new)
                self.store(buffer, where, new)
            case Accumulate():
                self.accumulate(stmt)
            case Assign(name=name, value=value):
                new = self.evaluate(value) if name in self.shared else self.variable(self.evaluate(value))
                masked = self.apart and name not in self.shared
                self.env[name] = self._where_active(new, self.env[name]) if masked else new
            case Mutable(name=name, init=init):
                self.env[name] = self.evaluate(init) if name in self.shared else self.variable(self.evaluate(init))
            case Prefetch(load=Load(buffer=buffer, index=where)):
                self.prefetch(buffer, self.index(where))
            case Local(held="elements" | "lanes"):
                self.hold(stmt)
            case Local(buffer=buffer, dtype=dtype, size=size, held=held):
                lanes = self.width if held == "apart" else 1
                self.places[buffer] = Place(self.scratch(buffer, dtype, size * lanes), dtype, buffer, lanes)
                self.held.pop(buffer, None)
                self.changed(buffer)
            case WindowAt(buffer=buffer, address=address):
                self.places[buffer] = Place(self.pointer(address), self.windows[buffer], buffer)
                self.changed(buffer)
            case If():
                self._if(stmt)
            case While():
                self._while(stmt)
            case For(kind="parallel"):
                self.parallel(stmt)
            case For(kind="vector", width=width) if width > 1:
                self.vector(stmt)
            case For(kind="whole"):
                self.whole(stmt)
            case For(kind="square" | "stream"):
                self.square(stmt)
            case For(kind="unrolled", index=index, extent=Const(value=count), body=body):
                for i in range(int(count)):
                    self.env[index] = constant_index(i)
                    self.numbers[index] = i
                    self.block(body)
                self.numbers.pop(index, None)  # another loop's index may have this name
            case For():
                self.serial(stmt)
            case Call(routine="look", args=(flag,)):
                pointer = self.places[str(flag)].pointer
                look = self.b.load(PTR, self.b.gep("i64", pointer, 1))
                self.stop_unless_zero(self.b.call(look, [pointer], Type("i32")))
            case Kernel() | Again() | Call() if self.outside is not None:
                self.outside(stmt)
            case _:
                raise TypeError(f"{type(stmt).__name__} cannot stand here")

    def accumulate(self, stmt: Accumulate) -> None:
        """What a variable holds, and one value more."""
        key = self.renamed.get(stmt.name, stmt.name)
        old = self.env[key]
        new = self.combine(stmt.op, stmt.value.dtype, old, self.evaluate(stmt.value))
        self.env[key] = self._where_active(new, old) if stmt.name in self.renamed or self.apart else new

    def pointer(self, address: Expr) -> Value:
        """An address as a pointer."""
        value = self.evaluate(address)
        assert isinstance(value, Value)
        return self.b.cast("inttoptr", value, PTR)

    def parallel(self, loop: For) -> None:
        raise NotImplementedError

    def vector(self, loop: For) -> None:
        raise NotImplementedError

    def whole(self, loop: For) -> None:
        raise NotImplementedError

    def square(self, loop: For) -> None:
        raise NotImplementedError

    def _number(self, name: str, number: Numbers | None) -> None:
        """Notes what is known of a name, or that nothing is."""
        if number is None:
            self.numbers.pop(name, None)
        else:
            self.numbers[name] = number

    def _put(self, stmt: Store) -> None:
        """A store to a buffer in registers."""
        new = self.stored_value(stmt.value)
        if stmt.op is not None:
            new = self.combine(stmt.op, stmt.value.dtype, self.element(stmt.buffer, stmt.index), new)
        if self.width > 1:
            new = self.wide(new)
            if type(stmt.value) is Load and stmt.value.buffer not in self.held and self.in_lanes(stmt.buffer):
                new = self.stretched(new, self.sizes[stmt.buffer])
        key, value = self.put(stmt.buffer, stmt.index, new)
        self.env[key] = self._where_active(value, self.env[key]) if self.apart else value

    def stored_value(self, expr: Expr) -> Val:
        """The value of an expression, to put in memory; an index is stored as an i64."""
        value = self.evaluate(expr)
        return self.to_integer(value, "i64") if isinstance(value, LaneIndex) else value

    def combine(self, op: str, dtype: str, a: Val, c: Val) -> Val:
        """`op(a, c)`."""
        if op in ("max", "min") and (dtype in HALVES or dtype in ("f32", "f64")):
            op += "_of_many"
        return emit_scalar(self.b, op, self.even([a, c]), dtype)

    def variable(self, value: Val) -> Val:
        """A value as a variable holds it: in vectors inside of a vector loop, an index as plain integers."""
        if self.width > 1:
            value = self.wide(value)
        elif isinstance(value, LaneIndex):
            value = LaneIndex(self.total(value))
        return LaneIndex(value.value) if isinstance(value, LaneIndex) else value

    def _where_active(self, new: Val, old: Val) -> Val:
        if self.mask is None:
            return new
        chosen = tuple(self.b.select(self.mask, n, o) for n, o in zip(parts(new), parts(old), strict=True))
        return rebuild(new, chosen)

    def finish(self, tell: Callable[[], object] | None = None) -> None:
        """Gives back scratch memory and returns. `tell` writes how the caller learns that there was none; without, the
        function returns 1 then, and else 0."""
        b = self.b
        if self.stopped is not None:
            b.branch(self.stopped)
            b.place(self.stopped)
        self.look_at_guards()
        self.look_at_memory()
        if self.exhausted is None:
            b.ret()
            return
        well, done = b.block, b.label("done")
        b.branch(done)
        b.place(self.exhausted)
        if tell is None:
            b.result = I32
        else:
            tell()
        b.branch(done)
        b.place(done)
        status = b.phi(I32, (0, well), (1, self.exhausted)) if tell is None else None
        self.release()
        b.ret(status)

    def stop_unless_zero(self, status: Value | None) -> None:
        """Ends the function at once if a call back into Python has raised."""
        self.stopped = self.stopped or self.b.label("stopped")
        self._leave_unless_zero(status, self.stopped)

    def run(self, function: str | Value, args: Sequence[Value], fails: bool) -> None:
        """Calls a function of the program, and ends as that did if it `fails` where it gets no memory."""
        status = self.b.call(function, args, I32 if fails else None)
        if fails:
            self.give_up_unless_zero(status)

    def give_up_unless_zero(self, status: Value | None) -> None:
        """Ends the function, as one that got no memory, unless a word is 0."""
        self._leave_unless_zero(status, self.may_exhaust())

    def _leave_unless_zero(self, status: Value | None, label: str) -> None:
        assert status is not None
        following = self.b.label("following")
        self.b.branch_if(self.b.cmp("eq", status, 0), following, label, likely=True)
        self.b.place(following)

    # -- control --------------------------------------------------------------------------------

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A block: names and values of it are forgotten at its end."""
        known, env, places, numbers, made = self.known, self.env, self.places, self.numbers, self.made
        self.known, self.env, self.places, self.numbers = dict(known), dict(env), dict(places), dict(numbers)
        self.made = dict(made)
        yield
        self.known, self.env, self.places, self.numbers, self.made = known, env, places, numbers, made

    @contextmanager
    def repeating(self) -> Iterator[None]:
        """What runs many times."""
        before, self.repeated = self.repeated, True
        yield
        self.repeated = before

    @contextmanager
    def inlined(self, stmts: Sequence[Stmt]) -> Iterator[None]:
        """Statements that always run: their names are forgotten at the end, what they put in registers is kept."""
        env, places, numbers = self.env, self.places, self.numbers
        self.env, self.places, self.numbers = dict(env), dict(places), dict(numbers)
        yield
        env.update((key, self.env[key]) for key in self.held_keys(stmts) if key in env)
        self.env, self.places, self.numbers = env, places, numbers

    def held_keys(self, stmts: Sequence[Stmt]) -> list[str]:
        """Keys of what statements store to buffers in registers."""
        return [key for s in statements(*stmts) if isinstance(s, Store) for key in self.held.get(s.buffer, ())]

    def carried(self, stmts: Sequence[Stmt]) -> list[str]:
        """Keys of the variables in scope that statements assign."""
        names = [s.name for s in statements(*stmts) if isinstance(s, (Assign, Accumulate))]
        keys = dict.fromkeys([*(self.renamed.get(n, n) for n in names), *self.held_keys(stmts)])
        return [key for key in keys if key in self.env]

    def forget_stores(self, stmts: Sequence[Stmt]) -> None:
        """Before a loop and after: what its statements store is not what was loaded."""
        for buffer in stored(stmts):
            if buffer in self.places:
                self.changed(self.places[buffer].root)

    def _phis(self, keys: Sequence[str], origin: str) -> dict[str, list]:  # type: ignore[type-arg]
        phis = {k: [self.b.phi(p.type, (p, origin)) for p in parts(self.env[k])] for k in keys}
        for k, values in phis.items():
            self.env[k] = rebuild(self.env[k], tuple(values))
        return phis

    def serial(self, loop: For) -> None:
        """The iterations in order."""
        extent = self.index(loop.extent)
        if not extent.uniform:
            raise ValueError("the extent of a loop differs between lanes of a vector loop around it")

        def body(i: Value) -> None:
            self.env[loop.index] = LaneIndex(i, 0, 0, max(extent.hi - 1, 0))
            self.block(loop.body)

        self.counted(i64(0), self.total(extent), 1, self.carried(loop.body), loop.body, body)

    def counted(self, start: Value, stop: Value, step: int, keys: Sequence[str], stmts: Sequence[Stmt],
                body: Callable[[Value], None]) -> None:
        """`body(i)`, which writes `stmts`, for i in start, start + step, ... while i < stop; `keys` are assigned."""
        b = self.b
        first, end = constant_of(start), constant_of(stop)
        trips = None if first is None or end is None else max(0, -(-(end - first) // step))
        if trips == 0:
            return
        if trips == 1:
            with self.scope():
                body(start)
                results = {k: self.env[k] for k in keys}
            self.env.update(results)
            return
        self.forget_stores(stmts)
        before, head, done = b.block, b.label("loop"), b.label("done")
        initial = {k: self.env[k] for k in keys}
        if trips is None:
            enter = b.label("enter")
            b.branch_if(b.cmp("slt", start, stop), enter, done)
            b.place(enter)
        entered = b.block
        b.branch(head)
        with self.scope(), self.repeating():
            b.place(head)
            i = b.phi(I64, (start, entered))
            phis = self._phis(keys, entered)
            body(i)
            following = b.op("add", i, i64(step), "nsw")
            results = {k: self.env[k] for k in keys}
            i.add(following, b.block)
            for k, values in phis.items():
                for phi, value in zip(values, parts(results[k]), strict=True):
                    phi.add(value, b.block)
            latch = b.block
            b.branch_if(b.cmp("slt", following, stop), head, done)
        b.place(done)
        if trips is None:
            results = {k: self._join(initial[k], before, results[k], latch) for k in keys}
        self.env.update(results)
        self.forget_stores(stmts)

    def _join(self, a: Val, from_a: str, c: Val, from_c: str) -> Val:
        values = [self.b.phi(p.type, (p, from_a), (q, from_c)) for p, q in zip(parts(a), parts(c), strict=True)]
        return rebuild(c, tuple(values))

    def _condition(self, expr: Expr) -> Value:
        value = self.evaluate(expr)
        if not isinstance(value, Value) or value.type.width > 1:
            raise ValueError("a branch inside of a vector loop differs between lanes")
        return value

    def _if(self, stmt: If) -> None:
        b, condition = self.b, self._condition(stmt.cond)
        keys = self.carried((*stmt.then, *stmt.orelse))
        both = (*stmt.then, *stmt.orelse)
        ends: list[tuple[dict[str, Val], str]] = []
        labels = [b.label("then"), b.label("else")]
        done = b.label("endif")
        rare = bool(stmt.then) and isinstance(stmt.then[0], Call) and stmt.then[0].routine in ("poll", "look")
        b.branch_if(condition, labels[0], labels[1], likely=False if rare else None)
        for label, stmts in zip(labels, (stmt.then, stmt.orelse), strict=True):
            versions = dict(self.versions)
            with self.scope():
                b.place(label)
                self.block(stmts)
                ends.append(({k: self.env[k] for k in keys}, b.block))
                b.branch(done)
            self.versions = versions
        b.place(done)
        (yes, from_yes), (no, from_no) = ends
        self.env.update({k: self._join(yes[k], from_yes, no[k], from_no) for k in keys})
        self.forget_stores(both)

    def _while(self, stmt: While) -> None:
        b = self.b
        stmts = (*stmt.before, *stmt.body)
        keys = self.carried(stmts)
        self.forget_stores(stmts)
        before, head, inside, done = b.block, b.label("while"), b.label("do"), b.label("done")
        b.branch(head)
        with self.scope(), self.repeating():
            b.place(head)
            phis = self._phis(keys, before)
            self.block(stmt.before)
            condition = self._condition(stmt.cond)
            results = {k: self.env[k] for k in keys}
            b.branch_if(condition, inside, done)
            b.place(inside)
            self.block(stmt.body)
            for k, values in phis.items():
                for phi, value in zip(values, parts(self.env[k]), strict=True):
                    phi.add(value, b.block)
            b.branch(head)
        b.place(done)
        self.env.update(results)
        self.forget_stores(stmts)

