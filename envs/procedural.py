"""Problems that are made up as they are asked for: endless, seeded, and named by what they are made from.

A task id such as ``grid/test/3/918273`` (family, split, level, seed) says everything: the same id gives the same
problem on every platform. A problem belongs to one split alone; each family decides by a hash of what makes it a
problem of its own.
"""

from __future__ import annotations

import abc
import re
from typing import ClassVar

import numpy as np

from trajgym.envs.tasks import TaskSource, read_levels
from trajgym.errors import UnknownNameError
from trajgym.types import Task

__all__ = ["SEEDS", "SPLITS", "ProceduralTasks", "read_seed", "read_split"]

SPLITS = ("train", "test")
SEEDS = 10**9
"""How many problems there are of each kind."""

_SEED = re.compile(r"0|[1-9][0-9]{0,8}")


class ProceduralTasks(TaskSource):
    """Problems of one or several levels. Subclasses name their ``family`` and write :meth:`make`.

    Args:
        split: ``"train"`` or ``"test"``.
        difficulty: Level, or the lowest and the highest level; drawn uniformly.
        lowest: The lowest level that there is.
        highest: The highest.
        level: What a level is called in errors.

    Raises:
        UnknownNameError: For another split.
        ConfigError: For a level outside these bounds.
    """

    family: ClassVar[str]
    deciding: ClassVar[str] = "split= and difficulty="
    """The arguments that say which ids there are."""

    def __init__(
        self, split: str, difficulty: int | tuple[int, int], *, lowest: int = 1, highest: int, level: str = "level"
    ) -> None:
        self.split = read_split(split)
        self.difficulty = read_levels(difficulty, lowest=lowest, highest=highest, level=level)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.split!r}, difficulty={self.difficulty})"

    @abc.abstractmethod
    def make(self, level: int, seed: int) -> Task:
        """Make a problem; the same arguments make the same one."""

    def stem(self, level: int) -> str:
        """Return what stands before the seed in the ids of a level."""
        return f"{self.family}/{self.split}/{level}"

    def draw_seed(self, rng: np.random.Generator) -> int:
        """Draw a seed below :data:`SEEDS`."""
        return int(rng.integers(SEEDS))

    def sample(self, rng: np.random.Generator) -> Task:
        """Draw a level and a problem of it."""
        low, high = self.difficulty
        level = int(rng.integers(low, high + 1))
        return self.make(level, self.draw_seed(rng))

    def get(self, task_id: str) -> Task:
        """Make the problem with this id again.

        Raises:
            UnknownNameError: When the id is not one of these problems', or is not an id at all.
        """
        low, high = self.difficulty
        levels = {self.stem(level): level for level in range(low, high + 1)}
        stem, seed = read_seed(task_id)
        if stem not in levels or seed is None:
            hint = f"The last number is a seed below {SEEDS}; {self.deciding} decide the others."
            raise UnknownNameError("task id", task_id, [f"{stem}/0" for stem in levels], hint)
        return self.make(levels[stem], seed)


def read_split(split: str) -> str:
    """Return ``split``.

    Raises:
        UnknownNameError: When there is no such split.
    """
    if split not in SPLITS:
        raise UnknownNameError("split", split, SPLITS, "Set it with split=.")
    return split


def read_seed(task_id: object) -> tuple[str, int | None]:
    """Return what stands before the seed of an id, and the seed, or ``None`` in its place where there is none."""
    stem, _, seed = task_id.rpartition("/") if isinstance(task_id, str) else ("", "", "")
    return stem, int(seed) if _SEED.fullmatch(seed) else None
