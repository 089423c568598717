"""Our environments in the form that ``GRPOTrainer(environment_factory=…)`` of TRL takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trajgym.envs.base import ToolEnv
from trajgym.envs.make import make
from trajgym.envs.tasks import FiniteTasks
from trajgym.errors import ConfigError
from trajgym.rollout import derive_seed
from trajgym.trainers.trl_episode import Episode, GivenTurn
from trajgym.trainers.trl_tools import tool_method
from trajgym.types import Task

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["EnvironmentFactory", "ToolEnvironment", "environment_factory"]


class ToolEnvironment:
    """What TRL calls: ``reset``, and a method for each tool, which subclasses made by the factory have.

    Args:
        episode: Plays the environment.
    """

    def __init__(self, episode: Episode) -> None:
        self._episode = episode

    @property
    def episode(self) -> Episode:
        """The episode under way, or the last one."""
        return self._episode

    def reset(self, *, task_id: str = "", **row: Any) -> None:
        """Begin an episode; the prompt stands in the row already.

        Args:
            task_id: Which task, from the row of the data set.
            **row: Its other columns.

        Raises:
            ConfigError: When the row names no task.
            UnknownNameError: When it names one that the environment does not have.
        """
        if not task_id:
            raise ConfigError(
                f"Each row needs a column 'task_id', so that a group shares its task; got {sorted(row)}. Make the "
                "train_dataset with environment_factory(...).dataset(n)."
            )
        self._episode.reset(task_id)


class EnvironmentFactory:
    """Makes environments for TRL, and the data set that belongs to them; see :func:`environment_factory`."""

    def __init__(self, env_id: str, *, seed: int = 0, gamma: float = 1.0, **kwargs: Any) -> None:
        self.env_id, self.seed, self.gamma = env_id, seed, gamma
        self.kwargs = kwargs
        self._made = 0
        inner = make(env_id, **kwargs).unwrapped
        if not isinstance(inner, ToolEnv):
            raise ConfigError(
                f"{env_id} is no environment of trajgym's ({type(inner).__name__}), so TRL could not tell its tools."
            )
        if not inner.grows:
            raise ConfigError(
                f"{env_id} begins new dialogues within an episode, and TRL's only grow. Train on it with trajgym train."
            )
        self._env = inner
        methods = {name: tool_method(tool) for name, tool in inner.tools.items()}
        self._class: type[ToolEnvironment] = type(env_id, (ToolEnvironment,), methods)

    def __call__(self) -> ToolEnvironment:
        """Make one environment; TRL has one for each completion that is under way."""
        protocol = GivenTurn(self._env.protocol)
        env = make(self.env_id, **{**self.kwargs, "protocol": protocol})
        seed = derive_seed(self.seed, "trl", self._made) >> 32  # what Gymnasium takes has 31 bits
        self._made += 1
        return self._class(Episode(env, protocol, seed=seed, gamma=self.gamma))

    @property
    def max_turns(self) -> int:
        """Most turns of an episode: one more than the rounds of calls that TRL should run."""
        return self._env.max_turns

    def discounted(self, gamma: float) -> EnvironmentFactory:
        """Return the factory for a trainer that discounts by ``gamma`` per turn."""
        return EnvironmentFactory(self.env_id, seed=self.seed, gamma=gamma, **self.kwargs)

    def dataset(self, n: int | None = None, *, seed: int = 0) -> Dataset:
        """Return tasks of the environment as rows for TRL.

        Columns: ``prompt`` (the messages an episode begins with), ``task_id``, ``question``, ``answer`` and
        ``difficulty``.

        Args:
            n: How many, drawn with ``seed``, without repetition where the environment's tasks can be counted; all of
                those when left out.
            seed: Seed of the draw.

        Raises:
            ConfigError: When ``n`` is no number of rows, is missing where tasks have no end, or there are fewer.
        """
        from datasets import Dataset

        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
            raise ConfigError(f"n must be a whole number of at least 1, got {n!r}.")

        return Dataset.from_list([self._row(task) for task in self._tasks(n, seed)])

    def _tasks(self, n: int | None, seed: int) -> list[Task]:
        source = self._env.tasks
        rng = np.random.default_rng(seed)
        if not isinstance(source, FiniteTasks):
            if n is None:
                raise ConfigError(f"{self.env_id} makes up its tasks as they are asked for: say how many, dataset(n).")
            return [source.sample(rng) for _ in range(n)]
        if n is None:
            return list(source)
        if n > len(source):
            raise ConfigError(f"{self.env_id} has {len(source)} tasks, got n={n}. Leave n out to take all of them.")
        return [source.tasks[i] for i in rng.permutation(len(source))[:n]]

    def _row(self, task: Task) -> Mapping[str, Any]:
        prompt = [{"role": m.role, "content": m.content} for m in self._env.prompt(task)]
        return {
            "prompt": prompt,
            "task_id": task.id,
            "question": task.question,
            "answer": task.answer,
            "difficulty": task.difficulty,
        }


def environment_factory(env_id: str, *, seed: int = 0, **kwargs: Any) -> EnvironmentFactory:
    """Return what TRL's ``GRPOTrainer`` takes as ``environment_factory``.

    The model is told of the tools twice, by its chat template and by the environment's system message, unless
    ``instructions="none"`` leaves it to the template. ``protocol`` is the form in which the system message and the
    recorded steps write a call; what the model writes is read by TRL.

    Args:
        env_id: One of our environments, as for ``gymnasium.make``.
        seed: Seeds the environments' random numbers.
        **kwargs: Arguments of the environment.

    Raises:
        UnknownNameError, ConfigError: When there is no such environment, or an argument is wrong.
        ToolDefinitionError: When a tool cannot be a method of an environment of TRL's.
    """
    return EnvironmentFactory(env_id, seed=seed, **kwargs)
