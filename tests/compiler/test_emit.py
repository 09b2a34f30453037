"""Loop programs as machine code: what they compute, on every kind of access, type and control flow."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from anima.compiler.driver import to_text
from anima.compiler.emitting.value import NUMPY
from anima.compiler.ir.interpret import run
from anima.compiler.ir.loops import (
    Accumulate,
    Assign,
    Buffer,
    If,
    Kernel,
    Let,
    Load,
    Local,
    Mutable,
    Program,
    Store,
    While,
    affine,
)
from anima.compiler.ir.show_loops import check
from anima.compiler.machine import native
from anima.core import dtypes
from anima.runtime import threads
from anima.runtime.executable import compile_program
from tests.compiler.loop_programs import (
    at,
    axpy,
    c,
    collatz,
    column_sum,
    copy,
    f,
    full_sum,
    i,
    ix,
    k,
    matmul,
    one_kernel,
    op,
    parallel,
    program,
    serial,
    softmax,
    v,
    vector,
    x_at,
)

SIZES = (0, 1, 2, 7, 15, 16, 17, 31, 63, 64, 65, 100, 1000)
REALS = ("f32", "f64", "f16", "bf16")
INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")


def random(dtype: str, n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    kind = NUMPY[dtype]
    if dtype == "bool":
        return rng.random(n) < 0.5
    if dtype in INTEGERS:
        return rng.integers(0, 100, n).astype(kind)
    values = rng.standard_normal(n)
    return (values + 1j * rng.standard_normal(n)).astype(kind) if dtype[0] == "c" else values.astype(kind)


# Machines that run what this one compiles for them: with narrower vectors, and without masks.
HOST = native.host()
NARROW = replace(HOST, vector_bytes=min(HOST.vector_bytes, 16),
                 features=",".join(f for f in HOST.features.split(",") if not f.startswith("+avx512")))


def compiled(p: Program, *inputs: np.ndarray) -> list[np.ndarray]:
    """Runs the program, compiled for this machine; compiled for a smaller one it must compute the same
    (up to the order of the terms of floating-point sums)."""
    check(p)
    results = compile_program(p)(list(inputs))
    for a, b in zip(results, compile_program(p, None, NARROW)(list(inputs)), strict=True):
        if a.dtype.kind in "fcV":
            wide = np.complex128 if a.dtype.kind == "c" else np.float64
            np.testing.assert_allclose(a.astype(wide), b.astype(wide), rtol=1e-4, atol=1e-4)
        else:
            np.testing.assert_array_equal(a, b)
    return results


def agrees(p: Program, *inputs: np.ndarray) -> list[np.ndarray]:
    """Runs the program compiled and interpreted; the results must have the same bits."""
    got = compiled(p, *inputs)
    for mine, expected in zip(got, run(p, list(inputs)), strict=True):
        np.testing.assert_array_equal(mine, expected)
    return got


# --- The examples ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", ("bool", "i8", "f16", "bf16", "i32", "f64", "c64", "c128"))
def test_copy(n, dtype):
    x = random(dtype, n)
    [y] = compiled(copy(n, dtype), x)
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("n", (*SIZES, 100_003))
def test_axpy(n):
    x, y = random("f32", n), random("f32", n, 1)
    [z] = compiled(axpy(n), x, y)
    np.testing.assert_array_equal(z, np.float32(2.5) * x + y)


@pytest.mark.parametrize("rows, n", ((1, 1), (3, 5), (7, 16), (5, 33), (40, 100), (300, 1000)))
def test_softmax(rows, n):
    x = random("f32", rows * n)
    [y] = compiled(softmax(rows, n), x)
    e = np.exp(x.reshape(rows, n).astype("f8") - x.reshape(rows, n).max(1, keepdims=True))
    np.testing.assert_allclose(y.reshape(rows, n), e / e.sum(1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("n", (1, 15, 16, 17, 63, 64, 100, 129, 5000, 100_000))
@pytest.mark.parametrize("dtype", ("f32", "f64", "i32", "i8", "c64"))
def test_full_sum(n, dtype):
    x = random(dtype, n)
    [y] = compiled(full_sum(n, dtype), x)
    if dtype in INTEGERS:
        assert y[0] == x.sum(dtype=x.dtype)
    else:
        exact = x.sum(dtype="c16" if dtype[0] == "c" else "f8")
        assert abs(y[0] - exact) <= 1e-6 * np.abs(x).sum()


@pytest.mark.parametrize("rows, n", ((1, 1), (5, 17), (9, 64), (3, 1000)))
def test_column_sum(rows, n):
    x = random("f32", rows * n)
    [y] = compiled(column_sum(rows, n), x)
    expected = np.zeros(n, np.float32)
    for row in x.reshape(rows, n):
        expected += row
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("dtype", ("f32", "f64", "c64", "c128"))
@pytest.mark.parametrize("transa, transb", (("N", "N"), ("N", "T"), ("T", "N"), ("T", "T")))
@pytest.mark.parametrize("batch", (1, 3))
def test_matmul(dtype, transa, transb, batch):
    m, n, inner = 5, 7, 4
    x, y = random(dtype, batch * m * inner), random(dtype, batch * n * inner, 1)
    [z] = compiled(matmul(m, n, inner, dtype, transa, transb, batch), x, y)
    a = x.reshape((batch, m, inner)) if transa == "N" else x.reshape((batch, inner, m)).transpose(0, 2, 1)
    b = y.reshape((batch, inner, n)) if transb == "N" else y.reshape((batch, n, inner)).transpose(0, 2, 1)
    np.testing.assert_allclose(z.reshape((batch, m, n)), a @ b, rtol=1e-4, atol=1e-5)


def test_collatz():
    x = np.arange(1, 200, dtype=np.int32)
    [y] = agrees(collatz(x.size), x)
    assert y[26] == 111


# --- Access ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ("f32", "i8", "bool", "f64", "c64", "i16"))
@pytest.mark.parametrize("n", (1, 3, 16, 21, 70))
@pytest.mark.parametrize("stride, offset", ((1, 3), (2, 1), (3, 0), (-1, 0), (-2, 5), (0, 2)))
def test_strides_of_loads(dtype, n, stride, offset):
    size = abs(stride) * (n - 1) + offset + 1
    first = offset if stride >= 0 else size - 1
    index = ix("add", ix("mul", i("j"), c(stride)), c(first))
    x = random(dtype, size)
    [y] = compiled(one_kernel("strided", {"x": (dtype, size)}, {"y": (dtype, n)},
                              vector("j", n, Store("y", i("j"), x_at(index, dtype=dtype)))), x)
    np.testing.assert_array_equal(y, x[first + stride * np.arange(n)])


@pytest.mark.parametrize("dtype", ("f32", "i8", "bool", "c64"))
@pytest.mark.parametrize("n", (1, 3, 16, 21))
@pytest.mark.parametrize("stride", (1, 2, -1, -3))
def test_strides_of_stores(dtype, n, stride):
    size = abs(stride) * (n - 1) + 1
    first = 0 if stride > 0 else size - 1
    index = ix("add", ix("mul", i("j"), c(stride)), c(first))
    x = random(dtype, n)
    p = one_kernel("strided", {"x": (dtype, n)}, {"y": (dtype, size)},
                   serial("z", size, Store("y", i("z"), k(0, dtype))),
                   vector("j", n, Store("y", index, x_at(i("j"), dtype=dtype))))
    [y] = compiled(p, x)
    expected = np.zeros(size, x.dtype)
    expected[first + stride * np.arange(n)] = x
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("n", (1, 5, 16, 50))
@pytest.mark.parametrize("dtype", ("f32", "i8", "f64", "c64"))
@pytest.mark.parametrize("of", ("i8", "i32", "u32", "i64"))
def test_gather_clamps_and_loads(n, dtype, of):
    table = random(dtype, 40)
    where = random(of, n)
    index = ix("min", ix("max", op("cast", Load("i", i("j"), of), dtype="index"), c(0)), c(39))
    p = one_kernel("gather", {"x": (dtype, 40), "i": (of, n)}, {"y": (dtype, n)},
                   vector("j", n, Let("n", index), Store("y", i("j"), x_at(i("n"), dtype=dtype))))
    [y] = compiled(p, table, where)
    np.testing.assert_array_equal(y, table[np.minimum(where, 39)])


@pytest.mark.parametrize("dtype", ("i8", "u8", "i16", "i32", "i64", "f32", "f64", "f16", "bool"))
def test_index_as_value(dtype):
    n = 37
    p = one_kernel("iota", {}, {"y": (dtype, n), "z": (dtype, n)},
                   vector("j", n, Store("y", i("j"), op("cast", at("j", 3, 2), dtype=dtype)),
                          Store("z", i("j"), op("cast", ix("rem", at("j", 5), c(7)), dtype=dtype))))
    agrees(p)


@pytest.mark.parametrize("factor", (1 << 11, -(1 << 20), (1 << 31) - 1))
def test_multiples_of_loaded_indices_are_wide_enough(factor):
    n, where = 37, random("i32", 37)
    index = affine(5, (op("cast", Load("i", i("j"), "i32"), dtype="index"), factor), (i("j"), 3))
    p = one_kernel("far", {"i": ("i32", n)}, {"y": ("i64", n)},
                   vector("j", n, Store("y", i("j"), op("cast", index, dtype="i64"))))
    [y] = compiled(p, where)
    np.testing.assert_array_equal(y, where.astype(np.int64) * factor + 3 * np.arange(n) + 5)


def test_index_select_and_compare():
    n = 45
    clamped = ix("select_n", op("lt", i("j"), c(20), dtype="bool"), at("j", -5), i("j"))
    far = op("ge", ix("div", i("j"), c(4)), c(5), dtype="bool")
    value = f("select_n", far, x_at(ix("max", clamped, c(0))), k(-1.0))
    agrees(one_kernel("select", {"x": ("f32", n)}, {"y": ("f32", n)}, vector("j", n, Store("y", i("j"), value))),
           random("f32", n))


def test_a_load_sees_a_store_before_it():
    p = one_kernel("twice", {"x": ("f32", 50)}, {"y": ("f32", 50), "z": ("f32", 50)},
                   vector("j", 50, Store("y", i("j"), x_at(i("j"))),
                          Let("a", x_at(i("j"), "y")), Store("y", i("j"), f("add", v("a"), k(1.0))),
                          Store("z", i("j"), x_at(i("j"), "y"))))
    agrees(p, random("f32", 50))


@pytest.mark.parametrize("lanes", (True, False))
def test_a_load_sees_a_store_to_the_same_memory_by_another_name(lanes):
    loop = vector if lanes else serial
    kernel = Kernel("shared", (loop("j", 50, Let("a", x_at(i("j"))), Store("y", i("j"), f("add", v("a"), k(1.0))),
                                    Let("b", x_at(i("j"))), Store("z", i("j"), f("add", v("b"), v("a")))),))
    buffers = (Buffer("x", "f32", 50, "input", donated=True), Buffer("y", "f32", 50, "output", alias="x"),
               Buffer("z", "f32", 50, "output"))
    x = random("f32", 50)
    out = compile_program(Program("shared", buffers, (kernel,)))([x.copy()])[1]
    np.testing.assert_array_equal(out, (x + np.float32(1)) + x)


def test_a_loop_reads_what_it_wrote():
    body = Store("y", at("i", 1, 1), f("add", x_at(i("i"), "y"), x_at(i("i"))))
    agrees(one_kernel("scan", {"x": ("f32", 9)}, {"y": ("f32", 10)},
                      Store("y", c(0), k(0.0)), serial("i", 9, body)), random("f32", 9))


# --- Types -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", (*REALS, *INTEGERS))
@pytest.mark.parametrize("name", ("add", "sub", "mul", "max", "min", "div"))
@pytest.mark.parametrize("n", (3, 37))
def test_arithmetic(dtype, name, n):
    p = one_kernel("binary", {"x": (dtype, n), "y": (dtype, n)}, {"z": (dtype, n)},
                   vector("j", n, Store("z", i("j"), op(name, x_at(i("j"), dtype=dtype), x_at(i("j"), "y", dtype),
                                                        dtype=dtype))))
    y = random(dtype, n, 1)
    agrees(p, random(dtype, n), np.where(y == 0, np.ones_like(y), y))


@pytest.mark.parametrize("source", ("bool", "i8", "u32", "i64", "f16", "bf16", "f32", "f64", "c64"))
@pytest.mark.parametrize("target", ("bool", "u8", "i32", "i64", "f16", "bf16", "f32", "f64", "c128"))
def test_casts(source, target):
    n = 21
    p = one_kernel("cast", {"x": (source, n)}, {"y": (target, n)},
                   vector("j", n, Store("y", i("j"), op("cast", x_at(i("j"), dtype=source), dtype=target))))
    agrees(p, random(source, n))


@pytest.mark.parametrize("n", (3, 40))
def test_complex(n):
    x, y = x_at(i("j"), dtype="c64"), x_at(i("j"), "y", "c64")
    p = one_kernel("complex", {"x": ("c64", n), "y": ("c64", n)}, {"z": ("c64", n), "r": ("f32", n)},
                   vector("j", n, Store("z", i("j"), op("mul", op("conj", x, dtype="c64"), y, dtype="c64")),
                          Store("r", i("j"), op("imag", op("add", x, y, dtype="c64"), dtype="f32"))))
    x, y = random("c64", n), random("c64", n, 1)
    z, r = compiled(p, x, y)
    np.testing.assert_allclose(z, x.conj() * y, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(r, (x + y).imag)


@pytest.mark.parametrize("name, dtype", (("max", "f32"), ("min", "f64"), ("add", "i32"), ("mul", "i8"), ("and", "u16"),
                                         ("or", "bool"), ("and", "bool"), ("xor", "i64"), ("max", "i8"),
                                         ("min", "u32"), ("max", "u8")))
@pytest.mark.parametrize("n", (0, 1, 5, 64, 77, 300))
def test_reductions(name, dtype, n):
    start = {"max": -5, "min": 120, "and": True if dtype == "bool" else 127}.get(name, 1)
    start = abs(start) if dtype[0] == "u" else start
    p = one_kernel("reduce", {"x": (dtype, n)}, {"y": (dtype, 1)},
                   Mutable("s", dtype, k(bool(start) if dtype == "bool" else start, dtype)),
                   vector("j", n, Accumulate("s", name, x_at(i("j"), dtype=dtype))),
                   Store("y", c(0), v("s", dtype)))
    agrees(p, random(dtype, n))


@pytest.mark.parametrize("place", (0, 3, 16, 40, 76))
@pytest.mark.parametrize("name", ("max", "min"))
def test_nan_passes_through_max(name, place):
    n = 77
    x = random("f32", n)
    x[place] = np.nan
    p = one_kernel("reduce", {"x": ("f32", n)}, {"y": ("f32", 1)},
                   Mutable("s", "f32", k(-np.inf if name == "max" else np.inf)),
                   vector("j", n, Accumulate("s", name, x_at(i("j")))), Store("y", c(0), v("s")))
    assert np.isnan(compiled(p, x)[0][0])


def looks_for_nans(n: int, dtype: str) -> Program:
    """Copies, and tells whether there is a NaN, and whether a zero."""
    loop = vector("j", n, Let("a", x_at(i("j"), dtype=dtype)), Store("y", i("j"), v("a", dtype)),
                  Let("b", op("ne", v("a", dtype), v("a", dtype), dtype="bool")),
                  Accumulate("s", "or", v("b", "bool")),
                  Let("z", op("eq", v("a", dtype), k(0.0, dtype), dtype="bool")), Accumulate("t", "or", v("z", "bool")))
    return one_kernel("look", {"x": (dtype, n)}, {"y": (dtype, n), "o": ("bool", 2)},
                      Mutable("s", "bool", k(False, "bool")), Mutable("t", "bool", k(False, "bool")), loop,
                      Store("o", c(0), v("s", "bool")), Store("o", c(1), v("t", "bool")))


@pytest.mark.parametrize("dtype", ("f16", "f32", "f64"))
@pytest.mark.parametrize("n", (1, 15, 16, 17, 31, 32, 33, 47, 48, 64, 77))
def test_a_nan_is_found_wherever_it_is(n, dtype):
    p = looks_for_nans(n, dtype)
    check(p)
    runs = [compile_program(p), compile_program(p, None, NARROW), lambda xs: run(p, xs)]
    for place in range(-1, n):
        x = np.ones(n, NUMPY[dtype])
        if place >= 0:
            x[place] = np.nan if place % 3 else 0
        for r in runs:
            y, found = r([x])
            np.testing.assert_array_equal(y, x)
            assert list(found) == [np.isnan(x).any(), (x == 0).any()], place


def test_two_vectors_are_looked_at_for_nans_at_once():
    text = text_of(looks_for_nans(64, "f32"))
    lanes = native.host().vector_bytes // 4
    assert text.count(f"fcmp uno <{lanes} x float>") == 1
    assert text.count(f"fcmp oeq <{lanes} x float>") == 2


def test_sum_of_negative_zeros():
    p = one_kernel("sum", {"x": ("f32", 77)}, {"y": ("f32", 1)}, Mutable("s", "f32", k(-0.0)),
                   vector("j", 77, Accumulate("s", "add", x_at(i("j")))), Store("y", c(0), v("s")))
    assert np.signbit(compiled(p, np.full(77, -0.0, np.float32))[0][0])


@pytest.mark.parametrize("dtype", dtypes.ALL_DTYPES, ids=str)
def test_every_type_is_copied(dtype):
    x = np.array([1, 2, 1, 1]).astype(dtype)
    np.testing.assert_array_equal(compiled(copy(4, dtypes.short_name(dtype)), x)[0], x)


# --- Control flow ------------------------------------------------------------------------------


def test_if_joins_variables():
    body = (Mutable("a", "f32", x_at(i("j"))), Mutable("n", "index", c(0)),
            If(op("lt", v("a"), k(0.0), dtype="bool"),
               (Assign("a", f("neg", v("a"))), Assign("n", c(1))),
               (If(op("gt", v("a"), k(1.0), dtype="bool"), (Assign("a", k(1.0)), Assign("n", c(2)))),)),
            Store("y", i("j"), v("a")), Store("z", i("j"), op("cast", i("n"), dtype="i32")))
    agrees(one_kernel("if", {"x": ("f32", 40)}, {"y": ("f32", 40), "z": ("i32", 40)}, serial("j", 40, *body)),
           random("f32", 40))


def test_while_outside_of_kernels():
    """A loop over kernels: y = x doubled until it is 100 or more, in memory."""
    kernel = Kernel("double", (vector("j", 5, Store("y", i("j"), f("mul", x_at(i("j"), "y"), k(2.0)))),))
    p = program("until", {"x": ("f32", 5)}, {"y": ("f32", 5)},
                Kernel("copy", (vector("j", 5, Store("y", i("j"), x_at(i("j")))),)),
                While((), op("lt", x_at(c(0), "y"), k(100.0), dtype="bool"), (kernel,)))
    [y] = agrees(p, np.float32([3, 1, 2, 3, 4]))
    assert y[0] == 192


def test_kernels_use_values_from_outside():
    store = Store("y", at("t", 6, "j"), f("mul", x_at(i("j")), f("add", v("g"), op("cast", i("t"), dtype="f32"))))
    p = program("outer", {"x": ("f32", 6)}, {"y": ("f32", 6 * 9)},
                Mutable("g", "f32", k(0.5)),
                serial("t", 9, Kernel("row", (vector("j", 6, store),)), Assign("g", f("add", v("g"), k(1.0))),
                       *(Kernel(f"more{n}", (vector("j", 6, store),)) for n in range(8))))
    x = random("f32", 6)
    t = np.arange(9, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(compiled(p, x)[0].reshape(9, 6), x * (2 * t + np.float32(1.5)))


def test_parallel_body_sees_values_from_outside():
    p = one_kernel("scaled", {"x": ("f32", 8000), "b": ("bool", 1), "w": ("c64", 1)}, {"y": ("f32", 8000)},
                   Let("n", at(3)), Let("s", x_at(c(5))), Let("q", Load("b", c(0), "bool")),
                   Let("w2", Load("w", c(0), "c64")),
                   parallel("i", 8000,
                            Let("r", op("real", v("w2", "c64"), dtype="f32")),
                            Store("y", i("i"), f("select_n", v("q", "bool"), k(7.0),
                                                 f("add", f("mul", f("exp", x_at(i("i"))), v("s")), f("add", v("r"),
                                                   op("cast", i("n"), dtype="f32")))))))
    inputs = random("f32", 8000), np.array([True]), np.array([2 + 3j], np.complex64)
    threads.set_num_threads(3)
    [y] = compiled(p, *inputs)
    threads.set_num_threads(None)
    x = inputs[0]
    np.testing.assert_allclose(y, np.exp(x) * x[5] + 5, rtol=1e-5)


def test_scratch_memory_large_and_small():
    for size in (3, 100_000):
        p = one_kernel("scratch", {"x": ("f32", size)}, {"y": ("f32", size)},
                       serial("i", 2, Local("t", "f32", size),
                              vector("j", size, Store("t", i("j"), f("mul", x_at(i("j")), k(3.0)))),
                              vector("j2", size, Store("y", i("j2"), x_at(i("j2"), "t")))))
        x = random("f32", size)
        np.testing.assert_array_equal(compiled(p, x)[0], x * np.float32(3))


def test_dynamic_extents_and_nested_loops():
    """A triangle: y[i] = sum of x[j] for j < i."""
    p = one_kernel("triangle", {"x": ("f32", 90)}, {"y": ("f32", 90)},
                   serial("i", 90, Mutable("s", "f32", k(0.0)),
                          vector("j", i("i"), Accumulate("s", "add", x_at(i("j")))), Store("y", i("i"), v("s"))))
    x = np.arange(90, dtype=np.float32)
    np.testing.assert_array_equal(compiled(p, x)[0], [x[:n].sum() for n in range(90)])


def test_loops_inside_of_vector_loops():
    """Lanes over columns, a serial loop over rows inside."""
    p = one_kernel("columns", {"x": ("f32", 7 * 50)}, {"y": ("f32", 50), "z": ("f32", 50)},
                   vector("j", 50, Mutable("s", "f32", k(0.0)), Mutable("m", "f32", k(0.0)),
                          serial("i", 7, Accumulate("s", "add", x_at(at("i", 50, "j"))),
                                 If(op("eq", ix("rem", i("i"), c(2)), c(0), dtype="bool"),
                                    (Assign("m", f("max", v("m"), x_at(at("i", 50, "j")))),))),
                          Store("y", i("j"), v("s")), Store("z", i("j"), v("m"))))
    agrees(p, random("f32", 350))


# --- The text ----------------------------------------------------------------------------------


def text_of(p: Program) -> str:
    target = native.host()
    emitted = p
    for step in to_text(target):
        emitted = step.run(emitted)
    return "\n".join(emitted.texts)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_whatever_memory_a_function_takes_it_gives_back(count: int) -> None:
    size = 100_000
    rows = [(Local(f"t{n}", "f32", size), vector(f"j{n}", size, Store(f"t{n}", i(f"j{n}"), x_at(i(f"j{n}")))),
             vector(f"k{n}", size, Store("y", i(f"k{n}"), x_at(i(f"k{n}"), f"t{n}")))) for n in range(count)]
    p = one_kernel("scratch", {"x": ("f32", size)}, {"y": ("f32", size)},
                   serial("i", 2, *(stmt for row in rows for stmt in row)))
    text = text_of(p)
    taken = re.findall(r"(\S+) = (?:tail )?call ptr @malloc", text)
    assert len(taken) == count
    assert sorted(re.findall(r"call void @free\(ptr (\S+)\)", text)) == sorted(taken)


def test_equal_kernels_are_emitted_once():
    kernels = [Kernel(f"k{n}", (vector("j", 64, Store(f"t{n + 1}", i("j"), f("add", x_at(i("j"), f"t{n}"), k(1.0)))),))
               for n in range(9)]
    p = program("chain", {"t0": ("f32", 64)}, {"t9": ("f32", 64)}, *kernels,
                temps={f"t{n}": ("f32", 64) for n in range(1, 9)})
    assert text_of(p).count("define ") == 2
    x = random("f32", 64)
    expected = x.copy()
    for _ in range(9):
        expected = expected + np.float32(1)
    np.testing.assert_array_equal(compiled(p, x)[0], expected)


def test_many_kernels_in_several_modules():
    kernels = [Kernel(f"k{n}", (parallel("i", 20, vector("j", 9, Store(f"t{n + 1}", at("i", 9, "j"), f(
        "add", x_at(at("i", 9, "j"), f"t{n}"), k(float(n))))), ),)) for n in range(60)]
    p = program("chain", {"t0": ("f32", 180)}, {"t60": ("f32", 180)}, *kernels,
                temps={f"t{n}": ("f32", 180) for n in range(1, 60)})
    executable = compile_program(p)
    assert len(executable.code.modules) == 5
    x = np.arange(180, dtype=np.float32)
    np.testing.assert_array_equal(executable([x])[0], x + 59 * 30)
    assert executable.asm.count("k0_") or executable.asm.count("k0.")


def test_constants_that_differ_in_sign_of_zero_are_different():
    kernels = [Kernel(f"k{n}", (vector("j", 8, Store(f"y{n}", i("j"), k(z))),))
               for n, z in enumerate((0.0, -0.0, 0.0, -0.0, 0.0, -0.0))]
    p = program("zeros", {}, {f"y{n}": ("f32", 8) for n in range(6)}, *kernels)
    assert [bool(np.signbit(y[0])) for y in compiled(p)] == [False, True] * 3


def test_the_text_says_nothing_about_addresses():
    table = np.arange(8, dtype=np.float32)
    p = program("consts", {}, {"y": ("f32", 8)},
                Kernel("copy", (vector("j", 8, Store("y", i("j"), x_at(i("j"), "w"))),)), consts={"w": table})
    text = text_of(p)
    assert str(table.ctypes.data) not in text and "inttoptr" not in text
    np.testing.assert_array_equal(compiled(p)[0], table)


@pytest.mark.parametrize("n", (1, 3, 16, 37, 130))
@pytest.mark.parametrize("dtype", ("f32", "f64", "f16", "bool", "i8", "c64"))
def test_memory_apart_is_of_each_lane(n, dtype):
    """What a lane puts there in one loop it finds in the next, turned round; in one, and one by one, alike."""
    p = one_kernel("apart", {"x": (dtype, 3 * n)}, {"y": (dtype, 3 * n)}, vector(
        "j", n, Local("t", dtype, 3, "apart"),
        serial("a", 3, Store("t", i("a"), x_at(affine(0, (i("j"), 3), (i("a"), 1)), dtype=dtype))),
        serial("b", 3, Store("y", affine(0, (i("j"), 3), (i("b"), 1)),
                             x_at(affine(2, (i("b"), -1)), "t", dtype)))))
    x = random(dtype, 3 * n)
    [y] = agrees(p, x)
    np.testing.assert_array_equal(y, x.reshape(n, 3)[:, ::-1].ravel())


def test_axpy_is_one_loop_of_vectors():
    text = text_of(axpy(64))
    assert text.count("load <16 x float>" if native.host().vector_bytes == 64 else "load <") == 2
    assert text.count("br i1") == 1 and "masked" not in text


def test_local_statement_outside_of_any_loop_is_private_to_the_call():
    p = one_kernel("local", {"x": ("f32", 4)}, {"y": ("f32", 4)}, Local("t", "f32", 4),
                   vector("j", 4, Store("t", i("j"), x_at(i("j")))),
                   vector("j2", 4, Store("y", i("j2"), x_at(ix("sub", c(3), i("j2")), "t"))))
    agrees(p, random("f32", 4))
