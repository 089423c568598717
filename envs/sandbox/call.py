"""One call, seen from the host: a small state machine over non-blocking descriptors.

:meth:`Call.pump` does all that can be done now and never waits for the worker; whoever drives it (a poll loop for one
or many calls, or asyncio) decides how to wait in between.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import TYPE_CHECKING

from trajgym.envs.sandbox.reply import Reply, ReplyError, frame, max_frame, read_reply
from trajgym.envs.sandbox.results import Kind, Result
from trajgym.envs.sandbox.text import clean, halves, join, shorten
from trajgym.errors import ConfigError

if TYPE_CHECKING:
    from trajgym.envs.sandbox.session import Session

__all__ = ["MAX_CODE", "SHORT", "Call", "check_code"]

MAX_CODE = 1_000_000  # characters
SHORT = 0.001
"""Seconds within which most calls end. Until then output waits, so that one descriptor is watched, not two; and so it
does after each look at it, or a program that writes single bytes would cost the host as much as itself."""
_CHUNK = 1 << 16

# Processor seconds between two calls that are not work: waiting for the next request after a reply was sent.
_IDLE = 0.02
# An ended process is reported at once; one that merely closed its channel is not, and is killed after this long.
_EXIT_GRACE = 0.03

_KINDS = {
    "ok": Kind.OK,
    "error": Kind.USER_ERROR,
    "refused": Kind.USER_ERROR,
    "memory": Kind.MEMORY_LIMIT,
    "exit": Kind.EXIT,
}


def check_code(code: object) -> None:
    """Refuse what is no text.

    Raises:
        ConfigError: It is not.
    """
    if not isinstance(code, str):
        raise ConfigError(f"Code is text, a str; got {type(code).__name__}: {code!r:.100}.")


class Call:
    """A call that has been sent; ``result`` is set when it has ended.

    Args:
        session: Where it runs.
        code: What runs.
    """

    def __init__(self, session: Session, code: str) -> None:
        self.session = session
        self.result: Result | None = None
        self.unsent = b""
        self.output_open = True
        self._id = os.urandom(8).hex()
        self._reply = bytearray()
        self._output = bytearray()
        self._frame_limit = max_frame(session.limits.output)
        self._began = time.monotonic()
        self._listen_from = self._began + SHORT
        self._cpu_began = self._cpu = 0.0
        self._began_running = False
        if session.dead is not None:
            kind = Kind.POOL_DIED if session.link.failure else Kind.SESSION_DEAD
            self._end(kind, message=f"This session is over: {session.dead}.")
        elif session.link.failure is not None:
            session.end(session.link.failure)
            self._end(Kind.POOL_DIED, message=f"{session.link.failure}.", state_lost=True)
        elif len(code) > MAX_CODE:
            message = f"The code has {len(code):,} characters; at most {MAX_CODE:,} are run."
            self._end(Kind.USER_ERROR, error_type="invalid_source", message=message, refused=True)
        else:
            self._start(code)

    def look_at(self) -> float:
        """Return the time of the monotonic clock by which to pump again, and to ask again what to watch.

        It is the first at which a limit may be broken, or that of listening to the output again.
        """
        limits = self.session.limits
        now = time.monotonic()
        # One thread cannot use CPU time faster than time passes.
        left = min(self._began + limits.wall_seconds - now, limits.cpu - (self._cpu - self._cpu_began))
        limit = now + max(left, 0.0) + 0.0005
        return min(limit, self._listen_from) if self.output_open and self._listen_from > now else limit

    def interest(self) -> dict[int, int]:
        """Return the descriptors to watch and for what, as ``select.poll`` takes them."""
        found = {self.session.control.fileno(): select.POLLIN | (select.POLLOUT if self.unsent else 0)}
        if self.output_open and self._listen_from <= time.monotonic():
            found[self.session.output] = select.POLLIN
        return found

    def pump(self) -> Result | None:
        """Do what can be done without waiting; return the result once there is one."""
        if self.result is not None:
            return self.result
        if self.unsent:
            self._send()
        try:
            reply = self._receive()
        except ReplyError as error:
            self._drain()
            return self._fault(Kind.PROTOCOL_VIOLATION, f"The reply was forged or broken ({error}).")
        except EOFError:
            return self._ended()
        self._drain()
        limits = self.session.limits
        if len(self._output) > limits.output_bytes:
            return self._fault(Kind.OUTPUT_LIMIT, f"More than {limits.output_bytes:,} bytes of output.")
        cpu = self.session.cpu_clock()
        self._cpu = self._cpu if cpu is None else cpu
        if self._cpu - self._cpu_began >= limits.cpu:
            # Also when a reply has come: what a busy host sees late is late all the same.
            return self._fault(Kind.CPU_TIMEOUT, f"More than {limits.cpu:g} s of processor time.")
        if reply is not None:
            return self._answered(reply)
        if cpu is None:  # it has ended, and a process forked from this one holds its end of the channel open
            return self._ended()
        if time.monotonic() - self._began >= limits.wall_seconds:
            return self._fault(Kind.WALL_TIMEOUT, f"More than {limits.wall_seconds:g} s, asleep or waiting.")
        return None

    def _start(self, code: str) -> None:
        """Look for anything that happened since the last call, then send the request."""
        session = self.session
        cpu = session.cpu_clock()
        pending = dict(session.both.poll(0))
        if pending.get(session.control.fileno(), 0) & select.POLLIN:
            try:
                if session.control.recv(1, 0x40):  # MSG_DONTWAIT
                    self._fault(Kind.PROTOCOL_VIOLATION, "A reply came that nobody had asked for.")
                    return
            except OSError:
                pass
            self._ended()
        elif cpu is None or pending.get(session.control.fileno()):
            self._ended()
        elif session.calls and (cpu - session.cpu_end > _IDLE or pending.get(session.output, 0) & select.POLLIN):
            self._fault(Kind.BACKGROUND_ACTIVITY, "Something ran or wrote after the last call had ended.")
        else:
            session.calls += 1
            self._began_running = True
            self._cpu_began = self._cpu = cpu
            self.unsent = frame({"id": self._id, "code": code})
            self._send()

    def _send(self) -> None:
        try:
            self.unsent = self.unsent[self.session.control.send(self.unsent) :]
        except BlockingIOError:
            pass
        except OSError:  # the worker is gone: its end is seen when reading
            self.unsent = b""

    def _receive(self) -> Reply | None:
        """Return the reply if it is complete.

        Raises:
            ReplyError: It is none.
            EOFError: The channel is closed.
        """
        while True:
            try:
                part = self.session.control.recv(_CHUNK)
            except BlockingIOError:
                return None
            except ConnectionResetError:
                part = b""
            if not part:
                raise EOFError
            self._reply += part
            reply = read_reply(self._reply, self._id, self._frame_limit)
            if reply is not None or len(part) < _CHUNK:
                return reply

    def _drain(self) -> None:
        """Take what was written, up to a little more than may be; more may come together before it is listened to."""
        while self.output_open and len(self._output) <= self.session.limits.output_bytes:
            try:
                part = os.read(self.session.output, _CHUNK)
            except BlockingIOError:
                return
            self._output += part
            self.output_open = bool(part)
            self._listen_from = time.monotonic() + SHORT
            if len(part) < _CHUNK:  # the pipe was emptied; what has come in since is for the next look
                return

    def _answered(self, reply: Reply) -> Result:
        self.session.cpu_end = self._cpu
        error = {} if reply.status == "ok" else {"error_type": shorten(clean(reply.type), 200)}
        return self._end(
            _KINDS[reply.status],
            reply,
            message=shorten(clean(reply.message), 2_000),
            traceback=shorten(clean(reply.traceback), 8_000),
            exit_code=reply.exit_code if reply.status == "exit" else None,
            refused=reply.status == "refused",
            **error,
        )

    def _fault(self, kind: Kind, message: str) -> Result:
        """End the session over something the host saw."""
        self.session.end(f"{kind}: {message.rstrip('.')}")
        if self._began_running:
            self._drain()
        return self._end(kind, message=message, state_lost=True)

    def _ended(self) -> Result:
        """The worker closed its channel: find out how it ended."""
        self._drain()
        session = self.session
        end = session.link.end_of(session.number, session.pidfd, _EXIT_GRACE)
        if session.link.failure:
            session.end(session.link.failure)
            return self._end(Kind.POOL_DIED, message=f"{session.link.failure}.", state_lost=True)
        if session.dead is not None:  # another thread closed it
            return self._end(Kind.SESSION_DEAD, message=f"This session is over: {session.dead}.", state_lost=True)
        if end is None:
            return self._fault(Kind.PROCESS_EXIT, "The interpreter closed its channel.")
        status, self._cpu = end.status, max(end.cpu, self._cpu)
        if not os.WIFSIGNALED(status):
            code = os.WEXITSTATUS(status)
            session.end(f"the interpreter exited with status {code}")
            message = f"The interpreter exited with status {code} before the code had ended."
            return self._end(Kind.PROCESS_EXIT, message=message, exit_code=code, state_lost=True)
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
        session.end(f"the interpreter was ended by {name}")
        if number in (signal.SIGXCPU, signal.SIGKILL) and self._cpu >= session.limits.session_cpu - 1:
            message = f"More than {session.limits.session_cpu:g} s of processor time in this session."
            return self._end(Kind.CPU_TIMEOUT, message=message, signal=number, state_lost=True)
        message = f"The interpreter crashed ({name})."
        return self._end(Kind.CRASH, message=message, signal=number, state_lost=True)

    def _end(self, kind: Kind, reply: Reply | None = None, **fields: object) -> Result:
        output, dropped = self._shown(reply)
        self.result = Result(
            kind,
            output,
            dropped,
            isolation=self.session.isolation,
            seconds=time.monotonic() - self._began,
            cpu_seconds=self._cpu - self._cpu_began,
            **fields,  # type: ignore[arg-type]
        )
        return self.result

    def _shown(self, reply: Reply | None) -> tuple[str, int]:
        """Return the output with the echoed value behind it, its middle missing if it is long, and what is missing."""
        text = clean(self._output.decode("utf-8", "replace"))
        tail, dropped = "", 0
        if reply is not None and reply.value:
            text += ("\n" if text and not text.endswith("\n") else "") + clean(reply.value)
            tail, dropped = clean(reply.tail), reply.dropped
        limit = self.session.limits.output
        total = len(text) + len(tail) + dropped
        if total <= limit:
            return text, 0
        if not dropped:
            head, tail, dropped = halves(text + tail, limit)
            return join(head, tail, dropped), dropped
        head, tail = text[: limit - limit // 2], tail[-(limit // 2) :]
        dropped = total - len(head) - len(tail)
        return join(head, tail, dropped), dropped
