"""What depends on how far the run has come: the episodes of an update, the learning rate. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from trajgym.envs.tasks import FiniteTasks
from trajgym.errors import ConfigError
from trajgym.rollout import Episode, derive_seed
from trajgym.trainers.config import GRPOConfig

__all__ = ["TaskSchedule", "lr_factor"]


class TaskSchedule:
    """Deals tasks to updates, G episodes to each.

    A finite data set is dealt without replacement, newly shuffled in each epoch; an endless one, or an environment
    that is not ours, draws the task from the episode's seed, which all members of a group share.

    Args:
        env: One environment of the run, to look at its tasks.
        config: The run's options.

    Raises:
        ConfigError: When ``epochs`` or ``max_samples`` is set and the tasks never end.
    """

    def __init__(self, env: gymnasium.Env[str, str], config: GRPOConfig) -> None:
        source: Any = getattr(env.unwrapped, "tasks", None)
        self._config = config
        self._ids: Sequence[str] | None = None
        if isinstance(source, FiniteTasks):
            self._ids = [task.id for task in source][: config.max_samples]
        elif config.epochs is not None or config.max_samples is not None:
            raise ConfigError(
                f"{config.env} makes up tasks without end, so epochs and max_samples mean nothing there. Set updates."
            )
        if config.epochs is not None and self._ids is not None:
            self.total = math.ceil(config.epochs * len(self._ids) / config.groups_per_update)
        else:
            self.total = int(config.updates or 0)

    def episodes(self, update: int, round: int = 0) -> list[Episode]:
        """Return the episodes of an update, the members of a group side by side.

        Args:
            update: Counted from 0.
            round: Counted from 0; further rounds of the same update draw tasks of a finite data set at random.
        """
        config = self._config
        further = ("round", round) if round else ()
        out = []
        for group in range(config.groups_per_update):
            env_seed = derive_seed(config.seed, "env", update, group, *further)
            task = self._task(update * config.groups_per_update + group)
            if round and self._ids is not None:
                task = self._ids[env_seed % len(self._ids)]
            for member in range(config.num_generations):
                policy_seed = derive_seed(config.seed, "policy", update, group, member, *further)
                out.append(Episode(env_seed, policy_seed, task))
        return out

    def epoch(self, update: int) -> float:
        """Return how many passes over the data are done after ``update`` updates; 0 for endless tasks."""
        return update * self._config.groups_per_update / len(self._ids) if self._ids else 0.0

    def _task(self, index: int) -> str | None:
        if self._ids is None:
            return None
        epoch, position = divmod(index, len(self._ids))
        order = np.random.default_rng(derive_seed(self._config.seed, "epoch", epoch)).permutation(len(self._ids))
        return self._ids[int(order[position])]


def lr_factor(progress: float, warmup: float, shape: str) -> float:
    """Return the factor on the peak learning rate.

    Args:
        progress: How much of the run is done, 0 … 1.
        warmup: Share of the run in which the factor rises linearly from 0 to 1.
        shape: What follows: ``"constant"``, or to 0 at the end as ``"linear"`` or ``"cosine"``.

    >>> [round(lr_factor(p, 0.1, "linear"), 3) for p in (0.0, 0.05, 0.1, 0.55, 1.0)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if progress < warmup:
        return progress / warmup
    left = (1.0 - progress) / (1.0 - warmup) if warmup < 1.0 else 1.0
    if shape == "constant":
        return 1.0
    return left if shape == "linear" else 0.5 * (1.0 + math.cos(math.pi * (1.0 - left)))
