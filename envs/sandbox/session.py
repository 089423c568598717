"""A session as the host sees it: calls go in, typed results come out, and nothing in between is believed.

The host watches three things of its own: the reply channel, the output pipe and the worker's CPU clock. Whatever fault
it decides ends the session, so no code runs on after its call.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import select
import shutil
import signal
import socket
import threading
import time
from collections.abc import Sequence
from types import TracebackType

from trajgym.envs.sandbox.call import Call
from trajgym.envs.sandbox.limits import MEBIBYTE, Limits
from trajgym.envs.sandbox.link import Link
from trajgym.envs.sandbox.reply import HELLO, frame
from trajgym.envs.sandbox.results import IsolationUnavailable, Result

__all__ = ["Session", "drive"]

# A short call is over before its output needs reading; until then one descriptor is watched, not two.
_SHORT = 0.001
_HELLO_SECONDS = 20.0
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
        self.link, self.limits, self.isolation = link, limits, isolation
        self.number, self.pidfd = worker
        self.control, self.output = control, output
        self.dead: str | None = None
        """Why the session is over, or ``None``."""
        self.calls = 0
        self.cpu_end = 0.0
        """Processor time of the worker when its last call ended, in seconds."""
        self._clock = (~_pid_of(self.pidfd) << 3) | 2  # MAKE_PROCESS_CPUCLOCK in the kernel's posix-timers.h
        self._folder = folder
        self._busy = threading.Lock()
        link.members.add(self)

    @classmethod
    def open(cls, link: Link, isolation: str, limits: Limits, seed: int, folder: str | None) -> Session:
        """Have a worker forked and wait until its jail is up; :meth:`Pool.open` is the way for everybody else.

        Raises:
            IsolationUnavailable: It did not come up.
        """
        try:
            ours, theirs = socket.socketpair()
            reading, writing = os.pipe()
        except OSError as error:
            _remove(folder)
            raise IsolationUnavailable(
                f"A session takes three file descriptors: {error}. Raise `ulimit -n`."
            ) from error
        worker = -1, -1
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
        try:
            worker = link.spawn(order, [theirs.fileno(), writing])
            _hear_hello(ours, reading)
            session = cls(link, worker, limits, isolation, ours, reading, folder)
        except BaseException:
            ours.close()
            os.close(reading)
            if worker[1] >= 0:
                os.close(worker[1])
            _remove(folder)
            raise
        finally:
            theirs.close()
            os.close(writing)
        ours.sendall(frame({"seed": seed}))
        ours.setblocking(False)
        os.set_blocking(reading, False)
        return session

    def call(self, code: str) -> Result:
        """Run ``code`` as a cell of a notebook and wait for its end.

        Args:
            code: Python source.

        Raises:
            PoolClosed: In a process forked from the one that opened the pool.
            RuntimeError: Another call of this session is running.
        """
        return drive([(self, code)])[0]

    async def acall(self, code: str) -> Result:
        """Run ``code`` without blocking the event loop. A cancelled call ends the session.

        Args:
            code: Python source.
        """
        with self.claim():
            call = Call(self, code)
            try:
                if call.result is None:
                    await _watch_in_loop(call)
            finally:
                if call.result is None:
                    self.end("a call was cancelled")
                self.release()
        assert call.result is not None
        return call.result

    def close(self) -> None:
        """End the interpreter and everything it holds. Idempotent."""
        self.end("the session was closed")
        self.release()

    def end(self, why: str) -> None:
        """Kill the worker; the descriptors stay until :meth:`release`."""
        if self.dead is None:
            self.dead = why
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def release(self) -> None:
        """Close the descriptors of an ended session, and remove its scratch folder."""
        if self.dead is not None and self.output >= 0:
            self.link.forget(self.number)
            self.abandon()
            _remove(self._folder)

    def abandon(self) -> None:
        """Close the descriptors without ending the worker: for a forked process, which has copies of them."""
        self.dead = self.dead or "it belongs to the process that this one was forked from"
        self.control.close()
        os.close(self.output)
        os.close(self.pidfd)
        self.output = self.pidfd = -1

    def claim(self) -> _Claim:
        """Take the session for one call."""
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("A session runs one call at a time; open another session, or wait.")
        return _Claim(self._busy)

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
            self.close()

    def __repr__(self) -> str:
        state = f"ended: {self.dead}" if self.dead else "open"
        return f"<Session {self.number}, isolation {self.isolation}, {state}>"


class _Claim:
    """Gives the session back, whatever happened."""

    def __init__(self, busy: threading.Lock) -> None:
        self._busy = busy

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        self._busy.release()


def drive(pairs: Sequence[tuple[Session, str]]) -> list[Result]:
    """Run one call in each of several sessions at once, from one thread.

    Args:
        pairs: Sessions, each of them once, and what to run in them.

    Returns:
        One result per pair, in order.
    """
    claims: list[_Claim] = []
    calls: list[Call] = []
    try:
        for session, _ in pairs:
            claims.append(session.claim())
        calls.extend(Call(session, code) for session, code in pairs)
        _watch([call for call in calls if call.result is None])
    finally:
        for call in calls:
            if call.result is None:
                call.session.end("a call was interrupted")
            call.session.release()
        for claim in claims:
            claim.__exit__()
    return [call.result for call in calls if call.result is not None]


def _watch(calls: list[Call]) -> None:
    """Pump the calls as their descriptors become ready, until all have ended."""
    poller = select.poll()
    owner: dict[int, Call] = {}
    watched: dict[Call, dict[int, int]] = {}

    def update(call: Call, output: bool) -> None:
        before = watched.get(call, {})
        now = {} if call.result is not None else call.interest(output or len(before) > 1)
        for descriptor in before.keys() - now.keys():
            poller.unregister(descriptor)
            del owner[descriptor]
        for descriptor, events in now.items():
            if before.get(descriptor) != events:
                poller.register(descriptor, events)
                owner[descriptor] = call
        if now:
            watched[call] = now
        else:
            watched.pop(call, None)

    for call in calls:
        update(call, output=False)
    look_at_clocks = time.monotonic() + _SHORT
    while watched:
        for descriptor, _ in poller.poll(max(look_at_clocks - time.monotonic(), 0) * 1000):
            if descriptor in owner:  # its call may have ended in this very round
                call = owner[descriptor]
                call.pump()
                update(call, output=False)
        if time.monotonic() >= look_at_clocks:
            for call in list(watched):
                call.pump()
                update(call, output=True)
            look_at_clocks = time.monotonic() + min((call.seconds_left() for call in watched), default=0.0)


async def _watch_in_loop(call: Call) -> None:
    """Pump a call from the running event loop until it has ended."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    watched: dict[int, int] = {}
    timer = loop.call_later(_SHORT, lambda: look(late=True))

    def update(now: dict[int, int]) -> None:
        for descriptor in watched.keys() - now.keys():
            loop.remove_reader(descriptor)
            loop.remove_writer(descriptor)
        for descriptor, events in now.items():
            if watched.get(descriptor) != events:
                loop.add_reader(descriptor, look)
                if events & select.POLLOUT:
                    loop.add_writer(descriptor, look)
                else:
                    loop.remove_writer(descriptor)
        watched.clear()
        watched.update(now)

    def look(late: bool = False) -> None:
        nonlocal timer
        try:
            call.pump()
        except BaseException as error:  # the loop would swallow it, and this call wait for ever
            if not ended.done():
                ended.set_exception(error)
            return
        if call.result is not None:
            update({})
            if not ended.done():
                ended.set_result(None)
            return
        update(call.interest(late or len(watched) > 1))
        if late:
            timer = loop.call_later(call.seconds_left(), lambda: look(late=True))

    try:
        update(call.interest(output=False))
        await ended
    finally:
        timer.cancel()
        update({})


def _hear_hello(control: socket.socket, output: int) -> None:
    """Wait until the worker says that its jail is up."""
    control.settimeout(_HELLO_SECONDS)
    try:
        said = control.recv(len(HELLO))
    except OSError as error:
        said, reason = b"", str(error)
    else:
        reason = os.read(output, 4096).decode("utf-8", "replace") if said != HELLO else ""
    if said != HELLO:
        raise IsolationUnavailable(f"A worker could not build its jail: {reason or 'it said nothing'}")


def _pid_of(pidfd: int) -> int:
    with open(f"/proc/self/fdinfo/{pidfd}") as file:
        return int(next(line for line in file if line.startswith("Pid:")).split()[1])


def _remove(folder: str | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
