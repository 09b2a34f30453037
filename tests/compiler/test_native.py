"""Machine code from LLVM text: addresses, objects, errors, threads, forks; and the writer of that text."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import struct
import threading
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from anima.compiler.ir.assembly import Builder, ModuleBuilder, Type, Value, literal
from anima.compiler.machine import native

I64 = Type("i64")
TWICE = "define i64 @twice(i64 %x) { %y = shl i64 %x, 1  ret i64 %y }"


def integer_function(module: native.Module, name: str) -> Callable[[int], int]:
    """A function of an integer; the module lives as long as it does."""
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(module.address(name))

    def call(x: int) -> int:
        assert module is not None
        return int(function(x))

    return call


def built(write: Callable[[Builder, Value], None]) -> Callable[[int], int]:
    """The function of an integer whose body `write` writes."""
    module = ModuleBuilder()
    b = module.function("f", [I64], I64)
    write(b, b.params[0])
    return integer_function(native.compile_module(module.text(), check=True), "f")


# Compiling and loading -----------------------------------------------------------------------------

def test_code_runs_and_can_be_loaded_again_from_its_object() -> None:
    module = native.compile_module(TWICE)
    assert integer_function(module, "twice")(21) == 42
    assert module.object_bytes()[:4] in (b"\x7fELF", b"\xcf\xfa\xed\xfe") or os.name == "nt"
    again = native.load_object(module.object_bytes())
    assert again.address("twice") != module.address("twice")
    assert integer_function(again, "twice")(-5) == -10


def test_assembly_can_be_read_unless_only_an_object_was_loaded() -> None:
    module = native.compile_module(TWICE)
    assert "twice" in module.asm() and "ret" in module.asm()
    with pytest.raises(ValueError, match="no LLVM text"):
        native.load_object(module.object_bytes()).asm()


def test_modules_may_define_the_same_names() -> None:
    modules = [native.compile_module(f"define i64 @f(i64 %x) {{ ret i64 {n} }}") for n in range(5)]
    assert [integer_function(m, "f")(0) for m in modules] == list(range(5))


def test_errors() -> None:
    with pytest.raises(KeyError, match="no function 'nope'"):
        native.compile_module(TWICE).address("nope")
    with pytest.raises(ValueError, match=r"(?s)invalid LLVM: .*expected type"):
        native.compile_module("define i64 @f( {")
    circular = "define i64 @f(i1 %c) {\n  ret i64 0\nlost:\n  %x = add i64 %x, 1\n  ret i64 %x\n}"
    native.compile_object(circular)
    used_before = circular.replace("ret i64 0", "br i1 %c, label %lost, label %lost")
    with pytest.raises(ValueError, match=r"(?s)invalid LLVM: .*own value"):
        native.compile_object(used_before, check=True)


def test_code_is_freed_with_its_module() -> None:
    for _ in range(20):
        native.compile_module(TWICE).address("twice")
    gc.collect()
    assert integer_function(native.compile_module(TWICE), "twice")(2) == 4


def test_threads_compile_at_once() -> None:
    results: list[int] = []

    def work(n: int) -> None:
        for k in range(5):
            code = native.compile_module(f"define i64 @f(i64 %x) {{ %y = add i64 %x, {n * 10 + k}  ret i64 %y }}")
            results.append(integer_function(code, "f")(0))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(results) == sorted(n * 10 + k for n in range(4) for k in range(5))


def _compile_in_child(queue: Any) -> None:
    queue.put(integer_function(native.compile_module(TWICE), "twice")(4))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_compiles() -> None:
    native.compile_module(TWICE)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_compile_in_child, args=(queue,))
    child.start()
    assert queue.get(timeout=30) == 8
    child.join()


def test_the_host_is_known() -> None:
    host = native.host()
    assert host.vector_bytes in (16, 32, 64) and host.registers in (16, 32)
    assert host.has("avx512f") == ("+avx512f" in host.features)
    assert host is native.host()


def test_support_functions_are_found_in_objects() -> None:
    text = ("declare double @anima.support.lgamma.f64.v1(double)\n"
            "define double @f(double %x) { %y = call double @anima.support.lgamma.f64.v1(double %x)  ret double %y }")
    code = native.load_object(native.compile_object(text))
    function = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(code.address("f"))
    assert function(5.0) == pytest.approx(3.1780538303479458, rel=1e-15)


# Writing LLVM --------------------------------------------------------------------------------------

def test_types_are_unique_and_print_as_llvm() -> None:
    assert Type("float", 8) is Type("float", 8) is Type("i32", 8).of("float")
    assert str(Type("i1", 4)) == "<4 x i1>" and str(Type("ptr")) == "ptr"
    assert Type("double", 4).element is Type("double") and Type("half", 2).bits == 16
    with pytest.raises(ValueError, match="no LLVM type"):
        Type("f32")


@pytest.mark.parametrize("number", [0.0, -0.0, 0.1, 1e-45, 3.4e38, 1e39, -1e39, float("inf"), 65519.0, 1.00390625])
def test_constants_are_exact(number: float) -> None:
    with np.errstate(over="ignore"):
        single, half = np.float32(number), np.float16(number)
    assert literal("double", number) == f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
    assert literal("float", number) == literal("double", float(single))
    if abs(number) < 65520 or np.isinf(number):
        assert literal("half", number) == f"0xH{int(half.view(np.uint16)):04X}"


def test_nan_constants() -> None:
    for scalar in ("double", "float", "half"):
        b = ModuleBuilder()
        f = b.function("f", [], I64)
        f.ret(f.cast("zext", f.cmp("uno", f.const(Type(scalar), float("nan")), 0.0), I64))
        assert integer_function(native.compile_module(b.text()), "f")(0) == 1, scalar


def test_integer_constants_wrap() -> None:
    assert [literal("i8", n) for n in (0, 127, 128, 255, -1)] == ["0", "127", "-128", "-1", "-1"]
    assert literal("i64", 2**64 - 1) == "-1" and literal("i1", 7) == "true"


def test_loops_and_phis() -> None:
    def total(b: Builder, n: Value) -> None:
        loop, done = b.label("loop"), b.label("done")
        b.branch(loop)
        b.place(loop)
        i, s = b.phi(I64, (0, "entry")), b.phi(I64, (0, "entry"))
        following, more = b.op("add", i, 1), b.op("add", s, i)
        i.add(following, b.block)
        s.add(more, b.block)
        b.branch_if(b.cmp("slt", following, n), loop, done, likely=True)
        b.place(done)
        b.ret(more)

    assert built(total)(10) == 45


def test_branches_and_calls() -> None:
    def write(b: Builder, x: Value) -> None:
        double = b.module.function("double", [I64], I64, "internal", "noinline")
        double.ret(double.op("mul", double.params[0], 2))
        yes, no = b.label("yes"), b.label("no")
        b.branch_if(b.cmp("sgt", x, 0), yes, no)
        b.place(yes)
        b.ret(b.call("double", [x], I64))
        b.place(no)
        b.ret(b.select(b.cmp("eq", x, 0), b.const(I64, 100), -1))

    function = built(write)
    assert [function(n) for n in (5, 0, -3)] == [10, 100, -1]


def test_memory_masks_and_lanes() -> None:
    four = Type("i32", 4)

    def write(b: Builder, n: Value) -> None:
        memory = b.alloca(four)
        b.store(b.const(four, 7), memory)
        mask = b.cmp("slt", b.step(Type("i64", 4)), b.splat(n, 4))
        b.masked_store(b.step(four, 10, 10), memory, mask)
        loaded = b.masked_load(four, memory, b.const(mask.type, 1))
        back = b.gather(four, b.gep("i32", memory, b.const_lanes(Type("i64", 4), [3, 2, 1, 0])))
        b.scatter(back, b.gep("i32", memory, b.step(Type("i64", 4))), mask)
        first = b.load(Type("i32"), memory)
        lanes = b.insert(b.shuffle(loaded, back, [0, 1, 4, 5]), first, 0)
        total = b.intrinsic("vector.reduce.add", lanes, result=Type("i32"))
        b.ret(b.cast("sext", total, I64))

    # n = 2: memory 10 20 7 7; reversed 7 7 20 10; first 7; lanes 7 20 7 7.
    assert built(write)(2) == 41


def test_long_blocks_are_cut_between_loads_and_stores() -> None:
    """Vectors that take several registers count as several."""
    def cuts(lanes: int, count: int) -> int:
        b = ModuleBuilder("", 256).function("f", [Type("ptr")])
        for _ in range(count):
            b.store(b.load(Type("i64", lanes), b.params[0]), b.params[0])
        b.place(b.label())  # another block starts anew
        b.load(Type("i64"), b.params[0])
        return b.text().count("asm sideeffect")

    assert [cuts(4, 24), cuts(4, 100), cuts(16, 6), cuts(16, 25)] == [0, 4, 0, 3]


def test_constants_of_a_module() -> None:
    def write(b: Builder, n: Value) -> None:
        table = b.module.constant("table", "i64", [3, 1, 4, 1, 5])
        assert b.module.constant("table", "i64", [3, 1, 4, 1, 5]).name == table.name
        counter = b.module.variable("counter", I64, 100)
        value = b.op("add", b.load(I64, b.gep("i64", table, n)), b.load(I64, counter))
        b.store(value, counter)
        b.ret(value)

    function = built(write)
    assert [function(4), function(0)] == [105, 108]


def test_operands_of_different_types_are_refused() -> None:
    b = ModuleBuilder().function("f", [I64, Type("i32")])
    with pytest.raises(TypeError, match="add of i64"):
        b.op("add", b.params[0], b.params[1])
    with pytest.raises(TypeError, match="select of"):
        b.select(b.cmp("eq", b.params[0], 0), b.params[0], b.params[1])
    with pytest.raises(TypeError, match="phi of i64"):
        b.phi(I64, (b.params[1], "entry"))


def test_others_find_the_code_generator_with_all_passes() -> None:
    """A loop whose multiplication one of them replaces by an addition."""
    text = """define i64 @f(ptr %x, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %s = phi i64 [ 0, %entry ], [ %sum, %loop ]
  %k = mul i64 %i, 56
  %p = getelementptr i8, ptr %x, i64 %k
  %v = load i64, ptr %p
  %sum = add i64 %s, %v
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret i64 %sum
}"""
    native.host()

    def theirs() -> str:
        machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(opt=2)
        return machine.emit_assembly(llvm.parse_assembly(text, llvm.create_context()))

    before = theirs()
    native._passes(+1)
    during = theirs()
    native._passes(-1)
    assert during != before
    native.compile_module(TWICE)
    assert theirs() == before
