"""Control groups that grant less than the machine has: trees of files as Linux shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from anima import granted
from anima.core import memory


def tree(root: Path, files: dict[str, str], told: str) -> tuple[str, str]:
    for name, text in files.items():
        path = root / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "self").write_text(told)
    return str(root / "cgroup"), str(root / "self")


@pytest.mark.parametrize("files, told, most", [
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
def test_quotas(tmp_path: Path, files: dict[str, str], told: str, most: float | None) -> None:
    assert granted.core_quota(*tree(tmp_path, files, told)) == most


def test_no_files(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "none"), str(tmp_path / "none")
    assert granted.core_quota(*nowhere) is None and granted.memory_quota(*nowhere) is None


@pytest.mark.parametrize("files, told, most", [
    ({"memory.max": "536870912\n"}, "0::/\n", 1 << 29),
    ({"memory.max": "max\n", "a/memory.max": "1048576\n"}, "0::/a/b\n", 1 << 20),
    ({"memory/x/memory.limit_in_bytes": "4096\n"}, "5:memory:/x\n4:cpu,cpuacct:/x\n", 4096),
    ({"memory/memory.limit_in_bytes": "-1\n"}, "5:memory:/x\n", None),
    ({"memory.max": "0\n"}, "0::/\n", None),
    ({"cpu.max": "100000 100000\n"}, "0::/\n", None)])
def test_memory_quotas(tmp_path: Path, files: dict[str, str], told: str, most: int | None) -> None:
    assert granted.memory_quota(*tree(tmp_path, files, told)) == most


@pytest.mark.parametrize("quota", [None, 1 << 20, 1 << 60])
def test_memory(monkeypatch: pytest.MonkeyPatch, quota: int | None) -> None:
    own = granted.memory()
    monkeypatch.setattr(granted, "memory_quota", lambda: quota)
    assert own is not None and granted.memory() == (1 << 20 if quota == 1 << 20 else own)
    monkeypatch.delattr(granted.os, "sysconf")
    assert granted.memory() == quota


@pytest.mark.parametrize("size, kept", [(None, 1 << 30), (1 << 28, 1 << 25), (1 << 40, 1 << 30)])
def test_memory_that_is_kept(monkeypatch: pytest.MonkeyPatch, size: int | None, kept: int) -> None:
    monkeypatch.setattr(granted, "memory", lambda: size)
    assert memory.most() == kept


@pytest.mark.parametrize("quota, fewest", [(None, None), (0.2, 1), (1.0, 1), (1.5, 2), (1e6, None)])
def test_cores(monkeypatch: pytest.MonkeyPatch, quota: float | None, fewest: int | None) -> None:
    monkeypatch.setattr(granted.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(granted, "core_quota", lambda: quota)
    assert granted.cores() == (fewest or 8)
