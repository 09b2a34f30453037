"""Equal groups, and equal calls, stand for each other; those that are almost equal do not."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler import driver
from anima.compiler.fusing.repeats import LEAST
from anima.compiler.ir.loops import Again, Kernel

N = 60  # results, of which several make a group: enough groups for some to be equal

X = [np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4) + i for i in range(N)]
Step = Callable[[Any, int], Any]

# What is done with each of many arrays; a few of them otherwise, almost alike.
ALMOST: dict[str, Step] = {
    "equal": lambda x, i: jnp.exp(x).sum(axis=1),
    "signs of zero": lambda x, i: x * (-0.0 if i % 7 == 3 else 0.0),
    "literals": lambda x, i: (x * (2.0 if i % 7 == 3 else 3.0)).sum(axis=1),
    "axes": lambda x, i: jnp.exp(x).sum(axis=i % 7 == 3),
    "operand used twice": lambda x, i: (x * (x if i % 7 == 3 else X[i - 1])).sum(axis=1),
    "operands exchanged": lambda x, i: ((x - X[0]) if i % 7 == 3 else (X[0] - x)).sum(axis=1),
    "operations": lambda x, i: (jnp.sin if i % 7 == 3 else jnp.cos)(x).sum(axis=1),
    "results kept": lambda x, i: [y := jnp.exp(x), y.sum(axis=1)][i % 7 != 3:],
    "types": lambda x, i: x.astype("int32" if i % 7 == 3 else "float32").sum(axis=1),
    "slices": lambda x, i: x[:, i % 3: i % 3 + 2].sum(axis=1),
    "sums over columns": lambda x, i: jnp.exp(x).sum(axis=0),
    "sums in blocks": lambda x, i: jnp.repeat(jnp.exp(x), 9001, axis=0).max(axis=0 if i % 7 == 3 else (0, 1)),
    "running sums": lambda x, i: jnp.cumsum(x, axis=0 if i % 7 == 3 else 1),
    "products": lambda x, i: x.T @ (X[0] if i % 7 == 3 else X[1]),
    "longer rows": lambda x, i: jnp.concatenate([x] * (5 if i % 7 == 3 else 4), axis=1).max(axis=1),
}


def _leaves(value: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in anima.tree.leaves(value)]


@pytest.mark.parametrize("name", ALMOST)
def test_results_are_those_of_single_operations(name: str) -> None:
    def fun(xs: list[Any]) -> list[Any]:
        return [ALMOST[name](x, i) for i, x in enumerate(xs)]

    want, got = _leaves(fun([jnp.asarray(x) for x in X])), _leaves(anima.jit(fun)(X))
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(np.signbit(a[a == 0]), np.signbit(b[a == 0]))


@pytest.mark.parametrize("name, step", [
    ("types of operands", lambda x, i: (y := x[i % 7 != 3]) * y),
    ("signs of zero in parameters", lambda x, i: jnp.take(
        x[1], np.array([0, 7]), axis=0, mode="fill", fill_value=-0.0 if i % 7 == 3 else 0.0)),
])
def test_groups_that_are_almost_equal_among_many_equal_ones(name: str, step: Step) -> None:
    pairs = [(np.asarray(3 * x, np.int32), x) for x in X * 5]

    def fun(xs: list[Any]) -> list[Any]:
        return [step(x, i).max(axis=1) for i, x in enumerate(xs)]

    assert any(isinstance(s, Again) for s in driver.lower(anima.make_jaxpr(fun)(pairs)).loops.body)
    want, got = _leaves(fun(anima.tree.map(jnp.asarray, pairs))), _leaves(anima.jit(fun)(pairs))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
        np.testing.assert_array_equal(np.signbit(a), np.signbit(b))


@pytest.mark.parametrize("donated", [False, True])
def test_chains_of_equal_steps(donated: bool) -> None:
    """Temporaries and donated arrays, whose memory is shared."""
    def fun(x: Any, w: Any) -> Any:
        for _ in range(N):
            x = jnp.tanh(x @ w + x)
        return x

    w = np.eye(4, dtype=np.float32) / 2
    want = np.asarray(fun(jnp.asarray(X[0]), w))
    got = anima.jit(fun, donate_argnums=(0,) if donated else ())(jnp.asarray(X[0]), w)
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-4, atol=1e-5)


def test_equal_groups_are_lowered_once() -> None:
    loops = driver.lower(anima.make_jaxpr(lambda xs: [jnp.exp(x).sum(axis=1) for x in xs])([*X] * 5)).loops
    again = [s for s in loops.body if isinstance(s, Again)]
    assert len(again) > LEAST and sum(isinstance(s, Kernel) for s in loops.body) <= 3


def test_functions_called_often_are_those_written_in_line() -> None:
    def fun(x: Any) -> list[Any]:
        return [jnp.sin(x + i) for i in range(20)]

    many, one = anima.jit(fun)(np.float32(0.3)), anima.jit(jnp.sin)
    assert [float(y) for y in many] == [float(one(np.float32(np.float32(0.3) + i))) for i in range(20)]


LINES = {
    "products": ("a = x @ x", "b = a @ a", "return jnp.tanh(b) @ x"),
    "rows": ("a = anima.nn.softmax(x)", "b = anima.nn.softmax(a * 2)", "return anima.nn.softmax(b + 1)"),
    "sorts": ("a = jnp.sort(x, 0)", "b = jnp.sort(a + 1, 0)", "return jnp.sort(b * 2, 0) + a"),
    "loops": ("a = lax.fori_loop(0, 3, lambda i, c: c @ x, x)", "return lax.fori_loop(0, 3, lambda i, c: c @ x, a)"),
    "factors": ("a = jnp.linalg.cholesky(x @ x.T + jnp.eye(9))", "return jnp.linalg.cholesky(a @ a.T + jnp.eye(9))")}


@pytest.mark.parametrize("name", LINES)
def test_it_does_not_matter_on_which_lines_a_program_stands(name: str) -> None:
    texts = []
    for between in ("; ", "\n    ", "\n\n\n    "):
        scope: dict[str, Any] = {"jnp": jnp, "lax": lax, "anima": anima}
        exec(compile(f"def f(x):\n    {between.join(LINES[name])}\n", "lines.py", "exec"), scope)
        lowered = anima.jit(scope["f"]).lower(np.ones((9, 9), np.float32))
        stages = lowered.fused, lowered.loops, lowered.llvm
        texts.append([re.sub(r"\s*[#;].*lines\.py.*", "", str(stage)) for stage in stages])
    assert texts[0] == texts[1] == texts[2]


# ---------------------------------------------------------------- calls

Z = (np.random.default_rng(5).normal(size=(4, 12, 10)) + 1j).astype(np.complex64)


def _transform(x: Any) -> Any:
    return jnp.fft.ifft2(jnp.fft.fft2(x) * 0.5 + x)


def _in_scan(z: Any) -> Any:
    return lax.scan(lambda x, _: (jnp.tanh(jnp.real(_transform(_transform(x)))) + x, jnp.fft.fft2(x)[0]), z, None, 3)


def _in_nested_loops(z: Any) -> Any:
    def outer(x: Any, _: Any) -> Any:
        x = jnp.fft.fft2(x) / 100
        x = lax.fori_loop(0, 2, lambda _, y: jnp.fft.fft2(jnp.fft.fft2(y)) / 100, x)
        return jnp.fft.fft2(jnp.fft.fft2(x)) / 100, None
    return lax.scan(outer, z, None, 2)[0]


def _in_branches(z: Any) -> Any:
    return lax.cond(jnp.real(z[0, 0, 0]) > 0, lambda x: jnp.fft.fft2(jnp.fft.fft2(x)),
                    lambda x: jnp.fft.fft2(jnp.fft.fft2(jnp.fft.fft2(x))), z)


def _in_while(z: Any) -> Any:
    return lax.while_loop(lambda s: jnp.max(jnp.abs(s[1])) < 3000,
                          lambda s: (s[0] + 1, jnp.fft.fft2(jnp.fft.fft2(s[1]))), (0, z))


CALLS: dict[str, Callable[[Any], Any]] = {
    "beside loops": lambda z: _transform(_transform(z)),
    "scan": _in_scan,
    "nested loops": _in_nested_loops,
    "branches": _in_branches,
    "while": _in_while,
    "map": lambda z: lax.map(lambda x: _transform(_transform(x)), z),
    "map of scans": lambda z: lax.map(
        lambda x: lax.scan(lambda y, _: (_transform(_transform(y)), y[0]), x, None, 2), z),
    "operand used again": lambda z: lax.scan(
        lambda x, _: (jnp.fft.fft2(x) * 0.01 + jnp.fft.fft2(jnp.real(x) + 0j) * x, x.sum()), z, None, 2),
    "other lengths": lambda z: lax.scan(
        lambda x, _: (x + jnp.fft.fft(x)[..., :10] + jnp.fft.fft(x, 12)[..., :10]
                      + jnp.fft.fft(x[:, :10], axis=1).sum(1, keepdims=True), None), z, None, 2),
    "inverse": lambda z: lax.scan(
        lambda x, _: (jnp.fft.ifft(jnp.fft.fft(x)) + jnp.fft.fft(jnp.fft.ifft(x)), None), z, None, 2),
    "vmap": lambda z: anima.vmap(_in_scan)(z),
    "sorts": lambda z: lax.scan(lambda x, _: (jnp.sort(jnp.sort(x, 1), 2) - jnp.sort(x, 0).sum(0) / 40, jnp.sort(x, 1)),
                                jnp.tile(jnp.real(z), (1, 9, 1)), None, 2),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_in_loops_are_those_of_single_operations(name: str) -> None:
    want, got = _leaves(CALLS[name](Z)), _leaves(anima.jit(CALLS[name])(Z))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4 * float(np.abs(b).max()))


@pytest.mark.parametrize("name", ["scan", "nested loops", "map", "map of scans", "operand used again"])
def test_derivatives_of_calls_in_loops(name: str) -> None:
    def loss(z: Any) -> Any:
        return sum(jnp.sum(jnp.abs(x) ** 2) for x in anima.tree.leaves(CALLS[name](z))) * 1e-3

    want, got = anima.grad(loss)(Z), anima.jit(anima.grad(loss))(Z)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * float(np.abs(want).max()))
    donated = jnp.array(Z)
    again = anima.jit(lambda z: (z, anima.grad(loss)(z)), donate_argnums=0)(donated)[1]
    np.testing.assert_array_equal(again, got)


def test_equal_calls_in_a_loop_are_lowered_once() -> None:
    loops = anima.jit(_in_nested_loops).lower(Z).loops
    # Before, in and after the inner loop: each with a kernel for rows and one for columns.
    assert len(re.findall(r"kernel fft:\n", loops)) == 4
    assert len(re.findall(r"kernel fft: as above", loops)) == 6
