"""Other projects' code tools, each installed into an environment of its own and run in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

__all__ = ["PEERS", "Peer", "PeerError", "Release", "install", "make_environment", "running"]

DRIVER = Path(__file__).resolve().with_name("interpreter_driver.py")
INSTALL_SECONDS = 300


class PeerError(Exception):
    """A peer cannot be installed or run here; the message says why, in one line."""


@dataclass(frozen=True, slots=True)
class Release:
    """A peer's release and what its code tool needs.

    Args:
        title: For people.
        name: Of its function in the driver, and of its folder.
        requirements: Exact ones, installed without their dependencies: whole suites want gigabytes that their code
            tools never touch.
    """

    title: str
    name: str
    requirements: tuple[str, ...]


PEERS = (
    Release("GEM 0.1.0", "gem", ("gem-llm==0.1.0", "regex==2026.11.19")),
    Release("SkyRL-gym 0.4.0", "skyrl", ("skyrl-gym==0.4.0",)),
)


def make_environment(folder: Path, *, pip: bool) -> Path:
    """Make a virtual environment unless there is one, and return its interpreter.

    Raises:
        PeerError: When the environment cannot be made.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        _run([sys.executable, "-m", "venv", *([] if pip else ["--without-pip"]), str(folder)])
    return python


def install(release: Release, cache: Path) -> Path:
    """Install a peer into ``cache/name`` and return that environment's interpreter; quick when it is there already.

    Raises:
        PeerError: When it does not install.
    """
    python = make_environment(cache / release.name, pip=True)
    wanted = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", *release.requirements]
    _run([str(python), "-m", "pip", "install", "--quiet", *wanted])
    return python


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise PeerError(f"{command[2]} took more than {INSTALL_SECONDS} s") from None
    if done.returncode != 0:
        raise PeerError(_reason(done.stderr or done.stdout))


def _reason(text: str) -> str:
    """The line of a program's output that says best what went wrong: pip's last error, or the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["no reason given"])[-1].removeprefix("ERROR:").strip()


class Peer:
    """A peer's code tool in a process of its own; made by :func:`running`.

    Args:
        name: For people.
        process: Runs the driver.
        errors: Where the process writes its complaints.
    """

    def __init__(self, name: str, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        self.name = name
        self._process = process
        self._errors = errors

    def call(self, code: str) -> tuple[str, float]:
        """Run a program and return what the tool answers and the seconds it took there.

        Raises:
            PeerError: When the peer's process has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"code": code}).encode() + b"\n")
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            self._process.wait()
            self._errors.seek(0)
            raise PeerError(_reason(self._errors.read().decode(errors="replace")))
        answer = json.loads(line)
        return answer["output"], answer["seconds"]


@contextmanager
def running(release: Release, python: Path) -> Iterator[Peer]:
    """Run a peer's code tool, and end it afterwards.

    Args:
        release: Which one.
        python: Interpreter of the environment it is installed in.
    """
    # The tools call whatever `python` is on the path: their own, as in an activated environment. They also leave things
    # where they run.
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            [python, "-P", DRIVER, release.name],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=folder,
            env={**os.environ, "PATH": path},
        ) as process,
    ):
        yield Peer(release.title, process, errors)
