"""The founding document's ways of naming data: a registered name, rows, and splits such as ``"train[:1000]"``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trajgym.envs.make import make
from trajgym.envs.tasks import FiniteTasks, ListTasks
from trajgym.errors import ConfigError, DataError
from trajgym.evaluation.selection import tasks_of as tasks_of_env
from trajgym.trainers.compat_options import DataCall
from trajgym.trainers.data_quality import check_quality
from trajgym.trainers.data_rows import fingerprint, solution_of
from trajgym.trainers.data_sources import DatasetLike, Loaded, Row, load_rows
from trajgym.trainers.datasets import tasks_of
from trajgym.types import Task

__all__ = ["Data", "NamedTasks", "problems_of_rows", "rows_of", "rows_to_imitate", "split_rows", "told"]

_GSM8K = "gsm8k"
_SPLIT = re.compile(r"(\w+)(?:\[(\d{0,15}):(\d{0,15})\])?")
_OWN = "expert"  # what an environment brings itself, also where trajgym sft is told so


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


@dataclass(frozen=True)
class Data:
    """The data that a call names; nothing is read before it is asked for.

    Args:
        name: ``"expert"`` for what the environment brings, a registered name, or a file; what to call other rows.
        rows: Rows that were given as such; ``None`` where they are found by their name.
        env: Environment id.
        split: Which split, or which piece of one.
    """

    name: str
    rows: DatasetLike | None
    env: str
    split: str

    @classmethod
    def of(cls, call: DataCall, dataset: DatasetLike | None = None, *, measured: bool = False) -> Data:
        """Read the options of a call.

        Args:
            call: All of its options.
            dataset: Stands above what the options name.
            measured: Whether a model is to be measured on them, and so on a test split where there is one.

        Raises:
            ConfigError: When ``split`` is given twice, or cannot be read.
        """
        given = next((data for data in (dataset, call.custom_dataset, call.dataset) if data is not None), None)
        name = given if isinstance(given, str) else default_dataset(call.env) if given is None else "custom_dataset"
        data = cls(name, None if isinstance(given, str) else given, call.env, "train")
        inner = call.env_kwargs.get("split") if data.own else None
        if inner is not None and call.split is not None:
            raise ConfigError("split is given twice, in env_kwargs too. Give it once.")
        # Rows without splits are one list, which is called train.
        usual = "test" if measured and (data.own or name == _GSM8K) else "train"
        split = next(split for split in (call.split, inner, usual) if split is not None)
        read_split(split)
        return replace(data, split=split)

    @property
    def own(self) -> bool:
        """Whether these are the environment's own problems."""
        return self.rows is None and (self.name == _OWN or self.name == _GSM8K == default_dataset(self.env))

    @property
    def part(self) -> str:
        """Name of the split."""
        return read_split(self.split)[0]

    @property
    def whole(self) -> bool:
        """Whether this is the whole split."""
        return self.part == self.split

    def problems(
        self, arguments: Mapping[str, Any], count: int | None, *, seed: int = 0, endless: int | None = None
    ) -> tuple[list[Task] | None, int | None]:
        """Return the environment's own problems, or some of them.

        Args:
            arguments: The environment's arguments, the split among them where it has any.
            count: The first so many; all when ``None``.
            seed: Decides which are drawn where they never end; the first of more are the same.
            endless: How many of such, where neither ``count`` nor the piece's end says it.

        Returns:
            The problems, ``None`` where they never end and no number is known; and how many there are in all, ``None``
            where they never end.

        Raises:
            UnknownNameError: When there is no such environment or split.
            ConfigError: When an argument is wrong, or the environment has no problems of ours.
            DataError: When there are none.
        """
        start, stop = read_split(self.split)[1]
        made = make(self.env, **arguments)
        try:
            source: Any = getattr(made.unwrapped, "tasks", None)
            if isinstance(source, FiniteTasks):
                found, total = list(source)[start:stop], len(source)
                if not found:
                    raise DataError(f"The split {self.split!r} of {self.env} holds no problems; the whole has {total}.")
                return found[:count], len(found)
            ends = [end for end in (stop, None if count is None else start + count) if end is not None]
            end = min(ends, default=None if endless is None else start + endless)
            if end is None and start:
                raise ConfigError(
                    f"{self.env} makes up problems without end, so the split {self.split!r} has none. Write it as "
                    f"'{self.part}[{start}:{start + 100}]', or give max_samples."
                )
            if end is not None and end <= start:
                raise DataError(f"The split {self.split!r} of {self.env} holds no problems.")
            return None if end is None else tasks_of_env(made, end, seed=seed)[start:], None
        finally:
            made.close()

    def loaded(self, count: int | None) -> tuple[Loaded, int]:
        """Return the first rows of what is no problem of the environment's own, and how many there are in all.

        Raises:
            UnknownNameError: When there is no data set or split of this name.
            ConfigError, DataError: When it is no data set, or there are no rows.
        """
        loaded = split_rows(self.name if self.rows is None else self.rows, self.split)
        return Loaded(loaded.name, loaded.rows[:count]), len(loaded.rows)


def default_dataset(env: str) -> str:
    """Return what is learned in an environment where nothing is said: GSM8K there, elsewhere its own problems."""
    return _GSM8K if env.rpartition(":")[2].startswith("GSM8K") else _OWN


def read_split(split: Any) -> tuple[str, tuple[int, int | None]]:
    """Return a split's name, and where the piece of it begins and ends.

    Raises:
        ConfigError: When it cannot be read.

    >>> read_split("train[100:200]"), read_split("test")
    (('train', (100, 200)), ('test', (0, None)))
    """
    form = _SPLIT.fullmatch(split) if isinstance(split, str) else None
    if form is None:
        raise ConfigError(f"split must be a name such as 'train', or a piece such as 'train[:1000]', got {split!r}.")
    name, start, stop = form.groups()
    return name, (int(start or 0), int(stop) if stop else None)


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
    name, (start, stop) = read_split(split)
    loaded = load_rows(dataset, split=name)
    rows = loaded.rows[start:stop]
    if not rows:
        raise DataError(f"The split {split!r} of {loaded.name} holds no rows; the whole has {len(loaded.rows)}.")
    return Loaded(loaded.name, rows)


def rows_of(tasks: Iterable[Task]) -> list[Row]:
    """Return problems in the raw format, so that they are told apart from others as rows are."""
    return [{"question": task.question, "answer": task.metadata.get("full_answer", task.answer)} for task in tasks]


def told(rows: Sequence[Row]) -> str | None:
    """Return the fingerprint of rows; ``None`` where JSON cannot hold a column that a reward may well read."""
    try:
        return fingerprint(rows)
    except DataError:
        return None


def rows_to_imitate(loaded: Loaded) -> tuple[Sequence[Row], bool]:
    """Return rows in a form that can be imitated, and whether they still have to be written as dialogues.

    Args:
        loaded: Rows in the raw, RL or SFT format, or of messages.

    Raises:
        DataError: When they are something else.
    """
    rows = loaded.rows
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


def problems_of_rows(loaded: Loaded, *, numeric: bool = True) -> NamedTasks:
    """Return rows as problems to be rewarded on; a row's further columns reach the reward function.

    Args:
        loaded: Rows in the raw or RL format.
        numeric: Whether the truth must be a number, as the built-in rewards read it.

    Raises:
        DataError: When a column is missing, a value is empty, a row occurs twice, or a truth cannot be read.
    """
    rows: list[Mapping[str, Any]] = []
    for row in loaded.rows:
        plain = "question" not in row and isinstance(row.get("prompt"), str) and "<|" not in row["prompt"]
        rows.append({"question": row["prompt"], **row} if plain else row)
    told = [{k: r[k] for k in ("question", "answer", "prompt", "ground_truth") if k in r} for r in rows]
    check_quality(Loaded(loaded.name, told), numeric=numeric, near=None).require()
    return NamedTasks(loaded.name, tasks_of(rows, name=loaded.name))
