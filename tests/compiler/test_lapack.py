"""Calls of LAPACK from compiled programs: how many threads of its own it uses, as many as before afterwards."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
import anima.scipy.linalg as jsl
from anima import routines
from anima.compiler.ir import lapack
from anima.compiler.ir.lapack import alone
from tests.compiler.stages import check_threads

svd = anima.jit(lambda x: jnp.linalg.svd(x)[1])


@pytest.fixture
def threads() -> Iterator[Any]:
    """The number of OpenBLAS's threads, 3 for the time of a test."""
    set_threads, get_threads = (ctypes.CFUNCTYPE(to, *given)(routines.threads_routine(name)) for name, to, given in (
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


@pytest.mark.parametrize("n,want", [(40, 1), (2100, 3)])
def test_a_call_on_small_matrices_uses_one_thread(n: int, want: int, threads: Any,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """The number is looked at from inside: where the routine would be is what counts."""
    seen: list[int] = []
    counter = ctypes.CFUNCTYPE(None)(lambda: seen.append(threads()))
    place = ctypes.cast(counter, ctypes.c_void_p).value
    address = routines.address
    monkeypatch.setattr(routines, "address", lambda name: place if name == "sgeev" else address(name))
    x = np.eye(n, dtype="float32")
    anima.jit(lambda x: jnp.linalg.eigvals(x) + 1).lower(x).compile()(x)
    assert seen == [want]
    assert threads() == 3


def test_which_calls_use_one_thread() -> None:
    def getrf(m: int, n: int) -> bool:
        return alone("sgetrf", (1, 1, m, n, "a", 0, m * n, m, "p", 0, n, "i", 0, 1))

    assert getrf(2048, 2048)
    assert getrf(100_000, 290)
    assert not getrf(2060, 2060)
    assert not getrf(100_000, 300)


SEVERAL = {
    "eig": jnp.linalg.eig, "eigh": jnp.linalg.eigh, "svd": jnp.linalg.svd, "qr": jnp.linalg.qr, "lu": jsl.lu,
    "solve": lambda x: jnp.linalg.solve(x, x[..., :2]), "cholesky": lambda x: jnp.linalg.cholesky(x @ x.mT + 100)}


@pytest.mark.parametrize("batch, n", [(2, 67), (7, 70), (65, 9), (129, 3)])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("name", SEVERAL)
def test_a_batch_on_several_threads(name: str, dtype: str, batch: int, n: int) -> None:
    """Each matrix has the bits that it has in a batch done in order; matrices that fail are theirs alone."""
    x = np.random.default_rng(0).normal(size=(batch, n, n)).astype(dtype)
    if dtype == "complex64":
        x += 1j * x.swapaxes(1, 2)
    x[0, 0, 0] = np.nan
    compiled = anima.jit(SEVERAL[name])
    check_threads(compiled, x)
    with np.errstate(all="ignore"):
        for y, z in zip(anima.tree.leaves(compiled(x)), anima.tree.leaves(compiled(x[-1:])), strict=True):
            np.testing.assert_allclose(np.abs(y[-1]), np.abs(z[0]), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("batch", [1, 2, 63, 64, 65, 1000])
@pytest.mark.parametrize("product", [1, 1000, 10**6, 10**9, 10**10])
@pytest.mark.parametrize("room", [0, 10**5, 10**9])
def test_pieces_of_a_batch(batch: int, product: int, room: int) -> None:
    """All matrices are in one piece each, and none is empty."""
    count = lapack.pieces(batch, product, room)
    size = lapack.piece(batch, count)
    assert 1 <= count <= 64 and (count - 1) * size < batch <= count * size
    assert count == 1 or count * room <= 2**25
    assert product <= 2048**3 or count == 1


def test_each_matrix_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a place to work in that no other one uses at the time."""
    seen: list[tuple[int, int]] = []
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 14)
    counter = kind(lambda *given: seen.append((given[3], given[11])))
    place = ctypes.cast(counter, ctypes.c_void_p).value
    address = routines.address
    monkeypatch.setattr(routines, "address", lambda name: place if name == "sgeev" else address(name))
    x = np.zeros((130, 20, 20), "float32")
    anima.jit(lambda x: jnp.linalg.eigvals(x) + 1).lower(x).compile()(x)
    matrices, rooms = zip(*seen, strict=True)
    assert len(set(matrices)) == len(matrices) == 130
    assert len(set(rooms)) == lapack.pieces(130, 20**3, 0) > 1


@pytest.mark.parametrize("product, want", [(4**3, 3), (100**3, 1), (routines.ALONE + 1, 3)])
def test_outside_of_compiled_code_too(product: int, want: int, threads: Any) -> None:
    with routines.one_thread(product):
        assert threads() == want
        with routines.one_thread(product):  # as another thread of Python's may
            assert threads() == want
    with pytest.raises(ZeroDivisionError), routines.one_thread(product):
        raise ZeroDivisionError
    assert threads() == 3


def test_factors_outside_of_jit_are_made_by_one_thread(threads: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    geev = routines.lapack("geev", np.float32)
    monkeypatch.setattr("anima.ops.linalg_spectral.lapack",
                        lambda *name: lambda *args, **options: seen.append(threads()) or geev(*args, **options))
    with anima.disable_jit():
        jnp.linalg.eigvals(jnp.eye(40))
    assert seen == [1] and threads() == 3
