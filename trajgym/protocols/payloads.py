"""JSON payloads of calls: where one ends, whether it was cut or is wrong, and whether it is only quoted."""

from __future__ import annotations

import re
from typing import NamedTuple

from trajgym.protocols.strict_json import Json, read_json, skip_blanks
from trajgym.types import CallError

__all__ = [
    "Payload",
    "close_fence",
    "cut_call",
    "is_quoted",
    "open_fence",
    "read_payload",
    "why_broken",
    "without_fence",
]

_FENCE = re.compile(r"(`{3,})[\w+-]*")
_QUOTES = {"`": "`", '"': '"', "'": "'", "“": "”", "‘": "’"}
# What the object would go on with, were it only a part of something larger.
_BROKEN_OFF = (",", "}", "]", ")", ":", '"')


class Payload(NamedTuple):
    """A JSON value of a call, perhaps in a fence.

    Args:
        json: The value.
        end: Behind the value and its closing fence.
        open_fence: Whether a fence was opened and not closed.
    """

    json: Json
    end: int
    open_fence: bool = False

    def objection(self, text: str) -> CallError | None:
        """Return what is wrong behind a complete value in a form where text may follow a call."""
        after = skip_blanks(text, self.end)
        if self.open_fence:
            if after == len(text):
                return cut_call()
            return CallError(
                "malformed_json", "The fence around the JSON object is not closed. Write the object without a fence."
            )
        if text.startswith(_BROKEN_OFF, after):
            return CallError("malformed_json", f"The JSON of the call is complete, but {text[after]!r} follows it.")
        return None


def open_fence(text: str, position: int) -> tuple[int, str]:
    """Step over blanks and an opening fence; the second value is the fence, or empty."""
    position = skip_blanks(text, position)
    fence = _FENCE.match(text, position)
    return (skip_blanks(text, fence.end()), fence[1]) if fence else (position, "")


def close_fence(text: str, position: int, fence: str) -> int | None:
    """Step over the closing fence, or return ``None`` when it is missing."""
    if not fence:
        return position
    position = skip_blanks(text, position)
    return position + len(fence) if text.startswith(fence, position) else None


def read_payload(text: str, start: int) -> Payload:
    """Read the JSON value at ``start``, after blanks; one fence around it is dropped."""
    position, fence = open_fence(text, start)
    found = read_json(text, position)
    if not found.complete:
        return Payload(found, found.end)
    end = close_fence(text, found.end, fence)
    return Payload(found, found.end if end is None else end, open_fence=end is None)


def cut_call() -> CallError:
    """Return the error of a call that stops in the middle; nothing completes it."""
    return CallError("truncated_call", "The call was cut off. Write the whole call, shorter if need be.")


def why_broken(text: str, start: int, stop: int, error: CallError) -> CallError:
    """Tell JSON that was cut from JSON that is wrong.

    Args:
        text: The turn.
        start: Where the value begins.
        stop: Where the next thing begins, or the end of the text.
        error: What reading found, which had the text behind ``stop`` before it.
    """
    if error.kind == "truncated_call":
        return error
    # Had the text ended here: without the blanks that a string could not hold.
    part = read_json(text[start:stop].rstrip()).error
    return part if part is not None and part.kind == "truncated_call" else error


def is_quoted(text: str, start: int, end: int) -> bool:
    """Whether a call stands directly between quotation marks."""
    return start > 0 and text[end : end + 1] == _QUOTES.get(text[start - 1])


def without_fence(text: str) -> str:
    """Drop a fence that goes around the whole of a text, such as a program."""
    run = len(text) - len(text.lstrip("`"))
    first_line, _, rest = text.partition("\n")
    if run < 3 or "`" in first_line[run:] or not rest.endswith("`" * run):
        return text
    return rest[:-run].removesuffix("\n")
