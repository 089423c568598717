"""The host's end of a zygote: starting it, asking it for workers, hearing how they end."""

from __future__ import annotations

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
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from trajgym.envs.sandbox.results import IsolationUnavailable, PoolClosed
from trajgym.envs.sandbox.scratch import remove_folder

__all__ = ["End", "Link"]

_MESSAGE = 1 << 16
_START_SECONDS = 120.0
_EVENT_SECONDS = 20.0
_CLOSE_SECONDS = 2.0

# The jail side finds its own files under the names they have here, and nothing else of the package.
_BOOT = """
import sys, types
for name in ("trajgym", "trajgym.envs", "trajgym.envs.sandbox"):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [sys.argv[1]]
from trajgym.envs.sandbox.zygote import main
main(int(sys.argv[2]), int(sys.argv[3]))
"""

# Nothing of the trainer's environment goes in. One thread for linear algebra: a worker may have no more.
_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PATH": "",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "TZ": "UTC",
}
# Which kernels a linear algebra library takes is a matter of this machine.
_KEPT = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


class End(NamedTuple):
    """How a worker ended: its status as ``os.waitpid`` gives it, and the processor time it used, in seconds."""

    status: int
    cpu: float


class Link:
    """A running zygote.

    Args:
        settings: What the zygote is told; see :class:`trajgym.envs.sandbox.zygote.Zygote`.
        python: The interpreter it runs in.

    Raises:
        IsolationUnavailable: It could not build the jail.
    """

    def __init__(self, settings: Mapping[str, Any], python: str) -> None:
        self.layers: frozenset[str] = frozenset(settings["layers"])
        """Those of :data:`trajgym.envs.sandbox.jail.LAYERS` that are on."""
        self.failure: str | None = None
        """What ended the zygote, or ``None``."""
        self.members: weakref.WeakSet[Any] = weakref.WeakSet()
        self._owner = os.getpid()
        self._numbers = 0
        self._spawned: dict[int, int | str] = {}
        self._ends: dict[int, End] = {}
        self._watched: set[int] = set()
        self._sending, self._receiving = threading.Lock(), threading.Lock()
        try:
            self._channel, process = _start(python)
        except OSError as error:
            raise IsolationUnavailable(f"no process could be started: {error}; see `ulimit -n` and -u") from error
        self._finalizer = weakref.finalize(self, _stop, self._channel, process, settings["folder"])
        self._process = process
        _LINKS.add(self)
        self.ready: dict[str, Any] = {}
        self._channel.setblocking(False)
        self._send(json.dumps(settings).encode(), [])
        if not self._wait(lambda: bool(self.ready), _START_SECONDS):
            reason = self.failure or f"it did not start within {_START_SECONDS:g} s"
            self.close()
            raise IsolationUnavailable(reason)

    @property
    def pid(self) -> int:
        """Process id of the child that was started."""
        return self._process.pid

    def spawn(self, order: Mapping[str, Any], descriptors: Sequence[int]) -> tuple[int, int]:
        """Have a worker forked.

        Args:
            order: What it may use; see :meth:`trajgym.envs.sandbox.jail.Jail.enter`.
            descriptors: The worker's ends of the reply channel and of the output pipe.

        Returns:
            The worker's number and a pidfd of it.

        Raises:
            IsolationUnavailable: The zygote is gone, or cannot fork.
        """
        with self._sending:
            self._numbers += 1
            number = self._numbers
            self._watched.add(number)
            self._send(json.dumps({**order, "number": number}).encode(), descriptors)
        try:
            if not self._wait(lambda: number in self._spawned, _EVENT_SECONDS):
                # Waiting longer would stop the run, and so would one that never answers: it is given up and built anew.
                self.failure = self.failure or f"the interpreter's pool did not answer within {_EVENT_SECONDS:g} s"
            spawned = self._spawned.pop(number, self.failure)
            if not isinstance(spawned, int):
                raise IsolationUnavailable(f"No worker could be started: {spawned}.")
        except BaseException:
            self.forget(number)
            raise
        return number, spawned

    def end_of(self, number: int, pidfd: int, grace: float) -> End | None:
        """Return how a worker ended, or ``None`` if it has not.

        Args:
            number: The worker's.
            pidfd: The worker's.
            grace: Seconds to wait for its end.
        """
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        ended = bool(poller.poll(grace * 1000))
        self._wait(lambda: number in self._ends, _EVENT_SECONDS if ended else 0.0)
        return self._ends.get(number)

    def forget(self, number: int) -> None:
        """Hear no more of a worker."""
        self._watched.discard(number)
        self._ends.pop(number, None)
        if isinstance(pidfd := self._spawned.pop(number, None), int):
            os.close(pidfd)

    def alive(self) -> bool:
        """Return whether the zygote still serves; its messages so far are read."""
        self._wait(lambda: False, 0.0)
        return self.failure is None

    def is_owner(self) -> bool:
        """Return whether this is the process that made it."""
        return os.getpid() == self._owner

    def check_owner(self) -> None:
        """Refuse work in a forked process, whose sessions would be shared with its parent's.

        Raises:
            PoolClosed: This is such a process.
        """
        if not self.is_owner():
            raise PoolClosed(
                f"This pool belongs to process {self._owner}, and this is process {os.getpid()}, forked from it. "
                "Make a new Pool here."
            )

    def close(self) -> None:
        """End the zygote and all its workers. Idempotent."""
        self.failure = self.failure or "the pool was closed"
        self._finalizer()

    def abandon(self) -> None:
        """Let go of everything without ending it: for the child of a fork, which holds copies of the descriptors."""
        self._finalizer.detach()
        self._channel.close()
        # Not ours to wait for, and no warning that nobody did.
        self._process.returncode = 0
        for member in list(self.members):
            member.abandon()

    def _send(self, message: bytes, descriptors: Sequence[int]) -> None:
        deadline = time.monotonic() + _EVENT_SECONDS
        while self.failure is None and time.monotonic() < deadline:
            try:
                socket.send_fds(self._channel, [message], descriptors)
                return
            except BlockingIOError:
                # It may be waiting for us to read; waiting for it alone would be the end of both.
                self._wait(lambda: False, 0.0)
                poller = select.poll()
                poller.register(self._channel, select.POLLOUT | select.POLLIN)
                poller.poll(100)
            except (OSError, ValueError) as error:  # the latter where it is closed
                self.failure = f"the interpreter's pool died ({error})"

    def _wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Read events until ``done()``, for at most ``seconds``; whichever thread waits reads for all."""
        deadline = time.monotonic() + seconds
        while not done():
            left = deadline - time.monotonic()
            if self.failure is not None or not self._receiving.acquire(timeout=max(left, 0.0)):
                break
            try:
                if done():
                    break
                poller = select.poll()
                try:
                    poller.register(self._channel, select.POLLIN)
                except ValueError:  # closed by another thread, or at the interpreter's end
                    self.failure = self.failure or "the pool was closed"
                    break
                if not poller.poll(max(deadline - time.monotonic(), 0.0) * 1000):
                    break
                self._receive()
            finally:
                self._receiving.release()
        return done()

    def _receive(self) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._channel, _MESSAGE, 1)
        except BlockingIOError:
            return
        except OSError:
            message, descriptors = b"", []
        if not message:
            self.failure = "the interpreter's pool died"
            return
        event = json.loads(message)
        kind, number = event["event"], event.get("number")
        if kind == "ready":
            self.ready = event
        elif kind == "exit":
            if number in self._watched:
                self._ends[number] = End(event["status"], event["cpu"])
        elif number is None:
            self.failure = event["reason"]
        else:
            # Where no descriptor is free here, the kernel delivers none.
            reason = event.get("reason", "no file descriptor is free; raise `ulimit -n`")
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
            self._spawned[number] = descriptors[0] if descriptors else reason
            if number not in self._watched:  # nobody waits any more
                self.forget(number)


def _start(python: str) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = -1
    here = os.path.dirname(os.path.abspath(__file__))
    environment = _ENVIRONMENT | {name: os.environ[name] for name in _KEPT if name in os.environ}
    try:
        parent = os.pidfd_open(os.getpid())
        command = [python, "-s", "-S", "-P", "-c", _BOOT, here, str(theirs.fileno()), str(parent)]
        process = subprocess.Popen(  # noqa: S603
            command,
            pass_fds=(theirs.fileno(), parent),
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if sys.flags.dev_mode else subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is the trainer's
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        if parent >= 0:
            os.close(parent)
    return ours, process


def _stop(channel: socket.socket, process: subprocess.Popen[bytes], folder: str | None) -> None:
    with contextlib.suppress(OSError):
        channel.shutdown(socket.SHUT_RDWR)  # while a thread waits at this end, the other would not see it close
    channel.close()
    try:
        process.wait(_CLOSE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its child too, which may have lost its order to die with it
        process.wait()
    if folder is not None:  # it does so itself, unless somebody killed it
        remove_folder(folder)


_LINKS: weakref.WeakSet[Link] = weakref.WeakSet()


def _abandon_all() -> None:
    for link in list(_LINKS):
        link.abandon()


os.register_at_fork(after_in_child=_abandon_all)
