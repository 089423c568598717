"""Which part of a turn may be shown while the rest is still being written, when some of it may be a tool call."""

from __future__ import annotations

from collections.abc import Sequence

from trajgym.serving.text import held_back

__all__ = ["Visible", "call_marker"]


def call_marker(prefix: str) -> str:
    r"""Return the shortest beginning of a call that is worth waiting for.

    Args:
        prefix: What every call begins with.

    >>> [call_marker(prefix) for prefix in ('<tool_call>\n{"name": "', '{"name": "', "Action: ")]
    ['<tool_call>', '{', 'Action:']
    """
    prefix = prefix.lstrip()
    return prefix[:1] if prefix[:1] in "{[`" else prefix.split(maxsplit=1)[0] if prefix else ""


class Visible:
    """Lets the text of a turn through up to where a call, or reasoning, may begin.

    Only at the end of the turn is it known what was a call and what was not: a complete one may still turn out to be a
    quotation, or to be broken. So what stands behind the first marker waits until then.

    Args:
        markers: What a call or reasoning may begin with; an empty one waits for everything.

    Attributes:
        shown: All that was let through.
    """

    def __init__(self, markers: Sequence[str]) -> None:
        self.shown = ""
        self._markers = [*markers]
        self._waiting = ""
        self._closed = "" in markers

    def feed(self, piece: str) -> str:
        """Take new text and return what may be shown of it and of what was held back."""
        self._waiting += piece
        if self._closed:
            return ""
        if not self.shown:
            self._waiting = self._waiting.lstrip()
        found = [place for place in map(self._waiting.find, self._markers) if place >= 0]
        self._closed = bool(found)
        end = min(found) if found else len(self._waiting) - held_back(self._waiting, self._markers)
        # Blanks in front of a call are no part of the text beside it.
        visible = self._waiting[:end].rstrip()
        self._waiting = self._waiting[len(visible) :]
        self.shown += visible
        return visible

    def rest(self, content: str) -> str:
        """Return what is still to be shown, now that the whole content of the turn is known."""
        rest = content[len(self.shown) :] if content.startswith(self.shown) else ""
        self.shown += rest
        return rest
