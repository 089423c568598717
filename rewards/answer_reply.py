"""What in a completion is the reply, and what is reasoning, tool traffic, program text or an invented next turn.

Whatever is not the reply is overwritten with blanks, so that an index into the result is an index into the completion.

>>> reply("<think>70?</think>She sold 72.<|im_end|>#### 5")
'                  She sold 72.'
"""

from __future__ import annotations

import re

from trajgym.protocols.fences import LEAD
from trajgym.protocols.reasoning import reasoning_spans

__all__ = ["NEXT_TURN", "reply"]

# A line with which a model begins to play the next turn itself; it follows an answer, so there is a line above it.
NEXT_TURN = re.compile(r"\n[ \t>#*_]*(?i:(?:question|problem)[ \t]*\d*|q|user|human)[*_]*[ \t]*:")

# What ends a turn in the chat templates, and what begins one.
_END = re.compile(
    r"<(?:\|(?:im_end|endoftext|eot_id|eom_id|end_of_text|(im_start|start_header_id))\|>|/s>|end_of_turn>"
    r"|｜end▁of▁sentence｜>)"
)
_TOOL = re.compile(r"<(/?)(tool_call|tool_response)>", re.IGNORECASE)
_FENCE = re.compile(rf"(`{{3,}}|^{LEAD}~{{3,}})[ \t]*([A-Za-z][\w+#.-]*)?([^\n`]*)", re.MULTILINE)
_STRUCK_OUT = re.compile(r"~~[^~\n]{1,200}~~")
_ANNOTATION = re.compile(r"<<[^<>\n]*(?:>>|\Z)")

# Fences of these kinds hold text or data the reply is made of; any other tag names a language or a program's output.
_LAYOUT_TAGS = re.compile(
    "(?:json[c5l]?|te?xt|plain|plaintext|markdown|md|latex|tex|math|katex|ya?ml|xml|csv|toml|answer|none)?",
    re.IGNORECASE,
)
# Tags that also count where program text follows on the same line.
_PROGRAM_TAGS = re.compile(
    "i?py(?:thon)?3?|pycon|tool_code|output|std(?:out|err)|console|bash|z?sh|shell|javascript|js|typescript|ts|java|cpp|"
    "rust|ruby|go|sql|octave|matlab|julia|haskell|perl|php|swift|kotlin|scala|lua|sympy",
    re.IGNORECASE,
)


def reply(completion: str) -> str:
    """Return the completion up to its end token, with everything that is not the reply blanked."""
    body = _to_its_end(completion) if "<" in completion else completion
    if "<" in body:
        spans, _ = reasoning_spans(body)
        body = _blank(body, spans)
        if _TOOL.search(body):
            body = _blank(body, _tool_traffic(body))
    if "```" in body or "~~~" in body:
        body = _blank(body, _program_text(body))
    if "~~" in body:
        body = _STRUCK_OUT.sub(lambda m: " " * len(m[0]), body)
    if "<<" in body:
        body = _ANNOTATION.sub(lambda m: " " * len(m[0]), body)
    return body


def _to_its_end(completion: str) -> str:
    """Cut at the end of the turn; a header in front of the reply is its own and ends nothing."""
    for end in _END.finditer(completion):
        if not end[1] or completion[: end.start()].strip():
            return completion[: end.start()]
    return completion


def _blank(body: str, spans: list[tuple[int, int]]) -> str:
    parts, last = [], 0
    for start, end in spans:
        parts += [body[last:start], re.sub(r"[^\n]", " ", body[start:end])]
        last = end
    return "".join([*parts, body[last:]])


def _tool_traffic(body: str) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    opened, name = -1, ""
    for tag in _TOOL.finditer(body):
        if not tag[1]:
            opened, name = (tag.start() if opened < 0 else opened), tag[2].lower()
        elif opened >= 0 and tag[2].lower() == name:
            spans.append((opened, tag.end()))
            opened = -1
    return spans if opened < 0 else [*spans, (opened, len(body))]


def _program_text(body: str) -> list[tuple[int, int]]:
    """Find fences with a programming or output tag, and the tags of the other fences."""
    spans: list[tuple[int, int]] = []
    opened, width, program = -1, 0, False
    for fence in _FENCE.finditer(body):
        size, tag = len(fence[1]) - len(fence[1].rstrip("`~")), fence[2] or ""
        alone = not fence[3].strip()
        layout, program_tag = _LAYOUT_TAGS.fullmatch(tag), _PROGRAM_TAGS.fullmatch(tag)
        if opened >= 0:
            reopens = program_tag or (tag and layout and alone)
            if size < width and not reopens:
                continue
            if program:
                spans.append((opened, fence.start() if reopens else fence.end(1)))
            opened = -1
            if not reopens:
                continue
        opened, width = fence.start(), size
        program = program_tag is not None or (alone and layout is None)
        if tag and alone and not program:
            spans.append(fence.span(2))
    return [*spans, (opened, len(body))] if program and opened >= 0 else spans
