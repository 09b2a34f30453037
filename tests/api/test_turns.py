"""First calls from several threads at once: one traces and compiles, the others wait; none waits for ever."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import anima
import anima.numpy as jnp
from anima.api import turns
from anima.api.turns import in_turn


def together(count: int, call: Callable[[int], Any]) -> list[Any]:
    """The results, or errors, of calls from so many threads, which begin at once."""
    results: list[Any] = [None] * count
    start = threading.Barrier(count)

    def run(k: int) -> None:
        start.wait()
        try:
            results[k] = call(k)
        except Exception as error:
            results[k] = error

    threads = [threading.Thread(target=run, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return results


def test_one_thread_traces() -> None:
    traced = []

    @anima.jit
    def f(x: Any) -> Any:
        traced.append(threading.get_ident())
        time.sleep(0.05)
        return jnp.sin(x) + 1

    assert set(map(float, together(8, lambda k: f(1.0)))) == {float(jnp.sin(1.0) + 1)}
    assert len(traced) == 1
    assert len(set(map(float, together(8, lambda k: f(jnp.float16(k)))))) == 8
    assert len(traced) == 2


def test_an_error_is_for_all_who_call() -> None:
    calls = []

    @anima.jit
    def f(x: Any) -> Any:
        calls.append(1)
        time.sleep(0.01)
        if len(calls) < 4:
            raise RuntimeError("not yet")
        return x + 1

    results = together(6, lambda k: f(1.0))
    assert sum(isinstance(r, RuntimeError) for r in results) == 3
    assert [float(r) for r in results if not isinstance(r, RuntimeError)] == [2.0] * 3


def test_functions_that_call_each_other_while_they_are_traced() -> None:
    @anima.jit
    def f(x: Any, deep: int) -> Any:
        time.sleep(0.05)
        return x + (g(2.0, 0) if threading.current_thread().name == "f" else 0)

    @anima.jit
    def g(x: Any, deep: int) -> Any:
        time.sleep(0.05)
        return x + (f(3.0, 0) if threading.current_thread().name == "g" else 0)

    def call(k: int) -> Any:
        threading.current_thread().name = "fg"[k]
        with anima.ensure_compile_time_eval():
            return (f, g)[k](1.0, 1)

    assert all(float(r) > 0 for r in together(2, call))


def test_blocks() -> None:
    inside: list[int] = []
    most = []

    def note(k: int) -> None:
        inside.append(k)
        most.append(len(inside))
        time.sleep(0.005)
        inside.remove(k)

    together(6, lambda k: in_turn("a", lambda: in_turn("a", lambda: in_turn("b", lambda: note(k)))))
    assert max(most) == 1
    with pytest.raises(ZeroDivisionError):
        in_turn("a", lambda: 1 // 0)
    assert in_turn("a", lambda: 3) == 3


def test_interrupts_leave_nobody_waiting() -> None:
    errors = []  # with their tracebacks, as shells keep the last one

    def interrupted(after: int) -> bool:
        """Whether there was an interrupt at the place of this number, of those where Python looks for some."""
        left = after

        def look(frame: Any, event: str, _: object) -> None:
            nonlocal left
            if frame.f_code.co_filename == turns.__file__ and event in ("call", "c_return"):
                left -= 1
                if left < 0:
                    sys.setprofile(None)
                    raise KeyboardInterrupt

        sys.setprofile(look)
        try:
            in_turn("d", lambda: None)
        except KeyboardInterrupt as error:
            errors.append(error)
            return True
        finally:
            sys.setprofile(None)
        return False

    begin = time.monotonic()
    while interrupted(len(errors)):
        assert in_turn("d", lambda: 3) == 3
        assert together(1, lambda k: in_turn("d", lambda: k)) == [0]
        assert time.monotonic() - begin < 30
    assert len(errors) > 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:This process")
def test_a_child_waits_for_no_thread_that_it_does_not_have() -> None:
    entered, leave = threading.Event(), threading.Event()

    def stay() -> None:
        in_turn("c", lambda: (entered.set(), leave.wait(30)))

    thread = threading.Thread(target=stay)
    thread.start()
    entered.wait(30)
    child = os.fork()
    if not child:
        in_turn("c", lambda: os._exit(7))
    end = time.monotonic() + 20
    status = 0
    while not (found := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end:
        time.sleep(0.01)
    status = found[1]
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 7
