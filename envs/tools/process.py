"""The parent's side of a tool that can be killed: its process, and the few that wait to be reused."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cloudpickle

from trajgym.envs.tools import worker
from trajgym.envs.tools.base import Tool
from trajgym.envs.tools.worker import Outcome, receive_frame, send_frame
from trajgym.errors import EnvironmentFault

__all__ = ["ToolProcess", "ToolProcessDied", "give_back", "stop_idle_processes", "take"]

_START_SECONDS = 60.0  # to import what a tool needs, on a busy machine
_MAX_IDLE = 8
_MAX_EXTRA = 16_384  # bytes of a reply beside its content
_ROUNDS = 10  # of looking for processes that a tool started while it was being killed

# Reentrant, since a collected ToolSessions closes its processes at any moment, this module's included.
_lock = threading.RLock()
_alive: set[ToolProcess] = set()
_idle: list[ToolProcess] = []


class ToolProcessDied(Exception):
    """The process of a tool is gone or answers nonsense."""


class ToolProcess:
    """A process that serves one tool, in a process group of its own.

    Args:
        tool: The tool.
        seed: What its ``open`` is given, if it has a state.

    Raises:
        EnvironmentFault: It did not start.
    """

    def __init__(self, tool: Tool, seed: int) -> None:
        self.tool = tool
        self._owner = os.getpid()
        payload = tool.payload
        # A fork while the descriptors are open but not yet listed would keep them open in the child for ever.
        with _lock:
            self._channel, theirs = socket.socketpair()
            reading, self._lifeline = os.pipe()
            with theirs:
                try:
                    self._process = subprocess.Popen(  # noqa: S603
                        # -P: the folder of worker.py must not become a place to import from.
                        [sys.executable, "-P", worker.__file__, str(theirs.fileno()), str(reading), str(self._owner)],
                        stdin=subprocess.DEVNULL,
                        pass_fds=(theirs.fileno(), reading),
                        start_new_session=True,
                    )
                except OSError as error:
                    self._channel.close()
                    os.close(self._lifeline)
                    raise EnvironmentFault(f"No process for the tool {tool.name!r}: {error}") from error
                finally:
                    os.close(reading)
            _alive.add(self)
        try:
            deadline = time.monotonic() + _START_SECONDS
            self._send(cloudpickle.dumps((sys.path, payload, seed)), deadline)
            fault = self._receive(_MAX_EXTRA, deadline).get("fault")
        except (TimeoutError, ToolProcessDied) as error:
            self.kill()
            raise EnvironmentFault(f"The process of the tool {tool.name!r} did not start: {error!r}") from error
        except BaseException:
            self.kill()
            raise
        if fault is not None:
            self.kill()
            raise EnvironmentFault(f"The tool {tool.name!r} did not start in its process: {fault}")

    @property
    def usable(self) -> bool:
        """Whether it runs and belongs to this process, not to the one this was forked from."""
        return self in _alive and self._owner == os.getpid()

    @property
    def quiet(self) -> bool:
        """Whether it waits for a call: neither gone nor saying anything unasked."""
        return not select.select([self._channel], [], [], 0)[0]

    def call(self, arguments: Mapping[str, Any], limit: int) -> tuple[Outcome, bool]:
        """Run the tool once.

        Args:
            arguments: Keyword arguments.
            limit: Most characters of the answer.

        Returns:
            The outcome, and whether the tool left nothing behind (threads, processes).

        Raises:
            TimeoutError: It took longer than the tool's timeout, and was killed.
            ToolProcessDied: It died or answered nonsense, and was killed.
            EnvironmentFault: The tool raised one.
        """
        assert self.tool.timeout is not None
        try:
            deadline = time.monotonic() + self.tool.timeout
            self._send(cloudpickle.dumps((dict(arguments), limit)), deadline)
            # JSON writes a character in at most 12 bytes.
            reply = self._receive(12 * limit + _MAX_EXTRA, deadline)
            if reply.get("fault") is not None:
                raise EnvironmentFault(f"The tool {self.tool.name!r}: {reply['fault']}")
            content, error = reply.get("content"), reply.get("error")
            if not isinstance(content, str) or not (error is None or isinstance(error, str)):
                raise ToolProcessDied("its reply has the wrong fields")
        except BaseException:  # Ctrl-C too: a late reply must not be read as the answer to another call
            self.kill()
            raise
        return Outcome(content, error), reply.get("reusable") is True

    def close(self) -> None:
        """Let the tool close itself within its timeout, then end the process."""
        if self.usable:
            with contextlib.suppress(TimeoutError, ToolProcessDied):
                deadline = time.monotonic() + (self.tool.timeout or 0.0)
                self._send(b"", deadline)
                self._receive(0, deadline)
        self.kill()

    def kill(self) -> None:
        """End the process and everything it started, and wait until they are gone. Idempotent."""
        with _lock:
            if not self.usable:
                return
            _alive.discard(self)
        pid = self._process.pid
        for _ in range(_ROUNDS):
            strays = _strays(pid)
            if not strays:
                break
            for stray in strays:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(stray, signal.SIGKILL)
        # Not waited for yet, so the number of the group cannot have been given to another.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        self._process.wait()
        self._release()

    def forget(self) -> None:
        """Drop what a forked child inherited of its parent's process."""
        self._process.returncode = 0  # nothing to wait for, says Popen to its finaliser
        self._release()

    def _release(self) -> None:
        self._channel.close()
        os.close(self._lifeline)

    def _send(self, body: bytes, deadline: float) -> None:
        self._channel.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            send_frame(self._channel, body)
        except TimeoutError:
            raise
        except OSError as error:
            raise ToolProcessDied(str(error)) from error

    def _receive(self, limit: int, deadline: float) -> dict[str, Any]:
        try:
            reply = json.loads(receive_frame(self._channel, limit, deadline))
        except TimeoutError:
            raise
        except (EOFError, OSError, ValueError, RecursionError) as error:
            raise ToolProcessDied(str(error) or "it ended") from error
        if not isinstance(reply, dict):
            raise ToolProcessDied("its reply is no object")
        return reply


def take(tool: Tool) -> ToolProcess:
    """Return a process for a tool without a state: one that waits, or a new one."""
    while True:
        with _lock:
            process = next((p for p in reversed(_idle) if p.tool is tool), None)
            if process is None:
                return ToolProcess(tool, seed=0)
            _idle.remove(process)
        if process.quiet:
            return process
        process.kill()


def give_back(process: ToolProcess) -> None:
    """Keep a process for the next call; the one that waited longest goes when there are too many."""
    with _lock:
        _idle.append(process)
        surplus = _idle.pop(0) if len(_idle) > _MAX_IDLE else None
    if surplus is not None:
        surplus.kill()


def stop_idle_processes() -> None:
    """End every process that waits for a call; happens by itself when the interpreter exits."""
    with _lock:
        waiting = _idle.copy()
        _idle.clear()
    for process in waiting:
        process.kill()


def _strays(pid: int) -> list[int]:
    """List the descendants of a process that have left its process group, as ``setsid`` does."""
    parents: dict[int, tuple[int, int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent, group = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:3]
            if state not in "ZX":
                parents[int(folder.name)] = int(parent), int(group)
    found, frontier = [], {pid}
    while frontier:
        frontier = {child for child, (parent, _) in parents.items() if parent in frontier}
        found += [child for child in frontier if parents[child][1] != pid]
    return found


def _stop_all() -> None:
    stop_idle_processes()
    for process in list(_alive):
        process.kill()


def _forget_all() -> None:
    for process in _alive:
        process.forget()
    _alive.clear()
    _idle.clear()
    _lock.release()


atexit.register(_stop_all)
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forget_all)
