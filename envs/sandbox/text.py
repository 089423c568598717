r"""Output as clean text: valid, without control characters, of bounded length. Used on both sides of the wall.

>>> clean("a\x00b\ud800 \x1b[31mred\x1b[0m\r\nend")
'a\\x00b\\ud800 red\nend'
>>> shorten("abcdefghij" * 20, 60)
'abcdefghijabcde\n[… 170 characters dropped …]\nfghijabcdefghij'
"""

from __future__ import annotations

import re

__all__ = ["clean", "halves", "join", "shorten", "shorten_more"]

# Colours and cursor movements (ECMA-48 CSI, OSC and two-character escapes) carry no text.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_LINE_ENDS = re.compile(r"\r\n?")
# A table, since an output can be a million of these, and whoever called waits.
_UNCLEAN = {
    number: chr(number).encode("unicode_escape", "surrogatepass").decode()
    for number in (*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0), *range(0xD800, 0xE000))
}
_DROPPED = "\n[… {} characters dropped …]\n"


def clean(text: str) -> str:
    r"""Return ``text`` without terminal escapes; other control characters and half surrogates show as ``\xNN``.

    Carriage returns, which a terminal would act on, become line ends.
    """
    if text.isascii() and text.isprintable():  # most are, and short; the empty one is
        return text
    text = _LINE_ENDS.sub("\n", _ESCAPES.sub("", text))
    return text.translate(_UNCLEAN)


def halves(text: str, limit: int) -> tuple[str, str, int]:
    """Return head, tail and the number of characters between them that go so that ``limit`` stay.

    A text that fits is all head.
    """
    dropped = len(text) - limit
    if dropped <= 0:
        return text, "", 0
    head = limit - limit // 2
    return text[:head], text[head + dropped :], dropped


def join(head: str, tail: str, dropped: int) -> str:
    """Return what :func:`halves` left as one text that says how much is missing."""
    return head + _DROPPED.format(dropped) + tail if dropped else head + tail


def shorten(text: str, limit: int) -> str:
    """Return ``text`` in at most ``limit`` characters: a longer one loses its middle, and says so."""
    if len(text) <= limit:
        return text
    return join(*halves(text, max(limit - len(_DROPPED.format(len(text))), 0)))


def shorten_more(text: str, dropped: int, limit: int) -> str:
    r"""Return what :func:`join` gave in at most ``limit`` characters, with one count of all that is missing.

    >>> shorten_more(join("abcdefghij" * 4, "abcdefghij" * 4, 20), 20, 60)
    'abcdefghijabcde\n[… 70 characters dropped …]\nfghijabcdefghij'
    """
    if len(text) <= limit or not dropped:
        return shorten(text, limit)
    head, _, tail = text.partition(_DROPPED.format(dropped))
    total = len(head) + dropped + len(tail)
    kept = max(limit - len(_DROPPED.format(total)), 0)
    head, tail = head[: kept - kept // 2], tail[max(len(tail) - kept // 2, 0) :]
    return join(head, tail, total - len(head) - len(tail))
