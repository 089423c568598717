r"""Where a reply says that it gives its answer.

Strong markers are ``#### 72``, ``\boxed{72}``, ``<answer>72</answer>`` and ``Final answer: 72``; weak ones are
``answer is 72``, ``Answer: 72``, the JSON key ``answer`` and a line ``A: 72``. Where markers are nested, the one that
starts last is the innermost.

>>> [(m.rule, m.start, m.end) for m in strong_markers("so \\boxed{72}, ok")]
[('boxed', 10, 12)]
"""

from __future__ import annotations

import re
from typing import NamedTuple

from trajgym.rewards.answer_clauses import denied, unfinished
from trajgym.rewards.answer_tokens import CURRENCY, Token, line_start, tokenize
from trajgym.rewards.answer_value import REACH
from trajgym.rewards.numbers import VULGAR, spelled
from trajgym.rewards.vocabulary import ALTERNATIVES, FILLERS, LABELS

__all__ = [
    "SIDE_BY_SIDE",
    "Marker",
    "is_heading",
    "limit_of",
    "strong_markers",
    "text_of",
    "trimmed",
    "weak_markers",
]

SIDE_BY_SIDE = 50  # markers in one list that are compared with one another at most

# Both patterns begin with a set of characters and check it afterwards: that lets the engine skip quickly.
_STRONG = re.compile(
    r"""[\#\\<Ff](?:
    (?P<hash>(?<=\#)(?<!\#\#)\#{3}(?!\#))
  | (?P<boxed>(?<=\\)(?:boxed|fbox)\s{0,4}\{)
  | (?P<close>(?<=<)/(?i:answer)\s{0,4}>)
  | (?P<answer_tag>(?<=<)(?i:answer)\s{0,4}>)
  | (?P<final_answer>(?<=[Ff])(?i:inal)\s{1,4}(?i:answer)[*_"']{0,4}\s{0,4}(?:\([^()\n]{0,60}\)\s?)?[*_"']{0,4}
        (?:\s?[:：=]|\s{1,4}(?i:is(?![a-z])|(?=isn['’]?t\b))))
    )""",
    re.VERBOSE,
)
_BRACE = re.compile(r"(\\(?:boxed|fbox)\s{0,4}\{)|\\[{}]|([{}])")
_WEAK = re.compile(
    r"""[Aa](?:
    (?<![\w\\][Aa])(?i:nswer)(?:
        (?P<json>["']\s{0,4}:)
      | (?P<answer_label>[*_"']{0,4}\s?(?:\([^()\n]{0,60}\)\s?)?[*_]{0,4}\s?[:：])
      | (?P<answer_is>[*_"']{0,4}\s{1,4}(?i:is(?![a-z])[*_]{0,3}\s?[:：]?|(?=isn['’]?t\b))))
  | (?<=A)[*_]{0,3}[ \t]?(?P<a_line>[:：])
    )""",
    re.VERBOSE,
)
_LINE_LAYOUT = " \t>#*_"
_JSON_VALUE = re.compile(r"""\s{0,20}(?:"(?P<double>[^"\n]*)|'(?P<single>[^'\n]*)|(?P<bare>[^}\]"'\n]*))""")
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
_SENTENCE_END = re.compile(r"""(?<!\bapprox)(?<!\bca)(?<!\bRs)(?<!\bNo)[.!?](?=\s+["'“(*_$]*[A-Z\d])""")

_LAYOUT = r"[\s*_~`$\"'({\[\\]*"
_NUMBERED = re.compile(rf"{_LAYOUT}\d{{1,2}}[*_]*\s?[.):][*_]*\s+[*_]*[^\W\d_]")
_SECTION = re.compile(
    rf"{_LAYOUT}(?:step|part|case|phase|stage|section|day|week|method|approach|option|scenario|example|question|"
    r"problem|note|table|figure|task|chapter|point|thing)s?\b",
    re.IGNORECASE,
)
_VALUE_FIRST = re.compile(rf"{_LAYOUT}[-−–+~%≈=.{CURRENCY}]*{_LAYOUT}[\d{VULGAR}]")
_NO_VALUE = re.compile(
    r"\s*(?:[{<\[?]|[*_`$]*(?:(?i:nan|[-+]?inf|infinity|none|null|n/a|undefined)|[IVXLCDM]{2,})[*_`$.]*\s*\Z)"
)


class Marker(NamedTuple):
    """One marker and where its text stands.

    Args:
        mark: Index of the marker itself.
        rule: What kind of marker it is.
        start: Index of the first character of its text.
        end: Index behind its text; ``None`` when the marker has no closing sign, or lacks it.
        stop: Index behind its closing sign, or ``None``.
    """

    mark: int
    rule: str
    start: int
    end: int | None = None
    stop: int | None = None

    @property
    def unclosed(self) -> bool:
        """Whether a closing sign is missing."""
        return self.end is None and self.rule in ("boxed", "answer_tag")


def strong_markers(body: str) -> list[Marker]:
    """Find the strong markers in order; ``####`` headings are among them (see :func:`is_heading`)."""
    markers: list[Marker] = []
    open_tags: list[int] = []
    boxes: dict[int, int] | None = None
    for found in _STRONG.finditer(body):
        rule = found.lastgroup or ""
        if rule == "close":
            if open_tags:
                index = open_tags.pop()
                markers[index] = markers[index]._replace(end=found.start(), stop=found.end())
            continue
        end = None
        if rule == "answer_tag":
            open_tags.append(len(markers))
        elif rule == "boxed":
            boxes = _closing_braces(body, found.start()) if boxes is None else boxes
            end = boxes.get(found.end())
        markers.append(Marker(found.start(), rule, found.end(), end, None if end is None else end + 1))
    return markers


def weak_markers(body: str, start: int = 0, end: int | None = None) -> list[Marker]:
    """Find the weak markers in ``body[start:end]``, in order."""
    stop = len(body) if end is None else end
    return [
        Marker(found.start(), found.lastgroup or "", found.end())
        for found in _WEAK.finditer(body, start, stop)
        if found.lastgroup != "a_line" or line_start(body, found.start(), _LINE_LAYOUT)
    ]


def text_of(body: str, marker: Marker, limit: int) -> tuple[int, int]:
    """Return where the text of a marker starts and ends.

    Args:
        body: The reply.
        marker: One of its markers.
        limit: Index at which the text of a marker without a closing sign ends at the latest.
    """
    if marker.end is not None:
        return marker.start, marker.end
    if marker.rule == "hash":
        return marker.start, _line_end(body, marker.start, limit)
    if marker.rule == "json":
        value = _JSON_VALUE.match(body, marker.start, limit)
        return value.span(value.lastgroup or 0) if value else (marker.start, marker.start)
    # The value may stand on the line that follows, or further down behind lines of layout only.
    sign = _LETTER_OR_DIGIT.search(body, marker.start, min(limit, marker.start + REACH))
    if sign is None:
        return marker.start, marker.start
    start = max(marker.start, body.rfind("\n", marker.start, sign.start()) + 1)
    end = _line_end(body, sign.start(), limit)
    if marker.rule != "final_answer" and (sentence := _SENTENCE_END.search(body, start, end)):
        end = sentence.start()
    return start, end


def limit_of(body: str, markers: list[Marker], index: int) -> int:
    """Where an open-ended marker ends at the latest: at the next marker, or where the marker around it closes."""
    limit = markers[index + 1].mark if index + 1 < len(markers) else len(body)
    around = markers[max(0, index - SIDE_BY_SIDE) : index]
    return min([limit, *(m.end for m in around if m.end is not None and m.end >= markers[index].start)])


def trimmed(body: str, start: int, end: int) -> tuple[int, int] | None:
    """Return where the text of a marker stands without the blanks around it; ``None`` when it is empty."""
    text = body[start:end]
    shorter = text.strip()
    if not shorter:
        return None
    first = start + len(text) - len(text.lstrip())
    return first, first + len(shorter)


def is_heading(body: str, start: int, end: int) -> bool:
    """Whether the text behind ``####`` makes it a Markdown heading and not an answer.

    An answer starts with its value, or with a label (``Total:``) right before it. What stands for a missing value
    (``None``, ``{answer}``) is an answer too: a wrong one.
    """
    if _NUMBERED.match(body, start, end) or _SECTION.match(body, start, end):
        return True
    if _VALUE_FIRST.match(body, start, end) or _NO_VALUE.match(body[start:end]):
        return False
    tokens = tokenize(body, start, end)
    first = next((i for i, t in enumerate(tokens) if t.kind == "number"), None)
    if first is None:
        return not _spelled_answer(tokens)
    lead = [t for t in tokens[:first] if t.text not in FILLERS]
    if (
        all(t.kind != "word" for t in lead)
        or _spelled_answer(tokens[:first])
        or unfinished(tokens, first)
        or denied(tokens, first)
    ):
        return False
    return lead[-1].kind not in ("colon", "equals") and lead[-1].text not in LABELS


def _spelled_answer(tokens: list[Token]) -> bool:
    label = max((i + 1 for i, t in enumerate(tokens) if t.kind in ("colon", "equals") or t.text == "is"), default=0)
    words = [
        word
        for t in tokens[label:]
        if t.text not in ("minus", "negative") and t.kind in ("word", "number") and t.text not in ALTERNATIVES
        for word in t.text.split("-")
    ]
    _, used = spelled(words)
    return used > 0 and len(words) - used <= 1 and not (len(words) > used and _SECTION.match(words[used]))


def _line_end(body: str, start: int, limit: int) -> int:
    limit = min(limit, start + REACH)
    end = body.find("\n", start, limit)
    return limit if end < 0 else end


def _closing_braces(body: str, start: int) -> dict[int, int]:
    """Map the start of each box's text to the index of the brace that closes it; one pass with a stack."""
    closing: dict[int, int] = {}
    stack: list[int] = []
    for found in _BRACE.finditer(body, start):
        if found[1] or found[2] == "{":
            stack.append(found.end() if found[1] else -1)
        elif found[2] == "}" and stack and (opened := stack.pop()) >= 0:
            closing[opened] = found.start()
    return closing
