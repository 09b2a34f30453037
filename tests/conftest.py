"""What all tests share: each starts, and must end, with the options of `anima.config` as they were, and draws
random numbers of its own.

Compiled programs are checked as they are made and as they run (`ANIMA_CHECK=2`), but where a test asks for
`unchecked`, and where the environment says otherwise: `ANIMA_CHECK=0 python3 run.py test` is as users run it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest

import anima
from anima.compiler.machine import store
from anima.core import device

os.environ.setdefault("ANIMA_CHECK", "2")
# What is on the user's disk is not asked, and not written to, but where a test asks for a folder of its own.
os.environ["ANIMA_ENABLE_COMPILATION_CACHE"] = "0"
anima.config.update("anima_enable_compilation_cache", False)

# Tests start hundreds of processes, half of whose time would go into compiling the same modules. Where no bytecode is
# wanted beside the sources, it is in a folder of its own.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.pycache_prefix = os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(__file__).parents[1] / "build/bytecode"))

# What a shell starts in the background ignores Ctrl-C, and so would the processes that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Deadlines measure the machine, not the code; the same examples every run keep failures repeatable.
hypothesis.settings.register_profile("anima", deadline=None, derandomize=True, max_examples=50, print_blob=True)
hypothesis.settings.load_profile("anima")


ECOSYSTEM = Path(__file__).parent / "ecosystem"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out the programs written for JAX unless they are asked for, alone: they run under JAX's defaults."""
    if collection_path != ECOSYSTEM:
        return None
    asked = [Path(config.invocation_params.dir, name.partition("::")[0]).resolve() for name in config.args]
    return not all(path.is_relative_to(ECOSYSTEM) for path in asked)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What 40,000 tests are made of is no garbage: to look through it takes a second each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        put_aside()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Nor is what is in the caches after a test, of which there is more with each."""
    before = gc.get_stats()[2]["collections"]
    done = yield
    if gc.get_stats()[2]["collections"] > before:
        put_aside()
    return done


def put_aside() -> None:
    """Has collections of garbage look at what is made from now on: not at what there is, most of which stays."""
    gc.collect()
    gc.freeze()


OPTIONS = {name: anima.config.option(name) for name in anima.config.values if name.startswith("anima_")}


@pytest.fixture(autouse=True)
def options_unchanged() -> Iterator[None]:
    """Fails a test that leaves an option changed, and puts the option back."""
    before = [option.value for option in OPTIONS.values()]
    yield
    changed = {name: old for (name, option), old in zip(OPTIONS.items(), before, strict=True) if option.value != old}
    for name, old in changed.items():
        anima.config.update(name, old)
    assert not changed, f"the test left options changed: {[*changed]}"


@pytest.fixture(autouse=True)
def on_device() -> Iterator[None]:
    """Where tests compute: on the CPU, or where `ANIMA_TEST_DEVICE=gpu` says."""
    name = os.environ.get("ANIMA_TEST_DEVICE", "")
    with anima.default_device(anima.devices(name)[0]) if name else contextlib.nullcontext():
        yield


@pytest.fixture
def eight_devices(monkeypatch: pytest.MonkeyPatch) -> list[anima.Device]:
    """The CPU shown as eight devices; how many there are is otherwise fixed for a process."""
    made = tuple(map(anima.Device, range(8)))
    monkeypatch.setattr(device, "_all", lambda: made)
    return list(made)


@pytest.fixture(autouse=True)
def random_numbers_by_test(request: pytest.FixtureRequest) -> None:
    """Seeds a module's random generators by the name of the test: its data do not depend on which ran before it."""
    seed = zlib.crc32(request.node.name.encode())
    for generator in vars(request.module).values():
        if isinstance(generator, np.random.Generator):
            generator.bit_generator.state = type(generator.bit_generator)(seed).state


@pytest.fixture
def x64() -> Iterator[None]:
    """64-bit types on for one test."""
    with anima.enable_x64(True):
        yield


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[Path]:
    """The folder that compiled code is kept in during one test."""
    folder = tmp_path / "cache"
    with contextlib.ExitStack() as after:
        for name, value in (("compilation_cache_dir", str(folder)), ("enable_compilation_cache", True)):
            after.callback(anima.config.update, f"anima_{name}", getattr(anima.config, f"anima_{name}"))
            anima.config.update(f"anima_{name}", value)
        yield folder
        store.flush()


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test of where memory lies, or of what a call costs: as users run it."""
    monkeypatch.setenv("ANIMA_CHECK", "0")
