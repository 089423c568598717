"""The contenders of the benchmark of environments, each installed into an environment of its own and run there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from interpreter_peers import PeerError, make_environment
from machine import descendants

__all__ = ["OURS", "PEERS", "Peak", "PeerError", "Process", "Release", "install", "running", "watched"]

HERE = Path(__file__).resolve().parent
DRIVER = HERE / "envs_driver.py"
INSTALL_SECONDS = 1200
LOOK = 0.05  # seconds between two looks at a contender's memory
MEGABYTE = 1e6
GONE, HIDDEN = -1, -2


@dataclass(frozen=True, slots=True)
class Release:
    """A project's release.

    Args:
        title: For people.
        name: Of its module ``envs_NAME``, of its files in ``envs_lines`` and of its folder.
        requirements: What is installed, with all that it asks for.
        extra: Those of the requirements that the project needs for what is measured here and does not ask for.
    """

    title: str
    name: str
    requirements: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()


OURS = Release("trajgym", "trajgym")
PEERS = (
    Release("GEM 0.1.0", "gem", ("gem-llm==0.1.0",), ("datasets", "pylatexenc")),
    Release("SkyRL-gym 0.4.0", "skyrl", ("skyrl-gym==0.4.0",)),
    Release("aviary 0.37.0", "aviary", ("aviary.gsm8k==0.37.0", "fhaviary==0.37.0")),
    Release("OpenEnv 0.3.0", "openenv", ("openenv-core==0.3.0",), ("smolagents",)),
)


def install(release: Release, cache: Path) -> Path:
    """Install a peer into ``cache/envs/name`` and return that interpreter; quick when it is there already.

    Raises:
        PeerError: When it does not install.
    """
    (cache / "envs").mkdir(parents=True, exist_ok=True)
    python = make_environment(cache / "envs" / release.name, pip=True)
    wanted = "\n".join([*release.requirements, *release.extra, ""])
    done_before = cache / "envs" / release.name / "installed.txt"
    if done_before.exists() and done_before.read_text(encoding="utf-8") == wanted:
        return python  # pip would ask the index about everything again
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        done = subprocess.run(
            [*command, *release.requirements, *release.extra],
            capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise PeerError(f"installing it took more than {INSTALL_SECONDS} s") from None
    if done.returncode != 0:
        raise PeerError(last_word(done.stderr or done.stdout))
    done_before.write_text(wanted, encoding="utf-8")
    return python


def last_word(text: str) -> str:
    """Return the line of a program's output that says best what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["no reason given"])[-1].removeprefix("ERROR:").strip()


class Process:
    """A contender at work; made by :func:`running`.

    Args:
        release: Which.
        process: Runs the driver.
        errors: Where the process writes its complaints.
    """

    def __init__(self, release: Release, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        self.title = release.title
        self.name = release.name
        self.lacks: dict[str, str] = {}
        self.error = ""
        self.process = process
        self._errors = errors

    def ask(self, **request: Any) -> dict[str, Any]:
        """Have the driver do something and return its answer.

        Raises:
            PeerError: When it cannot, or its process has ended.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            self.process.wait()
            self._errors.seek(0)
            raise PeerError(last_word(self._errors.read().decode(errors="replace")))
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(str(answer["error"]))
        return answer

    def attempt(self, **request: Any) -> dict[str, Any]:
        """Do as :meth:`ask`; once something has failed, :attr:`error` says what, and answers are empty."""
        if not self.error:
            try:
                return self.ask(**request)
            except PeerError as error:
                self.error = f"{request['do']}: {error}"
        return {}


@contextmanager
def running(release: Release, python: Path | str, problems: Sequence[dict[str, str]]) -> Iterator[Process]:
    """Run a contender's driver, and end it afterwards.

    Args:
        release: Which one.
        python: Interpreter of the environment it is installed in.
        problems: Question and answer of each.

    Raises:
        PeerError: When it does not start.
    """
    # Code tools call whatever `python` is on the path: their own, as in an activated environment. They also leave
    # things where they run.
    path = f"{Path(python).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    quiet = {"PATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            [python, "-P", DRIVER, release.name, HERE],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=folder,
            env={**os.environ, **quiet},
        ) as process,
    ):
        try:
            contender = Process(release, process, errors)
            contender.lacks = contender.ask(problems=list(problems))["lacks"]
            yield contender
        finally:
            assert process.stdin is not None
            process.stdin.close()  # it ends with its input
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@dataclass(slots=True)
class Peak:
    """The most that a tree of processes was seen to use.

    Args:
        megabytes: Proportional set sizes added up: what processes share counts once.
        processes: How many there were at once.
        hidden: How many of them at most did not tell their memory, which only root may ask of all.
    """

    megabytes: float = 0.0
    processes: int = 0
    hidden: int = 0

    def look(self, ancestor: int) -> None:
        """Look at the tree now."""
        sizes = [_proportional(pid) for pid in (ancestor, *descendants(ancestor))]
        there = [size for size in sizes if size != GONE]
        self.megabytes = max(self.megabytes, sum(size for size in there if size != HIDDEN) / MEGABYTE)
        self.processes = max(self.processes, len(there))
        self.hidden = max(self.hidden, there.count(HIDDEN))


@contextmanager
def watched(ancestor: int) -> Iterator[Peak]:
    """Look at a tree of processes again and again meanwhile; this disturbs what is timed."""
    peak, over = Peak(), threading.Event()

    def look() -> None:
        while not over.wait(LOOK):
            peak.look(ancestor)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()
        peak.look(ancestor)


def _proportional(process: int) -> int:
    """Return the proportional set size of a process in bytes, or one of the two marks."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except PermissionError:
        return HIDDEN
    except OSError:
        return GONE
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


if sys.platform != "linux":
    raise ImportError("This benchmark reads /proc, which only Linux has.")
