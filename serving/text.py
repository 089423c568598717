"""Tokens to text while they come, and where a text has to stop.

A token is not a text: it may hold half a character, and what it looks like may depend on the token before it. A piece
of text is given out once no later token can change it, and once it can no longer be the beginning of a stop string.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["TextStream", "held_back"]

_HALF = "\ufffd"  # what an incomplete character is decoded to


class TextStream:
    """Decodes an answer token by token.

    Args:
        decode: Token ids to text.
        stops: The answer ends before the first of these.

    Attributes:
        text: All that was given out.
        stopped: Whether a stop string was found; nothing is given out after it.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        self.text = ""
        self.stopped = False
        self._decode, self._stops = decode, tuple(stops)
        self._ids: list[int] = []
        self._context = self._read = 0  # ids before _read are text already; those from _context on are its context
        self._held = ""

    def feed(self, token: int) -> str:
        """Take the next token and return the text that is certain now, maybe none."""
        self._ids.append(token)
        before = self._decode(self._ids[self._context : self._read])
        after = self._decode(self._ids[self._context :])
        if after.endswith(_HALF) or len(after) <= len(before):
            return ""
        self._context, self._read = self._read, len(self._ids)
        return self._give(after[len(before) :], final=False)

    def end(self) -> str:
        """Return what was still held back."""
        before = self._decode(self._ids[self._context : self._read])
        rest = self._decode(self._ids[self._context :])[len(before) :]
        self._context = self._read = len(self._ids)
        return self._give(rest, final=True)

    def _give(self, piece: str, *, final: bool) -> str:
        if self.stopped:
            return ""
        text = self._held + piece
        found = [place for place in map(text.find, self._stops) if place >= 0]
        if found:
            self.stopped, self._held, text = True, "", text[: min(found)]
        else:
            length = 0 if final else held_back(text, self._stops)
            self._held, text = text[len(text) - length :], text[: len(text) - length]
        self.text += text
        return text


def held_back(text: str, markers: Sequence[str]) -> int:
    """Return how many characters at the end of ``text`` may be the beginning of one of these markers.

    >>> held_back("so <tool", ["<tool_call>"]), held_back("so 1 < 2", ["<tool_call>"])
    (5, 0)
    """
    longest = max((len(marker) for marker in markers), default=0)
    for length in range(min(longest - 1, len(text)), 0, -1):
        if any(marker.startswith(text[-length:]) for marker in markers):
            return length
    return 0
