"""Barriers stand where they must: programs for grids, thread by thread, every access looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.grid import compile
from anima.compiler.grid.compile import GridProgram, compile_grid
from anima.compiler.ir.loops import Call, Stmt, map_blocks
from anima.runtime import cuda_tapes
from anima.util import replace
from tests.compiler.grid.emulated import TARGET
from tests.compiler.grid.races import RaceError, run
from tests.op_records import Record
from tests.test_every_op import EACH, check, whole

ALONE = replace(TARGET, products=False)
rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def all_dtypes() -> Iterator[None]:
    """64-bit types on."""
    with anima.enable_x64(True):
        yield


@pytest.mark.parametrize("record", EACH)
def test_every_operation(record: Record) -> None:
    name = next((n for n in ("float32", "int32", "complex64", "bool") if n in record.dtypes), record.dtypes[0])
    fun, args = whole(record, name, [c for c in record.cases_for(name) if c.plain][:2])
    program = compile_grid(anima.make_jaxpr(fun)(*args), record.name, (), ALONE)
    for got, want in zip(run(program, args), [np.asarray(o) for o in fun(*args)], strict=True):
        check(got.reshape(want.shape), want, 2 * record.tolerance(name), record.name)


def loop(x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda i, x: jnp.sin(x) + 0.5 * jnp.roll(x, 1), x)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "loop": (loop, (20,)), "softmax": (anima.nn.softmax, (5, 9)), "sum": (lambda x: x.sum(), (7, 30)),
    "gradient": (anima.grad(lambda x: loop(x).sum()), (12,)), "sort": (jnp.sort, (66,)),
    "scatter": (lambda x: jnp.zeros(3).at[(x * 3).astype(int)].add(x), (100,)),
    "running sum": (jnp.cumsum, (70,)), "turned": (lambda x: x.T + 1, (33, 34)), "rows": (lambda x: x.std(0), (40, 3)),
    "long sum": (lambda x: x.sum(), (5000,)),
    "two": (lambda x: x / x.sum() + x[::-1], (50,)),
    "while": (lambda x: lax.while_loop(lambda x: x.sum() < 50, lambda x: x * 1.5 + 1, x), (9,))}


def program_of(name: str) -> tuple[GridProgram, np.ndarray, Any]:
    fun, shape = PROGRAMS[name]
    x = rng.uniform(0, 1, shape).astype(np.float32)
    return compile_grid(anima.make_jaxpr(fun)(x), "f", (), ALONE), x, anima.jit(fun)(x)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    program, x, want = program_of(name)
    (got,) = run(program, [x])
    np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-5, atol=1e-6)


MISSED = r"no barrier is between|store to \S+\[\d+\] of \d+"  # places that others have not counted yet are any places


def without_barriers(stmts: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    def bare(stmt: Stmt) -> Stmt:
        body = getattr(stmt, "body", None)
        return replace(stmt, body=without_barriers(body)) if body is not None else map_blocks(without_barriers, stmt)

    return tuple(bare(s) for s in stmts if not (isinstance(s, Call) and s.routine == "barrier"))


def tapes(x: Any, n: int = 5) -> Any:
    """A loop whose steps end with what is kept of them."""
    def step(c: tuple[Any, Any]) -> tuple[Any, Any]:
        return c[0] + 1, jnp.sin(c[1] * c[1].mean())

    return lax.while_loop(lambda c: c[0] < n, step, (0, x))[1]


TAPES: dict[str, Callable[..., Any]] = {
    "grow": anima.grad(lambda x: tapes(x).sum()),
    "in a loop": lambda x: lax.fori_loop(0, 2, lambda i, x: anima.grad(lambda x: tapes(x, 2).sum())(x), x),
    "branches": anima.grad(lambda x: lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, lax.cond(
        c[0] % 2 == 0, jnp.sin, lambda y: y * jnp.cos(jnp.roll(y, 1)), c[1])), (0, x))[1].sum()),
    "of tapes": anima.grad(lambda x: lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, tapes(jnp.cos(c[1]), 2)), (0, x))[1].sum())}


@pytest.mark.parametrize("name", TAPES)
def test_tapes_move_when_nobody_uses_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fun = TAPES[name]
    monkeypatch.setattr(cuda_tapes, "_LEAST", 1)
    x = rng.uniform(0, 1, 40).astype(np.float32)
    want = anima.jit(fun)(x)
    monkeypatch.setattr(cuda_tapes, "_LEAST_BYTES", 1)
    for large, blocks in ((compile.LARGE, 1), (1, 2)):
        monkeypatch.setattr(compile, "LARGE", large)
        program = compile_grid(anima.make_jaxpr(fun)(x), "f", (), replace(ALONE, triple="nvptx64-nvidia-cuda"))
        assert min(2, program.steps[0].blocks) == blocks  # type: ignore[union-attr]
        (got,) = run(program, [x])
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        bare = replace(program.program, body=without_barriers(program.program.body))
        with pytest.raises(RaceError, match="no barrier is between"):
            run(GridProgram(bare, program.text, program.steps), [x])


@pytest.mark.parametrize("name", ["loop", "gradient", "long sum", "sort", "running sum", "turned", "while"])
def test_without_barriers_there_are_races(name: str) -> None:
    program, x, _ = program_of(name)
    bare = replace(program.program, body=without_barriers(program.program.body))
    with pytest.raises(RaceError, match=MISSED):
        run(GridProgram(bare, program.text, program.steps), [x])
