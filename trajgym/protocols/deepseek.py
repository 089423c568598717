"""Calls between the tokens of DeepSeek's models: V3 and R1 with a fence around the arguments, V3.1 without."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trajgym.errors import ConfigError
from trajgym.protocols.base import Parsed, Protocol
from trajgym.protocols.checking import Findings, checked_call
from trajgym.protocols.describe import example_call, introduce
from trajgym.protocols.json_calls import read_arguments
from trajgym.protocols.payloads import Payload, cut_call, is_quoted, read_payload, why_broken
from trajgym.protocols.reading import TURN_MARK, Span, Turn, read_turn
from trajgym.protocols.reasoning import LINE_START
from trajgym.protocols.strict_json import Json, skip_blanks, write_json
from trajgym.types import CallError, ExpertTurn, ToolCall, ToolSpec

__all__ = ["DeepSeek"]

_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_OPEN, _SEPARATOR, _CLOSE = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_STOPS = ("<｜tool▁outputs▁begin｜>", "<｜tool▁output▁begin｜>", "<｜User｜>", "<｜Assistant｜>")
_NEXT = re.compile(f"{_OPEN}|{_END}")
_NAME = re.compile(r"[^\n`{<]*")
_VALUE = re.compile(r"\s*(?:\{|`{3})")
# Within a broken call only an opening token on a line of its own begins the next one: others may stand in a string.
_BORDER = re.compile(rf"{_CLOSE}|{_END}|{LINE_START}[ \t]*(?={_OPEN}|{_BEGIN})", re.MULTILINE)
_FORM = f'{_BEGIN}{_OPEN}function{_SEPARATOR}<tool>\n```json\n{{"<argument>": <value>}}\n```{_CLOSE}{_END}'


class DeepSeek(Protocol):
    """``<｜tool▁call▁begin｜>function<｜tool▁sep｜>name``, then the arguments as JSON in a fence (V3, R1).

    V3.1 writes ``name<｜tool▁sep｜>{…}`` instead, without a fence; both are read. The calls of a turn stand between
    ``<｜tool▁calls▁begin｜>`` and ``<｜tool▁calls▁end｜>``: without the first of these there are none.
    """

    name = "deepseek"

    def parse(self, text: str, tools: Mapping[str, ToolSpec]) -> Parsed:
        """Read the calls of an assistant turn. Never raises on any string."""
        turn = read_turn(text, _BEGIN, _Reader(text).data(), stops=_STOPS)
        reader = _Reader(turn.text)
        findings = Findings()
        calls: list[Span] = []
        start = turn.live.find(_BEGIN)
        while start >= 0:
            block = _read_block(turn, reader, start)
            if not is_quoted(turn.text, start, block.end):
                for found in block.found:
                    findings.add(_call(found, tools))
                calls += block.spans
            start = turn.live.find(_BEGIN, block.end)
        if turn.error is not None:
            findings.add(turn.error)
        return Parsed(turn.without(calls), findings.calls, findings.error)

    def render(self, call: ToolCall) -> str:
        """Write one call in the form of V3; ``parse(render(call))`` gives the call back.

        Raises:
            ConfigError: When an argument is not a JSON value, or the name holds a character that ends it.
        """
        return self.render_turn(ExpertTurn(calls=(call,)))

    def render_turn(self, turn: ExpertTurn) -> str:
        """Write a whole assistant turn: its text, then all its calls between one pair of tokens."""
        if not turn.calls:
            return turn.text
        calls = "\n".join(_written(call) for call in turn.calls)
        return "\n".join([*([turn.text] if turn.text else []), f"{_BEGIN}{calls}{_END}"])

    def instructions(self, tools: Mapping[str, ToolSpec], style: str = "schema") -> str:
        """Tell a policy which tools there are and how to call them; nothing about how to answer.

        Raises:
            ConfigError: For an unknown style.
        """
        how = [
            "To use a tool, write its name and a JSON object with its arguments between these tokens:",
            _FORM,
            f"For several calls in one turn, repeat the part from {_OPEN} to {_CLOSE}.",
            "Then stop: the results come in the next message.",
        ]
        example = [self.render(ToolCall(**example_call(tool))) for tool in [*tools.values()][:1]]
        return introduce(tools, style, how, "".join(example))


def _written(call: ToolCall) -> str:
    payload = write_json(dict(call.arguments))
    if not _NAME.fullmatch(call.name) or write_json(call.name) != f'"{call.name}"':
        raise ConfigError(
            f"DeepSeek's form cannot carry the name {call.name!r}: line breaks, `, {{, < and what JSON escapes would "
            "end or change it. Rename the tool, or choose another protocol."
        )
    return f"{_OPEN}function{_SEPARATOR}{call.name}\n```json\n{payload}\n```{_CLOSE}"


@dataclass(frozen=True)
class _Named:
    """A name and the arguments behind it; ``None`` when there is nothing."""

    name: str
    arguments: Json | None


@dataclass(frozen=True)
class _Block:
    """The calls between one pair of tokens: what they are, and where they stand, tokens included."""

    end: int
    found: list[_Named | CallError]
    spans: list[Span]


def _read_block(turn: Turn, reader: _Reader, start: int) -> _Block:
    first = position = start + len(_BEGIN)
    calls: list[_Named | CallError] = []
    spans: list[Span] = [(start, position)]
    token = _NEXT.search(turn.live, position)
    while token is not None and token[0] == _OPEN:
        found, position = reader.call(token.start())
        calls.append(found)
        spans.append((token.start(), position))
        token = _NEXT.search(turn.live, position)
    if not calls:
        cut = token is None and _OPEN.startswith(turn.live[first:].strip())
        error = CallError("malformed_call", f"No call follows {_BEGIN}. Write {_FORM}.")
        calls.append(cut_call() if cut else error)
        spans.append((first, len(turn.text) if cut else first))
    if token is None:
        return _Block(len(turn.text), calls, spans)  # there is no opening token any more
    return _Block(token.end(), calls, [*spans, token.span()])


@dataclass(frozen=True)
class _Head:
    """A call as far as it could be read.

    Args:
        name: The tool, or ``None`` when what is in front of the arguments is wrong.
        stop: Where the arguments begin, or where reading had to stop.
        payload: The arguments, if something stands there.
    """

    name: str | None
    stop: int
    payload: Payload | None = None


class _Reader:
    """Reads the calls of a text.

    Args:
        text: The text.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        # Searched once: a hostile text could make every one of its calls search all of it.
        self._borders = [(border.start(), border.end(), border[0]) for border in _BORDER.finditer(text)]
        self._marks = [mark.start() for mark in TURN_MARK.finditer(text)]

    def data(self) -> Iterator[Span]:
        """Yield the contents of the calls, whose fences and strings are not markup."""
        start = self.text.find(_OPEN)
        while start >= 0:
            end = inside = start + len(_OPEN)
            payload = self._head(inside).payload
            if payload is not None and payload.json.complete:
                end = payload.end
            elif payload is not None:
                # What is wrong is data as well, or its fence would hide the calls behind it; but a turn may end in it.
                end, _, token = self._border(payload.end)
                mark = bisect_left(self._marks, inside)
                if token != _CLOSE or (mark < len(self._marks) and self._marks[mark] < end):
                    end = inside
            if end > inside:
                yield inside, end
            start = self.text.find(_OPEN, end)

    def call(self, start: int) -> tuple[_Named | CallError, int]:
        """Return the call whose token stands at ``start``, or what is wrong with it, and where it ends."""
        text, head = self.text, self._head(start + len(_OPEN))
        if head.name is None:
            return self._wrong(head.stop)
        if head.payload is None:
            return _Named(head.name, None), head.stop
        if not head.payload.json.complete:
            return self._broken(head.stop, head.payload.json)
        found = (head.payload.objection(text) if head.payload.open_fence else None) or _Named(
            head.name, head.payload.json
        )
        after = skip_blanks(text, head.payload.end)
        rest = text[after : after + len(_CLOSE)]
        if rest == _CLOSE:
            return found, after + len(_CLOSE)
        if _CLOSE.startswith(rest):
            return found, len(text)
        if text.startswith((_OPEN, _END), after):
            return found, after
        problem = f"Only {_CLOSE} may follow the arguments of a call, got {rest!r}."
        return CallError("malformed_json", problem), self._after_border(after)

    def _head(self, inside: int) -> _Head:
        text = self.text
        name = _NAME.match(text, inside)
        assert name is not None
        if not text.startswith(_SEPARATOR, name.end()):
            return _Head(None, name.end())
        position = name.end() + len(_SEPARATOR)
        if name[0] == "function" and not _VALUE.match(text, position):
            name = _NAME.match(text, position)
            assert name is not None
            position = name.end()
            if position == len(text):
                return _Head(None, position)
        after = skip_blanks(text, position)
        if text.startswith(_CLOSE, after):
            return _Head(name[0], after + len(_CLOSE))
        return _Head(name[0], position, read_payload(text, position))

    def _wrong(self, position: int) -> tuple[CallError, int]:
        start, _, _ = self._border(position)
        rest = self.text[position:start].strip()
        if start == len(self.text) and _SEPARATOR.startswith(rest):
            return cut_call(), start
        return CallError("malformed_call", f"Wrong call at {rest[:20]!r}. Write {_FORM}."), self._after_border(position)

    def _broken(self, start: int, found: Json) -> tuple[CallError, int]:
        assert found.error is not None
        end = self._after_border(found.end)
        border, _, token = self._border(found.end)
        if token in (_CLOSE, _END):
            return found.error, end
        return why_broken(self.text, start, border, found.error), end

    def _border(self, position: int) -> tuple[int, int, str]:
        """Return start, end and text of the next token that ends or begins a call, or of the end of the text."""
        index = bisect_left(self._borders, (position, 0, ""))
        return self._borders[index] if index < len(self._borders) else (len(self.text), len(self.text), "")

    def _after_border(self, position: int) -> int:
        """Return where reading goes on: behind the token that closes a call, in front of any other."""
        start, end, token = self._border(position)
        return start if token == _END else end


def _call(found: _Named | CallError, tools: Mapping[str, ToolSpec]) -> ToolCall | CallError:
    if isinstance(found, CallError):
        return found
    if found.arguments is not None and found.arguments.error is not None:
        return found.arguments.error
    value = None if found.arguments is None else found.arguments.value
    arguments = read_arguments(value, "arguments", _FORM)
    return arguments if isinstance(arguments, CallError) else checked_call(found.name, arguments, tools)
