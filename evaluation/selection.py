"""Which tasks an evaluation plays: those of an environment in a fixed order, or those of a file."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from trajgym.envs.tasks import FiniteTasks, ListTasks, TaskSource
from trajgym.errors import ConfigError, DataError
from trajgym.types import Task

__all__ = ["DEFAULT_LIMIT", "read_tasks", "tasks_of"]

DEFAULT_LIMIT = 200
"""Tasks that are drawn where an environment makes up as many as are asked for."""

_DRAWS_PER_TASK = 50
_REQUIRED = ("question", "answer")
_KNOWN = ("id", "question", "answer", "difficulty", "metadata")


def tasks_of(env: gymnasium.Env[str, str], limit: int | None = None, *, seed: int = 0) -> list[Task]:
    """Return the tasks of an environment, the same ones in the same order each time.

    Args:
        env: Made for the split that is to be played.
        limit: The first so many tasks of a data set; without it all of them. Where tasks are made up, so many different
            ones are drawn, :data:`DEFAULT_LIMIT` without it; the first n of a larger number are the same.
        seed: Decides which ones are drawn; of no use for a data set.

    Raises:
        ConfigError: When the limit is not a whole number from 1, or the environment has no tasks of ours.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ConfigError(f"limit must be a whole number of at least 1, or None for all tasks, got {limit!r}.")
    source = getattr(env.unwrapped, "tasks", None)
    if not isinstance(source, TaskSource):
        raise ConfigError(
            f"{type(env.unwrapped).__name__} has no tasks to choose from. Give the tasks themselves, e.g. in a file."
        )
    if isinstance(source, FiniteTasks):
        return list(itertools.islice(source, limit))
    generator, wanted = np.random.default_rng(seed), limit or DEFAULT_LIMIT
    drawn: dict[tuple[str, str], Task] = {}
    for _ in range(_DRAWS_PER_TASK * wanted):
        if len(drawn) == wanted:
            break
        task = source.sample(generator)
        drawn.setdefault((task.question, task.answer), task)  # one question may have an answer in each world
    return list(drawn.values())


def read_tasks(path: Path, limit: int | None = None) -> list[Task]:
    """Read tasks from a file of JSON lines.

    Each line is an object with ``question`` and ``answer``, and may have ``id`` (the line's number without it),
    ``difficulty`` (steps) and ``metadata``; other columns end up in the metadata.

    Args:
        path: The file.
        limit: Only the first so many tasks.

    Raises:
        DataError: When it cannot be read, holds no task, lacks a column, or has an id twice.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}.") from error
    rows = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    tasks = [_task(line, f"{path}, line {number}", number) for number, line in rows[:limit]]
    if not tasks:
        raise DataError(f"{path} holds no task; expected an object with question and answer on each line.")
    try:
        return list(ListTasks(tasks).tasks)
    except ConfigError as error:
        raise DataError(f"{path}: {error}") from error


def _task(line: str, where: str, number: int) -> Task:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}.") from error
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: expected an object with question and answer, got {type(row).__name__}.")
    for name in _REQUIRED:
        if name not in row:
            raise DataError(f"{where}: the column {name!r} is missing. There is: {', '.join(map(str, row)) or 'none'}.")
    question, answer = (_text(row[name], f"{where}: {name!r}") for name in _REQUIRED)
    difficulty, metadata = row.get("difficulty"), row.get("metadata", {})
    whole = isinstance(difficulty, int) and not isinstance(difficulty, bool)
    if difficulty is not None and not (whole and difficulty >= 0):
        raise DataError(f"{where}: 'difficulty' must be a number of steps from 0, or null, got {difficulty!r:.60}.")
    if not isinstance(metadata, Mapping):
        raise DataError(f"{where}: 'metadata' must be an object, got {metadata!r:.60}.")
    identity = row.get("id")
    if isinstance(identity, bool) or not isinstance(identity, (int, str, type(None))):
        raise DataError(f"{where}: 'id' must be a text or a whole number, got {identity!r:.60}.")
    more = {name: value for name, value in row.items() if name not in _KNOWN}
    return Task(
        str(number if identity is None else identity),
        question,
        answer,
        difficulty=difficulty,
        metadata={**more, **metadata},
    )


def _text(value: Any, where: str) -> str:
    numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
    text = str(value) if numeric else value
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{where} must be a text that is not blank, got {value!r:.60}.")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise DataError(f"{where} holds half a surrogate pair, which no UTF-8 text can.")
    return text
