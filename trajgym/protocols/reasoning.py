"""Where a text is reasoning: the one finder for calls, for answers and for turns that are still being written.

>>> reasoning_spans("<think>70?</think> She sold 72.")
([(0, 18)], False)
>>> reasoning_spans("70?</think> She sold <THINK>72.")
([(0, 11), (21, 31)], True)
"""

from __future__ import annotations

import re

__all__ = ["CLOSING", "LINE_START", "REASONING", "reasoning_spans"]

CLOSING = r"(?ai:</think(?:ing)?>)"
"""Pattern of what ends reasoning."""

LINE_START = r"(?:^|(?ai:(?<=</think>)|(?<=</thinking>)))"
"""Pattern, for :data:`re.MULTILINE`: the reply goes on behind reasoning, so a line of it begins there as well."""

# A tag between backticks is a mention of it; beside a fence it is a tag.
REASONING = re.compile(r"<(?:(?<!`<)|(?<=```<))(?P<close>/?)(?ai:think(?:ing)?)>(?:(?!`)|(?=```))")


def reasoning_spans(text: str, tag: re.Pattern[str] = REASONING) -> tuple[list[tuple[int, int]], bool]:
    """Return where the reasoning of a text stands, and whether the last of it is never closed.

    Reasoning in reasoning is one: the first closing tag ends both. When a tag closes what nothing opened, the
    opening tag stood in the prompt, and everything so far was reasoning. What is never closed goes on to the end.

    Args:
        text: A turn of a policy, or the beginning of one.
        tag: What reasoning stands between; its group ``close`` is empty for an opening tag.

    Returns:
        Spans in order, tags included, and whether the last of them lacks its closing tag.
    """
    spans: list[tuple[int, int]] = []
    opened: int | None = None
    for found in tag.finditer(text):
        if not found["close"]:
            opened = found.start() if opened is None else opened
        elif opened is not None:
            spans.append((opened, found.end()))
            opened = None
        else:
            spans = [(0, found.end())]
    if opened is not None:
        spans.append((opened, len(text)))
    return spans, opened is not None
