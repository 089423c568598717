"""Calls as a Python list, ``[name(argument=value)]``, the form Llama 3.2 and Llama 4 models are trained on."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trajgym.protocols.base import Parsed, Protocol
from trajgym.protocols.checking import Findings
from trajgym.protocols.describe import introduce
from trajgym.protocols.python_calls import OPENING, CallList, read_call, scan_list, write_call
from trajgym.protocols.readback import read_back
from trajgym.protocols.reading import Span, Turn, read_turn
from trajgym.protocols.reasoning import LINE_START
from trajgym.types import CallError, ExpertTurn, ToolCall, ToolSpec

__all__ = ["Pythonic"]

# A bracket in the middle of a line is prose. Llama 4 may put its tokens around a list.
_OPEN = re.compile(rf"{LINE_START}[ \t]*(?:<\|python_start\|>\s*)?(?={OPENING})", re.MULTILINE)
_AFTER = re.compile(r"\s*<\|python_end\|>[ \t\r]*|[ \t\r]*")
_FORM = "[<tool>(<argument>=<value>), ...]"


class Pythonic(Protocol):
    """A list of calls on a line of its own, arguments by name, values as Python literals; text around it.

    The list begins its line and nothing else stands on the line it ends on; it may span several. An example in a
    fence is not a call, and neither is a list of anything else. Nothing is evaluated: an argument that is not a
    literal is an error. Each call of a list stands for itself: one that is wrong or cut does not take others with it.
    """

    name = "pythonic"

    def parse(self, text: str, tools: Mapping[str, ToolSpec]) -> Parsed:
        """Read the calls of an assistant turn. Never raises on any string."""
        lists = _complete_lists(text)
        turn = read_turn(text, "[", [(text.index("(", start) + 1, found.end) for start, found in lists.items()])
        findings = Findings()
        spans: list[Span] = []
        opening = _OPEN.search(turn.live)
        while opening:
            whole = lists.get(opening.end())
            found, end = _finish(turn, whole or scan_list(turn.text, opening.end()))
            for element in found.elements:
                findings.add(read_call(element, tools))
            if found.error is not None:
                findings.add(found.error)
            spans.append((opening.start(), end))
            opening = _OPEN.search(turn.live, end)
        if turn.error is not None:
            findings.add(turn.error)
        return Parsed(turn.without(spans), findings.calls, findings.error)

    def render(self, call: ToolCall) -> str:
        """Write one call; ``parse(render(call))`` gives the call back.

        Raises:
            ConfigError: When an argument is not a JSON value, or a name is not one in Python.
        """
        return read_back(self, call, f"[{write_call(call)}]")

    def render_turn(self, turn: ExpertTurn) -> str:
        """Write a whole assistant turn: its text, then all its calls as one list on a line of its own.

        Raises:
            ConfigError: As for :meth:`render`.
        """
        calls = ", ".join(self.render(call)[1:-1] for call in turn.calls)
        return "\n".join([*([turn.text] if turn.text else []), *([f"[{calls}]"] if calls else [])])

    def instructions(self, tools: Mapping[str, ToolSpec], style: str = "schema") -> str:
        """Tell a policy which tools there are and how to call them; nothing about how to answer.

        Raises:
            ConfigError: For an unknown style.
        """
        how = [
            "To use tools, write a list of calls on a line of its own, arguments by name, values as in Python:",
            _FORM,
            "Then stop: the results come in the next message.",
        ]
        return introduce(tools, style, how, _FORM)


def _complete_lists(text: str) -> dict[int, CallList]:
    """Return every whole list by its opening bracket; what is in its brackets is data."""
    lists = {}
    opening = _OPEN.search(text)
    while opening:
        found = scan_list(text, opening.end())
        if found.error is None:
            lists[opening.end()] = found
        opening = _OPEN.search(text, max(found.end, opening.end() + 1))
    return lists


def _finish(turn: Turn, found: CallList) -> tuple[CallList, int]:
    """Return the list, or what is wrong around it, and where the next one may begin."""
    if found.error is not None:
        return found, found.end
    after = _AFTER.match(turn.text, found.end)
    assert after is not None
    line_end = turn.live.find("\n", after.end())
    line_end = len(turn.live) if line_end < 0 else line_end
    if after.end() == line_end:
        return found, line_end
    rest = turn.text[after.end() : line_end][:20]
    error = CallError("malformed_call", f"A list of calls is followed by a line break, got {rest!r}.")
    return CallList((), found.end, error), line_end
