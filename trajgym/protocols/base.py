"""Text to calls and back: one interface, one file per written form.

A protocol is the grammar in which a policy writes tool calls. The environment parses with it, a
scripted policy and the demonstrations write with it; neither knows the other.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass

from trajgym.types import CallError, ExpertTurn, ToolCall, ToolSpec

__all__ = ["Parsed", "Protocol"]


@dataclass(frozen=True)
class Parsed:
    """What a protocol read in one assistant turn.

    Args:
        text: The turn without its calls and without its reasoning.
        calls: The well-formed calls, in order; a bad one does not drop its good siblings.
        error: The first typed error; may stand beside calls.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    error: CallError | None = None


class Protocol(abc.ABC):
    """One written form of tool calls. Stateless: instances may be shared."""

    name: str

    @abc.abstractmethod
    def parse(self, text: str, tools: Mapping[str, ToolSpec]) -> Parsed:
        """Read the calls of an assistant turn. Never raises on any string."""

    @abc.abstractmethod
    def render(self, call: ToolCall) -> str:
        """Write one call; ``parse(render(call))`` gives the call back."""

    @abc.abstractmethod
    def instructions(self, tools: Mapping[str, ToolSpec], style: str = "schema") -> str:
        """Tell a policy which tools there are and how to call them.

        Args:
            tools: The tools on offer.
            style: ``"schema"`` gives each tool's JSON schema; ``"signature"`` one short line per tool.
        """

    def render_turn(self, turn: ExpertTurn) -> str:
        """Write a whole assistant turn: its text, then its calls, each on a line of its own."""
        parts = [turn.text] if turn.text else []
        return "\n".join(parts + [self.render(call) for call in turn.calls])
