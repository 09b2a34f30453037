"""`python -m anima report`."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from anima.runtime import stamps

SCRIPT = """
import numpy as np, anima, anima.numpy as jnp

@anima.jit
def step(x):
    return jnp.tanh(x @ x)

def main():
    return step(np.ones((200, 200), "float32"))

def eager():
    return 1

def needy(x, y=1):
    return x

number = 3

if __name__ == "__main__":
    raise SystemExit("the script was run")
"""


def run(tmp_path: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "script.py").write_text(SCRIPT)
    return subprocess.run([sys.executable, "-m", "anima", "report", *arguments], capture_output=True, text=True,
                          timeout=120, cwd=tmp_path, env={"PYTHONPATH": str(pathlib.Path(__file__).parents[2]),
                                                          "PATH": "", "ANIMA_CHECK": "0"})


@pytest.mark.skipif(not stamps.AVAILABLE, reason="no clock that programs can read")
def test_a_function(tmp_path: pathlib.Path) -> None:
    done = run(tmp_path, "script.py:main")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("step: 2 kernels\n")
    assert "script.py:6, in step" in done.stdout


@pytest.mark.parametrize("argument, says", [
    ("script.py:needy", "needy takes arguments (x)"), ("script.py:number", "no function number"),
    ("script.py:nothing", "no function nothing"), ("none.py:main", "no file none.py"),
    ("script.py:eager", "ran no compiled program"), ("script.py", "python -m anima report script.py:function"),
])
def test_refusals(tmp_path: pathlib.Path, argument: str, says: str) -> None:
    done = run(tmp_path, argument)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stdout == ""
