"""Which part of an assistant turn may act: what every written form has to ignore, in one place.

Not part of the action are: anything behind an end-of-turn token or behind a tool's answer that the policy
invented, reasoning, and quoted examples (fenced blocks, inline code). :func:`read_turn` blanks these out in
a copy of the same length, so that a protocol can search the copy and read at the same place in the text.

Reasoning is not a part of any line: what stands in front of it ends a line, and what stands behind it begins one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trajgym.protocols.fences import fenced_blocks
from trajgym.protocols.reasoning import REASONING, reasoning_spans
from trajgym.types import CallError

__all__ = ["TURN_MARK", "Span", "Turn", "blanked", "read_turn"]

Span = tuple[int, int]

_HIDDEN = "\x00"
_END_OF_TURN = re.compile(
    r"<\|(?:im_end|im_start|endoftext|eot_id|eom_id|start_header_id|end_of_text)\|>"
    r"|</s>|<end_of_turn>|<｜end▁of▁sentence｜>"
)
# What acts even within text that nothing escapes: the end of the turn, and the borders of reasoning.
TURN_MARK = re.compile(f"{_END_OF_TURN.pattern}|{REASONING.pattern}")
_ANSWER = re.compile(r"<tool_response>")
_MARKUP = re.compile(f"{TURN_MARK.pattern}|{_ANSWER.pattern}|[`~]|Observation:")  # without any, all of a turn acts
_BACKTICKS = re.compile(r"`+")
_LINE_WITH_BACKTICKS = re.compile(r"^[^`\n]*+`.*$", re.MULTILINE)
_OBSERVATION = re.compile(r"^[ \t]*Observation:", re.MULTILINE)


@dataclass(frozen=True)
class Turn:
    """An assistant turn, cut where it ends.

    Args:
        text: The turn's own text, reasoning and examples included.
        live: The same text with everything that must not act blanked out; positions agree with ``text``. Reasoning
            has a line break at either end there.
        reasoning: Where the reasoning stands.
        unclosed: Whether reasoning was opened and never closed.
    """

    text: str
    live: str
    reasoning: tuple[Span, ...] = ()
    unclosed: bool = False

    @property
    def error(self) -> CallError | None:
        """The error of reasoning that never ends."""
        if not self.unclosed:
            return None
        return CallError(
            "unclosed_reasoning", "The reasoning is never closed, so nothing behind <think> counts. Write </think>."
        )

    def without(self, spans: Iterable[Span]) -> str:
        """Return the text without its reasoning and without ``spans``, stripped."""
        parts, position = [], 0
        for start, end in sorted([*self.reasoning, *spans]):
            parts.append(self.text[position:start])
            position = max(position, end)
        return "".join([*parts, self.text[position:]]).strip()


def read_turn(
    text: str,
    opener: str,
    opaque: Iterable[Span] = (),
    *,
    stops: Sequence[str] = (),
    reasoning_tag: re.Pattern[str] = REASONING,
) -> Turn:
    """Find what of a turn may act.

    Args:
        text: What the policy wrote.
        opener: What a call begins with. Behind one, a line ``Observation:`` is an invented answer; in front it is
            prose.
        opaque: Spans whose content is data, such as complete JSON objects: nothing in them is markup.
        stops: Markers of the written form that begin a tool's answer or somebody else's turn.
        reasoning_tag: What reasoning stands between; its group ``close`` is empty for an opening tag.
    """
    live = blanked(text, opaque)
    if reasoning_tag is REASONING and not _MARKUP.search(live) and not any(stop in live for stop in stops):
        return Turn(text, live)
    end = _END_OF_TURN.search(live)
    if end:
        text, live = text[: end.start()], live[: end.start()]
    reasoning, unclosed = reasoning_spans(live, reasoning_tag)
    live = blanked(live, reasoning, border="\n")
    live = blanked(live, [(block.start, block.end) for block in fenced_blocks(live)])
    live = blanked(live, _inline_code(live))
    end = _ANSWER.search(live)
    first = live.find(opener)
    observation = _OBSERVATION.search(live, first) if first >= 0 and "Observation:" in live else None
    ends = [match.start() for match in (end, observation) if match]
    stop = min([*ends, *(place for place in map(live.find, stops) if place >= 0)], default=len(text))
    return Turn(
        text[:stop],
        live[:stop],
        tuple((start, min(end, stop)) for start, end in reasoning if start < stop),
        unclosed and reasoning[-1][0] < stop,
    )


def blanked(text: str, spans: Iterable[Span], border: str = "") -> str:
    """Overwrite spans, with ``border`` as their first and last characters; positions stay as they are."""
    parts, position = [], 0
    for start, end in spans:
        parts += [text[position:start], border, _HIDDEN * (end - start - 2 * len(border)), border]
        position = end
    return "".join([*parts, text[position:]]) if parts else text


def _inline_code(text: str) -> list[Span]:
    """Return the code spans: two runs of equally many backticks on one line."""
    if "`" not in text:
        return []
    spans: list[Span] = []
    for line in _LINE_WITH_BACKTICKS.finditer(text):
        runs = [run.span() for run in _BACKTICKS.finditer(text, *line.span())]
        later: dict[int, list[int]] = {}  # length of a run -> the runs of that length, the next one last
        for i in range(len(runs) - 1, -1, -1):
            later.setdefault(runs[i][1] - runs[i][0], []).append(i)
        i = 0
        while i < len(runs):
            same = later[runs[i][1] - runs[i][0]]
            while same and same[-1] <= i:
                same.pop()
            if same:
                spans.append((runs[i][0], runs[same[-1]][1]))
                i = same[-1]
            i += 1
    return spans
