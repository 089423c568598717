"""What a benchmark ran on, and what processes use, read from /proc."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Machine", "descendants", "machine", "private_bytes"]

BUSY = 0.5  # load average per core above which figures are not to be trusted


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts without which a figure means little.

    Args:
        cores: Cores this process may use.
        processor: The processor's name.
        python: Version of Python.
        kernel: Release of the kernel.
        user: Effective user id; isolation differs for root.
        load: Load average of the last minute, when it was asked.
    """

    cores: int
    processor: str
    python: str
    kernel: str
    user: int
    load: float

    @property
    def busy(self) -> bool:
        """Whether something else is running."""
        return self.load > BUSY * self.cores


def machine() -> Machine:
    """Look at this machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        processor=names[0] if names else platform.machine(),
        python=platform.python_version(),
        kernel=platform.release(),
        user=os.geteuid(),
        load=os.getloadavg()[0],
    )


def descendants(ancestor: int) -> set[int]:
    """Return the ids of the processes below a process, in every generation."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue  # it ended meanwhile
            # The command's name may hold blanks and brackets: what follows its last one is regular.
            parent = int(stat.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found: set[int] = set()
    waiting = [ancestor]
    while waiting:
        below = children.get(waiting.pop(), [])
        found.update(below)
        waiting.extend(below)
    return found


def private_bytes(process: int) -> int:
    """Return the bytes of memory that a process shares with no other.

    Raises:
        OSError: When the process is over, or not ours to look at: the workers of a sandbox are root's affair.
    """
    lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
