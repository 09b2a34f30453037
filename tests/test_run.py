"""The project's commands: which requirements are met, which Pythons are found, what the matrix says of them."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

import run

HERE = "{}.{}".format(*sys.version_info[:2])


@pytest.mark.parametrize("version, specifiers, expected", [
    ("2.4.6", ">=2.0", True), ("2", ">=2.0.0", True), ("2.0", ">=2", True), ("1.26.4", ">=2.0", False),
    ("2.0.0rc1", ">=2.0", True), ("2.10", ">=2.9", True), ("2.1.0", ">=2.0,!=2.1.0,!=2.1.1", False),
    ("2.1.2", ">=2.0, !=2.1.0, !=2.1.1", True), ("2.1", "!=2.1.0", False), ("2.1.0", "==2.1", True),
    ("2.1.1", "==2.1", False), ("2.1.1", "==2.1.*", True), ("2.2", "==2.1.*", False), ("2.1.3", "!=2.1.*", False),
    ("3.0", ">=2,<3", False), ("2.9.9", ">=2,<3", True), ("2", ">2", False), ("2.0.1", ">2", True),
    ("2", "<=2.0", True),
    ("2.3", "~=2.1", True), ("3.0", "~=2.1", False), ("2.1.5", "~=2.1.2", True), ("2.2.0", "~=2.1.2", False),
    ("2.1.1", "~=2.1.2", False), ("0", "", True),
])
def test_versions(version: str, specifiers: str, expected: bool) -> None:
    assert run.satisfies(version, specifiers) is expected


@pytest.mark.parametrize("marker, expected", [
    ("", True), (f'python_version == "{HERE}"', True), ("python_version < '3.11'", False),
    (f'python_version >= "3.9" and sys_platform == "{sys.platform}"', True),
    (f'python_version >= "3.9" and sys_platform != "{sys.platform}"', False),
])
def test_markers(marker: str, expected: bool) -> None:
    assert run.applies(marker) is expected
    assert run.is_met(f"no-such-distribution>=1; {marker}" if marker else "no-such-distribution") is not expected


def test_what_is_not_understood_is_no_silent_yes() -> None:
    with pytest.raises(ValueError, match="specifier"):
        run.satisfies("1", "===1")
    with pytest.raises(ValueError, match="marker"):
        run.applies("platform_machine == 'x'")


def test_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = {"engine": ["numpy", "wheels>=2 ; extra == 'fast'", 'doors ; extra == "slow"'], "wheels": None}
    versions = {"engine": "1.0", "wheels": "1.5"}

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(run.metadata, "version", version)
    monkeypatch.setattr(run.metadata, "requires", needs.get)
    assert run.is_met("engine>=1") and not run.is_met("engine>1") and not run.is_met("doors")
    assert not run.is_met("engine[fast]") and not run.is_met("engine [slow] >=1")
    versions["wheels"] = "2.0"
    assert run.is_met("engine[fast]>=1") and not run.is_met("engine[fast,slow]")


def test_the_projects_requirements_are_understood() -> None:
    wanted = run.requirements([*run.project()["optional-dependencies"]])
    for requirement in wanted:
        run.is_met(requirement)
    assert all(run.is_met(r) for r in run.requirements(["test"]))
    assert f"Programming Language :: Python :: {HERE}" in run.project()["classifiers"]


def interpreter(folder: Path, name: str, answer: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{answer}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with many Pythons."""
    interpreter(tmp_path / "bin", "python3.99", "echo cpython 3 99")
    interpreter(tmp_path / "bin", "python3.98t", "echo cpython 3 98 t")
    interpreter(tmp_path / "bin", "python3.97", "exit 127")
    interpreter(tmp_path / "bin", "python3.96", "echo pypy 3 96")
    interpreter(tmp_path / "bin", "python3.9", "echo cpython 3 9")
    interpreter(tmp_path / "bin", "python3.99-config", "echo cpython 3 50")
    interpreter(tmp_path / "versions" / "3.12.1" / "bin", "python", "echo cpython 3 12")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    return tmp_path


@pytest.mark.skipif(sys.platform == "win32", reason="interpreters are scripts for a shell here")
def test_pythons_at_hand(machine: Path) -> None:
    assert run.pythons() == {"3.99": f"{machine}/bin/python3.99", "3.98t": f"{machine}/bin/python3.98t",
                             "3.12": f"{machine}/versions/3.12.1/bin/python"}
    assert run.newer_python() == f"{machine}/bin/python3.99"


@pytest.mark.skipif(sys.platform == "win32", reason="interpreters are scripts for a shell here")
def test_the_matrix_says_what_ran_where(machine: Path, monkeypatch: pytest.MonkeyPatch,
                                        capsys: pytest.CaptureFixture[str]) -> None:
    installed = {}

    def python_in(folder: Path, base: str, wanted: list[str]) -> str:
        installed[folder.name] = wanted
        if base.endswith("98t"):
            raise SystemExit("Could not create a virtual environment")
        return folder.name

    status = {".venv-newest-3.99": 1}
    monkeypatch.setattr(run, "python_in", python_in)
    monkeypatch.setattr(run, "run", lambda command: status.get(command[0], 0))
    assert run.matrix([]) == 1
    table = [line.split() for line in capsys.readouterr().out.split("with  ")[1].splitlines()[1:]]
    assert ["newest", "dependencies", "3.11", "not", "at", "hand"] in table
    results = {(what, version): result for what, _, version, result, *_ in table}
    assert results["oldest", "3.12"] == results["newest", "3.12"] == "passed"
    assert results["newest", "3.99"] == results["newest", "3.98t"] == "FAILED"
    assert "numpy==2.2" in installed[".venv-oldest-3.12"] and "ml_dtypes==0.6" in installed[".venv-oldest-3.12"]
    assert installed[".venv-newest-3.12"] == run.requirements(["test"])
    status.clear()
    (machine / "bin" / "python3.98t").unlink()
    assert run.matrix([]) == 0
