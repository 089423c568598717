"""Calls as JSON objects between ``<tool_call>`` tags, the form Qwen and Hermes models are trained on."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trajgym.protocols.base import Parsed, Protocol
from trajgym.protocols.checking import Findings
from trajgym.protocols.describe import example_call, introduce
from trajgym.protocols.json_calls import call_of
from trajgym.protocols.payloads import Payload, is_quoted, read_payload, why_broken
from trajgym.protocols.reading import Span, read_turn
from trajgym.protocols.strict_json import Json, skip_blanks, write_json
from trajgym.types import CallError, ToolCall, ToolSpec

__all__ = ["Hermes"]

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
# Within a broken call only an opening tag on a line of its own begins the next one: others may stand in a string.
_BORDER = re.compile(rf"{_CLOSE}|^[ \t]*(?={_OPEN})", re.MULTILINE)
_FORM = '{"name": "<tool>", "arguments": {"<argument>": <value>}}'


class Hermes(Protocol):
    """``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, several in a turn, text around them.

    The object's own end ends a call, not a search for the closing tag, so a string may hold any text. An
    example in a fence, in inline code or directly between quotation marks is not a call.
    """

    name = "hermes"

    def parse(self, text: str, tools: Mapping[str, ToolSpec]) -> Parsed:
        """Read the calls of an assistant turn. Never raises on any string."""
        payloads = _complete_payloads(text)
        turn = read_turn(text, _OPEN, [(start + len(_OPEN), found.end) for start, found in payloads.items()])
        findings = Findings()
        calls: list[Span] = []
        start = turn.live.find(_OPEN)
        while start >= 0:
            payload = payloads.get(start) or read_payload(turn.text, start + len(_OPEN))
            found, end = _finish(turn.text, start, payload)
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


def _complete_payloads(text: str) -> dict[int, Payload]:
    """Return every payload that is whole by its opening tag; the tags inside one are data."""
    payloads = {}
    start = text.find(_OPEN)
    while start >= 0:
        payload = read_payload(text, start + len(_OPEN))
        if payload.json.complete:
            payloads[start] = payload
        start = text.find(_OPEN, payload.end if payload.json.complete else start + len(_OPEN))
    return payloads


def _finish(text: str, start: int, payload: Payload) -> tuple[Json | CallError, int]:
    """Return what was called, or what is wrong, and where the call ends."""
    if not payload.json.complete:
        return _broken(text, start, payload.json)
    after = skip_blanks(text, payload.end)
    rest = text[after : after + len(_CLOSE)]
    if payload.open_fence:
        if not rest:
            return CallError("truncated_call", "The call was cut off within its fence. Write the whole call."), after
        problem = "The fence around the JSON object is not closed. Write the object without a fence."
    elif rest == _CLOSE:
        return payload.json, after + len(_CLOSE)
    elif _CLOSE.startswith(rest) or rest.startswith(_OPEN):
        # The end of the turn (even amid the closing tag) or the next call can stand for the closing tag.
        return payload.json, after if rest.startswith(_OPEN) else len(text)
    else:
        problem = f"Only {_CLOSE} may follow the JSON object of a call, got {rest!r}."
    close, following = text.find(_CLOSE, after), text.find(_OPEN, after)
    end = close + len(_CLOSE) if close >= 0 and (following < 0 or close < following) else following
    return CallError("malformed_json", problem), end if end >= 0 else payload.end


def _broken(text: str, start: int, found: Json) -> tuple[CallError, int]:
    """Tell a call that was cut from one that is wrong, and find where the next thing may begin."""
    assert found.error is not None
    inside = start + len(_OPEN)
    if text.startswith(_OPEN, found.end) and skip_blanks(text, inside) == found.end:
        stop = found.end  # nothing but blanks between two opening tags
    else:
        border = _BORDER.search(text, found.end)
        if border and border[0] == _CLOSE:
            return found.error, border.end()
        stop = border.end() if border else len(text)
    return why_broken(text, inside, stop, found.error), stop
