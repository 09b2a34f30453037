"""What benchmarks show, and that what they time is done when it returns."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from benchmarks import exported, harness, refs


def test_programs_are_chosen_by_words_that_are_given(monkeypatch: pytest.MonkeyPatch,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    """The words of the command line may be those of another command (`python -m benchmarks tools`)."""
    monkeypatch.setattr(sys, "argv", ["benchmarks", "tools"])
    monkeypatch.setattr(harness, "ROWS", [])
    monkeypatch.setattr(exported, "HAVE_JAX", False)
    monkeypatch.setattr(exported, "programs", lambda m, library: {
        name: (exported.small(m), (np.ones(100, np.float32),)) for name in ("a sine", "another")})
    for words, rows in (((), ["a sine", "another"]), (("sine",), ["a sine"])):
        exported.show(words)
        assert [line.partition(" anima")[0].strip() for line in capsys.readouterr().out.splitlines()[1:]] == rows


def test_updates_have_results_that_can_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []
    monkeypatch.setattr(anima, "block_until_ready", lambda x: (waited.append(x), x)[1])
    for run in refs.updates(anima, jnp).values():
        waited.clear()
        run()
        assert waited and all(isinstance(x, anima.Array) for x in waited)
