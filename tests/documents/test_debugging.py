"""What the documents say of debugging: NaNs and where they come from, prints, leaked tracers.

The checker's passages are those of "Sharp bits", section NaNs (002): an error at once, a de-optimised run of
a jitted function, the user's line in the backward pass.
"""

from __future__ import annotations

import gc
import inspect
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import jit, lax
from anima.config import config

NOTICE = "Invalid value encountered in the output of a jit function. Calling the de-optimized version.\n"


@pytest.fixture
def debug_nans() -> Iterator[None]:
    """As the documents set it."""
    config.update("jax_debug_nans", True)
    yield
    config.update("jax_debug_nans", False)


def line(fun: Callable[..., Any], text: str) -> int:
    """The number of the line of a function that holds `text`."""
    lines, first = inspect.getsourcelines(fun)
    return first + next(k for k, code in enumerate(lines) if text in code)


def blamed(fun: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(FloatingPointError, match="invalid value") as caught:
        fun(*args)
    return str(caught.value)


# ---------------------------------------------------------------- NaNs


def test_divide(debug_nans: None) -> None:
    assert "(nan) encountered in div" in blamed(lambda: jnp.divide(0., 0.))


def test_the_documents_jitted_function(debug_nans: None, capsys: pytest.CaptureFixture[str]) -> None:
    @jit
    def f(x: Any, y: Any) -> Any:
        a = x * y
        b = (x + y) / (x - y)
        c = a + 2
        return a + b * c

    x, y = jnp.array([2., 0.]), jnp.array([3., 0.])
    with pytest.raises(FloatingPointError) as caught:
        f(x, y)
    assert capsys.readouterr().out == NOTICE
    where = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (where.name, where.line) == ("f", "b = (x + y) / (x - y)")     # a clear stack trace
    assert "encountered in div" in str(caught.value) and "b = (x + y) / (x - y)" in str(caught.value)
    assert np.isfinite(f(x[:1], y[:1])).all() and capsys.readouterr().out == ""


def test_a_python_number(debug_nans: None) -> None:
    assert "encountered in div" in blamed(jit(lambda x: x / x), 0.0)


def steps(c: Any, x: Any) -> Any:
    y = jnp.log(c)
    return c - 1, y


def halve(c: Any) -> Any:
    k, x = c
    return k + 1, jnp.sqrt(x - 1)


def branch(x: Any) -> Any:
    return jnp.log(x)


def guarded(x: Any) -> Any:
    root = jnp.sqrt(x)
    return jnp.where(x > 0, root, 0.0)


def guarded_scan(x: Any) -> Any:
    return lax.scan(lambda c, _: (guarded(c), None), x, None, length=2)[0]


@pytest.mark.parametrize("wrap", [lambda f: f, jit], ids=["eager", "jit"])
@pytest.mark.parametrize("run,body,code,primitive", [
    (lambda: lax.scan(steps, 1.0, jnp.arange(3.0)), steps, "jnp.log", "log"),
    (lambda: lax.while_loop(lambda c: c[0] < 3, halve, (0, 1.0)), halve, "jnp.sqrt", "sqrt"),
    (lambda: lax.cond(True, branch, lambda x: x, -1.0), branch, "jnp.log", "log"),
    (lambda: lax.fori_loop(0, 2, lambda i, x: branch(x) - 1, 1.0), branch, "jnp.log", "log"),
    (lambda: anima.vmap(branch)(jnp.array([1.0, -1.0])), branch, "jnp.log", "log"),
    (lambda: jit(lambda x: jit(branch)(x) + 1)(-1.0), branch, "jnp.log", "log"),
    (lambda: anima.grad(guarded)(0.0), guarded, "jnp.sqrt", "mul"),
    (lambda: anima.grad(jit(guarded))(0.0), guarded, "jnp.sqrt", "mul"),
    (lambda: anima.grad(guarded_scan)(0.0), guarded, "jnp.sqrt", "mul"),
    (lambda: anima.grad(anima.checkpoint(guarded_scan))(0.0), guarded, "jnp.sqrt", "mul"),
], ids=["scan", "while", "cond", "fori", "vmap", "nested", "grad", "grad-jit", "grad-scan", "checkpoint"])
def test_the_operation_and_the_users_line(debug_nans: None, wrap: Any, run: Any, body: Any, code: str,
                                          primitive: str) -> None:
    message = blamed(wrap(run))
    assert f"encountered in {primitive}:" in message
    assert f"test_debugging.py:{line(body, code)}, in {body.__name__}:" in message, message


def test_what_jit_alone_does_not_show_goes_on(debug_nans: None, capsys: pytest.CaptureFixture[str]) -> None:
    out = jit(lambda x: x)(jnp.array(np.nan))
    assert np.isnan(out)
    assert capsys.readouterr().out.startswith(NOTICE + "No operation of the de-optimized version")


def test_nans_that_reach_no_result_of_a_jitted_function_pass(debug_nans: None) -> None:
    assert jit(lambda x: jnp.where(x > 0, jnp.log(x), 0.0))(-1.0) == 0
    assert "encountered in log" in blamed(lambda x: jnp.where(x > 0, jnp.log(x), 0.0), jnp.float32(-1.0))


LANES = jnp.array([1.0, 0.0])


def looped(x: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, guarded(c[1])), (0, x))[1]


def over(c: Any, t: Any) -> Any:
    return c / t, c


@pytest.mark.parametrize("wrap", [lambda f: f, jit], ids=["eager", "jit"])
@pytest.mark.parametrize("run,body,code,primitive", [
    (lambda: anima.grad(looped)(0.0), guarded, "jnp.sqrt", "mul"),
    (lambda: anima.vmap(anima.grad(looped))(LANES), guarded, "jnp.sqrt", "mul"),
    (lambda: anima.vmap(lambda p, x: lax.cond(p > 0, branch, lambda x: x, x))(LANES, LANES - 2), branch, "jnp.log",
     "log"),
    (lambda: lax.map(branch, LANES - 1, batch_size=2), branch, "jnp.log", "log"),
    (lambda: anima.vmap(lambda x: lax.scan(over, x, jnp.zeros(2))[0])(0 * LANES), over, "c / t", "div"),
    (lambda: lax.scan(lambda c, _: (lax.fori_loop(0, 2, lambda i, d: branch(d) - 1, c), None), 1.0, length=2),
     branch, "jnp.log", "log"),
    (lambda: lax.switch(2, [lambda x: x, lambda x: x, branch], -1.0), branch, "jnp.log", "log"),
], ids=["grad-while", "vmap-grad-while", "vmap-cond", "map", "vmap-scan", "nested", "switch"])
def test_inside_loops_and_branches(debug_nans: None, wrap: Any, run: Any, body: Any, code: str,
                                   primitive: str) -> None:
    message = blamed(wrap(run))
    assert f"encountered in {primitive}:" in message
    assert f"test_debugging.py:{line(body, code)}, in {body.__name__}:" in message, message


def test_lanes_that_do_not_take_a_branch_are_not_blamed(debug_nans: None) -> None:
    x = jnp.array([-1.0, 1.0])
    f = anima.vmap(lambda x: lax.cond(x > 0, branch, lambda x: x, x))
    np.testing.assert_array_equal(f(x), [-1.0, 0.0])
    np.testing.assert_array_equal(jit(f)(x), [-1.0, 0.0])


@pytest.mark.parametrize("name", ["JAX_DEBUG_NANS", "ANIMA_DEBUG_NANS"])
def test_the_environment_variable(name: str) -> None:
    code = "import anima.numpy as jnp; jnp.divide(0., 0.)"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, name: "True"}, capture_output=True,
                          text=True)
    assert "FloatingPointError: invalid value (nan) encountered in div" in done.stderr


def test_infinities() -> None:
    with anima.debug_infs(True):
        assert "(inf) encountered in div" in blamed(jit(lambda x: lax.fori_loop(0, 3, lambda i, c: c / 0, x)), 1.0)
    assert np.isinf(jit(lambda x: x / 0)(1.0))


# ---------------------------------------------------------------- prints


def test_print_shows_the_tracer_and_debug_print_the_value(capsys: pytest.CaptureFixture[str]) -> None:
    @jit
    def f(x: Any) -> Any:
        print("tracing", x)
        anima.debug.print("running {}", x)
        return x + 1

    for k in range(2):
        assert f(k) == k + 1
    assert capsys.readouterr().out.splitlines() == [
        "tracing Traced<ShapedArray(int32[], weak_type=True)>with<DynamicJaxprTrace(level=1/0)>",
        "running 0", "running 1"]


# ---------------------------------------------------------------- leaked tracers


BOX: list[Any] = []


def leaking_step(c: Any, x: Any) -> Any:
    z = c * x
    BOX.append(z)
    return z, None


def leaking_body(c: Any) -> Any:
    z = c + 1
    BOX.append(z)
    return z


@pytest.fixture(autouse=True)
def empty_box() -> Iterator[None]:
    BOX.clear()
    yield
    BOX.clear()


@pytest.mark.parametrize("loop,body,code,by", [
    (lambda x: lax.scan(leaking_step, x, jnp.arange(3.0))[0], leaking_step, "c * x", "scan"),
    (lambda x: lax.while_loop(lambda c: c < 3, leaking_body, x), leaking_body, "c + 1", "while_loop"),
    (lambda x: lax.cond(x < 3, leaking_body, lambda c: c, x), leaking_body, "c + 1", "cond"),
    (lambda x: jit(leaking_body)(x), leaking_body, "c + 1", "jit"),
], ids=["scan", "while", "cond", "jit"])
def test_a_tracer_out_of_a_body(loop: Any, body: Any, code: str, by: str) -> None:
    def outer(x: Any) -> Any:
        out = loop(x)
        return out + BOX[-1]

    for run in (jit(outer), outer):
        with pytest.raises(anima.errors.UnexpectedTracerError) as caught:
            run(1.0)
        message = str(caught.value)
        assert f"It was made at test_debugging.py:{line(body, code)}, in {body.__name__}:" in message, message
        assert f"tracing the function {body.__name__} at {__file__}:" in message and f" for {by}." in message
        assert f"It was used at test_debugging.py:{line(outer, 'BOX[-1]')}, in outer:" in message


def test_an_argument_and_its_name() -> None:
    jit(lambda first, second: (BOX.append(second), first)[1])(1.0, 2.0)
    message = "It was the argument second of the function <lambda>"
    for use in (lambda: jnp.sin(BOX[0]), lambda: float(BOX[0]), lambda: bool(BOX[0]), lambda: jit(lambda: BOX[0])()):
        with pytest.raises(anima.errors.UnexpectedTracerError, match=message):
            use()


@pytest.mark.parametrize("transform,made", [
    (jit, "It was made at test_debugging.py:"), (anima.grad, "while a function was being differentiated"),
    (lambda f: lambda x: anima.vmap(f)(jnp.stack([x, x])), "while a function was being mapped by vmap"),
    (lambda f: jit(lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0]), "for scan.")],
    ids=["jit", "grad", "vmap", "scan"])
def test_checking_leaks(transform: Any, made: str) -> None:
    class Model:
        state: Any = None

    model = Model()

    def f(x: Any) -> Any:
        model.state = x * 2
        return x

    with anima.checking_leaks(), pytest.raises(anima.errors.UnexpectedTracerError, match="Leaked trace") as caught:
        transform(f)(1.0)
    assert "It is still held by the attribute `state` of an object of class Model." in str(caught.value)
    assert made in str(caught.value)


@pytest.fixture
def nothing_frozen() -> Iterator[None]:
    """What `gc.freeze` has put aside is not found by what refers to it."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("nothing_frozen")
def test_who_holds_a_leak() -> None:
    message = r"held by an element of a list, the global `BOX` of .*test_debugging"
    with anima.checking_leaks(), pytest.raises(anima.errors.UnexpectedTracerError, match=message):
        jit(leaking_body)(1.0)


def test_nothing_leaks_from_clean_programs() -> None:
    def loss(x: Any) -> Any:
        y = jnp.sin(x)
        return lax.scan(lambda c, v: (c * v + y, c), x, jnp.arange(3.0))[0]

    with anima.checking_leaks():
        for f in (jit(loss), jit(anima.grad(loss)), anima.grad(jit(loss)), jit(anima.hessian(loss)), anima.jacfwd(loss),
                  anima.grad(anima.checkpoint(loss)), lambda x: anima.vmap(loss)(x * jnp.ones(2)),
                  jit(lambda x: lax.cond(x > 0, loss, lambda x: x, x)),
                  lambda x: lax.while_loop(lambda c: c < 3, lambda c: c + 1, x)):
            f(1.0)
