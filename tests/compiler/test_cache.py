"""Compiled programs that are kept: which, how long, and that no file is taken for what it is not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anima.compiler import cache, driver
from anima.compiler.driver import Pass
from anima.compiler.emitting.emit import Emitted
from anima.compiler.ir.loops import Program
from anima.compiler.machine import native, objects
from anima.compiler.machine.target import Target
from anima.config import compilation_cache_dir

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
    return driver.assemble(Program(str(name), (), ()), target)


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


DATA = bytes(range(256)) * 3


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "folder" / "object.o"
    objects._write(str(path), DATA)
    return path


def test_what_is_written_is_read(file: Path) -> None:
    assert objects._read(str(file)) == DATA
    assert [f.name for f in file.parent.iterdir()] == ["object.o"]
    objects._write(str(file), b"")
    assert objects._read(str(file)) == b""


def test_a_file_that_is_not_whole_is_none(file: Path) -> None:
    content = file.read_bytes()
    for length in range(0, len(content), 7):
        file.write_bytes(content[:length])
        assert objects._read(str(file)) is None, length
    file.write_bytes(content + b"\0")
    assert objects._read(str(file)) is None
    for place in range(0, len(content), 5):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1:])
        assert objects._read(str(file)) is None, place
    assert objects._read(str(file) + ".not") is None


def test_a_folder_that_cannot_be_written_is_no_error(file: Path) -> None:
    objects._write(str(file / "inside of a file" / "object.o"), DATA)
    objects._write(str(file.parent), DATA)
    assert [f.name for f in file.parent.parent.iterdir()] == ["folder"]


def test_the_name_of_a_file_says_all_that_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = [TARGET, *(replace(TARGET, **{name: getattr(TARGET, name) + "x"})
                         for name in ("triple", "cpu", "features"))]
    digests = {objects._digest(text, target) for text in ("a", "b") for target in targets}
    monkeypatch.setattr(native, "version", lambda: "another")
    digests.add(objects._digest("a", TARGET))
    assert len(digests) == 2 * len(targets) + 1


@pytest.mark.parametrize("content", [None, b"", b"nothing", "an object of nothing"])
def test_what_does_not_load_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: Any) -> None:
    text = "define void @f() {\n  ret void\n}\n"
    with compilation_cache_dir(str(tmp_path)):
        objects.load(text, TARGET)
        (path,) = tmp_path.iterdir()
        good = path.read_bytes()
        if isinstance(content, str):
            objects._write(str(path), content.encode())
        elif content is not None:
            path.write_bytes(content)
        compiled = []
        original = native.compile_module
        monkeypatch.setattr(native, "compile_module", lambda *a, **k: compiled.append(a) or original(*a, **k))
        objects.load(text, TARGET)
        assert len(compiled) == (content is not None) and path.read_bytes() == good
