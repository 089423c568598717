"""Reading a turn while it is being written."""

from __future__ import annotations

from collections.abc import Mapping

from trajgym.protocols.base import Parsed, Protocol
from trajgym.protocols.reading import REASONING
from trajgym.protocols.single import SingleCall
from trajgym.types import ToolSpec

__all__ = ["Stream"]


class Stream:
    """An assistant turn that arrives in pieces.

    How a text is cut into pieces makes no difference to :attr:`parsed`: it is what the protocol reads in the whole.

    Args:
        protocol: The written form.
        tools: The tools on offer.
        in_reasoning: Whether the prompt has opened reasoning already, so that the turn begins inside it.
    """

    def __init__(self, protocol: Protocol, tools: Mapping[str, ToolSpec], *, in_reasoning: bool = False) -> None:
        self._protocol = protocol
        self._tools = tools
        self._pieces: list[str] = []
        self._reasons = in_reasoning
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
        """
        return self._finished

    def feed(self, piece: str) -> None:
        """Append what was written next."""
        self._pieces.append(piece)
        if self._finished or not isinstance(self._protocol, SingleCall):
            return
        if self._reasons:
            closing = [tag for tag in REASONING.finditer(self.text) if tag["close"]]
            self._reasons = not closing
        self._finished = not self._reasons and self._protocol.finished(self.text)
