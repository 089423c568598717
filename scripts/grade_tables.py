"""How ``trajgym grade`` shows what it read: a row for each completion, and what they add up to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trajgym.rewards.answer_kinds import Grade
from trajgym.rewards.answer_reading import REASONS, RULES
from trajgym.scripts.grade_file import BadRow
from trajgym.scripts.grade_rows import Completion

__all__ = ["Graded", "show"]

_NARROW = 100  # characters a line below which columns are kept short
_LEAST, _MOST = 12, 76  # characters for what was read and the text around it
_STYLES = {"right": "green", "wrong": "red", "unread": "yellow"}
_MOST_BAD = 20  # unusable rows that are listed


@dataclass(frozen=True)
class Graded:
    """A completion and its grade."""

    completion: Completion
    grade: Grade

    @property
    def verdict(self) -> str:
        """``right``, ``wrong``, or ``unread`` when it gives no value that counts."""
        if self.grade.reading.value is None:
            return "unread"
        return "right" if self.grade.correct else "wrong"

    @property
    def disputed(self) -> bool:
        """Whether the file says otherwise."""
        return self.completion.flag not in (None, self.grade.correct)


def show(console: Console, graded: Sequence[Graded], bad: Sequence[BadRow], *, wrong: bool, most: int) -> None:
    """Print the table, the sums and the unusable rows.

    Args:
        console: Where to.
        graded: Every completion.
        bad: The rows that could not be used.
        wrong: List only what is wrong, unread or disputed.
        most: How many rows to list; 0 for all of them.
    """
    listed = [one for one in graded if not wrong or not one.grade.correct or one.disputed]
    shown = listed[: most or None]
    if shown:
        console.print(_rows(shown, console.width))
    if len(shown) < len(listed):
        console.print(f"… and {len(listed) - len(shown):,} more; --rows 0 lists them all.", highlight=False)
    if graded:
        console.print(_sums("how it was read", graded, lambda one: RULES[one.grade.reading.rule].sign))
    unread = [one for one in graded if one.verdict == "unread"]
    if unread:
        console.print(_reasons(unread))
    if bad:
        console.print(Text(f"{len(bad):,} {'row' if len(bad) == 1 else 'rows'} could not be used:", "red"))
        for row in bad[:_MOST_BAD]:
            console.print(Text(f"  line {row.line}: {_visible(row.reason)}"), soft_wrap=True)
        if len(bad) > _MOST_BAD:
            console.print(f"  … and {len(bad) - _MOST_BAD:,} more", highlight=False)
    flagged = [one for one in graded if one.completion.flag is not None]
    if flagged:
        agreed = sum(not one.disputed for one in flagged)
        console.print(
            f"The file's own verdict is the same for {agreed:,} of {len(flagged):,} completions.", highlight=False
        )


def _rows(graded: Sequence[Graded], width: int) -> Table:
    narrow = width < _NARROW
    longest_name, longest_verdict, longest_truth, longest_rule = (10, 8, 8, 16) if narrow else (20, 24, 16, 40)
    cells = [
        (
            str(one.completion.line),
            _shortened(_visible(one.completion.name), longest_name),
            one.verdict + (" (file: " + ("right" if one.completion.flag else "wrong") + ")") * one.disputed,
            _shortened(_truth(one.completion.answer), longest_truth),
            _rule(one, brief=narrow),
        )
        for one in graded
    ]
    titles = ("line", "which", "verdict", "truth", "rule")
    widths = [max(len(title), *(cell_len(row[i]) for row in cells)) for i, title in enumerate(titles)]
    named = any(one.completion.name for one in graded)
    widths[1] *= named
    widths[2] = min(widths[2], longest_verdict)
    widths[4] = min(widths[4], longest_rule)
    room = min(_MOST, max(_LEAST, width - sum(widths) - 3 * (5 + named) - 1))
    table = Table(header_style="bold")
    for title, space in zip(titles, widths, strict=True):
        if space:
            table.add_column(title, width=space, justify="right" if title == "line" else "left", overflow="fold")
    table.add_column("what was read", width=room, no_wrap=True, overflow="ellipsis")
    for one, (line, name, verdict, truth, rule) in zip(graded, cells, strict=True):
        styled = Text(verdict, "bold magenta" if one.disputed else _STYLES[one.verdict])
        texts = [Text(line), *([Text(name)] if named else []), styled, Text(truth), Text(rule), _excerpt(one, room)]
        table.add_row(*texts)
    return table


def _rule(one: Graded, *, brief: bool) -> str:
    reading = one.grade.reading
    reason = reading.reason.replace("_", " ") if brief else REASONS.get(reading.reason, "")
    if reading.rule == "none":
        return reason
    return RULES[reading.rule].sign + (f" ({reason})" if reason else "")


def _excerpt(one: Graded, room: int) -> Text:
    """Return what was read between ‹ and ›, with as much of the text around it as there is room for."""
    text, span = one.completion.text, one.grade.reading.span
    if span is None:
        return Text(_shortened_left(_visible(text.rstrip()[-2 * room :]), room), "dim")
    inside = _shortened(_visible(text[span[0] : min(span[1], span[0] + room)]), room - 2)
    left = room - 2 - cell_len(inside)
    behind = set_cell_size(_visible(text[span[1] : span[1] + room].rstrip()), min(left, room // 4)).rstrip()
    before = _shortened_left(_visible(text[max(0, span[0] - room) : span[0]]), left - cell_len(behind))
    return Text.assemble((before, "dim"), (f"‹{inside}›", "bold"), (behind, "dim"))


def _shortened(text: str, most: int) -> str:
    """Cut a text at its end so that it fills ``most`` cells of the terminal; some signs fill two."""
    return text if cell_len(text) <= most else set_cell_size(text, max(0, most - 1)) + "…" * (most > 0)


def _shortened_left(text: str, most: int) -> str:
    """The same at its beginning."""
    return text if cell_len(text) <= most else "…" * (most > 0) + set_cell_size(text[::-1], max(0, most - 1))[::-1]


def _truth(answer: str) -> str:
    """Return a ground truth without the solution in front of it."""
    return _visible(answer.rpartition("####")[2].strip())


def _sums(title: str, graded: Sequence[Graded], key: Callable[[Graded], str]) -> Table:
    counts: dict[str, Counter[str]] = {}
    for one in graded:
        counts.setdefault(key(one), Counter())[one.verdict] += 1
    total = sum(counts.values(), Counter[str]())
    table = Table(show_footer=True)
    table.add_column(title, "all")
    for name, style in _STYLES.items():
        footer = f"{total[name]:,} ({total[name] / total.total():.1%})"
        table.add_column(Text(name, style), footer, justify="right")
    table.add_column("all", f"{total.total():,}", justify="right")
    for name, count in sorted(counts.items(), key=lambda item: -item[1].total()):
        table.add_row(name, *(f"{count[verdict]:,}" for verdict in _STYLES), f"{count.total():,}")
    return table


def _reasons(unread: Sequence[Graded]) -> Table:
    table = Table("why nothing was read", "rows")
    table.columns[1].justify = "right"
    for reason, count in Counter(one.grade.reading.reason for one in unread).most_common():
        table.add_row(REASONS[reason], f"{count:,}")
    return table


def _visible(text: str) -> str:
    """Return a text on one line, in which no character acts on the terminal."""
    text = text.replace("\r\n", "\n").replace("\n", "⏎")
    return "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text)
