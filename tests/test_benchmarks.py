"""What benchmarks show, and that what they time is done when it returns."""

from __future__ import annotations

import runpy
import sys

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from benchmarks import exported, harness, libraries, refs


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


def test_programs_on_libraries_are_chosen_by_words(monkeypatch: pytest.MonkeyPatch,
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks.libraries", "neural_ode", "hmc"])
    monkeypatch.setattr(libraries, "in_process", lambda command, name: {"first": 0.25, "step": 0.001, "value": 1.0})
    monkeypatch.delenv("ANIMA_BENCH_JAX", raising=False)
    runpy.run_module("benchmarks.libraries", run_name="__main__")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[:4] for row in rows] == [["diffrax_neural_ode", "anima", "first", "250.000"],
                                         ["blackjax_hmc", "anima", "first", "250.000"]]


def test_programs_on_libraries_find_modules_that_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time of a first step is not that of compiling Anima's own modules, which the other libraries keep compiled."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    text = "import json, sys; print(json.dumps({'first': float(sys.dont_write_bytecode)}))"
    assert libraries.in_process([sys.executable, "-c", text], "optax_mlp") == {"first": 0.0}
