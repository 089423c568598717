"""Reading a turn while it is being written."""

from __future__ import annotations

from collections.abc import Mapping

from trajgym.protocols.base import Parsed, Protocol
from trajgym.protocols.reasoning import REASONING
from trajgym.protocols.single import SingleCall
from trajgym.types import ToolSpec

__all__ = ["Stream"]

# Asking whether a turn is finished reads all of it, so the reading is paid for: with this many characters for each
# that was written, and with a start that turns of ordinary length never use up.
_READ_PER_CHARACTER = 8
_READ_AT_ONCE = 200_000
_RECENT = 64  # characters in front of a piece that are looked at with it: longer than any mark
_LOOK_AHEAD = 3  # characters behind a tag that decide whether it is one


class Stream:
    """An assistant turn that arrives in pieces.

    How a text is cut into pieces makes no difference to :attr:`parsed`: it is what the protocol reads in the whole.
    The time that all pieces take together grows as the length of the text, whatever they are.

    Args:
        protocol: The written form.
        tools: The tools on offer.
        in_reasoning: Whether the prompt has opened reasoning already, so that the turn begins inside it.
    """

    def __init__(self, protocol: Protocol, tools: Mapping[str, ToolSpec], *, in_reasoning: bool = False) -> None:
        self._protocol = protocol
        self._tools = tools
        self._pieces: list[str] = []
        self._recent = ""
        self._length = 0
        self._reasons = in_reasoning
        self._behind_tag = 0  # the tags up to here have been seen
        self._due = False
        self._read = 0
        self._finished = False

    @property
    def text(self) -> str:
        """The turn so far."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return "".join(self._pieces)

    @property
    def parsed(self) -> Parsed:
        """What the turn so far says; the result once nothing more comes."""
        return self._protocol.parse(self.text, self._tools)

    @property
    def finished(self) -> bool:
        """Whether generation may stop here, because the one call that will run is complete.

        Only for protocols that run the first call of a turn; elsewhere another call may always follow. It is judged
        where a piece ends, so give pieces as they are generated: a form may be complete only up to what comes next.
        A turn of extraordinary length may be noticed late, and one whose call has the tags of reasoning in it never.
        """
        return self._finished

    def feed(self, piece: str) -> None:
        """Append what was written next."""
        self._pieces.append(piece)
        self._length += len(piece)
        if self._finished or not isinstance(self._protocol, SingleCall):
            return
        window = self._recent + piece
        self._recent = window[-_RECENT:]
        self._follow_reasoning(window)
        self._due = self._due or self._protocol.completes.search(window) is not None
        affordable = self._read + self._length <= _READ_AT_ONCE + _READ_PER_CHARACTER * self._length
        if self._due and affordable and not self._reasons:
            self._due = False
            self._read += self._length
            self._finished = self._protocol.finished(self.text)

    def _follow_reasoning(self, window: str) -> None:
        offset = self._length - len(window)
        for tag in REASONING.finditer(window):
            if self._behind_tag < offset + tag.end() <= self._length - _LOOK_AHEAD:
                self._reasons = not tag["close"]
                self._behind_tag = offset + tag.end()
