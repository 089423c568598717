"""Calls as bare JSON objects or behind ``<|python_tag|>``, the forms Llama 3.1 to 3.3 are trained on."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from functools import cached_property

from trajgym.protocols.base import Parsed, Protocol
from trajgym.protocols.checking import Findings
from trajgym.protocols.describe import example_call, introduce
from trajgym.protocols.json_calls import call_of
from trajgym.protocols.payloads import Payload, cut_call, is_quoted, read_payload, why_broken, without_fence
from trajgym.protocols.python_calls import read_call, scan_list
from trajgym.protocols.raw_input import raw_call
from trajgym.protocols.reading import Span, Turn, read_turn
from trajgym.protocols.reasoning import CLOSING, LINE_START
from trajgym.protocols.strict_json import Json, skip_blanks, write_json
from trajgym.types import CallError, ExpertTurn, ToolCall, ToolSpec

__all__ = ["Llama3"]

_TAG = "<|python_tag|>"
_INTERPRETER = "python"
# Where JSON may stand: behind the tag, and as the first thing of the reply.
_START = re.compile(rf"(?:\A|{CLOSING}|<\|python_tag\|>)\s*" r"(?=\{|\[\s*\{|`{3})")
_JSON = re.compile(r"(?:`{3,}[\w+-]*\s*)?(?:\{|\[\s*\{)")
# A reply may begin with a brace and be no call: a set, or an answer in JSON.
_KEYS = ("name", "parameters", "arguments", "function")
_LIKE_A_CALL = re.compile(r"\{\s*(?:[\"'“]?(?:name|parameters|arguments|function|type)\b|(?:\"\w*)?\s*\Z)")
# Within a broken call only a tag on a line of its own begins the next one: others may stand in a string.
_NEXT_TAG = re.compile(rf"{LINE_START}[ \t]*(?=<\|python_tag\|>)", re.MULTILINE)
_NEXT_OBJECT = re.compile(r"\}\s*;\s*(?=\{\s*\"name\"\s*:)")
_BUILT_IN = re.compile(r"([^\W\d]\w*)\.call(?=\()")
_OPENING_QUOTES = tuple("\"'`“‘")
_FORM = f'{_TAG}{{"name": "<tool>", "parameters": {{"<argument>": <value>}}}}'


class Llama3(Protocol):
    """``{"name": …, "parameters": {…}}`` as the whole reply, or anywhere behind ``<|python_tag|>``.

    Several objects may follow each other, with ``;`` or blanks between them. The key ``arguments`` is read as well.
    Behind the tag there may also be ``name.call(argument=literal)``, Llama's spelling for built-in tools; anything
    else there is a program for the tool ``python``. An object amid prose is text.
    """

    name = "llama3_json"

    def parse(self, text: str, tools: Mapping[str, ToolSpec]) -> Parsed:
        """Read the calls of an assistant turn. Never raises on any string."""
        opaque = list(_data(text))
        turn = read_turn(text, _TAG, opaque)
        bare = _bare_call(turn)
        if bare is not None:
            turn = read_turn(text, "{", opaque)
        reader = _Reader(turn, tools)
        findings = Findings()
        calls: list[Span] = []
        position = 0
        if bare is not None:
            found, position = reader.objects(bare)
            calls.append((bare, position))
            for one in found:
                findings.add(one)
        start = turn.live.find(_TAG, position)
        while start >= 0:
            found, position = reader.behind_tag(start + len(_TAG))
            if not is_quoted(turn.text, start, position):
                calls.append((start, position))
                for one in found:
                    findings.add(one)
            start = turn.live.find(_TAG, position)
        if turn.error is not None:
            findings.add(turn.error)
        return Parsed(turn.without(calls), findings.calls, findings.error)

    def render(self, call: ToolCall) -> str:
        """Write one call, with the tag in front, so that text may stand before it.

        ``parse(render(call))`` gives the call back.

        Raises:
            ConfigError: When an argument is not a JSON value.
        """
        return self.render_turn(ExpertTurn(calls=(call,)))

    def render_turn(self, turn: ExpertTurn) -> str:
        """Write a whole assistant turn: its text, then the tag and all its calls."""
        if not turn.calls:
            return turn.text
        calls = [write_json({"name": call.name, "parameters": dict(call.arguments)}) for call in turn.calls]
        return "\n".join([*([turn.text] if turn.text else []), _TAG + "; ".join(calls)])

    def instructions(self, tools: Mapping[str, ToolSpec], style: str = "schema") -> str:
        """Tell a policy which tools there are and how to call them; nothing about how to answer.

        Raises:
            ConfigError: For an unknown style.
        """
        how = [
            "To use a tool, write this, with its name and its parameters:",
            _FORM,
            "You may write several objects with ; between them. Then stop: the results come in the next message.",
        ]
        example = [self.render(ToolCall(**example_call(tool))) for tool in [*tools.values()][:1]]
        return introduce(tools, style, how, "".join(example))


def _data(text: str) -> Iterator[Span]:
    """Yield the whole JSON values where calls may stand: what is in them is not markup."""
    start = _START.search(text)
    while start:
        position = begin = start.end()
        while _JSON.match(text, position):
            payload = read_payload(text, position)
            if not payload.json.complete:
                break
            # Its brace is left to be seen, so that what begins the calls can be found.
            yield position + (text[position] != "`"), payload.end
            begin, position = payload.end, _behind_separator(text, payload.end)
        start = _START.search(text, max(begin, start.end(), 1))


def _behind_separator(text: str, position: int) -> int:
    position = skip_blanks(text, position)
    return skip_blanks(text, position + 1) if text.startswith(";", position) else position


def _bare_call(turn: Turn) -> int | None:
    """Return where the reply, reasoning aside, begins with a call."""
    begin = 0
    for start, end in turn.reasoning:
        if turn.text[begin:start].strip():
            break
        begin = end
    begin = skip_blanks(turn.text, begin)
    if not _JSON.match(turn.text, begin):
        return None
    payload = read_payload(turn.text, begin)
    if payload.json.complete:
        value = payload.json.value
        whole = not payload.open_fence and not turn.without([(begin, payload.end)])
        is_call = isinstance(value, dict) and any(key in value for key in _KEYS)
        return begin if is_call and (whole or turn.text[begin] == "{") else None
    return begin if _LIKE_A_CALL.match(turn.text, begin) else None


class _Reader:
    """Reads calls of a turn.

    Args:
        turn: The turn.
        tools: The tools on offer.
    """

    def __init__(self, turn: Turn, tools: Mapping[str, ToolSpec]) -> None:
        self.turn = turn
        self.text = turn.text
        self.tools = tools

    @cached_property
    def _tags(self) -> list[int]:
        return [tag.end() for tag in _NEXT_TAG.finditer(self.text)]

    def behind_tag(self, position: int) -> tuple[list[ToolCall | CallError], int]:
        """Return what is called behind a tag, or what is wrong there, and where that ends."""
        tag, position = position, skip_blanks(self.text, position)
        if position == len(self.text) or self.text.startswith(_TAG, position):
            return [cut_call()], position
        if _JSON.match(self.text, position):
            return self.objects(position)
        start = tag - len(_TAG)
        if start > 0 and self.text[start - 1] in _OPENING_QUOTES:
            return [], tag  # a mention of the tag
        following = self.turn.live.find(_TAG, position)
        end = following if following >= 0 else len(self.text)
        code = without_fence(self.text[position:end].strip())
        built_in = _BUILT_IN.match(code)
        if built_in and built_in[1] in self.tools:
            return [self._built_in(built_in[1], code, built_in.end())], end
        return [raw_call(_INTERPRETER, code, self.tools)], end

    def objects(self, position: int) -> tuple[list[ToolCall | CallError], int]:
        """Return the calls of the objects that follow each other from ``position`` on, and where they end."""
        found: list[ToolCall | CallError] = []
        while True:
            payload = read_payload(self.text, position)
            if payload.json.complete:
                found.append(self._call(payload))
                position = _behind_separator(self.text, payload.end)
            else:
                error, position = self._broken(position, payload.json)
                found.append(error)
            if not self.text.startswith("{", position):
                return found, position

    def _call(self, payload: Payload) -> ToolCall | CallError:
        objection = payload.objection(self.text)
        if objection is not None:
            return objection
        value = payload.json.value
        own_key = not isinstance(value, dict) or "parameters" in value or "arguments" not in value
        return call_of(payload.json, self.tools, arguments_key="parameters" if own_key else "arguments")

    def _built_in(self, name: str, code: str, bracket: int) -> ToolCall | CallError:
        whole, begun = scan_list(f"[{code}]", 0).error, scan_list(f"[{code}", 0).error
        if whole is not None and begun is not None and begun.kind == "truncated_call":
            return cut_call()
        return read_call(name + code[bracket:], self.tools)

    def _broken(self, start: int, found: Json) -> tuple[CallError, int]:
        """Return what is wrong with an incomplete object, and where the next one or a tag may stand."""
        assert found.error is not None
        border = self._border(found.end)
        following = _NEXT_OBJECT.search(self.text, found.end, border)
        if following:
            return found.error, following.end()
        return why_broken(self.text, start, border, found.error), border

    def _border(self, position: int) -> int:
        """Return where the next tag on a line of its own stands, or the end of the text."""
        index = bisect_left(self._tags, position)
        return self._tags[index] if index < len(self._tags) else len(self.text)
