"""Calls of LAPACK from compiled programs: how many threads of its own it uses, as many as before afterwards."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.compiler.ir.lapack import alone
from anima.compiler.machine import fortran

svd = anima.jit(lambda x: jnp.linalg.svd(x)[1])


@pytest.fixture
def threads() -> Iterator[Any]:
    """The number of OpenBLAS's threads, 3 for the time of a test."""
    set_threads, get_threads = (ctypes.CFUNCTYPE(to, *given)(fortran.threads_routine(name)) for name, to, given in (
        ("set_num_threads", None, (ctypes.c_int,)), ("get_num_threads", ctypes.c_int, ())))
    before = get_threads()
    set_threads(3)
    if get_threads() != 3:
        pytest.skip("SciPy's LAPACK is none of OpenBLAS")
    yield get_threads
    set_threads(before)


@pytest.mark.parametrize("n", [40, 600])
def test_threads_are_as_before_afterwards(n: int, threads: Any) -> None:
    x = np.random.default_rng(0).normal(size=(n, 8)).astype("float32")
    for _ in range(2):
        np.testing.assert_allclose(svd(x), np.linalg.svd(x)[1], rtol=1e-4)
        assert threads() == 3


@pytest.mark.parametrize("n,want", [(40, 1), (600, 3)])
def test_a_call_on_small_matrices_uses_one_thread(n: int, want: int, threads: Any,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """The number is looked at from inside: where the routine would be is what counts."""
    seen: list[int] = []
    counter = ctypes.CFUNCTYPE(None)(lambda: seen.append(threads()))
    place = ctypes.cast(counter, ctypes.c_void_p).value
    address = fortran.address
    monkeypatch.setattr(fortran, "address", lambda name: place if name == "sgeev" else address(name))
    x = np.eye(n, dtype="float32")
    anima.jit(lambda x: jnp.linalg.eigvals(x) + 1).lower(x).compile()(x)
    assert seen == [want]
    assert threads() == 3


def test_which_calls_use_one_thread() -> None:
    def getrf(m: int, n: int) -> bool:
        return alone("sgetrf", (1, m, n, "a", m * n, m, "p", n, "i", 1))

    assert getrf(512, 512)
    assert getrf(100_000, 30)
    assert not getrf(520, 520)
    assert not getrf(100_000, 100)
