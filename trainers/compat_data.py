"""The founding document's ways of naming data: a registered name, rows, and splits such as ``"train[:1000]"``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trajgym.envs.make import make
from trajgym.envs.tasks import FiniteTasks, ListTasks
from trajgym.errors import ConfigError, DataError
from trajgym.evaluation.selection import tasks_of as tasks_of_env
from trajgym.trainers.data_quality import check_quality
from trajgym.trainers.data_rows import fingerprint, solution_of
from trajgym.trainers.data_sources import DatasetLike, Loaded, Row, load_rows
from trajgym.trainers.datasets import tasks_of
from trajgym.types import Task

__all__ = ["NamedTasks", "default_dataset", "problems_of_env", "problems_of_rows", "rows_to_imitate", "split_rows"]

_SPLIT = re.compile(r"(\w+)(?:\[(\d*):(\d*)\])?")


class NamedTasks(ListTasks):
    """Problems that a run's options can be told by: their name, number and fingerprint.

    Args:
        name: What they are called.
        tasks: The problems.
    """

    def __init__(self, name: str, tasks: Iterable[Task]) -> None:
        super().__init__(tasks)
        self._name = name

    def __repr__(self) -> str:
        rows = [{"id": t.id, "question": t.question, "answer": t.answer} for t in self.tasks]
        return f"{self._name}: {len(rows)} problems, {fingerprint(rows)}"


def default_dataset(env: str) -> str:
    """Return what is learned in an environment where nothing is said: GSM8K there, elsewhere its own problems."""
    return "gsm8k" if env.rpartition(":")[2].startswith("GSM8K") else "expert"


def split_rows(dataset: DatasetLike, split: str = "train") -> Loaded:
    """Return the rows of a split, or of a piece of it.

    Args:
        dataset: See :func:`trajgym.trainers.data_sources.load_rows`.
        split: Its name, such as ``"train"``, with an optional piece: ``"train[:1000]"``, ``"train[100:200]"``.

    Raises:
        ConfigError: When the split cannot be read, or ``dataset`` is no data set.
        UnknownNameError: When there is no data set or split of this name.
        DataError: When there are no rows.
    """
    form = _SPLIT.fullmatch(split) if isinstance(split, str) else None
    if form is None:
        raise ConfigError(f"split must be a name such as 'train', or a piece such as 'train[:1000]', got {split!r}.")
    name, start, stop = form.groups()
    loaded = load_rows(dataset, split=name)
    rows = loaded.rows[int(start or 0) : int(stop) if stop else None]
    if not rows:
        raise DataError(f"The split {split!r} of {loaded.name} holds no rows; the whole has {len(loaded.rows)}.")
    return Loaded(loaded.name, rows)


def rows_to_imitate(loaded: Loaded, count: int | None) -> tuple[Sequence[Row], bool]:
    """Return the first rows in a form that can be imitated, and whether they still have to be written as dialogues.

    Args:
        loaded: Rows in the raw, RL or SFT format, or of messages.
        count: How many; all when ``None``.
    """
    rows = loaded.rows[:count]
    columns = set(rows[0])
    if columns & {"completion", "messages"}:
        return rows, False
    if {"question", "answer"} <= columns:
        return rows, True
    if {"question", "full_answer"} <= columns:  # of the RL format, whose solutions the policy never sees
        return [{"question": row["question"], "answer": solution_of(row)} for row in rows], True
    raise DataError(
        f"{loaded.name}: SFT needs rows with question and answer, with prompt and completion, or with messages; "
        f"there is: {', '.join(sorted(map(str, columns))) or 'none'}."
    )


def problems_of_rows(loaded: Loaded, count: int | None, *, numeric: bool = True) -> NamedTasks:
    """Return the first rows as problems to be rewarded on; a row's further columns reach the reward function.

    Args:
        loaded: Rows in the raw or RL format.
        count: How many; all when ``None``.
        numeric: Whether the truth must be a number, as the built-in rewards read it.

    Raises:
        DataError: When a column is missing, a value is empty, a row occurs twice, or a truth cannot be read.
    """
    rows: list[Mapping[str, Any]] = []
    for row in loaded.rows[:count]:
        plain = "question" not in row and isinstance(row.get("prompt"), str) and "<|" not in row["prompt"]
        rows.append({"question": row["prompt"], **row} if plain else row)
    told = [{k: r[k] for k in ("question", "answer", "prompt", "ground_truth") if k in r} for r in rows]
    check_quality(Loaded(loaded.name, told), numeric=numeric, near=None).require()
    return NamedTasks(loaded.name, tasks_of(rows, name=loaded.name))


def problems_of_env(
    env: str, arguments: Mapping[str, Any], count: int | None, *, seed: int = 0
) -> tuple[NamedTasks | None, int | None]:
    """Return problems that an environment makes up, so that there is a number of them to go through.

    Args:
        env: Environment id.
        arguments: Its arguments.
        count: How many.
        seed: Decides which are drawn.

    Returns:
        The problems, ``None`` where the environment's own can be counted or no number is asked for; and how many there
        are in all, ``None`` where they never end.
    """
    made = make(env, **arguments)
    try:
        source: Any = getattr(made.unwrapped, "tasks", None)
        if isinstance(source, FiniteTasks):
            return None, len(source)
        return (None if count is None else NamedTasks(env, tasks_of_env(made, count, seed=seed))), None
    finally:
        made.close()
