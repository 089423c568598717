"""What the benchmark of the code interpreter compares: ways to run a program and get what it printed."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trajgym.envs.sandbox import Pool, Session

__all__ = [
    "ANSWER",
    "CANARY",
    "IMPORTS",
    "PROGRAM",
    "Contender",
    "Probes",
    "Sandbox",
    "Subprocess",
    "WrongOutputError",
    "probe",
    "timed",
]

# What a model writes to solve a word problem, and what it prints.
PROGRAM = "apples = 3 * 12 - 5\ncost = apples * 0.25\nprint(cost)\n"
ANSWER = "7.75"
IMPORTS = "import numpy\nimport sympy\n"

CANARY = "TRAJGYM_BENCHMARK_CANARY"  # an environment variable of this process that no program should see
REACHED = "reached-the-host"


class WrongOutputError(Exception):
    """A contender did not print what the program prints: its speed means nothing."""


class Contender(Protocol):
    """Something that runs programs."""

    name: str

    def call(self, code: str) -> tuple[str, float]:
        """Run a program and return what it wrote and the seconds it took."""
        ...


class Subprocess:
    """A new interpreter for every program: what everything is compared with.

    Args:
        python: The interpreter. One of an environment of its own: the import hooks of a development environment double
            the time a new interpreter takes, which would flatter the others.
    """

    name = "subprocess"

    def __init__(self, python: Path) -> None:
        self._python = python
        specs = [importlib.util.find_spec(package) for package in ("numpy", "sympy")]
        self._packages = os.pathsep.join(
            dict.fromkeys(str(Path(spec.origin).parents[1]) for spec in specs if spec is not None and spec.origin)
        )

    def call(self, code: str) -> tuple[str, float]:
        """Run a program in a new interpreter and return what it wrote and the seconds it took."""
        return self._run(code, None)

    def call_with_packages(self, code: str) -> tuple[str, float]:
        """The same, for a program that imports numpy and sympy: those of this process."""
        return self._run(code, {**os.environ, "PYTHONPATH": self._packages})

    def _run(self, code: str, environment: dict[str, str] | None) -> tuple[str, float]:
        command = [str(self._python), "-c", code]
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        return done.stdout + done.stderr, time.perf_counter() - start


class Sandbox:
    """A session of a pool; a new one when a program has ended it.

    Args:
        name: For the table.
        pool: Where its sessions come from. Closing the pool is its owner's business.
    """

    def __init__(self, name: str, pool: Pool) -> None:
        self.name = name
        self._pool = pool
        self._session = pool.open()

    def call(self, code: str) -> tuple[str, float]:
        """Run a program in the session and return what it wrote and the seconds it took."""
        if self._session.dead:
            self._session.close()
            self._session = self._pool.open()
        start = time.perf_counter()
        result = self._session.call(code)
        seconds = time.perf_counter() - start
        return result.text, seconds

    def open_and_call(self, code: str) -> tuple[str, float]:
        """Open another session, run a program in it, and close it off the clock."""
        start = time.perf_counter()
        session: Session = self._pool.open()
        result = session.call(code)
        seconds = time.perf_counter() - start
        session.close()
        return result.text, seconds


def timed(call: Callable[[str], tuple[str, float]], code: str = PROGRAM, answer: str = ANSWER) -> Callable[[], float]:
    """Return a function that runs a program once and returns its seconds.

    Raises:
        WrongOutputError: By that function, when the answer is not in the output.
    """

    def measure() -> float:
        output, seconds = call(code)
        if answer not in output:
            raise WrongOutputError(f"expected {answer!r} in the output, got {output[-300:]!r}")
        return seconds

    return measure


@dataclass(frozen=True, slots=True)
class Probes:
    """What a program can do where it runs.

    Args:
        reads_files: It reads the host's ``/etc/passwd``.
        sees_environment: It sees a variable of the host's environment.
        connects: It reaches a port of the host.
        keeps_state: It sees the names that the program before it set.
    """

    reads_files: bool
    sees_environment: bool
    connects: bool
    keeps_state: bool


def probe(contender: Contender) -> Probes:
    """Try one harmless program each; the names of modules are spelled so that no list of forbidden words hits them."""

    def reached(code: str) -> bool:
        return REACHED in contender.call(code)[0]

    half = len(REACHED) // 2  # an error that quotes the program must not look like its output
    say = f"print({REACHED[:half]!r} + {REACHED[half:]!r})"
    files = reached(f"with open('/etc/passwd') as file:\n    file.read(1)\n{say}")
    environment = reached(f"if {CANARY!r} in __import__('os').environ:\n    {say}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        contender.call(f"__import__('socket').create_connection({server.getsockname()!r}, 1).close()")
        try:
            server.accept()[0].close()
            connects = True
        except BlockingIOError:
            connects = False
    contender.call("kept = 1")
    return Probes(files, environment, connects, keeps_state=reached(f"if kept == 1:\n    {say}"))
