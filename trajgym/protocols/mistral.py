"""Calls behind the token ``[TOOL_CALLS]``, in the two forms that Mistral's models are trained on."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from trajgym.protocols.base import Parsed, Protocol
from trajgym.protocols.checking import Findings, checked_call
from trajgym.protocols.describe import example_call, introduce
from trajgym.protocols.json_calls import call_of, read_arguments
from trajgym.protocols.payloads import close_fence, cut_call, is_quoted, open_fence, read_payload, why_broken
from trajgym.protocols.reading import Span, read_turn
from trajgym.protocols.reasoning import LINE_START
from trajgym.protocols.strict_json import Json, read_json, skip_blanks, write_json
from trajgym.types import CallError, ExpertTurn, ToolCall, ToolSpec

__all__ = ["Mistral"]

_OPEN = "[TOOL_CALLS]"
_STOPS = ("[TOOL_RESULTS]", "[INST]")
# Magistral writes its reasoning between tokens of its own; the tags of other models count as well.
_REASONING = re.compile(
    r"(?:\[(?=/?THINK\])|<(?=/?(?ai:think(?:ing)?)>))(?:(?<!`.)|(?<=```.))(?P<close>/?)"
    r"(?:THINK\]|(?ai:think(?:ing)?)>)(?:(?!`)|(?=```))"
)
_HEADER = re.compile(r"([^\s\[\]{}]*)[ \t]*(?:\[CALL_ID\][ \t]*[^\s\[\]{}]*[ \t]*)?(?:\[ARGS\]|(?=\{))")
_CUT_HEADER = re.compile(r"[^\s\[\]{}]*[ \t]*(?:\[[A-Z_]*(?:\][ \t]*[^\s\[\]{}]*[ \t]*(?:\[[A-Z]*)?)?)?\s*")
# Within a broken call only an opening token at the start of a line or behind a closing bracket begins the next one:
# others may stand in a string.
_NEXT = re.compile(rf"(?:{LINE_START}|(?<=[}}\]]))[ \t]*(?=\[TOOL_CALLS\])", re.MULTILINE)
_NEXT_ENTRY = re.compile(r"\}\s*,\s*(?=\{\s*\"name\"\s*:)")
_FORM = f'{_OPEN}[{{"name": "<tool>", "arguments": {{"<argument>": <value>}}}}]'
_NAMED_FORM = f"{_OPEN}<tool>[ARGS]{{...}}"


class Mistral(Protocol):
    """``[TOOL_CALLS][{"name": …, "arguments": {…}}, …]``, or ``[TOOL_CALLS]name[ARGS]{…}`` once per call.

    The token has to be there: a list without it is text. Each entry of a list is a call of its own, so that one
    that is wrong or cut does not take the others with it.
    """

    name = "mistral"

    def parse(self, text: str, tools: Mapping[str, ToolSpec]) -> Parsed:
        """Read the calls of an assistant turn. Never raises on any string."""
        turn = read_turn(text, _OPEN, _data(text), stops=_STOPS, reasoning_tag=_REASONING)
        reader = _Reader(turn.text)
        findings = Findings()
        calls: list[Span] = []
        start = turn.live.find(_OPEN)
        while start >= 0:
            entries, end = reader.group(start)
            if not is_quoted(turn.text, start, end):
                for entry in entries:
                    findings.add(_call(entry, tools))
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
        return self.render_turn(ExpertTurn(calls=(call,)))

    def render_turn(self, turn: ExpertTurn) -> str:
        """Write a whole assistant turn: its text, then all its calls in one list."""
        if not turn.calls:
            return turn.text
        entries = [{"name": call.name, "arguments": dict(call.arguments)} for call in turn.calls]
        return "\n".join([*([turn.text] if turn.text else []), _OPEN + write_json(entries)])

    def instructions(self, tools: Mapping[str, ToolSpec], style: str = "schema") -> str:
        """Tell a policy which tools there are and how to call them; nothing about how to answer.

        Raises:
            ConfigError: For an unknown style.
        """
        how = [
            f"To use tools, write {_OPEN} and then a JSON list of calls, each with its name and its arguments:",
            _FORM,
            "Then stop: the results come in the next message.",
        ]
        example = _OPEN + write_json([example_call(tool) for tool in [*tools.values()][:1]])
        return introduce(tools, style, how, example)


@dataclass(frozen=True)
class _Named:
    """A call in the form ``name[ARGS]{…}``."""

    name: str
    arguments: Json


_Entry = Json | _Named | CallError


def _data(text: str) -> Iterator[Span]:
    """Yield the whole JSON behind the tokens, up to the first value that is not: nothing in it is markup."""
    start = text.find(_OPEN)
    while start >= 0:
        end = inside = start + len(_OPEN)
        position, fence = open_fence(text, inside)
        is_list = _is_list(text, position)
        header = _HEADER.match(text, position)
        if is_list:
            position = skip_blanks(text, position + 1)
        elif header:
            position, fence = open_fence(text, header.end())
        # Without a list or a name no call follows, and a string would be any text between two quotes.
        while (is_list or header) and (found := read_json(text, position)).complete:
            if is_list and isinstance(found.value, str):
                break
            end = position = skip_blanks(text, found.end)
            if not (is_list and text.startswith(",", position)):
                position += is_list and text.startswith("]", position)
                end = close_fence(text, position, fence) or found.end
                break
            position = skip_blanks(text, position + 1)
        if end > inside:
            yield inside, end
        start = text.find(_OPEN, end)


def _is_list(text: str, position: int) -> bool:
    return text.startswith("[", position) and not text.startswith(("[ARGS]", "[CALL_ID]", _OPEN), position)


class _Reader:
    """Reads what stands behind each token of a text: the calls in order, or what is wrong with them, and their end.

    Args:
        text: The text.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def _borders(self) -> list[int]:
        return [border.end() for border in _NEXT.finditer(self.text)]

    def group(self, start: int) -> tuple[list[_Entry], int]:
        """Read the calls whose token stands at ``start``."""
        inside = start + len(_OPEN)
        first, fence = open_fence(self.text, inside)
        if _is_list(self.text, first):
            return self._list(first, fence)
        if self.text.startswith("{", first):
            found = read_json(self.text, first)
            if not found.complete:
                return self._broken([], first, found)
            shape = CallError("bad_call_shape", f"Wrong shape: calls stand in a list. Write {_FORM}.")
            return [found.error or shape], found.end
        return self._named(first)

    def _list(self, opening: int, fence: str) -> tuple[list[_Entry], int]:
        text = self.text
        entries: list[_Entry] = []
        position = skip_blanks(text, opening + 1)
        if text.startswith("]", position):
            entries.append(CallError("bad_call_shape", f"The list of calls is empty. Write {_FORM}."))
        while not text.startswith("]", position):
            found = read_json(text, position)
            if not found.complete:
                following = _NEXT_ENTRY.search(text, found.end, self._border(found.end))
                if following is None:
                    return self._broken(entries, position, found)
                assert found.error is not None
                entries.append(found.error)
                position = following.end()
                continue
            after = skip_blanks(text, found.end)
            if text.startswith(",", after):
                position = skip_blanks(text, after + 1)
            elif text.startswith("]", after):
                position = after
            elif after == len(text) or text.startswith(_OPEN, after):
                # The end of the turn or the next calls can stand for the closing bracket.
                return [*entries, found], after
            else:
                problem = f"Only ',' or ']' may follow a call in the list, got {text[after : after + 10]!r}."
                return [*entries, CallError("malformed_json", problem)], self._border(after)
            entries.append(found)
        return entries, close_fence(text, position + 1, fence) or position + 1

    def _named(self, first: int) -> tuple[list[_Entry], int]:
        header = _HEADER.match(self.text, first)
        if header is None:
            end = self._border(first)
            if _CUT_HEADER.fullmatch(self.text, first, end):
                return [cut_call()], end
            wrong = CallError("malformed_call", f"No call follows {_OPEN}. Write {_FORM} or {_NAMED_FORM}.")
            return [wrong], first
        payload = read_payload(self.text, header.end())
        if not payload.json.complete:
            return self._broken([], header.end(), payload.json)
        return [payload.objection(self.text) or _Named(header[1], payload.json)], payload.end

    def _broken(self, entries: list[_Entry], start: int, found: Json) -> tuple[list[_Entry], int]:
        """Add what is wrong with an incomplete value; reading goes on at the next token that can begin a call."""
        assert found.error is not None
        end = self._border(found.end)
        if self.text.startswith(_OPEN, found.end) and skip_blanks(self.text, start) == found.end:
            end = found.end  # nothing but blanks between two opening tokens
        return [*entries, why_broken(self.text, start, end, found.error)], end

    def _border(self, position: int) -> int:
        """Return where the next token that can begin a call within a broken one stands, or the end of the text."""
        index = bisect_left(self._borders, position)
        return self._borders[index] if index < len(self._borders) else len(self.text)


def _call(entry: _Entry, tools: Mapping[str, ToolSpec]) -> ToolCall | CallError:
    if isinstance(entry, CallError):
        return entry
    if isinstance(entry, Json):
        return call_of(entry, tools)
    if entry.arguments.error is not None:
        return entry.arguments.error
    arguments = read_arguments(entry.arguments.value, "[ARGS]", _NAMED_FORM)
    return arguments if isinstance(arguments, CallError) else checked_call(entry.name, arguments, tools)
