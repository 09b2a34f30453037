"""The interface of a backend: programs run on any machine that has its few methods, here one whose memory is apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import anima
from anima.compiler import driver
from anima.compiler.machine.backend import Backend, LoadedCode
from anima.compiler.machine.target import Target
from anima.core.avals import Shape
from anima.runtime import cpu
from anima.runtime.executable import Executable, compile_program
from tests.compiler import results
from tests.compiler.stages import lowered


class Far:
    """Memory that is no array."""

    def __init__(self, like: np.ndarray) -> None:
        self.there = like.copy()


class Apart:
    """A machine that reaches nothing but memory of its own; it runs on this CPU, as no other is here."""

    def __init__(self) -> None:
        self.near = cpu.here()
        self.done: list[str] = []

    @property
    def target(self) -> Target:
        return self.near.target

    def load(self, texts: Sequence[str], shared: int) -> tuple[LoadedCode, ...]:
        self.done.append("load")
        return self.near.load(texts, shared)

    def entry(self, code: Sequence[LoadedCode]) -> int:
        return self.near.entry(code)

    def allocator(self, nbytes: int) -> Callable[[Shape, np.dtype], Any]:
        return lambda shape, dtype: Far(np.empty(shape, dtype))

    def copy_in(self, array: np.ndarray) -> Any:
        self.done.append("in")
        return Far(array)

    def copy_out(self, memory: Any) -> np.ndarray:
        self.done.append("out")
        return memory.there.copy()

    def address(self, memory: Any) -> int:
        return memory.there.ctypes.data

    def launch(self, entry: int, addresses: Sequence[int], scratch: int, parallel: bool) -> None:
        self.done.append("launch")
        self.near.launch(entry, addresses, scratch, parallel)

    def caller(self, entry: int, *described: Any) -> None:
        return None


SAMPLE = list(results.PROGRAMS)[::12]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", SAMPLE)
def test_programs_run_on_a_machine_with_memory_of_its_own(name: str) -> None:
    fun, args = results.PROGRAMS[name]
    leaves, tree = anima.tree.flatten(anima.device_put(args))
    arrays = [np.asarray(x) for x in leaves]
    loops = lowered(lambda *xs: anima.tree.leaves(fun(*anima.tree.unflatten(tree, xs))), *arrays).loops
    flat = [x.reshape(-1) for x in arrays]
    want = compile_program(loops)([x.copy() for x in flat])
    apart: Backend = Apart()
    got = Executable(loops, driver.assemble(loops, apart), apart)(flat)
    assert [x.tobytes() for x in got] == [x.tobytes() for x in want]


@pytest.mark.usefixtures("unchecked")
def test_what_happens_in_a_call() -> None:
    driver.cache.clear()
    apart = Apart()
    loops = lowered(lambda x: x * 2.0 + np.float32([1, 2, 3, 4]), np.ones(4, np.float32)).loops
    made = Executable(loops, driver.assemble(loops, apart), apart)
    assert apart.done == ["load", "in"], "the code, and one constant"
    for _ in range(2):
        apart.done.clear()
        x = np.arange(4, dtype=np.float32)
        np.testing.assert_array_equal(made([x])[0], x * 2 + [1, 2, 3, 4])
        assert apart.done == ["in", "launch", "out"]


@pytest.mark.usefixtures("unchecked")
def test_memory_that_is_given_over_stays_there() -> None:
    apart = Apart()
    loops = lowered(lambda x: x * 2.0, np.ones(4, np.float32), donated=(0,)).loops
    made = Executable(loops, driver.assemble(loops, apart), apart)
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(made([x])[0], [0, 2, 4, 6])
    np.testing.assert_array_equal(x, [0, 1, 2, 3])
    assert made.memory_analysis()["alias_size_in_bytes"] == 16
