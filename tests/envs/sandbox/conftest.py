"""A fresh process that loads the jail's side as a jail does, and the kernel's own table of system calls."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]

HEADERS = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}

# Standard library and ``envs/sandbox``, nothing else. ``tried(f, …)`` is "ok", or the name of the error number; what is
# put into ``seen`` comes back as JSON.
BEFORE = f"""
import errno, json, os, sys, types
for name, folder in (("trajgym", "trajgym"), ("trajgym.envs", "envs"), ("trajgym.envs.sandbox", "envs/sandbox")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [{str(ROOT)!r} + "/" + folder]
def tried(call, *args, **options):
    try:
        call(*args, **options)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
    return "ok"
seen = {{}}
"""
AFTER = """
print(json.dumps(seen), flush=True)
"""


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit status (negative: the signal), what it saw, what it complained of."""

    status: int
    seen: dict[str, Any] = field(default_factory=dict)
    errors: str = ""


@pytest.fixture
def child() -> Callable[..., Ended]:
    """Run code in a fresh process; ``given`` becomes the list ``given`` of strings there."""

    def run(code: str, *given: object) -> Ended:
        source = f"{BEFORE}given = {[str(value) for value in given]!r}\n{code}{AFTER}"
        command = [sys.executable, "-I", "-S", "-c", source]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
        return Ended(done.returncode, json.loads(done.stdout or "{}"), done.stderr)

    return run


@pytest.fixture
def kernel_numbers() -> Callable[[str], dict[str, int]]:
    """Read the number of every system call of a machine from the kernel's headers."""

    def read(machine: str) -> dict[str, int]:
        header = Path(HEADERS[machine])
        if not header.exists():
            pytest.skip(f"{header} is not here (package linux-libc-dev)")
        text = header.read_text()
        found = {name: int(number) for name, number in re.findall(r"#define __NR(\w+)\s+(\d+)", text)}
        # The generic header names some of them in two steps.
        steps = re.findall(r"#define __NR(_\w+)\s+__NR(3264_\w+)", text)
        found |= {name: found[other] for name, other in steps if other in found}
        assert len(found) > 250
        return {name.removeprefix("_"): number for name, number in found.items() if name.startswith("_")}

    return read
