"""The reward over a run: weights that change, and the discount that some terms must know.

The environments of a run share one rubric, the one in force; it depends on the run's progress alone, so a resumed run
pays what the uninterrupted one would have.
"""

from __future__ import annotations

from typing import Any

import gymnasium

from trajgym.errors import ConfigError
from trajgym.rewards import Rubric, Schedule
from trajgym.rollout import EnvPool, MakeEnv
from trajgym.trainers.config import GRPOConfig

__all__ = ["RewardPool", "reward_plan"]


def reward_plan(env: gymnasium.Env[str, str], config: GRPOConfig) -> Rubric | None:
    """Return the rubric of the whole run, or ``None`` for an environment without one.

    Args:
        env: One environment of the run.
        config: ``reward_schedule`` replaces weights; ``gamma`` is told to the terms that depend on it.

    Raises:
        ConfigError: When a schedule is none, names a term that the rubric does not have or there is no rubric; when a
            term was made for another discount.
    """
    rubric: Any = getattr(env.unwrapped, "rubric", None)
    if not isinstance(rubric, Rubric):
        if config.reward_schedule:
            raise ConfigError(f"reward_schedule needs a reward with named terms, which {config.env} does not have.")
        return None
    schedules = {name: Schedule(points) for name, points in config.reward_schedule.items()}
    return rubric.reweighted(schedules).discounted(config.gamma)


class RewardPool(EnvPool):
    """Environments that pay by the rubric in force.

    Args:
        make_env: Makes one environment.
        plan: From :func:`reward_plan`; ``None`` leaves the environments' rewards alone.
        threads: Most environments that step at the same time.
        deadline: As for :class:`trajgym.rollout.EnvPool`.
    """

    def __init__(self, make_env: MakeEnv, plan: Rubric | None, *, threads: int, deadline: float | None = None) -> None:
        super().__init__(make_env, threads=threads, deadline=deadline)
        self._plan = plan
        self._in_force = plan

    def take(self) -> gymnasium.Env[str, str]:
        """Return an environment that nobody uses, with the rubric in force."""
        env = super().take()
        if self._in_force is not None:
            inner: Any = env.unwrapped
            inner.rubric = self._in_force
        return env

    def advance(self, progress: float) -> dict[str, float]:
        """Put the rubric for ``progress`` (0 … 1) in force for all episodes that begin from now on.

        Returns:
            The weights that change over the run, as ``weight/NAME``.
        """
        if self._plan is None or not self._plan.scheduled:
            return {}
        self._in_force = self._plan.at(progress)
        weights = self._in_force.weights
        return {
            f"weight/{name}": weights[name] for name, (_, weight) in self._plan.items() if isinstance(weight, Schedule)
        }
