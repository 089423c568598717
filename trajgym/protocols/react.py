"""Calls on labelled lines, ``Action:`` and ``Action Input:``, as ReAct agents write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from trajgym.protocols.base import Parsed
from trajgym.protocols.checking import Findings, checked_call
from trajgym.protocols.describe import introduce
from trajgym.protocols.json_calls import read_arguments
from trajgym.protocols.raw_input import raw_call
from trajgym.protocols.readback import read_back
from trajgym.protocols.reading import Span, Turn, read_turn
from trajgym.protocols.reasoning import LINE_START
from trajgym.protocols.single import SingleCall
from trajgym.protocols.strict_json import read_json, skip_blanks, write_json
from trajgym.types import CallError, ToolCall, ToolSpec

__all__ = ["React"]

_LABEL = re.compile(r"^[ \t]*(Thought|Action|Action Input|Observation|Final Answer):", re.MULTILINE)
_INPUT = re.compile(rf"{LINE_START}[ \t]*Action Input:", re.MULTILINE)
_RUN = re.compile(r"`+")
_FENCE = re.compile(r"(`{3,})[\w+-]*[ \t\r]*\n")
_FORM = 'Action: <tool>\nAction Input: {"<argument>": <value>}'


class React(SingleCall):
    """``Action: <tool>`` on one line, ``Action Input: <arguments>`` on the next; text before them.

    The input is a JSON object when it begins with a brace. Otherwise it is the tool's only string argument as it
    stands, over several lines if need be, up to the next label; a fence or backticks around the whole of it are
    dropped. An input that is left out means no arguments.

    Only the first action runs. It is preferred to a final answer in the same turn, whether that is written
    ``Final Answer: 72`` or ``#### 72``: the answer was given before the result was seen. A turn without an action is
    the final answer, in whichever of the two forms. ``Final Answer:`` ends an input as every label does; a line
    ``####`` does not, as it may be a comment in a program.

    Source: Yao et al., ReAct: Synergizing Reasoning and Acting in Language Models, 2022 (the idea; the labels are
    those of the agent libraries that followed).
    """

    name = "react"
    completes = re.compile("(?:Thought|Action|Input|Observation|Answer):|[}`>|]")

    def parse(self, text: str, tools: Mapping[str, ToolSpec]) -> Parsed:
        """Read the first action of an assistant turn. Never raises on any string."""
        turn, payloads = _read(text)
        action = _first_action(turn, payloads)
        findings = Findings()
        if action is not None:
            findings.add(_call(action, tools))
        if turn.error is not None:
            findings.add(turn.error)
        return Parsed(turn.without([action.span] if action else []), findings.calls, findings.error)

    def finished(self, text: str) -> bool:
        """Whether the first action's JSON or fence is complete, or a label or an invented answer follows its input."""
        turn, payloads = _read(text)
        action = _first_action(turn, payloads)
        return action is not None and (action.ended or len(turn.text) < len(text))

    def render(self, call: ToolCall) -> str:
        """Write one call, its input as JSON; ``parse(render(call))`` gives the call back.

        Raises:
            ConfigError: When an argument is not a JSON value, or the name does not fit on a line as it is.
        """
        return read_back(self, call, f"Action: {call.name}\nAction Input: {write_json(dict(call.arguments))}")

    def instructions(self, tools: Mapping[str, ToolSpec], style: str = "schema") -> str:
        """Tell a policy which tools there are and how to call them; nothing about how to answer.

        Raises:
            ConfigError: For an unknown style.
        """
        how = [
            "To use a tool, write what you think, then its name and its arguments as a JSON object on two lines:",
            f"Thought: <why>\n{_FORM}",
            "One action is run per turn, so stop there: the result comes in the next message.",
        ]
        return introduce(tools, style, how, f"\n{_FORM}")


class _Action(NamedTuple):
    """The first action of a turn.

    Args:
        name: What stands behind ``Action:``.
        input: What stands behind ``Action Input:``, or what is wrong there; ``None`` when there is no such label.
        span: Where the action stands, input included.
        ended: Whether the turn shows where the input ends.
    """

    name: str
    input: str | CallError | None
    span: Span
    ended: bool


def _read(text: str) -> tuple[Turn, dict[int, int]]:
    payloads = _payloads(text)
    return read_turn(text, "Action:", payloads.items()), payloads


def _payloads(text: str) -> dict[int, int]:
    """Return where each whole JSON object or fence behind an input's label begins and ends: what is in it is data."""
    spans: dict[int, int] = {}
    unclosed: int | None = None  # a fence of this many backticks was not closed, so no later one is
    label = _INPUT.search(text)
    while label:
        start = skip_blanks(text, label.end())
        fence = _FENCE.match(text, start)
        end = -1
        if text.startswith("{", start):
            found = read_json(text, start)
            end = found.end if found.complete else -1
        elif fence and (unclosed is None or len(fence[1]) < unclosed):
            closing = _closing(fence[1]).search(text, fence.end())
            end = closing.end() if closing else -1
            unclosed = unclosed if closing else len(fence[1])
        if end >= 0:
            spans[start] = end
        label = _INPUT.search(text, max(end, label.end()))
    return spans


def _first_action(turn: Turn, payloads: Mapping[int, int]) -> _Action | None:
    labels = _LABEL.finditer(turn.live)
    first = next((label for label in labels if label[1] in ("Action", "Action Input")), None)
    if first is None:
        return None
    if first[1] == "Action Input":
        error = CallError("bad_call_shape", "There is an input without an action. Write Action: <tool> above it.")
        return _Action("", error, first.span(), ended=False)
    line_end = turn.live.find("\n", first.end())
    line_end = len(turn.text) if line_end < 0 else line_end
    name = _without_backticks(turn.text[first.end() : line_end].strip())
    label = next(labels, None)
    if label is None or label[1] != "Action Input":
        return _Action(name, None, (first.start(), line_end), ended=label is not None)
    following = next(labels, None)
    limit = following.start() if following else len(turn.text)
    found, end, whole = _input(turn, label.end(), limit, payloads)
    return _Action(name, found, (first.start(), end), ended=whole or following is not None)


def _input(turn: Turn, start: int, limit: int, payloads: Mapping[int, int]) -> tuple[str | CallError, int, bool]:
    """Return the input or what is wrong with it, its end, and whether it is one whole JSON object or fence."""
    limit, error = _before_reasoning(turn, start, limit)
    if error:
        return error, limit, False
    payload = skip_blanks(turn.text, start)
    end = payloads.get(payload, limit)
    raw = turn.text[start:limit]
    if payload not in payloads and _FENCE.match(turn.text, payload, limit):
        error = CallError("truncated_call", "The fence around the input is not closed. Write the whole call.")
        return error, limit, False
    if end >= limit:
        return _without_backticks(_trimmed(raw)), limit, payload in payloads
    rest = turn.text[end:limit].strip()
    if not rest:
        return _without_backticks(raw.strip()), limit, True
    kind = "malformed_json" if turn.text.startswith("{", payload) else "malformed_call"
    return CallError(kind, f"Nothing may follow the input of an action, got {rest[:20]!r}."), limit, True


def _before_reasoning(turn: Turn, start: int, limit: int) -> tuple[int, CallError | None]:
    """Return where the input ends at the latest: reasoning on a line of its own ends it, other reasoning spoils it."""
    first = next((begin for begin, _ in turn.reasoning if start <= begin < limit), None)
    if first is None:
        return limit, None
    if not turn.text[turn.text.rfind("\n", 0, first) + 1 : first].strip():
        return first, None
    if turn.unclosed and first == turn.reasoning[-1][0]:
        return limit, turn.error
    message = "There is reasoning within the input. Write the input as a JSON object if it has to hold such tags."
    return limit, CallError("malformed_call", message)


def _trimmed(raw: str) -> str:
    """Drop the blanks around an input, but not the indentation of its first line when that is a line of its own."""
    head = raw.split("\n", 1)[0]
    return raw.strip() if head.strip() else re.sub(r"\A(?:[ \t\r]*\n)+", "", raw).rstrip()


def _without_backticks(text: str) -> str:
    """Drop a fence or backticks if they go around the whole text."""
    fence = _FENCE.match(text)
    if fence:
        closing = _closing(fence[1]).search(text, fence.end())
        return text[fence.end() : closing.start()].rstrip() if closing and closing.end() == len(text) else text
    run = _RUN.match(text)
    inside = text[run.end() : -run.end()] if run and text.endswith(run[0]) else ""
    whole = run is not None and inside.strip("`") == inside != "" and run[0] not in inside
    return inside.strip() if whole else text


def _closing(fence: str) -> re.Pattern[str]:
    """Return the pattern of a line that closes this fence."""
    return re.compile(rf"^[ \t]*{fence}`*[ \t\r]*$", re.MULTILINE)


def _call(action: _Action, tools: Mapping[str, ToolSpec]) -> ToolCall | CallError:
    if isinstance(action.input, CallError):
        return action.input
    text = action.input or ""
    if not text.lstrip().startswith("{"):
        return raw_call(action.name, text, tools)
    found = read_json(text)
    if found.complete and skip_blanks(text, found.end) < len(text):
        return CallError("malformed_json", f"Nothing may follow the JSON object, got {text[found.end :][:20]!r}.")
    if found.error is not None:
        return found.error
    arguments = read_arguments(found.value, "Action Input")
    return arguments if isinstance(arguments, CallError) else checked_call(action.name, arguments, tools)
