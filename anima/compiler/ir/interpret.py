"""Runs loop programs in Python, one scalar at a time: slow, simple, and the oracle of the back end.

Scalar operations are the primitives' own `eval` rules. Every access is checked against its buffer, and
`order` ("forward" or "backward") chooses the order of iterations that are said to be independent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from anima.compiler.ir import lapack
from anima.compiler.ir.loops import (
    INDEX,
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
    Program,
    Stmt,
    Store,
    While,
)
from anima.compiler.ir.routines import WHEEL, arguments, buffers_read, buffers_written
from anima.compiler.storage.buffers import written_out
from anima.core import dtypes, foreign
from anima.core.primitive import Primitive
from anima.ops import elementwise, formula, special

DTYPES: dict[str, Any] = {dtypes.short_name(d): d for d in dtypes.ALL_DTYPES}

# The scalar operations, by name.
SCALARS: dict[str, Primitive] = {
    p.name: p for module in (formula, special, elementwise) for p in vars(module).values() if isinstance(p, Primitive)}

_WORDS = {"i8u8": (np.int8, np.uint8), "i8i8": (np.int8, np.int8), "u8u8": (np.uint8, np.uint8),
          "u8i8": (np.uint8, np.int8), "bf16": (dtypes.bfloat16, dtypes.bfloat16)}
_INDEX_OPS: dict[str, Any] = {
    "div": lambda a, b: a // b, "rem": lambda a, b: a % b, "max": max, "min": min,
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "select_n": lambda which, a, b: b if which else a,
}


_array = np.asarray  # short, as it is in the innermost loops


def run(program: Program, inputs: Sequence[np.ndarray], order: str = "forward") -> list[np.ndarray]:
    """The program's outputs, as flat arrays, for flat (or shaped) inputs; donated inputs are overwritten in a copy."""
    return Machine(program, order).run(inputs)


class Machine:
    """The memory and the variables of a running program. What a node does is found out once, as a closure: most are
    in loops."""

    def __init__(self, program: Program, order: str = "forward"):
        self.program = program
        self.backward = order == "backward"
        self.memory: dict[str, np.ndarray] = {}
        self.names: dict[str, Any] = {}
        self._known: dict[int, tuple[Any, Callable[[], Any]]] = {}  # what nodes do, by identity; and the nodes, to live

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        given = iter(inputs)
        arena = np.full(self.program.arena, 0xA5, np.uint8)
        for b in self.program.buffers:
            dtype = DTYPES[b.dtype]
            if b.role == "input":
                value = np.array(next(given)).reshape(-1)
                assert value.size == b.size and value.dtype == dtype, f"{b.name}: {value.dtype}[{value.size}]"
                self.memory[b.name] = value
            elif b.role == "const":
                self.memory[b.name] = np.array(b.value).reshape(-1)
            elif b.offset is not None and b.role == "temp":
                self.memory[b.name] = arena[b.offset:b.offset + b.size * dtype.itemsize].view(dtype)
            elif b.alias is None:
                self.memory[b.name] = np.full(b.size * dtype.itemsize, 0xA5, np.uint8).view(dtype)
        for b in self.program.buffers:
            if b.alias is not None:
                self.memory[b.name] = self.memory[b.alias].view(DTYPES[b.dtype])
        with np.errstate(all="ignore"):
            self._block(self.program.body)()
        return [self.memory[b.name] for b in self.program.with_role("output")]

    def stmt(self, stmt: Stmt) -> None:
        """Does what a statement says."""
        self._known_as(stmt, self._statement)()

    def value(self, expr: Expr) -> Any:
        """What an expression is now."""
        return self._known_as(expr, self._expression)()

    def array(self, buffer: str) -> np.ndarray:
        """The memory that a name stands for here."""
        found = self.names.get(buffer)
        return self.memory[buffer] if found is None else found

    def load(self, buffer: str, place: int) -> Any:
        """An element of a buffer."""
        array = self.array(buffer)
        assert 0 <= place < array.size, f"load of {buffer}[{place}] of {array.size}"
        return np.asarray(array[place])

    def store(self, buffer: str, place: int, new: Callable[[], Any], joined: Callable[..., Any] | None) -> None:
        """Puts a value where an element of a buffer is, or what becomes of both."""
        array = self.array(buffer)
        assert 0 <= place < array.size, f"store to {buffer}[{place}] of {array.size}"
        array[place] = new() if joined is None else joined(array[place], new())

    def _known_as(self, node: Any, made: Callable[[Any], Callable[[], Any]]) -> Callable[[], Any]:
        known = self._known.get(id(node))
        if known is None:
            known = self._known[id(node)] = node, made(node)
        return known[1]

    def _value(self, expr: Expr) -> Callable[[], Any]:
        return self._known_as(expr, self._expression)

    def _block(self, stmts: Sequence[Stmt]) -> Callable[[], None]:
        steps = [self._statement(stmt) for stmt in stmts]

        def block() -> None:
            for step in steps:
                step()

        return steps[0] if len(steps) == 1 else block

    def _statement(self, stmt: Stmt) -> Callable[[], None]:
        names = self.names
        match stmt:
            case Let(name=name, value=value) | Assign(name=name, value=value) | Mutable(name=name, init=value):
                return partial(_set, names, name, self._value(value))
            case Store(buffer=buffer, index=index, value=value, op=op):
                place, new, joined = self._value(index), self._value(value), None if op is None else operation(op)
                return lambda: self.store(buffer, place(), new, joined)
            case Prefetch():
                return lambda: None
            case Accumulate(name=name, op=op, value=value):
                return partial(_add, names, name, operation(op), self._value(value))
            case For() | While() | If():
                return self._control(stmt)
            case Local(buffer=buffer, dtype=dtype, size=size):
                kind = DTYPES[dtype]
                return partial(_set, names, buffer, lambda: np.full(size * kind.itemsize, 0xA5, np.uint8).view(kind))
            case Kernel(body=body):
                return partial(_apart, names, self._block(body))
            case Again():
                return self._statement(written_out(stmt))
            case Call():
                return partial(self._call, stmt)
        raise NotImplementedError(f"no such statement: {stmt}")

    def _control(self, stmt: For | While | If) -> Callable[[], None]:
        names = self.names
        if isinstance(stmt, If):
            cond, then, orelse = self._value(stmt.cond), self._block(stmt.then), self._block(stmt.orelse)
            return lambda: then() if cond() else orelse()
        body = self._block(stmt.body)
        if isinstance(stmt, While):
            return partial(_repeat, self._block(stmt.before), self._value(stmt.cond), body)
        index, extent = stmt.index, self._value(stmt.extent)
        backward = self.backward and stmt.kind not in ("serial", "unrolled")

        def loop() -> None:
            count = range(extent())
            for i in reversed(count) if backward else count:
                names[index] = i
                body()

        return loop

    def _expression(self, expr: Expr) -> Callable[[], Any]:
        names = self.names
        match expr:
            case Const(value=value, dtype=dtype):
                constant = value if dtype == INDEX else np.asarray(value, DTYPES[dtype])
                return lambda: constant
            case NamedValue(name=name):
                return lambda: names[name]
            case Affine(const=const):
                terms = [(self._value(v), c) for v, c in expr.terms]
                if len(terms) == 1:
                    (only, coefficient), = terms
                    return lambda: const + only() * coefficient
                return partial(_total, const, terms)
            case Load(buffer=buffer, index=index):
                place = self._value(index)
                return lambda: self.load(buffer, place())
            case Op(name=name, args=args, dtype=dtype, params=params):
                return _applied(operation(name, dtype, dict(params)), [self._value(a) for a in args])
        raise NotImplementedError(f"no such expression: {expr}")

    def _call(self, stmt: Call) -> None:
        if stmt.routine == "callback":
            self._callback(stmt)
            return
        if stmt.routine == "foreign":
            address, layout, _, *buffers = stmt.args
            foreign.run(int(address), str(layout), [self.memory[str(b)] for b in buffers])
            return
        run_call(stmt, self.memory)

    def _callback(self, stmt: Call) -> None:
        function = self.program.callbacks[int(stmt.args[0])]
        given = [self.memory[b].reshape(a.shape).copy() for b, a in
                 zip(buffers_read(stmt.routine, stmt.args), function.operands, strict=True)]
        for name, value in zip(buffers_written(stmt.routine, stmt.args), function(given), strict=True):
            self.memory[name][...] = np.ravel(value)


# What closures do, that take more than an expression.


def _set(names: dict[str, Any], name: str, value: Callable[[], Any]) -> None:
    names[name] = value()


def _add(names: dict[str, Any], name: str, joined: Callable[..., Any], value: Callable[[], Any]) -> None:
    names[name] = joined(names[name], value())


def _apart(names: dict[str, Any], body: Callable[[], None]) -> None:
    """What is bound or changed in a kernel is so in it alone."""
    outer = dict(names)
    body()
    names.clear()
    names.update(outer)


def _repeat(before: Callable[[], None], cond: Callable[[], Any], body: Callable[[], None]) -> None:
    before()
    while cond():
        body()
        before()


def _total(const: int, terms: Sequence[tuple[Callable[[], int], int]]) -> int:
    for value, coefficient in terms:
        const += value() * coefficient
    return const


def _applied(function: Callable[..., Any], args: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
    if len(args) == 1:
        x, = args
        return lambda: function(x())
    if len(args) == 2:
        x, y = args
        return lambda: function(x(), y())
    return lambda: function(*[a() for a in args])


def operation(name: str, dtype: str | None = None, params: Mapping[str, Any] = MappingProxyType({})) -> (
        Callable[..., Any]):
    """The function of numbers that an operation is."""
    if name == "foreign":
        assert dtype is not None
        address, types = params["address"], params["types"]
        return lambda *args: foreign.apply(address, dtype, types, [np.asarray(a) for a in args])[()]
    if name == "cast":
        return int if dtype == INDEX else partial(_cast, DTYPES[dtype])  # type: ignore[index]
    if name == "conj":
        return np.conj
    if name == "bitcast":
        kind = DTYPES[dtype]  # type: ignore[index]
        return lambda x: np.asarray(x).view(kind)
    if params:
        return partial(_of_numbers, name, partial(SCALARS[name].eval, **params))
    return partial(_of_numbers, name, SCALARS[name].eval if name in SCALARS else None)


def _cast(dtype: Any, x: Any) -> Any:
    if type(x) is int:
        return np.asarray(x).astype(dtype)
    return SCALARS["convert_element_type"].eval(np.asarray(x), new_dtype=dtype, weak_type=False)


def _of_numbers(name: str, evaluate: Any, *args: Any) -> Any:
    for a in args:
        if type(a) is int:
            return _INDEX_OPS[name](*args)
    return _array(evaluate(*map(_array, args)))


def run_call(stmt: Call, memory: dict[str, np.ndarray]) -> None:
    """What a routine without a state does to memory."""
    if stmt.routine in lapack.ROUTINES:
        lapack.run(stmt.routine, stmt.args, memory)
    elif stmt.routine in _ROUTINES:
        _ROUTINES[stmt.routine](arguments(stmt.routine, stmt.args), memory)
    else:
        raise NotImplementedError(f"the interpreter does not know the routine '{stmt.routine}'")


def _gemm(a: dict[str, Any], memory: dict[str, np.ndarray]) -> None:
    m, n, k = a["m"], a["n"], a["k"]
    if a["dtype"] in _WORDS:
        _words(a, memory)
        return
    for t in range(a["batch"]):
        x = _matrix(memory[a["a"]], a["a_offset"] + t * a["a_stride"], m, k, a["lda"], a["transa"])
        y = _matrix(memory[a["b"]], a["b_offset"] + t * a["b_stride"], k, n, a["ldb"], a["transb"])
        z = _matrix(memory[a["c"]], a["c_offset"] + t * a["c_stride"], m, n, a["ldc"], "N")
        z[...] = a["alpha"] * (x @ y) + (a["beta"] * z if a["beta"] else 0)


def _words(a: dict[str, Any], memory: dict[str, np.ndarray]) -> None:
    """A product of bytes, four of which are a word, or of bfloat16."""
    x_type, y_type = _WORDS[a["dtype"]]
    m, n, k = a["m"], a["n"], a["k"]
    for t in range(a["batch"]):
        x = _matrix(memory[a["a"]].view(np.int32), t * a["a_stride"], m, k, a["lda"], a["transa"])
        y = _matrix(memory[a["b"]].view(np.int32), t * a["b_stride"], k, n, a["ldb"], a["transb"])
        rows, columns = (np.ascontiguousarray(w).view(d).astype(memory[a["c"]].dtype)
                         for w, d in ((x, x_type), (y.T, y_type)))
        start = t * a["c_stride"]
        memory[a["c"]][start:start + m * n].reshape(m, n)[...] = rows @ columns.T


def _substitution(a: dict[str, Any], memory: dict[str, np.ndarray]) -> None:
    """The routine of that name: a general system, of one triangle alone."""
    n, left = a["n"], a["side"] == "L"
    shape = (n, a["columns"]) if left else (a["columns"], n)
    for t in range(a["batch"]):
        matrix = _matrix(memory[a["a"]], a["a_offset"] + t * a["a_stride"], n, n, a["lda"], "N")
        triangle = np.tril(matrix) if a["lower"] else np.triu(matrix)
        if a["unit"]:
            np.fill_diagonal(triangle, 1)
        system = triangle.T if a["trans"] == "T" else triangle
        sides = _matrix(memory[a["b"]], a["b_offset"] + t * a["b_stride"], *shape, a["ldb"], "N")
        sides[...] = np.linalg.solve(system, sides) if left else np.linalg.solve(system.T, sides.T).T


def _turn(a: dict[str, Any], memory: dict[str, np.ndarray]) -> None:
    source = _matrix(memory[a["a"]], a["a_offset"], a["rows"], a["columns"], a["lda"], "N")
    _matrix(memory[a["b"]], a["b_offset"], a["columns"], a["rows"], a["ldb"], "N")[...] = source.T


def _exchange(a: dict[str, Any], memory: dict[str, np.ndarray]) -> None:
    for i, pivot in enumerate(memory[a["pivots"]][a["pivots_offset"]:][:a["count"]]):
        other = min(max(int(pivot) - 1, i), a["rows"] - 1)
        x, y = (memory[a["a"]][a["a_offset"] + row * a["lda"]:][:a["columns"]] for row in (i, other))
        x[:], y[:] = y.copy(), x.copy()


def _order(a: dict[str, Any], memory: dict[str, np.ndarray]) -> None:
    start, size = a["a_offset"], a["rows"] * a["n"]
    rows = np.sort(memory[a["a"]][start:start + size].reshape(a["rows"], a["n"]))
    for name in "abc":  # what is lost must not be read
        memory[a[name]][a[f"{name}_offset"]:][:size] = rows.ravel() if name == "c" else 0


def _convolution(a: dict[str, Any], memory: dict[str, np.ndarray]) -> None:
    """The routine of that name: a matrix of windows by one of the kernel, for each group."""
    def spread(wheels: Sequence[Sequence[int]], start: Sequence[int]) -> np.ndarray:
        """Entries (x, out or w, three coordinates) of all combinations of counters."""
        entries = np.array([start])
        for count, *steps in wheels:
            moved = np.arange(count)[:, None] * np.array(steps)
            entries = (entries[:, None] + moved[None]).reshape(-1, len(start))
        return entries

    def wheels(which: str) -> list[list[int]]:
        return [[a[f"{which}{d}_{k}"] for k in WHEEL] for d in range(4)]

    places = [a["places"], a["place_x"], a["place_out"], 0, 0, a["place_step"]]
    taps = [a["taps"], a["tap_x"], a["tap_w"], 0, 0, a["tap_step"]]
    features = [a["features"], a["feature_x"], a["feature_w"], 0, 0, 0]
    rows = spread([*wheels("row"), places], [0, 0, *(a[f"start{d}"] for d in range(3))])
    terms = spread([*wheels("term"), taps, features], [0] * 5)
    at = rows[:, None, 2:] + terms[None, :, 2:]
    inside = np.all((at >= 0) & (at < np.array([a[f"size{d}"] for d in range(3)])), axis=2)
    x, w, out = (memory[a[name]] for name in ("x", "w", "out"))
    outputs = np.arange(a["outputs"])
    for g in range(a["groups"]):
        source = np.where(inside, rows[:, None, 0] + terms[None, :, 0] + a["x_offset"] + g * a["x_group"], 0)
        windows = np.where(inside, x[source], 0)
        matrix = w[terms[:, 1, None] + outputs * a["output_w"] + a["w_offset"] + g * a["w_group"]]
        out[rows[:, 1, None] + outputs * a["output_out"] + a["out_offset"] + g * a["out_group"]] = windows @ matrix


_ROUTINES = {"gemm": _gemm, "convolution": _convolution, "substitution": _substitution, "turn": _turn,
             "exchange": _exchange, "order": _order}


def _matrix(memory: np.ndarray, offset: int, rows: int, columns: int, ld: int, trans: str) -> np.ndarray:
    """The matrix op(A), rows by columns, as a view."""
    if trans == "T":
        rows, columns = columns, rows
    assert offset >= 0 and offset + (rows - 1) * ld + columns <= memory.size
    step = memory.itemsize
    view = np.lib.stride_tricks.as_strided(memory[offset:], (rows, columns), (ld * step, step))
    return view.T if trans == "T" else view
