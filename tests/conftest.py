"""What all tests share: each starts, and must end, with the options of `anima.config` as they were, and draws
random numbers of its own.

Compiled programs are checked as they are made and as they run (`ANIMA_CHECK=2`), but where a test asks for
`unchecked`, and where the environment says otherwise: `ANIMA_CHECK=0 python3 run.py test` is as users run it.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator

import hypothesis
import numpy as np
import pytest

import anima

os.environ.setdefault("ANIMA_CHECK", "2")

# Deadlines measure the machine, not the code; the same examples every run keep failures repeatable.
hypothesis.settings.register_profile("anima", deadline=None, derandomize=True, max_examples=50, print_blob=True)
hypothesis.settings.load_profile("anima")


@pytest.fixture(autouse=True)
def options_unchanged() -> Iterator[None]:
    """Fails a test that leaves an option changed, and puts the option back."""
    before = dict(anima.config.values)
    yield
    after = dict(anima.config.values)
    changed = [name for name in before if before[name] != after[name]]
    for name in changed:
        anima.config.update(name, before[name])
    assert not changed, f"the test left options changed: {changed}"


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
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test of where memory lies, or of what a call costs: as users run it."""
    monkeypatch.setenv("ANIMA_CHECK", "0")
