"""Control groups that grant the time of fewer cores than the machine has: trees of files as Linux shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from anima.runtime import cores


def tree(root: Path, files: dict[str, str], told: str) -> tuple[str, str]:
    for name, text in files.items():
        path = root / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "self").write_text(told)
    return str(root / "cgroup"), str(root / "self")


@pytest.mark.parametrize("files, told, granted", [
    ({"cpu.max": "200000 100000\n"}, "0::/\n", 2.0),                          # a container under version 2
    ({"cpu.max": "max 100000\n"}, "0::/\n", None),
    ({"cpu.max": "max 100000\n", "a/cpu.max": "50000 100000\n", "a/b/cpu.max": "max 100000\n"}, "0::/a/b\n", 0.5),
    ({"a/cpu.max": "400000 100000\n", "a/b/cpu.max": "150000 100000\n"}, "0::/a/b\n", 1.5),  # the least of all
    ({"cpu.max": "300000 100000\n"}, "0::/not/visible/here\n", 3.0),
    ({"cpu,cpuacct/x/cpu.cfs_quota_us": "250000\n", "cpu,cpuacct/x/cpu.cfs_period_us": "100000\n"},
     "5:memory:/x\n4:cpu,cpuacct:/x\n1:name=systemd:/x\n", 2.5),
    ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, "4:cpu:/docker/of/the/host\n", 1.0),
    ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, "4:cpu:/\n", None),
    ({"cpu.max": "garbage\n"}, "0::/\n", None),
    ({"cpu.max": "1 0\n"}, "0::/\n", None),
    ({}, "0::/a\nno colon\n::\n", None),
    ({"cpu.max": "100000 100000\n"}, "0::/../../a\n", 1.0),
])
def test_quotas(tmp_path: Path, files: dict[str, str], told: str, granted: float | None) -> None:
    assert cores.quota(*tree(tmp_path, files, told)) == granted


def test_no_files(tmp_path: Path) -> None:
    assert cores.quota(str(tmp_path / "none"), str(tmp_path / "none")) is None


@pytest.mark.parametrize("granted, fewest", [(None, None), (0.2, 1), (1.0, 1), (1.5, 2), (1e6, None)])
def test_cores(monkeypatch: pytest.MonkeyPatch, granted: float | None, fewest: int | None) -> None:
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(cores, "quota", lambda: granted)
    assert cores.available() == (fewest or 8)
