"""What `ANIMA_CHECK=2` sees: programs that write, or read, where they must not."""

from __future__ import annotations

import threading
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import anima
import anima.numpy as jnp
from anima.compiler import cache, driver
from anima.compiler.ir.loops import Buffer, Kernel, Local, Program, Stmt, Store
from anima.compiler.storage.buffers import ALIGNMENT, place_apart
from anima.runtime import calling, guards
from anima.runtime.executable import Executable, compile_program
from anima.runtime.guards import GuardError
from tests.compiler.loop_programs import at, copy, f, k, vector, x_at

N = 16


@pytest.fixture(autouse=True, params=["native", "slow"])
def checked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways into compiled code, of programs that break the rules of loops."""
    monkeypatch.setenv("ANIMA_CHECK", "2")
    monkeypatch.setattr(driver, "check_loops", lambda program, right: None)
    if request.param == "slow":
        monkeypatch.setattr(calling, "caller", lambda *args, **more: None)


def made(*body: Stmt, donated: bool = False) -> Executable:
    """A program of all sorts of buffers: it reads x, has temporaries t and u and a constant, and writes y and z."""
    sizes = {"t": 17, "u": N}
    offsets, arena = place_apart([(name, 4 * n, 0, 1) for name, n in sizes.items()])
    buffers = (Buffer("x", "f32", N, "input", donated=donated), Buffer("y", "f32", N, "output"),
               Buffer("z", "f32", N, "output"), Buffer("w", "f32", N, "const", np.ones(N, np.float32)),
               *(Buffer(name, "f32", n, "temp", offset=offsets[name]) for name, n in sizes.items()))
    program = Program("wrong", buffers, (Kernel("all", body),), arena)
    result = compile_program(program)
    assert (result._run is None) == (donated or calling.caller.__name__ == "<lambda>")
    return result


def every(target: str, move: int = 0, size: int = N) -> Stmt:
    return vector("j", size, Store(target, at("j", 1, move), k(2.0)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 9)), max_size=6))
def test_holes_are_what_no_temporary_has(places: list[tuple[int, int]]) -> None:
    """Temporaries may share memory: overlap, begin or end together, lie in one another."""
    buffers = tuple(Buffer(f"t{i}", "f32", n, "temp", offset=4 * first) for i, (first, n) in enumerate(places))
    used = {byte for b in buffers for byte in range(b.offset, b.offset + 4 * b.size)}
    arena = max([0, *(byte + 1 for byte in used)]) + 8
    holes = guards._holes(Program("some", buffers, (), arena))
    assert [b for begin, end, _ in holes for b in range(begin, end)] == [b for b in range(arena) if b not in used]
    for begin, _, name in holes:
        assert name == "the start" if not begin else any(b.name == name and b.offset + 4 * b.size == begin
                                                         for b in buffers)


X = np.arange(N, dtype=np.float32)


@pytest.mark.parametrize("move", (-3, -1, 0, 1, 5))
@pytest.mark.parametrize(("buffer", "size"), [("y", N), ("z", N), ("t", 17), ("u", N), ("w", N)])
def test_writes_outside(buffer: str, size: int, move: int) -> None:
    """A few elements before or behind, in whatever memory."""
    program = made(every(buffer, move, size))
    if move == 0 and buffer != "w":
        program([X])
        return
    side = "after" if move > 0 else "before"
    name = {("t", -1): "scratch memory", ("u", -1): "t"}.get((buffer, np.sign(move)), buffer)
    with pytest.raises(GuardError, match=f"wrong writes to (memory {side if name != 't' else '.*'} )?{name}"):
        program([X])


@pytest.mark.parametrize("size", (1, 5, 16, 50000))
@pytest.mark.parametrize("over", (0, 1, 4))
def test_scratch_rows(size: int, over: int) -> None:
    body = Local("row", "f32", size), vector("j", over + 1, Store("row", at("j", 1, size - 1), k(1.0)))
    program = made(*body)
    if over == 0:
        program([X])
        return
    with pytest.raises(GuardError, match="wrong writes to memory after its scratch memory row"):
        program([X])
    program_again = made(*body)
    with pytest.raises(GuardError, match="scratch memory row"):
        program_again([X])


def test_arguments_are_not_to_be_written() -> None:
    with pytest.raises(GuardError, match="wrong writes to x, which it may only read"):
        made(every("x"))([X.copy()])
    made(every("x"), donated=True)([X.copy()])


def test_memory_that_was_not_written_shows() -> None:
    y, z = made(vector("j", N - 1, Store("y", at("j"), k(2.0))),
                vector("i", N, Store("z", at("i"), x_at(at("i"), "u"))))([X])
    assert np.isnan(z).all() and np.isnan(y[-1]) and (y[:-1] == 2).all()
    local = Local("row", "f32", 8), vector("i", 8, Store("z", at("i"), f("add", x_at(at("i"), "row"), k(1.0))))
    assert np.isnan(made(*local)([X])[1][:8]).all()


def test_calls_inside_of_calls_and_on_threads() -> None:
    inner = anima.jit(lambda x: jnp.sin(x) + 1)

    @anima.jit
    def outer(x: jnp.ndarray) -> jnp.ndarray:
        y = anima.pure_callback(lambda a: np.asarray(inner(a)) + np.asarray(inner(a * 2)),
                                anima.ShapeDtypeStruct(x.shape, x.dtype), x)
        return y * 2

    x = jnp.arange(17.0)
    want = 2 * (np.sin(np.arange(17.0)) + np.sin(2 * np.arange(17.0)) + 2)
    errors: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(20):
                np.testing.assert_allclose(outer(x), want, rtol=1e-5)
        except Exception as error:
            errors.append(error)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not errors


def test_a_program_of_the_folder_of_compiled_code(on_disk: object) -> None:
    """Machine code that is loaded tells of its scratch rows, too."""
    for _ in range(2):
        cache.clear()
        with pytest.raises(GuardError, match="scratch memory row"):
            made(Local("row", "f32", 8), vector("j", 9, Store("row", at("j"), k(1.0))))([X])


def test_unchecked_programs_have_no_guards(unchecked: None) -> None:
    run = compile_program(copy(4))
    assert run._guards is None


def test_temporaries_of_one_size_lie_on_each_other() -> None:
    spans = [("a", 17, 0, 2), ("b", 17, 1, 4), ("c", 17, 3, 5), ("d", 18, 3, 5), ("e", 0, 0, 9)]
    offsets, total = place_apart(spans)
    assert offsets["a"] == offsets["c"] and len({offsets[n] for n in "abde"}) == 4
    assert all(offset % ALIGNMENT == 0 for offset in offsets.values())
    places = sorted({(offsets[n], offsets[n] + size) for n, size, _, _ in spans})
    assert all(start - end >= ALIGNMENT for (_, end), (start, _) in pairwise([*places, (total, total)]))
