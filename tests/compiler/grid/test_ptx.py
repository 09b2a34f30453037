"""The PTX of programs for NVIDIA's GPUs: what their assembler takes, where it is installed, and LLVM in any case."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.grid.compile import compile_grid
from anima.compiler.grid.target import nvidia
from anima.compiler.machine.ptx import compile_ptx
from tests.op_records import Record
from tests.test_every_op import EACH, whole

X = np.ones((64, 128), np.float32)


@pytest.fixture(autouse=True)
def all_dtypes() -> Iterator[None]:
    """64-bit types on."""
    with anima.enable_x64(True):
        yield


def ptx_of(fun: Callable[..., Any], *args: Any, capability: tuple[int, int] = (9, 0)) -> str:
    target = nvidia(capability)
    return compile_ptx(compile_grid(anima.make_jaxpr(fun)(*args), "f", (), target).text, target)[:-1].decode()


def assemble(ptx: str, folder: Path, capability: str = "sm_90") -> None:
    assembler = shutil.which("ptxas")
    if assembler is not None:
        (folder / "f.ptx").write_text(ptx)
        done = subprocess.run([assembler, f"-arch={capability}", str(folder / "f.ptx"), "-o", str(folder / "f.cubin")],
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("record", EACH)
def test_every_operation(record: Record, tmp_path: Path) -> None:
    name = record.dtypes[0]
    fun, args = whole(record, name, [c for c in record.cases_for(name) if c.plain])
    assemble(ptx_of(fun, *args), tmp_path)


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_programs(capability: tuple[int, int], tmp_path: Path) -> None:
    def loop(x: Any) -> Any:
        return lax.fori_loop(0, 9, lambda i, x: jnp.sin(x) + jnp.roll(x, 1, 0), x)

    for fun in (anima.nn.softmax, lambda x: x.sum(), lambda x: x.T + 1, loop, anima.grad(lambda x: loop(x).sum()),
                lambda x: jnp.sort(x.ravel()), lambda x: x @ x.T):
        assemble(ptx_of(fun, X, capability=capability), tmp_path, f"sm_{capability[0]}{capability[1]}")


def test_elements_beside_each_other_are_moved_at_once() -> None:
    ptx = ptx_of(lambda x: x + 1, np.ones(1 << 20, np.float32))
    assert "ld.global.nc.v4" in ptx and "st.global.v4" in ptx


@pytest.mark.parametrize("fun", [lambda x: x + 1, lambda x: (x @ x.T, jnp.sort(x.ravel()), x.sum())])
def test_kernels_say_how_many_threads_they_have_at_most(fun: Callable[..., Any]) -> None:
    ptx = ptx_of(fun, X)
    assert ptx.count(".entry ") == len(re.findall(r"\.entry \w+\([^)]*\)\s*\.maxntid \d+", ptx)) > 0


def test_small_states_of_loops_are_near() -> None:
    ptx = ptx_of(lambda x: lax.fori_loop(0, 9, lambda i, c: jnp.tanh(c @ c + 0.1), x).sum(), X[:4, :4])
    assert "ld.shared" in ptx and "st.shared" in ptx


def test_a_shift_by_much_moves_every_bit_out() -> None:
    assert "min.u64" in ptx_of(lax.shift_left, np.ones(3, np.int64), np.full(3, 1 << 32))


def test_callbacks_ask_by_a_word_of_the_hosts_memory() -> None:
    ptx = ptx_of(lambda x: anima.pure_callback(lambda x: x, x, x), X)
    assert all(text in ptx for text in ("st.release.sys.u32", "ld.acquire.sys.u32", "fence.acq_rel.sys"))


def test_what_cannot_run_there_is_named() -> None:
    with pytest.raises(NotImplementedError, match=r"'spotrf' cannot run on a GPU yet"):
        ptx_of(jnp.linalg.cholesky, np.eye(300, dtype=np.float32))
