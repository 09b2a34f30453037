#!/usr/bin/env python3
"""The project's commands. Each does its own set-up; all this needs is Python 3.11 or newer, with pip.

    python3 run.py demo     train a network on handwritten digits, and show what the compiler did
    python3 run.py test     all tests, on two cores (more arguments go to pytest)
    python3 run.py tiny     the few tests that touch every part, in a few seconds
    python3 run.py ecosystem    programs on libraries written for JAX, with Anima in its place
    python3 run.py check    ruff and mypy
    python3 run.py bench    the benchmarks
    python3 run.py matrix   all tests with the oldest dependencies allowed, the tiny ones on every Python at hand
    python3 run.py mutants FILE [TESTS]    which changes of a file no test sees (-h: options)
    python3 run.py sizes    lines of code by part
    python3 run.py setup    only the set-up

If the running Python has every dependency, it is used as it is; otherwise the dependencies are
installed into .venv, once; those of the matrix and of the ecosystem into .venv-* beside it.
"""

from __future__ import annotations

import operator
import os
import re
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
OLDEST = (3, 11)
TINY = ["tests/documents", "tests/base", "tests/control/test_control.py"]
EXTRAS = {"demo": ["examples"], "test": ["test"], "tiny": ["test"], "check": ["dev"], "bench": ["examples"],
          "ecosystem": ["test", "ecosystem"], "mutants": ["test", "dev"], "matrix": ["test"], "sizes": [],
          "setup": ["test", "examples", "dev"]}
COMPARE = {">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt,
           "<": operator.lt}


def numbers(version: str) -> list[int]:
    """The leading numbers of a version: "2.4.6rc1" gives [2, 4, 6]."""
    return [int(n) for n in re.match(r"[\d.]*", version)[0].split(".") if n]


def project() -> dict:
    """What pyproject.toml says of the project."""
    import tomllib  # new in 3.11, which main() has made sure of

    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def requirements(extras: list[str]) -> list[str]:
    """The project's requirements with these extras, as pip takes them."""
    said = project()
    wanted = [*said["dependencies"], *(r for e in extras for r in said["optional-dependencies"][e])]
    return list(dict.fromkeys(wanted))


def satisfies(version: str, specifiers: str) -> bool:
    """Whether a version is one of `>=2.0,!=2.1.0,<3`; `~=` and `==2.1.*` too. ValueError for other text."""
    for specifier in filter(None, map(str.strip, specifiers.strip(" ()").split(","))):
        parts = re.fullmatch(r"(~=|[=!<>]=|[<>])\s*([\d.]+?)(\.\*)?", specifier)
        if parts is None:
            raise ValueError(f"no version specifier that this knows: {specifier!r}")
        sign, number, any_end = parts.groups()
        have, want = numbers(version), numbers(number)
        have += [0] * (len(want) - len(have))
        if sign == "~=":
            fits = have >= want and have[:len(want) - 1] == want[:-1]
        else:
            length = len(want) if any_end else len(have)
            fits = COMPARE[sign](have[:length], want + [0] * (length - len(want)))
        if not fits:
            return False
    return True


def applies(marker: str) -> bool:
    """Whether `python_version < "3.13" and sys_platform == "linux"` is so here. ValueError for other variables."""
    for term in filter(None, map(str.strip, marker.split(" and "))):
        parts = re.fullmatch(r"""(\w+)\s*([=!<>]=|[<>])\s*["'](.*)["']""", term)
        if parts is None or parts[1] not in ("python_version", "sys_platform"):
            raise ValueError(f"no environment marker that this knows: {term!r}")
        name, sign, value = parts.groups()
        here = satisfies(".".join(map(str, sys.version_info[:2])), sign + value) if name == "python_version" else (
            COMPARE[sign](sys.platform, value))
        if not here:
            return False
    return True


def is_met(requirement: str) -> bool:
    """Whether the running Python has what a requirement asks for: `name[extra]>=1.2,<3; sys_platform == "linux"`."""
    wanted, _, marker = requirement.partition(";")
    if not applies(marker):
        return True
    name, extras, specifiers = re.fullmatch(r"([\w.-]+)\s*(?:\[(.*)\])?\s*(.*)", wanted.strip()).groups()
    try:
        version, needs = metadata.version(name), metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return False
    named = [re.compile(rf"""extra\s*==\s*["']{e.strip()}["']""") for e in (extras or "").split(",") if e]
    return satisfies(version, specifiers) and all(
        is_met(need.partition(";")[0]) for need in needs if any(e.search(need) for e in named))


def pythons() -> dict[str, str]:
    """The CPythons at hand that are new enough, newest first, by version ("3.14", "3.14t" without the lock)."""
    places = [p for folder in os.get_exec_path() for p in Path(folder).glob("python3.*")
              if re.fullmatch(r"python3\.\d+t?(\.exe)?", p.name)]
    places += (Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions").glob("*/bin/python")
    if shutil.which("uv"):
        folder = subprocess.run(["uv", "python", "dir"], capture_output=True, text=True).stdout.strip()
        places += Path(folder).glob("*/bin/python3") if folder else ()
    found: dict[tuple[int, int, str], str] = {}
    ask = ("import sys, sysconfig; print(sys.implementation.name, *sys.version_info[:2], "
           "'t' if sysconfig.get_config_var('Py_GIL_DISABLED') else '')")
    for place in map(str, places):
        answer = subprocess.run([place, "-c", ask], capture_output=True, text=True)
        if answer.returncode == 0 and answer.stdout.startswith("cpython "):
            _, major, minor, *free = answer.stdout.split()
            if (int(major), int(minor)) >= OLDEST:
                found.setdefault((int(major), int(minor), *(free or [""])), place)
    return {f"{major}.{minor}{free}": found[major, minor, free] for major, minor, free in sorted(found, reverse=True)}


def newer_python() -> str | None:
    """Another Python that is new enough."""
    return next((place for version, place in pythons().items() if not version.endswith("t")), None)


def python_with(wanted: list[str]) -> str:
    """A Python that has the requirements: the running one, or that of .venv, set up if need be."""
    return sys.executable if all(map(is_met, wanted)) else python_in(VENV, sys.executable, wanted)


def python_in(folder: Path, base: str, wanted: list[str], *options: str) -> str:
    """The Python of a virtual environment of `base` that has the requirements, made and set up if need be, by pip
    with these options."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        make_venv(folder, base)
    stamp = folder / "installed.txt"
    have = stamp.read_text().split("\n") if stamp.exists() else []
    missing = [r for r in wanted if r not in have]
    if missing:
        print(f"Installing into {folder}: {', '.join(missing)}", flush=True)
        # The outer pip installs into .venv: it need not have a pip of its own.
        subprocess.run([sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet",
                        "--disable-pip-version-check", *options, *missing], check=True)
        stamp.write_text("\n".join([*have, *missing]))
    return str(python)


def make_venv(folder: Path, base: str) -> None:
    """A fresh virtual environment; where the system has no ensurepip, one without pip."""
    for options in (["--upgrade-deps"], [], ["--without-pip"]):
        made = subprocess.run([base, "-m", "venv", *options, str(folder)], capture_output=True)
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
        "ecosystem": [[*pytest, "tests/ecosystem", *more]],
        "check": [[python, "-m", "ruff", "check", "anima", "tests", "examples", "benchmarks", "run.py", *more],
                  [python, "-m", "mypy"]],
        "bench": [[python, "-m", "benchmarks", *more]],
        "mutants": [[python, "-m", "tests.mutants", *more]],
    }[command]


def run(command: list[str]) -> int:
    """Runs a command in the project, whose modules it can import; its exit status."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}).returncode


def matrix(more: list[str]) -> int:
    """Runs all tests with the oldest dependencies, the tiny ones on every Python; prints a table; 1 if one fails."""
    wanted, at_hand = requirements(EXTRAS["matrix"]), pythons()
    classifiers = [c.rpartition(" ")[2] for c in project()["classifiers"] if re.search(r":: 3\.\d+$", c)]
    # The oldest versions have wheels for the oldest Python.
    oldest = [re.sub(r">=\s*([\w.]+).*", r"==\1", r) for r in wanted]
    jobs = [("oldest dependencies", version, "test", oldest) for version in list(at_hand)[-1:]]
    jobs += [("newest dependencies", version, "tiny", wanted) for version in at_hand]
    rows = [("newest dependencies", version, "not at hand") for version in classifiers if version not in at_hand]
    for what, version, command, needs in jobs:
        print(f"\n{what}, Python {version}", flush=True)
        start = time.monotonic()
        try:
            folder = ROOT / f".venv-{what.split()[0]}-{version}"
            failed = any(run(c) for c in commands(command, python_in(folder, at_hand[version], needs), more))
        except (subprocess.CalledProcessError, SystemExit) as error:
            print(error)
            failed = True
        rows.append((what, version, f"{'FAILED' if failed else 'passed'} in {time.monotonic() - start:.0f} s"))
    print(f"\n{'with':<22}{'Python':<10}tests")
    for what, version, result in rows:
        print(f"{what:<22}{version:<10}{result}")
    return int(any(result.startswith("FAILED") for _, _, result in rows))


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
    if command == "matrix":
        return matrix(more)
    wanted = requirements(EXTRAS[command])
    if command == "ecosystem":
        # Libraries that need jax find the distribution of this name in dropin/: an environment of their own.
        folder = ROOT / ".venv-ecosystem"
        python_in(folder, sys.executable, [str(ROOT / "dropin"), *wanted])
        python = python_in(folder, sys.executable, project()["optional-dependencies"]["ecosystem-alone"], "--no-deps")
    else:
        python = python_with(wanted)
    return next((code for one in commands(command, python, more) if (code := run(one))), 0)


if __name__ == "__main__":
    try:
        raise SystemExit(main(sys.argv[1:]))
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"This failed: {' '.join(map(str, error.cmd))}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
