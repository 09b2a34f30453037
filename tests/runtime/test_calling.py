"""The native way in: what is not exactly what a program was made for is refused before anything has happened."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import anima.numpy as jnp
from anima.compiler.ir.loops import Kernel, Program, Store
from anima.core import memory
from anima.core.array import ConcreteArray
from anima.core.avals import ShapedArray
from anima.runtime import cpu, executable
from anima.runtime.executable import compile_program
from anima.runtime.fields import with_fields
from tests.compiler.loop_programs import c, f, i, k, op, program, vector, x_at

pytestmark = [pytest.mark.usefixtures("unchecked"),
              pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="needs the lock")]
F32, I32 = np.dtype(np.float32), np.dtype(np.int32)


def three() -> Program:
    """a = x * 2, b = y + 1, c = z + 1: of f32[6], i32[4] and an f32."""
    return program(
        "three", {"x": ("f32", 6), "y": ("i32", 4), "z": ("f32", 1)},
        {"a": ("f32", 6), "b": ("i32", 4), "c": ("f32", 1)},
        Kernel("a", (vector("j", 6, Store("a", i("j"), f("mul", x_at(i("j")), k(2.0)))),)),
        Kernel("b", (vector("j", 4, Store("b", i("j"), op("add", x_at(i("j"), "y", "i32"), k(1, "i32"),
                                                          dtype="i32"))),)),
        Kernel("c", (Store("c", c(0), f("add", x_at(c(0), "z"), k(1.0))),)))


AVALS = [ShapedArray((2, 3), F32), ShapedArray((4,), I32), ShapedArray((), F32, True)]
GOOD: list[Callable[[], Any]] = [
    lambda: np.arange(6, dtype=F32).reshape(2, 3), lambda: jnp.asarray(np.arange(4, dtype=I32)), lambda: 1.5]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> tuple[executable.Executable, list[Any]]:
    """The program, and a list of the memory that it has made."""
    results: list[Any] = []

    def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        results.append((shape, dtype))
        return np.empty(shape, dtype)

    monkeypatch.setattr(cpu, "_empty", empty)
    return compile_program(three(), [(2, 3), (4,), ()]), results


def strided(n: int) -> np.ndarray:
    return np.arange(2 * n, dtype=I32)[::2]


def unaligned(n: int, dtype: Any = I32) -> np.ndarray:
    array = np.zeros(4 * n + 1, np.uint8)[1:].view(dtype)
    array[:] = np.arange(n)
    return array


class Special(np.ndarray):
    """A subclass of arrays."""


X, Y = np.arange(6, dtype=F32).reshape(2, 3), np.arange(4, dtype=I32)
WRONG: dict[int, dict[str, Any]] = {
    0: {"order": np.asfortranarray(X), "transposed": X.reshape(3, 2), "flat": X.ravel(), "more dimensions": X[None],
        "fewer": X[:1], "longer": np.ones((3, 3), F32), "wider": np.ones((2, 4), F32), "dtype": X.astype(np.float64),
        "same size": X.astype(I32), "bytes": X.astype(">f4"), "subclass": X.view(Special), "half": X.astype(np.float16),
        "bf16": X.astype(ml_dtypes.bfloat16), "list": X.tolist(), "none": None, "number": 1.5,
        "array, dtype": jnp.asarray(X.astype(I32)), "array, shape": jnp.asarray(X.reshape(3, 2)),
        "array, rank": jnp.asarray(X.ravel()), "unaligned": unaligned(6, F32).reshape(2, 3)},
    1: {"strided": strided(4), "unaligned": unaligned(4), "unsigned": Y.astype(np.uint32), "float": Y.astype(F32),
        "longer": np.arange(5, dtype=I32), "shorter": Y[:3], "empty": Y[:0], "matrix": Y[:, None], "int": 3,
        "array, weak": ConcreteArray(Y, ShapedArray((4,), I32, True)), "tuple": (1, 2, 3, 4)},
    2: {"strong": np.float32(1.5), "array of none": np.ones((), F32), "strong array": jnp.float32(1.5), "int": 2,
        "bool": True, "complex": 1j, "text": "1.5", "double": np.float64(1.5), "too large": 1e39, "type": float,
        "shape": np.ones(1, F32)},
}


@pytest.mark.parametrize("position, wrong", [(n, name) for n, kinds in WRONG.items() for name in kinds])
def test_what_a_program_was_not_made_for_is_refused(made: Any, position: int, wrong: str) -> None:
    program, results = made
    args = [make() for make in GOOD]
    given = args[1]
    args[position] = WRONG[position][wrong]
    run = program.typed(AVALS, AVALS, "list", donated=(1,))
    assert run(*args) is NotImplemented, wrong
    assert not results and np.array_equal(given, Y), "nothing was made, nothing deleted"


def test_arguments_too_many_or_too_few(made: Any) -> None:
    program, results = made
    run = program.typed(AVALS, AVALS, "list")
    good = [make() for make in GOOD]
    for args in ([], good[:1], good[:2], [*good, good[2]]):
        assert run(*args) is NotImplemented
    assert not results
    with pytest.raises(TypeError):
        run(*good, z=1)


SINGLES: list[tuple[Any, ShapedArray, float | None]] = [
    (1.5, ShapedArray((), F32, True), 1.5), (3.5e38, ShapedArray((), F32, True), None),
    (-3.4e38, ShapedArray((), F32, True), float(np.float32(-3.4e38))), (np.float32(2.5), ShapedArray((), F32), 2.5),
    (1.5, ShapedArray((), F32), None), (np.float32(2.5), ShapedArray((), F32, True), None),
    (np.ones((), F32), ShapedArray((), F32), 1.0), (7, ShapedArray((), F32, True), None),
    (7, ShapedArray((), I32, True), 7), (-(2**31), ShapedArray((), I32, True), -(2**31)),
    (2**31 - 1, ShapedArray((), I32, True), 2**31 - 1), (2**31, ShapedArray((), I32, True), None),
    (-(2**31) - 1, ShapedArray((), I32, True), None), (2**80, ShapedArray((), I32, True), None),
    (True, ShapedArray((), I32, True), None), (1.0, ShapedArray((), I32, True), None),
    (np.int32(5), ShapedArray((), I32), 5), (5, ShapedArray((), I32), None),
    (True, ShapedArray((), np.dtype(bool)), True), (False, ShapedArray((), np.dtype(bool)), False),
    (np.True_, ShapedArray((), np.dtype(bool)), True), (1, ShapedArray((), np.dtype(bool)), None),
    (2**63 - 1, ShapedArray((), np.dtype(np.int64), True), 2**63 - 1),
    (2**63, ShapedArray((), np.dtype(np.int64), True), None), (1.5, ShapedArray((), np.dtype(np.float64), True), 1.5),
    (1 + 2j, ShapedArray((), np.dtype(complex), True), 1 + 2j),
]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("given, aval, want", SINGLES, ids=str)
def test_numbers(given: Any, aval: ShapedArray, want: Any) -> None:
    name = {"float32": "f32", "int32": "i32", "bool": "bool", "int64": "i64", "float64": "f64",
            "complex128": "c128"}[aval.dtype.name]
    copy = program("one", {"x": (name, 1)}, {"y": (name, 1)}, Kernel("y", (Store("y", c(0), x_at(c(0), "x", name)),)))
    got = compile_program(copy, [()]).typed([aval], [aval], "single")(given)
    if want is None:
        assert got is NotImplemented
    else:
        assert type(got) is ConcreteArray and got.aval is aval and got.value[()] == want


@pytest.mark.parametrize("form, kind", [("list", list), ("tuple", tuple)])
def test_results_are_fresh_and_nothing_is_left_behind(made: Any, form: str, kind: type) -> None:
    program, results = made
    run = program.typed(AVALS, AVALS, form)
    args = [make() for make in GOOD]
    first = run(*args)
    gc.collect()  # what other tests left
    counts = [sys.getrefcount(a) for a in (*args, *AVALS, None)]
    outs = [run(*args) for _ in range(50)]
    assert type(first) is kind and len(first) == 3 and results[:3] == [((2, 3), F32), ((4,), I32), ((), F32)]
    assert len({o.value.ctypes.data for out in outs for o in out}) == 150
    for a, b, z in outs:
        assert [o.aval for o in (a, b, z)] == AVALS and not any(o.value.flags.writeable for o in (a, b, z))
        assert np.array_equal(a, X * 2) and np.array_equal(b, Y + 1) and float(z) == 2.5
        assert [sys.getrefcount(o.value) for o in (a, b, z)] == [2, 2, 2]
    del outs, a, b, z
    gc.collect()
    after = [sys.getrefcount(x) for x in (*args, *AVALS)]
    assert after == counts[:-1]
    for _ in range(50):
        assert run(*args[:2], "no") is NotImplemented
    assert [sys.getrefcount(x) for x in (*args, *AVALS)] == counts[:-1]


@pytest.mark.parametrize("donated", [(), (0,), (1,), (0, 1)])
def test_only_donated_arrays_are_deleted(made: Any, donated: tuple[int, ...]) -> None:
    program, _ = made
    values = [X.copy(), Y.copy()]
    args = [ConcreteArray(v, aval) for v, aval in zip(values, AVALS, strict=False)]
    program.typed(AVALS, AVALS, "tuple", donated)(*args, 1.0)
    assert [a.is_deleted() for a in args] == [n in donated for n in range(2)]
    assert np.array_equal(values[0], X) and np.array_equal(values[1], Y)
    again = program.typed(AVALS, AVALS, "tuple", donated)(*args, 1.0)
    assert (again is NotImplemented) == bool(donated), "a deleted array is no argument"


def test_an_error_of_who_makes_memory_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if dtype == I32:
            raise MemoryError("none left")
        return np.empty(shape, dtype)

    monkeypatch.setattr(cpu, "_empty", fail)
    args = [make() for make in GOOD]
    given = args[1]
    run = compile_program(three(), [(2, 3), (4,), ()]).typed(AVALS, AVALS, "list", (1,))
    counts = [sys.getrefcount(a) for a in args]
    for _ in range(20):
        with pytest.raises(MemoryError, match="none left"):
            run(*args)
    assert [sys.getrefcount(a) for a in args] == counts and not given.is_deleted()


@pytest.mark.parametrize("nbytes", [memory.LEAST - 4, memory.LEAST, memory.LEAST + 4])
def test_large_results_come_out_of_the_pool(nbytes: int) -> None:
    make = cpu.here().allocator(nbytes)
    assert (make is cpu._empty) == (nbytes < memory.LEAST)
    assert make((nbytes // 4,), F32).nbytes == nbytes


def test_fields() -> None:
    text = "  %a.b = field i32 %x, size\n  set i32 %a.b, %y.z, data\n  set ptr @g, %y.z, size\n  ret void"
    assert with_fields(text, {"size": 24, "data": 0}).splitlines() == [
        "  %a.b.in = getelementptr i8, ptr %x, i64 24", "  %a.b = load i32, ptr %a.b.in",
        "  %y.z.data.1 = getelementptr i8, ptr %y.z, i64 0", "  store i32 %a.b, ptr %y.z.data.1",
        "  %y.z.size.2 = getelementptr i8, ptr %y.z, i64 24", "  store ptr @g, ptr %y.z.size.2", "  ret void"]
    with pytest.raises(KeyError):
        with_fields("%x = field i32 %y, nothing", {})
