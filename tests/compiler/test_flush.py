"""Programs in which values decay make 0 of results below the least normal number; others, operands and what is called
do not."""

from __future__ import annotations

import platform
import threading
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.config import config, enable_x64

TINY = np.float32(2e-38)
pytestmark = pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="a mode of x86")


def halved(x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, x: x * 0.5, x)


@pytest.mark.parametrize("size", [1, 2, 3, 17, 100, 1_000_000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_decays_in_a_loop_ends_at_zero(dtype: str, size: int) -> None:
    """On all threads."""
    with enable_x64(True):
        x = np.full(size, 3 * np.finfo(dtype).tiny, dtype)
        found = np.asarray(anima.jit(halved)(x))
    assert found.dtype == dtype and not found.any()


@pytest.mark.parametrize("loop", [
    lambda x: lax.scan(lambda c, _: (c * 0.5, c * 0.25), x, None, length=3),
    lambda x: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 0.5), (0, x))[1],
    lambda x: anima.vmap(lambda x: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 0.5), (0, x))[1])(x),
    lambda x: anima.jit(halved)(x + 0.0)])
def test_every_kind_of_loop(loop: Any) -> None:
    first = anima.tree.leaves(anima.jit(loop)(np.full(17, TINY)))[0]
    assert not np.asarray(first).any()


@pytest.mark.parametrize("tail", [
    lambda x: jnp.exp(x - 95),
    lambda x: anima.nn.sigmoid(x - 88), lambda x: anima.nn.softmax(jnp.array([0.0, -95.0]) + x[0])[1:],
    lambda x: anima.vmap(lambda x: anima.lax.erfc(x + 9.5))(x)])
@pytest.mark.parametrize("size", [1, 17, 1_000_000])
def test_tails_of_exponentials_end_at_zero(size: int, tail: Any) -> None:
    x = np.full(size, TINY)
    assert not np.asarray(anima.jit(tail)(x)).any()
    with config.option("flush_subnormals")(False):
        assert np.asarray(anima.jit(tail)(x)).all()


def test_other_programs_have_all_results() -> None:
    x = np.full(17, TINY)
    np.testing.assert_array_equal(anima.jit(lambda x: x * 0.125)(x), x * np.float32(0.125))
    assert np.asarray(anima.jit(lambda x: jnp.tan(x * 0.125) + jnp.log1p(x * 0.125))(x)).all()
    for f in (lambda x: jnp.exp2(x - 140), lambda x: jnp.power(x + 1e-10, 4.0), lambda x: jnp.ldexp(x + 1, -130)):
        assert np.asarray(anima.jit(f)(x)).all()


def test_operands_may_be_subnormal() -> None:
    x = np.full(17, 1e-40, np.float32)
    found = anima.jit(lambda x: lax.fori_loop(0, 1, lambda _, y: y + x * 2.0**40, jnp.zeros(17)))(x)
    np.testing.assert_array_equal(found, x * np.float32(2.0**40))


def test_it_can_be_turned_off() -> None:
    x = np.full(17, TINY)
    with config.option("flush_subnormals")(False):
        np.testing.assert_array_equal(anima.jit(halved)(x), x * np.float32(0.125))
    assert not np.asarray(anima.jit(halved)(x)).any()


def test_the_mode_is_left_as_it_was() -> None:
    """After a call, in callbacks and where they raise."""
    seen = []

    def look(x: np.ndarray) -> np.ndarray:
        seen.append(np.float32(TINY) * np.float32(0.5))
        if len(seen) == 3:
            raise ValueError("enough")
        return x * np.float32(0.5)

    def step(_: Any, x: Any) -> Any:
        return anima.pure_callback(look, anima.ShapeDtypeStruct((), np.float32), x) * 0.5

    run = anima.jit(lambda x: lax.fori_loop(0, 2, step, x))
    assert float(run(np.float32(1e-37))) == 0.0  # 6e-39 by then, the half of what the callback gives
    assert TINY * np.float32(0.5) == np.float32(1e-38) and seen == [np.float32(1e-38)] * 2
    with pytest.raises(Exception, match="enough"):
        run(np.float32(1e-37)).block_until_ready()
    assert TINY * np.float32(0.5) == np.float32(1e-38)


def test_threads_of_the_pool_do_not_keep_the_mode() -> None:
    x = np.full(1_000_000, TINY)
    many = anima.jit(lambda x: x * 0.125)
    for _ in range(3):
        assert not np.asarray(anima.jit(halved)(x)).any()
        np.testing.assert_array_equal(many(x), x * np.float32(0.125))


def test_calls_from_several_threads() -> None:
    x, wrong = np.full(100_000, TINY), []

    def call(loops: bool) -> None:
        for _ in range(50):
            found = np.asarray((anima.jit(halved) if loops else anima.jit(lambda x: x * 0.125))(x))
            if found.any() == loops:
                wrong.append(loops)

    threads = [threading.Thread(target=call, args=(k % 2 == 0,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
