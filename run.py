#!/usr/bin/env python3
"""The project's commands. Each does its own set-up; all this needs is Python 3.11 or newer, with pip.

    python3 run.py demo     train a network on handwritten digits, and show what the compiler did
    python3 run.py test     all tests, on two cores (more arguments go to pytest)
    python3 run.py tiny     the few tests that touch every part, in a few seconds
    python3 run.py check    ruff and mypy
    python3 run.py bench    the benchmarks
    python3 run.py sizes    lines of code by part
    python3 run.py setup    only the set-up

If the running Python has every dependency, it is used as it is; otherwise the dependencies are
installed into .venv, once.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
OLDEST = (3, 11)
TINY = ["tests/documents", "tests/base", "tests/control/test_control.py"]
EXTRAS = {"demo": ["examples"], "test": ["test"], "tiny": ["test"], "check": ["dev"], "bench": ["examples"],
          "sizes": [], "setup": ["test", "examples", "dev"]}


def numbers(version: str) -> list[int]:
    """The leading numbers of a version: "2.4.6rc1" gives [2, 4, 6]."""
    return [int(n) for n in re.match(r"[\d.]*", version)[0].split(".") if n]


def requirements(extras: list[str]) -> list[str]:
    """The project's requirements with these extras, as pip takes them."""
    import tomllib  # new in 3.11, which main() has made sure of

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(r for e in extras for r in project["optional-dependencies"][e])]
    return list(dict.fromkeys(wanted))


def is_met(requirement: str) -> bool:
    """Whether the running Python has what `name>=version` asks for."""
    name, _, least = requirement.partition(">=")
    try:
        return numbers(metadata.version(name)) >= numbers(least)
    except metadata.PackageNotFoundError:
        return False


def newer_python() -> str | None:
    """Another Python on the PATH that is new enough."""
    for minor in range(13, OLDEST[1] - 1, -1):
        found = shutil.which(f"python3.{minor}")
        if found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
            return found
    return None


def python_with(wanted: list[str]) -> str:
    """A Python that has the requirements: the running one, or that of .venv, set up if need be."""
    if all(map(is_met, wanted)):
        return sys.executable
    python = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        make_venv()
    stamp = VENV / "installed.txt"
    have = stamp.read_text().split("\n") if stamp.exists() else []
    missing = [r for r in wanted if r not in have]
    if missing:
        print(f"Installing into {VENV}: {', '.join(missing)}", flush=True)
        # The outer pip installs into .venv: it need not have a pip of its own.
        subprocess.run([sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet",
                        "--disable-pip-version-check", *missing], check=True)
        stamp.write_text("\n".join([*have, *missing]))
    return str(python)


def make_venv() -> None:
    """A fresh .venv; where the system has no ensurepip, one without pip."""
    for options in (["--upgrade-deps"], [], ["--without-pip"]):
        made = subprocess.run([sys.executable, "-m", "venv", *options, str(VENV)], capture_output=True)
        if made.returncode == 0:
            return
    raise SystemExit("Could not create a virtual environment: is the venv module installed?")


def commands(command: str, python: str, more: list[str]) -> list[list[str]]:
    """What to run for a command."""
    pytest = [python, "-m", "pytest", "-q"]
    return {
        "setup": [],
        "demo": [[python, "examples/train_digits.py", *more]],
        "test": [[*pytest, "-n", "2", *more]],
        "tiny": [[*pytest, *TINY, *more]],
        "check": [[python, "-m", "ruff", "check", "anima", "tests", "examples", "benchmarks", "run.py", *more],
                  [python, "-m", "mypy"]],
        "bench": [[python, "-m", "benchmarks", *more]],
    }[command]


def sizes() -> None:
    """Prints the lines of each part of the package, and the longest files."""
    files = {path: len(path.read_text().splitlines()) for path in sorted((ROOT / "anima").rglob("*.py"))}
    parts: dict[str, int] = {}
    for path, lines in files.items():
        inner = path.relative_to(ROOT).parts
        part = "/".join(inner[:2]) if len(inner) > 2 else inner[0]
        parts[part] = parts.get(part, 0) + lines
    for part, lines in sorted(parts.items(), key=lambda item: -item[1]):
        print(f"{lines:7d}  {part}")
    print(f"{sum(files.values()):7d}  in all, {len(files)} files; the longest:")
    for path, lines in sorted(files.items(), key=lambda item: -item[1])[:5]:
        print(f"{lines:7d}  {path.relative_to(ROOT)}")


def main(arguments: list[str]) -> int:
    command, more = (arguments[0], arguments[1:]) if arguments else ("", [])
    if command not in EXTRAS:
        print(__doc__)
        return 0 if command in ("", "-h", "--help", "help") else 2
    if sys.version_info < OLDEST:
        other = newer_python()
        if other is None:
            print(f"Anima needs Python {OLDEST[0]}.{OLDEST[1]} or newer; this is {sys.version.split()[0]}.")
            return 1
        return subprocess.run([other, str(ROOT / "run.py"), *arguments]).returncode
    if command == "sizes":
        sizes()
        return 0
    python = python_with(requirements(EXTRAS[command]))
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    for one in commands(command, python, more):
        code = subprocess.run(one, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(main(sys.argv[1:]))
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"This failed: {' '.join(map(str, error.cmd))}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
