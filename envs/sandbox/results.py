"""What a call gives: one frozen :class:`Result`, whose :class:`Kind` says what happened."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from trajgym.envs.sandbox.text import shorten, shorten_more
from trajgym.errors import EnvironmentFault

__all__ = ["IsolationUnavailable", "Kind", "PoolClosed", "Result"]


class Kind(str, Enum):
    """How a call ended. Only ``Ok`` is success: an exit status of 0 is not."""

    OK = "Ok"
    """The code ran to its end."""
    USER_ERROR = "UserError"
    """The code raised, or could not be read; the session goes on."""
    EXIT = "Exit"
    """The code asked to exit; the session goes on."""
    MEMORY_LIMIT = "MemoryLimit"
    """An allocation was refused; the session goes on."""
    CPU_TIMEOUT = "CpuTimeout"
    """The code used more processor time than a call may."""
    WALL_TIMEOUT = "WallTimeout"
    """The code took longer than a call may, asleep or waiting."""
    OUTPUT_LIMIT = "OutputLimit"
    """The code wrote more than a call may."""
    CRASH = "Crash"
    """The interpreter was ended by a signal, such as a segmentation fault."""
    PROCESS_EXIT = "ProcessExit"
    """The interpreter ended without an answer, as by ``os._exit``."""
    PROTOCOL_VIOLATION = "ProtocolViolation"
    """Something other than one proper reply came over the reply channel."""
    BACKGROUND_ACTIVITY = "BackgroundActivity"
    """Something ran or wrote between two calls."""
    SESSION_DEAD = "SessionDead"
    """The session was over before the call, or was closed while it ran."""
    POOL_DIED = "PoolDied"
    """The machinery failed, not the code: what was computed with it means nothing."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one call. All text is clean UTF-8 of bounded length, and data: nothing in it is trusted.

    Args:
        kind: How the call ended.
        output: What the code wrote to stdout and stderr, in order, then the repr of a final expression. The middle
            of a long text is missing; the text says how much.
        dropped: Characters missing in ``output``.
        error_type: Name of the exception's class; if ``refused``, ``"unsupported_magic"`` or ``"invalid_source"``.
        message: What was wrong, in a sentence.
        traceback: The traceback, of the caller's own lines only.
        exit_code: Status the code or its process exited with.
        signal: Number of the signal that ended the process.
        refused: Whether the code was not run, for what it is.
        state_lost: Whether the session is over, with every name in it.
        isolation: What kept the code from the host: ``"namespaces"``, ``"landlock"`` or ``"none"``.
        seconds: Time the call took.
        cpu_seconds: Processor time the call took.
    """

    kind: Kind
    output: str = ""
    dropped: int = 0
    error_type: str = ""
    message: str = ""
    traceback: str = ""
    exit_code: int | None = None
    signal: int | None = None
    refused: bool = False
    state_lost: bool = False
    isolation: str = "none"
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the code ran to its end."""
        return self.kind is Kind.OK

    @property
    def text(self) -> str:
        """Everything to show: the output, then the traceback or the message."""
        return self._shown(self.output)

    def text_within(self, limit: int) -> str:
        """Return everything to show in at most ``limit`` characters; it is the output that gives way first."""
        room = max(limit - len(self._shown("")) - 1, 0)
        return shorten(self._shown(shorten_more(self.output, self.dropped, room)), limit)

    def _shown(self, output: str) -> str:
        reason = self.traceback or ("" if self.ok else f"{self.kind}: {self.message}")
        return output + ("\n" if output and reason and not output.endswith("\n") else "") + reason


class IsolationUnavailable(EnvironmentFault):
    """This machine cannot isolate code as asked; the message says what is missing and how to get it."""


class PoolClosed(EnvironmentFault):
    """The pool was closed, or belongs to the process that this one was forked from."""
