"""What reports say of compiled programs: kernels, lines, bytes, operations, times, reasons."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax, nn
from anima.api.report import Report, Row, limits
from anima.compiler.traffic import Traffic
from anima.runtime import stamps

X = np.ones((1000, 64), np.float32)
SQUARE = np.ones((64, 64), np.float32)


def report(fun: Any, *args: Any, measure: bool = False, **options: Any) -> Report:
    compiled = anima.jit(fun, **options).lower(*args).compile()
    return compiled.report(*args) if measure else compiled.report()


def only(fun: Any, *args: Any) -> Row:
    (row,) = report(fun, *args).rows
    return row


@pytest.mark.parametrize("fun, expected", [
    (lambda x: x + 1, Traffic(256_000, 256_000, 64_000)),
    (lambda x: jnp.exp(x) * x + x, Traffic(256_000, 256_000, 192_000)),    # x is loaded once
    (lambda x: x[:500], Traffic(128_000, 128_000, 0)),
    (lambda x: jnp.sum(x, 1), Traffic(256_000, 4_000, 64_000)),
    (lambda x: nn.softmax(x), Traffic(256_000, 256_000, 64_000 * 5)),      # max, sub, exp, add, div
    (lambda x: x.astype("int8"), Traffic(256_000, 64_000, 0)),
    (lambda x: x @ SQUARE, Traffic(256_000 + 16_384, 256_000, 2 * 1000 * 64 * 64)),
    (lambda x: x.T, Traffic(256_000, 256_000, 0)),
    (lambda x: x[0, 0], Traffic(4, 4, 0)),
])
def test_bytes_and_operations(fun: Any, expected: Traffic) -> None:
    work = only(fun, X).work
    assert (work.read, work.written) == (expected.read, expected.written)
    assert expected.operations <= work.operations <= expected.operations * 1.2  # conversions and limits count


def test_loops_count_all_their_steps() -> None:  # of so few that none looks for an interrupt on any machine
    once, often = (report(lambda x, n=n: lax.fori_loop(0, n, lambda i, a: a[::-1] * 2 + i, x), X).rows[-1].work
                   for n in (5, 50))
    assert often.moved == 10 * once.moved
    assert often.operations == 10 * once.operations


def test_what_lanes_hold_for_all_steps_moves_once() -> None:
    once, often = (report(lambda x, n=n: lax.fori_loop(0, n, lambda i, a: a * 2 + i, x), X).rows[-1].work
                   for n in (10, 100))
    assert often.moved == once.moved
    assert often.operations == 10 * once.operations


def test_lines_and_names() -> None:
    def fun(x: Any) -> Any:
        y = jnp.tanh(x)
        return jnp.cumsum(y @ y.T, 0)

    rows = report(fun, X).rows
    first = fun.__code__.co_firstlineno
    assert [row.source.line - first for row in rows if row.source is not None] == [1, 2, 2]
    assert [row.name for row in rows] == ["tanh", "gemm", "cumsum"]
    assert rows[0].estimated is not None
    assert rows[1].estimated is None
    text = str(report(fun, X))
    assert text.startswith("fun: 3 kernels\nkernel ")
    assert f"test_report.py:{first + 1}, in fun" in text


def test_cost_analysis_counts_the_bytes_of_all_kernels() -> None:
    compiled = anima.jit(lambda x: jnp.cumsum(jnp.tanh(x) @ SQUARE, 0)).lower(X).compile()
    assert compiled.cost_analysis()["bytes accessed"] == sum(row.work.moved for row in compiled.report().rows)


@pytest.mark.parametrize("fun, reason", [
    (lambda x: jnp.tanh(x) @ x.T, "float32[1000,64], tanh at test_report.py:{}, in <lambda>: dot_general reads whole"),
    (lambda x: jnp.tanh(x @ x.T), "dot_general has a kernel or routine of its own"),
    (lambda x: jnp.sum(x, 0) * x, "reduce_sum at .*: it is not known before all that it adds up"),
    (lambda x: (jnp.tanh(x), jnp.tanh(x).T), "a later kernel needs it too|in another order"),
    (lambda x: lax.fori_loop(0, 9, lambda i, a: jnp.tanh(a) @ a, x[:64] * 0.1), "tanh at .*: dot_general reads whole"),
])
def test_why_values_are_in_memory(fun: Any, reason: str) -> None:
    memory = "\n".join(report(fun, X).memory)
    plain = re.escape(reason).replace(r"\{\}", r"\d+").replace(r"\.\*", ".*").replace(r"\|", "|")
    assert re.search(plain, memory), memory


def test_what_is_fused_is_not_in_memory() -> None:
    assert report(lambda x: nn.softmax(jnp.tanh(x) + 1), X).memory == ()


def test_equal_reasons_are_counted() -> None:
    (line,) = report(lambda x: [jnp.tanh(x + k) @ x.T for k in range(3)], X).memory
    assert line.endswith("(3 such)")


@pytest.mark.skipif(not stamps.AVAILABLE, reason="no clock that programs can read")
def test_times(unchecked: None) -> None:
    made = report(lambda x: jnp.cumsum(jnp.tanh(x) @ SQUARE, 0), X, measure=True)
    assert [row.name for row in made.rows] == ["tanh", "gemm", "cumsum"]
    for row in made.rows:
        assert row.measured is not None and 1e-7 < row.measured < 1
        assert re.fullmatch(r"\d+%", row.cells()[-1])
    assert limits().bandwidth > 1e8
    assert limits().seconds(Traffic(0, 0, 1 << 40)) > limits().seconds(Traffic(0, 0, 1 << 30)) > 0


@pytest.mark.skipif(not stamps.AVAILABLE, reason="no clock that programs can read")
def test_a_report_donates_nothing(unchecked: None) -> None:
    x = jnp.ones((1000, 64))
    assert report(lambda x: jnp.tanh(x), x, measure=True, donate_argnums=0).rows[0].measured
    assert float(x[0, 0]) == 1


def test_wrong_arguments() -> None:
    compiled = anima.jit(jnp.tanh).lower(X).compile()
    with pytest.raises(TypeError, match="Argument types differ"):
        compiled.report(X[:10])
    with pytest.raises(TypeError, match="input pytree"):
        compiled.report(X, X)


def test_in_notebooks() -> None:
    html = report(lambda x: jnp.tanh(x) @ x.T, X)._repr_html_()
    assert "<table>" in html and "&lt;lambda&gt;" in html and "dot_general reads whole arrays" in html


def test_programs_with_tapes() -> None:
    fun = anima.grad(lambda x: lax.while_loop(lambda c: c.sum() < 1e5, lambda c: c * 1.5, x).sum())
    assert report(fun, X[0]).rows


def test_a_program_that_does_nothing() -> None:
    assert str(report(lambda x: x, X)).startswith("<lambda>: ")
