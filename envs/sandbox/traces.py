"""Errors in the caller's cells, told the way Python tells them but without anybody else's frames."""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from traceback import FrameSummary, StackSummary, TracebackException
from typing import Any, NamedTuple

from trajgym.envs.sandbox.text import shorten

__all__ = ["Description", "cell_name", "describe", "exact"]

MAX_NAME = 200  # characters
MAX_MESSAGE = 2_000  # characters
MAX_TRACEBACK = 8_000  # characters
_MAX_FRAMES = 1_000  # the innermost; more only after the recursion limit was raised

_UNSHOWABLE = "<the message could not be shown>"


class Description(NamedTuple):
    """An error in words.

    Attributes:
        type: Name of its class.
        message: ``str`` of it, at most 2,000 characters.
        traceback: As Python prints it, at most 8,000 characters.
    """

    type: str
    message: str
    traceback: str


def cell_name(number: int) -> str:
    """Return the file name under which a cell is compiled."""
    return f"<cell {number}>"


def exact(text: str) -> str:
    """Return the characters of ``text`` as a plain string, whatever methods a subclass has."""
    return "".join((text,))


def describe(error: BaseException) -> Description:
    """Describe an error of the caller's. Nothing that its class does makes this raise, short of running out of memory.

    Args:
        error: Anything raised.
    """
    # Through the slot of ``type``: a metaclass can hide the attribute.
    name = shorten(exact(vars(type)["__name__"].__get__(type(error))), MAX_NAME)
    try:
        message = shorten(exact(str(error)), MAX_MESSAGE)
    except BaseException:  # its __str__ raised, SystemExit perhaps
        message = _UNSHOWABLE
    try:
        trace = shorten(_format(error), MAX_TRACEBACK)
    except BaseException:  # attributes that raise, or a program that changed the modules which do this
        trace = f"{name}: {message}\n" if message else f"{name}\n"
    return Description(name, message, trace)


def _format(error: BaseException) -> str:
    """Return the traceback of an error with the frames of cells alone, in the errors that it names as well."""
    summary = TracebackException(
        type(error), error, error.__traceback__, limit=-_MAX_FRAMES, lookup_lines=False, compact=True
    )
    related: list[TracebackException | None] = [summary]
    while related:
        one = related.pop()
        if one is not None:
            one.stack = _CellFrames(one.stack)
            if getattr(one, "text", "") is None and _is_cell(one.filename):
                # What the compiler finds after parsing comes without the line.
                one.text = linecache.getline(one.filename, int(one.lineno or 0))
            related += [one.__cause__, one.__context__, *(one.exceptions or ())]
    return "".join(summary.format())


def _is_cell(filename: object) -> bool:
    return isinstance(filename, str) and filename.startswith("<cell ")


class _CellFrames(StackSummary):
    """The frames of cells. Each place is formatted once, however often a recursion passes it."""

    def __init__(self, frames: Iterable[FrameSummary]) -> None:
        super().__init__(frame for frame in frames if _is_cell(frame.filename))
        self._formatted: dict[tuple[Any, ...], str] = {}

    def format_frame_summary(self, frame_summary: FrameSummary, **options: Any) -> str:
        frame = frame_summary
        place = (frame.filename, frame.name, frame.lineno, frame.colno, frame.end_lineno, frame.end_colno)
        if place not in self._formatted:
            self._formatted[place] = super().format_frame_summary(frame, **options)
        return self._formatted[place]
