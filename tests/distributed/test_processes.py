"""Programs of several processes, started by mpirun: the numbers of one process, and a clear end where they differ."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

import anima

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = pathlib.Path(__file__).parent / "programs"
ALONE = {"ANIMA_NUM_CPU_DEVICES": "4"}


def run(count: int, program: pathlib.Path, *args: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in so many processes (0: in one, without MPI)."""
    launcher = shutil.which("mpiexec", path=os.pathsep.join([str(pathlib.Path(sys.executable).parent),
                                                             os.environ.get("PATH", "")]))
    assert launcher is not None, "no mpiexec: pip install mpich"
    start = [launcher, "-n", str(count)] if count else []
    env = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "ANIMA_NUM_CPU_DEVICES")}
    env |= {"PYTHONPATH": str(ROOT), "HYDRA_LAUNCHER": "fork", "ANIMA_CHECK": "0", **settings}  # as users run it
    return subprocess.run([*start, sys.executable, str(program), *args], env=env, capture_output=True, text=True,
                          timeout=60, cwd=ROOT)


def check(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("program", ["collectives.py", "random_programs.py"])
def test_numbers_are_those_of_devices_of_one_process(program: str, tmp_path: pathlib.Path) -> None:
    files = [str(tmp_path / name) for name in ("alone.npz", "four.npz")]
    check(run(0, PROGRAMS / program, files[0], **ALONE))
    check(run(4, PROGRAMS / program, files[1], "--mpi", ANIMA_CHECK="2"))
    expected, found = (dict(np.load(f)) for f in files)
    assert found.keys() == expected.keys() and len(found) > 60
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=2e-5, err_msg=name)


def test_what_arrays_and_utilities_say() -> None:
    assert check(run(3, PROGRAMS / "utilities.py")).count("all well") == 3


@pytest.mark.parametrize(("count", "level"), [(2, "2"), (4, "0")])  # what is checked does not depend on the others
def test_calls_that_come_again_are_machine_code(count: int, level: str) -> None:
    assert check(run(count, PROGRAMS / "calls.py", ANIMA_CHECK=level)).count("all well") == count


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("level", ["0", "2"])
def test_donated_arrays(count: int, level: str) -> None:
    assert check(run(count, PROGRAMS / "donation.py", ANIMA_CHECK=level)).count("all well") == count


@pytest.mark.parametrize("count", [2, 4])
def test_training_gives_the_weights_of_one_device(count: int) -> None:
    text = check(run(count, ROOT / "examples" / "on_devices.py", "--mpi", "--steps", "20"))
    apart = {line.split(":")[0]: float(line.split("within ")[1].split(" ")[0])
             for line in text.splitlines() if "within" in line}
    assert apart.keys() == {"data", "tensor", "pipeline"} and max(apart.values()) < 1e-5, text
    if count == 2:
        assert text == check(run(count, ROOT / "examples" / "on_devices.py", "--mpi", "--steps", "20"))


def test_checkpoints_are_read_by_other_numbers_of_processes(tmp_path: pathlib.Path) -> None:
    program, folder = PROGRAMS / "checkpoints.py", str(tmp_path / "checkpoint")
    assert check(run(4, program, folder, "--mpi", "--save")).count("all well") == 4
    assert len(list((tmp_path / "checkpoint").glob("*.safetensors"))) == 4
    assert check(run(2, program, folder, "--mpi")).count("all well") == 2
    assert check(run(0, program, folder, **ALONE)).count("all well") == 1
    check(run(0, program, folder, "--save", **ALONE))
    assert check(run(2, program, folder, "--mpi")).count("all well") == 2
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]


ENDS = {
    "exception": ["process 1 of 3", "of one process alone", "misuse.py", "raise ValueError"],
    "other program": ["different programs", "call number 2", "total at misuse.py", "double at misuse.py"],
    "other order": ["different programs", "call number 2", "total at misuse.py", "table at misuse.py"],
    "later": ["different programs", "call number 6002", "total at misuse.py", "double at misuse.py"],
    "at the end": ["different programs", "call number 2", "total at misuse.py", "double at misuse.py"],
    "one call too many": ["has ended, while process 0 waits", "call number 4", "total at misuse.py"],
    "exit": ["Process 1 has ended, while process", "call number 2", "total at misuse.py"],
    "killed": ["Killed"],
    "other lengths": ["different programs (of other types, shardings, or devices)", "call number 2", "total at misuse"],
    "other mesh": ["different programs", "call number 2", "np.arange(12.0), NamedSharding(turned, P(\"x\"))))"],
    "other parts": ["different programs (of other types, shardings, or devices)", "process_allgather at misuse"],
    "sync": ["different programs", "sync_global_devices('one') at misuse.py", "sync_global_devices('another')"],
}


@pytest.mark.parametrize("mistake", ENDS)
def test_mistakes_end_the_job(mistake: str) -> None:
    done = run(3, PROGRAMS / "misuse.py", mistake)
    assert done.returncode != 0, done.stdout + done.stderr
    for text in ENDS[mistake]:
        assert text in done.stderr + done.stdout, done.stderr


def test_one_process_is_alone(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "alone.py"
    program.write_text("import anima\nanima.distributed.initialize()\nassert anima.process_count() == 1\n"
                       "anima.distributed.shutdown()\nprint(anima.numpy.ones(2).sum())\n")
    assert check(run(0, program)) == "2.0\n"
    program.write_text("import anima\nanima.devices()\nanima.distributed.initialize()\n")
    assert "before any computation" in run(0, program).stderr
    program.write_text("import anima\nanima.distributed.initialize(num_processes=2)\n")
    assert "num_processes is 2, and MPI says 1" in run(0, program).stderr
    program.write_text("import anima\nanima.distributed.initialize()\n")
    assert "each process has one device" in run(0, program, **ALONE).stderr


def test_exchanges_need_others() -> None:
    assert not anima.distributed.is_initialized()
    anima.distributed.shutdown()
    with pytest.raises(RuntimeError, match=r"no other process.*initialize"):
        anima.core.processes.here.exchange("add", (0,), None)
