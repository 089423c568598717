"""Is a data set fit to train on? Columns, empty values, duplicates, unreadable truths, rows that are too long."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trajgym.errors import DataError, TemplateError
from trajgym.rewards.answer import truth
from trajgym.trainers.data_near import NEAR, near_duplicates
from trajgym.trainers.data_rows import fingerprint, steps_of
from trajgym.trainers.data_sources import Loaded, Row
from trajgym.types import Message

__all__ = ["FORMATS", "Finding", "Quality", "check_quality", "format_of", "require_columns"]

FORMATS: Mapping[str, tuple[str, ...]] = {
    "messages": ("messages",),
    "sft": ("prompt", "completion"),
    "rl": ("prompt", "ground_truth"),
    "raw": ("question", "answer"),
}
"""The columns that rows of each format must have."""

_TRUTHS = {"raw": "answer", "rl": "ground_truth"}
_SHOWN = 5  # rows that a message names
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with some rows.

    Args:
        kind: ``"missing_column"``, ``"empty"``, ``"not_text"``, ``"unreadable_truth"``, ``"contradiction"`` (the same
            question with another truth), ``"duplicate"``, ``"same_question"`` (of a dialogue that goes on in another
            way), ``"leak"`` (also in another split), ``"near_duplicate"``, ``"near_leak"``, ``"not_in_template"`` or
            ``"too_long"``.
        rows: The rows, from 0.
        what: In words, with the first rows as examples.
        error: Whether training on them would be a mistake; otherwise it is a warning.
    """

    kind: str
    rows: tuple[int, ...]
    what: str
    error: bool = True


@dataclass(frozen=True)
class Quality:
    """What is known of a data set.

    Args:
        name: What it is called.
        format: One of :data:`FORMATS`.
        rows: How many.
        steps: Number of rows by the number of steps of their solution.
        fingerprint: See :func:`trajgym.trainers.data_rows.fingerprint`; empty when the rows are not JSON.
        findings: What is wrong, errors first.
        longest: Most tokens of a row, where tokens were counted.
    """

    name: str
    format: str
    rows: int
    steps: Mapping[int, int]
    fingerprint: str
    findings: tuple[Finding, ...]
    longest: int | None = None

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that forbid training."""
        return tuple(finding for finding in self.findings if finding.error)

    def require(self) -> None:
        """Do nothing when there are no errors.

        Raises:
            DataError: Naming the first error.
        """
        if self.errors:
            more = len(self.errors) - 1
            tail = f" ({more} more kinds of errors; see `trajgym data check`.)" if more else ""
            raise DataError(f"{self.name}: {self.errors[0].what}{tail}")


def check_quality(
    data: Loaded,
    *,
    splits: Sequence[Loaded] = (),
    numeric: bool = True,
    near: float | None = NEAR,
    max_tokens: int | None = None,
    count_tokens: Callable[[Row], int] | None = None,
) -> Quality:
    """Look through a data set.

    Args:
        data: The rows.
        splits: Others in which none of the rows should be, such as the test split.
        numeric: Whether the truth must be a number, as the built-in rewards read it.
        near: Similarity from which on two questions are near duplicates; ``None`` looks for none.
        max_tokens: Most tokens of a row.
        count_tokens: Counts the tokens of a row; may raise a DataError or a TemplateError.
    """
    kind = format_of(data.rows)
    findings = [*_columns(data, FORMATS[kind]), *_empty_messages(data, FORMATS[kind])]
    bad = {i for finding in findings for i in finding.rows}
    rows = {i: row for i, row in enumerate(data.rows) if i not in bad}
    if numeric and kind in _TRUTHS:
        findings += _truths(data, rows, _TRUTHS[kind])
    questions = _questions(rows, kind)
    twins = _duplicates(data, rows, questions, kind)
    findings += twins
    repeated = {i for finding in twins for i in finding.rows}
    for other in splits:
        known = list(_questions(dict(enumerate(other.rows)), format_of(other.rows)).values())
        findings += _leaks(data, questions, repeated, known, other, near)
    if near is not None:
        findings += _near(data, {i: q for i, q in questions.items() if i not in repeated}, near)
    lengths: dict[int, int] = {}
    if count_tokens is not None:
        findings += _lengths(data, rows, count_tokens, lengths, max_tokens)
    return Quality(
        data.name,
        kind,
        len(data.rows),
        dict(sorted(Counter(map(steps_of, data.rows)).items())),
        "" if bad else _fingerprint(data.rows),
        tuple(sorted(findings, key=lambda finding: not finding.error)),
        max(lengths.values(), default=None),
    )


def format_of(rows: Sequence[Row]) -> str:
    """Return the format whose columns the first row has most of; ``"raw"`` when it has none of any."""
    columns = set(rows[0]) if rows else set()
    return max(
        ("raw", "messages", "sft", "rl"), key=lambda kind: len(columns.intersection(FORMATS[kind])) / len(FORMATS[kind])
    )


def require_columns(data: Loaded, columns: Sequence[str]) -> None:
    """Do nothing when every row has text in these columns.

    Raises:
        DataError: Naming the first row that has not, and its columns.
    """
    for finding in _columns(data, columns):
        raise DataError(f"{data.name}: {finding.what}")


def _columns(data: Loaded, columns: Sequence[str]) -> Iterator[Finding]:
    for column in columns:
        missing: list[int] = []
        empty: list[int] = []
        wrong: list[int] = []
        for i, row in enumerate(data.rows):
            value = row.get(column)
            if value is None:
                missing.append(i)
            elif isinstance(value, str):
                if _LONE_SURROGATE.search(value):
                    wrong.append(i)
                elif not value.strip():
                    empty.append(i)
            elif not (isinstance(value, (list, tuple)) and column in ("prompt", "completion", "messages")):
                wrong.append(i)
            elif not value:
                empty.append(i)
        if missing:
            has = ", ".join(map(str, data.rows[missing[0]])) or "none"
            yield Finding(
                "missing_column", tuple(missing), f"{_said(data, missing)} no {column!r}; the columns are {has}."
            )
        if empty:
            yield Finding("empty", tuple(empty), f"{_said(data, empty)} nothing in {column!r}.")
        if wrong:
            value = data.rows[wrong[0]][column]
            yield Finding(
                "not_text", tuple(wrong), f"{_said(data, wrong)} in {column!r} what is no text: {value!r:.60}."
            )


def _empty_messages(data: Loaded, columns: Sequence[str]) -> Iterator[Finding]:
    """Find dialogues with a turn in which nothing is said: imitated, it would teach to stop at once."""
    empty = [
        i
        for i, row in enumerate(data.rows)
        if any(_says_nothing(message) for column in columns for message in _messages(row.get(column)))
    ]
    if empty:
        what = f"{_said(data, empty)} an empty message of the user or of the assistant, without a tool call."
        yield Finding("empty", tuple(empty), what)


def _says_nothing(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    empty = content is None or (isinstance(content, str) and not content.strip())
    return empty and message.get("role") in ("user", "assistant") and not message.get("tool_calls")


def _truths(data: Loaded, rows: Mapping[int, Row], column: str) -> list[Finding]:
    bad = []
    for i, row in rows.items():
        try:
            truth(row[column])
        except DataError:
            bad.append(i)
    if not bad:
        return []
    shown = str(rows[bad[0]][column])[-40:]
    return [
        Finding(
            "unreadable_truth",
            tuple(bad),
            f"{_said(data, bad)} a truth in {column!r} that cannot be read: …{shown!r}. It must be a number, alone or "
            "behind '####'.",
        )
    ]


def _duplicates(data: Loaded, rows: Mapping[int, Row], questions: Mapping[int, str], kind: str) -> list[Finding]:
    first: dict[str, int] = {}
    answered: set[tuple[str, str]] = set()
    same: list[int] = []
    other: list[int] = []
    for i, question in questions.items():
        answer = _answer(rows[i], kind)
        if first.setdefault(question, i) != i:
            (same if (question, answer) in answered else other).append(i)
        answered.add((question, answer))
    # A problem has one truth; a dialogue may well go on in several ways.
    one = kind in _TRUTHS
    name = "truth" if one else "answer"
    out = []
    if other:
        j = first[questions[other[0]]]
        what = f"{_said(data, other)} the question of another row with another {name} (the first: row {j + 1})."
        out.append(Finding("contradiction" if one else "same_question", tuple(other), what, error=one))
    if same:
        j = first[questions[same[0]]]
        what = f"{_said(data, same)} the same question and {name} as another row (the first: row {j + 1})."
        out.append(Finding("duplicate", tuple(same), what))
    return out


def _leaks(
    data: Loaded, questions: Mapping[int, str], repeated: set[int], known: list[str], other: Loaded, near: float | None
) -> list[Finding]:
    places = {question: j for j, question in enumerate(known)}
    leaked = [i for i, question in questions.items() if question in places]
    out = []
    if leaked:
        place = other.place(places[questions[leaked[0]]])
        out.append(
            Finding("leak", tuple(leaked), f"{_said(data, leaked)} a question of {other.name} (the first: {place}).")
        )
    rest = [i for i in questions if i not in repeated and i not in set(leaked)]
    if near is not None and (found := near_duplicates([questions[i] for i in rest], threshold=near, against=known)):
        rows = [rest[pair.row] for pair in found]
        place = other.place(found[0].other)
        alike = f"{found[0].similarity:.0%} alike"
        what = f"{_said(data, rows)} almost a question of {other.name} (the first: {place}, {alike})."
        out.append(Finding("near_leak", tuple(rows), what, error=False))
    return out


def _near(data: Loaded, questions: Mapping[int, str], threshold: float) -> list[Finding]:
    places = list(questions)
    found = near_duplicates(list(questions.values()), threshold=threshold)
    if not found:
        return []
    rows = [places[pair.row] for pair in found]
    first = f"row {places[found[0].other] + 1}, {found[0].similarity:.0%} alike"
    what = f"{_said(data, rows)} almost the question of an earlier row (the first: {first})."
    return [Finding("near_duplicate", tuple(rows), what, error=False)]


def _lengths(
    data: Loaded,
    rows: Mapping[int, Row],
    count_tokens: Callable[[Row], int],
    lengths: dict[int, int],
    max_tokens: int | None,
) -> list[Finding]:
    refused: dict[int, str] = {}
    for i, row in rows.items():
        try:
            lengths[i] = count_tokens(row)
        except (DataError, TemplateError) as error:
            refused[i] = re.sub(r"^Row \d+[:,] ", "", str(error))
    out = []
    if refused:
        first = next(iter(refused.values()))
        what = f"{_said(data, list(refused))} text that the model's template cannot carry: {first}"
        out.append(Finding("not_in_template", tuple(refused), what))
    if max_tokens is not None and (long := [i for i, length in lengths.items() if length > max_tokens]):
        what = f"{_said(data, long)} more than {max_tokens} tokens."
        out.append(Finding("too_long", tuple(long), what, error=False))
    return out


def _questions(rows: Mapping[int, Row], kind: str) -> dict[int, str]:
    """Return what each row asks; runs of blanks count as one."""
    asked = {i: _question(row, kind) for i, row in rows.items()}
    # Prompts begin with the same system message, which would make all of them alike.
    first, last = min(asked.values(), default=""), max(asked.values(), default="")
    same = next((k for k, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)
    shared = first.rfind("\n", 0, same) + 1
    return {i: " ".join(question[shared:].split()) for i, question in asked.items()}


def _question(row: Row, kind: str) -> str:
    value: Any = row.get(FORMATS[kind][0])
    if kind != "raw" and isinstance(row.get("question"), str):
        value = row["question"]
    if isinstance(value, (list, tuple)):  # messages: all that is said before the assistant's first turn
        said = _messages(value)
        value = "\n".join(str(m.get("content")) for m in said[: _first_turn(said)] if m.get("role") != "system")
    return str(value or "")


def _answer(row: Row, kind: str) -> str:
    """Return the truth of a problem, or what a dialogue has behind its question."""
    if kind in _TRUTHS:
        return str(row[_TRUTHS[kind]])
    said = _messages(row[FORMATS[kind][0]])
    behind = [said[_first_turn(said) :], row.get("tools"), *(row[column] for column in FORMATS[kind][1:])]
    return json.dumps(behind, sort_keys=True, default=str)


def _messages(value: Any) -> list[Mapping[str, Any]]:
    """Return the messages of a column as mappings; none of a text."""
    if not isinstance(value, (list, tuple)):
        return []
    mapped = [{"role": m.role, "content": m.content} if isinstance(m, Message) else m for m in value]
    return [m for m in mapped if isinstance(m, Mapping)]


def _first_turn(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return where the assistant speaks first."""
    return next((i for i, m in enumerate(messages) if m.get("role") == "assistant"), len(messages))


def _fingerprint(rows: Sequence[Row]) -> str:
    try:
        return fingerprint(rows)
    except DataError:  # they are not JSON
        return ""


def _said(data: Loaded, rows: Sequence[int]) -> str:
    """Begin a sentence about rows: which, and "has" or "have"."""
    named = ", ".join(str(i + 1) for i in rows[:_SHOWN])
    if len(rows) == 1:
        return f"row {named} has"
    return f"{len(rows)} rows ({named}{', …' if len(rows) > _SHOWN else ''}) have"
