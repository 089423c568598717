"""Where an environment gets its problems from.

>>> source = as_source([Task("t-0", "48 + 24?", "72"), Task("t-1", "48 / 2?", "24")])
>>> len(source), source.get("t-1").answer
(2, '24')
>>> source.sample(np.random.default_rng(0)) in list(source)
True
"""

from __future__ import annotations

import abc
import difflib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.types import Task

__all__ = ["FiniteTasks", "ListTasks", "TaskSource", "as_source", "read_levels"]

_LISTED = 5  # how many known ids an error names: a data set has thousands


class TaskSource(abc.ABC):
    """A set of problems, finite or not, each of which has an id."""

    @abc.abstractmethod
    def sample(self, rng: np.random.Generator) -> Task:
        """Draw a problem; nothing but ``rng`` is random."""

    @abc.abstractmethod
    def get(self, task_id: str) -> Task:
        """Return the problem with this id.

        Raises:
            UnknownNameError: When this source has no such problem.
        """


class FiniteTasks(TaskSource):
    """Problems that can be counted: ``len`` and iteration work, and draws are uniform.

    Subclasses give :attr:`tasks`, in a fixed order and with unique ids; it may load them when first asked.
    """

    _index: dict[str, int] | None = None

    @property
    @abc.abstractmethod
    def tasks(self) -> Sequence[Task]:
        """All problems, at least one."""

    def sample(self, rng: np.random.Generator) -> Task:
        """Draw one of the problems, each with the same probability."""
        return self.tasks[int(rng.integers(len(self.tasks)))]

    def get(self, task_id: str) -> Task:
        """Return the problem with this id.

        Raises:
            UnknownNameError: When there is none; names the closest ids.
        """
        if self._index is None:
            self._index = {task.id: i for i, task in enumerate(self.tasks)}
        if not isinstance(task_id, str) or task_id not in self._index:
            close = difflib.get_close_matches(str(task_id), self._index, n=_LISTED, cutoff=0.5)
            shown = close or list(self._index)[:_LISTED]
            hint = f"(These are {len(shown)} of {len(self._index)} ids; iterate over the source to see all.)"
            raise UnknownNameError("task id", task_id, shown, hint)
        return self.tasks[self._index[task_id]]

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)


class ListTasks(FiniteTasks):
    """The problems of a list.

    Args:
        tasks: At least one :class:`~trajgym.types.Task`, with unique ids; read once, to its end.

    Raises:
        ConfigError: When there is no task, an item is something else, or an id occurs twice.
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        if not isinstance(tasks, Iterable):
            raise ConfigError(f"tasks= must be a TaskSource or an iterable of Task, got {type(tasks).__name__}.")
        self._tasks = tuple(tasks)
        if not self._tasks:
            raise ConfigError("tasks= holds no task. Pass at least one, or leave tasks= out for the built-in problems.")
        seen: dict[str, int] = {}
        for i, task in enumerate(self._tasks):
            if not isinstance(task, Task):
                raise ConfigError(f"Item {i} of tasks= must be a trajgym.types.Task, got {type(task).__name__}.")
            if task.id in seen:
                raise ConfigError(
                    f"Items {seen[task.id]} and {i} of tasks= have the same id {task.id!r}. Give each task its own."
                )
            seen[task.id] = i

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All problems."""
        return self._tasks


def as_source(tasks: TaskSource | Iterable[Task]) -> TaskSource:
    """Return ``tasks`` itself if it is a source, else a :class:`ListTasks` of its items.

    Raises:
        ConfigError: When it is neither a source nor a non-empty iterable of tasks with unique ids.
    """
    return tasks if isinstance(tasks, TaskSource) else ListTasks(tasks)


def read_levels(
    difficulty: int | tuple[int, int], *, lowest: int = 1, highest: int, level: str = "level"
) -> tuple[int, int]:
    """Return the lowest and the highest level that ``difficulty`` stands for.

    Args:
        difficulty: One level, or the lowest and the highest.
        lowest: The lowest that is allowed.
        highest: The highest that is allowed.
        level: What a level is called in the error.

    Raises:
        ConfigError: When it is neither a level nor a pair of them.
    """
    pair = difficulty if isinstance(difficulty, (tuple, list)) else (difficulty, difficulty)
    whole = all(isinstance(number, (int, np.integer)) and not isinstance(number, bool) for number in pair)
    if len(pair) != 2 or not whole or not lowest <= pair[0] <= pair[1] <= highest:
        raise ConfigError(
            f"difficulty= must be a {level} from {lowest} to {highest}, or a pair (lowest, highest) of such, got "
            f"{difficulty!r}."
        )
    return int(pair[0]), int(pair[1])
