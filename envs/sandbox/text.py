r"""Output as clean text: valid, printable, of bounded length. Used on both sides of the wall.

>>> clean("a\x00b\ud800 \x1b[31mred\x1b[0m\r\nend")
'a\\x00b\\ud800 red\nend'
>>> shorten("abcdefghij" * 20, 60)
'abcdefghijabc\n[… 173 characters dropped …]\nefghijabcdefghij'
"""

from __future__ import annotations

import re

__all__ = ["clean", "halves", "join", "shorten"]

# Colours and cursor movements (ECMA-48 CSI, OSC and two-character escapes) carry no text.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_LINE_ENDS = re.compile(r"\r\n?")
_UNCLEAN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_DROPPED = "\n[… {} characters dropped …]\n"


def clean(text: str) -> str:
    r"""Return ``text`` without terminal escapes; other control characters and half surrogates show as ``\xNN``.

    Carriage returns, which a terminal would act on, become line ends.
    """
    if text.isascii() and text.isprintable():  # most are, and short; the empty one is
        return text
    text = _LINE_ENDS.sub("\n", _ESCAPES.sub("", text))
    return _UNCLEAN.sub(lambda c: c[0].encode("unicode_escape", "surrogatepass").decode(), text)


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
