"""Rows around the inside of an array, where neighbours are missing or on the other side: one kernel for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.compiler.lowering.map import LITTLE, SPARSE
from tests.compiler.stages import agree

RNG = np.random.default_rng(26)


def array(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def neighbours(x: Any) -> Any:
    """The sum of what is around each element of a torus."""
    return sum(jnp.roll(x, step, axis) for axis in range(x.ndim) for step in (-1, 1))


def differences(x: Any) -> Any:
    return anima.grad(lambda x: sum((jnp.diff(x, axis=d) ** 2).sum() for d in range(x.ndim)))(x)


def wide(x: Any) -> Any:
    """Neighbours two and three steps away: frames are several rows deep, and not alike on both sides."""
    return jnp.roll(x, 2, 0) * x + jnp.roll(x, -3, 1) - jnp.sin(jnp.roll(jnp.cos(x), (1, -1), (0, 1)))


def padded(x: Any) -> Any:
    return jnp.pad(x, [(1, 2)] * (x.ndim - 1) + [(0, 3)], constant_values=7)


def wrapped(x: Any) -> Any:
    return jnp.pad(x, [(1, 2)] + [(0, 0)] * (x.ndim - 1), mode="wrap") * 2


PROGRAMS: list[Callable[[Any], Any]] = [neighbours, differences, wide, padded, wrapped]


@pytest.mark.parametrize("shape", [(17, 16), (9, 17), (16, 8, 16), (17, 17, 17), (8, 9, 33), (3, 17, 17),
                                   (9, 10, 11, 4), (8, 8, 2, 16), (1, 20, 20), (2, 2, 40)], ids=str)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_frames_in_the_loops(program: Callable[[Any], Any], shape: tuple[int, ...]) -> None:
    agree(program, array(*shape), rtol=1e-4)


@pytest.mark.parametrize("shape", [(300, 257), (65, 64, 66), (64, 130, 65), (130, 8, 8, 16)], ids=str)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_large_arrays(program: Callable[[Any], Any], shape: tuple[int, ...]) -> None:
    x = array(*shape)
    np.testing.assert_allclose(anima.jit(program)(x), program(jnp.asarray(x)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("program", [neighbours, differences], ids=lambda f: f.__name__)
@pytest.mark.parametrize("n, kernels", [(17, 2), (48, 5), (100, 2)])
def test_one_kernel_for_frames_that_are_small_beside_the_inside(program: Callable[[Any], Any], n: int, kernels: int
                                                                ) -> None:
    rows = 2 * n + 2 * (n - 2)
    assert (rows * SPARSE <= n**3 or n**3 <= LITTLE) == (kernels == 2)
    assert str(anima.jit(program).lower(array(n, n, n)).loops).count("  kernel ") == kernels


def test_rows_that_are_turned_are_looked_at_once() -> None:
    loops = str(anima.jit(neighbours).lower(array(17, 17, 17)).loops)
    frame = loops[loops.index("  kernel "):loops.rindex("  kernel ")]
    assert frame.count("= in0[") == 8  # six neighbours, the first and the last element of the row


def test_steps_of_a_stencil_and_their_gradient() -> None:
    x = array(20, 24, 17)

    def run(x: Any) -> Any:
        step = lambda x, _: (x + 0.1 * (neighbours(x) - 6 * x), x.sum())
        x, sums = anima.lax.scan(step, x, None, length=4)
        return (x**2).sum() + sums.sum()

    with anima.disable_jit():
        value, slope = anima.value_and_grad(run)(x)
    got, gradient = anima.jit(anima.value_and_grad(run))(x)
    np.testing.assert_allclose(got, value, rtol=1e-4)
    np.testing.assert_allclose(gradient, slope, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("columns", [40, 20_000])
def test_rows_that_have_little_in_common_have_kernels_of_their_own(columns: int) -> None:
    """One for all of them would compute every row's function for each."""
    functions = [jnp.sin, jnp.cos, jnp.exp, jnp.tanh, jnp.arctan, jnp.sqrt, jnp.expm1, jnp.log1p]

    def edges(x: Any) -> Any:
        return jnp.concatenate([functions[0](x[:1]), x[1:8] * 2, functions[2](x[8:]) + jnp.tanh(x[8:])])

    for program, x in ((lambda x: jnp.stack([f(x) for f in functions]), array(columns) ** 2),
                       (edges, array(9, columns))):
        assert "select_n" not in str(anima.jit(program).lower(x).loops)
        np.testing.assert_allclose(anima.jit(program)(x), program(jnp.asarray(x)), rtol=1e-5, atol=1e-6)
