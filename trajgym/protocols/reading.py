"""Which part of an assistant turn may act: what every written form has to ignore, in one place.

Not part of the action are: anything behind an end-of-turn token or behind a tool's answer that the policy
invented, reasoning, and quoted examples (fenced blocks, inline code). :func:`read_turn` blanks these out in
a copy of the same length, so that a protocol can search the copy and read at the same place in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trajgym.types import CallError

__all__ = ["REASONING", "TURN_MARK", "Span", "Turn", "read_turn"]

Span = tuple[int, int]

_HIDDEN = "\x00"
_END_OF_TURN = re.compile(
    r"<\|(?:im_end|im_start|endoftext|eot_id|eom_id|start_header_id|end_of_text)\|>"
    r"|</s>|<end_of_turn>|<｜end▁of▁sentence｜>"
)
# A tag between backticks is a mention of it; beside a fence it is a tag.
REASONING = re.compile(r"(?:(?<!`)|(?<=```))<(?P<close>/?)think(?:ing)?>(?:(?!`)|(?=```))")
# What acts even within text that nothing escapes: the end of the turn, and the borders of reasoning.
TURN_MARK = re.compile(f"{_END_OF_TURN.pattern}|{REASONING.pattern}")
_FENCE = re.compile(r"^[ \t]*(?:(`{3,})[^`\n]*|(~{3,})[^\n]*)$", re.MULTILINE)
_BACKTICKS = re.compile(r"`+")
_ANSWER = re.compile(r"<tool_response>")
_OBSERVATION = re.compile(r"^[ \t]*Observation:", re.MULTILINE)


@dataclass(frozen=True)
class Turn:
    """An assistant turn, cut where it ends.

    Args:
        text: The turn's own text, reasoning and examples included.
        live: The same text with everything that must not act blanked out; positions agree with ``text``.
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
    live = _blanked(text, opaque)
    end = _END_OF_TURN.search(live)
    if end:
        text, live = text[: end.start()], live[: end.start()]
    reasoning, opened = _reasoning(live, reasoning_tag)
    live = _blanked(live, reasoning)
    live = _blanked(live, _fences(live))
    live = _blanked(live, _inline_code(live))
    end = _ANSWER.search(live)
    first = live.find(opener)
    observation = _OBSERVATION.search(live, first) if first >= 0 and "Observation:" in live else None
    ends = [match.start() for match in (end, observation) if match]
    stop = min([*ends, *(place for place in map(live.find, stops) if place >= 0)], default=len(text))
    return Turn(
        text[:stop],
        live[:stop],
        tuple((start, min(end, stop)) for start, end in reasoning if start < stop),
        opened is not None and opened < stop,
    )


def _blanked(text: str, spans: Iterable[Span]) -> str:
    parts, position = [], 0
    for start, end in spans:
        parts += [text[position:start], _HIDDEN * (end - start)]
        position = end
    return "".join([*parts, text[position:]]) if parts else text


def _reasoning(text: str, reasoning_tag: re.Pattern[str]) -> tuple[list[Span], int | None]:
    """Return where reasoning stands, and where it was opened last if it was never closed."""
    if "think" not in text and "THINK" not in text:
        return [], None
    spans: list[Span] = []
    opened: int | None = None
    for tag in reasoning_tag.finditer(text):
        if not tag["close"]:
            opened = tag.start() if opened is None else opened
        elif opened is not None:
            spans.append((opened, tag.end()))
            opened = None
        else:
            # The opening tag stood in the prompt: everything so far was reasoning.
            spans = [(0, tag.end())]
    if opened is not None:
        spans.append((opened, len(text)))
    return spans, opened


def _fences(text: str) -> list[Span]:
    """Return the fenced blocks; one that is not closed goes on to the end, as in Markdown."""
    if "```" not in text and "~~~" not in text:
        return []
    spans: list[Span] = []
    opened: tuple[int, str] | None = None
    for line in _FENCE.finditer(text):
        fence = line[1] or line[2]
        if opened is None:
            opened = (line.start(), fence)
        elif fence.startswith(opened[1]) and line[0].strip() == fence:
            spans.append((opened[0], line.end()))
            opened = None
    if opened is not None:
        spans.append((opened[0], len(text)))
    return spans


def _inline_code(text: str) -> list[Span]:
    """Return the code spans: two runs of equally many backticks on one line."""
    if "`" not in text:
        return []
    spans: list[Span] = []
    start = 0
    for line in text.split("\n"):
        runs = [(start + run.start(), start + run.end()) for run in _BACKTICKS.finditer(line)]
        start += len(line) + 1
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
