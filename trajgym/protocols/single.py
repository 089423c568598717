"""Written forms in which only the first call of a turn runs."""

from __future__ import annotations

import abc
import re

from trajgym.errors import ConfigError
from trajgym.protocols.base import Protocol
from trajgym.types import ExpertTurn

__all__ = ["SingleCall"]


class SingleCall(Protocol):
    """A form that runs the first call of a turn: whatever follows was written before its result was seen.

    Attributes:
        only_tool: The one tool that can be called, where calls carry no name; ``None`` where any tool can.
        completes: What stands at the end of a text, or within its last piece, when a call has just become complete: a
            quick look that tells when :meth:`finished` is worth asking.
    """

    only_tool: str | None = None
    completes: re.Pattern[str] = re.compile("")

    @abc.abstractmethod
    def finished(self, text: str) -> bool:
        """Whether the turn so far ends with the call that will run, so that nothing more has to be written.

        It may say so a little late: when it does, the call is complete.
        """

    def render_turn(self, turn: ExpertTurn) -> str:
        """Write a whole assistant turn: its text, then its call on a line of its own.

        Raises:
            ConfigError: When there are several calls.
        """
        if len(turn.calls) > 1:
            raise ConfigError(
                f"The protocol {self.name!r} runs the first call of a turn only, got {len(turn.calls)}. "
                "Give each call a turn of its own."
            )
        return super().render_turn(turn)
