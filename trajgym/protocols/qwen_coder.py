"""Calls as tags with their arguments as text, the form Qwen3-Coder, Qwen3.5 and later Qwen models are trained on."""

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
from trajgym.protocols.payloads import cut_call, is_quoted
from trajgym.protocols.reading import TURN_MARK, Span, read_turn
from trajgym.protocols.schemas import allowed_types
from trajgym.protocols.strict_json import read_json, skip_blanks, write_json
from trajgym.types import CallError, ToolCall, ToolSpec

__all__ = ["QwenCoder"]

_OPEN, _CLOSE, _END_FUNCTION = "<tool_call>", "</tool_call>", "</function>"
_FUNCTION = re.compile(r"<function=([^<>\n]*)>")
_PARAMETER = re.compile(r"<parameter=([^<>\n]*)>")
_CUT_TAG = re.compile(r"<(?:function|parameter)=[^<>\n]*")
# A value may hold any of the tags, as long as what follows is not what follows a value.
_END_VALUE = re.compile(r"</parameter>\s*(?=<parameter=|</function>)")
# A value cannot hold the beginning of another call, the end of the turn or a border of reasoning: then it was not
# closed. Nothing escapes these in text, and what they say comes first.
_BREAK = re.compile(rf"{_OPEN}\s*<function=|{TURN_MARK.pattern}")
_BORDER = re.compile(f"{_CLOSE}|(?={_OPEN})")
_FORM = f"{_OPEN}\n<function=<tool>>\n<parameter=<argument>>\n<value>\n</parameter>\n{_END_FUNCTION}\n{_CLOSE}"
_WORDS = {"True": True, "False": False, "None": None}  # how Qwen3-Coder's own template writes these


class QwenCoder(Protocol):
    """``<tool_call><function=name><parameter=argument>text</parameter></function></tool_call>``, on many lines.

    Values are text; one line break at either end is not part of them. The tool's schema says what a value is: where
    only a string is allowed it is the text as it stands, otherwise JSON. A text that is no such value stays a string,
    which the tool then refuses as the wrong type.

    What this form cannot carry: a name with a line break or an angle bracket, and a string with ``</parameter>`` and
    then another tag of the form, with the beginning of another call, with an end-of-turn token or with a reasoning
    tag in it. :meth:`render` refuses these. It knows no schema, so it cannot refuse what depends on one: where a
    parameter allows strings and other types, a string that reads as one of the others (``"3"``, ``"null"``) comes
    back as that.
    """

    name = "qwen3_coder"

    def parse(self, text: str, tools: Mapping[str, ToolSpec]) -> Parsed:
        """Read the calls of an assistant turn. Never raises on any string."""
        turn = read_turn(text, _OPEN, _Reader(text).data())
        reader = _Reader(turn.text)
        findings = Findings()
        calls: list[Span] = []
        start = turn.live.find(_OPEN)
        while start >= 0:
            found, end = reader.finished(start)
            if not is_quoted(turn.text, start, end):
                findings.add(found if isinstance(found, CallError) else _call(found, tools))
                calls.append((start, end))
            start = turn.live.find(_OPEN, end)
        if turn.error is not None:
            findings.add(turn.error)
        return Parsed(turn.without(calls), findings.calls, findings.error)

    def render(self, call: ToolCall) -> str:
        """Write one call; ``parse(render(call))`` gives the call back.

        Raises:
            ConfigError: When an argument is not a JSON value, or is text that this form cannot carry.
        """
        write_json(dict(call.arguments))
        values = tuple(
            (key, value if isinstance(value, str) else write_json(value)) for key, value in call.arguments.items()
        )
        parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values)
        written = f"{_OPEN}\n<function={call.name}>\n{parameters}{_END_FUNCTION}\n{_CLOSE}"
        found = _Reader(written).call(0)
        if found != _Call(call.name, values, len(written) - len(_CLOSE) - 1):
            raise ConfigError(
                f"The form qwen3_coder writes values as text and cannot carry this call of {call.name[:40]!r}: a name "
                "or a string holds tags that would be read as the call's own. Choose another protocol."
            )
        return written

    def instructions(self, tools: Mapping[str, ToolSpec], style: str = "schema") -> str:
        """Tell a policy which tools there are and how to call them; nothing about how to answer.

        Raises:
            ConfigError: For an unknown style.
        """
        how = [
            "To use a tool, write its name and its arguments between these tags, one parameter after the other:",
            _FORM,
            "Text stands as it is, over several lines if need be; anything else is written as JSON.",
            "You may write several calls in one turn. Then stop: the results come in the next message.",
        ]
        example = [self.render(ToolCall(**example_call(tool))) for tool in [*tools.values()][:1]]
        return introduce(tools, style, how, "".join(example))


@dataclass(frozen=True)
class _Call:
    """A call up to ``</function>``: its values are still text, as they were written."""

    name: str
    values: tuple[tuple[str, str], ...]
    end: int


@dataclass(frozen=True)
class _Broken:
    """Where reading a call had to stop, and whether all that is wrong is that it stops there."""

    stop: int
    cut: bool


class _Reader:
    """Reads the calls of a text.

    Args:
        text: The text.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        # Searched once: a hostile text could make every one of its tags search all of it.
        self._breaks = [found.start() for found in _BREAK.finditer(text)]
        self._ends = [found.span() for found in _END_VALUE.finditer(text)]

    def data(self) -> Iterator[Span]:
        """Yield the insides of the whole calls: what is in them is not markup."""
        start = self.text.find(_OPEN)
        while start >= 0:
            end = inside = start + len(_OPEN)
            found = self.call(start)
            if isinstance(found, _Call):
                end = found.end
                yield inside, end
            start = self.text.find(_OPEN, end)

    def call(self, start: int) -> _Call | _Broken:
        """Read the call whose opening tag stands at ``start``, as far as ``</function>``."""
        function = skip_blanks(self.text, start + len(_OPEN))
        index = bisect_left(self._breaks, start + 1)
        limit = self._breaks[index] if index < len(self._breaks) else len(self.text)
        name = _FUNCTION.match(self.text, function, limit)
        if name is None:
            return self._broken(function, limit, "<function=")
        values: list[tuple[str, str]] = []
        position = skip_blanks(self.text, name.end())
        while not self.text.startswith(_END_FUNCTION, position):
            key = _PARAMETER.match(self.text, position, limit)
            if key is None:
                return self._broken(position, limit, "<parameter=", _END_FUNCTION)
            index = bisect_left(self._ends, (key.end(), 0))
            if index == len(self._ends) or self._ends[index][0] > limit:
                return _Broken(key.end(), cut=True)
            end, position = self._ends[index]
            values.append((key[1], self.text[key.end() : end].removeprefix("\n").removesuffix("\n")))
        return _Call(name[1], tuple(values), position + len(_END_FUNCTION))

    def finished(self, start: int) -> tuple[_Call | CallError, int]:
        """Return the call whose opening tag stands at ``start``, or what is wrong with it, and where it ends."""
        found = self.call(start)
        if isinstance(found, _Call):
            after = skip_blanks(self.text, found.end)
            rest = self.text[after : after + len(_CLOSE)]
            if rest == _CLOSE:
                return found, after + len(_CLOSE)
            if _CLOSE.startswith(rest):
                return found, len(self.text)
            if self.text.startswith(_OPEN, after):
                return found, after
            error = CallError("malformed_call", f"Only {_CLOSE} may follow {_END_FUNCTION}, got {rest!r}.")
            border = _BORDER.search(self.text, after)
            return error, border.end() if border else after
        border = _BORDER.search(self.text, found.stop)
        end = border.end() if border else len(self.text)
        if found.cut and (border is None or border[0] != _CLOSE):
            return cut_call(), end
        got = self.text[found.stop : found.stop + 20]
        return CallError("malformed_call", f"The call is not complete at {got!r}. Write {_FORM}."), end

    def _broken(self, position: int, limit: int, *expected: str) -> _Broken:
        rest = self.text[position : min(limit, position + 20)]  # longer than any of the tags
        cut = any(tag.startswith(rest) for tag in expected) or _CUT_TAG.fullmatch(self.text, position, limit)
        return _Broken(position, bool(cut))


def _call(found: _Call, tools: Mapping[str, ToolSpec]) -> ToolCall | CallError:
    if found.name not in tools:
        return checked_call(found.name, {}, tools)
    schema = tools[found.name].parameters
    arguments: dict[str, Any] = {}
    for key, text in found.values:
        if key in arguments:
            return CallError("duplicate_key", f"The parameter {key[:40]!r} is given twice. Give each one once.")
        known = schema.get("properties", {}).get(key)
        value = text if known is None else _typed(text, allowed_types(known, schema))
        if isinstance(value, CallError):
            return value
        arguments[key] = value
    return checked_call(found.name, arguments, tools)


def _typed(text: str, allowed: frozenset[str]) -> Any:
    """Return the value that a text stands for, or what is wrong with it; the text itself if it is no such value."""
    if allowed == {"string"}:
        return text
    word = text.strip()
    if word in _WORDS and _fits(_WORDS[word], allowed):
        return _WORDS[word]
    found = read_json(word)
    if "string" in allowed:
        fits = found.error is None and found.end == len(word) and not isinstance(found.value, str)
        return found.value if fits and _fits(found.value, allowed) else text
    if found.error is not None and found.error.kind not in ("malformed_json", "truncated_call"):
        return found.error
    return found.value if found.complete and found.end == len(word) else text


def _fits(value: Any, allowed: frozenset[str]) -> bool:
    match value:
        case None:
            return "null" in allowed
        case bool():
            return "boolean" in allowed
        case int():
            return not allowed.isdisjoint({"integer", "number"})
        case float():
            return "number" in allowed
        case list():
            return "array" in allowed
    return "object" in allowed
