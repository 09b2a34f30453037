"""Runs loop programs in Python, one scalar at a time: slow, simple, and the oracle of the back end.

Scalar operations are the primitives' own `eval` rules. Every access is checked against its buffer, and
`order` ("forward" or "backward") chooses the order of iterations that are said to be independent.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def run(program: Program, inputs: Sequence[np.ndarray], order: str = "forward") -> list[np.ndarray]:
    """The program's outputs, as flat arrays, for flat (or shaped) inputs; donated inputs are overwritten in a copy."""
    return Machine(program, order).run(inputs)


class Machine:
    """The memory and the variables of a running program."""

    def __init__(self, program: Program, order: str = "forward"):
        self.program = program
        self.backward = order == "backward"
        self.memory: dict[str, np.ndarray] = {}
        self.names: dict[str, Any] = {}

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
            self.block(self.program.body)
        return [self.memory[b.name] for b in self.program.with_role("output")]

    def block(self, stmts: Sequence[Stmt]) -> None:
        for stmt in stmts:
            self.stmt(stmt)

    def stmt(self, stmt: Stmt) -> None:
        match stmt:
            case Let(name=name, value=value) | Assign(name=name, value=value) | Mutable(name=name, init=value):
                self.names[name] = self.value(value)
            case Store(buffer=buffer, index=index, value=value, op=op):
                place, array = self.value(index), self._array(buffer)
                assert 0 <= place < array.size, f"store to {buffer}[{place}] of {array.size}"
                new = self.value(value)
                array[place] = new if op is None else self._apply(op, [array[place], new], None)
            case Prefetch():
                pass
            case Accumulate(name=name, op=op, value=value):
                self.names[name] = self._apply(op, [self.names[name], self.value(value)], None)
            case For(index=index, extent=extent, body=body, kind=kind):
                count = range(self.value(extent))
                for i in reversed(count) if self.backward and kind not in ("serial", "unrolled") else count:
                    self.names[index] = i
                    self.block(body)
            case While(before=before, cond=cond, body=body):
                while True:
                    self.block(before)
                    if not self.value(cond):
                        break
                    self.block(body)
            case If(cond=cond, then=then, orelse=orelse):
                self.block(then if self.value(cond) else orelse)
            case Local(buffer=buffer, dtype=dtype, size=size):
                self.names[buffer] = np.full(size * DTYPES[dtype].itemsize, 0xA5, np.uint8).view(DTYPES[dtype])
            case Kernel(body=body):
                outer, self.names = self.names, dict(self.names)
                self.block(body)
                self.names = outer
            case Again():
                self.block((written_out(stmt),))
            case Call():
                self._call(stmt)
            case _:
                raise NotImplementedError(f"no such statement: {stmt}")

    def _array(self, buffer: str) -> np.ndarray:
        found = self.names.get(buffer)
        return self.memory[buffer] if found is None else found

    def value(self, expr: Expr) -> Any:
        match expr:
            case Const(value=value, dtype=dtype):
                return value if dtype == INDEX else np.asarray(value, DTYPES[dtype])
            case NamedValue(name=name):
                return self.names[name]
            case Affine(const=const):
                return const + sum(self.value(v) * c for v, c in expr.terms)
            case Load(buffer=buffer, index=index):
                place, array = self.value(index), self._array(buffer)
                assert 0 <= place < array.size, f"load of {buffer}[{place}] of {array.size}"
                return np.asarray(array[place])
            case Op(name=name, args=args, dtype=dtype, params=params):
                return self._apply(name, [self.value(a) for a in args], dtype, dict(params))
        raise NotImplementedError(f"no such expression: {expr}")

    def _apply(self, name: str, args: list[Any], dtype: str | None, params: dict[str, Any] | None = None) -> Any:
        if name == "foreign":
            assert params is not None and dtype is not None
            return foreign.apply(params["address"], dtype, params["types"], [np.asarray(a) for a in args])[()]
        if any(type(a) is int for a in args) and name != "cast":
            return _INDEX_OPS[name](*args)
        if name == "cast":
            if dtype == INDEX:
                return int(args[0])
            if type(args[0]) is int:
                return np.asarray(args[0]).astype(DTYPES[dtype])  # type: ignore[index]
            return SCALARS["convert_element_type"].eval(np.asarray(args[0]), new_dtype=DTYPES[dtype],  # type: ignore[index]
                                                        weak_type=False)
        if name == "conj":
            return np.conj(args[0])
        if name == "bitcast":
            return np.asarray(args[0]).view(DTYPES[dtype])  # type: ignore[index]
        return np.asarray(SCALARS[name].eval(*map(np.asarray, args), **(params or {})))

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
