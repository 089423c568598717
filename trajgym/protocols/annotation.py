"""Calculations as GSM8K annotates them: a turn that stops behind ``<<48/2=`` asks for the value."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trajgym.errors import ConfigError
from trajgym.protocols.base import Parsed
from trajgym.protocols.checking import Findings, checked_call
from trajgym.protocols.describe import introduce
from trajgym.protocols.readback import read_back
from trajgym.protocols.reading import read_turn
from trajgym.protocols.single import SingleCall
from trajgym.types import ToolCall, ToolSpec

__all__ = ["GSM8KAnnotation"]

_OPEN = "<<"
_ANNOTATION = re.compile(r"(?<!<)<<([-+*/.(),0-9]++)=\s*")


class GSM8KAnnotation(SingleCall):
    """``<<expression=`` as the last thing of a turn calls the tool ``calculator``.

    The expression consists of digits and ``+ - * / . ( ) ,``, without blanks. Anything else is text: a finished
    annotation ``<<48/2=24>>``, one with letters, one that goes on behind its ``=``. So a turn never holds more than one
    call, and a turn with a final answer in it (``#### 72``) still calls when it ends with an open annotation.

    Source: Cobbe et al., Training Verifiers to Solve Math Word Problems, 2021 (the calculator of the generator).
    """

    name = "gsm8k_annotation"
    only_tool = "calculator"
    completes = re.compile(r"[-+*/.(),0-9]=\Z")

    def parse(self, text: str, tools: Mapping[str, ToolSpec]) -> Parsed:
        """Read the call at the end of an assistant turn. Never raises on any string."""
        turn = read_turn(text, _OPEN)
        findings = Findings()
        call = _at_the_end(turn.live)
        if call:
            findings.add(checked_call("calculator", {"expression": call[1]}, tools))
        if turn.error is not None:
            findings.add(turn.error)
        return Parsed(turn.without([call.span()] if call else []), findings.calls, findings.error)

    def finished(self, text: str) -> bool:
        """Whether the turn so far ends with an open annotation."""
        return text.endswith("=") and _at_the_end(read_turn(text, _OPEN).live) is not None

    def render(self, call: ToolCall) -> str:
        """Write one call; ``parse(render(call))`` gives the call back.

        Raises:
            ConfigError: When it is not a call of the calculator, or its expression has other characters.
        """
        expression = call.arguments.get("expression")
        if call.name != self.only_tool or len(call.arguments) != 1 or not isinstance(expression, str):
            raise ConfigError(
                f"The protocol {self.name!r} only writes calculator(expression=<text>), "
                f"got {call.name[:60]!r} with {str(list(call.arguments))[:60]}."
            )
        return read_back(self, call, f"{_OPEN}{expression}=")

    def instructions(self, tools: Mapping[str, ToolSpec], style: str = "schema") -> str:
        """Tell a policy how to use the calculator; nothing about how to answer, or about tools it cannot call.

        Raises:
            ConfigError: For an unknown style.
        """
        how = [
            "To use it, write << and an expression and = as in <<48/2= and stop there.",
            "The expression has no blanks: only digits, operators, brackets and the decimal point.",
            "The value comes in the next message.",
        ]
        offered = {name: tool for name, tool in tools.items() if name == self.only_tool}
        return introduce(offered, style, how, "stop behind <<expression=")


def _at_the_end(live: str) -> re.Match[str] | None:
    start = live.rfind(_OPEN)
    found = _ANNOTATION.fullmatch(live, start) if start >= 0 else None
    # Without a digit it is an operator of some programming language, such as <<=.
    return found if found and re.search("[0-9]", found[1]) else None
