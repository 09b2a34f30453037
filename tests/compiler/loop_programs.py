"""Small loop programs, written by hand: the examples that the back end's tests share.

`at("i", 4, "j")` is the index `i*4 + j`; `f("add", x, y)` an operation on f32.
"""

from __future__ import annotations

import numpy as np

from anima.compiler.ir.loops import (
    INDEX,
    Accumulate,
    Assign,
    Buffer,
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
    Program,
    Stmt,
    Store,
    While,
    affine,
)
from anima.compiler.ir.routines import GEMM_ARGUMENTS


def c(number: int) -> Const:
    return Const(number, INDEX)


def i(name: str) -> NamedValue:
    return NamedValue(name, INDEX)


def ix(name: str, *args: Expr) -> Expr:
    """An operation on indices; a sum, a difference or a multiple of them in the form that it has in programs."""
    match name, args:
        case "add", (a, b):
            return affine(0, (a, 1), (b, 1))
        case "sub", (a, b):
            return affine(0, (a, 1), (b, -1))
        case ("mul", (Const(value=number), a)) | ("mul", (a, Const(value=number))):
            return affine(0, (a, number))
    return Op(name, args, INDEX)


def at(*parts: str | int) -> Expr:
    """`at("i", 4, "j", 3)`: i*4 + j + 3 (a name followed by a number is multiplied by it, a lone number added)."""
    terms: list[tuple[Expr, int]] = []
    items = list(parts)
    while items:
        item = items.pop(0)
        if isinstance(item, int):
            terms.append((c(item), 1))
        else:
            terms.append((i(item), items.pop(0) if items and isinstance(items[0], int) else 1))  # type: ignore[arg-type]
    return affine(0, *terms)


def op(name: str, *args: Expr, dtype: str = "f32", **params: object) -> Op:
    return Op(name, args, dtype, tuple(params.items()))


f = op


def k(number: complex, dtype: str = "f32") -> Const:
    """A constant, as a number of the Python type that goes with the dtype."""
    kind = bool if dtype == "bool" else complex if dtype[0] == "c" else int if dtype[0] in "iu" else float
    return Const(kind(number), dtype)  # type: ignore[arg-type]


def v(name: str, dtype: str = "f32") -> NamedValue:
    return NamedValue(name, dtype)


def x_at(index: Expr, buffer: str = "x", dtype: str = "f32") -> Load:
    return Load(buffer, index, dtype)


def vector(index: str, extent: int | Expr, *body: Stmt) -> For:
    return For(index, c(extent) if isinstance(extent, int) else extent, body, "vector")


def parallel(index: str, extent: int, *body: Stmt) -> For:
    return For(index, c(extent), body, "parallel")


def each(index: str, extent: int, *body: Stmt) -> For:
    return For(index, c(extent), body, "each")


def reduce(index: str, extent: int, *body: Stmt) -> For:
    return For(index, c(extent), body, "reduce")


def serial(index: str, extent: int | Expr, *body: Stmt) -> For:
    return For(index, c(extent) if isinstance(extent, int) else extent, body)


def program(name: str, inputs: dict[str, tuple[str, int]], outputs: dict[str, tuple[str, int]], *body: Stmt,
            temps: dict[str, tuple[str, int]] | None = None, consts: dict[str, np.ndarray] | None = None) -> Program:
    """A program with buffers `name: (dtype, size)`; statements that are not kernels or calls stay as they are."""
    buffers = [Buffer(n, d, s, "input") for n, (d, s) in inputs.items()]
    buffers += [Buffer(n, d, s, "output") for n, (d, s) in outputs.items()]
    buffers += [Buffer(n, "f32", a.size, "const", a) for n, a in (consts or {}).items()]
    offset = 0
    for n, (d, s) in (temps or {}).items():
        buffers.append(Buffer(n, d, s, "temp", offset=offset))
        offset += (s * 16 + 63) // 64 * 64
    return Program(name, tuple(buffers), body, offset)


def one_kernel(name: str, inputs: dict[str, tuple[str, int]], outputs: dict[str, tuple[str, int]],
               *body: Stmt) -> Program:
    """A program that is one kernel."""
    return program(name, inputs, outputs, Kernel(name, body))


# --- Examples ----------------------------------------------------------------------------------


def copy(n: int, dtype: str = "f32") -> Program:
    return one_kernel("copy", {"x": (dtype, n)}, {"y": (dtype, n)},
                      vector("j", n, Store("y", i("j"), x_at(i("j"), dtype=dtype))))


def axpy(n: int) -> Program:
    value = f("add", f("mul", k(2.5), x_at(i("j"))), x_at(i("j"), "y"))
    return one_kernel("axpy", {"x": ("f32", n), "y": ("f32", n)}, {"z": ("f32", n)},
                      vector("j", n, Store("z", i("j"), value)))


def softmax(rows: int, n: int) -> Program:
    e = f("exp", f("sub", x_at(at("i", n, "j2")), v("m")))
    return one_kernel(
        "softmax", {"x": ("f32", rows * n)}, {"y": ("f32", rows * n)},
        parallel("i", rows,
                 Local("t", "f32", n), Mutable("m", "f32", k(-np.inf)),
                 vector("j1", n, Accumulate("m", "max", x_at(at("i", n, "j1")))),
                 Mutable("s", "f32", k(0.0)),
                 vector("j2", n, Let("e", e), Store("t", i("j2"), v("e")), Accumulate("s", "add", v("e"))),
                 vector("j3", n, Store("y", at("i", n, "j3"), f("div", x_at(i("j3"), "t"), v("s"))))))


def full_sum(n: int, dtype: str = "f32", block: int = 4096) -> Program:
    blocks = -(-n // block)
    left = ix("min", c(block), ix("sub", c(n), ix("mul", i("b"), c(block))))
    return program(
        "sum", {"x": (dtype, n)}, {"y": (dtype, 1)},
        Kernel("partial", (parallel("b", blocks,
                                    Mutable("s", dtype, k(0, dtype)),
                                    vector("j", left, Accumulate("s", "add", x_at(at("b", block, "j"), dtype=dtype))),
                                    Store("t", i("b"), v("s", dtype))),)),
        Kernel("total", (Mutable("s", dtype, k(0, dtype)),
                         vector("j", blocks, Accumulate("s", "add", x_at(i("j"), "t", dtype))),
                         Store("y", c(0), v("s", dtype)))),
        temps={"t": (dtype, blocks)})


def column_sum(rows: int, n: int) -> Program:
    return one_kernel(
        "column_sum", {"x": ("f32", rows * n)}, {"y": ("f32", n)},
        vector("j1", n, Store("y", i("j1"), k(0.0))),
        serial("i", rows, vector("j2", n, Store("y", i("j2"), x_at(at("i", n, "j2")), "add"))))


def matmul(m: int, n: int, inner: int, dtype: str = "f32", transa: str = "N", transb: str = "N",
           batch: int = 1) -> Program:
    values = {"dtype": dtype, "transa": transa, "transb": transb, "m": m, "n": n, "k": inner, "alpha": 1.0, "a": "x",
              "a_offset": 0, "lda": inner if transa == "N" else m, "b": "y", "b_offset": 0,
              "ldb": n if transb == "N" else inner, "beta": 0.0, "c": "z", "c_offset": 0, "ldc": n, "batch": batch,
              "a_stride": m * inner, "b_stride": n * inner, "c_stride": m * n}
    return program("matmul", {"x": (dtype, batch * m * inner), "y": (dtype, batch * n * inner)},
                   {"z": (dtype, batch * m * n)}, Call("gemm", tuple(values[name] for name in GEMM_ARGUMENTS)))


def collatz(n: int) -> Program:
    """How many steps each number takes to reach 1."""
    number, one = v("a", "i32"), k(1, "i32")
    odd = op("eq", op("and", number, one, dtype="i32"), one, dtype="bool")
    return one_kernel(
        "collatz", {"x": ("i32", n)}, {"y": ("i32", n)},
        serial("j", n,
               Mutable("a", "i32", x_at(i("j"), dtype="i32")), Mutable("steps", "i32", k(0, "i32")),
               While((Let("go", op("gt", number, one, dtype="bool")),), v("go", "bool"), (
                   If(odd, (Assign("a", op("add", op("mul", number, k(3, "i32"), dtype="i32"), one, dtype="i32")),),
                      (Assign("a", op("div", number, k(2, "i32"), dtype="i32")),)),
                   Accumulate("steps", "add", one))),
               Store("y", i("j"), v("steps", "i32"))))
