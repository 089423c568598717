"""Calls as elements, ``<tool name="…">…</tool>``, for models that were not trained on a form of their own."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trajgym.errors import ConfigError
from trajgym.protocols.base import Parsed, Protocol
from trajgym.protocols.checking import Findings, checked_call
from trajgym.protocols.describe import example_call, introduce
from trajgym.protocols.json_calls import read_arguments
from trajgym.protocols.payloads import Payload, cut_call, is_quoted, read_payload, without_fence
from trajgym.protocols.raw_input import raw_call
from trajgym.protocols.reading import TURN_MARK, Span, read_turn
from trajgym.protocols.schemas import text_parameter
from trajgym.protocols.strict_json import Json, skip_blanks, write_json
from trajgym.types import CallError, ToolCall, ToolSpec

__all__ = ["XmlTool"]

_CLOSE = "</tool>"
_OPEN = re.compile(r"<tool(?=[\s/>]|\Z)")
_TAG = re.compile(r"<tool((?:\s+[\w:.-]+\s*=\s*(?:\"[^\"<>]*\"|'[^'<>]*'))*)\s*(/?)>")
_NAME = re.compile(r"\sname\s*=\s*(?:\"([^\"]*)\"|'([^']*)')")
_ARGUMENT = re.compile(r"\s*<argument\s+name\s*=\s*(?:\"([^\"<>]*)\"|'([^'<>]*)')\s*>")
_END_ARGUMENT = re.compile(r"</argument>\s*(?=<argument\s|</tool>)")
_CLOSING = re.compile(_CLOSE)
_BEGUN = re.compile(r"<tool[^<>]*")
_OBJECT = re.compile(r"\s*(?:`{3,}[\w+-]*\s*)?\{")
# Text cannot hold the beginning of another call, the end of the turn or a border of reasoning: then it was not closed.
_BREAK = re.compile(rf"<tool(?=[\s/>])|{TURN_MARK.pattern}")
_BLANK_LINES = re.compile(r"\A(?:[ \t]*\n)+")
_PLAIN_NAME = re.compile(r"[^\"'<>&\n]+")
# What could be taken for markup, of this form or of a tokenizer; JSON can escape it.
_MARKUP = re.compile(r"</?(?:tool|argument)\b|<[^\s<>=][^\s<>]*>|\[/?[A-Z_]+\]|\A\s*\Z")
_FORM = '<tool name="<tool>">{"<argument>": <value>}</tool>'


class XmlTool(Protocol):
    """``<tool name="…">…</tool>``, with one of three things in it.

    A JSON object holds arguments of any type. Elements ``<argument name="…">text</argument>`` hold text, whatever it
    looks like. Anything else is the text of the tool's only string parameter. Text stands as it is, nothing is
    escaped; a line break at either end of it is not part of it. A tool without arguments may be ``<tool name="…"/>``.
    """

    name = "xml_tool"

    def parse(self, text: str, tools: Mapping[str, ToolSpec]) -> Parsed:
        """Read the calls of an assistant turn. Never raises on any string."""
        turn = read_turn(text, "<tool ", _Reader(text).data())
        reader = _Reader(turn.text)
        findings = Findings()
        calls: list[Span] = []
        opening = _OPEN.search(turn.live)
        while opening:
            found, end = reader.element(opening.start())
            if not is_quoted(turn.text, opening.start(), end):
                findings.add(found if isinstance(found, CallError) else _call(found, tools))
                calls.append((opening.start(), end))
            opening = _OPEN.search(turn.live, end)
        if turn.error is not None:
            findings.add(turn.error)
        return Parsed(turn.without(calls), findings.calls, findings.error)

    def render(self, call: ToolCall) -> str:
        """Write one call; ``parse(render(call))`` gives the call back.

        Arguments that are all plain text are written as elements, others as JSON.

        Raises:
            ConfigError: When an argument is not a JSON value, or the name cannot stand in an attribute.
        """
        body = write_json(dict(call.arguments))
        if not _PLAIN_NAME.fullmatch(call.name) or write_json(call.name) != f'"{call.name}"':
            raise ConfigError(f"The name {call.name!r} cannot stand in an attribute. Rename the tool.")
        if not call.arguments:
            return f'<tool name="{call.name}"/>'
        plain = all(
            _PLAIN_NAME.fullmatch(key) and isinstance(value, str) and not _MARKUP.search(value)
            for key, value in call.arguments.items()
        )
        if not plain:
            return f'<tool name="{call.name}">{body}{_CLOSE}'
        elements = [f'<argument name="{key}">{_block(value)}</argument>' for key, value in call.arguments.items()]
        return "\n".join([f'<tool name="{call.name}">', *elements, _CLOSE])

    def instructions(self, tools: Mapping[str, ToolSpec], style: str = "schema") -> str:
        """Tell a policy which tools there are and how to call them; nothing about how to answer.

        Raises:
            ConfigError: For an unknown style.
        """
        how = [
            "To use a tool, write its name and a JSON object with its arguments:",
            _FORM,
            "Text may also stand as it is, without quotes and escapes:",
            '<tool name="<tool>"><argument name="<argument>">text</argument></tool>',
            "You may write several calls in one turn. Then stop: the results come in the next message.",
        ]
        example = [
            f'<tool name="{tool.name}">{write_json(example_call(tool)["arguments"])}{_CLOSE}'
            for tool in [*tools.values()][:1]
        ]
        return introduce(tools, style, how, "".join(example))


def _block(value: str) -> str:
    return f"\n{value}\n" if "\n" in value else value


@dataclass(frozen=True)
class _Element:
    """A call as it was written.

    Args:
        name: The tool, or ``None`` when the tag has no such attribute.
        inside: Where its content begins.
        text: Its content.
        payload: The content as a JSON object, if it begins like one.
        arguments: The content as elements, if it begins with one.
    """

    name: str | None
    inside: int
    text: str = ""
    payload: Payload | None = None
    arguments: tuple[tuple[str, str], ...] | None = None


class _Reader:
    """Reads the calls of a text.

    Args:
        text: The text.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        # Searched once: a hostile text could make every one of its tags search all of it.
        self._breaks = [found.start() for found in _BREAK.finditer(text)]
        self._argument_ends = [found.span() for found in _END_ARGUMENT.finditer(text)]
        self._closings = [found.start() for found in _CLOSING.finditer(text)]

    def data(self) -> Iterator[Span]:
        """Yield the insides of the whole calls: what is in them is not markup."""
        opening = _OPEN.search(self.text)
        while opening:
            found, end = self.element(opening.start())
            if isinstance(found, _Element):
                yield found.inside, end
            opening = _OPEN.search(self.text, end if isinstance(found, _Element) else opening.end())

    def element(self, start: int) -> tuple[_Element | CallError, int]:
        """Return the call that begins at ``start``, or what is wrong with it, and where it ends."""
        tag = _TAG.match(self.text, start)
        if tag is None:
            begun = _BEGUN.match(self.text, start)
            assert begun is not None
            if begun.end() == len(self.text):
                return cut_call(), begun.end()
            return self._broken(begun.end(), f"The tag {begun[0][:40]!r} is wrong: attributes stand in quotes")
        attribute = _NAME.search(tag[1])
        name = None if attribute is None else attribute[1] if attribute[1] is not None else attribute[2]
        inside = tag.end()
        if tag[2]:
            return _Element(name, inside), inside
        payload = read_payload(self.text, inside) if _OBJECT.match(self.text, inside) else None
        if payload is not None and payload.json.complete and not payload.open_fence:
            after = skip_blanks(self.text, payload.end)
            rest = self.text[after : after + len(_CLOSE)]
            if rest == _CLOSE:
                return _Element(name, inside, self.text[inside:after], payload), after + len(_CLOSE)
            if _CLOSE.startswith(rest) or _OPEN.match(self.text, after):
                # The end of the turn or the next call can stand for the closing tag of a whole object.
                return _Element(name, inside, self.text[inside:after], payload), after
        if _ARGUMENT.match(self.text, inside):
            return self._arguments(name, inside)
        closing = self._next(self._closings, inside)
        if closing >= self._next(self._breaks, inside):
            return self._broken(inside, "The text is not closed")
        return _Element(name, inside, self.text[inside:closing], payload), closing + len(_CLOSE)

    def _arguments(self, name: str | None, inside: int) -> tuple[_Element | CallError, int]:
        limit = self._next(self._breaks, inside)
        arguments: list[tuple[str, str]] = []
        position = inside
        while argument := _ARGUMENT.match(self.text, position, limit):
            index = bisect_left(self._argument_ends, (argument.end(), 0))
            if index == len(self._argument_ends) or self._argument_ends[index][0] > limit:
                return self._broken(argument.end(), "An argument is not closed")
            end, position = self._argument_ends[index]
            text = self.text[argument.end() : end].removeprefix("\n").removesuffix("\n")
            arguments.append((argument[1] if argument[1] is not None else argument[2], text))
        if not self.text.startswith(_CLOSE, position):
            return self._broken(
                position, f"Only arguments may follow an argument, got {self.text[position : position + 20]!r}"
            )
        found = _Element(name, inside, self.text[inside:position], arguments=tuple(arguments))
        return found, position + len(_CLOSE)

    def _broken(self, position: int, problem: str) -> tuple[CallError, int]:
        """Return the error of a call that was cut, unless its closing tag is there, and where reading goes on."""
        closing, following = self._next(self._closings, position), self._next(self._breaks, position)
        if closing > following or closing == len(self.text):
            return cut_call(), min(closing, following)
        return CallError("malformed_call", f"{problem}. Write {_FORM}."), closing + len(_CLOSE)

    def _next(self, places: list[int], position: int) -> int:
        index = bisect_left(places, position)
        return places[index] if index < len(places) else len(self.text)


def _call(found: _Element, tools: Mapping[str, ToolSpec]) -> ToolCall | CallError:
    if found.name is None:
        return CallError("bad_call_shape", f"Wrong shape: the tag has no attribute name. Write {_FORM}.")
    if found.name not in tools:
        return checked_call(found.name, {}, tools)
    if found.arguments is not None:
        arguments: dict[str, Any] = {}
        for key, text in found.arguments:
            if key in arguments:
                return CallError("duplicate_key", f"The argument {key[:40]!r} is given twice. Give each one once.")
            arguments[key] = text
        return checked_call(found.name, arguments, tools)
    if found.payload is not None and _is_meant(found.payload.json, tools[found.name]):
        return _json_call(found, found.payload, tools)
    text = _BLANK_LINES.sub("", found.text).rstrip()
    return raw_call(found.name, without_fence(text if "\n" in text else text.strip()), tools)


def _is_meant(found: Json, tool: ToolSpec) -> bool:
    """Whether a content with a brace in front is the arguments, and not a text such as a program."""
    parameters = tool.parameters.get("properties", {})
    if len(parameters) != 1 or text_parameter(tool) is None:
        return True
    return isinstance(found.value, dict) and found.value.keys() == parameters.keys()


def _json_call(found: _Element, payload: Payload, tools: Mapping[str, ToolSpec]) -> ToolCall | CallError:
    assert found.name is not None
    if payload.json.error is not None:
        return payload.json.error
    if payload.open_fence or found.inside + len(found.text.rstrip()) != payload.end:
        problem = "Only the closing tag may follow the JSON object of a call, or its fence is not closed."
        return CallError("malformed_json", problem)
    arguments = read_arguments(payload.json.value, "arguments", _FORM)
    return arguments if isinstance(arguments, CallError) else checked_call(found.name, arguments, tools)
