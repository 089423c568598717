"""What is read of a machine, from made-up files."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from trajgym.trainers import hardware
from trajgym.trainers.hardware import GPU, Memory, core_count, cpu_name, gpus, host_memory, peak_host_memory

MEMINFO = (
    "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    600 kB\nBuffers: 5 kB\nHugePages_Total: 0\n"
)
GIB = 1 << 30


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "meminfo").write_text(MEMINFO)
    return tmp_path


def limited(folder: Path, most: str, used: int, inactive: int = 0) -> Path:
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\nactive_file 2\n")
    return folder


def test_the_memory_of_this_machine() -> None:
    memory = host_memory()
    assert memory is not None
    assert 0 < memory.available <= memory.total
    assert core_count() >= 1
    assert cpu_name()
    assert peak_host_memory() > 1 << 20


def test_memory_without_a_container(proc: Path, tmp_path: Path) -> None:
    assert host_memory(proc=proc, cgroup=tmp_path / "none") == Memory(1000 << 10, 600 << 10)
    assert host_memory(proc=proc, cgroup=limited(tmp_path, "max", 5)) == Memory(1000 << 10, 600 << 10)


def test_a_container_has_less(proc: Path, tmp_path: Path) -> None:
    limit = 400 << 10
    assert host_memory(proc=proc, cgroup=limited(tmp_path, str(limit), 300 << 10)) == Memory(limit, 100 << 10)
    # pages of files that were only read give way
    files = limited(tmp_path, str(limit), 300 << 10, inactive=250 << 10)
    assert host_memory(proc=proc, cgroup=files) == Memory(limit, 350 << 10)
    assert host_memory(proc=proc, cgroup=limited(tmp_path, str(limit), limit + 5)) == Memory(limit, 0)


def test_a_limit_above_the_machine_is_none(proc: Path, tmp_path: Path) -> None:
    assert host_memory(proc=proc, cgroup=limited(tmp_path, str(2000 << 10), 5)) == Memory(1000 << 10, 600 << 10)


@pytest.mark.parametrize("text", ["", "MemTotal:\n", "no colon", "MemTotal: many kB\n"])
def test_a_kernel_that_tells_otherwise(text: str, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(text)
    memory = host_memory(proc=tmp_path, cgroup=tmp_path)
    assert memory is None or memory.total == memory.available > 0


def driver(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    def run(command: list[str], **kwargs: Any) -> Any:
        assert kwargs["timeout"] <= 10
        if isinstance(answer, Exception):
            raise answer
        return subprocess.CompletedProcess(command, 0, answer, b"")

    monkeypatch.setattr(hardware.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(hardware.subprocess, "run", run)


def test_gpus_as_the_driver_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, b"NVIDIA A100, the big one, 81920, 1024\nNVIDIA T4, 15360, [N/A]\n\n")
    assert gpus() == [GPU("NVIDIA A100, the big one", Memory(80 * GIB, GIB))]


@pytest.mark.parametrize(
    "answer",
    [b"\xff\xfe no driver", subprocess.TimeoutExpired("nvidia-smi", 5), FileNotFoundError(),
     subprocess.CalledProcessError(9, "nvidia-smi")],
)  # fmt: skip
def test_a_driver_that_does_not_answer(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, answer)
    assert gpus() == []
