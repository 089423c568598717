"""A session as the host sees it: calls go in, typed results come out, and nothing in between is believed.

The host watches three things of its own: the reply channel, the output pipe and the worker's CPU clock. Whatever fault
it decides ends the session.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Sequence
from types import TracebackType

from trajgym.envs.sandbox.call import SHORT, Call, check_code
from trajgym.envs.sandbox.limits import MEBIBYTE, Limits
from trajgym.envs.sandbox.link import Link
from trajgym.envs.sandbox.reply import HELLO, frame
from trajgym.envs.sandbox.results import IsolationUnavailable, Result
from trajgym.envs.sandbox.scratch import remove_folder
from trajgym.envs.sandbox.watch import watch, watch_in_loop

__all__ = ["Session", "drive"]

_HELLO_SECONDS = 20.0
_END_SECONDS = 1.0
_MANY_FILES = 100
_DEFAULT_SCRATCH = 16 * MEBIBYTE


class Session:
    """One interpreter with a state of its own; made by :meth:`trajgym.envs.sandbox.pool.Pool.open`. One call at a time.

    A context manager, synchronous and asynchronous, that closes it.
    """

    def __init__(
        self,
        link: Link,
        worker: tuple[int, int],
        limits: Limits,
        isolation: str,
        control: socket.socket,
        output: int,
        folder: str | None,
    ) -> None:
        self._clock = (~_pid_of(worker[1]) << 3) | 2  # MAKE_PROCESS_CPUCLOCK in the kernel's posix-timers.h
        self.link, self.limits, self.isolation = link, limits, isolation
        self.number, self.pidfd = worker
        self.control, self.output = control, output
        self.dead: str | None = None
        """Why the session is over, or ``None``."""
        self.calls = 0
        self.cpu_end = 0.0
        """Processor time of the worker when its last call ended, in seconds."""
        self.replies, self.both = select.poll(), select.poll()
        """Ready when there is something to read on the reply channel, or on that or the output pipe."""
        self.replies.register(control, select.POLLIN)
        self.both.register(control, select.POLLIN)
        self.both.register(output, select.POLLIN)
        self._folder = folder
        self._busy = threading.Lock()
        link.members.add(self)

    @classmethod
    def open(cls, link: Link, isolation: str, limits: Limits, seed: int, folder: str | None) -> Session:
        """Have a worker forked and wait until its jail is up; :meth:`Pool.open` is the way for everybody else.

        Raises:
            IsolationUnavailable: It did not come up.
        """
        scratch = limits.scratch
        if scratch is None:
            scratch = _DEFAULT_SCRATCH if "namespaces" in link.layers else 0
        order = {
            "memory": limits.memory,
            "scratch": scratch,
            "folder": folder,
            "session_cpu": math.ceil(limits.session_cpu),
            "output": limits.output,
        }
        with contextlib.ExitStack() as undo:
            undo.callback(_remove, folder)
            try:
                ours, theirs = socket.socketpair()
                undo.callback(ours.close)
                # The worker's ends are closed here before anything is heard from it, or its own end would not be.
                with theirs:
                    reading, writing = os.pipe()
                    undo.callback(os.close, reading)
                    try:
                        worker = link.spawn(order, [theirs.fileno(), writing])
                    finally:
                        os.close(writing)
                undo.callback(_dismiss, link, worker)
                os.set_blocking(reading, False)
                _hear_hello(ours, reading)
                ours.sendall(frame({"seed": seed}))
                ours.setblocking(False)
                session = cls(link, worker, limits, isolation, ours, reading, folder)
            except OSError as error:
                scarce = error.errno in (errno.EMFILE, errno.ENFILE)
                hint = "; a session takes three file descriptors, raise `ulimit -n`" if scarce else ""
                raise IsolationUnavailable(f"A session could not be opened: {error}{hint}.") from error
            undo.pop_all()
        return session

    def call(self, code: str) -> Result:
        """Run ``code`` as a cell of a notebook and wait for its end.

        Args:
            code: Python source.

        Raises:
            ConfigError: ``code`` is no text.
            PoolClosed: In a process forked from the one that opened the pool.
            RuntimeError: Another call of this session is running.
        """
        check_code(code)
        with self.claim():
            call = Call(self, code)
            try:
                # What drive() does, for the case that the answer comes soon.
                if call.result is None and not (self.replies.poll(SHORT * 1000) and call.pump()):
                    watch([call])
            finally:
                if call.result is None:
                    self.end("a call was interrupted")
        assert call.result is not None
        return call.result

    async def acall(self, code: str) -> Result:
        """Run ``code`` without blocking the event loop. A cancelled call ends the session.

        Args:
            code: Python source.
        """
        check_code(code)
        with self.claim():
            call = Call(self, code)
            try:
                if call.result is None:
                    await watch_in_loop(call)
            finally:
                if call.result is None:
                    self.end("a call was cancelled")
        assert call.result is not None
        return call.result

    def close(self) -> None:
        """End the interpreter and everything it holds, also while a call runs in another thread. Idempotent."""
        self.end("the session was closed")
        self.release()

    def end(self, why: str) -> None:
        """Kill the worker; the descriptors stay until :meth:`release`."""
        if self.dead is None:
            # In this order: from the second line on, another thread may close the descriptor.
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            self.dead = why

    def release(self) -> None:
        """Let go of what an ended session holds, unless a call in another thread still uses it, which then will."""
        if self.dead is not None and self._busy.acquire(blocking=False):
            try:
                if self.output >= 0:
                    if self._folder is not None:  # until it has ended, it may put more into it
                        self.link.end_of(self.number, self.pidfd, _END_SECONDS)
                    self.link.forget(self.number)
                    self.abandon()
                    _remove_soon(self._folder)
            finally:
                self._busy.release()

    def abandon(self) -> None:
        """Close the descriptors without ending the worker: for a forked process, which has copies of them."""
        self.dead = self.dead or "it belongs to the process that this one was forked from"
        if self.output < 0:
            return
        held = self.output, self.pidfd
        self.output = self.pidfd = -1
        self.control.close()
        for descriptor in held:
            with contextlib.suppress(OSError):  # a fork may find another thread half-way through this
                os.close(descriptor)

    def claim(self) -> _Claim:
        """Take the session for one call."""
        self.link.check_owner()
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("A session runs one call at a time; open another session, or wait.")
        return _Claim(self, self._busy)

    def cpu_clock(self) -> float | None:
        """Processor time the worker has used, in seconds, or ``None`` when it is gone."""
        try:
            return time.clock_gettime(self._clock)
        except OSError:
            return None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "dead", "") is None:
            # Nothing that waits: this may run in the middle of whatever else this thread does.
            self.end("it was dropped")
            self.link.forget(self.number)
            self.abandon()
            if self._folder is not None and _holds_little(self._folder):  # else it goes with the pool's
                _remove(self._folder)

    def __repr__(self) -> str:
        state = f"ended: {self.dead}" if self.dead else "open"
        return f"<Session {self.number}, isolation {self.isolation}, {state}>"


class _Claim:
    """Gives the session back, whatever happened."""

    def __init__(self, session: Session, busy: threading.Lock) -> None:
        self._session, self._busy = session, busy

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        self._busy.release()
        self._session.release()


def drive(pairs: Sequence[tuple[Session, str]]) -> list[Result]:
    """Run one call in each of several sessions at once, from one thread.

    Args:
        pairs: Sessions, each of them once, and what to run in them.

    Returns:
        One result per pair, in order.
    """
    for _, code in pairs:
        check_code(code)
    claims: list[_Claim] = []
    calls: list[Call] = []
    try:
        for session, _ in pairs:
            claims.append(session.claim())
        calls.extend(Call(session, code) for session, code in pairs)
        watch([call for call in calls if call.result is None])
    finally:
        for call in calls:
            if call.result is None:
                call.session.end("a call was interrupted")
        for claim in claims:
            claim.__exit__()
    return [call.result for call in calls if call.result is not None]


def _hear_hello(control: socket.socket, output: int) -> None:
    """Wait until the worker says that its jail is up."""
    control.settimeout(_HELLO_SECONDS)
    try:
        said = control.recv(len(HELLO))
    except OSError as error:
        said, reason = b"", str(error)
    else:
        reason = ""
        with contextlib.suppress(BlockingIOError):
            reason = os.read(output, 4096).decode("utf-8", "replace") if said != HELLO else ""
    if said != HELLO:
        raise IsolationUnavailable(f"A worker could not build its jail: {reason or 'it was ended'}.")


def _dismiss(link: Link, worker: tuple[int, int]) -> None:
    """End a worker that no session came of."""
    number, pidfd = worker
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)
    link.forget(number)


def _pid_of(pidfd: int) -> int:
    with open(f"/proc/self/fdinfo/{pidfd}") as file:
        return int(next(line for line in file if line.startswith("Pid:")).split()[1])


def _remove_soon(folder: str | None) -> None:
    """Remove a folder; if there is much in it, in a thread of its own: a program can make that take minutes."""
    if folder is None or _holds_little(folder):
        _remove(folder)
    else:
        threading.Thread(target=_remove, args=(folder,), name="trajgym-scratch").start()


def _holds_little(folder: str) -> bool:
    """Whether a folder holds a few files, and no folder."""
    try:
        with os.scandir(folder) as entries:
            few = [entry.is_dir(follow_symlinks=False) for entry in itertools.islice(entries, _MANY_FILES)]
    except OSError:
        return False
    return not any(few) and len(few) < _MANY_FILES


def _remove(folder: str | None) -> None:
    if folder is not None:
        remove_folder(folder)
