"""Calls as JSON objects between ``<tool_call>`` tags, the form Qwen and Hermes models are trained on."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from functools import cached_property

from trajgym.protocols.base import Parsed, Protocol
from trajgym.protocols.checking import Findings
from trajgym.protocols.describe import example_call, introduce
from trajgym.protocols.json_calls import call_of
from trajgym.protocols.payloads import Payload, cut_call, is_quoted, read_payload, why_broken
from trajgym.protocols.reading import Span, read_turn
from trajgym.protocols.reasoning import LINE_START
from trajgym.protocols.strict_json import Json, skip_blanks, write_json
from trajgym.types import CallError, ToolCall, ToolSpec

__all__ = ["Hermes"]

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
# Within a broken call only an opening tag on a line of its own begins the next one: others may stand in a string.
_BORDER = re.compile(rf"{_CLOSE}|{LINE_START}[ \t]*(?={_OPEN})", re.MULTILINE)
_TAG = re.compile(f"{_CLOSE}|(?={_OPEN})")
_FORM = '{"name": "<tool>", "arguments": {"<argument>": <value>}}'


class Hermes(Protocol):
    """``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, several in a turn, text around them.

    The object's own end ends a call, not a search for the closing tag, so a string may hold any text. An
    example in a fence, in inline code or directly between quotation marks is not a call.
    """

    name = "hermes"

    def parse(self, text: str, tools: Mapping[str, ToolSpec]) -> Parsed:
        """Read the calls of an assistant turn. Never raises on any string."""
        payloads = _payloads(text)
        whole = {start: payload for start, payload in payloads.items() if _is_data(payload)}
        turn = read_turn(text, _OPEN, [(start + len(_OPEN), payload.end) for start, payload in whole.items()])
        # The others may read differently where the turn ends before the text does.
        reader = _Reader(turn.text, payloads if turn.text == text else whole)
        findings = Findings()
        calls: list[Span] = []
        start = turn.live.find(_OPEN)
        while start >= 0:
            found, end = reader.call(start)
            if not is_quoted(turn.text, start, end):
                findings.add(found if isinstance(found, CallError) else call_of(found, tools))
                calls.append((start, end))
            start = turn.live.find(_OPEN, end)
        if turn.error is not None:
            findings.add(turn.error)
        return Parsed(turn.without(calls), findings.calls, findings.error)

    def render(self, call: ToolCall) -> str:
        """Write one call; ``parse(render(call))`` gives the call back.

        Raises:
            ConfigError: When an argument is not a JSON value.
        """
        payload = write_json({"name": call.name, "arguments": dict(call.arguments)})
        return f"{_OPEN}\n{payload}\n{_CLOSE}"

    def instructions(self, tools: Mapping[str, ToolSpec], style: str = "schema") -> str:
        """Tell a policy which tools there are and how to call them; nothing about how to answer.

        Raises:
            ConfigError: For an unknown style.
        """
        how = [
            "To use a tool, write a JSON object with its name and its arguments between these tags:",
            f"{_OPEN}\n{_FORM}\n{_CLOSE}",
            "You may write several calls in one turn. Then stop: the results come in the next message.",
        ]
        example = f"{_OPEN}{write_json(example_call(next(iter(tools.values()))))}{_CLOSE}" if tools else ""
        return introduce(tools, style, how=how, example=example)


def _payloads(text: str) -> dict[int, Payload]:
    """Return every payload by its opening tag; the tags inside a whole one are data."""
    payloads = {}
    start = text.find(_OPEN)
    while start >= 0:
        payload = payloads[start] = read_payload(text, start + len(_OPEN))
        start = text.find(_OPEN, payload.end if _is_data(payload) else start + len(_OPEN))
    return payloads


def _is_data(payload: Payload) -> bool:
    # Between two quotes there may be anything, such as the end of reasoning and the beginning of a call.
    return payload.json.complete and not isinstance(payload.json.value, str)


class _Reader:
    """Reads the calls of a text.

    Args:
        text: The text.
        payloads: The payloads known already, each by its opening tag.
    """

    def __init__(self, text: str, payloads: Mapping[int, Payload]) -> None:
        self.text = text
        self._payloads = payloads

    # Searched once: a hostile text could make every one of its tags search all of it.
    @cached_property
    def _tags(self) -> list[Span]:
        return [tag.span() for tag in _TAG.finditer(self.text)]

    @cached_property
    def _borders(self) -> list[tuple[int, int, str]]:
        return [(border.start(), border.end(), border[0]) for border in _BORDER.finditer(self.text)]

    def call(self, start: int) -> tuple[Json | CallError, int]:
        """Return what is called behind the opening tag at ``start``, or what is wrong, and where the call ends."""
        text = self.text
        payload = self._payloads.get(start) or read_payload(text, start + len(_OPEN))
        if not payload.json.complete:
            return self._broken(start, payload.json)
        after = skip_blanks(text, payload.end)
        rest = text[after : after + len(_CLOSE)]
        if payload.open_fence:
            if not rest:
                return cut_call(), after
            problem = "The fence around the JSON object is not closed. Write the object without a fence."
        elif rest == _CLOSE:
            return payload.json, after + len(_CLOSE)
        elif _CLOSE.startswith(rest) or rest.startswith(_OPEN):
            # The end of the turn (even amid the closing tag) or the next call can stand for the closing tag.
            return payload.json, after if rest.startswith(_OPEN) else len(text)
        else:
            problem = f"Only {_CLOSE} may follow the JSON object of a call, got {rest!r}."
        index = bisect_left(self._tags, (after, 0))
        return CallError("malformed_json", problem), self._tags[index][1] if index < len(self._tags) else payload.end

    def _broken(self, start: int, found: Json) -> tuple[CallError, int]:
        """Tell a call that was cut from one that is wrong, and find where the next thing may begin."""
        assert found.error is not None
        inside = start + len(_OPEN)
        if self.text.startswith(_OPEN, found.end) and skip_blanks(self.text, inside) == found.end:
            return cut_call(), found.end  # nothing but blanks between two opening tags
        index = bisect_left(self._borders, (found.end, 0, ""))
        _, stop, tag = self._borders[index] if index < len(self._borders) else (0, len(self.text), "")
        if tag == _CLOSE:
            return found.error, stop
        return why_broken(self.text, inside, stop, found.error), stop
