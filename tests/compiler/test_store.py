"""Compiled code on the disk: no file is taken for what it is not, and nothing that is wrong with a disk is an error."""

from __future__ import annotations

import ctypes
import logging
import os
import pathlib
import random
import stat
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from anima.compiler.machine import folder as folders, native, store
from anima.compiler.machine.folder import Folder, Refused
from anima.config import compilation_cache_dir, compilation_cache_max_size, enable_compilation_cache
from anima.core.format import sealed

DATA = bytes(range(256)) * 3
KEY, OTHER = "a" * 64, "b" * 64
TWICE = "define i64 @twice(i64 %x) { %y = shl i64 %x, 1  ret i64 %y }"


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> Folder:
    made = Folder(str(tmp_path / "folder"))
    made.put(KEY, DATA)
    return made


def file_of(folder: Folder, key: str = KEY) -> pathlib.Path:
    return pathlib.Path(folder.path) / (key + folders.SUFFIX)


def got(folder: Folder, key: str = KEY) -> bytes | None:
    found = folder.get(key)
    return None if found is None else bytes(found)


# One folder ----------------------------------------------------------------------------------------


def test_what_is_put_is_there_and_private(folder: Folder) -> None:
    assert got(folder) == DATA and got(folder, OTHER) is None
    folder.put(KEY, b"")
    assert got(folder) == b""
    assert [e.name for e in folder.entries()] == os.listdir(folder.path) == [KEY + folders.SUFFIX]
    if os.name == "posix":
        assert stat.S_IMODE(os.stat(folder.path).st_mode) == 0o700
        assert stat.S_IMODE(file_of(folder).stat().st_mode) == 0o600


def test_a_file_that_is_not_whole_is_none_and_goes(folder: Folder) -> None:
    file = file_of(folder)
    content = file.read_bytes()
    damaged = [content[:length] for length in range(0, len(content), 7)]
    damaged += [content[:k] + bytes([content[k] ^ 1]) + content[k + 1:] for k in range(0, len(content), 5)]
    damaged += [content + b"\0", sealed(b"ANIMAOBJ", 1, KEY.encode() + DATA), sealed(folders.MAGIC, 1, DATA)]
    for bad in damaged:
        file.write_bytes(bad)
        assert got(folder) is None and not file.exists()
        folder.put(KEY, DATA)
    assert got(folder) == DATA


def test_a_file_of_another_key_is_none(folder: Folder) -> None:
    file_of(folder).rename(file_of(folder, OTHER))
    assert got(folder, OTHER) is None and got(folder) is None


def test_a_huge_file_is_not_read(folder: Folder) -> None:
    with open(file_of(folder), "r+b") as file:
        file.truncate(1 << 40)  # of holes
    assert got(folder) is None and not file_of(folder).exists()


posix = pytest.mark.skipif(os.name != "posix", reason="owners and modes are those of POSIX")


@posix
@pytest.mark.parametrize("mode", [0o722, 0o770, 0o777, 0o1777])
def test_a_folder_that_others_may_write_to_is_refused(folder: Folder, mode: int) -> None:
    os.chmod(folder.path, mode)
    for use in (lambda: folder.get(KEY), lambda: folder.put(KEY, DATA), folder.check):
        with pytest.raises(Refused, match="others may write to"):
            use()
    os.chmod(folder.path, 0o755)
    assert got(folder) == DATA


@posix
@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_to_is_refused(folder: Folder, mode: int) -> None:
    os.chmod(file_of(folder), mode)
    with pytest.raises(Refused, match="others may write to"):
        folder.get(KEY)
    assert folder.check() == (0, 1) and folder.entries() == []


@posix
def test_what_is_another_users_is_refused(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    if mine:  # root's is anybody's to use
        with pytest.raises(Refused, match="another user's"):
            folder.get(KEY)
        return
    os.chown(folder.path, 1234, -1)
    with pytest.raises(Refused, match="another user's"):
        folder.get(KEY)
    os.chown(folder.path, 0, -1)
    os.chown(file_of(folder), 1234, -1)
    with pytest.raises(Refused, match=r"another user's \(number 1234\)"):
        folder.get(KEY)


@posix
def test_links_and_pipes_are_no_files(folder: Folder, tmp_path: pathlib.Path) -> None:
    file = file_of(folder)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        folder.get(KEY)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(Refused, match="plain file"):
        folder.get(KEY)
    folder.put(KEY, DATA)
    assert got(folder) == DATA and file.is_file()


def test_the_oldest_go(folder: Folder) -> None:
    names = [KEY]
    for k in range(5):
        names.append(str(k) * 64)
        folder.put(names[-1], DATA)
    for age, name in enumerate(reversed(names)):
        os.utime(file_of(folder, name), (time.time() - 100 * age,) * 2)
    assert got(folder, names[0]) == DATA  # and is the newest now
    size = folders.on_disk(file_of(folder).stat().st_size)
    assert folder.trim(3 * size + 1) == 3 * size
    assert {e.name.removesuffix(folders.SUFFIX) for e in folder.entries()} == {names[0], *names[-2:]}


def test_what_stopped_writers_left_goes(folder: Folder) -> None:
    old, new = (pathlib.Path(folder.path) / (folders.PART + name) for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(DATA)
    os.utime(old, (time.time() - 1e5,) * 2)
    folder.trim(1 << 30)
    assert not old.exists() and new.exists() and got(folder) == DATA


def test_many_writers_and_readers(tmp_path: pathlib.Path) -> None:
    """Threads of two processes write the same keys: who reads finds nothing, or all of it."""
    code = """
import sys, threading
from anima.compiler.machine.folder import Folder
folder, wrong = Folder(sys.argv[1]), []
def work():
    for k in range(200):
        folder.put(str(k % 5) * 64, bytes([k % 5]) * 5000)
        found = folder.get(str(k % 3) * 64)
        if found is not None and bytes(found) != bytes([k % 3]) * 5000:
            wrong.append(k)
        if k % 50 == 49:
            folder.trim(12000)
threads = [threading.Thread(target=work) for _ in range(3)]
for t in threads: t.start()
for t in threads: t.join()
assert not wrong
"""
    running = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "both")]) for _ in range(2)]
    assert [p.wait(timeout=120) for p in running] == [0, 0]
    assert not [name for name in os.listdir(tmp_path / "both") if name.startswith(folders.PART)]


# The store -----------------------------------------------------------------------------------------


def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts compiled from now on."""
    texts: list[str] = []
    original = native.compile_object

    def compile_object(text: str, *args: Any, **kwargs: Any) -> bytes:
        texts.append(text)
        return original(text, *args, **kwargs)

    monkeypatch.setattr(native, "compile_object", compile_object)
    return texts


def twice(module: native.Module) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(module.address("twice"))(21)


def test_code_is_compiled_once(on_disk: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = compiled(monkeypatch)
    for _ in range(3):
        assert twice(native.load(TWICE)) == 42
    assert len(texts) == 1
    native.load(TWICE, level=0)
    native.load(TWICE + "\n")
    assert len(texts) == 3


@pytest.mark.parametrize("data", [b"", b"an object of nothing"])
def test_what_does_not_link_is_compiled_again(on_disk: pathlib.Path, monkeypatch: pytest.MonkeyPatch,
                                              data: bytes) -> None:
    native.load(TWICE)
    store.flush()
    (path,) = on_disk.iterdir()
    key = path.name.removesuffix(folders.SUFFIX)
    Folder(str(on_disk)).put(key, data)
    texts = compiled(monkeypatch)
    assert twice(native.load(TWICE)) == 42 and texts == [TWICE]
    assert twice(native.load(TWICE)) == 42 and texts == [TWICE]


def test_keys_say_all_that_made_them(on_disk: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [store.key("a"), store.key("a", ""), store.key("", "a"), store.key("b"), store.key(b"a", b"b"),
            store.key("ab"), store.key("a", "b", "")]
    store._maker.cache_clear()
    monkeypatch.setattr(store, "_cpu", lambda: ["another"])
    keys.append(store.key("a"))
    store._maker.cache_clear()
    monkeypatch.undo()
    monkeypatch.setattr(store, "_list", lambda root, prefix, found: found.append("other sources"))
    keys.append(store.key("a"))
    store._maker.cache_clear()
    monkeypatch.undo()
    assert len({*keys}) == len(keys) and None not in keys


def test_sources_are_known_by_when_they_changed(tmp_path: pathlib.Path) -> None:
    def listed() -> list[str]:
        found: list[str] = []
        store._list(str(tmp_path), "", found)
        return found

    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "a.py").write_text("x = 1")
    (tmp_path / "part" / "a.txt").write_text("no source")
    seen = [listed()]
    assert len(seen[0]) == 1
    now = (tmp_path / "part" / "a.py").stat()
    (tmp_path / "part" / "a.py").write_text("x = 2")
    os.utime(tmp_path / "part" / "a.py", ns=(now.st_atime_ns, now.st_mtime_ns))
    seen.append(listed())
    (tmp_path / "part" / "a.py").rename(tmp_path / "part" / "b.py")
    seen.append(listed())
    assert seen[0] != seen[1] != seen[2]


def breaks(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(folders.os, name, fail)


@pytest.mark.parametrize("how", [
    lambda m, folder: breaks(m, "replace", 28),                    # no space left on the device
    lambda m, folder: breaks(m, "makedirs", 30),                   # a file system that is read-only
    lambda m, folder: folder.parent.joinpath("cache").write_text("in the way"),
    lambda m, folder: (folder.mkdir(), folder.chmod(0o777)),
], ids=["full", "read-only", "in the way", "of others"])
def test_a_folder_that_cannot_be_used_is_one_line_of_the_log(
        on_disk: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
        how: Callable[..., Any]) -> None:
    how(monkeypatch, on_disk)
    with caplog.at_level(logging.INFO, "anima"):
        for k in range(3):
            assert twice(native.load(TWICE + " " * k)) == 42
            store.flush()
    (line,) = caplog.messages
    assert "The cache of compiled programs in" in line and str(on_disk) in line and "is not " in line
    assert not on_disk.is_dir() or not os.listdir(on_disk)


def test_a_folder_that_is_only_read(on_disk: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native.load(TWICE)
    store.flush()
    breaks(monkeypatch, "replace", 30)
    native.load(TWICE + " ")
    store.flush()
    texts = compiled(monkeypatch)
    assert twice(native.load(TWICE)) == 42 and not texts and len(list(on_disk.iterdir())) == 1


def test_where_the_folder_is(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    with enable_compilation_cache(True), compilation_cache_dir(None):
        monkeypatch.delenv("ANIMA_CACHE_DIR", raising=False)
        if sys.platform != "win32":
            monkeypatch.setenv("HOME", str(tmp_path))
            monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
            assert store.location() == str(tmp_path / ".cache" / "anima")
            monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
            assert store.location() == str(tmp_path / ".cache" / "anima")
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
            assert store.location() == str(tmp_path / "xdg" / "anima")
        monkeypatch.setenv("ANIMA_CACHE_DIR", str(tmp_path / "ours"))
        assert store.location() == str(tmp_path / "ours")
        with compilation_cache_dir(str(tmp_path / "option")):
            assert store.location() == str(tmp_path / "option")
        with enable_compilation_cache(False):
            assert store.location() is None and store.key("a") is None and store.read(KEY) is None


def test_there_is_no_more_than_fits(on_disk: pathlib.Path) -> None:
    with compilation_cache_max_size(20_000):
        for k in range(30):
            store.write(f"{k:064}", bytes(1500))
        store.write(OTHER, bytes(30_000))
        store.flush()
    files = list(on_disk.iterdir())
    assert 0 < sum(folders.on_disk(f.stat().st_size) for f in files) <= 20_000
    assert f"{29:064}{folders.SUFFIX}" in [f.name for f in files] and OTHER + folders.SUFFIX not in [
        f.name for f in files]


@pytest.mark.parametrize("before", [0, 9, 40])
def test_what_earlier_processes_left_counts(on_disk: pathlib.Path, before: int) -> None:
    """After every write there is no more than fits, from the first on; and no less is kept than that."""
    for k in range(before):
        Folder(str(on_disk)).put(f"{k:064}", bytes(1500))
    with compilation_cache_max_size(20_000):
        for k in range(100, 118):
            store.write(f"{k:064}", bytes(1500))
            store.flush()
            sizes = [folders.on_disk(f.stat().st_size) for f in on_disk.iterdir()]
            assert sum(sizes) <= 20_000 < sum(sizes) + 2 * max(sizes) or len(sizes) == before + k - 99
            assert store.read(f"{k:064}") is not None


def test_folders_are_looked_through_once_for_a_part_of_their_size(on_disk: pathlib.Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """A full one takes a second to look through: not every process does that, nor any at every write."""
    looks = []
    monkeypatch.setattr(Folder, "trim", lambda self, largest: looks.append(largest))
    monkeypatch.setattr(store.secrets, "randbelow", random.Random(7).randrange)
    with compilation_cache_max_size(400 * 4096):
        for k in range(2000):
            store.write(f"{k:064}", bytes(1500))
        store.flush()
    expected = 2000 * store.LOOKS / 400
    assert 0.7 * expected < len(looks) < 1.3 * expected
    looks.clear()
    with compilation_cache_max_size(-1):
        for k in range(20):
            store.write(f"{k:064}", bytes(1500))
        store.flush()
    assert not looks


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_writes_too(on_disk: pathlib.Path) -> None:
    store.write(KEY, DATA)
    store.flush()
    child = os.fork()
    if not child:
        store.write(OTHER, DATA)
        store.flush()
        os._exit(0)
    os.waitpid(child, 0)
    assert bytes(store.read(OTHER) or b"") == DATA


def test_what_is_still_to_be_written_is_there_for_its_reader(on_disk: pathlib.Path,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    original = store._put
    monkeypatch.setattr(store, "_put", lambda *args: (go.wait(10), original(*args)))
    store.write(KEY, DATA)
    threading.Timer(0.05, go.set).start()
    assert bytes(store.read(KEY) or b"") == DATA


def test_where_there_is_no_memory_the_next_file_is_written(on_disk: pathlib.Path,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(store, "_put", fails)
        store.write(KEY, DATA)
        store.flush()
    store.write(OTHER, DATA)
    store.flush()
    assert store.read(KEY) is None
    assert bytes(store.read(OTHER) or b"") == DATA


def test_after_an_interrupt_files_are_written(on_disk: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "_writer", store._FileWriter())
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(threading.Thread, "start", interrupted)
        store.write(KEY, DATA)
    store.write(OTHER, DATA)
    store.flush()
    assert store.read(KEY) is None
    assert bytes(store.read(OTHER) or b"") == DATA


def test_reading_takes_as_much_memory_as_the_file(folder: Folder) -> None:
    folder.put(KEY, DATA)
    tracemalloc.start()
    try:
        folder.get(KEY)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
