"""The completions in a file: which column holds what, and which rows cannot be used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from trajgym.errors import ConfigError, DataError
from trajgym.rewards.answer import read, truth
from trajgym.rewards.answer_kinds import ANSWER_KINDS
from trajgym.rewards.completions import content, number_text, read_completions
from trajgym.scripts.grade_file import BadRow, UnusableError, kind_of, read_objects
from trajgym.types import StopReason

__all__ = ["ANSWER_COLUMNS", "TEXT_COLUMNS", "Completion", "read_rows"]

TEXT_COLUMNS = (
    "completion",
    "completions",
    "response",
    "responses",
    "generation",
    "generations",
    "prediction",
    "output",
    "outputs",
    "model_output",
    "text",
    "messages",
    "solution",
)
ANSWER_COLUMNS = ("ground_truth", "answer", "gold", "gold_answer", "target", "reference", "expected", "expected_answer")
_FLAG_COLUMNS = ("is_correct", "correct")
_SHOWN = 12  # column names in a message


@dataclass(frozen=True)
class Completion:
    """One completion to grade.

    Args:
        line: Its line in the file, or its place in an array, from 1.
        name: Which completion of its row it is; empty where there is only one.
        text: The completion.
        answer: The ground truth.
        kind: Of the answer, one of ``ANSWER_KINDS``.
        flag: What the file itself says about it, if it does.
    """

    line: int
    name: str
    text: str
    answer: str
    kind: str
    flag: bool | None


def read_rows(
    file: BinaryIO, text: str | None = None, answer: str | None = None, kind: str | None = None
) -> Iterator[Completion | BadRow]:
    """Yield the completions of a file, and the rows that cannot be used, in order.

    Args:
        file: JSON objects, one a line, or an array of them.
        text: Column of the completions, with dots into objects and lists (``steps.-1.text``). By default the first of
            :data:`TEXT_COLUMNS` that the first row has, or all its objects that have one of them.
        answer: Column of the ground truth; by default the first of :data:`ANSWER_COLUMNS`.
        kind: Of the answers; by default what the row says in ``answer_kind``, else ``number``.

    Raises:
        ConfigError: When the first row has none of the columns, or the file is an array that cannot be read.
    """
    columns: tuple[list[str], str] | None = None
    for found in read_objects(file):
        if isinstance(found, BadRow):
            yield found
            continue
        line, row = found
        if columns is None:
            columns = (_text_columns(row, text), _answer_column(row, answer))
        try:
            yield from _completions(line, row, *columns, kind)
        except UnusableError as unusable:
            yield BadRow(line, str(unusable))


def _text_columns(row: Mapping[str, Any], chosen: str | None) -> list[str]:
    if chosen is not None:
        _check_first(row, chosen, "--text")
        return [chosen]
    found = next((name for name in TEXT_COLUMNS if name in row), None)
    if found is not None:
        return [found]
    nested = [
        f"{name}.{column}"
        for name, value in row.items()
        if isinstance(value, dict) and (column := next((c for c in TEXT_COLUMNS if c in value), None))
    ]
    if not nested:
        raise ConfigError(
            f"No column of completions in the first row, which has {_names(row)}. Name it with --text COLUMN, or call "
            f"it {', '.join(TEXT_COLUMNS[:3])} …"
        )
    return nested


def _answer_column(row: Mapping[str, Any], chosen: str | None) -> str:
    if chosen is not None:
        _check_first(row, chosen, "--answer")
        return chosen
    found = next((name for name in ANSWER_COLUMNS if name in row), None)
    if found is None:
        raise ConfigError(
            f"No column of ground truths in the first row, which has {_names(row)}. Name it with --answer COLUMN, or "
            f"call it {', '.join(ANSWER_COLUMNS[:3])} …"
        )
    return found


def _check_first(row: Mapping[str, Any], column: str, option: str) -> None:
    try:
        _at(row, column)
    except UnusableError as unusable:
        raise ConfigError(f"{option} {column}: in the first row there is {unusable}.") from unusable


def _completions(
    line: int, row: Mapping[str, Any], columns: list[str], answer_column: str, kind: str | None
) -> Iterator[Completion]:
    kind = row.get("answer_kind", "number") if kind is None else kind
    if kind not in ANSWER_KINDS:
        raise UnusableError(f"answer_kind is {kind!r}; allowed are {' and '.join(ANSWER_KINDS)}")
    answer = _answer(_at(row, answer_column), answer_column, kind)
    found = []
    for column in columns:
        holder = "" if column in row else column.rpartition(".")[0]
        owner = _at(row, holder) if holder else row
        flag = next(
            (owner[c] for c in _FLAG_COLUMNS if isinstance(owner, dict) and isinstance(owner.get(c), bool)), None
        )
        for number, text in _texts(_at(row, column), column):
            name = holder if len(columns) > 1 else ""
            found.append(
                Completion(line, name + (f"[{number}]" if number is not None else ""), text, answer, kind, flag)
            )
    yield from found


def _at(row: Any, column: str) -> Any:
    """Return what stands under a name, or under names with dots between them."""
    if isinstance(row, Mapping) and column in row:
        return row[column]
    value = row
    for name in column.split("."):
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.lstrip("-").isdecimal() and -len(value) <= int(name) < len(value):
            value = value[int(name)]
        else:
            has = f", only {_names(value)}" if isinstance(value, Mapping) else ""
            raise UnusableError(f"no column {column!r}{has}")
    return value


def _texts(value: Any, column: str) -> list[tuple[int | None, str]]:
    """Return the completions in a column: one text, in parts or as a dialogue's last words, or several of these."""
    one = _text(value, column)
    if one is not None:
        return [(None, one)]
    several = [_text(item, column) for item in value] if isinstance(value, list) else []
    texts = [text for text in several if text is not None]
    if not texts or len(texts) < len(several):
        raise UnusableError(f"{column!r} holds {kind_of(value)} instead of text")
    return list(enumerate(texts))


def _text(value: Any, column: str) -> str | None:
    """Return a completion, empty when its dialogue does not end with an answer; ``None`` for something else."""
    if isinstance(value, str):
        return value
    items = [value] if isinstance(value, dict) else value
    if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
        return None
    if all("role" in item for item in items):
        return _answered(items, column)
    return content({"content": items}) if all("text" in item or "type" in item for item in items) else None


def _answered(messages: list[dict[str, Any]], column: str) -> str:
    """Return the words that a dialogue ends with, read as the reward terms read them."""
    start = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), None)
    if start is None:
        raise UnusableError(f"the dialogue in {column!r} has no text of an assistant")
    [(_, steps)] = read_completions([messages[start:]], {})
    return steps[-1].action.text if steps[-1].stop_reason is StopReason.ANSWERED else ""


def _answer(value: Any, column: str, kind: str) -> str:
    """Return a ground truth, which may be a whole solution that ends in its answer."""
    value = number_text(value) or value
    if not isinstance(value, str):
        raise UnusableError(f"{column!r} holds {kind_of(value)} instead of an answer")
    if kind == "number":
        try:
            truth(value)
        except DataError as error:
            reading = read(value)
            if not reading.marked:
                raise UnusableError(f"the ground truth in {column!r} cannot be read: {_short(value)}") from error
            return str(reading.value)
    return value


def _names(row: Mapping[str, Any]) -> str:
    names = [repr(str(name)) for name in row]
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "") or "none"


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"…{text[-40:]}")
