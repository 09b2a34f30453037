"""`python -m anima cache`."""

from __future__ import annotations

import os
import pathlib

import pytest

from anima.__main__ import main
from anima.compiler.machine import store
from anima.config import compilation_cache_dir, enable_compilation_cache


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as info:
        main(arguments)
    return int(info.value.code or 0)


def test_cache(on_disk: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cache") == 0 and "0 files, 0.0 MB of 537 MB" in capsys.readouterr().out
    for k in range(3):
        store.write(str(k) * 64, bytes(200_000))
    store.flush()
    assert run("cache", "show") == 0
    out = capsys.readouterr().out
    assert str(on_disk) in out and "3 files, 0.6 MB" in out and "used between" in out
    assert run("cache", "check") == 0 and "3 files are whole; 0 were not" in capsys.readouterr().out
    next(on_disk.iterdir()).write_bytes(b"damaged")
    assert run("cache", "check") == 1 and "2 files are whole; 1 were not" in capsys.readouterr().out
    assert run("cache", "clear") == 0 and "2 files deleted" in capsys.readouterr().out
    assert not list(on_disk.iterdir())


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_a_folder_that_is_not_safe(on_disk: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    on_disk.mkdir()
    on_disk.chmod(0o777)
    assert run("cache", "check") == 1 and "others may write to" in capsys.readouterr().err


def test_no_cache(capsys: pytest.CaptureFixture[str]) -> None:
    with enable_compilation_cache(False), compilation_cache_dir(None):
        assert run("cache", "clear") == 0
    assert "are not kept on disk" in capsys.readouterr().out


@pytest.mark.parametrize("words", [(), ("nothing",), ("cache", "nothing"), ("cache", "show", "more")])
def test_words_that_are_no_command(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 2 and "cache" in capsys.readouterr().err
