"""Compiled programs that are kept in memory: which, and how long."""

from __future__ import annotations

import ctypes
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from anima.compiler import cache, driver
from anima.compiler.driver import Pass
from anima.compiler.emitting.emit import Emitted
from anima.compiler.ir.loops import Buffer, Program
from anima.compiler.machine import native, objects
from anima.compiler.machine.target import Target
from anima.runtime.cpu import Cpu

TARGET = native.host()


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Machine code is not made. The names of the programs built, in order; the cache is empty."""
    names: list[str] = []

    def modules(texts: Sequence[str], *rest: Any) -> tuple[()]:
        names.extend(re.findall(r"<(.*)>", texts[0]))
        return ()

    monkeypatch.setattr(objects, "modules", modules)
    emit = Pass("emit", lambda program: Emitted((f"<{program.name}>",), (), False), "llvm")
    monkeypatch.setattr(driver, "to_text", lambda target: [Pass("nothing", lambda program: program, "loops"), emit])
    cache.clear()
    yield names
    cache.clear()


def get(name: str | int, target: Target = TARGET) -> Any:
    return driver.assemble(program(name), Cpu(target))


def program(name: str | int) -> Program:
    """One that has its name in what is computed, too."""
    return Program(str(name), (Buffer("x", "f32", zlib.crc32(str(name).encode()), "input"),), ())


def test_the_last_64_stay(built: list[str]) -> None:
    for n in range(64):
        get(n)
    for n in range(64):
        get(n)
    assert len(built) == 64
    get("one more")
    get(1)
    assert len(built) == 65
    get(0)  # the one not used for longest has gone
    assert built[64:] == ["one more", "0"]
    get(1)
    get(2)
    assert built[66:] == ["2"]


def test_programs_of_other_names_share_their_code(built: list[str]) -> None:
    one = get("one")
    two = driver.assemble(replace(program("one"), name="two"), Cpu(TARGET))
    assert built == ["one"] and (one.program.name, two.program.name) == ("one", "two")
    assert two.modules is one.modules and two is not one
    assert driver.assemble(replace(program("one"), name="two"), Cpu(TARGET)) is two and get("one") is one
    cache.clear()
    del one
    assert driver.assemble(replace(program("one"), name="three"), Cpu(TARGET)).program.name == "three"
    assert built == ["one", "three"]


def test_what_is_in_use_stays(built: list[str]) -> None:
    mine = get("mine")
    for n in range(100):
        get(n)
    assert get("mine") is mine and built.count("mine") == 1
    cache.clear()
    assert get("mine") is not mine and built.count("mine") == 2


def test_targets_have_programs_of_their_own(built: list[str]) -> None:
    other = replace(TARGET, features=TARGET.features + ",+other")
    assert get("p") is not get("p", other)
    assert built == ["p", "p"]


def test_without_threads_modules_are_compiled_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoThreads:
        def submit(self, *_: Any) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(objects, "_workers", NoThreads)
    texts = [f"define i64 @f{n}() {{ ret i64 {n} }}" for n in range(3)]
    made = objects.modules(texts, 0, TARGET)
    assert [ctypes.CFUNCTYPE(ctypes.c_int64)(m.address(f"f{n}"))() for n, m in enumerate(made)] == [0, 1, 2]
