"""What this machine is made of, read without any package: processor, memory, GPUs."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["GPU", "Memory", "core_count", "cpu_name", "gpus", "host_memory", "peak_host_memory"]

_CGROUP = Path("/sys/fs/cgroup")
_SECONDS = 5.0  # until a tool of the driver's counts as hanging


@dataclass(frozen=True)
class Memory:
    """Bytes of memory: all there is, and what a new allocation can still get."""

    total: int
    available: int


@dataclass(frozen=True)
class GPU:
    """One GPU as its driver names it, with its memory in bytes."""

    name: str
    memory: Memory


def cpu_name() -> str:
    """Return the processor's model."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip().lower() in ("model name", "cpu model", "cpu") and value.strip():
                return " ".join(value.split())
    except OSError:
        if sys.platform == "darwin" and (said := _output(["sysctl", "-n", "machdep.cpu.brand_string"])):
            return said.strip()
    return platform.processor() or platform.machine() or "unknown"


def core_count() -> int:
    """Return on how many cores this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def host_memory(*, proc: Path = Path("/proc"), cgroup: Path = _CGROUP) -> Memory | None:
    """Return the main memory, or ``None`` where the system does not tell.

    In a container the smaller of the machine's memory and the container's limit counts.

    Args:
        proc: Where the kernel shows its state.
        cgroup: Where it shows the limits of the process's control group.
    """
    try:
        lines = (proc / "meminfo").read_text(encoding="ascii", errors="replace").splitlines()
        fields = {key: int(rest.split()[0]) * 1024 for key, _, rest in (line.partition(":") for line in lines)}
        total, available = fields["MemTotal"], fields["MemAvailable"]
    except (OSError, ValueError, KeyError, IndexError):
        total = available = _pages()
    if not total:
        return None
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is not None and used is not None and limit < total:
        # Pages of files that were merely read count as used there, but give way.
        kept = max(0, used - _inactive(cgroup / "memory.stat"))
        total, available = limit, max(0, min(available, limit - kept))
    return Memory(total, available)


def peak_host_memory() -> int:
    """Return the most main memory that this process has held so far, in bytes; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def gpus() -> list[GPU]:
    """Return the NVIDIA GPUs that the driver shows; none where it does not answer in time."""
    said = _output(["nvidia-smi", "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits"])
    return list(_parse_gpus(said))


def _parse_gpus(said: str) -> Iterator[GPU]:
    for line in said.splitlines():
        name, *numbers = (cell.strip() for cell in line.rsplit(",", 2))
        if len(numbers) == 2 and all(number.isdigit() for number in numbers):
            total, free = (int(number) << 20 for number in numbers)
            yield GPU(name, Memory(total, free))


def _output(command: list[str]) -> str:
    program = shutil.which(command[0])
    if program is None:
        return ""
    try:
        done = subprocess.run(  # noqa: S603 (fixed arguments)
            [program, *command[1:]], capture_output=True, timeout=_SECONDS, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", errors="replace")


def _pages() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # "max" among others
        return None


def _inactive(path: Path) -> int:
    try:
        words = path.read_text(encoding="ascii").split()
        return int(words[words.index("inactive_file") + 1])
    except (OSError, ValueError, IndexError):
        return 0
