"""Callbacks and prints: under every transformation, compiled and not; exceptions and Ctrl-C from compiled code."""

from __future__ import annotations

import bdb
import gc
import io
import os
import signal
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import debug, lax
from anima.api.debugger import Frame
from anima.api.pjit import executable_of
from anima.compiler.driver import lower
from anima.compiler.ir.interpret import run as interpret
from anima.core import memory
from anima.core.jaxpr import ClosedJaxpr
from anima.experimental import io_callback

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
F32 = anima.ShapeDtypeStruct((), np.float32)
both = pytest.mark.parametrize("jit", [lambda f: f, anima.jit], ids=["eager", "jit"])


class Record:
    """Collects what it is called with."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, *args: Any) -> None:
        self.seen.append(args[0].tolist() if len(args) == 1 else tuple(a.tolist() for a in args))


# ---------------------------------------------------------------- what is called, and with what


@both
def test_print_formats(jit: Wrap, capsys: pytest.CaptureFixture[str]) -> None:
    x = jnp.arange(3.0)
    jit(lambda x: debug.print("{} {b:.2f} {b.shape} {{}} {s!r:>4}", x, b=x / 3, s="s"))(x)
    jit(lambda x: debug.print("{p}", p={"a": x, "b": (x[1], None)}))(x)
    jit(lambda x: debug.print("{0} {1:d} {0}", x[2], jnp.int32(7)))(x)
    jit(lambda x: debug.print("{:.1f}|{:{width}.2f}", x[1], x[2], width=6))(x)
    jit(lambda x: debug.print(ordered=True)("{} {}", x > 0, x.astype(jnp.bfloat16)))(x)
    assert capsys.readouterr().out.splitlines() == [
        "[0. 1. 2.] [0.00 0.33 0.67] (3,) {}  's'",
        "{'a': Array([0., 1., 2.], dtype=float32), 'b': (Array(1., dtype=float32), None)}",
        "2.0 7 2.0", "1.0|  2.00", "[False  True  True] [0 1 2]"]


def test_print_checks_its_format() -> None:
    for error, args, kwargs in (
            (TypeError, (jnp.ones(2),), {}), (IndexError, ("{} {}", 1), {}), (KeyError, ("{y}",), {"z": 1}),
            (ValueError, ("a", 1), {}), (ValueError, ("a",), {"z": 1}), (ValueError, ("{} {0}", 1), {})):
        with pytest.raises(error):
            anima.jit(lambda args=args, kwargs=kwargs: debug.print(*args, **kwargs))()


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "float16", "bfloat16", "float32", "complex64"])
def test_operands_and_results_of_every_kind(dtype: str) -> None:
    x = jnp.arange(6).reshape(2, 3).astype(dtype)
    seen = []

    def keep(a: Any) -> Any:
        assert isinstance(a, anima.Array) and a.dtype == x.dtype and a.shape == x.shape
        with pytest.raises((ValueError, TypeError)):
            np.asarray(a)[0, 0] = 1
        seen.append(a)
        return a[::-1]

    out = anima.jit(lambda x: anima.pure_callback(keep, x, x)[:, :2])(x)
    np.testing.assert_array_equal(np.asarray(out), np.asarray(x)[::-1, :2])
    anima.jit(lambda x: anima.pure_callback(keep, x, x))(jnp.zeros_like(x))
    np.testing.assert_array_equal(np.asarray(seen[0]), np.asarray(x))   # memory that is not used again


@both
def test_callback_arguments(jit: Wrap) -> None:
    calls: list[Any] = []
    jit(lambda x: debug.callback(lambda *a, **k: calls.append((a, k)), {"x": x}, "text", None, k=x + 1, name=len))(2.0)
    [(args, kwargs)] = calls
    assert float(args[0]["x"]) == 2 and args[1:] == ("text", None)
    assert float(kwargs["k"]) == 3 and kwargs["name"] is len


@both
def test_random_keys_and_empty_arrays(jit: Wrap) -> None:
    calls: list[Any] = []
    key = anima.random.key(3)
    jit(lambda k, x: debug.callback(lambda *a: calls.append(a), k, anima.random.split(k), anima.random.split(k, (2, 3)),
                                    x))(key, jnp.zeros((0, 2)))
    [(one, two, six, empty)] = calls
    assert one.dtype == key.dtype and [a.shape for a in (one, two, six, empty)] == [(), (2,), (2, 3), (0, 2)]
    np.testing.assert_array_equal(anima.random.key_data(six), anima.random.key_data(anima.random.split(key, (2, 3))))
    np.testing.assert_array_equal(anima.random.key_data(one), anima.random.key_data(key))


@both
def test_results_are_checked(jit: Wrap) -> None:
    x = jnp.arange(3.0)
    cases = [(lambda a: a[:2], x, r"shape for return value #0: Expected: \(3,\), Actual: \(2,\)"),
             (lambda a: a.astype(int), x, "dtype for return value #0: Expected: float32, Actual: int32"),
             (lambda a: (a, a), x, "returned 2 arrays.* where result_shape_dtypes has 1"),
             (lambda a: "text", x, "returned 'text' of type str"),
             (lambda a: 3, None, "returned 1 arrays.* has 0")]
    for fun, result, message in cases:
        for call in (anima.pure_callback, io_callback) if result is not None else (io_callback,):
            with pytest.raises(anima.errors.AnimaRuntimeError, match=f"The callback <lambda> at .*{message}"):
                jit(lambda x, fun=fun, result=result, call=call: call(fun, result, x))(x)


@both
def test_results_that_fit(jit: Wrap) -> None:
    x = jnp.arange(3.0)
    def both_of(a: Any) -> dict[str, Any]:
        return {"a": np.asarray(a, np.float64), "b": 2.0}

    out = jit(lambda x: anima.pure_callback(both_of, {"a": x, "b": F32}, x))(x)
    assert out["a"].tolist() == [0, 1, 2] and out["b"].tolist() == 2.0 and out["a"].dtype == np.float32
    assert jit(lambda x: io_callback(lambda a: None, None, x))(x) is None


def test_arguments_are_checked() -> None:
    with pytest.raises(TypeError, match="passed to pure_callback at position 1"):
        anima.pure_callback(lambda *a: 1.0, F32, 1.0, "text")
    with pytest.raises(TypeError, match="should be a callable"):
        debug.callback(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a shape and a dtype"):
        anima.pure_callback(np.sin, 3, 1.0)
    with pytest.raises(ValueError, match="vmap_method must be one of"):
        anima.pure_callback(np.sin, F32, 1.0, vmap_method="fast")
    with pytest.raises(ValueError, match="cannot specify 64-bit types"):
        anima.pure_callback(np.sin, np.zeros(3), 1.0)


def test_equations_look_like_the_documented_ones() -> None:
    jaxpr = anima.make_jaxpr(lambda x: (debug.print("x = {}", x), anima.pure_callback(np.sin, F32, x))[1])(1.0)
    names = [e.primitive.name for e in jaxpr.eqns]
    assert names == ["debug_print", "pure_callback"]
    assert "fmt=x = {}" in str(jaxpr) and "callback_func=<ufunc 'sin'>" in str(jaxpr)
    assert jaxpr.effects == {"Debug"}
    jaxpr = anima.make_jaxpr(lambda x: (debug.callback(print, x, ordered=True), io_callback(np.sin, F32, x),
                                        io_callback(np.sin, F32, x, ordered=True)))(1.0)
    assert jaxpr.effects == {"OrderedDebug", "IO", "OrderedIO"}
    assert anima.make_jaxpr(anima.jit(lambda x: debug.print("{}", x)))(1.0).effects == {"Debug"}


# ---------------------------------------------------------------- neither dropped, merged, moved nor doubled


def test_effects_stay_and_pure_callbacks_go() -> None:
    seen: list[str] = []

    def noted(name: str) -> Callable[[Any], Any]:
        return lambda a: (seen.append(name), a)[1]

    pure, effect = noted("pure"), noted("io")

    @anima.jit
    def f(x: Any) -> Any:
        anima.pure_callback(pure, F32, x)
        for _ in range(2):
            io_callback(effect, F32, x)
        return x

    f(1.0)
    assert seen == ["io", "io"]
    seen.clear()
    anima.jit(lambda x: anima.pure_callback(pure, F32, x) + anima.pure_callback(pure, F32, x))(1.0)
    assert seen == ["pure"]


def test_order_is_that_of_the_program() -> None:
    record = Record()

    @anima.jit
    def f(x: Any) -> Any:
        late = jnp.sum(jnp.tanh(x) @ x)
        debug.callback(record, late * 0 + 1)
        debug.callback(record, jnp.float32(2))
        y = jnp.sort(x[0])
        debug.callback(record, late * 0 + 3)
        lax.fori_loop(0, 2, lambda i, _: debug.callback(record, 4 + i), None)
        lax.cond(x[0, 0] > 0, lambda: debug.callback(record, 6), lambda: debug.callback(record, -6))
        debug.callback(record, jnp.float32(7))
        return y

    f(jnp.ones((3, 3)))
    assert record.seen == [1, 2, 3, 4, 5, 6, 7]


@both
def test_loops_and_branches(jit: Wrap) -> None:
    record = Record()

    def body(c: Any, x: Any) -> Any:
        debug.callback(record, c, x)
        doubled = io_callback(lambda a: a * 2, F32, x)
        return c + doubled, lax.cond(x > 1, lambda: io_callback(lambda a: a - 1, F32, c), lambda: c)

    carry, ys = jit(lambda x: lax.scan(body, 0.0, x))(jnp.arange(4.0))
    assert record.seen == [(0, 0), (0, 1), (2, 2), (6, 3)]
    assert carry == 12 and ys.tolist() == [0, 0, 1, 5]
    record.seen.clear()

    def test(c: Any) -> Any:
        debug.callback(record, c)
        return c < 3

    assert jit(lambda x: lax.while_loop(test, lambda c: c + 1, x))(0) == 3
    assert record.seen == [0, 1, 2, 3]


@both
def test_arrays_carried_through_loops(jit: Wrap) -> None:
    def body(c: Any, _: Any) -> Any:
        seen = io_callback(lambda a: a[::-1], c, c)
        return c.at[0].add(seen[0]), seen

    carry, ys = jit(lambda x: lax.scan(body, x, None, length=3))(jnp.array([1.0, 2.0]))
    assert carry.tolist() == [7, 2] and ys.tolist() == [[2, 1], [2, 3], [2, 5]]


# ---------------------------------------------------------------- transformations


@both
def test_vmap_calls_for_each_lane_in_order(jit: Wrap) -> None:
    record, x = Record(), jnp.arange(3.0)
    jit(anima.vmap(lambda x, y: debug.callback(record, x, y), (0, None)))(x, 5.0)
    jit(anima.vmap(anima.vmap(lambda x: debug.callback(record, x))))(x.reshape(3, 1))
    assert record.seen == [(0, 5), (1, 5), (2, 5), 0, 1, 2]
    record.seen.clear()
    out = jit(anima.vmap(lambda x: io_callback(lambda a: (record(a), a + 1)[1], F32, x)))(x)
    assert record.seen == [0, 1, 2] and out.tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="Cannot `vmap` ordered IO callback"):
        jit(anima.vmap(lambda x: io_callback(np.sin, F32, x, ordered=True)))(x)
    record.seen.clear()
    jit(anima.vmap(lambda x: (debug.callback(record, 1), x)[1]))(x)
    assert record.seen == [1]       # nothing in it is mapped


@both
def test_vmap_of_branches_and_loops_calls_where_a_lane_gets(jit: Wrap) -> None:
    record, x = Record(), jnp.arange(3.0)
    jit(anima.vmap(lambda x: lax.cond(x < 1, lambda: debug.callback(record, x), lambda: None)))(x)
    assert record.seen == [0]
    record.seen.clear()
    jit(anima.vmap(lambda x: lax.while_loop(lambda c: c < 2, lambda c: (debug.callback(record, c), c + 1)[1], x)))(x)
    assert record.seen == [0, 1, 1]


@both
@pytest.mark.parametrize("method,shapes", [
    ("sequential", [((), ())] * 3), ("sequential_unrolled", [((), ())] * 3), ("expand_dims", [((3,), (1,))]),
    ("broadcast_all", [((3,), (3,))]), ("legacy_vectorized", [((3,), ())])])
def test_vmap_methods(jit: Wrap, method: str, shapes: list[Any]) -> None:
    seen: list[Any] = []

    def add(a: Any, b: Any) -> Any:
        seen.append((a.shape, b.shape))
        return np.asarray(a) + np.asarray(b)

    fun = jit(anima.vmap(lambda x, y: anima.pure_callback(add, F32, x, y, vmap_method=method), (0, None)))
    assert fun(jnp.arange(3.0), 1.0).tolist() == [1, 2, 3]
    assert seen == shapes


def test_vmap_of_pure_callback_needs_a_method() -> None:
    with pytest.raises(NotImplementedError, match=r"when vmap_method is one of 'sequential'.*Got vmap_method=None"):
        anima.vmap(lambda x: anima.pure_callback(np.sin, F32, x))(jnp.arange(3.0))


@both
def test_nested_vmap_of_one_call(jit: Wrap) -> None:
    fun = anima.vmap(anima.vmap(lambda x, y: anima.pure_callback(
        lambda a, b: np.asarray(a) + np.asarray(b), F32, x, y, vmap_method="expand_dims"), (0, None)), (None, 0))
    assert jit(fun)(jnp.arange(3.0), jnp.arange(2.0)).tolist() == [[0, 1, 2], [1, 2, 3]]


@both
def test_derivatives_do_not_see_debugging(jit: Wrap) -> None:
    record = Record()

    def f(x: Any) -> Any:
        debug.callback(record, x)
        return x ** 2

    assert jit(anima.grad(f))(3.0) == 6
    assert jit(lambda x: anima.jvp(f, (x,), (1.0,))[1])(3.0) == 6
    assert jit(anima.grad(anima.grad(f)))(3.0) == 2
    assert record.seen == [3, 3, 3]
    record.seen.clear()
    assert jit(anima.grad(anima.checkpoint(f)))(3.0) == 6
    assert record.seen == [3, 3]    # forwards, and again backwards


@both
def test_derivatives_of_loops(jit: Wrap) -> None:
    record = Record()

    def step(c: Any, x: Any) -> Any:
        debug.callback(record, c)
        debug.callback(record, c)  # equal calls are two
        return c * x, c

    def f(c: Any) -> Any:
        return lax.scan(step, c, jnp.array([1.0, 2.0, 3.0]))[0]

    def g(c: Any) -> Any:
        return lax.while_loop(lambda s: s[1] < 3, lambda s: (step(s[0], s[1] + 1.0)[0], s[1] + 1), (c, 0))[0]

    for fun in (f, g):
        assert jit(anima.grad(fun))(2.0) == 6
        assert record.seen == [2, 2, 2, 2, 4, 4]
        record.seen.clear()


def test_callbacks_with_results_have_no_derivative_but_that_of_custom_jvp() -> None:
    for wrap in (lambda f: f, anima.jit):
        with pytest.raises(ValueError, match=r"Pure callbacks do not support JVP. Please use `anima.custom_jvp`"):
            anima.grad(wrap(lambda x: anima.pure_callback(np.sin, F32, x)))(1.0)
        with pytest.raises(ValueError, match="IO callbacks do not support JVP"):
            anima.grad(wrap(lambda x: io_callback(np.sin, F32, x)))(1.0)

    @anima.custom_jvp
    def sine(x: Any) -> Any:
        return anima.pure_callback(np.sin, x, x, vmap_method="broadcast_all")

    sine.defjvp(lambda primals, tangents: (sine(*primals), jnp.cos(primals[0]) * tangents[0]))
    x = jnp.arange(3.0)
    np.testing.assert_allclose(anima.jit(anima.vmap(anima.grad(sine)))(x), np.cos(np.arange(3.0)), rtol=1e-6)


def test_the_interpreter_calls_back_too() -> None:
    def f(x: Any) -> Any:
        return lax.fori_loop(0, 3, lambda i, c: io_callback(lambda a: a[::-1] + 1, c, c), x)

    jaxpr = anima.make_jaxpr(f)(jnp.arange(4.0))
    [out] = interpret(lower(ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts)).loops, [np.arange(4, dtype=np.float32)])
    assert out.tolist() == anima.jit(f)(jnp.arange(4.0)).tolist() == [6, 5, 4, 3]


# ---------------------------------------------------------------- exceptions out of compiled code


def fails_at(limit: float) -> Callable[[Any], Any]:
    def user_function(a: Any) -> Any:
        if a >= limit:
            raise LookupError(f"too large: {a}")
        return a

    return user_function


@pytest.mark.parametrize("where", ["straight", "scan", "while", "cond", "nested", "vmap"])
def test_an_exception_ends_the_program_and_keeps_its_traceback(where: str) -> None:
    check, record = fails_at(5.0), Record()

    def checked(x: Any) -> Any:
        return io_callback(check, F32, x)

    programs: dict[str, Callable[[Any], Any]] = {
        "straight": lambda x: checked(x + 5),
        "scan": lambda x: lax.scan(lambda c, _: (checked(c) + 1, None), x, None, length=1000)[0],
        "while": lambda x: lax.while_loop(lambda c: checked(c) < 1e9, lambda c: c + 1, x),
        "cond": lambda x: lax.cond(x < 10, lambda: checked(x + 6), lambda: x),
        "nested": lambda x: lax.fori_loop(0, 9, lambda i, c: lax.fori_loop(0, i, lambda j, c: checked(c) + 1, c), x),
        "vmap": lambda x: anima.vmap(checked)(x + jnp.arange(10.0))}

    @anima.jit
    def program(x: Any) -> Any:
        out = programs[where](x)
        debug.callback(record, jnp.sum(out))
        return out

    for _ in range(3):  # the program can be run again
        with pytest.raises(LookupError, match="too large") as caught:
            program(0.0)
        assert record.seen == []
        names = [f.name for f in traceback.extract_tb(caught.value.__traceback__)]
        assert names[-1] == "user_function"
        [note] = caught.value.__notes__
        assert note.startswith(f"called back from compiled code: io_callback at {os.path.basename(__file__)}:")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        anima.jit(lambda x: jnp.sum(x * 2))(jnp.ones(1000))


def test_an_exception_gives_scratch_memory_back(unchecked: None) -> None:
    def f(x: Any) -> Any:
        y = jnp.sort(jnp.tanh(x))
        io_callback(fails_at(0.0), F32, y[0] * 0)
        return jnp.cumsum(y)

    x = jnp.ones(200_000)
    executable = executable_of(anima.jit(f).trace(x).jaxpr, "f")
    size = executable._scratch.shape[0]
    assert size >= memory.LEAST
    for way in (executable, executable._call_slowly):
        for _ in range(5):
            with pytest.raises(LookupError):
                way([x.value])
            assert len(memory._blocks[size]) == 1   # the same block each time: nothing else holds it


def test_callbacks_may_run_compiled_programs_and_the_same_one() -> None:
    @anima.jit
    def countdown(n: Any) -> Any:
        return n + io_callback(lambda n: countdown(n - 1) if n > 0 else n, anima.ShapeDtypeStruct((), np.int32), n)

    assert countdown(4) == 10
    big = jnp.arange(300_000.0)
    total = anima.jit(lambda x: io_callback(anima.jit(lambda v: jnp.sum(v * 2)), F32, x) + jnp.sum(x))(big)
    np.testing.assert_allclose(total, 3 * np.arange(300_000.0).sum(), rtol=1e-5)


def test_many_threads_and_their_own_exceptions() -> None:
    @anima.jit
    def f(x: Any) -> Any:
        return lax.fori_loop(0, 50, lambda i, c: io_callback(fails_at(1000.0), F32, c) + 1, x)

    f(0.0)
    found: dict[int, Any] = {}

    def work(k: int) -> None:
        try:
            found[k] = float(f(float(k * 300)))
        except LookupError as error:
            found[k] = str(error)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(5)]
    for w in workers:
        w.start()
    for w in workers:
        w.join(20)
    assert found == {0: 50, 1: 350, 2: 650, 3: 950, 4: "too large: 1200.0"}


def test_callbacks_live_as_long_as_the_program() -> None:
    class Owner:
        def __call__(self, a: Any) -> Any:
            return a + 1

    owner = Owner()
    alive = weakref.ref(owner)
    program = anima.jit(lambda x, owner=owner: anima.pure_callback(owner, F32, x))
    assert program(1.0) == 2
    del owner
    gc.collect()
    assert alive() is not None and program(2.0) == 3
    del program
    gc.collect()
    assert alive() is None


def test_equal_programs_keep_their_own_callbacks() -> None:
    def times(n: int) -> Any:
        return anima.jit(lambda x: anima.pure_callback(lambda a: a * n, F32, x))

    programs = [times(n) for n in range(3)]
    assert [float(p(2.0)) for p in programs] == [0, 2, 4]


# ---------------------------------------------------------------- Ctrl-C


def endless_while(x: Any) -> Any:
    return lax.while_loop(lambda c: c >= 0, lambda c: c * 0.5 + 1, x)


def endless_outer(x: Any) -> Any:
    def inner(c: Any, _: Any) -> Any:
        return lax.while_loop(lambda v: v[0] < 100, lambda v: (v[0] + 1, v[1] * 0.5), (0, c))[1] + 1, None
    return lax.scan(inner, x, None, length=1 << 30)[0]


def endless_arrays(x: Any) -> Any:
    return lax.fori_loop(0, 1 << 30, lambda i, c: jnp.sin(c), x * jnp.ones(100_000))


def endless_lane(x: Any) -> Any:
    return anima.vmap(endless_while)(x * jnp.arange(2000.0))


def endless_rows(x: Any) -> Any:  # one kernel, without a loop in order
    numbers = x * 1e-6 * jnp.arange(1_000_000.0)
    return jnp.sin(numbers[:, None] + numbers).max(1)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer")
@pytest.mark.parametrize("program", [endless_while, endless_outer, endless_arrays, endless_lane, endless_rows])
def test_ctrl_c_stops_a_long_loop(program: Callable[[Any], Any]) -> None:
    compiled = anima.jit(program)
    executable = executable_of(compiled.trace(1.0).jaxpr, "endless")
    one = np.float32(1.0).reshape(())
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(2):
            start = time.perf_counter()
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(KeyboardInterrupt):
                executable([np.asarray(one)])
            assert time.perf_counter() - start < 5
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert anima.jit(lambda x: lax.while_loop(lambda c: c < 9, lambda c: c + 1, x))(0) == 9


def test_short_loops_do_not_look_for_signals() -> None:
    def loops(length: int) -> str:
        compiled = anima.jit(lambda x: lax.fori_loop(0, length, lambda i, c: c * 0.5 + 1, x)).lower(1.0).compile()
        return compiled.as_text()

    assert "poll" not in loops(1000)
    assert "poll" in loops(1 << 28)


# ---------------------------------------------------------------- breakpoints, names


@both
def test_breakpoint_commands(jit: Wrap) -> None:
    answers = io.StringIO()
    commands = io.StringIO("p x + scale\ny\nlocals\nw\nu\np outer_value\nd\nd\nl\np nothing\nhelp p\n\nc\n")

    def inner(x: Any, scale: float) -> Any:
        y = {"twice": x * 2}
        token = debug.breakpoint(stdin=commands, stdout=answers, token=x)
        return y["twice"] + token

    def outer(x: Any) -> Any:
        outer_value = x + 1
        return inner(x, 10.0) + outer_value

    assert jit(outer)(jnp.float32(1.0)) == 5
    text = answers.getvalue()
    assert "in inner" in text and "token = debug.breakpoint(" in text and "(adb) " in text
    for line in ("Array(11., dtype=float32", "{'twice': Array(2., dtype=float32", "x = Array(1., dtype=float32",
                 "Array(2., dtype=float32", "*** Newest frame", "*** NameError: name 'nothing' is not defined",
                 "p expression: its value."):
        assert line in text, text


@pytest.mark.parametrize("method", ["sequential", "expand_dims", "broadcast_all"])
def test_mapped_callbacks_with_several_results(method: str) -> None:
    def both(x: Any, y: Any) -> tuple[Any, Any]:
        return np.asarray(x) + np.asarray(y), np.asarray(x) * 2 + 0 * np.asarray(y)

    def ask(x: Any, y: Any) -> Any:
        return anima.pure_callback(both, (F32, F32), x, y, vmap_method=method)

    x = np.arange(3, dtype=np.float32)
    for jit in (lambda f: f, anima.jit):
        total, double = jit(anima.vmap(ask, (0, None)))(x, np.float32(5))
        np.testing.assert_array_equal(total, x + 5)
        np.testing.assert_array_equal(double, 2 * x)


def test_a_breakpoint_shows_the_lines_around(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("".join(f"line {n}\n" for n in range(1, 13)))
    frame = Frame(str(file), 6, "f", {}, {})
    assert frame.text() == "->    6 line 6"
    assert frame.text(2, 1) == "      4 line 4\n      5 line 5\n->    6 line 6\n      7 line 7"
    assert Frame(str(file), 2, "f", {}, {}).text(5, 0) == "      1 line 1\n->    2 line 2"


@both
@pytest.mark.parametrize("count", [0, 1, 2, 3, None])
def test_a_breakpoint_offers_so_many_functions(jit: Wrap, count: int | None) -> None:
    answers = io.StringIO()

    def first(x: Any) -> Any:
        debug.breakpoint(stdin=io.StringIO("u\n" * 3 + "w\nc\n"), stdout=answers, num_frames=count)
        return x

    def second(x: Any) -> Any:
        return first(x)

    def third(x: Any) -> Any:
        return second(x)

    jit(third)(1.0)
    shown = [name for name in ("first", "second", "third") if f", in {name}" in answers.getvalue()]
    assert shown == ["first", "second", "third"][:count]


@both
def test_quitting_a_breakpoint_ends_the_program(jit: Wrap) -> None:
    def f(x: Any) -> Any:
        debug.breakpoint(stdin=io.StringIO("q\n"), stdout=io.StringIO())
        return x

    with pytest.raises(bdb.BdbQuit):
        jit(f)(1.0)


def test_a_breakpoint_without_a_terminal_shows_the_values(monkeypatch: pytest.MonkeyPatch,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))

    @anima.jit
    def f(x: Any) -> Any:
        y = x * 3
        debug.breakpoint()
        return y

    assert f(2.0) == 6
    out = capsys.readouterr().out
    assert "x = Array(2., dtype=float32" in out and "y = Array(6., dtype=float32" in out


def test_names_and_barrier() -> None:
    with anima.named_scope("layer"):
        assert anima.jit(anima.named_call(lambda x: x + 1, name="one"))(1.0) == 2
    assert anima.named_scope("layer")(lambda x: x * 2)(3) == 6
    with pytest.raises(TypeError, match="must be a string"):
        anima.named_scope(3)  # type: ignore[arg-type]
    anima.effects_barrier()


def test_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "anima.debug"):
        anima.jit(lambda x: debug.log("x is {x}", x=x))(2.0)
    assert [r.getMessage() for r in caplog.records] == ["x is 2.0"]


def test_results_of_64_bits_are_refused_while_they_are_off() -> None:
    for kind in (np.float64, np.int64, "complex128"):
        for callback in (anima.pure_callback, io_callback):
            with pytest.raises(ValueError, match="cannot specify 64-bit types when `anima_enable_x64` is disabled"):
                callback(lambda x: x, anima.ShapeDtypeStruct((), kind), 1.0)
    with anima.enable_x64(True):
        out = anima.pure_callback(np.float64, anima.ShapeDtypeStruct((), np.float64), 1.0)
        assert out.dtype == np.float64


@pytest.mark.parametrize("wrap", [lambda f: f, anima.jit])
def test_failures_are_told_as_jax_tells_them(wrap: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(x: Any) -> Any:
        raise KeyError("no such row")

    call = wrap(lambda x: anima.pure_callback(fail, anima.ShapeDtypeStruct((), "float32"), x))
    with pytest.raises(KeyError, match="no such row"):
        call(1.0)
    monkeypatch.setattr("anima.control.effects.Callback.errors_as_text", True)
    with pytest.raises(anima.errors.JaxRuntimeError, match=r"(?s)CpuCallback error.*KeyError: 'no such row'") as info:
        call(1.0)
    assert isinstance(info.value.__cause__, KeyError)
