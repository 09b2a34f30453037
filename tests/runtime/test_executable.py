"""Calling compiled programs: what is checked, copied, shared and kept."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.compiler import cache
from anima.compiler.ir.loops import Buffer, Kernel, Load, Program, Store
from anima.compiler.machine import native, store
from anima.config import compilation_cache_dir, enable_compilation_cache
from anima.core.array import ConcreteArray
from anima.core.avals import ShapedArray
from anima.runtime import calling, cpu, executable as executable_module, threads
from anima.runtime.executable import compile_program
from tests.compiler.loop_programs import (
    at,
    axpy,
    c,
    collatz,
    copy,
    f,
    full_sum,
    i,
    k,
    one_kernel,
    parallel,
    softmax,
    vector,
    x_at,
)


def floats(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def test_outputs_are_fresh_and_shaped():
    executable = compile_program(axpy(12), [(3, 4)])
    x, y = floats(12), floats(12, 1)
    [a], [b] = executable([x, y]), executable([y, x])
    assert a.shape == (3, 4) and a.flags.c_contiguous and a.flags.writeable
    np.testing.assert_array_equal(a.ravel(), np.float32(2.5) * x + y)
    np.testing.assert_array_equal(b.ravel(), np.float32(2.5) * y + x)


def test_inputs_are_taken_in_any_layout():
    x = floats(12).reshape(3, 4)
    expected = compile_program(copy(12))([np.ascontiguousarray(x.T)])[0]
    np.testing.assert_array_equal(compile_program(copy(12))([x.T])[0], expected)
    np.testing.assert_array_equal(compile_program(copy(6))([np.repeat(x.ravel(), 2)[:12:2]])[0], x.ravel()[:6])
    raw = np.zeros(49, np.uint8)[1:].view(np.float32)   # not aligned
    raw[:] = x.ravel()
    np.testing.assert_array_equal(compile_program(copy(12))([raw])[0], x.ravel())
    frozen = floats(12)
    frozen.flags.writeable = False
    np.testing.assert_array_equal(compile_program(copy(12))([frozen])[0], frozen)


class Special(np.ndarray):
    """A subclass of arrays."""


def test_inputs_are_checked():
    executable = compile_program(axpy(4))
    x = floats(4)
    with pytest.raises(TypeError, match="argument 1 must be an array of float32, got an array of float64"):
        executable([x, x.astype(float)])
    with pytest.raises(TypeError, match="argument 0 must be an array of float32, got list"):
        executable([[1.0, 2.0, 3.0, 4.0], x])
    with pytest.raises(ValueError, match="argument 0 must have 4 elements"):
        executable([floats(5), x])
    with pytest.raises(TypeError, match="takes 2 arrays, got 1"):
        executable([x])
    with pytest.raises(TypeError, match="float32, got an array of >f4"):
        executable([x, x.astype(">f4")])
    np.testing.assert_array_equal(executable((x, x.view(Special)))[0], x * np.float32(3.5))


def test_a_dtype_that_is_equal_but_another_object():
    dtype = np.dtype("float32", metadata={"unit": "m"})
    x = floats(4).astype(dtype)
    np.testing.assert_array_equal(compile_program(copy(4))([x])[0], floats(4))


def test_without_the_native_way_in(monkeypatch):
    monkeypatch.setattr(calling, "caller", lambda *args, **more: None)
    x = floats(4)
    np.testing.assert_array_equal(compile_program(axpy(4))([x, x])[0], x * np.float32(3.5))


@pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(),
                    reason="without the interpreter's lock objects may go while native code reads them")
def test_the_layout_of_objects_is_known():
    assert calling.layout() is not None


WITHOUT_LOCK = """
import sys
sys._is_gil_enabled = lambda: False
import numpy as np, anima, anima.numpy as jnp
from anima.runtime import calling
x = np.arange(40, dtype=np.float32)
f = anima.jit(lambda x, y: (jnp.sort(x * y), jnp.sum(x), anima.grad(lambda z: jnp.sum(z ** 2))(x)))
for _ in range(3):
    product, total, gradient = f(x, 2)
    assert (product == np.sort(2 * x)).all() and total == x.sum() and (gradient == 2 * x).all()
assert calling.layout() is None
"""


def test_without_the_interpreters_lock():
    subprocess.run([sys.executable, "-c", WITHOUT_LOCK], check=True, timeout=60)


def test_empty_arrays_and_no_arrays():
    assert compile_program(copy(0), [(0, 3)])([floats(0)])[0].shape == (0, 3)
    p = one_kernel("fill", {}, {"y": ("f32", 3)}, vector("j", 3, Store("y", i("j"), k(2.0))))
    np.testing.assert_array_equal(compile_program(p)([])[0], [2, 2, 2])
    assert compile_program(Program("nothing", (), ()))([]) == []


@pytest.mark.parametrize("size", [0, 3, 5, 8])
def test_shapes_and_constants_must_fit(size):
    with pytest.raises(ValueError, match="not the shape"):
        compile_program(copy(4), [(size,)])
    buffers = (Buffer("c", "f32", 4, "const", np.ones(size, np.float32)), Buffer("y", "f32", 4, "output"))
    kernel = Kernel("fill", (vector("j", 4, Store("y", i("j"), Load("c", i("j"), "f32"))),))
    with pytest.raises(ValueError, match="the constant c has"):
        compile_program(Program("fill", buffers, (kernel,)))


def test_misaligned_arrays_are_copied():
    """Compiled code may rely on addresses that are multiples of an element's size."""
    memory, executable = np.zeros(4 * 33 + 1, np.uint8), compile_program(copy(33))
    x = memory[1:].view(np.float32)
    x[...] = floats(33)
    assert not x.flags.aligned and executable._run(x) is NotImplemented
    assert executable_module._row_major(x, executable._inputs[0], 0).flags.aligned
    np.testing.assert_array_equal(executable([x])[0], x)


def test_what_an_alias_of_an_alias_is_made_of():
    """The input whose memory it takes, however many results share that."""
    buffers = (Buffer("x", "f32", 4, "input", donated=True), Buffer("t", "f32", 4, "temp", alias="x"),
               Buffer("y", "f32", 4, "output", alias="t"), Buffer("z", "f32", 4, "output", alias="y"))
    outputs = executable_module._outputs(Program("chain", buffers, ()), None, cpu.here())
    assert [o.donor for o in outputs] == [0, 0]
    assert executable_module.written_inputs(Program("chain", buffers, ())) == [0]


def test_donated_arrays_are_gone_after_an_exception():
    def fails(x):
        raise ValueError("no")

    f = anima.jit(lambda x: anima.pure_callback(fails, x, x + 1).at[0].set(2), donate_argnums=0)
    x = jnp.arange(3.0)
    with pytest.raises(ValueError, match="no"):
        f(x)
    assert x.is_deleted() or x.tolist() == [0, 1, 2]  # what may have been written over is not shown


def test_a_donated_input_is_overwritten_where_nothing_else_sees_it():
    n = 33
    body = Kernel("double", (vector("j", n, Store("y", i("j"), f("mul", x_at(i("j")), k(2.0)))),))
    p = Program("donate", (Buffer("x", "f32", n, "input", donated=True),
                           Buffer("y", "f32", n, "output", alias="x")), (body,))
    x = floats(n)
    expected = x * 2
    executable = compile_program(p)
    aval = ShapedArray((n,), np.dtype(np.float32))
    run = executable.typed([aval], [aval], "single", (0,))
    given = ConcreteArray(x.copy(), aval)
    place = given.unsafe_buffer_pointer()
    y = run(given)
    assert y.unsafe_buffer_pointer() == place and given.is_deleted()
    np.testing.assert_array_equal(y, expected)
    given = ConcreteArray(x, aval)
    y = run(given)  # here others see it
    assert not np.shares_memory(x, y) and given.is_deleted()
    np.testing.assert_array_equal(y, expected)
    [y] = executable([x])
    assert np.shares_memory(x, y)
    np.testing.assert_array_equal(y, expected)


def test_the_number_of_threads_changes_nothing():
    x = floats(1 << 20)
    results = []
    for count in (1, 2, 5):
        threads.set_num_threads(count)
        results.append([compile_program(full_sum(x.size))([x])[0], compile_program(softmax(1024, 1024))([x])[0]])
    threads.set_num_threads(None)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_calls_from_many_python_threads():
    executable = compile_program(full_sum(1 << 18))
    inputs = [floats(1 << 18, seed) for seed in range(4)]
    expected = [executable([x])[0][0] for x in inputs]
    wrong: list[int] = []

    def work(number: int) -> None:
        wrong.extend(number for _ in range(50) if executable([inputs[number]])[0][0] != expected[number])

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_the_interpreter_lock_is_free_meanwhile():
    executable = compile_program(collatz(200_000))
    x = np.full(200_000, 77031, np.int32)
    ticks = 0
    running = True

    def call() -> None:
        nonlocal running
        executable([x])
        running = False

    worker = threading.Thread(target=call)
    worker.start()
    while running:
        ticks += 1
    worker.join()
    assert ticks > 1000


def test_a_parallel_program_after_fork():
    code = """
import os, numpy as np
from anima.runtime import threads
from anima.runtime.executable import compile_program
from tests.compiler.loop_programs import softmax
threads.set_num_threads(3)
e = compile_program(softmax(1000, 1000)); x = np.ones(1000000, np.float32)
assert abs(e([x])[0].sum() - 1000) < 1e-2
pid = os.fork()
ok = abs(e([x])[0].sum() - 1000) < 1e-2
if pid == 0: os._exit(0 if ok else 1)
assert ok and os.waitpid(pid, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("ignored", [False, True])
def test_interrupt_leaves_the_process_usable(ignored):
    code = """
import os, signal, threading, time, numpy as np
from anima.runtime import threads
from anima.runtime.executable import compile_program
from tests.compiler.loop_programs import softmax
threads.set_num_threads(3)
e = compile_program(softmax(1000, 1000)); x = np.ones(1000000, np.float32)
e([x])
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores Ctrl-C
try:
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    while True: e([x])
except KeyboardInterrupt: pass
assert abs(e([x])[0].sum() - 1000) < 1e-2
"""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if ignored else None
    try:
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    finally:
        if ignored:
            signal.signal(signal.SIGINT, before)


def test_analyses():
    executable = compile_program(full_sum(10_000))
    memory = executable.memory_analysis()
    assert memory["argument_size_in_bytes"] == 40_000 and memory["output_size_in_bytes"] == 4
    assert memory["temp_size_in_bytes"] == executable.program.arena > 0
    assert memory["alias_size_in_bytes"] == 0 and memory["generated_code_size_in_bytes"] > 100
    assert executable.cost_analysis()["bytes accessed"] == 40_000 + 4 + 2 * 3 * 4  # three partial sums, there and back
    steps = [compile_program(one_kernel("step", {"x": ("f32", 64)}, {"y": ("f32", 8)}, vector(
        "j", 8, Store("y", i("j"), Load("x", at("j", stride, first), "f32"))))) for stride, first in ((1, 0), (5, 3))]
    plain, strided = (e.cost_analysis()["operations"] for e in steps)
    assert plain == 0 and strided == 2  # one product, one sum: indices are computed, too
    assert "define void @entry" in executable.llvm
    assert "entry" in executable.asm and "ret" in executable.asm
    assert "vector" in executable.loops


# --- Code that is kept -------------------------------------------------------------------------


def test_equal_programs_are_compiled_once():
    a, b = compile_program(axpy(999)), compile_program(axpy(999))
    assert a.code is b.code
    assert compile_program(axpy(998)).code is not a.code


def test_code_that_nothing_uses_is_given_back(monkeypatch):
    monkeypatch.setattr(cache, "_KEPT", 5)
    kept = compile_program(axpy(1000))
    codes = [weakref.ref(compile_program(axpy(n)).code) for n in range(1001, 1031)]
    gc.collect()
    assert [code() is None for code in codes] == [True] * 25 + [False] * 5
    assert compile_program(axpy(1000)).code is kept.code, "compiled once while it is in use"
    anima.clear_caches()
    gc.collect()
    assert all(code() is None for code in codes) and not cache._recent and not cache._known
    assert compile_program(axpy(1000)).code is not kept.code
    np.testing.assert_array_equal(kept([np.ones(1000, np.float32)] * 2)[0], np.full(1000, 3.5))


def test_engines_go_with_the_last_of_their_modules():
    text = "@state = global i64 0 define i64 @entry(i64 %x) { ret i64 %x }"  # with data that is for LLVM's linker
    engines = {id(m._addresses.engine): weakref.ref(m._addresses.engine) for m in (
        native.compile_module(text, level=0) for _ in range(3 * native._PER_ENGINE + 1))}
    gc.collect()
    assert len(engines) >= 1 and sum(engine() is not None for engine in engines.values()) <= 2
    kept = [native.compile_module(text, level=0) for _ in range(native._PER_ENGINE + 1)]
    assert len({id(m._addresses.engine) for m in kept}) == 2
    assert all(m.address("entry") for m in kept)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_programs():
    code = """
import gc, numpy as np, anima, anima.numpy as jnp
from anima import lax
x = np.ones(10, np.float32)
def some(first, last):
    for k in range(first, last):
        anima.jit(lambda x: jnp.sin(x * float(k)) @ x)(x)
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * 4
start = some(0, 150)
growth = (some(150, 450) - start) / 300
assert growth < 4, f"{growth} KiB for each program"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_constants_are_not_part_of_the_code():
    def p(value: float) -> Program:
        w = Buffer("w", "f32", 3, "const", np.full(3, value, np.float32))
        body = Kernel("k", (vector("j", 3, Store("y", i("j"), x_at(i("j"), "w"))),))
        return Program("constant", (w, Buffer("y", "f32", 3, "output")), (body,))
    one, two = compile_program(p(1.0)), compile_program(p(2.0))
    assert one.code is two.code
    np.testing.assert_array_equal(one([])[0] + two([])[0], [3, 3, 3])


def test_code_on_disk(on_disk, monkeypatch):
    with enable_compilation_cache(False):
        text = compile_program(axpy(77)).code.texts[0]
    first = native.load(text, native.host())
    store.flush()
    [file] = on_disk.iterdir()
    good = file.read_bytes()
    monkeypatch.setattr(native, "compile_object", lambda *a, **k: pytest.fail("compiled again"))
    assert native.load(text, native.host()).object_bytes() == first.object_bytes()
    monkeypatch.undo()
    for bad in (b"", b"nonsense", good[:-5], good[:40] + b"!" + good[41:], good + b"more"):
        file.write_bytes(bad)
        assert native.load(text, native.host()).object_bytes() == first.object_bytes()
        store.flush()
        assert file.read_bytes() == good
    assert [f.name for f in on_disk.iterdir()] == [file.name]
    with compilation_cache_dir(str(file / "not-a-folder")):
        assert native.load(text, native.host()).address("entry")


def test_no_files_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with compilation_cache_dir(None):
        compile_program(axpy(78))
    assert not list(tmp_path.iterdir())


def test_programs_that_use_no_threads_start_none():
    code = """
import threading, numpy as np
from anima.runtime.executable import compile_program
from tests.compiler.loop_programs import axpy
compile_program(axpy(100))([np.ones(100, np.float32)] * 2)
assert threading.active_count() == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_small_parallel_loops_are_serial():
    p = one_kernel("small", {"x": ("f32", 8)}, {"y": ("f32", 8)}, parallel("i", 8, Store("y", i("i"), x_at(i("i")))))
    assert not compile_program(p).code.parallel
    assert compile_program(softmax(4096, 1024)).code.parallel
    assert compile_program(axpy(10_000_000)).code.parallel
    assert c(1).value == 1
