r"""Fenced blocks as Markdown has them, those in list items and block quotes included.

>>> text = "- ~~~python\n  1\n  ~~~\n2"
>>> [(block.info, block.content(text)) for block in fenced_blocks(text)]
[('python', '1')]

Two simplifications, each of which takes more for a block than CommonMark does: a fence may be indented as far as it
likes, and what a list item above it makes of its own line is not looked at.

Source: CommonMark 0.31.2, sections 4.5 (fences), 5.1 (block quotes) and 5.2 (list items).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["FENCE", "LEAD", "OPENING", "FencedBlock", "fenced_blocks"]

LEAD = r"(?:[ \t]*+(?:>|(?:[-*+]|[0-9]{1,9}[.)])(?=[ \t])))*+[ \t]*+"
"""Pattern of what may stand in front of a fence on its line: marks of quotes and of list items."""

FENCE = r"(?P<fence>`{3,}+|~{3,}+)(?P<info>(?<=`)[^`\n]*+|(?<=~)[^\n]*+)$"
"""Pattern of a fence that opens a block, up to the end of its line."""

OPENING = re.compile(rf"^(?P<lead>{LEAD}){FENCE}", re.MULTILINE)
_CLOSING = re.compile(r"([ \t]*+)(`{3,}+|~{3,}+)[ \t\r]*+$", re.MULTILINE)
_CLOSING_LINE = re.compile(f"^{_CLOSING.pattern}", re.MULTILINE)
_LINE = re.compile(r"^", re.MULTILINE)

_MARK = re.compile(r"[ \t]*+(?:(>)[ \t]?+|(?:[-*+]|[0-9]{1,9}[.)])[ \t]{1,4}+)")
_QUOTE = re.compile(r"[ \t]*+>[ \t]?")
_BLANKS = re.compile(r"[ \t]*+(\r?$)?", re.MULTILINE)
_IS_QUOTE = 0
_OPEN, _CLOSED, _CARELESS = range(3)  # how a block ends
_SLACK = 3  # columns that a closing fence may be indented further than the opening one
_TAB = 4  # columns between tab stops
_HIDDEN = "\x00"


class FencedBlock(NamedTuple):
    """A block between two fences, or from one to the end of what it stands in.

    Args:
        start: Where the opening fence begins.
        end: The end of the closing fence's line; without one, of the last line that belongs to the block.
        info: What stands behind the opening fence.
        inside: The lines between the fences, without the line break in front of the closing one.
        closed: Whether there is a closing fence.
        quoted: Whether the block stands in a block quote.
        margin: How many columns of each line are not content but what the block is indented by.
    """

    start: int
    end: int
    info: str
    inside: tuple[int, int]
    closed: bool
    quoted: bool = False
    margin: int = 0

    def content(self, text: str) -> str:
        """Return the lines between the fences, without the margin."""
        lines = text[slice(*self.inside)]
        if not self.margin:
            return lines
        return "\n".join(line[_step_over(line, 0, self.margin) :] for line in lines.split("\n"))


def fenced_blocks(text: str, opening: re.Pattern[str] = OPENING) -> list[FencedBlock]:
    r"""Return the fenced blocks of a text, in order; one within another is content.

    A block ends at a fence of the same sign, at least as long, with nothing behind it, and at most three columns
    further in; or where its quote or its list item ends; or with the text. List items are often written carelessly:
    where the next fence in the text closes the block, but for its indentation, it does.

    Args:
        text: The text; runs of ``"\0"`` stand for what is not part of it, and belong wherever they are.
        opening: What opens a block, with the groups ``lead`` (``None`` behind other text), ``fence`` and ``info``.
    """
    if "```" not in text and "~~~" not in text:
        return []
    blocks = []
    found = opening.search(text)
    while found:
        block = _block(text, found)
        blocks.append(block)
        found = opening.search(text, block.end)
    return blocks


def _block(text: str, opening: re.Match[str]) -> FencedBlock:
    containers, indent = _containers(opening["lead"] or "")
    quoted = _IS_QUOTE in containers
    fence, first = opening["fence"], min(opening.end() + 1, len(text))
    find_end = _end_in_containers if containers else _end
    inside_end, end, found = find_end(text, first, fence, indent, containers)
    margin = 0 if found == _CARELESS else indent if quoted else indent + sum(containers)
    inside = (first, max(first, inside_end))
    return FencedBlock(opening.start("fence"), end, opening["info"].strip(), inside, found != _OPEN, quoted, margin)


def _end(text: str, first: int, fence: str, indent: int, containers: Sequence[int] = ()) -> tuple[int, int, int]:
    """Return where the lines of a block end, where the block ends, and how it does."""
    for closing in _CLOSING_LINE.finditer(text, first):
        if closing[2].startswith(fence) and _columns(closing[1]) <= indent + _SLACK:
            return closing.start() - 1, closing.end(), _CLOSED
    return len(text), len(text), _OPEN


def _end_in_containers(
    text: str, first: int, fence: str, indent: int, containers: Sequence[int]
) -> tuple[int, int, int]:
    for line in _LINE.finditer(text, first):
        start = line.start()
        content = _content(text, start, containers)
        if content < 0:
            following = None if _IS_QUOTE in containers else OPENING.search(text, start)
            bare = following is not None and not (following["lead"] + following["info"]).strip()
            if following and bare and following["fence"].startswith(fence):
                return following.start() - 1, following.end(), _CARELESS
            return start - 1, start - 1, _OPEN
        closing = _CLOSING.match(text, content)
        if closing and closing[2].startswith(fence) and _columns(closing[1]) <= indent + _SLACK:
            return start - 1, closing.end(), _CLOSED
    return len(text), len(text), _OPEN


@functools.lru_cache(maxsize=256)
def _containers(lead: str) -> tuple[tuple[int, ...], int]:
    """Return what a fence stands in, outermost first, and how many columns it is indented in there.

    A list item is the number of columns that its further lines are indented by at least, a quote is 0.
    """
    containers: list[int] = []
    end = column = 0
    for mark in _MARK.finditer(lead):
        end = mark.end()
        width = _columns(mark[0], column)
        column += width
        if mark[1]:
            containers.append(_IS_QUOTE)
        elif containers and containers[-1] != _IS_QUOTE:
            containers[-1] += width  # an item within an item
        else:
            containers.append(width)
    return tuple(containers), _columns(lead[end:], column)


def _content(text: str, start: int, containers: Sequence[int]) -> int:
    """Return where the content of the line at ``start`` begins, or -1 when it does not stand in all of these."""
    position = start
    for columns in containers:
        if columns == _IS_QUOTE:
            quote = _QUOTE.match(text, position)
            if quote is None:
                return start if _beside_hidden(text, start) else -1
            position = quote.end()
            continue
        blanks = _BLANKS.match(text, position)
        assert blanks is not None
        if blanks[1] is None and _columns(text[position : blanks.end()]) < columns:
            return start if _beside_hidden(text, start) else -1
        # Blank lines belong to an item, however they are indented.
        position = _step_over(text, position, columns)
    return position


def _beside_hidden(text: str, start: int) -> bool:
    """Whether a line begins with something hidden or behind it, so that it is no line of its own."""
    return text.startswith(_HIDDEN, start) or text.endswith(_HIDDEN, 0, max(start - 1, 0))


def _columns(text: str, column: int = 0) -> int:
    """Return how many columns a text takes that begins at ``column``."""
    if "\t" not in text:
        return len(text)
    before = column % _TAB
    return len((" " * before + text).expandtabs(_TAB)) - before


def _step_over(text: str, position: int, columns: int) -> int:
    """Return the position behind blanks of so many columns, or behind all there are; a tab is not cut in two."""
    column = 0
    while column < columns and text.startswith((" ", "\t"), position):
        column += _TAB - column % _TAB if text[position] == "\t" else 1
        position += 1
    return position
