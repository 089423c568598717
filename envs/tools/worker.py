"""Running one tool: what comes out of it, and the child process in which it can be killed.

This file is both a module (the parent runs tools without a time limit through :func:`invoke`) and the
program of the child. As a program it imports the standard library alone, so that it starts in
milliseconds and nothing of the parent's (torch, say) is loaded twice.

The channel is a socket of its own, so whatever a tool prints cannot be mistaken for a reply. A frame is
eight bytes of length and a body: pickles toward the child, which trusts its parent; bounded JSON back.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import pickle
import re
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

__all__ = ["Outcome", "as_clean_text", "finish", "invoke", "one_line", "receive_frame", "send_frame", "start"]

_UNCLEAN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_DROPPED = "\n[… {} characters dropped …]\n"
_MAX_FAULT = 1_000  # characters
_SET_CHILD_SUBREAPER = 36  # prctl(2)


class Outcome(NamedTuple):
    """What a run of a tool gave: a text, and the kind of error or ``None``."""

    content: str
    error: str | None = None


def as_clean_text(value: Any, limit: int) -> str:
    r"""Turn a return value into text that can be shown, stored and tokenised.

    Args:
        value: Strings stay, dicts and lists become JSON, the rest ``str(value)``.
        limit: Most characters of the result; a longer text loses its middle, and says so.

    >>> as_clean_text("a\x00b\ud800", 100)
    'a\\x00b\\ud800'
    """
    if isinstance(value, (dict, list)):
        try:
            text = json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError):  # not JSON after all: sets, cycles, …
            text = str(value)
    else:
        text = str(value)
    text = _UNCLEAN.sub(lambda c: c[0].encode("unicode_escape", "surrogatepass").decode(), text)
    if len(text) <= limit:
        return text
    kept = max(limit - len(_DROPPED.format(len(text))), 0)
    tail = text[len(text) - kept // 2 :]
    return text[: kept - kept // 2] + _DROPPED.format(len(text) - kept) + tail


def start(target: Callable[..., Any], seed: int) -> Callable[..., Any]:
    """Return what is called: the function itself, or a fresh, opened instance of the class."""
    if not isinstance(target, type):
        return target
    instance: Any = target()
    if hasattr(instance, "open"):
        instance.open(seed)
    return instance  # type: ignore[no-any-return]


def finish(instance: Any) -> None:
    """Close an instance made by :func:`start`, if it can be closed."""
    if hasattr(instance, "close"):
        instance.close()


def invoke(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    limit: int,
    passing: tuple[type[BaseException], ...] = (),
) -> Outcome:
    """Run a tool; whatever it raises, ``SystemExit`` and ``KeyboardInterrupt`` too, becomes an outcome.

    Args:
        function: The tool.
        arguments: Its keyword arguments.
        limit: Most characters of the text.
        passing: Exceptions that are not the tool's own and go through.
    """
    try:
        return Outcome(as_clean_text(function(**arguments), limit))
    except passing:
        raise
    except BaseException as error:
        if isinstance(error, _loaded("trajgym.envs.tools.base", "ToolFailure")):
            return Outcome(as_clean_text(error.message, limit), error.kind)
        return Outcome(as_clean_text(one_line(error), limit), "tool_error")


def one_line(error: BaseException) -> str:
    """Say what was raised in one line, without a traceback: where it happened is our business."""
    try:
        message = " ".join(str(error).split())
    except BaseException:  # the __str__ of a tool's own exception
        message = ""
    return f"{type(error).__name__}: {message}".removesuffix(": ")


def _loaded(module: str, name: str) -> Any:
    # Looked up, not imported: nothing can be an instance of a class that was never loaded.
    return getattr(sys.modules.get(module), name, ())


def send_frame(channel: socket.socket, body: bytes) -> None:
    """Send one frame within the time limit of the socket."""
    channel.sendall(struct.pack("!Q", len(body)) + body)


def receive_frame(channel: socket.socket, limit: int | None = None, deadline: float | None = None) -> bytes:
    """Receive one frame.

    Args:
        channel: The socket.
        limit: Most bytes of its body, unbounded by default.
        deadline: ``time.monotonic()`` value at which to give up.

    Raises:
        TimeoutError: Not all of it came in time.
        EOFError: The other end is gone.
        ValueError: The frame is longer than ``limit``.
    """
    (length,) = struct.unpack("!Q", _receive(channel, 8, deadline))
    if limit is not None and length > limit:
        raise ValueError(f"a frame of {length} bytes, allowed are {limit}")
    return _receive(channel, length, deadline)


def _receive(channel: socket.socket, count: int, deadline: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            channel.settimeout(left)
        part = channel.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def _die_with_parent(lifeline: int) -> None:
    # The parent holds the writing end and never writes. When it goes away, in whatever manner, the kernel
    # kills this process group at once, even inside a call that never gives the interpreter its lock back.
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgid(0))
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if os.getppid() != int(sys.argv[3]):  # gone before the line was armed
        os._exit(1)


def _adopt_orphans() -> None:
    # Processes that the tool starts stay below this one, where they are found and killed with it.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _left_nothing() -> bool:
    if threading.active_count() > 1:
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def _serve(channel: socket.socket) -> None:
    path, payload, seed = pickle.loads(receive_frame(channel))  # noqa: S301
    sys.path[:] = path
    try:
        function = start(pickle.loads(payload), seed)  # noqa: S301
    except BaseException as error:
        send_frame(channel, _fault(error))
        return
    send_frame(channel, json.dumps({"fault": None}).encode())
    while True:
        order = receive_frame(channel)
        if not order:
            finish(function)
            return
        try:
            arguments, limit = pickle.loads(order)  # noqa: S301
            outcome = invoke(function, arguments, limit, _faults())
            reply = json.dumps(outcome._asdict() | {"reusable": _left_nothing()}).encode()
        except BaseException as fault:
            reply = _fault(fault)
        send_frame(channel, reply)


def _faults() -> tuple[type[BaseException], ...]:
    loaded = _loaded("trajgym.errors", "EnvironmentFault")
    return (loaded,) if loaded else ()


def _fault(error: BaseException) -> bytes:
    return json.dumps({"fault": as_clean_text(one_line(error), _MAX_FAULT)}).encode()


def main() -> None:
    """Serve one tool until the parent goes away. Arguments: channel, lifeline, the parent's process id."""
    channel, lifeline = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    for descriptor in (channel.fileno(), lifeline):
        os.set_inheritable(descriptor, False)
    _die_with_parent(lifeline)
    _adopt_orphans()
    with contextlib.suppress(EOFError, OSError):
        _serve(channel)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(0)  # threads that the tool left behind must not keep the process alive


if __name__ == "__main__":
    main()
