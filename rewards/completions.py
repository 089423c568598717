r"""Completions and columns, which is how TRL's trainers ask for rewards, read as tasks and steps.

A completion is what a policy wrote to one prompt: a text, or messages when tools were called on the way. A column holds
one value for each completion. What the text means is for the terms to say; here it only changes its form.

>>> [(task, steps)] = read_completions(["48 + 24 = 72\n#### 72"], {"prompts": ["48 + 24?"], "answer": ["72"]})
>>> task.question, task.answer, len(steps), steps[0].stop_reason.value
('48 + 24?', '72', 1, 'answered')
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any, TypeAlias

from trajgym.errors import ConfigError, did_you_mean
from trajgym.types import Action, CallError, Message, Observation, Step, StopReason, Task, ToolCall, ToolResult

__all__ = ["TRUTHS", "Completion", "Read", "check_columns", "columns_of", "content", "number_text", "read_completions"]

Completion: TypeAlias = str | Sequence[Mapping[str, Any]]
"""What a policy wrote: a text, or messages of which the first is the assistant's."""

Read: TypeAlias = tuple[Task, tuple[Step, ...]]
"""A completion as the task it answers and the steps it took."""

TRUTHS = ("ground_truth", "answer", "solution")
"""Columns that may hold the ground truth; where there are several, the first of these counts."""

_FROM_TRAINER = frozenset({"trainer_state", "log_extra", "log_metric"})  # TRL passes them beside the columns
_TAKEN = frozenset({"prompts", "prompt", "completion_ids", "question", "task_id", "id", "difficulty"})
_MOST_DIGITS = 400  # of a number that stands in a column; the largest float has 309
_FAILED = re.compile(r"""\{'error': (['"]).*\1\}""", re.DOTALL)  # how TRL shows the exception of a tool


def read_completions(completions: Sequence[Completion], columns: Mapping[str, Any]) -> list[Read]:
    """Read each completion with its row of the columns.

    ``prompts`` or ``question`` gives the question, one of :data:`TRUTHS` the answer, ``difficulty`` the number of
    steps, ``completion_ids`` the sampled tokens of completions of one turn; every other column ends in
    ``task.metadata`` under its own name. A text, or messages that end with the assistant's words, count as a final
    answer; messages that end otherwise count as cut by a budget.

    Args:
        completions: Texts or lists of messages.
        columns: Lists of the same length, and what trainers pass beside them.

    Raises:
        ConfigError: When a completion or a column has not the form it must have.
    """
    count = check_columns(completions, columns)
    rows = {name: column for name, column in columns.items() if name not in _FROM_TRAINER}
    ids = rows.get("completion_ids")
    return [
        (_task(index, {name: column[index] for name, column in rows.items()}), _steps(completions[index], index, ids))
        for index in range(count)
    ]


def check_columns(completions: Sequence[Completion], columns: Mapping[str, Any]) -> int:
    """Return the number of completions.

    Raises:
        ConfigError: When a column is not one, or has another length.
    """
    if not isinstance(completions, (list, tuple)):
        raise ConfigError(f"completions must be a list of texts or of message lists, got {completions!r:.200}.")
    for name, column in columns.items():
        if name in _FROM_TRAINER:
            continue
        if isinstance(column, (str, bytes, Mapping)) or not hasattr(column, "__getitem__"):
            close = did_you_mean(name, [*TRUTHS, *_TAKEN, *_FROM_TRAINER] if name not in (*TRUTHS, *_TAKEN) else ())
            raise ConfigError(
                f"The column {name!r} must be a list with one value for each completion, got {column!r:.200}.{close}"
            )
        if len(column) != len(completions):
            raise ConfigError(
                f"The column {name!r} has {len(column)} values for {len(completions)} completions. Repeat each row's "
                "value for every completion of it."
            )
    return len(completions)


def columns_of(task: Task, step: Step) -> dict[str, list[Any]]:
    """Return a task, and the step that answers it, as columns of one row: the reverse of reading them."""
    row: dict[str, Any] = {name: value for name, value in task.metadata.items() if name not in _FROM_TRAINER}
    row |= {"prompts": task.question, "question": task.question, "task_id": task.id, "difficulty": task.difficulty}
    row |= dict.fromkeys(TRUTHS, task.answer)
    if step.action.token_ids:
        row["completion_ids"] = list(step.action.token_ids)
    return {name: [value] for name, value in row.items() if name != "completions"}


def _task(index: int, row: Mapping[str, Any]) -> Task:
    name = next((name for name in TRUTHS if row.get(name) is not None), None)
    difficulty = row.get("difficulty")
    return Task(
        id=str(row.get("task_id", row.get("id", f"row {index}"))),
        question=_question(row),
        answer="" if name is None else _truth(name, row[name], index),
        difficulty=difficulty if isinstance(difficulty, int) and not isinstance(difficulty, bool) else None,
        metadata={key: value for key, value in row.items() if key not in _TAKEN and key != name},
    )


def _truth(name: str, value: Any, index: int) -> str:
    if isinstance(value, str):
        return value
    number = number_text(value)
    if number is None:
        got = "a number of too many digits" if type(value) is int else f"{value!r:.200}"
        raise ConfigError(f"The column {name!r} must hold texts or numbers, got {got} in row {index}.")
    return number


def _question(row: Mapping[str, Any]) -> str:
    prompt = row.get("question", row.get("prompts", row.get("prompt", "")))
    if isinstance(prompt, (list, tuple)):
        users = [m for m in prompt if isinstance(m, Mapping) and m.get("role") == "user"]
        return content(users[-1]) if users else ""
    return prompt if isinstance(prompt, str) else ""


def _steps(completion: Completion, index: int, ids: Sequence[Sequence[int]] | None) -> tuple[Step, ...]:
    messages = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
    good = isinstance(messages, (list, tuple)) and all(isinstance(m, Mapping) and "role" in m for m in messages)
    if not good or (messages and messages[0]["role"] != "assistant"):
        raise ConfigError(
            f"Completion {index} must be a text or a list of messages that begins with the assistant's, "
            f"got {completion!r:.200}."
        )
    starts = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    tokens = tuple(ids[index]) if ids is not None and len(messages) == 1 else ()
    ends = [*starts[1:], len(messages)]
    return tuple(
        _step(messages[start], messages[start + 1 : end], tokens, last=end == len(messages))
        for start, end in zip(starts, ends, strict=False)
    )


def _step(said: Mapping[str, Any], answers: Sequence[Mapping[str, Any]], tokens: tuple[int, ...], last: bool) -> Step:
    """Make the step of one assistant message and the messages that follow it."""
    calls, error = _calls(said.get("tool_calls") or ())
    tools = [message for message in answers if message["role"] == "tool"]
    results = tuple(_result(call, message) for call, message in zip(calls, tools, strict=False))
    stop = None
    if last:
        stop = StopReason.MAX_TURNS if answers or calls or error else StopReason.ANSWERED
    return Step(
        Action(content(said), token_ids=tokens, calls=calls),
        Observation(tuple(Message(str(m["role"]), content(m), m.get("name")) for m in answers)),
        results=results,
        error=error,
        terminated=stop is StopReason.ANSWERED,
        truncated=stop is StopReason.MAX_TURNS,
        stop_reason=stop,
    )


def _calls(written: Sequence[Any]) -> tuple[tuple[ToolCall, ...], CallError | None]:
    """Read the calls of a message; the policy wrote them, so whatever they are is no reason to raise."""
    calls, error = [], None
    for call in written:
        function = call.get("function", call) if isinstance(call, Mapping) else {}
        name, arguments = function.get("name"), function.get("arguments", {})
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                arguments = None
        if isinstance(name, str) and isinstance(arguments, Mapping):
            calls.append(ToolCall(name, arguments, str(call.get("id", ""))))
        else:
            error = error or CallError("malformed_json", "A call needs a name and an object of arguments.")
    return tuple(calls), error


def _result(call: ToolCall, message: Mapping[str, Any]) -> ToolResult:
    text = content(message)
    return ToolResult(call, text, "error" if _FAILED.fullmatch(text) else None)


def content(message: Mapping[str, Any]) -> str:
    """Return the text of a message, whose content may be a text or a list of parts, some of which may be images."""
    written = message.get("content")
    if isinstance(written, (list, tuple)):
        return "".join(str(p.get("text") or "") for p in written if isinstance(p, Mapping))
    return "" if written is None else str(written)


def number_text(value: object) -> str | None:
    """Return a number in digits, without an exponent; ``None`` for what is no finite number, or a truth value.

    >>> number_text(72), number_text(1e22), number_text(True)
    ('72', '10000000000000000000000', None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, Decimal, Real)):
        return None
    try:
        text = str(value)
    except ValueError:  # a whole number of more digits than Python writes
        return None
    if "e" not in text.lower():
        return text if text.lstrip("-").replace(".", "", 1).isdecimal() else None
    number = Decimal(text)
    return f"{number:f}" if abs(number.adjusted()) < _MOST_DIGITS else None
